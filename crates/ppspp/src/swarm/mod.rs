//! One swarm: its channels, what is asked of whom, what is served to whom.
//!
//! A driver feeds datagrams and time in, a batch at a time, and carries out what comes back: datagrams to send, chunks to store, liars to ban,
//! peers to dial. It keeps the bytes: a chunk that arrives is handed out only after it was verified, and is announced and
//! served only after [`Swarm::stored`] said that it was written; a chunk that leaves is put by the driver behind the
//! datagram's head ([`Transmit::chunk`]).
//!
//! Whoever did not prove an address is sent at most as many bytes as came from there, and nothing is remembered of it but a
//! place in a short queue. An address is proven by a datagram that names our channel, whose number is random.
//!
//! A live stream is a swarm without an end: [`Swarm::source`] takes in what [`Swarm::push`] is given, and [`Swarm::viewer`] fetches
//! from near its newest chunk on; both forget what is behind their window.

#[cfg(test)]
mod addressing_tests;
mod ahead;
#[cfg(test)]
mod ahead_tests;
mod beside;
mod channel;
#[cfg(test)]
mod choke_tests;
mod claims;
mod fetch;
mod have;
mod hosts;
#[cfg(test)]
mod limits_tests;
mod live;
#[cfg(test)]
mod live_crowd;
#[cfg(test)]
mod live_paths;
#[cfg(test)]
mod live_signed;
#[cfg(test)]
mod live_sim;
mod live_source;
#[cfg(test)]
mod live_tests;
mod open;
mod outbox;
mod receive;
mod runs;
mod schedule;
mod serve;
mod stats;
#[cfg(test)]
mod tests;
mod time;

pub use channel::Allowance;
pub use hosts::{HOST_CHANNELS_MAX, HOST_HALF_OPEN_MAX, VIEWER_HOST_CHANNELS_MAX};
pub use live::{LiveEvent, NEIGHBOURS, PLAY_BEHIND, START_BACK, VIEWER_CHANNELS_MAX};
pub use live_source::{COPIES, COPIES_MAX_DEFAULT, REPAIR_AFTER};
pub use serve::BESIDE_LONG_CHUNK;
pub use stats::PeerStats;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Instant;

use crate::avail::Availability;
use crate::bin::Bin;
use crate::binmap::Binmap;
use crate::hash::Digest;
use crate::ledbat::Mode;
use crate::merkle::{MemoryNodes, NodeStore, Tree};
use crate::picker::Picker;
use crate::wire::{ChannelId, Dialect, SwarmParams};
use ahead::Ahead;
use channel::Channel;
use live::Live;
use outbox::Outbox;

/// Channels of one swarm, proven ones: as many peers as help, and each costs a window and a few maps.
pub const CHANNELS_MAX: usize = 256;
/// Channels that others opened and whose peer has not yet proven its address; the oldest make room.
pub const HALF_OPEN_MAX: usize = 64;
/// Liars that are remembered; the driver keeps its own, longer list.
pub const BANNED_MAX: usize = 4096;
/// Cells of a peer's map while the content's size is not known: 2,000 scattered announcements.
pub const PEER_CELLS_MAX: usize = 1 << 16;
/// Cells of the maps of all peers of a content, 64 MiB of memory. A peer has its chunks in runs, and who has all of them takes no cell; at
/// worst, where it has a part of each 512 chunks, as many as this are the maps of four peers of 64 GiB in chunks of 1 KiB, or of
/// sixty-four of 4 GiB.
pub const CELLS_MAX: usize = 1 << 20;
/// Cells that may come to the maps before all of them are counted again.
const CELLS_UNCOUNTED_MAX: usize = CELLS_MAX / 256;
/// Bytes of a datagram: see [`PeerAddress::datagram_len`].
const DATAGRAM_LEN: usize = 1452;

/// Where a peer is: a path to it, for the driver.
pub trait PeerAddress: Clone + Ord + Debug {
    /// What `other` can be told of it, if it is any business of that one.
    fn told_to(&self, other: &Self) -> Option<SocketAddr>;

    /// Whether both lead to one peer. In the order of all addresses those of one peer follow each other.
    fn is_same_peer(&self, other: &Self) -> bool {
        self == other
    }

    /// Whether both are at one host, which has a limited number of channels; `false` for this machine, at which many programs are.
    fn is_same_host(&self, other: &Self) -> bool;

    /// Bytes that a datagram to it may have, with digests beside a chunk: an Ethernet frame, less IP and UDP (RFC 7574 §8.1). A longer
    /// chunk goes in one all the same.
    fn datagram_len(&self) -> usize {
        DATAGRAM_LEN
    }
}

impl PeerAddress for SocketAddr {
    fn told_to(&self, _: &Self) -> Option<SocketAddr> {
        Some(*self)
    }

    fn is_same_host(&self, other: &Self) -> bool {
        hosts::is_same_host(self.ip(), other.ip())
    }
}

/// A datagram to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit<P> {
    /// Where to.
    pub peer: P,
    /// The bytes.
    pub datagram: Vec<u8>,
    /// A chunk whose bytes follow. Where the driver cannot read it, it sends nothing.
    pub chunk: Option<u64>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<P> {
    /// A channel is open and proven.
    Opened(P),
    /// A channel is over: by the peer, by silence or because it was not of the swarm.
    Closed(P),
    /// The peer sent what is not the content's: it is to be banned.
    Liar(P),
    /// A peer told of another; nobody vouches for it.
    Found {
        /// The peer that told.
        by: P,
        /// Where the other is.
        address: SocketAddr,
    },
    /// The size is known: so many chunks.
    Size(u64),
    /// Everything is stored.
    Complete,
}

/// One content's behaviour towards its peers.
#[derive(Debug)]
pub struct Swarm<P, S = MemoryNodes> {
    params: SwarmParams,
    mode: Mode,
    /// Dialect in which we open channels.
    dialect: Dialect,
    tree: Tree<S>,
    /// Of a live stream, what takes the tree's place.
    live: Option<Box<Live>>,
    /// Stored, and so announced and served.
    have: Binmap,
    /// Verified: stored, or handed out and not yet stored.
    held: Binmap,
    /// Asked for, of anybody.
    requested: Binmap,
    availability: Availability,
    picker: Picker,
    /// What goes before the picker's order.
    needed: Vec<Range<u64>>,
    channels: BTreeMap<ChannelId, Channel<P>>,
    by_peer: BTreeMap<P, ChannelId>,
    /// Channels that a peer with a proven one opens anew, until they are proven and take its place.
    successors: BTreeMap<P, ChannelId>,
    /// Channels that others opened and that are not proven, the oldest first.
    half_open: VecDeque<ChannelId>,
    banned: BTreeSet<P>,
    /// Peers that a live viewer's user named.
    pinned: BTreeSet<P>,
    rng: fastrand::Rng,
    epoch: Instant,
    tick_at: Instant,
    looked_at: Instant,
    /// Of a live stream: something is here that was not announced, and when that may be, at the soonest.
    is_news: bool,
    news_at: Instant,
    out: Outbox<P>,
    events: VecDeque<Event<P>>,
    live_events: VecDeque<LiveEvent<P>>,
    /// Everything is stored: nothing is asked for, and nobody looks how rare anything is.
    is_complete: bool,
    is_paused: bool,
    /// Chunks that may be asked for and not here, of all peers together.
    room_chunks: u64,
    /// Nothing from this chunk on is asked for.
    end: u64,
    asked_count: u64,
    /// Cells that came to the maps of peers since all were counted.
    cells_uncounted: usize,
    wasted_bytes: u64,
    /// A channel may move nothing any more, or has something to move that it may not.
    lacks_allowance: bool,
    /// Length of the last chunk, once it proved the size.
    last_len: Option<usize>,
    /// Digests of the chunks of the batch that is being read.
    ahead: Ahead,
    /// What proves the chunk that is about to leave.
    proving: Vec<(Bin, Digest)>,
    /// Channels that there are, or are no more, since somebody asked.
    changes: Vec<(ChannelId, P, bool)>,
}

impl<P: PeerAddress, S: NodeStore> Swarm<P, S> {
    /// A swarm whose content is what `tree` knows and `have` holds. The seed chooses channel numbers: it has to be one that
    /// nobody can guess, outside of tests.
    pub fn new(params: SwarmParams, tree: Tree<S>, have: Binmap, mode: Mode, seed: u64, now: Instant) -> Self {
        let availability = Availability::new(CHANNELS_MAX.min(32), tree.chunk_count());
        let is_complete = tree.chunk_count().is_some_and(|chunks| have.next_clear(0) >= chunks);
        Self {
            params,
            mode,
            dialect: Dialect::Rfc7574,
            tree,
            live: None,
            held: have.clone(),
            have,
            requested: Binmap::new(),
            availability,
            picker: Picker::RarestFirst(0),
            needed: Vec::new(),
            channels: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            successors: BTreeMap::new(),
            half_open: VecDeque::new(),
            banned: BTreeSet::new(),
            pinned: BTreeSet::new(),
            rng: fastrand::Rng::with_seed(seed),
            epoch: now,
            tick_at: now,
            looked_at: now,
            is_news: false,
            news_at: now,
            out: Outbox::new(),
            events: VecDeque::new(),
            live_events: VecDeque::new(),
            is_complete,
            is_paused: false,
            room_chunks: u64::MAX,
            end: u64::MAX,
            asked_count: 0,
            cells_uncounted: 0,
            wasted_bytes: 0,
            lacks_allowance: false,
            last_len: None,
            ahead: Ahead::default(),
            proving: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// Opens channels in this dialect from now on: libswift does not answer RFC 7574's handshake.
    pub fn set_dialect(&mut self, dialect: Dialect) {
        self.dialect = dialect;
    }

    /// The order in which chunks are fetched.
    pub fn set_picker(&mut self, picker: Picker) {
        self.picker = picker;
    }

    /// What is stored.
    pub fn have(&self) -> &Binmap {
        &self.have
    }

    /// The content's chunks, once known.
    pub fn chunk_count(&self) -> Option<u64> {
        self.tree.chunk_count()
    }

    /// Whether every chunk is stored.
    pub fn is_complete(&self) -> bool {
        self.tree.chunk_count().is_some_and(|chunks| self.have.next_clear(0) >= chunks)
    }

    /// Peers with a proven channel.
    pub fn peers(&self) -> impl Iterator<Item = &P> {
        self.channels.values().filter(|channel| channel.proven).map(|channel| &channel.peer)
    }

    /// Nothing is asked for, and nobody is served, until this is taken back: channels stay.
    pub fn set_paused(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Chunks that may be asked for and not here, of all peers together: what the driver has memory for.
    pub fn set_room(&mut self, chunks: u64) {
        self.room_chunks = chunks;
    }

    /// Asks for nothing from this chunk on, until it is told that all is wanted: a content may begin with what says what the rest is.
    pub fn set_end(&mut self, end: Option<u64>) {
        self.end = end.unwrap_or(u64::MAX);
    }

    /// Chunks that were asked for and did not come yet.
    pub fn asked(&self) -> u64 {
        self.asked_count
    }

    /// How long datagrams to a peer may be, where that turns out to be another length than its address said.
    pub fn set_datagram_len(&mut self, peer: &P, len: usize) {
        let channel = self.by_peer.get(peer).and_then(|id| self.channels.get_mut(id));
        if let Some(channel) = channel {
            channel.datagram_len = len;
        }
    }

    /// What a limit lets through to and from a peer, until this is said again.
    pub fn set_allowance(&mut self, peer: &P, allowance: Allowance, now: Instant) {
        let Some(id) = self.by_peer.get(peer).copied() else { return };
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.allowance = allowance;
            self.ask(now, id);
        }
    }

    /// Whether, since this was asked, a channel used up what it was allowed, or came to have something to move while it is allowed
    /// nothing: the driver is to say again what limits let through, and nothing else tells it.
    pub fn take_lack_of_allowance(&mut self) -> bool {
        std::mem::take(&mut self.lacks_allowance)
    }

    /// Payload that came and was of no use: twice, without a proof, or wrong.
    pub fn wasted_bytes(&self) -> u64 {
        self.wasted_bytes
    }

    /// Length of the last chunk in bytes, where it is what proved the size.
    pub fn last_chunk_len(&self) -> Option<usize> {
        self.last_len
    }

    /// The tree, as far as it is known.
    pub fn tree(&self) -> &Tree<S> {
        &self.tree
    }

    /// The same, for whoever keeps its nodes.
    pub fn tree_mut(&mut self) -> &mut Tree<S> {
        &mut self.tree
    }

    /// The next datagram to send.
    pub fn transmit(&mut self) -> Option<Transmit<P>> {
        self.out.pop()
    }

    /// What happened since.
    pub fn event(&mut self) -> Option<Event<P>> {
        self.events.pop_front()
    }

    fn clock_us(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.epoch).as_micros() as u64
    }
}
