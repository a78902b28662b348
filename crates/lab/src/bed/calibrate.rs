//! Links measured against what they should be, before anything is measured over them.
//!
//! Two kinds of probes go over each direction. Those that go *alone* find an idle line, and show delay and loss; those that *fill* it
//! show its rate. Both ends are here, so one clock serves both.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anabranch_asnet::link::LinkShape;

use super::{Bed, BedError, addresses, system};
use crate::netns::Namespace;

/// Directions that are measured at once whatever their rates are, and at most; beyond the first, as many as have so many bits a second
/// together: more would measure the processors.
const AT_ONCE_MIN: usize = 4;
const AT_ONCE_MAX: usize = 12;
const AT_ONCE_BPS: u64 = 150_000_000;
/// Directions of links that are measured, those of all variants counted: about five minutes.
const DIRECTIONS_MAX: usize = 1000;
/// How long a wire may take to have another shape: its thread has to wake.
const SETTLE: Duration = Duration::from_millis(20);
/// Bytes of a probe's payload and of the packet around it.
const PROBE_BYTES: usize = 1200;
const HEADER_BYTES: usize = 28;
/// How long a line is filled, and how many probes have to fit onto it meanwhile.
const FILL: Duration = Duration::from_millis(400);
const FILL_LINES: u32 = 20;
/// How much more than its rate a line is filled with.
const FILL_FACTOR: f64 = 1.2;
/// Probes that go alone, as many as fit into the time and no fewer than the last: over a line that loses none, and over one whose losses
/// are counted.
const ALONE: u32 = 50;
const ALONE_COUNTED: u32 = 200;
const ALONE_FOR: Duration = Duration::from_secs(1);
const ALONE_MIN: u32 = 5;
/// The least between two that go alone, and in times that one of them is on the line: none waits for the one before it.
const ALONE_EVERY_MIN: Duration = Duration::from_millis(2);
const ALONE_LINES: u32 = 2;
/// What a deviation may be.
const TOLERANCE: f64 = 0.02;
/// What a short delay may be off by, so that 2 % of a millisecond are not asked of a scheduler.
const DELAY_SLACK: Duration = Duration::from_micros(500);
/// What chance may make of losses: three standard deviations, and a probe.
const LOSS_DEVIATIONS: f64 = 3.0;
const LOSS_SLACK: f64 = 1.0;
/// Rates that are measured: above them one sender in one thread is the limit, below them probes take minutes.
const MEASURED_BPS_MAX: u64 = 500_000_000;
const MEASURED_BPS_MIN: u64 = 100_000;
/// Above this share of losses, too few probes arrive.
const MEASURED_LOSS_MAX: f64 = 0.5;
/// How long after the last probe another one may come, besides the delay.
const PATIENCE: Duration = Duration::from_millis(300);

/// What one direction of a link is to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// The link, by its place in the topology, and the end that packets leave.
    pub link: usize,
    /// See [`Self::link`].
    pub way: usize,
    /// The link's ends, the sending one first.
    pub name: String,
    /// Its properties, as topologies count them.
    pub shape: LinkShape,
}

/// What one direction of a link did.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What it is to be.
    pub asked: Asked,
    /// Bits a second, headers of IP included, with what the link is to lose added.
    pub got_bps: Option<f64>,
    /// One-way delay, the time on the line taken off.
    pub got_delay: Option<Duration>,
    /// Share of packets that were lost.
    pub got_loss: Option<f64>,
    /// Whether all of it is as asked; `None` where not all of it was measured, and the rest is.
    pub fits: Option<bool>,
}

/// Directions of links.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// Those that were looked at.
    pub measured: Vec<Measured>,
    /// How many more there are.
    pub left_out: usize,
}

impl Calibration {
    /// How many there are.
    pub fn directions(&self) -> usize {
        self.measured.len() + self.left_out
    }

    /// Directions that are as asked for.
    pub fn fitting(&self) -> usize {
        self.measured.iter().filter(|each| each.fits == Some(true)).count()
    }

    /// Directions of which that is not known.
    pub fn not_measured(&self) -> usize {
        self.left_out + self.measured.iter().filter(|each| each.fits.is_none()).count()
    }
}

impl Bed {
    /// Measures directions of links, each with the shape that is asked for, while nothing else runs over them.
    ///
    /// # Errors
    /// When sockets cannot be opened, or it was asked to end.
    pub fn calibrate(&self, cancel: &AtomicBool, asked: &[Asked]) -> Result<Calibration, BedError> {
        let (asked, left_out) = asked.split_at(asked.len().min(DIRECTIONS_MAX));
        let mut measured = Vec::new();
        for round in rounds(asked) {
            round.iter().for_each(|each| self.set_shape(each.link, each.way, each.shape));
            thread::sleep(SETTLE);
            for batch in batches(&round) {
                super::check(cancel)?;
                measured.extend(self.measure_at_once(batch)?);
            }
        }
        Ok(Calibration { measured, left_out: left_out.len() })
    }

    fn measure_at_once(&self, batch: &[&Asked]) -> Result<Vec<Measured>, BedError> {
        thread::scope(|scope| {
            let running: Vec<_> = batch.iter().map(|each| scope.spawn(move || self.measure(each))).collect();
            let ended = running.into_iter().map(|each| each.join());
            ended.map(|each| each.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    }

    fn measure(&self, asked: &Asked) -> Result<Measured, BedError> {
        let ends = [asked.way, 1 - asked.way];
        let namespaces = ends.map(|end| &self.ases[self.ends[asked.link][end]]);
        let [from, to] = ends.map(|end| addresses::link(asked.link, end));
        let Some(probes) = Probes::of(&asked.shape) else { return Ok(judge(asked, 0, &[])) };
        let open = |end: &Namespace, address: Ipv4Addr| {
            end.enter(|| UdpSocket::bind(SocketAddrV4::new(address, 0)).map_err(system("opening a socket for probes")))
        };
        let (sender, receiver) = (open(namespaces[0], from)?, open(namespaces[1], to)?);
        let target = receiver.local_addr().map_err(system("a socket for probes"))?;
        sender.connect(target).map_err(system("a socket for probes"))?;
        let patience = asked.shape.delay + asked.shape.jitter + PATIENCE;
        receiver.set_read_timeout(Some(patience)).map_err(system("a socket for probes"))?;
        let (start, over) = (Instant::now(), AtomicBool::new(false));
        let arrivals = thread::scope(|scope| {
            let listening = scope.spawn(|| listen(&receiver, start, &over));
            send(&sender, start, &probes);
            over.store(true, Ordering::Relaxed);
            listening.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        Ok(judge(asked, probes.alone, &arrivals))
    }
}

/// Directions that can have their shapes at the same time, each once.
fn rounds(asked: &[Asked]) -> Vec<Vec<&Asked>> {
    let mut rounds: Vec<Vec<&Asked>> = Vec::new();
    for each in asked {
        let is_in = |round: &Vec<&Asked>| round.iter().any(|other| (other.link, other.way) == (each.link, each.way));
        match rounds.iter_mut().find(|round| !is_in(round)) {
            Some(round) => round.push(each),
            None => rounds.push(vec![each]),
        }
    }
    rounds
}

/// Parts of a round that are measured at once.
fn batches<'a, 'b>(round: &'b [&'a Asked]) -> Vec<&'b [&'a Asked]> {
    let (mut batches, mut rest) = (Vec::new(), round);
    while !rest.is_empty() {
        let mut together = 0;
        let fitting = rest.iter().take(AT_ONCE_MAX).take_while(|each| {
            together += measured_rate(&each.shape).unwrap_or(0);
            together <= AT_ONCE_BPS
        });
        let (batch, others) = rest.split_at(fitting.count().max(AT_ONCE_MIN).min(rest.len()));
        batches.push(batch);
        rest = others;
    }
    batches
}

/// Bits of a probe on the wire.
fn probe_bits() -> f64 {
    (PROBE_BYTES + HEADER_BYTES) as f64 * 8.0
}

/// How long a probe is on the line.
fn line_time(rate_bps: Option<u64>) -> Duration {
    rate_bps.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(probe_bits() / rate as f64))
}

/// Which probes measure a shape.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Probes {
    /// How many go alone, and when.
    alone: u32,
    alone_every: Duration,
    /// When those go that fill the line, and for how long; none where its rate cannot be measured.
    fill: Option<[Duration; 2]>,
}

impl Probes {
    /// `None` where nothing of it can be measured.
    fn of(shape: &LinkShape) -> Option<Self> {
        let is_slow = shape.rate_bps.is_some_and(|rate| rate < MEASURED_BPS_MIN);
        if is_slow || shape.loss > MEASURED_LOSS_MAX {
            return None;
        }
        let line = line_time(shape.rate_bps);
        let alone_every = (line * ALONE_LINES).max(ALONE_EVERY_MIN);
        let wanted = if shape.loss > 0.0 { ALONE_COUNTED } else { ALONE };
        // Far below the limits of its type.
        let fitting = (ALONE_FOR.as_secs_f64() / alone_every.as_secs_f64()) as u32;
        let fill = measured_rate(shape).map(|_| [line.div_f64(FILL_FACTOR), FILL.max(line * FILL_LINES)]);
        Some(Self { alone: wanted.min(fitting).max(ALONE_MIN), alone_every, fill })
    }
}

/// The rate of a shape, if it is one that can be measured.
fn measured_rate(shape: &LinkShape) -> Option<u64> {
    shape.rate_bps.filter(|rate| (MEASURED_BPS_MIN..=MEASURED_BPS_MAX).contains(rate))
}

/// What follows from the probes that arrived, of which so many were sent alone.
fn judge(asked: &Asked, sent_alone: u32, arrivals: &[Arrival]) -> Measured {
    let shape = &asked.shape;
    if sent_alone == 0 {
        return Measured { asked: asked.clone(), got_bps: None, got_delay: None, got_loss: None, fits: None };
    }
    let mut alone: Vec<Duration> =
        arrivals.iter().filter(|each| each.alone).map(|each| each.at.saturating_sub(each.sent)).collect();
    alone.sort_unstable();
    let got_delay = alone.get(alone.len() / 2).map(|delay| delay.saturating_sub(line_time(shape.rate_bps)));
    let delay_slack = shape.delay.mul_f64(TOLERANCE).max(DELAY_SLACK) + shape.jitter;
    let delay_fits = got_delay.is_some_and(|got| got.abs_diff(shape.delay) <= delay_slack);

    let (sent, lost) = (f64::from(sent_alone), f64::from(sent_alone) - alone.len() as f64);
    let chance = LOSS_DEVIATIONS * (sent * shape.loss * (1.0 - shape.loss)).sqrt();
    let loss_fits = (lost - sent * shape.loss).abs() <= chance + LOSS_SLACK;

    let filling: Vec<Duration> = arrivals.iter().filter(|each| !each.alone).map(|each| each.at).collect();
    let rate = measured_rate(shape).map(|rate| (rate, rate_of(&filling) / (1.0 - shape.loss)));
    // How many of the filling probes were lost is a matter of chance, too, and jitter moves the first and the last of them.
    let by_chance = LOSS_DEVIATIONS * (shape.loss / filling.len().max(1) as f64).sqrt();
    let rate_slack = TOLERANCE + by_chance + 2.0 * shape.jitter.as_secs_f64() / FILL.as_secs_f64();
    let rate_fits = rate.map(|(rate, got)| (got / rate as f64 - 1.0).abs() <= rate_slack);
    Measured {
        asked: asked.clone(),
        got_bps: rate.map(|(_, got)| got),
        got_delay,
        got_loss: Some(lost / sent),
        fits: if delay_fits && loss_fits { rate_fits } else { Some(false) },
    }
}

/// Bits a second of probes that arrived at these times.
fn rate_of(arrivals: &[Duration]) -> f64 {
    match (arrivals.first(), arrivals.last()) {
        (Some(first), Some(last)) if last > first => {
            (arrivals.len() - 1) as f64 * probe_bits() / (*last - *first).as_secs_f64()
        }
        _ => 0.0,
    }
}

/// A probe that arrived: times are since the start.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    sent: Duration,
    at: Duration,
    alone: bool,
}

/// Probes that find an idle line, then as many as fill it and a little more.
fn send(socket: &UdpSocket, start: Instant, probes: &Probes) {
    let mut probe = [0; PROBE_BYTES];
    let mut put = |alone: bool| {
        probe[..8].copy_from_slice(&(start.elapsed().as_nanos() as u64).to_be_bytes());
        probe[8] = u8::from(alone);
        // What the wire does not take shows at the other end.
        socket.send(&probe).ok();
    };
    for _ in 0..probes.alone {
        put(true);
        thread::sleep(probes.alone_every);
    }
    let Some([every, length]) = probes.fill else { return };
    let began = Instant::now();
    let mut next = began;
    while next < began + length {
        put(false);
        next += every;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Hears probes until nothing more comes after the last one was sent.
fn listen(socket: &UdpSocket, start: Instant, over: &AtomicBool) -> Vec<Arrival> {
    let mut arrivals = Vec::new();
    let mut probe = [0; PROBE_BYTES];
    loop {
        let was_over = over.load(Ordering::Relaxed);
        let Ok(len) = socket.recv(&mut probe) else {
            if was_over {
                return arrivals;
            }
            continue;
        };
        let at = start.elapsed();
        if len == PROBE_BYTES {
            let nanos =
                u64::from_be_bytes([probe[0], probe[1], probe[2], probe[3], probe[4], probe[5], probe[6], probe[7]]);
            arrivals.push(Arrival { sent: Duration::from_nanos(nanos), at, alone: probe[8] == 1 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 1_000_000;

    fn asked(link: usize, way: usize, shape: LinkShape) -> Asked {
        Asked { link, way, name: "1-1#1 > 1-2#1".into(), shape }
    }

    fn shape(rate_bps: Option<u64>, delay_ms: u64, loss: f64) -> LinkShape {
        LinkShape { rate_bps, delay: Duration::from_millis(delay_ms), loss, ..LinkShape::default() }
    }

    /// What arrives where a line has a shape: probes alone, then so many that fill it, of which it loses every n-th.
    fn arrivals(of: &LinkShape, alone: u32, fill: u32, loses_every: u32) -> Vec<Arrival> {
        let line = line_time(of.rate_bps);
        let ones = (0..alone).map(|number| {
            let sent = line * 2 * number;
            Arrival { sent, at: sent + line + of.delay, alone: true }
        });
        let began = line * 2 * alone;
        let many = (0..fill).map(|number| Arrival { sent: began, at: began + line * number + of.delay, alone: false });
        let both = ones.chain(many).enumerate();
        both.filter(|(number, _)| loses_every == 0 || *number as u32 % loses_every != 1).map(|(_, each)| each).collect()
    }

    #[test]
    fn slow_links_are_measured_many_at_once_and_fast_ones_few() {
        let of = |mbit: u64, count: usize| {
            let shape = LinkShape { rate_bps: Some(mbit * MBIT), ..LinkShape::default() };
            (0..count).map(|link| Asked { link, way: 0, name: String::new(), shape }).collect::<Vec<_>>()
        };
        let lens = |asked: Vec<Asked>| {
            let round: Vec<&Asked> = asked.iter().collect();
            batches(&round).iter().map(|batch| batch.len()).collect::<Vec<_>>()
        };
        assert_eq!(lens(of(10, 30)), [12, 12, 6]);
        assert_eq!(lens(of(25, 14)), [6, 6, 2]);
        assert_eq!(lens(of(400, 5)), [4, 1]);
        assert_eq!(lens(of(10, 2)), [2]);
        assert!(lens(Vec::new()).is_empty());
    }

    #[test]
    fn a_line_as_asked_fits_and_another_one_does_not() {
        let asked_for = shape(Some(10 * MBIT), 20, 0.0);
        let judged = |as_is: &LinkShape| judge(&asked(0, 0, asked_for), 50, &arrivals(as_is, 50, 400, 0));
        let fitting = judged(&asked_for);
        assert_eq!(fitting.fits, Some(true), "{fitting:?}");
        assert!((fitting.got_bps.unwrap() / 1e7 - 1.0).abs() < 1e-3 && fitting.got_loss == Some(0.0), "{fitting:?}");
        assert_eq!(judged(&shape(Some(9 * MBIT), 20, 0.0)).fits, Some(false));
        assert_eq!(judged(&shape(Some(10 * MBIT), 21, 0.0)).fits, Some(false));
        let none = judge(&asked(0, 0, asked_for), 50, &[]);
        assert_eq!((none.fits, none.got_loss, none.got_delay), (Some(false), Some(1.0), None));
    }

    #[test]
    fn losses_are_measured_and_do_not_count_against_the_rate() {
        // One of twenty is lost, as asked: the rate that arrives is 5 % below the line's.
        let lossy = shape(Some(10 * MBIT), 20, 0.05);
        let found = judge(&asked(0, 0, lossy), 200, &arrivals(&lossy, 200, 400, 20));
        assert_eq!((found.fits, found.got_loss), (Some(true), Some(0.05)), "{found:?}");
        assert!((found.got_bps.unwrap() / 1e7 - 1.0).abs() < 0.02, "{found:?}");
        // A line that loses what it should not, and one that does not lose what it should.
        let sound = shape(Some(10 * MBIT), 20, 0.0);
        assert_eq!(judge(&asked(0, 0, sound), 200, &arrivals(&sound, 200, 400, 20)).fits, Some(false));
        let half = shape(Some(10 * MBIT), 20, 0.5);
        assert_eq!(judge(&asked(0, 0, half), 200, &arrivals(&half, 200, 400, 0)).fits, Some(false));
    }

    #[test]
    fn jitter_does_not_count_against_the_rate() {
        let steady = shape(Some(10 * MBIT), 20, 0.0);
        let shaky = LinkShape { jitter: Duration::from_millis(10), ..steady };
        // The last probe is 20 ms late, of 400: 5 % of the rate.
        let mut late = arrivals(&steady, 50, 400, 0);
        late.last_mut().unwrap().at += 2 * shaky.jitter;
        assert_eq!(judge(&asked(0, 0, steady), 50, &late).fits, Some(false));
        assert_eq!(judge(&asked(0, 0, shaky), 50, &late).fits, Some(true));
    }

    #[test]
    fn what_cannot_be_measured_neither_fits_nor_misfits() {
        for rate_bps in [None, Some(MEASURED_BPS_MAX + 1)] {
            let of = shape(rate_bps, 20, 0.0);
            assert_eq!(Probes::of(&of).unwrap().fill, None);
            let found = judge(&asked(0, 0, of), 50, &arrivals(&of, 50, 0, 0));
            assert_eq!((found.fits, found.got_bps), (None, None));
            // Its delay is known all the same.
            let late = judge(&asked(0, 0, of), 50, &arrivals(&shape(rate_bps, 30, 0.0), 50, 0, 0));
            assert_eq!(late.fits, Some(false));
        }
        for of in [shape(Some(MEASURED_BPS_MIN - 1), 0, 0.0), shape(None, 0, 1.0)] {
            assert_eq!(Probes::of(&of), None);
            assert_eq!(judge(&asked(0, 0, of), 0, &[]).fits, None);
        }
        let all = [Some(true), Some(false), None];
        let of = asked(0, 0, shape(None, 0, 0.0));
        let measured = all.map(|fits| Measured { fits, ..judge(&of, 0, &[]) }).to_vec();
        let calibration = Calibration { measured, left_out: 4 };
        assert_eq!((calibration.directions(), calibration.fitting(), calibration.not_measured()), (7, 1, 5));
    }

    #[test]
    fn probes_that_go_alone_do_not_wait_for_each_other() {
        for rate_bps in [MEASURED_BPS_MIN, MBIT, 1_228_000, 10 * MBIT, MEASURED_BPS_MAX] {
            for loss in [0.0, 0.01] {
                let probes = Probes::of(&shape(Some(rate_bps), 0, loss)).unwrap();
                assert!(probes.alone_every >= 2 * line_time(Some(rate_bps)), "{rate_bps}: {probes:?}");
                assert!((ALONE_MIN..=ALONE_COUNTED).contains(&probes.alone), "{rate_bps}: {probes:?}");
                let [every, length] = probes.fill.unwrap();
                assert!(every < line_time(Some(rate_bps)), "{rate_bps}: the line is filled");
                assert!(length >= 20 * line_time(Some(rate_bps)) && length <= Duration::from_secs(2), "{probes:?}");
                assert!(probes.alone_every * probes.alone <= Duration::from_secs(1), "{rate_bps}: {probes:?}");
            }
        }
    }

    #[test]
    fn shapes_of_one_direction_are_measured_one_after_the_other() {
        let slow = shape(Some(MBIT), 0, 0.0);
        let fast = shape(Some(2 * MBIT), 0, 0.0);
        let all = [
            asked(0, 0, slow),
            asked(0, 1, slow),
            asked(0, 0, fast),
            asked(1, 0, fast),
            asked(0, 0, shape(None, 0, 0.0)),
        ];
        let rounds = rounds(&all);
        assert_eq!(rounds, [vec![&all[0], &all[1], &all[3]], vec![&all[2]], vec![&all[4]]]);
    }
}
