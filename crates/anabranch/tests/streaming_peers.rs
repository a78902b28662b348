//! Peers that name chunks in other ways than we do, and more of them than a seeder serves at once.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use anabranch_ppspp::link::Link;
use anabranch_ppspp::wire::{
    Addressing, ChannelId, Codec, Dialect, Message, Messages, Opening, SwarmParams, split_channel,
};
use common::{Running, anabranch, noise, run};

const CHUNK_LEN: usize = 1024;
/// How long a datagram is waited for: a test that waits longer fails.
const PATIENCE: Duration = Duration::from_secs(30);

fn share(dir: &Path, arguments: &[&str]) -> (Running, Link) {
    let mut command = anabranch(dir);
    command.args(["share", "--ppspp", "--listen", "127.0.0.1:0", "--json"]).args(arguments);
    let mut running = Running::start(&mut command);
    let link = running.event("started")["link"].as_str().unwrap().parse().unwrap();
    (running, link)
}

/// A swarm as before, whose chunks are named in this way.
fn named_by(link: &Link, addressing: Addressing) -> Link {
    let own = &link.params;
    let params = SwarmParams::new(own.swarm_id(), own.integrity(), own.hash(), addressing, own.chunk_len()).unwrap();
    Link { params, ..link.clone() }
}

/// A peer that says and hears what a test has it say and hear.
struct Peer {
    socket: UdpSocket,
    codec: Codec,
    to: SocketAddr,
    theirs: ChannelId,
}

impl Peer {
    const CHANNEL: ChannelId = 7;

    /// Opens a channel, and names theirs.
    fn open(link: &Link) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let to = link.peers[0].parse().unwrap();
        let mut datagram = vec![0; 4];
        let handshake = link.params.handshake(Dialect::Rfc7574, Self::CHANNEL, true, None);
        Opening::encode(Dialect::Rfc7574, &handshake, &mut datagram);
        socket.send_to(&datagram, to).unwrap();
        let codec = link.params.codec(Dialect::Rfc7574);
        let mut peer = Self { socket, codec, to, theirs: 0 };
        let answer = peer.datagram();
        let answer = Opening::parse(&answer).expect("a handshake");
        assert_eq!(answer.handshake.addressing, Some(codec.addressing), "it is answered in its own way");
        peer.theirs = answer.handshake.channel;
        peer.say(&[]);
        peer
    }

    fn say(&self, messages: &[Message<'_>]) {
        let mut datagram = self.theirs.to_be_bytes().to_vec();
        messages.iter().for_each(|message| message.encode(&self.codec, &mut datagram).unwrap());
        self.socket.send_to(&datagram, self.to).unwrap();
    }

    /// The messages of the next datagram.
    fn datagram(&self) -> Vec<u8> {
        let mut datagram = [0; 4096];
        let (len, _) = self.socket.recv_from(&mut datagram).expect("something comes");
        let (channel, messages) = split_channel(&datagram[..len]).unwrap();
        assert_eq!(channel, Self::CHANNEL);
        messages.to_vec()
    }

    /// Hears until it heard this.
    fn hear(&self, mut is_it: impl FnMut(&Message<'_>) -> bool) {
        loop {
            let datagram = self.datagram();
            for message in Messages::new(self.codec, &datagram) {
                if is_it(&message.expect("it makes sense")) {
                    return;
                }
            }
        }
    }

    /// Fetches all chunks, one after the other, and answers them.
    fn fetch(&self, chunks: u64) -> Vec<u8> {
        let mut all: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        while all.len() < chunks as usize {
            let next = all.len() as u64;
            self.say(&[Message::Request(next..next + 1)]);
            self.hear(|message| match message {
                Message::Data { chunk, sent_us, payload } => {
                    let delay_us = 1000_u64.wrapping_sub(*sent_us);
                    self.say(&[Message::Ack { chunks: *chunk..chunk + 1, delay_us }]);
                    all.insert(*chunk, payload.to_vec());
                    *chunk == next
                }
                _ => false,
            });
        }
        all.into_values().flatten().collect()
    }
}

#[test]
fn whoever_names_chunks_in_another_way_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(300_001, 1);
    fs::write(dir.path().join("film"), &film).unwrap();
    let (_sharer, link) = share(dir.path(), &["film"]);
    for addressing in Addressing::ALL {
        let link = named_by(&link, addressing);
        let peer = Peer::open(&link);
        assert!(peer.fetch(film.len().div_ceil(CHUNK_LEN) as u64) == film, "{addressing:?}");
        // And two of ours.
        let out = format!("out-{addressing:?}");
        let (code, _, stderr) = run(dir.path(), &["get", &link.to_string(), "--listen", "127.0.0.1:0", "-o", &out]);
        assert_eq!(code, 0, "{addressing:?}: {stderr}");
        assert!(fs::read(dir.path().join(out).join("film")).unwrap() == film, "{addressing:?}");
    }
}

#[test]
fn as_many_are_served_at_once_as_there_are_slots() {
    let dir = tempfile::tempdir().unwrap();
    let film = noise(20 * CHUNK_LEN, 1);
    fs::write(dir.path().join("film"), &film).unwrap();
    let (_sharer, link) = share(dir.path(), &["film", "--upload-slots", "1"]);
    let first = Peer::open(&link);
    first.say(&[Message::Request(0..1)]);
    first.hear(|message| matches!(message, Message::Data { chunk: 0, .. }));
    let others = [Peer::open(&link), Peer::open(&link)];
    for other in &others {
        other.hear(|message| *message == Message::Choke);
        // It asks all the same, and is told again.
        std::thread::sleep(Duration::from_millis(600));
        other.say(&[Message::Request(0..1)]);
        other.hear(|message| {
            assert!(!matches!(message, Message::Data { .. }), "it is served without a slot");
            *message == Message::Choke
        });
    }
    assert!(first.fetch(20) == film);
    // Who has everything needs no slot: one of the others has it, and then the other.
    let mut waiting = others.iter().collect::<Vec<_>>();
    while !waiting.is_empty() {
        for peer in &waiting {
            peer.socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        }
        let mut datagram = [0; 4096];
        let is_told = |peer: &&Peer| {
            let Ok((len, _)) = peer.socket.recv_from(&mut datagram) else { return false };
            let (_, messages) = split_channel(&datagram[..len]).unwrap();
            Messages::new(peer.codec, messages).any(|message| message == Ok(Message::Unchoke))
        };
        let Some(at) = waiting.iter().position(is_told) else { continue };
        let peer = waiting.swap_remove(at);
        peer.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(peer.fetch(20) == film);
    }
}
