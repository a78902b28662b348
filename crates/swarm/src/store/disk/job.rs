//! What the disk threads are asked to do with a piece, and what they answer.

use std::io::IoSlice;
use std::sync::Arc;

use anabranch_content::geometry::Geometry;
use anabranch_content::hash::ExpectedHash;
use anabranch_content::info::Sha256Digest;
use anabranch_content::storage::{ResumeStore, StorageError};
use anabranch_paths::ConnId;

use crate::events::ContentId;
use crate::store::buffers::{Spill, WholePiece, chunk_length};

/// Bytes that a round of SHA-1 or SHA-256 takes in.
const HASH_ROUND_LEN: u32 = 64;

/// A piece to be verified and written.
pub(crate) struct VerifyJob {
    /// Whose it is, for the answer.
    pub content: ContentId,
    /// Index of the piece.
    pub piece: u32,
    /// Its bytes.
    pub whole: WholePiece,
    /// What it has to hash to.
    pub expected: ExpectedHash,
    /// Whether the digests of its blocks are wanted even when it is good.
    pub digests: bool,
    /// Whether somebody may ask for it as soon as it is there: it stays in the page cache.
    pub read_soon: bool,
    /// Where it is written, and recorded once it is.
    pub resume: Arc<ResumeStore>,
    /// Sizes.
    pub geometry: Geometry,
}

/// An answer to the network thread.
pub(crate) enum Reply {
    /// A piece was verified.
    Verified(Verified),
    /// A chunk was written ahead of time, or could not be.
    Spilled(Spilled),
    /// What a connection is to send next was read from disk.
    ReadAhead {
        /// Whose content it is.
        content: ContentId,
        /// The connection that waits for it.
        conn: ConnId,
    },
    /// The kernel was told what connections will send.
    Advised {
        /// Whose content it is.
        content: ContentId,
    },
    /// The leaves of a piece's Merkle tree; none where it could not be read.
    Leaves {
        /// Whose they are.
        content: ContentId,
        /// Their piece.
        piece: u32,
        /// One a block.
        hashes: Vec<Sha256Digest>,
    },
    /// Piece layers, and metadata of a magnet link, were written for the next start, or could not be.
    LayersKept {
        /// Whose it is.
        content: ContentId,
    },
    /// A piece that could not be sent was read again.
    Reread {
        /// Whose it is.
        content: ContentId,
        /// The piece.
        piece: u32,
        /// It can be read.
        readable: bool,
    },
    /// A job panicked and is lost, or one that was verified side by side with it: a fault of this program.
    Panicked {
        /// Whose it was.
        content: ContentId,
    },
}

impl Reply {
    /// Whose job it answers.
    pub(crate) fn content(&self) -> ContentId {
        match self {
            Self::Verified(verified) => verified.content,
            Self::Spilled(spilled) => spilled.content,
            Self::ReadAhead { content, .. }
            | Self::Advised { content }
            | Self::Leaves { content, .. }
            | Self::Reread { content, .. }
            | Self::LayersKept { content }
            | Self::Panicked { content } => *content,
        }
    }
}

/// A [`Spill`] on its way to disk, and back.
pub(crate) struct SpillJob {
    /// Whose it is.
    pub content: ContentId,
    /// The chunk.
    pub spill: Spill,
    /// Where it is written.
    pub resume: Arc<ResumeStore>,
}

/// What became of a [`SpillJob`].
pub(crate) struct Spilled {
    /// Whose it is.
    pub content: ContentId,
    /// The piece that the chunk is of.
    pub piece: u32,
    /// Where storage is out of order: why, and the job, whole, to be handed in again when the cause is gone.
    pub failed: Option<(StorageError, Box<SpillJob>)>,
}

/// What became of a [`VerifyJob`].
pub(crate) struct Verified {
    /// Whose it is.
    pub content: ContentId,
    /// Index of the piece.
    pub piece: u32,
    /// The outcome.
    pub outcome: Outcome,
}

/// The outcome of verifying and writing a piece.
pub(crate) enum Outcome {
    /// Right and written.
    Good {
        /// One digest a block, where asked for.
        digests: Vec<u64>,
    },
    /// Wrong.
    Bad {
        /// One digest a block.
        digests: Vec<u64>,
    },
    /// Storage is out of order. The job is whole, to be handed in again when the cause is gone.
    Failed {
        /// What is out of order.
        error: StorageError,
        /// The job.
        job: Box<VerifyJob>,
    },
}

impl VerifyJob {
    /// Whether the piece can be hashed side by side with others: all of it is in memory, in slices of whole rounds of the hash
    /// functions (but the last), and it does not end in padding.
    pub(super) fn fits_lanes(&self) -> bool {
        let is_padded = self.geometry.data_len(self.piece) != self.geometry.piece_len(self.piece);
        let is_aligned = self.whole.chunks.len() == 1 || chunk_length(&self.geometry).is_multiple_of(HASH_ROUND_LEN);
        self.whole.on_disk.is_empty() && !is_padded && is_aligned
    }

    pub(super) fn block_length(&self) -> usize {
        self.geometry.block_length() as usize
    }

    fn chunk_len(&self, chunk: usize) -> u32 {
        let full = chunk_length(&self.geometry);
        (self.geometry.data_len(self.piece) - chunk as u32 * full).min(full)
    }

    fn chunk_offset(&self, chunk: usize) -> u64 {
        let full = chunk_length(&self.geometry);
        self.geometry.piece_offset(self.piece) + chunk as u64 * u64::from(full)
    }

    /// The chunks that are in memory, in order, each as long as it holds data.
    pub(super) fn memory(&self) -> impl Iterator<Item = &[u8]> {
        let chunks = self.whole.chunks.iter().enumerate();
        chunks.filter_map(|(at, chunk)| chunk.as_ref().map(|buffer| &buffer[..self.chunk_len(at) as usize]))
    }

    /// A chunk's bytes, wherever they are.
    pub(super) fn chunk<'a>(&'a self, chunk: usize, scratch: &'a mut Vec<u8>) -> Result<&'a [u8], StorageError> {
        let len = self.chunk_len(chunk) as usize;
        let Some(buffer) = &self.whole.chunks[chunk] else {
            scratch.resize(len, 0);
            self.resume.storage().read_at(self.chunk_offset(chunk), scratch)?;
            return Ok(scratch);
        };
        let (block_len, on_disk) = (self.block_length(), &self.whole.on_disk);
        let first = chunk as u32 * chunk_length(&self.geometry).div_ceil(block_len as u32);
        let next = first + len.div_ceil(block_len) as u32;
        let spilled = &on_disk[on_disk.partition_point(|at| *at < first)..on_disk.partition_point(|at| *at < next)];
        if spilled.is_empty() {
            return Ok(&buffer[..len]);
        }
        scratch.clear();
        scratch.extend_from_slice(&buffer[..len]);
        for run in spilled.chunk_by(|one, next| one + 1 == *next) {
            let begin = (run[0] - first) as usize * block_len;
            let end = (begin + run.len() * block_len).min(len);
            self.resume.storage().read_at(self.chunk_offset(chunk) + begin as u64, &mut scratch[begin..end])?;
        }
        Ok(scratch)
    }

    /// Whether [`Self::write`] takes as long as the device does.
    pub(super) fn waits_for_device(&self) -> bool {
        let (offset, len) = (self.geometry.piece_offset(self.piece), self.geometry.data_len(self.piece));
        !self.read_soon && self.resume.storage().waits_for_device(offset, u64::from(len))
    }

    /// Writes what is not on disk yet, then records the piece: it counts from there on.
    pub(super) fn write(&self) -> Result<(), StorageError> {
        if self.whole.on_disk.is_empty() {
            let slices: Vec<IoSlice<'_>> = self.memory().map(IoSlice::new).collect();
            let offset = self.geometry.piece_offset(self.piece);
            match self.read_soon {
                true => self.resume.write_at(offset, &slices)?,
                false => self.resume.write_uncached_at(offset, &slices)?,
            }
        } else {
            let mut scratch = Vec::new();
            for chunk in (0..self.whole.chunks.len()).filter(|at| self.whole.chunks[*at].is_some()) {
                let bytes = self.chunk(chunk, &mut scratch)?;
                self.resume.write_at(self.chunk_offset(chunk), &[IoSlice::new(bytes)])?;
            }
        }
        self.resume.verified(self.piece)
    }

    /// What is told where storage refuses: the job comes back whole.
    pub(super) fn failed(self, error: StorageError) -> Verified {
        let (content, piece) = (self.content, self.piece);
        Verified { content, piece, outcome: Outcome::Failed { error, job: Box::new(self) } }
    }
}
