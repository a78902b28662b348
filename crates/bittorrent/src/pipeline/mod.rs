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
//!
//! What is under way is not kept here: its owner says with every change how much that is ([`UnderWay`]).

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

/// `reqq` values above are of no use (256 MiB under way).
pub const REQUESTS_MAX: u32 = 16 * 1024;

/// `reqq` of a peer that did not say (libtorrent's default).
pub const REQQ_DEFAULT: u32 = 250;

/// The request pipeline of one connection.
#[derive(Clone, Debug)]
pub struct Pipeline {
    memory_max_bytes: u64,
    reqq: u32,
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

/// What a peer was asked for and has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct UnderWay {
    /// Requests.
    pub requests: usize,
    /// Bytes of all of them.
    pub bytes: u64,
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

    /// The time after which a block that is asked for now will be here, behind the bytes that were asked for before.
    pub fn arrival_in(&self, under_way_bytes: u64) -> Duration {
        let rate = self.rate_bytes();
        if self.stalled || rate == 0 {
            return self.round_trip() + ARRIVAL_UNKNOWN;
        }
        let queued = under_way_bytes + u64::from(BLOCK_LEN);
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

    /// A request went out; `under_way` is with it.
    pub fn on_request(&mut self, under_way: UnderWay, now: Instant) {
        let is_only = under_way.requests <= 1;
        if is_only {
            self.pulse.asked(now);
            // After a pause the clock of the rate starts with the first request. Shorter ones are the program's
            // own wake-ups: on a fast link every wake-up finds all requests answered.
            if self.progress_at.is_none_or(|at| now.saturating_duration_since(at) >= EPOCH_MIN) {
                self.epoch = Some(Epoch::new(now));
            }
            self.progress_at = Some(now);
        }
        // All of one request says nothing of how many would be answered.
        self.owed_bytes = if is_only { u64::MAX } else { under_way.bytes };
        if let Some(epoch) = &mut self.epoch {
            epoch.outstanding_max_bytes = epoch.outstanding_max_bytes.max(under_way.bytes);
        }
    }

    /// A requested block of `bytes` came, and so much is under way without it. Not for blocks whose request was returned before.
    /// `sent_at` is when as many requests had gone out as were answered by now: `None` where the block may answer an earlier
    /// request, given up since, and that it came soon says nothing of the round trip.
    pub fn on_block(&mut self, bytes: u32, sent_at: Option<Instant>, under_way: UnderWay, now: Instant) {
        self.stalled = false;
        self.progress_at = Some(now);
        if let Some(sent_at) = sent_at {
            self.on_latency(sent_at, under_way.bytes, now);
        }
        self.on_delivery(u64::from(bytes), under_way.bytes, now);
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

    /// The highest rate of delivery lately, in bytes per second; 0 while unknown.
    pub fn rate_bytes(&self) -> u64 {
        self.rate_max_bytes[0].max(self.rate_max_bytes[1])
    }

    /// How long a connection with requests outstanding may deliver nothing before they count as lost.
    pub fn timeout(&self) -> Duration {
        let (Some(rtt), rate @ 1..) = (self.rtt_min, self.rate_bytes()) else { return TIMEOUT_START };
        let block = Duration::from_secs_f64(f64::from(BLOCK_LEN) / rate as f64);
        (rtt * 4 + block.min(TIMEOUT_MAX) * 4).clamp(TIMEOUT_MIN, TIMEOUT_MAX)
    }

    fn on_latency(&mut self, sent_at: Instant, under_way_bytes: u64, now: Instant) {
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
                if under_way_bytes <= target {
                    *drained_at = Some(now);
                }
            }
        }
    }

    fn on_delivery(&mut self, bytes: u64, under_way_bytes: u64, now: Instant) {
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
        next.outstanding_max_bytes = under_way_bytes;
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
mod tests;
