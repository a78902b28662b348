//! UDP over SCION.

use crate::checksum::Sum;
use crate::packet::{self, Packet, PacketError, Protocol, Upper};

/// Bytes of a UDP header.
pub const HEADER_LEN: usize = 8;
// RFC 768.
const SOURCE_PORT: usize = 0;
const DESTINATION_PORT: usize = 2;
pub(crate) const LEN: usize = 4;
pub(crate) const CHECKSUM: usize = 6;

/// Why a packet is no UDP datagram for anyone. The sender's fault, or the way's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum UdpError {
    /// Another protocol.
    #[error("the packet carries no UDP")]
    NotUdp,
    /// The extension headers in front of it are malformed.
    #[error("the extension headers are malformed")]
    Extension,
    /// Its length is not that of the payload.
    #[error("the UDP length contradicts the packet's")]
    Length,
    /// What arrived is not what was sent.
    #[error("the UDP checksum is wrong")]
    Checksum,
}

impl UdpError {
    /// How many kinds there are: the length of an array of counters.
    pub const COUNT: usize = Self::Checksum as usize + 1;

    /// This kind's place in an array of counters.
    pub fn index(self) -> usize {
        self as usize
    }
}

impl From<PacketError> for UdpError {
    fn from(_: PacketError) -> Self {
        Self::Extension
    }
}

/// A datagram, read where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    header: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// The datagram in `packet`, its length and checksum checked. A checksum of zero says that the sender computed
    /// none, as in UDP over IPv4: some end hosts do that, and what runs above us checks its own bytes.
    #[inline]
    pub fn parse(packet: &Packet<'a>) -> Result<Self, UdpError> {
        let upper = packet.upper()?;
        let datagram = Self::parse_unverified(&upper)?;
        let sum = packet.header().pseudo_sum(Protocol::UDP, upper.bytes.len()) + crate::checksum::sum(upper.bytes);
        if datagram.checksum() != 0 && !sum.is_intact() {
            return Err(UdpError::Checksum);
        }
        Ok(datagram)
    }

    /// The same without a look at the checksum: for routers, who deliver by port and leave the rest to the host.
    #[inline]
    pub fn parse_unverified(upper: &Upper<'a>) -> Result<Self, UdpError> {
        if upper.protocol != Protocol::UDP {
            return Err(UdpError::NotUdp);
        }
        let (header, payload) = upper.bytes.split_first_chunk::<HEADER_LEN>().ok_or(UdpError::Length)?;
        let datagram = Self { header, payload };
        if usize::from(datagram.field(LEN)) == upper.bytes.len() { Ok(datagram) } else { Err(UdpError::Length) }
    }

    /// The sender's port.
    pub fn source_port(&self) -> u16 {
        self.field(SOURCE_PORT)
    }

    /// The receiver's port.
    pub fn destination_port(&self) -> u16 {
        self.field(DESTINATION_PORT)
    }

    /// The checksum as it stands; zero if the sender computed none.
    pub fn checksum(&self) -> u16 {
        self.field(CHECKSUM)
    }

    /// Ports, length and checksum.
    pub fn header(&self) -> &'a [u8; HEADER_LEN] {
        self.header
    }

    /// The data.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    fn field(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.header[at], self.header[at + 1]])
    }
}

/// Where the parts of a UDP/SCION packet lie, as far as a quick look at its headers tells.
///
/// Packets of one flow differ in their lengths, flow bits and checksum only, until the path is refreshed. Whoever remembers
/// what they share ([`Shape::shared`]) and what that meant need not parse the next one.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    header_len: usize,
    /// Behind the ports.
    shared_end: usize,
}

impl Shape {
    /// Where what all packets of a flow share begins: path type, address types, addresses, path.
    const SHARED_AT: usize = packet::PATH_TYPE;
    /// The shortest SCION header: common header and IPv4 addresses, no path.
    const SCION_LEN_MIN: usize = 36;
    /// It ends behind the UDP ports; then come UDP's length and checksum.
    const PORTS_LEN: usize = 4;

    /// Of a packet that starts with `bytes`; `None` if they are no whole headers, or UDP does not follow SCION directly.
    #[inline]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let is_short = bytes.len() < Self::SCION_LEN_MIN + HEADER_LEN;
        if is_short || bytes[0] >> 4 != 0 || bytes[packet::NEXT_HEADER] != Protocol::UDP.0 {
            return None;
        }
        let header_len = usize::from(bytes[packet::HEADER_LEN]) * packet::LINE_LEN;
        let fits = header_len >= Self::SCION_LEN_MIN && bytes.len() >= header_len + HEADER_LEN;
        fits.then_some(Self { header_len, shared_end: header_len + Self::PORTS_LEN })
    }

    /// Bytes of both headers, SCION's and UDP's.
    pub fn headers_len(&self) -> usize {
        self.header_len + HEADER_LEN
    }

    /// What all packets of the flow have in common.
    pub fn shared<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[Self::SHARED_AT..self.shared_end]
    }

    /// Both ports, as they stand in the packet.
    pub fn ports<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.header_len..self.shared_end]
    }

    /// The ECN bits. They lie across no byte boundary.
    pub fn ecn(&self, bytes: &[u8]) -> u8 {
        bytes[1] >> 4 & 0b11
    }

    /// What the checksum covers beside the shared part and the payload: the lengths and the checksum itself. `Some(None)` if
    /// the sender computed none; `None` if a length contradicts the packet's, which has `packet_len` bytes.
    #[inline]
    pub fn sum_of_lengths(&self, bytes: &[u8], packet_len: usize) -> Option<Option<Sum>> {
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let udp_len = u16::try_from(packet_len.checked_sub(self.header_len)?).ok()?;
        if u16_at(packet::PAYLOAD_LEN) != udp_len || u16_at(self.shared_end) != udp_len {
            return None;
        }
        let checksum = u16_at(self.shared_end + 2);
        let len_sum = Sum::from_u16(udp_len);
        Some((checksum != 0).then(|| len_sum + len_sum + Sum::from_u16(checksum)))
    }

    /// Spreads flows: by ports, the end of the path (or of the addresses, where there is no path), and the source AS. Nobody
    /// is kept from choosing flows that collide.
    #[inline]
    pub fn hash(&self, bytes: &[u8]) -> u64 {
        /// Odd, with bits all over: the golden ratio's.
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let mixed = (word(self.shared_end - 8) ^ word(20).rotate_left(29)).wrapping_mul(FACTOR)
            ^ word(self.header_len - 12).rotate_left(17);
        mixed.wrapping_mul(FACTOR) >> 56
    }
}
