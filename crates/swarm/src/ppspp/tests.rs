//! Contents in sessions of this process: what shows only where both ends are at work.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use anabranch_content::storage::ErrorKind;
use anabranch_ppspp::link::Link;
use anabranch_ppspp::sign::{SignatureAlgorithm, SigningKey};
use anabranch_ppspp::wire::Dialect;

use super::*;
use crate::config::{AddOptions, SessionConfig};
use crate::events::{ContentId, EventKind, Events, FailureKind};
use crate::session::{LiveRead, ReadError, Session, Source};

/// A test that takes longer hangs.
const TEST_MAX: Duration = Duration::from_secs(60);

/// Runs `test` as a program would.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new()
        .block_on(&runtime, async { tokio::time::timeout(TEST_MAX, test).await.expect("the test hangs") });
    runtime.shutdown_background();
}

fn start() -> (Session, Events) {
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    Session::start(SessionConfig { listen, disk_threads: 1, ..SessionConfig::default() }).unwrap()
}

async fn until(events: &mut Events, wanted: impl Fn(&EventKind) -> bool) -> EventKind {
    loop {
        let kind = events.recv().await.unwrap().kind;
        if wanted(&kind) {
            return kind;
        }
    }
}

/// A file of so many bytes, hashed.
fn hashed(dir: &Path, len: usize) -> Hashed {
    let path = dir.join("data");
    fs::write(&path, (0..len).map(|at| (at * 31 + at / 256) as u8).collect::<Vec<u8>>()).unwrap();
    let options = HashOptions { chunk_len: CHUNK_LEN_DEFAULT, dialect: Dialect::Rfc7574, tree_dir: None, filter: None };
    hash_path(&path, &options, &AtomicBool::new(false), |_, _| {}).unwrap()
}

fn share(session: &Session, hashed: &Hashed) -> ContentId {
    let options = AddOptions { dir: hashed.dir.clone(), read_only: true, trusted: true, ..AddOptions::default() };
    session.add(Source::PpsppFile(Box::new(hashed.clone())), options).unwrap()
}

fn fetch(session: &Session, link: Link, dir: &Path, from: &Session) -> ContentId {
    let options = AddOptions { dir: dir.to_owned(), peers: from.ppspp_addresses(), ..AddOptions::default() };
    session.add(Source::Ppspp(Box::new(link)), options).unwrap()
}

/// A link that says another length, of as many chunks, is told from what the last chunk proves: it is not fetched for ever.
#[test]
fn a_link_with_another_length_fails_and_says_so() {
    const LEN: u64 = 4 * 1024 + 904;
    let dir = tempfile::tempdir().unwrap();
    let hashed = hashed(dir.path(), LEN as usize);
    run(async {
        let (seed, _seed_events) = start();
        share(&seed, &hashed);
        for wrong in [4 * 1024 + 1, LEN - 1, LEN + 1, 5 * 1024] {
            let (node, mut events) = start();
            let link = Link { content_len: Some(wrong), ..hashed.link.clone() };
            fetch(&node, link, &dir.path().join(wrong.to_string()), &seed);
            let failed = until(&mut events, |kind| matches!(kind, EventKind::Failed { .. })).await;
            let EventKind::Failed { kind: FailureKind::Metadata, reason } = failed else { panic!("{failed:?}") };
            assert!(reason.contains(&format!("{wrong} bytes, and it has {LEN}")), "{reason}");
            node.shutdown().await;
        }
        let (node, mut events) = start();
        fetch(&node, hashed.link.clone(), &dir.path().join("right"), &seed);
        until(&mut events, |kind| matches!(kind, EventKind::Finished)).await;
        node.shutdown().await;
        seed.shutdown().await;
    });
}

#[test]
fn the_rate_of_each_peer_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let hashed = hashed(dir.path(), 300_000);
    run(async {
        let ((seed, _seed_events), (node, mut events)) = (start(), start());
        let shared = share(&seed, &hashed);
        let fetched = fetch(&node, hashed.link.clone(), &dir.path().join("out"), &seed);
        until(&mut events, |kind| matches!(kind, EventKind::Finished)).await;
        let (to, from) = (seed.peers(shared), node.peers(fetched));
        assert!(to.iter().any(|peer| peer.upload_rate_bytes > 0), "{to:?}");
        assert!(from.iter().any(|peer| peer.download_rate_bytes > 0), "{from:?}");
        node.shutdown().await;
        seed.shutdown().await;
    });
}

/// Who reads a file that somebody writes to meanwhile is given none of that.
#[test]
fn readers_get_nothing_of_a_file_that_changed() {
    let dir = tempfile::tempdir().unwrap();
    let hashed = hashed(dir.path(), 300_000);
    run(async {
        let (seed, mut events) = start();
        let id = share(&seed, &hashed);
        until(&mut events, |kind| matches!(kind, EventKind::Started { .. })).await;
        let path = dir.path().join("data");
        let mut reader = seed.handle().reader(id, 0).await.unwrap();
        assert_eq!(reader.read(7, 100).await.unwrap(), fs::read(&path).unwrap()[7..107]);
        // Of the same length.
        fs::write(&path, vec![9; 300_000]).unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let read = reader.read(7, 100).await;
        assert!(matches!(&read, Err(ReadError::Storage(error)) if error.kind == ErrorKind::Changed), "{read:?}");
        let failed = until(&mut events, |kind| matches!(kind, EventKind::Failed { .. })).await;
        assert!(matches!(failed, EventKind::Failed { kind: FailureKind::Content, .. }));
        seed.shutdown().await;
    });
}

/// What comes before a pause is not withheld until there is more: here fifteen chunks of the sixteen that are signed as one.
#[test]
fn viewers_have_what_came_before_a_pause() {
    let document = SigningKey::generate(SignatureAlgorithm::EcdsaP256Sha256).unwrap();
    let key = SigningKey::from_pkcs8(SignatureAlgorithm::EcdsaP256Sha256, &document).unwrap();
    let bytes: Vec<u8> = (0..15 * LIVE_CHUNK_LEN).map(|at| (at / 3) as u8).collect();
    run(async {
        let ((source, _source_events), (viewer, mut events)) = (start(), start());
        let broadcast = LiveShare::new(key, Some("film".to_owned())).unwrap();
        let link = broadcast.link.clone();
        let id = source.add(Source::Live(Box::new(broadcast)), AddOptions::default()).unwrap();
        let watched = fetch(&viewer, link, Path::new("."), &source);
        until(&mut events, |kind| matches!(kind, EventKind::PeerConnected { .. })).await;
        source.push_live(id, &bytes);
        let mut reader = viewer.handle().live_reader(watched);
        let mut read = Vec::new();
        while read.len() < bytes.len() {
            match reader.read(1 << 16).await.unwrap() {
                LiveRead::Bytes { bytes, .. } => read.extend(bytes),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(read, bytes);
        viewer.shutdown().await;
        source.shutdown().await;
    });
}
