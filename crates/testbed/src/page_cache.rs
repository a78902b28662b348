//! Files in and out of the page cache, so that all contenders of a row begin alike and what they leave can be told.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::{Error, Result};

/// Writes out what is not on the disk yet, of the whole machine, and drops `file` from the page cache.
///
/// # Errors
/// When it cannot be opened.
pub fn drop_file(file: &Path) -> Result<()> {
    // SAFETY: takes nothing.
    unsafe { libc::sync() };
    let file = File::open(file).map_err(Error::file(file))?;
    // SAFETY: the descriptor is open; the call only advises.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

/// Reads all of `path`, so that it is in the page cache.
///
/// # Errors
/// When it cannot be read.
pub fn warm_file(path: &Path) -> Result<()> {
    crate::raw::read_file(path, crate::raw::Access::Cached).map(drop)
}

/// Bytes of `path` in the page cache, in whole pages (mincore(2)).
///
/// # Errors
/// When it cannot be mapped.
pub fn cached_bytes(path: &Path) -> Result<u64> {
    let file = File::open(path).map_err(Error::file(path))?;
    let len = file.metadata().map_err(Error::file(path))?.len() as usize;
    if len == 0 {
        return Ok(0);
    }
    // SAFETY: takes an integer only.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let mut pages = vec![0u8; len.div_ceil(page)];
    // SAFETY: a fresh mapping at an address of the kernel's choice; nothing is read through it, and it goes before the file.
    let told = unsafe {
        let map = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        if map == libc::MAP_FAILED {
            return Err(Error::last_os(format!("mapping {}", path.display())));
        }
        let told = libc::mincore(map, len, pages.as_mut_ptr());
        libc::munmap(map, len);
        told
    };
    if told != 0 {
        return Err(Error::last_os(format!("mincore of {}", path.display())));
    }
    Ok((pages.iter().filter(|page| **page & 1 != 0).count() * page) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_counted_in_the_cache_once_it_was_read() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("file");
        crate::data::make_file(&path, 1_000_001, 5).unwrap();
        drop_file(&path).unwrap();
        assert!(cached_bytes(&path).unwrap() <= 1_003_520);
        warm_file(&path).unwrap();
        assert_eq!(cached_bytes(&path).unwrap(), 1_003_520);
    }
}
