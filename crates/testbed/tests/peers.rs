//! The other clients among themselves: proves that the testbed drives each of them right, in both roles, whatever the
//! state of ours. Where one of these fails, the matrix says nothing.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use anabranch_testbed::fixture::{Content, Fixture, Maker, TRANSFER_LIMIT};
use anabranch_testbed::peers::aria2::Aria2;
use anabranch_testbed::peers::libtorrent::Libtorrent;
use anabranch_testbed::peers::transmission::Transmission;
use anabranch_testbed::process::Process;
use anabranch_testbed::wire::{Shape, Wire};
use anabranch_testbed::{net, tracker::Tracker};

const ANY: &str = "127.0.0.1:0";

fn fixture(content: Content, version: &str) -> Fixture {
    Fixture::new(content, version, Maker::Libtorrent, None).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn libtorrent_to_itself_in_all_versions() {
    for version in ["1", "2", "hybrid"] {
        let fixture = fixture(Content::Tree, version);
        let seeder = Libtorrent::seed(&fixture.torrent, &fixture.data, None, ANY).unwrap();
        for (name, source) in [("file", fixture.source()), ("magnet", fixture.magnet.clone())] {
            let out = fixture.folder(name).unwrap();
            let mut leecher = Libtorrent::leech(&source, &out, &[seeder.address], None, ANY).unwrap();
            leecher.wait_finished(TRANSFER_LIMIT).unwrap_or_else(|error| panic!("{version} {name}: {error}"));
            fixture.check(&out).unwrap();
        }
    }
}

#[test]
fn libtorrent_to_aria2_and_back() {
    let fixture = fixture(Content::Tree, "1");
    let seeder = Libtorrent::seed(&fixture.torrent, &fixture.data, None, ANY).unwrap();
    let SocketAddr::V4(address) = seeder.address else { panic!("IPv4") };
    fixture.tracker.add_peer(address);
    let out = fixture.folder("aria2").unwrap();
    let mut leecher = Aria2::leech(&fixture.torrent, &out).unwrap();
    leecher.process.wait_success(TRANSFER_LIMIT).unwrap_or_else(|error| panic!("{error}"));
    fixture.check(&out).unwrap();
    drop(seeder);

    let seeder = Aria2::seed(&fixture.torrent, &fixture.data).unwrap();
    fixture.tracker.wait_for(seeder.address, TRANSFER_LIMIT).unwrap_or_else(|error| panic!("{error}"));
    let out = fixture.folder("libtorrent").unwrap();
    let mut leecher = Libtorrent::leech(&fixture.source(), &out, &[seeder.address.into()], None, ANY).unwrap();
    leecher.wait_finished(TRANSFER_LIMIT).unwrap_or_else(|error| panic!("{error}"));
    fixture.check(&out).unwrap();
}

#[test]
fn libtorrent_to_transmission_and_back() {
    let fixture = fixture(Content::Tree, "1");
    let out = fixture.folder("transmission").unwrap();
    let mut leecher = Transmission::start(&fixture.folder("state").unwrap(), &fixture.torrent, &out).unwrap();
    fixture.tracker.wait_for(leecher.address, TRANSFER_LIMIT).unwrap_or_else(|error| panic!("{error}"));
    let seeder = Libtorrent::seed(&fixture.torrent, &fixture.data, None, ANY).unwrap();
    leecher.wait_complete(TRANSFER_LIMIT).unwrap_or_else(|error| panic!("{error}"));
    fixture.check_but_empty(&out).unwrap();
    drop((seeder, leecher));

    let mut seeder = Transmission::start(&fixture.folder("state 2").unwrap(), &fixture.torrent, &fixture.data).unwrap();
    seeder.wait_complete(TRANSFER_LIMIT).unwrap_or_else(|error| panic!("{error}"));
    let out = fixture.folder("libtorrent").unwrap();
    let mut leecher = Libtorrent::leech(&fixture.source(), &out, &[seeder.address.into()], None, ANY).unwrap();
    leecher.wait_finished(TRANSFER_LIMIT).unwrap_or_else(|error| panic!("{error}"));
    fixture.check(&out).unwrap();
}

#[test]
fn a_wire_delays_and_counts() {
    if !net::available() {
        eprintln!("not run: namespaces need root");
        return;
    }
    let shape = Shape::new(200_000_000, Duration::from_millis(60));
    let wire = Wire::new(shape).unwrap_or_else(|error| panic!("{error}"));
    let floor = env!("CARGO_BIN_EXE_anabranch-floor");
    let listen = format!("{}:7000", Wire::LEFT);
    let (bytes, limit) = ("4000000", Duration::from_secs(60));
    let mut sender = Process::spawn("sender", wire.left.command(floor).args(["tcp-send", bytes, &listen])).unwrap();
    sender.wait_event("listening", limit).unwrap_or_else(|error| panic!("{error}"));
    let started = Instant::now();
    let (lines, _) = Process::run("receiver", wire.right.command(floor).args(["tcp-recv", bytes, &listen]), limit)
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(lines[0].json()["downloaded"], 4_000_000);
    // Connecting takes a round trip, and the bytes take their time: physics, so no machine is too slow for this.
    assert!(started.elapsed() > Duration::from_millis(60 + 30));
    let [there, back] = wire.counts();
    assert!(there.bytes > 4_000_000 && back.bytes > 0, "{there:?} {back:?}");
    assert!(wire.is_alive());
}

#[test]
fn lost_packets_are_counted_and_tcp_copes() {
    if !net::available() {
        eprintln!("not run: namespaces need root");
        return;
    }
    let wire = Wire::new(Shape { loss: 0.02, ..Shape::new(100_000_000, Duration::from_millis(4)) }).unwrap();
    let floor = env!("CARGO_BIN_EXE_anabranch-floor");
    let listen = format!("{}:7000", Wire::LEFT);
    let (bytes, limit) = ("2000000", Duration::from_secs(60));
    let mut sender = Process::spawn("sender", wire.left.command(floor).args(["tcp-send", bytes, &listen])).unwrap();
    sender.wait_event("listening", limit).unwrap();
    let mut receiver = wire.right.command(floor);
    Process::run("receiver", receiver.args(["tcp-recv", bytes, &listen]), limit)
        .unwrap_or_else(|error| panic!("{error}"));
    let [there, _] = wire.counts();
    assert!(there.lost > 0 && there.bursts >= 1300, "{there:?}");
}

#[test]
fn a_gone_tracker_is_gone() {
    let tracker = Tracker::start().unwrap();
    let url = tracker.url();
    drop(tracker);
    let address = url.trim_start_matches("http://").trim_end_matches("/announce").to_owned();
    // The port closes as soon as the thread sees the wake-up call.
    let closed = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        std::net::TcpStream::connect(&address).is_err()
    });
    assert!(closed);
    // And a program that is not there is named.
    assert!(Process::spawn("nobody", &mut Command::new("/nonexistent/nobody")).is_err());
}
