//! Who is many, mute, or a liar keeps nobody from what others have, and has nobody else blamed.

use std::net::SocketAddr;
use std::time::Duration;

use anabranch_testbed::hostile::{Hostile, Malice};
use anabranch_testbed::net::{self, Namespace};
use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::scene::{Content, Maker, Scene, digest_from_hex};
use anabranch_testbed::{Error, Result};

const ANY: &str = "127.0.0.1:0";
const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
/// More sources that never answer than are asked for metadata (64).
const COY: usize = 70;
const LIARS: usize = 4;
/// Connections of one host: more than the sharer has places for.
const CROWD: usize = 100;
const PLACES: &str = "40";

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn listening(malice: Malice, count: usize, scene: &Scene) -> (Vec<Hostile>, Vec<SocketAddr>) {
    let hash = must(scene.info_hash());
    let all: Vec<Hostile> = (0..count).map(|_| must(Hostile::listen(malice, hash, scene.pieces))).collect();
    let addresses = all.iter().map(|hostile| hostile.address).collect();
    (all, addresses)
}

#[test]
fn a_magnet_link_is_fetched_past_sources_that_never_answer() {
    let scene = must(Scene::new(Content::Bytes(MIB), "1", Maker::Ours, None));
    let (_seeder, honest) = must(Anabranch::share(&scene.torrent, Some(&scene.data), ANY, None, &[]));
    let (coy, mut peers) = listening(Malice::Coy, COY, &scene);
    peers.push(honest);
    let out = must(scene.folder("out"));
    let mut get = must(Anabranch::get(&scene.magnet, &out, &peers, None, &["--listen", ANY]));
    must(get.wait_finished(LIMIT));
    must(scene.check(&out));
    assert!(coy.iter().any(|hostile| hostile.connections() > 0), "nobody was met");
}

#[test]
fn liars_are_banned_and_who_tells_the_truth_is_not() {
    let scene = must(Scene::new(Content::Bytes(16 * MIB), "1", Maker::Ours, None));
    let (_seeder, honest) = must(Anabranch::share(&scene.torrent, Some(&scene.data), ANY, None, &[]));
    let (_liars, mut peers) = listening(Malice::Lies, LIARS, &scene);
    peers.push(honest);
    let out = must(scene.folder("out"));
    // Slow enough for the liars to have their turn.
    let mut get = must(Anabranch::get(&scene.source(), &out, &peers, None, &["--listen", ANY, "--limit-down", "4M"]));
    let mut banned = Vec::new();
    must(get.process.wait_line("the end", LIMIT, |line| {
        let event = line.json();
        if event["event"] == "banned" {
            banned.push(event["peer"].as_str().unwrap_or_default().to_owned());
        }
        event["event"] == "finished"
    }));
    must(scene.check(&out));
    assert!(!banned.is_empty() && !banned.contains(&honest.to_string()), "{honest}: {banned:?}");
}

#[test]
fn one_host_does_not_take_all_places() {
    if !net::available() {
        eprintln!("left out: not root");
        return;
    }
    let (here, there) = (must(Namespace::new()), must(Namespace::new()));
    must(here.link("crowd", &there));
    must(here.device_up("crowd", "10.66.0.1/24", "10.66.0.0/24", 1500));
    must(there.device_up("crowd", "10.66.0.2/24", "10.66.0.0/24", 1500));
    let scene = must(Scene::new(Content::Bytes(4 * MIB), "1", Maker::Ours, None));
    let extra = ["--max-peers", PLACES];
    let shared = Anabranch::share(&scene.torrent, Some(&scene.data), "10.66.0.1:0", Some(&here), &extra);
    let (_seeder, address) = must(shared);
    let hash = must(scene.info_hash());
    // They say what they want, and that they want it.
    let dial = || Hostile::dial(Malice::Coy, address, hash, scene.pieces);
    let crowd: Vec<Hostile> = must(there.enter(|| Ok((0..CROWD).filter_map(|_| dial().ok()).collect())));
    assert!(crowd.len() > CROWD / 2, "{} came", crowd.len());
    let out = must(scene.folder("out"));
    let mut get = must(Anabranch::get(&scene.source(), &out, &[address], Some(&here), &[]));
    must(get.wait_finished(LIMIT));
    must(scene.check(&out));
}

#[test]
fn hash_requests_of_choked_peers_hold_up_nobody() {
    let scene = must(Scene::new(Content::Bytes(16 * MIB), "2", Maker::Ours, None));
    let (mut seeder, address) = must(Anabranch::share(&scene.torrent, Some(&scene.data), ANY, None, &[]));
    // BEP 52: a link has the hash as a multihash of SHA-256, and the handshake its first twenty bytes.
    let (_, hash) = scene.magnet.split_once("btmh:1220").unwrap_or_else(|| panic!("{}", scene.magnet));
    let hash = must(digest_from_hex(&hash[..40]));
    let torrent = must(std::fs::read(&scene.torrent).map_err(Error::file(&scene.torrent)));
    let key = b"11:pieces root32:";
    let at = torrent.windows(key.len()).position(|window| window == key).expect("a v2 file has a root");
    let root: [u8; 32] = torrent[at + key.len()..][..32].try_into().expect("thirty-two bytes");
    let asks = |_| must(Hostile::dial(Malice::AsksHashes(root), address, hash, scene.pieces));
    let askers: Vec<Hostile> = (0..8).map(asks).collect();
    let out = must(scene.folder("out"));
    let mut get = must(Anabranch::get(&scene.source(), &out, &[address], None, &["--listen", ANY]));
    must(get.wait_finished(LIMIT));
    must(scene.check(&out));
    assert!(askers.iter().all(|asker| asker.sent_bytes() > 0) && !seeder.process.has_ended());
}
