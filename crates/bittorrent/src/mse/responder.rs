//! The end that is called ("B").

use super::dh;
use super::exchange::{CONSTANT_LEN, Inbox, Random, Secret};
use super::{Agreed, Ciphers, INITIAL_LEN_MAX, KEY_LEN, Method, Methods, MseError, PADDING_LEN_MAX};
use crate::InfoHash;

/// The zeros, crypto_provide and len(PadC).
const OFFER_LEN: usize = CONSTANT_LEN + 4 + 2;

/// A greeting of a stranger under way.
#[derive(Debug)]
pub struct Responder {
    methods: Methods,
    state: State,
    inbox: Inbox,
}

#[derive(Debug)]
enum State {
    /// The caller's key comes next.
    Key { random: Random },
    /// Padding, up to the mark.
    Padding { random: Random, secret: Secret, mark: [u8; 20] },
    /// The caller's word for a content.
    Content { random: Random, secret: Secret },
    /// What the caller offers.
    Offer { random: Random, about: About },
    /// Padding, and how much is sent ahead.
    Behind { random: Random, about: About, offered: u32, len: usize },
    /// What is sent ahead.
    Initial { random: Random, about: About, offered: u32, len: usize },
    /// It came to its end.
    Over,
}

/// The content that the caller named.
#[derive(Debug)]
struct About {
    info_hash: InfoHash,
    ciphers: Ciphers,
}

impl Responder {
    /// Waits for a caller to greet. `seed` are 32 random bytes.
    pub fn new(methods: Methods, seed: [u8; 32]) -> Self {
        Self { methods, state: State::Key { random: Random::new(&seed) }, inbox: Inbox::default() }
    }

    /// Takes the next bytes that came, and appends what is to be sent to `out`. `find` answers which content a
    /// [`content_key`](super::content_key) stands for. Answers once both agree.
    ///
    /// # Errors
    /// Where the caller does not keep to the protocol, or asks for what is not here.
    pub fn received(
        &mut self,
        bytes: &[u8],
        find: impl Fn(&[u8; 20]) -> Option<InfoHash>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Agreed>, MseError> {
        self.inbox.extend(bytes);
        loop {
            let state = std::mem::replace(&mut self.state, State::Over);
            self.state = match self.step(state, &find, out)? {
                Step::On(state) => state,
                Step::Wait(state) => {
                    self.state = state;
                    return Ok(None);
                }
                Step::Done(agreed) => return Ok(Some(agreed)),
            };
        }
    }

    fn step(
        &mut self,
        state: State,
        find: impl Fn(&[u8; 20]) -> Option<InfoHash>,
        out: &mut Vec<u8>,
    ) -> Result<Step, MseError> {
        Ok(match state {
            State::Key { mut random } => match self.inbox.take::<KEY_LEN>() {
                None => Step::Wait(State::Key { random }),
                Some(theirs) => {
                    let private = random.private();
                    let secret = Secret::new(&private, &theirs)?;
                    out.extend_from_slice(&dh::public_key(&private));
                    let len = random.padding_len();
                    random.pad(len, out);
                    let mark = secret.mark();
                    Step::On(State::Padding { random, secret, mark })
                }
            },
            State::Padding { random, secret, mark } => match self.inbox.skip_to(&mark)? {
                None => Step::Wait(State::Padding { random, secret, mark }),
                Some(()) => Step::On(State::Content { random, secret }),
            },
            State::Content { random, secret } => match self.inbox.take::<20>() {
                None => Step::Wait(State::Content { random, secret }),
                Some(word) => {
                    let info_hash = find(&secret.mask(&word)).ok_or(MseError::UnknownContent)?;
                    let about = About { info_hash, ciphers: secret.called(&info_hash) };
                    Step::On(State::Offer { random, about })
                }
            },
            State::Offer { random, mut about } => match self.inbox.take::<OFFER_LEN>() {
                None => Step::Wait(State::Offer { random, about }),
                Some(mut offer) => {
                    about.ciphers.receive.apply(&mut offer);
                    let (constant, rest) = offer.split_at(CONSTANT_LEN);
                    if constant.iter().any(|byte| *byte != 0) {
                        return Err(MseError::BadConstant);
                    }
                    let number = rest.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
                    let (offered, len) = ((number >> 16) as u32, (number & 0xffff) as usize);
                    if len > PADDING_LEN_MAX {
                        return Err(MseError::Padding(len));
                    }
                    Step::On(State::Behind { random, about, offered, len })
                }
            },
            State::Behind { random, mut about, offered, len } => match self.inbox.take_vec(len + 2) {
                None => Step::Wait(State::Behind { random, about, offered, len }),
                Some(mut behind) => {
                    about.ciphers.receive.apply(&mut behind);
                    let len = usize::from(behind[len]) << 8 | usize::from(behind[len + 1]);
                    if len > INITIAL_LEN_MAX {
                        return Err(MseError::Initial(len));
                    }
                    Step::On(State::Initial { random, about, offered, len })
                }
            },
            State::Initial { mut random, mut about, offered, len } => match self.inbox.take_vec(len) {
                None => Step::Wait(State::Initial { random, about, offered, len }),
                Some(mut early) => {
                    about.ciphers.receive.apply(&mut early);
                    let method = self.methods.choose(offered).ok_or(MseError::Methods(offered))?;
                    about.answer(method, &mut random, out);
                    let About { info_hash, mut ciphers } = about;
                    let mut rest = self.inbox.rest();
                    let ciphers = (method == Method::Rc4).then(|| {
                        ciphers.receive.apply(&mut rest);
                        ciphers
                    });
                    early.append(&mut rest);
                    Step::Done(Agreed { info_hash, ciphers, early })
                }
            },
            State::Over => Step::Wait(State::Over),
        })
    }
}

impl About {
    /// Says what was chosen.
    fn answer(&mut self, method: Method, random: &mut Random, out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend_from_slice(&[0; CONSTANT_LEN]);
        out.extend_from_slice(&method.bit().to_be_bytes());
        let len = random.padding_len();
        out.extend_from_slice(&(len as u16).to_be_bytes());
        random.pad(len, out);
        self.ciphers.send.apply(&mut out[begin..]);
    }
}

enum Step {
    On(State),
    Wait(State),
    Done(Agreed),
}
