//! Both ends against each other, however the bytes are cut; and against others that lie.

use proptest::prelude::*;

use super::dh::{self, KEY_LEN};
use super::exchange::{Random, Secret};
use super::*;

const CONTENT: InfoHash = [0xab; 20];

fn find(key: &[u8; 20]) -> Option<InfoHash> {
    (*key == content_key(&CONTENT)).then_some(CONTENT)
}

/// Takes `pieces` of `wire` in turn, the last one to its end.
fn cut<'a>(wire: &'a [u8], pieces: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut left = wire;
    let mut lens = pieces.iter().copied().cycle();
    std::iter::from_fn(move || {
        let len = lens.next().unwrap_or(usize::MAX).clamp(1, left.len().max(1));
        let (piece, rest) = left.split_at_checked(len)?;
        left = rest;
        Some(piece)
    })
}

/// What both agreed on, and the bytes that the caller sends and that it is sent.
fn negotiate(
    caller: Methods,
    called: Methods,
    initial: &[u8],
    seed: u8,
    pieces: &[usize],
) -> Result<(Agreed, Agreed), MseError> {
    let (mut to_called, mut to_caller) = (Vec::new(), Vec::new());
    let mut initiator = Initiator::new(CONTENT, caller, initial, [seed; 32], &mut to_called);
    let mut responder = Responder::new(called, [!seed; 32]);
    let (mut by_caller, mut by_called) = (None, None);
    while by_caller.is_none() {
        for piece in cut(&std::mem::take(&mut to_called), pieces) {
            by_called = responder.received(piece, find, &mut to_caller)?.or(by_called);
        }
        for piece in cut(&std::mem::take(&mut to_caller), pieces) {
            by_caller = initiator.received(piece, &mut to_called)?.or(by_caller);
        }
    }
    Ok((by_caller.unwrap(), by_called.expect("the called one knows first")))
}

#[test]
fn the_best_of_what_both_take_is_chosen_by_who_is_called() {
    use Method::{Plaintext, Rc4};
    for (caller, called, expected) in [
        (Methods::BOTH, Methods::BOTH, Ok(Plaintext)),
        (Methods::BOTH, Methods::RATHER_RC4, Ok(Rc4)),
        (Methods::RATHER_RC4, Methods::BOTH, Ok(Plaintext)),
        (Methods::RC4, Methods::BOTH, Ok(Rc4)),
        (Methods::BOTH, Methods::RC4, Ok(Rc4)),
        (Methods { bits: 1, preferred: Plaintext }, Methods::BOTH, Ok(Plaintext)),
        (Methods { bits: 1, preferred: Plaintext }, Methods::RC4, Err(MseError::Methods(1))),
        (Methods { bits: 4, preferred: Plaintext }, Methods::BOTH, Err(MseError::Methods(4))),
    ] {
        let methods = negotiate(caller, called, b"", 1, &[]).map(|(caller, called)| {
            assert_eq!(caller.method(), called.method());
            caller.method()
        });
        assert_eq!(methods, expected, "{caller:?} {called:?}");
    }
}

#[test]
fn who_asks_for_another_content_is_told_no_more_than_noise() {
    let (mut to_called, mut to_caller) = (Vec::new(), Vec::new());
    let mut initiator = Initiator::new([1; 20], Methods::BOTH, b"", [1; 32], &mut to_called);
    let mut responder = Responder::new(Methods::BOTH, [2; 32]);
    assert!(responder.received(&to_called, find, &mut to_caller).unwrap().is_none());
    to_called.clear();
    initiator.received(&to_caller, &mut to_called).unwrap();
    to_caller.clear();
    assert_eq!(responder.received(&to_called, find, &mut to_caller).unwrap_err(), MseError::UnknownContent);
    assert_eq!(to_caller, b"");
}

/// A caller that knows the protocol and lies: what it sends after the keys were exchanged.
struct Liar {
    responder: Responder,
    secret: Secret,
    ciphers: Ciphers,
}

impl Liar {
    fn new() -> Self {
        let private = Random::new(&[9; 32]).private();
        let (mut responder, mut out) = (Responder::new(Methods::BOTH, [3; 32]), Vec::new());
        responder.received(&dh::public_key(&private), find, &mut out).unwrap();
        let secret = Secret::new(&private, out.first_chunk::<KEY_LEN>().unwrap()).unwrap();
        let ciphers = secret.caller(&CONTENT);
        Self { responder, secret, ciphers }
    }

    /// So much padding, the mark, the content, and `rest` encrypted.
    fn say(mut self, padding: usize, rest: &[u8]) -> Result<Option<Agreed>, MseError> {
        let mut message = vec![0x55; padding];
        message.extend_from_slice(&self.secret.mark());
        message.extend_from_slice(&self.secret.mask(&content_key(&CONTENT)));
        let begin = message.len();
        message.extend_from_slice(rest);
        self.ciphers.send.apply(&mut message[begin..]);
        self.responder.received(&message, find, &mut Vec::new())
    }
}

/// Zeros, methods, padding and what is sent ahead, of the lengths that are claimed.
fn offer(zero: u8, methods: u32, padding: u16, initial: u16) -> Vec<u8> {
    let mut message = vec![0, 0, 0, 0, 0, 0, 0, zero];
    message.extend_from_slice(&methods.to_be_bytes());
    message.extend_from_slice(&padding.to_be_bytes());
    message.resize(message.len() + usize::from(padding), 7);
    message.extend_from_slice(&initial.to_be_bytes());
    message.resize(message.len() + usize::from(initial), 8);
    message
}

#[test]
fn callers_are_held_to_the_limits() {
    let most = (PADDING_LEN_MAX as u16, INITIAL_LEN_MAX as u16);
    let agreed = Liar::new().say(PADDING_LEN_MAX, &offer(0, 3, most.0, most.1)).unwrap().unwrap();
    assert_eq!((agreed.method(), agreed.early), (Method::Plaintext, vec![8; INITIAL_LEN_MAX]));
    for (padding, rest, fault) in [
        (PADDING_LEN_MAX + 1, offer(0, 3, 0, 0), MseError::OutOfSync),
        (0, offer(1, 3, 0, 0), MseError::BadConstant),
        (0, offer(0, 3, most.0 + 1, 0), MseError::Padding(PADDING_LEN_MAX + 1)),
        (0, offer(0, 3, 0, most.1 + 1), MseError::Initial(INITIAL_LEN_MAX + 1)),
        (0, offer(0, 0, 0, 0), MseError::Methods(0)),
        (0, offer(0, 0xffff_fffc, 0, 0), MseError::Methods(0xffff_fffc)),
    ] {
        assert_eq!(Liar::new().say(padding, &rest).unwrap_err(), fault);
    }
    assert_eq!(
        Responder::new(Methods::BOTH, [1; 32]).received(&[0; 96], find, &mut Vec::new()).unwrap_err(),
        MseError::BadKey
    );
}

#[test]
fn the_called_one_is_held_to_the_limits() {
    let answer = |constant: &[u8], selected: u32, padding_len: u16, before: usize| {
        let mut out = Vec::new();
        let mut initiator = Initiator::new(CONTENT, Methods::RC4, b"", [5; 32], &mut out);
        let private = Random::new(&[6; 32]).private();
        let secret = Secret::new(&private, out.first_chunk::<KEY_LEN>().unwrap()).unwrap();
        let mut message = dh::public_key(&private).to_vec();
        message.resize(message.len() + before, 0x33);
        let begin = message.len();
        message.extend_from_slice(constant);
        message.extend_from_slice(&selected.to_be_bytes());
        message.extend_from_slice(&padding_len.to_be_bytes());
        message.resize(message.len() + usize::from(padding_len), 0);
        message.extend_from_slice(b"behind");
        secret.called(&CONTENT).send.apply(&mut message[begin..]);
        initiator.received(&message, &mut out).map(|agreed| agreed.map(|agreed| agreed.early))
    };
    let (zeros, most) = ([0; 8], PADDING_LEN_MAX as u16);
    assert_eq!(answer(&zeros, 2, most, PADDING_LEN_MAX), Ok(Some(b"behind".to_vec())));
    assert_eq!(answer(&zeros, 2, 0, PADDING_LEN_MAX + 1), Err(MseError::OutOfSync));
    assert_eq!(answer(&zeros, 2, most + 1, 0), Err(MseError::Padding(PADDING_LEN_MAX + 1)));
    // What was not offered, more than one, none.
    for selected in [1, 3, 0, 4] {
        assert_eq!(answer(&zeros, selected, 0, 0), Err(MseError::Methods(selected)));
    }
    // Without the zeros it is padding still.
    assert_eq!(answer(&[1; 8], 2, 0, 0), Ok(None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// However the bytes are cut, both come to the same, and what was sent ahead and after arrives.
    #[test]
    fn both_ends_agree_however_the_bytes_are_cut(
        seed: u8, caller_rather: bool, called in 0usize..3,
        initial in proptest::collection::vec(any::<u8>(), 0..200),
        pieces in proptest::collection::vec(1usize..700, 1..6),
    ) {
        let caller = if caller_rather { Methods::RATHER_RC4 } else { Methods::BOTH };
        let called = [Methods::BOTH, Methods::RATHER_RC4, Methods::RC4][called];
        let (caller, called) = negotiate(caller, called, &initial, seed, &pieces).unwrap();
        prop_assert_eq!(&called.early, &initial);
        prop_assert_eq!(caller.method(), called.method());
        prop_assert_eq!(called.info_hash, CONTENT);
        if let (Some(mut caller), Some(mut called)) = (caller.ciphers, called.ciphers) {
            let mut message = *b"requests and blocks";
            caller.send.apply(&mut message);
            called.receive.apply(&mut message);
            called.send.apply(&mut message);
            caller.receive.apply(&mut message);
            prop_assert_eq!(&message, b"requests and blocks");
        }
    }

    /// Noise of any kind comes to an end, and is kept no longer than a greeting may be.
    #[test]
    fn noise_is_no_greeting(bytes in proptest::collection::vec(any::<u8>(), 0..2000), seed: [u8; 32]) {
        let mut out = Vec::new();
        let mut responder = Responder::new(Methods::BOTH, seed);
        let heard = responder.received(&bytes, find, &mut out);
        prop_assert!(matches!(heard, Ok(None) | Err(MseError::OutOfSync | MseError::BadKey)), "{:?}", heard);
        prop_assert!(out.len() <= KEY_LEN + PADDING_LEN_MAX);
        prop_assert_eq!(heard.is_ok(), bytes.len() < KEY_LEN + PADDING_LEN_MAX + 20);
        let mut sent = Vec::new();
        let mut initiator = Initiator::new(CONTENT, Methods::BOTH, b"", seed, &mut sent);
        let heard = initiator.received(&bytes, &mut sent);
        prop_assert!(matches!(heard, Ok(None) | Err(MseError::OutOfSync | MseError::BadKey)), "{:?}", heard);
        prop_assert_eq!(heard.is_ok(), bytes.len() < KEY_LEN + PADDING_LEN_MAX + 8);
    }
}
