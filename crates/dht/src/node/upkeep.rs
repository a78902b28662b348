//! Joins a network, keeps its table fresh, and learns our own address there.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anabranch_paths::{Endpoint, Host};

use super::ask::Purpose;
use super::{Dht, Event, Goal, HomeId, SearchId};
use crate::family::{Contact, Family};
use crate::id::{NodeId, network_of};
use crate::snapshot::CONTACTS_MAX;
use crate::table::Table;
use crate::wire::Ask;

/// Nodes asked at once whether they are there.
pub(super) const PINGS_MAX: usize = 32;
/// Between two things that are done to keep a table fresh.
const UPKEEP_EVERY: Duration = Duration::from_secs(2);
/// Before a network is joined anew; doubles with each attempt in vain.
const REJOIN_FIRST: Duration = Duration::from_secs(30);
/// The longest such wait.
const REJOIN_MAX: Duration = Duration::from_secs(30 * 60);
/// Saved nodes that are asked at once when a network is joined.
const SEEDS_MAX: usize = 16;
/// Others' opinions of our address that are remembered.
const VOTES_MAX: usize = 64;
/// Others of different networks that have to agree on our address.
const VOTES_NEEDED: usize = 4;
/// Between two changes of our name: whose address changes more often is better off with a name that does not fit.
const RENAME_EVERY: Duration = Duration::from_secs(10 * 60);

/// Whose opinion of our address counts once: a network, whose owner has many addresses, or a neighbour.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Voter {
    Network((u64, IpAddr)),
    Neighbour(Host),
}

/// How one table is kept.
pub(super) struct Upkeep {
    /// Of an earlier run, not met yet in this one.
    saved: Vec<Contact>,
    joining: Option<SearchId>,
    refreshing: Option<SearchId>,
    /// Somebody is known, or was a moment ago.
    has_met: bool,
    is_joined: bool,
    join_at: Option<Instant>,
    failures: u32,
    next_at: Instant,
    votes: VecDeque<(Voter, IpAddr)>,
    renamed_at: Option<Instant>,
}

impl Upkeep {
    pub(super) fn new(saved: Vec<Contact>, now: Instant) -> Self {
        Self {
            join_at: (!saved.is_empty()).then_some(now),
            saved: saved.into_iter().take(CONTACTS_MAX).collect(),
            joining: None,
            refreshing: None,
            has_met: false,
            is_joined: false,
            failures: 0,
            next_at: now,
            votes: VecDeque::new(),
            renamed_at: None,
        }
    }

    pub(super) fn saved(&self) -> &[Contact] {
        &self.saved
    }

    pub(super) fn is_joining(&self) -> bool {
        self.joining.is_some()
    }

    /// Addresses to begin from where few nodes are known; others each time, as long as there are.
    pub(super) fn seeds(&mut self) -> Vec<Endpoint> {
        let count = self.saved.len().min(SEEDS_MAX);
        self.saved.rotate_left(count);
        self.saved.iter().rev().take(count).map(|contact| contact.address).collect()
    }

    pub(super) fn deadline(&self, table: &Table) -> Option<Instant> {
        let join = self.join_at.filter(|_| self.joining.is_none());
        let keep = table.deadline().map(|at| at.max(self.next_at));
        join.into_iter().chain(keep).min()
    }
}

impl Dht {
    /// A node entered a table: the network can be joined through it.
    pub(super) fn entered(&mut self, id: HomeId, now: Instant) {
        let Some(home) = self.homes.get_mut(&id) else { return };
        let is_first = !home.upkeep.has_met && home.table.len() > 0;
        home.upkeep.has_met |= is_first;
        if !home.upkeep.is_joined && home.upkeep.joining.is_none() {
            home.upkeep.join_at = Some(now);
        }
        if is_first {
            self.tell(Event::Met { home: id });
        }
        self.join_if_due(now);
    }

    pub(super) fn keep_up(&mut self, now: Instant) {
        self.join_if_due(now);
        for id in self.homes.keys().copied().collect::<Vec<_>>() {
            self.keep_table(id, now);
        }
    }

    fn join_if_due(&mut self, now: Instant) {
        for id in self.homes.keys().copied().collect::<Vec<_>>() {
            let Some(home) = self.homes.get_mut(&id) else { continue };
            let is_due = home.upkeep.join_at.is_some_and(|at| at <= now);
            if is_due && home.upkeep.joining.is_none() {
                home.upkeep.join_at = None;
                let target = home.table.own();
                let search = self.begin_search(Goal::Node { target }, vec![id], true, now);
                if let Some(home) = self.homes.get_mut(&id) {
                    home.upkeep.joining = Some(search);
                }
            }
        }
    }

    /// Asks who was silent for long, and looks for somebody in a bucket where nothing happened.
    fn keep_table(&mut self, id: HomeId, now: Instant) {
        let Some(home) = self.homes.get_mut(&id) else { return };
        if home.table.deadline().is_none_or(|at| at > now) || now < home.upkeep.next_at {
            return;
        }
        home.upkeep.next_at = now + UPKEEP_EVERY;
        let asking = &self.asking;
        if let Some(silent) = home.table.questionable(now, |contact| !asking.is_asking(&contact.address)) {
            self.ping(id, silent.address, Some(silent), now);
        }
        let Some(home) = self.homes.get_mut(&id) else { return };
        if home.upkeep.is_joined && home.table.len() == 0 {
            // Everybody is gone, or we are offline.
            (home.upkeep.has_met, home.upkeep.is_joined) = (false, false);
            home.upkeep.join_at = Some(now + REJOIN_FIRST);
            return;
        }
        if home.upkeep.refreshing.is_none()
            && home.upkeep.joining.is_none()
            && let Some(target) = home.table.refresh(&mut self.rng, now)
        {
            let search = self.begin_search(Goal::Node { target }, vec![id], true, now);
            if let Some(home) = self.homes.get_mut(&id) {
                home.upkeep.refreshing = Some(search);
            }
        }
    }

    /// A search of ours has ended.
    pub(super) fn kept_up(&mut self, id: HomeId, search: SearchId, now: Instant) {
        let Some(home) = self.homes.get_mut(&id) else { return };
        let upkeep = &mut home.upkeep;
        if upkeep.refreshing == Some(search) {
            upkeep.refreshing = None;
        }
        if upkeep.joining != Some(search) {
            return;
        }
        upkeep.joining = None;
        if home.table.len() > 0 {
            (upkeep.is_joined, upkeep.failures) = (true, 0);
            // Who is near is known now; who is far away is looked for next, bucket by bucket.
            home.table.refresh_all(now);
            self.tell(Event::Joined { home: id });
        } else if !upkeep.saved.is_empty() {
            let wait = REJOIN_FIRST.saturating_mul(1 << upkeep.failures.min(16)).min(REJOIN_MAX);
            upkeep.failures += 1;
            upkeep.join_at = Some(now + wait);
        }
    }

    /// Asks somebody whether it is a node, from each of our places in its network.
    pub(super) fn try_node(&mut self, address: Endpoint, now: Instant) {
        let family = Family::of(&address);
        let homes: Vec<HomeId> =
            self.homes.iter().filter(|(_, home)| home.family == family).map(|(id, _)| *id).collect();
        homes.into_iter().for_each(|home| self.ping(home, address, None, now));
    }

    /// A query came from there.
    pub(super) fn heard_of(&mut self, home: HomeId, contact: Contact, now: Instant) {
        let Some(place) = self.homes.get_mut(&home) else { return };
        if place.table.asked(contact, now) {
            self.ping(home, contact.address, Some(contact), now);
        }
    }

    pub(super) fn ping(&mut self, home: HomeId, to: Endpoint, expected: Option<Contact>, now: Instant) {
        if self.asking.pings() < PINGS_MAX && !self.asking.is_asking_from(home, &to) {
            self.ask(home, (to, expected), Purpose::Ping, Ask::Ping, now);
        }
    }

    /// BEP 42: others say where they see us. Once enough of them agree, our name is one that the address may have.
    pub(super) fn told_own_address(&mut self, id: HomeId, from: &Endpoint, told: Endpoint, now: Instant) {
        let Some(home) = self.homes.get_mut(&id) else { return };
        // In local networks names are free; and in SCION everybody knows its own address.
        if Family::of(&told) != home.family || home.family == Family::Scion || network_of(&told).is_none() {
            return;
        }
        let voter = network_of(from).map_or_else(|| Voter::Neighbour(Host::of(from)), Voter::Network);
        let votes = &mut home.upkeep.votes;
        votes.retain(|(other, _)| *other != voter);
        if votes.len() >= VOTES_MAX {
            votes.pop_front();
        }
        votes.push_back((voter, told.ip()));
        let agreeing = votes.iter().filter(|(_, ip)| *ip == told.ip()).count();
        let is_agreed = agreeing >= VOTES_NEEDED && 2 * agreeing > votes.len();
        if is_agreed {
            self.take_name_for(id, told, now);
        }
    }

    /// Somebody who should know it, such as a router, says where others see one of our places. Others may disagree later.
    pub fn set_address(&mut self, id: HomeId, address: Endpoint, now: Instant) {
        let is_its = self.homes.get(&id).is_some_and(|home| home.family == Family::of(&address));
        if is_its && network_of(&address).is_some() {
            self.take_name_for(id, address, now);
            self.pump(now);
        }
    }

    /// BEP 42: our name is one that the address may have.
    fn take_name_for(&mut self, id: HomeId, address: Endpoint, now: Instant) {
        let Some(home) = self.homes.get_mut(&id) else { return };
        if home.table.own().is_secure(&address) {
            return;
        }
        if home.upkeep.renamed_at.is_some_and(|at| now < at + RENAME_EVERY) {
            return;
        }
        home.upkeep.renamed_at = Some(now);
        let own = NodeId::secure(&address, self.rng.u8(..), &mut self.rng);
        home.table.rename(own, now);
        // Our place in the network is another now.
        home.upkeep.join_at = Some(now);
        self.tell(Event::Address { home: id, address });
    }
}
