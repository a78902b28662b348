//! The receiving end of a transfer.
//!
//! The driver hands in every datagram ([`Receiver::on_datagram`]), as head and body apart if it read them so, and writes a chunk
//! where [`Arrived::Chunk`] says. When all chunks of a span came ([`Event::SpanCame`]) it hashes the span from what it wrote and
//! says what came out ([`Receiver::on_span_hash`]); only then is the span kept. It sends what [`Receiver::poll_control`] and
//! [`Receiver::poll_message`] give, after everything that it handed in and at [`Receiver::deadline`].

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::chunks::ChunkSet;
use crate::misbehaviour::Misbehaviour;
use crate::sender::{CONTROL_PACKET_MAX, Refused, chunks_of_spans, seal_control};
use crate::tree;
use crate::wire::control::{Answer, Control, Mark, Report};
use crate::wire::message::{Message, Offer, RANGES_MAX};
use crate::wire::seal::{CONTROL_HEAD_LEN, DATA_HEAD_LEN, Dropped, Head, Kind, Opener, Sealer, Secret};
use crate::wire::{PATHS_MAX, WireError};

/// Reports to one mark.
pub const REPORTS_PER_MARK_MAX: usize = 64;
/// Gaps of one path are reported at once, but no more often.
const GAP_EVERY: Duration = Duration::from_millis(1);
/// How far packets overtake others, at first and at most (RFC 9002 §6.1.1: 3).
const DEPTH_MIN: u64 = 3;
const DEPTH_MAX: u64 = 4096;

/// What a datagram was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// A chunk, decrypted in its body.
    Chunk {
        /// Its path, whose address now is where it came from.
        path: u8,
        /// Its index.
        chunk: u64,
        /// The bytes of the content that it may be written to: not those of spans that are kept. Empty if none, and if it
        /// came before.
        write: Range<u64>,
    },
    /// Control; nothing is to be done but to poll.
    Control {
        /// Its path.
        path: u8,
    },
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A path's handshake is done.
    PathUp {
        /// Which.
        path: u8,
        /// Its round trip.
        rtt: Duration,
    },
    /// All chunks of a span came, or were there and their hash is known now: hash it.
    SpanCame(u64),
    /// A span has its hash: what is there of it may be called had after a crash.
    SpanKept(u64),
    /// Everything is there, and has this root: sign the receipt.
    Complete {
        /// Root over the content.
        root: [u8; 32],
    },
    /// The sender ended it.
    Ended {
        /// For programs.
        code: u16,
        /// For people.
        reason: String,
    },
}

/// The receiving end.
#[derive(Debug)]
pub struct Receiver {
    offer: Offer,
    start: Instant,
    received: ChunkSet,
    kept: ChunkSet,
    /// Spans that are there and were not verified: they are once the sender's hashes come.
    claimed: ChunkSet,
    /// Hashes of spans from the first on, from the sender.
    expected: Vec<[u8; 32]>,
    /// Hashes of spans that came before the sender's.
    found: HashMap<u64, [u8; 32]>,
    root: Option<[u8; 32]>,
    complete: bool,
    /// Length of spans, as a power of two.
    span_bits: u32,
    /// The span that was looked at last, and its chunks: most packets are of one that was.
    span_chunks: (u64, Range<u64>),
    paths: Vec<Slot>,
    messages: VecDeque<Message>,
    events: VecDeque<Event>,
}

#[derive(Debug)]
struct Slot {
    index: u8,
    data: Opener,
    control: Opener,
    sealer: Sealer,
    number: u64,
    up: bool,
    heard: Instant,
    /// Where what is in doubt begins, from the last mark.
    oldest: u64,
    mark_us: Duration,
    last_mark: Option<u32>,
    /// When a report is due without a mark: data came since the last.
    unasked: Option<Instant>,
    /// Up to where gaps were looked for, and when one was reported.
    looked_to: u64,
    gap_at: Option<Instant>,
    gap_due: bool,
    depth: u64,
    outbox: VecDeque<Control>,
}

impl Receiver {
    /// For one transfer. `kept`: spans that are there, verified, from before.
    pub fn new(offer: Offer, kept: ChunkSet, now: Instant) -> Result<Self, WireError> {
        let none = ChunkSet::new(kept.limit());
        Self::with_claims(offer, kept, none, now)
    }

    /// With spans besides that seem to be there: the sender leaves them out too, and once it said their hashes each comes as
    /// [`Event::SpanCame`]. One that is something else is asked for again.
    pub fn with_claims(offer: Offer, kept: ChunkSet, claimed: ChunkSet, now: Instant) -> Result<Self, WireError> {
        offer.check()?;
        let spans = tree::span_count(offer.content_len);
        let fitting = |set: ChunkSet| if set.limit() == spans { set } else { ChunkSet::new(spans) };
        let (kept, mut claimed) = (fitting(kept), fitting(claimed));
        let mut had = kept.clone();
        claimed.runs(0..spans).for_each(|run| _ = had.insert_range(run));
        kept.runs(0..spans).for_each(|run| _ = claimed.remove_range(run));
        let mut receiver = Self {
            received: ChunkSet::new(offer.chunks()),
            kept,
            claimed,
            offer,
            start: now,
            expected: Vec::new(),
            found: HashMap::new(),
            root: None,
            complete: false,
            span_bits: tree::span_len(offer.content_len).trailing_zeros(),
            span_chunks: (0, chunks_of_spans(&offer, 0..1).unwrap_or_default()),
            paths: Vec::new(),
            messages: VecDeque::new(),
            events: VecDeque::new(),
        };
        let runs: Vec<_> = had.runs(0..spans).collect();
        for run in &runs {
            // Chunks on the edge come again: half of each is missing.
            let bytes = tree::span_bytes(offer.content_len, run.start).start;
            let end = tree::span_bytes(offer.content_len, run.end - 1).end;
            let chunk_len = u64::from(offer.chunk_len);
            let end = if end == offer.content_len { offer.chunks() } else { end / chunk_len };
            receiver.received.insert_range(bytes.div_ceil(chunk_len)..end);
        }
        receiver.messages.extend(runs.chunks(RANGES_MAX).map(|runs| Message::Kept(runs.to_vec())));
        receiver.messages.push_back(Message::Ready);
        Ok(receiver)
    }

    /// Adds a path: it answers the sender's hello. False where the index is taken, or too high.
    pub fn add_path(&mut self, index: u8, secret: &Secret, now: Instant) -> bool {
        if usize::from(index) >= PATHS_MAX || self.paths.iter().any(|slot| slot.index == index) {
            return false;
        }
        self.paths.push(Slot {
            index,
            data: Opener::new(secret, Kind::Data, index),
            control: Opener::new(secret, Kind::FromSender, index),
            sealer: Sealer::new(secret, Kind::FromReceiver, index),
            number: 0,
            up: false,
            heard: now,
            oldest: 0,
            mark_us: Duration::ZERO,
            last_mark: None,
            unasked: None,
            looked_to: 0,
            gap_at: None,
            gap_due: false,
            depth: DEPTH_MIN,
            outbox: VecDeque::new(),
        });
        true
    }

    /// A datagram came: `head` is its first [`DATA_HEAD_LEN`] bytes, `body` the others. Control packets have a shorter head:
    /// for them, and for any that is read whole, use [`Receiver::on_datagram`].
    pub fn on_data(&mut self, head: &[u8; DATA_HEAD_LEN], body: &mut [u8], now: Instant) -> Result<Arrived, Refused> {
        let len = body.len();
        self.on_chunk(head, len, now, |opener| opener.open(head, body))
    }

    /// The same from where the packet lies, `sealed`, to where its chunk belongs; both are of one length. Whatever comes of it, the place
    /// may hold anything, so let it be one that has nothing yet: see [`Receiver::lacks`].
    pub fn on_data_into(
        &mut self,
        head: &[u8; DATA_HEAD_LEN],
        sealed: &[u8],
        place: &mut [u8],
        now: Instant,
    ) -> Result<Arrived, Refused> {
        self.on_chunk(head, sealed.len(), now, |opener| opener.open_into(head, sealed, place))
    }

    /// Whether `len` bytes may be written where this chunk belongs, before they are proven to be its: it is so long, it did not come, and no
    /// span that it touches was kept or may be there. A head and a length are whatever a stranger says, and next to it others' bytes lie.
    pub fn lacks(&self, chunk: u64, len: usize) -> bool {
        if chunk >= self.offer.chunks() || self.received.contains(chunk) {
            return false;
        }
        let bytes = self.bytes_of(chunk);
        bytes.end - bytes.start == len as u64 && self.writable(bytes.clone()) == bytes
    }

    fn on_chunk(
        &mut self,
        head: &[u8; DATA_HEAD_LEN],
        len: usize,
        now: Instant,
        open: impl FnOnce(&mut Opener) -> Result<Head, Dropped>,
    ) -> Result<Arrived, Refused> {
        let fields = Head::peek(head)?;
        if fields.kind != Kind::Data {
            return Err(Dropped::NotOurs.into());
        }
        let at = self.paths.iter().position(|slot| slot.index == fields.path).ok_or(Dropped::UnknownPath)?;
        let slot = &mut self.paths[at];
        let fields = open(&mut slot.data)?;
        slot.heard = now;
        slot.on_packet(fields.number, now);
        let chunk = fields.chunk;
        if chunk >= self.offer.chunks() {
            return Err(Misbehaviour::OutOfRange("a chunk").into());
        }
        let bytes = self.bytes_of(chunk);
        if len as u64 != bytes.end - bytes.start {
            return Err(Misbehaviour::ChunkLength(chunk).into());
        }
        if !self.received.insert(chunk) {
            return Ok(Arrived::Chunk { path: fields.path, chunk, write: bytes.start..bytes.start });
        }
        let write = self.writable(bytes.clone());
        self.look_for_spans(bytes);
        Ok(Arrived::Chunk { path: fields.path, chunk, write })
    }

    /// Where a chunk of the content lies.
    fn bytes_of(&self, chunk: u64) -> Range<u64> {
        let len = u64::from(self.offer.chunk_len);
        chunk * len..((chunk + 1) * len).min(self.offer.content_len)
    }

    /// A datagram came, in one piece. The chunk of a data packet is decrypted behind its head.
    pub fn on_datagram(&mut self, packet: &mut [u8], now: Instant) -> Result<Arrived, Refused> {
        let fields = Head::peek(packet)?;
        if fields.kind == Kind::Data {
            let (head, body) = packet.split_first_chunk_mut().ok_or(Dropped::NotOurs)?;
            return self.on_data(head, body, now);
        }
        if fields.kind != Kind::FromSender {
            return Err(Dropped::NotOurs.into());
        }
        let (start, events) = (self.start, &mut self.events);
        let slot = self.paths.iter_mut().find(|slot| slot.index == fields.path).ok_or(Dropped::UnknownPath)?;
        let (head, body) = packet.split_at_mut(CONTROL_HEAD_LEN);
        slot.control.open(head, body)?;
        slot.heard = now;
        let now_us = now.saturating_duration_since(start).as_micros() as u64;
        match Control::parse(body).map_err(Misbehaviour::from)? {
            Control::Hello { sender_us } => slot.outbox.push_back(Control::Echo { sender_us, receiver_us: now_us }),
            Control::Confirm { receiver_us, .. } => {
                if !std::mem::replace(&mut slot.up, true) {
                    let rtt = Duration::from_micros(now_us.saturating_sub(receiver_us));
                    events.push_back(Event::PathUp { path: slot.index, rtt });
                }
            }
            Control::Mark(mark) => slot.on_mark(&mark, now_us),
            Control::Echo { .. } | Control::Report(_) | Control::Knock => {
                return Err(Misbehaviour::OutOfTurn("a receiver's control packet").into());
            }
        }
        Ok(Arrived::Control { path: fields.path })
    }

    /// A message of the stream came; offer and entries are the driver's to read.
    pub fn on_message(&mut self, message: Message) -> Result<(), Misbehaviour> {
        match message {
            Message::Hashes { first, hashes } => {
                if first != self.expected.len() as u64 || hashes.len() as u64 > self.kept.limit() - first {
                    return Err(Misbehaviour::OutOfRange("hashes"));
                }
                self.expected.extend(hashes);
                for span in first..self.expected.len() as u64 {
                    if let Some(hash) = self.found.remove(&span) {
                        self.judge(span, &hash);
                    } else if self.claimed.contains(span) {
                        self.events.push_back(Event::SpanCame(span));
                    }
                }
            }
            Message::Root(root) => {
                let all = self.expected.len() as u64 == self.kept.limit();
                if !all || root != tree::root(self.offer.content_len, &self.expected) {
                    return Err(Misbehaviour::WrongRoot);
                }
                self.root = Some(root);
                self.check_complete();
            }
            Message::End { code, reason } => self.events.push_back(Event::Ended { code, reason }),
            _ => return Err(Misbehaviour::OutOfTurn("a message that is not for it to send now")),
        }
        Ok(())
    }

    /// The hash of a span, from what was written of it; also of one that was kept from before, if there is doubt.
    pub fn on_span_hash(&mut self, span: u64, hash: [u8; 32]) {
        if span >= self.kept.limit() {
            return;
        }
        if (span as usize) < self.expected.len() {
            self.judge(span, &hash);
        } else {
            self.found.insert(span, hash);
        }
    }

    /// Tells the sender where a path ends now, over that path: for who calls, and whom nobody else can reach first.
    pub fn knock(&mut self, index: u8) {
        if let Some(slot) = self.paths.iter_mut().find(|slot| slot.index == index) {
            slot.outbox.push_back(Control::Knock);
        }
    }

    /// Whether a path's handshake is done.
    pub fn is_up(&self, index: u8) -> bool {
        self.paths.iter().any(|slot| slot.index == index && slot.up)
    }

    /// The next control packet, sealed, in `out`: over which path, and how long it is.
    pub fn poll_control(&mut self, now: Instant, out: &mut [u8; CONTROL_PACKET_MAX]) -> Option<(u8, usize)> {
        self.on_time(now);
        let slot = self.paths.iter_mut().find(|slot| !slot.outbox.is_empty())?;
        let control = slot.outbox.pop_front()?;
        let len = seal_control(&control, &mut slot.sealer, &mut slot.number, out)?;
        Some((slot.index, len))
    }

    /// The next message for the stream.
    pub fn poll_message(&mut self) -> Option<Message> {
        self.messages.pop_front()
    }

    /// What happened, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to poll again, if nothing comes before.
    pub fn deadline(&self) -> Option<Instant> {
        let gap = |slot: &Slot| slot.gap_at.filter(|_| slot.gap_due).map(|at| at + GAP_EVERY);
        self.paths.iter().flat_map(|slot| [slot.unasked, gap(slot)]).flatten().min()
    }

    /// Chunks that came, and of how many.
    pub fn progress(&self) -> (u64, u64) {
        (self.received.len(), self.received.limit())
    }

    /// Spans that are kept.
    pub fn kept(&self) -> &ChunkSet {
        &self.kept
    }

    fn on_time(&mut self, now: Instant) {
        for at in 0..self.paths.len() {
            let slot = &mut self.paths[at];
            if slot.gap_due && slot.gap_at.is_none_or(|last| now >= last + GAP_EVERY) {
                slot.report_gap(now);
            }
            if slot.unasked.is_some_and(|due| now >= due) {
                slot.unasked = None;
                let window = slot.data.window();
                let low = slot.oldest.max(window.floor());
                let report = Report::of(window, slot.index, None, low, window.next().saturating_sub(slot.depth));
                // Its own way back may be what is down: the path heard last carries it.
                let heard = (0..self.paths.len()).max_by_key(|at| self.paths[*at].heard);
                if report.high > report.low {
                    self.paths[heard.unwrap_or(at)].outbox.push_back(Control::Report(report));
                }
            }
        }
    }

    /// Of `bytes`, those outside of spans that are kept, or may be. A chunk is shorter than a span, so it touches two at most.
    fn writable(&self, bytes: Range<u64>) -> Range<u64> {
        let len = 1 << self.span_bits;
        let (first, last) = (bytes.start >> self.span_bits, bytes.end.saturating_sub(1) >> self.span_bits);
        let is_had = |span| self.kept.contains(span) || self.claimed.contains(span);
        let start = if is_had(first) { bytes.end.min((first + 1) * len) } else { bytes.start };
        let end = if is_had(last) { bytes.start.max(last * len) } else { bytes.end };
        start..end.max(start)
    }

    /// Tells of spans that are whole now.
    fn look_for_spans(&mut self, bytes: Range<u64>) {
        for span in bytes.start >> self.span_bits..=(bytes.end - 1) >> self.span_bits {
            if self.span_chunks.0 != span {
                self.span_chunks = (span, chunks_of_spans(&self.offer, span..span + 1).unwrap_or_default());
            }
            let chunks = self.span_chunks.1.clone();
            let is_had = self.kept.contains(span) || self.claimed.contains(span);
            if !is_had && self.received.contains_range(chunks) {
                self.events.push_back(Event::SpanCame(span));
            }
        }
    }

    fn judge(&mut self, span: u64, hash: &[u8; 32]) {
        let Some(expected) = usize::try_from(span).ok().and_then(|at| self.expected.get(at)) else { return };
        self.claimed.remove(span);
        if expected == hash {
            if self.kept.insert(span) {
                self.events.push_back(Event::SpanKept(span));
            }
            return self.check_complete();
        }
        self.kept.remove(span);
        if let Some(chunks) = chunks_of_spans(&self.offer, span..span + 1) {
            self.received.remove_range(chunks);
        }
        self.messages.push_back(Message::Again(vec![span..span + 1]));
    }

    fn check_complete(&mut self) {
        let Some(root) = self.root.filter(|_| self.kept.is_full() && !self.complete) else { return };
        self.complete = true;
        self.events.push_back(Event::Complete { root });
    }
}

impl Slot {
    /// A data packet authenticated.
    fn on_packet(&mut self, number: u64, now: Instant) {
        if self.unasked.is_none() && !self.mark_us.is_zero() {
            self.unasked = Some(now + self.mark_us * 2);
        }
        if number < self.looked_to {
            // It was only late: others overtake more than was thought.
            self.depth = (self.depth * 2).min(DEPTH_MAX);
            return;
        }
        let window = self.data.window();
        let to = window.next().saturating_sub(self.depth);
        if to <= self.looked_to || self.gap_due {
            return;
        }
        let from = self.looked_to.max(window.floor());
        if window.run_end(from, to, true) >= to {
            self.looked_to = to;
        } else if self.gap_at.is_none_or(|last| now >= last + GAP_EVERY) {
            self.report_gap(now);
        } else {
            self.gap_due = true;
        }
    }

    fn report_gap(&mut self, now: Instant) {
        let window = self.data.window();
        let to = window.next().saturating_sub(self.depth);
        let from = window.run_end(self.looked_to.max(window.floor()), to, true);
        (self.gap_at, self.gap_due) = (Some(now), false);
        if from < to {
            let report = Report::of(window, self.index, None, from, to);
            self.outbox.push_back(Control::Report(report));
        }
        self.looked_to = to;
    }

    fn on_mark(&mut self, mark: &Mark, now_us: u64) {
        // One that was overtaken by another says nothing new.
        if self.last_mark.is_some_and(|last| mark.mark <= last) {
            return;
        }
        self.last_mark = Some(mark.mark);
        self.oldest = self.oldest.max(mark.oldest);
        self.mark_us = Duration::from_micros(mark.interval_us.into());
        self.unasked = None;
        let window = self.data.window();
        let answer = Answer { mark: mark.mark, sender_us: mark.sender_us, receiver_us: now_us, delay_us: 0 };
        let mut low = mark.oldest.max(window.floor()).min(mark.next);
        for _ in 0..REPORTS_PER_MARK_MAX {
            let report = Report::of(window, self.index, Some(answer), low, mark.next);
            low = report.high;
            self.outbox.push_back(Control::Report(report));
            if low >= mark.next {
                break;
            }
        }
    }
}
