//! What comes in: verified chunks go to their pieces.

use std::time::Instant;

use anabranch_content::geometry::BlockRange;

use super::Content;
use crate::ppspp::path_table::PathAddress;
use crate::store::buffers::NoPlace;

impl Content {
    /// Datagrams came.
    pub(crate) fn received(&mut self, datagrams: &[(PathAddress, &[u8])], now: Instant) {
        if self.stopping {
            return;
        }
        let mut chunks = Vec::new();
        let mut ways: Vec<PathAddress> = datagrams.iter().map(|(way, _)| *way).collect();
        ways.dedup();
        if ways.iter().any(|way| self.peers.is_banned(way.remote)) {
            let good: Vec<_> = datagrams.iter().filter(|(way, _)| !self.peers.is_banned(way.remote)).copied().collect();
            self.core.datagrams(now, &good, &mut chunks);
        } else {
            self.core.datagrams(now, datagrams, &mut chunks);
        }
        let payload_len = chunks.iter().map(|(_, payload)| payload.len() as u64).sum();
        self.rates.received(payload_len, now);
        let mut rest = &chunks[..];
        while let Some((first, _)) = rest.first() {
            let follows = |(ahead, found): (u64, &(u64, &[u8]))| found.0 == first + ahead;
            let run = (0..).zip(rest).take_while(|found| follows(*found)).count();
            let (now_kept, later) = rest.split_at(run);
            self.keep(*first, now_kept, now);
            rest = later;
        }
        self.pump(now);
    }

    /// The files are open: the chunk that came before they were goes to its piece.
    pub(in crate::ppspp) fn keep_early(&mut self, now: Instant) {
        let Some((chunk, payload)) = self.early.take() else { return };
        if self.buffers.is_some() && !self.core.have().contains(chunk) {
            self.core.hold(chunk);
            self.keep(chunk, &[(chunk, &payload)], now);
        }
    }

    /// Verified chunks that follow each other go to their pieces.
    fn keep(&mut self, first: u64, chunks: &[(u64, &[u8])], now: Instant) {
        if self.live.is_some() {
            return chunks.iter().for_each(|(chunk, payload)| self.keep_live(*chunk, payload));
        }
        let Some(info) = self.info.clone().filter(|_| self.buffers.is_some()) else {
            for (chunk, payload) in chunks {
                // What proved the size was acknowledged: it is not asked for again.
                if self.early.is_none() {
                    self.early = Some((*chunk, (*payload).into()));
                } else {
                    self.core.store_failed(*chunk);
                }
            }
            return;
        };
        let mut rest = chunks;
        let mut at = first;
        while !rest.is_empty() {
            let piece = info.geometry.piece_at(at * u64::from(info.geometry.block_length()));
            let count = (super::super::chunks_of(&info, piece).end - at).min(rest.len() as u64);
            let (now_kept, later) = rest.split_at(count as usize);
            self.keep_in_piece(piece, now_kept, now);
            (rest, at) = (later, at + count);
        }
    }

    fn keep_in_piece(&mut self, piece: u32, chunks: &[(u64, &[u8])], now: Instant) {
        let (Some(buffers), Some(info)) = (&mut self.buffers, &self.info) else { return };
        let (geometry, mut kept, mut is_short) = (&info.geometry, 0, false);
        for (chunk, payload) in chunks {
            let begin = (chunk * u64::from(geometry.block_length()) - geometry.piece_offset(piece)) as u32;
            match buffers.insert(BlockRange { piece, begin, len: payload.len() as u32 }, payload, now) {
                Ok(()) => kept += 1,
                // It is there, or on its way to the disk: what it counts for is settled there.
                Err(NoPlace::Here | NoPlace::Arriving) => {}
                Err(NoPlace::NoMemory | NoPlace::Outside) => {
                    self.core.store_failed(*chunk);
                    is_short = true;
                }
            }
        }
        if kept > 0 {
            let left = self.store.left.entry(piece).or_insert_with(|| geometry.block_count(piece));
            *left -= kept;
            if *left == 0 {
                self.store.left.remove(&piece);
                self.verify(piece);
            }
        }
        if is_short {
            self.relieve_memory();
        }
    }
}
