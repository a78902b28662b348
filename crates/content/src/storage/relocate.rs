//! A content's files move to another folder, all of them or none.
//!
//! On one file system they are renamed; else they are copied and forced to the disk, and the originals go when everything is in its
//! new place and recorded there. What stands in the way there is found first. Where anything fails, what was moved moves back. A
//! crash in between leaves every byte in one of the two places; what is then added again from there is verified first.
//!
//! Files that are not the content's ([`ResumeStore::delete_content`] says which) stay where they are.

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::delete::above;
use super::parts::Parts;
use super::{ErrorKind, Op, ResumeStore, SEALED, Storage, StorageError, UNWANTED, beneath};
use crate::info::{FileEntry, FileKind};

/// Bytes copied at a time: between two looks whether the move was called off.
const COPY_LEN: usize = 1024 * 1024;

/// A file in its new place.
enum Moved {
    Renamed(PathBuf),
    Copied(PathBuf),
}

impl ResumeStore {
    /// Moves the content below the folder `to`, which is made where it is missing, and keeps its record in `state_dir` or else
    /// there. Nobody may write to it meanwhile, and this store is not to be used after that. `cancel` calls it off. Pieces in files
    /// that stay, because they are not the content's any more, do not count in the new place.
    ///
    /// # Errors
    /// Where something is in the way, or the disk or the file system refuses. All is then where it was.
    pub fn move_to(&self, to: &Path, state_dir: Option<&Path>, cancel: &AtomicBool) -> Result<Self, StorageError> {
        let storage = self.storage();
        storage.wake()?;
        let was_there = to.exists();
        let moved = self.move_files(to, state_dir, cancel);
        match &moved {
            Ok(new) => {
                // The originals of what was copied, the record, and what is empty now: nothing is lost where one of these stays.
                self.leave_behind(new, state_dir.is_none());
                storage.release();
            }
            // Made by us, and empty, or else it stays.
            Err(_) if !was_there => drop(std::fs::remove_dir(to)),
            Err(_) => {}
        }
        moved
    }

    fn move_files(&self, to: &Path, state_dir: Option<&Path>, cancel: &AtomicBool) -> Result<Self, StorageError> {
        let old = self.storage();
        let new = Arc::new(Storage::open(Arc::clone(old.info()), to, old.options.clone())?);
        new.claim()?;
        let files = self.own_files();
        for path in &files {
            match beneath::look(&new.root, path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ => {
                    let what = "a file is there";
                    return Err(StorageError::found(Op::Move, new.root.join(path), ErrorKind::InTheWay, what));
                }
            }
        }
        let holds =
            |(file, entry): (usize, &FileEntry)| (old.stamp(file).is_some() && entry.length > 0).then_some(file);
        let left: Vec<usize> =
            old.info().regular_files().filter_map(holds).filter(|file| !self.is_ours(*file)).collect();
        let mut moved = Vec::new();
        let done = files.into_iter().try_for_each(|path| move_one(old, &new, path, cancel, &mut moved));
        let done = done.and_then(|()| {
            new.look_again(old);
            new.create_empty_files_and_links()?;
            self.moved(Arc::clone(&new), state_dir, &left)
        });
        if done.is_err() {
            undo(old, &new, &moved);
        }
        done
    }

    /// The content's files that are there, and the one of unwanted bytes.
    fn own_files(&self) -> Vec<PathBuf> {
        let storage = self.storage();
        let own = storage.info().files.iter().enumerate().filter(|(file, entry)| {
            entry.kind == FileKind::Regular && storage.stamp(*file).is_some() && self.is_ours(*file)
        });
        let mut files: Vec<PathBuf> = own.map(|(_, entry)| entry.path.clone()).collect();
        let parts = storage.lock_parts();
        files.extend(parts.exists().then(|| parts.path.clone()));
        files
    }

    fn leave_behind(&self, new: &Self, record_moved: bool) {
        let (old, new) = (self.storage(), new.storage());
        let mut folders = BTreeSet::new();
        for entry in &old.info().files {
            let is_there = |root: &Path| beneath::look(root, &entry.path).is_ok();
            match &entry.kind {
                FileKind::Regular if is_there(&old.root) && is_there(&new.root) && self.is_ours_at(&entry.path) => {
                    let _ = beneath::unlink(&old.root, &entry.path);
                }
                FileKind::Symlink { target }
                    if beneath::read_link(&old.root, &entry.path).is_ok_and(|found| found == *target) =>
                {
                    let _ = beneath::unlink(&old.root, &entry.path);
                }
                _ => {}
            }
            folders.extend(above(&entry.path));
        }
        folders.iter().rev().for_each(|folder| drop(beneath::remove_empty_folder(&old.root, folder)));
        let _ = old.delete_parts();
        if record_moved {
            let _ = self.delete();
        }
    }

    fn is_ours_at(&self, path: &Path) -> bool {
        let files = &self.storage().info().files;
        files.iter().position(|entry| entry.path == path).is_some_and(|file| self.is_ours(file))
    }
}

impl Storage {
    /// Files came into their places behind our back: takes them for present, and what was known of them from `old`.
    fn look_again(&self, old: &Self) {
        *self.lock_parts() =
            Parts::new(&self.info, self.layout.shared_pieces(self.info.geometry.piece_length()), &self.root);
        for file in 0..self.info.files.len() {
            self.forget_file(file);
            let before = old.states[file].load(Ordering::Acquire);
            self.states[file].fetch_or(before & UNWANTED, Ordering::AcqRel);
            if before & SEALED != 0 {
                self.seal(file);
            }
        }
    }
}

fn move_one(
    old: &Storage,
    new: &Storage,
    path: PathBuf,
    cancel: &AtomicBool,
    moved: &mut Vec<Moved>,
) -> Result<(), StorageError> {
    let failed = |source| StorageError::new(Op::Move, new.root.join(&path), source);
    if cancel.load(Ordering::Relaxed) {
        return Err(called_off(new));
    }
    match beneath::rename_across(&old.root, &path, &new.root, &path) {
        Ok(()) => {
            moved.push(Moved::Renamed(path));
            Ok(())
        }
        Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {
            let from = beneath::open(&old.root, &path, libc::O_RDONLY).map_err(failed)?;
            let to = beneath::open(&new.root, &path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL).map_err(failed)?;
            // From here on it is ours to delete.
            let done = copy(&from, &to, cancel).map_err(failed);
            moved.push(Moved::Copied(path));
            if done? { Ok(()) } else { Err(called_off(new)) }
        }
        Err(error) => Err(failed(error)),
    }
}

fn called_off(new: &Storage) -> StorageError {
    StorageError::found(Op::Move, &new.root, ErrorKind::Other, "it was called off")
}

/// Copies bytes, holes, rights and time, and forces them to the disk. `false` where it was called off.
fn copy(from: &File, to: &File, cancel: &AtomicBool) -> io::Result<bool> {
    let meta = from.metadata()?;
    to.set_len(meta.len())?;
    let (mut at, mut buffer) = (0, vec![0; COPY_LEN]);
    while at < meta.len() {
        if cancel.load(Ordering::Relaxed) {
            return Ok(false);
        }
        // SAFETY: the descriptor is open; no memory is involved.
        let data = unsafe { libc::lseek(from.as_raw_fd(), at as libc::off_t, libc::SEEK_DATA) };
        match u64::try_from(data) {
            Ok(data) => at = data.max(at),
            // Holes up to the end; who cannot tell holes has none.
            Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => break,
            Err(_) => {}
        }
        let got = from.read_at(&mut buffer, at)?;
        if got == 0 {
            break;
        }
        to.write_all_at(&buffer[..got], at)?;
        at += got as u64;
    }
    // File systems without rights and times keep what they have: the bytes are what counts.
    let _ = to.set_permissions(meta.permissions());
    let _ = meta.modified().and_then(|time| to.set_modified(time));
    to.sync_all()?;
    Ok(true)
}

/// What was moved moves back. A file that cannot is where it was moved to: the error that led here names the folder.
fn undo(old: &Storage, new: &Storage, moved: &[Moved]) {
    let mut folders = BTreeSet::new();
    for done in moved.iter().rev() {
        let (Moved::Renamed(path) | Moved::Copied(path)) = done;
        folders.extend(above(path));
        match done {
            Moved::Renamed(path) => drop(beneath::rename_across(&new.root, path, &old.root, path)),
            Moved::Copied(path) => drop(beneath::unlink(&new.root, path)),
        }
    }
    for entry in &new.info.files {
        if let FileKind::Symlink { target } = &entry.kind
            && beneath::read_link(&new.root, &entry.path).is_ok_and(|found| found == *target)
        {
            let _ = beneath::unlink(&new.root, &entry.path);
        }
    }
    folders.iter().rev().for_each(|folder| drop(beneath::remove_empty_folder(&new.root, folder)));
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::IoSlice;

    use super::*;
    use crate::storage::testing::info;
    use crate::storage::{Loaded, StorageOptions};

    /// Two files of 20 bytes in pieces of 16, of which the second is not wanted and its first bytes are kept aside.
    fn made(root: &Path) -> ResumeStore {
        let mut info = info(16, &[(20, 0), (20, 20)]);
        for (file, name) in info.files.iter_mut().zip(["content/a/one", "content/two"]) {
            file.path = name.into();
        }
        let storage = Arc::new(Storage::open(Arc::new(info), root, StorageOptions::default()).unwrap());
        storage.claim().unwrap();
        storage.set_wanted(1, false).unwrap();
        let store = ResumeStore::open(storage, None).unwrap().0;
        store.write_at(0, &[IoSlice::new(&[7; 32])]).unwrap();
        (0..2).for_each(|piece| store.verified(piece).unwrap());
        store
    }

    fn names(root: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn assert_there(store: &ResumeStore) {
        let mut bytes = [0; 32];
        store.storage().read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 32]);
        assert!(store.with(|resume| resume.have.get(0) && resume.have.get(1) && !resume.have.get(2)));
    }

    #[test]
    fn everything_moves_and_is_believed_in_its_new_place() {
        // By name, and, where there are two file systems, by copy.
        let here = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        for root in [here.path().join("new/place"), elsewhere.path().join("place")] {
            let from = tempfile::tempdir().unwrap();
            let old = made(from.path());
            let before = names(from.path());
            let new = old.move_to(&root, None, &false.into()).unwrap();
            assert_there(&new);
            assert_eq!(names(&root), before);
            assert_eq!(names(from.path()), Vec::<String>::new());
            new.close(false).unwrap();
            drop((old, new));
            let storage = Arc::new(Storage::open(made_info(), &root, StorageOptions::default()).unwrap());
            let Loaded::Resumed(found) = ResumeStore::open(storage, None).unwrap().1 else { panic!("no record") };
            assert_eq!((found.have.count(), found.changed.len()), (2, 0));
        }
    }

    fn made_info() -> Arc<crate::info::Info> {
        let scratch = tempfile::tempdir().unwrap();
        Arc::clone(made(scratch.path()).storage().info())
    }

    #[test]
    fn where_something_is_in_the_way_all_stays() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = made(from.path());
        let before = names(from.path());
        fs::create_dir_all(to.path().join("content/a/one")).unwrap();
        let error = store.move_to(to.path(), None, &false.into()).unwrap_err();
        assert_eq!((error.kind, error.path), (ErrorKind::InTheWay, to.path().join("content/a/one")));
        let error = store.move_to(&from.path().join("off"), None, &true.into()).unwrap_err();
        assert!(error.to_string().contains("called off"), "{error}");
        assert_there(&store);
        assert_eq!((names(from.path()), names(to.path())), (before, vec!["content".to_owned()]));
    }

    #[test]
    fn what_fails_half_way_moves_back() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = made(from.path());
        let before = names(from.path());
        // The record cannot be written: a folder is in its place.
        fs::create_dir(to.path().join(super::super::hidden_name(store.storage().info(), "resume"))).unwrap();
        store.move_to(to.path(), None, &false.into()).unwrap_err();
        assert_there(&store);
        assert_eq!(names(from.path()), before);
        assert_eq!(names(to.path()).len(), 1);
    }
}
