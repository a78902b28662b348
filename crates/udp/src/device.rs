//! What is known of a network device.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::socket::{Socket, check};

/// The largest packet that interface `name` takes, IP header included, in bytes. A loopback's may be more than any packet's.
///
/// # Errors
/// No such interface (`ENODEV`), or its name is too long to be one.
pub fn interface_mtu(name: &str) -> io::Result<u32> {
    // SAFETY: plain C data, for which zero is "nothing".
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte ends the name.
    if name.len() >= request.ifr_name.len() || name.bytes().any(|byte| byte == 0) {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: a new descriptor that nobody else has.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the request lives over the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) })?;
    // SAFETY: the call has succeeded, so the kernel wrote this field.
    Ok(unsafe { request.ifr_ifru.ifru_mtu }.cast_unsigned())
}

impl Socket {
    /// From here on nothing leaves by another interface than the one of this number, whatever the routes say and whichever source a datagram
    /// has, and what comes by another is not heard: what this machine sends itself neither, unless that is its interface.
    ///
    /// # Errors
    /// A kernel before 5.7 and a process without its rights. Where there is no such interface, sending fails.
    pub fn keep_to_interface(&self, index: u32) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, index.cast_signed())
    }

    /// Whether there is an interface of this number where the socket is, up or down.
    pub fn has_interface(&self, index: u32) -> bool {
        // SAFETY: plain C data, for which zero is "nothing".
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = index.cast_signed();
        // SAFETY: the request lives over the call.
        check(unsafe { libc::ioctl(self.as_raw_fd(), libc::SIOCGIFNAME as _, &raw mut request) }).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_there_and_others_are_not() {
        let socket = Socket::bind("127.0.0.1:0".parse().unwrap(), &crate::Options::default()).unwrap();
        assert!(socket.has_interface(1));
        assert!(!socket.has_interface(0) && !socket.has_interface(u32::MAX));
    }

    #[test]
    fn a_socket_is_kept_to_an_interface_that_is_there() {
        let options = crate::Options::default();
        let [from, to] = [(); 2].map(|()| Socket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap());
        from.keep_to_interface(1).unwrap();
        from.send(&[crate::Message::new(to.local_addr(), &[io::IoSlice::new(b"by the loopback")])]).unwrap();
        let mut batch = crate::RecvBatch::new(1);
        assert_eq!(to.recv(&mut batch).unwrap(), 1);
        from.keep_to_interface(u32::MAX >> 1).unwrap();
        assert!(from.send(&[crate::Message::new(to.local_addr(), &[io::IoSlice::new(b"by none")])]).is_err());
    }

    #[test]
    fn the_loopback_has_one_and_nothing_has_none() {
        assert!(interface_mtu("lo").unwrap() >= 1280);
        for name in ["no-such-device", "a name that is longer than any", "l\0o", ""] {
            assert!(interface_mtu(name).is_err(), "{name}");
        }
    }
}
