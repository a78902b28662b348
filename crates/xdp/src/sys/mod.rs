//! Everything that the compiler cannot check: system calls, and memory that is shared with the kernel. The rest of this crate
//! forbids it.
//!
//! What is relied on: a pointer that is handed to the kernel lives over the call and has the length that goes with it; a
//! descriptor is owned by one value; the frames of a [`queue::Queue`] lie in memory that lives as long as its socket, and each of
//! them belongs to one side at a time, the kernel's or ours, as the rings say.

pub(crate) mod bpf;
pub(crate) mod queue;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// A socket of rtnetlink that does not block, and hears of `groups`.
pub(crate) fn netlink(groups: u32) -> io::Result<File> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
    // SAFETY: a new descriptor that nobody else has.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: plain C data, for which zero is "nothing".
    let mut address: libc::sockaddr_nl = unsafe { mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_groups = groups;
    let len = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address lives over the call and has `len` bytes.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(File::from(fd))
}

/// A socket that writes frames to interface number `interface` as they are, behind a note of what the device shall do with
/// them (`struct virtio_net_hdr`). It receives nothing, and does not block.
pub(crate) fn packet_socket(interface: u32) -> io::Result<File> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: a new descriptor that nobody else has.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let on: libc::c_int = 1;
    let len = mem::size_of_val(&on) as libc::socklen_t;
    let raw = fd.as_raw_fd();
    // SAFETY: the number lives over the call and has `len` bytes.
    check(unsafe { libc::setsockopt(raw, libc::SOL_PACKET, libc::PACKET_VNET_HDR, (&raw const on).cast(), len) })?;
    // SAFETY: plain C data, for which zero is "nothing".
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_ifindex = interface.cast_signed();
    let len = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address lives over the call and has `len` bytes.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(File::from(fd))
}

/// The processor time of this thread so far.
pub(crate) fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time lives over the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    // Neither is ever negative.
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// A descriptor that is readable while one of several is.
#[derive(Debug)]
pub struct Poll(OwnedFd);

impl Poll {
    /// Over none yet.
    ///
    /// # Errors
    /// The system is out of descriptors.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; the descriptor is new and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) }))
    }

    /// One more; it is forgotten when its last descriptor is closed.
    ///
    /// # Errors
    /// The system is out of memory, or the descriptor is there already.
    pub fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the event lives over the call.
        check(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event) })?;
        Ok(())
    }
}

impl std::os::fd::AsFd for Poll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The kernel's answer, or its error.
fn check(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
