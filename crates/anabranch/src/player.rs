//! The user's player: a program that is given the address, and with which `play` ends.
//!
//! It is told the address as its last argument, and has standard error for what it prints; standard output is for events.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use crate::exit::{Code, Failure};
use crate::system;

/// What the desktop opens an address with.
const OPENER: &str = "xdg-open";

/// A player that was started. It ends with this.
pub(crate) struct Player {
    name: String,
    group: Option<u32>,
    ended: tokio::task::JoinHandle<io::Result<ExitStatus>>,
}

impl Drop for Player {
    fn drop(&mut self) {
        if let Some(group) = self.group {
            system::end_group(group);
        }
    }
}

impl Player {
    /// Starts the program that `words` name, with its arguments, for `address`.
    pub(crate) fn start(words: &[OsString], address: &str) -> Result<Self, Failure> {
        let (program, arguments) = words.split_first().ok_or_else(|| Failure::usage("name a player behind `--`"))?;
        let mut command = command(program, address)?;
        let spawned = command.process_group(0).args(arguments).arg(address).spawn();
        let mut child = spawned.map_err(|error| failure(program, &error))?;
        let group = Some(child.id());
        let ended = tokio::task::spawn_blocking(move || child.wait());
        Ok(Self { name: program.to_string_lossy().into_owned(), group, ended })
    }

    /// Until it ends: its exit code, where it had one.
    pub(crate) async fn end(&mut self) -> Result<Option<i32>, Failure> {
        let ended = (&mut self.ended).await;
        self.group = None;
        let status = ended.map_err(io::Error::other).flatten();
        let status = status.map_err(|error| Failure::new(Code::Failed, format!("player {}: {error}", self.name)))?;
        Ok(status.code())
    }

    /// As the user called it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// Opens `address` with what the desktop has for it, and does not wait for that.
pub(crate) fn open(address: &str) -> Result<(), Failure> {
    let program = OsStr::new(OPENER);
    let mut child = command(program, address)?.arg(address).spawn().map_err(|error| failure(program, &error))?;
    // It is gone at once, and what it started is the desktop's.
    tokio::task::spawn_blocking(move || child.wait());
    Ok(())
}

fn command(program: &OsStr, address: &str) -> Result<Command, Failure> {
    let out = io::stderr().as_fd().try_clone_to_owned().map_err(Failure::runtime)?;
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(out).env("CONTENT_URL", address);
    Ok(command)
}

/// Says that a player is not there before anything is fetched for it.
pub(crate) fn check(words: &[OsString], open: bool) -> Result<(), Failure> {
    let opener = open.then(|| OsString::from(OPENER));
    match words.first().or(opener.as_ref()).filter(|program| !is_there(program)) {
        Some(program) => Err(failure(program, &io::ErrorKind::NotFound.into())),
        None => Ok(()),
    }
}

fn is_there(program: &OsStr) -> bool {
    let runs =
        |path: &Path| path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    if Path::new(program).components().count() > 1 {
        return runs(Path::new(program));
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    !program.is_empty() && std::env::split_paths(&folders).any(|folder| runs(&folder.join(program)))
}

fn failure(program: &OsStr, error: &io::Error) -> Failure {
    let program = program.display();
    let message = match error.kind() {
        io::ErrorKind::NotFound => {
            format!(
                "there is no player `{program}`: install it, give its path, or leave it out and open the address yourself"
            )
        }
        _ => format!("the player `{program}` cannot be started: {error}"),
    };
    Failure::new(Code::Failed, message)
}
