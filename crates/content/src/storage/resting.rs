//! Places of contents that are complete and only read. Nothing on disk is held for them, so that thousands take no descriptors and no
//! locks; but as long as such a content is there, no other content of this process gets its places. Another process may: it asks
//! its user before it overwrites anything, and who shares notices what changed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Absolute, and in small letters: some file systems know no others.
static PLACES: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Places that no other content of this process gets until this is dropped.
#[derive(Debug)]
pub(super) struct Resting(Vec<PathBuf>);

impl Resting {
    /// Keeps these paths below a folder, whose path is whole and without links, and what is below them.
    pub(super) fn keep(folder: &Path, paths: &[PathBuf]) -> Self {
        let resting = Self(paths.iter().map(|path| key(folder, path)).collect());
        resting.take_up();
        resting
    }

    /// Their content wants to have them for itself.
    pub(super) fn give_up(&self) {
        let mut all = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        for place in &self.0 {
            all.remove(place);
        }
    }

    /// And could not.
    pub(super) fn take_up(&self) {
        PLACES.lock().unwrap_or_else(PoisonError::into_inner).extend(self.0.iter().cloned());
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// One of `paths` below a folder, as for [`Resting::keep`], that a content at rest has, or has something below.
pub(super) fn kept<'a>(folder: &Path, paths: &[&'a Path]) -> Option<&'a Path> {
    let all = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    let is_kept = |path: &Path| {
        let place = key(folder, path);
        place.ancestors().any(|above| all.contains(above))
            || all.range(place.clone()..).next().is_some_and(|next| next.starts_with(&place))
    };
    paths.iter().copied().find(|path| is_kept(path))
}

fn key(folder: &Path, path: &Path) -> PathBuf {
    folder.join(path).to_string_lossy().to_lowercase().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_kept_with_all_below_until_its_content_goes() {
        let root = Path::new("/srv/downloads");
        let is_kept = |path: &str| kept(root, &[Path::new("other"), Path::new(path)]) == Some(Path::new(path));
        let resting = Resting::keep(root, &["data/a.bin".into(), "many".into()]);
        assert!(["data/a.bin", "data/A.bin", "many", "many/x/y", "data"].into_iter().all(is_kept));
        assert!(!["data/b.bin", "data/a", "man", "data/a.bin2"].into_iter().any(is_kept));
        // Through a folder above and one below.
        assert!(kept(Path::new("/srv"), &[Path::new("downloads/many/z")]).is_some());
        assert!(kept(&root.join("data"), &[Path::new("a.bin")]).is_some());
        drop(resting);
        assert!(!["data/a.bin", "many", "data"].into_iter().any(is_kept));
    }
}
