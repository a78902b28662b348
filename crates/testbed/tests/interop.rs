//! The matrix: every other client both ways, single files and odd trees, compared byte for byte.
//!
//! A peer that is not installed fails its cells. Those of rqbit, Deluge and WebTorrent are ignored by default, because they take long to
//! build or come with much: `make interop` does so and runs them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anabranch_testbed::Result;
use anabranch_testbed::fixture::Content::{self, Single, Tree};
use anabranch_testbed::fixture::{Fixture, Maker, TRANSFER_LIMIT};
use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::peers::aria2::Aria2;
use anabranch_testbed::peers::deluge::Deluge;
use anabranch_testbed::peers::libtorrent::Libtorrent;
use anabranch_testbed::peers::qbittorrent::QBittorrent;
use anabranch_testbed::peers::rqbit::Rqbit;
use anabranch_testbed::peers::rtorrent::Rtorrent;
use anabranch_testbed::peers::transmission::Transmission;
use anabranch_testbed::peers::webtorrent::WebTorrent;

const ANY: &str = "127.0.0.1:0";
/// Much more than is asked of a peer at first: at a tenth of a megabyte a second this would take longer than
/// [`TRANSFER_LIMIT`].
#[allow(non_upper_case_globals, reason = "named like the contents that it stands beside")]
const Large: Content = Content::Bytes(32 << 20);

/// Who is at the other end.
#[derive(Clone, Copy)]
enum Client {
    Libtorrent,
    Aria2,
    Transmission,
    QBittorrent,
    Rqbit,
    Rtorrent,
    Deluge,
    WebTorrent,
}

/// The other client shares a torrent that libtorrent made; ours fetches it.
fn fetch_from(client: Client, content: Content, version: &str, by_magnet: bool) -> Result<()> {
    let fixture = Fixture::new(content, version, Maker::Libtorrent, None)?;
    let (source, out) = (if by_magnet { fixture.magnet.clone() } else { fixture.source() }, fixture.folder("out")?);
    let get = |peer| -> Result<()> {
        Anabranch::get(&source, &out, &[peer], None, &[])?.wait_finished(TRANSFER_LIMIT)?;
        fixture.check(&out)
    };
    match client {
        Client::Libtorrent => {
            let seeder = Libtorrent::seed(&fixture.torrent, &fixture.data, None, ANY)?;
            get(seeder.address)
        }
        Client::Aria2 => {
            let seeder = Aria2::seed(&fixture.torrent, &fixture.data)?;
            fixture.tracker.wait_for(seeder.address, TRANSFER_LIMIT)?;
            get(seeder.address.into())
        }
        Client::Transmission => {
            let mut seeder = Transmission::start(&fixture.folder("state")?, &fixture.torrent, &fixture.data)?;
            seeder.wait_complete(TRANSFER_LIMIT)?;
            get(seeder.address.into())
        }
        Client::QBittorrent => {
            let state = fixture.folder("state")?;
            let seeder = QBittorrent::seed(&state, &fixture.torrent, &fixture.data, TRANSFER_LIMIT)?;
            get(seeder.address.into())
        }
        Client::Rqbit => {
            let mut seeder = Rqbit::start(&fixture.source(), &fixture.data, &[], false, None, "127.0.0.1")?;
            seeder.wait_checked(TRANSFER_LIMIT)?;
            get(seeder.address.into())
        }
        Client::Rtorrent => {
            let seeder = Rtorrent::start(&fixture.folder("state")?, &fixture.source(), &fixture.data, None)?;
            fixture.tracker.wait_for(seeder.address, TRANSFER_LIMIT)?;
            get(seeder.address.into())
        }
        Client::Deluge => {
            let mut seeder = Deluge::start(&fixture.folder("state")?, &fixture.source(), &fixture.data)?;
            seeder.wait_complete(TRANSFER_LIMIT)?;
            get(seeder.address.into())
        }
        Client::WebTorrent => {
            let mut seeder = WebTorrent::start(&fixture.source(), &fixture.data, None)?;
            seeder.wait_complete(TRANSFER_LIMIT)?;
            get(seeder.address.into())
        }
    }
}

/// Ours shares a torrent that it made; the other client fetches it.
fn share_to(client: Client, content: Content, version: &str, by_magnet: bool) -> Result<()> {
    let fixture = Fixture::new(content, version, Maker::Ours, None)?;
    let (source, out) = (if by_magnet { fixture.magnet.clone() } else { fixture.source() }, fixture.folder("out")?);
    let share = || Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &[]);
    match client {
        Client::Libtorrent => {
            let (_ours, address) = share()?;
            Libtorrent::leech(&source, &out, &[address], None, ANY)?.wait_finished(TRANSFER_LIMIT)?;
        }
        Client::Aria2 => {
            let (_ours, address) = share()?;
            if let std::net::SocketAddr::V4(address) = address {
                fixture.tracker.add_peer(address);
            }
            Aria2::leech(&fixture.torrent, &out)?.process.wait_success(TRANSFER_LIMIT)?;
        }
        Client::Transmission => {
            // It does not connect to loopback addresses itself: ours has to learn of it from the tracker.
            let mut leecher = Transmission::start(&fixture.folder("state")?, &fixture.torrent, &out)?;
            fixture.tracker.wait_for(leecher.address, TRANSFER_LIMIT)?;
            let _ours = share()?;
            leecher.wait_complete(TRANSFER_LIMIT)?;
            return fixture.check_but_empty(&out);
        }
        Client::QBittorrent => {
            let (_ours, address) = share()?;
            if let std::net::SocketAddr::V4(address) = address {
                fixture.tracker.add_peer(address);
            }
            QBittorrent::leech(&fixture.folder("state")?, &source, &out)?.wait_finished(TRANSFER_LIMIT)?;
        }
        Client::Rqbit => {
            let (_ours, address) = share()?;
            let std::net::SocketAddr::V4(address) = address else { unreachable!("asked for IPv4") };
            let mut leecher = Rqbit::start(&source, &out, &[address], true, None, "127.0.0.1")?;
            leecher.process.wait_success(TRANSFER_LIMIT)?;
        }
        Client::Rtorrent | Client::Deluge | Client::WebTorrent => {
            let (_ours, address) = share()?;
            if let SocketAddr::V4(address) = address {
                fixture.tracker.add_peer(address);
            }
            let state = fixture.folder("state")?;
            match client {
                Client::Rtorrent => Rtorrent::start(&state, &source, &out, None)?.wait_complete(TRANSFER_LIMIT)?,
                Client::Deluge => Deluge::start(&state, &source, &out)?.wait_complete(TRANSFER_LIMIT)?,
                _ => WebTorrent::start(&source, &out, None)?.wait_complete(TRANSFER_LIMIT)?,
            }
        }
    }
    fixture.check(&out)
}

/// Neither knows more than a node of ours and the hash; `from` says that the other client has the content.
fn by_dht(client: Client, from: bool) -> Result<()> {
    let fixture = Fixture::new(Content::Bytes(3 << 20), "1", Maker::Ours, Some("http://127.0.0.1:9/announce"))?;
    let other = Fixture::new(Content::Bytes(1 << 10), "1", Maker::Ours, None)?;
    let (_node, entry) = Anabranch::share(&other.torrent, Some(&other.data), ANY, None, &["--dht", "on"])?;
    let SocketAddr::V4(entry) = entry else { unreachable!("asked for IPv4") };
    let named = entry.to_string();
    let (link, out) = (fixture.magnet.split('&').next().unwrap_or_default(), fixture.folder("out")?);
    let dht = ["--dht", "on", "--dht-node", named.as_str()];
    let start = |source: &str, data: &Path| -> Result<Box<dyn FnMut() -> Result<()>>> {
        let state = fixture.folder("state")?;
        Ok(match client {
            Client::Rtorrent => {
                let mut peer = Rtorrent::start(&state, source, data, Some(entry))?;
                Box::new(move || peer.wait_complete(TRANSFER_LIMIT))
            }
            _ => {
                let mut peer = WebTorrent::start(source, data, Some(entry))?;
                Box::new(move || peer.wait_complete(TRANSFER_LIMIT))
            }
        })
    };
    if from {
        let _seeder = start(&fixture.source(), &fixture.data)?;
        let extra = [&dht[..], &["--listen", ANY, "--give-up", "90s"]].concat();
        Anabranch::get(link, &out, &[], None, &extra)?.wait_finished(TRANSFER_LIMIT)?;
    } else {
        let _ours = Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &dht)?;
        start(link, &out)?()?;
    }
    fixture.check(&out)
}

/// Ours shares the content itself, without a tracker, and prints a link; that is all the other client is given.
fn link_to(client: Client, content: Content, version: &str, _: bool) -> Result<()> {
    let fixture = Fixture::new(content, version, Maker::Ours, None)?;
    let out = fixture.folder("out")?;
    let (mut ours, _) = Anabranch::share(&fixture.content, None, ANY, None, &["--version", version])?;
    let (started, _) = ours.process.wait_event("started", TRANSFER_LIMIT)?;
    let link = started["magnet"].as_str().unwrap_or_default();
    match client {
        Client::Libtorrent => {
            Libtorrent::leech(link, &out, &[], None, ANY)?.wait_finished(TRANSFER_LIMIT)?;
        }
        Client::QBittorrent => {
            QBittorrent::leech(&fixture.folder("state")?, link, &out)?.wait_finished(TRANSFER_LIMIT)?;
        }
        _ => unreachable!("it heeds no peers that a link names"),
    }
    fixture.check(&out)
}

/// Ours seeds what nobody has to three of libtorrent's, who know each other: little more than one copy leaves before they have one.
#[test]
fn super_seeding_serves_libtorrents_once() {
    let serve = || -> Result<()> {
        const LENGTH: u64 = 16 << 20;
        let fixture = Fixture::new(Content::Bytes(LENGTH), "1", Maker::Ours, None)?;
        let (mut leechers, mut addresses): (Vec<(Libtorrent, PathBuf)>, Vec<SocketAddr>) = Default::default();
        for number in 0..3 {
            let out = fixture.folder(&format!("out{number}"))?;
            let leecher = Libtorrent::leech_with(&fixture.source(), &out, &addresses, None, ANY, &["--stay"])?;
            addresses.push(leecher.address);
            leechers.push((leecher, out));
        }
        let named: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let peers = named.iter().flat_map(|address| ["--peer", address]);
        // Slower than they pass on, as the uplink of whoever wants this.
        let extra: Vec<&str> = ["--super-seed", "--limit-up", "6M"].into_iter().chain(peers).collect();
        let (mut ours, _) = Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &extra)?;
        let (over, _) = ours.process.wait_event("super_seeded", TRANSFER_LIMIT)?;
        let uploaded = over["uploaded"].as_u64().unwrap_or(0);
        assert!((LENGTH..LENGTH + LENGTH / 4).contains(&uploaded), "{uploaded} bytes of {LENGTH} were sent");
        for (mut leecher, out) in leechers {
            leecher.process.wait_event("finished", TRANSFER_LIMIT)?;
            fixture.check(&out)?;
        }
        Ok(())
    };
    serve().unwrap_or_else(|error| panic!("{error}"));
}

/// It does not call peers on its own machine that it finds there itself.
#[test]
fn rtorrent_is_found_in_the_dht() {
    by_dht(Client::Rtorrent, true).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
#[ignore = "needs WebTorrent: make interop"]
fn webtorrent_finds_us_in_the_dht() {
    by_dht(Client::WebTorrent, false).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
#[ignore = "needs WebTorrent: make interop"]
fn webtorrent_is_found_in_the_dht() {
    by_dht(Client::WebTorrent, true).unwrap_or_else(|error| panic!("{error}"));
}

/// One test a cell: `name: direction(client, content, version, magnet)`.
macro_rules! cells {
    ($($(#[$attribute:meta])* $name:ident: $direction:ident($client:ident, $content:ident, $version:literal, $magnet:literal);)*) => {
        $($(#[$attribute])* #[test] fn $name() {
            if let Err(error) = $direction(Client::$client, $content, $version, $magnet) {
                panic!("{error}");
            }
        })*
    };
}

cells! {
    fetch_from_libtorrent_single: fetch_from(Libtorrent, Single, "1", false);
    fetch_from_libtorrent_tree: fetch_from(Libtorrent, Tree, "1", false);
    fetch_from_libtorrent_v2_single: fetch_from(Libtorrent, Single, "2", false);
    fetch_from_libtorrent_v2_tree: fetch_from(Libtorrent, Tree, "2", false);
    fetch_from_libtorrent_hybrid_single: fetch_from(Libtorrent, Single, "hybrid", false);
    fetch_from_libtorrent_hybrid_tree: fetch_from(Libtorrent, Tree, "hybrid", false);
    fetch_from_libtorrent_by_magnet: fetch_from(Libtorrent, Tree, "1", true);
    fetch_from_libtorrent_by_magnet_v2: fetch_from(Libtorrent, Tree, "2", true);
    fetch_from_libtorrent_by_magnet_hybrid: fetch_from(Libtorrent, Tree, "hybrid", true);
    share_to_libtorrent_single: share_to(Libtorrent, Single, "1", false);
    share_to_libtorrent_tree: share_to(Libtorrent, Tree, "1", false);
    share_to_libtorrent_v2_single: share_to(Libtorrent, Single, "2", false);
    share_to_libtorrent_v2_tree: share_to(Libtorrent, Tree, "2", false);
    share_to_libtorrent_hybrid_single: share_to(Libtorrent, Single, "hybrid", false);
    share_to_libtorrent_hybrid_tree: share_to(Libtorrent, Tree, "hybrid", false);
    share_to_libtorrent_by_magnet: share_to(Libtorrent, Tree, "1", true);
    share_to_libtorrent_by_magnet_v2: share_to(Libtorrent, Tree, "2", true);
    share_to_libtorrent_by_magnet_hybrid: share_to(Libtorrent, Tree, "hybrid", true);
    fetch_from_aria2_single: fetch_from(Aria2, Single, "1", false);
    fetch_from_aria2_tree: fetch_from(Aria2, Tree, "1", false);
    share_to_aria2_single: share_to(Aria2, Single, "1", false);
    share_to_aria2_tree: share_to(Aria2, Tree, "1", false);
    fetch_from_transmission_single: fetch_from(Transmission, Single, "1", false);
    fetch_from_transmission_large: fetch_from(Transmission, Large, "1", false);
    fetch_from_transmission_tree: fetch_from(Transmission, Tree, "1", false);
    share_to_transmission_single: share_to(Transmission, Single, "1", false);
    share_to_transmission_tree: share_to(Transmission, Tree, "1", false);
    fetch_from_qbittorrent_large: fetch_from(QBittorrent, Large, "1", false);
    fetch_from_qbittorrent_hybrid_tree: fetch_from(QBittorrent, Tree, "hybrid", false);
    fetch_from_qbittorrent_by_magnet_v2: fetch_from(QBittorrent, Tree, "2", true);
    share_to_qbittorrent_tree: share_to(QBittorrent, Tree, "1", false);
    share_to_qbittorrent_hybrid_single: share_to(QBittorrent, Single, "hybrid", false);
    link_to_qbittorrent: link_to(QBittorrent, Tree, "hybrid", true);
    link_to_libtorrent: link_to(Libtorrent, Tree, "hybrid", true);
    link_to_libtorrent_v1: link_to(Libtorrent, Single, "1", true);
    fetch_from_rtorrent_tree: fetch_from(Rtorrent, Tree, "1", false);
    fetch_from_rtorrent_by_magnet: fetch_from(Rtorrent, Single, "1", true);
    share_to_rtorrent_tree: share_to(Rtorrent, Tree, "1", false);
    share_to_rtorrent_hybrid_single: share_to(Rtorrent, Single, "hybrid", false);
    share_to_rtorrent_by_magnet: share_to(Rtorrent, Single, "1", true);
    #[ignore = "needs Deluge: make interop"]
    fetch_from_deluge_tree: fetch_from(Deluge, Tree, "1", false);
    #[ignore = "needs Deluge: make interop"]
    fetch_from_deluge_hybrid_tree: fetch_from(Deluge, Tree, "hybrid", false);
    #[ignore = "needs Deluge: make interop"]
    fetch_from_deluge_by_magnet_v2: fetch_from(Deluge, Single, "2", true);
    #[ignore = "needs Deluge: make interop"]
    share_to_deluge_tree: share_to(Deluge, Tree, "1", false);
    #[ignore = "needs Deluge: make interop"]
    share_to_deluge_hybrid_tree: share_to(Deluge, Tree, "hybrid", false);
    #[ignore = "needs Deluge: make interop"]
    share_to_deluge_by_magnet: share_to(Deluge, Single, "1", true);
    #[ignore = "needs WebTorrent: make interop"]
    fetch_from_webtorrent_tree: fetch_from(WebTorrent, Tree, "1", false);
    #[ignore = "needs WebTorrent: make interop"]
    fetch_from_webtorrent_by_magnet: fetch_from(WebTorrent, Single, "1", true);
    #[ignore = "needs WebTorrent: make interop"]
    share_to_webtorrent_tree: share_to(WebTorrent, Tree, "1", false);
    #[ignore = "needs WebTorrent: make interop"]
    share_to_webtorrent_by_magnet: share_to(WebTorrent, Single, "1", true);
    #[ignore = "needs rqbit: make interop"]
    fetch_from_rqbit_single: fetch_from(Rqbit, Single, "1", false);
    #[ignore = "needs rqbit: make interop"]
    fetch_from_rqbit_tree: fetch_from(Rqbit, Tree, "1", false);
    #[ignore = "needs rqbit: make interop"]
    share_to_rqbit_single: share_to(Rqbit, Single, "1", false);
    #[ignore = "needs rqbit: make interop"]
    share_to_rqbit_tree: share_to(Rqbit, Tree, "1", false);
    #[ignore = "needs rqbit: make interop"]
    share_to_rqbit_by_magnet: share_to(Rqbit, Tree, "1", true);
    #[ignore = "needs rqbit: make interop"]
    fetch_from_rqbit_by_magnet: fetch_from(Rqbit, Tree, "1", true);
}
