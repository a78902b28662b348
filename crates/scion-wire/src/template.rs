//! Headers written once: what a sender of many packets over one path needs.

use crate::checksum::Sum;
use crate::packet::{HEADER_LEN_MAX, HeaderFields, PAYLOAD_LEN, PacketError, Protocol};
use crate::udp;

/// Both ports of a UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ports {
    /// The sender's.
    pub source: u16,
    /// The receiver's.
    pub destination: u16,
}

/// The SCION and UDP headers from one socket to another over one path, but for the lengths and the checksum.
///
/// All packets of a burst that have one size have one header but for its last two bytes, so they leave as one
/// `UDP_SEGMENT` send.
#[derive(Clone, Debug)]
pub struct HeaderTemplate {
    bytes: Box<[u8]>,
    /// Pseudo header and UDP header, without the lengths.
    sum: Sum,
}

impl HeaderTemplate {
    /// The longest header that a template writes, in bytes.
    pub const LEN_MAX: usize = HEADER_LEN_MAX + udp::HEADER_LEN;
    /// The largest payload in bytes: the UDP length, which counts its own header, has 16 bits.
    pub const PAYLOAD_LEN_MAX: usize = u16::MAX as usize - udp::HEADER_LEN;

    /// Writes the headers for datagrams from `ports.source` of `fields.source` to the other end.
    pub fn new(fields: &HeaderFields<'_>, ports: Ports) -> Result<Self, PacketError> {
        let mut bytes = [0; Self::LEN_MAX];
        let header_len = fields.write(Protocol::UDP, 0, &mut bytes)?;
        let len = header_len + udp::HEADER_LEN;
        bytes[header_len..header_len + 2].copy_from_slice(&ports.source.to_be_bytes());
        bytes[header_len + 2..header_len + 4].copy_from_slice(&ports.destination.to_be_bytes());
        let sum = fields.pseudo_sum(Protocol::UDP, 0) + Sum::from_u16(ports.source) + Sum::from_u16(ports.destination);
        Ok(Self { bytes: bytes[..len].into(), sum })
    }

    /// Bytes of both headers: what a payload has less than the path's MTU.
    pub fn header_len(&self) -> usize {
        self.bytes.len()
    }

    /// Writes the headers for a payload of this length and sum, and returns their length.
    pub fn write(&self, payload_len: usize, payload: Sum, out: &mut [u8]) -> Result<usize, PacketError> {
        if payload_len > Self::PAYLOAD_LEN_MAX {
            return Err(PacketError::TooLong);
        }
        let header_len = self.bytes.len();
        let out = out.get_mut(..header_len).ok_or(PacketError::TooLong)?;
        out.copy_from_slice(&self.bytes);
        let udp_len = (payload_len + udp::HEADER_LEN) as u16;
        out[PAYLOAD_LEN..PAYLOAD_LEN + 2].copy_from_slice(&udp_len.to_be_bytes());
        let udp_at = header_len - udp::HEADER_LEN;
        out[udp_at + udp::LEN..][..2].copy_from_slice(&udp_len.to_be_bytes());
        out[udp_at + udp::CHECKSUM..][..2].copy_from_slice(&self.checksum(udp_len, payload).to_be_bytes());
        Ok(header_len)
    }

    /// The length counts twice: in the pseudo header and in UDP's.
    fn checksum(&self, udp_len: u16, payload: Sum) -> u16 {
        (self.sum + Sum::from_u16(udp_len) + Sum::from_u16(udp_len) + payload).checksum()
    }
}
