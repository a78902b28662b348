//! A live stream's chunks: what its source makes of the bytes that it is given, and what a viewer keeps and hands on.

use std::rc::Rc;
use std::time::Instant;

use anabranch_ppspp::swarm::LiveEvent;

use super::Content;
use crate::events::{EventKind, FailureKind};
use crate::ppspp::signing::LIVE_CHUNK_LEN;

/// Bytes that are kept, of sources whose chunks are longer.
const WINDOW_BYTES_MAX: usize = 32 << 20;

impl Content {
    /// The source is given the stream's next bytes.
    pub(crate) fn push_live(&mut self, bytes: &[u8], now: Instant) {
        let Some(live) = self.live.as_mut().filter(|live| live.is_source && !live.is_ended) else { return };
        let full = live.unsigned.push(bytes, now);
        full.chunks(LIVE_CHUNK_LEN).for_each(|chunk| self.push_chunk(chunk, now));
        self.pump(now);
        self.wake.notify_one();
    }

    /// The source's stream ends here.
    pub(crate) fn end_live(&mut self, now: Instant) {
        let Some(live) = self.live.as_mut().filter(|live| live.is_source && !live.is_ended) else { return };
        live.is_ended = true;
        let rest = live.unsigned.take_all();
        rest.chunks(LIVE_CHUNK_LEN).for_each(|chunk| self.push_chunk(chunk, now));
        self.push_chunk(&[], now);
        while self.core.unsigned_chunks() > 0 && !self.stopping {
            self.push_chunk(&[], now);
        }
        self.pump(now);
        self.wake.notify_one();
    }

    fn push_chunk(&mut self, chunk: &[u8], now: Instant) {
        let Some(live) = &mut self.live else { return };
        match self.core.push(now, chunk) {
            Ok(number) => live.window.borrow_mut().insert(number, chunk),
            Err(error) => self.fail(FailureKind::Content, error.to_string()),
        }
    }

    /// What a slow source was given is cut into shorter chunks, so that it is signed in time. Answers when that is due.
    pub(super) fn sign_in_time(&mut self, now: Instant) -> Option<Instant> {
        let live = self.live.as_mut().filter(|live| live.is_source && !live.is_ended)?;
        let Some(group) = live.unsigned.take_due(now) else { return live.unsigned.due() };
        group.iter().for_each(|chunk| self.push_chunk(chunk, now));
        None
    }

    /// A chunk of the stream that holds.
    pub(super) fn keep_live(&mut self, chunk: u64, payload: &[u8]) {
        let Some(live) = &self.live else { return };
        let mut window = live.window.borrow_mut();
        window.insert(chunk, payload);
        let too_many = window.chunks_beyond(WINDOW_BYTES_MAX);
        drop(window);
        self.core.stored(chunk);
        if let Some(chunks) = too_many {
            self.core.keep_fewer(chunks - chunks / 8);
        }
    }

    /// Puts a run of chunks behind what is in the scratch, as [`Content::read`] does; answers where they begin.
    pub(super) fn put_live(
        &self,
        chunk: u64,
        run: usize,
        scratch: &mut Vec<u8>,
    ) -> Option<Vec<std::ops::Range<usize>>> {
        let window = self.live.as_ref()?.window.borrow();
        let mut bodies = Vec::with_capacity(run);
        for ahead in 0..run as u64 {
            let start = scratch.len();
            scratch.extend_from_slice(window.get(chunk + ahead)?);
            bodies.push(start..scratch.len());
        }
        Some(bodies)
    }

    /// What happened in the stream.
    pub(super) fn heed_live(&mut self, now: Instant) {
        let Some(live) = &self.live else { return };
        let window = Rc::clone(&live.window);
        while let Some(event) = self.core.live_event() {
            match event {
                LiveEvent::Tuned(chunk) => {
                    window.borrow_mut().begin(chunk, now + self.core.live_hold(chunk));
                    self.tell(EventKind::LiveJoined { chunk });
                }
                LiveEvent::Restarted => {
                    window.borrow_mut().restart();
                    self.tell(EventKind::LiveRestarted);
                }
                LiveEvent::Discarded(floor) => window.borrow_mut().discard_before(floor),
                LiveEvent::Stale(way) => {
                    let reason = "the newest that it has of the stream was signed long ago: the source has gone, or the clock \
                                  of this machine or of the source's is wrong";
                    self.tell_failure(way.remote, reason, (true, false), now);
                }
                LiveEvent::Twin(way) => self.tell(EventKind::LiveTwin { address: way.remote }),
            }
        }
        if let Some(entry) = self.core.live_entry() {
            window.borrow_mut().enter_at(entry);
        }
    }
}
