//! Channels come and go, and what the core tells is carried out.

use std::rc::Rc;
use std::time::Instant;

use anabranch_bittorrent::reach::may_name_peer;
use anabranch_paths::manager::EndCause;
use anabranch_paths::{Endpoint, Host};
use anabranch_ppspp::swarm::{Allowance, Event as CoreEvent};

use super::Content;
use super::conn::Conn;
use super::{finish, open};
use crate::events::{EventKind, FailureKind};
use crate::net::conn_handle::ConnHandle;
use crate::ppspp::path_table::PathAddress;
use crate::ppspp::rates::Rates;

/// What peers are told to be called by: they say nothing of themselves in this protocol.
const CLIENT: &[u8; 20] = b"PPSPP               ";

impl Content {
    /// Carries out what the core wants, as far as anything does.
    pub(crate) fn pump(&mut self, now: Instant) {
        self.update_room();
        loop {
            let gone = self.channels();
            while let Some(event) = self.core.event() {
                self.on_event(event, now);
            }
            self.heed_live(now);
            self.transmit();
            if self.core.take_lack_of_allowance() {
                self.wake.notify_one();
            }
            if gone.is_empty() {
                return;
            }
            // What was to be said to them is said.
            gone.iter().for_each(|way| self.hub.let_go(way));
        }
    }

    /// Tells the sockets which channels there are; answers the ways of those that are no more.
    fn channels(&mut self) -> Vec<PathAddress> {
        let mut gone = Vec::new();
        for (channel, way, is_open) in self.core.take_channel_changes() {
            if !is_open {
                self.hub.directory().leave_channel(channel, self.id);
                gone.push(way);
                continue;
            }
            self.hub.hold(&way);
            if !self.hub.directory().take_channel(channel, self.id) {
                // One in four thousand million: the peer tries again, or we do.
                self.core.drop_channel(channel);
            }
        }
        gone
    }

    /// Something happened to a peer, or to the content.
    pub(super) fn on_event(&mut self, event: CoreEvent<PathAddress>, now: Instant) {
        match event {
            CoreEvent::Opened(way) => self.opened(way, now),
            CoreEvent::Closed(way) => self.closed(&way, now),
            CoreEvent::Liar(way) => {
                if !self.peers.is_banned(way.remote) {
                    let reason = "it sent a chunk that is not the content's".to_owned();
                    self.peers.ban(way.remote);
                    self.tell(EventKind::PeerBanned { address: way.remote, reason });
                }
                // Over whichever path it comes.
                let others: Vec<PathAddress> = self.paths.ways_to(way.remote).collect();
                others.iter().for_each(|other| self.core.disconnect(other));
            }
            CoreEvent::Found { by, address } => {
                let (address, resources) = (address.into(), self.resources());
                let config = &resources.config;
                if config.pex && !config.filter.blocks(&address) && may_name_peer(&by.remote, &address) {
                    self.peers.heard(address, now);
                    self.wake.notify_one();
                }
            }
            CoreEvent::Size(chunks) => {
                let (len, last) = (self.link.params.chunk_len(), self.core.last_chunk_len());
                if let (Some(len), Some(last), None) = (len, last, self.link.content_len) {
                    self.size_proven(chunks, len, last as u64);
                }
            }
            CoreEvent::Complete => finish::finished(self),
        }
    }

    /// The content has so many chunks of this length, the last one of `last_len` bytes.
    fn size_proven(&mut self, chunks: u64, chunk_len: u32, last_len: u64) {
        match content_len(chunks, chunk_len, last_len) {
            Some(len) => {
                self.link.content_len = Some(len);
                open::begin(self, None);
            }
            None => {
                let reason = format!("the content has {chunks} chunks of {chunk_len} bytes, which no file holds");
                self.fail(FailureKind::Metadata, reason);
            }
        }
    }

    fn opened(&mut self, way: PathAddress, now: Instant) {
        let address = way.remote;
        if self.live.is_some() && self.peers.is_named(address) {
            self.core.pin(&way);
        }
        let is_first = self.peers.reached(address, now);
        let outgoing = is_first || self.paths.is_dialled(&way);
        let Some(key) = self.path_joined(way, outgoing, now) else { return self.core.disconnect(&way) };
        let handle = Rc::new(ConnHandle::new(Host::of(&address), now));
        let resources = self.resources();
        let config = &resources.config;
        let down = resources.down.share(self.id.0, config.peer_limit_down, &handle, now);
        let up = resources.up.share(self.id.0, config.peer_limit_up, &handle, now);
        let (woken, wake) = (Rc::clone(&handle), Rc::clone(&self.wake));
        self.spawn(async move {
            while !woken.is_closing() {
                woken.notified().await;
                wake.notify_one();
            }
        });
        let rates = Rates::new();
        let (asked_bytes, sent_bytes, is_told) = (0, 0, false);
        self.conns.insert(way, Conn { down, up, key, opened: now, asked_bytes, sent_bytes, handle, rates, is_told });
        self.opened_unchoked(&way, key, now);
        let transport = if way.is_secure() { "quic" } else { "udp" };
        self.tell(EventKind::PeerConnected { address, outgoing, peer_id: *CLIENT, transport, encryption: None });
    }

    fn closed(&mut self, way: &PathAddress, now: Instant) {
        let address = way.remote;
        let was_open = self.conns.remove(way).is_some();
        let (cause, is_final) = match self.take_reason(way) {
            Some((reason, is_final)) => (EndCause::ByUs(reason), is_final),
            None if was_open => (EndCause::Network("the channel was closed".to_owned()), false),
            None => (EndCause::Network("it does not answer".to_owned()), false),
        };
        let reason = &*cause.to_string();
        let is_path = self.paths.is_dialled(way);
        if let Some(conn) = self.paths.conn_of(way) {
            self.choking.closed(conn, now);
        }
        self.path_left(way, cause, now);
        self.held_back.retain(|transmit| transmit.peer != *way);
        if was_open || !is_path {
            self.tell(EventKind::PeerDisconnected { address, reason: reason.to_owned() });
        }
        // As long as there is a channel over another path, it is there.
        if !self.paths.reaches(address) {
            self.tell_failure(address, reason, (was_open, is_final), now);
            self.announce.notify_one();
        }
    }

    /// A peer is not reached, or not any more (it was open), and maybe nothing but the user can change that: told once for each reason,
    /// where the user or the link named the peer.
    pub(crate) fn tell_failure(
        &mut self,
        address: Endpoint,
        reason: &str,
        (was_open, is_final): (bool, bool),
        now: Instant,
    ) {
        if let Some(is_final) = self.peers.failed(address, reason, (was_open, is_final), now) {
            self.tell(EventKind::PeerFailed { address, reason: reason.to_owned(), is_final });
        }
    }

    /// What limits let through.
    pub(super) fn allow(&mut self, now: Instant) {
        if self.conns.values().all(|conn| !conn.down.is_limited() && !conn.up.is_limited()) {
            return;
        }
        let mut allowed = Vec::new();
        for stats in self.core.peer_stats() {
            let Some(conn) = self.conns.get_mut(stats.peer) else { continue };
            conn.down.spend(stats.asked_bytes - std::mem::replace(&mut conn.asked_bytes, stats.asked_bytes));
            conn.up.spend(stats.uploaded_bytes - std::mem::replace(&mut conn.sent_bytes, stats.uploaded_bytes));
            let key = conn.key;
            let down_bytes = match stats.is_wanted && !stats.chokes_us {
                true => conn.down.available(|| (key, true), now),
                false => {
                    conn.down.rest();
                    0
                }
            };
            let up_bytes = match stats.wants {
                true => conn.up.available(|| (key, true), now),
                false => {
                    conn.up.rest();
                    0
                }
            };
            allowed.push((*stats.peer, Allowance { up_bytes, down_bytes }));
        }
        for (way, allowance) in allowed {
            self.core.set_allowance(&way, allowance, now);
        }
    }

    /// How fast a peer's channel moves, down and up; it moved so much so far.
    pub(in super::super) fn rates_of(&mut self, way: &PathAddress, moved: (u64, u64), now: Instant) -> (u64, u64) {
        let Some(Conn { rates, .. }) = self.conns.get_mut(way) else { return (0, 0) };
        rates.moved(moved, now);
        rates.bytes_per_sec(now)
    }
}

/// Bytes of a content; `None` for more than can be counted.
fn content_len(chunks: u64, chunk_len: u32, last_len: u64) -> Option<u64> {
    chunks.checked_sub(1)?.checked_mul(chunk_len.into())?.checked_add(last_len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_that_cannot_be_counted_is_none() {
        assert_eq!(content_len(3, 1024, 7), Some(2055));
        assert_eq!(content_len(1, 1024, 1024), Some(1024));
        assert_eq!(content_len(1 << 62, 4, 1), Some(u64::MAX - 2));
        assert_eq!(content_len(1 << 62, 4, 4), None, "one byte too many");
        assert_eq!((content_len((1 << 62) + 2, 4, 1), content_len(0, 4, 1)), (None, None));
    }
}
