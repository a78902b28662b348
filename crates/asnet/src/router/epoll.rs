//! Waiting for sockets and for a moment, to the nanosecond.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

/// Readiness reports that one wait brings; more wait for the next.
const EVENTS_MAX: usize = 64;
/// The key of the waker; sockets have others.
const WAKER: u64 = u64::MAX;
/// How much later than asked the system may wake a worker: enough for it to save nothing, little beside any delay.
const TIMER_SLACK_NS: libc::c_ulong = 1_000;

/// A set of descriptors to wait for.
pub(super) struct Epoll {
    fd: OwnedFd,
    waker: Waker,
    events: Vec<libc::epoll_event>,
}

/// Ends another thread's wait.
#[derive(Debug)]
pub(super) struct Waker(OwnedFd);

impl Epoll {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: no pointers.
        let waker = Waker(owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?);
        let mut epoll = Self { fd, waker, events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX] };
        let waker = epoll.waker.0.as_raw_fd();
        epoll.register(waker, WAKER)?;
        // So that an old kernel is found out at the start.
        epoll.wait(Some(Duration::ZERO), &mut Vec::new()).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOSYS) => io::Error::new(io::ErrorKind::Unsupported, "Linux 5.11 or newer is needed"),
            _ => error,
        })?;
        Ok(epoll)
    }

    /// What ends this set's waits from elsewhere.
    pub(super) fn waker(&self) -> io::Result<Waker> {
        Ok(Waker(self.waker.0.try_clone()?))
    }

    /// Reports `key` whenever the socket has something to read.
    pub(super) fn add(&mut self, socket: &impl AsFd, key: usize) -> io::Result<()> {
        self.register(socket.as_fd().as_raw_fd(), key as u64)
    }

    /// Waits until a socket has something to read, a waker is used, or the time is over; pushes the sockets' keys.
    pub(super) fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<usize>) -> io::Result<()> {
        // Seconds and nanoseconds of a sane timeout fit their fields.
        let timeout = timeout.map(|time| libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: time.subsec_nanos() as libc::c_long,
        });
        let timeout_at = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: `events` has room for as many as announced, the timeout lives over the call, and no signal mask is
        // given. (Since Linux 5.11.)
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                EVENTS_MAX as libc::c_int,
                timeout_at,
                ptr::null::<libc::sigset_t>(),
                0_usize,
            )
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        for event in &self.events[..count as usize] {
            match event.u64 {
                WAKER => self.waker.clear(),
                key => ready.push(key as usize),
            }
        }
        Ok(())
    }

    fn register(&mut self, fd: RawFd, key: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: key };
        // SAFETY: the event lives over the call.
        let answer = unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Waker {
    /// Ends the wait that goes on, or the next one.
    pub(super) fn wake(&self) {
        let one = 1_u64;
        // A full counter means that the waker is set already, so the result says nothing.
        // SAFETY: eight bytes are there to read.
        unsafe { libc::write(self.0.as_raw_fd(), ptr::from_ref(&one).cast(), size_of::<u64>()) };
    }

    fn clear(&self) {
        let mut count = 0_u64;
        // SAFETY: eight bytes are there to write to.
        unsafe { libc::read(self.0.as_raw_fd(), ptr::from_mut(&mut count).cast(), size_of::<u64>()) };
    }
}

/// Makes the system wake this thread at the time that it asks for, not 50 microseconds later.
pub(super) fn wake_on_time() {
    // SAFETY: takes numbers only; if it fails, links are that much less exact.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0) };
}

fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_end_by_time_by_waker_and_by_socket() {
        let mut epoll = Epoll::new().unwrap();
        let mut ready = Vec::new();
        epoll.wait(Some(Duration::from_micros(10)), &mut ready).unwrap();
        assert!(ready.is_empty());
        epoll.waker().unwrap().wake();
        epoll.wait(None, &mut ready).unwrap();
        assert!(ready.is_empty());
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        epoll.add(&socket, 5).unwrap();
        socket.send_to(&[1], socket.local_addr().unwrap()).unwrap();
        epoll.wait(None, &mut ready).unwrap();
        assert_eq!(ready, [5]);
    }
}
