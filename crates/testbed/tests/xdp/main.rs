//! Datagrams past the kernel's network layers, between namespaces: everything that a transfer does, everything that
//! happens to an interface meanwhile, and that nobody else notices.

mod program;

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anabranch_paths::{ScionAddr, ScionPath};
use anabranch_testbed::Result;
use anabranch_testbed::net::{self, Namespace};
use anabranch_testbed::process::Process;
use anabranch_transport::datagram::{
    Packet, Path, Place, Receiver, SendError, SendErrorKind, Sender, Socket, XdpDeclined, XdpError, XdpMode, XdpPort,
};

/// How long anything may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(30);
const PORT: u16 = 7000;
/// Tells the child processes of these tests what to do.
const CHILD: &str = "ANABRANCH_XDP_CHILD";

fn must<T, E: std::fmt::Display>(result: std::result::Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

fn run(inside: &Namespace, program: &str, args: &[&str]) -> String {
    let (lines, _) = must(Process::run(program, inside.command(program).args(args), Duration::from_secs(20)));
    lines.iter().map(|line| format!("{}\n", line.text)).collect()
}

fn enter<T: Send>(inside: &Namespace, work: impl FnOnce() -> T + Send) -> T {
    must(inside.enter(|| -> Result<T> { Ok(work()) }))
}

/// Two hosts and a link between them, whose devices have `queues` queues each; none where none may be made.
fn pair(mtu: u32, queues: u32) -> Option<[Namespace; 2]> {
    if !net::available() {
        eprintln!("left out: not root");
        return None;
    }
    let [a, b] = [0, 1].map(|_| must(Namespace::new()));
    let queues = queues.to_string();
    let queues = ["numrxqueues", &queues, "numtxqueues", &queues];
    let mut link = vec!["link", "add", "link0"];
    link.extend(queues);
    link.extend(["type", "veth", "peer", "name", "link0", "netns", b.name()]);
    link.extend(queues);
    run(&a, "ip", &link);
    must(a.device_up("link0", "10.7.0.1/24", "10.7.0.0/24", mtu));
    must(b.device_up("link0", "10.7.0.2/24", "10.7.0.0/24", mtu));
    must(a.add_address("link0", "fd00:7::1/64"));
    must(b.add_address("link0", "fd00:7::2/64"));
    Some([a, b])
}

fn address(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), PORT)
}

fn bind(inside: &Namespace, ip: &str) -> Socket {
    enter(inside, || must(Socket::bind(address(ip))))
}

fn attach(inside: &Namespace, socket: &Socket) -> std::result::Result<XdpPort, XdpError> {
    enter(inside, || socket.attach_xdp("link0"))
}

/// A socket that goes past the kernel.
fn bind_xdp(inside: &Namespace, ip: &str) -> Socket {
    let socket = bind(inside, ip);
    let port = must(attach(inside, &socket));
    assert!(matches!(port.mode, XdpMode::Copy | XdpMode::Generic), "veth copies: {port:?}");
    socket
}

fn wait(socket: &impl AsFd) {
    let mut poll = libc::pollfd { fd: socket.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which lives over the call.
    unsafe { libc::poll(&mut poll, 1, 10) };
}

/// The next packets' payloads; empty if none come for a moment.
fn receive(receiver: &mut Receiver) -> Vec<Vec<u8>> {
    wait(receiver);
    let mut memory = vec![0; 32 * 9000];
    let mut places: Vec<_> = memory
        .chunks_mut(9000)
        .map(|place| {
            // A head of odd length, so that nothing is aligned by luck.
            let (head, body) = place.split_at_mut(7);
            Place { head, body }
        })
        .collect();
    match receiver.recv(&mut places) {
        Ok(batch) => {
            let whole = |received: &anabranch_transport::datagram::Received| {
                assert!(!received.is_truncated && received.arrived.is_some());
                let place = &places[received.place];
                [&*place.head, &*place.body].concat()[..received.len].to_vec()
            };
            batch.iter().map(whole).collect()
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

/// Whether there will be room soon: in the socket's buffer, or in the rings.
fn is_full(error: &SendError) -> bool {
    matches!(error.kind, SendErrorKind::WouldBlock | SendErrorKind::NoBuffers)
}

/// Payload number `number`, of `len` bytes.
fn payload(number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (at as u32 * 31).wrapping_add(number.wrapping_mul(7)) as u8).collect();
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Sends until all of `count` payloads of several lengths have arrived, each as it was sent; again what a queue has dropped.
fn transfer(sender: &mut Sender, receiver: &mut Receiver, count: u32, len_max: usize) {
    let len = |number: u32| 4 + (number as usize * 37) % (len_max - 3);
    let mut missing: BTreeSet<u32> = (0..count).collect();
    let start = Instant::now();
    while !missing.is_empty() {
        assert!(start.elapsed() < PATIENCE, "{} of {count} are missing", missing.len());
        let wave: Vec<_> = missing.iter().take(48).map(|number| payload(*number, len(*number))).collect();
        let packets: Vec<_> = wave
            .iter()
            .map(|payload| {
                let (head, body) = payload.split_at(3);
                Packet { head, body }
            })
            .collect();
        let mut sent = 0;
        while sent < packets.len() && start.elapsed() < PATIENCE {
            match sender.try_send(&packets[sent..]) {
                Ok(more) => sent += more,
                Err(error) if is_full(&error) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        loop {
            let arrived = receive(receiver);
            if arrived.is_empty() {
                break;
            }
            for bytes in arrived {
                let number = u32::from_be_bytes(*bytes.first_chunk().unwrap());
                if number == u32::MAX {
                    continue;
                }
                assert!(bytes == payload(number, len(number)), "packet {number} arrived changed");
                missing.remove(&number);
            }
        }
    }
}

/// Sends until the neighbour is resolved and packets go past the kernel.
fn go_past(sender: &mut Sender, receiver: &mut Receiver) {
    let start = Instant::now();
    while !sender.is_past_kernel() {
        assert!(start.elapsed() < PATIENCE, "everything goes by the system");
        transfer(sender, receiver, 10, 1300);
    }
}

/// From one host to the other, with AF_XDP at either end or both.
fn exchange(ips: [&str; 2], with_xdp: [bool; 2], queues: u32) {
    let Some([a, b]) = pair(1500, queues) else { return };
    let socket = |inside, ip, is_xdp| if is_xdp { bind_xdp(inside, ip) } else { bind(inside, ip) };
    let (here, there) = (socket(&a, ips[0], with_xdp[0]), socket(&b, ips[1], with_xdp[1]));
    let mut receivers = [here.receiver(), there.receiver()];
    let key = must(there.add(&Path::ip(address(ips[0]), None)));
    let mut forth = must(here.sender(&Path::ip(address(ips[1]), None)));
    let mut back = must(there.sender(&Path::ip(address(ips[0]), None)));
    for (at, sender) in [&mut forth, &mut back].into_iter().enumerate() {
        if with_xdp[at] {
            go_past(sender, &mut receivers[1 - at]);
        }
        transfer(sender, &mut receivers[1 - at], 300, 1400);
        assert!(with_xdp[at] || !sender.is_past_kernel());
    }
    for (receiver, is_xdp) in receivers.iter().zip(with_xdp) {
        let counters = receiver.counters();
        assert!(counters.packets >= 300);
        assert_eq!(counters.packets_xdp > counters.packets / 2, is_xdp, "{counters:?}");
    }
    // The path that packets came by is known however they came.
    let (mut head, mut body) = ([0; 4], [0; 100]);
    let start = Instant::now();
    let found = loop {
        assert!(start.elapsed() < PATIENCE);
        must(forth.try_send(&[Packet { head: b"head", body: b"body" }]));
        wait(&receivers[1]);
        let mut places = [Place { head: &mut head, body: &mut body }];
        if let Ok(batch) = receivers[1].recv(&mut places)
            && let Some(received) = batch.iter().next()
        {
            break (received.path, received.from, received.local);
        }
    };
    assert_eq!(found, (Some(key), address(ips[0]), Some(ips[1].parse::<IpAddr>().unwrap())));
    assert_eq!((&head, &body[..4]), (b"head", &b"body"[..]));
}

#[test]
fn frames_go_to_a_plain_socket_and_back() {
    exchange(["10.7.0.1", "10.7.0.2"], [true, false], 1);
    exchange(["fd00:7::1", "fd00:7::2"], [true, false], 1);
}

#[test]
fn frames_go_from_a_plain_socket_to_frames() {
    exchange(["10.7.0.1", "10.7.0.2"], [false, true], 1);
}

#[test]
fn frames_go_to_frames_by_two_queues() {
    exchange(["10.7.0.1", "10.7.0.2"], [true, true], 2);
    exchange(["fd00:7::1", "fd00:7::2"], [true, true], 2);
}

#[test]
fn every_queue_has_a_socket() {
    let Some([a, b]) = pair(1500, 3) else { return };
    let socket = bind(&a, "10.7.0.1");
    let port = must(attach(&a, &socket));
    assert_eq!((port.queues, port.packet_len_max, port.interface.as_str()), (3, 1500, "link0"));
    // Flows are spread over queues by their ports, and none gets lost beside them.
    let flows: Vec<_> = (0..40).map(|_| enter(&b, || std::net::UdpSocket::bind("10.7.0.2:0").unwrap())).collect();
    let (mut receiver, mut froms, start) = (socket.receiver(), BTreeSet::new(), Instant::now());
    while froms.len() < flows.len() {
        assert!(start.elapsed() < PATIENCE, "{} of {} flows arrive", froms.len(), flows.len());
        for flow in &flows {
            flow.send_to(&flow.local_addr().unwrap().port().to_be_bytes(), "10.7.0.1:7000").unwrap();
        }
        froms.extend(std::iter::from_fn(|| Some(receive(&mut receiver)).filter(|some| !some.is_empty())).flatten());
    }
    assert_eq!(receiver.counters().packets, receiver.counters().packets_xdp);
}

#[test]
fn scion_goes_past_the_kernel() {
    let Some([a, b]) = pair(1500, 1) else { return };
    let isd_as = "1-ff00:0:110".parse().unwrap();
    let at = |inside, ip: &str| {
        let local = ScionAddr::new(isd_as, SocketAddr::new(ip.parse().unwrap(), 0));
        enter(inside, || must(Socket::bind_scion(local, 31_000..=32_767)))
    };
    let (here, there) = (at(&a, "10.7.0.1"), at(&b, "10.7.0.2"));
    must(attach(&a, &here));
    must(attach(&b, &there));
    let [one, other] = [here.local_scion().unwrap(), there.local_scion().unwrap()];
    let path = must(Path::scion(one, other, &ScionPath::inside(isd_as, 1400, SystemTime::now())));
    let back = must(Path::scion(other, one, &ScionPath::inside(isd_as, 1400, SystemTime::now())));
    let key = must(there.add(&back));
    let (mut sender, mut receiver) = (must(here.sender(&path)), there.receiver());
    sender.set_ecn(2);
    go_past(&mut sender, &mut receiver);
    transfer(&mut sender, &mut receiver, 200, path.payload_len(1400));
    assert!(receiver.counters().packets_xdp > 100, "{:?}", receiver.counters());
    assert_eq!(receiver.counters().dropped, Default::default());
    // Path, headers and ECN are told as by the system's sockets.
    must(sender.try_send(&[Packet { head: b"abc", body: &[] }]));
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE);
        let (mut head, mut body) = ([0; 3], []);
        wait(&receiver);
        let mut places = [Place { head: &mut head, body: &mut body }];
        let Ok(batch) = receiver.recv(&mut places) else { continue };
        let Some(received) = batch.iter().find(|received| received.len == 3) else { continue };
        assert_eq!((received.path, received.ecn), (Some(key), 2));
        assert!(Path::back(other, batch.headers(received), received.from, 1400).is_ok());
        break;
    }
}

/// A task waits for the receiver's descriptor as for a socket's: each packet wakes it, whichever way that came.
#[test]
fn tasks_are_woken_by_either_way() {
    let Some([a, b]) = pair(1500, 2) else { return };
    let (here, there) = (bind_xdp(&a, "10.7.0.1"), bind_xdp(&b, "10.7.0.2"));
    let mut sender = must(here.sender(&Path::ip(address("10.7.0.2"), None)));
    transfer(&mut sender, &mut there.receiver(), 20, 1000);
    let slow = enter(&a, || std::net::UdpSocket::bind("10.7.0.1:0").unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let work = async {
        // SAFETY: a receiver's descriptor is the same for its whole life.
        let mut receiver = unsafe { tokio::io::unix::AsyncFd::register(there.receiver()) }.unwrap();
        let ways = (0..40u32).map(|number| (number, number % 3 == 0));
        for (number, by_system) in ways {
            match by_system {
                // Too long for a packet, so in fragments.
                true => assert_eq!(slow.send_to(&payload(number, 4000), "10.7.0.2:7000").unwrap(), 4000),
                false => assert_eq!(must(sender.try_send(&[Packet { head: &payload(number, 9), body: &[] }])), 1),
            }
            let mut memory = vec![0; 9000];
            loop {
                let mut guard = receiver.readable_mut().await.unwrap();
                let mut places = [Place { head: &mut [], body: &mut memory }];
                match guard.get_inner_mut().recv(&mut places) {
                    Ok(batch) if batch.is_empty() => {}
                    Ok(_) => break,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(memory[..9], payload(number, 9));
        }
    };
    runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await.expect("a packet woke nobody") });
}

#[test]
fn longer_packets_go_by_the_system_and_arrive() {
    let Some([a, b]) = pair(9000, 1) else { return };
    let (here, there) = (bind_xdp(&a, "10.7.0.1"), bind_xdp(&b, "10.7.0.2"));
    let (mut sender, mut receiver) = (must(here.sender(&Path::ip(address("10.7.0.2"), None))), there.receiver());
    transfer(&mut sender, &mut receiver, 300, 8900);
    let counters = receiver.counters();
    assert!(counters.packets_xdp > 0 && counters.packets_xdp < counters.packets, "{counters:?}");
    // More than the device takes is refused as ever.
    let body = vec![0; 8990];
    let error = sender.try_send(&[Packet { head: &[], body: &body }]).unwrap_err();
    assert!(matches!(error.kind, SendErrorKind::TooLong { .. }), "{error}");
}

#[test]
fn everybody_else_goes_on_as_before() {
    let Some([a, b]) = pair(1500, 1) else { return };
    // Open before there is a program, and used while it comes and goes.
    let listener = enter(&b, || TcpListener::bind("10.7.0.2:22").unwrap());
    let mut client = enter(&a, || TcpStream::connect("10.7.0.2:22").unwrap());
    let (mut served, _) = listener.accept().unwrap();
    let other = enter(&b, || std::net::UdpSocket::bind("10.7.0.2:7001").unwrap());
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    let stranger = enter(&a, || std::net::UdpSocket::bind("10.7.0.1:0").unwrap());
    let mut ssh = |text: &[u8]| {
        client.write_all(text).unwrap();
        let mut read = vec![0; text.len()];
        served.read_exact(&mut read).unwrap();
        assert_eq!(read, text);
    };
    ssh(b"before");
    let (here, there) = (bind_xdp(&a, "10.7.0.1"), bind_xdp(&b, "10.7.0.2"));
    let (mut sender, mut receiver) = (must(here.sender(&Path::ip(address("10.7.0.2"), None))), there.receiver());
    for round in 0..5 {
        transfer(&mut sender, &mut receiver, 100, 1400);
        ssh(&vec![round; 10_000]);
        // Another port, whole and in fragments.
        for len in [10, 5000] {
            stranger.send_to(&vec![round; len], "10.7.0.2:7001").unwrap();
            let mut read = vec![0; 9000];
            assert_eq!(other.recv(&mut read).unwrap(), len);
        }
    }
    // Fragments of a datagram for us come by the system's socket.
    let before = receiver.counters().clone();
    stranger.send_to(&[9; 5000], "10.7.0.2:7000").unwrap();
    let start = Instant::now();
    while receiver.counters().packets == before.packets {
        assert!(start.elapsed() < PATIENCE);
        receive(&mut receiver);
    }
    assert_eq!(receiver.counters().packets_xdp, before.packets_xdp);
    drop((sender, receiver, here, there));
    ssh(b"after");
    assert!(!run(&a, "ip", &["link", "show", "link0"]).contains("xdp"), "the program is still there");
    // And the next one may have the interface.
    bind_xdp(&a, "10.7.0.1");
}

#[test]
fn all_addresses_of_an_interface_are_taken_and_new_ones_too() {
    let Some([a, b]) = pair(1500, 1) else { return };
    let (here, there) = (bind(&a, "::"), bind_xdp(&b, "::"));
    let mut receiver = there.receiver();
    for ip in ["10.7.0.2", "fd00:7::2"] {
        let mut sender = must(here.sender(&Path::ip(address(ip), None)));
        let before = receiver.counters().packets_xdp;
        transfer(&mut sender, &mut receiver, 50, 1400);
        assert!(receiver.counters().packets_xdp - before >= 25, "{ip}: {:?}", receiver.counters());
    }
    run(&b, "ip", &["addr", "add", "10.7.0.99/24", "dev", "link0"]);
    let mut sender = must(here.sender(&Path::ip(address("10.7.0.99"), None)));
    let (start, before) = (Instant::now(), receiver.counters().packets_xdp);
    while receiver.counters().packets_xdp == before {
        assert!(start.elapsed() < PATIENCE, "the new address is not taken");
        transfer(&mut sender, &mut receiver, 10, 1400);
    }
}

#[test]
fn a_neighbour_with_another_address_is_noticed() {
    let Some([a, b]) = pair(1500, 1) else { return };
    // Half a minute by default, as for everybody who sends by the system.
    must(a.set("net.ipv4.neigh.link0.base_reachable_time_ms", "1000"));
    must(a.set("net.ipv4.neigh.link0.delay_first_probe_time", "1"));
    let (here, there) = (bind_xdp(&a, "10.7.0.1"), bind(&b, "10.7.0.2"));
    let (mut sender, mut receiver) = (must(here.sender(&Path::ip(address("10.7.0.2"), None))), there.receiver());
    go_past(&mut sender, &mut receiver);
    // A replaced machine: the kernel finds out, since it is told that the neighbour is in use.
    run(&b, "ip", &["link", "set", "link0", "address", "02:00:00:00:be:ef"]);
    transfer(&mut sender, &mut receiver, 100, 1400);
    go_past(&mut sender, &mut receiver);
}

#[test]
fn an_interface_that_changes_is_used_as_it_is_now() {
    let Some([a, b]) = pair(1500, 1) else { return };
    let (here, there) = (bind_xdp(&a, "10.7.0.1"), bind_xdp(&b, "10.7.0.2"));
    let path = Path::ip(address("10.7.0.2"), None);
    let (mut sender, mut receiver) = (must(here.sender(&path)), there.receiver());
    transfer(&mut sender, &mut receiver, 50, 1472);
    run(&a, "ip", &["link", "set", "link0", "mtu", "1400"]);
    run(&a, "ip", &["link", "set", "link0", "address", "02:00:00:00:be:ef"]);
    let (start, body) = (Instant::now(), vec![0; 1472]);
    // The kernel's news are heard within a moment.
    let error = loop {
        assert!(start.elapsed() < PATIENCE, "the interface takes 1400 bytes");
        match sender.try_send(&[Packet { head: &[], body: &body }]) {
            Err(error) if !is_full(&error) => break error,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert!(matches!(error.kind, SendErrorKind::TooLong { .. }), "{error}");
    while !receive(&mut receiver).is_empty() {}
    transfer(&mut sender, &mut receiver, 50, 1372);
    go_past(&mut sender, &mut receiver);
    // Answers find the new address.
    transfer(&mut must(there.sender(&Path::ip(address("10.7.0.1"), None))), &mut here.receiver(), 50, 1372);
}

#[test]
fn an_interface_may_go_down_come_back_and_vanish() {
    let Some([a, b]) = pair(1500, 1) else { return };
    let (here, there) = (bind_xdp(&a, "10.7.0.1"), bind_xdp(&b, "10.7.0.2"));
    let (mut sender, mut receiver) = (must(here.sender(&Path::ip(address("10.7.0.2"), None))), there.receiver());
    transfer(&mut sender, &mut receiver, 100, 1400);
    let mut fails = |what: &str| {
        // What waits in a ring as the link goes down leaves when it is back: a number that is in no transfer.
        let (start, body) = (Instant::now(), [0xff; 100]);
        loop {
            assert!(start.elapsed() < PATIENCE, "{what}");
            match sender.try_send(&[Packet { head: &[], body: &body }]) {
                Ok(_) => {}
                Err(error) if is_full(&error) => {}
                Err(error) => break error,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    must(a.set_device("link0", false));
    let error = fails("down");
    assert!(error.kind.is_passing(), "{error}");
    must(a.set_device("link0", true));
    run(&a, "ip", &["route", "replace", "10.7.0.0/24", "dev", "link0"]);
    let mut sender = must(here.sender(&Path::ip(address("10.7.0.2"), None)));
    transfer(&mut sender, &mut receiver, 100, 1400);
    go_past(&mut sender, &mut receiver);
    run(&a, "ip", &["link", "del", "link0"]);
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "gone");
        match sender.try_send(&[Packet { head: b"x", body: &[] }]) {
            Err(error) if !is_full(&error) => break assert!(error.kind.is_passing(), "{error}"),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    assert!(receive(&mut here.receiver()).is_empty());
}

#[test]
fn full_rings_lose_what_does_not_fit_and_nothing_later() {
    let Some([a, b]) = pair(1500, 1) else { return };
    let (here, there) = (bind_xdp(&a, "10.7.0.1"), bind_xdp(&b, "10.7.0.2"));
    let (mut sender, mut receiver) = (must(here.sender(&Path::ip(address("10.7.0.2"), None))), there.receiver());
    go_past(&mut sender, &mut receiver);
    // Nobody reads: many more than the rings take.
    let body = payload(9_999_999, 1000);
    let packets = [Packet { head: &[], body: &body }; 64];
    let (start, mut sent) = (Instant::now(), 0);
    while sent < 6000 {
        assert!(start.elapsed() < PATIENCE);
        match sender.try_send(&packets) {
            Ok(more) => sent += more,
            Err(error) => assert!(is_full(&error), "{error}"),
        }
    }
    let mut arrived = 0;
    loop {
        let some = receive(&mut receiver);
        if some.is_empty() {
            break;
        }
        assert!(some.iter().all(|bytes| *bytes == body));
        arrived += some.len();
    }
    assert!(arrived > 1000 && arrived < sent, "{arrived} of {sent}");
    transfer(&mut sender, &mut receiver, 200, 1400);
}

/// Frames that no kernel makes, straight to the wire.
#[test]
fn frames_of_a_hostile_peer_harm_nobody() {
    let Some([a, b]) = pair(1500, 1) else { return };
    let (here, there) = (bind_xdp(&a, "10.7.0.1"), bind_xdp(&b, "10.7.0.2"));
    let (mut sender, mut receiver) = (must(here.sender(&Path::ip(address("10.7.0.2"), None))), there.receiver());
    transfer(&mut sender, &mut receiver, 50, 1400);
    let before = receiver.counters().clone();
    let macs = [&b, &a].map(|host| {
        let shown = run(host, "ip", &["-br", "link", "show", "link0"]);
        let mac = shown.split_whitespace().nth(2).unwrap().to_owned();
        mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect::<Vec<u8>>()
    });
    // A datagram from 10.7.0.1:7000 to 10.7.0.2:7000 whose checksum nobody computed.
    let mut good = [macs[0].as_slice(), &macs[1], &[8, 0]].concat();
    good.extend([0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 7, 0, 1, 10, 7, 0, 2]);
    good.extend([0x1b, 0x58, 0x1b, 0x58, 0, 12, 0, 0, b'g', b'o', b'o', b'd']);
    let sum: u32 = good[14..34].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    good[24..26].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    let mut frames: Vec<Vec<u8>> = (0..good.len()).map(|len| good[..len].to_vec()).filter(|f| f.len() >= 14).collect();
    // Every bit of the headers turned round.
    for bit in 8 * 12..8 * 42 {
        let mut frame = good.clone();
        frame[bit / 8] ^= 1 << (bit % 8);
        frames.push(frame);
    }
    let raw = enter(&a, RawSocket::open);
    for frame in &frames {
        raw.send(frame);
    }
    raw.send(&good);
    let (start, mut seen) = (Instant::now(), Vec::new());
    while !seen.iter().any(|bytes: &Vec<u8>| bytes == b"good") {
        assert!(start.elapsed() < PATIENCE);
        seen.extend(receive(&mut receiver));
    }
    while !receive(&mut receiver).is_empty() {}
    let counters = receiver.counters();
    assert!(counters.dropped != before.dropped, "{counters:?}");
    // What arrives is what was sent, or from somebody else: no checksum protects it here.
    assert!(seen.iter().all(|bytes| bytes.len() <= 4), "{seen:?}");
    transfer(&mut sender, &mut receiver, 100, 1400);
}

/// A socket that sends frames as they are.
struct RawSocket(i32);

impl RawSocket {
    fn open() -> Self {
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(fd >= 0);
        // SAFETY: plain C data, for which zero is "nothing".
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        // SAFETY: the name ends in a zero byte.
        address.sll_ifindex = unsafe { libc::if_nametoindex(c"link0".as_ptr()) } as i32;
        // SAFETY: the address lives over the call and has that length.
        let bound = unsafe { libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32) };
        assert_eq!(bound, 0);
        Self(fd)
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: pointer and length describe the frame.
        unsafe { libc::send(self.0, frame.as_ptr().cast(), frame.len(), 0) };
    }
}

impl Drop for RawSocket {
    fn drop(&mut self) {
        // SAFETY: it is ours, and not used again.
        unsafe { libc::close(self.0) };
    }
}

#[test]
fn what_cannot_do_is_refused_by_name() {
    let Some([a, _b]) = pair(1500, 1) else { return };
    run(&a, "ip", &["link", "add", "above0", "type", "vxlan", "id", "5", "dstport", "4789", "dev", "link0"]);
    run(&a, "ip", &["link", "add", "bridge0", "type", "bridge"]);
    run(&a, "ip", &["tuntap", "add", "tun0", "mode", "tun"]);
    let socket = bind(&a, "10.7.0.1");
    for (name, part) in [("above0", "`vxlan`"), ("bridge0", "`bridge`"), ("tun0", "tun"), ("lo", "no Ethernet")] {
        let error = enter(&a, || socket.attach_xdp(name)).unwrap_err();
        assert!(matches!(error, XdpError::Kind { .. }) && error.to_string().contains(part), "{error}");
    }
    let error = enter(&a, || socket.attach_xdp("link7")).unwrap_err();
    assert!(matches!(error, XdpError::Unknown { .. }), "{error}");
    must(attach(&a, &socket));
    let error = attach(&a, &socket).unwrap_err();
    assert!(matches!(error, XdpError::Occupied { .. }), "{error}");
    assert!(error.to_string().contains("ip link show link0"), "{error}");
}

/// Links between namespaces copy frames: that is known without touching them.
#[test]
fn what_copies_is_not_chosen() {
    let Some([a, _b]) = pair(1500, 1) else { return };
    let socket = bind(&a, "10.7.0.1");
    let declined = enter(&a, || socket.attach_xdp_if_faster("link0")).unwrap_err();
    assert!(matches!(&declined, XdpDeclined::NoZeroCopy(name) if name == "link0"), "{declined}");
    assert!(!run(&a, "ip", &["link", "show", "link0"]).contains("xdp"));
    // By name it can be had all the same.
    must(attach(&a, &socket));
}

#[test]
fn both_ways_can_be_measured_and_nobody_gets_a_datagram() {
    for (mtu, ip) in [(1500, "10.7.0.1"), (1500, "fd00:7::1"), (9000, "10.7.0.1")] {
        let Some([a, b]) = pair(mtu, 1) else { return };
        // RFC 863: where the measurement's frames would go, here and there.
        let bystanders = [&a, &b].map(|host| enter(host, || std::net::UdpSocket::bind("[::]:9").unwrap()));
        let measured = enter(&a, || must(anabranch_xdp::Port::attach("link0", address(ip))).measure().unwrap());
        assert!(measured.xdp_ns > 0.0 && measured.system_ns > 0.0);
        eprintln!("MTU {mtu}: {measured:?}, worth it: {}", measured.is_worth_it());
        for bystander in bystanders {
            bystander.set_nonblocking(true).unwrap();
            assert!(bystander.recv(&mut [0; 10]).is_err(), "somebody got a datagram");
        }
    }
}

/// This very test program once more, inside a namespace, doing what the test `child_process` does; without some capabilities.
fn child(inside: &Namespace, what: &str, lacks: &'static [u64]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child_process", "--exact", "--ignored", "--nocapture"]).env(CHILD, what).stdout(Stdio::piped());
    // SAFETY: between fork and exec, system calls only.
    unsafe {
        command.pre_exec(move || {
            for capability in lacks {
                // SAFETY: no pointers.
                if libc::prctl(libc::PR_CAPBSET_DROP, *capability, 0, 0, 0) != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    enter(inside, || command.spawn().unwrap())
}

/// What the child says, up to a line with `mark`.
fn says(child: &mut Child, mark: &str) -> String {
    let lines = io::BufRead::lines(io::BufReader::new(child.stdout.as_mut().unwrap()));
    let mut all = String::new();
    for line in lines {
        let line = line.unwrap();
        all += &line;
        if line.contains(mark) {
            return line;
        }
    }
    panic!("the child has ended: {all}");
}

#[test]
#[ignore = "is the child process of the tests below"]
fn child_process() {
    let Ok(what) = std::env::var(CHILD) else { return };
    if what == "no memory" {
        let limit = libc::rlimit { rlim_cur: 1 << 16, rlim_max: 1 << 16 };
        // SAFETY: the limit lives over the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
    }
    let socket = must(Socket::bind(address("10.7.0.1")));
    match socket.attach_xdp("link0") {
        Ok(port) => println!("mark: attached {port:?}"),
        Err(error) => println!("mark: {error}"),
    }
    if what == "hold" {
        std::thread::sleep(PATIENCE);
    }
}

#[test]
fn after_kill_9_nothing_is_left() {
    let Some([a, b]) = pair(1500, 1) else { return };
    let mut holder = child(&a, "hold", &[]);
    assert!(says(&mut holder, "mark:").contains("attached"));
    assert!(run(&a, "ip", &["link", "show", "link0"]).contains("xdp"));
    holder.kill().unwrap();
    holder.wait().unwrap();
    let start = Instant::now();
    while run(&a, "ip", &["link", "show", "link0"]).contains("xdp") {
        assert!(start.elapsed() < PATIENCE, "the program is still attached");
    }
    let (here, there) = (bind_xdp(&a, "10.7.0.1"), bind(&b, "10.7.0.2"));
    let (mut sender, mut receiver) = (must(here.sender(&Path::ip(address("10.7.0.2"), None))), there.receiver());
    transfer(&mut sender, &mut receiver, 50, 1400);
}

#[test]
fn missing_capabilities_are_named_with_the_remedy() {
    // linux/capability.h
    const NET_ADMIN: u64 = 12;
    const NET_RAW: u64 = 13;
    const SYS_ADMIN: u64 = 21;
    const BPF: u64 = 39;
    const IPC_LOCK: u64 = 14;
    let Some([a, _b]) = pair(1500, 1) else { return };
    for (lacks, names) in [
        (&[NET_RAW][..], "CAP_NET_RAW, which"),
        (&[BPF, SYS_ADMIN], "CAP_BPF, which"),
        (&[NET_ADMIN, NET_RAW, BPF, SYS_ADMIN], "CAP_NET_ADMIN and CAP_NET_RAW and CAP_BPF, which"),
    ] {
        let mut poor = child(&a, "try", lacks);
        let said = says(&mut poor, "mark:");
        poor.wait().unwrap();
        assert!(said.contains(names) && said.contains("setcap cap_net_admin,cap_net_raw,cap_bpf+ep"), "{said}");
    }
    let mut poor = child(&a, "no memory", &[IPC_LOCK]);
    let said = says(&mut poor, "mark:");
    poor.wait().unwrap();
    assert!(said.contains("6291456 bytes") && said.contains("ulimit -l"), "{said}");
}
