//! What the other end may not do. Its keys are known, so it is the other end's fault and nobody else's.

use crate::wire::WireError;

/// Why a transfer is ended: the other end broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misbehaviour {
    /// Bytes that mean nothing.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Packets of a report were never sent.
    #[error("the receiver reported packets on path {path} that were never sent")]
    ReportedUnsent {
        /// The path.
        path: u8,
    },
    /// A report says that a packet came whose number was left out: it acknowledges what it did not get.
    #[error("the receiver acknowledged packets on path {path} that it did not get")]
    ReportedSkipped {
        /// The path.
        path: u8,
    },
    /// An answer to a mark does not say what stood in the mark: it was made up.
    #[error("the receiver answered a mark on path {path} that it did not get")]
    AnsweredUnsent {
        /// The path.
        path: u8,
    },
    /// A message or control packet that only the other role sends, or not now.
    #[error("the other end sent {0}, which is not for it to send now")]
    OutOfTurn(&'static str),
    /// Spans or chunks that the content does not have.
    #[error("the other end named {0} behind the end of the content")]
    OutOfRange(&'static str),
    /// A chunk of another length than it has.
    #[error("the sender sent chunk {0} with another length than it has")]
    ChunkLength(u64),
    /// The same content was refused too often.
    #[error("the receiver asked for too much again: its disk or this end's files change meanwhile")]
    AgainTooOften,
    /// The hashes do not make the root.
    #[error("the sender's hashes do not make its root")]
    WrongRoot,
}
