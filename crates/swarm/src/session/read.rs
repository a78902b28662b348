//! A content is read while it arrives.
//!
//! A [`Reader`] goes through one file, on any thread. It gets bytes that were verified and written, and waits for those that are not
//! there yet: what it waits for is fetched before anything else, and what comes after that next (see [`crate::store::readers`]).
//! Nothing is ever made up: where a byte will not come, the reader is told so.
//!
//! The session's thread says what is there; the bytes are read from disk on the runtime of whoever reads, which must be tokio's.

use std::cell::RefCell;
use std::ops::Range;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Instant;

use anabranch_content::info::FileEntry;
use anabranch_content::storage::{Storage, StorageError};
use tokio::sync::oneshot;

use super::handle::Command;
use crate::events::ContentId;
use crate::session::{Contents, Handle};
use crate::store::open::blocking;
use crate::store::readers::{Look, READERS_MAX, Readable, follow};
use crate::transfer::ControlError;

/// Why something cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no such content, or none any more.
    #[error("the content is not in this session any more")]
    Gone,
    /// The content failed, and said why; or is leaving.
    #[error("nothing more comes of this content: it failed, or is being removed")]
    Over,
    /// It is not known yet what the content is.
    #[error("it is not known yet what the content is: wait for its metadata")]
    Unknown,
    /// There is no such file.
    #[error("the content has no file {0}")]
    NoSuchFile(usize),
    /// As many read it already as may.
    #[error("{READERS_MAX} readers read this content: end some of them")]
    TooMany,
    /// What is verified cannot be read from disk.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Reads one file of a content. Whatever it waits for is given up when it is dropped.
pub struct Reader {
    handle: Handle,
    id: ContentId,
    number: u64,
    /// Where the file is, in piece space.
    range: Range<u64>,
    /// Tells the session's thread, by its end, that the reader is gone.
    _present: oneshot::Sender<()>,
}

/// Bytes that are there.
struct There {
    storage: Arc<Storage>,
    range: Range<u64>,
}

impl Handle {
    /// A reader of a content's file, by its index in the file list. The file has to be wanted: nothing else is fetched.
    pub async fn reader(&self, id: ContentId, file: usize) -> Result<Reader, ReadError> {
        let (present, gone) = oneshot::channel::<()>();
        let (answer, joined) = oneshot::channel();
        let join: Command = Box::new(move |contents| {
            let joined = join(contents, id, file);
            let number = joined.as_ref().ok().map(|(number, _)| *number);
            // Whoever asked may be gone.
            let _ = answer.send(joined);
            let (number, content) = number.zip(contents.readable(id))?;
            let content = Rc::downgrade(&content);
            Some(Box::pin(async move {
                // Nothing is ever sent: it ends with the reader.
                let _ = gone.await;
                if let Some(content) = content.upgrade() {
                    let mut content = content.borrow_mut();
                    content.readers().leave(number);
                    follow(&mut *content, Instant::now());
                }
            }))
        });
        self.send(join).await.map_err(|_| ReadError::Gone)?;
        let (number, range) = joined.await.map_err(|_| ReadError::Gone)??;
        Ok(Reader { handle: self.clone(), id, number, range, _present: present })
    }

    /// See [`Contents::ahead`].
    pub async fn ahead(&self, id: ContentId, file: usize, offset: u64) -> Result<u64, ReadError> {
        self.ask(move |contents| contents.ahead(id, file, offset)).await.map_err(|_| ReadError::Gone)?
    }

    /// Answers with what `ask` comes to, unless nobody waits for that any more.
    pub(super) async fn ask_while_wanted<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        ask: impl FnOnce(&Contents) -> F + Send + 'static,
    ) -> Result<T, ControlError> {
        let (mut answer, answered) = oneshot::channel();
        let command: Command = Box::new(move |contents| {
            let asked = ask(contents);
            Some(Box::pin(async move {
                let done = tokio::select! {
                    biased;
                    () = answer.closed() => return,
                    done = asked => done,
                };
                let _ = answer.send(done);
            }))
        });
        self.send(command).await?;
        answered.await.map_err(|_| ControlError::Gone)
    }
}

impl Contents {
    /// Verified bytes of a content's file that lie together from `offset` on.
    pub fn ahead(&self, id: ContentId, file: usize, offset: u64) -> Result<u64, ReadError> {
        let content = self.readable(id).ok_or(ReadError::Gone)?;
        let content = content.borrow();
        let range = content.known().ok_or(ReadError::Unknown)?.files.get(file).map(FileEntry::range);
        let range = range.ok_or(ReadError::NoSuchFile(file))?;
        let from = range.start.saturating_add(offset).min(range.end);
        Ok(match content.look(from..range.end) {
            Look::There { end, .. } => end - from,
            Look::Missing | Look::Over => 0,
        })
    }
}

impl Reader {
    /// Bytes in the file.
    pub fn length(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Up to `len_max` bytes from `offset` on, one at least; none at the file's end. Waits until they are verified and on disk;
    /// dropping this ends that.
    pub async fn read(&mut self, offset: u64, len_max: usize) -> Result<Vec<u8>, ReadError> {
        let start = self.range.start.saturating_add(offset).min(self.range.end);
        let end = start.saturating_add(len_max as u64).min(self.range.end);
        if start == end {
            return Ok(Vec::new());
        }
        let (id, number, file_end) = (self.id, self.number, self.range.end);
        let there = self.handle.ask_while_wanted(move |contents| {
            let content = contents.readable(id).map(|content| Rc::downgrade(&content));
            async move { verified(content.ok_or(ReadError::Gone)?, number, start..end, file_end).await }
        });
        let There { storage, range } = there.await.map_err(|_| ReadError::Gone)??;
        let piece = storage.info().geometry.piece_at(range.start);
        let read = blocking(move || {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            // Looked at when it was read: a change before that is noticed.
            let read = storage.read_at(range.start, &mut bytes);
            read.and_then(|()| storage.check_seals(range.start, range.end - range.start)).map(|()| bytes)
        });
        let error = match read.await {
            Ok(bytes) => return Ok(bytes),
            Err(error) => error,
        };
        let reason = error.to_string();
        let tell = move |contents: &Contents| {
            if let Some(content) = contents.readable(id) {
                content.borrow_mut().unreadable(piece, &reason);
            }
        };
        // A session that ended needs no word of it.
        let _ = self.handle.ask(tell).await;
        Err(error.into())
    }
}

fn join(contents: &Contents, id: ContentId, file: usize) -> Result<(u64, Range<u64>), ReadError> {
    let content = contents.readable(id).ok_or(ReadError::Gone)?;
    let mut content = content.borrow_mut();
    let info = content.known().ok_or(ReadError::Unknown)?;
    let entry = info.files.get(file).filter(|entry| entry.is_regular()).ok_or(ReadError::NoSuchFile(file))?;
    Ok((content.readers().join(Instant::now()).ok_or(ReadError::TooMany)?, entry.range()))
}

/// Waits until something is there at the beginning of `range`, of a file that ends at `file_end` of piece space.
async fn verified(
    content: Weak<RefCell<dyn Readable>>,
    reader: u64,
    range: Range<u64>,
    file_end: u64,
) -> Result<There, ReadError> {
    loop {
        let arrived = content.upgrade().ok_or(ReadError::Gone)?.borrow().arrived();
        // From here on nothing is missed that arrives.
        let mut arrived = pin!(arrived.notified());
        arrived.as_mut().enable();
        {
            let content = content.upgrade().ok_or(ReadError::Gone)?;
            let mut content = content.borrow_mut();
            let info = content.known().ok_or(ReadError::Unknown)?;
            let pieces = info.geometry.piece_at(range.start)..info.geometry.piece_at(file_end - 1) + 1;
            let now = Instant::now();
            if content.readers().moved(reader, pieces, now) {
                follow(&mut *content, now);
            }
            match content.look(range.clone()) {
                Look::There { storage, end } => return Ok(There { storage, range: range.start..end }),
                Look::Over => return Err(ReadError::Over),
                Look::Missing => {}
            }
        }
        arrived.await;
    }
}
