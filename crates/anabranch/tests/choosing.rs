//! What a content holds is shown before anything of it is fetched, and its files are chosen: by pattern, by number, in a terminal.

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{anabranch, assert_same, finish, get, noise, run, share, tree};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// What is in a folder, but for what the tests themselves leave there.
fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "cache").collect();
    names.sort();
    names
}

#[test]
fn show_asks_peers_what_a_magnet_link_names() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path());
    for version in ["1", "2", "hybrid"] {
        let elsewhere = dir.path().join(format!("elsewhere-{version}"));
        fs::create_dir(&elsewhere).unwrap();
        let torrent = format!("{version}.torrent");
        let arguments = ["tree", "--version", version, "--piece-length", "16KiB", "--torrent-out", &torrent];
        let (sharer, _, magnet) = share(dir.path(), &[&arguments[..], &["--tracker", "udp://127.0.0.1:1"]].concat());
        // The link itself names the peer.
        let show = ["show", &magnet, "--listen", "127.0.0.1:0"];
        let saving = [&show[..], &["--json", "--save-torrent", "saved.torrent"]].concat();
        let (code, stdout, stderr) = run(&elsewhere, &saving);
        assert_eq!(code, 0, "{version}: {stderr}");
        let (shown, of_file) = (json(&stdout), json(&run(dir.path(), &["show", &torrent, "--json"]).1));
        for key in
            ["kind", "name", "version", "info_hash_v1", "info_hash_v2", "size", "piece_count", "files", "trackers"]
        {
            assert_eq!(shown[key], of_file[key], "{version}: {key}");
        }
        assert_eq!(names(&elsewhere), ["saved.torrent"], "no file of the content, nor of ours");
        let (code, text, stderr) = run(&elsewhere, &["verify", "saved.torrent", ".."]);
        assert_eq!(code, 0, "{version}: {text}{stderr}");
        assert_eq!(sharer.interrupt().0, 0);
        // It was kept: nobody has to be asked again.
        let (code, text, stderr) = run(&elsewhere, &show);
        assert!(code == 0 && text.contains("tree/sub/deep/c.bin"), "{version}: {text}{stderr}");
        let (code, _, stderr) = run(&elsewhere, &["show", &magnet, "--save-torrent", "again.torrent"]);
        assert_eq!(code, 0, "{version}: {stderr}");
        assert_eq!(
            fs::read(elsewhere.join("again.torrent")).unwrap(),
            fs::read(elsewhere.join("saved.torrent")).unwrap()
        );
        // What the link says itself.
        let (code, stdout, _) = run(&elsewhere, &["show", &magnet, "--offline", "--json"]);
        assert_eq!((code, &json(&stdout)["kind"]), (0, &"magnet".into()));
    }
    assert_same(dir.path(), &files);
}

#[test]
fn show_ends_and_says_why_where_nobody_has_the_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let link = "magnet:?xt=urn:btih:c12fe1c06bba254a9dc9f519b335aa7c1367a88a";
    let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let cases: [(&[&str], &[&str]); 4] = [
        (&["show", link], &["nobody is known to fetch from"]),
        (&["get", "--list", link], &["nobody is known to fetch from"]),
        (
            &["show", link, "--peer", &refused, "--give-up", "1s", "--listen", "127.0.0.1:0"],
            &[&refused, "it refuses connections", "nothing came for 1s"],
        ),
        (
            &["get", "--list", link, "--peer", &refused, "--give-up", "1s", "--json"],
            &[&refused, "it refuses connections", "nothing came for 1s"],
        ),
    ];
    for (arguments, needles) in cases {
        let (code, stdout, stderr) = run(dir.path(), arguments);
        assert_eq!((code, stdout.as_str()), (6, ""), "{arguments:?}: {stderr}");
        for needle in needles {
            assert!(stderr.contains(needle), "{arguments:?} says nothing of `{needle}`: {stderr}");
        }
    }
    assert_eq!(names(dir.path()), [""; 0]);
    let (code, _, stderr) = run(dir.path(), &["show", link, "--offline", "--save-torrent", "x.torrent"]);
    assert!(code == 2 && stderr.contains("leave --offline out"), "{stderr}");
    let (code, text, _) = run(dir.path(), &["show", link, "--offline"]);
    assert!(code == 0 && text.contains("info-hash v1"), "{text}");
}

#[test]
fn the_list_has_the_numbers_by_which_files_are_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path());
    for version in ["1", "hybrid"] {
        let torrent = format!("{version}.torrent");
        let arguments = ["tree", "--version", version, "--torrent-out", &torrent];
        let (_sharer, address, magnet) = share(dir.path(), &arguments);
        for source in [&torrent, &magnet] {
            let list = |rest: &[&str]| {
                let (code, text, stderr) = run(dir.path(), &get(&address, &[&["--list", source], rest].concat()));
                assert_eq!(code, 0, "{stderr}");
                text
            };
            let text = list(&[]);
            assert!(text.starts_with("5 files of tree, 357.0 KiB\n1   293.0 KiB  tree/a.bin\n2 "), "{text}");
            assert!(text.ends_with("4    64.0 KiB  tree/sub/deep/c.bin\n5         0 B  tree/sub/none\n"), "{text}");
            let some = list(&["--files", "*.txt", "--select-file", "1"]);
            assert_eq!(some.lines().next(), Some("2 of 5 files of tree, 293.0 KiB"), "{some}");
            let object = json(&list(&["--select-file", "2-3", "--json"]));
            let wanted = object["files"].as_array().unwrap().iter().filter(|file| file["wanted"] == true);
            let numbers: Vec<&Value> = wanted.map(|file| &file["number"]).collect();
            assert_eq!(numbers, [2, 3]);

            let out = format!("out-{version}-{}", source.len());
            let chosen = ["-o", &out, "--select-file", "3,5-5", "--files", "c.bin"];
            let (code, _, stderr) = run(dir.path(), &get(&address, &[&[source.as_str()], &chosen[..]].concat()));
            assert_eq!(code, 0, "{stderr}");
            assert_same(&dir.path().join(&out), &files[2..]);
            assert!(!dir.path().join(&out).join("tree/a.bin").exists());
        }
    }
}

#[test]
fn a_choice_that_names_no_file_is_an_error_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let (_sharer, address, magnet) = share(dir.path(), &["tree", "--torrent-out", "t.torrent"]);
    let by_link = format!("{magnet}&so=77");
    for (source, choice, needle) in [
        ("t.torrent", &["--select-file", "6"][..], "there is no file 6 of tree, which has 5 files"),
        (&magnet, &["--select-file", "2,4-9"], "there are no files 4 to 9 of tree"),
        (&magnet, &["--files", "*.mkv"], "`*.mkv` matches no file of tree"),
        (&by_link, &[], "so="),
    ] {
        let (code, _, stderr) = run(dir.path(), &get(&address, &[&[source, "-o", "out"], choice].concat()));
        assert!(code == 3 && stderr.contains(needle), "{source} {choice:?}: {code} {stderr}");
        let (code, _, stderr) = run(dir.path(), &get(&address, &[&[source, "--list"], choice].concat()));
        assert!(code == 3 && stderr.contains(needle), "{source} {choice:?}: {code} {stderr}");
    }
    assert!(!dir.path().join("out").exists());
    for (arguments, needle) in [
        (&["get", "t.torrent", "--select-file", "0"][..], "numbered from 1"),
        (&["get", "t.torrent", "--select-file", "3-1"], "ends before it begins"),
        (&["get", "t.torrent", "t.torrent", "--select-file", "1"], "give exactly one"),
        (&["get", "t.torrent", "--choose"], "there is none: see the files with --list"),
        (&["get", "t.torrent", "--choose", "--files", "*"], "leave it out, or `--files`"),
    ] {
        let (code, _, stderr) = run(dir.path(), arguments);
        assert!(code == 2 && stderr.contains(needle), "{arguments:?}: {code} {stderr}");
    }
    // What is said in general gives way to what is said now.
    let mut listing = anabranch(dir.path());
    let (code, _, stderr) = finish(listing.env("ANABRANCH_CHOOSE", "yes").args(["get", "t.torrent", "--list"]));
    assert_eq!(code, 0, "{stderr}");
}

/// A program in a terminal of its own.
struct Terminal {
    child: Child,
    keyboard: File,
    shown: std::sync::mpsc::Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    fn start(dir: &Path, arguments: &[&str]) -> Self {
        let (mut ours, mut theirs) = (0, 0);
        // SAFETY: the call fills in two descriptors; name and settings may be left out.
        let opened = unsafe {
            libc::openpty(
                &raw mut ours,
                &raw mut theirs,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        assert_eq!(opened, 0);
        // SAFETY: both were just opened, and nobody else has them.
        let (ours, theirs) = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        let mut command = anabranch(dir);
        command.args(arguments).stdin(theirs.try_clone().unwrap()).stdout(Stdio::null()).stderr(theirs);
        let child = command.spawn().unwrap();
        // The other end has to be the program's alone, so that it ends with the program.
        drop(command);
        let keyboard = File::from(ours);
        let mut screen = keyboard.try_clone().unwrap();
        let (show, shown) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(1..) = screen.read(&mut bytes).inspect(|len| drop(show.send(bytes[..*len].to_vec()))) {}
        });
        Self { child, keyboard, shown, seen: String::new() }
    }

    /// Waits until `text` is shown.
    fn until(&mut self, text: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.seen.contains(text) {
            let more = self.shown.recv_timeout(end.saturating_duration_since(Instant::now()));
            let more = more.unwrap_or_else(|_| panic!("`{text}` is not shown: {}", self.seen));
            self.seen.push_str(&String::from_utf8_lossy(&more));
        }
        self.seen.clear();
    }

    /// Its exit code.
    fn end(&mut self) -> Option<i32> {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!(
            "it does not end: {}",
            self.shown.try_iter().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect::<String>()
        );
    }

    fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn files_are_chosen_in_a_terminal_before_any_is_fetched() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = tree(dir.path());
    // Files that are called like numbers and ranges.
    for (name, length) in [("2", 30_000), ("1-3", 20_000)] {
        let file = (PathBuf::from("tree/z").join(name), noise(length, length as u64));
        fs::create_dir_all(dir.path().join("tree/z")).unwrap();
        fs::write(dir.path().join(&file.0), &file.1).unwrap();
        files.push(file);
    }
    let (_sharer, address, magnet) = share(dir.path(), &["tree", "--torrent-out", "t.torrent"]);
    for (number, source) in ["t.torrent", &magnet].into_iter().enumerate() {
        let out = format!("out-{number}");
        let mut terminal = Terminal::start(dir.path(), &get(&address, &[source, "-o", &out, "--choose"]));
        terminal.until("or * for all): ");
        // Asked first, made afterwards, but for the folder that the sandbox is closed with.
        assert!(fs::read_dir(dir.path().join(&out)).is_ok_and(|mut found| found.next().is_none()));
        terminal.type_in("8\n");
        terminal.until("there is no file 8 of tree, which has 7 files");
        terminal.type_in("*.mkv\n");
        terminal.until("`*.mkv` matches no file of tree");
        terminal.type_in("3, ./2 , c.bin\n");
        assert_eq!(terminal.end(), Some(0));
        let chosen: Vec<_> = files
            .iter()
            .filter(|(path, _)| path.ends_with("b.txt") || path.ends_with("c.bin") || path.ends_with("z/2"))
            .cloned()
            .collect();
        assert_eq!(chosen.len(), 3);
        assert_same(&dir.path().join(&out), &chosen);
        assert!(
            !dir.path().join(&out).join("tree/a.bin").exists() && !dir.path().join(&out).join("tree/z/1-3").exists()
        );
    }
    // Ctrl-C, and the end of what is typed.
    for (typed, code) in [("\x03", 130), ("\x04", 2)] {
        let mut terminal = Terminal::start(dir.path(), &get(&address, &[&magnet, "-o", "out", "--choose"]));
        terminal.until("or * for all): ");
        if typed == "\x03" {
            // This terminal controls no session, so the key does nothing by itself.
            common::signal(terminal.child.id(), "INT");
        } else {
            terminal.type_in(typed);
        }
        assert_eq!(terminal.end(), Some(code));
        assert!(!dir.path().join("out").exists());
    }
}
