//! What a run leaves: one line of JSON, and what follows from it.

use anabranch_asnet::topology::Topology;
use serde_json::{Value, json};

use crate::plan::{Cell, Measure, Plan, Role};
use crate::wire::{CLASSES, GAPS_BELOW_MS, LENGTHS_BELOW, Noted, WireUse};

/// Bytes of a GiB.
const GIB: f64 = 1_073_741_824.0;

/// One run of one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct RunResult {
    /// The cell's name.
    pub cell: String,
    /// Which repetition, from 0.
    pub repetition: u32,
    /// When it began, in seconds since 1970.
    pub began: f64,
    /// Seconds until the network was there.
    pub build_seconds: f64,
    /// Seconds from the first leecher's start until all were done.
    pub seconds: f64,
    /// Bytes of the content.
    pub content_bytes: u64,
    /// The peers, in the order of the placement.
    pub peers: Vec<PeerResult>,
    /// Seconds of processors: peers, what routes, the wires (which stand for hardware).
    pub cpu: [f64; 3],
    /// Share of the machine's processors that were at work, where the system says so.
    pub busy: Option<f64>,
    /// What passed each link.
    pub links: Vec<[WireUse; 2]>,
    /// Seconds after the run began, and bytes of cross traffic that links had carried then in the directions in which events send it:
    /// what comes back there, as acknowledgements do, is none. Nothing where no event sends any.
    pub crossed: Vec<(f64, u64)>,
    /// What of the plan's events happened.
    pub happened: Vec<Happened>,
    /// Why it is none, if that is so.
    pub failed: Option<String>,
}

/// An event of the plan that began or ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Happened {
    /// Seconds after the first leecher was let go.
    pub at: f64,
    /// Which, by its place in the plan.
    pub event: usize,
    /// Whether it began.
    pub begins: bool,
    /// Who left or came back, by their places in the placement.
    pub peers: Vec<usize>,
}

/// One peer of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerResult {
    /// Its AS.
    pub isd_as: String,
    /// What it was there for.
    pub role: Role,
    /// Whether a seed is in its AS, so that it needs no link.
    pub local: bool,
    /// When it came, in seconds after the run began.
    pub joined: f64,
    /// Seconds from then until it had everything.
    pub seconds: Option<f64>,
    /// Seconds of processors.
    pub cpu: f64,
    /// Seconds after the run began, and bytes that were verified then.
    pub samples: Vec<(f64, u64)>,
    /// The least, the mean and the most of what the kernel estimated for its connections over TCP each second, ms.
    pub round_trips_ms: Option<[f64; 3]>,
}

/// Seconds that a transfer has after an event's end until it counts as settled again.
const RECOVERY_SECONDS: f64 = 2.0;

impl PeerResult {
    /// Bytes that it had at a time.
    fn bytes_at(&self, at: f64) -> f64 {
        bytes_at(&self.samples, self.joined, at)
    }
}

/// Bytes at a time, of samples that begin with none at `start`; between samples, as many as lie in the right proportion.
fn bytes_at(samples: &[(f64, u64)], start: f64, at: f64) -> f64 {
    let after = samples.iter().position(|sample| sample.0 >= at);
    let (before, after) = match after {
        None => return samples.last().map_or(0.0, |last| last.1 as f64),
        Some(0) => ((start, 0), samples[0]),
        Some(place) => (samples[place - 1], samples[place]),
    };
    if at <= before.0 || after.0 <= before.0 {
        return before.1 as f64;
    }
    before.1 as f64 + (after.1 as f64 - before.1 as f64) * (at - before.0) / (after.0 - before.0)
}

impl RunResult {
    /// The peers that count: they need links.
    fn counted(&self) -> impl Iterator<Item = &PeerResult> {
        self.peers.iter().filter(|peer| peer.role == Role::Leecher && !peer.local && peer.seconds.is_some())
    }

    /// Rate at which content came to all peers that count between two times, Mbit/s.
    pub fn rate_between(&self, from: f64, to: f64) -> Option<f64> {
        let bytes: f64 = self.counted().map(|peer| peer.bytes_at(to) - peer.bytes_at(from)).sum();
        (to > from).then(|| bytes * 8.0 / (to - from) / 1e6)
    }

    /// When the first peer that counts was done.
    pub fn first_done(&self) -> Option<f64> {
        self.counted().filter_map(|peer| Some(peer.joined + peer.seconds?)).reduce(f64::min)
    }

    /// The second half of the time until the first peer that counts was done.
    fn settled(&self) -> Option<(f64, f64)> {
        let done = self.first_done()?;
        Some((done / 2.0, done))
    }

    /// Rate of cross traffic between two times, Mbit/s.
    fn crossed_between(&self, from: f64, to: f64) -> Option<f64> {
        let bytes = bytes_at(&self.crossed, 0.0, to) - bytes_at(&self.crossed, 0.0, from);
        (to > from && !self.crossed.is_empty()).then(|| bytes * 8.0 / (to - from) / 1e6)
    }

    /// The sum of something that was noted of all directions of links; `None` where that is nothing.
    fn noted(&self, of: impl Fn(&Noted) -> u64) -> Option<f64> {
        let sum: u64 = self.links.iter().flatten().map(|used| of(&used.noted)).sum();
        (sum > 0).then_some(sum as f64)
    }

    /// Begin and end of the first event that has both.
    fn window(&self) -> Option<(f64, f64)> {
        self.happened.iter().filter(|each| each.begins).find_map(|begin| {
            let end = self.happened.iter().find(|each| !each.begins && each.event == begin.event)?;
            Some((begin.at, end.at))
        })
    }

    /// What is measured of it; nothing of one that failed.
    pub fn value(&self, measure: Measure) -> Option<f64> {
        if self.failed.is_some() {
            return None;
        }
        let times: Vec<f64> = self.peers.iter().filter(|peer| !peer.local).filter_map(|peer| peer.seconds).collect();
        // Those that left for good do not count.
        let leechers = self.peers.iter().filter(|peer| peer.role == Role::Leecher && peer.seconds.is_some()).count();
        let received = leechers as f64 * self.content_bytes as f64;
        if times.is_empty() || received == 0.0 {
            return None;
        }
        let bits = self.content_bytes as f64 * 8.0;
        let [peers, network, wires] = self.cpu;
        Some(match measure {
            Measure::Goodput => times.iter().map(|time| bits / time.max(f64::MIN_POSITIVE)).sum::<f64>() / 1e6,
            Measure::Time => times.iter().sum::<f64>() / times.len() as f64,
            Measure::TimeMax => times.iter().copied().fold(0.0, f64::max),
            Measure::Cpu => (peers + network + wires) / (received / GIB),
            Measure::CpuPeers => peers / (received / GIB),
            Measure::CpuNetwork => network / (received / GIB),
            Measure::CpuWires => wires / (received / GIB),
            Measure::RoundTrip => {
                let times: Vec<f64> =
                    self.counted().filter_map(|peer| peer.round_trips_ms).map(|[_, mean, _]| mean).collect();
                if times.is_empty() {
                    return None;
                }
                times.iter().sum::<f64>() / times.len() as f64
            }
            Measure::Payload => {
                let all = self.noted(|noted| noted.payloads)?;
                self.noted(|noted| noted.payload_bytes)? / all
            }
            Measure::Gap => {
                let all = self.noted(|noted| noted.gaps.iter().sum())?;
                self.noted(|noted| noted.gaps_micros)? / all / 1000.0
            }
            Measure::Wire => {
                let bytes = self.links.iter().flatten().map(|used| used.bytes.saturating_sub(used.cross_bytes));
                bytes.sum::<u64>() as f64 / received
            }
            // Of the same time, so that both can stand beside each other.
            Measure::Cross => {
                let (from, to) = self.settled()?;
                self.crossed_between(from, to)?
            }
            Measure::RateSettled => {
                let (from, to) = self.settled()?;
                self.rate_between(from, to)?
            }
            Measure::RateBefore => {
                let (begin, _) = self.window()?;
                self.rate_between(begin / 2.0, begin)?
            }
            Measure::RateDuring => {
                let (begin, end) = self.window()?;
                self.rate_between(begin, end)?
            }
            Measure::RateAfter => {
                let from = self.window()?.1 + RECOVERY_SECONDS;
                self.rate_between(from, self.first_done()?)?
            }
        })
    }

    /// As a line of JSON.
    pub fn to_json(&self, topology: &Topology) -> Value {
        let link = |(number, used): (usize, &[WireUse; 2])| {
            let way = |used: WireUse| {
                let Noted { payloads, payload_bytes, lengths, gaps, gaps_micros } = used.noted;
                json!({
                    "bytes": used.bytes, "dropped": used.dropped, "lost": used.lost, "cross_bytes": used.cross_bytes,
                    "payloads": payloads, "payload_bytes": payload_bytes, "lengths": lengths, "gaps": gaps, "gaps_us": gaps_micros,
                })
            };
            let ends = topology.links()[number].ends.map(|end| end.to_string());
            json!({ "ends": ends, "there": way(used[0]), "back": way(used[1]) })
        };
        let peer = |peer: &PeerResult| {
            let role = if peer.role == Role::Seed { "seed" } else { "leecher" };
            json!({
                "as": peer.isd_as, "role": role, "local": peer.local, "joined": peer.joined, "seconds": peer.seconds,
                "cpu": peer.cpu, "samples": peer.samples, "round_trips_ms": peer.round_trips_ms,
            })
        };
        let event = |event: &Happened| json!({ "at": event.at, "event": event.event, "begins": event.begins, "peers": event.peers });
        json!({
            "cell": self.cell,
            "repetition": self.repetition,
            "began": self.began,
            "build_seconds": self.build_seconds,
            "seconds": self.seconds,
            "content_bytes": self.content_bytes,
            "peers": self.peers.iter().map(peer).collect::<Vec<_>>(),
            "cpu": { "peers": self.cpu[0], "network": self.cpu[1], "wires": self.cpu[2] },
            "busy": self.busy,
            "links": self.links.iter().enumerate().map(link).collect::<Vec<_>>(),
            "crossed": self.crossed,
            "events": self.happened.iter().map(event).collect::<Vec<_>>(),
            "failed": self.failed,
        })
    }

    /// From a line of JSON; `None` for what no run has written.
    pub fn from_json(value: &Value) -> Option<Self> {
        let sample = |value: &Value| Some((value[0].as_f64()?, value[1].as_u64()?));
        let peer = |value: &Value| {
            let role = match value["role"].as_str()? {
                "seed" => Role::Seed,
                "leecher" => Role::Leecher,
                _ => return None,
            };
            Some(PeerResult {
                isd_as: value["as"].as_str()?.to_owned(),
                role,
                local: value["local"].as_bool()?,
                joined: value["joined"].as_f64()?,
                seconds: value["seconds"].as_f64(),
                cpu: value["cpu"].as_f64()?,
                samples: value["samples"].as_array()?.iter().map(sample).collect::<Option<_>>()?,
                round_trips_ms: value["round_trips_ms"].as_array().and_then(|times| three(times)),
            })
        };
        let way = |value: &Value| {
            let count = |key: &str| value[key].as_u64();
            Some(WireUse {
                bytes: count("bytes")?,
                dropped: count("dropped")?,
                lost: count("lost")?,
                cross_bytes: count("cross_bytes")?,
                // Not in results of earlier programs.
                noted: Noted {
                    payloads: count("payloads").unwrap_or_default(),
                    payload_bytes: count("payload_bytes").unwrap_or_default(),
                    lengths: classes(&value["lengths"]),
                    gaps: classes(&value["gaps"]),
                    gaps_micros: count("gaps_us").unwrap_or_default(),
                },
            })
        };
        let event = |value: &Value| {
            let place = |value: &Value| usize::try_from(value.as_u64()?).ok();
            Some(Happened {
                at: value["at"].as_f64()?,
                event: place(&value["event"])?,
                begins: value["begins"].as_bool()?,
                peers: value["peers"].as_array()?.iter().map(place).collect::<Option<_>>()?,
            })
        };
        Some(Self {
            cell: value["cell"].as_str()?.to_owned(),
            repetition: u32::try_from(value["repetition"].as_u64()?).ok()?,
            began: value["began"].as_f64()?,
            build_seconds: value["build_seconds"].as_f64()?,
            seconds: value["seconds"].as_f64()?,
            content_bytes: value["content_bytes"].as_u64()?,
            peers: value["peers"].as_array()?.iter().map(peer).collect::<Option<_>>()?,
            cpu: [value["cpu"]["peers"].as_f64()?, value["cpu"]["network"].as_f64()?, value["cpu"]["wires"].as_f64()?],
            busy: value["busy"].as_f64(),
            links: value["links"]
                .as_array()?
                .iter()
                .map(|link| Some([way(&link["there"])?, way(&link["back"])?]))
                .collect::<Option<_>>()?,
            // Not in results of earlier programs.
            crossed: value["crossed"].as_array().into_iter().flatten().map(sample).collect::<Option<_>>()?,
            happened: value["events"].as_array()?.iter().map(event).collect::<Option<_>>()?,
            failed: value["failed"].as_str().map(str::to_owned),
        })
    }
}

fn three(values: &[Value]) -> Option<[f64; 3]> {
    let [least, mean, most] = values else { return None };
    Some([least.as_f64()?, mean.as_f64()?, most.as_f64()?])
}

/// Counts by class.
fn classes(value: &Value) -> [u64; CLASSES] {
    std::array::from_fn(|class| value[class].as_u64().unwrap_or_default())
}

/// One row a run, every measure in a column.
pub(super) fn runs_csv(plan: &Plan, results: &[RunResult]) -> String {
    let measures: Vec<&str> = Measure::ALL.iter().map(|measure| measure.name()).collect();
    let mut text = format!(
        "placement,candidate,connections,variant,repetition,failed,busy,build_seconds,{}\n",
        measures.join(",")
    );
    for (cell, result) in known(plan, results) {
        let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.4}"));
        let values: Vec<String> = Measure::ALL.iter().map(|measure| number(result.value(*measure))).collect();
        let failed = if result.failed.is_some() { "yes" } else { "no" };
        let (busy, build) = (number(result.busy), result.build_seconds);
        text +=
            &format!("{},{},{failed},{busy},{build:.2},{}\n", axes(plan, &cell), result.repetition, values.join(","));
    }
    text
}

/// One row a peer.
pub(super) fn peers_csv(plan: &Plan, results: &[RunResult]) -> String {
    let mut text =
        "placement,candidate,connections,variant,repetition,peer,as,role,local,joined,seconds,cpu\n".to_owned();
    for (cell, result) in known(plan, results) {
        for (number, peer) in result.peers.iter().enumerate() {
            let role = if peer.role == Role::Seed { "seed" } else { "leecher" };
            let seconds = peer.seconds.map_or(String::new(), |seconds| format!("{seconds:.3}"));
            let local = if peer.local { "yes" } else { "no" };
            text += &format!(
                "{},{},{number},{},{role},{local},{:.3},{seconds},{:.3}\n",
                axes(plan, &cell),
                result.repetition,
                peer.isd_as,
                peer.joined,
                peer.cpu
            );
        }
    }
    text
}

/// One row a direction of a link, with what was sent into it by length and by the time to what was sent before.
pub(super) fn links_csv(plan: &Plan, results: &[RunResult]) -> String {
    fn classes(name: &str, below: &[u32]) -> String {
        let bounded: String = below.iter().map(|below| format!(",{name}_below_{below}")).collect();
        bounded + &format!(",{name}_longer")
    }
    let mut text =
        "placement,candidate,connections,variant,repetition,from,to,bytes,dropped,lost,cross_bytes,payloads,payload_bytes,gaps_us"
            .to_owned();
    text += &classes("bytes", &LENGTHS_BELOW);
    text += &classes("gap_ms", &GAPS_BELOW_MS);
    text.push('\n');
    for (cell, result) in known(plan, results) {
        let axes = axes(plan, &cell);
        for (link, ways) in plan.topology.links().iter().zip(&result.links) {
            for (way, used) in ways.iter().enumerate() {
                let WireUse { bytes, dropped, lost, cross_bytes, noted } = used;
                let (from, to, repetition) = (&link.ends[way], &link.ends[1 - way], result.repetition);
                let Noted { payloads, payload_bytes, lengths, gaps, gaps_micros } = noted;
                text += &format!(
                    "{axes},{repetition},{from},{to},{bytes},{dropped},{lost},{cross_bytes},{payloads},{payload_bytes},{gaps_micros}"
                );
                text.extend(lengths.iter().chain(gaps).map(|count| format!(",{count}")));
                text.push('\n');
            }
        }
    }
    text
}

fn known<'a>(plan: &Plan, results: &'a [RunResult]) -> Vec<(Cell, &'a RunResult)> {
    let cells = plan.cells();
    let of = |cell: &Cell| {
        let name = plan.name(cell);
        results
            .iter()
            .filter(move |result| result.cell == name)
            .map(|result| (cell.clone(), result))
            .collect::<Vec<_>>()
    };
    cells.iter().flat_map(of).collect()
}

fn axes(plan: &Plan, cell: &Cell) -> String {
    let connections = cell.connections.map_or(String::new(), |connections| connections.to_string());
    let variant = cell.variant.and_then(|variant| plan.variants.get(variant)).map_or("", |variant| &variant.name);
    format!("{},{},{connections},{variant}", plan.placements[cell.placement].name, plan.candidates[cell.candidate].name)
}
