//! Routes: refresh, limits, ends.

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

#[test]
fn learned_routes_are_bounded_and_end_when_idle() {
    let mut b = End::new(B);
    let start = b.now;
    let packet_from = |port: u16| {
        let a = End::new(&format!("[1-ff00:0:110,10.0.0.1]:{port}"));
        let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
        carried(a.send_one(route, b"x"))
    };
    let mut routes = Vec::new();
    for port in 1..=LEARNED_MAX as u16 {
        routes.push(b.receive(&packet_from(port), ROUTER_B).unwrap().0);
    }
    // Half of them are answered.
    for route in &routes[..LEARNED_MAX / 2] {
        b.send_one(*route, b"y");
    }
    b.now = start + UNANSWERED_IDLE - Duration::from_millis(1);
    assert_eq!(b.receive(&packet_from(60000), ROUTER_B), None);
    assert_eq!(b.dropped(Dropped::RoutesFull), 1);
    // One of the unanswered is still in use.
    assert_eq!(b.receive(&packet_from(LEARNED_MAX as u16), ROUTER_B).unwrap().0, routes[LEARNED_MAX - 1]);
    // The table was just swept: not again within a second, however many ask.
    b.now = start + UNANSWERED_IDLE;
    assert_eq!(b.receive(&packet_from(60000), ROUTER_B), None);
    b.now += Duration::from_secs(1);
    assert!(b.receive(&packet_from(60000), ROUTER_B).is_some());
    assert_eq!(b.core.info(routes[LEARNED_MAX / 2]), None);
    assert!(b.core.info(routes[LEARNED_MAX / 2 - 1]).is_some());
    assert!(b.core.info(routes[LEARNED_MAX - 1]).is_some());
}
