//! The handshake: the first 68 bytes each way (BEP 3, "handshake"), and what a peer's id tells of its program.
//!
//! ```
//! use anabranch_bittorrent::handshake::{self, Handshake, Reserved};
//!
//! let ours = Handshake { reserved: Reserved::OURS, info_hash: [7; 20], peer_id: handshake::peer_id(42) };
//! let bytes = ours.encode();
//! assert_eq!(Handshake::parse(&bytes[..40]), Ok(None)); // not all there yet
//! assert_eq!(Handshake::parse(&bytes), Ok(Some(ours)));
//! ```

use anabranch_content::info::InfoHashes;
use thiserror::Error;

use crate::{InfoHash, text};

/// Bytes in a handshake.
pub const HANDSHAKE_LEN: usize = 68;

pub use crate::PeerId;

/// Characters of a client's name that are shown at most: what a peer sends may be long and is no more than decoration.
pub const CLIENT_NAME_CHARS_MAX: usize = 48;

/// BEP 3: a byte 19, then the protocol's name.
const PROTOCOL: &[u8; 20] = b"\x13BitTorrent protocol";
/// Azureus style (BEP 20): our code and version 0.1.0, with one digit spare.
const PEER_ID_PREFIX: &[u8; 8] = b"-AB0100-";

/// The eight bytes by which a peer says what it can do. Unknown bits are kept and mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Reserved(pub [u8; 8]);

impl Reserved {
    /// What this implementation can do; [`Reserved::with_v2`] is added where the content has a v2 info-hash.
    pub const OURS: Self = Self([0, 0, 0, 0, 0, Self::EXTENSION, 0, Self::FAST]);

    /// Byte 5, BEP 10: bit 20 from the right.
    const EXTENSION: u8 = 0x10;
    /// Byte 7, BEP 5: the last bit.
    const DHT: u8 = 0x01;
    /// Byte 7, BEP 6.
    const FAST: u8 = 0x04;
    /// Byte 7, BEP 52: the 4th most significant bit.
    const V2: u8 = 0x10;

    /// BEP 10: extended messages may be sent.
    pub fn extension_protocol(self) -> bool {
        self.0[5] & Self::EXTENSION != 0
    }

    /// BEP 6: the fast extension is on where both sides set it.
    pub fn fast(self) -> bool {
        self.0[7] & Self::FAST != 0
    }

    /// BEP 52: a v1 handshake may be answered with the v2 info-hash ("upgrade path").
    pub fn v2(self) -> bool {
        self.0[7] & Self::V2 != 0
    }

    /// BEP 5: the sender is a node of the distributed hash table, and wants to be told of others.
    pub fn dht(self) -> bool {
        self.0[7] & Self::DHT != 0
    }

    /// The same with BEP 5's bit set.
    pub fn with_dht(mut self) -> Self {
        self.0[7] |= Self::DHT;
        self
    }

    /// The same with BEP 52's bit set.
    pub fn with_v2(mut self) -> Self {
        self.0[7] |= Self::V2;
        self
    }
}

/// A handshake, either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handshake {
    /// What the sender can do.
    pub reserved: Reserved,
    /// The content that it wants to speak of: SHA-1, or SHA-256 cut to 20 bytes (BEP 52).
    pub info_hash: InfoHash,
    /// The sender's name.
    pub peer_id: PeerId,
}

/// Why a connection's first bytes are no handshake.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HandshakeError {
    /// The peer speaks something else: TLS, HTTP, message stream encryption.
    #[error("peer does not speak BitTorrent: its first bytes are \"{}\"", .found.escape_ascii())]
    NotBitTorrent {
        /// What came instead of the protocol's name; at most 20 bytes.
        found: Vec<u8>,
    },
}

impl Handshake {
    /// The bytes to send.
    pub fn encode(&self) -> [u8; HANDSHAKE_LEN] {
        let mut bytes = [0; HANDSHAKE_LEN];
        bytes[..20].copy_from_slice(PROTOCOL);
        bytes[20..28].copy_from_slice(&self.reserved.0);
        bytes[28..48].copy_from_slice(&self.info_hash);
        bytes[48..].copy_from_slice(&self.peer_id);
        bytes
    }

    /// The info-hash to answer with, for a content with these hashes that this handshake asks for.
    ///
    /// Who asks for the v1 hash and can do v2 is told the v2 hash (BEP 52, "upgrade path"). That is more than a nicety:
    /// libtorrent, where a tracker tells it meanwhile that the peer can do v2, takes no other answer any more.
    pub fn answer_hash(&self, hashes: &InfoHashes) -> InfoHash {
        hashes.v2_truncated().filter(|_| self.reserved.v2()).unwrap_or(self.info_hash)
    }

    /// Reads the handshake at the front of `input`: `None` until all [`HANDSHAKE_LEN`] bytes are there.
    ///
    /// # Errors
    /// At the first byte that tells that this is not BitTorrent, however few have come.
    pub fn parse(input: &[u8]) -> Result<Option<Self>, HandshakeError> {
        let seen = input.len().min(PROTOCOL.len());
        if input[..seen] != PROTOCOL[..seen] {
            return Err(HandshakeError::NotBitTorrent { found: input[..seen].to_vec() });
        }
        let Some(bytes) = input.first_chunk::<HANDSHAKE_LEN>() else { return Ok(None) };
        let mut handshake = Self { reserved: Reserved::default(), info_hash: [0; 20], peer_id: [0; 20] };
        handshake.reserved.0.copy_from_slice(&bytes[20..28]);
        handshake.info_hash.copy_from_slice(&bytes[28..48]);
        handshake.peer_id.copy_from_slice(&bytes[48..]);
        Ok(Some(handshake))
    }
}

/// A peer id of ours. One per session or content; the caller's seed makes it differ.
pub fn peer_id(seed: u64) -> PeerId {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut id = [0; 20];
    id[..8].copy_from_slice(PEER_ID_PREFIX);
    // Letters and digits only: trackers' URLs then need no escapes.
    id[8..].fill_with(|| rng.alphanumeric() as u8);
    id
}

/// What a peer says of itself (BEP 10, `v`), made fit for display,
/// at most [`CLIENT_NAME_CHARS_MAX`] characters.
pub fn display_name(raw: &[u8]) -> String {
    text::displayable(raw, CLIENT_NAME_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bits_are_where_the_specifications_put_them() {
        let reserved = Reserved::OURS;
        assert!(reserved.extension_protocol() && reserved.fast() && !reserved.v2());
        assert_eq!(reserved.with_v2().0, [0, 0, 0, 0, 0, 0x10, 0, 0x14]);
        assert!(reserved.with_v2().v2());
        assert!(!reserved.dht() && reserved.with_dht().dht() && reserved.with_dht().0[7] == 0x05);
    }

    #[test]
    fn who_can_do_v2_is_told_the_v2_hash_of_a_hybrid() {
        let hybrid = InfoHashes { v1: Some([1; 20]), v2: Some([2; 32]) };
        let asks = |reserved, info_hash| Handshake { reserved, info_hash, peer_id: [0; 20] };
        let (v1_only, both) = (Reserved::OURS, Reserved::OURS.with_v2());
        assert_eq!(asks(both, [1; 20]).answer_hash(&hybrid), [2; 20]);
        assert_eq!(asks(v1_only, [1; 20]).answer_hash(&hybrid), [1; 20]);
        assert_eq!(asks(v1_only, [2; 20]).answer_hash(&hybrid), [2; 20]);
        assert_eq!(asks(both, [1; 20]).answer_hash(&InfoHashes { v1: Some([1; 20]), v2: None }), [1; 20]);
    }

    #[test]
    fn another_protocol_is_refused_at_its_first_byte_and_named() {
        let error = Handshake::parse(b"G").unwrap_err();
        assert_eq!(error, HandshakeError::NotBitTorrent { found: b"G".to_vec() });
        let error = Handshake::parse(&[0x16; 400]).unwrap_err();
        assert!(error.to_string().contains("\\x16\\x16"), "{error}");
        assert!(Handshake::parse(b"\x13BitTorrent protocoL").is_err());
        assert_eq!(Handshake::parse(b""), Ok(None));
    }

    #[test]
    fn our_ids_differ_by_seed() {
        assert_ne!(peer_id(1), peer_id(2));
        assert_eq!(peer_id(1), peer_id(1));
        assert!(peer_id(1).starts_with(PEER_ID_PREFIX));
    }

    #[test]
    fn names_for_display_carry_no_tricks() {
        assert_eq!(display_name(b"libtorrent/2.1\x1b[31m\n"), "libtorrent/2.1[31m");
        assert_eq!(display_name("a\u{202e}b".as_bytes()), "ab");
        assert_eq!(display_name(&[b'x'; 9000]).len(), CLIENT_NAME_CHARS_MAX);
    }

    proptest! {
        #[test]
        fn handshakes_round_trip_and_need_every_byte(
            reserved: [u8; 8], info_hash: [u8; 20], peer_id: [u8; 20], cut in 0..HANDSHAKE_LEN,
        ) {
            let handshake = Handshake { reserved: Reserved(reserved), info_hash, peer_id };
            let bytes = handshake.encode();
            prop_assert_eq!(Handshake::parse(&bytes[..cut]), Ok(None));
            prop_assert_eq!(Handshake::parse(&bytes), Ok(Some(handshake)));
        }

        #[test]
        fn any_name_can_be_shown(raw: Vec<u8>) {
            let text = display_name(&raw);
            prop_assert!(text.chars().count() <= CLIENT_NAME_CHARS_MAX && !text.chars().any(text::is_invisible));
        }
    }
}
