//! What comes in: verified chunks go to their pieces.

use std::time::Instant;

use anabranch_content::geometry::{BlockRange, Geometry};

use super::Content;
use crate::events::FailureKind;
use crate::ppspp::path_table::PathAddress;
use crate::store::buffers::NoPlace;

impl Content {
    /// Datagrams came.
    pub(super) fn received(&mut self, datagrams: &[(PathAddress, &[u8])], now: Instant) {
        if self.stopping {
            return;
        }
        let mut chunks = Vec::new();
        if datagrams.iter().any(|(way, _)| self.peers.is_banned(way.remote)) {
            let good: Vec<_> = datagrams.iter().filter(|(way, _)| !self.peers.is_banned(way.remote)).copied().collect();
            self.core.datagrams(now, &good, &mut chunks);
        } else {
            self.core.datagrams(now, datagrams, &mut chunks);
        }
        // A stream may have begun anew: then these are of the new one.
        self.heed_live(now);
        let payload: usize = chunks.iter().map(|(_, payload)| payload.len()).sum();
        self.rates.received(payload as u64, now);
        for run in chunks.chunk_by(|(one, _), (next, _)| one.checked_add(1) == Some(*next)) {
            self.keep_run(run, now);
        }
        self.pump(now);
        // A chunk of a live stream is handed on, and paced, at times that whoever keeps them has not heard of.
        if self.live.is_some() && self.core.deadline() < self.sleeps_until {
            self.wake.notify_one();
        }
    }

    /// The files are open: the chunk that came before they were goes to its piece.
    pub(super) fn keep_early(&mut self, now: Instant) {
        let Some((chunk, payload)) = self.early.take() else { return };
        if self.buffers.is_some() && !self.core.have().contains(chunk) {
            self.core.hold(chunk);
            self.keep(chunk, &payload, now);
        }
    }

    /// Verified chunks that follow each other go to their pieces.
    fn keep_run(&mut self, mut run: &[(u64, &[u8])], now: Instant) {
        while let [(chunk, payload), rest @ ..] = run {
            match self.keep_together(run, now) {
                0 => {
                    self.keep(*chunk, payload, now);
                    run = rest;
                }
                kept => run = &run[kept..],
            }
        }
    }

    /// Puts as many of these chunks to their place as go there at once. How many; none where the first has a place of its own, or none at
    /// all.
    fn keep_together(&mut self, run: &[(u64, &[u8])], now: Instant) -> usize {
        let front = self.front();
        let (Some(buffers), Some(info), [(first, _), _, ..]) = (&mut self.buffers, &self.info, run) else { return 0 };
        if self.live.is_some() || *first < front {
            return 0;
        }
        let (geometry, block_len) = (&info.geometry, info.geometry.block_length());
        let (piece, begin) = place(geometry, first - front);
        let room = buffers.room_from(begin).min(geometry.data_len(piece).saturating_sub(begin)) / block_len;
        let is_whole = |(_, payload): &&(u64, &[u8])| payload.len() == block_len as usize;
        let count = run.iter().take(room as usize).take_while(is_whole).count();
        let range = BlockRange { piece, begin, len: count as u32 * block_len };
        if count < 2 || buffers.insert_parts(range, run[..count].iter().map(|(_, payload)| *payload), now).is_err() {
            return 0;
        }
        self.count_down(piece, count as u32);
        count
    }

    /// So many chunks of a piece came. The last of them make it whole.
    fn count_down(&mut self, piece: u32, chunks: u32) {
        let Some(info) = &self.info else { return };
        let left = self.store.left.entry(piece).or_insert_with(|| info.geometry.block_count(piece));
        *left = left.saturating_sub(chunks);
        if *left == 0 {
            self.store.left.remove(&piece);
            self.verify(piece);
        }
    }

    /// A verified chunk goes to its piece.
    fn keep(&mut self, chunk: u64, payload: &[u8], now: Instant) {
        if self.live.is_some() {
            return self.keep_live(chunk, payload);
        }
        let front = self.front();
        if chunk < front {
            return self.keep_head(chunk, payload);
        }
        let (Some(buffers), Some(info)) = (&mut self.buffers, &self.info) else {
            // What proved the size was acknowledged: it is not asked for again.
            if self.early.is_none() {
                self.early = Some((chunk, payload.into()));
                return;
            }
            return self.core.store_failed(chunk);
        };
        let (piece, begin) = place(&info.geometry, chunk - front);
        match buffers.insert(BlockRange { piece, begin, len: payload.len() as u32 }, payload, now) {
            Ok(()) => {}
            // It is there, or on its way to the disk: what it counts for is settled there.
            Err(NoPlace::Here | NoPlace::Arriving) => return,
            Err(NoPlace::NoMemory) => {
                self.core.store_failed(chunk);
                return self.relieve_memory();
            }
            // It holds, so it is the link that does not.
            Err(NoPlace::Outside) => return self.contradicted(chunk, payload.len()),
        }
        self.count_down(piece, 1);
    }

    /// A verified chunk of the list of files.
    pub(super) fn keep_head(&mut self, chunk: u64, payload: &[u8]) {
        if self.info.is_some() {
            // What came twice is there.
            return;
        }
        // Whether the list is kept from an earlier run is being looked up: where it is not, the chunk is fetched again.
        let Some(head) = &mut self.head else { return self.core.store_failed(chunk) };
        if !head.put(chunk, payload) {
            return self.core.store_failed(chunk);
        }
        let is_whole = head.missing() == 0;
        self.core.stored(chunk);
        if is_whole {
            self.arrived.notify_waiters();
        }
    }

    /// A chunk that holds is not as long as the link's length has it be. That the last one alone can be; it would be fetched for ever.
    fn contradicted(&mut self, chunk: u64, len: usize) {
        let told = self.link.content_len.unwrap_or(0);
        let proven = chunk * self.link.params.chunk_len().map_or(0, u64::from) + len as u64;
        let reason = format!(
            "the link says that the content has {told} bytes, and it has {proven}: ask who shares it for a new link"
        );
        self.fail(FailureKind::Metadata, reason);
    }
}

/// The piece that a chunk of the files is in, and where it begins there.
fn place(geometry: &Geometry, chunk: u64) -> (u32, u32) {
    let offset = chunk * u64::from(geometry.block_length());
    let piece = geometry.piece_at(offset);
    (piece, (offset - geometry.piece_offset(piece)) as u32)
}
