//! Datagrams over loopback: every byte where it belongs, nothing lost by us, and errors that say what to do.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant, SystemTime};

use anabranch_paths::{ScionAddr, ScionPath};
use anabranch_scion::socket::{Dropped, ScmpKind};
use anabranch_scion_wire::scmp::Message;
use anabranch_scion_wire::{Address, HeaderFields, HeaderTemplate, PathRef, Ports, checksum};
use anabranch_transport::datagram::{
    Batch, EVENTS_MAX, PATHS_MAX, Packet, Path, PathError, PathKey, Place, Receiver, SendErrorKind, Sender, Socket,
};

/// How long anything may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(20);
const AS: &str = "1-ff00:0:110";

/// Two sockets, and how each reaches the other.
struct Pair {
    sockets: [Socket; 2],
    paths: [Path; 2],
}

fn ip() -> Pair {
    let sockets = [0, 1].map(|_| Socket::bind("127.0.0.1:0".parse().unwrap()).unwrap());
    let path = |to: &Socket| Path::ip(to.local().as_ip().unwrap(), None);
    Pair { paths: [path(&sockets[1]), path(&sockets[0])], sockets }
}

/// Inside one AS.
fn scion() -> Pair {
    let address = || ScionAddr::new(AS.parse().unwrap(), "127.0.0.1:0".parse().unwrap());
    let sockets = [0, 1].map(|_| Socket::bind_scion(address(), 31_000..=32_767).unwrap());
    let [one, other] = [0, 1].map(|at: usize| sockets[at].local_scion().unwrap());
    let path = |from, to| Path::scion(from, to, &ScionPath::inside(AS.parse().unwrap(), 9000, SystemTime::now()));
    Pair { paths: [path(one, other).unwrap(), path(other, one).unwrap()], sockets }
}

fn wait(socket: &impl AsFd, events: i16) {
    let mut poll = libc::pollfd { fd: socket.as_fd().as_raw_fd(), events, revents: 0 };
    // SAFETY: one entry, which lives over the call.
    unsafe { libc::poll(&mut poll, 1, 100) };
}

/// Receives to places until `packets` have come; calls `each` for those of every receive.
fn receive(
    receiver: &mut Receiver,
    places: &mut [Place<'_>],
    packets: usize,
    mut each: impl FnMut(&Batch<'_>, &[Vec<u8>]),
) {
    let (mut got, start) = (0, Instant::now());
    while got < packets {
        assert!(start.elapsed() < PATIENCE, "{got} of {packets} packets came");
        wait(receiver, libc::POLLIN);
        // What is in the places can only be looked at when the batch lets go of nothing of them: it borrows the receiver.
        let batch = match receiver.recv(places) {
            Ok(batch) => batch,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => panic!("{error}"),
        };
        got += batch.len();
        let payload = |received: &anabranch_transport::datagram::Received| {
            let place = &places[received.place];
            let whole = [&place.head[..], &place.body[..]].concat();
            whole[..received.len.min(whole.len())].to_vec()
        };
        let payloads: Vec<_> = batch.iter().map(payload).collect();
        each(&batch, &payloads);
    }
}

fn send_all(sender: &mut Sender, packets: &[Packet<'_>]) {
    let (mut sent, start) = (0, Instant::now());
    while sent < packets.len() {
        assert!(start.elapsed() < PATIENCE, "{sent} packets left");
        match sender.try_send(&packets[sent..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind.is_passing() => wait(sender, libc::POLLOUT),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Memory for places of these lengths.
fn memory(count: usize, head: usize, body: usize) -> (Vec<u8>, Vec<u8>) {
    (vec![0xee; count * head], vec![0xee; count * body])
}

fn places<'a>((heads, bodies): &'a mut (Vec<u8>, Vec<u8>), head: usize, body: usize) -> Vec<Place<'a>> {
    let heads = heads.chunks_mut(head);
    heads.zip(bodies.chunks_mut(body)).map(|(head, body)| Place { head, body }).collect()
}

fn numbered(count: u32, len: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let packet = |number: u32| {
        let body = (0..len).map(|at| (number as usize * 7 + at) as u8).collect();
        (number.to_be_bytes().to_vec(), body)
    };
    (0..count).map(packet).collect()
}

fn packets(payloads: &[(Vec<u8>, Vec<u8>)]) -> Vec<Packet<'_>> {
    payloads.iter().map(|(head, body)| Packet { head, body }).collect()
}

#[test]
fn bursts_land_in_place_over_ip_and_inside_an_as() {
    for Pair { sockets, paths } in [ip(), scion()] {
        let key = sockets[1].add(&paths[1]).unwrap();
        let mut sender = sockets[0].sender(&paths[0]).unwrap();
        sender.set_ecn(0b10);
        let mut receiver = sockets[1].receiver();
        let mut memory = memory(128, 4, 1200);
        let mut places = places(&mut memory, 4, 1200);
        let mut next = 0;
        for round in 0..20_u32 {
            let payloads = numbered(50, 1200);
            send_all(&mut sender, &packets(&payloads));
            receive(&mut receiver, &mut places, 50, |batch, got| {
                for (received, got) in batch.iter().zip(got) {
                    let number = u32::from_be_bytes(*got.first_chunk().unwrap()) as usize;
                    assert_eq!(*got, [&payloads[number].0[..], &payloads[number].1].concat());
                    assert_eq!(
                        (received.path, received.ecn, received.is_truncated),
                        (Some(key), 0b10, false),
                        "{round}"
                    );
                    assert!(received.arrived.is_some());
                    next += 1;
                }
            });
        }
        assert_eq!(next, 1000);
        let counters = receiver.counters();
        assert_eq!((counters.packets, counters.dropped.total()), (1000, 0));
        // The layout is guessed right but for the first packets, and where a busy system splits bursts otherwise.
        assert!(counters.packets_moved < counters.packets, "{counters:?}");
    }
}

#[test]
fn packets_of_all_lengths_in_any_mixture_arrive_whole() {
    for Pair { sockets, paths } in [ip(), scion()] {
        let mut sender = sockets[0].sender(&paths[0]).unwrap();
        let mut receiver = sockets[1].receiver();
        let mut random = fastrand(7);
        for round in 0..60 {
            // Few enough for the smallest receive buffer.
            let count = 1 + random() as usize % 40;
            let payloads: Vec<(Vec<u8>, Vec<u8>)> = (0..count as u32)
                .map(|number| {
                    let head_len = random() as usize % 40;
                    let body_len = [0, 1, 999, 1000, 1000, 1000, random() as usize % 1500][random() as usize % 7];
                    let head = [number.to_be_bytes().to_vec(), vec![3; head_len]].concat();
                    (head, (0..body_len).map(|at| (at * 31 + number as usize) as u8).collect())
                })
                .collect();
            send_all(&mut sender, &packets(&payloads));
            // Odd and even lengths of heads; fewer places than packets, and more.
            let (head, places_count) = (1 + random() as usize % 50, 1 + random() as usize % 100);
            let mut memory = memory(places_count, head, 1600);
            let mut places = places(&mut memory, head, 1600);
            let mut missing: BTreeMap<u32, &(Vec<u8>, Vec<u8>)> = (0..).zip(&payloads).collect();
            receive(&mut receiver, &mut places, count, |batch, got| {
                for (received, got) in batch.iter().zip(got) {
                    let number = u32::from_be_bytes(*got.first_chunk().unwrap());
                    let (head, body) = missing.remove(&number).expect("each comes once");
                    assert_eq!(*got, [&head[..], body].concat(), "round {round}, packet {number}");
                    assert_eq!(received.len, got.len());
                }
                let mut places: Vec<_> = batch.iter().map(|received| received.place).collect();
                places.sort_unstable();
                places.dedup();
                assert_eq!(places.len(), batch.len(), "each has a place of its own");
            });
            assert!(missing.is_empty());
        }
        assert_eq!(receiver.counters().dropped.total(), 0);
    }
}

/// Sends packets of several lengths and receives the first with `recv`: what that leaves behind comes first from then on, by `each_time`,
/// which is asked until all are there. It is given the path's key, and whether headers are to come.
fn received_in_order(each_time: impl Fn(&mut Receiver, PathKey, bool, &mut Vec<Vec<u8>>) -> io::Result<()>) {
    for Pair { sockets, paths } in [ip(), scion()] {
        let is_scion = paths[0].remote().as_scion().is_some();
        let mut sender = sockets[0].sender(&paths[0]).unwrap();
        let mut receiver = sockets[1].receiver();
        let key = sockets[1].add(&paths[1]).unwrap();
        let lens = [700, 1, 1200, 1199];
        let payloads: Vec<_> = (0..100u32).flat_map(|at| numbered(3, lens[at as usize % lens.len()])).collect();
        send_all(&mut sender, &packets(&payloads));
        let (mut got, start) = (Vec::new(), Instant::now());
        let mut memory = memory(1, 4, 1200);
        receive(&mut receiver, &mut places(&mut memory, 4, 1200), 1, |batch, payloads| {
            assert!(batch.iter().all(|received| batch.payload(received).is_empty()), "they are in their places");
            got.extend_from_slice(payloads);
        });
        while got.len() < payloads.len() {
            assert!(start.elapsed() < PATIENCE, "{} packets came", got.len());
            match each_time(&mut receiver, key, is_scion, &mut got) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait(&receiver, libc::POLLIN),
                Err(error) => panic!("{error}"),
                Ok(()) => {}
            }
        }
        let sent: Vec<Vec<u8>> = payloads.iter().map(|(head, body)| [&head[..], body].concat()).collect();
        assert!(got == sent, "they came in the order in which they were sent");
        assert_eq!(receiver.counters().packets, sent.len() as u64);
    }
}

/// Each packet's payload lies where it can be changed.
#[test]
fn packets_are_handed_on_where_they_lie_in_order() {
    received_in_order(|receiver, key, is_scion, got| {
        let each = receiver.recv_each(|received, headers, payload| {
            assert_eq!((received.len, received.path, received.is_truncated), (payload.len(), Some(key), false));
            assert_eq!(headers.is_empty(), !is_scion);
            got.push(payload.to_vec());
            payload.fill(0);
        });
        each.map(drop)
    });
}

/// The same of all at once, as often as something came.
#[test]
fn packets_are_told_of_where_they_lie_in_order() {
    received_in_order(|receiver, key, is_scion, got| {
        let batch = receiver.recv_lying()?;
        got.extend(batch.iter().map(|received| {
            let payload = batch.payload(received);
            assert_eq!((received.len, received.path, received.is_truncated), (payload.len(), Some(key), false));
            assert_eq!(batch.headers(received).is_empty(), !is_scion);
            payload.to_vec()
        }));
        Ok(())
    });
}

#[test]
fn what_is_longer_than_its_place_is_told() {
    for Pair { sockets, paths } in [ip(), scion()] {
        let mut sender = sockets[0].sender(&paths[0]).unwrap();
        let mut receiver = sockets[1].receiver();
        for len in [99, 100, 101, 1000] {
            let body = vec![5; len];
            send_all(&mut sender, &[Packet { head: &[], body: &body }]);
            let mut memory = memory(1, 10, 90);
            let mut places = places(&mut memory, 10, 90);
            receive(&mut receiver, &mut places, 1, |batch, got| {
                let received = batch.iter().next().unwrap();
                assert_eq!((received.len, received.is_truncated), (len, len > 100));
                assert_eq!(got[0], vec![5; len.min(100)]);
            });
        }
    }
}

#[test]
fn packets_of_strangers_tell_who_they_are_from_and_can_be_answered() {
    let Pair { sockets, paths } = scion();
    let mut sender = sockets[0].sender(&paths[0]).unwrap();
    send_all(&mut sender, &[Packet { head: b"who", body: b"is there" }]);
    let mut receiver = sockets[1].receiver();
    let mut one = memory(1, 3, 100);
    let mut back = None;
    receive(&mut receiver, &mut places(&mut one, 3, 100), 1, |batch, got| {
        let received = batch.iter().next().unwrap();
        assert_eq!((received.path, &got[0][..]), (None, &b"whois there"[..]));
        let local = sockets[1].local_scion().unwrap();
        back = Some(Path::back(local, batch.headers(received), received.from, 1472).unwrap());
    });
    let back = back.unwrap();
    assert_eq!((back.remote(), back.mtu_claimed()), (sockets[0].local(), 1472));
    let key = sockets[1].add(&back).unwrap();
    assert_eq!(sockets[1].add(&paths[1]).unwrap(), key, "it is the same way");
    send_all(&mut sockets[1].sender(&back).unwrap(), &[Packet { head: b"me", body: b"" }]);
    let mut one = memory(1, 3, 100);
    receive(&mut sockets[0].receiver(), &mut places(&mut one, 3, 100), 1, |_, got| assert_eq!(got[0], b"me"));
    // Once it is added, its packets are known; once removed, they are not.
    for expected in [Some(key), None] {
        send_all(&mut sender, &[Packet { head: b"abc", body: b"" }]);
        let mut one = memory(1, 3, 100);
        receive(&mut receiver, &mut places(&mut one, 3, 100), 1, |batch, _| {
            assert_eq!(batch.iter().next().unwrap().path, expected);
        });
        assert_eq!(sockets[1].remove(key), expected.is_some());
    }
}

#[test]
fn bursts_that_are_refused_leave_as_packets_from_then_on() {
    let Pair { sockets, paths } = ip();
    let off: libc::c_int = 1;
    // The kernel refuses bursts of sockets that want no checksums, with EINVAL.
    // SAFETY: the option's value lives over the call.
    let set = unsafe {
        let len = size_of_val(&off) as libc::socklen_t;
        let fd = sockets[0].as_fd().as_raw_fd();
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, (&raw const off).cast(), len)
    };
    assert_eq!(set, 0);
    let mut sender = sockets[0].sender(&paths[0]).unwrap();
    let mut receiver = sockets[1].receiver();
    let mut memory = memory(100, 4, 1000);
    let mut places = places(&mut memory, 4, 1000);
    for packets_max in [1, 1] {
        let payloads = numbered(50, 1000);
        send_all(&mut sender, &packets(&payloads));
        let mut missing: BTreeMap<u32, &(Vec<u8>, Vec<u8>)> = (0..).zip(&payloads).collect();
        receive(&mut receiver, &mut places, 50, |_, got| {
            for got in got {
                let (head, body) =
                    missing.remove(&u32::from_be_bytes(*got.first_chunk().unwrap())).expect("comes once");
                assert_eq!(*got, [&head[..], body].concat());
            }
        });
        assert!(missing.is_empty());
        assert_eq!(sender.burst_packets_max(), packets_max);
    }
    // Other paths have not shown that yet.
    assert!(sockets[0].sender(&paths[0]).unwrap().burst_packets_max() > 1);
}

#[test]
fn a_packet_longer_than_the_path_takes_is_an_error_and_those_before_it_leave() {
    let Pair { sockets, .. } = scion();
    let remote = sockets[1].local_scion().unwrap();
    let inside = ScionPath::inside(AS.parse().unwrap(), 1400, SystemTime::now());
    let path = Path::scion(sockets[0].local_scion().unwrap(), remote, &inside).unwrap();
    let len_max = path.payload_len(1400);
    assert_eq!(len_max + path.headers_len(), 1400);
    let mut sender = sockets[0].sender(&path).unwrap();
    let (fits, too_long) = (vec![1; len_max], vec![1; len_max + 1]);
    let packet = |body| Packet { head: &[], body };
    assert_eq!(sender.try_send(&[packet(&fits), packet(&too_long)]).unwrap(), 1);
    let error = sender.try_send(&[packet(&too_long)]).unwrap_err();
    assert_eq!(error.kind, SendErrorKind::TooLong { len: 1401, max: 1400 });
    assert!(error.to_string().contains("1401 bytes"), "{error}");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn sockets_and_paths_of_different_networks_do_not_mix() {
    let (ip, scion) = (ip(), scion());
    assert!(matches!(ip.sockets[0].sender(&scion.paths[0]), Err(PathError::OtherNetwork { .. })));
    assert!(matches!(scion.sockets[0].add(&ip.paths[0]), Err(PathError::OtherNetwork { .. })));
    let mut sender = ip.sockets[0].sender(&ip.paths[0]).unwrap();
    assert!(matches!(sender.set_path(&scion.paths[0]), Err(PathError::OtherNetwork { .. })));
    let elsewhere = ScionAddr::new("1-ff00:0:111".parse().unwrap(), "127.0.0.1:31000".parse().unwrap());
    let inside = ScionPath::inside(AS.parse().unwrap(), 1400, SystemTime::now());
    let local = scion.sockets[0].local_scion().unwrap();
    assert!(matches!(Path::scion(local, elsewhere, &inside), Err(PathError::Elsewhere { .. })));
    let narrow = ScionPath::inside(AS.parse().unwrap(), 44, SystemTime::now());
    assert!(matches!(Path::scion(local, local, &narrow), Err(PathError::TooNarrow { header_len: 44, .. })));
    assert!(matches!(Socket::bind("192.0.2.1:1".parse().unwrap()), Err(PathError::Bind { .. })));
}

#[test]
fn a_socket_has_no_more_paths_than_it_may() {
    let Pair { sockets, .. } = ip();
    let path = |port: usize| Path::ip(SocketAddr::new([127, 0, 0, 1].into(), 1000 + port as u16), None);
    let keys: Vec<_> = (0..PATHS_MAX).map(|port| sockets[0].add(&path(port)).unwrap()).collect();
    assert!(matches!(sockets[0].add(&path(PATHS_MAX)), Err(PathError::TooMany)));
    assert_eq!(sockets[0].add(&path(5)).unwrap(), keys[5]);
    assert!(sockets[0].remove(keys[5]) && !sockets[0].remove(keys[5]));
    assert_ne!(sockets[0].add(&path(PATHS_MAX)).unwrap(), keys[5], "no key means two paths");
}

/// SplitMix64.
fn fastrand(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ mixed >> 27
    }
}

/// SCMP that anybody can make up, about a packet that could have been sent: each kind of it waits once, and not without end.
#[test]
fn trouble_that_nobody_takes_is_bounded() {
    let Pair { sockets, paths } = scion();
    let key = sockets[0].add(&paths[0]).unwrap();
    let [local, remote] = [0, 1].map(|at: usize| sockets[at].local_scion().unwrap());
    let address = |of: ScionAddr| Address::new(of.isd_as, of.host.ip());
    let fields = |from, to| HeaderFields {
        source: address(from),
        destination: address(to),
        path: PathRef::Empty,
        flow_id: 1,
        traffic_class: 0,
    };
    let ports = Ports { source: local.host.port(), destination: remote.host.port() };
    let mut quote = [0; 1000];
    let template = HeaderTemplate::new(&fields(local, remote), ports).unwrap();
    let quote_len = template.write(0, checksum::sum(&[]), &mut quote).unwrap();
    let forger = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let forge = |mtu: u16| {
        let mut packet = [0; 1232];
        let message = Message::PacketTooBig { mtu, quote: &quote[..quote_len] };
        let len = message.write(&fields(remote, local), &mut packet).unwrap();
        forger.send_to(&packet[..len], local.host).unwrap();
    };
    let mut receiver = sockets[0].receiver();
    let mut memory = memory(4, 4, 100);
    let mut places = places(&mut memory, 4, 100);
    let beyond = 5;
    for round in 0..2 {
        let mtus = 1300..1300 + (EVENTS_MAX + beyond) as u16;
        let start = Instant::now();
        mtus.for_each(forge);
        while receiver.counters().dropped.of(Dropped::EventsPending) < (beyond * (round + 1)) as u64 {
            assert!(start.elapsed() < PATIENCE, "{:?}", receiver.counters());
            wait(&receiver, libc::POLLIN);
            if let Ok(batch) = receiver.recv(&mut places) {
                assert!(batch.is_empty());
            }
        }
    }
    let events: Vec<_> = std::iter::from_fn(|| receiver.event()).collect();
    assert_eq!(events.len(), EVENTS_MAX);
    for (event, mtu) in events.iter().zip(1300..) {
        assert_eq!((event.path, event.kind, event.from), (key, ScmpKind::PacketTooBig { mtu }, address(remote)));
    }
}

/// A task waits as a thread does: by the descriptor.
#[tokio::test]
async fn tasks_wait_for_sockets_by_their_descriptors() {
    let Pair { sockets, paths } = ip();
    let [one, other] = &sockets;
    // SAFETY: the descriptor is the socket's for all its life, which is longer than this one's.
    let readable = unsafe { tokio::io::unix::AsyncFd::register(other.clone()) }.unwrap();
    let waits = async {
        let mut receiver = other.receiver();
        let mut memory = memory(1, 4, 100);
        let mut places = places(&mut memory, 4, 100);
        loop {
            let mut guard = readable.readable().await.unwrap();
            match guard.try_io(|_| receiver.recv(&mut places).map(|batch| batch.len())) {
                Ok(count) => break count.unwrap(),
                Err(_would_block) => {}
            }
        }
    };
    let sends = async {
        tokio::task::yield_now().await;
        send_all(&mut one.sender(&paths[0]).unwrap(), &[Packet { head: b"head", body: b"body" }]);
    };
    let (count, ()) = tokio::time::timeout(PATIENCE, async { tokio::join!(waits, sends) }).await.unwrap();
    assert_eq!(count, 1);
}
