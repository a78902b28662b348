//! The matrix: every other client both ways, single files and odd trees, compared byte for byte.
//!
//! A peer that is not installed fails its cells. Those of rqbit are ignored by default, because it takes minutes to
//! build: `make interop` does so and runs them.

use anabranch_testbed::Result;
use anabranch_testbed::fixture::Content::{self, Single, Tree};
use anabranch_testbed::fixture::{Fixture, Maker, TRANSFER_LIMIT};
use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::peers::aria2::Aria2;
use anabranch_testbed::peers::libtorrent::Libtorrent;
use anabranch_testbed::peers::qbittorrent::QBittorrent;
use anabranch_testbed::peers::rqbit::Rqbit;
use anabranch_testbed::peers::transmission::Transmission;

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
        Client::Aria2 | Client::Transmission | Client::Rqbit => unreachable!("it heeds no peers that a link names"),
    }
    fixture.check(&out)
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
