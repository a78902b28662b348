//! A content that is hashed: what stands in front, and files, one behind the other.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::HashError;

/// A file, as it was when it was found.
#[derive(Debug)]
pub(super) struct Part {
    path: PathBuf,
    stamp: [u64; 5],
}

impl Part {
    pub(super) fn new(path: PathBuf, meta: &Metadata) -> Self {
        Self { path, stamp: stamp(meta) }
    }

    fn len(&self) -> u64 {
        self.stamp[0]
    }
}

/// A content's bytes, in their order.
#[derive(Debug)]
pub(super) struct Parts {
    head: Vec<u8>,
    files: Vec<Part>,
    len: u64,
}

impl Parts {
    /// What stands in front, and the files.
    pub(super) fn new(head: Vec<u8>, files: Vec<Part>) -> Self {
        // Who shares them was held to less than 2^48 bytes, and one file has less than 2^63.
        let len = files.iter().map(Part::len).fold(head.len() as u64, u64::saturating_add);
        Self { head, files, len }
    }

    /// Bytes in all.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// What stands in front of the files.
    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    /// What would have any file be another.
    pub(super) fn stamps(&self) -> impl Iterator<Item = &[u64; 5]> {
        self.files.iter().map(|file| &file.stamp)
    }

    /// Reads it from its beginning.
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader { head: &self.head, files: &self.files, open: None }
    }
}

/// Where reading is.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    head: &'a [u8],
    files: &'a [Part],
    /// A file that was begun, and bytes of it that are left.
    open: Option<(File, u64)>,
}

impl Reader<'_> {
    /// The next bytes, as many as there is room for, or as there are: none at the end.
    ///
    /// # Errors
    /// A file cannot be read, or is not what it was when it was found.
    pub(super) fn fill(&mut self, room: &mut [u8]) -> Result<usize, HashError> {
        let (front, rest) = self.head.split_at(self.head.len().min(room.len()));
        room[..front.len()].copy_from_slice(front);
        self.head = rest;
        let mut len = front.len();
        while len < room.len()
            && let Some(file) = self.files.first()
        {
            let failed = |source| HashError::Read { path: file.path.clone(), source };
            let (mut opened, left) = match self.open.take() {
                Some(open) => open,
                None => (File::open(&file.path).map_err(failed)?, file.len()),
            };
            let want = left.min((room.len() - len) as u64) as usize;
            let got = read(&mut opened, &mut room[len..len + want]).map_err(failed)?;
            len += got;
            let left = left - got as u64;
            if left == 0 {
                unchanged(&opened, file)?;
                self.files = &self.files[1..];
            } else if got < want {
                return Err(HashError::Changed(file.path.clone()));
            } else {
                self.open = Some((opened, left));
            }
        }
        Ok(len)
    }
}

/// Fills `room`, unless the file ends before.
fn read(file: &mut File, room: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < room.len() {
        match file.read(&mut room[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

/// Nobody wrote to the file, or put another in its place, while it was read.
fn unchanged(opened: &File, file: &Part) -> Result<(), HashError> {
    let failed = |path: &Path, source| HashError::Read { path: path.into(), source };
    let meta = opened.metadata().map_err(|source| failed(&file.path, source))?;
    if stamp(&meta) == file.stamp { Ok(()) } else { Err(HashError::Changed(file.path.clone())) }
}

/// What of a file changes when somebody writes to it, or puts another in its place.
fn stamp(meta: &Metadata) -> [u64; 5] {
    [meta.len(), meta.ino(), meta.dev(), meta.mtime() as u64, meta.mtime_nsec() as u64]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_every_length_are_one_stream() {
        let dir = tempfile::tempdir().unwrap();
        let lengths = [3usize, 1, 0, 4096, 17, 100_000];
        let (mut whole, mut files) = (b"head".to_vec(), Vec::new());
        for (at, len) in lengths.into_iter().enumerate() {
            let bytes: Vec<u8> = (0..len).map(|byte| (byte * 7 + at) as u8).collect();
            let path = dir.path().join(at.to_string());
            std::fs::write(&path, &bytes).unwrap();
            whole.extend(&bytes);
            files.push(Part::new(path.clone(), &std::fs::metadata(&path).unwrap()));
        }
        let parts = Parts::new(b"head".to_vec(), files);
        assert_eq!(parts.len(), whole.len() as u64);
        for room in [1, 2, 5, 1000, 200_000] {
            let (mut reader, mut got, mut buffer) = (parts.reader(), Vec::<u8>::new(), vec![0; room]);
            loop {
                let len = reader.fill(&mut buffer).unwrap();
                got.extend(&buffer[..len]);
                if len < room {
                    break;
                }
            }
            assert!(got == whole, "in steps of {room}");
            assert_eq!(reader.fill(&mut buffer).unwrap(), 0);
        }
        // Longer, shorter, gone.
        std::fs::write(dir.path().join("4"), [0; 18]).unwrap();
        assert!(
            matches!(parts.reader().fill(&mut vec![0; 200_000]), Err(HashError::Changed(path)) if path.ends_with("4"))
        );
        std::fs::write(dir.path().join("3"), [0; 18]).unwrap();
        assert!(
            matches!(parts.reader().fill(&mut vec![0; 200_000]), Err(HashError::Changed(path)) if path.ends_with("3"))
        );
        std::fs::remove_file(dir.path().join("1")).unwrap();
        assert!(matches!(parts.reader().fill(&mut [0; 9]), Err(HashError::Read { path, .. }) if path.ends_with("1")));
    }
}
