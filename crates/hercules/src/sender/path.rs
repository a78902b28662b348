//! One path of a sender: its handshake, its packets under way, its intervals.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::honesty::{Arrival, Skipped, TheirClock};
use super::work::Work;
use crate::congestion::{self, Congestion, PathView, Plan};
use crate::misbehaviour::Misbehaviour;
use crate::wire::control::{Answer, Control, Mark, Report};

/// First wait for the answer to a hello; doubled up to the longest.
const HELLO_WAIT_MIN: Duration = Duration::from_secs(1);
const HELLO_WAIT_MAX: Duration = Duration::from_secs(8);
/// A path without data is marked as often: it is seen to live, and addresses behind NATs stay.
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// A mark that is not answered for three round trips and this long means that the path is down.
const SILENCE_MIN: Duration = Duration::from_millis(300);
/// A silent path is tried as often.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// Intervals that are remembered of a silent path: as many marks as may be answered late.
const SILENT_INTERVALS_MAX: usize = 64;
/// Intervals that are open at once, of which four are planned a round trip: what a receiver answers and reports is known long before. One
/// that reports and answers no mark is silent beyond.
const INTERVALS_MAX: usize = 8192;
/// A mark closes an interval of at least so many bytes, so that reports stay below 0.5 % of the data...
const MARK_BYTES_MIN: u64 = 20_000;
/// ... but waits for them no longer than this.
const MARK_LATE_MAX: Duration = Duration::from_millis(250);
/// Marks a round trip where there is nothing more to send than what is under way, if these are not apart as intervals are.
const LAST_MARKS: u32 = 32;
/// Packets of which the fate is open at most: the receiver's window, with room for what is lost.
const FLIGHT_PACKETS_MAX: usize = crate::window::WINDOW_PACKETS as usize / 2;
/// How far packets overtake others, at first and at most (RFC 9002 §6.1.1: 3).
const DEPTH_MIN: u64 = 3;
const DEPTH_MAX: u64 = 4096;
/// A path of which packets came late is one that reorders for so long; there a packet is not lost before what was sent so much of a round
/// trip after it came (RFC 8985 §7.2: a window of time, where packets overtake others).
const REORDERS_FOR: Duration = Duration::from_secs(10);
const REORDERED_PART: u32 = 2;
/// A burst is what the rate makes in so long, ...
const BURST_TIME: f64 = 1e-3;
/// ... at least and at most so many bytes: a coalesced send; a small router's queue.
const BURST_BYTES: (f64, f64) = (16e3, 1e6);
/// It is waited for half a burst, but for no more than this: what the system takes as one datagram and cuts, with what each packet has
/// below UDP.
const QUANTUM_BYTES_MAX: f64 = 68e3;
/// The shortest round trip is of the last ten seconds to twenty.
const RTT_MIN_AGE: Duration = Duration::from_secs(10);
/// Round trips are believed between these.
const RTT_MIN: Duration = Duration::from_micros(10);
const RTT_MAX: Duration = Duration::from_secs(10);
/// Marks are answered at once. What a receiver says that it waited is taken off a round trip up to this (RFC 9002 §5.3).
const ANSWER_DELAY_MAX: Duration = Duration::from_millis(1);
/// So many packets of data lost one after the other (RFC 8899 §4.3: a black hole), for so long and three round trips, while marks are
/// answered: the path does not take packets as long as these.
const HOLE_PACKETS: u64 = 16;
const HOLE_TIME: Duration = Duration::from_secs(1);
/// Hellos of which an echo may come.
const HELLOS_MAX: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No echo came.
    Opening {
        retry: Instant,
        wait: Duration,
    },
    Up,
    /// Marks are not answered.
    Silent {
        retry: Instant,
        wait: Duration,
    },
    /// Marks are answered, and no data comes: its packets are too long. It waits for another way.
    Narrow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Flying,
    /// Missing in one report, perhaps overtaken.
    Doubted,
    Lost,
    Came,
    /// The number was left out.
    Skipped,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    chunk: u64,
    interval: u32,
    fate: Fate,
}

#[derive(Debug)]
struct Open {
    interval: congestion::Interval,
    plan: Plan,
    start: Instant,
    end: Option<Instant>,
    /// Packets, and those whose fate is known.
    packets: u64,
    known: u64,
    /// This end's clock in the mark that ended it, and when that came.
    marked_us: Option<u64>,
    arrived: Option<Arrival>,
    answered: bool,
    /// The round trip of that mark.
    rtt: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Path {
    pub index: u8,
    pub group: Option<u32>,
    pub phase: Phase,
    pub outbox: VecDeque<Control>,
    pub last_heard: Instant,
    pub controller: Box<dyn Congestion>,
    packet_len: u64,
    base: u64,
    sent: VecDeque<Sent>,
    flying: u64,
    /// The last one is being sent.
    intervals: VecDeque<Open>,
    /// Intervals that are known whole, and when they ended: lost packets of these may yet come late.
    ended: VecDeque<(u32, Instant)>,
    /// Lost packets of intervals before this one will not.
    past: u32,
    /// Of the mark before the oldest of `intervals`.
    before: Option<Arrival>,
    clock: TheirClock,
    skipped: Skipped,
    /// This end's clock in the last hellos.
    hellos: VecDeque<u64>,
    tokens: f64,
    filled: Instant,
    rtt: Duration,
    rtt_latest: Duration,
    rtt_min: [Duration; 2],
    rtt_min_at: Instant,
    depth: u64,
    /// When a packet came last that others had overtaken.
    late_at: Option<Instant>,
    /// Packets lost since one came, and since when that is known.
    hole_packets: u64,
    hole_since: Option<Instant>,
    pub lost_packets: u64,
    pub sent_packets: u64,
}

impl Path {
    pub(super) fn new(
        index: u8,
        group: Option<u32>,
        controller: Box<dyn Congestion>,
        packet_len: u64,
        skipped: Skipped,
        now: Instant,
    ) -> Self {
        Self {
            index,
            group,
            phase: Phase::Opening { retry: now, wait: HELLO_WAIT_MIN },
            outbox: VecDeque::new(),
            last_heard: now,
            controller,
            packet_len,
            base: 0,
            sent: VecDeque::new(),
            flying: 0,
            intervals: VecDeque::new(),
            ended: VecDeque::new(),
            past: 0,
            before: None,
            clock: TheirClock::new(now),
            skipped,
            hellos: VecDeque::new(),
            tokens: 0.0,
            filled: now,
            rtt: RTT_MAX,
            rtt_latest: RTT_MAX,
            rtt_min: [RTT_MAX; 2],
            rtt_min_at: now,
            depth: DEPTH_MIN,
            late_at: None,
            hole_packets: 0,
            hole_since: None,
            lost_packets: 0,
            sent_packets: 0,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    pub(super) fn rtt(&self) -> Duration {
        self.rtt
    }

    /// What it is planned to send at, in bytes a second; 0 where it carries nothing.
    pub(super) fn rate(&self) -> f64 {
        if !self.is_up() {
            return 0.0;
        }
        self.intervals.back().map_or(0.0, |open| open.plan.rate_bytes)
    }

    fn view(&self, now: Instant) -> PathView {
        PathView {
            rtt_min: self.rtt_shortest(),
            rtt: self.rtt,
            rtt_latest: self.rtt_latest,
            now,
            interval_bytes_min: MARK_BYTES_MIN as f64,
            packet_bytes: self.packet_len as f64,
            reorders: self.reorders(now),
        }
    }

    fn reorders(&self, now: Instant) -> bool {
        self.late_at.is_some_and(|at| now < at + REORDERS_FOR)
    }

    /// Whether a packet of interval `id` that the answer to `mark` lacks too is lost, and not only late.
    fn is_overdue(&self, id: u32, mark: u32, now: Instant) -> bool {
        if !self.reorders(now) {
            return true;
        }
        let first = self.intervals.front().map_or(0, |open| open.interval.id);
        let end = |id: u32| self.intervals.get(id.wrapping_sub(first) as usize).and_then(|open| open.end);
        // An interval that is known whole was long ago.
        let since = end(id).zip(end(mark)).map(|(sent, marked)| marked.saturating_duration_since(sent));
        since.is_none_or(|since| since >= self.rtt / REORDERED_PART)
    }

    fn rtt_shortest(&self) -> Duration {
        self.rtt_min[0].min(self.rtt_min[1])
    }

    fn next(&self) -> u64 {
        self.base + self.sent.len() as u64
    }

    /// A round trip, and for how long of it the receiver says that it waited. What the path is believed to have taken.
    fn on_rtt(&mut self, rtt: Duration, waited: Duration, now: Instant) -> Duration {
        let rtt = rtt.clamp(RTT_MIN, RTT_MAX);
        if now >= self.rtt_min_at + RTT_MIN_AGE {
            self.rtt_min = [RTT_MAX, self.rtt_min[0]];
            self.rtt_min_at = now;
        }
        self.rtt_min[0] = self.rtt_min[0].min(rtt);
        // RFC 9002 §5.3: nothing that the receiver says makes it shorter than the shortest that was measured.
        let rtt = rtt.saturating_sub(waited.min(ANSWER_DELAY_MAX)).max(self.rtt_shortest());
        self.rtt_latest = rtt;
        self.rtt = if self.rtt == RTT_MAX { rtt } else { (self.rtt * 7 + rtt) / 8 };
        rtt
    }

    /// The receiver says where the path ends now: it is tried there at once.
    pub(super) fn on_knock(&mut self, now: Instant) {
        if let Phase::Opening { retry, wait } | Phase::Silent { retry, wait } = &mut self.phase {
            (*retry, *wait) = (now, HELLO_WAIT_MIN);
        }
    }

    /// The receiver's echo: the path carries data from now on. Whether it did not before.
    pub(super) fn on_echo(
        &mut self,
        sender_us: u64,
        receiver_us: u64,
        now_us: u64,
        now: Instant,
    ) -> Result<bool, Misbehaviour> {
        if !self.hellos.contains(&sender_us) {
            // One of long ago may come late; it says nothing of the round trip.
            let is_old =
                self.hellos.len() == HELLOS_MAX && self.hellos.front().is_some_and(|oldest| sender_us < *oldest);
            return if is_old { Ok(false) } else { Err(Misbehaviour::OutOfTurn("an echo of no hello")) };
        }
        self.on_rtt(Duration::from_micros(now_us.saturating_sub(sender_us)), Duration::ZERO, now);
        let rtt_us = u32::try_from(self.rtt.as_micros()).unwrap_or(u32::MAX);
        self.outbox.push_back(Control::Confirm { receiver_us, rtt_us });
        if !matches!(self.phase, Phase::Opening { .. }) {
            return Ok(false);
        }
        self.phase = Phase::Up;
        self.filled = now;
        self.start_interval(now);
        Ok(true)
    }

    fn start_interval(&mut self, now: Instant) {
        let id = self.intervals.back().map_or(0, |open| open.interval.id.wrapping_add(1));
        let plan = self.controller.plan(id, &self.view(now));
        self.fill(now);
        let interval = congestion::Interval {
            id,
            sent_bytes: 0,
            lost_bytes: 0,
            sent_for: Duration::ZERO,
            received_for: None,
            waited: None,
            idle: false,
        };
        self.intervals.push_back(Open {
            interval,
            plan,
            start: now,
            end: None,
            packets: 0,
            known: 0,
            marked_us: None,
            arrived: None,
            answered: false,
            rtt: None,
        });
    }

    /// Ends the interval with a mark.
    fn close_interval(&mut self, idle: bool, now_us: u64, now: Instant) {
        let (base, next) = (self.base, self.next());
        let Some(open) = self.intervals.back_mut() else { return };
        (open.end, open.marked_us) = (Some(now), Some(now_us));
        open.interval.idle |= idle;
        open.interval.sent_for = now.saturating_duration_since(open.start);
        let mark = open.interval.id;
        self.start_interval(now);
        let length = self.intervals.back().map_or(KEEP_ALIVE, |open| open.plan.length) + MARK_LATE_MAX;
        let interval_us = length.as_micros() as u32;
        self.outbox.push_back(Control::Mark(Mark { mark, sender_us: now_us, oldest: base, next, interval_us }));
    }

    /// What is due by the clock. `idle`: there is nothing to send.
    pub(super) fn on_time(&mut self, now: Instant, now_us: u64, idle: bool, work: &mut Work) -> Option<Phase> {
        let before = self.phase;
        match self.phase {
            Phase::Opening { retry, wait } if now >= retry => {
                self.outbox.push_back(Control::Hello { sender_us: now_us });
                self.hellos.push_back(now_us);
                if self.hellos.len() > HELLOS_MAX {
                    self.hellos.pop_front();
                }
                self.phase = Phase::Opening { retry: now + wait, wait: (wait * 2).min(HELLO_WAIT_MAX) };
            }
            Phase::Opening { .. } => {}
            Phase::Silent { retry, wait } if now >= retry => {
                self.phase = Phase::Silent { retry: now + wait, wait: (wait * 2).min(RETRY_MAX) };
                self.close_interval(true, now_us, now);
                self.forget(now);
                if self.intervals.len() > SILENT_INTERVALS_MAX {
                    let open = self.intervals.pop_front();
                    self.ended.extend(open.map(|open| (open.interval.id, now)));
                    self.before = None;
                }
            }
            Phase::Silent { .. } | Phase::Narrow => {}
            Phase::Up => {
                if self.intervals.len() > INTERVALS_MAX || self.silent_at().is_some_and(|at| now >= at) {
                    self.phase = Phase::Silent { retry: now, wait: self.rtt.min(RETRY_MAX) };
                    self.give_up(work);
                } else if self.interval_due(idle).is_some_and(|due| now >= due) || self.controller.is_stale() {
                    self.close_interval(idle, now_us, now);
                    self.forget(now);
                }
            }
        }
        let kind = |phase: Phase| std::mem::discriminant(&phase);
        (kind(before) != kind(self.phase)).then_some(self.phase)
    }

    /// This end stopped using up to so many bytes a second that this path may have now.
    pub(super) fn on_room(&mut self, rate_bytes: f64, now: Instant) {
        if self.is_up() {
            let view = self.view(now);
            self.controller.on_room(rate_bytes, &view);
        }
    }

    /// When the current interval ends.
    fn interval_due(&self, idle: bool) -> Option<Instant> {
        let open = self.intervals.back()?;
        let due = open.start + open.plan.length;
        Some(match open.packets {
            0 => open.start + if idle { KEEP_ALIVE } else { KEEP_ALIVE.min(open.plan.length + MARK_LATE_MAX) },
            // The last packets are marked at once, as their fate is all that is waited for; but not each of very many that are sent once more.
            _ if idle => (open.start + (self.rtt / LAST_MARKS).min(congestion::INTERVAL_MIN)).max(self.filled),
            _ if open.interval.sent_bytes >= MARK_BYTES_MIN => due,
            _ => due + MARK_LATE_MAX,
        })
    }

    /// When the path counts as down: the oldest mark without an answer has waited too long.
    fn silent_at(&self) -> Option<Instant> {
        let oldest = self.intervals.iter().filter_map(|open| open.end.filter(|_| !open.answered)).next()?;
        Some(oldest.max(self.last_heard) + self.rtt * 3 + SILENCE_MIN)
    }

    pub(super) fn deadline(&self, idle: bool) -> Option<Instant> {
        match self.phase {
            Phase::Opening { retry, .. } | Phase::Silent { retry, .. } => Some(retry),
            Phase::Narrow => None,
            Phase::Up => [self.interval_due(idle), self.silent_at()].into_iter().flatten().min(),
        }
    }

    fn fill(&mut self, now: Instant) {
        let rate = self.intervals.back().map_or(0.0, |open| open.plan.rate_bytes);
        let burst = (rate * BURST_TIME).clamp(BURST_BYTES.0, BURST_BYTES.1).max(2.0 * self.packet_len as f64);
        let earned = now.saturating_duration_since(self.filled).as_secs_f64() * rate;
        self.tokens = (self.tokens + earned).min(burst);
        self.filled = self.filled.max(now);
    }

    /// How many packets may leave now.
    pub(super) fn allowance(&mut self, now: Instant) -> usize {
        if !self.is_up() {
            return 0;
        }
        self.fill(now);
        let Some(plan) = self.intervals.back().map(|open| open.plan) else { return 0 };
        if self.tokens < QUANTUM_BYTES_MAX && self.is_fast() {
            return 0;
        }
        let window = plan.window_bytes;
        let room = (window - (self.flying * self.packet_len) as f64).min(self.tokens) / self.packet_len as f64;
        (room.max(0.0) as usize).min(FLIGHT_PACKETS_MAX.saturating_sub(self.sent.len()))
    }

    /// Whether packets leave in whole bursts: a system call for a few of them would cost more than it evens out.
    pub(super) fn is_fast(&self) -> bool {
        self.intervals.back().is_some_and(|open| self.quantum(open.plan.rate_bytes) >= QUANTUM_BYTES_MAX)
    }

    /// When packets may leave again; `None` until a report makes room.
    pub(super) fn next_send(&self) -> Option<Instant> {
        let open = self.intervals.back().filter(|_| self.is_up())?;
        let full = ((self.flying + 1) * self.packet_len) as f64 > open.plan.window_bytes;
        if full || self.sent.len() >= FLIGHT_PACKETS_MAX {
            return None;
        }
        let wait = ((self.quantum(open.plan.rate_bytes) - self.tokens) / open.plan.rate_bytes).max(0.0);
        Some(self.filled + Duration::from_secs_f64(wait))
    }

    /// Bytes that are waited for at this rate: half a burst, as a wake-up for every packet costs more than it evens out.
    fn quantum(&self, rate_bytes: f64) -> f64 {
        (rate_bytes * BURST_TIME / 2.0).clamp(self.packet_len as f64, QUANTUM_BYTES_MAX)
    }

    /// `chunks` leave now; the number of the first packet.
    pub(super) fn on_sent(&mut self, chunks: &[u64]) -> u64 {
        let skips = self.skipped.take(self.next());
        let first = self.next() + u64::from(skips);
        let Some(open) = self.intervals.back_mut() else { return first };
        let (count, bytes) = (chunks.len() as u64, chunks.len() as u64 * self.packet_len);
        open.packets += count;
        open.interval.sent_bytes += bytes;
        let interval = open.interval.id;
        self.sent.extend(skips.then_some(Sent { chunk: 0, interval, fate: Fate::Skipped }));
        self.sent.extend(chunks.iter().map(|chunk| Sent { chunk: *chunk, interval, fate: Fate::Flying }));
        self.flying += count;
        self.sent_packets += count;
        self.tokens -= bytes as f64;
        first
    }

    /// There was less to send than might have left.
    pub(super) fn on_starved(&mut self) {
        if let Some(open) = self.intervals.back_mut() {
            open.interval.idle = true;
        }
    }

    /// Everything under way is taken for lost; it is still known if it came.
    pub(in crate::sender) fn give_up(&mut self, work: &mut Work) {
        for at in 0..self.sent.len() {
            if matches!(self.sent[at].fate, Fate::Flying | Fate::Doubted) {
                self.settle(at, Fate::Lost, work);
            }
        }
        (self.hole_packets, self.hole_since) = (0, None);
        self.controller.on_silent();
        // What a path does while it goes down says nothing of how fast it is.
        self.intervals.iter_mut().for_each(|open| open.interval.idle = true);
    }

    fn settle(&mut self, at: usize, fate: Fate, work: &mut Work) {
        let sent = self.sent[at];
        self.sent[at].fate = fate;
        let was_open = matches!(sent.fate, Fate::Flying | Fate::Doubted);
        match fate {
            Fate::Came => {
                work.came(sent.chunk);
                self.hole_packets = 0;
            }
            Fate::Lost => {
                work.lost(sent.chunk);
                self.lost_packets += 1;
                self.hole_packets += 1;
            }
            Fate::Flying | Fate::Doubted | Fate::Skipped => return,
        }
        self.flying -= u64::from(was_open);
        let Some(first) = self.intervals.front().map(|open| open.interval.id) else { return };
        // Intervals are numbered without gaps, and one stays until all of its packets are settled.
        let Some(open) = self.intervals.get_mut(sent.interval.wrapping_sub(first) as usize) else { return };
        open.known += u64::from(was_open);
        match (was_open, fate) {
            (true, Fate::Lost) => open.interval.lost_bytes += self.packet_len,
            // It was only late.
            (false, Fate::Came) if sent.fate == Fate::Lost => open.interval.lost_bytes -= self.packet_len,
            _ => {}
        }
    }

    /// Whether nothing but packets of data is swallowed, for long enough to be sure.
    fn is_hole(&mut self, now: Instant) -> bool {
        if self.hole_packets == 0 {
            self.hole_since = None;
            return false;
        }
        let since = *self.hole_since.get_or_insert(now);
        self.hole_packets >= HOLE_PACKETS && now >= since + HOLE_TIME.max(self.rtt * 3)
    }

    /// The path goes another way: one that may take longer packets is tried at once.
    pub(super) fn on_reroute(&mut self, now: Instant) {
        if self.phase == Phase::Narrow {
            self.phase = Phase::Silent { retry: now, wait: self.rtt.min(RETRY_MAX) };
        }
    }

    /// What the receiver says of packets. What the path is now, where it was something else.
    pub(super) fn on_report(
        &mut self,
        report: &Report,
        now: Instant,
        now_us: u64,
        work: &mut Work,
    ) -> Result<Option<Phase>, Misbehaviour> {
        let latest = self.intervals.back().map(|open| open.interval.id);
        let unsent = Misbehaviour::ReportedUnsent { path: self.index };
        if report.high > self.next() {
            return Err(unsent);
        }
        // Before anything of it is believed.
        if report.runs().any(|(came, run)| came && self.skipped.any_of(&run)) {
            return Err(Misbehaviour::ReportedSkipped { path: self.index });
        }
        if let Some(answer) = report.answer {
            if latest.is_none_or(|latest| answer.mark >= latest) {
                return Err(unsent);
            }
            let first = self.intervals.front().map_or(0, |open| open.interval.id);
            // One of an interval that is over may come late.
            if let Some(at) = answer.mark.checked_sub(first).map(|at| at as usize) {
                self.on_answer(at, &answer, now, now_us)?;
            }
        }
        let lost = report.runs().filter_map(|(came, run)| self.on_run(came, run, report, now, work)).max();
        if let Some(id) = lost.filter(|_| self.is_up()) {
            let view = self.view(now);
            self.controller.on_lost(id, &view);
        }
        self.finish_intervals(now);
        let is_hole = self.is_hole(now);
        match self.phase {
            Phase::Up if is_hole && report.answer.is_some() => {
                self.phase = Phase::Narrow;
                self.give_up(work);
            }
            Phase::Silent { .. } if report.answer.is_some() => {
                self.phase = Phase::Up;
                self.controller.on_return();
            }
            _ => return Ok(None),
        }
        Ok(Some(self.phase))
    }

    /// The mark of the interval at `at` is answered.
    fn on_answer(&mut self, at: usize, answer: &Answer, now: Instant, now_us: u64) -> Result<(), Misbehaviour> {
        let Some(open) = self.intervals.get(at) else { return Ok(()) };
        // Who did not get the mark does not know what it says.
        let Some(sent_us) = open.marked_us.filter(|us| *us == answer.sender_us) else {
            return Err(Misbehaviour::AnsweredUnsent { path: self.index });
        };
        // Of several reports to one mark, the first to come says how long it took.
        if open.arrived.is_none() {
            let arrival = Arrival { sent_us, heard_us: now_us, theirs_us: answer.receiver_us };
            self.clock.on_arrival(&arrival, now);
            let rtt = Duration::from_micros(now_us.saturating_sub(sent_us));
            let rtt = self.on_rtt(rtt, Duration::from_micros(answer.delay_us.into()), now);
            if let Some(open) = self.intervals.get_mut(at) {
                (open.arrived, open.answered, open.rtt) = (Some(arrival), true, Some(rtt));
            }
        }
        // The receiver heard a later mark: those before it need no answer of their own.
        self.intervals.iter_mut().take(at).for_each(|open| open.answered = true);
        Ok(())
    }

    /// The last interval of which packets are lost by this.
    fn on_run(&mut self, came: bool, run: Range<u64>, report: &Report, now: Instant, work: &mut Work) -> Option<u32> {
        let mut lost = None;
        // What is older than the oldest in doubt was settled.
        let (from, to) = (run.start.max(self.base), run.end.min(self.next()));
        for number in from..to {
            let at = (number - self.base) as usize;
            match (self.sent[at].fate, came) {
                (Fate::Flying, true) => self.settle(at, Fate::Came, work),
                (Fate::Doubted, true) => {
                    // What was sent after it was there before it.
                    self.late_at = Some(now);
                    self.settle(at, Fate::Came, work);
                }
                (Fate::Lost, true) => {
                    // It was only late: others overtake more than was thought.
                    self.depth = (self.depth * 2).min(DEPTH_MAX);
                    self.late_at = Some(now);
                    self.lost_packets -= 1;
                    self.settle(at, Fate::Came, work);
                }
                (Fate::Flying, false) if report.answer.is_some() && number + self.depth > report.high => {
                    self.sent[at].fate = Fate::Doubted;
                }
                (Fate::Doubted, false)
                    if report
                        .answer
                        .is_some_and(|answer| !self.is_overdue(self.sent[at].interval, answer.mark, now)) => {}
                // The receiver reports a gap unasked when enough came behind it; a second report is proof enough too.
                (Fate::Flying | Fate::Doubted, false) => {
                    lost = Some(self.sent[at].interval);
                    self.settle(at, Fate::Lost, work);
                }
                (Fate::Lost | Fate::Came | Fate::Skipped, _) => {}
            }
        }
        lost
    }

    /// Tells the controller of intervals whose packets are all settled, in order.
    fn finish_intervals(&mut self, now: Instant) {
        while let Some(open) = self.intervals.front() {
            // Without its mark's answer an interval waits until the next one's says that it will not come.
            if open.end.is_none() || open.known < open.packets || !open.answered {
                break;
            }
            let Some(mut open) = self.intervals.pop_front() else { break };
            self.ended.push_back((open.interval.id, open.end.unwrap_or(now)));
            let arrivals = self.before.zip(open.arrived);
            open.interval.received_for =
                arrivals.and_then(|(before, at)| self.clock.between(&before, &at, self.rtt_shortest()));
            self.before = open.arrived;
            open.interval.waited = open.rtt.map(|rtt| rtt.saturating_sub(self.rtt_shortest()));
            open.interval.idle |= open.packets == 0;
            if self.is_up() {
                let view = self.view(now);
                self.controller.on_interval(&open.interval, &view);
            }
        }
    }

    /// Forgets packets whose fate is known; lost ones only when they are not late any more.
    fn forget(&mut self, now: Instant) {
        let late = self.rtt * 2;
        while let Some((id, _)) = self.ended.pop_front_if(|(_, end)| now >= *end + late) {
            self.past = id.wrapping_add(1);
        }
        while let Some(sent) = self.sent.front() {
            let settled = match sent.fate {
                Fate::Came => true,
                // One that was left out too: what is said of those behind it may name it.
                Fate::Lost | Fate::Skipped => sent.interval < self.past,
                Fate::Flying | Fate::Doubted => false,
            };
            if !settled {
                break;
            }
            self.sent.pop_front();
            self.base += 1;
        }
        self.skipped.forget(self.base);
    }
}
