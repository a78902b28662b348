//! Piece space: how the bytes of a content divide into pieces and blocks.
//!
//! A piece is what is verified, written and recorded as one; a block is what is asked for, received and hashed to a leaf of
//! a Merkle tree as one. BitTorrent's blocks are of [`BLOCK_LEN`] bytes; other protocols say how long theirs are, and choose
//! their pieces, see [`Geometry::with_block_length`].

/// Bytes in a block of BitTorrent: the unit of requests (BEP 3) and of v2 Merkle leaves (BEP 52).
pub const BLOCK_LEN: u32 = 16 * 1024;

/// A run of bytes in a piece: what is asked for, sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockRange {
    /// Piece number.
    pub piece: u32,
    /// First byte within the piece.
    pub begin: u32,
    /// Bytes.
    pub len: u32,
}

impl BlockRange {
    /// The byte after the last one, within the piece.
    pub fn end(&self) -> u64 {
        u64::from(self.begin) + u64::from(self.len)
    }

    /// Whether the two have bytes in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.piece == other.piece && u64::from(self.begin) < other.end() && u64::from(other.begin) < self.end()
    }
}

/// Sizes of the pieces of one content. Cheap to clone for contents without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    piece_length: u32,
    block_length: u32,
    total: u64,
    /// (piece, bytes before its trailing padding), sorted by piece; only pieces that end in padding.
    trimmed: Box<[(u32, u32)]>,
}

impl Geometry {
    /// `piece_length` in bytes, not 0; `total` in bytes, pads included, at most `u32::MAX` pieces.
    /// `trimmed` lists pieces whose tail is padding, sorted, with the bytes that go before it. Blocks are of [`BLOCK_LEN`].
    ///
    /// # Panics
    /// When the preconditions do not hold: the parser proves them first.
    pub fn new(piece_length: u32, total: u64, trimmed: Vec<(u32, u32)>) -> Self {
        assert!(piece_length > 0);
        assert!(total.div_ceil(u64::from(piece_length)) <= u64::from(u32::MAX));
        assert!(trimmed.windows(2).all(|pair| pair[0].0 < pair[1].0));
        Self { piece_length, block_length: BLOCK_LEN, total, trimmed: trimmed.into() }
    }

    /// The same pieces in blocks of `block_length` bytes, not 0: a chunk of PPSPP (RFC 7574, section 8.7), a packet's payload
    /// of bulk transfer. No power of two is needed, and none of the piece length, but pieces of many blocks waste no memory
    /// where they are a multiple of it.
    ///
    /// # Panics
    /// When `block_length` is 0.
    pub fn with_block_length(self, block_length: u32) -> Self {
        assert!(block_length > 0);
        Self { block_length, ..self }
    }

    /// Bytes in every block but the last of a piece.
    pub fn block_length(&self) -> u32 {
        self.block_length
    }

    /// Bytes in every piece but the last.
    pub fn piece_length(&self) -> u32 {
        self.piece_length
    }

    /// Bytes of piece space, pads included.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Number of pieces.
    pub fn piece_count(&self) -> u32 {
        self.total.div_ceil(u64::from(self.piece_length)) as u32
    }

    /// Where `piece` starts in piece space.
    pub fn piece_offset(&self, piece: u32) -> u64 {
        u64::from(piece) * u64::from(self.piece_length)
    }

    /// Bytes in `piece`, pads included; 0 past the end.
    pub fn piece_len(&self, piece: u32) -> u32 {
        let left = self.total.saturating_sub(self.piece_offset(piece));
        left.min(u64::from(self.piece_length)) as u32
    }

    /// Bytes in `piece` before its trailing padding: what has to be fetched.
    pub fn data_len(&self, piece: u32) -> u32 {
        match self.trimmed.binary_search_by_key(&piece, |entry| entry.0) {
            Ok(index) => self.trimmed[index].1,
            Err(_) => self.piece_len(piece),
        }
    }

    /// Blocks of `piece` that have to be fetched.
    pub fn block_count(&self, piece: u32) -> u32 {
        self.data_len(piece).div_ceil(self.block_length)
    }

    /// Bytes in block `block` of `piece`; only the last one may be shorter than [`Geometry::block_length`].
    pub fn block_len(&self, piece: u32, block: u32) -> u32 {
        self.data_len(piece).saturating_sub(block.saturating_mul(self.block_length)).min(self.block_length)
    }

    /// The piece that holds byte `offset` of piece space.
    pub fn piece_at(&self, offset: u64) -> u32 {
        (offset / u64::from(self.piece_length)) as u32
    }
}
