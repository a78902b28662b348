//! What others may take of us: places, and memory.

use std::time::Duration;

use super::hosts::IDLE_MIN;
use super::tests::{HASH, address, leecher, opening, params, seeder, tree};
use super::*;
use crate::wire::Message;

const CHUNKS: u64 = 4;

/// A peer opens a channel, and proves with a sign of life where it is. Gives the channel, where that has a place.
fn come(swarm: &mut Swarm<SocketAddr>, peer: SocketAddr, now: Instant) -> Option<ChannelId> {
    swarm.datagram(now, &peer, &opening(CHUNKS, 9));
    let channel = *swarm.by_peer.get(&peer)?;
    swarm.datagram(now, &peer, &channel.to_be_bytes());
    swarm.channels.get(&channel).filter(|channel| channel.proven).map(|_| channel)
}

fn say(swarm: &mut Swarm<SocketAddr>, channel: ChannelId, messages: &[Message<'_>], now: Instant) {
    let codec = swarm.params.codec(Dialect::Rfc7574);
    let peer = swarm.channels[&channel].peer;
    let mut datagram = channel.to_be_bytes().to_vec();
    messages.iter().for_each(|message| message.encode(&codec, &mut datagram).expect("fits"));
    swarm.datagram(now, &peer, &datagram);
}

fn at(ip: &str, port: usize) -> SocketAddr {
    SocketAddr::new(ip.parse().expect("an address"), port as u16)
}

#[test]
fn a_host_has_its_share_of_the_channels_and_no_more() {
    let now = Instant::now();
    let mut swarm = seeder(CHUNKS, 1, now);
    for port in 1..=HOST_CHANNELS_MAX {
        assert!(come(&mut swarm, at("192.0.2.1", port), now).is_some(), "port {port}");
        assert!(come(&mut swarm, at(&format!("2001:db8::{port:x}"), 7), now).is_some(), "address {port}");
    }
    for refused in [at("192.0.2.1", 77), at("::ffff:192.0.2.1", 78), at("2001:db8::ffff", 7)] {
        assert_eq!(come(&mut swarm, refused, now), None);
        assert!(!swarm.has_channel(&refused));
    }
    for other in [at("192.0.2.2", 1), at("2001:db8:0:1::1", 7)] {
        assert!(come(&mut swarm, other, now).is_some());
    }
    // At this machine there are as many as come, until nobody else finds a place.
    while swarm.peers().count() < CHANNELS_MAX {
        let port = swarm.peers().count();
        assert!(come(&mut swarm, at("127.0.0.1", port), now).is_some());
    }
    assert_eq!(come(&mut swarm, at("198.51.100.1", 1), now), None);
}

#[test]
fn the_idlest_channel_of_a_host_makes_room_for_another_one() {
    let now = Instant::now();
    let mut swarm = seeder(CHUNKS, 1, now);
    // One that we called, which takes no place of those who call; one that fetches, and others that do neither.
    let called = at("192.0.2.1", 500);
    assert!(swarm.connect(now, &called));
    let id = swarm.by_peer[&called];
    let mut answer = id.to_be_bytes().to_vec();
    params(CHUNKS).handshake(Dialect::Rfc7574, 4, false, None).encode(&mut answer);
    swarm.datagram(now, &called, &answer);
    let fetching = at("192.0.2.1", 1);
    for port in 1..=HOST_CHANNELS_MAX {
        assert!(come(&mut swarm, at("192.0.2.1", port), now).is_some());
    }
    let (id, later) = (swarm.by_peer[&fetching], now + Duration::from_millis(1));
    say(&mut swarm, id, &[Message::Request(0..1)], later);
    assert_eq!(come(&mut swarm, at("192.0.2.1", 100), now + IDLE_MIN - Duration::from_millis(1)), None);
    for newcomer in 100..99 + HOST_CHANNELS_MAX {
        assert!(come(&mut swarm, at("192.0.2.1", newcomer), now + IDLE_MIN).is_some());
        assert_eq!(swarm.peers().count(), 1 + HOST_CHANNELS_MAX);
    }
    assert!(swarm.has_channel(&fetching), "it moved something less long ago");
    assert_eq!(come(&mut swarm, at("192.0.2.1", 200), now + IDLE_MIN), None, "the others are new");
    assert!(come(&mut swarm, at("192.0.2.1", 200), later + IDLE_MIN).is_some());
    assert!(!swarm.has_channel(&fetching));
    assert!(swarm.has_channel(&called), "nobody ends what we began");
}

#[test]
fn one_host_does_not_fill_the_queue_of_those_who_have_proven_nothing() {
    let now = Instant::now();
    let mut swarm = seeder(CHUNKS, 1, now);
    swarm.datagram(now, &address(1), &opening(CHUNKS, 9));
    for port in 1..=HOST_HALF_OPEN_MAX + 1 {
        assert!(swarm.half_open.len() <= HOST_HALF_OPEN_MAX + 1);
        swarm.datagram(now, &at("192.0.2.1", port), &opening(CHUNKS, 9));
    }
    assert_eq!(swarm.half_open.len(), HOST_HALF_OPEN_MAX + 1);
    let waits = |swarm: &Swarm<SocketAddr>, port| swarm.has_channel(&at("192.0.2.1", port));
    assert_eq!((waits(&swarm, 1), waits(&swarm, 2)), (false, true), "its own oldest makes room");
    assert!(swarm.has_channel(&address(1)));
}

/// Forged handshakes from anywhere make each other room, and end no call that we made.
#[test]
fn forged_handshakes_end_no_call_of_ours() {
    let now = Instant::now();
    let mut swarm = leecher(CHUNKS, 3, now);
    assert!(swarm.connect(now, &address(1)));
    let channel = swarm.by_peer[&address(1)];
    for number in 2..3 * HALF_OPEN_MAX {
        swarm.datagram(now, &address(number), &opening(CHUNKS, 9));
    }
    assert_eq!((swarm.half_open.len(), swarm.channels.len()), (HALF_OPEN_MAX, HALF_OPEN_MAX + 1));
    let mut answer = channel.to_be_bytes().to_vec();
    params(CHUNKS).handshake(Dialect::Rfc7574, 4, false, None).encode(&mut answer);
    swarm.datagram(now, &address(1), &answer);
    assert_eq!(swarm.peers().collect::<Vec<_>>(), [&address(1)]);
}

/// Who opens a channel in another peer's name does not keep us from calling that peer.
#[test]
fn forged_handshakes_take_nobodys_place() {
    let now = Instant::now();
    let mut swarm = leecher(CHUNKS, 3, now);
    swarm.datagram(now, &address(1), &opening(CHUNKS, 9));
    while swarm.transmit().is_some() {}
    assert!(swarm.connect(now, &address(1)) && !swarm.connect(now, &address(1)));
    assert!(swarm.half_open.is_empty());
    let called = swarm.transmit().expect("a call");
    assert_eq!((called.peer, &called.datagram[..4]), (address(1), &[0; 4][..]));
    let mut answer = swarm.by_peer[&address(1)].to_be_bytes().to_vec();
    params(CHUNKS).handshake(Dialect::Rfc7574, 4, false, None).encode(&mut answer);
    swarm.datagram(now, &address(1), &answer);
    assert_eq!(swarm.peers().collect::<Vec<_>>(), [&address(1)]);
}

/// In ping-pong any answer lets the next chunk leave: one that never acknowledges is remembered one chunk of. By default nothing but an
/// acknowledgement opens the first window.
#[test]
fn who_acknowledges_nothing_costs_no_memory() {
    const MANY: u64 = 600;
    for (mode, leave, remembered_max) in [(Mode::Paper, MANY, 2), (Mode::Fast, 10, 10)] {
        let now = Instant::now();
        let mut swarm = Swarm::new(params(MANY), tree(MANY), Binmap::full(MANY), mode, 1, now);
        swarm.datagram(now, &address(1), &opening(MANY, 9));
        let channel = swarm.by_peer[&address(1)];
        let mut left = 0;
        // No two follow each other.
        for chunk in (0..MANY).rev() {
            let at = now + Duration::from_millis(MANY - chunk);
            say(&mut swarm, channel, &[Message::Request(chunk..chunk + 1)], at);
            left += std::iter::from_fn(|| swarm.transmit()).filter(|transmit| transmit.chunk.is_some()).count() as u64;
            assert!(swarm.channels[&channel].sent_order.len() <= remembered_max, "{left} chunks left");
        }
        assert_eq!(left, leave);
        // The newest can still be acknowledged.
        let chunks = MANY - left..MANY - left + 1;
        say(&mut swarm, channel, &[Message::Ack { chunks, delay_us: 1 }], now + Duration::from_millis(MANY + 1));
        let channel = &swarm.channels[&channel];
        assert!(channel.knows_peaks && channel.inflight.len() < remembered_max as u64, "{mode:?}");
    }
}

/// A whole content of four tebibytes.
fn huge(now: Instant) -> Swarm<SocketAddr> {
    let root = HASH.digest(params(CHUNKS).swarm_id()).expect("a root");
    let tree = Tree::with_root(HASH, root, Some(1 << 32), MemoryNodes::new(HASH));
    Swarm::new(params(CHUNKS), tree, Binmap::full(1 << 32), Mode::Fast, 1, now)
}

/// One chunk in each part of a huge content: as many cells as messages can make.
fn scattered() -> Vec<Message<'static>> {
    (0..4096).map(|part: u64| Message::Have(part << 20..(part << 20) + 1)).collect()
}

fn cells(swarm: &Swarm<SocketAddr>) -> usize {
    swarm.channels.values().map(|channel| channel.has.cell_count()).sum()
}

/// Maps of peers take no more memory than they may, however large the content is; who takes the most has to go, and nobody else.
#[test]
fn scattered_announcements_take_no_more_memory_than_they_may() {
    let now = Instant::now();
    let mut swarm = huge(now);
    let modest = come(&mut swarm, address(1), now).expect("a place");
    say(&mut swarm, modest, &[Message::Have(7..9)], now);
    let announce = |swarm: &mut Swarm<SocketAddr>, number: usize| {
        let channel = come(swarm, address(number), now).expect("a place");
        for messages in scattered().chunks(100) {
            if swarm.channels.contains_key(&channel) {
                say(swarm, channel, messages, now);
            }
        }
    };
    announce(&mut swarm, 2);
    let (modest_cells, each) = (swarm.channels[&modest].has.cell_count(), cells(&swarm));
    let fit = (CELLS_MAX - modest_cells) / (each - modest_cells);
    (3..2 + fit).for_each(|number| announce(&mut swarm, number));
    assert_eq!(swarm.peers().count(), 1 + fit, "{} cells fit", cells(&swarm));
    announce(&mut swarm, 2 + fit);
    assert!(swarm.peers().count() == 1 + fit && cells(&swarm) <= CELLS_MAX, "{} cells", cells(&swarm));
    assert!(swarm.has_channel(&address(1)));
}

/// What is asked for was not kept: that, too, makes a map that was whole one of many parts.
#[test]
fn scattered_requests_are_counted() {
    let now = Instant::now();
    let mut swarm = huge(now);
    let channel = come(&mut swarm, address(1), now).expect("a place");
    say(&mut swarm, channel, &[Message::Have(0..1 << 32)], now);
    assert_eq!((swarm.channels[&channel].has.cell_count(), swarm.cells_uncounted), (0, 0));
    say(&mut swarm, channel, &[Message::Request(7..8), Message::Request(1 << 20..(1 << 20) + 1)], now);
    assert!(swarm.cells_uncounted > 0 && swarm.cells_uncounted == swarm.channels[&channel].has.cell_count());
}
