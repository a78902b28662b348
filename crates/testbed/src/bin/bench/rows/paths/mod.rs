//! Several paths to one peer, over networks that run in this process with links of known rates.
//!
//! The programs are driven by their flags, and what arrived over which path is read from the path log of the side that
//! fetches. Only payload counts: at 20 Mbit/s and packets of 1472 bytes, the headers of SCION, QUIC and BitTorrent take about
//! a tenth, so rates are compared with what one path alone carried in the same run of the bench, not with the links' rates.
//!
//! | module | what |
//! | --- | --- |
//! | `network` | a network, and programs on its hosts |
//! | `arrivals` | what a path log says of rates and gaps |
//! | `cross` | traffic of others |
//! | `steady` | rows about links that stay as they are |
//! | `upset` | rows about links that change meanwhile |
//! | `bulk` | `send` and `receive` over links that change meanwhile |
//! | `swarm` | many who fetch at once |
//! | `select` | choosing alone |

mod arrivals;
mod bulk;
mod cross;
mod network;
mod select;
mod steady;
mod swarm;
mod upset;

use anabranch_testbed::{Error, Result};

use super::Unit::{MegabitsPerSecond, Milliseconds, Percent, Seconds};
use super::{Spec, contender};
use crate::report::Sample;
use crate::workspace::Workspace;
pub(crate) use network::Protocol;
use network::Wire;

/// What these rows say went wrong.
fn nonsense(what: impl std::fmt::Display) -> Error {
    Error::Nonsense { name: "the paths".into(), what: what.to_string() }
}

const WIRE_20: Wire = Wire::new(20, 5);

/// One transfer over these links, as a torrent.
fn aggregate(workspace: &mut Workspace, wires: &[Wire]) -> Result<Sample> {
    steady::aggregate(Protocol::BitTorrent, workspace, wires)
}

/// The same by PPSPP.
fn streamed(workspace: &mut Workspace, wires: &[Wire]) -> Result<Sample> {
    steady::aggregate(Protocol::Ppspp, workspace, wires)
}

/// The same by `send` and `receive`.
fn sent(workspace: &mut Workspace, wires: &[Wire]) -> Result<Sample> {
    steady::aggregate(Protocol::Bulk, workspace, wires)
}

/// The rows, in the order in which they run.
pub(super) fn specs() -> Vec<Spec> {
    vec![
        streamed_over_two(),
        streamed_over_four(),
        aggregation(),
        congestion(),
        failover(),
        overlap(),
        cpu(),
        selection(),
        crowd(),
        bulk_disjoint(),
        bulk_shared(),
    ]
}

fn aggregation() -> Spec {
    Spec {
        name: "paths-aggregation",
        title: "disjoint paths between two ASes: payload rate, and its share of what these paths carry one by one",
        unit: MegabitsPerSecond,
        extra: Some("% of the paths one by one"),
        more: &["seconds in all"],
        contenders: vec![
            contender("1 x 20 Mbit/s", |workspace| aggregate(workspace, &[WIRE_20])),
            contender("1 x 100 Mbit/s", |workspace| aggregate(workspace, &[Wire::new(100, 5)])),
            contender("1 x 10 Mbit/s", |workspace| aggregate(workspace, &[Wire::new(10, 5)])),
            contender("1 x 50 Mbit/s", |workspace| aggregate(workspace, &[Wire::new(50, 5)])),
            contender("1 x 30 Mbit/s", |workspace| aggregate(workspace, &[Wire::new(30, 5)])),
            contender("1 x 5 Mbit/s", |workspace| aggregate(workspace, &[Wire::new(5, 5)])),
            contender("1 x 20 Mbit/s, RTT 150 ms", |workspace| aggregate(workspace, &[Wire::new(20, 75)])),
            contender("2 x 20", |workspace| aggregate(workspace, &[WIRE_20; 2])),
            contender("4 x 20", |workspace| aggregate(workspace, &[WIRE_20; 4])),
            contender("8 x 20", |workspace| aggregate(workspace, &[WIRE_20; 8])),
            contender("100 + 10", |workspace| aggregate(workspace, &[Wire::new(100, 5), Wire::new(10, 5)])),
            contender("50 + 30 + 5", |workspace| {
                aggregate(workspace, &[Wire::new(50, 5), Wire::new(30, 5), Wire::new(5, 5)])
            }),
            contender("20 + 20, RTT 10 + 150 ms", |workspace| aggregate(workspace, &[WIRE_20, Wire::new(20, 75)])),
        ],
    }
}

fn streamed_over_two() -> Spec {
    Spec {
        name: "ppspp-paths-2",
        title: "a file by PPSPP in chunks of 1 KiB over one and two paths of SCION: payload rate, and its share of what these paths carry \
                one by one",
        unit: MegabitsPerSecond,
        extra: Some("% of the paths one by one"),
        more: &["seconds in all"],
        contenders: vec![
            contender("1 x 20 Mbit/s", |workspace| streamed(workspace, &[WIRE_20])),
            contender("1 x 50 Mbit/s", |workspace| streamed(workspace, &[Wire::new(50, 5)])),
            contender("1 x 20 Mbit/s, RTT 150 ms", |workspace| streamed(workspace, &[Wire::new(20, 75)])),
            contender("2 x 20", |workspace| streamed(workspace, &[WIRE_20; 2])),
            contender("50 + 20", |workspace| streamed(workspace, &[Wire::new(50, 5), WIRE_20])),
            contender("20 + 20, RTT 10 + 150 ms", |workspace| streamed(workspace, &[WIRE_20, Wire::new(20, 75)])),
        ],
    }
}

fn streamed_over_four() -> Spec {
    Spec {
        name: "ppspp-paths-4",
        title: "the same over four paths",
        unit: MegabitsPerSecond,
        extra: Some("% of the paths one by one"),
        more: &["seconds in all"],
        contenders: vec![
            contender("1 x 20 Mbit/s", |workspace| streamed(workspace, &[WIRE_20])),
            contender("1 x 10 Mbit/s", |workspace| streamed(workspace, &[Wire::new(10, 5)])),
            contender("4 x 20", |workspace| streamed(workspace, &[WIRE_20; 4])),
            contender("20 + 20 + 10 + 10", |workspace| {
                streamed(workspace, &[WIRE_20, WIRE_20, Wire::new(10, 5), Wire::new(10, 5)])
            }),
        ],
    }
}

fn congestion() -> Spec {
    Spec {
        name: "paths-congestion",
        title: "two paths of 20 Mbit/s, 10 Mbit/s of cross traffic on one from 10 s to 20 s, then on both to 30 s: payload rate \
                while there is some on one, of what is left free",
        unit: Percent,
        extra: Some("% on both"),
        more: &["% on none, before", "s to recover"],
        contenders: vec![contender("disjoint", upset::congestion)],
    }
}

fn failover() -> Spec {
    Spec {
        name: "paths-failover",
        title: "one of two paths of 20 Mbit/s is cut for five seconds: longest gap in what arrives",
        unit: Milliseconds,
        extra: Some("% of the other path's rate, from 1 s on"),
        more: &["s until the cut path carries again"],
        contenders: vec![contender("disjoint", upset::failover)],
    }
}

fn overlap() -> Spec {
    use steady::overlap;
    Spec {
        name: "paths-overlap",
        title: "32 paths over three bottlenecks of 20 Mbit/s, four connections: payload rate",
        unit: MegabitsPerSecond,
        extra: Some("% of the max-flow bound, in payload"),
        more: &["% of it, headers counted", "% by the choice alone"],
        contenders: vec![
            contender("shortest", |workspace| overlap(workspace, "shortest")),
            contender("all", |workspace| overlap(workspace, "all")),
            contender("disjoint-paper", |workspace| overlap(workspace, "disjoint-paper")),
            contender("disjoint", |workspace| overlap(workspace, "disjoint")),
        ],
    }
}

fn cpu() -> Spec {
    use steady::cpu;
    Spec {
        name: "paths-cpu",
        title: "CPU time of both ends over one path and over four: payload rate",
        unit: MegabitsPerSecond,
        extra: Some("CPU s per GiB"),
        more: &[],
        contenders: vec![
            contender("1 x 400 Mbit/s", |workspace| cpu(workspace, &[Wire::new(400, 2)])),
            contender("4 x 100 Mbit/s", |workspace| cpu(workspace, &[Wire::new(100, 2); 4])),
            contender("1 unlimited", |workspace| cpu(workspace, &[Wire::UNLIMITED])),
            contender("4 unlimited", |workspace| cpu(workspace, &[Wire::UNLIMITED; 4])),
        ],
    }
}

fn selection() -> Spec {
    use select::select;
    Spec {
        name: "paths-select",
        title: "choosing for 200 peers with 50 paths each",
        unit: Milliseconds,
        extra: Some("chosen"),
        more: &[],
        contenders: vec![
            contender("disjoint, 64 connections", |_| select("disjoint", 64)),
            contender("disjoint, 800 connections", |_| select("disjoint", 800)),
            contender("disjoint-paper, 800 connections", |_| select("disjoint-paper", 800)),
        ],
    }
}

fn crowd() -> Spec {
    use swarm::swarm;
    Spec {
        name: "paths-swarm",
        title: "one seeder, 16 leechers in 8 ASes: mean time to completion",
        unit: Seconds,
        extra: Some("fairness, % (Jain)"),
        more: &["starved"],
        contenders: vec![
            contender("disjoint, 3 connections", |workspace| swarm(workspace, "disjoint", 3)),
            contender("disjoint-paper, 3 connections", |workspace| swarm(workspace, "disjoint-paper", 3)),
            contender("shortest, 3 connections", |workspace| swarm(workspace, "shortest", 3)),
            contender("disjoint, 6 connections", |workspace| swarm(workspace, "disjoint", 6)),
            contender("disjoint-paper, 6 connections", |workspace| swarm(workspace, "disjoint-paper", 6)),
            contender("shortest, 6 connections", |workspace| swarm(workspace, "shortest", 6)),
            contender("disjoint, 10 connections", |workspace| swarm(workspace, "disjoint", 10)),
            contender("disjoint-paper, 10 connections", |workspace| swarm(workspace, "disjoint-paper", 10)),
            contender("shortest, 10 connections", |workspace| swarm(workspace, "shortest", 10)),
        ],
    }
}

fn bulk_disjoint() -> Spec {
    Spec {
        name: "bulk-paths",
        title: "`send` and `receive` over disjoint paths between two ASes: payload rate, and its share of what these paths carry one by one",
        unit: MegabitsPerSecond,
        extra: Some("% of the paths one by one"),
        more: &["seconds in all"],
        contenders: vec![
            contender("1 x 20 Mbit/s", |workspace| sent(workspace, &[WIRE_20])),
            contender("1 x 100 Mbit/s", |workspace| sent(workspace, &[Wire::new(100, 5)])),
            contender("1 x 10 Mbit/s", |workspace| sent(workspace, &[Wire::new(10, 5)])),
            contender("1 x 50 Mbit/s", |workspace| sent(workspace, &[Wire::new(50, 5)])),
            contender("1 x 30 Mbit/s", |workspace| sent(workspace, &[Wire::new(30, 5)])),
            contender("1 x 5 Mbit/s", |workspace| sent(workspace, &[Wire::new(5, 5)])),
            contender("1 x 20 Mbit/s, RTT 150 ms", |workspace| sent(workspace, &[Wire::new(20, 75)])),
            contender("2 x 20", |workspace| sent(workspace, &[WIRE_20; 2])),
            contender("4 x 20", |workspace| sent(workspace, &[WIRE_20; 4])),
            contender("8 x 20", |workspace| sent(workspace, &[WIRE_20; 8])),
            contender("100 + 10", |workspace| sent(workspace, &[Wire::new(100, 5), Wire::new(10, 5)])),
            contender("50 + 30 + 5", |workspace| {
                sent(workspace, &[Wire::new(50, 5), Wire::new(30, 5), Wire::new(5, 5)])
            }),
            contender("20 + 20, RTT 10 + 150 ms", |workspace| sent(workspace, &[WIRE_20, Wire::new(20, 75)])),
        ],
    }
}

fn bulk_shared() -> Spec {
    Spec {
        name: "bulk-shared",
        title: "two paths with one first link of 100 Mbit/s, 85 Mbit/s of cross traffic behind it on one from 10 s to 20 s: payload rate meanwhile, \
                of that before",
        unit: Percent,
        extra: Some("% of the link, before"),
        more: &["% of before, after", "s to shift"],
        contenders: vec![contender("ours", bulk::shared)],
    }
}
