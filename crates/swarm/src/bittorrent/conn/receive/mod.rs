//! What comes from the peer: laid out before it comes ([`scratch`](crate::bittorrent::scratch)), then told to the core.
//!
//! While blocks are expected, one receive is laid out as the stream will be if the peer answers in the order in which it was
//! asked. If the stream turns out otherwise, the bytes that went astray are taken up again and fed through the framer; nothing
//! depends on the guess but speed.

#[cfg(test)]
mod tests;

use std::io;
use std::task::{Context, Waker};
use std::time::Instant;

use anabranch_bittorrent::ConnId;
use anabranch_bittorrent::torrent::{Arriving, PeerMisbehaved, REQUEST_LEN_MAX, Torrent};
use anabranch_bittorrent::wire::{BlockRange, Event, PIECE_HEADER_LEN, Receiver};

use super::channel::{Channel, TURN_BYTES, Turn};
use crate::bittorrent::error::ConnError;
use crate::bittorrent::scratch::{Layout, SCRATCH_LEN, Scratch, Segment};
use crate::limits::Share;
use crate::store::buffers::{NoPlace, PieceBuffers};

/// Bytes that one receive may place at most: what the kernel's socket buffer holds on a fast path.
const WINDOW_MAX: usize = 2 * 1024 * 1024;
/// Receive windows below this are not worth laying out: the bytes are copied from the scratch buffer instead.
const WINDOW_MIN: usize = 64 * 1024;

/// The receiving half of a connection.
pub(super) struct Receiving {
    down: Share,
    blocks: Blocks,
    /// A limit kept us from receiving what is there.
    held_up: bool,
}

/// The stream that comes, cut into messages and blocks.
struct Blocks {
    receiver: Receiver,
    current: Option<Current>,
    /// Bytes that the next receive is laid out for.
    window: usize,
    /// Payload that arrived since it was last reported.
    payload_bytes: u64,
    /// A block found no place since memory was last seen to.
    memory_short: bool,
}

/// The block that is arriving, and where its payload goes.
struct Current {
    arriving: Arriving,
    target: Target,
}

enum Target {
    /// Straight to its place.
    InPlace,
    /// To memory of its own, because its place is taken by another connection.
    Aside(Vec<u8>),
    /// Nowhere.
    Discard,
}

/// Whom the stream of the connection `id` is for.
struct Sink<'a> {
    core: &'a mut Torrent,
    buffers: Option<&'a mut PieceBuffers>,
    id: ConnId,
}

impl Receiving {
    /// `down` is the connection's part of what may be received.
    pub(super) fn new(down: Share) -> Self {
        Self { down, blocks: Blocks::new(), held_up: false }
    }

    /// `early` came behind the handshake.
    pub(super) fn begin(&mut self, channel: &Channel, early: &[u8]) -> Result<(), ConnError> {
        {
            let mut torrent = channel.torrent.borrow_mut();
            let torrent = &mut *torrent;
            let mut sink = Sink { core: &mut torrent.core, buffers: torrent.buffers.as_mut(), id: channel.id };
            self.blocks.feed(early, &mut sink, Instant::now())?;
        }
        self.after_receiving(channel);
        Ok(())
    }

    /// Receives until there is nothing more, or a limit allows no more, or others have their turn.
    pub(super) fn turn(&mut self, channel: &Channel) -> Result<Turn, ConnError> {
        let scratch = channel.torrent.borrow().scratch();
        let mut turn_bytes = 0;
        loop {
            let now = Instant::now();
            // Only who has something to receive stands in line.
            if self.down.is_limited()
                && channel.stream.poll_recv_ready(&mut Context::from_waker(Waker::noop()))?.is_pending()
            {
                self.down.rest();
                return Ok(Turn::Blocked);
            }
            let allowed = self.down.available(|| channel.peer_and_debt(), now);
            if allowed == 0 {
                self.held_up = true;
                return Ok(Turn::Idle);
            }
            if std::mem::take(&mut self.held_up) {
                channel.torrent.borrow_mut().core.receiving_again(channel.id, now);
            }
            let (planned, received) = {
                // Held until what came is dealt with: no other connection receives meanwhile.
                let mut scratch = scratch.borrow_mut();
                let mut torrent = channel.torrent.borrow_mut();
                let torrent = &mut *torrent;
                let mut sink = Sink { core: &mut torrent.core, buffers: torrent.buffers.as_mut(), id: channel.id };
                let layout = self.blocks.lay_out(&mut scratch, &mut sink, allowed, now);
                let planned = layout.len();
                let received = match layout.receive(&channel.stream) {
                    Ok(0) => return Err(ConnError::Closed),
                    Ok(received) => received,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.down.rest();
                        return Ok(Turn::Blocked);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error.into()),
                };
                self.down.spend(received as u64);
                self.blocks.take_in(&scratch, received, planned, &mut sink)?;
                (planned, received)
            };
            self.after_receiving(channel);
            turn_bytes += received as u64;
            let spent = self.down.is_spent() && received == planned;
            if channel.handle.is_closing() || turn_bytes >= TURN_BYTES || spent {
                return Ok(Turn::More);
            }
            if received < planned {
                // The socket is drained, and the stream knows: asking again would only cost a call to hear so.
                self.down.rest();
                return Ok(Turn::Blocked);
            }
        }
    }

    /// After a run of bytes: counts them, asks for more, and passes on what the core has to say.
    fn after_receiving(&mut self, channel: &Channel) {
        let now = Instant::now();
        let payload_bytes = std::mem::take(&mut self.blocks.payload_bytes);
        let mut torrent = channel.torrent.borrow_mut();
        if payload_bytes > 0 {
            torrent.core.payload_received(channel.id, payload_bytes, now);
            if let Some(stats) = channel.measure(now) {
                torrent.core.set_path_rtt(channel.id, stats.rtt);
            }
            channel.handle.moved(now);
            torrent.update_room();
            torrent.core.fill_requests(channel.id, now);
        }
        if std::mem::take(&mut self.blocks.memory_short) {
            torrent.relieve_memory();
        }
        torrent.pump(now);
    }
}

impl Blocks {
    fn new() -> Self {
        Self { receiver: Receiver::default(), current: None, window: 0, payload_bytes: 0, memory_short: false }
    }

    /// Lays out the next receive, of at most `allowed` bytes.
    fn lay_out<'a>(
        &'a mut self,
        scratch: &'a mut Scratch,
        sink: &'a mut Sink<'_>,
        allowed: u64,
        now: Instant,
    ) -> Layout<'a> {
        let Sink { core, buffers, id } = sink;
        let mut left = usize::try_from(allowed).unwrap_or(usize::MAX).min(WINDOW_MAX);
        let mut layout = Layout::new(scratch, buffers.as_deref_mut());
        let arriving = self.current.as_ref().map(|current| current.arriving.range());
        if let (Some(payload_left @ 1..), Some(Current { arriving, target })) =
            (self.receiver.payload_left(), &mut self.current)
        {
            let range = arriving.range();
            let at = range.len - payload_left;
            let room = left.min(payload_left as usize);
            if matches!(target, Target::InPlace) && !layout.in_place(range, *id, at, room) {
                // Another connection delivered the block meanwhile.
                *target = Target::Discard;
            }
            match target {
                Target::InPlace => {}
                Target::Aside(memory) => layout.aside(&mut memory[at as usize..][..room]),
                Target::Discard => layout.discard(room),
            }
            left -= layout.len();
            if layout.len() < payload_left as usize {
                return layout;
            }
        }
        let ahead = self.window.min(left);
        // Bytes of the next header that the framer holds already.
        let gathered = self.receiver.gathered_len();
        if ahead >= WINDOW_MIN && (self.receiver.payload_left().is_some() || gathered < PIECE_HEADER_LEN) {
            let expected = core.expected(*id).filter(|range| Some(*range) != arriving);
            lay_out_ahead(&mut layout, expected, arriving, ahead, gathered, now);
        }
        layout.anything(left.min(SCRATCH_LEN));
        layout
    }

    /// Takes in what a receive brought that had room for `planned` bytes.
    fn take_in(
        &mut self,
        scratch: &Scratch,
        received: usize,
        planned: usize,
        sink: &mut Sink<'_>,
    ) -> Result<(), ConnError> {
        let now = Instant::now();
        self.window = next_window(self.window, received, planned);
        let mut left = received;
        for (at, (segment, len)) in scratch.segments().iter().enumerate() {
            let take = left.min(*len);
            if take == 0 {
                break;
            }
            match *segment {
                Segment::Current => self.filled(take as u32, sink, now),
                Segment::Header(index) => self.feed(&scratch.header(index)[..take], sink, now)?,
                Segment::Scratch => self.feed(&scratch.bytes()[..take], sink, now)?,
                Segment::Expected(range, place) if self.is_in_place(range, place, sink) => {
                    self.filled(take as u32, sink, now);
                }
                Segment::Expected(..) => {
                    // The peer did something else: take the bytes up from where they went astray.
                    let astray = scratch.gather(at, left, sink.buffers.as_deref());
                    let gone = || ConnError::Ended("its content came to an end".to_owned());
                    return self.feed(&astray.ok_or_else(gone)?, sink, now);
                }
            }
            left -= take;
        }
        Ok(())
    }

    /// Whether the framer is at the start of the payload of `range`, and `place` is where it belongs.
    fn is_in_place(&self, range: BlockRange, place: usize, sink: &mut Sink<'_>) -> bool {
        let begun = self.current.as_ref().is_some_and(|current| current.is_in_place(range));
        begun && self.receiver.payload_left() == Some(range.len) && {
            let buffers = sink.buffers.as_mut();
            buffers.and_then(|buffers| buffers.resume(range, sink.id, 0)).is_some_and(|at| at.addr() == place)
        }
    }

    /// `len` bytes of the current block are where they belong.
    fn filled(&mut self, len: u32, sink: &mut Sink<'_>, now: Instant) {
        self.payload_bytes += u64::from(len);
        if self.receiver.payload_filled(len) {
            self.block_end(sink, now);
        }
    }

    /// Feeds bytes through the framer.
    fn feed(&mut self, bytes: &[u8], sink: &mut Sink<'_>, now: Instant) -> Result<(), ConnError> {
        let limits = sink.core.wire_limits();
        let mut input = bytes;
        // The framer lends us its memory with every message: it is taken out while we act on one.
        let mut receiver = std::mem::take(&mut self.receiver);
        let result = loop {
            let left = receiver.payload_left();
            let step = match receiver.next(&mut input, &limits) {
                Err(error) => Err(PeerMisbehaved::from(error)),
                Ok(None) => break Ok(()),
                Ok(Some(Event::Message(message))) => sink.core.on_message(sink.id, message, now),
                Ok(Some(Event::BlockStart(range))) => self.block_start(range, sink, now),
                Ok(Some(Event::BlockData(data))) => {
                    self.copy_payload(data, left.unwrap_or(0), sink);
                    Ok(())
                }
                Ok(Some(Event::BlockEnd)) => {
                    self.block_end(sink, now);
                    Ok(())
                }
            };
            if step.is_err() {
                break step;
            }
        };
        let unknown = receiver.take_unknown();
        self.receiver = receiver;
        result?;
        Ok(sink.core.on_unknown(sink.id, unknown)?)
    }

    fn block_start(&mut self, range: BlockRange, sink: &mut Sink<'_>, now: Instant) -> Result<(), PeerMisbehaved> {
        let arriving = sink.core.block_started(sink.id, range, now)?;
        let place = sink.buffers.as_mut().filter(|_| arriving.is_wanted());
        let target = match place.map(|buffers| buffers.begin(range, sink.id, now)) {
            _ if !arriving.is_wanted() => Target::Discard,
            Some(Ok(_)) => Target::InPlace,
            refused => {
                // Not at once: the receive that is being dealt with may have bytes where it would be spilled.
                self.memory_short |= refused == Some(Err(NoPlace::NoMemory));
                Target::Aside(vec![0; range.len.min(REQUEST_LEN_MAX) as usize])
            }
        };
        self.current = Some(Current { arriving, target });
        Ok(())
    }

    /// Payload that came through the framer is copied to where it belongs. `left` was to come before it.
    fn copy_payload(&mut self, data: &[u8], left: u32, sink: &mut Sink<'_>) {
        self.payload_bytes += data.len() as u64;
        let Some(Current { arriving, target }) = &mut self.current else { return };
        let range = arriving.range();
        let at = range.len - left;
        match target {
            Target::InPlace => {
                if !sink.buffers.as_mut().is_some_and(|buffers| buffers.write(range, sink.id, at, data)) {
                    *target = Target::Discard;
                }
            }
            Target::Aside(memory) => memory[at as usize..][..data.len()].copy_from_slice(data),
            Target::Discard => {}
        }
    }

    fn block_end(&mut self, sink: &mut Sink<'_>, now: Instant) {
        let Sink { core, buffers, id } = sink;
        let Some(Current { arriving, target }) = self.current.take() else { return };
        let kept = core.block_finished(arriving, now, |range| match (&target, &mut *buffers) {
            (Target::InPlace, Some(buffers)) => buffers.finish(range, *id, now),
            (Target::Aside(memory), Some(buffers)) => buffers.insert(range, memory, now).is_ok(),
            (Target::Discard, _) | (_, None) => false,
        });
        if let (false, Target::InPlace, Some(buffers)) = (kept, target, buffers) {
            buffers.disconnected(*id);
        }
    }
}

impl Current {
    fn is_in_place(&self, range: BlockRange) -> bool {
        self.arriving.range() == range && matches!(self.target, Target::InPlace)
    }
}

impl Channel {
    /// Whose connection it is, and whether something was asked of it.
    fn peer_and_debt(&self) -> (anabranch_bittorrent::PeerKey, bool) {
        (self.peer(), self.torrent.borrow().core.owes(self.id))
    }
}

/// Lays out the blocks that are expected next, up to `ahead` bytes; `gathered` bytes of the first header are here already.
fn lay_out_ahead(
    layout: &mut Layout<'_>,
    expected: impl Iterator<Item = BlockRange>,
    arriving: Option<BlockRange>,
    mut ahead: usize,
    mut gathered: usize,
    now: Instant,
) {
    for range in expected {
        // What is laid out inside the block that arrives would be written over with it before it is looked at.
        let inside = arriving.is_some_and(|arriving| arriving.overlaps(&range));
        if inside || ahead < range.len as usize || !layout.expected(range, PIECE_HEADER_LEN - gathered, now) {
            return;
        }
        ahead -= range.len as usize;
        gathered = 0;
    }
}

/// A window twice as large as what came lets a fast stream grow; one that comes in drips is not laid out for.
fn next_window(window: usize, received: usize, planned: usize) -> usize {
    if received >= planned.min(WINDOW_MAX) || received * 2 >= window {
        (received * 2).clamp(window, WINDOW_MAX)
    } else {
        window.saturating_sub(window / 8).max(received)
    }
}
