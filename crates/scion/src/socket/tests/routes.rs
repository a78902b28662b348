//! Routes: refresh, limits, ends, and whom they are taken from.

use std::net::Ipv4Addr;

use super::*;

#[test]
fn a_refreshed_path_is_the_same_route_on_both_sides() {
    let (mut a, mut b) = (End::new(A), End::new(B));
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let (back, _) = b.receive(&carried(a.send_one(route, b"1")), ROUTER_B).unwrap();
    let old_answer = b.send_one(back, b"old");

    a.core.update(route, &path_at(5000)).unwrap();
    assert_eq!(b.receive(&carried(a.send_one(route, b"2")), ROUTER_B).unwrap().0, back);
    // The listener answers over the fresh hop fields from now on, and late answers are still recognised.
    let new_answer = b.send_one(back, b"new");
    assert_ne!(old_answer, new_answer);
    assert_eq!(a.receive(&carried(new_answer), ROUTER_A).unwrap().0, route);
    assert_eq!(a.receive(&carried(old_answer), ROUTER_A).unwrap().0, route);

    // Stale hop fields do not come back.
    let expiry = b.core.info(back).unwrap().expiry;
    a.core.update(route, &path_at(2000)).unwrap();
    assert_eq!(b.receive(&carried(a.send_one(route, b"3")), ROUTER_B).unwrap().0, back);
    assert_eq!(b.core.info(back).unwrap().expiry, expiry);
}

#[test]
fn other_ways_are_other_routes() {
    let (a, mut b) = (End::new(A), End::new(B));
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let other = a.core.register(scion(B), &path_over([1, 2, 5, 6], 1000), a.now).unwrap();
    assert_ne!(route, other);
    assert_eq!(a.core.update(route, &path_over([1, 2, 5, 6], 2000)), Err(RouteError::OtherWay));
    let first = b.receive(&carried(a.send_one(route, b"x")), ROUTER_B).unwrap().0;
    let second = b.receive(&carried(a.send_one(other, b"x")), ROUTER_B).unwrap().0;
    assert_ne!(first, second);
    assert_eq!(b.receive(&carried(a.send_one(route, b"x")), ROUTER_B).unwrap().0, first);
}

#[test]
fn paths_and_addresses_have_to_belong_together() {
    let a = End::new(A);
    let path = path_at(1000);
    let register = |remote: &str, path: &ScionPath| a.core.register(scion(remote), path, a.now).unwrap_err();
    let elsewhere = ScionPath { source: scion(B).isd_as, ..path.clone() };
    assert!(matches!(register(B, &elsewhere), RouteError::Source { .. }));
    assert!(matches!(register(A, &path), RouteError::Destination { .. }));
    let cut = ScionPath { dataplane: path.dataplane[..20].to_vec(), ..path.clone() };
    assert!(matches!(register(B, &cut), RouteError::Path(_)));
    let no_hop = ScionPath { next_hop: None, ..path.clone() };
    assert_eq!(register(B, &no_hop), RouteError::NoNextHop(scion(B).isd_as));
    let narrow = ScionPath { mtu: 100, ..path.clone() };
    assert!(matches!(register(B, &narrow), RouteError::Mtu { mtu: 100, .. }));
    let message = register(B, &narrow).to_string();
    assert!(message.contains("100 bytes"), "{message}");
}

#[test]
fn registrations_count_and_a_removed_route_is_gone_for_good() {
    let (mut a, mut b) = (End::new(A), End::new(B));
    let path = path_at(1000);
    let route = a.core.register(scion(B), &path, a.now).unwrap();
    assert_eq!(a.core.register(scion(B), &path_at(1500), a.now), Ok(route));
    let (back, _) = b.receive(&carried(a.send_one(route, b"x")), ROUTER_B).unwrap();
    let answer = carried(b.send_one(back, b"y"));
    assert_eq!(a.receive(&answer, ROUTER_A).unwrap().0, route);
    assert!(a.core.remove(route));
    assert!(!a.core.remove(route));
    assert_eq!(a.core.info(route), None);
    assert_eq!(a.core.update(route, &path), Err(RouteError::Gone));
    let transmit = [Transmit::new(route, b"x")];
    let sent = a.core.outbound(&mut Outbox::default(), &transmit, &mut Cursor::default(), 64);
    assert_eq!(sent.unwrap_err().kind(), std::io::ErrorKind::NotConnected);
    // What still comes over it makes a route of its own, also where the flow's header was remembered.
    let learned = a.receive(&answer, ROUTER_A).unwrap().0;
    assert_ne!(learned, route);
    assert!(a.core.info(learned).unwrap().learned);
    // And that becomes a registered one in place.
    assert_eq!(a.core.register(scion(B), &path, a.now), Ok(learned));
    assert!(!a.core.info(learned).unwrap().learned);
}

#[test]
fn registered_routes_are_bounded() {
    let a = End::new(A);
    let path = path_at(1000);
    let remote = |port| ScionAddr::new(scion(B).isd_as, SocketAddr::new(scion(B).host.ip(), port));
    let mut last = RouteId::NONE;
    for port in 1..=REGISTERED_MAX as u16 {
        last = a.core.register(remote(port), &path, a.now).unwrap();
    }
    assert_eq!(a.core.register(remote(60000), &path, a.now), Err(RouteError::TooMany));
    // One more holder of one that is there takes no room.
    assert_eq!(a.core.register(remote(1), &path, a.now).map(RouteId::to_bits), Ok(0));
    a.core.remove(last);
    assert!(a.core.register(remote(60000), &path, a.now).is_ok());
}

/// A packet to B from this host and port of A's AS, over these interfaces.
fn packet_from(host: Ipv4Addr, port: u16) -> Vec<u8> {
    let a = End::new(&format!("[1-ff00:0:110,{host}]:{port}"));
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    carried(a.send_one(route, b"x"))
}

fn host(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_1000 + number)
}

#[test]
fn learned_routes_are_bounded_by_host_and_by_as_and_end_when_idle() {
    let mut b = End::new(B);
    let start = b.now;
    let of_host = LEARNED_OF_HOST_MAX as u16;
    let mut routes: Vec<RouteId> =
        (1..=of_host).map(|port| b.receive(&packet_from(host(0), port), ROUTER_B).unwrap().0).collect();
    // One host with all its ports leaves room for others.
    assert_eq!(b.receive(&packet_from(host(0), of_host + 1), ROUTER_B), None);
    assert_eq!(b.dropped(Dropped::RoutesFull), 1);
    for number in 1..(LEARNED_OF_AS_MAX / LEARNED_OF_HOST_MAX) as u32 {
        routes.extend((1..=of_host).map(|port| b.receive(&packet_from(host(number), port), ROUTER_B).unwrap().0));
    }
    // And all hosts of one AS for other ASes.
    assert_eq!(b.receive(&packet_from(host(99), 1), ROUTER_B), None);
    let elsewhere = |port: u16| {
        let a = End::new(&format!("[1-ff00:0:119,10.0.0.1]:{port}"));
        let path = ScionPath { source: a.core.local().isd_as, ..path_at(1000) };
        let route = a.core.register(scion(B), &path, a.now).unwrap();
        carried(a.send_one(route, b"x"))
    };
    assert!(b.receive(&elsewhere(1), ROUTER_B).is_some());
    // Half of them are answered.
    for route in &routes[..LEARNED_OF_AS_MAX / 2] {
        b.send_one(*route, b"y");
    }
    b.now = start + UNANSWERED_IDLE - Duration::from_millis(1);
    assert_eq!(b.receive(&packet_from(host(99), 1), ROUTER_B), None);
    // One of the unanswered is still in use.
    let last = *routes.last().unwrap();
    assert_eq!(b.receive(&packet_from(host(3), of_host), ROUTER_B).unwrap().0, last);
    // The table was just swept: not again within a second, however many ask.
    b.now = start + UNANSWERED_IDLE;
    assert_eq!(b.receive(&packet_from(host(99), 1), ROUTER_B), None);
    b.now += Duration::from_secs(1);
    assert!(b.receive(&packet_from(host(99), 1), ROUTER_B).is_some());
    assert_eq!(b.core.info(routes[LEARNED_OF_AS_MAX / 2]), None);
    assert!(b.core.info(routes[LEARNED_OF_AS_MAX / 2 - 1]).is_some());
    assert!(b.core.info(last).is_some());
    b.now = start + LEARNED_IDLE + Duration::from_secs(1);
    assert!(b.receive(&packet_from(host(0), of_host + 1), ROUTER_B).is_some());
    assert_eq!(b.core.info(routes[0]), None, "answered, and silent since");
}

// A caller's connection lives on the way it came by, and we may have dialled the same.
#[test]
fn a_kept_route_outlasts_the_registration_of_the_same_way_and_the_other_way_round() {
    let (mut a, mut b) = (End::new(A), End::new(B));
    let path = path_at(1000);
    let route = a.core.register(scion(B), &path, a.now).unwrap();
    let (back, _) = b.receive(&carried(a.send_one(route, b"x")), ROUTER_B).unwrap();
    let answer = carried(b.send_one(back, b"y"));
    assert_eq!(a.receive(&answer, ROUTER_A).unwrap().0, route);
    a.core.keep(route).unwrap();
    assert!(a.core.remove(route), "what came by it still needs it");
    assert_eq!(a.receive(&answer, ROUTER_A).unwrap().0, route);
    assert!(a.core.info(route).unwrap().learned);
    a.send_one(route, b"z");
    // Registered and taken back again, it stays; without anybody, it goes.
    assert_eq!(a.core.register(scion(B), &path, a.now), Ok(route));
    assert!(a.core.remove(route));
    a.core.release(route);
    assert_eq!(a.core.info(route), None);
    // Kept first, then dialled, then let go by the caller.
    b.core.keep(back).unwrap();
    assert_eq!(b.core.register(scion(A), &path_back(&path), b.now), Ok(back));
    b.core.release(back);
    assert!(b.core.info(back).is_some());
    assert!(!b.core.remove(back));
    assert_eq!(b.core.keep(back), Err(RouteError::Gone));
}

#[test]
fn a_kept_route_does_not_idle_away() {
    let mut b = End::new(B);
    let kept = b.receive(&packet_from(host(0), 1), ROUTER_B).unwrap().0;
    b.core.keep(kept).unwrap();
    let other = b.receive(&packet_from(host(0), 2), ROUTER_B).unwrap().0;
    b.now += Duration::from_secs(24 * 3600);
    assert!(b.receive(&packet_from(host(0), 3), ROUTER_B).is_some());
    assert_eq!((b.core.info(kept).is_some(), b.core.info(other)), (true, None));
}

// Anybody can write a packet with the caller's address, the same interfaces and a later time.
#[test]
fn no_packet_leads_a_kept_route_elsewhere() {
    let (a, mut b) = (End::new(A), End::new(B));
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let (back, _) = b.receive(&carried(a.send_one(route, b"1")), ROUTER_B).unwrap();
    b.core.keep(back).unwrap();
    let (before, known) = (b.send_one(back, b"answer"), b.core.info(back));
    let forger = End::new(A);
    let forged = forger.core.register(scion(B), &path_at(9000), forger.now).unwrap();
    let forged = carried(forger.send_one(forged, b"mine"));
    assert_eq!(b.receive(&forged, "10.0.0.66:6666").unwrap().0, back, "QUIC sees to what is in it");
    assert_eq!((b.send_one(back, b"answer"), b.core.info(back)), (before.clone(), known));
    // What is offered is tried before it counts, and goes nowhere by itself.
    let offered = b.core.routes().offer(back).unwrap();
    let request = b.core.trace_last(back, &offered, b.now).unwrap();
    assert_eq!(request.to, ip("10.0.0.66:6666"));
    drop(request);
    b.core.routes().refuse_offer(back);
    assert!(b.core.routes().offer(back).is_none());
    assert_eq!(b.send_one(back, b"answer"), before);
    // The caller's own renewal is offered likewise, and accepted once it has shown that it leads there.
    a.core.update(route, &path_at(5000)).unwrap();
    assert_eq!(b.receive(&carried(a.send_one(route, b"2")), ROUTER_B).unwrap().0, back);
    let offered = b.core.routes().offer(back).unwrap();
    b.core.routes().accept_offer(back, &offered);
    assert_ne!(b.send_one(back, b"answer"), before);
    let renewed = b.core.info(back).unwrap();
    assert_eq!((renewed.next_hop, renewed.learned), (ip(ROUTER_B), true));
    // It does not go back to an older one.
    b.core.routes().accept_offer(back, &offered);
    assert_eq!(b.core.info(back).unwrap(), renewed);
}

#[test]
fn only_the_routers_of_the_as_hand_over_what_comes_from_others() {
    let mut b = End::new(B);
    b.core.set_routers([ip(ROUTER_B).ip()]);
    let packet = packet_from(host(0), 1);
    assert_eq!(b.receive(&packet, "10.0.0.66:30001"), None);
    assert_eq!(b.dropped(Dropped::NotRouter), 1);
    // At whatever port; and not by the way of a flow that is known.
    let route = b.receive(&packet, ROUTER_B).unwrap().0;
    assert_eq!(b.receive(&packet, "10.0.0.102:9").unwrap().0, route);
    assert_eq!(b.receive(&packet, "10.0.0.66:30001"), None);
    assert_eq!(b.receive(&packet, "10.0.0.2:30002"), None);
    assert_eq!(b.dropped(Dropped::NotRouter), 3);
    // A dispatcher on this host hands on what routers gave it.
    assert_eq!(b.receive(&packet, "10.0.0.2:30041").unwrap().0, route);
    // A router that paths lead over is one.
    let mut path = path_back(&path_at(1000));
    path.next_hop = Some(ip("10.0.0.103:30001"));
    let new = b.core.register(scion(A), &path, b.now).unwrap();
    assert!(b.receive(&packet, "10.0.0.103:30001").is_some());
    // Inside the AS packets come straight from their source.
    let near = End::new("[1-ff00:0:112,10.0.0.7]:31000");
    let within = near.core.register(scion(B), &path_within(scion(B).isd_as), near.now).unwrap();
    assert!(b.receive(&near.send_one(within, b"x"), "10.0.0.7:31000").is_some());
    assert!(b.core.info(new).is_some());
}

fn path_back(path: &ScionPath) -> ScionPath {
    ScionPath {
        source: path.destination,
        destination: path.source,
        interfaces: path.interfaces.iter().rev().copied().collect(),
        dataplane: DataplanePath::from_bytes(path.dataplane.clone()).unwrap().reversed().into_bytes(),
        ..path.clone()
    }
}

// SCION header, "ExpTime": a day at most.
#[test]
fn no_path_lives_for_more_than_a_day() {
    let mut b = End::new(B);
    let now_s: u32 = 1_700_000_000;
    b.inbox.set_clock(SystemTime::UNIX_EPOCH + Duration::from_secs(now_s.into()));
    let a = End::new(A);
    // 64 steps of the day's 256 are six hours.
    let at = |timestamp_s, port: u16| {
        let remote = ScionAddr::new(scion(A).isd_as, SocketAddr::new(scion(A).host.ip(), port));
        let a = End { core: Core::new(remote, a.now), inbox: Inbox::default(), now: a.now };
        let route = a.core.register(scion(B), &path_at(timestamp_s), a.now).unwrap();
        carried(a.send_one(route, b"x"))
    };
    let eighteen_hours = 18 * 3600;
    assert!(b.receive(&at(now_s + eighteen_hours + 60, 1), ROUTER_B).is_some());
    assert_eq!(b.receive(&at(now_s + eighteen_hours + 61, 2), ROUTER_B), None);
    assert_eq!(b.receive(&at(u32::MAX, 3), ROUTER_B), None);
    assert_eq!(b.dropped(Dropped::MadeUpPath), 2);
}

#[test]
fn headers_are_as_long_as_paths_say() {
    let (a, path) = (End::new(A), path_at(1000));
    let route = a.core.register(scion(B), &path, a.now).unwrap();
    let header_len = a.core.info(route).unwrap().header_len;
    assert_eq!(path.headers_len(scion(A).host.ip(), scion(B).host.ip()), header_len);
}
