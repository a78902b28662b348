//! `--sandbox`: processes that are shut in, on kernels that can and on one that cannot; and what is done outside for them. What the bounds
//! keep from a process is tried in the crate that draws them.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Running, anabranch, finish, noise, run, share, signal};

/// Nothing takes longer, with both cores busy elsewhere.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether this kernel has Landlock, new enough.
fn has_landlock() -> bool {
    const VERSION: libc::c_ulong = 1;
    // SAFETY: asked for its version, the call looks at no memory.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, VERSION) >= 2 }
}

/// Of each thread of a process: whether it may gain privileges, and by what its system calls are judged.
fn threads(pid: u32) -> Vec<(String, String)> {
    let field = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim().to_owned()
    };
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = |path: std::path::PathBuf| fs::read_to_string(path.join("status")).ok();
    let texts = tasks.filter_map(|task| status(task.unwrap().path()));
    texts.map(|text| (field(&text, "NoNewPrivs:"), field(&text, "Seccomp:"))).collect()
}

/// A kernel without Landlock, as far as the program can tell: its calls are answered so.
fn without_landlock(command: &mut Command) -> &mut Command {
    let deny = || {
        let instruction = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
        let first = libc::SYS_landlock_create_ruleset as u32;
        let filter = [
            // The number of the call is in front.
            instruction((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0),
            instruction((libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16, first, 0, 2),
            instruction((libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16, first + 2, 1, 0),
            instruction((libc::BPF_RET | libc::BPF_K) as u16, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32, 0, 0),
            instruction((libc::BPF_RET | libc::BPF_K) as u16, libc::SECCOMP_RET_ALLOW, 0, 0),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: both calls take numbers, and a program that outlives them.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: what is done between fork and exec takes no lock and no memory.
    unsafe { command.pre_exec(deny) }
}

#[test]
fn every_thread_of_a_running_transfer_is_shut_in() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(3_000_000, 1)).unwrap();
    for (wish, expected) in [("auto", ("1", "2")), ("off", ("0", "0"))] {
        let out = format!("out-{wish}");
        let (sharing, address, magnet) = share(dir.path(), &["one.bin", "--limit-up", "100K", "--sandbox", wish]);
        let arguments = ["get", &magnet, "-o", &out, "--listen", "127.0.0.1:0", "--peer", &address, "--json"];
        let mut getting = Running::start(anabranch(dir.path()).args(arguments).args(["--sandbox", wish]));
        getting.event("progress");
        for pid in [sharing.child.id(), getting.child.id()] {
            let found = threads(pid);
            let is_so = |(privileges, calls): &(String, String)| (privileges.as_str(), calls.as_str()) == expected;
            assert!(found.len() > 1 && found.iter().all(is_so), "{wish}: {found:?}");
        }
    }
}

#[test]
fn a_kernel_without_landlock_goes_on_unless_it_is_required() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(100_000, 1)).unwrap();
    let (_sharing, address, magnet) = share(dir.path(), &["one.bin"]);
    let get = |out: &str, wish: &str| {
        let mut command = anabranch(dir.path());
        command.args([
            "get",
            &magnet,
            "-o",
            out,
            "--listen",
            "127.0.0.1:0",
            "--peer",
            &address,
            "-v",
            "--sandbox",
            wish,
        ]);
        command
    };
    let (code, _, stderr) = finish(without_landlock(&mut get("a", "auto")));
    assert!(code == 0 && stderr.contains("sandbox: files: not held"), "{code}: {stderr}");
    assert_eq!(fs::read(dir.path().join("a/one.bin")).unwrap(), noise(100_000, 1));
    let (code, _, stderr) = finish(without_landlock(&mut get("b", "require")));
    assert!(code == 1 && stderr.contains("Landlock") && stderr.contains("--sandbox auto"), "{code}: {stderr}");
    assert!(!dir.path().join("b").exists());
    let (code, _, stderr) = finish(&mut get("c", "require"));
    if has_landlock() {
        assert!(code == 0 && stderr.contains("sandbox: files: Landlock; system calls: seccomp"), "{code}: {stderr}");
    } else {
        assert_eq!(code, 1, "{stderr}");
    }
}

#[test]
fn folders_that_were_made_for_nothing_go() {
    let dir = tempfile::tempdir().unwrap();
    let (code, _, stderr) = run(dir.path(), &["get", "nowhere.torrent", "-o", "new/deep", "--path-log", "log.csv"]);
    assert!(code == 3 && stderr.contains("nowhere.torrent"), "{stderr}");
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_is_to_be_done_elsewhere_is_done_outside() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("elsewhere")).unwrap();
    fs::write(at("one.bin"), noise(100_000, 1)).unwrap();
    let (_sharing, address, magnet) = share(dir.path(), &["one.bin"]);
    let save = |place: &str| {
        let source = ["get", &magnet, "-o", "out", "--listen", "127.0.0.1:0", "--peer", &address];
        let more = ["--save-torrent", place, "--on-complete", "cp \"$CONTENT_PATH\" elsewhere/copy"];
        run(dir.path(), &[&source[..], &more].concat())
    };
    let (code, _, stderr) = save("elsewhere/one.torrent");
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(fs::read(at("elsewhere/copy")).unwrap(), noise(100_000, 1));
    let (code, stdout, _) = run(dir.path(), &["show", "elsewhere/one.torrent"]);
    assert!(code == 0 && stdout.contains("one.bin"), "{stdout}");
    // Its errors are the same, with their codes.
    let (code, _, stderr) = save("nowhere/one.torrent");
    assert!(code == 5 && stderr.contains("cannot write nowhere/one.torrent"), "{code}: {stderr}");
    let (code, _, stderr) = save("one.bin");
    assert!(code == 2 && stderr.contains("exists and is no torrent"), "{code}: {stderr}");
    assert_eq!(fs::read(at("one.bin")).unwrap(), noise(100_000, 1));
}

/// A daemon that ends with the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a daemon says, until it says `needle`.
fn said(lines: &mut impl Iterator<Item = std::io::Result<String>>, needle: &str) -> String {
    let mut all = String::new();
    for line in lines {
        all += &line.unwrap();
        all.push('\n');
        if all.contains(needle) {
            return all;
        }
    }
    panic!("it ended without a word about `{needle}`: {all}");
}

fn until_there(path: &Path) {
    let began = Instant::now();
    while !path.exists() {
        assert!(began.elapsed() < PATIENCE, "{} is not made", path.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_daemon_takes_in_a_command_and_no_folder_that_it_cannot_reach() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    ["one", "two/films", "two/etc"].iter().for_each(|name| fs::create_dir_all(dir.path().join(name)).unwrap());
    fs::write(one.join("big"), noise(300_000, 5)).unwrap();
    let (_sharing, _, magnet) = share(&one, &["big"]);
    let config = two.join("etc/c.toml");
    fs::write(&config, "").unwrap();
    let places = ["--dir", "files", "--state-dir", "lib", "--config", "etc/c.toml"];
    let mut command = anabranch(&two);
    command.args(["daemon", "--api", "none", "--listen", "127.0.0.1:0"]).args(places).stderr(Stdio::piped());
    let mut daemon = Daemon(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    let mut lines = BufReader::new(daemon.0.stderr.take().unwrap()).lines();
    said(&mut lines, "socket: ");
    let films = two.join("films");
    // As editors do, another file is put in its place.
    let text =
        format!("[daemon]\nallow-dir = [{films:?}]\non-complete = 'echo \"$CONTENT_NAME\" >made; mv made done'\n");
    fs::write(two.join("etc/new"), text).unwrap();
    fs::rename(two.join("etc/new"), &config).unwrap();
    signal(daemon.0.id(), "HUP");
    let told = said(&mut lines, "the configuration was read again; ");
    assert_eq!(told.contains("films is out of the sandbox's reach"), has_landlock(), "{told}");
    let add = |more: &[&str]| run(&two, &[&["add", &magnet, "--daemon", "./lib/daemon.sock"], more].concat());
    if has_landlock() {
        let (code, _, stderr) = add(&["--into", films.to_str().unwrap()]);
        assert!(code == 3 && stderr.contains("--allow-dir"), "{code}: {stderr}");
    }
    let (code, _, stderr) = add(&[]);
    assert_eq!(code, 0, "{stderr}");
    until_there(&two.join("done"));
    assert_eq!(fs::read_to_string(two.join("done")).unwrap(), "big\n");
    assert_eq!(fs::read(two.join("files/big")).unwrap(), noise(300_000, 5));
    signal(daemon.0.id(), "TERM");
    assert_eq!(daemon.0.wait().unwrap().code(), Some(0));
}
