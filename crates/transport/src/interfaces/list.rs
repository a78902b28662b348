//! What interfaces there are.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{INTERFACE_ADDRESSES_MAX, LocalAddress, LocalInterface};

/// Entries of the system's list that are read: an interface has one, and one for each of its addresses.
const ENTRIES_MAX: usize = 8192;

/// All interfaces, in the system's order; usable are those that are running.
pub(super) fn all() -> io::Result<Vec<LocalInterface>> {
    let mut list: Vec<LocalInterface> = Vec::new();
    let entries = Entries::new()?;
    for entry in entries.iter().take(ENTRIES_MAX) {
        // SAFETY: the system made the name, which ends in a zero byte and lives as long as `entries`.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy();
        let interface = match list.iter_mut().find(|known| known.name == name) {
            Some(known) => known,
            None => {
                let flag = |flag: libc::c_int| entry.ifa_flags & flag as libc::c_uint != 0;
                let loopback = flag(libc::IFF_LOOPBACK);
                // SAFETY: the name ends in a zero byte; 0 comes back where the interface is gone by now.
                let index = unsafe { libc::if_nametoindex(entry.ifa_name) };
                let running = flag(libc::IFF_UP) && flag(libc::IFF_RUNNING) && index != 0;
                list.push(LocalInterface {
                    name: name.into(),
                    index,
                    loopback,
                    running,
                    usable: running,
                    addresses: Vec::new(),
                });
                let Some(new) = list.last_mut() else { continue };
                new
            }
        };
        if let Some(ip) = ip_of(entry.ifa_addr)
            && interface.addresses.len() < INTERFACE_ADDRESSES_MAX
        {
            let prefix_len = ip_of(entry.ifa_netmask).map_or(0, |mask| match mask {
                IpAddr::V4(mask) => mask.to_bits().leading_ones(),
                IpAddr::V6(mask) => mask.to_bits().leading_ones(),
            });
            interface.addresses.push(LocalAddress { ip, prefix_len: prefix_len as u8 });
        }
    }
    Ok(list)
}

/// The list that `getifaddrs` makes.
struct Entries(*mut libc::ifaddrs);

impl Entries {
    fn new() -> io::Result<Self> {
        let mut first = std::ptr::null_mut();
        // SAFETY: the pointer is to a local that receives the list.
        match unsafe { libc::getifaddrs(&raw mut first) } {
            0 => Ok(Self(first)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &libc::ifaddrs> {
        // SAFETY: the list's entries live until `freeifaddrs`, and each points to the next or nowhere.
        std::iter::successors(unsafe { self.0.as_ref() }, |entry| unsafe { entry.ifa_next.as_ref() })
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        // SAFETY: `getifaddrs` made it, and nothing borrows from it any more.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

/// The IP address behind a pointer of the list; `None` where it is of another kind.
fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: null, or a socket address of the family that it names, which is then as long as that family's.
    unsafe {
        match i32::from(address.as_ref()?.sa_family) {
            libc::AF_INET => {
                let address = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let address = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}
