//! Places of contents that are complete and only read. Nothing on disk is held for them, so that thousands take no descriptors and no
//! locks; but as long as such a content is there, no other content of this process gets its places. Another process may: it asks
//! its user before it overwrites anything, and who shares notices what changed.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Absolute, in small letters (some file systems know no others), and with a NUL before each name: so what is below a place follows it.
static PLACES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Places that no other content of this process gets until this is dropped.
#[derive(Debug)]
pub(super) struct Resting(Vec<String>);

impl Resting {
    /// Keeps these paths below a folder, whose path is whole and without links, and what is below them.
    pub(super) fn keep<'a>(folder: &Path, paths: impl Iterator<Item = &'a Path>) -> Self {
        let resting = Self(keys(folder, paths));
        resting.take_up();
        resting
    }

    /// The same where no other content has any of them, or something below one.
    pub(super) fn try_keep<'a>(folder: &Path, paths: impl Iterator<Item = &'a Path>) -> Option<Self> {
        let keys = keys(folder, paths);
        let mut all = places();
        if keys.iter().any(|place| is_kept(&all, place)) {
            return None;
        }
        all.extend(keys.iter().cloned());
        Some(Self(keys))
    }

    /// Their content wants to have them for itself.
    pub(super) fn give_up(&self) {
        let mut all = places();
        for place in &self.0 {
            all.remove(place);
        }
    }

    /// And could not.
    pub(super) fn take_up(&self) {
        places().extend(self.0.iter().cloned());
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// One of `paths` below a folder, as for [`Resting::keep`], that a content at rest has, or has something below.
pub(super) fn kept<'a>(folder: &Path, paths: &[&'a Path]) -> Option<&'a Path> {
    let keys = keys(folder, paths.iter().copied());
    let all = places();
    keys.iter().zip(paths).find(|(place, _)| is_kept(&all, place)).map(|(_, path)| *path)
}

fn is_kept(all: &BTreeSet<String>, place: &str) -> bool {
    let mut above = place.match_indices('\0').skip(1).map(|(end, _)| &place[..end]);
    let is_below =
        |next: &String| next.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('\0'));
    above.any(|above| all.contains(above)) || all.range(place.to_owned()..).next().is_some_and(is_below)
}

fn keys<'a>(folder: &Path, paths: impl Iterator<Item = &'a Path>) -> Vec<String> {
    let folder = key(folder);
    paths.map(|path| format!("{folder}{}", key(path))).collect()
}

/// Whole paths begin with a name that is empty: it says nothing.
fn key(path: &Path) -> String {
    let names = path.iter().filter(|name| *name != "/");
    names.flat_map(|name| ["\0".to_owned(), name.to_string_lossy().to_lowercase()]).collect()
}

fn places() -> MutexGuard<'static, BTreeSet<String>> {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_kept_with_all_below_until_its_content_goes() {
        let root = Path::new("/srv/downloads");
        let is_kept = |path: &str| kept(root, &[Path::new("other"), Path::new(path)]) == Some(Path::new(path));
        let resting = Resting::keep(root, ["data/a.bin", "many"].map(Path::new).into_iter());
        assert!(["data/a.bin", "data/A.bin", "many", "many/x/y", "data"].into_iter().all(is_kept));
        assert!(!["data/b.bin", "data/a", "man", "data/a.bin2"].into_iter().any(is_kept));
        // Through a folder above and one below.
        assert!(kept(Path::new("/srv"), &[Path::new("downloads/many/z")]).is_some());
        assert!(kept(&root.join("data"), &[Path::new("a.bin")]).is_some());
        // Nor as a place that is only read.
        let try_keep = |path| Resting::try_keep(root, ["data/b.bin", path].map(Path::new).into_iter());
        assert!(try_keep("MANY/x").is_none() && try_keep("data").is_none());
        assert!(is_kept("many") && !is_kept("data/b.bin"), "nothing came or went");
        let beside = try_keep("x");
        assert!(beside.is_some() && is_kept("x/y") && is_kept("data/b.bin") && try_keep("y").is_none());
        drop((resting, beside));
        assert!(!["data/a.bin", "many", "data"].into_iter().any(is_kept));
    }
}
