use std::fs::OpenOptions;
use std::io::IoSlice;
use std::os::unix::fs::{FileExt, symlink};
use std::sync::Arc;

use super::*;
use crate::create::tests::{parsed, tree};
use crate::hash::sha1;
use crate::info::Version;
use crate::storage::{StorageOptions, hidden_name, testing};

const VERSIONS: [Version; 3] = [Version::V1, Version::V2, Version::Hybrid];

fn run(info: &Info, layers: &HashMap<Sha256Digest, Box<[Sha256Digest]>>, root: &Path) -> Report {
    verify(info, layers, root, &AtomicBool::new(false), |_, _| {}).expect("layers are there")
}

fn state(info: &Info, report: &Report, name: &str) -> FileState {
    let index = info.files.iter().position(|file| file.path.ends_with(name)).expect("a file of the tree");
    report.files[index].state
}

#[test]
fn an_untouched_tree_is_complete() {
    let folder = tree();
    symlink("b/file1", folder.path().join("tree/link")).expect("a link");
    for version in VERSIONS {
        let (info, layers) = parsed(&folder.path().join("tree"), version);
        let mut last = (0, 1);
        let report = verify(&info, &layers, folder.path(), &AtomicBool::new(false), |done, total| last = (done, total));
        let report = report.expect("layers are there");
        assert!(report.is_complete(), "{version:?}: {report:?}");
        assert_eq!(last, (info.geometry.total(), info.geometry.total()));
        let bytes: u64 = report.files.iter().map(|file| file.bytes_good).sum();
        assert_eq!(bytes, info.geometry.total());
    }
}

#[test]
fn nothing_there_is_no_error() {
    let folder = tree();
    let empty = tempfile::tempdir().expect("a temporary folder");
    for version in VERSIONS {
        let (info, layers) = parsed(&folder.path().join("tree"), version);
        let report = run(&info, &layers, empty.path());
        // A piece of nothing but padding does not exist.
        assert_eq!(report.pieces.count(), 0);
        assert_eq!(state(&info, &report, "file9"), FileState::Missing);
        assert_eq!(state(&info, &report, "file0"), FileState::Missing);
    }
}

#[test]
fn every_kind_of_damage_is_told_apart() {
    for version in VERSIONS {
        let folder = tree();
        let root = folder.path().join("tree");
        symlink("file4", root.join("link")).expect("a link");
        let (info, layers) = parsed(&root, version);
        let open = |name: &str| OpenOptions::new().write(true).open(root.join(name)).expect("there");
        // One bit in the fourth piece of the longest file.
        open("b/file9").write_all_at(b"?", 100_000).expect("writable");
        open("file8").set_len(70_000).expect("writable");
        open("file4").set_len(16386).expect("writable");
        fs::remove_file(root.join("b/inner/file6")).expect("removable");
        fs::create_dir(root.join("b/inner/file6")).expect("a folder");
        fs::remove_file(root.join("link")).expect("removable");
        symlink("file8", root.join("link")).expect("a link");

        let report = run(&info, &layers, folder.path());
        assert!(!report.is_complete());
        assert_eq!(state(&info, &report, "b/file9"), FileState::Damaged);
        assert_eq!(state(&info, &report, "file8"), FileState::Short { actual: 70_000 });
        assert_eq!(state(&info, &report, "file4"), FileState::Long { actual: 16386 });
        assert_eq!(state(&info, &report, "b/inner/file6"), FileState::WrongKind);
        assert_eq!(state(&info, &report, "link"), FileState::WrongKind);
        assert_eq!(state(&info, &report, "file0"), FileState::Complete);
        let good = |name: &str| {
            let index = info.files.iter().position(|file| file.path.ends_with(name)).expect("a file of the tree");
            report.files[index].bytes_good
        };
        if version != Version::V1 {
            // Files are aligned: only their own damage counts.
            assert_eq!(good("b/file9"), 1_000_000 - 32768);
            assert_eq!(good("file8"), 65536);
            assert_eq!(good("file4"), 16385);
            assert_eq!(state(&info, &report, "b/file5"), FileState::Complete);
        } else {
            assert!(good("b/file9") < 1_000_000 && good("b/file9") >= 1_000_000 - 3 * 32768);
        }
    }
}

#[test]
fn both_hashes_of_a_hybrid_must_agree() {
    let folder = tree();
    let (info, layers) = parsed(&folder.path().join("tree"), Version::Hybrid);
    let mut wrong = info.clone();
    wrong.piece_hashes[3][0] ^= 1;
    assert_eq!(run(&wrong, &layers, folder.path()).pieces.iter_zeros().collect::<Vec<_>>(), [3]);
    let mut wrong = layers.clone();
    wrong.values_mut().find(|layer| layer.len() > 10).expect("the longest file")[5][0] ^= 1;
    assert_eq!(run(&info, &wrong, folder.path()).pieces.iter_zeros().count(), 1);
}

#[test]
fn a_missing_layer_and_a_cancel_are_told() {
    let folder = tree();
    let (info, layers) = parsed(&folder.path().join("tree"), Version::V2);
    let result = verify(&info, &HashMap::new(), folder.path(), &AtomicBool::new(false), |_, _| {});
    assert!(matches!(result, Err(VerifyError::LayerMissing { .. })));
    let result = verify(&info, &layers, folder.path(), &AtomicBool::new(true), |_, _| {});
    assert_eq!(result, Err(VerifyError::Canceled));
}

#[test]
fn layers_are_made_of_files_that_are_whole() {
    let folder = tree();
    for version in VERSIONS {
        let (info, layers) = parsed(&folder.path().join("tree"), version);
        let made = |known: &PieceLayers| layers_on_disk(&info, known.clone(), folder.path(), &AtomicBool::new(false));
        assert_eq!(made(&PieceLayers::new()).expect("all is there"), layers, "{version:?}");
        assert_eq!(made(&layers).expect("all is known"), layers);
        let canceled = layers_on_disk(&info, PieceLayers::new(), folder.path(), &AtomicBool::new(true));
        assert_eq!(canceled.is_none(), version.is_v2(), "{version:?}");
    }
    // What is damaged proves nothing, and what is known already needs no file.
    let (info, layers) = parsed(&folder.path().join("tree"), Version::Hybrid);
    let longest = folder.path().join("tree/b/file9");
    OpenOptions::new().write(true).open(longest).expect("there").write_all_at(b"?", 100_000).expect("writable");
    let made = |known| layers_on_disk(&info, known, folder.path(), &AtomicBool::new(false));
    assert_eq!(made(PieceLayers::new()), None);
    assert_eq!(made(layers.clone()), Some(layers));
}

/// Two files of 1500 bytes in pieces of 1024, of which the first is wanted: the second piece lies in both. What is in the storage are
/// the pieces that the first file needs.
fn half_wanted(root: &Path) -> Storage {
    let content: Vec<u8> = (0..3000_u32).map(|at| (at % 251 + 1) as u8).collect();
    let mut info = testing::info(1024, &[(1500, 0), (1500, 0)]);
    info.piece_hashes = content.chunks(1024).map(sha1).collect();
    let storage = Storage::open(Arc::new(info), root, StorageOptions::default()).expect("a folder");
    storage.set_wanted(1, false).expect("nothing moves");
    storage.write_at(0, &[IoSlice::new(&content[..2048])]).expect("writable");
    storage
}

fn good_of(storage: &Storage, pieces: &[u32]) -> Vec<u32> {
    let mut last = (0, 1);
    let progress = |done, total| last = (done, total);
    let good = verify_pieces(storage, &HashMap::new(), pieces, &AtomicBool::new(false), progress);
    assert_eq!(last.0, last.1, "all of it is done");
    good.expect("not canceled").iter_ones().collect()
}

#[test]
fn a_piece_whose_rest_is_kept_aside_is_judged_by_all_of_its_bytes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let storage = half_wanted(folder.path());
    assert!(!storage.file_path(1).exists());
    assert_eq!(good_of(&storage, &[0, 1, 2]), [0, 1], "nothing was written of the third");
    assert_eq!(good_of(&storage, &[1]), [1]);
    let canceled = verify_pieces(&storage, &HashMap::new(), &[1], &AtomicBool::new(true), |_, _| {});
    assert_eq!(canceled, Err(VerifyError::Canceled));
    // One byte of those in its file, then one of those aside.
    let aside = folder.path().join(hidden_name(storage.info(), "parts"));
    for (path, at) in [(storage.file_path(0), 1499), (aside.clone(), 1500 - 1024)] {
        let file = OpenOptions::new().read(true).write(true).open(path).expect("there");
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("that long");
        file.write_all_at(&[byte[0] ^ 1], at).expect("writable");
        assert_eq!(good_of(&storage, &[0, 1]), [0]);
        file.write_all_at(&byte, at).expect("writable");
        assert_eq!(good_of(&storage, &[0, 1]), [0, 1]);
    }
    // What is aside is gone.
    OpenOptions::new().write(true).open(&aside).expect("there").set_len(0).expect("writable");
    assert_eq!(good_of(&storage, &[0, 1]), [0]);
}

#[test]
fn what_was_kept_aside_and_moved_to_its_place_is_judged_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let storage = half_wanted(folder.path());
    storage.set_wanted(1, true).expect("it moves");
    assert!(storage.file_path(1).exists());
    assert_eq!(good_of(&storage, &[0, 1, 2]), [0, 1]);
    // A stranger's file in the place of one whose bytes are aside is not taken for them.
    let other = tempfile::tempdir().expect("a temporary folder");
    let storage = half_wanted(other.path());
    fs::write(storage.file_path(1), [9; 1500]).expect("writable");
    assert_eq!(good_of(&storage, &[0, 1]), [0, 1]);
}

#[test]
fn pieces_of_which_nothing_was_ever_written_are_not_read() {
    const PIECE_LEN: u32 = 1 << 20;
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Every file ends within a piece; the first one is wanted.
    let info = testing::info(PIECE_LEN, &[(1_280_000, 0); 5]);
    let storage = Storage::open(Arc::new(info), folder.path(), StorageOptions::default()).expect("a folder");
    (1..5).for_each(|file| storage.set_wanted(file, false).expect("nothing moves"));
    let bytes = vec![7; PIECE_LEN as usize];
    for piece in [0, 1, 4] {
        storage.write_at(piece * u64::from(PIECE_LEN), &[IoSlice::new(&bytes)]).expect("writable");
    }
    let aside: Vec<u32> = (0..7).filter(|piece| storage.is_kept_aside(*piece)).collect();
    assert_eq!(aside, [1, 4], "others could have bytes there, and have none");
}
