//! How fast the input of a live stream's source goes out: as the clock in an MPEG transport stream says (ISO 13818-1, the PCR), at a
//! rate, or as it comes. No byte is added, left out or moved. Pure: times come in.

use std::time::{Duration, Instant};

/// A packet of a transport stream.
const PACKET_LEN: usize = 188;
const SYNC: u8 = 0x47;
/// Packets that show that it is one.
const PROBE_PACKETS: usize = 3;
/// Bytes that [`is_transport_stream`] looks at.
pub const PROBE_LEN: usize = PACKET_LEN * PROBE_PACKETS;
/// Ticks a second of the clock.
const PCR_HZ: u64 = 27_000_000;
/// Further than this no clock goes between two packets: it was set anew.
const JUMP_MAX: Duration = Duration::from_secs(5);

/// When bytes go out.
#[derive(Debug)]
pub enum Pace {
    /// As they come.
    AsItComes,
    /// So many a second.
    Rate {
        /// How many.
        bytes_per_sec: u64,
        /// When the first went out.
        start: Option<Instant>,
        /// How many went out since.
        bytes: u64,
    },
    /// As the stream's clock says.
    Clock(Clock),
}

/// The clock of a transport stream.
#[derive(Debug, Default)]
pub struct Clock {
    /// The packets' whose clock it is.
    pid: Option<u16>,
    /// A time of the clock, and when that was.
    base: Option<(u64, Instant)>,
    last: u64,
    /// Bytes of a packet that is not whole yet.
    partial: Vec<u8>,
}

/// Whether it begins as a transport stream does.
pub fn is_transport_stream(head: &[u8]) -> bool {
    head.len() >= PROBE_LEN && (0..PROBE_PACKETS).all(|at| head[at * PACKET_LEN] == SYNC)
}

impl Pace {
    /// Of an input that begins with `head`: at a rate where one is given, by its clock where it is a transport stream, else as it comes.
    pub fn of(bytes_per_sec: Option<u64>, head: &[u8]) -> Self {
        match bytes_per_sec {
            Some(bytes_per_sec) => Self::Rate { bytes_per_sec, start: None, bytes: 0 },
            None if is_transport_stream(head) => Self::Clock(Clock::default()),
            None => Self::AsItComes,
        }
    }

    /// Nothing went out for a while: what follows is not hurried after what did not.
    pub fn go_on_from_now(&mut self) {
        match self {
            Self::AsItComes => {}
            Self::Rate { start, bytes, .. } => (*start, *bytes) = (None, 0),
            Self::Clock(clock) => clock.base = None,
        }
    }

    /// Cuts `bytes` where something is to be waited for: what goes out now, each with when that is due.
    pub fn cut(&mut self, bytes: &[u8], now: Instant) -> Vec<(Option<Instant>, Vec<u8>)> {
        match self {
            Self::AsItComes => vec![(None, bytes.to_vec())],
            Self::Rate { bytes_per_sec, start, bytes: before } => {
                let start = *start.get_or_insert(now);
                // A tenth of a second at once.
                let at_once = (*bytes_per_sec / 10).max(1) as usize;
                let part = |part: &[u8]| {
                    let due = start + Duration::from_secs_f64(*before as f64 / *bytes_per_sec as f64);
                    *before += part.len() as u64;
                    (Some(due), part.to_vec())
                };
                bytes.chunks(at_once).map(part).collect()
            }
            Self::Clock(clock) => clock.cut(bytes, now),
        }
    }

    /// What is left of a packet at the end.
    pub fn rest(&mut self) -> Vec<u8> {
        match self {
            Self::Clock(clock) => std::mem::take(&mut clock.partial),
            _ => Vec::new(),
        }
    }
}

impl Clock {
    fn cut(&mut self, bytes: &[u8], now: Instant) -> Vec<(Option<Instant>, Vec<u8>)> {
        let mut all = std::mem::take(&mut self.partial);
        all.extend_from_slice(bytes);
        let mut parts: Vec<(Option<Instant>, Vec<u8>)> = Vec::new();
        let mut rest = all.as_slice();
        while let Some(packet) = rest.first_chunk::<PACKET_LEN>() {
            // Where the stream is damaged, the next packet begins with the next mark.
            let lost = rest.iter().position(|byte| *byte == SYNC).unwrap_or(rest.len());
            let (cut, due) = match lost {
                0 => (PACKET_LEN, pcr(packet).and_then(|(pid, ticks)| self.due(pid, ticks, now))),
                lost => (lost, None),
            };
            let (bytes, more) = rest.split_at(cut);
            match parts.last_mut().filter(|_| due.is_none()) {
                Some((_, part)) => part.extend_from_slice(bytes),
                None => parts.push((due, bytes.to_vec())),
            }
            rest = more;
        }
        self.partial = rest.to_vec();
        parts
    }

    fn due(&mut self, pid: u16, ticks: u64, now: Instant) -> Option<Instant> {
        if *self.pid.get_or_insert(pid) != pid {
            return None;
        }
        let between = |from: u64, to: u64| {
            to.checked_sub(from).map(|ticks| Duration::from_secs_f64(ticks as f64 / PCR_HZ as f64))
        };
        let step = between(self.last, ticks);
        self.last = ticks;
        match self.base {
            Some((base, at)) if step.is_some_and(|step| step <= JUMP_MAX) => {
                between(base, ticks).map(|since| at + since)
            }
            // It begins, or was set anew: from here on it counts from when the last was due.
            _ => {
                self.base = Some((ticks, now));
                Some(now)
            }
        }
    }
}

/// The packet's clock (ISO 13818-1, 2.4.3.4), where it has one.
fn pcr(packet: &[u8; PACKET_LEN]) -> Option<(u16, u64)> {
    let has_field = packet[0] == SYNC && packet[3] & 0x20 != 0 && packet[4] >= 7 && packet[5] & 0x10 != 0;
    if !has_field {
        return None;
    }
    let pid = u16::from_be_bytes([packet[1] & 0x1f, packet[2]]);
    let base =
        u64::from(u32::from_be_bytes([packet[6], packet[7], packet[8], packet[9]])) << 1 | u64::from(packet[10] >> 7);
    let extension = u64::from(packet[10] & 1) << 8 | u64::from(packet[11]);
    Some((pid, base * 300 + extension))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(pid: u16, clock_ms: Option<u64>) -> Vec<u8> {
        let mut packet = vec![SYNC, (pid >> 8) as u8, pid as u8, 0x10];
        if let Some(clock_ms) = clock_ms {
            let base = clock_ms * 90;
            packet[3] = 0x30;
            packet.extend([7, 0x10]);
            packet.extend(((base >> 1) as u32).to_be_bytes());
            packet.extend([((base & 1) as u8) << 7 | 0x7e, 0]);
        }
        packet.resize(PACKET_LEN, 0xff);
        packet
    }

    #[test]
    fn a_transport_streams_clock_says_when_bytes_are_due() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        let clocks = [Some(1000), None, Some(1040), None, Some(1100), Some(500), Some(520), Some(90_000), Some(90_010)];
        let stream: Vec<u8> = clocks.iter().flat_map(|clock| packet(256, *clock)).collect();
        assert!(is_transport_stream(&stream) && !is_transport_stream(&stream[1..]));
        let expected = [0, 40, 100, 0, 20, 0, 10].map(|after| Some(now + ms(after)));
        for len in [1, 7, 188, 189, 1000, stream.len()] {
            let mut pace = Pace::Clock(Clock::default());
            let parts: Vec<_> = stream.chunks(len).flat_map(|bytes| pace.cut(bytes, now)).collect();
            let bytes: Vec<u8> = parts.iter().flat_map(|(_, bytes)| bytes.clone()).chain(pace.rest()).collect();
            assert_eq!(bytes, stream, "in parts of {len}");
            let due: Vec<_> = parts.iter().map(|(due, _)| *due).filter(Option::is_some).collect();
            assert_eq!(due, expected, "in parts of {len}");
        }
        // Another programme's clock is nothing to this one.
        let mut pace = Pace::Clock(Clock::default());
        pace.cut(&packet(256, Some(0)), now);
        assert_eq!(pace.cut(&packet(257, Some(9000)), now)[0].0, None);
    }

    #[test]
    fn damage_in_the_middle_does_not_lose_the_clock() {
        let now = Instant::now();
        for damage in [vec![1, 2, 3], vec![SYNC], vec![SYNC; 100], vec![0; 188], vec![SYNC, 0, 0]] {
            let mut stream: Vec<u8> = packet(256, Some(1000));
            stream.extend(&damage);
            stream.extend((0..60).flat_map(|at| packet(256, Some(1000 + at * 40))));
            let mut pace = Pace::Clock(Clock::default());
            let parts = pace.cut(&stream, now);
            let last = parts.iter().rev().find_map(|(due, _)| *due);
            assert_eq!(last, Some(now + Duration::from_millis(59 * 40)), "{} bytes", damage.len());
        }
    }

    proptest::proptest! {
        /// Whatever comes, in whatever parts, goes out as it is.
        #[test]
        fn no_byte_is_lost_or_made_up(
            stream in proptest::collection::vec(proptest::prop_oneof![proptest::prelude::Just(SYNC), proptest::prelude::any::<u8>()], 0..3000),
            len in 1..700usize,
            bytes_per_sec in proptest::prelude::any::<u64>(),
        ) {
            let now = Instant::now();
            let rate = Pace::Rate { bytes_per_sec: bytes_per_sec.max(1000), start: None, bytes: 0 };
            for mut pace in [Pace::Clock(Clock::default()), Pace::AsItComes, rate] {
                let parts: Vec<_> = stream.chunks(len).flat_map(|bytes| pace.cut(bytes, now)).collect();
                let out: Vec<u8> = parts.into_iter().flat_map(|(_, bytes)| bytes).chain(pace.rest()).collect();
                proptest::prop_assert_eq!(&out, &stream);
            }
        }
    }

    #[test]
    fn what_follows_a_break_is_not_hurried() {
        let now = Instant::now();
        let later = now + Duration::from_secs(60);
        let (film, second) = ([packet(256, Some(0)), packet(256, Some(40))].concat(), Duration::from_secs(1));
        for (bytes_per_sec, rest) in
            [(None, [packet(256, Some(1040)), packet(256, Some(2040))].concat()), (Some(1000), vec![0; 1000])]
        {
            let mut pace = Pace::of(bytes_per_sec, &film.repeat(2));
            pace.cut(&film, now);
            pace.go_on_from_now();
            let due: Vec<Instant> = pace.cut(&rest, later).into_iter().filter_map(|(due, _)| due).collect();
            assert_eq!(due.first(), Some(&later));
            assert!(due.last().is_some_and(|last| *last <= later + second), "{due:?}");
        }
    }

    #[test]
    fn a_rate_is_kept() {
        let now = Instant::now();
        let mut pace = Pace::Rate { bytes_per_sec: 1000, start: None, bytes: 0 };
        let parts: Vec<_> = [pace.cut(&[0; 250], now), pace.cut(&[0; 100], now)].concat();
        let due: Vec<_> = parts.iter().map(|(due, part)| (due.unwrap() - now, part.len())).collect();
        let at = |ms, len| (Duration::from_millis(ms), len);
        assert_eq!(due, [at(0, 100), at(100, 100), at(200, 50), at(250, 100)]);
    }
}
