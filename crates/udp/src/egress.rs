//! By which interface datagrams over IPv6 leave.
//!
//! Of a datagram whose control message names an interface and no source, Linux asks for a route by that interface. Where a source is
//! named too, it takes the route of the lowest metric, by whichever interface (`ip6_route_output_flags`: `RT6_LOOKUP_F_IFACE` is set for
//! sockets that are bound to a device and for datagrams without a source). Over IPv4 the interface always holds. So the source is left
//! out where the system would choose the same one; what it would choose is asked from time to time.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::socket::check;

/// For how long an answer holds: addresses come and go.
const KNOWN_FOR: Duration = Duration::from_secs(10);
/// Answers that are kept.
const KNOWN_MAX: usize = 1024;
/// No datagram is sent to it: a UDP socket that is connected sends nothing by that.
const ANY_PORT: u16 = 9;

/// What the system chooses, as far as it was asked.
#[derive(Debug, Default)]
pub(crate) struct Sources(Mutex<HashMap<(u32, Ipv6Addr), Known>>);

#[derive(Clone, Copy, Debug)]
struct Known {
    source: Option<Ipv6Addr>,
    asked: Instant,
}

impl Sources {
    /// Whether the system would choose `from` for datagrams to `to` that leave by the interface of this number.
    pub(crate) fn would_choose(&self, from: Ipv6Addr, interface: u32, to: Ipv6Addr) -> bool {
        // Nothing under this lock can leave the map half-changed.
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let known = lock().get(&(interface, to)).copied();
        if let Some(known) = known.filter(|known| now.saturating_duration_since(known.asked) < KNOWN_FOR) {
            return known.source == Some(from);
        }
        let source = source_by(interface, to).ok();
        let mut all = lock();
        if all.len() >= KNOWN_MAX {
            all.clear();
        }
        all.insert((interface, to), Known { source, asked: now });
        source == Some(from)
    }
}

/// The address that the system gives datagrams to `to` that leave by the interface of this number.
fn source_by(interface: u32, to: Ipv6Addr) -> io::Result<Ipv6Addr> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    let index = interface.cast_signed();
    let len = mem::size_of_val(&index) as libc::socklen_t;
    // SAFETY: the option is an `int`, which lives over the call.
    check(unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, (&raw const index).cast(), len)
    })?;
    socket.connect((to, ANY_PORT))?;
    match socket.local_addr()?.ip() {
        IpAddr::V6(source) => Ok(source),
        IpAddr::V4(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_has_one_source_and_an_interface_that_is_none_has_none() {
        let sources = Sources::default();
        // Where IPv6 is off there is nothing to choose.
        let is_v6 = UdpSocket::bind("[::1]:0").is_ok();
        assert_eq!(sources.would_choose(Ipv6Addr::LOCALHOST, 1, Ipv6Addr::LOCALHOST), is_v6);
        assert!(!sources.would_choose(Ipv6Addr::UNSPECIFIED, 1, Ipv6Addr::LOCALHOST));
        assert!(!sources.would_choose(Ipv6Addr::LOCALHOST, 0x7fff_ffff, Ipv6Addr::LOCALHOST));
    }
}
