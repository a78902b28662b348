//! uTP alone (BEP 29), with the clients that speak it, both ways: the content arrives, and the connection was one over uTP.

use std::net::SocketAddr;

use anabranch_testbed::fixture::{Content, Fixture, Maker, TRANSFER_LIMIT};
use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::peers::libtorrent::Libtorrent;
use anabranch_testbed::peers::qbittorrent::QBittorrent;
use anabranch_testbed::peers::transmission::Transmission;
use anabranch_testbed::{Error, Result};
use serde_json::json;

const ANY: &str = "127.0.0.1:0";
const LIBTORRENT: &[&str] = &[
    "--set=enable_outgoing_utp=1",
    "--set=enable_incoming_utp=1",
    "--set=enable_outgoing_tcp=0",
    "--set=enable_incoming_tcp=0",
];
const QBITTORRENT: &str = "Session\\BTProtocol=UTP\n";
const ONLY: &[&str] = &["--utp", "only"];
const ENCRYPTED: &[&str] = &["--utp", "only", "--encryption", "require"];
/// What users have: TCP first.
const DEFAULT: &[&str] = &[];

/// Whether the first peer that our process tells of is connected over uTP.
fn connected(ours: &mut Anabranch) -> Result<()> {
    let (event, _) = ours.process.wait_event("peer_connected", TRANSFER_LIMIT)?;
    match event["transport"] == "utp" {
        true => Ok(()),
        false => Err(Error::Nonsense { name: "the connection".into(), what: event.to_string() }),
    }
}

fn get_from(fixture: &Fixture, peer: SocketAddr, ours: &[&str]) -> Result<()> {
    let out = fixture.folder("out")?;
    let mut get = Anabranch::get(&fixture.source(), &out, &[peer], None, ours)?;
    connected(&mut get)?;
    get.wait_finished(TRANSFER_LIMIT)?;
    fixture.check(&out)
}

fn shared(fixture: &Fixture, ours: &[&str]) -> Result<(Anabranch, SocketAddr)> {
    let (share, address) = Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, ours)?;
    if let SocketAddr::V4(address) = address {
        fixture.tracker.add_peer(address);
    }
    Ok((share, address))
}

fn from_libtorrent(ours: &[&str]) -> Result<()> {
    let fixture = Fixture::new(Content::Tree, "1", Maker::Libtorrent, None)?;
    let seeder = Libtorrent::seed_with(&fixture.torrent, &fixture.data, None, ANY, LIBTORRENT)?;
    get_from(&fixture, seeder.address, ours)
}

fn to_libtorrent(ours: &[&str]) -> Result<()> {
    let fixture = Fixture::new(Content::Tree, "1", Maker::Ours, None)?;
    let out = fixture.folder("out")?;
    let (mut share, address) = shared(&fixture, ours)?;
    let mut leecher = Libtorrent::leech_with(&fixture.source(), &out, &[address], None, ANY, LIBTORRENT)?;
    connected(&mut share)?;
    leecher.wait_finished(TRANSFER_LIMIT)?;
    fixture.check(&out)
}

fn from_qbittorrent() -> Result<()> {
    let fixture = Fixture::new(Content::Single, "1", Maker::Ours, None)?;
    let state = fixture.folder("state")?;
    let seeder = QBittorrent::seed_with(&state, &fixture.torrent, &fixture.data, TRANSFER_LIMIT, QBITTORRENT)?;
    get_from(&fixture, seeder.address.into(), ONLY)
}

fn to_qbittorrent() -> Result<()> {
    let fixture = Fixture::new(Content::Single, "1", Maker::Ours, None)?;
    let (state, out) = (fixture.folder("state")?, fixture.folder("out")?);
    let (mut share, _) = shared(&fixture, DEFAULT)?;
    let mut leecher = QBittorrent::leech_with(&state, &fixture.source(), &out, QBITTORRENT)?;
    connected(&mut share)?;
    leecher.wait_finished(TRANSFER_LIMIT)?;
    fixture.check(&out)
}

fn from_transmission() -> Result<()> {
    let fixture = Fixture::new(Content::Single, "1", Maker::Ours, None)?;
    let state = fixture.folder("state")?;
    let mut seeder = Transmission::start_with(&state, &fixture.torrent, &fixture.data, json!({ "utp-enabled": true }))?;
    seeder.wait_complete(TRANSFER_LIMIT)?;
    get_from(&fixture, seeder.address.into(), ONLY)
}

fn to_transmission() -> Result<()> {
    let fixture = Fixture::new(Content::Single, "1", Maker::Ours, None)?;
    let (state, out) = (fixture.folder("state")?, fixture.folder("out")?);
    // It does not connect to loopback addresses itself: ours has to learn of it from the tracker.
    let mut leecher = Transmission::start_with(&state, &fixture.torrent, &out, json!({ "utp-enabled": true }))?;
    fixture.tracker.wait_for(leecher.address, TRANSFER_LIMIT)?;
    let (mut share, _) = shared(&fixture, ONLY)?;
    connected(&mut share)?;
    leecher.wait_complete(TRANSFER_LIMIT)?;
    fixture.check(&out)
}

fn ours_to_ours() -> Result<()> {
    let fixture = Fixture::new(Content::Tree, "hybrid", Maker::Ours, None)?;
    let (mut share, address) = shared(&fixture, ENCRYPTED)?;
    get_from(&fixture, address, ENCRYPTED)?;
    connected(&mut share)
}

/// One test a cell.
macro_rules! cells {
    ($($name:ident: $run:expr;)*) => {
        $(#[test] fn $name() {
            if let Err(error) = $run {
                panic!("{error}");
            }
        })*
    };
}

cells! {
    libtorrent_serves_us: from_libtorrent(ONLY);
    libtorrent_serves_us_as_we_come: from_libtorrent(DEFAULT);
    libtorrent_fetches_from_us: to_libtorrent(DEFAULT);
    qbittorrent_serves_us: from_qbittorrent();
    qbittorrent_fetches_from_us: to_qbittorrent();
    transmission_serves_us: from_transmission();
    transmission_fetches_from_us: to_transmission();
    ours_serves_ours_encrypted: ours_to_ours();
}
