//! Torrents made to do harm, one danger a test: each is refused or made safe, and its harmless neighbour is not.

use std::path::{Component, Path};

use anabranch_content::bencode::{DictBuilder, ListBuilder};
use anabranch_content::hex;
use anabranch_content::info::{FileKind, Info, Version};
use anabranch_content::metainfo::limits::*;
use anabranch_content::metainfo::{Metainfo, MetainfoError};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

const PIECE: u64 = 16384;

/// A change to a dictionary.
type Edit<'a> = &'a dyn for<'d> Fn(&'d mut DictBuilder) -> &'d mut DictBuilder;

/// A file of the v1 list: path, length, attributes, link target.
struct File<'a> {
    path: Vec<&'a [u8]>,
    length: i64,
    attr: &'a str,
    link: Vec<&'a [u8]>,
}

fn file<'a, B: AsRef<[u8]> + ?Sized>(path: &[&'a B], length: i64) -> File<'a> {
    File { path: path.iter().map(|name| B::as_ref(name)).collect(), length, attr: "", link: Vec::new() }
}

fn link<'a>(path: &[&'a str], target: &[&'a str]) -> File<'a> {
    let target = target.iter().map(|name| name.as_bytes()).collect();
    File { attr: "l", link: target, ..file(path, 0) }
}

fn pad(length: i64) -> File<'static> {
    File { attr: "p", ..file(&[".pad", "x"], length) }
}

fn names(components: &[&[u8]]) -> ListBuilder {
    let mut list = ListBuilder::new();
    components.iter().for_each(|name| {
        list.bytes(name);
    });
    list
}

/// A v1 info dictionary of `files` in the folder `t`, with as many piece hashes as belong there.
fn v1_dict(files: &[File]) -> DictBuilder {
    let mut list = ListBuilder::new();
    for file in files {
        let mut entry = DictBuilder::new();
        entry.int("length", file.length).list("path", &names(&file.path));
        if !file.attr.is_empty() {
            entry.bytes("attr", file.attr);
        }
        if !file.link.is_empty() {
            entry.list("symlink path", &names(&file.link));
        }
        list.dict(&entry);
    }
    let total: i128 = files.iter().map(|file| i128::from(file.length)).sum();
    let pieces = (total.clamp(0, 1 << 34) as u64).div_ceil(PIECE) as usize;
    let mut info = DictBuilder::new();
    info.bytes("name", "t").int("piece length", PIECE as i64).bytes("pieces", vec![1; pieces * 20]);
    info.list("files", &list);
    info
}

fn v1(files: &[File]) -> Result<Info, MetainfoError> {
    Info::parse(&v1_dict(files).encode())
}

fn single(name: impl AsRef<[u8]>) -> Result<Info, MetainfoError> {
    let mut info = DictBuilder::new();
    info.bytes("name", name).int("length", 1).int("piece length", PIECE as i64).bytes("pieces", [1; 20]);
    Info::parse(&info.encode())
}

/// The properties of a v2 file.
fn leaf(length: i64, root: [u8; 32]) -> DictBuilder {
    let mut properties = DictBuilder::new();
    properties.int("length", length);
    if length > 0 {
        properties.bytes("pieces root", root);
    }
    let mut leaf = DictBuilder::new();
    leaf.dict("", &properties);
    leaf
}

fn v2_dict(tree: &DictBuilder, piece_length: u64) -> DictBuilder {
    let mut info = DictBuilder::new();
    info.bytes("name", "t").int("piece length", piece_length as i64).int("meta version", 2).dict("file tree", tree);
    info
}

fn v2(files: &[(&str, i64)]) -> Result<Info, MetainfoError> {
    let mut tree = DictBuilder::new();
    files.iter().enumerate().for_each(|(index, (name, length))| {
        tree.dict(name, &leaf(*length, [index as u8 + 1; 32]));
    });
    Info::parse(&v2_dict(&tree, PIECE).encode())
}

fn paths(info: &Info) -> Vec<&str> {
    info.files.iter().filter_map(|file| file.path.to_str()).collect()
}

fn link_text(info: &Info, index: usize) -> &str {
    match &info.files[index].kind {
        FileKind::Symlink { target } => target.to_str().unwrap(),
        other => panic!("{other:?} is no link"),
    }
}

/// What every accepted torrent must hold, however hostile.
fn assert_safe(info: &Info) {
    let mut seen = std::collections::HashSet::new();
    let mut folder = None;
    let mut offset = 0;
    for entry in &info.files {
        assert!(entry.path.components().all(|part| matches!(part, Component::Normal(_))), "{:?}", entry.path);
        let text = entry.path.to_str().expect("paths are UTF-8");
        assert!(!text.chars().any(char::is_control) && !text.contains('\\') && text.len() <= PATH_BYTES_MAX + 16);
        assert!(text.split('/').all(|name| (1..=NAME_BYTES_MAX).contains(&name.len())), "{text}");
        if entry.kind != FileKind::Pad {
            let first = entry.path.components().next();
            assert_eq!(*folder.get_or_insert(first), first, "{text} is outside of the folder");
            assert!(seen.insert(text.to_lowercase()), "{text} is there twice");
        }
        assert_eq!(entry.offset, offset);
        offset += entry.length;
        if let FileKind::Symlink { target } = &entry.kind {
            assert!(target.is_relative());
            let folder = entry.path.parent().unwrap().components().count();
            let up = target.components().filter(|part| *part == Component::ParentDir).count();
            assert!(up <= folder.saturating_sub(usize::from(info.multi_file)), "{text} leaves by {target:?}");
        }
    }
    for entry in info.files.iter().filter(|entry| entry.kind != FileKind::Pad) {
        let parents = entry.path.ancestors().skip(1);
        assert!(parents.into_iter().all(|parent| info.find(parent).is_none_or(|(_, file)| file.kind == FileKind::Pad)));
    }
    assert_eq!(offset, info.geometry.total());
    let pieces = info.geometry.piece_count();
    let fetched: u64 = (0..pieces).map(|piece| u64::from(info.geometry.data_len(piece))).sum();
    assert!(fetched <= offset && fetched >= info.content_size());
}

#[test]
fn parent_folders_are_no_names() {
    let info = v1(&[file(&["..", "..", "etc", "passwd"], 1), file(&[".", "a"], 1)]).unwrap();
    assert_eq!(paths(&info), ["t/_/_/etc/passwd", "t/_/a"]);
    assert_safe(&info);
    assert_eq!(paths(&v1(&[file(&["..."], 1)]).unwrap()), ["t/..."]);
}

#[test]
fn absolute_paths_are_relative() {
    let info = v1(&[file(&["/etc", "/passwd"], 1), file(&["", "a"], 1), file(&["C:\\boot.ini"], 1)]).unwrap();
    assert_eq!(paths(&info), ["t/etc/passwd", "t/_/a", "t/C:boot.ini"]);
    assert_eq!(paths(&single("/etc/passwd").unwrap()), ["etcpasswd"]);
}

#[test]
fn separators_split_nothing() {
    let info = v1(&[file(&["a/../../b"], 1), file(&["c\\..\\d"], 1)]).unwrap();
    assert_eq!(paths(&info), ["t/a....b", "t/c..d"]);
}

#[test]
fn nul_and_control_characters_are_replaced() {
    let info = v1(&[file(&["a\0.txt", "\x1b]0;x\x07", "b\nc"], 1)]).unwrap();
    assert_eq!(paths(&info), ["t/a_.txt/_]0;x_/b_c"]);
}

#[test]
fn direction_overrides_are_dropped() {
    assert_eq!(paths(&single("song\u{202e}3pm.exe").unwrap()), ["song3pm.exe"]);
}

#[test]
fn invalid_utf8_is_replaced() {
    let info = v1(&[file(&[b"a\xff".as_slice(), b"\xc0\xae\xc0\xae"], 1)]).unwrap();
    assert_eq!(paths(&info), ["t/a_/____"]);
}

#[test]
fn a_torrent_without_a_usable_name_is_named_by_its_hash_or_refused() {
    let mut info = v1_dict(&[file(&["a"], 1)]);
    let info = Info::parse(&info.bytes("name", "..").encode()).unwrap();
    let hash = hex::encode(&info.hashes.v1.unwrap());
    assert_eq!(info.name, hash);
    for name in ["", ".", "..", "/"] {
        assert_eq!(single(name).unwrap_err(), MetainfoError::Invalid("name", "usable as a file name"));
    }
}

#[test]
fn equal_names_are_numbered() {
    let info = v1(&[file(&["a.txt"], 1), file(&["a.txt"], 1), file(&["a.1.txt"], 1), file(&["a.txt"], 1)]).unwrap();
    assert_eq!(paths(&info), ["t/a.txt", "t/a.1.txt", "t/a.1.1.txt", "t/a.2.txt"]);
    let info = v1(&[file(&["/"], 1), file(&["\\"], 1)]).unwrap();
    assert_eq!(paths(&info), ["t/_", "t/_.1"]);
}

#[test]
fn names_that_some_file_system_takes_for_one_are_numbered() {
    let info = v1(&[
        file(&["READ.me"], 1),
        file(&["read.ME"], 1),
        file(&["\u{e9}"], 1),
        file(&["E\u{301}"], 1),
        file(&["x"], 1),
        file(&["x. ."], 1),
    ])
    .unwrap();
    assert_eq!(paths(&info), ["t/READ.me", "t/read.1.ME", "t/\u{e9}", "t/E\u{301}.1", "t/x", "t/x. .1."]);
    assert_safe(&info);
}

#[test]
fn too_many_equal_names_are_refused() {
    // The n-th copy tries n - 1 names in vain, so 32 copies need 465 attempts, and 33 need 496, 34 need 528.
    let copies = |count| v1(&(0..count).map(|_| file(&["a"], 1)).collect::<Vec<_>>());
    assert_safe(&copies(33).unwrap());
    let error = copies(34).unwrap_err();
    assert!(matches!(error, MetainfoError::TooMany { what: "files with equal names", .. }), "{error}");
}

#[test]
fn a_file_never_takes_a_folders_name() {
    let info = v1(&[file(&["a"], 1), file(&["a", "b"], 1), file(&["A", "c"], 1), file(&["a", "b", "d"], 1)]).unwrap();
    assert_eq!(paths(&info), ["t/a.1", "t/a/b.1", "t/A/c", "t/a/b/d"]);
    assert_safe(&info);
}

#[test]
fn a_link_never_takes_a_folders_name() {
    // Written through `a`, `b` would land wherever the link leads.
    let info = v1(&[link(&["a"], &["c"]), file(&["a", "b"], 1), file(&["c", "d"], 1)]).unwrap();
    assert_eq!(paths(&info), ["t/a.1", "t/a/b", "t/c/d"]);
    assert_safe(&info);
}

#[test]
fn long_names_are_cut_before_their_extension() {
    let (fits, long) = ("n".repeat(255), "n".repeat(256) + ".jpeg");
    let info = v1(&[file(&[&*fits], 1), file(&[&*long], 1), file(&[&*long], 1)]).unwrap();
    let cut = "n".repeat(240);
    assert_eq!(paths(&info), [format!("t/{fits}"), format!("t/{cut}.jpeg"), format!("t/{cut}.1.jpeg")]);
}

#[test]
fn long_paths_are_refused() {
    let name = "n".repeat(254);
    let deep = |last: usize| {
        let last = "l".repeat(last);
        let mut path = vec![&*name; 12]; // "t" and 12 times 255 bytes are 3061
        path.push(&last);
        v1(&[file(&path, 1)]).map(|info| paths(&info)[0].len())
    };
    assert_eq!(deep(10), Ok(PATH_BYTES_MAX));
    assert!(matches!(deep(11), Err(MetainfoError::PathTooLong { bytes, .. }) if bytes == PATH_BYTES_MAX + 1));
}

#[test]
fn deep_folders_are_refused() {
    let v1_deep = |depth| v1(&[file(&vec!["d"; depth], 1)]);
    assert_safe(&v1_deep(PATH_DEPTH_MAX).unwrap());
    let error = MetainfoError::File { index: 0, key: "path", problem: "too deep" };
    assert_eq!(v1_deep(PATH_DEPTH_MAX + 1).unwrap_err(), error);

    let v2_deep = |depth| {
        let tree = (0..depth).fold(leaf(1, [1; 32]), |inner, _| {
            let mut folder = DictBuilder::new();
            folder.dict("d", &inner);
            folder
        });
        Info::parse(&v2_dict(&tree, PIECE).encode())
    };
    // The info dictionary and the file's own two dictionaries nest as well.
    assert_safe(&v2_deep(97).unwrap());
    assert!(matches!(v2_deep(98), Err(MetainfoError::Bencode(_))));
    assert!(matches!(v2_deep(100_000 / 4), Err(MetainfoError::Bencode(_))));
}

#[test]
fn lengths_outside_their_limits_are_refused() {
    let length = |length: i64| v2(&[("a", length)]).map(|info| info.files[0].length);
    let refused = |value: i64| match length(value).unwrap_err() {
        MetainfoError::OutOfRange { key: "length", path, value: found, .. } => {
            assert_eq!((path.as_str(), found), ("a", i128::from(value)));
        }
        other => panic!("{other}"),
    };
    [-1, i64::MIN, FILE_LENGTH_MAX as i64 + 1, i64::MAX].into_iter().for_each(refused);
    // Inside the limit for one file, there are still too many pieces.
    let many = MetainfoError::TooMany { what: "pieces", max: PIECES_MAX };
    assert_eq!(length(FILE_LENGTH_MAX as i64).unwrap_err(), many);
    assert_eq!(length((PIECES_MAX * PIECE) as i64), Ok(PIECES_MAX * PIECE));
    assert_eq!(length((PIECES_MAX * PIECE) as i64 + 1).unwrap_err(), many);
}

#[test]
fn sums_cannot_overflow() {
    let files: Vec<_> = (0..17).map(|_| file(&["a"], FILE_LENGTH_MAX as i64)).collect();
    assert!(matches!(v1(&files), Err(MetainfoError::OutOfRange { key: "length of all files", .. })));
    assert!(matches!(v1(&files[..16]), Err(MetainfoError::TooMany { what: "pieces", .. })));
}

#[test]
fn content_must_not_be_empty() {
    assert_eq!(v1(&[]).unwrap_err(), MetainfoError::Empty);
    assert_eq!(v1(&[file(&["a"], 0)]).unwrap_err(), MetainfoError::Empty);
    assert_eq!(v2(&[]).unwrap_err(), MetainfoError::Empty);
    assert_eq!(v2(&[("a", 0)]).unwrap_err(), MetainfoError::Empty);
    assert_safe(&v1(&[file(&["a"], 0), file(&["b"], 1)]).unwrap());
}

#[test]
fn piece_lengths_outside_their_limits_are_refused() {
    let v1 = |length: i64| Info::parse(&v1_dict(&[file(&["a"], 1)]).int("piece length", length).encode()).map(drop);
    for length in [0, -1, PIECE_LENGTH_MAX as i64 + 1, i64::MAX] {
        assert!(matches!(v1(length), Err(MetainfoError::OutOfRange { key: "piece length", .. })), "{length}");
    }
    assert_eq!((v1(1), v1(PIECE_LENGTH_MAX as i64)), (Ok(()), Ok(())));
    let mut tree = DictBuilder::new();
    tree.dict("a", &leaf(1, [1; 32]));
    let v2 = |length: u64| Info::parse(&v2_dict(&tree, length).encode()).map(drop);
    assert!(matches!(v2(8192), Err(MetainfoError::OutOfRange { key: "piece length", .. })));
    assert_eq!(v2(16384 * 3), Err(MetainfoError::Invalid("piece length", "a power of two")));
    assert_eq!((v2(16384), v2(1 << 28)), (Ok(()), Ok(())));
}

#[test]
fn pieces_must_fit_the_content() {
    let pieces = |bytes: usize| {
        let mut info = v1_dict(&[file(&["a"], PIECE as i64 + 1)]);
        Info::parse(&info.bytes("pieces", vec![1; bytes]).encode()).map(|info| info.piece_hashes.len())
    };
    assert_eq!(pieces(40), Ok(2));
    for wrong in [0, 20, 39, 41, 60] {
        assert_eq!(pieces(wrong), Err(MetainfoError::WrongPieceCount { found: wrong, expected: 40 }));
    }
}

#[test]
fn integers_must_be_canonical_in_v2() {
    let text = |info: DictBuilder, from: &str, to: &str| {
        let bytes = info.encode();
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        Info::parse(&[&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat())
    };
    let tree = || {
        let mut tree = DictBuilder::new();
        tree.dict("a", &leaf(7, [1; 32]));
        v2_dict(&tree, PIECE)
    };
    assert!(text(tree(), "i7e", "i8e").is_ok());
    for ambiguous in ["i07e", "i-07e"] {
        assert!(matches!(text(tree(), "i7e", ambiguous), Err(MetainfoError::NotCanonical(_))), "{ambiguous}");
    }
    // v1 readers have always taken them.
    assert!(text(v1_dict(&[file(&["a"], 7)]), "i7e", "i07e").is_ok());
    assert!(matches!(text(tree(), "i7e", "i7.e"), Err(MetainfoError::Bencode(_))));
}

#[test]
fn unsorted_keys_are_refused_in_v2_and_double_keys_everywhere() {
    let v1 = b"d4:name1:a6:lengthi1e12:piece lengthi16384e6:pieces20:aaaaaaaaaaaaaaaaaaaae";
    assert_eq!(Info::parse(v1).unwrap().hashes.v1, Some(sha1_of(v1)));
    let twice = b"d4:name1:a6:lengthi1e12:piece lengthi16384e6:pieces20:aaaaaaaaaaaaaaaaaaaa4:name1:be";
    assert!(matches!(Info::parse(twice), Err(MetainfoError::NotCanonical(finding)) if finding.at == twice.len() - 10));
    let mut v2 = b"d4:name1:a9:file treed1:ad0:d6:lengthi1e11:pieces root32:".to_vec();
    v2.extend([b'r'; 32]);
    v2.extend(b"eee12:meta versioni2e12:piece lengthi16384ee");
    assert!(matches!(Info::parse(&v2), Err(MetainfoError::NotCanonical(_))));
    let mut torrent = b"d4:info".to_vec();
    torrent.extend(v1);
    torrent.extend(b"4:infodee");
    assert!(matches!(Metainfo::parse(&torrent), Err(MetainfoError::NotCanonical(_))));
}

fn sha1_of(bytes: &[u8]) -> [u8; 20] {
    use sha1::Digest;
    sha1::Sha1::digest(bytes).into()
}

#[test]
fn the_file_tree_must_be_a_tree() {
    let parse = |tree: &DictBuilder| Info::parse(&v2_dict(tree, PIECE).encode()).map(|_| ()).unwrap_err().to_string();
    let mut siblings = leaf(1, [1; 32]);
    siblings.dict("b", &leaf(1, [2; 32]));
    let mut tree = DictBuilder::new();
    tree.dict("a", &siblings);
    assert!(parse(&tree).contains("empty name at `t/a`"));
    assert!(parse(&leaf(1, [1; 32])).contains("empty name"));
    let mut tree = DictBuilder::new();
    assert!(parse(tree.int("a", 1)).contains("neither a file nor a folder"));
    let mut tree = DictBuilder::new();
    tree.dict("a", DictBuilder::new().int("", 1));
    assert!(parse(&tree).contains("properties are not a dictionary"));
    let mut tree = DictBuilder::new();
    tree.dict("a", &leaf(1, [0; 32]));
    assert!(parse(&tree).contains("without a `pieces root` at `a`"));
}

#[test]
fn equal_roots_must_have_equal_lengths() {
    let twins = |first, second| {
        let mut tree = DictBuilder::new();
        tree.dict("a", &leaf(first, [9; 32])).dict("b", &leaf(second, [9; 32]));
        Info::parse(&v2_dict(&tree, PIECE).encode())
    };
    assert_safe(&twins(70000, 70000).unwrap());
    assert!(matches!(twins(70000, 20000), Err(MetainfoError::FileTree { path, .. }) if path == "t/b"));
}

#[test]
fn versions_must_agree_with_the_keys() {
    let mut tree = DictBuilder::new();
    tree.dict("a", &leaf(1, [1; 32]));
    let parse = |edit: Edit| {
        let mut info = v2_dict(&tree, PIECE);
        edit(&mut info);
        Info::parse(&info.encode()).map(|info| info.version)
    };
    assert_eq!(parse(&|dict| dict), Ok(Version::V2));
    assert_eq!(parse(&|info| info.int("meta version", 3)), Err(MetainfoError::UnknownVersion(3)));
    assert_eq!(parse(&|info| info.int("meta version", 1)), Err(MetainfoError::Missing("meta version")));
    assert!(matches!(parse(&|info| info.bytes("pieces", [0; 20])), Err(MetainfoError::Inconsistent(_))));
    // torrentfile writes `length` beside the tree of a single file: without hashes there is no v1 half.
    assert_eq!(parse(&|info| info.bytes("name", "a").int("length", 1)), Ok(Version::V2));
    let hybrid = |name: &str, length: i64| {
        parse(&|info| info.bytes("name", name).int("length", length).bytes("pieces", [0; 20]))
    };
    assert_eq!(hybrid("a", 1), Ok(Version::Hybrid));
    assert!(matches!(hybrid("b", 1), Err(MetainfoError::Inconsistent(_))));
    assert!(matches!(hybrid("a", 2), Err(MetainfoError::Inconsistent(_))));
}

/// The Merkle root over one leaf a piece, and a torrent with it.
fn torrent_with_layer(layer: &[[u8; 32]], edit: Edit) -> Result<Metainfo, MetainfoError> {
    let mut nodes = LAYER.to_vec();
    nodes.resize(4, [0; 32]);
    while nodes.len() > 1 {
        nodes = nodes.chunks(2).map(|pair| Sha256::digest(pair.concat()).into()).collect();
    }
    let mut tree = DictBuilder::new();
    tree.dict("a", &leaf(PIECE as i64 * 2 + 1, nodes[0]));
    let mut layers = DictBuilder::new();
    layers.bytes(nodes[0], layer.concat());
    edit(&mut layers);
    let mut torrent = DictBuilder::new();
    torrent.dict("info", &v2_dict(&tree, PIECE)).dict("piece layers", &layers);
    Metainfo::parse(&torrent.encode())
}

const LAYER: [[u8; 32]; 3] = [[1; 32], [2; 32], [3; 32]];

#[test]
fn piece_layers_are_proven() {
    let metainfo = torrent_with_layer(&LAYER, &|dict| dict).unwrap();
    assert_eq!(metainfo.piece_layers.values().next().unwrap().as_ref(), LAYER);
    assert_eq!(Metainfo::parse(&metainfo.encode()), Ok(metainfo));
    let problem = |layer: &[[u8; 32]], edit: Edit| match torrent_with_layer(layer, edit) {
        Err(MetainfoError::PieceLayer { problem, .. }) => problem,
        other => panic!("{other:?}"),
    };
    assert_eq!(problem(&[[1; 32], [2; 32], [4; 32]], &|dict| dict), "does not hash to its root");
    assert_eq!(problem(&LAYER[..2], &|dict| dict), "has not one hash a piece");
    let padded = [LAYER[0], LAYER[1], LAYER[2], [0; 32]];
    assert_eq!(problem(&padded, &|dict| dict), "has not one hash a piece");
    assert_eq!(problem(&LAYER, &|layers| layers.bytes([7; 32], [7; 32])), "belongs to no file");
    assert_eq!(problem(&LAYER, &|layers| layers.bytes("short", [7; 32])), "belongs to no file");
}

#[test]
fn links_that_leave_the_folder_are_refused() {
    let target = |target: &[&str]| {
        let info = v1(&[link(&["d", "l"], target), file(&["d", "e", "f"], 1)])?;
        assert_safe(&info);
        Ok::<_, MetainfoError>(link_text(&info, 0).to_owned())
    };
    assert_eq!(target(&["..", "d", "e", "f"]), Ok("e/f".to_owned()));
    let leaves = Err(MetainfoError::SymlinkLeaves { path: "t/d/l".to_owned() });
    assert_eq!(target(&["..", ".."]), leaves);
    assert_eq!(target(&["..", "..", "t", "d", "e"]), leaves);
    // Absolute targets lose their slash, and with it their power.
    assert_eq!(target(&["/etc", "passwd"]), Ok("../etc/passwd".to_owned()));
    assert_eq!(target(&["a/../../../b"]), Ok("../a......b".to_owned()));
}

#[test]
fn links_lead_where_they_end() {
    let info = v1(&[
        link(&["a"], &["b", "f"]), // through a link
        link(&["b"], &["c"]),      // to a folder
        file(&["c", "f"], 1),
        link(&["c", "g"], &["f"]),         // from its own folder
        link(&["c", "up"], &["c"]),        // to its own folder
        link(&["c", "gone"], &["x", "y"]), // to nothing
    ])
    .unwrap();
    assert_safe(&info);
    let texts: Vec<_> = [0, 1, 3, 4, 5].into_iter().map(|index| link_text(&info, index)).collect();
    assert_eq!(texts, ["c/f", "c", "f", ".", "../x/y"]);
}

#[test]
fn links_follow_files_to_their_new_names() {
    let info = v1(&[file(&["f"], 1), file(&["f", "g"], 1), link(&["l"], &["f"])]).unwrap();
    assert_eq!(paths(&info), ["t/f.1", "t/f/g", "t/l"]);
    assert_eq!(link_text(&info, 2), "f");
    let info = v1(&[file(&["F"], 1), file(&["f"], 1), link(&["l"], &["f"])]).unwrap();
    assert_eq!((paths(&info)[1], link_text(&info, 2)), ("t/f.1", "f.1"));
}

#[test]
fn links_in_circles_are_refused() {
    let itself = v1(&[link(&["a"], &["a"]), file(&["f"], 1)]);
    assert_eq!(itself.unwrap_err(), MetainfoError::SymlinkLoop { path: "t/a".to_owned() });
    let circle = v1(&[link(&["a"], &["b", "x"]), link(&["b"], &["a", "y"]), file(&["f"], 1)]);
    assert!(matches!(circle, Err(MetainfoError::SymlinkLoop { .. })));
    let chain = |length: usize| {
        let names: Vec<String> = (0..=length).map(|number| format!("l{number}")).collect();
        let mut files: Vec<_> = names.windows(2).map(|pair| link(&[&pair[0]], &[&pair[1]])).collect();
        files.push(file(&[names[length].as_str()], 1));
        v1(&files)
    };
    assert_eq!(link_text(&chain(SYMLINK_HOPS_MAX + 1).unwrap(), 0), format!("l{}", SYMLINK_HOPS_MAX + 1));
    assert!(matches!(chain(SYMLINK_HOPS_MAX + 2), Err(MetainfoError::SymlinkLoop { .. })));
}

#[test]
fn a_link_without_target_is_an_empty_file() {
    let info = v1(&[File { attr: "l", ..file(&["l"], 425) }, file(&["f"], 1)]);
    // Its length does not count, so the one piece is enough; the builder gave as many.
    let info = info.unwrap();
    assert_eq!((info.files[0].length, &info.files[0].kind), (0, &FileKind::Regular));
}

/// Pads need no path, and then have one of their own beside the folder: a link there would be in nobody's folder.
#[test]
fn a_pad_that_says_to_be_a_link_is_none() {
    for path in [&[][..], &["l"]] {
        let both = File { attr: "lp", ..link(path, &["f"]) };
        let info = v1(&[both, file(&["f"], 1)]).unwrap();
        assert_safe(&info);
        assert_eq!((info.files[0].length, &info.files[0].kind), (0, &FileKind::Pad), "{path:?}");
    }
}

#[test]
fn padding_up_to_the_end_of_a_piece_is_not_fetched() {
    // a: 100 bytes, padded to the piece; b: 10, then 20 of padding in the middle of a piece; c; padding to the end.
    let info = v1(&[
        file(&["a"], 100),
        pad(PIECE as i64 - 100),
        file(&["b"], 10),
        pad(20),
        file(&["c"], 10),
        pad(5),
        pad(PIECE as i64 * 2),
    ])
    .unwrap();
    let data: Vec<_> = (0..info.geometry.piece_count()).map(|piece| info.geometry.data_len(piece)).collect();
    assert_eq!(data, [100, 40, 0, 0]);
    assert_eq!(info.content_size(), 120);
    assert_safe(&info);
    // Padding that data follows in its piece is fetched, also where it began in the piece before.
    let info = v1(&[file(&["a"], 100), pad(PIECE as i64), file(&["b"], 10)]).unwrap();
    let data: Vec<_> = (0..info.geometry.piece_count()).map(|piece| info.geometry.data_len(piece)).collect();
    assert_eq!(data, [100, 110]);
}

#[test]
fn v2_files_are_aligned() {
    let info = v2(&[("a", 100), ("b", 0), ("c", PIECE as i64 + 1), ("d", PIECE as i64)]).unwrap();
    let pads = [format!("t/.pad/{}", PIECE - 100), format!("t/.pad/{}", PIECE - 1)];
    assert_eq!(paths(&info), ["t/a", &pads[0], "t/b", "t/c", &pads[1], "t/d"]);
    let data: Vec<_> = (0..info.geometry.piece_count()).map(|piece| info.geometry.data_len(piece)).collect();
    assert_eq!(data, [100, PIECE as u32, 1, PIECE as u32]);
    assert_eq!(info.content_size(), PIECE * 2 + 101);
    let of = |piece| info.files_of_piece(piece).map(|(index, _)| index).collect::<Vec<_>>();
    assert_eq!((of(0), of(1), of(2), of(3)), (vec![0, 1], vec![3], vec![3, 4], vec![5]));
    assert_eq!((info.pieces_of_file(3), info.pieces_of_file(2), info.pieces_of_file(9)), (1..3, 0..0, 0..0));
    assert!(info.find(Path::new("t/c")).is_some_and(|(index, _)| index == 3));
}

#[test]
fn unusable_urls_are_left_out_and_many_are_cut() {
    let urls = |count: usize| {
        let mut tiers = ListBuilder::new();
        for number in 0..count {
            tiers.list(ListBuilder::new().bytes(format!("udp://t{number}:1")).bytes("file:///etc/passwd"));
        }
        let mut torrent = DictBuilder::new();
        torrent.dict("info", &v1_dict(&[file(&["a"], 1)])).list("announce-list", &tiers);
        torrent.bytes("announce", "http://unused/").bytes("url-list", "http://w/a b\r\nHost: x");
        Metainfo::parse(&torrent.encode()).unwrap()
    };
    assert_eq!(urls(2).trackers, [["udp://t0:1"], ["udp://t1:1"]]);
    assert_eq!(urls(2).web_seeds, ["http://w/a%20b%0D%0AHost:%20x"]);
    assert_eq!(urls(0).trackers, [["http://unused/"]]);
    assert_eq!(urls(URLS_MAX + 1).trackers.len(), URLS_MAX);
}

#[test]
fn magnet_links_of_many_trackers_are_still_links() {
    let mut metainfo = Metainfo::new(v1(&[file(&["a"], 1)]).unwrap().into());
    metainfo.trackers = (0..URLS_MAX).map(|number| vec![format!("udp://t{number}:1/{}", "?".repeat(1000))]).collect();
    metainfo.web_seeds = vec!["http://w/".to_owned()];
    let magnet = metainfo.magnet();
    assert_eq!((magnet.trackers.len(), magnet.web_seeds.len()), (16, 1));
    assert_eq!(magnet.to_string().parse(), Ok(magnet));
}

#[test]
fn files_without_a_length_are_named() {
    let info = v1_dict(&[file(&["a"], 1)]).list("files", ListBuilder::new().raw(b"d4:pathl1:bee")).encode();
    assert_eq!(Info::parse(&info).unwrap_err(), MetainfoError::NoLength { path: "t/b".to_owned() });
}

#[test]
fn huge_lists_are_refused() {
    let list = |entry: &[u8], count: usize| {
        let tail = b"e4:name1:t12:piece lengthi1e6:pieces20:aaaaaaaaaaaaaaaaaaaae";
        Info::parse(&[b"d5:filesld6:lengthi1e4:pathl1:aee", &*entry.repeat(count - 1), tail].concat())
    };
    // Pads need neither path nor length here, so they are the cheapest of files.
    assert_eq!(list(b"d4:attr2:ple", FILES_MAX).map(|info| info.files.len()), Ok(FILES_MAX));
    let error = MetainfoError::TooMany { what: "files", max: FILES_MAX as u64 };
    assert_eq!(list(b"d4:attr2:ple", FILES_MAX + 1).unwrap_err(), error);
    assert!(matches!(list(b"lllleeee", 750_001), Err(MetainfoError::Bencode(_))));
    let large = vec![b'0'; METAINFO_BYTES_MAX + 1];
    assert!(matches!(Info::parse(&large), Err(MetainfoError::Bencode(_))));
    let links: Vec<_> = (0..=SYMLINKS_MAX).map(|number| format!("l{number}")).collect();
    let all = |count: usize| {
        let mut files: Vec<_> = links[..count].iter().map(|name| link(&[name], &["f"])).collect();
        files.push(file(&["f"], 1));
        v1(&files)
    };
    assert!(all(SYMLINKS_MAX).is_ok());
    assert!(matches!(all(SYMLINKS_MAX + 1), Err(MetainfoError::TooMany { what: "symbolic links", .. })));
}

#[test]
fn short_keys_cannot_name_endless_paths() {
    // One folder of 3 KB, many files with tiny names in it.
    let folder = |files: usize| {
        let mut inner = DictBuilder::new();
        (0..files).for_each(|number| {
            inner.dict(format!("{number:x}"), &leaf(0, [0; 32]));
        });
        let tree = (0..11).fold(inner, |inner, _| {
            let mut folder = DictBuilder::new();
            folder.dict("n".repeat(255), &inner);
            folder
        });
        Info::parse(&v2_dict(&tree, PIECE).encode()).unwrap_err()
    };
    assert_eq!(folder(1000), MetainfoError::Empty);
    assert!(matches!(folder(50_000), MetainfoError::TooMany { what: "bytes in paths", .. }));
}

/// Names with everything that is dangerous in them.
fn dangerous_name() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        &b"a"[..],
        b"A",
        b".",
        b"..",
        b"/",
        b"\\",
        b"\0",
        b"\xff",
        b" ",
        b"e\xcc\x81",
        b"\xc3\xa9",
        b"\xe2\x80\xae",
        b".1",
    ]);
    prop::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

/// Path, length, kind and link target.
type DangerousFile = (Vec<Vec<u8>>, u16, u8, Vec<Vec<u8>>);

fn dangerous_files() -> impl Strategy<Value = Vec<DangerousFile>> {
    let path = || prop::collection::vec(dangerous_name(), 1..4);
    prop::collection::vec((path(), any::<u16>(), 0u8..7, path()), 1..12)
}

fn build(files: &[DangerousFile]) -> DictBuilder {
    let slices = |path: &'_ [Vec<u8>]| path.iter().map(|name| name.to_vec()).collect::<Vec<_>>();
    let owned: Vec<_> = files.iter().map(|(path, _, _, target)| (slices(path), slices(target))).collect();
    let entries: Vec<File> = files
        .iter()
        .zip(&owned)
        .map(|((_, length, kind, _), (path, target))| {
            let attr = ["", "l", "p", "x", "h", "xh", "lp"][usize::from(*kind)];
            let is_link = attr.contains('l');
            // Every other pad comes without a path.
            let path = if attr.contains('p') && length % 2 == 0 { &[][..] } else { path };
            File {
                path: path.iter().map(|name| name.as_slice()).collect(),
                length: if is_link { 0 } else { i64::from(*length) },
                attr,
                link: if is_link { target.iter().map(|name| name.as_slice()).collect() } else { Vec::new() },
            }
        })
        .collect();
    v1_dict(&entries)
}

proptest! {
    #[test]
    fn whatever_is_accepted_is_safe(files in dangerous_files()) {
        match Info::parse(&build(&files).encode()) {
            Ok(info) => assert_safe(&info),
            Err(error) => prop_assert!(matches!(
                error,
                MetainfoError::Empty | MetainfoError::SymlinkLeaves { .. } | MetainfoError::SymlinkLoop { .. }
            ), "{}", error),
        }
    }

    #[test]
    fn torrents_are_written_as_they_were_read(
        files in dangerous_files(),
        trackers in prop::collection::vec(prop::collection::vec("udp://[a-z]{1,5}:80", 1..3), 0..4),
        comment in prop::option::of("\\PC{1,20}"), date in prop::option::of(0i64..1 << 40), node in any::<u16>(),
    ) {
        let Ok(info) = Info::parse(&build(&files).encode()) else { return Ok(()) };
        let mut metainfo = Metainfo::new(info.into());
        metainfo.trackers = trackers;
        metainfo.nodes = vec![("node.example".to_owned(), node)];
        metainfo.comment = comment;
        metainfo.creation_date = date.map(|date| std::time::UNIX_EPOCH + std::time::Duration::from_secs(date as u64));
        let bytes = metainfo.encode();
        let again = Metainfo::parse(&bytes).unwrap();
        prop_assert_eq!(again.encode(), bytes);
        prop_assert_eq!(again, metainfo);
    }

    #[test]
    fn damaged_torrents_never_panic(
        files in dangerous_files(), cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..6),
    ) {
        let mut tree = DictBuilder::new();
        for (path, length, ..) in &files {
            tree.dict(path.concat(), &leaf(i64::from(*length), [1; 32]));
        }
        let mut hybrid = build(&files);
        hybrid.int("meta version", 2).dict("file tree", &tree);
        for info in [build(&files), hybrid, v2_dict(&tree, PIECE)] {
            let mut bytes = DictBuilder::new().dict("info", &info).bytes("announce", "udp://a:1").encode();
            for (at, byte, how) in &cuts {
                let at = at.index(bytes.len());
                match how {
                    0 => bytes[at] = *byte,
                    1 => bytes.insert(at, *byte),
                    _ => drop(bytes.remove(at)),
                }
            }
            if let Ok(metainfo) = Metainfo::parse(&bytes) {
                assert_safe(&metainfo.info);
                prop_assert!(Metainfo::parse(&metainfo.encode()).is_ok());
            }
        }
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = (Metainfo::parse(&bytes), Info::parse(&bytes));
    }
}
