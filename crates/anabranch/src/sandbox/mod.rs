//! A command is shut in with the files that it needs (`--sandbox`): whoever takes it over by a fault reaches these, and no others.
//!
//! | module | what it does |
//! | --- | --- |
//! | `policy` | which files each command needs |
//!
//! A folder takes no rule before it is there, so those that a command makes are made before, and go at the end where nothing came into
//! them. What has to be done outside, files that are replaced whole and programs of the user's that are started, is done by a process
//! beside ([`anabranch_sandbox::Beside`]), which knows beforehand which files and which programs these are.

mod policy;

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anabranch_sandbox::{Beside, Bounds, Duties, Errand, Running, SandboxError, Task, Wish, close};
use anabranch_transport::Identity;

use crate::exit::{Code, Failure};
use crate::output::Chatter;

/// Modes of folders that are made: of contents, as the user's mask has it; of the program's own.
const SHARED: u32 = 0o777;
const PRIVATE: u32 = 0o700;

/// Writes a file whole, or leaves it as it is.
pub(crate) type Save = fn(&Path, &[u8]) -> Result<(), Failure>;

/// What a command needs.
pub(crate) struct Plan {
    wish: Wish,
    bounds: Bounds,
    /// Folders that are made where they are missing, with their modes, and written into.
    folders: Vec<(PathBuf, u32)>,
    /// Files that are made where they are missing, and written to.
    files: Vec<PathBuf>,
    /// Keys that are made where they are missing.
    keys: Vec<PathBuf>,
    /// What was made for this run already.
    made: Vec<PathBuf>,
    /// Files that are replaced, and how.
    saved: Vec<(PathBuf, Save)>,
    /// The program that may be started.
    errand: Option<Errand>,
    /// Told when the configuration was read again.
    reload: Option<Task>,
}

impl Plan {
    fn new(wish: Wish) -> Self {
        let bounds = Bounds { read: policy::system(), write: vec!["/dev/null".into()], ..Bounds::default() };
        let (folders, files, keys, made, saved) = Default::default();
        Self { wish, bounds, folders, files, keys, made, saved, errand: None, reload: None }
    }

    /// A program may be started, as `errand` says.
    pub(crate) fn starting(mut self, errand: Option<Errand>) -> Self {
        self.errand = errand;
        self
    }

    /// A folder was made for this run alone.
    fn made(&mut self, folder: &Path) {
        self.made.extend(std::path::absolute(folder));
        self.bounds.write.push(folder.to_owned());
    }

    /// `reload` is done outside when the configuration was read again.
    pub(crate) fn reloading(mut self, reload: Task) -> Self {
        self.reload = Some(reload);
        self
    }

    /// Shuts this process in, as far as the flag says. There must be no other thread.
    pub(crate) fn enter(self, chatter: Chatter) -> Result<Sandbox, Failure> {
        let Self { wish, mut bounds, folders, files, keys, mut made, saved, errand, reload } = self;
        if wish == Wish::Off {
            return Ok(Sandbox::default());
        }
        for (folder, mode) in folders {
            make_folder(&folder, mode, &mut made);
            bounds.write.push(folder);
        }
        for file in files {
            if !file.exists() && OpenOptions::new().append(true).create(true).open(&file).is_ok() {
                made.extend(std::path::absolute(&file));
            }
            bounds.write.push(file);
        }
        for key in keys {
            // Where that fails, whoever needs the key says so.
            let _ = Identity::open(&key);
            bounds.read.push(key);
        }
        let (places, tasks): (Vec<PathBuf>, Vec<Task>) = saved.into_iter().map(task).unzip();
        let reload = reload.map(|reload| (tasks.len() as u32, reload));
        let number = reload.as_ref().map(|(number, _)| *number);
        let tasks: Vec<Task> = tasks.into_iter().chain(reload.map(|(_, reload)| reload)).collect();
        let duties = Duties { tasks, errand, made };
        let beside = if duties.is_empty() { None } else { Some(Beside::start(duties).map_err(Failure::runtime)?) };
        let held = close(&bounds, wish).map_err(|error| failure(&error))?;
        if chatter.verbose {
            chatter.note(format_args!("sandbox: {held}"));
        }
        let within = held.files.then(|| bounds.write.iter().filter_map(|path| path.canonicalize().ok()).collect());
        Ok(Sandbox { places, reload: number, within, beside: beside.map(Arc::new) })
    }
}

/// Makes a folder and those above it. Where that fails, whoever writes into it says so.
fn make_folder(folder: &Path, mode: u32, made: &mut Vec<PathBuf>) {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return;
    }
    if let Some(parent) = folder.parent() {
        make_folder(parent, mode, made);
    }
    if DirBuilder::new().mode(mode).create(folder).is_ok() {
        made.extend(std::path::absolute(folder));
    }
}

/// What is done outside for a file that is replaced; it answers with nothing, or with the code and the text of an error.
fn task((path, save): (PathBuf, Save)) -> (PathBuf, Task) {
    let place = path.clone();
    let task = move |bytes: &[u8]| match save(&path, bytes) {
        Ok(()) => Vec::new(),
        Err(failure) => [&[failure.code as u8], failure.to_string().as_bytes()].concat(),
    };
    (place, Box::new(task))
}

fn failure(error: &SandboxError) -> Failure {
    let remedy = match error {
        SandboxError::Missing(_) => "`--sandbox auto` goes on with what there is",
        SandboxError::Failed(_) => "`--sandbox off` goes on without it",
    };
    Failure::new(Code::Failed, format!("`--sandbox`: {error}; {remedy}"))
}

/// What the process is shut in with, and how it does what it cannot do there.
#[derive(Default)]
pub(crate) struct Sandbox {
    /// The files that are saved outside, by their number.
    places: Vec<PathBuf>,
    /// The number of what is done when the configuration was read again.
    reload: Option<u32>,
    /// Where it may write; `None`: anywhere.
    within: Option<Vec<PathBuf>>,
    beside: Option<Arc<Beside>>,
}

impl Sandbox {
    /// Has a file written whole, by `save`.
    pub(crate) fn save(&self, save: Save, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
        let number = self.places.iter().position(|place| place == path);
        let (Some(beside), Some(number)) = (&self.beside, number) else { return save(path, bytes) };
        let lost = |error| Failure::new(Code::Storage, format!("cannot write {}: {error}", path.display()));
        let answer = beside.ask(number as u32, bytes).map_err(lost)?;
        match answer.split_first() {
            None => Ok(()),
            Some((code, text)) => Err(Failure::new(Code::from_number(*code), String::from_utf8_lossy(text))),
        }
    }

    /// A run of the program that may be started; `None`: it is started here.
    pub(crate) fn run(&self) -> Option<Running> {
        self.beside.as_ref().map(Beside::run)
    }

    /// Has those outside read the configuration again, too.
    pub(crate) fn reload(&self) -> Result<(), Failure> {
        let (Some(beside), Some(number)) = (&self.beside, self.reload) else { return Ok(()) };
        beside.ask(number, &[]).map(drop).map_err(Failure::runtime)
    }

    /// Whether files in `folder` can be written.
    pub(crate) fn reaches(&self, folder: &Path) -> bool {
        let is_within = |within: &Vec<PathBuf>| {
            folder.canonicalize().is_ok_and(|folder| within.iter().any(|place| folder.starts_with(place)))
        };
        self.within.as_ref().is_none_or(is_within)
    }
}
