//! Our own queries: their numbers, their time, and what their answers tell.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hasher;
use std::time::{Duration, Instant};

use anabranch_paths::Endpoint;
use siphasher::sip::SipHasher24;

use super::{Dht, HomeId, SearchId};
use crate::family::{Contact, Family};
use crate::table::Entered;
use crate::wire::{Answer, Ask, Message, Query, Want};

/// Queries under way at once.
pub(super) const QUERIES_MAX: usize = 1024;
/// An answer that took longer is late: a lookup asks others meanwhile.
pub(super) const LATE_AFTER: Duration = Duration::from_millis(1500);
/// An answer that took longer is none.
pub(super) const TIMEOUT: Duration = Duration::from_secs(8);
/// Queries that lookups send a second in the long run, and at once.
const PACE: (f64, f64) = (100.0, 300.0);
/// Bytes of a query's number: who does not see it does not guess it.
const TRANSACTION_LEN: usize = 4;
/// Nodes of another network are asked for while fewer are known there.
const OTHERS_WANTED_BELOW: usize = 32;
/// Nodes of each other network that are taken from one answer.
const OTHERS_MAX: usize = 4;

/// What a query is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Whether somebody is there.
    Ping,
    /// The next step of a lookup.
    Lookup(SearchId),
    /// To keep something there that a search brings.
    Store(SearchId),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) home: HomeId,
    pub(super) to: Endpoint,
    /// Who should be there.
    pub(super) expected: Option<Contact>,
    pub(super) purpose: Purpose,
    sent_at: Instant,
    pub(super) is_late: bool,
}

/// The queries under way.
pub(super) struct Asking {
    key: [u8; 16],
    began: Instant,
    count: u64,
    under_way: HashMap<[u8; TRANSACTION_LEN], Asked>,
    due: BTreeSet<(Instant, [u8; TRANSACTION_LEN])>,
    /// Queries that may still be sent, and when that was so.
    pace: (f64, Instant),
    /// A lookup waits for its pace.
    is_paced: bool,
}

impl Asking {
    pub(super) fn new(key: [u8; 16], now: Instant) -> Self {
        Self {
            key,
            began: now,
            count: 0,
            under_way: HashMap::new(),
            due: BTreeSet::new(),
            pace: (PACE.1, now),
            is_paced: false,
        }
    }

    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Whether somebody at `to` is being asked anything.
    pub(super) fn is_asking(&self, to: &Endpoint) -> bool {
        self.under_way.values().any(|asked| asked.to == *to)
    }

    /// The same from one of our places.
    pub(super) fn is_asking_from(&self, home: HomeId, to: &Endpoint) -> bool {
        self.under_way.values().any(|asked| asked.home == home && asked.to == *to)
    }

    pub(super) fn pings(&self) -> usize {
        self.under_way.values().filter(|asked| asked.purpose == Purpose::Ping).count()
    }

    pub(super) fn forget_home(&mut self, home: HomeId) {
        self.under_way.retain(|_, asked| asked.home != home);
        let Self { due, under_way, .. } = self;
        due.retain(|(_, number)| under_way.contains_key(number));
    }

    /// Whether a lookup may send one more.
    pub(super) fn may_ask(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.pace.1).as_secs_f64();
        self.pace = ((self.pace.0 + passed * PACE.0).min(PACE.1), now);
        self.is_paced = self.pace.0 < 1.0;
        !self.is_paced && self.under_way.len() < QUERIES_MAX
    }

    fn begin(&mut self, asked: Asked) -> Option<[u8; TRANSACTION_LEN]> {
        if self.under_way.len() >= QUERIES_MAX {
            return None;
        }
        // What is no lookup is not paced, and takes no more than a second from those that are.
        self.pace.0 = (self.pace.0 - 1.0).max(-PACE.0);
        let number = loop {
            self.count += 1;
            let mut hasher = SipHasher24::new_with_key(&self.key);
            hasher.write_u64(self.count);
            let [a, b, c, d, ..] = hasher.finish().to_be_bytes();
            if !self.under_way.contains_key(&[a, b, c, d]) {
                break [a, b, c, d];
            }
        };
        self.under_way.insert(number, asked);
        self.due.insert((asked.sent_at + LATE_AFTER, number));
        Some(number)
    }

    /// What the answer of this number is to, if it comes from there.
    fn take(&mut self, home: HomeId, from: &Endpoint, number: &[u8]) -> Option<Asked> {
        let number: [u8; TRANSACTION_LEN] = number.try_into().ok()?;
        let asked = self.under_way.get(&number).filter(|asked| asked.home == home && asked.to == *from).copied()?;
        self.under_way.remove(&number);
        let due = asked.sent_at + if asked.is_late { TIMEOUT } else { LATE_AFTER };
        self.due.remove(&(due, number));
        Some(asked)
    }

    /// One that is late now, or has no answer (`true`).
    fn next_due(&mut self, now: Instant) -> Option<(Asked, bool)> {
        let (at, number) = self.due.first().copied().filter(|(at, _)| *at <= now)?;
        self.due.remove(&(at, number));
        let asked = self.under_way.get_mut(&number)?;
        if asked.is_late {
            return self.under_way.remove(&number).map(|asked| (asked, true));
        }
        asked.is_late = true;
        self.due.insert((asked.sent_at + TIMEOUT, number));
        Some((*asked, false))
    }
}

impl Dht {
    /// When lookups that have to wait for their pace go on.
    pub(super) fn paced_until(&self) -> Option<Instant> {
        let waits = self.asking.is_paced && !self.searches.is_empty();
        waits.then(|| self.asking.pace.1 + Duration::from_secs_f64(1.0 / PACE.0))
    }

    /// Sends a query; answers whether it could.
    pub(super) fn ask(
        &mut self,
        home: HomeId,
        (to, expected): (Endpoint, Option<Contact>),
        purpose: Purpose,
        ask: Ask<'_>,
        now: Instant,
    ) -> bool {
        let Some(own) = self.homes.get(&home).map(|home| home.table.own()) else { return false };
        if self.config.policy.blocks(&to) || !self.config.policy.fits(&to, &to) {
            return false;
        }
        let want = self.wanted(home, &ask);
        let asked = Asked { home, to, expected, purpose, sent_at: now, is_late: false };
        let Some(number) = self.asking.begin(asked) else { return false };
        let mut message = Message::query(&number, Query { id: own, want, ask });
        message.version = Some(&self.config.version);
        message.read_only = self.config.read_only;
        let bytes = message.encode();
        self.send(home, to, bytes);
        true
    }

    /// BEP 32: nodes of another network are learnt from those of this one, while few are known there.
    fn wanted(&self, home: HomeId, ask: &Ask<'_>) -> Option<Want> {
        if !matches!(ask, Ask::FindNode { .. } | Ask::GetPeers { .. }) {
            return None;
        }
        let own = self.homes.get(&home)?.family;
        let lacks = |family: &Family| {
            let is_ours = self.homes.values().any(|home| home.family == *family);
            is_ours && self.nodes(*family) < OTHERS_WANTED_BELOW
        };
        let others: Vec<Family> = Family::ALL.into_iter().filter(|family| *family != own && lacks(family)).collect();
        (!others.is_empty()).then(|| Want::of(others.into_iter().chain([own])))
    }

    pub(super) fn take_answer(
        &mut self,
        home: HomeId,
        from: Endpoint,
        message: &Message<'_>,
        answer: &Answer<'_>,
        now: Instant,
    ) {
        let Some(asked) = self.asking.take(home, &from, message.transaction) else {
            self.ignored += 1;
            return;
        };
        self.limits.proven(&from, now);
        let contact = Contact { id: answer.id, address: from };
        let is_as_expected = asked.expected.is_none_or(|expected| expected.id == contact.id);
        let is_as_expected = is_as_expected && Some(contact.id) != self.id(home);
        if let Some(expected) = asked.expected.filter(|_| !is_as_expected) {
            self.lost(home, &expected);
        }
        if let Some(address) = message.your_address {
            self.told_own_address(home, &from, address, now);
        }
        if is_as_expected && !message.read_only {
            self.enter(home, contact, now);
        }
        self.hear_of_others(home, &from, answer, now);
        match asked.purpose {
            Purpose::Ping => {}
            Purpose::Lookup(search) if is_as_expected => self.step_answered(search, &asked, contact, answer),
            Purpose::Lookup(search) => self.step_failed(search, &asked),
            Purpose::Store(search) => self.stored(search, home, is_as_expected),
        }
    }

    /// An error shows that somebody is there, and no more.
    pub(super) fn take_error(&mut self, home: HomeId, from: Endpoint, number: &[u8], _code: i64, now: Instant) {
        let Some(asked) = self.asking.take(home, &from, number) else {
            self.ignored += 1;
            return;
        };
        self.limits.proven(&from, now);
        self.unanswered(&asked);
    }

    /// Queries are late, or have no answer.
    pub(super) fn pass_time(&mut self, now: Instant) {
        while let Some((asked, is_over)) = self.asking.next_due(now) {
            match asked.purpose {
                Purpose::Lookup(search) if !is_over => self.step_late(search, &asked),
                _ if !is_over => {}
                _ => {
                    if let Some(expected) = asked.expected {
                        self.lost(asked.home, &expected);
                    }
                    self.unanswered(&asked);
                }
            }
        }
    }

    fn unanswered(&mut self, asked: &Asked) {
        match asked.purpose {
            Purpose::Ping => {}
            Purpose::Lookup(search) => self.step_failed(search, asked),
            Purpose::Store(search) => self.stored(search, asked.home, false),
        }
    }

    fn lost(&mut self, home: HomeId, contact: &Contact) {
        if let Some(home) = self.homes.get_mut(&home) {
            home.table.failed(contact);
        }
    }

    fn enter(&mut self, home: HomeId, contact: Contact, now: Instant) {
        let Some(place) = self.homes.get_mut(&home) else { return };
        if let Entered::StandsBy(Some(silent)) = place.table.answered(contact, now) {
            self.ping(home, silent.address, Some(silent), now);
        }
        self.entered(home, now);
    }

    /// Nodes of other networks that an answer names are asked themselves.
    fn hear_of_others(&mut self, home: HomeId, from: &Endpoint, answer: &Answer<'_>, now: Instant) {
        let Some(own) = self.homes.get(&home).map(|home| home.family) else { return };
        for family in Family::ALL.into_iter().filter(|family| *family != own) {
            if self.nodes(family) >= OTHERS_WANTED_BELOW {
                continue;
            }
            let policy = &self.config.policy;
            let named = answer.nodes.iter().map(|contact| contact.address);
            let fit = named.filter(|address| Family::of(address) == family && policy.fits(address, from));
            let fit: Vec<Endpoint> = fit.take(OTHERS_MAX).collect();
            fit.into_iter().for_each(|address| self.try_node(address, now));
        }
    }
}
