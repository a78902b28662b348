//! What a peer can do wrong, and what it costs it.

use crate::wire::WireError;

/// What a peer did that ends its connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerMisbehaved {
    /// Bytes that are no message.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Wrong length or spare bits set.
    #[error("its bitfield does not fit {pieces} pieces")]
    BadBitfield {
        /// The torrent's piece count.
        pieces: u32,
    },
    /// An index past the end.
    #[error("it named piece {piece} of {pieces}")]
    NoSuchPiece {
        /// What it named.
        piece: u32,
        /// The torrent's piece count.
        pieces: u32,
    },
    /// A message that needs BEP 6, without having negotiated it.
    #[error("it used the fast extension without offering it")]
    FastNotNegotiated,
    /// More requests that cannot be served than crossing messages explain.
    #[error("it flooded us with requests")]
    RequestFlood,
    /// More messages that change nothing than any honest program has a use for.
    #[error("it flooded us with messages")]
    Chatter,
    /// It says again and again that it has pieces, and has them not.
    #[error("it took back more pieces than there are")]
    TakesBack,
    /// Blocks nobody asked for.
    #[error("it sent blocks that were not asked for")]
    Unsolicited,
    /// Extension payloads that cannot be read, again and again.
    #[error("it sent malformed extension messages; the last: {0}")]
    BadExtension(String),
    /// Metadata that contradicts what it said itself.
    #[error("{0}")]
    BadMetadata(String),
    /// Hashes that do not lead to the root.
    #[error("it sent Merkle hashes that do not lead to the root")]
    BadHashes,
}

impl PeerMisbehaved {
    /// Whether the peer is not to be dealt with again, on top of losing its connection.
    ///
    /// A ban is for what no honest program does by accident or by age: bytes that are no BitTorrent, floods, and proven
    /// lies. (Wrong data is the other proven lie: it is found by [`crate::blame`].) What old or careless clients
    /// are known to do ends the connection at most; they may be good peers the next time, and coming back costs them more
    /// than us.
    pub fn deserves_ban(&self) -> bool {
        match self {
            // The stream is lost for good, and the same program will do the same again.
            Self::Wire(_) => true,
            // Thousands beyond what our choke and a full pipeline can explain.
            Self::RequestFlood | Self::Chatter | Self::TakesBack => true,
            // A hash tree is wrong only on purpose.
            Self::BadHashes => true,
            // Clients that set spare bits, count pieces differently after a re-hash.
            Self::BadBitfield { .. } | Self::NoSuchPiece { .. } | Self::FastNotNegotiated => false,
            // Answers to cancels and timeouts long forgotten.
            Self::Unsolicited => false,
            // A dialect of an extension; the protocol itself is in order.
            Self::BadExtension(_) | Self::BadMetadata(_) => false,
        }
    }
}
