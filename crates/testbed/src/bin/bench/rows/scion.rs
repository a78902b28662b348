//! A torrent across three ASes, over clean lines and over impaired ones; and how soon a sender hears of a link that went down.

use std::fmt::Display;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anabranch_asnet::network::{Network, Options};
use anabranch_asnet::topology::{As, Topology};
use anabranch_paths::{IsdAs, ScionAddr, ScionPath};
use anabranch_scion::socket::{DEFAULT_PORTS, END_HOST_PORT, RouteId, ScmpKind, Socket};
use anabranch_testbed::peers::anabranch::command;
use anabranch_testbed::process::Process;
use anabranch_testbed::{Error, Result};

use crate::report::Sample;
use crate::workspace::Workspace;

/// Longest that one transfer may take.
const LIMIT: Duration = Duration::from_secs(600);
/// The core AS and the two leaves under it.
const CORE: &str = "1-ff00:0:110";
const ALICE: &str = "1-ff00:0:111";
const BOB: &str = "1-ff00:0:112";
/// How long a transfer is made to last that goes on without daemons: half of it has to be longer than they are away.
const DAEMON_TRANSFER_S: u64 = 20;
/// How long the daemons are away.
const DAEMON_AWAY: Duration = Duration::from_secs(5);
/// The shortest that segments live, and a transfer that is longer than two such lives.
const SHORT_LIFE: &str = "20 s";
const SHORT_LIFE_TRANSFER_S: u64 = 45;
/// One direction of each link where the sender's news is awaited: long against what a busy machine adds.
const NEWS_DELAY: Duration = Duration::from_millis(20);
/// Times that the link goes down; the median counts.
const NEWS_TIMES: usize = 11;
/// How long an echo may take.
const ECHO_LIMIT: Duration = Duration::from_secs(5);
/// How often the sender sends.
const NEWS_GAP: Duration = Duration::from_millis(1);

/// What a transfer has to get by with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Impairment {
    /// Links without bounds.
    Fair,
    /// One packet in fifty gets lost each way, and a round trip takes 80 ms.
    Lossy,
    /// Half-way, both daemons are gone for a while and come back without memory.
    DaemonsGone,
    /// Paths end after 20 seconds.
    ShortLives,
}

impl Impairment {
    /// The three ASes: what goes before everything else in their file, and into one of the links and into the other.
    fn topology(self) -> Result<Topology> {
        match self {
            Self::Fair | Self::DaemonsGone => line("", "", ""),
            Self::Lossy => line("[defaults]\ndelay = '20 ms'\n", "loss = '2 %'\n", ""),
            Self::ShortLives => line(&format!("segment_lifetime = '{SHORT_LIFE}'\n"), "", ""),
        }
    }

    /// How long the transfer is made to last, where it would be over too soon.
    fn seconds_min(self) -> Option<u64> {
        match self {
            Self::Fair | Self::Lossy => None,
            Self::DaemonsGone => Some(DAEMON_TRANSFER_S),
            Self::ShortLives => Some(SHORT_LIFE_TRANSFER_S),
        }
    }
}

/// The workspace's content as a torrent, from a leaf AS over the core to another. Compares what came with it.
pub(super) fn torrent(workspace: &mut Workspace, impairment: Impairment) -> Result<Sample> {
    let network = start(impairment.topology()?)?;
    let (torrent, out) = (workspace.torrent("1")?, workspace.out()?);
    let mut sharing = command(None)?;
    sharing.arg("share").arg(&torrent).arg("--data").arg(&workspace.data).arg("--no-verify");
    sharing.args(at(&network, BOB)?);
    let mut sharer = Process::spawn("anabranch share", &mut sharing)?;
    let (event, _) = sharer.wait_event("listening", LIMIT)?;
    let address = event["address"].as_str().unwrap_or_default().to_owned();
    let mut fetcher = fetch(&network, &torrent, &out, &address, impairment.seconds_min().map(|s| workspace.len / s))?;
    if impairment == Impairment::DaemonsGone {
        let half = workspace.len / 2;
        fetcher.wait_line("half of the content", LIMIT, |line| {
            line.json()["downloaded"].as_u64().is_some_and(|bytes| bytes >= half)
        })?;
        let both = [isd_as(ALICE)?, isd_as(BOB)?];
        both.iter().try_for_each(|each| network.stop_daemon(*each)).map_err(nonsense)?;
        std::thread::sleep(DAEMON_AWAY);
        both.iter().try_for_each(|each| network.start_daemon(*each)).map_err(nonsense)?;
    }
    let (_, finished) = fetcher.wait_event("finished", LIMIT)?;
    let seconds = (finished - fetcher.started()).as_secs_f64();
    let usage = fetcher.wait_success(LIMIT)?;
    let cpu_share = Some(sharer.stop()?.cpu().as_secs_f64());
    workspace.check(&out.join("content.bin"))?;
    Ok(Sample {
        figure: seconds,
        cpu_fetch: Some(usage.cpu().as_secs_f64()),
        cpu_share,
        rss_mib: Some(usage.rss_bytes_max as f64 / f64::from(1 << 20)),
        extra: Some(workspace.len as f64 / seconds / 1e6),
        ..Sample::default()
    })
}

fn fetch(network: &Network, torrent: &Path, out: &Path, peer: &str, rate_bytes: Option<u64>) -> Result<Process> {
    let mut fetching = command(None)?;
    fetching.arg("get").arg(torrent).arg("-o").arg(out).args(["--peer", peer]).args(at(network, ALICE)?);
    if let Some(rate_bytes) = rate_bytes {
        fetching.args(["--limit-down", &rate_bytes.to_string()]);
    }
    Process::spawn("anabranch get", &mut fetching)
}

/// Flags of a program at the first host of an AS.
fn at(network: &Network, name: &str) -> Result<[String; 5]> {
    let home = home(network, name)?;
    let listen = format!("[{name},{}]:0", home.hosts[0].address);
    Ok(["--json".into(), "--listen".into(), listen, "--sciond".into(), home.daemon.to_string()])
}

/// Which link goes down: the sender's own, or the one behind the core.
#[derive(Clone, Copy)]
pub(super) enum Down {
    Own,
    Far,
}

/// Takes a link down under a host that sends: the time from the first packet after it to the word that names the link's
/// interface, in round trips of the path.
pub(super) fn link_down(down: Down) -> Result<Sample> {
    let network = start(line(&format!("[defaults]\ndelay = '{} ms'\n", NEWS_DELAY.as_millis()), "", "")?)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Error::system("starting the runtime"))?.block_on(async {
        // Routers hand echo requests to the port for all.
        let (here, there) = (socket(&network, ALICE, 0)?, socket(&network, BOB, END_HOST_PORT)?);
        let paths = network.control().paths(isd_as(ALICE)?, isd_as(BOB)?, SystemTime::now()).map_err(nonsense)?;
        let path = paths.first().ok_or_else(|| nonsense("no path"))?;
        let route = here.register(there.local(), path).map_err(nonsense)?;
        tokio::select! {
            // Receives what comes, so that answers and errors are seen.
            failed = here.drive() => Err(nonsense(format!("{failed:?}"))),
            failed = there.drive() => Err(nonsense(format!("{failed:?}"))),
            sample = news(&network, &here, route, path, down) => sample,
        }
    })
}

async fn news(network: &Network, here: &Socket, route: RouteId, path: &ScionPath, down: Down) -> Result<Sample> {
    // The interface that leads into the link: the sender's AS's, or the core's towards the far leaf.
    let interface = path.interfaces[match down {
        Down::Own => 0,
        Down::Far => 2,
    }];
    let link = network.find_link(&interface.to_string(), None).map_err(nonsense)?;
    let (mut rounds, mut round_trips_ms) = (Vec::new(), Vec::new());
    for _ in 0..NEWS_TIMES {
        let echo = here.ping(route, 8, ECHO_LIMIT).await.map_err(nonsense)?;
        network.set_link_up(link, false).map_err(nonsense)?;
        let since = Instant::now();
        let event = loop {
            here.send_to(route, b"is anyone there?").await.map_err(nonsense)?;
            if let Ok(event) = tokio::time::timeout(NEWS_GAP, here.event()).await {
                break event;
            }
        };
        let elapsed = since.elapsed();
        if event.route != route || event.kind != ScmpKind::ExternalInterfaceDown(interface) {
            return Err(nonsense(format!("another event: {event:?}")));
        }
        network.set_link_up(link, true).map_err(nonsense)?;
        // What was sent after the news was heard of is told of as well.
        tokio::time::sleep(echo.rtt).await;
        while here.try_event().is_some() {}
        rounds.push(elapsed.as_secs_f64() / echo.rtt.as_secs_f64());
        round_trips_ms.push(echo.rtt.as_secs_f64() * 1e3);
    }
    rounds.sort_by(f64::total_cmp);
    round_trips_ms.sort_by(f64::total_cmp);
    Ok(Sample { figure: rounds[NEWS_TIMES / 2], extra: Some(round_trips_ms[NEWS_TIMES / 2]), ..Sample::default() })
}

fn socket(network: &Network, name: &str, port: u16) -> Result<Socket> {
    let home = home(network, name)?;
    let address = ScionAddr::new(home.isd_as, (home.hosts[0].address, port).into());
    Socket::bind(address, DEFAULT_PORTS).map_err(nonsense)
}

/// A core AS between two leaves. `head` goes before the ASes, `alice` and `bob` into the links to them.
fn line(head: &str, alice: &str, bob: &str) -> Result<Topology> {
    let text = format!(
        "network = '127.131.0.0'\n{head}[as.'{CORE}']\ncore = true\n[as.'{ALICE}']\n[as.'{BOB}']\n\
         [[link]]\nparent = '{CORE}'\nchild = '{ALICE}'\n{alice}\
         [[link]]\nparent = '{CORE}'\nchild = '{BOB}'\n{bob}"
    );
    Topology::from_toml("line.toml", &text).map_err(nonsense)
}

fn start(topology: Topology) -> Result<Network> {
    Network::start(topology, Options::default()).map_err(nonsense)
}

fn home<'a>(network: &'a Network, name: &str) -> Result<&'a As> {
    network.topology().get(isd_as(name)?).ok_or_else(|| nonsense("the topology"))
}

fn isd_as(name: &str) -> Result<IsdAs> {
    name.parse().map_err(nonsense)
}

fn nonsense(what: impl Display) -> Error {
    Error::Nonsense { name: "the SCION row".into(), what: what.to_string() }
}
