//! Rows about links that change while a transfer runs: cross traffic, a cut.

use anabranch_testbed::Result;

use super::arrivals::Arrivals;
use super::cross::CrossTraffic;
use super::network::{RECEIVER, SENDER, Transfer, Wire, parallel};
use super::nonsense;
use crate::report::Sample;
use crate::workspace::Workspace;

/// Both links.
const RATE_MBPS: u32 = 20;
const DELAY_MS: u32 = 10;
/// Of others, over one link.
const CROSS_MBPS: u32 = 10;
/// More than either row fetches before it is stopped.
const BYTES: u64 = 300 << 20;
/// The moments of the row about cross traffic, seconds from when payload flows: as in the thesis, then both, then none.
const CROSS_ON_ONE: f64 = 10.0;
const CROSS_ON_BOTH: f64 = 20.0;
const CROSS_ENDS: f64 = 30.0;
const CALM_ENDS: f64 = 37.0;
/// After a change, rates count from here on.
const SETTLE: f64 = 2.0;
/// When a link is cut, and until when.
const CUT: f64 = 6.0;
const MENDED: f64 = 11.0;
const FAILOVER_ENDS: f64 = 16.0;
/// What has recovered carries this share of what it carried before, over so many seconds.
const RECOVERED_SHARE: f64 = 0.95;
const RECOVERED_WINDOW: f64 = 0.5;

/// Two paths while others come and go.
pub(super) fn congestion(workspace: &mut Workspace) -> Result<Sample> {
    let network = parallel(&[Wire::new(RATE_MBPS, DELAY_MS); 2])?;
    let mut transfer = Transfer::start(workspace, &network, [SENDER, RECEIVER], BYTES, &["--paths", "2"])?;
    let zero = transfer.wait_flowing()?;
    transfer.sleep_until(zero + CROSS_ON_ONE);
    let first = CrossTraffic::start(&network, 0, CROSS_MBPS)?;
    transfer.sleep_until(zero + CROSS_ON_BOTH);
    let second = CrossTraffic::start(&network, 1, CROSS_MBPS)?;
    transfer.sleep_until(zero + CROSS_ENDS);
    drop((first, second));
    transfer.sleep_until(zero + CALM_ENDS);
    let arrived = transfer.stop()?;
    let arrivals = Arrivals::all(&arrived.log);
    let rate = |from: f64, to: f64| arrivals.rate(zero + from, zero + to);
    // What payload two undisturbed links carry; of that, others leave three quarters, then half.
    let undisturbed = rate(2.0 * SETTLE, CROSS_ON_ONE);
    let links = f64::from(2 * RATE_MBPS);
    let left = |cross: u32| undisturbed * (links - f64::from(cross)) / links;
    let recovered = arrivals.first_at_rate(zero + CROSS_ENDS, RECOVERED_SHARE * undisturbed, RECOVERED_WINDOW);
    Ok(Sample {
        figure: 100.0 * rate(CROSS_ON_ONE + SETTLE, CROSS_ON_BOTH) / left(CROSS_MBPS),
        extra: Some(100.0 * rate(CROSS_ON_BOTH + SETTLE, CROSS_ENDS) / left(2 * CROSS_MBPS)),
        more: vec![
            Some(100.0 * undisturbed * 8.0 / (links * 1e6)),
            recovered.map(|at| at + RECOVERED_WINDOW - zero - CROSS_ENDS),
        ],
        ..Sample::default()
    })
}

/// One of two links goes, and comes back.
pub(super) fn failover(workspace: &mut Workspace) -> Result<Sample> {
    let network = parallel(&[Wire::new(RATE_MBPS, DELAY_MS); 2])?;
    let mut transfer = Transfer::start(workspace, &network, [SENDER, RECEIVER], BYTES, &["--paths", "2"])?;
    let zero = transfer.wait_flowing()?;
    transfer.sleep_until(zero + CUT);
    network.network.set_link_up(0, false).map_err(nonsense)?;
    let cut = transfer.seconds();
    transfer.sleep_until(zero + MENDED);
    network.network.set_link_up(0, true).map_err(nonsense)?;
    let mended = transfer.seconds();
    transfer.sleep_until(zero + FAILOVER_ENDS);
    let arrived = transfer.stop()?;
    // The path that is left is the one that carries more while the other is cut.
    let during = |at: &usize| Arrivals::over(&arrived.log.series[*at]).rate(cut + 1.0, mended);
    let carrying = (0..arrived.log.series.len()).filter(|at| during(at) > 0.0);
    let left = carrying.max_by(|a, b| during(a).total_cmp(&during(b))).ok_or_else(|| nonsense("nothing came"))?;
    let before = Arrivals::over(&arrived.log.series[left]).rate(cut - 3.0, cut);
    let all = Arrivals::all(&arrived.log);
    let back = (0..arrived.log.series.len()).filter(|at| *at != left).filter_map(|at| {
        let path = Arrivals::over(&arrived.log.series[at]);
        // A quarter of what it can carry: more than what was still under way.
        path.first_at_rate(mended, before / 4.0, RECOVERED_WINDOW)
    });
    Ok(Sample {
        figure: 1e3 * all.longest_gap(cut - 0.1, cut + 3.0),
        extra: Some(100.0 * all.rate(cut + 1.0, mended) / before),
        more: vec![back.reduce(f64::min).map(|at| at - mended)],
        ..Sample::default()
    })
}
