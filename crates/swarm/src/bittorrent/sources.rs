//! Who may still bring what is missing of a torrent: see [`Sources`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anabranch_paths::Endpoint;

use crate::bittorrent::torrent::TorrentDriver;
use crate::events::EventKind;
use crate::transfer::{NamedPeer, Sources, Trouble};

/// Causes of one peer's trouble that were told, and are not told again: more than there are kinds. Each holds an error text.
const TOLD_MAX: usize = 8;

/// The book of named peers. As many as the user and the link named.
#[derive(Default)]
pub(crate) struct Named(BTreeMap<Endpoint, Entry>);

#[derive(Default)]
struct Entry {
    trouble: Option<Trouble>,
    was_reached: bool,
    told: Vec<String>,
    /// It was told that the trouble is final: once.
    is_final_told: bool,
}

impl Named {
    /// The peer is connected.
    fn reached(&mut self, address: Endpoint) {
        if let Some(entry) = self.0.get_mut(&address) {
            entry.trouble = None;
            entry.was_reached = true;
        }
    }

    /// It cannot be reached, or its connection ended; answers whether that is to be told, and whether it is final.
    fn failed(&mut self, address: Endpoint, reason: &str, is_final: bool, now: Instant) -> Option<bool> {
        let entry = self.0.get_mut(&address)?;
        // A network that led there does so again, perhaps.
        let is_final = is_final && !entry.was_reached;
        let since = entry.trouble.as_ref().map_or(now, |trouble| trouble.since);
        entry.trouble = Some(Trouble { reason: reason.to_owned(), since, is_final });
        let is_final_news = is_final && !std::mem::replace(&mut entry.is_final_told, true);
        let is_known = entry.told.iter().any(|told| told == reason);
        if is_known || entry.told.len() >= TOLD_MAX {
            return is_final_news.then_some(true);
        }
        entry.told.push(reason.to_owned());
        Some(is_final)
    }

    /// Since when it is in trouble.
    fn in_trouble_since(&self, address: Endpoint) -> Option<Instant> {
        Some(self.0.get(&address)?.trouble.as_ref()?.since)
    }

    fn list(&self) -> Vec<NamedPeer> {
        let named = self.0.iter();
        named.map(|(address, entry)| NamedPeer { address: *address, trouble: entry.trouble.clone() }).collect()
    }
}

impl TorrentDriver {
    /// The user or the magnet link named a peer.
    pub(crate) fn name_peer(&mut self, address: Endpoint) {
        self.named.0.entry(address).or_default();
        if !self.book.add(address, anabranch_bittorrent::peerbook::Source::User) {
            self.peer_failed(address, "nobody can be dialled at such an address: give a host and its port", true);
        }
    }

    /// A peer was dialled and is connected.
    pub(crate) fn peer_reached(&mut self, address: Endpoint) {
        self.named.reached(address);
    }

    /// A peer could not be dialled, or its connection ended. As long as there is one over another path, it is there.
    pub(crate) fn peer_failed(&mut self, address: Endpoint, reason: &str, is_final: bool) {
        if self.paths.manager.reaches(address) {
            return;
        }
        if let Some(is_final) = self.named.failed(address, reason, is_final, Instant::now()) {
            self.tell(EventKind::PeerFailed { address, reason: reason.to_owned(), is_final });
        }
    }

    /// Whether a peer that somebody named has been in trouble for so long already.
    pub(crate) fn is_in_trouble_for(&self, address: Endpoint, time: Duration) -> bool {
        self.named.in_trouble_since(address).is_some_and(|since| since.elapsed() >= time)
    }

    /// Who may still bring something.
    pub(crate) fn sources(&self, now: Instant) -> Sources {
        let is_opening = self.is_remembering || self.metadata_known && self.storage.is_none();
        let is_finished = self.core.is_finished();
        Sources {
            is_waiting: !is_opening && !is_finished && !self.core.is_paused() && !self.stopping,
            connections: self.conn_count(),
            is_any_wanted: self.core.is_any_wanted(),
            is_any_serving: self.core.is_any_serving(),
            trackers: self.trackers_left,
            dht: self.may_find_by_dht(now),
            heard_of: self.book.heard_of(now),
            named: self.named.list(),
            web_seeds: if self.metadata_known { self.web_seeds.clone() } else { Vec::new() },
        }
    }

    /// Whether the distributed hash table may bring somebody.
    fn may_find_by_dht(&self, now: Instant) -> bool {
        // BEP 27: not for what is private.
        let is_public = self.core.known_info().is_none_or(|info| !info.private);
        is_public && self.resources().dht.as_ref().is_some_and(|dht| dht.may_find(now))
    }

    /// Whether trackers are to be asked for peers: something is missing, nobody connected has it, and nobody is being dialled.
    pub(crate) fn needs_peers(&self, now: Instant) -> bool {
        let sources = self.sources(now);
        sources.is_waiting && !sources.is_any_wanted && !self.book.is_trying(now, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once_and_trouble_counts_from_its_beginning() {
        let (mut named, now) = (Named::default(), Instant::now());
        let address: Endpoint = "127.0.0.1:1".parse().unwrap();
        assert_eq!(named.failed(address, "nobody named it", false, now), None);
        named.0.entry(address).or_default();
        assert_eq!(named.failed(address, "refused", false, now), Some(false));
        let later = now + Duration::from_secs(9);
        assert_eq!(named.failed(address, "refused", false, later), None);
        assert_eq!(named.failed(address, "no path", true, later), Some(true));
        assert_eq!(
            named.list()[0].trouble.as_ref().map(|trouble| (trouble.since, trouble.is_final)),
            Some((now, true))
        );
        named.reached(address);
        assert_eq!(named.list()[0].trouble, None);
        // It was there once: it may come back.
        assert_eq!(named.failed(address, "no way", true, later), Some(false));
        let other: Endpoint = "127.0.0.1:2".parse().unwrap();
        named.0.entry(other).or_default();
        let tell = |named: &mut Named, is_final| named.failed(other, "no path", is_final, now);
        assert_eq!(
            [false, false, true, true, false, true].map(|is_final| tell(&mut named, is_final)),
            [Some(false), None, Some(true), None, None, None]
        );
        for cause in 0..2 * TOLD_MAX {
            named.failed(address, &cause.to_string(), false, later);
        }
        assert_eq!(named.0[&address].told.len(), TOLD_MAX);
    }
}
