//! What comes in: verified chunks go to their pieces.

use std::time::Instant;

use anabranch_content::geometry::BlockRange;

use super::Content;
use crate::events::FailureKind;
use crate::ppspp::path_table::PathAddress;
use crate::store::buffers::NoPlace;

impl Content {
    /// Datagrams came.
    pub(crate) fn received(&mut self, datagrams: &[(PathAddress, &[u8])], now: Instant) {
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
        let payload: usize = chunks.iter().map(|(_, payload)| payload.len()).sum();
        self.rates.received(payload as u64, now);
        for (chunk, payload) in chunks {
            self.keep(chunk, payload, now);
        }
        self.pump(now);
        // A chunk of a live stream is handed on, and paced, at times that whoever keeps them has not heard of.
        if self.live.is_some() && self.core.deadline() < self.sleeps_until {
            self.wake.notify_one();
        }
    }

    /// The files are open: the chunk that came before they were goes to its piece.
    pub(in crate::ppspp) fn keep_early(&mut self, now: Instant) {
        let Some((chunk, payload)) = self.early.take() else { return };
        if self.buffers.is_some() && !self.core.have().contains(chunk) {
            self.core.hold(chunk);
            self.keep(chunk, &payload, now);
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
        let geometry = &info.geometry;
        let offset = (chunk - front) * u64::from(geometry.block_length());
        let piece = geometry.piece_at(offset);
        let begin = (offset - geometry.piece_offset(piece)) as u32;
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
        let left = self.store.left.entry(piece).or_insert_with(|| geometry.block_count(piece));
        *left -= 1;
        if *left == 0 {
            self.store.left.remove(&piece);
            self.verify(piece);
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
