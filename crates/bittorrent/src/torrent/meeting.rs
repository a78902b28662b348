//! Hole punching (BEP 55), in all three parts: who wants to meet a peer that cannot be called, who is to be met, and who brings both
//! together.
//!
//! A peer that another one named in peer exchange, with the flag that it takes part, is asked for at who named it
//! ([`Torrent::ask_to_meet`]), once calling it led nowhere. Who asks us is brought together with a peer of ours, each told of where we see
//! the other. Who is told to call somebody, on request or not, calls ([`Event::Meet`]) where whoever says so may name that
//! address at all (`crate::reach`), and not more often than [`MEETINGS_PER_MINUTE`]: it is one call over uTP, which asks for nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anabranch_paths::Endpoint;

use super::conn::Conn;
use super::{ConnId, Event, Torrent};
use crate::extension::{Extension, HolepunchError, HolepunchKind, HolepunchMessage};
use crate::reach::may_name_peer;

/// Peers that may be asked for, of all contents' peers that named them: the first stay.
pub(super) const MEETABLE_MAX: usize = 1024;
/// A peer is asked for again no sooner.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// What one connection may have us do: be told of somebody to call, or bring two together. A peer that joins asks for a few at once.
pub(super) const MEETINGS_PER_MINUTE: u32 = 30;
/// At once, after a rest.
pub(super) const MEETINGS_BURST: u32 = 16;

/// Who may be asked for whom.
#[derive(Debug, Default)]
pub(super) struct Meetings {
    /// By the address of who is to be met: who named it, and when it was asked last.
    known: BTreeMap<SocketAddr, (ConnId, Option<Instant>)>,
}

/// What one connection had us do lately.
#[derive(Debug)]
pub(super) struct Quota {
    left: u32,
    since: Instant,
}

impl Quota {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: MEETINGS_BURST, since: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        let each = Duration::from_secs(60) / MEETINGS_PER_MINUTE;
        let passed = now.saturating_duration_since(self.since).as_millis() / each.as_millis();
        let fresh = u32::try_from(passed).unwrap_or(u32::MAX);
        if self.left.saturating_add(fresh) >= MEETINGS_BURST {
            (self.left, self.since) = (MEETINGS_BURST, now);
        } else {
            self.left += fresh;
            self.since += each * fresh;
        }
        let may = self.left > 0;
        self.left -= u32::from(may);
        may
    }
}

impl Torrent {
    /// The peer at the end of `id` named this one, and says that it takes part.
    pub(super) fn may_meet(&mut self, id: ConnId, address: &Endpoint) {
        let (Some(address), known) = (address.as_ip(), &mut self.meetings.known) else { return };
        if known.len() < MEETABLE_MAX || known.contains_key(&address) {
            let asked = known.get(&address).and_then(|(_, asked)| *asked);
            known.insert(address, (id, asked));
        }
    }

    /// A connection is gone: nobody is asked for over it.
    pub(super) fn meets_nobody_over(&mut self, id: ConnId) {
        self.meetings.known.retain(|_, (by, _)| *by != id);
    }

    /// Calling `address` leads nowhere: who named it is asked to have it call us, if that is possible. Answers whether it was.
    pub fn ask_to_meet(&mut self, address: &Endpoint, now: Instant) -> bool {
        let Some(address) = address.as_ip().filter(|_| self.holds_meetings()) else { return false };
        let Some((by, asked)) = self.meetings.known.get_mut(&address) else { return false };
        if asked.is_some_and(|at| now < at + ASKED_AGAIN_AFTER) {
            return false;
        }
        *asked = Some(now);
        let by = *by;
        self.send_holepunch(by, HolepunchKind::Rendezvous, address)
    }

    /// BEP 27: what is private has nothing to do with strangers.
    fn holds_meetings(&self) -> bool {
        self.config.holepunch && self.known_info().is_none_or(|info| !info.private)
    }

    fn send_holepunch(&mut self, id: ConnId, kind: HolepunchKind, address: SocketAddr) -> bool {
        let takes_part = |conn: &Conn| !conn.closing && conn.extensions.get(Extension::Holepunch).is_some();
        let may = self.conns.get(&id).is_some_and(takes_part);
        if may {
            self.send_extension(id, Extension::Holepunch, &HolepunchMessage { kind, address }.encode());
        }
        may
    }

    pub(super) fn on_holepunch(&mut self, id: ConnId, message: HolepunchMessage, now: Instant) {
        let may = self.holds_meetings() && self.conns.get_mut(&id).is_some_and(|conn| conn.meetings.take(now));
        match message.kind {
            _ if !may => {}
            HolepunchKind::Rendezvous => {
                if let Err(error) = self.bring_together(id, message.address) {
                    self.send_holepunch(id, HolepunchKind::Error(error), message.address);
                }
            }
            HolepunchKind::Connect => self.meet(id, message.address),
            HolepunchKind::Error(_) => {
                // Whoever names it again may know better.
                self.meetings.known.remove(&message.address);
            }
        }
    }

    /// Somebody is to be called.
    fn meet(&mut self, by: ConnId, address: SocketAddr) {
        let Some(conn) = self.conns.get(&by) else { return };
        let is_there = |conn: &Conn| is_at(conn, address);
        let is_connected = self.conns.values().any(|conn| !conn.closing && is_there(conn));
        if may_name_peer(&conn.address, &address.into()) && !is_connected {
            self.events.push_back(Event::Meet { address });
        }
    }

    /// The peer at the end of `id` wants to meet the one at `target`.
    fn bring_together(&mut self, id: ConnId, target: SocketAddr) -> Result<(), HolepunchError> {
        let asking = self.conns.get(&id).ok_or(HolepunchError::NotConnected)?;
        let is_it = |(_, conn): &(&ConnId, &Conn)| !conn.closing && conn.peer != asking.peer && is_at(conn, target);
        let (other_id, other) = self.conns.iter().find(is_it).ok_or(HolepunchError::NotConnected)?;
        if other.extensions.get(Extension::Holepunch).is_none() {
            return Err(HolepunchError::NoSupport);
        }
        let (from, to) = (seen_at(asking).zip(seen_at(other))).ok_or(HolepunchError::NoSuchPeer)?;
        // As in peer exchange: private addresses are for private ones.
        if !may_name_peer(&other.address, &from.into()) || !may_name_peer(&asking.address, &to.into()) {
            return Err(HolepunchError::NoSuchPeer);
        }
        let other_id = *other_id;
        self.send_holepunch(other_id, HolepunchKind::Connect, from);
        self.send_holepunch(id, HolepunchKind::Connect, to);
        Ok(())
    }
}

/// Whether the peer is known at this address: that where it is met, or where it listens.
fn is_at(conn: &Conn, address: SocketAddr) -> bool {
    let address = Endpoint::from(address);
    conn.address == address || conn.listen_address() == Some(address)
}

/// Where a call over uTP reaches the peer, as seen from here: its NAT knows the port that it calls us from over uTP; else it is the one
/// that it says.
fn seen_at(conn: &Conn) -> Option<SocketAddr> {
    if conn.over_utp { conn.address.as_ip() } else { conn.listen_address()?.as_ip() }
}
