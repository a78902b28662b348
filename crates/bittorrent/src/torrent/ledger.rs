//! Who was asked for which block, what is arriving, and what is here: the only place where that changes.
//!
//! | question | who answers |
//! | --- | --- |
//! | Who was asked for this block? Is it here, and from whom? | the [`Picker`] |
//! | What was this connection asked for, in which order, since when? | its [`Requests`](crate::requests::Requests) |
//! | What is arriving over it, and may it be written? | its [`Arriving`], which the driver holds |
//! | How much is under way over all connections? | [`Torrent::requested_bytes`] |
//!
//! A change of one is a change of the others, and so made here, once: a request is [asked](Ledger::ask), and then finished, or
//! taken back. The pipeline keeps nothing of the kind; it is told.

use std::time::Instant;

use super::conn::Conn;
use super::requests::accepts;
use super::{Event, Torrent};
use crate::ConnId;
use crate::picker::{BlockRef, Picker, Received};
use crate::requests::{Answers, Arriving, blocks_of};
use crate::wire::{BlockRange, Message};

/// One connection's part of it.
pub(super) struct Ledger<'a> {
    pub id: ConnId,
    pub conn: &'a mut Conn,
    pub picker: Option<&'a mut Picker>,
    pub requested_bytes: &'a mut u64,
}

/// Why a request is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakenBack {
    /// The peer refuses: somebody else is asked first.
    Refused,
    /// Others will bring it, or have: the peer is told, and is not to blame.
    Cancelled,
}

/// A block that counted.
struct FinishedBlock {
    completes_piece: bool,
    /// Who was asked for blocks of it too, be it over the same connection.
    copies: Vec<(ConnId, BlockRef)>,
}

impl Torrent {
    pub(super) fn ledger(&mut self, id: ConnId) -> Option<Ledger<'_>> {
        let conn = self.conns.get_mut(&id)?;
        let picker = self.content.as_mut().and_then(|content| content.picker.as_mut());
        Some(Ledger { id, conn, picker, requested_bytes: &mut self.requested_bytes })
    }

    /// The payload of a block is whole. `keep` makes it part of its piece, and answers whether it did; it is called only where
    /// the block is still wanted: meanwhile it may have come from somebody else, or the piece may have been given to another
    /// connection alone. What is not kept was thrown away. Answers whether it was kept.
    pub fn block_finished(&mut self, arriving: Arriving, now: Instant, keep: impl FnOnce(BlockRange) -> bool) -> bool {
        let range = arriving.range();
        let Some(mut ledger) = self.ledger(arriving.conn()) else { return false };
        let Some(FinishedBlock { completes_piece, copies }) = ledger.finish(arriving, now, keep) else {
            self.stats.wasted_bytes += u64::from(range.len);
            return false;
        };
        if completes_piece {
            self.events.push_back(Event::PieceComplete { piece: range.piece });
        }
        for (other, block) in copies {
            self.cancel(other, block);
        }
        true
    }

    /// A block that came from somebody else is not needed from `id` any more (endgame).
    fn cancel(&mut self, id: ConnId, block: BlockRef) {
        let Some(mut ledger) = self.ledger(id) else { return };
        let Some(picker) = &ledger.picker else { return };
        let requests = &ledger.conn.requests;
        let covers = |range: &BlockRange| blocks_of(*range).contains(block);
        let mut all = requests.iter().enumerate();
        let Some((at, range)) = all.find(|(_, range)| covers(range) && !requests.is_arriving(*range)) else { return };
        // A longer request may hold blocks that are still missing: it runs its course.
        if blocks_of(range).any(|other| picker.is_missing(other)) {
            return;
        }
        ledger.take_back(at, TakenBack::Cancelled);
        self.touch(id);
    }
}

impl Ledger<'_> {
    /// Whether there is anything to fetch.
    pub(super) fn is_fetching(&self) -> bool {
        self.picker.is_some()
    }

    /// Asks for `range`, of which the picker handed out every block.
    pub(super) fn ask(&mut self, range: BlockRange, now: Instant) {
        if self.conn.requests.is_empty() {
            self.conn.busy_since = now;
        }
        Message::Request(range).encode(&mut self.conn.out);
        self.conn.requests.push(range, now);
        self.conn.pipeline.on_request(self.conn.requests.under_way(), now);
        *self.requested_bytes += u64::from(range.len);
    }

    /// Does not ask for `range`, of which the picker handed out every block.
    pub(super) fn hand_back(&mut self, range: BlockRange) {
        if let Some(picker) = &mut self.picker {
            blocks_of(range).for_each(|block| picker.withdrawn(self.id, block));
        }
    }

    /// The block is whole. `None` where it was thrown away.
    fn finish(
        &mut self,
        arriving: Arriving,
        now: Instant,
        keep: impl FnOnce(BlockRange) -> bool,
    ) -> Option<FinishedBlock> {
        let (id, range) = (self.id, arriving.range());
        let conn = &mut *self.conn;
        conn.rejected = 0;
        conn.timeouts = 0;
        let answers = conn.requests.finish(arriving);
        if let Answers::Request { sent_at } = answers {
            *self.requested_bytes -= u64::from(range.len);
            conn.pipeline.on_block(range.len, sent_at, conn.requests.under_way(), now);
            conn.waiting_since = (!conn.requests.is_empty()).then_some(now);
        }
        let picker = self.picker.as_mut()?;
        if conn.closing || !accepts(picker, id, range) || !keep(range) {
            if answers != Answers::Nothing {
                blocks_of(range).for_each(|block| picker.returned(id, block));
            }
            return None;
        }
        let mut kept = FinishedBlock { completes_piece: false, copies: Vec::new() };
        for block in blocks_of(range) {
            match picker.received(id, block) {
                Received::First { also_requested_from, piece_complete } => {
                    kept.copies.extend(also_requested_from.into_iter().map(|other| (other, block)));
                    kept.completes_piece |= piece_complete;
                    if answers == Answers::Nothing {
                        // It came late, and may have been asked for anew in another length.
                        kept.copies.push((id, block));
                    }
                }
                Received::Duplicate | Received::NotRequested => debug_assert!(false, "{block:?} was accepted"),
            }
        }
        Some(kept)
    }

    /// The request at `at` is not to be answered any more.
    pub(super) fn take_back(&mut self, at: usize, why: TakenBack) {
        let requests = &mut self.conn.requests;
        let taken = match why {
            TakenBack::Refused => requests.take_back(at),
            TakenBack::Cancelled => requests.give_up(at, true),
        };
        let Some(range) = taken else { return };
        *self.requested_bytes -= u64::from(range.len);
        if why == TakenBack::Cancelled {
            Message::Cancel(range).encode(&mut self.conn.out);
        }
        let Some(picker) = &mut self.picker else { return };
        match why {
            TakenBack::Refused => blocks_of(range).for_each(|block| picker.returned(self.id, block)),
            TakenBack::Cancelled => blocks_of(range).for_each(|block| picker.withdrawn(self.id, block)),
        }
    }

    /// All requests go back; should they be answered after all, the blocks are still welcome.
    pub(super) fn give_up_all(&mut self) {
        let requests = &mut self.conn.requests;
        if let Some(picker) = &mut self.picker {
            picker.withdrawn_all(self.id, requests.iter().flat_map(blocks_of));
        }
        *self.requested_bytes -= requests.bytes();
        requests.give_up_all();
    }

    /// The connection is gone, and its requests with it.
    pub(super) fn forget(self) {
        *self.requested_bytes -= self.conn.requests.bytes();
        if let Some(picker) = self.picker {
            picker.forget(self.id, self.conn.requests.iter().flat_map(blocks_of));
        }
    }
}
