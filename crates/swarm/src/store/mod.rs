//! The store: where bytes gather, who verifies and writes them, and what is on disk already. It speaks no protocol.
//!
//! It knows contents (an [`Info`](anabranch_content::info::Info): files, and how they divide into pieces), ranges
//! ([`BlockRange`](anabranch_content::geometry::BlockRange)), what pieces have to hash to
//! ([`ExpectedHash`](anabranch_content::hash::ExpectedHash)), and connections as those who fill a place.
//!
//! # What whoever receives a content does
//!
//! 1. It says how the content divides ([`Geometry`](anabranch_content::geometry::Geometry)): a *block* is what arrives as one, of
//!    any length up to [`CHUNK_LEN`](buffers::CHUNK_LEN); a *piece* is what is verified, written and recorded as one.
//! 2. It asks for memory to receive into: [`PieceBuffers::place`](buffers::PieceBuffers::place), one block or a run of them, any
//!    order, as many as one system call fills. The kernel writes there; nothing is copied on the way to the disk.
//! 3. It hands the range back. A stream, whose block may stop half-way, takes the place for itself with
//!    [`begin`](buffers::PieceBuffers::begin) when the block's header came, and gives it back with
//!    [`finish`](buffers::PieceBuffers::finish). A datagram is whole when it is there: both at once. What came where another belongs
//!    is copied, with [`insert`](buffers::PieceBuffers::insert). What is twice, overlaps what arrives, or lies across
//!    blocks has no place, and [`NoPlace`](buffers::NoPlace) says which of these it is.
//! 4. Where memory is short, [`spill`](buffers::PieceBuffers::spill) moves what waits to its place on disk. So a piece, or a range
//!    whose hash comes at the very end, may be longer than all memory.
//! 5. When a piece is whole and its hash known, [`take`](buffers::PieceBuffers::take) and [`Disk::verify`](disk::Disk::verify): a
//!    disk thread hashes it, writes it if it is good, records it, and answers with a verdict. Good: it may be
//!    announced. Bad: its blocks are missing again, after [`reopen`](buffers::PieceBuffers::reopen), and their digests tell later who sent
//!    which. Storage refused: the job comes back whole, to be handed in again.
//!
//! # Three protocols
//!
//! | | block | piece | hash | verdict |
//! | --- | --- | --- | --- | --- |
//! | BitTorrent | 16 KiB, requests of up to 8 | as the torrent says | SHA-1 and (or) a Merkle root, known before | a piece |
//! | PPSPP | a chunk, 1 KiB and up | a subtree of some 16 to 256 KiB | a tree that grows while content arrives | a chunk, or a subtree |
//! | bulk transfer | a packet's payload, 1.3 to 8.9 KB | a range | may come after the last packet | a range |
//!
//! A PPSPP receiver may acknowledge a chunk only when it was verified (RFC 7574, section 5), and cannot wait for its neighbours. It
//! hashes a chunk where it lies ([`laid_out`](buffers::PieceBuffers::laid_out)), a batch of them side by side, has its core judge the
//! leaves by their uncles, and finishes those that are right; the others never counted, and their places are free. The whole piece
//! is then handed in without an expected hash, and written. Or it finishes chunks as they come, and hands the piece in
//! when the hash over its subtree is known. The `tests` play all three.
//!
//! Lengths are the protocol's choice, their cost is this: a piece costs a look-up, some 100 bytes and a byte a block while it is
//! under way, a write of its own and a record of nine bytes; so pieces of less than 16 KiB are for contents that have no others.
//!
//! # Bounds
//!
//! [`Pools`](pools::Pools) bound all memory that blocks are received into, and with it the jobs. Answers of the disk threads wait in a queue
//! of [their own bound](disk): a slow network thread holds up new jobs.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`pools`] | memory under one limit |
//! | [`buffers`] | pieces under way |
//! | [`disk`], [`spill`] | threads that hash and write |
//! | [`readahead`] | reading ahead of what is sent |
//! | [`readers`] | who reads a content while it arrives, and what is needed when |
//! | [`live`] | the bytes of a live stream, as far back as its window goes |
//! | [`open`], [`recheck`] | files are opened; what is on disk already, or in doubt, is found out |
//! | [`kept`] | what peers told of contents, from run to run |
//! | [`watch`] | files that somebody edits are noticed, and looked at until they are the content again |

pub(crate) mod buffers;
pub(crate) mod disk;
pub(crate) mod kept;
pub(crate) mod live;
pub(crate) mod open;
pub(crate) mod pools;
pub(crate) mod readahead;
pub(crate) mod readers;
pub(crate) mod recheck;
pub(crate) mod spill;
pub(crate) mod watch;

use anabranch_content::storage::{ErrorKind, Op, StorageError};

/// Whether the cause of a failure goes away while one waits for it.
pub(crate) fn may_pass(error: &StorageError) -> bool {
    match error.kind {
        ErrorKind::DiskFull | ErrorKind::TooManyOpenFiles => true,
        // Where something cannot be made, nothing vanished: there is no such place (/proc).
        ErrorKind::Vanished => error.op != Op::Create,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
