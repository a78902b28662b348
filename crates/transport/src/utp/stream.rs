//! One connection over uTP, as a stream.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use anabranch_paths::PathPeer;
use anabranch_utp::{ConnError, ConnId};

use super::{UtpEndpoint, over, pending};
use crate::StreamStats;

/// A connection over uTP, bound to the path it was opened on.
#[derive(Debug)]
pub struct UtpStream {
    endpoint: Rc<UtpEndpoint>,
    conn: ConnId,
    peer: PathPeer,
}

impl UtpStream {
    pub(super) fn new(endpoint: Rc<UtpEndpoint>, conn: ConnId, peer: PathPeer) -> Self {
        Self { endpoint, conn, peer }
    }

    /// Who is at the other end, and over which path.
    pub fn peer(&self) -> &PathPeer {
        &self.peer
    }

    /// Ready when the call was answered.
    pub(super) fn poll_open(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.endpoint.state.borrow_mut();
        if let Err(error) = state.core.read(self.conn) {
            return Poll::Ready(Err(over(error)));
        }
        let is_open = state.core.is_open(self.conn);
        if !is_open {
            state.wait(self.conn, |waiting| &mut waiting.send, cx);
        }
        pending(is_open)
    }

    /// Receives into `buffers`, in order. `Ok(0)` is the end of the stream; `WouldBlock` asks to wait.
    ///
    /// What comes short of the buffers leaves the stream drained: [`UtpStream::poll_recv_ready`] then waits for more.
    ///
    /// # Safety
    /// Every entry must describe memory that is valid for writes of its length and that nothing else touches during the call.
    pub unsafe fn try_recv(&self, buffers: &mut [libc::iovec]) -> io::Result<usize> {
        let mut state = self.endpoint.state.borrow_mut();
        let mut received = 0;
        for buffer in buffers {
            let mut filled = 0;
            while filled < buffer.iov_len {
                let bytes = match state.core.read(self.conn) {
                    Ok(Some([])) if received == 0 => return Err(io::ErrorKind::WouldBlock.into()),
                    Err(error) if received == 0 => return Err(over(error)),
                    Ok(Some(bytes @ [_, ..])) => bytes,
                    // It is told by the next call.
                    Ok(_) | Err(_) => {
                        self.endpoint.wake.notify_one();
                        return Ok(received);
                    }
                };
                let len = bytes.len().min(buffer.iov_len - filled);
                // SAFETY: the caller vouches for the buffer, of which `len` bytes are left behind `filled`; the source is the core's.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.iov_base.cast::<u8>().add(filled), len) };
                state.core.consume(self.conn, len);
                filled += len;
                received += len;
            }
        }
        self.endpoint.wake.notify_one();
        Ok(received)
    }

    /// Sends from `buffers`, in order. What there is leaves in full packets, once the caller's task has had its turn.
    pub fn try_send(&self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.endpoint.state.borrow_mut();
        let mut sent = 0;
        for buffer in buffers.iter().filter(|buffer| !buffer.is_empty()) {
            let taken = state.core.write(self.conn, buffer).map_err(over)?;
            sent += taken;
            if taken < buffer.len() {
                break;
            }
        }
        self.endpoint.wake.notify_one();
        if sent == 0 && buffers.iter().any(|buffer| !buffer.is_empty()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(sent)
    }

    /// Sends `len` bytes of `file` from `offset`, read straight into the memory that they are sent from. `Ok(0)` means that the file ends
    /// before `offset`.
    pub fn try_send_file(&self, file: &File, offset: u64, len: usize) -> io::Result<usize> {
        let mut state = self.endpoint.state.borrow_mut();
        let mut sent = 0;
        while sent < len {
            if state.core.write_room(self.conn).map_err(over)? == 0 {
                break;
            }
            let fill = |memory: &mut [u8]| file.read_at(memory, offset + sent as u64).map_err(Fill::Io);
            match state.core.write_with(self.conn, len - sent, fill) {
                Ok(0) => return Ok(sent),
                Ok(read) => sent += read,
                Err(Fill::Io(error)) if sent == 0 => return Err(error),
                Err(Fill::Over(error)) if sent == 0 => return Err(over(error)),
                Err(_) => break,
            }
        }
        self.endpoint.wake.notify_one();
        if sent == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(sent) }
    }

    /// What is sent from now on leaves in other packets than what was before.
    pub fn end_packet(&self) {
        self.endpoint.state.borrow_mut().core.end_packet(self.conn);
    }

    /// Holds back a short last packet until uncorked, so that headers and file bytes fill whole ones.
    pub fn set_cork(&self, corked: bool) -> io::Result<()> {
        self.endpoint.state.borrow_mut().core.set_cork(self.conn, corked);
        self.endpoint.wake.notify_one();
        Ok(())
    }

    /// Ready when [`UtpStream::try_recv`] may make progress.
    pub fn poll_recv_ready(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.endpoint.state.borrow_mut();
        let is_ready = !matches!(state.core.read(self.conn), Ok(Some([])));
        if !is_ready {
            state.wait(self.conn, |waiting| &mut waiting.recv, cx);
        }
        pending(is_ready)
    }

    /// Ready when sending may make progress.
    pub fn poll_send_ready(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.endpoint.state.borrow_mut();
        let is_ready = !matches!(state.core.write_room(self.conn), Ok(0));
        if !is_ready {
            state.wait(self.conn, |waiting| &mut waiting.send, cx);
        }
        pending(is_ready)
    }

    /// Round-trip time, window and losses of this path.
    pub fn stats(&self) -> io::Result<StreamStats> {
        let stats = self.endpoint.state.borrow().core.stats(self.conn).ok_or(io::ErrorKind::NotConnected)?;
        Ok(StreamStats::of_utp(&stats))
    }
}

/// Why nothing could be read to be sent.
enum Fill {
    Io(io::Error),
    Over(ConnError),
}

impl From<ConnError> for Fill {
    fn from(error: ConnError) -> Self {
        Self::Over(error)
    }
}

impl Drop for UtpStream {
    fn drop(&mut self) {
        let mut state = self.endpoint.state.borrow_mut();
        state.waiting.remove(&self.conn);
        state.core.close(Instant::now(), self.conn);
        self.endpoint.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use tokio::task::LocalSet;

    async fn send(stream: &UtpStream, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            poll_fn(|cx| stream.poll_send_ready(cx)).await.unwrap();
            match stream.try_send(&[IoSlice::new(bytes)]) {
                Ok(len) => bytes = &bytes[len..],
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
    }

    async fn receive(stream: &UtpStream, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut at = 0;
        while at < len {
            poll_fn(|cx| stream.poll_recv_ready(cx)).await.unwrap();
            let (one, other) = bytes[at..].split_at_mut((len - at) / 2);
            let entry = |part: &mut [u8]| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() };
            // SAFETY: the entries describe `bytes`, which outlives the call and is ours alone.
            match unsafe { stream.try_recv(&mut [entry(one), entry(other)]) } {
                Ok(0) => break,
                Ok(received) => at += received,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        bytes.truncate(at);
        bytes
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, test);
    }

    #[test]
    fn both_ends_hear_each_other_and_the_end() {
        run(async {
            for (address, from) in [("127.0.0.1:0", "127.0.0.1:0"), ("[::1]:0", "[::]:0"), ("127.0.0.1:0", "[::]:0")] {
                let listening = UtpEndpoint::bind(address.parse().unwrap(), true).unwrap();
                let dialling = UtpEndpoint::bind(from.parse().unwrap(), false).unwrap();
                for endpoint in [&listening, &dialling] {
                    tokio::task::spawn_local(Rc::clone(endpoint).run());
                }
                let payload: Vec<u8> = (0..3_000_000u32).map(|at| ((at * 7) >> 3) as u8).collect();
                let expected = payload.clone();
                let answering = tokio::task::spawn_local({
                    let listening = Rc::clone(&listening);
                    async move {
                        let stream = listening.accept().await;
                        let got = receive(&stream, expected.len()).await;
                        assert!(got == expected);
                        let file = tempfile::tempfile().unwrap();
                        file.write_all_at(&expected, 0).unwrap();
                        let mut at = 0;
                        while at < expected.len() {
                            poll_fn(|cx| stream.poll_send_ready(cx)).await.unwrap();
                            at += stream.try_send_file(&file, at as u64, expected.len() - at).unwrap_or(0);
                        }
                        assert_eq!(stream.try_send_file(&file, at as u64, 1).unwrap_or(0), 0);
                        stream.peer().clone()
                    }
                });
                let stream = dialling.connect(listening.local_addr().into(), None).await.unwrap();
                send(&stream, &payload).await;
                assert!(receive(&stream, payload.len() + 1).await == payload, "and then the end");
                let stats = stream.stats().unwrap();
                assert!(stats.sent_bytes == 3_000_000 && stats.mtu_bytes == 1472, "{stats:?}");
                let theirs = answering.await.unwrap();
                assert_eq!(theirs.path.local(), listening.local_addr().ip());
                assert_eq!(stream.peer().path.local(), theirs.path.local());
                drop(stream);
                dialling.close().await;
                assert!(dialling.state.borrow().core.is_empty());
            }
        });
    }

    #[test]
    fn a_call_that_is_given_up_leaves_nothing_and_one_that_is_refused_says_so() {
        run(async {
            let deaf = UtpEndpoint::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
            let dialling = UtpEndpoint::bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
            tokio::task::spawn_local(Rc::clone(&dialling).run());
            let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            let call = dialling.connect(silent.local_addr().unwrap().into(), None);
            assert!(tokio::time::timeout(std::time::Duration::from_millis(20), call).await.is_err());
            assert!(dialling.state.borrow().core.is_empty());
            tokio::task::spawn_local(Rc::clone(&deaf).run());
            let error = dialling.connect(deaf.local_addr().into(), None).await.unwrap_err();
            assert!(error.to_string().contains("refuses connections over uTP"), "{error}");
        });
    }
}
