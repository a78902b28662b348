//! Rows about links that stay as they are: aggregation, overlap, CPU.

use std::time::{Duration, SystemTime};

use anabranch_paths::flow::{FlowNetwork, fair_rates};
use anabranch_paths::select::{Budget, Candidate, Selector};
use anabranch_paths::{Interface, Path, Scoreboard};
use anabranch_testbed::Result;

use super::arrivals::Arrivals;
use super::network::{Arrived, PathsNetwork, Protocol, RECEIVER, SENDER, Transfer, Wire, parallel};
use super::nonsense;
use crate::report::{Sample, median};
use crate::workspace::Workspace;

/// How long a transfer should take at the links' full rate.
const SECONDS: u64 = 12;
/// Windows open and paths join before this share of the bytes has come. The end counts: a slow path must not hold it up.
const SKIPPED_SHARE: f64 = 0.2;
const LIMIT: Duration = Duration::from_secs(180);
/// Bytes where nothing but the machine limits.
const UNLIMITED_BYTES: u64 = 512 << 20;
/// Paths of the row about overlap.
const CONNECTIONS: usize = 4;

/// Payload rate from [`SKIPPED_SHARE`] of the bytes to the last one, bits a second.
fn goodput(arrived: &Arrived) -> Result<f64> {
    let arrivals = Arrivals::all(&arrived.log);
    let from = arrivals.time_of_share(SKIPPED_SHARE).ok_or_else(|| nonsense("nothing in the path log"))?;
    let (_, to) = arrivals.span().ok_or_else(|| nonsense("nothing in the path log"))?;
    Ok(arrivals.rate(from, to) * 8.0)
}

/// One transfer over these links, each a path.
pub(super) fn aggregate(protocol: Protocol, workspace: &mut Workspace, wires: &[Wire]) -> Result<Sample> {
    let network = parallel(wires)?;
    let bytes = wires.iter().map(|wire| u64::from(wire.rate_mbps.unwrap_or(0)) * 125_000 * SECONDS).sum();
    let paths = wires.len().to_string();
    let ends = [SENDER, RECEIVER];
    let transfer = Transfer::start_by(protocol, workspace, &network, ends, bytes, &["--paths", &paths])?;
    let arrived = transfer.finish(LIMIT)?;
    let rate = goodput(&arrived)?;
    // What each path carries alone was measured before, in this run of the bench.
    let alone = |wire: &Wire| median(workspace.alone.get(&(protocol, wire.rate_mbps, wire.delay_ms))?.iter().copied());
    let sum: Option<f64> = wires.iter().map(alone).sum();
    if let [wire] = wires {
        workspace.alone.entry((protocol, wire.rate_mbps, wire.delay_ms)).or_default().push(rate);
    }
    Ok(Sample {
        figure: rate / 1e6,
        extra: sum.filter(|_| wires.len() > 1).map(|sum| 100.0 * rate / sum),
        more: vec![Some(arrived.usage.wall.as_secs_f64())],
        cpu_fetch: Some(arrived.usage.cpu().as_secs_f64()),
        cpu_share: Some(arrived.sharer_cpu.as_secs_f64()),
        ..Sample::default()
    })
}

/// What a byte costs both ends over these links.
pub(super) fn cpu(workspace: &mut Workspace, wires: &[Wire]) -> Result<Sample> {
    let network = parallel(wires)?;
    let paths = wires.len().to_string();
    let transfer = Transfer::start(workspace, &network, [SENDER, RECEIVER], UNLIMITED_BYTES, &["--paths", &paths])?;
    let arrived = transfer.finish(LIMIT)?;
    let (fetch, share) = (arrived.usage.cpu().as_secs_f64(), arrived.sharer_cpu.as_secs_f64());
    Ok(Sample {
        figure: goodput(&arrived)? / 1e6,
        extra: Some((fetch + share) / UNLIMITED_BYTES as f64 * f64::from(1 << 30)),
        cpu_fetch: Some(fetch),
        cpu_share: Some(share),
        ..Sample::default()
    })
}

/// Three ways out of the sender's AS, 20 Mbit/s each; the first is the start of many short paths, the others of few.
const OVERLAPPING: &str = "
    [as.'1-ff00:0:1']
    core = true
    [as.'1-ff00:0:2']
    core = true
    [as.'1-ff00:0:3']
    core = true
    [as.'1-ff00:0:110']
    [as.'1-ff00:0:111']
    [defaults]
    rate = '100 Mbit/s'
    delay = '2 ms'
    [[link]]
    parent = '1-ff00:0:1'
    child = '1-ff00:0:110'
    rate = '20 Mbit/s'
    delay = '2 ms'
    [[link]]
    parent = '1-ff00:0:2'
    child = '1-ff00:0:110'
    rate = '20 Mbit/s'
    delay = '6 ms'
    [[link]]
    parent = '1-ff00:0:3'
    child = '1-ff00:0:110'
    rate = '20 Mbit/s'
    delay = '10 ms'
    [[link]]
    parent = '1-ff00:0:1'
    child = '1-ff00:0:111'
    count = 4
    [[link]]
    parent = '1-ff00:0:2'
    child = '1-ff00:0:111'
    count = 2
    [[link]]
    core = ['1-ff00:0:1', '1-ff00:0:2']
    [[link]]
    core = ['1-ff00:0:2', '1-ff00:0:3']
    [[link]]
    core = ['1-ff00:0:1', '1-ff00:0:3']
";

/// The sender's link on the shortest path: megabits a second, and milliseconds of the whole path.
const BOTTLENECK: (Protocol, Option<u32>, u32) = (Protocol::BitTorrent, Some(20), 4);
const BOTTLENECK_BPS: f64 = 20e6;

/// One transfer with few connections over a network where most paths share their bottleneck.
pub(super) fn overlap(workspace: &mut Workspace, selector: &str) -> Result<Sample> {
    let network = PathsNetwork::new(OVERLAPPING)?;
    let (bound, chosen) = bounds(&network, selector)?;
    let count = CONNECTIONS.to_string();
    let flags = ["--paths", &count, "--max-connections", &count, "--selector", selector];
    // As long as the bound would take.
    let bytes = (bound / 8.0) as u64 * SECONDS;
    let arrived = Transfer::start(workspace, &network, [SENDER, RECEIVER], bytes, &flags)?.finish(LIMIT)?;
    let rate = goodput(&arrived)?;
    // `shortest` is one path: what payload it gets through the bottleneck is what headers leave of any link here.
    if selector == "shortest" {
        workspace.alone.entry(BOTTLENECK).or_default().push(rate);
    }
    let alone = workspace.alone.get(&BOTTLENECK).and_then(|rates| median(rates.iter().copied()));
    let payload_bound = alone.map(|alone| bound * alone / BOTTLENECK_BPS);
    Ok(Sample {
        figure: rate / 1e6,
        extra: payload_bound.map(|bound| 100.0 * rate / bound),
        more: vec![Some(100.0 * rate / bound), Some(100.0 * chosen / bound)],
        ..Sample::default()
    })
}

/// Bits a second: the maximum flow over all paths' links, and what the selector's choice would share fairly.
fn bounds(network: &PathsNetwork, selector: &str) -> Result<(f64, f64)> {
    let (from, to) = (SENDER.parse().map_err(nonsense)?, RECEIVER.parse().map_err(nonsense)?);
    let selector: Selector = selector.parse().map_err(nonsense)?;
    let paths = network.network.control().paths(from, to, SystemTime::now()).map_err(nonsense)?;
    let mut links: Vec<(Interface, Interface)> = paths.iter().flat_map(|path| path.links()).collect();
    links.sort_unstable();
    links.dedup();
    let topology = network.network.topology();
    let capacity = |(out, _): &(Interface, Interface)| {
        let end = topology.interface(*out)?;
        topology.links()[end.link].shapes[end.end].rate_bps
    };
    let capacities: Vec<u64> = links.iter().map(|link| capacity(link).unwrap_or(u64::from(u32::MAX))).collect();
    let mut network = FlowNetwork::default();
    for ((out, into), capacity) in links.iter().zip(&capacities) {
        network.add_link(out.isd_as, into.isd_as, *capacity);
    }
    let bound = network.max_flow(&from, &to).value as f64;
    let host = std::net::IpAddr::from([127, 0, 0, 1]);
    let candidate =
        |path: &anabranch_paths::ScionPath| Candidate::new(1, &Path::scion(host, host, path.clone().into()));
    let candidates: Vec<Candidate> = paths.iter().map(candidate).collect();
    let budget = Budget { connections: CONNECTIONS, per_peer: CONNECTIONS };
    let ways: Vec<Vec<usize>> = (selector.select(&candidates, &Scoreboard::default(), budget).chosen())
        .map(|index| paths[index].links().filter_map(|link| links.binary_search(&link).ok()).collect())
        .collect();
    let capacities: Vec<f64> = capacities.into_iter().map(|capacity| capacity as f64).collect();
    Ok((bound, fair_rates(&ways, &capacities).into_iter().sum()))
}
