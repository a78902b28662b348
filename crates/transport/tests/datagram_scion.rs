//! Datagrams of two ASes, with their border routers between them.

#[path = "../../scion/tests/pair/mod.rs"]
mod pair;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use anabranch_asnet::network::Direction;
use anabranch_paths::{Interface, ScionAddr};
use anabranch_scion::socket::{DEFAULT_PORTS, Dropped, ScmpKind};
use anabranch_transport::datagram::{
    Bounds, Packet, Path, PathEvent, PathMtu, Phase, Place, Received, Receiver, STEP, Sender, Socket,
};
use pair::{INTERFACES, Pair, ia};

/// How long anything may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(30);

fn socket(net: &Pair, index: usize) -> Socket {
    Socket::bind_scion(ScionAddr::new(ia(index), SocketAddr::new(net.host(index), 0)), DEFAULT_PORTS).unwrap()
}

fn between(net: &Pair, from: &Socket, to: &Socket, version: u32) -> Path {
    Path::scion(from.local_scion().unwrap(), to.local_scion().unwrap(), &net.path(version)).unwrap()
}

fn send_all(sender: &mut Sender, packets: &[Packet<'_>]) {
    let (mut sent, start) = (0, Instant::now());
    while sent < packets.len() {
        assert!(start.elapsed() < PATIENCE);
        match sender.try_send(&packets[sent..]) {
            Ok(count) => sent += count,
            Err(error) => assert!(error.kind.is_passing(), "{error}"),
        }
    }
}

/// The next packets, with their headers in front of their payload; none if none come for a moment.
fn receive(receiver: &mut Receiver) -> Vec<(Received, Vec<u8>, usize)> {
    let mut poll = libc::pollfd { fd: receiver.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which lives over the call.
    unsafe { libc::poll(&mut poll, 1, 10) };
    let mut memory = vec![0; 64 * 9000];
    let mut places: Vec<_> = memory.chunks_mut(9000).map(|place| place.split_at_mut(7)).collect();
    let mut places: Vec<_> = places.iter_mut().map(|(head, body)| Place { head, body }).collect();
    match receiver.recv(&mut places) {
        Ok(batch) => {
            let of = |received: &Received| {
                let headers = batch.headers(received);
                let place = &places[received.place];
                let mut packet = [headers, place.head, place.body].concat();
                packet.truncate(headers.len() + received.len);
                (*received, packet, headers.len())
            };
            batch.iter().map(of).collect()
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "it does not come");
        if let Some(found) = look() {
            return found;
        }
    }
}

#[test]
fn bursts_cross_two_routers_and_answers_come_back_also_after_refresh() {
    let net = Pair::new(1472);
    let (a, b) = (socket(&net, 0), socket(&net, 1));
    let mut sender = a.sender(&between(&net, &a, &b, 0)).unwrap();
    sender.set_ecn(0b10);
    let (mut at_a, mut at_b) = (a.receiver(), b.receiver());
    let key_at_a = a.add(sender.path()).unwrap();
    let mut way_back: Option<(Path, _)> = None;
    for version in 0..3 {
        let path = between(&net, &a, &b, version);
        assert_eq!(a.add(&path).unwrap(), key_at_a, "the same way");
        sender.set_path(&path).unwrap();
        let bodies: Vec<Vec<u8>> = (0..60_u8).map(|number| vec![number.wrapping_mul(13); 1201]).collect();
        let numbers: Vec<u8> = (0..60).collect();
        let packets = bodies.iter().zip(numbers.chunks(1)).map(|(body, head)| Packet { head, body });
        send_all(&mut sender, &packets.collect::<Vec<_>>());
        let mut missing: Vec<u8> = numbers.clone();
        while !missing.is_empty() {
            let known = way_back.as_ref().map(|(_, key)| *key);
            for (received, packet, headers_len) in wait_for(|| Some(receive(&mut at_b)).filter(|got| !got.is_empty())) {
                let (number, body) = packet[headers_len..].split_first().unwrap();
                assert_eq!(body, bodies[usize::from(*number)]);
                assert_eq!((received.path, received.ecn), (known, 0b10));
                missing.retain(|other| other != number);
                if way_back.is_none() && missing.is_empty() {
                    let local = b.local_scion().unwrap();
                    let back =
                        Path::back(local, &packet[..headers_len], received.from, sender.path().mtu_claimed()).unwrap();
                    assert_eq!(back.remote(), a.local());
                    let key = b.add(&back).unwrap();
                    way_back = Some((back, key));
                }
            }
        }
        let (back, _) = way_back.as_ref().unwrap();
        send_all(&mut b.sender(back).unwrap(), &[Packet { head: b"tha", body: b"nks" }]);
        let (received, packet, headers_len) = wait_for(|| receive(&mut at_a).pop());
        assert_eq!((received.path, &packet[headers_len..]), (Some(key_at_a), &b"thanks"[..]));
    }
    assert_eq!((at_a.counters().dropped.total(), at_b.counters().dropped.total()), (0, 0));
}

#[test]
fn a_link_that_is_down_is_told_once_and_forged_routers_are_not_heard() {
    let net = Pair::new(1472);
    let (a, b) = (socket(&net, 0), socket(&net, 1));
    let path = between(&net, &a, &b, 0);
    let key = a.add(&path).unwrap();
    let mut sender = a.sender(&path).unwrap();
    let (mut at_a, mut at_b) = (a.receiver(), b.receiver());
    net.0.router(ia(0)).unwrap().set_up(INTERFACES[0], false).unwrap();
    send_all(&mut sender, &[Packet { head: b"any", body: b"one?" }; 30]);
    let event = wait_for(|| {
        assert!(receive(&mut at_a).is_empty(), "SCMP is no data");
        at_a.event()
    });
    let down = ScmpKind::ExternalInterfaceDown(Interface { isd_as: ia(0), id: INTERFACES[0] });
    assert_eq!((event.path, event.kind, event.from.isd_as), (key, down, ia(0)));
    // A path that nobody has added is nobody's: nothing is told of it.
    assert!(a.remove(key));
    let dropped = at_a.counters().dropped.of(Dropped::ForeignQuote);
    send_all(&mut sender, &[Packet { head: b"any", body: b"one?" }]);
    wait_for(|| {
        receive(&mut at_a);
        (at_a.counters().dropped.of(Dropped::ForeignQuote) > dropped).then_some(())
    });
    while let Some(PathEvent { path, .. }) = at_a.event() {
        assert_eq!(path, key, "of the burst before");
    }
    net.0.router(ia(0)).unwrap().set_up(INTERFACES[0], true).unwrap();
    // The receiving AS has other routers than the one that hands packets over.
    b.set_routers([IpAddr::from([192, 0, 2, 1])]);
    send_all(&mut sender, &[Packet { head: b"not", body: b"heard" }]);
    wait_for(|| {
        assert!(receive(&mut at_b).is_empty());
        (at_b.counters().dropped.of(Dropped::NotRouter) == 1).then_some(())
    });
    b.set_routers([]);
    send_all(&mut sender, &[Packet { head: b"hea", body: b"rd" }]);
    wait_for(|| receive(&mut at_b).pop());
}

/// The link takes less than the path claims: with what the router says of it, and without.
#[test]
fn the_search_finds_what_a_link_takes() {
    const LINK: u16 = 2000;
    let net = Pair::new(4000);
    let (a, b) = (socket(&net, 0), socket(&net, 1));
    let path = between(&net, &a, &b, 0);
    assert_eq!(path.mtu_claimed(), 4000);
    let link = net.0.find_link(&ia(0).to_string(), None).unwrap();
    let [mut there, _] = net.0.link(link).unwrap().shapes;
    there.mtu = LINK;
    net.0.set_link_shape(link, Direction::Both, there).unwrap();
    let key = a.add(&path).unwrap();
    let mut sender = a.sender(&path).unwrap();
    let (mut at_a, mut at_b) = (a.receiver(), b.receiver());
    let padding = vec![0; 4000];
    for listens in [true, false] {
        let mut mtu = PathMtu::new(Bounds::up_to(path.mtu_claimed()), Instant::now());
        // More than it takes, where the routers have to wait for a core.
        mtu.set_rtt(Duration::from_millis(100));
        let mut probes = 0;
        let start = Instant::now();
        while mtu.phase() != Phase::SearchComplete {
            assert!(start.elapsed() < PATIENCE, "{mtu:?}");
            if let Some(probe) = mtu.probe(Instant::now()) {
                let body = &padding[..path.payload_len(probe.len) - 4];
                send_all(&mut sender, &[Packet { head: &probe.id.to_be_bytes(), body }]);
                probes += 1;
            }
            // Both ends are here: what arrives there is acknowledged.
            for (_, packet, headers_len) in receive(&mut at_b) {
                mtu.on_probe_acked(u32::from_be_bytes(*packet[headers_len..].first_chunk().unwrap()), Instant::now());
            }
            receive(&mut at_a);
            while let Some(event) = at_a.event() {
                assert_eq!((event.path, event.kind), (key, ScmpKind::PacketTooBig { mtu: LINK }));
                if listens {
                    mtu.on_too_big(LINK, Instant::now());
                }
            }
        }
        let found = mtu.packet_len_max();
        assert!((LINK - STEP + 1..=LINK).contains(&found), "{found} after {probes} probes");
        assert!(!listens || found == LINK);
    }
}
