//! The resume file: what counts after a restart, a kill, a reboot, a change by others.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

use super::*;
use crate::create::{CreateOptions, create};
use crate::info::Version;
use crate::metainfo::Metainfo;

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

fn have(store: &ResumeStore) -> Vec<u32> {
    store.with(|resume| resume.have.iter_ones().collect())
}

fn durable(store: &ResumeStore) -> Vec<u32> {
    store.with(|resume| resume.durable.iter_ones().collect())
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
    // What a disk thread had begun before comes after, and leaves nothing.
    store.keep_layers(torrent.piece_layers.clone()).unwrap();
    store.checkpoint().unwrap();
    store.close(true).unwrap();
    let hidden = fs::read_dir(&out)
        .unwrap()
        .filter(|entry| entry.as_ref().is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with('.')));
    assert_eq!(hidden.count(), 0);
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
    download.fetch(&store, [0, 3]);
    store.checkpoint().unwrap();
    // Piece 4 is written to when it happens, and gets its verdict after that.
    download.fetch(&store, [1, 2]);
    let (offset, bytes) = piece_of(&download.content, 4);
    store.write_at(offset, &[IoSlice::new(bytes)]).unwrap();
    let (place, away) = (download.path(1), download.root.path().join("away"));
    fs::rename(&place, &away).unwrap();
    store.storage().handles().remove_file(store.storage().id, 1);
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

#[test]
fn what_is_complete_is_only_read_until_something_is_written_again() {
    let download = Download::new();
    let (store, _) = download.open();
    let lock = download.root.path().join(".anabranch-lock");
    store.storage().claim().unwrap();
    download.fetch(&store, 0..6);
    assert!(lock.exists());
    assert_eq!(store.finish().unwrap(), []);
    assert!(store.storage().is_resting() && !lock.exists(), "the place is given up");
    let record = fs::read(store.path()).unwrap();
    drop(store);

    // The next run finds it as it was, and leaves the record alone.
    let (store, _) = download.open();
    store.storage().claim().unwrap();
    let inode = |store: &ResumeStore| std::os::unix::fs::MetadataExt::ino(&fs::metadata(store.path()).unwrap());
    let before = inode(&store);
    assert_eq!(store.finish().unwrap(), []);
    assert_eq!((inode(&store), fs::read(store.path()).unwrap()), (before, record));
    assert!(store.storage().is_resting() && !lock.exists());

    // Totals are recorded, and it goes on to be at rest.
    store.set_totals(1, 2);
    store.checkpoint().unwrap();
    assert!(store.storage().is_resting() && !lock.exists() && inode(&store) != before);

    // No other content of this process gets the place, as long as this one is there.
    let other = Arc::new(storage_of(download.root.path(), &download.entries));
    assert_eq!(other.claim().unwrap_err().kind, ErrorKind::Claimed);
    // It is claimed for what is written.
    store.failed(3).unwrap();
    assert!(!store.storage().is_resting() && lock.exists());
    download.fetch(&store, [3]);
    assert_eq!(store.finish().unwrap(), []);
    assert!(store.storage().is_resting());
    assert_eq!(download.restart(), ((0..6).collect(), vec![], vec![]));
}

#[test]
fn a_finish_that_finds_something_new_records_it() {
    let download = Download::new();
    let (store, _) = download.open();
    download.fetch(&store, 0..6);
    assert_eq!(store.finish().unwrap(), []);
    drop(store);
    // Somebody touched a file, and its pieces are good.
    download.touch(1, HOUR);
    let (store, _) = download.open();
    for piece in [2, 3, 4, 5] {
        store.verified(piece).unwrap();
    }
    assert_eq!(store.finish().unwrap(), []);
    drop(store);
    assert_eq!(download.restart(), ((0..6).collect(), vec![], vec![]));
}

#[test]
fn what_was_finished_is_opened_without_a_claim() {
    let download = Download::new();
    let storage = || Arc::new(storage_of(download.root.path(), &download.entries));
    let lock = download.root.path().join(".anabranch-lock");
    let finish = || {
        let (store, _) = download.open();
        store.storage().claim().unwrap();
        download.fetch(&store, (0..6).filter(|piece| !have(&store).contains(piece)));
        assert_eq!(store.finish().unwrap(), []);
        store.path().to_owned()
    };
    let open = || ResumeStore::open_finished(&storage(), None);
    assert!(open().is_none(), "nothing was fetched");
    let record = finish();
    let left = record.with_extension("anabranch-resume-new");
    fs::write(&left, "left by one who died").unwrap();

    let store = open().expect("it is finished");
    assert!(store.is_at_rest() && !lock.exists() && !left.exists());
    assert_eq!((have(&store), durable(&store)), (vec![0, 1, 2, 3, 4, 5], vec![0, 1, 2, 3, 4, 5]));
    assert_eq!((store.finish().unwrap(), store.perhaps_there(|_| true)), (Vec::new(), Vec::new()));
    assert!(!store.storage().is_seal_broken(0));
    // The place is its alone in this process, and no other content's.
    assert!(open().is_none());
    assert_eq!(storage().claim().unwrap_err().kind, ErrorKind::Claimed);
    // What is written is claimed and recorded as ever.
    store.failed(3).unwrap();
    assert!(lock.exists() && !store.is_at_rest());
    drop(store);
    assert!(open().is_none(), "a piece is missing");
    assert_eq!(download.restart(), (vec![0, 1, 2, 4, 5], vec![], vec![]));

    // While somebody else may write to its places, it is not taken for finished.
    finish();
    let other = storage();
    other.claim().unwrap();
    assert!(open().is_none());
    drop(other);
    let inner = Arc::new(storage_of(&download.root.path().join("c"), &download.entries));
    inner.claim().unwrap();
    drop(open().expect("its files are c/0, those of the other c/c/0"));
    drop(inner);

    // Nor with a file that is another, gone, or cut short.
    download.touch(1, HOUR);
    assert!(open().is_none());
    for change in [|path: &PathBuf| fs::remove_file(path), |path: &PathBuf| fs::write(path, "short")] {
        fs::remove_file(&record).unwrap();
        fs::remove_dir_all(download.root.path().join("c")).unwrap();
        finish();
        assert!(open().is_some());
        change(&download.path(2)).unwrap();
        assert!(open().is_none());
    }
    assert!(!lock.exists());
}

#[test]
fn a_record_that_says_less_than_finished_is_not_taken_for_that() {
    let download = Download::new();
    let storage = || Arc::new(storage_of(download.root.path(), &download.entries));
    let (store, _) = download.open();
    download.fetch(&store, 0..6);
    assert_eq!(store.finish().unwrap(), []);
    let path = store.path().to_owned();
    drop(store);
    let whole = fs::read(&path).unwrap();
    let with = |change: fn(&mut Resume)| {
        let mut resume = Resume::decode(&whole).unwrap();
        change(&mut resume);
        fs::write(&path, resume.encode()).unwrap();
        ResumeStore::open_finished(&storage(), None).is_some()
    };
    assert!(with(|_| ()) && with(|resume| resume.boot = [7; 16]), "it was on the disk before the machine was started");
    assert!(!with(|resume| _ = resume.durable.clear(5)));
    assert!(!with(|resume| _ = resume.recheck.set(5)));
    assert!(!with(|resume| resume.files[1].foreign = true));
    assert!(!with(|resume| resume.files[1].lease = Some(Lease { from_ns: 0, until_ns: i64::MAX })));
    assert!(!with(|resume| resume.files[1].stamp = None));
    assert!(!with(|resume| resume.files[3].stamp = resume.files[1].stamp));
    assert!(!with(|resume| resume.hashes.v1 = Some([1; 20])));
    // A journal, or what is left of one.
    for tail in [&[0][..], &whole[whole.len() - 9..]] {
        fs::write(&path, [&whole, tail].concat()).unwrap();
        let (store, loaded) = download.open();
        assert!(matches!(loaded, Loaded::Resumed(_)));
        drop(store);
    }
    // Links are made where they are missing: that is looked at.
    let linked = Arc::new(storage_of(download.root.path(), &[&download.entries[..], &[(0, 2)]].concat()));
    assert!(ResumeStore::open_finished(&linked, None).is_none());
}
