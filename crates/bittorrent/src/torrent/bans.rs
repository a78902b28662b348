//! Whom a torrent does not deal with again, or not for a while.
//!
//! Who floods, speaks no BitTorrent or lies about hashes does so on purpose, and is banned. Wrong data may be an accident: a
//! file that is edited in the instant in which it is sent. So the first fault of who has sent more than a piece that was right
//! costs it some [seconds](SUSPENSION), and the next one a ban; who never sent anything right is banned at once.
//!
//! A liar gains little by it: it has to send more than a piece first, and then spoils what it could have spoilt anyway a second
//! time. There is one such chance a host, under whatever names it comes; on the loopback, one a peer.

use std::time::{Duration, Instant};

use anabranch_paths::{Endpoint, Host};

use super::peers::{Peer, is_same_host};
use super::{ConnId, Event, Link, PeerMisbehaved, Refused, Torrent};
use crate::PeerKey;
use crate::extension::PeerIdentity;

/// Banned peers from one host (of IPv6: from one /64) after which the host itself is refused. Loopback is exempt: it is one host's many programs.
pub(super) const BANS_PER_ADDRESS: u32 = 3;
/// Bans remembered; the oldest are forgotten first.
pub(super) const BANS_MAX: usize = 4096;
/// How long a peer is suspended: a sharer has looked at its files by then, and who fetches does not take it for lost yet.
pub const SUSPENSION: Duration = Duration::from_secs(10);

/// Who is not dealt with again, or not for a while.
pub(super) struct Ban {
    address: Endpoint,
    peer_id: [u8; 20],
    key: Option<[u8; 32]>,
    identity: Option<PeerIdentity>,
    reason: String,
    /// The end of a suspension. It stays on record.
    until: Option<Instant>,
}

impl Ban {
    fn holds(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    fn refusal(&self) -> Refused {
        let reason = self.reason.clone();
        if self.until.is_some() { Refused::Suspended(reason) } else { Refused::Banned(reason) }
    }

    /// Whether it is of this peer, or of another one of its host.
    fn concerns(&self, peer: &Peer) -> bool {
        let host = Host::of(&peer.address);
        let same = self.peer_id == peer.peer_id && is_same_host(&self.address, &peer.address);
        let shows =
            self.key.is_some() && self.key == peer.key || self.identity.is_some() && self.identity == peer.identity;
        same || shows || self.address == peer.address || Host::of(&self.address) == host && !host.is_loopback()
    }
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

    /// A peer has been proven to have sent wrong data for `piece`.
    pub(super) fn convict(&mut self, key: PeerKey, piece: u32, now: Instant) {
        let piece_length =
            self.content.as_ref().map_or(u64::MAX, |content| content.info.geometry.piece_length().into());
        let Some(peer) = self.peers.get(&key) else { return };
        let is_pardonable = peer.good_bytes > piece_length && !self.bans.iter().any(|ban| ban.concerns(peer));
        let until = is_pardonable.then_some(now + SUSPENSION);
        self.exclude(key, &format!("it sent wrong data for piece {piece}"), until);
        if is_pardonable {
            // What else it sent until now is of the same fault.
            self.origins.retain(|_, peer| *peer != key);
        }
    }

    pub(super) fn ban(&mut self, key: PeerKey, reason: &str) {
        self.exclude(key, reason, None);
    }

    fn exclude(&mut self, key: PeerKey, reason: &str, until: Option<Instant>) {
        let Some(peer) = self.peers.get(&key) else { return };
        let (address, peer_id, conns) = (peer.address, peer.peer_id, peer.conns.clone());
        let (proven, identity) = (peer.key, peer.identity);
        let same = |ban: &Ban| ban.address == address && ban.peer_id == peer_id;
        if self.bans.iter().any(|ban| same(ban) && ban.until.is_none()) {
            return;
        }
        self.bans.retain(|ban| !same(ban));
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
            self.bans.push_back(Ban { address, peer_id, key: proven, identity, reason: reason.to_owned(), until });
        }
        let reason_told = reason.to_owned();
        self.events.push_back(match until {
            None => Event::Banned { peer: key, address, reason: reason_told },
            Some(_) => Event::Suspended { peer: key, address, reason: reason_told },
        });
        conns.into_iter().for_each(|id| self.close(id, reason));
    }

    /// Why who comes over `link` under this id would not be dealt with, if it is so: it sent wrong data, or broke the protocol.
    pub fn refusal_of(&self, link: &Link, peer_id: &[u8; 20], now: Instant) -> Option<Refused> {
        self.refuse_banned(link, peer_id, now)
    }

    /// Why who comes over `link` under this id is not dealt with.
    pub(super) fn refuse_banned(&self, link: &Link, peer_id: &[u8; 20], now: Instant) -> Option<Refused> {
        let (mut from_address, address) = (0, link.address);
        let in_force = self.bans.iter().filter(|ban| ban.holds(now));
        if let Some(ban) = in_force.clone().find(|ban| link.key.is_some() && ban.key == link.key) {
            return Some(ban.refusal());
        }
        let host = Host::of(&address);
        for ban in in_force.filter(|ban| Host::of(&ban.address) == host) {
            if ban.address == address || ban.peer_id == *peer_id && is_same_host(&ban.address, &address) {
                return Some(ban.refusal());
            }
            from_address += 1;
        }
        (from_address >= BANS_PER_ADDRESS && !host.is_loopback())
            .then(|| Refused::Banned(format!("{from_address} peers at its address were banned")))
    }

    /// Why who proves, or claims, this name is not dealt with.
    pub(super) fn ban_reason_of_name(&self, identity: PeerIdentity, now: Instant) -> Option<String> {
        let mut in_force = self.bans.iter().filter(|ban| ban.holds(now));
        in_force.find(|ban| ban.identity == Some(identity)).map(|ban| ban.reason.clone())
    }
}
