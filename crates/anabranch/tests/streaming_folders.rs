//! `share --ppspp FOLDER`, and `get`, `play` and `verify` of its link, on loopback.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use common::{Running, anabranch, noise, run, signal};
use serde_json::Value;

/// Names that a file system of Unix holds and others do not, and lengths from none to several pieces, with whole chunks among them.
const FILES: [(&str, usize); 14] = [
    ("a film.mkv", 3_000_001),
    ("Case.txt", 5),
    ("case.txt", 6),
    ("deep/er/still/one", 1),
    ("deep/er/two\nlines", 1024),
    ("deep/what? \"this\": *that*|<those>", 262_144),
    ("empty", 0),
    ("deep/empty too", 0),
    ("ends with a dot.", 1025),
    ("-rf", 2048),
    ("\u{e9}t\u{e9}", 300_000),
    ("e\u{301}te\u{301}", 299_999),
    (".hidden", 77),
    ("zz", 1),
];

/// Makes the folder `odd`.
fn odd(dir: &Path) {
    for (seed, (name, len)) in FILES.iter().enumerate() {
        let path = dir.join("odd").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, noise(*len, seed as u64)).unwrap();
    }
    fs::set_permissions(dir.join("odd/zz"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("deep/er", dir.join("odd/link")).unwrap();
    symlink("not there", dir.join("odd/dangling")).unwrap();
}

/// Shares the folder: the program and the link.
fn share(dir: &Path, arguments: &[&str]) -> (Running, String) {
    share_of(dir, "odd", arguments)
}

fn share_of(dir: &Path, folder: &str, arguments: &[&str]) -> (Running, String) {
    let usual = ["share", "--ppspp", folder, "--listen", "127.0.0.1:0", "--json"];
    let mut running = Running::start(anabranch(dir).args(usual).args(arguments));
    let link = running.event("started")["link"].as_str().unwrap().to_owned();
    (running, link)
}

fn get<'a>(link: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&["get", link, "--listen", "127.0.0.1:0", "--json"], rest].concat()
}

fn event(stdout: &str, name: &str) -> Value {
    let mut all = stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.find(|event| event["event"] == name).unwrap_or_else(|| panic!("no {name} in {stdout}"))
}

/// Files and links below a folder.
fn count(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| if entry.file_type().unwrap().is_dir() { count(&entry.path()) } else { 1 }).sum()
}

/// The folder arrived as it is, and nothing but it.
fn assert_arrived(dir: &Path, out: &str) {
    let got = dir.join(out);
    assert_eq!(fs::read_dir(&got).unwrap().count(), 1);
    for (seed, (name, len)) in FILES.iter().enumerate() {
        let path = got.join("odd").join(name);
        assert!(fs::read(&path).unwrap_or_default() == noise(*len, seed as u64), "{name:?}");
        assert!(path.is_file(), "{name:?}");
    }
    let executable = |name: &str| fs::metadata(got.join("odd").join(name)).unwrap().permissions().mode() & 0o100 != 0;
    assert!(executable("zz") && !executable("-rf"));
    assert_eq!(fs::read_link(got.join("odd/link")).unwrap(), Path::new("deep/er"));
    assert_eq!(fs::read_link(got.join("odd/dangling")).unwrap(), Path::new("not there"));
    assert_eq!(count(&got.join("odd")), FILES.len() + 2);
}

#[test]
fn a_folder_arrives_as_it_is_in_chunks_of_every_length() {
    let dir = tempfile::tempdir().unwrap();
    odd(dir.path());
    fs::create_dir(dir.path().join("odd/hollow")).unwrap();
    for (chunk, dialect) in [("1KiB", "rfc7574"), ("1000", "rfc7574"), ("63KiB", "rfc7574"), ("1KiB", "libswift")] {
        let (sharer, link) = share(dir.path(), &["--chunk-length", chunk, "--dialect", dialect]);
        assert!(link.contains("&ml=") && link.contains("dn=odd"), "{link}");
        let out = format!("out-{chunk}-{dialect}");
        let (code, stdout, stderr) = run(dir.path(), &get(&link, &["-o", &out]));
        assert_eq!(code, 0, "{chunk}: {stderr}");
        assert_arrived(dir.path(), &out);
        let total: usize = FILES.iter().map(|(_, len)| len).sum();
        assert_eq!(event(&stdout, "started")["bytes_total"], total, "{stdout}");
        sharer.interrupt();
    }
    // The same files in a folder of another name are the same content, and who has the link calls the folder what the link says.
    let (_sharer, link) = share(dir.path(), &[]);
    let id = |link: &str| link.split('?').next().unwrap().to_owned();
    fs::rename(dir.path().join("odd"), dir.path().join("other")).unwrap();
    let (other, again) = share_of(dir.path(), "other", &[]);
    assert_eq!(id(&again), id(&link));
    other.interrupt();
    fs::rename(dir.path().join("other"), dir.path().join("odd")).unwrap();
    let renamed = link.replace("dn=odd", "dn=..%2Fup");
    let (code, _, stderr) = run(dir.path(), &get(&renamed, &["-o", "renamed"]));
    assert_eq!(code, 0, "{stderr}");
    assert!(dir.path().join("renamed/_up/zz").is_file() && !dir.path().join("up").exists());
}

#[test]
fn a_folder_survives_a_kill_and_is_served_on_without_its_sharer() {
    let dir = tempfile::tempdir().unwrap();
    odd(dir.path());
    let (sharer, link) = share(dir.path(), &[]);
    let slow = get(&link, &["-o", "out", "--limit-down", "1M"]);
    let mut getter = Running::start(anabranch(dir.path()).args(&slow));
    for _ in 0..6 {
        getter.event("piece");
    }
    signal(getter.child.id(), "KILL");
    getter.child.wait().unwrap();
    let mut seeder = Running::start(anabranch(dir.path()).args(get(&link, &["-o", "out", "--seed"])));
    let address = seeder.event("listening")["address"].as_str().unwrap().to_owned();
    let started = seeder.event("started");
    assert!(started["bytes_done"].as_u64().unwrap() >= 5 * 256 * 1024, "{started}");
    seeder.event("finished");
    assert_eq!(sharer.interrupt().0, 0);
    // Its list of files is beside its record: it serves all of it after a restart, where nobody else is.
    signal(seeder.child.id(), "KILL");
    seeder.child.wait().unwrap();
    let again = ["get", &link, "--listen", &address, "--json", "-o", "out", "--seed"];
    let mut seeder = Running::start(anabranch(dir.path()).args(again));
    let started = seeder.event("started");
    assert_eq!(started["bytes_done"], started["bytes_total"], "{started}");
    let rest: Vec<&str> = link.split('&').filter(|part| !part.starts_with("pe=")).collect();
    let from_seeder = format!("{}&pe={address}", rest.join("&"));
    let (code, _, stderr) = run(dir.path(), &get(&from_seeder, &["-o", "two"]));
    assert_eq!(code, 0, "{stderr}");
    assert_arrived(dir.path(), "two");
    seeder.interrupt();
    // What is left beside the folder are records, which are hidden.
    let names =
        fs::read_dir(dir.path().join("out")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().all(|name| name == "odd" || name.starts_with(".odd-")));
}

/// One request, and its body.
fn fetch(url: &str, range: &str) -> Vec<u8> {
    let (host, target) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /{target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{range}\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    assert!(answer.starts_with(b"HTTP/1.1 20"), "{}", String::from_utf8_lossy(&answer[..head]));
    answer.split_off(head)
}

/// Every file is served by name under its URL, while it arrives.
#[test]
fn files_of_a_folder_play_by_name() {
    let dir = tempfile::tempdir().unwrap();
    odd(dir.path());
    let (_sharer, link) = share(dir.path(), &["--limit-up", "2M"]);
    let usual = ["play", &link, "-o", "out", "--listen", "127.0.0.1:0", "--json"];
    let mut playing = Running::start(anabranch(dir.path()).args(usual));
    let serving = playing.event("serving");
    let url = serving["url"].as_str().unwrap();
    assert!(url.ends_with("/a%20film.mkv"), "the film is what is played: {url}");
    let film = noise(FILES[0].1, 0);
    assert!(fetch(url, "Range: bytes=2500000-2600000\r\n") == film[2_500_000..=2_600_000]);
    let index = String::from_utf8(fetch(serving["index"].as_str().unwrap(), "")).unwrap();
    let base = url.strip_suffix("/a%20film.mkv").unwrap().rsplit_once('/').unwrap().0;
    let targets = index.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let targets: Vec<&str> =
        targets.filter(|target| target.as_bytes().get(1).is_some_and(u8::is_ascii_digit)).collect();
    assert_eq!(targets.len(), FILES.len(), "{index}");
    let mut served: Vec<usize> = targets.iter().map(|target| fetch(&format!("{base}{target}"), "").len()).collect();
    let mut lengths: Vec<usize> = FILES.iter().map(|(_, len)| *len).collect();
    served.sort_unstable();
    lengths.sort_unstable();
    assert_eq!(served, lengths);
    assert!(fetch(url, "") == film);
    assert_eq!(playing.interrupt().0, 0);
}

#[test]
fn a_folder_is_verified_against_its_link() {
    let dir = tempfile::tempdir().unwrap();
    odd(dir.path());
    let (_sharer, link) = share(dir.path(), &[]);
    let verify = |place: &str| {
        let (code, stdout, stderr) = run(dir.path(), &["verify", &link, place]);
        (code, stdout + &stderr)
    };
    for place in [".", "odd"] {
        let (code, told) = verify(place);
        assert!(code == 0 && told.contains("complete"), "{place}: {code} {told}");
    }
    let film = dir.path().join("odd/a film.mkv");
    let good = fs::read(&film).unwrap();
    let mut damaged = good.clone();
    damaged[1_000_000] ^= 1;
    fs::write(&film, damaged).unwrap();
    let (code, told) = verify("odd");
    assert!(code == 4 && told.contains("damaged") && told.contains("as a whole"), "{code} {told}");
    fs::write(&film, good).unwrap();
    assert_eq!(verify("odd").0, 0);
    fs::write(dir.path().join("odd/more"), "x").unwrap();
    assert_eq!(verify("odd").0, 4, "a file more");
    fs::remove_file(dir.path().join("odd/more")).unwrap();
    fs::set_permissions(dir.path().join("odd/zz"), fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(verify("odd").0, 4, "not executable any more");
    let (code, told) = verify("gone");
    assert!(code == 4 && told.contains("missing"), "{code} {told}");
    let (code, told) = verify("odd/zz");
    assert!(code == 4 && told.contains("wrong kind"), "{code} {told}");
    let (code, stdout, _) = run(dir.path(), &["show", &link]);
    assert!(code == 0 && stdout.contains("its list of files comes first"), "{stdout}");
}

/// A link whose list is longer, shorter or none; and one that says that a file's first bytes are a list.
#[test]
fn links_that_lie_of_their_list_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    odd(dir.path());
    fs::write(dir.path().join("file"), noise(100_000, 3)).unwrap();
    let (_sharer, link) = share(dir.path(), &[]);
    let mut sharer =
        Running::start(anabranch(dir.path()).args(["share", "--ppspp", "file", "--listen", "127.0.0.1:0", "--json"]));
    let file = sharer.event("started")["link"].as_str().unwrap().replace("&cl=", "&ml=500&cl=");
    let len: u32 = link.split("&ml=").nth(1).unwrap().split('&').next().unwrap().parse().unwrap();
    let with = |other: u32| link.replace(&format!("&ml={len}"), &format!("&ml={other}"));
    for lying in [with(len - 1), with(len + 1), with(len + 5000), with(3), file] {
        let (code, _, stderr) = run(dir.path(), &get(&lying, &["-o", "none"]));
        assert!(code == 3 && stderr.contains("list of files"), "{lying}: {code} {stderr}");
        assert!(!dir.path().join("none").exists(), "nothing is made of it");
    }
    // As the one file that its bytes are, too.
    let plain = link.replace(&format!("&ml={len}"), "");
    let (code, _, stderr) = run(dir.path(), &get(&plain, &["-o", "plain"]));
    assert!(code == 0 && dir.path().join("plain/odd").is_file(), "{stderr}");
}
