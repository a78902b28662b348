//! A process that writes is killed at any moment, again and again.

use std::fs;
use std::time::Duration;

use super::*;

const KILLED_ROOT: &str = "ANABRANCH_TEST_KILLED_ROOT";
const KILLED_KIND: &str = "ANABRANCH_TEST_KILLED_KIND";

/// What is written by the process that gets killed.
struct Killed {
    kind: &'static str,
    piece_length: u32,
    entries: &'static [(u64, u8)],
    kills: u32,
    /// At what time at most, in microseconds.
    late_us: u64,
    uncached: bool,
}

const KINDS: [Killed; 2] = [
    Killed {
        kind: "small pieces, through the cache",
        piece_length: PIECE,
        entries: &[(1_000_000, 0), (777, 1), (2_000_000, 0), (8000 * 1024 - 3_000_777, 0)],
        kills: 30,
        late_us: 30_000,
        uncached: false,
    },
    Killed {
        kind: "large pieces, past the cache",
        piece_length: 1 << 20,
        // The second and third begin inside a block.
        entries: &[(9_000_001, 0), (777, 1), (5_000_000, 0), (12_000_000, 0)],
        kills: 12,
        late_us: 150_000,
        uncached: true,
    },
];

impl Killed {
    fn storage(&self, root: &Path) -> Arc<Storage> {
        let info = Arc::new(info(self.piece_length, self.entries));
        Arc::new(Storage::open(info, root, StorageOptions::default()).unwrap())
    }

    fn piece<'a>(&self, content: &'a [u8], piece: u32) -> (u64, &'a [u8]) {
        let (start, len) = (piece as usize * self.piece_length as usize, self.piece_length as usize);
        (start as u64, &content[start..content.len().min(start + len)])
    }
}

/// Not a test by itself: the process that the others start and kill.
#[test]
fn writes_until_killed() {
    let (Some(root), Ok(kind)) = (std::env::var_os(KILLED_ROOT), std::env::var(KILLED_KIND)) else { return };
    let killed = KINDS.iter().find(|killed| killed.kind == kind).unwrap();
    let content = content_of(killed.entries);
    let (store, _) = ResumeStore::open(killed.storage(Path::new(&root)), None).unwrap();
    let missing: Vec<u32> = store.with(|resume| resume.have.iter_zeros().collect());
    std::thread::scope(|scope| {
        for part in 0..2 {
            let (store, content, missing) = (&store, &content, &missing);
            scope.spawn(move || {
                let pool = BufferPool::new(killed.piece_length as usize, killed.piece_length as usize);
                let mut buffer = pool.try_get().unwrap();
                for piece in missing.iter().filter(|piece| **piece % 2 == part) {
                    let (offset, bytes) = killed.piece(content, *piece);
                    let aligned = &mut buffer[..bytes.len()];
                    aligned.copy_from_slice(bytes);
                    let slices = [IoSlice::new(aligned)];
                    match killed.uncached {
                        true => store.write_uncached_at(offset, &slices).unwrap(),
                        false => store.write_at(offset, &slices).unwrap(),
                    }
                    store.verified(*piece).unwrap();
                }
            });
        }
        (0..100).for_each(|_| store.checkpoint().unwrap());
    });
}

fn recorded_pieces_are_whole(killed: &Killed, root: &Path) {
    let content = content_of(killed.entries);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut have_before, mut finished) = (0, 0);
    for round in 0..=killed.kills {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "storage::tests::kills::writes_until_killed"])
            .env(KILLED_ROOT, root)
            .env(KILLED_KIND, killed.kind)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        if round < killed.kills {
            std::thread::sleep(Duration::from_micros(random.u64(1000..killed.late_us)));
            child.kill().unwrap();
        }
        child.wait().unwrap();
        let storage = killed.storage(root);
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
            let (offset, bytes) = killed.piece(&content, piece);
            let mut back = vec![0; bytes.len()];
            storage.read_at(offset, &mut back).unwrap();
            assert!(back == bytes, "round {round}, piece {piece}");
        }
        if found.have.is_full() {
            drop(storage);
            fs::remove_dir_all(root).unwrap();
            (have_before, finished) = (0, finished + 1);
        }
    }
    assert!(finished > 0, "the last one was left to finish");
}

#[test]
fn killed_at_any_moment_recorded_pieces_are_whole() {
    let root = tempfile::tempdir().unwrap();
    recorded_pieces_are_whole(&KINDS[0], root.path());
}

#[test]
fn killed_during_direct_writes_recorded_pieces_are_whole() {
    let root = direct::on_disk();
    recorded_pieces_are_whole(&KINDS[1], root.path());
}
