//! Who is many, mute, or a liar keeps nobody from what others have, and has nobody else blamed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anabranch_testbed::acceptor::Acceptor;
use anabranch_testbed::fixture::{Content, Fixture, Maker, digest_from_hex};
use anabranch_testbed::hostile::{Hostile, Malice};
use anabranch_testbed::net::{self, Namespace};
use anabranch_testbed::peers::anabranch::{self, Anabranch};
use anabranch_testbed::process::Process;
use anabranch_testbed::{Error, Result};
use sha1::{Digest, Sha1};

const ANY: &str = "127.0.0.1:0";
const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
/// More sources that never answer than are asked for metadata (64).
const COY: usize = 70;
const LIARS: usize = 4;
/// Connections of one host: more than the sharer has places for.
const CROWD: usize = 100;
const PLACES: &str = "40";
/// Peers that do not read.
const DEAF: usize = 300;
/// More than this is not bounded memory for such a content.
const RSS_BYTES_MAX: u64 = 160 * MIB;
/// A piece of metadata (BEP 9).
const METADATA_PIECE_LEN: usize = 16 * 1024;

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn listening(malice: Malice, count: usize, fixture: &Fixture) -> (Vec<Hostile>, Vec<SocketAddr>) {
    let hash = must(fixture.info_hash());
    let all: Vec<Hostile> = (0..count).map(|_| must(Hostile::listen(malice, hash, fixture.pieces))).collect();
    let addresses = all.iter().map(|hostile| hostile.address).collect();
    (all, addresses)
}

#[test]
fn a_magnet_link_is_fetched_past_sources_that_never_answer() {
    let fixture = must(Fixture::new(Content::Bytes(MIB), "1", Maker::Ours, None));
    let (_seeder, honest) = must(Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &[]));
    let (coy, mut peers) = listening(Malice::Coy, COY, &fixture);
    peers.push(honest);
    let out = must(fixture.folder("out"));
    let mut get = must(Anabranch::get(&fixture.magnet, &out, &peers, None, &["--listen", ANY]));
    must(get.wait_finished(LIMIT));
    must(fixture.check(&out));
    assert!(coy.iter().any(|hostile| hostile.connections() > 0), "nobody was met");
}

/// The info dictionary in a torrent: what has its hash.
fn info_of(torrent: &[u8], hash: [u8; 20]) -> Vec<u8> {
    let key = b"4:infod";
    let start = key.len() - 1 + torrent.windows(key.len()).position(|window| window == key).expect("a torrent has one");
    let mut ends = (start..=torrent.len()).rev();
    let end = ends.find(|end| <[u8; 20]>::from(Sha1::digest(&torrent[start..*end])) == hash).expect("it has this hash");
    torrent[start..end].to_vec()
}

/// Serves metadata as rtorrent does: of requests that come together, one is answered.
fn answer_one_at_a_time(mut stream: TcpStream, hash: [u8; 20], info: &[u8]) -> std::io::Result<()> {
    stream.read_exact(&mut [0; 68])?;
    let hello = format!("d1:md11:ut_metadatai1ee13:metadata_sizei{}ee", info.len());
    let extended = |number: u8, payload: &[u8]| {
        let len = (payload.len() as u32 + 2).to_be_bytes();
        [&len[..], &[20, number], payload].concat()
    };
    let reserved = [0, 0, 0, 0, 0, 0x10, 0, 0];
    let greeting = [b"\x13BitTorrent protocol".as_slice(), &reserved, &hash, b"-XX0000-one-at-a-tim"].concat();
    stream.write_all(&[greeting, extended(0, hello.as_bytes())].concat())?;
    let mut unread = Vec::new();
    loop {
        // What comes together is what came until nothing does for a moment.
        stream.set_read_timeout(None)?;
        let mut buffer = [0; 4096];
        let mut len = stream.read(&mut buffer)?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        while len > 0 {
            unread.extend_from_slice(&buffer[..len]);
            len = stream.read(&mut buffer).unwrap_or(0);
        }
        let mut answered = false;
        while let Some((prefix, rest)) = unread.split_first_chunk()
            && let Some(body) = rest.get(..u32::from_be_bytes(*prefix) as usize)
        {
            let request = b"d8:msg_typei0e5:piecei";
            if let [20, 1, payload @ ..] = body
                && let Some(digits) = payload.strip_prefix(request)
                && !std::mem::replace(&mut answered, true)
            {
                let digits: String = digits.iter().take_while(|digit| **digit != b'e').map(|c| *c as char).collect();
                let piece: usize = digits.parse().unwrap_or(0);
                let data = info.chunks(METADATA_PIECE_LEN).nth(piece).unwrap_or_default();
                let head = format!("d8:msg_typei1e5:piecei{piece}e10:total_sizei{}ee", info.len());
                stream.write_all(&extended(1, &[head.as_bytes(), data].concat()))?;
            }
            unread.drain(..4 + body.len());
        }
    }
}

#[test]
fn metadata_is_had_from_who_answers_one_request_of_several() {
    let fixture = must(Fixture::new(Content::Bytes(40 * MIB), "1", Maker::Ours, None));
    // Pieces of 16 KiB: their hashes are four pieces of metadata.
    let torrent = must(fixture.folder("small")).join("pieces.torrent");
    must(anabranch::create(&fixture.content, &torrent, "1", 16 * 1024, &[]));
    let mut show = must(anabranch::command(None));
    let shown = Process::run("anabranch show", show.arg("show").arg(&torrent).arg("--json"), LIMIT);
    let (lines, _) = must(shown);
    let text = lines.iter().map(|line| line.text.as_str()).collect::<String>();
    let magnet = text.split('"').find(|part| part.starts_with("magnet:")).expect("show prints a link").to_owned();
    let (_, hash) = magnet.split_once("btih:").expect("a v1 hash");
    let hash = must(digest_from_hex(&hash[..40]));
    let info = info_of(&must(std::fs::read(&torrent).map_err(Error::file(&torrent))), hash);
    assert!(info.len() > 3 * METADATA_PIECE_LEN, "{} bytes", info.len());
    let acceptor = must(Acceptor::start(8, move |stream| {
        let info = info.clone();
        std::thread::spawn(move || answer_one_at_a_time(stream, hash, &info).ok());
    }));
    let out = must(fixture.folder("out"));
    let mut get = must(Anabranch::get(&magnet, &out, &[acceptor.address], None, &["--listen", ANY]));
    must(get.process.wait_event("metadata", LIMIT));
}

#[test]
fn peers_that_do_not_read_cost_little_memory_and_nobodys_turn() {
    let fixture = must(Fixture::new(Content::Bytes(16 * MIB), "1", Maker::Ours, None));
    let (mut seeder, address) = must(Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &[]));
    let hash = must(fixture.info_hash());
    let dial = |_| Hostile::dial(Malice::Deaf, address, hash, fixture.pieces).ok();
    let deaf: Vec<Hostile> = (0..DEAF).filter_map(dial).collect();
    assert!(deaf.len() > DEAF / 2, "{} came", deaf.len());
    let out = must(fixture.folder("out"));
    let mut get = must(Anabranch::get(&fixture.source(), &out, &[address], None, &["--listen", ANY]));
    must(get.wait_finished(LIMIT));
    must(fixture.check(&out));
    let rss = seeder.process.status_bytes("VmHWM").unwrap_or(u64::MAX);
    println!("{} bytes beside {} peers that do not read", rss, deaf.len());
    assert!(!seeder.process.has_ended() && rss < RSS_BYTES_MAX, "{rss} bytes\n{}", seeder.process.log());
}

#[test]
fn liars_are_banned_and_who_tells_the_truth_is_not() {
    let fixture = must(Fixture::new(Content::Bytes(16 * MIB), "1", Maker::Ours, None));
    let (_seeder, honest) = must(Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &[]));
    let (_liars, mut peers) = listening(Malice::Lies, LIARS, &fixture);
    peers.push(honest);
    let out = must(fixture.folder("out"));
    // Slow enough for the liars to have their turn.
    let mut get = must(Anabranch::get(&fixture.source(), &out, &peers, None, &["--listen", ANY, "--limit-down", "4M"]));
    let mut banned = Vec::new();
    must(get.process.wait_line("the end", LIMIT, |line| {
        let event = line.json();
        if event["event"] == "banned" {
            banned.push(event["peer"].as_str().unwrap_or_default().to_owned());
        }
        event["event"] == "finished"
    }));
    must(fixture.check(&out));
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
    let fixture = must(Fixture::new(Content::Bytes(4 * MIB), "1", Maker::Ours, None));
    let extra = ["--max-peers", PLACES];
    let shared = Anabranch::share(&fixture.torrent, Some(&fixture.data), "10.66.0.1:0", Some(&here), &extra);
    let (_seeder, address) = must(shared);
    let hash = must(fixture.info_hash());
    // They say what they want, and that they want it.
    let dial = || Hostile::dial(Malice::Coy, address, hash, fixture.pieces);
    let crowd: Vec<Hostile> = must(there.enter(|| Ok((0..CROWD).filter_map(|_| dial().ok()).collect())));
    assert!(crowd.len() > CROWD / 2, "{} came", crowd.len());
    let out = must(fixture.folder("out"));
    let mut get = must(Anabranch::get(&fixture.source(), &out, &[address], Some(&here), &[]));
    must(get.wait_finished(LIMIT));
    must(fixture.check(&out));
}

#[test]
fn hash_requests_of_choked_peers_hold_up_nobody() {
    let fixture = must(Fixture::new(Content::Bytes(16 * MIB), "2", Maker::Ours, None));
    let (mut seeder, address) = must(Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &[]));
    // BEP 52: a link has the hash as a multihash of SHA-256, and the handshake its first twenty bytes.
    let (_, hash) = fixture.magnet.split_once("btmh:1220").unwrap_or_else(|| panic!("{}", fixture.magnet));
    let hash = must(digest_from_hex(&hash[..40]));
    let torrent = must(std::fs::read(&fixture.torrent).map_err(Error::file(&fixture.torrent)));
    let key = b"11:pieces root32:";
    let at = torrent.windows(key.len()).position(|window| window == key).expect("a v2 file has a root");
    let root: [u8; 32] = torrent[at + key.len()..][..32].try_into().expect("thirty-two bytes");
    let asks = |_| must(Hostile::dial(Malice::AsksHashes(root), address, hash, fixture.pieces));
    let askers: Vec<Hostile> = (0..8).map(asks).collect();
    let out = must(fixture.folder("out"));
    let mut get = must(Anabranch::get(&fixture.source(), &out, &[address], None, &["--listen", ANY]));
    must(get.wait_finished(LIMIT));
    must(fixture.check(&out));
    assert!(askers.iter().all(|asker| asker.sent_bytes() > 0) && !seeder.process.has_ended());
}
