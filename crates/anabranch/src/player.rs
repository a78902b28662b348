//! The user's player: a program that is given the address, and with which `play` ends.
//!
//! It is told the address as its last argument, and has standard error for what it prints; standard output is for events. Where this
//! process is shut in ([`crate::sandbox`]), the process beside it starts the player: it knows from the user which, and is told the address alone.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use anabranch_sandbox::{Errand, Running};

use crate::exit::{Code, Failure};
use crate::sandbox::Sandbox;
use crate::system;

/// What the desktop opens an address with.
const OPENER: &str = "xdg-open";

/// A player that was started. It ends with this.
pub(crate) struct Player {
    name: String,
    process: Option<Process>,
    ended: tokio::task::JoinHandle<io::Result<ExitStatus>>,
}

/// A player that may still run.
enum Process {
    /// With its group.
    Here(u32),
    Outside(Running),
}

impl Drop for Player {
    fn drop(&mut self) {
        match &self.process {
            Some(Process::Here(group)) => system::end_group(*group),
            Some(Process::Outside(running)) => running.end(),
            None => {}
        }
    }
}

impl Player {
    /// Starts the program that `words` name, with its arguments, for `address`.
    pub(crate) fn start(words: &[OsString], address: &str, sandbox: &Sandbox) -> Result<Self, Failure> {
        let program = words.first().ok_or_else(|| Failure::usage("name a player behind `--`"))?;
        let failed = |error| failure(program, &error);
        let (process, ended) = match sandbox.run() {
            Some(running) => {
                running.start(address.as_bytes()).map_err(failed)?;
                let waited = running.clone();
                (Process::Outside(running), tokio::task::spawn_blocking(move || waited.wait()))
            }
            None => {
                let spawned = command(words, address).and_then(|mut command| command.process_group(0).spawn());
                let mut child = spawned.map_err(failed)?;
                (Process::Here(child.id()), tokio::task::spawn_blocking(move || child.wait()))
            }
        };
        Ok(Self { name: program.to_string_lossy().into_owned(), process: Some(process), ended })
    }

    /// Until it ends: its exit code, where it had one.
    pub(crate) async fn end(&mut self) -> Result<Option<i32>, Failure> {
        let ended = (&mut self.ended).await;
        self.process = None;
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
pub(crate) fn open(address: &str, sandbox: &Sandbox) -> Result<(), Failure> {
    let failed = |error| failure(OsStr::new(OPENER), &error);
    if let Some(running) = sandbox.run() {
        return running.start(address.as_bytes()).map_err(failed);
    }
    let mut child = command(&[OPENER.into()], address).and_then(|mut command| command.spawn()).map_err(failed)?;
    // It is gone at once, and what it started is the desktop's.
    tokio::task::spawn_blocking(move || child.wait());
    Ok(())
}

/// What starts the player outside of the sandbox; `None` where there is none to be started.
pub(crate) fn errand(words: &[OsString], open: bool) -> Option<Errand> {
    let words = if open { vec![OPENER.into()] } else { words.to_vec() };
    if words.is_empty() {
        return None;
    }
    let errand = move |bytes: &[u8]| {
        // Nothing that a player could take for a flag, nor for a file.
        let address = std::str::from_utf8(bytes)
            .ok()
            .filter(|text| text.starts_with("http://") && text.bytes().all(|byte| byte.is_ascii_graphic()));
        command(&words, address.ok_or(io::ErrorKind::InvalidInput)?)
    };
    Some(Box::new(errand))
}

fn command(words: &[OsString], address: &str) -> io::Result<Command> {
    let (program, arguments) = words.split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.args(arguments).arg(address).env("CONTENT_URL", address);
    command.stdin(Stdio::null()).stdout(io::stderr().as_fd().try_clone_to_owned()?);
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
