//! One connection's task: bytes from the socket to the core, and back.
//!
//! Receiving: while blocks are expected, one `readv` is laid out as the stream will be, if the peer answers in the order
//! it was asked: the rest of the current block, then for every expected block a header and its payload, straight into the
//! buffers that are hashed and written. If the stream turns out otherwise, the bytes that went astray are taken up again
//! and fed through the framer; nothing depends on the guess but speed.
//!
//! Sending: control messages and block headers from a small staging buffer, payload from its file: over TCP with
//! `sendfile`, over QUIC read into the stream's own memory.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use anabranch_bittorrent::torrent::{PeerMisbehaved, Placement, REQUEST_LEN_MAX};
use anabranch_bittorrent::wire::{BlockRange, Event, PIECE_HEADER_LEN, Receiver, piece_header};
use anabranch_bittorrent::{ConnId, PeerKey};
use anabranch_content::storage::{ErrorKind, SendSegment, StorageError};
use anabranch_transport::Stream;

use crate::bittorrent::torrent::{ConnHandle, TorrentRef};
use crate::limits::Share;
use crate::store::buffers::{CHUNK_LEN, overlap};
use crate::store::disk::Reply;
use crate::store::readahead;

/// Bytes received outside of block buffers at once.
const SCRATCH_LEN: usize = 64 * 1024;
/// Bytes that one `readv` may place at most: what the kernel's socket buffer holds on a fast path.
const WINDOW_MAX: usize = 2 * 1024 * 1024;
/// Receive windows below this are not worth laying out: the bytes are copied from the scratch buffer instead.
const WINDOW_MIN: usize = 64 * 1024;
/// Entries of one `readv`: half the kernel's limit.
const SEGMENTS_MAX: usize = 512;
/// Bytes moved in one direction before the other direction and other connections get their turn.
const TURN_BYTES: u64 = 4 * 1024 * 1024;
/// Blocks received into memory of their own at once, per connection one at most.
const ZEROS: [u8; 16 * 1024] = [0; 16 * 1024];
/// A peer that takes nothing of what there is for it in this time does not read.
const SENT_NOTHING_MAX: Duration = Duration::from_secs(120);
/// Memory for control messages that is kept between two turns.
const STAGING_KEPT_LEN: usize = 4096;
/// Changes by others to what is shared are looked for so often while it is sent: often enough that little is sent of a file that
/// is being edited, and a system call that costs nothing beside the bytes.
const SEAL_EVERY: Duration = Duration::from_millis(20);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnError {
    /// The other side closed it.
    #[error("closed by the peer")]
    Closed,
    /// The network failed it.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer did not get as far as the protocol.
    #[error("{0}")]
    Stranger(String),
    /// The peer broke the protocol.
    #[error("{0}")]
    Misbehaved(#[from] PeerMisbehaved),
    /// We ended it.
    #[error("{0}")]
    Ended(String),
    /// It cannot come about, however long one waits: what the user asked for does not fit together.
    #[error("{0}")]
    Hopeless(String),
    /// Content that was promised could not be read.
    #[error("{0}")]
    Storage(#[from] StorageError),
}

/// Where the payload of the current block goes.
enum Current {
    /// Straight to its place.
    InPlace(BlockRange),
    /// To memory of its own, because its place is taken by another connection.
    Aside(BlockRange, Vec<u8>),
    /// Nowhere.
    Discard(BlockRange),
}

/// One entry of a receive plan.
#[derive(Clone, Copy)]
enum Segment {
    /// The rest of the current block, in place or aside or thrown away.
    Current,
    /// The header of the block that is expected next.
    Header(usize),
    /// Payload of an expected block, in place.
    Expected(BlockRange, *mut u8),
    /// Whatever comes.
    Scratch,
}

/// Memory for receiving that all connections of the thread share: nothing stays in it between two calls.
pub struct Scratch {
    bytes: Box<[u8]>,
    headers: Box<[[u8; PIECE_HEADER_LEN]]>,
    iovecs: Vec<libc::iovec>,
    plan: Vec<(Segment, usize)>,
}

impl Scratch {
    /// Allocates it.
    pub fn new() -> Self {
        Self {
            bytes: vec![0; SCRATCH_LEN].into(),
            headers: vec![[0; PIECE_HEADER_LEN]; SEGMENTS_MAX / 2].into(),
            iovecs: Vec::with_capacity(SEGMENTS_MAX),
            plan: Vec::with_capacity(SEGMENTS_MAX),
        }
    }
}

/// A block on its way out.
struct Upload {
    range: BlockRange,
    sent: u32,
}

/// One connection, after its handshakes.
pub struct Conn {
    torrent: TorrentRef,
    id: ConnId,
    stream: Stream,
    handle: Rc<ConnHandle>,
    receiver: Receiver,
    current: Option<Current>,
    window: usize,
    down: Share,
    up: Share,
    staging: Vec<u8>,
    staged: usize,
    upload: Option<Upload>,
    corked: bool,
    /// Payload that arrived since it was last reported.
    payload_bytes: u64,
    /// A limit kept us from receiving what is there.
    held_up: bool,
    /// Since when the socket has taken nothing of what there was.
    stuck_since: Option<Instant>,
    /// When the transport was last asked what it measured.
    path_looked_at: Option<Instant>,
    /// The file that was last seen to be what was verified, and when.
    seal_looked_at: Option<(usize, Instant)>,
    /// A block found no place since memory was last seen to.
    memory_short: bool,
    /// The chunk that is being read from disk, to be sent.
    warming: Option<Chunk>,
    /// The chunk that was last found to be in memory.
    warm: Option<Chunk>,
}

/// Part of a piece, as long as a receive buffer: what is read from disk at once.
type Chunk = (u32, u32);

/// How often the transport is asked what it measured of the path.
const PATH_EVERY: Duration = Duration::from_millis(200);

/// What a turn of sending or receiving came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The socket has to become ready first.
    Blocked,
    /// There is more to do at once.
    More,
    /// Nothing to do, or not our turn under a rate limit: we are woken.
    Idle,
}

impl Conn {
    /// `early` are bytes that came behind the handshake.
    pub fn new(torrent: TorrentRef, id: ConnId, stream: Stream, handle: Rc<ConnHandle>) -> Self {
        let (down, up) = torrent.borrow().limits(&handle);
        Self {
            torrent,
            id,
            stream,
            handle,
            receiver: Receiver::default(),
            current: None,
            window: 0,
            down,
            up,
            staging: Vec::new(),
            staged: 0,
            upload: None,
            corked: false,
            payload_bytes: 0,
            held_up: false,
            stuck_since: None,
            path_looked_at: None,
            seal_looked_at: None,
            memory_short: false,
            warming: None,
            warm: None,
        }
    }

    /// Runs the connection until it ends. `early` are bytes that came behind the handshake.
    pub async fn run(mut self, early: Vec<u8>) -> ConnError {
        match self.drive(early).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn drive(&mut self, early: Vec<u8>) -> Result<std::convert::Infallible, ConnError> {
        self.feed(&early)?;
        self.after_receiving();
        loop {
            if let Some(reason) = self.handle.take_close() {
                // What was queued before the end (a reject, a last have) still goes out where the socket takes it.
                let _ = self.send_turn();
                let _ = self.stream.flush();
                return Err(ConnError::Ended(reason));
            }
            let received = self.receive_turn()?;
            let sent = self.send_turn()?;
            if sent == Turn::Blocked && self.does_not_read() {
                return Err(ConnError::Ended("it does not read what we send".to_owned()));
            }
            if sent == Turn::More || received == Turn::More {
                tokio::task::yield_now().await;
                continue;
            }
            self.wait(sent, received).await?;
        }
    }

    /// Sleeps until the socket, the core or time has something for us.
    async fn wait(&self, sent: Turn, received: Turn) -> Result<(), ConnError> {
        let ready = poll_fn(|cx| {
            if received == Turn::Blocked && self.stream.poll_recv_ready(cx)?.is_ready() {
                return Poll::Ready(Ok(()));
            }
            if sent == Turn::Blocked && self.stream.poll_send_ready(cx)?.is_ready() {
                return Poll::Ready(Ok(()));
            }
            Poll::<io::Result<()>>::Pending
        });
        tokio::select! {
            ready = ready => Ok(ready?),
            () = self.handle.notified() => Ok(()),
        }
    }

    /// Whether the peer lets what it asked for gather here.
    fn does_not_read(&mut self) -> bool {
        let since = *self.stuck_since.get_or_insert_with(Instant::now);
        let core = &self.torrent.borrow().core;
        since.elapsed() > SENT_NOTHING_MAX || core.output_len(self.id) > core.output_len_max()
    }

    /// Whose connection it is.
    fn peer(&self) -> PeerKey {
        self.torrent.borrow().core.peer_of(self.id).unwrap_or(PeerKey(u32::MAX))
    }

    /// The same, and whether something was asked of it.
    fn peer_and_debt(&self) -> (PeerKey, bool) {
        (self.peer(), self.torrent.borrow().core.owes(self.id))
    }

    // ---- receiving ----

    fn receive_turn(&mut self) -> Result<Turn, ConnError> {
        let mut turn_bytes = 0;
        loop {
            let now = Instant::now();
            // Only who has something to receive stands in line.
            if self.down.is_limited()
                && self.stream.poll_recv_ready(&mut Context::from_waker(Waker::noop()))?.is_pending()
            {
                self.down.rest();
                return Ok(Turn::Blocked);
            }
            let allowed = self.down.available(|| self.peer_and_debt(), now);
            if allowed == 0 {
                self.held_up = true;
                return Ok(Turn::Idle);
            }
            if std::mem::take(&mut self.held_up) {
                self.torrent.borrow_mut().core.receiving_again(self.id, now);
            }
            let session = self.torrent.borrow().session();
            // Held until what came is dealt with: no other connection receives meanwhile.
            let mut scratch = session.scratch.borrow_mut();
            let planned = self.plan(&mut scratch, allowed, now);
            // SAFETY: `plan` filled the entries with memory of block buffers, of `self` and of `scratch`, all of which stay in
            // place and untouched until the call returns: nothing else runs on this thread meanwhile.
            let result = unsafe { self.stream.try_recv(&mut scratch.iovecs) };
            let received = match result {
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
            self.window = next_window(self.window, received, planned);
            self.take_in(&mut scratch, received)?;
            drop(scratch);
            self.after_receiving();
            turn_bytes += received as u64;
            let spent = self.down.is_spent() && received == planned;
            if self.handle.is_closing() || turn_bytes >= TURN_BYTES || spent {
                return Ok(Turn::More);
            }
            if received < planned {
                // The socket is drained, and the stream knows: asking again would only cost a call to hear so.
                self.down.rest();
                return Ok(Turn::Blocked);
            }
        }
    }

    /// Lays out the next `readv`; answers how many bytes it has room for.
    fn plan(&mut self, scratch: &mut Scratch, allowed: u64, now: Instant) -> usize {
        scratch.plan.clear();
        scratch.iovecs.clear();
        let mut left = usize::try_from(allowed).unwrap_or(usize::MAX).min(WINDOW_MAX);
        let torrent = self.torrent.clone();
        let mut torrent = torrent.borrow_mut();
        if let Some(payload_left) = self.receiver.payload_left().filter(|left| *left > 0) {
            let (place, room) = self.current_place(&mut torrent.buffers, payload_left, &mut scratch.bytes);
            push(scratch, Segment::Current, place, room.min(left));
            left -= room.min(left);
            if room < payload_left as usize {
                return scratch.iovecs.iter().map(|iovec| iovec.iov_len).sum();
            }
        }
        let ahead = self.window.min(left);
        if ahead >= WINDOW_MIN
            && self.receiver.payload_left().is_some() | (self.receiver.gathered_len() < PIECE_HEADER_LEN)
        {
            self.plan_ahead(scratch, &mut torrent, ahead, now);
        }
        let tail = left.min(SCRATCH_LEN);
        let place = scratch.bytes.as_mut_ptr();
        push(scratch, Segment::Scratch, place, tail);
        scratch.iovecs.iter().map(|iovec| iovec.iov_len).sum()
    }

    /// Plans for the blocks that are expected next, up to `ahead` bytes.
    fn plan_ahead(
        &self,
        scratch: &mut Scratch,
        torrent: &mut crate::bittorrent::torrent::State,
        mut ahead: usize,
        now: Instant,
    ) {
        let arriving = match &self.current {
            Some(Current::InPlace(range) | Current::Aside(range, _) | Current::Discard(range)) => Some(*range),
            None => None,
        };
        // Bytes of the next header that the framer holds already.
        let mut gathered = self.receiver.gathered_len();
        let crate::bittorrent::torrent::State { core, buffers: Some(buffers), .. } = torrent else { return };
        for (index, range) in core.expected(self.id).filter(|range| Some(*range) != arriving).enumerate() {
            if ahead < range.len as usize || index >= scratch.headers.len() || scratch.iovecs.len() + 3 > SEGMENTS_MAX {
                break;
            }
            // What is laid out inside the block that arrives would be written over with it before it is looked at.
            if arriving.is_some_and(|arriving| overlap(arriving, range)) {
                break;
            }
            let Some(place) = buffers.place(range, now) else { break };
            let header = scratch.headers[index].as_mut_ptr();
            push(scratch, Segment::Header(index), header, PIECE_HEADER_LEN - gathered);
            push(scratch, Segment::Expected(range, place), place, range.len as usize);
            ahead -= range.len as usize;
            gathered = 0;
        }
    }

    /// Where the rest of the current block goes, and how much of it fits there at once.
    fn current_place(
        &mut self,
        buffers: &mut Option<crate::store::buffers::PieceBuffers>,
        payload_left: u32,
        scratch: &mut [u8],
    ) -> (*mut u8, usize) {
        let room = payload_left as usize;
        match &mut self.current {
            Some(Current::InPlace(range)) => {
                let range = *range;
                let place =
                    buffers.as_mut().and_then(|buffers| buffers.resume(range, self.id, range.len - payload_left));
                match place {
                    Some(place) => (place, room),
                    None => {
                        // Another connection delivered the block meanwhile.
                        self.current = Some(Current::Discard(range));
                        (scratch.as_mut_ptr(), room.min(scratch.len()))
                    }
                }
            }
            Some(Current::Aside(range, memory)) => {
                let at = (range.len - payload_left) as usize;
                (memory[at..].as_mut_ptr(), room)
            }
            Some(Current::Discard(_)) | None => (scratch.as_mut_ptr(), room.min(scratch.len())),
        }
    }

    /// Takes in what a planned `readv` brought.
    fn take_in(&mut self, scratch: &mut Scratch, mut received: usize) -> Result<(), ConnError> {
        let plan = std::mem::take(&mut scratch.plan);
        let mut result = Ok(());
        for (at, (segment, len)) in plan.iter().enumerate() {
            let take = received.min(*len);
            if take == 0 {
                break;
            }
            received -= take;
            result = match segment {
                Segment::Current => self.filled(take as u32),
                Segment::Header(index) => {
                    let header = scratch.headers[*index];
                    self.feed(&header[..take])
                }
                Segment::Scratch => {
                    let bytes = std::mem::take(&mut scratch.bytes);
                    let fed = self.feed(&bytes[..take]);
                    scratch.bytes = bytes;
                    fed
                }
                Segment::Expected(range, place) if self.is_in_place(*range, *place) => self.filled(take as u32),
                Segment::Expected(..) => {
                    // The peer did something else: take the bytes up from where they went astray.
                    let astray = gather(scratch, &plan[at..], take + received);
                    scratch.plan = plan;
                    return self.feed(&astray);
                }
            };
            if result.is_err() {
                break;
            }
        }
        scratch.plan = plan;
        result
    }

    /// Whether the framer is at the start of the payload of `range`, and `place` is where it belongs.
    fn is_in_place(&self, range: BlockRange, place: *mut u8) -> bool {
        let begun = matches!(&self.current, Some(Current::InPlace(current)) if *current == range);
        begun && self.receiver.payload_left() == Some(range.len) && {
            let mut torrent = self.torrent.borrow_mut();
            let buffers = torrent.buffers.as_mut();
            buffers.and_then(|buffers| buffers.resume(range, self.id, 0)) == Some(place)
        }
    }

    /// `len` bytes of the current block are where they belong.
    fn filled(&mut self, len: u32) -> Result<(), ConnError> {
        self.payload_bytes += u64::from(len);
        if self.receiver.payload_filled(len) { self.block_end() } else { Ok(()) }
    }

    /// Feeds bytes through the framer.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), ConnError> {
        let limits = self.torrent.borrow().core.wire_limits();
        let mut input = bytes;
        // The framer lends us its memory with every message: it is taken out while we act on one.
        let mut receiver = std::mem::take(&mut self.receiver);
        let result = loop {
            let left = receiver.payload_left();
            let step = match receiver.next(&mut input, &limits) {
                Err(error) => Err(PeerMisbehaved::from(error).into()),
                Ok(None) => break Ok(()),
                Ok(Some(Event::Message(message))) => {
                    let now = Instant::now();
                    let mut torrent = self.torrent.borrow_mut();
                    torrent.core.on_message(self.id, message, now).map_err(ConnError::from)
                }
                Ok(Some(Event::BlockStart(range))) => self.block_start(range),
                Ok(Some(Event::BlockData(data))) => {
                    self.copy_payload(data, left.unwrap_or(0));
                    Ok(())
                }
                Ok(Some(Event::BlockEnd)) => self.block_end(),
            };
            if step.is_err() {
                break step;
            }
        };
        self.receiver = receiver;
        result
    }

    fn block_start(&mut self, range: BlockRange) -> Result<(), ConnError> {
        let now = Instant::now();
        let mut torrent = self.torrent.borrow_mut();
        let placement = torrent.core.block_started(self.id, range, now)?;
        self.current = Some(match placement {
            Placement::Unwanted => Current::Discard(range),
            Placement::Wanted => {
                let place = torrent.buffers.as_mut().and_then(|buffers| buffers.begin(range, self.id, now));
                match place {
                    Some(_) => Current::InPlace(range),
                    None => {
                        // Not at once: the receive that is being dealt with may point into what would be spilled.
                        self.memory_short = true;
                        Current::Aside(range, vec![0; range.len.min(REQUEST_LEN_MAX) as usize])
                    }
                }
            }
        });
        Ok(())
    }

    /// Payload that came through the framer is copied to where it belongs. `left` was to come before it.
    fn copy_payload(&mut self, data: &[u8], left: u32) {
        self.payload_bytes += data.len() as u64;
        let torrent = self.torrent.clone();
        let mut torrent = torrent.borrow_mut();
        match &mut self.current {
            Some(Current::InPlace(range)) => {
                let range = *range;
                let at = range.len - left;
                match torrent.buffers.as_mut().and_then(|buffers| buffers.resume(range, self.id, at)) {
                    // SAFETY: `resume` answers memory with room for the rest of the block, of which `data` is a part; `data`
                    // lies in scratch memory, never in a block buffer.
                    Some(place) => unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), place, data.len()) },
                    None => self.current = Some(Current::Discard(range)),
                }
            }
            Some(Current::Aside(range, memory)) => {
                let at = (range.len - left) as usize;
                memory[at..at + data.len()].copy_from_slice(data);
            }
            Some(Current::Discard(_)) | None => {}
        }
    }

    fn block_end(&mut self) -> Result<(), ConnError> {
        let now = Instant::now();
        let mut torrent = self.torrent.borrow_mut();
        let crate::bittorrent::torrent::State { core, buffers, .. } = &mut *torrent;
        if let Some(Current::InPlace(range) | Current::Aside(range, _)) = &self.current
            && !core.block_wanted(self.id, *range)
        {
            buffers.iter_mut().for_each(|buffers| buffers.disconnected(self.id));
            self.current = Some(Current::Discard(*range));
        }
        let (range, kept) = match self.current.take() {
            Some(Current::InPlace(range)) => {
                (range, buffers.as_mut().is_some_and(|buffers| buffers.finish(range, self.id, now)))
            }
            Some(Current::Aside(range, memory)) => {
                (range, buffers.as_mut().is_some_and(|buffers| buffers.insert(range, &memory, now)))
            }
            Some(Current::Discard(range)) => (range, false),
            None => return Ok(()),
        };
        core.block_finished(self.id, range, kept, now);
        Ok(())
    }

    /// After a run of bytes: counts them, asks for more, and passes on what the core has to say.
    fn after_receiving(&mut self) {
        let now = Instant::now();
        let payload_bytes = std::mem::take(&mut self.payload_bytes);
        let mut torrent = self.torrent.borrow_mut();
        if payload_bytes > 0 {
            torrent.core.payload_received(self.id, payload_bytes, now);
            if let Some(stats) = measure(&self.stream, &self.handle, &mut self.path_looked_at, now) {
                torrent.core.set_path_rtt(self.id, stats.rtt);
            }
            self.handle.moved(now);
            torrent.update_room();
            torrent.core.fill_requests(self.id, now);
        }
        if std::mem::take(&mut self.memory_short) {
            torrent.relieve_memory();
        }
        torrent.pump(now);
    }

    // ---- sending ----

    fn send_turn(&mut self) -> Result<Turn, ConnError> {
        let mut turn_bytes = 0;
        loop {
            let now = Instant::now();
            if self.staged == self.staging.len() && self.upload.is_none() && !self.next_output(now)? {
                self.set_cork(false)?;
                if !self.stream.flush()? {
                    return Ok(Turn::Blocked);
                }
                return Ok(Turn::Idle);
            }
            let step = if self.staged < self.staging.len() { self.send_staged() } else { self.send_payload(now) };
            match step {
                Ok(sent) => {
                    self.stuck_since = None;
                    turn_bytes += sent;
                }
                Err(ConnError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.up.rest();
                    return Ok(Turn::Blocked);
                }
                Err(ConnError::Io(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            let spent = self.up.is_spent() && self.upload.is_none() && self.staged == self.staging.len();
            if turn_bytes >= TURN_BYTES || spent {
                return Ok(Turn::More);
            }
        }
    }

    fn upload_waits(&self) -> bool {
        self.torrent.borrow().core.has_upload(self.id)
    }

    /// Stages control messages, and in our turn a long answer or the next block's header; answers whether there is anything to
    /// send.
    fn next_output(&mut self, now: Instant) -> Result<bool, ConnError> {
        self.staging.clear();
        self.staging.shrink_to(STAGING_KEPT_LEN);
        self.staged = 0;
        self.torrent.borrow_mut().core.take_output(self.id, &mut self.staging, now);
        if !self.upload_waits() {
            self.up.rest();
            return Ok(!self.staging.is_empty());
        }
        if self.up.available(|| (self.peer(), true), now) == 0 {
            return Ok(!self.staging.is_empty());
        }
        if self.torrent.borrow_mut().core.take_answer(self.id, &mut self.staging, now) {
            return Ok(true);
        }
        let Some(range) = self.next_upload() else {
            // It is being read from disk.
            self.up.rest();
            return Ok(!self.staging.is_empty());
        };
        {
            self.staging.extend_from_slice(&piece_header(range.piece, range.begin, range.len));
            self.upload = Some(Upload { range, sent: 0 });
            if self.upload_waits() {
                self.set_cork(true)?;
            }
        }
        Ok(!self.staging.is_empty())
    }

    /// The next block to send, once it is in memory.
    fn next_upload(&mut self) -> Option<BlockRange> {
        let torrent = self.torrent.clone();
        let mut torrent = torrent.borrow_mut();
        let range = torrent.core.peek_upload(self.id)?;
        let chunk = (range.piece, range.begin / CHUNK_LEN);
        if self.warming.is_some() {
            if !self.handle.take_warmed() {
                return None;
            }
            self.warm = self.warming.take();
        }
        if self.warm != Some(chunk) {
            let storage = torrent.storage.clone()?;
            let geometry = &storage.info().geometry;
            let piece_begin = geometry.piece_offset(range.piece);
            let end = piece_begin + u64::from(geometry.piece_len(range.piece));
            let offset = piece_begin + u64::from(range.begin);
            // Blocks do not always keep to chunks: other programs' do not have to.
            let chunk_end = piece_begin + (u64::from(chunk.1) + 1) * u64::from(CHUNK_LEN);
            let len = chunk_end.min(end) - offset;
            if !readahead::is_cached(&storage, offset, len) {
                self.warming = Some(chunk);
                let session = torrent.session();
                let (id, conn, replies) = (torrent.id, self.id, session.replies.clone());
                session.disk.run(id, replies, move || {
                    readahead::read(&storage, offset, len, end);
                    Reply::Warmed { torrent: id, conn }
                });
                return None;
            }
            self.warm = Some(chunk);
        }
        torrent.core.next_upload(self.id)
    }

    fn send_staged(&mut self) -> Result<u64, ConnError> {
        let bytes = &self.staging[self.staged..];
        let sent = self.stream.try_send(&[IoSlice::new(bytes)], self.upload.is_some())?;
        self.staged += sent;
        // What has to be said is said at once, but counts.
        self.up.spend(sent as u64);
        Ok(sent as u64)
    }

    /// Sends the next run of the current block.
    fn send_payload(&mut self, now: Instant) -> Result<u64, ConnError> {
        let Some(upload) = &mut self.upload else { return Ok(0) };
        let torrent = self.torrent.clone();
        let Some(storage) = torrent.borrow().storage.clone() else { return Err(ConnError::Closed) };
        let left = upload.range.len - upload.sent;
        let offset =
            storage.info().geometry.piece_offset(upload.range.piece) + u64::from(upload.range.begin + upload.sent);
        let sent = match storage.segments(offset, u64::from(left)).next() {
            // A request past the end is not queued: this cannot be.
            None => return Err(ConnError::Ended("it asked for more than there is".to_owned())),
            Some(Ok(SendSegment::Pad(len))) => {
                let zeros = &ZEROS[..(len as usize).min(ZEROS.len())];
                self.stream.try_send(&[IoSlice::new(zeros)], true)?
            }
            Some(Ok(SendSegment::File { file, index, offset, len })) => {
                let looked = self.seal_looked_at.is_some_and(|(of, at)| of == index && now < at + SEAL_EVERY);
                if !looked {
                    if let Err(error) = storage.check_seal(index, &file) {
                        torrent.borrow_mut().content_changed(index, upload.range.piece, &error.to_string());
                        return Err(error.into());
                    }
                    self.seal_looked_at = Some((index, now));
                }
                match self.stream.try_send_file(&file, offset, len as usize) {
                    Ok(0) => {
                        // The file ends early. `check_file` says how; whatever it says, this promise cannot be kept.
                        let changed = || ConnError::Ended("a shared file changed while it was sent".to_owned());
                        let error = storage.check_file(index).err().map_or_else(changed, ConnError::Storage);
                        torrent.borrow_mut().content_changed(index, upload.range.piece, &error.to_string());
                        return Err(error);
                    }
                    Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                        let path = storage.file_path(index);
                        let reason = format!("cannot read {}: {error}; check the disk", path.display());
                        torrent.borrow_mut().content_unreadable(upload.range.piece, &reason);
                        return Err(error.into());
                    }
                    sent => sent?,
                }
            }
            // That passes: this connection ends, but nothing is lost.
            Some(Err(error)) if error.kind == ErrorKind::TooManyOpenFiles => return Err(error.into()),
            Some(Err(error)) => {
                let file = (0..storage.info().files.len()).find(|file| storage.file_path(*file) == error.path);
                let (mut torrent, piece, reason) = (torrent.borrow_mut(), upload.range.piece, error.to_string());
                match file.filter(|_| error.kind == ErrorKind::Vanished) {
                    Some(file) => torrent.content_changed(file, piece, &reason),
                    None => torrent.content_unreadable(piece, &reason),
                }
                return Err(error.into());
            }
        };
        self.handle.moved(now);
        measure(&self.stream, &self.handle, &mut self.path_looked_at, now);
        self.up.spend(sent as u64);
        upload.sent += sent as u32;
        if upload.sent == upload.range.len {
            self.upload = None;
        }
        torrent.borrow_mut().core.payload_sent(self.id, sent as u64, now);
        Ok(sent as u64)
    }

    fn set_cork(&mut self, corked: bool) -> Result<(), ConnError> {
        if self.corked != corked {
            self.stream.set_cork(corked)?;
            self.corked = corked;
        }
        Ok(())
    }
}

/// Asks the transport what it measured of the path, now and then.
fn measure(
    stream: &Stream,
    handle: &ConnHandle,
    looked_at: &mut Option<Instant>,
    now: Instant,
) -> Option<anabranch_transport::StreamStats> {
    if looked_at.is_some_and(|at| now < at + PATH_EVERY) {
        return None;
    }
    let stats = stream.stats().ok()?;
    *looked_at = Some(now);
    handle.measured(stats);
    Some(stats)
}

fn push(scratch: &mut Scratch, segment: Segment, place: *mut u8, len: usize) {
    scratch.plan.push((segment, len));
    scratch.iovecs.push(libc::iovec { iov_base: place.cast(), iov_len: len });
}

/// A window twice as large as what came lets a fast stream grow; one that comes in drips is not laid out for.
fn next_window(window: usize, received: usize, planned: usize) -> usize {
    if received >= planned.min(WINDOW_MAX) || received * 2 >= window {
        (received * 2).clamp(window, WINDOW_MAX)
    } else {
        window.saturating_sub(window / 8).max(received)
    }
}

/// Copies `len` bytes from the memory that `plan` describes, in stream order.
fn gather(scratch: &Scratch, plan: &[(Segment, usize)], mut len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    for (segment, room) in plan {
        let take = len.min(*room);
        len -= take;
        match segment {
            Segment::Header(index) => bytes.extend_from_slice(&scratch.headers[*index][..take]),
            Segment::Scratch => bytes.extend_from_slice(&scratch.bytes[..take]),
            // SAFETY: the plan was made for this very receive. Since then only the framer and the core were told of bytes, which
            // spills and takes no piece (that is left to `after_receiving`), so the chunk is where it was; and `take` is within
            // the room it was planned with.
            Segment::Expected(_, place) => bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(*place, take) }),
            // The current block is always first in a plan, and never astray.
            Segment::Current => {}
        }
    }
    bytes
}
