//! Messages as values, and their bytes.

use anabranch_content::geometry::BlockRange;

use super::{Hashes, TreeRequest, WireError, id};

/// Bytes of a "piece" message before its block: length prefix, number, piece, begin.
pub const PIECE_HEADER_LEN: usize = 13;

/// A message of the peer wire protocol, all but "piece", whose block never comes in one part: see [`piece_header`] and
/// [`Event::BlockStart`](super::Event::BlockStart).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// BEP 3: nothing but a sign of life.
    KeepAlive,
    /// BEP 3: requests are not answered until "unchoke".
    Choke,
    /// BEP 3: requests are answered.
    Unchoke,
    /// BEP 3: the sender would ask for blocks if unchoked.
    Interested,
    /// BEP 3: the sender would not.
    NotInterested,
    /// BEP 3: the sender got and verified this piece.
    Have(u32),
    /// BEP 3: all that the sender has; see `anabranch_content::bitfield`. Spare bits are not looked at here.
    Bitfield(&'a [u8]),
    /// BEP 3: asks for a block.
    Request(BlockRange),
    /// BEP 3: a request is taken back.
    Cancel(BlockRange),
    /// BEP 5: the sender's DHT node listens on this UDP port.
    Port(u16),
    /// BEP 6: this piece is cheap for the sender to send.
    Suggest(u32),
    /// BEP 6: instead of a full bitfield.
    HaveAll,
    /// BEP 6: instead of an empty bitfield.
    HaveNone,
    /// BEP 6: this request will not be answered.
    Reject(BlockRange),
    /// BEP 6: this piece may be requested while choked.
    AllowedFast(u32),
    /// BEP 10: `id` 0 is the extension handshake, others are what the receiver's handshake named.
    Extended {
        /// Extended message number.
        id: u8,
        /// What follows.
        payload: &'a [u8],
    },
    /// BEP 52: asks for hashes. Not checked here: what breaks the rules is to be rejected, see [`TreeRequest::check`].
    HashRequest(TreeRequest),
    /// BEP 52: the answer.
    Hashes(Hashes<'a>),
    /// BEP 52: this hash request will not be answered.
    HashReject(TreeRequest),
}

impl<'a> Message<'a> {
    /// Appends the message, length prefix included.
    ///
    /// # Panics
    /// Where a bitfield or payload is longer than 4 GiB, which no limit allows.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        match *self {
            Self::KeepAlive => {}
            Self::Choke => out.push(id::CHOKE),
            Self::Unchoke => out.push(id::UNCHOKE),
            Self::Interested => out.push(id::INTERESTED),
            Self::NotInterested => out.push(id::NOT_INTERESTED),
            Self::Have(piece) => push_u32(out, id::HAVE, piece),
            Self::Bitfield(bytes) => {
                out.push(id::BITFIELD);
                out.extend_from_slice(bytes);
            }
            Self::Request(range) => push_range(out, id::REQUEST, range),
            Self::Cancel(range) => push_range(out, id::CANCEL, range),
            Self::Port(port) => {
                out.push(id::PORT);
                out.extend_from_slice(&port.to_be_bytes());
            }
            Self::Suggest(piece) => push_u32(out, id::SUGGEST, piece),
            Self::HaveAll => out.push(id::HAVE_ALL),
            Self::HaveNone => out.push(id::HAVE_NONE),
            Self::Reject(range) => push_range(out, id::REJECT, range),
            Self::AllowedFast(piece) => push_u32(out, id::ALLOWED_FAST, piece),
            Self::Extended { id, payload } => {
                out.extend_from_slice(&[id::EXTENDED, id]);
                out.extend_from_slice(payload);
            }
            Self::HashRequest(request) => {
                out.push(id::HASH_REQUEST);
                request.encode(out);
            }
            Self::Hashes(hashes) => {
                out.push(id::HASHES);
                hashes.encode(out);
            }
            Self::HashReject(request) => {
                out.push(id::HASH_REJECT);
                request.encode(out);
            }
        }
        let len = u32::try_from(out.len() - start - 4).expect("messages are far below 4 GiB by their limits");
        out[start..start + 4].copy_from_slice(&len.to_be_bytes());
    }

    /// Reads a whole message other than "piece": `frame` is what follows the length prefix. `None` for an unknown number.
    pub(super) fn parse(frame: &'a [u8]) -> Result<Option<Self>, WireError> {
        let Some((&number, body)) = frame.split_first() else { return Ok(Some(Self::KeepAlive)) };
        let name = id::name(number);
        Ok(Some(match number {
            id::CHOKE => fixed(name, body).map(|[]| Self::Choke)?,
            id::UNCHOKE => fixed(name, body).map(|[]| Self::Unchoke)?,
            id::INTERESTED => fixed(name, body).map(|[]| Self::Interested)?,
            id::NOT_INTERESTED => fixed(name, body).map(|[]| Self::NotInterested)?,
            id::HAVE => Self::Have(u32::from_be_bytes(*fixed(name, body)?)),
            id::BITFIELD => Self::Bitfield(body),
            id::REQUEST => Self::Request(parse_range(fixed(name, body)?)),
            id::CANCEL => Self::Cancel(parse_range(fixed(name, body)?)),
            id::PORT => Self::Port(u16::from_be_bytes(*fixed(name, body)?)),
            id::SUGGEST => Self::Suggest(u32::from_be_bytes(*fixed(name, body)?)),
            id::HAVE_ALL => fixed(name, body).map(|[]| Self::HaveAll)?,
            id::HAVE_NONE => fixed(name, body).map(|[]| Self::HaveNone)?,
            id::REJECT => Self::Reject(parse_range(fixed(name, body)?)),
            id::ALLOWED_FAST => Self::AllowedFast(u32::from_be_bytes(*fixed(name, body)?)),
            id::EXTENDED => match body.split_first() {
                Some((&id, payload)) => Self::Extended { id, payload },
                None => return Err(WireError::WrongLength { message: name, len: 1, expected: 2 }),
            },
            id::HASH_REQUEST => Self::HashRequest(TreeRequest::parse(fixed(name, body)?)),
            id::HASHES => Self::Hashes(Hashes::parse(body)?),
            id::HASH_REJECT => Self::HashReject(TreeRequest::parse(fixed(name, body)?)),
            _ => return Ok(None),
        }))
    }
}

/// The bytes to send before the `len` bytes of a block (BEP 3, "piece").
///
/// # Panics
/// Where `len` is within 9 bytes of 4 GiB; callers stay below [`BLOCK_LEN_MAX`](super::BLOCK_LEN_MAX).
pub fn piece_header(piece: u32, begin: u32, len: u32) -> [u8; PIECE_HEADER_LEN] {
    let mut header = [0; PIECE_HEADER_LEN];
    header[..4].copy_from_slice(&(len + 9).to_be_bytes());
    header[4] = id::PIECE;
    header[5..9].copy_from_slice(&piece.to_be_bytes());
    header[9..].copy_from_slice(&begin.to_be_bytes());
    header
}

fn push_u32(out: &mut Vec<u8>, id: u8, value: u32) {
    out.push(id);
    out.extend_from_slice(&value.to_be_bytes());
}

fn push_range(out: &mut Vec<u8>, id: u8, range: BlockRange) {
    push_u32(out, id, range.piece);
    out.extend_from_slice(&range.begin.to_be_bytes());
    out.extend_from_slice(&range.len.to_be_bytes());
}

fn parse_range(body: &[u8; 12]) -> BlockRange {
    let field = |at: usize| u32::from_be_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
    BlockRange { piece: field(0), begin: field(4), len: field(8) }
}

fn fixed<'a, const N: usize>(message: &'static str, body: &'a [u8]) -> Result<&'a [u8; N], WireError> {
    let wrong = WireError::WrongLength { message, len: body.len() as u32 + 1, expected: N as u32 + 1 };
    body.try_into().map_err(|_| wrong)
}
