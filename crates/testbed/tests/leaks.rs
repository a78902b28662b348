//! Nothing leaves where it must not: with `--interface` by another uplink, with `--proxy` past the proxy, for a private torrent to anybody
//! but its tracker and peers. Counted by the kernel, at the uplinks of a host in a namespace.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anabranch_testbed::fixture::{Content, Fixture, Maker};
use anabranch_testbed::net::{self, Namespace};
use anabranch_testbed::peers::anabranch::{Anabranch, command};
use anabranch_testbed::process::Process;
use anabranch_testbed::{Error, Result};

const LIMIT: Duration = Duration::from_secs(120);
/// Where everything abroad is,
const ABROAD: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 9);
/// or over IPv6.
const ABROAD_V6: Ipv6Addr = Ipv6Addr::new(0x2620, 0xfe, 0, 0, 0, 0, 0, 9);
const PROXY_PORT: u16 = 1080;
const HTTP_PROXY_PORT: u16 = 3128;
const DANTE_PORT: u16 = 1081;

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// What must not leave, the most telling first: local discovery, names, requests to routers (PCP, UPnP), then all else.
const LEAKS: [&str; 6] = [
    "udp dport 6771",
    "meta l4proto { tcp, udp } th dport 53",
    "udp dport { 1900, 5351 }",
    "meta l4proto tcp",
    "meta l4proto udp",
    "meta l4proto igmp",
];

/// A host with two uplinks, `left` and `right`, of which the system takes `right`; and the world.
struct World {
    host: Namespace,
    abroad: Namespace,
    /// Where everything is.
    ip: IpAddr,
    resolv_confs: Vec<PathBuf>,
}

impl World {
    fn new() -> Option<Self> {
        Self::at(ABROAD.into())
    }

    /// Names of everything there are of this address.
    fn at(ip: IpAddr) -> Option<Self> {
        if !net::available() {
            eprintln!("left out: not root");
            return None;
        }
        let (host, abroad) = (must(Namespace::new()), must(Namespace::new()));
        for (number, name) in [(1, "left"), (2, "right")] {
            let network = format!("10.{number}.0.0/24");
            must(host.link(name, &abroad));
            must(host.device_up(name, &format!("10.{number}.0.2/24"), &network, 1500));
            must(abroad.device_up(name, &format!("10.{number}.0.1/24"), &network, 1500));
            must(host.route("default", name, Some(&format!("10.{number}.0.1")), 3 - number));
            must(host.route("224.0.0.0/4", name, None, 3 - number));
            must(host.add_address(name, &format!("fd0{number}::2/64")));
            must(abroad.add_address(name, &format!("fd0{number}::1/64")));
            must(host.route("::/0", name, Some(&format!("fd0{number}::1")), 3 - number));
        }
        must(abroad.add_address("lo", &format!("{ABROAD}/32")));
        must(abroad.add_address("lo", &format!("{ABROAD_V6}/128")));
        // Answers come by the uplink that was asked by, whichever the system would take.
        must(host.set("net.ipv4.conf.all.rp_filter", "0"));
        // `ip netns exec` lays it over the machine's own.
        let resolv_confs = [&host, &abroad].map(|side| {
            let folder = PathBuf::from("/etc/netns").join(side.name());
            std::fs::create_dir_all(&folder).unwrap();
            let resolv_conf = folder.join("resolv.conf");
            std::fs::write(&resolv_conf, format!("nameserver {ip}\n")).unwrap();
            resolv_conf
        });
        Some(Self { host, abroad, ip, resolv_confs: resolv_confs.into() })
    }

    /// Has the kernel count what leaves by uplinks and is not `excepted`.
    fn count(&self, uplinks: &str, excepted: &str) {
        let kinds = LEAKS.map(|kind| format!("oifname {{ {uplinks} }} {kind} counter accept")).join("\n");
        let rules = format!(
            "table inet leaks {{
                chain out {{
                    type filter hook output priority 0; policy accept;
                    {excepted}
                    {kinds}
                }}
            }}\n"
        );
        must(Process::run("nft", self.host.command("nft").arg(rules), LIMIT));
    }

    /// What was counted so far: rules, each with its packets.
    fn counted(&self) -> Vec<String> {
        let (lines, _) =
            must(Process::run("nft", self.host.command("nft").args(["list", "table", "inet", "leaks"]), LIMIT));
        let rules: Vec<String> = lines.into_iter().map(|line| line.text.trim().to_owned()).collect();
        let rules: Vec<String> = rules.into_iter().filter(|rule| rule.contains("counter packets ")).collect();
        assert_eq!(rules.len(), LEAKS.len(), "{rules:?}");
        rules.into_iter().filter(|rule| !rule.contains("counter packets 0 ")).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for resolv_conf in &self.resolv_confs {
            let _ = std::fs::remove_file(resolv_conf);
            if let Some(folder) = resolv_conf.parent() {
                let _ = std::fs::remove_dir(folder);
            }
        }
    }
}

/// Answers every question for an address of its kind with `ip`, and notes what was asked.
fn serve_dns(ip: IpAddr, asked: &Mutex<Vec<String>>, over: &AtomicBool) -> Result<()> {
    let socket = UdpSocket::bind((ip, 53)).map_err(Error::system("bind"))?;
    socket.set_read_timeout(Some(Duration::from_millis(50))).map_err(Error::system("timeout"))?;
    let mut question = [0; 512];
    while !over.load(Ordering::Relaxed) {
        let Ok((len, from)) = socket.recv_from(&mut question) else { continue };
        let (mut labels, mut rest) = (Vec::new(), &question[12..len]);
        while let Some((&len, behind)) = rest.split_first().filter(|(len, _)| **len > 0) {
            let (label, behind) = behind.split_at(len.into());
            labels.push(String::from_utf8_lossy(label).into_owned());
            rest = behind;
        }
        let (kind, address) = match ip {
            IpAddr::V4(ip) => (1, ip.octets().to_vec()),
            IpAddr::V6(ip) => (28, ip.octets().to_vec()),
        };
        let is_known = rest.get(1..3) == Some(&[0, kind]);
        asked.lock().unwrap().push(labels.join("."));
        let mut answer =
            [&question[..2], &[0x81, 0x80, 0, 1, 0, u8::from(is_known), 0, 0, 0, 0], &question[12..len]].concat();
        if is_known {
            answer.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60, 0, address.len() as u8]);
            answer.extend(address);
        }
        let _ = socket.send_to(&answer, from);
    }
    Ok(())
}

/// A proxy that has each of its callers served on a thread.
fn serve_proxy(port: u16, serve: fn(TcpStream) -> Option<()>, over: &AtomicBool) -> Result<()> {
    let listener = TcpListener::bind(("10.1.0.1", port)).map_err(Error::system("listen"))?;
    listener.set_nonblocking(true).map_err(Error::system("listen"))?;
    while !over.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => drop(std::thread::spawn(move || serve(stream))),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    Ok(())
}

/// SOCKS5 without a relay of UDP (RFC 1928). Every name is [`ABROAD`].
fn serve_socks(mut near: TcpStream) -> Option<()> {
    near.set_nonblocking(false).ok()?;
    let mut take = |len: usize| {
        let mut bytes = vec![0; len];
        near.read_exact(&mut bytes).ok().map(|()| bytes)
    };
    let methods = take(2)?[1];
    take(methods.into())?;
    near.write_all(&[5, 0]).ok()?;
    let mut take = |len: usize| {
        let mut bytes = vec![0; len];
        near.read_exact(&mut bytes).ok().map(|()| bytes)
    };
    let head = take(4)?;
    let host = match head[3] {
        1 => <[u8; 4]>::try_from(take(4)?).ok().map(Ipv4Addr::from)?,
        3 => {
            let len = take(1)?[0];
            take(len.into()).map(|_| ABROAD)?
        }
        _ => return None,
    };
    let port = take(2)?;
    if head[1] != 1 {
        return near.write_all(&[5, 7, 0, 1, 0, 0, 0, 0, 0, 0]).ok();
    }
    let far = TcpStream::connect((host, u16::from_be_bytes([port[0], port[1]]))).ok()?;
    near.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).ok()?;
    pass_on(near, far)
}

/// HTTP's `CONNECT` (RFC 9110 §9.3.6). Every name is [`ABROAD`].
fn serve_connect(mut near: TcpStream) -> Option<()> {
    near.set_nonblocking(false).ok()?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        near.read_exact(&mut byte).ok()?;
        head.extend(byte);
    }
    let head = String::from_utf8(head).ok()?;
    let Some(target) = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()) else {
        return near.write_all(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n").ok();
    };
    let (host, port) = target.rsplit_once(':')?;
    let far = TcpStream::connect((host.parse().unwrap_or(ABROAD), port.parse().ok()?)).ok()?;
    near.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").ok()?;
    pass_on(near, far)
}

fn pass_on(mut near: TcpStream, mut far: TcpStream) -> Option<()> {
    let (mut back, mut there) = (far.try_clone().ok()?, near.try_clone().ok()?);
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut back, &mut there);
        let _ = there.shutdown(std::net::Shutdown::Both);
    });
    let _ = std::io::copy(&mut near, &mut far);
    far.shutdown(std::net::Shutdown::Both).ok()
}

/// A tracker abroad that also knows who shares there; the URLs of the tracker by the name of its host.
fn tracker(world: &World) -> (Process, String, String) {
    let mut command = must(command(Some(&world.abroad)));
    command.args(["tracker", "--json", "--listen", &SocketAddr::new(world.ip, 6969).to_string()]);
    let mut tracker = must(Process::spawn("anabranch tracker", &mut command));
    must(tracker.wait_event("listening", LIMIT));
    (tracker, "http://tracker.example:6969/announce".to_owned(), "udp://tracker.example:6969/announce".to_owned())
}

/// Somebody abroad shares, and tells the tracker so.
fn share(world: &World, fixture: &Fixture) -> Anabranch {
    let tracker = format!("http://{}/announce", SocketAddr::new(world.ip, 6969));
    let extra = ["--tracker", tracker.as_str()];
    let listen = SocketAddr::new(world.ip, 7000).to_string();
    let (mut share, _) =
        must(Anabranch::share(&fixture.torrent, Some(&fixture.data), &listen, Some(&world.abroad), &extra));
    must(share.process.wait_event("tracker", LIMIT));
    share
}

/// Runs `work` while the DNS and two proxies are there. Answers what the DNS was asked.
fn beside(world: &World, work: impl FnOnce()) -> Vec<String> {
    let (asked, over) = (Mutex::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let dns = scope.spawn(|| world.abroad.enter(|| serve_dns(world.ip, &asked, &over)));
        let socks = scope.spawn(|| world.abroad.enter(|| serve_proxy(PROXY_PORT, serve_socks, &over)));
        let http = scope.spawn(|| world.abroad.enter(|| serve_proxy(HTTP_PROXY_PORT, serve_connect, &over)));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        over.store(true, Ordering::Relaxed);
        must(dns.join().unwrap());
        must(socks.join().unwrap());
        must(http.join().unwrap());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    asked.into_inner().unwrap()
}

/// Everything that is on by default, with names wherever a name may stand.
const ALL: [&str; 8] = ["--dht", "on", "--dht-node", "node.example:7777", "--lsd", "on", "--port-mapping", "on"];

#[test]
fn with_an_interface_nothing_leaves_by_another() {
    all_leaves_by_the_interface(ABROAD.into(), "0.0.0.0:7001");
}

#[test]
fn with_an_interface_nothing_leaves_by_another_over_ipv6() {
    all_leaves_by_the_interface(ABROAD_V6.into(), "[::]:7001");
}

#[test]
fn with_an_interface_nothing_leaves_by_another_from_its_address_of_ipv6() {
    all_leaves_by_the_interface(ABROAD_V6.into(), "[fd01::2]:7001");
}

fn all_leaves_by_the_interface(ip: IpAddr, listen: &str) {
    let Some(world) = World::at(ip) else { return };
    let fixture = must(Fixture::new(Content::Bytes(1 << 20), "1", Maker::Ours, None));
    let (_tracker, http, udp) = tracker(&world);
    let _share = share(&world, &fixture);
    world.count("\"right\"", "");
    let torrent = fixture.torrent.to_string_lossy().into_owned();
    let asked = beside(&world, || {
        for (tracker, folder) in [(&http, "http"), (&udp, "udp")] {
            let out = must(fixture.folder(folder));
            let named = ["--interface", "left", "--tracker", tracker.as_str(), "--web-seed", "http://seed.example:81/"];
            let listen = ["--listen", listen];
            let extra: Vec<&str> = named.iter().chain(&listen).chain(&ALL).copied().collect();
            let mut get = must(Anabranch::get(&torrent, &out, &[], Some(&world.host), &extra));
            must(get.wait_finished(LIMIT));
            must(fixture.check(&out));
        }
        // Peers were quicker: now the web seed is all that there is, and nobody answers there.
        let out = must(fixture.folder("alone"));
        let named = ["--interface", "left", "--web-seed", "http://seed.example:81/", "--dht", "off", "--lsd", "off"];
        let extra: Vec<&str> = named.iter().copied().chain(["--give-up", "3s"]).collect();
        let mut get = must(Anabranch::get(&torrent, &out, &[], Some(&world.host), &extra));
        must(get.process.wait(LIMIT));
    });
    assert_eq!(world.counted(), Vec::<String>::new());
    for name in ["tracker.example", "seed.example", "node.example"] {
        assert!(asked.iter().any(|asked| asked == name), "{name}: {asked:?}");
    }
}

#[test]
fn with_an_interface_callers_are_answered_by_it_alone() {
    let Some(world) = World::new() else { return };
    let fixture = must(Fixture::new(Content::Bytes(1 << 20), "1", Maker::Ours, None));
    let extra = ["--interface", "left", "--dht", "off", "--lsd", "off", "--port-mapping", "off"];
    let (torrent, data) = (&fixture.torrent, Some(fixture.data.as_path()));
    let (_share, _) = must(Anabranch::share(torrent, data, "0.0.0.0:7001", Some(&world.host), &extra));
    // That nobody listens is the system's own word.
    world.count("\"right\"", "tcp flags & rst == rst accept");
    must(world.abroad.enter(|| {
        assert_eq!(["10.1.0.2:7001", "10.2.0.2:7001"].map(is_accepted), [true, false]);
        assert_eq!(["10.1.0.2:7001", "10.2.0.2:7001"].map(is_answered), [true, false]);
        Ok(())
    }));
    assert_eq!(world.counted(), Vec::<String>::new());
}

/// Whether a call over TCP is taken that comes from [`ABROAD`], to where the system's routes lead by `right`.
fn is_accepted(to: &str) -> bool {
    let to: SocketAddr = to.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((ABROAD, 0).into()).unwrap();
        matches!(tokio::time::timeout(Duration::from_secs(2), socket.connect(to)).await, Ok(Ok(_)))
    })
}

/// The same over uTP: whether anything comes back.
fn is_answered(to: &str) -> bool {
    const SYN: [u8; 20] = [0x41, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 1, 0, 0];
    let socket = UdpSocket::bind((ABROAD, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    socket.send_to(&SYN, to).unwrap();
    socket.recv(&mut [0; 100]).is_ok()
}

#[test]
fn with_a_proxy_nothing_leaves_past_it() {
    all_goes_through_the_proxy("socks5", PROXY_PORT);
}

#[test]
fn with_a_proxy_of_http_nothing_leaves_past_it() {
    all_goes_through_the_proxy("http", HTTP_PROXY_PORT);
}

fn all_goes_through_the_proxy(scheme: &str, port: u16) {
    let Some(world) = World::new() else { return };
    let fixture = must(Fixture::new(Content::Bytes(1 << 20), "1", Maker::Ours, None));
    let (_tracker, http, udp) = tracker(&world);
    let _share = share(&world, &fixture);
    world.count("\"left\", \"right\"", &format!("ip daddr 10.1.0.1 tcp dport {port} accept"));
    let asked = beside(&world, || {
        let out = must(fixture.folder("out"));
        let torrent = fixture.torrent.to_string_lossy().into_owned();
        let proxy = format!("{scheme}://10.1.0.1:{port}");
        let named =
            ["--proxy", proxy.as_str(), "--tracker", &udp, "--tracker", &http, "--web-seed", "http://seed.example:81/"];
        let extra: Vec<&str> = named.iter().chain(&ALL).copied().collect();
        let mut get = must(Anabranch::get(&torrent, &out, &[], Some(&world.host), &extra));
        must(get.wait_finished(LIMIT));
        must(fixture.check(&out));
    });
    assert_eq!((world.counted(), asked), (vec![], vec![]));
}

/// Dante, a SOCKS5 server that relays datagrams too.
fn dante(world: &World, fixture: &Fixture) -> Process {
    let config = must(fixture.folder("proxy")).join("danted.conf");
    let text = format!(
        "logoutput: stderr\ninternal: 10.1.0.1 port = {DANTE_PORT}\nexternal: {ABROAD}\nsocksmethod: none\nclientmethod: none\n\
         user.privileged: root\nuser.unprivileged: nobody\nclient pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 }}\n\
         socks pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 }}\n"
    );
    std::fs::write(&config, text).unwrap();
    let mut command = world.abroad.command("/usr/sbin/danted");
    let dante = must(Process::spawn("danted", command.arg("-f").arg(config)));
    let begun = Instant::now();
    while must(world.abroad.enter(|| Ok(TcpStream::connect(("10.1.0.1", DANTE_PORT)).is_err()))) {
        assert!(begun.elapsed() < LIMIT, "danted does not listen: {}", dante.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    dante
}

/// The table is entered by a name that the proxy looks up, a peer is found there, and all of the content comes over uTP.
#[test]
fn the_dht_and_utp_go_through_a_proxy_that_relays_datagrams() {
    let Some(world) = World::new() else { return };
    let fixture = must(Fixture::new(Content::Bytes(1 << 20), "1", Maker::Ours, None));
    let other = must(Fixture::new(Content::Bytes(1 << 10), "1", Maker::Ours, None));
    let node = format!("{ABROAD}:7777");
    let _node = must(Anabranch::share(&other.torrent, Some(&other.data), &node, Some(&world.abroad), &["--dht", "on"]));
    let (listen, extra) = (format!("{ABROAD}:7000"), ["--dht", "on", "--dht-node", node.as_str()]);
    let _share = must(Anabranch::share(&fixture.torrent, Some(&fixture.data), &listen, Some(&world.abroad), &extra));
    let _dante = dante(&world, &fixture);
    world.count("\"left\", \"right\"", "ip daddr 10.1.0.1 accept");
    let asked = beside(&world, || {
        let out = must(fixture.folder("out"));
        let proxy = format!("socks5://10.1.0.1:{DANTE_PORT}");
        let link = fixture.magnet.split('&').next().unwrap_or_default();
        let named = ["--proxy", proxy.as_str(), "--utp", "only", "--give-up", "100s"];
        let extra: Vec<&str> = named.iter().chain(&ALL).copied().collect();
        let mut get = must(Anabranch::get(link, &out, &[], Some(&world.host), &extra));
        let (found, _) = must(get.process.wait_event("discovered", LIMIT));
        assert_eq!(found["source"], "dht");
        let (connected, _) = must(get.process.wait_event("peer_connected", LIMIT));
        assert_eq!((&connected["transport"], &connected["peer"]), (&"utp".into(), &listen.as_str().into()));
        must(get.wait_finished(LIMIT));
        must(fixture.check(&out));
    });
    assert_eq!(world.counted(), Vec::<String>::new());
    assert!(asked.iter().all(|name| name == "node.example"), "{asked:?}");
    assert!(!asked.is_empty(), "the proxy looks names up");
}

#[test]
fn a_private_torrent_is_told_to_its_tracker_alone() {
    let Some(world) = World::new() else { return };
    let mut fixture = must(Fixture::new(Content::Bytes(1 << 20), "1", Maker::Ours, None));
    let private = must(fixture.folder("private")).join("private.torrent");
    let mut edit = must(command(None));
    edit.arg("edit").arg(&fixture.torrent).arg("-o").arg(&private).arg("--private=yes");
    must(Process::run("anabranch edit", &mut edit, LIMIT));
    fixture.torrent = private;
    let (_tracker, ..) = tracker(&world);
    let _share = share(&world, &fixture);
    // Local discovery, and the one node that is known.
    world.count("\"left\", \"right\"", "udp dport != { 6771, 7777 } accept\nip protocol { tcp, igmp } accept");
    let node: SocketAddr = (ABROAD, 7777).into();
    let out = must(fixture.folder("out"));
    let torrent = fixture.torrent.to_string_lossy().into_owned();
    let (tracker, node) = (format!("http://{ABROAD}:6969/announce"), node.to_string());
    let extra = ["--tracker", tracker.as_str(), "--dht", "on", "--dht-node", &node, "--lsd", "on"];
    let mut get = must(Anabranch::get(&torrent, &out, &[], Some(&world.host), &extra));
    must(get.wait_finished(LIMIT));
    must(fixture.check(&out));
    assert_eq!(world.counted(), Vec::<String>::new());
}
