//! A live stream is fed by its source, and read by those who watch.
//!
//! A [`LiveReader`] begins where a viewer does who comes now, and goes on with the stream. One that is too slow for it, or that lacks
//! what never came, is told how much was left out; wrong bytes it never gets.

use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::events::ContentId;
use crate::session::{Contents, Handle, ReadError};
use crate::store::live::{LiveLook, LivePlace};
use crate::transfer::LiveState;
use crate::transfer::live::LiveTransfer;

/// How often one who waits looks whether that has been too long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Reads a live stream.
pub struct LiveReader {
    handle: Handle,
    id: ContentId,
    place: LivePlace,
}

/// What comes next of a live stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveRead {
    /// Its next bytes.
    Bytes {
        /// One at least.
        bytes: Vec<u8>,
        /// How long ago they were signed, by the clocks of the source and of this machine.
        age: Option<Duration>,
    },
    /// So many chunks are left out: they were forgotten before they were read, or never came.
    Skipped(u64),
    /// The source began anew: what follows has nothing to do with what was before.
    Restarted,
    /// The source ended the stream.
    End,
}

impl Contents {
    /// Gives the source of a live stream its next bytes.
    pub fn push_live(&self, id: ContentId, bytes: &[u8]) {
        if let Some(content) = self.get(id)
            && let Some(live) = content.as_live()
        {
            live.push(bytes, Instant::now());
        }
    }

    /// Ends a live stream, as its source. It is given to those who lack some of it as long as it is in the session.
    pub fn end_live(&self, id: ContentId) {
        if let Some(content) = self.get(id)
            && let Some(live) = content.as_live()
        {
            live.finish(Instant::now());
        }
    }

    /// How a live stream fares; `None` where there is none of this number.
    pub fn live_state(&self, id: ContentId) -> Option<LiveState> {
        self.get(id)?.as_live().map(LiveTransfer::state)
    }
}

impl Handle {
    /// A reader of a live stream, which begins where a viewer does who comes when it reads first.
    pub fn live_reader(&self, id: ContentId) -> LiveReader {
        LiveReader { handle: self.clone(), id, place: LivePlace::default() }
    }

    /// The same for who plays what it reads: it begins as far behind the source as all play
    /// ([`PLAY_BEHIND`](anabranch_ppspp::swarm::PLAY_BEHIND)), and has what came until then in hand.
    pub fn live_player(&self, id: ContentId) -> LiveReader {
        LiveReader { handle: self.clone(), id, place: LivePlace::of_player() }
    }
}

impl LiveReader {
    /// What comes next: up to `len_max` bytes, where the next chunk is no longer. Waits for it; dropping this ends that.
    ///
    /// # Errors
    /// There is no such stream, or nothing more comes of it.
    pub async fn read(&mut self, len_max: usize) -> Result<LiveRead, ReadError> {
        let (id, place) = (self.id, self.place);
        let looked = self.handle.ask_while_wanted(move |contents| {
            let content = contents.get(id).map(|content| Rc::downgrade(&content));
            async move { next(content.ok_or(ReadError::Gone)?, place, len_max).await }
        });
        let (look, age) = looked.await.map_err(|_| ReadError::Gone)??;
        Ok(match look {
            LiveLook::Chunks(chunks, place) => {
                self.place = place;
                LiveRead::Bytes { bytes: chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect(), age }
            }
            LiveLook::Skipped(chunks, place) => {
                self.place = place;
                LiveRead::Skipped(chunks)
            }
            LiveLook::Restarted(place) => {
                self.place = place;
                LiveRead::Restarted
            }
            LiveLook::End => LiveRead::End,
            LiveLook::Over | LiveLook::Missing(_) => return Err(ReadError::Over),
        })
    }
}

/// Waits until there is something at `place`.
async fn next(
    content: std::rc::Weak<dyn crate::transfer::Transfer>,
    mut place: LivePlace,
    len_max: usize,
) -> Result<(LiveLook, Option<Duration>), ReadError> {
    loop {
        let notify = {
            let content = content.upgrade().ok_or(ReadError::Gone)?;
            let live = content.as_live().ok_or(ReadError::Unknown)?;
            Rc::clone(&live.window().borrow().arrived)
        };
        let mut arrived = pin!(notify.notified());
        arrived.as_mut().enable();
        {
            let content = content.upgrade().ok_or(ReadError::Gone)?;
            let live = content.as_live().ok_or(ReadError::Unknown)?;
            let now = Instant::now();
            let look = live.window().borrow().look(place, len_max, now);
            match look {
                LiveLook::Missing(waiting) => place = waiting,
                LiveLook::Skipped(_, to) => {
                    to.chunk.iter().for_each(|chunk| live.skip_to(*chunk, now));
                    return Ok((look, None));
                }
                LiveLook::Chunks(_, to) => return Ok((look, to.chunk.and_then(|next| live.age(next - 1)))),
                look => return Ok((look, None)),
            }
        }
        let _ = tokio::time::timeout(LOOK_EVERY, arrived).await;
    }
}
