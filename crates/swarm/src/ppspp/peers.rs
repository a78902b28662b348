//! Whom a content knows: named by the user or the link, by trackers, by other peers. Pure: times come in.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use anabranch_paths::Endpoint;

use crate::transfer::{NamedPeer, Trouble};

/// Addresses that others named: as many as a content of BitTorrent knows.
const HEARD_MAX: usize = 4096;
/// Bans that are remembered.
const BANS_MAX: usize = 4096;
/// Peers that are being dialled at once: one message names several addresses, and they may all be a victim's.
const DIALLING_MAX: usize = 16;
/// Open channels beyond which nobody is dialled: each peer more costs a little, and brings ever less.
const OPEN_MAX: usize = 64;
/// Pause after the first attempt in vain; it doubles.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The same in a live stream, which nobody wants to miss a minute of.
const PAUSE_MAX_LIVE: Duration = Duration::from_secs(1);
/// Attempts in vain after which an address that others named is forgotten.
const TRIES_MAX: u32 = 4;

/// Whom a content knows.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    known: BTreeMap<Endpoint, Entry>,
    banned: BTreeSet<Endpoint>,
    is_live: bool,
    /// In which order those are dialled that nothing tells apart: another for each content, so that not all dial the same.
    order: RandomState,
}

#[derive(Debug)]
struct Entry {
    is_named: bool,
    state: State,
    failures: u32,
    was_reached: bool,
    trouble: Option<Trouble>,
    told: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be dialled from then on.
    Due(Instant),
    Dialling,
    Open,
}

impl Peers {
    /// The user or the link named it.
    pub(crate) fn name(&mut self, address: Endpoint, now: Instant) {
        self.banned.remove(&address);
        let entry = self.known.entry(address).or_insert_with(|| Entry::new(true, now));
        entry.is_named = true;
        if let State::Due(at) = &mut entry.state {
            *at = now;
        }
    }

    /// They are of a live stream: those who were named are tried more often.
    pub(crate) fn set_live(&mut self) {
        self.is_live = true;
    }

    /// Whether the user or the link named it.
    pub(crate) fn is_named(&self, address: Endpoint) -> bool {
        self.known.get(&address).is_some_and(|entry| entry.is_named)
    }

    /// A tracker or a peer named it.
    pub(crate) fn heard(&mut self, address: Endpoint, now: Instant) {
        if self.known.len() < HEARD_MAX && !self.banned.contains(&address) && address.socket_addr().port() != 0 {
            self.known.entry(address).or_insert_with(|| Entry::new(false, now));
        }
    }

    /// Whom to dial now. Who has everything dials those that were named, and no others: who wants something comes by itself.
    pub(crate) fn next_to_dial(&mut self, wants_more: bool, now: Instant) -> Option<Endpoint> {
        let count = |state: State| self.known.values().filter(|entry| entry.state == state).count();
        if count(State::Dialling) >= DIALLING_MAX || count(State::Open) >= OPEN_MAX {
            return None;
        }
        let is_due =
            |entry: &Entry| matches!(entry.state, State::Due(at) if at <= now) && (wants_more || entry.is_named);
        let due = self.known.iter_mut().filter(|(_, entry)| is_due(entry));
        let order = &self.order;
        let rank = |address: &Endpoint, entry: &Entry| (!entry.is_named, entry.failures, order.hash_one(address));
        let (address, entry) = due.min_by_key(|(address, entry)| rank(address, entry))?;
        entry.state = State::Dialling;
        Some(*address)
    }

    /// There is a channel to it already, or none can be.
    pub(crate) fn is_there(&mut self, address: Endpoint) {
        if let Some(entry) = self.known.get_mut(&address) {
            entry.state = State::Open;
        }
    }

    /// A channel to it is open; answers whether we dialled.
    pub(crate) fn reached(&mut self, address: Endpoint, now: Instant) -> bool {
        if !self.known.contains_key(&address) {
            self.heard(address, now);
        }
        let Some(entry) = self.known.get_mut(&address) else { return false };
        let outgoing = entry.state == State::Dialling;
        (entry.state, entry.failures, entry.was_reached, entry.trouble) = (State::Open, 0, true, None);
        outgoing
    }

    /// Its channel ended, or none came about; `is_final`: it never will, as the user wants it. Answers whether that is to be told of a
    /// peer that was named, and whether it is final: a network that led there before does so again, perhaps.
    pub(crate) fn failed(
        &mut self,
        address: Endpoint,
        reason: &str,
        (was_open, is_final): (bool, bool),
        now: Instant,
    ) -> Option<bool> {
        let entry = self.known.get_mut(&address)?;
        entry.failures = if was_open { 1 } else { entry.failures + 1 };
        if !entry.is_named && entry.failures >= TRIES_MAX {
            self.known.remove(&address);
            return None;
        }
        let pause = PAUSE_MIN * (1 << (entry.failures - 1).min(6));
        let pause_max = if self.is_live { PAUSE_MAX_LIVE } else { PAUSE_MAX };
        entry.state = State::Due(now + pause.min(pause_max));
        if !entry.is_named {
            return None;
        }
        let since = entry.trouble.as_ref().map_or(now, |trouble| trouble.since);
        let is_final = is_final && !entry.was_reached;
        entry.trouble = Some(Trouble { reason: reason.to_owned(), since, is_final });
        entry.told.insert(reason.to_owned()).then_some(is_final)
    }

    /// It lied: it is not dealt with any more.
    pub(crate) fn ban(&mut self, address: Endpoint) {
        if self.banned.len() < BANS_MAX {
            self.banned.insert(address);
        }
        if self.known.get(&address).is_some_and(|entry| !entry.is_named) {
            self.known.remove(&address);
        } else if let Some(entry) = self.known.get_mut(&address) {
            // What the user named is shown with its trouble, and not dialled again.
            entry.state = State::Open;
        }
    }

    /// Whether it lied.
    pub(crate) fn is_banned(&self, address: Endpoint) -> bool {
        self.banned.contains(&address)
    }

    /// Addresses that others named and that may be reached.
    pub(crate) fn heard_of(&self) -> usize {
        self.known.values().filter(|entry| !entry.is_named && entry.state != State::Open).count()
    }

    /// Those that the user or the link named.
    pub(crate) fn named(&self) -> Vec<NamedPeer> {
        let named = self.known.iter().filter(|(_, entry)| entry.is_named);
        named.map(|(address, entry)| NamedPeer { address: *address, trouble: entry.trouble.clone() }).collect()
    }

    /// Whether somebody is being dialled.
    pub(crate) fn is_trying(&self) -> bool {
        self.known.values().any(|entry| entry.state == State::Dialling)
    }
}

impl Entry {
    fn new(is_named: bool, now: Instant) -> Self {
        Self { is_named, state: State::Due(now), failures: 0, was_reached: false, trouble: None, told: BTreeSet::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u16) -> Endpoint {
        Endpoint::Ip(([192, 0, 2, 1], number).into())
    }

    #[test]
    fn named_peers_are_tried_for_ever_and_others_a_few_times() {
        let (mut peers, start) = (Peers::default(), Instant::now());
        peers.name(address(1), start);
        peers.heard(address(2), start);
        let (mut now, mut tries) = (start, [0, 0]);
        for _ in 0..2000 {
            while let Some(dialled) = peers.next_to_dial(true, now) {
                tries[usize::from(dialled.socket_addr().port()) - 1] += 1;
                let told = peers.failed(dialled, "it does not answer", (false, false), now);
                assert_eq!(told.is_some(), dialled == address(1) && tries[0] == 1, "told once");
            }
            now += Duration::from_secs(1);
        }
        assert!(tries[0] > 2000 / 61 && tries[1] == TRIES_MAX, "{tries:?}");
        assert_eq!((peers.heard_of(), peers.named().len()), (0, 1));
        assert_eq!(peers.named()[0].trouble.as_ref().map(|trouble| trouble.since), Some(start));
        peers.reached(address(1), now);
        assert_eq!(peers.named()[0].trouble, None);
    }

    #[test]
    fn floods_of_addresses_are_bounded_and_liars_stay_away() {
        let (mut peers, now) = (Peers::default(), Instant::now());
        for number in 0..=u16::MAX {
            peers.heard(address(number), now);
        }
        assert_eq!(peers.heard_of(), HEARD_MAX);
        let dialled = std::iter::from_fn(|| peers.next_to_dial(true, now)).count();
        assert_eq!(dialled, DIALLING_MAX);
        peers.ban(address(9));
        peers.heard(address(9), now);
        assert!(!peers.known.contains_key(&address(9)));
        // Whoever has everything dials nobody that was not named.
        let mut complete = Peers::default();
        complete.heard(address(1), now);
        assert_eq!(complete.next_to_dial(false, now), None);
        complete.name(address(2), now);
        assert_eq!(complete.next_to_dial(false, now), Some(address(2)));
    }
}
