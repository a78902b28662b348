//! What a run leaves: one line of JSON, and what follows from it.

use anabranch_asnet::topology::Topology;
use serde_json::{Value, json};

use crate::plan::{Cell, Measure, Plan, Role};
use crate::wire::WireUse;

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
    /// Why it is none, if that is so.
    pub failed: Option<String>,
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
}

impl RunResult {
    /// What is measured of it; nothing of one that failed.
    pub fn value(&self, measure: Measure) -> Option<f64> {
        if self.failed.is_some() {
            return None;
        }
        let times: Vec<f64> = self.peers.iter().filter(|peer| !peer.local).filter_map(|peer| peer.seconds).collect();
        let leechers = self.peers.iter().filter(|peer| peer.role == Role::Leecher).count();
        let received = leechers as f64 * self.content_bytes as f64;
        if times.is_empty() || received == 0.0 {
            return None;
        }
        let bits = self.content_bytes as f64 * 8.0;
        let [peers, network, _] = self.cpu;
        Some(match measure {
            Measure::Goodput => times.iter().map(|time| bits / time.max(f64::MIN_POSITIVE)).sum::<f64>() / 1e6,
            Measure::Time => times.iter().sum::<f64>() / times.len() as f64,
            Measure::TimeMax => times.iter().copied().fold(0.0, f64::max),
            Measure::Cpu => (peers + network) / (received / GIB),
            Measure::CpuPeers => peers / (received / GIB),
            Measure::CpuNetwork => network / (received / GIB),
            Measure::Wire => self.links.iter().flatten().map(|used| used.bytes as f64).sum::<f64>() / received,
        })
    }

    /// As a line of JSON.
    pub fn to_json(&self, topology: &Topology) -> Value {
        let link = |(number, used): (usize, &[WireUse; 2])| {
            let way = |used: WireUse| json!({ "bytes": used.bytes, "dropped": used.dropped, "lost": used.lost, "cross": used.cross });
            let ends = topology.links()[number].ends.map(|end| end.to_string());
            json!({ "ends": ends, "there": way(used[0]), "back": way(used[1]) })
        };
        let peer = |peer: &PeerResult| {
            let role = if peer.role == Role::Seed { "seed" } else { "leecher" };
            json!({
                "as": peer.isd_as, "role": role, "local": peer.local, "joined": peer.joined, "seconds": peer.seconds,
                "cpu": peer.cpu,
            })
        };
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
            "failed": self.failed,
        })
    }

    /// From a line of JSON; `None` for what no run has written.
    pub fn from_json(value: &Value) -> Option<Self> {
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
            })
        };
        let way = |value: &Value| {
            let count = |key: &str| value[key].as_u64();
            Some(WireUse {
                bytes: count("bytes")?,
                dropped: count("dropped")?,
                lost: count("lost")?,
                cross: count("cross")?,
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
            failed: value["failed"].as_str().map(str::to_owned),
        })
    }
}

/// One row a run, every measure in a column.
pub(super) fn runs_csv(plan: &Plan, results: &[RunResult]) -> String {
    let measures: Vec<&str> = Measure::ALL.iter().map(|measure| measure.name()).collect();
    let mut text =
        format!("placement,candidate,connections,repetition,failed,busy,build_seconds,{}\n", measures.join(","));
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
    let mut text = "placement,candidate,connections,repetition,peer,as,role,local,joined,seconds,cpu\n".to_owned();
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
    format!("{},{},{connections}", plan.placements[cell.placement].name, plan.candidates[cell.candidate].name)
}
