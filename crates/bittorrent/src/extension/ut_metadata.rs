//! Messages that carry the info dictionary (BEP 9, "ut_metadata").

use anabranch_content::bencode::{self, DictBuilder, Limits};
use anabranch_content::metainfo::limits::METAINFO_BYTES_MAX;

use super::ExtensionError;

/// Bytes in a piece of metadata; only the last may be shorter (BEP 9).
pub const METADATA_PIECE_LEN: u32 = 16 * 1024;

/// Bytes of metadata fetched at most: no more than the metainfo parser takes.
pub const METADATA_LEN_MAX: u32 = METAINFO_BYTES_MAX as u32;

/// The name in errors.
const MESSAGE: &str = "ut_metadata";

/// Pieces that `size` bytes of metadata make.
pub fn metadata_piece_count(size: u32) -> u32 {
    size.div_ceil(METADATA_PIECE_LEN)
}

/// A ut_metadata message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataMessage<'a> {
    /// Asks for a piece.
    Request {
        /// Piece of the metadata.
        piece: u32,
    },
    /// The answer; its bytes follow the dictionary.
    Data {
        /// Piece of the metadata.
        piece: u32,
        /// Bytes of the whole metadata, where the sender says it.
        total_size: Option<u64>,
        /// The piece's bytes.
        data: &'a [u8],
    },
    /// The sender does not have the piece, or has sent too much already.
    Reject {
        /// Piece of the metadata.
        piece: u32,
    },
}

impl<'a> MetadataMessage<'a> {
    /// The extended message's payload.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, piece) = match *self {
            Self::Request { piece } => (0, piece),
            Self::Data { piece, .. } => (1, piece),
            Self::Reject { piece } => (2, piece),
        };
        let mut dict = DictBuilder::new();
        dict.int("msg_type", kind).int("piece", piece);
        match *self {
            Self::Data { total_size, data, .. } => {
                if let Some(size) = total_size.and_then(|size| i64::try_from(size).ok()) {
                    dict.int("total_size", size);
                }
                let mut out = dict.encode();
                out.extend_from_slice(data);
                out
            }
            Self::Request { .. } | Self::Reject { .. } => dict.encode(),
        }
    }

    /// Reads a payload. `None` for a message type that is not known, "which must be ignored" (BEP 9).
    ///
    /// # Errors
    /// Where the payload does not start with a dictionary that has a message type and a piece.
    pub fn parse(payload: &'a [u8]) -> Result<Option<Self>, ExtensionError> {
        let (tree, end) = bencode::parse_prefix(payload, &Limits::MESSAGE)
            .map_err(|source| ExtensionError::Bencode { message: MESSAGE, source })?;
        let missing = |field| ExtensionError::Field { message: MESSAGE, field };
        let dict = tree.root();
        let kind = dict.get("msg_type").and_then(|kind| kind.as_int()).ok_or(missing("msg_type"))?;
        if !(0..=2).contains(&kind) {
            return Ok(None);
        }
        let piece = dict.get("piece").and_then(|piece| piece.as_uint()).and_then(|piece| u32::try_from(piece).ok());
        let piece = piece.ok_or(missing("piece"))?;
        Ok(Some(match kind {
            0 => Self::Request { piece },
            1 => Self::Data {
                piece,
                total_size: dict.get("total_size").and_then(|size| size.as_uint()),
                data: &payload[end..],
            },
            _ => Self::Reject { piece },
        }))
    }
}

/// The info dictionary's original bytes, as they are served to peers.
#[derive(Clone, Copy, Debug)]
pub struct MetadataServe<'a>(pub &'a [u8]);

impl<'a> MetadataServe<'a> {
    /// The answer to a request for `piece`: a reject past the end.
    pub fn piece(&self, piece: u32) -> MetadataMessage<'a> {
        match self.0.chunks(METADATA_PIECE_LEN as usize).nth(piece as usize) {
            Some(data) => MetadataMessage::Data { piece, total_size: Some(self.0.len() as u64), data },
            None => MetadataMessage::Reject { piece },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_specification_s_examples() {
        let request = MetadataMessage::Request { piece: 0 };
        assert_eq!(request.encode(), b"d8:msg_typei0e5:piecei0ee");
        let data = MetadataMessage::Data { piece: 0, total_size: Some(34256), data: b"xxxxxxxx" };
        assert_eq!(data.encode(), b"d8:msg_typei1e5:piecei0e10:total_sizei34256eexxxxxxxx");
        assert_eq!(MetadataMessage::Reject { piece: 0 }.encode(), b"d8:msg_typei2e5:piecei0ee");
    }

    #[test]
    fn unknown_types_are_left_alone_and_broken_messages_named() {
        assert_eq!(MetadataMessage::parse(b"d8:msg_typei3e5:piecei0ee"), Ok(None));
        for (payload, names) in [
            (&b"d5:piecei0ee"[..], "msg_type"),
            (b"d8:msg_typei0ee", "piece"),
            (b"d8:msg_typei0e5:piecei-1ee", "piece"),
            (b"d8:msg_typei0e5:piecei4294967296ee", "piece"),
            (b"le", "msg_type"),
            (b"garbage", "byte 0"),
        ] {
            let error = MetadataMessage::parse(payload).unwrap_err().to_string();
            assert!(error.contains(names), "{error}");
        }
    }

    #[test]
    fn every_piece_is_served_and_none_past_the_end() {
        let info = vec![5; 2 * METADATA_PIECE_LEN as usize + 1];
        let serve = MetadataServe(&info);
        let len = |piece| match serve.piece(piece) {
            MetadataMessage::Data { data, .. } => Some(data.len()),
            _ => None,
        };
        assert_eq!([0, 1, 2, 3, u32::MAX].map(len), [Some(16384), Some(16384), Some(1), None, None]);
        assert_eq!(metadata_piece_count(info.len() as u32), 3);
    }

    proptest! {
        #[test]
        fn messages_round_trip(piece: u32, size: Option<u32>, data: Vec<u8>) {
            for message in [
                MetadataMessage::Request { piece },
                MetadataMessage::Reject { piece },
                MetadataMessage::Data { piece, total_size: size.map(u64::from), data: &data },
            ] {
                let payload = message.encode();
                prop_assert_eq!(MetadataMessage::parse(&payload), Ok(Some(message)));
            }
        }
    }
}
