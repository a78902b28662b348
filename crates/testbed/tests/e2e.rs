//! What a user must be able to rely on, through the front door: a swarm shares its load, a killed download goes on
//! where it was, and hostile peers change nothing but a list of the banned.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use anabranch_testbed::fixture::{Content, Fixture, Maker, PIECE_LENGTH};
use anabranch_testbed::hostile::{Hostile, Malice};
use anabranch_testbed::meter::Meter;
use anabranch_testbed::peers::anabranch::{self, Anabranch};
use anabranch_testbed::peers::free_address;
use anabranch_testbed::process::Process;
use anabranch_testbed::pulses::Pulses;
use anabranch_testbed::{Error, Result};
use serde_json::Value;

const ANY: &str = "127.0.0.1:0";
const LIMIT: Duration = Duration::from_secs(180);
const MIB: u64 = 1 << 20;

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// The largest value of a field over all events that have it.
fn largest(process: &mut Process, field: &str) -> u64 {
    process.rest().iter().filter_map(|line| line.json()[field].as_u64()).max().unwrap_or(0)
}

#[test]
fn a_swarm_of_twenty_shares_the_load() {
    const LEECHERS: usize = 20;
    const LEN: u64 = 24 * MIB;
    const RATE: &str = "4194304";
    let announce = must(free_address());
    let mut tracker = must(anabranch::command(None));
    let mut tracker = must(Process::spawn("tracker", tracker.args(["tracker", "--listen", &announce.to_string()])));
    // The tracker is up once its port is taken; everybody retries a refused announce, but later.
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::net::TcpStream::connect(announce).is_err() {
        assert!(!tracker.has_ended() && Instant::now() < deadline, "{}", tracker.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let url = format!("http://{announce}/announce");
    let fixture = must(Fixture::new(Content::Bytes(LEN), "1", Maker::Ours, Some(&url)));
    let limits = ["--limit-up", RATE];
    let (mut seeder, _) = must(Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &limits));
    let mut leechers = Vec::new();
    for number in 0..LEECHERS {
        let out = must(fixture.folder(&format!("out {number}")));
        let extra = ["--seed", "--listen", ANY, "--limit-up", RATE];
        leechers.push((must(Anabranch::get(&fixture.source(), &out, &[], None, &extra)), out, 0));
    }
    for (leecher, out, uploaded) in &mut leechers {
        let (event, _) = must(leecher.process.wait_event("finished", LIMIT));
        *uploaded = event["uploaded"].as_u64().unwrap_or(0);
        must(fixture.check(out));
    }
    for (number, (leecher, _, uploaded)) in leechers.iter_mut().enumerate() {
        must(leecher.process.stop());
        let uploaded = largest(&mut leecher.process, "uploaded").max(*uploaded);
        assert!(uploaded > 0, "leecher {number} uploaded nothing:\n{}", leecher.process.log());
    }
    must(seeder.process.stop());
    let sent = largest(&mut seeder.process, "uploaded");
    let copies = sent as f64 / LEN as f64;
    assert!(copies >= 1.0, "the seeder reports {sent} bytes: fewer than one copy");
    assert!(copies <= 1.5, "the seeder sent {copies:.2} copies");
}

#[test]
fn killed_fifty_times_nothing_is_lost() {
    const KILLS: u32 = 50;
    const LEN: u64 = 32 * MIB;
    const RATE: &str = "4194304";
    /// Pieces that may be under way when the process dies, at this rate, and what sockets hold beside them.
    const IN_FLIGHT_MAX: u64 = 2 * MIB;
    let fixture = must(Fixture::new(Content::Bytes(LEN), "1", Maker::Libtorrent, None));
    let (_seeder, address) =
        must(Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &["--limit-up", RATE]));
    let meter = must(Meter::start(address));
    let out = must(fixture.folder("out"));
    let seed = 7;
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut kept, mut alive) = (0, 0);
    for kill in 0..KILLS {
        let mut get = must(Anabranch::get(&fixture.source(), &out, &[meter.address], None, &[]));
        std::thread::sleep(Duration::from_millis(random.u64(5..250)));
        alive += u32::from(!get.process.has_ended());
        must(get.process.kill());
        // What was announced as kept must still be there: every `piece` event counts, from whichever life.
        let pieces = get.process.rest().iter().filter(|line| line.json()["event"] == "piece").count() as u64;
        kept += pieces;
        assert!(kept <= u64::from(fixture.pieces), "seed {seed}, kill {kill}: a piece was fetched twice");
    }
    assert!(alive >= KILLS / 2, "the download ended before most kills: {alive}");
    let mut get = must(Anabranch::get(&fixture.source(), &out, &[meter.address], None, &[]));
    must(get.wait_finished(LIMIT));
    must(fixture.check(&out));
    let extra = meter.bytes_down().saturating_sub(LEN);
    let allowed = u64::from(alive + 1) * IN_FLIGHT_MAX;
    println!("{extra} bytes beyond the content in {alive} kills");
    assert!(extra <= allowed, "seed {seed}: {extra} bytes were fetched again, {allowed} allowed");
}

/// Ours fetches from an honest seeder and from `malice` at once. Answers the events and the peak of memory.
fn fetch_beside(malice: Malice) -> Result<(Vec<Value>, u64, SocketAddr)> {
    let fixture = Fixture::new(Content::Bytes(16 * MIB), "1", Maker::Libtorrent, None)?;
    let hostile = Hostile::listen(malice, fixture.info_hash()?, fixture.pieces)?;
    // Limited, so that the hostile peer has its say.
    let (_seeder, honest) =
        Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &["--limit-up", "8388608"])?;
    let out = fixture.folder("out")?;
    let mut get = Anabranch::get(&fixture.source(), &out, &[hostile.address, honest], None, &[])?;
    let usage = get.process.wait_success(LIMIT)?;
    fixture.check(&out)?;
    let events: Vec<Value> = get.process.rest().iter().map(|line| line.json()).collect();
    if hostile.connections() == 0 {
        return Err(Error::Nonsense { name: "ours".into(), what: "it never met the hostile peer".into() });
    }
    Ok((events, usage.rss_bytes_max, hostile.address))
}

/// More than this is not bounded memory for a content of 16 MiB.
const RSS_BYTES_MAX: u64 = 96 * MIB;

fn banned(events: &[Value]) -> Vec<&str> {
    events.iter().filter(|event| event["event"] == "banned").filter_map(|event| event["peer"].as_str()).collect()
}

#[test]
fn a_liar_is_banned_by_name_and_its_fellow_is_not() {
    let (events, rss, liar) = must(fetch_beside(Malice::Lies));
    assert_eq!(banned(&events), [liar.to_string()]);
    assert!(rss < RSS_BYTES_MAX, "{rss}");
}

#[test]
fn mute_and_silent_peers_stall_nothing() {
    for malice in [Malice::Mute, Malice::Silent] {
        let (events, rss, _) = must(fetch_beside(malice));
        assert!(events.iter().any(|event| event["event"] == "finished"));
        assert!(rss < RSS_BYTES_MAX, "{malice:?} {rss}");
    }
}

#[test]
fn absurd_lengths_and_floods_from_seeders_take_no_memory() {
    for malice in [Malice::Giant, Malice::Floods] {
        let (_, rss, _) = must(fetch_beside(malice));
        assert!(rss < RSS_BYTES_MAX, "{malice:?} {rss}");
    }
}

#[test]
fn a_seeder_under_attack_goes_on_serving() {
    for malice in [Malice::Giant, Malice::Floods, Malice::Silent, Malice::Mute] {
        let fixture = must(Fixture::new(Content::Bytes(16 * MIB), "1", Maker::Libtorrent, None));
        let (mut seeder, address) = must(Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &[]));
        let hash = must(fixture.info_hash());
        let attackers: Vec<_> = (0..4).map(|_| must(Hostile::dial(malice, address, hash, fixture.pieces))).collect();
        std::thread::sleep(Duration::from_millis(500));
        let out = must(fixture.folder("out"));
        let mut get = must(Anabranch::get(&fixture.source(), &out, &[address], None, &[]));
        must(get.wait_finished(LIMIT));
        must(fixture.check(&out));
        let rss = seeder.process.status_bytes("VmHWM").unwrap_or(u64::MAX);
        assert!(!seeder.process.has_ended() && rss < RSS_BYTES_MAX, "{malice:?} {rss}");
        drop(attackers);
    }
}

/// Pulses it takes to fetch `bytes` from a peer that answers every `period` all it was asked.
fn pulses_for(bytes: u64, period: Duration) -> u32 {
    let fixture = must(Fixture::new(Content::Bytes(bytes), "1", Maker::Libtorrent, None));
    let hash = must(fixture.info_hash());
    let peer = must(Pulses::share(&fixture.content, hash, fixture.pieces, PIECE_LENGTH, period));
    let out = must(fixture.folder("out"));
    let mut get = must(Anabranch::get(&fixture.source(), &out, &[peer.address], None, &[]));
    must(get.wait_finished(LIMIT));
    must(fixture.check(&out));
    peer.answered()
}

/// From 64 KiB to 4 MiB, which is all that a peer takes that names no limit, are six doublings, if every one were needed; a busy
/// machine may split a pulse in two.
const PULSES_MAX: u32 = 24;

#[test]
fn a_peer_that_answers_in_pulses_is_asked_for_all_that_it_can_send_in_one() {
    for period_ms in [100, 500] {
        let pulses = pulses_for(24 * MIB, Duration::from_millis(period_ms));
        println!("{pulses} pulses of {period_ms} ms");
        assert!(pulses <= PULSES_MAX, "{pulses} pulses of {period_ms} ms for 24 MiB");
    }
}

#[test]
#[ignore = "half a minute of waiting: make interop"]
fn a_peer_that_answers_every_three_seconds_is_asked_for_as_much() {
    let pulses = pulses_for(24 * MIB, Duration::from_secs(3));
    assert!(pulses <= PULSES_MAX, "{pulses} pulses for 24 MiB");
}

#[test]
fn create_and_verify_agree_with_libtorrent() {
    for version in ["1", "2", "hybrid"] {
        let fixture = must(Fixture::new(Content::Tree, version, Maker::Ours, None));
        // libtorrent finds the content whole under our torrent, and ours under libtorrent's.
        let theirs = must(anabranch_testbed::peers::libtorrent::verify(&fixture.torrent, &fixture.data));
        assert_eq!(theirs["complete"], true, "{version}: {theirs}");
        let other = must(Fixture::new(Content::Tree, version, Maker::Libtorrent, None));
        let (_, usage) = must(anabranch::verify(&other.torrent, &other.data));
        assert!(usage.status.success(), "{version}");
        // One byte changed is found.
        let victim = other.content.join("large");
        let mut bytes = std::fs::read(&victim).unwrap();
        bytes[1_000_000] ^= 1;
        std::fs::write(&victim, bytes).unwrap();
        let (_, usage) = must(anabranch::verify(&other.torrent, &other.data));
        assert!(!usage.status.success(), "{version}: a flipped bit was not found");
    }
}

#[test]
fn bad_input_ends_with_an_error_and_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let bogus = dir.path().join("bogus.torrent");
    std::fs::write(&bogus, b"d4:infod6:lengthi-1eee").unwrap();
    for words in [vec!["show"], vec!["get", "-o", "."], vec!["share"]] {
        let mut command: Command = must(anabranch::command(None));
        command.current_dir(dir.path()).args(&words).arg(&bogus);
        let mut process = must(Process::spawn("anabranch", &mut command));
        let usage = must(process.wait(Duration::from_secs(20)));
        assert!(usage.status.code().is_some_and(|code| code != 0), "{words:?}: {:?}", usage.status);
        assert!(process.log().contains("bogus.torrent"), "{words:?} does not say which file: {}", process.log());
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
