//! Live swarms in virtual time: a source whose uplink carries three copies, and viewers who have the rest from each other.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use super::*;
use crate::hash::HashFunction;
use crate::sign::{SignatureAlgorithm, SigningKey};
use crate::wire::{Addressing, ChannelId, Integrity, Message};

const HASH: HashFunction = HashFunction::Sha256;
/// 2 Mbit/s in chunks of 1 KiB: those here are shorter, and count as such on the wires.
const CHUNK_US: u64 = 4096;
const PER_SIGNATURE: u64 = 16;
/// Ten seconds.
const WINDOW: u64 = 2448;
/// What a player waits for before it begins.
const PLAY_AFTER_US: u64 = 1_250_000;
const NTP: u64 = 3_900_000_000 << 32;

fn payload(chunk: u64) -> [u8; 8] {
    (chunk.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1).to_be_bytes()
}

fn address(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 1, (number >> 8) as u8, number as u8], 7000))
}

fn document() -> Vec<u8> {
    SigningKey::generate(SignatureAlgorithm::EcdsaP256Sha256).expect("random")
}

fn key(document: &[u8]) -> SigningKey {
    SigningKey::from_pkcs8(SignatureAlgorithm::EcdsaP256Sha256, document).expect("just made")
}

fn params(document: &[u8]) -> SwarmParams {
    let id = key(document).public().swarm_id().to_vec();
    SwarmParams::new(&id, Integrity::UnifiedMerkleTree, HASH, Addressing::Chunks32, None).expect("a swarm")
}

/// When it arrives, its number, from whom, to whom, and its bytes.
type Flying = (u64, u64, usize, usize, Vec<u8>);

struct Node {
    swarm: Swarm<SocketAddr>,
    chunks: BTreeMap<u64, Vec<u8>>,
    uplink_mbps: u64,
    uplink_free_us: u64,
    joined_us: u64,
    /// Nobody can call it.
    is_hidden: bool,
    lies: bool,
    /// Its machine is busy elsewhere until then: it neither hears nor says anything.
    frozen_until_us: u64,
    events: Vec<LiveEvent<SocketAddr>>,
    liars: Vec<SocketAddr>,
    sent_chunks: u64,
    chunks_max: usize,
    // ---- the player ----
    position: Option<u64>,
    /// When what stream time began to play.
    playing: Option<(u64, u64)>,
    stalls: u32,
    started_us: Option<u64>,
    stalled_us: Vec<u64>,
    delays_us: Vec<u64>,
}

struct World {
    document: Vec<u8>,
    start: Instant,
    now_us: u64,
    nodes: Vec<Option<Node>>,
    numbers: HashMap<SocketAddr, usize>,
    wires: BinaryHeap<Reverse<Flying>>,
    count: u64,
    rng: fastrand::Rng,
    loss: f64,
    /// The source's next chunk; `None` while it is silent.
    push_at_us: Option<u64>,
    pushed: u64,
    /// Chunk `c` of this stream was made at `began_us + c * CHUNK_US`.
    began_us: u64,
}

const SOURCE: usize = 0;

impl World {
    fn new(seed: u64, loss: f64, uplink_mbps: u64) -> Self {
        println!("seed {seed}");
        let mut world = Self {
            document: document(),
            start: Instant::now(),
            now_us: 0,
            nodes: Vec::new(),
            numbers: HashMap::new(),
            wires: BinaryHeap::new(),
            count: 0,
            rng: fastrand::Rng::with_seed(seed),
            loss,
            push_at_us: Some(0),
            pushed: 0,
            began_us: 0,
        };
        let source = world.source();
        world.add(source, uplink_mbps);
        world
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_micros(self.now_us)
    }

    fn ntp(&self) -> u64 {
        NTP + live::ntp_of(Duration::from_micros(self.now_us))
    }

    fn source(&mut self) -> Swarm<SocketAddr> {
        let seed = self.rng.u64(..);
        let times = (WINDOW, self.ntp());
        let params = params(&self.document);
        Swarm::source(params, key(&self.document), PER_SIGNATURE, times, (Mode::Fast, seed), self.now()).expect("fine")
    }

    fn add(&mut self, swarm: Swarm<SocketAddr>, uplink_mbps: u64) -> usize {
        let number = self.nodes.len();
        self.nodes.push(Some(Node {
            swarm,
            chunks: BTreeMap::new(),
            uplink_mbps,
            uplink_free_us: 0,
            joined_us: self.now_us,
            is_hidden: false,
            lies: false,
            frozen_until_us: 0,
            events: Vec::new(),
            liars: Vec::new(),
            sent_chunks: 0,
            chunks_max: 0,
            position: None,
            playing: None,
            stalls: 0,
            started_us: None,
            stalled_us: Vec::new(),
            delays_us: Vec::new(),
        }));
        self.numbers.insert(address(number), number);
        number
    }

    /// A viewer who knows the source alone, as its link says.
    fn join(&mut self, uplink_mbps: u64) -> usize {
        let (seed, ntp, now) = (self.rng.u64(..), self.ntp(), self.now());
        let swarm = Swarm::viewer(params(&self.document), WINDOW, ntp, Mode::Fast, seed, now).expect("signed");
        let number = self.add(swarm, uplink_mbps);
        self.node(number).swarm.pin(&address(SOURCE));
        self.connect(number, SOURCE);
        number
    }

    fn node(&mut self, number: usize) -> &mut Node {
        self.nodes[number].as_mut().expect("it is there")
    }

    fn viewers(&self) -> impl Iterator<Item = &Node> {
        self.nodes[1..].iter().flatten().filter(|node| !node.lies)
    }

    fn connect(&mut self, from: usize, to: usize) {
        let now = self.now();
        if let Some(node) = &mut self.nodes[from] {
            node.swarm.connect(now, &address(to));
        }
        self.flush(from);
    }

    fn leave(&mut self, number: usize) {
        self.nodes[number] = None;
    }

    fn flush(&mut self, number: usize) {
        let (now, now_us) = (self.now(), self.now_us);
        let Some(node) = &mut self.nodes[number] else { return };
        while let Some(event) = node.swarm.live_event() {
            match &event {
                LiveEvent::Tuned(chunk) => node.position = Some(*chunk),
                LiveEvent::Restarted => {
                    node.chunks.clear();
                    (node.position, node.playing, node.joined_us) = (None, None, now_us);
                }
                LiveEvent::Discarded(floor) => node.chunks = node.chunks.split_off(floor),
                LiveEvent::Stale(_) | LiveEvent::Twin(_) => {}
            }
            node.events.push(event);
        }
        let mut found = Vec::new();
        while let Some(event) = node.swarm.event() {
            match event {
                Event::Liar(peer) => node.liars.push(peer),
                Event::Found(address) => found.push(address),
                _ => {}
            }
        }
        for found in found {
            if node.swarm.needs_neighbours() && found != address(number) && !node.is_hidden {
                node.swarm.connect(now, &found);
            }
        }
        while let Some(transmit) = node.swarm.transmit() {
            let mut datagram = transmit.datagram;
            let mut len = datagram.len() as u64 + 28;
            if let Some(chunk) = transmit.chunk {
                assert!(node.swarm.have().contains(chunk), "a chunk is served that is not stored");
                node.sent_chunks += 1;
                len += 1024;
                datagram.extend(&node.chunks[&chunk]);
                if node.lies
                    && let Some(last) = datagram.last_mut()
                {
                    *last ^= 2;
                }
            }
            let free_us = node.uplink_free_us.max(now_us);
            let Some(to) = self.numbers.get(&transmit.peer).copied() else { continue };
            if free_us - now_us > 100_000 || self.rng.f64() < self.loss {
                continue;
            }
            node.uplink_free_us = free_us + len * 8 / node.uplink_mbps;
            let delay_us = 5_000 + (number as u64 * 7919 + to as u64 * 104_729) % 60_000;
            self.count += 1;
            self.wires.push(Reverse((node.uplink_free_us + delay_us, self.count, number, to, datagram)));
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        let now = self.now();
        let node = self.nodes[SOURCE].as_mut().expect("the source");
        let chunk = node.swarm.push(now, bytes).expect("signed");
        node.chunks.insert(chunk, bytes.to_vec());
        self.pushed = chunk + 1;
        self.flush(SOURCE);
    }

    fn run(&mut self, for_us: u64) {
        let end_us = self.now_us + for_us;
        let mut play_us = self.now_us;
        loop {
            let wire_us = self.wires.peek().map_or(u64::MAX, |Reverse(wire)| wire.0);
            let due = self.nodes.iter().enumerate().filter_map(|(number, node)| {
                let node = node.as_ref()?;
                let due = node.swarm.deadline().saturating_duration_since(self.start);
                Some(((due.as_micros() as u64 + 1).max(node.frozen_until_us), number))
            });
            let (due_us, number) = due.min().expect("somebody is there");
            let next_us = wire_us.min(due_us).min(self.push_at_us.unwrap_or(u64::MAX)).min(play_us);
            if next_us > end_us {
                self.now_us = end_us;
                return;
            }
            self.now_us = self.now_us.max(next_us);
            if next_us == play_us {
                play_us += 20_000;
                self.play();
            } else if Some(next_us) == self.push_at_us {
                self.push_at_us = Some(next_us + CHUNK_US);
                self.push(&payload(self.pushed));
            } else if next_us == wire_us {
                let Some(Reverse((_, _, from, to, datagram))) = self.wires.pop() else { return };
                self.deliver(from, to, &datagram);
            } else {
                let now = self.now();
                self.node(number).swarm.poll(now);
                self.flush(number);
            }
        }
    }

    fn deliver(&mut self, from: usize, to: usize, datagram: &[u8]) {
        let now = self.now();
        let now_us = self.now_us;
        let Some(node) = self.nodes[to].as_mut().filter(|node| node.frozen_until_us <= now_us) else { return };
        for (chunk, bytes) in node.swarm.datagram(now, &address(from), datagram).unwrap_or_default() {
            assert!(bytes.is_empty() || *bytes == payload(chunk), "a wrong chunk was handed out");
            node.chunks.insert(chunk, bytes.to_vec());
            node.swarm.stored(chunk);
        }
        node.chunks_max = node.chunks_max.max(node.chunks.len());
        self.flush(to);
    }

    /// Every viewer's player goes on: it begins when a second is there, and then plays at the stream's rate.
    fn play(&mut self) {
        for node in self.nodes.iter_mut().skip(1).flatten() {
            let Some(position) = node.position else { continue };
            let ahead = node.swarm.have().next_clear(position);
            match node.playing {
                None if (ahead - position) * CHUNK_US >= PLAY_AFTER_US => {
                    node.playing = Some((self.now_us, position));
                    node.started_us.get_or_insert(self.now_us - node.joined_us);
                }
                None => {}
                Some((since_us, from)) => {
                    let due = from + (self.now_us - since_us) / CHUNK_US;
                    let made_us = self.began_us + due * CHUNK_US;
                    if due > ahead {
                        node.stalls += 1;
                        node.stalled_us.push(self.now_us / 1000);
                        (node.playing, node.position) = (None, Some(ahead));
                    } else {
                        node.position = Some(due);
                        node.delays_us.push(self.now_us.saturating_sub(made_us));
                    }
                }
            }
        }
    }

    fn print(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            let have = node.swarm.have();
            let delay_us: u64 = node.delays_us.iter().sum::<u64>() / (node.delays_us.len() as u64).max(1);
            println!(
                "{number:>3}: joined {:>5.1} s, started {:?} ms {} peers, position {:?}, ahead {:?}, holes {}, end {}, edge {}, stalls {} {:?}, delay {:.2} s, sent {}, asked {}, wasted {}",
                node.joined_us as f64 / 1e6,
                node.started_us.map(|us| us / 1000),
                node.swarm.peers().count(),
                node.position,
                node.position.map(|position| have.next_clear(position) - position),
                have.runs().count(),
                have.end(),
                node.swarm.live_edge(),
                node.stalls,
                node.stalled_us,
                delay_us as f64 / 1e6,
                node.sent_chunks,
                node.swarm.asked(),
                node.swarm.wasted_bytes() / 8,
            );
        }
    }

    fn mean_delay_s(&self) -> f64 {
        let (sum, count) = self.viewers().flat_map(|node| &node.delays_us).fold((0, 0), |(s, c), d| (s + d, c + 1));
        sum as f64 / f64::from(count.max(1)) / 1e6
    }

    fn copies(&self) -> f64 {
        self.nodes[SOURCE].as_ref().map_or(0.0, |source| source.sent_chunks as f64 / self.pushed as f64)
    }

    fn stalls(&self) -> u32 {
        self.viewers().map(|node| node.stalls).sum()
    }

    fn all_play(&self) -> bool {
        self.viewers().all(|node| node.playing.is_some())
    }
}

/// Fifty viewers, late ones among them; some leave without a word, datagrams are lost.
fn fifty_viewers(seed: u64, loss: f64, leavers: u64) {
    let mut world = World::new(seed, loss, 6);
    world.run(1_000_000);
    for _ in 0..40 {
        world.join(5);
        world.run(100_000);
    }
    for round in 0..10 {
        world.join(5);
        if round < leavers {
            let gone = world.rng.usize(1..=40);
            world.leave(gone);
        }
        world.run(300_000);
    }
    world.run(3_500_000);
    world.print();
    let (stalls, delay_s, copies) = (world.stalls(), world.mean_delay_s(), world.copies());
    let mut starts_ms: Vec<u64> = world.viewers().filter_map(|node| Some(node.started_us? / 1000)).collect();
    starts_ms.sort_unstable();
    let (half, slowest) = (starts_ms[starts_ms.len() / 2], starts_ms[starts_ms.len() - 1]);
    println!(
        "{stalls} stalls, {delay_s:.2} s behind, {copies:.2} copies from the source, start after {half} ms, {slowest} ms at most"
    );
    assert!((stalls > 0 || world.all_play()) && world.viewers().all(|node| node.liars.is_empty()));
    assert!(delay_s < 3.0, "{delay_s:.2} s behind");
    assert!(copies < 3.0, "{copies:.2} copies");
    // Where somebody leaves and his neighbours' requests are lost at once, a picture may stand still.
    assert!(u64::from(stalls) <= leavers, "{stalls} stalls");
    assert!(world.nodes.iter().flatten().all(|node| node.chunks_max as u64 <= WINDOW + PER_SIGNATURE));
}

/// Nobody's picture stands still once it moves, and the source sends three copies at most.
#[test]
fn fifty_viewers_of_a_source_with_three_copies() {
    fifty_viewers(0, 0.0, 0);
}

#[test]
#[ignore = "half a minute"]
fn fifty_viewers_with_losses_and_leavers() {
    for (seed, loss, leavers) in [(1, 0.01, 5), (2, 0.0, 8), (4, 0.005, 3)] {
        fifty_viewers(seed, loss, leavers);
    }
}

/// Who has all the neighbours that it takes tells whoever it refuses of them, and closes then; whoever asked for nobody is told nothing.
/// One that was there for a while makes room, but only for who proved its address.
#[test]
fn a_full_viewer_refuses_with_addresses() {
    let mut world = World::new(7, 0.0, 50);
    let full = world.join(50);
    for _ in 1..VIEWER_CHANNELS_MAX {
        let number = world.join(50);
        world.node(number).is_hidden = true;
        world.connect(number, full);
        world.run(1_000);
    }
    world.run(300_000);
    assert_eq!(world.node(full).swarm.peers().count(), VIEWER_CHANNELS_MAX);
    let call = |world: &mut World, asks: bool| {
        let stranger = address(1000 + usize::from(asks));
        let (now, params) = (world.now(), params(&world.document));
        let swarm = &mut world.node(full).swarm;
        let mut opening = vec![0; 4];
        crate::wire::Opening::encode(
            Dialect::Rfc7574,
            &params.handshake(Dialect::Rfc7574, 9, true, None),
            &mut opening,
        );
        swarm.datagram(now, &stranger, &opening);
        let to_stranger = |swarm: &mut Swarm<SocketAddr>| -> Vec<Vec<u8>> {
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
    assert_eq!(call(&mut world, false), (0, false));
    assert_eq!(call(&mut world, true), (8, false));
    world.run(2_000_000);
    assert!(call(&mut world, true).1, "room is made");
}

/// Viewers whom no other can reach have all of it from the source; the window bounds what anybody keeps; a latecomer starts near the
/// newest chunk.
#[test]
fn viewers_without_neighbours_and_the_window() {
    for seed in 0..3 {
        let mut world = World::new(seed, 0.01, 20);
        world.node(SOURCE).swarm.set_copies(8);
        for _ in 0..3 {
            let number = world.join(5);
            world.node(number).is_hidden = true;
        }
        world.run(14_000_000);
        let late = world.join(5);
        world.node(late).is_hidden = true;
        let edge = world.node(SOURCE).swarm.live_edge();
        world.run(6_000_000);
        world.print();
        // A chunk whose announcement is lost is late: there is nobody else to get it from.
        assert!(world.viewers().all(|node| node.started_us.is_some() && node.stalls <= 4), "{} stalls", world.stalls());
        let began = world.node(late).events.iter().find_map(|event| match event {
            LiveEvent::Tuned(chunk) => Some(*chunk),
            _ => None,
        });
        assert!(began.is_some_and(|began| began + 2_000_000 / CHUNK_US > edge), "{began:?} of {edge}");
        for node in world.nodes.iter().flatten() {
            assert!((1..=WINDOW + PER_SIGNATURE).contains(&(node.chunks_max as u64)), "{}", node.chunks_max);
            let floor = node.swarm.live_edge() - WINDOW;
            assert!(node.swarm.have().next_set(0).is_some_and(|first| first >= floor));
            let live = node.swarm.live.as_ref().expect("live");
            assert!(live.tree().len() as u64 <= WINDOW / PER_SIGNATURE + 1);
        }
    }
}

/// Viewers whose machine was busy elsewhere get what they missed meanwhile: alone with the source, and among others.
#[test]
fn viewers_that_were_frozen_catch_up() {
    for (seed, others) in [(0, 0), (1, 0), (2, 5)] {
        for frozen_ms in [300, 900, 1500, 2500, 4000, 7000] {
            let mut world = World::new(seed, 0.002, 12);
            let number = world.join(5);
            for _ in 0..others {
                world.join(5);
            }
            world.run(4_000_000);
            let now_us = world.now_us;
            world.node(number).frozen_until_us = now_us + frozen_ms * 1000;
            for _ in 0..(frozen_ms / 500 + 12) {
                world.run(500_000);
                // As drivers do: who was named is called again.
                (1..=1 + others).for_each(|viewer| world.connect(viewer, SOURCE));
            }
            let edge = world.node(SOURCE).swarm.live_edge();
            let holes = |node: &Node| {
                let start = node.events.iter().find_map(|event| match event {
                    LiveEvent::Tuned(chunk) => Some(*chunk),
                    _ => None,
                });
                let ahead =
                    node.swarm.have().next_clear(start.unwrap_or(0).max(node.swarm.have().next_set(0).unwrap_or(0)));
                (edge - ahead) * CHUNK_US / 1000
            };
            let behind: Vec<u64> = world.viewers().map(holes).collect();
            assert!(
                behind.iter().all(|behind| *behind < 1500),
                "{behind:?} ms behind after {frozen_ms} ms, seed {seed}"
            );
            println!(
                "frozen for {frozen_ms} ms, seed {seed}, {others} others: behind {behind:?} ms, {:.2} copies",
                world.copies()
            );
        }
    }
}

/// A source that is started again with its key begins anew: viewers find it, forget the old stream, and accuse nobody.
#[test]
fn a_source_that_starts_again() {
    for seed in 0..3 {
        let mut world = World::new(seed, 0.005, 10);
        for _ in 0..6 {
            world.join(5);
        }
        world.run(5_000_000);
        assert!(world.all_play());
        // Killed: nobody is told. It is away for two seconds.
        world.push_at_us = None;
        world.leave(SOURCE);
        world.run(2_000_000);
        let again = world.source();
        let number = world.add(again, 10);
        world.nodes.swap(SOURCE, number);
        world.nodes.truncate(number);
        world.numbers.insert(address(SOURCE), SOURCE);
        world.numbers.remove(&address(number));
        (world.push_at_us, world.pushed, world.began_us) = (Some(world.now_us), 0, world.now_us);
        for _ in 0..12 {
            world.run(1_000_000);
            // As drivers do: who was named is called again.
            (1..number).for_each(|viewer| world.connect(viewer, SOURCE));
        }
        world.print();
        assert!(world.all_play(), "seed {seed}");
        for node in world.viewers() {
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
        let mut world = World::new(seed, 0.005, 10);
        let mut numbers: Vec<usize> = (0..8).map(|_| world.join(5)).collect();
        let liar = numbers.remove(world.rng.usize(..8));
        world.node(liar).lies = true;
        world.run(8_000_000);
        assert!(world.all_play());
        let named: Vec<SocketAddr> = world.viewers().flat_map(|node| node.liars.clone()).collect();
        assert!(!named.is_empty() && named.iter().all(|named| *named == address(liar)), "{named:?}");
    }
}

/// A viewer with one peer, which says what the test wants.
fn viewer(document: &[u8]) -> (Swarm<SocketAddr>, Instant, ChannelId) {
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
    source.push(&HASH.hash(b"one"), NTP + (second << 32)).expect("signed");
    source.push(&HASH.hash(b"other"), NTP + (second << 32)).expect("signed").expect("full").clone()
}

fn say(viewer: &mut Swarm<SocketAddr>, now: Instant, channel: ChannelId, messages: &[Message<'_>]) {
    let codec = viewer.params.codec(Dialect::Rfc7574);
    let mut datagram = channel.to_be_bytes().to_vec();
    messages.iter().for_each(|message| message.encode(&codec, &mut datagram).expect("fits"));
    viewer.datagram(now, &address(1), &datagram);
}

fn liars(viewer: &mut Swarm<SocketAddr>) -> usize {
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
    live::put_munro(&good, &mut messages);
    messages.push(Message::Have(0..1 << 32));
    say(&mut swarm, now, channel, &messages);
    assert_eq!((swarm.live_edge(), swarm.channels[&channel].has.count(), liars(&mut swarm)), (12, 12, 0));
    // One of a stream that ended long ago, further on: nobody's lie, and nothing.
    let old = munro(&document, &document, 500, 990);
    let mut messages = Vec::new();
    live::put_munro(&old, &mut messages);
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
        live::put_munro(&forged, &mut messages);
        say(&mut swarm, now, channel, &messages);
        assert_eq!((swarm.live_edge(), liars(&mut swarm), swarm.peers().count()), (0, 1, 0));
        assert!(!swarm.connect(now, &address(1)), "banned");
    }
    // The source has gone, or a clock is wrong: told once.
    let (mut swarm, now, channel) = viewer(&document);
    let stale = munro(&document, &document, 5, 1000 - crate::merkle::STALE_AFTER_S - 1);
    let mut messages = Vec::new();
    live::put_munro(&stale, &mut messages);
    (0..3).for_each(|_| say(&mut swarm, now, channel, &messages));
    let told: Vec<_> = std::iter::from_fn(|| swarm.live_event()).collect();
    assert_eq!((told, swarm.live_edge()), (vec![LiveEvent::Stale(address(1))], 0));
}

/// Two sources with one key: whoever hears of the other says so.
#[test]
fn a_twin_of_the_source_is_told_of() {
    let mut world = World::new(0, 0.0, 10);
    world.run(2_000_000);
    let now = world.now();
    let document = world.document.clone();
    let later = munro(&document, &document, 90, 500);
    let mut messages = Vec::new();
    let source = &mut world.node(SOURCE).swarm;
    let mut opening = vec![0; 4];
    crate::wire::Opening::encode(
        Dialect::Rfc7574,
        &params(&document).handshake(Dialect::Rfc7574, 9, true, None),
        &mut opening,
    );
    source.datagram(now, &address(1), &opening);
    let channel = *source.channels.keys().next().expect("one");
    live::put_munro(&later, &mut messages);
    (0..2).for_each(|_| say(source, now, channel, &messages));
    assert_eq!(source.live_event(), Some(LiveEvent::Twin(address(1))));
    assert_eq!((source.live_event(), liars(source)), (None, 0));
}
