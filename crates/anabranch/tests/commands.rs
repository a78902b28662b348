//! Commands that need no network, settings, help, and what bad input leads to.

mod common;

use std::fs;
use std::process::Stdio;

use common::{Running, anabranch, finish, noise, run, tree};
use serde_json::Value;

const COMMANDS: [&str; 23] = [
    "create",
    "edit",
    "show",
    "get",
    "share",
    "live",
    "verify",
    "send",
    "receive",
    "receipt",
    "tracker",
    "paths",
    "ping",
    "keys",
    "keys own",
    "keys list",
    "keys forget",
    "net",
    "net up",
    "net link",
    "net check",
    "completions",
    "man",
];

#[test]
fn create_show_and_verify_agree_for_every_version() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree(dir.path());
    for (version, hashes) in [("1", (true, false)), ("2", (false, true)), ("hybrid", (true, true))] {
        let torrent = format!("{version}.torrent");
        let arguments = ["create", "tree", "-o", &torrent, "--version", version, "--piece-length", "32KiB"];
        let more = [
            "--tracker",
            "http://127.0.0.1:1/announce",
            "--tracker",
            "udp://127.0.0.1:2",
            "--comment",
            "hello",
            "--private",
        ];
        let (code, magnet, stderr) = run(dir.path(), &[&arguments[..], &more].concat());
        assert_eq!(code, 0, "{stderr}");
        let (code, json, _) = run(dir.path(), &["show", &torrent, "--json"]);
        let shown: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(code, 0);
        assert_eq!((shown["info_hash_v1"].is_string(), shown["info_hash_v2"].is_string()), hashes);
        assert_eq!(shown["magnet"], magnet.trim());
        assert_eq!(
            (shown["piece_length"].as_u64(), &shown["comment"], &shown["private"]),
            (Some(32768), &"hello".into(), &true.into())
        );
        assert_eq!(shown["trackers"].as_array().unwrap().len(), 2);
        assert_eq!(shown["size"], files.iter().map(|(_, bytes)| bytes.len()).sum::<usize>());
        let listed = shown["files"].as_array().unwrap().iter().filter(|file| file["kind"] == "file").count();
        assert_eq!(listed, files.len());
        let (code, text, _) = run(dir.path(), &["show", &torrent]);
        assert!(code == 0 && text.contains("tree/sub/deep/c.bin") && !text.contains("(padding)"), "{text}");
        let (code, text, _) = run(dir.path(), &["verify", &torrent, "."]);
        assert!(code == 0 && text.contains("tree: complete"), "{text}");
        let (code, text, _) = run(dir.path(), &["show", "--offline", magnet.trim()]);
        assert!(code == 0 && text.contains("info-hash"), "{text}");
    }
}

#[test]
fn verify_says_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    assert_eq!(
        run(dir.path(), &["create", "tree", "-o", "t.torrent", "--version", "hybrid", "--piece-length", "16KiB"]).0,
        0
    );
    let mut bytes = fs::read(dir.path().join("tree/a.bin")).unwrap();
    bytes[40_000] ^= 1;
    fs::write(dir.path().join("tree/a.bin"), bytes).unwrap();
    fs::remove_file(dir.path().join("tree/sub/b.txt")).unwrap();
    let (code, json, _) = run(dir.path(), &["verify", "t.torrent", ".", "--json"]);
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &report["complete"]), (4, &false.into()));
    assert_eq!(report["bad_pieces"][0], serde_json::json!([2, 2]));
    let state = |path: &str| {
        let files = report["files"].as_array().unwrap();
        files.iter().find(|file| file["path"] == path).unwrap()["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(state("tree/a.bin"), "damaged");
    assert_eq!(state("tree/sub/b.txt"), "missing");
    assert_eq!(state("tree/sub/deep/c.bin"), "complete");
    let (code, text, _) = run(dir.path(), &["verify", "t.torrent", "."]);
    assert!(code == 4 && text.contains("bad pieces: 2 ") && text.contains("not complete"), "{text}");
    let (code, _, stderr) = run(dir.path(), &["verify", "t.torrent", "tree"]);
    assert!(code == 4 && stderr.contains("give the folder above it"), "{stderr}");
}

#[test]
fn create_does_not_overwrite_unasked_and_repeats_itself() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    let create = |rest: &[&str]| run(dir.path(), &[&["create", "one.bin", "--no-date"], rest].concat());
    assert_eq!(create(&[]).0, 0);
    let (code, _, stderr) = create(&[]);
    assert!(code == 2 && stderr.contains("--force"), "{stderr}");
    assert_eq!(create(&["--force"]).0, 0);
    assert_eq!(create(&["-o", "again.torrent"]).0, 0);
    let read = |name: &str| fs::read(dir.path().join(name)).unwrap();
    assert_eq!(read("one.bin.torrent"), read("again.torrent"));
    for version in ["1", "2", "hybrid"] {
        let (code, _, stderr) = create(&["-o", "named.torrent", "-f", "--name", "other", "--version", version]);
        assert_eq!(code, 0, "{stderr}");
        let (_, text, _) = run(dir.path(), &["show", "named.torrent"]);
        assert!(text.contains("other") && !text.contains("one.bin"), "{text}");
    }
}

#[test]
fn bad_input_is_named_with_its_remedy_on_one_line() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("bad.torrent"), "not bencode").unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    fs::create_dir(dir.path().join("hollow")).unwrap();
    assert_eq!(run(dir.path(), &["create", "one.bin"]).0, 0);
    let good = "one.bin.torrent";
    let link = "magnet:?xt=urn:btih:c12fe1c06bba254a9dc9f519b335aa7c1367a88a";
    let cases: &[(&[&str], i32, &str)] = &[
        (&["show", "nowhere.torrent"], 3, "cannot read nowhere.torrent"),
        (&["show", "bad.torrent"], 3, "bad.torrent is not a torrent"),
        (&["show", "."], 3, "it is a folder"),
        (&["show", "magnet:?dn=x"], 3, "no info-hash"),
        (&["get", "http://127.0.0.1/x.torrent"], 3, "download the .torrent file first"),
        (&["get", good, good], 3, "name each content once"),
        (&["get", good, "--peer", "192.0.2.7"], 2, "192.0.2.7:6881"),
        (&["get", good, "--peer", "2001:db8::7"], 2, "[2001:db8::7]:port"),
        (&["get", good, "--peer", "[1-1,10.0.0.1]:80", "--sciond", "127.0.0.1:1"], 6, "no SCION daemon answers"),
        (&["get", good, "--sciond", "nowhere"], 2, "HOST:PORT"),
        (&["get", good, "--peer", "no-such-host.invalid:1"], 6, "cannot look up `no-such-host.invalid`"),
        (&["get", good, "--listen", "192.0.2.7:0"], 6, "give an address of this machine"),
        (&["get", good, "--limit-up", "fast"], 2, "500K, 10M or 1.5MiB"),
        (&["get", good, "--limit-up", "0"], 2, "more than 0"),
        (&["get", good, "--files", "["], 2, "--files"),
        (&["get", good, "--files", "*.mkv"], 3, "`*.mkv` matches no file of one.bin, which has one.bin"),
        (&["get", good, "--tracker", "gopher://x"], 2, "gopher"),
        (&["get", good, "--policy", "nowhere"], 3, "the policy file cannot be read"),
        (&["get", good, "--policy", "bad.torrent"], 3, "bad.torrent"),
        (&["get", good, "--key", "nowhere/key"], 5, "cannot use the key file nowhere/key"),
        (&["send", "one.bin", "--policy", "nowhere"], 3, "the policy file cannot be read"),
        (
            &["create", "nowhere"],
            3,
            "cannot read nowhere: No such file or directory (os error 2); give a file or a folder",
        ),
        (&["create", "nowhere", "--dry-run"], 3, "give a file or a folder"),
        (
            &["send", "nowhere"],
            3,
            "cannot read nowhere: No such file or directory (os error 2); give a file or a folder",
        ),
        (&["send", "one.bin", "nowhere"], 3, "cannot read nowhere"),
        (&["create", "hollow"], 3, "hollow holds no bytes to share; put a file"),
        (&["create", "hollow", "--exclude", "*.tmp"], 3, "hollow holds no bytes to share; put a file"),
        (&["create", "one.bin", "-o", "x", "--piece-length", "17KiB"], 2, "power of two"),
        (&["create", "one.bin", "-o", "nowhere/x.torrent"], 5, "cannot write nowhere/x.torrent"),
        (&["create", "one.bin", "--version", "3"], 2, "hybrid"),
        (&["share", "nowhere"], 3, "cannot read"),
        (&["share", link], 3, "get --seed"),
        (&["share", "one.bin", "one.bin", "--torrent-out", "x"], 2, "exactly one"),
        (&["verify", good, "nowhere"], 3, "nowhere is not a folder"),
        (&["tracker", "--listen", "192.0.2.7:0"], 6, "cannot listen on 192.0.2.7:0"),
        (&["gett"], 2, "get"),
        (&[], 2, "Usage"),
    ];
    for (arguments, expected, needle) in cases {
        let mut arguments = arguments.to_vec();
        if ["share"].contains(arguments.first().unwrap_or(&"")) {
            arguments.extend(["--listen", "127.0.0.1:0"]);
        }
        let (code, stdout, stderr) = run(dir.path(), &arguments);
        assert_eq!(code, *expected, "{arguments:?}: {stderr}");
        assert!(stderr.contains(needle), "{arguments:?}: {stderr}");
        if *expected != 2 {
            assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{arguments:?}: {stderr}");
        }
        assert!(!stdout.contains("panicked") && !stderr.contains("panicked"));
    }
}

#[test]
fn the_command_line_goes_before_the_environment_and_that_before_the_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    fs::create_dir_all(dir.path().join("config/anabranch")).unwrap();
    let file = dir.path().join("config/anabranch/config.toml");
    let create = |environment: Option<&str>, flag: Option<&str>| {
        let mut command = anabranch(dir.path());
        command.env("XDG_CONFIG_HOME", dir.path().join("config")).args(["create", "one.bin", "-o", "t", "--force"]);
        environment.map(|value| command.env("ANABRANCH_COMMENT", value));
        flag.map(|value| command.args(["--comment", value]));
        let (code, _, stderr) = finish(&mut command);
        assert_eq!(code, 0, "{stderr}");
        let (_, json, _) = run(dir.path(), &["show", "t", "--json"]);
        let shown: Value = serde_json::from_str(&json).unwrap();
        (shown["comment"].as_str().unwrap_or_default().to_owned(), shown["private"].as_bool().unwrap())
    };
    fs::write(&file, "comment = \"top\"\nprivate = true\n").unwrap();
    assert_eq!(create(None, None), ("top".into(), true));
    fs::write(&file, "comment = \"top\"\n[create]\ncomment = \"table\"\n").unwrap();
    assert_eq!(create(None, None), ("table".into(), false));
    assert_eq!(create(Some("environment"), None).0, "environment");
    assert_eq!(create(Some(""), None).0, "table");
    assert_eq!(create(Some("environment"), Some("flag")).0, "flag");

    // Where there can be no file, there is none; one that is named has to be there.
    let mut homeless = anabranch(dir.path());
    homeless.env_remove("XDG_CONFIG_HOME").env("HOME", "/dev/null").args(["create", "one.bin", "-o", "h"]);
    let (code, _, stderr) = finish(&mut homeless);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(run(dir.path(), &["--config", "/dev/null/config.toml", "show", "h"]).0, 2);

    // What is on in the file can be turned off, and the other way round.
    fs::write(&file, "private = true\n").unwrap();
    let private = |variable: Option<&str>, flag: &[&str]| {
        let mut command = anabranch(dir.path());
        command
            .env("XDG_CONFIG_HOME", dir.path().join("config"))
            .args(["create", "one.bin", "-o", "p", "-f"])
            .args(flag);
        variable.map(|value| command.env("ANABRANCH_PRIVATE", value));
        assert_eq!(finish(&mut command).0, 0);
        let (_, json, _) = run(dir.path(), &["show", "p", "--json"]);
        serde_json::from_str::<Value>(&json).unwrap()["private"].as_bool().unwrap()
    };
    assert!(private(None, &[]));
    assert!(!private(Some("0"), &[]));
    assert!(private(Some("0"), &["--private"]));
    assert!(!private(Some("1"), &["--private=no"]));

    // Lists in the environment, and mistakes in each place.
    let mut command = anabranch(dir.path());
    command.env("ANABRANCH_TRACKER", "http://127.0.0.1:1/a udp://127.0.0.1:2").args(["create", "one.bin", "-o", "l"]);
    assert_eq!(finish(&mut command).0, 0);
    let (_, json, _) = run(dir.path(), &["show", "l", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["trackers"].as_array().unwrap().len(), 2);
    let (code, _, stderr) = finish(anabranch(dir.path()).env("ANABRANCH_LIMIT_UP", "fast").args(["get", "l"]));
    assert!(code == 2 && stderr.starts_with("error: ANABRANCH_LIMIT_UP: `fast` cannot be used"), "{stderr}");
    fs::write(&file, "\nlimitup = 5\n").unwrap();
    let path = file.to_str().unwrap();
    for arguments in [["--config", path, "show", "l"], ["show", "l", "--config", path]] {
        let (code, _, stderr) = run(dir.path(), &arguments);
        assert!(
            code == 2
                && stderr.contains("config.toml:2: `limitup` is not a flag of any command; did you mean `limit-up`?"),
            "{stderr}"
        );
    }
    let (code, _, stderr) = run(dir.path(), &["--config", "nowhere.toml", "show", "l"]);
    assert!(code == 2 && stderr.contains("nowhere.toml"), "{stderr}");
}

#[test]
fn help_completions_and_man_pages_have_every_flag() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(run(dir.path(), &["man", "--dir", "pages"]).0, 0);
    let (code, fish, _) = run(dir.path(), &["completions", "fish"]);
    assert_eq!(code, 0);
    for command in COMMANDS {
        let arguments: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let (code, help, _) = run(dir.path(), &arguments);
        assert_eq!(code, 0);
        let page = format!("pages/anabranch-{}.1", command.replace(' ', "-"));
        let page = fs::read_to_string(dir.path().join(page)).unwrap().replace("\\-", "-");
        let flags = help.split_whitespace().filter_map(|word| word.strip_prefix("--"));
        let names = flags
            .map(|flag| flag.trim_matches(|c: char| !c.is_ascii_alphanumeric()).split(['[', '=']).next().unwrap_or(""));
        for name in names.filter(|name| !name.is_empty()) {
            assert!(page.contains(&format!("--{name}")), "{command}: --{name} is not in the man page");
            assert!(fish.contains(&format!("-l {name}")), "{command}: --{name} is not completed");
        }
    }
    for (command, flags) in [
        (
            "create",
            &["--output", "--version", "--piece-length", "--tracker", "--private", "--comment", "--force", "--name"][..],
        ),
        (
            "get",
            &[
                "--dir",
                "--peer",
                "--listen",
                "--seed",
                "--sequential",
                "--files",
                "--limit-down",
                "--limit-up",
                "--json",
                "--recheck",
            ],
        ),
        ("share", &["--data", "--listen", "--tracker", "--json", "--torrent-out"]),
        (
            "live",
            &["--input", "--rate", "--key", "--copies", "--name", "--tracker", "--listen", "--limit-up", "--json"],
        ),
        ("verify", &["--json", "--config", "--quiet", "--verbose"]),
        ("tracker", &["--listen"]),
        ("paths", &["--sciond", "--sequence", "--acl", "--preference", "--policy", "--json"]),
        ("ping", &["--sciond", "--path", "--interactive", "--count", "--json"]),
    ] {
        let (_, help, _) = run(dir.path(), &[command, "--help"]);
        assert!(flags.iter().all(|flag| help.contains(flag)), "{command}: {help}");
    }
    for shell in ["bash", "zsh", "elvish", "powershell"] {
        let (code, script, _) = run(dir.path(), &["completions", shell]);
        assert!(code == 0 && script.contains("anabranch"), "{shell}");
    }
    let (code, all, _) = run(dir.path(), &["man"]);
    assert!(code == 0 && COMMANDS.iter().all(|command| all.contains(&command.replace(' ', "\\-"))));
}

#[test]
fn a_closed_pipe_is_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [&["man"][..], &["completions", "bash"], &["help"]] {
        let mut child =
            anabranch(dir.path()).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let done = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(done.stderr).unwrap();
        assert!(
            !stderr.contains("panicked") && matches!(done.status.code(), Some(0 | 141)),
            "{arguments:?} {:?} {stderr}",
            done.status
        );
    }
}

#[test]
fn share_ends_soon_after_an_interrupt() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    let mut running = Running::start(anabranch(dir.path()).args(["share", "one.bin", "--listen", "127.0.0.1:0"]));
    let (listening, magnet) = (running.line(), running.line());
    let address = listening.strip_prefix("listening on ").unwrap();
    assert!(magnet.starts_with("magnet:?xt=urn:btih:"), "{magnet}");
    assert!(magnet.contains(&format!("x.pe={address}")), "{magnet} {address}");
    assert_eq!(running.interrupt(), (0, String::new()));
}
