//! Data on the disk before the record that vouches for it, and what becomes of pieces that the disk did not take.

use std::io::IoSlice;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::ResumeStore;
use crate::bitfield::Bitfield;
use crate::storage::StorageError;

/// Past this many bytes of journal a checkpoint is due: it keeps loading quick. 9 bytes a piece.
pub const JOURNAL_LIMIT_BYTES: u64 = 256 * 1024;

/// How often data in progress should be synced, so that a power cut costs little re-hashing.
pub const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(30);

/// Bytes written again at a time.
const REWRITE_LEN: u64 = 256 * 1024;

impl ResumeStore {
    /// Whether a checkpoint would be worth its cost at `now`.
    pub fn checkpoint_due(&self, now: Instant) -> bool {
        let state = self.lock();
        let grown = state.journal.as_ref().map_or(0, |journal| journal.end - journal.start);
        let rested = state.saved_at.is_none_or(|at| now.saturating_duration_since(at) >= CHECKPOINT_INTERVAL);
        grown >= JOURNAL_LIMIT_BYTES || rested && (grown > 0 || state.dirty)
    }

    /// Syncs the data and then the state that vouches for it. Takes as long as the disk takes: call it from a thread that
    /// can wait. Writers and [`ResumeStore::verified`] go on meanwhile.
    pub fn checkpoint(&self) -> Result<(), StorageError> {
        let was_resting = self.storage.is_resting();
        let synced = self.sync()?;
        self.save_snapshot(Some(synced), false)?;
        if was_resting {
            self.rest();
        }
        Ok(())
    }

    /// Syncs all data, and answers the pieces that are on disk by now.
    pub(super) fn sync(&self) -> Result<Bitfield, StorageError> {
        let _syncing = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let synced = self.lock().resume.have.clone();
        self.storage.flush_all().map_err(|failed| {
            self.distrust(&failed.files);
            failed.error
        })?;
        Ok(synced)
    }

    /// A sync of `files` failed: nobody knows what is on disk of the pieces that were written to them since the last one that did
    /// not. They are not good any more until they are written and hashed again: see [`ResumeStore::distrusted`]. Nor are those that
    /// were written to and get their verdict only now: it may be on bytes that never were on the disk.
    fn distrust(&self, files: &[usize]) {
        let info = Arc::clone(self.storage.info());
        let mut state = self.lock();
        let aside = files.contains(&info.files.len());
        let concerns = |piece: &u32| aside || info.files_of_piece(*piece).any(|(file, _)| files.contains(&file));
        let unsynced = |piece: &u32| !state.resume.durable.get(*piece);
        let pieces: Vec<u32> = state.resume.have.iter_ones().filter(unsynced).filter(concerns).collect();
        for piece in pieces {
            state.resume.have.clear(piece);
            state.resume.recheck.set(piece);
        }
        let unproven: Vec<u32> = state.unproven.iter_ones().filter(concerns).collect();
        for piece in unproven {
            state.doubted.set(piece);
        }
        drop(state);
        // A disk that does not take this either is left to the next write to tell of.
        let _ = self.save_snapshot(None, false);
    }

    /// Pieces that have to be written and hashed again, after a failed sync.
    pub fn distrusted(&self) -> Vec<u32> {
        self.lock().resume.recheck.iter_ones().collect()
    }

    /// Writes a piece's bytes back to where they were just read, whatever they are: only a write makes the kernel try the disk
    /// again. To be hashed after that.
    pub fn rewrite(&self, piece: u32) -> Result<(), StorageError> {
        let geometry = &self.storage.info().geometry;
        let (mut offset, mut left) = (geometry.piece_offset(piece), u64::from(geometry.data_len(piece)));
        let mut buffer = vec![0; left.min(REWRITE_LEN) as usize];
        while left > 0 {
            let len = left.min(REWRITE_LEN);
            let bytes = &mut buffer[..len as usize];
            self.storage.read_at(offset, bytes)?;
            self.write_at(offset, &[IoSlice::new(bytes)])?;
            (offset, left) = (offset + len, left - len);
        }
        Ok(())
    }
}
