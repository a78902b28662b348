//! What is known of a path through SCION networks.

use std::cmp::Ordering;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use crate::id::fingerprint;
use crate::{Interface, IsdAs, PathId, PathIdPrefix};

/// What joins two ASes, from the claims of the ASes on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LinkKind {
    /// Nobody said.
    #[default]
    Unset,
    /// A line between the two routers.
    Direct,
    /// Over other networks, multi-hop.
    MultiHop,
    /// An overlay on the open Internet.
    OpenNet,
}

/// Where a router stands, as its AS says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Geo {
    /// Degrees north and east, as text; `None` where nobody says.
    pub coordinates: Option<String>,
    /// Postal address; empty where nobody says.
    pub address: String,
}

/// What ASes say about a path to people. It has no part in any decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remarks {
    /// Where the router of each interface stands: one entry an interface, or none at all.
    pub geo: Vec<Geo>,
    /// Routers passed inside each AS between two links: one entry for each such AS, 0 where nobody says, or none at all.
    pub internal_hops: Vec<u32>,
    /// The words of each AS on the path: one entry a hop, empty where it has none, or none at all.
    pub notes: Vec<String>,
}

/// A path through SCION: what an end host learns from its daemon, or combines from segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScionPath {
    /// Where it starts.
    pub source: IsdAs,
    /// Where it ends.
    pub destination: IsdAs,
    /// The interfaces it passes in order, two for every link; empty inside one AS.
    pub interfaces: Vec<Interface>,
    /// Largest SCION packet (SCION header included) that every link takes, in bytes.
    pub mtu: u16,
    /// When its first hop field ends.
    pub expiry: SystemTime,
    /// Claimed latency from each interface to the next one: `interfaces.len() - 1` entries, even ones over a link,
    /// odd ones inside an AS; `None` where nobody claims.
    pub latency: Vec<Option<Duration>>,
    /// Claimed bandwidth likewise, in kbit/s.
    pub bandwidth_kbps: Vec<Option<u64>>,
    /// What each link is: `interfaces.len() / 2` entries.
    pub link_kinds: Vec<LinkKind>,
    /// What ASes say about it to people.
    pub remarks: Remarks,
    /// The border router (or, inside one AS, `None`: the host itself) that packets are handed to.
    pub next_hop: Option<SocketAddr>,
    /// The path header as it stands in a packet of ours (type SCION); empty inside one AS.
    pub dataplane: Vec<u8>,
}

/// One AS on a path, with the interfaces that the path enters and leaves it by; zero at the path's ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The AS.
    pub isd_as: IsdAs,
    /// The interface that packets come in by, 0 in the first AS.
    pub ingress: u16,
    /// The interface that packets go out by, 0 in the last AS.
    pub egress: u16,
}

/// What a part of a path that nobody claims a latency of counts as, where paths are compared. As in JPAN's `meta_latency_asc`:
/// more than any honest claim, so that claimed ways come first.
const LATENCY_UNCLAIMED: Duration = Duration::from_secs(10);

/// What the ASes of a path claim of its latency in sum. Compares with each unclaimed part counted as ten seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Latency {
    /// What is claimed. Where parts are unclaimed, the path takes at least so long.
    pub claimed: Duration,
    /// How many links, and ASes between two links, nobody made a claim of.
    pub unclaimed: u32,
}

impl Latency {
    fn assumed(self) -> Duration {
        self.claimed.saturating_add(LATENCY_UNCLAIMED.saturating_mul(self.unclaimed))
    }
}

impl Ord for Latency {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.assumed(), self.unclaimed).cmp(&(other.assumed(), other.unclaimed))
    }
}

impl PartialOrd for Latency {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.claimed.as_secs_f64() * 1e3;
        match self {
            Self { unclaimed: 0, .. } => write!(f, "{ms:.1} ms"),
            Self { claimed: Duration::ZERO, .. } => write!(f, "unknown"),
            _ => write!(f, ">{ms:.1} ms"),
        }
    }
}

impl ScionPath {
    /// The path between two hosts of one AS, whose packets have at most `mtu` bytes: no interfaces and no header.
    pub fn inside(isd_as: IsdAs, mtu: u16, expiry: SystemTime) -> Self {
        Self {
            source: isd_as,
            destination: isd_as,
            interfaces: Vec::new(),
            mtu,
            expiry,
            latency: Vec::new(),
            bandwidth_kbps: Vec::new(),
            link_kinds: Vec::new(),
            remarks: Remarks::default(),
            next_hop: None,
            dataplane: Vec::new(),
        }
    }

    /// What is known of the way back to `destination` that a packet from there tells: the `numbers` of the interfaces, seen from
    /// `source`, but only the ASes at its ends. An MTU of zero is one that nobody told.
    pub fn told(source: IsdAs, destination: IsdAs, numbers: &[u16], mtu: u16) -> Self {
        let last = numbers.len().saturating_sub(1);
        let interface = |(at, id): (usize, &u16)| {
            let isd_as = match at {
                0 => source,
                at if at == last => destination,
                _ => IsdAs::default(),
            };
            Interface { isd_as, id: *id }
        };
        Self {
            source,
            destination,
            interfaces: numbers.iter().enumerate().map(interface).collect(),
            mtu,
            expiry: SystemTime::UNIX_EPOCH,
            latency: vec![None; last],
            bandwidth_kbps: vec![None; last],
            link_kinds: vec![LinkKind::default(); numbers.len() / 2],
            remarks: Remarks::default(),
            next_hop: None,
            dataplane: Vec::new(),
        }
    }

    /// The identity that survives refresh.
    pub fn id(&self) -> PathId {
        PathId::of_scion(self.source, self.destination, &self.interfaces)
    }

    /// Whether it is known which ASes it passes. A packet tells the numbers of the interfaces, and the ASes at the ends alone.
    pub fn is_named_throughout(&self) -> bool {
        self.interfaces.iter().all(|interface| interface.isd_as != IsdAs::default())
    }

    /// Whether it goes the same way as `other`, whatever is known of the ASes on it: each interface's number tells where the next
    /// one is.
    pub fn is_same_way(&self, other: &Self) -> bool {
        let numbers = |path: &Self| path.interfaces.iter().map(|interface| interface.id).collect::<Vec<u16>>();
        (self.source, self.destination) == (other.source, other.destination) && numbers(self) == numbers(other)
    }

    /// The name that scionproto's tools give it, in hexadecimal digits: SHA-256 of its interfaces (`snet.Fingerprint`). `None`
    /// inside one AS.
    pub fn fingerprint(&self) -> Option<String> {
        fingerprint(&self.interfaces)
    }

    /// Whether users mean it by `name`: the beginning of its id or of its fingerprint.
    pub fn is_named(&self, name: &PathIdPrefix) -> bool {
        name.matches(self.id()) || self.fingerprint().is_some_and(|fingerprint| name.begins(&fingerprint))
    }

    /// The ASes that it passes, both ends included.
    pub fn hop_count(&self) -> usize {
        self.interfaces.len() / 2 + 1
    }

    /// The ASes that it passes, in order; one inside an AS.
    pub fn hops(&self) -> impl Iterator<Item = Hop> + '_ {
        let entered = |link: usize| self.interfaces.get(2 * link + 1).copied();
        (0..self.hop_count()).map(move |place| {
            let egress = self.interfaces.get(2 * place).copied();
            let ingress = place.checked_sub(1).and_then(entered);
            let isd_as = ingress.or(egress).map_or(self.source, |interface| interface.isd_as);
            Hop { isd_as, ingress: ingress.map_or(0, |i| i.id), egress: egress.map_or(0, |e| e.id) }
        })
    }

    /// The links that it passes, in order: the interface that packets leave by, and the one they arrive at.
    pub fn links(&self) -> impl Iterator<Item = (Interface, Interface)> + '_ {
        self.interfaces.chunks_exact(2).map(|link| (link[0], link[1]))
    }

    /// Bytes of the SCION and UDP headers of a packet over it between two hosts (SCION header, "Common Header" and "Address
    /// Header"; RFC 768).
    pub fn headers_len(&self, local: IpAddr, remote: IpAddr) -> usize {
        const COMMON_LEN: usize = 12;
        const ISD_AS_LEN: usize = 8;
        const UDP_LEN: usize = 8;
        let host_len = |ip: IpAddr| if ip.is_ipv4() { 4 } else { 16 };
        COMMON_LEN + 2 * ISD_AS_LEN + host_len(local) + host_len(remote) + self.dataplane.len() + UDP_LEN
    }

    /// The MTU that it needs to carry payloads of `payload_len` bytes between two hosts, where it has less. An MTU of zero is one
    /// that nobody told.
    pub fn mtu_lacking(&self, local: IpAddr, remote: IpAddr, payload_len: usize) -> Option<u16> {
        let needed = u16::try_from(self.headers_len(local, remote) + payload_len).unwrap_or(u16::MAX);
        (self.mtu != 0 && self.mtu < needed).then_some(needed)
    }

    /// The claimed latency from the first interface to the last one. Inside one AS there is nothing to claim.
    pub fn latency(&self) -> Latency {
        let parts = self.interfaces.len().saturating_sub(1);
        let claims = self.latency.iter().take(parts).flatten();
        // Each claim comes from somebody else: they must not overflow in sum.
        let claimed = claims.clone().fold(Duration::ZERO, |sum, claim| sum.saturating_add(*claim));
        Latency { claimed, unclaimed: u32::try_from(parts - claims.count()).unwrap_or(u32::MAX) }
    }

    /// How many links, and ASes between two links, nobody made a claim of bandwidth for.
    pub fn bandwidth_unclaimed(&self) -> usize {
        let parts = self.interfaces.len().saturating_sub(1);
        parts - self.bandwidth_kbps.iter().take(parts).flatten().count()
    }

    /// The least claimed bandwidth on the way, in kbit/s; `None` where nobody claims. Unclaimed parts may be narrower.
    pub fn bandwidth_kbps_min(&self) -> Option<u64> {
        self.bandwidth_kbps.iter().flatten().copied().min()
    }

    /// What is sure of the bandwidth, in kbit/s: none where a part is unclaimed, all the world inside one AS.
    pub(crate) fn bandwidth_kbps_assured(&self) -> u64 {
        let parts = self.interfaces.len().saturating_sub(1);
        let claim = |part| self.bandwidth_kbps.get(part).copied().flatten().unwrap_or(0);
        (0..parts).map(claim).min().unwrap_or(u64::MAX)
    }
}

impl fmt::Display for ScionPath {
    /// As SCION's tools print hops: `1-ff00:0:110 1>2 1-ff00:0:111 3>1 1-ff00:0:112`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source)?;
        self.links().try_for_each(|(out, into)| write!(f, " {}>{} {}", out.id, into.id, into.isd_as))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::path;

    use super::*;

    #[test]
    fn hops_carry_the_interfaces_of_their_as() {
        let hop = |isd_as: &str, ingress, egress| Hop { isd_as: isd_as.parse().unwrap(), ingress, egress };
        let three = path("1-1 1>2 1-2 3>4 2-3");
        assert_eq!(three.hops().collect::<Vec<_>>(), [hop("1-1", 0, 1), hop("1-2", 2, 3), hop("2-3", 4, 0)]);
        assert_eq!(three.hop_count(), 3);
        assert_eq!(path("1-1").hops().collect::<Vec<_>>(), [hop("1-1", 0, 0)]);
        // Half a link, which no honest daemon sends, is left out and breaks nothing.
        let mut odd = three.clone();
        odd.interfaces.pop();
        assert_eq!(odd.hops().collect::<Vec<_>>(), [hop("1-1", 0, 1), hop("1-2", 2, 3)]);
        assert_eq!(odd.to_string(), "1-1 1>2 1-2");
    }

    #[test]
    fn a_way_is_the_same_whether_or_not_its_ases_are_known() {
        let named = path("1-1 1>2 1-2 3>4 2-3");
        let mut told = named.clone();
        told.interfaces[1].isd_as = IsdAs::default();
        told.interfaces[2].isd_as = IsdAs::default();
        assert!(named.is_named_throughout() && !told.is_named_throughout());
        assert!(named.is_same_way(&told) && told.is_same_way(&named) && named.id() != told.id());
        for other in ["1-1 1>2 1-2 3>5 2-3", "1-1 1>2 1-2 3>4 2-4", "1-1 1>4 2-3"] {
            assert!(!path(other).is_same_way(&told), "{other}");
        }
    }

    #[test]
    fn claims_add_up_and_say_whether_they_are_whole() {
        let mut path = path("1-1 1>2 1-2 3>4 1-3");
        let latency = |path: &ScionPath| path.latency().to_string();
        assert_eq!(latency(&path), "unknown");
        path.latency = vec![Some(Duration::from_millis(10)), None, Some(Duration::from_micros(2500))];
        assert_eq!(latency(&path), ">12.5 ms");
        path.latency[1] = Some(Duration::ZERO);
        assert_eq!(latency(&path), "12.5 ms");
        path.latency[1] = Some(Duration::MAX);
        assert_eq!(path.latency().claimed, Duration::MAX);
        assert_eq!(path.bandwidth_kbps_min(), None);
        path.bandwidth_kbps = vec![Some(7_000), None, Some(5_000)];
        assert_eq!((path.bandwidth_kbps_min(), path.bandwidth_unclaimed()), (Some(5_000), 1));
    }

    #[test]
    fn users_name_a_path_by_its_id_or_its_fingerprint() {
        let two = path("1-ff00:0:110 1>2 1-ff00:0:111");
        // SHA-256 of 0001ff0000000110 0000000000000001 0001ff0000000111 0000000000000002, as scionproto's snet computes it.
        let fingerprint = "efb260740020b1046d8699703f18772b2e79df49cd094879276c76dcca887be5";
        assert_eq!(two.fingerprint().as_deref(), Some(fingerprint));
        let named = |name: &str| two.is_named(&name.parse().unwrap());
        assert!(named(&fingerprint[..16]) && named(&two.id().to_string()) && !named("0000"));
        assert_eq!(path("1-ff00:0:110").fingerprint(), None);
    }
}
