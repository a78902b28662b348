//! One uploader and one downloader joined by several paths, each with a rate and a latency of its own, that fail, return and
//! change. Control messages are real bytes through [`Receiver`]; payload has a length only, so that gigabytes cost little.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_content::bencode::DictBuilder;
use anabranch_content::bitfield::Bitfield;
use anabranch_content::geometry::BLOCK_LEN;
use anabranch_content::info::Info;
use anabranch_content::metainfo::Metainfo;

use super::lone::path_id;
use crate::ConnId;
use crate::handshake::{Handshake, Reserved};
use crate::picker::PieceOrder;
use crate::requests::blocks_of;
use crate::torrent::{Arriving, Event, Link, PathState, PieceOutcome, Torrent, TorrentConfig};
use crate::wire::{self, BlockRange, Limits, Message, Receiver};

/// Payload that a link takes at once.
const CHUNK: u32 = 16 * 1024;
/// Steps of one run at most.
const STEPS_MAX: usize = 5_000_000;

pub(super) const MS: Duration = Duration::from_millis(1);

/// Bytes per second of so many Mbit/s.
pub(super) fn mbit(rate: f64) -> f64 {
    rate * 1e6 / 8.0
}

/// A content of which only the shape exists.
pub(super) fn shape(piece_length: u32, length: u64) -> Arc<Info> {
    let pieces = length.div_ceil(u64::from(piece_length)) as usize;
    let mut info = DictBuilder::new();
    info.int("length", length as i64).bytes("name", "shape").int("piece length", piece_length);
    info.bytes("pieces", vec![7; pieces * 20]);
    Metainfo::parse(&DictBuilder::new().dict("info", &info).encode()).unwrap().info
}

pub(super) struct PathLink {
    pub rate_bytes: f64,
    pub latency: Duration,
    pub works: bool,
    up: ConnId,
    pub down: ConnId,
    free_at: Instant,
    /// What the uploader is sending: a block, and how much of it has left.
    sending: Option<(BlockRange, u32)>,
    to_downloader: VecDeque<(Instant, Item)>,
    to_uploader: VecDeque<(Instant, Vec<u8>)>,
    receivers: [Receiver; 2],
    arriving: Option<Arriving>,
    /// Payload that counted.
    pub kept_bytes: u64,
}

enum Item {
    Control(Vec<u8>),
    /// Block, offset of the chunk, its length.
    Payload(BlockRange, u32, u32),
}

pub(super) struct PathSim {
    pub now: Instant,
    pub start: Instant,
    pub uploader: Torrent,
    pub downloader: Torrent,
    pub paths: Vec<PathLink>,
    info: Arc<Info>,
    verifying: VecDeque<(Instant, u32)>,
    pub finished: bool,
    /// Who was asked for a block that has not come.
    asked: HashMap<(u32, u32), ConnId>,
    /// Blocks that were asked for over a second path while others were asked for by nobody.
    pub doubled: u32,
    received: Bitfield,
    received_blocks: u32,
    /// Blocks that are here from the front on, without a gap.
    front: u32,
    front_moved: Instant,
    /// The longest time that the front stood still.
    pub front_stop_max: Duration,
    /// Blocks beyond the front that were here at most.
    pub ahead_max_blocks: u32,
    /// When payload came, over any path, and how much.
    pub arrivals: Vec<(Instant, usize, u32)>,
}

impl PathSim {
    /// Paths by rate (bytes per second) and round trip.
    pub(super) fn new(info: &Arc<Info>, order: PieceOrder, paths: &[(f64, Duration)], seed: u64) -> Self {
        let now = Instant::now();
        let torrent = |peer_id: u8, have: Bitfield| {
            let config = TorrentConfig { peer_id: [peer_id; 20], order, seed, ..TorrentConfig::default() };
            let mut torrent = Torrent::new(info.hashes, config, now);
            torrent.set_content(Arc::clone(info), HashMap::new(), have, Vec::new(), now);
            torrent
        };
        let pieces = info.geometry.piece_count();
        let blocks = info.geometry.total().div_ceil(u64::from(BLOCK_LEN)) as u32;
        let mut sim = Self {
            now,
            start: now,
            uploader: torrent(1, Bitfield::full(pieces)),
            downloader: torrent(2, Bitfield::new(pieces)),
            paths: Vec::new(),
            info: Arc::clone(info),
            verifying: VecDeque::new(),
            finished: false,
            asked: HashMap::new(),
            doubled: 0,
            received: Bitfield::new(blocks),
            received_blocks: 0,
            front: 0,
            front_moved: now,
            front_stop_max: Duration::ZERO,
            ahead_max_blocks: 0,
            arrivals: Vec::new(),
        };
        paths.iter().for_each(|(rate, rtt)| sim.add_path(*rate, *rtt));
        sim
    }

    pub(super) fn add_path(&mut self, rate_bytes: f64, rtt: Duration) {
        let path = Some(path_id(self.paths.len() as u16 + 1));
        let info_hash = self.info.hashes.wire_hashes().next().unwrap();
        let hello = |peer_id| Handshake { reserved: Reserved::OURS, info_hash, peer_id: [peer_id; 20] };
        let link = |host: &str, outgoing| Link {
            address: host.parse().unwrap(),
            outgoing,
            path,
            key: None,
            local: None,
            over_utp: false,
            is_near: false,
        };
        let up = self.uploader.connected_over(link("10.0.0.2:2000", false), &hello(2), self.now).unwrap();
        let down = self.downloader.connected_over(link("10.0.0.1:1000", true), &hello(1), self.now).unwrap();
        self.uploader.set_path_rtt(up, rtt);
        self.downloader.set_path_rtt(down, rtt);
        self.paths.push(PathLink {
            rate_bytes,
            latency: rtt / 2,
            works: true,
            up,
            down,
            free_at: self.now,
            sending: None,
            to_downloader: VecDeque::new(),
            to_uploader: VecDeque::new(),
            receivers: [Receiver::default(), Receiver::default()],
            arriving: None,
            kept_bytes: 0,
        });
    }

    /// Nothing gets through any more. What is on its way is sent again once the path works.
    pub(super) fn cut(&mut self, path: usize) {
        self.paths[path].works = false;
    }

    pub(super) fn restore(&mut self, path: usize) {
        let link = &mut self.paths[path];
        link.works = true;
        let mut at = self.now;
        for (arrives, item) in &mut link.to_downloader {
            if let Item::Payload(_, _, len) = item {
                at += Duration::from_secs_f64(f64::from(*len) / link.rate_bytes);
            }
            *arrives = at + link.latency;
        }
        link.free_at = at;
        link.to_uploader.iter_mut().for_each(|(arrives, _)| *arrives = self.now + link.latency);
    }

    pub(super) fn set_path_state(&mut self, path: usize, state: PathState) {
        let down = self.paths[path].down;
        self.downloader.set_path_state(down, state, self.now);
        self.settle();
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    pub(super) fn bytes_between(&self, from: Instant, until: Instant) -> u64 {
        let inside = |(at, ..): &&(Instant, usize, u32)| *at >= from && *at < until;
        self.arrivals.iter().filter(inside).map(|(.., bytes)| u64::from(*bytes)).sum()
    }

    /// The longest time without payload between two moments.
    pub(super) fn gap_max(&self, from: Instant, until: Instant) -> Duration {
        let times = self.arrivals.iter().map(|(at, ..)| *at).filter(|at| *at > from && *at < until);
        let mut last = from;
        let mut max = Duration::ZERO;
        for at in times.chain([until]) {
            max = max.max(at - last);
            last = at;
        }
        max
    }

    /// Runs until the content is here, at most for so long; answers whether it is.
    pub(super) fn run(&mut self, limit: Duration) -> bool {
        let end = self.now + limit;
        self.settle();
        for _ in 0..STEPS_MAX {
            if self.finished {
                return true;
            }
            let next = self.next_time();
            if next > end {
                self.now = end;
                return false;
            }
            self.now = self.now.max(next);
            self.step();
        }
        panic!("no end after {STEPS_MAX} steps, {:?}", self.elapsed());
    }

    fn next_time(&self) -> Instant {
        let mut next = self.now + Duration::from_secs(3600);
        for path in self.paths.iter().filter(|path| path.works) {
            let down = path.to_downloader.front().map(|(at, _)| *at);
            let up = path.to_uploader.front().map(|(at, _)| *at);
            let has_more = path.sending.is_some() || self.uploader.peek_upload(path.up).is_some();
            let send = has_more.then_some(path.free_at);
            next = [down, up, send].into_iter().flatten().fold(next, Instant::min);
        }
        let clocks = [self.uploader.next_deadline(), self.downloader.next_deadline()];
        let verdict = self.verifying.front().map(|(at, _)| *at);
        clocks.into_iter().chain([verdict]).flatten().fold(next, Instant::min)
    }

    fn step(&mut self) {
        for at in 0..self.paths.len() {
            while self.paths[at].works && self.paths[at].to_uploader.front().is_some_and(|(when, _)| *when <= self.now)
            {
                let (_, bytes) = self.paths[at].to_uploader.pop_front().unwrap();
                let id = self.paths[at].up;
                feed(&mut self.uploader, id, &mut self.paths[at].receivers[0], &bytes, self.now);
            }
            while self.paths[at].works
                && self.paths[at].to_downloader.front().is_some_and(|(when, _)| *when <= self.now)
            {
                let (_, item) = self.paths[at].to_downloader.pop_front().unwrap();
                let id = self.paths[at].down;
                match item {
                    Item::Control(bytes) => {
                        feed(&mut self.downloader, id, &mut self.paths[at].receivers[1], &bytes, self.now);
                    }
                    Item::Payload(range, offset, len) => self.payload(at, range, offset, len),
                }
                self.downloader.fill_requests(id, self.now);
            }
        }
        for torrent in [&mut self.uploader, &mut self.downloader] {
            if torrent.next_deadline().is_some_and(|at| at <= self.now) {
                torrent.on_time(self.now);
            }
        }
        while self.verifying.front().is_some_and(|(at, _)| *at <= self.now) {
            let (_, piece) = self.verifying.pop_front().unwrap();
            self.downloader.piece_verified(piece, PieceOutcome::Good { digests: Vec::new() }, self.now);
        }
        self.settle();
    }

    fn payload(&mut self, at: usize, range: BlockRange, offset: u32, len: u32) {
        let id = self.paths[at].down;
        if offset == 0 {
            self.paths[at].arriving = Some(self.downloader.block_started(id, range, self.now).unwrap());
        }
        self.downloader.payload_received(id, u64::from(len), self.now);
        self.arrivals.push((self.now, at, len));
        if offset + len < range.len {
            return;
        }
        let arriving = self.paths[at].arriving.take().unwrap();
        let wanted = arriving.is_wanted();
        let kept = self.downloader.block_finished(arriving, self.now, |_| wanted);
        // Answered, whatever became of it: of a long request that came late, some blocks may be here already.
        for block in blocks_of(range) {
            if self.asked.get(&(block.piece, block.block)) == Some(&id) {
                self.asked.remove(&(block.piece, block.block));
            }
        }
        if kept {
            self.paths[at].kept_bytes += u64::from(range.len);
            for block in blocks_of(range) {
                self.asked.remove(&(block.piece, block.block));
                let number = block.piece * (self.info.geometry.piece_length() / BLOCK_LEN) + block.block;
                assert!(self.received.set(number), "a block is kept that was here");
                self.received_blocks += 1;
            }
            if !self.received.get(self.front) {
                self.front_stop_max = self.front_stop_max.max(self.now - self.front_moved);
            } else {
                self.front_moved = self.now;
            }
            while self.front < self.received.len() && self.received.get(self.front) {
                self.front += 1;
            }
            self.ahead_max_blocks = self.ahead_max_blocks.max(self.received_blocks - self.front);
        }
    }

    fn settle(&mut self) {
        while let Some(event) = self.uploader.poll_event() {
            assert!(
                !matches!(event, Event::Close { .. } | Event::Banned { .. }) || self.downloader.is_finished(),
                "{event:?}"
            );
        }
        while let Some(event) = self.downloader.poll_event() {
            match event {
                Event::PieceComplete { piece } => self.verifying.push_back((self.now + MS * 2, piece)),
                Event::Finished => self.finished = true,
                Event::Close { .. } if self.downloader.is_finished() => {}
                other => panic!("{other:?}"),
            }
        }
        let mut dirty = Vec::new();
        self.downloader.take_dirty(&mut dirty);
        let mut outputs = Vec::new();
        for id in dirty.drain(..) {
            let mut bytes = Vec::new();
            self.downloader.take_output(id, &mut bytes, self.now);
            outputs.push((id, bytes));
        }
        // All that was decided at once: what one path gave up, another was asked for.
        outputs.iter().for_each(|(id, bytes)| self.note_cancels(*id, bytes));
        for (id, bytes) in outputs {
            self.note_requests(id, &bytes);
            if let Some(path) = self.paths.iter_mut().find(|path| path.down == id) {
                path.to_uploader.push_back((self.now + path.latency, bytes));
            }
        }
        self.uploader.take_dirty(&mut dirty);
        for id in dirty {
            let mut bytes = Vec::new();
            self.uploader.take_output(id, &mut bytes, self.now);
            if let Some(path) = self.paths.iter_mut().find(|path| path.up == id)
                && !bytes.is_empty()
            {
                let last = path.to_downloader.back().map_or(self.now, |(at, _)| *at);
                path.to_downloader.push_back((last.max(self.now + path.latency), Item::Control(bytes)));
            }
        }
        (0..self.paths.len()).for_each(|at| self.send(at));
    }

    /// Asking for a block again is for the end, and for blocks that were given up.
    fn note_requests(&mut self, id: ConnId, bytes: &[u8]) {
        let picker = self.downloader.content.as_ref().and_then(|content| content.picker.as_ref());
        let endgame = picker.is_none_or(|picker| picker.endgame());
        for message in messages(bytes) {
            let Message::Request(range) = message else { continue };
            for block in blocks_of(range) {
                let before = self.asked.insert((block.piece, block.block), id);
                self.doubled += u32::from(!endgame && before.is_some_and(|before| before != id));
            }
        }
    }

    fn note_cancels(&mut self, id: ConnId, bytes: &[u8]) {
        for message in messages(bytes) {
            let Message::Cancel(range) = message else { continue };
            for block in blocks_of(range) {
                if self.asked.get(&(block.piece, block.block)) == Some(&id) {
                    self.asked.remove(&(block.piece, block.block));
                }
            }
        }
    }

    fn send(&mut self, at: usize) {
        let path = &mut self.paths[at];
        while path.works && path.free_at <= self.now {
            let (range, sent) = match path.sending.take() {
                Some(sending) => sending,
                None => match self.uploader.next_upload(path.up) {
                    Some(range) => (range, 0),
                    None => return,
                },
            };
            let len = CHUNK.min(range.len - sent);
            path.free_at = path.free_at.max(self.now) + Duration::from_secs_f64(f64::from(len) / path.rate_bytes);
            path.to_downloader.push_back((path.free_at + path.latency, Item::Payload(range, sent, len)));
            self.uploader.payload_sent(path.up, u64::from(len), self.now);
            path.sending = (sent + len < range.len).then_some((range, sent + len));
        }
    }
}

/// The requests and cancels among control messages.
fn messages(mut input: &[u8]) -> Vec<Message<'static>> {
    let (mut receiver, mut found) = (Receiver::default(), Vec::new());
    while let Some(event) = receiver.next(&mut input, &Limits::default()).unwrap() {
        match event {
            wire::Event::Message(Message::Request(range)) => found.push(Message::Request(range)),
            wire::Event::Message(Message::Cancel(range)) => found.push(Message::Cancel(range)),
            _ => {}
        }
    }
    found
}

fn feed(torrent: &mut Torrent, id: ConnId, receiver: &mut Receiver, mut input: &[u8], now: Instant) {
    let limits = torrent.wire_limits();
    while let Some(event) = receiver.next(&mut input, &limits).unwrap() {
        let wire::Event::Message(message) = event else { panic!("payload among control messages") };
        torrent.on_message(id, message, now).unwrap();
    }
}
