use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

use proptest::prelude::*;

use super::*;
use crate::bin::{Bin, CHUNKS_MAX};
use crate::sign::SignatureAlgorithm;

const RFC: Codec = Codec {
    dialect: Dialect::Rfc7574,
    addressing: Addressing::Chunks32,
    hash: HashFunction::Sha1,
    signature_len: 64,
    chunk_len: Some(1024),
};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Reads and writes again.
fn both_ways(codec: Codec, bytes: &str, messages: &[Message<'_>]) {
    let bytes = hex(bytes);
    let read: Vec<_> = Messages::new(codec, &bytes).collect::<Result<_, _>>().expect("well formed");
    assert_eq!(read, messages);
    let mut written = Vec::new();
    messages.iter().for_each(|message| message.encode(&codec, &mut written).expect("fits"));
    assert_eq!(written, bytes);
}

/// RFC 7574 §8.16, "example of operation", and the figures of §8.4 to §8.13, written out by hand.
#[test]
fn the_rfcs_example_byte_for_byte() {
    // The opening datagram: versions 1 and 1, a SHA-1 root, Merkle tree, 32-bit chunk ranges, chunks of 1024 bytes.
    let root = "47a01966d19cd4e5d01eb3db2f0c8d2c6d2bb03b";
    let opening = hex(&format!("00 00000001 0001 0101 020014{root} 0301 0400 0602 0900000400 ff"));
    let read = Opening::parse(&opening).expect("well formed");
    assert_eq!((read.dialect, read.rest, read.handshake.channel), (Dialect::Rfc7574, &[][..], 1));
    let swarm =
        SwarmParams::new(&hex(root), Integrity::MerkleTree, HashFunction::Sha1, Addressing::Chunks32, Some(1024))
            .expect("a swarm");
    assert_eq!(swarm.handshake(Dialect::Rfc7574, 1, true, None), read.handshake);
    let mut written = Vec::new();
    Opening::encode(Dialect::Rfc7574, &read.handshake, &mut written);
    assert_eq!(written, opening);
    // The draft's example has no chunk size: that is how libswift is told apart.
    let draft = hex(&format!("00 00000001 0001 0101 020014{root} 0301 0400 0602 ff"));
    assert_eq!(Opening::parse(&draft).expect("well formed").dialect, Dialect::Draft10);
    // The answer, with its HAVE of the first chunk behind it.
    let answer = hex("00 00000008 0001 0301 0400 0602 0900000400 ff 03 00000000 00000000");
    let read = Opening::parse(&answer).expect("well formed");
    assert_eq!(swarm.check(read.dialect, &read.handshake, false), Ok(Codec { signature_len: 0, ..RFC }));
    both_ways(RFC, "03 00000000 00000000", &[Message::Have(0..1)]);
    assert_eq!(read.rest, hex("03 00000000 00000000"));
    // REQUEST and PEX_REQ; DATA with its time; ACK of 100 ms and HAVE; closing.
    both_ways(RFC, "08 00000000 00000000 06", &[Message::Request(0..1), Message::PexRequest]);
    let hello = Message::Data { chunk: 0, sent_us: 0x0004_e941_80b7_db44, payload: b"Hello world!" };
    both_ways(RFC, "01 00000000 00000000 0004e94180b7db44 48656c6c6f20776f726c6421", &[hello]);
    let ack = Message::Ack { chunks: 0..1, delay_us: 100 };
    both_ways(RFC, "02 00000000 00000000 0000000000000064 03 00000000 00000000", &[ack, Message::Have(0..1)]);
    both_ways(RFC, "00 00000000 ff", &[Message::Handshake(Handshake::closing())]);
    assert_eq!(split_channel(&hex("00000008")), Some((8, &[][..])), "§8.14: a channel alone keeps it alive");
    assert_eq!(split_channel(&[0; 3]), None);
}

/// RFC 7574 §8.2: "HAVE message ... bin number ... hence its on the wire representation ... 0300000001".
#[test]
fn every_message_in_every_addressing() {
    let addressed = |addressing| Codec { addressing, ..RFC };
    both_ways(addressed(Addressing::Bins32), "0300000001", &[Message::Have(0..2)]);
    both_ways(addressed(Addressing::Bins32), "037fffffff", &[Message::Have(0..CHUNKS_MAX)]);
    both_ways(addressed(Addressing::Bins64), "030000000000000003", &[Message::Have(0..4)]);
    both_ways(addressed(Addressing::Chunks64), "03 0000000000000004 0000000000000006", &[Message::Have(4..7)]);
    both_ways(addressed(Addressing::Bytes64), "03 0000000000001000 0000000000001bff", &[Message::Have(4..7)]);
    let digest = HashFunction::Sha1.hash(b"abc");
    let node = Bin::new(2, 0).expect("a node");
    both_ways(
        RFC,
        "04 00000000 00000003 a9993e364706816aba3e25717850c26c9cd0d89d",
        &[Message::Integrity { node, digest }],
    );
    let signature = [7; 64];
    let signed = Message::SignedIntegrity { node, ntp: 0xd7f0_0000_8000_0000, signature: &signature };
    both_ways(RFC, &format!("07 00000000 00000003 d7f0000080000000 {}", "07".repeat(64)), &[signed]);
    both_ways(RFC, "09 00000004 00000005 0a 0b", &[Message::Cancel(4..6), Message::Choke, Message::Unchoke]);
    both_ways(
        RFC,
        "05 c0000207 1a7a 0c 20010db8000000000000000000000001 1a7a 0d 0003 308201",
        &[
            Message::PexV4(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 7), 6778)),
            Message::PexV6(SocketAddrV6::new(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 6778, 0, 0)),
            Message::PexCertificate(&[0x30, 0x82, 1]),
        ],
    );
    // §8.6: several DATA messages in a datagram, where chunks are of one length; only the last may be short.
    let two = Codec { chunk_len: Some(2), ..RFC };
    let data = |chunk, payload| Message::Data { chunk, sent_us: 9, payload };
    both_ways(
        two,
        "01 00000004 00000004 0000000000000009 aabb 01 00000005 00000005 0000000000000009 cc",
        &[data(4, &[0xaa, 0xbb]), data(5, &[0xcc])],
    );
    // A range that is no bin is as many messages as bins cover it.
    let mut out = Vec::new();
    Message::Request(1..4).encode(&addressed(Addressing::Bins32), &mut out).expect("fits");
    assert_eq!(out, hex("0800000002 0800000005"));
}

#[test]
fn every_option() {
    let handshake = Handshake {
        channel: 5,
        version: Some(1),
        version_min: Some(1),
        swarm_id: Some([13; 65].into()),
        integrity: Some(Integrity::UnifiedMerkleTree),
        hash: Some(HashFunction::Sha256),
        signature: Some(SignatureAlgorithm::EcdsaP256Sha256),
        addressing: Some(Addressing::Chunks32),
        window: Some(DiscardWindow::Last(1000)),
        supported: Some([0, 1, 2, 3, 8].into_iter().collect()),
        chunk_len: Some(u32::MAX),
        uuid: Some([6; 16]),
    };
    let mut bytes = Vec::new();
    handshake.encode(&mut bytes);
    let text = format!(
        "00 00000005 0001 0101 020041{} 0303 0402 050d 0602 07000003e8 0802f080 09ffffffff 0a{} ff",
        "0d".repeat(65),
        "06".repeat(16)
    );
    assert_eq!(bytes, hex(&text));
    assert_eq!(Opening::parse(&bytes).map(|opening| opening.handshake), Ok(handshake.clone()));
    // §7.9: 64 bits where the addressing method has them; all ones keep everything.
    let window = |addressing: &str, window: &str| {
        Opening::parse(&hex(&format!("00 00000005 {addressing} 07{window} ff"))).map(|opening| opening.handshake.window)
    };
    assert_eq!(window("0604", "00000000000003e8"), Ok(Some(DiscardWindow::Last(1000))));
    assert_eq!(window("0601", "ffffffffffffffff"), Ok(Some(DiscardWindow::All)));
    assert_eq!(window("0600", "ffffffff"), Ok(Some(DiscardWindow::All)));
    assert_eq!(window("", "000003e8"), Err(WireError::WindowBeforeAddressing));
    let supported = SupportedMessages::all();
    assert!((0..14).all(|kind| supported.contains(kind)) && !supported.contains(14));
    let error = |text: &str| Opening::parse(&hex(text)).map(|_| ());
    assert_eq!(error("00 00000005 0001 0001 ff"), Err(WireError::RepeatedOption(0)));
    assert_eq!(error("00 00000005 0bff"), Err(WireError::UnknownOption(11)));
    assert_eq!(error("00 00000005 fe"), Err(WireError::UnknownOption(254)));
    assert_eq!(error("00 00000005 0404 05ff ff"), Err(WireError::UnknownValue(5, 255)));
    assert_eq!(error("00 00000005 0821"), Err(WireError::Truncated));
    assert_eq!(error(&format!("00 00000005 0821{} ff", "00".repeat(33))), Err(WireError::TooLong(33)));
    assert_eq!(error(&format!("00 00000005 020805{} ff", "00".repeat(2053))), Err(WireError::TooLong(2053)));
    assert_eq!(error(&format!("00 00000005 020804{} ff", "00".repeat(2052))), Ok(()));
    assert_eq!(error("00 00000005 0001"), Err(WireError::Truncated));
    assert_eq!((error("01"), error("")), (Err(WireError::NoHandshake), Err(WireError::Truncated)));
}

/// What libswift sent before it spoke the drafts, from its source: INTEGRITY of everything, then HANDSHAKE.
#[test]
fn libswifts_first_dialect() {
    let root = "47a01966d19cd4e5d01eb3db2f0c8d2c6d2bb03b";
    let opening = hex(&format!("04 7fffffff {root} 00 deadbeef 03 00000003"));
    let read = Opening::parse(&opening).expect("well formed");
    assert_eq!((read.dialect, read.handshake.channel), (Dialect::Legacy, 0xdead_beef));
    let swarm = |addressing| {
        SwarmParams::new(&hex(root), Integrity::MerkleTree, HashFunction::Sha1, addressing, Some(1024)).expect("fine")
    };
    let codec = swarm(Addressing::Bins32).check(read.dialect, &read.handshake, true).expect("the same swarm");
    assert_eq!(Messages::new(codec, read.rest).collect::<Vec<_>>(), [Ok(Message::Have(0..4))]);
    assert_eq!(swarm(Addressing::Chunks32).check(read.dialect, &read.handshake, true), Err(Mismatch::Dialect));
    let mut written = Vec::new();
    Opening::encode(
        Dialect::Legacy,
        &swarm(Addressing::Bins32).handshake(Dialect::Legacy, 0xdead_beef, true, None),
        &mut written,
    );
    assert_eq!(written, opening[..opening.len() - 5]);
    both_ways(codec, "01 00000000 616263", &[Message::Data { chunk: 0, sent_us: 0, payload: b"abc" }]);
    both_ways(codec, "00 00000007", &[Message::Handshake(Handshake { channel: 7, ..Handshake::default() })]);
    assert_eq!(Opening::parse(&hex(&format!("04 00000003 {root} 00 00000001"))), Err(WireError::NoHandshake));
}

#[test]
fn peers_of_another_swarm_are_told_what_differs() {
    let id = [1; 32];
    let swarm = SwarmParams::new(&id, Integrity::MerkleTree, HashFunction::Sha256, Addressing::Chunks32, Some(1024))
        .expect("ok");
    let good = swarm.handshake(Dialect::Rfc7574, 3, true, None);
    let check = |change: fn(&mut Handshake)| {
        let mut handshake = good.clone();
        change(&mut handshake);
        swarm.check(Dialect::Rfc7574, &handshake, true).map(|_| ())
    };
    assert_eq!(check(|_| {}), Ok(()));
    assert_eq!(check(|h| h.swarm_id = None), Err(Mismatch::Swarm));
    assert_eq!(check(|h| h.swarm_id = Some([2; 32].into())), Err(Mismatch::Swarm));
    assert_eq!(check(|h| h.version = None), Err(Mismatch::Version));
    assert_eq!(check(|h| (h.version, h.version_min) = (Some(3), Some(2))), Err(Mismatch::Version));
    assert_eq!(check(|h| h.version = Some(3)), Ok(()));
    assert_eq!(check(|h| h.integrity = Some(Integrity::None)), Err(Mismatch::Option(3)));
    assert_eq!(check(|h| h.hash = Some(HashFunction::Sha1)), Err(Mismatch::Option(4)));
    assert_eq!(check(|h| h.hash = None), Err(Mismatch::Option(4)));
    // Whoever opens names chunks as it likes; whoever answers, as it was asked.
    for addressing in Addressing::ALL {
        let named = Handshake { addressing: Some(addressing), ..good.clone() };
        let codec = Codec { addressing, ..swarm.codec(Dialect::Rfc7574) };
        assert_eq!(swarm.check(Dialect::Rfc7574, &named, true), Ok(codec));
        let answer = if addressing == swarm.addressing() { Ok(codec) } else { Err(Mismatch::Option(6)) };
        assert_eq!(swarm.check(Dialect::Rfc7574, &named, false), answer);
    }
    assert_eq!(check(|h| h.addressing = None), Err(Mismatch::Option(6)));
    assert_eq!(check(|h| h.chunk_len = Some(1025)), Err(Mismatch::Option(9)));
    assert_eq!(check(|h| h.chunk_len = None), Ok(()));
    let new = |id: &[u8], integrity, addressing, len| {
        SwarmParams::new(id, integrity, HashFunction::Sha256, addressing, len).map(|_| ())
    };
    let (merkle, live) = (Integrity::MerkleTree, Integrity::UnifiedMerkleTree);
    assert_eq!(new(&id[1..], merkle, Addressing::Bins32, Some(1)), Err(Mismatch::IdLength));
    assert_eq!(new(&id, live, Addressing::Bins32, Some(1)), Err(Mismatch::Key(crate::sign::KeyError::Algorithm)));
    assert_eq!(new(&[13; 65], live, Addressing::Bins32, None), Ok(()));
    assert_eq!(new(&id, merkle, Addressing::Bytes64, None), Err(Mismatch::ChunkLen));
    for (len, expected) in [(0, Err(Mismatch::ChunkLen)), (1, Ok(())), (CHUNK_LEN_MAX, Ok(()))] {
        assert_eq!(new(&id, merkle, Addressing::Bins32, Some(len)), expected);
    }
    assert_eq!(new(&id, merkle, Addressing::Bins32, Some(CHUNK_LEN_MAX + 1)), Err(Mismatch::ChunkLen));
}

#[test]
fn absurd_specifications_are_refused() {
    let read = |addressing, text: &str| {
        let bytes = hex(text);
        let message = Messages::new(Codec { addressing, ..RFC }, &bytes).next().expect("not empty");
        message.map(|message| format!("{message:?}"))
    };
    let bad = Err(WireError::BadChunks);
    assert_eq!(read(Addressing::Chunks32, "03 00000005 00000004"), bad);
    assert_eq!(read(Addressing::Chunks64, "03 0000000000000000 7fffffffffffffff").map(|_| ()), Ok(()));
    assert_eq!(read(Addressing::Chunks64, "03 0000000000000000 8000000000000000"), bad);
    assert_eq!(read(Addressing::Chunks64, "03 0000000000000000 ffffffffffffffff"), bad);
    assert_eq!(read(Addressing::Bytes64, "03 0000000000000001 0000000000000400"), bad, "not at a chunk's start");
    assert_eq!(read(Addressing::Bytes64, "03 0000000000000000 ffffffffffffffff"), bad);
    assert_eq!(read(Addressing::Bins64, "03 ffffffffffffffff"), Ok("Have(0..0)".into()));
    assert_eq!(read(Addressing::Bins32, "01 00000001 0000000000000000 aa"), bad, "DATA is one chunk");
    assert_eq!(read(Addressing::Bins32, "01 ffffffff 0000000000000000 aa"), bad);
    assert_eq!(read(Addressing::Chunks32, "04 00000001 00000002 "), bad, "no node of the tree");
    assert_eq!(read(Addressing::Chunks32, "0e"), Err(WireError::UnknownMessage(14)));
    assert_eq!(read(Addressing::Chunks32, "0d 1001"), Err(WireError::TooLong(0x1001)));
    let fails = |addressing, message: Message<'_>| message.encode(&Codec { addressing, ..RFC }, &mut Vec::new());
    assert_eq!(fails(Addressing::Chunks32, Message::Have(0..(1 << 32) + 1)), Err(DoesNotFit));
    assert_eq!(fails(Addressing::Chunks32, Message::Have(0..1 << 32)), Ok(()));
    assert_eq!(fails(Addressing::Chunks32, Message::Have(4..4)), Err(DoesNotFit));
    assert_eq!(fails(Addressing::Bins32, Message::Have(1 << 31..(1 << 31) + 1)), Err(DoesNotFit));
    let digest = HashFunction::Sha256.hash(b"");
    assert_eq!(fails(Addressing::Bins32, Message::Integrity { node: Bin::ALL, digest }), Err(DoesNotFit));
}

fn codecs() -> impl Strategy<Value = Codec> {
    let dialects = prop::sample::select(vec![Dialect::Rfc7574, Dialect::Draft10, Dialect::Legacy]);
    let (addressings, hashes) =
        (prop::sample::select(&Addressing::ALL[..]), prop::sample::select(&HashFunction::ALL[..]));
    (dialects, addressings, hashes, prop::sample::select(vec![0u16, 64, 96, 128]), prop::option::of(1u32..2000))
        .prop_map(|(dialect, addressing, hash, signature_len, chunk_len)| Codec {
            dialect,
            addressing,
            hash,
            signature_len,
            chunk_len,
        })
}

proptest! {
    /// Whatever arrives, reading ends without a panic; what was read and can be written is the same when read again.
    #[test]
    fn garbage_is_survived(codec in codecs(), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let read: Vec<_> = Messages::new(codec, &bytes).take_while(Result::is_ok).map(Result::unwrap).collect();
        for message in read {
            let mut written = Vec::new();
            if message.encode(&codec, &mut written).is_ok() && !written.is_empty() {
                let again = Messages::new(codec, &written).next();
                prop_assert_eq!(again, Some(Ok(message)));
            }
        }
        if let Ok(opening) = Opening::parse(&bytes) {
            let mut written = Vec::new();
            Opening::encode(opening.dialect, &opening.handshake, &mut written);
            prop_assert_eq!(Opening::parse(&written).map(|again| again.handshake), Ok(opening.handshake));
        }
    }

    /// A chunk with digests alone in front of it, read at once, is what it is message by message; anything else is not taken for one.
    #[test]
    fn a_lone_chunk_is_what_its_messages_say(codec in codecs(), kinds in prop::collection::vec(0u8..8, 0..6), chunk in 0u64..9, len in 0usize..40) {
        let payload = vec![7; len.min(codec.chunk_len.map_or(usize::MAX, |len| len as usize))];
        let data = Message::Data { chunk, sent_us: if codec.dialect == Dialect::Legacy { 0 } else { 5 }, payload: &payload };
        let digest = |node: u64| Message::Integrity { node: Bin::from_u64(node).unwrap(), digest: codec.hash.hash(&[node as u8]) };
        let messages: Vec<_> = (0..).zip(&kinds).map(|(at, kind)| match kind {
            0 => Message::Choke,
            1 => data.clone(),
            _ => digest(at),
        }).chain([data.clone()]).collect();
        let mut datagram = Vec::new();
        prop_assume!(messages.iter().all(|message| message.encode(&codec, &mut datagram).is_ok()));
        let read: Result<Vec<_>, _> = Messages::new(codec, &datagram).collect();
        let is_lone = |read: &Vec<Message<'_>>| {
            let (last, before) = read.split_last().unwrap();
            matches!(last, Message::Data { .. }) && before.iter().all(|one| matches!(one, Message::Integrity { .. }))
        };
        let mut digests = Vec::new();
        let lone = Messages::new(codec, &datagram).lone_chunk(&mut digests);
        prop_assert_eq!(lone.is_some(), read.as_ref().is_ok_and(is_lone));
        if let Some(lone) = lone {
            let Ok([before @ .., Message::Data { chunk, sent_us, payload }]) = read.as_deref() else { unreachable!() };
            prop_assert_eq!((lone.chunk, lone.sent_us, lone.payload), (*chunk, *sent_us, *payload));
            let digests: Vec<_> = digests.iter().map(|(node, digest)| {
                Message::Integrity { node: *node, digest: codec.hash.digest(digest).unwrap() }
            }).collect();
            prop_assert_eq!(&digests[..], before);
        }
    }

    /// A datagram cut anywhere gives the messages before the cut and an error, never others.
    #[test]
    fn truncation_is_noticed(addressing in prop::sample::select(&Addressing::ALL[..]), layer in 0u32..20, cut in 0usize..300) {
        let codec = Codec { addressing, ..RFC };
        let node = Bin::new(layer, 3).unwrap();
        let messages = [
            Message::Have(node.range()),
            Message::Integrity { node, digest: codec.hash.hash(b"x") },
            Message::SignedIntegrity { node, ntp: 5, signature: &[1; 64] },
            Message::Ack { chunks: node.range(), delay_us: 7 },
            Message::PexCertificate(&[9; 40]),
        ];
        let (mut bytes, mut ends) = (Vec::new(), vec![0]);
        for message in &messages {
            message.encode(&codec, &mut bytes).unwrap();
            ends.push(bytes.len());
        }
        let cut = cut.min(bytes.len());
        let read: Vec<_> = Messages::new(codec, &bytes[..cut]).collect();
        let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
        prop_assert_eq!(read.iter().filter(|message| message.is_ok()).count(), whole);
        for (read, sent) in read.iter().zip(&messages).take(whole) {
            prop_assert_eq!(read.as_ref(), Ok(sent));
        }
        prop_assert_eq!(read.last().is_some_and(Result::is_err), ends[whole] != cut);
    }
}
