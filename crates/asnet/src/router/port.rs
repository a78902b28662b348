//! An interface at work: its socket, its line, its counters.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anabranch_udp::{Message, Socket};

use super::counters::{Counters, DropReason};
use super::probe::ProbeLog;
use crate::link::{Dropped, LinkShape, Shaper, ShaperStats};

/// The deadline of a line with nothing on it.
const NEVER: u64 = u64::MAX;

/// One end of a link.
pub(super) struct Port {
    pub(super) id: u16,
    pub(super) remote: SocketAddr,
    pub(super) socket: Socket,
    pub(super) line: Line,
    pub(super) counters: Counters,
    /// Probes of a link check that have arrived here.
    pub(super) probes: Mutex<ProbeLog>,
}

/// What leaves at an interface, shaped or not. Any thread hands packets in; while there is something on the line, one
/// worker serves it.
pub(super) struct Line {
    /// Nothing is shaped and nothing is on the line: packets go straight to the socket.
    passes: AtomicBool,
    /// When something is due, in nanoseconds since `start`; [`NEVER`] if the line is idle.
    deadline_ns: AtomicU64,
    start: Instant,
    state: Mutex<LineState>,
}

struct LineState {
    shaper: Shaper,
    /// A worker has the line on its list.
    is_served: bool,
}

/// What came of packets handed to a line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Offered {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) queue_full: u64,
    pub(super) too_big: u64,
    /// The line was idle, and whoever sees this has to serve it from now on.
    pub(super) needs_service: bool,
}

impl Port {
    /// Hands one packet to the line, or to the socket where there is nothing to shape.
    pub(super) fn offer_or_send(&self, now: Instant, packet: &[u8]) -> Offered {
        if !self.line.passes() {
            return self.line.offer(now, std::iter::once(packet));
        }
        let part = [IoSlice::new(packet)];
        let is_sent = self.socket.send(&[Message::new(self.remote, &part)]).is_ok();
        Offered { packets: u64::from(is_sent), bytes: packet.len() as u64, ..Offered::default() }
    }
}

impl Line {
    pub(super) fn new(shape: LinkShape, seed: u64, start: Instant) -> Self {
        Self {
            passes: AtomicBool::new(shape.is_transparent()),
            deadline_ns: AtomicU64::new(NEVER),
            start,
            state: Mutex::new(LineState { shaper: Shaper::new(shape, seed, start), is_served: false }),
        }
    }

    /// Packets need not be queued here.
    pub(super) fn passes(&self) -> bool {
        self.passes.load(Ordering::Acquire)
    }

    /// When something is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let deadline_ns = self.deadline_ns.load(Ordering::Acquire);
        (deadline_ns != NEVER).then(|| self.start + Duration::from_nanos(deadline_ns))
    }

    /// Hands packets to the line.
    pub(super) fn offer<'a>(&self, now: Instant, packets: impl Iterator<Item = &'a [u8]>) -> Offered {
        let mut state = self.lock();
        let mut offered = Offered::default();
        for packet in packets {
            match state.shaper.enqueue(now, packet) {
                Ok(()) => {
                    offered.packets += 1;
                    offered.bytes += packet.len() as u64;
                }
                Err(Dropped::QueueFull) => offered.queue_full += 1,
                Err(Dropped::TooBig { .. }) => offered.too_big += 1,
            }
        }
        if !state.shaper.is_idle() && !state.is_served {
            state.is_served = true;
            offered.needs_service = true;
        }
        self.publish(&state);
        offered
    }

    /// Sends what is due and says whether the line still needs service.
    pub(super) fn serve(&self, now: Instant, port: &Port) -> bool {
        let mut state = self.lock();
        while let Some(burst) = state.shaper.due(now) {
            let packets = burst.packets;
            let part = [IoSlice::new(burst.bytes)];
            let message = Message::burst(port.remote, &part, burst.segment_len);
            // What the system does not take now is lost, as on a full buffer of a real card.
            if port.socket.send(&[message]).is_err() {
                port.counters.dropped(DropReason::SendFailed, packets as u64);
            }
            state.shaper.consume(packets);
        }
        state.is_served = !state.shaper.is_idle();
        self.publish(&state);
        state.is_served
    }

    /// Gives the line another shape; what is on it stays.
    pub(super) fn set_shape(&self, now: Instant, shape: LinkShape) {
        let mut state = self.lock();
        state.shaper.set_shape(now, shape);
        self.publish(&state);
    }

    pub(super) fn shape(&self) -> LinkShape {
        self.lock().shaper.shape()
    }

    pub(super) fn stats(&self) -> ShaperStats {
        self.lock().shaper.stats()
    }

    fn publish(&self, state: &LineState) {
        let deadline = state.shaper.deadline().map(|deadline| deadline.saturating_duration_since(self.start));
        // 64 bits of nanoseconds last for centuries.
        self.deadline_ns.store(deadline.map_or(NEVER, |deadline| deadline.as_nanos() as u64), Ordering::Release);
        self.passes.store(state.shaper.shape().is_transparent() && state.shaper.is_idle(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, LineState> {
        // Nothing in here panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
