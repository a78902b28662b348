//! Both ends by themselves: packets are handed over, and the clock is turned.

use std::time::Duration;

use anabranch_paths::{Endpoint as Address, PENDING_TRUSTED};

use super::*;

const WAY: u32 = 7;
const LENS: (u16, u16) = (1452, 1024);

struct End {
    datagrams: SecureDatagrams,
    key: NodeId,
    heard: Vec<Bytes>,
    opened: Vec<(SecureConn, NodeId)>,
    closed: Vec<(String, bool)>,
    /// Whom it admits.
    admits: Option<NodeId>,
    held: i32,
}

impl End {
    fn new(protocol: &[u8]) -> Self {
        let identity = Identity::ephemeral().expect("a key");
        let datagrams = SecureDatagrams::new(&identity, protocol).expect("an endpoint");
        let key = identity.node_id();
        Self { datagrams, key, heard: Vec::new(), opened: Vec::new(), closed: Vec::new(), admits: None, held: 0 }
    }

    fn heed(&mut self, now: Instant) {
        while let Some(event) = self.datagrams.event() {
            match event {
                SecureEvent::Opened { conn, way, key } => {
                    assert_eq!(way, WAY);
                    self.opened.push((conn, key));
                    match self.admits.is_none_or(|admitted| admitted == key) {
                        true => self.datagrams.admit(now, conn),
                        false => self.datagrams.close(now, conn, SecureClose::KeyNotAllowed),
                    }
                }
                SecureEvent::Datagram { key, datagram, .. } => {
                    if self.admits.is_none_or(|admitted| admitted == key) {
                        self.heard.push(datagram);
                    }
                }
                SecureEvent::Closed { reason, is_final, .. } => self.closed.push((reason, is_final)),
            }
        }
        self.held += self.datagrams.take_held().into_iter().map(|(_, held)| if held { 1 } else { -1 }).sum::<i32>();
    }

    fn send(&mut self, now: Instant, datagrams: &[&[u8]]) -> Result<(), (usize, TooLong)> {
        let parts = datagrams.iter().map(|datagram| datagram.split_at(datagram.len().min(4)));
        self.datagrams.send(now, WAY, parts.map(|(head, body)| [head, body]))
    }
}

fn host() -> Host {
    Host::of(&"192.0.2.1:1".parse().expect("an address"))
}

/// Hands packets over until none is left; answers how many there were and the longest.
fn carry(now: Instant, ends: &mut [End; 2]) -> (usize, usize) {
    let (mut count, mut longest) = (0, 0);
    loop {
        let before = count;
        for from in 0..2 {
            ends[from].heed(now);
            while let Some(packets) = ends[from].datagrams.packets() {
                let (bytes, len) = (packets.bytes.clone(), packets.packet_len);
                ends[from].datagrams.sent(usize::MAX / len);
                for packet in bytes.chunks(len) {
                    assert!(is_quic(packet));
                    ends[1 - from].datagrams.handle(now, WAY, host(), LENS, packet);
                    (count, longest) = (count + 1, longest.max(packet.len()));
                }
            }
        }
        if count == before {
            return (count, longest);
        }
    }
}

/// Turns the clock from deadline to deadline.
fn run(now: &mut Instant, until: Duration, ends: &mut [End; 2]) {
    let end = *now + until;
    loop {
        carry(*now, ends);
        let due = ends.iter().filter_map(|end| end.datagrams.deadline()).min();
        let Some(due) = due.filter(|due| *due <= end) else { break };
        *now = due.max(*now);
        ends.iter_mut().for_each(|end| end.datagrams.poll(*now));
    }
    *now = end;
}

fn pair() -> [End; 2] {
    [End::new(b"test/1"), End::new(b"test/1")]
}

#[test]
fn both_ends_prove_keys_and_datagrams_pass() {
    let (mut ends, now) = (pair(), Instant::now());
    assert!(ends[0].datagrams.call(now, WAY, LENS));
    carry(now, &mut ends);
    let keys = [ends[1].key, ends[0].key];
    for (end, other) in ends.iter().zip(keys) {
        assert_eq!((end.opened.len(), end.datagrams.key_of(WAY), end.held), (1, Some(other), 1));
    }
    let bodies: Vec<Vec<u8>> = (0..100u8).map(|number| vec![number; 1100]).collect();
    let bodies: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
    assert_eq!(ends[0].send(now, &bodies), Ok(()));
    assert_eq!(ends[1].send(now, &[b"", b"x"]), Ok(()));
    carry(now, &mut ends);
    assert!(ends[1].heard.iter().eq(bodies.iter()) && ends[0].heard.len() == 2);
    // The longest that fits, and a byte more.
    let most = usize::from(LENS.0) - SECURE_OVERHEAD;
    assert_eq!(ends[0].send(now, &[&vec![1; most]]), Ok(()));
    let (_, longest) = carry(now, &mut ends);
    assert!(longest <= usize::from(LENS.0) && ends[1].heard.last().is_some_and(|last| last.len() == most));
    assert_eq!(ends[0].send(now, &[b"x", &vec![1; most + 1]]), Err((1, TooLong)));
    // Nobody is there by another way.
    assert_eq!(ends[0].datagrams.send(now, WAY + 1, [[&b"x"[..], b""]].into_iter()), Ok(()));
    let mut now = now;
    ends[0].datagrams.close_way(now, WAY, SecureClose::Done);
    run(&mut now, Duration::from_secs(5), &mut ends);
    assert_eq!(ends[1].closed, [("it ended the connection".to_owned(), false)]);
    assert!(ends.iter().all(|end| end.held == 0 && end.datagrams.conns.is_empty() && end.datagrams.of_way.is_empty()));
}

#[test]
fn who_is_not_admitted_is_told_and_hears_nothing() {
    let (mut ends, now) = (pair(), Instant::now());
    ends[1].admits = Some(ends[1].key);
    ends[0].datagrams.call(now, WAY, LENS);
    // What is said at once, before the refusal comes.
    loop {
        let (count, _) = carry(now, &mut ends);
        let _ = ends[0].send(now, &[b"hello"]);
        if count == 0 {
            break;
        }
    }
    assert!(ends[1].heard.is_empty() && ends[1].datagrams.key_of(WAY).is_none());
    let (reason, is_final) = &ends[0].closed[0];
    assert!(reason.contains(&ends[0].key.to_string()) && reason.contains("not admitted") && *is_final, "{reason}");
    assert_eq!((ends[0].closed.len(), ends[0].heard.len()), (1, 0));
}

#[test]
fn both_may_call_at_once_and_one_may_begin_anew() {
    let (mut ends, mut now) = (pair(), Instant::now());
    assert!(ends[0].datagrams.call(now, WAY, LENS) && ends[1].datagrams.call(now, WAY, LENS));
    run(&mut now, Duration::from_secs(1), &mut ends);
    ends[0].send(now, &[b"a"]).expect("short");
    ends[1].send(now, &[b"b"]).expect("short");
    run(&mut now, Duration::from_secs(60), &mut ends);
    assert!(ends.iter().all(|end| end.heard.len() == 1 && end.opened.len() == 2 && end.closed.is_empty()));
    // Another program at the address of the first: the newest counts, and the other is given up.
    let old = std::mem::replace(&mut ends[0], End::new(b"test/1"));
    assert!(ends[0].datagrams.call(now, WAY, LENS));
    run(&mut now, Duration::from_secs(1), &mut ends);
    assert_eq!(ends[1].datagrams.key_of(WAY), Some(ends[0].key));
    ends[1].send(now, &[b"c"]).expect("short");
    run(&mut now, Duration::from_secs(1), &mut ends);
    assert_eq!((ends[0].heard.len(), old.heard.len()), (1, 1));
}

#[test]
fn long_datagrams_have_packets_of_their_own() {
    let (mut ends, now) = (pair(), Instant::now());
    ends[0].datagrams.call(now, WAY, (1452, 8300));
    carry(now, &mut ends);
    let long = vec![3; 8300];
    ends[0].send(now, &[&[1; 600], &[2; 600], &long]).expect("as long as was said");
    carry(now, &mut ends);
    assert_eq!(ends[1].heard.iter().map(Bytes::len).collect::<Vec<_>>(), [600, 600, 8300]);
    // Short ones never share a packet that the way may not take.
    ends[0].send(now, &[&[1; 1000][..]; 20]).expect("short");
    let (_, longest) = carry(now, &mut ends);
    assert!(longest < 1452, "{longest}");
}

#[test]
fn a_packet_that_is_shared_is_no_longer_than_what_has_to_leave() {
    let (mut ends, now) = (pair(), Instant::now());
    ends[0].datagrams.call(now, WAY, LENS);
    carry(now, &mut ends);
    let (digests, chunk, short) = (&[1; 250][..], &[2; 1045][..], &[3; 100][..]);
    ends[0].send(now, &[digests, chunk, chunk, digests, chunk]).expect("short");
    let (count, longest) = carry(now, &mut ends);
    assert!(count >= 5 && longest <= usize::from(MTU_MIN), "{count} {longest}");
    // Short ones share.
    ends[0].send(now, &[short; 10]).expect("short");
    let (count, longest) = carry(now, &mut ends);
    assert!(count < 10 && longest <= usize::from(MTU_MIN), "{count} {longest}");
    assert_eq!(ends[1].heard.len(), 15);
}

#[test]
fn silence_other_versions_and_noise() {
    let (mut ends, mut now) = ([End::new(b"test/1"), End::new(b"test/2")], Instant::now());
    ends[0].datagrams.call(now, WAY, LENS);
    carry(now, &mut ends);
    assert!(ends[0].closed[0].0.contains("another version") && ends[0].closed[0].1, "{:?}", ends[0].closed);
    // Nobody answers.
    let mut alone = End::new(b"test/1");
    alone.datagrams.call(now, WAY, LENS);
    let start = now;
    while let Some(due) = alone.datagrams.deadline() {
        now = due;
        alone.datagrams.poll(now);
        while alone.datagrams.packets().is_some() {
            alone.datagrams.sent(usize::MAX / 2000);
        }
        alone.heed(now);
    }
    assert_eq!(alone.closed, [("it does not answer".to_owned(), false)]);
    assert!(now - start < CONNECT_TIMEOUT * 3 && alone.held == 0);
    for len in 0..1500 {
        let noise: Vec<u8> = (0..len).map(|at| (at * 31 + len) as u8 | FIXED_BIT).collect();
        alone.datagrams.handle(now, WAY, host(), LENS, &noise);
    }
    alone.heed(now);
    assert_eq!((alone.opened.len(), alone.datagrams.conns.len()), (0, 0));
}

#[test]
fn floods_of_callers_are_bounded() {
    let (mut door, now) = (End::new(b"test/1"), Instant::now());
    for number in 0..2000u32 {
        let mut caller = End::new(b"test/1");
        caller.datagrams.call(now, WAY, LENS);
        let packets = caller.datagrams.packets().expect("its first");
        let host = Host::of(&Address::from(SocketAddr::from(([10, (number >> 8) as u8, number as u8, 1], 1))));
        door.datagrams.handle(now, number, host, LENS, &packets.bytes[..packets.packet_len]);
        while door.datagrams.packets().is_some() {
            door.datagrams.sent(usize::MAX / 2000);
        }
    }
    assert!(door.datagrams.callers.len() <= PENDING_TRUSTED, "{}", door.datagrams.callers.len());
    // Nobody answered: all are gone.
    let mut now = now;
    while let Some(due) = door.datagrams.deadline() {
        now = due;
        door.datagrams.poll(now);
        while door.datagrams.packets().is_some() {
            door.datagrams.sent(usize::MAX / 2000);
        }
    }
    door.heed(now);
    assert!(door.datagrams.conns.is_empty() && door.held == 0 && door.opened.is_empty() && door.closed.is_empty());
}
