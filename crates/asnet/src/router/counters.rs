//! What passed an interface, and why what did not.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal),+ $(,)?) => {
        /// Why a packet went no further.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum DropReason { $($(#[doc = $doc])* $name),+ }

        impl DropReason {
            /// Every reason, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// As shown in statistics.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }
        }
    };
}

drop_reasons! {
    /// Not a SCION header or path.
    Malformed = "malformed",
    /// PayloadLen and the datagram differ.
    WrongSize = "wrong size",
    /// Of a path type that this router does not know, or one that does not belong here.
    PathType = "path type",
    /// Came to a link's address from elsewhere than its other end.
    NotNeighbor = "not from the neighbour",
    /// A hop field's time is over.
    Expired = "path expired",
    /// A hop field's MAC is wrong.
    BadMac = "wrong MAC",
    /// The hop field names another ingress than the packet came by.
    WrongIngress = "wrong ingress interface",
    /// The hop field names an egress that does not exist.
    UnknownEgress = "unknown egress interface",
    /// The hop joins links that no path may join.
    BadTurn = "links that no path joins",
    /// The source is not where the packet comes from.
    BadSource = "invalid source",
    /// The destination is not where the path ends.
    BadDestination = "invalid destination",
    /// Came from inside the AS and claims to be under way.
    NotFirstHop = "not at its first hop",
    /// No instance of the service is known.
    NoService = "no such service",
    /// The host is none that this router delivers to.
    Unreachable = "unreachable host",
    /// No port to deliver to can be told.
    NoPort = "no destination port",
    /// The interface is down.
    InterfaceDown = "interface down",
    /// Larger than the link's MTU.
    TooBig = "too big",
    /// The link's queue is full.
    QueueFull = "queue full",
    /// The system did not take it.
    SendFailed = "not taken by the system",
    /// For the router itself, and nothing that it answers.
    NotAnswered = "not answered",
}

impl DropReason {
    /// How many reasons there are.
    pub const COUNT: usize = Self::ALL.len();
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Counts of one interface, or of the AS's inside, since the router runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceStats {
    /// SCION packets that came in.
    pub received_packets: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// SCION packets that were handed to the line or the host.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// SCMP messages of the router's own, sent out here.
    pub scmp_packets: u64,
    /// Packets lost by the line that leaves here.
    pub lost_packets: u64,
    /// Packets dropped, by [`DropReason`]; counted where they came in, but for full queues and refused sends, which are
    /// counted where they would have left.
    pub dropped: [u64; DropReason::COUNT],
}

impl InterfaceStats {
    /// Packets dropped for `reason`.
    pub fn dropped_for(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }
}

/// The same while it is counted, by several threads.
#[derive(Debug, Default)]
pub(super) struct Counters {
    received_packets: AtomicU64,
    received_bytes: AtomicU64,
    sent_packets: AtomicU64,
    sent_bytes: AtomicU64,
    scmp_packets: AtomicU64,
    dropped: [AtomicU64; DropReason::COUNT],
}

impl Counters {
    pub(super) fn received(&self, packets: u64, bytes: u64) {
        self.received_packets.fetch_add(packets, Relaxed);
        self.received_bytes.fetch_add(bytes, Relaxed);
    }

    pub(super) fn sent(&self, packets: u64, bytes: u64) {
        self.sent_packets.fetch_add(packets, Relaxed);
        self.sent_bytes.fetch_add(bytes, Relaxed);
    }

    pub(super) fn scmp(&self) {
        self.scmp_packets.fetch_add(1, Relaxed);
    }

    pub(super) fn dropped(&self, reason: DropReason, packets: u64) {
        self.dropped[reason as usize].fetch_add(packets, Relaxed);
    }

    pub(super) fn read(&self) -> InterfaceStats {
        let mut stats = InterfaceStats {
            received_packets: self.received_packets.load(Relaxed),
            received_bytes: self.received_bytes.load(Relaxed),
            sent_packets: self.sent_packets.load(Relaxed),
            sent_bytes: self.sent_bytes.load(Relaxed),
            scmp_packets: self.scmp_packets.load(Relaxed),
            ..InterfaceStats::default()
        };
        for (value, counter) in stats.dropped.iter_mut().zip(&self.dropped) {
            *value = counter.load(Relaxed);
        }
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_counter_and_name() {
        let counters = Counters::default();
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            counters.dropped(*reason, 1 + index as u64);
        }
        let stats = counters.read();
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(stats.dropped_for(*reason), 1 + index as u64);
            assert!(DropReason::ALL[..index].iter().all(|other| other.name() != reason.name()));
        }
        assert_eq!(stats.dropped.iter().sum::<u64>(), (1..=DropReason::COUNT as u64).sum::<u64>());
    }
}
