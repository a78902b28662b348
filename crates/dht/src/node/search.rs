//! Searches: a lookup in each of our networks, and what is kept at the nodes that it ends with.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use anabranch_paths::Endpoint;

use super::ask::{Asked, Purpose};
use super::{Dht, Event, HomeId, SearchId};
use crate::bloom::Bloom;
use crate::family::{Contact, Family};
use crate::id::NodeId;
use crate::items::{Item, mutable_target};
use crate::lookup::{Lookup, Next};
use crate::table::BUCKET_LEN;
use crate::wire::{Answer, Ask, MutableItem};

/// Searches at once.
pub const SEARCHES_MAX: usize = 64;
/// Peers that one search tells of.
const PEERS_MAX: usize = 2000;

/// What a search is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The nodes nearest to a name.
    Node {
        /// The name.
        target: NodeId,
    },
    /// Who has a content.
    Peers {
        /// Its info-hash; of a v2 hash the first 20 bytes (BEP 52).
        info_hash: NodeId,
        /// Say that we have it, too.
        announce: Option<Announce>,
        /// How many have it (BEP 33).
        scrape: bool,
    },
    /// An item (BEP 44).
    Item {
        /// Where it is kept.
        target: NodeId,
        /// Of one that its owner may change.
        salt: Vec<u8>,
    },
    /// Keep an item (BEP 44).
    Put {
        /// The item.
        item: Item,
        /// Only where the item that is kept has this number.
        cas: Option<i64>,
    },
    /// Which info-hashes are known around a name (BEP 51).
    Samples {
        /// The name.
        target: NodeId,
    },
}

/// What is said of us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announce {
    /// How peers reach us over IP; `None`: not at all, and nothing is said there.
    pub ip: Option<Port>,
    /// The same over SCION.
    pub scion: Option<Port>,
    /// We have all of it.
    pub seed: bool,
}

/// The port that peers reach us by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// That of the node's own socket, as others see it (BEP 5, "implied_port").
    OfSocket,
    /// This one.
    Number(u16),
}

impl Announce {
    fn port(&self, family: Family) -> Option<Option<u16>> {
        let port = if family == Family::Scion { self.scion } else { self.ip };
        port.map(|port| match port {
            Port::OfSocket => None,
            Port::Number(number) => Some(number),
        })
    }
}

/// What came of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Nodes that answered; where none did, there is no way into the network.
    pub answered: usize,
    /// Nodes that keep what the search brought.
    pub stored: usize,
    /// Seeds and others, about (BEP 33).
    pub scrape: Option<(f64, f64)>,
}

pub(super) struct Search {
    goal: Goal,
    /// Ours, to join a network or to refresh a bucket: nobody is told.
    pub(super) is_upkeep: bool,
    steps: BTreeMap<HomeId, Step>,
    told: HashSet<Endpoint>,
    newest: Option<i64>,
    scrape: Option<(Bloom, Bloom)>,
    outcome: Outcome,
}

struct Step {
    lookup: Lookup,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Looking,
    /// So many nodes were told, and did not answer yet.
    Storing(usize),
    Done,
}

impl Goal {
    fn target(&self) -> NodeId {
        match self {
            Self::Node { target } | Self::Item { target, .. } | Self::Samples { target } => *target,
            Self::Peers { info_hash, .. } => *info_hash,
            Self::Put { item, .. } => item.target(),
        }
    }

    fn ask(&self) -> Ask<'static> {
        match self {
            Self::Node { target } => Ask::FindNode { target: *target },
            Self::Peers { info_hash, scrape, .. } => {
                Ask::GetPeers { info_hash: *info_hash, no_seeds: false, scrape: *scrape }
            }
            Self::Item { target, .. } => Ask::Get { target: *target, seq: None },
            Self::Put { item, .. } => Ask::Get { target: item.target(), seq: None },
            Self::Samples { target } => Ask::SampleInfohashes { target: *target },
        }
    }
}

impl Search {
    pub(super) fn leave(&mut self, home: HomeId) {
        self.steps.remove(&home);
    }
}

impl Dht {
    /// Begins a search in all networks; `None` where there are [too many](SEARCHES_MAX). It tells by events what it finds, and that it
    /// has ended.
    pub fn search(&mut self, goal: Goal, now: Instant) -> Option<SearchId> {
        if self.searches.values().filter(|search| !search.is_upkeep).count() >= SEARCHES_MAX {
            return None;
        }
        let homes = self.homes.keys().copied().collect();
        let id = self.begin_search(goal, homes, false, now);
        self.pump(now);
        Some(id)
    }

    /// Ends a search; nothing more is told of it.
    pub fn cancel(&mut self, search: SearchId) {
        self.searches.remove(&search);
    }

    pub(super) fn begin_search(&mut self, goal: Goal, homes: Vec<HomeId>, is_upkeep: bool, now: Instant) -> SearchId {
        let (id, target) = (SearchId(self.next_search), goal.target());
        self.next_search += 1;
        let mut steps = BTreeMap::new();
        for home_id in homes {
            let Some(home) = self.homes.get_mut(&home_id) else { continue };
            home.table.looked_for(&target, now);
            let known = home.table.nearest_usable(&target, 2 * BUCKET_LEN);
            let seeds = if known.len() < BUCKET_LEN { home.upkeep.seeds() } else { Vec::new() };
            steps.insert(home_id, Step { lookup: Lookup::new(target, known, seeds), phase: Phase::Looking });
        }
        let search = Search {
            goal,
            is_upkeep,
            steps,
            told: HashSet::new(),
            newest: None,
            scrape: None,
            outcome: Outcome::default(),
        };
        self.searches.insert(id, search);
        id
    }

    /// Asks whom there is to ask, and ends what is done.
    pub(super) fn pump(&mut self, now: Instant) {
        let ids: Vec<SearchId> = self.searches.keys().copied().collect();
        for id in ids {
            let homes: Vec<HomeId> =
                self.searches.get(&id).into_iter().flat_map(|search| search.steps.keys().copied()).collect();
            for home in homes {
                self.ask_next(id, home, now);
                self.store_if_found(id, home, now);
            }
            let is_over = |search: &Search| search.steps.values().all(|step| step.phase == Phase::Done);
            if self.searches.get(&id).is_some_and(is_over)
                && let Some(search) = self.searches.remove(&id)
            {
                self.end(id, search, now);
            }
        }
    }

    fn ask_next(&mut self, id: SearchId, home: HomeId, now: Instant) {
        while self.asking.may_ask(now) {
            let Some(search) = self.searches.get_mut(&id) else { return };
            let ask = search.goal.ask();
            let Some(step) = search.steps.get_mut(&home).filter(|step| step.phase == Phase::Looking) else { return };
            let Some(next) = step.lookup.next() else { return };
            let (to, expected) = match next {
                Next::Contact(contact) => (contact.address, Some(contact)),
                Next::Seed(address) => (address, None),
            };
            if !self.ask(home, (to, expected), Purpose::Lookup(id), ask, now)
                && let Some(step) = self.step(id, home)
            {
                match expected {
                    Some(contact) => step.lookup.failed(&contact.id),
                    None => step.lookup.seed_answered(false, None),
                }
            }
        }
    }

    /// The lookup has ended: its nearest nodes are told what the search brings, if it brings anything.
    fn store_if_found(&mut self, id: SearchId, home: HomeId, now: Instant) {
        let Some(search) = self.searches.get_mut(&id) else { return };
        let Some(step) = search.steps.get_mut(&home) else { return };
        if step.phase != Phase::Looking || !step.lookup.is_done() {
            return;
        }
        search.outcome.answered += step.lookup.answered();
        step.phase = Phase::Done;
        let goal = search.goal.clone();
        let nearest = step.lookup.nearest().into_iter();
        let nearest: Vec<(Contact, Vec<u8>)> =
            nearest.filter_map(|(contact, token)| Some((contact, token?.to_vec()))).collect();
        let mut told = 0;
        for (contact, token) in &nearest {
            let ask = match &goal {
                Goal::Peers { info_hash, announce: Some(announce), .. } => {
                    let Some(port) = announce.port(Family::of(&contact.address)) else { break };
                    Ask::AnnouncePeer { info_hash: *info_hash, port, seed: announce.seed, token }
                }
                Goal::Put { item, cas } => Ask::Put {
                    token,
                    value: &item.value,
                    mutable: item.owner.as_ref().map(|owner| MutableItem {
                        key: &owner.key,
                        salt: &owner.salt,
                        seq: owner.seq,
                        signature: &owner.signature,
                    }),
                    cas: *cas,
                },
                _ => break,
            };
            told += usize::from(self.ask(home, (contact.address, Some(*contact)), Purpose::Store(id), ask, now));
        }
        if told > 0
            && let Some(step) = self.step(id, home)
        {
            step.phase = Phase::Storing(told);
        }
    }

    fn end(&mut self, id: SearchId, search: Search, now: Instant) {
        let mut outcome = search.outcome;
        outcome.scrape = search.scrape.map(|(seeds, others)| (seeds.estimate(), others.estimate()));
        if search.is_upkeep {
            search.steps.keys().for_each(|home| self.kept_up(*home, id, now));
        } else {
            self.tell(Event::Ended { search: id, outcome });
        }
    }

    fn step(&mut self, search: SearchId, home: HomeId) -> Option<&mut Step> {
        self.searches.get_mut(&search)?.steps.get_mut(&home)
    }

    pub(super) fn step_late(&mut self, search: SearchId, asked: &Asked) {
        let Some(step) = self.step(search, asked.home) else { return };
        match asked.expected {
            Some(expected) => step.lookup.late(&expected.id),
            None => step.lookup.seed_late(),
        }
    }

    pub(super) fn step_failed(&mut self, search: SearchId, asked: &Asked) {
        let Some(step) = self.step(search, asked.home) else { return };
        match asked.expected {
            Some(expected) => step.lookup.failed(&expected.id),
            None => step.lookup.seed_answered(asked.is_late, None),
        }
    }

    pub(super) fn stored(&mut self, search: SearchId, home: HomeId, is_kept: bool) {
        let Some(search) = self.searches.get_mut(&search) else { return };
        search.outcome.stored += usize::from(is_kept);
        if let Some(step) = search.steps.get_mut(&home)
            && let Phase::Storing(left) = step.phase
        {
            step.phase = if left <= 1 { Phase::Done } else { Phase::Storing(left - 1) };
        }
    }

    /// A node answered a step of a lookup.
    pub(super) fn step_answered(&mut self, id: SearchId, asked: &Asked, contact: Contact, answer: &Answer<'_>) {
        let own = self.id(asked.home);
        let policy = &self.config.policy;
        let from = contact.address;
        let Some(search) = self.searches.get_mut(&id) else { return };
        let Some(step) = search.steps.get_mut(&asked.home) else { return };
        match asked.expected {
            Some(expected) => step.lookup.answered_by(&expected.id, answer.token),
            None => step.lookup.seed_answered(asked.is_late, Some((contact, answer.token))),
        }
        let is_fit = |address: &Endpoint| policy.fits(address, &from) && !policy.blocks(address);
        let of_family = answer.nodes.iter().filter(|contact| Family::of(&contact.address) == Family::of(&from));
        step.lookup.named(of_family.filter(|node| is_fit(&node.address) && Some(node.id) != own).copied());
        let mut events = Vec::new();
        match &search.goal {
            Goal::Node { .. } | Goal::Put { .. } => {}
            Goal::Peers { .. } => {
                let room = PEERS_MAX.saturating_sub(search.told.len());
                let told = &mut search.told;
                let peers = answer.values.iter().filter(|peer| is_fit(peer));
                let peers: Vec<Endpoint> = peers.filter(|peer| told.insert(**peer)).take(room).copied().collect();
                if !peers.is_empty() {
                    events.push(Event::Peers { search: id, from, peers });
                }
                if let Some(scrape) = &answer.scrape {
                    let (seeds, others) = search.scrape.get_or_insert_default();
                    seeds.merge(&scrape.0);
                    others.merge(&scrape.1);
                }
            }
            Goal::Item { target, salt } => {
                let item = proven_item(answer, target, salt);
                let is_newer = |item: &Item| {
                    let seq = item.owner.as_ref().map_or(0, |owner| owner.seq);
                    search.newest.is_none_or(|newest| seq > newest)
                };
                if let Some(item) = item.filter(is_newer) {
                    search.newest = Some(item.owner.as_ref().map_or(0, |owner| owner.seq));
                    events.push(Event::Item { search: id, item });
                }
            }
            Goal::Samples { .. } => {
                events.extend(answer.samples.clone().map(|samples| Event::Samples { search: id, from, samples }));
            }
        }
        events.into_iter().for_each(|event| self.tell(event));
    }
}

/// The item of an answer, if it is the one that was asked for, and its owner's.
fn proven_item(answer: &Answer<'_>, target: &NodeId, salt: &[u8]) -> Option<Item> {
    let mutable = match (answer.item_key, answer.seq) {
        (Some((key, signature)), Some(seq)) if mutable_target(key, salt) == *target => {
            Some(MutableItem { key, salt, seq, signature })
        }
        _ => None,
    };
    let item = Item::received(answer.item?, mutable.as_ref());
    (item.target() == *target && item.verify().is_ok()).then_some(item)
}
