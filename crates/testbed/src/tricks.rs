//! What hostile peers say without end: messages that cost them few bytes, and were or might be dear to who hears them.

use std::time::Duration;

use crate::hostile::{bitfield, message};

// BEP 3, 6, 10 and 52, message ids.
const CHOKE: u8 = 0;
const UNCHOKE: u8 = 1;
const INTERESTED: u8 = 2;
const NOT_INTERESTED: u8 = 3;
const HAVE: u8 = 4;
const BITFIELD: u8 = 5;
const REQUEST: u8 = 6;
const PIECE: u8 = 7;
const CANCEL: u8 = 8;
const HAVE_ALL: u8 = 14;
const REJECT: u8 = 16;
const ALLOWED_FAST: u8 = 17;
const EXTENDED: u8 = 20;
const HASH_REQUEST: u8 = 21;
// The numbers that Anabranch's extension handshake names.
const HANDSHAKE: u8 = 0;
const UT_METADATA: u8 = 1;
const UT_PEX: u8 = 2;
const DONT_HAVE: u8 = 4;
const AB_PATHS: u8 = 5;

/// Messages in one batch.
const BATCH: usize = 1000;
/// Between two messages of those that are a message a time.
const SELDOM: Duration = Duration::from_millis(100);

/// What is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trick {
    /// "Don't have" and "have" of one piece, by turns, as a seed (BEP 54): 19 bytes.
    Flaps,
    /// Choke and unchoke, without the fast extension.
    Chokes,
    /// All pieces and none, by turns.
    Bitfields,
    /// Interested and not.
    Interests,
    /// Nothing, often.
    KeepAlives,
    /// Cancels of what was never asked for.
    Cancels,
    /// Requests and their cancels.
    Regrets,
    /// Rejects of what was never asked for.
    Rejects,
    /// One piece, again and again.
    SameHave,
    /// Pieces that may be had while choked, other ones each time.
    Allows,
    /// Hundreds of addresses of others, each time other ones (BEP 11).
    Peers,
    /// Addresses of its own (`ab_addr`), each time other ones.
    Addresses,
    /// A name that is not its own, with a proof of nothing.
    Thief,
    /// Extended messages that are no bencode.
    Garbage,
    /// Bencode nested as deep as fits.
    Nested,
    /// Requests for metadata (BEP 9).
    Metadata,
    /// Requests for hashes (BEP 52).
    Hashes,
    /// Requests past the end of pieces, and for nothing.
    OddRequests,
    /// Blocks that nobody asked for.
    Blocks,
    /// Wishes for paths (`ab_paths`).
    Wishes,
    /// Messages of a kind that does not exist.
    Unknown,
}

impl Trick {
    /// All of them.
    pub const ALL: [Self; 21] = [
        Self::Flaps,
        Self::Chokes,
        Self::Bitfields,
        Self::Interests,
        Self::KeepAlives,
        Self::Cancels,
        Self::Regrets,
        Self::Rejects,
        Self::SameHave,
        Self::Allows,
        Self::Peers,
        Self::Addresses,
        Self::Thief,
        Self::Garbage,
        Self::Nested,
        Self::Metadata,
        Self::Hashes,
        Self::OddRequests,
        Self::Blocks,
        Self::Wishes,
        Self::Unknown,
    ];

    /// The handshake's reserved bytes.
    pub(crate) fn reserved(self) -> [u8; 8] {
        match self {
            // A choke throws requests away only without BEP 6.
            Self::Chokes => [0; 8],
            _ => [0, 0, 0, 0, 0, 0x10, 0, 0x14],
        }
    }

    /// What is said once, behind the handshake.
    pub(crate) fn opening(self, pieces: u32) -> Vec<u8> {
        let pieces = match self {
            Self::Chokes | Self::Bitfields => message(BITFIELD, &bitfield(pieces)),
            _ => message(HAVE_ALL, &[]),
        };
        let numbers =
            b"d1:md6:ab_idi1e8:ab_pathsi5e11:lt_donthavei4e11:ut_metadatai1e6:ut_pexi2ee13:metadata_sizei9000ee";
        let hello = if self == Self::Chokes { Vec::new() } else { extended(HANDSHAKE, numbers) };
        [pieces, hello, message(INTERESTED, &[])].concat()
    }

    /// How long it rests after each batch.
    pub(crate) fn pause(self) -> Duration {
        match self {
            Self::Peers | Self::Addresses | Self::Thief | Self::Nested | Self::Wishes => SELDOM,
            _ => Duration::ZERO,
        }
    }

    /// What is said again and again.
    pub(crate) fn batch(self, pieces: u32) -> Vec<u8> {
        let block = |piece: u32, begin: u32, len: u32| [piece, begin, len].map(u32::to_be_bytes).concat();
        let wanted = block(0, 0, 16 * 1024);
        let mut random = fastrand::Rng::new();
        match self {
            Self::Flaps => many(&[extended(DONT_HAVE, &[0; 4]), message(HAVE, &[0; 4])]),
            Self::Chokes => many(&[message(UNCHOKE, &[]), message(CHOKE, &[])]),
            Self::Bitfields => {
                let all = bitfield(pieces);
                let none = vec![0; all.len()];
                many(&[message(BITFIELD, &none), message(BITFIELD, &all)])
            }
            Self::Interests => many(&[message(NOT_INTERESTED, &[]), message(INTERESTED, &[])]),
            Self::KeepAlives => many(&[vec![0; 4]]),
            Self::Cancels => many(&[message(CANCEL, &wanted)]),
            Self::Regrets => many(&[message(REQUEST, &wanted), message(CANCEL, &wanted)]),
            Self::Rejects => many(&[message(REJECT, &wanted)]),
            Self::SameHave => many(&[message(HAVE, &[0; 4])]),
            Self::Allows => (0..pieces).flat_map(|piece| message(ALLOWED_FAST, &piece.to_be_bytes())).collect(),
            Self::Peers => {
                let addresses: Vec<u8> = (0..200).flat_map(|_| [127, random.u8(..), random.u8(..), 1, 0, 9]).collect();
                let addresses = [b"d5:added1200:".as_slice(), &addresses, b"e"].concat();
                extended(UT_PEX, &addresses)
            }
            Self::Addresses => {
                let one = |port: u8| [0, 0, 0, 0, 0, 0, 0, 0, 4, 127, random.u8(..), 0, 1, 0, port];
                let addresses: Vec<u8> = [9; 8].into_iter().flat_map(one).collect();
                let hello = [format!("d7:ab_addr{}:", addresses.len()).as_bytes(), &addresses, b"5:ab_id32:"].concat();
                extended(HANDSHAKE, &[hello.as_slice(), &[7; 32], b"e"].concat())
            }
            Self::Thief => {
                let name: Vec<u8> = (0..32).map(|_| random.u8(..)).collect();
                let hello: [&[u8]; 5] = [b"d5:ab_id32:", &name, b"8:ab_proof64:", &[7; 64], b"e"];
                extended(HANDSHAKE, &hello.concat())
            }
            Self::Garbage => many(&[extended(UT_PEX, b"d5:added")]),
            Self::Nested => extended(UT_PEX, &vec![b'l'; 100_000]),
            Self::Metadata => many(&[extended(UT_METADATA, b"d8:msg_typei0e5:piecei0ee")]),
            Self::Hashes => many(&[message(HASH_REQUEST, &[7; 48])]),
            Self::OddRequests => {
                many(&[message(REQUEST, &block(0, u32::MAX, 1)), message(REQUEST, &block(pieces, 0, 0))])
            }
            Self::Blocks => many(&[message(PIECE, &[&[0; 8][..], &[7; 64]].concat())]),
            Self::Wishes => extended(AB_PATHS, b"d4:wishd4:diali1e5:pathsi16eee").repeat(BATCH / 10),
            Self::Unknown => many(&[message(99, &[1; 8])]),
        }
    }
}

fn extended(number: u8, payload: &[u8]) -> Vec<u8> {
    message(EXTENDED, &[&[number], payload].concat())
}

fn many(messages: &[Vec<u8>]) -> Vec<u8> {
    messages.concat().repeat(BATCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_said_is_whole_messages() {
        for trick in Trick::ALL {
            let said = [trick.opening(9), trick.batch(9)].concat();
            let mut rest = said.as_slice();
            while let Some((len, after)) = rest.split_first_chunk() {
                rest = &after[u32::from_be_bytes(*len) as usize..];
            }
            assert!(rest.is_empty(), "{trick:?}");
        }
        assert_eq!(Trick::Flaps.batch(9).len(), (10 + 9) * BATCH, "19 bytes a time");
    }
}
