//! What torrents, links, trackers and peers of strangers may not make the program do.

mod common;

use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use common::{Running, anabranch, noise, run};

/// Longest wait for what is to come.
const PATIENCE: Duration = Duration::from_secs(20);

/// A service of the user's own, at the loopback, that strangers would like to have asked something.
struct Service(TcpListener);

impl Service {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    fn address(&self) -> String {
        self.0.local_addr().unwrap().to_string()
    }

    /// Who called so far, if anybody.
    fn call(&self) -> Option<TcpStream> {
        let stream = self.0.accept().ok()?.0;
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Some(stream)
    }

    /// The next call's first bytes.
    fn first_bytes(&self) -> String {
        let called = Instant::now();
        loop {
            if let Some(mut stream) = self.call() {
                let mut bytes = [0; 256];
                let length = stream.read(&mut bytes).unwrap();
                return String::from_utf8_lossy(&bytes[..length]).into_owned();
            }
            assert!(called.elapsed() < PATIENCE, "nobody called");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_torrents_tracker_at_home_is_asked_for_peers_and_for_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(50_000, 1)).unwrap();
    let service = Service::start();
    let forged = format!("http://{}/admin/delete?everything=1", service.address());
    assert_eq!(run(dir.path(), &["create", "one.bin", "-o", "forged.torrent", "--tracker", &forged]).0, 0);
    let start = |arguments: &[&str]| {
        let fixed = ["get", "-o", "out", "--listen", "0.0.0.0:0", "--json"];
        Running::start(anabranch(dir.path()).args(fixed).args(arguments))
    };
    let mut running = start(&["forged.torrent"]);
    let error = running.event("tracker_error");
    assert!(error["reason"].as_str().unwrap().contains("--tracker"), "{error}");
    assert_eq!(running.interrupt().0, 130);
    assert!(service.call().is_none(), "the service was asked");
    // What the user names is asked, be it in the torrent too.
    let running = start(&["forged.torrent", "--tracker", &forged]);
    assert!(service.first_bytes().starts_with("GET /admin/delete?everything=1&info_hash="));
    running.interrupt();
    // It was told that we leave.
    while service.call().is_some() {}
    // A tracker at home is one.
    let plain = format!("http://{}/announce", service.address());
    assert_eq!(run(dir.path(), &["create", "one.bin", "-o", "plain.torrent", "--tracker", &plain]).0, 0);
    let running = start(&["plain.torrent"]);
    assert!(service.first_bytes().starts_with("GET /announce?info_hash="));
    running.interrupt();
}

#[test]
fn a_link_leads_to_no_service_of_this_machine() {
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start();
    let address = service.address();
    // A hash that is a command to services that read lines.
    let command = "31320d0a464c555348414c4c0d0a333435363738";
    let link = format!("magnet:?xt=urn:btih:{command}&x.pe={address}");
    let get = |rest: &[&str]| Running::start(anabranch(dir.path()).args(["get", &link, "--json"]).args(rest));
    for listen in ["0.0.0.0:0", "127.0.0.1:0"] {
        let mut running = get(&["--listen", listen]);
        let unfit = running.event("peer_unfit");
        assert!(unfit["peer"] == *address && unfit["reason"].as_str().unwrap().contains("--peer"), "{unfit}");
        running.event("progress");
        assert_eq!(running.interrupt().0, 130);
        assert!(service.call().is_none(), "the service was dialled");
    }
    let running = get(&["--listen", "0.0.0.0:0", "--peer", &address]);
    assert!(service.first_bytes().starts_with("\u{13}BitTorrent protocol"));
    running.interrupt();
}
