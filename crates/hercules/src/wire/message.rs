//! What travels over a reliable stream: what may be long, must be complete, and can wait.
//!
//! A message is a type, a length of four bytes and a body.

use std::ops::Range;

use super::manifest::MANIFEST_LEN_MAX;
use super::receipt::Receipt;
use super::{CHUNK_LEN_MAX, CHUNK_LEN_MIN, CHUNKS_MAX, CONTENT_LEN_MAX, Input, WireError, chunk_count, put_varint};

/// Type and length.
pub const FRAME_LEN: usize = 5;
/// Longest body.
pub const BODY_LEN_MAX: usize = super::manifest::ENTRY_LEN_MAX;
/// Ranges in one message; who has more sends several messages.
pub const RANGES_MAX: usize = 2048;
/// Hashes in one message.
pub const HASHES_MAX: usize = 1024;
/// Bytes of the text that says why a transfer ended.
pub const REASON_LEN_MAX: usize = 256;

/// A message, from the sender or the receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Sender: what there is. First of all.
    Offer(Offer),
    /// Sender: whole entries of the manifest, in order ([`super::manifest::parse_entries`]).
    Entries(Vec<u8>),
    /// Receiver: spans that it has kept, verified, from before.
    Kept(Vec<Range<u64>>),
    /// Receiver: everything has its place, chunks may come.
    Ready,
    /// Sender: hashes of spans, from the first one on, as it read them.
    Hashes {
        /// Number of the first span.
        first: u64,
        /// One a span.
        hashes: Vec<[u8; 32]>,
    },
    /// Sender: the root over all spans; it has read everything.
    Root([u8; 32]),
    /// Receiver: spans that do not have their hash, to be sent again.
    Again(Vec<Range<u64>>),
    /// Receiver: it has everything, verified. Last of all.
    Receipt(Box<Receipt>),
    /// Who called: what it wants, and that it was invited. Before everything else.
    Open {
        /// Whether it sends; else it receives.
        sends: bool,
        /// The longest chunk that its paths take; 0 where that is not for it to say.
        chunk_len_max: u16,
        /// That it holds a ticket ([`super::ticket::proof`]).
        proof: Option<[u8; 32]>,
    },
    /// Receiver: it knocks by a new path of this index; the sender may use it.
    Path(u8),
    /// Receiver: no more than so many bytes a second, over all paths; at least 1.
    Limit(u64),
    /// Either: it is over before that.
    End {
        /// For programs; 0 is "interrupted".
        code: u16,
        /// For people.
        reason: String,
    },
}

/// What a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its id, the one in every packet.
    pub transfer: u32,
    /// Bytes of a chunk; the last may be shorter.
    pub chunk_len: u16,
    /// Bytes of content.
    pub content_len: u64,
    /// Bytes of the manifest.
    pub manifest_len: u64,
    /// SHA-256 of the manifest: who resumes sees that it is the same.
    pub manifest_hash: [u8; 32],
}

impl Offer {
    /// How many chunks it has.
    pub fn chunks(&self) -> u64 {
        chunk_count(self.content_len, self.chunk_len)
    }

    /// Whether this is within all limits.
    pub fn check(&self) -> Result<(), WireError> {
        if !(CHUNK_LEN_MIN..=CHUNK_LEN_MAX).contains(&self.chunk_len) {
            return Err(WireError::Invalid("chunk length"));
        }
        if self.content_len > CONTENT_LEN_MAX || self.chunks() > CHUNKS_MAX {
            return Err(WireError::TooMany("bytes"));
        }
        if self.manifest_len > MANIFEST_LEN_MAX {
            return Err(WireError::TooMany("bytes of names"));
        }
        Ok(())
    }
}

impl Message {
    /// Appends the frame to `out`. At most as many ranges, hashes and bytes as the limits say are written.
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0; FRAME_LEN]);
        out[start] = match self {
            Self::Offer(offer) => {
                out.push(super::VERSION);
                out.extend(offer.transfer.to_be_bytes());
                out.extend(offer.chunk_len.to_be_bytes());
                out.extend(offer.content_len.to_be_bytes());
                out.extend(offer.manifest_len.to_be_bytes());
                out.extend(offer.manifest_hash);
                1
            }
            Self::Entries(bytes) => {
                out.extend(bytes);
                2
            }
            Self::Kept(ranges) => {
                put_ranges(out, ranges);
                3
            }
            Self::Ready => 4,
            Self::Hashes { first, hashes } => {
                out.extend(first.to_be_bytes());
                hashes.iter().take(HASHES_MAX).for_each(|hash| out.extend(hash));
                5
            }
            Self::Root(root) => {
                out.extend(root);
                6
            }
            Self::Again(ranges) => {
                put_ranges(out, ranges);
                7
            }
            Self::Receipt(receipt) => {
                receipt.write(out);
                8
            }
            Self::Open { sends, chunk_len_max, proof } => {
                out.push(super::VERSION);
                out.push(u8::from(*sends));
                out.extend(chunk_len_max.to_be_bytes());
                out.push(u8::from(proof.is_some()));
                out.extend(proof.iter().flatten());
                10
            }
            Self::Path(index) => {
                out.push(*index);
                11
            }
            Self::Limit(rate) => {
                out.extend(rate.to_be_bytes());
                12
            }
            Self::End { code, reason } => {
                out.extend(code.to_be_bytes());
                out.extend(&reason.as_bytes()[..reason.floor_char_boundary(REASON_LEN_MAX)]);
                9
            }
        };
        let len = (out.len() - start - FRAME_LEN) as u32;
        out[start + 1..start + FRAME_LEN].copy_from_slice(&len.to_be_bytes());
    }

    /// Reads the first message of `bytes` and how long it is; `None` where it has not come whole.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, WireError> {
        let Some((frame, rest)) = bytes.split_first_chunk::<FRAME_LEN>() else { return Ok(None) };
        let len = u32::from_be_bytes([frame[1], frame[2], frame[3], frame[4]]) as usize;
        if len > BODY_LEN_MAX {
            return Err(WireError::TooMany("bytes in one message"));
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        Self::read(frame[0], body).map(|message| Some((message, FRAME_LEN + len)))
    }

    fn read(kind: u8, body: &[u8]) -> Result<Self, WireError> {
        let mut input = Input(body);
        let message = match kind {
            1 => {
                if input.u8()? != super::VERSION {
                    return Err(WireError::Invalid("version"));
                }
                let offer = Offer {
                    transfer: input.u32()?,
                    chunk_len: input.u16()?,
                    content_len: input.u64()?,
                    manifest_len: input.u64()?,
                    manifest_hash: input.array()?,
                };
                offer.check()?;
                Self::Offer(offer)
            }
            2 => Self::Entries(input.take(body.len())?.to_vec()),
            3 => Self::Kept(read_ranges(&mut input)?),
            4 => Self::Ready,
            5 => {
                let first = input.u64()?;
                let (hashes, odd) = input.take(input.0.len())?.as_chunks::<32>();
                if hashes.len() > HASHES_MAX {
                    return Err(WireError::TooMany("hashes in one message"));
                }
                if !odd.is_empty() || first > CONTENT_LEN_MAX {
                    return Err(WireError::Invalid("hashes"));
                }
                Self::Hashes { first, hashes: hashes.to_vec() }
            }
            6 => Self::Root(input.array()?),
            7 => Self::Again(read_ranges(&mut input)?),
            8 => Self::Receipt(Box::new(Receipt::parse(input.take(body.len())?)?)),
            9 => {
                let code = input.u16()?;
                let reason = input.take(input.0.len())?;
                if reason.len() > REASON_LEN_MAX {
                    return Err(WireError::TooMany("bytes of a reason"));
                }
                let reason = String::from_utf8(reason.to_vec()).map_err(|_| WireError::Invalid("reason"))?;
                Self::End { code, reason }
            }
            10 => {
                let flag = |value| match value {
                    0 => Ok(false),
                    1 => Ok(true),
                    _ => Err(WireError::Invalid("flag")),
                };
                if input.u8()? != super::VERSION {
                    return Err(WireError::Invalid("version"));
                }
                let (sends, chunk_len_max, has_proof) = (flag(input.u8()?)?, input.u16()?, flag(input.u8()?)?);
                Self::Open { sends, chunk_len_max, proof: if has_proof { Some(input.array()?) } else { None } }
            }
            11 => match input.u8()? {
                index if usize::from(index) < super::PATHS_MAX => Self::Path(index),
                _ => return Err(WireError::Invalid("path")),
            },
            12 => match input.u64()? {
                0 => return Err(WireError::Invalid("limit")),
                rate => Self::Limit(rate),
            },
            other => return Err(WireError::UnknownType(other)),
        };
        input.finish()?;
        Ok(message)
    }
}

/// Count, then for each the gap before it and its length, as varints.
fn put_ranges(out: &mut Vec<u8>, ranges: &[Range<u64>]) {
    let ranges = &ranges[..ranges.len().min(RANGES_MAX)];
    put_varint(out, ranges.len() as u64);
    let mut at = 0;
    for range in ranges {
        put_varint(out, range.start - at);
        put_varint(out, range.end - range.start);
        at = range.end;
    }
}

fn read_ranges(input: &mut Input<'_>) -> Result<Vec<Range<u64>>, WireError> {
    let count = input.varint()?;
    if count > RANGES_MAX as u64 {
        return Err(WireError::TooMany("ranges in one message"));
    }
    let (mut ranges, mut at) = (Vec::new(), 0);
    for _ in 0..count {
        // Two numbers below 2^62 and one below 2^50 do not overflow.
        let start = at + input.varint()?;
        let end = start + input.varint()?;
        if start >= end || end > CONTENT_LEN_MAX {
            return Err(WireError::Invalid("range"));
        }
        ranges.push(start..end);
        at = end;
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
        prop::collection::vec((0..1u64 << 20, 1..1u64 << 20), 0..8).prop_map(|steps| {
            let mut at = 0;
            steps
                .into_iter()
                .map(|(gap, len)| {
                    let start = at + gap;
                    at = start + len;
                    start..at
                })
                .collect()
        })
    }

    fn message() -> impl Strategy<Value = Message> {
        let offer = (any::<u32>(), CHUNK_LEN_MIN..CHUNK_LEN_MAX, 0..1u64 << 40, 0..1u64 << 20, any::<[u8; 32]>());
        prop_oneof![
            offer.prop_map(|(transfer, chunk_len, content_len, manifest_len, manifest_hash)| {
                Message::Offer(Offer { transfer, chunk_len, content_len, manifest_len, manifest_hash })
            }),
            prop::collection::vec(any::<u8>(), 0..50).prop_map(Message::Entries),
            ranges().prop_map(Message::Kept),
            Just(Message::Ready),
            (0..1u64 << 40, prop::collection::vec(any::<[u8; 32]>(), 0..4))
                .prop_map(|(first, hashes)| Message::Hashes { first, hashes }),
            any::<[u8; 32]>().prop_map(Message::Root),
            ranges().prop_map(Message::Again),
            any::<(bool, u16, Option<[u8; 32]>)>().prop_map(|(sends, chunk_len_max, proof)| Message::Open {
                sends,
                chunk_len_max,
                proof
            }),
            (0..super::super::PATHS_MAX as u8).prop_map(Message::Path),
            (1..u64::MAX).prop_map(Message::Limit),
            (any::<u16>(), "\\PC{0,60}").prop_map(|(code, reason)| Message::End { code, reason }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(messages in prop::collection::vec(message(), 1..4)) {
            let mut bytes = Vec::new();
            messages.iter().for_each(|message| message.write(&mut bytes));
            let mut rest = &bytes[..];
            for message in messages {
                let (read, len) = Message::parse(rest).unwrap().unwrap();
                prop_assert_eq!(read, message);
                prop_assert_eq!(Message::parse(&rest[..len - 1]), Ok(None));
                rest = &rest[len..];
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn any_bytes_are_read_or_refused(kind in 0..14u8, body in prop::collection::vec(any::<u8>(), 0..80)) {
            let frame = [&[kind][..], &(body.len() as u32).to_be_bytes(), &body].concat();
            if let Ok(Some((message, len))) = Message::parse(&frame) {
                prop_assert_eq!(len, frame.len());
                let mut again = Vec::new();
                message.write(&mut again);
                prop_assert_eq!(Message::parse(&again), Ok(Some((message, again.len()))));
            }
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_before_it_came() {
        let frame = |len: u32| [&[2][..], &len.to_be_bytes()].concat();
        assert_eq!(Message::parse(&frame(BODY_LEN_MAX as u32)), Ok(None));
        assert_eq!(Message::parse(&frame(BODY_LEN_MAX as u32 + 1)), Err(WireError::TooMany("bytes in one message")));
    }

    #[test]
    fn an_offer_of_what_nobody_has_is_refused() {
        let offer = |content_len, chunk_len| {
            Offer { transfer: 1, chunk_len, content_len, manifest_len: 0, manifest_hash: [0; 32] }.check()
        };
        assert!(offer(1 << 63, 1400).is_err() && offer(CONTENT_LEN_MAX + 1, CHUNK_LEN_MAX).is_err());
        assert!(offer(CHUNKS_MAX * 1400, 1400).is_ok() && offer(CHUNKS_MAX * 1400 + 1, 1400).is_err());
        assert!(offer(1, CHUNK_LEN_MIN - 1).is_err() && offer(0, CHUNK_LEN_MIN).is_ok());
    }
}
