//! What is sent, and where it goes: the two contracts between the driver and those who know files.
//!
//! All calls may block: they come from threads that do nothing else. Several may come at once.

use std::io;
use std::sync::Arc;

use anabranch_hercules::ChunkSet;
use anabranch_hercules::wire::manifest::Entry;
use anabranch_hercules::wire::message::Offer;
use anabranch_hercules::wire::receipt::Receipt;
use anabranch_paths::Endpoint;
use anabranch_transport::NodeId;

use crate::events::Placed;

/// Something that can be sent: files that were looked through, a block of memory.
pub trait Source: Send + Sync {
    /// Bytes of content: the data of all files without their holes, as the manifest has them.
    fn content_len(&self) -> u64;

    /// Entries of the manifest.
    fn entries(&self) -> u32;

    /// The encoded manifest ([`Entry::write`], one behind the other).
    fn manifest(&self) -> Arc<[u8]>;

    /// Fills `into` with the content from `offset` on. Always within the content.
    ///
    /// # Errors
    /// The source is not any more what the manifest says, or cannot be read.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError>;
}

/// Why a source cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It is not what was offered: the transfer ends.
    #[error("{0} changed since it was looked through: send it again once nobody writes to it")]
    Changed(String),
    /// The system's error.
    #[error("cannot read {name}: {source}")]
    Io {
        /// Which file.
        name: String,
        /// What the system says.
        source: io::Error,
    },
}

impl SourceError {
    /// The same once more, for another receiver.
    pub(super) fn for_another(&self) -> Self {
        match self {
            Self::Changed(name) => Self::Changed(name.clone()),
            Self::Io { name, source } => {
                Self::Io { name: name.clone(), source: io::Error::new(source.kind(), source.to_string()) }
            }
        }
    }
}

/// Whose offer it is, and what is offered.
#[derive(Clone, Debug)]
pub struct Offered {
    /// The sender's key.
    pub key: NodeId,
    /// Where the sender is.
    pub address: Endpoint,
    /// Lengths, and the manifest's hash: the same hash from the same key is the same thing, to be gone on with.
    pub offer: Offer,
    /// The manifest: checked entry by entry ([`Entry::check`]), and as long as the offer says.
    pub entries: Vec<Entry>,
}

/// Decides where what is offered goes.
pub trait Destinations: Send + Sync {
    /// Makes place, or refuses; both ends are told why. Called again, with the same manifest from the same key, when a
    /// connection was lost and made anew: the destination made before was dropped then.
    ///
    /// # Errors
    /// It cannot or may not be received here.
    fn open(&self, offered: Offered) -> Result<Arc<dyn Destination>, Refusal>;
}

/// Why an offer is not taken. The sender is told this text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// The place of one content. Dropped without [`Destination::finish`] where the transfer ends early: what was kept is to be found
/// the next time.
pub trait Destination: Send + Sync {
    /// Spans ([`anabranch_hercules::tree`]) that are there from before, written and verified then: a set of
    /// [`span_count`](anabranch_hercules::tree::span_count) at most. Asked for once, first.
    fn kept(&self) -> ChunkSet;

    /// Spans besides that seem to be there, such as files with the right length and time: they are not sent either, but read and
    /// verified, and sent after all where they are something else. Asked for once, before anything is written.
    fn claimed(&self) -> ChunkSet {
        ChunkSet::new(0)
    }

    /// Writes content. Any order, any alignment; what is written again is the same or better.
    ///
    /// # Errors
    /// [`DestinationError::Full`] is tried again until there is room; every other ends the transfer.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DestinationError>;

    /// Reads back what was written, for spans that did not fit into memory.
    ///
    /// # Errors
    /// It ends the transfer.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DestinationError>;

    /// The hash that a span of [`Destination::kept`] had when it was kept, where that was recorded; else it is read again. Asked for
    /// once: the sender may have something else by now.
    fn recorded_hash(&self, _span: u64) -> Option<[u8; 32]> {
        None
    }

    /// A span was written whole and has its hash: it may be recorded, to count as had after a crash.
    ///
    /// # Errors
    /// As [`Destination::write`].
    fn span_kept(&self, span: u64, hash: &[u8; 32]) -> Result<(), DestinationError>;

    /// Everything is there and verified: names, modes, times; and the record of what was kept goes. The sender is sent the receipt
    /// after this.
    ///
    /// # Errors
    /// As [`Destination::write`].
    fn finish(&self, receipt: &Receipt) -> Result<(), DestinationError>;

    /// Where it lies, where it is files.
    fn placed(&self) -> Option<Placed> {
        None
    }
}

/// Why a destination does not take content.
#[derive(Debug, thiserror::Error)]
pub enum DestinationError {
    /// No room: it is tried again, and the user told meanwhile.
    #[error("{0}: it goes on once there is room")]
    Full(String),
    /// Anything else.
    #[error("cannot write {name}: {source}")]
    Io {
        /// Which file.
        name: String,
        /// What the system says.
        source: io::Error,
    },
}
