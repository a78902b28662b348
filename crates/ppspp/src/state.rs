//! When to send to a peer: the state machine of the libswift paper, §3.
//!
//! ```text
//! ping-pong --ACK--> slow start --close packets, a queue or a loss--> congestion control
//!     |                  ^  |                                               |
//!  no answer   requests  |  | silence, packets too far apart, no requests   |
//!     v                  |  v                                               v
//! keep-alive <----------------------------------------------------- keep-alive --3 minutes--> closed
//! ```
//!
//! Where only the requests ran out, the next ones within four round trips go on at the old rate. The window itself is
//! [`Ledbat`]'s. In the default mode a peer that greeted back has answered: its slow start begins with its first request.

use std::time::{Duration, Instant};

use crate::ledbat::{Ledbat, Mode};

/// Round trips of silence after which nothing is sent but keep-alives (the paper, §3.2).
const SILENCE_RTTS: u32 = 8;
/// Round trips within which requests go on at the old rate (the paper, §3.2).
const RESUME_RTTS: u32 = 4;
/// Packets further apart than this, or than four round trips if that is more, are not worth a window (the paper, §3.2).
const INTERVAL_MAX: Duration = Duration::from_secs(4);
/// The first time between keep-alives; it doubles.
const KEEP_ALIVE_FIRST: Duration = Duration::from_secs(1);
/// The longest time between keep-alives, after which the channel is closed (the paper, §3.3); and silence after which a peer
/// is dead (RFC 7574 §8.14.1, "3 minutes").
pub const KEEP_ALIVE_MAX: Duration = Duration::from_secs(180);
/// Datagrams without an answer that a dead peer was sent at least (RFC 7574 §8.14.1, "at least 3 datagrams").
const UNANSWERED_MIN: u32 = 3;

/// What a channel's sending end does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// One packet, then its answer.
    PingPong,
    /// The window grows with every ACK.
    SlowStart,
    /// The window follows the queue.
    CongestionControl,
    /// Nothing but signs of life.
    KeepAlive,
    /// Over.
    Closed,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// A datagram without messages.
    KeepAlive,
    /// Say that the channel is closed, and forget it.
    Close,
}

/// The sending end of one channel.
#[derive(Clone, Debug)]
pub struct SendControl {
    state: State,
    ledbat: Ledbat,
    /// When the requests ran out, if nothing else is the matter.
    resumable_since: Option<Instant>,
    wanted: bool,
    received_at: Instant,
    sent_at: Instant,
    data_at: Option<Instant>,
    unanswered: u32,
    interval: Duration,
}

impl SendControl {
    /// A channel that is being opened.
    pub fn new(mode: Mode, now: Instant) -> Self {
        Self {
            state: State::PingPong,
            ledbat: Ledbat::new(mode),
            resumable_since: None,
            wanted: false,
            received_at: now,
            sent_at: now,
            data_at: None,
            unanswered: 0,
            interval: KEEP_ALIVE_FIRST,
        }
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// The window.
    pub fn ledbat(&self) -> &Ledbat {
        &self.ledbat
    }

    /// A datagram left; `data`: with a chunk.
    pub fn sent(&mut self, now: Instant, data: bool) {
        self.sent_at = now;
        self.unanswered = self.unanswered.saturating_add(1);
        if data {
            // Who looks late, because its timer is coarse, sends what was due meanwhile.
            let due = self.data_at.map_or(now, |at| at + self.ledbat.send_interval());
            let earliest = now.checked_sub(self.ledbat.catch_up()).unwrap_or(now);
            self.data_at = Some(due.clamp(earliest, now));
        }
    }

    /// A datagram came; `messages`: more than a sign of life.
    pub fn received(&mut self, now: Instant, messages: bool) {
        self.received_at = now;
        self.unanswered = 0;
        if messages {
            self.interval = KEEP_ALIVE_FIRST;
        }
    }

    /// The peer's address is proven by its answer, which took so long: no packet has to wait for another one.
    pub fn greeted(&mut self, rtt: Duration) {
        if self.ledbat.mode() == Mode::Fast && self.state == State::PingPong {
            self.ledbat.greeted(rtt);
            self.state = State::SlowStart;
        }
    }

    /// How long nothing was heard of the peer.
    pub fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.received_at)
    }

    /// Chunks that left at once were acknowledged at once: see [`Ledbat::acked`].
    pub fn acked(&mut self, now: Instant, chunks: u64, rtt: Option<Duration>, delay_us: u64, limited: bool) {
        self.ledbat.acked(now, chunks, rtt, delay_us, limited);
        if self.state == State::PingPong {
            self.state = State::SlowStart;
        }
        self.follow_window();
    }

    /// Chunks were lost: see [`Ledbat::lost`].
    pub fn lost(&mut self, now: Instant, chunks: u64, sent_at: Instant) {
        self.ledbat.lost(now, chunks, sent_at);
        self.follow_window();
    }

    /// Nothing was acknowledged for the whole timeout.
    pub fn timed_out(&mut self, now: Instant) {
        self.ledbat.timed_out(now);
        self.follow_window();
    }

    fn follow_window(&mut self) {
        if self.state == State::SlowStart && !self.ledbat.is_slow_start() {
            self.state = State::CongestionControl;
        }
    }

    /// Whether the peer has requests that are not yet served.
    pub fn wanted(&mut self, now: Instant, wanted: bool) {
        self.wanted = wanted;
        match self.state {
            State::SlowStart | State::CongestionControl if !wanted => {
                self.keep_alive();
                self.resumable_since = Some(now);
            }
            State::KeepAlive if wanted => {
                let rtt = self.ledbat.rtt();
                if self.resumable_since.is_none_or(|since| now.saturating_duration_since(since) > rtt * RESUME_RTTS) {
                    self.ledbat.restart();
                }
                let slow = self.ledbat.is_slow_start();
                self.state = if slow { State::SlowStart } else { State::CongestionControl };
                self.resumable_since = None;
                // The peer just spoke: its silence is counted from here.
                self.received_at = now;
            }
            _ => {}
        }
    }

    fn keep_alive(&mut self) {
        self.state = State::KeepAlive;
        self.resumable_since = None;
        self.interval = KEEP_ALIVE_FIRST.max(self.ledbat.rtt());
    }

    /// When the next chunk may leave, with `inflight` on their way; `None`: not before an ACK, a timeout or a request.
    pub fn send_at(&self, inflight: usize) -> Option<Instant> {
        let window = match self.state {
            State::PingPong => 1.0,
            State::SlowStart | State::CongestionControl => self.ledbat.window(),
            State::KeepAlive | State::Closed => return None,
        };
        if !self.wanted || inflight as f64 >= window {
            return None;
        }
        let interval = if self.state == State::PingPong { Duration::ZERO } else { self.ledbat.send_interval() };
        Some(self.data_at.map_or(self.sent_at, |at| at + interval))
    }

    /// Time passed.
    pub fn poll(&mut self, now: Instant) -> Option<Due> {
        if now < self.deadline()? {
            return None;
        }
        if self.is_dead(now) {
            self.state = State::Closed;
            return Some(Due::Close);
        }
        if self.state != State::KeepAlive {
            self.keep_alive();
            return None;
        }
        if self.interval * 2 > KEEP_ALIVE_MAX {
            self.state = State::Closed;
            return Some(Due::Close);
        }
        self.interval *= 2;
        Some(Due::KeepAlive)
    }

    fn is_dead(&self, now: Instant) -> bool {
        self.unanswered >= UNANSWERED_MIN && now.saturating_duration_since(self.received_at) >= KEEP_ALIVE_MAX
    }

    /// When to poll; `None` once closed.
    pub fn deadline(&self) -> Option<Instant> {
        let due = match self.state {
            State::Closed => return None,
            State::PingPong => self.sent_at + self.ledbat.timeout(),
            State::SlowStart | State::CongestionControl => {
                let rtt = self.ledbat.rtt();
                if self.ledbat.send_interval() > INTERVAL_MAX.max(rtt * 4) {
                    self.received_at
                } else {
                    self.received_at + rtt * SILENCE_RTTS
                }
            }
            State::KeepAlive => self.sent_at + self.interval,
        };
        Some(if self.unanswered >= UNANSWERED_MIN { due.min(self.received_at + KEEP_ALIVE_MAX) } else { due })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(200);

    /// A channel in the paper's mode, past its first ACKs.
    fn sending(now: Instant, acks: u32) -> SendControl {
        let mut control = SendControl::new(Mode::Paper, now);
        control.wanted(now, true);
        control.sent(now, true);
        (0..acks).for_each(|_| {
            control.received(now, true);
            control.acked(now, 1, Some(RTT), 1000, true);
        });
        control
    }

    /// The catalogue's 003-state.
    #[test]
    fn ping_pong_until_an_ack_then_slow_start_until_packets_are_close() {
        let now = Instant::now();
        let mut control = SendControl::new(Mode::Paper, now);
        assert_eq!((control.state(), control.send_at(0)), (State::PingPong, None));
        control.wanted(now, true);
        assert!(control.send_at(0).is_some() && control.send_at(1).is_none(), "one packet, then its answer");
        control.sent(now, true);
        control.acked(now, 1, Some(RTT), 1000, true);
        // cw 1, one more per ACK: 200 ms / 2 is 100 ms, and only less than that ends the start.
        assert_eq!((control.state(), control.ledbat().window()), (State::SlowStart, 2.0));
        assert!(control.send_at(1).is_some() && control.send_at(2).is_none());
        control.acked(now, 1, Some(RTT), 1000, true);
        assert_eq!((control.state(), control.ledbat().window()), (State::CongestionControl, 3.0));
        // A timeout in the start halves too.
        let mut control = sending(now, 1);
        control.timed_out(now);
        assert_eq!(control.ledbat().window(), 1.0);
        // No answer at all: keep-alive.
        let mut control = SendControl::new(Mode::Paper, now);
        control.sent(now, false);
        let deadline = control.deadline().expect("not closed");
        assert_eq!((control.poll(deadline - Duration::from_millis(1)), control.state()), (None, State::PingPong));
        assert_eq!((control.poll(deadline), control.state()), (None, State::KeepAlive));
    }

    #[test]
    fn keep_alive_after_eight_round_trips_of_silence() {
        let now = Instant::now();
        let mut control = sending(now, 9);
        control.poll(now + RTT * 8 - Duration::from_millis(1));
        assert_eq!(control.state(), State::CongestionControl);
        control.poll(now + RTT * 8);
        assert_eq!((control.state(), control.send_at(0)), (State::KeepAlive, None));
        // A request starts anew: the window is the first one.
        control.wanted(now + RTT * 9, true);
        assert_eq!((control.state(), control.ledbat().window()), (State::SlowStart, 1.0));
    }

    #[test]
    fn keep_alive_where_packets_are_too_far_apart() {
        let now = Instant::now();
        let rtt = Duration::from_secs(5);
        // Each timeout halves: after three of them packets are just four round trips apart, after four eight.
        for (timeouts, stays) in [(3, true), (4, false)] {
            let mut control = SendControl::new(Mode::Paper, now);
            control.wanted(now, true);
            control.acked(now, 1, Some(rtt), 0, true);
            let mut at = now;
            for _ in 0..timeouts {
                at += rtt * 2;
                control.timed_out(at);
            }
            control.received(at, true);
            control.poll(at);
            assert_eq!(control.state() != State::KeepAlive, stays, "si is {:?}", control.ledbat().send_interval());
        }
    }

    #[test]
    fn requests_go_on_at_the_old_rate_within_four_round_trips() {
        let now = Instant::now();
        for (pause, resumed) in [(RTT * 4, true), (RTT * 4 + Duration::from_millis(1), false)] {
            let mut control = sending(now, 20);
            let window = control.ledbat().window();
            control.wanted(now, false);
            assert_eq!((control.state(), control.send_at(0)), (State::KeepAlive, None));
            control.wanted(now + pause, true);
            assert_eq!(control.ledbat().window() == window, resumed, "after {pause:?}");
            assert_eq!(control.state() == State::CongestionControl, resumed);
            assert!(control.send_at(0).is_some());
        }
    }

    #[test]
    fn keep_alives_grow_rarer_until_three_minutes_then_close() {
        let start = Instant::now();
        let mut control = sending(start, 1);
        control.wanted(start, false);
        let mut times = Vec::new();
        let closed = loop {
            let now = control.deadline().expect("not closed");
            match control.poll(now) {
                Some(Due::KeepAlive) => {
                    times.push(now);
                    control.sent(now, false);
                    // The other end does the same.
                    control.received(now, false);
                }
                Some(Due::Close) => break now,
                None => {}
            }
        };
        assert_eq!((control.state(), control.deadline()), (State::Closed, None));
        let gaps: Vec<u64> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
        assert_eq!(gaps, [2, 4, 8, 16, 32, 64]);
        assert!(closed - start >= KEEP_ALIVE_MAX);
        // Anything else said starts the intervals anew.
        let mut control = sending(start, 1);
        control.wanted(start, false);
        for step in 1..1000u64 {
            let now = start + Duration::from_secs(step);
            control.received(now, true);
            if control.poll(now) == Some(Due::KeepAlive) {
                control.sent(now, false);
            }
        }
        assert_eq!(control.state(), State::KeepAlive);
    }

    #[test]
    fn a_dead_peer_is_given_up_after_three_minutes_and_three_datagrams() {
        let now = Instant::now();
        for (datagrams, closes) in [(2, false), (3, true)] {
            let mut control = sending(now, 1);
            (0..datagrams).for_each(|_| control.sent(now, false));
            assert_eq!(control.poll(now + KEEP_ALIVE_MAX) == Some(Due::Close), closes);
        }
    }
}
