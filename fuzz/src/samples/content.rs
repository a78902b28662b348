//! Samples of what describes a content, and of what is kept about it.

use anabranch_content::bencode::{DictBuilder, ListBuilder};
use anabranch_content::bitfield::Bitfield;
use anabranch_content::hash::sha256;
use anabranch_content::info::InfoHashes;
use anabranch_content::storage::{FileRecord, Lease, Resume, Stamp};

pub(crate) fn bencode() -> Vec<Vec<u8>> {
    ["d1:ad1:bi-7ee4:listli1e2:xxlee3:zzz0:e", "i0e", "le", "d2:bbi1e2:aai2ee", "i-0e", "01:a", "d1:a1:x1:a1:ye"]
        .map(|text| text.as_bytes().to_vec())
        .into()
}

/// The entry of a file in a v1 file list.
fn file(path: &[&str], length: i64, attr: &str) -> DictBuilder {
    let mut names = ListBuilder::new();
    for name in path {
        names.bytes(name);
    }
    let mut file = DictBuilder::new();
    file.int("length", length).list("path", &names);
    if !attr.is_empty() {
        file.bytes("attr", attr);
    }
    file
}

pub(crate) fn metainfo() -> Vec<Vec<u8>> {
    const PIECE_LENGTH: i64 = 16384;
    let info = || {
        let mut info = DictBuilder::new();
        info.bytes("name", "name").int("piece length", PIECE_LENGTH);
        info
    };
    let single = info().int("length", 40000).bytes("pieces", [7; 60]).int("private", 1).clone();

    let mut link = file(&["d", "link"], 0, "l");
    link.list("symlink path", ListBuilder::new().bytes("d").bytes("a"));
    let mut files = ListBuilder::new();
    files.dict(&file(&["d", "a"], 5, "xh")).dict(&file(&[".pad", "16379"], PIECE_LENGTH - 5, "p"));
    files.dict(&file(&["b"], 9, "")).dict(&link).dict(&file(&["..", "B"], 0, ""));
    let multi = info().list("files", &files).bytes("pieces", [7; 40]).clone();

    let leaves = [[1; 32], [2; 32]];
    let root = sha256(leaves.as_flattened());
    let mut leaf = DictBuilder::new();
    leaf.dict("", DictBuilder::new().int("length", 2 * PIECE_LENGTH).bytes("pieces root", root));
    let mut tree = DictBuilder::new();
    tree.dict("a", &leaf);
    let v2 = info().int("meta version", 2).dict("file tree", &tree).clone();
    let mut files = ListBuilder::new();
    files.dict(&file(&["a"], 2 * PIECE_LENGTH, ""));
    let hybrid = v2.clone().list("files", &files).bytes("pieces", [7; 40]).clone();

    let layers = DictBuilder::new().bytes(root, leaves.as_flattened()).clone();
    let tier = |url: &str| ListBuilder::new().bytes(url).clone();
    let tiers = ListBuilder::new().list(&tier("http://a.example/announce")).list(&tier("udp://b.example:80")).clone();
    let torrent = |info: &DictBuilder| {
        let mut torrent = DictBuilder::new();
        torrent.dict("info", info).bytes("announce", "http://a.example/announce").list("announce-list", &tiers);
        torrent.int("creation date", 1_700_000_000).bytes("comment", "text").bytes("created by", "seeds");
        torrent.bytes("url-list", "http://c.example/").dict("piece layers", &layers);
        torrent.list("nodes", ListBuilder::new().list(ListBuilder::new().bytes("d.example").int(6881)));
        torrent.encode()
    };
    let mut samples: Vec<_> = [&single, &multi, &v2, &hybrid].map(torrent).into();
    samples.extend([single, multi, v2, hybrid].map(|info| info.encode()));
    samples
}

pub(crate) fn magnet() -> Vec<Vec<u8>> {
    let v1 = "xt=urn:btih:c12fe1c06bba254a9dc9f519b335aa7c1367a88a";
    let v2 = format!("xt=urn:btmh:1220{}", "ab".repeat(32));
    [
        format!("magnet:?{v1}&dn=a%20name&tr=udp%3A%2F%2Ft.example%3A80&x.pe=10.0.0.1:6881&so=0,2,4-6"),
        format!("magnet:?{v1}&{v2}&ws=http%3A%2F%2Fw.example%2F"),
        format!("magnet:?{v2}"),
        format!("magnet:?{v1}&x.pe=%5B1-ff00%3A0%3A110%2C10.0.0.1%5D%3A6881&x.pe=1-ff00:0:110,[::1]:80"),
        "magnet:?xt=urn:btih:YEX6DQDLXISUVHOJ6UM3GNNKPQJWPKEK&tr.1=http://t.example/".into(),
    ]
    .map(String::into_bytes)
    .into()
}

pub(crate) fn resume() -> Vec<Vec<u8>> {
    let stamp = Stamp { size: 5, mtime_ns: 1_700_000_000_000_000_000, inode: 7 };
    let lease = Lease { from_ns: 1_700_000_000_000_000_000, until_ns: 1_700_000_001_000_000_000 };
    let field = |ones: &[u32]| {
        let mut field = Bitfield::new(11);
        ones.iter().for_each(|piece| assert!(field.set(*piece)));
        field
    };
    let resume = Resume {
        hashes: InfoHashes { v1: Some([1; 20]), v2: Some([2; 32]) },
        boot: [3; 16],
        have: field(&[0, 1, 10]),
        durable: field(&[0]),
        recheck: field(&[5]),
        files: vec![
            FileRecord { stamp: Some(stamp), lease: Some(lease), foreign: false },
            FileRecord { stamp: None, lease: None, foreign: true },
            FileRecord { stamp: Some(stamp), lease: None, foreign: false },
        ],
        priorities: vec![1, 0],
        downloaded: 99,
        uploaded: 98,
    };
    let file = resume.encode();
    let body = &file[16..file.len() - 4];
    let len = (body.len() as u16).to_le_bytes();
    // Piece 4 was verified, piece 0 failed, file 1 may be written to.
    let mut journal = vec![1, 4, 0, 0, 0, 2, 0, 0, 0, 0, 3, 1, 0, 0, 0];
    journal.extend(lease.from_ns.to_le_bytes());
    journal.extend(lease.until_ns.to_le_bytes());
    vec![[&[0], &file[..]].concat(), [&[1], &len[..], body, &journal].concat()]
}
