//! The programs that a scenario starts: followed by their events, ended with it.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::DemoError;
use crate::run::{Event, EventReader, Side};

/// Lines read ahead: a program that says more is held up until they are taken.
const LINES_MAX: usize = 1024;
/// How long a program may take to end when asked.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is looked at meanwhile.
const END_POLL: Duration = Duration::from_millis(5);

/// A running program of ours. Dropped, it ends.
pub(super) struct Running {
    /// The command: `get`, `share`.
    name: &'static str,
    child: Child,
    lines: Receiver<String>,
    reader: EventReader,
    logs: Logs,
}

/// Where what a program says is kept.
struct Logs {
    events: PathBuf,
    errors: PathBuf,
}

/// What came of waiting for an event.
pub(super) enum Next {
    /// This one.
    Event(Event),
    /// None yet.
    Nothing,
    /// There will be no more: the program has ended.
    Ended,
}

/// The program, as if nobody had configured anything: a report is the same for everybody.
fn command(program: &Path, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(dir)
        .env("XDG_CONFIG_HOME", dir.join("no-config"))
        .env("XDG_CACHE_HOME", dir.join("no-cache"))
        .env("XDG_STATE_HOME", dir.join("no-state"))
        .stdin(Stdio::null());
    let ours =
        std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_string_lossy().starts_with("ANABRANCH_"));
    for name in ours.chain(["SCION_DAEMON_ADDRESS", "SCION_DAEMON", "SCION_LOCAL_ADDR"].map(Into::into)) {
        command.env_remove(name);
    }
    // The demo's network is all there is.
    command.env("ANABRANCH_DHT", "off").env("ANABRANCH_LSD", "off").env("ANABRANCH_PORT_MAPPING", "off");
    // Ctrl-C on the terminal is for us, who then end them in their order.
    command.process_group(0);
    // SAFETY: the call changes a setting of the new process and neither allocates nor locks.
    unsafe {
        command.pre_exec(|| {
            // Nobody outlives us, however we end; where the system refuses, they end when they are told to.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command
}

/// Runs a command to its end.
pub(super) fn finish(program: &Path, dir: &Path, name: &str, arguments: &[&str]) -> Result<(), DemoError> {
    let logs = dir.join(format!("{name}.err"));
    let errors = File::create(&logs).map_err(|error| DemoError::file(&logs, error))?;
    let mut command = command(program, dir);
    let status = command.args(arguments).stdout(Stdio::null()).stderr(errors).status();
    let status = status.map_err(|error| DemoError::Start { program: program.to_path_buf(), error })?;
    if status.success() {
        return Ok(());
    }
    Err(DemoError::Ended { command: name.to_owned(), reason: last_line(&logs), logs })
}

impl Running {
    /// Starts a command in `dir`; what it says is kept in files whose names begin with `label`.
    pub(super) fn start(
        program: &Path,
        dir: &Path,
        label: &str,
        name: &'static str,
        arguments: &[String],
    ) -> Result<Self, DemoError> {
        let log = |ending: &str| dir.join(format!("{label}.{name}.{ending}"));
        let logs = Logs { events: log("jsonl"), errors: log("err") };
        let create = |path: &Path| File::create(path).map_err(|error| DemoError::file(path, error));
        let (mut kept, errors) = (create(&logs.events)?, create(&logs.errors)?);
        let mut command = command(program, dir);
        let started = command.arg(name).args(arguments).stdout(Stdio::piped()).stderr(errors).spawn();
        let mut child = started.map_err(|error| DemoError::Start { program: program.to_path_buf(), error })?;
        let (send, lines) = sync_channel(LINES_MAX);
        if let Some(out) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(out).lines() {
                    let Ok(line) = line else { return };
                    // What cannot be kept is still told.
                    drop(writeln!(kept, "{line}"));
                    if send.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        let side = if name == "share" { Side::Uploader } else { Side::Downloader };
        let reader = EventReader::new(&logs.events.display().to_string(), side);
        Ok(Self { name, child, lines, reader, logs })
    }

    /// The next event, if there is one within `timeout`.
    pub(super) fn next(&mut self, timeout: Duration) -> Result<Next, DemoError> {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => Ok(Next::Event(self.reader.read(&line)?)),
            Err(RecvTimeoutError::Timeout) => Ok(Next::Nothing),
            Err(RecvTimeoutError::Disconnected) => Ok(Next::Ended),
        }
    }

    /// What it has said meanwhile. It must not have ended.
    pub(super) fn told(&mut self) -> Result<Vec<Event>, DemoError> {
        let mut events = Vec::new();
        // What it says from now on is for the next time.
        while events.len() < LINES_MAX {
            match self.next(Duration::ZERO)? {
                Next::Event(event) => events.push(event),
                Next::Nothing => break,
                Next::Ended => return Err(self.ended()),
            }
        }
        Ok(events)
    }

    /// Why it ended, as an error.
    pub(super) fn ended(&self) -> DemoError {
        let (command, logs) = (self.name.to_owned(), self.logs.errors.clone());
        DemoError::Ended { command, reason: last_line(&logs), logs }
    }

    /// That it goes on without getting anywhere, as an error.
    pub(super) fn stuck(&self, time: Duration) -> DemoError {
        DemoError::Stuck { command: self.name.to_owned(), seconds: time.as_secs(), logs: self.logs.events.clone() }
    }

    /// Waits for its end; `None` if it goes on for too long.
    pub(super) fn wait(&mut self) -> Option<ExitStatus> {
        let asked = Instant::now();
        while asked.elapsed() < END_TIMEOUT {
            // Nobody takes its lines any more, which must not hold it up.
            while self.lines.try_recv().is_ok() {}
            match self.child.try_wait() {
                Ok(None) => thread::sleep(END_POLL),
                Ok(Some(status)) => return Some(status),
                Err(_) => return None,
            }
        }
        None
    }

    /// Ends it as Ctrl-C would, so that it says goodbye to its peers.
    pub(super) fn interrupt(mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // It was not waited for, so the number is still its own. Linux has no larger process numbers.
            let process = i32::try_from(self.child.id()).unwrap_or(i32::MAX);
            // SAFETY: the call reads two numbers.
            unsafe { libc::kill(process, libc::SIGINT) };
        }
        // Whoever does not end now is killed.
        let _ = self.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails for those that have ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The last thing that a program said on standard error.
fn last_line(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().last().map_or_else(|| "it said nothing".to_owned(), str::to_owned)
}
