//! Swarms in virtual time: a driver for each peer that is as small as can be, and wires that delay, lose and queue.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use super::*;
use crate::bin::Bin;
use crate::hash::HashFunction;
use crate::wire::{Addressing, Integrity, Message, Opening};

pub(super) const HASH: HashFunction = HashFunction::Sha256;
const CHUNK_LEN: usize = 200;

/// The bytes of a chunk; the last one is short.
pub(super) fn payload(chunk: u64, chunks: u64) -> Vec<u8> {
    let len = if chunk + 1 == chunks { 77 } else { CHUNK_LEN };
    (0..len).map(|at| (chunk * 31 + at as u64 * 7) as u8).collect()
}

pub(super) fn tree(chunks: u64) -> Tree<MemoryNodes> {
    let all: Vec<Vec<u8>> = (0..chunks).map(|chunk| payload(chunk, chunks)).collect();
    let mut leaves = Vec::new();
    HASH.hash_many(&all.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut leaves);
    let mut tree = Tree::growing(HASH, MemoryNodes::new(HASH));
    tree.extend(&leaves);
    tree
}

pub(super) fn params(chunks: u64) -> SwarmParams {
    let root = tree(chunks).root().expect("chunks");
    let len = Some(CHUNK_LEN as u32);
    SwarmParams::new(root.as_bytes(), Integrity::MerkleTree, HASH, Addressing::Chunks32, len).expect("a swarm")
}

pub(super) fn address(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (number >> 8) as u8, number as u8], 7000))
}

pub(super) fn seeder(chunks: u64, seed: u64, now: Instant) -> Swarm<SocketAddr> {
    Swarm::new(params(chunks), tree(chunks), Binmap::full(chunks), Mode::Fast, seed, now)
}

/// Knows the root alone.
pub(super) fn leecher(chunks: u64, seed: u64, now: Instant) -> Swarm<SocketAddr> {
    let params = params(chunks);
    let root = HASH.digest(params.swarm_id()).expect("a root");
    let tree = Tree::with_root(HASH, root, None, MemoryNodes::new(HASH));
    Swarm::new(params, tree, Binmap::new(), Mode::Fast, seed, now)
}

/// A datagram on its way: when it arrives, its number, from whom, to whom, and its bytes.
type Flying = (u64, u64, usize, usize, Vec<u8>);

struct Node {
    swarm: Swarm<SocketAddr>,
    /// Sends wrong bytes.
    lies: bool,
    uplink_free_us: u64,
    liars: Vec<SocketAddr>,
    complete_us: Option<u64>,
    /// It lets a chunk through each way, with each peer, so long after it is asked to; asked for when it is due.
    limit_us: Option<u64>,
    turn_us: Option<u64>,
}

impl Node {
    /// So much moves each way, with each peer.
    fn allow(&mut self, bytes: u64, now: Instant) {
        let peers: Vec<SocketAddr> = self.swarm.peer_stats().map(|stats| *stats.peer).collect();
        for peer in peers {
            self.swarm.set_allowance(&peer, Allowance { up_bytes: bytes, down_bytes: bytes }, now);
        }
    }
}

struct World {
    chunks: u64,
    start: Instant,
    now_us: u64,
    nodes: Vec<Option<Node>>,
    numbers: HashMap<SocketAddr, usize>,
    wires: BinaryHeap<Reverse<Flying>>,
    count: u64,
    rng: fastrand::Rng,
    loss: f64,
    /// What waits longer for an uplink of 10 Mbit/s is dropped; and how long each way takes, if all are alike.
    queue_us: u64,
    delay_us: Option<u64>,
    /// Longer datagrams are lost.
    datagram_len_max: usize,
    /// Bytes of chunks that left, all together.
    sent_chunks: u64,
}

impl World {
    fn new(chunks: u64, seed: u64, loss: f64) -> Self {
        println!("seed {seed}");
        Self {
            chunks,
            start: Instant::now(),
            now_us: 0,
            nodes: Vec::new(),
            numbers: HashMap::new(),
            wires: BinaryHeap::new(),
            count: 0,
            rng: fastrand::Rng::with_seed(seed),
            loss,
            queue_us: 100_000,
            delay_us: None,
            datagram_len_max: usize::MAX,
            sent_chunks: 0,
        }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_micros(self.now_us)
    }

    fn add(&mut self, seeds: bool, lies: bool) -> usize {
        let (number, seed, now) = (self.nodes.len(), self.rng.u64(..), self.now());
        let swarm = if seeds { seeder(self.chunks, seed, now) } else { leecher(self.chunks, seed, now) };
        self.nodes.push(Some(Node {
            swarm,
            lies,
            uplink_free_us: 0,
            liars: Vec::new(),
            complete_us: None,
            limit_us: None,
            turn_us: None,
        }));
        self.numbers.insert(address(number), number);
        number
    }

    fn connect(&mut self, from: usize, to: usize) {
        let now = self.now();
        if let Some(node) = &mut self.nodes[from] {
            node.swarm.connect(now, &address(to));
        }
        self.flush(from);
    }

    /// Carries out what a node wants done.
    fn flush(&mut self, number: usize) {
        let now = self.now();
        let Some(node) = &mut self.nodes[number] else { return };
        if let Some(limit_us) = node.limit_us
            && node.swarm.take_lack_of_allowance()
        {
            node.turn_us.get_or_insert(self.now_us + limit_us);
        }
        let mut found = Vec::new();
        while let Some(event) = node.swarm.event() {
            match event {
                Event::Liar(peer) => node.liars.push(peer),
                Event::Found { address, .. } => found.push(address),
                Event::Complete => node.complete_us = Some(self.now_us),
                Event::Size(chunks) => assert_eq!(chunks, self.chunks),
                Event::Opened(_) | Event::Closed(_) => {}
            }
        }
        for found in found {
            if node.swarm.peers().count() < 8 && found != address(number) {
                node.swarm.connect(now, &found);
            }
        }
        while let Some(transmit) = node.swarm.transmit() {
            let mut datagram = transmit.datagram;
            if let Some(chunk) = transmit.chunk {
                assert!(node.swarm.have().contains(chunk), "a chunk is served that is not stored");
                self.sent_chunks += 1;
                datagram.extend(payload(chunk, self.chunks));
                if node.lies
                    && let Some(last) = datagram.last_mut()
                {
                    *last ^= 1;
                }
            }
            // 10 Mbit/s and a queue of 100 ms.
            let free_us = node.uplink_free_us.max(self.now_us);
            let Some(to) = self.numbers.get(&transmit.peer) else { continue };
            let is_lost = datagram.len() > self.datagram_len_max || self.rng.f64() < self.loss;
            if free_us - self.now_us > self.queue_us || is_lost {
                continue;
            }
            node.uplink_free_us = free_us + datagram.len() as u64 * 8 / 10;
            let differs_us = 5_000 + (number as u64 * 7919 + *to as u64 * 104_729) % 60_000;
            let delay_us = self.delay_us.unwrap_or(differs_us);
            self.count += 1;
            self.wires.push(Reverse((node.uplink_free_us + delay_us, self.count, number, *to, datagram)));
        }
    }

    /// Until `end_us` or `done`.
    fn run(&mut self, end_us: u64, done: impl Fn(&Self) -> bool) {
        while self.now_us < end_us && !done(self) {
            let wire_us = self.wires.peek().map_or(u64::MAX, |Reverse(wire)| wire.0);
            let due = self.nodes.iter().enumerate().filter_map(|(number, node)| {
                let node = node.as_ref()?;
                let due_us = node.swarm.deadline().saturating_duration_since(self.start).as_micros() as u64 + 1;
                Some((due_us.min(node.turn_us.unwrap_or(u64::MAX)), number))
            });
            let (due_us, number) = due.min().expect("somebody is there");
            if wire_us <= due_us {
                let Some(Reverse((at_us, _, from, to, datagram))) = self.wires.pop() else { return };
                self.now_us = self.now_us.max(at_us);
                self.deliver(from, to, &datagram);
            } else {
                self.now_us = self.now_us.max(due_us);
                let now = self.now();
                if let Some(node) = &mut self.nodes[number] {
                    if node.turn_us.take_if(|turn_us| *turn_us <= self.now_us).is_some() {
                        node.allow(CHUNK_LEN as u64, now);
                    }
                    node.swarm.poll(now);
                }
                self.flush(number);
            }
        }
    }

    fn deliver(&mut self, from: usize, to: usize, datagram: &[u8]) {
        let now = self.now();
        let Some(node) = &mut self.nodes[to] else { return };
        for (chunk, bytes) in node.swarm.datagram(now, &address(from), datagram).unwrap_or_default() {
            assert_eq!(bytes, payload(chunk, self.chunks), "a wrong chunk was handed out");
            node.swarm.stored(chunk);
        }
        self.flush(to);
    }

    fn all_complete(&self) -> bool {
        self.nodes.iter().flatten().all(|node| node.lies || node.swarm.is_complete())
    }
}

/// 64 peers, 2 % loss; some leave, others join late. Whoever stays has everything, and nobody is accused.
#[test]
fn a_swarm_of_64_with_loss_and_churn() {
    for seed in 0..2 {
        let mut world = World::new(150, seed, 0.02);
        world.add(true, false);
        for number in 1..64 {
            world.add(false, false);
            for _ in 0..3 {
                let to = world.rng.usize(..number);
                world.connect(number, to);
            }
        }
        for round in 1..8 {
            world.run(round * 300_000, |_| false);
            // Not the seeder: it alone has everything at first.
            let gone = world.rng.usize(1..64);
            world.nodes[gone] = None;
            let number = world.add(false, false);
            let to = world.rng.usize(..number);
            world.connect(number, to);
            world.connect(number, 0);
        }
        world.run(120_000_000, World::all_complete);
        let left = world.nodes.iter().flatten().filter(|node| !node.swarm.is_complete()).count();
        assert_eq!(left, 0, "after {} s", world.now_us / 1_000_000);
        assert!(world.nodes.iter().flatten().all(|node| node.liars.is_empty()));
        let copies = world.sent_chunks as f64 / (63.0 * world.chunks as f64);
        println!("64 peers complete after {:.1} s, {copies:.2} copies sent for each needed", world.now_us as f64 / 1e6);
    }
}

/// A driver that says what a limit lets through when it is asked to, and at no other time, moves as much as the limit allows.
#[test]
fn limits_are_used_up() {
    const TURN_US: u64 = 50_000;
    const CHUNKS: u64 = 200;
    for limited in 0..2 {
        let mut world = World::new(CHUNKS, limited as u64, 0.0);
        world.add(true, false);
        world.add(false, false);
        world.connect(1, 0);
        world.run(1_000_000, |world| world.nodes.iter().flatten().all(|node| node.swarm.peer_stats().count() == 1));
        let now = world.now();
        let node = world.nodes[limited].as_mut().expect("it is there");
        node.limit_us = Some(TURN_US);
        node.allow(0, now);
        world.run(60_000_000, World::all_complete);
        assert!(world.all_complete());
        // Each turn takes the round trip to the seeder, at most, to be asked for.
        let longest_us = CHUNKS * TURN_US * 11 / 10;
        assert!(world.now_us < longest_us, "{} ms with {limited} limited", world.now_us / 1000);
    }
}

/// A seeder that lies is named and banned by those whom it sent chunks, and by nobody is anybody else.
#[test]
fn the_liar_is_named_and_nobody_else() {
    for seed in 0..6 {
        let mut world = World::new(80, seed, 0.01);
        world.add(true, false);
        let liar = world.add(true, true);
        for _ in 0..6 {
            let number = world.add(false, false);
            world.connect(number, 0);
            world.connect(number, liar);
        }
        world.run(60_000_000, World::all_complete);
        assert!(world.all_complete());
        let named: Vec<SocketAddr> = world.nodes.iter().flatten().flat_map(|node| node.liars.clone()).collect();
        assert!(!named.is_empty() && named.iter().all(|named| *named == address(liar)), "{named:?}");
        // A banned peer opens no channel again.
        let now = world.now();
        let victim = world.nodes.iter_mut().flatten().find(|node| !node.liars.is_empty()).expect("one of them");
        assert!(!victim.swarm.connect(now, &address(liar)));
    }
}

/// Who was not told of the content's end proves no chunk, and is told of it again, though chunks leave all the time that are never
/// acknowledged.
#[test]
fn announcements_that_were_lost_are_said_again() {
    const CHUNKS: u64 = 3000;
    let start = Instant::now();
    let (mut seeder, mut leecher) = (seeder(CHUNKS, 1, start), leecher(CHUNKS, 2, start));
    assert!(leecher.connect(start, &address(0)));
    for round in 0..3000 {
        let now = start + Duration::from_millis(10 * round);
        leecher.poll(now);
        while let Some(transmit) = leecher.transmit() {
            seeder.datagram(now, &address(1), &transmit.datagram);
        }
        seeder.poll(now);
        while let Some(transmit) = seeder.transmit() {
            let mut datagram = transmit.datagram;
            // The first announcement is lost.
            if round < 100 && datagram.get(4) == Some(&3) {
                continue;
            }
            datagram.extend(transmit.chunk.into_iter().flat_map(|chunk| payload(chunk, CHUNKS)));
            for (chunk, _) in leecher.datagram(now, &address(0), &datagram).unwrap_or_default() {
                leecher.stored(chunk);
            }
        }
        if leecher.chunk_count().is_some() {
            println!("the size is proven after {} ms", round * 10);
            return;
        }
    }
    panic!("the size was never proven");
}

pub(super) fn opening(chunks: u64, channel: ChannelId) -> Vec<u8> {
    let mut datagram = vec![0; 4];
    Opening::encode(Dialect::Rfc7574, &params(chunks).handshake(Dialect::Rfc7574, channel, true, None), &mut datagram);
    datagram
}

#[test]
fn nobody_is_sent_more_than_came_from_there_before_the_proof() {
    let now = Instant::now();
    let mut seeder = seeder(1000, 7, now);
    let datagram = opening(1000, 9);
    let mut sent = 0;
    for repeat in 1..=3 {
        assert_eq!(seeder.datagram(now, &address(1), &datagram), Some(Vec::new()));
        while let Some(transmit) = seeder.transmit() {
            sent += transmit.datagram.len();
        }
        assert!(sent > 0 && sent <= repeat * datagram.len(), "{sent} bytes for {}", repeat * datagram.len());
    }
    let sent_before = sent;
    for step in 1..200 {
        seeder.poll(now + Duration::from_millis(50 * step));
        sent += std::iter::from_fn(|| seeder.transmit()).map(|transmit| transmit.datagram.len()).sum::<usize>();
    }
    assert_eq!((sent, seeder.channels.len()), (sent_before, 0), "silent, and forgotten");
    // A flood of forged addresses leaves a short queue, and honest peers still come in.
    for number in 0..2000 {
        seeder.datagram(now, &address(number), &datagram);
    }
    assert!(seeder.channels.len() <= HALF_OPEN_MAX + 1);
    while seeder.transmit().is_some() {}
    // What does not open this swarm opens nothing.
    assert_eq!(seeder.datagram(now, &address(5000), &opening(999, 9)), None);
    assert_eq!(seeder.datagram(now, &address(5000), &[0; 4]), None);
    assert_eq!(seeder.datagram(now, &address(5000), &[0, 0, 0, 77, 3]), None);
}

/// A peer that has a channel, and abuses it.
#[test]
fn absurd_announcements_and_floods_are_bounded() {
    let now = Instant::now();
    let mut victim = leecher(100, 3, now);
    victim.connect(now, &address(1));
    let hello = victim.transmit().expect("a handshake");
    let channel = u32::from_be_bytes(hello.datagram[5..9].try_into().expect("four bytes"));
    let swarm = params(100);
    let codec = swarm.codec(Dialect::Rfc7574);
    let mut answer = channel.to_be_bytes().to_vec();
    swarm.handshake(Dialect::Rfc7574, 4, false, None).encode(&mut answer);
    // From elsewhere, the same answer is nothing.
    assert_eq!(victim.datagram(now, &address(2), &answer), None);
    victim.datagram(now, &address(1), &answer);
    assert_eq!(victim.peers().count(), 1);
    let say = |messages: &[Message<'_>], victim: &mut Swarm<SocketAddr>| {
        let mut datagram = channel.to_be_bytes().to_vec();
        messages.iter().for_each(|message| message.encode(&codec, &mut datagram).expect("fits"));
        victim.datagram(now, &address(1), &datagram).map(|chunks| chunks.len())
    };
    // PEX: sixteen of one answer, no more.
    let flood: Vec<Message<'_>> = (0..500).map(|_| Message::PexV4("192.0.2.1:1".parse().expect("one"))).collect();
    (0..4).for_each(|_| assert_eq!(say(&flood, &mut victim), Some(0)));
    let found = std::iter::from_fn(|| victim.event()).filter(|event| matches!(event, Event::Found { .. })).count();
    assert_eq!(found, channel::PEX_TAKEN_MAX as usize);
    // Requests without end, for what is not there.
    let requests: Vec<Message<'_>> = (0..3000).map(|at| Message::Request(at..at + 1)).collect();
    say(&requests, &mut victim);
    assert!(victim.channels[&channel].wants.len() <= channel::WANTS_MAX);
    // Everything there can be, while the size is not known.
    say(&[Message::Have(0..1 << 32), Message::Ack { chunks: 0..1 << 32, delay_us: u64::MAX }], &mut victim);
    assert!(victim.channels[&channel].has.cell_count() < 100);
    let scattered: Vec<Message<'_>> = (0..5000).map(|at| Message::Have(at << 18..(at << 18) + 1)).collect();
    say(&scattered, &mut victim);
    // Sizes that cannot be: the claim is asked for, and never believed.
    let root = HASH.digest(swarm.swarm_id()).expect("a root");
    let claim = Message::Integrity { node: Bin::new(31, 0).expect("a node"), digest: root };
    let data = Message::Data { chunk: 0, sent_us: 0, payload: &[1; CHUNK_LEN] };
    assert_eq!(say(&[claim, data], &mut victim), Some(0));
    assert_eq!((victim.chunk_count(), victim.have().is_empty()), (None, true));
    // Garbage with the channel's number.
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut datagram = channel.to_be_bytes().to_vec();
        datagram.extend((0..rng.usize(..300)).map(|_| rng.u8(..16)));
        println!("seed {seed}");
        let chunks = victim.datagram(now + Duration::from_millis(seed), &address(1), &datagram).unwrap_or_default();
        assert!(chunks.is_empty());
        victim.poll(now + Duration::from_millis(seed));
        while victim.transmit().is_some() {}
        while victim.event().is_some() {}
    }
}

/// Both ends open at once: one channel comes of it. Choked peers wait. Closing is said.
#[test]
fn simultaneous_opens_chokes_and_closing() {
    let mut world = World::new(60, 1, 0.0);
    let (seeder, leecher) = (world.add(true, false), world.add(false, false));
    world.connect(seeder, leecher);
    world.connect(leecher, seeder);
    world.run(200_000, |_| false);
    for node in world.nodes.iter().flatten() {
        assert_eq!((node.swarm.peers().count(), node.swarm.channels.len()), (1, 1));
    }
    let now = world.now();
    if let Some(node) = &mut world.nodes[seeder] {
        node.swarm.choke(now, &address(leecher), true);
    }
    world.flush(seeder);
    world.run(500_000, |_| false);
    let stored = |world: &World| world.nodes[leecher].as_ref().map_or(0, |node| node.swarm.have().count());
    let before = stored(&world);
    world.run(3_000_000, |_| false);
    assert_eq!(stored(&world), before, "nothing comes while choked");
    let now = world.now();
    if let Some(node) = &mut world.nodes[seeder] {
        node.swarm.choke(now, &address(leecher), false);
    }
    world.flush(seeder);
    world.run(30_000_000, World::all_complete);
    assert!(world.all_complete());
    if let Some(node) = &mut world.nodes[seeder] {
        node.swarm.disconnect(&address(leecher));
    }
    world.flush(seeder);
    let end_us = world.now_us + 1_000_000;
    world.run(end_us, |_| false);
    assert!(world.nodes.iter().flatten().all(|node| node.swarm.channels.is_empty()));
}

/// Everybody serves two at a time, by turns of half a second, over wires that lose a twentieth of all that is said: nobody waits for ever.
#[test]
fn who_is_served_by_turns_has_everything_in_the_end() {
    for seed in 0..4 {
        let mut world = World::new(200, seed, 0.05);
        for number in 0..8 {
            world.add(number == 0, false);
        }
        (1..8).for_each(|number| world.connect(number, 0));
        for turn in 1..240 {
            world.run(turn * 500_000, World::all_complete);
            let now = world.now();
            for number in 0..8 {
                let Some(node) = &mut world.nodes[number] else { continue };
                let mut peers: Vec<SocketAddr> = node.swarm.peers().copied().collect();
                world.rng.shuffle(&mut peers);
                peers.iter().enumerate().for_each(|(at, peer)| node.swarm.choke(now, peer, at >= 2));
                world.flush(number);
            }
        }
        assert!(world.all_complete());
    }
}

/// An end that is killed and started again at the same address knows nothing of its channel, and the other knows nothing of that. It goes
/// on in seconds, whichever end it was.
#[test]
fn who_is_restarted_at_the_same_address_goes_on_at_once() {
    for seeds in [true, false] {
        let mut world = World::new(2000, 3, 0.01);
        let (seeder, leecher) = (world.add(true, false), world.add(false, false));
        world.connect(leecher, seeder);
        world.run(300_000, |_| false);
        let (number, other) = if seeds { (seeder, leecher) } else { (leecher, seeder) };
        let (seed, now) = (world.rng.u64(..), world.now());
        let anew = if seeds { self::seeder(2000, seed, now) } else { self::leecher(2000, seed, now) };
        assert!(!world.all_complete());
        if let Some(node) = &mut world.nodes[number] {
            node.swarm = anew;
        }
        // Who fetches opens a channel: the one that is new, or the one whose channel is closed by what it hears.
        let until_us = world.now_us + 6_000_000;
        world.run(until_us, |world| {
            world.nodes[leecher].as_ref().is_some_and(|node| !node.swarm.has_channel(&address(seeder)))
        });
        world.connect(leecher, seeder);
        let until_us = world.now_us + 6_000_000;
        world.run(until_us, World::all_complete);
        assert!(world.all_complete(), "{seeds}");
        for node in [number, other].map(|number| world.nodes[number].as_ref()) {
            let swarm = &node.expect("a node").swarm;
            assert_eq!((swarm.peers().count(), swarm.channels.len()), (1, 1));
            assert!(swarm.successors.is_empty());
        }
    }
}

/// Nobody takes a channel's place who only says so: the address has to be proven, and what is forged costs a short queue.
#[test]
fn forged_handshakes_take_nobodys_place() {
    let mut world = World::new(500, 4, 0.0);
    let (seeder, leecher) = (world.add(true, false), world.add(false, false));
    world.connect(leecher, seeder);
    world.run(100_000, |_| false);
    for number in 1..200 {
        let now = world.now();
        let node = world.nodes[seeder].as_mut().expect("the seeder");
        node.swarm.datagram(now, &address(leecher), &opening(500, number));
        assert!(node.swarm.channels.len() <= 2, "one in wait, whatever is said");
        world.flush(seeder);
        let until_us = world.now_us + 5_000;
        world.run(until_us, |_| false);
    }
    world.run(20_000_000, World::all_complete);
    assert!(world.all_complete());
    let end_us = world.now_us + 10_000_000;
    world.run(end_us, |_| false);
    let swarm = &world.nodes[seeder].as_ref().expect("the seeder").swarm;
    assert_eq!((swarm.peers().count(), swarm.channels.len()), (1, 1));
}

/// Whether one chunk is fetched by whoever calls in `dialect`, from a peer that takes calls in those alone that it `hears`.
fn is_fetched(dialect: Dialect, addressing: Addressing, hears: impl Fn(Dialect) -> bool) -> bool {
    let content = b"libswift's content, one chunk".to_vec();
    let root = HashFunction::Sha1.hash(&content);
    let now = Instant::now();
    let swarm = |tree, have, seed| {
        let params =
            SwarmParams::new(root.as_bytes(), Integrity::MerkleTree, HashFunction::Sha1, addressing, Some(1024));
        Swarm::<SocketAddr>::new(params.expect("a swarm"), tree, have, Mode::Paper, seed, now)
    };
    let nodes = || MemoryNodes::new(HashFunction::Sha1);
    let mut whole = Tree::growing(HashFunction::Sha1, nodes());
    whole.extend(root.as_bytes());
    let mut seeder = swarm(whole, Binmap::full(1), 1);
    let mut leecher = swarm(Tree::with_root(HashFunction::Sha1, root, None, nodes()), Binmap::new(), 2);
    leecher.set_dialect(dialect);
    leecher.connect(now, &address(0));
    for step in 0..500 {
        let now = now + Duration::from_millis(20 * step);
        while let Some(transmit) = leecher.transmit() {
            let is_call = transmit.datagram.starts_with(&[0; 4]);
            let call = Opening::parse(&transmit.datagram[4..]).ok().filter(|_| is_call);
            if call.is_none_or(|call| hears(call.dialect)) {
                seeder.datagram(now, &address(1), &transmit.datagram);
            }
        }
        while let Some(mut transmit) = seeder.transmit() {
            transmit.datagram.extend(transmit.chunk.map(|_| content.clone()).unwrap_or_default());
            for (chunk, bytes) in leecher.datagram(now, &address(0), &transmit.datagram).unwrap_or_default() {
                assert_eq!(bytes, content);
                leecher.stored(chunk);
            }
        }
        leecher.poll(now);
        seeder.poll(now);
    }
    leecher.is_complete()
}

/// Peers of libswift's dialects are fetched from, and served.
#[test]
fn libswifts_dialects_end_to_end() {
    for (dialect, addressing) in [(Dialect::Draft10, Addressing::Chunks32), (Dialect::Legacy, Addressing::Bins32)] {
        assert!(is_fetched(dialect, addressing, |heard| heard == dialect), "{dialect:?}");
    }
}

/// A link does not always say whose peers they are.
#[test]
fn who_does_not_answer_one_dialect_is_called_in_the_other() {
    for (ours, theirs) in [(Dialect::Rfc7574, Dialect::Draft10), (Dialect::Draft10, Dialect::Rfc7574)] {
        assert!(is_fetched(ours, Addressing::Chunks32, |heard| heard == theirs), "{ours:?}");
    }
    assert!(!is_fetched(Dialect::Rfc7574, Addressing::Chunks32, |_| false));
}

/// A reader that goes elsewhere does not wait for what was asked for before.
#[test]
fn what_is_played_next_goes_before_what_was_asked_for() {
    const CHUNKS: u64 = 20_000;
    let mut world = World::new(CHUNKS, 1, 0.0);
    let (seeder, leecher) = (world.add(true, false), world.add(false, false));
    world.connect(leecher, seeder);
    for (position, at_us) in [(0, 2_000_000), (15_000, 2_500_000), (9_000, 3_000_000)] {
        let now = world.now();
        let node = world.nodes[leecher].as_mut().expect("there");
        let played = position..position + 500;
        node.swarm.set_needed(vec![played], now);
        let asked = node.swarm.asked();
        world.flush(leecher);
        let start_us = world.now_us;
        let is_there = |world: &World| {
            let have = world.nodes[leecher].as_ref().expect("there").swarm.have();
            (position..position + 10).all(|chunk| have.contains(chunk))
        };
        world.run(at_us, is_there);
        let took_ms = (world.now_us - start_us) / 1000;
        println!("chunk {position}: {asked} asked for, there after {took_ms} ms");
        // 65 ms each way at most, and the queue: 400 ms were asked for.
        assert!(is_there(&world) && (position == 0 || asked > 400 && took_ms < 300));
        world.run(at_us, |_| false);
    }
    let twice = world.nodes[leecher].as_ref().map_or(0, |node| node.swarm.wasted_bytes()) / CHUNK_LEN as u64;
    assert!(twice <= 20, "{twice} chunks came twice");
}

/// However early a reader goes elsewhere, while the sender still learns how much the wire takes and much is lost, nothing of what it left behind
/// is sent again first.
#[test]
fn a_reader_that_goes_elsewhere_waits_for_nothing_that_was_lost() {
    const CHUNKS: u64 = 40_000;
    const PIECE: u64 = 256;
    let mut worst_ms = 0;
    for at_ms in (200..2200).step_by(50) {
        let mut world = World::new(CHUNKS, 1, 0.0);
        (world.delay_us, world.queue_us) = (Some(20_000), 40_000);
        let (seeder, leecher) = (world.add(true, false), world.add(false, false));
        world.connect(leecher, seeder);
        let need = |world: &mut World, from: u64| {
            let now = world.now();
            world.nodes[leecher].as_mut().expect("there").swarm.set_needed(vec![from..from + 16 * PIECE], now);
            world.flush(leecher);
        };
        need(&mut world, 0);
        world.run(at_ms * 1000, |_| false);
        let position = CHUNKS / 2;
        need(&mut world, position);
        let start_us = world.now_us;
        world.run(10_000_000, |world| {
            let have = world.nodes[leecher].as_ref().expect("there").swarm.have();
            have.next_clear(position) >= position + PIECE
        });
        let took_ms = (world.now_us - start_us) / 1000;
        println!("after {at_ms} ms: {took_ms} ms");
        worst_ms = took_ms.max(worst_ms);
    }
    println!("at worst {worst_ms} ms");
    assert!(worst_ms < 450, "{worst_ms} ms");
}

/// Whatever is lost, chunks, requests or acknowledgements, a chunk comes once, and nobody waits for long.
#[test]
fn a_chunk_is_fetched_once_whatever_is_lost() {
    const CHUNKS: u64 = 2000;
    println!("{:>6} {:>10} {:>6} {:>6}", "loss %", "seconds", "sent", "twice");
    for (loss, seconds_max) in [(0.0, 3.0), (0.01, 6.0), (0.03, 15.0)] {
        for seed in 0..5 {
            let mut world = World::new(CHUNKS, seed, loss);
            let (seeder, leecher) = (world.add(true, false), world.add(false, false));
            world.connect(leecher, seeder);
            world.run(60_000_000, World::all_complete);
            let twice = world.nodes[leecher].as_ref().map_or(0, |node| node.swarm.wasted_bytes()) / CHUNK_LEN as u64;
            let seconds = world.now_us as f64 / 1e6;
            println!("{:>6} {seconds:>10.2} {:>6} {twice:>6}", loss * 100.0, world.sent_chunks);
            // The first one proves nothing where the size is not known.
            assert!(twice <= 1 + CHUNKS / 200, "{twice} chunks came twice");
            assert!(world.all_complete() && seconds < seconds_max);
        }
    }
}

/// A reader stands still once after a wire was cut for a while, not again and again: what comes for requests that were taken back tells
/// nothing of those that were made since.
#[test]
fn a_reader_stands_still_once_after_a_cut() {
    const PIECE: u64 = 256;
    const AHEAD: u64 = 64 * PIECE;
    const STEP_US: u64 = 20_000;
    const CUT_AT: u64 = 100;
    const AGAIN: u64 = 150;
    for cut in [1, 2, 5, 10, 20, 40, 80] {
        let mut world = World::new(60_000, cut, 0.0);
        let (seeder, leecher) = (world.add(true, false), world.add(false, false));
        world.connect(leecher, seeder);
        let (mut position, mut moved_at, mut longest) = (None, 0, [0; 2]);
        for step in 0..600 {
            world.loss = if (CUT_AT..CUT_AT + cut).contains(&step) { 1.0 } else { 0.0 };
            world.run((step + 1) * STEP_US, |_| false);
            let now = world.now();
            let node = world.nodes[leecher].as_mut().expect("there");
            let front = node.swarm.have().next_clear(position.unwrap_or_default()) / PIECE * PIECE;
            if position < Some(front) {
                (position, moved_at) = (Some(front), step);
                let played = front..front + AHEAD;
                node.swarm.set_needed(vec![played], now);
                world.flush(leecher);
            }
            let longest = &mut longest[usize::from(moved_at > CUT_AT + cut + AGAIN)];
            *longest = (step - moved_at).max(*longest);
        }
        let [longest, later] = longest.map(|steps| steps * STEP_US / 1000);
        println!("cut for {} ms: stood still for {longest} ms, and {later} ms later on", cut * STEP_US / 1000);
        // A piece takes 100 ms.
        assert!(later < 400 && position > Some(15_000), "{later} ms, at chunk {position:?}");
    }
}

/// On a clean wire a digest does not go out with every chunk that leaves in a round trip; on one that loses, with what can be verified
/// whatever else is lost.
#[test]
fn proofs_are_short_where_nothing_is_lost() {
    const CHUNKS: u64 = 20_000;
    println!("{:>6} {:>16} {:>6}", "loss %", "bytes a chunk", "twice");
    for (loss, bytes_max) in [(0.0, 150), (0.0002, 150), (0.01, 170)] {
        let mut world = World::new(CHUNKS, 5, loss);
        let (seeder, leecher) = (world.add(true, false), world.add(false, false));
        world.connect(leecher, seeder);
        world.run(120_000_000, World::all_complete);
        let node = world.nodes[leecher].as_ref().expect("there");
        let received: u64 = node.swarm.channels.values().map(|channel| channel.received_bytes).sum();
        let (each, twice) = (received / CHUNKS - CHUNK_LEN as u64, node.swarm.wasted_bytes() / CHUNK_LEN as u64);
        println!("{:>6} {each:>16} {twice:>6}", loss * 100.0);
        assert!(world.all_complete() && each < bytes_max && twice <= CHUNKS / 100);
    }
}

/// Digests go by themselves where they do not fit beside their chunk: at once over a wire that is known to be narrow, and with what was
/// lost over one that nobody told of, however many they are.
#[test]
fn a_narrow_wire_takes_chunks_and_digests_apart() {
    // As many peaks as there can be: the first chunk needs 19 digests, of 41 bytes each.
    const CHUNKS: u64 = 1023;
    println!("{:>6} {:>8} {:>10} {:>6}", "bytes", "known", "seconds", "sent");
    for (len_max, is_known) in [(1452, true), (221, true), (260, true), (221, false), (260, false), (330, false)] {
        let mut world = World::new(CHUNKS, 7, 0.0);
        world.datagram_len_max = len_max;
        let (seeder, leecher) = (world.add(true, false), world.add(false, false));
        world.connect(leecher, seeder);
        while !world.all_complete() && world.now_us < 60_000_000 {
            let node = world.nodes[seeder].as_mut().expect("there");
            if is_known {
                node.swarm.set_datagram_len(&address(leecher), len_max);
            }
            world.run(world.now_us + 1000, World::all_complete);
        }
        let seconds = world.now_us as f64 / 1e6;
        println!("{len_max:>6} {is_known:>8} {seconds:>10.2} {:>6}", world.sent_chunks);
        assert!(world.all_complete() && seconds < 5.0, "{seconds} s");
        assert!(world.sent_chunks < CHUNKS * 5 / 4, "{} chunks were sent", world.sent_chunks);
    }
}
