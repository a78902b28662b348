//! `--on-complete COMMAND`: a command of the user's for each content that is complete.
//!
//! A shell runs the command as the user wrote it. What it is about is told in environment variables alone: names come from strangers,
//! and nothing of theirs becomes part of a command line. The variables do not begin with `ANABRANCH_`, for those are settings of this
//! program, which the command may well run.
//!
//! Commands run one after another, each in a process group of its own, so that all that it started ends with it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use anabranch_content::hex;
use anabranch_content::info::Info;
use anabranch_swarm::ContentId;

use crate::source;
use crate::system;

/// What runs a command, POSIX `sh -c`.
const SHELL: &str = "sh";

/// The commands of contents that are complete.
pub(crate) struct Hook {
    command: OsString,
    waiting: VecDeque<(ContentId, Vec<(&'static str, OsString)>)>,
    running: Option<Running>,
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
    group: Option<u32>,
    ended: tokio::task::JoinHandle<io::Result<ExitStatus>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            system::end_group(group);
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

    /// Until a command ends; for ever where there is none. Nothing is lost where this is dropped and called again.
    pub(crate) async fn next(&mut self) -> Ended {
        if self.running.is_none() {
            let Some((torrent, facts)) = self.waiting.pop_front() else { return std::future::pending().await };
            self.running = Some(start(&self.command, torrent, facts));
        }
        let Some(running) = &mut self.running else { return std::future::pending().await };
        let ended = (&mut running.ended).await;
        // Its process is no more: what it left behind in its group is not ours to end.
        running.group = None;
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

fn start(command: &OsString, torrent: ContentId, facts: Vec<(&'static str, OsString)>) -> Running {
    let spawned = spawn(command, facts);
    let group = spawned.as_ref().ok().map(Child::id);
    let ended = tokio::task::spawn_blocking(move || spawned?.wait());
    Running { torrent, group, ended }
}

fn spawn(command: &OsString, facts: Vec<(&'static str, OsString)>) -> io::Result<Child> {
    // Standard output is for events.
    let out = io::stderr().as_fd().try_clone_to_owned()?;
    let mut shell = Command::new(SHELL);
    shell.arg("-c").arg(command).envs(facts).stdin(Stdio::null()).stdout(out).process_group(0);
    shell.spawn()
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

/// What a command is told of its content.
fn facts(info: &Info, dir: &Path) -> Vec<(&'static str, OsString)> {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    // All files of a content are in its folder; or there is but one.
    let name = info.files.iter().find_map(|file| file.path.iter().next()).unwrap_or(info.name.as_ref());
    let hash = |hash: Option<String>| OsString::from(hash.unwrap_or_default());
    vec![
        ("CONTENT_NAME", name.to_owned()),
        ("CONTENT_PATH", dir.join(name).into_os_string()),
        ("CONTENT_DIR", dir.into_os_string()),
        ("CONTENT_BYTES", info.content_size().to_string().into()),
        ("CONTENT_FILES", info.regular_files().count().to_string().into()),
        ("CONTENT_INFO_HASH", source::hash_name(&info.hashes).into()),
        ("CONTENT_INFO_HASH_V1", hash(info.hashes.v1.map(|digest| hex::encode(&digest)))),
        ("CONTENT_INFO_HASH_V2", hash(info.hashes.v2.map(|digest| hex::encode(&digest)))),
    ]
}
