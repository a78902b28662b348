//! SCMP from pocketscion, with checksums that hold.
//!
//! pocketscion builds its SCMP messages with sciparse 0.8.6, which sums the pseudo header alone and leaves the message out. An
//! end host has to drop such messages, as ours does. So they are put right here, on their way to the host that asks; all
//! else that comes to it passes as it is. What hosts send each other has checksums of their own making.

use std::net::{IpAddr, UdpSocket};

use anyhow::Result;
use pocketscion::network::local::receivers::Receiver;
use sciparse::checksum::ChecksumDigest;
use sciparse::core::convert::TryFromView;
use sciparse::core::encode::WireEncode;
use sciparse::core::view::View;
use sciparse::packet::model::ScionRawPacket;
use sciparse::packet::view::ScionRawPacketView;
use sciparse::payload::ProtocolNumber;

/// Where the checksum stands in an SCMP message: after type and code.
const CHECKSUM: std::ops::Range<usize> = 2..4;

/// Hands packets to a host, as the AS's router would.
pub struct Repaired {
    socket: UdpSocket,
}

impl Repaired {
    pub fn new(host: IpAddr) -> Result<Self> {
        let socket = UdpSocket::bind((host, 0))?;
        Ok(Self { socket })
    }

    fn deliver(&self, packet: &ScionRawPacketView) -> Option<()> {
        let to = packet.try_classify().ok()?.dst_socket_addr()?.socket_addr()?;
        let (mut repaired, _) = ScionRawPacket::try_from_slice(packet.as_slice()).ok()?;
        if repaired.header.common.next_header == ProtocolNumber::Scmp {
            let message = &mut repaired.payload;
            message.get_mut(CHECKSUM)?.fill(0);
            let protocol = ProtocolNumber::Scmp.to_u8();
            let mut digest = ChecksumDigest::with_pseudoheader(&repaired.header.address, protocol, message);
            let sum = digest.add_slice(message).checksum();
            message[CHECKSUM].copy_from_slice(&sum.to_be_bytes());
        }
        // Lost if the host does not take it, as on any way.
        self.socket.send_to(&repaired.try_encode_to_vec().ok()?, to).ok().map(drop)
    }
}

impl Receiver for Repaired {
    fn receive_packet(&self, packet: &ScionRawPacketView) {
        // What makes no sense has no host to go to.
        let _ = self.deliver(packet);
    }
}
