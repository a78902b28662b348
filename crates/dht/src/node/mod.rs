//! One node: all of the others together.
//!
//! | module | what it does |
//! | --- | --- |
//! | this one | what the driver calls; datagrams come in and are told apart |
//! | `answer` | answers others' queries |
//! | `ask` | our own queries, and what becomes of them |
//! | `search` | lookups in all networks at once, and what follows from them |
//! | `upkeep` | joins networks, keeps tables fresh, learns our own address |

mod answer;
mod ask;
mod search;
mod upkeep;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use anabranch_paths::Endpoint;

use crate::family::{Contact, Family};
use crate::id::NodeId;
use crate::items::Items;
use crate::limit::Limits;
use crate::peers::Peers;
use crate::snapshot::Saved;
use crate::table::Table;
use crate::token::Tokens;
use crate::wire::{self, Body, Parsed};

use ask::Asking;
use search::Search;
pub use search::{Announce, Goal, Outcome, Port, SEARCHES_MAX};
use upkeep::Upkeep;

/// Networks, and addresses of ours in them, that one node is in: each is a node of its own to others (BEP 45).
pub const HOMES_MAX: usize = 32;
/// What is kept of others is looked over so often.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);
/// Events that wait for the driver; lookups tell what they find at once, and further ones are let go.
const EVENTS_MAX: usize = 4096;

/// Number of one of our places in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HomeId(pub u32);

/// Number of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SearchId(pub u64);

/// What the driver decides for the core.
pub trait Policy {
    /// Whether whom we meet at `met_at` may name `address` to us, and is told of it.
    fn fits(&self, address: &Endpoint, met_at: &Endpoint) -> bool;
    /// Whether we have nothing to do with whoever is at `address`.
    fn blocks(&self, address: &Endpoint) -> bool;
}

/// Choices, and randomness of the caller's.
pub struct Config {
    /// Nobody may know it: from it come tokens and the numbers of queries.
    pub secret: [u8; 16],
    /// Decides every other random choice.
    pub seed: u64,
    /// Answer no queries, and say so (BEP 43): where nobody reaches us.
    pub read_only: bool,
    /// Four bytes that tell our program.
    pub version: [u8; 4],
    /// Whom we deal with.
    pub policy: Box<dyn Policy>,
}

/// One of our places in a network: an address of ours, with a name and a table of its own.
#[derive(Clone, Debug)]
pub struct HomeConfig {
    /// The network.
    pub family: Family,
    /// Our address as others see it, where it is known for sure.
    pub address: Option<Endpoint>,
    /// What was [kept](Dht::snapshot) of an earlier run.
    pub saved: Option<Saved>,
}

/// A datagram to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// From which of our places.
    pub home: HomeId,
    /// Where to.
    pub to: Endpoint,
    /// What.
    pub bytes: Vec<u8>,
}

/// Something that the driver may want to know.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A search found peers.
    Peers {
        /// Which search.
        search: SearchId,
        /// Who said so.
        from: Endpoint,
        /// Whom it named, and may name.
        peers: Vec<Endpoint>,
    },
    /// A search found an item, which is proven; a newer one may follow.
    Item {
        /// Which search.
        search: SearchId,
        /// The item.
        item: crate::items::Item,
    },
    /// A node told some of the info-hashes that it knows (BEP 51).
    Samples {
        /// Which search.
        search: SearchId,
        /// Who.
        from: Endpoint,
        /// What.
        samples: crate::wire::Samples,
    },
    /// A search has ended.
    Ended {
        /// Which one.
        search: SearchId,
        /// What came of it.
        outcome: Outcome,
    },
    /// The first node of a network is known: searches lead somewhere from here on.
    Met {
        /// Which place of ours.
        home: HomeId,
    },
    /// A network is joined: its nearest nodes are known.
    Joined {
        /// Which place of ours.
        home: HomeId,
    },
    /// Others agree on which address of ours they see (BEP 42).
    Address {
        /// Which place of ours.
        home: HomeId,
        /// The address.
        address: Endpoint,
    },
}

/// Numbers of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Nodes in all tables that are not bad.
    pub nodes: usize,
    /// Contents that announces are kept of, and these.
    pub swarms: usize,
    /// Announces.
    pub peers: usize,
    /// Items.
    pub items: usize,
    /// Queries that were answered.
    pub answered: u64,
    /// Datagrams that were left: no messages, beyond the limits, answers to nothing.
    pub ignored: u64,
}

struct Home {
    family: Family,
    table: Table,
    upkeep: Upkeep,
}

/// A node.
pub struct Dht {
    config: Config,
    rng: fastrand::Rng,
    homes: BTreeMap<HomeId, Home>,
    next_home: u32,
    peers: Peers,
    items: Items,
    tokens: Tokens,
    limits: Limits,
    asking: Asking,
    searches: BTreeMap<SearchId, Search>,
    next_search: u64,
    out: VecDeque<Transmit>,
    events: VecDeque<Event>,
    expire_at: Instant,
    answered: u64,
    ignored: u64,
}

impl Dht {
    /// A node that is in no network yet.
    pub fn new(config: Config, now: Instant) -> Self {
        let (mut token_key, mut query_key) = (config.secret, config.secret);
        // Two purposes, two keys: what one lets out tells nothing of the other.
        (token_key[0], query_key[0]) = (token_key[0] ^ 0x5a, query_key[0] ^ 0xa5);
        Self {
            rng: fastrand::Rng::with_seed(config.seed),
            tokens: Tokens::new(token_key, now),
            limits: Limits::new(now),
            asking: Asking::new(query_key, now),
            config,
            homes: BTreeMap::new(),
            next_home: 0,
            peers: Peers::default(),
            items: Items::default(),
            searches: BTreeMap::new(),
            next_search: 0,
            out: VecDeque::new(),
            events: VecDeque::new(),
            expire_at: now + EXPIRE_EVERY,
            answered: 0,
            ignored: 0,
        }
    }

    /// Takes a place in a network; `None` where there are too many.
    pub fn add_home(&mut self, config: HomeConfig, now: Instant) -> Option<HomeId> {
        if self.homes.len() >= HOMES_MAX {
            return None;
        }
        let id = HomeId(self.next_home);
        self.next_home += 1;
        let saved = config.saved.unwrap_or_default();
        let fits = |id: &NodeId| config.address.is_none_or(|address| id.is_secure(&address));
        let own = saved.id.filter(fits).unwrap_or_else(|| match &config.address {
            Some(address) => NodeId::secure(address, self.rng.u8(..), &mut self.rng),
            None => NodeId::random(&mut self.rng),
        });
        let upkeep = Upkeep::new(saved.contacts, now);
        self.homes.insert(id, Home { family: config.family, table: Table::new(own, now), upkeep });
        Some(id)
    }

    /// Gives a place up: its address is gone.
    pub fn remove_home(&mut self, home: HomeId, now: Instant) {
        self.homes.remove(&home);
        self.asking.forget_home(home);
        self.out.retain(|transmit| transmit.home != home);
        self.searches.values_mut().for_each(|search| search.leave(home));
        self.pump(now);
    }

    /// A datagram came to one of our places.
    pub fn receive(&mut self, home: HomeId, from: Endpoint, datagram: &[u8], now: Instant) {
        let is_known = self.homes.get(&home).is_some_and(|home| home.family == Family::of(&from));
        if !is_known || self.config.policy.blocks(&from) || datagram.len() > wire::DATAGRAM_LEN_MAX {
            self.ignored += 1;
            return;
        }
        let read = wire::parse(datagram, |parsed| match parsed {
            Parsed::Refused { transaction, refusal } => {
                self.refuse_unread(home, (from, datagram.len()), transaction, refusal, now);
            }
            Parsed::Message(message) => match message.body {
                Body::Query(ref query) => self.answer(home, (from, datagram.len()), &message, query, now),
                Body::Answer(ref answer) => self.take_answer(home, from, &message, answer, now),
                Body::Error { code, .. } => self.take_error(home, from, message.transaction, code, now),
            },
        });
        if read.is_err() {
            self.ignored += 1;
        }
        self.pump(now);
    }

    /// A datagram to send, if there is one.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.out.pop_front()
    }

    /// What happened, if anything.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Dht::on_deadline`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let homes = self.homes.values().filter_map(|home| home.upkeep.deadline(&home.table));
        let expire = self.has_stored().then_some(self.expire_at);
        homes.chain(expire).chain(self.asking.deadline()).chain(self.paced_until()).min()
    }

    /// Time has passed.
    pub fn on_deadline(&mut self, now: Instant) {
        if now >= self.expire_at {
            self.expire_at = now + EXPIRE_EVERY;
            self.peers.expire(now);
            self.items.expire(now);
        }
        self.pass_time(now);
        self.keep_up(now);
        self.pump(now);
    }

    /// Somebody may be a node: the user, a torrent or a peer's PORT message says so. It is asked, and told of only once it answered.
    pub fn add_node(&mut self, address: Endpoint, now: Instant) {
        self.try_node(address, now);
        self.pump(now);
    }

    /// Nodes that are not bad, in one network.
    pub fn nodes(&self, family: Family) -> usize {
        self.homes.values().filter(|home| home.family == family).map(|home| home.table.len()).sum()
    }

    /// Whether a network is being joined.
    pub fn is_joining(&self) -> bool {
        self.homes.values().any(|home| home.upkeep.is_joining())
    }

    /// The name of one of our places.
    pub fn id(&self, home: HomeId) -> Option<NodeId> {
        self.homes.get(&home).map(|home| home.table.own())
    }

    /// What to keep of one of our places for the next run: its name and good nodes.
    pub fn snapshot(&self, home: HomeId, now: Instant) -> Option<Saved> {
        let home = self.homes.get(&home)?;
        let own = home.table.own();
        let mut contacts: Vec<Contact> = home.table.good(now).map(|node| node.contact).collect();
        if contacts.is_empty() {
            // We were offline: what was known before is worth more than nothing.
            contacts = home.table.nearest_usable(&own, crate::snapshot::CONTACTS_MAX);
        }
        if contacts.is_empty() {
            contacts = home.upkeep.saved().to_vec();
        }
        Some(Saved { id: Some(own), contacts })
    }

    /// Numbers.
    pub fn stats(&self) -> Stats {
        let (swarms, peers) = self.peers.counts();
        Stats {
            nodes: self.homes.values().map(|home| home.table.len()).sum(),
            swarms,
            peers,
            items: self.items.len(),
            answered: self.answered,
            ignored: self.ignored,
        }
    }

    fn has_stored(&self) -> bool {
        self.peers.counts().0 > 0 || self.items.len() > 0
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() < EVENTS_MAX || matches!(event, Event::Ended { .. }) {
            self.events.push_back(event);
        }
    }

    fn send(&mut self, home: HomeId, to: Endpoint, bytes: Vec<u8>) {
        self.out.push_back(Transmit { home, to, bytes });
    }
}
