//! Address-level peers: what credit and bans belong to, however many connections there are.

use anabranch_paths::Endpoint;

use super::{ConnId, Event, PeerMisbehaved, Torrent};
use crate::PeerKey;

/// Banned peers from one address after which the address itself is refused. Loopback is exempt: it is one host's many programs.
pub(super) const BANS_PER_ADDRESS: u32 = 3;
/// Bans remembered; the oldest are forgotten first.
pub(super) const BANS_MAX: usize = 4096;
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
}

/// Who is not dealt with again.
pub(super) struct Ban {
    address: Endpoint,
    peer_id: [u8; 20],
    reason: String,
}

impl Torrent {
    /// The address-level peer behind an address and id: the same for all its connections.
    pub(super) fn peer_key(&mut self, address: Endpoint, peer_id: [u8; 20]) -> PeerKey {
        let known =
            self.peers.iter().find(|(_, peer)| peer.peer_id == peer_id && is_same_host(&peer.address, &address));
        if let Some((key, _)) = known {
            return *key;
        }
        if self.peers.len() >= PEERS_MAX
            && let Some(idle) = self.peers.iter().find(|(_, peer)| peer.conns.is_empty()).map(|(key, _)| *key)
        {
            self.peers.remove(&idle);
        }
        let key = PeerKey(self.next_peer);
        self.next_peer += 1;
        self.peers.insert(key, Peer { peer_id, address, conns: Vec::new(), uploaded_bytes: 0 });
        key
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

    /// A connection ended because its peer broke the protocol; whether the peer may come again follows from the fault.
    pub fn misbehaved(&mut self, id: ConnId, fault: &PeerMisbehaved) {
        if fault.deserves_ban()
            && let Some(peer) = self.conns.get(&id).map(|conn| conn.peer)
        {
            self.ban(peer, &fault.to_string());
        }
    }

    pub(super) fn ban(&mut self, key: PeerKey, reason: &str) {
        let Some(peer) = self.peers.get(&key) else { return };
        let (address, peer_id, conns) = (peer.address, peer.peer_id, peer.conns.clone());
        if self.bans.iter().any(|ban| ban.address == address && ban.peer_id == peer_id) {
            return;
        }
        if self.bans.len() >= BANS_MAX {
            self.bans.pop_front();
        }
        self.bans.push_back(Ban { address, peer_id, reason: reason.to_owned() });
        self.events.push_back(Event::Banned { peer: key, address, reason: reason.to_owned() });
        conns.into_iter().for_each(|id| self.close(id, reason));
    }

    pub(super) fn ban_reason(&self, address: Endpoint, peer_id: &[u8; 20]) -> Option<String> {
        let mut from_address = 0;
        for ban in self.bans.iter().filter(|ban| is_same_host(&ban.address, &address)) {
            if ban.address == address || ban.peer_id == *peer_id {
                return Some(ban.reason.clone());
            }
            from_address += 1;
        }
        (from_address >= BANS_PER_ADDRESS && !address.ip().is_loopback())
            .then(|| format!("{from_address} peers at its address were banned"))
    }
}

/// Whether two addresses differ in nothing but the port. SCION hosts of two ASes may be numbered alike and are two.
fn is_same_host(one: &Endpoint, other: &Endpoint) -> bool {
    let isd_as = |endpoint: &Endpoint| endpoint.as_scion().map(|address| address.isd_as);
    one.ip() == other.ip() && isd_as(one) == isd_as(other)
}
