use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::process::Command;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use sha1::Digest as _;

use super::*;
use crate::hash::sha1;
use crate::hex;
use crate::info::{FileKind, Info, Sha1Digest};
use crate::merkle;
use crate::metainfo::PieceLayers;
use crate::metainfo::limits::FILE_LENGTH_MAX;

const PIECE: u32 = 32 * 1024;

/// A tree with files around every edge: empty, shorter and longer than a block and a piece, nested, executable.
pub(crate) fn tree() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path().join("tree");
    let lengths = [0, 1, 100, 16384, 16385, 32768, 32769, 65536, 100_000, 1_000_000];
    for (i, length) in lengths.into_iter().enumerate() {
        let path = root.join(["", "b", "b/inner", "z"][i % 4]).join(format!("file{i}"));
        fs::create_dir_all(path.parent().expect("below the root")).expect("a folder");
        let mut rng = fastrand::Rng::with_seed(i as u64);
        let bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(length).collect();
        fs::File::create(&path).and_then(|mut file| file.write_all(&bytes)).expect("a file");
        if i == 4 {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("an own file");
        }
    }
    fs::create_dir(root.join("nothing in here")).expect("a folder");
    folder
}

fn options(version: Version) -> CreateOptions {
    CreateOptions { version, piece_length: Some(PIECE), ..CreateOptions::default() }
}

fn make(path: &Path, options: &CreateOptions) -> Result<Created, CreateError> {
    create(path, options, &AtomicBool::new(false), |_, _| {})
}

/// What a parser makes of the torrent of `path`.
pub(crate) fn parsed(path: &Path, version: Version) -> (Info, PieceLayers) {
    let created = make(path, &options(version)).expect("a torrent");
    (Arc::unwrap_or_clone(created.torrent.info), created.torrent.piece_layers)
}

#[test]
fn pieces_equal_a_plain_reading_of_the_files() {
    let folder = tree();
    for version in [Version::V1, Version::Hybrid] {
        let (info, _) = parsed(&folder.path().join("tree"), version);
        let mut content = Vec::new();
        for file in &info.files {
            match file.kind {
                FileKind::Pad => content.resize(content.len() + file.length as usize, 0),
                _ => content.extend(fs::read(folder.path().join(&file.path)).expect("readable")),
            }
        }
        let expected: Vec<Sha1Digest> =
            content.chunks(PIECE as usize).map(|piece| sha1::Sha1::digest(piece).into()).collect();
        assert_eq!(*info.piece_hashes, *expected);
    }
}

#[test]
fn holes_hash_as_the_zeros_that_they_are() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let piece = u64::from(PIECE);
    let make_tree = |name: &str, are_holes: bool| {
        let root = folder.path().join(name).join("tree");
        fs::create_dir_all(&root).expect("a folder");
        // Holes before, between and behind; of whole pieces and of less; files that end within a piece.
        for (file, len) in [("a", 40 * piece + 777), ("b", 3 * piece), ("c", 5 * piece + 16_384)] {
            let path = root.join(file);
            let mut bytes = vec![0; len as usize];
            bytes[..100].fill(u8::from(file == "b"));
            bytes[(2 * piece + 5) as usize] = 7;
            let file = fs::File::create(&path).expect("a file");
            match are_holes {
                true => {
                    file.set_len(len).expect("longer");
                    let data = (0..len).filter(|at| bytes[*at as usize] != 0);
                    data.for_each(|at| file.write_all_at(&bytes[at as usize..][..1], at).expect("written"));
                }
                false => file.write_all_at(&bytes, 0).expect("written"),
            }
        }
        root
    };
    let (holes, zeros) = (make_tree("holes", true), make_tree("zeros", false));
    for version in [Version::V1, Version::V2, Version::Hybrid] {
        for file in ["", "a", "b", "c"] {
            let made = |root: &Path| make(&root.join(file), &options(version)).expect("a torrent").metainfo;
            assert!(made(&holes) == made(&zeros), "{version:?} of `{file}`");
        }
    }
}

#[test]
fn roots_equal_a_plain_reading_of_the_files() {
    let folder = tree();
    for version in [Version::V2, Version::Hybrid] {
        let (info, _) = parsed(&folder.path().join("tree"), version);
        for file in info.files.iter().filter(|file| file.kind == FileKind::Regular && file.length > 0) {
            let bytes = fs::read(folder.path().join(&file.path)).expect("readable");
            assert_eq!(file.root, Some(merkle::root_from_leaves(&merkle::leaves(&bytes))), "{:?}", file.path);
            assert_eq!(file.offset % u64::from(PIECE), 0);
        }
    }
}

#[test]
fn the_metainfo_of_a_small_file_is_as_written_by_hand() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("x");
    fs::write(&path, "abc").expect("a file");
    let options = CreateOptions {
        trackers: vec![vec!["http://a/".into(), "http://b/".into()], vec![], vec!["http://c/".into()]],
        private: true,
        comment: Some("hi".into()),
        created_by: Some("me".into()),
        creation_date: UNIX_EPOCH.checked_add(std::time::Duration::from_secs(7)),
        ..options(Version::V1)
    };
    let created = make(&path, &options).expect("a torrent");
    let mut expected = b"d8:announce9:http://a/13:announce-listll9:http://a/9:http://b/el9:http://c/ee7:comment2:hi\
        10:created by2:me13:creation datei7e4:infod6:lengthi3e4:name1:x12:piece lengthi32768e6:pieces20:"
        .to_vec();
    expected.extend(sha1(b"abc"));
    expected.extend(b"7:privatei1eee");
    assert_eq!(created.metainfo, expected);
    let survey = &created.survey;
    assert_eq!((survey.length, survey.piece_count, survey.entries.len()), (3, 1, 1));
}

#[test]
fn all_that_cannot_be_shared_is_named_at_once() {
    let folder = tree();
    let root = folder.path().join("tree");
    let hybrid = options(Version::Hybrid);
    for (name, text) in [("outside", "../../etc"), ("root", "/"), ("self", "."), ("b/loop", "loop")] {
        symlink(text, root.join(name)).expect("a link");
    }
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).expect("a socket");
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"\xff")), "").expect("a file");
    fs::write(root.join("_____padding_file_0_____"), "x").expect("a file");
    fs::File::create(root.join("long")).and_then(|file| file.set_len(FILE_LENGTH_MAX + 1)).expect("a sparse file");
    let rejections = |options: &CreateOptions| match make(&root, options) {
        Err(CreateError::Rejected(rejections)) => rejections,
        other => panic!("{other:?}"),
    };
    let kinds: Vec<String> = rejections(&hybrid).list.iter().map(|(_, rejection)| rejection.to_string()).collect();
    let expected = [
        "clients take for padding",
        "links to loop, and so to itself",
        "bytes, at most",
        "links to ../../etc, outside",
        "links to /, outside",
        "links to ., the shared folder itself",
        "is a socket",
        "is not UTF-8",
    ];
    assert_eq!(kinds.len(), expected.len(), "{kinds:?}");
    kinds.iter().zip(expected).for_each(|(kind, part)| assert!(kind.contains(part), "{kind}: {part}"));
    // v2 readers know padding by other means.
    assert_eq!(rejections(&options(Version::V2)).list.len(), expected.len() - 1);
    // Left out, they are in nobody's way.
    let bad = ["outside", "root", "self", "loop", "socket", "long", "_____padding_file_0_____"];
    let filter = Filter::new(move |path, _| {
        path.file_name().is_some_and(|name| name.to_str().is_none_or(|name| bad.contains(&name)))
    });
    let created = make(&root, &CreateOptions { filter: Some(filter), ..hybrid }).expect("a torrent");
    assert_eq!((created.survey.excluded, created.survey.entries.len()), (8, 10));
    assert_eq!(created.survey.empty_folders, [Path::new("tree/nothing in here")]);
}

#[test]
fn what_this_file_system_holds_goes_in() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path().join("back\\slash");
    fs::create_dir(&root).expect("a folder");
    let names = [
        "Case",
        "case",
        "\u{e9}",
        "e\u{301}",
        "a\tb",
        "x\\y",
        "h\u{200c}h",
        "👩\u{200d}🚀",
        "gpj\u{202e}exe",
        "n\nl",
        " ",
        ".",
    ];
    for name in &names[..names.len() - 1] {
        fs::write(root.join(name), name).expect("a file");
    }
    symlink("nowhere/to be seen", root.join("dangling")).expect("a link");
    symlink("case", root.join("one")).expect("a link");
    symlink("one", root.join("two")).expect("a link");
    fs::write(root.join(".x-00000000.anabranch-resume"), "a record").expect("a file");
    for version in [Version::V1, Version::V2, Version::Hybrid] {
        let created = make(&root, &options(version)).expect("a torrent");
        assert_eq!((created.survey.entries.len(), created.survey.own_records), (names.len() - 1 + 3, 1));
        for (_, file) in created.torrent.info.regular_files() {
            let name = file.path.file_name().and_then(|name| name.to_str()).expect("UTF-8");
            assert!(
                names.contains(&name)
                    && fs::read(created.survey.dir.join(&file.path)).expect("there") == name.as_bytes()
            );
        }
        let links = created.torrent.info.files.iter().filter_map(|file| match &file.kind {
            FileKind::Symlink { target } => target.to_str(),
            _ => None,
        });
        assert_eq!(links.collect::<Vec<_>>(), ["nowhere/to be seen", "case", "case"]);
        let tag = CreateOptions { source: Some("TAG".into()), web_seeds: vec!["http://w/".into()], ..options(version) };
        let tagged = make(&root, &tag).expect("a torrent").torrent;
        assert_eq!(
            (tagged.info.source_tag().as_deref(), &tagged.web_seeds[..]),
            (Some("TAG"), &["http://w/".to_owned()][..])
        );
        assert_ne!(tagged.info.hashes, created.torrent.info.hashes);
    }
}

#[test]
fn bad_options_are_named() {
    let folder = tree();
    let root = folder.path().join("tree");
    let hybrid = options(Version::Hybrid);
    assert!(matches!(make(&root.join("file0"), &hybrid), Err(CreateError::Empty { .. })));
    assert!(matches!(make(&root.join("absent"), &hybrid), Err(CreateError::Unreadable { .. })));
    for given in [0, 8192, 16385, 1 << 28] {
        let options = CreateOptions { piece_length: Some(given), ..hybrid.clone() };
        assert!(matches!(make(&root, &options), Err(CreateError::BadPieceLength { .. })));
    }
    for name in ["", "..", "a/b"] {
        let options = CreateOptions { name: Some(name.into()), ..hybrid.clone() };
        assert!(matches!(make(&root, &options), Err(CreateError::BadName { .. })));
    }
    // Ten files and four folders.
    assert!(walk::walk(&root, &hybrid, 14).is_ok());
    assert!(matches!(walk::walk(&root, &hybrid, 13), Err(CreateError::TooManyFiles { max: 13, .. })));
}

#[test]
fn folders_are_as_deep_as_readers_follow() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let deepest: PathBuf = std::iter::repeat_n("d", walk::DEPTH_MAX - 1).collect();
    fs::create_dir_all(folder.path().join(&deepest)).expect("folders");
    fs::write(folder.path().join(&deepest).join("x"), "x").expect("a file");
    for version in [Version::V1, Version::V2, Version::Hybrid] {
        assert!(make(folder.path(), &options(version)).is_ok());
    }
    let deeper = folder.path().join(&deepest).join("d");
    fs::create_dir(&deeper).expect("a folder");
    assert!(make(folder.path(), &options(Version::V2)).is_ok());
    fs::write(deeper.join("x"), "x").expect("a file");
    let error = make(folder.path(), &options(Version::V2)).expect_err("refused");
    assert!(
        matches!(&error, CreateError::Rejected(rejections) if rejections.list[0].0 == deeper.join("x").canonicalize().expect("there"))
    );
}

#[test]
fn another_name_goes_for_the_whole_torrent() {
    let folder = tree();
    for path in ["tree", "tree/b/file9"] {
        for version in [Version::V1, Version::V2, Version::Hybrid] {
            let options = CreateOptions { name: Some("other".into()), ..options(version) };
            let created = make(&folder.path().join(path), &options).expect("a torrent");
            let info = Metainfo::parse(&created.metainfo).expect("readable").info;
            assert_eq!((created.survey.name.as_str(), info.name.as_str()), ("other", "other"));
            assert!(info.regular_files().all(|(_, file)| file.path.starts_with("other")));
        }
    }
}

#[test]
fn a_folder_of_one_file_is_that_file_in_v2() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path().join("folder");
    fs::create_dir(&root).expect("a folder");
    for name in ["folder", "other"] {
        fs::write(root.join(name), "x").expect("a file");
        let created = make(&root, &options(Version::V2)).expect("a torrent");
        let info = &created.torrent.info;
        assert!(created.survey.lone_file && !info.multi_file && created.survey.dir.ends_with("folder"));
        assert_eq!((created.survey.name.as_str(), info.files[0].path.to_str()), (name, Some(name)));
        for version in [Version::V1, Version::Hybrid] {
            let info = make(&root, &options(version)).expect("a torrent").torrent.info;
            assert!(info.multi_file && info.files[0].path.starts_with("folder"));
        }
        fs::remove_file(root.join(name)).expect("there");
    }
}

#[test]
fn links_inside_are_kept_relative_to_the_root() {
    let folder = tree();
    let root = folder.path().join("tree");
    symlink("../file4", root.join("b/link")).expect("a link");
    let found = walk::walk(&root, &options(Version::V1), walk::ENTRIES_MAX).expect("readable");
    let link = found.entries.iter().find(|entry| entry.components == ["b", "link"]).expect("the link");
    assert!(matches!(&link.kind, EntryKind::Symlink { target } if *target == ["file4"]));
    let created = make(&root, &options(Version::V1)).expect("a torrent");
    let text = String::from_utf8_lossy(&created.metainfo);
    assert!(text.contains("d4:attr1:l6:lengthi0e4:pathl1:b4:linke12:symlink pathl5:file4ee"));
}

#[test]
fn pieces_are_between_one_and_two_thousand() {
    let auto = CreateOptions::default();
    for (length, expected) in [
        (1, BLOCK_LEN),
        (2000 * 16384, BLOCK_LEN),
        (2000 * 16384 + 1, 2 * BLOCK_LEN),
        (1 << 31, 2 * 1024 * 1024),
        (1 << 40, PIECE_LENGTH_AUTO_MAX),
    ] {
        assert_eq!(piece_length(&auto, length).expect("within limits"), expected, "{length} bytes");
    }
}

#[test]
fn sizes_beyond_what_readers_take_are_refused_before_hashing() {
    let layout = |lengths: &[u64], piece_length| {
        let entry = |length: &u64| {
            let mut stamp = Stamp::of(&fs::metadata("/").expect("there"));
            stamp.length = *length;
            let kind = EntryKind::File { stamp, executable: false };
            Entry { components: vec!["x".into()], path: "x".into(), kind }
        };
        Layout::new(lengths.iter().map(entry).collect(), lengths.len() > 1, Version::V2, piece_length)
    };
    let most = PIECES_MAX * u64::from(BLOCK_LEN);
    assert!(layout(&[most], BLOCK_LEN).is_ok());
    for lengths in [&[most + 1][..], &[most, 1]] {
        assert!(matches!(layout(lengths, BLOCK_LEN), Err(CreateError::TooManyPieces { piece_length: BLOCK_LEN })));
    }
    assert!(layout(&[FILE_LENGTH_MAX; 7], PIECE_LENGTH_MAX).is_ok());
    assert!(matches!(layout(&[FILE_LENGTH_MAX; 99], PIECE_LENGTH_MAX), Err(CreateError::TooManyPieces { .. })));
}

#[test]
fn a_file_that_changes_while_it_is_hashed_is_named() {
    for change in [0, 500_000, 2_000_000] {
        let folder = tree();
        let root = folder.path().join("tree");
        let mut changed = false;
        let result = create(&root, &options(Version::Hybrid), &AtomicBool::new(false), |_, _| {
            if !std::mem::replace(&mut changed, true) {
                let file = fs::OpenOptions::new().write(true).open(root.join("b/file9")).expect("there");
                file.set_len(change).expect("own file");
            }
        });
        let path = root.join("b/file9").canonicalize().expect("there");
        assert!(matches!(result, Err(CreateError::Changed { path: named }) if named == path));
    }
}

#[test]
fn cancel_ends_it_and_progress_reaches_the_end() {
    let folder = tree();
    let root = folder.path().join("tree");
    let result = create(&root, &options(Version::V2), &AtomicBool::new(true), |_, _| {});
    assert!(matches!(result, Err(CreateError::Canceled)));
    for version in [Version::V1, Version::V2, Version::Hybrid] {
        let mut last = (0, 1);
        create(&root, &options(version), &AtomicBool::new(false), |done, total| last = (done, total))
            .expect("a torrent");
        assert_eq!(last.0, last.1);
    }
}

/// Where Python has libtorrent (`ANABRANCH_PYTHON` names another interpreter), it must make the very same info dictionaries.
#[test]
fn libtorrent_makes_the_same_torrents() {
    let python = std::env::var("ANABRANCH_PYTHON").unwrap_or_else(|_| "python3".into());
    let there = Command::new(&python).args(["-c", "import libtorrent"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: {python} has no libtorrent");
        return;
    }
    let script = "
import sys, os, libtorrent as lt
path, flags, piece, ours = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
found, fs = lt.file_storage(), lt.file_storage()
lt.add_files(found, path)
files = [(found.file_path(i), found.file_size(i), found.file_flags(i)) for i in range(found.num_files())]
for file in sorted(files, key=lambda file: file[0].split('/')): fs.add_file(*file)
flags = {'V1': lt.create_torrent.v1_only, 'V2': lt.create_torrent.v2_only, 'Hybrid': 0}[flags]
t = lt.create_torrent(fs, piece, flags)
lt.set_piece_hashes(t, os.path.dirname(path))
theirs = lt.torrent_info(lt.bdecode(lt.bencode(t.generate())))
ours = lt.torrent_info(ours)
print(theirs.info_hashes().v1, theirs.info_hashes().v2)
print(ours.info_hashes().v1, ours.info_hashes().v2)
";
    let folder = tree();
    let single = folder.path().join("tree/b/file9");
    for path in [folder.path().join("tree"), single, folder.path().join("tree/z")] {
        for version in [Version::V1, Version::V2, Version::Hybrid] {
            let torrent = folder.path().join("ours.torrent");
            let created = make(&path, &options(version)).expect("a torrent");
            fs::write(&torrent, &created.metainfo).expect("writable");
            let output = Command::new(&python)
                .args(["-c", script, &path.display().to_string(), &format!("{version:?}"), &PIECE.to_string()])
                .arg(&torrent)
                .output()
                .expect("runs");
            let text = String::from_utf8_lossy(&output.stdout);
            let lines: Vec<&str> = text.lines().collect();
            assert!(lines.len() == 2, "{}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(lines[0], lines[1], "{version:?} of {}", path.display());
            let hashes = created.torrent.info.hashes;
            for hash in hashes.v1.iter().map(|hash| &hash[..]).chain(hashes.v2.iter().map(|hash| &hash[..])) {
                assert!(lines[1].contains(&hex::encode(hash)));
            }
        }
    }
}

/// On the disk of the checkout, whose file system knows direct reads where it is a common one.
#[test]
fn what_is_not_in_the_cache_has_the_same_hashes() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (seed, folder) = (fastrand::u64(..), dir.path().join("content"));
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    fs::create_dir(&folder).unwrap();
    // Files that end and, without padding, begin anywhere; some within one stripe.
    let files: Vec<PathBuf> = (0..6).map(|number| folder.join(number.to_string())).collect();
    for path in &files {
        let longest = if random.bool() { 3_000_000 } else { 100_000 };
        let mut bytes = vec![0; random.usize(1..longest)];
        random.fill(&mut bytes);
        fs::write(path, bytes).unwrap();
    }
    let drop_from_cache = |path: &PathBuf| {
        let file = fs::File::open(path).unwrap();
        file.sync_all().unwrap();
        crate::storage::advise(&file, 0, 0, libc::POSIX_FADV_DONTNEED);
    };
    for version in [Version::V1, Version::V2, Version::Hybrid] {
        for piece_length in [256 << 10, 1 << 20] {
            let options = CreateOptions { version, piece_length: Some(piece_length), ..CreateOptions::default() };
            let make = || create(&folder, &options, &AtomicBool::new(false), |_, _| {}).unwrap().metainfo;
            let warm = make();
            files.iter().for_each(drop_from_cache);
            assert!(make() == warm, "{version:?}, {piece_length}");
            // Read whole, so warm again; some of them cold.
            files.iter().for_each(|path| drop(fs::read(path).unwrap()));
            files.iter().filter(|_| random.bool()).for_each(drop_from_cache);
            assert!(make() == warm, "{version:?}, {piece_length}, some of it in the cache");
            files.iter().for_each(|path| drop(fs::read(path).unwrap()));
        }
    }
}
