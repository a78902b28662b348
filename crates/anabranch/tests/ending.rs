//! What happens once a content is complete: a command of the user's, sharing that ends by itself, a torrent that is saved.

mod common;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anabranch_content::metainfo::Metainfo;
use common::{Running, anabranch, assert_same, finish, get, noise, run, share, signal, tree};
use serde_json::Value;

/// The events of a kind in what was printed.
fn events(stdout: &str, name: &str) -> Vec<Value> {
    let events = stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event"] == name).collect()
}

/// Waits until a file is there.
fn until_there(path: &Path) {
    let end = Instant::now() + Duration::from_secs(60);
    while !path.exists() {
        assert!(Instant::now() < end, "{} is not made", path.display());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process is there that does something.
fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

#[test]
fn a_command_runs_once_for_each_content_that_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path());
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    let (mut sharer, address, _) = share(dir.path(), &["tree", "one.bin", "--version", "1"]);
    sharer.event("started");
    let mut sources = Vec::new();
    for name in ["tree", "one.bin"] {
        let torrent = format!("{name}.torrent");
        assert_eq!(run(dir.path(), &["create", name, "--version", "1", "-o", &torrent, "-q"]).0, 0);
        sources.push(torrent);
    }
    // What it prints is no event.
    let command = "test -e \"$CONTENT_PATH\" && echo said && printf '%s|%s|%s|%s\\n' \"$CONTENT_NAME\" \"$CONTENT_PATH\" \
                   \"$CONTENT_BYTES\" \"$CONTENT_INFO_HASH\" >> told";
    let arguments = ["-o", "out", "--json", "--on-complete", command];
    let arguments = [sources.iter().map(String::as_str).collect(), arguments.to_vec()].concat();
    let (code, stdout, stderr) = run(dir.path(), &get(&address, &arguments));
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("said"), "{stderr}");
    let ends = events(&stdout, "on_complete");
    assert!(ends.len() == 2 && ends.iter().all(|end| end["exit_code"] == 0 && end["reason"].is_null()), "{ends:?}");
    let told = fs::read_to_string(dir.path().join("told")).unwrap();
    let mut lines: Vec<&str> = told.lines().collect();
    lines.sort_unstable();
    let out = dir.path().join("out").display().to_string();
    assert!(lines.len() == 2 && lines[0].starts_with(&format!("one.bin|{out}/one.bin|100000|")), "{told}");
    assert!(lines[1].starts_with(&format!("tree|{out}/tree|365554|")), "{told}");
    let hash = ends[0]["torrent"].as_str().unwrap();
    assert!(told.contains(hash), "{told}");
    assert_same(&dir.path().join("out"), &files);
}

#[test]
fn names_of_strangers_are_no_commands() {
    let dir = tempfile::tempdir().unwrap();
    let names = [
        "$(touch owned)",
        "`touch owned`",
        "-rf",
        "a\nb",
        "'; touch owned; '",
        "\"; touch owned; \"",
        "${HOME}",
        "*",
        "a b",
    ];
    for (number, name) in names.into_iter().enumerate() {
        let bytes = noise(20_000 + number, number as u64);
        let folder = dir.path().join(format!("in-{number}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(name), &bytes).unwrap();
        let path = folder.join(name);
        let (_sharer, address, magnet) = share(dir.path(), &[path.to_str().unwrap()]);
        let command = "cp -- \"$CONTENT_PATH\" copy && printf %s \"$CONTENT_NAME\" > name";
        let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", "out", "--on-complete", command]));
        assert_eq!(code, 0, "{name:?}: {stderr}");
        assert_eq!(fs::read(dir.path().join("copy")).unwrap(), bytes, "{name:?}");
        assert_eq!(fs::read_to_string(dir.path().join("name")).unwrap(), name);
    }
    assert!(!dir.path().join("owned").exists());
}

#[test]
fn a_command_that_fails_is_told_and_costs_nothing_but_the_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    let (_sharer, address, magnet) = share(dir.path(), &["one.bin"]);
    for (command, exit_code, needle) in
        [("exit 3", Value::from(3), "ended with exit code 3"), ("kill -9 $$", Value::Null, "was ended by signal 9")]
    {
        let arguments = get(&address, &[&magnet, "-o", "out", "--on-complete", command]);
        let (code, _, stderr) = run(dir.path(), &arguments);
        assert!(code == 1 && stderr.contains("error: one.bin: ") && stderr.contains(needle), "{code} {stderr}");
        assert_eq!(stderr.matches("--on-complete").count(), 1, "{stderr}");
        let (code, stdout, _) = run(dir.path(), &[&arguments[..], &["--json"]].concat());
        let ends = events(&stdout, "on_complete");
        assert_eq!((code, ends.len(), &ends[0]["exit_code"]), (1, 1, &exit_code));
        assert!(ends[0]["reason"].as_str().unwrap().contains(needle), "{ends:?}");
    }
    assert_same(&dir.path().join("out"), &[("one.bin".into(), noise(100_000, 1))]);
}

#[test]
fn a_command_ends_with_the_program_and_what_it_ignores_stays_ignored() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    let (_sharer, address, magnet) = share(dir.path(), &["one.bin"]);
    // The shell and what it started.
    let command = "sleep 600 & echo $! > child; echo $$ > shell; mv shell ready; wait";
    let mut getting = anabranch(dir.path());
    let getting =
        Running::start(getting.args(get(&address, &[&magnet, "-o", "out", "--json", "--on-complete", command])));
    until_there(&dir.path().join("ready"));
    let pid = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap().trim().to_owned();
    let pids = [pid("child"), pid("ready")];
    assert!(pids.iter().all(|pid| is_alive(pid)));
    let (code, stdout) = getting.interrupt();
    assert_eq!((code, events(&stdout, "finished").len()), (130, 1), "{stdout}");
    let end = Instant::now() + Duration::from_secs(60);
    while pids.iter().any(|pid| is_alive(pid)) {
        assert!(Instant::now() < end, "the command goes on");
        thread::sleep(Duration::from_millis(20));
    }
    // As under `nohup`: the terminal goes, and get and its command go on.
    let plain = anabranch(dir.path());
    let mut command = Command::new("sh");
    command.current_dir(dir.path()).args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(plain.get_program());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let hook = "echo $$ > hup; mv hup waits; while [ ! -e go ]; do sleep 0.05; done; echo done > went";
    command.args(get(&address, &[&magnet, "-o", "out", "--on-complete", hook]));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    until_there(&dir.path().join("waits"));
    signal(child.id(), "HUP");
    signal(pid("waits").parse().unwrap(), "HUP");
    fs::write(dir.path().join("go"), "").unwrap();
    let mut rest = String::new();
    child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(dir.path().join("went").exists());
}

#[test]
fn sharing_ends_at_its_ratio_and_after_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<(PathBuf, Vec<u8>)> =
        [("one.bin", 300_000), ("two.bin", 400_000)].map(|(name, len)| (name.into(), noise(len, len as u64))).into();
    for (name, bytes) in &files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    // Each content by itself: one is fetched twice and stops, the other goes on until it is fetched too.
    let (mut sharer, address, magnet) = share(dir.path(), &["one.bin", "two.bin", "--stop-ratio", "2"]);
    let other = sharer.event("started")["magnet"].as_str().unwrap().to_owned();
    // Whichever was hashed first.
    let [magnet, other] = if magnet.contains("one.bin") { [magnet, other] } else { [other, magnet] };
    let fetch = |magnet: &str, out: &str| {
        let (code, _, stderr) = run(dir.path(), &get(&address, &[magnet, "-o", out]));
        assert_eq!(code, 0, "{stderr}");
    };
    fetch(&magnet, "out-1");
    fetch(&magnet, "out-2");
    let stopped = sharer.event("stopped");
    assert_eq!((&stopped["name"], &stopped["reason"]), (&"one.bin".into(), &"ratio".into()));
    assert!(stopped["ratio"].as_f64().unwrap() >= 2.0 && stopped["uploaded"].as_u64().unwrap() >= 600_000, "{stopped}");
    let arguments = [&magnet, "-o", "out-3", "--give-up", "1s"];
    let (code, _, stderr) = run(dir.path(), &get(&address, &arguments));
    assert_eq!(code, 6, "it is not shared any more: {stderr}");
    fetch(&other, "out-1");
    fetch(&other, "out-2");
    assert_eq!(sharer.event("stopped")["name"], "two.bin");
    assert_eq!(sharer.child.wait().unwrap().code(), Some(0));
    assert_same(&dir.path().join("out-2"), &files);

    let (mut sharer, address, magnet) = share(dir.path(), &["one.bin", "--limit-up", "1M"]);
    let arguments = ["-o", "out-4", "--json", "--seed", "--stop-after", "1s", "--stop-ratio", "50"];
    let (code, stdout, stderr) = run(dir.path(), &get(&address, &[&[magnet.as_str()], &arguments[..]].concat()));
    assert_eq!(code, 0, "{stderr}");
    let stopped = &events(&stdout, "stopped")[0];
    assert!(stopped["reason"] == "time" && stopped["seconds"].as_f64().unwrap() >= 1.0, "{stopped}");
    sharer.child.kill().unwrap();
    let (code, _, stderr) = run(dir.path(), &["share", "one.bin", "--listen", "127.0.0.1:0", "--stop-after", "1s"]);
    assert!(code == 0 && stderr.contains("no longer shared: --stop-after is over"), "{stderr}");
    // Nothing was ever shared: that is no end in good order.
    assert_eq!(run(dir.path(), &["create", "one.bin", "-o", "one.torrent"]).0, 0);
    fs::write(dir.path().join("one.bin"), noise(300_000, 9)).unwrap();
    let arguments = ["share", "one.torrent", "two.bin", "--listen", "127.0.0.1:0", "--stop-after", "1s"];
    let (code, _, stderr) = run(dir.path(), &arguments);
    assert!(code == 4 && stderr.contains("no piece of one.bin"), "{code} {stderr}");
    for (arguments, needle) in [
        (&["get", "one.torrent", "--stop-ratio", "1"][..], "`--stop-ratio` says when sharing ends"),
        (&["share", "two.bin", "--stop-ratio", "0"], "above 0"),
        (&["share", "two.bin", "--stop-after", "5"], "with unit s, m, h or d"),
    ] {
        let (code, _, stderr) = run(dir.path(), arguments);
        assert!(code == 2 && stderr.contains(needle), "{arguments:?}: {code} {stderr}");
    }
}

#[test]
fn flags_with_nothing_to_apply_to_are_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    assert_eq!(run(dir.path(), &["create", "one.bin", "-o", "one.torrent"]).0, 0);
    for (rest, needle) in [
        (&["--comment", "hello"][..], "`anabranch edit` changes it"),
        (&["--web-seed", "http://127.0.0.1/"], "`anabranch edit` changes it"),
        (&["--source", "X"], "`anabranch edit` changes it"),
        (&["--private"], "`anabranch edit` changes it"),
        (&["--version", "1"], "give the file or folder instead"),
        (&["--piece-length", "1MiB"], "give the file or folder instead"),
        (&["--times"], "give the file or folder instead"),
        (&["--exclude", "*.tmp"], "give the file or folder instead"),
        (&["--include", "*.mkv"], "give the file or folder instead"),
    ] {
        let (code, _, stderr) = run(dir.path(), &[&["share", "one.torrent"], rest].concat());
        assert!(code == 2 && stderr.contains(needle) && stderr.contains(rest[0]), "{rest:?}: {code} {stderr}");
    }
    for rest in [&["--data", "."][..], &["--no-verify"]] {
        let (code, _, stderr) = run(dir.path(), &[&["share", "one.bin"], rest].concat());
        assert!(code == 2 && stderr.contains(rest[0]) && stderr.contains("none is given"), "{rest:?}: {code} {stderr}");
    }
    // What is said in general need not apply to everything.
    let mut sharing = anabranch(dir.path());
    sharing.env("ANABRANCH_COMMENT", "hello").env("ANABRANCH_STOP_AFTER", "1s");
    let (code, _, stderr) = finish(sharing.args(["share", "one.torrent", "--listen", "127.0.0.1:0"]));
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn a_torrent_is_saved_though_nobody_sends_its_hashes() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let create = ["create", "tree", "-o", "whole.torrent", "--version", "hybrid", "--piece-length", "16KiB"];
    assert_eq!(run(dir.path(), &[&create[..], &["--tracker", "udp://127.0.0.1:1"]].concat()).0, 0);
    let whole = Metainfo::parse(&fs::read(dir.path().join("whole.torrent")).unwrap()).unwrap();
    let bare = Metainfo { piece_layers: Default::default(), ..whole.clone() };
    fs::write(dir.path().join("bare.torrent"), bare.encode()).unwrap();
    fs::create_dir_all(dir.path().join("part/tree/sub")).unwrap();
    fs::copy(dir.path().join("tree/sub/b.txt"), dir.path().join("part/tree/sub/b.txt")).unwrap();
    let get = |rest: &[&str]| run(dir.path(), &[&["get", "bare.torrent", "--listen", "127.0.0.1:0"], rest].concat());
    let ((code, _, stderr), part) = thread::scope(|scope| {
        let part = scope.spawn(|| get(&["-o", "part", "--files", "b.txt", "--save-torrent", "part.torrent"]));
        (get(&["-o", ".", "--save-torrent", "saved.torrent"]), part.join().unwrap())
    });
    assert_eq!(code, 0, "{stderr}");
    let saved = Metainfo::parse(&fs::read(dir.path().join("saved.torrent")).unwrap()).unwrap();
    assert_eq!((saved.piece_layers, saved.trackers), (whole.piece_layers, whole.trackers));
    // What is not there tells nothing of its hashes.
    let (code, _, stderr) = part;
    assert!(code == 6 && stderr.contains("the torrent of tree cannot be saved"), "{code} {stderr}");
    assert!(!dir.path().join("part.torrent").exists());

    // A peer that has the content, and none of the hashes: without the content they cannot be had.
    let (_sharer, address, magnet) = share(dir.path(), &["bare.torrent"]);
    let with = ["--save-torrent", "fetched.torrent", "--listen", "127.0.0.1:0", "--peer", &address];
    let (code, _, stderr) = run(dir.path(), &[&["show", &magnet, "--give-up", "3s"], &with[..]].concat());
    assert!(code == 6 && stderr.contains("the torrent of tree cannot be saved"), "{code} {stderr}");
    let (code, _, stderr) = run(dir.path(), &[&["get", &magnet, "-o", "out"], &with[..]].concat());
    assert_eq!(code, 0, "{stderr}");
    let (code, text, stderr) = run(dir.path(), &["verify", "fetched.torrent", "out"]);
    assert_eq!(code, 0, "{text}{stderr}");
}
