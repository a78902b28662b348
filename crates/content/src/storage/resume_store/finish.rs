//! The end of a download, and rest: everything is there and recorded, and nothing is held open.

use super::{ResumeStore, restamp_all};
use crate::bitfield::Bitfield;
use crate::storage::StorageError;

impl ResumeStore {
    /// Whether the content was [finished](ResumeStore::finish), and nothing was written since.
    pub fn is_at_rest(&self) -> bool {
        self.storage.is_resting() && self.is_settled(true)
    }

    /// The last save, when no write is under way any more: files are stamped and leases end. Without `sync` the data is left to
    /// the kernel: quick, and only a reboot without it being written would cost a re-hash.
    pub fn close(&self, sync: bool) -> Result<(), StorageError> {
        if self.is_settled(sync) {
            return Ok(());
        }
        let synced = if sync { Some(self.sync()?) } else { None };
        self.save_snapshot(synced, true)
    }

    /// The finish of a download, when every wanted piece is written: every entry is in its place, no longer than it should be, with
    /// its attributes, and on the disk. Answers the pieces of files that somebody else changed meanwhile: those have to be hashed
    /// first, and then this is to be called again.
    pub fn finish(&self) -> Result<Vec<u32>, StorageError> {
        if self.is_at_rest() {
            return Ok(Vec::new());
        }
        self.storage.create_empty_files_and_links()?;
        self.storage.check_whole()?;
        let changed = self.take_changed();
        if !changed.is_empty() {
            return Ok(changed);
        }
        self.storage.set_attributes()?;
        if self.is_finished() {
            self.storage.seal_all();
            self.rest();
            return Ok(Vec::new());
        }
        let synced = self.sync()?;
        self.storage.flush_folders()?;
        let mut state = self.lock();
        // A time that the torrent carries is no change behind our back.
        restamp_all(&mut state.resume, &self.storage);
        let foreign = state.resume.files.iter_mut().filter(|record| record.foreign);
        foreign.for_each(|record| record.foreign = false);
        drop(state);
        self.save_snapshot(Some(synced), true)?;
        self.storage.seal_all();
        self.rest();
        Ok(Vec::new())
    }

    /// Everything is there and recorded: nothing is held open, and the places are not claimed, until something is written again. Not
    /// while something is.
    pub(super) fn rest(&self) {
        if self.is_settled(true) {
            self.lock().journal = None;
            self.storage.rest();
        }
    }

    /// The pieces of wanted files that look other than our writes explain. As they are now they are taken for known.
    fn take_changed(&self) -> Vec<u32> {
        let info = self.storage.info();
        let mut state = self.lock();
        let mut pieces = Bitfield::new(info.geometry.piece_count());
        for (file, entry) in info.regular_files().filter(|(file, _)| self.storage.is_wanted(*file)) {
            let (record, now) = (&mut state.resume.files[file], self.storage.stamp(file));
            if entry.length == 0 || now.is_none_or(|now| record.explains(now, Some(entry.length))) {
                continue;
            }
            (record.stamp, record.lease) = (now, None);
            info.pieces_of_file(file).for_each(|piece| _ = pieces.set(piece));
        }
        pieces.iter_ones().collect()
    }

    /// Whether the file on disk says all there is to say.
    fn is_settled(&self, sync: bool) -> bool {
        let state = self.lock();
        let journal_empty = state.journal.as_ref().is_none_or(|journal| journal.end == journal.start);
        let at_rest = state.resume.files.iter().all(|record| record.lease.is_none());
        let synced = !sync || state.resume.have == state.resume.durable;
        journal_empty && at_rest && synced && !state.dirty
    }

    /// Whether the file on disk says that everything is there, as it is: an earlier run finished, and nothing happened since.
    fn is_finished(&self) -> bool {
        if !self.is_settled(true) {
            return false;
        }
        let state = self.lock();
        let mut now = state.resume.clone();
        restamp_all(&mut now, &self.storage);
        let is_known = state.journal.is_some() && now.files == state.resume.files;
        is_known && now.files.iter().all(|record| !record.foreign)
    }
}
