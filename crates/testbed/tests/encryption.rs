//! Message stream encryption with clients that take nothing else, both ways: the content arrives, and the connection was encrypted.
//! Ours is left at its default, or insists too.

use std::net::SocketAddr;

use anabranch_testbed::fixture::{Content, Fixture, Maker, TRANSFER_LIMIT};
use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::peers::aria2::Aria2;
use anabranch_testbed::peers::libtorrent::Libtorrent;
use anabranch_testbed::peers::qbittorrent::QBittorrent;
use anabranch_testbed::peers::transmission::Transmission;
use anabranch_testbed::{Error, Result};
use serde_json::{Value, json};

const ANY: &str = "127.0.0.1:0";
/// libtorrent with `pe_forced`, and RC4 or the clear after the greeting.
const LIBTORRENT_RC4: &[&str] = &["--set=out_enc_policy=0", "--set=in_enc_policy=0", "--set=allowed_enc_level=2"];
const LIBTORRENT_CLEAR: &[&str] = &["--set=out_enc_policy=0", "--set=in_enc_policy=0", "--set=allowed_enc_level=1"];
const ARIA2: &[&str] = &["--bt-force-encryption=true"];
const QBITTORRENT: &str = "Session\\Encryption=1\n";
const REQUIRE: &[&str] = &["--encryption", "require"];
const DEFAULT: &[&str] = &[];

/// Who is at the other end.
#[derive(Clone, Copy)]
enum Client {
    Libtorrent(&'static [&'static str]),
    Aria2,
    Transmission,
    QBittorrent,
}
use Client::{Aria2 as A, Libtorrent as L, QBittorrent as Q, Transmission as T};

/// Whether the first peer that our process tells of is connected as expected.
fn connected(ours: &mut Anabranch, expected: &str) -> Result<()> {
    let (event, _) = ours.process.wait_event("peer_connected", TRANSFER_LIMIT)?;
    match event["encryption"] == expected {
        true => Ok(()),
        false => Err(Error::Nonsense { name: "the connection".into(), what: event.to_string() }),
    }
}

fn fetch_from(client: Client, ours: &[&str], method: &str) -> Result<()> {
    let fixture = Fixture::new(Content::Single, "1", Maker::Libtorrent, None)?;
    let (state, out) = (fixture.folder("state")?, fixture.folder("out")?);
    let get = |peer: SocketAddr| -> Result<()> {
        let mut get = Anabranch::get(&fixture.source(), &out, &[peer], None, ours)?;
        connected(&mut get, method)?;
        get.wait_finished(TRANSFER_LIMIT)?;
        fixture.check(&out)
    };
    match client {
        L(settings) => get(Libtorrent::seed_with(&fixture.torrent, &fixture.data, None, ANY, settings)?.address),
        A => {
            let seeder = Aria2::seed_with(&fixture.torrent, &fixture.data, ARIA2)?;
            fixture.tracker.wait_for(seeder.address, TRANSFER_LIMIT)?;
            get(seeder.address.into())
        }
        T => {
            let mut seeder = transmission(&state, &fixture, &fixture.data)?;
            seeder.wait_complete(TRANSFER_LIMIT)?;
            get(seeder.address.into())
        }
        Q => {
            let (torrent, data) = (&fixture.torrent, &fixture.data);
            let seeder = QBittorrent::seed_with(&state, torrent, data, TRANSFER_LIMIT, QBITTORRENT)?;
            get(seeder.address.into())
        }
    }
}

fn share_to(client: Client, ours: &[&str], method: &str) -> Result<()> {
    let fixture = Fixture::new(Content::Single, "1", Maker::Ours, None)?;
    let (state, out) = (fixture.folder("state")?, fixture.folder("out")?);
    let share = || -> Result<(Anabranch, SocketAddr)> {
        let (share, address) = Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, ours)?;
        if let SocketAddr::V4(address) = address {
            fixture.tracker.add_peer(address);
        }
        Ok((share, address))
    };
    match client {
        L(settings) => {
            let (mut share, address) = share()?;
            let mut leecher = Libtorrent::leech_with(&fixture.source(), &out, &[address], None, ANY, settings)?;
            connected(&mut share, method)?;
            leecher.wait_finished(TRANSFER_LIMIT)?;
        }
        A => {
            let (mut share, _) = share()?;
            let mut leecher = Aria2::leech_with(&fixture.torrent, &out, ARIA2)?;
            connected(&mut share, method)?;
            leecher.process.wait_success(TRANSFER_LIMIT)?;
        }
        T => {
            // It does not connect to loopback addresses itself: ours has to learn of it from the tracker.
            let mut leecher = transmission(&state, &fixture, &out)?;
            fixture.tracker.wait_for(leecher.address, TRANSFER_LIMIT)?;
            let (mut share, _) = share()?;
            connected(&mut share, method)?;
            leecher.wait_complete(TRANSFER_LIMIT)?;
        }
        Q => {
            let (mut share, _) = share()?;
            let mut leecher = QBittorrent::leech_with(&state, &fixture.source(), &out, QBITTORRENT)?;
            connected(&mut share, method)?;
            leecher.wait_finished(TRANSFER_LIMIT)?;
        }
    }
    fixture.check(&out)
}

fn transmission(state: &std::path::Path, fixture: &Fixture, data: &std::path::Path) -> Result<Transmission> {
    Transmission::start_with(state, &fixture.torrent, data, json!({ "encryption": 2 }))
}

/// One test a cell: `name: direction(client, our flags, what is agreed on)`.
macro_rules! cells {
    ($($name:ident: $direction:ident($client:expr, $ours:ident, $method:literal);)*) => {
        $(#[test] fn $name() {
            if let Err(error) = $direction($client, $ours, $method) {
                panic!("{error}");
            }
        })*
    };
}

cells! {
    from_libtorrent: fetch_from(L(LIBTORRENT_RC4), DEFAULT, "rc4");
    from_libtorrent_that_goes_on_in_the_clear: fetch_from(L(LIBTORRENT_CLEAR), DEFAULT, "handshake");
    from_libtorrent_both_insisting: fetch_from(L(LIBTORRENT_RC4), REQUIRE, "rc4");
    to_libtorrent: share_to(L(LIBTORRENT_RC4), DEFAULT, "rc4");
    to_libtorrent_that_goes_on_in_the_clear: share_to(L(LIBTORRENT_CLEAR), DEFAULT, "handshake");
    to_libtorrent_both_insisting: share_to(L(LIBTORRENT_RC4), REQUIRE, "rc4");
    from_aria2: fetch_from(A, DEFAULT, "rc4");
    to_aria2: share_to(A, DEFAULT, "rc4");
    from_transmission: fetch_from(T, DEFAULT, "rc4");
    to_transmission: share_to(T, DEFAULT, "rc4");
    from_qbittorrent: fetch_from(Q, REQUIRE, "rc4");
    to_qbittorrent: share_to(Q, REQUIRE, "rc4");
}

#[test]
fn ours_to_ours_as_both_want_it() {
    let fixture = Fixture::new(Content::Tree, "hybrid", Maker::Ours, None).unwrap_or_else(|error| panic!("{error}"));
    for (at, (share, get, expected)) in [
        ("allow", "allow", Value::Null),
        ("require", "allow", json!("rc4")),
        ("allow", "require", json!("rc4")),
        ("prefer", "prefer", json!("rc4")),
        ("off", "prefer", Value::Null),
        ("require", "require", json!("rc4")),
    ]
    .into_iter()
    .enumerate()
    {
        let out = fixture.folder(&format!("out {at}")).unwrap();
        let (_share, address) =
            Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &["--encryption", share]).unwrap();
        let mut get = Anabranch::get(&fixture.source(), &out, &[address], None, &["--encryption", get]).unwrap();
        let (event, _) =
            get.process.wait_event("peer_connected", TRANSFER_LIMIT).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(event["encryption"], expected, "{share}: {event}");
        get.wait_finished(TRANSFER_LIMIT).unwrap_or_else(|error| panic!("{error}"));
        fixture.check(&out).unwrap();
    }
}

#[test]
fn who_insists_has_nothing_to_do_with_who_does_not() {
    let fixture = Fixture::new(Content::Single, "1", Maker::Ours, None).unwrap_or_else(|error| panic!("{error}"));
    for (share, get) in [("require", "off"), ("off", "require")] {
        let out = fixture.folder(share).unwrap();
        let (_share, address) =
            Anabranch::share(&fixture.torrent, Some(&fixture.data), ANY, None, &["--encryption", share]).unwrap();
        let mut get = Anabranch::get(&fixture.source(), &out, &[address], None, &["--encryption", get]).unwrap();
        let (event, _) = get.process.wait_event("peer_error", TRANSFER_LIMIT).unwrap_or_else(|error| panic!("{error}"));
        assert!(event["reason"].as_str().is_some_and(|reason| reason.contains("--encryption")), "{event}");
    }
}
