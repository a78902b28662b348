//! Where bytes come to lie, and what stands in their way.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::*;
use crate::bitfield::Bitfield;

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
