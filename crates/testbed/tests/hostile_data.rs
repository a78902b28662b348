//! Wrong data from those who also send right data: a sharer whose file is edited while it is sent, and a liar among the honest.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use anabranch_testbed::Result;
use anabranch_testbed::fixture::{Content, Fixture, Maker, PIECE_LENGTH};
use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::pulses::Pulses;

const ANY: &str = "127.0.0.1:0";
const LIMIT: Duration = Duration::from_secs(120);
const MIB: u64 = 1 << 20;
/// Pieces that are there before anything goes wrong: more than the one that a chance costs.
const GOOD_PIECES: usize = 5;
/// What a liar may spoil of a download, in pieces: what it has begun in two turns.
const SPOILT_MAX: u64 = 64;

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Flips every byte of a file whose program stands still, in such a way that nothing but the bytes tells it.
fn flip(path: &Path) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
    file.write_all_at(&bytes, 0).unwrap();
    file.set_modified(modified).unwrap();
}

#[test]
fn a_file_that_is_edited_as_it_is_sent_costs_its_sharer_some_seconds() {
    let fixture = must(Fixture::new(Content::Bytes(4 * MIB), "hybrid", Maker::Ours, None));
    let (mut sharer, address) = must(Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &[]));
    let out = must(fixture.folder("out"));
    let extra = ["--listen", ANY, "--limit-down", "500K"];
    let mut get = must(Anabranch::get(&fixture.source(), &out, &[address], None, &extra));
    for _ in 0..GOOD_PIECES {
        must(get.process.wait_event("piece", LIMIT));
    }
    let mut edit = || {
        sharer.process.signal(libc::SIGSTOP);
        flip(&fixture.content);
        sharer.process.signal(libc::SIGCONT);
    };
    edit();
    let (event, _) = must(get.process.wait_event("suspended", LIMIT));
    assert_eq!(event["peer"], address.to_string(), "{event}");
    edit();
    let mut banned = None;
    must(get.process.wait_line("the end", LIMIT, |line| {
        let event = line.json();
        banned = banned.take().or_else(|| (event["event"] == "banned").then(|| event.clone()));
        event["event"] == "finished"
    }));
    assert!(banned.is_none(), "{banned:?}");
    must(get.process.wait_success(LIMIT));
    must(fixture.check(&out));
}

#[test]
fn a_liar_that_mostly_tells_the_truth_spoils_few_pieces() {
    let fixture = must(Fixture::new(Content::Bytes(16 * MIB), "1", Maker::Ours, None));
    let (_seeder, honest) = must(Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &[]));
    let hash = must(fixture.info_hash());
    let share = Pulses::share(&fixture.content, hash, fixture.pieces, PIECE_LENGTH, Duration::from_millis(5));
    // Every tenth piece is wrong.
    let liar = must(share).lying(10 * PIECE_LENGTH / (16 << 10));
    let out = must(fixture.folder("out"));
    // Slow enough for the liar to have its turns.
    let extra = ["--listen", ANY, "--limit-down", "2M"];
    let mut get = must(Anabranch::get(&fixture.source(), &out, &[honest, liar.address], None, &extra));
    let mut excluded = Vec::new();
    let end = must(get.process.wait_line("the end", LIMIT, |line| {
        let event = line.json();
        if event["event"] == "banned" || event["event"] == "suspended" {
            excluded.push(event["peer"].as_str().unwrap_or_default().to_owned());
        }
        event["event"] == "finished"
    }));
    must(fixture.check(&out));
    let wasted = end.json()["wasted"].as_u64().unwrap_or(u64::MAX);
    println!("{excluded:?}: {wasted} bytes wasted");
    assert!(!excluded.is_empty() && excluded.iter().all(|peer| *peer == liar.address.to_string()), "{excluded:?}");
    assert!(wasted <= SPOILT_MAX * u64::from(PIECE_LENGTH), "{wasted} bytes wasted");
}
