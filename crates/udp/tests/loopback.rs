//! Two sockets on loopback.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anabranch_udp::{Arrival, DATAGRAM_LEN_MAX, Message, Options, RecvBatch, SEGMENTS_MAX, Scatter, Socket};

const PATIENCE: Duration = Duration::from_secs(5);

fn pair(ip: &str) -> (Socket, Socket) {
    let address = || SocketAddr::new(ip.parse().unwrap(), 0);
    let options = Options { local_address: true, ..Options::default() };
    (Socket::bind(address(), &options).unwrap(), Socket::bind(address(), &options).unwrap())
}

/// Receives until `count` datagrams came: what they say, and in how many messages they came.
fn receive(socket: &Socket, count: usize) -> (Vec<Vec<u8>>, usize) {
    let (mut batch, mut out, mut messages) = (RecvBatch::new(8), Vec::new(), 0);
    let deadline = Instant::now() + PATIENCE;
    while out.len() < count {
        match socket.recv(&mut batch) {
            Ok(got) => messages += got,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                assert!(Instant::now() < deadline, "{} of {count} datagrams came", out.len());
                std::thread::yield_now();
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        for received in batch.iter() {
            assert!(!received.truncated);
            out.extend(received.segments().map(<[u8]>::to_vec));
        }
    }
    (out, messages)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

#[test]
fn many_messages_leave_in_one_call_and_arrive_in_order() {
    let (a, b) = pair("127.0.0.1");
    let payloads: Vec<_> = (1..=50).map(|i| bytes(i * 10)).collect();
    let slices: Vec<_> = payloads.iter().map(|payload| [IoSlice::new(payload)]).collect();
    let messages: Vec<_> = slices.iter().map(|parts| Message::new(b.local_addr(), parts)).collect();
    assert_eq!(a.send(&messages).unwrap(), 50);
    assert_eq!(receive(&b, 50).0, payloads);
}

#[test]
fn a_burst_is_cut_and_coalesced_whatever_its_parts_are() {
    for ip in ["127.0.0.1", "::1"] {
        let (a, b) = pair(ip);
        let payload = bytes(1200 * 20 + 1);
        let parts: Vec<_> = payload.chunks(777).map(IoSlice::new).collect();
        assert_eq!(a.send(&[Message::burst(b.local_addr(), &parts, 1200)]).unwrap(), 1);
        let (got, messages) = receive(&b, 21);
        assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [vec![1200; 20], vec![1]].concat());
        assert_eq!(got.concat(), payload);
        assert!(messages < 21, "coalesced");
    }
}

#[test]
fn the_limits_of_a_burst() {
    let (a, b) = pair("127.0.0.1");
    let payload = bytes(SEGMENTS_MAX * 10 + 1);
    let most = [IoSlice::new(&payload[..SEGMENTS_MAX * 10])];
    assert_eq!(a.send(&[Message::burst(b.local_addr(), &most, 10)]).unwrap(), 1);
    let more = [IoSlice::new(&payload)];
    let refused = a.send(&[Message::burst(b.local_addr(), &more, 10)]).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(receive(&b, SEGMENTS_MAX).0.concat(), payload[..SEGMENTS_MAX * 10]);

    let payload = bytes(DATAGRAM_LEN_MAX + 1);
    for segment_len in [usize::MAX, 2000] {
        let most = [IoSlice::new(&payload[..DATAGRAM_LEN_MAX])];
        assert_eq!(a.send(&[Message::burst(b.local_addr(), &most, segment_len)]).unwrap(), 1);
        assert_eq!(receive(&b, DATAGRAM_LEN_MAX.div_ceil(segment_len)).0.concat(), payload[..DATAGRAM_LEN_MAX]);
        let more = [IoSlice::new(&payload)];
        let refused = a.send(&[Message::burst(b.local_addr(), &more, segment_len)]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
    // What breaks a limit does not hold up what stands before it.
    let (good, bad) = ([IoSlice::new(&payload[..5])], [IoSlice::new(&payload)]);
    let messages = [Message::new(b.local_addr(), &good), Message::new(b.local_addr(), &bad)];
    assert_eq!(a.send(&messages).unwrap(), 1);
    assert!(a.send(&[Message::burst(b.local_addr(), &good, 0)]).is_err());
}

#[test]
fn source_destination_and_ecn_come_along() {
    for (ip, other) in [("127.0.0.1", "127.0.0.5"), ("::1", "::1")] {
        let (a, _) = pair(ip);
        let any = if ip == "::1" { "[::]:0" } else { "0.0.0.0:0" };
        let b = Socket::bind(any.parse().unwrap(), &Options { local_address: true, ..Options::default() }).unwrap();
        let to = SocketAddr::new(other.parse().unwrap(), b.local_addr().port());
        let parts = [IoSlice::new(b"hello")];
        assert_eq!(a.send(&[Message { ecn: 0b10, ..Message::new(to, &parts) }]).unwrap(), 1);
        let mut batch = RecvBatch::new(1);
        b.recv(&mut batch).unwrap();
        let got = batch.get(0).unwrap();
        assert_eq!((got.from, got.local, got.ecn, got.bytes), (a.local_addr(), Some(to.ip()), 0b10, &b"hello"[..]));
        // And back from the very address that was asked.
        let back = Message { from: got.local, ..Message::new(got.from, &parts) };
        assert_eq!(b.send(&[back]).unwrap(), 1);
        a.recv(&mut batch).unwrap();
        assert_eq!(batch.get(0).unwrap().from, to);
    }
}

#[test]
fn an_ipv6_wildcard_speaks_ipv4_too() {
    let (a, _) = pair("127.0.0.1");
    let both = Socket::bind("[::]:0".parse().unwrap(), &Options { local_address: true, ..Options::default() }).unwrap();
    let to = SocketAddr::new("127.0.0.1".parse().unwrap(), both.local_addr().port());
    let parts = [IoSlice::new(b"hello")];
    a.send(&[Message::new(to, &parts)]).unwrap();
    let mut batch = RecvBatch::new(1);
    both.recv(&mut batch).unwrap();
    let got = batch.get(0).unwrap();
    assert_eq!((got.from, got.local), (a.local_addr(), Some(to.ip())));
    let back = Message { ecn: 0b01, from: got.local, ..Message::new(got.from, &parts) };
    both.send(&[back]).unwrap();
    a.recv(&mut batch).unwrap();
    assert_eq!(batch.get(0).map(|got| (got.from, got.ecn)), Some((to, 0b01)));
}

#[test]
fn a_refused_port_does_not_hurt_the_socket() {
    let (a, b) = pair("127.0.0.1");
    let gone = pair("127.0.0.1").0.local_addr();
    let parts = [IoSlice::new(b"anyone?")];
    for _ in 0..3 {
        a.send(&[Message::new(gone, &parts)]).unwrap();
    }
    assert_eq!(a.recv(&mut RecvBatch::new(1)).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    b.send(&[Message::new(a.local_addr(), &parts)]).unwrap();
    assert_eq!(receive(&a, 1).0, [b"anyone?"]);
}

#[test]
fn bytes_are_changed_in_place() {
    let (a, b) = pair("127.0.0.1");
    let payload = bytes(300);
    a.send(&[Message::burst(b.local_addr(), &[IoSlice::new(&payload)], 100)]).unwrap();
    let mut batch = RecvBatch::new(8);
    b.recv(&mut batch).unwrap();
    for received in batch.iter_mut() {
        received.bytes.chunks_mut(received.segment_len).for_each(|segment| segment[0] = 0xff);
    }
    assert!(batch.iter().all(|received| received.segments().all(|segment| segment[0] == 0xff)));
}

#[test]
fn datagrams_land_in_the_callers_parts_with_the_time_of_their_arrival() {
    let options = Options { local_address: true, timestamps: true, ..Options::default() };
    let bind = || Socket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let (a, b) = (bind(), bind());
    let payload: Vec<u8> = (0..=255).cycle().take(2500).collect();
    let parts = [IoSlice::new(&payload)];
    let before = std::time::SystemTime::now();
    let burst = Message { interface: 1, ..Message::burst(b.local_addr(), &parts, 1000) };
    assert_eq!(a.send_whole(&[burst]).unwrap(), 1);
    // A header of four bytes in front of each 996, one expected too few; and a message that does not come.
    let (mut heads, mut bodies, mut rest) = ([[0; 4]; 2], vec![0; 2 * 996], vec![0; 1 << 16]);
    let mut parts: Vec<IoSliceMut<'_>> = Vec::new();
    for (head, body) in heads.iter_mut().zip(bodies.chunks_mut(996)) {
        parts.extend([IoSliceMut::new(head), IoSliceMut::new(body)]);
    }
    parts.push(IoSliceMut::new(&mut rest));
    let mut other = vec![0; 100];
    let mut others = [IoSliceMut::new(&mut other)];
    let mut scatters = [&mut parts[..], &mut others[..]].map(|parts| Scatter { parts, received: Arrival::NONE });
    assert_eq!(b.recv_scattered(&mut scatters).unwrap(), 1);
    let got = scatters[0].received;
    assert_eq!((got.from, got.len, got.segment_len, got.truncated), (a.local_addr(), 2500, 1000, false));
    assert_eq!((got.local, got.interface), (Some(b.local_addr().ip()), 1));
    // Clocks may be set meanwhile; a day is enough to tell it from nonsense.
    let apart = got.arrived.unwrap().duration_since(before).unwrap_or_else(|error| error.duration());
    assert!(apart.as_secs() < 86_400, "{apart:?}");
    assert_eq!([&heads[0], &bodies[..996], &heads[1], &bodies[996..], &rest[..500]].concat(), payload);
    let mut nothing = [IoSliceMut::new(&mut other)];
    let mut scatters = [Scatter { parts: &mut nothing, received: Arrival::NONE }];
    assert_eq!(b.recv_scattered(&mut scatters).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(b.recv_scattered(&mut []).unwrap(), 0);
}

#[test]
fn what_is_longer_than_its_parts_is_told() {
    let bind = || Socket::bind("127.0.0.1:0".parse().unwrap(), &Options::default()).unwrap();
    let (a, b) = (bind(), bind());
    a.send(&[Message::new(b.local_addr(), &[IoSlice::new(&[7; 100])])]).unwrap();
    let mut short = [0; 60];
    let mut parts = [IoSliceMut::new(&mut short)];
    let mut scatters = [Scatter { parts: &mut parts, received: Arrival::NONE }];
    assert_eq!(b.recv_scattered(&mut scatters).unwrap(), 1);
    assert_eq!((scatters[0].received.truncated, scatters[0].received.len), (true, 60));
}

#[test]
fn an_interface_that_is_not_there_is_an_error_and_nothing_leaves() {
    let bind = || Socket::bind("127.0.0.1:0".parse().unwrap(), &Options::default()).unwrap();
    let (a, b) = (bind(), bind());
    let parts = [IoSlice::new(b"x")];
    let message = Message { interface: 0x7fff_fff0, ..Message::new(b.local_addr(), &parts) };
    assert!(a.send_whole(&[message]).is_err());
    assert!(b.recv(&mut RecvBatch::new(1)).is_err());
}
