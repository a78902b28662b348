//! Shuts a process in with what it needs: whoever takes it over by a fault in it reaches what it may reach, and no more.
//!
//! | module | what it does |
//! | --- | --- |
//! | `files` | which files may be read and written: Landlock (Linux 5.19 and newer) |
//! | `calls` | which system calls there are: seccomp |
//! | `beside` | a process outside that does what it was told to beforehand, and nothing else |
//!
//! [`close`] holds for the calling thread and for those that it starts from then on, for good: it is called before there are others.
//! What cannot be had of a kernel is left out, unless it is [required](Wish::Require); [`Held`] says what holds.
//!
//! Which files a command needs is not known here.
//!
//! ```no_run
//! use anabranch_sandbox::{Bounds, Wish, close};
//!
//! let bounds = Bounds { read: vec!["/etc".into()], write: vec!["/srv/downloads".into()], ..Bounds::default() };
//! let held = close(&bounds, Wish::Auto)?;
//! assert!(!held.files || std::fs::write("/srv/elsewhere", "").is_err());
//! # Ok::<(), anabranch_sandbox::SandboxError>(())
//! ```

#![deny(unsafe_code)]

mod beside;
mod calls;
mod files;

use std::fmt;
use std::path::PathBuf;

pub use beside::{Beside, Duties, Errand, Running, Task};
pub use calls::Calls;

/// Whether a process is shut in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wish {
    /// As far as the kernel goes.
    #[default]
    Auto,
    /// Files and system calls both, or it does not go on.
    Require,
    /// Not at all.
    Off,
}

/// What is left to a process that is shut in.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// Folders, with all that is below them, and files that may be read. What is not there is left out.
    pub read: Vec<PathBuf>,
    /// The same, to be read, written, made and removed.
    pub write: Vec<PathBuf>,
    /// System calls that few processes need.
    pub calls: Calls,
}

/// What holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Files are out of reach.
    pub files: bool,
    /// System calls are.
    pub calls: bool,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |held: bool, by: &'static str| if held { by } else { "not held, as the kernel lacks it" };
        write!(f, "files: {}; system calls: {}", word(self.files, "Landlock"), word(self.calls, "seccomp"))
    }
}

/// Why a process is not shut in.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The kernel lacks something, and it is required.
    #[error("this kernel does not hold {0}")]
    Missing(&'static str),
    /// The kernel has it, and it went wrong.
    #[error("the sandbox cannot be closed: {0}")]
    Failed(String),
}

/// Shuts the calling thread in, and those that it starts from here on.
pub fn close(bounds: &Bounds, wish: Wish) -> Result<Held, SandboxError> {
    if wish == Wish::Off {
        return Ok(Held::default());
    }
    // The filter comes last: it is not to be in the way of the rest.
    let held = Held { files: files::close(bounds)?, calls: calls::close(bounds.calls)? };
    match (wish, held) {
        (Wish::Require, Held { files: false, .. }) => Err(SandboxError::Missing(
            "files out of reach (Landlock, Linux 5.19 or newer, with `landlock` among its LSMs)",
        )),
        (Wish::Require, Held { calls: false, .. }) => Err(SandboxError::Missing("system calls (seccomp filters)")),
        _ => Ok(held),
    }
}
