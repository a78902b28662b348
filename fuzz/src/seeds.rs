//! Writes valid samples for every target to `CORPUS/TARGET/seed-N`: fuzzing starts from them instead of from nothing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anabranch_bittorrent::extension::{ExtensionHandshake, ExtensionIds, MetadataMessage, PexFlags, PexMessage};
use anabranch_bittorrent::handshake::{self, Handshake, Reserved};
use anabranch_bittorrent::wire::{BlockRange, HashRequest, Hashes, Message, piece_header};

fn main() -> io::Result<()> {
    let corpus = PathBuf::from(std::env::args_os().nth(1).unwrap_or_else(|| "corpus".into()));
    write(&corpus, "bencode", &bencode())?;
    write(&corpus, "wire", &wire())?;
    write(&corpus, "extension", &extension())
}

fn write(corpus: &Path, target: &str, samples: &[Vec<u8>]) -> io::Result<()> {
    let folder = corpus.join(target);
    fs::create_dir_all(&folder)?;
    for (number, sample) in samples.iter().enumerate() {
        fs::write(folder.join(format!("seed-{number:02}")), sample)?;
    }
    Ok(())
}

fn bencode() -> Vec<Vec<u8>> {
    ["d1:ad1:bi-7ee4:listli1e2:xxlee3:zzz0:e", "i0e", "le", "d2:bbi1e2:aai2ee", "i-0e", "01:a", "d1:a1:x1:a1:ye"]
        .map(|text| text.as_bytes().to_vec())
        .into()
}

fn wire() -> Vec<Vec<u8>> {
    let range = BlockRange { piece: 1, begin: 16384, len: 16384 };
    let request = HashRequest { pieces_root: [7; 32], base_layer: 0, index: 2, length: 2, proof_layers: 2 };
    let hashes = Hashes::new(request, &[[9; 32]; 4]).expect("two hashes and two uncles");
    let messages = [
        Message::KeepAlive,
        Message::Choke,
        Message::Unchoke,
        Message::Interested,
        Message::NotInterested,
        Message::Have(3),
        Message::Bitfield(&[0xf0, 0x80]),
        Message::Request(range),
        Message::Cancel(range),
        Message::Port(6881),
        Message::Suggest(4),
        Message::HaveAll,
        Message::HaveNone,
        Message::Reject(range),
        Message::AllowedFast(5),
        Message::Extended { id: 0, payload: b"de" },
        Message::HashRequest(request),
        Message::Hashes(hashes),
        Message::HashReject(request),
    ];
    // The options and lengths of parts that the target reads first.
    let front = [0, 3, 5, 1, 2, 8, 13, 21, 34];
    let mut all = front.to_vec();
    let mut samples: Vec<_> = messages
        .iter()
        .map(|message| {
            message.encode(&mut all);
            let mut sample = front.to_vec();
            message.encode(&mut sample);
            sample
        })
        .collect();
    all.extend(piece_header(1, 0, 40));
    all.extend([b'x'; 40]);
    all.extend([0, 0, 0, 3, 99, 1, 2]);
    samples.push(all);
    let ours = Handshake { reserved: Reserved::OURS, info_hash: [1; 20], peer_id: handshake::peer_id(1) };
    samples.push([&front[..], &ours.encode()].concat());
    samples
}

fn extension() -> Vec<Vec<u8>> {
    let handshake = ExtensionHandshake {
        ids: ExtensionIds::OURS,
        client: Some("Anabranch 0.1".into()),
        listen_port: Some(6881),
        request_queue_len: Some(500),
        your_ip: Some([127, 0, 0, 1].into()),
        ipv4: Some([10, 0, 0, 1].into()),
        ipv6: Some([0, 0, 0, 0, 0, 0, 0, 1].into()),
        metadata_size: Some(31235),
        upload_only: Some(true),
        complete_ago_secs: Some(9),
        block_len_max: Some(65536),
    };
    let peers = [([10, 0, 0, 1], 6881).into(), ([0, 0, 0, 0, 0, 0, 0, 1], 6881).into()];
    let pex = PexMessage { added: peers.map(|peer| (peer, PexFlags::UPLOAD_ONLY)).to_vec(), dropped: peers.to_vec() };
    let data = MetadataMessage::Data { piece: 1, total_size: Some(16389), data: b"bytes" };
    let honest = [0, 0, 0, 2, 0, 0, 2, 0, 0, 5, 0, 0, 5, 0, 1];
    let liar = [0, 1, 0, 0, 0, 0, 5, 1, 0, 5, 0, 1, 2, 1, 0, 4, 0, 11, 5, 1, 0, 5, 1, 1, 5, 0, 0, 5, 0, 1];
    let with_choice = |choice: u8, payload: &[u8]| [&[choice], payload].concat();
    vec![
        with_choice(0, &handshake.encode()),
        with_choice(1, &MetadataMessage::Request { piece: 0 }.encode()),
        with_choice(1, &data.encode()),
        with_choice(1, &MetadataMessage::Reject { piece: 0 }.encode()),
        with_choice(2, &pex.encode()),
        with_choice(3, &[0, 0, 0, 1]),
        with_choice(4, &honest),
        with_choice(4, &liar),
    ]
}
