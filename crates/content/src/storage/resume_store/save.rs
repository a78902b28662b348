//! The file itself: records at its end, and a new snapshot in its place.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::Instant;

use super::{ResumeStore, now_ns};
use crate::bitfield::Bitfield;
use crate::storage::resume::{Record, snapshot_crc};
use crate::storage::{Lease, Op, Resume, StorageError};

/// The resume file, open for more records.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) file: File,
    /// Where the next record goes: after a failed append the next one overwrites its remains.
    pub(super) end: u64,
    pub(super) start: u64,
    pub(super) crc: u32,
}

impl ResumeStore {
    /// On disk first, then in memory.
    pub(super) fn append(&self, record: Record) -> Result<(), StorageError> {
        let mut state = self.lock();
        if state.journal.is_none() {
            drop(state);
            self.save_snapshot(None, false)?;
            state = self.lock();
        }
        let Some(journal) = &mut state.journal else {
            let source = io::Error::from_raw_os_error(libc::ENOENT);
            return Err(StorageError::new(Op::Write, &self.path, source));
        };
        journal.append(record).map_err(|source| StorageError::new(Op::Write, &self.path, source))?;
        match record {
            Record::Verified(piece) => state.resume.note_verified(piece),
            Record::Failed(piece) => state.resume.note_failed(piece),
            Record::Lease(file, lease) => state.resume.note_lease(file, lease),
        }
        if let Some(since) = &mut state.since_save {
            since.push(record);
        }
        Ok(())
    }

    /// Replaces the file. `synced`: pieces whose bytes are on disk by now. `at_rest`: no write is under way.
    pub(super) fn save_snapshot(&self, synced: Option<Bitfield>, at_rest: bool) -> Result<(), StorageError> {
        self.storage.wake()?;
        let _saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = {
            let mut state = self.lock();
            if state.is_deleted {
                return Ok(());
            }
            self.restamp(&mut state.resume, at_rest);
            if let Some(synced) = synced {
                // A piece may have failed meanwhile.
                for piece in synced.iter_ones().filter(|piece| state.resume.have.get(*piece)).collect::<Vec<_>>() {
                    state.resume.durable.set(piece);
                }
            }
            state.dirty = false;
            state.since_save = Some(Vec::new());
            state.resume.encode()
        };
        let saved = self.replace(&snapshot);
        if let Err(source) = saved {
            let mut state = self.lock();
            state.since_save = None;
            state.dirty = true;
            return Err(StorageError::new(Op::Write, &self.path, source));
        }
        Ok(())
    }

    fn replace(&self, snapshot: &[u8]) -> io::Result<()> {
        let temporary = temporary(&self.path);
        let written = self.write_and_rename(snapshot, &temporary);
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        written
    }

    fn write_and_rename(&self, snapshot: &[u8], temporary: &Path) -> io::Result<()> {
        let _ = std::fs::remove_file(temporary);
        let file = OpenOptions::new().write(true).create_new(true).open(temporary)?;
        file.write_all_at(snapshot, 0)?;
        file.sync_data()?;
        let start = snapshot.len() as u64;
        let mut journal = Journal { file, end: start, start, crc: snapshot_crc(snapshot) };
        {
            let mut state = self.lock();
            for record in state.since_save.iter().flatten() {
                journal.append(*record)?;
            }
            std::fs::rename(temporary, &self.path)?;
            state.since_save = None;
            state.journal = Some(journal);
            state.saved_at = Some(Instant::now());
        }
        File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
    }

    /// Takes new stamps of files that were written to; leases that ran out, or all when at rest, have done their work.
    fn restamp(&self, resume: &mut Resume, at_rest: bool) {
        let now_ns = now_ns();
        let parts = resume.files.len() - 1;
        for (file, record) in resume.files.iter_mut().enumerate() {
            let Some(lease) = record.lease else { continue };
            let stamp = if file == parts { self.storage.parts_stamp() } else { self.storage.stamp(file) };
            // What our lease does not explain keeps its old stamp, and is noticed at the next start.
            let length = self.storage.info().files.get(file).map(|entry| entry.length);
            match stamp {
                Some(stamp) if !record.explains(stamp, length) => continue,
                stamp => record.stamp = stamp,
            }
            // Under a lease that goes on, later writes have later times.
            let goes_on = !at_rest && lease.until_ns >= now_ns;
            record.lease = goes_on.then_some(Lease { from_ns: now_ns, ..lease });
        }
    }
}

impl Journal {
    fn append(&mut self, record: Record) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(32);
        record.encode(self.crc, &mut bytes);
        self.file.write_all_at(&bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }
}

/// Where the next resume file is written before it takes its place.
pub(super) fn temporary(path: &Path) -> PathBuf {
    path.with_extension("anabranch-resume-new")
}
