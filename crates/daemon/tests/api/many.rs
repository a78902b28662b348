//! Many contents: what each costs does not grow with the others.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anabranch_content::hash::sha1;

use crate::fixture::{Fixture, PATIENCE, noise};

/// As many as show what grows with their square.
const CONTENTS: usize = 150;
/// Bytes of each: one piece.
const LEN: usize = 16 * 1024;

/// A content that lies in its place, and its torrent.
fn content(dir: &Path, number: usize) -> Vec<u8> {
    let (name, bytes) = (format!("{number}.bin"), noise(LEN, number as u64 + 1));
    std::fs::write(dir.join(&name), &bytes).unwrap();
    let head = format!("d4:infod6:lengthi{LEN}e4:name{}:{name}12:piece lengthi{LEN}e6:pieces20:", name.len());
    [head.as_bytes(), &sha1(&bytes), b"ee"].concat()
}

fn wait_for_all(fixture: &Fixture) {
    let began = Instant::now();
    let seeding = || fixture.ask("GET", "/api/v1/session", "", None).json()["contents"]["seeding"].as_u64();
    while seeding() != Some(CONTENTS as u64) {
        assert!(began.elapsed() < PATIENCE, "{:?} are seeding", seeding());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

fn metric(fixture: &Fixture, name: &str) -> u64 {
    let text = String::from_utf8(fixture.send("GET", "/metrics", &fixture.fields(), b"").body).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

/// The records of what is verified, by the numbers of their files: one that is written again is another file.
fn records(fixture: &Fixture) -> BTreeMap<PathBuf, u64> {
    let records = std::fs::read_dir(fixture.dir.path().join("state/resume")).unwrap();
    records.map(|record| record.unwrap()).map(|record| (record.path(), record.metadata().unwrap().ino())).collect()
}

/// What this process has open below the daemon's folder, but for contents' files, of which so many are kept open as there is room for.
fn open_files(fixture: &Fixture) -> Vec<PathBuf> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open = open.filter_map(|file| std::fs::read_link(file.path()).ok());
    open.filter(|path| path.starts_with(fixture.dir.path()) && path.extension().is_none_or(|end| end != "bin"))
        .collect()
}

#[test]
fn what_a_content_costs_does_not_grow_with_the_others() {
    let fixture = Fixture::new();
    for number in 0..CONTENTS {
        let torrent = content(&fixture.files(), number);
        let fields = fixture.fields().replace("application/json", "application/x-bittorrent");
        let added = fixture.send("POST", "/api/v1/contents", &fields, &torrent);
        assert_eq!(added.status, 201, "{}", added.json());
    }
    wait_for_all(&fixture);
    // Each is kept when it is added, with the number of the next, and when it is known what of it is there.
    let most = 4 * CONTENTS as u64;
    let values = metric(&fixture, "anabranch_library_values_total");
    assert!(values <= most, "{values} values were written for {CONTENTS} contents");

    // What is complete is only read: nothing is held for it.
    let began = Instant::now();
    while open_files(&fixture).len() > CONTENTS / 10 || fixture.files().join(".anabranch-lock").exists() {
        assert!(began.elapsed() < PATIENCE, "{:?}", open_files(&fixture));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let before = records(&fixture);
    assert_eq!(before.len(), CONTENTS);

    // The next run finds all as it was, and writes nothing.
    let fixture = Fixture::over(fixture.end());
    wait_for_all(&fixture);
    assert_eq!(fixture.send("GET", "/readyz", "", b"").status, 200);
    assert_eq!(metric(&fixture, "anabranch_library_values_total"), 0);
    assert_eq!(records(&fixture), before);
    assert!(open_files(&fixture).len() <= CONTENTS / 10, "{:?}", open_files(&fixture));
}
