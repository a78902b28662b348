//! Any bytes as a peer's stream: handshake and messages. However the stream is cut, and whether or not block payload passes
//! through the receiver, the events are the same; every message that is read can be written and is the same bytes again.
//!
//! Input: a byte of options, eight lengths of parts, the stream.
#![no_main]

use anabranch_bittorrent::handshake::{Handshake, display_name};
use anabranch_bittorrent::wire::{BlockRange, Event, Limits, Receiver, WireError, piece_header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&[options, ref cuts @ ..], stream)) = data.split_first_chunk::<9>() else { return };
    if let Ok(Some(handshake)) = Handshake::parse(stream) {
        assert_eq!(handshake.encode()[..], stream[..68]);
    }
    display_name(stream);
    let piece_count = (options & 1 != 0).then_some(u32::from(options >> 4));
    let block_len_max = if options & 2 != 0 { 64 } else { u32::MAX };
    let limits = Limits { piece_count, block_len_max };
    let whole = receive(stream, &[usize::MAX], false, &limits);
    let cuts = cuts.map(|cut| usize::from(cut) + 1);
    assert_eq!(receive(stream, &cuts, options & 4 != 0, &limits), whole);
});

/// What the stream's messages are, as their own bytes; unknown ones are left out.
fn receive(stream: &[u8], cuts: &[usize], outside: bool, limits: &Limits) -> (Vec<u8>, u32, Option<WireError>) {
    let (mut receiver, mut written) = (Receiver::default(), Vec::new());
    let mut block = BlockRange { piece: 0, begin: 0, len: 0 };
    let (mut rest, mut cuts) = (stream, cuts.iter().copied().cycle());
    while !rest.is_empty() {
        let cut = cuts.next().unwrap_or(1).min(rest.len());
        if let (true, Some(left)) = (outside, receiver.payload_left()) {
            let len = cut.min(left as usize);
            written.extend_from_slice(&rest[..len]);
            rest = &rest[len..];
            receiver.payload_filled(len as u32);
            continue;
        }
        let mut input = &rest[..cut];
        loop {
            match receiver.next(&mut input, limits) {
                Ok(Some(Event::Message(message))) => message.encode(&mut written),
                Ok(Some(Event::BlockStart(range))) => {
                    assert!(range.len > 0 && range.len <= limits.block_len_max);
                    block = range;
                    written.extend_from_slice(&piece_header(range.piece, range.begin, range.len));
                }
                Ok(Some(Event::BlockData(data))) => {
                    assert!(data.len() <= block.len as usize);
                    written.extend_from_slice(data);
                }
                Ok(Some(Event::BlockEnd)) => {}
                Ok(None) => break,
                Err(error) => return (written, receiver.take_unknown(), Some(error)),
            }
            if outside && receiver.payload_left().is_some() {
                break;
            }
        }
        rest = &rest[cut - input.len()..];
    }
    let unknown = receiver.take_unknown();
    if unknown == 0 {
        assert!(stream.starts_with(&written), "a message changed on its way through");
    }
    (written, unknown, None)
}
