//! Frames of Ethernet with one UDP datagram: written from a template, and read as strictly as the kernel does. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use anabranch_scion_wire::checksum::{self, Sum};

/// A hardware address of Ethernet.
pub type Mac = [u8; 6];

// IEEE 802.3
const ETHERNET_LEN: usize = 14;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
// RFC 791, RFC 8200, RFC 768
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const UDP: u8 = 17;
/// As Linux has it; RFC 1700.
const HOPS: u8 = 64;
/// RFC 791, "don't fragment": a packet arrives whole or not at all, and then needs no identification (RFC 6864 §4.1).
const DONT_FRAGMENT: u8 = 0x40;
const ECN_MASK: u8 = 0b11;

/// Bytes of all headers in front of a UDP payload over IPv4.
pub const IPV4_HEADERS_LEN: usize = ETHERNET_LEN + IPV4_LEN + UDP_LEN;
/// The same over IPv6.
pub const IPV6_HEADERS_LEN: usize = ETHERNET_LEN + IPV6_LEN + UDP_LEN;

/// Bytes that a frame has beyond its IP packet.
pub(crate) const FRAME_OVERHEAD: usize = ETHERNET_LEN;

/// The headers of all frames from one socket to another over one next hop, but for lengths, checksums and ECN.
#[derive(Clone, Debug)]
pub struct FrameTemplate {
    bytes: [u8; IPV6_HEADERS_LEN],
    len: usize,
    /// Pseudo header and ports, without the lengths.
    sum: Sum,
}

impl FrameTemplate {
    /// From `source` to `destination`, handed over to the interface with the address `next_hop`. `None`: they are of
    /// different families.
    pub fn new(own: Mac, next_hop: Mac, source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        let mut bytes = [0; IPV6_HEADERS_LEN];
        bytes[..6].copy_from_slice(&next_hop);
        bytes[6..12].copy_from_slice(&own);
        let ip = &mut bytes[ETHERNET_LEN..];
        let (ethertype, ip_len, addresses) = match (source.ip().to_canonical(), destination.ip().to_canonical()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                ip[0] = 0x45;
                ip[6] = DONT_FRAGMENT;
                (ip[8], ip[9]) = (HOPS, UDP);
                ip[12..16].copy_from_slice(&from.octets());
                ip[16..20].copy_from_slice(&to.octets());
                (ETHERTYPE_IPV4, IPV4_LEN, 12..20)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                ip[0] = 0x60;
                (ip[6], ip[7]) = (UDP, HOPS);
                ip[8..24].copy_from_slice(&from.octets());
                ip[24..40].copy_from_slice(&to.octets());
                (ETHERTYPE_IPV6, IPV6_LEN, 8..40)
            }
            _ => return None,
        };
        ip[ip_len..ip_len + 2].copy_from_slice(&source.port().to_be_bytes());
        ip[ip_len + 2..ip_len + 4].copy_from_slice(&destination.port().to_be_bytes());
        let sum = checksum::sum(&ip[addresses]) + checksum::sum(&ip[ip_len..ip_len + 4]) + Sum::from_u16(UDP.into());
        bytes[12..14].copy_from_slice(&ethertype);
        Some(Self { bytes, len: ETHERNET_LEN + ip_len + UDP_LEN, sum })
    }

    /// Bytes of all headers.
    pub fn headers_len(&self) -> usize {
        self.len
    }

    /// Writes the headers for a payload of this length and sum; false if they do not fit, or no packet is so long.
    pub fn write(&self, payload_len: usize, payload: Sum, ecn: u8, out: &mut [u8]) -> bool {
        let Some(out) = out.get_mut(..self.len) else { return false };
        let Ok(udp_len) = u16::try_from(payload_len + UDP_LEN) else { return false };
        out.copy_from_slice(&self.bytes[..self.len]);
        let (ip, udp) = out[ETHERNET_LEN..].split_at_mut(self.len - ETHERNET_LEN - UDP_LEN);
        if ip.len() == IPV4_LEN {
            let Some(total_len) = udp_len.checked_add(IPV4_LEN as u16) else { return false };
            ip[1] = ecn & ECN_MASK;
            ip[2..4].copy_from_slice(&total_len.to_be_bytes());
            let header = checksum::sum(ip).checksum();
            ip[10..12].copy_from_slice(&header.to_be_bytes());
        } else {
            // The traffic class lies across two bytes.
            ip[1] = (ecn & ECN_MASK) << 4;
            ip[4..6].copy_from_slice(&udp_len.to_be_bytes());
        }
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        // The length counts twice: in the pseudo header and in UDP's.
        let sum = self.sum + Sum::from_u16(udp_len) + Sum::from_u16(udp_len) + payload;
        udp[6..8].copy_from_slice(&sum.checksum().to_be_bytes());
        true
    }
}

/// What a frame brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Who sent it.
    pub from: SocketAddr,
    /// Whom it was sent to.
    pub to: SocketAddr,
    /// The two ECN bits.
    pub ecn: u8,
    /// Its payload.
    pub payload: &'a [u8],
}

/// Why a frame goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// It is no whole UDP datagram over IP without options: the program lets none pass.
    NotUdp,
    /// Its lengths contradict each other.
    Length,
    /// IPv4's header, or UDP, was changed on the way.
    Checksum,
    /// Nobody can have sent it: port zero, or an address that stands for many or for this machine.
    Source,
}

impl<'a> Datagram<'a> {
    /// Reads a frame that interface number `interface` received.
    ///
    /// A UDP checksum that covers the pseudo header alone is taken: so frames look whose sender leaves the rest to its
    /// device, if they never leave this machine (veth, virtio), since no device computed it.
    ///
    /// # Errors
    /// It is no datagram.
    pub fn parse(frame: &'a [u8], interface: u32) -> Result<Self, FrameError> {
        let (ethernet, ip) = frame.split_first_chunk::<ETHERNET_LEN>().ok_or(FrameError::NotUdp)?;
        let (from, to, ecn, addresses, udp) = match [ethernet[12], ethernet[13]] {
            ETHERTYPE_IPV4 => {
                let (header, rest) = ip.split_first_chunk::<IPV4_LEN>().ok_or(FrameError::NotUdp)?;
                let is_whole = u16::from_be_bytes([header[6], header[7]]) & 0x3fff == 0;
                if header[0] != 0x45 || header[9] != UDP || !is_whole {
                    return Err(FrameError::NotUdp);
                }
                if !checksum::sum(header).is_intact() {
                    return Err(FrameError::Checksum);
                }
                let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
                // Short frames are padded.
                let udp = total_len.checked_sub(IPV4_LEN).and_then(|len| rest.get(..len));
                let address = |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
                (IpAddr::V4(address(12)), IpAddr::V4(address(16)), header[1] & ECN_MASK, &header[12..20], udp)
            }
            ETHERTYPE_IPV6 => {
                let (header, rest) = ip.split_first_chunk::<IPV6_LEN>().ok_or(FrameError::NotUdp)?;
                if header[0] >> 4 != 6 || header[6] != UDP {
                    return Err(FrameError::NotUdp);
                }
                let udp = rest.get(..usize::from(u16::from_be_bytes([header[4], header[5]])));
                let address = |at: usize| {
                    let octets: [u8; 16] = std::array::from_fn(|index| header[at + index]);
                    IpAddr::V6(Ipv6Addr::from(octets))
                };
                (address(8), address(24), header[1] >> 4 & ECN_MASK, &header[8..40], udp)
            }
            _ => return Err(FrameError::NotUdp),
        };
        let udp = udp.ok_or(FrameError::Length)?;
        let (header, _) = udp.split_first_chunk::<UDP_LEN>().ok_or(FrameError::Length)?;
        let field = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let udp_len = field(4);
        // RFC 768: less than the packet has is padding.
        let udp = udp.get(..usize::from(udp_len)).ok_or(FrameError::Length)?;
        let payload = udp.get(UDP_LEN..).ok_or(FrameError::Length)?;
        let pseudo = checksum::sum(addresses) + Sum::from_u16(UDP.into()) + Sum::from_u16(udp_len);
        let is_intact = match field(6) {
            // RFC 768: nobody computed it. RFC 8200 §8.1: over IPv6 everybody does.
            0 => from.is_ipv4(),
            checksum => {
                (pseudo + checksum::sum(udp)).is_intact() || !checksum == pseudo.checksum() || {
                    // The one sum whose complement is written as another number.
                    pseudo.checksum() == u16::MAX && checksum == u16::MAX
                }
            }
        };
        if !is_intact {
            return Err(FrameError::Checksum);
        }
        let (from, to) = (socket(from, field(0), interface), socket(to, field(2), interface));
        // What the kernel calls martians.
        let is_of_many = match from.ip() {
            IpAddr::V4(ip) => ip.is_broadcast() || ip.is_multicast() || ip.octets()[0] == 0,
            IpAddr::V6(ip) => ip.is_multicast() || ip.is_unspecified(),
        };
        if is_of_many || from.ip().is_loopback() || from.port() == 0 {
            return Err(FrameError::Source);
        }
        Ok(Self { from, to, ecn, payload })
    }
}

/// As the kernel names a socket: link-local addresses with their interface, mapped ones as what they are.
fn socket(ip: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, port, 0, interface).into(),
        ip => SocketAddr::new(ip, port),
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
