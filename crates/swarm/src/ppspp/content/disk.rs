//! Pieces on their way to the disk, and what happens where it refuses.

use std::sync::Arc;
use std::time::Instant;

use anabranch_content::hash::ExpectedHash;
use anabranch_content::storage::{Op, StorageError};

use super::{Content, Stalled};
use crate::events::{EventKind, FailureKind, PauseCause};
use crate::ppspp::describe::chunks_of;
use crate::ppspp::head::Head;
use crate::ppspp::nodes::tree_path;
use crate::store::disk::{Outcome, SpillJob, Spilled, Verified, VerifyJob};
use crate::store::may_pass;

/// Memory counts as short below this part of it.
const MEMORY_SHORT_DIVISOR: u64 = 8;
/// Part of the memory that chunks on their way may take, of one content: pieces that fill beside each other need the rest.
const ROOM_DIVISOR: u64 = 2;

impl Content {
    /// Tells the core how much may be asked for.
    pub(super) fn update_room(&mut self) {
        // What a live stream takes, its window bounds.
        if self.live.is_some() {
            return;
        }
        let resources = self.resources();
        let free = resources.pools.free_bytes();
        if self.buffers.is_some()
            && free < resources.config.buffer_bytes / MEMORY_SHORT_DIVISOR
            && self.store.verifying == 0
        {
            self.relieve_memory();
        }
        let chunk_len = self.link.params.chunk_len().map_or(1, u64::from);
        // Before there are files, one chunk at a time tells the size, and a folder's list of them is what is wanted.
        let room = match &self.buffers {
            Some(_) => free / ROOM_DIVISOR / chunk_len,
            None => self.head.as_ref().filter(|_| self.info.is_none()).map_or(0, Head::missing),
        };
        self.core.set_room(room);
    }

    /// Memory is short: chunks that wait for the rest of their piece move to disk.
    pub(super) fn relieve_memory(&mut self) {
        if self.store.spilling > 0 || self.store.is_paused {
            return;
        }
        let (Some(buffers), Some(resume)) = (&mut self.buffers, &self.resume) else { return };
        let resume = Arc::clone(resume);
        for spill in buffers.spill() {
            self.store.spilling += 1;
            self.resources().disk.spill(SpillJob { content: self.id, spill, resume: Arc::clone(&resume) });
        }
    }

    /// Hands a complete piece to the disk threads. Each of its chunks was verified; what proves them is on disk before it.
    pub(super) fn verify(&mut self, piece: u32) {
        let is_kept = self.core.tree().nodes().flush();
        let (Some(buffers), Some(resume)) = (&mut self.buffers, &self.resume) else { return };
        let Some(whole) = buffers.take(piece) else { return self.store.waiting.push(piece) };
        let job = VerifyJob {
            content: self.id,
            piece,
            whole,
            expected: ExpectedHash::default(),
            digests: false,
            read_soon: self.readers.is_soon(piece) || self.core.peer_stats().any(|peer| peer.wants),
            resume: Arc::clone(resume),
            geometry: resume.storage().info().geometry.clone(),
        };
        match is_kept {
            Ok(()) => {
                self.store.verifying += 1;
                self.resources().disk.verify(job);
            }
            Err(source) => {
                let path = tree_path(resume.path());
                let error = StorageError::new(Op::Write, &path, source);
                self.stall(Stalled::Piece(Box::new(job)), &error);
            }
        }
    }

    /// The disk threads answered.
    pub(crate) fn verified(&mut self, verified: Verified, now: Instant) {
        self.store.verifying = self.store.verifying.saturating_sub(1);
        let piece = verified.piece;
        match verified.outcome {
            Outcome::Good { .. } => {
                self.store.has_written = true;
                self.have.set(piece);
                self.arrived.notify_waiters();
                self.tell(EventKind::Piece { index: piece });
                if let Some(info) = &self.info {
                    self.core.stored_range(chunks_of(info, self.link.manifest_chunks(), piece));
                }
                if self.has_deadlines() {
                    self.aim();
                }
                self.storage_works();
            }
            // Nothing is hashed there: every chunk was before.
            Outcome::Bad { .. } => self.lose(&[piece]),
            Outcome::Failed { error, job } => self.stall(Stalled::Piece(job), &error),
        }
        self.pump(now);
    }

    /// A spill is done; a piece may have waited for it.
    pub(crate) fn spilled(&mut self, spilled: Spilled, now: Instant) {
        self.store.spilling = self.store.spilling.saturating_sub(1);
        match spilled.failed {
            Some((error, job)) => self.stall(Stalled::Spill(job), &error),
            None => {
                if let Some(buffers) = &mut self.buffers {
                    buffers.spilled(spilled.piece);
                }
                if let Some(at) = self.store.waiting.iter().position(|waiting| *waiting == spilled.piece) {
                    self.store.waiting.swap_remove(at);
                    self.verify(spilled.piece);
                }
                self.storage_works();
            }
        }
        self.pump(now);
    }

    fn stall(&mut self, job: Stalled, error: &StorageError) {
        self.store.is_probing = false;
        // A place that never took anything is a mistake; one that did changed, and may change back.
        if error.needs_a_choice() || !self.store.has_written && !may_pass(error) {
            return self.fail(FailureKind::Storage, error.to_string());
        }
        self.store.stalled.push(job);
        if !std::mem::replace(&mut self.store.is_paused, true) {
            self.update_hold();
            self.tell(EventKind::Paused { cause: PauseCause::Storage, reason: error.to_string() });
        }
    }

    /// Tries storage again with one thing that it refused.
    pub(crate) fn retry_storage(&mut self) {
        if !self.store.is_paused || self.store.is_probing || self.stopping {
            return;
        }
        if let Some(job) = self.store.stalled.pop() {
            self.store.is_probing = true;
            self.hand_in(job);
        }
    }

    fn storage_works(&mut self) {
        if !std::mem::take(&mut self.store.is_probing) {
            return;
        }
        for job in std::mem::take(&mut self.store.stalled) {
            self.hand_in(job);
        }
        self.storage_works_again();
    }

    /// What had it wait is over, if nothing else has.
    pub(super) fn storage_works_again(&mut self) {
        self.store.is_paused = !self.store.stalled.is_empty() || self.resume.is_some() && !self.in_doubt.is_empty();
        if !self.store.is_paused {
            self.update_hold();
            self.tell(EventKind::Resumed);
        }
    }

    fn hand_in(&mut self, job: Stalled) {
        let resources = self.resources();
        match job {
            Stalled::Piece(job) => {
                self.store.verifying += 1;
                resources.disk.verify(*job);
            }
            Stalled::Spill(job) => {
                self.store.spilling += 1;
                resources.disk.spill(*job);
            }
        }
    }
}
