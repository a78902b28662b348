//! Cutting a byte stream into messages without copying what need not be copied.

use super::message::PIECE_HEADER_LEN;
use super::{
    BITFIELD_LEN_MAX, BLOCK_LEN_MAX, BlockRange, EXTENDED_LEN_MAX, Hashes, Message, TreeRequest, UNKNOWN_LEN_MAX,
    WireError, id,
};

/// Bytes of the length prefix.
const PREFIX_LEN: usize = 4;

/// Gathering space that is kept between messages; what one long message needed above this is given back.
const SCRATCH_KEPT_LEN: usize = 1024;

/// What the connection's state makes of the limits on messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The content's pieces where the metadata is known: a bitfield must then fit exactly.
    pub piece_count: Option<u32>,
    /// The longest block that was asked for, in bytes; at most [`BLOCK_LEN_MAX`].
    pub block_len_max: u32,
}

impl Default for Limits {
    /// Nothing known: the bounds that hold for any connection.
    fn default() -> Self {
        Self { piece_count: None, block_len_max: BLOCK_LEN_MAX }
    }
}

/// What the stream says next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A whole message.
    Message(Message<'a>),
    /// A "piece" message began; `range.len` bytes of payload follow in the stream (BEP 3, "piece").
    BlockStart(BlockRange),
    /// Payload of the block, found in the input.
    BlockData(&'a [u8]),
    /// The block is complete.
    BlockEnd,
}

/// Reads one connection's stream after the handshake. See the [module](super) for how to use it; in the middle of a block a
/// driver may also read up to [`payload_left`](Self::payload_left) bytes from the socket itself and tell
/// [`payload_filled`](Self::payload_filled).
///
/// After an error the stream's meaning is lost: the connection has to be closed.
#[derive(Debug, Default)]
pub struct Receiver {
    state: State,
    /// The front of a message that came in parts, length prefix included.
    scratch: Vec<u8>,
    /// The message in `scratch` was given out and goes at the next call.
    scratch_done: bool,
    unknown_count: u32,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// At, or gathering, the front of a message.
    #[default]
    Front,
    /// In the payload of a "piece" message; `left` may be 0, then only the end is to be told.
    Payload { left: u32 },
    /// In the payload of a message that nobody here understands.
    Skip { left: u32 },
}

impl Receiver {
    /// Consumes bytes from the front of `input` until there is something to tell; `None` when all was consumed and more is
    /// needed. Keeps no more than the front of one message, and no byte of a block.
    ///
    /// # Errors
    /// Where the peer broke the protocol; for messages that are too long as soon as their first five bytes are there.
    pub fn next<'m, 'i: 'm>(
        &'m mut self,
        input: &mut &'i [u8],
        limits: &Limits,
    ) -> Result<Option<Event<'m>>, WireError> {
        if std::mem::take(&mut self.scratch_done) {
            self.clear_scratch();
        }
        // Bounded by the input: every turn but the last consumes the five bytes of an unknown message.
        let len = loop {
            match &mut self.state {
                State::Payload { left: 0 } => {
                    self.state = State::Front;
                    return Ok(Some(Event::BlockEnd));
                }
                State::Payload { left } => {
                    let data = take(input, *left as usize);
                    *left -= data.len() as u32;
                    return Ok((!data.is_empty()).then_some(Event::BlockData(data)));
                }
                State::Skip { left } => {
                    *left -= take(input, *left as usize).len() as u32;
                    if *left > 0 {
                        return Ok(None);
                    }
                    self.state = State::Front;
                }
                State::Front => match self.gather(input, limits)? {
                    None => return Ok(None),
                    Some(Front::Message { len }) => break len,
                    Some(Front::Block) => {
                        let range = parse_piece_header(self.front(input, PIECE_HEADER_LEN))?;
                        self.clear_scratch();
                        self.state = State::Payload { left: range.len };
                        return Ok(Some(Event::BlockStart(range)));
                    }
                    Some(Front::Unknown { left }) => {
                        self.front(input, PREFIX_LEN + 1);
                        self.clear_scratch();
                        self.state = State::Skip { left };
                        self.unknown_count = self.unknown_count.saturating_add(1);
                    }
                },
            }
        };
        self.scratch_done = !self.scratch.is_empty();
        let message = Message::parse(&self.front(input, len)[PREFIX_LEN..])?;
        Ok(message.map(Event::Message))
    }

    /// In the middle of a block: how many of its bytes are to come. `None` between messages and in other messages.
    /// 0 when only [`Event::BlockEnd`] is still to be told by [`next`](Self::next).
    pub fn payload_left(&self) -> Option<u32> {
        match self.state {
            State::Payload { left } => Some(left),
            State::Front | State::Skip { .. } => None,
        }
    }

    /// The next `len` bytes of the block came without passing through here, straight from the socket to their place.
    /// Answers whether that was the end of the block, which [`next`](Self::next) then does not tell again.
    ///
    /// # Panics
    /// Where `len` is more than [`payload_left`](Self::payload_left): the driver read past the block.
    pub fn payload_filled(&mut self, len: u32) -> bool {
        let State::Payload { left } = &mut self.state else {
            assert_eq!(len, 0, "no block is being received");
            return false;
        };
        assert!(len <= *left, "{len} bytes were put into a block that had room for {left}");
        *left -= len;
        let end = *left == 0;
        if end {
            self.state = State::Front;
        }
        end
    }

    /// Bytes of the next message's front that are held already, its length prefix included; 0 between messages.
    pub fn gathered_len(&self) -> usize {
        if self.scratch_done { 0 } else { self.scratch.len() }
    }

    /// Messages that were skipped since the last call because their number means nothing to us.
    pub fn take_unknown(&mut self) -> u32 {
        std::mem::take(&mut self.unknown_count)
    }

    /// Sees to it that the front of a message is together, in `input` or else in `scratch`; `None` when input ran out.
    fn gather(&mut self, input: &mut &[u8], limits: &Limits) -> Result<Option<Front>, WireError> {
        // Three turns at most: length prefix, number, the rest.
        loop {
            let head = if self.scratch.is_empty() { *input } else { &self.scratch[..] };
            let measure = Measure::new(head, limits)?;
            let wanted = measure.wanted();
            if let Measure::Enough(front) = measure
                && head.len() >= wanted
            {
                return Ok(Some(front));
            }
            let missing = wanted - self.scratch.len();
            let part = take(input, missing);
            self.scratch.extend_from_slice(part);
            if part.len() < missing {
                return Ok(None);
            }
        }
    }

    /// The `len` bytes that [`gather`](Self::gather) saw to, consumed.
    fn front<'m, 'i: 'm>(&'m self, input: &mut &'i [u8], len: usize) -> &'m [u8] {
        if self.scratch.is_empty() { take(input, len) } else { &self.scratch }
    }

    fn clear_scratch(&mut self) {
        self.scratch.clear();
        self.scratch.shrink_to(SCRATCH_KEPT_LEN);
    }
}

/// What stands at the front of the stream, within its limits.
#[derive(Clone, Copy)]
enum Front {
    /// A message to be read whole, `len` bytes with its prefix.
    Message { len: usize },
    /// A "piece" message, of which the header is to be read.
    Block,
    /// A message of unknown number with `left` bytes after it.
    Unknown { left: u32 },
}

/// What the first bytes of a message tell.
enum Measure {
    /// This many are needed to tell more.
    Short(usize),
    /// All that is needed.
    Enough(Front),
}

impl Measure {
    fn new(head: &[u8], limits: &Limits) -> Result<Self, WireError> {
        let Some(prefix) = head.first_chunk::<PREFIX_LEN>() else { return Ok(Self::Short(PREFIX_LEN)) };
        let len = u32::from_be_bytes(*prefix);
        if len == 0 {
            // BEP 3: "Messages of length zero are keepalives".
            return Ok(Self::Enough(Front::Message { len: PREFIX_LEN }));
        }
        let Some(&number) = head.get(PREFIX_LEN) else { return Ok(Self::Short(PREFIX_LEN + 1)) };
        let (min, max) = lengths(number, limits);
        let message = id::name(number);
        if len > max {
            return Err(WireError::TooLong { message, id: number, len, limit: max });
        }
        if len < min {
            return Err(WireError::WrongLength { message, len, expected: min });
        }
        Ok(Self::Enough(match number {
            id::PIECE => Front::Block,
            _ if !id::is_known(number) => Front::Unknown { left: len - 1 },
            _ => Front::Message { len: PREFIX_LEN + len as usize },
        }))
    }

    /// Bytes from the length prefix on that have to be together.
    fn wanted(&self) -> usize {
        match *self {
            Self::Short(len) | Self::Enough(Front::Message { len }) => len,
            Self::Enough(Front::Block) => PIECE_HEADER_LEN,
            Self::Enough(Front::Unknown { .. }) => PREFIX_LEN + 1,
        }
    }
}

/// The least and the most that a message's length prefix may say.
fn lengths(number: u8, limits: &Limits) -> (u32, u32) {
    let (min, max) = match number {
        id::CHOKE | id::UNCHOKE | id::INTERESTED | id::NOT_INTERESTED | id::HAVE_ALL | id::HAVE_NONE => (0, 0),
        id::HAVE | id::SUGGEST | id::ALLOWED_FAST => (4, 4),
        id::BITFIELD => match limits.piece_count {
            Some(count) => (count.div_ceil(8), count.div_ceil(8)),
            None => (0, BITFIELD_LEN_MAX),
        },
        id::REQUEST | id::CANCEL | id::REJECT => (12, 12),
        id::PIECE => (8, 8 + limits.block_len_max.min(BLOCK_LEN_MAX)),
        id::PORT => (2, 2),
        id::EXTENDED => (1, 1 + EXTENDED_LEN_MAX),
        id::HASH_REQUEST | id::HASH_REJECT => (TreeRequest::LEN as u32, TreeRequest::LEN as u32),
        id::HASHES => (TreeRequest::LEN as u32, Hashes::LEN_MAX),
        _ => (0, UNKNOWN_LEN_MAX),
    };
    (1 + min, 1 + max)
}

/// `header` is what [`piece_header`](super::piece_header) writes, its length proven to be 9 at least.
fn parse_piece_header(header: &[u8]) -> Result<BlockRange, WireError> {
    let field = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let range = BlockRange { piece: field(5), begin: field(9), len: field(0) - 9 };
    match range.len {
        0 => Err(WireError::EmptyBlock { piece: range.piece, begin: range.begin }),
        _ => Ok(range),
    }
}

/// Splits up to `len` bytes off the front of `input`.
fn take<'i>(input: &mut &'i [u8], len: usize) -> &'i [u8] {
    let (taken, rest) = input.split_at(len.min(input.len()));
    *input = rest;
    taken
}
