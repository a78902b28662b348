//! The sending end of a transfer, to one receiver.
//!
//! The driver adds paths, hands in what comes ([`Sender::on_datagram`], [`Sender::on_message`]) and asks what to send: control
//! packets, whole and sealed ([`Sender::poll_control`]), and batches of chunks for one path ([`Sender::poll_batch`]), which it
//! reads, seals with the path's [`Sealer`] (on any thread) and sends. It does so after everything that it handed in, and at
//! [`Sender::deadline`]. Several receivers are several senders over one [`crate::SharedShelf`], kept together by a [`crate::Convoy`].

mod honesty;
mod path;
mod work;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use honesty::Skipped;
use path::{Path, Phase};
use work::Work;

use crate::congestion::{self, Congestion, Group};
use crate::misbehaviour::Misbehaviour;
use crate::shelf::Shelf;
use crate::tree;
use crate::wire::control::{CONTROL_BODY_MAX, Control};
use crate::wire::message::{Message, Offer};
use crate::wire::receipt::Receipt;
use crate::wire::seal::{CONTROL_HEAD_LEN, DATA_HEAD_LEN, Dropped, Head, Kind, Opener, PACKETS_MAX, Sealer, Secret};
use crate::wire::{PATHS_MAX, WireError};

/// Longest control packet.
pub const CONTROL_PACKET_MAX: usize = CONTROL_HEAD_LEN + CONTROL_BODY_MAX;
/// Most bytes of a burst, which the system takes as one datagram and cuts.
const BURST_BYTES_MAX: usize = 65_507;
/// Packets of one batch: what a system call takes, and no path waits long for its turn.
pub const BATCH_PACKETS_MAX: usize = 64;
/// The receiver may refuse each span so often on average: more is a fault that sending again does not mend.
const AGAIN_PER_SPAN_MAX: u64 = 4;
/// Chunks left below which slow paths may be passed over.
const TAIL_CHUNKS: u64 = 1 << 16;
/// Of what the others have: less, they find out as fast by themselves, and looking for it costs a little.
const HANDED_ON_MIN: f64 = 0.05;
/// What a packet has below UDP's payload, for rates: IPv6 and UDP. SCION's headers are the driver's to add.
const UNDERLAY_LEN: u64 = 48;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A path carries data: after its handshake, or again.
    PathUp {
        /// Which.
        path: u8,
        /// Its round trip.
        rtt: Duration,
    },
    /// A path does not answer any more; what was under way on it goes over others.
    PathDown {
        /// Which.
        path: u8,
    },
    /// A path answers, but swallows all data: its packets are longer than the path takes. What was under way on it goes over the others;
    /// it carries nothing until it goes another way ([`Sender::on_reroute`]).
    PathNarrow {
        /// Which.
        path: u8,
    },
    /// No path is left: it waits for one.
    AllPathsDown,
    /// What was lost before is sent now.
    Round(u32),
    /// The receiver has all chunks, and checks the last ones.
    AllCame,
    /// The receiver has everything, and says so.
    Finished(Box<Receipt>),
    /// The receiver ended it.
    Ended {
        /// For programs.
        code: u16,
        /// For people.
        reason: String,
    },
}

/// Chunks to be sent over one path, in packets numbered from `first` on.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Index of the path.
    pub path: u8,
    /// Number of the first packet.
    pub first: u64,
    /// One a packet.
    pub chunks: Vec<u64>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Chunks that the receiver has.
    pub came: u64,
    /// Chunks of all.
    pub chunks: u64,
    /// Data packets sent.
    pub sent_packets: u64,
    /// Of these, lost.
    pub lost_packets: u64,
    /// The round: 1 sends everything once.
    pub round: u32,
}

/// One path, for who shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathState {
    /// Index of the path.
    pub path: u8,
    /// Whether it carries data.
    pub is_up: bool,
    /// Its round trip, once known.
    pub rtt: Duration,
    /// What it is planned to send at, in bytes a second.
    pub rate_bytes: f64,
    /// Data packets sent, and of these lost.
    pub packets: (u64, u64),
}

/// The sending end.
#[derive(Debug)]
pub struct Sender {
    offer: Offer,
    secret: Secret,
    kind: congestion::Kind,
    seed: u64,
    start: Instant,
    work: Work,
    paths: Vec<Slot>,
    /// Indices of paths that were ever added: a bit each, and there are 32.
    used: u32,
    groups: Vec<(u32, Group)>,
    ready: bool,
    all_came: bool,
    over: bool,
    again: u64,
    round: u32,
    /// Which path is asked first.
    turn: usize,
    events: VecDeque<Event>,
}

#[derive(Debug)]
struct Slot {
    path: Path,
    sealer: Sealer,
    opener: Opener,
    number: u64,
}

impl Sender {
    /// For one transfer; `seed` chooses what is random in its congestion control, and which packet numbers are left out to find
    /// out a receiver that lies: let nobody foresee it.
    pub fn new(
        offer: Offer,
        secret: Secret,
        congestion: congestion::Kind,
        seed: u64,
        now: Instant,
    ) -> Result<Self, WireError> {
        offer.check()?;
        Ok(Self {
            work: Work::new(offer.chunks()),
            offer,
            secret,
            kind: congestion,
            seed,
            start: now,
            paths: Vec::new(),
            used: 0,
            groups: Vec::new(),
            ready: false,
            all_came: false,
            over: false,
            again: 0,
            round: 1,
            turn: 0,
            events: VecDeque::new(),
        })
    }

    /// Adds a path; its handshake begins. `group`: paths of one number share a bottleneck, and together take what one would.
    /// `None` where the index was used before in this transfer, or is not below [`PATHS_MAX`].
    pub fn add_path(&mut self, index: u8, group: Option<u32>, now: Instant) -> Option<Sealer> {
        if usize::from(index) >= PATHS_MAX || self.used >> index & 1 == 1 {
            return None;
        }
        self.used |= 1 << index;
        let controller = self.controller(index, group);
        let packet_len = u64::from(self.offer.chunk_len) + DATA_HEAD_LEN as u64 + UNDERLAY_LEN;
        self.paths.push(Slot {
            path: Path::new(index, group, controller, packet_len, Skipped::new(self.seed, index), now),
            sealer: Sealer::new(&self.secret, Kind::FromSender, index),
            opener: Opener::new(&self.secret, Kind::FromReceiver, index),
            number: 0,
        });
        Some(Sealer::new(&self.secret, Kind::Data, index))
    }

    /// Takes a path out; what was under way on it goes over others. Its index stays used: a packet number must not be sealed
    /// twice with one key.
    pub fn remove_path(&mut self, index: u8) {
        if let Some(at) = self.paths.iter().position(|slot| slot.path.index == index) {
            self.paths.remove(at).path.give_up(&mut self.work);
            self.turn = 0;
        }
    }

    /// Paths that share a bottleneck, as the scoreboard sees it now.
    pub fn set_group(&mut self, index: u8, group: Option<u32>) {
        let Some(at) = self.paths.iter().position(|slot| slot.path.index == index) else { return };
        if self.paths[at].path.group != group {
            // What it leaves has one path less; what it comes to has its rate already. Alone, it starts anew.
            self.paths[at].path.group = group;
            self.paths[at].path.controller = self.controller(index, group);
            if matches!(self.paths[at].path.phase, Phase::Silent { .. } | Phase::Narrow) {
                self.paths[at].path.controller.on_silent();
            }
            let used = |number: u32| self.paths.iter().any(|slot| slot.path.group == Some(number));
            let groups = std::mem::take(&mut self.groups);
            self.groups = groups.into_iter().filter(|(number, _)| used(*number)).collect();
        }
    }

    /// Two paths share a bottleneck: they, and all that share one with either, are one group from now on.
    pub fn couple(&mut self, one: u8, other: u8) {
        let group_of = |index| self.paths.iter().find(|slot| slot.path.index == index).map(|slot| slot.path.group);
        let (Some(first), Some(second)) = (group_of(one), group_of(other)) else { return };
        let is_free = |number: &u32| !self.paths.iter().any(|slot| slot.path.group == Some(*number));
        let Some(target) = first.into_iter().chain(second).min().or_else(|| (0..).find(is_free)) else { return };
        let joins = |path: &Path| {
            let is_of = |index, group: Option<u32>| path.index == index || (group.is_some() && path.group == group);
            is_of(one, first) || is_of(other, second)
        };
        let indices: Vec<u8> =
            self.paths.iter().map(|slot| &slot.path).filter(|path| joins(path)).map(|path| path.index).collect();
        indices.into_iter().for_each(|index| self.set_group(index, Some(target)));
    }

    /// A path goes another way from now on.
    pub fn on_reroute(&mut self, index: u8, now: Instant) {
        if let Some(slot) = self.paths.iter_mut().find(|slot| slot.path.index == index) {
            slot.path.on_reroute(now);
        }
    }

    /// The offer.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// A sealed control packet came, over any path. Which path it is of: its address now is where the packet came from.
    pub fn on_datagram(&mut self, packet: &mut [u8], now: Instant) -> Result<u8, Refused> {
        let head = Head::peek(packet)?;
        if head.kind != Kind::FromReceiver {
            return Err(Dropped::NotOurs.into());
        }
        let at = self.paths.iter().position(|slot| slot.path.index == head.path).ok_or(Dropped::UnknownPath)?;
        let (head_bytes, body) = packet.split_at_mut(CONTROL_HEAD_LEN);
        self.paths[at].opener.open(head_bytes, body)?;
        self.paths[at].path.last_heard = now;
        self.on_control(at, Control::parse(body).map_err(Misbehaviour::from)?, now)?;
        Ok(head.path)
    }

    fn on_control(&mut self, at: usize, control: Control, now: Instant) -> Result<(), Misbehaviour> {
        let now_us = self.clock(now);
        match control {
            Control::Echo { sender_us, receiver_us } => {
                if self.paths[at].path.on_echo(sender_us, receiver_us, now_us, now)? {
                    self.went_up(at);
                }
            }
            Control::Report(report) => {
                // It may be about another path, whose way back is down.
                let about = self.paths.iter().position(|slot| slot.path.index == report.path);
                let Some(at) = about else {
                    // One that was taken out since.
                    let was_used = u32::from(report.path) < u32::BITS && self.used >> report.path & 1 == 1;
                    return if was_used { Ok(()) } else { Err(Misbehaviour::ReportedUnsent { path: report.path }) };
                };
                match self.paths[at].path.on_report(&report, now, now_us, &mut self.work)? {
                    Some(Phase::Up) => self.went_up(at),
                    Some(Phase::Narrow) => self.events.push_back(Event::PathNarrow { path: report.path }),
                    _ => {}
                }
                self.check_done();
            }
            Control::Knock => self.paths[at].path.on_knock(now),
            Control::Hello { .. } | Control::Confirm { .. } | Control::Mark(_) => {
                return Err(Misbehaviour::OutOfTurn("a sender's control packet"));
            }
        }
        Ok(())
    }

    /// A message of the stream came.
    pub fn on_message(&mut self, message: Message) -> Result<(), Misbehaviour> {
        match message {
            Message::Ready => self.ready = true,
            Message::Kept(_) if self.ready => return Err(Misbehaviour::OutOfTurn("what it kept, after it was ready")),
            Message::Kept(spans) => {
                for spans in spans {
                    let chunks = self.chunks_within(spans)?;
                    self.work.kept(chunks);
                }
            }
            Message::Again(spans) => {
                for spans in spans {
                    self.again += spans.end - spans.start;
                    if self.again > AGAIN_PER_SPAN_MAX * tree::span_count(self.offer.content_len) {
                        return Err(Misbehaviour::AgainTooOften);
                    }
                    let chunks = chunks_of_spans(&self.offer, spans).ok_or(Misbehaviour::OutOfRange("spans"))?;
                    self.work.again(chunks);
                    self.all_came = false;
                }
            }
            Message::Receipt(receipt) => {
                self.over = true;
                self.events.push_back(Event::Finished(receipt));
            }
            Message::End { code, reason } => {
                self.over = true;
                self.events.push_back(Event::Ended { code, reason });
            }
            _ => return Err(Misbehaviour::OutOfTurn("a sender's message")),
        }
        self.check_done();
        Ok(())
    }

    /// The next control packet, sealed, in `out`: over which path, and how long it is.
    pub fn poll_control(&mut self, now: Instant, out: &mut [u8; CONTROL_PACKET_MAX]) -> Option<(u8, usize)> {
        self.on_time(now);
        let slot = self.paths.iter_mut().find(|slot| !slot.path.outbox.is_empty())?;
        let control = slot.path.outbox.pop_front()?;
        let len = seal_control(&control, &mut slot.sealer, &mut slot.number, out)?;
        Some((slot.path.index, len))
    }

    /// The next chunks to send, of those that are at hand; false if there are none now.
    pub fn poll_batch(&mut self, now: Instant, shelf: &mut impl Shelf, batch: &mut Batch) -> bool {
        self.on_time(now);
        batch.chunks.clear();
        if !self.ready || self.over || self.work.is_done() {
            return false;
        }
        for _ in 0..self.paths.len() {
            self.turn = (self.turn + 1) % self.paths.len();
            let at = self.turn;
            let path = &mut self.paths[at].path;
            let room = path.allowance(now).min(BATCH_PACKETS_MAX);
            let room = if path.is_fast() { whole_bursts(room, self.offer.chunk_len) } else { room };
            if room == 0 || !self.is_worth(at) {
                continue;
            }
            self.work.take(shelf, room, &mut batch.chunks);
            if batch.chunks.is_empty() && self.is_fastest(at) {
                self.work.double(shelf, now, self.paths[at].path.rtt(), room, &mut batch.chunks);
            }
            if batch.chunks.is_empty() {
                self.paths[at].path.on_starved();
                continue;
            }
            if self.work.round != self.round {
                self.round = self.work.round;
                self.events.push_back(Event::Round(self.round));
            }
            batch.path = self.paths[at].path.index;
            batch.first = self.paths[at].path.on_sent(&batch.chunks);
            return batch.first + (batch.chunks.len() as u64) < PACKETS_MAX;
        }
        false
    }

    /// When to poll again, if nothing comes before.
    pub fn deadline(&self) -> Option<Instant> {
        let idle = self.is_idle();
        let of = |slot: &Slot| {
            let send = slot.path.next_send().filter(|_| !idle);
            [slot.path.deadline(idle), send].into_iter().flatten().min()
        };
        if self.over { None } else { self.paths.iter().filter_map(of).min() }
    }

    /// What happened, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether it has something to send, or may have: the receiver is ready, and not known to have everything.
    pub(crate) fn is_active(&self) -> bool {
        self.ready && !self.over && !self.all_came
    }

    /// Whether it is to send some of `chunks` where its round is going, or may have to send some of them again; these where they are at
    /// most `behind` chunks behind it.
    pub(crate) fn needs(&self, chunks: &Range<u64>, behind: u64) -> bool {
        self.work.needs(chunks, behind)
    }

    /// Whether all of `chunks` came, as far as is known; or it takes nothing more.
    pub(crate) fn has_all_of(&self, chunks: &Range<u64>) -> bool {
        self.over || self.work.acked.contains_range(chunks.clone())
    }

    /// Bytes of content that came, as far as is known.
    pub(crate) fn came_bytes(&self) -> u64 {
        self.work.acked.len() * u64::from(self.offer.chunk_len)
    }

    /// Of its paths that carry data, the shortest round trip.
    pub(crate) fn rtt(&self) -> Option<Duration> {
        self.paths.iter().filter(|slot| slot.path.is_up()).map(|slot| slot.path.rtt()).min()
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let sum = |count: fn(&Path) -> u64| self.paths.iter().map(|slot| count(&slot.path)).sum();
        Progress {
            came: self.work.acked.len(),
            chunks: self.work.acked.limit(),
            sent_packets: sum(|path| path.sent_packets),
            lost_packets: sum(|path| path.lost_packets),
            round: self.round,
        }
    }

    /// Whether the receiver has all chunks, as far as is known.
    pub fn has_all(&self) -> bool {
        self.all_came
    }

    /// What all of its paths are planned to send at, in bytes a second.
    pub fn rate_bytes(&self) -> f64 {
        self.paths.iter().map(|slot| slot.path.rate()).sum()
    }

    fn on_room(&mut self, rate_bytes: f64, now: Instant) {
        let up = self.paths.iter().filter(|slot| slot.path.is_up()).count().max(1);
        self.paths.iter_mut().for_each(|slot| slot.path.on_room(rate_bytes / up as f64, now));
    }

    /// Its paths.
    pub fn paths(&self) -> impl Iterator<Item = PathState> + '_ {
        self.paths.iter().map(|Slot { path, .. }| PathState {
            path: path.index,
            is_up: path.is_up(),
            rtt: path.rtt(),
            rate_bytes: path.rate(),
            packets: (path.sent_packets, path.lost_packets),
        })
    }

    fn clock(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_micros() as u64
    }

    fn is_idle(&self) -> bool {
        !self.ready || self.over || self.work.waiting() == 0
    }

    fn on_time(&mut self, now: Instant) {
        let (idle, now_us) = (self.is_idle(), self.clock(now));
        for at in 0..self.paths.len() {
            let path = &mut self.paths[at].path;
            if let Some(Phase::Silent { .. }) = path.on_time(now, now_us, idle, &mut self.work) {
                self.events.push_back(Event::PathDown { path: path.index });
                if !self.paths.iter().any(|slot| slot.path.is_up()) {
                    self.events.push_back(Event::AllPathsDown);
                }
            }
        }
    }

    fn went_up(&mut self, at: usize) {
        let path = &self.paths[at].path;
        self.events.push_back(Event::PathUp { path: path.index, rtt: path.rtt() });
    }

    fn check_done(&mut self) {
        if self.work.is_done() && self.ready && !self.all_came {
            self.all_came = true;
            self.events.push_back(Event::AllCame);
        }
    }

    /// The controller of a path.
    fn controller(&mut self, index: u8, group: Option<u32>) -> Box<dyn Congestion> {
        let one = self.kind.build(self.seed.wrapping_add(u64::from(index)));
        let Some(number) = group else { return one };
        if let Some((_, group)) = self.groups.iter().find(|(known, _)| *known == number) {
            return group.join();
        }
        let group = Group::new(one);
        let share = group.join();
        self.groups.push((number, group));
        share
    }

    fn is_fastest(&self, at: usize) -> bool {
        let up = self.paths.iter().filter(|slot| slot.path.is_up());
        up.map(|slot| slot.path.rtt()).min() == Some(self.paths[at].path.rtt())
    }

    /// Whether what this path takes comes before faster ones have sent all the rest: nobody waits for a slow path's tail.
    fn is_worth(&self, at: usize) -> bool {
        let left = self.work.waiting();
        if left > TAIL_CHUNKS {
            return true;
        }
        let mine = self.paths[at].path.rtt();
        let faster = self.paths.iter().map(|slot| &slot.path).filter(|path| path.is_up() && path.rtt() < mine);
        let (rate, rtt) =
            faster.fold((0.0, Duration::MAX), |(rate, rtt), path| (rate + path.rate(), path.rtt().min(rtt)));
        if rate <= 0.0 {
            return true;
        }
        let others_need = left as f64 * f64::from(self.offer.chunk_len) / rate + rtt.as_secs_f64() / 2.0;
        mine.as_secs_f64() / 2.0 <= others_need
    }

    /// The chunks that lie within spans, whole.
    fn chunks_within(&self, spans: Range<u64>) -> Result<Range<u64>, Misbehaviour> {
        let (len, chunk_len) = (self.offer.content_len, u64::from(self.offer.chunk_len));
        if spans.end > tree::span_count(len) {
            return Err(Misbehaviour::OutOfRange("spans"));
        }
        let bytes = tree::span_bytes(len, spans.start).start..tree::span_bytes(len, spans.end - 1).end;
        // The last chunk ends with the content.
        let end = if bytes.end == len { self.offer.chunks() } else { bytes.end / chunk_len };
        Ok(bytes.start.div_ceil(chunk_len)..end)
    }
}

/// One of several transfers of this end is over: of the uplink that they shared, the others find out at once how much of what it took
/// they can have. Each by itself would take as long as a flow of TCP on a long path does. What they find out by is what arrives, so where
/// something else is in their way they stay as they are. Answers what was left, as too little to look for: to be handed in with what
/// comes next.
pub fn hand_on<'a>(rate_bytes: f64, to: impl Iterator<Item = &'a mut Sender>, now: Instant) -> f64 {
    let mut to: Vec<&mut Sender> = to.filter(|sender| sender.is_active()).collect();
    let theirs: f64 = to.iter().map(|sender| sender.rate_bytes()).sum();
    if rate_bytes < HANDED_ON_MIN * theirs {
        return rate_bytes;
    }
    // Alike, so that who has least gains most: they draw level, and end together.
    let part = rate_bytes / to.len().max(1) as f64;
    to.iter_mut().for_each(|sender| sender.on_room(part, now));
    0.0
}

/// Of the packets that may leave, those that leave as whole bursts; all, where they are less than one.
fn whole_bursts(packets: usize, chunk_len: u16) -> usize {
    let burst = (BURST_BYTES_MAX / (DATA_HEAD_LEN + usize::from(chunk_len))).max(1);
    if packets < burst { packets } else { packets - packets % burst }
}

/// The chunks that touch spans; `None` where the content does not have them.
pub(crate) fn chunks_of_spans(offer: &Offer, spans: Range<u64>) -> Option<Range<u64>> {
    if spans.is_empty() || spans.end > tree::span_count(offer.content_len) {
        return None;
    }
    let first = tree::span_bytes(offer.content_len, spans.start).start;
    let end = tree::span_bytes(offer.content_len, spans.end - 1).end;
    let chunk_len = u64::from(offer.chunk_len);
    Some(first / chunk_len..end.div_ceil(chunk_len))
}

/// Writes and seals one; its length.
pub(crate) fn seal_control(
    control: &Control,
    sealer: &mut Sealer,
    number: &mut u64,
    out: &mut [u8; CONTROL_PACKET_MAX],
) -> Option<usize> {
    let mut body = Vec::with_capacity(CONTROL_BODY_MAX);
    control.write(&mut body);
    let (head, rest) = out.split_first_chunk_mut::<CONTROL_HEAD_LEN>()?;
    rest.get_mut(..body.len())?.copy_from_slice(&body);
    sealer.seal_control(*number, &mut rest[..body.len()], head);
    *number += 1;
    Some(CONTROL_HEAD_LEN + body.len())
}

/// Why nothing was made of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Nobody knows who sent it: it is as if it had not come.
    Dropped(Dropped),
    /// The other end sent it, and may not.
    Misbehaviour(Misbehaviour),
}

impl From<Dropped> for Refused {
    fn from(dropped: Dropped) -> Self {
        Self::Dropped(dropped)
    }
}

impl From<Misbehaviour> for Refused {
    fn from(misbehaviour: Misbehaviour) -> Self {
        Self::Misbehaviour(misbehaviour)
    }
}
