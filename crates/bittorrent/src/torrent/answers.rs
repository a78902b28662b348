//! Long answers to short questions: metadata (BEP 9) and Merkle hashes (BEP 52).
//!
//! Such an answer is up to a thousand times as long as its question. So it is made when it can be sent, and not before: a
//! peer that asks without reading holds a short list of what it asked, nothing more. And the driver takes answers as it takes
//! blocks, under the limits on uploads ([`Torrent::take_answer`]).

use std::time::Instant;

use super::{ConnId, Torrent};
use crate::extension::{Extension, MetadataMessage, MetadataServe};
use crate::wire::{Message, TreeRequest};

/// Answers that a peer may have waiting. Whoever asks for more is refused: fetchers ask for a few at a time.
pub(super) const ANSWERS_MAX: usize = 256;

/// What a peer is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A piece of the metadata.
    Metadata(u32),
    /// Hashes.
    Hashes(TreeRequest),
}

impl Torrent {
    /// Whether something waits for `id` that is under the limits on uploads: an answer or a block.
    pub fn has_upload(&self, id: ConnId) -> bool {
        self.conns.get(&id).is_some_and(|conn| !conn.uploads.is_empty() || !conn.answers.is_empty())
    }

    /// Writes the next long answer for `id` to the end of `into`, if there is one. It is to be sent, as [`Torrent::take_output`]'s
    /// messages are.
    pub fn take_answer(&mut self, id: ConnId, into: &mut Vec<u8>, now: Instant) -> bool {
        let Some(conn) = self.conns.get_mut(&id) else { return false };
        let Some(answer) = conn.answers.pop_front() else { return false };
        conn.last_sent = now;
        match answer {
            Answer::Metadata(piece) => self.write_metadata(id, piece, into),
            Answer::Hashes(request) => self.write_hashes(request, into),
        }
        true
    }

    /// Remembers what `id` is owed; `false` where it is owed enough already.
    pub(super) fn owe(&mut self, id: ConnId, answer: Answer) -> bool {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.answers.len() < ANSWERS_MAX) else { return false };
        conn.answers.push_back(answer);
        self.touch(id);
        true
    }

    pub(super) fn serve_metadata(&mut self, id: ConnId, piece: u32) {
        let known = self.known_info().filter(|info| !info.private);
        let there = known
            .is_some_and(|info| !matches!(MetadataServe(&info.source).piece(piece), MetadataMessage::Reject { .. }));
        if there && self.owe(id, Answer::Metadata(piece)) {
            return;
        }
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let Some(extension) = conn.extensions.get(Extension::Metadata) else { return };
        let refusal = MetadataMessage::Reject { piece }.encode();
        Message::Extended { id: extension, payload: &refusal }.encode(&mut conn.out);
        self.touch(id);
    }

    fn write_metadata(&self, id: ConnId, piece: u32, into: &mut Vec<u8>) {
        let extension = self.conns.get(&id).and_then(|conn| conn.extensions.get(Extension::Metadata));
        let (Some(info), Some(extension)) = (self.known_info().filter(|info| !info.private), extension) else { return };
        let answer = MetadataServe(&info.source).piece(piece).encode();
        Message::Extended { id: extension, payload: &answer }.encode(into);
    }
}
