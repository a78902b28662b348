//! A process that writes is killed at any moment, again and again.

use std::fs;
use std::time::Duration;

use super::*;

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
            .args(["--exact", "storage::tests::kills::writes_until_killed"])
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
