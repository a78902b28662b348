//! A folder of what peers told of contents, kept from run to run: who has a content needs nobody to know that it is complete, and who
//! was interrupted goes on at once.
//!
//! Each file is named after a hash of 20 bytes and what it is. Nothing in it is trusted: whoever reads it checks it against the hash.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anabranch_content::hex;
use anabranch_content::info::Sha1Digest;

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The metadata of a magnet link, as a torrent.
    Metadata,
    /// The list of a folder's files, with what proves it.
    List,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Metadata, Self::List];

    /// What names end in: the folder may be one that the user named, with torrents of the user's in it.
    fn suffix(self) -> &'static str {
        match self {
            Self::Metadata => ".anabranch-metadata",
            Self::List => ".anabranch-list",
        }
    }
}

/// Files that are kept; the oldest go first. A million pieces make metadata of 20 MB, most are a hundredth of that.
const KEPT_MAX: usize = 500;
/// Bytes of all of them.
const KEPT_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Where it is, in `folder`.
fn path(folder: &Path, kind: Kind, hash: &Sha1Digest) -> PathBuf {
    folder.join(format!("{}{}", hex::encode(hash), kind.suffix()))
}

/// What is kept under a hash, if it is no longer than `len_max`.
pub(crate) fn load(folder: &Path, kind: Kind, hash: &Sha1Digest, len_max: u64) -> Option<Vec<u8>> {
    read(&path(folder, kind, hash), len_max)
}

/// A file, if it can be read and is no longer than `len_max`.
pub(crate) fn read(path: &Path, len_max: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(len_max.saturating_add(1)).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= len_max).then_some(bytes)
}

/// Keeps `bytes` under a hash, and lets the oldest go.
pub(crate) fn keep(folder: &Path, kind: Kind, hash: &Sha1Digest, bytes: &[u8]) -> io::Result<()> {
    write(&path(folder, kind, hash), bytes)?;
    prune(folder)
}

/// Puts a file in its place as a whole; the folder is made where it is missing.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push("-new");
    fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, path)).inspect_err(|_| {
        // What is half written is of no use, and takes room where there is none.
        let _ = fs::remove_file(&temporary);
    })
}

fn is_ours(name: &str) -> bool {
    let hash = Kind::ALL.iter().find_map(|kind| name.strip_suffix(kind.suffix()));
    hash.is_some_and(|hash| hash.len() == 40 && hash.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

fn prune(folder: &Path) -> io::Result<()> {
    let mut kept: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if let Ok(meta) = entry.metadata()
            && entry.file_name().to_str().is_some_and(is_ours)
        {
            kept.push((meta.modified()?, meta.len(), entry.path()));
        }
    }
    kept.sort_by(|one, other| other.cmp(one));
    let mut bytes = 0;
    for (at, (_, len, path)) in kept.into_iter().enumerate() {
        bytes += len;
        if at >= KEPT_MAX || bytes > KEPT_BYTES_MAX {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_by_what_it_is_and_no_longer_than_it_may_be() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, hash) = (dir.path().join("kept"), [7; 20]);
        assert_eq!(load(&folder, Kind::List, &hash, 9), None);
        keep(&folder, Kind::List, &hash, b"files").unwrap();
        assert_eq!(load(&folder, Kind::List, &hash, 5).as_deref(), Some(&b"files"[..]));
        assert_eq!(load(&folder, Kind::List, &hash, 4), None);
        assert_eq!(load(&folder, Kind::Metadata, &hash, 9), None);
        keep(&folder, Kind::List, &hash, b"more").unwrap();
        assert_eq!(load(&folder, Kind::List, &hash, 9).as_deref(), Some(&b"more"[..]));
    }

    #[test]
    fn what_cannot_be_kept_leaves_nothing_half_written() {
        let dir = tempfile::tempdir().unwrap();
        let in_the_way = path(dir.path(), Kind::Metadata, &[1; 20]);
        fs::create_dir_all(in_the_way.join("something")).unwrap();
        keep(dir.path(), Kind::Metadata, &[1; 20], b"torrent").unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_oldest_go_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let mine = dir.path().join(format!("{:040x}.torrent", 0));
        fs::write(&mine, "").unwrap();
        let name = |number: usize| format!("{number:040x}{}", Kind::ALL[number % 2].suffix());
        for number in 0..KEPT_MAX + 3 {
            let age = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(number as u64);
            File::create(dir.path().join(name(number))).unwrap().set_modified(age).unwrap();
        }
        prune(dir.path()).unwrap();
        let exists = |number: usize| dir.path().join(name(number)).exists();
        assert!(!exists(2) && exists(3) && exists(KEPT_MAX + 2) && mine.exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), KEPT_MAX + 1);
    }
}
