//! Peers that somebody named: what keeps us from having each, and what of that was told. Pure.

use std::collections::BTreeMap;
use std::time::Instant;

use anabranch_paths::Endpoint;

use crate::transfer::{NamedPeer, Trouble};

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
    /// The user or the magnet link named a peer.
    pub(super) fn add(&mut self, address: Endpoint) {
        self.0.entry(address).or_default();
    }

    /// The peer is connected.
    pub(super) fn reached(&mut self, address: Endpoint) {
        if let Some(entry) = self.0.get_mut(&address) {
            entry.trouble = None;
            entry.was_reached = true;
        }
    }

    /// It cannot be reached, or its connection ended; answers whether that is to be told, and whether it is final.
    pub(super) fn failed(&mut self, address: Endpoint, reason: &str, is_final: bool, now: Instant) -> Option<bool> {
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
    pub(super) fn in_trouble_since(&self, address: Endpoint) -> Option<Instant> {
        Some(self.0.get(&address)?.trouble.as_ref()?.since)
    }

    /// All of them.
    pub(super) fn list(&self) -> Vec<NamedPeer> {
        let named = self.0.iter();
        named.map(|(address, entry)| NamedPeer { address: *address, trouble: entry.trouble.clone() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_cause_is_told_once_and_trouble_counts_from_its_beginning() {
        let (mut named, now) = (Named::default(), Instant::now());
        let address: Endpoint = "127.0.0.1:1".parse().unwrap();
        assert_eq!(named.failed(address, "nobody named it", false, now), None);
        named.add(address);
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
        named.add(other);
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
