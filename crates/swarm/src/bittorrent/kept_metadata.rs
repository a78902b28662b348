//! Metadata of magnet links, kept from run to run, under each of a content's hashes: see [`kept`].

use std::io;
use std::path::Path;

use anabranch_content::info::InfoHashes;
use anabranch_content::metainfo::{Metainfo, PieceLayers, limits::METAINFO_BYTES_MAX};

use crate::store::kept::{self, Kind};

/// What is kept of a content.
pub(crate) fn load(folder: &Path, hashes: &InfoHashes) -> Option<Metainfo> {
    hashes.wire_hashes().find_map(|hash| {
        let kept = Metainfo::parse(&kept::load(folder, Kind::Metadata, &hash, METAINFO_BYTES_MAX as u64)?).ok()?;
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
    let bytes = torrent.encode();
    torrent.info.hashes.wire_hashes().try_for_each(|hash| kept::keep(folder, Kind::Metadata, &hash, &bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use anabranch_content::create::{CreateOptions, create};
    use anabranch_content::hex;

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
        let name = |hashes: &InfoHashes| {
            folder.join(format!("{}.anabranch-metadata", hex::encode(&hashes.wire_hashes().next().unwrap())))
        };
        fs::copy(name(&hashes), name(&other)).unwrap();
        assert!(load(&folder, &other).is_none(), "another content under this name");
        fs::write(name(&other), "d4:infodee").unwrap();
        assert!(load(&folder, &other).is_none());
    }
}
