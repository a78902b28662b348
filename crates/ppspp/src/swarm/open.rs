//! How channels begin, are proven, and end (RFC 7574 §3.1, §8.4).

use std::time::{Duration, Instant};

use super::channel::Channel;
use super::{BANNED_MAX, Event, PeerAddress, Swarm};
use crate::binmap::Binmap;
use crate::merkle::NodeStore;
use crate::wire::{ChannelId, Dialect, Handshake, Message, Messages, Opening, SwarmParams};

/// The bit that every packet of QUIC has set in its first byte (RFC 9000 §17): no channel of ours has it, so that both may share a socket.
const CHANNEL_BIT_CLEAR: ChannelId = 0x4000_0000;

/// How long a peer that has what we lack may be silent before it is greeted anew, and how long that is waited for at most.
const GREET_FIRST: Duration = Duration::from_secs(2);
const GREET_LAST: Duration = Duration::from_secs(8);

impl<P: PeerAddress, S: NodeStore> Swarm<P, S> {
    /// Opens a channel to a peer; `false` where we opened one, the peer proved one, it is banned, or there are too many.
    pub fn connect(&mut self, now: Instant, peer: &P) -> bool {
        // Whoever opens a channel to us and has proven nothing keeps us from calling nobody.
        let taken = self.channels.len() - self.half_open.len();
        if self.banned.contains(peer) || taken >= self.channels_max() {
            return false;
        }
        let id = match self.by_peer.get(peer).copied() {
            None => self.new_channel(now, peer.clone(), self.dialect),
            // Somebody may have opened it in the peer's name, who does not know of it then.
            Some(id) => match self.channels.get_mut(&id) {
                Some(channel) if !channel.proven && channel.tries == 0 => {
                    channel.dialect = self.dialect;
                    self.half_open.retain(|half| *half != id);
                    id
                }
                _ => return false,
            },
        };
        self.send_opening(now, id);
        true
    }

    /// Whether there is a channel to a peer, be it proven or not.
    pub fn has_channel(&self, peer: &P) -> bool {
        self.by_peer.contains_key(peer)
    }

    /// Closes the channel to a peer, and tells it so.
    pub fn disconnect(&mut self, peer: &P) {
        if let Some(id) = self.by_peer.get(peer).copied() {
            self.close(id, true);
        }
    }

    /// The channel of this number ends: another swarm at the same socket has the number.
    pub fn drop_channel(&mut self, id: ChannelId) {
        self.close(id, false);
    }

    /// Numbers of channels that there are now, or are not any more, each with its peer, since this was asked last: a socket that serves several
    /// swarms finds by them whose a datagram is.
    pub fn take_channel_changes(&mut self) -> Vec<(ChannelId, P, bool)> {
        std::mem::take(&mut self.changes)
    }

    /// Answers the peer's requests no more, or again (RFC 7574 §3.9).
    pub fn choke(&mut self, now: Instant, peer: &P, choked: bool) {
        if let Some(channel) = self.by_peer.get(peer).and_then(|id| self.channels.get_mut(id))
            && channel.choked != choked
        {
            channel.choke(now, choked, &mut self.out);
        }
    }

    /// Somebody sends to channel 0: a handshake, new or again.
    pub(super) fn opened_by(&mut self, now: Instant, peer: &P, messages: &[u8], received: usize) -> Option<()> {
        let opening = Opening::parse(messages).ok()?;
        let codec = self.params.check(opening.dialect, &opening.handshake, true).ok()?;
        if opening.handshake.channel == 0 {
            return None;
        }
        // Not every way to name chunks has names for all of a large content's.
        if self.tree.chunk_count().is_some_and(|chunks| chunks > codec.chunks_max()) {
            return None;
        }
        // A channel that is proven does not move because somebody says so: who was restarted at the same address proves another.
        let is_other = |id: &ChannelId| {
            let is_of = |channel: &Channel<P>| channel.proven && channel.remote != opening.handshake.channel;
            self.channels.get(id).is_some_and(is_of)
        };
        let known = match self.by_peer.get(peer) {
            Some(id) if is_other(id) => self.successors.get(peer),
            // Both opened at once, or the answer was lost: the channel that there is serves both.
            known => known,
        };
        // Where both open at once, each with another way to name chunks, one of them gives way.
        let is_ours =
            |id: &ChannelId| self.channels.get(id).is_some_and(|channel| channel.tries > 0 && !channel.proven);
        if known.is_some_and(is_ours) && codec.addressing.to_u8() > self.params.addressing().to_u8() {
            return None;
        }
        let id = match known {
            Some(id) => *id,
            None => {
                let id = self.new_channel(now, peer.clone(), opening.dialect);
                self.half_open.push_back(id);
                self.trim_half_open(id);
                id
            }
        };
        let window = self.live.as_ref().map(|live| live.discard_window());
        let channel = self.channels.get_mut(&id)?;
        channel.dialect = opening.dialect;
        channel.remote = opening.handshake.channel;
        channel.codec = Some(codec);
        channel.live.window = opening.handshake.window;
        channel.opened_at = now;
        // RFC 7574 §3.1: the answer, and as many HAVEs as keep it no longer than what came.
        let mut answer = channel.remote.to_be_bytes().to_vec();
        let handshake = self.params.handshake(opening.dialect, id, false, window);
        let handshake = Handshake { addressing: Some(codec.addressing), ..handshake };
        Message::Handshake(handshake).encode(&codec, &mut answer).ok()?;
        if answer.len() > received {
            return None;
        }
        // Of a live stream, munros have to go ahead.
        for bin in self.have.bins().take_while(|_| self.live.is_none()) {
            let len = answer.len();
            if Message::Have(bin.range()).encode(&codec, &mut answer).is_err() || answer.len() > received {
                answer.truncate(len);
                break;
            }
        }
        channel.control.sent(now, false);
        self.out.push(peer, answer, None);
        Some(())
    }

    fn new_channel(&mut self, now: Instant, peer: P, dialect: Dialect) -> ChannelId {
        let id = loop {
            let id = self.rng.u32(1..) & !CHANNEL_BIT_CLEAR;
            if id != 0 && !self.channels.contains_key(&id) {
                break id;
            }
        };
        match self.by_peer.contains_key(&peer) {
            true => _ = self.successors.insert(peer.clone(), id),
            false => _ = self.by_peer.insert(peer.clone(), id),
        }
        self.channels.insert(id, Channel::new(peer.clone(), dialect, self.mode, now));
        self.changes.push((id, peer, true));
        id
    }

    pub(super) fn send_opening(&mut self, now: Instant, id: ChannelId) {
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let mut datagram = vec![0; 4];
        let window = self.live.as_ref().map(|live| live.discard_window());
        let handshake: Handshake = self.params.handshake(channel.dialect, id, true, window);
        Opening::encode(channel.dialect, &handshake, &mut datagram);
        channel.tries += 1;
        channel.opened_at = now;
        channel.control.sent(now, false);
        self.out.push(&channel.peer, datagram, None);
    }

    /// A peer that has what we lack says nothing: it may have been restarted at the same address, where nobody knows our channel. A
    /// handshake tells: who knows the channel repeats its own answer, and who does not answers with another.
    pub(super) fn greet_silent(&mut self, now: Instant, id: ChannelId) {
        // Of a live stream, who is silent is left before that.
        let is_of_use = |channel: &&mut Channel<P>| channel.is_used && self.live.is_none() && !self.is_paused;
        let Some(channel) = self.channels.get_mut(&id).filter(is_of_use) else { return };
        let (silence, wait) = match channel.greeted {
            Some((at, wait)) => (now.saturating_duration_since(at), (wait * 2).min(GREET_LAST)),
            None => (channel.control.silence(now), GREET_FIRST),
        };
        if silence >= wait && Binmap::next_match(0, 1, &[&channel.has], &[&self.held]).is_some() {
            channel.greeted = Some((now, wait));
            self.send_opening(now, id);
        }
    }

    /// The peer named our channel: it is where it says. The `messages` came with that.
    pub(super) fn prove(&mut self, now: Instant, id: ChannelId, messages: &[u8]) {
        self.half_open.retain(|half| *half != id);
        let peer = self.channels.get(&id).map(|channel| channel.peer.clone());
        if let Some(before) = peer.and_then(|peer| self.by_peer.get(&peer).copied()).filter(|before| *before != id) {
            self.close(before, false);
        }
        if !self.has_room_of_host(now, id) {
            return self.refuse(now, id, messages);
        }
        self.make_room(now);
        let proven = self.channels.values().filter(|channel| channel.proven).count();
        if proven >= self.channels_max() {
            return self.refuse(now, id, messages);
        }
        let Some(channel) = self.channels.get_mut(&id) else { return };
        channel.proven = true;
        channel.rtt = now.saturating_duration_since(channel.opened_at);
        if channel.dialect == Dialect::Rfc7574 {
            channel.control.greeted(channel.rtt);
        }
        channel.unsaid = self.have.clone();
        if self.live.as_ref().is_some_and(|live| live.is_source()) {
            channel.unsaid = Binmap::new();
        }
        channel.ask_pex(now, false, &mut self.out);
        self.events.push_back(Event::Opened(channel.peer.clone()));
        if self.live.is_some() {
            self.announce_live(now, id);
        }
    }

    /// There is no room for a peer: it is told of others, if it asks for any, so that it need not go back to whoever named us.
    fn refuse(&mut self, now: Instant, id: ChannelId, messages: &[u8]) {
        let codec = self.channels.get(&id).and_then(|channel| channel.codec);
        let mut said = codec.into_iter().flat_map(|codec| Messages::new(codec, messages)).map_while(Result::ok);
        if said.any(|message| matches!(message, Message::PexRequest)) {
            self.pex_answer(now, id);
        }
        self.close(id, true);
    }

    pub(super) fn close(&mut self, id: ChannelId, say: bool) {
        let Some(mut channel) = self.channels.remove(&id) else { return };
        if say {
            channel.say(&Message::Handshake(Handshake::closing()), &mut self.out);
        }
        self.changes.push((id, channel.peer.clone(), false));
        self.half_open.retain(|half| *half != id);
        let successor = self.successors.remove(&channel.peer);
        if successor == Some(id) {
            return;
        }
        match successor {
            Some(next) => _ = self.by_peer.insert(channel.peer.clone(), next),
            None => _ = self.by_peer.remove(&channel.peer),
        }
        if self.counts_rarity() {
            self.availability.remove(&channel.has);
        }
        for run in channel.asked.ranges() {
            self.requested.remove_range(run);
        }
        self.asked_count -= channel.asked.len();
        self.events.push_back(Event::Closed(channel.peer));
    }

    /// The peer lied: it is closed, banned and named.
    pub(super) fn lied(&mut self, id: ChannelId) {
        let Some(peer) = self.channels.get(&id).map(|channel| channel.peer.clone()) else { return };
        self.close(id, true);
        if self.banned.len() < BANNED_MAX {
            self.banned.insert(peer.clone());
        }
        self.events.push_back(Event::Liar(peer));
    }
}

/// A handshake at the start of a datagram to a channel of ours.
pub(super) fn answer<'a>(params: &SwarmParams, dialect: Dialect, messages: &'a [u8]) -> Option<Opening<'a>> {
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
