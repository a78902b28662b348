//! Any bytes as a torrent file: what is accepted stays inside its folder, adds up, and survives being written.
#![no_main]

use std::collections::HashSet;
use std::path::{Component, Path};

use anabranch_content::info::{FileKind, Info};
use anabranch_content::magnet::{Magnet, MagnetError};
use anabranch_content::metainfo::{Metainfo, NameRules, written_paths};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(info) = Info::parse(data) {
        check(&info);
    }
    if let Ok(info) = Info::parse_for(data, &NameRules::EXACT) {
        check(&info);
        let on_disk = info.files.iter().filter(|file| file.kind != FileKind::Pad).count();
        assert!(written_paths(&info).len() >= on_disk);
    }
    let Ok(metainfo) = Metainfo::parse(data) else { return };
    check(&metainfo.info);
    let again = Metainfo::parse(&metainfo.encode()).expect("our own encoding");
    assert_eq!(again, metainfo);
    match metainfo.magnet().to_string().parse::<Magnet>() {
        Ok(magnet) => assert_eq!(magnet.hashes, metainfo.info.hashes),
        Err(MagnetError::TooLong(_)) => {}
        Err(error) => panic!("our own link: {error}"),
    }
});

fn check(info: &Info) {
    let mut paths = HashSet::new();
    let mut end = 0;
    let folder =
        info.files.iter().find(|file| file.kind != FileKind::Pad).and_then(|file| file.path.components().next());
    for file in &info.files {
        assert!(file.offset >= end, "files overlap");
        end = file.offset + file.length;
        if file.kind == FileKind::Pad {
            continue;
        }
        assert!(file.path.components().all(|part| matches!(part, Component::Normal(_))), "{:?}", file.path);
        assert!(file.path.components().next().is_some(), "a file without a name");
        assert!(file.path.components().next() == folder, "{:?} is outside of the folder", file.path);
        assert!(paths.insert(&file.path), "two files at {:?}", file.path);
        if let FileKind::Symlink { target } = &file.kind {
            check_link(&file.path, target);
        }
    }
    assert!(end <= info.geometry.total());
    let pieces = info.geometry.piece_count();
    assert!(info.piece_hashes.is_empty() || info.piece_hashes.len() == pieces as usize);
    for piece in [0, pieces / 2, pieces.saturating_sub(1)] {
        assert!(info.geometry.data_len(piece) <= info.geometry.piece_len(piece));
        info.files_of_piece(piece).for_each(|(index, _)| assert!(info.pieces_of_file(index).contains(&piece)));
    }
}

/// By its text, the link does not leave the download folder.
fn check_link(path: &Path, target: &Path) {
    let mut depth = path.components().count() as i64 - 1;
    for part in target.components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::ParentDir => depth -= 1,
            Component::CurDir => {}
            part => panic!("an absolute link: {part:?}"),
        }
        assert!(depth >= 0, "{path:?} -> {target:?} leaves");
    }
}
