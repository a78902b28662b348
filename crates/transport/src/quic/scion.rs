//! UDP over SCION, as noq wants it. noq tells packets apart by socket addresses; a route has one that stands for it.

use std::io::{self, IoSliceMut};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use anabranch_paths::{IsdAs, Path, ScionPath};
use anabranch_scion::socket::{RecvMeta as RouteMeta, RouteId, RouteInfo, Sender, Socket, Transmit as RouteTransmit};
use noq::udp::{EcnCodepoint, RecvMeta, Transmit};
use noq::{AsyncUdpSocket, UdpSender};

use super::udp::Batch;

/// Packets that are coalesced into one buffer at most.
const SEGMENTS: NonZeroUsize = NonZeroUsize::new(64).expect("is not zero");
/// Buffers filled in one call.
const BUFFERS_MAX: usize = 32;
/// The upper half of addresses that stand for routes (unique local, RFC 4193): none of them is ever sent to.
const PREFIX: u128 = 0xfd61_6e61_6272_616e << 64;
/// Any port but zero.
const PORT: u16 = 1;

/// The address that stands for a route.
pub(super) fn address_of(route: RouteId) -> SocketAddr {
    let address = Ipv6Addr::from(PREFIX | u128::from(route.to_bits()));
    SocketAddrV6::new(address, PORT, 0, 0).into()
}

/// The route that an address stands for.
pub(super) fn route_of(address: SocketAddr) -> RouteId {
    match address {
        SocketAddr::V6(address) => RouteId::from_bits(u128::from(*address.ip()) as u64),
        // Names no route: nothing is sent.
        SocketAddr::V4(_) => RouteId::from_bits(u64::MAX),
    }
}

/// What is known of the way that somebody came. A packet tells the interfaces' numbers, but only the ASes at its ends.
pub(super) fn path_of(local: IsdAs, info: &RouteInfo) -> Path {
    let mtu = u16::try_from(info.header_len + info.payload_len_max).unwrap_or(u16::MAX);
    let path = ScionPath {
        expiry: info.expiry.unwrap_or(std::time::SystemTime::UNIX_EPOCH),
        next_hop: Some(info.next_hop),
        ..ScionPath::told(local, info.remote.isd_as, &info.interfaces, mtu)
    };
    Path::scion(info.next_hop.ip(), info.remote.host.ip(), Arc::new(path))
}

/// A SCION socket that noq sends and receives with.
#[derive(Clone, Debug)]
pub(super) struct ScionPort {
    socket: Socket,
    batch: Batch,
}

impl ScionPort {
    pub(super) fn new(socket: Socket) -> Self {
        Self { socket, batch: Batch::default() }
    }
}

impl AsyncUdpSocket for ScionPort {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(PortSender(Mutex::new(self.socket.sender())))
    }

    fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut routes = [RouteMeta::default(); BUFFERS_MAX];
        let wanted = self.batch.buffers(bufs.len().min(BUFFERS_MAX));
        let filled = ready!(self.socket.poll_recv(cx, &mut bufs[..wanted], &mut routes))?;
        self.batch.received(routes[..filled].iter().map(|route| route.len));
        for (meta, route) in metas.iter_mut().zip(&routes[..filled]) {
            *meta = RecvMeta::default();
            (meta.addr, meta.len, meta.stride) = (address_of(route.route), route.len, route.segment_len);
            meta.ecn = EcnCodepoint::from_bits(route.ecn);
        }
        Poll::Ready(Ok(filled))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddrV6::new(Ipv6Addr::from(PREFIX), self.socket.local().host.port(), 0, 0).into())
    }

    fn max_receive_segments(&self) -> NonZeroUsize {
        SEGMENTS
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

/// One task's way to send. The lock is never contended; it makes the sender one that threads may share.
#[derive(Debug)]
struct PortSender(Mutex<Sender>);

impl UdpSender for PortSender {
    fn poll_send(self: Pin<&mut Self>, transmit: &Transmit<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sender = self.get_mut().0.get_mut().unwrap_or_else(PoisonError::into_inner);
        let burst = RouteTransmit {
            route: route_of(transmit.destination),
            payload: transmit.contents,
            segment_len: transmit.segment_size.unwrap_or(transmit.contents.len()).max(1),
            ecn: transmit.ecn.map_or(0, |ecn| ecn as u8),
        };
        // Whatever keeps a packet from leaving, a route that is gone or a probe larger than the path, it is lost: QUIC notices
        // as it notices any loss.
        sender.poll_send(cx, &[burst]).map(|_| Ok(()))
    }

    fn max_transmit_segments(&self) -> NonZeroUsize {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        NonZeroUsize::new(sender.segments_max()).unwrap_or(NonZeroUsize::MIN)
    }
}
