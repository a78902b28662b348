//! Suggested pieces (BEP 6): what they save, and that nobody who lies about them, or says nothing more, holds anybody up.

use std::time::Duration;

use super::lone::Lone;
use super::sim::{Content, Manner, Sim};
use crate::ConnId;
use crate::handshake::Reserved;
use crate::picker::SUGGESTIONS_AWAITED;
use crate::suggest::UNUSED_AFTER;
use crate::torrent::PeerMisbehaved;
use crate::wire::{BlockRange, Message};

const MS: Duration = Duration::from_millis(1);
const MB: u64 = 1_000_000;
const BLOCK: u32 = 16 * 1024;
const PIECE: u32 = 64 * 1024;

/// A seed and leechers, all joined to all.
fn crowd(seed: u64, leechers: usize, rates: (u64, u64), latency: Duration, length: usize, reserved: Reserved) -> Sim {
    let mut sim = Sim::new(&Content::v1(PIECE, length), seed);
    let first = sim.seed(rates.0);
    let leechers: Vec<usize> = (0..leechers).map(|_| sim.leecher(rates.1)).collect();
    for from in leechers {
        (first..from).for_each(|to| sim.connect_with(from, to, latency, reserved));
    }
    sim
}

/// Copies that the seed sent until the last one had everything, and when that was.
fn finish(sim: &mut Sim) -> (f64, Duration) {
    sim.run_to_completion(Duration::from_secs(600));
    (sim.uploaded(0) as f64 / sim.content.data.len() as f64, sim.elapsed())
}

#[test]
fn a_crowd_at_a_thin_uplink_is_served_sooner() {
    let (mut copies, mut times) = ([0.0; 2], [Duration::ZERO; 2]);
    for seed in 1..=3 {
        for (at, reserved) in [Reserved([0; 8]), Reserved::OURS].into_iter().enumerate() {
            let (sent, time) = finish(&mut crowd(seed, 18, (MB, MB), MS * 30, 16_000_000, reserved));
            println!("seed {seed}, suggestions {}: {sent:.3} copies, {time:?}", at == 1);
            copies[at] += sent / 3.0;
            times[at] += time / 3;
        }
    }
    assert!(copies[1] < copies[0] - 0.1, "{copies:?}");
    assert!(times[1] < times[0].mul_f64(0.95), "{times:?}");
}

#[test]
fn a_fat_uplink_far_away_is_used_as_well() {
    for seed in 1..=3 {
        let [usual, suggested] = [Reserved([0; 8]), Reserved::OURS]
            .map(|reserved| finish(&mut crowd(seed, 3, (50 * MB, 50 * MB), MS * 50, 60_000_000, reserved)).1);
        println!("seed {seed}: {suggested:?}, without suggestions {usual:?}");
        assert!(suggested < usual.mul_f64(1.1), "seed {seed}: {suggested:?} against {usual:?}");
    }
}

#[test]
fn who_takes_nothing_keeps_nothing_from_others() {
    let mut copies = [0.0; 2];
    for seed in 1..=3 {
        for (at, reserved) in [Reserved([0; 8]), Reserved::OURS].into_iter().enumerate() {
            let mut sim = crowd(seed, 10, (MB, 2 * MB), MS * 10, 4_000_000, reserved);
            (1..4).for_each(|hoarder| sim.nodes[hoarder].manner = Manner::Mute);
            let (sent, time) = finish(&mut sim);
            println!("seed {seed}, suggestions {}: {sent:.3} copies, {time:?}", at == 1);
            copies[at] += sent;
        }
    }
    assert!(copies[1] < copies[0] * 1.05, "{copies:?}");
}

/// Which pieces `id` was suggested since the last look, in its order, and what else it was told.
fn suggested(lone: &mut Lone, id: ConnId) -> Vec<u32> {
    let piece = |text: &String| text.strip_prefix("Suggest(")?.strip_suffix(')')?.parse().ok();
    lone.sent(id).iter().filter_map(piece).collect()
}

/// A peer of our own kind that has nothing and wants something.
fn join_leecher(lone: &mut Lone) -> ConnId {
    let id = lone.join();
    lone.receive_handshake(id, |_| {});
    lone.say(id, Message::HaveNone);
    id
}

fn ask(lone: &mut Lone, id: ConnId, piece: u32) {
    (0..PIECE / BLOCK).for_each(|block| {
        lone.say(id, Message::Request(BlockRange { piece, begin: block * BLOCK, len: BLOCK }));
    });
}

#[test]
fn each_is_suggested_other_pieces_before_it_may_ask_and_with_each_that_it_asks_for() {
    let content = Content::v1(PIECE, 40 * PIECE as usize);
    let mut lone = Lone::seed(&content);
    let ids = [join_leecher(&mut lone), join_leecher(&mut lone)];
    // One alone need not be told what others are sent.
    lone.say(ids[0], Message::Interested);
    assert!(suggested(&mut lone, ids[0]).is_empty());
    lone.say(ids[1], Message::Interested);
    let sent = lone.sent(ids[1]);
    let at = |what: &str| sent.iter().position(|text| text.starts_with(what));
    assert!(at("Suggest") < at("Unchoke") && at("Suggest").is_some(), "{sent:?}");
    let first: u32 = sent[at("Suggest").unwrap()][8..].trim_end_matches(')').parse().unwrap();
    lone.pass(Duration::from_secs(1));
    let mut own = [suggested(&mut lone, ids[0]), vec![first]];
    own[1].extend(suggested(&mut lone, ids[1]));
    let mut all = own.concat();
    for round in 0..10 {
        let (id, own) = (ids[round % 2], &mut own[round % 2]);
        let next = own.pop().unwrap();
        ask(&mut lone, id, next);
        own.extend(suggested(&mut lone, id));
        all.extend(own.last());
        assert!(!own.is_empty(), "round {round}");
    }
    let mut distinct = all.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), all.len(), "{all:?}");
}

#[test]
fn what_somebody_has_is_suggested_to_nobody() {
    let content = Content::v1(PIECE, 8 * PIECE as usize);
    let mut lone = Lone::seed(&content);
    let (one, other) = (join_leecher(&mut lone), join_leecher(&mut lone));
    (0..7).for_each(|piece| lone.say(other, Message::Have(piece)));
    lone.say(other, Message::Interested);
    lone.say(one, Message::Interested);
    lone.pass(Duration::from_secs(1));
    let both: Vec<u32> = [one, other].into_iter().flat_map(|id| suggested(&mut lone, id)).collect();
    assert_eq!(both, [7]);
    // Whoever was suggested it does not ask: it is suggested to the other one.
    lone.pass(UNUSED_AFTER + Duration::from_secs(1));
    let both: Vec<u32> = [one, other].into_iter().flat_map(|id| suggested(&mut lone, id)).collect();
    assert!(both.contains(&7), "{both:?}");
    lone.say(one, Message::Have(7));
    lone.pass(Duration::from_secs(5));
    suggested(&mut lone, one);
    suggested(&mut lone, other);
    lone.pass(Duration::from_secs(5));
    assert_eq!((suggested(&mut lone, one), suggested(&mut lone, other)), (Vec::<u32>::new(), Vec::new()));
}

#[test]
fn other_programs_are_suggested_nothing() {
    let content = Content::v1(PIECE, 8 * PIECE as usize);
    let mut lone = Lone::seed(&content);
    let ours = join_leecher(&mut lone);
    let foreign = lone.join();
    lone.say(foreign, Message::HaveNone);
    let without_fast = lone.join_as(Reserved([0; 8]));
    for id in [ours, foreign, without_fast] {
        lone.say(id, Message::Interested);
    }
    lone.pass(Duration::from_secs(3));
    assert!(!suggested(&mut lone, ours).is_empty());
    assert_eq!((suggested(&mut lone, foreign), suggested(&mut lone, without_fast)), (Vec::<u32>::new(), Vec::new()));
}

/// The pieces that `id` is asked for.
fn asked_of(lone: &Lone, id: ConnId) -> Vec<u32> {
    let mut pieces: Vec<u32> = lone.torrent.expected(id).map(|range| range.piece).collect();
    pieces.dedup();
    pieces
}

/// What `id` is asked for comes, and is good.
fn deliver_all(lone: &mut Lone, id: ConnId) {
    let pieces = asked_of(lone, id);
    lone.requests(id).into_iter().for_each(|range| assert!(lone.deliver(id, range)));
    pieces.into_iter().for_each(|piece| lone.good(piece));
}

#[test]
fn a_suggestion_decides_among_equally_rare_pieces() {
    let content = Content::v1(PIECE, 100 * PIECE as usize);
    let mut lone = Lone::leecher(&content);
    let (seed, other) = (lone.join(), lone.join());
    lone.say(seed, Message::HaveAll);
    lone.say(other, Message::HaveNone);
    lone.say(other, Message::Have(33));
    lone.say(seed, Message::Suggest(33));
    lone.say(seed, Message::Suggest(77));
    lone.say(seed, Message::Unchoke);
    assert_eq!(asked_of(&lone, seed), [77], "somebody has the other one");
}

#[test]
fn who_suggests_and_says_nothing_more_is_asked_for_all_the_same() {
    let content = Content::v1(PIECE, 3 * PIECE as usize);
    let mut lone = Lone::leecher(&content);
    let (seed, other) = (lone.join(), lone.join());
    lone.say(seed, Message::HaveAll);
    lone.say(other, Message::HaveNone);
    lone.say(other, Message::Have(1));
    lone.say(seed, Message::Suggest(0));
    lone.say(seed, Message::Unchoke);
    assert_eq!(asked_of(&lone, seed), [0]);
    deliver_all(&mut lone, seed);
    lone.pass(Duration::from_secs(1));
    assert_eq!(asked_of(&lone, seed), [1], "somebody has it who is not being sent it");
    deliver_all(&mut lone, seed);
    lone.pass(Duration::from_secs(1));
    assert!(asked_of(&lone, seed).is_empty(), "it is likely being sent to somebody");
    lone.pass(SUGGESTIONS_AWAITED);
    assert_eq!(asked_of(&lone, seed), [2]);
}

#[test]
fn who_hears_suggestions_says_what_it_has() {
    let content = Content::v1(PIECE, 10 * PIECE as usize);
    let mut lone = Lone::leecher(&content);
    let seed = lone.join_seed();
    lone.good(4);
    lone.sent(seed);
    lone.say(seed, Message::Suggest(5));
    lone.good(6);
    let haves: Vec<String> = lone.sent(seed).into_iter().filter(|text| text.starts_with("Have(")).collect();
    assert_eq!(haves, ["Have(4)", "Have(6)"]);
}

#[test]
fn lies_and_floods_of_suggestions_end_the_connection() {
    let content = Content::v1(PIECE, 10 * PIECE as usize);
    let mut lone = Lone::leecher(&content);
    let seed = lone.join_seed();
    assert_eq!(lone.receive(seed, Message::Suggest(10)), Err(PeerMisbehaved::NoSuchPiece { piece: 10, pieces: 10 }));
    let mut flood = (0..100_000).map(|piece| lone.receive(seed, Message::Suggest(piece % 10)));
    assert!(flood.any(|answer| answer.is_err()));
}
