//! UDP over SCION.

use crate::packet::{Packet, PacketError, Protocol, Upper};

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

    /// The data.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    fn field(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.header[at], self.header[at + 1]])
    }
}
