//! Whatever arrives, nothing panics, and what is not delivered is counted.

use proptest::prelude::*;

use super::*;

/// Packets that B takes: data, an echo request, an SCMP error.
fn good_packets() -> Vec<Vec<u8>> {
    let a = End::new(A);
    let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
    let echo = a.core.echo_request(route, 64, a.now).unwrap().packet.clone();
    let mut packets = vec![carried(a.send_one(route, &[3; 300])), carried(echo)];
    let mut b = End::new(B);
    let (back, _) = b.receive(&packets[0], ROUTER_B).unwrap();
    let answer = b.send_one(back, b"answer");
    packets.push(carried(answer));
    packets
}

/// One counter moves for every packet that brings no data.
fn feed(end: &mut End, packet: &[u8], from: &str) -> Option<(RouteId, Vec<u8>)> {
    let before = end.core.counters();
    let had_events = end.core.take_event();
    let data = end.core.inbound(&mut end.inbox, packet, ip(from), end.now);
    let moved = |after: Counters| {
        after.dropped.total() + after.echoes_answered - before.dropped.total() - before.echoes_answered
    };
    let Some(data) = data else {
        let settled = moved(end.core.counters()) + u64::from(end.core.take_event().is_some());
        assert_eq!(settled, 1, "{had_events:?}");
        end.inbox.replies.clear();
        return None;
    };
    assert_eq!(moved(end.core.counters()), 0);
    let mut payload = vec![0; data.len()];
    data.copy_to(&mut payload).then_some((data.route, payload))
}

proptest! {
    #[test]
    fn random_bytes(packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..20)) {
        let mut b = End::new(B);
        for packet in &packets {
            prop_assert_eq!(feed(&mut b, packet, ROUTER_B), None);
        }
    }

    #[test]
    fn flipped_bits(
        which in 0usize..3,
        flips in proptest::collection::vec((0usize..500, 0u8..8), 1..4),
        cut in proptest::option::of(0usize..500),
        warm in any::<bool>(),
    ) {
        let mut packet = good_packets().remove(which);
        let mut end = End::new(if which == 2 { A } else { B });
        if warm {
            feed(&mut end, &packet, ROUTER_B);
        }
        for (at, bit) in flips {
            let at = at % packet.len();
            packet[at] ^= 1 << bit;
        }
        if let Some(cut) = cut {
            packet.truncate(cut);
        }
        feed(&mut end, &packet, ROUTER_B);
    }

    #[test]
    fn one_flipped_bit_of_the_payload_is_noticed(at in 0usize..300, bit in 0u8..8, warm in any::<bool>()) {
        let mut packet = good_packets().remove(0);
        let mut b = End::new(B);
        if warm {
            prop_assert!(feed(&mut b, &packet, ROUTER_B).is_some());
        }
        let at = packet.len() - 300 + at;
        packet[at] ^= 1 << bit;
        prop_assert_eq!(feed(&mut b, &packet, ROUTER_B), None);
    }

    /// The quick look takes what the parse takes, and makes the same of it.
    #[test]
    fn remembered_headers_mean_what_parsed_ones_mean(
        at in 0usize..500,
        to in any::<u8>(),
        payload in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        let a = End::new(A);
        let route = a.core.register(scion(B), &path_at(1000), a.now).unwrap();
        let mut packet = carried(a.send_one(route, &payload));
        let at = at % packet.len();
        packet[at] = to;
        let (mut warm, mut cold) = (End::new(B), End::new(B));
        feed(&mut warm, &carried(a.send_one(route, b"first")), ROUTER_B);
        let (one, other) = (feed(&mut warm, &packet, ROUTER_B), feed(&mut cold, &packet, ROUTER_B));
        prop_assert_eq!(one.map(|(_, payload)| payload), other.map(|(_, payload)| payload));
    }
}
