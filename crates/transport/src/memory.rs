//! A stream within a thread: both ends are here. For sources that are no peers, and are made to speak as one.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use anabranch_paths::PathPeer;

/// Bytes that one end may be ahead of the other.
const CAPACITY: usize = 256 * 1024;

/// One end of a stream within a thread.
#[derive(Debug)]
pub struct MemoryStream {
    peer: PathPeer,
    incoming: Rc<RefCell<Direction>>,
    outgoing: Rc<RefCell<Direction>>,
}

/// What was sent one way and not received yet.
#[derive(Debug, Default)]
struct Direction {
    bytes: VecDeque<u8>,
    /// An end is gone: nothing more comes, or is taken.
    is_closed: bool,
    receiver: Option<Waker>,
    sender: Option<Waker>,
}

impl MemoryStream {
    /// Both ends; each is told that the other one is `peer`.
    pub fn pair(peer: &PathPeer) -> (Self, Self) {
        let (one, other) = (Rc::<RefCell<Direction>>::default(), Rc::<RefCell<Direction>>::default());
        let end = |incoming: &Rc<_>, outgoing: &Rc<_>| Self {
            peer: peer.clone(),
            incoming: Rc::clone(incoming),
            outgoing: Rc::clone(outgoing),
        };
        (end(&one, &other), end(&other, &one))
    }

    /// See [`Stream::peer`](crate::Stream::peer).
    pub(crate) fn peer(&self) -> &PathPeer {
        &self.peer
    }

    /// See [`Stream::try_recv`](crate::Stream::try_recv).
    ///
    /// # Safety
    /// Every entry must describe memory that is valid for writes of its length and that nothing else touches during the call.
    pub(crate) unsafe fn try_recv(&self, buffers: &mut [libc::iovec]) -> io::Result<usize> {
        let mut direction = self.incoming.borrow_mut();
        if direction.bytes.is_empty() && !direction.is_closed {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut received = 0;
        for buffer in buffers {
            let mut filled = 0;
            while filled < buffer.iov_len && !direction.bytes.is_empty() {
                let (first, _) = direction.bytes.as_slices();
                let len = first.len().min(buffer.iov_len - filled);
                // SAFETY: the caller vouches for the entry, of which `filled` bytes are written; the source is this queue's own.
                unsafe {
                    std::ptr::copy_nonoverlapping(first.as_ptr(), buffer.iov_base.cast::<u8>().add(filled), len);
                }
                direction.bytes.drain(..len);
                filled += len;
            }
            received += filled;
        }
        if received > 0 {
            wake(&mut direction.sender);
        }
        Ok(received)
    }

    /// See [`Stream::try_send`](crate::Stream::try_send).
    pub(crate) fn try_send(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut direction = self.outgoing.borrow_mut();
        let mut room = direction.room()?;
        let mut sent = 0;
        for buffer in buffers {
            let len = buffer.len().min(room);
            direction.bytes.extend(&buffer[..len]);
            (room, sent) = (room - len, sent + len);
        }
        wake(&mut direction.receiver);
        Ok(sent)
    }

    /// See [`Stream::try_send_file`](crate::Stream::try_send_file).
    pub(crate) fn try_send_file(&self, file: &File, offset: u64, len: usize) -> io::Result<usize> {
        let room = self.outgoing.borrow().room()?;
        let mut portion = vec![0; len.min(room)];
        let len = file.read_at(&mut portion, offset)?;
        self.try_send(&[IoSlice::new(&portion[..len])])
    }

    /// See [`Stream::poll_recv_ready`](crate::Stream::poll_recv_ready).
    pub(crate) fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut direction = self.incoming.borrow_mut();
        if direction.is_closed || !direction.bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        direction.receiver = Some(cx.waker().clone());
        Poll::Pending
    }

    /// See [`Stream::poll_send_ready`](crate::Stream::poll_send_ready).
    pub(crate) fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut direction = self.outgoing.borrow_mut();
        if direction.is_closed || direction.bytes.len() < CAPACITY {
            return Poll::Ready(Ok(()));
        }
        direction.sender = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Direction {
    fn room(&self) -> io::Result<usize> {
        match CAPACITY.saturating_sub(self.bytes.len()) {
            _ if self.is_closed => Err(io::ErrorKind::BrokenPipe.into()),
            0 => Err(io::ErrorKind::WouldBlock.into()),
            room => Ok(room),
        }
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}

impl Drop for MemoryStream {
    fn drop(&mut self) {
        for direction in [&self.incoming, &self.outgoing] {
            let mut direction = direction.borrow_mut();
            direction.is_closed = true;
            wake(&mut direction.receiver);
            wake(&mut direction.sender);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_paths::Path;

    fn pair() -> (MemoryStream, MemoryStream) {
        let ip = std::net::Ipv4Addr::LOCALHOST.into();
        MemoryStream::pair(&PathPeer::new(std::net::SocketAddr::new(ip, 1).into(), Path::ip(ip, ip)))
    }

    fn receive(stream: &MemoryStream, lens: &[usize]) -> io::Result<Vec<u8>> {
        let mut parts: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
        let entry = |part: &mut Vec<u8>| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
        let mut entries: Vec<libc::iovec> = parts.iter_mut().map(entry).collect();
        // SAFETY: the entries describe `parts`, which outlive the call and are ours alone.
        let len = unsafe { stream.try_recv(&mut entries) }?;
        Ok(parts.concat()[..len].to_vec())
    }

    fn kind<T: std::fmt::Debug>(result: io::Result<T>) -> io::ErrorKind {
        result.unwrap_err().kind()
    }

    #[test]
    fn what_one_end_sends_the_other_receives_and_neither_runs_away() {
        let (one, other) = pair();
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(kind(receive(&other, &[9])), io::ErrorKind::WouldBlock);
        assert!(other.poll_recv_ready(&mut cx).is_pending());
        assert_eq!(one.try_send(&[IoSlice::new(b"ab"), IoSlice::new(b"cde")]).unwrap(), 5);
        assert!(other.poll_recv_ready(&mut cx).is_ready());
        assert_eq!(receive(&other, &[1, 3]).unwrap(), b"abcd");
        assert_eq!(receive(&other, &[9]).unwrap(), b"e");

        assert_eq!(one.try_send(&[IoSlice::new(&vec![7; CAPACITY + 1])]).unwrap(), CAPACITY);
        assert_eq!(kind(one.try_send(&[IoSlice::new(b"x")])), io::ErrorKind::WouldBlock);
        assert!(one.poll_send_ready(&mut cx).is_pending());
        assert_eq!(receive(&other, &[10]).unwrap().len(), 10);
        assert!(one.poll_send_ready(&mut cx).is_ready());
    }

    #[test]
    fn what_was_sent_before_the_end_arrives_and_nothing_after() {
        let (one, other) = pair();
        one.try_send(&[IoSlice::new(b"last")]).unwrap();
        drop(one);
        assert_eq!(receive(&other, &[9]).unwrap(), b"last");
        assert_eq!(receive(&other, &[9]).unwrap(), b"");
        assert_eq!(kind(other.try_send(&[IoSlice::new(b"x")])), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn files_are_read_as_far_as_there_is_room() {
        let (one, other) = pair();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![3; CAPACITY + 9], 0).unwrap();
        assert_eq!(one.try_send_file(&file, 4, usize::MAX >> 1).unwrap(), CAPACITY);
        assert_eq!(receive(&other, &[CAPACITY]).unwrap(), vec![3; CAPACITY]);
        assert_eq!(one.try_send_file(&file, CAPACITY as u64 + 9, 5).unwrap(), 0);
    }
}
