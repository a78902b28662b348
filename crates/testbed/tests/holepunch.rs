//! Two of ours behind routers that translate addresses meet over uTP, through a third that both know (BEP 55).

use std::net::SocketAddr;
use std::time::Duration;

use anabranch_testbed::Result;
use anabranch_testbed::fixture::{Content, Fixture, Maker};
use anabranch_testbed::net;
use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::router::{Internet, Kind};

const LIMIT: Duration = Duration::from_secs(120);
/// What the third gives at most, bytes a second: the content comes from elsewhere.
const TRICKLE: &str = "2K";

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Who shares is behind one router, who fetches behind another.
fn meet(sharing: Kind, fetching: Kind) {
    if !net::available() {
        eprintln!("left out: not root");
        return;
    }
    let internet = must(Internet::new());
    let (sharer, fetcher) = (must(internet.home(1, sharing)), must(internet.home(2, fetching)));
    let fixture = must(Fixture::new(Content::Bytes(4 << 20), "1", Maker::Ours, None));
    let torrent = fixture.torrent.to_string_lossy().into_owned();
    // It still fetches: two that only upload leave each other.
    let trickle = ["--limit-up", TRICKLE, "--limit-down", TRICKLE, "--listen", "0.0.0.0:7000", "--give-up", "110s"];
    let middle = must(fixture.folder("middle"));
    let mut between = must(Anabranch::get(&torrent, &middle, &[], Some(&internet.middle), &trickle));
    must(between.process.wait_event("listening", LIMIT));
    let third = |home: u8| -> SocketAddr { format!("{}:7000", Internet::address(home)).parse().unwrap() };
    let named = third(1).to_string();
    let (mut share, _) = must(Anabranch::share(
        &fixture.torrent,
        Some(&fixture.data),
        "0.0.0.0:7000",
        Some(&sharer.host),
        &["--peer", &named],
    ));
    must(share.process.wait_event("peer_connected", LIMIT));
    let out = must(fixture.folder("out"));
    let extra = ["--listen", "0.0.0.0:7000"];
    let mut get = must(Anabranch::get(&torrent, &out, &[third(2)], Some(&fetcher.host), &extra));
    let met = must(get.process.wait_line("the sharer over uTP", LIMIT, |line| {
        let event = line.json();
        let peer = event["peer"].as_str().unwrap_or_default();
        event["event"] == "peer_connected" && peer.starts_with(&sharer.outside) && event["transport"] == "utp"
    }));
    assert!(!met.text.is_empty());
    must(get.wait_finished(LIMIT));
    must(fixture.check(&out));
}

#[test]
fn both_routers_let_in_only_who_was_called() {
    meet(Kind::Restricted, Kind::Restricted);
}

#[test]
fn one_router_lets_in_everybody() {
    meet(Kind::Restricted, Kind::FullCone);
}

#[test]
fn one_router_is_symmetric() {
    meet(Kind::Symmetric, Kind::FullCone);
    meet(Kind::FullCone, Kind::Symmetric);
}
