//! Sockets, and the paths that lead from them to a peer: by interfaces over IP, between ASes over SCION.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anabranch_hercules::wire::seal::DATA_HEAD_LEN;
use anabranch_hercules::wire::{CHUNK_LEN_MAX, CHUNK_LEN_MIN};
use anabranch_paths::select::{Budget, Candidate};
use anabranch_paths::{Endpoint, Path, ScionPath, Scoreboard};
use anabranch_transport::control::{ControlEndpoint, Inlet};
use anabranch_transport::datagram::{self, Socket};
use anabranch_transport::{Interfaces, mtu_of};

use super::engine::Route;
use super::events::PathWay;
use super::options::{Options, StartError};
use crate::net::scion::{Payload, ScionConfig};

/// The protocol that both ends of a connection name (ALPN).
pub(super) const PROTOCOL: &[u8] = b"anabranch-bulk/2";
/// What paths are taken to carry whose links nobody knows.
const PACKET_LEN_USUAL: u16 = 1500;
/// Longest packet, whatever a link takes: jumbo frames. Of longer ones two are more than a path starts with in a round trip.
const PACKET_LEN_MAX: u16 = 9000;
/// How long a lookup of paths may take before it counts as failed, and another is made when it is due: as long as a daemon that knows
/// nothing yet may take to ask the control services of three ASes, each over the network. Over a path that is cut no answer ever comes.
pub(super) const LOOKUP_MAX: Duration = Duration::from_secs(10);
/// The same where other paths lead to the other end, and need no lookup: they are not held up for longer. What comes later is found by
/// the next one.
const LOOKUP_BESIDE_MAX: Duration = Duration::from_secs(2);

/// Lengths that are tried where longer packets do not come through, the longest first: what links commonly take, to the least that every
/// host does (RFC 1122 §3.3.2).
const PACKET_LENS: [u16; 6] = [9000, 1500, 1492, 1420, 1280, 576];

/// The sockets, and who calls and is called over each.
pub(super) struct Network {
    pub(super) endpoints: Vec<Arc<ControlEndpoint>>,
    interfaces: Vec<String>,
    scion: Option<ScionConfig>,
    packet_len: Option<u16>,
    wished: usize,
    selector: anabranch_paths::select::Selector,
}

/// The paths that lead to a peer.
#[derive(Clone, Debug, Default)]
pub(super) struct CandidatePaths {
    /// Those to be used first, the best one first of all.
    pub(super) selected: Vec<CandidatePath>,
    /// The others.
    pub(super) others: Vec<CandidatePath>,
}

/// A path to a peer that may be used.
#[derive(Clone, Debug)]
pub(super) struct CandidatePath {
    pub(super) route: Route,
    /// As the selection sees it.
    pub(super) path: Path,
    /// Longest packet that it is taken to carry.
    pub(super) packet_len: u16,
    pub(super) name: Arc<str>,
}

impl CandidatePath {
    pub(super) fn shown(&self) -> PathWay {
        PathWay { remote: self.route.path.remote(), path: Some(self.path.clone()), name: Arc::clone(&self.name) }
    }

    /// Longest chunk that it carries.
    pub(super) fn chunk_len(&self) -> u16 {
        chunk_len(&self.route.path, self.packet_len)
    }

    /// Whether both lead the same way, perhaps with other hop fields.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.route.port == other.route.port
            && self.path.id() == other.path.id()
            && self.route.path.remote() == other.route.path.remote()
    }
}

/// Longest chunk that fits packets of `packet_len` bytes.
pub(super) fn chunk_len(path: &datagram::Path, packet_len: u16) -> u16 {
    let len = path.payload_len(packet_len).saturating_sub(DATA_HEAD_LEN);
    u16::try_from(len).unwrap_or(u16::MAX).clamp(CHUNK_LEN_MIN, CHUNK_LEN_MAX)
}

/// The next shorter chunk to try over `path`, where those of `len` bytes do not come through.
pub(super) fn shorter_chunk_len(path: &datagram::Path, len: u16) -> Option<u16> {
    PACKET_LENS.iter().map(|packet_len| chunk_len(path, *packet_len)).find(|shorter| *shorter < len)
}

/// What a route is shown as where nothing else is known of it.
pub(super) fn shown(route: &Route) -> PathWay {
    PathWay { remote: route.path.remote(), path: None, name: route.path.to_string().into() }
}

impl Network {
    /// Opens the sockets.
    pub(super) fn open(options: &Options) -> Result<(Self, Vec<(Socket, Inlet)>), StartError> {
        let mut sockets = Vec::new();
        if options.listen.is_none() {
            sockets.push(Socket::bind((Ipv4Addr::UNSPECIFIED, 0).into())?);
            // A machine without IPv6 does without.
            sockets.extend(Socket::bind((Ipv6Addr::UNSPECIFIED, 0).into()).ok());
        }
        for address in options.listen.iter().flatten() {
            sockets.push(Socket::bind(*address)?);
        }
        if let Some(scion) = &options.scion {
            let here = scion.lookup.local_as();
            let socket = Socket::bind_scion(scion.local, here.ports.clone())?;
            socket.set_routers(here.interfaces.values().map(SocketAddr::ip));
            sockets.push(socket);
        }
        let _ = Interfaces::new(&options.paths.interfaces)?;
        let (mut endpoints, mut inlets) = (Vec::new(), Vec::new());
        for socket in sockets {
            let quic = |source| StartError::Quic { address: socket.local(), source };
            let (endpoint, inlet) = ControlEndpoint::new(&socket, &options.identity, PROTOCOL).map_err(quic)?;
            endpoints.push(Arc::new(endpoint));
            inlets.push((socket, inlet));
        }
        let network = Self {
            endpoints,
            interfaces: options.paths.interfaces.clone(),
            scion: options.scion.clone(),
            packet_len: options.packet_len,
            wished: options.paths.wished.clamp(1, anabranch_hercules::wire::PATHS_MAX),
            selector: options.paths.selector.unwrap_or_default(),
        };
        Ok((network, inlets))
    }

    /// How many paths to one peer are wished for.
    pub(super) fn wished(&self) -> usize {
        self.wished
    }

    /// Where others reach this end.
    pub(super) fn addresses(&self) -> Vec<Endpoint> {
        let locals = self.endpoints.iter().map(|endpoint| endpoint.local());
        let (scion, ip): (Vec<_>, Vec<_>) = locals.partition(|local| local.as_scion().is_some());
        let ip: Vec<SocketAddr> = ip.iter().filter_map(Endpoint::as_ip).collect();
        let reachable = Interfaces::new(&self.interfaces).map_or(Vec::new(), |own| own.reachable_at(&ip));
        // On a machine that has no address but its own, that one is where it is reached.
        let own = ip.iter().map(|address| match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, address.port()).into(),
            IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, address.port()).into(),
            _ => *address,
        });
        let ip: Vec<SocketAddr> = if reachable.is_empty() { own.collect() } else { reachable };
        ip.into_iter().map(Endpoint::from).chain(scion).collect()
    }

    /// The paths to a peer, or why there are none. Over SCION a lookup tells, which takes [`LOOKUP_MAX`] at most.
    pub(super) async fn to(&self, addresses: &[Endpoint]) -> Result<CandidatePaths, String> {
        let (mut paths, mut trouble) = (self.over_ip(addresses), Vec::new());
        let within = if paths.is_empty() { LOOKUP_MAX } else { LOOKUP_BESIDE_MAX };
        for remote in addresses.iter().filter_map(Endpoint::as_scion) {
            match self.over_scion(remote, within).await {
                Ok(found) => paths.extend(found),
                Err(error) => trouble.push(error),
            }
        }
        if paths.is_empty() {
            trouble.push("no way leads to the other end's addresses from here".to_owned());
            return Err(trouble.swap_remove(0));
        }
        let candidates: Vec<Candidate> = paths
            .iter()
            .enumerate()
            .map(|(place, path)| Candidate { place, ..Candidate::new(0, &path.path) })
            .collect();
        let budget = Budget { connections: self.wished, per_peer: self.wished };
        let chosen: Vec<usize> = self.selector.select(&candidates, &Scoreboard::default(), budget).chosen().collect();
        let CandidatePaths { mut selected, mut others } = CandidatePaths::default();
        for (at, path) in paths.into_iter().enumerate() {
            if chosen.contains(&at) { &mut selected } else { &mut others }.push(path);
        }
        if selected.is_empty() {
            selected.push(others.remove(0));
        }
        Ok(CandidatePaths { selected, others })
    }

    /// How long packets to `remote` may be, as far as this end can tell.
    pub(super) fn packet_len(&self, path: &datagram::Path) -> u16 {
        if let Some(len) = self.packet_len {
            return len;
        }
        match path.remote() {
            Endpoint::Scion(_) => self.scion.as_ref().map_or(PACKET_LEN_USUAL, |scion| scion.lookup.local_as().mtu),
            Endpoint::Ip(remote) => {
                let ip = remote.ip();
                let Ok(interfaces) = Interfaces::new(&[]) else { return PACKET_LEN_USUAL };
                if ip.is_loopback() || interfaces.has(ip) {
                    return PACKET_LEN_MAX;
                }
                let own = interfaces.list().iter().find(|own| own.addresses.iter().any(|net| net.has_in_network(ip)));
                // Beyond this network, links are as they usually are.
                own.map_or(PACKET_LEN_USUAL, |own| mtu_of(&own.name).unwrap_or(PACKET_LEN_USUAL))
            }
        }
        .min(path.mtu_claimed())
        .min(PACKET_LEN_MAX)
    }

    fn over_ip(&self, addresses: &[Endpoint]) -> Vec<CandidatePath> {
        let remotes: Vec<SocketAddr> = addresses.iter().filter_map(Endpoint::as_ip).collect();
        let found = Interfaces::new(&self.interfaces).map_or(Vec::new(), |own| own.candidates(&remotes));
        let candidate = |found: anabranch_transport::IpCandidate| {
            let serves = |local: SocketAddr| {
                local.is_ipv4() == found.remote.is_ipv4()
                    && (local.ip().is_unspecified() || local.ip() == found.via.source)
            };
            let port = self.endpoints.iter().position(|own| own.local().as_ip().is_some_and(serves))?;
            let path = datagram::Path::ip(found.remote, Some(&found.via));
            let packet_len = self.packet_len(&path);
            let name = path.to_string().into();
            Some(CandidatePath { route: Route { port, path }, path: found.path, packet_len, name })
        };
        found.into_iter().filter_map(candidate).collect()
    }

    async fn over_scion(
        &self,
        remote: anabranch_paths::ScionAddr,
        within: Duration,
    ) -> Result<Vec<CandidatePath>, String> {
        let none =
            || format!("{remote} is in a SCION network, and this end is not: name a SCION address of this machine");
        let (scion, (port, local)) = self.scion.as_ref().zip(self.scion_port()).ok_or_else(none)?;
        let late = |_| {
            let (isd_as, seconds) = (remote.isd_as, within.as_secs());
            format!(
                "no path to {isd_as}: neither daemon nor control service told any within {seconds} s; see whether they run"
            )
        };
        let lookup = tokio::time::timeout(within, scion.paths(local.host.ip(), remote, Payload::Quic));
        let found = lookup.await.map_err(late)?.map_err(|error| error.to_string())?;
        let candidate = |found: &Arc<ScionPath>| {
            let path = datagram::Path::scion(local, remote, found).ok()?;
            let mtu = if found.mtu == 0 { PACKET_LEN_USUAL } else { found.mtu };
            let packet_len = self.packet_len.map_or(mtu, |len| len.min(mtu)).min(scion.lookup.local_as().mtu);
            let name = found.to_string().into();
            let path_seen = Path::scion(local.host.ip(), remote.host.ip(), Arc::clone(found));
            Some(CandidatePath { route: Route { port, path }, path: path_seen, packet_len, name })
        };
        Ok(found.paths.iter().filter_map(candidate).collect())
    }

    fn scion_port(&self) -> Option<(usize, anabranch_paths::ScionAddr)> {
        self.endpoints.iter().enumerate().find_map(|(at, own)| Some((at, own.local().as_scion()?)))
    }
}
