//! A daemon's answers, checked, and in the project's own types.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use anabranch_paths::{Geo, Interface, IsdAs, LinkKind, Remarks, ScionPath};
use anabranch_scion_wire::StandardPath;
use anabranch_scion_wire::combine::PATHS_MAX;
use anabranch_scion_wire::proto::{self, LinkType, daemon};

/// Why a path of a daemon's answer is no use. To blame is the daemon; the others of its answer may be well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Its header is no SCION path.
    #[error("its header is no SCION path: {0}")]
    Header(#[from] anabranch_scion_wire::PathError),
    /// Its interfaces are not those of its header.
    #[error("its interfaces are not those of its header")]
    Interfaces,
    /// It does not lead from here to there.
    #[error("it does not lead to {destination}")]
    Elsewhere {
        /// Where it should lead.
        destination: IsdAs,
    },
    /// No address to hand packets to.
    #[error("its next hop `{0}` is no address")]
    NextHop(String),
    /// Packets of zero bytes.
    #[error("its MTU is zero")]
    Mtu,
    /// No expiry, or none that can be told.
    #[error("it has no expiry")]
    Expiry,
    /// Packets would go to somebody else.
    #[error("its next hop {0} is no router of this AS")]
    NotRouter(SocketAddr),
    /// No hop field lives so long.
    #[error("it would live longer than a day")]
    MadeUp,
}

/// How far in the future a path may end. Hop fields live a day at most (SCION control plane, "ExpTime": 255 is 24 hours); the rest
/// is for clocks that differ.
pub const PATH_LIFE_MAX: Duration = Duration::from_secs(25 * 3600);

/// The good paths of an answer, `admit` agreeing, each list of interfaces once (the one that lives longest), at most
/// [`PATHS_MAX`]; and why the first bad one is bad.
pub fn paths_from(
    answer: &daemon::PathsResponse,
    source: IsdAs,
    destination: IsdAs,
    admit: impl Fn(&ScionPath) -> Result<(), PathError>,
) -> (Vec<ScionPath>, Option<PathError>) {
    let mut error = None;
    let mut paths: Vec<ScionPath> = Vec::new();
    let mut by_interfaces: HashMap<Vec<Interface>, usize> = HashMap::new();
    for message in &answer.paths {
        let path = path_from(message, source, destination);
        let path = match path.and_then(|path| admit(&path).map(|()| path)) {
            Ok(path) => path,
            Err(bad) => {
                error.get_or_insert(bad);
                continue;
            }
        };
        match by_interfaces.entry(path.interfaces.clone()) {
            Entry::Occupied(at) if paths[*at.get()].expiry < path.expiry => paths[*at.get()] = path,
            Entry::Occupied(_) => {}
            Entry::Vacant(at) if paths.len() < PATHS_MAX => {
                at.insert(paths.len());
                paths.push(path);
            }
            Entry::Vacant(_) => {}
        }
    }
    (paths, error)
}

/// One path of an answer, checked.
pub fn path_from(message: &daemon::Path, source: IsdAs, destination: IsdAs) -> Result<ScionPath, PathError> {
    let interfaces = message
        .interfaces
        .iter()
        .map(|interface| {
            let id = u16::try_from(interface.id).map_err(|_| PathError::Interfaces)?;
            Ok(Interface { isd_as: IsdAs::from_u64(interface.isd_as), id })
        })
        .collect::<Result<Vec<_>, PathError>>()?;
    let expiry = message.expiration.as_ref().and_then(time_from).ok_or(PathError::Expiry)?;
    let (next_hop, expiry) = if message.raw.is_empty() {
        if source != destination || !interfaces.is_empty() {
            return Err(PathError::Elsewhere { destination });
        }
        (None, expiry)
    } else {
        let header = StandardPath::parse(&message.raw)?;
        if !header.interfaces().eq(interfaces.iter().map(|interface| interface.id)) {
            return Err(PathError::Interfaces);
        }
        let ends = [interfaces.first(), interfaces.last()].map(|end| end.map(|end| end.isd_as));
        if ends != [Some(source), Some(destination)] {
            return Err(PathError::Elsewhere { destination });
        }
        // Routers go by the header, whatever the daemon says.
        let header_expiry = SystemTime::UNIX_EPOCH + Duration::from_millis(header.expiry_unix_ms());
        (Some(next_hop_from(message)?), expiry.min(header_expiry))
    };
    let steps = interfaces.len().saturating_sub(1);
    let latency = message.latency.iter().map(duration_from);
    let bandwidth = message.bandwidth.iter().map(|&kbps| (kbps != 0).then_some(kbps));
    let link_kinds = message.link_type.iter().map(|&kind| link_kind_from(kind));
    Ok(ScionPath {
        source,
        destination,
        mtu: match u16::try_from(message.mtu) {
            Ok(0) => return Err(PathError::Mtu),
            mtu => mtu.unwrap_or(u16::MAX),
        },
        expiry,
        latency: latency.chain(std::iter::repeat(None)).take(steps).collect(),
        bandwidth_kbps: bandwidth.chain(std::iter::repeat(None)).take(steps).collect(),
        link_kinds: link_kinds.chain(std::iter::repeat(LinkKind::Unset)).take(interfaces.len() / 2).collect(),
        remarks: remarks_from(message, interfaces.len()),
        next_hop,
        dataplane: message.raw.clone(),
        interfaces,
    })
}

/// What ASes say about the path to people, as far as it fits its interfaces.
fn remarks_from(message: &daemon::Path, interfaces: usize) -> Remarks {
    let short = |text: &str| text.chars().take(REMARK_CHARS_MAX).collect::<String>();
    let geo = message.geo.iter().map(|place| {
        let is_told = place.latitude != 0.0 || place.longitude != 0.0;
        Geo {
            coordinates: is_told.then(|| format!("{},{}", place.latitude, place.longitude)),
            address: short(&place.address),
        }
    });
    let (hops, passed) = (interfaces / 2 + 1, (interfaces / 2).saturating_sub(1));
    Remarks {
        geo: geo.take(interfaces).collect(),
        internal_hops: message.internal_hops.iter().copied().take(passed).collect(),
        notes: message.notes.iter().map(|note| short(note)).take(hops).collect(),
    }
}

/// Characters of one remark: a postal address, or a sentence or two.
const REMARK_CHARS_MAX: usize = 500;

/// The path between hosts of one AS: nothing to pass, nothing to expire.
pub fn path_inside(isd_as: IsdAs, mtu: u16) -> ScionPath {
    ScionPath {
        source: isd_as,
        destination: isd_as,
        interfaces: Vec::new(),
        mtu,
        expiry: SystemTime::UNIX_EPOCH + Duration::from_secs(u32::MAX.into()),
        latency: Vec::new(),
        bandwidth_kbps: Vec::new(),
        link_kinds: Vec::new(),
        remarks: Remarks::default(),
        next_hop: None,
        dataplane: Vec::new(),
    }
}

/// A router's address; IPv6 zones are names of the daemon's host, so that one with a zone is left to whoever can tell it.
pub(super) fn underlay_from(text: &str) -> Option<SocketAddr> {
    text.parse().ok().filter(|address: &SocketAddr| address.port() != 0 && !address.ip().is_unspecified())
}

fn next_hop_from(message: &daemon::Path) -> Result<SocketAddr, PathError> {
    let address = message.interface.as_ref().and_then(|interface| interface.address.as_ref());
    let text = address.map(|underlay| underlay.address.as_str()).unwrap_or_default();
    underlay_from(text).ok_or_else(|| PathError::NextHop(text.chars().take(64).collect()))
}

fn time_from(time: &proto::Timestamp) -> Option<SystemTime> {
    let since =
        Duration::new(time.seconds.try_into().ok()?, time.nanos.try_into().ok().filter(|&n| n < 1_000_000_000)?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// Negative durations stand for "nobody says".
fn duration_from(duration: &proto::Duration) -> Option<Duration> {
    let nanos = duration.nanos.try_into().ok().filter(|&nanos| nanos < 1_000_000_000)?;
    Some(Duration::new(duration.seconds.try_into().ok()?, nanos))
}

fn link_kind_from(number: i32) -> LinkKind {
    match LinkType::try_from(number) {
        Ok(LinkType::Direct) => LinkKind::Direct,
        Ok(LinkType::MultiHop) => LinkKind::MultiHop,
        Ok(LinkType::OpenNet) => LinkKind::OpenNet,
        Ok(LinkType::Unspecified) | Err(_) => LinkKind::Unset,
    }
}
