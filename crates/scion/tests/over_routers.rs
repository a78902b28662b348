//! Sockets of two ASes, with their border routers between them.

mod pair;

use std::net::SocketAddr;
use std::time::Duration;

use anabranch_paths::{Interface, ScionAddr};
use anabranch_scion::socket::{DEFAULT_PORTS, ProbeError, ScmpKind, Socket, Transmit};
use anabranch_scion_wire::scmp::END_HOST_PORT;
use pair::{INTERFACES, Pair, ia};

/// How long anything may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(20);

fn socket(net: &Pair, index: usize, port: u16) -> Socket {
    Socket::bind(ScionAddr::new(ia(index), SocketAddr::new(net.host(index), port)), DEFAULT_PORTS).unwrap()
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
    let net = Pair::new(1472);
    let (a, b) = (socket(&net, 0, 0), socket(&net, 1, 0));
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
    assert_eq!(a.counters().dropped.total() + b.counters().dropped.total(), 0);
}

#[tokio::test]
async fn ping_and_traceroute_find_the_way() {
    let net = Pair::new(1472);
    // Routers hand echo requests to the port for all.
    let (a, b) = (socket(&net, 0, 0), socket(&net, 1, END_HOST_PORT));
    let remote = ScionAddr::new(ia(1), SocketAddr::new(b.local().host.ip(), 31_000));
    let route = a.register(remote, &net.path(0)).unwrap();
    let ask = async {
        let echo = a.ping(route, 1000, PATIENCE).await.unwrap();
        assert!(echo.packet_len > 1000);
        let hops = a.traceroute(route, PATIENCE).await.unwrap();
        let answers: Vec<_> = hops.iter().map(|hop| hop.answer.as_ref().map(|answer| answer.interface).ok()).collect();
        let expected = net.path(0).interfaces.into_iter().map(Some).collect::<Vec<_>>();
        assert_eq!(answers, expected);
        let last = a.probe(route, PATIENCE).await.unwrap().unwrap();
        assert_eq!((Some(last.interface), last.router.isd_as), (expected[1], ia(1)));
    };
    tokio::select! {
        () = ask => {}
        failed = a.drive() => panic!("{failed:?}"),
        failed = b.drive() => panic!("{failed:?}"),
    }
}

#[tokio::test]
async fn a_link_that_is_down_is_told_to_who_sends() {
    let net = Pair::new(1472);
    let (a, b) = (socket(&net, 0, 0), socket(&net, 1, 0));
    let route = a.register(b.local(), &net.path(0)).unwrap();
    let router = net.0.router(ia(0)).unwrap();
    router.set_up(INTERFACES[0], false).unwrap();
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
    router.set_up(INTERFACES[0], true).unwrap();
    a.send_to(route, b"again").await.unwrap();
    assert_eq!(next(&b).await.1, b"again");
}
