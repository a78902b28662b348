//! The hostile zoo: everything that a peer can do against others, beside a transfer that must not suffer from it.
//!
//! A download runs at a limited rate, so that there is time for the attackers too, from one honest seeder. Pieces that are
//! verified are counted in peace, and then, in the same run, in a second download of the same content for as long under attack.
//! The seeder and the downloader are both attacked, by those who dial them and by those who wait to be dialled.
//!
//! Trackers that mean harm belong to further contents of the same program.
//!
//! The short form brings all kinds together and leaves room for a busy machine. The full one takes each alone, and no more
//! than a tenth may be lost: `make hostile`, or
//! ```text
//! cargo test -p anabranch-testbed --test hostile_zoo -- --ignored --nocapture
//! ```
//!
//! `ANABRANCH_HOSTILE=Allows` takes only the kinds with that in their name.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anabranch_testbed::Result;
use anabranch_testbed::fixture::{Content, Fixture, Maker, PIECE_LENGTH};
use anabranch_testbed::hostile::{Hostile, Malice};
use anabranch_testbed::hostile_trackers::{HostileTracker, HttpTrick, UdpTrick};
use anabranch_testbed::peers::address_of;
use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::pulses::Pulses;
use anabranch_testbed::tricks::Trick;

const ANY: &str = "127.0.0.1:0";
const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
/// What the download is limited to, and what it fetches: more than it can in the time.
const RATE_BYTES: u64 = 2 * MIB;
const CONTENT_BYTES: u64 = 64 * MIB;
/// More than this is not bounded memory for such a content.
const RSS_BYTES_MAX: u64 = 160 * MIB;
/// Longest line about one thing.
const SAID_LEN_MAX: usize = 2000;
/// Attackers of each kind and victim.
const EACH: usize = 2;
/// Silent connections of the crowd at the door: more than there are places for strangers.
const CROWD: usize = 300;

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// What is counted is counted alone.
static COUNTING: Mutex<()> = Mutex::new(());

/// Kinds that dial their victims.
fn dialling() -> Vec<Malice> {
    let plain =
        [Malice::Mute, Malice::Silent, Malice::Key, Malice::Noise, Malice::Floods, Malice::Giant, Malice::Drips];
    plain.into_iter().chain(Trick::ALL.map(Malice::Says)).collect()
}

/// Kinds that wait for a downloader. What they say they say as well when they are dialled.
fn listening() -> Vec<Malice> {
    [
        Malice::Lies,
        Malice::Mute,
        Malice::Silent,
        Malice::Noise,
        Malice::Giant,
        Malice::Says(Trick::Flaps),
        Malice::Says(Trick::Chokes),
    ]
    .into()
}

/// A download under way.
struct Arena {
    fixture: Fixture,
    seeder: Anabranch,
    getter: Anabranch,
    victims: [SocketAddr; 2],
}

impl Arena {
    /// `waiting` are the addresses of attackers that the download is told of; they keep still until they are met. `links` are
    /// further contents.
    fn new(waiting: &[SocketAddr], links: &[String], fixture: Fixture) -> Self {
        let (seeder, honest) = must(Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &[]));
        let out = must(fixture.folder("out"));
        let rate = RATE_BYTES.to_string();
        let mut peers = vec![honest];
        peers.extend(waiting);
        let mut extra = vec!["--listen", ANY, "--limit-down", &rate];
        extra.extend(links.iter().map(String::as_str));
        let mut getter = must(Anabranch::get(&fixture.source(), &out, &peers, None, &extra));
        let (event, _) = must(getter.process.wait_event("listening", LIMIT));
        let address = must(address_of(&event));
        must(getter.process.wait_event("piece", LIMIT));
        Self { fixture, seeder, getter, victims: [honest, address] }
    }

    /// Pieces verified in this time.
    fn pieces_in(&mut self, time: Duration) -> usize {
        self.getter.process.rest();
        std::thread::sleep(time);
        let said = self.getter.process.rest();
        let long = said.iter().find(|line| line.json()["event"] != "progress" && line.text.len() > SAID_LEN_MAX);
        assert!(long.is_none(), "a stranger speaks at length: {long:?}");
        let control = said.iter().find(|line| line.text.contains("\\u00") || line.text.contains(char::is_control));
        assert!(control.is_none(), "a stranger speaks to the terminal: {control:?}");
        said.iter().filter(|line| line.json()["event"] == "piece").count()
    }

    fn attack(&self, malice: Malice, count: usize) -> Vec<Hostile> {
        let hash = must(self.fixture.info_hash());
        let dial = |victim| (0..count).map(move |_| Hostile::dial(malice, victim, hash, self.fixture.pieces));
        // Who cannot even connect is no attacker.
        self.victims.into_iter().flat_map(dial).filter_map(Result::ok).collect()
    }

    /// Both live, and have not grown.
    fn check(&mut self, what: &str) {
        for victim in [&mut self.seeder, &mut self.getter] {
            let rss = victim.process.status_bytes("VmHWM").unwrap_or(u64::MAX);
            assert!(
                !victim.process.has_ended() && rss < RSS_BYTES_MAX,
                "{what}: {rss} bytes\n{}",
                victim.process.log()
            );
        }
    }
}

/// Pieces counted before and under the attack of `dialling` and `listening`, `window` each.
fn besieged(dialling: &[Malice], listening: &[Malice], each: usize, window: Duration, what: &str) -> (usize, usize) {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let fixture = must(Fixture::new(Content::Bytes(CONTENT_BYTES), "1", Maker::Ours, None));
    let hash = must(fixture.info_hash());
    let mut calm = Arena::new(&[], &[], fixture);
    let before = calm.pieces_in(window);
    let Arena { fixture, .. } = calm;
    let waiting: Vec<Hostile> =
        listening.iter().map(|malice| must(Hostile::listen(*malice, hash, fixture.pieces))).collect();
    let addresses: Vec<SocketAddr> = waiting.iter().map(|hostile| hostile.address).collect();
    std::fs::remove_dir_all(must(fixture.folder("out"))).ok();
    let mut arena = Arena::new(&addresses, &[], fixture);
    let attackers: Vec<Hostile> = dialling.iter().flat_map(|malice| arena.attack(*malice, each)).collect();
    let during = arena.pieces_in(window);
    arena.check(what);
    let met = waiting.iter().filter(|hostile| hostile.connections() > 0).count();
    println!("{what}: {before} pieces in peace, {during} under attack by {} and {met}", attackers.len());
    assert!(listening.is_empty() || met > 0, "{what}: nobody was met");
    (before, during)
}

#[test]
fn a_transfer_goes_on_beside_all_of_them() {
    let (before, during) = besieged(&dialling(), &listening(), EACH, Duration::from_secs(5), "everybody");
    // Half: the attackers' own work is done by the same two processors.
    assert!(during * 2 >= before, "{before} pieces in peace, {during} under attack");
}

/// Pieces counted without and with further contents whose trackers are these, each one's own, `window` each.
fn astray(trackers: &[HostileTracker], window: Duration, what: &str) -> (usize, usize) {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let fixture = must(Fixture::new(Content::Bytes(CONTENT_BYTES), "1", Maker::Ours, None));
    let mut calm = Arena::new(&[], &[], fixture);
    let before = calm.pieces_in(window);
    let Arena { fixture, .. } = calm;
    let link = |(number, tracker): (usize, &HostileTracker)| {
        format!("magnet:?xt=urn:btih:{:040x}&tr={}", 0xbad_0000 + number, tracker.url)
    };
    let links: Vec<String> = trackers.iter().enumerate().map(link).collect();
    std::fs::remove_dir_all(must(fixture.folder("out"))).ok();
    let mut arena = Arena::new(&[], &links, fixture);
    let during = arena.pieces_in(window);
    arena.check(what);
    let requests: u64 = trackers.iter().map(HostileTracker::requests).sum();
    println!("{what}: {before} pieces in peace, {during} beside trackers that were asked {requests} times");
    let unasked = trackers.iter().find(|tracker| tracker.requests() == 0);
    assert!(unasked.is_none(), "{what}: {} was not asked", unasked.map_or("", |tracker| &tracker.url));
    (before, during)
}

#[test]
fn a_transfer_goes_on_beside_hostile_trackers() {
    let http = HttpTrick::ALL.map(HostileTracker::http).map(must);
    let udp = UdpTrick::ALL.map(HostileTracker::udp).map(must);
    let all: Vec<HostileTracker> = http.into_iter().chain(udp).collect();
    let (before, during) = astray(&all, Duration::from_secs(5), "all trackers");
    assert!(during * 2 >= before, "{before} pieces in peace, {during} beside trackers");
}

#[test]
fn a_crowd_of_silent_strangers_leaves_the_door_open() {
    // Those who say nothing at all, and those who had a key made for them first.
    for malice in [Malice::Silent, Malice::Key] {
        beside_a_crowd(malice);
    }
}

fn beside_a_crowd(malice: Malice) {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let fixture = must(Fixture::new(Content::Bytes(4 * MIB), "1", Maker::Ours, None));
    let (mut seeder, address) = must(Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &[]));
    let hash = must(fixture.info_hash());
    let crowd: Vec<Hostile> =
        (0..CROWD).filter_map(|_| Hostile::dial(malice, address, hash, fixture.pieces).ok()).collect();
    assert!(crowd.len() > CROWD / 2, "{} came", crowd.len());
    let out = must(fixture.folder("out"));
    let mut get = must(Anabranch::get(&fixture.source(), &out, &[address], None, &[]));
    // Less than the ten seconds that each of them has for its handshake.
    must(get.wait_finished(LIMIT));
    must(fixture.check(&out));
    assert!(!seeder.process.has_ended());
    assert!(crowd.iter().any(|hostile| hostile.ended() > 0), "some of them went");
}

/// Whether the full form takes this kind.
fn is_asked_for(what: &str) -> bool {
    std::env::var("ANABRANCH_HOSTILE").map_or(true, |part| what.contains(&part))
}

#[test]
#[ignore = "minutes, and exact: `make hostile` runs it on a machine that does nothing else"]
fn each_of_them_costs_a_tenth_at_most() {
    let window = Duration::from_secs(6);
    let mut failed = Vec::new();
    let kinds = dialling().into_iter().map(|malice| (vec![malice], vec![]));
    for (dialling, listening) in kinds.chain(listening().into_iter().map(|malice| (vec![], vec![malice]))) {
        let what = format!("{dialling:?} {listening:?}");
        if !is_asked_for(&what) {
            continue;
        }
        let (before, during) = besieged(&dialling, &listening, 8, window, &what);
        if during * 10 < before * 9 {
            failed.push(format!("{what}: {before} pieces in peace, {during} under attack"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
#[ignore = "minutes, and exact: `make hostile` runs it on a machine that does nothing else"]
fn a_liar_that_mostly_tells_the_truth_costs_a_tenth_at_most() {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let window = Duration::from_secs(12);
    let fixture = must(Fixture::new(Content::Bytes(CONTENT_BYTES), "1", Maker::Ours, None));
    let hash = must(fixture.info_hash());
    let mut calm = Arena::new(&[], &[], fixture);
    let before = calm.pieces_in(window);
    let Arena { fixture, .. } = calm;
    // Every eighth piece is wrong. Its suspension ends within the window.
    let answers_every = Duration::from_millis(5);
    let liar = must(Pulses::share(&fixture.content, hash, fixture.pieces, PIECE_LENGTH, answers_every)).lying(32);
    std::fs::remove_dir_all(must(fixture.folder("out"))).ok();
    let mut arena = Arena::new(&[liar.address], &[], fixture);
    let during = arena.pieces_in(window);
    arena.check("a liar that mostly tells the truth");
    println!("{before} pieces in peace, {during} beside a liar that answered {} times", liar.answered());
    assert!(liar.answered() > 0 && during * 10 >= before * 9, "{before} pieces in peace, {during} beside a liar");
}

#[test]
#[ignore = "minutes, and exact: `make hostile` runs it on a machine that does nothing else"]
fn each_tracker_costs_a_tenth_at_most() {
    let window = Duration::from_secs(6);
    let mut failed = Vec::new();
    let eight = |start: &dyn Fn() -> Result<HostileTracker>| (0..8).map(|_| must(start())).collect::<Vec<_>>();
    let http = HttpTrick::ALL.iter().map(|trick| (format!("{trick:?}"), eight(&|| HostileTracker::http(*trick))));
    let udp = UdpTrick::ALL.iter().map(|trick| (format!("{trick:?}"), eight(&|| HostileTracker::udp(*trick))));
    for (what, trackers) in http.chain(udp).filter(|(what, _)| is_asked_for(what)) {
        let (before, during) = astray(&trackers, window, &what);
        if during * 10 < before * 9 {
            failed.push(format!("{what}: {before} pieces in peace, {during} beside trackers"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
