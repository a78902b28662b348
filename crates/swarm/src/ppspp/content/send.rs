//! What leaves: datagrams in long calls, chunks read behind their heads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use anabranch_content::storage::{ErrorKind, Storage, StorageError};
use anabranch_ppspp::swarm::Transmit;
use anabranch_transport::datagram::Packet;

use super::Content;
use crate::events::EventKind;
use crate::ppspp::path_table::{PathAddress, TooLong};
use crate::store::disk::Reply;
use crate::store::readahead;

/// Packets that leave with one call: two full bursts.
const SEND_MAX: usize = 128;
/// Bytes of chunks read for one call.
const SEND_BYTES_MAX: usize = 128 * 1024;

/// Why chunks are not read.
enum Unread {
    /// A disk thread has to read them first.
    Cold,
    /// They are not there any more.
    Gone,
    /// The disk refuses them, or they are not what was verified.
    Failed(StorageError),
}

impl Content {
    pub(super) fn transmit(&mut self) {
        loop {
            let mut left: VecDeque<Transmit<PathAddress>> = VecDeque::new();
            while left.len() < SEND_MAX
                && let Some(transmit) = self.core.transmit()
            {
                left.push_back(transmit);
            }
            let is_last = left.is_empty();
            if !self.is_reading_ahead {
                // What was held back goes first.
                let late = std::mem::take(&mut self.held_back);
                left = late.into_iter().chain(left).collect();
            }
            while let Some(first) = left.front() {
                let way = first.peer;
                let count = left.iter().take(SEND_MAX).take_while(|transmit| transmit.peer == way).count();
                let rest = left.split_off(count);
                let unsent = self.send(way, left);
                self.held_back.extend(unsent);
                left = rest;
            }
            if is_last {
                return;
            }
        }
    }

    /// Sends datagrams to one peer; gives back what has to wait.
    fn send(
        &mut self,
        way: PathAddress,
        mut transmits: VecDeque<Transmit<PathAddress>>,
    ) -> VecDeque<Transmit<PathAddress>> {
        if self.is_socket_full {
            return transmits;
        }
        let mut later = VecDeque::new();
        let mut bodies: Vec<std::ops::Range<usize>> = Vec::with_capacity(transmits.len());
        self.scratch.clear();
        let (front, mut at, mut failed) = (self.front(), 0, None);
        let is_open = self.core.has_channel(&way);
        while at < transmits.len() {
            let Some(chunk) = transmits[at].chunk else {
                bodies.push(0..0);
                at += 1;
                continue;
            };
            // Chunks that follow each other are read together.
            let next =
                |(ahead, transmit): (usize, &Transmit<PathAddress>)| transmit.chunk == Some(chunk + ahead as u64);
            let run = transmits.iter().skip(at).enumerate().take_while(|found| next(*found)).count();
            // A peer whose channel is closed waits for no chunk: one that cannot be read closes all, while others wait to leave.
            if !is_open {
                drop(transmits.drain(at..at + run));
                continue;
            }
            if self.live.is_some() {
                let mut scratch = std::mem::take(&mut self.scratch);
                match self.put_live(chunk, run, &mut scratch) {
                    Some(run_bodies) => {
                        bodies.extend(run_bodies);
                        at += run;
                    }
                    // The window went on.
                    None => drop(transmits.drain(at..at + run)),
                }
                self.scratch = scratch;
                continue;
            }
            // What stands in front of the files is read by itself.
            let run = match front.saturating_sub(chunk) {
                0 => run,
                left => run.min(usize::try_from(left).unwrap_or(run)),
            };
            match self.read(chunk, run) {
                Ok(start) => {
                    let len = self.link.params.chunk_len().unwrap_or(0) as usize;
                    let end = self.scratch.len();
                    bodies.extend((0..run).map(|ahead| start + ahead * len..(start + (ahead + 1) * len).min(end)));
                    at += run;
                }
                Err(Unread::Cold) => later.extend(transmits.drain(at..at + run)),
                Err(Unread::Gone) => drop(transmits.drain(at..at + run)),
                Err(Unread::Failed(error)) => {
                    drop(transmits.drain(at..at + run));
                    failed = Some((chunk, error));
                }
            }
        }
        let packets: Vec<Packet<'_>> = transmits
            .iter()
            .zip(&bodies)
            .map(|(transmit, body)| Packet { head: &transmit.datagram, body: &self.scratch[body.clone()] })
            .collect();
        let (mut sent, mut is_too_long, (_, alone)) = (0, false, self.core.chunk_lens());
        while sent < packets.len() {
            match self.hub.send(&way, &packets[sent..]) {
                Ok(0) => break,
                Ok(count) => sent += count,
                Err(TooLong) => {
                    // Digests beside it go ahead when it leaves again.
                    let len = packets[sent].head.len() + packets[sent].body.len();
                    is_too_long |= transmits[sent].chunk.is_some() && len <= alone;
                    sent += 1;
                }
            }
        }
        let payload: usize = bodies[..sent].iter().map(std::ops::Range::len).sum();
        self.rates.sent(payload as u64, Instant::now());
        if is_too_long && self.conns.get_mut(&way).is_some_and(|conn| !std::mem::replace(&mut conn.is_told, true)) {
            let reason = "its way does not take datagrams as long as this content's chunks: share it anew with a shorter \
                          --chunk-length";
            self.tell(EventKind::PeerFailed { address: way.remote, reason: reason.to_owned(), is_final: true });
        }
        if sent < transmits.len() {
            self.is_socket_full = true;
            later.extend(transmits.split_off(sent));
        }
        // What it has all channels say goes over the scratch too, which what was read before leaves from.
        if let Some((chunk, error)) = failed {
            self.cannot_read(chunk, &error);
        }
        later
    }

    /// Reads a run of chunks behind what is in the scratch already; answers where they begin there.
    fn read(&mut self, chunk: u64, run: usize) -> Result<usize, Unread> {
        let front = self.front();
        if chunk < front {
            return self.read_head(chunk..chunk + run as u64).ok_or(Unread::Gone);
        }
        let (Some(storage), Some(info)) = (self.storage.clone(), self.info.as_ref()) else { return Err(Unread::Gone) };
        let block = u64::from(info.geometry.block_length());
        let (offset, total) = ((chunk - front) * block, info.geometry.total());
        let len = (run as u64 * block).min(total.checked_sub(offset).ok_or(Unread::Gone)?);
        // It may have been lost since it was promised.
        let last = info.geometry.piece_at(offset + len.saturating_sub(1));
        if !(info.geometry.piece_at(offset)..=last).all(|piece| self.have.get(piece)) {
            return Err(Unread::Gone);
        }
        let start = self.scratch.len();
        if start + len as usize > SEND_BYTES_MAX.max(block as usize) * 2 {
            // Never more than two bursts' worth of the longest chunks.
            self.scratch.reserve_exact(len as usize);
        }
        // What a disk thread could not read is found out here, once, instead of being asked for again and again.
        let was_tried = !self.is_reading_ahead && self.readahead_offset == Some(offset);
        if !was_tried && !readahead::is_cached(&storage, offset, len) {
            self.read_ahead(storage, offset, len, total);
            return Err(Unread::Cold);
        }
        self.scratch.resize(start + len as usize, 0);
        // Looked at when it was read: a change before that is noticed.
        let read = storage.read_at(offset, &mut self.scratch[start..]);
        match read.and_then(|()| storage.check_seals(offset, len)) {
            Ok(()) => Ok(start),
            Err(error) => {
                self.scratch.truncate(start);
                Err(Unread::Failed(error))
            }
        }
    }

    /// Puts chunks of the list behind what is in the scratch, as [`Content::read`] does those of files.
    fn read_head(&mut self, chunks: std::ops::Range<u64>) -> Option<usize> {
        let start = self.scratch.len();
        self.scratch.extend_from_slice(self.head.as_ref()?.get(chunks)?);
        Some(start)
    }

    /// The chunk cannot be read, or is not what was verified.
    fn cannot_read(&mut self, chunk: u64, error: &StorageError) {
        let Some(storage) = self.storage.clone() else { return };
        let is_change = matches!(error.kind, ErrorKind::Changed | ErrorKind::Vanished);
        let is_of = |file: &usize| storage.file_path(*file) == error.path;
        match (0..storage.info().files.len()).find(is_of).filter(|_| is_change) {
            Some(file) => self.files_changed(&[file]),
            None => self.lost(chunk, &error.to_string()),
        }
    }

    /// Has a disk thread read what is to be sent.
    fn read_ahead(&mut self, storage: Arc<Storage>, offset: u64, len: u64, end: u64) {
        if std::mem::replace(&mut self.is_reading_ahead, true) {
            return;
        }
        self.readahead_offset = Some(offset);
        let content = self.id;
        let conn = anabranch_paths::ConnId(0);
        self.resources.disk.run(content, move || {
            readahead::read(&storage, offset, len, end);
            Reply::ReadAhead { content, conn }
        });
    }

    /// What was to be sent was read.
    pub(crate) fn readahead_done(&mut self) {
        self.is_reading_ahead = false;
        self.pump(Instant::now());
    }
}
