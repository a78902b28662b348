//! Further addresses: ours, told to peers of our kind, and theirs (`ab_addr`, see [`crate::reach::is_for`]); and at which uplink a
//! connection is (`ab_uplink`).
//!
//! Who said `ab_id` can be met at several addresses and still be known as one peer; so these, and no others, are told where else we
//! listen. Every connection carries a list of its own, cut to what concerns its other end.
//!
//! Addresses do not show which of them are one uplink's: IPv4 and IPv6 mostly are. Each end says of every connection which of
//! its uplinks that is at, by a number that means nothing but "the same".

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anabranch_paths::Endpoint;

use super::{ConnId, PathEvent, Torrent};
use crate::PeerKey;
use crate::extension::{ADDRESSES_MAX, ExtensionHandshake, HANDSHAKE_ID};
use crate::reach::is_for;
use crate::wire::Message;

/// Between two lists that we send over one connection: uplinks flap, and nobody needs to hear all of it.
pub(super) const ADDRESSES_INTERVAL: Duration = Duration::from_secs(10);
/// Between two lists that we heed; less than [`ADDRESSES_INTERVAL`], as the other's clock is not ours. A peer cannot have more
/// dialled than [`ADDRESSES_MAX`] addresses in this time.
pub(super) const ADDRESSES_RECEIVE_INTERVAL: Duration = Duration::from_secs(5);

/// What was said of addresses over one connection, from when its peer said `ab_id`.
#[derive(Debug, Default)]
pub(super) struct AddressTalk {
    /// The state of ours that was told: see [`OwnAddresses::version`].
    told_version: u32,
    told: Vec<Endpoint>,
    told_uplink: Option<u32>,
    told_at: Option<Instant>,
    heard: Vec<Endpoint>,
    heard_at: Option<Instant>,
    /// The first that was said: a connection stays where it is.
    uplink: Option<u32>,
}

/// Where we listen, and which addresses are one uplink's.
#[derive(Debug, Default)]
pub(super) struct OwnAddresses {
    list: Vec<Endpoint>,
    uplinks: Vec<(IpAddr, u32)>,
    /// Counts the changes.
    version: u32,
}

impl Torrent {
    /// Says at which addresses we listen, all of them, as peers of our kind may dial them; nothing where there is but one. And all
    /// addresses of our uplinks, each with the number of its uplink. Both may change at any time.
    pub fn set_own_addresses(&mut self, addresses: Vec<Endpoint>, uplinks: Vec<(IpAddr, u32)>, now: Instant) {
        let own = &mut self.wishes.own_addresses;
        if own.list != addresses || own.uplinks != uplinks {
            (own.list, own.uplinks) = (addresses, uplinks);
            own.version = own.version.wrapping_add(1);
            self.conn_ids().into_iter().for_each(|id| self.tell_addresses(id, now));
        }
    }

    /// Where `peer` says that it listens, beside where it was met; at most [`ADDRESSES_MAX`] over each of its connections.
    pub fn peer_addresses(&self, peer: PeerKey) -> Vec<Endpoint> {
        let mut all: Vec<Endpoint> = Vec::new();
        for talk in self.live_paths(peer).filter_map(|(_, conn)| conn.addresses.as_ref()) {
            for address in &talk.heard {
                if !all.contains(address) {
                    all.push(*address);
                }
            }
        }
        all
    }

    /// The number that the other end of `id` has for its uplink which the connection is at.
    pub fn peer_uplink(&self, id: ConnId) -> Option<u32> {
        self.conns.get(&id)?.addresses.as_ref()?.uplink
    }

    /// An extension handshake came over `id`.
    pub(super) fn talk_of_addresses(&mut self, id: ConnId, handshake: &ExtensionHandshake, now: Instant) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if handshake.identity.is_some() {
            conn.addresses.get_or_insert_default();
        }
        let (peer, met_at) = (conn.peer, conn.address);
        let scion = self.config.scion_port.is_some();
        let mut is_news = false;
        if let (Some(talk), Some(addresses)) = (&mut conn.addresses, &handshake.addresses)
            && talk.heard_at.is_none_or(|at| now >= at + ADDRESSES_RECEIVE_INTERVAL)
        {
            let fits = |address: &&Endpoint| is_for(address, &met_at) && (scion || address.as_scion().is_none());
            let heard: Vec<Endpoint> = addresses.iter().filter(fits).take(ADDRESSES_MAX).copied().collect();
            talk.heard_at = Some(now);
            is_news = talk.heard != heard;
            talk.heard = heard;
        }
        if let (Some(talk), Some(uplink)) = (&mut conn.addresses, handshake.uplink)
            && talk.uplink.is_none()
        {
            talk.uplink = Some(uplink);
            is_news = true;
        }
        if is_news {
            self.push_path_event(PathEvent::Addresses { peer });
        }
        self.tell_addresses(id, now);
    }

    /// Says what there is to say over `id`, at its time.
    pub(super) fn tell_addresses(&mut self, id: ConnId, now: Instant) {
        let (Some(conn), own) = (self.conns.get_mut(&id), &self.wishes.own_addresses) else { return };
        let Some(talk) = conn.addresses.as_mut().filter(|talk| talk.told_version != own.version) else { return };
        if talk.told_at.is_some_and(|at| now < at + ADDRESSES_INTERVAL) {
            return;
        }
        talk.told_version = own.version;
        let met_at = conn.address;
        let scion = conn.scion_port.is_some();
        let fits = |address: &&Endpoint| is_for(address, &met_at) && (scion || address.as_scion().is_none());
        let addresses: Vec<Endpoint> = own.list.iter().filter(fits).take(ADDRESSES_MAX).copied().collect();
        let local = conn.local.filter(|_| met_at.as_ip().is_some());
        let uplink = own.uplinks.iter().find(|(ip, _)| Some(*ip) == local).map(|(_, number)| *number);
        // BEP 10: a later handshake says what changed and leaves the rest.
        let handshake = ExtensionHandshake {
            addresses: (talk.told != addresses).then(|| addresses.clone()),
            uplink: uplink.filter(|_| talk.told_uplink != uplink),
            ..ExtensionHandshake::default()
        };
        if handshake.addresses.is_none() && handshake.uplink.is_none() {
            return;
        }
        (talk.told, talk.told_uplink, talk.told_at) = (addresses, uplink, Some(now));
        Message::Extended { id: HANDSHAKE_ID, payload: &handshake.encode() }.encode(&mut conn.out);
        self.touch(id);
    }
}
