//! Our place in the SCION network, as the flags say.

use std::collections::{BTreeSet, HashSet};
use std::fs::DirBuilder;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;
use std::time::SystemTime;

use anabranch_paths::{Endpoint, IsdAs, PathFilter, PathIdPrefix, PolicyFile, ScionAddr};
use anabranch_scion::lookup::{PathLookup, Source, daemon_address_from_env};
use anabranch_swarm::{BUFFER_BYTES_DEFAULT, KnownHosts, ScionConfig};
use anabranch_transport::known_keys::{KnownKeys, KnownKeysError};
use anabranch_transport::{Congestion, Identity, IdentityError, NodeId, QuicBudget};

use crate::address::PeerAddress;
use crate::ask;
use crate::awaited::Teller;
use crate::cli::{BulkPathFlags, CongestionChoice, PathFlags, SessionFlags};
use crate::exit::{Code, Failure};
use crate::guard;
use crate::output::Chatter;
use crate::path_list::PathList;
use crate::path_lookup::{self, read_policy};
use crate::session;
use crate::settings;

/// Names the address that other hosts of our AS reach us by, as other SCION programs know it.
const LOCAL_ADDRESS_VARIABLE: &str = "SCION_LOCAL_ADDR";
/// What is wrong with two of them.
const ONE_ADDRESS: &str = "`--listen` takes one SCION address: the host is in one AS, and one port is enough";

/// How peers are reached over SCION: `None` where nothing asks for it. `others` are addresses that stand elsewhere than in the
/// flags, in magnet links.
pub(crate) async fn config(
    flags: &SessionFlags,
    others: impl Iterator<Item = Endpoint>,
    chatter: Chatter,
) -> Result<Option<ScionConfig>, Failure> {
    let listen: Vec<ScionAddr> = flags.listen.iter().filter_map(Endpoint::as_scion).collect();
    if listen.len() > 1 {
        return Err(Failure::usage(ONE_ADDRESS));
    }
    // What is wrong with these files is told where nothing goes over SCION, too.
    let policy = policy(&flags.scion.paths)?;
    let key = flags.scion.key.as_deref().map(Identity::open).transpose();
    let key = key.map_err(|error| Failure::new(Code::Storage, error))?;
    if flags.guard.proxy.is_some() {
        return Ok(None);
    }
    let peer = |peer: &PeerAddress| match peer {
        PeerAddress::Endpoint(endpoint) => endpoint.as_scion(),
        PeerAddress::Keyed(_, address) => Some(*address),
        PeerAddress::Name(..) => None,
    };
    let mut named: BTreeSet<ScionAddr> = flags.peer.iter().filter_map(peer).collect();
    let is_peer_given = !named.is_empty();
    named.extend(others.filter_map(|address| address.as_scion()));
    if flags.multipath.interactive && named.is_empty() {
        return Err(Failure::usage(
            "`--interactive` asks for the paths to SCION peers that are named: give --peer, or a magnet link that names some",
        ));
    }
    let asked_for =
        !listen.is_empty() || flags.scion.paths.sciond.is_some() || is_peer_given || flags.multipath.interactive;
    if !asked_for && named.is_empty() && daemon_address_from_env().is_none() {
        return Ok(None);
    }
    let budget = QuicBudget::new(session::memory(flags, true).quic_bytes);
    let allowed = guard::allowed(flags)?;
    let own = |local| {
        let identity = match key {
            Some(key) => Ok(key),
            None => kept_identity(local, chatter),
        };
        let congestion = match flags.scion.congestion {
            CongestionChoice::Cubic => Congestion::Cubic,
            CongestionChoice::Bbr => Congestion::Bbr,
        };
        Ok(Own { identity: identity?, allowed, congestion, budget, paths: flags.scion.paths_per_connection })
    };
    let (paths, teller) = ((&flags.scion.paths, policy), Teller { chatter, has_events: flags.json });
    let opened = match open(paths, &flags.scion.path, listen.first().copied(), own, teller).await {
        Ok(mut config) if flags.multipath.interactive => {
            ask_for_paths(&mut config, &named, teller).await?;
            Ok(config)
        }
        opened => opened,
    };
    match opened {
        Ok(config) => Ok(Some(config)),
        // A variable in the environment is an offer, and so is an address in a link: its other addresses may do.
        Err(failure) if !asked_for => {
            chatter.note(format_args!("without SCION: {failure}"));
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

/// Asks which paths to take to the ASes of `peers`, and restricts the choice to those.
async fn ask_for_paths(config: &mut ScionConfig, peers: &BTreeSet<ScionAddr>, teller: Teller) -> Result<(), Failure> {
    let destinations: BTreeSet<IsdAs> = peers.iter().map(|peer| peer.isd_as).collect();
    for destination in destinations {
        let mut paths = teller.paths(&config.lookup, destination, false).await?.to_vec();
        anabranch_paths::sort(&mut paths);
        config.filter.apply(&mut paths, SystemTime::now());
        let list = PathList::new(config.lookup.local_as().isd_as, destination, paths, None);
        let chosen = ask::beside(move || ask::several(&list, io::stdin().lock(), io::stderr())).await?;
        config.only.extend(chosen.iter().map(|path| PathIdPrefix::from(path.id())));
    }
    Ok(())
}

/// What of our place is the protocol's affair.
struct Own {
    identity: Identity,
    allowed: Option<HashSet<NodeId>>,
    congestion: Congestion,
    budget: QuicBudget,
    /// Of one connection.
    paths: u32,
}

/// Our place as a bulk transfer needs it. `is_asked_for` says that nothing goes without it; else SCION may be missing.
pub(crate) async fn bulk_config(
    flags: &BulkPathFlags,
    listen: &[Endpoint],
    is_asked_for: bool,
    is_offered: bool,
    identity: &Identity,
    teller: Teller,
) -> Result<Option<ScionConfig>, Failure> {
    let listen: Vec<ScionAddr> = listen.iter().filter_map(Endpoint::as_scion).collect();
    if listen.len() > 1 {
        return Err(Failure::usage(ONE_ADDRESS));
    }
    let policy = policy(&flags.scion)?;
    let is_asked_for = is_asked_for || !listen.is_empty() || flags.scion.sciond.is_some();
    if !is_asked_for && !is_offered && daemon_address_from_env().is_none() {
        return Ok(None);
    }
    let own = |_| {
        Ok(Own {
            identity: identity.clone(),
            allowed: None,
            congestion: Congestion::Bbr,
            budget: QuicBudget::new(BUFFER_BYTES_DEFAULT),
            paths: 1,
        })
    };
    match open((&flags.scion, policy), &flags.path, listen.first().copied(), own, teller).await {
        Ok(config) => Ok(Some(config)),
        Err(failure) if !is_asked_for => {
            teller.chatter.note(format_args!("without SCION: {failure}"));
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

fn policy(flags: &PathFlags) -> Result<Option<PolicyFile>, Failure> {
    flags.policy.as_deref().map(read_policy).transpose()
}

async fn open(
    (paths, policy): (&PathFlags, Option<PolicyFile>),
    only: &[PathIdPrefix],
    listen: Option<ScionAddr>,
    own: impl FnOnce(ScionAddr) -> Result<Own, IdentityError>,
    teller: Teller,
) -> Result<ScionConfig, Failure> {
    let source = Source::find(paths.sciond.as_deref()).map_err(|error| Failure::new(Code::Network, error))?;
    let lookup = teller.start(source).await?;
    let ours = lookup.local_as().isd_as;
    if let Some(listen) = listen.filter(|listen| listen.isd_as != ours) {
        let message = format!(
            "cannot listen on {}: this host is in {ours}, by its daemon's word; give an address in {ours}, or another daemon with --sciond",
            Endpoint::Scion(listen)
        );
        return Err(Failure::usage(message));
    }
    let local = match listen {
        Some(listen) => listen,
        None => ScionAddr::new(ours, SocketAddr::new(local_ip(&lookup)?, 0)),
    };
    let Own { identity, allowed, congestion, budget, paths: paths_per_connection } =
        own(local).map_err(|error| Failure::new(Code::Storage, error))?;
    Ok(ScionConfig {
        local,
        lookup,
        filter: path_lookup::filter(paths, PathFilter::default()),
        policy: policy.map(Arc::new),
        only: only.to_vec(),
        identity,
        known: None,
        allowed,
        congestion,
        paths_per_connection,
        budget,
    })
}

/// The key of an address that the user chose, the same from run to run, so that others may know us by it; of any other, a new one.
/// Two programs never have one key: they cannot have one address.
fn kept_identity(local: ScionAddr, chatter: Chatter) -> Result<Identity, IdentityError> {
    let folder = settings::state_folder().filter(|_| local.host.port() != 0);
    let Some(folder) = folder.map(|folder| folder.join("keys")) else { return Identity::ephemeral() };
    let name = Endpoint::Scion(local).to_string().replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "_");
    let path = folder.join(name.trim_matches('_'));
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    let opened =
        made.map_err(|source| IdentityError::Io { path: path.clone(), source }).and_then(|()| Identity::open(&path));
    match opened {
        Err(error @ IdentityError::Io { .. }) => {
            if chatter.verbose {
                chatter.note(format_args!("a new key for this run: {error}"));
            }
            Identity::ephemeral()
        }
        opened => opened,
    }
}

/// Has the peers that the user named by their addresses alone prove the keys that they had the last time.
pub(crate) fn remember(
    config: Option<&mut ScionConfig>,
    flags: &SessionFlags,
    peers: &[Endpoint],
    chatter: Chatter,
) -> Result<(), Failure> {
    let keyed: HashSet<ScionAddr> = session::keys(flags).into_iter().map(|(address, _)| address).collect();
    let named: HashSet<ScionAddr> =
        peers.iter().filter_map(Endpoint::as_scion).filter(|peer| !keyed.contains(peer)).collect();
    let Some(config) = config.filter(|_| !named.is_empty()) else { return Ok(()) };
    let given = flags.guard.known_keys.is_some();
    let Some(path) = flags.guard.known_keys.clone().or_else(settings::known_keys_file) else { return Ok(()) };
    let keys = KnownKeys::new(path);
    match keys.check() {
        Ok(()) => config.known = Some(KnownHosts { keys, named }),
        Err(error @ KnownKeysError::Io { .. }) if !given => {
            chatter.note(format_args!("nobody is known by an earlier key: {error}"));
        }
        Err(error @ KnownKeysError::Io { .. }) => return Err(Failure::new(Code::Storage, error)),
        Err(error) => return Err(Failure::input(error)),
    }
    Ok(())
}

/// The address that other hosts of the AS reach us by: what the environment says, else the one that packets for the AS's
/// routers leave from.
pub(crate) fn local_ip(lookup: &PathLookup) -> Result<IpAddr, Failure> {
    if let Ok(text) = std::env::var(LOCAL_ADDRESS_VARIABLE) {
        let parsed = text.parse();
        return parsed.map_err(|_| Failure::usage(format!("`{LOCAL_ADDRESS_VARIABLE}={text}` is no IP address")));
    }
    // An AS without links has one host that counts: this one.
    let Some(router) = lookup.local_as().interfaces.values().next() else { return Ok(Ipv4Addr::LOCALHOST.into()) };
    let any: SocketAddr =
        if router.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (std::net::Ipv6Addr::UNSPECIFIED, 0).into() };
    // Connecting a UDP socket sends nothing; it only says which of our addresses would be used.
    let local = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(router)?;
        socket.local_addr()
    });
    local.map(|local| local.ip()).map_err(|error| {
        let message =
            format!("cannot tell which address of this host the AS's routers reach ({router}: {error}): set {LOCAL_ADDRESS_VARIABLE}");
        Failure::new(Code::Network, message)
    })
}
