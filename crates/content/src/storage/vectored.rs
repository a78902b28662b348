//! Positional vectored writes that do all they were asked to, or say why not.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;

/// Slices handed to one `pwritev`: a 4 MiB piece in 16 KiB blocks, in 4 KiB of stack (the system's limit is 1024).
const SLICES_PER_CALL: usize = 256;

/// A place in a list of slices.
pub(super) struct Cursor<'a> {
    slices: &'a [IoSlice<'a>],
    skip: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(slices: &'a [IoSlice<'a>]) -> Self {
        Self { slices, skip: 0 }
    }

    /// Goes on by `len` bytes, or to the end.
    pub(super) fn advance(&mut self, mut len: u64) {
        while let Some((first, rest)) = self.slices.split_first() {
            let left = (first.len() - self.skip) as u64;
            if len < left {
                self.skip += len as usize;
                return;
            }
            len -= left;
            (self.slices, self.skip) = (rest, 0);
        }
    }

    /// Writes the next `len` bytes to `file` from `offset`: one system call where the slices are few and the disk takes all.
    pub(super) fn write_to(&mut self, file: &File, mut offset: u64, mut len: u64) -> io::Result<()> {
        while len > 0 {
            let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; SLICES_PER_CALL];
            let count = self.fill(&mut vectors, len);
            #[cfg(test)]
            WRITE_CALLS.with(|calls| calls.set(calls.get() + 1));
            // SAFETY: the first `count` vectors point into slices that outlive the call, which only reads them.
            let written = unsafe {
                libc::pwritev(file.as_raw_fd(), vectors.as_ptr(), count as libc::c_int, offset as libc::off_t)
            };
            match u64::try_from(written) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.advance(written);
                    offset += written;
                    len -= written;
                }
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Describes up to `len` of the next bytes; answers how many vectors that took.
    fn fill(&self, vectors: &mut [libc::iovec; SLICES_PER_CALL], mut len: u64) -> usize {
        let mut count = 0;
        let mut skip = self.skip;
        for slice in self.slices {
            if len == 0 || count == vectors.len() {
                break;
            }
            let bytes = &slice[skip..];
            skip = 0;
            let take = len.min(bytes.len() as u64);
            if take > 0 {
                vectors[count] = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: take as usize };
                count += 1;
                len -= take;
            }
        }
        count
    }
}

#[cfg(test)]
thread_local! {
    pub(super) static WRITE_CALLS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::FileExt;

    proptest! {
        #[test]
        fn any_cut_of_any_slices_arrives(
            parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..600), cut in 0usize..9000,
        ) {
            let all: Vec<u8> = parts.concat();
            let cut = cut.min(all.len());
            let slices: Vec<IoSlice> = parts.iter().map(|part| IoSlice::new(part)).collect();
            let (first, second) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
            let mut cursor = Cursor::new(&slices);
            cursor.write_to(&first, 0, cut as u64).unwrap();
            cursor.write_to(&second, 0, (all.len() - cut) as u64).unwrap();
            let mut back = vec![0; all.len()];
            first.read_exact_at(&mut back[..cut], 0).unwrap();
            second.read_exact_at(&mut back[cut..], 0).unwrap();
            prop_assert_eq!(back, all);
        }
    }
}
