//! Link probes: packets that one router of a link sends to the other, to measure what the line does.
//!
//! A probe is a SCION packet with a one-hop path from router to router, so that the receiving router admits it from
//! this neighbour over this link alone.

use std::time::{Duration, Instant};

/// Magic, check number, sequence number, time of sending.
pub(super) const PROBE_PAYLOAD_LEN_MIN: usize = 24;
/// Marks probes, so that nobody else's experiments are taken for ours.
const MAGIC: [u8; 4] = *b"anab";

/// What a probe says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probe {
    /// Which check it belongs to.
    pub(super) check: u32,
    pub(super) sequence: u64,
    /// Nanoseconds since the data plane's start.
    pub(super) sent_ns: u64,
}

impl Probe {
    /// Writes it to the start of a payload.
    pub(super) fn write(self, payload: &mut [u8; PROBE_PAYLOAD_LEN_MIN]) {
        payload[..4].copy_from_slice(&MAGIC);
        payload[4..8].copy_from_slice(&self.check.to_be_bytes());
        payload[8..16].copy_from_slice(&self.sequence.to_be_bytes());
        payload[16..].copy_from_slice(&self.sent_ns.to_be_bytes());
    }

    /// Reads one.
    pub(super) fn read(payload: &[u8]) -> Option<Self> {
        let fields = payload.first_chunk::<PROBE_PAYLOAD_LEN_MIN>()?;
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&fields[at..at + 8]);
            u64::from_be_bytes(bytes)
        };
        // The low half of the first eight bytes.
        let check = number(0) as u32;
        (fields[..4] == MAGIC).then(|| Self { check, sequence: number(8), sent_ns: number(16) })
    }
}

/// What has arrived of the check that goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProbeLog {
    /// The check whose probes are counted; zero is none.
    pub(super) check: u32,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) first: Option<Arrival>,
    pub(super) last: Option<Arrival>,
    pub(super) delay_sum: Duration,
    pub(super) delay_min: Duration,
    pub(super) delay_max: Duration,
    /// Probes that arrived after one with a later number.
    pub(super) reordered: u64,
}

/// When a probe arrived, and how large it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) at: Instant,
    pub(super) sequence: u64,
    pub(super) bytes: u64,
}

impl ProbeLog {
    /// Counts from nothing, for this check.
    pub(super) fn begin(check: u32) -> Self {
        Self { check, delay_min: Duration::MAX, ..Self::default() }
    }

    /// Counts a probe of `bytes` that arrived at `now`; false if it is none of this check's.
    pub(super) fn add(&mut self, probe: Probe, bytes: u64, start: Instant, now: Instant) -> bool {
        if self.check == 0 || probe.check != self.check {
            return false;
        }
        let delay = now.saturating_duration_since(start).saturating_sub(Duration::from_nanos(probe.sent_ns));
        self.packets += 1;
        self.bytes += bytes;
        self.delay_sum += delay;
        self.delay_min = self.delay_min.min(delay);
        self.delay_max = self.delay_max.max(delay);
        self.reordered += u64::from(self.last.is_some_and(|last| last.sequence > probe.sequence));
        let arrival = Arrival { at: now, sequence: probe.sequence, bytes };
        self.first.get_or_insert(arrival);
        self.last = Some(arrival);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_round_trip_and_others_are_none() {
        let probe = Probe { check: 7, sequence: 1 << 40, sent_ns: 3 };
        let mut payload = [0; PROBE_PAYLOAD_LEN_MIN];
        probe.write(&mut payload);
        assert_eq!(Probe::read(&payload), Some(probe));
        assert_eq!(Probe::read(&payload[1..]), None);
        payload[0] ^= 1;
        assert_eq!(Probe::read(&payload), None);
    }

    #[test]
    fn only_the_check_that_goes_on_is_counted() {
        let start = Instant::now();
        let probe = Probe { check: 7, sequence: 0, sent_ns: 1_000 };
        assert!(!ProbeLog::default().add(Probe { check: 0, ..probe }, 100, start, start));
        let mut log = ProbeLog::begin(7);
        assert!(!log.add(Probe { check: 8, ..probe }, 100, start, start));
        assert!(log.add(Probe { sequence: 1, ..probe }, 100, start, start + Duration::from_micros(3)));
        assert!(log.add(probe, 100, start, start + Duration::from_micros(5)));
        assert_eq!((log.packets, log.bytes, log.reordered), (2, 200, 1));
        assert_eq!(log.delay_min, Duration::from_micros(2));
        assert_eq!(log.delay_max, Duration::from_micros(4));
    }
}
