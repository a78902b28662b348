//! Whom a torrent does not deal with again.

use anabranch_paths::{Endpoint, Host};

use super::peers::is_same_host;
use super::{ConnId, Event, Link, PeerMisbehaved, Torrent};
use crate::PeerKey;
use crate::extension::PeerIdentity;

/// Banned peers from one host (of IPv6: from one /64) after which the host itself is refused. Loopback is exempt: it is one host's many programs.
pub(super) const BANS_PER_ADDRESS: u32 = 3;
/// Bans remembered; the oldest are forgotten first.
pub(super) const BANS_MAX: usize = 4096;

/// Who is not dealt with again.
pub(super) struct Ban {
    address: Endpoint,
    peer_id: [u8; 20],
    key: Option<[u8; 32]>,
    identity: Option<PeerIdentity>,
    reason: String,
}

impl Torrent {
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
        let (proven, identity) = (peer.key, peer.identity);
        if self.bans.iter().any(|ban| ban.address == address && ban.peer_id == peer_id) {
            return;
        }
        // Every address that it has been at is refused.
        let mut addresses = vec![address];
        for also in conns.iter().filter_map(|id| self.conns.get(id)).map(|conn| conn.address) {
            if addresses.iter().all(|known| !is_same_host(known, &also)) {
                addresses.push(also);
            }
        }
        for address in addresses {
            if self.bans.len() >= BANS_MAX {
                self.bans.pop_front();
            }
            self.bans.push_back(Ban { address, peer_id, key: proven, identity, reason: reason.to_owned() });
        }
        self.events.push_back(Event::Banned { peer: key, address, reason: reason.to_owned() });
        conns.into_iter().for_each(|id| self.close(id, reason));
    }

    pub(super) fn ban_reason(&self, link: &Link, peer_id: &[u8; 20]) -> Option<String> {
        let (mut from_address, address) = (0, link.address);
        if let Some(ban) = self.bans.iter().find(|ban| link.key.is_some() && ban.key == link.key) {
            return Some(ban.reason.clone());
        }
        let host = Host::of(&address);
        for ban in self.bans.iter().filter(|ban| Host::of(&ban.address) == host) {
            if ban.address == address || ban.peer_id == *peer_id && is_same_host(&ban.address, &address) {
                return Some(ban.reason.clone());
            }
            from_address += 1;
        }
        (from_address >= BANS_PER_ADDRESS && !host.is_loopback())
            .then(|| format!("{from_address} peers at its address were banned"))
    }

    /// Why who proves, or claims, this name is not dealt with.
    pub(super) fn ban_reason_of_name(&self, identity: PeerIdentity) -> Option<String> {
        self.bans.iter().find(|ban| ban.identity == Some(identity)).map(|ban| ban.reason.clone())
    }
}
