//! Generated folders go through memory in odd orders, with losses, killed and resumed; and what strangers bring.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_content::create::Filter;
use anabranch_content::hash::sha256;
use anabranch_hercules::tree;
use anabranch_hercules::wire::manifest::{Entry, EntryKind, parse_entries};
use anabranch_hercules::wire::message::Offer;
use anabranch_hercules::wire::receipt::Receipt;
use fastrand::Rng;
use tempfile::TempDir;

use super::super::content::{Destination, DestinationError, Destinations, Offered, Source, SourceError};
use super::convert::system_time;
use super::*;

const NAMES: [&[u8]; 14] = [
    b"plain",
    b"with space",
    b"-rf",
    b"two\nlines",
    b"caf\xe9",
    b"\xff\xfe",
    "é".as_bytes(),
    "e\u{301}".as_bytes(),
    b"Case",
    b"case",
    b"a.tar.gz",
    b"q?:*|",
    "\u{202a}left".as_bytes(),
    b"...",
];
const LENS: [usize; 10] = [0, 1, 1023, 4096, 16_384, 65_537, 300_000, (1 << 20) - 1, (1 << 20) + 1, 2_500_000];

/// A folder out of a seed: names, modes, times, holes, links, empty things, twins.
fn make(top: &Path, random: &mut Rng) {
    fs::create_dir(top).unwrap();
    let mut folders = vec![top.to_path_buf()];
    for _ in 0..random.usize(1..30) {
        let folder = folders[random.usize(..folders.len())].clone();
        let mut name = NAMES[random.usize(..NAMES.len())].to_vec();
        if random.bool() {
            name.extend(random.u16(..).to_string().bytes());
        }
        let path = folder.join(OsStr::from_bytes(&name));
        if path.symlink_metadata().is_ok() {
            continue;
        }
        match random.u8(0..8) {
            0 => {
                fs::create_dir(&path).unwrap();
                folders.push(path);
                continue;
            }
            1 => {
                let _ = symlink(["plain", ".", "nowhere/x", "case"][random.usize(..4)], &path);
                continue;
            }
            2 => {
                let file = File::create_new(&path).unwrap();
                file.set_len(random.u64(1..8 << 20)).unwrap();
                for _ in 0..random.usize(0..4) {
                    let len = file.metadata().unwrap().len();
                    let part = vec![random.u8(1..); random.usize(1..100_000).min(len as usize)];
                    file.write_all_at(&part, random.u64(..=len - part.len() as u64)).unwrap();
                }
            }
            3 if folder.join("plain").is_file() => drop(fs::hard_link(folder.join("plain"), &path)),
            _ => {
                let len = LENS[random.usize(..LENS.len())];
                let seed = random.u8(..);
                let bytes: Vec<u8> = (0..len).map(|at| (at / 3) as u8 ^ seed).collect();
                fs::write(&path, bytes).unwrap();
            }
        }
        let mode = [0o644, 0o600, 0o444, 0o755, 0o4755, 0o666, 0o400][random.usize(..7)];
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        // Of a file of mode 400, too.
        set_time(&path, random);
    }
    for folder in folders.iter().rev() {
        let mode = [0o755, 0o700, 0o555, 0o1777][random.usize(..4)];
        set_time(folder, random);
        fs::set_permissions(folder, Permissions::from_mode(mode)).unwrap();
    }
}

fn set_time(path: &Path, random: &mut Rng) {
    let time = system_time((random.i64(-1_000_000_000..4_000_000_000), random.u32(..1_000_000_000)));
    File::open(path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
}

/// Everything below `root`, as it is to arrive.
fn list(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let (mut found, mut waiting) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(path) = waiting.pop() {
        let meta = path.symlink_metadata().unwrap();
        let time = (meta.mtime(), meta.mtime_nsec());
        let mode = meta.permissions().mode() & 0o777;
        let told = if meta.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().map(|item| item.unwrap().path()));
            format!("folder {mode:o} {time:?}")
        } else if meta.is_symlink() {
            format!("link {:?} {time:?}", fs::read_link(&path).unwrap())
        } else {
            format!("file {mode:o} {time:?} {} {:x?}", meta.len(), sha256(&fs::read(&path).unwrap()))
        };
        // Overrides of the writing direction are not received.
        let name = path.strip_prefix(root).unwrap().to_path_buf();
        let overrides = "\u{202a}".as_bytes();
        let mut name = name.into_os_string().into_encoded_bytes();
        while let Some(at) = name.windows(overrides.len()).position(|bytes| bytes == overrides) {
            name.drain(at..at + overrides.len());
        }
        found.insert(name, told);
    }
    found
}

fn scan(paths: &[PathBuf]) -> Scan {
    Scan::of(paths, None, &AtomicBool::new(false)).unwrap()
}

fn source(path: &Path) -> FileSource {
    FileSource::new(scan(&[path.to_path_buf()])).unwrap()
}

fn offered(source: &dyn Source) -> Offered {
    offered_by(source, 1)
}

fn offered_by(source: &dyn Source, key: u8) -> Offered {
    let manifest = source.manifest();
    let offer = Offer {
        transfer: 1,
        chunk_len: 1400,
        content_len: source.content_len(),
        manifest_len: manifest.len() as u64,
        manifest_hash: sha256(&manifest),
    };
    let key = anabranch_transport::NodeId::from_bytes([key; 32]);
    Offered { key, address: "127.0.0.1:1".parse().unwrap(), offer, entries: parse_entries(&manifest).unwrap() }
}

fn entries(entries: Vec<Entry>) -> Offered {
    struct Nothing(Vec<Entry>);
    impl Source for Nothing {
        fn content_len(&self) -> u64 {
            self.0.iter().map(Entry::data_len).sum()
        }
        fn entries(&self) -> u32 {
            self.0.len() as u32
        }
        fn manifest(&self) -> Arc<[u8]> {
            let mut bytes = Vec::new();
            self.0.iter().for_each(|entry| entry.write(&mut bytes).unwrap());
            bytes.into()
        }
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
            Ok(())
        }
    }
    offered(&Nothing(entries))
}

fn receipt() -> Receipt {
    Receipt {
        transfer: 1,
        root: [0; 32],
        content_len: 0,
        manifest_hash: [0; 32],
        entries: 0,
        finished: 0,
        sender: [0; 32],
        receiver: [0; 32],
        signature: [0; 64],
    }
}

/// Sends what is missing, span by span in any order, each in parts or at once, some of it twice. Stops after `spans` of them.
fn transfer(source: &dyn Source, to: &dyn Destination, random: &mut Rng, spans: usize) -> usize {
    let len = source.content_len();
    let kept = to.kept();
    let claimed = to.claimed();
    let is_there = |span| {
        let bytes = tree::span_bytes(len, span);
        let mut both = [(); 2].map(|()| vec![0; (bytes.end - bytes.start) as usize]);
        source.read(bytes.start, &mut both[0]).unwrap();
        to.read(bytes.start, &mut both[1]).unwrap();
        both[0] == both[1]
    };
    let has_hash = |span| {
        let bytes = tree::span_bytes(len, span);
        let mut content = vec![0; (bytes.end - bytes.start) as usize];
        source.read(bytes.start, &mut content).unwrap();
        to.recorded_hash(span) == Some(tree::span_hash(len, span, &content))
    };
    let mut missing: Vec<u64> = (0..tree::span_count(len))
        .filter(|span| !(kept.contains(*span) && has_hash(*span) || claimed.contains(*span) && is_there(*span)))
        .collect();
    random.shuffle(&mut missing);
    let sent = missing.len().min(spans);
    for span in missing.into_iter().take(spans) {
        let bytes = tree::span_bytes(len, span);
        let mut content = vec![0; (bytes.end - bytes.start) as usize];
        source.read(bytes.start, &mut content).unwrap();
        let part = if random.bool() { content.len() } else { random.usize(5000..200_000) };
        let mut parts: Vec<usize> = (0..content.len()).step_by(part).collect();
        random.shuffle(&mut parts);
        for at in parts {
            let part = &content[at..(at + part).min(content.len())];
            if random.u8(..) < 30 {
                to.write(bytes.start + at as u64, &vec![9; part.len()]).unwrap();
            }
            to.write(bytes.start + at as u64, part).unwrap();
        }
        let mut back = vec![0; content.len()];
        to.read(bytes.start, &mut back).unwrap();
        assert!(back == content, "what was written is read");
        to.span_kept(span, &tree::span_hash(len, span, &content)).unwrap();
    }
    sent
}

fn folder(path: &Path) -> Folder {
    Folder::new(path, FolderOptions::default(), |_, _| ())
}

fn forced(path: &Path) -> Folder {
    Folder::new(path, FolderOptions { overwrite: true, ..FolderOptions::default() }, |_, _| ())
}

fn refusal(destinations: &dyn Destinations, offered: Offered) -> String {
    destinations.open(offered).err().expect("a refusal").to_string()
}

fn receive_all(source: &dyn Source, destinations: &dyn Destinations) {
    let to = destinations.open(offered(source)).unwrap();
    transfer(source, &*to, &mut Rng::with_seed(1), usize::MAX);
    to.finish(&receipt()).unwrap();
}

/// What a test has on disk: on the disk of the sources, where holes, direct writes and all are as users have them.
fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

/// So that it can be deleted by whoever may not write to any folder.
fn unlock(folder: &Path) {
    fs::set_permissions(folder, Permissions::from_mode(0o700)).unwrap();
    let items = fs::read_dir(folder).unwrap().map(|item| item.unwrap().path());
    items.filter(|path| path.symlink_metadata().unwrap().is_dir()).for_each(|path| unlock(&path));
}

fn blocks(root: &Path) -> u64 {
    let meta = root.symlink_metadata().unwrap();
    let below =
        if meta.is_dir() { fs::read_dir(root).unwrap().map(|item| blocks(&item.unwrap().path())).sum() } else { 0 };
    below + if meta.is_file() { meta.blocks() } else { 0 }
}

#[test]
fn any_folder_arrives_whatever_the_order_and_however_often_it_is_killed() {
    for seed in 0..25 {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let (from, to) = (scratch(), scratch());
        let top = from.path().join("top");
        make(&top, &mut random);
        let source = source(&top);
        let (mut sent, mut tries) = (0, 0);
        loop {
            let destination = folder(to.path()).open(offered(&source)).unwrap();
            let quota = if tries < 8 { random.usize(0..4) } else { usize::MAX };
            let now = transfer(&source, &*destination, &mut random, quota);
            (sent, tries) = (sent + now, tries + 1);
            if now < quota {
                destination.finish(&receipt()).unwrap();
                break;
            }
        }
        assert_eq!(sent as u64, tree::span_count(source.content_len()), "nothing verified was sent again");
        let (had, has) = (list(&top), list(&to.path().join("top")));
        for name in had.keys().chain(has.keys()) {
            assert_eq!(had.get(name), has.get(name), "{}", String::from_utf8_lossy(name));
        }
        let slack = 16 * 8 * source.entries() as u64;
        let (had, has) = (blocks(&top), blocks(&to.path().join("top")));
        assert!(has <= had + slack, "holes stay holes: {had} and {has} blocks");
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1, "no record is left");
        unlock(&top);
        unlock(&to.path().join("top"));
    }
}

#[test]
fn what_was_changed_by_others_is_sent_again_and_the_rest_is_not() {
    let (from, to) = (scratch(), scratch());
    let top = from.path().join("top");
    fs::create_dir(&top).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(top.join(name), vec![name.as_bytes()[0]; 2 << 20]).unwrap();
    }
    let source = source(&top);
    let destination = folder(to.path()).open(offered(&source)).unwrap();
    transfer(&source, &*destination, &mut Rng::with_seed(2), usize::MAX);
    drop(destination);
    let old = system_time((1_000_000_000, 0));
    let other = to.path().join("top/b");
    File::options().write(true).open(&other).unwrap().set_times(FileTimes::new().set_modified(old)).unwrap();
    fs::remove_file(to.path().join("top/c")).unwrap();
    let destination = folder(to.path()).open(offered(&source)).unwrap();
    let kept = destination.kept();
    assert_eq!((0..6).filter(|span| kept.contains(*span)).collect::<Vec<_>>(), [0, 1]);
    transfer(&source, &*destination, &mut Rng::with_seed(3), usize::MAX);
    destination.finish(&receipt()).unwrap();
    assert_eq!(list(&top), list(&to.path().join("top")));
}

#[test]
fn what_is_there_already_is_refused_unless_told_otherwise() {
    let (from, to) = (scratch(), scratch());
    let top = from.path().join("top");
    fs::create_dir(&top).unwrap();
    fs::write(top.join("file"), vec![1; 3 << 20]).unwrap();
    fs::write(top.join("small"), "new").unwrap();
    symlink("small", top.join("link")).unwrap();
    fs::create_dir(to.path().join("top")).unwrap();
    fs::write(to.path().join("top/small"), "precious").unwrap();
    let source = source(&top);
    let error = refusal(&folder(to.path()), offered(&source));
    assert!(error.contains("top/small") && error.contains("--force") && !error.contains("/crates/"), "{error}");
    assert_eq!(fs::read(to.path().join("top/small")).unwrap(), b"precious");
    receive_all(&source, &forced(to.path()));
    assert_eq!(list(&top), list(&to.path().join("top")));
    // Touched by somebody, it is not ours any more.
    let touched = File::options().write(true).open(to.path().join("top/small")).unwrap();
    touched.set_times(FileTimes::new().set_modified(system_time((1_000_000_000, 0)))).unwrap();
    assert!(refusal(&folder(to.path()), offered(&source)).contains("another file"));
    // What is no file is never replaced.
    for name in ["file", "link"] {
        let to = scratch();
        fs::create_dir_all(to.path().join("top").join(name)).unwrap();
        assert!(refusal(&forced(to.path()), offered(&source)).contains("something else is in the place of top/"));
    }
    let outside = scratch();
    let to = scratch();
    symlink(outside.path(), to.path().join("top")).unwrap();
    assert!(refusal(&forced(to.path()), offered(&source)).contains("something else"));
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn what_is_there_already_with_the_right_length_and_time_is_taken_for_what_its_bytes_are() {
    let (from, to) = (scratch(), scratch());
    let top = from.path().join("top");
    fs::create_dir(&top).unwrap();
    fs::write(top.join("big"), vec![1; (3 << 20) + 5]).unwrap();
    for number in 0..50 {
        fs::write(top.join(format!("small {number}")), vec![number; 1000]).unwrap();
    }
    fs::write(top.join("empty"), "").unwrap();
    symlink("big", top.join("link")).unwrap();
    let hole = File::create(top.join("hole")).unwrap();
    hole.set_len(40 << 20).unwrap();
    hole.write_all_at(&[7; 5000], 20 << 20).unwrap();
    fs::set_permissions(top.join("big"), Permissions::from_mode(0o440)).unwrap();
    let source = source(&top);
    receive_all(&source, &folder(to.path()));
    // The sender was killed before it had the receipt: nothing goes again.
    let again = |destinations: &Folder, key| {
        let destination = destinations.open(offered_by(&source, key)).unwrap();
        let sent = transfer(&source, &*destination, &mut Rng::with_seed(4), usize::MAX);
        destination.finish(&receipt()).unwrap();
        drop(destination);
        assert_eq!(list(&top), list(&to.path().join("top")));
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1, "no record is left");
        sent
    };
    assert_eq!(again(&folder(to.path()), 1), 0);
    // Nor of another sender who has the same; other modes are mended.
    let big = to.path().join("top/big");
    fs::set_permissions(&big, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(again(&folder(to.path()), 2), 0);
    // What is missing comes, and leaves what is there alone.
    fs::remove_file(to.path().join("top/small 7")).unwrap();
    assert_eq!(again(&folder(to.path()), 1), 1);
    // Other bytes, and the time put back: somebody's.
    let spoil = |path: &Path, at: u64| {
        let modified = fs::metadata(path).unwrap().modified().unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(&[9; 10], at).unwrap();
        file.set_times(FileTimes::new().set_modified(modified)).unwrap();
    };
    for (name, at) in [("big", 1 << 20), ("small 3", 500), ("hole", 20 << 20)] {
        let path = to.path().join("top").join(name);
        spoil(&path, at);
        let had = fs::read(&path).unwrap();
        // Longer ago than the first lease begins; the second time there is a record, and it is still not ours.
        std::thread::sleep(Duration::from_millis(1200));
        for _ in 0..2 {
            let destination = folder(to.path()).open(offered(&source)).unwrap();
            let mut content = vec![0; source.content_len() as usize];
            source.read(0, &mut content).unwrap();
            let error = destination.write(0, &content).expect_err("it is somebody's").to_string();
            assert!(error.contains(name) && error.contains("--force"), "{error}");
            assert!(fs::read(&path).unwrap() == had, "{name} was left alone");
        }
        assert!(again(&forced(to.path()), 1) >= 1, "{name}");
    }
    // Something where a hole is to be is not seen by any hash.
    spoil(&to.path().join("top/hole"), 1 << 20);
    assert!(refusal(&folder(to.path()), offered(&source)).contains("another file"));
    assert!(again(&forced(to.path()), 1) >= 1);
}

#[test]
fn what_is_overwritten_keeps_its_other_names() {
    let (from, to) = (scratch(), scratch());
    let top = from.path().join("top");
    fs::write(&top, vec![1; 3 << 20]).unwrap();
    let (there, backup) = (to.path().join("top"), to.path().join("backup"));
    fs::write(&there, vec![1; 3 << 20]).unwrap();
    File::options().write(true).open(&there).unwrap().write_all_at(b"mine", 2 << 20).unwrap();
    fs::set_permissions(&there, Permissions::from_mode(0o640)).unwrap();
    let time = fs::metadata(&top).unwrap().modified().unwrap();
    File::open(&there).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
    fs::hard_link(&there, &backup).unwrap();
    let (had, source) = (fs::read(&backup).unwrap(), source(&top));
    // Longer ago than the first lease begins: nobody takes it for ours.
    std::thread::sleep(Duration::from_millis(1200));
    let destination = forced(to.path()).open(offered(&source)).unwrap();
    // One span is right; that is no reason to take the file for ours the next time.
    transfer(&source, &*destination, &mut Rng::with_seed(1), 0);
    destination.span_kept(0, &[7; 32]).unwrap();
    drop(destination);
    let destination = forced(to.path()).open(offered(&source)).unwrap();
    assert!(destination.kept().is_empty());
    assert_eq!(transfer(&source, &*destination, &mut Rng::with_seed(1), usize::MAX), 1);
    destination.finish(&receipt()).unwrap();
    assert!(fs::read(&there).unwrap() == vec![1; 3 << 20]);
    assert!(fs::read(&backup).unwrap() == had, "another name of the file keeps what it had");
    assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o640);
    drop(destination);
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 2, "nothing is left beside them");
}

#[test]
fn what_a_failed_sync_may_have_lost_comes_again() {
    let (from, to) = (scratch(), scratch());
    let top = from.path().join("top");
    fs::create_dir(&top).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(top.join(name), vec![name.as_bytes()[0]; 2 << 20]).unwrap();
    }
    let source = source(&top);
    let put = |to: &folder::Received, span: u64| {
        let mut content = vec![0; 1 << 20];
        source.read(span << 20, &mut content).unwrap();
        to.write(span << 20, &content).unwrap();
        to.span_kept(span, &tree::span_hash(source.content_len(), span, &content)).unwrap();
    };
    let open = || folder::Received::open(to.path(), &FolderOptions::default(), offered(&source)).unwrap();
    let kept = |received: &folder::Received| (0..6).filter(|span| received.kept().contains(*span)).collect::<Vec<_>>();
    let received = open();
    [0, 1].iter().for_each(|span| put(&received, *span));
    received.sync().unwrap();
    (2..6).for_each(|span| put(&received, span));
    // A file that is gone is as one that the disk does not take.
    let (there, aside) = (to.path().join("top/c"), to.path().join("aside"));
    fs::rename(&there, &aside).unwrap();
    let error = received.sync().unwrap_err().to_string();
    assert!(error.contains("the disk did not take it"), "{error}");
    // From here on nothing is vouched for, though the disk works again.
    fs::rename(&aside, &there).unwrap();
    assert!(received.span_kept(2, &[0; 32]).is_err() && received.sync().is_err());
    assert!(received.finish(&receipt()).is_err());
    drop(received);
    let received = open();
    assert_eq!((kept(&received), received.claimed().len()), (vec![0, 1], 0));
    let mut random = Rng::with_seed(6);
    assert_eq!(transfer(&source, &received, &mut random, usize::MAX), 4);
    received.finish(&receipt()).unwrap();
    drop(received);
    assert_eq!(list(&top), list(&to.path().join("top")));
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1, "no record is left");
}

#[test]
fn another_state_of_the_same_thing_is_noticed() {
    let (from, to) = (scratch(), scratch());
    let top = from.path().join("top");
    fs::write(&top, vec![1; 3 << 20]).unwrap();
    let first = source(&top);
    let destination = folder(to.path()).open(offered(&first)).unwrap();
    transfer(&first, &*destination, &mut Rng::with_seed(2), 2);
    let error = refusal(&folder(to.path()), offered(&first));
    assert!(error.contains("something else is being received"), "{error}");
    drop(destination);
    // Another sender may have other bytes by the same names and times.
    assert!(refusal(&folder(to.path()), offered_by(&first, 2)).contains("another file"));
    fs::write(&top, vec![2; 3 << 20]).unwrap();
    let mut bytes = [0; 10];
    assert!(matches!(first.read(0, &mut bytes), Err(SourceError::Changed(name)) if name == "top"));
    let second = source(&top);
    let error = refusal(&folder(to.path()), offered(&second));
    assert!(error.contains("an unfinished transfer"), "{error}");
    receive_all(&second, &forced(to.path()));
    assert_eq!(fs::read(to.path().join("top")).unwrap(), vec![2; 3 << 20]);
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1, "the other record is gone");
}

#[test]
fn a_source_that_changes_is_noticed_whatever_changes() {
    let from = scratch();
    let path = from.path().join("file");
    let changes: [fn(&Path); 5] = [
        |path| drop(File::options().append(true).open(path).unwrap().write_all(b"x")),
        |path| File::options().write(true).open(path).unwrap().set_len(1000).unwrap(),
        |path| fs::remove_file(path).unwrap(),
        |path| {
            // Same length, same time, other bytes.
            let time = path.metadata().unwrap().modified().unwrap();
            fs::write(path, vec![8; 2 << 20]).unwrap();
            File::open(path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
        },
        |path| {
            fs::remove_file(path).unwrap();
            symlink("/etc/hostname", path).unwrap();
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for top in [&path, &from.path().to_path_buf()] {
            let _ = fs::remove_file(&path);
            fs::write(&path, vec![7; 2 << 20]).unwrap();
            let source = source(top);
            let mut bytes = vec![0; 1 << 20];
            source.read(0, &mut bytes).unwrap();
            // The clock that files are stamped by goes in ticks.
            std::thread::sleep(std::time::Duration::from_millis(20));
            change(&path);
            let all = (0..2).map(|span| source.read(span << 20, &mut bytes)).collect::<Result<Vec<()>, _>>();
            assert!(all.is_err(), "change {number}");
        }
    }
}

#[test]
fn what_cannot_be_sent_is_named() {
    let from = scratch();
    let top = from.path().join("top");
    fs::create_dir_all(top.join("sub")).unwrap();
    fs::write(top.join("keep"), "1").unwrap();
    fs::write(top.join("leave.o"), "1").unwrap();
    let fifo = std::ffi::CString::new(top.join("fifo").as_os_str().as_bytes()).unwrap();
    // SAFETY: the string is NUL-terminated.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    for (name, target) in [("out", "/etc/passwd"), ("up", "../../x"), ("sub/in", "../keep"), ("odd", "sub/../keep")] {
        symlink(target, top.join(name)).unwrap();
    }
    symlink(top.join("keep"), top.join("absolute")).unwrap();
    let filter = Filter::new(|path, _| path.extension().is_some_and(|extension| extension == "o"));
    let scan = Scan::of(std::slice::from_ref(&top), Some(&filter), &AtomicBool::new(false)).unwrap();
    let names: Vec<_> =
        scan.skipped().0.iter().map(|(path, _)| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!((names, scan.skipped().1, scan.excluded()), (vec!["fifo".into(), "out".into(), "up".into()], 3, 1));
    let links: BTreeMap<_, _> = parse_entries(&scan.manifest)
        .unwrap()
        .into_iter()
        .filter_map(|entry| match entry.kind {
            EntryKind::Link(target) => {
                Some((String::from_utf8(entry.name).unwrap(), String::from_utf8(target).unwrap()))
            }
            _ => None,
        })
        .collect();
    let expected = [("top/absolute", "keep"), ("top/odd", "keep"), ("top/sub/in", "../keep")];
    assert_eq!(links, expected.map(|(name, target)| (name.into(), target.into())).into());
    let to = scratch();
    receive_all(&FileSource::new(scan).unwrap(), &folder(to.path()));
    assert_eq!(fs::read(to.path().join("top/absolute")).unwrap(), b"1");
    let error = |paths: &[&Path]| {
        Scan::of(&paths.iter().map(PathBuf::from).collect::<Vec<_>>(), None, &AtomicBool::new(false))
            .unwrap_err()
            .to_string()
    };
    assert!(error(&[&top.join("fifo")]).contains("is a pipe"));
    assert!(error(&[&top.join("gone")]).contains("cannot be read"));
    assert!(error(&[Path::new("/")]).contains("has no name"));
    assert!(error(&[&top.join("keep"), &top.join("sub/../keep")]).contains("same name"));
}

#[test]
fn several_paths_arrive_side_by_side() {
    let (from, to) = (scratch(), scratch());
    for name in ["one", "two"] {
        fs::create_dir(from.path().join(name)).unwrap();
        fs::write(from.path().join(name).join("file"), name).unwrap();
    }
    fs::write(from.path().join("three"), "three").unwrap();
    symlink("two", from.path().join("four")).unwrap();
    let paths: Vec<_> = ["one", "three", "four"].iter().map(|name| from.path().join(name)).collect();
    receive_all(&FileSource::new(scan(&paths)).unwrap(), &folder(to.path()));
    for (path, content) in [("one/file", "one"), ("three", "three"), ("four/file", "two")] {
        assert_eq!(fs::read(to.path().join(path)).unwrap(), content.as_bytes());
    }
}

#[test]
fn what_a_hostile_manifest_says_is_refused_or_harmless() {
    let to = scratch();
    let entry = |name: &str, kind| Entry { name: name.into(), mode: 0o7777, modified: (i64::MAX, 5), kind };
    let big = EntryKind::File { len: 1 << 49, extents: vec![0..1 << 49] };
    assert!(refusal(&folder(to.path()), entries(vec![entry("big", big)])).contains("the disk is full"));
    let link = |target: &str| EntryKind::Link(target.into());
    assert!(refusal(&folder(to.path()), entries(vec![entry("a/l", link("../../x"))])).contains("leads out"));
    let through = vec![entry("a", link(".")), entry("a/b", EntryKind::Folder)];
    assert!(refusal(&folder(to.path()), entries(through)).contains("as a folder, and as something else"));
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
    // All hole, as long as a file may be; the file system has the last word.
    let hole = entry("hole", EntryKind::File { len: 1 << 40, extents: vec![] });
    let odd = vec![
        entry("x/\u{202e}y", EntryKind::Folder),
        hole,
        entry("x/empty", EntryKind::File { len: 0, extents: vec![] }),
    ];
    let told = Arc::new(Mutex::new(0));
    let count = Arc::clone(&told);
    let folder = Folder::new(to.path(), FolderOptions::default(), move |_, all| *count.lock().unwrap() = all);
    let destination = folder.open(entries(odd)).unwrap();
    destination.finish(&receipt()).unwrap();
    assert_eq!(*told.lock().unwrap(), 1);
    assert_eq!(to.path().join("hole").metadata().unwrap().len(), 1 << 40);
    assert_eq!(to.path().join("x/empty").metadata().unwrap().permissions().mode() & 0o7777, 0o777);
    assert!(to.path().join("x/y").is_dir());
}

#[test]
fn a_crowd_of_entries_takes_its_number_of_looks() {
    let to = scratch();
    let empty = |number: usize| Entry {
        name: format!("t/{}/{number}", number / 1000).into(),
        mode: 0o644,
        modified: (1, 1),
        kind: EntryKind::File { len: 0, extents: vec![] },
    };
    let destination = folder(to.path()).open(entries((0..20_000).map(empty).collect())).unwrap();
    assert_eq!(
        fs::read_dir(to.path()).unwrap().count(),
        2,
        "the record and the lock: nothing is made before it is verified"
    );
    destination.finish(&receipt()).unwrap();
    assert_eq!(fs::read_dir(to.path().join("t/19")).unwrap().count(), 1000);
}

#[test]
fn an_open_file_is_sent_as_it_is() {
    let (from, to) = (scratch(), scratch());
    let path = from.path().join("file");
    fs::write(&path, vec![5; 700_000]).unwrap();
    let source = FileSource::of_file(File::open(&path).unwrap(), OsStr::new("stdin")).unwrap();
    fs::remove_file(&path).unwrap();
    let mut bytes = [0; 10];
    assert!(matches!(source.read(0, &mut bytes), Err(SourceError::Changed(_))), "its links are part of how it looks");
    fs::write(&path, vec![6; 700_000]).unwrap();
    let source = FileSource::of_file(File::open(&path).unwrap(), OsStr::new("stdin")).unwrap();
    receive_all(&source, &folder(to.path()));
    assert!(fs::read(to.path().join("stdin")).unwrap() == vec![6; 700_000]);
    assert!(FileSource::of_file(File::open(&path).unwrap(), OsStr::new("a/../b")).is_err());
}

#[test]
fn a_full_disk_is_told_as_one() {
    let error = folder::failed_at("a", std::io::Error::from_raw_os_error(libc::ENOSPC));
    assert!(matches!(error, DestinationError::Full(_)), "{error}");
}

/// Counts calls: `strace -f -c` of this test alone, with `ANABRANCH_PHASE` as `make`, `scan` or `write`, less what `make` takes.
#[test]
#[ignore = "to be run under strace"]
fn a_hundred_thousand_small_files() {
    let root = PathBuf::from(std::env::var("ANABRANCH_FOLDER").expect("a folder"));
    let top = root.join("top");
    match std::env::var("ANABRANCH_PHASE").expect("a phase").as_str() {
        "make" => {
            for number in 0..100_000 {
                if number % 1000 == 0 {
                    fs::create_dir_all(top.join((number / 1000).to_string())).unwrap();
                }
                fs::write(top.join(format!("{}/{number}", number / 1000)), vec![number as u8; 1024]).unwrap();
            }
        }
        "scan" => assert_eq!(scan(&[top]).files(), 100_000),
        _ => {
            let source = source(&top);
            let to = folder(&root.join("to")).open(offered(&source)).unwrap();
            for span in 0..tree::span_count(source.content_len()) {
                let bytes = tree::span_bytes(source.content_len(), span);
                let mut content = vec![0; (bytes.end - bytes.start) as usize];
                source.read(bytes.start, &mut content).unwrap();
                to.write(bytes.start, &content).unwrap();
                to.span_kept(span, &tree::span_hash(source.content_len(), span, &content)).unwrap();
            }
            to.finish(&receipt()).unwrap();
        }
    }
}
