//! The programs that a run starts: each inside a namespace, with its output in files, ended with the run.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::BedError;
use crate::netns::Namespace;

/// How long a program may take to end when asked.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a program that ends is looked at.
const END_POLL: Duration = Duration::from_millis(5);
/// Bytes of output that are read in one go.
const READ_BYTES: usize = 256 << 10;
/// Bytes of one line of output: an event with some hundred candidate paths.
const LINE_BYTES_MAX: usize = 4 << 20;

/// A running program. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    pid: i32,
    ended: Option<Ended>,
    /// Since when it is asked to end.
    asked: Option<Instant>,
    out: PathBuf,
    errors: PathBuf,
    /// How far its output is read, and what of it is no whole line yet.
    read: u64,
    rest: Vec<u8>,
}

/// What a program cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// Seconds of processors, of the program and the kernel for it.
    pub cpu: f64,
}

impl Program {
    /// Starts `command` inside `namespace`; what it says goes to `NAME.out` and `NAME.err` in `dir`.
    pub(crate) fn start(name: &str, mut command: Command, namespace: &Namespace, dir: &Path) -> Result<Self, BedError> {
        let [out, errors] = ["out", "err"].map(|ending| dir.join(format!("{name}.{ending}")));
        let create = |path: &Path| File::create(path).map_err(|error| BedError::file(path, error));
        command.stdin(Stdio::null()).stdout(create(&out)?).stderr(create(&errors)?);
        // Ctrl-C on the terminal is for the lab, which then ends them in their order.
        command.process_group(0);
        let inside = namespace.open()?;
        // SAFETY: the calls change the new process alone, and none allocates or locks.
        unsafe {
            command.pre_exec(move || {
                if libc::setns(inside.as_raw_fd(), libc::CLONE_NEWNET) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // Shells let what they start in the background ignore Ctrl-C, and so would everything that it starts.
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                // Nobody outlives the lab, however it ends, but for those that give up root; they are found by their namespace.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|error| BedError::Start { program, error })?;
        // Linux has no larger process numbers.
        let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
        Ok(Self { name: name.to_owned(), pid, ended: None, asked: None, out, errors, read: 0, rest: Vec::new() })
    }

    /// The JSON events that it has told since the last call.
    pub(crate) fn events(&mut self) -> Result<Vec<Value>, BedError> {
        let failed = |error| BedError::file(&self.out, error);
        let mut file = File::open(&self.out).map_err(failed)?;
        file.seek(SeekFrom::Start(self.read)).map_err(failed)?;
        let mut events = Vec::new();
        let mut chunk = vec![0; READ_BYTES];
        loop {
            let count = file.read(&mut chunk).map_err(failed)?;
            if count == 0 {
                return Ok(events);
            }
            self.read += count as u64;
            self.rest.extend_from_slice(&chunk[..count]);
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                events.push(serde_json::from_slice(&line).unwrap_or(Value::Null));
            }
            if self.rest.len() > LINE_BYTES_MAX {
                self.rest.clear();
            }
        }
    }

    /// Where its output is.
    pub(crate) fn output(&self) -> &Path {
        &self.out
    }

    /// Waits until its output has `text` in it.
    pub(crate) fn wait_text(&mut self, text: &str, limit: Duration) -> Result<(), BedError> {
        let out = self.out.clone();
        let has_said = || Ok(fs::read_to_string(&out).is_ok_and(|said| said.contains(text)));
        self.wait(limit, &format!("did not say `{text}`"), has_said)
    }

    /// Waits until it takes calls, which `takes_calls` finds out.
    pub(crate) fn wait_listening(
        &mut self,
        limit: Duration,
        takes_calls: impl FnMut() -> Result<bool, BedError>,
    ) -> Result<(), BedError> {
        self.wait(limit, "took no calls", takes_calls)
    }

    /// Waits until something holds that it does while it runs; `lacks` is what it did otherwise.
    fn wait(
        &mut self,
        limit: Duration,
        lacks: &str,
        mut holds: impl FnMut() -> Result<bool, BedError>,
    ) -> Result<(), BedError> {
        let asked = Instant::now();
        while !holds()? {
            if self.has_ended() {
                return Err(self.failure("ended early"));
            }
            if asked.elapsed() > limit {
                return Err(self.failure(&format!("{lacks} within {} s", limit.as_secs())));
            }
            thread::sleep(END_POLL);
        }
        Ok(())
    }

    /// Waits until it has told of `event`.
    pub(crate) fn wait_event(&mut self, event: &str, limit: Duration) -> Result<Value, BedError> {
        let asked = Instant::now();
        loop {
            // Looked at before its output is: what ends in between has said all of it.
            let has_ended = self.has_ended();
            if let Some(found) = self.events()?.into_iter().find(|told| told["event"] == event) {
                return Ok(found);
            }
            if has_ended {
                return Err(self.failure("ended early"));
            }
            if asked.elapsed() > limit {
                return Err(self.failure(&format!("did not tell of `{event}` within {} s", limit.as_secs())));
            }
            thread::sleep(END_POLL);
        }
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.reap(libc::WNOHANG);
        self.ended.is_some()
    }

    /// That it did what it should not, as an error with its last words.
    pub(crate) fn failure(&self, what: &str) -> BedError {
        let said = fs::read_to_string(&self.errors).unwrap_or_default();
        let said = said.lines().last().unwrap_or("nothing").to_owned();
        BedError::Program { name: self.name.clone(), what: what.to_owned(), said, log: self.errors.clone() }
    }

    /// Asks it to end, as Ctrl-C does.
    pub(crate) fn interrupt(&mut self) {
        self.asked.get_or_insert_with(Instant::now);
        self.signal(libc::SIGINT);
    }

    /// Kills it, and says what it cost.
    pub(crate) fn kill(&mut self) -> Ended {
        self.signal(libc::SIGKILL);
        self.reap(0);
        self.ended.unwrap_or(Ended { cpu: 0.0 })
    }

    /// Waits for its end, kills it where it does not come, and says what it cost. Those that were asked at once are waited for at once.
    pub(crate) fn end(&mut self) -> Ended {
        self.end_within(END_TIMEOUT)
    }

    /// The same with another limit.
    pub(crate) fn end_within(&mut self, limit: Duration) -> Ended {
        let asked = *self.asked.get_or_insert_with(Instant::now);
        while !self.has_ended() && asked.elapsed() < limit {
            thread::sleep(END_POLL);
        }
        self.kill()
    }

    fn signal(&self, signal: i32) {
        if self.ended.is_none() {
            // SAFETY: the call reads two numbers; the process was not waited for, so the number is still its own.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    fn reap(&mut self, flags: i32) {
        if self.ended.is_some() {
            return;
        }
        let mut status = 0;
        // SAFETY: rusage is plain integers, for which zero is valid; the process is our own child, not waited for.
        let (reaped, cost) = unsafe {
            let mut cost: libc::rusage = std::mem::zeroed();
            (libc::wait4(self.pid, &mut status, flags, &mut cost), cost)
        };
        if reaped == self.pid {
            let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
            self.ended = Some(Ended { cpu: seconds(cost.ru_utime) + seconds(cost.ru_stime) });
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
        self.reap(0);
    }
}

/// Lets a program that is in no namespace, and so is found by nobody, end with the thread that starts it.
pub(crate) fn dies_with_us(command: &mut Command) {
    // SAFETY: the call changes a setting of the new process and neither allocates nor locks.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// A command of `program`, as if nobody had configured anything: a run is the same for everybody. Its folders for
/// configuration, cache and state are where none can be, so that no run finds what another one kept.
pub(crate) fn bare(program: &Path) -> Command {
    let mut command = Command::new(program);
    for name in ["XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"] {
        // Nothing is there, and nobody can make anything there.
        command.env(name, "/proc/none");
    }
    let ours =
        std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_string_lossy().starts_with("ANABRANCH_"));
    for name in ours.chain(["SCION_DAEMON_ADDRESS", "SCION_DAEMON", "SCION_LOCAL_ADDR"].map(Into::into)) {
        command.env_remove(name);
    }
    // Peers meet as the plan says, and by nothing else.
    command.env("ANABRANCH_DHT", "off").env("ANABRANCH_LSD", "off").env("ANABRANCH_UTP", "off");
    command.env("ANABRANCH_PORT_MAPPING", "off");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell in a namespace that has run `script`, and its folder; `None` where there are no namespaces.
    fn shell(name: &str, script: &str) -> Option<(Program, Namespace, PathBuf)> {
        if !crate::netns::available() {
            eprintln!("not run: namespaces need root");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("anabranch-lab-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let namespace = Namespace::new().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{script}; echo ready; while :; do sleep 0.02; done")]);
        let mut program = Program::start(name, command, &namespace, &folder).unwrap();
        program.wait_text("ready", Duration::from_secs(60)).unwrap();
        Some((program, namespace, folder))
    }

    #[test]
    fn who_does_not_end_when_asked_is_killed() {
        let Some((mut program, _namespace, folder)) = shell("deaf", "trap '' INT") else { return };
        program.interrupt();
        assert!(!program.has_ended());
        program.end_within(Duration::from_millis(50));
        assert!(program.has_ended());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn programs_end_when_asked_though_the_lab_was_started_in_the_background() {
        // As a shell starts what it does not wait for, until the program is there: others are tested in this process too.
        // SAFETY: the disposition of this process alone.
        let before = unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        // A shell cannot trap what was ignored when it began.
        let started = shell("shell", "trap 'echo ends; exit' INT");
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGINT, before) };
        let Some((mut program, _namespace, folder)) = started else { return };
        program.interrupt();
        program.wait_text("ends", Duration::from_secs(60)).unwrap();
        program.end();
        fs::remove_dir_all(&folder).unwrap();
    }
}
