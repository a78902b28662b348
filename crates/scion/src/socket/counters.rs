//! What happened to packets, by count.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a received packet went no further. Each is somebody else's doing but `ProbesPending`, `EventsPending` and
/// `NobodyReads`, which are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dropped {
    /// No SCION packet, or one whose lengths contradict each other.
    Malformed,
    /// Neither UDP nor SCMP, or an SCMP message that means nothing to an end host.
    UnknownProtocol,
    /// For another AS, host or port.
    WrongDestination,
    /// Source address without a host: a service, or an address of no known kind.
    WrongSource,
    /// The checksum says that bytes changed on the way.
    BadChecksum,
    /// A path that leads nowhere when reversed.
    NoWayBack,
    /// Handed over by somebody who is no router of the AS, though it comes from another AS.
    NotRouter,
    /// A path that outlives every hop field.
    MadeUpPath,
    /// No room for another learned route.
    RoutesFull,
    /// SCMP error about a packet that no socket of ours sent.
    ForeignQuote,
    /// Answer to no probe of ours, or a second one.
    UnaskedAnswer,
    /// Echo requests beyond the answered rate.
    EchoRate,
    /// More events than anybody takes.
    EventsPending,
    /// Longer than the reader's buffer.
    BufferTooShort,
    /// Data that arrived while only probes were waited for.
    NobodyReads,
}

impl Dropped {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; Self::NobodyReads as usize + 1] = [
        Self::Malformed,
        Self::UnknownProtocol,
        Self::WrongDestination,
        Self::WrongSource,
        Self::BadChecksum,
        Self::NoWayBack,
        Self::NotRouter,
        Self::MadeUpPath,
        Self::RoutesFull,
        Self::ForeignQuote,
        Self::UnaskedAnswer,
        Self::EchoRate,
        Self::EventsPending,
        Self::BufferTooShort,
        Self::NobodyReads,
    ];
}

/// Packets dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCounts([u64; Dropped::ALL.len()]);

impl DropCounts {
    /// Counts one more.
    pub fn add(&mut self, reason: Dropped) {
        self.0[reason as usize] += 1;
    }

    /// Those dropped for `reason`.
    pub fn of(&self, reason: Dropped) -> u64 {
        self.0[reason as usize]
    }

    /// Those dropped for whatever reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// Counters of one socket since it was bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// UDP/SCION packets delivered.
    pub packets_received: u64,
    /// Bytes of their payloads.
    pub bytes_received: u64,
    /// Delivered packets that came without a checksum: some stacks leave it zero.
    pub packets_unchecked: u64,
    /// UDP/SCION packets handed to the kernel.
    pub packets_sent: u64,
    /// Bytes of their payloads.
    pub bytes_sent: u64,
    /// Packets of a burst that the kernel took only in part.
    pub packets_unsent: u64,
    /// Echo requests answered.
    pub echoes_answered: u64,
    /// Packets dropped.
    pub dropped: DropCounts,
}

/// The counters while they count.
#[derive(Debug, Default)]
pub(super) struct Counting {
    pub(super) packets_received: AtomicU64,
    pub(super) bytes_received: AtomicU64,
    pub(super) packets_unchecked: AtomicU64,
    pub(super) packets_sent: AtomicU64,
    pub(super) bytes_sent: AtomicU64,
    pub(super) packets_unsent: AtomicU64,
    pub(super) echoes_answered: AtomicU64,
    dropped: [AtomicU64; Dropped::ALL.len()],
}

impl Counting {
    pub(super) fn drop(&self, reason: Dropped) {
        add(&self.dropped[reason as usize], 1);
    }

    pub(super) fn snapshot(&self) -> Counters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            packets_received: get(&self.packets_received),
            bytes_received: get(&self.bytes_received),
            packets_unchecked: get(&self.packets_unchecked),
            packets_sent: get(&self.packets_sent),
            bytes_sent: get(&self.bytes_sent),
            packets_unsent: get(&self.packets_unsent),
            echoes_answered: get(&self.echoes_answered),
            dropped: DropCounts(std::array::from_fn(|at| get(&self.dropped[at]))),
        }
    }
}

/// Counters are independent of each other and of everything else.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
