//! The rows and their contenders.

mod bulk;
mod daemon;
mod datagram;
mod dht;
mod disk;
mod first_byte;
mod live;
mod many;
mod multihome;
mod paths;
mod ppspp;
mod quic;
mod router;
mod scion;
mod stream_links;
mod streams;
mod transfer;

use anabranch_testbed::Result;
use anabranch_testbed::wire::Family;
pub(crate) use paths::Protocol;

use crate::report::Sample;
use crate::workspace::Workspace;

/// What a row's figure is in.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    /// Wall time; less is better.
    Seconds,
    /// Resident memory, MiB; less is better.
    Mebibytes,
    /// Payload rate; more is better.
    MegabitsPerSecond,
    /// Packets, in thousands; more is better.
    KilopacketsPerSecond,
    /// CPU time of one step; less is better.
    Nanoseconds,
    /// Time against what an echo takes; less is better.
    RoundTrips,
    /// Wall time; less is better.
    Milliseconds,
    /// Of what could be.
    Percent,
    /// What passes; less is better.
    BytesPerSecond,
}

impl Unit {
    /// For the head of the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Mebibytes => "MiB",
            Self::MegabitsPerSecond => "Mbit/s",
            Self::KilopacketsPerSecond => "1000 packets/s",
            Self::Nanoseconds => "ns",
            Self::RoundTrips => "round trips",
            Self::Milliseconds => "ms",
            Self::Percent => "%",
            Self::BytesPerSecond => "B/s",
        }
    }
}

/// One way to do what a row measures.
pub(crate) struct Contender {
    /// In the table; ours is called `ours`.
    pub name: &'static str,
    /// Does it once.
    pub run: fn(&mut Workspace) -> Result<Sample>,
}

/// One thing measured.
pub(crate) struct Spec {
    /// On the command line.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// Of the figure.
    pub unit: Unit,
    /// Name of the second figure, if any.
    pub extra: Option<&'static str>,
    /// Names of further figures.
    pub more: &'static [&'static str],
    /// In the order in which they run.
    pub contenders: Vec<Contender>,
}

fn contender(name: &'static str, run: fn(&mut Workspace) -> Result<Sample>) -> Contender {
    Contender { name, run }
}

/// One QUIC stream over every way, with packets of up to `MTU` bytes.
fn quic_ways<const MTU: u16>() -> Vec<Contender> {
    use quic::Route;
    vec![
        contender("UDP/IP, BBR", |workspace| quic::stream(workspace, Route::Ip, "bbr", MTU)),
        contender("inside an AS", |workspace| quic::stream(workspace, Route::InsideAs, "cubic", MTU)),
        contender("over a router pair", |workspace| quic::stream(workspace, Route::RouterPair, "cubic", MTU)),
        contender("ours", |workspace| quic::stream(workspace, Route::Ip, "cubic", MTU)),
    ]
}

/// All rows, in the order in which they run.
pub(crate) fn all() -> Vec<Spec> {
    use Unit::{
        BytesPerSecond, KilopacketsPerSecond, Mebibytes, MegabitsPerSecond, Milliseconds, Nanoseconds, Percent,
        RoundTrips, Seconds,
    };
    use disk::Content::{Cold, Memory, Warm};
    use multihome::From;
    use router::Passed;
    use scion::{Down, Impairment};
    use transfer::Client::{Libtorrent, LibtorrentUtp, Ours, OursUtp, Rqbit};
    use transfer::OnDisk;
    const V4: From = From::Ours(Family::V4);
    const V6: From = From::Ours(Family::V6);
    let spec = |name, title, unit, extra, contenders| Spec { name, title, unit, extra, more: &[], contenders };
    let over_links = |name, title, contenders| Spec {
        more: &["queue, ms (99th percentile)", "% of it payload"],
        ..spec(name, title, Percent, Some("seconds until 0.9"), contenders)
    };
    let mut specs = vec![
        spec(
            "loopback-v1",
            "one seeder to one leecher, v1, 1 MiB pieces, loopback, in memory",
            Seconds,
            None,
            vec![
                contender("libtorrent", |workspace| {
                    transfer::loopback(workspace, "1", Libtorrent, Libtorrent, OnDisk::Neither)
                }),
                contender("rqbit", |workspace| transfer::loopback(workspace, "1", Rqbit, Rqbit, OnDisk::Neither)),
                contender("floor", |workspace| transfer::floor(workspace, "cached", OnDisk::Neither)),
                contender("ours", |workspace| transfer::loopback(workspace, "1", Ours, Ours, OnDisk::Neither)),
            ],
        ),
        spec(
            "loopback-v2",
            "the same, v2",
            Seconds,
            None,
            vec![
                contender("libtorrent", |workspace| {
                    transfer::loopback(workspace, "2", Libtorrent, Libtorrent, OnDisk::Neither)
                }),
                contender("ours", |workspace| transfer::loopback(workspace, "2", Ours, Ours, OnDisk::Neither)),
            ],
        ),
        spec(
            "interop",
            "the same, v1, between libtorrent and ours",
            Seconds,
            None,
            vec![
                contender("libtorrent to itself", |workspace| {
                    transfer::loopback(workspace, "1", Libtorrent, Libtorrent, OnDisk::Neither)
                }),
                contender("libtorrent to ours", |workspace| {
                    transfer::loopback(workspace, "1", Libtorrent, Ours, OnDisk::Neither)
                }),
                contender("ours to libtorrent", |workspace| {
                    transfer::loopback(workspace, "1", Ours, Libtorrent, OnDisk::Neither)
                }),
                contender("ours", |workspace| transfer::loopback(workspace, "1", Ours, Ours, OnDisk::Neither)),
            ],
        ),
        spec(
            "first-byte",
            "clients as they are installed, found by a tracker alone: from the start of who fetches to its first byte",
            Seconds,
            Some("MB/s from then on"),
            first_byte::contenders(),
        ),
        spec(
            "utp",
            "one seeder to one leecher over uTP alone, v1, loopback, in memory",
            Seconds,
            None,
            vec![
                contender("libtorrent to itself", |workspace| {
                    transfer::loopback(workspace, "1", LibtorrentUtp, LibtorrentUtp, OnDisk::Neither)
                }),
                contender("libtorrent to ours", |workspace| {
                    transfer::loopback(workspace, "1", LibtorrentUtp, OursUtp, OnDisk::Neither)
                }),
                contender("ours to libtorrent", |workspace| {
                    transfer::loopback(workspace, "1", OursUtp, LibtorrentUtp, OnDisk::Neither)
                }),
                contender("ours over TCP", |workspace| transfer::loopback(workspace, "1", Ours, Ours, OnDisk::Neither)),
                contender("ours", |workspace| transfer::loopback(workspace, "1", OursUtp, OursUtp, OnDisk::Neither)),
            ],
        ),
        spec(
            "dht-lookup",
            "a newcomer among 1,000 nodes of the DHT at 100 ms round trip, half of them libtorrent's: until it knows of the one who shares a content",
            Seconds,
            None,
            vec![
                contender("libtorrent", |workspace| dht::lookup(workspace, dht::Node::Libtorrent)),
                contender("ours", |workspace| dht::lookup(workspace, dht::Node::Ours)),
            ],
        ),
        spec(
            "dht-idle",
            "a node among the same that has joined and rests: what passes both ways, with all headers",
            BytesPerSecond,
            None,
            vec![
                contender("libtorrent", |workspace| dht::idle(workspace, dht::Node::Libtorrent)),
                contender("ours", |workspace| dht::idle(workspace, dht::Node::Ours)),
            ],
        ),
        spec(
            "utp-beside-tcp",
            "a flow of TCP over 20 Mbit/s at 60 ms round trip, beside a transfer that has had the wire for ten seconds: the flow's rate",
            MegabitsPerSecond,
            None,
            vec![
                contender("nothing beside", |workspace| transfer::tcp_beside(workspace, None)),
                contender("libtorrent over TCP", |workspace| transfer::tcp_beside(workspace, Some(Libtorrent))),
                contender("libtorrent over uTP", |workspace| transfer::tcp_beside(workspace, Some(LibtorrentUtp))),
                contender("ours over TCP", |workspace| transfer::tcp_beside(workspace, Some(Ours))),
                contender("ours over uTP", |workspace| transfer::tcp_beside(workspace, Some(OursUtp))),
            ],
        ),
        spec(
            "long-wire",
            "one connection over 1 Gbit/s at 100 ms round trip, v1: payload rate once the window is open",
            MegabitsPerSecond,
            Some("seconds in all"),
            vec![
                contender("bare TCP", transfer::bare_over_wire),
                contender("libtorrent", |workspace| transfer::over_wire(workspace, Libtorrent)),
                contender("rqbit", |workspace| transfer::over_wire(workspace, Rqbit)),
                contender("libtorrent over uTP", |workspace| transfer::over_wire(workspace, LibtorrentUtp)),
                contender("ours over uTP", |workspace| transfer::over_wire(workspace, OursUtp)),
                contender("ours", |workspace| transfer::over_wire(workspace, Ours)),
            ],
        ),
        spec(
            "multihome",
            "two hosts joined by two links, 10 ms round trip: payload rate over both, started together",
            MegabitsPerSecond,
            Some("% of the links one by one"),
            vec![
                contender("100 + 50 Mbit/s", |workspace| multihome::both(workspace, [100, 50], V4)),
                contender("50 + 50", |workspace| multihome::both(workspace, [50, 50], V4)),
                contender("100 + 50, IPv6", |workspace| multihome::both(workspace, [100, 50], V6)),
                contender("100 + 50, libtorrent", |workspace| {
                    multihome::both(workspace, [100, 50], From::LibtorrentTwice)
                }),
                contender("the same, one address", |workspace| {
                    multihome::both(workspace, [100, 50], From::LibtorrentOnce)
                }),
                contender("1 web seed", |workspace| multihome::both(workspace, [100, 50], From::Web(1))),
                contender("4 web seeds", |workspace| multihome::both(workspace, [100, 50], From::Web(4))),
            ],
        ),
        spec(
            "create-v1",
            "create a v1 torrent, 1 MiB pieces, file in memory",
            Seconds,
            None,
            vec![
                contender("libtorrent", |workspace| disk::libtorrent_create(workspace, "1", Memory)),
                contender("transmission-create", disk::transmission_create),
                contender("read only", |workspace| disk::read_only(workspace, "cached", Memory)),
                contender("ours", |workspace| disk::ours_create(workspace, "1", Memory)),
            ],
        ),
        spec(
            "create-v2",
            "the same, v2",
            Seconds,
            None,
            vec![
                contender("libtorrent", |workspace| disk::libtorrent_create(workspace, "2", Memory)),
                contender("ours", |workspace| disk::ours_create(workspace, "2", Memory)),
            ],
        ),
        spec(
            "verify-v1",
            "verify a file in memory against its v1 torrent",
            Seconds,
            None,
            vec![
                contender("libtorrent", |workspace| disk::libtorrent_verify(workspace, "1", Memory)),
                contender("rqbit", disk::rqbit_verify),
                contender("read only", |workspace| disk::read_only(workspace, "cached", Memory)),
                contender("ours", |workspace| disk::ours_verify(workspace, "1", Memory)),
            ],
        ),
        spec(
            "verify-v2",
            "the same, v2",
            Seconds,
            None,
            vec![
                contender("libtorrent", |workspace| disk::libtorrent_verify(workspace, "2", Memory)),
                contender("ours", |workspace| disk::ours_verify(workspace, "2", Memory)),
            ],
        ),
        spec(
            "disk-get",
            "one seeder to one leecher, v1, from memory to the disk of the checkout, until all is verified (ours and the floors: and synced)",
            Seconds,
            Some("MiB in cache"),
            vec![
                contender("libtorrent", |workspace| {
                    transfer::loopback(workspace, "1", Libtorrent, Libtorrent, OnDisk::Fetched)
                }),
                contender("floor, cached", |workspace| transfer::floor(workspace, "cached", OnDisk::Fetched)),
                contender("floor", |workspace| transfer::floor(workspace, "direct", OnDisk::Fetched)),
                contender("ours", |workspace| transfer::loopback(workspace, "1", Ours, Ours, OnDisk::Fetched)),
            ],
        ),
        spec(
            "disk-share",
            "the same, from the disk, with nothing of it in the page cache, to memory",
            Seconds,
            Some("MiB in cache"),
            vec![
                contender("libtorrent", |workspace| {
                    transfer::loopback(workspace, "1", Libtorrent, Libtorrent, OnDisk::Shared)
                }),
                contender("floor", |workspace| transfer::floor(workspace, "cached", OnDisk::Shared)),
                contender("ours", |workspace| transfer::loopback(workspace, "1", Ours, Ours, OnDisk::Shared)),
            ],
        ),
        spec(
            "disk-create-cold",
            "create a v1 torrent, 1 MiB pieces, file on the disk and not in the page cache",
            Seconds,
            Some("MiB in cache"),
            vec![
                contender("libtorrent", |workspace| disk::libtorrent_create(workspace, "1", Cold)),
                contender("read only, cached", |workspace| disk::read_only(workspace, "cached", Cold)),
                contender("read only", |workspace| disk::read_only(workspace, "direct", Cold)),
                contender("ours, v2", |workspace| disk::ours_create(workspace, "2", Cold)),
                contender("ours", |workspace| disk::ours_create(workspace, "1", Cold)),
            ],
        ),
        spec(
            "disk-create-warm",
            "the same, file in the page cache",
            Seconds,
            Some("MiB in cache"),
            vec![
                contender("libtorrent", |workspace| disk::libtorrent_create(workspace, "1", Warm)),
                contender("read only", |workspace| disk::read_only(workspace, "cached", Warm)),
                contender("ours", |workspace| disk::ours_create(workspace, "1", Warm)),
            ],
        ),
        spec(
            "disk-verify-cold",
            "verify a file on the disk, not in the page cache, against its v1 torrent",
            Seconds,
            Some("MiB in cache"),
            vec![
                contender("libtorrent", |workspace| disk::libtorrent_verify(workspace, "1", Cold)),
                contender("read only", |workspace| disk::read_only(workspace, "direct", Cold)),
                contender("ours", |workspace| disk::ours_verify(workspace, "1", Cold)),
            ],
        ),
        spec(
            "disk-verify-warm",
            "the same, file in the page cache",
            Seconds,
            Some("MiB in cache"),
            vec![
                contender("libtorrent", |workspace| disk::libtorrent_verify(workspace, "1", Warm)),
                contender("read only", |workspace| disk::read_only(workspace, "cached", Warm)),
                contender("ours", |workspace| disk::ours_verify(workspace, "1", Warm)),
            ],
        ),
        spec(
            "idle",
            "1,000 idle torrents shared by one process: resident memory",
            Mebibytes,
            None,
            vec![contender("libtorrent", many::libtorrent_idle), contender("ours", many::ours_idle)],
        ),
        spec(
            "crowd",
            "one seeder, 10 or 300 leechers that fetch and forget: rate of all",
            MegabitsPerSecond,
            Some("leechers served"),
            vec![
                contender("libtorrent, 10", |workspace| many::libtorrent_crowd(workspace, 10)),
                contender("libtorrent, 300", |workspace| many::libtorrent_crowd(workspace, 300)),
                contender("ours, 10", |workspace| many::ours_crowd(workspace, 10)),
                contender("ours, 300", |workspace| many::ours_crowd(workspace, 300)),
            ],
        ),
        spec(
            "router",
            "1200-byte payloads from a host through two border routers to another: packets delivered",
            KilopacketsPerSecond,
            Some("lost %"),
            vec![
                contender("bare relay, at will", |_| router::relayed(f64::INFINITY).map(Passed::rate)),
                contender("ours, paced at 500", |_| router::routed(500e3).map(Passed::rate)),
                contender("ours, paced at 750", |_| router::routed(750e3).map(Passed::rate)),
                contender("ours, offered 1500", |_| router::routed(1500e3).map(Passed::rate)),
                contender("ours, at will", |_| router::routed(f64::INFINITY).map(Passed::rate)),
            ],
        ),
        spec(
            "datagram",
            "1200-byte payloads from one thread to another, loopback: packets delivered",
            KilopacketsPerSecond,
            Some("CPU s a GiB"),
            vec![
                contender("one call a packet", |_| datagram::one_at_a_time()),
                contender("batches alone", |_| datagram::batches()),
                contender("inside an AS", |_| datagram::over(datagram::Route::InsideAs)),
                contender("over a router pair", |_| datagram::over(datagram::Route::RouterPair)),
                contender("ours", |_| datagram::over(datagram::Route::Ip)),
            ],
        ),
        spec(
            "xdp",
            "the same between two namespaces, MTU 1500, by UDP in bursts or past the kernel (AF_XDP, which veth copies)",
            KilopacketsPerSecond,
            Some("CPU s a GiB"),
            vec![
                contender("AF_XDP", |_| datagram::over_link([true, true])),
                contender("AF_XDP to UDP", |_| datagram::over_link([true, false])),
                contender("UDP to AF_XDP", |_| datagram::over_link([false, true])),
                contender("ours", |_| datagram::over_link([false, false])),
            ],
        ),
        spec(
            "ppspp-1k",
            "a file by PPSPP in chunks of 1 KiB, one seeder to one leecher, loopback, in memory, every chunk verified: payload rate",
            MegabitsPerSecond,
            Some("CPU s a GiB"),
            vec![
                contender("floor", |workspace| ppspp::floor(workspace, 1 << 10)),
                contender("ours", |workspace| ppspp::loopback(workspace, "1KiB")),
            ],
        ),
        spec(
            "ppspp-8k",
            "the same in chunks of 8 KiB",
            MegabitsPerSecond,
            Some("CPU s a GiB"),
            vec![
                contender("floor", |workspace| ppspp::floor(workspace, 8 << 10)),
                contender("ours", |workspace| ppspp::loopback(workspace, "8KiB")),
            ],
        ),
        over_links(
            "ppspp-rate",
            "a file by PPSPP in chunks of 1 KiB over a link with 60 ms of round trip and queues of 400 ms: what of the link is used once it is steady",
            vec![
                contender("1 Mbit/s", |workspace| stream_links::alone(workspace, 1, 60, 0.0)),
                contender("5 Mbit/s", |workspace| stream_links::alone(workspace, 5, 60, 0.0)),
                contender("20 Mbit/s", |workspace| stream_links::alone(workspace, 20, 60, 0.0)),
                contender("50 Mbit/s", |workspace| stream_links::alone(workspace, 50, 60, 0.0)),
                contender("100 Mbit/s", |workspace| stream_links::alone(workspace, 100, 60, 0.0)),
                contender("1000 Mbit/s", |workspace| stream_links::alone(workspace, 1000, 60, 0.0)),
                contender("ours", |workspace| stream_links::alone(workspace, 10, 60, 0.0)),
            ],
        ),
        over_links(
            "ppspp-delay",
            "the same over 10 Mbit/s and other round trips",
            vec![
                contender("25 ms", |workspace| stream_links::alone(workspace, 10, 25, 0.0)),
                contender("100 ms", |workspace| stream_links::alone(workspace, 10, 100, 0.0)),
                contender("250 ms", |workspace| stream_links::alone(workspace, 10, 250, 0.0)),
                contender("ours", |workspace| stream_links::alone(workspace, 10, 500, 0.0)),
            ],
        ),
        over_links(
            "ppspp-loss",
            "the same over 10 Mbit/s with 60 ms, and packets lost",
            vec![
                contender("0.5 % lost", |workspace| stream_links::alone(workspace, 10, 60, 0.005)),
                contender("3 % lost", |workspace| stream_links::alone(workspace, 10, 60, 0.03)),
                contender("ours", |workspace| stream_links::alone(workspace, 10, 60, 0.015)),
            ],
        ),
        Spec {
            more: &["% that TCP takes"],
            ..spec(
                "ppspp-beside-tcp",
                "a file by PPSPP over 20 Mbit/s with 60 ms of round trip, beside one flow of TCP with CUBIC: what of the link is left to it",
                Percent,
                Some("seconds until 0.9 after the flow"),
                vec![contender("ours", stream_links::beside_tcp)],
            )
        },
        spec(
            "ppspp-idle",
            "1,000 contents shared by PPSPP by one process, to nobody: resident memory",
            Mebibytes,
            None,
            vec![contender("ours", streams::idle)],
        ),
        Spec {
            more: &["MiB of the file", "MiB fetched"],
            ..spec(
                "ppspp-long",
                "a file eight times as long, all of it a hole, hashed, shared by PPSPP and fetched for some seconds: peak memory of who fetches",
                Mebibytes,
                Some("MiB of who shares"),
                vec![contender("ours", streams::long)],
            )
        },
        Spec {
            more: &["copies of the source", "s behind it", "% passed over"],
            ..spec(
                "live-50",
                "a live stream of 4 Mbit/s from an uplink of 12 Mbit/s, viewers that send 6 Mbit/s at most: until the slowest plays",
                Milliseconds,
                Some("stalls"),
                vec![
                    contender("8 viewers", |workspace| live::watched_by(workspace, 8)),
                    contender("ours", |workspace| live::watched_by(workspace, 50)),
                ],
            )
        },
        spec(
            "play-seek",
            "a film played while it arrives over 50 Mbit/s and 40 ms: the slowest of ten seeks into what is not there, to its first byte",
            Milliseconds,
            Some("median ms"),
            vec![contender("ours", ppspp::seek)],
        ),
        spec(
            "quic",
            "one QUIC stream between two processes on loopback, packets of up to 8972 bytes: payload rate",
            MegabitsPerSecond,
            None,
            quic_ways::<8972>(),
        ),
        spec("quic-1472", "the same, packets of up to 1472 bytes", MegabitsPerSecond, None, quic_ways::<1472>()),
        spec(
            "router-cpu",
            "the same: CPU time of a router for a packet",
            Nanoseconds,
            Some("1000 packets/s"),
            vec![
                contender("bare relay", |_| router::relayed(500e3).map(Passed::cpu)),
                contender("ours", |_| router::routed(500e3).map(Passed::cpu)),
            ],
        ),
        spec(
            "scion-torrent",
            "a torrent fetched across three ASes of SCION and compared",
            Seconds,
            Some("MB/s"),
            vec![
                contender("2 % lost, 80 ms", |workspace| scion::torrent(workspace, Impairment::Lossy)),
                contender("daemons gone half-way, paced", |workspace| {
                    scion::torrent(workspace, Impairment::DaemonsGone)
                }),
                contender("paths of 20 s, paced", |workspace| scion::torrent(workspace, Impairment::ShortLives)),
                contender("ours", |workspace| scion::torrent(workspace, Impairment::Fair)),
            ],
        ),
        spec(
            "link-down",
            "a link goes down under who sends: time until the sender is told which",
            RoundTrips,
            Some("round trip ms"),
            vec![
                contender("far link", |_| scion::link_down(Down::Far)),
                contender("own link", |_| scion::link_down(Down::Own)),
            ],
        ),
    ];
    specs.push(Spec {
        name: "daemon-10000",
        title: "the daemon over 10,000 idle contents: from its start until all of them are in the session",
        unit: Seconds,
        extra: Some("idle, % of a core"),
        more: &["torrents/info ms", "sync/maindata of 100 changes ms", "all seeding s", "adding them s"],
        contenders: vec![contender("ours", daemon::thousands)],
    });
    specs.push(spec(
        "daemon-watchers",
        "the daemon fetches over loopback, with the page's stream of events open and ten who watch: payload rate",
        MegabitsPerSecond,
        Some("KiB of events"),
        vec![
            contender("nobody watches", |workspace| daemon::watched(workspace, false)),
            contender("ours", |workspace| daemon::watched(workspace, true)),
        ],
    ));
    specs.extend(bulk::specs());
    specs.extend(paths::specs());
    specs
}
