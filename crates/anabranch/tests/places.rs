//! What `get` and `share` do with files that are there already, that others write to, or that change under their hands.

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use common::{Running, anabranch, assert_same, finish, get, noise, run, share};
use serde_json::Value;

/// Shares a folder `data` with a file `a.bin` and one of the sharer's name, from a folder of its own. Answers the sharer, its address,
/// its link and the bytes of `a.bin`.
fn sharer(dir: &Path, name: &str, len: usize, seed: u64, rest: &[&str]) -> (Running, String, String, Vec<u8>) {
    let (home, bytes) = (dir.join(name), noise(len, seed));
    fs::create_dir_all(home.join("data")).unwrap();
    fs::write(home.join("data/a.bin"), &bytes).unwrap();
    fs::write(home.join("data").join(name), name).unwrap();
    let (running, address, magnet) =
        share(&home, &[&["data", "--piece-length", "16KiB", "--torrent-out", "t.torrent"], rest].concat());
    (running, address, magnet, bytes)
}

fn files_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn two_contents_of_one_process_do_not_mix_in_one_place() {
    let dir = tempfile::tempdir().unwrap();
    let (_one, first, one, bytes_one) = sharer(dir.path(), "one", 400_000, 1, &[]);
    let (_two, second, two, bytes_two) = sharer(dir.path(), "two", 400_000, 2, &[]);
    let arguments = ["get", &one, &two, "--peer", &first, "--peer", &second, "--listen", "127.0.0.1:0", "-o", "out"];
    let (code, _, stderr) = run(dir.path(), &arguments);
    assert_eq!(code, 5, "{stderr}");
    assert!(stderr.contains("data/a.bin: something else is being fetched to that place"), "{stderr}");
    // One of them is there, whole.
    let there = fs::read(dir.path().join("out/data/a.bin")).unwrap();
    assert!(there == bytes_one || there == bytes_two);
    // Files that are not the same share a folder.
    fs::rename(dir.path().join("two/data/a.bin"), dir.path().join("two/data/b.bin")).unwrap();
    let (_three, third, three) = share(&dir.path().join("two"), &["data"]);
    let arguments = ["get", &one, &three, "--peer", &first, "--peer", &third, "--listen", "127.0.0.1:0", "-o", "both"];
    let (code, _, stderr) = run(dir.path(), &arguments);
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("both/data"), &[("a.bin".into(), bytes_one), ("b.bin".into(), bytes_two)]);
    assert_eq!(files_in(&dir.path().join("both")), ["data"], "nothing else is left");
}

#[test]
fn two_processes_do_not_write_to_one_place_and_a_killed_one_leaves_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let (_sharer, address, magnet, bytes) = sharer(dir.path(), "one", 1_000_000, 1, &[]);
    let slow = get(&address, &[&magnet, "-o", "out", "--json", "--limit-down", "50K"]);
    let mut first = Running::start(anabranch(dir.path()).args(&slow));
    first.event("piece");
    let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", "out"]));
    assert_eq!(code, 5, "{stderr}");
    assert!(stderr.contains("something else is being fetched to that place"), "{stderr}");
    // Who only reads is no writer.
    let torrent = dir.path().join("one/t.torrent");
    let (_reader, ..) = share(dir.path(), &[torrent.to_str().unwrap(), "--data", "out"]);
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    // Death between writing the next record and putting it in its place.
    let out = dir.path().join("out");
    let record = files_in(&out).into_iter().find(|name| name.ends_with(".anabranch-resume")).unwrap();
    fs::write(out.join(format!("{record}-new")), "half of it").unwrap();
    let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", "out"]));
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("out/data"), &[("a.bin".into(), bytes)]);
    assert_eq!(files_in(&dir.path().join("out")), ["data"], "nothing else is left");
}

#[test]
fn another_file_in_the_place_is_left_alone_unless_forced() {
    let dir = tempfile::tempdir().unwrap();
    for version in ["1", "2", "hybrid"] {
        let (_sharer, address, magnet, bytes) = sharer(dir.path(), version, 300_000, 1, &["--version", version]);
        for (kind, len) in [("other", 300_000), ("shorter", 100_000), ("tiny", 10), ("longer", 300_001)] {
            let out = dir.path().join(format!("{kind}-{version}"));
            let place = out.join("data/a.bin");
            fs::create_dir_all(out.join("data")).unwrap();
            let mine = if kind == "longer" { [&bytes[..], b"!"].concat() } else { noise(len, 77) };
            fs::write(&place, &mine).unwrap();
            for flags in [&[][..], &["--recheck"], &[]] {
                let arguments = [&get(&address, &[&magnet, "-o", out.to_str().unwrap()])[..], flags].concat();
                let (code, _, stderr) = run(dir.path(), &arguments);
                assert_eq!(code, 5, "{kind} {version}: {stderr}");
                assert!(stderr.contains("another file is in its place") && stderr.contains("--force"), "{stderr}");
                assert!(fs::read(&place).unwrap() == mine, "{kind} {version} was touched");
            }
            let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", out.to_str().unwrap(), "--force"]));
            assert_eq!(code, 0, "{kind} {version}: {stderr}");
            assert!(fs::read(&place).unwrap() == bytes, "{kind} {version}");
            assert_eq!(files_in(&out), ["data"]);
        }
    }
}

#[test]
fn what_can_never_be_a_file_of_the_content_is_told_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (_sharer, address, magnet, _) = sharer(dir.path(), "one", 300_000, 1, &[]);
    let place = |kind: &str| dir.path().join(kind).join("data/a.bin");
    for kind in ["folder", "link", "pipe", "above"] {
        fs::create_dir_all(place(kind).parent().unwrap()).unwrap();
    }
    fs::create_dir(place("folder")).unwrap();
    symlink(dir.path().join("one/data/a.bin"), place("link")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(place("pipe")).status().unwrap().success());
    fs::remove_dir(dir.path().join("above/data")).unwrap();
    fs::write(dir.path().join("above/data"), "a file where a folder should be").unwrap();
    for kind in ["folder", "link", "pipe", "above"] {
        for force in [&[][..], &["--force"]] {
            let arguments = [&get(&address, &[&magnet, "-o", kind])[..], force].concat();
            let (code, _, stderr) = run(dir.path(), &arguments);
            assert_eq!(code, 5, "{kind}: {stderr}");
            assert!(stderr.contains("something else is in its place"), "{kind}: {stderr}");
        }
    }
    let (code, stdout, _) = run(dir.path(), &["verify", "one/t.torrent", "link"]);
    assert!(code == 4 && stdout.contains("wrong kind"), "as `get` sees it: {stdout}");
}

#[test]
fn a_place_that_is_named_from_a_deleted_folder_is_refused_at_once_and_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let (_sharer, address, magnet, _) = sharer(dir.path(), "one", 300_000, 1, &[]);
    let prepared = anabranch(dir.path());
    let mut command = Command::new("sh");
    command.args(["-c", "mkdir gone && cd gone && rmdir ../gone && exec \"$0\" \"$@\""]).arg(prepared.get_program());
    command.args(get(&address, &[&magnet, "-o", "x"])).current_dir(dir.path());
    prepared.get_envs().for_each(|(name, value)| match value {
        Some(value) => _ = command.env(name, value),
        None => _ = command.env_remove(name),
    });
    let (code, _, stderr) = finish(&mut command);
    assert!(code == 5 && stderr.contains("cannot create x: the working folder was deleted"), "{code} {stderr}");
    assert_eq!(stderr.matches("was deleted").count(), 1, "{stderr}");
}

#[test]
fn what_is_there_of_the_content_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let files = common::tree(dir.path());
    for version in ["1", "2", "hybrid"] {
        let (_sharer, address, magnet) = share(dir.path(), &["tree", "--version", version, "--piece-length", "16KiB"]);
        let damages = ["one missing", "one cut short", "some zeros", "one wrong piece", "all empty"];
        for (damage, hashes) in damages.iter().flat_map(|damage| [(*damage, "unknown"), (*damage, "known")]) {
            let out = format!("{version}, {damage}, hashes {hashes} at first");
            if hashes == "unknown" {
                // A v2 link's piece layers come from a peer, or from an earlier run.
                fs::remove_dir_all(dir.path().join("cache")).ok();
            }
            for (path, bytes) in &files {
                let path = dir.path().join(&out).join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, if damage == "all empty" { &[] } else { &bytes[..] }).unwrap();
            }
            let longest = dir.path().join(&out).join(&files[0].0);
            let open = || fs::File::options().write(true).open(&longest).unwrap();
            match damage {
                // Its neighbours in v1's pieces cannot be told to be good without it.
                "one missing" => fs::remove_file(dir.path().join(&out).join("tree/sub/b.txt")).unwrap(),
                "one cut short" => open().set_len(100_000).unwrap(),
                "some zeros" => open().write_all_at(&[0; 120_000], 50_000).unwrap(),
                "one wrong piece" => open().write_all_at(b"wrong", 40_000).unwrap(),
                _ => {}
            }
            let (code, stdout, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", &out, "--json"]));
            assert_eq!(code, 0, "{out}: {stderr}");
            assert_same(&dir.path().join(&out), &files);
            let mut events = stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            let finished = events.rfind(|event| event["event"] == "finished").unwrap();
            if damage == "one wrong piece" {
                assert_eq!(finished["downloaded"], 16_384, "{out}: {finished}");
            }
        }
    }
}

#[test]
fn a_finished_magnet_link_needs_no_peer_to_say_so() {
    let dir = tempfile::tempdir().unwrap();
    for version in ["1", "2", "hybrid"] {
        let (sharer, address, magnet, bytes) = sharer(dir.path(), version, 300_000, 5, &["--version", version]);
        let out = format!("out-{version}");
        let saved = format!("{version}.torrent");
        let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", &out, "--save-torrent", &saved]));
        assert_eq!(code, 0, "{stderr}");
        drop(sharer);
        let (code, stdout, stderr) =
            run(dir.path(), &["get", &magnet, "-o", &out, "--listen", "127.0.0.1:0", "--json"]);
        assert_eq!(code, 0, "{version}: {stderr}");
        let events: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(events.iter().any(|event| event["event"] == "finished" && event["downloaded"] == 0), "{stdout}");
        assert_same(&dir.path().join(&out), &[("data/a.bin".into(), bytes)]);
        let (code, stdout, stderr) = run(dir.path(), &["verify", &saved, &out]);
        assert_eq!(code, 0, "{version}: {stdout}{stderr}");
    }
}

#[test]
fn a_finished_magnet_link_is_complete_also_where_its_peers_fail_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (sharer, address, magnet, _) = sharer(dir.path(), "one", 300_000, 6, &[]);
    let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", "out"]));
    assert_eq!(code, 0, "{stderr}");
    drop(sharer);
    // Who calls itself knows at once that nobody else is there: sooner than the disk answers, in most runs.
    for _ in 0..8 {
        let (code, _, stderr) =
            run(dir.path(), &["get", &magnet, "-o", "out", "--listen", &address, "--peer", &address]);
        assert_eq!(code, 0, "{stderr}");
    }
}

#[test]
fn holes_arrive_as_holes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sparse.bin");
    let file = fs::File::create(&path).unwrap();
    file.set_len(64 << 20).unwrap();
    file.write_all_at(&noise(100_000, 3), 20 << 20).unwrap();
    drop(file);
    let (_sharer, address, magnet) = share(dir.path(), &["sparse.bin"]);
    let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", "out"]));
    assert_eq!(code, 0, "{stderr}");
    let there = dir.path().join("out/sparse.bin");
    assert!(fs::read(&there).unwrap() == fs::read(&path).unwrap());
    let blocks = fs::metadata(&there).unwrap().blocks();
    assert!(blocks * 512 < 2 << 20, "{blocks} blocks of 512 bytes");
}

#[test]
fn a_shared_file_that_is_edited_is_not_offered_until_it_is_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let (mut sharer, address, _, bytes) = sharer(dir.path(), "one", 1_000_000, 4, &[]);
    // The same size, another middle: an editor that saves in place. Nobody asks for it: it is noticed all the same.
    let edited = fs::File::options().write(true).open(dir.path().join("one/data/a.bin")).unwrap();
    edited.write_all_at(&noise(200_000, 99), 700_000).unwrap();
    let error = sharer.event("error");
    assert!(error["message"].as_str().unwrap().contains("a.bin changed while it was shared"), "{error}");
    // What is still the content is had by others, and nothing else is offered to them.
    let mut getter =
        Running::start(anabranch(dir.path()).args(get(&address, &["one/t.torrent", "-o", "out", "--json"])));
    let good = 1_000_000_usize.div_ceil(1 << 14) - (900_000_usize.div_ceil(1 << 14) - 700_000 / (1 << 14));
    for _ in 0..good {
        getter.event("piece");
    }
    edited.write_all_at(&bytes[700_000..900_000], 700_000).unwrap();
    sharer.event("resumed");
    let finished = getter.event("finished");
    assert_eq!(finished["wasted"], 0, "{finished}");
    assert_same(&dir.path().join("out"), &[("data/a.bin".into(), bytes)]);
}

#[test]
fn a_sharer_says_in_words_what_changed_and_shares_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("data");
    let bytes = noise(1_000_000, 4);
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.bin"), &bytes).unwrap();
    fs::write(folder.join("b.bin"), noise(100_000, 5)).unwrap();
    for flags in [&["--version", "1"][..], &["--ppspp"]] {
        let mut sharer = Running::start_in_words(
            anabranch(dir.path()).args(["share", "data", "--listen", "127.0.0.1:0"]).args(flags),
        );
        sharer.line_with(if flags[0] == "--ppspp" { "ppspp:" } else { "magnet:" });
        // As a shell's `>` does: it is empty first.
        fs::write(folder.join("a.bin"), noise(1_000_000, 6)).unwrap();
        let said = sharer.line_with("changed while it was shared");
        assert!(said.starts_with("data: error: ") && said.contains("a.bin"), "{said}");
        fs::write(folder.join("a.bin"), &bytes).unwrap();
        sharer.line_with("goes on");
        // A folder that is cleared is told once, and is whole again once.
        let moved = dir.path().join("moved");
        fs::create_dir_all(&moved).unwrap();
        let each = |from: &Path, to: &Path| {
            ["a.bin", "b.bin"].iter().for_each(|name| fs::rename(from.join(name), to.join(name)).unwrap());
        };
        each(&folder, &moved);
        let said = sharer.line_with("changed while");
        assert!(said.contains("a.bin and 1 other file changed while they were shared"), "{said}");
        each(&moved, &folder);
        assert_eq!(sharer.line(), "data: goes on");
        let (code, rest) = sharer.interrupt();
        assert_eq!((code, rest.as_str()), (0, ""));
    }
}

/// A file that is shared by its own name and replaced by another one is outside of what the sandbox was told of: said, not waited for in silence.
#[test]
fn a_file_that_took_a_shared_ones_place_is_shared_again_or_told() {
    let dir = tempfile::tempdir().unwrap();
    let (file, bytes) = (dir.path().join("film.bin"), noise(200_000, 4));
    for flags in [&["--version", "1"][..], &["--ppspp"]] {
        fs::write(&file, &bytes).unwrap();
        let arguments = ["share", "film.bin", "--listen", "127.0.0.1:0"];
        let mut sharer = Running::start_in_words(anabranch(dir.path()).args(arguments).args(flags));
        sharer.line_with(if flags[0] == "--ppspp" { "ppspp:" } else { "magnet:" });
        fs::remove_file(&file).unwrap();
        sharer.line_with("film.bin changed while it was shared");
        fs::write(&file, &bytes).unwrap();
        let said = sharer.line();
        let is_told = said.contains("film.bin is another file now, and may not be read: start the command again");
        assert!(is_told || said == "film.bin: goes on", "{said}");
        assert_eq!(sharer.interrupt().0, 0);
    }
}

#[test]
fn what_another_client_finished_leaves_nothing_of_ours() {
    let dir = tempfile::tempdir().unwrap();
    for (version, files) in [("1", &["--files", "a.bin"][..]), ("2", &[]), ("hybrid", &[])] {
        let (sharer, address, magnet, bytes) = sharer(dir.path(), version, 1_000_000, 6, &["--version", version]);
        let out = format!("out-{version}");
        let slow = [&get(&address, &[&magnet, "-o", &out, "--json", "--limit-down", "300K"])[..], files].concat();
        let mut killed = Running::start(anabranch(dir.path()).args(&slow));
        for _ in 0..3 {
            killed.event("piece");
        }
        drop(killed);
        drop(sharer);
        fs::write(dir.path().join(&out).join("data/a.bin"), &bytes).unwrap();
        fs::write(dir.path().join(&out).join("data").join(version), version).unwrap();
        let torrent = format!("{version}/t.torrent");
        let (code, _, stderr) = run(dir.path(), &["get", &torrent, "-o", &out, "--listen", "127.0.0.1:0"]);
        assert_eq!(code, 0, "{version}: {stderr}");
        assert_eq!(files_in(&dir.path().join(&out)), ["data"], "{version}");
    }
}

#[test]
fn two_files_that_are_one_on_the_disk_are_not_written_through_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let (bytes_a, bytes_b) = (noise(196_608, 1), noise(196_608, 2));
    let files = [("a.bin", &bytes_a), ("b.bin", &bytes_b), ("c.bin", &bytes_b)];
    fs::create_dir(dir.path().join("data")).unwrap();
    files.iter().for_each(|(name, bytes)| fs::write(dir.path().join("data").join(name), bytes).unwrap());
    let (_sharer, address, magnet) = share(dir.path(), &["data", "--version", "1", "--piece-length", "16KiB"]);
    let out = dir.path().join("out/data");
    fs::create_dir_all(&out).unwrap();
    fs::write(out.join("a.bin"), "").unwrap();
    fs::hard_link(out.join("a.bin"), out.join("b.bin")).unwrap();
    let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", "out"]));
    assert_eq!(code, 5, "{stderr}");
    assert!(stderr.contains("data/b.bin: something else is in its place; move that away"), "{stderr}");
    assert!(stderr.contains("data/a.bin: a hard link"), "{stderr}");
    assert_eq!(fs::read(out.join("a.bin")).unwrap(), b"");
    // Links between files that are the same already may stay.
    fs::remove_file(out.join("b.bin")).unwrap();
    fs::write(out.join("b.bin"), &bytes_b).unwrap();
    fs::hard_link(out.join("b.bin"), out.join("c.bin")).unwrap();
    let (code, _, stderr) = run(dir.path(), &get(&address, &[&magnet, "-o", "out"]));
    assert_eq!(code, 0, "{stderr}");
    assert_same(&out, &files.map(|(name, bytes)| (name.into(), bytes.clone())));
}

/// Stands between a program and the C library: writes down what is synced, and where `$SYNC_FAILS` says so fails once, having
/// dropped some of what was written, as Linux does with pages that a disk did not take. That is once all of it was written.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int failed;
static int sync_by(const char *name, int fd) {
    char link[64], path[4096], last, zeros[65536] = {0};
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len < 0) return 0;
    path[len] = 0;
    FILE *log = fopen(getenv("SYNC_LOG"), "a");
    fprintf(log, "%s\n", path);
    fclose(log);
    if (getenv("SYNC_FAILS") && strstr(path, "a.bin") && pread(fd, &last, 1, 180000) == 1 && last
        && !__sync_lock_test_and_set(&failed, 1)) {
        pwrite(fd, zeros, sizeof zeros, 100000);
        errno = EIO;
        return -1;
    }
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(fd);
}
int fsync(int fd) { return sync_by("fsync", fd); }
int fdatasync(int fd) { return sync_by("fdatasync", fd); }
"#;

/// The shim, built; `None` without a C compiler. It writes where the program has nothing to write, so there is no sandbox around it.
fn shim(dir: &Path) -> Option<std::path::PathBuf> {
    let (source, library) = (dir.join("shim.c"), dir.join("shim.so"));
    fs::write(&source, SHIM).unwrap();
    let built = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .arg("-ldl")
        .status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no C compiler here");
        return None;
    }
    Some(library)
}

#[test]
fn complete_means_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let Some(shim) = shim(dir.path()) else { return };
    let (_sharer, address, magnet, bytes) = sharer(dir.path(), "one", 400_000, 7, &[]);
    let log = dir.path().join("synced");
    let mut command = anabranch(dir.path());
    command
        .env("LD_PRELOAD", &shim)
        .env("ANABRANCH_SANDBOX", "off")
        .env("SYNC_LOG", &log)
        .args(get(&address, &[&magnet, "-o", "out"]));
    let (code, _, stderr) = common::finish(&mut command);
    assert_eq!(code, 0, "{stderr}");
    assert_same(&dir.path().join("out/data"), &[("a.bin".into(), bytes)]);
    let synced = fs::read_to_string(log).unwrap();
    for path in ["out/data/a.bin", "out/data/one", "out/data", "out"] {
        let path = dir.path().join(path).canonicalize().unwrap();
        assert!(synced.lines().any(|line| Path::new(line) == path), "{} in {synced}", path.display());
    }
}

#[test]
fn what_a_failed_sync_dropped_is_noticed_and_fetched_again() {
    let dir = tempfile::tempdir().unwrap();
    let Some(shim) = shim(dir.path()) else { return };
    let (_sharer, address, magnet, bytes) = sharer(dir.path(), "one", 400_000, 7, &[]);
    let mut command = anabranch(dir.path());
    command
        .env("LD_PRELOAD", &shim)
        .env("ANABRANCH_SANDBOX", "off")
        .env("SYNC_LOG", dir.path().join("synced"))
        .env("SYNC_FAILS", "1");
    let (code, stdout, stderr) = common::finish(command.args(get(&address, &[&magnet, "-o", "out", "--json"])));
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains(r#""event":"piece_failed""#) && stdout.contains("cannot sync"), "{stdout}");
    assert_same(&dir.path().join("out/data"), &[("a.bin".into(), bytes)]);
    let (code, stdout, _) = run(dir.path(), &["verify", "one/t.torrent", "out"]);
    assert_eq!(code, 0, "{stdout}");
}

#[test]
#[ignore = "takes a minute: progress is made durable every 30 seconds"]
fn what_a_failed_sync_dropped_on_the_way_is_fetched_again_too() {
    let dir = tempfile::tempdir().unwrap();
    let Some(shim) = shim(dir.path()) else { return };
    let (_sharer, address, magnet, bytes) = sharer(dir.path(), "one", 400_000, 7, &[]);
    assert_ne!(bytes[180_000], 0, "the shim looks at it");
    let mut command = anabranch(dir.path());
    command
        .env("LD_PRELOAD", &shim)
        .env("ANABRANCH_SANDBOX", "off")
        .env("SYNC_LOG", dir.path().join("synced"))
        .env("SYNC_FAILS", "1");
    // Progress is made durable well before the end, and well after the byte that the shim waits for.
    let slow = ["--sequential", "--limit-down", "8KiB", "-o", "out", "--json"];
    let arguments = [&[magnet.as_str()], &slow[..]].concat();
    let (code, stdout, stderr) = common::finish(command.args(get(&address, &arguments)));
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains(r#""event":"piece_failed""#), "{stdout}");
    assert!(!stdout.contains("cannot sync"), "it was not the sync at the end: {stdout}");
    assert_same(&dir.path().join("out/data"), &[("a.bin".into(), bytes)]);
}
