//! The routing table of one network: few nodes far away, many nearby (BEP 5, "routing table").
//!
//! A bucket for each number of leading bits that nodes have in common with us; the last one holds all that are nearer, and is split when it is
//! full. A node comes in when it answered us. It is *good* while it is heard from, *questionable* when silent for fifteen minutes,
//! *bad* after failures. For a full bucket's bad nodes stand others by.
//!
//! Nobody gets in by being many: an address has one place in the table, a network two in a bucket, and whoever has a name that its
//! address may not have (BEP 42) goes first.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anabranch_paths::{Endpoint, Host};

use crate::family::Contact;
use crate::id::{ID_BITS, NodeId, network_of};

/// BEP 5: "K is currently eight".
pub const BUCKET_LEN: usize = 8;
/// BEP 5: a node is good that answered within so long; a bucket is refreshed that did not change for so long.
pub(crate) const FRESH_FOR: Duration = Duration::from_secs(15 * 60);
/// Queries in a row without an answer after which a node is bad.
pub(crate) const FAILURES_BAD: u8 = 2;
/// Bad nodes go after so many, also when nobody takes the place: we may be the one who is offline, so not at once.
const FAILURES_MAX: u8 = 5;
/// Nodes of one network in a bucket.
const OF_NETWORK_MAX: usize = 2;

/// A node of the table.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) contact: Contact,
    /// Its name is one that its address may have.
    pub(crate) is_secure: bool,
    heard_at: Instant,
    failures: u8,
}

#[derive(Debug)]
struct Bucket {
    nodes: Vec<Node>,
    /// Stand by, the latest last.
    spare: Vec<Node>,
    refreshed_at: Instant,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Table {
    own: NodeId,
    buckets: Vec<Bucket>,
    /// Who has a place, live or spare: one for each host, and on the loopback for each port.
    places: HashMap<(Host, u16), NodeId>,
}

/// What became of a node that answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// It is in the table.
    In,
    /// It stands by; this one of its bucket was silent for longest, and should be asked whether it is there.
    StandsBy(Option<Contact>),
    /// There is no place for it.
    Refused,
}

impl Node {
    fn new(contact: Contact, now: Instant) -> Self {
        Self { contact, is_secure: contact.id.is_secure(&contact.address), heard_at: now, failures: 0 }
    }

    fn is_bad(&self) -> bool {
        self.failures >= FAILURES_BAD
    }

    fn is_good(&self, now: Instant) -> bool {
        self.failures == 0 && now < self.heard_at + FRESH_FOR
    }

    /// Goes first when a place is needed.
    fn worth(&self) -> (bool, bool, Instant) {
        (!self.is_bad(), self.is_secure, self.heard_at)
    }
}

impl Table {
    pub(crate) fn new(own: NodeId, now: Instant) -> Self {
        Self { own, buckets: vec![Bucket::new(now)], places: HashMap::new() }
    }

    pub(crate) fn own(&self) -> NodeId {
        self.own
    }

    /// Nodes that are not bad.
    pub(crate) fn len(&self) -> usize {
        self.nodes().filter(|node| !node.is_bad()).count()
    }

    /// Nodes that are good.
    pub(crate) fn good(&self, now: Instant) -> impl Iterator<Item = &Node> {
        self.nodes().filter(move |node| node.is_good(now))
    }

    /// Calls itself by another name from now on; nodes find their new places.
    pub(crate) fn rename(&mut self, own: NodeId, now: Instant) {
        let nodes: Vec<Node> = self.buckets.drain(..).flat_map(|bucket| bucket.nodes).collect();
        *self = Self::new(own, now);
        for node in nodes.into_iter().filter(|node| !node.is_bad()) {
            self.enter(node, now);
        }
    }

    /// The node answered a query of ours.
    pub(crate) fn answered(&mut self, contact: Contact, now: Instant) -> Entered {
        if contact.id == self.own {
            return Entered::Refused;
        }
        match self.places.get(&place(&contact.address)).copied() {
            Some(id) if id == contact.id => {
                if let Some(node) = self.find(&contact) {
                    node.contact.address = contact.address;
                    (node.heard_at, node.failures) = (now, 0);
                    return Entered::In;
                }
                // A spare one: it comes in anew.
                self.remove(&contact.address);
            }
            // The host has another name than before.
            Some(_) => self.remove(&contact.address),
            None => {}
        }
        // A name belongs to whoever has it, as long as that one is there.
        if let Some(held) = self.by_id(&contact.id) {
            if !held.is_bad() {
                return Entered::Refused;
            }
            let address = held.contact.address;
            self.remove(&address);
        }
        self.enter(Node::new(contact, now), now)
    }

    /// The node asked us something. Answers whether it is worth asking it, too.
    pub(crate) fn asked(&mut self, contact: Contact, now: Instant) -> bool {
        if let Some(node) = self.find(&contact) {
            // BEP 5: good is also who ever answered, and asked within 15 minutes.
            if !node.is_bad() {
                node.heard_at = now;
            }
            return false;
        }
        contact.id != self.own && !self.places.contains_key(&place(&contact.address)) && self.has_room(&contact)
    }

    /// The node did not answer a query of ours.
    pub(crate) fn failed(&mut self, contact: &Contact) {
        let Some(node) = self.find(contact) else { return };
        node.failures = node.failures.saturating_add(1);
        let (is_bad, is_lost) = (node.is_bad(), node.failures >= FAILURES_MAX);
        let at = self.bucket_of(&contact.id);
        if is_lost || is_bad && !self.buckets[at].spare.is_empty() {
            self.remove(&contact.address);
            if let Some(spare) = self.buckets[at].spare.pop() {
                self.buckets[at].nodes.push(spare);
            }
        }
    }

    /// The nearest nodes to `target` that are good, the nearest first.
    pub(crate) fn nearest(&self, target: &NodeId, max: usize, now: Instant) -> Vec<Contact> {
        self.sorted(target, max, self.good(now))
    }

    /// The same of all that are not bad.
    pub(crate) fn nearest_usable(&self, target: &NodeId, max: usize) -> Vec<Contact> {
        self.sorted(target, max, self.nodes().filter(|node| !node.is_bad()))
    }

    fn sorted<'a>(&self, target: &NodeId, max: usize, nodes: impl Iterator<Item = &'a Node>) -> Vec<Contact> {
        let mut found: Vec<Contact> = nodes.map(|node| node.contact).collect();
        found.sort_by_key(|contact| contact.id.distance(target));
        found.truncate(max);
        found
    }

    /// A name to look for, in a bucket in which nothing happened for long; it counts as refreshed from now on.
    pub(crate) fn refresh(&mut self, rng: &mut fastrand::Rng, now: Instant) -> Option<NodeId> {
        let due = |bucket: &Bucket| now >= bucket.refreshed_at + FRESH_FOR;
        let at = self.buckets.iter().position(due)?;
        self.buckets[at].refreshed_at = now;
        Some(self.own.at_depth(at, rng))
    }

    /// All buckets are due, but for the one that we are in.
    pub(crate) fn refresh_all(&mut self, now: Instant) {
        let Some((_, far)) = self.buckets.split_last_mut() else { return };
        // A clock that began just now has nothing before it: then they are due when all are.
        let due = now.checked_sub(FRESH_FOR).unwrap_or(now);
        far.iter_mut().for_each(|bucket| bucket.refreshed_at = due);
    }

    /// Somebody looks for `target`: its bucket need not be refreshed soon.
    pub(crate) fn looked_for(&mut self, target: &NodeId, now: Instant) {
        let at = self.bucket_of(target);
        self.buckets[at].refreshed_at = now;
    }

    /// Who should be asked whether it is there: the one longest silent of those that are questionable.
    pub(crate) fn questionable(&self, now: Instant, may_be_asked: impl Fn(&Contact) -> bool) -> Option<Contact> {
        let silent = self.nodes().filter(|node| now >= node.heard_at + FRESH_FOR && may_be_asked(&node.contact));
        silent.min_by_key(|node| (node.failures, node.heard_at)).map(|node| node.contact)
    }

    /// When there is something to do: a bucket to refresh, or a node to ask.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let heard = self.nodes().map(|node| node.heard_at);
        let refreshed = self.buckets.iter().filter(|_| !self.places.is_empty()).map(|bucket| bucket.refreshed_at);
        heard.chain(refreshed).min().map(|at| at + FRESH_FOR)
    }

    fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.buckets.iter().flat_map(|bucket| &bucket.nodes)
    }

    fn bucket_of(&self, id: &NodeId) -> usize {
        self.own.shared_bits(id).min(self.buckets.len() - 1)
    }

    fn find(&mut self, contact: &Contact) -> Option<&mut Node> {
        let at = self.bucket_of(&contact.id);
        let same =
            |node: &&mut Node| node.contact.id == contact.id && place(&node.contact.address) == place(&contact.address);
        self.buckets[at].nodes.iter_mut().find(same)
    }

    fn by_id(&self, id: &NodeId) -> Option<&Node> {
        self.buckets[self.bucket_of(id)].nodes.iter().find(|node| node.contact.id == *id)
    }

    /// Whether there is a free place, or one that would be given up.
    fn has_room(&self, contact: &Contact) -> bool {
        let at = self.bucket_of(&contact.id);
        let bucket = &self.buckets[at];
        let (is_full, is_last) = (bucket.nodes.len() >= BUCKET_LEN, at + 1 == self.buckets.len() && at + 1 < ID_BITS);
        let gives_way = |node: &Node| node.is_bad() || !node.is_secure && contact.id.is_secure(&contact.address);
        bucket.of_network(&contact.address) < OF_NETWORK_MAX
            && (!is_full || is_last || bucket.nodes.iter().any(gives_way))
    }

    fn enter(&mut self, node: Node, now: Instant) -> Entered {
        loop {
            let at = self.bucket_of(&node.contact.id);
            let (count, is_last) = (self.buckets.len(), at + 1 == self.buckets.len());
            let bucket = &mut self.buckets[at];
            if bucket.of_network(&node.contact.address) >= OF_NETWORK_MAX {
                return Entered::Refused;
            }
            if bucket.nodes.len() < BUCKET_LEN {
                self.take_place(at, node);
                return Entered::In;
            }
            if is_last && count < ID_BITS {
                self.split(now);
                continue;
            }
            let worst = bucket.nodes.iter().enumerate().min_by_key(|(_, held)| held.worth()).map(|(worst, _)| worst);
            let Some(worst) = worst else { return Entered::Refused };
            let held = &bucket.nodes[worst];
            if held.is_bad() || node.is_secure && !held.is_secure {
                let address = held.contact.address;
                self.remove(&address);
                self.take_place(at, node);
                return Entered::In;
            }
            return self.stand_by(at, node, now);
        }
    }

    fn take_place(&mut self, at: usize, node: Node) {
        self.places.insert(place(&node.contact.address), node.contact.id);
        self.buckets[at].nodes.push(node);
    }

    fn stand_by(&mut self, at: usize, node: Node, now: Instant) -> Entered {
        if !node.is_secure {
            return Entered::Refused;
        }
        if self.buckets[at].spare.len() >= BUCKET_LEN {
            let oldest = self.buckets[at].spare.remove(0);
            self.places.remove(&place(&oldest.contact.address));
        }
        self.places.insert(place(&node.contact.address), node.contact.id);
        self.buckets[at].spare.push(node);
        let silent = self.buckets[at].nodes.iter().filter(|node| !node.is_good(now));
        Entered::StandsBy(silent.min_by_key(|node| node.heard_at).map(|node| node.contact))
    }

    /// The last bucket becomes two.
    fn split(&mut self, now: Instant) {
        let depth = self.buckets.len() - 1;
        let mut near = Bucket::new(now);
        let Some(last) = self.buckets.last_mut() else { return };
        near.refreshed_at = last.refreshed_at;
        let own = self.own;
        for (from, to) in [(&mut last.nodes, &mut near.nodes), (&mut last.spare, &mut near.spare)] {
            let nearer = |node: &mut Node| own.shared_bits(&node.contact.id) > depth;
            to.extend(from.extract_if(.., nearer));
        }
        self.buckets.push(near);
    }

    fn remove(&mut self, address: &Endpoint) {
        let Some(id) = self.places.remove(&place(address)) else { return };
        let at = self.bucket_of(&id);
        let is_other = |node: &Node| node.contact.id != id || place(&node.contact.address) != place(address);
        self.buckets[at].nodes.retain(is_other);
        self.buckets[at].spare.retain(is_other);
    }
}

impl Bucket {
    fn new(now: Instant) -> Self {
        Self { nodes: Vec::new(), spare: Vec::new(), refreshed_at: now }
    }

    fn of_network(&self, address: &Endpoint) -> usize {
        let Some(network) = network_of(address) else { return 0 };
        self.nodes.iter().chain(&self.spare).filter(|node| network_of(&node.contact.address) == Some(network)).count()
    }
}

/// Who has one place: a host, but on the loopback each program.
pub(crate) fn place(address: &Endpoint) -> (Host, u16) {
    let host = Host::of(address);
    (host, if host.is_loopback() { address.socket_addr().port() } else { 0 })
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
