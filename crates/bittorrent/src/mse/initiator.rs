//! The end that calls ("A").

use super::dh;
use super::exchange::{CONSTANT_LEN, Inbox, Random, Secret};
use super::{Agreed, Ciphers, KEY_LEN, Method, Methods, MseError, PADDING_LEN_MAX, content_key};
use crate::InfoHash;

/// crypto_select and len(PadD).
const SELECTION_LEN: usize = 4 + 2;

/// A greeting of ours under way.
#[derive(Debug)]
pub struct Initiator {
    info_hash: InfoHash,
    methods: Methods,
    state: State,
    inbox: Inbox,
}

#[derive(Debug)]
enum State {
    /// The other's key comes next; what is sent then.
    Key { private: [u8; 20], random: Random, initial: Vec<u8> },
    /// Padding, up to the zeros.
    Padding { ciphers: Ciphers, mark: [u8; CONSTANT_LEN] },
    /// What the other chose.
    Selection { ciphers: Ciphers },
    /// Padding behind that.
    Behind { ciphers: Ciphers, method: Method, len: usize },
    /// It came to its end.
    Over,
}

impl Initiator {
    /// Begins to greet the other end about a content, and appends the first bytes to `out`. `initial` (a handshake, as a rule, of at
    /// most [`INITIAL_LEN_MAX`](super::INITIAL_LEN_MAX) bytes) goes ahead, so that no round trip is lost. `seed` are 32 random bytes.
    pub fn new(info_hash: InfoHash, methods: Methods, initial: &[u8], seed: [u8; 32], out: &mut Vec<u8>) -> Self {
        let mut random = Random::new(&seed);
        let private = random.private();
        out.extend_from_slice(&dh::public_key(&private));
        let padding_len = random.padding_len();
        random.pad(padding_len, out);
        let state = State::Key { private, random, initial: initial.to_vec() };
        Self { info_hash, methods, state, inbox: Inbox::default() }
    }

    /// Takes the next bytes that came, and appends what is to be sent to `out`. Answers once both agree.
    ///
    /// # Errors
    /// Where the other end does not keep to the protocol, or has not the content.
    pub fn received(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Option<Agreed>, MseError> {
        self.inbox.extend(bytes);
        loop {
            let state = std::mem::replace(&mut self.state, State::Over);
            self.state = match self.step(state, out)? {
                Step::On(state) => state,
                Step::Wait(state) => {
                    self.state = state;
                    return Ok(None);
                }
                Step::Done(agreed) => return Ok(Some(agreed)),
            };
        }
    }

    fn step(&mut self, state: State, out: &mut Vec<u8>) -> Result<Step, MseError> {
        Ok(match state {
            State::Key { private, mut random, initial } => match self.inbox.take::<KEY_LEN>() {
                None => Step::Wait(State::Key { private, random, initial }),
                Some(theirs) => {
                    let secret = Secret::new(&private, &theirs)?;
                    let ciphers = self.ask(&secret, &mut random, &initial, out);
                    // Where the zeros will be is known by what they are encrypted to.
                    let mut mark = [0; CONSTANT_LEN];
                    ciphers.receive.clone().apply(&mut mark);
                    Step::On(State::Padding { ciphers, mark })
                }
            },
            State::Padding { mut ciphers, mark } => match self.inbox.skip_to(&mark)? {
                None => Step::Wait(State::Padding { ciphers, mark }),
                Some(()) => {
                    ciphers.receive.apply(&mut [0; CONSTANT_LEN]);
                    Step::On(State::Selection { ciphers })
                }
            },
            State::Selection { mut ciphers } => match self.inbox.take::<SELECTION_LEN>() {
                None => Step::Wait(State::Selection { ciphers }),
                Some(mut selection) => {
                    ciphers.receive.apply(&mut selection);
                    let [a, b, c, d, high, low] = selection;
                    let (selected, len) =
                        (u32::from_be_bytes([a, b, c, d]), usize::from(u16::from_be_bytes([high, low])));
                    let method = self.methods.choose(selected).filter(|method| method.bit() == selected);
                    let method = method.ok_or(MseError::Methods(selected))?;
                    if len > PADDING_LEN_MAX {
                        return Err(MseError::Padding(len));
                    }
                    Step::On(State::Behind { ciphers, method, len })
                }
            },
            State::Behind { mut ciphers, method, len } => match self.inbox.take_vec(len) {
                None => Step::Wait(State::Behind { ciphers, method, len }),
                Some(mut padding) => {
                    ciphers.receive.apply(&mut padding);
                    let mut early = self.inbox.rest();
                    let ciphers = (method == Method::Rc4).then_some(ciphers).map(|mut ciphers| {
                        ciphers.receive.apply(&mut early);
                        ciphers
                    });
                    Step::Done(Agreed { info_hash: self.info_hash, ciphers, early })
                }
            },
            State::Over => Step::Wait(State::Over),
        })
    }

    /// Names the content, and what may follow.
    fn ask(&self, secret: &Secret, random: &mut Random, initial: &[u8], out: &mut Vec<u8>) -> Ciphers {
        let mut ciphers = secret.caller(&self.info_hash);
        out.extend_from_slice(&secret.mark());
        out.extend_from_slice(&secret.mask(&content_key(&self.info_hash)));
        let begin = out.len();
        out.extend_from_slice(&[0; CONSTANT_LEN]);
        out.extend_from_slice(&self.methods.bits.to_be_bytes());
        let len = random.padding_len();
        out.extend_from_slice(&(len as u16).to_be_bytes());
        random.pad(len, out);
        out.extend_from_slice(&(initial.len() as u16).to_be_bytes());
        out.extend_from_slice(initial);
        ciphers.send.apply(&mut out[begin..]);
        ciphers
    }
}

enum Step {
    On(State),
    Wait(State),
    Done(Agreed),
}
