//! UDP over plain IP, as noq wants it: noq's own system calls, but no burst longer than the kernel takes.

#![allow(unsafe_code)]

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use noq::udp::{RecvMeta, Transmit, UdpSocketState};
use noq::{AsyncUdpSocket, UdpSender};
use tokio::io::Interest;

/// Longest burst, in bytes: with its headers it is one IP packet to the kernel.
const BURST_LEN_MAX: usize = 65_507;
/// Kernel buffers, in bytes: as much as one connection's window may send at once.
const SOCKET_BUFFER: usize = 32 * 1024 * 1024;

/// What is received at once, in bytes. noq puts it into one piece of memory, which is there for as long as any packet in it waits
/// for its reader: the more packets are in it, the more does one that waits hold. A quarter of this costs some hundredths of the rate (`make
/// bench ROWS=quic`), and more of it brings none.
const RECEIVED_AT_ONCE: usize = 512 * 1024;

/// How many buffers to receive into at once, of those that were offered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Batch {
    /// The longest train of packets in the last one.
    train_len: usize,
}

impl Batch {
    pub(super) fn buffers(self, offered: usize) -> usize {
        (RECEIVED_AT_ONCE / self.train_len.max(1)).clamp(1, offered)
    }

    pub(super) fn received(&mut self, trains: impl Iterator<Item = usize>) {
        self.train_len = trains.max().unwrap_or(self.train_len);
    }
}

/// A UDP socket that noq sends and receives with.
#[derive(Clone, Debug)]
pub(super) struct UdpPort {
    io: Arc<tokio::net::UdpSocket>,
    state: Arc<UdpSocketState>,
    batch: Batch,
}

impl UdpPort {
    /// Binds to `address`. Within a tokio runtime.
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        set_buffers(&socket);
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self {
            io: Arc::new(tokio::net::UdpSocket::from_std(socket)?),
            state: Arc::new(state),
            batch: Batch::default(),
        })
    }
}

impl AsyncUdpSocket for UdpPort {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(PortSender { port: self.clone(), sent: 0, writable: None })
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let wanted = self.batch.buffers(bufs.len());
        let (bufs, metas) = (&mut bufs[..wanted], &mut metas[..wanted]);
        loop {
            ready!(self.io.poll_recv_ready(cx))?;
            match self.io.try_io(Interest::READABLE, || self.state.recv((&self.io).into(), bufs, metas)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(received) => {
                    self.batch.received(metas[..received].iter().map(|meta| meta.len));
                    return Poll::Ready(Ok(received));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn max_receive_segments(&self) -> NonZeroUsize {
        self.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

/// One task's way to send.
struct PortSender {
    port: UdpPort,
    /// Bytes of the present transmit that went already.
    sent: usize,
    writable: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>>,
}

impl std::fmt::Debug for PortSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PortSender").field("port", &self.port).finish_non_exhaustive()
    }
}

impl UdpSender for PortSender {
    /// noq 1.4 gathers ten packets whatever their size, and takes the kernel's refusal of more than 64 KiB for a packet that
    /// was lost on the way. So bursts are cut to size here.
    fn poll_send(self: Pin<&mut Self>, transmit: &Transmit<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let segment_len = transmit.segment_size.unwrap_or(transmit.contents.len()).max(1);
        let burst_len = (BURST_LEN_MAX / segment_len).max(1) * segment_len;
        while this.sent < transmit.contents.len() {
            if let Some(writable) = &mut this.writable {
                let is_writable = ready!(writable.as_mut().poll(cx));
                this.writable = None;
                is_writable?;
            }
            let left = &transmit.contents[this.sent..];
            let contents = &left[..left.len().min(burst_len)];
            let burst = Transmit {
                destination: transmit.destination,
                ecn: transmit.ecn,
                contents,
                segment_size: transmit.segment_size.filter(|segment_len| contents.len() > *segment_len),
                src_ip: transmit.src_ip,
            };
            let port = &this.port;
            match port.io.try_io(Interest::WRITABLE, || port.state.try_send((&port.io).into(), &burst)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let io = Arc::clone(&port.io);
                    this.writable = Some(Box::pin(async move { io.writable().await }));
                }
                // Whatever else the kernel says of a packet, it is lost: larger than the link (a probe), or nobody there. QUIC
                // notices as it notices any loss.
                _ => this.sent += contents.len(),
            }
        }
        this.sent = 0;
        Poll::Ready(Ok(()))
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
        self.port.state.max_gso_segments()
    }
}

/// Asks for large buffers: by the way that root has, else up to the system's limit, which is what remains of a refusal.
fn set_buffers(socket: &UdpSocket) {
    use std::os::fd::AsRawFd;
    let len = SOCKET_BUFFER as libc::c_int;
    for (forced, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
        for option in [forced, plain] {
            // SAFETY: the pointer and length describe `len`.
            let result = unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_SOCKET,
                    option,
                    (&raw const len).cast(),
                    size_of_val(&len) as libc::socklen_t,
                )
            };
            if result == 0 {
                break;
            }
        }
    }
}
