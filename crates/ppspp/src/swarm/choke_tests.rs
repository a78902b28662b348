//! Who is choked, and how it gets to know.

use std::time::Duration;

use super::tests::{address, opening, seeder};
use super::*;
use crate::wire::{Message, Messages, split_channel};

const CHUNKS: u64 = 4000;

/// A seeder, and what a peer of it says and hears.
struct Pair {
    swarm: Swarm<SocketAddr>,
    channel: ChannelId,
    now: Instant,
}

impl Pair {
    fn new() -> Self {
        let now = Instant::now();
        let mut swarm = seeder(CHUNKS, 1, now);
        swarm.datagram(now, &address(1), &opening(CHUNKS, 9));
        let channel = swarm.by_peer[&address(1)];
        let mut pair = Self { swarm, channel, now };
        pair.says(&[]);
        pair.hears();
        pair
    }

    fn says(&mut self, messages: &[Message<'_>]) {
        let codec = self.swarm.params.codec(Dialect::Rfc7574);
        let mut datagram = self.channel.to_be_bytes().to_vec();
        messages.iter().for_each(|message| message.encode(&codec, &mut datagram).expect("fits"));
        self.swarm.datagram(self.now, &address(1), &datagram);
    }

    fn choke(&mut self, choked: bool) {
        self.swarm.choke(self.now, &address(1), choked);
    }

    fn passes(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now = self.swarm.deadline().max(self.now + Duration::from_millis(1)).min(until);
            self.swarm.poll(self.now);
        }
    }

    /// How many chunks, chokes and unchokes were sent.
    fn hears(&mut self) -> (usize, usize, usize) {
        let codec = self.swarm.params.codec(Dialect::Rfc7574);
        let mut heard = (0, 0, 0);
        while let Some(transmit) = self.swarm.transmit() {
            heard.0 += usize::from(transmit.chunk.is_some());
            let (_, messages) = split_channel(&transmit.datagram).expect("of a channel");
            for message in Messages::new(codec, messages).flatten() {
                heard.1 += usize::from(message == Message::Choke);
                heard.2 += usize::from(message == Message::Unchoke);
            }
        }
        heard
    }
}

#[test]
fn who_asks_though_it_is_choked_is_told_so_again_but_not_each_time() {
    let mut pair = Pair::new();
    pair.choke(true);
    assert_eq!(pair.hears(), (0, 1, 0));
    pair.choke(true);
    pair.says(&[Message::Request(0..10)]);
    pair.passes(Duration::from_millis(499));
    pair.says(&[Message::Request(0..10)]);
    assert_eq!(pair.hears(), (0, 0, 0), "what it asks crossed what it was told");
    pair.passes(Duration::from_millis(1));
    pair.says(&[Message::Request(0..10), Message::Request(10..20)]);
    assert_eq!(pair.hears(), (0, 1, 0));
    pair.choke(false);
    pair.passes(Duration::from_millis(100));
    assert_eq!(pair.hears(), (0, 0, 1), "what it asked for while it was choked is forgotten");
    pair.says(&[Message::Request(0..1)]);
    pair.passes(Duration::from_secs(60));
    let (chunks, chokes, unchokes) = pair.hears();
    assert!(chunks >= 1);
    assert_eq!((chokes, unchokes), (0, 0), "it knows");
}

#[test]
fn who_does_not_ask_is_told_ever_more_rarely_that_it_may() {
    let mut pair = Pair::new();
    pair.choke(true);
    pair.choke(false);
    assert_eq!(pair.hears(), (0, 1, 1));
    let mut told = Vec::new();
    for step in 1..=400 {
        pair.passes(Duration::from_millis(50));
        // A sign of life, without which the channel is closed.
        pair.says(&[]);
        (0..pair.hears().2).for_each(|_| told.push(step * 50));
    }
    assert!(told.len() >= 5, "{told:?}");
    assert!(told.windows(2).all(|pair| pair[1] - pair[0] >= 500), "{told:?}");
    assert!((500..600).contains(&told[0]), "{told:?}");
}

#[test]
fn what_was_lost_on_its_way_to_who_is_choked_now_is_not_sent_again() {
    for choked in [true, false] {
        let mut pair = Pair::new();
        pair.says(&[Message::Request(0..1)]);
        assert_eq!(pair.hears().0, 1);
        if choked {
            pair.choke(true);
        }
        pair.passes(Duration::from_secs(10));
        assert_eq!(pair.hears().0 > 0, !choked);
    }
}
