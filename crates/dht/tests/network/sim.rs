//! A network of nodes in virtual time: every datagram takes as long as it is told, some are lost, and some nodes are liars.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anabranch_dht::{Config, Dht, Event, Family, HomeConfig, HomeId, NodeId, Policy, SearchId};
use anabranch_paths::Endpoint;

/// IPv4 and UDP headers.
const HEADERS_LEN: usize = 28;

/// Everybody may name everybody.
pub(crate) struct Anybody;

impl Policy for Anybody {
    fn fits(&self, _: &Endpoint, _: &Endpoint) -> bool {
        true
    }

    fn blocks(&self, _: &Endpoint) -> bool {
        false
    }
}

/// What a liar answers to a datagram: `None` leaves it to the honest node beneath.
pub(crate) type Lie = fn(&mut fastrand::Rng, &Endpoint, &[u8]) -> Option<Vec<u8>>;

/// One program.
pub(crate) struct Node {
    pub(crate) dht: Dht,
    pub(crate) addresses: Vec<(HomeId, Endpoint)>,
    pub(crate) is_up: bool,
    pub(crate) lie: Option<Lie>,
    pub(crate) events: Vec<(Instant, Event)>,
    pub(crate) sent_bytes: usize,
    pub(crate) received_bytes: usize,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Timer,
    Datagram { to: Endpoint, from: Endpoint, bytes: Vec<u8> },
}

/// The network.
pub(crate) struct Sim {
    pub(crate) now: Instant,
    pub(crate) nodes: Vec<Node>,
    pub(crate) rng: fastrand::Rng,
    /// One way.
    pub(crate) delay: Duration,
    pub(crate) loss: f64,
    /// Datagrams to addresses at which nobody is.
    pub(crate) to_nobody: Vec<(Endpoint, usize)>,
    by_address: HashMap<Endpoint, usize>,
    queue: BinaryHeap<Reverse<(Instant, u64, usize, What)>>,
    count: u64,
}

/// A public address of its own network.
pub(crate) fn address(number: usize) -> Endpoint {
    let ip = Ipv4Addr::new(20 + (number >> 16) as u8, (number >> 8) as u8, number as u8, 1 + (number % 200) as u8);
    SocketAddr::from((ip, 6881)).into()
}

impl Sim {
    pub(crate) fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self {
            now: Instant::now(),
            nodes: Vec::new(),
            rng: fastrand::Rng::with_seed(seed),
            delay: Duration::from_millis(50),
            loss: 0.0,
            to_nobody: Vec::new(),
            by_address: HashMap::new(),
            queue: BinaryHeap::new(),
            count: 0,
        }
    }

    /// A node that knows its addresses.
    pub(crate) fn add(&mut self, homes: Vec<HomeConfig>, at: Vec<Endpoint>) -> usize {
        self.add_with(homes, at, false)
    }

    pub(crate) fn add_with(&mut self, homes: Vec<HomeConfig>, at: Vec<Endpoint>, read_only: bool) -> usize {
        let mut secret = [0; 16];
        self.rng.fill(&mut secret);
        let seed = self.rng.u64(..);
        let config = Config { secret, seed, read_only, version: *b"AB01", policy: Box::new(Anybody) };
        let mut dht = Dht::new(config, self.now);
        let index = self.nodes.len();
        let mut addresses = Vec::new();
        for (home, address) in homes.into_iter().zip(at) {
            addresses.push((dht.add_home(home, self.now).expect("few"), address));
            self.by_address.insert(address, index);
        }
        self.nodes.push(Node {
            dht,
            addresses,
            is_up: true,
            lie: None,
            events: Vec::new(),
            sent_bytes: 0,
            received_bytes: 0,
        });
        self.settle(index);
        index
    }

    /// A node at the address of this number.
    pub(crate) fn add_v4(&mut self, number: usize) -> usize {
        let at = address(number);
        self.add(vec![HomeConfig { family: Family::V4, address: Some(at), saved: None }], vec![at])
    }

    /// So many nodes, each of which knew one that was there before, after half a minute.
    pub(crate) fn grown(seed: u64, count: usize) -> Self {
        let mut sim = Self::new(seed);
        for number in 0..count {
            let node = sim.add_v4(number);
            if node > 0 {
                let known = sim.rng.usize(..node);
                sim.act(node, |dht, now| dht.add_node(address(known), now));
            }
            sim.run(Duration::from_millis(20));
        }
        sim.run(Duration::from_secs(60));
        sim
    }

    /// Lets a node do something.
    pub(crate) fn act<R>(&mut self, node: usize, act: impl FnOnce(&mut Dht, Instant) -> R) -> R {
        let done = act(&mut self.nodes[node].dht, self.now);
        self.settle(node);
        done
    }

    /// Somebody sends a datagram, in whose name it likes.
    pub(crate) fn inject(&mut self, from: Endpoint, to: Endpoint, bytes: Vec<u8>) {
        self.post(from, to, bytes);
    }

    pub(crate) fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.queue.peek().is_some_and(|Reverse((at, ..))| *at <= until) {
            let Some(Reverse((at, _, node, what))) = self.queue.pop() else { break };
            self.now = at;
            if !self.nodes[node].is_up {
                continue;
            }
            match what {
                What::Timer => {
                    if self.nodes[node].dht.deadline().is_some_and(|due| due <= at) {
                        self.nodes[node].dht.on_deadline(at);
                        self.settle(node);
                    }
                }
                What::Datagram { to, from, bytes } => {
                    self.nodes[node].received_bytes += bytes.len() + HEADERS_LEN;
                    if let Some(lie) = self.nodes[node].lie.and_then(|lie| lie(&mut self.rng, &from, &bytes)) {
                        self.post(to, from, lie);
                        continue;
                    }
                    let home = self.nodes[node].addresses.iter().find(|(_, at)| *at == to).map(|(home, _)| *home);
                    self.nodes[node].dht.receive(home.expect("its own"), from, &bytes, at);
                    self.settle(node);
                }
            }
        }
        self.now = until;
    }

    /// Until the search of a node has ended; answers what was told of it.
    pub(crate) fn finish(&mut self, node: usize, search: SearchId) -> Vec<(Instant, Event)> {
        for _ in 0..2000 {
            let is_over = |event: &Event| matches!(event, Event::Ended { search: ended, .. } if *ended == search);
            if self.nodes[node].events.iter().any(|(_, event)| is_over(event)) {
                return std::mem::take(&mut self.nodes[node].events);
            }
            self.run(Duration::from_millis(100));
        }
        panic!("the search does not end");
    }

    fn settle(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let mut out = Vec::new();
        while let Some(transmit) = node.dht.poll_transmit() {
            let from = node.addresses.iter().find(|(home, _)| *home == transmit.home).map(|(_, address)| *address);
            node.sent_bytes += transmit.bytes.len() + HEADERS_LEN;
            out.push((from.expect("its own"), transmit.to, transmit.bytes));
        }
        while let Some(event) = node.dht.poll_event() {
            node.events.push((self.now, event));
        }
        let deadline = node.dht.deadline();
        out.into_iter().for_each(|(from, to, bytes)| self.post(from, to, bytes));
        if let Some(at) = deadline {
            self.push(at.max(self.now + Duration::from_millis(1)), index, What::Timer);
        }
    }

    fn post(&mut self, from: Endpoint, to: Endpoint, bytes: Vec<u8>) {
        let Some(node) = self.by_address.get(&to).copied() else {
            self.to_nobody.push((to, bytes.len()));
            return;
        };
        if self.rng.f64() >= self.loss {
            let at = self.now + self.delay;
            self.push(at, node, What::Datagram { to, from, bytes });
        }
    }

    fn push(&mut self, at: Instant, node: usize, what: What) {
        self.count += 1;
        self.queue.push(Reverse((at, self.count, node, what)));
    }
}

/// A name from a number.
pub(crate) fn name(number: u64) -> NodeId {
    let mut id = [0; 20];
    fastrand::Rng::with_seed(number).fill(&mut id);
    NodeId(id)
}
