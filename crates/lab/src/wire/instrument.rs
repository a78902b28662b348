//! What an instrument at the beginning of a wire notes: how long payloads are, and how much time is between them.
//!
//! A payload is what a packet of TCP or UDP over IPv4 carries; acknowledgements that carry nothing are none. Times are those of the wire's
//! thread, so gaps below its tick are not told from none.

use std::time::{Duration, Instant};

/// Classes of lengths and of gaps.
pub const CLASSES: usize = 12;
/// Bytes below which a payload is in a class that is not in an earlier one; the last class has what is left.
pub const LENGTHS_BELOW: [u32; CLASSES - 1] = [64, 128, 256, 512, 768, 1024, 1280, 1501, 3001, 6001, 9001];
/// The same of gaps, ms.
pub const GAPS_BELOW_MS: [u32; CLASSES - 1] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000];

/// What was noted of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// Payloads that were sent into the wire, and their bytes.
    pub payloads: u64,
    /// See [`Self::payloads`].
    pub payload_bytes: u64,
    /// Payloads by length, in the classes of [`LENGTHS_BELOW`].
    pub lengths: [u64; CLASSES],
    /// Gaps between payloads, in the classes of [`GAPS_BELOW_MS`].
    pub gaps: [u64; CLASSES],
    /// The sum of all gaps, us.
    pub gaps_micros: u64,
}

impl Noted {
    /// What came since.
    pub(crate) fn since(self, before: Self) -> Self {
        let of = |now: [u64; CLASSES], then: [u64; CLASSES]| std::array::from_fn(|class| now[class] - then[class]);
        Self {
            payloads: self.payloads - before.payloads,
            payload_bytes: self.payload_bytes - before.payload_bytes,
            lengths: of(self.lengths, before.lengths),
            gaps: of(self.gaps, before.gaps),
            gaps_micros: self.gaps_micros - before.gaps_micros,
        }
    }
}

/// The instrument.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Instrument {
    pub(super) noted: Noted,
    last: Option<Instant>,
}

impl Instrument {
    /// Notes a packet that was sent at a time.
    pub(super) fn note(&mut self, packet: &[u8], at: Instant) {
        let Some(len) = payload_len(packet).filter(|len| *len > 0) else { return };
        let noted = &mut self.noted;
        noted.payloads += 1;
        noted.payload_bytes += u64::from(len);
        noted.lengths[LENGTHS_BELOW.partition_point(|below| *below <= len)] += 1;
        if let Some(last) = self.last.replace(at) {
            let gap = at.saturating_duration_since(last);
            noted.gaps_micros += gap.as_micros() as u64;
            let is_longer = |below: &u32| gap >= Duration::from_millis(u64::from(*below));
            noted.gaps[GAPS_BELOW_MS.partition_point(is_longer)] += 1;
        }
    }
}

/// Bytes that a packet of IPv4 carries above TCP or UDP (RFC 791, RFC 9293 §3.1, RFC 768); `None` for others.
fn payload_len(packet: &[u8]) -> Option<u32> {
    let byte = |at: usize| packet.get(at).map(|byte| usize::from(*byte));
    let first = byte(0).filter(|first| first >> 4 == 4)?;
    let header = 4 * (first & 0x0f);
    let whole = (byte(2)? << 8 | byte(3)?).min(packet.len());
    let above = match byte(9)? {
        6 => 4 * (byte(header + 12)? >> 4),
        17 => 8,
        _ => return None,
    };
    u32::try_from(whole.checked_sub(header + above)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet of so many bytes: of TCP with an option, or of UDP.
    fn packet(protocol: u8, len: u16) -> Vec<u8> {
        let mut packet = vec![0; usize::from(len)];
        (packet[0], packet[9], packet[32]) = (0x45, protocol, 0x80);
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet
    }

    #[test]
    fn payloads_and_the_time_between_them_are_noted() {
        let mut instrument = Instrument::default();
        let start = Instant::now();
        let after = |millis: u64| start + Duration::from_millis(millis);
        instrument.note(&packet(6, 1500), start);
        // An acknowledgement, and what is neither TCP nor UDP.
        instrument.note(&packet(6, 52), after(3));
        instrument.note(&packet(1, 84), after(4));
        instrument.note(&packet(17, 128), after(7));
        instrument.note(&packet(17, 128), after(7));
        let Noted { payloads, payload_bytes, lengths, gaps, gaps_micros } = instrument.noted;
        assert_eq!((payloads, payload_bytes, gaps_micros), (3, 1448 + 100 + 100, 7000));
        assert_eq!((lengths[7], lengths[1], lengths.iter().sum::<u64>()), (1, 2, 3));
        assert_eq!((gaps[0], gaps[3], gaps.iter().sum::<u64>()), (1, 1, 2));
        assert_eq!(instrument.noted.since(instrument.noted), Noted::default());
    }

    #[test]
    fn what_is_cut_off_or_of_another_version_is_no_payload() {
        for len in 0..33 {
            assert_eq!(payload_len(&packet(6, 40)[..len]), None, "{len}");
        }
        assert_eq!(payload_len(&packet(6, 40)[..33]), None);
        let mut other = packet(17, 60);
        assert_eq!(payload_len(&other), Some(32));
        other[0] = 0x65;
        assert_eq!(payload_len(&other), None);
        assert_eq!(payload_len(&[0; 1250]), None);
    }
}
