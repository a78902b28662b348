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

    /// The headers, but for lengths and checksum.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::udp::{Datagram, UdpError};
    use crate::{Packet, PathRef, arbitrary, checksum};

    #[test]
    fn every_error_of_a_datagram_is_found() {
        assert_eq!(UdpError::Checksum.index() + 1, UdpError::COUNT);
        let address = crate::Address::new(anabranch_paths::IsdAs::default(), std::net::IpAddr::from([10, 0, 0, 1]));
        let fields =
            HeaderFields { source: address, destination: address, path: PathRef::Empty, flow_id: 1, traffic_class: 0 };
        let template = HeaderTemplate::new(&fields, Ports { source: 0xff, destination: 2 }).unwrap();
        let mut packet = vec![0; template.header_len() + 5];
        template.write(5, checksum::sum(&[0; 5]), &mut packet).unwrap();
        let parsed =
            |packet: &[u8]| Datagram::parse(&Packet::parse(packet).unwrap()).map(|datagram| datagram.payload().len());
        let changed = |at: usize, to: u8| {
            let mut packet = packet.clone();
            packet[at] = to;
            parsed(&packet)
        };
        assert_eq!(changed(0, 0), Ok(5));
        assert_eq!(changed(4, 202), Err(UdpError::NotUdp));
        // The source port read as an extension header of 1024 bytes.
        assert_eq!(changed(4, 200), Err(UdpError::Extension));
        assert_eq!(changed(41, 12), Err(UdpError::Length));
        assert_eq!(changed(48, 1), Err(UdpError::Checksum));
        // Whoever computes no checksum sends zero.
        packet[42..44].fill(0);
        packet[48] = 1;
        assert_eq!(parsed(&packet), Ok(5));
    }

    #[test]
    fn what_fits_no_length_field_is_not_written() {
        let address = crate::Address::new(anabranch_paths::IsdAs::default(), std::net::IpAddr::from([10, 0, 0, 1]));
        let fields =
            HeaderFields { source: address, destination: address, path: PathRef::Empty, flow_id: 1, traffic_class: 0 };
        let template = HeaderTemplate::new(&fields, Ports { source: 1, destination: 2 }).unwrap();
        let mut out = [0; HeaderTemplate::LEN_MAX];
        let sum = Sum::default();
        assert_eq!(template.write(65527, sum, &mut out), Ok(44));
        assert_eq!(template.write(65528, sum, &mut out), Err(PacketError::TooLong));
        assert_eq!(template.write(1, sum, &mut out[..43]), Err(PacketError::TooLong));
    }

    proptest! {
        #[test]
        fn packets_arrive_as_they_were_sent(
            source in arbitrary::address(), destination in arbitrary::address(), path in arbitrary::path(),
            ports: (u16, u16), payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..1500), 1..4)
        ) {
            let fields = HeaderFields { source, destination, path: PathRef::Standard(path.view()), flow_id: 1, traffic_class: 0 };
            let ports = Ports { source: ports.0, destination: ports.1 };
            let template = HeaderTemplate::new(&fields, ports).unwrap();
            for payload in payloads {
                let mut packet = vec![0; template.header_len() + payload.len()];
                template.write(payload.len(), checksum::sum(&payload), &mut packet).unwrap();
                packet[template.header_len()..].copy_from_slice(&payload);
                let datagram = Datagram::parse(&Packet::parse(&packet).unwrap()).unwrap();
                prop_assert_eq!((datagram.source_port(), datagram.destination_port()), (ports.source, ports.destination));
                prop_assert_eq!(datagram.payload(), &payload);
                prop_assert_ne!(datagram.checksum(), 0);
            }
        }
    }
}
