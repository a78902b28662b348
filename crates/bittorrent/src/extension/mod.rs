//! The extension protocol (BEP 10) and the extensions spoken here.
//!
//! | name | what | specification |
//! | --- | --- | --- |
//! | `ut_metadata` | the info dictionary, to and from peers | BEP 9: [`MetadataMessage`], [`MetadataFetch`], [`MetadataServe`] |
//! | `ut_pex` | addresses of other peers, IP and SCION, and paths they use | BEP 11, docs/protocol.md: [`PexMessage`], [`PexState`], [`PathsInUse`] |
//! | `upload_only` | a peer stops asking for blocks | BEP 21: [`encode_upload_only`], [`parse_upload_only`] |
//! | `lt_donthave` | a piece was lost | BEP 54: [`encode_dont_have`], [`parse_dont_have`] |
//! | `ut_holepunch` | two peers behind NATs are brought together | BEP 55: [`HolepunchMessage`] |
//! | `ab_paths` | paths wanted, granted and used | our own: [`PathsMessage`], [`PathTalk`] |
//!
//! An extended message carries the number that its *receiver* named in its handshake. Ours are fixed:
//! [`Extension::our_id`]; the other side's are in [`ExtensionIds`].
//!
//! ```
//! use anabranch_bittorrent::extension::{Extension, ExtensionHandshake, ExtensionIds};
//!
//! let ours = ExtensionHandshake { ids: ExtensionIds::OURS, request_queue_len: Some(500), ..Default::default() };
//! let theirs = ExtensionHandshake::parse(&ours.encode()).unwrap();
//! assert_eq!(theirs.ids.get(Extension::Metadata), Some(Extension::Metadata.our_id()));
//! assert_eq!(theirs.request_queue_len, Some(500));
//! ```

mod addresses;
mod handshake;
mod holepunch;
mod identity;
mod in_use;
mod metadata_fetch;
mod paths;
mod pex;
mod ut_metadata;

pub use addresses::ADDRESSES_MAX;
pub use handshake::{Extension, ExtensionHandshake, ExtensionIds, HANDSHAKE_ID};
pub use holepunch::{HolepunchError, HolepunchKind, HolepunchMessage};
pub(crate) use identity::OwnName;
pub use identity::{CHALLENGE_LEN, Challenge, IdentityProof, PROOF_LEN, PeerIdentity, SeenAs};
pub(crate) use in_use::KEY as IN_USE_KEY;
pub use in_use::{IN_USE_COUNTS_FOR, IN_USE_MAX, IN_USE_OF_HOST_MAX, PathsInUse};
pub use metadata_fetch::{
    METADATA_HELD_LEN_MAX, METADATA_PAUSE, METADATA_REQUEST_TIMEOUT, METADATA_REQUESTS_PER_PEER_MAX,
    METADATA_REQUESTS_PER_PIECE_MAX, METADATA_SOURCES_MAX, MetadataFetch, MetadataMisbehaved, MetadataProgress,
};
pub use paths::{
    GRANTS_MAX, INTERFACES_MAX, InterfaceSequence, PATHS_BURST_MAX, PATHS_INTERVAL, PATHS_RECEIVE_INTERVAL, PathTalk,
    PathsMessage, PathsNews, USED_MAX, Wish,
};
pub use pex::{
    PEX_INTERVAL, PEX_PEERS_MAX, PEX_RECEIVE_INTERVAL_MIN, PEX_RECEIVED_MAX, PEX_TOLD_MAX, PexFlags, PexMessage,
    PexState,
};
pub use ut_metadata::{METADATA_LEN_MAX, METADATA_PIECE_LEN, MetadataMessage, MetadataServe, metadata_piece_count};

use anabranch_content::bencode;
use thiserror::Error;

/// A peer's extended message is not what its extension says. It is to blame; the message can be left out and the
/// connection kept, as the stream is still in step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ExtensionError {
    /// Not bencode.
    #[error("peer sent a broken \"{message}\" message: {source}")]
    Bencode {
        /// The extension's name.
        message: &'static str,
        /// What is wrong, and where.
        source: bencode::Error,
    },
    /// Bencode of another shape.
    #[error("peer sent a \"{message}\" message without a usable \"{field}\"")]
    Field {
        /// The extension's name.
        message: &'static str,
        /// The key that is missing or of the wrong type; "dictionary" where the whole is none.
        field: &'static str,
    },
    /// A message of fixed length has another.
    #[error("peer sent a \"{message}\" message of {found} bytes instead of {expected}")]
    Length {
        /// The extension's name.
        message: &'static str,
        /// Bytes after the extended message number.
        found: usize,
        /// Bytes that belong there.
        expected: usize,
    },
}

/// The payload of `upload_only`: whether we are (BEP 21; as libtorrent sends it, one byte).
pub fn encode_upload_only(upload_only: bool) -> [u8; 1] {
    [u8::from(upload_only)]
}

/// Reads the payload of `upload_only`.
///
/// # Errors
/// Where it is empty. Further bytes are left alone.
pub fn parse_upload_only(payload: &[u8]) -> Result<bool, ExtensionError> {
    let first = payload.first().ok_or(ExtensionError::Length { message: "upload_only", found: 0, expected: 1 })?;
    Ok(*first != 0)
}

/// The payload of `lt_donthave`: the piece that the sender has no longer (BEP 54).
pub fn encode_dont_have(piece: u32) -> [u8; 4] {
    piece.to_be_bytes()
}

/// Reads the payload of `lt_donthave`.
///
/// # Errors
/// Where it is not four bytes.
pub fn parse_dont_have(payload: &[u8]) -> Result<u32, ExtensionError> {
    let wrong = ExtensionError::Length { message: "lt_donthave", found: payload.len(), expected: 4 };
    payload.try_into().map(u32::from_be_bytes).map_err(|_| wrong)
}

/// The dictionary at the front of a payload. What follows it is let pass: metadata come so (BEP 9), and old clients pad.
fn parse_dict<'p>(payload: &'p [u8], message: &'static str) -> Result<bencode::Tree<'p>, ExtensionError> {
    let (tree, _) = bencode::parse_prefix(payload, &bencode::Limits::MESSAGE)
        .map_err(|source| ExtensionError::Bencode { message, source })?;
    if !tree.root().is_dict() {
        return Err(ExtensionError::Field { message, field: "dictionary" });
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_messages_have_their_edges() {
        assert_eq!(parse_upload_only(&encode_upload_only(true)), Ok(true));
        assert_eq!(parse_upload_only(&encode_upload_only(false)), Ok(false));
        assert!(parse_upload_only(&[]).is_err());
        assert_eq!(parse_dont_have(&encode_dont_have(7)), Ok(7));
        assert!(parse_dont_have(&[0; 3]).is_err() && parse_dont_have(&[0; 5]).is_err());
    }

    proptest! {
        #[test]
        fn noise_never_panics(noise: Vec<u8>) {
            let _ = ExtensionHandshake::parse(&noise);
            let _ = MetadataMessage::parse(&noise);
            let _ = PexMessage::parse(&noise);
            let _ = PathsMessage::parse(&noise);
            let _ = HolepunchMessage::parse(&noise);
        }

        /// Dictionaries with the right keys and any values.
        #[test]
        fn strange_values_never_panic(
            entries in proptest::collection::vec((0..KEYS.len(), any::<i64>(), any::<Vec<u8>>(), 0..4u8), 0..20),
        ) {
            let mut dict = bencode::DictBuilder::new();
            for (key, int, bytes, kind) in entries {
                match kind {
                    0 => dict.int(KEYS[key], int),
                    1 => dict.bytes(KEYS[key], bytes),
                    2 => dict.list(KEYS[key], bencode::ListBuilder::new().int(int)),
                    _ => dict.dict(KEYS[key], bencode::DictBuilder::new().int("ut_pex", int)),
                };
            }
            let bytes = dict.encode();
            let _ = ExtensionHandshake::parse(&bytes).map(|handshake| handshake.encode());
            let _ = MetadataMessage::parse(&bytes);
            let _ = PexMessage::parse(&bytes).map(|message| message.encode());
            let _ = PathsMessage::parse(&bytes).map(|message| message.encode());
        }
    }

    const KEYS: [&str; 33] = [
        "ab_addr",
        "ab_id",
        "ab_nonce",
        "ab_proof",
        "grants",
        "used",
        "wish",
        "m",
        "v",
        "p",
        "reqq",
        "yourip",
        "ipv4",
        "ipv6",
        "metadata_size",
        "upload_only",
        "complete_ago",
        "ab_block",
        "msg_type",
        "piece",
        "total_size",
        "added",
        "added.f",
        "added6",
        "added6.f",
        "dropped",
        "dropped6",
        "ab_added",
        "ab_added.f",
        "ab_dropped",
        "ab_scion",
        "ab_uplink",
        "ab_used",
    ];
}
