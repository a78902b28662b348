//! The rows and their contenders.

mod datagram;
mod disk;
mod many;
mod multihome;
mod paths;
mod quic;
mod router;
mod scion;
mod transfer;

use anabranch_testbed::Result;
use anabranch_testbed::wire::Family;

use crate::report::Sample;
use crate::stage::Stage;

/// What a row's figure is in.
#[derive(Clone, Copy)]
pub enum Unit {
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
}

impl Unit {
    /// For the head of the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Mebibytes => "MiB",
            Self::MegabitsPerSecond => "Mbit/s",
            Self::KilopacketsPerSecond => "1000 packets/s",
            Self::Nanoseconds => "ns",
            Self::RoundTrips => "round trips",
            Self::Milliseconds => "ms",
            Self::Percent => "%",
        }
    }
}

/// One way to do what a row measures.
pub struct Contender {
    /// In the table; ours is called `ours`.
    pub name: &'static str,
    /// Does it once.
    pub run: fn(&mut Stage) -> Result<Sample>,
}

/// One thing measured.
pub struct Spec {
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

fn contender(name: &'static str, run: fn(&mut Stage) -> Result<Sample>) -> Contender {
    Contender { name, run }
}

/// One QUIC stream over every way, with packets of up to `MTU` bytes.
fn quic_ways<const MTU: u16>() -> Vec<Contender> {
    use quic::Way;
    vec![
        contender("UDP/IP, BBR", |stage| quic::stream(stage, Way::Ip, "bbr", MTU)),
        contender("inside an AS", |stage| quic::stream(stage, Way::InsideAs, "cubic", MTU)),
        contender("over a router pair", |stage| quic::stream(stage, Way::RouterPair, "cubic", MTU)),
        contender("ours", |stage| quic::stream(stage, Way::Ip, "cubic", MTU)),
    ]
}

/// All rows, in the order in which they run.
pub fn all() -> Vec<Spec> {
    use Unit::{KilopacketsPerSecond, Mebibytes, MegabitsPerSecond, Nanoseconds, RoundTrips, Seconds};
    use disk::Content::{Cold, Memory, Warm};
    use multihome::From;
    use router::Passed;
    use scion::{Down, Weather};
    use transfer::Client::{Libtorrent, Ours, Rqbit};
    use transfer::OnDisk;
    const V4: From = From::Ours(Family::V4);
    const V6: From = From::Ours(Family::V6);
    let spec = |name, title, unit, extra, contenders| Spec { name, title, unit, extra, more: &[], contenders };
    let mut specs = vec![
        spec(
            "loopback-v1",
            "one seeder to one leecher, v1, 1 MiB pieces, loopback, in memory",
            Seconds,
            None,
            vec![
                contender("libtorrent", |stage| {
                    transfer::loopback(stage, "1", Libtorrent, Libtorrent, OnDisk::Neither)
                }),
                contender("rqbit", |stage| transfer::loopback(stage, "1", Rqbit, Rqbit, OnDisk::Neither)),
                contender("floor", |stage| transfer::floor(stage, "cached", OnDisk::Neither)),
                contender("ours", |stage| transfer::loopback(stage, "1", Ours, Ours, OnDisk::Neither)),
            ],
        ),
        spec(
            "loopback-v2",
            "the same, v2",
            Seconds,
            None,
            vec![
                contender("libtorrent", |stage| {
                    transfer::loopback(stage, "2", Libtorrent, Libtorrent, OnDisk::Neither)
                }),
                contender("ours", |stage| transfer::loopback(stage, "2", Ours, Ours, OnDisk::Neither)),
            ],
        ),
        spec(
            "interop",
            "the same, v1, between libtorrent and ours",
            Seconds,
            None,
            vec![
                contender("libtorrent to itself", |stage| {
                    transfer::loopback(stage, "1", Libtorrent, Libtorrent, OnDisk::Neither)
                }),
                contender("libtorrent to ours", |stage| {
                    transfer::loopback(stage, "1", Libtorrent, Ours, OnDisk::Neither)
                }),
                contender("ours to libtorrent", |stage| {
                    transfer::loopback(stage, "1", Ours, Libtorrent, OnDisk::Neither)
                }),
                contender("ours", |stage| transfer::loopback(stage, "1", Ours, Ours, OnDisk::Neither)),
            ],
        ),
        spec(
            "long-wire",
            "one connection over 1 Gbit/s at 100 ms round trip, v1: payload rate once the window is open",
            MegabitsPerSecond,
            Some("seconds in all"),
            vec![
                contender("bare TCP", transfer::bare_over_wire),
                contender("libtorrent", |stage| transfer::over_wire(stage, Libtorrent)),
                contender("rqbit", |stage| transfer::over_wire(stage, Rqbit)),
                contender("ours", |stage| transfer::over_wire(stage, Ours)),
            ],
        ),
        spec(
            "multihome",
            "two hosts joined by two links, 10 ms round trip: payload rate over both, started together",
            MegabitsPerSecond,
            Some("% of the links one by one"),
            vec![
                contender("100 + 50 Mbit/s", |stage| multihome::both(stage, [100, 50], V4)),
                contender("50 + 50", |stage| multihome::both(stage, [50, 50], V4)),
                contender("100 + 50, IPv6", |stage| multihome::both(stage, [100, 50], V6)),
                contender("100 + 50, libtorrent", |stage| multihome::both(stage, [100, 50], From::LibtorrentTwice)),
                contender("the same, one address", |stage| multihome::both(stage, [100, 50], From::LibtorrentOnce)),
            ],
        ),
        spec(
            "create-v1",
            "create a v1 torrent, 1 MiB pieces, file in memory",
            Seconds,
            None,
            vec![
                contender("libtorrent", |stage| disk::libtorrent_create(stage, "1", Memory)),
                contender("transmission-create", disk::transmission_create),
                contender("read only", |stage| disk::read_only(stage, "cached", Memory)),
                contender("ours", |stage| disk::ours_create(stage, "1", Memory)),
            ],
        ),
        spec(
            "create-v2",
            "the same, v2",
            Seconds,
            None,
            vec![
                contender("libtorrent", |stage| disk::libtorrent_create(stage, "2", Memory)),
                contender("ours", |stage| disk::ours_create(stage, "2", Memory)),
            ],
        ),
        spec(
            "verify-v1",
            "verify a file in memory against its v1 torrent",
            Seconds,
            None,
            vec![
                contender("libtorrent", |stage| disk::libtorrent_verify(stage, "1", Memory)),
                contender("rqbit", disk::rqbit_verify),
                contender("read only", |stage| disk::read_only(stage, "cached", Memory)),
                contender("ours", |stage| disk::ours_verify(stage, "1", Memory)),
            ],
        ),
        spec(
            "verify-v2",
            "the same, v2",
            Seconds,
            None,
            vec![
                contender("libtorrent", |stage| disk::libtorrent_verify(stage, "2", Memory)),
                contender("ours", |stage| disk::ours_verify(stage, "2", Memory)),
            ],
        ),
        spec(
            "disk-get",
            "one seeder to one leecher, v1, from memory to the disk of the checkout, until all is verified (ours and the floors: and synced)",
            Seconds,
            Some("MiB in cache"),
            vec![
                contender("libtorrent", |stage| {
                    transfer::loopback(stage, "1", Libtorrent, Libtorrent, OnDisk::Fetched)
                }),
                contender("floor, cached", |stage| transfer::floor(stage, "cached", OnDisk::Fetched)),
                contender("floor", |stage| transfer::floor(stage, "direct", OnDisk::Fetched)),
                contender("ours", |stage| transfer::loopback(stage, "1", Ours, Ours, OnDisk::Fetched)),
            ],
        ),
        spec(
            "disk-share",
            "the same, from the disk, with nothing of it in the page cache, to memory",
            Seconds,
            Some("MiB in cache"),
            vec![
                contender("libtorrent", |stage| transfer::loopback(stage, "1", Libtorrent, Libtorrent, OnDisk::Shared)),
                contender("floor", |stage| transfer::floor(stage, "cached", OnDisk::Shared)),
                contender("ours", |stage| transfer::loopback(stage, "1", Ours, Ours, OnDisk::Shared)),
            ],
        ),
        spec(
            "disk-create-cold",
            "create a v1 torrent, 1 MiB pieces, file on the disk and not in the page cache",
            Seconds,
            Some("MiB in cache"),
            vec![
                contender("libtorrent", |stage| disk::libtorrent_create(stage, "1", Cold)),
                contender("read only, cached", |stage| disk::read_only(stage, "cached", Cold)),
                contender("read only", |stage| disk::read_only(stage, "direct", Cold)),
                contender("ours, v2", |stage| disk::ours_create(stage, "2", Cold)),
                contender("ours", |stage| disk::ours_create(stage, "1", Cold)),
            ],
        ),
        spec(
            "disk-create-warm",
            "the same, file in the page cache",
            Seconds,
            Some("MiB in cache"),
            vec![
                contender("libtorrent", |stage| disk::libtorrent_create(stage, "1", Warm)),
                contender("read only", |stage| disk::read_only(stage, "cached", Warm)),
                contender("ours", |stage| disk::ours_create(stage, "1", Warm)),
            ],
        ),
        spec(
            "disk-verify-cold",
            "verify a file on the disk, not in the page cache, against its v1 torrent",
            Seconds,
            Some("MiB in cache"),
            vec![
                contender("libtorrent", |stage| disk::libtorrent_verify(stage, "1", Cold)),
                contender("read only", |stage| disk::read_only(stage, "direct", Cold)),
                contender("ours", |stage| disk::ours_verify(stage, "1", Cold)),
            ],
        ),
        spec(
            "disk-verify-warm",
            "the same, file in the page cache",
            Seconds,
            Some("MiB in cache"),
            vec![
                contender("libtorrent", |stage| disk::libtorrent_verify(stage, "1", Warm)),
                contender("read only", |stage| disk::read_only(stage, "cached", Warm)),
                contender("ours", |stage| disk::ours_verify(stage, "1", Warm)),
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
                contender("libtorrent, 10", |stage| many::libtorrent_crowd(stage, 10)),
                contender("libtorrent, 300", |stage| many::libtorrent_crowd(stage, 300)),
                contender("ours, 10", |stage| many::ours_crowd(stage, 10)),
                contender("ours, 300", |stage| many::ours_crowd(stage, 300)),
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
                contender("inside an AS", |_| datagram::over(datagram::Way::InsideAs)),
                contender("over a router pair", |_| datagram::over(datagram::Way::RouterPair)),
                contender("ours", |_| datagram::over(datagram::Way::Ip)),
            ],
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
                contender("2 % lost, 80 ms", |stage| scion::torrent(stage, Weather::Lossy)),
                contender("daemons gone half-way, paced", |stage| scion::torrent(stage, Weather::DaemonsGone)),
                contender("paths of 20 s, paced", |stage| scion::torrent(stage, Weather::ShortLives)),
                contender("ours", |stage| scion::torrent(stage, Weather::Fair)),
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
    specs.extend(paths::specs());
    specs
}
