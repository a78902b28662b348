//! A way to one remote socket, with everything that its packets have in common.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anabranch_paths::{Endpoint, ScionAddr, ScionPath};
use anabranch_scion_wire::{Address, Header, HeaderFields, HeaderTemplate, PathRef, Ports, udp};
use anabranch_udp::{DATAGRAM_LEN_MAX, interface_mtu};

use super::error::PathError;
use crate::Via;

/// Bytes of the IP and UDP headers.
const IPV4_HEADERS_LEN: usize = 20 + 8;
const IPV6_HEADERS_LEN: usize = 40 + 8;

/// A way to one remote socket: over IP, the interface and the source address; over SCION, the path between the ASes.
///
/// Cheap to clone. Two paths to one socket that go the same way are the same to [`super::Socket::add`], whatever their hop
/// fields.
#[derive(Clone)]
pub struct Path(Arc<Inner>);

struct Inner {
    name: Arc<str>,
    remote: Endpoint,
    mtu_claimed: u16,
    network: Network,
}

/// What differs between the networks.
pub(super) enum Network {
    Ip {
        to: SocketAddr,
        /// The source address; `None` leaves it to the system.
        from: Option<IpAddr>,
        /// The interface's number; 0 leaves it to the system.
        interface: u32,
    },
    Scion {
        local: ScionAddr,
        /// Whom packets are handed to: a border router, or the remote itself.
        next_hop: SocketAddr,
        template: HeaderTemplate,
        /// Numbers of the interfaces on the way, in order.
        interfaces: Box<[u16]>,
    },
}

impl Path {
    /// Over IP to `remote`; by the interface and from the address of `via`, or as the system's routes go. It claims the
    /// interface's MTU, or any.
    pub fn ip(remote: SocketAddr, via: Option<&Via>) -> Self {
        let mtu = via.and_then(|via| interface_mtu(&via.interface).ok());
        let mtu_claimed = mtu.and_then(|mtu| u16::try_from(mtu).ok()).unwrap_or(u16::MAX);
        let name = match via {
            Some(via) => format!("{via} > {remote}"),
            None => remote.to_string(),
        };
        // What stays on this machine goes over the loopback, whichever interface the address is of.
        let interface = via.filter(|via| !via.is_local).map_or(0, |via| via.index);
        let network = Network::Ip { to: remote, from: via.map(|via| via.source), interface };
        Self(Arc::new(Inner { name: name.into(), remote: remote.into(), mtu_claimed, network }))
    }

    /// The way back to `remote`, a packet of which came to the address `local` of this machine: by the interface of this number, or where it
    /// is 0, as the system's routes go. Nothing proves that it is there.
    pub fn back_ip(remote: SocketAddr, local: Option<IpAddr>, interface: u32) -> Self {
        let local = local.filter(|local| !local.is_unspecified());
        let name = local.map_or_else(|| remote.to_string(), |local| format!("{local} > {remote}"));
        let network = Network::Ip { to: remote, from: local, interface };
        Self(Arc::new(Inner { name: name.into(), remote: remote.into(), mtu_claimed: u16::MAX, network }))
    }

    /// The same way, from whatever address this machine has for it now: where the one that it had is gone. `None` where it leaves that to
    /// the system already, and over SCION, where the address is the socket's.
    pub fn from_any_address(&self) -> Option<Self> {
        let Network::Ip { to, from: Some(_), interface } = self.0.network else { return None };
        let network = Network::Ip { to, from: None, interface };
        let Inner { remote, mtu_claimed, .. } = *self.0;
        Some(Self(Arc::new(Inner { name: remote.to_string().into(), remote, mtu_claimed, network })))
    }

    /// Over SCION from the socket at `local` to the one at `remote`. It claims the path's MTU; zero is one that nobody told.
    ///
    /// # Errors
    /// Path and addresses do not belong together.
    pub fn scion(local: ScionAddr, remote: ScionAddr, path: &ScionPath) -> Result<Self, PathError> {
        if path.source != local.isd_as || path.destination != remote.isd_as {
            return Err(PathError::Elsewhere { path: path.to_string(), local, remote });
        }
        let malformed = |source| PathError::Malformed { remote, source };
        let wire = PathRef::from_dataplane(&path.dataplane).map_err(malformed)?;
        let next_hop = match wire {
            PathRef::Empty if remote.isd_as == local.isd_as => path.next_hop.unwrap_or(remote.host),
            _ => path.next_hop.ok_or(PathError::NoNextHop(remote))?,
        };
        Self::build(local, remote, &wire, next_hop, path.mtu, path.to_string())
    }

    /// The way back to where a packet with these `headers` (SCION's and UDP's, as [`super::Batch::headers`] gives them) came from,
    /// which `from` handed over to the socket at `local`. Nothing proves that its sender is there: answer a stranger with less
    /// than was received until he has proved it. `mtu` is what packets may have, which one does not tell; zero: any.
    ///
    /// # Errors
    /// The path leads nowhere when turned round, or the sender has no address.
    pub fn back(local: ScionAddr, headers: &[u8], from: SocketAddr, mtu: u16) -> Result<Self, PathError> {
        let no_way = |reason| PathError::NoWayBack { from, reason };
        let header = Header::parse(headers).map_err(|_| no_way("it is malformed"))?;
        // UDP's header is the last one, whatever extensions are in between; the source's port comes first in it.
        let udp = headers[header.as_bytes().len()..].last_chunk::<{ udp::HEADER_LEN }>();
        let port = udp.map(|udp| u16::from_be_bytes([udp[0], udp[1]])).filter(|port| *port != 0);
        let host = header.source_host().and_then(|host| host.ip()).zip(port);
        let (ip, port) = host.ok_or(no_way("its sender has no address"))?;
        let remote = ScionAddr::new(header.source_as(), SocketAddr::new(ip, port));
        let mut back = [0; anabranch_scion_wire::PATH_LEN_MAX];
        let len = header.path().copy_reversed(&mut back).ok_or(no_way("its path cannot be turned round"))?;
        let wire = PathRef::from_dataplane(&back[..len]).map_err(|source| PathError::Malformed { remote, source })?;
        if matches!(wire, PathRef::Empty) && remote.isd_as != local.isd_as {
            return Err(no_way("it has no path, and comes from another AS"));
        }
        // Inside one AS packets come straight from their source, and to nobody else do answers go.
        let next_hop = if matches!(wire, PathRef::Empty) { remote.host } else { from };
        let name = format!("{remote} by {next_hop}");
        Self::build(local, remote, &wire, next_hop, mtu, name)
    }

    fn build(
        local: ScionAddr,
        remote: ScionAddr,
        wire: &PathRef<'_>,
        next_hop: SocketAddr,
        mtu: u16,
        name: String,
    ) -> Result<Self, PathError> {
        let interfaces: Box<[u16]> = match wire {
            PathRef::Standard(path) => path.interfaces().collect(),
            _ => Box::default(),
        };
        let fields = HeaderFields {
            source: Address::new(local.isd_as, local.host.ip()),
            destination: Address::new(remote.isd_as, remote.host.ip()),
            path: *wire,
            flow_id: flow_id(local, remote, &interfaces),
            traffic_class: 0,
        };
        let ports = Ports { source: local.host.port(), destination: remote.host.port() };
        let template = HeaderTemplate::new(&fields, ports).map_err(|source| PathError::Header { remote, source })?;
        let header_len = template.header_len();
        let mtu_claimed = if mtu == 0 { u16::MAX } else { mtu };
        if usize::from(mtu_claimed) <= header_len {
            return Err(PathError::TooNarrow { path: name, mtu, header_len });
        }
        let name = format!("{name} to {remote}").into();
        let network = Network::Scion { local, next_hop, template, interfaces };
        Ok(Self(Arc::new(Inner { name, remote: remote.into(), mtu_claimed, network })))
    }

    /// The socket at the other end.
    pub fn remote(&self) -> Endpoint {
        self.0.remote
    }

    /// The longest packet that the path, or the interface, claims to take: with the IP header over IP, with the SCION header
    /// over SCION. Upper bound of the search for what it really takes ([`super::PathMtu`]).
    pub fn mtu_claimed(&self) -> u16 {
        self.0.mtu_claimed
    }

    /// Bytes of a packet that are headers.
    pub fn headers_len(&self) -> usize {
        match &self.0.network {
            Network::Ip { to, .. } if to.ip().to_canonical().is_ipv4() => IPV4_HEADERS_LEN,
            Network::Ip { .. } => IPV6_HEADERS_LEN,
            Network::Scion { template, .. } => template.header_len(),
        }
    }

    /// Bytes of payload in a packet of `packet_len` bytes; zero where the headers alone are longer.
    pub fn payload_len(&self, packet_len: u16) -> usize {
        usize::from(packet_len).saturating_sub(self.headers_len()).min(DATAGRAM_LEN_MAX - self.wrapped_len())
    }

    /// The whole packet's length around a payload of `payload_len` bytes.
    pub fn packet_len(&self, payload_len: usize) -> usize {
        payload_len + self.headers_len()
    }

    /// The numbers of the interfaces that it passes through SCION, in order; none over IP, nor inside one AS.
    pub fn interfaces(&self) -> &[u16] {
        match &self.0.network {
            Network::Ip { .. } => &[],
            Network::Scion { interfaces, .. } => interfaces,
        }
    }

    /// Bytes of headers inside the system's datagrams.
    pub(super) fn wrapped_len(&self) -> usize {
        match &self.0.network {
            Network::Ip { .. } => 0,
            Network::Scion { template, .. } => template.header_len(),
        }
    }

    pub(super) fn network(&self) -> &Network {
        &self.0.network
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.0.name
    }

    /// Whether packets over it may leave from a socket at `local`.
    pub(super) fn starts_at(&self, local: Endpoint) -> bool {
        match (&self.0.network, local) {
            (Network::Ip { .. }, Endpoint::Ip(_)) => true,
            (Network::Scion { local, .. }, Endpoint::Scion(socket)) => *local == socket,
            _ => false,
        }
    }

    /// Whether both go the same way to the same socket.
    pub(super) fn is_same_way(&self, other: &Self) -> bool {
        let is_same_network = match (&self.0.network, &other.0.network) {
            (Network::Ip { from, interface, .. }, Network::Ip { from: other_from, interface: other_interface, .. }) => {
                (from, interface) == (other_from, other_interface)
            }
            (Network::Scion { interfaces, .. }, Network::Scion { interfaces: other, .. }) => interfaces == other,
            _ => false,
        };
        is_same_network && self.0.remote == other.0.remote
    }

    /// Whether packets go out alike over both: the same way, by the same router and with the same hop fields.
    pub fn is_identical(&self, other: &Self) -> bool {
        let has_same_headers = match (&self.0.network, &other.0.network) {
            (
                Network::Scion { template, next_hop, .. },
                Network::Scion { template: other, next_hop: other_next_hop, .. },
            ) => template.as_bytes() == other.as_bytes() && next_hop == other_next_hop,
            _ => true,
        };
        has_same_headers && self.is_same_way(other)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Path").field(&self.0.name).finish()
    }
}

/// "It is mandatory to be set" (SCION header, "FlowID"): 20 bits, not zero, one for each way between two sockets.
fn flow_id(local: ScionAddr, remote: ScionAddr, interfaces: &[u16]) -> u32 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (local, remote, interfaces).hash(&mut hasher);
    (hasher.finish() as u32 & 0xf_ffff).max(1)
}
