//! One swarm of content that is complete: its channels, what is asked of whom, what is served to whom.
//!
//! A driver feeds datagrams and time in, a batch at a time, and carries out what comes back: datagrams to send, chunks to store, liars to ban,
//! peers to dial. It keeps the bytes: a chunk that arrives is handed out only after it was verified, and is announced and
//! served only after [`Swarm::stored`] said that it was written; a chunk that leaves is put by the driver behind the
//! datagram's head ([`Transmit::chunk`]).
//!
//! Whoever did not prove an address is sent at most as many bytes as came from there, and nothing is remembered of it but a
//! place in a short queue. An address is proven by a datagram that names our channel, whose number is random.
//!
//! Live streams are not in here yet: [`crate::merkle::LiveTree`] and [`crate::wire`] have what they need.

mod channel;
mod fetch;
mod serve;
#[cfg(test)]
mod tests;

pub use channel::Allowance;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::avail::Availability;
use crate::binmap::Binmap;
use crate::hash::Digest;
use crate::ledbat::Mode;
use crate::merkle::{MemoryNodes, NodeStore, Tree};
use crate::picker::Picker;
use crate::state::State;
use crate::wire::{
    ChannelId, DATAGRAM_LEN_MAX, Dialect, Handshake, Message, Messages, Opening, SwarmParams, split_channel,
};
use channel::Channel;

/// Channels of one swarm, proven ones: as many peers as help, and each costs a window and a few maps.
pub const CHANNELS_MAX: usize = 256;
/// Channels whose peer has not yet proven its address; the oldest make room.
pub const HALF_OPEN_MAX: usize = 64;
/// Liars that are remembered; the driver keeps its own, longer list.
pub const BANNED_MAX: usize = 4096;
/// Cells of a peer's map while the content's size is not known: 2,000 scattered announcements.
pub const PEER_CELLS_MAX: usize = 1 << 16;
/// Time between two looks at everything that has no exact time.
const TICK: Duration = Duration::from_millis(50);
/// How long a peer that opens a channel may take to name ours.
const PROOF_MAX: Duration = Duration::from_secs(5);
/// How often a handshake that is not answered is sent.
const OPEN_TRIES: u32 = 4;

/// Where a peer is: a path to it, for the driver.
pub trait PeerAddress: Clone + Ord + Debug {
    /// What other peers can be told of it.
    fn socket_addr(&self) -> Option<SocketAddr>;
}

impl PeerAddress for SocketAddr {
    fn socket_addr(&self) -> Option<SocketAddr> {
        Some(*self)
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
    Found(SocketAddr),
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
    /// Stored, and so announced and served.
    have: Binmap,
    /// Verified: stored, or handed out and not yet stored.
    held: Binmap,
    /// Asked for, of anybody.
    requested: Binmap,
    availability: Availability,
    picker: Picker,
    channels: BTreeMap<ChannelId, Channel<P>>,
    by_peer: BTreeMap<P, ChannelId>,
    /// Channels that are not proven, the oldest first.
    half_open: VecDeque<ChannelId>,
    banned: BTreeSet<P>,
    rng: fastrand::Rng,
    epoch: Instant,
    tick_at: Instant,
    out: VecDeque<Transmit<P>>,
    events: VecDeque<Event<P>>,
    /// Everything is stored: nothing is asked for, and nobody looks how rare anything is.
    is_complete: bool,
    is_paused: bool,
    /// Chunks that may be asked for and not here, of all peers together.
    room_chunks: u64,
    asked_count: u64,
    wasted_bytes: u64,
    /// Length of the last chunk, once it proved the size.
    last_len: Option<usize>,
    /// Digests of the chunks of a batch, each with the datagram that it is in; and the datagram that is being read.
    ahead: VecDeque<(usize, u64, Option<Digest>)>,
    reading: usize,
    digests: Vec<u8>,
    /// Channels that there are, or are no more, since somebody asked.
    changes: Vec<(ChannelId, bool)>,
}

/// What is known of a peer, for progress.
#[derive(Clone, Debug)]
pub struct PeerStats<'a, P> {
    /// Which.
    pub peer: &'a P,
    /// Payload from it.
    pub downloaded_bytes: u64,
    /// Payload to it.
    pub uploaded_bytes: u64,
    /// Payload that was ever asked of it.
    pub asked_bytes: u64,
    /// The round trip, once it is known.
    pub rtt: Duration,
    /// Chunks that it has.
    pub chunks: u64,
    /// Chunks that were lost on their way to it.
    pub lost_chunks: u64,
    /// Chunks asked of it that did not come yet.
    pub asked: u64,
    /// It wants something of us.
    pub wants: bool,
    /// It has something that is missing here.
    pub is_wanted: bool,
    /// We do not serve it.
    pub is_choked: bool,
    /// It does not serve us.
    pub chokes_us: bool,
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
            held: have.clone(),
            have,
            requested: Binmap::new(),
            availability,
            picker: Picker::RarestFirst(0),
            channels: BTreeMap::new(),
            by_peer: BTreeMap::new(),
            half_open: VecDeque::new(),
            banned: BTreeSet::new(),
            rng: fastrand::Rng::with_seed(seed),
            epoch: now,
            tick_at: now,
            out: VecDeque::new(),
            events: VecDeque::new(),
            is_complete,
            is_paused: false,
            room_chunks: u64::MAX,
            asked_count: 0,
            wasted_bytes: 0,
            last_len: None,
            ahead: VecDeque::new(),
            reading: 0,
            digests: Vec::new(),
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

    /// Opens a channel to a peer; `false` where there is one, it is banned, or there are too many.
    pub fn connect(&mut self, now: Instant, peer: &P) -> bool {
        if self.by_peer.contains_key(peer) || self.banned.contains(peer) || self.channels.len() >= CHANNELS_MAX {
            return false;
        }
        let id = self.new_channel(now, peer.clone(), self.dialect);
        self.send_opening(now, id);
        true
    }

    /// Closes the channel to a peer, and tells it so.
    pub fn disconnect(&mut self, peer: &P) {
        if let Some(id) = self.by_peer.get(peer).copied() {
            self.close(id, true);
        }
    }

    /// Answers the peer's requests no more, or again.
    pub fn choke(&mut self, peer: &P, choked: bool) {
        if let Some(channel) = self.by_peer.get(peer).and_then(|id| self.channels.get_mut(id))
            && channel.choked != choked
        {
            channel.choked = choked;
            channel.wants.clear();
            let message = if choked { Message::Choke } else { Message::Unchoke };
            channel.say(&message, &mut self.out);
        }
    }

    /// A datagram came: gives the chunks in it that were verified, for the driver to store. `None` for a datagram that is not
    /// for this swarm: its channel is not ours, and it opens none.
    pub fn datagram<'a>(&mut self, now: Instant, peer: &P, datagram: &'a [u8]) -> Option<Vec<(u64, &'a [u8])>> {
        let mut chunks = Vec::new();
        self.ahead.clear();
        let id = self.read(now, peer, datagram, &mut chunks)?;
        self.settle(now, id);
        self.serve(now, id);
        Some(chunks)
    }

    /// The same for many at once: chunks are hashed side by side, and acknowledged together. What is not for this swarm is
    /// nothing to it.
    pub fn datagrams<'a>(&mut self, now: Instant, batch: &[(P, &'a [u8])], chunks: &mut Vec<(u64, &'a [u8])>) {
        self.hash_ahead(batch);
        let mut met: Vec<ChannelId> = Vec::new();
        for (at, (peer, datagram)) in batch.iter().enumerate() {
            self.reading = at;
            if let Some(id) = self.read(now, peer, datagram, chunks)
                && !met.contains(&id)
            {
                met.push(id);
            }
        }
        for id in met {
            self.settle(now, id);
            self.serve(now, id);
        }
    }

    /// Reads a datagram; answers over which channel it came. Chunks are acknowledged with [`Swarm::settle`].
    fn read<'a>(
        &mut self,
        now: Instant,
        peer: &P,
        datagram: &'a [u8],
        chunks: &mut Vec<(u64, &'a [u8])>,
    ) -> Option<ChannelId> {
        let (id, messages) = split_channel(datagram)?;
        if self.banned.contains(peer) || datagram.len() > DATAGRAM_LEN_MAX {
            return None;
        }
        if id == 0 {
            self.opened_by(now, peer, messages, datagram.len())?;
            return Some(0);
        }
        // A channel is one peer's at one address.
        let channel = self.channels.get_mut(&id).filter(|channel| channel.peer == *peer)?;
        let mut rest = messages;
        if !channel.proven {
            // The answer to our handshake, or the first word after one of theirs. What names our channel is believed over what
            // somebody said to channel 0.
            match (answer(&self.params, channel.dialect, messages), channel.codec) {
                (Some(opening), _) => {
                    let agreed = self.params.check(opening.dialect, &opening.handshake, false);
                    let Some(codec) = agreed.ok().filter(|_| opening.handshake.channel != 0) else {
                        self.close(id, false);
                        return Some(id);
                    };
                    channel.dialect = opening.dialect;
                    channel.remote = opening.handshake.channel;
                    channel.codec = Some(codec);
                    rest = opening.rest;
                }
                (None, None) => return None,
                (None, Some(_)) => {}
            }
        }
        channel.control.received(now, !messages.is_empty());
        // The libswift paper, §3.1: "waits for a reply", and any is one: the peer may have no use for what it got.
        if channel.control.state() == State::PingPong && !messages.is_empty() {
            channel.answered();
        }
        if !channel.proven {
            self.prove(now, id);
        }
        self.messages(now, id, rest, chunks);
        Some(id)
    }

    /// A chunk that was handed out is written: it is announced and served from now on.
    pub fn stored(&mut self, chunk: u64) {
        self.stored_range(chunk..chunk.saturating_add(1));
    }

    /// The same for a run of chunks. Those of it that were not handed out are not there.
    pub fn stored_range(&mut self, chunks: std::ops::Range<u64>) {
        let mut new = Binmap::new();
        new.insert_range(chunks);
        new.intersect_with(&self.held);
        new.subtract(&self.have);
        if new.is_empty() {
            return;
        }
        self.have.union_with(&new);
        for channel in self.channels.values_mut().filter(|channel| channel.proven) {
            let mut unsaid = new.clone();
            unsaid.subtract(&channel.has);
            channel.unsaid.union_with(&unsaid);
        }
        if self.is_complete() && !self.is_complete {
            self.is_complete = true;
            self.events.push_back(Event::Complete);
        }
    }

    /// Chunks that lay on the disk and were found to be good, or are lost: what is here is this, and nothing else.
    pub fn set_have(&mut self, have: Binmap) {
        self.held = have.clone();
        for channel in self.channels.values_mut().filter(|channel| channel.proven) {
            channel.unsaid = have.clone();
            channel.unsaid.subtract(&channel.has);
        }
        self.have = have;
        self.is_complete = self.is_complete();
        self.availability = Availability::new(CHANNELS_MAX.min(32), self.tree.chunk_count());
        if !self.is_complete {
            for channel in self.channels.values() {
                self.availability.add(&channel.has);
            }
        }
    }

    /// Nothing is asked for, and nobody is served, until this is taken back: channels stay.
    pub fn set_paused(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// Chunks that may be asked for and not here, of all peers together: what the driver has memory for.
    pub fn set_room(&mut self, chunks: u64) {
        self.room_chunks = chunks;
    }

    /// Chunks that were asked for and did not come yet.
    pub fn asked(&self) -> u64 {
        self.asked_count
    }

    /// What a limit lets through to and from a peer, until this is said again.
    pub fn set_allowance(&mut self, peer: &P, allowance: Allowance, now: Instant) {
        let Some(id) = self.by_peer.get(peer).copied() else { return };
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.allowance = allowance;
            self.ask(now, id);
        }
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

    /// Numbers of channels that there are now, or are not any more, since this was asked last: a socket that serves several
    /// swarms finds by them whose a datagram is.
    pub fn take_channel_changes(&mut self) -> Vec<(ChannelId, bool)> {
        std::mem::take(&mut self.changes)
    }

    /// The channel of this number ends: another swarm at the same socket has the number.
    pub fn drop_channel(&mut self, id: ChannelId) {
        self.close(id, false);
    }

    /// What is known of each peer.
    pub fn peer_stats(&self) -> impl Iterator<Item = PeerStats<'_, P>> {
        self.channels.values().filter(|channel| channel.proven).map(|channel| PeerStats {
            peer: &channel.peer,
            downloaded_bytes: channel.downloaded_bytes,
            uploaded_bytes: channel.uploaded_bytes,
            asked_bytes: channel.asked_bytes,
            rtt: if channel.uploaded_bytes > 0 { channel.control.ledbat().rtt() } else { channel.rtt },
            chunks: channel.has.count(),
            lost_chunks: channel.lost_chunks,
            asked: channel.asked.len() as u64,
            wants: !channel.wants.is_empty(),
            is_wanted: match self.tree.chunk_count() {
                Some(_) => Binmap::next_match(0, 1, &[&channel.has], &[&self.held]).is_some(),
                None => !channel.has.is_empty(),
            },
            is_choked: channel.choked,
            chokes_us: channel.chokes_us,
        })
    }

    /// A chunk that was handed out could not be written: it is fetched again.
    pub fn store_failed(&mut self, chunk: u64) {
        if !self.have.contains(chunk) {
            self.held.remove_range(chunk..chunk.saturating_add(1));
        }
    }

    /// The next datagram to send.
    pub fn transmit(&mut self) -> Option<Transmit<P>> {
        self.out.pop_front()
    }

    /// What happened since.
    pub fn event(&mut self) -> Option<Event<P>> {
        self.events.pop_front()
    }

    /// When to poll.
    pub fn deadline(&self) -> Instant {
        let due = self.channels.values().filter_map(|channel| channel.send_at()).min().filter(|_| !self.is_paused);
        due.map_or(self.tick_at, |due| due.min(self.tick_at))
    }

    /// Time passed.
    pub fn poll(&mut self, now: Instant) {
        let tick = now >= self.tick_at;
        let due = |channel: &Channel<P>| tick || channel.send_at().is_some_and(|at| at <= now);
        let ids: Vec<ChannelId> = self.channels.iter().filter(|(_, c)| due(c)).map(|(id, _)| *id).collect();
        for id in ids {
            if tick {
                self.tick(now, id);
            }
            self.serve(now, id);
        }
        if tick {
            self.tick_at = now + TICK;
        }
    }

    /// Somebody sends to channel 0: a handshake, new or again.
    fn opened_by(&mut self, now: Instant, peer: &P, messages: &[u8], received: usize) -> Option<()> {
        let opening = Opening::parse(messages).ok()?;
        let codec = self.params.check(opening.dialect, &opening.handshake, true).ok()?;
        if opening.handshake.channel == 0 {
            return None;
        }
        let id = match self.by_peer.get(peer) {
            // Both opened at once, or the answer was lost: the channel that there is serves both.
            Some(id) => *id,
            None if self.channels.len() >= CHANNELS_MAX + HALF_OPEN_MAX => return None,
            None => {
                let id = self.new_channel(now, peer.clone(), opening.dialect);
                while self.half_open.len() > HALF_OPEN_MAX {
                    if let Some(oldest) = self.half_open.pop_front() {
                        self.close(oldest, false);
                    }
                }
                id
            }
        };
        let channel = self.channels.get_mut(&id)?;
        // A channel that is proven does not move because somebody says so.
        if channel.proven && channel.remote != opening.handshake.channel {
            return None;
        }
        channel.dialect = opening.dialect;
        channel.remote = opening.handshake.channel;
        channel.codec = Some(codec);
        channel.opened_at = now;
        // RFC 7574 §3.1: the answer, and as many HAVEs as keep it no longer than what came.
        let mut answer = channel.remote.to_be_bytes().to_vec();
        let handshake = self.params.handshake(opening.dialect, id, false, None);
        Message::Handshake(handshake).encode(&codec, &mut answer).ok()?;
        if answer.len() > received {
            return None;
        }
        for bin in self.have.bins() {
            let len = answer.len();
            if Message::Have(bin.range()).encode(&codec, &mut answer).is_err() || answer.len() > received {
                answer.truncate(len);
                break;
            }
        }
        channel.control.sent(now, false);
        self.out.push_back(Transmit { peer: peer.clone(), datagram: answer, chunk: None });
        Some(())
    }

    fn new_channel(&mut self, now: Instant, peer: P, dialect: Dialect) -> ChannelId {
        let id = loop {
            let id = self.rng.u32(1..);
            if !self.channels.contains_key(&id) {
                break id;
            }
        };
        self.by_peer.insert(peer.clone(), id);
        self.channels.insert(id, Channel::new(peer, dialect, self.mode, now));
        self.half_open.push_back(id);
        self.changes.push((id, true));
        id
    }

    fn send_opening(&mut self, now: Instant, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let mut datagram = vec![0; 4];
        let handshake: Handshake = self.params.handshake(channel.dialect, id, true, None);
        Opening::encode(channel.dialect, &handshake, &mut datagram);
        channel.tries += 1;
        channel.opened_at = now;
        channel.control.sent(now, false);
        self.out.push_back(Transmit { peer: channel.peer.clone(), datagram, chunk: None });
    }

    /// The peer named our channel: it is where it says.
    fn prove(&mut self, now: Instant, id: ChannelId) {
        self.half_open.retain(|half| *half != id);
        let proven = self.channels.values().filter(|channel| channel.proven).count();
        if proven >= CHANNELS_MAX {
            return self.close(id, true);
        }
        let Some(channel) = self.channels.get_mut(&id) else { return };
        channel.proven = true;
        channel.rtt = now.saturating_duration_since(channel.opened_at);
        channel.unsaid = self.have.clone();
        channel.ask_pex(now, &mut self.out);
        self.events.push_back(Event::Opened(channel.peer.clone()));
    }

    fn close(&mut self, id: ChannelId, say: bool) {
        let Some(mut channel) = self.channels.remove(&id) else { return };
        if say {
            channel.say(&Message::Handshake(Handshake::closing()), &mut self.out);
        }
        self.changes.push((id, false));
        self.by_peer.remove(&channel.peer);
        self.half_open.retain(|half| *half != id);
        if !self.is_complete {
            self.availability.remove(&channel.has);
        }
        for chunk in channel.asked.keys() {
            self.requested.remove_range(*chunk..chunk + 1);
        }
        self.asked_count -= channel.asked.len() as u64;
        self.events.push_back(Event::Closed(channel.peer));
    }

    /// The peer lied: it is closed, banned and named.
    fn lied(&mut self, id: ChannelId) {
        let Some(peer) = self.channels.get(&id).map(|channel| channel.peer.clone()) else { return };
        self.close(id, true);
        if self.banned.len() < BANNED_MAX {
            self.banned.insert(peer.clone());
        }
        self.events.push_back(Event::Liar(peer));
    }

    fn clock_us(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.epoch).as_micros() as u64
    }
}

/// A handshake at the start of a datagram to a channel of ours.
fn answer<'a>(params: &SwarmParams, dialect: Dialect, messages: &'a [u8]) -> Option<Opening<'a>> {
    if dialect != Dialect::Legacy {
        return Opening::parse(messages).ok();
    }
    // libswift's first dialect answers without options.
    let mut read = Messages::new(params.codec(dialect), messages);
    match read.next() {
        Some(Ok(Message::Handshake(handshake))) => Some(Opening { dialect, handshake, rest: read.rest() }),
        _ => None,
    }
}
