//! One way through the table to what is nearest to a target, in one network (BEP 5: "the original node iteratively queries nodes that are
//! closer").
//!
//! It ends when the eight nearest nodes that there seem to be have answered. What answers name is hearsay: a node counts once it answered
//! itself, a name that its address may not have (BEP 42) counts for none of the eight, and an address, a network and whoever names nodes have a
//! share of the candidates only. So liars cost queries, of which there is a limit, and hide nobody.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use anabranch_paths::{Endpoint, Host};

use crate::family::Contact;
use crate::id::{Distance, NodeId, network_of};
use crate::table::{BUCKET_LEN, place};

/// Queries under way at once whose answer is not late: Kademlia's alpha.
pub const ALPHA: usize = 4;
/// Queries of one lookup in all: a network of millions needs a third.
pub const QUERIES_MAX: usize = 120;
/// Candidates that are remembered; the farthest go.
const CANDIDATES_MAX: usize = 256;
/// Candidates that are taken from one answer.
const FROM_ONE_MAX: usize = BUCKET_LEN;
/// Candidates of one network.
const OF_NETWORK_MAX: usize = 4;
/// Nodes with names that their addresses may not have that are asked.
const INSECURE_MAX: usize = BUCKET_LEN;
/// Addresses to begin from whose names are not known.
const SEEDS_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fresh,
    Asked,
    /// Asked, and the answer is late: others are asked meanwhile.
    Late,
    Answered,
    Failed,
}

#[derive(Clone, Debug)]
struct Candidate {
    contact: Contact,
    is_secure: bool,
    state: State,
    token: Option<Box<[u8]>>,
}

/// A lookup under way.
#[derive(Debug)]
pub(crate) struct Lookup {
    target: NodeId,
    candidates: BTreeMap<Distance, Candidate>,
    places: HashSet<(Host, u16)>,
    networks: HashMap<(u64, IpAddr), usize>,
    /// To be asked who they are.
    seeds: Vec<Endpoint>,
    /// Seeds under way.
    seeds_asked: usize,
    /// Seeds whose answer is late.
    seeds_late: usize,
    asked: usize,
}

/// Whom to ask next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Contact(Contact),
    Seed(Endpoint),
}

impl Lookup {
    /// From the nodes that are known, `seeds` among them, of which the addresses alone are.
    pub(crate) fn new(target: NodeId, known: Vec<Contact>, seeds: Vec<Endpoint>) -> Self {
        let mut lookup = Self {
            target,
            candidates: BTreeMap::new(),
            places: HashSet::new(),
            networks: HashMap::new(),
            seeds: seeds.into_iter().take(SEEDS_MAX).collect(),
            seeds_asked: 0,
            seeds_late: 0,
            asked: 0,
        };
        known.into_iter().for_each(|contact| lookup.add(contact));
        lookup
    }

    /// What one answer names.
    pub(crate) fn named(&mut self, contacts: impl Iterator<Item = Contact>) {
        let mut contacts: Vec<Contact> = contacts.collect();
        // Whoever names more than it should is believed what is nearest.
        contacts.sort_by_key(|contact| contact.id.distance(&self.target));
        contacts.into_iter().take(FROM_ONE_MAX).for_each(|contact| self.add(contact));
    }

    fn add(&mut self, contact: Contact) {
        let distance = contact.id.distance(&self.target);
        let (place, network) = (place(&contact.address), network_of(&contact.address));
        let is_crowded =
            network.is_some_and(|network| self.networks.get(&network).is_some_and(|count| *count >= OF_NETWORK_MAX));
        if self.candidates.contains_key(&distance) || self.places.contains(&place) || is_crowded {
            return;
        }
        self.places.insert(place);
        if let Some(network) = network {
            *self.networks.entry(network).or_default() += 1;
        }
        let is_secure = contact.id.is_secure(&contact.address);
        self.candidates.insert(distance, Candidate { contact, is_secure, state: State::Fresh, token: None });
        if self.candidates.len() > CANDIDATES_MAX {
            let farthest = self.candidates.iter().rev().find(|(_, candidate)| candidate.state == State::Fresh);
            if let Some(distance) = farthest.map(|(distance, _)| *distance) {
                // Its place stays taken: whoever was too far away once is so later.
                self.candidates.remove(&distance);
            }
        }
    }

    /// Whom to ask now, if anybody; it counts as asked.
    pub(crate) fn next(&mut self) -> Option<Next> {
        if self.asked >= QUERIES_MAX || self.under_way() >= ALPHA {
            return None;
        }
        if let Some(distance) = self.next_fresh() {
            let candidate = self.candidates.get_mut(&distance)?;
            candidate.state = State::Asked;
            self.asked += 1;
            return Some(Next::Contact(candidate.contact));
        }
        // Who bootstraps others has enough to do: only where there is nobody else.
        if self.answered() >= BUCKET_LEN {
            return None;
        }
        let seed = self.seeds.pop()?;
        self.seeds_asked += 1;
        self.asked += 1;
        Some(Next::Seed(seed))
    }

    /// The nearest that was not asked, unless enough that are nearer answered or are about to.
    fn next_fresh(&self) -> Option<Distance> {
        let (mut counted, mut insecure) = (0, 0);
        for (distance, candidate) in &self.candidates {
            if !candidate.is_secure && candidate.state != State::Failed {
                insecure += 1;
            }
            match candidate.state {
                State::Fresh if candidate.is_secure || insecure <= INSECURE_MAX => return Some(*distance),
                State::Asked | State::Answered if candidate.is_secure => counted += 1,
                _ => {}
            }
            if counted >= BUCKET_LEN {
                return None;
            }
        }
        None
    }

    /// The node answered; its token is kept.
    pub(crate) fn answered_by(&mut self, id: &NodeId, token: Option<&[u8]>) {
        if let Some(candidate) = self.candidate(id) {
            candidate.state = State::Answered;
            candidate.token = token.map(Box::from);
        }
    }

    /// The answer of a seed takes longer than usual.
    pub(crate) fn seed_late(&mut self) {
        if self.seeds_asked > 0 {
            self.seeds_asked -= 1;
            self.seeds_late += 1;
        }
    }

    /// A seed answered, by this name; or did not. It may have been [late](Self::seed_late).
    pub(crate) fn seed_answered(&mut self, was_late: bool, contact: Option<(Contact, Option<&[u8]>)>) {
        let waited_for = if was_late { &mut self.seeds_late } else { &mut self.seeds_asked };
        *waited_for = waited_for.saturating_sub(1);
        if let Some((contact, token)) = contact {
            self.add(contact);
            self.answered_by(&contact.id, token);
        }
    }

    /// The node did not answer, or not as who it is said to be.
    pub(crate) fn failed(&mut self, id: &NodeId) {
        let Some(candidate) = self.candidate(id) else { return };
        if matches!(candidate.state, State::Answered | State::Failed) {
            return;
        }
        candidate.state = State::Failed;
        // Whoever named it may have lied of its name: by another one it, and others of its network, may still be asked.
        let address = candidate.contact.address;
        self.places.remove(&place(&address));
        if let Some(count) = network_of(&address).and_then(|network| self.networks.get_mut(&network)) {
            *count = count.saturating_sub(1);
        }
    }

    /// The answer takes longer than usual.
    pub(crate) fn late(&mut self, id: &NodeId) {
        if let Some(candidate) = self.candidate(id)
            && candidate.state == State::Asked
        {
            candidate.state = State::Late;
        }
    }

    fn candidate(&mut self, id: &NodeId) -> Option<&mut Candidate> {
        self.candidates.get_mut(&id.distance(&self.target))
    }

    fn count(&self, state: State) -> usize {
        self.candidates.values().filter(|candidate| candidate.state == state).count()
    }

    fn under_way(&self) -> usize {
        self.count(State::Asked) + self.seeds_asked
    }

    /// Nodes that answered.
    pub(crate) fn answered(&self) -> usize {
        self.count(State::Answered)
    }

    /// Whether nobody is left to ask or to wait for. Late answers are waited for where there are not enough others.
    pub(crate) fn is_done(&self) -> bool {
        let may_ask = self.asked < QUERIES_MAX
            && (self.next_fresh().is_some() || !self.seeds.is_empty() && self.answered() < BUCKET_LEN);
        let is_anybody_late = self.count(State::Late) > 0 || self.seeds_late > 0;
        let waits = self.under_way() > 0 || is_anybody_late && self.answered() < BUCKET_LEN;
        !may_ask && !waits
    }

    /// The nearest that answered, the eight with names that count among them, each with its token.
    pub(crate) fn nearest(&self) -> Vec<(Contact, Option<&[u8]>)> {
        let (mut found, mut counted) = (Vec::new(), 0);
        for candidate in self.candidates.values().filter(|candidate| candidate.state == State::Answered) {
            found.push((candidate.contact, candidate.token.as_deref()));
            counted += usize::from(candidate.is_secure);
            if counted >= BUCKET_LEN || found.len() >= BUCKET_LEN + INSECURE_MAX {
                break;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr};

    const TARGET: NodeId = NodeId([0; 20]);

    /// In a local network, where all names count.
    fn local(number: u32, bits: usize) -> Contact {
        let address = SocketAddr::from((Ipv4Addr::from_bits(0x0a00_0000 + number), 6881)).into();
        Contact { id: TARGET.at_depth(bits, &mut fastrand::Rng::with_seed(u64::from(number))), address }
    }

    fn ask(lookup: &mut Lookup) -> Vec<Contact> {
        let next = std::iter::from_fn(|| lookup.next());
        next.map(|next| if let Next::Contact(contact) = next { contact } else { panic!("a seed") }).collect()
    }

    #[test]
    fn it_asks_the_nearest_and_ends_when_eight_have_answered() {
        let mut lookup =
            Lookup::new(TARGET, (0..30).map(|number| local(number, number as usize)).collect(), Vec::new());
        let mut asked = Vec::new();
        while !lookup.is_done() {
            let now = ask(&mut lookup);
            assert!(now.len() <= ALPHA && !now.is_empty());
            now.iter().for_each(|contact| lookup.answered_by(&contact.id, Some(b"token")));
            asked.extend(now);
        }
        assert_eq!(asked, (22..30).rev().map(|number| local(number, number as usize)).collect::<Vec<_>>());
        assert_eq!(lookup.nearest().len(), BUCKET_LEN);
        // Somebody nearer turns up.
        assert!(lookup.next().is_none());
        lookup.named([local(77, 77)].into_iter());
        assert_eq!(ask(&mut lookup), [local(77, 77)]);
    }

    #[test]
    fn who_is_late_holds_up_nobody_and_is_waited_for_where_others_lack() {
        let mut lookup = Lookup::new(TARGET, (0..6).map(|number| local(number, 9)).collect(), Vec::new());
        let first = ask(&mut lookup);
        assert_eq!((first.len(), lookup.next()), (ALPHA, None));
        first.iter().for_each(|contact| lookup.late(&contact.id));
        let more = ask(&mut lookup);
        assert_eq!(more.len(), 2);
        more.iter().for_each(|contact| lookup.answered_by(&contact.id, None));
        assert!(!lookup.is_done(), "two answered");
        lookup.answered_by(&first[0].id, None);
        first[1..].iter().for_each(|contact| lookup.failed(&contact.id));
        assert!(lookup.is_done());
        assert_eq!(lookup.nearest().len(), 3);
    }

    #[test]
    fn a_network_an_answer_and_an_address_name_so_many() {
        let at = |text: &str, bits: usize, seed: u64| Contact {
            id: TARGET.at_depth(bits, &mut fastrand::Rng::with_seed(seed)),
            address: text.parse().unwrap(),
        };
        let mut lookup = Lookup::new(TARGET, Vec::new(), Vec::new());
        lookup.named((0..100).map(|number| at(&format!("20.0.0.{number}:1"), 30, number)));
        assert_eq!(lookup.candidates.len(), OF_NETWORK_MAX);
        lookup.named((0..100).map(|number| at(&format!("20.0.{number}.1:1"), 30, 1000 + number)));
        assert!(lookup.candidates.len() <= OF_NETWORK_MAX + FROM_ONE_MAX);
        let before = lookup.candidates.len();
        lookup.named((0..100).map(|port| at(&format!("20.1.1.1:{}", port + 1), 30, 2000 + port)));
        assert_eq!(lookup.candidates.len(), before + 1);
    }

    #[test]
    fn who_names_nodes_by_other_names_hides_none_of_them() {
        let named = |ip: u32, bits: usize, seed: u64| Contact {
            id: TARGET.at_depth(bits, &mut fastrand::Rng::with_seed(seed)),
            address: SocketAddr::from((Ipv4Addr::from_bits(0x1400_0000 + ip), 6881)).into(),
        };
        let lies: Vec<Contact> = (0..4).map(|number| named(number, 50, u64::from(number))).collect();
        let truth: Vec<Contact> = (0..4).map(|number| named(number, 40, 100 + u64::from(number))).collect();
        let mut lookup = Lookup::new(TARGET, Vec::new(), Vec::new());
        lookup.named(lies.iter().copied());
        lookup.named(truth.iter().copied());
        assert_eq!(lookup.candidates.len(), lies.len(), "one name for each address");
        assert_eq!(ask(&mut lookup).len(), ALPHA);
        lies.iter().for_each(|contact| lookup.failed(&contact.id));
        // Again, as a lie that was found out is.
        lookup.failed(&lies[0].id);
        lookup.named(lies.iter().chain(&truth).copied());
        let mut asked = ask(&mut lookup);
        asked.sort_by_key(|contact| contact.address);
        assert_eq!(asked, truth);
        lookup.named([named(9, 45, 9)].into_iter());
        assert_eq!(lookup.candidates.len(), 2 * OF_NETWORK_MAX, "the network has its share again");
    }

    #[test]
    fn seeds_that_are_late_hold_up_nobody() {
        let seeds: Vec<Endpoint> = (1..=6).map(|number| format!("10.9.9.{number}:1").parse().unwrap()).collect();
        let mut lookup = Lookup::new(TARGET, Vec::new(), seeds);
        let asked = std::iter::from_fn(|| lookup.next()).count();
        assert_eq!(asked, ALPHA);
        (0..ALPHA).for_each(|_| lookup.seed_late());
        assert_eq!(std::iter::from_fn(|| lookup.next()).count(), 2);
        (0..2).for_each(|_| lookup.seed_answered(false, None));
        assert!(!lookup.is_done(), "four may still answer");
        lookup.seed_answered(true, Some((local(1, 5), None)));
        (0..3).for_each(|_| lookup.seed_answered(true, None));
        assert!(lookup.is_done() && lookup.answered() == 1);
    }

    #[test]
    fn names_that_an_address_may_not_have_neither_end_it_nor_take_all_queries() {
        // A crowd of them nearest to the target, and eight honest ones farther away.
        let crowd = |number: u32| Contact {
            id: TARGET.at_depth(100, &mut fastrand::Rng::with_seed(u64::from(number))),
            address: SocketAddr::from((Ipv4Addr::from_bits(0x1400_0000 + (number << 8)), 6881)).into(),
        };
        let known = (0..40).map(crowd).chain((0..8).map(|number| local(number, 3))).collect();
        let (mut lookup, mut honest, mut insecure) = (Lookup::new(TARGET, known, Vec::new()), 0, 0);
        while !lookup.is_done() {
            for contact in ask(&mut lookup) {
                lookup.answered_by(&contact.id, None);
                let is_secure = contact.id.is_secure(&contact.address);
                (honest, insecure) = (honest + usize::from(is_secure), insecure + usize::from(!is_secure));
            }
        }
        assert_eq!((honest, insecure), (8, INSECURE_MAX));
        assert_eq!(lookup.nearest().len(), 16);
    }

    #[test]
    fn made_up_nodes_cost_queries_of_which_there_is_a_limit() {
        let mut lookup = Lookup::new(TARGET, (0..8).map(|number| local(number, 3)).collect(), Vec::new());
        let (mut made_up, mut asked) = (1000, 0);
        while !lookup.is_done() {
            for contact in ask(&mut lookup) {
                asked += 1;
                match contact.id.shared_bits(&TARGET) {
                    3 => lookup.answered_by(&contact.id, None),
                    _ => lookup.failed(&contact.id),
                }
                // Both liars and the made-up name more.
                lookup.named((0..100).map(|_| {
                    made_up += 1;
                    local(made_up, 50)
                }));
            }
        }
        assert_eq!(asked, QUERIES_MAX);
        assert!(lookup.candidates.len() <= CANDIDATES_MAX + 1);
    }

    #[test]
    fn seeds_are_asked_where_nobody_else_is_left() {
        let seed: Endpoint = "10.9.9.9:1".parse().unwrap();
        let mut lookup = Lookup::new(TARGET, vec![local(1, 5)], vec![seed]);
        assert_eq!(lookup.next(), Some(Next::Contact(local(1, 5))));
        assert_eq!(lookup.next(), Some(Next::Seed(seed)));
        lookup.failed(&local(1, 5).id);
        assert!(!lookup.is_done());
        lookup.seed_answered(false, Some((Contact { id: local(2, 6).id, address: seed }, None)));
        lookup.named([local(3, 7)].into_iter());
        assert_eq!(ask(&mut lookup), [local(3, 7)]);
        lookup.failed(&local(3, 7).id);
        assert!(lookup.is_done() && lookup.answered() == 1);
    }
}
