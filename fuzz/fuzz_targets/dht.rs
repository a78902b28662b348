//! Any bytes as what comes to a node of the distributed hash table: messages, whole conversations, the file that it keeps; and as a call
//! of local discovery.
//!
//! Input: a byte that chooses, then the message, or messages with their lengths in front.
#![no_main]

use std::time::{Duration, Instant};

use anabranch_bittorrent::local_discovery::{Call, HASHES_MAX};
use anabranch_dht::wire::{Body, Parsed, parse};
use anabranch_dht::{Config, Dht, Family, Goal, HOMES_MAX, HomeConfig, NodeId, Policy, snapshot};
use anabranch_paths::Endpoint;
use libfuzzer_sys::fuzz_target;

struct Anybody;

impl Policy for Anybody {
    fn fits(&self, _: &Endpoint, _: &Endpoint) -> bool {
        true
    }

    fn blocks(&self, _: &Endpoint) -> bool {
        false
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, message)) = data.split_first() else { return };
    match choice % 4 {
        0 => read_back(message),
        1 => conversation(message),
        2 => kept(message),
        _ => {
            if let Some(call) = Call::parse(message) {
                assert!(call.port != 0 && !call.hashes.is_empty() && call.hashes.len() <= HASHES_MAX);
            }
        }
    }
});

/// What is read is written so that it is read in the same way.
fn read_back(datagram: &[u8]) {
    let _ = parse(datagram, |parsed| {
        let Parsed::Message(message) = parsed else { return };
        let again = message.encode();
        // An error's text is cut, and lists are.
        let is_cut = again.len() > datagram.len() || matches!(message.body, Body::Error { .. });
        let read = parse(&again, |parsed| {
            if let Parsed::Message(second) = parsed {
                assert!(is_cut || second.transaction == message.transaction && second.read_only == message.read_only);
            }
        });
        assert!(is_cut || read.is_ok());
    });
}

fn conversation(mut bytes: &[u8]) {
    let mut now = Instant::now();
    let config = Config { secret: [1; 16], seed: 1, read_only: false, version: *b"AB01", policy: Box::new(Anybody) };
    let mut dht = Dht::new(config, now);
    let addresses: [Endpoint; 3] =
        ["20.0.0.1:6881", "[2a00::1]:6881", "[1-ff00:0:110,10.0.0.1]:6881"].map(|text| text.parse().expect("one"));
    let homes = addresses.map(|address| {
        dht.add_home(HomeConfig { family: Family::of(&address), address: None, saved: None }, now).expect("a place")
    });
    addresses.iter().for_each(|address| dht.add_node(*address, now));
    dht.search(Goal::Peers { info_hash: NodeId([7; 20]), announce: None, scrape: true }, now);
    let mut received = 0;
    while let Some((&len, rest)) = bytes.split_first() {
        let (message, rest) = rest.split_at(usize::from(len).min(rest.len()));
        bytes = rest;
        // What was asked is answered with the right number: so answers are looked into.
        let asked = dht.poll_transmit();
        let at = usize::from(len) % addresses.len();
        received += message.len();
        dht.receive(homes[at], addresses[at], message, now);
        if let Some(asked) = asked {
            let number = parse(&asked.bytes, |parsed| match parsed {
                Parsed::Message(message) => message.transaction.to_vec(),
                Parsed::Refused { .. } => Vec::new(),
            });
            let number = number.expect("what we send can be read");
            let head = format!("d1:t{}:", number.len());
            let answer = [head.as_bytes(), &number, b"1:y1:r1:r", message, b"e"].concat();
            dht.receive(asked.home, asked.to, &answer, now);
        }
        now += Duration::from_millis(u64::from(len) * 100);
        dht.on_deadline(now);
        while dht.poll_event().is_some() {}
    }
    assert!(dht.stats().peers <= received && dht.stats().items <= received);
}

fn kept(bytes: &[u8]) {
    if let Ok(places) = snapshot::decode(bytes) {
        assert!(places.len() <= HOMES_MAX);
        assert_eq!(snapshot::decode(&snapshot::encode(&places)), Ok(places));
    }
}
