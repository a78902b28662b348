//! How fast whole files are hashed: making and verifying torrents, beside other programs and a plain floor, in turn in one run.
//!
//! `cargo bench -p anabranch-content --bench create`. Peers run where they are found: `transmission-create` on the PATH, and
//! libtorrent in the Python that `ANABRANCH_PYTHON` names (default `python3`). `ANABRANCH_BENCH_DIR` (default /dev/shm) gets a
//! file of `ANABRANCH_BENCH_BYTES` (default 2 GiB), which is removed in the end. Rates are the best of three rounds, in GB/s.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anabranch_content::create::{CreateOptions, Created, create};
use anabranch_content::info::Version;
use anabranch_content::metainfo::Metainfo;
use anabranch_content::verify::verify;
use sha1::Digest as _;

const PIECE_BYTES: u32 = 1024 * 1024;
const ROUNDS: usize = 3;
const VERSIONS: [Version; 3] = [Version::V1, Version::V2, Version::Hybrid];

/// libtorrent's own creation: prints seconds, for `flags` as given.
const LIBTORRENT: &str = "
import sys, os, time, libtorrent as lt
path, flags, piece = sys.argv[1], sys.argv[2], int(sys.argv[3])
fs = lt.file_storage()
lt.add_files(fs, path)
t = lt.create_torrent(fs, piece, {'V1': lt.create_torrent.v1_only, 'V2': lt.create_torrent.v2_only, 'Hybrid': 0}[flags])
began = time.time()
lt.set_piece_hashes(t, os.path.dirname(path))
print(time.time() - began)
";

fn main() {
    let folder = PathBuf::from(std::env::var("ANABRANCH_BENCH_DIR").unwrap_or_else(|_| "/dev/shm".into()));
    let length = std::env::var("ANABRANCH_BENCH_BYTES").ok().and_then(|text| text.parse().ok()).unwrap_or(2 << 30);
    let folder = tempfile::tempdir_in(&folder).expect("a writable folder");
    let path = folder.path().join("content");
    write_content(&path, length);

    let mut best: Vec<(String, f64)> = Vec::new();
    let mut note = |name: String, seconds: Option<f64>| {
        let Some(rate) = seconds.map(|seconds| length as f64 / seconds / 1e9) else { return };
        match best.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = known.max(rate),
            None => best.push((name, rate)),
        }
    };
    for _ in 0..ROUNDS {
        for version in VERSIONS {
            let (created, seconds) = timed(|| ours(&path, version));
            note(format!("anabranch create {version:?}"), Some(seconds));
            let Metainfo { info, piece_layers, .. } = Metainfo::parse(&created.metainfo).expect("our own");
            let cancel = AtomicBool::new(false);
            let (report, seconds) =
                timed(|| verify(&info, &piece_layers, folder.path(), &cancel, |_, _| {}).expect("layers"));
            assert!(report.is_complete());
            note(format!("anabranch verify {version:?}"), Some(seconds));
            note(format!("libtorrent create {version:?}"), libtorrent(&path, version));
        }
        note("transmission-create V1".into(), transmission(&path));
        note("floor: one thread reads, crate sha1".into(), Some(timed(|| floor(&path)).1));
        note("limit: one thread reads only".into(), Some(timed(|| read_only(&path)).1));
    }
    println!(
        "{length} bytes, pieces of {PIECE_BYTES}, {} cores",
        std::thread::available_parallelism().map_or(1, usize::from)
    );
    for (name, rate) in best {
        println!("{name:<40}{rate:>8.2} GB/s");
    }
}

fn timed<T>(run: impl FnOnce() -> T) -> (T, f64) {
    let began = Instant::now();
    let result = run();
    (result, began.elapsed().as_secs_f64())
}

fn write_content(path: &Path, length: u64) {
    let mut file = File::create(path).expect("a writable folder");
    let mut rng = fastrand::Rng::with_seed(1);
    let mut chunk = vec![0; 1 << 20];
    let mut left = length;
    while left > 0 {
        rng.fill(&mut chunk);
        let take = left.min(chunk.len() as u64);
        file.write_all(&chunk[..take as usize]).expect("enough room");
        left -= take;
    }
}

fn ours(path: &Path, version: Version) -> Created {
    let options = CreateOptions { version, piece_length: Some(PIECE_BYTES), ..CreateOptions::default() };
    create(path, &options, &AtomicBool::new(false), |_, _| {}).expect("readable")
}

fn libtorrent(path: &Path, version: Version) -> Option<f64> {
    let python = std::env::var("ANABRANCH_PYTHON").unwrap_or_else(|_| "python3".into());
    let mut command = Command::new(python);
    command.args(["-c", LIBTORRENT]).arg(path).args([format!("{version:?}"), PIECE_BYTES.to_string()]);
    String::from_utf8(command.output().ok()?.stdout).ok()?.trim().parse().ok()
}

fn transmission(path: &Path) -> Option<f64> {
    let mut command = Command::new("transmission-create");
    command.args(["-s", &(PIECE_BYTES / 1024).to_string(), "-o"]).arg(path.with_extension("torrent")).arg(path);
    let (output, seconds) = timed(|| command.output().ok());
    output.filter(|output| output.status.success()).map(|_| seconds)
}

fn floor(path: &Path) {
    let mut file = File::open(path).expect("readable");
    let mut piece = vec![0; PIECE_BYTES as usize];
    while file.read_exact(&mut piece).is_ok() {
        std::hint::black_box(sha1::Sha1::digest(&piece));
    }
}

fn read_only(path: &Path) {
    let mut file = File::open(path).expect("readable");
    let mut chunk = vec![0; 64 * 1024];
    while file.read(&mut chunk).expect("readable") > 0 {
        std::hint::black_box(&chunk);
    }
}
