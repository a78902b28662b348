//! Wrong data, and whose it is.

use std::time::Duration;

use anabranch_content::info::Version;

use super::lone::Lone;
use super::sim::{Content, Manner, Sim};
use crate::handshake::Reserved;
use crate::torrent::config::CHATTER_MAX;
use crate::torrent::{Event, PeerMisbehaved, PieceOutcome, Refused, SUSPENSION};
use crate::wire::{BlockRange, Message};

const MS: Duration = Duration::from_millis(1);

#[test]
fn one_liar_among_six_is_banned_and_nobody_else() {
    for (seed, version) in [(1, Version::V1), (2, Version::V2), (3, Version::V1), (4, Version::Hybrid)] {
        let content = Content::new(version, 64 * 1024, &[3_000_000], false);
        let mut sim = Sim::new(&content, seed);
        for _ in 0..6 {
            sim.seed(300_000);
        }
        sim.nodes[2].manner = Manner::Liar(3);
        let leecher = sim.leecher(1_000_000);
        (0..6).for_each(|node| sim.connect(leecher, node, MS * 10));
        sim.run_to_completion(Duration::from_secs(120));
        let node = &sim.nodes[leecher];
        assert_eq!([&node.suspended[..], &node.banned[..]].concat(), ["10.0.2.1"], "seed {seed}");
        assert!(sim.wasted(leecher) < content.data.len() as u64 / 2, "seed {seed}");
    }
}

#[test]
fn a_liar_alone_is_banned_at_its_first_piece() {
    let content = Content::v1(64 * 1024, 1_000_000);
    let mut sim = Sim::new(&content, 5);
    sim.seed(1_000_000);
    sim.nodes[0].manner = Manner::Liar(1);
    sim.leecher(1_000_000);
    sim.connect(1, 0, MS * 10);
    assert!(sim.run(Duration::from_secs(20), |sim| !sim.nodes[1].banned.is_empty()));
    assert_eq!(sim.nodes[1].torrent.stats(sim.now).peers, 0);
    // A good one comes, and all is well.
    sim.seed(1_000_000);
    sim.connect(1, 2, MS * 10);
    sim.run_to_completion(Duration::from_secs(60));
}

#[test]
fn who_sends_wrong_data_for_once_comes_again_and_all_is_well() {
    for (seed, version) in [(1, Version::V1), (2, Version::V2), (3, Version::Hybrid)] {
        let content = Content::new(version, 64 * 1024, &[3_000_000], false);
        let mut sim = Sim::new(&content, seed);
        sim.seed(1_000_000);
        sim.nodes[0].manner = Manner::Edited(20);
        let leecher = sim.leecher(1_000_000);
        sim.connect(leecher, 0, MS * 10);
        assert!(sim.run(Duration::from_secs(20), |sim| !sim.nodes[leecher].suspended.is_empty()), "seed {seed}");
        assert_eq!(sim.nodes[leecher].torrent.stats(sim.now).peers, 0);
        // The file is put back.
        sim.nodes[0].manner = Manner::Honest;
        sim.run(SUSPENSION, |_| false);
        sim.connect(leecher, 0, MS * 10);
        sim.run_to_completion(Duration::from_secs(60));
        let node = &sim.nodes[leecher];
        assert_eq!((node.suspended.len(), node.banned.len()), (1, 0), "seed {seed}");
    }
}

#[test]
fn a_liar_that_gives_something_spoils_two_turns_and_is_banned() {
    let content = Content::v1(64 * 1024, 6_000_000);
    let mut sim = Sim::new(&content, 6);
    sim.seed(1_000_000);
    sim.nodes[0].manner = Manner::Edited(20);
    sim.leecher(1_000_000);
    sim.connect(1, 0, MS * 10);
    assert!(sim.run(Duration::from_secs(20), |sim| !sim.nodes[1].suspended.is_empty()));
    sim.run(SUSPENSION, |_| false);
    let first_turn = sim.wasted(1);
    sim.connect(1, 0, MS * 10);
    assert!(sim.run(Duration::from_secs(20), |sim| !sim.nodes[1].banned.is_empty()));
    // A good one comes: what the liar left in begun pieces is found out and fetched again.
    sim.seed(1_000_000);
    sim.connect(1, 2, MS * 10);
    sim.run_to_completion(Duration::from_secs(60));
    let wasted = sim.wasted(1);
    assert!(first_turn > 0 && wasted < 2_000_000, "{first_turn}, then {wasted} bytes");
    assert_eq!((sim.nodes[1].suspended.len(), sim.nodes[1].banned.len()), (1, 1));
}

/// Joins as a seed, sends `good` right pieces of a block each, and then a wrong one.
fn give_and_lie(lone: &mut Lone, address: &str, peer: u8, good: u32) -> Vec<Event> {
    let id = lone.try_join(address, peer, Reserved::OURS).unwrap();
    lone.say(id, Message::HaveAll);
    lone.say(id, Message::Unchoke);
    let asked: Vec<BlockRange> = lone.requests(id);
    lone.events();
    for (at, range) in asked.iter().take(good as usize + 1).enumerate() {
        assert!(lone.deliver(id, *range));
        let outcome = match at < good as usize {
            true => PieceOutcome::Good { digests: Vec::new() },
            false => PieceOutcome::Bad { digests: vec![1] },
        };
        lone.torrent.piece_verified(range.piece, outcome, lone.now);
    }
    let events = lone.events();
    lone.torrent.disconnected(id, lone.now);
    events
}

fn is_banned(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Banned { .. }))
}

fn is_suspended(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Suspended { .. }))
}

#[test]
fn a_chance_costs_more_than_a_piece_and_comes_once_a_host() {
    const BLOCK: u32 = 16 * 1024;
    let content = Content::v1(BLOCK, 200 * BLOCK as usize);
    // One piece is not enough; two are.
    assert!(is_banned(&give_and_lie(&mut Lone::leecher(&content), "192.0.2.7:1", 1, 1)));
    let mut lone = Lone::leecher(&content);
    assert!(is_suspended(&give_and_lie(&mut lone, "192.0.2.7:1", 1, 2)));
    for (address, id) in [("192.0.2.7:1", 9), ("192.0.2.7:9", 1)] {
        assert!(matches!(lone.try_join(address, id, Reserved::OURS), Err(Refused::Suspended(_))), "{address}");
    }
    lone.now += SUSPENSION - MS;
    assert!(matches!(lone.try_join("192.0.2.7:1", 1, Reserved::OURS), Err(Refused::Suspended(_))));
    lone.now += MS;
    // Another one of that host has no chance of its own, and who had one has none any more.
    assert!(is_banned(&give_and_lie(&mut lone, "192.0.2.7:2", 2, 3)));
    assert!(is_banned(&give_and_lie(&mut lone, "192.0.2.7:1", 1, 3)));
    assert!(matches!(lone.try_join("192.0.2.7:1", 1, Reserved::OURS), Err(Refused::Banned(_))));
    // Another host's does, and on the loopback another program.
    for (address, id) in [("192.0.2.8:1", 3), ("127.0.0.1:1", 4), ("127.0.0.1:2", 5)] {
        assert!(is_suspended(&give_and_lie(&mut lone, address, id, 3)), "{address}");
    }
}

#[test]
fn what_came_before_a_suspension_is_of_the_same_fault() {
    const BLOCK: u32 = 16 * 1024;
    let content = Content::v1(BLOCK, 200 * BLOCK as usize);
    let mut lone = Lone::leecher(&content);
    let id = lone.try_join("192.0.2.7:1", 1, Reserved::OURS).unwrap();
    lone.say(id, Message::HaveAll);
    lone.say(id, Message::Unchoke);
    let asked: Vec<BlockRange> = lone.requests(id).into_iter().take(5).collect();
    asked.iter().for_each(|range| assert!(lone.deliver(id, *range)));
    for (at, range) in asked.iter().enumerate() {
        let good = PieceOutcome::Good { digests: Vec::new() };
        let outcome = if at < 2 { good } else { PieceOutcome::Bad { digests: vec![1] } };
        lone.torrent.piece_verified(range.piece, outcome, lone.now);
    }
    let events = lone.events();
    assert!(is_suspended(&events) && !is_banned(&events), "{events:?}");
}

#[test]
fn a_liar_who_returns_under_new_names_is_refused_by_address_at_last() {
    let content = Content::v1(64 * 1024, 1_000_000);
    for (ip, refused) in [("192.0.2.7", true), ("127.0.0.1", false)] {
        let mut lone = Lone::leecher(&content);
        for life in 1..=3 {
            let address = format!("{ip}:{}", 4000 + u16::from(life));
            let id = lone.try_join(&address, life, Reserved::OURS).unwrap();
            lone.torrent.misbehaved(id, &PeerMisbehaved::BadHashes);
            assert!(lone.events().iter().any(|event| matches!(event, Event::Close { conn, .. } if *conn == id)));
            lone.torrent.disconnected(id, lone.now);
            // Neither the same address nor the same name at it comes again.
            assert!(matches!(lone.try_join(&address, 99, Reserved::OURS), Err(Refused::Banned(_))));
            assert!(matches!(lone.try_join(&format!("{ip}:9"), life, Reserved::OURS), Err(Refused::Banned(_))));
        }
        let again = lone.try_join(&format!("{ip}:5000"), 50, Reserved::OURS);
        assert_eq!(matches!(again, Err(Refused::Banned(_))), refused, "{ip}");
    }
}

#[test]
fn messages_that_mean_nothing_are_a_flood_from_some_number_on() {
    let content = Content::v1(64 * 1024, 1_000_000);
    let mut lone = Lone::leecher(&content);
    let id = lone.try_join("192.0.2.1:1", 1, Reserved::OURS).unwrap();
    assert_eq!(lone.torrent.on_unknown(id, CHATTER_MAX), Ok(()));
    assert_eq!(lone.torrent.on_unknown(id, 0), Ok(()));
    let fault = lone.torrent.on_unknown(id, 1).unwrap_err();
    assert!(matches!(fault, PeerMisbehaved::Chatter) && fault.deserves_ban());
}

#[test]
fn an_oddity_costs_the_connection_and_not_the_future() {
    let content = Content::v1(64 * 1024, 1_000_000);
    let mut lone = Lone::leecher(&content);
    let id = lone.try_join("192.0.2.1:1", 1, Reserved::OURS).unwrap();
    lone.torrent.misbehaved(id, &PeerMisbehaved::FastNotNegotiated);
    lone.torrent.disconnected(id, lone.now);
    assert!(lone.events().is_empty());
    assert!(lone.try_join("192.0.2.1:1", 1, Reserved::OURS).is_ok());
}
