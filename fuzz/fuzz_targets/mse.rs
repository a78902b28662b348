//! Both ends of message stream encryption against anything: no panic, nothing sent without end, and what an honest other end says is
//! understood however it is cut.
#![no_main]

use anabranch_bittorrent::InfoHash;
use anabranch_bittorrent::mse::{self, INITIAL_LEN_MAX, Initiator, KEY_LEN, Methods, PADDING_LEN_MAX, Responder};
use libfuzzer_sys::fuzz_target;

const CONTENT: InfoHash = [7; 20];

fn find(key: &[u8; 20]) -> Option<InfoHash> {
    (*key == mse::content_key(&CONTENT)).then_some(CONTENT)
}

fuzz_target!(|input: &[u8]| {
    let Some((&[seed, flags, cut], bytes)) = input.split_first_chunk() else { return };
    let methods = [Methods::BOTH, Methods::RATHER_RC4, Methods::RC4];
    let (ours, theirs) = (methods[usize::from(flags & 3) % 3], methods[usize::from(flags >> 2 & 3) % 3]);
    let cut = usize::from(cut).max(1);

    // Whatever comes.
    let mut out = Vec::new();
    let mut responder = Responder::new(ours, [seed; 32]);
    for part in bytes.chunks(cut) {
        if responder.received(part, find, &mut out).is_err() {
            break;
        }
    }
    assert!(out.len() <= KEY_LEN + PADDING_LEN_MAX, "nobody who does not know the content is sent more");
    let mut out = Vec::new();
    let mut initiator = Initiator::new(CONTENT, ours, b"", [seed; 32], &mut out);
    for part in bytes.chunks(cut) {
        if initiator.received(part, &mut out).is_err() {
            break;
        }
    }
    assert!(out.len() <= 2 * KEY_LEN + 3 * PADDING_LEN_MAX, "a caller says its part once");

    // An honest end, with the input sent ahead and behind.
    let (initial, behind) = bytes.split_at(bytes.len().min(INITIAL_LEN_MAX));
    let (mut to_called, mut to_caller) = (Vec::new(), Vec::new());
    let mut initiator = Initiator::new(CONTENT, theirs, initial, [!seed; 32], &mut to_called);
    let mut responder = Responder::new(ours, [seed; 32]);
    let (mut by_called, mut by_caller) = (None, None);
    while by_caller.is_none() {
        for part in std::mem::take(&mut to_called).chunks(cut) {
            by_called = responder.received(part, find, &mut to_caller).expect("it is honest").or(by_called);
        }
        for part in std::mem::take(&mut to_caller).chunks(cut) {
            by_caller = initiator.received(part, &mut to_called).expect("so is this one").or(by_caller);
        }
    }
    let (Some(called), Some(caller)) = (by_called, by_caller) else { unreachable!("the called one agrees first") };
    assert_eq!(called.early, initial);
    assert_eq!(called.method(), caller.method());
    if let (Some(mut called), Some(mut caller)) = (called.ciphers, caller.ciphers) {
        let mut message = behind.to_vec();
        caller.send.apply(&mut message);
        called.receive.apply(&mut message);
        assert_eq!(message, behind);
    }
});
