//! `send` and `receive` over two paths that share their first link.

use anabranch_testbed::Result;

use super::arrivals::Arrivals;
use super::cross::CrossTraffic;
use super::network::{PathsNetwork, Protocol, RECEIVER, SENDER, Transfer};
use super::nonsense;
use crate::report::Sample;
use crate::workspace::Workspace;

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

/// Two paths with a common first link, while others use what comes behind it on one.
pub(super) fn shared(workspace: &mut Workspace) -> Result<Sample> {
    let network = PathsNetwork::new(SHARED)?;
    let flags = ["--paths", "2", "--selector", "all"];
    let ends = [SENDER, RECEIVER];
    let mut transfer = Transfer::start_by(Protocol::Bulk, workspace, &network, ends, SHARED_BYTES, &flags)?;
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
        more: vec![Some(100.0 * after / before), Some(shifted - zero - CROSS_BEGINS)],
        ..Sample::default()
    })
}
