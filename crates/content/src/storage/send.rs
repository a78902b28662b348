//! What to send for a run of piece space: descriptors and offsets, for `sendfile` and the like.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Op, PRESENT, Segment, SegmentKind, Segments, Storage, StorageError};

/// A run of bytes to send: from a descriptor, or zeros.
#[derive(Clone, Debug)]
pub enum SendSegment {
    /// Bytes of a file; stays readable as long as the handle is held.
    File {
        /// Open for reading.
        file: Arc<File>,
        /// Index in [`files`](crate::info::Info::files), for [`Storage::check_file`] when a send comes up short.
        index: usize,
        /// Where in the descriptor the run starts, in bytes.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// This many zeros.
    Pad(u64),
}

/// See [`Storage::segments`]. Ends after an error.
#[derive(Debug)]
pub struct SendSegments<'a> {
    storage: &'a Storage,
    segments: Segments<'a>,
    /// The rest of a segment whose bytes are kept aside, one slot at a time.
    parts_left: Option<Segment>,
}

impl Iterator for SendSegments<'_> {
    type Item = Result<SendSegment, StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        let segment = self.parts_left.take().or_else(|| self.segments.next())?;
        if segment.kind == SegmentKind::Pad {
            return Some(Ok(SendSegment::Pad(segment.len)));
        }
        let present = self.storage.states[segment.file].load(Ordering::Acquire) & PRESENT != 0;
        let found = if present {
            self.storage.readable(segment.file).map(|file| SendSegment::File {
                file,
                index: segment.file,
                offset: segment.file_offset,
                len: segment.len,
            })
        } else {
            self.next_aside(segment)
        };
        if found.is_err() {
            self.segments = self.storage.layout.segments(0, 0);
        }
        Some(found)
    }
}

impl<'a> SendSegments<'a> {
    pub(super) fn new(storage: &'a Storage, offset: u64, len: u64) -> Self {
        Self { storage, segments: storage.layout.segments(offset, len), parts_left: None }
    }

    fn next_aside(&mut self, segment: Segment) -> Result<SendSegment, StorageError> {
        let storage = self.storage;
        let mut parts = storage.lock_parts();
        let Some((offset, left)) = parts.locate(segment.offset).filter(|_| parts.exists()) else {
            let source = io::Error::from_raw_os_error(libc::ENOENT);
            return Err(storage.error(Op::Read, segment.file, source));
        };
        let file = parts
            .file(&storage.root, false, storage.options.read_only)
            .map_err(|source| StorageError::new(Op::Open, storage.root.join(&parts.path), source))?;
        let len = left.min(segment.len);
        if len < segment.len {
            self.parts_left = Some(Segment {
                file_offset: segment.file_offset + len,
                offset: segment.offset + len,
                len: segment.len - len,
                ..segment
            });
        }
        Ok(SendSegment::File { file, index: segment.file, offset, len })
    }
}
