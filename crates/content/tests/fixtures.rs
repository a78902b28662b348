//! libtorrent's verdicts on its own test torrents: what it accepts is accepted here with the same content, and what it
//! refuses is refused. The torrents are not part of the repository; `ANABRANCH_FIXTURES` names their folder.

use std::path::{Path, PathBuf};

use anabranch_content::hex;
use anabranch_content::info::FileKind;
use anabranch_content::metainfo::Metainfo;
use serde_json::{Value, json};

/// `None` where the torrents are not at hand, which is an error only in CI.
fn fixtures() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures");
    let folder = std::env::var_os("ANABRANCH_FIXTURES").map_or(beside, PathBuf::from).join("torrents");
    let found = folder.join("expected.json").is_file();
    let needed = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(found || !needed, "no fixtures in {}: set ANABRANCH_FIXTURES", folder.display());
    if !found {
        eprintln!("skipped: no fixtures in {}", folder.display());
    }
    found.then_some(folder)
}

/// Entries that `expected.json` lists of a torrent; `num_files` counts them all.
const LISTED_MAX: usize = 50;

/// What was read, in the form of `expected.json`.
fn describe(metainfo: &Metainfo) -> Value {
    let info = &metainfo.info;
    let files: Vec<Value> = info
        .files
        .iter()
        .take(LISTED_MAX)
        .map(|file| json!({ "length": file.length, "pad": file.kind == FileKind::Pad, "path": file.path }))
        .collect();
    json!({
        "accepts": true,
        "files": files,
        "num_files": info.files.len(),
        "piece_length": info.geometry.piece_length(),
        "private": info.private,
        "size": info.geometry.total(),
        "trackers": metainfo.trackers.concat(),
        "v1": info.hashes.v1.map(|hash| hex::encode(&hash)),
        "v2": info.hashes.v2.map(|hash| hex::encode(&hash)),
    })
}

#[test]
fn verdicts_are_libtorrents() {
    let Some(folder) = fixtures() else { return };
    let expected = std::fs::read_to_string(folder.join("expected.json")).expect("expected.json is readable");
    let expected: Value = serde_json::from_str(&expected).expect("expected.json is JSON");
    let expected = expected.as_object().expect("expected.json is an object");
    assert!(expected.len() >= 54, "all torrents have a verdict");
    let mut wrong = Vec::new();
    for (name, verdict) in expected {
        let bytes = std::fs::read(folder.join(name)).expect("every verdict has its torrent");
        match (Metainfo::parse(&bytes), verdict["accepts"] == true) {
            (Ok(metainfo), true) if describe(&metainfo) != *verdict => {
                wrong.push(format!("{name}\n  ours   {}\n  theirs {verdict}", describe(&metainfo)));
            }
            (Ok(metainfo), true) => {
                let again = Metainfo::parse(&metainfo.encode()).expect("what is written is read");
                assert_eq!(again, metainfo, "{name} is written as it was read");
            }
            (Err(error), true) => wrong.push(format!("{name} is refused: {error}")),
            (Ok(_), false) => wrong.push(format!("{name} is accepted, but libtorrent says {}", verdict["error"])),
            (Err(error), false) => eprintln!("{name}: {error}"),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), expected.len(), wrong.join("\n"));
}

#[test]
fn linked_frameworks_keep_their_links() {
    let Some(folder) = fixtures() else { return };
    let bytes = std::fs::read(folder.join("overlapping_symlinks.torrent")).expect("the torrent is there");
    let info = Metainfo::parse(&bytes).expect("libtorrent accepts it").info;
    let links: Vec<_> = info
        .files
        .iter()
        .filter_map(|file| match &file.kind {
            FileKind::Symlink { target } => Some((file.path.to_str()?, target.to_str()?)),
            _ => None,
        })
        .collect();
    assert_eq!(
        links,
        [
            ("SDL2.framework/Headers", "Versions/A/Headers"),
            ("SDL2.framework/Resources", "Versions/A/Resources"),
            ("SDL2.framework/SDL2", "Versions/A/SDL2"),
            ("SDL2.framework/Versions/Current", "A"),
        ]
    );
}
