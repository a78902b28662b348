//! Metadata of magnet links, kept from run to run: who has the content needs nobody to know that it is complete, and who was
//! interrupted goes on at once.
//!
//! A folder of torrents, each named after an info-hash. Nothing in it is trusted: what is read has to have the hash it is looked
//! for by.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anabranch_content::hex;
use anabranch_content::info::InfoHashes;
use anabranch_content::metainfo::{Metainfo, PieceLayers, limits::METAINFO_BYTES_MAX};

/// What names of kept torrents end in: the folder may be one that the user named, with torrents of the user's in it.
const SUFFIX: &str = ".anabranch-metadata";
/// Torrents that are kept; the oldest go first. A million pieces make one of 20 MB, most are a hundredth of that.
const KEPT_MAX: usize = 500;
/// Bytes of all of them.
const KEPT_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// What is kept of a content.
pub(crate) fn load(folder: &Path, hashes: &InfoHashes) -> Option<Metainfo> {
    names(hashes).find_map(|name| {
        let path = folder.join(name);
        let len = fs::metadata(&path).ok()?.len();
        if len > METAINFO_BYTES_MAX as u64 {
            return None;
        }
        let kept = Metainfo::parse(&fs::read(path).ok()?).ok()?;
        let found = kept.info.hashes;
        let same = found.wire_hashes().any(|hash| hashes.wire_hashes().any(|asked| asked == hash));
        same.then_some(kept)
    })
}

/// The Merkle layers that are kept of a content; of one that is not kept its metadata is from now on.
pub(crate) fn layers_or_keep(folder: &Path, torrent: &Metainfo) -> PieceLayers {
    if let Some(kept) = load(folder, &torrent.info.hashes) {
        return kept.piece_layers;
    }
    // Without it the next run asks peers again, and that is all.
    let _ = keep(folder, torrent);
    PieceLayers::new()
}

/// Keeps a content's metadata under each of its hashes.
pub(crate) fn keep(folder: &Path, torrent: &Metainfo) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let bytes = torrent.encode();
    for name in names(&torrent.info.hashes) {
        let temporary = folder.join(format!("{name}-new"));
        fs::write(&temporary, &bytes).and_then(|()| fs::rename(&temporary, folder.join(name))).inspect_err(|_| {
            // What is half written is of no use, and takes room where there is none.
            let _ = fs::remove_file(&temporary);
        })?;
    }
    prune(folder)
}

fn names(hashes: &InfoHashes) -> impl Iterator<Item = String> {
    hashes.wire_hashes().map(|hash| format!("{}{SUFFIX}", hex::encode(&hash)))
}

fn prune(folder: &Path) -> io::Result<()> {
    let mut kept: Vec<(std::time::SystemTime, u64, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_ours = entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_suffix(SUFFIX))
            .is_some_and(|hash| hash.len() == 40 && hash.bytes().all(|digit| digit.is_ascii_hexdigit()));
        if let Ok(meta) = entry.metadata()
            && is_ours
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
    use anabranch_content::create::{CreateOptions, create};

    fn torrent_of(dir: &Path, byte: u8) -> Metainfo {
        let path = dir.join("file");
        fs::write(&path, [byte; 40_000]).unwrap();
        let made = create(&path, &CreateOptions::default(), &false.into(), |_, _| {}).unwrap();
        Metainfo::parse(&made.metainfo).unwrap()
    }

    #[test]
    fn what_is_kept_is_found_by_either_hash_and_proves_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, torrent) = (dir.path().join("kept"), torrent_of(dir.path(), 1));
        assert!(load(&folder, &torrent.info.hashes).is_none());
        keep(&folder, &torrent).unwrap();
        let hashes = torrent.info.hashes;
        for asked in [InfoHashes { v2: None, ..hashes }, InfoHashes { v1: None, ..hashes }] {
            let found = load(&folder, &asked).unwrap();
            assert_eq!((&found.info, &found.piece_layers), (&torrent.info, &torrent.piece_layers));
        }
        let other = torrent_of(dir.path(), 2).info.hashes;
        let without = Metainfo { piece_layers: PieceLayers::new(), ..torrent.clone() };
        assert_eq!(layers_or_keep(&folder, &without), torrent.piece_layers);
        let name = |hashes: &InfoHashes| folder.join(names(hashes).next().unwrap());
        fs::copy(name(&hashes), name(&other)).unwrap();
        assert!(load(&folder, &other).is_none(), "another content under this name");
        fs::write(name(&other), "d4:infodee").unwrap();
        assert!(load(&folder, &other).is_none());
    }

    #[test]
    fn what_cannot_be_kept_leaves_nothing_half_written() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, torrent) = (dir.path().join("kept"), torrent_of(dir.path(), 1));
        let in_the_way = folder.join(names(&torrent.info.hashes).next().unwrap());
        fs::create_dir_all(in_the_way.join("something")).unwrap();
        keep(&folder, &torrent).unwrap_err();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn the_oldest_go_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let mine = dir.path().join(format!("{:040x}.torrent", 0));
        fs::write(&mine, "").unwrap();
        for number in 0..KEPT_MAX + 3 {
            let path = dir.path().join(format!("{number:040x}{SUFFIX}"));
            let age = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(number as u64);
            fs::File::create(path).unwrap().set_modified(age).unwrap();
        }
        prune(dir.path()).unwrap();
        let exists = |number: usize| dir.path().join(format!("{number:040x}{SUFFIX}")).exists();
        assert!(!exists(2) && exists(3) && exists(KEPT_MAX + 2) && mine.exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), KEPT_MAX + 1);
    }
}
