//! What torrents, links, trackers and peers of strangers may not make the program do.

mod common;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Running, anabranch, assert_same, noise, run, share};

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

/// The same by PPSPP, whose links anybody makes too.
#[test]
fn a_ppspp_link_leads_to_no_service_of_this_machine() {
    let dir = tempfile::tempdir().unwrap();
    let service = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = service.local_addr().unwrap().to_string();
    // The identifier has a line of text in it.
    let command = format!("{}0d0a464c555348414c4c0d0a{}", "31".repeat(10), "32".repeat(10));
    let link = format!("ppspp:{command}?cp=1&hf=2&ca=2&cs=1024&cl=5000&dn=x&pe={address}");
    let mut buffer = [0; 2048];
    for listen in ["0.0.0.0:0", "127.0.0.1:0"] {
        let mut running =
            Running::start(anabranch(dir.path()).args(["get", &link, "--json", "--listen", listen, "--give-up", "1s"]));
        let unfit = running.event("peer_unfit");
        assert!(unfit["peer"] == *address && unfit["reason"].as_str().unwrap().contains("--peer"), "{unfit}");
        while running.line_or_end().is_some() {}
        service.set_nonblocking(true).unwrap();
        assert!(service.recv(&mut buffer).is_err(), "a datagram came");
    }
    let running = Running::start(anabranch(dir.path()).args(["get", &link, "--json", "--peer", &address]));
    service.set_nonblocking(false).unwrap();
    service.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert!(service.recv(&mut buffer).unwrap() > 4, "who is named by hand is dialled");
    running.interrupt();
}

/// What a GET is answered, head and body.
fn http_get(address: &str, target: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_closed_tracker_serves_what_is_listed_to_those_with_the_key() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["one.bin", "two.bin"] {
        fs::write(dir.path().join(name), noise(50_000, name.len() as u64)).unwrap();
        let out = format!("{name}.torrent");
        assert_eq!(run(dir.path(), &["create", name, "-o", &out, "--name", name]).0, 0);
    }
    let hash = "c12fe1c06bba254a9dc9f519b335aa7c1367a88a";
    let arguments = ["tracker", "--listen", "127.0.0.1:0", "--passkey", "s3cret", "--json"];
    let allowed = ["--allow-content", "one.bin.torrent", "--allow-content", hash];
    let mut tracker = Running::start(anabranch(dir.path()).args(arguments).args(allowed));
    let http = tracker.event("listening")["http"].as_str().unwrap().to_owned();
    assert!(http.ends_with("/s3cret/announce"), "{http}");
    let announced = |torrent: &str, url: &str| {
        let fixed = ["share", torrent, "--listen", "127.0.0.1:0", "--json", "--tracker", url];
        let mut sharer = Running::start(anabranch(dir.path()).args(fixed));
        loop {
            let event: serde_json::Value = serde_json::from_str(&sharer.line()).unwrap();
            match event["event"].as_str() {
                Some("tracker") => return "well".to_owned(),
                Some("tracker_error") => return event["reason"].as_str().unwrap().to_owned(),
                _ => {}
            }
        }
    };
    assert_eq!(announced("one.bin.torrent", &http), "well");
    assert!(announced("two.bin.torrent", &http).contains("does not track this content"));
    assert!(announced("one.bin.torrent", &http.replace("s3cret/", "")).contains("has a key"));
    let udp = http.replace("http://", "udp://");
    assert_eq!(announced("one.bin.torrent", &udp), "well");
    assert!(announced("one.bin.torrent", &udp.replace("s3cret", "guess")).contains("has a key"));
    for (flags, needle) in
        [(["--passkey", "no/key"], "`--passkey` takes"), (["--allow-content", "nowhere.torrent"], "nowhere.torrent")]
    {
        let (code, _, stderr) = run(dir.path(), &[&["tracker", "--listen", "127.0.0.1:0"], &flags[..]].concat());
        assert!(matches!(code, 2 | 3) && stderr.contains(needle), "{code}: {stderr}");
    }
}

#[test]
fn a_tracker_serves_ipv4_and_ipv6_unless_it_is_told_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: no IPv6 here");
        return;
    }
    let listen = ["--listen", "[::]:0"];
    let mut tracker = Running::start(anabranch(dir.path()).args(["tracker", "--json"]).args(listen));
    let address = tracker.event("listening")["address"].as_str().unwrap().to_owned();
    let port = address.rsplit_once(':').unwrap().1;
    for host in ["127.0.0.1", "[::1]"] {
        assert!(http_get(&format!("{host}:{port}"), "/stats", "Host: t\r\n").starts_with("HTTP/1.1 200"), "{host}");
    }
    // Two addresses of one tracker; and the usual port for both families where none is given, if nobody has it.
    let several = ["tracker", "--json", "--listen", "127.0.0.1:0", "--listen", "127.0.0.2:0"];
    let mut tracker = Running::start(anabranch(dir.path()).args(several));
    for host in ["127.0.0.1:", "127.0.0.2:"] {
        assert!(tracker.event("listening")["address"].as_str().unwrap().starts_with(host));
    }
}

#[test]
fn the_control_door_of_a_network_is_shut_to_web_pages() {
    let dir = tempfile::tempdir().unwrap();
    // Addresses that no other test uses.
    let topology =
        format!("network = \"127.{}.200.0\"\n[as.\"1-ff00:0:110\"]\ncore = true\n", 128 + std::process::id() % 64);
    fs::write(dir.path().join("one.toml"), topology).unwrap();
    let up = ["net", "up", "one.toml", "--control", "127.0.0.1:0", "--json"];
    let mut network = Running::start(anabranch(dir.path()).args(up));
    let shown = network.event("network");
    let control = shown["control"].as_str().unwrap();
    let daemon = shown["ases"][0]["daemon"].as_str().unwrap();
    assert!(http_get(control, "/network", &format!("Host: {control}\r\n")).starts_with("HTTP/1.1 200"));
    for door in [control, daemon] {
        assert!(http_get(door, "/network", "Host: evil.example:80\r\n").starts_with("HTTP/1.1 421"), "{door}");
    }
}

#[test]
fn blocked_hosts_are_neither_served_nor_asked() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(50_000, 3)).unwrap();
    fs::write(dir.path().join("list.dat"), "127.000.000.009 - 127.000.000.010 , 100 , Some, body\nodd line\n").unwrap();
    let (_sharer, address, magnet) = share(dir.path(), &["one.bin", "--ip-filter", "list.dat", "--bans", "bans"]);
    // Who calls from a blocked address is left before it says anything.
    let greeted = |from: &str| {
        let hash = magnet.split("btih:").nth(1).unwrap().get(..40).unwrap();
        let hash: Vec<u8> = (0..20).map(|at| u8::from_str_radix(&hash[2 * at..2 * at + 2], 16).unwrap()).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
            let mut stream = socket.connect(address.parse().unwrap()).await.unwrap().into_std().unwrap();
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let hello = [&b"\x13BitTorrent protocol\0\0\0\0\0\0\0\0"[..], &hash, &[b'p'; 20]].concat();
            let _ = stream.write_all(&hello);
            let mut answer = [0; 68];
            stream.read_exact(&mut answer).is_ok()
        })
    };
    assert!(greeted("127.0.0.8") && !greeted("127.0.0.9") && !greeted("127.0.0.10") && greeted("127.0.0.11"));
    let fetch = ["get", &magnet, "-o", "out", "--listen", "127.0.0.1:0", "--json", "--peer", &address];
    let mut blocked = Running::start(anabranch(dir.path()).args(fetch).args(["--block", "127.0.0.0/24"]));
    let gone = blocked.event("peer_disconnected");
    assert!(gone["reason"].as_str().unwrap().contains("--block"), "{gone}");
    // What a list says has to make sense.
    fs::write(dir.path().join("no-list"), "this is\nno list\n").unwrap();
    fs::write(dir.path().join("packed"), [0x1f, 0x8b, 8, 0]).unwrap();
    // Nobody writes to it.
    assert!(std::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap().success());
    for (flag, value, code, needle) in [
        ("--ip-filter", "no-list", 3, "line 1"),
        ("--ip-filter", "packed", 3, "unpack"),
        ("--ip-filter", "nowhere", 3, "cannot read nowhere"),
        ("--ip-filter", "pipe", 3, "cannot read pipe: it is no file"),
        ("--block", "127.0.0.1/33", 2, "names nobody to block"),
        ("--bans", "nowhere/bans", 5, "--bans"),
        ("--allow", "a key", 3, "`--allow a key` is no key"),
        ("--allow", &("a".repeat(51) + "q"), 2, "SCION"),
    ] {
        let (found, _, stderr) = run(dir.path(), &[&fetch[..], &[flag, value]].concat());
        assert!(found == code && stderr.contains(needle), "{flag} {value}: {found}, {stderr}");
    }
}

/// A proxy of either kind that writes down where it is asked to go.
struct TestProxy {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl TestProxy {
    fn start(is_socks: bool) -> Self {
        Self::start_as(if is_socks { Kind::Socks } else { Kind::Http })
    }

    fn start_as(kind: Kind) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = Arc::<Mutex<Vec<String>>>::default();
        let told = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let told = Arc::clone(&told);
                std::thread::spawn(move || serve_proxy(stream, kind, &told));
            }
        });
        Self { address, asked }
    }

    fn asked(&self) -> Vec<String> {
        let mut asked = self.asked.lock().unwrap().clone();
        asked.sort();
        asked.dedup();
        asked
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Http,
    /// As most are: it relays no UDP.
    Socks,
    SocksWithUdp,
    /// It says so, and sends garbage.
    SocksWithGarbage,
}

fn serve_proxy(mut stream: TcpStream, kind: Kind, asked: &Mutex<Vec<String>>) -> Option<()> {
    let take = |stream: &mut TcpStream, length: usize| {
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).ok().map(|()| bytes)
    };
    let target = if kind != Kind::Http {
        // RFC 1928 §3, §4: methods, then the request.
        let methods = usize::from(take(&mut stream, 2)?[1]);
        take(&mut stream, methods)?;
        stream.write_all(&[5, 0]).ok()?;
        let head = take(&mut stream, 4)?;
        let host = match head[3] {
            1 => take(&mut stream, 4)?.iter().map(u8::to_string).collect::<Vec<_>>().join("."),
            _ => {
                let length = usize::from(take(&mut stream, 1)?[0]);
                String::from_utf8(take(&mut stream, length)?).ok()?
            }
        };
        let port = take(&mut stream, 2)?;
        match (head[1], kind) {
            (3, Kind::Socks) => return stream.write_all(&[5, 7, 0, 1, 0, 0, 0, 0, 0, 0]).ok(),
            (3, _) => return relay(stream, kind == Kind::SocksWithGarbage, asked),
            _ => {}
        }
        stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).ok()?;
        format!("{host}:{}", u16::from_be_bytes([port[0], port[1]]))
    } else {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.extend(take(&mut stream, 1)?);
        }
        let head = String::from_utf8(head).ok()?;
        // RFC 7617: user and pass.
        if !head.contains("Proxy-Authorization: Basic dXNlcjpwYXNz") {
            stream.write_all(b"HTTP/1.1 407 Who are you\r\n\r\n").ok()?;
            return None;
        }
        stream.write_all(b"HTTP/1.1 200 Here\r\n\r\n").ok()?;
        head.split(' ').nth(1)?.to_owned()
    };
    asked.lock().unwrap().push(target.clone());
    let mut onward = TcpStream::connect(target).ok()?;
    let (mut back, mut there) = (onward.try_clone().ok()?, stream.try_clone().ok()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut back, &mut there);
        let _ = there.shutdown(std::net::Shutdown::Both);
    });
    let _ = std::io::copy(&mut stream, &mut onward);
    let _ = onward.shutdown(std::net::Shutdown::Both);
    Some(())
}

/// Relays the datagrams of one caller (RFC 1928 §7) for as long as its connection is open.
fn relay(mut stream: TcpStream, is_garbage: bool, asked: &Mutex<Vec<String>>) -> Option<()> {
    let near = UdpSocket::bind("127.0.0.1:0").ok()?;
    let far = UdpSocket::bind("127.0.0.1:0").ok()?;
    let port = near.local_addr().ok()?.port().to_be_bytes();
    // Where the relay is, it does not know, or says wrongly.
    let address = if is_garbage { [127, 0, 0, 9] } else { [0; 4] };
    stream.write_all(&[&[5, 0, 0, 1][..], &address, &port].concat()).ok()?;
    let (near_back, far_back) = (near.try_clone().ok()?, far.try_clone().ok()?);
    stream.set_read_timeout(Some(Duration::from_millis(20))).ok()?;
    near.set_read_timeout(Some(Duration::from_millis(20))).ok()?;
    far.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    let mut bytes = [0; 4096];
    let mut back = None;
    loop {
        match stream.read(&mut [0]) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            _ => return None,
        }
        let Ok((length, from)) = near.recv_from(&mut bytes) else { continue };
        let head = usize::from(bytes[4]) + 5;
        let (host, port) = match bytes[3] {
            3 => (String::from_utf8_lossy(&bytes[5..head]).into_owned(), head),
            _ => (bytes[4..8].iter().map(u8::to_string).collect::<Vec<_>>().join("."), 8),
        };
        let target = format!("{host}:{}", u16::from_be_bytes([bytes[port], bytes[port + 1]]));
        asked.lock().unwrap().push(format!("udp {target}"));
        if is_garbage {
            let fragment = [&[0, 0, 1, 1, 127, 0, 0, 1][..], &bytes[port..port + 2], b"fragment"].concat();
            for garbage in [&b"garbage"[..], b"", &fragment, &[0; 10]] {
                let _ = near.send_to(garbage, from);
            }
            continue;
        }
        // By IPv4, which is where the tracker of the test listens.
        let target = target.replace("localhost", "127.0.0.1");
        let _ = far.send_to(&bytes[port + 2..length], target);
        if back.is_none() {
            let (near, far) = (near_back.try_clone().ok()?, far_back.try_clone().ok()?);
            back = Some(std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok((length, SocketAddr::V4(source))) = far.recv_from(&mut bytes) {
                    let head = [&[0, 0, 0, 1][..], &source.ip().octets(), &source.port().to_be_bytes()].concat();
                    let _ = near.send_to(&[&head[..], &bytes[..length]].concat(), from);
                }
            }));
        }
    }
}

#[test]
fn udp_trackers_are_asked_through_the_proxy_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(300_000, 5)).unwrap();
    let (code, _, stderr) = run(dir.path(), &["create", "one.bin", "-o", "t.torrent"]);
    assert_eq!(code, 0, "{stderr}");
    let mut tracker = Running::start(anabranch(dir.path()).args(["tracker", "--listen", "127.0.0.1:0", "--json"]));
    let udp = tracker.event("listening")["udp"].as_str().unwrap().to_owned();
    let get = |kind, tracker: &str| {
        let proxy = TestProxy::start_as(kind);
        let url = format!("socks5://{}", proxy.address);
        let arguments = ["get", "t.torrent", "-o", "out", "--json", "--proxy", &url, "--tracker", tracker];
        (Running::start(anabranch(dir.path()).args(arguments)), proxy)
    };
    // By its name, which the proxy looks up.
    let named = udp.replace("127.0.0.1", "localhost");
    let (mut getter, proxy) = get(Kind::SocksWithUdp, &named);
    let answered = getter.event("tracker");
    let host = named.strip_prefix("udp://").unwrap().trim_end_matches("/announce");
    assert_eq!(answered["url"], format!("udp://{host}"));
    assert_eq!(proxy.asked(), [format!("udp {host}")]);
    getter.interrupt();
    // Whatever the proxy does not do, nothing goes past it.
    let unasked = UdpSocket::bind("127.0.0.1:0").unwrap();
    unasked.set_nonblocking(true).unwrap();
    let url = format!("udp://{}/announce", unasked.local_addr().unwrap());
    let (mut getter, _proxy) = get(Kind::Socks, &url);
    let error = getter.event("tracker_error");
    assert!(error["reason"].as_str().unwrap().contains("relays no UDP"), "{error}");
    getter.interrupt();
    let (getter, proxy) = get(Kind::SocksWithGarbage, &url);
    let begun = Instant::now();
    while proxy.asked().is_empty() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(proxy.asked(), [format!("udp {}", unasked.local_addr().unwrap())]);
    getter.interrupt();
    assert_eq!(unasked.recv(&mut [0; 64]).unwrap_err().kind(), ErrorKind::WouldBlock, "a datagram went past the proxy");
}

#[test]
fn utp_goes_through_the_relay_of_a_proxy_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(300_000, 6))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let (_sharer, address, _) = share(dir.path(), &["one.bin", "--torrent-out", "t.torrent"]);
    let get = |kind, peer: &str| {
        let proxy = TestProxy::start_as(kind);
        let url = format!("socks5://{}", proxy.address);
        let arguments = ["get", "t.torrent", "-o", "out", "--json", "--utp", "only", "--proxy", &url, "--peer", peer];
        (Running::start(anabranch(dir.path()).args(arguments)), proxy)
    };
    let (mut getter, _proxy) = get(Kind::Socks, &address);
    let error = getter.event("relay_error");
    assert!(error["reason"].as_str().unwrap().contains("UDP ASSOCIATE"), "{error}");
    getter.interrupt();
    let (mut getter, proxy) = get(Kind::SocksWithUdp, &address);
    assert_eq!(getter.event("peer_connected")["transport"], "utp");
    getter.event("finished");
    assert_same(&dir.path().join("out"), &file);
    assert_eq!(proxy.asked(), [format!("udp {address}")]);
    // A relay that sends nonsense: nobody is reached, and nothing goes past it.
    let unasked = UdpSocket::bind("127.0.0.1:0").unwrap();
    unasked.set_nonblocking(true).unwrap();
    fs::remove_dir_all(dir.path().join("out")).unwrap();
    let (mut getter, proxy) = get(Kind::SocksWithGarbage, &unasked.local_addr().unwrap().to_string());
    getter.event("peer_error");
    assert_eq!(proxy.asked(), [format!("udp {}", unasked.local_addr().unwrap())]);
    getter.interrupt();
    assert_eq!(unasked.recv(&mut [0; 64]).unwrap_err().kind(), ErrorKind::WouldBlock, "a datagram went past the proxy");
}

#[test]
fn through_a_proxy_goes_all_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(300_000, 4))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let mut tracker = Running::start(anabranch(dir.path()).args(["tracker", "--listen", "127.0.0.1:0", "--json"]));
    let listening = tracker.event("listening");
    let (http, udp) = (listening["http"].as_str().unwrap().to_owned(), listening["udp"].as_str().unwrap().to_owned());
    let (_sharer, address, _) = share(dir.path(), &["one.bin", "--torrent-out", "t.torrent", "--tracker", &http]);
    for (is_socks, out) in [(true, "socks"), (false, "http")] {
        let proxy = TestProxy::start(is_socks);
        let url = match is_socks {
            true => format!("socks5://{}", proxy.address),
            false => format!("http://user:pass@{}", proxy.address),
        };
        // The proxy looks the tracker's name up. What a tracker behind a proxy names is as far as can be: the peer is named by hand.
        let named = http.replace("127.0.0.1", "localhost");
        // Slowly: the content must not be here before the tracker was asked.
        let fixed = ["get", "t.torrent", "-o", out, "--json", "--peer", &address, "--limit-down", "100K"];
        let arguments = [&fixed[..], &["--proxy", &url, "--tracker", &named]].concat();
        let (code, stdout, stderr) = run(dir.path(), &arguments);
        assert_eq!(code, 0, "{stdout} {stderr}");
        assert!(stderr.contains("through ") && !stderr.contains("pass@"), "{stderr}");
        assert!(!stdout.contains("\"listening\""), "{stdout}");
        assert_same(&dir.path().join(out), &file);
        let asked = proxy.asked();
        let tracker = named.strip_prefix("http://").unwrap().strip_suffix("/announce").unwrap();
        assert!(asked.contains(&address) && asked.contains(&tracker.to_owned()), "{asked:?}");
    }
    // What cannot go through is off, and said to be.
    let proxy = TestProxy::start(true);
    let url = format!("socks5://{}", proxy.address);
    let lonely = ["get", "t.torrent", "-o", "udp", "--json", "--proxy", &url, "--tracker", &udp];
    let mut running = Running::start(anabranch(dir.path()).args(lonely));
    loop {
        let error = running.event("tracker_error");
        if error["url"].as_str().unwrap().starts_with("udp:") {
            assert!(error["reason"].as_str().unwrap().contains("proxy"), "{error}");
            break;
        }
    }
    running.interrupt();
    for (flag, value) in [
        ("--peer", "peer.example:6881"),
        ("--peer", "[1-ff00:0:110,127.0.0.1]:31000"),
        ("--listen", "[1-ff00:0:110,127.0.0.1]:0"),
        ("--sciond", "127.0.0.1:30255"),
        ("--interface", "lo"),
        ("--proxy", "ftp://h:1"),
    ] {
        let arguments = match flag {
            "--proxy" => vec!["get", "t.torrent", flag, value],
            _ => vec!["get", "t.torrent", "--proxy", &url, flag, value],
        };
        let (code, _, stderr) = run(dir.path(), &arguments);
        assert!(code == 2 && stderr.contains("proxy"), "{flag} {value}: {code}, {stderr}");
    }
}
