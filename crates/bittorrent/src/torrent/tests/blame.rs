//! Wrong data, and whose it is.

use std::time::Duration;

use anabranch_content::info::Version;

use super::lone::Lone;
use super::sim::{Content, Manner, Sim};
use crate::handshake::Reserved;
use crate::torrent::{Event, PeerMisbehaved, Refused};

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
        assert_eq!(sim.nodes[leecher].banned, ["10.0.2.1"], "seed {seed}");
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
fn an_oddity_costs_the_connection_and_not_the_future() {
    let content = Content::v1(64 * 1024, 1_000_000);
    let mut lone = Lone::leecher(&content);
    let id = lone.try_join("192.0.2.1:1", 1, Reserved::OURS).unwrap();
    lone.torrent.misbehaved(id, &PeerMisbehaved::FastNotNegotiated);
    lone.torrent.disconnected(id, lone.now);
    assert!(lone.events().is_empty());
    assert!(lone.try_join("192.0.2.1:1", 1, Reserved::OURS).is_ok());
}
