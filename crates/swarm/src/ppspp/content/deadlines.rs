//! What is needed when, and what is asked for first.

use std::ops::Range;
use std::time::Instant;

use anabranch_ppspp::link::Link;
use anabranch_ppspp::picker::Picker;

use super::Content;
use crate::ppspp::describe::chunks_of;
use crate::store::readers::Deadline;

impl Content {
    /// When pieces are needed; `None` takes that back. `front` is where who moved last is: what has no deadline is fetched from there on.
    pub(crate) fn set_deadlines(&mut self, deadlines: &[Deadline], front: Option<u32>) {
        for (piece, deadline) in deadlines {
            match deadline {
                Some(deadline) => _ = self.deadlines.insert(*piece, *deadline),
                None => _ = self.deadlines.remove(piece),
            }
        }
        self.played_front = front.unwrap_or(self.played_front);
        self.aim();
    }

    /// Whether anything has a deadline.
    pub(super) fn has_deadlines(&self) -> bool {
        !self.deadlines.is_empty()
    }

    /// Asks for what is needed first.
    pub(crate) fn aim(&mut self) {
        let front = self.front();
        let Some(info) = &self.info else { return };
        let have = &self.have;
        self.deadlines.retain(|piece, _| *piece < have.len() && !have.get(*piece));
        let mut order: Vec<(Instant, u32)> = self.deadlines.iter().map(|(piece, at)| (*at, *piece)).collect();
        order.sort_unstable();
        let mut needed: Vec<Range<u64>> = Vec::new();
        for (_, piece) in order {
            let chunks = chunks_of(info, front, piece);
            match needed.last_mut() {
                Some(before) if before.end == chunks.start => before.end = chunks.end,
                _ => needed.push(chunks),
            }
        }
        let picker = match needed.is_empty() {
            false => {
                let position = chunks_of(info, front, self.played_front).start;
                Picker::OnDemand { position, high: 0, middle: needed.iter().map(|run| run.end - run.start).sum() }
            }
            true if self.options.sequential => Picker::Sequential(0),
            true => default_picker(&self.link, self.resources.config.seed),
        };
        self.core.set_picker(picker);
        self.core.set_needed(needed, Instant::now());
    }
}

/// Each fetches from another place on, so that those who fetch at once have something for each other.
fn default_picker(link: &Link, seed: u64) -> Picker {
    let chunks = link.content_len.zip(link.params.chunk_len()).map_or(0, |(len, chunk)| len.div_ceil(chunk.into()));
    Picker::RarestFirst(fastrand::Rng::with_seed(seed).u64(..chunks.max(1)) & !0xff)
}
