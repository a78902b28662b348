//! Links measured against what they should be, before anything is measured over them.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Bed, BedError, addresses, on_the_wire, system};
use crate::netns::Namespace;

/// Links that are measured at once: more would measure the processors.
const AT_ONCE: usize = 4;
/// Bytes of a probe's payload and of the packet around it.
const PROBE_BYTES: usize = 1200;
const HEADER_BYTES: usize = 28;
/// How long a link is filled.
const FILL: Duration = Duration::from_millis(400);
/// Probes that go alone, for the delay; the median counts.
const ALONE: usize = 5;
const ALONE_EVERY: Duration = Duration::from_millis(8);
/// What a deviation may be.
pub(super) const TOLERANCE: f64 = 0.02;
/// What a short delay may be off by, so that 2 % of a millisecond are not asked of a scheduler.
const DELAY_SLACK: Duration = Duration::from_micros(500);
/// A link without a limit is filled at this rate only, and not judged.
const UNLIMITED_BPS: u64 = 50_000_000;
/// Fastest link that is measured: beyond it, one sender in one thread is the limit.
const MEASURED_BPS_MAX: u64 = 500_000_000;
/// How long after the last probe another one may come.
const PATIENCE: Duration = Duration::from_millis(300);

/// What one direction of a link did.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The link's ends, the sending one first.
    pub link: String,
    /// Bits a second asked for, headers of IP included.
    pub rate_bps: Option<u64>,
    /// And measured.
    pub got_bps: f64,
    /// One-way delay asked for.
    pub delay: Duration,
    /// And measured, the time on the line taken off.
    pub got_delay: Duration,
    /// Whether both are as asked.
    pub fits: bool,
}

/// All directions of all links.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// In the order of the links, both directions each.
    pub measured: Vec<Measured>,
}

impl Calibration {
    /// Directions that are as asked for.
    pub fn fitting(&self) -> usize {
        self.measured.iter().filter(|each| each.fits).count()
    }
}

impl Bed {
    /// Measures all links, while nothing else runs over them.
    ///
    /// # Errors
    /// When sockets cannot be opened, or it was asked to end.
    pub fn calibrate(
        &self,
        cancel: &AtomicBool,
        topology: &anabranch_asnet::topology::Topology,
    ) -> Result<Calibration, BedError> {
        let mut jobs = Vec::new();
        for (number, link) in topology.links().iter().enumerate() {
            for end in 0..2 {
                let at = [end, 1 - end].map(|end| topology.index(link.ends[end].isd_as).unwrap_or_default());
                let name = format!("{} > {}", link.ends[end], link.ends[1 - end]);
                jobs.push((
                    name,
                    at,
                    [end, 1 - end].map(|end| addresses::link(number, end)),
                    on_the_wire(link.shapes[end]),
                ));
            }
        }
        let mut measured = Vec::new();
        for batch in jobs.chunks(AT_ONCE) {
            if cancel.load(Ordering::Relaxed) {
                return Err(BedError::Canceled);
            }
            let results: Vec<Result<Measured, BedError>> = thread::scope(|scope| {
                let running: Vec<_> = batch
                    .iter()
                    .map(|(name, at, addresses, shape)| {
                        let ends = at.map(|at| &self.ases[at]);
                        scope.spawn(move || measure(name, ends, *addresses, shape.rate_bps, shape.delay))
                    })
                    .collect();
                running
                    .into_iter()
                    .map(|each| each.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                    .collect()
            });
            measured.extend(results.into_iter().collect::<Result<Vec<_>, _>>()?);
        }
        Ok(Calibration { measured })
    }
}

fn measure(
    name: &str,
    ends: [&Namespace; 2],
    [from, to]: [Ipv4Addr; 2],
    rate_bps: Option<u64>,
    delay: Duration,
) -> Result<Measured, BedError> {
    let open = |end: &Namespace, address: Ipv4Addr| {
        end.enter(|| UdpSocket::bind(SocketAddrV4::new(address, 0)).map_err(system("opening a socket for probes")))
    };
    let (sender, receiver) = (open(ends[0], from)?, open(ends[1], to)?);
    let target = receiver.local_addr().map_err(system("a socket for probes"))?;
    sender.connect(target).map_err(system("a socket for probes"))?;
    receiver.set_read_timeout(Some(delay + PATIENCE)).map_err(system("a socket for probes"))?;
    let start = Instant::now();
    let arrivals = thread::scope(|scope| {
        let listening = scope.spawn(|| listen(&receiver, start));
        send(&sender, start, rate_bps.unwrap_or(UNLIMITED_BPS).min(MEASURED_BPS_MAX));
        listening.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let packet_bits = (PROBE_BYTES + HEADER_BYTES) as f64 * 8.0;
    let line = rate_bps.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(packet_bits / rate as f64));
    let mut alone: Vec<Duration> =
        arrivals.iter().filter(|each| each.alone).map(|each| each.at.saturating_sub(each.sent)).collect();
    alone.sort_unstable();
    let got_delay = alone.get(alone.len() / 2).copied().unwrap_or_default().saturating_sub(line);
    let filling: Vec<Duration> = arrivals.iter().filter(|each| !each.alone).map(|each| each.at).collect();
    let got_bps = match (filling.first(), filling.last()) {
        (Some(first), Some(last)) if last > first => {
            (filling.len() - 1) as f64 * packet_bits / (*last - *first).as_secs_f64()
        }
        _ => 0.0,
    };
    let rate_fits =
        rate_bps.is_none_or(|rate| rate > MEASURED_BPS_MAX || (got_bps / rate as f64 - 1.0).abs() <= TOLERANCE);
    let off = got_delay.abs_diff(delay);
    let fits = rate_fits && !alone.is_empty() && off <= delay.mul_f64(TOLERANCE).max(DELAY_SLACK);
    Ok(Measured { link: name.to_owned(), rate_bps, got_bps, delay, got_delay, fits })
}

/// A probe that arrived: times are since the start.
struct Arrival {
    sent: Duration,
    at: Duration,
    alone: bool,
}

/// Probes that find an idle line, then as many as fill it and a little more.
fn send(socket: &UdpSocket, start: Instant, rate_bps: u64) {
    let mut probe = [0; PROBE_BYTES];
    let mut put = |alone: bool| {
        probe[..8].copy_from_slice(&(start.elapsed().as_nanos() as u64).to_be_bytes());
        probe[8] = u8::from(alone);
        // What the wire does not take shows at the other end.
        socket.send(&probe).ok();
    };
    for _ in 0..ALONE {
        put(true);
        thread::sleep(ALONE_EVERY);
    }
    let every = Duration::from_secs_f64((PROBE_BYTES + HEADER_BYTES) as f64 * 8.0 / (rate_bps as f64 * 1.2));
    let began = Instant::now();
    let mut next = began;
    while next < began + FILL {
        put(false);
        next += every;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

fn listen(socket: &UdpSocket, start: Instant) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    let mut probe = [0; PROBE_BYTES];
    while let Ok(len) = socket.recv(&mut probe) {
        let at = start.elapsed();
        if len == PROBE_BYTES {
            let nanos =
                u64::from_be_bytes([probe[0], probe[1], probe[2], probe[3], probe[4], probe[5], probe[6], probe[7]]);
            arrivals.push(Arrival { sent: Duration::from_nanos(nanos), at, alone: probe[8] == 1 });
        }
    }
    arrivals
}
