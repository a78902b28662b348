//! Requests forged by strangers: what a link, a tracker or a peer names must not be nearer to the client than who names it.
//!
//! In a network of its own with a machine's loopback, a site's hosts and a cloud's metadata service stand services, and nobody may
//! call them. In the world stand a tracker for each way to redirect, one that names peers, a peer that names others (BEP 11), and
//! somebody whom both may name, so that it shows that they were heeded.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anabranch_testbed::net::{self, Namespace};
use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::{Error, Result};

const LIMIT: Duration = Duration::from_secs(60);
/// After all who may be met have been met, so long for those who may not.
const REST: Duration = Duration::from_secs(2);
/// How often a socket looks whether to stop.
const TICK: Duration = Duration::from_millis(50);
/// What is nearer to the client than the world is.
const NEAR: [&str; 6] = ["127.0.0.1", "[::1]", "169.254.169.254", "[fd00:ec2::254]", "10.0.0.5", "192.168.1.1"];
/// Services there.
const PORTS: [u16; 3] = [22, 80, 8080];
const CLIENT: &str = "198.51.100.1:0";
const TRACKERS: &str = "198.51.100.7";
const PEER: &str = "198.51.100.8:7000";
/// Whom the tracker and the peer may name.
const NAMED_BY_TRACKER: &str = "198.51.100.9:8080";
const NAMED_BY_PEER: &str = "198.51.100.9:8081";
const HASH: [u8; 20] = [0x5a; 20];
const HASH_HEX: &str = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a";

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Sockets at which somebody waits, with what each does to who comes.
#[derive(Default)]
struct Servers {
    stop: Arc<AtomicBool>,
}

impl Servers {
    /// Answers each connection to `at` with `answer`; counts them.
    fn serve(&self, at: &str, answer: impl Fn(TcpStream) + Send + 'static) -> Result<Arc<AtomicUsize>> {
        let listener = TcpListener::bind(at).and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        let listener = listener.map_err(Error::system(format!("listening at {at}")))?;
        let (count, stop) = (Arc::<AtomicUsize>::default(), Arc::clone(&self.stop));
        std::thread::spawn({
            let count = Arc::clone(&count);
            move || {
                while !stop.load(Ordering::Relaxed) {
                    match listener.accept() {
                        Ok((stream, _)) => {
                            count.fetch_add(1, Ordering::Relaxed);
                            answer(stream);
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(TICK),
                        Err(_) => return,
                    }
                }
            }
        });
        Ok(count)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn compact<'a>(addresses: impl IntoIterator<Item = &'a str>, v6: bool) -> Vec<u8> {
    let address = |text: &str| -> Vec<u8> {
        match text.parse::<SocketAddr>() {
            Ok(SocketAddr::V4(at)) if !v6 => [&at.ip().octets()[..], &at.port().to_be_bytes()].concat(),
            Ok(SocketAddr::V6(at)) if v6 => [&at.ip().octets()[..], &at.port().to_be_bytes()].concat(),
            _ => Vec::new(),
        }
    };
    addresses.into_iter().flat_map(address).collect()
}

/// All near services, and a privileged port in the world.
fn forbidden() -> Vec<String> {
    let near = NEAR.iter().flat_map(|host| PORTS.map(|port| format!("{host}:{port}")));
    near.chain(["198.51.100.9:22".to_owned()]).collect()
}

fn bencoded(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let string = |bytes: &[u8]| [format!("{}:", bytes.len()).as_bytes(), bytes].concat();
    let entries = entries.iter().flat_map(|(key, value)| [string(key.as_bytes()), string(value)].concat());
    [b"d".to_vec(), entries.collect(), b"e".to_vec()].concat()
}

/// Reads a request's head, and answers it.
fn answer(mut stream: TcpStream, answer: &[u8]) {
    let _ = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(LIMIT)));
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
        head.push(byte[0]);
    }
    // Who has gone does not matter.
    let _ = stream.write_all(answer);
}

/// A peer that greets who calls, and names `others`.
fn gossip(mut stream: TcpStream, others: &[String]) {
    let extended = |number: u8, body: &[u8]| [&(body.len() as u32 + 2).to_be_bytes()[..], &[20, number], body].concat();
    let names = || others.iter().map(String::as_str);
    let (added, added6) = (compact(names(), false), compact(names(), true));
    let pex = bencoded(&[("added", &added), ("added6", &added6)]);
    // BEP 3 and 10; 2 is the number of peer exchange that the client's own greeting names.
    let greeting = [b"\x13BitTorrent protocol\0\0\0\0\0\x10\0\0", &HASH[..], b"-XX0000-abcdefghijkl"].concat();
    let hello = extended(0, b"d1:md6:ut_pexi2eee");
    let _ = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(LIMIT)));
    let greeted = stream.read_exact(&mut [0; 68]);
    let _ = greeted.and_then(|()| stream.write_all(&[greeting, hello, extended(2, &pex)].concat()));
    // It stays as long as the client does.
    std::thread::spawn(move || while stream.read(&mut [0; 1024]).is_ok_and(|len| len > 0) {});
}

#[test]
fn nobody_reaches_through_the_client_what_is_nearer_to_it() {
    if !net::available() {
        eprintln!("left out: not root");
        return;
    }
    let namespace = must(Namespace::new());
    let hosts = ["198.51.100.1", TRACKERS, "198.51.100.8", "198.51.100.9"];
    for host in hosts.iter().chain(&NEAR[2..]) {
        let bits = if host.contains(':') { 128 } else { 32 };
        must(namespace.add_address("lo", &format!("{}/{bits}", host.trim_matches(['[', ']']))));
    }
    let dir = tempfile::tempdir().unwrap();
    let servers = Servers::default();
    must(namespace.enter(|| besiege(&servers, &namespace, dir.path())));
}

fn besiege(servers: &Servers, namespace: &Namespace, dir: &std::path::Path) -> Result<()> {
    let services: Vec<(String, Arc<AtomicUsize>)> =
        forbidden().into_iter().map(|at| Ok((at.clone(), servers.serve(&at, drop)?))).collect::<Result<_>>()?;
    let resolver = UdpSocket::bind("127.0.0.1:53").map_err(Error::system("a name server's socket"))?;
    resolver.set_nonblocking(true).map_err(Error::system("a name server's socket"))?;

    let mut met = Vec::new();
    let mut links = Vec::new();
    // Of the link itself.
    for at in forbidden() {
        // Peers in the local network may be named by links, at ports that are no service's (docs/security.md).
        if !["10.0.0.5:8080", "192.168.1.1:8080"].contains(&at.as_str()) {
            links.push(format!("&x.pe={at}"));
        }
        // Trackers in the world may be anywhere there.
        if !at.starts_with("198.") {
            links.push(format!("&tr=http://{at}/latest/meta-data/?x=y"));
        }
        links.push(format!("&ws=http://{at}/&xs=http://{at}/&as=http://{at}/"));
    }
    links.push("&tr=udp://127.0.0.1:53&tr=http://2130706433:22/announce&tr=http://0x7f.1:22/announce".to_owned());
    // Of trackers in the world.
    let redirects = NEAR.iter().map(|host| format!("http://{host}:8080/announce")).chain([
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "http://[::ffff:127.0.0.1]:8080/announce".to_owned(),
        "http://localhost:8080/announce".to_owned(),
    ]);
    for (number, to) in redirects.enumerate() {
        let at = format!("{TRACKERS}:{}", 8000 + number);
        let redirect = format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
        met.push((to, servers.serve(&at, move |stream| answer(stream, redirect.as_bytes()))?));
        links.push(format!("&tr=http://{at}/announce"));
    }
    let named = [forbidden(), vec![NAMED_BY_TRACKER.to_owned()]].concat();
    let names = || named.iter().map(String::as_str);
    let mut body = bencoded(&[("peers", &compact(names(), false)), ("peers6", &compact(names(), true))]);
    body.splice(1..1, *b"8:intervali5e");
    let reply = [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes(), body].concat();
    let at = format!("{TRACKERS}:8100");
    met.push((at.clone(), servers.serve(&at, move |stream| answer(stream, &reply))?));
    links.push(format!("&tr=http://{at}/announce&x.pe={PEER}"));
    // Of a peer in the world.
    let others = [forbidden(), vec![NAMED_BY_PEER.to_owned()]].concat();
    met.push((PEER.to_owned(), servers.serve(PEER, move |stream| gossip(stream, &others))?));
    for at in [NAMED_BY_TRACKER, NAMED_BY_PEER] {
        met.push((at.to_owned(), servers.serve(at, drop)?));
    }

    let link = format!("magnet:?xt=urn:btih:{HASH_HEX}{}", links.concat());
    let mut get = Anabranch::get(&link, dir, &[], Some(namespace), &["--listen", CLIENT])?;
    let began = Instant::now();
    let unmet = || met.iter().find(|(_, count)| count.load(Ordering::Relaxed) == 0).map(|(what, _)| what.clone());
    while let Some(what) = unmet() {
        assert!(began.elapsed() < LIMIT, "{what} was not met\n{}", get.process.log());
        std::thread::sleep(TICK);
    }
    std::thread::sleep(REST);
    assert!(!get.process.has_ended(), "{}", get.process.log());
    let called = services.iter().find(|(_, count)| count.load(Ordering::Relaxed) > 0);
    assert!(called.is_none(), "{} was called", called.map_or("", |(at, _)| at));
    assert!(resolver.recv(&mut [0; 64]).is_err(), "127.0.0.1:53 was asked");
    Ok(())
}
