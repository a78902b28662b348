//! Piece space: how the bytes of a content divide into pieces and blocks.

/// Bytes in a block: the unit of requests (BEP 3) and of v2 Merkle leaves (BEP 52).
pub const BLOCK_LEN: u32 = 16 * 1024;

/// Sizes of the pieces of one content. Cheap to clone for contents without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    piece_length: u32,
    total: u64,
    /// (piece, bytes before its trailing padding), sorted by piece; only pieces that end in padding.
    trimmed: Box<[(u32, u32)]>,
}

impl Geometry {
    /// `piece_length` in bytes, not 0; `total` in bytes, pads included, at most `u32::MAX` pieces.
    /// `trimmed` lists pieces whose tail is padding, sorted, with the bytes that go before it.
    ///
    /// # Panics
    /// When the preconditions do not hold: the parser proves them first.
    pub fn new(piece_length: u32, total: u64, trimmed: Vec<(u32, u32)>) -> Self {
        assert!(piece_length > 0);
        assert!(total.div_ceil(u64::from(piece_length)) <= u64::from(u32::MAX));
        assert!(trimmed.windows(2).all(|pair| pair[0].0 < pair[1].0));
        Self { piece_length, total, trimmed: trimmed.into() }
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
        self.data_len(piece).div_ceil(BLOCK_LEN)
    }

    /// Bytes in block `block` of `piece`; only the last one may be shorter than [`BLOCK_LEN`].
    pub fn block_len(&self, piece: u32, block: u32) -> u32 {
        self.data_len(piece).saturating_sub(block * BLOCK_LEN).min(BLOCK_LEN)
    }

    /// The piece that holds byte `offset` of piece space.
    pub fn piece_at(&self, offset: u64) -> u32 {
        (offset / u64::from(self.piece_length)) as u32
    }
}
