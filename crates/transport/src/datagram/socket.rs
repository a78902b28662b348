//! One socket of the system, its paths, and the ways to send and receive with it.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use anabranch_paths::{Endpoint, ScionAddr};
use anabranch_scion::socket::{BindError, bind_in_range};
use anabranch_udp::Options;
use anabranch_xdp::{Measurement, Port};

use super::error::PathError;
use super::path::Path;
use super::receiver::Receiver;
use super::sender::Sender;
use super::table::{PathKey, Table};
use super::xdp::XdpPort;

/// A socket of datagrams, over IP or over SCION. It never blocks, and never fragments; whoever waits for it does so with its
/// descriptor ([`AsFd`]), by `poll`, `epoll` or tokio's `AsyncFd`. Cheap to clone; threads may share it.
#[derive(Clone, Debug)]
pub struct Socket {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) udp: anabranch_udp::Socket,
    pub(super) local: Endpoint,
    table: RwLock<Table>,
    /// How often the table has changed: whoever remembers something of it forgets that when this moves.
    changes: AtomicU64,
    /// Interfaces whose frames go past the kernel.
    ports: RwLock<Vec<Arc<Port>>>,
}

impl Socket {
    /// Binds to `address` of this machine; an unspecified one serves all interfaces, and paths say which they leave by.
    ///
    /// # Errors
    /// The address is not of this machine, or taken.
    pub fn bind(address: SocketAddr) -> Result<Self, PathError> {
        let udp =
            anabranch_udp::Socket::bind(address, &options()).map_err(|source| PathError::Bind { address, source })?;
        let local = udp.local_addr().into();
        Ok(Self::new(udp, local))
    }

    /// Binds to a SCION address; port 0 takes a free one of `ports`, the range that the AS's routers deliver to
    /// ([`anabranch_scion::socket::DEFAULT_PORTS`] where the AS says nothing else).
    ///
    /// # Errors
    /// The address or port will not do, or is taken.
    pub fn bind_scion(local: ScionAddr, ports: RangeInclusive<u16>) -> Result<Self, PathError> {
        let bind = |local: ScionAddr| {
            let udp =
                anabranch_udp::Socket::bind(local.host, &options()).map_err(|error| BindError::Io(local, error))?;
            Ok(Self::new(udp, local.into()))
        };
        Ok(bind_in_range(local, ports, bind)?)
    }

    fn new(udp: anabranch_udp::Socket, local: Endpoint) -> Self {
        let (table, ports) = (RwLock::default(), RwLock::default());
        Self { shared: Arc::new(Shared { udp, local, table, changes: AtomicU64::new(0), ports }) }
    }

    /// The address that it is bound to.
    pub fn local(&self) -> Endpoint {
        self.shared.local
    }

    /// The same as one of SCION; `None` over IP.
    pub fn local_scion(&self) -> Option<ScionAddr> {
        self.shared.local.as_scion()
    }

    /// From now on received packets tell if they came by this path, and SCMP about it is handed up. A path that goes the same
    /// way as one added before takes its place, with fresh hop fields perhaps, and has the same key.
    ///
    /// # Errors
    /// It is of another network than the socket, or there are too many.
    pub fn add(&self, path: &Path) -> Result<PathKey, PathError> {
        self.check_network(path)?;
        let key = self.shared.write().add(path)?;
        self.shared.changes.fetch_add(1, Ordering::Release);
        Ok(key)
    }

    /// Takes a path out; false if it was gone. Senders over it go on.
    pub fn remove(&self, key: PathKey) -> bool {
        let removed = self.shared.write().remove(key);
        self.shared.changes.fetch_add(1, Ordering::Release);
        removed
    }

    /// Says which hosts are the routers of the AS. From then on nobody else, but the next hops of paths, hands over what comes
    /// from other ASes. Without any, everybody may.
    pub fn set_routers(&self, routers: impl IntoIterator<Item = IpAddr>) {
        self.shared.write().set_routers(routers);
        self.shared.changes.fetch_add(1, Ordering::Release);
    }

    /// From now on the frames of interface `name` go by AF_XDP, past the kernel's network layers: those for this socket, and those
    /// of its packets that leave by that interface. Senders and receivers that are made from now on use it; what cannot go this way
    /// (jumbo frames, fragments, other interfaces, neighbours that are not resolved yet) goes as before. One socket of an
    /// interface may do so.
    ///
    /// # Errors
    /// A capability is missing, or the interface does not do; everything goes as before then.
    pub fn attach_xdp(&self, name: &str) -> Result<XdpPort, anabranch_xdp::Error> {
        Ok(self.use_port(Port::attach(name, self.shared.udp.local_addr())?, None))
    }

    /// As [`Socket::attach_xdp`], if that is the faster way: where the driver does zero-copy, and a measurement of a third of
    /// a second says so. The measurement's frames are addressed to the interface itself.
    ///
    /// # Errors
    /// It is not, or cannot be used; everything goes as before then.
    pub fn attach_xdp_if_faster(&self, name: &str) -> Result<XdpPort, anabranch_xdp::Declined> {
        let (port, measured) = Port::attach_if_faster(name, self.shared.udp.local_addr())?;
        Ok(self.use_port(port, Some(measured)))
    }

    fn use_port(&self, port: Port, measured: Option<Measurement>) -> XdpPort {
        let report = XdpPort::new(&port, measured);
        self.shared.ports.write().unwrap_or_else(PoisonError::into_inner).push(Arc::new(port));
        report
    }

    /// A way to send over `path`, with buffers of its own.
    ///
    /// # Errors
    /// The path is of another network than the socket.
    pub fn sender(&self, path: &Path) -> Result<Sender, PathError> {
        self.check_network(path)?;
        Ok(Sender::new(self.shared.clone(), path.clone()))
    }

    /// A way to receive, with buffers of its own: a megabyte. Of several, each gets some of the packets.
    pub fn receiver(&self) -> Receiver {
        Receiver::new(self.shared.clone())
    }

    fn check_network(&self, path: &Path) -> Result<(), PathError> {
        let local = self.shared.local;
        match path.starts_at(local) {
            true => Ok(()),
            false => Err(PathError::OtherNetwork { path: path.to_string(), local: local.to_string() }),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.udp.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.shared.udp.as_raw_fd()
    }
}

impl Shared {
    // A panic elsewhere leaves no table half changed that matters: a path more or less.
    pub(super) fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ports(&self) -> Vec<Arc<Port>> {
        self.ports.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }
}

fn options() -> Options {
    Options { local_address: true, timestamps: true, ..Options::default() }
}
