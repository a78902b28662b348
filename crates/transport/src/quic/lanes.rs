//! One byte stream over several QUIC streams.
//!
//! noq 1.4 gives a whole connection up once 1024 chunks (a packet's payload each) of one stream wait for their reader, even
//! without gaps: at 1200 bytes a packet no stream may be far ahead of its reader, or of a lost packet. A gigabit over 100 ms
//! is ten thousand packets. So the bytes go round: a stripe of [`STRIPE_LEN`] on the first lane, the next on the second, and
//! so on. Each lane's window keeps it below the limit, all together are as wide as the path asks for.
//!
//! The dialling side opens all lanes, in order, and sends [`PREAMBLE`] ahead of everything on the last one.

use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use noq::{ConnectionError, ReadError, RecvStream, SendStream, WriteError};

use super::budget::Charged;
use super::config::MTU_MAX;
use super::endpoint::CloseCode;

/// Lanes of a connection.
pub(super) const LANES: u32 = 32;
/// What may wait on one lane, in bytes: 16 stripes, each of at most 58 chunks of 1150 bytes, are 928 chunks.
pub(super) const LANE_WINDOW: u32 = 1024 * 1024;
/// Bytes that follow each other on one lane.
const STRIPE_LEN: usize = 64 * 1024;
/// The first byte on the last lane: how the lanes are used.
pub(super) const PREAMBLE: u8 = 1;
/// Chunks that are taken from a lane under one lock.
const CHUNKS: usize = 64;
/// A chunk is taken for so long at least, when it is guessed how many make up a stripe.
const CHUNK_LEN_MIN: usize = 1150;
/// Bytes taken and not read, from where on chunks are taken one by one: what noq gave out, no window counts any more.
const TAKEN_MAX: usize = 2 * STRIPE_LEN;
/// noq copies what is written in parts so short, and keeps what is longer as it is.
const COPIED_LEN_MAX: usize = 1452;

/// A place in the round.
#[derive(Default)]
struct Turn {
    lane: usize,
    /// Bytes of the present stripe that went.
    gone: usize,
}

impl Turn {
    fn left(&self) -> usize {
        STRIPE_LEN - self.gone
    }

    fn advance(&mut self, len: usize, lanes: usize) {
        self.gone += len;
        if self.gone == STRIPE_LEN {
            *self = Self { lane: (self.lane + 1) % lanes, gone: 0 };
        }
    }
}

/// The sending half.
pub(super) struct SendLanes {
    lanes: Vec<SendStream>,
    turn: Turn,
    /// Bytes that noq copied, by lane, since the last on the lane that it did not.
    copied: Vec<u64>,
}

impl SendLanes {
    /// `lanes` must not be empty.
    pub(super) fn new(lanes: Vec<SendStream>) -> Self {
        Self { copied: vec![0; lanes.len()], lanes, turn: Turn::default() }
    }

    /// Bytes written of which nobody can tell whether they arrived, but by an end to all that is under way.
    pub(super) fn copied(&self) -> u64 {
        self.copied.iter().sum()
    }

    /// All that was written has arrived.
    pub(super) fn all_arrived(&mut self) {
        self.copied.fill(0);
    }

    /// Hands over the beginning of `bytes` and takes it off. `charge` is for `bytes`, and ends with the last of them: each lane
    /// forgets in order, so what it has copied before is gone by then, and is added to it.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut Bytes,
        charge: &Charged,
    ) -> Poll<io::Result<usize>> {
        let mut part = bytes.slice(..bytes.len().min(self.turn.left()));
        let lane = &mut self.lanes[self.turn.lane];
        let mut parts = std::slice::from_mut(&mut part);
        let result = pin!(lane.write_many_chunks(&mut parts)).poll(cx);
        match result {
            Poll::Ready(Ok(written)) => {
                let copied = &mut self.copied[self.turn.lane];
                if written > COPIED_LEN_MAX {
                    charge.add(std::mem::take(copied));
                } else {
                    *copied += written as u64;
                }
                bytes.advance(written);
                self.turn.advance(written, self.lanes.len());
                Poll::Ready(Ok(written))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(write_error(error))),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Ends every lane and waits until the other side has all of it.
    pub(super) async fn deliver(&mut self) {
        for lane in &mut self.lanes {
            // A lane that the other side gave up needs no end.
            let _ = lane.finish();
        }
        for lane in &mut self.lanes {
            let _ = lane.stopped().await;
        }
    }
}

/// Why nothing more will be received.
enum End {
    Finished,
    Failed(io::ErrorKind, String),
}

/// A lane's stream, and what was taken from it ahead.
struct RecvLane {
    stream: RecvStream,
    chunks: [Bytes; CHUNKS],
    /// The first chunk that is not used up, of those that are filled.
    next: usize,
    filled: usize,
}

/// The receiving half.
pub(super) struct RecvLanes {
    lanes: Vec<RecvLane>,
    turn: Turn,
    end: Option<End>,
    /// Bytes taken from noq that nobody has read.
    ahead: usize,
    /// The longest chunk so far.
    chunk_len: usize,
    /// Bytes taken from noq, since somebody asked.
    taken: u64,
}

impl RecvLanes {
    /// `lanes` must not be empty.
    pub(super) fn new(lanes: Vec<RecvStream>) -> Self {
        let lane = |stream| RecvLane { stream, chunks: std::array::from_fn(|_| Bytes::new()), next: 0, filled: 0 };
        let lanes = lanes.into_iter().map(lane).collect();
        Self { lanes, turn: Turn::default(), end: None, ahead: 0, chunk_len: CHUNK_LEN_MIN, taken: 0 }
    }

    /// The next bytes; `None` if there are none now (then `cx` is woken) or ever (then [`RecvLanes::end`] says why).
    pub(super) fn chunk(&mut self, cx: &mut Context<'_>) -> Option<&[u8]> {
        let lane = &mut self.lanes[self.turn.lane];
        if lane.next == lane.filled && self.end.is_none() {
            (lane.next, lane.filled) = (0, 0);
            let wanted = if self.ahead < TAKEN_MAX { self.turn.left() / self.chunk_len + 1 } else { 1 };
            let read = pin!(lane.stream.read_many_chunks(&mut lane.chunks[..wanted.min(CHUNKS)])).poll(cx);
            match read {
                Poll::Ready(Ok(Some(filled))) => {
                    lane.filled = filled;
                    for chunk in &lane.chunks[..filled] {
                        self.chunk_len = self.chunk_len.max(chunk.len().min(MTU_MAX.into()));
                        self.ahead += chunk.len();
                        self.taken += chunk.len() as u64;
                    }
                }
                // Lanes end together, where the round stands.
                Poll::Ready(Ok(None)) => self.end = Some(End::Finished),
                Poll::Ready(Err(error)) => self.end = Some(error.into()),
                Poll::Pending => {}
            }
        }
        let chunk = lane.chunks[..lane.filled].get(lane.next)?;
        Some(&chunk[..chunk.len().min(self.turn.left())])
    }

    /// Takes off the first `len` bytes of the last [`RecvLanes::chunk`].
    pub(super) fn consume(&mut self, len: usize) {
        let lane = &mut self.lanes[self.turn.lane];
        let chunk = &mut lane.chunks[lane.next];
        self.ahead -= len;
        chunk.advance(len);
        if chunk.is_empty() {
            // Its memory goes back at once.
            *chunk = Bytes::new();
            lane.next += 1;
        }
        self.turn.advance(len, self.lanes.len());
    }

    /// Bytes that left the window since the last call.
    pub(super) fn take_taken(&mut self) -> u64 {
        std::mem::take(&mut self.taken)
    }

    /// Whether nothing more will come.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// `Ok(0)` after an end in order, the failure after another, `WouldBlock` before.
    pub(super) fn end(&self) -> io::Result<usize> {
        match &self.end {
            None => Err(io::ErrorKind::WouldBlock.into()),
            Some(End::Finished) => Ok(0),
            Some(End::Failed(kind, reason)) => Err(io::Error::new(*kind, reason.clone())),
        }
    }
}

impl From<ReadError> for End {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::ConnectionLost(ConnectionError::ApplicationClosed(close))
                if close.error_code == CloseCode::Done.into() =>
            {
                Self::Finished
            }
            ReadError::ConnectionLost(error) => {
                let error = lost(error);
                Self::Failed(error.kind(), error.to_string())
            }
            ReadError::Reset(_) => {
                Self::Failed(io::ErrorKind::ConnectionReset, "the peer gave the stream up".to_owned())
            }
            error => Self::Failed(io::ErrorKind::NotConnected, error.to_string()),
        }
    }
}

fn write_error(error: WriteError) -> io::Error {
    match error {
        WriteError::Stopped(_) => io::ErrorKind::BrokenPipe.into(),
        WriteError::ConnectionLost(error) => lost(error),
        error => error.into(),
    }
}

/// A connection's end, in the other side's own words where it had any.
fn lost(error: ConnectionError) -> io::Error {
    let kind = io::Error::from(error.clone()).kind();
    match error {
        ConnectionError::ApplicationClosed(close) => {
            io::Error::new(kind, format!("the peer closed it: {}", String::from_utf8_lossy(&close.reason)))
        }
        error => io::Error::new(kind, error.to_string()),
    }
}
