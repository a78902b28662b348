//! One swarm with both kinds of peers: ours over several SCION paths, and libtorrent, aria2 and transmission over TCP/IP,
//! none of which knows of paths. None disturbs the others: everybody gets everything.

use std::time::Duration;

use anabranch_asnet::network::{Network, Options};
use anabranch_asnet::topology::Topology;
use anabranch_lab::run::{Event, EventReader, PathLogReader, Side};
use anabranch_paths::IsdAs;
use anabranch_testbed::Result;
use anabranch_testbed::fixture::{Content, Fixture, Maker, TRANSFER_LIMIT};
use anabranch_testbed::peers::aria2::Aria2;
use anabranch_testbed::peers::libtorrent::Libtorrent;
use anabranch_testbed::peers::transmission::Transmission;
use anabranch_testbed::peers::{address_of, anabranch};
use anabranch_testbed::process::Process;

/// Two ASes, three paths.
const NETWORK: &str = "
    network = '127.151.0.0'
    [as.'1-ff00:0:110']
    core = true
    [as.'1-ff00:0:111']
    [[link]]
    parent = '1-ff00:0:110'
    child = '1-ff00:0:111'
    rate = '20 Mbit/s'
    delay = '5 ms'
    count = 3
";
const START_LIMIT: Duration = Duration::from_secs(60);

/// Ours at the host of an AS, over SCION and on the loopback.
fn ours(network: &Network, isd_as: &str, words: &[&str]) -> Result<Process> {
    let home = network.topology().get(isd_as.parse::<IsdAs>().unwrap()).unwrap();
    let mut command = anabranch::command(None)?;
    let listen = format!("[{isd_as},{}]:0", home.hosts[0].address);
    command.args(words).args(["--json", "--listen", "127.0.0.1:0", "--listen", &listen]);
    command.args(["--sciond", &home.daemon.to_string(), "--paths", "3"]);
    Process::spawn(format!("anabranch {}", words[0]), &mut command)
}

/// Everybody fetches from one seeder of ours, and ours over all three paths.
fn swarm() -> Result<()> {
    let fixture = Fixture::new(Content::Bytes(12_000_001), "1", Maker::Ours, None)?;
    let network = Network::start(Topology::from_toml("mixed.toml", NETWORK).unwrap(), Options::default()).unwrap();
    let transmission_out = fixture.folder("transmission")?;
    // It does not dial loopback addresses: it has to be known before ours comes, which dials it.
    let mut transmission = Transmission::start(&fixture.folder("state")?, &fixture.torrent, &transmission_out)?;
    fixture.tracker.wait_for(transmission.address, TRANSFER_LIMIT)?;

    let data = fixture.data.display().to_string();
    // The same for each connection, so that the loopback does not outrun the paths.
    let mut seeder =
        ours(&network, "1-ff00:0:110", &["share", &fixture.source(), "--data", &data, "--peer-limit-up", "1M"])?;
    let mut over_ip = None;
    let mut over_scion = None;
    while over_ip.is_none() || over_scion.is_none() {
        let (event, _) = seeder.wait_event("listening", START_LIMIT)?;
        match address_of(&event) {
            Ok(address) => over_ip = Some(address),
            Err(_) => over_scion = event["address"].as_str().map(str::to_owned),
        }
    }
    let (over_ip, over_scion) = (over_ip.unwrap(), over_scion.unwrap());
    if let std::net::SocketAddr::V4(address) = over_ip {
        fixture.tracker.add_peer(address);
    }
    let (libtorrent_out, aria2_out, our_out) =
        (fixture.folder("libtorrent")?, fixture.folder("aria2")?, fixture.folder("ours")?);
    let mut libtorrent = Libtorrent::leech(&fixture.source(), &libtorrent_out, &[over_ip], None, "127.0.0.1:0")?;
    let mut aria2 = Aria2::leech(&fixture.torrent, &aria2_out)?;
    let log = our_out.join("paths.csv");
    let (out, log_text) = (our_out.display().to_string(), log.display().to_string());
    let words = ["get", &fixture.source(), "-o", &out, "--path-log", &log_text, "--peer", &over_scion];
    let mut leecher = ours(&network, "1-ff00:0:111", &words)?;

    let usage = leecher.wait_success(TRANSFER_LIMIT)?;
    libtorrent.wait_finished(TRANSFER_LIMIT)?;
    aria2.process.wait_success(TRANSFER_LIMIT)?;
    transmission.wait_complete(TRANSFER_LIMIT)?;
    assert!(usage.status.success());
    for out in [&our_out, &libtorrent_out, &aria2_out, &transmission_out] {
        fixture.check(out)?;
    }

    // Nobody was sent away, and ours had its paths meanwhile.
    for process in [&mut seeder, &mut leecher] {
        let mut reader = EventReader::new("ours", Side::Downloader);
        for line in process.rest() {
            assert_ne!(line.json()["event"], "banned", "{}", line.text);
            assert_ne!(line.json()["event"], "piece_failed", "{}", line.text);
            assert!(!matches!(reader.read(&line.text), Ok(Event::Failed { .. }) | Err(_)), "{}", line.text);
        }
    }
    let log = PathLogReader::new(&log).finish().unwrap();
    let scion = log.series.iter().filter(|series| series.peer.contains("1-ff00") && series.bytes() > 0).count();
    assert!(scion >= 2, "ours used {scion} SCION paths");
    Ok(())
}

#[test]
fn other_clients_and_peers_over_several_paths_share_a_swarm() {
    // Other clients now and then drop a first connection and wait minutes before the next: once more, and no oftener.
    if let Err(first) = swarm() {
        eprintln!("tried again after: {first}");
        if let Err(error) = swarm() {
            panic!("{error}");
        }
    }
}
