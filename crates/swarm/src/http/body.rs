//! The bytes of an answer, as they are verified.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::mpsc;

use super::views::Viewing;
use crate::session::Reader;

/// Bytes read from disk at once.
const CHUNK_LEN: usize = 128 << 10;
/// Chunks that wait for the connection: one is sent while the next is read.
const CHUNKS_WAITING: usize = 1;

/// A part of an answer.
pub(super) enum Part {
    /// As it is.
    Text(Bytes),
    /// Of the file.
    File(Range<u64>),
}

impl Part {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Text(bytes) => bytes.len() as u64,
            Self::File(range) => range.end - range.start,
        }
    }
}

/// A body whose length is known from the start.
pub(super) struct Answer {
    left: u64,
    from: From,
}

enum From {
    Memory(Bytes),
    File(mpsc::Receiver<io::Result<Bytes>>),
}

impl Answer {
    /// What is at hand.
    pub(super) fn whole(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self { left: bytes.len() as u64, from: From::Memory(bytes) }
    }

    /// `parts`, one after the other, as they arrive. Whoever drops the answer ends that.
    pub(super) fn parts(parts: Vec<Part>, reader: Reader, viewing: Viewing) -> Self {
        let left = parts.iter().map(Part::len).sum();
        let (chunks, received) = mpsc::channel(CHUNKS_WAITING);
        tokio::spawn(bring(parts, reader, viewing, chunks));
        Self { left, from: From::File(received) }
    }
}

async fn bring(parts: Vec<Part>, mut reader: Reader, viewing: Viewing, chunks: mpsc::Sender<io::Result<Bytes>>) {
    for part in parts {
        let mut range = match part {
            Part::File(range) => range,
            Part::Text(bytes) => match chunks.send(Ok(bytes)).await {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        while !range.is_empty() {
            viewing.wants(range.start, Instant::now());
            let most = usize::try_from(range.end - range.start).unwrap_or(usize::MAX).min(CHUNK_LEN);
            let read = tokio::select! {
                biased;
                () = chunks.closed() => return,
                read = reader.read(range.start, most) => read,
            };
            let read = match read {
                Ok(bytes) if !bytes.is_empty() => Ok(Bytes::from(bytes)),
                Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => Err(io::Error::other(error)),
            };
            let count = read.as_ref().ok().map(|bytes| bytes.len() as u64);
            if let Some(count) = count {
                viewing.got(count, Instant::now());
                range.start += count;
            }
            if chunks.send(read).await.is_err() || count.is_none() {
                return;
            }
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let bytes = match &mut self.from {
            From::Memory(bytes) => Ok(std::mem::take(bytes)),
            From::File(received) => match received.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(read)) => read,
                // Promised and not brought: the connection is cut.
                Poll::Ready(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            },
        };
        Poll::Ready(Some(bytes.map(|bytes| {
            self.left = self.left.saturating_sub(bytes.len() as u64);
            Frame::data(bytes)
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
