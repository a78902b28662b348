//! The hash table of the public, with default settings: who shares joins it, so that a link alone finds it; nobody does without need.
//!
//! "The Internet" is a namespace here, and its hosts are others: public addresses, and the names of the public nodes, lead nowhere else.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use anabranch_testbed::fixture::{Content, Fixture, Maker};
use anabranch_testbed::net::{self, Namespace};
use anabranch_testbed::peers::anabranch::{Anabranch, command};
use anabranch_testbed::process::Process;
use anabranch_testbed::{Error, Result};

const LIMIT: Duration = Duration::from_secs(120);
/// Where the public nodes are.
const PUBLIC: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 9);
const NAMES: &str = "dht.libtorrent.org router.bittorrent.com dht.transmissionbt.com";
/// The port of two of them.
const PORT: u16 = 6881;

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Two hosts, `left` and `right`, each with a public address, and what is between them.
struct Internet {
    left: Namespace,
    right: Namespace,
    middle: Namespace,
    hosts: Vec<PathBuf>,
}

impl Internet {
    fn new() -> Option<Self> {
        if !net::available() {
            eprintln!("left out: not root");
            return None;
        }
        let (left, right, middle) = (must(Namespace::new()), must(Namespace::new()), must(Namespace::new()));
        for (number, name, host) in [(1, "left", &left), (2, "right", &right)] {
            let network = format!("9.{number}.0.0/24");
            must(host.link(name, &middle));
            must(host.device_up(name, &format!("9.{number}.0.2/24"), &network, 1500));
            must(middle.device_up(name, &format!("9.{number}.0.1/24"), &network, 1500));
            must(host.route("default", name, Some(&format!("9.{number}.0.1")), 1));
        }
        must(middle.add_address("lo", &format!("{PUBLIC}/32")));
        must(middle.set("net.ipv4.ip_forward", "1"));
        // `ip netns exec` lays them over the machine's own.
        let hosts = [&left, &right, &middle].map(|side| {
            let folder = PathBuf::from("/etc/netns").join(side.name());
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("hosts"), format!("127.0.0.1 localhost\n{PUBLIC} {NAMES}\n")).unwrap();
            // Whatever else is asked for is asked here, where nobody answers.
            std::fs::write(folder.join("resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
            folder
        });
        Some(Self { left, right, middle, hosts: hosts.into() })
    }

    /// Opens the port of public nodes, and notes what comes.
    fn witness(&self) -> UdpSocket {
        let bind = || UdpSocket::bind((PUBLIC, PORT)).map_err(Error::system("bind"));
        let socket = must(self.middle.enter(bind));
        socket.set_nonblocking(true).unwrap();
        socket
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        for folder in &self.hosts {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// What came to a socket so far.
fn came(socket: &UdpSocket) -> usize {
    let mut datagram = [0; 2000];
    std::iter::from_fn(|| socket.recv(&mut datagram).ok()).count()
}

fn fixture() -> Fixture {
    must(Fixture::new(Content::Bytes(1 << 20), "1", Maker::Ours, Some("http://127.0.0.1:9/announce")))
}

/// Of both, everything but what may be left out of it.
const DEFAULTS: [&str; 2] = ["--dht", "on"];

#[test]
fn a_link_alone_finds_who_shares_with_default_settings() {
    let Some(internet) = Internet::new() else { return };
    let (fixture, other) = (fixture(), must(Fixture::new(Content::Bytes(1 << 10), "1", Maker::Ours, None)));
    // A public node, which knows of no other.
    let (listen, nobody) = (format!("{PUBLIC}:{PORT}"), format!("{PUBLIC}:6999"));
    let extra = ["--dht", "on", "--dht-node", nobody.as_str()];
    let _node = must(Anabranch::share(&other.torrent, Some(&other.data), &listen, Some(&internet.middle), &extra));
    let data = Some(fixture.data.as_path());
    let _share = must(Anabranch::share(&fixture.torrent, data, "0.0.0.0:7000", Some(&internet.left), &DEFAULTS));
    let (link, out) = (fixture.magnet.split('&').next().unwrap_or_default(), must(fixture.folder("out")));
    let extra = [&DEFAULTS[..], &["--listen", "0.0.0.0:7001", "--give-up", "100s"]].concat();
    let mut get = must(Anabranch::get(link, &out, &[], Some(&internet.right), &extra));
    // Either may be found by the other: both are announced.
    must(get.wait_finished(LIMIT));
    must(fixture.check(&out));
}

/// Each of these shares for longer than it takes to be in need of the table.
#[test]
fn nobody_is_asked_for_what_is_private_or_by_who_named_other_nodes_or_none() {
    let Some(internet) = Internet::new() else { return };
    let fixture = fixture();
    let private = must(fixture.folder("private")).join("private.torrent");
    let mut edit = must(command(None));
    edit.arg("edit").arg(&fixture.torrent).arg("-o").arg(&private).arg("--private=yes");
    must(Process::run("anabranch edit", &mut edit, LIMIT));
    let witness = internet.witness();
    let share = |torrent: &std::path::Path, extra: &[&str]| {
        let data = Some(fixture.data.as_path());
        let extra = [extra, &["--stop-after", "9s"]].concat();
        let (mut share, _) = must(Anabranch::share(torrent, data, "0.0.0.0:7000", Some(&internet.left), &extra));
        must(share.process.wait_success(LIMIT));
        came(&witness)
    };
    let nobody = format!("{PUBLIC}:6999");
    assert_eq!(share(&private, &DEFAULTS), 0, "it is private");
    assert_eq!(share(&fixture.torrent, &["--dht", "on", "--dht-node", &nobody]), 0, "another one was named");
    assert_eq!(share(&fixture.torrent, &["--dht", "off"]), 0, "it is off");
    assert!(share(&fixture.torrent, &DEFAULTS) > 0);
}
