//! Datagrams between namespaces: links of every MTU, links that go away, two uplinks, and queues that fill.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anabranch_testbed::Result;
use anabranch_testbed::net::{self, Namespace};
use anabranch_testbed::process::Process;
use anabranch_transport::datagram::{
    Bounds, Pacer, Packet, Path, PathMtu, Phase, Place, Receiver, STEP, SendError, SendErrorKind, Sender, Socket,
};
use anabranch_transport::{Interfaces, Via};

/// How long anything may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(30);
const PORT: u16 = 7000;
/// What probes are told that a round trip takes. It takes microseconds, and longer where the other thread has to wait for a core.
const RTT: Duration = Duration::from_millis(100);

fn must<T, E: std::fmt::Display>(result: std::result::Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Namespaces, or none where none may be made.
fn namespaces<const N: usize>() -> Option<[Namespace; N]> {
    if !net::available() {
        eprintln!("left out: not root");
        return None;
    }
    Some(std::array::from_fn(|_| must(Namespace::new())))
}

fn run(inside: &Namespace, program: &str, args: &[&str]) {
    must(Process::run(program, inside.command(program).args(args), Duration::from_secs(20)));
}

/// Waits until every link that was turned on carries packets. The system sees to that a moment after both of its ends are up, and
/// drops what is sent before: a lost question for a neighbour's address is asked again after a second, when a search has given up.
fn until_links_carry(hosts: &[&Namespace]) {
    let start = Instant::now();
    for host in hosts {
        loop {
            let shown = must(host.command("ip").args(["-o", "link", "show", "up"]).output());
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            // A loopback device has no state.
            if shown.lines().all(|link| link.contains("state UP") || link.contains("LOOPBACK")) {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{shown}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Does something with datagrams inside a namespace.
fn enter<T: Send>(inside: &Namespace, work: impl FnOnce() -> T + Send) -> T {
    must(inside.enter(|| -> Result<T> { Ok(work()) }))
}

fn bind(inside: &Namespace, address: &str) -> Socket {
    let address: IpAddr = address.parse().unwrap();
    enter(inside, || must(Socket::bind(SocketAddr::new(address, PORT))))
}

/// Over interface `name` to `remote`, from its first address of that family.
fn path(inside: &Namespace, name: &str, remote: &str) -> Path {
    let remote = SocketAddr::new(remote.parse().unwrap(), PORT);
    enter(inside, || {
        let interfaces = must(Interfaces::new(&[]));
        let interface = interfaces.list().iter().find(|interface| interface.name == name).expect("it is there");
        let addresses = interface.addresses.iter().map(|address| address.ip);
        let global = |ip: &IpAddr| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let source = addresses.filter(global).find(|ip| ip.is_ipv4() == remote.is_ipv4()).expect("an address");
        let via = Via { source, interface: name.into(), index: interface.index, is_local: false };
        Path::ip(remote, Some(&via))
    })
}

fn wait(socket: &impl AsFd, events: i16) {
    let mut poll = libc::pollfd { fd: socket.as_fd().as_raw_fd(), events, revents: 0 };
    // SAFETY: one entry, which lives over the call.
    unsafe { libc::poll(&mut poll, 1, 10) };
}

/// The next packets' payloads; empty if none come for a moment.
fn receive(receiver: &mut Receiver) -> Vec<(Vec<u8>, u32)> {
    wait(receiver, libc::POLLIN);
    let mut memory = vec![0; 64 * 9000];
    let mut places: Vec<_> = memory.chunks_mut(9000).map(|body| Place { head: &mut [], body }).collect();
    match receiver.recv(&mut places) {
        Ok(batch) => {
            let of = |received: &anabranch_transport::datagram::Received| {
                (places[received.place].body[..received.len].to_vec(), received.interface)
            };
            batch.iter().map(of).collect()
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

/// Says stop in the end, also where a test fails: threads are waited for.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Answers each packet with its first four bytes, until told to stop.
fn echo(socket: &Socket, back: &Path, stop: &AtomicBool) {
    let (mut receiver, mut sender) = (socket.receiver(), must(socket.sender(back)));
    while !stop.load(Ordering::Relaxed) {
        for (payload, _) in receive(&mut receiver) {
            must(sender.try_send(&[Packet { head: &payload[..4], body: &[] }]));
        }
    }
}

/// Searches to the end; the system's own refusal counts as a loss.
fn search(socket: &Socket, path: &Path) -> PathMtu {
    let (mut sender, mut receiver) = (must(socket.sender(path)), socket.receiver());
    let start = Instant::now();
    let mut mtu = PathMtu::new(Bounds::up_to(path.mtu_claimed()), start);
    mtu.set_rtt(RTT);
    let padding = vec![0; 65_535];
    while matches!(mtu.phase(), Phase::Base | Phase::Searching) {
        assert!(start.elapsed() < PATIENCE, "{mtu:?}");
        if let Some(probe) = mtu.probe(Instant::now()) {
            let body = &padding[..path.payload_len(probe.len) - 4];
            match sender.try_send(&[Packet { head: &probe.id.to_be_bytes(), body }]) {
                Ok(_) => {}
                Err(SendError { kind: SendErrorKind::TooLong { .. }, .. }) => {
                    mtu.on_probe_lost(probe.id, Instant::now())
                }
                Err(error) => panic!("{error}"),
            }
        }
        for (answer, _) in receive(&mut receiver) {
            mtu.on_probe_acked(u32::from_be_bytes(*answer.first_chunk().unwrap()), Instant::now());
        }
    }
    mtu
}

/// What is found between two hosts, the first of which has a device that takes 9000 bytes.
fn found(a: &Namespace, b: &Namespace, [left, right]: [&str; 2]) -> u16 {
    until_links_carry(&[a, b]);
    let (here, there) = (bind(a, left), bind(b, right));
    let (way, back) = (path(a, "link0", right), path(b, "link0", left));
    assert_eq!(way.mtu_claimed(), 9000);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&there, &back, &stop));
        let _stopping = Stopping(&stop);
        let found = search(&here, &way);
        assert_eq!(found.phase(), Phase::SearchComplete);
        found.packet_len_max()
    })
}

/// A link that becomes narrower under data: packets vanish without a word, and others are found that do not.
#[test]
fn a_link_that_becomes_narrower_is_noticed_by_what_gets_lost() {
    /// Marks the number of a packet with data; probes count from zero.
    const DATA: u32 = 1 << 31;
    let Some([a, b]) = namespaces() else { return };
    must(a.link("link0", &b));
    must(a.device_up("link0", "10.7.0.1/24", "10.7.0.0/24", 9000));
    must(b.device_up("link0", "10.7.0.2/24", "10.7.0.0/24", 9000));
    until_links_carry(&[&a, &b]);
    let (here, there) = (bind(&a, "10.7.0.1"), bind(&b, "10.7.0.2"));
    let (way, back) = (path(&a, "link0", "10.7.0.2"), path(&b, "link0", "10.7.0.1"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&there, &back, &stop));
        let _stopping = Stopping(&stop);
        let mut mtu = search(&here, &way);
        assert_eq!(mtu.packet_len_max(), 9000);
        run(&b, "ip", &["link", "set", "link0", "mtu", "1500"]);
        let (mut sender, mut receiver) = (must(here.sender(&way)), here.receiver());
        let (start, padding, mut number) = (Instant::now(), vec![0; 9000], DATA);
        while mtu.phase() != Phase::SearchComplete || mtu.packet_len_max() > 1500 {
            assert!(start.elapsed() < PATIENCE, "{mtu:?}");
            let len = mtu.packet_len_max();
            let probe = mtu.probe(Instant::now()).map(|probe| (probe.id, probe.len));
            number += 1;
            // One by one: the link lets bursts pass whatever their packets have.
            for (id, len) in probe.into_iter().chain([(number, len)]) {
                let body = &padding[..way.payload_len(len) - 4];
                must(sender.try_send(&[Packet { head: &id.to_be_bytes(), body }]));
            }
            // What is not back soon is lost; on a busy machine that may be said of some that come late.
            let (sent, mut is_back) = (Instant::now(), false);
            while !is_back && sent.elapsed() < RTT {
                for (answer, _) in receive(&mut receiver) {
                    let id = u32::from_be_bytes(*answer.first_chunk().unwrap());
                    is_back |= id == number;
                    mtu.on_probe_acked(id, Instant::now());
                }
            }
            match is_back {
                true => mtu.on_data_acked(len),
                false => mtu.on_data_lost(len, Instant::now()),
            }
        }
        assert_eq!(mtu.packet_len_max(), 1500);
    });
}

/// Packets of three links' length, in a burst and alone: refused at first, and whole at the other end once they may be cut.
#[test]
fn what_may_be_cut_arrives_whole_however_narrow_the_link() {
    let Some([a, b]) = namespaces() else { return };
    must(a.link("link0", &b));
    for (host, address) in [(&a, "10.7.0.1/24"), (&b, "10.7.0.2/24")] {
        must(host.device_up("link0", address, "10.7.0.0/24", 1500));
        must(host.add_address("link0", &address.replace("10.7.0.", "fd07::").replace("/24", "/64")));
    }
    until_links_carry(&[&a, &b]);
    for [left, right] in [["10.7.0.1", "10.7.0.2"], ["fd07::1", "fd07::2"]] {
        let (here, there) = (bind(&a, left), bind(&b, right));
        let (mut sender, mut receiver) = (must(here.sender(&path(&a, "link0", right))), there.receiver());
        let bodies: Vec<Vec<u8>> = (0..6).map(|number| vec![number; 4000]).collect();
        let packets: Vec<Packet<'_>> = bodies.iter().map(|body| Packet { head: b"head", body }).collect();
        let refused = sender.try_send(&packets).unwrap_err();
        assert!(matches!(refused.kind, SendErrorKind::TooLong { .. }), "{refused:?}");
        sender.set_may_fragment(true);
        let mut sent = 0;
        while sent < packets.len() {
            sent += must(sender.try_send(&packets[sent..]));
        }
        sender.set_may_fragment(false);
        assert!(sender.try_send(&packets[..1]).is_err());
        let (start, mut arrived) = (Instant::now(), Vec::new());
        while arrived.len() < packets.len() {
            assert!(start.elapsed() < PATIENCE, "{} of {}", arrived.len(), packets.len());
            arrived.extend(receive(&mut receiver).into_iter().map(|(payload, _)| payload));
        }
        let whole: Vec<Vec<u8>> = bodies.iter().map(|body| [b"head", &body[..]].concat()).collect();
        assert_eq!(arrived, whole);
    }
}

/// The far end of a veth pair drops what is longer than its MTU, and says nothing.
#[test]
fn the_search_finds_what_a_link_takes() {
    for mtu in [1280, 1500, 9000] {
        let Some([a, b]) = namespaces() else { return };
        must(a.link("link0", &b));
        must(a.device_up("link0", "10.7.0.1/24", "10.7.0.0/24", 9000));
        must(b.device_up("link0", "10.7.0.2/24", "10.7.0.0/24", mtu));
        assert_eq!(u32::from(found(&a, &b, ["10.7.0.1", "10.7.0.2"])), mtu);
    }
}

#[test]
fn the_search_finds_what_a_link_takes_over_ipv6() {
    let Some([a, b]) = namespaces() else { return };
    must(a.link("link0", &b));
    for (host, address, mtu) in [(&a, "10.7.0.1/24", 9000), (&b, "10.7.0.2/24", 1500)] {
        must(host.device_up("link0", address, "10.7.0.0/24", mtu));
        must(host.add_address("link0", &address.replace("10.7.0.", "fd07::").replace("/24", "/64")));
    }
    assert_eq!(found(&a, &b, ["fd07::1", "fd07::2"]), 1500);
}

/// A router in between whose next link, or route, takes less. What it says of that is not listened to.
#[test]
fn the_search_finds_what_a_narrow_link_or_route_behind_a_router_takes() {
    for (link, route) in [(1400, 9000), (9000, 3000)] {
        let Some([a, router, b]) = namespaces() else { return };
        must(a.link("link0", &router));
        must(router.link("link1", &b));
        run(&b, "ip", &["link", "set", "link1", "name", "link0"]);
        must(a.device_up("link0", "10.7.1.1/24", "10.7.0.0/16", 9000));
        must(router.device_up("link0", "10.7.1.2/24", "10.7.1.0/24", 9000));
        must(router.device_up("link1", "10.7.2.2/24", "10.7.2.0/24", link));
        must(b.device_up("link0", "10.7.2.1/24", "10.7.2.0/24", 9000));
        must(a.route("10.7.2.0/24", "link0", Some("10.7.1.2"), 0));
        must(b.route("10.7.1.0/24", "link0", Some("10.7.2.2"), 0));
        if route < link {
            run(&router, "ip", &["route", "add", "10.7.2.1/32", "dev", "link1", "mtu", "lock", &route.to_string()]);
        }
        must(router.set("net.ipv4.ip_forward", "1"));
        until_links_carry(&[&router]);
        let takes = u32::min(link, route) as u16;
        let found = found(&a, &b, ["10.7.1.1", "10.7.2.1"]);
        assert!((takes - STEP + 1..=takes).contains(&found), "{found} of {takes}");
    }
}

/// Sends one packet again and again until the kind of the answer is as wanted.
fn send_until(sender: &mut Sender, is_it: impl Fn(Option<SendErrorKind>) -> bool) -> Option<SendError> {
    let start = Instant::now();
    loop {
        let error = sender.try_send(&[Packet { head: b"anyone?", body: &[7; 1000] }; 40]).err();
        if is_it(error.as_ref().map(|error| error.kind)) {
            return error;
        }
        assert!(start.elapsed() < PATIENCE, "{error:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_interface_that_goes_away_under_who_sends_is_named() {
    let Some([a, b]) = namespaces() else { return };
    must(a.link("link0", &b));
    must(a.device_up("link0", "10.7.0.1/24", "10.7.0.0/24", 1500));
    must(b.device_up("link0", "10.7.0.2/24", "10.7.0.0/24", 1500));
    let socket = bind(&a, "0.0.0.0");
    let mut sender = must(socket.sender(&path(&a, "link0", "10.7.0.2")));
    send_until(&mut sender, |kind| kind.is_none());
    // Longer than the device takes: nothing is learned about bursts from that.
    let long = sender.try_send(&[Packet { head: &[], body: &[0; 1473] }; 2]).unwrap_err();
    assert!(matches!(long.kind, SendErrorKind::TooLong { len: 1501, .. }), "{long:?}");
    assert!(sender.burst_packets_max() > 1);
    // Down, and up again: the same sender goes on.
    must(a.set_device("link0", false));
    let is_gone = |kind| matches!(kind, Some(SendErrorKind::InterfaceGone | SendErrorKind::Unreachable));
    let error = send_until(&mut sender, is_gone).expect("an error");
    assert!(error.kind.is_passing());
    must(a.set_device("link0", true));
    run(&a, "ip", &["route", "replace", "10.7.0.0/24", "dev", "link0"]);
    send_until(&mut sender, |kind| kind.is_none());
    run(&a, "ip", &["link", "del", "link0"]);
    let error = send_until(&mut sender, |kind| kind == Some(SendErrorKind::InterfaceGone)).expect("an error");
    let text = error.to_string();
    assert!(text.contains("link0") && text.contains("take another path"), "{text}");
}

/// Both uplinks lead to the same address, and the system prefers the first: the path decides.
#[test]
fn one_socket_leaves_by_the_uplink_that_the_path_says() {
    let Some([a, b]) = namespaces() else { return };
    for host in [&a, &b] {
        must(host.set("net.ipv4.conf.all.rp_filter", "0"));
        must(host.set("net.ipv4.conf.default.rp_filter", "0"));
    }
    for (link, metric) in [(0, 1), (1, 2)] {
        let (name, network) = (format!("link{link}"), format!("10.7.{link}.0/24"));
        must(a.link(&name, &b));
        must(a.device_up(&name, &format!("10.7.{link}.1/24"), &network, 1500));
        must(b.device_up(&name, &format!("10.7.{link}.2/24"), &network, 1500));
        must(a.route("10.9.0.1/32", &name, Some(&format!("10.7.{link}.2")), metric));
    }
    must(b.add_address("lo", "10.9.0.1/32"));
    let (here, there) = (bind(&a, "0.0.0.0"), bind(&b, "0.0.0.0"));
    let paths = ["link0", "link1"].map(|name| path(&a, name, "10.9.0.1"));
    let keys = [0, 1].map(|at: usize| must(here.add(&paths[at])));
    assert_ne!(keys[0], keys[1]);
    let mut receiver = there.receiver();
    for round in 0..4_u8 {
        let at = usize::from(round) % 2;
        must(must(here.sender(&paths[at])).try_send(&[Packet { head: &[round], body: &[] }]));
        let start = Instant::now();
        let mut places = [Place { head: &mut [0], body: &mut [] }];
        let received = loop {
            assert!(start.elapsed() < PATIENCE);
            wait(&receiver, libc::POLLIN);
            if let Ok(batch) = receiver.recv(&mut places)
                && let Some(received) = batch.iter().next()
            {
                break *received;
            }
        };
        let source: IpAddr = format!("10.7.{at}.1").parse().unwrap();
        assert_eq!((places[0].head[0], received.from.ip()), (round, source));
        assert_eq!(received.interface, index(&b, &format!("link{at}")));
    }
    // Which way an answer came, the receiver tells too.
    let mut answers = here.receiver();
    for at in [0, 1] {
        let back = path(&b, &format!("link{at}"), &format!("10.7.{at}.1"));
        // From the address that the packets were sent to.
        let back = Path::ip(back.remote().as_ip().unwrap(), Some(&via(&b, &format!("link{at}"), "10.9.0.1")));
        must(must(there.sender(&back)).try_send(&[Packet { head: b"yes", body: &[] }]));
        let start = Instant::now();
        let path = loop {
            assert!(start.elapsed() < PATIENCE);
            wait(&answers, libc::POLLIN);
            let mut places = [Place { head: &mut [0; 3], body: &mut [] }];
            if let Ok(batch) = answers.recv(&mut places)
                && let Some(received) = batch.iter().next()
            {
                break received.path;
            }
        };
        assert_eq!(path, Some(keys[at]));
    }
}

fn via(inside: &Namespace, name: &str, source: &str) -> Via {
    Via { source: source.parse().unwrap(), interface: name.into(), index: index(inside, name), is_local: false }
}

fn index(inside: &Namespace, name: &str) -> u32 {
    enter(inside, || {
        let interfaces = must(Interfaces::new(&[]));
        interfaces.list().iter().find(|interface| interface.name == name).expect("it is there").index
    })
}

/// A slow device with a long queue: the system's buffer fills, and what was said to have left arrives.
#[test]
fn what_was_said_to_have_left_arrives_and_nothing_else() {
    let Some([a, b]) = namespaces() else { return };
    must(a.link("link0", &b));
    must(a.device_up("link0", "10.7.0.1/24", "10.7.0.0/24", 9000));
    must(b.device_up("link0", "10.7.0.2/24", "10.7.0.0/24", 9000));
    let tbf = ["qdisc", "add", "dev", "link0", "root", "tbf", "rate", "40mbit", "burst", "128kb", "limit", "64mb"];
    run(&a, "tc", &tbf);
    let (here, there) = (bind(&a, "10.7.0.1"), bind(&b, "10.7.0.2"));
    // Any machine fills so much faster than the link empties it.
    let buffer_bytes: libc::c_int = 512 * 1024;
    // SAFETY: the descriptor is open, and the option is as long as it says.
    let set = unsafe {
        let option = (&raw const buffer_bytes).cast();
        libc::setsockopt(here.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, option, size_of_val(&buffer_bytes) as u32)
    };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
    let mut sender = must(here.sender(&path(&a, "link0", "10.7.0.2")));
    let mut receiver = there.receiver();
    let mut seen: Vec<u32> = Vec::new();
    let mut take = |receiver: &mut Receiver| {
        for (payload, _) in receive(receiver) {
            seen.push(u32::from_be_bytes(*payload.first_chunk().unwrap()));
        }
        seen.len()
    };
    let numbers: Vec<[u8; 4]> = (0..20_000_u32).map(u32::to_be_bytes).collect();
    let body = vec![3; 8000];
    let packets: Vec<_> = numbers.iter().map(|head| Packet { head, body: &body }).collect();
    let mut sent = 0;
    let start = Instant::now();
    // Until the buffer has filled, and some more after it had room again.
    let mut blocked = 0;
    while blocked < 5 {
        assert!(start.elapsed() < PATIENCE && sent < packets.len());
        match sender.try_send(&packets[sent..]) {
            Ok(count) => sent += count,
            Err(error) => {
                assert_eq!(error.kind, SendErrorKind::WouldBlock, "{error}");
                blocked += 1;
                wait(&sender, libc::POLLOUT);
            }
        }
        take(&mut receiver);
    }
    while take(&mut receiver) < sent {
        assert!(start.elapsed() < PATIENCE, "{sent} packets left");
    }
    // Nothing comes after that.
    for _ in 0..5 {
        assert_eq!(take(&mut receiver), sent);
    }
    assert!(seen.iter().copied().eq(0..sent as u32), "each once, in order");
}

/// What leaves no faster than a link carries it, in bursts that its queue holds, is never dropped there.
#[test]
fn what_is_paced_below_a_links_rate_is_never_dropped_by_its_queue() {
    const RATE_BYTES: u64 = 100_000_000 / 8;
    let Some([a, b]) = namespaces() else { return };
    must(a.link("link0", &b));
    must(a.device_up("link0", "10.7.0.1/24", "10.7.0.0/24", 1500));
    must(b.device_up("link0", "10.7.0.2/24", "10.7.0.0/24", 1500));
    let tbf = ["qdisc", "add", "dev", "link0", "root", "tbf", "rate", "100mbit", "burst", "64kb", "limit", "128kb"];
    run(&a, "tc", &tbf);
    let (here, there) = (bind(&a, "10.7.0.1"), bind(&b, "10.7.0.2"));
    let way = path(&a, "link0", "10.7.0.2");
    let mut sender = must(here.sender(&way));
    let mut receiver = there.receiver();
    let body = vec![7; 1400];
    let packets = vec![Packet { head: &[], body: &body }; 32];
    let group_len = (packets.len() * way.packet_len(body.len())) as u64;
    // A tenth is for the link's own headers.
    let mut pacer = Pacer::with_burst(RATE_BYTES * 9 / 10, group_len, Instant::now());
    let (start, mut got) = (Instant::now(), 0);
    for _ in 0..60 {
        let mut left = &packets[..];
        while !left.is_empty() {
            assert!(start.elapsed() < PATIENCE);
            let len = (left.len() * way.packet_len(body.len())) as u64;
            if pacer.next_send(len, Instant::now()).is_some_and(|due| due <= Instant::now()) {
                let sent = must(sender.try_send(left));
                pacer.spend((sent * way.packet_len(body.len())) as u64, Instant::now());
                left = &left[sent..];
            }
            got += receive(&mut receiver).len();
        }
    }
    while got < 60 * packets.len() {
        assert!(start.elapsed() < PATIENCE, "{got} packets came");
        got += receive(&mut receiver).len();
    }
}
