//! The SCION header: checked views of received packets, and the way to write one.

use anabranch_paths::IsdAs;

use crate::address::{Address, HOST_LEN_MAX, HostAddr, host_len};
use crate::checksum::{self, Sum};
use crate::path::{ONE_HOP_LEN, OneHopPathMut, PathError, PathRef, StandardPath, StandardPathMut};

/// The longest header in bytes: HdrLen counts 255 lines of four.
pub const HEADER_LEN_MAX: usize = 255 * LINE_LEN;
/// The largest payload in bytes: PayloadLen has 16 bits.
const PAYLOAD_LEN_MAX: usize = u16::MAX as usize;
/// Every length in the header is a multiple of this.
pub(crate) const LINE_LEN: usize = 4;

// Common header (SCION header, "Common Header").
pub(crate) const NEXT_HEADER: usize = 4;
pub(crate) const HEADER_LEN: usize = 5;
pub(crate) const PAYLOAD_LEN: usize = 6;
pub(crate) const PATH_TYPE: usize = 8;
const HOST_KINDS: usize = 9;
const COMMON_LEN: usize = 12;
// Address header.
const DESTINATION: usize = COMMON_LEN;
const SOURCE: usize = 20;
/// The part of the header that every packet has: the common header and both ISD-AS numbers.
const FIXED_LEN: usize = 28;

/// What follows the SCION header ("Assigned SCION Protocol Numbers").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// UDP.
    pub const UDP: Self = Self(17);
    /// The hop-by-hop options extension.
    pub const HOP_BY_HOP: Self = Self(200);
    /// The end-to-end options extension.
    pub const END_TO_END: Self = Self(201);
    /// SCMP.
    pub const SCMP: Self = Self(202);
}

/// Why bytes are no packet. Each is the sender's fault; a receiver drops the packet and counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PacketError {
    /// Fewer bytes than the fixed header, or than the lengths in it announce.
    #[error("the packet is cut short")]
    Truncated,
    /// More bytes than the lengths in the header announce.
    #[error("bytes follow the packet's payload")]
    TrailingBytes,
    /// Not version 0.
    #[error("the packet is of an unknown SCION version")]
    UnknownVersion,
    /// The header length leaves no room for the addresses it announces.
    #[error("the header is shorter than its addresses")]
    HeaderLength,
    /// The extension headers are out of order, repeated or longer than the payload.
    #[error("the extension headers are malformed")]
    Extension,
    /// The packet to be written does not fit into a header, a length field or the buffer.
    #[error("the packet to be written is too long")]
    TooLong,
    /// The path.
    #[error(transparent)]
    Path(#[from] PathError),
}

impl PacketError {
    /// Kinds without those of the path.
    const OWN: usize = 6;
    /// How many kinds there are: the length of an array of counters.
    pub const COUNT: usize = Self::OWN + PathError::COUNT;

    /// This kind's place in an array of counters.
    pub fn index(self) -> usize {
        match self {
            Self::Truncated => 0,
            Self::TrailingBytes => 1,
            Self::UnknownVersion => 2,
            Self::HeaderLength => 3,
            Self::Extension => 4,
            Self::TooLong => 5,
            Self::Path(path) => Self::OWN + path.index(),
        }
    }
}

/// A SCION header, read where it lies: common header, addresses, path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    fixed: &'a [u8; FIXED_LEN],
    /// Exactly the header.
    bytes: &'a [u8],
    path: PathRef<'a>,
}

/// The payload behind the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper<'a> {
    /// What it is.
    pub protocol: Protocol,
    /// Its header and data.
    pub bytes: &'a [u8],
}

impl<'a> Header<'a> {
    /// Checks the header that `bytes` start with, whatever follows it.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let fixed = bytes.first_chunk::<FIXED_LEN>().ok_or(PacketError::Truncated)?;
        if fixed[0] >> 4 != 0 {
            return Err(PacketError::UnknownVersion);
        }
        let header_len = usize::from(fixed[HEADER_LEN]) * LINE_LEN;
        let path_at = path_at(fixed);
        let header = bytes.get(..header_len).ok_or(PacketError::Truncated)?;
        let path = header.get(path_at..).ok_or(PacketError::HeaderLength)?;
        Ok(Self { fixed, bytes: header, path: PathRef::parse(fixed[PATH_TYPE], path)? })
    }

    /// The bytes on the wire.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Traffic class: DSCP and ECN as in IP.
    pub fn traffic_class(&self) -> u8 {
        self.fixed[0] << 4 | self.fixed[1] >> 4
    }

    /// Flow id, 20 bits.
    pub fn flow_id(&self) -> u32 {
        u32::from_be_bytes([0, self.fixed[1] & 0xf, self.fixed[2], self.fixed[3]])
    }

    /// What follows directly: the upper layer or an extension header.
    pub fn next_header(&self) -> Protocol {
        Protocol(self.fixed[NEXT_HEADER])
    }

    /// Bytes behind the header, as it announces them.
    pub fn payload_len(&self) -> usize {
        usize::from(u16::from_be_bytes([self.fixed[PAYLOAD_LEN], self.fixed[PAYLOAD_LEN + 1]]))
    }

    /// The AS that the packet is for.
    pub fn destination_as(&self) -> IsdAs {
        IsdAs::from_u64(u64_at(self.fixed, DESTINATION))
    }

    /// The AS that it says it is from. Nothing proves it.
    pub fn source_as(&self) -> IsdAs {
        IsdAs::from_u64(u64_at(self.fixed, SOURCE))
    }

    /// The host that the packet is for; `None` for an address type without meaning here.
    pub fn destination_host(&self) -> Option<HostAddr> {
        HostAddr::from_wire(self.destination_kind(), &self.bytes[FIXED_LEN..])
    }

    /// The host that it says it is from; `None` likewise.
    pub fn source_host(&self) -> Option<HostAddr> {
        HostAddr::from_wire(self.source_kind(), &self.bytes[FIXED_LEN + host_len(self.destination_kind())..])
    }

    /// AS and host that the packet is for.
    pub fn destination(&self) -> Option<Address> {
        Some(Address { isd_as: self.destination_as(), host: self.destination_host()? })
    }

    /// AS and host that it says it is from.
    pub fn source(&self) -> Option<Address> {
        Some(Address { isd_as: self.source_as(), host: self.source_host()? })
    }

    /// The address header: what the checksum of the upper layer covers, and what tells senders apart.
    pub fn address_bytes(&self) -> &'a [u8] {
        &self.bytes[COMMON_LEN..path_at(self.fixed)]
    }

    /// Where the path starts, in bytes from the start of the packet.
    pub fn path_offset(&self) -> usize {
        path_at(self.fixed)
    }

    /// The path.
    #[inline]
    pub fn path(&self) -> PathRef<'a> {
        self.path
    }

    /// The sum of the pseudo header ("Pseudo Header for Upper-Layer Checksum").
    pub fn pseudo_sum(&self, protocol: Protocol, upper_len: usize) -> Sum {
        pseudo_sum(self.address_bytes(), protocol, upper_len)
    }

    fn destination_kind(&self) -> u8 {
        self.fixed[HOST_KINDS] >> 4
    }

    fn source_kind(&self) -> u8 {
        self.fixed[HOST_KINDS] & 0xf
    }
}

/// A whole packet, read where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    header: Header<'a>,
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Checks that `bytes` are exactly one packet.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let header = Header::parse(bytes)?;
        let payload = &bytes[header.bytes.len()..];
        if payload.len() != header.payload_len() {
            let short = payload.len() < header.payload_len();
            return Err(if short { PacketError::Truncated } else { PacketError::TrailingBytes });
        }
        Ok(Self { header, payload })
    }

    /// The header.
    #[inline]
    pub fn header(&self) -> &Header<'a> {
        &self.header
    }

    /// Everything behind the header, extension headers included.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The upper layer behind the extension headers.
    #[inline]
    pub fn upper(&self) -> Result<Upper<'a>, PacketError> {
        skip_extensions(self.header.next_header(), self.payload)
    }
}

/// Steps over a hop-by-hop and an end-to-end extension header, each at most once and in this order.
#[inline]
pub(crate) fn skip_extensions(protocol: Protocol, bytes: &[u8]) -> Result<Upper<'_>, PacketError> {
    let mut upper = Upper { protocol, bytes };
    for extension in [Protocol::HOP_BY_HOP, Protocol::END_TO_END] {
        if upper.protocol != extension {
            continue;
        }
        // "ExtLen: in multiples of 4 bytes, not including the first 4 bytes" (SCION extension header).
        let [next, lines] = *upper.bytes.first_chunk().ok_or(PacketError::Extension)?;
        let len = (usize::from(lines) + 1) * LINE_LEN;
        upper = Upper { protocol: Protocol(next), bytes: upper.bytes.get(len..).ok_or(PacketError::Extension)? };
    }
    let misplaced = matches!(upper.protocol, Protocol::HOP_BY_HOP | Protocol::END_TO_END);
    if misplaced { Err(PacketError::Extension) } else { Ok(upper) }
}

/// A whole packet, changed where it lies: what routers do on the way.
#[derive(Debug)]
pub struct PacketMut<'a> {
    bytes: &'a mut [u8],
    header_len: usize,
    path_at: usize,
    kind: PathKind,
}

/// Which path a [`PacketMut`] was found to have.
#[derive(Clone, Copy, Debug)]
enum PathKind {
    Empty,
    Standard,
    OneHop,
    Other,
}

/// The path of a packet, to be changed.
#[derive(Debug)]
pub enum PathMut<'a> {
    /// Within one AS: nothing to change.
    Empty,
    /// Type SCION.
    Standard(StandardPathMut<'a>),
    /// To the neighbour AS.
    OneHop(OneHopPathMut<'a>),
    /// A type without meaning here.
    Other,
}

impl<'a> PacketMut<'a> {
    /// As [`Packet::parse`].
    #[inline]
    pub fn parse(bytes: &'a mut [u8]) -> Result<Self, PacketError> {
        let packet = Packet::parse(bytes)?;
        let kind = match packet.header.path {
            PathRef::Empty => PathKind::Empty,
            PathRef::Standard(_) => PathKind::Standard,
            PathRef::OneHop(_) => PathKind::OneHop,
            PathRef::Other(_) => PathKind::Other,
        };
        let (header_len, path_at) = (packet.header.bytes.len(), packet.header.path_offset());
        Ok(Self { bytes, header_len, path_at, kind })
    }

    /// To read. Nothing is checked again: no change in place makes a packet invalid.
    pub fn view(&self) -> Packet<'_> {
        let (header, payload) = self.bytes.split_at(self.header_len);
        let path = &header[self.path_at..];
        let path = match self.kind {
            PathKind::Standard => PathRef::Standard(StandardPath::checked_before(path)),
            PathKind::Empty | PathKind::OneHop | PathKind::Other => {
                // These have nothing to check but their length, which is still the same.
                PathRef::parse(header[PATH_TYPE], path).unwrap_or(PathRef::Empty)
            }
        };
        // Always there: the constructor has found it.
        let fixed = header.first_chunk().unwrap_or(&[0; FIXED_LEN]);
        Packet { header: Header { fixed, bytes: header, path }, payload }
    }

    /// The bytes on the wire.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes
    }

    /// The path, to be changed.
    #[inline]
    pub fn path_mut(&mut self) -> PathMut<'_> {
        let path = &mut self.bytes[self.path_at..self.header_len];
        match self.kind {
            PathKind::Empty => PathMut::Empty,
            PathKind::Standard => PathMut::Standard(StandardPathMut::checked_before(path)),
            PathKind::OneHop => OneHopPathMut::parse(path).map_or(PathMut::Other, PathMut::OneHop),
            PathKind::Other => PathMut::Other,
        }
    }
}

/// What a header is written from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderFields<'a> {
    /// The sender.
    pub source: Address,
    /// The receiver.
    pub destination: Address,
    /// The path between them, as it shall stand in the packet.
    pub path: PathRef<'a>,
    /// Flow id; the low 20 bits count. Routers spread flows by it.
    pub flow_id: u32,
    /// DSCP and ECN.
    pub traffic_class: u8,
}

impl HeaderFields<'_> {
    /// Bytes of the header.
    pub fn header_len(&self) -> usize {
        FIXED_LEN
            + host_len(self.destination.host.kind())
            + host_len(self.source.host.kind())
            + self.path.as_bytes().len()
    }

    /// Writes the header of a packet with `payload_len` bytes of `next_header` behind it, and returns its length.
    pub fn write(&self, next_header: Protocol, payload_len: usize, out: &mut [u8]) -> Result<usize, PacketError> {
        let header_len = self.header_len();
        if header_len > HEADER_LEN_MAX || !header_len.is_multiple_of(LINE_LEN) || payload_len > PAYLOAD_LEN_MAX {
            return Err(PacketError::TooLong);
        }
        let out = out.get_mut(..header_len).ok_or(PacketError::TooLong)?;
        // Version 0, traffic class, flow id.
        let line = u32::from(self.traffic_class) << 20 | self.flow_id & 0xf_ffff;
        out[..4].copy_from_slice(&line.to_be_bytes());
        out[NEXT_HEADER] = next_header.0;
        out[HEADER_LEN] = (header_len / LINE_LEN) as u8;
        out[PAYLOAD_LEN..PATH_TYPE].copy_from_slice(&(payload_len as u16).to_be_bytes());
        out[PATH_TYPE] = self.path.path_type();
        out[HOST_KINDS] = self.destination.host.kind() << 4 | self.source.host.kind();
        out[HOST_KINDS + 1..COMMON_LEN].fill(0);
        let (addresses, len) = self.address_bytes();
        out[COMMON_LEN..COMMON_LEN + len].copy_from_slice(&addresses[..len]);
        out[COMMON_LEN + len..].copy_from_slice(self.path.as_bytes());
        Ok(header_len)
    }

    /// The sum of the pseudo header, as [`Header::pseudo_sum`].
    pub fn pseudo_sum(&self, protocol: Protocol, upper_len: usize) -> Sum {
        let (addresses, len) = self.address_bytes();
        pseudo_sum(&addresses[..len], protocol, upper_len)
    }

    fn address_bytes(&self) -> ([u8; ADDRESS_LEN_MAX], usize) {
        let mut bytes = [0; ADDRESS_LEN_MAX];
        bytes[..8].copy_from_slice(&self.destination.isd_as.to_u64().to_be_bytes());
        bytes[8..16].copy_from_slice(&self.source.isd_as.to_u64().to_be_bytes());
        let mut len = 16;
        for host in [self.destination.host, self.source.host] {
            let (host, host_len) = host.to_wire();
            bytes[len..len + host_len].copy_from_slice(&host[..host_len]);
            len += host_len;
        }
        (bytes, len)
    }
}

/// The longest address header.
const ADDRESS_LEN_MAX: usize = 16 + 2 * HOST_LEN_MAX;
// A one-hop path fits beside the longest addresses.
const _: () = assert!(COMMON_LEN + ADDRESS_LEN_MAX + ONE_HOP_LEN <= HEADER_LEN_MAX);
// And so does the longest standard path.
const _: () = assert!(COMMON_LEN + ADDRESS_LEN_MAX + crate::path::PATH_LEN_MAX <= HEADER_LEN_MAX);

fn pseudo_sum(addresses: &[u8], protocol: Protocol, upper_len: usize) -> Sum {
    // Upper-layer packet length, 32 bits; three zero bytes, the protocol.
    checksum::sum(addresses) + Sum::from_u32(upper_len as u32) + Sum::from_u16(protocol.0.into())
}

/// Where the path starts, as the types and lengths of the host addresses say.
#[inline]
fn path_at(fixed: &[u8; FIXED_LEN]) -> usize {
    FIXED_LEN + host_len(fixed[HOST_KINDS] >> 4) + host_len(fixed[HOST_KINDS])
}

fn u64_at(fixed: &[u8; FIXED_LEN], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&fixed[at..at + 8]);
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests;
