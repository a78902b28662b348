//! What std does not ask of the system.

#![allow(unsafe_code)]

use std::fs::DirBuilder;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anabranch_daemon::LocalTime;

/// Lets this process open as many files and connections as it may: the soft limit of 1024 is for programs that use
/// `select`, and a session with many contents needs more.
pub(crate) fn raise_open_files_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls only read or fill the struct, which outlives them.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            // Where it fails the old limit stays, and opening says so when it is reached.
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// Whether this process may read what is everybody else's.
pub(crate) fn is_administrator() -> bool {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Whether this process was started with `signal` ignored, and has not changed that since.
pub(crate) fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: with no new action, the call only fills the struct, which is read where it says that it did.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Asks all processes of a group to end.
pub(crate) fn end_group(group: u32) {
    let Ok(group) = libc::pid_t::try_from(group) else { return };
    // SAFETY: the call touches no memory. A group that is gone is an error that changes nothing.
    unsafe {
        libc::kill(-group, libc::SIGTERM);
    }
}

/// What the clock on the wall shows.
pub(crate) fn local_time() -> LocalTime {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let now = libc::time_t::try_from(now).unwrap_or_default();
    let mut parts = std::mem::MaybeUninit::<libc::tm>::uninit();
    // SAFETY: the call reads the time, and fills the struct where it does not answer null; both outlive it.
    let parts = unsafe {
        if libc::localtime_r(&raw const now, parts.as_mut_ptr()).is_null() {
            return LocalTime::default();
        }
        parts.assume_init()
    };
    // There, the week begins with Sunday.
    LocalTime { day: ((parts.tm_wday + 6) % 7) as u8, minute: (parts.tm_hour * 60 + parts.tm_min) as u16 }
}

/// Does something while the terminal at standard input, if it is one, does not show what is typed.
pub(crate) fn without_echo<T>(work: impl FnOnce() -> T) -> T {
    let mut kept = std::mem::MaybeUninit::<libc::termios>::uninit();
    // SAFETY: the call only fills the struct, which is read where it says that it did.
    let kept = unsafe { (libc::tcgetattr(libc::STDIN_FILENO, kept.as_mut_ptr()) == 0).then(|| kept.assume_init()) };
    let set = |modes: &libc::termios| {
        // SAFETY: the call only reads the struct, which outlives it.
        unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSAFLUSH, modes) }
    };
    if let Some(kept) = kept {
        let mut silent = kept;
        silent.c_lflag &= !libc::ECHO;
        // Where it fails, what is typed is seen, as it is where nobody asks.
        set(&silent);
    }
    let done = work();
    if let Some(kept) = kept {
        set(&kept);
    }
    done
}

/// A new folder in `parent` that nobody else may look into, whose name begins with `prefix`.
pub(crate) fn make_private_folder(parent: &Path, prefix: &str) -> io::Result<PathBuf> {
    for _ in 0..FOLDER_TRIES {
        // std keys each RandomState from the system's randomness.
        let random = RandomState::new().build_hasher().finish();
        let path = parent.join(format!("{prefix}-{random:016x}"));
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Names that are tried for a new folder: one is enough but by malice.
const FOLDER_TRIES: usize = 8;
