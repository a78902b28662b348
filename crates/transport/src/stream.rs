//! One face for streams over TCP, uTP and QUIC, encrypted or not, so that a driver has the same calls for all.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll};

use anabranch_paths::{Endpoint, PathPeer};

use crate::{
    EncryptedStream, MemoryStream, NodeId, QuicEndpoint, QuicStream, StreamStats, TcpListener, TcpStream, UtpEndpoint,
    UtpStream,
};

/// A connection, bound to the path it was opened on for its whole life.
#[derive(Debug)]
pub enum Stream {
    /// Over plain IP.
    Tcp(TcpStream),
    /// Over plain IP, in UDP packets.
    Utp(UtpStream),
    /// Over plain IP or SCION.
    Quic(Box<QuicStream>),
    /// Over one of the others, through ciphers that both ends agreed on.
    Encrypted(Box<EncryptedStream>),
    /// Within this thread.
    Memory(MemoryStream),
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<UtpStream> for Stream {
    fn from(stream: UtpStream) -> Self {
        Self::Utp(stream)
    }
}

impl From<QuicStream> for Stream {
    fn from(stream: QuicStream) -> Self {
        Self::Quic(Box::new(stream))
    }
}

impl From<MemoryStream> for Stream {
    fn from(stream: MemoryStream) -> Self {
        Self::Memory(stream)
    }
}

impl From<EncryptedStream> for Stream {
    fn from(stream: EncryptedStream) -> Self {
        Self::Encrypted(Box::new(stream))
    }
}

impl Stream {
    /// Who is at the other end, and over which path.
    pub fn peer(&self) -> &PathPeer {
        match self {
            Self::Tcp(stream) => stream.peer(),
            Self::Utp(stream) => stream.peer(),
            Self::Quic(stream) => stream.peer(),
            Self::Encrypted(stream) => stream.inner().peer(),
            Self::Memory(stream) => stream.peer(),
        }
    }

    /// What it runs over.
    pub fn transport(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "tcp",
            Self::Utp(_) => "utp",
            Self::Quic(_) => "quic",
            Self::Encrypted(stream) => stream.inner().transport(),
            Self::Memory(_) => "memory",
        }
    }

    /// The key that the other end proved, where the transport asks for one.
    pub fn node_id(&self) -> Option<NodeId> {
        match self {
            Self::Tcp(_) | Self::Utp(_) | Self::Memory(_) => None,
            Self::Quic(stream) => Some(stream.node_id()),
            Self::Encrypted(stream) => stream.inner().node_id(),
        }
    }

    /// Receives into `buffers`, in order. `Ok(0)` is the end of the stream; `WouldBlock` asks to wait.
    ///
    /// What comes short of the buffers leaves the stream drained: [`Stream::poll_recv_ready`] then waits for more.
    ///
    /// # Safety
    /// Every entry must describe memory that is valid for writes of its length and that nothing else touches during the call.
    pub unsafe fn try_recv(&self, buffers: &mut [libc::iovec]) -> io::Result<usize> {
        match self {
            // SAFETY: the caller vouches for the buffers.
            Self::Tcp(stream) => unsafe { stream.try_recv(buffers) },
            // SAFETY: the caller vouches for the buffers.
            Self::Utp(stream) => unsafe { stream.try_recv(buffers) },
            // SAFETY: the caller vouches for the buffers.
            Self::Quic(stream) => unsafe { stream.try_recv(buffers) },
            // SAFETY: the caller vouches for the buffers.
            Self::Encrypted(stream) => unsafe { stream.try_recv(buffers) },
            // SAFETY: the caller vouches for the buffers.
            Self::Memory(stream) => unsafe { stream.try_recv(buffers) },
        }
    }

    /// Sends from `buffers`, in order. With `more`, bytes may wait for those that follow at once.
    pub fn try_send(&self, buffers: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_send(buffers, more),
            Self::Utp(stream) => stream.try_send(buffers),
            Self::Quic(stream) => stream.try_send(buffers, more),
            Self::Encrypted(stream) => stream.try_send(buffers, more),
            Self::Memory(stream) => stream.try_send(buffers),
        }
    }

    /// Sends `len` bytes of `file` from `offset`, over TCP without copying them through this process where nothing encrypts them.
    /// `Ok(0)` means that the file ends before `offset`.
    pub fn try_send_file(&self, file: &File, offset: u64, len: usize) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_send_file(file, offset, len),
            Self::Utp(stream) => stream.try_send_file(file, offset, len),
            Self::Quic(stream) => stream.try_send_file(file, offset, len),
            Self::Encrypted(stream) => stream.try_send_file(file, offset, len),
            Self::Memory(stream) => stream.try_send_file(file, offset, len),
        }
    }

    /// Lets bytes gather until uncorked, so that headers and file bytes fill whole packets.
    pub fn set_cork(&self, corked: bool) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_cork(corked),
            Self::Utp(stream) => stream.set_cork(corked),
            Self::Quic(stream) => stream.set_cork(corked),
            Self::Encrypted(stream) => stream.inner().set_cork(corked),
            Self::Memory(_) => Ok(()),
        }
    }

    /// Over uTP, what is sent from now on leaves in other packets than what was before: some clients read by packets.
    pub fn end_packet(&self) {
        match self {
            Self::Utp(stream) => stream.end_packet(),
            Self::Encrypted(stream) => stream.inner().end_packet(),
            Self::Tcp(_) | Self::Quic(_) | Self::Memory(_) => {}
        }
    }

    /// Whether everything that was sent is on its way. If not, [`Stream::poll_send_ready`] has to be waited for, even
    /// if there is nothing more to send. TCP's bytes are the kernel's once they are taken, and uTP's its endpoint's.
    pub fn flush(&self) -> io::Result<bool> {
        match self {
            Self::Tcp(_) | Self::Utp(_) => Ok(true),
            Self::Quic(stream) => stream.flush(),
            Self::Encrypted(stream) => stream.flush(),
            Self::Memory(_) => Ok(true),
        }
    }

    /// Ready when [`Stream::try_recv`] may make progress.
    pub fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_recv_ready(cx),
            Self::Utp(stream) => stream.poll_recv_ready(cx),
            Self::Quic(stream) => stream.poll_recv_ready(cx),
            Self::Encrypted(stream) => stream.poll_recv_ready(cx),
            Self::Memory(stream) => stream.poll_recv_ready(cx),
        }
    }

    /// Ready when sending may make progress.
    pub fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_send_ready(cx),
            Self::Utp(stream) => stream.poll_send_ready(cx),
            Self::Quic(stream) => stream.poll_send_ready(cx),
            Self::Encrypted(stream) => stream.poll_send_ready(cx),
            Self::Memory(stream) => stream.poll_send_ready(cx),
        }
    }

    /// Round-trip time, window and losses of this path.
    pub fn stats(&self) -> io::Result<StreamStats> {
        match self {
            Self::Tcp(stream) => stream.stats(),
            Self::Utp(stream) => stream.stats(),
            Self::Quic(stream) => stream.stats(),
            Self::Encrypted(stream) => stream.inner().stats(),
            Self::Memory(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Accepts connections: over TCP, over uTP, over QUIC, over QUIC on SCION.
#[derive(Debug)]
pub enum Listener {
    /// Over TCP.
    Tcp(TcpListener),
    /// Over uTP; who dials from here has the same endpoint.
    Utp(Rc<UtpEndpoint>),
    /// Over QUIC; who dials from here has the same endpoint.
    Quic(Rc<QuicEndpoint>),
}

impl Listener {
    /// Where it listens.
    pub fn local(&self) -> io::Result<Endpoint> {
        match self {
            Self::Tcp(listener) => Ok(listener.local_addr().into()),
            Self::Utp(endpoint) => Ok(endpoint.local_addr().into()),
            Self::Quic(endpoint) => Ok(endpoint.local()),
        }
    }

    /// The next connection.
    pub async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(Stream::from),
            Self::Utp(endpoint) => Ok(endpoint.accept().await.into()),
            Self::Quic(endpoint) => {
                endpoint.accept().await.map(Stream::from).ok_or_else(|| io::ErrorKind::NotConnected.into())
            }
        }
    }
}
