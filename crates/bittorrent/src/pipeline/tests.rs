use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use super::*;
use crate::ConnId;
use crate::requests::{Answers, Requests};
use crate::wire::BlockRange;

/// A pipeline, and what was asked for because of it.
struct Asked {
    pipeline: Pipeline,
    requests: Requests,
    count: u32,
}

impl Asked {
    fn new(memory_max_bytes: u64) -> Self {
        Self { pipeline: Pipeline::new(memory_max_bytes), requests: Requests::default(), count: 0 }
    }

    fn on_request(&mut self, len: u32, now: Instant) {
        self.requests.push(BlockRange { piece: self.count, begin: 0, len }, now);
        self.count += 1;
        self.pipeline.on_request(self.requests.under_way(), now);
    }

    fn finish_first(&mut self) -> Option<Instant> {
        let range = self.requests.iter().next().unwrap();
        let arriving = self.requests.start(ConnId(0), range, true);
        let Answers::Request { sent_at } = self.requests.finish(arriving) else { panic!("it was asked for") };
        sent_at
    }

    fn on_block(&mut self, len: u32, now: Instant) {
        let sent_at = self.finish_first();
        assert!(sent_at.is_some());
        self.pipeline.on_block(len, sent_at, self.requests.under_way(), now);
    }

    fn on_block_of_old(&mut self, len: u32, now: Instant) {
        self.finish_first();
        self.pipeline.on_block(len, None, self.requests.under_way(), now);
    }

    fn on_returned(&mut self) {
        self.requests.take_back(self.requests.len() - 1);
    }

    fn outstanding_bytes(&self) -> u64 {
        self.requests.bytes()
    }

    /// Blocks to request now to reach the target.
    fn room_blocks(&self) -> usize {
        let room = self.target_bytes().saturating_sub(self.requests.bytes()).div_ceil(BLOCK);
        (room as usize).min((self.reqq as usize).saturating_sub(self.requests.len()))
    }
}

impl Deref for Asked {
    type Target = Pipeline;

    fn deref(&self) -> &Pipeline {
        &self.pipeline
    }
}

impl DerefMut for Asked {
    fn deref_mut(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }
}

#[test]
fn a_queue_at_the_peer_is_no_length_of_the_path() {
    let (mut pipeline, mut now) = (Asked::new(u64::MAX), Instant::now());
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
    pipeline: Asked,
    delivered: u64,
    outstanding_max: u64,
    requests_max: usize,
}

impl Link {
    fn new(rate_bytes: f64, rtt: Duration) -> Self {
        let now = Instant::now();
        let mut pipeline = Asked::new(64 << 20);
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
    assert_eq!(link.pipeline.outstanding_bytes(), 0);
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
    let (rate, rtt) = (link.pipeline.rate_bytes(), link.pipeline.rtt_min);
    link.pipeline.on_timeout();
    link.pipeline.restart();
    assert_eq!((link.pipeline.rate_bytes(), link.pipeline.rtt_min), (rate / 2, rtt));
    assert!(!link.pipeline.is_stalled());
    link.pipeline.slow_to(1000);
    assert_eq!(link.pipeline.rate_bytes(), 1000);
    link.pipeline.slow_to(2000);
    assert_eq!(link.pipeline.rate_bytes(), 1000, "no faster by that");
}

#[test]
fn an_answer_to_an_older_request_makes_no_path_shorter() {
    let (mut pipeline, now) = (Asked::new(64 << 20), Instant::now());
    pipeline.on_request(BLOCK_LEN, now);
    pipeline.on_block(BLOCK_LEN, now + MS * 100);
    pipeline.on_request(BLOCK_LEN, now + MS * 200);
    pipeline.on_block_of_old(BLOCK_LEN, now + MS * 201);
    assert_eq!((pipeline.rtt_min, pipeline.outstanding_bytes()), (Some(MS * 100), 0));
    pipeline.on_request(BLOCK_LEN, now + MS * 300);
    pipeline.on_block(BLOCK_LEN, now + MS * 301);
    assert_eq!(pipeline.rtt_min, Some(MS));
}

/// A peer over a short path that looks at its requests every `period`, give or take a part of it, and answers all it was
/// asked then, at most `quota` bytes, at 100 MB/s. Answers the bytes of each pulse, and the most that was under way in
/// the last third.
fn pulses(seed: u64, period: Duration, quota: u64, count: usize) -> (Vec<u64>, u64) {
    let (mut pipeline, mut now) = (Asked::new(64 << 20), Instant::now());
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
            // Two pulses' worth, and four for a while after one that brought a quarter more than those before; twice that, for
            // as long as a rate is kept, where an epoch happens to begin with one pulse and to end with the next.
            assert!(outstanding_max <= quota * 8 + START_BYTES + MARGIN_BYTES_MAX, "{case}: {outstanding_max}");
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
fn silence_times_out_and_one_block_ends_the_stall() {
    let (mut pipeline, now) = (Asked::new(64 << 20), Instant::now());
    pipeline.on_request(BLOCK_LEN, now);
    assert_eq!(pipeline.timeout(), TIMEOUT_START);
    pipeline.on_timeout();
    pipeline.on_returned();
    assert_eq!((pipeline.room_blocks(), pipeline.is_stalled()), (1, true));
    (0..4).for_each(|_| pipeline.on_request(BLOCK_LEN, now));
    (0..4).for_each(|_| pipeline.on_block(BLOCK_LEN, now + MS * 50));
    assert!(!pipeline.is_stalled() && pipeline.room_blocks() > 1);
    pipeline.on_request(BLOCK_LEN, now + MS * 50);
    assert_eq!(pipeline.timeout(), TIMEOUT_MIN);
}
