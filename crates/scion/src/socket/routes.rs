//! Ways to remote sockets: those that were registered, and those that packets came by.
//!
//! A route is a remote address and the interfaces in between, in order; hop-field MACs are no part of it, so it outlives
//! every refresh. A packet from an address and over a path that nobody registered makes a *learned* route, so that a
//! listener answers over the path that it was asked by. Learned routes are bounded, by host and by AS too, and end when
//! nothing passes for a while.
//!
//! Whoever finds out that the one at the other end is who he says he is *keeps* the route ([`Routes::keep`]). From then on no
//! packet changes it: anybody can write a packet with fresher hop fields, and the answers would go where they lead. They
//! are remembered as an *offer*, for the one who keeps the route to try ([`Routes::offer`]), or he looks the path up
//! himself. Only before that, while nothing is at stake but a handshake, fresher hop fields are taken over as they come.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::fmt;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anabranch_paths::{IsdAs, ScionAddr, ScionPath};
use anabranch_scion_wire::{
    Address, HOPS_MAX, HeaderFields, HeaderTemplate, PacketError, PathError, PathRef, Ports, StandardPath,
};
use anabranch_udp::DATAGRAM_LEN_MAX;

use super::counters::Dropped;

/// Routes of one socket that are registered or kept: a swarm of 500 peers with eight paths each.
pub const REGISTERED_MAX: usize = 4096;
/// Learned routes of one socket that nobody keeps. Each takes under two kilobytes.
pub const LEARNED_MAX: usize = 4096;
/// Of these, those to one AS: some room is left whatever it sends. Who a packet is from stands in it and proves nothing, but
/// the routers on the way have seen to it that its path leads there.
pub const LEARNED_OF_AS_MAX: usize = LEARNED_MAX / 4;
/// Of these, those to one host, which otherwise takes a route with each of its ports.
pub const LEARNED_OF_HOST_MAX: usize = LEARNED_MAX / 16;
/// A learned route that we have sent over ends when nothing came by it for so long: any handshake is over by then, and what
/// came of it keeps its route.
pub const LEARNED_IDLE: Duration = Duration::from_secs(30);
/// A hop field lives for a day at most (SCION header, "ExpTime"). A path that claims more has been made up.
const LIFETIME_MAX_MS: u64 = 24 * 60 * 60 * 1000;
/// And so much more, for clocks that differ.
const CLOCKS_DIFFER_MS: u64 = 60 * 1000;
/// One that we never answered over ends sooner: spoofed sources are like that.
pub const UNANSWERED_IDLE: Duration = Duration::from_secs(10);
/// Idle routes are looked for so often at most, so that a flood of new sources cannot make it dear.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// One route of one socket. Never used again for another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteId {
    generation: u32,
    slot: u32,
}

impl RouteId {
    /// The name of no route: there are never so many.
    pub(super) const NONE: Self = Self { generation: u32::MAX, slot: u32::MAX };

    /// As a number, for those who keep routes under names of their own.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// From [`RouteId::to_bits`]. Other numbers are names of no route.
    pub fn from_bits(bits: u64) -> Self {
        Self { generation: (bits >> 32) as u32, slot: bits as u32 }
    }
}

impl fmt::Debug for RouteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "route {}.{}", self.slot, self.generation)
    }
}

/// Why a route cannot be registered or updated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The path does not start in our AS.
    #[error("the path starts in {path}, and this socket is in {local}: look the path up at a daemon of {local}")]
    Source {
        /// Where the path starts.
        path: IsdAs,
        /// Where we are.
        local: IsdAs,
    },
    /// The path does not end in the remote's AS.
    #[error("the path ends in {path}, and the remote is in {remote}: look up a path to {remote}")]
    Destination {
        /// Where the path ends.
        path: IsdAs,
        /// Where the remote is.
        remote: IsdAs,
    },
    /// The path's bytes are no path.
    #[error("the path that was looked up is malformed: {0}")]
    Path(#[from] PathError),
    /// The path and addresses fit into no header.
    #[error("the path does not fit into a packet: {0}")]
    Packet(#[from] PacketError),
    /// A path to another AS without a router to hand packets to.
    #[error("the path to {0} names no border router")]
    NoNextHop(IsdAs),
    /// The path's MTU leaves no room for a payload.
    #[error("the path's MTU of {mtu} bytes is less than its headers of {header_len} bytes")]
    Mtu {
        /// The path's.
        mtu: u16,
        /// Bytes of SCION and UDP headers.
        header_len: usize,
    },
    /// The refreshed path goes another way.
    #[error("the new path passes other interfaces than the route: register it as a route of its own")]
    OtherWay,
    /// [`REGISTERED_MAX`] is reached.
    #[error("the socket has {REGISTERED_MAX} routes in use already: remove some")]
    TooMany,
    /// The route was removed or has expired.
    #[error("the route is gone: register it again")]
    Gone,
}

/// What is known of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteInfo {
    /// The socket at its other end.
    pub remote: ScionAddr,
    /// Where its packets are handed to: a border router, or the remote itself.
    pub next_hop: SocketAddr,
    /// The numbers of the interfaces that packets of ours pass, two for every link; a packet does not tell whose they are.
    pub interfaces: Vec<u16>,
    /// Largest payload of one packet in bytes. For learned routes nobody has told the MTU, and this is what one datagram
    /// can have at all.
    pub payload_len_max: usize,
    /// Bytes of the SCION and UDP headers of every packet.
    pub header_len: usize,
    /// When its path ends; `None` inside one AS.
    pub expiry: Option<SystemTime>,
    /// Learned from packets, not registered.
    pub learned: bool,
}

/// A route as senders use it. Replaced as a whole when its path is refreshed.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) remote: ScionAddr,
    pub(super) next_hop: SocketAddr,
    pub(super) template: HeaderTemplate,
    pub(super) payload_len_max: usize,
    /// As it stands in packets of ours; empty inside one AS.
    pub(super) path: Box<[u8]>,
    pub(super) interfaces: Box<[u16]>,
    pub(super) use_: Arc<Use>,
    /// `u64::MAX` inside one AS.
    expiry_unix_ms: u64,
    key: u64,
    learned: bool,
    /// A path of the same way that lives longer, as the last packet that had one brought it; of kept routes only.
    offer: Option<Offer>,
}

/// Fresher hop fields that nobody vouches for.
#[derive(Clone, Debug)]
struct Offer {
    path: Box<[u8]>,
    next_hop: SocketAddr,
    expiry_unix_ms: u64,
}

/// When a route was last used. Shared by all its refreshed versions.
#[derive(Debug)]
pub(super) struct Use {
    /// Milliseconds since the table was made.
    received_ms: AtomicU64,
    answered: AtomicBool,
}

impl Use {
    pub(super) fn received(&self, now_ms: u64) {
        self.received_ms.store(now_ms, Ordering::Relaxed);
    }

    pub(super) fn sent(&self) {
        // Read first: a shared line that everybody only reads costs nothing.
        if !self.answered.load(Ordering::Relaxed) {
            self.answered.store(true, Ordering::Relaxed);
        }
    }

    fn is_over(&self, now_ms: u64) -> bool {
        let idle = if self.answered.load(Ordering::Relaxed) { LEARNED_IDLE } else { UNANSWERED_IDLE };
        u128::from(now_ms.saturating_sub(self.received_ms.load(Ordering::Relaxed))) >= idle.as_millis()
    }
}

/// The interfaces of a path, in order.
pub(super) struct Interfaces {
    numbers: [u16; 2 * HOPS_MAX],
    len: usize,
}

impl Interfaces {
    pub(super) fn of(path: &PathRef<'_>) -> Self {
        let mut interfaces = Self { numbers: [0; 2 * HOPS_MAX], len: 0 };
        if let PathRef::Standard(path) = path {
            for (place, interface) in interfaces.numbers.iter_mut().zip(path.interfaces()) {
                *place = interface;
                interfaces.len += 1;
            }
        }
        interfaces
    }

    pub(super) fn as_slice(&self) -> &[u16] {
        &self.numbers[..self.len]
    }
}

/// The routes of one socket.
#[derive(Debug)]
pub(super) struct Routes {
    local: ScionAddr,
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_key: HashMap<u64, RouteId>,
    /// Keyed at random, so that nobody can choose addresses that collide.
    hasher: RandomState,
    /// Routes that are registered or kept.
    held_count: usize,
    /// Learned routes that nobody keeps.
    learned: Learned,
    swept_ms: u64,
    /// Routes taken out so far: whoever keeps ids forgets them when this moves.
    removals: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    /// Registrations that were not removed.
    holders: u32,
    /// Those who keep it for what came by it.
    keepers: u32,
    route: Option<Arc<Route>>,
}

/// Learned routes that nobody keeps, by whom they lead to.
#[derive(Debug, Default)]
struct Learned {
    count: usize,
    of_as: HashMap<IsdAs, usize>,
    of_host: HashMap<(IsdAs, IpAddr), usize>,
}

impl Learned {
    fn has_room(&self, remote: &ScionAddr) -> bool {
        let of_as = self.of_as.get(&remote.isd_as).copied().unwrap_or(0);
        let of_host = self.of_host.get(&(remote.isd_as, remote.host.ip())).copied().unwrap_or(0);
        self.count < LEARNED_MAX && of_as < LEARNED_OF_AS_MAX && of_host < LEARNED_OF_HOST_MAX
    }

    fn add(&mut self, remote: &ScionAddr) {
        self.count += 1;
        *self.of_as.entry(remote.isd_as).or_default() += 1;
        *self.of_host.entry((remote.isd_as, remote.host.ip())).or_default() += 1;
    }

    fn subtract(&mut self, remote: &ScionAddr) {
        fn one_less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: K) {
            if let Entry::Occupied(mut count) = counts.entry(key) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
        self.count -= 1;
        one_less(&mut self.of_as, remote.isd_as);
        one_less(&mut self.of_host, (remote.isd_as, remote.host.ip()));
    }
}

impl Routes {
    pub(super) fn new(local: ScionAddr) -> Self {
        Self {
            local,
            slots: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::new(),
            hasher: RandomState::new(),
            held_count: 0,
            learned: Learned::default(),
            swept_ms: 0,
            removals: Arc::default(),
        }
    }

    pub(super) fn removals(&self) -> Arc<AtomicU64> {
        self.removals.clone()
    }

    pub(super) fn get(&self, id: RouteId) -> Option<&Arc<Route>> {
        let slot = self.slots.get(id.slot as usize)?;
        slot.route.as_ref().filter(|_| slot.generation == id.generation)
    }

    pub(super) fn register(&mut self, remote: ScionAddr, path: &ScionPath, now_ms: u64) -> Result<RouteId, RouteError> {
        let remote = ScionAddr::new(remote.isd_as, remote.host);
        let (path_ref, next_hop) = self.check(remote, path)?;
        let mut route = self.build(remote, next_hop, &path_ref, now_ms)?;
        route.payload_len_max = payload_len_max(&route.template, path.mtu)?;
        if let Some(id) = self.find_key(route.key, remote, &route.interfaces) {
            self.hold(id)?;
            self.slots[id.slot as usize].holders += 1;
            self.replace(id, route);
            return Ok(id);
        }
        if self.held_count == REGISTERED_MAX {
            return Err(RouteError::TooMany);
        }
        self.held_count += 1;
        let id = self.insert(route);
        self.slots[id.slot as usize].holders = 1;
        Ok(id)
    }

    /// Lets a route last for what came by it until [`Routes::release`], whoever else registers it and takes it back.
    pub(super) fn keep(&mut self, id: RouteId) -> Result<(), RouteError> {
        self.hold(id)?;
        self.slots[id.slot as usize].keepers += 1;
        Ok(())
    }

    /// Ends one [`Routes::keep`].
    pub(super) fn release(&mut self, id: RouteId) {
        if self.get(id).is_some() {
            let slot = &mut self.slots[id.slot as usize];
            let Some(keepers) = slot.keepers.checked_sub(1) else { return };
            slot.keepers = keepers;
            if slot.keepers == 0 && slot.holders == 0 {
                self.take_out(id, true);
            }
        }
    }

    /// Fresher hop fields for a kept route than its own, as a route of its own to be tried; see [`Routes::accept_offer`].
    pub(super) fn offer(&self, id: RouteId) -> Option<Arc<Route>> {
        let route = self.get(id)?;
        let offer = route.offer.as_ref()?;
        let path = PathRef::from_dataplane(&offer.path).ok()?;
        let mut offered = self.build(route.remote, offer.next_hop, &path, 0).ok()?;
        (offered.payload_len_max, offered.learned) = (route.payload_len_max, route.learned);
        Some(Arc::new(offered))
    }

    /// What was offered leads nowhere.
    pub(super) fn refuse_offer(&mut self, id: RouteId) {
        if let Some(route) = self.get(id).cloned() {
            self.replace(id, Route { offer: None, ..Route::clone(&route) });
            // Packets with the right one may have come before, and are not looked at again while they are remembered.
            self.removals.fetch_add(1, Ordering::Release);
        }
    }

    /// The route goes over what was offered, which has proved to lead there, unless something better came meanwhile.
    pub(super) fn accept_offer(&mut self, id: RouteId, offered: &Route) {
        let Some(route) = self.get(id).filter(|route| route.expiry_unix_ms < offered.expiry_unix_ms).cloned() else {
            return;
        };
        let Ok(path) = PathRef::from_dataplane(&offered.path) else { return };
        if let Ok(mut fresh) = self.build(route.remote, offered.next_hop, &path, 0) {
            (fresh.payload_len_max, fresh.learned) = (route.payload_len_max, route.learned);
            self.replace(id, fresh);
        }
    }

    pub(super) fn update(&mut self, id: RouteId, path: &ScionPath) -> Result<(), RouteError> {
        let old = self.get(id).ok_or(RouteError::Gone)?.clone();
        let (path_ref, next_hop) = self.check(old.remote, path)?;
        let mut route = self.build(old.remote, next_hop, &path_ref, 0)?;
        route.payload_len_max = payload_len_max(&route.template, path.mtu)?;
        if route.interfaces != old.interfaces {
            return Err(RouteError::OtherWay);
        }
        route.learned = old.learned;
        self.replace(id, route);
        Ok(())
    }

    /// Takes back one registration. False if the route is gone, with this one or before.
    pub(super) fn remove(&mut self, id: RouteId) -> bool {
        if self.get(id).is_none() {
            return false;
        }
        let slot = &mut self.slots[id.slot as usize];
        let Some(holders) = slot.holders.checked_sub(1) else { return true };
        slot.holders = holders;
        if holders > 0 {
            return true;
        }
        if slot.keepers == 0 {
            self.take_out(id, true);
            return false;
        }
        // Nobody refreshes it any more. Who keeps it goes on over what there is.
        if let Some(route) = &mut slot.route {
            *route = Arc::new(Route { learned: true, ..Route::clone(route) });
        }
        true
    }

    /// The route to `remote` over these interfaces.
    pub(super) fn find(&self, remote: ScionAddr, interfaces: &[u16]) -> Option<RouteId> {
        self.find_key(self.key(remote, interfaces), remote, interfaces)
    }

    /// The route that a packet from `remote`, handed to us by `from`, came by; `back` is its path turned round. The packet
    /// has proved as much as packets do: its checksum is right.
    pub(super) fn learn(
        &mut self,
        remote: ScionAddr,
        from: SocketAddr,
        back: &PathRef<'_>,
        now_ms: u64,
        unix_ms: u64,
    ) -> Result<RouteId, Dropped> {
        let is_made_up = |expiry: u64| expiry.saturating_sub(unix_ms) > LIFETIME_MAX_MS + CLOCKS_DIFFER_MS;
        if matches!(back, PathRef::Standard(_)) && is_made_up(expiry_unix_ms(back)) {
            return Err(Dropped::MadeUpPath);
        }
        let interfaces = Interfaces::of(back);
        if let Some(id) = self.find(remote, interfaces.as_slice()) {
            self.refresh(id, from, back);
            return Ok(id);
        }
        self.sweep(now_ms);
        if !self.learned.has_room(&remote) {
            return Err(Dropped::RoutesFull);
        }
        // Inside one AS packets come straight from their source, and to nobody else do answers go.
        let next_hop = if matches!(back, PathRef::Empty) { remote.host } else { from };
        let mut route = self.build(remote, next_hop, back, now_ms).map_err(|_| Dropped::NoWayBack)?;
        route.learned = true;
        self.learned.add(&remote);
        Ok(self.insert(route))
    }

    pub(super) fn info(&self, id: RouteId) -> Option<RouteInfo> {
        let route = self.get(id)?;
        Some(RouteInfo {
            remote: route.remote,
            next_hop: route.next_hop,
            interfaces: route.interfaces.to_vec(),
            payload_len_max: route.payload_len_max,
            header_len: route.template.header_len(),
            expiry: (route.expiry_unix_ms != u64::MAX)
                .then(|| SystemTime::UNIX_EPOCH + Duration::from_millis(route.expiry_unix_ms)),
            learned: route.learned,
        })
    }

    /// Takes out learned routes that nothing passes.
    fn sweep(&mut self, now_ms: u64) {
        if u128::from(now_ms.saturating_sub(self.swept_ms)) < SWEEP_EVERY.as_millis() {
            return;
        }
        self.swept_ms = now_ms;
        for slot in 0..self.slots.len() {
            let Slot { generation, route, holders, keepers } = &self.slots[slot];
            if *holders == 0 && *keepers == 0 && route.as_ref().is_some_and(|route| route.use_.is_over(now_ms)) {
                self.take_out(RouteId { generation: *generation, slot: slot as u32 }, false);
            }
        }
    }

    fn check<'a>(&self, remote: ScionAddr, path: &'a ScionPath) -> Result<(PathRef<'a>, SocketAddr), RouteError> {
        let local = self.local.isd_as;
        if path.source != local {
            return Err(RouteError::Source { path: path.source, local });
        }
        if path.destination != remote.isd_as {
            return Err(RouteError::Destination { path: path.destination, remote: remote.isd_as });
        }
        let path_ref = PathRef::from_dataplane(&path.dataplane)?;
        let next_hop = match path_ref {
            PathRef::Empty if remote.isd_as == local => path.next_hop.unwrap_or(remote.host),
            _ => path.next_hop.ok_or(RouteError::NoNextHop(remote.isd_as))?,
        };
        Ok((path_ref, next_hop))
    }

    fn build(
        &self,
        remote: ScionAddr,
        next_hop: SocketAddr,
        path: &PathRef<'_>,
        now_ms: u64,
    ) -> Result<Route, PacketError> {
        let interfaces = Interfaces::of(path);
        let key = self.key(remote, interfaces.as_slice());
        let fields = HeaderFields {
            source: Address::new(self.local.isd_as, self.local.host.ip()),
            destination: Address::new(remote.isd_as, remote.host.ip()),
            path: *path,
            flow_id: flow_id(key),
            traffic_class: 0,
        };
        let ports = Ports { source: self.local.host.port(), destination: remote.host.port() };
        let template = HeaderTemplate::new(&fields, ports)?;
        Ok(Route {
            remote,
            next_hop,
            payload_len_max: DATAGRAM_LEN_MAX - template.header_len(),
            template,
            path: path.as_bytes().into(),
            use_: Arc::new(Use { received_ms: now_ms.into(), answered: false.into() }),
            interfaces: interfaces.as_slice().into(),
            expiry_unix_ms: expiry_unix_ms(path),
            key,
            learned: false,
            offer: None,
        })
    }

    /// Lets a learned route take over a path that lasts longer, or notes the path where somebody keeps the route. Registered
    /// ones are refreshed by who registered them.
    fn refresh(&mut self, id: RouteId, from: SocketAddr, back: &PathRef<'_>) {
        let Some(old) = self.get(id) else { return };
        let expiry_unix_ms = expiry_unix_ms(back);
        if !old.learned || expiry_unix_ms <= old.expiry_unix_ms {
            return;
        }
        let is_kept = self.slots[id.slot as usize].keepers > 0;
        if is_kept {
            let offer = Offer { path: back.as_bytes().into(), next_hop: from, expiry_unix_ms };
            let is_known = old.offer.as_ref().is_some_and(|known| known.expiry_unix_ms == expiry_unix_ms);
            if !is_known {
                let route = Route { offer: Some(offer), ..Route::clone(old) };
                self.replace(id, route);
            }
        } else if let Ok(mut route) = self.build(old.remote, from, back, 0) {
            route.learned = true;
            self.replace(id, route);
        }
    }

    fn key(&self, remote: ScionAddr, interfaces: &[u16]) -> u64 {
        self.hasher.hash_one((remote, interfaces))
    }

    fn find_key(&self, key: u64, remote: ScionAddr, interfaces: &[u16]) -> Option<RouteId> {
        let id = *self.by_key.get(&key)?;
        self.get(id).filter(|route| route.remote == remote && *route.interfaces == *interfaces).map(|_| id)
    }

    /// Counts a route that is there as one that somebody holds.
    fn hold(&mut self, id: RouteId) -> Result<(), RouteError> {
        let remote = self.get(id).ok_or(RouteError::Gone)?.remote;
        let Slot { holders, keepers, .. } = self.slots[id.slot as usize];
        if holders == 0 && keepers == 0 {
            if self.held_count == REGISTERED_MAX {
                return Err(RouteError::TooMany);
            }
            self.held_count += 1;
            self.learned.subtract(&remote);
        }
        Ok(())
    }

    /// Puts a newer version in the place of a route that is there.
    fn replace(&mut self, id: RouteId, mut route: Route) {
        if let Some(old) = &mut self.slots[id.slot as usize].route {
            route.use_ = old.use_.clone();
            *old = Arc::new(route);
        }
    }

    fn insert(&mut self, route: Route) -> RouteId {
        let key = route.key;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, holders: 0, keepers: 0, route: None });
            // REGISTERED_MAX and LEARNED_MAX bound the slots far below 2^32.
            (self.slots.len() - 1) as u32
        });
        let place = &mut self.slots[slot as usize];
        place.route = Some(Arc::new(route));
        let id = RouteId { generation: place.generation, slot };
        self.by_key.insert(key, id);
        id
    }

    fn take_out(&mut self, id: RouteId, was_held: bool) {
        let slot = &mut self.slots[id.slot as usize];
        let Some(route) = slot.route.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        (slot.holders, slot.keepers) = (0, 0);
        self.free.push(id.slot);
        self.removals.fetch_add(1, Ordering::Release);
        if self.by_key.get(&route.key) == Some(&id) {
            self.by_key.remove(&route.key);
        }
        if was_held {
            self.held_count -= 1;
        } else {
            self.learned.subtract(&route.remote);
        }
    }
}

/// Milliseconds from `start` to `now`.
pub(super) fn ms_since(start: Instant, now: Instant) -> u64 {
    now.saturating_duration_since(start).as_millis() as u64
}

/// "It is mandatory to be set" (SCION header, "FlowID"): 20 bits, not zero.
fn flow_id(key: u64) -> u32 {
    (key as u32 & 0xf_ffff).max(1)
}

fn expiry_unix_ms(path: &PathRef<'_>) -> u64 {
    match path {
        PathRef::Standard(path) => StandardPath::expiry_unix_ms(path),
        _ => u64::MAX,
    }
}

/// What a path's MTU leaves for the payload; zero is an MTU that nobody told.
fn payload_len_max(template: &HeaderTemplate, mtu: u16) -> Result<usize, RouteError> {
    let header_len = template.header_len();
    let packet_len_max = if mtu == 0 { DATAGRAM_LEN_MAX } else { DATAGRAM_LEN_MAX.min(mtu.into()) };
    let left = packet_len_max.checked_sub(header_len).filter(|left| *left > 0);
    left.ok_or(RouteError::Mtu { mtu, header_len })
}
