//! Folders as strangers have them: what their file system holds is shared and fetched as it is; what no torrent can carry is said at once.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use common::{Running, anabranch, assert_same, finish, get, noise, run, share, tree};
use serde_json::Value;

/// Names that this file system holds and that others take for each other, drop or refuse.
const NAMES: [&str; 16] = [
    "Case.txt",
    "case.txt",
    "CASE.TXT",
    "\u{e9}t\u{e9}",
    "e\u{301}te\u{301}",
    "نامه\u{200c}ها",
    "👩\u{200d}🚀.png",
    "שלום\u{200f}.txt",
    "a\ttab",
    "Icon\r",
    "two\nlines",
    "x2d\\x2d.slice",
    "what? \"this\": *that*|<those>",
    "CON",
    "ends with a dot.",
    "-rf",
];

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn what_this_file_system_holds_is_shared_and_fetched_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let files =
        NAMES.iter().enumerate().map(|(seed, name)| (Path::new("odd").join(name), noise(20_000 + seed, seed as u64)));
    let files: Vec<_> = files.collect();
    fs::create_dir(dir.path().join("odd")).unwrap();
    for (path, bytes) in &files {
        fs::write(dir.path().join(path), bytes).unwrap();
    }
    fs::set_permissions(dir.path().join("odd/CON"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("CON", dir.path().join("odd/link")).unwrap();
    symlink("link", dir.path().join("odd/link to a link")).unwrap();
    symlink("not there", dir.path().join("odd/.#lock")).unwrap();
    for version in ["1", "2", "hybrid"] {
        let torrent = format!("{version}.torrent");
        let (_sharer, address, magnet) = share(dir.path(), &["odd", "--version", version, "--torrent-out", &torrent]);
        for source in [magnet.as_str(), torrent.as_str()] {
            let out = tempfile::tempdir_in(dir.path()).unwrap();
            let to = out.path().to_str().unwrap();
            let (code, _, stderr) = run(dir.path(), &get(&address, &[source, "-o", to]));
            assert_eq!(code, 0, "{version}: {stderr}");
            assert_same(out.path(), &files);
            assert!(!stderr.contains("were changed"), "{stderr}");
            let mode = fs::metadata(out.path().join("odd/CON")).unwrap().permissions().mode();
            assert_eq!(mode & 0o100, 0o100, "{version}");
            assert_eq!(fs::read_link(out.path().join("odd/link to a link")).unwrap(), Path::new("CON"));
            assert_eq!(fs::read_link(out.path().join("odd/.#lock")).unwrap(), Path::new("not there"));
            let found = fs::read_dir(out.path().join("odd")).unwrap().count();
            assert_eq!(found, NAMES.len() + 3, "{version}");
            // Both ends are whole in the eyes of `verify`, whatever links lead through.
            for place in [to, "."] {
                let (code, text, _) = run(dir.path(), &["verify", &torrent, place]);
                assert_eq!(code, 0, "{text}");
            }
        }
    }
}

#[test]
fn all_that_no_torrent_can_carry_is_said_at_once_and_can_be_left_out() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let root = dir.path().join("tree");
    let pipe = root.join("sub/pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
    symlink("/etc/passwd", root.join("outside")).unwrap();
    symlink("round", root.join("round")).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"caf\xe9")), "x").unwrap();
    fs::create_dir(root.join("closed")).unwrap();
    fs::write(root.join("closed/in"), "x").unwrap();
    fs::write(root.join("secret"), "x").unwrap();
    for closed in ["closed", "secret"] {
        fs::set_permissions(root.join(closed), fs::Permissions::from_mode(0o000)).unwrap();
    }
    // Root reads everything, unless that is taken from it.
    let limited = |arguments: &[&str]| {
        let program = anabranch(dir.path());
        let mut command = std::process::Command::new("setpriv");
        command.arg("--bounding-set=-dac_override,-dac_read_search").arg(program.get_program()).args(arguments);
        command.current_dir(dir.path()).env("XDG_CONFIG_HOME", dir.path().join("no-config"));
        finish(&mut command)
    };
    let as_root = fs::read_dir(root.join("closed")).is_ok();
    let program = |arguments: &[&str]| if as_root { limited(arguments) } else { run(dir.path(), arguments) };
    let bad = [
        "sub/pipe is a pipe",
        "socket is a socket",
        "outside links to /etc/passwd",
        "round links to round, and so to itself",
        "not UTF-8",
        "closed cannot be read",
        "secret cannot be read",
    ];
    for command in [&["create", "tree", "-o", "t"][..], &["share", "tree", "--listen", "127.0.0.1:0"]] {
        let (code, _, stderr) = program(command);
        assert_eq!(code, 3, "{stderr}");
        assert!(stderr.starts_with("error: 7 things in ") && stderr.contains("--exclude"), "{stderr}");
        for part in bad {
            assert_eq!(stderr.matches(part).count(), 1, "{part}: {stderr}");
        }
        assert_eq!(stderr.lines().count(), 1 + bad.len(), "{stderr}");
    }
    let out: Vec<&str> = ["pipe", "socket", "outside", "round", "caf*", "closed", "secret"]
        .iter()
        .flat_map(|name| ["--exclude", name])
        .collect();
    let (code, text, stderr) = program(&[&["create", "tree", "-o", "t", "--json"][..], &out].concat());
    assert_eq!(code, 0, "{stderr}");
    assert_eq!((json(&text)["excluded"].as_u64(), json(&text)["files"].as_array().unwrap().len()), (Some(7), 5));
    // One problem alone is told in one line.
    let (code, _, stderr) = program(&[&["create", "tree", "-o", "u"][..], &out[2..]].concat());
    assert!(code == 3 && stderr.starts_with("error: ") && stderr.contains("sub/pipe is a pipe"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    for closed in ["closed", "secret"] {
        fs::set_permissions(root.join(closed), fs::Permissions::from_mode(0o700)).unwrap();
    }
}

#[test]
fn patterns_choose_what_goes_in_and_a_dry_run_lists_it() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    fs::create_dir_all(dir.path().join("tree/hollow/inner")).unwrap();
    let listed = |flags: &[&str]| {
        let (code, text, stderr) = run(dir.path(), &[&["create", "tree", "--dry-run", "--json"], flags].concat());
        assert_eq!(code, 0, "{stderr}");
        assert!(
            stderr.contains("1 empty folder is left out, which no torrent can carry: tree/hollow/inner"),
            "{stderr}"
        );
        let files = json(&text)["files"].as_array().unwrap().clone();
        files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&[]), ["tree/a.bin", "tree/empty", "tree/sub/b.txt", "tree/sub/deep/c.bin", "tree/sub/none"]);
    assert_eq!(listed(&["--exclude", "*.bin"]), ["tree/empty", "tree/sub/b.txt", "tree/sub/none"]);
    assert_eq!(listed(&["--exclude", "deep/"])[..2], ["tree/a.bin", "tree/empty"]);
    assert_eq!(listed(&["--include", "*.bin"]), ["tree/a.bin", "tree/sub/deep/c.bin"]);
    assert_eq!(listed(&["--exclude", "*", "--include", "sub/*.txt"]), ["tree/sub/b.txt"]);
    assert_eq!(listed(&["--include", "*.bin", "--exclude", "deep"]), ["tree/a.bin"]);
    let (code, text, _) = run(dir.path(), &["create", "tree", "--dry-run", "--exclude", "sub"]);
    assert!(code == 0 && text.lines().count() == 2 && text.contains("  tree/a.bin"), "{text}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "a dry run writes nothing");
    let (code, _, stderr) = run(dir.path(), &["create", "tree", "--exclude", "["]);
    assert!(code == 2 && stderr.contains("--exclude"), "{stderr}");
    let (code, _, stderr) = run(dir.path(), &["create", "tree", "--exclude", "*"]);
    assert!(code == 3 && stderr.contains("what --exclude and --include leave of tree holds no bytes"), "{stderr}");
    let (code, _, stderr) = run(dir.path(), &["create", "tree", "--include", "zzz*"]);
    assert!(code == 3 && stderr.contains("what --exclude and --include leave of tree holds no bytes"), "{stderr}");
    // Who misspelt a pattern is told; what stands in the environment need not match everywhere.
    let told = ["create", "tree", "--dry-run", "--exclude", "*.txt", "--exclude", "zzz*", "--include", "yyy*"];
    let (code, _, stderr) = run(dir.path(), &told);
    assert!(code == 0 && stderr.contains("`--exclude zzz*` left nothing out"), "{stderr}");
    assert!(stderr.contains("`--include yyy*` took nothing in") && !stderr.contains("`--exclude *.txt`"), "{stderr}");
    let mut usual = anabranch(dir.path());
    let (code, _, stderr) = finish(usual.env("ANABRANCH_EXCLUDE", "zzz*").args(["create", "tree", "--dry-run"]));
    assert!(code == 0 && !stderr.contains("zzz"), "{stderr}");
    // Shared with patterns, the rest is nowhere to be had.
    let (_sharer, address, magnet) = share(dir.path(), &["tree", "--exclude", "sub"]);
    assert_eq!(run(dir.path(), &get(&address, &[&magnet, "-o", "out"])).0, 0);
    assert!(dir.path().join("out/tree/a.bin").exists() && !dir.path().join("out/tree/sub").exists());
}

#[test]
fn patterns_choose_what_is_shared_by_ppspp() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let pipe = dir.path().join("tree/pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let ppspp = ["share", "--ppspp", "--listen", "127.0.0.1:0", "--json"];
    let (code, _, stderr) = run(dir.path(), &[&ppspp[..], &["tree"]].concat());
    assert!(code == 3 && stderr.contains("tree/pipe is a pipe") && stderr.contains("--exclude"), "{stderr}");
    // One after the other, from the trees of hashes that are kept from run to run.
    let choices = [&["--exclude", "pipe"][..], &["--exclude", "pipe", "--exclude", "sub"], &["--include", "*.bin"]];
    for (number, choice) in choices.into_iter().chain([choices[0]]).enumerate() {
        let sharing = [&ppspp[..], &["tree"], choice].concat();
        let mut sharer = Running::start(anabranch(dir.path()).args(sharing));
        let link = sharer.event("started")["link"].as_str().unwrap().to_owned();
        let out = format!("out-{number}");
        let (code, _, stderr) = run(dir.path(), &["get", &link, "-o", &out, "--listen", "127.0.0.1:0"]);
        assert_eq!(code, 0, "{choice:?}: {stderr}");
        let there = |path: &str| dir.path().join(&out).join("tree").join(path).exists();
        let found = ["a.bin", "empty", "sub/b.txt", "sub/deep/c.bin", "pipe"].map(there);
        let expected = match number {
            1 => [true, true, false, false, false],
            2 => [true, false, false, true, false],
            _ => [true, true, true, true, false],
        };
        assert_eq!(found, expected, "{choice:?}");
    }
    let (code, _, stderr) = run(dir.path(), &[&ppspp[..], &["tree", "--exclude", "*"]].concat());
    assert!(code == 3 && stderr.contains("what --exclude and --include leave of "), "{stderr}");
    // A file that is named itself goes, as in a torrent.
    let file = [&ppspp[..], &["tree/a.bin", "--exclude", "*.bin"]].concat();
    Running::start(anabranch(dir.path()).args(file)).event("started");
}

#[test]
fn holes_of_small_contents_arrive_as_holes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hole");
    let file = fs::File::create(&path).unwrap();
    file.set_len(5 << 20).unwrap();
    file.write_all_at(b"end", 3_000_000).unwrap();
    drop(file);
    let (_sharer, address, magnet) = share(dir.path(), &["hole", "--piece-length", "16KiB"]);
    let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", "out"]));
    assert_eq!(code, 0, "{stderr}");
    let there = dir.path().join("out/hole");
    assert!(fs::read(&there).unwrap() == fs::read(&path).unwrap());
    let blocks = fs::metadata(&there).unwrap().blocks();
    assert!(blocks * 512 < 1 << 18, "{blocks} blocks of 512 bytes");
}

#[test]
fn files_and_links_are_counted_alike_wherever_they_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    symlink("a.bin", dir.path().join("tree/link")).unwrap();
    let (_, _, stderr) = run(dir.path(), &["create", "tree"]);
    assert!(stderr.contains(" in 6 files and links"), "{stderr}");
    let (_, listed, _) = run(dir.path(), &["get", "tree.torrent", "--list"]);
    assert!(listed.starts_with("6 files of tree"), "{listed}");
    let (_, shown, _) = run(dir.path(), &["show", "tree.torrent"]);
    assert!(shown.lines().any(|line| line.split_whitespace().eq(["files", "6"])), "{shown}");
}

#[test]
fn a_folder_with_one_file_is_shared_in_every_version() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = noise(70_000, 3);
    fs::create_dir(dir.path().join("album")).unwrap();
    fs::write(dir.path().join("album/only.flac"), &bytes).unwrap();
    for (version, path) in [("1", "album/only.flac"), ("2", "only.flac"), ("hybrid", "album/only.flac")] {
        let (_sharer, address, magnet) = share(dir.path(), &["album", "--version", version]);
        let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", version]));
        assert_eq!(code, 0, "{version}: {stderr}");
        assert_eq!(fs::read(dir.path().join(version).join(path)).unwrap(), bytes, "{version}");
        let (_, _, stderr) = run(dir.path(), &["create", "album", "--version", version, "--force"]);
        assert_eq!(stderr.contains("only.flac is its folder's only file"), version == "2", "{stderr}");
    }
}

#[test]
fn names_that_show_as_others_can_be_shared_and_are_made_safe_by_who_fetches() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = noise(30_000, 4);
    fs::create_dir(dir.path().join("tricks")).unwrap();
    fs::write(dir.path().join("tricks/song\u{202e}3pm.exe"), &bytes).unwrap();
    fs::write(dir.path().join("tricks/plain"), &bytes).unwrap();
    let (_sharer, address, magnet) = share(dir.path(), &["tricks"]);
    let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", "out"]));
    assert!(code == 0 && stderr.contains("were changed") && stderr.contains("tricks/song3pm.exe"), "{stderr}");
    assert!(!stderr.contains('\u{202e}'), "{stderr}");
    assert_eq!(fs::read(dir.path().join("out/tricks/song3pm.exe")).unwrap(), bytes);
    let arguments = get(&address, &[&magnet, "-o", "again", "--json"]);
    let (_, events, _) = run(dir.path(), &arguments);
    let renamed: Vec<Value> = events
        .lines()
        .map(json)
        .filter(|event| event["event"] == "renamed")
        .map(|event| event["files"].clone())
        .collect();
    assert_eq!(renamed[0][0]["path"], "tricks/song3pm.exe");
    assert_eq!(renamed[0][0]["written"], "tricks/song\u{202e}3pm.exe");
}

#[test]
fn what_a_fetch_that_was_killed_left_beside_the_content_goes_with_the_next() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("odd")).unwrap();
    for name in ["q?:*", "Case", "case"] {
        fs::write(dir.path().join("odd").join(name), noise(30_000, 5)).unwrap();
    }
    // Where it was killed while it tried which names the folder holds.
    let left = dir.path().join("out/.0123456789abcdef.anabranch-names");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("q?:*"), "").unwrap();
    let (_sharer, address, magnet) = share(dir.path(), &["odd"]);
    let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", "out"]));
    assert_eq!(code, 0, "{stderr}");
    let beside: Vec<_> = fs::read_dir(dir.path().join("out")).unwrap().map(|item| item.unwrap().file_name()).collect();
    assert_eq!(beside, ["odd"]);
}

#[test]
fn long_names_are_created_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let name = "n".repeat(255);
    fs::write(dir.path().join(&name), noise(100, 1)).unwrap();
    let (code, magnet, stderr) = run(dir.path(), &["create", &name]);
    assert_eq!(code, 0, "{stderr}");
    assert!(magnet.contains(&name));
    assert!(dir.path().join("n".repeat(240) + ".torrent").exists());
}

#[test]
fn create_writes_what_makers_of_torrents_expect() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let flags = [
        "--tracker",
        "http://one.example/a?x=1,2,udp://two.example:1",
        "--tracker",
        "http://three.example/a",
        "--web-seed",
        "http://w.example/files/",
        "--source",
        "CLUB",
        "--private",
        "--no-date",
    ];
    let hybrid = ["create", "tree", "--version", "hybrid"];
    let (code, text, stderr) = run(dir.path(), &[&hybrid[..], &["--json"], &flags].concat());
    assert_eq!(code, 0, "{stderr}");
    let made = json(&text);
    let shown = json(&run(dir.path(), &["show", "tree.torrent", "--json"]).1);
    let tiers = serde_json::json!([["http://one.example/a?x=1,2", "udp://two.example:1"], ["http://three.example/a"]]);
    for object in [&made, &shown] {
        assert_eq!(object["trackers"], tiers);
        assert_eq!(object["web_seeds"], serde_json::json!(["http://w.example/files/"]));
        assert_eq!((&object["source"], &object["private"]), (&"CLUB".into(), &true.into()));
        assert_eq!((&object["info_hash_v1"], &object["magnet"]), (&made["info_hash_v1"], &made["magnet"]));
    }
    assert_eq!(made["torrent_file"], "tree.torrent");
    // A link for those who read one info-hash alone stands beside that of a hybrid, and nowhere else.
    let v1 = made["magnet_v1"].as_str().unwrap();
    assert!(v1.contains("urn:btih:") && !v1.contains("urn:btmh:"));
    assert_eq!(shown["magnet_v1"], v1);
    let v2 = made["magnet_v2"].as_str().unwrap();
    assert!(v2.contains("urn:btmh:") && !v2.contains("urn:btih:"));
    assert_eq!(shown["magnet_v2"], v2);
    let (_, magnet, stderr) = run(dir.path(), &[&hybrid[..], &["--force"]].concat());
    assert!(stderr.contains("such as rtorrent: magnet:?xt=urn:btih:") && magnet.lines().count() == 1, "{stderr}");
    let (_, text, _) = run(dir.path(), &["show", "tree.torrent"]);
    assert!(text.contains("magnet v1     magnet:?xt=urn:btih:"), "{text}");
    // What nobody asked for otherwise is read by every client.
    let (_, magnet, stderr) = run(dir.path(), &["create", "tree", "--force"]);
    assert!(magnet.contains("urn:btih:") && !magnet.contains("urn:btmh:"), "{magnet}");
    assert!(!stderr.contains("rtorrent"), "{stderr}");
    // Other tags and times make other torrents.
    let hash = |flags: &[&str]| {
        let (code, text, stderr) =
            run(dir.path(), &[&["create", "tree", "--json", "--force", "--no-date"], flags].concat());
        assert_eq!(code, 0, "{stderr}");
        json(&text)["info_hash_v1"].as_str().unwrap().to_owned()
    };
    assert_ne!(hash(&["--source", "A"]), hash(&["--source", "B"]));
    assert_eq!(hash(&["--comment", "A"]), hash(&["--web-seed", "http://w/"]));
    assert_ne!(hash(&["--times"]), hash(&[]));
    for (flags, part) in [
        (&["--web-seed", "ftp://x/"][..], "--web-seed ftp://x/"),
        (&["--tracker", "http://a/,gopher://b"], "gopher"),
        (&["-o", "-", "--json"], "both write"),
    ] {
        let (code, _, stderr) = run(dir.path(), &[&["create", "tree", "--force"], flags].concat());
        assert!(code == 2 && stderr.contains(part), "{stderr}");
    }
}

#[test]
fn a_torrent_goes_to_standard_output_and_nothing_else_does() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    let output = anabranch(dir.path()).args(["create", "tree", "--no-date", "-o", "-"]).output().unwrap();
    assert!(output.status.success());
    assert_eq!(run(dir.path(), &["create", "tree", "--no-date"]).0, 0);
    assert_eq!(output.stdout, fs::read(dir.path().join("tree.torrent")).unwrap());
    assert!(!dir.path().join("-").exists());
}

#[test]
fn times_are_carried_where_asked() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("old.bin"), noise(50_000, 9)).unwrap();
    let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_007);
    fs::File::options().write(true).open(dir.path().join("old.bin")).unwrap().set_modified(long_ago).unwrap();
    for version in ["1", "2", "hybrid"] {
        let (_sharer, address, magnet) = share(dir.path(), &["old.bin", "--times", "--version", version]);
        let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", version]));
        assert_eq!(code, 0, "{stderr}");
        let fetched = fs::metadata(dir.path().join(version).join("old.bin")).unwrap().modified().unwrap();
        assert_eq!(fetched, long_ago, "{version}");
    }
}

#[test]
fn edit_says_what_becomes_of_the_info_hash() {
    let dir = tempfile::tempdir().unwrap();
    tree(dir.path());
    assert_eq!(run(dir.path(), &["create", "tree", "-o", "t.torrent", "--tracker", "http://one/a"]).0, 0);
    let show = |name: &str| json(&run(dir.path(), &["show", name, "--json"]).1);
    let before = show("t.torrent");
    let outside = ["--add-tracker", "http://two/a,udp://three:1", "--comment", "new", "--web-seed", "http://w/"];
    let (code, magnet, stderr) = run(dir.path(), &[&["edit", "t.torrent"][..], &outside].concat());
    assert!(code == 0 && stderr.contains("the info-hash stays"), "{stderr}");
    let after = show("t.torrent");
    assert_eq!((&after["info_hash_v1"], &after["info_hash_v2"]), (&before["info_hash_v1"], &before["info_hash_v2"]));
    assert_eq!(after["trackers"], serde_json::json!([["http://one/a"], ["http://two/a", "udp://three:1"]]));
    assert_eq!((&after["comment"], &after["magnet"]), (&"new".into(), &magnet.trim().into()));
    let less = ["edit", "t.torrent", "--remove-tracker", "http://one/a", "--comment", "", "--json"];
    let (code, text, _) = run(dir.path(), &less);
    assert_eq!((code, &json(&text)["info_hash_changed"]), (0, &false.into()));
    assert_eq!(show("t.torrent")["trackers"], serde_json::json!([["http://two/a", "udp://three:1"]]));
    assert!(show("t.torrent")["comment"].is_null());
    // Inside of the info dictionary it is another torrent, and the old one stays where -o says so.
    let inside = ["edit", "t.torrent", "--source", "CLUB", "--private", "-o", "club.torrent"];
    let (code, _, stderr) = run(dir.path(), &inside);
    assert!(code == 0 && stderr.contains("another torrent"), "{stderr}");
    let club = show("club.torrent");
    assert_eq!((&club["source"], &club["private"]), (&"CLUB".into(), &true.into()));
    assert_ne!(club["info_hash_v1"], before["info_hash_v1"]);
    assert_eq!(show("t.torrent")["info_hash_v1"], before["info_hash_v1"]);
    assert_eq!(run(dir.path(), &["verify", "club.torrent", "."]).0, 0);
    let back = ["edit", "club.torrent", "--source", "", "--private=no", "--tracker", ""];
    assert_eq!(run(dir.path(), &back).0, 0);
    assert_eq!(show("club.torrent")["info_hash_v1"], before["info_hash_v1"]);
    assert_eq!(show("club.torrent")["trackers"], serde_json::json!([]));
    for (arguments, expected, part) in [
        (&["edit", "t.torrent"][..], 2, "nothing is to be changed"),
        (&["edit", "t.torrent", "--tracker", "gopher://x"], 2, "gopher"),
        (&["edit", "t.torrent", "--remove-tracker", "http://nowhere/"], 3, "has no tracker http://nowhere/"),
        (&["edit", "t.torrent", "--comment", "x", "-o", "club.torrent"], 2, "--force"),
        (&["edit", "nowhere.torrent", "--comment", "x"], 3, "cannot read nowhere.torrent"),
        (&["edit", "tree/a.bin", "--comment", "x"], 3, "not a torrent"),
    ] {
        let (code, _, stderr) = run(dir.path(), arguments);
        assert!(code == expected && stderr.contains(part), "{arguments:?}: {stderr}");
    }
    // A tracker that holds for everything shared is not put into what is edited.
    let mut command = anabranch(dir.path());
    command.env("ANABRANCH_TRACKER", "http://mine/a").args(["edit", "t.torrent", "--comment", "x"]);
    assert_eq!(finish(&mut command).0, 0);
    assert_eq!(show("t.torrent")["trackers"], serde_json::json!([["http://two/a", "udp://three:1"]]));
}

#[test]
fn single_files_of_torrentfile_are_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100, 1)).unwrap();
    assert_eq!(run(dir.path(), &["create", "one.bin", "--version", "2", "--no-date"]).0, 0);
    // It writes `length` into the info dictionary, beside `file tree` and without `pieces`.
    let bytes = fs::read(dir.path().join("one.bin.torrent")).unwrap();
    let text = bytes.windows(15).position(|window| window == b"12:meta version").unwrap();
    let theirs = [&bytes[..text], b"6:lengthi100e", &bytes[text..]].concat();
    fs::write(dir.path().join("theirs.torrent"), theirs).unwrap();
    let shown = json(&run(dir.path(), &["show", "theirs.torrent", "--json"]).1);
    assert_eq!((&shown["version"], &shown["files"][0]["path"]), (&"2".into(), &"one.bin".into()));
    assert_eq!(run(dir.path(), &["verify", "theirs.torrent", "."]).0, 0);
}
