//! Several connections that receive into one content's buffers, from peers that answer in any order, twice, late or in the middle
//! of something else, in parts of any length, while memory is short: every piece is what it should be. Seeds are printed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anabranch_bittorrent::extension::ExtensionHandshake;
use anabranch_bittorrent::handshake::{Handshake, Reserved};
use anabranch_bittorrent::torrent::{Event as CoreEvent, PieceOutcome, TorrentConfig};
use anabranch_bittorrent::wire::{Limits, Message, piece_header};
use anabranch_content::bencode::DictBuilder;
use anabranch_content::bitfield::Bitfield;
use anabranch_content::geometry::{BLOCK_LEN, Geometry};
use anabranch_content::info::Info;
use anabranch_content::metainfo::Metainfo;

use super::*;
use crate::bittorrent::scratch::tests::scatter;
use crate::store::buffers::{WholePiece, chunk_length};
use crate::store::pools::Pools;

/// Schedules of one run, and steps of one; few under Miri, which takes a thousand times as long.
const SCHEDULES: u64 = if cfg!(miri) { 1 } else { 40 };
const STEPS_MAX: usize = 60_000;
/// Bytes that a peer has under way at most.
const STREAM_MAX: usize = 3 << 20;

/// The content, byte by byte.
fn byte(at: u64) -> u8 {
    ((at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn info(piece_length: u32, length: u64) -> Arc<Info> {
    let mut info = DictBuilder::new();
    info.int("length", length as i64).bytes("name", "content").int("piece length", piece_length);
    info.bytes("pieces", vec![7; length.div_ceil(u64::from(piece_length)) as usize * 20]);
    Metainfo::parse(&DictBuilder::new().dict("info", &info).encode()).unwrap().info
}

struct Peer {
    blocks: Blocks,
    /// What it sent and we did not receive.
    stream: VecDeque<u8>,
    owed: Vec<BlockRange>,
    sent: Vec<BlockRange>,
    choking: bool,
    /// Blocks that it may yet send twice, before that is a crime.
    copies_left: u32,
}

struct World {
    seed: u64,
    rng: fastrand::Rng,
    now: Instant,
    geometry: Geometry,
    core: Torrent,
    buffers: PieceBuffers,
    scratch: Scratch,
    peers: BTreeMap<ConnId, Peer>,
    joined: u8,
    /// What was spilled, by piece and block, and the pieces with a spill under way.
    disk: HashMap<(u32, u32), Vec<u8>>,
    spilling: Vec<u32>,
    complete: Vec<u32>,
    in_place: u64,
    straight: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let piece_length = BLOCK_LEN << rng.u32(0..if cfg!(miri) { 2 } else { 6 });
        let blocks = rng.u64(2..if cfg!(miri) { 8 } else { 150 });
        let info = info(piece_length, blocks * u64::from(BLOCK_LEN) + rng.u64(1..40));
        let now = Instant::now();
        let mut core = Torrent::new(info.hashes, TorrentConfig { seed, ..TorrentConfig::default() }, now);
        let nothing = Bitfield::new(info.geometry.piece_count());
        core.set_content(Arc::clone(&info), HashMap::new(), nothing, Vec::new(), now);
        let chunks = rng.u64(2..12);
        let pools = Pools::new(chunks * u64::from(chunk_length(&info.geometry)));
        Self {
            seed,
            rng,
            now,
            geometry: info.geometry.clone(),
            core,
            buffers: PieceBuffers::new(pools, info.geometry.clone()),
            scratch: Scratch::new(),
            peers: BTreeMap::new(),
            joined: 0,
            disk: HashMap::new(),
            spilling: Vec::new(),
            complete: Vec::new(),
            in_place: 0,
            straight: 0,
        }
    }

    fn join(&mut self) {
        self.joined += 1;
        let hello = Handshake { reserved: Reserved::OURS, info_hash: [0; 20], peer_id: [self.joined; 20] };
        let address = format!("10.0.{}.1:6881", self.joined).parse().unwrap();
        let id = self.core.connected(address, true, &hello, self.now).unwrap();
        let mut peer = Peer {
            blocks: Blocks::new(),
            stream: VecDeque::new(),
            owed: Vec::new(),
            sent: Vec::new(),
            choking: false,
            copies_left: 16,
        };
        let hello = ExtensionHandshake {
            block_len_max: Some(BLOCK_LEN << self.rng.u32(0..5)),
            ..ExtensionHandshake::default()
        };
        peer.say(Message::HaveAll);
        peer.say(Message::Extended { id: 0, payload: &hello.encode() });
        peer.say(Message::Unchoke);
        self.peers.insert(id, peer);
    }

    /// The peer sends something more.
    fn send(&mut self, id: ConnId) {
        let geometry = &self.geometry;
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.stream.len() < STREAM_MAX) else { return };
        let range = match self.rng.u32(0..40) {
            0 if peer.choking => return peer.choke(false),
            0 => return peer.choke(true),
            1 => return peer.say(Message::KeepAlive),
            2 if !peer.owed.is_empty() => {
                let at = self.rng.usize(..peer.owed.len());
                let range = peer.owed.remove(at);
                return peer.say(Message::Reject(range));
            }
            3 if !peer.sent.is_empty() && peer.copies_left > 0 => {
                peer.copies_left -= 1;
                peer.sent[self.rng.usize(..peer.sent.len())]
            }
            4 if !peer.owed.is_empty() => peer.owed.remove(self.rng.usize(..peer.owed.len())),
            _ if !peer.owed.is_empty() => peer.owed.remove(0),
            _ => return,
        };
        peer.stream.extend(piece_header(range.piece, range.begin, range.len));
        let begin = geometry.piece_offset(range.piece) + u64::from(range.begin);
        peer.stream.extend((begin..begin + u64::from(range.len)).map(byte));
        peer.sent.push(range);
    }

    /// We receive some of what the peer sent.
    fn receive(&mut self, id: ConnId) {
        let Self { rng, core, buffers, scratch, now, seed, .. } = self;
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| !peer.stream.is_empty()) else { return };
        let allowed = if rng.u32(0..4) == 0 { rng.u64(1..100_000) } else { u64::MAX };
        let there = match rng.u32(0..4) {
            0 => rng.usize(1..100),
            1 => rng.usize(1..100_000),
            _ => usize::MAX,
        };
        let mut sink = Sink { core, buffers: Some(buffers), id };
        let layout = peer.blocks.lay_out(scratch, &mut sink, allowed, *now);
        let planned = layout.len();
        let stream: Vec<u8> = peer.stream.drain(..there.min(planned).min(peer.stream.len())).collect();
        let received = layout.fill(|iovecs| scatter(iovecs, &stream)).unwrap();
        assert_eq!(received, stream.len());
        let laid_out = scratch.segments().iter().filter(|(segment, _)| matches!(segment, Segment::Expected(..)));
        self.straight += laid_out.count() as u64;
        let taken = peer.blocks.take_in(scratch, received, planned, &mut sink);
        taken.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let in_place = peer.blocks.current.as_ref().is_some_and(|current| matches!(current.target, Target::InPlace));
        self.in_place += u64::from(in_place);
        self.core.payload_received(id, std::mem::take(&mut peer.blocks.payload_bytes), self.now);
        self.core.fill_requests(id, self.now);
        if std::mem::take(&mut peer.blocks.memory_short) {
            self.spill();
        }
    }

    fn spill(&mut self) {
        for spill in self.buffers.spill() {
            let per_chunk = chunk_length(&self.geometry).div_ceil(BLOCK_LEN);
            for block in spill.blocks {
                let begin = ((block - spill.chunk * per_chunk) * BLOCK_LEN) as usize;
                let len = self.geometry.block_len(spill.piece, block) as usize;
                self.disk.insert((spill.piece, block), spill.buffer[begin..begin + len].to_vec());
            }
            self.spilling.push(spill.piece);
        }
    }

    /// Requests go to the peers, and whole pieces are looked at.
    fn settle(&mut self) {
        while let Some(event) = self.core.poll_event() {
            match event {
                CoreEvent::PieceComplete { piece } => self.complete.push(piece),
                CoreEvent::Close { conn, .. } => self.leave(conn),
                _ => {}
            }
        }
        for piece in std::mem::take(&mut self.complete) {
            match self.buffers.take(piece) {
                Some(whole) => self.verify(piece, &whole),
                None => self.complete.push(piece),
            }
        }
        let mut bytes = Vec::new();
        for (id, peer) in &mut self.peers {
            bytes.clear();
            self.core.take_output(*id, &mut bytes, self.now);
            let (mut receiver, mut input) = (Receiver::default(), &bytes[..]);
            while let Some(event) = receiver.next(&mut input, &Limits::default()).unwrap() {
                match event {
                    Event::Message(Message::Request(range)) if peer.choking => peer.say(Message::Reject(range)),
                    Event::Message(Message::Request(range)) => peer.owed.push(range),
                    // Some cross the answer on their way.
                    Event::Message(Message::Cancel(range)) if self.rng.bool() => {
                        if let Some(at) = peer.owed.iter().position(|other| *other == range) {
                            peer.owed.remove(at);
                            peer.say(Message::Reject(range));
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    fn verify(&mut self, piece: u32, whole: &WholePiece) {
        let begin = self.geometry.piece_offset(piece);
        let per_chunk = chunk_length(&self.geometry).div_ceil(BLOCK_LEN);
        for block in 0..self.geometry.block_count(piece) {
            let len = self.geometry.block_len(piece, block) as usize;
            let spilled = self.disk.remove(&(piece, block));
            let bytes = match &whole.chunks[(block / per_chunk) as usize] {
                Some(chunk) if !whole.on_disk.contains(&block) => {
                    &chunk[(block % per_chunk * BLOCK_LEN) as usize..][..len]
                }
                _ => &spilled.as_ref().unwrap()[..],
            };
            let begin = begin + u64::from(block * BLOCK_LEN);
            let right = bytes.iter().zip(begin..).all(|(is, at)| *is == byte(at));
            assert!(right, "seed {}: block {block} of piece {piece} is wrong", self.seed);
        }
        self.core.piece_verified(piece, PieceOutcome::Good { digests: Vec::new() }, self.now);
    }

    fn leave(&mut self, id: ConnId) {
        self.peers.remove(&id);
        self.buffers.disconnected(id);
        self.core.disconnected(id, self.now);
    }

    fn step(&mut self) {
        let ids: Vec<ConnId> = self.peers.keys().copied().collect();
        let Some(id) = self.rng.choice(ids) else { return self.join() };
        match self.rng.u32(0..1000) {
            0..500 => self.send(id),
            500..900 => self.receive(id),
            900..985 => {
                self.now += Duration::from_millis(self.rng.u64(1..500));
                self.core.on_time(self.now);
            }
            985..988 => self.spill(),
            988..995 => {
                for piece in std::mem::take(&mut self.spilling) {
                    self.buffers.spilled(piece);
                }
            }
            995..997 => self.leave(id),
            _ if self.peers.len() < 4 => self.join(),
            _ => {}
        }
        self.settle();
    }
}

impl Peer {
    fn say(&mut self, message: Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.stream.extend(bytes);
    }

    /// With every choke, what was asked is rejected by name (BEP 6).
    fn choke(&mut self, choking: bool) {
        self.choking = choking;
        self.say(if choking { Message::Choke } else { Message::Unchoke });
        if choking {
            std::mem::take(&mut self.owed).into_iter().for_each(|range| self.say(Message::Reject(range)));
        }
    }
}

#[test]
fn whatever_peers_send_in_whatever_parts_every_piece_is_what_it_should_be() {
    let first = fastrand::u64(..1 << 48);
    println!("seeds from {first} on");
    let (mut in_place, mut straight) = (0, 0);
    for seed in first..first + SCHEDULES {
        let mut world = World::new(seed);
        let steps = (0..STEPS_MAX).take_while(|_| {
            world.step();
            !world.core.is_complete()
        });
        let steps = steps.count();
        assert!(world.core.is_complete(), "seed {seed}: not complete after {steps} steps");
        in_place += world.in_place;
        straight += world.straight;
    }
    assert!(cfg!(miri) || (in_place > 20 && straight > 20), "{in_place} in place, {straight} laid out");
}
