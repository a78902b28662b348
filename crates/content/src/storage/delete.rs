//! A content's files are deleted, and nothing else.
//!
//! What goes are files that are the content's and still look as we left them. A file that somebody else changed since, one that
//! stood there before us and of which nothing is known to be the content's, and one that another content has its bytes in stay.
//! So do folders with anything in them. No link is followed.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::{FOREIGN, Op, PRESENT, ResumeStore, Storage, StorageError, beneath};
use crate::info::FileKind;

impl ResumeStore {
    /// Deletes the content's files, the folders that are empty then, and at last all that is kept beside them. `is_others` says which
    /// files another content has its bytes in. Answers the files that stay.
    ///
    /// # Errors
    /// The first file that cannot be deleted; the others are all the same, and the resume file stays.
    pub fn delete_content(&self, is_others: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>, StorageError> {
        let storage = self.storage();
        // Nobody else may be writing there.
        storage.wake()?;
        let (mut left, mut failed, mut folders) = (Vec::new(), None, BTreeSet::new());
        for (file, entry) in storage.info().files.iter().enumerate() {
            let path = storage.file_path(file);
            let is_ours = match &entry.kind {
                FileKind::Pad => continue,
                FileKind::Symlink { target } => {
                    beneath::read_link(storage.root(), &entry.path).is_ok_and(|found| found == *target)
                }
                FileKind::Regular => storage.stamp(file).is_some() && self.is_ours(file),
            };
            if !is_ours || is_others(&path) {
                left.extend(path.symlink_metadata().is_ok().then_some(path));
                continue;
            }
            match storage.delete_file(file) {
                Ok(()) => folders.extend(above(&entry.path)),
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        // Those within others come after them in order. One with something in it stays; an empty one that stays harms nobody.
        folders.iter().rev().for_each(|folder| drop(beneath::remove_empty_folder(storage.root(), folder)));
        if let Some(error) = failed {
            return Err(error);
        }
        storage.delete_parts()?;
        self.delete()?;
        Ok(left)
    }

    /// Whether what stands in a file's place is the content's, as we left it, or has nothing in it.
    pub(super) fn is_ours(&self, file: usize) -> bool {
        let storage = self.storage();
        let state = storage.states[file].load(Ordering::Acquire);
        let Some(stamp) = storage.stamp(file).filter(|_| state & (PRESENT | FOREIGN) == PRESENT) else { return false };
        let length = storage.info().files[file].length;
        // What was there before us is foreign until it was judged.
        let (is_foreign, is_as_left) = self.with(|resume| {
            let record = &resume.files[file];
            (record.foreign, record.explains(stamp, Some(length)))
        });
        !is_foreign && (is_as_left || stamp.size == 0 || stamp.size <= length && storage.is_blank(file))
    }
}

impl Storage {
    fn delete_file(&self, file: usize) -> Result<(), StorageError> {
        match beneath::unlink(&self.root, &self.info.files[file].path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.error(Op::Delete, file, error)),
            _ => Ok(()),
        }
    }

    /// Deletes what was kept aside of unwanted files.
    pub(super) fn delete_parts(&self) -> Result<(), StorageError> {
        let mut parts = self.lock_parts();
        let path = self.root.join(&parts.path);
        parts.delete(&self.root).map_err(|source| StorageError::new(Op::Delete, path, source))
    }
}

/// The folders that `path` is in, below the root.
pub(super) fn above(path: &Path) -> impl Iterator<Item = PathBuf> {
    path.ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::IoSlice;
    use std::sync::Arc;

    use super::*;
    use crate::storage::StorageOptions;
    use crate::storage::testing::info;

    /// Three files of 20 bytes in pieces of 16, below `content/a/`; all of it is written.
    fn made(root: &Path) -> ResumeStore {
        let mut info = info(16, &[(20, 0), (20, 20), (20, 40)]);
        for (file, name) in info.files.iter_mut().zip(["content/a/one", "content/a/two", "content/three"]) {
            file.path = name.into();
        }
        let storage = Arc::new(Storage::open(Arc::new(info), root, StorageOptions::default()).unwrap());
        storage.claim().unwrap();
        let store = ResumeStore::open(storage, None).unwrap().0;
        store.write_at(0, &[IoSlice::new(&[7; 60])]).unwrap();
        (0..4).for_each(|piece| store.verified(piece).unwrap());
        store
    }

    #[test]
    fn all_of_it_goes_and_no_more() {
        let root = tempfile::tempdir().unwrap();
        let store = made(root.path());
        fs::write(root.path().join("content/a/mine"), "mine").unwrap();
        assert_eq!(store.delete_content(|_| false).unwrap(), Vec::<PathBuf>::new());
        store.storage().release();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(root.path().join("content/a")).unwrap().count(), 1);
        fs::remove_file(root.path().join("content/a/mine")).unwrap();
        drop(store);
        // Without it, the folders go as well.
        fs::remove_dir_all(root.path().join("content")).unwrap();
        let store = made(root.path());
        store.delete_content(|_| false).unwrap();
        store.storage().release();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_others_changed_replaced_or_use_stays() {
        let root = tempfile::tempdir().unwrap();
        let store = made(root.path());
        store.close(false).unwrap();
        let path = |name: &str| root.path().join("content").join(name);
        fs::remove_file(path("a/one")).unwrap();
        fs::write(path("a/one"), "another file").unwrap();
        let used = path("a/two");
        let left = store.delete_content(|path| path == used).unwrap();
        assert_eq!(left, [path("a/one"), path("a/two")]);
        assert!(!path("three").exists());
        assert_eq!(fs::read(path("a/one")).unwrap(), b"another file");
    }

    #[test]
    fn what_was_there_and_was_not_looked_at_yet_stays() {
        let root = tempfile::tempdir().unwrap();
        let info = Arc::clone(made(root.path()).storage().info());
        std::fs::remove_dir_all(root.path()).unwrap();
        fs::create_dir_all(root.path().join("content/a")).unwrap();
        fs::write(root.path().join("content/a/one"), [9; 20]).unwrap();
        let storage = Arc::new(Storage::open(info, root.path(), StorageOptions::default()).unwrap());
        let store = ResumeStore::open(storage, None).unwrap().0;
        assert_eq!(store.delete_content(|_| false).unwrap(), [root.path().join("content/a/one")]);
        assert_eq!(fs::read(root.path().join("content/a/one")).unwrap(), [9; 20]);
    }

    #[test]
    fn links_are_not_followed() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = made(root.path());
        fs::rename(root.path().join("content/a"), outside.path().join("a")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("a"), root.path().join("content/a")).unwrap();
        // What the link leads to has the same files.
        let _ = store.delete_content(|_| false);
        assert_eq!(fs::read_dir(outside.path().join("a")).unwrap().count(), 2);
    }
}
