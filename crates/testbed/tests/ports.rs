//! Ports that routers open: miniupnpd's, by PCP and by UPnP, and routers that answer anything.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anabranch_testbed::fixture::{Content, Fixture, Maker};
use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::router::{GATEWAY, HOST, Home, Internet, Kind};
use anabranch_testbed::{Result, net};

const LIMIT: Duration = Duration::from_secs(120);
const MAPPING: [&str; 2] = ["--port-mapping", "on"];

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// One home, if there may be any.
fn home() -> Option<(Internet, Home)> {
    if !net::available() {
        eprintln!("left out: not root");
        return None;
    }
    let internet = must(Internet::new());
    let home = must(internet.home(1, Kind::Restricted));
    Some((internet, home))
}

fn fixture() -> Fixture {
    must(Fixture::new(Content::Bytes(1 << 20), "1", Maker::Ours, None))
}

/// Waits until the router opened both ports, and answers how it was asked.
fn opened(share: &mut Anabranch, home: &Home, port: u16) -> String {
    let mut method = String::new();
    let mut protocols = Vec::new();
    for _ in 0..2 {
        let (event, _) = must(share.process.wait_event("port_opened", LIMIT));
        assert_eq!(event["external"], format!("{}:{port}", home.outside));
        assert_eq!(event["local"], format!("{HOST}:{port}"));
        assert_eq!(event["public"], true);
        protocols.push(event["protocol"].as_str().unwrap_or_default().to_owned());
        method = event["method"].as_str().unwrap_or_default().to_owned();
    }
    protocols.sort();
    assert_eq!(protocols, ["tcp", "udp"]);
    method
}

/// Behind a router, somebody outside fetches by the address that the router gave, and when it ends the router is as it was before.
fn opens_and_closes(speaks_pcp: bool, expected: &str) {
    let Some((internet, home)) = home() else { return };
    let fixture = fixture();
    let folder = must(fixture.folder("router"));
    let _router = must(home.miniupnpd(1, &folder, speaks_pcp));
    assert!(must(home.open_ports()).is_empty());
    let listen = "0.0.0.0:7000";
    let (mut share, _) =
        must(Anabranch::share(&fixture.torrent, Some(&fixture.data), listen, Some(&home.host), &MAPPING));
    assert_eq!(opened(&mut share, &home, 7000), expected);
    assert_eq!(must(home.open_ports()).len(), 2);
    let outside: SocketAddr = format!("{}:7000", home.outside).parse().unwrap();
    for utp in ["off", "only"] {
        let out = must(fixture.folder(utp));
        let torrent = fixture.torrent.to_string_lossy().into_owned();
        let mut get = must(Anabranch::get(&torrent, &out, &[outside], Some(&internet.middle), &["--utp", utp]));
        must(get.wait_finished(LIMIT));
        must(fixture.check(&out));
    }
    must(share.process.stop());
    assert!(must(home.open_ports()).is_empty(), "{:?}", must(home.open_ports()));
}

#[test]
fn miniupnpd_opens_and_closes_ports_by_pcp() {
    opens_and_closes(true, "PCP");
}

#[test]
fn miniupnpd_opens_and_closes_ports_by_upnp() {
    opens_and_closes(false, "UPnP");
}

/// A router of UPnP that answers a search with `location`, and a request over HTTP with `page`, again and again.
fn answer(location: &str, page: &[u8], asked: &AtomicUsize) -> Result<()> {
    let system = anabranch_testbed::Error::system;
    let search = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 1900)).map_err(system("bind"))?;
    search.set_read_timeout(Some(LIMIT)).map_err(system("timeout"))?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 5000)).map_err(system("listen"))?;
    let mut question = [0; 1500];
    let (_, from) = search.recv_from(&mut question).map_err(system("recv"))?;
    let answer = format!("HTTP/1.1 200 OK\r\nLOCATION: {location}\r\n\r\n");
    search.send_to(answer.as_bytes(), from).map_err(system("send"))?;
    if page.is_empty() {
        return Ok(());
    }
    let (mut stream, _) = listener.accept().map_err(system("accept"))?;
    asked.fetch_add(1, Ordering::Relaxed);
    // The head of the request; what follows is for nobody.
    let _ = stream.read(&mut question);
    for _ in 0..2000 {
        if stream.write_all(page).is_err() {
            break;
        }
        if page.starts_with(b"HTTP/1.1 3") {
            break;
        }
    }
    Ok(())
}

/// What a share behind such a router says of it, and whether somebody else was asked.
fn refused(location: &str, page: &[u8]) -> Option<(String, usize)> {
    let (_internet, home) = home()?;
    let fixture = fixture();
    let asked = AtomicUsize::new(0);
    let reason = std::thread::scope(|scope| {
        let router = scope.spawn(|| home.router.enter(|| answer(location, page, &asked)));
        // Whoever follows a redirect comes here.
        let victim = must(
            home.host.enter(|| TcpListener::bind("127.0.0.1:8080").map_err(anabranch_testbed::Error::system("listen"))),
        );
        victim.set_nonblocking(true).unwrap();
        let (mut share, _) =
            must(Anabranch::share(&fixture.torrent, Some(&fixture.data), "0.0.0.0:7000", Some(&home.host), &MAPPING));
        let (event, _) = must(share.process.wait_event("port_error", LIMIT));
        assert_eq!(event["router"], GATEWAY);
        assert!(victim.accept().is_err(), "somebody else was asked");
        must(share.process.stop());
        must(router.join().unwrap());
        event["reason"].as_str().unwrap_or_default().to_owned()
    });
    Some((reason, asked.into_inner()))
}

#[test]
fn a_router_sends_nobody_elsewhere() {
    let Some((reason, asked)) = refused("http://127.0.0.1:8080/shutdown", b"") else { return };
    assert!(reason.contains("another address") && asked == 0, "{reason}");
    let page = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:8080/shutdown\r\nContent-Length: 0\r\n\r\n";
    let Some((reason, asked)) = refused(&format!("http://{GATEWAY}:5000/desc.xml"), page) else { return };
    assert!(reason.contains("302") && asked == 1, "{reason}");
}

#[test]
fn a_router_that_talks_without_end_is_cut_short() {
    let page = [&b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n"[..], &[b'<'; 4096]].concat();
    let Some((reason, asked)) = refused(&format!("http://{GATEWAY}:5000/desc.xml"), &page) else { return };
    assert!(reason.contains("UPnP") && asked == 1, "{reason}");
}
