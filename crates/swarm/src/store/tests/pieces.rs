//! BitTorrent: blocks of 16 KiB, several in one request, gather to pieces whose hash is known before (BEP 3, BEP 52).

use std::sync::atomic::AtomicBool;

use anabranch_content::create::{CreateOptions, create};
use anabranch_content::geometry::BLOCK_LEN;
use anabranch_content::merkle;
use anabranch_content::metainfo::Metainfo;

use super::*;

/// Files of these lengths as a torrent describes them.
fn torrent(rng: &mut Rng, files: &[usize], version: Version, piece_length: u32) -> (Arc<Info>, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("content");
    std::fs::create_dir(&root).unwrap();
    for (index, len) in files.iter().enumerate() {
        let mut data = vec![0; *len];
        rng.fill(&mut data);
        std::fs::write(root.join(index.to_string()), data).unwrap();
    }
    let options = CreateOptions { version, piece_length: Some(piece_length), ..CreateOptions::default() };
    let made = create(&root, &options, &AtomicBool::new(false), |_, _| {}).unwrap();
    let info = Metainfo::parse(&made.metainfo).unwrap().info;
    let mut data = vec![0; info.geometry.total() as usize];
    for (_, file) in info.regular_files() {
        let bytes = std::fs::read(dir.path().join(&file.path)).unwrap();
        data[file.range().start as usize..file.range().end as usize].copy_from_slice(&bytes);
    }
    (info, data)
}

fn expected(client: &Client, piece: u32) -> ExpectedHash {
    let (info, range) = (&client.info, BlockRange { piece, begin: 0, len: client.geometry().data_len(piece) });
    let height = (info.geometry.piece_length() / BLOCK_LEN).trailing_zeros();
    let root = merkle::subtree_root(&merkle::leaves(client.bytes(range)), 0, height);
    ExpectedHash {
        sha1: info.piece_hashes.get(piece as usize).copied(),
        merkle: info.version.is_v2().then_some((root, height)),
    }
}

#[test]
fn pieces_are_verified_as_they_fill_and_fetched_again_where_they_are_bad() {
    let met = std::cell::RefCell::new(Met::default());
    for_seeds(|rng| {
        let version = [Version::V1, Version::V2, Version::Hybrid][rng.usize(..3)];
        let piece_length = BLOCK_LEN << rng.u32(..6);
        let files: Vec<usize> = (0..rng.usize(2..5)).map(|_| rng.usize(1..1_500_000)).collect();
        let content = torrent(rng, &files, version, piece_length);
        let mut client = Client::new(rng, content);
        let mut restart_at = rng.bool().then(|| rng.usize(1..60));
        while !client.verified.is_full() {
            for first in client.missing(rng) {
                if client.is_here(first) {
                    continue;
                }
                // A request is as long as its chunk allows.
                let end = (first.begin / CHUNK_LEN + 1) * CHUNK_LEN;
                let end = end.min(client.geometry().data_len(first.piece)).min(first.begin + rng.u32(1..9) * BLOCK_LEN);
                let run = BlockRange { len: end - first.begin, ..first };
                let range = if client.is_here(run) { first } else { run };
                let (payload, is_damaged) = client.payload(range, rng);
                client.receive(range, &payload).unwrap();
                client.keep(range, is_damaged);
                if rng.u8(..16) == 0 {
                    client.try_nonsense(range);
                }
                if client.is_whole(range.piece) {
                    client.verify(range.piece, expected(&client, range.piece));
                    if rng.bool() {
                        client.answers();
                    }
                }
                restart_at = restart_at.and_then(|left| left.checked_sub(1));
                if restart_at == Some(0) {
                    client.restart();
                    break;
                }
            }
            client.answers();
        }
        client.assert_complete();
        met.borrow_mut().add(&client.met);
    });
    met.borrow().assert_all();
}
