//! Whether digests go in one datagram with their chunk. That is shorter, but a way may be narrower than anybody tells, and then it is lost
//! each time: a black hole of packets that are too long (RFC 8899, "Black Hole Detection").

use std::ops::Range;

/// Chunks that have to arrive by themselves before it is tried again; twice as many each time that it fails.
const AGAIN_AFTER: u64 = 64;
const AGAIN_AFTER_MAX: u64 = 4096;

/// What a channel knows of that.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beside {
    failing: Option<Failing>,
}

#[derive(Clone, Copy, Debug)]
struct Failing {
    /// The chunk by which it is tried.
    probe: Option<u64>,
    /// Chunks that arrived since it failed last, and how many have to.
    arrived: u64,
    again_after: u64,
}

impl Beside {
    /// Whether the next may go so.
    pub(super) fn may(&self) -> bool {
        self.failing.is_none_or(|failing| failing.probe.is_none() && failing.arrived >= failing.again_after)
    }

    /// A chunk left with its digests beside it.
    pub(super) fn left(&mut self, chunk: u64) {
        if let Some(failing) = &mut self.failing {
            failing.probe = Some(chunk);
        }
    }

    /// Chunks arrived.
    pub(super) fn arrived(&mut self, chunks: &Range<u64>) {
        let Some(failing) = &mut self.failing else { return };
        failing.arrived += chunks.end - chunks.start;
        if failing.probe.is_some_and(|probe| chunks.contains(&probe)) {
            self.failing = None;
        }
    }

    /// Chunks were lost; `all` that were on their way, and nothing was heard since.
    pub(super) fn lost(&mut self, chunks: &[u64], all: bool) {
        match &mut self.failing {
            None if all => self.failing = Some(Failing { probe: None, arrived: 0, again_after: AGAIN_AFTER }),
            Some(failing) if failing.probe.is_some_and(|probe| chunks.contains(&probe)) => {
                (failing.probe, failing.arrived) = (None, 0);
                failing.again_after = (failing.again_after * 2).min(AGAIN_AFTER_MAX);
            }
            _ => {}
        }
    }
}
