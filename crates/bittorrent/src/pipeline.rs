//! How many bytes to have requested of one connection, from what it was measured to deliver.
//!
//! A request costs a round trip, so a connection is only busy while a bandwidth-delay product of requests is under
//! way. The model is that of BBR, one layer up: a maximum filter on the delivery rate, a minimum filter on the time
//! from request to block, and a target of rate x (`GAIN` x round trip + `MARGIN`). Because the target exceeds what
//! is measured, it doubles about every round trip until the link, and not the target, sets the rate. The margin keeps
//! the sender busy while either program waits for a processor.
//!
//! Where a peer answers in pulses, the round trip is at least its silence between two of them ([`crate::pulse`]).
//!
//! Samples taken while the connection was not kept full (rate limit, nothing to pick, choke) only ever raise the
//! estimate, so a pause costs nothing. Every `PROBE_EVERY` the queue is let run down, for one round trip, to half of
//! what fills the link: what a block takes then is the round trip, grown or shrunk.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anabranch_content::geometry::BLOCK_LEN;

use crate::pulse::Pulse;

/// Round trips of requests beyond the margin: the pipeline must be able to double.
const GAIN: u32 = 2;

/// The same until the rate stops growing by a quarter from epoch to epoch: growth from 64 KiB to 12.5 MB within ten
/// round trips.
const GAIN_START: u32 = 4;

/// Epochs without growth that end the start.
const PLATEAU_EPOCHS: u8 = 3;

/// Time in queue at the sender, to cover a busy machine's scheduling (4 to 10 ms, and twice that under load).
const MARGIN: Duration = Duration::from_millis(30);

/// Most bytes the margin adds: at loopback speed 30 ms would be 60 MB that buy nothing and fall out of every cache.
const MARGIN_BYTES_MAX: u64 = 2 << 20;

/// Requests before anything is measured. A peer of 10 kB/s takes 6 s for these, a fast one a round trip.
const START_BYTES: u64 = 4 * BLOCK_LEN as u64;

/// Two requests: one being sent, one waiting.
const TARGET_BYTES_MIN: u64 = 2 * BLOCK_LEN as u64;

/// A rate is measured over at least this long (and a round trip), so that one batch of reads is no rate.
const EPOCH_MIN: Duration = Duration::from_millis(20);

/// A rate is measured over at least this many blocks, unless they take longer than [`EPOCH_MAX`]: two slow blocks that
/// happen to come together are no rate either.
const EPOCH_BLOCKS: u32 = 4;

/// See [`EPOCH_BLOCKS`].
const EPOCH_MAX: Duration = Duration::from_secs(4);

/// The maximum filter forgets after one to two of these (plus round trips).
const RATE_KEPT: Duration = Duration::from_secs(1);

/// Beyond the path's round trip, a peer may take this long to serve: a disk, a scheduler's tick. A longer answer time is
/// a queue in front of a peer that is short of upload, unless the peer is silent meanwhile. To queue deeper there would bring nothing, but would claim blocks
/// that somebody else could fetch, and in a swarm of equals make the seed send them twice.
const SERVICE_MAX: Duration = Duration::from_millis(150);

/// How often the round trip is measured afresh: costs less than a round trip's worth of the link each time.
const PROBE_EVERY: Duration = Duration::from_secs(30);

/// A slower answer is no round trip but a queue at the peer.
const RTT_MAX: Duration = Duration::from_secs(3);

/// Silence that a working peer may show whatever its speed: a lost packet, a disk that wakes up.
const TIMEOUT_MIN: Duration = Duration::from_secs(5);

/// Silence granted before the first block, while nothing is known.
const TIMEOUT_START: Duration = Duration::from_secs(15);

/// What the first block of a path takes beyond its round trip, as long as nothing is known, or nothing comes.
const ARRIVAL_UNKNOWN: Duration = Duration::from_millis(500);

/// Nobody gets longer than this.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Requests recorded at most; `reqq` values above are of no use (256 MiB under way).
pub const REQUESTS_MAX: u32 = 16 * 1024;

/// `reqq` of a peer that did not say (libtorrent's default).
pub const REQQ_DEFAULT: u32 = 250;

/// The request pipeline of one connection.
#[derive(Clone, Debug)]
pub struct Pipeline {
    memory_max_bytes: u64,
    reqq: u32,
    /// When each outstanding request was made, oldest first, and its bytes.
    requests: VecDeque<(Instant, u32)>,
    outstanding_bytes: u64,
    rtt_min: Option<Duration>,
    /// What the transport says of the path.
    path_rtt: Option<Duration>,
    /// Highest rate in the running period and in the one before.
    rate_max_bytes: [u64; 2],
    period_end: Option<Instant>,
    /// Epochs since the rate last grew by a quarter.
    plateau: u8,
    epoch: Option<Epoch>,
    probe: Probe,
    pulse: Pulse,
    /// What the peer owed when something was asked for last: the driver tells of blocks before it tells of their bytes.
    owed_bytes: u64,
    progress_at: Option<Instant>,
    stalled: bool,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Instant,
    bytes: u64,
    blocks: u32,
    /// Most that was outstanding: far below the target, the rate is the program's and not the connection's.
    outstanding_max_bytes: u64,
}

impl Epoch {
    fn new(start: Instant) -> Self {
        Self { start, bytes: 0, blocks: 0, outstanding_max_bytes: 0 }
    }
}

#[derive(Clone, Copy, Debug)]
enum Probe {
    Off {
        next: Option<Instant>,
    },
    /// Running down, then (once `drained_at` is set) waiting for the answer to a request made after that.
    On {
        drained_at: Option<Instant>,
    },
}

impl Pipeline {
    /// A connection about which nothing is known. `memory_max_bytes` bounds the target.
    pub fn new(memory_max_bytes: u64) -> Self {
        Self {
            memory_max_bytes,
            reqq: REQQ_DEFAULT,
            requests: VecDeque::new(),
            outstanding_bytes: 0,
            rtt_min: None,
            path_rtt: None,
            rate_max_bytes: [0; 2],
            period_end: None,
            plateau: 0,
            epoch: None,
            probe: Probe::Off { next: None },
            pulse: Pulse::default(),
            owed_bytes: 0,
            progress_at: None,
            stalled: false,
        }
    }

    /// How many requests the peer queues (BEP 10, "reqq"); 0 counts as 1.
    pub fn set_reqq(&mut self, reqq: u32) {
        self.reqq = reqq.clamp(1, REQUESTS_MAX);
    }

    /// The round trip of the path alone, as the transport measured it: without the time that requests wait at the peer.
    pub fn set_path_rtt(&mut self, rtt: Duration) {
        self.path_rtt = Some(rtt);
    }

    /// The path stopped working and works again: it is believed to be as long as it was, and half as fast, until it shows.
    pub fn restart(&mut self) {
        let rate_max_bytes = [self.rate_bytes() / 2, 0];
        let Self { reqq, path_rtt, rtt_min, .. } = *self;
        *self = Self { reqq, path_rtt, rtt_min, rate_max_bytes, ..Self::new(self.memory_max_bytes) };
    }

    /// The rate has fallen for good, says who sees more of the path than its fastest moments.
    pub fn slow_to(&mut self, rate_bytes: u64) {
        self.rate_max_bytes = [rate_bytes.min(self.rate_bytes()), 0];
    }

    /// The time after which a block that is asked for now will be here, behind all that was asked for before.
    pub fn arrival_in(&self) -> Duration {
        let rate = self.rate_bytes();
        if self.stalled || rate == 0 {
            return self.round_trip() + ARRIVAL_UNKNOWN;
        }
        let queued = self.outstanding_bytes + u64::from(BLOCK_LEN);
        Duration::from_secs_f64(queued as f64 / rate as f64).max(self.round_trip())
    }

    /// The time from a request to its block where nothing waits, as far as it is known.
    pub fn round_trip(&self) -> Duration {
        let rtt = match (self.rtt_min, self.path_rtt) {
            (Some(rtt), Some(path)) => rtt.min(path + SERVICE_MAX),
            (rtt, path) => rtt.or(path).unwrap_or_default(),
        };
        // What was asked for just before a pulse is here at once: the least time says little of such a peer.
        rtt.max(self.pulse.silence().unwrap_or_default())
    }

    /// We received nothing for a while, whatever came: that silence is not the peer's.
    pub fn on_own_pause(&mut self, now: Instant) {
        self.pulse.asked(now);
    }

    /// Payload arrived, of a block that is not whole yet or just became so.
    pub fn on_payload(&mut self, bytes: u64, now: Instant) {
        if let Some(rate_bytes) = self.pulse.on_payload(bytes, self.owed_bytes, now) {
            self.slow_to(rate_bytes);
        }
    }

    /// A request for `bytes` went out.
    pub fn on_request(&mut self, bytes: u32, now: Instant) {
        if self.requests.is_empty() {
            self.pulse.asked(now);
            // After a pause the clock of the rate starts with the first request. Shorter ones are the program's
            // own wake-ups: on a fast link every wake-up finds all requests answered.
            if self.progress_at.is_none_or(|at| now.saturating_duration_since(at) >= EPOCH_MIN) {
                self.epoch = Some(Epoch::new(now));
            }
            self.progress_at = Some(now);
        }
        if self.requests.len() < REQUESTS_MAX as usize {
            self.requests.push_back((now, bytes));
            self.outstanding_bytes += u64::from(bytes);
            // All of one request says nothing of how many would be answered.
            self.owed_bytes = if self.requests.len() > 1 { self.outstanding_bytes } else { u64::MAX };
        }
        if let Some(epoch) = &mut self.epoch {
            epoch.outstanding_max_bytes = epoch.outstanding_max_bytes.max(self.outstanding_bytes);
        }
    }

    /// A requested block of `bytes` came. Not for blocks whose request was returned before.
    pub fn on_block(&mut self, bytes: u32, now: Instant) {
        self.stalled = false;
        self.progress_at = Some(now);
        // Peers answer in order or nearly so. The n-th answer against the n-th request never makes a round trip look
        // shorter than it was, in whatever order they come.
        if let Some((sent_at, asked)) = self.requests.pop_front() {
            self.outstanding_bytes -= u64::from(asked);
            self.on_latency(sent_at, now);
        }
        self.on_delivery(u64::from(bytes), now);
    }

    /// A requested block of `bytes` came that may answer an earlier request, given up since: that it came soon says nothing
    /// of the round trip.
    pub fn on_block_of_old(&mut self, bytes: u32, now: Instant) {
        self.stalled = false;
        self.progress_at = Some(now);
        if let Some((_, asked)) = self.requests.pop_front() {
            self.outstanding_bytes -= u64::from(asked);
        }
        self.on_delivery(u64::from(bytes), now);
    }

    /// A request will not be answered (choke, reject, cancel, timeout).
    pub fn on_returned(&mut self) {
        // The newest goes: the older the request held against an answer, the safer the round trip. Requests differ in length,
        // so what counts as outstanding is off by a little until the queue has passed.
        if let Some((_, asked)) = self.requests.pop_back() {
            self.outstanding_bytes -= u64::from(asked);
        }
    }

    /// Nothing came for [`Pipeline::timeout`]: one request at a time until a block comes.
    pub fn on_timeout(&mut self) {
        self.stalled = true;
    }

    /// Whether it timed out and delivered nothing since (BEP 3, "anti-snubbing").
    pub fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// How many bytes should be outstanding.
    pub fn target_bytes(&self) -> u64 {
        let block = u64::from(BLOCK_LEN);
        if self.stalled {
            return block;
        }
        let max = self.memory_max_bytes.min(u64::from(self.reqq) * block).max(block);
        let rate = self.rate_bytes();
        if rate == 0 || self.rtt_min.is_none() {
            return START_BYTES.min(max);
        }
        let rtt = self.round_trip();
        let margin = bytes_in(rate, MARGIN).min(MARGIN_BYTES_MAX);
        match self.probe {
            Probe::On { .. } => (bytes_in(rate, rtt) / 2).clamp(block, max),
            Probe::Off { .. } => {
                let gain = if self.plateau < PLATEAU_EPOCHS { GAIN_START } else { GAIN };
                (bytes_in(rate, rtt * gain) + margin).clamp(TARGET_BYTES_MIN.min(max), max)
            }
        }
    }

    /// Blocks to request now to reach the target.
    pub fn room_blocks(&self) -> usize {
        let room = self.target_bytes().saturating_sub(self.outstanding_bytes).div_ceil(u64::from(BLOCK_LEN));
        let queue = self.reqq as usize;
        (room as usize).min(queue.saturating_sub(self.requests.len()))
    }

    /// Bytes requested and not answered.
    pub fn outstanding_bytes(&self) -> u64 {
        self.outstanding_bytes
    }

    /// The highest rate of delivery lately, in bytes per second; 0 while unknown.
    pub fn rate_bytes(&self) -> u64 {
        self.rate_max_bytes[0].max(self.rate_max_bytes[1])
    }

    /// The least time from request to block, in which the peer's queue was short.
    pub fn rtt_min(&self) -> Option<Duration> {
        self.rtt_min
    }

    /// How long a connection with requests outstanding may deliver nothing before they count as lost.
    pub fn timeout(&self) -> Duration {
        let (Some(rtt), rate @ 1..) = (self.rtt_min, self.rate_bytes()) else { return TIMEOUT_START };
        let block = Duration::from_secs_f64(f64::from(BLOCK_LEN) / rate as f64);
        (rtt * 4 + block.min(TIMEOUT_MAX) * 4).clamp(TIMEOUT_MIN, TIMEOUT_MAX)
    }

    /// When [`Pipeline::timeout`] is over; `None` while nothing is outstanding.
    pub fn deadline(&self) -> Option<Instant> {
        if self.requests.is_empty() {
            return None;
        }
        self.progress_at.map(|at| at + self.timeout())
    }

    fn on_latency(&mut self, sent_at: Instant, now: Instant) {
        let latency = now.saturating_duration_since(sent_at).min(RTT_MAX);
        let rtt = self.rtt_min.map_or(latency, |rtt| rtt.min(latency));
        self.rtt_min = Some(rtt);
        let target = self.target_bytes();
        match &mut self.probe {
            Probe::Off { next } => {
                // A peer in pulses shows how long it takes with each.
                if now >= *next.get_or_insert(now + PROBE_EVERY) && self.pulse.silence().is_none() {
                    self.probe = Probe::On { drained_at: None };
                }
            }
            Probe::On { drained_at: Some(drained_at) } => {
                if sent_at >= *drained_at {
                    if latency > rtt + MARGIN {
                        self.rtt_min = Some(latency);
                    }
                    self.probe = Probe::Off { next: Some(now + PROBE_EVERY) };
                }
            }
            Probe::On { drained_at } => {
                if self.outstanding_bytes <= target {
                    *drained_at = Some(now);
                }
            }
        }
    }

    fn on_delivery(&mut self, bytes: u64, now: Instant) {
        let target = self.target_bytes();
        let Some(epoch) = &mut self.epoch else { return };
        epoch.bytes += bytes;
        epoch.blocks += 1;
        let elapsed = now.saturating_duration_since(epoch.start);
        // A burst is no rate, either: its silence belongs to it.
        let length = self.rtt_min.max(self.pulse.silence()).unwrap_or(EPOCH_MIN).max(EPOCH_MIN);
        if elapsed < length || (epoch.blocks < EPOCH_BLOCKS && elapsed < EPOCH_MAX) {
            return;
        }
        let rate = (epoch.bytes as f64 / elapsed.as_secs_f64()) as u64;
        let filled = epoch.outstanding_max_bytes >= target / 2 && matches!(self.probe, Probe::Off { .. });
        let mut next = Epoch::new(now);
        next.outstanding_max_bytes = self.outstanding_bytes;
        self.epoch = Some(next);
        if rate > self.rate_bytes() / 4 * 5 {
            self.plateau = 0;
        } else if filled {
            self.plateau = self.plateau.saturating_add(1);
        }
        let end = *self.period_end.get_or_insert(now + RATE_KEPT + length * 4);
        // Not filled: nothing is learnt of the connection, so nothing is forgotten.
        if now >= end && filled {
            self.rate_max_bytes = [0, self.rate_max_bytes[0]];
            self.period_end = Some(now + RATE_KEPT + length * 4);
        }
        self.rate_max_bytes[0] = self.rate_max_bytes[0].max(rate);
    }
}

fn bytes_in(rate_bytes: u64, time: Duration) -> u64 {
    (rate_bytes as f64 * time.as_secs_f64()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_at_the_peer_is_no_length_of_the_path() {
        let (mut pipeline, mut now) = (Pipeline::new(u64::MAX), Instant::now());
        // 200 kB/s without a pause, and every block behind a second's worth of others.
        let (blocks, packets) = (12, 8);
        (0..blocks).for_each(|_| pipeline.on_request(BLOCK_LEN, now));
        now += MS * 1000;
        for _ in 0..200 {
            for _ in 0..packets {
                now += MS * 10;
                pipeline.on_payload(BLOCK / packets, now);
            }
            pipeline.on_block(BLOCK_LEN, now);
            pipeline.on_request(BLOCK_LEN, now);
        }
        let deep = pipeline.target_bytes();
        pipeline.set_path_rtt(Duration::from_millis(1));
        assert!(pipeline.target_bytes() < deep / 2, "{} of {deep}", pipeline.target_bytes());
        pipeline.set_path_rtt(Duration::from_secs(2));
        assert_eq!(pipeline.target_bytes(), deep);
    }

    const MS: Duration = Duration::from_millis(1);
    const BLOCK: u64 = BLOCK_LEN as u64;

    /// A sender behind a link: requests arrive half a round trip later, blocks leave one after the other at the
    /// link's rate, and arrive half a round trip after that.
    struct Link {
        now: Instant,
        rate_bytes: f64,
        rtt: Duration,
        free_at: Instant,
        arrivals: VecDeque<Instant>,
        pipeline: Pipeline,
        delivered: u64,
        outstanding_max: u64,
        requests_max: usize,
    }

    impl Link {
        fn new(rate_bytes: f64, rtt: Duration) -> Self {
            let now = Instant::now();
            let mut pipeline = Pipeline::new(64 << 20);
            pipeline.set_reqq(REQUESTS_MAX);
            let arrivals = VecDeque::new();
            Self {
                now,
                rate_bytes,
                rtt,
                free_at: now,
                arrivals,
                pipeline,
                delivered: 0,
                outstanding_max: 0,
                requests_max: 0,
            }
        }

        fn request(&mut self, limit: usize) {
            for _ in 0..self.pipeline.room_blocks().min(limit) {
                self.pipeline.on_request(BLOCK_LEN, self.now);
                let start = self.free_at.max(self.now + self.rtt / 2);
                self.free_at = start + Duration::from_secs_f64(BLOCK as f64 / self.rate_bytes);
                self.arrivals.push_back(self.free_at + self.rtt / 2);
            }
            self.outstanding_max = self.outstanding_max.max(self.pipeline.outstanding_bytes());
            self.requests_max = self.requests_max.max(self.arrivals.len());
        }

        /// Utilisation of the link over `time`. Each wake-up handles what arrived in `tick`; at most `limit`
        /// requests a wake-up.
        fn run(&mut self, time: Duration, tick: Duration, limit: usize) -> f64 {
            let (start, before) = (self.now, self.delivered);
            (self.outstanding_max, self.requests_max) = (0, 0);
            self.request(limit);
            while self.now < start + time {
                let next = self.arrivals.front().map_or(self.now + tick, |at| (*at).max(self.now));
                self.now = next + tick;
                while self.arrivals.front().is_some_and(|at| *at <= self.now) {
                    self.arrivals.pop_front();
                    self.pipeline.on_payload(BLOCK, self.now);
                    self.pipeline.on_block(BLOCK_LEN, self.now);
                    self.delivered += BLOCK;
                }
                self.request(limit);
            }
            let moved = (self.delivered - before) as f64;
            moved / (self.rate_bytes * self.now.duration_since(start).as_secs_f64())
        }
    }

    /// After two seconds of ramp-up, (rate, round trip): at least 95 % used, and no more queued than gain and margin.
    #[test]
    fn links_of_all_kinds_are_filled_without_a_long_queue() {
        for (rate, rtt_ms) in [(125e6, 100), (1.25e6, 20), (50e3, 300), (12.5e6, 1), (125e6, 2), (5e6, 250)] {
            let rtt = MS * rtt_ms;
            let mut link = Link::new(rate, rtt);
            link.run(MS * 2000 + Duration::from_secs_f64(16.0 * BLOCK as f64 / rate), MS / 10, usize::MAX);
            for step in 0..4 {
                let used = link.run(MS * 20_000, MS / 10, usize::MAX);
                assert!(used >= 0.95, "{rate} x {rtt_ms} ms: {used} in step {step}");
                let block = Duration::from_secs_f64(BLOCK as f64 / rate);
                // The start may still be under way in the first step.
                let gain = if step == 0 { GAIN_START } else { GAIN };
                let queue = bytes_in(rate as u64, (rtt + block) * gain + MARGIN) * 11 / 10 + 3 * BLOCK;
                assert!(link.outstanding_max <= queue, "{rate} x {rtt_ms} ms: {} > {queue}", link.outstanding_max);
            }
        }
    }

    #[test]
    fn a_busy_machine_that_wakes_every_ten_milliseconds_still_fills_the_link() {
        let mut link = Link::new(125e6, MS);
        link.run(MS * 2000, MS * 10, usize::MAX);
        assert!(link.run(MS * 5000, MS * 10, usize::MAX) >= 0.95);
    }

    #[test]
    fn loopback_settles_on_a_few_mebibytes() {
        let mut link = Link::new(2e9, MS / 20);
        link.run(MS * 500, MS / 20, usize::MAX);
        let used = link.run(MS * 500, MS / 20, usize::MAX);
        assert!(used >= 0.95, "{used}");
        assert!((1 << 20..=4 << 20).contains(&link.outstanding_max), "{}", link.outstanding_max);
    }

    #[test]
    fn a_slow_peer_gets_one_to_three_requests() {
        let mut link = Link::new(10e3, MS * 100);
        link.run(MS * 20_000, MS, usize::MAX);
        assert!(link.run(MS * 60_000, MS, usize::MAX) > 0.9);
        assert!(link.requests_max <= 3, "{}", link.requests_max);
    }

    #[test]
    fn rates_that_rise_and_fall_are_followed() {
        let mut link = Link::new(1.25e6, MS * 50);
        link.run(MS * 5000, MS, usize::MAX);
        link.rate_bytes = 125e6;
        link.run(MS * 2000, MS, usize::MAX);
        assert!(link.run(MS * 2000, MS, usize::MAX) >= 0.95);
        link.rate_bytes = 1.25e6;
        link.run(MS * 20_000, MS, usize::MAX);
        link.run(MS * 2000, MS, usize::MAX);
        assert!(link.outstanding_max < 500_000, "{}", link.outstanding_max);
    }

    #[test]
    fn a_round_trip_that_grows_fivefold_is_noticed() {
        let mut link = Link::new(12.5e6, MS * 20);
        link.run(MS * 5000, MS, usize::MAX);
        link.rtt = MS * 200;
        link.run(MS * 60_000, MS, usize::MAX);
        let used = link.run(MS * 5000, MS, usize::MAX);
        assert!(used >= 0.95, "{used}");
    }

    #[test]
    fn an_idle_or_limited_program_loses_nothing() {
        let mut link = Link::new(125e6, MS * 100);
        link.run(MS * 3000, MS, usize::MAX);
        let full = link.pipeline.target_bytes();
        // One request a millisecond: an eighth of the link.
        link.run(MS * 30_000, MS, 1);
        assert!(link.pipeline.target_bytes() >= full * 9 / 10);
        // A choke: everything comes back, a minute of nothing.
        for _ in 0..link.arrivals.len() {
            link.pipeline.on_returned();
        }
        link.arrivals.clear();
        assert_eq!((link.pipeline.outstanding_bytes(), link.pipeline.deadline()), (0, None));
        link.now += MS * 60_000;
        assert!(link.pipeline.target_bytes() >= full * 9 / 10);
        // It starts with an empty link: a round trip of nothing.
        let used = link.run(MS * 4000, MS, usize::MAX);
        assert!(used >= 0.94, "{used}");
    }

    #[test]
    fn reqq_and_memory_bound_the_target() {
        let mut link = Link::new(125e6, MS * 100);
        link.pipeline.set_reqq(10);
        link.run(MS * 2000, MS, usize::MAX);
        assert_eq!(link.requests_max, 10);
        let mut link = Link::new(125e6, MS * 100);
        link.pipeline.memory_max_bytes = 1 << 20;
        link.run(MS * 2000, MS, usize::MAX);
        assert_eq!(link.outstanding_max, 1 << 20);
        link.pipeline.set_reqq(0);
        assert_eq!(link.pipeline.target_bytes(), BLOCK);
    }

    #[test]
    fn a_path_that_works_again_starts_at_half_of_what_it_was() {
        let mut link = Link::new(12.5e6, MS * 100);
        link.run(MS * 5000, MS, usize::MAX);
        let (rate, rtt) = (link.pipeline.rate_bytes(), link.pipeline.rtt_min());
        link.pipeline.on_timeout();
        link.pipeline.restart();
        assert_eq!((link.pipeline.rate_bytes(), link.pipeline.rtt_min()), (rate / 2, rtt));
        assert_eq!((link.pipeline.outstanding_bytes(), link.pipeline.is_stalled()), (0, false));
        link.pipeline.slow_to(1000);
        assert_eq!(link.pipeline.rate_bytes(), 1000);
        link.pipeline.slow_to(2000);
        assert_eq!(link.pipeline.rate_bytes(), 1000, "no faster by that");
    }

    #[test]
    fn an_answer_to_an_older_request_makes_no_path_shorter() {
        let (mut pipeline, now) = (Pipeline::new(64 << 20), Instant::now());
        pipeline.on_request(BLOCK_LEN, now);
        pipeline.on_block(BLOCK_LEN, now + MS * 100);
        pipeline.on_request(BLOCK_LEN, now + MS * 200);
        pipeline.on_block_of_old(BLOCK_LEN, now + MS * 201);
        assert_eq!((pipeline.rtt_min(), pipeline.outstanding_bytes()), (Some(MS * 100), 0));
        pipeline.on_request(BLOCK_LEN, now + MS * 300);
        pipeline.on_block(BLOCK_LEN, now + MS * 301);
        assert_eq!(pipeline.rtt_min(), Some(MS));
    }

    /// A peer over a short path that looks at its requests every `period`, give or take a part of it, and answers all it was
    /// asked then, at most `quota` bytes, at 100 MB/s. Answers the bytes of each pulse, and the most that was under way in
    /// the last third.
    fn pulses(seed: u64, period: Duration, quota: u64, count: usize) -> (Vec<u64>, u64) {
        let (mut pipeline, mut now) = (Pipeline::new(64 << 20), Instant::now());
        let mut rng = fastrand::Rng::with_seed(seed);
        pipeline.set_reqq(2048);
        pipeline.set_path_rtt(MS / 10);
        let mut pulse_at = now + period.mul_f64(rng.f64());
        let (mut sent, mut outstanding_max) = (Vec::new(), 0);
        for number in 0..count {
            (0..pipeline.room_blocks()).for_each(|_| pipeline.on_request(BLOCK_LEN, now));
            outstanding_max = if number < count * 2 / 3 { 0 } else { outstanding_max };
            outstanding_max = outstanding_max.max(pipeline.outstanding_bytes());
            // What is asked from here on is too late for this pulse.
            let asked = pipeline.outstanding_bytes().min(quota) / BLOCK;
            now = pulse_at.max(now);
            for _ in 0..asked {
                now += Duration::from_secs_f64(BLOCK as f64 / 100e6);
                pipeline.on_payload(BLOCK, now);
                pipeline.on_block(BLOCK_LEN, now);
                (0..pipeline.room_blocks()).for_each(|_| pipeline.on_request(BLOCK_LEN, now));
            }
            sent.push(asked * BLOCK);
            pulse_at += period.mul_f64(0.9 + 0.2 * rng.f64());
        }
        (sent, outstanding_max)
    }

    #[test]
    fn a_peer_that_answers_in_pulses_reaches_its_full_rate() {
        let seed = fastrand::u64(..);
        for period_ms in [10, 25, 50, 100, 150, 300, 500, 1000, 3000] {
            for quota in [256 << 10, 4 << 20, 24 << 20] {
                let case = format!("seed {seed}, {period_ms} ms, {quota} bytes a pulse");
                // A pulse that is hardly over when the next one is due is a stream: 50 of these 100 MB/s.
                let quota = quota.min(period_ms * 50_000);
                let (sent, outstanding_max) = pulses(seed, MS * period_ms as u32, quota, 60);
                let late: u64 = sent[20..].iter().sum();
                let full = quota / BLOCK * BLOCK * 40;
                assert!(late >= full * 9 / 10, "{case}: {late} of {full}: {sent:?}");
                // Two pulses' worth, and four for a while after one that brought a quarter more than those before.
                assert!(outstanding_max <= quota * 6 + START_BYTES + MARGIN_BYTES_MAX, "{case}: {outstanding_max}");
            }
        }
    }

    #[test]
    fn a_slow_peer_in_pulses_is_asked_for_two_of_them() {
        let seed = fastrand::u64(..);
        // 50 kB every half second: as a limit of 100 kB/s looks there.
        let (sent, outstanding_max) = pulses(seed, MS * 500, 48 << 10, 100);
        assert!(sent[10..].iter().all(|sent| *sent == 48 << 10), "seed {seed}: {sent:?}");
        assert!(outstanding_max <= 6 * (48 << 10), "seed {seed}: {outstanding_max}");
    }

    #[test]
    fn requests_past_the_limit_are_not_recorded() {
        let mut pipeline = Pipeline::new(u64::MAX);
        let now = Instant::now();
        (0..REQUESTS_MAX + 5).for_each(|_| pipeline.on_request(BLOCK_LEN, now));
        assert_eq!(pipeline.outstanding_bytes(), u64::from(REQUESTS_MAX) * BLOCK);
    }

    #[test]
    fn silence_times_out_and_one_block_ends_the_stall() {
        let (mut pipeline, now) = (Pipeline::new(64 << 20), Instant::now());
        assert_eq!(pipeline.deadline(), None);
        pipeline.on_request(BLOCK_LEN, now);
        assert_eq!(pipeline.deadline(), Some(now + TIMEOUT_START));
        pipeline.on_timeout();
        pipeline.on_returned();
        assert_eq!((pipeline.room_blocks(), pipeline.is_stalled()), (1, true));
        (0..4).for_each(|_| pipeline.on_request(BLOCK_LEN, now));
        (0..4).for_each(|_| pipeline.on_block(BLOCK_LEN, now + MS * 50));
        assert!(!pipeline.is_stalled() && pipeline.room_blocks() > 1);
        pipeline.on_request(BLOCK_LEN, now + MS * 50);
        assert_eq!(pipeline.deadline(), Some(now + MS * 50 + TIMEOUT_MIN));
    }
}
