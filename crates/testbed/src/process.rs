//! A child process: a deadline on every wait, its CPU time and peak memory, killed by pid when dropped.
//!
//! The peak is the kernel's `VmHWM`, looked at every few milliseconds while the process runs.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{Error, Result};

/// Lines of stdout held for the test. A peer that prints more than this unread loses the newest ones.
const LINES_MAX: usize = 64 * 1024;
/// Lines of output kept for error messages.
const LOG_LINES_MAX: usize = 60;
/// How long an interrupted process may take to end before it is killed.
const GRACE: Duration = Duration::from_secs(10);

/// How long the last output of an ended process is waited for.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);
/// How often a process's memory is looked at.
const MEMORY_EVERY: Duration = Duration::from_millis(10);

/// What a process cost.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// From start to end.
    pub wall: Duration,
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in the kernel.
    pub sys: Duration,
    /// Largest resident set, bytes.
    pub rss_bytes_max: u64,
    /// How it ended.
    pub status: ExitStatus,
}

impl Usage {
    /// User and kernel time together.
    pub fn cpu(&self) -> Duration {
        self.user + self.sys
    }
}

/// A line of stdout and when it arrived.
#[derive(Clone, Debug)]
pub struct Line {
    /// Without the newline.
    pub text: String,
    /// When the reader saw it.
    pub at: Instant,
}

impl Line {
    /// The line as a JSON object; `Null` for anything else.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }
}

/// A running (or ended) child.
pub struct Process {
    name: String,
    pid: i32,
    pidfd: OwnedFd,
    started: Instant,
    lines: Receiver<Line>,
    log: Arc<Mutex<VecDeque<String>>>,
    usage: Option<Usage>,
    /// Read its output; done once it has ended.
    readers: Vec<JoinHandle<()>>,
    /// Largest resident set seen since it became its own program, bytes.
    rss_bytes_max: Arc<AtomicU64>,
}

impl Process {
    /// Starts `command`; stdin is empty, stdout and stderr are read here. The child dies with the thread that started it.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(name: impl Into<String>, command: &mut Command) -> Result<Self> {
        Self::start(name.into(), command, Stdio::null()).map(|(process, _)| process)
    }

    /// The same, and what writes to its stdin, which ends when that is dropped.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn_fed(name: impl Into<String>, command: &mut Command) -> Result<(Self, ChildStdin)> {
        let name = name.into();
        let (process, input) = Self::start(name.clone(), command, Stdio::piped())?;
        let input = input.ok_or(Error::Nonsense { name, what: "no stdin".into() })?;
        Ok((process, input))
    }

    fn start(name: String, command: &mut Command, stdin: Stdio) -> Result<(Self, Option<ChildStdin>)> {
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: prctl is async-signal-safe and touches nothing of the parent's memory.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let started = Instant::now();
        let mut child = command.spawn().map_err(|source| Error::Spawn { name: name.clone(), source })?;
        let pid = child.id() as i32;
        // SAFETY: pid is our own unreaped child, so it cannot be another process.
        let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if raw < 0 {
            let error = Error::last_os("pidfd_open");
            child.kill().ok();
            return Err(error);
        }
        // SAFETY: the call above returned a fresh descriptor that nobody else owns.
        let pidfd = unsafe { OwnedFd::from_raw_fd(raw as i32) };
        let log = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, lines) = sync_channel(LINES_MAX);
        let mut readers = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            readers.push(read_lines(stdout, Some(sender), log.clone()));
        }
        if let Some(stderr) = child.stderr.take() {
            readers.push(read_lines(stderr, None, log.clone()));
        }
        let rss_bytes_max = Arc::new(AtomicU64::new(0));
        watch_memory(pid, Arc::downgrade(&rss_bytes_max));
        let process = Self { name, pid, pidfd, started, lines, log, usage: None, readers, rss_bytes_max };
        Ok((process, child.stdin.take()))
    }

    /// Starts `command` and waits for it to end well.
    ///
    /// # Errors
    /// When it cannot be started, does not end in time or fails.
    pub fn run(name: impl Into<String>, command: &mut Command, limit: Duration) -> Result<(Vec<Line>, Usage)> {
        let mut process = Self::spawn(name, command)?;
        let usage = process.wait_success(limit)?;
        Ok((process.rest(), usage))
    }

    /// The process id; of no use once the process was waited for.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// When it was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// The end of what it printed.
    pub fn log(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// The first line from here on that `wanted` accepts; those before it are dropped.
    ///
    /// # Errors
    /// When it does not come in time, or the process ends before.
    pub fn wait_line(&mut self, what: &str, limit: Duration, mut wanted: impl FnMut(&Line) -> bool) -> Result<Line> {
        let deadline = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if wanted(&line) => return Ok(line),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return Err(self.timeout(what, limit)),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.wait(GRACE)?.status;
                    return Err(Error::Exited { name: self.name.clone(), status, log: self.log() });
                }
            }
        }
    }

    /// The first JSON line from here on whose `event` is `event`.
    ///
    /// # Errors
    /// As [`Self::wait_line`].
    pub fn wait_event(&mut self, event: &str, limit: Duration) -> Result<(Value, Instant)> {
        let line = self.wait_line(&format!("event {event:?}"), limit, |line| line.json()["event"] == event)?;
        Ok((line.json(), line.at))
    }

    /// Lines that arrived and were not asked for. After the end of the process: all that are left.
    pub fn rest(&mut self) -> Vec<Line> {
        if self.usage.is_none() {
            return self.lines.try_iter().collect();
        }
        // The pipe may outlive the process by a moment (or for ever, in a grandchild's hands).
        let deadline = Instant::now() + Duration::from_secs(1);
        let mut lines = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            lines.push(line);
        }
        lines
    }

    /// Whether it ended.
    pub fn has_ended(&mut self) -> bool {
        self.usage.is_some() || self.poll(Duration::ZERO)
    }

    /// Waits for the end, however it ends.
    ///
    /// # Errors
    /// When it does not end in time (it goes on then).
    pub fn wait(&mut self, limit: Duration) -> Result<Usage> {
        if let Some(usage) = self.usage {
            return Ok(usage);
        }
        if !self.poll(limit) {
            return Err(self.timeout("its end", limit));
        }
        self.reap()
    }

    /// Waits for the end, which must be a success.
    ///
    /// # Errors
    /// When it does not end in time or fails.
    pub fn wait_success(&mut self, limit: Duration) -> Result<Usage> {
        let usage = self.wait(limit)?;
        if usage.status.success() {
            return Ok(usage);
        }
        Err(Error::Exited { name: self.name.clone(), status: usage.status, log: self.log() })
    }

    /// Asks it to end as a user would (SIGTERM), and makes it end where it does not.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn stop(&mut self) -> Result<Usage> {
        self.signal(libc::SIGTERM);
        match self.wait(GRACE) {
            Err(Error::Timeout { .. }) => self.kill(),
            other => other,
        }
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn kill(&mut self) -> Result<Usage> {
        self.signal(libc::SIGKILL);
        self.wait(GRACE)
    }

    /// Sends a signal, if it still runs.
    pub fn signal(&mut self, signal: i32) {
        if self.usage.is_none() {
            // SAFETY: the child is not reaped (usage is None), so the pid is still its own.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    /// A figure of `/proc/PID/status` in bytes, such as `VmRSS` or `VmHWM`; of a running process only.
    pub fn status_bytes(&self, field: &str) -> Option<u64> {
        status_bytes(self.pid, field)
    }

    /// CPU time of a running process so far, all its threads.
    pub fn cpu_so_far(&self) -> Option<Duration> {
        let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // SAFETY: both calls write one plain value each through valid pointers.
        let failed = unsafe {
            libc::clock_getcpuclockid(self.pid, &mut clock) != 0 || libc::clock_gettime(clock, &mut time) != 0
        };
        (!failed).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }

    fn timeout(&self, what: &str, limit: Duration) -> Error {
        Error::Timeout { name: self.name.clone(), waited_for: what.into(), limit, log: self.log() }
    }

    /// Whether it ended within `limit`.
    fn poll(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut entry = libc::pollfd { fd: self.pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            let left_ms = left.as_millis().min(60_000) as i32 + i32::from(!left.is_zero());
            // SAFETY: one valid pollfd that lives across the call.
            let ready = unsafe { libc::poll(&mut entry, 1, left_ms) };
            if ready > 0 || left.is_zero() {
                return ready > 0;
            }
        }
    }

    fn reap(&mut self) -> Result<Usage> {
        let mut status = 0;
        // SAFETY: rusage is plain integers, for which zero is valid; pid is our unreaped child.
        let (reaped, cost) = unsafe {
            let mut cost: libc::rusage = std::mem::zeroed();
            (libc::wait4(self.pid, &mut status, 0, &mut cost), cost)
        };
        if reaped != self.pid {
            return Err(Error::last_os("wait4"));
        }
        let usage = Usage {
            wall: self.started.elapsed(),
            user: duration(cost.ru_utime),
            sys: duration(cost.ru_stime),
            rss_bytes_max: match self.rss_bytes_max.load(Ordering::Relaxed) {
                // Gone before it could be looked at: then its parent's peak counts in.
                0 => cost.ru_maxrss as u64 * 1024,
                seen => seen,
            },
            status: ExitStatus::from_raw(status),
        };
        self.usage = Some(usage);
        // Its last words are in the pipes. A grandchild may hold them open: then they are not waited for.
        let deadline = Instant::now() + LAST_WORDS_MAX;
        while self.readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(usage)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.usage.is_none() {
            self.kill().ok();
        }
    }
}

fn duration(time: libc::timeval) -> Duration {
    Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000)
}

/// Notes the peak of resident memory until the process or its owner is gone. `ru_maxrss` will not do: it starts at the peak of
/// the process that forked.
fn watch_memory(pid: i32, peak: Weak<AtomicU64>) {
    std::thread::spawn(move || {
        while let Some(peak) = peak.upgrade() {
            match status_bytes(pid, "VmHWM") {
                Some(bytes) => peak.fetch_max(bytes, Ordering::Relaxed),
                None => return,
            };
            drop(peak);
            std::thread::sleep(MEMORY_EVERY);
        }
    });
}

fn status_bytes(pid: i32, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find(|line| line.split(':').next() == Some(field))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn read_lines(
    from: impl Read + Send + 'static,
    to: Option<SyncSender<Line>>,
    log: Arc<Mutex<VecDeque<String>>>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        for text in BufReader::new(from).split(b'\n').map_while(|line| line.ok()) {
            let text = String::from_utf8_lossy(&text).into_owned();
            let at = Instant::now();
            {
                let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                if log.len() == LOG_LINES_MAX {
                    log.pop_front();
                }
                log.push_back(text.clone());
            }
            if let Some(to) = &to {
                // A full queue drops the line, a gone receiver too: the child must never block on us.
                to.try_send(Line { text, at }).ok();
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn lines_status_and_cost_are_seen() {
        let mut shell =
            Process::spawn("sh", Command::new("sh").args(["-c", "echo '{\"event\":\"a\",\"n\":3}'; exit 4"])).unwrap();
        assert_eq!(shell.wait_event("a", LIMIT).unwrap().0["n"], 3);
        let usage = shell.wait(LIMIT).unwrap();
        assert_eq!(usage.status.code(), Some(4));
        assert!(usage.rss_bytes_max > 0);
        assert!(matches!(shell.wait_success(LIMIT), Err(Error::Exited { .. })));
    }

    #[test]
    fn what_is_written_to_it_is_read_to_its_end() {
        let (mut cat, mut input) = Process::spawn_fed("cat", &mut Command::new("cat")).unwrap();
        std::io::Write::write_all(&mut input, b"told\n").unwrap();
        assert_eq!(cat.wait_line("it", LIMIT, |_| true).unwrap().text, "told");
        assert!(!cat.has_ended());
        drop(input);
        cat.wait_success(LIMIT).unwrap();
    }

    #[test]
    fn a_deadline_passes_and_a_drop_kills() {
        let mut sleeper = Process::spawn("sleep", Command::new("sleep").arg("100")).unwrap();
        let pid = sleeper.pid();
        assert!(matches!(sleeper.wait(Duration::from_millis(30)), Err(Error::Timeout { .. })));
        assert!(matches!(sleeper.wait_line("a line", Duration::from_millis(30), |_| true), Err(Error::Timeout { .. })));
        drop(sleeper);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn an_early_end_is_named_with_its_last_words() {
        let mut shell = Process::spawn("sh", Command::new("sh").args(["-c", "echo broken >&2; exit 1"])).unwrap();
        let error = shell.wait_event("never", LIMIT).unwrap_err();
        assert!(matches!(&error, Error::Exited { .. }), "{error}");
    }

    #[test]
    fn unread_lines_beyond_the_limit_are_dropped_and_nobody_blocks() {
        // When the process ends, at most a pipe full (64 KiB) of its output is still unread: the queue has overflowed.
        let script = format!("seq {}", 2 * LINES_MAX);
        let mut shell = Process::spawn("sh", Command::new("sh").args(["-c", &script])).unwrap();
        shell.wait_success(LIMIT).unwrap();
        assert!((LINES_MAX..2 * LINES_MAX).contains(&shell.rest().len()));
    }
}
