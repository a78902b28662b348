//! Everything arrives, whoever calls.

use anabranch_swarm::bulk::{self, Event, Peers};

use crate::support::*;

const SECRET: [u8; 12] = [7; 12];

#[tokio::test]
async fn a_ticket_fetches_whatever_length_it_has() {
    for len in [0, 1, 1000, 1 << 20, (1 << 20) + 1, 5_000_000, 20 << 20] {
        let pattern = Pattern::new(len, len);
        let (_sending, events) = bulk::send(options(), Peers::Listen(by_ticket(SECRET, 1)), pattern.clone()).unwrap();
        let mut sender = Ear::new(events);
        let address = sender.listening().await;
        let memory = Memory::new();
        let to = Peers::Dial(vec![dial(address, Some(SECRET))]);
        let (_receiving, events) = bulk::receive(options(), to, memory.clone()).unwrap();
        let mut receiver = Ear::new(events);
        let (receipt, _) = receiver.finished().await;
        assert_eq!(sender.finished().await.0, receipt);
        memory.only().assert_is(&pattern);
        assert!(receiver.next().await.is_none() && sender.next().await.is_none(), "both end");
    }
}

#[tokio::test]
async fn a_sender_calls_a_receiver() {
    let memory = Memory::new();
    let (_receiving, events) = bulk::receive(options(), Peers::Listen(by_ticket(SECRET, 1)), memory.clone()).unwrap();
    let mut receiver = Ear::new(events);
    let address = receiver.listening().await;
    let pattern = Pattern::new(10_000_001, 3);
    let to = Peers::Dial(vec![dial(address, Some(SECRET))]);
    let (_sending, events) = bulk::send(options(), to, pattern.clone()).unwrap();
    let mut sender = Ear::new(events);
    assert_eq!(sender.finished().await.0, receiver.finished().await.0);
    memory.only().assert_is(&pattern);
    assert!(sender.heard.iter().any(|event| event.starts_with("PathUp")));
}

#[tokio::test]
async fn a_cancelled_transfer_tells_both() {
    let pattern = Pattern::new(400 << 20, 3);
    let mut slow = options();
    slow.limit_up = Some(1_000_000);
    let (sending, events) = bulk::send(slow, Peers::Listen(by_ticket(SECRET, 1)), pattern.clone()).unwrap();
    let mut sender = Ear::new(events);
    let address = sender.listening().await;
    let to = Peers::Dial(vec![dial(address, Some(SECRET))]);
    let (_receiving, events) = bulk::receive(options(), to, Memory::new()).unwrap();
    let mut receiver = Ear::new(events);
    receiver.until(|event| matches!(event, Event::PathUp { .. }).then_some(())).await;
    sending.cancel();
    assert!(receiver.failed().await.contains("interrupted"));
    assert_eq!(sender.failed().await, "cancelled");
}

/// At the rate of the beginning it would take longer than anybody waits here.
#[tokio::test]
async fn limits_of_either_end_are_lifted_while_it_goes_on() {
    const SLOW: u64 = 300_000;
    for is_sender_limited in [true, false] {
        let pattern = Pattern::new(60 << 20, 9);
        let (mut sends, mut receives) = (options(), options());
        match is_sender_limited {
            true => sends.limit_up = Some(SLOW),
            false => receives.limit_down = Some(SLOW),
        }
        let (sending, events) = bulk::send(sends, Peers::Listen(by_ticket(SECRET, 1)), pattern.clone()).unwrap();
        let mut sender = Ear::new(events);
        let address = sender.listening().await;
        let memory = Memory::new();
        let to = Peers::Dial(vec![dial(address, Some(SECRET))]);
        let (receiving, events) = bulk::receive(receives, to, memory.clone()).unwrap();
        let mut receiver = Ear::new(events);
        receiver.until(|event| matches!(event, Event::Progress(now) if now.done_bytes > 0).then_some(())).await;
        match is_sender_limited {
            true => sending.set_limits(None, None),
            false => receiving.set_limits(None, None),
        }
        receiver.finished().await;
        memory.only().assert_is(&pattern);
    }
}
