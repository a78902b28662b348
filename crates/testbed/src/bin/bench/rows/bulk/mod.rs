//! Bulk transfer by `send` and `receive`, between two namespaces, beside what else moves files between hosts.

mod hosts;
mod links;
mod peers;

use anabranch_testbed::wire::Attack;

use super::{Spec, contender};
use crate::rows::Unit;

/// The rows, in the order in which they run.
pub(super) fn specs() -> Vec<Spec> {
    use Unit::{Mebibytes, MegabitsPerSecond, Percent, Seconds};
    let fast = |name, title, mut contenders: Vec<super::Contender>, mtu: u16| {
        contenders.extend(hosts::ours(mtu));
        let more = &["sender's peak MiB"][..];
        Spec { name, title, unit: MegabitsPerSecond, extra: Some("CPU s a GiB"), more, contenders }
    };
    vec![
        fast(
            "bulk",
            "a file from one host to another, in memory, veth with MTU 1500: payload rate, start of the programs included",
            vec![
                contender("UDP alone", |workspace| peers::udp(workspace, 1500)),
                contender("floor", |workspace| peers::udp_file(workspace, 1500)),
                contender("iperf3 (TCP)", |workspace| peers::iperf3(workspace, 1500)),
                contender("rsync", |workspace| peers::rsync(workspace, 1500)),
                contender("scp", |workspace| peers::scp(workspace, 1500)),
                contender("GridFTP", |workspace| peers::gridftp(workspace, 1500)),
            ],
            1500,
        ),
        fast(
            "bulk-9000",
            "the same with MTU 9000",
            vec![
                contender("UDP alone", |workspace| peers::udp(workspace, 9000)),
                contender("floor", |workspace| peers::udp_file(workspace, 9000)),
                contender("iperf3 (TCP)", |workspace| peers::iperf3(workspace, 9000)),
                contender("TLS (openssl to curl)", |workspace| peers::tls(workspace, 9000)),
                contender("rsync", |workspace| peers::rsync(workspace, 9000)),
                contender("scp", |workspace| peers::scp(workspace, 9000)),
                contender("GridFTP", |workspace| peers::gridftp(workspace, 9000)),
                contender("croc", |workspace| peers::croc(workspace, 9000)),
                contender("sendme", |workspace| peers::sendme(workspace, 9000)),
            ],
            9000,
        ),
        Spec {
            name: "bulk-small",
            title: "100,000 files of 1 KiB (10,000 of a content below 2 GiB) over 1 Gbit/s with 10 ms of round trip; scp fetches 500 of them, times the rest",
            unit: Seconds,
            extra: None,
            more: &[],
            contenders: vec![
                contender("rsync", |workspace| peers::small(workspace, peers::Copier::Rsync)),
                contender("scp", |workspace| peers::small(workspace, peers::Copier::Scp)),
                contender("tar over TCP", |workspace| peers::small(workspace, peers::Copier::Tar)),
                contender("ours", hosts::small),
            ],
        },
        Spec {
            name: "bulk-long",
            title: "1 Gbit/s with 194 ms of round trip: payload of what of it can be, once half is there (TCP and QUIC: from 5 to 20 s)",
            unit: Percent,
            extra: Some("seconds until 0.85"),
            more: &["Mbit/s in all"],
            contenders: vec![
                contender("TCP cubic", |workspace| links::long_tcp(workspace, "cubic", 0.0)),
                contender("TCP cubic, 0.001 % lost", |workspace| links::long_tcp(workspace, "cubic", 1e-5)),
                contender("TCP cubic, 0.1 % lost", |workspace| links::long_tcp(workspace, "cubic", 1e-3)),
                contender("TCP cubic, 1 % lost", |workspace| links::long_tcp(workspace, "cubic", 1e-2)),
                contender("TCP BBR", |workspace| links::long_tcp(workspace, "bbr", 0.0)),
                contender("TCP BBR, 0.1 % lost", |workspace| links::long_tcp(workspace, "bbr", 1e-3)),
                contender("TCP BBR, 1 % lost", |workspace| links::long_tcp(workspace, "bbr", 1e-2)),
                contender("QUIC cubic", |workspace| links::long_quic(workspace, "cubic", 0.0)),
                contender("QUIC cubic, 0.1 % lost", |workspace| links::long_quic(workspace, "cubic", 1e-3)),
                contender("QUIC BBR", |workspace| links::long_quic(workspace, "bbr", 0.0)),
                contender("QUIC BBR, 0.1 % lost", |workspace| links::long_quic(workspace, "bbr", 1e-3)),
                contender("QUIC BBR, 1 % lost", |workspace| links::long_quic(workspace, "bbr", 1e-2)),
                contender("ours, 0.001 % lost", |workspace| links::long(workspace, 1e-5)),
                contender("ours, 0.1 % lost", |workspace| links::long(workspace, 1e-3)),
                contender("ours, 1 % lost", |workspace| links::long(workspace, 1e-2)),
                contender("ours", |workspace| links::long(workspace, 0.0)),
            ],
        },
        Spec {
            name: "bulk-fair",
            title: "beside one flow of TCP cubic on 100 Mbit/s with 40 ms of round trip: part of what both get",
            unit: Percent,
            extra: Some("Jain's index"),
            more: &["Mbit/s of both", "paths"],
            contenders: vec![
                contender("ours, 4 paths", |workspace| links::fair(workspace, 4)),
                contender("ours, 2 paths", |workspace| links::fair(workspace, 2)),
                contender("ours", |workspace| links::fair(workspace, 1)),
            ],
        },
        Spec {
            name: "bulk-disk",
            title: "from the disk of the checkout, with nothing of it in the page cache, to the same disk, until synced",
            unit: Seconds,
            extra: Some("MiB in cache"),
            more: &[],
            contenders: vec![contender("cp", hosts::cp), contender("ours", hosts::disk)],
        },
        Spec {
            name: "bulk-memory",
            title: "a file of 200 GiB that is holes but for 1 MiB in each GiB: resident memory of the receiver",
            unit: Mebibytes,
            extra: Some("seconds"),
            more: &["sender's peak MiB"],
            contenders: vec![contender("2 GiB without holes", hosts::dense), contender("ours", hosts::sparse)],
        },
        Spec {
            name: "bulk-four",
            title: "one host to four behind a link of 1 Gbit/s with 10 ms of round trip: payload of what of it can be, all of the time from connecting on",
            unit: Percent,
            extra: Some("times that the file was read"),
            more: &["sender's peak MiB", "% with headers, until the last packet"],
            contenders: vec![
                contender("to one", |workspace| links::several(workspace, 1)),
                contender("ours", |workspace| links::several(workspace, 4)),
            ],
        },
        Spec {
            name: "bulk-hostile",
            title: "over 400 Mbit/s with 4 ms of round trip, and somebody does so to every packet in both directions: payload rate",
            unit: MegabitsPerSecond,
            extra: Some("CPU s a GiB"),
            more: &["sender's peak MiB"],
            contenders: vec![
                contender("replayed", |workspace| links::hostile(workspace, Some(Attack::Replay))),
                contender("forged", |workspace| links::hostile(workspace, Some(Attack::Forge))),
                contender("truncated", |workspace| links::hostile(workspace, Some(Attack::Truncate))),
                contender("reordered", |workspace| links::hostile(workspace, Some(Attack::Reorder))),
                contender("all of it", |workspace| links::hostile(workspace, Some(Attack::All))),
                contender("ours", |workspace| links::hostile(workspace, None)),
            ],
        },
    ]
}
