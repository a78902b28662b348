//! One torrent and peers whose every message the test writes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_content::bitfield::Bitfield;
use anabranch_paths::{Endpoint, Interface, IsdAs, PathId};

use super::sim::Content;
use crate::ConnId;
use crate::extension::{Extension, ExtensionHandshake, ExtensionIds, OwnName, SeenAs};
use crate::handshake::{Handshake, Reserved};
use crate::torrent::{Event, Link, PeerMisbehaved, PieceOutcome, Refused, Torrent, TorrentConfig};
use crate::wire::{self, BlockRange, Limits, Message, Receiver};

pub(super) fn path_id(number: u16) -> PathId {
    let isd_as = IsdAs::new(1, 110).unwrap();
    PathId::of_scion(isd_as, isd_as, &[Interface { isd_as, id: number }])
}

/// Our own address, and the key of our node.
pub(super) const OURS: &str = "192.0.2.200";
pub(super) const OUR_KEY: [u8; 32] = [9; 32];

/// The name that the peer with this secret has here.
pub(super) fn name(name: u8) -> OwnName {
    OwnName::new(&[name; 32], &[0; 20], &[0; 20]).unwrap()
}

/// Says a name.
pub(super) fn claim(lone: &mut Lone, id: ConnId, of: u8) {
    lone.receive_handshake(id, |hello| hello.identity = name(of).identity());
}

/// What we are to who is at the end of a connection.
pub(super) fn us(lone: &Lone, id: ConnId) -> SeenAs {
    let by_host = SeenAs::Host(OURS.parse().unwrap());
    lone.torrent.conns[&id].key.map_or(by_host, |_| SeenAs::Key(OUR_KEY))
}

/// Proves to be `by`, as one who sees `us`.
pub(super) fn prove(lone: &mut Lone, id: ConnId, by: u8, us: SeenAs) {
    let Some(challenge) = lone.torrent.conns[&id].challenge else { return };
    lone.receive_handshake(id, |hello| hello.proof = name(by).prove(challenge, us));
}

/// Says a name and proves it.
pub(super) fn call_itself(lone: &mut Lone, id: ConnId, name: u8) {
    claim(lone, id, name);
    let us = us(lone, id);
    prove(lone, id, name, us);
}

pub(super) struct Lone {
    pub torrent: Torrent,
    pub now: Instant,
    peers: u8,
}

impl Lone {
    pub(super) fn magnet(content: &Arc<Content>) -> Self {
        let now = Instant::now();
        let config = TorrentConfig { peer_id: [0; 20], listen_port: Some(6881), ..TorrentConfig::default() };
        let mut torrent = Torrent::new(content.info.hashes, config, now);
        torrent.set_identity_secret([5; 32]);
        torrent.set_node_key(OUR_KEY);
        Self { torrent, now, peers: 0 }
    }

    pub(super) fn with(content: &Arc<Content>, have: Bitfield) -> Self {
        let mut lone = Self::magnet(content);
        lone.torrent.set_content(Arc::clone(&content.info), content.layers.clone(), have, Vec::new(), lone.now);
        lone
    }

    pub(super) fn leecher(content: &Arc<Content>) -> Self {
        Self::with(content, Bitfield::new(content.pieces()))
    }

    pub(super) fn seed(content: &Arc<Content>) -> Self {
        let mut lone = Self::with(content, Bitfield::full(content.pieces()));
        assert_eq!(lone.torrent.poll_event(), Some(Event::Finished));
        lone
    }

    pub(super) fn try_join(&mut self, address: &str, id: u8, reserved: Reserved) -> Result<ConnId, Refused> {
        let hello = Handshake { reserved, info_hash: [0; 20], peer_id: [id; 20] };
        let address: Endpoint = address.parse().unwrap();
        self.torrent.connected(address, true, &hello, self.now)
    }

    /// A connection of the peer with this number, from this host, over this path, by a proven key if any.
    pub(super) fn join_over(
        &mut self,
        peer: u8,
        host: &str,
        path: u16,
        key: Option<[u8; 32]>,
    ) -> Result<ConnId, Refused> {
        let hello = Handshake { reserved: Reserved::OURS, info_hash: [0; 20], peer_id: [peer; 20] };
        let address = format!("{host}:6881").parse().unwrap();
        let local = Some(OURS.parse().unwrap());
        let link =
            Link { address, outgoing: true, path: Some(path_id(path)), key, local, over_utp: false, is_near: false };
        self.torrent.connected_over(link, &hello, self.now)
    }

    /// A peer with all extensions.
    pub(super) fn join(&mut self) -> ConnId {
        self.join_as(Reserved::OURS.with_v2())
    }

    pub(super) fn join_as(&mut self, reserved: Reserved) -> ConnId {
        self.peers += 1;
        let peer = self.peers;
        self.try_join(&format!("10.0.{peer}.1:6881"), peer, reserved).unwrap()
    }

    /// A peer that has everything and serves us.
    pub(super) fn join_seed(&mut self) -> ConnId {
        let id = self.join();
        self.say(id, Message::HaveAll);
        self.say(id, Message::Unchoke);
        id
    }

    pub(super) fn receive(&mut self, id: ConnId, message: Message<'_>) -> Result<(), PeerMisbehaved> {
        self.torrent.on_message(id, message, self.now)
    }

    pub(super) fn say(&mut self, id: ConnId, message: Message<'_>) {
        self.receive(id, message).unwrap();
    }

    /// The extension handshake of a peer that speaks all we do.
    pub(super) fn receive_handshake(&mut self, id: ConnId, change: impl FnOnce(&mut ExtensionHandshake)) {
        let mut hello = ExtensionHandshake { ids: ExtensionIds::OURS, ..ExtensionHandshake::default() };
        change(&mut hello);
        self.say(id, Message::Extended { id: 0, payload: &hello.encode() });
    }

    pub(super) fn extended(&mut self, id: ConnId, extension: Extension, payload: &[u8]) -> Result<(), PeerMisbehaved> {
        self.receive(id, Message::Extended { id: extension.our_id(), payload })
    }

    /// What was sent to a peer since the last time, as text.
    pub(super) fn sent(&mut self, id: ConnId) -> Vec<String> {
        let mut bytes = Vec::new();
        self.torrent.take_output(id, &mut bytes, self.now);
        while self.torrent.take_answer(id, &mut bytes, self.now) {}
        let (mut receiver, mut input, mut texts) = (Receiver::default(), &bytes[..], Vec::new());
        while let Some(event) = receiver.next(&mut input, &Limits::default()).unwrap() {
            let wire::Event::Message(message) = event else { panic!("{event:?}") };
            texts.push(format!("{message:?}"));
        }
        texts
    }

    /// The extended messages sent under this number.
    pub(super) fn sent_extended(&mut self, id: ConnId, number: u8) -> Vec<Vec<u8>> {
        let mut bytes = Vec::new();
        self.torrent.take_output(id, &mut bytes, self.now);
        while self.torrent.take_answer(id, &mut bytes, self.now) {}
        let (mut receiver, mut input, mut payloads) = (Receiver::default(), &bytes[..], Vec::new());
        while let Some(event) = receiver.next(&mut input, &Limits::default()).unwrap() {
            if let wire::Event::Message(Message::Extended { id, payload }) = event
                && id == number
            {
                payloads.push(payload.to_vec());
            }
        }
        payloads
    }

    /// The requests that are under way over a connection.
    pub(super) fn requests(&self, id: ConnId) -> Vec<BlockRange> {
        self.torrent.expected(id).collect()
    }

    /// A block arrives whole, right and at once. Answers whether it counted.
    pub(super) fn deliver(&mut self, id: ConnId, range: BlockRange) -> bool {
        let arriving = self.torrent.block_started(id, range, self.now).unwrap();
        self.torrent.payload_received(id, u64::from(range.len), self.now);
        let wanted = arriving.is_wanted();
        let kept = self.torrent.block_finished(arriving, self.now, |_| wanted);
        self.torrent.fill_requests(id, self.now);
        kept
    }

    pub(super) fn good(&mut self, piece: u32) {
        self.torrent.piece_verified(piece, PieceOutcome::Good { digests: Vec::new() }, self.now);
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.torrent.on_time(self.now);
    }

    pub(super) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.torrent.poll_event()).collect()
    }

    pub(super) fn closed(&mut self) -> Vec<ConnId> {
        let closed = |event| if let Event::Close { conn, .. } = event { Some(conn) } else { None };
        self.events().into_iter().filter_map(closed).collect()
    }
}
