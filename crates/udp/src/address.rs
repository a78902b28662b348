//! Socket addresses as the kernel has them.

#![allow(unsafe_code)]

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Room for an address of either family.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union RawAddr {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// Bytes that [`RawAddr`] can take.
pub(crate) const RAW_ADDR_LEN: libc::socklen_t = mem::size_of::<RawAddr>() as libc::socklen_t;

impl RawAddr {
    /// All zero: no family.
    pub(crate) const EMPTY: Self = Self {
        v6: libc::sockaddr_in6 {
            sin6_family: 0,
            sin6_port: 0,
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
            sin6_scope_id: 0,
        },
    };

    /// `address` for a socket of the family `is_v6`, and its length. IPv4 on an IPv6 socket is written as mapped.
    pub(crate) fn new(address: SocketAddr, is_v6: bool) -> (Self, libc::socklen_t) {
        match address {
            SocketAddr::V4(v4) if !is_v6 => {
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                let mut out = Self::EMPTY;
                out.v4 = raw;
                (out, mem::size_of::<libc::sockaddr_in>() as libc::socklen_t)
            }
            SocketAddr::V4(v4) => Self::v6(SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0)),
            SocketAddr::V6(v6) => Self::v6(v6),
        }
    }

    fn v6(address: SocketAddrV6) -> (Self, libc::socklen_t) {
        let raw = libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6 as libc::sa_family_t,
            sin6_port: address.port().to_be(),
            sin6_flowinfo: address.flowinfo(),
            sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
            sin6_scope_id: address.scope_id(),
        };
        (Self { v6: raw }, mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t)
    }

    /// What the kernel wrote; mapped IPv4 is unmapped.
    pub(crate) fn get(&self) -> SocketAddr {
        // SAFETY: every bit pattern is valid for both variants, all bytes are initialised (`EMPTY` covers the larger one),
        // and both begin with the family.
        let (family, v4, v6) = unsafe { (self.v4.sin_family, self.v4, self.v6) };
        if i32::from(family) == libc::AF_INET6 {
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            return match ip.to_ipv4_mapped() {
                Some(v4) => SocketAddrV4::new(v4, port).into(),
                None => SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into(),
            };
        }
        SocketAddrV4::new(from_in_addr(v4.sin_addr), u16::from_be(v4.sin_port)).into()
    }
}

pub(crate) fn from_in_addr(address: libc::in_addr) -> Ipv4Addr {
    Ipv4Addr::from(address.s_addr.to_ne_bytes())
}

/// Whether packets to `ip` are IPv4 on the wire.
pub(crate) fn is_v4_on_wire(ip: IpAddr) -> bool {
    ip.to_canonical().is_ipv4()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        let v4: SocketAddr = "192.0.2.7:6881".parse().unwrap();
        let v6: SocketAddr = "[2001:db8::7%3]:6881".parse().unwrap();
        assert_eq!(RawAddr::new(v4, false).0.get(), v4);
        assert_eq!(RawAddr::new(v4, true).0.get(), v4);
        assert_eq!(RawAddr::new(v6, true).0.get(), v6);
    }
}
