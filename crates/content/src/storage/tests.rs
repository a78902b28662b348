//! Storage and resume as the driver uses them, on real folders; where a file system has to misbehave, on a small tmpfs in a
//! mount namespace of the test's own thread.

use std::ffi::CString;
use std::fs;
use std::io::{self, IoSlice};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use proptest::prelude::*;

use super::testing::info;
use super::*;
use crate::bitfield::Bitfield;
use crate::create::{CreateOptions, create};
use crate::info::Version;
use crate::metainfo::Metainfo;

const PIECE: u32 = 1024;

fn storage_of(root: &Path, entries: &[(u64, u8)]) -> Storage {
    Storage::open(Arc::new(info(PIECE, entries)), root, StorageOptions::default()).unwrap()
}

/// Bytes of piece space with zeros where pads are.
fn content_of(entries: &[(u64, u8)]) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut bytes = Vec::new();
    for entry in &info(PIECE, entries).files {
        let pad = entry.kind == FileKind::Pad;
        bytes.extend((0..entry.length).map(|_| if pad { 0 } else { random.u8(1..) }));
    }
    bytes
}

fn piece_of(content: &[u8], piece: u32) -> (u64, &[u8]) {
    let start = piece as usize * PIECE as usize;
    (start as u64, &content[start..content.len().min(start + PIECE as usize)])
}

fn write_all(storage: &Storage, content: &[u8]) {
    for piece in 0..storage.info().geometry.piece_count() {
        let (offset, bytes) = piece_of(content, piece);
        storage.write_at(offset, &[IoSlice::new(bytes)]).unwrap();
    }
}

fn read_all(storage: &Storage) -> Result<Vec<u8>, StorageError> {
    let mut back = vec![0xee; storage.layout().total() as usize];
    storage.read_at(0, &mut back).map(|()| back)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_is_read_and_lies_in_the_right_files(
        entries in proptest::collection::vec((0u64..3000, 0u8..4), 1..8), chunk in 1usize..700,
    ) {
        let root = tempfile::tempdir().unwrap();
        let storage = storage_of(root.path(), &entries);
        let content = content_of(&entries);
        for piece in (0..storage.info().geometry.piece_count()).rev() {
            let (offset, bytes) = piece_of(&content, piece);
            let slices: Vec<IoSlice> = bytes.chunks(chunk).map(IoSlice::new).collect();
            storage.write_at(offset, &slices).unwrap();
        }
        storage.create_empty_files_and_links().unwrap();
        prop_assert_eq!(read_all(&storage).unwrap(), content.clone());
        for entry in &storage.info().files {
            let path = root.path().join(&entry.path);
            match entry.kind {
                FileKind::Pad => prop_assert!(!path.exists()),
                FileKind::Symlink { .. } => prop_assert!(path.is_symlink()),
                FileKind::Regular => {
                    let range = entry.offset as usize..(entry.offset + entry.length) as usize;
                    prop_assert_eq!(fs::read(path).unwrap(), &content[range]);
                }
            }
        }
    }

    /// Any selection, changed at any time in any order: nothing that was written is lost, nothing unwanted appears.
    #[test]
    fn selection_never_loses_bytes(
        lengths in proptest::collection::vec(1u64..2500, 1..7),
        steps in proptest::collection::vec((0usize..7, any::<bool>()), 0..12), reopen in any::<bool>(),
    ) {
        let entries: Vec<(u64, u8)> = lengths.iter().map(|length| (*length, 0)).collect();
        let root = tempfile::tempdir().unwrap();
        let content = content_of(&entries);
        let mut storage = storage_of(root.path(), &entries);
        for file in 0..entries.len() {
            storage.set_wanted(file, false).unwrap();
        }
        let mut written = Bitfield::new(storage.info().geometry.piece_count());
        for (file, wanted) in steps.into_iter().chain((0..entries.len()).map(|file| (file, true))) {
            if file >= entries.len() {
                continue;
            }
            if reopen {
                let wanted: Vec<bool> = (0..entries.len()).map(|file| storage.is_wanted(file)).collect();
                storage = storage_of(root.path(), &entries);
                for (file, wanted) in wanted.into_iter().enumerate() {
                    storage.set_wanted(file, wanted).unwrap();
                }
            }
            storage.set_wanted(file, wanted).unwrap();
            if wanted {
                let entry = storage.info().files[file].clone();
                let geometry = &storage.info().geometry;
                for piece in geometry.piece_at(entry.offset)..=geometry.piece_at(entry.offset + entry.length - 1) {
                    let (offset, bytes) = piece_of(&content, piece);
                    if written.set(piece) {
                        storage.write_at(offset, &[IoSlice::new(bytes)]).unwrap();
                    }
                }
            }
            for piece in written.iter_ones() {
                let (offset, bytes) = piece_of(&content, piece);
                let mut back = vec![0; bytes.len()];
                storage.read_at(offset, &mut back).unwrap();
                prop_assert!(back == bytes, "piece {piece}");
            }
        }
        let names: Vec<_> = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        prop_assert_eq!(names, ["c"], "nothing of ours is left once all is wanted");
    }
}

#[test]
fn unwanted_files_are_not_made_and_their_bytes_move_in_later() {
    let root = tempfile::tempdir().unwrap();
    let entries = [(1500, 0), (1500, 0), (5000, 0)];
    let content = content_of(&entries);
    let storage = storage_of(root.path(), &entries);
    storage.set_wanted(1, false).unwrap();
    storage.set_wanted(2, false).unwrap();
    for piece in 0..2 {
        let (offset, bytes) = piece_of(&content, piece);
        storage.write_at(offset, &[IoSlice::new(bytes)]).unwrap();
    }
    assert!(storage.file_path(0).exists() && !storage.file_path(1).exists());
    storage.flush_all().unwrap();
    // A rest of an interrupted move is overwritten.
    fs::write(root.path().join(hidden_name(storage.info(), "moving")), [9; 9000]).unwrap();
    storage.set_wanted(1, true).unwrap();
    assert_eq!(fs::read(storage.file_path(1)).unwrap()[..548], content[1500..2048]);
    assert_eq!(fs::metadata(storage.file_path(1)).unwrap().len(), 1500);
    // A piece of file 2 alone that was in flight when it was deselected.
    let (offset, bytes) = piece_of(&content, 4);
    storage.write_at(offset, &[IoSlice::new(bytes)]).unwrap();
    assert!(storage.file_path(2).exists());
}

#[test]
fn a_piece_in_one_file_is_one_call_and_segments_name_descriptors() {
    let root = tempfile::tempdir().unwrap();
    let info = Arc::new(info(1 << 20, &[(3 << 20, 0), (100, 1), (5000, 0)]));
    let storage = Storage::open(info, root.path(), StorageOptions::default()).unwrap();
    let piece = vec![5; 1 << 20];
    let blocks: Vec<IoSlice> = piece.chunks(16384).map(IoSlice::new).collect();
    let before = vectored::WRITE_CALLS.get();
    storage.write_at(1 << 20, &blocks).unwrap();
    assert_eq!(vectored::WRITE_CALLS.get() - before, 1);
    storage.write_at(2 << 20, &blocks).unwrap();
    storage.write_at((3 << 20) + 100, &[IoSlice::new(&[6; 5000])]).unwrap();

    let found: Vec<_> = storage.segments((3 << 20) - 10, 200).map(Result::unwrap).collect();
    let [
        SendSegment::File { file, index: 0, offset, len: 10 },
        SendSegment::Pad(100),
        SendSegment::File { index: 2, offset: 0, len: 90, .. },
    ] = &found[..]
    else {
        panic!("{found:?}");
    };
    let mut bytes = [0; 10];
    file.read_exact_at(&mut bytes, *offset).unwrap();
    assert_eq!(bytes, [5; 10]);
    let past = storage.write_at(3 << 20, &blocks).unwrap_err();
    assert_eq!(past.kind, ErrorKind::Other);
}

#[test]
fn vanished_and_truncated_files_are_reported_and_forgiven() {
    let root = tempfile::tempdir().unwrap();
    let entries = [(3000, 0), (100, 0)];
    let content = content_of(&entries);
    let storage = storage_of(root.path(), &entries);
    write_all(&storage, &content);
    let (offset, bytes) = piece_of(&content, 1);
    let again = || storage.write_at(offset, &[IoSlice::new(bytes)]);

    let path = storage.file_path(0);
    let elsewhere = root.path().join("elsewhere");
    fs::copy(&path, &elsewhere).unwrap();
    fs::remove_file(&path).unwrap();
    for _ in 0..2 {
        let error = again().unwrap_err();
        assert_eq!((error.kind, error.path.as_path()), (ErrorKind::Vanished, path.as_path()));
        assert!(!path.exists());
    }
    assert_eq!(read_all(&storage).unwrap_err().kind, ErrorKind::Vanished);
    fs::rename(&elsewhere, &path).unwrap();
    again().unwrap();
    assert_eq!(read_all(&storage).unwrap(), content);

    fs::File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
    assert_eq!(again().unwrap_err().kind, ErrorKind::Vanished);
    assert_eq!(storage.check_file(0).unwrap_err().kind, ErrorKind::Vanished);
    assert_eq!(read_all(&storage).unwrap_err().kind, ErrorKind::Vanished);
    storage.forget_file(0);
    again().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 3000);
    storage.check_file(0).unwrap();
}

#[test]
fn what_stands_in_the_way_is_left_alone() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let entries = [(2000, 0), (2000, 0)];
    let content = content_of(&entries);
    let victim = outside.path().join("victim");
    fs::write(&victim, "precious").unwrap();

    fs::create_dir(root.path().join("c")).unwrap();
    symlink(&victim, root.path().join("c/0")).unwrap();
    let storage = storage_of(root.path(), &entries);
    let error = storage.write_at(0, &[IoSlice::new(&content[..1024])]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InTheWay);
    assert!(storage.segments(0, 1).next().unwrap().is_err());
    assert_eq!(fs::read(&victim).unwrap(), b"precious");

    fs::remove_file(root.path().join("c/0")).unwrap();
    fs::write(root.path().join("c/1"), vec![1; 2001]).unwrap();
    let storage = storage_of(root.path(), &entries);
    let error = storage.write_at(0, &[IoSlice::new(&content)]).unwrap_err();
    assert_eq!((error.kind, error.path), (ErrorKind::Different, storage.file_path(1)));
    assert_eq!(fs::metadata(storage.file_path(1)).unwrap().len(), 2001);

    fs::remove_dir_all(root.path().join("c")).unwrap();
    symlink(outside.path(), root.path().join("c")).unwrap();
    let storage = storage_of(root.path(), &entries);
    let error = storage.write_at(0, &[IoSlice::new(&content[..1024])]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InTheWay);
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);

    let mut forged = info(PIECE, &entries);
    forged.files[0].path = PathBuf::from(".other-00000000.Anabranch-resume");
    let error = Storage::open(Arc::new(forged), root.path(), StorageOptions::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InTheWay);
}

#[test]
fn full_preallocation_takes_its_blocks_first() {
    let root = tempfile::tempdir().unwrap();
    let info = Arc::new(info(1 << 20, &[(1 << 20, 0), (0, 0), (1 << 20, 0)]));
    let options = StorageOptions { preallocate: Preallocate::Full, ..StorageOptions::default() };
    let storage = Storage::open(Arc::clone(&info), root.path(), options.clone()).unwrap();
    storage.set_wanted(2, false).unwrap();
    storage.preallocate().unwrap();
    let meta = fs::metadata(storage.file_path(0)).unwrap();
    assert_eq!((meta.len(), meta.blocks() * 512 >= 1 << 20), (1 << 20, true));
    assert!(!storage.file_path(2).exists());

    let huge = Arc::new(testing::info(1 << 30, &[(1 << 55, 0)]));
    let storage = Storage::open(huge, &root.path().join("huge"), options).unwrap();
    assert_eq!(storage.preallocate().unwrap_err().kind, ErrorKind::DiskFull);
    assert!(!storage.file_path(0).exists());
}

#[test]
fn attributes_are_set_once_files_are_there() {
    let root = tempfile::tempdir().unwrap();
    let mut info = info(PIECE, &[(10, 0), (0, 0)]);
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_007);
    info.files.iter_mut().for_each(|entry| (entry.executable, entry.mtime) = (true, Some(long_ago)));
    let storage = Storage::open(Arc::new(info), root.path(), StorageOptions::default()).unwrap();
    storage.create_empty_files_and_links().unwrap();
    assert!(storage.file_path(1).exists() && !storage.file_path(0).exists());
    storage.write_at(0, &[IoSlice::new(&[1; 10])]).unwrap();
    for _ in 0..2 {
        storage.set_attributes().unwrap();
        for file in 0..2 {
            let meta = fs::metadata(storage.file_path(file)).unwrap();
            let mode = meta.permissions().mode();
            assert_eq!((mode & 0o111, meta.modified().unwrap()), ((mode & 0o444) >> 2, long_ago));
            assert!(mode & 0o100 != 0);
        }
    }
}

#[test]
fn many_files_share_few_handles() {
    let root = tempfile::tempdir().unwrap();
    let entries = [(1000, 0); 50];
    let handles = Handles::new(4);
    let options = StorageOptions { handles: Arc::clone(&handles), ..StorageOptions::default() };
    let storage = Storage::open(Arc::new(info(PIECE, &entries)), root.path(), options).unwrap();
    let content = content_of(&entries);
    write_all(&storage, &content);
    storage.flush_all().unwrap();
    assert_eq!(read_all(&storage).unwrap(), content);
    assert_eq!(handles.open_count(), 4);
    drop(storage);
    assert_eq!(handles.open_count(), 0);
}

// ---- file systems that misbehave ----

/// Runs `test` with a tmpfs of 1 MiB at a folder that only this thread sees.
fn on_small_tmpfs(test: impl FnOnce(&Path) + Send) {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let path = folder.path();
        scope.spawn(move || {
            // SAFETY: unshare concerns this thread alone and touches no memory.
            if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
                let error = io::Error::last_os_error();
                assert!(std::env::var_os("CI").is_none(), "no mount namespace: {error}");
                eprintln!("skipped, no mount namespace: {error}");
                return;
            }
            mount("none", Path::new("/"), "", libc::MS_REC | libc::MS_PRIVATE, "");
            mount("tmpfs", path, "tmpfs", 0, "size=1m");
            test(path);
        });
    });
}

fn mount(source: &str, target: &Path, kind: &str, flags: libc::c_ulong, data: &str) {
    let text = |text: &[u8]| CString::new(text).unwrap();
    let (source, target) = (text(source.as_bytes()), text(target.as_os_str().as_bytes()));
    let (kind, data) = (text(kind.as_bytes()), text(data.as_bytes()));
    // SAFETY: all strings are NUL-terminated and live through the call.
    let done = unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

#[test]
fn a_full_disk_pauses_and_goes_on() {
    on_small_tmpfs(|root| {
        let entries = [(800 << 10, 0)];
        let content = content_of(&entries);
        let ballast = root.join("ballast");
        fs::write(&ballast, vec![1; 512 << 10]).unwrap();
        let storage = Arc::new(storage_of(root, &entries));
        let (store, _) = ResumeStore::open(Arc::clone(&storage), None).unwrap();
        let mut failed_at = None;
        for piece in 0..800 {
            let (offset, bytes) = piece_of(&content, piece);
            match store.write_at(offset, &[IoSlice::new(bytes)]).and_then(|()| store.verified(piece)) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::DiskFull, "{error}");
                    failed_at = Some(piece);
                    break;
                }
            }
        }
        let failed_at = failed_at.expect("1 MiB does not hold it");
        if let Err(error) = store.checkpoint() {
            assert_eq!(error.kind, ErrorKind::DiskFull);
        }
        fs::remove_file(ballast).unwrap();
        for piece in failed_at..800 {
            let (offset, bytes) = piece_of(&content, piece);
            store.write_at(offset, &[IoSlice::new(bytes)]).and_then(|()| store.verified(piece)).unwrap();
        }
        store.close(true).unwrap();
        assert_eq!(read_all(&storage).unwrap(), content);
        let (store, loaded) = ResumeStore::open(storage, None).unwrap();
        assert!(matches!(loaded, Loaded::Resumed(found) if found.have.is_full()));
        assert!(store.with(|resume| resume.durable.is_full()));
    });
}

#[test]
fn a_full_disk_is_told_before_the_start() {
    on_small_tmpfs(|root| {
        let options = StorageOptions { preallocate: Preallocate::Full, ..StorageOptions::default() };
        let info = Arc::new(info(PIECE, &[(600 << 10, 0), (600 << 10, 0)]));
        let storage = Storage::open(info, root, options).unwrap();
        assert_eq!(storage.preallocate().unwrap_err().kind, ErrorKind::DiskFull);
        assert_eq!(fs::read_dir(root).unwrap().count(), 0);
        storage.set_wanted(1, false).unwrap();
        storage.preallocate().unwrap();
    });
}

#[test]
fn a_read_only_folder_is_an_error_until_it_is_not() {
    on_small_tmpfs(|root| {
        let entries = [(3000, 0), (3000, 0)];
        let content = content_of(&entries);
        let storage = storage_of(root, &entries);
        storage.write_at(0, &[IoSlice::new(&content[..1024])]).unwrap();
        storage.options.handles.remove_storage(storage.id);
        mount("none", root, "", libc::MS_REMOUNT | libc::MS_RDONLY, "");
        for offset in [0, 4000] {
            let error = storage.write_at(offset, &[IoSlice::new(&content[..10])]).unwrap_err();
            assert_eq!(error.kind, ErrorKind::ReadOnly, "{error}");
        }
        let mut back = [0; 1024];
        storage.read_at(0, &mut back).unwrap();
        assert_eq!(back, content[..1024]);
        mount("none", root, "", libc::MS_REMOUNT, "");
        write_all(&storage, &content);
        assert_eq!(read_all(&storage).unwrap(), content);
    });
}

#[test]
fn a_disk_that_goes_and_comes_back_is_not_replaced_by_its_mount_point() {
    on_small_tmpfs(|root| {
        let entries = [(1024, 0), (1024, 0)];
        let content = content_of(&entries);
        let storage = storage_of(root, &entries);
        storage.write_at(0, &[IoSlice::new(&content[..1024])]).unwrap();
        mount("tmpfs", root, "tmpfs", 0, "size=1m");
        let error = storage.write_at(1024, &[IoSlice::new(&content[1024..])]).unwrap_err();
        assert!(error.kind == ErrorKind::Vanished && fs::read_dir(root).unwrap().count() == 0, "{error}");
        let target = CString::new(root.as_os_str().as_bytes()).unwrap();
        // SAFETY: the string is NUL-terminated.
        assert_eq!(unsafe { libc::umount(target.as_ptr()) }, 0);
        write_all(&storage, &content);
        assert_eq!(read_all(&storage).unwrap(), content);
    });
}

#[test]
fn storage_opened_for_reading_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let missing = root.path().join("missing");
    let options = StorageOptions { read_only: true, ..StorageOptions::default() };
    let storage = Storage::open(Arc::new(info(PIECE, &[(10, 0)])), &missing, options).unwrap();
    assert_eq!(storage.write_at(0, &[IoSlice::new(&[1])]).unwrap_err().kind, ErrorKind::ReadOnly);
    assert_eq!(storage.read_at(0, &mut [0]).unwrap_err().kind, ErrorKind::Vanished);
    assert!(!missing.exists());
}

// ---- resume ----

struct Download {
    root: tempfile::TempDir,
    entries: Vec<(u64, u8)>,
    content: Vec<u8>,
}

impl Download {
    /// Piece 0 and 1 in file 0, 2 shared, 3 and 4 in file 1, 5 shared with file 2.
    fn new() -> Self {
        let entries = vec![(2500, 0), (3000, 0), (644, 0)];
        Self { root: tempfile::tempdir().unwrap(), content: content_of(&entries), entries }
    }

    fn open(&self) -> (ResumeStore, Loaded) {
        ResumeStore::open(Arc::new(storage_of(self.root.path(), &self.entries)), None).unwrap()
    }

    fn fetch(&self, store: &ResumeStore, pieces: impl IntoIterator<Item = u32>) {
        for piece in pieces {
            let (offset, bytes) = piece_of(&self.content, piece);
            store.write_at(offset, &[IoSlice::new(bytes)]).unwrap();
            store.verified(piece).unwrap();
        }
    }

    /// (have, recheck, changed) at the next start.
    fn restart(&self) -> (Vec<u32>, Vec<u32>, Vec<(usize, Change)>) {
        match self.open().1 {
            Loaded::Resumed(found) => (found.have.iter_ones().collect(), found.recheck, found.changed),
            other => panic!("{other:?}"),
        }
    }

    fn path(&self, file: usize) -> PathBuf {
        self.root.path().join(format!("c/{file}"))
    }

    fn touch(&self, file: usize, ahead: Duration) {
        fs::File::options().write(true).open(self.path(file)).unwrap().set_modified(SystemTime::now() + ahead).unwrap();
    }
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn killed_without_warning_all_recorded_pieces_count() {
    let download = Download::new();
    let (store, loaded) = download.open();
    assert!(matches!(loaded, Loaded::Fresh));
    for piece in 0..6 {
        download.fetch(&store, [piece]);
        // A write whose record never came.
        store.write_at(0, &[IoSlice::new(&download.content[..100])]).unwrap();
        let bytes = fs::read(store.path()).unwrap();
        let resume = Resume::decode(&bytes).unwrap();
        let storage = storage_of(download.root.path(), &download.entries);
        let found = resume.reconcile(&storage, resume.boot);
        assert_eq!(found.have.iter_ones().collect::<Vec<_>>(), (0..=piece).collect::<Vec<_>>());
        assert_eq!((found.recheck, found.changed), (vec![], vec![]));
    }
    drop(store); // no close: as if killed
    assert_eq!(download.restart(), ((0..6).collect(), vec![], vec![]));
}

#[test]
fn a_journal_cut_at_any_byte_keeps_what_is_before_and_can_go_on() {
    let download = Download::new();
    let (store, _) = download.open();
    let path = store.path().to_owned();
    download.fetch(&store, 0..6);
    drop(store);
    let whole = fs::read(&path).unwrap();
    let mut seen = Vec::new();
    for len in (0..whole.len()).rev() {
        fs::write(&path, &whole[..len]).unwrap();
        let (store, loaded) = download.open();
        let have = match loaded {
            Loaded::Resumed(found) => found.have.count(),
            Loaded::Damaged(_) => 0,
            Loaded::Fresh => panic!("the file is there"),
        };
        seen.push(have);
        download.fetch(&store, [5]);
        assert!(store.with(|resume| resume.have.get(5)));
        drop(store);
        let (after, _, _) = download.restart();
        assert!(after.contains(&5));
        assert!(after.len() as u32 >= have, "cut at {len}");
    }
    assert!(seen.is_sorted_by(|earlier, later| earlier >= later) && seen.contains(&5) && seen.contains(&0), "{seen:?}");
}

#[test]
fn a_closed_download_notices_every_change() {
    let download = Download::new();
    let (store, _) = download.open();
    download.fetch(&store, 0..6);
    store.set_totals(11, 22);
    store.set_priority(2, 7);
    store.close(false).unwrap();
    assert_eq!(download.restart(), ((0..6).collect(), vec![], vec![]));
    assert!(download.open().0.with(|resume| (resume.downloaded, resume.uploaded, resume.priorities[2]) == (11, 22, 7)));

    // Within what a lease would have covered: after a close there is none.
    download.touch(1, Duration::ZERO);
    assert_eq!(download.restart(), (vec![0, 1], vec![2, 3, 4, 5], vec![(1, Change::Touched)]));
    // Not forgotten before it was done.
    assert_eq!(download.restart(), (vec![0, 1], vec![2, 3, 4, 5], vec![]));
    let (store, _) = download.open();
    store.verified(2).unwrap();
    store.verified(3).unwrap();
    store.failed(4).unwrap();
    drop(store);
    assert_eq!(download.restart(), (vec![0, 1, 2, 3], vec![5], vec![]));

    fs::remove_file(download.path(0)).unwrap();
    assert_eq!(download.restart(), (vec![3], vec![0, 1, 2, 5], vec![(0, Change::Missing)]));
    fs::File::options().write(true).open(download.path(1)).unwrap().set_len(10).unwrap();
    let (have, _, changed) = download.restart();
    assert!(have.is_empty() && changed.contains(&(1, Change::Touched)));
}

#[test]
fn after_a_kill_changes_outside_the_lease_are_noticed() {
    let download = Download::new();
    let (store, _) = download.open();
    download.fetch(&store, 0..6);
    drop(store);
    download.touch(0, HOUR);
    assert_eq!(download.restart(), (vec![3, 4, 5], vec![0, 1, 2], vec![(0, Change::Touched)]));
    // Another file of the same size and time.
    let copy = download.root.path().join("copy");
    let modified = fs::metadata(download.path(2)).unwrap().modified().unwrap();
    fs::copy(download.path(2), &copy).unwrap();
    fs::File::options().write(true).open(&copy).unwrap().set_modified(modified).unwrap();
    fs::rename(&copy, download.path(2)).unwrap();
    assert_eq!(download.restart(), (vec![3, 4], vec![0, 1, 2, 5], vec![(2, Change::Touched)]));
    // A new lease on a changed file does not vouch for what was there before.
    let (store, _) = download.open();
    download.fetch(&store, [0]);
    drop(store);
    assert_eq!(download.restart(), (vec![0, 3, 4], vec![1, 2, 5], vec![]));
}

#[test]
fn after_a_reboot_only_synced_pieces_count() {
    let download = Download::new();
    let (store, _) = download.open();
    download.fetch(&store, 0..3);
    store.checkpoint().unwrap();
    download.fetch(&store, 3..6);
    drop(store);
    let bytes = fs::read(download.open().0.path()).unwrap();
    let resume = Resume::decode(&bytes).unwrap();
    let storage = storage_of(download.root.path(), &download.entries);
    let found = resume.reconcile(&storage, [9; 16]);
    assert_eq!((found.have.iter_ones().collect(), found.recheck), (vec![0, 1, 2], vec![3, 4, 5]));
    assert_eq!(resume.reconcile(&storage, resume.boot).have.count(), 6);
}

#[test]
fn pieces_kept_aside_are_vouched_for_too() {
    let download = Download::new();
    let select = |store: &ResumeStore| {
        store.storage().set_wanted(1, false).unwrap();
        store.storage().set_wanted(2, false).unwrap();
    };
    let (store, _) = download.open();
    select(&store);
    download.fetch(&store, 0..3);
    drop(store);
    assert!(!download.path(1).exists());
    assert_eq!(download.restart(), (vec![0, 1, 2], vec![], vec![]));
    let parts = download.root.path().join(hidden_name(&info(PIECE, &download.entries), "parts"));
    fs::remove_file(parts).unwrap();
    assert_eq!(download.restart(), (vec![0, 1], vec![2], vec![(1, Change::Missing)]));
}

#[test]
fn checkpoints_compact_and_lose_nothing_that_comes_meanwhile() {
    let entries = [(40 << 20, 0)];
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state");
    let open = || {
        let storage = Arc::new(storage_of(root.path(), &entries));
        ResumeStore::open(storage, Some(&state)).unwrap()
    };
    let (store, _) = open();
    assert!(!store.checkpoint_due(Instant::now()));
    store.write_at(0, &[IoSlice::new(&[1; 1024])]).unwrap();
    let pieces = 40 << 10;
    std::thread::scope(|scope| {
        for part in 0..2 {
            let store = &store;
            scope.spawn(move || {
                (0..pieces).filter(|piece| piece % 2 == part).for_each(|piece| store.verified(piece).unwrap())
            });
        }
        (0..20).for_each(|_| store.checkpoint().unwrap());
    });
    drop(store);
    let (store, loaded) = open();
    assert!(matches!(loaded, Loaded::Resumed(found) if found.have.is_full()));
    // The limit: 9 bytes a record.
    for _ in 0..JOURNAL_LIMIT_BYTES / 9 {
        store.verified(0).unwrap();
    }
    let now = Instant::now();
    assert!(!store.checkpoint_due(now));
    store.verified(0).unwrap();
    assert!(store.checkpoint_due(now));
    store.checkpoint().unwrap();
    assert!(!store.checkpoint_due(now));
    store.set_totals(1, 1);
    assert!(!store.checkpoint_due(now) && store.checkpoint_due(now + CHECKPOINT_INTERVAL * 2));
    store.delete().unwrap();
    assert!(matches!(open().1, Loaded::Fresh));
}

#[test]
fn a_check_on_request_takes_the_files_as_they_are() {
    let download = Download::new();
    fs::create_dir(download.root.path().join("c")).unwrap();
    for (file, range) in [(0, 0..2500), (1, 2500..5500), (2, 5500..6144)] {
        fs::write(download.path(file), &download.content[range]).unwrap();
    }
    let (store, _) = download.open();
    store.recheck_all().unwrap();
    (0..5).for_each(|piece| store.verified(piece).unwrap());
    drop(store);
    assert_eq!(download.restart(), ((0..5).collect(), vec![5], vec![]));
}

#[test]
fn foreign_and_damaged_files_are_told() {
    let download = Download::new();
    let (store, _) = download.open();
    let path = store.path().to_owned();
    download.fetch(&store, 0..2);
    store.close(true).unwrap();
    drop(store);
    let storage = Arc::new(storage_of(download.root.path(), &[(100, 0)]));
    let (_, loaded) = ResumeStore::open(storage, None).unwrap();
    assert!(matches!(loaded, Loaded::Damaged(ResumeError::Foreign)));
    fs::write(&path, "rubbish").unwrap();
    assert!(matches!(download.open().1, Loaded::Damaged(ResumeError::NotResume)));
    // A link in its place is not followed.
    fs::remove_file(&path).unwrap();
    symlink("elsewhere", &path).unwrap();
    let storage = Arc::new(storage_of(download.root.path(), &download.entries));
    assert_eq!(ResumeStore::open(storage, None).unwrap_err().kind, ErrorKind::InTheWay);
}

#[test]
fn layers_from_peers_are_kept_and_prove_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let made = |name: &str, byte: u8| {
        fs::write(dir.path().join(name), vec![byte; 200_000]).unwrap();
        let options = CreateOptions { version: Version::V2, piece_length: Some(32 * 1024), ..CreateOptions::default() };
        let made = create(&dir.path().join(name), &options, &AtomicBool::new(false), |_, _| {}).unwrap();
        Metainfo::parse(&made.metainfo).unwrap()
    };
    let (torrent, other) = (made("one", 1), made("two", 2));
    let out = dir.path().join("out");
    let open = || {
        let storage = Storage::open(torrent.info.clone(), &out, StorageOptions::default()).unwrap();
        ResumeStore::open(Arc::new(storage), None).unwrap().0
    };
    let store = open();
    assert!(store.kept_layers().is_empty());
    store.keep_layers(torrent.piece_layers.clone()).unwrap();
    let store = open();
    assert!(!store.kept_layers().is_empty());
    assert_eq!(store.kept_layers(), torrent.piece_layers);
    // Neither what was cut short, nor what is wrong, nor what is another content's counts.
    let path = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "anabranch-torrent"));
    let path = path.unwrap();
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert!(store.kept_layers().is_empty());
    let mut wrong = bytes.clone();
    wrong[bytes.len() - 40] ^= 1;
    fs::write(&path, wrong).unwrap();
    assert!(store.kept_layers().is_empty());
    fs::write(&path, other.encode()).unwrap();
    assert!(store.kept_layers().is_empty());
    store.delete().unwrap();
    assert!(!path.exists());
    store.delete().unwrap();
}

#[test]
fn what_an_earlier_process_left_unsynced_is_synced_before_it_is_vouched_for() {
    let download = Download::new();
    let is_dirty = |store: &ResumeStore| store.storage().states[0].load(Ordering::Relaxed) & DIRTY != 0;
    let (store, _) = download.open();
    download.fetch(&store, 0..6);
    drop(store);
    let (store, _) = download.open();
    assert!(is_dirty(&store));
    store.close(true).unwrap();
    drop(store);
    assert!(!is_dirty(&download.open().0));
}

#[test]
fn a_failed_checkpoint_leaves_nothing_it_was_to_make_durable_to_the_next() {
    let download = Download::new();
    let (store, _) = download.open();
    let have = |store: &ResumeStore| store.with(|resume| resume.have.iter_ones().collect::<Vec<u32>>());
    let durable = |store: &ResumeStore| store.with(|resume| resume.durable.iter_ones().collect::<Vec<u32>>());
    download.fetch(&store, [0, 3]);
    store.checkpoint().unwrap();
    // Piece 4 is written to when it happens, and gets its verdict after that.
    download.fetch(&store, [1, 2]);
    let (offset, bytes) = piece_of(&download.content, 4);
    store.write_at(offset, &[IoSlice::new(bytes)]).unwrap();
    let (place, away) = (download.path(1), download.root.path().join("away"));
    fs::rename(&place, &away).unwrap();
    store.storage().handles().remove((store.storage().id, 1));
    store.checkpoint().unwrap_err();
    fs::rename(&away, &place).unwrap();
    store.verified(4).unwrap();
    assert_eq!((have(&store), store.distrusted()), (vec![0, 1, 3], vec![2, 4]));
    store.checkpoint().unwrap();
    assert_eq!(durable(&store), [0, 1, 3]);
    // Killed here, they are hashed again; as they are when they were written once more.
    assert_eq!(download.restart(), (vec![0, 1, 3], vec![2, 4], vec![]));
    for piece in store.distrusted() {
        store.rewrite(piece).unwrap();
        store.verified(piece).unwrap();
    }
    store.checkpoint().unwrap();
    assert_eq!((durable(&store), store.distrusted()), (vec![0, 1, 2, 3, 4], vec![]));
}

/// Pieces of the content that is written by a process which gets killed.
const KILLED_PIECES: u32 = 8000;
const KILLS: u32 = 30;
const KILLED_ROOT: &str = "ANABRANCH_TEST_KILLED_ROOT";
const KILLED_ENTRIES: [(u64, u8); 4] =
    [(1_000_000, 0), (777, 1), (2_000_000, 0), (KILLED_PIECES as u64 * 1024 - 3_000_777, 0)];

/// Not a test by itself: the process that [`killed_at_any_moment_recorded_pieces_are_whole`] starts and kills.
#[test]
fn writes_until_killed() {
    let Some(root) = std::env::var_os(KILLED_ROOT) else { return };
    let content = content_of(&KILLED_ENTRIES);
    let storage = Arc::new(storage_of(Path::new(&root), &KILLED_ENTRIES));
    let (store, _) = ResumeStore::open(storage, None).unwrap();
    let missing: Vec<u32> = store.with(|resume| resume.have.iter_zeros().collect());
    std::thread::scope(|scope| {
        for part in 0..2 {
            let (store, content, missing) = (&store, &content, &missing);
            scope.spawn(move || {
                for piece in missing.iter().filter(|piece| **piece % 2 == part) {
                    let (offset, bytes) = piece_of(content, *piece);
                    store.write_at(offset, &[IoSlice::new(bytes)]).unwrap();
                    store.verified(*piece).unwrap();
                }
            });
        }
        (0..100).for_each(|_| store.checkpoint().unwrap());
    });
}

#[test]
fn killed_at_any_moment_recorded_pieces_are_whole() {
    let root = tempfile::tempdir().unwrap();
    let content = content_of(&KILLED_ENTRIES);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut have_before, mut finished) = (0, 0);
    for round in 0..=KILLS {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "storage::tests::writes_until_killed"])
            .env(KILLED_ROOT, root.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        if round < KILLS {
            std::thread::sleep(Duration::from_micros(random.u64(1000..30_000)));
            child.kill().unwrap();
        }
        child.wait().unwrap();
        let storage = Arc::new(storage_of(root.path(), &KILLED_ENTRIES));
        let (_, loaded) = ResumeStore::open(Arc::clone(&storage), None).unwrap();
        let found = match loaded {
            Loaded::Resumed(found) => found,
            Loaded::Fresh if have_before == 0 => continue,
            other => panic!("round {round}: {other:?}"),
        };
        assert_eq!((found.recheck, found.changed), (vec![], vec![]), "round {round}");
        assert!(found.have.count() >= have_before, "round {round}");
        have_before = found.have.count();
        for piece in found.have.iter_ones() {
            let (offset, bytes) = piece_of(&content, piece);
            let mut back = vec![0; bytes.len()];
            storage.read_at(offset, &mut back).unwrap();
            assert!(back == bytes, "round {round}, piece {piece}");
        }
        if found.have.is_full() {
            fs::remove_dir_all(root.path()).unwrap();
            (have_before, finished) = (0, finished + 1);
        }
    }
    assert!(finished > 0, "the last one was left to finish");
}
