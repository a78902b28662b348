//! Packets as they are on the wire (BEP 29, "header format").

use crate::seq::Seq;

/// Bytes of the header without extensions.
pub const HEADER_LEN: usize = 20;
/// The protocol version that there is, in the low half of the first byte; the type is in the high half.
const VERSION: u8 = 1;
/// The longest extension: its length is one byte.
const EXTENSION_LEN_MAX: usize = 255;
/// The longest selective ACK that is sent: extensions are at most 255 bytes, and this one is whole words (BEP 29).
pub const SACK_LEN_MAX: usize = 252;

/// BEP 29, "extension": nothing follows.
const EXTENSION_NONE: u8 = 0;
/// BEP 29, "Selective ACK".
const EXTENSION_SACK: u8 = 1;
/// Bytes that say nothing: all implementations pass over extensions that they do not know, and 1 to 3 are taken (selective ACK,
/// libutp's extension bits, libtorrent's close reason).
const EXTENSION_PADDING: u8 = 127;

/// What a packet is for (BEP 29, "type").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Carries bytes.
    Data = 0,
    /// Nothing comes after it.
    Fin = 1,
    /// Acknowledges; has no sequence number of its own.
    State = 2,
    /// Ends the connection at once.
    Reset = 3,
    /// Opens a connection.
    Syn = 4,
}

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the packet is for.
    pub kind: Kind,
    /// The connection, by the number that the receiver knows it by.
    pub connection_id: u16,
    /// When the packet left, by the sender's clock, in microseconds.
    pub timestamp_us: u32,
    /// How long the last packet of the other side took, by two clocks that differ; zero where none came yet.
    pub delay_us: u32,
    /// Bytes that the sender has room for.
    pub window: u32,
    /// The packet's number; of [`Kind::State`], the next one's.
    pub seq: Seq,
    /// The last packet that came in order.
    pub ack: Seq,
}

/// A packet that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The header.
    pub header: Header,
    /// Which packets came out of order: the lowest bit of the first byte is `ack + 2`. Empty where the packet has none.
    pub sack: &'a [u8],
    /// The bytes that it carries.
    pub payload: &'a [u8],
}

/// Why a datagram is no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// It is shorter than a header, or of another version or type.
    #[error("no uTP")]
    NotUtp,
    /// An extension is longer than what is there.
    #[error("an extension is cut short")]
    ExtensionCutShort,
}

/// Whether a datagram may be one of ours, by its first bytes: others share the port.
pub fn is_utp(datagram: &[u8]) -> bool {
    datagram.len() >= HEADER_LEN && datagram[0] & 0x0f == VERSION && datagram[0] >> 4 <= Kind::Syn as u8
}

impl Kind {
    fn read(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Data,
            1 => Self::Fin,
            2 => Self::State,
            3 => Self::Reset,
            4 => Self::Syn,
            _ => return None,
        })
    }
}

impl<'a> Packet<'a> {
    /// Reads a datagram.
    ///
    /// # Errors
    /// Where it is none of uTP.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, PacketError> {
        let (header, mut rest) = datagram.split_first_chunk::<HEADER_LEN>().ok_or(PacketError::NotUtp)?;
        let kind = Kind::read(header[0] >> 4).filter(|_| header[0] & 0x0f == VERSION).ok_or(PacketError::NotUtp)?;
        let short = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let long = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (mut extension, mut sack) = (header[1], &[][..]);
        // Each one takes two bytes at least.
        while extension != EXTENSION_NONE {
            let ([next, len], body) = rest.split_first_chunk().ok_or(PacketError::ExtensionCutShort)?;
            let (body, behind) = body.split_at_checked(usize::from(*len)).ok_or(PacketError::ExtensionCutShort)?;
            if extension == EXTENSION_SACK {
                sack = body;
            }
            (extension, rest) = (*next, behind);
        }
        let header = Header {
            kind,
            connection_id: short(2),
            timestamp_us: long(4),
            delay_us: long(8),
            window: long(12),
            seq: Seq(short(16)),
            ack: Seq(short(18)),
        };
        Ok(Self { header, sack, payload: rest })
    }
}

impl Header {
    /// Appends the header, a selective ACK where there is one, and `padding` bytes that say nothing: none, or two at least.
    pub fn write(&self, sack: &[u8], padding: usize, out: &mut Vec<u8>) {
        debug_assert!(sack.len() <= SACK_LEN_MAX && padding != 1);
        let first = match (sack.is_empty(), padding) {
            (false, _) => EXTENSION_SACK,
            (true, 0) => EXTENSION_NONE,
            (true, _) => EXTENSION_PADDING,
        };
        let mut header = [0; HEADER_LEN];
        header[0] = (self.kind as u8) << 4 | VERSION;
        header[1] = first;
        header[2..4].copy_from_slice(&self.connection_id.to_be_bytes());
        header[4..8].copy_from_slice(&self.timestamp_us.to_be_bytes());
        header[8..12].copy_from_slice(&self.delay_us.to_be_bytes());
        header[12..16].copy_from_slice(&self.window.to_be_bytes());
        header[16..18].copy_from_slice(&self.seq.0.to_be_bytes());
        header[18..20].copy_from_slice(&self.ack.0.to_be_bytes());
        out.extend_from_slice(&header);
        if !sack.is_empty() {
            out.extend_from_slice(&[if padding > 0 { EXTENSION_PADDING } else { EXTENSION_NONE }, sack.len() as u8]);
            out.extend_from_slice(sack);
        }
        let mut left = padding;
        while left >= 2 {
            let whole = left.min(EXTENSION_LEN_MAX + 2);
            // One byte alone is no extension.
            let this = if left - whole == 1 { whole - 1 } else { whole };
            left -= this;
            out.extend_from_slice(&[if left > 0 { EXTENSION_PADDING } else { EXTENSION_NONE }, (this - 2) as u8]);
            out.resize(out.len() + this - 2, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(kind: Kind) -> Header {
        Header {
            kind,
            connection_id: 0x1234,
            timestamp_us: 0x0102_0304,
            delay_us: 5,
            window: 1 << 20,
            seq: Seq(7),
            ack: Seq(0xffff),
        }
    }

    #[test]
    fn the_header_is_laid_out_as_the_bep_says() {
        let mut bytes = Vec::new();
        header(Kind::State).write(&[1, 0, 0, 0x80], 0, &mut bytes);
        let expected: &[u8] =
            &[0x21, 1, 0x12, 0x34, 1, 2, 3, 4, 0, 0, 0, 5, 0, 0x10, 0, 0, 0, 7, 0xff, 0xff, 0, 4, 1, 0, 0, 0x80];
        assert_eq!(bytes, expected);
        assert!(is_utp(&bytes));
        assert!(!is_utp(&bytes[..19]) && !is_utp(b"d1:ad2:id20:abcdefghij0123456789e"));
    }

    #[test]
    fn extensions_that_are_cut_short_are_refused() {
        let mut bytes = Vec::new();
        header(Kind::Data).write(&[], 600, &mut bytes);
        for len in HEADER_LEN..bytes.len() {
            assert_eq!(Packet::parse(&bytes[..len]), Err(PacketError::ExtensionCutShort), "{len}");
        }
        assert_eq!(Packet::parse(&bytes).unwrap().payload, b"");
        bytes[0] = 0x02;
        assert_eq!(Packet::parse(&bytes), Err(PacketError::NotUtp));
        bytes[0] = 0x51;
        assert_eq!(Packet::parse(&bytes), Err(PacketError::NotUtp));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            kind in 0u8..5, id: u16, timestamp_us: u32, delay_us: u32, window: u32, seq: u16, ack: u16,
            words in 0usize..=63, padding in prop_oneof![Just(0), 2usize..9000], payload: Vec<u8>,
        ) {
            let header = Header {
                kind: Kind::read(kind).unwrap(),
                connection_id: id, timestamp_us, delay_us, window, seq: Seq(seq), ack: Seq(ack),
            };
            let sack: Vec<u8> = (0..words as u32 * 4).map(|byte| byte as u8).collect();
            let mut bytes = Vec::new();
            header.write(&sack, padding, &mut bytes);
            let sack_len = if sack.is_empty() { 0 } else { 2 + sack.len() };
            prop_assert_eq!(bytes.len(), HEADER_LEN + sack_len + padding);
            bytes.extend_from_slice(&payload);
            prop_assert_eq!(Packet::parse(&bytes), Ok(Packet { header, sack: &sack, payload: &payload }));
        }

        #[test]
        fn any_bytes_are_read_or_refused(mut bytes: Vec<u8>, likely: bool) {
            if let (true, Some(first)) = (likely, bytes.first_mut()) {
                *first = ((*first % 5) << 4) | 1;
            }
            if let Ok(packet) = Packet::parse(&bytes) {
                prop_assert!(packet.payload.len() + packet.sack.len() + HEADER_LEN <= bytes.len());
                prop_assert!(is_utp(&bytes));
            }
        }
    }
}
