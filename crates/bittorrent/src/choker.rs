//! Whom to upload to.
//!
//! Slots go to address-level peers ([`PeerKey`]): however many connections, and so paths, a peer has, it takes one slot,
//! and all its interested connections are unchoked together.
//!
//! While we fetch, slots are earned: every [`ROUND`] the peers that gave most in the last while get them (tit-for-tat;
//! BEP 3, "choking"; thesis, 2.1.4). Slots nobody earned, and at least one, are optimistic: they go round every
//! [`OPTIMISTIC`] to whoever has waited longest, new peers first. A snubbing peer earns nothing, so its slot becomes one more
//! optimistic one. While we share, everybody pays the same, nothing: slots go round, each peer keeping its slot until
//! it got [`Config::seed_quantum_bytes`], so that it can finish pieces and pass them on; peers in the middle of
//! their download, who have most others to get it from, wait a little longer ("anti-leech").
//!
//! A slot is there to be used: whoever has one and asks for nothing ([`Peer::idle`]) gives way to those who wait, and comes after
//! them for a while.
//!
//! Where there are slots for all, all are unchoked. The first decision about a peer is immediate.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::{ConnId, PeerKey};

/// Between decisions (BEP 3: long enough for a new transfer to come up to speed).
pub const ROUND: Duration = Duration::from_secs(10);

/// How long an optimistic slot lasts (BEP 3).
pub const OPTIMISTIC: Duration = Duration::from_secs(30);

/// A peer we want something of and that delivered nothing for this long is snubbing us (BEP 3, "anti-snubbing"). The
/// caller measures it, and says so in [`Peer::snubbed`].
pub const SNUBBED_AFTER: Duration = Duration::from_secs(60);

/// A peer that is unchoked and asks for nothing for this long leaves its slot unused. The answer to an unchoke takes a round
/// trip, and a busy client's next look at its connections. The caller measures it, and says so in [`Peer::idle`].
pub const UNUSED_AFTER: Duration = Duration::from_secs(5);

/// For so long a peer that left its slot unused comes after the others that wait.
const UNUSED_REMEMBERED: Duration = Duration::from_secs(120);

/// Rounds brought forward because a slot fell free come no closer together than this.
const ROUND_MIN: Duration = Duration::from_secs(1);

/// How much longer a peer that never had a slot seems to have waited (BEP 3: three times as likely).
const NEW_WEIGHT: u32 = 3;

/// When sharing, a slot is kept at least this long: fewer switches, more finished pieces.
const SEED_SLOT_MIN: Duration = Duration::from_secs(20);

/// ... and at most this long, or a slow peer would keep its slot for ever.
const SEED_SLOT_MAX: Duration = Duration::from_secs(120);

/// Slots before a rate is known, and with no upload limit the least: a fast link is not filled by four.
const SLOTS_START: usize = 8;

/// Least slots: the number of the thesis (2.1.4).
const SLOTS_MIN: usize = 4;

/// Most slots. Beyond it peers would get too little each.
const SLOTS_MAX: usize = 512;

/// How many peers are uploaded to at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// Growing with the square root of the upload rate (or its limit), as the first client did.
    Auto,
    /// This many, at least one.
    Fixed(usize),
}

/// How to choke.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How many slots there are.
    pub slots: Slots,
    /// The limit on the upload rate, in bytes per second, if there is one.
    pub upload_limit_bytes: Option<u64>,
    /// What a peer gets from a seed before the next one's turn. A few pieces.
    pub seed_quantum_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { slots: Slots::Auto, upload_limit_bytes: None, seed_quantum_bytes: 16 << 20 }
    }
}

/// What is known of an address-level peer with at least one interested connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Who.
    pub key: PeerKey,
    /// Its connections that are interested in us.
    pub conns: Vec<ConnId>,
    /// What it gave us lately over all its connections, in bytes per second.
    pub download_rate_bytes: u64,
    /// What we sent it in this session, over all its connections.
    pub sent_bytes: u64,
    /// We asked and got nothing for [`SNUBBED_AFTER`].
    pub snubbed: bool,
    /// It is unchoked and asked for nothing for [`UNUSED_AFTER`].
    pub idle: bool,
    /// When it came.
    pub connected_at: Instant,
    /// How much of the content it has, in thousandths.
    pub progress_permille: u16,
}

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// On which connection.
    pub conn: ConnId,
    /// Choke or unchoke.
    pub choke: bool,
}

#[derive(Clone, Debug, Default)]
struct Known {
    /// Unchoked connections; not empty means that the peer has a slot.
    unchoked: BTreeSet<ConnId>,
    slot_since: Option<Instant>,
    sent_at_slot_start: u64,
    /// Its slot is optimistic, until then.
    optimistic_until: Option<Instant>,
    /// When it last lost a slot.
    slot_end: Option<Instant>,
    /// Its last slot ended because it did not use it.
    unused: bool,
}

/// Decides who is choked. Remembers only peers of the last round.
#[derive(Clone, Debug)]
pub struct Choker {
    config: Config,
    rng: fastrand::Rng,
    known: BTreeMap<PeerKey, Known>,
    slots: usize,
    round_last: Option<Instant>,
    round_next: Option<Instant>,
}

impl Choker {
    /// A choker that has unchoked nobody. `seed` decides ties.
    pub fn new(config: Config, seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        let mut choker = Self { config, rng, known: BTreeMap::new(), slots: 0, round_last: None, round_next: None };
        choker.slots = choker.slots_at(0);
        choker
    }

    /// Changes slots or limits from the next round on.
    #[cfg(test)]
    pub fn set_config(&mut self, config: Config) {
        self.config = config;
    }

    /// When to call [`Choker::round`] next; `None` while nobody is interested.
    pub fn deadline(&self) -> Option<Instant> {
        self.round_next
    }

    /// Peers unchoked at present.
    pub fn unchoked_count(&self) -> usize {
        self.known.values().filter(|known| !known.unchoked.is_empty()).count()
    }

    /// A choked connection became interested. `true`: unchoke it at once, there is a free slot or its peer has one.
    /// `sent_bytes` as in [`Peer`].
    pub fn on_interested(&mut self, key: PeerKey, conn: ConnId, sent_bytes: u64, now: Instant) -> bool {
        if self.round_next.is_none() {
            self.round_next = Some(now + ROUND);
        }
        let free = self.unchoked_count() < self.slots;
        let known = self.known.entry(key).or_default();
        if known.unchoked.is_empty() {
            if !free {
                return false;
            }
            known.start_slot(sent_bytes, now);
            known.optimistic_until = Some(now + OPTIMISTIC);
        }
        known.unchoked.insert(conn);
        true
    }

    /// A connection closed, or is no longer interested (then choke it if this answers `true`: it had been unchoked).
    /// The slot it leaves is given away soon: see [`Choker::deadline`].
    pub fn on_gone(&mut self, key: PeerKey, conn: ConnId, now: Instant) -> bool {
        let Some(known) = self.known.get_mut(&key) else { return false };
        if !known.unchoked.remove(&conn) {
            return false;
        }
        if known.unchoked.is_empty() {
            known.end_slot(now);
            self.hurry(now);
        }
        true
    }

    /// A peer leaves its slot unused: where somebody waits, the next round comes soon.
    pub fn on_unused(&mut self, now: Instant) {
        if self.known.values().any(|known| known.unchoked.is_empty()) {
            self.hurry(now);
        }
    }

    fn hurry(&mut self, now: Instant) {
        let soon = self.round_last.map_or(now, |last| last + ROUND_MIN).max(now);
        self.round_next = Some(self.round_next.map_or(soon, |next| next.min(soon)));
    }

    /// `from` turned out to be `into`, over other connections: two slots become one.
    pub fn merge(&mut self, from: PeerKey, into: PeerKey) {
        let Some(gone) = self.known.remove(&from) else { return };
        let known = self.known.entry(into).or_default();
        if known.unchoked.is_empty() {
            *known = gone;
        } else {
            known.unchoked.extend(gone.unchoked);
        }
    }

    /// Decides anew. `peers` are all that are interested, `seeding` says that we want nothing ourselves,
    /// `upload_rate_bytes` is what we send in all.
    pub fn round(
        &mut self,
        peers: &[Peer],
        seeding: bool,
        upload_rate_bytes: u64,
        now: Instant,
        out: &mut Vec<Change>,
    ) {
        self.slots = self.slots_at(upload_rate_bytes);
        self.round_last = Some(now);
        self.round_next = (!peers.is_empty()).then_some(now + ROUND);
        let chosen = if peers.len() <= self.slots {
            peers.iter().map(|peer| (peer.key, None)).collect()
        } else if seeding {
            self.choose_seeding(peers, now)
        } else {
            self.choose_earned(peers, now)
        };
        self.apply(peers, &chosen, now, out);
    }

    fn slots_at(&self, upload_rate_bytes: u64) -> usize {
        let grown = |rate: u64| (rate as f64 / 1000.0 * 0.6).sqrt() as usize;
        match (self.config.slots, self.config.upload_limit_bytes) {
            (Slots::Fixed(slots), _) => slots.max(1),
            (Slots::Auto, Some(limit)) => grown(limit).clamp(SLOTS_MIN, SLOTS_MAX),
            (Slots::Auto, None) => grown(upload_rate_bytes).clamp(SLOTS_START, SLOTS_MAX),
        }
    }

    /// Who gets a slot, and until when if it is an optimistic one.
    fn choose_earned(&mut self, peers: &[Peer], now: Instant) -> BTreeMap<PeerKey, Option<Instant>> {
        let mut earners: Vec<&Peer> =
            peers.iter().filter(|peer| peer.download_rate_bytes > 0 && !peer.snubbed && !peer.idle).collect();
        self.rng.shuffle(&mut earners);
        earners.sort_by_key(|peer| std::cmp::Reverse(peer.download_rate_bytes));
        // One in five is optimistic, and one even of two. With a single slot, it is the one in turn every other time.
        let optimistic = if self.slots == 1 { usize::from(self.rng.bool()) } else { (self.slots / 5).max(1) };
        earners.truncate(self.slots - optimistic);
        let mut chosen: BTreeMap<_, _> = earners.iter().map(|peer| (peer.key, None)).collect();
        let mut others: Vec<(&Peer, Option<Instant>, bool, Duration, u32)> = Vec::new();
        for peer in peers.iter().filter(|peer| !chosen.contains_key(&peer.key)) {
            let known = self.known.get(&peer.key);
            let running = known.and_then(|known| known.optimistic_until).filter(|until| *until > now && !peer.idle);
            others.push((peer, running, leaves_unused(peer, known, now), wait_of(peer, known, now), self.rng.u32(..)));
        }
        // Slots still running first, then by waiting time.
        others.sort_by_key(|(_, running, unused, wait, tie)| {
            (running.is_none(), *unused, std::cmp::Reverse(*wait), *tie)
        });
        let free = self.slots - chosen.len();
        for (peer, running, ..) in others.into_iter().take(free) {
            chosen.insert(peer.key, Some(running.unwrap_or(now + OPTIMISTIC)));
        }
        chosen
    }

    fn choose_seeding(&mut self, peers: &[Peer], now: Instant) -> BTreeMap<PeerKey, Option<Instant>> {
        let mut order: Vec<(u8, std::cmp::Reverse<Duration>, u32, PeerKey)> = Vec::new();
        for peer in peers {
            let known = self.known.get(&peer.key);
            let slot = known.and_then(|known| Some((known.slot_since?, known.sent_at_slot_start)));
            let unused = leaves_unused(peer, known, now);
            let (rank, wait) = match slot {
                _ if unused => (3, wait_of(peer, known, now)),
                Some((since, sent_before)) => {
                    let held = now.saturating_duration_since(since);
                    let sated = peer.sent_bytes.saturating_sub(sent_before) >= self.config.seed_quantum_bytes;
                    let over = held >= SEED_SLOT_MAX || (sated && held >= SEED_SLOT_MIN);
                    if over { (2, Duration::ZERO) } else { (0, Duration::ZERO) }
                }
                None => (1, wait_of(peer, known, now)),
            };
            // Half as long again for those that just began or are nearly done.
            let from_middle = u32::from(peer.progress_permille.min(1000).abs_diff(500));
            let wait = wait * (1000 + from_middle) / 1000;
            order.push((rank, std::cmp::Reverse(wait), self.rng.u32(..), peer.key));
        }
        order.sort();
        order.into_iter().take(self.slots).map(|(.., key)| (key, None)).collect()
    }

    fn apply(
        &mut self,
        peers: &[Peer],
        chosen: &BTreeMap<PeerKey, Option<Instant>>,
        now: Instant,
        out: &mut Vec<Change>,
    ) {
        let empty = Peer {
            key: PeerKey(0),
            conns: Vec::new(),
            download_rate_bytes: 0,
            sent_bytes: 0,
            snubbed: false,
            idle: false,
            connected_at: now,
            progress_permille: 0,
        };
        let present: BTreeMap<PeerKey, &Peer> = peers.iter().map(|peer| (peer.key, peer)).collect();
        for peer in peers {
            self.known.entry(peer.key).or_default();
        }
        let mut unchokes = Vec::new();
        for (key, known) in &mut self.known {
            let peer = present.get(key).copied().unwrap_or(&empty);
            let slot = chosen.get(key);
            let wanted: BTreeSet<ConnId> = slot.map(|_| peer.conns.iter().copied().collect()).unwrap_or_default();
            out.extend(known.unchoked.difference(&wanted).map(|conn| Change { conn: *conn, choke: true }));
            unchokes.extend(wanted.difference(&known.unchoked).map(|conn| Change { conn: *conn, choke: false }));
            match (known.unchoked.is_empty(), wanted.is_empty()) {
                (true, false) => known.start_slot(peer.sent_bytes, now),
                (false, true) => {
                    known.end_slot(now);
                    known.unused = peer.idle;
                }
                _ => {}
            }
            known.optimistic_until = slot.copied().flatten();
            known.unchoked = wanted;
        }
        // Chokes first, so that at no time more are unchoked than there are slots.
        out.append(&mut unchokes);
        self.known.retain(|key, _| present.contains_key(key));
    }
}

impl Known {
    fn start_slot(&mut self, sent_bytes: u64, now: Instant) {
        self.slot_since = Some(now);
        self.sent_at_slot_start = sent_bytes;
    }

    fn end_slot(&mut self, now: Instant) {
        self.slot_since = None;
        self.optimistic_until = None;
        self.slot_end = Some(now);
    }
}

/// Whether a slot would likely be wasted on a peer: it has one that it does not use, or its last one ended like that lately.
fn leaves_unused(peer: &Peer, known: Option<&Known>, now: Instant) -> bool {
    let lately = |known: &Known| {
        let ended = known.slot_end.filter(|_| known.unused && known.unchoked.is_empty());
        ended.is_some_and(|end| now.saturating_duration_since(end) < UNUSED_REMEMBERED)
    };
    peer.idle || known.is_some_and(lately)
}

/// How long a peer has waited for a slot. Coming again gains nothing: its wait starts anew.
fn wait_of(peer: &Peer, known: Option<&Known>, now: Instant) -> Duration {
    match known.map(|known| (known.slot_since, known.slot_end)) {
        Some((Some(_), _)) => Duration::ZERO,
        Some((None, Some(end))) => now.saturating_duration_since(end),
        Some((None, None)) | None => now.saturating_duration_since(peer.connected_at) * NEW_WEIGHT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Peers and their behaviour in virtual time.
    struct Town {
        choker: Choker,
        now: Instant,
        peers: Vec<Peer>,
        /// Seconds with a slot, and the longest time without one.
        served: Vec<u32>,
        dry_max: Vec<u32>,
        dry: Vec<u32>,
        unchoked: BTreeSet<ConnId>,
    }

    impl Town {
        fn new(config: Config, rates: &[u64]) -> Self {
            let now = Instant::now();
            let peer = |(at, rate): (usize, &u64)| Peer {
                key: PeerKey(at as u32),
                conns: vec![ConnId(at as u32 * 10)],
                download_rate_bytes: *rate,
                sent_bytes: 0,
                snubbed: false,
                idle: false,
                connected_at: now,
                progress_permille: 500,
            };
            let peers: Vec<Peer> = rates.iter().enumerate().map(peer).collect();
            let zeros = vec![0; peers.len()];
            let choker = Choker::new(config, 7);
            Self {
                choker,
                now,
                peers,
                served: zeros.clone(),
                dry_max: zeros.clone(),
                dry: zeros,
                unchoked: BTreeSet::new(),
            }
        }

        fn round(&mut self, seeding: bool) {
            let mut out = Vec::new();
            self.choker.round(&self.peers, seeding, 0, self.now, &mut out);
            for change in out {
                let changed =
                    if change.choke { self.unchoked.remove(&change.conn) } else { self.unchoked.insert(change.conn) };
                assert!(changed, "{change:?} changes nothing");
            }
        }

        fn run(&mut self, rounds: u32, seeding: bool, sent_per_round: u64) {
            for _ in 0..rounds {
                self.round(seeding);
                self.now += ROUND;
                assert_eq!(self.choker.deadline(), Some(self.now));
                for (at, peer) in self.peers.iter_mut().enumerate() {
                    if peer.conns.iter().any(|conn| self.unchoked.contains(conn)) {
                        assert!(peer.conns.iter().all(|conn| self.unchoked.contains(conn)));
                        peer.sent_bytes += sent_per_round;
                        self.served[at] += 10;
                        self.dry[at] = 0;
                    } else {
                        self.dry[at] += 10;
                        self.dry_max[at] = self.dry_max[at].max(self.dry[at]);
                    }
                }
            }
        }
    }

    fn fixed(slots: usize) -> Config {
        Config { slots: Slots::Fixed(slots), seed_quantum_bytes: 1000, ..Config::default() }
    }

    #[test]
    fn those_who_give_most_keep_their_slots_and_the_others_take_turns() {
        let mut town = Town::new(fixed(4), &[900, 10, 800, 20, 700, 30, 0, 0]);
        town.run(120, false, 1);
        let all = 1200;
        assert!([0, 2, 4].iter().all(|at| town.served[*at] == all), "{:?}", town.served);
        for at in [1, 3, 5, 6, 7] {
            assert!((150..=330).contains(&town.served[at]), "{:?}", town.served);
            assert!(town.dry_max[at] <= 5 * 30, "{:?}", town.dry_max);
        }
    }

    #[test]
    fn an_improved_giver_earns_a_slot_in_the_next_round() {
        let mut town = Town::new(fixed(2), &[100, 50, 50]);
        town.run(6, false, 1);
        assert!(town.unchoked.contains(&ConnId(0)));
        town.peers[2].download_rate_bytes = 101;
        town.run(1, false, 1);
        assert!(town.unchoked.contains(&ConnId(20)));
    }

    #[test]
    fn free_riders_get_optimistic_slots_only() {
        let rates: Vec<u64> = (0..20).map(|at| if at < 6 { 1000 + at } else { 0 }).collect();
        let mut town = Town::new(fixed(5), &rates);
        town.run(300, false, 1);
        let riders: u32 = town.served[6..].iter().sum();
        assert!(riders <= 3000 && town.served[2..6].iter().all(|served| *served == 3000), "{:?}", town.served);
    }

    #[test]
    fn a_snubbing_peer_loses_its_slot_and_it_becomes_optimistic() {
        let mut town = Town::new(fixed(2), &[900, 100, 100, 0]);
        town.peers[0].snubbed = true;
        town.peers[1].snubbed = true;
        town.peers[2].snubbed = true;
        town.run(120, false, 1);
        assert!(town.served.iter().all(|served| (500..=700).contains(served)), "{:?}", town.served);
    }

    #[test]
    fn more_connections_take_no_more_slots() {
        let mut town = Town::new(fixed(3), &[500, 500, 500, 500, 500, 500]);
        town.peers[5].conns = (50..60).map(ConnId).collect();
        for _ in 0..30 {
            town.run(1, false, 1);
            let keys: BTreeSet<u32> = town.unchoked.iter().map(|conn| conn.0 / 10).collect();
            assert_eq!((keys.len(), town.choker.unchoked_count()), (3, 3));
        }
        assert!(!town.choker.on_interested(PeerKey(9), ConnId(90), 0, town.now));
        let holder = *town.unchoked.first().unwrap();
        assert!(town.choker.on_interested(PeerKey(holder.0 / 10), ConnId(99), 0, town.now));
    }

    #[test]
    fn a_lone_peer_is_unchoked_at_once_and_everybody_while_there_are_slots() {
        let mut town = Town::new(fixed(4), &[0, 0, 0, 0]);
        assert_eq!(town.choker.deadline(), None);
        assert!(town.choker.on_interested(PeerKey(0), ConnId(0), 0, town.now));
        assert_eq!(town.choker.deadline(), Some(town.now + ROUND));
        town.unchoked.insert(ConnId(0));
        town.peers.iter_mut().for_each(|peer| peer.snubbed = true);
        for seeding in [false, true] {
            town.run(20, seeding, 1000);
            assert_eq!(town.unchoked.len(), 4);
        }
    }

    #[test]
    fn a_freed_slot_is_given_away_within_a_second() {
        let mut town = Town::new(fixed(1), &[0, 0]);
        town.round(true);
        let holder = *town.unchoked.first().unwrap();
        let key = PeerKey(holder.0 / 10);
        assert!(town.choker.on_gone(key, holder, town.now));
        assert!(!town.choker.on_gone(key, holder, town.now));
        assert_eq!(town.choker.deadline(), Some(town.now + ROUND_MIN));
        town.unchoked.clear();
        town.peers.retain(|peer| peer.key != key);
        town.now += ROUND_MIN;
        town.round(true);
        assert_eq!(town.unchoked.len(), 1);
        // Nobody left: everybody is forgotten, and no timer runs.
        town.peers.clear();
        town.round(true);
        assert!(town.unchoked.is_empty() && town.choker.known.is_empty() && town.choker.deadline().is_none());
    }

    #[test]
    fn a_seed_serves_everybody_in_turn() {
        let mut town = Town::new(fixed(4), &[0; 20]);
        town.run(360, true, 1000);
        // Two rounds a turn, five turns until it comes round again.
        assert!(town.served.iter().all(|served| (600..=840).contains(served)), "{:?}", town.served);
        assert!(town.dry_max.iter().all(|dry| *dry <= 160), "{:?}", town.dry_max);
    }

    #[test]
    fn a_peer_too_slow_for_its_share_still_gives_up_the_slot() {
        let mut town = Town::new(fixed(1), &[0, 0]);
        town.run(12, true, 1);
        assert_eq!(town.served.iter().max(), Some(&120));
        town.run(1, true, 1);
        assert_eq!(town.served.iter().min(), Some(&10));
    }

    #[test]
    fn who_leaves_a_slot_unused_gives_it_up_and_comes_after_the_others() {
        for seeding in [true, false] {
            let mut town = Town::new(fixed(8), &[0; 10]);
            // Eight that never ask hold all slots, then two come that do.
            for idler in 0..8 {
                assert!(town.choker.on_interested(PeerKey(idler), ConnId(idler * 10), 0, town.now));
                town.unchoked.insert(ConnId(idler * 10));
            }
            for late in [8, 9] {
                assert!(!town.choker.on_interested(PeerKey(late), ConnId(late * 10), 0, town.now));
            }
            town.now += UNUSED_AFTER;
            town.choker.on_unused(town.now);
            assert_eq!(town.choker.deadline(), Some(town.now));
            town.peers[..8].iter_mut().for_each(|peer| peer.idle = true);
            for _ in 0..12 {
                town.run(1, seeding, 1);
                assert!(town.unchoked.contains(&ConnId(80)) && town.unchoked.contains(&ConnId(90)), "{seeding}");
                for (at, peer) in town.peers[..8].iter_mut().enumerate() {
                    peer.idle = town.unchoked.contains(&ConnId(at as u32 * 10));
                }
            }
        }
    }

    #[test]
    fn slots_grow_with_the_rate_or_its_limit() {
        let choker = |limit| Choker::new(Config { upload_limit_bytes: limit, ..Config::default() }, 0);
        assert_eq!(choker(None).slots_at(0), SLOTS_START);
        assert_eq!(choker(None).slots_at(125_000_000), 273);
        assert_eq!(choker(None).slots_at(u64::MAX), SLOTS_MAX);
        assert_eq!(choker(Some(10_000)).slots_at(125_000_000), SLOTS_MIN);
        assert_eq!(Choker::new(fixed(0), 0).slots_at(0), 1);
    }
}
