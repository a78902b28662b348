//! Any bytes as a datagram of PPSPP: opening a channel, and as messages in any form that a swarm can agree on. What is read
//! and can be written is the same when read again. Keys of live sources and headers of trees on disk are read too.
//!
//! Input: four bytes of what was agreed on, the datagram.
#![no_main]

use anabranch_ppspp::hash::HashFunction;
use anabranch_ppspp::merkle::{Offers, Sidecar};
use anabranch_ppspp::sign::PublicKey;
use anabranch_ppspp::wire::{Addressing, Codec, Dialect, Message, Messages, Opening, split_channel};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&[form, hash, signature, chunk], datagram)) = data.split_first_chunk::<4>() else { return };
    let codec = Codec {
        dialect: [Dialect::Rfc7574, Dialect::Draft10, Dialect::Legacy][usize::from(form / 5 % 3)],
        addressing: Addressing::ALL[usize::from(form % 5)],
        hash: HashFunction::ALL[usize::from(hash % 5)],
        signature_len: u16::from(signature),
        chunk_len: (chunk > 0).then_some(u32::from(chunk)),
    };
    let Some((_, messages)) = split_channel(datagram) else { return };
    let mut offers = Offers::new();
    // A chunk with digests alone in front of it, read at once, is what it is message by message.
    let mut digests = Vec::new();
    let lone = Messages::new(codec, messages).lone_chunk(&mut digests);
    let read: Result<Vec<_>, _> = Messages::new(codec, messages).collect();
    let is_lone = read.as_ref().ok().and_then(|read| read.split_last()).filter(|(last, before)| {
        matches!(last, Message::Data { .. }) && before.iter().all(|one| matches!(one, Message::Integrity { .. }))
    });
    assert_eq!(lone.is_some(), is_lone.is_some());
    if let (Some(lone), Some((Message::Data { chunk, sent_us, payload }, before))) = (lone, is_lone) {
        assert_eq!((lone.chunk, lone.sent_us, lone.payload), (*chunk, *sent_us, *payload));
        assert!(digests.iter().zip(before).all(|((node, digest), message)| {
            codec.hash.digest(digest).is_some_and(|digest| *message == Message::Integrity { node: *node, digest })
        }));
        assert_eq!(digests.len(), before.len());
    }
    for message in Messages::new(codec, messages).take_while(Result::is_ok).flatten() {
        if let Message::Integrity { node, digest } = &message {
            offers.add(*node, *digest);
        }
        let mut written = Vec::new();
        if message.encode(&codec, &mut written).is_ok() && !written.is_empty() {
            assert_eq!(Messages::new(codec, &written).next(), Some(Ok(message)));
        }
    }
    if let Ok(opening) = Opening::parse(messages) {
        let mut written = Vec::new();
        Opening::encode(opening.dialect, &opening.handshake, &mut written);
        assert_eq!(Opening::parse(&written).map(|again| again.handshake), Ok(opening.handshake));
    }
    if let Ok(key) = PublicKey::parse(messages) {
        assert!(key.signature_len() > 0 && !key.verify(b"", &[]));
    }
    if let Ok(sidecar) = Sidecar::parse(messages) {
        assert_eq!(sidecar.encode()[..], messages[..sidecar.encode().len()]);
    }
});
