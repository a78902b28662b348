//! Piece layers beside the record.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use super::ResumeStore;
use super::open::read_bounded;
use crate::metainfo::{Metainfo, PieceLayers};
use crate::storage::{Op, StorageError, hidden_name};

impl ResumeStore {
    /// Keeps piece layers that came from peers (BEP 52), beside the resume file: a magnet link has none, and without them
    /// pieces that have to be hashed again after a restart could only be fetched again.
    pub fn keep_layers(&self, layers: PieceLayers) -> Result<(), StorageError> {
        self.storage.wake()?;
        let _saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        if self.lock().is_deleted {
            return Ok(());
        }
        let torrent = Metainfo { piece_layers: layers, ..Metainfo::new(Arc::clone(self.storage.info())) };
        let (path, temporary) = (self.layers_path(), self.path.with_extension("anabranch-torrent-new"));
        let write = || {
            let _ = std::fs::remove_file(&temporary);
            let file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
            file.write_all_at(&torrent.encode(), 0)?;
            std::fs::rename(&temporary, &path)
        };
        write().map_err(|source| {
            // What is half written is of no use.
            let _ = std::fs::remove_file(&temporary);
            StorageError::new(Op::Write, &path, source)
        })
    }

    /// The layers that were kept, as far as they are there and right: each is proven by its root. Nothing was synced, and
    /// nothing has to be: what a power cut leaves of the file proves itself or does not count.
    pub fn kept_layers(&self) -> PieceLayers {
        let bytes = read_bounded(&self.layers_path()).ok().flatten().unwrap_or_default();
        let kept = Metainfo::parse(&bytes).ok();
        let ours = kept.filter(|torrent| torrent.info.hashes == self.storage.info().hashes);
        ours.map_or_else(PieceLayers::new, |torrent| torrent.piece_layers)
    }

    pub(super) fn layers_path(&self) -> PathBuf {
        self.path.with_file_name(hidden_name(self.storage.info(), "torrent"))
    }
}
