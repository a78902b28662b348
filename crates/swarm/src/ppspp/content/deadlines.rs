//! What is needed when, and what is asked for first.

use std::time::Instant;

use anabranch_ppspp::link::Link;
use anabranch_ppspp::picker::Picker;

use super::Content;
use crate::ppspp::describe::chunks_of;
use crate::store::readers::Deadline;

impl Content {
    /// When pieces are needed; `None` takes that back. What is needed first is asked for in order, once all of them are as they are to
    /// be: halfway the next piece has its new deadline, the one behind it its old, earlier one, and seems to be needed first.
    pub(crate) fn set_deadlines(&mut self, deadlines: &[Deadline]) {
        for (piece, deadline) in deadlines {
            match deadline {
                Some(deadline) => _ = self.deadlines.insert(*piece, *deadline),
                None => _ = self.deadlines.remove(piece),
            }
        }
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
        let first =
            self.deadlines.iter().min_by_key(|(piece, deadline)| (**deadline, **piece)).map(|(piece, _)| *piece);
        let picker = match first {
            Some(first) => {
                // As far as pieces with deadlines follow each other.
                let last = (first..have.len()).take_while(|at| have.get(*at) || self.deadlines.contains_key(at)).last();
                let of = |piece| chunks_of(info, front, piece);
                let (position, end) = (of(first).start, of(last.unwrap_or(first)).end);
                Picker::OnDemand { position, high: end - position, middle: end - position }
            }
            None if self.options.sequential => Picker::Sequential(0),
            None => default_picker(&self.link, self.resources.config.seed),
        };
        self.core.set_picker(picker);
        self.core.hurry(Instant::now());
    }
}

/// Each fetches from another place on, so that those who fetch at once have something for each other.
fn default_picker(link: &Link, seed: u64) -> Picker {
    let chunks = link.content_len.zip(link.params.chunk_len()).map_or(0, |(len, chunk)| len.div_ceil(chunk.into()));
    Picker::RarestFirst(fastrand::Rng::with_seed(seed).u64(..chunks.max(1)) & !0xff)
}
