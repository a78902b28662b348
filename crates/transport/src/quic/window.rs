//! How far a peer may send ahead of its reader: as far as the reader's pace shows that it has to, as TCP's receivers have it
//! (dynamic right-sizing). Where a quarter of a window is read within a round trip, the window may be what the peer waits for:
//! it grows, and comes to rest between four and eight times what the path holds. It has to grow faster than any sender does
//! (BBR sends almost three times as much from one round trip to the next): who meets a window takes it for the path. Where a
//! quarter takes far longer, it halves.
//!
//! A promise cannot be taken back. Where the window gets smaller, what was promised beyond is a debt, which the next bytes
//! read pay; that is how noq counts too.

use std::time::{Duration, Instant};

use noq::{PathId, VarInt};

use super::budget::{QuicBudget, Share};
use super::config::RECEIVE_WINDOW_MAX;

/// What every connection may receive ahead, and a stranger in his handshake, in bytes: five packets' bursts.
pub(super) const RECEIVE_WINDOW_MIN: u64 = 64 * 1024;
/// What a connection starts with where memory is not short, in bytes: 80 Mbit/s at 100 ms.
pub(super) const RECEIVE_WINDOW_FIRST: u64 = 1024 * 1024;
/// A reader may be so late without a reason that the path knows: its thread had other work. The round trip counts as so long at
/// least.
const READER_LATE: Duration = Duration::from_millis(10);
/// The part of a window after which it is reviewed.
const REVIEW_ONE_IN: u64 = 4;
/// A quarter that took longer than so many round trips belongs to a window that is too large.
const TOO_LARGE_ROUNDS: u32 = 8;

/// A connection's receive window.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    /// What the peer may be ahead once all debt is paid.
    target: u64,
    debt: u64,
    max: u64,
    /// Bytes read since the last review, and when that was: who reads much at once and seldom needs no more than who reads often.
    read: u64,
    reviewed: Instant,
}

impl ReceiveWindow {
    pub(super) fn new(max: u64, now: Instant) -> Self {
        Self { target: RECEIVE_WINDOW_MIN, debt: 0, max, read: 0, reviewed: now }
    }

    /// The window that noq is to be given.
    pub(super) fn target(&self) -> u64 {
        self.target
    }

    /// What the peer may make us hold.
    pub(super) fn promised(&self) -> u64 {
        self.target + self.debt
    }

    /// The reader took `len` bytes. Answers whether a review is due.
    pub(super) fn read(&mut self, len: u64) -> bool {
        self.debt = self.debt.saturating_sub(len);
        self.read += len;
        self.read >= self.target / REVIEW_ONE_IN
    }

    /// What the window should be, by how long the bytes since the last review took.
    pub(super) fn review(&mut self, now: Instant, round_trip: Duration) -> u64 {
        let took = now.saturating_duration_since(self.reviewed);
        let round = round_trip.max(READER_LATE);
        (self.reviewed, self.read) = (now, 0);
        let wish = match took {
            took if took < round / 2 => self.target * 4,
            took if took < round => self.target * 2,
            took if took > TOO_LARGE_ROUNDS * round => self.target / 2,
            _ => self.target,
        };
        wish.clamp(RECEIVE_WINDOW_MIN, self.max)
    }

    /// Sets the window to `wish`, or to what `room` leaves for it beside the debt; never below [`RECEIVE_WINDOW_MIN`].
    /// Answers whether it changed.
    pub(super) fn set(&mut self, wish: u64, room: u64) -> bool {
        let before = self.target;
        let most = room.min(self.max);
        // Shrinking makes as much debt as it takes from the window: only growth needs room for both.
        let grown = most.saturating_sub(self.debt).max(before.min(most));
        self.target = wish.min(grown).max(RECEIVE_WINDOW_MIN);
        self.debt += before.saturating_sub(self.target);
        self.target != before
    }
}

/// What is read between two looks that is less than so much of what is promised does not need it.
const IDLE_ONE_IN: u64 = 4;
/// After so many such looks a connection that has much goes where memory is short: it cannot be taken back otherwise.
const IDLE_LOOKS_MAX: u32 = 3;

/// A connection's window, and the memory for it.
#[derive(Debug)]
pub(super) struct Granted {
    window: ReceiveWindow,
    share: Share,
    /// Bytes read since the last look.
    read: u64,
    idle_looks: u32,
}

impl Granted {
    /// What a connection has that has just been made, and a first window where there is memory.
    pub(super) fn new(budget: &QuicBudget, connection: &noq::Connection) -> Self {
        let window = ReceiveWindow::new(RECEIVE_WINDOW_MAX, Instant::now());
        let mut granted = Self { window, share: budget.share(RECEIVE_WINDOW_MIN), read: 0, idle_looks: 0 };
        granted.set(RECEIVE_WINDOW_FIRST, connection);
        granted
    }

    /// The reader took `len` bytes.
    pub(super) fn read(&mut self, len: u64, connection: &noq::Connection) {
        self.read += len;
        let before = self.window.promised();
        if self.window.read(len) {
            let round_trip = connection.rtt(PathId::ZERO).unwrap_or_default();
            let wish = self.window.review(Instant::now(), round_trip);
            self.set(wish, connection);
        } else if self.window.promised() != before {
            self.share.set(self.window.promised());
        }
    }

    /// To be called from time to time. Answers whether the connection is to be given up, so that others get what it was promised
    /// and does not use.
    pub(super) fn look(&mut self, budget: &QuicBudget, connection: &noq::Connection) -> bool {
        let read = std::mem::take(&mut self.read);
        let is_idle = self.window.promised() > RECEIVE_WINDOW_FIRST && read < self.window.promised() / IDLE_ONE_IN;
        if !is_idle {
            self.idle_looks = 0;
            return false;
        }
        self.idle_looks += 1;
        self.set(RECEIVE_WINDOW_MIN, connection);
        self.idle_looks >= IDLE_LOOKS_MAX && budget.is_short(Instant::now())
    }

    fn set(&mut self, wish: u64, connection: &noq::Connection) {
        let window = &mut self.window;
        let mut has_changed = false;
        self.share.settle(|_, room| {
            has_changed = window.set(wish, room);
            (window.promised(), window.target() >= wish || room >= RECEIVE_WINDOW_MAX)
        });
        if has_changed {
            // No window is as large as a number of QUIC's may be.
            connection.set_receive_window(VarInt::from_u64(self.window.target()).unwrap_or(VarInt::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 32 * 1024 * 1024;
    const MIB: u64 = 1024 * 1024;

    /// Reads at `rate_bytes` a second for `time`, a millisecond at a time; answers the window at its end.
    fn read_for(
        window: &mut ReceiveWindow,
        from: Instant,
        time: Duration,
        rate_bytes: u64,
        round_trip: Duration,
        room: u64,
    ) {
        for millisecond in 1..=time.as_millis() as u64 {
            // The peer can be ahead by the window in a round trip, and not by more.
            let most = window.target() * 1000 / (round_trip.as_micros() as u64).max(1);
            if window.read((rate_bytes / 1000).min(most.max(1))) {
                let now = from + Duration::from_millis(millisecond);
                let wish = window.review(now, round_trip);
                window.set(wish, room);
            }
        }
    }

    #[test]
    fn a_gigabit_over_100_ms_gets_twice_what_the_path_holds_within_two_seconds() {
        let start = Instant::now();
        let mut window = ReceiveWindow::new(MAX, start);
        let round_trip = Duration::from_millis(100);
        read_for(&mut window, start, Duration::from_secs(2), 125_000_000, round_trip, u64::MAX);
        assert!(window.target() >= 25_000_000, "{window:?}");
        assert!(window.promised() <= MAX);
    }

    #[test]
    fn a_slow_path_needs_little_and_gives_back_what_it_had() {
        let start = Instant::now();
        let mut window = ReceiveWindow::new(MAX, start);
        let round_trip = Duration::from_millis(20);
        let second = Duration::from_secs(1);
        read_for(&mut window, start, second, 1_250_000, round_trip, u64::MAX);
        assert!(window.target() <= 256 * 1024, "{window:?}");
        read_for(&mut window, start + second, second, 1_250_000_000, round_trip, u64::MAX);
        assert_eq!(window.target(), MAX);
        read_for(&mut window, start + 2 * second, 60 * second, 1_250_000, round_trip, u64::MAX);
        assert!(window.promised() <= MIB, "{window:?}");
    }

    #[test]
    fn who_reads_much_at_once_and_seldom_gets_no_larger_window() {
        let start = Instant::now();
        let mut window = ReceiveWindow::new(MAX, start);
        for second in 1..=60 {
            if window.read(RECEIVE_WINDOW_MIN) {
                let wish = window.review(start + Duration::from_secs(second), Duration::from_millis(20));
                window.set(wish, u64::MAX);
            }
        }
        assert_eq!(window.promised(), RECEIVE_WINDOW_MIN);
    }

    #[test]
    fn a_window_that_shrinks_owes_until_it_is_read() {
        let mut window = ReceiveWindow::new(MAX, Instant::now());
        assert!(window.set(8 * MIB, u64::MAX));
        assert!(window.set(2 * MIB, u64::MAX));
        assert_eq!((window.target(), window.promised()), (2 * MIB, 8 * MIB));
        window.read(5 * MIB);
        assert_eq!(window.promised(), 3 * MIB);
        // It grows again within its room, debt and all.
        assert!(window.set(8 * MIB, 6 * MIB));
        assert_eq!(window.promised(), 6 * MIB);
        window.read(MIB);
        assert_eq!((window.target(), window.promised()), (5 * MIB, 5 * MIB));
        // Less room than there is window: it shrinks, never below what is its own.
        assert!(window.set(8 * MIB, MIB));
        assert_eq!((window.target(), window.promised()), (MIB, 5 * MIB));
        assert!(window.set(8 * MIB, 0));
        assert_eq!(window.target(), RECEIVE_WINDOW_MIN);
        assert!(!window.set(RECEIVE_WINDOW_MIN, 0));
    }
}
