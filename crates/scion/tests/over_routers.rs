//! Sockets of two ASes, with their border routers between them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::router::{DataPlane, HOST_PORTS_DEFAULT, InterfaceConfig, LinkRole, Router, RouterConfig};
use anabranch_paths::{Interface, IsdAs, ScionAddr, ScionPath};
use anabranch_scion::socket::{ProbeError, ScmpKind, Socket, Transmit};
use anabranch_scion_wire::mac::{HopKey, chained};
use anabranch_scion_wire::scmp::END_HOST_PORT;
use anabranch_scion_wire::{DataplanePath, HopField, InfoField, PathSegment};

/// How long anything may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(20);
const KEY: [u8; 16] = [9; 16];
/// Of the first AS and the second.
const INTERFACES: [u16; 2] = [5, 6];

struct Net {
    _plane: DataPlane,
    routers: [Arc<Router>; 2],
    network: u32,
}

fn ia(index: usize) -> IsdAs {
    ["1-ff00:0:110", "1-ff00:0:111"][index].parse().unwrap()
}

fn at(network: u32, host: u32, port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::from_bits(network | host).into(), port)
}

impl Net {
    fn new() -> Self {
        static TESTS: AtomicU32 = AtomicU32::new(0);
        // A /24 of loopback for each test of each process.
        let network = 0x7f80_0000 | (std::process::id() & 0xfff) << 10 | TESTS.fetch_add(1, Ordering::Relaxed) << 8;
        let plane = DataPlane::start(Some(2)).unwrap();
        let routers = [0, 1].map(|index: usize| {
            let (own, other) = (10 + index as u32, 11 - index as u32);
            let config = RouterConfig {
                isd_as: ia(index),
                forwarding_key: KEY,
                internal: vec![at(network, own, 30_042)],
                host_ports: HOST_PORTS_DEFAULT,
                services: Vec::new(),
                interfaces: vec![InterfaceConfig {
                    id: INTERFACES[index],
                    role: [LinkRole::Child, LinkRole::Parent][index],
                    neighbor: ia(1 - index),
                    local: at(network, own, 20_000),
                    remote: at(network, other, 20_000),
                    shape: LinkShape::default(),
                }],
            };
            plane.add_router(&config).unwrap()
        });
        Self { _plane: plane, routers, network }
    }

    fn socket(&self, index: usize, port: u16) -> Socket {
        let local = ScionAddr::new(ia(index), at(self.network, 1 + index as u32, port));
        Socket::bind(local, HOST_PORTS_DEFAULT).unwrap()
    }

    /// From the first AS to the second; each `version` has hop fields of its own.
    fn path(&self, version: u32) -> ScionPath {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as u32;
        let info = InfoField { peering: false, cons_dir: true, seg_id: 1, timestamp_s: now - 1000 + version };
        let hop = |cons_ingress, cons_egress| HopField::unsealed(63, cons_ingress, cons_egress);
        let key = HopKey::new(&KEY);
        let first = key.sealed(info.seg_id, info.timestamp_s, hop(0, INTERFACES[0]));
        let beta = chained(info.seg_id, &first.mac);
        let second = key.sealed(beta, info.timestamp_s, hop(INTERFACES[1], 0));
        let segment = PathSegment { info, hops: &[first, second] };
        ScionPath {
            source: ia(0),
            destination: ia(1),
            interfaces: [0, 1].map(|index| Interface { isd_as: ia(index), id: INTERFACES[index] }).into(),
            mtu: 1400,
            expiry: SystemTime::now(),
            latency: vec![],
            bandwidth_kbps: vec![],
            link_kinds: vec![],
            next_hop: Some(self.routers[0].internal_address()),
            dataplane: DataplanePath::build(&[segment]).unwrap().into_bytes(),
        }
    }
}

/// The next packet's route and payload.
async fn next(socket: &Socket) -> (anabranch_scion::socket::RouteId, Vec<u8>) {
    let mut buf = vec![0; 2000];
    let received = tokio::time::timeout(PATIENCE, socket.recv_from(&mut buf)).await;
    let (len, route) = received.expect("a packet comes").unwrap();
    buf.truncate(len);
    (route, buf)
}

#[tokio::test]
async fn bursts_cross_two_routers_and_answers_come_back_also_after_refresh() {
    let net = Net::new();
    let (a, b) = (net.socket(0, 0), net.socket(1, 0));
    let route = a.register(b.local(), &net.path(0)).unwrap();
    let payload: Vec<u8> = (0..1200 * 100 + 5).map(|i| (i * 13 + i / 255) as u8).collect();
    let mut back = None;
    for version in 0..3 {
        a.update(route, &net.path(version)).unwrap();
        a.sender().send(&[Transmit { segment_len: 1200, ..Transmit::new(route, &payload) }]).await.unwrap();
        let mut got = Vec::new();
        while got.len() < payload.len() {
            let (by, bytes) = next(&b).await;
            assert_eq!(by, *back.get_or_insert(by));
            got.extend(bytes);
        }
        assert_eq!(got, payload);
        b.send_to(back.unwrap(), b"thanks").await.unwrap();
        assert_eq!(next(&a).await, (route, b"thanks".to_vec()));
    }
    assert_eq!(b.info(back.unwrap()).unwrap().interfaces, [INTERFACES[1], INTERFACES[0]]);
    assert_eq!(a.counters().dropped_total() + b.counters().dropped_total(), 0);
}

#[tokio::test]
async fn ping_and_traceroute_find_the_way() {
    let net = Net::new();
    // Routers hand echo requests to the port for all.
    let (a, b) = (net.socket(0, 0), net.socket(1, END_HOST_PORT));
    let remote = ScionAddr::new(ia(1), SocketAddr::new(b.local().host.ip(), 31_000));
    let route = a.register(remote, &net.path(0)).unwrap();
    let ask = async {
        let echo = a.ping(route, 1000, PATIENCE).await.unwrap();
        assert!(echo.packet_len > 1000);
        let hops = a.traceroute(route, PATIENCE).await.unwrap();
        let answers: Vec<_> = hops.iter().map(|hop| hop.answer.map(|(interface, _)| interface)).collect();
        let expected = net.path(0).interfaces.into_iter().map(Some).collect::<Vec<_>>();
        assert_eq!(answers, expected);
    };
    tokio::select! {
        () = ask => {}
        failed = a.drive() => panic!("{failed:?}"),
        failed = b.drive() => panic!("{failed:?}"),
    }
}

#[tokio::test]
async fn a_link_that_is_down_is_told_to_who_sends() {
    let net = Net::new();
    let (a, b) = (net.socket(0, 0), net.socket(1, 0));
    let route = a.register(b.local(), &net.path(0)).unwrap();
    net.routers[0].set_up(INTERFACES[0], false).unwrap();
    let down = ScmpKind::ExternalInterfaceDown(Interface { isd_as: ia(0), id: INTERFACES[0] });
    let told = async {
        a.send_to(route, b"anyone?").await.unwrap();
        let event = tokio::time::timeout(PATIENCE, a.event()).await.expect("an event comes");
        assert_eq!((event.route, event.kind, event.from.isd_as), (route, down, ia(0)));
        assert_eq!(a.ping(route, 8, PATIENCE).await, Err(ProbeError::Scmp(down)));
    };
    tokio::select! {
        () = told => {}
        failed = a.drive() => panic!("{failed:?}"),
    }
    net.routers[0].set_up(INTERFACES[0], true).unwrap();
    a.send_to(route, b"again").await.unwrap();
    assert_eq!(next(&b).await.1, b"again");
}
