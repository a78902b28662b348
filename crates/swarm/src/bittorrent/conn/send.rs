//! What goes to the peer: control messages and block headers from a small staging buffer, payload from its file, over TCP with
//! `sendfile`, over QUIC read into the stream's own memory.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::ConnId;
use anabranch_bittorrent::torrent::Torrent;
use anabranch_bittorrent::wire::{BlockRange, piece_header};
use anabranch_content::storage::{ErrorKind, SendSegment, Storage};

use super::channel::{Channel, TURN_BYTES, Turn};
use crate::bittorrent::error::ConnError;
use crate::bittorrent::torrent::TorrentDriver;
use crate::limits::Share;
use crate::store::buffers::CHUNK_LEN;
use crate::store::disk::Reply;
use crate::store::readahead;

/// Padding is sent from here.
const ZEROS: [u8; 16 * 1024] = [0; 16 * 1024];
/// A peer that takes nothing of what there is for it in this time does not read.
const SENT_NOTHING_MAX: Duration = Duration::from_secs(120);
/// Memory for control messages that is kept between two turns.
const STAGING_KEPT_LEN: usize = 4096;
/// Changes by others to what is shared are looked for so often while it is sent: often enough that little is sent of a file that
/// is being edited, and a system call that costs nothing beside the bytes.
const SEAL_EVERY: Duration = Duration::from_millis(20);

/// Chunks that are sent until a peer that is sent what is in memory counts as one whose next ones will be there too: 64 MiB.
const COLD_CHUNKS: u32 = 256;
/// The kernel is told of no more than this at once: it takes memory for all of it.
const ADVISE_BYTES_MAX: u32 = 8 << 20;

/// The sending half of a connection.
pub(super) struct Sending {
    up: Share,
    staging: Vec<u8>,
    staged: usize,
    upload: Option<Upload>,
    corked: bool,
    /// Since when the socket has taken nothing of what there was.
    stuck_since: Option<Instant>,
    /// The file that was last seen to be what was verified, and when.
    seal_looked_at: Option<(usize, Instant)>,
    /// The chunk that is being read from disk, to be sent.
    reading_ahead: Option<Chunk>,
    /// The chunk that was last found to be in memory.
    read_ahead: Option<Chunk>,
    /// For so many chunks more it is taken that what the peer asks for is not in memory.
    cold_chunks: u32,
    /// The last block that the kernel was told of.
    advised: Option<BlockRange>,
}

/// Part of a piece, as long as a receive buffer: what is read from disk at once.
type Chunk = (u32, u32);

/// A block on its way out.
struct Upload {
    range: BlockRange,
    sent: u32,
}

impl Sending {
    /// `up` is the connection's part of what may be sent.
    pub(super) fn new(up: Share) -> Self {
        Self {
            up,
            staging: Vec::new(),
            staged: 0,
            upload: None,
            corked: false,
            stuck_since: None,
            seal_looked_at: None,
            reading_ahead: None,
            read_ahead: None,
            cold_chunks: 0,
            advised: None,
        }
    }

    /// Whether the peer lets what it asked for gather here.
    pub(super) fn is_not_read(&mut self, channel: &Channel) -> bool {
        let since = *self.stuck_since.get_or_insert_with(Instant::now);
        let core = &channel.torrent.borrow().core;
        since.elapsed() > SENT_NOTHING_MAX || core.output_len(channel.id) > core.output_len_max()
    }

    /// Sends until the socket or a limit takes no more, or others have their turn.
    pub(super) fn turn(&mut self, channel: &Channel) -> Result<Turn, ConnError> {
        let mut turn_bytes = 0;
        loop {
            let now = Instant::now();
            if self.staged == self.staging.len() && self.upload.is_none() && !self.next_output(channel, now)? {
                self.set_cork(channel, false)?;
                if !channel.stream.flush()? {
                    return Ok(Turn::Blocked);
                }
                return Ok(Turn::Idle);
            }
            let step = if self.staged < self.staging.len() {
                self.send_staged(channel)
            } else {
                self.send_payload(channel, now)
            };
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

    /// Stages control messages, and in our turn a long answer or the next block's header; answers whether there is anything to
    /// send.
    fn next_output(&mut self, channel: &Channel, now: Instant) -> Result<bool, ConnError> {
        self.staging.clear();
        self.staging.shrink_to(STAGING_KEPT_LEN);
        self.staged = 0;
        channel.torrent.borrow_mut().core.take_output(channel.id, &mut self.staging, now);
        if !channel.upload_waits() {
            self.up.rest();
            return Ok(!self.staging.is_empty());
        }
        if self.up.available(|| (channel.peer(), true), now) == 0 {
            return Ok(!self.staging.is_empty());
        }
        if channel.torrent.borrow_mut().core.take_answer(channel.id, &mut self.staging, now) {
            return Ok(true);
        }
        let Some(range) = self.next_upload(channel) else {
            // It is being read from disk.
            self.up.rest();
            return Ok(!self.staging.is_empty());
        };
        self.staging.extend_from_slice(&piece_header(range.piece, range.begin, range.len));
        self.upload = Some(Upload { range, sent: 0 });
        if channel.upload_waits() {
            self.set_cork(channel, true)?;
        }
        Ok(true)
    }

    /// The next block to send, once it is in memory.
    fn next_upload(&mut self, channel: &Channel) -> Option<BlockRange> {
        let torrent = channel.torrent.clone();
        let mut torrent = torrent.borrow_mut();
        let range = torrent.core.peek_upload(channel.id)?;
        let chunk = (range.piece, range.begin / CHUNK_LEN);
        if self.reading_ahead.is_some() {
            if !channel.handle.take_readahead_done() {
                return None;
            }
            self.read_ahead = self.reading_ahead.take();
        }
        if self.read_ahead != Some(chunk) {
            let storage = torrent.storage.clone()?;
            let geometry = &storage.info().geometry;
            let piece_begin = geometry.piece_offset(range.piece);
            let end = piece_begin + u64::from(geometry.piece_len(range.piece));
            let offset = piece_begin + u64::from(range.begin);
            // Blocks do not always keep to chunks: other programs' do not have to.
            let chunk_end = piece_begin + (u64::from(chunk.1) + 1) * u64::from(CHUNK_LEN);
            let len = chunk_end.min(end) - offset;
            let is_cached = readahead::is_cached(&storage, offset, len);
            if !is_cached {
                self.reading_ahead = Some(chunk);
                self.cold_chunks = COLD_CHUNKS;
                let (id, conn, storage) = (torrent.id, channel.id, Arc::clone(&storage));
                torrent.resources().disk.run(id, move || {
                    readahead::read(&storage, offset, len, end);
                    Reply::ReadAhead { content: id, conn }
                });
            }
            self.cold_chunks = self.cold_chunks.saturating_sub(1);
            if self.cold_chunks > 0 {
                self.advise(&torrent, channel.id, storage);
            }
            if !is_cached {
                return None;
            }
            self.read_ahead = Some(chunk);
        }
        torrent.core.next_upload(channel.id)
    }

    /// Tells the kernel what the peer has asked for since it was told last.
    fn advise(&mut self, torrent: &TorrentDriver, conn: ConnId, storage: Arc<Storage>) {
        let asked = self.newly_asked(&torrent.core, conn);
        if asked.is_empty() {
            return;
        }
        let id = torrent.id;
        torrent.resources().disk.run(id, move || {
            let geometry = &storage.info().geometry;
            for range in asked {
                let offset = geometry.piece_offset(range.piece) + u64::from(range.begin);
                readahead::advise(&storage, offset, u64::from(range.len));
            }
            Reply::Advised { content: id }
        });
    }

    /// What the peer has asked for since the kernel was told last, joined where it lies side by side.
    fn newly_asked(&mut self, core: &Torrent, conn: ConnId) -> Vec<BlockRange> {
        let known = core.queued_uploads(conn).position(|range| Some(range) == self.advised).map_or(0, |at| at + 1);
        let (mut asked, mut bytes): (Vec<BlockRange>, u32) = (Vec::new(), 0);
        for range in core.queued_uploads(conn).skip(known) {
            if bytes >= ADVISE_BYTES_MAX {
                break;
            }
            bytes += range.len;
            self.advised = Some(range);
            match asked.last_mut() {
                Some(last) if last.piece == range.piece && last.end() == u64::from(range.begin) => {
                    last.len += range.len
                }
                _ => asked.push(range),
            }
        }
        asked
    }

    fn send_staged(&mut self, channel: &Channel) -> Result<u64, ConnError> {
        let bytes = &self.staging[self.staged..];
        let sent = channel.stream.try_send(&[IoSlice::new(bytes)], self.upload.is_some())?;
        self.staged += sent;
        // What has to be said is said at once, but counts.
        self.up.spend(sent as u64);
        Ok(sent as u64)
    }

    /// Sends the next run of the current block.
    fn send_payload(&mut self, channel: &Channel, now: Instant) -> Result<u64, ConnError> {
        let Some(upload) = &mut self.upload else { return Ok(0) };
        let torrent = channel.torrent.clone();
        let Some(storage) = torrent.borrow().storage.clone() else { return Err(ConnError::Closed) };
        let left = upload.range.len - upload.sent;
        let offset =
            storage.info().geometry.piece_offset(upload.range.piece) + u64::from(upload.range.begin + upload.sent);
        let sent = match storage.segments(offset, u64::from(left)).next() {
            // A request past the end is not queued: this cannot be.
            None => return Err(ConnError::Ended("it asked for more than there is".to_owned())),
            Some(Ok(SendSegment::Pad(len))) => {
                let zeros = &ZEROS[..(len as usize).min(ZEROS.len())];
                channel.stream.try_send(&[IoSlice::new(zeros)], true)?
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
                match channel.stream.try_send_file(&file, offset, len as usize) {
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
        channel.handle.moved(now);
        channel.measure(now);
        self.up.spend(sent as u64);
        upload.sent += sent as u32;
        if upload.sent == upload.range.len {
            self.upload = None;
        }
        torrent.borrow_mut().core.payload_sent(channel.id, sent as u64, now);
        Ok(sent as u64)
    }

    fn set_cork(&mut self, channel: &Channel, corked: bool) -> Result<(), ConnError> {
        if self.corked != corked {
            channel.stream.set_cork(corked)?;
            self.corked = corked;
        }
        Ok(())
    }
}

impl Channel {
    fn upload_waits(&self) -> bool {
        self.torrent.borrow().core.has_upload(self.id)
    }
}
