//! Whole connections over networks that lose, reorder, duplicate and delay, in virtual time.

mod common;

use std::time::Duration;

use anabranch_utp::packet::{Header, Kind, Packet};
use anabranch_utp::{CALLERS_OF_HOST_MAX, CALLS_MAX, ConnError, Endpoint, INCOMING_MAX, Route, Seq};
use common::{Link, Net, noise, route_to};

const MINUTES: Duration = Duration::from_secs(600);

fn exchange(seed: u64, way: Link, len: usize) -> Net {
    let mut net = Net::new(seed, [way; 2]);
    net.owners[0].to_send = noise(seed, len);
    net.owners[1].to_send = noise(seed + 1, len / 2);
    net.connect();
    let both = |net: &Net| (0..2).all(|end| net.owners[end].received.len() == net.owners[1 - end].to_send.len());
    let done = net.run(MINUTES, both);
    let got = [net.owners[0].received.len(), net.owners[1].received.len()];
    assert!(done, "seed {seed}, {way:?}: {got:?}, {:?} {:?}", net.owners[0].error, net.owners[1].error);
    assert!((0..2).all(|end| net.owners[end].received == net.owners[1 - end].to_send), "seed {seed}");
    net.owners.iter_mut().for_each(|owner| owner.closes = true);
    let gone = net.run(MINUTES, |net| net.ends.iter().all(Endpoint::is_empty));
    assert!(gone, "seed {seed}, {way:?}: not closed");
    net
}

#[test]
fn bytes_arrive_whole_over_any_network() {
    let ms = Duration::from_millis;
    let base = Link::default();
    let ways = [
        base,
        Link { loss: 0.01, ..base },
        Link { loss: 0.2, ..base },
        Link { duplicates: 0.3, ..base },
        Link { late: 0.3, late_by: ms(30), ..base },
        Link { loss: 0.05, duplicates: 0.1, late: 0.1, late_by: ms(100), ..base },
        Link { mtu: 1300, ..base },
        Link { mtu: 600, ..base },
        Link { rate: 1e6, queue: 30e3, ..base },
        Link { delay: ms(300), rate: 2e6, queue: 1e6, loss: 0.001, ..base },
        Link { delay: Duration::from_micros(50), ..base },
    ];
    for (number, way) in ways.into_iter().enumerate() {
        for seed in 0..6 {
            // Every few seeds, long enough for numbers to wrap.
            let len = if seed == 0 && way.loss < 0.1 && way.mtu > 1000 { 3_000_000 } else { 300_000 };
            exchange(seed * 100 + number as u64, way, len);
        }
    }
}

#[test]
fn numbers_wrap_many_times() {
    let way = Link { delay: Duration::from_millis(1), loss: 0.0005, ..Link::default() };
    let net = exchange(7, way, 250_000_000);
    assert!(net.datagrams > 3 * 65_536, "{}", net.datagrams);
}

#[test]
fn a_long_path_is_filled_and_a_probe_finds_its_packets() {
    // 100 Mbit/s, 100 ms there and back, a queue of 100 ms.
    let way = Link { delay: Duration::from_millis(50), rate: 12.5e6, queue: 1.25e6, ..Link::default() };
    let net = exchange(1, way, 60_000_000);
    let rate = 60e6 * 8.0 / net.elapsed().as_secs_f64() / 1e6;
    println!("{rate:.1} Mbit/s of 100, queue at most {:?}", net.queue_max);
    assert!(rate > 70.0, "{rate}");
    assert_eq!(net.longest, 1472);
}

#[test]
fn it_yields_to_tcp_and_takes_what_tcp_leaves() {
    // 20 Mbit/s, 40 ms there and back, a queue of 200 ms.
    let way = Link { delay: Duration::from_millis(20), rate: 2.5e6, queue: 500e3, ..Link::default() };
    let mut net = Net::new(12, [way; 2]);
    net.owners[0].to_send = noise(12, 160_000_000);
    net.connect();
    let second = Duration::from_secs(1);
    let share = |net: &mut Net, seconds: u32| {
        let before = (net.owners[1].received.len(), net.cubic.as_ref().map_or(0, |cubic| cubic.delivered));
        net.run(second * seconds, |_| false);
        let ours = net.owners[1].received.len() - before.0;
        let theirs = net.cubic.as_ref().map_or(0, |cubic| cubic.delivered) - before.1;
        let rate = |bytes: f64| bytes / f64::from(seconds) / 2.5e6;
        (rate(ours as f64), rate(theirs as f64))
    };
    net.run(second * 5, |_| false);
    let (alone, _) = share(&mut net, 10);
    net.cubic = Some(common::Cubic::new(net.now));
    share(&mut net, 5);
    let (beside, tcp) = share(&mut net, 20);
    net.cubic = None;
    share(&mut net, 5);
    let (after, _) = share(&mut net, 5);
    println!("alone {alone:.2}, beside TCP {beside:.2} and TCP {tcp:.2}, after it {after:.2} of the link");
    assert!(alone > 0.85, "{alone}");
    assert!(beside < 0.15 && tcp > 0.8, "{beside} {tcp}");
    assert!(after > 0.8, "{after}");
}

#[test]
fn losses_that_are_the_links_do_not_slow_it_down_much() {
    let way = Link { delay: Duration::from_millis(25), rate: 6.25e6, queue: 625e3, loss: 0.01, ..Link::default() };
    let net = exchange(2, way, 30_000_000);
    let rate = 30e6 * 8.0 / net.elapsed().as_secs_f64() / 1e6;
    println!("{rate:.1} Mbit/s of 50 at 1 % loss");
    assert!(rate > 25.0, "{rate}");
}

#[test]
fn a_path_that_shrinks_is_survived() {
    let mut net = Net::new(3, [Link::default(); 2]);
    net.owners[0].to_send = noise(3, 3_000_000);
    net.connect();
    assert!(net.run(MINUTES, |net| net.owners[1].received.len() > 1_000_000));
    assert_eq!(net.longest, 1472);
    net.ways[1].mtu = 1000;
    let whole = net.run(MINUTES, |net| net.owners[1].received.len() == 3_000_000);
    assert!(whole && net.owners[1].received == net.owners[0].to_send);
}

#[test]
fn who_does_not_read_is_not_sent_more_than_it_has_room_for() {
    let mut net = Net::new(4, [Link::default(); 2]);
    net.owners[0].to_send = noise(4, 20_000_000);
    net.owners[1].reads = 0;
    net.connect();
    net.run(Duration::from_secs(120), |_| false);
    let sent = net.wire_bytes;
    assert!(sent < 2_000_000, "{sent} bytes for a reader that is asleep");
    assert_eq!(net.owners.iter().find_map(|owner| owner.error), None, "it is there, and says so");
    net.owners[1].reads = 10_000;
    assert!(net.run(MINUTES, |net| net.owners[1].received.len() > 3_000_000));
    net.owners[1].reads = usize::MAX;
    assert!(net.run(MINUTES, |net| net.owners[1].received == net.owners[0].to_send));
}

#[test]
fn silence_ends_a_connection_and_idling_does_not() {
    let mut net = Net::new(5, [Link::default(); 2]);
    net.owners[0].to_send = noise(5, 1000);
    net.connect();
    assert!(net.run(MINUTES, |net| net.owners[1].received.len() == 1000));
    let before = net.datagrams;
    net.run(MINUTES, |_| false);
    let said = net.datagrams - before;
    assert!((30..60).contains(&said), "{said} packets in ten minutes keep the way open");
    net.ways.iter_mut().for_each(|way| way.loss = 1.0);
    net.owners[0].to_send.extend(noise(6, 1000));
    assert!(net.run(MINUTES, |net| net.owners[0].error.is_some()));
    assert_eq!(net.owners[0].error, Some(ConnError::TimedOut));
}

#[test]
fn calls_that_nobody_answers_end() {
    let mut net = Net::new(6, [Link { loss: 1.0, ..Link::default() }; 2]);
    net.connect();
    assert!(net.run(MINUTES, |net| net.owners[0].error.is_some()));
    assert_eq!((net.owners[0].error, net.datagrams), (Some(ConnError::TimedOut), 3));
    assert!(net.elapsed() < Duration::from_secs(10), "{:?}", net.elapsed());
}

#[test]
fn who_accepts_nobody_says_so_at_once() {
    let mut net = Net::new(7, [Link::default(); 2]);
    net.ends[1] = Endpoint::new(net.now, 9, false);
    net.connect();
    assert!(net.run(MINUTES, |net| net.owners[0].error.is_some()));
    assert_eq!(net.owners[0].error, Some(ConnError::Refused));
    assert!(net.elapsed() < Duration::from_millis(50));
}

#[test]
fn one_side_may_end_while_the_other_still_sends() {
    let mut net = Net::new(8, [Link { loss: 0.05, ..Link::default() }; 2]);
    net.owners[0].to_send = noise(8, 100_000);
    net.owners[0].closes = true;
    net.connect();
    assert!(net.run(MINUTES, |net| net.owners[1].ended));
    assert_eq!(net.owners[1].received, net.owners[0].to_send);
    net.owners[1].closes = true;
    assert!(net.run(MINUTES, |net| net.ends.iter().all(Endpoint::is_empty)));
}

#[test]
fn a_connection_that_is_gone_is_told_of() {
    let mut net = Net::new(9, [Link::default(); 2]);
    net.owners[0].to_send = noise(9, 1000);
    net.connect();
    assert!(net.run(MINUTES, |net| net.owners[1].received.len() == 1000));
    // The other side starts anew, and knows nobody.
    net.ends[1] = Endpoint::new(net.now, 77, true);
    net.owners[1] = common::End::default();
    net.owners[0].to_send.extend(noise(10, 1000));
    assert!(net.run(Duration::from_secs(1), |net| net.owners[0].error.is_some()));
    assert_eq!(net.owners[0].error, Some(ConnError::Reset));
}

fn bytes(header: Header) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.write(&[], 0, &mut bytes);
    bytes
}

fn header(kind: Kind, connection_id: u16, seq: u16, ack: u16) -> Header {
    Header { kind, connection_id, timestamp_us: 1, delay_us: 0, window: 1 << 20, seq: Seq(seq), ack: Seq(ack) }
}

#[test]
fn a_flood_of_calls_leaves_nothing_behind_and_is_answered_with_no_more_bytes() {
    let now = std::time::Instant::now();
    let mut endpoint = Endpoint::new(now, 1, true);
    let mut out = Vec::new();
    let (mut calls, mut answers) = (0, 0);
    for number in 0..200_000u32 {
        let from = Route::new((std::net::Ipv4Addr::from_bits(0x0a00_0000 + number % 50_000), 1024).into());
        let syn = bytes(header(Kind::Syn, number as u16, (number >> 8) as u16, 0));
        calls += syn.len();
        assert!(endpoint.datagram(now, from, &syn));
        if number % 64 == 0 {
            while endpoint.transmit(now, 16, &mut out).is_some() {}
        }
    }
    answers += out.len();
    assert!(endpoint.is_empty() && endpoint.poll_event().is_none() && endpoint.deadline().is_none());
    assert!(answers <= calls, "{answers} bytes for {calls}");
    // Not read for a while, answers do not gather either.
    for number in 0..100_000u32 {
        endpoint.datagram(now, route_to(0), &bytes(header(Kind::Syn, number as u16, 1, 0)));
    }
    let mut waiting = 0;
    while endpoint.transmit(now, 16, &mut out).is_some() {
        waiting += 1;
    }
    assert_eq!(waiting, CALLS_MAX);
}

#[test]
fn who_cannot_hear_us_gets_no_connection() {
    let now = std::time::Instant::now();
    let mut endpoint = Endpoint::new(now, 2, true);
    let mut made = 0;
    for ack in 0..=u16::MAX {
        endpoint.datagram(now, route_to(0), &bytes(header(Kind::Data, 8, 2, ack)));
        made = endpoint.len();
    }
    // All numbers were tried: one of three that would do, each once.
    assert!((1..=3).contains(&made), "{made}");
}

/// Calls from `from`, and proves to hear the answer, if there is one.
fn call(endpoint: &mut Endpoint, from: std::net::SocketAddr, now: std::time::Instant) {
    let (from, mut out) = (Route::new(from), Vec::new());
    endpoint.datagram(now, from, &bytes(header(Kind::Syn, 7, 1, 0)));
    endpoint.transmit(now, 1, &mut out).unwrap();
    let answer = Packet::parse(&out).unwrap().header;
    if answer.kind != Kind::Reset {
        endpoint.datagram(now, from, &bytes(header(Kind::State, 8, 2, answer.seq.minus(1).0)));
        out.clear();
        while endpoint.transmit(now, 1, &mut out).is_some() {
            out.clear();
        }
    }
}

#[test]
fn connections_that_nobody_takes_note_of_are_bounded() {
    let now = std::time::Instant::now();
    let mut endpoint = Endpoint::new(now, 3, true);
    for port in 1..=INCOMING_MAX as u16 + 1 {
        call(&mut endpoint, (std::net::Ipv4Addr::LOCALHOST, port).into(), now);
    }
    assert_eq!(endpoint.len(), INCOMING_MAX);
}

#[test]
fn one_host_does_not_take_the_places_of_all_others() {
    let now = std::time::Instant::now();
    for (greedy, neighbour, other) in [
        ("198.51.100.1", "198.51.100.1", "198.51.100.2"),
        ("::ffff:198.51.100.1", "198.51.100.1", "::ffff:198.51.100.2"),
        // All of a /64 is one host's.
        ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"),
    ] {
        let [greedy, neighbour, other] = [greedy, neighbour, other].map(|ip| ip.parse::<std::net::IpAddr>().unwrap());
        let mut endpoint = Endpoint::new(now, 4, true);
        // Whom we call takes no place of those who call.
        let route = |port| Route::new((greedy, port).into());
        (5000..5010).for_each(|port| assert!(endpoint.connect(now, route(port), 1400).is_ok()));
        for port in 1..=CALLERS_OF_HOST_MAX as u16 {
            call(&mut endpoint, (greedy, port).into(), now);
        }
        assert_eq!(endpoint.len(), 10 + CALLERS_OF_HOST_MAX);
        call(&mut endpoint, (neighbour, 999).into(), now);
        assert_eq!(endpoint.len(), 10 + CALLERS_OF_HOST_MAX, "{neighbour}");
        call(&mut endpoint, (other, 1).into(), now);
        assert_eq!(endpoint.len(), 10 + CALLERS_OF_HOST_MAX + 1, "{other}");
    }
}

#[test]
fn forged_resets_and_packets_do_not_harm() {
    let mut net = Net::new(11, [Link::default(); 2]);
    net.owners[0].to_send = noise(11, 2_000_000);
    net.connect();
    assert!(net.run(MINUTES, |net| net.owners[1].received.len() > 500_000));
    // From the right address, with any number of a connection, but an acknowledgement of nothing that was sent lately.
    let sent = Packet::parse(&net.peek_data()).unwrap().header;
    for (to, ack) in [(1, sent.ack), (0, sent.seq)] {
        for id in 0..=u16::MAX {
            for off in [0x4000, 0x8000] {
                let reset = header(Kind::Reset, id, 5, ack.plus(off).0);
                net.ends[to].datagram(net.now, route_to(1 - to), &bytes(reset));
            }
        }
    }
    // From elsewhere, with the right numbers.
    let elsewhere = Route::new("198.51.100.1:6881".parse().unwrap());
    let reset = header(Kind::Reset, sent.connection_id, 5, sent.ack.0);
    net.ends[1].datagram(net.now, elsewhere, &bytes(reset));
    assert!(net.run(MINUTES, |net| net.owners[1].received == net.owners[0].to_send));
    assert_eq!(net.owners[0].error.or(net.owners[1].error), None);
    // The right one is believed.
    let reset = header(Kind::Reset, sent.connection_id, 5, sent.ack.0);
    net.ends[1].datagram(net.now, route_to(0), &bytes(reset));
    assert!(net.run(MINUTES, |net| net.owners[1].error == Some(ConnError::Reset)));
}
