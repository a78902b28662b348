//! A file that is read once, from front to back, and leaves the page cache as it was.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::page_cache::cached_bytes;

/// A file on its way out.
#[derive(Debug)]
pub struct Reading {
    file: File,
    /// It was not in the page cache when it was opened, as far as the kernel tells: what is read of it need not stay.
    was_cold: bool,
}

impl Reading {
    /// Has the kernel read ahead of us.
    pub fn new(file: File) -> Self {
        let was_cold = cached_bytes(&file, 0, 0) == Some(0);
        advise(&file, 0, 0, libc::POSIX_FADV_SEQUENTIAL);
        Self { file, was_cold }
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Fills `into` from `offset` on.
    pub fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(into, offset)?;
        if self.was_cold {
            advise(&self.file, offset, into.len() as u64, libc::POSIX_FADV_DONTNEED);
        }
        Ok(())
    }
}

/// Says what will be done with `len` bytes of `file` from `offset` on, or with all that follow where `len` is 0: `advice` is one of
/// posix_fadvise(2).
pub fn advise(file: &File, offset: u64, len: u64, advice: libc::c_int) {
    // SAFETY: the descriptor is open; the call only advises.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset as libc::off_t, len as libc::off_t, advice) };
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_read_is_there() {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&[7; 300_000]).unwrap();
        for was_cold in [false, true] {
            let reading = Reading { file: file.try_clone().unwrap(), was_cold };
            let mut into = vec![0; 100_000];
            reading.read_exact_at(&mut into, 123).unwrap();
            assert_eq!(into, [7; 100_000]);
            assert!(reading.read_exact_at(&mut into, 250_000).is_err());
        }
    }
}
