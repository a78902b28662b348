//! Positional vectored writes that do all they were asked to, or say why not.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Slices handed to one `pwritev`: a 4 MiB piece in 16 KiB blocks, in 4 KiB of stack (the system's limit is 1024).
const SLICES_PER_CALL: usize = 256;

/// What is looked at as a whole in search of zeros: what file systems keep as a whole.
const PAGE_LEN: usize = 4096;
/// Shorter runs of zeros are written: a hole costs a system call, and a record in the file system.
const HOLE_LEN_MIN: u64 = 32 * 1024;

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
            match self.write_some(file, offset, len, |_| true).unwrap_or(Ok(0)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.advance(written);
                    offset += written;
                    len -= written;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// One system call's worth of the next `len` bytes; answers how many were written and stays where it is. `None` where one of the
    /// vectors does not fit.
    pub(super) fn write_some(
        &self,
        file: &File,
        offset: u64,
        len: u64,
        fits: impl FnMut(&libc::iovec) -> bool,
    ) -> Option<io::Result<u64>> {
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; SLICES_PER_CALL];
        let count = self.fill(&mut vectors, len);
        if !vectors[..count].iter().all(fits) {
            return None;
        }
        #[cfg(test)]
        WRITE_CALLS.with(|calls| calls.set(calls.get() + 1));
        // SAFETY: the first `count` vectors point into slices that outlive the call, which only reads them.
        let written =
            unsafe { libc::pwritev(file.as_raw_fd(), vectors.as_ptr(), count as libc::c_int, offset as libc::off_t) };
        Some(u64::try_from(written).map_err(|_| io::Error::last_os_error()))
    }

    /// Copies the next bytes, as many as `into` holds or are left, and stays where it is.
    pub(super) fn copy_to(&self, mut into: &mut [u8]) {
        let mut skip = self.skip;
        for slice in self.slices {
            let bytes = &slice[std::mem::take(&mut skip)..];
            let (now, rest) = into.split_at_mut(bytes.len().min(into.len()));
            now.copy_from_slice(&bytes[..now.len()]);
            into = rest;
        }
    }

    /// Gives the next `len` bytes to `write`, run by run with their offset in `file`, and makes holes of runs of zeros where the file
    /// system can.
    pub(super) fn write_sparse(
        &mut self,
        file: &File,
        mut offset: u64,
        mut len: u64,
        write: impl Fn(&mut Self, u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        while len > 0 {
            let (data, zeros) = self.next_hole(len);
            write(self, offset, data)?;
            if zeros > 0 && !make_hole(file, offset + data, zeros) {
                write(self, offset + data, zeros)?;
            } else {
                self.advance(zeros);
            }
            offset += data + zeros;
            len -= data + zeros;
        }
        Ok(())
    }

    /// Bytes up to the next run of [`HOLE_LEN_MIN`] zeros among the next `len`, and how long that run is. Where all are zeros, a page of
    /// them is enough: a hole in place of the whole write costs no more than that, and pieces of small contents are no longer than 16 KiB.
    fn next_hole(&self, len: u64) -> (u64, u64) {
        let (mut at, mut zeros) = (0, 0);
        for page in self.pages(len) {
            if is_zero(page) {
                zeros += page.len() as u64;
            } else if zeros >= HOLE_LEN_MIN {
                return (at - zeros, zeros);
            } else {
                zeros = 0;
            }
            at += page.len() as u64;
        }
        let is_all = zeros == len && len >= PAGE_LEN as u64;
        if zeros >= HOLE_LEN_MIN || is_all { (at - zeros, zeros) } else { (len, 0) }
    }

    /// Whether each of the next `len` bytes is in `file` from `offset` already, or nothing is there: a zero, or the file's end.
    /// Downloads of other programs are filled from anywhere to anywhere.
    pub(super) fn is_on_disk_or_blank(&self, file: &File, mut offset: u64, len: u64) -> io::Result<bool> {
        let mut there = [0; PAGE_LEN];
        for page in self.pages(len) {
            let got = read_up_to(file, &mut there[..page.len()], offset)?;
            let is_same_or_blank = || there[..got].iter().zip(page).all(|(there, byte)| there == byte || *there == 0);
            if there[..got] != page[..got] && !is_same_or_blank() {
                return Ok(false);
            }
            offset += page.len() as u64;
        }
        Ok(true)
    }

    /// The next `len` bytes in runs of up to [`PAGE_LEN`].
    fn pages(&self, len: u64) -> impl Iterator<Item = &'a [u8]> {
        let (mut skip, mut left) = (self.skip, len);
        self.slices.iter().flat_map(move |slice| {
            let bytes = &slice[std::mem::take(&mut skip)..];
            let take = left.min(bytes.len() as u64);
            left -= take;
            bytes[..take as usize].chunks(PAGE_LEN)
        })
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

/// The first bytes tell of nearly all that is no zeros.
fn is_zero(bytes: &[u8]) -> bool {
    let (head, rest) = bytes.split_at(bytes.len().min(size_of::<u128>()));
    // SAFETY: any bytes are a valid u128.
    let (before, words, after) = unsafe { rest.align_to::<u128>() };
    let none = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    none(head) && none(before) && words.iter().all(|word| *word == 0) && none(after)
}

/// Whether `len` bytes of `file` from `offset` are a hole now.
fn make_hole(file: &File, offset: u64, len: u64) -> bool {
    let (from, fd) = (offset as libc::off_t, file.as_raw_fd());
    // SAFETY: the descriptor is open; no memory is involved.
    let data = unsafe { libc::lseek(fd, from, libc::SEEK_DATA) };
    let is_hole = match data {
        -1 => io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO), // a hole up to the end
        data => data >= from + len as libc::off_t,
    };
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the descriptor is open; no memory is involved.
    is_hole || unsafe { libc::fallocate(fd, mode, from, len as libc::off_t) } == 0
}

/// Fewer bytes only at the end of the file.
fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

#[cfg(test)]
thread_local! {
    pub(super) static WRITE_CALLS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::MetadataExt;

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

        /// Whatever was there and wherever the zeros are.
        #[test]
        fn holes_read_as_the_zeros_that_they_are(
            runs in proptest::collection::vec((any::<bool>(), 0usize..100_000), 1..6), slice in 1usize..70_000, offset in 0u64..9000,
            before in any::<bool>(),
        ) {
            let all: Vec<u8> = runs.iter().flat_map(|(zero, len)| vec![u8::from(!*zero); *len]).collect();
            let slices: Vec<IoSlice> = all.chunks(slice).map(IoSlice::new).collect();
            let file = tempfile::tempfile().unwrap();
            file.set_len(offset + all.len() as u64).unwrap();
            if before {
                file.write_all_at(&vec![9; all.len()], offset).unwrap();
            }
            prop_assert_eq!(Cursor::new(&slices).is_on_disk_or_blank(&file, offset, all.len() as u64).unwrap(), !before || all.is_empty());
            let write = |cursor: &mut Cursor, offset, len| cursor.write_to(&file, offset, len);
            Cursor::new(&slices).write_sparse(&file, offset, all.len() as u64, write).unwrap();
            let mut back = vec![0; all.len()];
            file.read_exact_at(&mut back, offset).unwrap();
            prop_assert!(back == all);
            prop_assert!(Cursor::new(&slices).is_on_disk_or_blank(&file, offset, all.len() as u64).unwrap());
        }
    }

    #[test]
    fn long_runs_of_zeros_take_no_space() {
        let file = tempfile::tempfile().unwrap();
        let (zeros, ones) = (vec![0; 1 << 20], vec![1; 1 << 16]);
        file.set_len((1 << 20) + (1 << 16)).unwrap();
        for _ in 0..2 {
            Cursor::new(&[IoSlice::new(&zeros), IoSlice::new(&ones)])
                .write_sparse(&file, 0, (1 << 20) + (1 << 16), |cursor, offset, len| {
                    cursor.write_to(&file, offset, len)
                })
                .unwrap();
            file.sync_all().unwrap();
            assert!(file.metadata().unwrap().blocks() * 512 < 1 << 18);
            file.write_all_at(&zeros, 0).unwrap();
        }
    }

    #[test]
    fn a_write_of_zeros_alone_is_a_hole_from_a_page_on() {
        let zeros = vec![0; 16 << 10];
        let next_hole = |len: usize| Cursor::new(&[IoSlice::new(&zeros[..len])]).next_hole(len as u64);
        assert_eq!(next_hole(zeros.len()), (0, 16 << 10));
        assert_eq!(next_hole(PAGE_LEN), (0, PAGE_LEN as u64));
        assert_eq!(next_hole(PAGE_LEN - 1), (PAGE_LEN as u64 - 1, 0));
        let one = [1; PAGE_LEN];
        let mixed = [IoSlice::new(&zeros), IoSlice::new(&one)];
        let len = (zeros.len() + PAGE_LEN) as u64;
        assert_eq!(Cursor::new(&mixed).next_hole(len), (len, 0), "a short run beside what is written anyway");
    }
}
