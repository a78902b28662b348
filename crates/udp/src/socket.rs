//! The socket and its options.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::address::{RAW_ADDR_LEN, RawAddr};
use crate::egress::Sources;

/// What [`Socket::bind`] asks of the kernel.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes the kernel keeps of what arrived and was not read; it may give less.
    pub recv_buffer_bytes: usize,
    /// Bytes the kernel takes that have not left; it may give less.
    pub send_buffer_bytes: usize,
    /// Tell with each datagram which address of this machine it was sent to ([`crate::Received::local`]).
    pub local_address: bool,
    /// Tell with each datagram its ECN bits ([`crate::Received::ecn`]).
    pub ecn: bool,
    /// Coalesce arriving datagrams of one flow.
    pub gro: bool,
    /// Tell with each datagram when the kernel took it from the device ([`crate::Received::arrived`]).
    pub timestamps: bool,
}

impl Default for Options {
    /// Big buffers, coalescing, ECN, no local address and no times.
    fn default() -> Self {
        // 8 MiB is 7 ms of 10 Gbit/s: what a reader may be away while another thread has its core.
        Self {
            recv_buffer_bytes: 8 << 20,
            send_buffer_bytes: 4 << 20,
            local_address: false,
            ecn: true,
            gro: true,
            timestamps: false,
        }
    }
}

/// A UDP socket that never blocks, and never fragments unless it is told that it may. Sending and receiving take `&self`: threads may share it.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    local: SocketAddr,
    is_v6: bool,
    gso: AtomicBool,
    sources: Sources,
}

impl Socket {
    /// Binds to `address`. An IPv6 wildcard takes IPv4 too.
    ///
    /// # Errors
    /// What `socket` and `bind` say: address in use, not of this machine, out of descriptors. Options that the kernel does
    /// not know or allow are passed over, but for those that datagrams would be misread without.
    pub fn bind(address: SocketAddr, options: &Options) -> io::Result<Self> {
        let is_v6 = address.is_ipv6();
        let family = if is_v6 { libc::AF_INET6 } else { libc::AF_INET };
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = check(unsafe { libc::socket(family, kind, 0) })?;
        // SAFETY: a new descriptor that nobody else has.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let gso = AtomicBool::new(false);
        let mut socket = Self { fd, local: address, is_v6, gso, sources: Sources::default() };
        socket.configure(options)?;

        let (raw, len) = RawAddr::new(address, is_v6);
        // SAFETY: `raw` has at least `len` bytes.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const raw).cast(), len) })?;
        let (mut raw, mut len) = (RawAddr::EMPTY, RAW_ADDR_LEN);
        // SAFETY: `raw` has `len` bytes to write to.
        check(unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut raw).cast(), &mut len) })?;
        socket.local = raw.get();
        Ok(socket)
    }

    /// The address that it is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Datagrams that a burst may have: [`crate::SEGMENTS_MAX`], or one where bursts would only be cut apart again.
    pub fn segments_max(&self) -> usize {
        if self.gso() { crate::SEGMENTS_MAX } else { 1 }
    }

    pub(crate) fn gso(&self) -> bool {
        self.gso.load(Ordering::Relaxed)
    }

    /// From here on bursts leave as single datagrams.
    pub(crate) fn disable_gso(&self) {
        self.gso.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_v6(&self) -> bool {
        self.is_v6
    }

    /// The source that a datagram's control message names, so that it leaves by `interface`, whose number is zero where any will do.
    pub(crate) fn named_source(&self, from: Option<IpAddr>, interface: u32, to: IpAddr) -> Option<IpAddr> {
        match (from?, to) {
            (IpAddr::V6(source), IpAddr::V6(to))
                if interface > 0
                    && to.to_ipv4_mapped().is_none()
                    && self.local.ip().is_unspecified()
                    && self.sources.would_choose(source, interface, to) =>
            {
                None
            }
            _ => from,
        }
    }

    /// Whether what leaves from here on may be cut apart on its way, as long as that is wanted; it may not at first.
    pub fn set_may_fragment(&self, may: bool) {
        let (v4, v6) = match may {
            true => (libc::IP_PMTUDISC_DONT, libc::IPV6_PMTUDISC_DONT),
            false => (libc::IP_PMTUDISC_PROBE, libc::IPV6_PMTUDISC_PROBE),
        };
        // What the kernel does not know is passed over, as when it was bound.
        let _ = self.set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, v4);
        if self.is_v6 {
            let _ = self.set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, v6);
        }
    }

    fn configure(&self, options: &Options) -> io::Result<()> {
        const ON: libc::c_int = 1;
        // Beyond the system's limit if we may, up to it else.
        for (force, plain, bytes) in [
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, options.recv_buffer_bytes),
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, options.send_buffer_bytes),
        ] {
            let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
            let _ = self.set(libc::SOL_SOCKET, force, bytes).or_else(|_| self.set(libc::SOL_SOCKET, plain, bytes));
        }
        // Packets leave whole or not at all: who sends knows the path's MTU or is about to find it.
        let _ = self.set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
        let wants_class = libc::c_int::from(options.ecn);
        let _ = self.set(libc::IPPROTO_IP, libc::IP_RECVTOS, wants_class);
        if options.local_address {
            self.set(libc::IPPROTO_IP, libc::IP_PKTINFO, ON)
                .or_else(|error| if self.is_v6 { Ok(()) } else { Err(error) })?;
        }
        if self.is_v6 {
            self.set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0)?;
            let _ = self.set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE);
            let _ = self.set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, wants_class);
            if options.local_address {
                self.set(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, ON)?;
            }
        }
        if options.timestamps {
            let _ = self.set(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, ON);
        }
        if options.gro {
            let _ = self.set(libc::SOL_UDP, libc::UDP_GRO, ON);
        }
        // A kernel that knows the option as the socket's own knows it as a control message too.
        self.gso.store(self.set(libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok(), Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn set(&self, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let len = mem::size_of_val(&value) as libc::socklen_t;
        // SAFETY: `value` lives over the call and has `len` bytes.
        check(unsafe { libc::setsockopt(self.as_raw_fd(), level, option, (&raw const value).cast(), len) })?;
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// The kernel's answer, or its error.
pub(crate) fn check(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
