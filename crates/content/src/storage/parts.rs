//! Bytes of unwanted files that came with wanted ones.
//!
//! A piece that holds the end of a wanted file and the start of an unwanted one has to be fetched and kept whole, or it could
//! be neither verified again nor shared. The bytes that belong to files which are not on disk go to one hidden file beside the
//! content. Only pieces that touch two files or more can be in this situation, and which these are follows from the
//! metainfo alone: so the n-th of them has the n-th slot of one piece length, and there is no table that could be torn.
//!
//! When a file becomes wanted, its bytes are copied to a temporary file, that is synced and then renamed to the final place. So a
//! file that stands in its place has its bytes, and until then they are in here, whatever instant we die at.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::holes::is_hole;
use super::{PRESENT, SegmentKind, Storage, beneath};
use crate::info::Info;

/// Bytes copied at a time when a file moves out.
const COPY_LEN: usize = 64 * 1024;

/// The hidden file: where it is, whether it is there, and which pieces have a slot.
#[derive(Debug)]
pub(super) struct Parts {
    /// Below the root.
    pub(super) path: PathBuf,
    /// Below the root; holds a file on its way out.
    pub(super) moving_path: PathBuf,
    shared_pieces: Box<[u32]>,
    piece_length: u64,
    exists: bool,
    open: Option<Arc<File>>,
}

impl Parts {
    pub(super) fn new(info: &Info, shared_pieces: Box<[u32]>, root: &Path) -> Self {
        let path = PathBuf::from(super::hidden_name(info, "parts"));
        let exists = std::fs::symlink_metadata(root.join(&path)).is_ok();
        let moving_path = PathBuf::from(super::hidden_name(info, "moving"));
        let piece_length = u64::from(info.geometry.piece_length());
        Self { path, moving_path, shared_pieces, piece_length, exists, open: None }
    }

    /// Whether the hidden file is on disk.
    pub(super) fn exists(&self) -> bool {
        self.exists
    }

    /// Whether any of the pieces that hold `range` of piece space has a slot.
    pub(super) fn touch(&self, range: &Range<u64>) -> bool {
        self.shared_pieces.binary_search(&self.piece(range.start)).is_ok()
            || self.shared_pieces.binary_search(&self.piece(range.end - 1)).is_ok()
    }

    /// Where byte `offset` of piece space is in the hidden file, and how many bytes follow in that slot.
    /// `None` for a piece that lies in one file only.
    pub(super) fn locate(&self, offset: u64) -> Option<(u64, u64)> {
        let slot = self.shared_pieces.binary_search(&self.piece(offset)).ok()? as u64;
        let within = offset % self.piece_length;
        Some((slot * self.piece_length + within, self.piece_length - within))
    }

    /// The hidden file, opened; with `make` it is made where it is missing.
    pub(super) fn file(&mut self, root: &Path, make: bool, read_only: bool) -> io::Result<Arc<File>> {
        if let Some(open) = &self.open {
            return Ok(Arc::clone(open));
        }
        let flags = match (read_only, make && !self.exists) {
            (true, _) => libc::O_RDONLY,
            (false, false) => libc::O_RDWR,
            (false, true) => libc::O_RDWR | libc::O_CREAT,
        };
        let file = Arc::new(beneath::open(root, &self.path, flags)?);
        self.exists = true;
        self.open = Some(Arc::clone(&file));
        Ok(file)
    }

    /// Copies what the slots hold of `range` of piece space to `to`, whose first byte is `range.start`.
    pub(super) fn copy_out(&mut self, root: &Path, range: Range<u64>, to: &File) -> io::Result<()> {
        let from = self.file(root, false, false)?;
        let last_piece = self.piece(range.end - 1);
        let last_start = range.start.max(u64::from(last_piece) * self.piece_length);
        // The pieces in the middle lie in this file alone; only the first and the last can be shared.
        let mut buffer = vec![0; COPY_LEN];
        for start in [range.start, last_start] {
            let Some((mut at, left)) = self.locate(start) else { continue };
            let end = range.end.min(start + left);
            let mut offset = start;
            while offset < end {
                let want = (end - offset).min(COPY_LEN as u64) as usize;
                let got = from.read_at(&mut buffer[..want], at)?;
                if got == 0 {
                    break; // past its end: slots never written to hold zeros, as the new file does
                }
                to.write_all_at(&buffer[..got], offset - range.start)?;
                at += got as u64;
                offset += got as u64;
            }
        }
        Ok(())
    }

    /// Deletes the hidden file; whoever still reads from it may finish.
    pub(super) fn delete(&mut self, root: &Path) -> io::Result<()> {
        self.open = None;
        if self.exists {
            std::fs::remove_file(root.join(&self.path))?;
            self.exists = false;
        }
        Ok(())
    }

    fn piece(&self, offset: u64) -> u32 {
        (offset / self.piece_length) as u32
    }
}

impl Storage {
    /// Whether bytes of `piece` are kept aside, since a file that it lies in is not in its place: what lies in files is not all of it.
    pub(crate) fn is_kept_aside(&self, piece: u32) -> bool {
        let geometry = &self.info.geometry;
        let (offset, len) = (geometry.piece_offset(piece), u64::from(geometry.piece_len(piece)));
        let (slot, aside) = {
            let mut parts = self.lock_parts();
            let Some((slot, _)) = parts.locate(offset).filter(|_| parts.exists()) else { return false };
            (slot, parts.file(&self.root, false, self.options.read_only))
        };
        let (mut is_any_present, mut is_any_absent) = (false, false);
        for segment in self.layout.segments(offset, len).filter(|segment| segment.kind == SegmentKind::File) {
            let is_present = self.states[segment.file].load(Ordering::Acquire) & PRESENT != 0;
            is_any_present |= is_present;
            is_any_absent |= !is_present;
        }
        // Of many small files that are not wanted, most pieces have nothing anywhere: there is nothing to be read.
        let is_blank = !is_any_present && aside.is_ok_and(|aside| is_hole(&aside, slot..slot + len));
        is_any_absent && !is_blank
    }
}
