//! Control messages: what goes with a datagram beside its bytes.

#![allow(unsafe_code)]

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime};

use crate::address::{from_in_addr, is_v4_on_wire};

/// Room for the control messages of one datagram. The largest set is coalescing length (24), both address families'
/// packet information (32 and 40), traffic class (24), and time of arrival (32).
pub(crate) const CONTROL_LEN: usize = 160;

/// The two bits of the traffic class that are ECN. RFC 3168 §5.
const ECN_MASK: u8 = 0b11;

/// Memory for control messages, aligned as their headers ask.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Control(pub(crate) [u8; CONTROL_LEN]);

impl Control {
    pub(crate) const EMPTY: Self = Self([0; CONTROL_LEN]);
}

/// Appends control messages to a buffer.
pub(crate) struct Writer<'a> {
    control: &'a mut Control,
    len: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(control: &'a mut Control) -> Self {
        Self { control, len: 0 }
    }

    /// Bytes written.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// `UDP_SEGMENT`: the size of the datagrams that the kernel cuts the payload into.
    pub(crate) fn segment_len(&mut self, len: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, len);
    }

    /// The ECN bits of a datagram to `to`.
    pub(crate) fn ecn(&mut self, to: IpAddr, ecn: u8) {
        let class = libc::c_int::from(ecn & ECN_MASK);
        if is_v4_on_wire(to) {
            self.push(libc::IPPROTO_IP, libc::IP_TOS, class);
        } else {
            self.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class);
        }
    }

    /// The source address and the interface to leave by, as far as they are told; of the socket's family.
    pub(crate) fn source(&mut self, from: Option<IpAddr>, interface: u32, socket_is_v6: bool) {
        match (from, socket_is_v6) {
            (Some(IpAddr::V4(v4)), false) => self.source_v4(v4, interface),
            (None, false) => self.source_v4(Ipv4Addr::UNSPECIFIED, interface),
            (Some(IpAddr::V4(v4)), true) => self.source_v6(v4.to_ipv6_mapped(), interface),
            (Some(IpAddr::V6(v6)), _) => self.source_v6(v6, interface),
            (None, true) => self.source_v6(Ipv6Addr::UNSPECIFIED, interface),
        }
    }

    fn source_v4(&mut self, from: Ipv4Addr, interface: u32) {
        let spec = libc::in_addr { s_addr: u32::from_ne_bytes(from.octets()) };
        let ipi_ifindex = interface.cast_signed();
        let info = libc::in_pktinfo { ipi_ifindex, ipi_spec_dst: spec, ipi_addr: libc::in_addr { s_addr: 0 } };
        self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, info);
    }

    fn source_v6(&mut self, from: Ipv6Addr, interface: u32) {
        let ipi6_addr = libc::in6_addr { s6_addr: from.octets() };
        self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, libc::in6_pktinfo { ipi6_addr, ipi6_ifindex: interface });
    }

    fn push<T: Copy>(&mut self, level: libc::c_int, kind: libc::c_int, value: T) {
        let size = mem::size_of::<T>() as libc::c_uint;
        // SAFETY: arithmetic only.
        let (len, space) = unsafe { (libc::CMSG_LEN(size), libc::CMSG_SPACE(size) as usize) };
        assert!(self.len + space <= CONTROL_LEN, "all control messages of one datagram fit together");
        let at = self.control.0[self.len..].as_mut_ptr();
        let header = libc::cmsghdr { cmsg_len: len as _, cmsg_level: level, cmsg_type: kind };
        // SAFETY: `space` bytes from `at` are in the buffer (asserted); `write_unaligned` asks nothing of alignment, and
        // the value lies at CMSG_LEN(0) behind the header, inside `space`.
        unsafe {
            at.cast::<libc::cmsghdr>().write_unaligned(header);
            at.add(libc::CMSG_LEN(0) as usize).cast::<T>().write_unaligned(value);
        }
        self.len += space;
    }
}

/// What came with a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Info {
    /// Size of the coalesced datagrams; `None` if there is one only.
    pub(crate) segment_len: Option<usize>,
    /// The two ECN bits.
    pub(crate) ecn: u8,
    /// The address that it was sent to.
    pub(crate) local: Option<IpAddr>,
    /// The number of the interface that it came in by; 0 where nobody told.
    pub(crate) interface: u32,
    /// When the kernel took it from the device.
    pub(crate) arrived: Option<SystemTime>,
}

impl Info {
    /// Reads the control messages that the kernel wrote. What does not fit is passed over.
    pub(crate) fn read(mut control: &[u8]) -> Self {
        let mut info = Self::default();
        // SAFETY: arithmetic only.
        let head_len = unsafe { libc::CMSG_LEN(0) } as usize;
        while control.len() >= head_len {
            // SAFETY: at least a header's bytes are there (`head_len` covers it), and any bytes are a header.
            let header = unsafe { control.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
            let len = header.cmsg_len;
            if len < head_len || len > control.len() {
                break;
            }
            info.take(header.cmsg_level, header.cmsg_type, &control[head_len..len]);
            // SAFETY: arithmetic only.
            let space = unsafe { libc::CMSG_SPACE((len - head_len) as libc::c_uint) } as usize;
            control = control.get(space..).unwrap_or_default();
        }
        info
    }

    fn take(&mut self, level: libc::c_int, kind: libc::c_int, value: &[u8]) {
        match (level, kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let len = read::<libc::c_int>(value).and_then(|len| usize::try_from(len).ok());
                self.segment_len = len.filter(|len| *len > 0);
            }
            // The kernel writes the IPv4 traffic class as one byte, the IPv6 one as an int.
            (libc::IPPROTO_IP, libc::IP_TOS) => self.ecn = value.first().map_or(0, |class| class & ECN_MASK),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                self.ecn = read::<libc::c_int>(value).map_or(0, |class| class as u8 & ECN_MASK);
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                if let Some(info) = read::<libc::in_pktinfo>(value) {
                    self.local = Some(from_in_addr(info.ipi_addr).into());
                    self.interface = info.ipi_ifindex.cast_unsigned();
                }
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let Some(info) = read::<libc::in6_pktinfo>(value) {
                    self.local = Some(IpAddr::from(Ipv6Addr::from(info.ipi6_addr.s6_addr)).to_canonical());
                    self.interface = info.ipi6_ifindex;
                }
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                self.arrived = read::<libc::timespec>(value).and_then(|time| {
                    let since = Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?);
                    SystemTime::UNIX_EPOCH.checked_add(since)
                });
            }
            _ => {}
        }
    }
}

/// Plain C data at the start of `bytes`.
fn read<T: Plain>(bytes: &[u8]) -> Option<T> {
    // SAFETY: the length was checked, and `Plain` types are valid for any bytes.
    (bytes.len() >= mem::size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Types that any bytes are a value of.
trait Plain: Copy {}
impl Plain for libc::c_int {}
impl Plain for libc::in_pktinfo {}
impl Plain for libc::in6_pktinfo {}
impl Plain for libc::timespec {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut control = Control::EMPTY;
        let mut writer = Writer::new(&mut control);
        writer.push(libc::SOL_UDP, libc::UDP_GRO, 1200 as libc::c_int);
        writer.ecn("::1".parse().unwrap(), 0b10);
        writer.source(Some("::1".parse().unwrap()), 3, true);
        writer.push(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, libc::timespec { tv_sec: 5, tv_nsec: 7 });
        let len = writer.len();
        let info = Info::read(&control.0[..len]);
        let expected = Info {
            segment_len: Some(1200),
            ecn: 0b10,
            local: Some("::1".parse().unwrap()),
            interface: 3,
            arrived: Some(SystemTime::UNIX_EPOCH + Duration::new(5, 7)),
        };
        assert_eq!(info, expected);
        // Cut off anywhere: what is whole is read, the rest passed over.
        for cut in 0..len {
            Info::read(&control.0[..cut]);
        }
    }

    #[test]
    fn the_largest_set_fits() {
        let mut control = Control::EMPTY;
        let mut writer = Writer::new(&mut control);
        writer.push(libc::SOL_UDP, libc::UDP_GRO, 1200 as libc::c_int);
        writer.ecn("::1".parse().unwrap(), 0b10);
        writer.source(None, 3, false);
        writer.source(None, 3, true);
        writer.push(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, libc::timespec { tv_sec: -1, tv_nsec: 7 });
        let len = writer.len();
        assert_eq!(Info::read(&control.0[..len]).arrived, None, "before the epoch");
    }

    #[test]
    fn a_header_that_lies_about_its_length_ends_the_list() {
        for len in [0_usize, 15, 17, usize::MAX] {
            let mut control = Control::EMPTY;
            control.0[..8].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(Info::read(&control.0[..16]), Info::default());
        }
    }
}
