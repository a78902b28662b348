//! Addresses that may be dialled, and when to try each again.
//!
//! Pure: the driver says what happened, and asks whom to dial next.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anabranch_paths::Endpoint;

use crate::compact::is_dialable;
use crate::priority::peer_priority;

/// Addresses kept for one content; the least promising go first.
const ADDRESSES_MAX: usize = 4096;
/// Wait after the first failed attempt; doubles with every further one.
const RETRY_FIRST: Duration = Duration::from_secs(2);
/// Longest wait between attempts.
const RETRY_MAX: Duration = Duration::from_secs(15 * 60);
/// The same where the user named the peer: he may be starting it just now.
const RETRY_NAMED_MAX: Duration = Duration::from_secs(60);
/// Failed attempts in a row after which an address that a stranger named is forgotten.
const FAILURES_MAX: u32 = 6;

/// Who named an address. Later ones are believed more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Another peer (BEP 11).
    Exchange,
    /// Nodes of the distributed hash table, who had it from anybody (BEP 5).
    Dht,
    /// A tracker.
    Tracker,
    /// The peer itself, in the same network (BEP 14).
    Local,
    /// The user, or a magnet link: never forgotten.
    User,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle { not_before: Option<Instant> },
    Dialling,
    Connected,
}

#[derive(Clone, Debug)]
struct Entry {
    source: Source,
    /// A tracker named it, among others.
    is_of_tracker: bool,
    failures: u32,
    /// It needed nothing from anybody when it was last connected.
    complete: bool,
    /// It wants its connections encrypted, as far as is known.
    prefers_encryption: bool,
    /// BEP 40; 0 where our own address is not known.
    priority: u32,
    state: State,
}

/// See [`peer_priority`].
fn priority(own: &[Option<SocketAddr>; 2], address: &Endpoint) -> u32 {
    let Some(address) = address.as_ip() else { return 0 };
    own[usize::from(address.is_ipv6())].map_or(0, |own| peer_priority(own, address))
}

impl Entry {
    fn new(source: Source) -> Self {
        let state = State::Idle { not_before: None };
        let is_of_tracker = source == Source::Tracker;
        Self { source, is_of_tracker, failures: 0, complete: false, prefers_encryption: false, priority: 0, state }
    }

    /// When it may be dialled: not before `now`.
    fn dialable_at(&self, now: Instant, seeding: bool) -> Option<Instant> {
        match self.state {
            State::Idle { not_before } if !(seeding && self.complete) => Some(not_before.map_or(now, |at| at.max(now))),
            _ => None,
        }
    }
}

/// The addresses known for one content.
#[derive(Clone, Debug, Default)]
pub struct PeerBook {
    entries: BTreeMap<Endpoint, Entry>,
    /// Where others see us, over IPv4 and over IPv6.
    own: [Option<SocketAddr>; 2],
}

impl PeerBook {
    /// An empty book.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of addresses known.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no address is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether `address` is known.
    pub fn contains(&self, address: &Endpoint) -> bool {
        self.entries.contains_key(address)
    }

    /// Learns an address; answers whether it may be dialled. Port 0, unspecified or multicast hosts and wildcard ASes are
    /// nobody's.
    pub fn add(&mut self, address: Endpoint, source: Source) -> bool {
        if !is_dialable(&address) {
            return false;
        }
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.source = entry.source.max(source);
            entry.is_of_tracker |= source == Source::Tracker;
            return true;
        }
        if self.entries.len() >= ADDRESSES_MAX && !self.forget_one(source) {
            return false;
        }
        let priority = priority(&self.own, &address);
        self.entries.insert(address, Entry { priority, ..Entry::new(source) });
        true
    }

    /// Somebody told where others see us: among equals those go first who have the greater priority (BEP 40).
    pub fn set_own(&mut self, own: SocketAddr) {
        let known = &mut self.own[usize::from(own.is_ipv6())];
        if known.replace(own) == Some(own) {
            return;
        }
        for (address, entry) in &mut self.entries {
            entry.priority = priority(&self.own, address);
        }
    }

    /// Makes room by forgetting the idle address with the most failures that is not more trusted than `for_source`.
    fn forget_one(&mut self, for_source: Source) -> bool {
        let worst = self
            .entries
            .iter()
            .filter(|(_, entry)| matches!(entry.state, State::Idle { .. }) && entry.source <= for_source)
            .filter(|(_, entry)| entry.source != Source::User)
            .max_by_key(|(_, entry)| (entry.failures, Reverse(entry.source), Reverse(entry.priority)))
            .map(|(address, _)| *address);
        worst.is_some_and(|address| self.entries.remove(&address).is_some())
    }

    /// The next address to dial, marked as being dialled. While `seeding`, peers that need nothing are left out.
    pub fn next(&mut self, now: Instant, seeding: bool) -> Option<Endpoint> {
        let due = |entry: &Entry| entry.dialable_at(now, seeding).is_some_and(|at| at <= now);
        let (address, entry) = self
            .entries
            .iter_mut()
            .filter(|(_, entry)| due(entry))
            .min_by_key(|(_, entry)| (entry.failures, Reverse(entry.source), Reverse(entry.priority)))?;
        entry.state = State::Dialling;
        Some(*address)
    }

    /// When [`PeerBook::next`] has something: `now` if it has at once, `None` while nobody waits.
    pub fn next_deadline(&self, now: Instant, seeding: bool) -> Option<Instant> {
        self.entries.values().filter_map(|entry| entry.dialable_at(now, seeding)).min()
    }

    /// Whether somebody is being dialled, or waits for it.
    pub fn is_trying(&self, now: Instant, seeding: bool) -> bool {
        let is_dialled = |entry: &Entry| entry.state == State::Dialling;
        self.entries.values().any(|entry| is_dialled(entry) || entry.dialable_at(now, seeding) == Some(now))
    }

    /// Addresses that somebody else than the user named and that are dialled, or will be.
    pub fn heard_of(&self, now: Instant) -> usize {
        let is_left = |entry: &&Entry| {
            entry.source != Source::User && (entry.state == State::Dialling || entry.dialable_at(now, false).is_some())
        };
        self.entries.values().filter(is_left).count()
    }

    /// Whether the peer at this address has all it wants: to who has so too it is of no use.
    pub fn set_complete(&mut self, address: Endpoint, complete: bool) {
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.complete = complete;
        }
    }

    /// Whether the peer at this address wants its connections encrypted.
    pub fn set_prefers_encryption(&mut self, address: Endpoint, prefers: bool) {
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.prefers_encryption = prefers;
        }
    }

    /// What [`PeerBook::set_prefers_encryption`] said last.
    pub fn prefers_encryption(&self, address: &Endpoint) -> bool {
        self.entries.get(address).is_some_and(|entry| entry.prefers_encryption)
    }

    /// Somebody at this address is connected, whoever dialled.
    pub fn connected(&mut self, address: Endpoint) {
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.failures = 0;
            entry.state = State::Connected;
        }
    }

    /// The attempt failed, or the connection ended. `useful` connections may be tried again soon.
    pub fn lost(&mut self, address: Endpoint, useful: bool, now: Instant) {
        let Some(entry) = self.entries.get_mut(&address) else { return };
        entry.failures = if useful { 1 } else { entry.failures + 1 };
        if entry.failures > FAILURES_MAX && entry.source != Source::User {
            self.entries.remove(&address);
            return;
        }
        let longest = if entry.source == Source::User { RETRY_NAMED_MAX } else { RETRY_MAX };
        let wait = RETRY_FIRST.saturating_mul(1 << (entry.failures - 1).min(16)).min(longest);
        entry.state = State::Idle { not_before: Some(now + wait) };
    }

    /// The content is private (BEP 27): forgets those whom neither a tracker nor the user named, and answers them.
    pub fn forget_strangers(&mut self) -> Vec<Endpoint> {
        let is_stranger = |entry: &Entry| !entry.is_of_tracker && entry.source != Source::User;
        let strangers = self.entries.extract_if(.., |_, entry| is_stranger(entry));
        strangers.map(|(address, _)| address).collect()
    }

    /// This address must not be dialled again: ourselves, or a banned peer.
    pub fn forget(&mut self, address: Endpoint) {
        self.entries.remove(&address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Endpoint {
        Endpoint::Ip(([127, 0, 0, 1], port).into())
    }

    #[test]
    fn of_a_private_content_those_are_left_whom_trackers_or_the_user_named() {
        let mut book = PeerBook::new();
        let sources = [Source::Exchange, Source::Dht, Source::Tracker, Source::Local, Source::User];
        for (port, source) in (1..).zip(sources) {
            book.add(address(port), source);
        }
        book.add(address(2), Source::Tracker);
        book.connected(address(4));
        // In this order and in the other.
        for (port, source) in [(6, Source::Local), (6, Source::Tracker), (7, Source::Tracker), (7, Source::Local)] {
            book.add(address(port), source);
        }
        assert_eq!(book.forget_strangers(), [address(1), address(4)]);
        assert_eq!(book.len(), 5);
        assert!(book.forget_strangers().is_empty());
    }

    #[test]
    fn of_equals_those_of_greater_priority_go_first_once_our_address_is_known() {
        let own: SocketAddr = "123.213.32.10:6881".parse().unwrap();
        let theirs: Vec<SocketAddr> = (1..=9u8).map(|net| SocketAddr::from(([net * 7, 1, 2, 3], 6881))).collect();
        let mut book = PeerBook::new();
        theirs[..5].iter().for_each(|address| assert!(book.add((*address).into(), Source::Tracker)));
        book.set_own(own);
        theirs[5..].iter().for_each(|address| assert!(book.add((*address).into(), Source::Tracker)));
        let mut expected = theirs.clone();
        expected.sort_by_key(|address| Reverse(peer_priority(own, *address)));
        let now = Instant::now();
        let order: Vec<SocketAddr> = std::iter::from_fn(|| book.next(now, false)?.as_ip()).collect();
        assert_eq!(order, expected);
        // Whom the user names goes before.
        assert!(book.add(address(7), Source::User));
        assert_eq!(book.next(now, false), Some(address(7)));
    }

    #[test]
    fn back_off_doubles_and_strangers_are_forgotten() {
        let (mut book, mut now) = (PeerBook::new(), Instant::now());
        book.add(address(1), Source::Tracker);
        for attempt in 0..=FAILURES_MAX {
            assert_eq!(book.next(now, false), Some(address(1)), "attempt {attempt}");
            book.lost(address(1), false, now);
            assert_eq!(book.next(now, false), None);
            now = book.next_deadline(now, false).unwrap_or(now);
        }
        assert!(book.is_empty());
    }

    #[test]
    fn what_the_user_named_is_tried_for_ever() {
        let (mut book, mut now) = (PeerBook::new(), Instant::now());
        book.add(address(1), Source::User);
        for _ in 0..100 {
            assert_eq!(book.next(now, false), Some(address(1)));
            book.lost(address(1), false, now);
            assert!(!book.is_trying(now, false));
            now += RETRY_NAMED_MAX;
            assert!(book.is_trying(now, false));
        }
        assert_eq!(book.heard_of(now), 0);
    }

    #[test]
    fn the_book_is_bounded_and_prefers_those_that_work() {
        let mut book = PeerBook::new();
        let now = Instant::now();
        book.add(address(1), Source::User);
        for port in 2..=ADDRESSES_MAX as u16 {
            book.add(address(port), Source::Exchange);
        }
        assert_eq!(book.len(), ADDRESSES_MAX);
        book.add(address(60_000), Source::Tracker);
        assert_eq!(book.len(), ADDRESSES_MAX);
        assert_eq!(book.next(now, false), Some(address(1)));
        assert_eq!(book.next(now, false), Some(address(60_000)));
    }

    #[test]
    fn nobody_listens_on_port_zero() {
        let mut book = PeerBook::new();
        assert!(!book.add(address(0), Source::User));
        for nobody in ["0.0.0.0:5", "[1-ff00:0:110,10.0.0.1]:0", "[1-ff00:0:110,0.0.0.0]:5"] {
            book.add(nobody.parse::<Endpoint>().unwrap(), Source::User);
        }
        assert!(book.is_empty());
    }

    #[test]
    fn hosts_numbered_alike_in_two_networks_are_two() {
        let (mut book, now) = (PeerBook::new(), Instant::now());
        let known = ["10.0.0.1:5", "[1-ff00:0:110,10.0.0.1]:5", "[2-ff00:0:210,10.0.0.1]:5"];
        let known = known.map(|text| text.parse::<Endpoint>().unwrap());
        for address in known.into_iter().chain(known) {
            book.add(address, Source::Tracker);
        }
        book.forget(known[1]);
        assert_eq!(
            [book.next(now, false), book.next(now, false), book.next(now, false)],
            [Some(known[0]), Some(known[2]), None]
        );
    }

    #[test]
    fn a_seed_leaves_out_who_needs_nothing() {
        let (mut book, now) = (PeerBook::new(), Instant::now());
        book.add(address(1), Source::Tracker);
        book.add(address(2), Source::Tracker);
        book.set_complete(address(1), true);
        assert_eq!(book.next_deadline(now, true), Some(now));
        assert_eq!([book.next(now, true), book.next(now, true)], [Some(address(2)), None]);
        assert_eq!(book.next_deadline(now, true), None);
        // Something was lost: now it is of use.
        assert_eq!(book.next(now, false), Some(address(1)));
    }
}
