//! Liars, crowds and floods.

use std::time::Duration;

use anabranch_dht::wire::{Answer, Ask, Body, Message, Parsed, Query, parse};
use anabranch_dht::{Contact, Event, Family, Goal, HomeConfig, NodeId};
use anabranch_paths::Endpoint;

use super::sim::{Sim, address, name};
use super::{at_7000, found, outcome, peers};

/// Answers every query for something with nodes that nobody is at, nearest to it, and peers that are none.
fn poison(rng: &mut fastrand::Rng, _: &Endpoint, datagram: &[u8]) -> Option<Vec<u8>> {
    let asked = parse(datagram, |parsed| match parsed {
        Parsed::Message(Message { transaction, body: Body::Query(query), .. }) => match query.ask {
            Ask::GetPeers { info_hash, .. } => Some((transaction.to_vec(), info_hash)),
            Ask::FindNode { target } => Some((transaction.to_vec(), target)),
            _ => None,
        },
        _ => None,
    });
    let (transaction, target) = asked.ok()??;
    let mut answer = Answer::new(NodeId::random(rng));
    answer.nodes = (0..30)
        .map(|_| {
            let address = address(100_000 + rng.usize(..1_000_000));
            let salt = rng.u8(..);
            let near = target.at_depth(100, rng);
            let fitting = NodeId::secure(&address, salt, rng);
            Contact { id: if rng.bool() { near } else { fitting }, address }
        })
        .collect();
    answer.values = (0..150).map(|_| address(2_000_000 + rng.usize(..1_000_000))).collect();
    answer.token = Some(b"token");
    let body = Body::Answer(Box::new(answer));
    Some(Message { transaction: &transaction, version: None, your_address: None, read_only: false, body }.encode())
}

/// The same by its own name, so that it stays in tables.
fn poison_by_name(rng: &mut fastrand::Rng, from: &Endpoint, datagram: &[u8]) -> Option<Vec<u8>> {
    // One in four answers is honest: such a liar is believed for longer.
    if rng.u8(..4) == 0 { None } else { poison(rng, from, datagram) }
}

#[test]
fn peers_are_found_where_a_third_of_all_nodes_lie() {
    for (seed, lie) in [(11, poison as super::sim::Lie), (12, poison_by_name)] {
        let mut sim = Sim::grown(seed, 300);
        for node in (1..300).step_by(3) {
            sim.nodes[node].lie = Some(lie);
        }
        let goal = Goal::Peers { info_hash: name(1), announce: super::ANNOUNCE, scrape: false };
        let search = sim.act(0, |dht, now| dht.search(goal, now)).unwrap();
        let events = sim.finish(0, search);
        assert!(outcome(&events).stored >= 4, "{:?}", outcome(&events));
        for seeker in [3, 50, 150, 251, 299] {
            let asked_before = sim.nodes[seeker].sent_bytes;
            let search = sim.act(seeker, |dht, now| dht.search(peers(1, None), now)).unwrap();
            let events = sim.finish(seeker, search);
            let named = found(&events);
            assert!(named.contains(&at_7000(0)), "seed {seed}, seeker {seeker}");
            assert!(named.len() <= 2000);
            assert!(sim.nodes[seeker].sent_bytes - asked_before < 40_000);
        }
    }
}

#[test]
fn a_crowd_in_one_network_does_not_take_a_content_over() {
    let mut sim = Sim::grown(13, 200);
    // A hundred programs in one network, named as near to the content as they like.
    let target = name(1);
    for host in 1..100u8 {
        let at: Endpoint = format!("9.9.9.{host}:6881").parse().unwrap();
        let id = target.at_depth(60 + usize::from(host) % 20, &mut sim.rng);
        let saved = anabranch_dht::snapshot::Saved { id: Some(id), contacts: Vec::new() };
        let node = sim.add(vec![HomeConfig { family: Family::V4, address: None, saved: Some(saved) }], vec![at]);
        let known = sim.rng.usize(..200);
        sim.act(node, |dht, now| dht.add_node(address(known), now));
        sim.nodes[node].lie = Some(poison_by_name);
        sim.run(Duration::from_millis(100));
    }
    sim.run(Duration::from_secs(30));
    let goal = Goal::Peers { info_hash: target, announce: super::ANNOUNCE, scrape: false };
    let search = sim.act(0, |dht, now| dht.search(goal, now)).unwrap();
    assert!(outcome(&sim.finish(0, search)).stored >= 8);
    for seeker in [5, 77, 150] {
        let search = sim.act(seeker, |dht, now| dht.search(peers(1, None), now)).unwrap();
        assert!(found(&sim.finish(seeker, search)).contains(&at_7000(0)), "{seeker}");
        let home = sim.nodes[seeker].addresses[0].0;
        let kept = sim.nodes[seeker].dht.snapshot(home, sim.now).unwrap();
        let crowd = kept.contacts.iter().filter(|contact| contact.address.to_string().starts_with("9.9.9.")).count();
        assert!(crowd * 4 <= kept.contacts.len(), "{crowd} of {}", kept.contacts.len());
    }
}

#[test]
fn what_is_sent_to_others_in_a_victims_name_reaches_it_hardly_larger() {
    let mut sim = Sim::grown(14, 50);
    // Much is known of a content, so that answers would be long.
    for announcer in 1..40 {
        let goal = Goal::Peers { info_hash: name(1), announce: super::ANNOUNCE, scrape: false };
        let search = sim.act(announcer, |dht, now| dht.search(goal, now)).unwrap();
        sim.finish(announcer, search);
    }
    for (victims, what) in [(1, "one address"), (5000, "5000 addresses")] {
        sim.to_nobody.clear();
        let (mut in_bytes, began) = (0, sim.now);
        for at in 0..20_000usize {
            let victim = address(500_000 + at % victims);
            let ask = Ask::GetPeers { info_hash: name(1), no_seeds: false, scrape: true };
            let query = Message::query(b"aa", Query { id: name(at as u64), want: None, ask }).encode();
            in_bytes += query.len();
            sim.inject(victim, address(0), query);
            sim.run(Duration::from_millis(3));
        }
        sim.run(Duration::from_secs(20));
        let out_bytes: usize = sim.to_nobody.iter().map(|(_, len)| len).sum();
        let ratio = out_bytes as f64 / in_bytes as f64;
        println!("{what}: {in_bytes} bytes in {:?}, {out_bytes} bytes out: {ratio:.2}", sim.now - began);
        assert!(ratio < 1.5, "{ratio}");
    }
    assert!(sim.nodes[0].dht.nodes(Family::V4) > 20, "the table is what it was");
    // Honest nodes are answered meanwhile and after.
    let search = sim.act(45, |dht, now| dht.search(peers(1, None), now)).unwrap();
    assert!(!found(&sim.finish(45, search)).is_empty());
}

#[test]
fn floods_of_queries_announces_and_forged_answers_change_nothing() {
    let mut sim = Sim::grown(15, 50);
    let before = sim.nodes[0].dht.stats();
    let flooder: Endpoint = "8.8.8.8:6881".parse().unwrap();
    for at in 0..30_000u64 {
        let id = name(at);
        let ask = match at % 4 {
            0 => Ask::Ping,
            1 => Ask::FindNode { target: name(at + 1) },
            2 => Ask::AnnouncePeer { info_hash: name(at + 2), port: Some(1), seed: true, token: b"a guess!" },
            _ => Ask::SampleInfohashes { target: name(at) },
        };
        sim.inject(flooder, address(0), Message::query(b"aa", Query { id, want: None, ask }).encode());
        // In the name of somebody who is asked things.
        let body = Body::Answer(Box::new(Answer::new(id)));
        let forged = Message {
            transaction: &(at as u32).to_be_bytes(),
            version: None,
            your_address: None,
            read_only: false,
            body,
        };
        sim.inject(address(1 + at as usize % 49), address(0), forged.encode());
        let garbage: Vec<u8> = (0..sim.rng.usize(..200)).map(|_| sim.rng.u8(..)).collect();
        sim.inject(flooder, address(0), [b"d", &garbage[..]].concat());
        if at % 10 == 0 {
            sim.run(Duration::from_millis(1));
        }
    }
    sim.run(Duration::from_secs(10));
    let after = sim.nodes[0].dht.stats();
    assert_eq!((after.swarms, after.peers, after.items), (0, 0, 0));
    assert!(after.nodes + 2 >= before.nodes, "{before:?} {after:?}");
    let search = sim.act(0, |dht, now| dht.search(peers(5, super::ANNOUNCE), now)).unwrap();
    assert_eq!(outcome(&sim.finish(0, search)).stored, 8);
    assert!(sim.nodes[0].events.iter().all(|(_, event)| !matches!(event, Event::Item { .. })));
}

#[test]
fn answers_of_somebody_else_than_was_asked_count_for_nothing() {
    let mut sim = Sim::grown(16, 30);
    // It answers everything, under another name each time.
    sim.nodes[4].lie = Some(poison);
    sim.run(Duration::from_secs(40 * 60));
    for other in (0..30).filter(|other| *other != 4) {
        let home = sim.nodes[other].addresses[0].0;
        let kept = sim.nodes[other].dht.snapshot(home, sim.now).unwrap();
        // It answers pings as itself, so it may be known; what it names never is.
        assert!(kept.contacts.iter().all(|contact| (0..30).any(|number| contact.address == address(number))));
    }
}
