//! The program as its users meet it: started with arguments, read by its output and exit code.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod bulk;
pub(crate) mod embedded;
pub(crate) mod net;

use std::io::{BufRead, BufReader, PipeReader, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest that any run takes, with both cores busy elsewhere.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program, without what the environment of the tests might say to it.
pub(crate) fn anabranch(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
    command
        .current_dir(dir)
        .env("XDG_CONFIG_HOME", dir.join("no-config"))
        .env("XDG_CACHE_HOME", dir.join("cache"))
        .env("XDG_STATE_HOME", dir.join("state"));
    for name in ["SCION_DAEMON_ADDRESS", "SCION_DAEMON", "SCION_LOCAL_ADDR", "SCION_HOSTS_FILES"] {
        command.env_remove(name);
    }
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ANABRANCH_")) {
        command.env_remove(name);
    }
    // Nothing is sent or looked up abroad: tests of these name their own nodes.
    command.env("ANABRANCH_DHT", "off").env("ANABRANCH_LSD", "off").env("ANABRANCH_PORT_MAPPING", "off");
    command
}

/// Runs it to its end: exit code, standard output, standard error.
pub(crate) fn run(dir: &Path, arguments: &[&str]) -> (i32, String, String) {
    finish(anabranch(dir).args(arguments))
}

/// Runs a prepared command to its end.
pub(crate) fn finish(command: &mut Command) -> (i32, String, String) {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let watchdog = Watchdog::new(child.id(), PATIENCE);
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    drop(watchdog);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

/// Kills a program that hangs, so that the test fails instead of waiting.
struct Watchdog(std::sync::mpsc::Sender<()>);

impl Watchdog {
    fn new(pid: u32, patience: Duration) -> Self {
        let (alive, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            if done.recv_timeout(patience) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                signal(pid, "KILL");
            }
        });
        Self(alive)
    }
}

/// Sends a signal to a program that a test started.
pub(crate) fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
}

/// A program that goes on until it is interrupted.
pub(crate) struct Running {
    pub child: Child,
    out: BufReader<PipeReader>,
    _watchdog: Watchdog,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::start_for(command, PATIENCE)
    }

    /// One that may take longer than others.
    pub(crate) fn start_for(command: &mut Command, patience: Duration) -> Self {
        Self::start_reading(command, Stdio::null(), patience)
    }

    /// One that reads this.
    pub(crate) fn start_with(command: &mut Command, input: Stdio) -> Self {
        Self::start_reading(command, input, PATIENCE)
    }

    fn start_reading(command: &mut Command, input: Stdio, patience: Duration) -> Self {
        let mut child = command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let out = OwnedFd::from(child.stdout.take().unwrap()).into();
        Self::reading(child, out, patience)
    }

    /// One whose lines are those of standard output and standard error, as in a terminal.
    pub(crate) fn start_in_words(command: &mut Command) -> Self {
        let (out, both) = std::io::pipe().unwrap();
        command.stdin(Stdio::null()).stdout(both.try_clone().unwrap()).stderr(both);
        let child = command.spawn().unwrap();
        // The command keeps its ends of the pipe for another start: what the program wrote would never end.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self::reading(child, out, PATIENCE)
    }

    fn reading(child: Child, out: PipeReader, patience: Duration) -> Self {
        let watchdog = Watchdog::new(child.id(), patience);
        Self { child, out: BufReader::new(out), _watchdog: watchdog }
    }

    /// The next line that has this in it.
    pub(crate) fn line_with(&mut self, text: &str) -> String {
        loop {
            let line = self.line();
            if line.contains(text) {
                return line;
            }
        }
    }

    /// The next line.
    pub(crate) fn line(&mut self) -> String {
        self.line_or_end().expect("the program ended")
    }

    /// The next line; `None` where there will be no more.
    pub(crate) fn line_or_end(&mut self) -> Option<String> {
        let mut line = String::new();
        let len = self.out.read_line(&mut line).unwrap_or(0);
        (len > 0).then(|| line.trim_end().to_owned())
    }

    /// The next event of a kind.
    pub(crate) fn event(&mut self, name: &str) -> Value {
        loop {
            let event: Value = serde_json::from_str(&self.line()).unwrap();
            if event["event"] == name {
                return event;
            }
        }
    }

    /// Ends it as Ctrl-C does: exit code and what was left to read.
    pub(crate) fn interrupt(mut self) -> (i32, String) {
        signal(self.child.id(), "INT");
        let asked = Instant::now();
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        assert!(asked.elapsed() < PATIENCE / 2, "it took its time to end");
        (code, rest)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Shares `path` on loopback: the program, its address and its magnet link.
pub(crate) fn share(dir: &Path, arguments: &[&str]) -> (Running, String, String) {
    let mut running =
        Running::start(anabranch(dir).args(["share", "--listen", "127.0.0.1:0", "--json"]).args(arguments));
    let address = running.event("listening")["address"].as_str().unwrap().to_owned();
    let magnet = running.event("started")["magnet"].as_str().unwrap().to_owned();
    (running, address, magnet)
}

/// `get` from one peer.
pub(crate) fn get<'a>(address: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&["get", "--listen", "127.0.0.1:0", "--peer", address], rest].concat()
}

/// Bytes that look random and are the same every time.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// A folder `tree` with files of odd sizes, empty ones and a folder in a folder.
pub(crate) fn tree(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files: Vec<(PathBuf, Vec<u8>)> =
        [("a.bin", 300_001), ("empty", 0), ("sub/b.txt", 17), ("sub/deep/c.bin", 65_536), ("sub/none", 0)]
            .into_iter()
            .enumerate()
            .map(|(seed, (path, length))| (Path::new("tree").join(path), noise(length, seed as u64)))
            .collect();
    for (path, bytes) in &files {
        let path = dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    files
}

/// Whether `files` are below `dir`, byte for byte.
pub(crate) fn assert_same(dir: &Path, files: &[(PathBuf, Vec<u8>)]) {
    for (path, bytes) in files {
        assert!(std::fs::read(dir.join(path)).unwrap() == *bytes, "{} differs", path.display());
    }
}
