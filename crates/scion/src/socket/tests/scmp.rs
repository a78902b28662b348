//! SCMP: echo, errors and who they are about.

use anabranch_scion_wire::PATH_LEN_MAX;
use anabranch_scion_wire::scmp::{EchoId, Message};

use super::super::core::lock;
use super::*;

const CORE: &str = "1-ff00:0:111";

/// A packet to A from `from`, over the way back of `packet`, with this message.
fn scmp_to_a(message: &Message<'_>, from: Address, packet: &[u8]) -> Vec<u8> {
    let packet = carried(packet.to_vec());
    let packet = Packet::parse(&packet).unwrap();
    let mut path = [0; PATH_LEN_MAX];
    let len = packet.header().path().copy_reversed(&mut path).unwrap();
    let destination = Address::new(scion(A).isd_as, scion(A).host.ip());
    let path = PathRef::from_dataplane(&path[..len]).unwrap();
    let fields = HeaderFields { source: from, destination, path, flow_id: 1, traffic_class: 0 };
    let mut out = vec![0; 4000];
    let len = message.write(&fields, &mut out).unwrap();
    out.truncate(len);
    carried(out)
}

fn router() -> Address {
    Address::new(CORE.parse().unwrap(), "10.1.0.1".parse::<IpAddr>().unwrap())
}

fn interface_down(quote: &[u8], interface: u16) -> Message<'_> {
    Message::ExternalInterfaceDown { isd_as: CORE.parse().unwrap(), interface, quote }
}

#[test]
fn errors_about_our_packets_are_events_with_route_and_interface() {
    let mut a = End::new(A);
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let other = a.core.register(scion(B), &path_over([1, 2, 5, 6], 1000), a.now).unwrap();
    let packet = a.send_one(other, &[9; 1000]);
    // As the router quotes it: half-way, and cut.
    let mut quote = packet.clone();
    if let PathMut::Standard(mut path) = PacketMut::parse(&mut quote).unwrap().path_mut() {
        path.advance().unwrap();
    }
    let quote = &quote[..200];
    let error = scmp_to_a(&interface_down(quote, 5), router(), &packet);
    // A burst brings many errors and makes one event.
    for _ in 0..10 {
        assert_eq!(a.receive(&error, ROUTER_A), None);
    }
    let event = a.core.take_event().unwrap();
    let interface = Interface { isd_as: CORE.parse().unwrap(), id: 5 };
    assert_eq!(event, ScmpEvent { route: other, from: router(), kind: ScmpKind::ExternalInterfaceDown(interface) });
    assert_eq!(a.core.take_event(), None);
    assert_ne!(route, other);
    assert_eq!(a.core.counters().dropped.total(), 0);
    assert_eq!(event.kind.to_string(), "the link at 1-ff00:0:111#5 is down");
}

#[test]
fn errors_about_foreign_packets_are_dropped() {
    let mut a = End::new(A);
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let packet = a.send_one(route, b"ours");
    let not_ours = [
        // Another port of ours, another remote, another way, another host.
        End::new("[1-ff00:0:110,10.0.0.1]:31009").send_to(B, [1, 2, 3, 4]),
        End::new(A).send_to("[1-ff00:0:112,10.0.0.2]:31007", [1, 2, 3, 4]),
        End::new(A).send_to(B, [1, 2, 3, 9]),
        End::new("[1-ff00:0:110,10.0.0.7]:31000").send_to(B, [1, 2, 3, 4]),
    ];
    for quote in &not_ours {
        let error = scmp_to_a(&interface_down(quote, 3), router(), &packet);
        assert_eq!(a.receive(&error, ROUTER_A), None);
    }
    assert_eq!(a.dropped(Dropped::ForeignQuote), 4);
    // Somebody who speaks of another AS's interface, or of one that is not on the way.
    let liar = Address::new(scion(B).isd_as, scion(B).host.ip());
    a.receive(&scmp_to_a(&interface_down(&packet, 3), liar, &packet), ROUTER_A);
    a.receive(&scmp_to_a(&interface_down(&packet, 77), router(), &packet), ROUTER_A);
    assert_eq!(a.dropped(Dropped::ForeignQuote), 6);
    // No packet at all.
    a.receive(&scmp_to_a(&interface_down(&packet[..30], 3), router(), &packet), ROUTER_A);
    assert_eq!(a.dropped(Dropped::Malformed), 1);
    assert_eq!(a.core.take_event(), None);
}

impl End {
    fn send_to(&self, remote: &str, interfaces: [u16; 4]) -> Vec<u8> {
        let route = self.core.register(scion(remote), &path_over(interfaces, 1000), self.now).unwrap();
        self.send_one(route, b"x")
    }
}

#[test]
fn events_are_bounded() {
    let mut a = End::new(A);
    for port in 1..=EVENTS_MAX as u16 + 1 {
        let packet = a.send_to(&format!("[1-ff00:0:112,10.0.0.2]:{port}"), [1, 2, 3, 4]);
        a.receive(&scmp_to_a(&interface_down(&packet, 3), router(), &packet), ROUTER_A);
    }
    assert_eq!(a.dropped(Dropped::EventsPending), 1);
    assert_eq!(std::iter::from_fn(|| a.core.take_event()).count(), EVENTS_MAX);
}

#[test]
fn echo_is_answered_with_the_same_data_over_the_way_back() {
    let (mut a, mut b) = (End::new(A), End::new(B));
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let request = a.core.echo_request(route, 100, a.now).unwrap();
    assert_eq!(request.to, ip(ROUTER_A));
    assert_eq!(b.receive(&carried(request.packet.clone()), ROUTER_B), None);
    let (to, answer) = b.inbox.replies.iter().next().map(|(to, packet)| (to, packet.to_vec())).unwrap();
    assert_eq!((to, answer.len()), (ip(ROUTER_B), request.packet.len()));
    assert_eq!(b.core.counters().echoes_answered, 1);
    a.inbox.replies.clear();
    let (mut inbox, later) = (Inbox::default(), a.now + Duration::from_millis(7));
    assert!(a.core.inbound(&mut inbox, &carried(answer.clone()), ip(ROUTER_A), later).is_none());
    let mut request = request;
    let answered = request.answer.try_recv().unwrap();
    assert!(matches!(answered, Answer::Echo(rtt) if rtt == Duration::from_millis(7)));
    // Once.
    assert!(a.core.inbound(&mut inbox, &carried(answer), ip(ROUTER_A), later).is_none());
    assert_eq!(a.core.counters().dropped.of(Dropped::UnaskedAnswer), 1);
}

#[test]
fn answers_that_nobody_could_have_given_are_dropped() {
    let mut a = End::new(A);
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let core = &a.core;
    let request = core.echo_request(route, 8, a.now).unwrap();
    let id = EchoId { identifier: 31000, sequence: request.sequence };
    let host = Address::new(scion(B).isd_as, scion(B).host.ip());
    let mut packets = Vec::new();
    // No token; another asker; another host with the right token.
    packets.push(scmp_to_a(&Message::EchoReply { id, data: &[0; 8] }, host, &request.packet));
    let token = &request.packet[request.packet.len() - 8..];
    packets.push(scmp_to_a(&Message::EchoReply { id, data: token }, router(), &request.packet));
    packets.push(scmp_to_a(&Message::TracerouteReply { id, isd_as: host.isd_as, interface: 1 }, host, &request.packet));
    for packet in &packets {
        assert!(core.inbound(&mut a.inbox, packet, ip(ROUTER_A), a.now).is_none());
    }
    assert_eq!(core.counters().dropped.of(Dropped::UnaskedAnswer), 3);
    let other = EchoId { identifier: 31001, ..id };
    let packet = scmp_to_a(&Message::EchoReply { id: other, data: token }, host, &request.packet);
    assert!(core.inbound(&mut a.inbox, &packet, ip(ROUTER_A), a.now).is_none());
    assert_eq!(core.counters().dropped.of(Dropped::WrongDestination), 1);
}

#[test]
fn a_probe_hears_why_it_failed() {
    let mut a = End::new(A);
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let core = &a.core;
    let mut request = core.echo_request(route, 8, a.now).unwrap();
    let error = scmp_to_a(&interface_down(&request.packet, 3), router(), &request.packet);
    assert!(core.inbound(&mut a.inbox, &error, ip(ROUTER_A), a.now).is_none());
    assert!(matches!(request.answer.try_recv(), Ok(Answer::Trouble(ScmpKind::ExternalInterfaceDown(_)))));
    assert_eq!(core.take_event(), None, "who asked was told");
}

// The rest of a request can be guessed; who quotes its token has seen it.
#[test]
fn a_complaint_about_an_echo_that_nobody_saw_is_dropped() {
    let mut a = End::new(A);
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let core = &a.core;
    let mut request = core.echo_request(route, 8, a.now).unwrap();
    let mut guessed = request.packet.clone();
    *guessed.last_mut().unwrap() ^= 1;
    let cut = &request.packet[..request.packet.len() - 1];
    for quote in [&guessed[..], cut] {
        let error = scmp_to_a(&interface_down(quote, 3), router(), &request.packet);
        assert!(core.inbound(&mut a.inbox, &error, ip(ROUTER_A), a.now).is_none());
        assert!(request.answer.try_recv().is_err());
    }
    assert_eq!(core.counters().dropped.of(Dropped::ForeignQuote), 2);
}

#[test]
fn traceroute_asks_each_interface_in_order() {
    let mut a = End::new(A);
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let core = &a.core;
    let mut requests = core.trace_requests(route, 0, a.now).unwrap();
    assert_eq!(requests.iter().map(|(interface, _)| *interface).collect::<Vec<_>>(), [1, 2, 3, 4]);
    for (interface, request) in &mut requests {
        let packet = Packet::parse(&request.packet).unwrap();
        let PathRef::Standard(path) = packet.header().path() else { panic!() };
        let alerts: Vec<u16> = (0..path.hop_count())
            .filter_map(|at| path.hop(at))
            .flat_map(|hop| {
                let ingress = hop.ingress_alert.then_some(hop.cons_ingress);
                ingress.into_iter().chain(hop.egress_alert.then_some(hop.cons_egress))
            })
            .collect();
        assert_eq!(alerts, [*interface]);
        let id = EchoId { identifier: 31000, sequence: request.sequence };
        let reply = Message::TracerouteReply { id, isd_as: router().isd_as, interface: *interface };
        let reply = scmp_to_a(&reply, router(), &request.packet);
        core.inbound(&mut a.inbox, &reply, ip(ROUTER_A), a.now + Duration::from_millis(3));
        let answer = request.answer.try_recv().unwrap();
        assert!(matches!(answer, Answer::Trace(told) if told.interface.id == *interface && told.rtt.as_millis() == 3));
    }
}

#[test]
fn probes_are_bounded_and_make_room_when_given_up() {
    let a = End::new(A);
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let mut requests: Vec<_> = (0..PROBES_MAX).map(|_| a.core.echo_request(route, 8, a.now).unwrap()).collect();
    assert_eq!(a.core.echo_request(route, 8, a.now).err(), Some(ProbeError::TooMany));
    requests.pop();
    assert!(a.core.echo_request(route, 8, a.now).is_ok());
    assert_eq!(a.core.echo_request(route, 1400, a.now).err(), Some(ProbeError::TooLong(1400)));
}

#[test]
fn echoes_are_answered_at_a_bounded_rate() {
    let (a, mut b) = (End::new(A), End::new(B));
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let request = carried(a.core.echo_request(route, 8, a.now).unwrap().packet.clone());
    for _ in 0..ECHO_RATE_MAX {
        b.receive(&request, ROUTER_B);
        b.inbox.replies.clear();
    }
    assert_eq!(b.dropped(Dropped::EchoRate), 0);
    b.receive(&request, ROUTER_B);
    assert_eq!(b.dropped(Dropped::EchoRate), 1);
    b.now += Duration::from_secs(1) / ECHO_RATE_MAX;
    b.receive(&request, ROUTER_B);
    b.receive(&request, ROUTER_B);
    assert_eq!(b.dropped(Dropped::EchoRate), 2);
    assert!(!lock(&b.core.echo_budget).take(b.now));
    // And in one receive, as many as its buffer for answers takes.
    b.now += Duration::from_secs(5);
    let big = carried(a.core.echo_request(route, 1200, a.now).unwrap().packet.clone());
    for _ in 0..200 {
        b.receive(&big, ROUTER_B);
    }
    assert!(b.inbox.replies.iter().count() <= 64);
}
