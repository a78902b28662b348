//! A session as flags ask for it: what `get`, `share` and others have in common.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use anabranch_bittorrent::choker::{self, Slots};
use anabranch_daemon::Discovery;
use anabranch_paths::{Endpoint, ScionAddr};
use anabranch_swarm::{
    BUFFER_BYTES_DEFAULT, DhtConfig, Events, Leave, PathsConfig, ScionConfig, Session, SessionConfig, SessionError,
    parse_peer,
};
use anabranch_transport::{Identity, NodeId};
use serde_json::json;

use crate::address::PeerAddress;
use crate::awaited::Teller;
use crate::bulk::options;
use crate::cli::{NodeName, SessionFlags, Switch};
use crate::exit::{Code, Failure};
use crate::guard;
use crate::output::{self, Chatter};
use crate::source::Source;
use crate::units::Size;
use crate::{scion, settings, system, units};

/// The port that BitTorrent peers expect first.
const LISTEN_PORT: u16 = 6881;
/// Nodes of the distributed hash table that anybody may begin from, as other clients do.
const PUBLIC_NODES: [(&str, u16); 3] =
    [("dht.libtorrent.org", 25401), ("router.bittorrent.com", 6881), ("dht.transmissionbt.com", 6881)];
/// The file that keeps its nodes from run to run.
const NODES_FILE: &str = "dht-nodes";
/// Paths to one peer where nobody says: what most hosts with several ways have.
const PATHS_WISHED: usize = 4;

/// Memory, by what it is for.
pub(crate) struct Memory {
    /// Pieces under way.
    pub pieces_bytes: u64,
    /// What peers may fill over QUIC.
    pub quic_bytes: u64,
}

/// How `--memory` is divided: what pieces cannot do without is theirs, and of the rest QUIC has half where it is used.
pub(crate) fn memory(flags: &SessionFlags, quic: bool) -> Memory {
    let Some(Size(bytes)) = flags.memory else {
        return Memory { pieces_bytes: BUFFER_BYTES_DEFAULT, quic_bytes: BUFFER_BYTES_DEFAULT };
    };
    let quic_bytes = if quic { (bytes / 2).min(bytes.saturating_sub(units::MEMORY_MIN)) } else { 0 };
    Memory { pieces_bytes: bytes - quic_bytes, quic_bytes }
}

/// A session that fetches `sources` as the flags say, and the peers that the flags name.
pub(crate) async fn fetching(
    flags: &SessionFlags,
    first: SessionConfig,
    sources: &[Source],
    chatter: Chatter,
) -> Result<(Session, Events, Vec<Endpoint>), Failure> {
    let links = sources.iter().flat_map(Source::peers);
    let is_plain = |source: &&Source| matches!(source, Source::Ppspp(link) if link.secure.is_none());
    if let Some(plain) = sources.iter().find(is_plain) {
        let remedy = format!("the link of {} is not secure; ask who shares it to do so with --secure", plain.name());
        guard::check_plain_ppspp(flags, &remedy)?;
    }
    let first = SessionConfig {
        keeps_ports_for_ppspp: sources.iter().any(|source| matches!(source, Source::Ppspp(_))),
        secure_identity: secure_identity(flags, sources, chatter)?,
        ..first
    };
    let named = links.filter_map(|peer| parse_peer(peer)).map(|(address, _)| address);
    let (scion, peers) = reach(flags, named, chatter).await?;
    let mut config = session_config(flags, SessionConfig { scion, ..first }, chatter)?;
    if sources.is_empty() && flags.guard.allow.is_empty() {
        // Contents will come, and links among them may be secure.
        config.secure_identity = Some(options::identity(flags.scion.key.as_deref(), chatter)?);
    }
    if !sources.is_empty() && sources.iter().all(|source| matches!(source, Source::Ppspp(_))) {
        discover_nobody(&mut config);
    }
    let (session, events) = start(flags, config, chatter)?;
    Ok((session, events, peers))
}

/// How peers are reached over SCION, where they are, and the peers that the flags name. `others` are addresses that links name.
pub(crate) async fn reach(
    flags: &SessionFlags,
    others: impl Iterator<Item = Endpoint>,
    chatter: Chatter,
) -> Result<(Option<ScionConfig>, Vec<Endpoint>), Failure> {
    let mut scion = scion::config(flags, others, chatter).await?;
    let peers = peers(flags, scion.is_some(), chatter).await?;
    scion::remember(scion.as_mut(), flags, &peers, chatter)?;
    Ok((scion, peers))
}

/// The key that the peers of secure links know us by, where there are such links.
fn secure_identity(flags: &SessionFlags, sources: &[Source], chatter: Chatter) -> Result<Option<Identity>, Failure> {
    let is_secure = |source: &&Source| matches!(source, Source::Ppspp(link) if link.secure.is_some());
    let count = sources.iter().filter(is_secure).count();
    if count == 0 {
        return Ok(None);
    }
    if count < sources.len() && !flags.guard.allow.is_empty() {
        return Err(Failure::usage(
            "`--allow` holds for secure links of PPSPP over IP too, and for torrents over SCION alone: fetch them apart",
        ));
    }
    options::identity(flags.scion.key.as_deref(), chatter).map(Some)
}

/// The session's choices, as the flags say. What is not among `SessionFlags` stays as in `first`.
pub(crate) fn session_config(
    flags: &SessionFlags,
    first: SessionConfig,
    chatter: Chatter,
) -> Result<SessionConfig, Failure> {
    let rate = |rate: Option<units::Rate>| rate.map(|rate| rate.0);
    let connections_max = flags.max_peers as usize;
    let chosen_max = flags.multipath.max_connections.map(|count| count as usize);
    let slots = flags.upload_slots.map(|slots| slots as usize).or(chosen_max);
    let mut config = SessionConfig {
        connections_max,
        torrent_connections_max: first.torrent_connections_max.min(connections_max),
        limit_down: rate(flags.limit_down),
        limit_up: rate(flags.limit_up),
        peer_limit_down: rate(flags.peer_limit_down),
        peer_limit_up: rate(flags.peer_limit_up),
        buffer_bytes: memory(flags, first.scion.is_some()).pieces_bytes,
        choker: choker::Config {
            slots: slots.map_or(Slots::Auto, Slots::Fixed),
            upload_limit_bytes: rate(flags.limit_up),
            ..first.choker
        },
        pex: !flags.no_pex,
        encryption: flags.encryption,
        utp: flags.utp,
        web_seeds: flags.web_seeds,
        paths: PathsConfig {
            wished: flags.multipath.paths_per_peer.map_or(PATHS_WISHED, |paths| paths as usize),
            granted: flags.multipath.paths_per_peer.map_or(first.paths.granted, |paths| paths as usize),
            connections: chosen_max.unwrap_or(first.paths.connections),
            selector: flags.multipath.selector,
            interfaces: flags.multipath.interface.clone(),
        },
        ..first
    };
    guard::apply(flags, &mut config, chatter)?;
    discover(flags, &mut config);
    Ok(config)
}

/// Says how peers are found without trackers, and whether routers let them in. Whoever admits keys alone has nothing to do with strangers who are found so, and what would
/// go past a proxy is off.
fn discover(flags: &SessionFlags, config: &mut SessionConfig) {
    let discovery = &flags.discovery;
    let proxy = flags.guard.proxy.as_ref();
    if proxy.is_some_and(|proxy| !proxy.may_relay_udp()) || !flags.guard.allow.is_empty() {
        return;
    }
    let name = |node: &NodeName| (node.0.clone(), node.1);
    // Who names nodes has them asked instead.
    let public = if discovery.dht_node.is_empty() { &PUBLIC_NODES[..] } else { &[] };
    config.dht = (discovery.dht == Switch::On).then(|| DhtConfig {
        nodes: discovery.dht_node.iter().map(name).collect(),
        public_nodes: public.iter().map(|(host, port)| ((*host).to_owned(), *port)).collect(),
        // Behind a proxy nobody is to know us again from elsewhere.
        file: proxy
            .is_none()
            .then(|| config.state_dir.clone().or_else(settings::state_folder))
            .flatten()
            .map(|folder| folder.join(NODES_FILE)),
    });
    config.local_discovery = discovery.lsd == Switch::On && proxy.is_none();
    config.port_mapping = flags.port_mapping && proxy.is_none();
}

/// How peers are found without trackers, for those who ask.
pub(crate) fn discovery(flags: &SessionFlags) -> Discovery {
    let mut config = SessionConfig::default();
    discover(flags, &mut config);
    Discovery { dht: config.dht.is_some(), pex: !flags.no_pex, local: config.local_discovery }
}

/// No content of the session is BitTorrent's.
pub(crate) fn discover_nobody(config: &mut SessionConfig) {
    config.dht = None;
    config.local_discovery = false;
    config.port_mapping = false;
}

/// The keys that the flags' peers have to prove.
pub(crate) fn keys(flags: &SessionFlags) -> Vec<(ScionAddr, NodeId)> {
    let keyed = |peer: &PeerAddress| match peer {
        PeerAddress::Keyed(key, address) => Some((*address, *key)),
        PeerAddress::Endpoint(_) | PeerAddress::Name(..) => None,
    };
    flags.peer.iter().filter_map(keyed).collect()
}

/// The peers that the flags name.
async fn peers(flags: &SessionFlags, scion: bool, chatter: Chatter) -> Result<Vec<Endpoint>, Failure> {
    let (mut peers, leave) = (Vec::new(), Leave::by(&flags.multipath.interface));
    let teller = Teller { chatter, has_events: flags.json };
    for peer in &flags.peer {
        peers.extend(peer.resolve(scion, &leave, teller).await?);
    }
    match peers.iter().find(|peer| peer.socket_addr().port() == 0) {
        Some(peer) => Err(Failure::usage(format!("`--peer {peer}`: port 0 cannot be dialled; give the peer's port"))),
        None => Ok(peers),
    }
}

/// Starts a session that listens where the flags say, and tells where that is.
pub(crate) fn start(
    flags: &SessionFlags,
    config: SessionConfig,
    chatter: Chatter,
) -> Result<(Session, Events), Failure> {
    system::raise_open_files_limit();
    let with = |listen: Vec<SocketAddr>| Session::start(SessionConfig { listen, ..config.clone() });
    let is_secure = config.secure_identity.is_some();
    let stays_shut = flags.guard.proxy.is_some() || (!flags.guard.allow.is_empty() && !is_secure);
    let started = if flags.listen.is_empty() && !stays_shut {
        start_anywhere(&with, chatter)
    } else {
        with(flags.listen.iter().filter_map(Endpoint::as_ip).collect())
    };
    let started = started.map_err(|error| match error {
        SessionError::Listen { address, source } => listen_failure(address, &source),
        error @ SessionError::Interfaces(_) => Failure::new(Code::Usage, error),
        error @ SessionError::Scion { .. } => Failure::new(Code::Network, error),
        SessionError::Threads(error) => Failure::runtime(error),
    })?;
    let scion = started.0.scion_address().map(Endpoint::Scion);
    for address in started.0.listening().iter().copied().map(Endpoint::from).chain(scion) {
        if flags.json {
            let port = address.socket_addr().port();
            output::json_event("listening", json!({ "address": address.to_string(), "port": port }))?;
        } else if chatter.verbose {
            chatter.note(format_args!("listening on {address}"));
        }
    }
    Ok(started)
}

/// Both families on the usual port; where that is taken, on any; where there is no IPv6, on IPv4.
fn start_anywhere<T>(
    with: &impl Fn(Vec<SocketAddr>) -> Result<T, SessionError>,
    chatter: Chatter,
) -> Result<T, SessionError> {
    let taken = |error: &SessionError| matches!(error, SessionError::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse);
    let both = |port| match with(vec![(Ipv6Addr::UNSPECIFIED, port).into()]) {
        Err(error) if !taken(&error) => with(vec![(Ipv4Addr::UNSPECIFIED, port).into()]),
        tried => tried,
    };
    match both(LISTEN_PORT) {
        Err(error) if taken(&error) => {
            if chatter.verbose {
                chatter.note(format_args!("port {LISTEN_PORT} is taken: listening on another"));
            }
            both(0)
        }
        tried => tried,
    }
}

/// An address cannot be listened on.
pub(crate) fn listen_failure(address: SocketAddr, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => "another program has it: give another port, or 0 for any",
        io::ErrorKind::AddrNotAvailable => "give an address of this machine",
        io::ErrorKind::PermissionDenied => "give a port above 1023",
        _ => "give another address with --listen",
    };
    Failure::new(Code::Network, format!("cannot listen on {address}: {error}; {remedy}"))
}
