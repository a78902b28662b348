//! A peer of a run: the program that it is at the moment, what it told, and what it cost.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde_json::Value;

use crate::bed::BedError;
use crate::bed::program::Program;
use crate::netns::Namespace;
use crate::plan::{Client, Role};
use crate::round_trips::RoundTrips;

/// How long a peer that leaves may take.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same where all leave at once: each then waits for the last answers of others that are gone, over QUIC for seconds.
const LEAVE_TOGETHER_TIMEOUT: Duration = Duration::from_millis(500);
/// Samples of a peer that are kept; with more, every second one goes.
const SAMPLES_MAX: usize = 1000;
/// What `st_blocks` counts.
const BLOCK_BYTES: u64 = 512;
/// Bytes of what iperf3 says at its end: a few hundred for each second.
const REPORT_BYTES_MAX: u64 = 64 << 20;

/// One peer.
pub(super) struct Member {
    pub role: Role,
    pub home: usize,
    pub local: bool,
    pub client: Client,
    /// Bytes a second that it sends and receives at most.
    pub limits: [Option<String>; 2],
    /// When it comes.
    pub join: Duration,
    pub program: Option<Program>,
    /// Programs of it that were told to end, and until when they have time.
    leaving: Vec<(Program, Instant)>,
    /// How often it was started, and whether it is to be there.
    pub starts: u32,
    pub stay: Stay,
    /// When it was started first, in seconds since 1970, and after the run began.
    pub started: f64,
    pub joined: f64,
    pub seconds: Option<f64>,
    /// Seconds since the run began, and the bytes that it had verified then.
    pub samples: Vec<(f64, u64)>,
    /// Where clients that tell no events leave the time at which they were done.
    pub done_file: Option<PathBuf>,
    /// What it fetches, where that alone shows how far it is.
    pub fetched: Option<PathBuf>,
    /// Seconds of processors of programs that have ended.
    cpu: f64,
    /// Who tells of the round-trip times of its connections over TCP; what was told so far, s.
    asked: Option<RoundTrips>,
    round_trips: Vec<f64>,
}

/// Whether a peer is to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stay {
    /// As soon as its time has come.
    Here,
    /// Not now, but later.
    Away,
    /// Not any more.
    Gone,
}

impl Member {
    pub(super) fn new(
        role: Role,
        (home, local): (usize, bool),
        client: Client,
        limits: [Option<String>; 2],
        join: Duration,
    ) -> Self {
        Self {
            role,
            home,
            local,
            client,
            limits,
            join,
            program: None,
            leaving: Vec::new(),
            starts: 0,
            stay: Stay::Here,
            started: 0.0,
            joined: 0.0,
            seconds: None,
            samples: Vec::new(),
            done_file: None,
            fetched: None,
            cpu: 0.0,
            asked: None,
            round_trips: Vec::new(),
        }
    }

    /// Whether nothing more is waited for.
    pub(super) fn is_done(&self) -> bool {
        self.seconds.is_some() || self.stay == Stay::Gone
    }

    /// Whether it is to be started now: whoever comes back wants the port that it had.
    pub(super) fn is_due(&self, elapsed: Duration) -> bool {
        let is_free = self.program.is_none() && self.leaving.is_empty();
        let ran_once = self.client.ends_when_done() && self.seconds.is_some();
        self.stay == Stay::Here && is_free && !ran_once && self.join <= elapsed
    }

    /// Bytes that it has verified.
    pub(super) fn bytes(&self) -> u64 {
        self.samples.last().map_or(0, |sample| sample.1)
    }

    /// Notes the round-trip times that the kernel estimates for its connections, in the mean of these.
    pub(super) fn note_round_trips(&mut self, namespace: &Namespace) {
        if self.program.is_none() {
            return;
        }
        if self.asked.is_none() {
            // Where the kernel does not tell, nothing is known of them.
            self.asked = RoundTrips::of(namespace).ok();
        }
        let times = self.asked.as_ref().map(RoundTrips::now).unwrap_or_default();
        if !times.is_empty() {
            self.round_trips.push(times.iter().map(Duration::as_secs_f64).sum::<f64>() / times.len() as f64);
        }
    }

    /// The least, the mean and the most of them, ms.
    pub(super) fn round_trips_ms(&self) -> Option<[f64; 3]> {
        let seconds = &self.round_trips;
        let least = seconds.iter().copied().reduce(f64::min)?;
        let most = seconds.iter().copied().reduce(f64::max)?;
        let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
        Some([least, mean, most].map(|seconds| 1000.0 * seconds))
    }

    /// Hears what it tells. `began` is when the run did, in seconds since 1970.
    pub(super) fn listen(&mut self, began: f64, content_bytes: u64) -> Result<(), BedError> {
        let Some(program) = &mut self.program else { return Ok(()) };
        match self.client {
            Client::Iperf3 => return self.listen_iperf(content_bytes),
            Client::GridFtp => return self.watch_file(began, content_bytes),
            _ => {}
        }
        // Looked at before its output is: a peer that is done and ends in between has said so.
        let has_ended = program.has_ended();
        let told = program.events()?;
        for event in &told {
            let (Some(at), Some(bytes)) = (event["time"].as_f64(), event["bytes_done"].as_u64()) else { continue };
            push(&mut self.samples, (at - began, bytes));
        }
        let mut done = told.iter().filter(|told| told["event"] == "finished").find_map(|told| told["time"].as_f64());
        if let Some(file) = &self.done_file {
            done = done.or(fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()));
        }
        if let Some(at) = done.filter(|_| self.seconds.is_none()) {
            self.seconds = Some((at - self.started).max(0.0));
            push(&mut self.samples, (at - began, content_bytes));
        }
        // `receive` ends when it is done, and `send` when all are.
        let may_end = self.client == Client::Bulk && (self.role == Role::Seed || self.seconds.is_some());
        if has_ended && !may_end {
            let said = told.iter().rev().find_map(|told| told["message"].as_str().map(str::to_owned));
            return Err(program.failure(&said.map_or("ended early".into(), |said| format!("ended early ({said})"))));
        }
        Ok(())
    }

    /// The same of iperf3, which says all of it at its end.
    fn listen_iperf(&mut self, content_bytes: u64) -> Result<(), BedError> {
        let Some(program) = &mut self.program else { return Ok(()) };
        if !program.has_ended() {
            return Ok(());
        }
        if self.role == Role::Seed {
            return Err(program.failure("ended early"));
        }
        let report = read_report(program.output());
        let seconds = report.as_ref().and_then(|report| iperf_seconds(report, content_bytes));
        let (Some(report), Some(seconds)) = (report, seconds) else {
            return Err(program.failure("brought nothing"));
        };
        self.seconds = Some(seconds);
        self.samples = iperf_samples(&report, self.joined);
        self.leave(Stay::Here);
        Ok(())
    }

    /// The same of who tells nothing: its file shows how much is there, and when the last of it came.
    fn watch_file(&mut self, began: f64, content_bytes: u64) -> Result<(), BedError> {
        let Some(program) = &mut self.program else { return Ok(()) };
        // Looked at before its file is.
        let has_ended = program.has_ended();
        let Some(path) = &self.fetched else {
            return if has_ended { Err(program.failure("ended early")) } else { Ok(()) };
        };
        let file = match fs::metadata(path) {
            Ok(file) => file,
            Err(_) if has_ended => return Err(program.failure("brought nothing")),
            Err(_) => return Ok(()),
        };
        let written = file.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let at = written.map_or(began, |at| at.as_secs_f64());
        if !has_ended {
            // Connections fill it at several places at once.
            let bytes = (file.blocks() * BLOCK_BYTES).min(content_bytes);
            if bytes > self.bytes() {
                push(&mut self.samples, (at - began, bytes));
            }
            return Ok(());
        }
        if file.len() != content_bytes {
            return Err(program.failure("brought only a part"));
        }
        self.seconds = Some((at - self.started).max(0.0));
        push(&mut self.samples, (at - began, content_bytes));
        self.leave(Stay::Here);
        Ok(())
    }

    /// Tells it to go.
    pub(super) fn leave(&mut self, stay: Stay) {
        self.stay = stay;
        if let Some(mut program) = self.program.take() {
            program.interrupt();
            self.leaving.push((program, Instant::now() + LEAVE_TIMEOUT));
        }
    }

    /// Sees off programs that have ended, and kills who does not.
    pub(super) fn reap(&mut self) {
        let now = Instant::now();
        for (mut program, until) in std::mem::take(&mut self.leaving) {
            if program.has_ended() || now > until {
                self.cpu += program.kill().cpu;
            } else {
                self.leaving.push((program, until));
            }
        }
    }

    /// Waits until it is gone as all others are, and says what it cost: seconds of processors.
    pub(super) fn end(&mut self) -> f64 {
        let ended = self.leaving.iter_mut().map(|(program, _)| program.end_within(LEAVE_TOGETHER_TIMEOUT).cpu);
        self.cpu + ended.sum::<f64>()
    }
}

/// Keeps a sample, and forgets every second one where there are too many.
pub(super) fn push(samples: &mut Vec<(f64, u64)>, sample: (f64, u64)) {
    samples.push(sample);
    if samples.len() > SAMPLES_MAX {
        let mut number = 0;
        samples.retain(|_| {
            number += 1;
            number % 2 == 1
        });
    }
}

fn read_report(path: &Path) -> Option<Value> {
    use std::io::Read;
    let mut text = String::new();
    fs::File::open(path).ok()?.take(REPORT_BYTES_MAX).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// How long the content would have taken at the rate at which iperf3's receiver had it: it may send some more than asked for.
fn iperf_seconds(report: &Value, content_bytes: u64) -> Option<f64> {
    let received = &report["end"]["sum_received"];
    let (bytes, seconds) = (received["bytes"].as_f64()?, received["seconds"].as_f64()?);
    (bytes > 0.0 && seconds > 0.0).then(|| seconds * content_bytes as f64 / bytes)
}

fn iperf_samples(report: &Value, joined: f64) -> Vec<(f64, u64)> {
    let mut samples = vec![(joined, 0)];
    let mut there = 0;
    for interval in report["intervals"].as_array().into_iter().flatten() {
        let sum = &interval["sum"];
        let (Some(end), Some(bytes)) = (sum["end"].as_f64(), sum["bytes"].as_u64()) else { continue };
        there += bytes;
        push(&mut samples, (joined + end, there));
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_iperf3_says_becomes_time_and_samples() {
        let report = serde_json::json!({
            "intervals": [{ "sum": { "end": 1.0, "bytes": 600 } }, { "sum": { "end": 2.0, "bytes": 500 } }, { "sum": {} }],
            "end": { "sum_received": { "bytes": 1100, "seconds": 2.2 } },
        });
        assert_eq!(iperf_seconds(&report, 1000), Some(2.0));
        assert_eq!(iperf_samples(&report, 3.0), [(3.0, 0), (4.0, 600), (5.0, 1100)]);
        assert_eq!(iperf_seconds(&serde_json::json!({ "error": "refused" }), 1000), None);
    }

    #[test]
    fn samples_are_thinned_out_and_keep_their_ends() {
        let mut samples = Vec::new();
        (0..=SAMPLES_MAX as u64).for_each(|each| push(&mut samples, (each as f64, each)));
        assert_eq!((samples.len(), samples[0], samples[500]), (501, (0.0, 0), (1000.0, 1000)));
    }
}
