//! A live swarm in virtual time: drivers and players that are as small as can be, and wires that delay, lose and queue.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use super::*;
use crate::hash::HashFunction;
use crate::merkle::ChunkSignature;
use crate::sign::{SignatureAlgorithm, SigningKey};
use crate::wire::{Addressing, Integrity, Message};

pub(super) const HASH: HashFunction = HashFunction::Sha256;
/// Chunks count as 1 KiB on the wires; those here are shorter.
pub(super) const CHUNK_LEN: u64 = 1024;
pub(super) const PER_SIGNATURE: u64 = 16;
/// Ten seconds of 2 Mbit/s.
pub(super) const WINDOW: u64 = 2448;
/// What a player wants in its buffer before it begins, and after a stall.
const BUFFER_US: u64 = 500_000;
const BUFFER_AGAIN_US: u64 = 1_000_000;
/// What an uplink's queue holds: what comes when it is full is lost.
const QUEUE_US: u64 = 100_000;
pub(super) const NTP: u64 = 3_900_000_000 << 32;

/// Bytes of those: more than a signature has.
pub(super) const PAYLOAD_LEN: usize = 72;

pub(super) fn payload(chunk: u64) -> [u8; PAYLOAD_LEN] {
    let word = (chunk.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1).to_be_bytes();
    std::array::from_fn(|at| word[at % word.len()])
}

pub(super) fn address(number: usize) -> PathAddress {
    PathAddress { remote: SocketAddr::from(([10, 1, (number >> 8) as u8, number as u8], 7000)), path: 0 }
}

/// A peer over one of the paths to it; each is 10 ms longer than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PathAddress {
    remote: SocketAddr,
    path: u8,
}

impl PathAddress {
    /// The same peer over another path.
    pub(super) fn over(self, path: u8) -> Self {
        Self { path, ..self }
    }

    /// Another peer at the same host.
    pub(super) fn at_port(self, port: u16) -> Self {
        Self { remote: SocketAddr::new(self.remote.ip(), port), ..self }
    }
}

impl PeerAddress for PathAddress {
    fn told_to(&self, _: &Self) -> Option<SocketAddr> {
        Some(self.remote)
    }

    fn is_same_peer(&self, other: &Self) -> bool {
        self.remote == other.remote
    }

    fn is_same_host(&self, other: &Self) -> bool {
        self.remote.is_same_host(&other.remote)
    }
}

pub(super) fn document() -> Vec<u8> {
    SigningKey::generate(SignatureAlgorithm::EcdsaP256Sha256).expect("random")
}

pub(super) fn key(document: &[u8]) -> SigningKey {
    SigningKey::from_pkcs8(SignatureAlgorithm::EcdsaP256Sha256, document).expect("just made")
}

pub(super) fn params(document: &[u8]) -> SwarmParams {
    params_of(document, Integrity::UnifiedMerkleTree)
}

pub(super) fn params_of(document: &[u8], integrity: Integrity) -> SwarmParams {
    let id = key(document).public().swarm_id().to_vec();
    SwarmParams::new(&id, integrity, HASH, Addressing::Chunks32, None).expect("a swarm")
}

/// What a node makes of what it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lie {
    /// It changes chunks.
    Chunk,
    /// It changes signatures.
    Signature,
    /// It sends with each chunk the signature of the one that it sent before.
    OfAnother,
    /// It sends with each chunk what its source signed under that number a minute before.
    OfOldStream,
    /// It sends no signatures.
    Unsigned,
}

/// When it arrives, its number, from whom, to whom, over which path, and its bytes.
type Flying = (u64, u64, usize, usize, u8, Vec<u8>);

pub(super) struct Node {
    pub(super) swarm: Swarm<PathAddress>,
    pub(super) chunks: BTreeMap<u64, Vec<u8>>,
    pub(super) uplink_mbps: u64,
    pub(super) uplink_free_us: u64,
    pub(super) joined_us: u64,
    /// Nobody can call it.
    pub(super) is_hidden: bool,
    pub(super) lie: Option<Lie>,
    /// The signature that a liar sent last.
    signature_before: Option<(u64, Vec<u8>)>,
    /// When it wants to be polled.
    due_us: u64,
    /// Datagrams that found its uplink's queue full.
    pub(super) overflowed: u64,
    /// Bytes of datagrams with a chunk, without the chunk, and of those without one.
    pub(super) beside_bytes: u64,
    pub(super) control_bytes: u64,
    /// Its machine is busy elsewhere until then: it neither hears nor says anything.
    pub(super) frozen_until_us: u64,
    pub(super) events: Vec<LiveEvent<PathAddress>>,
    pub(super) liars: Vec<PathAddress>,
    pub(super) sent_chunks: u64,
    pub(super) chunks_max: usize,
    // ---- the player ----
    pub(super) position: Option<u64>,
    /// It does not begin before.
    play_at_us: u64,
    /// When what stream time began to play.
    pub(super) playing: Option<(u64, u64)>,
    pub(super) stalls: u32,
    pub(super) started_us: Option<u64>,
    pub(super) stalled_us: Vec<u64>,
    /// How far behind the source it plays, once it does.
    pub(super) delays_us: Vec<u64>,
    /// How long chunks took from the source to it that were made after it began, in milliseconds.
    pub(super) lags_ms: Vec<u16>,
    began_at: Option<u64>,
}

impl Node {
    /// What happened in the stream.
    fn heed(&mut self, now_us: u64) {
        while let Some(event) = self.swarm.live_event() {
            match &event {
                LiveEvent::Tuned(chunk) => {
                    (self.position, self.began_at) = (Some(*chunk), Some(self.swarm.live_edge()));
                    self.play_at_us = now_us + self.swarm.live_hold(*chunk).as_micros() as u64;
                }
                LiveEvent::Restarted => {
                    self.chunks.clear();
                    (self.position, self.playing, self.joined_us) = (None, None, now_us);
                }
                LiveEvent::Discarded(floor) => self.chunks = self.chunks.split_off(floor),
                LiveEvent::Stale(_) | LiveEvent::Twin(_) => {}
            }
            self.events.push(event);
        }
    }

    /// Changes what it sends.
    fn twist(&mut self, lie: Lie, key: &SigningKey, datagram: &mut Vec<u8>) {
        let codec = self.swarm.params.codec(Dialect::Rfc7574);
        let Some((channel, messages)) = crate::wire::split_channel(datagram).filter(|(channel, _)| *channel != 0)
        else {
            return;
        };
        let mut twisted = channel.to_be_bytes().to_vec();
        for message in crate::wire::Messages::new(codec, messages) {
            let Ok(mut message) = message else { return };
            let (mut bytes, mut is_left_out) = (Vec::new(), false);
            match &mut message {
                Message::Data { payload, .. } if lie == Lie::Chunk && !payload.is_empty() => {
                    bytes.extend_from_slice(payload);
                    bytes[payload.len() - 1] ^= 2;
                    *payload = &bytes;
                }
                Message::SignedIntegrity { node, ntp, signature } => {
                    bytes.extend_from_slice(signature);
                    let sent = (*ntp, bytes.clone());
                    match lie {
                        Lie::Chunk => {}
                        Lie::Signature => bytes[9] ^= 4,
                        Lie::Unsigned => is_left_out = true,
                        Lie::OfAnother => {
                            (*ntp, bytes) = self.signature_before.clone().unwrap_or((*ntp, bytes));
                            self.signature_before = Some(sent);
                        }
                        Lie::OfOldStream => {
                            *ntp -= 60 << 32;
                            let chunk = node.start();
                            let old = ChunkSignature::make(key, &codec, chunk, *ntp, &payload(chunk));
                            bytes = old.expect("signed").signature.into();
                        }
                    }
                    *signature = &bytes;
                }
                _ => {}
            }
            if !is_left_out {
                message.encode(&codec, &mut twisted).expect("as long as before");
            }
        }
        *datagram = twisted;
    }
}

pub(super) struct LiveSim {
    pub(super) integrity: Integrity,
    pub(super) document: Vec<u8>,
    pub(super) start: Instant,
    pub(super) now_us: u64,
    pub(super) nodes: Vec<Option<Node>>,
    pub(super) numbers: HashMap<PathAddress, usize>,
    pub(super) wires: BinaryHeap<Reverse<Flying>>,
    pub(super) count: u64,
    /// Looks at a core that nothing but time had come to.
    pub(super) looks: u64,
    pub(super) rng: fastrand::Rng,
    pub(super) loss: f64,
    /// Time from one chunk to the next.
    pub(super) chunk_us: u64,
    /// The source's next chunk; `None` while it is silent.
    pub(super) push_at_us: Option<u64>,
    pub(super) pushed: u64,
    /// Chunk `c` of this stream was made at `began_us + c * chunk_us`.
    pub(super) began_us: u64,
}

pub(super) const SOURCE: usize = 0;

impl LiveSim {
    /// A source of 2 Mbit/s.
    pub(super) fn new(seed: u64, loss: f64, uplink_mbps: u64) -> Self {
        println!("seed {seed}");
        Self::with_stream(seed, loss, uplink_mbps, 2)
    }

    /// The same, each of whose chunks is signed.
    pub(super) fn sign_all(seed: u64, loss: f64, uplink_mbps: u64) -> Self {
        println!("seed {seed}");
        Self::of(Integrity::SignAll, seed, loss, uplink_mbps, 2)
    }

    /// A source of so many Mbit/s.
    pub(super) fn with_stream(seed: u64, loss: f64, uplink_mbps: u64, stream_mbps: u64) -> Self {
        Self::of(Integrity::UnifiedMerkleTree, seed, loss, uplink_mbps, stream_mbps)
    }

    pub(super) fn of(integrity: Integrity, seed: u64, loss: f64, uplink_mbps: u64, stream_mbps: u64) -> Self {
        let mut sim = Self {
            integrity,
            document: document(),
            start: Instant::now(),
            now_us: 0,
            nodes: Vec::new(),
            numbers: HashMap::new(),
            wires: BinaryHeap::new(),
            count: 0,
            looks: 0,
            rng: fastrand::Rng::with_seed(seed),
            loss,
            chunk_us: CHUNK_LEN * 8 / stream_mbps,
            push_at_us: Some(0),
            pushed: 0,
            began_us: 0,
        };
        let source = sim.source();
        sim.add(source, uplink_mbps);
        sim
    }

    pub(super) fn now(&self) -> Instant {
        self.start + Duration::from_micros(self.now_us)
    }

    pub(super) fn ntp(&self) -> u64 {
        NTP + live::ntp_of(Duration::from_micros(self.now_us))
    }

    pub(super) fn source(&mut self) -> Swarm<PathAddress> {
        let seed = self.rng.u64(..);
        let times = (WINDOW, self.ntp());
        let params = params_of(&self.document, self.integrity);
        let per_signature = if self.integrity == Integrity::SignAll { 1 } else { PER_SIGNATURE };
        Swarm::source(params, key(&self.document), per_signature, times, (Mode::Fast, seed), self.now()).expect("fine")
    }

    pub(super) fn add(&mut self, swarm: Swarm<PathAddress>, uplink_mbps: u64) -> usize {
        let number = self.nodes.len();
        self.nodes.push(Some(Node {
            swarm,
            chunks: BTreeMap::new(),
            uplink_mbps,
            uplink_free_us: 0,
            joined_us: self.now_us,
            is_hidden: false,
            lie: None,
            signature_before: None,
            due_us: self.now_us,
            overflowed: 0,
            beside_bytes: 0,
            control_bytes: 0,
            frozen_until_us: 0,
            events: Vec::new(),
            liars: Vec::new(),
            sent_chunks: 0,
            chunks_max: 0,
            position: None,
            play_at_us: 0,
            playing: None,
            stalls: 0,
            started_us: None,
            stalled_us: Vec::new(),
            delays_us: Vec::new(),
            lags_ms: Vec::new(),
            began_at: None,
        }));
        self.numbers.insert(address(number), number);
        number
    }

    /// A viewer who knows the source alone, as its link says.
    pub(super) fn join(&mut self, uplink_mbps: u64) -> usize {
        self.join_at(SOURCE, uplink_mbps)
    }

    /// A viewer who knows somebody else alone.
    pub(super) fn join_at(&mut self, to: usize, uplink_mbps: u64) -> usize {
        let (seed, ntp, now) = (self.rng.u64(..), self.ntp(), self.now());
        let params = params_of(&self.document, self.integrity);
        let swarm = Swarm::viewer(params, WINDOW, ntp, Mode::Fast, seed, now).expect("signed");
        let number = self.add(swarm, uplink_mbps);
        self.node(number).swarm.pin(&address(to));
        self.connect(number, to);
        number
    }

    pub(super) fn node(&mut self, number: usize) -> &mut Node {
        self.nodes[number].as_mut().expect("it is there")
    }

    pub(super) fn viewers(&self) -> impl Iterator<Item = &Node> {
        self.nodes[1..].iter().flatten().filter(|node| node.lie.is_none())
    }

    pub(super) fn connect(&mut self, from: usize, to: usize) {
        let now = self.now();
        if let Some(node) = &mut self.nodes[from] {
            node.swarm.connect(now, &address(to));
        }
        self.flush(from);
    }

    pub(super) fn leave(&mut self, number: usize) {
        self.nodes[number] = None;
    }

    pub(super) fn flush(&mut self, number: usize) {
        let (now, now_us) = (self.now(), self.now_us);
        let Some(node) = &mut self.nodes[number] else { return };
        node.heed(now_us);
        let mut found = Vec::new();
        while let Some(event) = node.swarm.event() {
            match event {
                Event::Liar(peer) => node.liars.push(peer),
                Event::Found { address: remote, .. } => found.push(PathAddress { remote, path: 0 }),
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
                len += CHUNK_LEN;
                datagram.extend(&node.chunks[&chunk]);
            }
            if let Some(lie) = node.lie {
                node.twist(lie, &key(&self.document), &mut datagram);
            }
            match transmit.chunk {
                Some(_) => node.beside_bytes += len - CHUNK_LEN,
                None => node.control_bytes += len,
            }
            let free_us = node.uplink_free_us.max(now_us);
            let Some(to) = self.numbers.get(&transmit.peer.over(0)).copied() else { continue };
            if free_us - now_us > QUEUE_US {
                node.overflowed += 1;
                continue;
            }
            if self.rng.f64() < self.loss {
                continue;
            }
            node.uplink_free_us = free_us + len * 8 / node.uplink_mbps;
            let delay_us = 5_000 + (number as u64 * 7919 + to as u64 * 104_729) % 60_000;
            let path = transmit.peer.path;
            let at_us = node.uplink_free_us + delay_us + u64::from(path) * 10_000;
            self.count += 1;
            self.wires.push(Reverse((at_us, self.count, number, to, path, datagram)));
        }
        node.due_us = node.swarm.deadline().saturating_duration_since(self.start).as_micros() as u64 + 1;
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let now = self.now();
        let node = self.nodes[SOURCE].as_mut().expect("the source");
        let chunk = node.swarm.push(now, bytes).expect("signed");
        node.chunks.insert(chunk, bytes.to_vec());
        self.pushed = chunk + 1;
        self.flush(SOURCE);
    }

    /// So many chunks at once.
    pub(super) fn burst(&mut self, chunks: u64) {
        (0..chunks).for_each(|_| self.push(&payload(self.pushed)));
    }

    pub(super) fn run(&mut self, for_us: u64) {
        let end_us = self.now_us + for_us;
        let mut play_us = self.now_us;
        loop {
            let wire_us = self.wires.peek().map_or(u64::MAX, |Reverse(wire)| wire.0);
            let due = self.nodes.iter().enumerate().filter_map(|(number, node)| {
                let node = node.as_ref()?;
                Some((node.due_us.max(node.frozen_until_us), number))
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
                self.push_at_us = Some(next_us + self.chunk_us);
                self.push(&payload(self.pushed));
            } else if next_us == wire_us {
                let Some(Reverse((_, _, from, to, path, datagram))) = self.wires.pop() else { return };
                self.deliver(address(from).over(path), to, &datagram);
            } else {
                let now = self.now();
                self.node(number).swarm.poll(now);
                self.looks += 1;
                self.flush(number);
            }
        }
    }

    pub(super) fn deliver(&mut self, from: PathAddress, to: usize, datagram: &[u8]) {
        let now = self.now();
        let now_us = self.now_us;
        let Some(node) = self.nodes[to].as_mut().filter(|node| node.frozen_until_us <= now_us) else { return };
        let chunks = node.swarm.datagram(now, &from, datagram).unwrap_or_default();
        node.heed(now_us);
        for (chunk, bytes) in chunks {
            assert!(bytes.is_empty() || *bytes == payload(chunk), "a wrong chunk was handed out");
            node.chunks.insert(chunk, bytes.to_vec());
            node.swarm.stored(chunk);
            if node.began_at.is_some_and(|edge| chunk >= edge) {
                let lag_us = now_us.saturating_sub(self.began_us.wrapping_add(chunk * self.chunk_us));
                node.lags_ms.push(u16::try_from(lag_us / 1000).unwrap_or(u16::MAX));
            }
        }
        node.chunks_max = node.chunks_max.max(node.chunks.len());
        self.flush(to);
    }

    /// Every viewer's player goes on. It begins some time behind the source, and after a stall with a second in its buffer.
    fn play(&mut self) {
        let (now_us, chunk_us, began_us) = (self.now_us, self.chunk_us, self.began_us);
        for node in self.nodes.iter_mut().skip(1).flatten() {
            let Some(position) = node.position else { continue };
            let ahead = node.swarm.have().next_clear(position);
            let buffered_us = (ahead - position) * chunk_us;
            match node.playing {
                None => {
                    let is_first = node.started_us.is_none();
                    let is_time = !is_first || now_us >= node.play_at_us;
                    if is_time && buffered_us >= if is_first { BUFFER_US } else { BUFFER_AGAIN_US } {
                        node.playing = Some((now_us, position));
                        node.started_us.get_or_insert(now_us - node.joined_us);
                    }
                }
                Some((since_us, from)) => {
                    let due = from + (now_us - since_us) / chunk_us;
                    if due > ahead {
                        node.stalls += 1;
                        node.stalled_us.push(now_us / 1000);
                        (node.playing, node.position) = (None, Some(ahead));
                    } else {
                        node.position = Some(due);
                        node.delays_us.push(now_us.saturating_sub(began_us.wrapping_add(due * chunk_us)));
                    }
                }
            }
        }
    }

    pub(super) fn print(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            let have = node.swarm.have();
            let delay_us: u64 = node.delays_us.iter().sum::<u64>() / (node.delays_us.len() as u64).max(1);
            println!(
                "{number:>3}: joined {:>5.1} s, started {:?} ms {} peers, position {:?}, ahead {:?}, holes {}, end {}, edge {}, stalls {} {:?}, delay {:.2} s, sent {}, asked {}, wasted {}, overflowed {}",
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
                node.swarm.wasted_bytes() / PAYLOAD_LEN as u64,
                node.overflowed,
            );
        }
    }

    pub(super) fn mean_delay_s(&self) -> f64 {
        let (sum, count) = self.viewers().flat_map(|node| &node.delays_us).fold((0, 0), |(s, c), d| (s + d, c + 1));
        sum as f64 / f64::from(count.max(1)) / 1e6
    }

    pub(super) fn copies(&self) -> f64 {
        self.nodes[SOURCE].as_ref().map_or(0.0, |source| source.sent_chunks as f64 / self.pushed as f64)
    }

    pub(super) fn stalls(&self) -> u32 {
        self.viewers().map(|node| node.stalls).sum()
    }

    pub(super) fn all_play(&self) -> bool {
        self.viewers().all(|node| node.playing.is_some())
    }
}
