//! PPSPP over links with a rate, a delay and losses: what of them it takes, how much it lets wait, and how it goes beside TCP.

use std::thread;
use std::time::{Duration, Instant};

use anabranch_testbed::peers::anabranch;
use anabranch_testbed::process::{Line, Process};
use anabranch_testbed::wire::{Shape, Wire};
use anabranch_testbed::{Result, net};
use serde_json::Value;

use super::ppspp;
use crate::report::Sample;
use crate::workspace::Workspace;

const LIMIT: Duration = Duration::from_secs(120);
/// The queues are as long: a sender that does not listen to delay fills them.
const QUEUE: Duration = Duration::from_millis(400);
/// Between two looks at the wire.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Looks over which a rate is reached, or not.
const LOOKS: usize = 10;
/// What counts as all of the link, headers included.
const REACHED: f64 = 0.9;
/// Steady is what comes so long after the start, ...
const STEADY_AFTER: Duration = Duration::from_secs(8);
/// ... for as long, unless everything is there before.
const STEADY_FOR: Duration = Duration::from_secs(12);
/// The link that is shared with a flow of TCP, what that sends, and from where.
const SHARED: (u64, Duration) = (20_000_000, Duration::from_millis(60));
const FLOW_LEN: u64 = 40_000_000;
const FLOW_PORT: u16 = 9;
/// How long the link is looked at after the flow.
const AFTER_FLOW: Duration = Duration::from_secs(8);

/// A link of this rate, with queues of [`QUEUE`].
fn wire(rate_bits: u64, rtt: Duration, loss: f64) -> Result<Wire> {
    net::need_root()?;
    let queue_bytes = (rate_bits as f64 / 8.0 * QUEUE.as_secs_f64()) as u64;
    Wire::new(Shape { loss, queue_bytes, by_burst: false, ..Shape::new(rate_bits, rtt) })
}

/// The content on its way over a wire.
struct Under<'a> {
    wire: &'a Wire,
    rate_bits: u64,
    seeder: Process,
    leecher: Process,
    started: Instant,
    looks: Vec<Look>,
}

/// What was seen at once.
#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    /// Bytes that left the wire towards the leecher, headers included.
    bytes: u64,
    /// How long a packet waits for its turn.
    waiting: Duration,
}

impl<'a> Under<'a> {
    fn way(workspace: &mut Workspace, wire: &'a Wire, rate_bits: u64) -> Result<Self> {
        let (seeder, link) = ppspp::share(workspace, &format!("{}:7000", Wire::LEFT), Some(wire), "1KiB")?;
        let out = workspace.out()?;
        let mut command = anabranch::command(Some(&wire.right))?;
        command.args(["get", &link, "--json", "--listen", &format!("{}:0", Wire::RIGHT), "-o"]).arg(&out);
        let leecher = Process::spawn("anabranch get", &mut command)?;
        Ok(Self { wire, rate_bits, seeder, leecher, started: Instant::now(), looks: Vec::new() })
    }

    fn look(&mut self) {
        let look = Look { at: Instant::now(), bytes: self.wire.counts()[0].bytes, waiting: self.wire.waiting()[0] };
        self.looks.push(look);
        thread::sleep(LOOK_EVERY);
    }

    /// Looks until then, or until everything is there.
    fn look_until(&mut self, until: Instant) {
        while Instant::now() < until && !self.leecher.has_ended() {
            self.look();
        }
    }

    /// What passed within, of what could.
    fn used(&self, from: Instant, to: Instant) -> f64 {
        let within: Vec<&Look> = self.looks.iter().filter(|look| look.at >= from && look.at <= to).collect();
        let (Some(first), Some(last)) = (within.first(), within.last()) else { return f64::NAN };
        share_of(self.rate_bits, first, last)
    }

    /// When the link was first full for half a second, from `from` on, in seconds.
    fn full_after(&self, from: Instant) -> Option<f64> {
        let looks: Vec<&Look> = self.looks.iter().filter(|look| look.at >= from).collect();
        let full =
            looks.windows(LOOKS + 1).find(|looks| share_of(self.rate_bits, looks[0], looks[LOOKS]) >= REACHED)?;
        Some((full[LOOKS].at - from).as_secs_f64())
    }

    /// The wait that only a hundredth of the looks within saw more of, in milliseconds.
    fn waiting_ms(&self, from: Instant, to: Instant) -> f64 {
        let mut waits: Vec<Duration> =
            self.looks.iter().filter(|look| look.at >= from && look.at <= to).map(|look| look.waiting).collect();
        waits.sort();
        waits
            .get((waits.len() * 99 / 100).min(waits.len().saturating_sub(1)))
            .map_or(f64::NAN, |wait| wait.as_secs_f64() * 1e3)
    }

    /// Ends both. What the leecher told.
    fn end(mut self) -> Result<Vec<Value>> {
        let events = self.leecher.rest().iter().map(Line::json).collect();
        self.leecher.stop()?;
        self.seeder.stop()?;
        Ok(events)
    }
}

/// Bytes between two looks, of what the link takes.
fn share_of(rate_bits: u64, first: &Look, last: &Look) -> f64 {
    (last.bytes - first.bytes) as f64 * 8.0 / rate_bits as f64 / (last.at - first.at).as_secs_f64()
}

/// A file over a link: what of it is used once it is steady, headers included, in percent; beside it seconds until nine tenths are, the queue,
/// and the payload.
pub(super) fn alone(workspace: &mut Workspace, rate_mbit: u64, rtt_ms: u64, loss: f64) -> Result<Sample> {
    let rate_bits = rate_mbit * 1_000_000;
    let wire = wire(rate_bits, Duration::from_millis(rtt_ms), loss)?;
    let mut under = Under::way(workspace, &wire, rate_bits)?;
    // A slow link takes longer to be steady.
    let from = under.started + STEADY_AFTER.max(Duration::from_millis(20 * rtt_ms));
    under.look_until(from + STEADY_FOR);
    let to = Instant::now();
    let (used, reached, waiting_ms) =
        (under.used(from, to), under.full_after(under.started), under.waiting_ms(from, to));
    let payload = payload(&under.end()?, to - from);
    Ok(Sample {
        figure: used * 100.0,
        extra: reached,
        more: vec![Some(waiting_ms), payload.map(|bits| bits / rate_bits as f64 * 100.0)],
        ..Sample::default()
    })
}

/// Verified bits a second while it was steady, in the last so many seconds. What is done is told by pieces, what came by bytes.
fn payload(events: &[Value], steady: Duration) -> Option<f64> {
    let told = events
        .iter()
        .filter(|event| event["event"] == "progress")
        .filter_map(|event| Some((event["time"].as_f64()?, event["downloaded"].as_f64()? - event["wasted"].as_f64()?)));
    let told: Vec<(f64, f64)> = told.collect();
    let last = told.last()?;
    let first = told.iter().find(|(time, _)| *time >= last.0 - steady.as_secs_f64())?;
    Some((last.1 - first.1) * 8.0 / (last.0 - first.0)).filter(|bits| bits.is_finite())
}

/// A file over a link that has been steady for some seconds, then a flow of TCP with CUBIC beside it: what of the link is left to the file, in
/// percent; beside it seconds from the flow's end until the file has nine tenths.
pub(super) fn beside_tcp(workspace: &mut Workspace) -> Result<Sample> {
    let (rate_bits, rtt) = SHARED;
    let wire = wire(rate_bits, rtt, 0.0)?;
    let mut under = Under::way(workspace, &wire, rate_bits)?;
    under.look_until(under.started + STEADY_AFTER);
    let floor = workspace.floor();
    let (bytes, listen) = (FLOW_LEN.to_string(), format!("{}:{FLOW_PORT}", Wire::LEFT));
    let mut sender = wire.left.command(&floor);
    let mut sender = Process::spawn("sender", sender.args(["tcp-send", &bytes, &listen]))?;
    sender.wait_event("listening", LIMIT)?;
    let begun = Instant::now();
    let mut receiver = wire.right.command(&floor);
    let mut receiver = Process::spawn("receiver", receiver.args(["tcp-recv", &bytes, &listen]))?;
    while !receiver.has_ended() && begun.elapsed() < LIMIT {
        under.look();
    }
    let ended = Instant::now();
    receiver.wait_success(LIMIT)?;
    under.look_until(ended + AFTER_FLOW);
    let seconds = (ended - begun).as_secs_f64();
    // Headers of IP and TCP are 52 bytes of 1500.
    let theirs = FLOW_LEN as f64 * 8.0 * 1500.0 / 1448.0 / seconds / rate_bits as f64;
    let (ours, again) = (under.used(begun, ended) - theirs, under.full_after(ended));
    under.end()?;
    Ok(Sample { figure: ours * 100.0, extra: again, more: vec![Some(theirs * 100.0)], ..Sample::default() })
}
