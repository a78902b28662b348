//! Packets as sciparse builds and reads them, with checksums that hold.
//!
//! sciparse 0.8.6 sums the pseudo header alone: the payload's bytes never get into the checksums of UDP and SCMP. Routers
//! do not look at them, end hosts must. Its digest is sound, so they are computed here.

use anyhow::{Result, anyhow, ensure};
use sciparse::checksum::ChecksumDigest;
use sciparse::core::convert::TryFromView;
use sciparse::core::encode::WireEncode;
use sciparse::header::model::AddressHeader;
use sciparse::packet::model::{ScionPacket, ScionRawPacket};
use sciparse::payload::ProtocolNumber;
use sciparse::payload::encode::PayloadEncode;

/// The packet's bytes.
pub fn encode<T: PayloadEncode>(packet: ScionPacket<T>) -> Result<Vec<u8>> {
    let mut packet = packet.into_raw();
    let protocol = packet.header.common.next_header;
    let at = match protocol {
        ProtocolNumber::Udp => 6,
        // SCMP: type, code, checksum.
        _ => 2,
    };
    packet.payload[at..at + 2].fill(0);
    let checksum = checksum(&packet.header.address, protocol, &packet.payload);
    packet.payload[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    packet.try_encode_to_vec().map_err(|error| anyhow!("{error:?}"))
}

/// Reads a packet and checks its sum.
pub fn decode(bytes: &[u8]) -> Result<ScionRawPacket> {
    let (packet, rest) = ScionRawPacket::try_from_slice(bytes).map_err(|error| anyhow!("{error:?}"))?;
    ensure!(rest.is_empty(), "{} bytes after the packet", rest.len());
    let left = checksum(&packet.header.address, packet.header.common.next_header, &packet.payload);
    ensure!(left == 0, "the checksum is wrong");
    Ok(packet)
}

/// Of a payload whose own checksum is zero; zero of one whose checksum is right.
fn checksum(address: &AddressHeader, protocol: ProtocolNumber, payload: &[u8]) -> u16 {
    ChecksumDigest::with_pseudoheader(address, protocol.to_u8(), payload).add_slice(payload).checksum()
}
