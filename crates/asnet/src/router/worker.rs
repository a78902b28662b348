//! A thread that reads packets, has them judged, and sends them on.
//!
//! Packets stay in the buffers that they arrived in. Those that follow each other to the same place leave as one burst,
//! out of these buffers. A socket gets one batch, then the next socket has its turn, so that under overload packets are
//! dropped in the kernel's receive buffer, where they have cost the router nothing yet.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anabranch_scion_wire::Packet;
use anabranch_udp::{DATAGRAM_LEN_MAX, Message, RecvBatch, SEGMENTS_MAX, Socket};

use super::counters::{Counters, DropReason};
use super::data_plane::{Command, Router, Shared};
use super::epoll::{self, Epoll};
use super::forward::{Forwarder, Ingress, Verdict};
use super::probe::Probe;
use super::reply::Reply;
use super::verdict_cache::VerdictCache;

/// Messages (bursts or single packets) read at once: one megabyte of buffers, which a core's cache holds.
const RECV_MESSAGES: usize = 16;
/// Lines are served at most this often: at 1 Gbit/s ten packets leave at once, and nobody notices so short a delay.
const LINE_SERVICE_GAP: Duration = Duration::from_micros(50);
/// SCMP messages that one socket's packets cause in a second, and at once. Enough for every flow to hear of its link in
/// time, too few to be worth provoking.
const REPLIES_PER_SECOND: f64 = 10_000.0;
const REPLIES_AT_ONCE: f64 = 1_000.0;

/// A socket to read from.
pub(super) struct Source {
    router: Arc<Router>,
    socket: SocketIndex,
    cache: VerdictCache,
    replies_left: f64,
    replies_counted: Instant,
}

/// Which of a router's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketIndex {
    Internal(usize),
    Port(usize),
}

impl Source {
    /// Every socket of a router.
    pub(super) fn all(router: &Arc<Router>) -> Vec<Self> {
        let internal = (0..router.internal.len()).map(SocketIndex::Internal);
        let ports = (0..router.ports.len()).map(SocketIndex::Port);
        let source = |socket| Self {
            router: Arc::clone(router),
            socket,
            cache: VerdictCache::default(),
            replies_left: REPLIES_AT_ONCE,
            replies_counted: router.shared.start,
        };
        internal.chain(ports).map(source).collect()
    }

    fn socket(&self) -> &Socket {
        match self.socket {
            SocketIndex::Internal(index) => &self.router.internal[index],
            SocketIndex::Port(index) => &self.router.ports[index].socket,
        }
    }

    fn counters(&self) -> &Counters {
        match self.socket {
            SocketIndex::Internal(_) => &self.router.internal_counters,
            SocketIndex::Port(index) => &self.router.ports[index].counters,
        }
    }

    fn refill_replies(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.replies_counted).as_secs_f64();
        self.replies_left = (self.replies_left + passed * REPLIES_PER_SECOND).min(REPLIES_AT_ONCE);
        self.replies_counted = now;
    }
}

/// Where packets leave to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Host(SocketAddr),
    Port(usize),
}

/// Packets that leave together: all of one size, but for the last, which may be shorter.
struct Run {
    target: Target,
    segment_len: usize,
    packets: usize,
    bytes: usize,
    /// Where they lie, in [`Plan::pieces`].
    pieces: Range<usize>,
    /// The last packet was shorter, so nothing may follow.
    is_closed: bool,
}

/// Bytes in one of the batch's buffers, or in the replies.
struct Piece {
    message: Option<usize>,
    bytes: Range<usize>,
}

/// What is to be sent of a batch.
#[derive(Default)]
struct Plan {
    runs: Vec<Run>,
    pieces: Vec<Piece>,
    replies: Vec<u8>,
}

impl Plan {
    fn clear(&mut self) {
        self.runs.clear();
        self.pieces.clear();
        self.replies.clear();
    }

    /// Adds a packet to the last run, if it can follow there, or begins another.
    fn add(&mut self, target: Target, message: Option<usize>, bytes: Range<usize>) {
        let len = bytes.len();
        match self.runs.last_mut() {
            Some(run)
                if run.target == target
                    && !run.is_closed
                    && len <= run.segment_len
                    && run.packets < SEGMENTS_MAX
                    && run.bytes + len <= DATAGRAM_LEN_MAX =>
            {
                run.packets += 1;
                run.bytes += len;
                run.is_closed = len < run.segment_len;
                match self.pieces.last_mut() {
                    Some(last) if last.message == message && last.bytes.end == bytes.start => {
                        last.bytes.end = bytes.end
                    }
                    _ => self.pieces.push(Piece { message, bytes }),
                }
                run.pieces.end = self.pieces.len();
            }
            _ => {
                let at = self.pieces.len();
                self.pieces.push(Piece { message, bytes });
                let pieces = at..at + 1;
                self.runs.push(Run { target, segment_len: len, packets: 1, bytes: len, pieces, is_closed: false });
            }
        }
    }

    fn add_reply(&mut self, target: Target, packet: &[u8]) {
        let start = self.replies.len();
        self.replies.extend_from_slice(packet);
        self.add(target, None, start..self.replies.len());
    }

    fn bytes<'a>(&'a self, piece: &Piece, batch: &'a RecvBatch) -> &'a [u8] {
        let whole = match piece.message {
            Some(message) => batch.get(message).map_or(&[][..], |received| received.bytes),
            None => &self.replies,
        };
        &whole[piece.bytes.clone()]
    }

    /// The packets of a run, one by one. A piece never ends within a packet.
    fn packets<'a>(&'a self, run: &'a Run, batch: &'a RecvBatch) -> impl Iterator<Item = &'a [u8]> {
        let pieces = self.pieces[run.pieces.clone()].iter();
        pieces.flat_map(|piece| self.bytes(piece, batch).chunks(run.segment_len))
    }
}

/// A worker's state.
pub(super) struct Worker {
    shared: Arc<Shared>,
    index: usize,
    epoll: Epoll,
    sources: Vec<Source>,
    /// Lines with something on them that this worker serves.
    lines: Vec<(Arc<Router>, usize)>,
    lines_served: Instant,
    batch: RecvBatch,
    plan: Plan,
    reply: Reply,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, index: usize, epoll: Epoll) -> Self {
        let lines_served = shared.start;
        Self {
            shared,
            index,
            epoll,
            sources: Vec::new(),
            lines: Vec::new(),
            lines_served,
            batch: RecvBatch::new(RECV_MESSAGES),
            plan: Plan::default(),
            reply: Reply::default(),
        }
    }

    /// Works until the data plane stops.
    pub(super) fn run(mut self) {
        epoll::wake_on_time();
        let mut ready = Vec::new();
        while !self.shared.is_stopped.load(Ordering::Acquire) {
            let timeout = self.line_deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()));
            ready.clear();
            // The same call was made at the start, so only a broken descriptor ends here, and nothing can be read then.
            if let Err(error) = self.epoll.wait(timeout, &mut ready) {
                eprintln!("border router stops: cannot wait for packets: {error}");
                return;
            }
            for command in self.shared.take_commands(self.index) {
                self.follow(command);
            }
            for key in &ready {
                self.read(*key);
            }
            self.serve_lines();
        }
    }

    fn follow(&mut self, command: Command) {
        match command {
            Command::Read(source) => match self.epoll.add(source.socket(), self.sources.len()) {
                Ok(()) => self.sources.push(*source),
                Err(error) => eprintln!("border router of {}: cannot watch a socket: {error}", source.router.isd_as),
            },
            Command::Serve(router, port) => self.lines.push((router, port)),
        }
    }

    fn line_deadline(&self) -> Option<Instant> {
        let deadlines = self.lines.iter().filter_map(|(router, port)| router.ports[*port].line.deadline());
        deadlines.min().map(|deadline| deadline.max(self.lines_served + LINE_SERVICE_GAP))
    }

    fn serve_lines(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        let now = Instant::now();
        if now < self.lines_served + LINE_SERVICE_GAP {
            return;
        }
        self.lines_served = now;
        self.lines.retain(|(router, port)| {
            let port = &router.ports[*port];
            // An idle line leaves the list under its own lock, so that nobody's packets are left behind.
            let is_due = port.line.deadline().is_none_or(|deadline| deadline <= now);
            !is_due || port.line.serve(now, port)
        });
    }

    /// One batch from one socket.
    fn read(&mut self, key: usize) {
        let Some(source) = self.sources.get_mut(key) else { return };
        let now = Instant::now();
        if source.socket().recv(&mut self.batch).is_err() {
            // Nothing there after all, or an error about a packet of ours that nobody wanted.
            return;
        }
        self.plan.clear();
        judge(source, &mut self.batch, &mut self.plan, &mut self.reply, now);
        let router = Arc::clone(&source.router);
        for port in send(&router, &self.plan, &self.batch, now) {
            self.lines.push((Arc::clone(&router), port));
        }
    }
}

/// Milliseconds of Unix time. A clock before 1970 makes every path valid, which is the clock's fault.
fn unix_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Has every packet of a batch judged and plans what leaves.
fn judge(source: &mut Source, batch: &mut RecvBatch, plan: &mut Plan, reply: &mut Reply, now: Instant) {
    source.refill_replies(now);
    let now_unix_ms = unix_ms();
    let rules = source.router.rules();
    let (mut packets, mut bytes) = (0, 0);
    for (message, received) in batch.iter_mut().enumerate() {
        let count = received.bytes.len().div_ceil(received.segment_len) as u64;
        packets += count;
        bytes += received.bytes.len() as u64;
        let back = match source.socket {
            SocketIndex::Internal(_) => Target::Host(received.from),
            SocketIndex::Port(index) => Target::Port(index),
        };
        if let SocketIndex::Port(index) = source.socket
            && source.router.ports[index].remote != received.from
        {
            source.counters().dropped(DropReason::NotNeighbor, count);
            continue;
        }
        reply.mute(false);
        let mut at = 0;
        for packet in received.bytes.chunks_mut(received.segment_len) {
            let place = at..at + packet.len();
            at = place.end;
            judge_packet(source, &rules, packet, Where { message, place, back, now, now_unix_ms }, plan, reply);
        }
    }
    source.counters().received(packets, bytes);
}

/// Where a packet is, and when.
struct Where {
    message: usize,
    place: Range<usize>,
    /// Where replies go.
    back: Target,
    now: Instant,
    now_unix_ms: u64,
}

fn judge_packet(
    source: &mut Source,
    rules: &Arc<Forwarder>,
    packet: &mut [u8],
    here: Where,
    plan: &mut Plan,
    reply: &mut Reply,
) {
    if source.replies_left < 1.0 {
        reply.mute(true);
    }
    let ingress = match source.socket {
        SocketIndex::Internal(_) => Ingress::Internal,
        SocketIndex::Port(index) => Ingress::Interface(source.router.ports[index].id),
    };
    match source.cache.process(rules, packet, ingress, here.now_unix_ms, reply) {
        Verdict::Forward(interface) => match source.router.port_index(interface) {
            Some(port) => plan.add(Target::Port(port), Some(here.message), here.place),
            None => source.counters().dropped(DropReason::UnknownEgress, 1),
        },
        Verdict::Deliver(host) => plan.add(Target::Host(host), Some(here.message), here.place),
        Verdict::Reply(reason) => {
            plan.add_reply(here.back, reply.packet());
            source.counters().scmp();
            source.replies_left -= 1.0;
            if let Some(reason) = reason {
                source.counters().dropped(reason, 1);
                // The packets that came in one burst with this one have the same sender, who has been told now.
                reply.mute(true);
            }
        }
        Verdict::Probe => {
            if !log_probe(source, packet, here.now) {
                source.counters().dropped(DropReason::NotAnswered, 1);
            }
        }
        Verdict::Drop(reason) => source.counters().dropped(reason, 1),
    }
}

fn log_probe(source: &Source, packet: &[u8], now: Instant) -> bool {
    let SocketIndex::Port(index) = source.socket else { return false };
    let probe = Packet::parse(packet).ok().and_then(|packet| Probe::read(packet.payload()));
    let mut log = source.router.ports[index].probes.lock().unwrap_or_else(PoisonError::into_inner);
    probe.is_some_and(|probe| log.add(probe, packet.len() as u64, source.router.shared.start, now))
}

/// Sends what was planned; returns the ports whose lines were idle and now need service.
fn send(router: &Router, plan: &Plan, batch: &RecvBatch, now: Instant) -> Vec<usize> {
    let mut to_serve = Vec::new();
    let parts: Vec<IoSlice<'_>> = plan.pieces.iter().map(|piece| IoSlice::new(plan.bytes(piece, batch))).collect();
    let mut messages: Vec<Message<'_>> = Vec::new();
    let mut runs = plan.runs.as_slice();
    while let Some(first) = runs.first() {
        let (socket, counters) = match first.target {
            Target::Host(_) => (&router.internal[0], &router.internal_counters),
            Target::Port(index) => (&router.ports[index].socket, &router.ports[index].counters),
        };
        if let Target::Port(index) = first.target
            && !router.ports[index].line.passes()
        {
            let offered = router.ports[index].line.offer(now, plan.packets(first, batch));
            counters.sent(offered.packets, offered.bytes);
            counters.dropped(DropReason::QueueFull, offered.queue_full);
            counters.dropped(DropReason::TooBig, offered.too_big);
            if offered.needs_service {
                to_serve.push(index);
            }
            runs = &runs[1..];
            continue;
        }
        // Whatever leaves by the same socket goes in one call.
        let is_same = |run: &Run| match (first.target, run.target) {
            (Target::Host(_), Target::Host(_)) => true,
            (one, other) => one == other,
        };
        let count = runs.iter().take_while(|run| is_same(run)).count();
        let (now_sent, later) = runs.split_at(count);
        messages.clear();
        messages.extend(now_sent.iter().map(|run| {
            let to = match run.target {
                Target::Host(host) => host,
                Target::Port(index) => router.ports[index].remote,
            };
            Message::burst(to, &parts[run.pieces.clone()], run.segment_len)
        }));
        send_all(socket, counters, now_sent, &messages);
        runs = later;
    }
    to_serve
}

/// Sends messages, passing over those that the system refuses; a full send buffer ends it.
fn send_all(socket: &Socket, counters: &Counters, runs: &[Run], messages: &[Message<'_>]) {
    let total = |runs: &[Run]| {
        runs.iter().fold((0, 0), |(packets, bytes), run| (packets + run.packets as u64, bytes + run.bytes as u64))
    };
    let mut done = 0;
    while done < messages.len() {
        match socket.send(&messages[done..]) {
            Ok(sent) => {
                let (packets, bytes) = total(&runs[done..done + sent]);
                counters.sent(packets, bytes);
                done += sent;
            }
            Err(error) => {
                let refused = if error.kind() == io::ErrorKind::WouldBlock { messages.len() - done } else { 1 };
                counters.dropped(DropReason::SendFailed, total(&runs[done..done + refused]).0);
                done += refused;
            }
        }
    }
}
