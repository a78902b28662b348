//! `send` and `receive` over several paths: disjoint ones, and two that share their first link.

use std::time::Duration;

use anabranch_testbed::Result;

use super::arrivals::Arrivals;
use super::cross::CrossTraffic;
use super::network::{PathsNetwork, RECEIVER, SENDER, Transfer, Wire, parallel};
use super::nonsense;
use super::steady::{SECONDS, goodput};
use crate::report::{Sample, median};
use crate::workspace::Workspace;

const LIMIT: Duration = Duration::from_secs(180);

/// The paper's Fig. 7 at a hundredth of its rates: everything comes through the first link; behind it there are two.
const SHARED_MBPS: u32 = 100;
const SHARED: &str = "
    [as.'1-ff00:0:1']
    core = true
    [as.'1-ff00:0:110']
    [as.'1-ff00:0:111']
    [defaults]
    rate = '100 Mbit/s'
    delay = '5 ms'
    [[link]]
    parent = '1-ff00:0:1'
    child = '1-ff00:0:110'
    [[link]]
    parent = '1-ff00:0:1'
    child = '1-ff00:0:111'
    count = 2
";
const MIDDLE: &str = "1-ff00:0:1";
/// One of the two links, and what others send over it.
const CROSSED: usize = 1;
const CROSS_MBPS: u32 = 85;
/// More than is fetched before it is stopped.
const SHARED_BYTES: u64 = 700 << 20;
/// Seconds from when payload flows: when others come, and go; and the end.
const CROSS_BEGINS: f64 = 10.0;
const CROSS_ENDS: f64 = 20.0;
const CALM_ENDS: f64 = 28.0;
/// After a change, rates count from here on.
const SETTLE: f64 = 2.0;
/// What has shifted carries this part of what it carries then, over so many seconds.
const SHIFTED: f64 = 0.9;
const SHIFTED_WINDOW: f64 = 0.5;

/// One file over these links, each a path.
pub(super) fn disjoint(workspace: &mut Workspace, wires: &[Wire]) -> Result<Sample> {
    let network = parallel(wires)?;
    let bytes = wires.iter().map(|wire| u64::from(wire.rate_mbps.unwrap_or(0)) * 125_000 * SECONDS).sum();
    let paths = wires.len().to_string();
    let arrived =
        Transfer::send(workspace, &network, [SENDER, RECEIVER], bytes, &["--paths", &paths])?.finish(LIMIT)?;
    let rate = goodput(&arrived)?;
    // What each path carries alone was measured before, in this run of the bench.
    let alone = |wire: &Wire| median(workspace.alone_bulk.get(&(wire.rate_mbps, wire.delay_ms))?.iter().copied());
    let sum: Option<f64> = wires.iter().map(alone).sum();
    if let [wire] = wires {
        workspace.alone_bulk.entry((wire.rate_mbps, wire.delay_ms)).or_default().push(rate);
    }
    Ok(Sample {
        figure: rate / 1e6,
        extra: sum.filter(|_| wires.len() > 1).map(|sum| 100.0 * rate / sum),
        more: [Some(arrived.usage.wall.as_secs_f64()), None],
        cpu_fetch: Some(arrived.usage.cpu().as_secs_f64()),
        cpu_share: Some(arrived.sharer_cpu.as_secs_f64()),
        ..Sample::default()
    })
}

/// Two paths with a common first link, while others use what comes behind it on one.
pub(super) fn shared(workspace: &mut Workspace) -> Result<Sample> {
    let network = PathsNetwork::new(SHARED)?;
    let mut transfer =
        Transfer::send(workspace, &network, [SENDER, RECEIVER], SHARED_BYTES, &["--paths", "2", "--selector", "all"])?;
    let zero = transfer.wait_flowing()?;
    transfer.sleep_until(zero + CROSS_BEGINS);
    let others = CrossTraffic::between(&network, [MIDDLE, RECEIVER], CROSSED, CROSS_MBPS)?;
    transfer.sleep_until(zero + CROSS_ENDS);
    drop(others);
    transfer.sleep_until(zero + CALM_ENDS);
    let arrived = transfer.stop()?;
    let arrivals = Arrivals::all(&arrived.log);
    let rate = |from: f64, to: f64| arrivals.rate(zero + from, zero + to);
    let (before, after) = (rate(2.0 * SETTLE, CROSS_BEGINS), rate(CROSS_ENDS + SETTLE, CALM_ENDS));
    // The free link alone takes as much as the first: nothing of what could be had is taken away.
    let meanwhile = rate(CROSS_BEGINS + SETTLE, CROSS_ENDS);
    let shifted = arrivals.first_at_rate(zero + CROSS_BEGINS, SHIFTED * before, SHIFTED_WINDOW);
    let shifted = shifted.ok_or_else(|| nonsense("it never shifted"))?;
    Ok(Sample {
        figure: 100.0 * meanwhile / before,
        extra: Some(100.0 * before * 8.0 / (f64::from(SHARED_MBPS) * 1e6)),
        more: [Some(100.0 * after / before), Some(shifted - zero - CROSS_BEGINS)],
        ..Sample::default()
    })
}
