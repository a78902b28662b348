//! What comes in: whose datagram it is, and what becomes of each message in it.

use std::time::Instant;

use super::channel::WANTS_MAX;
use super::open::answer;
use super::{Event, PeerAddress, Swarm};
use crate::binmap::Binmap;
use crate::merkle::NodeStore;
use crate::state::State;
use crate::wire::{ChannelId, DATAGRAM_LEN_MAX, Message, Messages, split_channel};

impl<P: PeerAddress, S: NodeStore> Swarm<P, S> {
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

    /// Reads a datagram; answers over which channel it came. Chunks are acknowledged with [`Swarm::settle`].
    pub(super) fn read<'a>(
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
        channel.received_bytes += datagram.len() as u64;
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
                    channel.live.window = opening.handshake.window;
                    rest = opening.rest;
                }
                (None, None) => return None,
                (None, Some(_)) => {}
            }
        }
        channel.control.received(now, !messages.is_empty());
        channel.greeted = None;
        // The libswift paper, §3.1: "waits for a reply", and any is one: the peer may have no use for what it got.
        if channel.control.state() == State::PingPong && !messages.is_empty() {
            channel.answered();
        }
        if !channel.proven {
            self.prove(now, id, rest);
        }
        self.messages(now, id, rest, chunks);
        Some(id)
    }

    /// Reads a proven peer's messages; gives the chunks that hold.
    pub(super) fn messages<'a>(
        &mut self,
        now: Instant,
        id: ChannelId,
        messages: &'a [u8],
        chunks: &mut Vec<(u64, &'a [u8])>,
    ) {
        let Some(codec) = self.channels.get(&id).and_then(|channel| channel.codec) else { return };
        let is_rarity_counted = self.counts_rarity();
        for message in Messages::new(codec, messages) {
            // The rest of a datagram that makes no sense is nothing; the channel's other datagrams may.
            let Ok(message) = message else { break };
            let Some(channel) = self.channels.get_mut(&id) else { break };
            match message {
                Message::Data { chunk, sent_us, payload } => {
                    let is_new = self.data(now, id, (chunk, payload), sent_us, chunks);
                    chunks.extend(is_new.then_some((chunk, payload)));
                }
                Message::Integrity { node, digest } => channel.offers.add(node, digest),
                Message::SignedIntegrity { node, ntp, signature } => {
                    self.signature(now, id, (node, ntp, signature), chunks);
                }
                Message::Have(range) => {
                    self.lacks_allowance |= channel.allowance.down_bytes == 0;
                    self.has(id, range);
                }
                Message::Ack { chunks, delay_us } => {
                    self.takes_stream(id, &chunks);
                    if let Some(channel) = self.channels.get_mut(&id) {
                        channel.acked(now, &chunks, delay_us);
                    }
                    self.has(id, chunks);
                }
                Message::Request(_) if !channel.asks_us(now, &mut self.out) => {}
                Message::Request(range) if channel.wants.len() < WANTS_MAX && !range.is_empty() => {
                    // Who asks for what was acknowledged could not keep it.
                    if !channel.has.is_empty()
                        && channel.has.next_set(range.start).is_some_and(|chunk| chunk < range.end)
                    {
                        let mut lost = Binmap::new();
                        lost.insert_range(range.clone());
                        lost.intersect_with(&channel.has);
                        let cells_before = channel.has.cell_count();
                        channel.has.subtract(&lost);
                        self.cells_uncounted += channel.has.cell_count().saturating_sub(cells_before);
                        if is_rarity_counted {
                            self.availability.remove(&lost);
                        }
                    }
                    self.lacks_allowance |= channel.wants.is_empty() && channel.allowance.up_bytes == 0;
                    channel.want(range);
                    self.bound_cells();
                }
                Message::Cancel(range) => {
                    if range.start == 0 && self.live.is_some() {
                        channel.live.began = channel.live.began.max(Some(range.end));
                        channel.live.began_at.get_or_insert(now);
                    }
                    channel.cancel(&range);
                }
                Message::Choke => {
                    channel.chokes_us = true;
                    for run in channel.asked.ranges() {
                        self.requested.remove_range(run);
                    }
                    self.asked_count -= channel.asked.len();
                    channel.asked.clear();
                }
                Message::Unchoke => {
                    self.lacks_allowance |= channel.allowance.down_bytes == 0;
                    channel.chokes_us = false;
                }
                Message::PexRequest => self.pex_answer(now, id),
                Message::PexV4(address) => self.pex(id, address.into()),
                Message::PexV6(address) => self.pex(id, address.into()),
                // RFC 7574 §8.4: a handshake on an open channel closes it, where it names none.
                Message::Handshake(handshake) if handshake.channel == 0 => self.close(id, false),
                // Another end at the same place, which knows nothing of this channel.
                Message::Handshake(handshake) if handshake.channel != channel.remote => self.close(id, false),
                // A repetition of the peer's handshake; certificates are nothing to an open swarm.
                _ => {}
            }
        }
    }

    /// An address from a peer that was asked for some.
    fn pex(&mut self, id: ChannelId, address: std::net::SocketAddr) {
        let Some(channel) = self.channels.get_mut(&id).filter(|channel| channel.pex_left > 0) else { return };
        channel.pex_left -= 1;
        self.events.push_back(Event::Found { by: channel.peer.clone(), address });
    }
}
