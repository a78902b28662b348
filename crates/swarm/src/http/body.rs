//! The bytes of an answer, as they are verified.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::mpsc;

use super::views::Viewing;
use crate::session::{LiveRead, LiveReader, Reader};

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

/// A body whose length is known from the start, but that of a live stream.
pub struct Answer {
    /// Bytes that are promised and not brought yet; `None`: as many as there will be.
    left: Option<u64>,
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
        Self { left: Some(bytes.len() as u64), from: From::Memory(bytes) }
    }

    /// `parts`, one after the other, as they arrive. Whoever drops the answer ends that.
    pub(super) fn parts(parts: Vec<Part>, reader: Reader, viewing: Viewing) -> Self {
        let left = parts.iter().map(Part::len).sum();
        let (chunks, received) = mpsc::channel(CHUNKS_WAITING);
        tokio::spawn(bring(parts, reader, viewing, chunks));
        Self { left: Some(left), from: From::File(received) }
    }

    /// A live stream, until its source ends it.
    pub(super) fn live(reader: LiveReader, viewing: Viewing) -> Self {
        let (chunks, received) = mpsc::channel(CHUNKS_WAITING);
        tokio::spawn(bring_live(reader, viewing, chunks));
        Self { left: None, from: From::File(received) }
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

async fn bring_live(mut reader: LiveReader, viewing: Viewing, chunks: mpsc::Sender<io::Result<Bytes>>) {
    let mut position = 0;
    viewing.wants(position, Instant::now());
    loop {
        let read = tokio::select! {
            biased;
            () = chunks.closed() => return,
            read = reader.read(CHUNK_LEN) => read,
        };
        match read {
            Ok(LiveRead::Bytes { bytes, age }) => {
                let count = bytes.len() as u64;
                viewing.got(count, Instant::now());
                viewing.is_behind(age);
                position += count;
                if chunks.send(Ok(bytes.into())).await.is_err() {
                    return;
                }
                viewing.wants(position, Instant::now());
            }
            Ok(LiveRead::Skipped(count)) => viewing.skipped(count),
            Ok(LiveRead::Restarted) => {}
            Ok(LiveRead::End) => return,
            Err(error) => {
                let _ = chunks.send(Err(io::Error::other(error))).await;
                return;
            }
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.left == Some(0) {
            return Poll::Ready(None);
        }
        let bytes = match &mut self.from {
            From::Memory(bytes) => Ok(std::mem::take(bytes)),
            From::File(received) => match received.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(read)) => read,
                // A live stream's end; what was promised and not brought: the connection is cut.
                Poll::Ready(None) if self.left.is_none() => return Poll::Ready(None),
                Poll::Ready(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            },
        };
        Poll::Ready(Some(bytes.map(|bytes| {
            self.left = self.left.map(|left| left.saturating_sub(bytes.len() as u64));
            Frame::data(bytes)
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or(SizeHint::default(), SizeHint::with_exact)
    }
}
