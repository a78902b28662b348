//! The file that is fetched: noise, so that nothing on the way can make it smaller.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::DemoError;

/// Bytes written and compared in one go.
const CHUNK_BYTES: usize = 1 << 20;
/// The same file every time.
const SEED: u64 = 1;

/// A file or folder that is of no use afterwards: removed when dropped, and before, where an earlier demo left one.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(path: &Path) -> Self {
        let scratch = Self(path.to_path_buf());
        scratch.remove();
        scratch
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn remove(&self) {
        // What is not there needs no removing; what cannot be removed shows when it is written anew.
        let _ = if self.0.is_dir() { fs::remove_dir_all(&self.0) } else { fs::remove_file(&self.0) };
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Writes a file of `bytes`.
pub(crate) fn write(path: &Path, bytes: u64, cancel: &AtomicBool) -> Result<(), DemoError> {
    let failed = |error| DemoError::file(path, error);
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut file = File::create(path).map_err(failed)?;
    let mut left = bytes;
    while left > 0 {
        if cancel.load(Ordering::Relaxed) {
            return Err(DemoError::Canceled);
        }
        let count = left.min(CHUNK_BYTES as u64) as usize;
        random.fill(&mut chunk[..count]);
        file.write_all(&chunk[..count]).map_err(failed)?;
        left -= count as u64;
    }
    Ok(())
}

/// Whether two files hold the same.
pub(crate) fn is_same(one: &Path, other: &Path) -> Result<bool, DemoError> {
    let open = |path: &Path| File::open(path).map_err(|error| DemoError::file(path, error));
    let (mut a, mut b) = (open(one)?, open(other)?);
    let (mut ours, mut theirs) = (Vec::with_capacity(CHUNK_BYTES), Vec::with_capacity(CHUNK_BYTES));
    loop {
        ours.clear();
        theirs.clear();
        (&mut a).take(CHUNK_BYTES as u64).read_to_end(&mut ours).map_err(|error| DemoError::file(one, error))?;
        (&mut b).take(CHUNK_BYTES as u64).read_to_end(&mut theirs).map_err(|error| DemoError::file(other, error))?;
        if ours != theirs {
            return Ok(false);
        }
        if ours.is_empty() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_compared_to_their_last_byte() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
        let go_on = AtomicBool::new(false);
        let bytes = CHUNK_BYTES as u64 + 7;
        write(&a, bytes, &go_on).unwrap();
        write(&b, bytes, &go_on).unwrap();
        assert!(is_same(&a, &b).unwrap());
        write(&b, bytes - 1, &go_on).unwrap();
        assert!(!is_same(&a, &b).unwrap());
        assert!(is_same(&a, &dir.path().join("c")).is_err());
        assert!(matches!(write(&b, bytes, &AtomicBool::new(true)), Err(DemoError::Canceled)));
        drop(Scratch::new(&a));
        assert!(!a.exists());
    }
}
