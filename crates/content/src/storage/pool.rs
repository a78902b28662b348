//! A bounded pool of page-aligned buffers.
//!
//! Pieces are received into these buffers, hashed in them and written from them. The pool is the bound on a transfer's
//! memory: the resident size is at most the limit, and a trimmed buffer is truly gone. On small pages every buffer is a mapping of
//! its own; on huge ones, short buffers share a mapping. The last buffer returned is the first handed out, for its pages are the
//! ones still in the cache. Content is left as it was.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Buffers start at multiples of this many bytes.
pub const BUFFER_ALIGN: usize = 4096;

/// Mappings of [`BufferPool::on_huge_pages`] start at a multiple of this many bytes.
const HUGE_PAGE_LEN: usize = 2 * 1024 * 1024;

/// Idle bytes that [`BufferPool::trim`] keeps, so that a transfer which trickles does not map and unmap for every piece.
pub const IDLE_RESERVE_BYTES: usize = 1024 * 1024;

/// A shared pool of buffers of one length. Cloning shares it.
#[derive(Clone, Debug)]
pub struct BufferPool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    buffer_len: usize,
    mapped_len: usize,
    huge_pages: bool,
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Slot>,
    in_use: usize,
    in_use_peak: usize,
}

/// How full a pool is, in buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// Handed out now.
    pub in_use: usize,
    /// The most that were handed out at once.
    pub in_use_peak: usize,
    /// Mapped, but not handed out.
    pub idle: usize,
    /// The most that can be handed out at once.
    pub limit: usize,
}

impl BufferPool {
    /// Buffers of `buffer_len` bytes, together at most `limit_bytes` of memory, but always one buffer. Nothing is allocated yet.
    ///
    /// # Panics
    /// When `buffer_len` is 0.
    pub fn new(buffer_len: usize, limit_bytes: usize) -> Self {
        Self::with_pages(buffer_len, limit_bytes, false)
    }

    /// The same, on huge pages where the kernel gives them. A device needs time for each run of memory, and a processor for each page
    /// (2 GiB by direct reads of 512 KiB: 1.2 s instead of 1.9 s; by direct writes of 1 MiB 15 % less). But a page is resident as a whole
    /// once a byte of it is used: so buffers come in groups as long as one, and a pool that works has up to 2 MiB idle.
    ///
    /// # Panics
    /// When `buffer_len` is 0.
    pub fn on_huge_pages(buffer_len: usize, limit_bytes: usize) -> Self {
        Self::with_pages(buffer_len, limit_bytes, true)
    }

    fn with_pages(buffer_len: usize, limit_bytes: usize, huge_pages: bool) -> Self {
        assert!(buffer_len > 0);
        let mapped_len = buffer_len.next_multiple_of(BUFFER_ALIGN);
        let limit = (limit_bytes / mapped_len).max(1);
        Self { shared: Arc::new(Shared { buffer_len, mapped_len, huge_pages, limit, state: Mutex::default() }) }
    }

    /// A buffer, or `None` where the limit is reached or the system has no memory. Its content is left over from its last use.
    pub fn try_get(&self) -> Option<Buffer> {
        let mut state = self.shared.lock();
        if state.in_use == self.shared.limit {
            return None;
        }
        if state.idle.is_empty() {
            let slots = self.shared.map(self.shared.limit - state.in_use)?;
            state.idle.extend(slots);
        }
        let slot = state.idle.pop()?;
        state.in_use += 1;
        state.in_use_peak = state.in_use_peak.max(state.in_use);
        Some(Buffer { slot: Some(slot), shared: Arc::clone(&self.shared) })
    }

    /// Gives idle memory back to the system: on small pages what is above [`IDLE_RESERVE_BYTES`], on huge ones all of it, for a part of one
    /// would be small pages from then on. Call when a transfer rests.
    pub fn trim(&self) {
        let keep = if self.shared.huge_pages { 0 } else { IDLE_RESERVE_BYTES / self.shared.mapped_len };
        let cold: Vec<Slot> = {
            let mut state = self.shared.lock();
            // The front of the stack holds the buffers that rested longest.
            let surplus = state.idle.len().saturating_sub(keep);
            state.idle.drain(..surplus).collect()
        };
        drop(cold); // unmapped outside the lock
    }

    /// Bytes of memory that the next buffer adds to what is mapped.
    pub fn growth_bytes(&self) -> usize {
        let state = self.shared.lock();
        let room = self.shared.limit - state.in_use;
        if state.idle.is_empty() { self.shared.slots_per_mapping(room) * self.shared.mapped_len } else { 0 }
    }

    /// Bytes in each buffer.
    pub fn buffer_len(&self) -> usize {
        self.shared.buffer_len
    }

    /// How full the pool is.
    pub fn stats(&self) -> PoolStats {
        let state = self.shared.lock();
        PoolStats {
            in_use: state.in_use,
            in_use_peak: state.in_use_peak,
            idle: state.idle.len(),
            limit: self.shared.limit,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock can leave the state half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many buffers come in one mapping where there may be `room` more of them.
    fn slots_per_mapping(&self, room: usize) -> usize {
        if self.huge_pages { (HUGE_PAGE_LEN / self.mapped_len).clamp(1, room.max(1)) } else { 1 }
    }

    fn map(&self, room: usize) -> Option<impl Iterator<Item = Slot>> {
        let count = self.slots_per_mapping(room);
        let len = count * self.mapped_len;
        let mapping =
            Arc::new(if self.huge_pages { Mapping::on_huge_pages(len)? } else { Mapping::on_small_pages(len)? });
        let slot_len = self.mapped_len;
        Some(
            (0..count).map(move |index| Slot {
                part: index * slot_len..(index + 1) * slot_len,
                mapping: Arc::clone(&mapping),
            }),
        )
    }
}

/// The memory of one buffer: a part of a mapping. The last of its slots takes the mapping with it.
#[derive(Debug)]
struct Slot {
    mapping: Arc<Mapping>,
    part: Range<usize>,
}

impl Slot {
    fn start(&self) -> *mut u8 {
        // SAFETY: the part is inside the mapping.
        unsafe { self.mapping.start.as_ptr().add(self.part.start) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if Arc::strong_count(&self.mapping) > 1 {
            // The others are in use, or go the same way in a moment.
            self.mapping.advise(self.part.clone(), libc::MADV_DONTNEED);
        }
    }
}

/// A buffer on loan; goes back to its pool when dropped.
#[derive(Debug)]
pub struct Buffer {
    /// `None` only inside `drop`.
    slot: Option<Slot>,
    shared: Arc<Shared>,
}

impl Buffer {
    /// Where the bytes start, aligned to [`BUFFER_ALIGN`].
    pub fn as_ptr(&self) -> *const u8 {
        self.slot.as_ref().map_or(std::ptr::null(), |slot| slot.start().cast_const())
    }

    /// Where the bytes start, for a system call to write to.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.as_ptr().cast_mut()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the slot is at least buffer_len bytes, readable, zeroed by the kernel at first, and lent only to us.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.shared.buffer_len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the loan exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.shared.buffer_len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.in_use -= 1;
        state.idle.extend(self.slot.take());
    }
}

/// One anonymous private mapping.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory with one owner; no thread has a special tie to it.
unsafe impl Send for Mapping {}
// SAFETY: shared access only reads the address and the length.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn on_small_pages(len: usize) -> Option<Self> {
        let mapping = Self::new(len)?;
        // Neighbouring mappings merge; a huge page over them would make untouched buffers resident.
        mapping.advise(0..len, libc::MADV_NOHUGEPAGE);
        Some(mapping)
    }

    fn on_huge_pages(len: usize) -> Option<Self> {
        let mut head = Self::new(len + HUGE_PAGE_LEN)?;
        let address = head.start.as_ptr().addr();
        let mut mapping = head.split_off(address.next_multiple_of(HUGE_PAGE_LEN) - address);
        drop((head, mapping.split_off(len)));
        let rest = len % HUGE_PAGE_LEN;
        mapping.advise(0..len - rest, libc::MADV_HUGEPAGE);
        mapping.advise(len - rest..len, libc::MADV_NOHUGEPAGE);
        Some(mapping)
    }

    fn new(len: usize) -> Option<Self> {
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        Some(Self { start: NonNull::new(start.cast())?, len })
    }

    /// Keeps the first `at` bytes, whole pages, and gives away the rest.
    fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.len);
        // SAFETY: inside the mapping, or at its end.
        let rest = Self { start: unsafe { self.start.add(at) }, len: self.len - at };
        self.len = at;
        rest
    }

    /// Tells the kernel about a part, of whole pages, that nobody reads or writes. Failure is harmless.
    fn advise(&self, part: Range<usize>, advice: libc::c_int) {
        assert!(part.start <= part.end && part.end <= self.len);
        #[cfg(not(miri))]
        // SAFETY: the range is ours; what the advice may take away is the content of a part that has no user.
        unsafe {
            libc::madvise(self.start.as_ptr().add(part.start).cast(), part.len(), advice)
        };
        #[cfg(miri)]
        let _ = advice;
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: we own the mapping and nobody else holds its address. An empty one is refused, and nothing happens.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_holds_and_buffers_come_back_warm() {
        let pool = BufferPool::new(5000, 3 * 8192);
        let mut all: Vec<Buffer> = (0..3).map_while(|_| pool.try_get()).collect();
        assert_eq!((all.len(), pool.try_get().is_none()), (3, true));
        assert!(all.iter().all(|buffer| buffer.as_ptr().addr().is_multiple_of(BUFFER_ALIGN) && buffer.len() == 5000));
        all[1].fill(7);
        let address = all[1].as_ptr();
        drop(all.remove(1));
        let again = pool.try_get().unwrap();
        assert_eq!((again.as_ptr(), again[4999]), (address, 7));
        assert_eq!(pool.stats(), PoolStats { in_use: 3, in_use_peak: 3, idle: 0, limit: 3 });
    }

    #[test]
    fn a_limit_below_one_buffer_still_gives_one() {
        let pool = BufferPool::new(8192, 100);
        let one = pool.try_get();
        assert!(one.is_some() && pool.try_get().is_none());
    }

    #[test]
    fn buffers_on_huge_pages_begin_at_one_and_are_whole() {
        let pool = BufferPool::on_huge_pages(3 * 1024 * 1024, 8 * 1024 * 1024);
        assert_eq!(pool.growth_bytes(), 3 * 1024 * 1024);
        let mut all: Vec<Buffer> = (0..3).map_while(|_| pool.try_get()).collect();
        assert_eq!(all.len(), 2);
        for (mark, buffer) in (1..).zip(&mut all) {
            assert!(buffer.as_ptr().addr().is_multiple_of(HUGE_PAGE_LEN) && buffer.iter().all(|byte| *byte == 0));
            buffer.fill(mark);
        }
        assert!((1..).zip(&all).all(|(mark, buffer)| buffer.iter().all(|byte| *byte == mark)));
    }

    #[test]
    fn short_buffers_share_huge_pages_and_give_each_part_back() {
        const LEN: usize = 256 * 1024;
        let pool = BufferPool::on_huge_pages(LEN, 11 * LEN);
        let mut all: Vec<Buffer> = pool.try_get().into_iter().collect();
        assert_eq!(pool.stats(), PoolStats { in_use: 1, in_use_peak: 1, idle: 7, limit: 11 });
        assert_eq!(pool.growth_bytes(), 0);
        all.extend((1..8).map_while(|_| pool.try_get()));
        // What is left of the limit is less than a huge page.
        assert_eq!(pool.growth_bytes(), 3 * LEN);
        all.extend(std::iter::from_fn(|| pool.try_get()));
        assert_eq!((all.len(), pool.stats().idle), (11, 0));
        for (mark, buffer) in (1..).zip(&mut all) {
            assert!(buffer.len() == LEN && buffer.iter().all(|byte| *byte == 0));
            buffer.fill(mark);
        }
        assert!((1..).zip(&all).all(|(mark, buffer)| buffer.iter().all(|byte| *byte == mark)));
        // One of each mapping stays in use, as it is, while the others go.
        let kept = [all.remove(8), all.remove(0)];
        drop(all);
        assert_eq!(pool.stats().idle, 9);
        pool.trim();
        assert_eq!(pool.stats(), PoolStats { in_use: 2, in_use_peak: 11, idle: 0, limit: 11 });
        assert!(kept[0].iter().all(|byte| *byte == 9) && kept[1].iter().all(|byte| *byte == 1));
        drop(kept);
        let again: Vec<Buffer> = std::iter::from_fn(|| pool.try_get()).collect();
        assert_eq!(again.len(), 11);
    }

    #[test]
    fn trim_keeps_only_the_reserve() {
        let pool = BufferPool::new(256 * 1024, 16 * 1024 * 1024);
        let all: Vec<Buffer> = std::iter::from_fn(|| pool.try_get()).collect();
        assert_eq!(all.len(), 64);
        drop(all);
        assert_eq!(pool.stats().idle, 64);
        pool.trim();
        assert_eq!(pool.stats(), PoolStats { in_use: 0, in_use_peak: 64, idle: 4, limit: 64 });
    }

    #[test]
    fn threads_share_a_pool() {
        let pool = BufferPool::new(4096, 4 * 4096);
        std::thread::scope(|scope| {
            for mark in 0..4 {
                let pool = pool.clone();
                scope.spawn(move || {
                    for _ in 0..1000 {
                        if let Some(mut buffer) = pool.try_get() {
                            buffer.fill(mark);
                            assert!(buffer.iter().all(|byte| *byte == mark));
                        }
                    }
                });
            }
        });
        assert_eq!(pool.stats().in_use, 0);
    }
}
