//! Address-level peers: what credit and [bans](super::bans) belong to, however many connections there are.

use std::time::Instant;

use anabranch_paths::{Endpoint, PathId};

use super::conn::Conn;
use super::wishes::ThirdPartyPaths;
use super::{ConnId, Link, PATHS_PER_PEER_MAX, Torrent};
use crate::PeerKey;
use crate::extension::{
    Challenge, ExtensionHandshake, HANDSHAKE_ID, IdentityProof, OwnName, PathTalk, PeerIdentity, SeenAs,
};
use crate::wire::Message;

/// Address-level peers remembered for their credit, and connections for blame; those that are gone are forgotten first.
/// More than [`super::CONNECTIONS_MAX`], so that none that is there has to be forgotten.
pub(super) const PEERS_MAX: usize = 8192;

/// An address-level peer.
pub(super) struct Peer {
    pub peer_id: [u8; 20],
    pub address: Endpoint,
    pub conns: Vec<ConnId>,
    /// Payload sent to this peer over all its connections.
    pub uploaded_bytes: u64,
    /// What it sent of pieces that passed.
    pub good_bytes: u64,
    /// The key that its transport proved.
    pub key: Option<[u8; 32]>,
    /// What it calls itself, to us alone, and has proven over one of its connections.
    pub identity: Option<PeerIdentity>,
    /// What is said of paths, and over which connection last.
    pub talk: PathTalk,
    pub talked_over: Option<ConnId>,
    /// What it told of paths that third parties use.
    pub told: ThirdPartyPaths,
}

impl Torrent {
    /// The address-level peer behind a link: the same for all its connections. It is known by its key, or else by address and
    /// id together, as an id alone is anybody's to copy; [`Torrent::on_identity_proof`] may find out more. Who has a key and who
    /// shows none are never one.
    pub(super) fn peer_key(&mut self, link: &Link, peer_id: [u8; 20]) -> PeerKey {
        let address = link.address;
        let same = |peer: &Peer| match link.key {
            Some(_) => peer.key == link.key,
            None => peer.key.is_none() && peer.peer_id == peer_id && is_same_host(&peer.address, &address),
        };
        let known = self.peers.iter().find(|(_, peer)| same(peer)).map(|(key, _)| *key);
        if let Some(key) = known {
            return key;
        }
        if self.peers.len() >= PEERS_MAX
            && let Some(idle) = self.peers.iter().find(|(_, peer)| peer.conns.is_empty()).map(|(key, _)| *key)
        {
            self.peers.remove(&idle);
        }
        let key = PeerKey(self.next_peer);
        self.next_peer += 1;
        let peer = Peer {
            peer_id,
            address,
            conns: Vec::new(),
            uploaded_bytes: 0,
            good_bytes: 0,
            key: link.key,
            identity: None,
            talk: PathTalk::default(),
            talked_over: None,
            told: ThirdPartyPaths::default(),
        };
        self.peers.insert(key, peer);
        key
    }

    /// The connection that `peer` has over `path` and that is not about to end, and whether we opened it.
    pub(super) fn live_connection(&self, peer: PeerKey, path: Option<PathId>) -> Option<(ConnId, bool)> {
        let same = self.live_paths(peer).find(|(_, conn)| conn.path == path);
        same.map(|(id, conn)| (id, conn.outgoing))
    }

    /// The connections of `peer` that are not about to end, oldest first.
    pub(super) fn live_paths(&self, peer: PeerKey) -> impl Iterator<Item = (ConnId, &Conn)> {
        let conns = self.peers.get(&peer).map_or(&[][..], |peer| &peer.conns);
        conns.iter().filter_map(|id| Some((*id, self.conns.get(id)?))).filter(|(_, conn)| !conn.closing)
    }

    /// The other connections of the peer at the end of `id`; no memory is claimed where there are none.
    pub(super) fn siblings(&self, id: ConnId) -> Vec<ConnId> {
        let peer = self.conns.get(&id).and_then(|conn| self.peers.get(&conn.peer));
        peer.map_or(Vec::new(), |peer| peer.conns.iter().copied().filter(|other| *other != id).collect())
    }

    /// `id` is one of `peer`'s connections from now on.
    pub(super) fn join_peer(&mut self, id: ConnId, peer: PeerKey, now: Instant) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let suggests = entry.conns.iter().any(|other| self.conns.get(other).is_some_and(|other| other.suggests));
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.suggests |= suggests;
        }
        entry.conns.push(id);
        let parole = |content: &super::Content| {
            let picker = content.picker.as_ref();
            picker.is_some_and(|picker| entry.conns.iter().any(|conn| picker.is_on_parole(*conn)))
        };
        if self.content.as_ref().is_some_and(parole) {
            self.set_parole(&[peer], true);
        }
        self.count_pieces_of(peer, now);
    }

    /// `id`, which is off the books already, is no connection of its peer any more.
    pub(super) fn leave_peer(&mut self, id: ConnId, conn: &Conn, now: Instant) {
        if let Some(peer) = self.peers.get_mut(&conn.peer) {
            peer.conns.retain(|other| *other != id);
            if peer.conns.is_empty() {
                self.end_path_talk(conn.peer);
                self.stop_suggesting(conn.peer);
            }
        }
        if conn.counted {
            self.seeds -= u32::from(conn.is_seed());
            self.discount_pieces(conn);
            self.count_pieces_of(conn.peer, now);
        }
        self.forget_for_super_seed(conn.peer);
        self.forget_suggested(conn.peer);
    }

    fn discount_pieces(&mut self, conn: &Conn) {
        if let (Some(bits), Some(super_seed)) = (conn.bits(), self.super_seed()) {
            super_seed.uncount(conn.peer, bits);
        }
        if let (Some(bits), Some(tally), Some(content)) = (conn.bits(), conn.tally, &mut self.content)
            && let Some(picker) = &mut content.picker
        {
            picker.peer_left(bits, tally);
        }
    }

    /// Lets one connection of `peer` stand for the pieces it has, unless one does: a peer with many paths makes no piece less
    /// rare than it is.
    fn count_pieces_of(&mut self, peer: PeerKey, now: Instant) {
        let conns = self.peers.get(&peer).map_or(&[][..], |peer| &peer.conns);
        let counted = |id: &ConnId| self.conns.get(id).is_some_and(|conn| conn.counted);
        if conns.iter().any(counted) {
            return;
        }
        let Some(first) = conns.first().copied() else { return };
        let Some(conn) = self.conns.get_mut(&first) else { return };
        conn.counted = true;
        self.seeds += u32::from(conn.is_seed());
        if let (Some(bits), Some(content)) = (conn.bits(), &mut self.content)
            && let Some(picker) = &mut content.picker
        {
            conn.tally = Some(picker.peer_joined(bits));
        }
        self.count_for_super_seed(first, now);
    }

    /// What we call ourselves to the peer at the end of `id`.
    pub(super) fn own_name(&self, id: ConnId) -> Option<OwnName> {
        let peer = self.conns.get(&id).and_then(|conn| self.peers.get(&conn.peer))?;
        let info_hash = self.hashes.wire_hashes().next()?;
        OwnName::new(self.identity_secret.as_ref()?, &info_hash, &peer.peer_id)
    }

    /// A peer said what it calls itself. Nothing follows from it until it is proven, except for who claims a banned name.
    pub(super) fn on_identity(&mut self, id: ConnId, identity: PeerIdentity, now: Instant) {
        // Once given, a name stays.
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.claimed.is_none()) else { return };
        conn.claimed = Some(identity);
        if let Some(reason) = self.ban_reason_of_name(identity, now) {
            self.close(id, &reason);
        }
    }

    /// A peer asked us to prove our name to it: once a connection, as a signature costs more than asking for it.
    pub(super) fn prove_identity(&mut self, id: ConnId, challenge: Challenge) {
        let name = self.own_name(id);
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| !conn.proved && conn.extended) else { return };
        let other = conn.key.map_or(SeenAs::Host(conn.address.ip()), SeenAs::Key);
        let Some(proof) = name.and_then(|name| name.prove(challenge, other)) else { return };
        conn.proved = true;
        let handshake = ExtensionHandshake { proof: Some(proof), ..ExtensionHandshake::default() };
        Message::Extended { id: HANDSHAKE_ID, payload: &handshake.encode() }.encode(&mut conn.out);
        self.touch(id);
    }

    /// A peer answered our challenge, once. Where the answer is right, all connections that proved the same name are one peer's.
    pub(super) fn on_identity_proof(&mut self, id: ConnId, proof: &IdentityProof, now: Instant) {
        let node_key = self.node_key;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let us = if conn.key.is_some() { node_key.map(SeenAs::Key) } else { conn.local.map(SeenAs::Host) };
        let (Some(identity), Some(challenge), Some(us)) = (conn.claimed, conn.challenge.take(), us) else { return };
        let key = conn.peer;
        if !identity.is_proven_by(proof, challenge, us) {
            // A NAT between us looks the same: the connection is good, its name is not.
            return;
        }
        let Some(own) = self.peers.get_mut(&key).filter(|own| own.identity.is_none()) else { return };
        own.identity = Some(identity);
        let (peer_id, proven) = (own.peer_id, own.key);
        let same = |peer: &Peer| {
            let other = peer.key.is_some() && proven.is_some() && peer.key != proven;
            peer.identity == Some(identity) && peer.peer_id == peer_id && !other
        };
        let first = self.peers.iter().find(|(other, peer)| **other != key && same(peer)).map(|(other, _)| *other);
        if let Some(first) = first {
            self.merge_peers(key, first, now);
        }
    }

    /// `from` turned out to be `into`, over other addresses.
    fn merge_peers(&mut self, from: PeerKey, into: PeerKey, now: Instant) {
        let Some(gone) = self.peers.remove(&from) else { return };
        if let Some(peer) = self.peers.get_mut(&into) {
            peer.uploaded_bytes += gone.uploaded_bytes;
            peer.good_bytes += gone.good_bytes;
            peer.key = peer.key.or(gone.key);
        }
        self.origins.values_mut().filter(|peer| **peer == from).for_each(|peer| *peer = into);
        if let Some(content) = &mut self.content {
            content.blame.merge(from, into);
        }
        self.choker.merge(from, into);
        if let Some(super_seed) = self.super_seed() {
            super_seed.merge(from, into);
        }
        self.stop_suggesting(from);
        self.forget_suggested(from);
        // Nothing was said on the new connection before it said whose it is.
        self.wishes.events.retain(|event| event.peer() != from);
        for id in gone.conns {
            let Some(mut conn) = self.conns.remove(&id) else { continue };
            conn.peer = into;
            if std::mem::take(&mut conn.counted) {
                self.seeds -= u32::from(conn.is_seed());
                self.discount_pieces(&conn);
                conn.tally = None;
            }
            self.conns.insert(id, conn);
            let full = self.live_paths(into).count() >= PATHS_PER_PEER_MAX;
            self.join_peer(id, into, now);
            if full {
                self.close(id, "its peer has too many connections");
            }
        }
        // Where the peer has a slot, it opens all its paths.
        let waits = |(id, conn): (ConnId, &Conn)| (conn.interested_in_us && conn.choking).then_some(id);
        let waiting: Vec<ConnId> = self.live_paths(into).filter_map(waits).collect();
        waiting.into_iter().for_each(|id| self.on_interested(id, now));
    }

    /// Remembers whose connection `id` is, beyond its end: blame may come later.
    pub(super) fn note_origin(&mut self, id: ConnId, peer: PeerKey) {
        self.origins.insert(id, peer);
        if self.origins.len() > PEERS_MAX
            && let Some(gone) = self.origins.keys().copied().find(|id| !self.conns.contains_key(id))
        {
            self.origins.remove(&gone);
        }
    }
}

/// Whether two addresses differ in nothing but the port. SCION hosts of two ASes may be numbered alike and are two.
pub(super) fn is_same_host(one: &Endpoint, other: &Endpoint) -> bool {
    let isd_as = |endpoint: &Endpoint| endpoint.as_scion().map(|address| address.isd_as);
    one.ip() == other.ip() && isd_as(one) == isd_as(other)
}
