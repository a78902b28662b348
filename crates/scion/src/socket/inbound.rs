//! From bytes that arrived to data on a route.
//!
//! Packets of one flow differ in their lengths, flow bits and checksum only, until the path is refreshed. So what stands
//! between those, a hundred bytes or so, is remembered with the route that it was found to mean, and compared in one go:
//! addresses, path and ports of the next packet need no parse. What is new is parsed, and each reason to drop it counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use anabranch_scion_wire::checksum::{self, Sum};
use anabranch_scion_wire::udp::{HEADER_LEN, Shape};
use anabranch_scion_wire::{Address, HEADER_LEN_MAX, Header, PATH_LEN_MAX, Packet, PathRef, Protocol};

use super::admit::{Admitted, admit, check_neighbour};
use super::core::Core;
use super::counters::Dropped;
use super::routes::{RouteId, Use, ms_since};
use super::scmp::Replies;

/// Headers remembered: enough for the flows that are busy at once, and a third of the second-level cache.
const CACHE_ENTRIES: usize = 256;
/// Longest remembered header: addresses, a path of 20 hops, ports. Longer ones are parsed each time.
const CACHED_LEN_MAX: usize = 320;

/// What the receiving side of a socket remembers from packet to packet, and answers that wait to be sent.
#[derive(Debug)]
pub struct Inbox {
    entries: Box<[Entry]>,
    /// [`super::routes::Routes::removals`] when the entries were made.
    removals: u64,
    pub(super) replies: Replies,
    /// The time of day, in milliseconds of Unix time: paths end by it.
    pub(super) unix_ms: u64,
}

/// What one flow's packets share.
#[derive(Debug, Default)]
struct Entry {
    shared: Vec<u8>,
    meaning: Option<Meaning>,
}

#[derive(Clone, Debug)]
struct Meaning {
    route: RouteId,
    use_: Arc<Use>,
    /// Who hands the flow's packets over.
    from: SocketAddr,
    /// The pseudo header and ports, without the lengths.
    sum: Sum,
}

/// The data of one packet on a route.
#[derive(Debug)]
pub struct Data<'a> {
    /// The route it came by.
    pub route: RouteId,
    /// Its ECN bits.
    pub ecn: u8,
    payload: &'a [u8],
    /// Everything that the checksum covers but the payload; `None` if the sender computed none.
    sum: Option<Sum>,
}

impl Data<'_> {
    /// Bytes of payload.
    pub fn len(&self) -> usize {
        self.payload.len()
    }

    /// A packet without payload.
    pub fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }

    /// The packet came without a checksum.
    pub fn is_unchecked(&self) -> bool {
        self.sum.is_none()
    }

    /// Copies the payload to the start of `to`, which has room for it, and says whether the checksum is right.
    #[must_use]
    pub fn copy_to(&self, to: &mut [u8]) -> bool {
        match self.sum {
            Some(sum) => (sum + checksum::copy_sum(to, self.payload)).is_intact(),
            None => {
                to[..self.payload.len()].copy_from_slice(self.payload);
                true
            }
        }
    }
}

impl Default for Inbox {
    fn default() -> Self {
        let entries = std::iter::repeat_with(Entry::default).take(CACHE_ENTRIES).collect();
        let mut inbox = Self { entries, removals: 0, replies: Replies::default(), unix_ms: 0 };
        inbox.set_clock(SystemTime::now());
        inbox
    }
}

impl Inbox {
    /// What time it is, by the clock that paths end by. Once a batch is often enough.
    pub fn set_clock(&mut self, now: SystemTime) {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.unix_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    }

    /// Looks whether `bytes` from `from` are a packet like one before, and what it means then.
    fn recall<'a>(&self, bytes: &'a [u8], from: SocketAddr) -> Option<(Data<'a>, &Meaning)> {
        let shape = Shape::of(bytes)?;
        let entry = &self.entries[shape.hash(bytes) as usize % CACHE_ENTRIES];
        let meaning = entry.meaning.as_ref()?;
        if meaning.from != from || *entry.shared != *shape.shared(bytes) {
            return None;
        }
        let sum = shape.sum_of_lengths(bytes, bytes.len())?.map(|sum| meaning.sum + sum);
        let payload = &bytes[shape.headers_len()..];
        let data = Data { route: meaning.route, ecn: shape.ecn(bytes), payload, sum };
        Some((data, meaning))
    }

    /// Remembers what `bytes`, a whole packet with UDP right behind its header, mean.
    fn remember(&mut self, bytes: &[u8], header: &Header<'_>, from: SocketAddr, route: RouteId, use_: Arc<Use>) {
        let Some(shape) = Shape::of(bytes) else { return };
        let shared = shape.shared(bytes);
        if shared.len() > CACHED_LEN_MAX {
            return;
        }
        let sum = header.pseudo_sum(Protocol::UDP, 0) + checksum::sum(shape.ports(bytes));
        let entry = &mut self.entries[shape.hash(bytes) as usize % CACHE_ENTRIES];
        entry.shared.clear();
        entry.shared.extend_from_slice(shared);
        entry.meaning = Some(Meaning { route, use_, from, sum });
    }

    /// Forgets everything if routes went since the last call.
    fn keep_up(&mut self, removals: u64) {
        if self.removals != removals {
            self.removals = removals;
            self.entries.iter_mut().for_each(|entry| entry.meaning = None);
        }
    }
}

impl Core {
    /// Takes one packet, handed to us by `from` at `now`. What concerns SCMP is dealt with; what is wrong is counted; data is
    /// returned, its checksum not yet verified: [`Data::copy_to`] does that on the way.
    pub fn inbound<'a>(&self, inbox: &mut Inbox, bytes: &'a [u8], from: SocketAddr, now: Instant) -> Option<Data<'a>> {
        inbox.keep_up(self.removals.load(Ordering::Acquire));
        if let Some((data, meaning)) = inbox.recall(bytes, from) {
            meaning.use_.received(ms_since(self.start, now));
            return Some(data);
        }
        match self.inbound_new(inbox, bytes, from, now) {
            Ok(data) => data,
            Err(reason) => {
                self.counting.drop(reason);
                None
            }
        }
    }

    #[cold]
    fn inbound_new<'a>(
        &self,
        inbox: &mut Inbox,
        bytes: &'a [u8],
        from: SocketAddr,
        now: Instant,
    ) -> Result<Option<Data<'a>>, Dropped> {
        let packet = Packet::parse(bytes).map_err(|_| Dropped::Malformed)?;
        let (remote, datagram) = match admit(&packet, self.local, from, |from| self.is_router(from))? {
            Admitted::Scmp(source) => return self.scmp(inbox, &packet, source, from, now).map(|()| None),
            Admitted::Udp(remote, datagram) => (remote, datagram),
        };
        let header = packet.header();
        let source = Address::new(remote.isd_as, remote.host.ip());
        let (now_ms, unix_ms) = (ms_since(self.start, now), inbox.unix_ms);
        let (route, use_) = self.with_way_back(header, source, from, |back, from| {
            let mut routes = self.routes();
            let route = routes.learn(remote, from, back, now_ms, unix_ms)?;
            let use_ = routes.get(route).ok_or(Dropped::RoutesFull)?.use_.clone();
            Ok((route, use_))
        })?;
        use_.received(now_ms);
        if header.next_header() == Protocol::UDP {
            inbox.remember(bytes, header, from, route, use_);
        }
        // It was verified above, but the caller verifies as it copies.
        let sum = (datagram.checksum() != 0).then(|| {
            let len = HEADER_LEN + datagram.payload().len();
            header.pseudo_sum(Protocol::UDP, len) + checksum::sum(datagram.header())
        });
        Ok(Some(Data { route, ecn: header.traffic_class() & 0b11, payload: datagram.payload(), sum }))
    }

    /// Calls `then` with the packet's path turned round and the next hop for answers.
    pub(super) fn with_way_back<T>(
        &self,
        header: &Header<'_>,
        source: Address,
        from: SocketAddr,
        then: impl FnOnce(&PathRef<'_>, SocketAddr) -> Result<T, Dropped>,
    ) -> Result<T, Dropped> {
        let mut back = [0; PATH_LEN_MAX];
        let len = header.path().copy_reversed(&mut back).ok_or(Dropped::NoWayBack)?;
        let back = PathRef::from_dataplane(&back[..len]).map_err(|_| Dropped::NoWayBack)?;
        if matches!(back, PathRef::Empty) {
            check_neighbour(source.isd_as, source.host.ip(), self.local.isd_as, from)?;
        }
        then(&back, from)
    }
}

const _: () = assert!(CACHED_LEN_MAX <= HEADER_LEN_MAX);
