//! The scenario of `anabranch demo`: one file over one network, fetched three times, each time with another way to choose
//! paths.
//!
//! The network runs in this process. Sharing and fetching are processes of their own, of the very program that a user would
//! start, with the commands that are printed; what they log is all that the report knows of them.

mod child;
pub(crate) mod content;
mod error;
mod transfer;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anabranch_asnet::network::{Network as Running, Options as NetworkOptions};
use anabranch_asnet::topology::Topology;
use anabranch_paths::IsdAs;

use crate::network::{Bound, Network};
use crate::report::{Report, Run};
use crate::text;

pub use error::DemoError;
pub use transfer::{Live, LivePath};

/// The network: four ways between the end hosts that share nothing, and many that do.
const TOPOLOGY: &str = include_str!("../../../../topologies/demo.toml");
/// Its name in errors.
const TOPOLOGY_NAME: &str = "topologies/demo.toml";
/// The page in the output folder.
const PAGE: &str = "report.html";
/// What the file is called, and its torrent.
const CONTENT: &str = "noise";
const TORRENT: &str = "noise.torrent";

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program that shares and fetches.
    pub program: PathBuf,
    /// Where the page and the logs go; made if it is not there.
    pub out: PathBuf,
    /// Bytes of the file.
    pub content_bytes: u64,
    /// Whether runs are told of while they go on, with all that is known of them.
    pub is_followed: bool,
}

/// A way to choose paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// The selector's name, which is also the run's.
    pub selector: &'static str,
    /// Paths to the sender that it may use.
    pub paths: usize,
    /// How it chooses, in a few words.
    pub about: &'static str,
}

/// The ways that are compared, the first one being the measure of the others.
pub const STRATEGIES: [Strategy; 3] = [
    Strategy { selector: "first", paths: 1, about: "the path that the lookup lists first" },
    Strategy { selector: "all", paths: PATHS, about: "every path, shortest first, until the connections are used up" },
    Strategy {
        selector: "disjoint",
        paths: PATHS,
        about: "as many connections, over paths that share as little as possible",
    },
];
/// Connections that the naive and the disjoint choice have alike.
const PATHS: usize = 4;

/// What goes on, for whoever watches.
#[derive(Debug)]
pub enum Notice<'a> {
    /// The network runs, and the file is made.
    Ready {
        /// The network.
        network: &'a Network,
        /// The most that it carries from the sender to the receiver.
        bound: Option<&'a Bound>,
    },
    /// A run starts.
    Begins {
        /// How it chooses.
        strategy: Strategy,
        /// What is typed to make it happen.
        commands: &'a [String],
    },
    /// A run goes on: told several times a second.
    Goes(&'a Live),
    /// All that is known of a run that goes on: told about once a second, where that was asked for.
    SoFar(&'a Run),
    /// A run is done, and the file is what it was.
    Ends(&'a Run),
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// Everything that is in the page.
    pub report: Report,
    /// Where the page is.
    pub page: PathBuf,
}

/// Runs the scenario to its end, or until `cancel` is set; then everything that it started has ended too.
pub fn run(options: &Options, cancel: &AtomicBool, watch: &mut dyn FnMut(Notice<'_>)) -> Result<Outcome, DemoError> {
    let out = make_folder(&options.out)?;
    let topology = Topology::from_toml(TOPOLOGY_NAME, TOPOLOGY)?;
    let (sender, receiver) = ends(&topology)?;
    let network = Network::new(&topology, sender, receiver);
    let running = Running::start(topology, NetworkOptions::default())?;
    let _content = content::Scratch::new(&out.join(CONTENT));
    content::write(&out.join(CONTENT), options.content_bytes, cancel)?;
    child::finish(&options.program, &out, "create", &["create", CONTENT, "-o", TORRENT, "--force", "--quiet"])?;
    let bound = network.bound();
    watch(Notice::Ready { network: &network, bound: bound.as_ref() });
    let mut runs = Vec::new();
    for strategy in STRATEGIES {
        if cancel.load(Ordering::Relaxed) {
            return Err(DemoError::Canceled);
        }
        let setup = transfer::RunSetup { options, out: &out, network: &network, running: &running };
        let run = transfer::run(&setup, strategy, cancel, watch)?;
        watch(Notice::Ends(&run));
        runs.push(run);
    }
    drop(running);
    let facts = facts(&network, &runs);
    let report = Report { network, bound, content_bytes: options.content_bytes, runs, facts };
    let page = out.join(PAGE);
    fs::write(&page, report.html()).map_err(|error| DemoError::file(&page, error))?;
    Ok(Outcome { report, page })
}

fn make_folder(out: &Path) -> Result<PathBuf, DemoError> {
    let made = fs::create_dir_all(out).and_then(|()| out.canonicalize());
    made.map_err(|error| DemoError::file(out, error))
}

/// The AS of `alice`, who shares, and that of `bob`, who fetches.
fn ends(topology: &Topology) -> Result<(IsdAs, IsdAs), DemoError> {
    let home = |name: &'static str| {
        let found = topology.ases().iter().find(|each| each.hosts.iter().any(|host| host.name == name));
        found.map(|each| each.isd_as).ok_or(DemoError::NoHost(name))
    };
    Ok((home("alice")?, home("bob")?))
}

/// Where and when this happened.
fn facts(network: &Network, runs: &[Run]) -> Vec<(String, String)> {
    let mut facts = vec![("Program".to_owned(), format!("anabranch {}", env!("CARGO_PKG_VERSION")))];
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    facts.push((
        "Machine".to_owned(),
        format!("{cores} processors, {} {}", std::env::consts::OS, std::env::consts::ARCH),
    ));
    facts.push((
        "Network".to_owned(),
        format!("{TOPOLOGY_NAME}: {} ASes, {} links", network.nodes.len(), network.lines.len()),
    ));
    let busy: Vec<String> =
        runs.iter().filter_map(|run| Some(format!("{:.0} % in {}", run.busy? * 100.0, run.name))).collect();
    if !busy.is_empty() {
        facts.push((
            "Processors at work".to_owned(),
            format!("{} (everything on the machine counted)", busy.join(", ")),
        ));
    }
    facts.push(("When".to_owned(), text::utc(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())));
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_is_the_one_that_the_scenario_needs() {
        let topology = Topology::from_toml(TOPOLOGY_NAME, TOPOLOGY).unwrap();
        let (sender, receiver) = ends(&topology).unwrap();
        let network = Network::new(&topology, sender, receiver);
        let bound = network.bound().unwrap();
        assert_eq!(bound.rate_bps, 140_000_000);
        let widest = network.lines.iter().flat_map(|line| line.rate_bps).flatten().max().unwrap();
        assert!(widest <= 80_000_000, "links, not processors, are the limit");
    }
}
