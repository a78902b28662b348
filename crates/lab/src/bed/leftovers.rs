//! What belongs to which lab, so that the next one can clean up after one that was killed.
//!
//! Every lab has a folder in [`HOME`] that is named by its process number, with a file in it that it keeps locked as long as it
//! lives; its namespaces have the same number in their names. What belongs to a number whose file nobody holds is nobody's.
//! Labs that begin at the same moment, as tasks of a job array do, look one after the other.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::BedError;
use crate::netns::NetnsError;

/// Where labs keep their sockets: short, since a socket's path has 107 bytes at most, and gone with a restart.
const HOME: &str = "/run/anabranch-lab";
/// What the names of namespaces begin with.
pub(super) const PREFIX: &str = "anabranch-lab-";
const LOCK: &str = "lock";

/// The folder of this lab, held until it is dropped.
#[derive(Debug)]
pub struct Lease {
    folder: PathBuf,
    /// Keeps the lock.
    _lock: File,
}

impl Lease {
    /// Removes what labs left that live no more, and makes a folder for this one. Says what was removed, too.
    ///
    /// # Errors
    /// When this is not root, or `/run` cannot be written.
    pub fn new() -> Result<(Self, Vec<String>), BedError> {
        if !crate::netns::available() {
            return Err(BedError::NotRoot);
        }
        let _gate = gate()?;
        let removed = remove()?;
        let folder = Path::new(HOME).join(std::process::id().to_string());
        fs::create_dir_all(&folder).map_err(|error| BedError::file(&folder, error))?;
        let path = folder.join(LOCK);
        let failed = |error| BedError::file(&path, error);
        let lock = File::create(&path).map_err(failed)?;
        lock.lock().map_err(failed)?;
        Ok((Self { folder, _lock: lock }, removed))
    }

    /// The folder for sockets of one of its networks.
    pub(super) fn folder(&self, slot: usize) -> Result<PathBuf, BedError> {
        let folder = self.folder.join(slot.to_string());
        fs::create_dir_all(&folder).map_err(|error| BedError::file(&folder, error))?;
        Ok(folder)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // What stays is found by the next lab.
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// Held while somebody looks through what is there: a lab that comes at the same moment has made its folder and not locked it yet.
fn gate() -> Result<File, BedError> {
    let failed = |error| BedError::file(Path::new(HOME), error);
    fs::create_dir_all(HOME).map_err(failed)?;
    let gate = File::open(HOME).map_err(failed)?;
    gate.lock().map_err(failed)?;
    Ok(gate)
}

/// Ends processes and removes namespaces and folders of labs that live no more.
fn remove() -> Result<Vec<String>, BedError> {
    let mut removed = Vec::new();
    for name in names("/run/netns") {
        let Some(owner) = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()) else { continue };
        if is_alive(owner) {
            continue;
        }
        for process in processes(&name)? {
            // SAFETY: the call reads two numbers; the process is inside a namespace that a lab made for its own.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
        let status = Command::new("ip").args(["netns", "del", &name]).status();
        status.map_err(|source| NetnsError::Missing { program: "ip".into(), source })?;
        removed.push(name);
    }
    for owner in names(HOME).filter(|owner| !is_alive(owner)) {
        let folder = Path::new(HOME).join(&owner);
        fs::remove_dir_all(&folder).map_err(|error| BedError::file(&folder, error))?;
    }
    Ok(removed)
}

/// Whether somebody holds the lock of this number.
fn is_alive(owner: &str) -> bool {
    // What is no number of a process is no lab's.
    if owner.parse::<u32>().is_err() {
        return true;
    }
    match File::open(Path::new(HOME).join(owner).join(LOCK)).map(|file| file.try_lock()) {
        Ok(Err(TryLockError::WouldBlock)) => true,
        Ok(_) => false,
        // A lab locks its file before it makes anything.
        Err(_) => false,
    }
}

/// The processes inside a namespace.
fn processes(namespace: &str) -> Result<Vec<i32>, BedError> {
    let output = Command::new("ip").args(["netns", "pids", namespace]).output();
    let output = output.map_err(|source| NetnsError::Missing { program: "ip".into(), source })?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| line.trim().parse().ok()).collect())
}

fn names(folder: &str) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok())
}
