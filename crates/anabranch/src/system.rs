//! What std does not ask of the system.

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
