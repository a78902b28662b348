//! Samples of PPSPP.

use anabranch_ppspp::bin::Bin;
use anabranch_ppspp::hash::HashFunction;
use anabranch_ppspp::wire::{Addressing, Codec, Dialect, DiscardWindow, Integrity, Message as Ppspp, SwarmParams};

pub(crate) fn wire() -> Vec<Vec<u8>> {
    let node = Bin::new(2, 1).expect("a node");
    let messages = [
        Ppspp::Have(node.range()),
        Ppspp::Ack { chunks: 4..5, delay_us: 30_000 },
        Ppspp::Integrity { node, digest: HashFunction::Sha1.hash(b"node") },
        Ppspp::SignedIntegrity { node, ntp: 1 << 63, signature: &[7; 64] },
        Ppspp::Request(node.range()),
        Ppspp::Cancel(node.range()),
        Ppspp::PexV4("192.0.2.7:6778".parse().expect("an address")),
        Ppspp::PexV6("[2001:db8::1]:6778".parse().expect("an address")),
        Ppspp::PexCertificate(&[0x30; 9]),
        Ppspp::Data { chunk: 4, sent_us: 9, payload: b"chunk" },
    ];
    let mut samples = Vec::new();
    for (form, addressing) in Addressing::ALL.into_iter().enumerate() {
        let hash = HashFunction::Sha1;
        let codec = Codec { dialect: Dialect::Rfc7574, addressing, hash, signature_len: 64, chunk_len: Some(9) };
        let mut sample = vec![form as u8, 0, 64, 9, 0, 0, 0, 1];
        messages.iter().for_each(|message| message.encode(&codec, &mut sample).expect("fits"));
        samples.push(sample);
        let swarm =
            SwarmParams::new(&[13; 65], Integrity::UnifiedMerkleTree, hash, addressing, Some(9)).expect("a swarm");
        let mut sample = vec![form as u8, 0, 64, 9, 0, 0, 0, 0];
        swarm.handshake(Dialect::Rfc7574, 7, true, Some(DiscardWindow::Last(99))).encode(&mut sample);
        samples.push(sample);
    }
    samples
}

pub(crate) fn links() -> Vec<Vec<u8>> {
    let ours = format!("ppspp:{}?cp=1&hf=2&ca=4&cs=8192&cl=9&pe=a:1&tr=b&dn=c%20", "ab".repeat(32));
    let of_libswift = format!("tswift://h:1/{}", "cd".repeat(20));
    vec![ours.into_bytes(), of_libswift.into_bytes()]
}

/// The length of the content in eight bytes, then the list of its files.
pub(crate) fn manifest() -> Vec<Vec<u8>> {
    let list = b"d5:filesld4:attr1:x6:lengthi3e4:pathl1:a1:beed6:lengthi0e4:pathl2:..eed4:attr1:l4:pathl1:ce12:symlink pathl1:aeeee";
    vec![[&3u64.to_be_bytes()[..], list].concat()]
}

/// Packets of transport streams with clocks, behind the length of the parts that they come in.
pub(crate) fn transport_streams() -> Vec<Vec<u8>> {
    let packet = |clock: u32| {
        let mut packet = vec![0x47, 1, 0, 0x30, 7, 0x10];
        packet.extend(clock.to_be_bytes());
        packet.resize(188, 0xff);
        packet
    };
    let stream: Vec<u8> = [0, 900, 1800, 5, u32::MAX].into_iter().flat_map(packet).collect();
    [187, 9].into_iter().map(|len| [&[len], stream.as_slice()].concat()).collect()
}
