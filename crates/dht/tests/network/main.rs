//! Networks of hundreds of nodes in virtual time. Each prints its seed.

mod hostile;
mod sim;

use std::time::{Duration, Instant};

use anabranch_dht::wire::{Ask, Body, Message, Parsed, Query, parse};
use anabranch_dht::{Announce, Config, Dht, Event, Family, Goal, HomeConfig, Item, Outcome, Port, snapshot};
use anabranch_paths::Endpoint;

use sim::{Anybody, Sim, address, name};

fn peers(info_hash: u64, announce: Option<Announce>) -> Goal {
    Goal::Peers { info_hash: name(info_hash), announce, scrape: false }
}

const ANNOUNCE: Option<Announce> = Some(Announce { ip: Some(Port::Number(7000)), scion: None, seed: true });

fn at_7000(number: usize) -> Endpoint {
    let mut at = address(number).socket_addr();
    at.set_port(7000);
    at.into()
}

fn outcome(events: &[(Instant, Event)]) -> Outcome {
    let ended = events.iter().find_map(|(_, event)| match event {
        Event::Ended { outcome, .. } => Some(*outcome),
        _ => None,
    });
    ended.expect("it has ended")
}

fn found(events: &[(Instant, Event)]) -> Vec<Endpoint> {
    let named = events.iter().filter_map(|(_, event)| match event {
        Event::Peers { peers, .. } => Some(peers.clone()),
        _ => None,
    });
    let mut found: Vec<Endpoint> = named.flatten().collect();
    found.sort();
    found.dedup();
    found
}

/// Announces from one node, and has others look: how long each took to find it.
fn times_to_find(sim: &mut Sim, announcer: usize, seekers: &[usize], content: u64) -> Vec<Option<Duration>> {
    let search = sim.act(announcer, |dht, now| dht.search(peers(content, ANNOUNCE), now)).expect("room");
    let stored = outcome(&sim.finish(announcer, search)).stored;
    assert!(stored >= 4, "announced at {stored} nodes");
    let mut times = Vec::new();
    for seeker in seekers {
        let began = sim.now;
        let search = sim.act(*seeker, |dht, now| dht.search(peers(content, None), now)).expect("room");
        let events = sim.finish(*seeker, search);
        let first = events
            .iter()
            .find(|(_, event)| matches!(event, Event::Peers { peers, .. } if peers.contains(&at_7000(announcer))));
        times.push(first.map(|(at, _)| *at - began));
    }
    times
}

#[test]
fn a_thousand_nodes_find_each_other_in_two_seconds_and_idle_below_a_kilobyte_a_second() {
    let mut sim = Sim::grown(1, 1000);
    let nodes: usize = sim.nodes.iter().map(|node| node.dht.nodes(Family::V4)).sum::<usize>() / sim.nodes.len();
    let mut times = Vec::new();
    for round in 0..5 {
        let seekers: Vec<usize> = (0..10).map(|_| sim.rng.usize(..1000)).collect();
        let announcer = sim.rng.usize(..1000);
        times.extend(times_to_find(&mut sim, announcer, &seekers, round));
    }
    let mut times: Vec<Duration> = times.into_iter().map(|time| time.expect("everybody finds it")).collect();
    times.sort();
    let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
    println!("1000 nodes, 100 ms round trips, {nodes} nodes in a table: found in {median:?}, at most {longest:?}");
    // What was looked for is forgotten by then; buckets are refreshed each quarter of an hour.
    sim.run(Duration::from_secs(600));
    sim.nodes.iter_mut().for_each(|node| (node.sent_bytes, node.received_bytes) = (0, 0));
    let idle = Duration::from_secs(15 * 60);
    sim.run(idle);
    let each = |bytes: usize| bytes as f64 / idle.as_secs_f64();
    let sent: f64 = sim.nodes.iter().map(|node| each(node.sent_bytes)).sum::<f64>() / 1000.0;
    let most = sim.nodes.iter().map(|node| each(node.sent_bytes + node.received_bytes)).fold(0.0, f64::max);
    println!("idle: {sent:.0} bytes/s sent on average; {most:.0} bytes/s sent and received by whom most is asked");
    assert!(longest < Duration::from_secs(2), "{longest:?}");
    assert!(most < 1000.0, "{most}");
}

#[test]
fn peers_are_found_through_loss_and_churn() {
    let mut sim = Sim::grown(2, 300);
    sim.loss = 0.1;
    let search = sim.act(0, |dht, now| dht.search(peers(1, ANNOUNCE), now)).unwrap();
    assert!(outcome(&sim.finish(0, search)).stored >= 4);
    // A third leaves without a word, and others come.
    for node in 1..100 {
        sim.nodes[node].is_up = false;
    }
    for number in 300..350 {
        let node = sim.add_v4(number);
        let known = 100 + sim.rng.usize(..200);
        sim.act(node, |dht, now| dht.add_node(address(known), now));
    }
    sim.run(Duration::from_secs(60));
    let mut missed = 0;
    for seeker in (100..350).step_by(10) {
        let search = sim.act(seeker, |dht, now| dht.search(peers(1, None), now)).unwrap();
        let events = sim.finish(seeker, search);
        missed += usize::from(!found(&events).contains(&at_7000(0)));
    }
    // Who keeps the announce left with the others, with luck a few of eight: that is what announcing again is for.
    assert!(missed <= 2, "{missed} of 25 did not find it");
    // In the long run the gone are forgotten.
    sim.loss = 0.0;
    sim.run(Duration::from_secs(40 * 60));
    let seeker = sim.nodes[200].addresses[0].0;
    let kept = sim.nodes[200].dht.snapshot(seeker, sim.now).unwrap();
    let gone = kept.contacts.iter().filter(|contact| (1..100).any(|gone| address(gone) == contact.address)).count();
    assert_eq!(gone, 0, "of {}", kept.contacts.len());
}

#[test]
fn a_newcomer_may_search_as_soon_as_one_node_has_answered() {
    let mut sim = Sim::grown(9, 200);
    let search = sim.act(0, |dht, now| dht.search(peers(1, ANNOUNCE), now)).unwrap();
    sim.finish(0, search);
    let newcomer = sim.add_v4(900);
    sim.act(newcomer, |dht, now| dht.add_node(address(17), now));
    let begun = sim.now;
    while !sim.nodes[newcomer].events.iter().any(|(_, event)| matches!(event, Event::Met { .. })) {
        sim.run(Duration::from_millis(1));
    }
    // A round trip, and nothing else: the network is joined meanwhile.
    assert!(sim.now - begun <= 2 * sim.delay + Duration::from_millis(2), "{:?}", sim.now - begun);
    let is_joined = |event: &Event| matches!(event, Event::Joined { .. });
    assert!(!sim.nodes[newcomer].events.iter().any(|(_, event)| is_joined(event)));
    let search = sim.act(newcomer, |dht, now| dht.search(peers(1, None), now)).unwrap();
    let mut events = sim.finish(newcomer, search);
    assert!(found(&events).contains(&at_7000(0)));
    let first = events.iter().find(|(_, event)| matches!(event, Event::Peers { .. })).unwrap().0;
    assert!(first - begun <= 12 * sim.delay, "{:?}", first - begun);
    sim.run(Duration::from_secs(30));
    events.append(&mut sim.nodes[newcomer].events);
    assert!(events.iter().any(|(_, event)| is_joined(event)));
    assert_eq!(events.iter().filter(|(_, event)| matches!(event, Event::Met { .. })).count(), 1);
}

#[test]
fn a_restarted_node_comes_back_by_what_it_kept() {
    let mut sim = Sim::grown(3, 60);
    let (home, at) = sim.nodes[7].addresses[0];
    let kept = snapshot::encode(&[(Family::V4, sim.nodes[7].dht.snapshot(home, sim.now).unwrap())]);
    let (id, known) = (sim.nodes[7].dht.id(home), sim.nodes[7].dht.nodes(Family::V4));
    sim.nodes[7].is_up = false;
    let saved = snapshot::decode(&kept).unwrap().remove(0).1;
    let again = sim.add(vec![HomeConfig { family: Family::V4, address: Some(at), saved: Some(saved) }], vec![at]);
    sim.run(Duration::from_secs(60));
    let home = sim.nodes[again].addresses[0].0;
    assert_eq!(sim.nodes[again].dht.id(home), id);
    assert!(sim.nodes[again].dht.nodes(Family::V4) * 2 > known);
    assert!(sim.nodes[again].events.iter().any(|(_, event)| matches!(event, Event::Joined { .. })));
}

#[test]
fn nodes_that_everybody_sees_elsewhere_take_a_name_that_fits() {
    let mut sim = Sim::grown(4, 40);
    let at = address(500);
    let node = sim.add(vec![HomeConfig { family: Family::V4, address: None, saved: None }], vec![at]);
    let home = sim.nodes[node].addresses[0].0;
    assert!(!sim.nodes[node].dht.id(home).unwrap().is_secure(&at));
    sim.act(node, |dht, now| dht.add_node(address(3), now));
    sim.run(Duration::from_secs(30));
    assert!(sim.nodes[node].dht.id(home).unwrap().is_secure(&at));
    assert!(
        sim.nodes[node]
            .events
            .iter()
            .any(|(_, event)| matches!(event, Event::Address { address, .. } if address.ip() == at.ip()))
    );
}

#[test]
fn items_scrapes_and_samples_go_through_the_network() {
    let mut sim = Sim::grown(5, 80);
    let item = Item::signed(&[9; 32], b"news", 1, b"5:hello".to_vec()).unwrap();
    let fixed = Item::immutable(b"6:stable".to_vec()).unwrap();
    for (at, put) in [item.clone(), fixed.clone()].into_iter().enumerate() {
        let search = sim.act(at, |dht, now| dht.search(Goal::Put { item: put, cas: None }, now)).unwrap();
        assert_eq!(outcome(&sim.finish(at, search)).stored, 8);
    }
    let newer = Item::signed(&[9; 32], b"news", 2, b"6:hello2".to_vec()).unwrap();
    let search = sim.act(2, |dht, now| dht.search(Goal::Put { item: newer.clone(), cas: Some(1) }, now)).unwrap();
    assert_eq!(outcome(&sim.finish(2, search)).stored, 8);
    let old = Item::signed(&[9; 32], b"news", 1, b"3:old".to_vec()).unwrap();
    let search = sim.act(3, |dht, now| dht.search(Goal::Put { item: old, cas: None }, now)).unwrap();
    assert_eq!(outcome(&sim.finish(3, search)).stored, 0);
    for (wanted, salt) in [(newer, b"news".to_vec()), (fixed, Vec::new())] {
        let goal = Goal::Item { target: wanted.target(), salt };
        let search = sim.act(50, |dht, now| dht.search(goal, now)).unwrap();
        let events = sim.finish(50, search);
        let got = events.iter().rev().find_map(|(_, event)| match event {
            Event::Item { item, .. } => Some(item.clone()),
            _ => None,
        });
        assert_eq!(got, Some(wanted));
    }
    for (announcer, seed) in [(10, true), (11, true), (12, false)] {
        let goal = peers(77, Some(Announce { ip: Some(Port::OfSocket), scion: None, seed }));
        let search = sim.act(announcer, |dht, now| dht.search(goal, now)).unwrap();
        sim.finish(announcer, search);
    }
    let goal = Goal::Peers { info_hash: name(77), announce: None, scrape: true };
    let search = sim.act(60, |dht, now| dht.search(goal, now)).unwrap();
    let events = sim.finish(60, search);
    assert_eq!(found(&events), [address(10), address(11), address(12)], "with the port of the node itself");
    let (seeds, others) = outcome(&events).scrape.unwrap();
    assert_eq!((seeds.round(), others.round()), (2.0, 1.0));
    let search = sim.act(61, |dht, now| dht.search(Goal::Samples { target: name(77) }, now)).unwrap();
    let samples = sim.finish(61, search).into_iter().filter_map(|(_, event)| match event {
        Event::Samples { samples, .. } => Some(samples.hashes),
        _ => None,
    });
    assert!(samples.flatten().any(|hash| hash == name(77)));
}

#[test]
fn who_answers_nobody_is_in_no_table_and_still_finds() {
    let mut sim = Sim::grown(6, 50);
    let at = address(400);
    let node = sim.add_with(vec![HomeConfig { family: Family::V4, address: Some(at), saved: None }], vec![at], true);
    sim.act(node, |dht, now| dht.add_node(address(1), now));
    sim.run(Duration::from_secs(30));
    assert!(times_to_find(&mut sim, 5, &[node], 9).iter().all(Option::is_some));
    for other in 0..50 {
        let home = sim.nodes[other].addresses[0].0;
        let kept = sim.nodes[other].dht.snapshot(home, sim.now).unwrap();
        assert!(kept.contacts.iter().all(|contact| contact.address != at));
    }
    assert_eq!(sim.nodes[node].dht.stats().answered, 0);
}

/// Nodes in three networks: half of them in all, and peers in each are found there; who knows a node of one learns those of others.
#[test]
fn a_network_is_learnt_through_another() {
    let mut sim = Sim::new(7);
    let of = |number: usize| -> Vec<Endpoint> {
        let v6 = format!("[2a01:{number:x}::1]:6881").parse().unwrap();
        let scion = format!("[1-ff00:0:{number:x},10.0.0.1]:6881").parse().unwrap();
        vec![address(number), v6, scion]
    };
    for number in 1..60 {
        let at = of(number);
        let homes =
            at.iter().map(|at| HomeConfig { family: Family::of(at), address: Some(*at), saved: None }).collect();
        let node = sim.add(homes, at);
        if number > 1 {
            let known = 1 + sim.rng.usize(..node);
            // Over IPv4 alone, but for a few.
            let families = if number < 10 { 3 } else { 1 };
            for known in of(known).into_iter().take(families) {
                sim.act(node, |dht, now| dht.add_node(known, now));
            }
        }
        sim.run(Duration::from_millis(500));
    }
    sim.run(Duration::from_secs(60));
    let (announcer, seeker) = (20, 45);
    for family in Family::ALL {
        assert!(sim.nodes[seeker].dht.nodes(family) >= 8, "{family:?}");
    }
    let search = sim
        .act(announcer, |dht, now| {
            dht.search(
                peers(1, Some(Announce { ip: Some(Port::OfSocket), scion: Some(Port::OfSocket), seed: true })),
                now,
            )
        })
        .unwrap();
    assert!(outcome(&sim.finish(announcer, search)).stored >= 20);
    let search = sim.act(seeker, |dht, now| dht.search(peers(1, None), now)).unwrap();
    let mut own = of(announcer + 1);
    own.sort();
    assert_eq!(found(&sim.finish(seeker, search)), own);
}

#[test]
fn searches_are_bounded_and_end_where_nobody_is() {
    let mut sim = Sim::new(8);
    let node = sim.add_v4(1);
    let search = sim.act(node, |dht, now| dht.search(peers(1, ANNOUNCE), now)).unwrap();
    assert_eq!(outcome(&sim.finish(node, search)), Outcome::default());
    let mut sim = Sim::grown(9, 20);
    let begun = (0..200).filter(|at| sim.act(3, |dht, now| dht.search(peers(*at, None), now)).is_some()).count();
    assert_eq!(begun, anabranch_dht::SEARCHES_MAX);
    sim.run(Duration::from_secs(60));
    let ended = sim.nodes[3].events.iter().filter(|(_, event)| matches!(event, Event::Ended { .. })).count();
    assert_eq!(ended, begun);
    assert_eq!(sim.nodes[3].events.len(), ended + 2, "and that it has met somebody, and joined");
}

#[test]
fn who_knows_no_nodes_says_so_where_it_is_asked_for_some() {
    let now = Instant::now();
    let config = Config { secret: [7; 16], seed: 7, read_only: false, version: *b"AB01", policy: Box::new(Anybody) };
    let mut dht = Dht::new(config, now);
    let home = dht.add_home(HomeConfig { family: Family::V4, address: None, saved: None }, now).unwrap();
    let from: Endpoint = "192.0.2.7:6881".parse().unwrap();
    // BEP 5's examples, and BEP 32's `want`.
    for (query, lists) in [
        (&b"d1:ad2:id20:abcdefghij01234567896:target20:mnopqrstuvwxyz123456e1:q9:find_node1:t2:aa1:y1:qe"[..], true),
        (b"d1:ad2:id20:abcdefghij01234567899:info_hash20:mnopqrstuvwxyz123456e1:q9:get_peers1:t2:aa1:y1:qe", true),
        (
            b"d1:ad2:id20:abcdefghij01234567896:target20:mnopqrstuvwxyz1234564:wantl2:n6ee1:q9:find_node1:t2:aa1:y1:qe",
            false,
        ),
        (b"d1:ad2:id20:abcdefghij0123456789e1:q4:ping1:t2:aa1:y1:qe", false),
    ] {
        dht.receive(home, from, query, now);
        let mut answers = std::iter::from_fn(|| dht.poll_transmit()).map(|sent| sent.bytes);
        let answer = answers.find(|bytes| bytes.ends_with(b"1:y1:re")).unwrap();
        let has_list = answer.windows(9).any(|part| part == b"5:nodes0:");
        assert_eq!(has_list, lists, "{}", String::from_utf8_lossy(&answer));
    }
}

/// SCION cuts nothing, and its headers take room: of a content that many share, as many are told as all paths carry.
#[test]
fn answers_over_scion_fit_its_paths() {
    let now = Instant::now();
    for (family, len_max) in [(Family::Scion, 1200), (Family::V6, 1400)] {
        let config =
            Config { secret: [7; 16], seed: 7, read_only: false, version: *b"AB01", policy: Box::new(Anybody) };
        let mut dht = Dht::new(config, now);
        let home = dht.add_home(HomeConfig { family, address: None, saved: None }, now).unwrap();
        let (content, mut lens) = (name(1), Vec::new());
        let mut ask = |from: Endpoint, ask: Ask<'_>| {
            let query = Message::query(b"aa", Query { id: name(2), want: None, ask }).encode();
            dht.receive(home, from, &query, now);
            let mut answers = std::iter::from_fn(|| dht.poll_transmit()).map(|sent| sent.bytes);
            answers.find(|bytes| bytes.ends_with(b"1:y1:re")).unwrap()
        };
        let get = || Ask::GetPeers { info_hash: content, no_seeds: false, scrape: false };
        for number in 1..=100 {
            let from: Endpoint = match family {
                Family::Scion => format!("[1-ff00:0:{number:x},2a01::1]:6881"),
                _ => format!("[2a01:{number:x}::1]:6881"),
            }
            .parse()
            .unwrap();
            let token = parse(&ask(from, get()), |parsed| match parsed {
                Parsed::Message(Message { body: Body::Answer(answer), .. }) => answer.token.unwrap().to_vec(),
                _ => panic!("no answer"),
            });
            let token = &token.unwrap();
            ask(from, Ask::AnnouncePeer { info_hash: content, port: None, seed: false, token });
            // Who announced has shown where he is.
            lens.push(ask(from, get()).len());
        }
        let longest = lens.iter().max().unwrap();
        assert!((len_max / 2..=len_max).contains(longest), "{family:?}: {lens:?}");
    }
}
