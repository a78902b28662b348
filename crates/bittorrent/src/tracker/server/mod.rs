//! A tracker's core: a table of swarms in memory, and answers to requests of both wire forms.
//!
//! [`Tracker::on_http`] takes a request line's target, [`Tracker::on_datagram`] a UDP payload; both return the bytes to
//! send. Nothing is kept per client but its peer entry: UDP connection ids are recomputed, not remembered (BEP 15).
//!
//! A peer is where its packets come from; where it listens over SCION it says itself, and only who says something of SCION
//! is told of such peers, and of the paths that they use. Whoever said an address first is the only one to change its entry while
//! that lasts. No network can crowd the others out: it has a bounded share of a content's peers, and where the table is full, whoever brought most contents
//! loses some. Keys in a query that are not known are ignored, so that clients may say more.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anabranch_paths::{Endpoint, ScionAddr};

mod http;
mod in_use;
mod network;
mod swarm;
#[cfg(test)]
mod tests;
mod udp;

pub use http::HttpAnswer;
use in_use::UsedPaths;
pub use network::Network;
pub use swarm::KnownPeer;
use swarm::{Family, Swarm, Whom};

use super::{AnnounceRequest, Event, InfoHash, ScrapeEntry};
use crate::extension::PathsInUse;

/// Wait that clients are told (BEP 3's usual half hour).
pub const INTERVAL_DEFAULT: Duration = Duration::from_secs(30 * 60);
/// Clients short of peers may come this often.
pub const INTERVAL_MIN_DEFAULT: Duration = Duration::from_secs(60);
/// Contents tracked at once; a table entry without peers takes some 300 bytes.
pub const CONTENTS_MAX: usize = 100_000;
/// Peers of one content: a client is told of 200 at most, so more only cost memory.
pub const PEERS_PER_CONTENT_MAX: usize = 20_000;
/// Peers of all contents together: at some 250 bytes each this is 250 MB.
pub const PEERS_MAX: usize = 1_000_000;
/// Peers of one content that one network may announce, where it is none of the operator's own: as many as share an address at a
/// provider, and too few to crowd the others out of the answers.
pub const PEERS_PER_NETWORK_MAX: usize = 64;
/// Peers told to a client that names no number.
pub const NUMWANT_DEFAULT: usize = 50;
/// Peers told to any client.
pub const NUMWANT_CAP: usize = 200;

/// How a tracker behaves. The defaults are this module's constants.
#[derive(Clone, Debug)]
pub struct TrackerConfig {
    /// Told to clients; a peer silent for twice as long is forgotten.
    pub interval: Duration,
    /// Told to clients as `min interval`.
    pub interval_min: Duration,
    /// See [`CONTENTS_MAX`]; past it, of the contents of the network that brought most, the one that was announced longest ago goes.
    pub contents_max: usize,
    /// See [`PEERS_PER_CONTENT_MAX`]; past it the peer that was silent longest goes.
    pub peers_per_content_max: usize,
    /// See [`PEERS_PER_NETWORK_MAX`]; past it the network's own peer that was silent longest goes.
    pub peers_per_network_max: usize,
    /// See [`PEERS_MAX`]; past it contents go as past `contents_max`.
    pub peers_max: usize,
    /// The contents that are tracked; `None`: any.
    pub allowed: Option<HashSet<InfoHash>>,
    /// What has to stand before `/announce` in the URL, as `/KEY`; `None`: whatever stands there is fine.
    pub passkey: Option<String>,
    /// Believe an `ip=` that a client gives. Otherwise only loopback clients are believed: anyone else could have
    /// strangers flooded with connections.
    pub is_claimed_ip_believed: bool,
    /// Decides which peers are told to whom.
    pub seed: u64,
    /// Key of the UDP connection ids; random, told to nobody.
    pub secret: [u8; 16],
}

impl TrackerConfig {
    /// The defaults. `seed` and `secret` are to be random.
    pub fn new(seed: u64, secret: [u8; 16]) -> Self {
        TrackerConfig {
            interval: INTERVAL_DEFAULT,
            interval_min: INTERVAL_MIN_DEFAULT,
            contents_max: CONTENTS_MAX,
            peers_per_content_max: PEERS_PER_CONTENT_MAX,
            peers_per_network_max: PEERS_PER_NETWORK_MAX,
            peers_max: PEERS_MAX,
            allowed: None,
            passkey: None,
            is_claimed_ip_believed: false,
            seed,
            secret,
        }
    }
}

/// What a tracker has done since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Contents in the table.
    pub contents: usize,
    /// Peer entries in the table. A peer that announces over both families has two; each of its SCION addresses is one.
    pub peers: usize,
    /// Announces answered.
    pub announces: u64,
    /// Scrapes answered.
    pub scrapes: u64,
    /// Requests refused with a reason.
    pub refused: u64,
    /// Datagrams dropped without an answer.
    pub dropped: u64,
    /// Contents and peers removed because a limit was reached.
    pub evicted: u64,
}

/// A tracker.
#[derive(Debug)]
pub struct Tracker {
    config: TrackerConfig,
    /// Connection ids count time from here.
    started_at: Instant,
    swarms: HashMap<InfoHash, Swarm>,
    /// By stamp, so by when they were last announced.
    by_age: BTreeMap<u64, InfoHash>,
    /// The stamps of the contents that each network brought, and the networks by how many those are.
    brought: HashMap<Network, BTreeSet<u64>>,
    by_weight: BTreeSet<(usize, Network)>,
    used: UsedPaths,
    stamp_next: u64,
    stats: Stats,
    rng: fastrand::Rng,
}

/// Which peers an answer may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Families {
    /// One reply form, one family (BEP 15).
    Only(Family),
    /// The asker's own first (BEP 7).
    Both,
}

/// What an answer has room for.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// Peers of all IP families together.
    ip: usize,
    /// Over SCION, for those who ask.
    scion: usize,
    /// Paths in use, for those who speak SCION.
    in_use: bool,
}

impl Room {
    /// As many as any client is told.
    const ANY: Room = Room { ip: NUMWANT_CAP, scion: NUMWANT_CAP, in_use: true };
}

/// An announce's answer, before it has a wire form.
struct Answer {
    complete: u32,
    incomplete: u32,
    downloaded: u32,
    peers: Vec<KnownPeer>,
    /// What others use, for who speaks SCION.
    in_use: Option<PathsInUse>,
}

impl Tracker {
    /// An empty tracker.
    pub fn new(config: TrackerConfig, now: Instant) -> Self {
        let rng = fastrand::Rng::with_seed(config.seed);
        let (swarms, by_age) = (HashMap::new(), BTreeMap::new());
        let used = UsedPaths::default();
        let (brought, by_weight, stats) = (HashMap::new(), BTreeSet::new(), Stats::default());
        Tracker { config, started_at: now, swarms, by_age, brought, by_weight, used, stamp_next: 0, stats, rng }
    }

    /// Whether a request whose URL has this path may be answered.
    fn is_admitted(&self, path: &str) -> bool {
        let given = || path.strip_prefix('/')?.rsplit_once('/').map(|(key, _)| key);
        self.config.passkey.as_deref().is_none_or(|passkey| given() == Some(passkey))
    }

    /// Whether a content is tracked here.
    fn is_allowed(&self, info_hash: &InfoHash) -> bool {
        self.config.allowed.as_ref().is_none_or(|allowed| allowed.contains(info_hash))
    }

    /// Numbers for people and tests.
    pub fn stats(&self) -> Stats {
        Stats { contents: self.swarms.len(), ..self.stats }
    }

    /// Takes an announce from `source` and chooses peers for it.
    fn announce(
        &mut self,
        request: &AnnounceRequest,
        source: IpAddr,
        claimed_ip: Option<IpAddr>,
        families: Families,
        room: Room,
        now: Instant,
    ) -> Answer {
        self.stats.announces += 1;
        self.expire(now);
        let is_believed = self.config.is_claimed_ip_believed || source.is_loopback();
        let ip = claimed_ip.filter(|_| is_believed).unwrap_or(source);
        let addr = Endpoint::from(SocketAddr::new(ip, request.port));
        let scion = request.scion.iter().flatten().map(|addr| Endpoint::Scion(*addr));
        let is_seed = request.left_bytes == 0;
        let network = Network::from(source);
        let stamp = self.stamp(request.info_hash, network);

        let Tracker { config, swarms, used, stats, rng, .. } = self;
        let swarm = swarms.entry(request.info_hash).or_insert_with(|| Swarm::new(network, now));
        (swarm.stamp, swarm.seen_at) = (stamp, now);
        stats.peers -= expire_peers(swarm, config.interval, now);
        let before = swarm.len();
        let was_seed = swarm.is_seed(addr);
        if request.event == Event::Completed && was_seed == Some(false) {
            swarm.downloaded = swarm.downloaded.saturating_add(1);
        }
        let own: Vec<Endpoint> = scion.chain([addr]).filter(|addr| swarm.may_change(*addr, source)).collect();
        for addr in own.iter().copied() {
            // Port 0 cannot be dialled: such a peer is told of others but others are not told of it.
            if request.event == Event::Stopped || addr.socket_addr().port() == 0 {
                swarm.remove(addr);
                continue;
            }
            if swarm.is_seed(addr).is_none() {
                let own_are_full = !network.is_near() && swarm.count_of(network) >= config.peers_per_network_max;
                let all_are_full = swarm.len() >= config.peers_per_content_max;
                if own_are_full && swarm.remove_oldest_of(network) || all_are_full && swarm.remove_oldest() {
                    stats.evicted += 1;
                }
            }
            swarm.put(KnownPeer { addr, peer_id: request.peer_id }, source, is_seed, now);
        }
        stats.peers = stats.peers + swarm.len() - before;
        let own_scion: Vec<ScionAddr> = own.iter().filter_map(Endpoint::as_scion).collect();
        // What a host uses it uses once, however many addresses it has.
        if let Some(host) = own_scion.first() {
            used.put(request.info_hash, *host, &request.in_use, now);
        }

        let (complete, incomplete) = swarm.counts();
        let mut answer = Answer { complete, incomplete, downloaded: swarm.downloaded, peers: Vec::new(), in_use: None };
        let wanted = request.numwant.map_or(NUMWANT_DEFAULT, |want| want as usize).min(NUMWANT_CAP);
        if request.event != Event::Stopped {
            let families = match families {
                Families::Only(family) => [Some(family), None],
                Families::Both if source.is_ipv6() => [Some(Family::V6), Some(Family::V4)],
                Families::Both => [Some(Family::V4), Some(Family::V6)],
            };
            let families = families.into_iter().flatten();
            let asks = request.scion.is_some();
            answer.in_use = (asks && room.in_use).then(|| used.by_others(request.info_hash, &own_scion, now));
            // Who speaks SCION gets half of its peers there, and more where IP has fewer.
            let whom = if is_seed { Whom::Leechers } else { Whom::All };
            let over_ip: usize = families.clone().map(|family| swarm.pool(family, whom)).sum();
            let over_scion = wanted.div_ceil(2).max(wanted.saturating_sub(over_ip)).min(room.scion);
            let mut choose = |family, whom, count| swarm.sample(family, whom, &own, count, rng, &mut answer.peers);
            let mut rest = wanted - if asks { choose(Family::Scion, whom, over_scion) } else { 0 };
            rest = rest.min(room.ip);
            for family in families.clone() {
                rest -= choose(family, whom, rest);
            }
            // Who begins by a link alone does not know what is left, and some say that nothing is (aria2 1.36): seeds are who it needs.
            if is_seed && request.event == Event::Started {
                for family in families {
                    rest -= choose(family, Whom::Seeds, rest);
                }
            }
        }
        if swarm.len() == 0 && swarm.downloaded == 0 {
            self.forget(request.info_hash);
        }
        self.keep_limits(request.info_hash);
        answer
    }

    /// One content's numbers; zeros for one that is not known (BEP 15 has no other way to say it).
    fn scrape(&mut self, info_hash: &InfoHash, now: Instant) -> ScrapeEntry {
        let Some(swarm) = self.swarms.get_mut(info_hash) else { return ScrapeEntry::default() };
        self.stats.peers -= expire_peers(swarm, self.config.interval, now);
        let (complete, incomplete) = swarm.counts();
        ScrapeEntry { complete, downloaded: swarm.downloaded, incomplete }
    }

    /// A fresh stamp, which makes this content the youngest. `network` brought it, unless it is known.
    fn stamp(&mut self, info_hash: InfoHash, network: Network) -> u64 {
        let stamp = self.stamp_next;
        self.stamp_next += 1;
        let known = self.swarms.get(&info_hash).map(|swarm| (swarm.stamp, swarm.brought_by));
        if let Some((known, _)) = known {
            self.by_age.remove(&known);
        }
        self.by_age.insert(stamp, info_hash);
        let network = known.map_or(network, |(_, brought_by)| brought_by);
        self.weigh(network, |stamps| {
            if let Some((known, _)) = known {
                stamps.remove(&known);
            }
            stamps.insert(stamp);
        });
        stamp
    }

    /// Changes the list of what a network brought.
    fn weigh(&mut self, network: Network, change: impl FnOnce(&mut BTreeSet<u64>)) {
        let stamps = self.brought.entry(network).or_default();
        self.by_weight.remove(&(stamps.len(), network));
        change(stamps);
        if stamps.is_empty() {
            self.brought.remove(&network);
        } else {
            self.by_weight.insert((stamps.len(), network));
        }
    }

    /// Removes contents that nobody has announced lately, beginning with the one silent longest.
    fn expire(&mut self, now: Instant) {
        let Some(limit) = now.checked_sub(self.config.interval.saturating_mul(2)) else { return };
        while let Some((_, info_hash)) = self.by_age.first_key_value() {
            let info_hash = *info_hash;
            if self.swarms.get(&info_hash).is_none_or(|swarm| swarm.seen_at >= limit) {
                return;
            }
            self.forget(info_hash);
        }
    }

    fn forget(&mut self, info_hash: InfoHash) {
        if let Some(swarm) = self.swarms.remove(&info_hash) {
            self.by_age.remove(&swarm.stamp);
            self.weigh(swarm.brought_by, |stamps| {
                stamps.remove(&swarm.stamp);
            });
            self.stats.peers -= swarm.len();
        }
    }

    /// Of the contents of the network that brought most, the one that was announced longest ago.
    fn most_expendable(&self) -> Option<InfoHash> {
        let (_, heaviest) = self.by_weight.last()?;
        self.by_age.get(self.brought.get(heaviest)?.first()?).copied()
    }

    /// Evicts until the limits hold again; `announced` is the content that may have broken them.
    fn keep_limits(&mut self, announced: InfoHash) {
        while self.swarms.len() > self.config.contents_max || self.stats.peers > self.config.peers_max {
            let Some(expendable) = self.most_expendable() else { return };
            self.stats.evicted += 1;
            if expendable != announced {
                self.forget(expendable);
            } else if self.swarms.get_mut(&announced).is_some_and(Swarm::remove_oldest) {
                self.stats.peers -= 1;
            } else {
                return;
            }
        }
    }
}

/// A peer is forgotten after two intervals: one announce may get lost.
fn expire_peers(swarm: &mut Swarm, interval: Duration, now: Instant) -> usize {
    now.checked_sub(interval.saturating_mul(2)).map_or(0, |limit| swarm.expire(limit))
}
