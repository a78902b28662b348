//! `--on-complete COMMAND`: a command of the user's for each content that is complete.
//!
//! A shell runs the command as the user wrote it. What it is about is told in environment variables alone: names come from strangers,
//! and nothing of theirs becomes part of a command line. The variables do not begin with `ANABRANCH_`, for those are settings of this
//! program, which the command may well run.
//!
//! Commands run one after another, each in a process group of its own, so that all that it started ends with it. Where this process is
//! shut in ([`crate::sandbox`]), the process beside it starts them: it has the command from the user, and from here no more than the
//! values of the variables.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_content::hex;
use anabranch_content::info::Info;
use anabranch_sandbox::{Errand, Running as Outside};
use anabranch_swarm::ContentId;
use anabranch_swarm::bulk::Placed;

use crate::sandbox::Sandbox;
use crate::source;
use crate::system;

/// What runs a command, POSIX `sh -c`.
const SHELL: &str = "sh";

/// What a command is told of its content, each in a variable.
const FACTS: [&str; 8] = [
    "CONTENT_NAME",
    "CONTENT_PATH",
    "CONTENT_DIR",
    "CONTENT_BYTES",
    "CONTENT_FILES",
    "CONTENT_INFO_HASH",
    "CONTENT_INFO_HASH_V1",
    "CONTENT_INFO_HASH_V2",
];

/// Their values.
type Facts = [OsString; FACTS.len()];

/// The commands of contents that are complete.
pub(crate) struct Hook {
    command: OsString,
    waiting: VecDeque<(ContentId, Facts)>,
    running: Option<Running>,
}

/// A command that may be changed, for the process that starts it.
pub(crate) type Shared = Arc<Mutex<Option<OsString>>>;

/// What starts the command outside of the sandbox.
pub(crate) fn errand(command: Shared) -> Errand {
    Box::new(move |bytes| {
        let values: Vec<OsString> =
            bytes.split(|byte| *byte == 0).map(|value| OsStr::from_bytes(value).into()).collect();
        let facts = Facts::try_from(values).map_err(|_| io::ErrorKind::InvalidInput)?;
        let command = command.lock().unwrap_or_else(PoisonError::into_inner).clone();
        shell(&command.ok_or(io::ErrorKind::NotFound)?, facts)
    })
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Whose it was.
    pub torrent: ContentId,
    /// Its exit code, where it had one.
    pub exit_code: Option<i32>,
    /// Why it counts as failed.
    pub failure: Option<String>,
}

struct Running {
    torrent: ContentId,
    process: Option<Process>,
    ended: tokio::task::JoinHandle<io::Result<ExitStatus>>,
}

/// A command that may still run.
enum Process {
    /// With its group.
    Here(u32),
    Outside(Outside),
}

impl Drop for Running {
    fn drop(&mut self) {
        match &self.process {
            Some(Process::Here(group)) => system::end_group(*group),
            Some(Process::Outside(outside)) => outside.end(),
            None => {}
        }
    }
}

impl Hook {
    /// Runs `command` for each content that [`Hook::complete`] is told of.
    pub(crate) fn new(command: OsString) -> Self {
        Self { command, waiting: VecDeque::new(), running: None }
    }

    /// The same with another command, from the next content on.
    pub(crate) fn with(mut self, command: OsString) -> Self {
        self.command = command;
        self
    }

    /// Whether a command runs, or waits for its turn.
    pub(crate) fn is_busy(&self) -> bool {
        self.running.is_some() || !self.waiting.is_empty()
    }

    /// A content is complete, in `dir`.
    pub(crate) fn complete(&mut self, torrent: ContentId, info: &Info, dir: &Path) {
        self.waiting.push_back((torrent, facts(info, dir)));
    }

    /// Something was received by bulk transfer, below `dir`: what it is called, and its bytes.
    pub(crate) fn received(&mut self, transfer: ContentId, (name, bytes): (String, u64), placed: Placed, dir: &Path) {
        let dir = whole(dir);
        // Where there are several files or folders, what all of them are in stands for them.
        let (name, path) = match placed.top {
            Some(top) => (top.as_os_str().to_owned(), dir.join(&top)),
            None => (name.into(), dir.clone()),
        };
        let [bytes, files] = [bytes, placed.files].map(|count| count.to_string().into());
        let [hash, v1, v2] = Default::default();
        self.waiting.push_back((transfer, [name, path.into(), dir.into(), bytes, files, hash, v1, v2]));
    }

    /// Until a command ends; for ever where there is none. Nothing is lost where this is dropped and called again.
    pub(crate) async fn next(&mut self, sandbox: &Sandbox) -> Ended {
        if self.running.is_none() {
            let Some((torrent, facts)) = self.waiting.pop_front() else { return std::future::pending().await };
            self.running = Some(start(&self.command, torrent, facts, sandbox));
        }
        let Some(running) = &mut self.running else { return std::future::pending().await };
        let ended = (&mut running.ended).await;
        // Its process is no more: what it left behind in its group is not ours to end.
        running.process = None;
        let torrent = running.torrent;
        self.running = None;
        let (exit_code, failure) = match ended {
            Ok(Ok(status)) => (status.code(), told(status)),
            Ok(Err(error)) => (None, Some(format!("cannot be run: {error}"))),
            Err(error) => (None, Some(format!("was lost: {error}"))),
        };
        Ended { torrent, exit_code, failure }
    }
}

fn start(command: &OsStr, torrent: ContentId, facts: Facts, sandbox: &Sandbox) -> Running {
    if let Some(outside) = sandbox.run() {
        let run = outside.clone();
        let ended = tokio::task::spawn_blocking(move || {
            run.start(facts.map(OsString::into_encoded_bytes).join(&0).as_slice())?;
            run.wait()
        });
        return Running { torrent, process: Some(Process::Outside(outside)), ended };
    }
    let spawned = shell(command, facts).and_then(|mut shell| shell.process_group(0).spawn());
    let process = spawned.as_ref().ok().map(Child::id).map(Process::Here);
    let ended = tokio::task::spawn_blocking(move || spawned?.wait());
    Running { torrent, process, ended }
}

fn shell(command: &OsStr, facts: Facts) -> io::Result<Command> {
    // Standard output is for events.
    let out = io::stderr().as_fd().try_clone_to_owned()?;
    let mut shell = Command::new(SHELL);
    shell.arg("-c").arg(command).envs(FACTS.into_iter().zip(facts)).stdin(Stdio::null()).stdout(out);
    Ok(shell)
}

/// Why a command that ended so failed, if it did.
fn told(status: ExitStatus) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("ended with exit code {code}")),
        (None, Some(signal)) => Some(format!("was ended by signal {signal}")),
        (None, None) => Some("ended in a way that is not known".to_owned()),
    }
}

/// The folder as an absolute path: names of strangers may begin with what looks like a flag.
fn whole(dir: &Path) -> PathBuf {
    std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf())
}

/// The values of [`FACTS`].
fn facts(info: &Info, dir: &Path) -> Facts {
    let dir = whole(dir);
    // All files of a content are in its folder; or there is but one.
    let name = info.files.iter().find_map(|file| file.path.iter().next()).unwrap_or(info.name.as_ref());
    let hash = |hash: Option<String>| OsString::from(hash.unwrap_or_default());
    [
        name.to_owned(),
        dir.join(name).into_os_string(),
        dir.into_os_string(),
        info.content_size().to_string().into(),
        info.regular_files().count().to_string().into(),
        source::hash_name(&info.hashes).into(),
        hash(info.hashes.v1.map(|digest| hex::encode(&digest))),
        hash(info.hashes.v2.map(|digest| hex::encode(&digest))),
    ]
}
