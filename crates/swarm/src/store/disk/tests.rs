use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anabranch_content::create::{CreateOptions, create};
use anabranch_content::geometry::BLOCK_LEN;
use anabranch_content::geometry::BlockRange;
use anabranch_content::hash::{self, ExpectedHash};
use anabranch_content::info::{Info, Version};
use anabranch_content::merkle;
use anabranch_content::metainfo::Metainfo;
use anabranch_content::storage::ResumeStore;
use anabranch_content::storage::{ErrorKind, Storage, StorageOptions};
use anabranch_paths::ConnId;
use tokio::runtime::Runtime;

use super::replies::REPLIES_MAX;
use super::threads::BATCH_MAX;
use super::*;
use crate::store::buffers::CHUNK_LEN;
use crate::store::buffers::PieceBuffers;
use crate::store::pools::Pools;

const ID: ContentId = ContentId(7);
const CONN: ConnId = ConnId(1);
/// An answer that takes longer never comes.
const ANSWER_MAX: Duration = Duration::from_secs(30);
const PIECE_LENGTH: u32 = 64 * 1024;

/// A content that is here, and a place to put it.
struct Fixture {
    source: Storage,
    resume: Arc<ResumeStore>,
    buffers: PieceBuffers,
    pools: Rc<Pools>,
    replies: Replies,
    runtime: Runtime,
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new(files: &[(&str, usize)], version: Version, piece_length: u32) -> (Self, Disk) {
        let dir = tempfile::tempdir().unwrap();
        let have = dir.path().join("have");
        let mut rng = fastrand::Rng::with_seed(11);
        // A v2 content of one file has no folder of its own.
        for (name, len) in files.iter().chain(&[("other", 1)]) {
            let path = have.join("content").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, (0..*len).map(|_| rng.u8(..)).collect::<Vec<_>>()).unwrap();
        }
        let options = CreateOptions { version, piece_length: Some(piece_length), ..CreateOptions::default() };
        let made = create(&have.join("content"), &options, &AtomicBool::new(false), |_, _| {}).unwrap();
        let info = Metainfo::parse(&made.metainfo).unwrap().info;
        let open = |root: &Path, read_only| {
            Storage::open(info.clone(), root, StorageOptions { read_only, ..StorageOptions::default() }).unwrap()
        };
        let source = open(&have, true);
        let (resume, _) = ResumeStore::open(Arc::new(open(&dir.path().join("out"), false)), None).unwrap();
        let pools = Pools::new(64 << 20);
        let buffers = PieceBuffers::new(Rc::clone(&pools), info.geometry.clone());
        let (disk, replies) = Disk::new(1).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        (Self { source, resume: Arc::new(resume), buffers, pools, replies, runtime, dir }, disk)
    }

    fn info(&self) -> &Info {
        self.source.info()
    }

    fn bytes(&self, piece: u32) -> Vec<u8> {
        let mut bytes = vec![0; self.info().geometry.data_len(piece) as usize];
        self.source.read_at(self.info().geometry.piece_offset(piece), &mut bytes).unwrap();
        bytes
    }

    /// Blocks of `piece` arrive.
    fn receive(&mut self, piece: u32, blocks: std::ops::Range<u32>, bytes: &[u8]) {
        for block in blocks {
            let (begin, len) = (block * BLOCK_LEN, self.info().geometry.block_len(piece, block));
            let range = BlockRange { piece, begin, len };
            let payload = &bytes[begin as usize..][..len as usize];
            assert!(self.buffers.insert(range, payload, Instant::now()).is_ok());
        }
    }

    /// A piece that holds `bytes`, all in memory.
    fn job(&mut self, piece: u32, bytes: &[u8]) -> VerifyJob {
        self.receive(piece, 0..self.info().geometry.block_count(piece), bytes);
        self.taken(piece)
    }

    fn good_job(&mut self, piece: u32) -> VerifyJob {
        let bytes = self.bytes(piece);
        self.job(piece, &bytes)
    }

    fn taken(&mut self, piece: u32) -> VerifyJob {
        let whole = self.buffers.take(piece).unwrap();
        self.buffers.reopen(piece);
        let (info, data) = (self.info(), self.bytes(piece));
        let leaves = hash::sha256_many(&data.chunks(BLOCK_LEN as usize).collect::<Vec<_>>());
        let height = info.geometry.piece_length().div_ceil(BLOCK_LEN).next_power_of_two().trailing_zeros();
        let expected = ExpectedHash {
            sha1: info.piece_hashes.get(piece as usize).copied(),
            merkle: info.version.is_v2().then(|| (merkle::subtree_root(&leaves, 0, height), height)),
        };
        VerifyJob {
            content: ID,
            piece,
            whole,
            expected,
            digests: false,
            read_soon: false,
            geometry: info.geometry.clone(),
            resume: Arc::clone(&self.resume),
        }
    }

    fn answer(&mut self) -> Reply {
        let next = async { tokio::time::timeout(ANSWER_MAX, self.replies.next()).await };
        self.runtime.block_on(next).expect("an answer comes").expect("the disk is there")
    }

    fn verdict(&mut self) -> (u32, Outcome) {
        match self.answer() {
            Reply::Verified(Verified { content: ID, piece, outcome }) => (piece, outcome),
            _ => panic!("another answer"),
        }
    }

    fn assert_recorded(&self, pieces: &[u32]) {
        let recorded: Vec<u32> = self.resume.with(|resume| resume.have.iter_ones().collect());
        assert_eq!(recorded, pieces);
    }

    /// What is on disk is what was to arrive.
    fn assert_written(&self, pieces: impl Iterator<Item = u32>) {
        for piece in pieces {
            let wanted = self.bytes(piece);
            let mut found = vec![0; wanted.len()];
            self.resume.storage().read_at(self.info().geometry.piece_offset(piece), &mut found).unwrap();
            assert!(found == wanted, "piece {piece} differs");
        }
    }
}

/// The thread is busy until the sender goes: what is queued meanwhile is taken up in one go.
fn hold(disk: &Disk) -> Sender<()> {
    let (hold, held) = std::sync::mpsc::channel::<()>();
    disk.run(ID, move || {
        let _ = held.recv();
        Reply::ReadAhead { content: ID, conn: CONN }
    });
    hold
}

#[test]
fn more_pieces_than_a_batch_holds_are_written_and_recorded() {
    for version in [Version::V1, Version::V2, Version::Hybrid] {
        // The last one is short.
        let pieces = BATCH_MAX as u32 * 2 + 3;
        let len = (pieces as usize - 1) * PIECE_LENGTH as usize + 17;
        let (mut fixture, disk) = Fixture::new(&[("data", len)], version, PIECE_LENGTH);
        let hold = hold(&disk);
        (0..pieces).for_each(|piece| disk.verify(fixture.good_job(piece)));
        drop(hold);
        assert!(matches!(fixture.answer(), Reply::ReadAhead { .. }));
        for _ in 0..pieces {
            assert!(matches!(fixture.verdict(), (_, Outcome::Good { digests }) if digests.is_empty()));
        }
        fixture.assert_written(0..pieces);
        fixture.assert_recorded(&(0..pieces).collect::<Vec<_>>());
        assert_eq!(fixture.pools.used_bytes(), 0, "their buffers are free again");
    }
}

#[test]
fn a_bad_piece_is_told_from_its_good_fellows_and_not_written() {
    for version in [Version::V1, Version::V2] {
        let (mut fixture, disk) = Fixture::new(&[("data", 3 * PIECE_LENGTH as usize)], version, PIECE_LENGTH);
        let hold = hold(&disk);
        let mut lie = fixture.bytes(1);
        // The first two blocks are alike, the last is as it should be.
        let (first, rest) = lie.split_at_mut(BLOCK_LEN as usize);
        rest[..BLOCK_LEN as usize].copy_from_slice(first);
        let mut jobs = [fixture.good_job(0), fixture.job(1, &lie), fixture.good_job(2)];
        jobs[2].digests = true;
        jobs.into_iter().for_each(|job| disk.verify(job));
        drop(hold);
        fixture.answer();
        assert!(matches!(fixture.verdict(), (0, Outcome::Good { .. })));
        let (1, Outcome::Bad { digests: bad }) = fixture.verdict() else { panic!("it is bad") };
        assert!(bad.len() == 4 && bad[0] == bad[1] && bad[1] != bad[2] && bad[2] != bad[3], "{bad:?}");
        assert!(matches!(fixture.verdict(), (2, Outcome::Good { digests }) if digests.len() == 4));
        fixture.assert_recorded(&[0, 2]);
        // Fetched again, the block that was right before has the digest that it had.
        let mut again = fixture.good_job(1);
        again.digests = true;
        disk.verify(again);
        let (1, Outcome::Good { digests: good }) = fixture.verdict() else { panic!("it is good") };
        assert!(good[0] == bad[0] && good[1] != bad[1] && good[2..] == bad[2..], "{good:?} {bad:?}");
        fixture.assert_recorded(&[0, 1, 2]);
    }
}

#[test]
fn what_was_spilled_is_read_back() {
    for version in [Version::V1, Version::V2] {
        let piece_length = 2 * CHUNK_LEN;
        let (mut fixture, disk) = Fixture::new(&[("data", 2 * piece_length as usize)], version, piece_length);
        let blocks = piece_length / BLOCK_LEN;
        for (piece, good) in [(0, true), (1, false)] {
            let mut bytes = fixture.bytes(piece);
            bytes[0] ^= u8::from(!good);
            // All of the first chunk and two blocks of the second go to disk, then the rest comes.
            fixture.receive(piece, 0..blocks / 2, &bytes);
            fixture.receive(piece, blocks / 2 + 1..blocks / 2 + 3, &bytes);
            let mut spills = fixture.buffers.spill();
            spills.extend(fixture.buffers.spill());
            assert_eq!(spills.len(), 2);
            for spill in spills {
                disk.spill(SpillJob { content: ID, spill, resume: Arc::clone(&fixture.resume) });
                let Reply::Spilled(Spilled { failed: None, piece: spilled, .. }) = fixture.answer() else { panic!() };
                fixture.buffers.spilled(spilled);
            }
            fixture.receive(piece, blocks / 2..blocks / 2 + 1, &bytes);
            fixture.receive(piece, blocks / 2 + 3..blocks, &bytes);
            let job = fixture.taken(piece);
            assert_eq!((job.whole.chunks[0].is_some(), job.whole.on_disk.len() as u32), (false, blocks / 2 + 2));
            disk.verify(job);
            match fixture.verdict().1 {
                Outcome::Good { .. } => assert!(good),
                Outcome::Bad { digests } => assert!(!good && digests.len() as u32 == blocks),
                Outcome::Failed { error, .. } => panic!("{error}"),
            }
        }
        fixture.assert_written(0..1);
        fixture.assert_recorded(&[0]);
    }
}

#[test]
fn padding_counts_as_zeros_and_is_not_written() {
    let files = [("a", PIECE_LENGTH as usize + 100), ("b", BLOCK_LEN as usize + 1)];
    let (mut fixture, disk) = Fixture::new(&files, Version::Hybrid, PIECE_LENGTH);
    let geometry = fixture.info().geometry.clone();
    assert_eq!((geometry.data_len(1), geometry.piece_len(1)), (100, PIECE_LENGTH));
    for piece in 0..3 {
        disk.verify(fixture.good_job(piece));
        assert!(matches!(fixture.verdict().1, Outcome::Good { .. }), "piece {piece}");
    }
    let a = std::fs::metadata(fixture.dir.path().join("out/content/a")).unwrap();
    assert_eq!(a.len(), u64::from(PIECE_LENGTH) + 100);
    fixture.assert_recorded(&[0, 1, 2]);
}

#[test]
fn what_storage_refuses_comes_back_whole() {
    let (mut fixture, disk) = Fixture::new(&[("data", PIECE_LENGTH as usize)], Version::V1, PIECE_LENGTH);
    let in_the_way = fixture.dir.path().join("out/content/data");
    std::fs::create_dir_all(&in_the_way).unwrap();
    disk.verify(fixture.good_job(0));
    let (0, Outcome::Failed { error, job }) = fixture.verdict() else { panic!("there is a folder in its place") };
    assert_ne!(error.kind, ErrorKind::Other, "{error}");
    fixture.assert_recorded(&[]);
    std::fs::remove_dir(&in_the_way).unwrap();
    disk.verify(*job);
    assert!(matches!(fixture.verdict(), (0, Outcome::Good { .. })));
    fixture.assert_written(0..1);
}

/// Past the page cache where the file system can, by threads of their own; as large pieces elsewhere.
#[test]
fn what_nobody_asks_for_is_written_and_recorded_before_the_threads_end() {
    let (piece_length, pieces) = (4 * CHUNK_LEN, 6);
    // One byte more in the last piece: its tail is no whole block.
    let (mut fixture, disk) = Fixture::new(&[("data", 5 * piece_length as usize + 1)], Version::V1, piece_length);
    assert_eq!(fixture.info().geometry.piece_count(), pieces);
    for piece in 0..pieces {
        let mut job = fixture.good_job(piece);
        job.read_soon = piece % 3 == 0;
        disk.verify(job);
    }
    drop(disk);
    let mut good: Vec<u32> = (0..pieces)
        .map(|_| fixture.verdict())
        .map(|(piece, outcome)| {
            assert!(matches!(outcome, Outcome::Good { .. }));
            piece
        })
        .collect();
    good.sort_unstable();
    assert_eq!(good, (0..pieces).collect::<Vec<_>>());
    fixture.assert_recorded(&good);
    fixture.assert_written(0..pieces);
    assert_eq!(fixture.pools.used_bytes(), 0, "their buffers are free again");
}

#[test]
fn what_storage_refuses_to_a_writer_comes_back_whole_too() {
    let piece_length = 4 * CHUNK_LEN;
    let (mut fixture, disk) = Fixture::new(&[("data", 2 * piece_length as usize)], Version::V1, piece_length);
    disk.verify(fixture.good_job(0));
    assert!(matches!(fixture.verdict(), (0, Outcome::Good { .. })));
    let place = fixture.resume.storage().file_path(0);
    let away = place.with_extension("away");
    std::fs::rename(&place, &away).unwrap();
    std::fs::copy(&away, &place).unwrap();
    std::fs::remove_file(&away).unwrap();
    disk.verify(fixture.good_job(1));
    let (1, Outcome::Failed { error, job }) = fixture.verdict() else { panic!("it is deleted") };
    assert_eq!(error.kind, ErrorKind::Vanished);
    disk.verify(*job);
    assert!(matches!(fixture.verdict(), (1, Outcome::Good { .. })));
    fixture.assert_written(0..2);
}

#[test]
fn a_panic_is_told_to_the_content_and_its_thread_goes_on() {
    let (mut fixture, disk) = Fixture::new(&[("data", 3 * PIECE_LENGTH as usize)], Version::V2, PIECE_LENGTH);
    disk.run(ID, || panic!("a task that panics, as this test wants"));
    assert!(matches!(fixture.answer(), Reply::Panicked { content: ID }));
    // A tree of one leaf over four blocks contradicts itself.
    let mut absurd = fixture.good_job(0);
    absurd.expected.merkle = absurd.expected.merkle.map(|(root, _)| (root, 0));
    disk.verify(absurd);
    assert!(matches!(fixture.answer(), Reply::Panicked { content: ID }));
    assert_eq!(fixture.pools.used_bytes(), 0, "its buffers are free again");
    disk.verify(fixture.good_job(1));
    assert!(matches!(fixture.verdict(), (1, Outcome::Good { .. })));
}

#[test]
fn pieces_do_not_wait_behind_all_tasks() {
    let (mut fixture, disk) = Fixture::new(&[("data", PIECE_LENGTH as usize)], Version::V1, PIECE_LENGTH);
    let hold = hold(&disk);
    for _ in 0..10 {
        disk.run(ID, || Reply::Leaves { content: ID, piece: 0, hashes: Vec::new() });
    }
    disk.verify(fixture.good_job(0));
    drop(hold);
    fixture.answer();
    let order: Vec<Reply> = (0..11).map(|_| fixture.answer()).collect();
    let at = order.iter().position(|reply| matches!(reply, Reply::Verified(_)));
    assert!(at.is_some_and(|at| at <= 1), "{at:?}");
}

#[test]
fn what_is_queued_is_finished_before_the_threads_end() {
    let (mut fixture, disk) = Fixture::new(&[("data", 40 * PIECE_LENGTH as usize)], Version::V1, PIECE_LENGTH);
    let hold = hold(&disk);
    (0..40).for_each(|piece| disk.verify(fixture.good_job(piece)));
    drop(hold);
    drop(disk);
    fixture.answer();
    (0..40).for_each(|_| drop(fixture.verdict()));
    fixture.assert_recorded(&(0..40).collect::<Vec<_>>());
}

/// Queues so many tasks; each counts.
fn count_tasks(disk: &Disk, tasks: usize) -> Arc<AtomicUsize> {
    let done = Arc::<AtomicUsize>::default();
    for _ in 0..tasks {
        let done = Arc::clone(&done);
        disk.run(ID, move || {
            done.fetch_add(1, Ordering::Relaxed);
            Reply::LayersKept { content: ID }
        });
    }
    done
}

fn wait_until_done(done: &AtomicUsize, tasks: usize) {
    let deadline = Instant::now() + ANSWER_MAX;
    while done.load(Ordering::Relaxed) < tasks {
        assert!(Instant::now() < deadline, "{done:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn answers_that_nobody_takes_hold_up_the_threads_and_nobody_else() {
    let (mut fixture, _) = Fixture::new(&[("data", 1)], Version::V1, PIECE_LENGTH);
    let (disk, replies) = Disk::new(3).unwrap();
    fixture.replies = replies;
    let tasks = REPLIES_MAX + 50;
    let done = count_tasks(&disk, tasks);
    wait_until_done(&done, REPLIES_MAX + 3);
    // Each thread has one answer for which there is no room. What is handed in now waits, and who hands it in does not.
    let more = count_tasks(&disk, 50);
    assert_eq!((done.load(Ordering::Relaxed), more.load(Ordering::Relaxed)), (REPLIES_MAX + 3, 0));
    for _ in 0..tasks + 50 {
        assert!(matches!(fixture.answer(), Reply::LayersKept { .. }));
    }
    assert_eq!((done.load(Ordering::Relaxed), more.load(Ordering::Relaxed)), (tasks, 50));
    drop(disk);
    assert!(fixture.runtime.block_on(fixture.replies.next()).is_none());
}

#[test]
fn whoever_leaves_waits_for_nobody_who_waits_for_room() {
    let tasks = REPLIES_MAX * 2;
    for hears_to_the_end in [true, false] {
        let (disk, mut replies) = Disk::new(2).unwrap();
        let done = count_tasks(&disk, tasks);
        wait_until_done(&done, REPLIES_MAX + 2);
        if hears_to_the_end {
            drop(disk);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let heard = runtime.block_on(async {
                let mut heard = 0;
                while replies.next().await.is_some() {
                    heard += 1;
                }
                heard
            });
            assert_eq!(heard, tasks);
        } else {
            drop(replies);
            drop(disk);
        }
        wait_until_done(&done, tasks);
    }
}
