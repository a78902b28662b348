//! Two border routers and their hosts, over real sockets on loopback.

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::router::{
    DataPlane, DropReason, HOST_PORTS_DEFAULT, InterfaceConfig, LinkEnd, LinkRole, Router, RouterConfig, RouterError,
    check_links,
};
use anabranch_paths::IsdAs;
use anabranch_scion_wire::mac::{HopKey, chained};
use anabranch_scion_wire::scmp::{EchoId, Message as Scmp};
use anabranch_scion_wire::{
    Address, DataplanePath, HeaderFields, HeaderTemplate, HopField, InfoField, Packet, PathRef, PathSegment, Ports,
    checksum, udp,
};
use anabranch_udp::{Message, Options, RecvBatch, Socket};

/// How long anything may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(20);
const HOST_PORT: u16 = 31_000;
const KEY: [u8; 16] = [9; 16];
const INTERFACE: u16 = 5;

/// Two ASes, a link, a host in each.
struct Pair {
    _plane: DataPlane,
    routers: [Arc<Router>; 2],
    hosts: [Socket; 2],
    network: u32,
}

fn ia(index: usize) -> IsdAs {
    ["1-ff00:0:110", "1-ff00:0:111"][index].parse().unwrap()
}

/// A /24 of loopback for each test of each process.
fn network() -> u32 {
    static TESTS: AtomicU32 = AtomicU32::new(0);
    let (process, test) = (std::process::id() & 0x3ff, TESTS.fetch_add(1, Ordering::Relaxed));
    assert!(test < 16, "four bits of the address");
    0x7f40_0000 | process << 12 | test << 8
}

fn at(network: u32, host: u32, port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::from_bits(network | host).into(), port)
}

fn config(network: u32, index: usize, shape: LinkShape) -> RouterConfig {
    let (own, other) = (10 + index as u32, 11 - index as u32);
    RouterConfig {
        isd_as: ia(index),
        forwarding_key: KEY,
        internal: vec![at(network, own, 30_042)],
        host_ports: HOST_PORTS_DEFAULT,
        services: Vec::new(),
        interfaces: vec![InterfaceConfig {
            id: INTERFACE,
            role: [LinkRole::Child, LinkRole::Parent][index],
            neighbor: ia(1 - index),
            local: at(network, own, 20_000),
            remote: at(network, other, 20_000),
            shape,
        }],
    }
}

impl Pair {
    fn new(shape: LinkShape) -> Self {
        let network = network();
        let plane = DataPlane::start(Some(2)).unwrap();
        let routers = [0, 1].map(|index| plane.add_router(&config(network, index, shape)).unwrap());
        let hosts = [1, 2].map(|host| Socket::bind(at(network, host, HOST_PORT), &Options::default()).unwrap());
        Self { _plane: plane, routers, hosts, network }
    }

    fn host(&self, index: usize) -> Address {
        Address::new(ia(index), at(self.network, 1 + index as u32, 0).ip())
    }

    /// From the first AS to the second, or back.
    fn path(&self, from: usize) -> DataplanePath {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let info = InfoField { peering: false, cons_dir: true, seg_id: 1, timestamp_s: now.as_secs() as u32 };
        let hop = |cons_ingress, cons_egress| HopField::unsealed(63, cons_ingress, cons_egress);
        let key = HopKey::new(&KEY);
        let first = key.sealed(info.seg_id, info.timestamp_s, hop(0, INTERFACE));
        let beta = chained(info.seg_id, &first.mac);
        let second = key.sealed(beta, info.timestamp_s, hop(INTERFACE, 0));
        let segment = match from {
            0 => PathSegment { info, hops: &[first, second] },
            _ => PathSegment { info: InfoField { cons_dir: false, seg_id: beta, ..info }, hops: &[second, first] },
        };
        DataplanePath::build(&[segment]).unwrap()
    }

    fn fields<'a>(&self, from: usize, destination: Address, path: &'a DataplanePath) -> HeaderFields<'a> {
        let path = PathRef::Standard(path.view());
        HeaderFields { source: self.host(from), destination, path, flow_id: 1, traffic_class: 0 }
    }

    /// Sends numbered packets from one host to the other, in bursts.
    fn send(&self, from: usize, numbers: std::ops::Range<u32>, payload_len: usize) {
        let path = self.path(from);
        let ports = Ports { source: HOST_PORT, destination: HOST_PORT };
        let template = HeaderTemplate::new(&self.fields(from, self.host(1 - from), &path), ports).unwrap();
        let packet_len = template.header_len() + payload_len;
        let numbers: Vec<u32> = numbers.collect();
        for numbers in numbers.chunks(40) {
            let mut burst = vec![3; numbers.len() * packet_len];
            for (packet, number) in burst.chunks_mut(packet_len).zip(numbers) {
                let (header, payload) = packet.split_at_mut(template.header_len());
                payload[..4].copy_from_slice(&number.to_be_bytes());
                template.write(payload_len, checksum::sum(payload), header).unwrap();
            }
            let parts = [IoSlice::new(&burst)];
            let message = Message::burst(self.routers[from].internal_address(), &parts, packet_len);
            assert_eq!(self.hosts[from].send(&[message]).unwrap(), 1);
        }
    }

    fn send_scmp(&self, from: usize, destination: Address, message: &Scmp<'_>) {
        let path = self.path(from);
        let mut packet = vec![0; 2000];
        let len = message.write(&self.fields(from, destination, &path), &mut packet).unwrap();
        let parts = [IoSlice::new(&packet[..len])];
        self.hosts[from].send(&[Message::new(self.routers[from].internal_address(), &parts)]).unwrap();
    }

    /// The next packets at a host: as many as wanted, or those that came before the patience ended.
    fn receive(&self, host: usize, wanted: usize) -> Vec<Vec<u8>> {
        let mut batch = RecvBatch::new(8);
        let (mut packets, start) = (Vec::new(), Instant::now());
        while packets.len() < wanted && start.elapsed() < PATIENCE {
            if self.hosts[host].recv(&mut batch).is_err() {
                let mut poll = libc::pollfd { fd: self.hosts[host].as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one entry, which lives over the call.
                unsafe { libc::poll(&mut poll, 1, 100) };
                continue;
            }
            packets
                .extend(batch.iter().flat_map(|received| received.segments().map(<[u8]>::to_vec).collect::<Vec<_>>()));
        }
        packets
    }

    fn numbers(&self, host: usize, wanted: usize) -> Vec<u32> {
        let number = |packet: &Vec<u8>| {
            let packet = Packet::parse(packet).unwrap();
            let payload = udp::Datagram::parse(&packet).unwrap().payload();
            u32::from_be_bytes(*payload.first_chunk().unwrap())
        };
        self.receive(host, wanted).iter().map(number).collect()
    }
}

#[test]
fn packets_cross_both_routers_whole_and_in_order() {
    let pair = Pair::new(LinkShape::default());
    for (from, payload_len) in [(0, 1200), (1, 1200), (0, 4), (1, 333)] {
        pair.send(from, 0..1000, payload_len);
        assert!(pair.numbers(1 - from, 1000).into_iter().eq(0..1000));
    }
    for router in &pair.routers {
        let (link, inside) = (router.stats(INTERFACE).unwrap(), router.internal_stats());
        assert_eq!((link.sent_packets, link.received_packets), (2000, 2000));
        assert_eq!((inside.sent_packets, inside.received_packets), (2000, 2000));
        assert!(link.dropped.iter().chain(&inside.dropped).all(|count| *count == 0));
    }
}

#[test]
fn the_far_router_answers_echo() {
    let pair = Pair::new(LinkShape::default());
    let far = Address::new(ia(1), pair.routers[1].internal_address().ip());
    let id = EchoId { identifier: HOST_PORT, sequence: 4 };
    pair.send_scmp(0, far, &Scmp::EchoRequest { id, data: b"are you there" });
    let packets = pair.receive(0, 1);
    let packet = Packet::parse(&packets[0]).unwrap();
    assert_eq!(Scmp::parse(&packet).unwrap(), Scmp::EchoReply { id, data: b"are you there" });
    assert_eq!(pair.routers[1].stats(INTERFACE).unwrap().scmp_packets, 1);
}

#[test]
fn who_sends_into_a_link_that_is_down_is_told_once_a_burst() {
    let pair = Pair::new(LinkShape::default());
    pair.routers[0].set_up(INTERFACE, false).unwrap();
    pair.send(0, 0..40, 100);
    let packets = pair.receive(0, 1);
    let packet = Packet::parse(&packets[0]).unwrap();
    match Scmp::parse(&packet).unwrap() {
        Scmp::ExternalInterfaceDown { isd_as, interface, .. } => assert_eq!((isd_as, interface), (ia(0), INTERFACE)),
        other => panic!("{other}"),
    }
    pair.routers[0].set_up(INTERFACE, true).unwrap();
    pair.send(0, 40..41, 100);
    assert_eq!(pair.numbers(1, 1), [40]);
    let inside = pair.routers[0].internal_stats();
    assert_eq!((inside.scmp_packets, inside.dropped_for(DropReason::InterfaceDown)), (1, 40));
    // The link's other end takes nothing in, either, once it is down.
    pair.routers[1].set_up(INTERFACE, false).unwrap();
    pair.send(0, 41..42, 100);
    let start = Instant::now();
    while pair.routers[1].stats(INTERFACE).unwrap().dropped_for(DropReason::InterfaceDown) == 0 {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_line_loses_what_it_was_asked_to_and_accounts_for_the_rest() {
    let shape = LinkShape { loss: 0.25, queue_bytes: 8 << 20, ..LinkShape::default() };
    let pair = Pair::new(shape);
    // The shape changes while packets are under way.
    pair.send(0, 0..1000, 100);
    let rate_bps = Some(100_000_000);
    let delay = Duration::from_millis(5);
    pair.routers[0].set_shape(INTERFACE, LinkShape { rate_bps, delay, jitter: delay, ..shape }).unwrap();
    pair.send(0, 1000..2000, 100);
    pair.routers[0].set_shape(INTERFACE, LinkShape::default()).unwrap();
    pair.send(0, 2000..2001, 100);
    let start = Instant::now();
    let lost = loop {
        let stats = pair.routers[0].stats(INTERFACE).unwrap();
        if pair.routers[1].stats(INTERFACE).unwrap().received_packets + stats.lost_packets == 2001 {
            assert_eq!(stats.sent_packets, 2001);
            break stats.lost_packets;
        }
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    };
    let numbers = pair.numbers(1, 2001 - lost as usize);
    assert!(numbers.is_sorted() && numbers.len() == 2001 - lost as usize);
    // 2000 packets, a quarter each; some may have slipped under the last shape. Ten standard deviations.
    assert!(lost < 700, "{lost}");
}

#[test]
fn a_full_queue_drops_and_is_counted() {
    let shape = LinkShape { rate_bps: Some(1_000_000), queue_bytes: 20_000, ..LinkShape::default() };
    let pair = Pair::new(shape);
    pair.send(0, 0..200, 1000);
    let start = Instant::now();
    loop {
        let stats = pair.routers[0].stats(INTERFACE).unwrap();
        let full = stats.dropped_for(DropReason::QueueFull);
        if stats.sent_packets + full == 200 {
            assert!(full > 0 && stats.sent_packets >= 18);
            break;
        }
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn strangers_are_not_taken_for_the_neighbour() {
    let pair = Pair::new(LinkShape::default());
    let part = [IoSlice::new(&[0; 100])];
    pair.hosts[0].send(&[Message::new(at(pair.network, 11, 20_000), &part)]).unwrap();
    let start = Instant::now();
    while pair.routers[1].stats(INTERFACE).unwrap().dropped_for(DropReason::NotNeighbor) == 0 {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_check_measures_both_directions_and_tells_a_link_that_is_down() {
    let pair = Pair::new(LinkShape::default());
    let shape = |rate_bps, delay_ms, loss| LinkShape {
        rate_bps: Some(rate_bps),
        delay: Duration::from_millis(delay_ms),
        loss,
        ..LinkShape::default()
    };
    let asked = [shape(5_000_000, 20, 0.0), shape(50_000_000, 5, 0.1)];
    for (router, asked) in pair.routers.iter().zip(asked) {
        router.set_shape(INTERFACE, asked).unwrap();
    }
    let end = |index: usize| LinkEnd { router: Arc::clone(&pair.routers[index]), interface: INTERFACE };
    let reports = check_links(&[(end(0), end(1))]).unwrap();
    for (index, report) in reports.iter().enumerate() {
        eprintln!("{report}");
        let measured = report.measured.unwrap();
        assert_eq!((report.from.isd_as, report.asked, measured.reordered), (ia(index), asked[index], 0));
        // A machine that is busy makes nothing faster than it was asked to be.
        assert!(measured.delay_min.unwrap() + Duration::from_micros(1) >= asked[index].delay);
        assert!(measured.rate_bps.is_some() && measured.packets > 0);
        assert_eq!(measured.loss > 0.0, asked[index].loss > 0.0);
    }
    pair.routers[1].set_up(INTERFACE, false).unwrap();
    assert!(check_links(&[(end(0), end(1))]).unwrap().iter().all(|report| report.measured.is_none()));
    let nowhere = LinkEnd { interface: 99, ..end(0) };
    assert!(matches!(check_links(&[(nowhere, end(1))]), Err(RouterError::UnknownInterface(_, 99))));
}

#[test]
fn what_cannot_be_bound_or_shaped_is_named() {
    let pair = Pair::new(LinkShape::default());
    let plane = DataPlane::start(Some(1)).unwrap();
    let taken = plane.add_router(&config(pair.network, 0, LinkShape::default())).err().unwrap();
    assert!(taken.to_string().contains(&at(pair.network, 10, 30_042).to_string()), "{taken}");
    let router = &pair.routers[0];
    assert!(matches!(router.set_up(1, true), Err(RouterError::UnknownInterface(_, 1))));
    let refused = router.set_shape(INTERFACE, LinkShape { mtu: 100, ..LinkShape::default() });
    assert!(matches!(refused, Err(RouterError::Shape(..))));
}
