//! Plans: experiments as files. What runs over which network, how often, what is measured, drawn and claimed.
//!
//! A plan is read once and checked whole: every name in it means something, and an error names file, line and remedy.
//! `docs/lab.md` describes the format. What a plan asks for is a set of [`Cell`]s, each of which is run so often.

mod claim;
pub(crate) mod client;
mod error;
mod event;
mod figure;
mod form;
mod generate;
mod limits;
mod read;
mod scale;
#[cfg(test)]
mod tests;
mod variant;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_asnet::topology::Topology;

use crate::bed::Routing;
use crate::trial::TRACKER_PORT;

pub use claim::{Claim, Quantity, Verdict};
pub use client::{Client, Speech};
pub use error::PlanError;
pub use event::{Change, Event, LinkChange, When};
pub use figure::Figure;
pub use form::{Form, Reduction};
pub use generate::Recipe;
pub(crate) use read::rate_bytes;
pub use scale::Scale;
pub use variant::{Directions, Properties, Variant};

use limits::FILE_BYTES_MAX;

/// A checked plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The file that it was read from.
    pub file: PathBuf,
    /// Its text, and that of its topology: what a result belongs to.
    pub text: String,
    /// See [`Self::text`].
    pub topology_text: String,
    /// How it is called in results and folders.
    pub id: String,
    /// What it is about.
    pub title: String,
    /// What it redraws.
    pub source: Option<String>,
    /// The network; [`Self::under`] has it as a cell is run.
    pub topology: Topology,
    /// What the rates of its links are divided by, and the bytes that their queues hold.
    pub scale: Scale,
    /// Bytes of the file that is fetched.
    pub content_bytes: u64,
    /// Bytes of its pieces.
    pub piece_bytes: u32,
    /// What is compared.
    pub candidates: Vec<Candidate>,
    /// Who is where, each under a name.
    pub placements: Vec<Placement>,
    /// Connections that a peer chooses at most, where that is swept.
    pub connections: Vec<u32>,
    /// What else is varied.
    pub variants: Vec<Variant>,
    /// Why real packets do not run it, if that is so.
    pub sim: Option<String>,
    /// In which form it is here.
    pub form: Form,
    /// Bytes of the file in the plan's full form.
    pub full_bytes: u64,
    /// What happens meanwhile.
    pub events: Vec<Event>,
    /// How often each cell is run.
    pub repetitions: u32,
    /// How many runs are made at once, where nobody says otherwise.
    pub jobs: u32,
    /// What join times and losses follow from.
    pub seed: u64,
    /// How long a run may take.
    pub limit: Duration,
    /// What `--quick` leaves of it.
    pub quick: Reduction,
    /// What is left of it where nobody asks for another form.
    pub standard: Option<Reduction>,
    /// What is drawn.
    pub figures: Vec<Figure>,
    /// What must hold.
    pub claims: Vec<Claim>,
    /// How many more claims the full form has: of cells that this one leaves out.
    pub claims_left_out: usize,
}

/// Where a plan's network is from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NetworkSource<'a> {
    /// A topology file, as the plan names it.
    File(&'a str),
    /// What the plan says of it.
    Drawn(&'a Recipe),
}

impl NetworkSource<'_> {
    /// How messages call it.
    pub fn name(&self) -> &str {
        match self {
            Self::File(name) => name,
            Self::Drawn(_) => "the network that is drawn",
        }
    }
}

/// One of those that are compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// How packets find their way.
    pub routing: Routing,
    /// What its peers run, where a placement does not say otherwise.
    pub client: Client,
    /// `--selector`, over SCION.
    pub selector: Option<String>,
    /// `--paths`.
    pub paths: Option<u32>,
    /// `--max-connections`, where it is not swept.
    pub connections: Option<u32>,
    /// Further flags: of `get` and `share`, of `send`, of another client.
    pub flags: Vec<String>,
    /// Further flags of who fetches.
    pub leecher_flags: Vec<String>,
    /// Whether no other run goes on beside its runs, whatever [`Plan::jobs`] is: what keeps the processors busy.
    pub alone: bool,
}

/// Who is where.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Its name.
    pub name: String,
    /// The peers, seeds first.
    pub peers: Vec<Peer>,
}

/// What a peer is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Has everything from the start.
    Seed,
    /// Has nothing, and stays until all are done.
    Leecher,
}

/// One peer.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer {
    /// Its AS, by its place in the topology.
    pub home: usize,
    /// What it is there for.
    pub role: Role,
    /// What it runs, if not what the candidate says.
    pub client: Option<Client>,
    /// It comes at some time up to this.
    pub join: Duration,
    /// Bytes a second that it sends and receives at most, as flags write them.
    pub limits: [Option<String>; 2],
}

/// What is measured of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Measure {
    /// Sum over peers of size over own time, Mbit/s; of peers that share no AS with a seed, as all but `bytes` here.
    Goodput,
    /// Mean of own times, s.
    Time,
    /// The longest own time, s.
    TimeMax,
    /// Processor time of peers, of what routes and of wires, s for each GiB that peers received.
    Cpu,
    /// That of peers alone.
    CpuPeers,
    /// That of what routes alone.
    CpuNetwork,
    /// That of wires alone, in whose threads the kernel passes on what BGP routes.
    CpuWires,
    /// Mean round-trip time that the kernel estimates for connections over TCP of leechers, ms.
    RoundTrip,
    /// Mean length of what packets carry into links between ASes, bytes.
    Payload,
    /// Mean time between two of them in one direction of a link, ms.
    Gap,
    /// Bytes over all links between ASes, for each byte of content that peers received; cross traffic is not counted.
    Wire,
    /// Rate at which content came to peers that count, all together, in the second half of the run, Mbit/s.
    RateSettled,
    /// The same before the first event that has an end.
    RateBefore,
    /// While that event went on.
    RateDuring,
    /// From two seconds after its end on.
    RateAfter,
    /// Rate of cross traffic over all links together where events send it, over the same time as [`Self::RateSettled`], Mbit/s.
    Cross,
}

impl Measure {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Goodput,
        Self::Time,
        Self::TimeMax,
        Self::Cpu,
        Self::CpuPeers,
        Self::CpuNetwork,
        Self::CpuWires,
        Self::RoundTrip,
        Self::Payload,
        Self::Gap,
        Self::Wire,
        Self::RateSettled,
        Self::RateBefore,
        Self::RateDuring,
        Self::RateAfter,
        Self::Cross,
    ];
    /// Their names, for people.
    pub const NAMES: &str = "goodput, time, time-max, cpu, cpu-peers, cpu-network, cpu-wires, round-trip, payload, gap, wire, rate-settled, rate-before, rate-during, rate-after or cross";

    /// As plans write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::Time => "time",
            Self::TimeMax => "time-max",
            Self::Cpu => "cpu",
            Self::CpuPeers => "cpu-peers",
            Self::CpuNetwork => "cpu-network",
            Self::CpuWires => "cpu-wires",
            Self::RoundTrip => "round-trip",
            Self::Payload => "payload",
            Self::Gap => "gap",
            Self::Wire => "wire",
            Self::RateSettled => "rate-settled",
            Self::RateBefore => "rate-before",
            Self::RateDuring => "rate-during",
            Self::RateAfter => "rate-after",
            Self::Cross => "cross",
        }
    }

    /// Its unit, and what it is.
    pub fn about(self) -> (&'static str, &'static str) {
        match self {
            Self::Goodput => ("Mbit/s", "aggregated goodput"),
            Self::Time => ("s", "mean download time"),
            Self::TimeMax => ("s", "longest download time"),
            Self::Cpu => ("s/GiB", "processor time of peers, routing and wires"),
            Self::CpuPeers => ("s/GiB", "processor time of peers"),
            Self::CpuNetwork => ("s/GiB", "processor time of routing"),
            Self::CpuWires => ("s/GiB", "processor time of wires"),
            Self::RoundTrip => ("ms", "round-trip time, as TCP estimates it"),
            Self::Payload => ("B", "mean length of payloads"),
            Self::Gap => ("ms", "mean time between payloads"),
            Self::Wire => ("B/B", "bytes over links for each byte of content"),
            Self::RateSettled => ("Mbit/s", "rate in the second half"),
            Self::RateBefore => ("Mbit/s", "rate before the event"),
            Self::RateDuring => ("Mbit/s", "rate during the event"),
            Self::RateAfter => ("Mbit/s", "rate after the event"),
            Self::Cross => ("Mbit/s", "cross traffic in the second half"),
        }
    }
}

/// An axis along which cells differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Which candidate.
    Candidate,
    /// Which placement.
    Placement,
    /// How many connections.
    Connections,
    /// Which variant.
    Variant,
}

impl Axis {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Candidate, Self::Placement, Self::Connections, Self::Variant];
}

/// One combination of everything that is varied.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Index of the placement.
    pub placement: usize,
    /// Index of the candidate.
    pub candidate: usize,
    /// Connections, where they are swept.
    pub connections: Option<u32>,
    /// Index of the variant, where there are any.
    pub variant: Option<usize>,
}

impl Cell {
    /// Its place along an axis, or the value there; `None` where nothing is varied along it.
    pub(crate) fn value(&self, axis: Axis) -> Option<usize> {
        match axis {
            Axis::Candidate => Some(self.candidate),
            Axis::Placement => Some(self.placement),
            Axis::Connections => self.connections.map(|connections| connections as usize),
            Axis::Variant => self.variant,
        }
    }
}

impl Plan {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// What is wrong, where, and what to do about it.
    pub fn load(path: &Path) -> Result<Self, PlanError> {
        let file = path.display().to_string();
        let text = bounded(path).map_err(|problem| PlanError::unreadable(&file, problem))?;
        Self::read(path, &text, |source| {
            let topology = match source {
                NetworkSource::File(name) => name,
                NetworkSource::Drawn(recipe) => {
                    let text = recipe.draw();
                    let topology = Topology::from_toml(source.name(), &text).map_err(|error| error.to_string())?;
                    return Ok((topology, text));
                }
            };
            let beside = path.parent().unwrap_or(Path::new("")).join(topology);
            let name = beside.display().to_string();
            let text = bounded(&beside).map_err(|problem| format!("{name}: {problem}"))?;
            let is_yaml =
                beside.extension().is_some_and(|ending| ["topo", "yml", "yaml"].iter().any(|each| ending == *each));
            let read = if is_yaml { Topology::from_topo(&name, &text) } else { Topology::from_toml(&name, &text) };
            Ok((read.map_err(|error| error.to_string())?, text))
        })
    }

    /// Reads and checks a text; `open` finds or draws the topology that it asks for, and its text.
    ///
    /// # Errors
    /// As for [`Self::load`].
    pub fn read(
        path: &Path,
        text: &str,
        open: impl FnOnce(NetworkSource<'_>) -> Result<(Topology, String), String>,
    ) -> Result<Self, PlanError> {
        let located = |(line, problem)| PlanError::new(&path.display().to_string(), line, problem);
        read::read(path, text, open).map_err(located)
    }

    /// All cells: the candidates of a cell's surroundings follow each other, so that they are measured close in time.
    pub fn cells(&self) -> Vec<Cell> {
        let connections: Vec<Option<u32>> =
            if self.connections.is_empty() { vec![None] } else { self.connections.iter().copied().map(Some).collect() };
        let variants: Vec<Option<usize>> =
            if self.variants.is_empty() { vec![None] } else { (0..self.variants.len()).map(Some).collect() };
        let around =
            (0..self.placements.len()).flat_map(|each| connections.iter().map(move |connections| (each, *connections)));
        let around =
            around.flat_map(|(each, connections)| variants.iter().map(move |variant| (each, connections, *variant)));
        let all = around.flat_map(|(placement, connections, variant)| {
            (0..self.candidates.len()).map(move |candidate| Cell { placement, candidate, connections, variant })
        });
        all.collect()
    }

    /// A cell as people and files name it: `5as/scion`, `5as/scion/7`.
    pub fn name(&self, cell: &Cell) -> String {
        let (placement, candidate) = (&self.placements[cell.placement].name, &self.candidates[cell.candidate].name);
        let connections = cell.connections.map_or(String::new(), |connections| format!("/{connections}"));
        let variant = cell.variant.and_then(|variant| self.variants.get(variant));
        let variant = variant.map_or(String::new(), |variant| format!("/{}", variant.name));
        format!("{placement}/{candidate}{connections}{variant}")
    }

    /// The programs that peers of these cells run.
    pub fn clients(&self, cells: &[Cell]) -> Vec<Client> {
        let of = |cell: &Cell| {
            let usual = self.candidates[cell.candidate].client;
            self.placements[cell.placement]
                .peers
                .iter()
                .map(move |peer| peer.client.unwrap_or(usual))
                .collect::<Vec<_>>()
        };
        let mut all: Vec<Client> = cells.iter().flat_map(of).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The address of the tracker that a run of a cell has, where some of its clients find each other by one alone: at the first seed.
    pub(crate) fn tracker(&self, cell: &Cell) -> Option<String> {
        let needs_one = self.clients(std::slice::from_ref(cell)).iter().any(|client| client.is_old());
        let first = self.placements[cell.placement].peers.first()?;
        needs_one.then(|| format!("http://{}:{TRACKER_PORT}/announce", crate::bed::first_host(first.home)))
    }

    /// What groups along an axis are called, in their order.
    pub fn values(&self, axis: Axis) -> Vec<String> {
        match axis {
            Axis::Candidate => self.candidates.iter().map(|each| each.name.clone()).collect(),
            Axis::Placement => self.placements.iter().map(|each| each.name.clone()).collect(),
            Axis::Connections => self.connections.iter().map(ToString::to_string).collect(),
            Axis::Variant => self.variants.iter().map(|each| each.name.clone()).collect(),
        }
    }
}

/// A file's text, if it is no larger than a plan or topology may be.
fn bounded(path: &Path) -> Result<String, String> {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    match read {
        Err(error) => Err(format!("the file cannot be read ({error}): correct the name")),
        Ok(len) if len as u64 > FILE_BYTES_MAX => {
            Err(format!("the file has more than {FILE_BYTES_MAX} bytes: split it"))
        }
        Ok(_) => Ok(text),
    }
}
