//! What a live swarm does that is not a matter of numbers: windows, restarts, liars, twins.

use super::live_sim::*;
use super::*;
use crate::wire::{ChannelId, Message};

/// Who has all the neighbours that it takes tells whoever it refuses of them, and closes then; whoever asked for nobody is told nothing.
/// One that was there for a while makes room, but only for who proved its address.
#[test]
fn a_full_viewer_refuses_with_addresses() {
    let mut sim = LiveSim::new(7, 0.0, 50);
    let full = sim.join(50);
    for _ in 1..VIEWER_CHANNELS_MAX {
        let number = sim.join(50);
        sim.node(number).is_hidden = true;
        sim.connect(number, full);
        sim.run(1_000);
    }
    sim.run(300_000);
    assert_eq!(sim.node(full).swarm.peers().count(), VIEWER_CHANNELS_MAX);
    let call = |sim: &mut LiveSim, asks: bool| {
        let stranger = address(1000 + usize::from(asks));
        let (now, params) = (sim.now(), params(&sim.document));
        let swarm = &mut sim.node(full).swarm;
        let mut opening = vec![0; 4];
        crate::wire::Opening::encode(
            Dialect::Rfc7574,
            &params.handshake(Dialect::Rfc7574, 9, true, None),
            &mut opening,
        );
        swarm.datagram(now, &stranger, &opening);
        let to_stranger = |swarm: &mut Swarm<PathAddress>| -> Vec<Vec<u8>> {
            let all = std::iter::from_fn(|| swarm.transmit());
            all.filter(|transmit| transmit.peer == stranger).map(|transmit| transmit.datagram).collect()
        };
        assert_eq!(to_stranger(swarm).len(), 1, "a handshake");
        let channel = swarm.by_peer[&stranger];
        assert_eq!(swarm.peers().count(), VIEWER_CHANNELS_MAX, "nobody makes room for who has proven nothing");
        let mut datagram = channel.to_be_bytes().to_vec();
        let codec = params.codec(Dialect::Rfc7574);
        let said = if asks { Message::PexRequest } else { Message::Have(0..1) };
        said.encode(&codec, &mut datagram).expect("fits");
        swarm.datagram(now, &stranger, &datagram);
        let mut named = 0;
        for datagram in to_stranger(swarm) {
            let messages = crate::wire::Messages::new(codec, &datagram[4..]);
            named += messages.filter(|message| matches!(message, Ok(Message::PexV4(_)))).count();
        }
        (named, swarm.has_channel(&stranger))
    };
    assert_eq!(call(&mut sim, false), (0, false));
    assert_eq!(call(&mut sim, true), (8, false));
    sim.run(2_000_000);
    assert!(call(&mut sim, true).1, "room is made");
}

/// Viewers whom no other can reach have all of it from the source; the window bounds what anybody keeps; a latecomer starts near the
/// newest chunk.
#[test]
fn viewers_without_neighbours_and_the_window() {
    for seed in 0..3 {
        let mut sim = LiveSim::new(seed, 0.01, 20);
        sim.node(SOURCE).swarm.set_copies(8);
        for _ in 0..3 {
            let number = sim.join(5);
            sim.node(number).is_hidden = true;
        }
        sim.run(14_000_000);
        let late = sim.join(5);
        sim.node(late).is_hidden = true;
        let edge = sim.node(SOURCE).swarm.live_edge();
        sim.run(6_000_000);
        sim.print();
        // A chunk whose announcement is lost is late: there is nobody else to get it from.
        assert!(sim.viewers().all(|node| node.started_us.is_some() && node.stalls <= 4), "{} stalls", sim.stalls());
        let began = sim.node(late).events.iter().find_map(|event| match event {
            LiveEvent::Tuned(chunk) => Some(*chunk),
            _ => None,
        });
        assert!(began.is_some_and(|began| began + 2_000_000 / sim.chunk_us > edge), "{began:?} of {edge}");
        for node in sim.nodes.iter().flatten() {
            assert!((1..=WINDOW + PER_SIGNATURE).contains(&(node.chunks_max as u64)), "{}", node.chunks_max);
            let floor = node.swarm.live_edge() - WINDOW;
            assert!(node.swarm.have().next_set(0).is_some_and(|first| first >= floor));
            let live = node.swarm.live.as_ref().expect("live");
            assert!(live.proofs().len() as u64 <= WINDOW / PER_SIGNATURE + 1);
        }
    }
}

/// Viewers whose machine was busy elsewhere get what they missed meanwhile: alone with the source, and among others.
#[test]
fn viewers_that_were_frozen_catch_up() {
    for (seed, others) in [(0, 0), (1, 0), (2, 5)] {
        for frozen_ms in [300, 900, 1500, 2500, 4000, 7000] {
            let mut sim = LiveSim::new(seed, 0.002, 12);
            let number = sim.join(5);
            for _ in 0..others {
                sim.join(5);
            }
            sim.run(4_000_000);
            let now_us = sim.now_us;
            sim.node(number).frozen_until_us = now_us + frozen_ms * 1000;
            for _ in 0..(frozen_ms / 500 + 12) {
                sim.run(500_000);
                // As drivers do: who was named is called again.
                (1..=1 + others).for_each(|viewer| sim.connect(viewer, SOURCE));
            }
            let edge = sim.node(SOURCE).swarm.live_edge();
            let chunk_us = sim.chunk_us;
            let holes = |node: &Node| {
                let start = node.events.iter().find_map(|event| match event {
                    LiveEvent::Tuned(chunk) => Some(*chunk),
                    _ => None,
                });
                let ahead =
                    node.swarm.have().next_clear(start.unwrap_or(0).max(node.swarm.have().next_set(0).unwrap_or(0)));
                (edge - ahead) * chunk_us / 1000
            };
            let behind: Vec<u64> = sim.viewers().map(holes).collect();
            assert!(
                behind.iter().all(|behind| *behind < 1500),
                "{behind:?} ms behind after {frozen_ms} ms, seed {seed}"
            );
            println!(
                "frozen for {frozen_ms} ms, seed {seed}, {others} others: behind {behind:?} ms, {:.2} copies",
                sim.copies()
            );
        }
    }
}

/// A source that is started again with its key begins anew: viewers find it, forget the old stream, and accuse nobody.
#[test]
fn a_source_that_starts_again() {
    for seed in 0..3 {
        let mut sim = LiveSim::new(seed, 0.005, 10);
        for _ in 0..6 {
            sim.join(5);
        }
        sim.run(5_000_000);
        assert!(sim.all_play());
        // Killed: nobody is told. It is away for two seconds.
        sim.push_at_us = None;
        sim.leave(SOURCE);
        sim.run(2_000_000);
        let again = sim.source();
        let number = sim.add(again, 10);
        sim.nodes.swap(SOURCE, number);
        sim.nodes.truncate(number);
        sim.numbers.insert(address(SOURCE), SOURCE);
        sim.numbers.remove(&address(number));
        (sim.push_at_us, sim.pushed, sim.began_us) = (Some(sim.now_us), 0, sim.now_us);
        for _ in 0..12 {
            sim.run(1_000_000);
            // As drivers do: who was named is called again.
            (1..number).for_each(|viewer| sim.connect(viewer, SOURCE));
        }
        sim.print();
        assert!(sim.all_play(), "seed {seed}");
        for node in sim.viewers() {
            let restarts = node.events.iter().filter(|event| **event == LiveEvent::Restarted).count();
            assert_eq!((restarts, node.liars.len()), (1, 0));
            assert!(node.chunks.iter().all(|(chunk, bytes)| **bytes == payload(*chunk)));
        }
    }
}

/// Who changes chunks, or signs with another key, is named and banned by those whom it reached, and nobody else is.
#[test]
fn liars_are_named_and_nobody_else() {
    for seed in 0..3 {
        let mut sim = LiveSim::new(seed, 0.005, 10);
        let mut numbers: Vec<usize> = (0..8).map(|_| sim.join(5)).collect();
        let liar = numbers.remove(sim.rng.usize(..8));
        sim.node(liar).lie = Some(Lie::Chunk);
        sim.run(8_000_000);
        assert!(sim.all_play());
        let named: Vec<PathAddress> = sim.viewers().flat_map(|node| node.liars.clone()).collect();
        assert!(!named.is_empty() && named.iter().all(|named| *named == address(liar)), "{named:?}");
    }
}

/// A viewer with one peer, which says what the test wants.
fn viewer(document: &[u8]) -> (Swarm<PathAddress>, Instant, ChannelId) {
    let now = Instant::now();
    let mut viewer = Swarm::viewer(params(document), WINDOW, NTP + (1000 << 32), Mode::Fast, 7, now).expect("signed");
    viewer.connect(now, &address(1));
    let hello = viewer.transmit().expect("a handshake");
    let channel = u32::from_be_bytes(hello.datagram[5..9].try_into().expect("four bytes"));
    let mut answer = channel.to_be_bytes().to_vec();
    params(document).handshake(Dialect::Rfc7574, 4, false, None).encode(&mut answer);
    viewer.datagram(now, &address(1), &answer);
    (viewer, now, channel)
}

fn munro(document: &[u8], signer: &[u8], subtree: u64, second: u64) -> crate::merkle::Munro {
    let codec = params(document).codec(Dialect::Rfc7574);
    let checkpoint = crate::merkle::Checkpoint { chunk_next: subtree * 2, ntp: 0 };
    let mut source = crate::merkle::LiveSource::new(key(signer), codec, 2, Some(checkpoint)).expect("fine");
    source.push(b"one", NTP + (second << 32)).expect("signed");
    source.push(b"other", NTP + (second << 32)).expect("signed").expect("full");
    let crate::merkle::LiveProofs::Munros(tree) = source.proofs() else { panic!("a unified Merkle tree") };
    tree.newest().expect("just signed").clone()
}

fn say(viewer: &mut Swarm<PathAddress>, now: Instant, channel: ChannelId, messages: &[Message<'_>]) {
    let codec = viewer.params.codec(Dialect::Rfc7574);
    let mut datagram = channel.to_be_bytes().to_vec();
    messages.iter().for_each(|message| message.encode(&codec, &mut datagram).expect("fits"));
    viewer.datagram(now, &address(1), &datagram);
}

fn liars(viewer: &mut Swarm<PathAddress>) -> usize {
    std::iter::from_fn(|| viewer.event()).filter(|event| matches!(event, Event::Liar(_))).count()
}

#[test]
fn only_what_the_source_signed_counts() {
    let (document, other) = (document(), document());
    // Announcements before a munro, and past the newest one, are nothing.
    let (mut swarm, now, channel) = viewer(&document);
    say(&mut swarm, now, channel, &[Message::Have(0..1 << 32)]);
    assert!(swarm.channels[&channel].has.is_empty());
    let good = munro(&document, &document, 5, 999);
    let mut messages = Vec::new();
    messages.extend(good.messages());
    messages.push(Message::Have(0..1 << 32));
    say(&mut swarm, now, channel, &messages);
    assert_eq!((swarm.live_edge(), swarm.channels[&channel].has.count(), liars(&mut swarm)), (12, 12, 0));
    // One of a stream that ended long ago, further on: nobody's lie, and nothing.
    let old = munro(&document, &document, 500, 990);
    let mut messages = Vec::new();
    messages.extend(old.messages());
    say(&mut swarm, now, channel, &messages);
    assert_eq!((swarm.live_edge(), liars(&mut swarm)), (12, 0));
    // Another key, another digest, another time.
    let forged = [
        munro(&document, &other, 6, 999),
        crate::merkle::Munro { digest: HASH.hash(b"?"), ..munro(&document, &document, 6, 999) },
        crate::merkle::Munro { ntp: NTP + (1001 << 32), ..munro(&document, &document, 6, 999) },
    ];
    for forged in forged {
        let (mut swarm, now, channel) = viewer(&document);
        let mut messages = Vec::new();
        messages.extend(forged.messages());
        say(&mut swarm, now, channel, &messages);
        assert_eq!((swarm.live_edge(), liars(&mut swarm), swarm.peers().count()), (0, 1, 0));
        assert!(!swarm.connect(now, &address(1)), "banned");
    }
    // The source has gone, or a clock is wrong: told once.
    let (mut swarm, now, channel) = viewer(&document);
    let stale = munro(&document, &document, 5, 1000 - crate::merkle::STALE_AFTER_S - 1);
    let mut messages = Vec::new();
    messages.extend(stale.messages());
    (0..3).for_each(|_| say(&mut swarm, now, channel, &messages));
    let told: Vec<_> = std::iter::from_fn(|| swarm.live_event()).collect();
    assert_eq!((told, swarm.live_edge()), (vec![LiveEvent::Stale(address(1))], 0));
}

/// Two sources with one key: whoever hears of the other says so.
#[test]
fn a_twin_of_the_source_is_told_of() {
    let mut sim = LiveSim::new(0, 0.0, 10);
    sim.run(2_000_000);
    let now = sim.now();
    let document = sim.document.clone();
    let later = munro(&document, &document, 90, 500);
    let mut messages = Vec::new();
    let source = &mut sim.node(SOURCE).swarm;
    let mut opening = vec![0; 4];
    crate::wire::Opening::encode(
        Dialect::Rfc7574,
        &params(&document).handshake(Dialect::Rfc7574, 9, true, None),
        &mut opening,
    );
    source.datagram(now, &address(1), &opening);
    let channel = *source.channels.keys().next().expect("one");
    messages.extend(later.messages());
    (0..2).for_each(|_| say(source, now, channel, &messages));
    assert_eq!(source.live_event(), Some(LiveEvent::Twin(address(1))));
    assert_eq!((source.live_event(), liars(source)), (None, 0));
}

/// A peer opens a channel to `swarm`, and proves with a sign of life where it is. Gives the channel, where that has a place.
fn come(swarm: &mut Swarm<PathAddress>, peer: PathAddress, now: Instant) -> Option<ChannelId> {
    let mut opening = vec![0; 4];
    let handshake = swarm.params.handshake(Dialect::Rfc7574, 9, true, None);
    crate::wire::Opening::encode(Dialect::Rfc7574, &handshake, &mut opening);
    swarm.datagram(now, &peer, &opening);
    let channel = *swarm.by_peer.get(&peer)?;
    swarm.datagram(now, &peer, &channel.to_be_bytes());
    swarm.channels.get(&channel).filter(|channel| channel.proven).map(|_| channel)
}

#[test]
fn one_host_leaves_places_at_a_viewer_to_others() {
    let (mut swarm, now, _) = viewer(&document());
    for port in 1..=VIEWER_HOST_CHANNELS_MAX {
        assert!(come(&mut swarm, address(2).at_port(port as u16), now).is_some(), "port {port}");
    }
    assert_eq!(come(&mut swarm, address(2).at_port(1000), now), None);
    assert!(come(&mut swarm, address(3), now).is_some());
    // Over how many paths it calls a host is its own choice.
    assert!(swarm.connect(now, &address(2).at_port(2000)));
}

#[test]
fn forged_handshakes_do_not_keep_a_viewer_from_calling_others() {
    let (mut swarm, now, _) = viewer(&document());
    let mut opening = vec![0; 4];
    let handshake = swarm.params.handshake(Dialect::Rfc7574, 9, true, None);
    crate::wire::Opening::encode(Dialect::Rfc7574, &handshake, &mut opening);
    for number in 2..2 + HALF_OPEN_MAX {
        swarm.datagram(now, &address(number), &opening);
    }
    assert!(swarm.needs_neighbours());
    // It has one channel already.
    for number in 1..VIEWER_CHANNELS_MAX {
        assert!(swarm.connect(now, &address(1000 + number)), "call {number}");
    }
    assert!(!swarm.connect(now, &address(2000)), "as many calls as places");
}

/// Channels that take nothing are given little: what is new goes to those who spread it.
#[test]
fn who_takes_nothing_is_passed_over() {
    let mut sim = LiveSim::new(3, 0.0, 50);
    for _ in 0..2 {
        let number = sim.join(50);
        sim.node(number).is_hidden = true;
    }
    let idle: Vec<PathAddress> = (0..4).map(|number| address(1000 + number)).collect();
    let now = sim.now();
    let source = &mut sim.node(SOURCE).swarm;
    let channels: Vec<ChannelId> = idle.iter().map(|peer| come(source, *peer, now).expect("a place")).collect();
    let codec = source.params.codec(Dialect::Rfc7574);
    for _ in 0..25 {
        sim.run(400_000);
        let now = sim.now();
        let source = &mut sim.node(SOURCE).swarm;
        // They say where they begin, as viewers do, and ask for nothing.
        for (peer, channel) in idle.iter().zip(&channels) {
            let mut datagram = channel.to_be_bytes().to_vec();
            Message::Cancel(0..1).encode(&codec, &mut datagram).expect("fits");
            source.datagram(now, peer, &datagram);
        }
    }
    for channel in &channels {
        let given = sim.node(SOURCE).swarm.channels[channel].live.allotted.count();
        assert!(given < live_source::UNTAKEN_MAX + live_source::GROUP_CHUNKS, "{given} chunks");
    }
    assert!(sim.pushed > 8 * live_source::UNTAKEN_MAX, "{} chunks", sim.pushed);
}

/// The old stream's chunks have the numbers of the new one's: what is known of those that were on their way says nothing any more.
#[test]
fn a_new_stream_begins_with_nothing_on_its_way() {
    let document = document();
    let (mut swarm, now, id) = viewer(&document);
    let show = |swarm: &mut Swarm<PathAddress>, subtree: u64, second: u64| {
        let munro = munro(&document, &document, subtree, second);
        let mut messages = Vec::new();
        messages.extend(munro.messages());
        say(swarm, now, id, &messages);
    };
    show(&mut swarm, 50, 990);
    let channel = swarm.channels.get_mut(&id).expect("there");
    channel.inflight.insert(100..102, channel::Sent { number: 7, at: now, is_again: false, is_cancelled: false });
    channel.sent_order.push_back((7, 100..102));
    channel.assumed.insert_range(100..102);
    channel.latest.push_back(101);
    show(&mut swarm, 3, 995);
    assert!(std::iter::from_fn(|| swarm.live_event()).any(|event| event == LiveEvent::Restarted));
    let channel = &swarm.channels[&id];
    assert!(channel.inflight.is_empty() && channel.sent_order.is_empty());
    assert!(channel.assumed.is_empty() && channel.latest.is_empty());
}
