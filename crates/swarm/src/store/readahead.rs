//! Reading ahead of `sendfile`, which would otherwise wait for the disk on the network thread.
//!
//! Before a chunk of a piece is sent the page cache is asked whether it has it, without waiting (`RWF_NOWAIT`). Where it
//! does not, a disk thread reads the chunk, tells the kernel that the rest of the piece is wanted soon, and the connection
//! goes on when it is done; the others never notice. What the kernel drops again in between costs a wait and nothing else.
//! While a content is found not to be there, the kernel is told early of all that a peer has asked for ([`advise`]), so that the
//! disk is busy while the network is.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

use anabranch_content::storage::{self, SendSegment, Storage};

/// Read ahead of what is sent, in bytes: on a spinning disk as long as one seek takes.
const AHEAD_BYTES: u64 = 1024 * 1024;
/// What is read to have it in the page cache goes through a buffer that stays in the processor's.
const STEP_LEN: u64 = 64 * 1024;
/// Files looked at for one chunk: where it is cut into more, the rest is waited for.
const SEGMENTS_MAX: usize = 4;

/// Whether `len` bytes of piece space from `offset` can be sent without waiting for a disk, judged by the first and the
/// last of them in each file. File systems that cannot say (tmpfs) are taken to hold everything in memory.
pub(crate) fn is_cached(storage: &Storage, offset: u64, len: u64) -> bool {
    storage.segments(offset, len).take(SEGMENTS_MAX).all(|segment| match segment {
        Ok(SendSegment::File { file, offset, len, .. }) => {
            let last = offset + len.saturating_sub(1);
            is_byte_cached(&file, offset) && (last == offset || is_byte_cached(&file, last))
        }
        // Sending finds out what is wrong.
        Ok(SendSegment::Pad(_)) | Err(_) => true,
    })
}

/// Reads `len` bytes into the page cache, and has the kernel begin with what follows, up to `end` at most.
pub(crate) fn read(storage: &Storage, offset: u64, len: u64, end: u64) {
    advise(storage, offset, (end - offset).min(AHEAD_BYTES.max(len)));
    let mut step = vec![0; len.min(STEP_LEN) as usize];
    for at in (0..len).step_by(STEP_LEN as usize) {
        let step = &mut step[..(len - at).min(STEP_LEN) as usize];
        // Where this fails, sending fails too and says why.
        if storage.read_at(offset + at, step).is_err() {
            return;
        }
    }
}

/// Has the kernel begin to read `len` bytes into the page cache.
pub(crate) fn advise(storage: &Storage, offset: u64, len: u64) {
    for segment in storage.segments(offset, len).take(SEGMENTS_MAX).flatten() {
        if let SendSegment::File { file, offset, len, .. } = segment {
            storage::advise(&file, offset, len, libc::POSIX_FADV_WILLNEED);
        }
    }
}

fn is_byte_cached(file: &File, offset: u64) -> bool {
    let mut byte = 0u8;
    let vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: one vector, of one byte that outlives the call.
    let read =
        unsafe { libc::preadv2(file.as_raw_fd(), &raw const vector, 1, offset as libc::off_t, libc::RWF_NOWAIT) };
    read >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EAGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_was_dropped_from_the_cache_is_noticed_and_read_back() {
        // On a disk where there is one: a file system in memory always says yes.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut file = File::options().read(true).write(true).create_new(true).open(dir.path().join("f")).unwrap();
        file.write_all(&vec![7; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        assert!(is_byte_cached(&file, 0));
        storage::advise(&file, 0, 0, libc::POSIX_FADV_DONTNEED);
        let dropped = !is_byte_cached(&file, 1 << 19);
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, 1 << 19).unwrap();
        assert!(is_byte_cached(&file, 1 << 19), "it was dropped before: {dropped}");
        assert!(is_byte_cached(&file, 1 << 30), "past the end there is nothing to wait for");
    }
}
