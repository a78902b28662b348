//! Ways to remote sockets: those that were registered, and those that packets came by.
//!
//! A route is a remote address and the interfaces in between, in order; hop-field MACs are no part of it, so it outlives
//! every refresh. A packet from an address and over a path that nobody registered makes a *learned* route, so that a
//! listener answers over the path that it was asked by. Learned routes are bounded, end when nothing passes for a while,
//! and take over fresher hop fields when those arrive.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anabranch_paths::{IsdAs, ScionAddr, ScionPath};
use anabranch_scion_wire::{
    Address, HOPS_MAX, HeaderFields, HeaderTemplate, PacketError, PathError, PathRef, Ports, StandardPath,
};
use anabranch_udp::DATAGRAM_LEN_MAX;

use super::counters::Dropped;

/// Registered routes of one socket: a swarm of 500 peers with eight paths each.
pub const REGISTERED_MAX: usize = 4096;
/// Learned routes of one socket. Each takes under two kilobytes.
pub const LEARNED_MAX: usize = 4096;
/// A learned route that we have sent over ends when nothing came by it for so long: longer than any connection above us
/// stays silent.
pub const LEARNED_IDLE: Duration = Duration::from_secs(180);
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
    #[error("the socket has {REGISTERED_MAX} routes already: remove some")]
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
#[derive(Debug)]
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
    registered_count: usize,
    learned_count: usize,
    swept_ms: u64,
    /// Routes taken out so far: whoever keeps ids forgets them when this moves.
    removals: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    /// Registrations that were not removed.
    holders: u32,
    route: Option<Arc<Route>>,
}

impl Routes {
    pub(super) fn new(local: ScionAddr) -> Self {
        Self {
            local,
            slots: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::new(),
            hasher: RandomState::new(),
            registered_count: 0,
            learned_count: 0,
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
            self.replace(id, route);
            return Ok(id);
        }
        if self.registered_count == REGISTERED_MAX {
            return Err(RouteError::TooMany);
        }
        self.registered_count += 1;
        let id = self.insert(route);
        self.slots[id.slot as usize].holders = 1;
        Ok(id)
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

    /// Takes back one registration. False if it was the last one, and the route is gone; or was before.
    pub(super) fn remove(&mut self, id: RouteId) -> bool {
        if self.get(id).is_none() {
            return false;
        }
        let slot = &mut self.slots[id.slot as usize];
        slot.holders = slot.holders.saturating_sub(1);
        if slot.holders > 0 {
            return true;
        }
        self.take_out(id);
        false
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
    ) -> Result<RouteId, Dropped> {
        let interfaces = Interfaces::of(back);
        if let Some(id) = self.find(remote, interfaces.as_slice()) {
            self.refresh(id, from, back);
            return Ok(id);
        }
        self.sweep(now_ms);
        if self.learned_count == LEARNED_MAX {
            return Err(Dropped::RoutesFull);
        }
        // Inside one AS packets come straight from their source, and to nobody else do answers go.
        let next_hop = if matches!(back, PathRef::Empty) { remote.host } else { from };
        let mut route = self.build(remote, next_hop, back, now_ms).map_err(|_| Dropped::NoWayBack)?;
        route.learned = true;
        self.learned_count += 1;
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
            let Slot { generation, route, .. } = &self.slots[slot];
            if route.as_ref().is_some_and(|route| route.learned && route.use_.is_over(now_ms)) {
                self.take_out(RouteId { generation: *generation, slot: slot as u32 });
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
        })
    }

    /// Lets a learned route take over a path that lasts longer. Registered ones are refreshed by who registered them.
    fn refresh(&mut self, id: RouteId, from: SocketAddr, back: &PathRef<'_>) {
        let Some(old) = self.get(id) else { return };
        if !old.learned || expiry_unix_ms(back) <= old.expiry_unix_ms {
            return;
        }
        if let Ok(mut route) = self.build(old.remote, from, back, 0) {
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

    /// Counts one more registration of a route that is there.
    fn hold(&mut self, id: RouteId) -> Result<(), RouteError> {
        if self.get(id).is_some_and(|route| route.learned) {
            if self.registered_count == REGISTERED_MAX {
                return Err(RouteError::TooMany);
            }
            self.registered_count += 1;
            self.learned_count -= 1;
        }
        self.slots[id.slot as usize].holders += 1;
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
            self.slots.push(Slot { generation: 0, holders: 0, route: None });
            // REGISTERED_MAX and LEARNED_MAX bound the slots far below 2^32.
            (self.slots.len() - 1) as u32
        });
        let place = &mut self.slots[slot as usize];
        place.route = Some(Arc::new(route));
        let id = RouteId { generation: place.generation, slot };
        self.by_key.insert(key, id);
        id
    }

    fn take_out(&mut self, id: RouteId) {
        let slot = &mut self.slots[id.slot as usize];
        let Some(route) = slot.route.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        slot.holders = 0;
        self.free.push(id.slot);
        self.removals.fetch_add(1, Ordering::Release);
        if self.by_key.get(&route.key) == Some(&id) {
            self.by_key.remove(&route.key);
        }
        let count = if route.learned { &mut self.learned_count } else { &mut self.registered_count };
        *count -= 1;
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
