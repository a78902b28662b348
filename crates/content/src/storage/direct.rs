//! Writing past the page cache, for what nobody reads again soon.
//!
//! A write through the cache copies every byte into pages that the kernel first has to find and to clear, and leaves them there in
//! place of others. A direct write (`O_DIRECT`) has the device take the bytes from the pool's buffers, which are aligned as it
//! wants them: a fraction of the processor's time, and the cache stays as it was. It needs whole blocks of the file system, so
//! each run is split: head and tail that are no whole block go through the cache. Bytes that are whole blocks in the file and
//! begin anywhere in memory (the file begins in the middle of a block of piece space) go by an aligned buffer.
//!
//! Only files whose alignment the kernel tells (`STATX_DIOALIGN`, Linux 6.1) are written so; all others, as in memory, over a network or
//! encrypted, are written through the cache. Where a direct write is refused all the same, so is what follows.
//!
//! # Two descriptors, one file
//!
//! Cached reads of the file see what was written: the kernel writes out and drops the cached pages of a range before a direct write
//! to it, and drops what was read into the cache meanwhile after it, and after the blocks count as written. Two things would break that:
//!
//! - A page that takes bytes both ways. There is none: what is written directly is whole blocks of one call, and no call's blocks
//!   hold bytes of another. The shared page of two pieces is head of one and tail of the other, and both go through the cache.
//! - A page that becomes dirty *while* it is being dropped: the kernel then cannot drop it, and says so by failing the next sync. Pages
//!   are kept in groups (folios), so a tail makes its neighbours dirty. Hence [`Mode::lock`]: of one file, direct writes go on side
//!   by side, and a cached one goes alone.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use super::files::Access;
use super::vectored::Cursor;
use super::{BUFFER_ALIGN, Buffer, BufferPool, Segment, Storage, StorageError, beneath};

/// Fewer bytes than this go through the cache: a device takes as long for a short write as for one several times as long, and the
/// cache joins neighbours.
pub(super) const DIRECT_LEN_MIN: u64 = 256 * 1024;
/// Direct writes start at multiples of this at least: the block of most file systems, for parts of which they would lock the file.
const BLOCK_LEN_MIN: u64 = 4096;
/// No file system has longer blocks; one that says so is left to the cache.
const BLOCK_LEN_MAX: u64 = 64 * 1024;
/// Bytes copied at a time where they are not aligned in memory.
const BOUNCE_LEN: usize = 1024 * 1024;
/// Such copies of the whole process at once; whoever finds none left writes through the cache.
const BOUNCES_MAX: usize = 4;
/// Locks of one content; a file has one of them.
const LOCKS: usize = 16;

/// Nothing was written directly yet, and nothing refused.
const UNTRIED: u8 = 0;
/// Direct writes may be under way.
const DIRECT: u8 = 1;
/// Direct writes were refused after the first: none begins any more.
const REFUSED: u8 = 2;
/// No direct write was ever begun, and none will be.
const CACHED: u8 = 3;

/// What a direct write has to be a multiple of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alignment {
    /// In the file, in bytes: offsets and lengths.
    pub(crate) block: u64,
    /// In memory: addresses.
    pub(crate) memory: usize,
}

impl Alignment {
    /// `None` where direct writes and reads of `file` are not possible, or the kernel does not say how.
    pub(crate) fn of(file: &File) -> Option<Self> {
        // SAFETY: all-zero is a valid statx.
        let mut stat: libc::statx = unsafe { std::mem::zeroed() };
        let (fd, mask) = (file.as_raw_fd(), libc::STATX_DIOALIGN);
        // SAFETY: the descriptor is open, the path is empty and NUL-terminated, the structure is the call's to fill.
        let told = unsafe { libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, mask, &raw mut stat) } == 0;
        if !told || stat.stx_mask & mask == 0 {
            return None;
        }
        Self::new(u64::from(stat.stx_dio_offset_align), stat.stx_dio_mem_align as usize)
    }

    pub(super) fn new(block: u64, memory: usize) -> Option<Self> {
        let usable = block.is_power_of_two() && block <= BLOCK_LEN_MAX;
        let in_buffers = memory.is_power_of_two() && memory <= BUFFER_ALIGN;
        (usable && in_buffers).then(|| Self { block: block.max(BLOCK_LEN_MIN), memory })
    }

    /// `len` bytes of a file from `offset` as those before the first whole block, whole blocks, and those after.
    pub(crate) fn split(self, offset: u64, len: u64) -> [u64; 3] {
        let end = offset.saturating_add(len);
        let (from, to) = (offset.next_multiple_of(self.block), end - end % self.block);
        if from >= to { [len, 0, 0] } else { [from - offset, to - from, end - to] }
    }

    fn fits(self, vector: &libc::iovec) -> bool {
        vector.iov_base.addr().is_multiple_of(self.memory) && (vector.iov_len as u64).is_multiple_of(self.block)
    }
}

/// How the files of one content may be written, as far as it was tried; and who waits for whom.
#[derive(Debug, Default)]
pub(super) struct Mode {
    state: AtomicU8,
    locks: [RwLock<()>; LOCKS],
}

impl Mode {
    /// Whether a direct write may be tried.
    pub(super) fn may_be_direct(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), UNTRIED | DIRECT)
    }

    /// Before the first direct write: from here on cached writes go alone. `false` where it was too late.
    fn begin(&self) -> bool {
        let begun = self.state.compare_exchange(UNTRIED, DIRECT, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok() || begun == Err(DIRECT)
    }

    /// No further direct writes: to a file that knows none, or after one was refused.
    pub(super) fn refuse(&self) {
        let unused = self.state.compare_exchange(UNTRIED, CACHED, Ordering::AcqRel, Ordering::Acquire);
        if unused == Err(DIRECT) {
            self.state.store(REFUSED, Ordering::Release);
        }
    }

    /// Held for reading by direct writes to `file`, for writing by cached ones; `None` where there are no direct ones.
    fn lock(&self, file: usize) -> Option<&RwLock<()>> {
        (self.state.load(Ordering::Acquire) != CACHED).then(|| &self.locks[file % LOCKS])
    }
}

/// A file as the two descriptors that it is written through, or only the first.
pub(super) struct Target<'a> {
    cached: &'a File,
    direct: Option<(Arc<File>, Alignment)>,
    mode: &'a Mode,
    index: usize,
}

impl<'a> Target<'a> {
    pub(super) fn new(cached: &'a File, direct: Option<(Arc<File>, Alignment)>, mode: &'a Mode, index: usize) -> Self {
        Self { cached, direct, mode, index }
    }

    /// Writes the next `len` bytes of `cursor` from `offset`.
    pub(super) fn write(&self, cursor: &mut Cursor<'_>, offset: u64, len: u64) -> io::Result<()> {
        let Some((direct, alignment)) = &self.direct else { return self.write_cached(cursor, offset, len) };
        let [head, blocks, tail] = alignment.split(offset, len);
        if blocks < DIRECT_LEN_MIN {
            return self.write_cached(cursor, offset, len);
        }
        self.write_cached(cursor, offset, head)?;
        let written = self.write_blocks(direct, *alignment, cursor, offset + head, blocks)?;
        self.write_cached(cursor, offset + head + written, blocks - written + tail)
    }

    fn write_cached(&self, cursor: &mut Cursor<'_>, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        // There is nothing under the lock that a panic could leave half done.
        let _alone = self.mode.lock(self.index).map(|lock| lock.write().unwrap_or_else(PoisonError::into_inner));
        cursor.write_to(self.cached, offset, len)
    }

    /// Writes as many of `len` bytes directly as the system takes so: fewer where it refuses, and the rest is left to the cache.
    fn write_blocks(
        &self,
        file: &File,
        alignment: Alignment,
        cursor: &mut Cursor<'_>,
        offset: u64,
        len: u64,
    ) -> io::Result<u64> {
        if !self.mode.begin() {
            return Ok(0);
        }
        let _among_others = self.mode.locks[self.index % LOCKS].read().unwrap_or_else(PoisonError::into_inner);
        let (mut done, mut bounce) = (0, None);
        while done < len {
            let written = match cursor.write_some(file, offset + done, len - done, |vector| alignment.fits(vector)) {
                Some(written) => written,
                None => {
                    let Some(buffer) = bounce.take().or_else(|| bounces().try_get()) else { return Ok(done) };
                    let buffer: &mut Buffer = bounce.insert(buffer);
                    let part = buffer.len().min((len - done) as usize);
                    cursor.copy_to(&mut buffer[..part]);
                    let part = io::IoSlice::new(&buffer[..part]);
                    let slices = [part];
                    Cursor::new(&slices).write_some(file, offset + done, part.len() as u64, |_| true).unwrap_or(Ok(0))
                }
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    cursor.advance(written);
                    done += written;
                    if !written.is_multiple_of(alignment.block) {
                        return Ok(done); // what is left begins inside a block
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_refusal(&error) => {
                    self.mode.refuse();
                    return Ok(done);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

impl Storage {
    /// Whether [`Storage::write_uncached_at`] of these bytes would wait for the device, as far as is known: to be done where others
    /// do not wait for it.
    pub fn waits_for_device(&self, offset: u64, len: u64) -> bool {
        self.mode.may_be_direct() && self.layout.segments(offset, len).any(|segment| segment.len >= DIRECT_LEN_MIN)
    }

    /// What `segment` is written to; its file is open as `cached`.
    pub(super) fn target<'a>(
        &'a self,
        segment: &Segment,
        cached: &'a Arc<File>,
        uncached: bool,
    ) -> Result<Target<'a>, StorageError> {
        let may_be_direct = uncached && segment.len >= DIRECT_LEN_MIN && self.mode.may_be_direct();
        let direct = if may_be_direct { self.open_direct(segment.file, cached)? } else { None };
        if may_be_direct && direct.is_none() {
            self.mode.refuse();
        }
        Ok(Target::new(cached, direct, &self.mode, segment.file))
    }

    /// The file that is open as `cached`, for direct writes; `None` where it knows none.
    fn open_direct(&self, file: usize, cached: &File) -> Result<Option<(Arc<File>, Alignment)>, StorageError> {
        let Some(alignment) = Alignment::of(cached) else { return Ok(None) };
        let key = (self.id, file as u32, Access::Direct);
        let held = self.handles().get(key, true);
        // Another file may stand there since, or the other handle may have been opened anew.
        let held = held.filter(|held| is_same(held, cached));
        if let Some(held) = held {
            return Ok(Some((held, alignment)));
        }
        self.handles().remove(key);
        let opened = beneath::open(&self.root, &self.info.files[file].path, libc::O_RDWR | libc::O_DIRECT);
        // Should it fail for another reason than this kind of access, the cached write tells.
        let opened = opened.ok().filter(|opened| is_same(opened, cached));
        Ok(opened.map(|opened| (self.handles().insert(key, opened, true), alignment)))
    }
}

pub(super) fn is_same(one: &File, other: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |file: &File| file.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    id(one).is_some() && id(one) == id(other)
}

/// This kind of access is not possible, here or at all; cached access may well be.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOTBLK))
}

fn bounces() -> &'static BufferPool {
    static BOUNCES: OnceLock<BufferPool> = OnceLock::new();
    BOUNCES.get_or_init(|| BufferPool::new(BOUNCE_LEN, BOUNCES_MAX * BOUNCE_LEN))
}
