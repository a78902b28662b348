//! The Debian package and the archive, as `make deb` and `make tarball` make them: installed in a root of their own, run from there,
//! upgraded, removed, purged; and what systemd says of the service.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anabranch_testbed::peers::anabranch::program;
use anabranch_testbed::peers::checkout;
use anabranch_testbed::process::Process;

/// Nothing takes longer, with both cores busy elsewhere.
const LIMIT: Duration = Duration::from_secs(120);
/// What `systemd-analyze security` may say at most, in tenths: the lower, the less a fault in the service reaches.
const EXPOSURE_MAX: u32 = 20;

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {said}");
    output
}

/// Makes a package of the program under test.
fn package(kind: &str, out: &Path) -> PathBuf {
    let script = checkout().join("packaging/package.sh");
    let program = program().unwrap_or_else(|error| panic!("{error}"));
    let made = run(Command::new(script).arg(kind).arg(program).arg(out));
    PathBuf::from(String::from_utf8_lossy(&made.stdout).trim())
}

/// Asks dpkg something about a root that has nothing in it but this package.
fn dpkg(root: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("dpkg");
    command.arg(format!("--root={}", root.display()));
    // The scripts are the host's to run, and the libraries are the host's.
    command.args(["--force-script-chrootless", "--force-not-root", "--force-depends", "--force-bad-path"]);
    run(command.args(arguments))
}

fn files(root: &Path) -> BTreeSet<String> {
    let found = run(Command::new("find").arg(root).args([
        "-type",
        "f",
        "-not",
        "-path",
        "*/var/lib/dpkg/*",
        "-printf",
        "%P\n",
    ]));
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

/// Runs the daemon of an installed tree, asks it, and has it end.
fn serves(program: &Path, config: &Path) {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let mut command = Command::new(program);
    command
        .env("XDG_CONFIG_HOME", config)
        .env("XDG_STATE_HOME", dir.path())
        .env("ANABRANCH_DHT", "off")
        .env("ANABRANCH_LSD", "off");
    command.args(["daemon", "--json", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--dir"]).arg(dir.path());
    command.arg("--state-dir").arg(&state);
    let mut daemon = Process::spawn("anabranch daemon", &mut command).unwrap();
    let (serving, _) = daemon.wait_event("serving", LIMIT).unwrap();
    let socket = serving["socket"].as_str().unwrap().to_owned();
    let status = run(Command::new(program).env("XDG_CONFIG_HOME", config).args(["status", "--daemon", &socket]));
    assert!(String::from_utf8_lossy(&status.stdout).contains("version"));
    daemon.stop().unwrap();
}

#[test]
fn the_package_is_installed_run_upgraded_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let deb = package("deb", &dir.path().join("out"));
    let again = package("deb", &dir.path().join("again"));
    assert!(fs::read(&deb).unwrap() == fs::read(&again).unwrap(), "the same program makes the same package");

    let root = dir.path().join("root");
    fs::create_dir_all(root.join("var/lib/dpkg/updates")).unwrap();
    fs::create_dir_all(root.join("var/lib/dpkg/info")).unwrap();
    for list in ["status", "available"] {
        fs::write(root.join("var/lib/dpkg").join(list), "").unwrap();
    }
    let deb = deb.to_string_lossy().into_owned();
    dpkg(&root, &["--install", &deb]);
    let there = files(&root);
    for wanted in [
        "usr/bin/anabranch",
        "usr/lib/systemd/system/anabranch.service",
        "etc/anabranch/config.toml",
        "usr/share/man/man1/anabranch.1.gz",
        "usr/share/man/man1/anabranch-daemon.1.gz",
        "usr/share/man/man1/anabranch-password.1.gz",
        "usr/share/bash-completion/completions/anabranch",
        "usr/share/zsh/vendor-completions/_anabranch",
        "usr/share/fish/vendor_completions.d/anabranch.fish",
        "usr/share/doc/anabranch/operations.md",
        "usr/share/doc/anabranch/copyright",
    ] {
        assert!(there.contains(wanted), "{wanted} is not in {there:?}");
    }
    let program = root.join("usr/bin/anabranch");
    serves(&program, &root.join("etc"));

    // What the administrator wrote stays over an upgrade, and what is wrong in it is told with its line.
    let config = root.join("etc/anabranch/config.toml");
    let mut text = fs::read_to_string(&config).unwrap();
    text.push_str("\nlimit-up = \"5M\"\n");
    fs::write(&config, &text).unwrap();
    dpkg(&root, &["--install", &deb]);
    assert_eq!(fs::read_to_string(&config).unwrap(), text);
    serves(&program, &root.join("etc"));
    fs::write(&config, format!("{text}limit-upp = 5\n")).unwrap();
    let refused = Command::new(&program).env("XDG_CONFIG_HOME", root.join("etc")).arg("daemon").output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("limit-up"));

    let state = root.join("var/lib/private/anabranch");
    fs::create_dir_all(state.join("daemon")).unwrap();
    fs::create_dir_all(state.join("files")).unwrap();
    fs::write(state.join("daemon/token"), "secret").unwrap();
    fs::write(state.join("files/film"), "film").unwrap();
    dpkg(&root, &["--remove", "anabranch"]);
    let kept =
        ["etc/anabranch/config.toml", "var/lib/private/anabranch/daemon/token", "var/lib/private/anabranch/files/film"];
    assert_eq!(files(&root), kept.map(str::to_owned).into());
    dpkg(&root, &["--purge", "anabranch"]);
    assert_eq!(files(&root), [kept[2].to_owned()].into(), "what was fetched is the user's");
}

#[test]
fn the_archive_is_unpacked_and_runs() {
    let dir = tempfile::tempdir().unwrap();
    let archive = package("tarball", dir.path());
    run(Command::new("tar").arg("-C").arg(dir.path()).args(["--strip-components", "1", "-xzf"]).arg(archive));
    assert!(dir.path().join("share/anabranch/anabranch.service").exists() && dir.path().join("LICENSE").exists());
    serves(&dir.path().join("bin/anabranch"), &dir.path().join("nothing"));
}

#[test]
fn systemd_takes_the_service_and_finds_little_that_it_may() {
    let dir = tempfile::tempdir().unwrap();
    let unit = fs::read_to_string(checkout().join("packaging/anabranch.service")).unwrap();
    let path = dir.path().join("anabranch.service");
    let program = program().unwrap_or_else(|error| panic!("{error}"));
    fs::write(&path, unit.replace("/usr/bin/anabranch", &program.to_string_lossy())).unwrap();
    let verified = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path));
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    assert!(!said.contains("anabranch.service:"), "{said}");
    let threshold = format!("--threshold={EXPOSURE_MAX}");
    run(Command::new("systemd-analyze").args(["security", "--offline=yes", &threshold]).arg(&path));
}
