//! File trees that look random, are the same on every run, and are compared by SHA-256.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// Bytes made or read at a time: small, so that measuring processes stay small.
const CHUNK_LEN: usize = 256 * 1024;

/// Digest by relative path.
pub type Digests = BTreeMap<PathBuf, [u8; 32]>;

/// Writes `len` bytes that follow from `seed` to `path`, making the folders above it.
///
/// # Errors
/// When the file cannot be written.
pub fn make_file(path: &Path, len: u64, seed: u64) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(Error::file(parent))?;
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut out = BufWriter::with_capacity(CHUNK_LEN, File::create(path).map_err(Error::file(path))?);
    let mut chunk = vec![0; CHUNK_LEN];
    let mut left = len;
    while left > 0 {
        random.fill(&mut chunk);
        let take = left.min(CHUNK_LEN as u64) as usize;
        out.write_all(&chunk[..take]).map_err(Error::file(path))?;
        left -= take as u64;
    }
    out.flush().map_err(Error::file(path))
}

/// A tree under `root` with what trips clients up: empty files, one byte, sizes around a block and a piece, nested
/// folders, names with spaces and beyond ASCII. About 5 MiB.
///
/// # Errors
/// When a file cannot be written.
pub fn make_odd_tree(root: &Path, seed: u64) -> Result<()> {
    let block = 16 * 1024;
    let sizes = [
        ("empty", 0),
        ("one byte", 1),
        ("a/block minus one", block - 1),
        ("a/block", block),
        ("a/block plus one.bin", block + 1),
        ("a/b/empty too", 0),
        ("a/b/c/piece", 256 * 1024),
        ("a/b/c/piece plus seven", 256 * 1024 + 7),
        ("größe/多.dat", 777_777),
        ("large", 3_500_001),
        ("z/last is empty", 0),
    ];
    for (index, (name, len)) in sizes.into_iter().enumerate() {
        make_file(&root.join(name), len, seed + index as u64)?;
    }
    Ok(())
}

/// Digests of all regular files under `root` (or of `root` itself, under the empty path).
///
/// # Errors
/// When something cannot be read.
pub fn digests(root: &Path) -> Result<Digests> {
    let mut found = Digests::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(path) = folders.pop() {
        if path.is_dir() {
            for entry in fs::read_dir(&path).map_err(Error::file(&path))? {
                folders.push(entry.map_err(Error::file(&path))?.path());
            }
        } else {
            let name = path.strip_prefix(root).unwrap_or(&path).to_path_buf();
            found.insert(name, digest(&path)?);
        }
    }
    Ok(found)
}

/// SHA-256 of a file.
///
/// # Errors
/// When it cannot be read.
pub fn digest(path: &Path) -> Result<[u8; 32]> {
    let mut file = File::open(path).map_err(Error::file(path))?;
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; CHUNK_LEN];
    loop {
        match file.read(&mut chunk).map_err(Error::file(path))? {
            0 => return Ok(hasher.finalize().into()),
            len => hasher.update(&chunk[..len]),
        }
    }
}

/// Whether two files are byte for byte the same.
///
/// # Errors
/// When one cannot be read.
pub fn same_file(a: &Path, b: &Path) -> Result<bool> {
    let len = |path: &Path| fs::metadata(path).map(|meta| meta.len()).map_err(Error::file(path));
    Ok(len(a)? == len(b)? && digest(a)? == digest(b)?)
}

/// Says how `got` differs from `wanted`; `None` where it does not. Pad files and state files that clients leave
/// beside the content are ignored.
pub fn difference(wanted: &Digests, got: &Digests) -> Option<String> {
    for (path, digest) in wanted {
        match got.get(path) {
            None => return Some(format!("{} is missing", path.display())),
            Some(other) if other != digest => return Some(format!("{} differs", path.display())),
            Some(_) => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_tree_and_another_does_not() {
        let dir = tempfile::tempdir().unwrap();
        for (name, seed) in [("a", 1), ("b", 1), ("c", 100)] {
            make_odd_tree(&dir.path().join(name), seed).unwrap();
        }
        let of = |name: &str| digests(&dir.path().join(name)).unwrap();
        assert_eq!(of("a").len(), 11);
        assert_eq!(difference(&of("a"), &of("b")), None);
        assert!(difference(&of("a"), &of("c")).is_some());
        fs::remove_file(dir.path().join("b/large")).unwrap();
        assert_eq!(difference(&of("a"), &of("b")).unwrap(), "large is missing");
    }
}
