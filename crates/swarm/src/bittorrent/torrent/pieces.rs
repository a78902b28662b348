//! Pieces on their way to the disk, and the memory that they take.

use std::sync::Arc;
use std::time::Instant;

use anabranch_bittorrent::torrent::PieceOutcome;

use super::{MEMORY_SHORT_DIVISOR, Stalled, TorrentDriver};
use crate::events::EventKind;
use crate::store::disk::{Outcome, SpillJob, Spilled, Verified, VerifyJob};

impl TorrentDriver {
    /// Tells the core how much more may be asked for.
    pub(crate) fn update_room(&mut self) {
        let own = self.core.requested_bytes();
        let total = &self.resources.requested_bytes;
        total.set(total.get() - self.requested_counted + own);
        self.requested_counted = own;
        let free = self.resources.pools.free_bytes();
        self.core.set_room(free.saturating_sub(total.get()));
        if free < self.resources.config.buffer_bytes / MEMORY_SHORT_DIVISOR && self.verifying == 0 {
            self.relieve_memory();
        }
    }

    /// Memory is short: chunks that wait for the rest of their piece move to disk. Not while earlier ones are on their way,
    /// which will relieve it too, and not while the disk takes nothing.
    pub(crate) fn relieve_memory(&mut self) {
        if self.spilling == 0 && !self.core.is_paused() {
            self.spill();
        }
    }

    /// Moves the chunks of one piece to disk; answers whether there were any.
    pub(super) fn spill(&mut self) -> bool {
        let (Some(buffers), Some(resume)) = (&mut self.buffers, &self.resume) else { return false };
        let spills = buffers.spill();
        let any = !spills.is_empty();
        for spill in spills {
            self.spilling += 1;
            self.resources.disk.spill(SpillJob { content: self.id, spill, resume: Arc::clone(resume) });
        }
        any
    }

    /// A spill is done; a piece may have waited for it.
    pub(crate) fn spilled(&mut self, spilled: Spilled, now: Instant) {
        self.spilling = self.spilling.saturating_sub(1);
        match spilled.failed {
            Some((error, job)) => self.stall(Stalled::Spill(job), &error, now),
            None => {
                if let Some(buffers) = &mut self.buffers {
                    buffers.spilled(spilled.piece);
                }
                if let Some(at) = self.waiting.iter().position(|waiting| *waiting == spilled.piece) {
                    self.waiting.swap_remove(at);
                    self.verify(spilled.piece);
                }
                self.storage_works(now);
            }
        }
        self.update_room();
        self.core.fill_starved(now);
        self.pump(now);
    }

    /// Hands a complete piece to the disk threads.
    pub(super) fn verify(&mut self, piece: u32) {
        let (Some(buffers), Some(resume)) = (&mut self.buffers, &self.resume) else { return };
        let Some(expected) = self.core.expected_hash(piece) else { return };
        let Some(whole) = buffers.take(piece) else {
            self.waiting.push(piece);
            return;
        };
        self.verifying += 1;
        self.resources.disk.verify(VerifyJob {
            content: self.id,
            piece,
            whole,
            expected,
            digests: self.core.wants_digests(piece),
            read_soon: self.core.is_anyone_interested() || self.readers.is_soon(piece),
            resume: Arc::clone(resume),
            geometry: resume.storage().info().geometry.clone(),
        });
    }

    /// The disk threads answered.
    pub(crate) fn verified(&mut self, verified: Verified, now: Instant) {
        self.verifying = self.verifying.saturating_sub(1);
        self.update_room();
        match verified.outcome {
            Outcome::Good { digests } => {
                self.has_written = true;
                self.tell(EventKind::Piece { index: verified.piece });
                self.core.piece_verified(verified.piece, PieceOutcome::Good { digests }, now);
                self.arrived.notify_waiters();
                self.storage_works(now);
            }
            Outcome::Bad { digests } => {
                self.tell(EventKind::PieceFailed { index: verified.piece });
                if let Some(buffers) = &mut self.buffers {
                    buffers.reopen(verified.piece);
                }
                self.core.piece_verified(verified.piece, PieceOutcome::Bad { digests }, now);
                self.storage_works(now);
            }
            Outcome::Failed { error, job } => self.stall(Stalled::Piece(job), &error, now),
        }
        self.pump(now);
    }
}
