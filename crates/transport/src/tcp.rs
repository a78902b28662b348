//! TCP over plain IP.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use anabranch_paths::{Endpoint, Path, PathPeer};
use tokio::io::Interest;

use crate::error::CONNECT_TIMEOUT;
use crate::{ConnectError, Interfaces, Proxy, StreamStats, Target, Via};

/// Connections the kernel may hold for us before we accept them.
const BACKLOG: u32 = 1024;
/// How often a listener at one interface looks whether that is still the same: the tunnel of a VPN is made anew each time it is up.
const INTERFACE_LOOKED_AT_EVERY: Duration = Duration::from_secs(1);

/// A TCP connection, bound to the path it was opened on.
#[derive(Debug)]
pub struct TcpStream {
    inner: tokio::net::TcpStream,
    peer: PathPeer,
}

impl TcpStream {
    /// Opens a connection to `endpoint`: by the way that `via` says, or where there is none, as the system's routes go.
    ///
    /// # Errors
    /// Where nobody answers or the system says no; with `via`, the error names it.
    pub async fn connect(endpoint: Endpoint, via: Option<&Via>) -> Result<Self, ConnectError> {
        let remote = endpoint.as_ip().ok_or(ConnectError::NotIp(endpoint))?;
        let attempt = async {
            let socket =
                if remote.is_ipv4() { tokio::net::TcpSocket::new_v4() } else { tokio::net::TcpSocket::new_v6() }?;
            if let Some(via) = via {
                leave_by(&socket, via)?;
            }
            Self::new(socket.connect(remote).await?)
        };
        let error = match tokio::time::timeout(CONNECT_TIMEOUT, attempt).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(source)) => ConnectError::Io { endpoint, source },
            Err(_) => ConnectError::TimedOut(endpoint),
        };
        Err(match via {
            Some(via) => ConnectError::Over { via: via.clone(), source: Box::new(error) },
            None => error,
        })
    }

    /// Opens a connection to `endpoint` through `proxy`. As far as anybody here can tell it leads straight to there.
    ///
    /// # Errors
    /// Where the proxy cannot be reached, or does not go there.
    pub async fn connect_through(proxy: &Proxy, endpoint: Endpoint) -> Result<Self, ConnectError> {
        let remote = endpoint.as_ip().ok_or(ConnectError::NotIp(endpoint))?;
        let attempt = async {
            let inner = proxy.connect(Target::Address(remote)).await?;
            inner.set_nodelay(true)?;
            let path = Path::ip(inner.local_addr()?.ip(), remote.ip());
            Ok(Self { inner, peer: PathPeer::new(endpoint, path) })
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, attempt).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(source)) => Err(ConnectError::Io { endpoint, source }),
            Err(_) => Err(ConnectError::TimedOut(endpoint)),
        }
    }

    fn new(inner: tokio::net::TcpStream) -> io::Result<Self> {
        // Requests and have messages are small and urgent; bulk data is corked explicitly.
        inner.set_nodelay(true)?;
        let remote = inner.peer_addr()?;
        let path = Path::ip(inner.local_addr()?.ip(), remote.ip());
        Ok(Self { inner, peer: PathPeer::new(remote.into(), path) })
    }

    /// Who is at the other end, and over which path.
    pub fn peer(&self) -> &PathPeer {
        &self.peer
    }

    /// The connection as others of tokio's tasks read and write it.
    pub fn into_inner(self) -> tokio::net::TcpStream {
        self.inner
    }

    /// Receives into `buffers`, in order. `Ok(0)` is the end of the stream; `WouldBlock` asks to wait.
    ///
    /// What comes short of the buffers leaves the socket drained: [`TcpStream::poll_recv_ready`] then waits for more.
    ///
    /// # Safety
    /// Every entry must describe memory that is valid for writes of its length and that nothing else touches during the call.
    pub unsafe fn try_recv(&self, buffers: &mut [libc::iovec]) -> io::Result<usize> {
        let room: usize = buffers.iter().map(|buffer| buffer.iov_len).sum();
        let mut short = 0;
        let result = self.inner.try_io(Interest::READABLE, || {
            // SAFETY: the caller vouches for the buffers; the fd is open as long as `self`.
            let received =
                unsafe { libc::readv(self.inner.as_raw_fd(), buffers.as_ptr(), buffers.len() as libc::c_int) };
            match usize::try_from(received) {
                Err(_) => Err(io::Error::last_os_error()),
                Ok(received) if 0 < received && received < room => {
                    // Readiness is edge-triggered: what arrives from here on, the end of the stream too, is told anew. Said
                    // in the same breath as the read, so that no newer event is thrown away.
                    short = received;
                    Err(io::ErrorKind::WouldBlock.into())
                }
                Ok(received) => Ok(received),
            }
        });
        if short > 0 { Ok(short) } else { result }
    }

    /// Sends from `buffers`, in order. With `more`, the kernel may hold back a short last segment: more follows at once.
    pub fn try_send(&self, buffers: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        let flags = libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
        self.inner.try_io(Interest::WRITABLE, || {
            // SAFETY: all zeros is a valid msghdr; `IoSlice` is ABI-compatible with `iovec`, and sendmsg does not write through it.
            let sent = unsafe {
                let mut message: libc::msghdr = std::mem::zeroed();
                message.msg_iov = buffers.as_ptr().cast_mut().cast();
                message.msg_iovlen = buffers.len();
                libc::sendmsg(self.inner.as_raw_fd(), &raw const message, flags)
            };
            usize::try_from(sent).map_err(|_| io::Error::last_os_error())
        })
    }

    /// Sends `len` bytes of `file` from `offset` without copying them through this process.
    /// `Ok(0)` means that the file ends before `offset`.
    pub fn try_send_file(&self, file: &File, offset: u64, len: usize) -> io::Result<usize> {
        self.inner.try_io(Interest::WRITABLE, || {
            let mut offset = offset as libc::off_t;
            // SAFETY: both descriptors are open for the duration of the call, and `offset` is a local.
            let sent =
                unsafe { libc::sendfile(self.inner.as_raw_fd(), file.as_fd().as_raw_fd(), &raw mut offset, len) };
            usize::try_from(sent).map_err(|_| io::Error::last_os_error())
        })
    }

    /// Holds back short segments until uncorked, so that headers and file bytes fill whole ones.
    pub fn set_cork(&self, corked: bool) -> io::Result<()> {
        let value = libc::c_int::from(corked);
        // SAFETY: the pointer and length describe `value`.
        let result = unsafe {
            libc::setsockopt(
                self.inner.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_CORK,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Ready when [`TcpStream::try_recv`] may make progress.
    pub fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_read_ready(cx)
    }

    /// Ready when sending may make progress.
    pub fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_write_ready(cx)
    }

    /// Round-trip time, window and losses of this path, as the kernel sees them.
    pub fn stats(&self) -> io::Result<StreamStats> {
        StreamStats::of_tcp(self.inner.as_fd())
    }
}

/// Binds a socket to the interface and the address of `via`.
fn leave_by(socket: &tokio::net::TcpSocket, via: &Via) -> io::Result<()> {
    if !via.is_local {
        match socket.bind_device(Some(via.interface.as_bytes())) {
            // Before Linux 5.7, and in some sandboxes, that takes a privilege. The address alone does where routes heed it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            result => result?,
        }
    }
    socket.bind(match via.source {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, 0, 0, via.index).into(),
        ip => SocketAddr::new(ip, 0),
    })
}

/// Accepts connections.
#[derive(Debug)]
pub struct TcpListener {
    inner: RefCell<Rc<tokio::net::TcpListener>>,
    address: SocketAddr,
    interface: Option<BoundInterface>,
}

/// The interface that a listener is bound to. The kernel goes by its number, and forgets the name.
#[derive(Debug)]
struct BoundInterface {
    name: String,
    index: Cell<u32>,
}

impl TcpListener {
    /// Listens on `address`; port 0 lets the system choose.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let inner = Self::listen(address, None)?;
        Ok(Self { address: inner.local_addr()?, inner: RefCell::new(Rc::new(inner)), interface: None })
    }

    /// Listens on `address` for those alone who come in by `interface`; what they are answered leaves by it too.
    ///
    /// # Errors
    /// Before Linux 5.7, and in some sandboxes, this takes a privilege.
    pub fn bind_to(address: SocketAddr, interface: &str) -> io::Result<Self> {
        let bound = BoundInterface { name: interface.to_owned(), index: Cell::new(index_of(interface).unwrap_or(0)) };
        let inner = Self::listen(address, Some(interface))?;
        Ok(Self { address: inner.local_addr()?, inner: RefCell::new(Rc::new(inner)), interface: Some(bound) })
    }

    fn listen(address: SocketAddr, interface: Option<&str>) -> io::Result<tokio::net::TcpListener> {
        let socket = if address.is_ipv4() { tokio::net::TcpSocket::new_v4() } else { tokio::net::TcpSocket::new_v6() }?;
        // A restart must not wait for the old connections' TIME_WAIT.
        socket.set_reuseaddr(true)?;
        if let Some(interface) = interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        socket.bind(address)?;
        socket.listen(BACKLOG)
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The next connection.
    pub async fn accept(&self) -> io::Result<TcpStream> {
        loop {
            let inner = Rc::clone(&self.inner.borrow());
            let pause = async {
                match &self.interface {
                    Some(_) => tokio::time::sleep(INTERFACE_LOOKED_AT_EVERY).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                accepted = inner.accept() => return TcpStream::new(accepted?.0),
                () = pause => self.follow_interface(),
            }
        }
    }

    /// Listens anew where an interface of the same name has come in place of the one that it was bound to.
    fn follow_interface(&self) {
        let Some(bound) = &self.interface else { return };
        let Some(index) = index_of(&bound.name).filter(|index| *index != bound.index.get()) else { return };
        // What fails now is tried again.
        if let Ok(inner) = Self::listen(self.address, Some(&bound.name)) {
            bound.index.set(index);
            self.inner.replace(Rc::new(inner));
        }
    }
}

/// The number that the system gives an interface.
fn index_of(name: &str) -> Option<u32> {
    let interfaces = Interfaces::new(&[]).ok()?;
    interfaces.list().iter().find(|interface| interface.name == name).map(|interface| interface.index)
}
