//! Super-seeding (BEP 16): what it saves, and that nobody is worse off for it than by waiting.

use std::time::Duration;

use anabranch_content::bitfield::Bitfield;

use super::lone::Lone;
use super::sim::{Content, Manner, Sim};
use crate::ConnId;
use crate::extension::ExtensionHandshake;
use crate::handshake::Reserved;
use crate::torrent::{Event, Torrent, TorrentConfig};
use crate::wire::{BlockRange, Message};

const MS: Duration = Duration::from_millis(1);
const MB: u64 = 1_000_000;
const BLOCK: u32 = 16 * 1024;

/// A seed that tells of pieces one by one.
fn super_seed(sim: &mut Sim, up_rate: u64) -> usize {
    let node = sim.magnet(up_rate);
    let config = TorrentConfig { super_seed: true, ..sim.nodes[node].config.clone() };
    sim.nodes[node].torrent = Torrent::new(sim.content.info.hashes, config, sim.now);
    sim.give_content(node, Bitfield::full(sim.content.pieces()), true);
    node
}

/// How many copies the first node sent before the others had one among them, and when that was.
fn copies_sent(sim: &mut Sim) -> (f64, Duration) {
    let pieces = sim.content.pieces();
    let has = |sim: &Sim, piece: u32| {
        sim.nodes[1..].iter().any(|node| node.torrent.have().is_some_and(|have| have.get(piece)))
    };
    let all_there = |sim: &Sim| (0..pieces).all(|piece| has(sim, piece));
    assert!(sim.run(Duration::from_secs(600), all_there), "no copy is out after {:?}", sim.elapsed());
    (sim.uploaded(0) as f64 / sim.content.data.len() as f64, sim.elapsed())
}

/// Ten leechers, of which the first few upload nothing.
fn swarm(seed: u64, is_super: bool, reserved: Reserved, hoarders: usize) -> Sim {
    let content = Content::v1(64 * 1024, 4_000_000);
    let mut sim = Sim::new(&content, seed);
    let first = if is_super { super_seed(&mut sim, MB) } else { sim.seed(MB) };
    let leechers: Vec<usize> = (0..10).map(|_| sim.leecher(2 * MB)).collect();
    for hoarder in &leechers[..hoarders] {
        sim.nodes[*hoarder].manner = Manner::Mute;
    }
    for from in leechers {
        (first..from).for_each(|to| sim.connect_with(from, to, MS * 10, reserved));
    }
    sim
}

#[test]
fn little_more_than_one_copy_leaves_before_the_others_have_one() {
    for (name, reserved) in [("all extensions", Reserved::OURS), ("none", Reserved([0; 8]))] {
        for seed in 1..=2 {
            let (usual, usual_time) = copies_sent(&mut swarm(seed, false, reserved, 0));
            let mut sim = swarm(seed, true, reserved, 0);
            let (copies, time) = copies_sent(&mut sim);
            println!("seed {seed}, {name}: {copies:.3} copies in {time:?}, as usual {usual:.3} in {usual_time:?}");
            assert!(copies < 1.05, "seed {seed}, {name}: {copies}");
            assert!(time < usual_time * 3 / 2, "seed {seed}, {name}: {time:?} against {usual_time:?}");
            sim.run_to_completion(Duration::from_secs(600));
        }
    }
}

#[test]
fn hoarders_hold_nobody_up() {
    for seed in 1..=2 {
        let mut sim = swarm(seed, true, Reserved::OURS, 3);
        let (copies, time) = copies_sent(&mut sim);
        println!("seed {seed}: {copies:.3} copies in {time:?}");
        assert!(copies < 1.5, "seed {seed}: {copies}");
        sim.run_to_completion(Duration::from_secs(600));
    }
}

#[test]
fn one_leecher_alone_is_served_as_fast_as_ever() {
    let content = Content::v1(64 * 1024, 8_000_000);
    let mut times = Vec::new();
    for is_super in [false, true] {
        let mut sim = Sim::new(&content, 4);
        if is_super {
            super_seed(&mut sim, MB)
        } else {
            sim.seed(MB)
        };
        sim.leecher(MB);
        sim.connect_all(MS * 20);
        sim.run_to_completion(Duration::from_secs(60));
        assert_eq!(sim.uploaded(0), 8_000_000);
        times.push(sim.elapsed());
    }
    assert!(times[1] < times[0] * 11 / 10, "{times:?}");
}

/// All pieces are offered ahead, or one by one: who has them all in the end says so before it says that it only uploads, and hangs up.
#[test]
fn the_last_haves_of_one_leecher_alone_are_heard() {
    for (piece_length, length) in [(64 * 1024, 500_000), (64 * 1024, 8_000_000), (64 * 1024, 60_000)] {
        for reserved in [Reserved::OURS, Reserved([0; 8])] {
            let mut sim = Sim::new(&Content::v1(piece_length, length), 6);
            let first = super_seed(&mut sim, MB);
            let lone = sim.leecher(MB);
            sim.connect_with(lone, first, MS * 20, reserved);
            let is_over = |sim: &Sim| !sim.nodes[first].torrent.is_super_seeding();
            assert!(sim.run(Duration::from_secs(60), is_over), "{length} bytes, {reserved:?}");
            assert!(sim.nodes[lone].finished && sim.uploaded(first) == length as u64);
            sim.run(Duration::from_secs(5), |_| false);
            assert!(
                !sim.nodes[lone].closed.is_empty() || !sim.nodes[first].closed.is_empty(),
                "nothing is left to say"
            );
        }
    }
}

#[test]
fn who_has_told_of_its_pieces_one_by_one_hears_of_ours_and_who_told_of_all_does_not() {
    let content = Content::v1(64 * 1024, 3 * 64 * 1024);
    let mut lone = Lone::leecher(&content);
    let (all, one_by_one) = (lone.join_seed(), lone.join());
    lone.receive_handshake(one_by_one, |_| {});
    (0..3).for_each(|piece| lone.say(one_by_one, Message::Have(piece)));
    lone.say(one_by_one, Message::Unchoke);
    for id in [all, one_by_one] {
        lone.sent(id);
    }
    (0..3).for_each(|piece| lone.good(piece));
    assert!(haves(&mut lone, all).is_empty());
    let sent = lone.sent(one_by_one);
    let place =
        |start: &str| sent.iter().rposition(|text| text.starts_with(start)).unwrap_or_else(|| panic!("{sent:?}"));
    assert!(place("Have(2)") < place("NotInterested") && place("NotInterested") < place("Extended"), "{sent:?}");
}

#[test]
fn nobody_is_greeted_with_all_pieces_while_it_lasts() {
    let content = Content::v1(64 * 1024, 64 * 1024);
    let mut lone = lone(&content);
    let id = lone.join_over(1, "10.0.1.1", 1, None).unwrap();
    lone.say(id, Message::HaveNone);
    assert_eq!(haves(&mut lone, id), [0]);
    let again = lone.join_over(1, "10.0.1.1", 2, None).unwrap();
    let sent = lone.sent(again);
    assert!(!sent.contains(&"HaveAll".to_owned()) && sent.contains(&"Have(0)".to_owned()), "{sent:?}");
}

#[test]
fn a_leecher_that_leaves_with_a_piece_leaves_no_hole() {
    let content = Content::v1(64 * 1024, 2_000_000);
    let mut sim = Sim::new(&content, 5);
    super_seed(&mut sim, MB);
    (0..3).for_each(|_| {
        sim.leecher(MB);
    });
    (1..4).for_each(|node| sim.connect(node, 0, MS * 10));
    sim.connect(2, 3, MS * 10);
    assert!(sim.run(Duration::from_secs(30), |sim| sim.nodes[1].torrent.have().unwrap().count() > 2));
    sim.cut(1);
    sim.nodes[1].manner = Manner::Mute;
    sim.run_to_completion(Duration::from_secs(120));
}

/// The core alone, with peers of the test's making.
fn lone(content: &std::sync::Arc<Content>) -> Lone {
    let mut lone = Lone::magnet(content);
    let config = TorrentConfig { super_seed: true, ..TorrentConfig::default() };
    lone.torrent = Torrent::new(content.info.hashes, config, lone.now);
    let have = Bitfield::full(content.pieces());
    lone.torrent.set_content(content.info.clone(), Default::default(), have, Vec::new(), lone.now);
    assert_eq!(lone.events(), [Event::Finished]);
    lone
}

fn haves(lone: &mut Lone, id: ConnId) -> Vec<u32> {
    let sent = lone.sent(id);
    let piece = |text: &String| text.strip_prefix("Have(")?.strip_suffix(')')?.parse().ok();
    sent.iter().filter_map(piece).collect()
}

fn request(piece: u32) -> Message<'static> {
    Message::Request(BlockRange { piece, begin: 0, len: BLOCK })
}

#[test]
fn peers_are_greeted_as_by_one_who_has_nothing_and_get_what_they_were_told_of() {
    let content = Content::v1(4 << 20, 5 << 22);
    let mut lone = lone(&content);
    let id = lone.join();
    let hello = ExtensionHandshake::parse(&lone.sent_extended(id, 0)[0]).unwrap();
    assert_eq!(hello.upload_only, None);
    let plain = lone.join_as(Reserved([0; 8]));
    assert!(lone.sent(plain).is_empty());
    let greeted = lone.join();
    assert!(lone.sent(greeted).contains(&"HaveNone".to_owned()));
    lone.say(id, Message::HaveNone);
    let told = haves(&mut lone, id);
    assert_eq!(told.len(), 1, "it has no slot");
    lone.say(id, Message::Interested);
    lone.pass(Duration::from_secs(1));
    let more = haves(&mut lone, id);
    assert_eq!(more.len(), 1);
    let other = (0..5).find(|piece| !told.contains(piece) && !more.contains(piece)).unwrap();
    lone.say(id, request(other));
    assert_eq!((lone.torrent.next_upload(id), lone.sent(id).len()), (None, 1), "rejected");
    lone.say(id, request(told[0]));
    assert!(lone.torrent.next_upload(id).is_some());
    // Who says nothing of what it has gets something all the same.
    assert_eq!(haves(&mut lone, plain).len(), 1);
}

#[test]
fn everybody_is_told_of_the_rest_when_it_is_over() {
    let content = Content::v1(64 * 1024, 10 * 64 * 1024);
    let mut lone = lone(&content);
    let (one, other) = (lone.join(), lone.join());
    for id in [one, other] {
        lone.receive_handshake(id, |_| {});
        lone.say(id, Message::HaveNone);
    }
    let first = haves(&mut lone, one);
    haves(&mut lone, other);
    let third = lone.join();
    lone.say(third, Message::HaveAll);
    assert!(lone.torrent.is_complete() && !lone.torrent.is_super_seeding());
    assert!(lone.events().contains(&Event::SuperSeeded));
    let mut rest = haves(&mut lone, one);
    rest.extend(first);
    rest.sort_unstable();
    assert_eq!(rest, (0..10).collect::<Vec<_>>(), "each piece once");
    // Who comes later is greeted as by any seed.
    let late = lone.join();
    assert!(lone.sent(late).contains(&"HaveAll".to_owned()));
}

#[test]
fn who_says_that_it_only_uploads_is_heard_to_the_end() {
    let content = Content::v1(64 * 1024, 2 * 64 * 1024);
    let mut lone = lone(&content);
    let id = lone.join();
    lone.receive_handshake(id, |_| {});
    lone.say(id, Message::HaveNone);
    lone.say(id, Message::Have(0));
    // As ours does when it is done: what it gained last it says last.
    lone.receive_handshake(id, |hello| hello.upload_only = Some(true));
    assert_eq!(lone.closed(), []);
    lone.say(id, Message::Have(1));
    let events = lone.events();
    assert!(events.contains(&Event::SuperSeeded), "{events:?}");
    assert!(events.iter().any(|event| matches!(event, Event::Close { conn, .. } if *conn == id)), "{events:?}");
}

#[test]
fn a_lost_piece_ends_it() {
    let content = Content::v1(64 * 1024, 10 * 64 * 1024);
    let mut lone = lone(&content);
    let id = lone.join();
    lone.say(id, Message::HaveNone);
    haves(&mut lone, id);
    lone.torrent.pieces_lost(&[3], lone.now);
    assert!(!lone.torrent.is_super_seeding());
    let told = haves(&mut lone, id);
    assert!(told.len() >= 8 && !told.contains(&3), "{told:?}");
}

#[test]
fn who_lacks_a_piece_itself_is_an_ordinary_peer() {
    let content = Content::v1(64 * 1024, 10 * 64 * 1024);
    let mut lone = Lone::magnet(&content);
    let config = TorrentConfig { super_seed: true, ..TorrentConfig::default() };
    lone.torrent = Torrent::new(content.info.hashes, config, lone.now);
    let mut have = Bitfield::full(10);
    have.clear(4);
    lone.torrent.set_content(content.info.clone(), Default::default(), have, Vec::new(), lone.now);
    let id = lone.join();
    assert!(lone.sent(id).iter().any(|text| text.starts_with("Bitfield")));
}
