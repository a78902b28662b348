//! `share` and `get` on loopback.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use common::{Running, anabranch, assert_same, finish, get, noise, run, share, tree};
use serde_json::Value;

#[test]
fn a_single_file_arrives_by_torrent_and_by_magnet_link() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(2_000_003, 1))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    for version in ["1", "2", "hybrid"] {
        let torrent = format!("{version}.torrent");
        let (sharer, address, magnet) =
            share(dir.path(), &["one.bin", "--version", version, "--torrent-out", &torrent]);
        let by_torrent = format!("torrent-{version}");
        let (code, _, stderr) = run(dir.path(), &get(&address, &[&torrent, "-o", &by_torrent]));
        assert_eq!(code, 0, "{stderr}");
        assert!(stderr.contains("one.bin: complete"), "{stderr}");
        assert_same(&dir.path().join(by_torrent), &file);
        // The link itself names the peer.
        let by_magnet = format!("magnet-{version}");
        let (code, _, stderr) = run(dir.path(), &["get", &magnet, "-o", &by_magnet, "--listen", "127.0.0.1:0"]);
        assert_eq!(code, 0, "{stderr}");
        assert_same(&dir.path().join(by_magnet), &file);
        assert_eq!(sharer.interrupt().0, 0);
    }
}

#[test]
fn a_tree_with_empty_files_arrives_and_a_second_get_has_nothing_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path());
    let (_sharer, address, magnet) = share(dir.path(), &["tree"]);
    for _ in 0..2 {
        let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", "out"]));
        assert_eq!(code, 0, "{stderr}");
        assert_same(&dir.path().join("out"), &files);
    }
    let (code, stdout, _) = run(dir.path(), &get(&address, &[&magnet, "-o", "out", "--json"]));
    assert_eq!(code, 0);
    let finished = stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let finished: Vec<Value> = finished.filter(|event| event["event"] == "finished").collect();
    assert_eq!((finished.len(), finished[0]["downloaded"].as_u64()), (1, Some(0)));
}

#[test]
fn executable_files_arrive_executable() {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<(std::path::PathBuf, Vec<u8>)> =
        [("tree/run.sh", 70_000), ("tree/plain", 50_000), ("tree/sub/none", 0)]
            .map(|(path, length)| (path.into(), noise(length, length as u64)))
            .into();
    fs::create_dir_all(dir.path().join("tree/sub")).unwrap();
    for (path, bytes) in &files {
        let path = dir.path().join(path);
        fs::write(&path, bytes).unwrap();
        let mode = if path.ends_with("plain") { 0o644 } else { 0o755 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let is_executable = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o100 != 0;
    for version in ["1", "2", "hybrid"] {
        for (shared, files) in [("tree", &files[..]), ("tree/run.sh", &files[..1])] {
            let (_sharer, address, magnet) = share(dir.path(), &[shared, "--version", version]);
            let out = dir.path().join(format!("out-{version}-{}", files.len()));
            // Again over what is there: the attributes of complete files are no reason to fetch or to fail.
            for _ in 0..2 {
                let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", out.to_str().unwrap()]));
                assert_eq!(code, 0, "{version} {shared}: {stderr}");
            }
            let below = if files.len() == 1 { out.clone() } else { out.join("tree") };
            for (path, bytes) in files {
                let arrived = below.join(path.strip_prefix(if files.len() == 1 { "tree" } else { "tree/" }).unwrap());
                assert!(fs::read(&arrived).unwrap() == *bytes, "{version} {}", arrived.display());
                assert_eq!(is_executable(&arrived), !path.ends_with("plain"), "{version} {}", arrived.display());
            }
        }
    }
}

#[test]
fn only_the_files_asked_for_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path());
    let (_sharer, address, magnet) = share(dir.path(), &["tree", "--torrent-out", "t.torrent"]);
    let (code, _, stderr) = run(dir.path(), &get(&address, &["t.torrent", "-o", "out", "--files", "sub/"]));
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("out"), &files[2..]);
    assert!(!dir.path().join("out/tree/a.bin").exists());
    for source in ["t.torrent", &magnet] {
        let (code, _, stderr) = run(dir.path(), &get(&address, &[source, "-o", "out2", "--files", "*.mkv"]));
        assert_eq!(code, 3, "{stderr}");
        assert!(stderr.contains("`*.mkv` matches no file of tree, which has tree/a.bin"), "{stderr}");
    }
    // BEP 53: the link chooses by index.
    let (code, _, stderr) = run(dir.path(), &get(&address, &[&format!("{magnet}&so=0"), "-o", "out3"]));
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("out3"), &files[..1]);
    assert!(!dir.path().join("out3/tree/sub/deep/c.bin").exists());
}

#[test]
fn several_contents_come_in_one_session_from_one_sharer() {
    let dir = tempfile::tempdir().unwrap();
    let mut torrents = Vec::new();
    let files: Vec<(std::path::PathBuf, Vec<u8>)> =
        (0..20_u64).map(|n| (format!("{n}.bin").into(), noise(40_000 + n as usize, n + 9))).collect();
    for (name, bytes) in &files {
        fs::write(dir.path().join(name), bytes).unwrap();
        let torrent = format!("torrents/{}.torrent", name.display());
        fs::create_dir_all(dir.path().join("torrents")).unwrap();
        assert_eq!(run(dir.path(), &["create", name.to_str().unwrap(), "-o", &torrent, "-q"]).0, 0);
        torrents.push(torrent);
    }
    let mut arguments: Vec<&str> = torrents.iter().map(String::as_str).collect();
    arguments.extend(["--data", "."]);
    let (mut sharer, address, _) = share(dir.path(), &arguments);
    for _ in 1..files.len() {
        sharer.event("started");
    }
    let mut rest: Vec<&str> = torrents.iter().map(String::as_str).collect();
    rest.extend(["-o", "out"]);
    let (code, _, stderr) = run(dir.path(), &get(&address, &rest));
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("out"), &files);
}

#[test]
fn events_are_json_with_the_fields_that_are_documented() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 3)).unwrap();
    let (_sharer, address, magnet) = share(dir.path(), &["one.bin"]);
    let (code, stdout, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", "out", "--json"]));
    assert_eq!((code, stderr.as_str()), (0, ""));
    let events: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(events.iter().all(|event| event["time"].is_f64() && event["event"].is_string()));
    let first = |name: &str| events.iter().find(|event| event["event"] == name).unwrap_or_else(|| panic!("no {name}"));
    assert!(first("listening")["address"].is_string());
    assert_eq!(first("metadata")["name"], "one.bin");
    assert_eq!(first("started")["torrent"].as_str().unwrap().len(), 40);
    assert_eq!(
        events.iter().filter(|event| event["event"] == "piece").count() as u64,
        first("started")["pieces_total"].as_u64().unwrap()
    );
    for field in ["bytes_done", "down_rate", "up_rate", "peers", "downloaded", "uploaded"] {
        assert!(first("progress")[field].is_u64(), "{field}");
    }
    let last = events.last().unwrap();
    assert_eq!(first("finished")["downloaded"], 100_000);
    assert!(first("finished")["seconds"].is_f64() && last["event"].is_string());
}

#[test]
fn a_tracker_brings_them_together_and_seed_goes_on_sharing() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = vec![("one.bin".into(), noise(500_000, 4))];
    fs::write(dir.path().join("one.bin"), &bytes[0].1).unwrap();
    let mut tracker = Running::start(anabranch(dir.path()).args(["tracker", "--listen", "127.0.0.1:0"]));
    let (http, udp) = (tracker.line(), tracker.line());
    assert!(http.starts_with("http://127.0.0.1:") && udp.starts_with("udp://127.0.0.1:"), "{http} {udp}");
    let (sharer, ..) = share(dir.path(), &["one.bin", "--torrent-out", "t.torrent", "--tracker", &http]);
    let mut seed = Running::start(anabranch(dir.path()).args([
        "get",
        "t.torrent",
        "-o",
        "first",
        "--listen",
        "127.0.0.1:0",
        "--seed",
        "--json",
    ]));
    let address = seed.event("listening")["address"].as_str().unwrap().to_owned();
    seed.event("finished");
    assert_same(&dir.path().join("first"), &bytes);
    assert_eq!(sharer.interrupt().0, 0);
    let (code, _, stderr) = run(dir.path(), &get(&address, &["t.torrent", "-o", "second"]));
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("second"), &bytes);
    assert_eq!(seed.interrupt().0, 0);
    assert_eq!(tracker.interrupt().0, 0);
}

#[test]
fn who_shares_is_a_seed_to_trackers_from_the_first_announce_on() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(3_000_000, 8)).unwrap();
    let mut tracker = Running::start(anabranch(dir.path()).args(["tracker", "--listen", "127.0.0.1:0", "--json"]));
    let listening = tracker.event("listening");
    let (address, url) = (listening["address"].as_str().unwrap(), listening["http"].as_str().unwrap());
    let arguments = ["share", "one.bin", "--version", "1", "--listen", "127.0.0.1:0", "--json", "--tracker", url];
    let mut sharer = Running::start(anabranch(dir.path()).args(arguments));
    // Files are looked at before it announces.
    let started = sharer.event("started");
    sharer.event("tracker");
    // BEP 48. Nobody but one who has all of it announced.
    let mut stream = TcpStream::connect(address).unwrap();
    let hash = started["info_hash_v1"].as_str().unwrap().as_bytes();
    let escaped: String = hash.chunks(2).map(|digits| format!("%{}", String::from_utf8_lossy(digits))).collect();
    write!(stream, "GET /scrape?info_hash={escaped} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("8:completei1e") && answer.contains("10:incompletei0e"), "{answer}");
}

/// Who has only the files that it wanted parts from who has all (BEP 21), and is all that others need: metadata, Merkle layers and hashes
/// (BEP 9, BEP 52) come from it too.
#[test]
fn a_partial_seed_gives_what_it_has_to_who_knows_a_link() {
    for version in ["1", "2", "hybrid"] {
        let dir = tempfile::tempdir().unwrap();
        let files = tree(dir.path());
        let (sharer, address, magnet) = share(dir.path(), &["tree", "--version", version, "--piece-length", "16KiB"]);
        let link = magnet.split("&x.pe=").next().unwrap();
        let wanted = [link, "--files", "a.bin", "--json", "--no-pex"];
        let partial = get(&address, &[&wanted[..], &["-o", "partial", "--seed"]].concat());
        let mut partial = Running::start(anabranch(dir.path()).args(partial));
        let here = partial.event("listening")["address"].as_str().unwrap().to_owned();
        let parted = loop {
            let event = partial.event("peer_disconnected");
            if event["peer"] == address.as_str() {
                break event;
            }
        };
        // Both find it out, and either may be first.
        let reason = parted["reason"].as_str().unwrap();
        assert!(reason.contains("only upload") || reason == "closed by the peer", "{version}: {parted}");
        assert_eq!(sharer.interrupt().0, 0);
        let (code, _, stderr) = run(dir.path(), &get(&here, &[&wanted[..], &["-o", "out"]].concat()));
        assert_eq!(code, 0, "{version}: {stderr}");
        assert_same(&dir.path().join("out"), &files[..1]);
    }
}

#[test]
fn a_super_seeder_hears_what_one_has_that_leaves_at_once_and_is_who_has_everything() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(500_000, 4))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let (mut sharer, address, magnet) = share(dir.path(), &["one.bin", "--super-seed", "--torrent-out", "t.torrent"]);
    let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", "out"]));
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("out"), &file);
    assert_eq!(sharer.event("super_seeded")["uploaded"], 500_000);
    // Who lacks a piece is told that it is no use.
    sharer.interrupt();
    let damaged = [&file[0].1[..300_000], &[0; 200_000]].concat();
    fs::write(dir.path().join("one.bin"), damaged).unwrap();
    let partial = ["share", "t.torrent", "--super-seed", "--listen", "127.0.0.1:0", "--stop-after", "1s"];
    let (code, _, stderr) = run(dir.path(), &partial);
    assert!(code == 0 && stderr.contains("super-seeding is for who has all of it"), "{stderr}");
    let (code, _, stderr) = run(dir.path(), &["share", "one.bin", "--ppspp", "--super-seed"]);
    assert!(code == 2 && stderr.contains("--with-torrent"), "{stderr}");
}

#[test]
fn an_interrupted_get_says_so_and_goes_on_later() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = vec![("one.bin".into(), noise(3_000_000, 5))];
    fs::write(dir.path().join("one.bin"), &bytes[0].1).unwrap();
    let (_sharer, address, magnet) = share(dir.path(), &["one.bin", "--piece-length", "16KiB"]);
    let slow = get(&address, &[&magnet, "-o", "out", "--json", "--limit-down", "500K"]);
    let mut first = Running::start(anabranch(dir.path()).args(slow));
    for _ in 0..20 {
        first.event("piece");
    }
    assert_eq!(first.interrupt().0, 130);
    let mut second = Running::start(anabranch(dir.path()).args(get(&address, &[&magnet, "-o", "out", "--json"])));
    let kept = second.event("started")["pieces_have"].as_u64().unwrap();
    assert!(kept >= 20, "{kept}");
    second.event("finished");
    assert_same(&dir.path().join("out"), &bytes);
}

#[test]
fn a_content_that_is_cut_short_while_it_is_seeded_waits_until_it_is_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let file = vec![("one.bin".into(), noise(3_000_000, 5))];
    fs::write(dir.path().join("one.bin"), &file[0].1).unwrap();
    let (sharer, address, _) = share(dir.path(), &["one.bin", "--torrent-out", "one.torrent"]);
    let arguments = get(&address, &["one.torrent", "-o", "out", "--seed", "--json"]);
    let mut seeding = Running::start(anabranch(dir.path()).args(arguments));
    let seeder = seeding.event("listening")["address"].as_str().unwrap().to_owned();
    seeding.event("finished");
    drop(sharer);
    fs::File::options().write(true).open(dir.path().join("out/one.bin")).unwrap().set_len(1).unwrap();
    let arguments = get(&seeder, &["one.torrent", "-o", "again", "--json", "--no-pex"]);
    let mut asking = Running::start(anabranch(dir.path()).args(arguments));
    let paused = seeding.event("paused");
    assert!(paused["reason"].as_str().unwrap().contains("one.bin"), "{paused}");
    fs::write(dir.path().join("out/one.bin"), &file[0].1).unwrap();
    seeding.event("resumed");
    asking.event("finished");
    assert_same(&dir.path().join("again"), &file);
    assert_eq!(seeding.interrupt().0, 0);
}

#[test]
fn share_refuses_data_that_does_not_match() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("one.bin"), noise(100_000, 6)).unwrap();
    assert_eq!(run(dir.path(), &["create", "one.bin"]).0, 0);
    fs::write(path("one.bin"), noise(100_000, 7)).unwrap();
    let refused = |rest: &[&str], needle: &str| {
        let arguments = [&["share", "one.bin.torrent", "--listen", "127.0.0.1:0"], rest].concat();
        let (code, _, stderr) = run(dir.path(), &arguments);
        assert!(code == 4 && stderr.contains(needle), "{code}: {stderr}");
    };
    refused(&[], "no piece of one.bin");
    fs::write(path("one.bin"), b"short").unwrap();
    refused(&["--no-verify"], "one.bin is not in");
    fs::create_dir(path("elsewhere")).unwrap();
    refused(&["--data", "elsewhere"], "no file of one.bin is in elsewhere");
}

/// Runs `script` where it may mount; `None` where this machine does not allow that.
fn in_mount_namespace(script: &str, arguments: &[&str]) -> Option<(i32, String, String)> {
    let allowed = Command::new("unshare").args(["-m", "true"]).output().is_ok_and(|done| done.status.success());
    if !allowed {
        eprintln!("skipped: no mount namespaces here");
        return None;
    }
    let mut command = Command::new("unshare");
    Some(finish(command.args(["-m", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_anabranch")]).args(arguments)))
}

#[test]
fn a_full_disk_pauses_and_goes_on_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(6_000_000, 8)).unwrap();
    fs::create_dir(dir.path().join("small")).unwrap();
    let (_sharer, address, magnet) = share(dir.path(), &["one.bin"]);
    let script = r#"
        cd "$2" || exit 90
        trap 'kill $! 2>/dev/null' EXIT
        mount -t tmpfs -o size=2m none small || exit 91
        "$1" get "$4" --peer "$3" --listen 127.0.0.1:0 -o small --json > events 2>/dev/null &
        for i in $(seq 300); do grep -q '"event":"paused"' events && break; sleep 0.1; done
        grep '"event":"paused"' events || exit 92
        mount -o remount,size=32m small || exit 93
        for i in $(seq 300); do kill -0 $! 2>/dev/null || break; sleep 0.1; done
        kill -0 $! 2>/dev/null && exit 96
        wait $! || exit 94
        grep -q '"event":"resumed"' events || exit 95
        cmp one.bin small/one.bin
    "#;
    let Some((code, stdout, stderr)) = in_mount_namespace(script, &[dir.path().to_str().unwrap(), &address, &magnet])
    else {
        return;
    };
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("space"), "{stdout}");
}

#[test]
fn a_folder_that_cannot_be_written_ends_it_and_the_same_command_goes_on_when_it_can() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(300_000, 9)).unwrap();
    fs::create_dir(dir.path().join("locked")).unwrap();
    let (_sharer, address, magnet) = share(dir.path(), &["one.bin"]);
    let script = r#"
        cd "$2" || exit 90
        mount -t tmpfs -o ro none locked || exit 91
        "$1" get "$4" --peer "$3" --listen 127.0.0.1:0 -o locked
        test $? = 5 || exit 92
        mount -o remount,rw locked || exit 93
        "$1" get "$4" --peer "$3" --listen 127.0.0.1:0 -o locked || exit 94
        cmp one.bin locked/one.bin
    "#;
    let Some((code, stdout, stderr)) = in_mount_namespace(script, &[dir.path().to_str().unwrap(), &address, &magnet])
    else {
        return;
    };
    assert!(code == 0 && stderr.contains("read-only"), "{code}: {stdout}{stderr}");
}
