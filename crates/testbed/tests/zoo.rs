//! Strangers' folders through the program: shared, fetched, and compared, names, links and modes included. See
//! [`anabranch_testbed::zoo`] for what is in them.
//!
//! Each folder is shared in some version of the format and fetched in three ways: into nothing, after the fetching program was killed
//! under way, and over what is there already. libtorrent is at the other end, both ways, for those folders that it writes as they are.
//! A few folders run with all tests; `make zoo` runs 200 in every version. `ANABRANCH_ZOO_SEED=N` runs the folder of one seed
//! in every version, with either test.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::peers::libtorrent::{self, Libtorrent};
use anabranch_testbed::zoo::{self, By, Folder};
use anabranch_testbed::{Error, Result};

const ANY: &str = "127.0.0.1:0";
/// A file beyond 4 GiB has to be hashed first, by a machine that does other things too.
const LIMIT: Duration = Duration::from_secs(300);
const VERSIONS: [&str; 3] = ["1", "2", "hybrid"];
/// Folders of the short form, and of the long one.
const FEW: u64 = 12;
const MANY: u64 = 200;
/// What libtorrent 2.1 says of some hybrids of its own making.
const NOT_ITS_OWN: &str = "the v1 and v2 file metadata does not match";
/// What a piece has where libtorrent makes the torrent.
const PIECE_LENGTH: u32 = 32 * 1024;

#[test]
fn a_dozen_folders_in_one_version_each() {
    // None of the giants, which take their time.
    let seeds: Vec<u64> = (0..).filter(|seed| seed % 50 != 7).take(FEW as usize).collect();
    run(&seeds, |seed| vec![VERSIONS[(seed % 3) as usize]]);
}

#[test]
#[ignore = "takes half an hour: make zoo"]
fn two_hundred_folders_in_every_version() {
    run(&(0..MANY).collect::<Vec<_>>(), |_| VERSIONS.to_vec());
}

/// Goes through all seeds, and tells in the end of all that failed.
fn run(seeds: &[u64], versions: impl Fn(u64) -> Vec<&'static str>) {
    let only = std::env::var("ANABRANCH_ZOO_SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    let seeds = only.map_or_else(|| seeds.to_vec(), |seed| vec![seed]);
    let mut failed = Vec::new();
    for seed in &seeds {
        let versions = if only.is_some() { VERSIONS.to_vec() } else { versions(*seed) };
        for version in versions {
            let (done, what) = visit(*seed, version);
            println!(
                "seed {seed}, version {version}: {done} transfers{}",
                what.iter().map(|what| format!(", then {what}")).collect::<String>()
            );
            failed.extend(what.map(|what| format!("ANABRANCH_ZOO_SEED={seed}, version {version}: {what}")));
        }
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}

/// How many transfers went well, and what stopped them.
fn visit(seed: u64, version: &str) -> (usize, Option<String>) {
    let mut done = 0;
    let dir = tempfile::tempdir().expect("a working folder");
    let went = visit_in(dir.path(), seed, version, &mut done);
    (done, went.err().map(|error| error.to_string()))
}

fn visit_in(dir: &Path, seed: u64, version: &str, done: &mut usize) -> Result<()> {
    let folder = zoo::make(&dir.join("in"), seed)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let torrent = dir.join("ours.torrent");
    let save = torrent.to_string_lossy().into_owned();
    let (mut sharer, address) =
        Anabranch::share(&folder.path, None, ANY, None, &["--version", version, "--torrent-out", &save])?;
    let (event, _) = sharer.process.wait_event("started", LIMIT)?;
    let magnet = event["magnet"].as_str().unwrap_or_default().to_owned();
    let source = if random.bool() { magnet } else { save };
    for way in ["fresh", "killed", "over"] {
        let out = dir.join(way);
        fetch(&folder, version, way, &source, &out, address, &mut random).map_err(during(way))?;
        *done += 1;
        std::fs::remove_dir_all(&out).map_err(Error::file(&out))?;
    }
    if folder.common && folder.bytes < 1 << 30 {
        let out = dir.join("to libtorrent");
        Libtorrent::leech(&torrent.to_string_lossy(), &out, &[address], None, ANY)
            .and_then(|mut leech| leech.wait_finished(LIMIT))
            .and_then(|_| compare(&folder, version, &out, By::Bytes))
            .map_err(during("to libtorrent"))?;
        *done += 1;
        let theirs = dir.join("theirs.torrent");
        match libtorrent::create(&folder.path, &theirs, version, PIECE_LENGTH, &[]) {
            // It orders the files of some hybrids in two ways, and does not read what it made.
            Err(error) if version == "hybrid" && error.to_string().contains(NOT_ITS_OWN) => return Ok(()),
            made => made.map_err(during("made by libtorrent"))?,
        };
        let above =
            folder.lone_file.as_ref().filter(|_| version == "2").map_or(dir.join("in"), |_| folder.path.clone());
        let seeder = Libtorrent::seed(&theirs, &above, None, ANY).map_err(during("from libtorrent"))?;
        let out = dir.join("from libtorrent");
        get(&theirs.to_string_lossy(), &out, seeder.address, &[])
            .and_then(|mut get| get.wait_finished(LIMIT))
            .and_then(|_| compare(&folder, version, &out, By::Bytes))
            .map_err(during("from libtorrent"))?;
        *done += 1;
    }
    Ok(())
}

fn fetch(
    folder: &Folder,
    version: &str,
    way: &str,
    source: &str,
    out: &Path,
    address: SocketAddr,
    random: &mut fastrand::Rng,
) -> Result<()> {
    match way {
        "killed" => {
            // So that it takes about a second, and dies in the middle of that.
            let rate = folder.bytes.max(20_000).to_string();
            let mut get = get(source, out, address, &["--limit-down", &rate])?;
            std::thread::sleep(Duration::from_millis(random.u64(50..900)));
            get.process.kill()?;
        }
        "over" => {
            let (wanted, got) = ends(folder, version, out);
            zoo::begin(&wanted, &got, random)?;
        }
        _ => {}
    }
    // What is there in part is nobody's word for the content: its user says that it may go.
    let extra: &[&str] = if way == "over" { &["--force"] } else { &[] };
    get(source, out, address, extra)?.wait_finished(LIMIT)?;
    compare(folder, version, out, By::Everything)?;
    // Nothing of ours stays beside the content.
    let beside = std::fs::read_dir(out).map_err(Error::file(out))?.count();
    if beside != 1 {
        return Err(Error::Nonsense {
            name: "ours".into(),
            what: format!("{beside} things are in the download folder"),
        });
    }
    Ok(())
}

fn get(source: &str, out: &Path, peer: SocketAddr, extra: &[&str]) -> Result<Anabranch> {
    Anabranch::get(source, out, &[peer], None, &[&["--listen", ANY], extra].concat())
}

/// Where the content is, and where it comes to: without its folder where version 2 cannot tell that from its only file.
fn ends(folder: &Folder, version: &str, out: &Path) -> (PathBuf, PathBuf) {
    let wanted = folder.lone_file.as_ref().filter(|_| version == "2").unwrap_or(&folder.path);
    (wanted.clone(), out.join(wanted.file_name().unwrap_or_default()))
}

fn compare(folder: &Folder, version: &str, out: &Path, by: By) -> Result<()> {
    let (wanted, got) = ends(folder, version, out);
    match zoo::difference(&wanted, &got, by)? {
        None => Ok(()),
        Some(what) => Err(Error::Nonsense { name: "the copy".into(), what }),
    }
}

fn during(way: &str) -> impl FnOnce(Error) -> Error + use<> {
    let name = way.to_owned();
    move |error| Error::Nonsense { name, what: error.to_string() }
}
