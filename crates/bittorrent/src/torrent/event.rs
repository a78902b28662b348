//! What a torrent tells its driver.

use std::net::SocketAddr;
use std::ops::Range;

use anabranch_content::info::Sha256Digest;
use anabranch_paths::Endpoint;

use crate::extension::{PexFlags, Wish};
use crate::{ConnId, PeerKey};

/// Something that the driver has to act on or may show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The info dictionary arrived and its hash is right: parse it, open the storage, then call `set_content`.
    Metadata(Vec<u8>),
    /// Every block of the piece is there: verify and write it, then call `piece_verified`.
    PieceComplete {
        /// Index of the piece.
        piece: u32,
    },
    /// The connection must be closed.
    Close {
        /// Which one.
        conn: ConnId,
        /// Why, for the log.
        reason: String,
    },
    /// A peer proved hostile. Its connections are closed by events of their own.
    Banned {
        /// Which peer.
        peer: PeerKey,
        /// Its address.
        address: Endpoint,
        /// What it did.
        reason: String,
    },
    /// A peer that had sent good data sent wrong data, for the first time: it is not dealt with for
    /// [`SUSPENSION`](super::SUSPENSION). Its connections are closed by events of their own.
    Suspended {
        /// Which peer.
        peer: PeerKey,
        /// Its address.
        address: Endpoint,
        /// What it did.
        reason: String,
    },
    /// Addresses of other peers, and what is said of them (BEP 11).
    Peers(Vec<(Endpoint, PexFlags)>),
    /// Somebody is to be called over uTP, now: it calls us at the same time (BEP 55).
    Meet {
        /// Where.
        address: SocketAddr,
    },
    /// A peer says that its node of the distributed hash table is there (BEP 5).
    DhtNode(Endpoint),
    /// A peer wants block hashes of this piece (BEP 52): hash it and call `leaves_ready`.
    LeavesWanted {
        /// Index of the piece.
        piece: u32,
    },
    /// The piece layer of a file became known (BEP 52): worth keeping for the next start.
    PieceLayer {
        /// Root of the file.
        root: Sha256Digest,
        /// The file's pieces, where [`Torrent::look_first`](super::Torrent::look_first) named one of them: they are not asked for
        /// before [`Torrent::looked_at`](super::Torrent::looked_at).
        look_at: Option<Range<u32>>,
    },
    /// Every wanted piece is verified.
    Finished,
    /// The others have every piece among them: super-seeding is over (BEP 16), and peers are told of all pieces.
    SuperSeeded,
}

/// What a peer said of paths (see [`crate::extension::PathTalk`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathEvent {
    /// It wants so many paths to us, or none beyond its own any more. Also when it is gone.
    Wished {
        /// Who.
        peer: PeerKey,
        /// What.
        wish: Option<Wish>,
    },
    /// It grants other paths than before: see `granted_paths`.
    Granted {
        /// Who.
        peer: PeerKey,
    },
    /// It uses other paths than before: see `third_party_paths`.
    InUse {
        /// Who.
        peer: PeerKey,
    },
    /// It listens at other addresses than before, or said at which of its uplinks a connection is: see `peer_addresses` and
    /// `peer_uplink`.
    Addresses {
        /// Who.
        peer: PeerKey,
    },
}

impl PathEvent {
    /// Who said it.
    pub fn peer(&self) -> PeerKey {
        match self {
            Self::Wished { peer, .. } | Self::Granted { peer } | Self::InUse { peer } | Self::Addresses { peer } => {
                *peer
            }
        }
    }

    /// Whether `later` makes this one void.
    pub(super) fn replaced_by(&self, later: &Self) -> bool {
        self.peer() == later.peer() && std::mem::discriminant(self) == std::mem::discriminant(later)
    }
}

/// The outcome of verifying a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PieceOutcome {
    /// The hash is right and the bytes are written. `digests` (one a block) only where `wants_digests` said so.
    Good {
        /// One digest a block.
        digests: Vec<u64>,
    },
    /// The hash is wrong.
    Bad {
        /// One digest a block.
        digests: Vec<u64>,
    },
}
