//! Sockets of one AS on loopback: the empty path.

use std::future::poll_fn;
use std::io::IoSliceMut;
use std::time::{Duration, SystemTime};

use anabranch_paths::{IsdAs, ScionAddr, ScionPath};
use anabranch_scion::socket::{BindError, DEFAULT_PORTS, Dropped, ProbeError, RecvMeta, RouteId, Socket, Transmit};

const PATIENCE: Duration = Duration::from_secs(10);

fn isd_as() -> IsdAs {
    "1-ff00:0:110".parse().unwrap()
}

fn address(host: &str) -> ScionAddr {
    ScionAddr::new(isd_as(), host.parse().unwrap())
}

fn socket(host: &str) -> Socket {
    Socket::bind(address(host), DEFAULT_PORTS).unwrap()
}

fn within(mtu: u16) -> ScionPath {
    ScionPath::inside(isd_as(), mtu, SystemTime::UNIX_EPOCH)
}

/// Receives until `count` packets came: route, payload length and ECN of each, and in how many buffers they came.
async fn receive(socket: &Socket, count: usize, buf_len: usize) -> (Vec<(RouteId, Vec<u8>, u8)>, usize) {
    let (mut packets, mut runs) = (Vec::new(), 0);
    let mut bufs = vec![vec![0; buf_len]; 4];
    let mut metas = [RecvMeta::default(); 4];
    while packets.len() < count {
        let got = poll_fn(|cx| {
            let mut slices: Vec<_> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
            socket.poll_recv(cx, &mut slices, &mut metas)
        });
        let got = tokio::time::timeout(PATIENCE, got).await.expect("packets come").unwrap();
        runs += got;
        for (buf, meta) in bufs.iter().zip(&metas[..got]) {
            let payloads = buf[..meta.len].chunks(meta.segment_len.max(1));
            packets.extend(payloads.map(|payload| (meta.route, payload.to_vec(), meta.ecn)));
        }
    }
    (packets, runs)
}

#[tokio::test]
async fn bursts_cross_whole_with_ecn_and_odd_last_packets() {
    for host in ["127.0.0.1:0", "[::1]:0"] {
        let (a, b) = (socket(host), socket(host));
        let route = a.register(b.local(), &within(1472)).unwrap();
        let payload: Vec<u8> = (0..1200 * 130 + 7).map(|i| (i * 31 + i / 251) as u8).collect();
        let transmit = Transmit { segment_len: 1200, ecn: 0b10, ..Transmit::new(route, &payload) };
        let mut sender = a.sender();
        sender.send(&[transmit, Transmit::new(route, b"tail")]).await.unwrap();
        let (packets, runs) = receive(&b, 132, 1 << 16).await;
        let lens: Vec<_> = packets.iter().map(|(_, payload, _)| payload.len()).collect();
        assert_eq!(lens, [vec![1200; 130], vec![7, 4]].concat());
        let bytes: Vec<u8> = packets.iter().flat_map(|(_, payload, _)| payload.clone()).collect();
        assert_eq!(bytes, [payload, b"tail".to_vec()].concat());
        assert!(packets[..131].iter().all(|(_, _, ecn)| *ecn == 0b10) && packets[131].2 == 0);
        assert!(runs < 20, "{runs} buffers");
        let (sent, received) = (a.counters(), b.counters());
        assert_eq!((sent.packets_sent, received.packets_received, received.dropped.total()), (132, 132, 0));
        assert_eq!(sent.bytes_sent, received.bytes_received);
    }
}

#[tokio::test]
async fn several_peers_on_one_socket_keep_apart() {
    let hub = socket("127.0.0.1:0");
    let spokes: Vec<_> = (0..5).map(|_| socket("127.0.0.1:0")).collect();
    for round in 0..3u8 {
        for (number, spoke) in (0..).zip(&spokes) {
            let route = spoke.register(hub.local(), &within(1472)).unwrap();
            spoke.send_to(route, &[round, number]).await.unwrap();
        }
    }
    let (packets, _) = receive(&hub, 15, 4096).await;
    let mut sender = hub.sender();
    for (route, payload, _) in &packets {
        assert_eq!(hub.info(*route).unwrap().remote, spokes[usize::from(payload[1])].local());
        sender.send(&[Transmit::new(*route, payload)]).await.unwrap();
    }
    for (number, spoke) in (0..).zip(&spokes) {
        let (answers, _) = receive(spoke, 3, 4096).await;
        assert!(answers.iter().all(|(_, payload, _)| payload[1] == number));
    }
}

#[tokio::test]
async fn readers_with_little_room_lose_only_what_does_not_fit() {
    let (a, b) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
    let route = a.register(b.local(), &within(1472)).unwrap();
    let payload = [1; 1000];
    let burst = Transmit { segment_len: 100, ..Transmit::new(route, &payload) };
    a.sender().send(&[burst, Transmit::new(route, &payload), burst]).await.unwrap();
    // Two and a half packets of 100 bytes to a buffer, and none of 1000.
    let (packets, runs) = receive(&b, 20, 250).await;
    assert!(packets.iter().all(|(_, payload, _)| payload.len() == 100));
    assert_eq!(runs, 10);
    assert_eq!(b.counters().dropped.of(Dropped::BufferTooShort), 1);
    // The simple way is one packet a call.
    a.sender().send(&[burst]).await.unwrap();
    let mut buf = [0; 250];
    for _ in 0..10 {
        assert_eq!(b.recv_from(&mut buf).await.unwrap().0, 100);
    }
}

#[tokio::test]
async fn a_host_answers_pings() {
    let (a, b) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
    let route = a.register(b.local(), &within(1472)).unwrap();
    let ask = async {
        let echo = a.ping(route, 100, PATIENCE).await.unwrap();
        assert!(echo.rtt < PATIENCE && echo.packet_len > 100);
        // Nobody is at the port of a socket that is gone.
        let gone = socket("127.0.0.1:0").local();
        let nobody = a.register(gone, &within(1472)).unwrap();
        let silence = a.ping(nobody, 8, Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(silence, ProbeError::Timeout(Duration::from_millis(50)));
    };
    tokio::select! {
        () = ask => {}
        failed = a.drive() => panic!("{failed:?}"),
        failed = b.drive() => panic!("{failed:?}"),
    }
    assert_eq!(b.counters().echoes_answered, 1);
}

#[tokio::test]
async fn data_that_nobody_reads_is_counted() {
    let (a, b) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
    let route = a.register(b.local(), &within(1472)).unwrap();
    a.sender().send(&[Transmit { segment_len: 2, ..Transmit::new(route, b"abcde") }]).await.unwrap();
    let seen = async {
        while b.counters().dropped.of(Dropped::NobodyReads) < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        seen = tokio::time::timeout(PATIENCE, seen) => seen.unwrap(),
        failed = b.drive() => panic!("{failed:?}"),
    }
}

#[tokio::test]
async fn ports_are_those_of_the_as() {
    let first = Socket::bind(address("127.0.0.77:0"), 31500..=31501).unwrap();
    let second = Socket::bind(address("127.0.0.77:0"), 31500..=31501).unwrap();
    let mut ports = [first.local().host.port(), second.local().host.port()];
    ports.sort_unstable();
    assert_eq!(ports, [31500, 31501]);
    let none = Socket::bind(address("127.0.0.77:0"), 31500..=31501).unwrap_err();
    assert!(matches!(none, BindError::NoFreePort { first: 31500, last: 31501 }));
    let outside = Socket::bind(address("127.0.0.77:80"), DEFAULT_PORTS).unwrap_err();
    assert_eq!(
        outside.to_string(),
        "port 80 is outside the range 31000-32767 that the AS's routers deliver to: choose one in it, or 0 for any"
    );
    let taken = Socket::bind(first.local(), 31500..=31501).unwrap_err();
    assert!(taken.to_string().contains("127.0.0.77"), "{taken}");
    assert!(matches!(Socket::bind(address("0.0.0.0:0"), DEFAULT_PORTS), Err(BindError::Unspecified(_))));
    // Who answers the host's echo requests.
    assert!(Socket::bind(address("127.0.0.78:30041"), DEFAULT_PORTS).is_ok());
}
