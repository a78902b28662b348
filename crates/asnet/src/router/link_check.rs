//! Do the links do what was asked of them? Measured with packets from router to router over the links themselves.
//!
//! Each direction is measured twice over. First a few small probes, far apart, for the delay. Then a stream that keeps
//! the line busy, for its rate, and for the losses. What the line's queue refuses was never on the line and does not
//! count. Rates above a gigabit a second, and delays below a millisecond, say more of the machine than of the link.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anabranch_paths::Interface;
use anabranch_scion_wire::{Address, HeaderFields, HopField, InfoField, OneHopPath, PathRef};

use super::config::RouterError;
use super::data_plane::{Command, Router};
use super::forward::PROBE_PROTOCOL;
use super::probe::{PROBE_PAYLOAD_LEN_MIN, Probe, ProbeLog};
use crate::link::LinkShape;

/// How far a link may be off: the promise that links make.
const TOLERANCE: f64 = 0.05;
/// What a busy machine adds to a delay.
const TOLERANCE_DELAY: Duration = Duration::from_millis(1);
/// Losses are chance: this many standard deviations are still no fault.
const TOLERANCE_SIGMAS: f64 = 4.0;

/// Probes for the delay, their gap, and the part of the line that they may fill.
const DELAY_PROBES: u64 = 50;
const DELAY_GAP_MIN: Duration = Duration::from_millis(2);
const DELAY_LINE_SHARE: u32 = 5;
/// How long a line is kept busy, at least and at most, and the packets that make a rate worth telling.
const STREAM_TIME_MIN: Duration = Duration::from_millis(400);
const STREAM_TIME_MAX: Duration = Duration::from_secs(3);
const STREAM_PACKETS_MIN: u32 = 100;
/// Jitter moves the ends of a stream; so many of it make it small beside the stream.
const STREAM_JITTERS: u32 = 40;
/// How often the stream's sender looks after its line.
const STREAM_TICK: Duration = Duration::from_millis(1);
/// Packets of a stream, in bytes; on a line without a rate, small ones, this many a tick.
const STREAM_PACKET_LEN: usize = 1280;
const STREAM_SMALL_LEN: usize = 200;
const STREAM_SMALL_PER_TICK: u32 = 40;
/// What a stream offers beyond its line's rate, so that the line is never idle.
const STREAM_SURPLUS: f64 = 1.25;
/// For the receiving router's thread to read what has arrived.
const SETTLE_TIME: Duration = Duration::from_millis(50);
/// Directions measured at the same time, and their rates together: the machine must not be what is measured.
const AT_ONCE_MAX: usize = 16;
const AT_ONCE_BPS_MAX: u64 = 1_500_000_000;
/// What a stream without a rate counts as.
const UNLIMITED_BPS: u64 = 100_000_000;

/// One end of a link: a router and the interface there.
#[derive(Clone)]
pub struct LinkEnd {
    /// The router.
    pub router: Arc<Router>,
    /// The number of its interface.
    pub interface: u16,
}

/// What one direction of a link was asked to do, and what it did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DirectionReport {
    /// Where packets leave.
    pub from: Interface,
    /// Where they arrive.
    pub to: Interface,
    /// What was asked.
    pub asked: LinkShape,
    /// What was seen; none where the link is down.
    pub measured: Option<Measured>,
}

/// What was seen of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Bits a second of a line kept busy; none if less than two packets arrived.
    pub rate_bps: Option<f64>,
    /// Mean delay, without the time on the line; none if nothing arrived.
    pub delay: Option<Duration>,
    /// The least delay.
    pub delay_min: Option<Duration>,
    /// The largest.
    pub delay_max: Option<Duration>,
    /// Share of the packets that were lost.
    pub loss: f64,
    /// Packets on the line.
    pub packets: u64,
    /// Packets that one sent later had overtaken: none, if all is well.
    pub reordered: u64,
}

impl DirectionReport {
    /// Whether the direction does what was asked, within 5 %.
    pub fn is_as_asked(&self) -> bool {
        self.measured.is_some_and(|measured| {
            measured.rate_is(&self.asked)
                && measured.delay_is(&self.asked)
                && measured.loss_is(&self.asked)
                && measured.reordered == 0
        })
    }
}

impl Measured {
    fn rate_is(&self, asked: &LinkShape) -> bool {
        let Some(rate_asked) = asked.rate_bps else { return true };
        self.rate_bps.is_some_and(|rate| (rate / rate_asked as f64 - 1.0).abs() <= TOLERANCE)
    }

    fn delay_is(&self, asked: &LinkShape) -> bool {
        let tolerance = asked.delay.mul_f64(TOLERANCE) + asked.jitter + TOLERANCE_DELAY;
        self.delay.is_some_and(|delay| delay.abs_diff(asked.delay) <= tolerance)
    }

    fn loss_is(&self, asked: &LinkShape) -> bool {
        let sigma = (asked.loss * (1.0 - asked.loss) / self.packets.max(1) as f64).sqrt();
        (self.loss - asked.loss).abs() <= asked.loss * TOLERANCE + sigma * TOLERANCE_SIGMAS
    }
}

impl fmt::Display for DirectionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {}: ", self.from, self.to)?;
        let Some(measured) = &self.measured else { return f.write_str("down") };
        let off = |is_right| if is_right { "" } else { " (!)" };
        let mbps = |rate: f64| rate / 1e6;
        let ms = |delay: Duration| delay.as_secs_f64() * 1e3;
        match (self.asked.rate_bps, measured.rate_bps) {
            (Some(asked), Some(rate)) => {
                let off = off(measured.rate_is(&self.asked));
                write!(f, "rate {:.3} of {:.3} Mbit/s{off}, ", mbps(rate), mbps(asked as f64))?;
            }
            (Some(asked), None) => write!(f, "rate unknown of {:.3} Mbit/s (!), ", mbps(asked as f64))?,
            (None, _) => f.write_str("rate unlimited, ")?,
        }
        match (measured.delay, measured.delay_min, measured.delay_max) {
            (Some(delay), Some(min), Some(max)) => {
                let (asked, jitter) = (ms(self.asked.delay), ms(self.asked.jitter));
                let off = off(measured.delay_is(&self.asked));
                write!(f, "delay {:.2} ({:.2}-{:.2}) of {asked:.2}", ms(delay), ms(min), ms(max))?;
                write!(f, " +- {jitter:.2} ms{off}, ")?;
            }
            _ => f.write_str("nothing arrived (!), ")?,
        }
        let off = off(measured.loss_is(&self.asked));
        write!(f, "loss {:.2} of {:.2} %{off}", 100.0 * measured.loss, 100.0 * self.asked.loss)?;
        if measured.reordered > 0 {
            write!(f, ", {} overtaken (!)", measured.reordered)?;
        }
        Ok(())
    }
}

/// Measures both directions of each link; reports in the order of the links, two for each. Takes a second or so for
/// every sixteen directions, more on slow or far links, and blocks the calling thread.
///
/// # Errors
/// An interface that does not exist.
pub fn check_links(links: &[(LinkEnd, LinkEnd)]) -> Result<Vec<DirectionReport>, RouterError> {
    let both = links.iter().flat_map(|(one, other)| [(one, other), (other, one)]);
    let mut directions = Vec::new();
    for (from, to) in both {
        directions.push(Direction::new(from, to)?);
    }
    let mut reports = Vec::with_capacity(directions.len());
    let mut rest = directions.as_slice();
    while !rest.is_empty() {
        let (group, later) = rest.split_at(group_len(rest));
        thread::scope(|scope| {
            let threads: Vec<_> = group.iter().map(|direction| scope.spawn(|| direction.measure())).collect();
            for (direction, thread) in group.iter().zip(threads) {
                // A thread that panicked has measured nothing.
                reports.push(direction.report(thread.join().ok().flatten()));
            }
        });
        rest = later;
    }
    Ok(reports)
}

/// How many of the next directions the machine measures at once: at least one.
fn group_len(directions: &[Direction]) -> usize {
    let mut total_bps = 0_u64;
    let fits = |direction: &&Direction| {
        total_bps = total_bps.saturating_add(direction.asked.rate_bps.unwrap_or(UNLIMITED_BPS));
        total_bps <= AT_ONCE_BPS_MAX
    };
    directions.iter().take(AT_ONCE_MAX).take_while(fits).count().max(1)
}

/// One direction of a link.
struct Direction {
    from: Arc<Router>,
    from_port: usize,
    to: Arc<Router>,
    to_port: usize,
    asked: LinkShape,
    is_up: bool,
}

impl Direction {
    fn new(from: &LinkEnd, to: &LinkEnd) -> Result<Self, RouterError> {
        let port = |end: &LinkEnd| {
            let unknown = RouterError::UnknownInterface(end.router.isd_as, end.interface);
            end.router.port_index(end.interface).ok_or(unknown)
        };
        Ok(Self {
            from_port: port(from)?,
            to_port: port(to)?,
            asked: from.router.shape(from.interface)?,
            is_up: from.router.is_up(from.interface)? && to.router.is_up(to.interface)?,
            from: Arc::clone(&from.router),
            to: Arc::clone(&to.router),
        })
    }

    fn report(&self, measured: Option<Measured>) -> DirectionReport {
        let end = |router: &Router, port: usize| Interface { isd_as: router.isd_as, id: router.ports[port].id };
        let (from, to) = (end(&self.from, self.from_port), end(&self.to, self.to_port));
        DirectionReport { from, to, asked: self.asked, measured }
    }

    fn measure(&self) -> Option<Measured> {
        if !self.is_up {
            return None;
        }
        let mut small = self.probe(0)?;
        let line_time = self.line_time(small.len());
        let delays = self.record(|send| {
            let gap = DELAY_GAP_MIN.max(line_time * DELAY_LINE_SHARE);
            for _ in 0..DELAY_PROBES {
                send(&mut small);
                thread::sleep(gap);
            }
        });
        let stream = match self.asked.rate_bps {
            Some(rate) => {
                let packet_len = STREAM_PACKET_LEN.min(self.asked.mtu.into());
                let mut packet = self.probe(packet_len)?;
                self.record(|send| self.saturate(rate, &mut packet, send))
            }
            None => {
                let mut packet = self.probe(STREAM_SMALL_LEN)?;
                self.record(|send| self.trickle(&mut packet, send))
            }
        };
        Some(self.conclude(&delays, &stream, line_time))
    }

    fn conclude(&self, delays: &Recorded, stream: &Recorded, line_time: Duration) -> Measured {
        let without_line = |delay: Duration| (delays.log.packets > 0).then(|| delay.saturating_sub(line_time));
        let sent = delays.sent + stream.sent;
        let arrived = delays.log.packets + stream.log.packets;
        let rate_bps = stream.log.first.zip(stream.log.last).and_then(|(first, last)| {
            // Lost packets were on the line as well, so it is the numbers that count.
            let bits = (last.sequence.saturating_sub(first.sequence) * last.bytes * 8) as f64;
            let seconds = last.at.saturating_duration_since(first.at).as_secs_f64();
            (seconds > 0.0 && bits > 0.0).then(|| bits / seconds)
        });
        Measured {
            rate_bps,
            delay: without_line(delays.log.delay_sum / delays.log.packets.max(1) as u32),
            delay_min: without_line(delays.log.delay_min),
            delay_max: without_line(delays.log.delay_max),
            loss: sent.saturating_sub(arrived) as f64 / sent.max(1) as f64,
            packets: sent,
            reordered: delays.log.reordered + stream.log.reordered,
        }
    }

    /// Keeps the line busy for a while.
    fn saturate(&self, rate_bps: u64, packet: &mut ProbePacket, send: &mut dyn FnMut(&mut ProbePacket) -> bool) {
        let packets = STREAM_PACKETS_MIN * self.line_time(packet.len());
        let time = STREAM_TIME_MIN.max(packets).max(STREAM_JITTERS * self.asked.jitter).min(STREAM_TIME_MAX);
        let start = Instant::now();
        let mut offered_bytes = 0.0;
        while start.elapsed() < time {
            let due_bytes = start.elapsed().as_secs_f64() * rate_bps as f64 / 8.0 * STREAM_SURPLUS;
            while offered_bytes <= due_bytes {
                offered_bytes += packet.len() as f64;
                if !send(packet) {
                    // The queue is full: the line has enough to do until the next look.
                    offered_bytes = offered_bytes.max(due_bytes);
                    break;
                }
            }
            thread::sleep(STREAM_TICK);
        }
    }

    /// Sends enough for the losses to show, and not more than the machine takes at once.
    fn trickle(&self, packet: &mut ProbePacket, send: &mut dyn FnMut(&mut ProbePacket) -> bool) {
        let start = Instant::now();
        while start.elapsed() < STREAM_TIME_MIN {
            for _ in 0..STREAM_SMALL_PER_TICK {
                send(packet);
            }
            thread::sleep(STREAM_TICK);
        }
    }

    /// Has `stream` send, waits until everything has arrived or is lost, and says what came.
    fn record(&self, stream: impl FnOnce(&mut dyn FnMut(&mut ProbePacket) -> bool)) -> Recorded {
        static CHECKS: AtomicU32 = AtomicU32::new(1);
        // Zero is no check; after four billion of them, one is measured badly.
        let check = CHECKS.fetch_add(1, Ordering::Relaxed);
        let arrivals = &self.to.ports[self.to_port].probes;
        *arrivals.lock().unwrap_or_else(PoisonError::into_inner) = ProbeLog::begin(check);
        let mut sent = 0;
        stream(&mut |packet| {
            let is_on_line = self.send(packet, check, sent);
            sent += u64::from(is_on_line);
            is_on_line
        });
        let line = &self.from.ports[self.from_port].line;
        while line.deadline().is_some() {
            thread::sleep(STREAM_TICK);
        }
        thread::sleep(SETTLE_TIME);
        let log = std::mem::take(&mut *arrivals.lock().unwrap_or_else(PoisonError::into_inner));
        Recorded { sent, log }
    }

    /// Puts a probe onto the line; false if its queue is full.
    fn send(&self, packet: &mut ProbePacket, check: u32, sequence: u64) -> bool {
        let start = self.from.shared.start;
        let now = Instant::now();
        // Centuries fit.
        let sent_ns = now.saturating_duration_since(start).as_nanos() as u64;
        packet.set(Probe { check, sequence, sent_ns });
        let port = &self.from.ports[self.from_port];
        let offered = port.offer_or_send(now, &packet.bytes);
        if offered.needs_service {
            self.from.shared.command_any(Command::Serve(Arc::clone(&self.from), self.from_port));
        }
        offered.packets > 0
    }

    /// A probe of `len` bytes, or as short as one can be: from router to router, as the sending router lets a one-hop
    /// packet out (SCION header, "OneHopPath").
    fn probe(&self, len: usize) -> Option<ProbePacket> {
        let (from, to) = (self.from.rules(), self.to.rules());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let first = HopField::unsealed(u8::MAX, 0, self.from.ports[self.from_port].id);
        let info = InfoField { peering: false, cons_dir: true, seg_id: 0, timestamp_s: now.as_secs() as u32 };
        let path = OneHopPath::build(info, first);
        let fields = HeaderFields {
            source: Address { isd_as: from.isd_as, host: from.host() },
            destination: Address { isd_as: to.isd_as, host: to.host() },
            path: PathRef::OneHop(OneHopPath::parse(&path).ok()?),
            flow_id: 0,
            traffic_class: 0,
        };
        let header_len = fields.header_len();
        let payload_len = len.saturating_sub(header_len).max(PROBE_PAYLOAD_LEN_MIN);
        let mut bytes = vec![0; header_len + payload_len];
        fields.write(PROBE_PROTOCOL, payload_len, &mut bytes).ok()?;
        Some(ProbePacket { bytes, header_len })
    }

    fn line_time(&self, len: usize) -> Duration {
        self.asked.rate_bps.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(len as f64 * 8.0 / rate as f64))
    }
}

/// A probe to be sent again and again.
struct ProbePacket {
    bytes: Vec<u8>,
    header_len: usize,
}

impl ProbePacket {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn set(&mut self, probe: Probe) {
        if let Some(payload) = self.bytes[self.header_len..].first_chunk_mut() {
            probe.write(payload);
        }
    }
}

/// What came of a stream of probes.
struct Recorded {
    /// Probes that were on the line.
    sent: u64,
    log: ProbeLog,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> LinkShape {
        LinkShape { rate_bps: Some(1_000_000), delay: Duration::from_millis(100), loss: 0.02, ..LinkShape::default() }
    }

    fn measured() -> Measured {
        Measured {
            rate_bps: Some(1e6),
            delay: Some(Duration::from_millis(100)),
            loss: 0.02,
            packets: 1_000_000,
            ..Measured::default()
        }
    }

    #[test]
    fn five_percent_pass_and_more_does_not() {
        let is_as_asked = |change: fn(&mut Measured)| {
            let mut measured = measured();
            change(&mut measured);
            let end = Interface { isd_as: "1-1".parse().unwrap(), id: 1 };
            DirectionReport { from: end, to: end, asked: asked(), measured: Some(measured) }.is_as_asked()
        };
        assert!(is_as_asked(|_| {}));
        assert!(is_as_asked(|m| m.rate_bps = Some(1.049e6)) && !is_as_asked(|m| m.rate_bps = Some(1.051e6)));
        assert!(is_as_asked(|m| m.rate_bps = Some(0.951e6)) && !is_as_asked(|m| m.rate_bps = Some(0.949e6)));
        assert!(!is_as_asked(|m| m.rate_bps = None));
        assert!(is_as_asked(|m| m.delay = Some(Duration::from_micros(105_900))));
        assert!(!is_as_asked(|m| m.delay = Some(Duration::from_micros(106_100))));
        // One and a half per mille: 5 % of 2 %, and four times 0.014 %.
        assert!(is_as_asked(|m| m.loss = 0.0215) && !is_as_asked(|m| m.loss = 0.0217));
        assert!(!is_as_asked(|m| m.reordered = 1));
    }

    #[test]
    fn a_report_shows_what_is_off() {
        let end = Interface { isd_as: "1-ff00:0:110".parse().unwrap(), id: 1 };
        let report = DirectionReport {
            from: end,
            to: end,
            asked: asked(),
            measured: Some(Measured { rate_bps: Some(2e6), ..measured() }),
        };
        assert!(report.to_string().contains("rate 2.000 of 1.000 Mbit/s (!)"), "{report}");
        let down = DirectionReport { measured: None, ..report };
        assert!(down.to_string().ends_with("down") && !down.is_as_asked());
    }
}
