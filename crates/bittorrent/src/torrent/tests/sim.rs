//! Torrents joined by links of a rate and a latency, with a clock of their own. Bytes are real: handshakes, messages through
//! [`Receiver`], content that is hashed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anabranch_content::bitfield::Bitfield;
use anabranch_content::create::{CreateOptions, create};
use anabranch_content::geometry::BLOCK_LEN;
use anabranch_content::hash::sha1;
use anabranch_content::info::{Info, Version};
use anabranch_content::merkle;
use anabranch_content::metainfo::{Metainfo, PieceLayers};
use anabranch_paths::Endpoint;

use super::lone::path_id;
use crate::ConnId;
use crate::handshake::{Handshake, Reserved};
use crate::requests::blocks_of;
use crate::torrent::{Arriving, Event, Link, PieceOutcome, Torrent, TorrentConfig};
use crate::wire::{self, BlockRange, Message, Receiver, piece_header};

/// A content: what it is, and its bytes in piece space, padding included.
pub(super) struct Content {
    pub info: Arc<Info>,
    pub layers: PieceLayers,
    pub data: Vec<u8>,
}

impl Content {
    /// Files of these lengths, with bytes that follow from them.
    pub(super) fn new(version: Version, piece_length: u32, lengths: &[usize], private: bool) -> Arc<Self> {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let parent = std::env::temp_dir().join(format!("anabranch-sim-{}-{number}", std::process::id()));
        let root = parent.join("content");
        std::fs::create_dir_all(&root).unwrap();
        let mut rng = fastrand::Rng::with_seed(lengths.len() as u64 + u64::from(piece_length));
        for (at, length) in lengths.iter().enumerate() {
            let bytes: Vec<u8> = (0..*length).map(|_| rng.u8(..)).collect();
            std::fs::write(root.join(format!("file{at}")), bytes).unwrap();
        }
        let options = CreateOptions { version, piece_length: Some(piece_length), private, ..CreateOptions::default() };
        let created = create(&root, &options, &AtomicBool::new(false), |_, _| {}).unwrap();
        let metainfo = Metainfo::parse(&created.metainfo).unwrap();
        let mut data = vec![0; metainfo.info.geometry.total() as usize];
        for file in metainfo.info.files.iter().filter(|file| file.is_regular()) {
            // A folder of one file is a torrent of one file for some formats.
            let bytes = std::fs::read(parent.join(&file.path)).or_else(|_| std::fs::read(root.join(&file.path)));
            let bytes = bytes.unwrap();
            data[file.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        std::fs::remove_dir_all(&parent).unwrap();
        Arc::new(Self { info: metainfo.info, layers: metainfo.piece_layers, data })
    }

    /// One v1 file.
    pub(super) fn v1(piece_length: u32, length: usize) -> Arc<Self> {
        Self::new(Version::V1, piece_length, &[length], false)
    }

    pub(super) fn pieces(&self) -> u32 {
        self.info.geometry.piece_count()
    }
}

/// What a node gets wrong on purpose.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    Honest,
    /// Flips a byte in every so many blocks it sends.
    Liar(u32),
    /// Its answers are wrong from this one on: its file is edited.
    Edited(u32),
    /// Unchokes and answers no request.
    Mute,
}

pub(super) struct Node {
    pub torrent: Torrent,
    pub config: TorrentConfig,
    pub manner: Manner,
    /// Bytes per second.
    pub up_rate: u64,
    up_free_at: Instant,
    data: Vec<u8>,
    /// Blocks that lie in `data` and wait for their piece.
    blocks: HashSet<(u32, u32)>,
    verifying: VecDeque<(Instant, u32)>,
    pub finished: bool,
    pub banned: Vec<String>,
    pub suspended: Vec<String>,
    pub peers_heard: Vec<anabranch_paths::Endpoint>,
    pub closed: Vec<String>,
    pub metadata: bool,
    pub room: u64,
    sent_blocks: u32,
}

struct Side {
    node: usize,
    id: ConnId,
    other: usize,
    receiver: Receiver,
    current: Option<(Arriving, Vec<u8>)>,
    in_flight: VecDeque<(Instant, Vec<u8>)>,
    arrival_last: Instant,
    latency: Duration,
    open: bool,
    /// The other end closed: it ends when what was on its way has arrived.
    ending: bool,
}

/// The whole.
pub(super) struct Sim {
    pub now: Instant,
    pub start: Instant,
    pub content: Arc<Content>,
    pub nodes: Vec<Node>,
    sides: Vec<Side>,
    by_conn: HashMap<(usize, ConnId), usize>,
    /// Every request that arrived: by whom, of whom, and what.
    pub requests: Vec<(usize, usize, BlockRange)>,
    turn: usize,
    seed: u64,
}

/// Steps of one run at most: far more than any test needs.
const STEPS_MAX: usize = 3_000_000;

impl Sim {
    pub(super) fn new(content: &Arc<Content>, seed: u64) -> Self {
        let now = Instant::now();
        Self {
            now,
            start: now,
            content: Arc::clone(content),
            nodes: Vec::new(),
            sides: Vec::new(),
            by_conn: HashMap::new(),
            requests: Vec::new(),
            turn: 0,
            seed,
        }
    }

    /// A node that knows nothing but the info-hashes.
    pub(super) fn magnet(&mut self, up_rate: u64) -> usize {
        let number = self.nodes.len() as u8 + 1;
        let config = TorrentConfig {
            peer_id: [number; 20],
            listen_port: Some(6000 + u16::from(number)),
            client: format!("node {number}"),
            choker: crate::choker::Config {
                upload_limit_bytes: Some(up_rate),
                seed_quantum_bytes: 4 * u64::from(self.content.info.geometry.piece_length()),
                ..crate::choker::Config::default()
            },
            seed: self.seed * 1000 + u64::from(number),
            ..TorrentConfig::default()
        };
        let mut torrent = Torrent::new(self.content.info.hashes, config.clone(), self.now);
        torrent.set_identity_secret([number; 32]);
        self.nodes.push(Node {
            torrent,
            config,
            manner: Manner::Honest,
            up_rate,
            up_free_at: self.now,
            data: vec![0; self.content.data.len()],
            blocks: HashSet::new(),
            verifying: VecDeque::new(),
            finished: false,
            banned: Vec::new(),
            suspended: Vec::new(),
            peers_heard: Vec::new(),
            closed: Vec::new(),
            metadata: false,
            room: u64::MAX,
            sent_blocks: 0,
        });
        self.nodes.len() - 1
    }

    pub(super) fn give_content(&mut self, node: usize, have: Bitfield, layers: bool) {
        let info = Arc::clone(&self.content.info);
        for piece in have.iter_ones() {
            let start = info.geometry.piece_offset(piece) as usize;
            let end = start + info.geometry.piece_len(piece) as usize;
            self.nodes[node].data[start..end].copy_from_slice(&self.content.data[start..end]);
        }
        let layers = if layers { self.content.layers.clone() } else { HashMap::new() };
        self.nodes[node].torrent.set_content(info, layers, have, Vec::new(), self.now);
    }

    pub(super) fn seed(&mut self, up_rate: u64) -> usize {
        let node = self.magnet(up_rate);
        self.give_content(node, Bitfield::full(self.content.pieces()), true);
        node
    }

    pub(super) fn leecher(&mut self, up_rate: u64) -> usize {
        let node = self.magnet(up_rate);
        self.give_content(node, Bitfield::new(self.content.pieces()), true);
        node
    }

    /// Joins two nodes; `from` dials.
    pub(super) fn connect(&mut self, from: usize, to: usize, latency: Duration) {
        self.connect_with(from, to, latency, Reserved::OURS.with_v2());
    }

    pub(super) fn connect_with(&mut self, from: usize, to: usize, latency: Duration, reserved: Reserved) {
        self.connect_over(from, to, latency, reserved, (None, false));
    }

    /// Joins two nodes over a path of this number. Every path has addresses of its own at both ends.
    pub(super) fn connect_path(&mut self, from: usize, to: usize, latency: Duration, path: u16) {
        self.connect_over(from, to, latency, Reserved::OURS.with_v2(), (Some(path), false));
    }

    /// Joins two nodes of one network.
    pub(super) fn connect_near(&mut self, from: usize, to: usize, latency: Duration) {
        self.connect_over(from, to, latency, Reserved::OURS.with_v2(), (None, true));
    }

    fn connect_over(
        &mut self,
        from: usize,
        to: usize,
        latency: Duration,
        reserved: Reserved,
        (path, is_near): (Option<u16>, bool),
    ) {
        let network = path.unwrap_or(0);
        let address = |node: usize, port: u16| -> Endpoint { format!("10.{network}.{node}.1:{port}").parse().unwrap() };
        let info_hash = self.content.info.hashes.wire_hashes().next().unwrap();
        let mut ids = [ConnId(0); 2];
        for (at, (own, other)) in [(from, to), (to, from)].into_iter().enumerate() {
            let hello = Handshake { reserved, info_hash, peer_id: self.nodes[other].config.peer_id };
            let theirs = Handshake::parse(&hello.encode()).unwrap().unwrap();
            let port = if at == 0 { self.nodes[other].config.listen_port.unwrap() } else { 50_000 };
            let local = Some(address(own, 0).ip());
            let path = path.map(path_id);
            let link = Link {
                address: address(other, port),
                outgoing: at == 0,
                path,
                key: None,
                local,
                over_utp: false,
                is_near,
            };
            ids[at] = self.nodes[own].torrent.connected_over(link, &theirs, self.now).unwrap();
        }
        let first = self.sides.len();
        for (at, node) in [from, to].into_iter().enumerate() {
            self.by_conn.insert((node, ids[at]), first + at);
            self.sides.push(Side {
                node,
                id: ids[at],
                other: first + 1 - at,
                receiver: Receiver::default(),
                current: None,
                in_flight: VecDeque::new(),
                arrival_last: self.now,
                latency,
                open: true,
                ending: false,
            });
        }
    }

    pub(super) fn connect_all(&mut self, latency: Duration) {
        for from in 0..self.nodes.len() {
            (0..from).for_each(|to| self.connect(from, to, latency));
        }
    }

    /// Joins every two nodes over so many paths, each as much longer than the one before.
    pub(super) fn connect_all_over(&mut self, paths: u16, latency: Duration) {
        for from in 0..self.nodes.len() {
            for to in 0..from {
                (1..=paths).for_each(|path| self.connect_path(from, to, latency * u32::from(path), path));
            }
        }
    }

    /// Cuts every connection of a node.
    pub(super) fn cut(&mut self, node: usize) {
        let sides: Vec<usize> = (0..self.sides.len()).filter(|side| self.sides[*side].node == node).collect();
        sides.into_iter().for_each(|side| self.close(side));
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// Runs until `done` or until `limit` has passed; answers whether it was `done`.
    pub(super) fn run(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + limit;
        (0..self.nodes.len()).for_each(|node| self.settle(node));
        for _ in 0..STEPS_MAX {
            if done(self) {
                return true;
            }
            let next = self.next_time();
            if next > end {
                self.now = end;
                return done(self);
            }
            self.now = self.now.max(next);
            self.step();
        }
        panic!("seed {}: no end after {STEPS_MAX} steps, {:?}", self.seed, self.elapsed());
    }

    pub(super) fn run_to_completion(&mut self, limit: Duration) {
        let done = self.run(limit, |sim| sim.nodes.iter().all(|node| node.manner != Manner::Honest || node.finished));
        let have = |node: &Node| node.torrent.have().map_or(0, Bitfield::count);
        let state: Vec<u32> = self.nodes.iter().map(have).collect();
        assert!(
            done,
            "seed {}: after {:?} pieces are {state:?} of {}",
            self.seed,
            self.elapsed(),
            self.content.pieces()
        );
        for node in self.nodes.iter().filter(|node| node.manner == Manner::Honest) {
            assert!(node.data == self.content.data, "seed {}: bytes differ", self.seed);
        }
    }

    fn next_time(&self) -> Instant {
        let far = self.now + Duration::from_secs(3600);
        let arrivals = self.sides.iter().filter(|side| side.open).filter_map(|side| Some(side.in_flight.front()?.0));
        let clocks = self.nodes.iter().filter_map(|node| node.torrent.next_deadline());
        let verdicts = self.nodes.iter().filter_map(|node| Some(node.verifying.front()?.0));
        let waiting = |side: &&Side| {
            let node = &self.nodes[side.node];
            side.open && node.manner != Manner::Mute && node.torrent.peek_upload(side.id).is_some()
        };
        let senders = self.sides.iter().filter(waiting).map(|side| self.nodes[side.node].up_free_at);
        arrivals.chain(clocks).chain(verdicts).chain(senders).min().unwrap_or(far)
    }

    fn step(&mut self) {
        for side in 0..self.sides.len() {
            while self.sides[side].open && self.sides[side].in_flight.front().is_some_and(|(at, _)| *at <= self.now) {
                let (_, bytes) = self.sides[side].in_flight.pop_front().unwrap();
                self.arrive(side, &bytes);
            }
            if self.sides[side].open && self.sides[side].ending && self.sides[side].in_flight.is_empty() {
                self.close(side);
            }
        }
        for node in 0..self.nodes.len() {
            if self.nodes[node].torrent.next_deadline().is_some_and(|at| at <= self.now) {
                self.update_room(node);
                self.nodes[node].torrent.on_time(self.now);
                let next = self.nodes[node].torrent.next_deadline();
                assert!(next.is_none_or(|next| next > self.now), "a busy loop");
                self.settle(node);
            }
            while self.nodes[node].verifying.front().is_some_and(|(at, _)| *at <= self.now) {
                let (_, piece) = self.nodes[node].verifying.pop_front().unwrap();
                self.verify(node, piece);
            }
            self.upload(node);
        }
    }

    fn update_room(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        node.torrent.set_room(node.room.saturating_sub(node.torrent.requested_bytes()));
    }

    fn arrive(&mut self, at: usize, mut input: &[u8]) {
        let node = self.sides[at].node;
        let limits = self.nodes[node].torrent.wire_limits();
        let mut receiver = std::mem::take(&mut self.sides[at].receiver);
        loop {
            let id = self.sides[at].id;
            match receiver.next(&mut input, &limits) {
                Ok(None) => break,
                Ok(Some(wire::Event::Message(message))) => {
                    if let Message::Request(range) = message {
                        let by = self.sides[self.sides[at].other].node;
                        self.requests.push((by, node, range));
                    }
                    if let Err(fault) = self.nodes[node].torrent.on_message(id, message, self.now) {
                        panic!("seed {}: node {node} blames its peer: {fault}", self.seed);
                    }
                }
                Ok(Some(wire::Event::BlockStart(range))) => {
                    let arriving = self.nodes[node].torrent.block_started(id, range, self.now).unwrap();
                    self.sides[at].current = Some((arriving, Vec::new()));
                }
                Ok(Some(wire::Event::BlockData(data))) => {
                    self.sides[at].current.as_mut().unwrap().1.extend_from_slice(data);
                    self.nodes[node].torrent.payload_received(id, data.len() as u64, self.now);
                }
                Ok(Some(wire::Event::BlockEnd)) => self.block_end(at),
                Err(error) => panic!("seed {}: {error}", self.seed),
            }
        }
        self.sides[at].receiver = receiver;
        self.update_room(node);
        let id = self.sides[at].id;
        self.nodes[node].torrent.fill_requests(id, self.now);
        let outstanding = self.nodes[node].torrent.requested_bytes();
        assert!(outstanding <= self.nodes[node].room, "{outstanding} bytes are requested");
        self.settle(node);
    }

    fn block_end(&mut self, at: usize) {
        let (arriving, payload) = self.sides[at].current.take().unwrap();
        let Node { torrent, data, blocks, .. } = &mut self.nodes[self.sides[at].node];
        let wanted = arriving.is_wanted();
        torrent.block_finished(arriving, self.now, |range| {
            if wanted {
                let start = self.content.info.geometry.piece_offset(range.piece) as usize + range.begin as usize;
                data[start..start + payload.len()].copy_from_slice(&payload);
                for block in blocks_of(range) {
                    assert!(blocks.insert((block.piece, block.block)), "a block is kept that was here");
                }
            }
            wanted
        });
    }

    /// Acts on what a node wants.
    pub(super) fn settle(&mut self, at: usize) {
        while let Some(event) = self.nodes[at].torrent.poll_event() {
            match event {
                Event::PieceComplete { piece } => {
                    // Every block is here exactly once.
                    for block in 0..self.content.info.geometry.block_count(piece) {
                        assert!(self.nodes[at].blocks.remove(&(piece, block)), "block {block} of {piece} is missing");
                    }
                    self.nodes[at].verifying.push_back((self.now + Duration::from_millis(2), piece));
                }
                Event::Close { conn, reason } => {
                    self.nodes[at].closed.push(reason);
                    match self.by_conn.get(&(at, conn)) {
                        Some(side) => self.hang_up(*side),
                        None => self.nodes[at].torrent.disconnected(conn, self.now),
                    }
                }
                Event::Banned { address, .. } => self.nodes[at].banned.push(address.ip().to_string()),
                Event::Suspended { address, .. } => self.nodes[at].suspended.push(address.ip().to_string()),
                Event::Peers(peers) => self.nodes[at].peers_heard.extend(peers.into_iter().map(|(address, _)| address)),
                Event::Finished => self.nodes[at].finished = true,
                Event::Metadata(bytes) => {
                    assert!(*bytes == *self.content.info.source);
                    self.nodes[at].metadata = true;
                    self.give_content(at, Bitfield::new(self.content.pieces()), false);
                }
                Event::LeavesWanted { piece } => {
                    let geometry = &self.content.info.geometry;
                    let start = geometry.piece_offset(piece) as usize;
                    let leaves = merkle::leaves(&self.nodes[at].data[start..][..geometry.data_len(piece) as usize]);
                    self.nodes[at].torrent.leaves_ready(piece, &leaves);
                }
                Event::PieceLayer { .. } | Event::DhtNode(_) | Event::Meet { .. } | Event::SuperSeeded => {}
            }
        }
        let mut dirty = Vec::new();
        self.nodes[at].torrent.take_dirty(&mut dirty);
        for id in dirty {
            let Some(side) = self.by_conn.get(&(at, id)).copied() else { continue };
            let mut bytes = Vec::new();
            self.nodes[at].torrent.take_output(id, &mut bytes, self.now);
            while self.nodes[at].torrent.take_answer(id, &mut bytes, self.now) {}
            if !bytes.is_empty() {
                self.send(side, bytes, self.now);
            }
        }
        self.upload(at);
    }

    fn send(&mut self, from: usize, bytes: Vec<u8>, leaves_at: Instant) {
        let latency = self.sides[from].latency;
        let to = self.sides[from].other;
        let side = &mut self.sides[to];
        let arrival = (leaves_at + latency).max(side.arrival_last);
        side.arrival_last = arrival;
        side.in_flight.push_back((arrival, bytes));
    }

    /// Sends blocks while the node's uplink is free, connections in turn.
    fn upload(&mut self, at: usize) {
        if self.nodes[at].manner == Manner::Mute {
            return;
        }
        while self.nodes[at].up_free_at <= self.now {
            let count = self.sides.len();
            let ready = |side: &usize| {
                let side = &self.sides[*side];
                side.open && side.node == at && self.nodes[at].torrent.peek_upload(side.id).is_some()
            };
            let turn = self.turn;
            let Some(side) = (0..count).map(|step| (turn + step) % count).find(ready) else { return };
            self.turn = side + 1;
            let id = self.sides[side].id;
            let node = &mut self.nodes[at];
            let range = node.torrent.next_upload(id).unwrap();
            node.sent_blocks += 1;
            let mut bytes = piece_header(range.piece, range.begin, range.len).to_vec();
            let start = self.content.info.geometry.piece_offset(range.piece) as usize + range.begin as usize;
            bytes.extend_from_slice(&node.data[start..start + range.len as usize]);
            let lies = match node.manner {
                Manner::Liar(every) => node.sent_blocks.is_multiple_of(every),
                Manner::Edited(from) => node.sent_blocks >= from,
                Manner::Honest | Manner::Mute => false,
            };
            if lies {
                *bytes.last_mut().unwrap() ^= 0x55;
            }
            let took = Duration::from_secs_f64(bytes.len() as f64 / node.up_rate as f64);
            node.up_free_at = node.up_free_at.max(self.now) + took;
            let sent_at = node.up_free_at;
            node.torrent.payload_sent(id, u64::from(range.len), self.now);
            self.send(side, bytes, sent_at);
        }
    }

    fn verify(&mut self, at: usize, piece: u32) {
        let info = Arc::clone(&self.content.info);
        let node = &mut self.nodes[at];
        let start = info.geometry.piece_offset(piece) as usize;
        let whole = &node.data[start..start + info.geometry.piece_len(piece) as usize];
        let data = &whole[..info.geometry.data_len(piece) as usize];
        let expected = node.torrent.expected_hash(piece).expect("only pieces whose hash is known are fetched");
        let v1 = expected.sha1.is_none_or(|hash| sha1(whole) == hash);
        let v2 =
            expected.merkle.is_none_or(|(hash, height)| merkle::subtree_root(&merkle::leaves(data), 0, height) == hash);
        let digest = |block: &[u8]| {
            let hash = sha1(block);
            u64::from_be_bytes(*hash.first_chunk::<8>().unwrap())
        };
        let digests: Vec<u64> = data.chunks(BLOCK_LEN as usize).map(digest).collect();
        let outcome = match v1 && v2 {
            true => {
                PieceOutcome::Good { digests: if node.torrent.wants_digests(piece) { digests } else { Vec::new() } }
            }
            false => PieceOutcome::Bad { digests },
        };
        node.torrent.piece_verified(piece, outcome, self.now);
        self.settle(at);
    }

    /// A side closes: what it has to say still goes out, and arrives.
    fn hang_up(&mut self, side: usize) {
        let Side { node, id, other, open, .. } = self.sides[side];
        if !open {
            return;
        }
        let mut bytes = Vec::new();
        self.nodes[node].torrent.take_output(id, &mut bytes, self.now);
        if !bytes.is_empty() {
            self.send(side, bytes, self.now);
        }
        self.sides[side].open = false;
        self.nodes[node].torrent.disconnected(id, self.now);
        self.sides[other].ending = true;
        if self.sides[other].in_flight.is_empty() {
            self.close(other);
        }
    }

    fn close(&mut self, side: usize) {
        for at in [side, self.sides[side].other] {
            if std::mem::replace(&mut self.sides[at].open, false) {
                let Side { node, id, .. } = self.sides[at];
                self.nodes[node].torrent.disconnected(id, self.now);
                self.settle(node);
            }
        }
    }

    pub(super) fn uploaded(&mut self, node: usize) -> u64 {
        self.nodes[node].torrent.stats(self.now).uploaded_bytes
    }

    pub(super) fn wasted(&mut self, node: usize) -> u64 {
        self.nodes[node].torrent.stats(self.now).wasted_bytes
    }
}
