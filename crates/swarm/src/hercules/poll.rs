//! Waiting for sockets and for others' commands, to the microsecond: data leaves in bursts of a millisecond and less.
//!
//! Unsafe: one system call on a slice of this function's own.

#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Wakes a thread that waits. Cheap to clone; waking twice before it looks costs nothing.
#[derive(Clone, Debug)]
pub(crate) struct Waker {
    stream: Arc<UnixStream>,
    is_set: Arc<AtomicBool>,
}

/// The other end of a [`Waker`].
#[derive(Debug)]
pub(crate) struct Woken {
    stream: UnixStream,
    is_set: Arc<AtomicBool>,
}

/// A pair of these.
pub(crate) fn waker() -> std::io::Result<(Waker, Woken)> {
    let (near, far) = UnixStream::pair()?;
    near.set_nonblocking(true)?;
    far.set_nonblocking(true)?;
    let is_set = Arc::<AtomicBool>::default();
    Ok((Waker { stream: Arc::new(near), is_set: Arc::clone(&is_set) }, Woken { stream: far, is_set }))
}

impl Waker {
    pub(crate) fn wake(&self) {
        if !self.is_set.swap(true, Ordering::AcqRel) {
            // A full pipe wakes as well.
            let _ = (&*self.stream).write(&[1]);
        }
    }
}

impl Woken {
    /// Clears it; call before looking at what one was woken for.
    pub(crate) fn clear(&mut self) {
        if self.is_set.load(Ordering::Acquire) {
            let mut bytes = [0; 16];
            let _ = self.stream.read(&mut bytes);
            self.is_set.store(false, Ordering::Release);
        }
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}

/// Waits until one of `sockets` is readable, or, where it says so, writable; until woken; or for `timeout`.
pub(crate) fn wait(woken: &Woken, sockets: &[(RawFd, bool)], timeout: Duration) {
    let mut fds = Vec::with_capacity(sockets.len() + 1);
    fds.push(libc::pollfd { fd: woken.fd(), events: libc::POLLIN, revents: 0 });
    for (fd, wants_room) in sockets {
        let events = if *wants_room { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        fds.push(libc::pollfd { fd: *fd, events, revents: 0 });
    }
    let timeout = libc::timespec { tv_sec: timeout.as_secs() as libc::time_t, tv_nsec: timeout.subsec_nanos().into() };
    // SAFETY: the pointer and the count describe `fds`; the timeout lives through the call; no signal mask is given. Whatever
    // comes of it, the caller looks at everything.
    unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &raw const timeout, std::ptr::null()) };
}
