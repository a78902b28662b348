//! What of a file is in memory already.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

/// `cachestat`, which `libc` does not name on all of these.
const CACHESTAT: Option<libc::c_long> =
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")) { Some(451) } else { None };

/// `struct cachestat_range` of Linux 6.5.
#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

/// `struct cachestat` of Linux 6.5, in pages.
#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Bytes of `file` from `offset` on, among the next `len`, that are in the page cache, in whole pages. `None` where the kernel does
/// not say: before Linux 6.5, of another user's file, and where a filter of system calls does not know the question. Nor of a file on an
/// overlay, where the answer would be 0 whatever there is: the pages are those of the file below.
pub(crate) fn cached_bytes(file: &File, offset: u64, len: u64) -> Option<u64> {
    if file_system(file)? == libc::OVERLAYFS_SUPER_MAGIC {
        return None;
    }
    let (range, mut counts) = (Range { offset, len }, Counts::default());
    let (range, counts_at) = (&raw const range, &raw mut counts);
    // SAFETY: the descriptor is open; both structures are of the kind that the call reads and fills, and outlive it.
    let asked = unsafe { libc::syscall(CACHESTAT?, file.as_raw_fd(), range, counts_at, 0) };
    // SAFETY: takes an integer only.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    (asked == 0).then(|| counts.cached * u64::try_from(page).unwrap_or(0))
}

/// The kind of file system that `file` is on, as fstatfs(2) numbers them.
pub(crate) fn file_system(file: &File) -> Option<libc::__fsword_t> {
    // SAFETY: all-zero is a valid statfs.
    let mut stats: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open; the structure is the call's to fill.
    let told = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut stats) } == 0;
    told.then_some(stats.f_type)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_was_just_written_is_in_the_cache_until_it_is_dropped() {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&[1; 1 << 20]).unwrap();
        let Some(cached) = cached_bytes(&file, 0, 1 << 20) else { return };
        assert_eq!((cached, cached_bytes(&file, 1 << 20, 1 << 20)), (1 << 20, Some(0)));
        file.sync_all().unwrap();
        crate::storage::advise(&file, 0, 0, libc::POSIX_FADV_DONTNEED);
        assert!(cached_bytes(&file, 0, 1 << 20).is_some_and(|cached| cached <= 1 << 20));
    }
}
