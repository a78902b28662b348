//! What a path is, and its identity.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use crate::{Endpoint, Overlap, PathId, ScionPath};

/// Leading bits that the addresses of one network share: what a household or an office has of IPv4, and of IPv6 (RFC 4291 §2.5.4).
const NETWORK_BITS_V4: u32 = 24;
/// See [`NETWORK_BITS_V4`].
const NETWORK_BITS_V6: u32 = 64;

/// One way to reach a host.
///
/// Paths are equal that take the same way between the same hosts: a refreshed path equals its predecessor.
#[derive(Clone, Debug)]
pub struct Path {
    id: PathId,
    local: IpAddr,
    remote: IpAddr,
    scion: Option<Arc<ScionPath>>,
}

impl Path {
    /// The path over plain IP that leaves from the local address `local` towards the host `remote`.
    /// Ports are no part of it: they say who is at the end of a path, not which way it takes.
    pub fn ip(local: IpAddr, remote: IpAddr) -> Self {
        let (local, remote) = (local.to_canonical(), remote.to_canonical());
        Self { id: PathId::of_ip(local, remote), local, remote, scion: None }
    }

    /// The path through SCION from the host `local` of its source AS to the host `remote` of its destination AS.
    pub fn scion(local: IpAddr, remote: IpAddr, path: Arc<ScionPath>) -> Self {
        Self { id: path.id(), local: local.to_canonical(), remote: remote.to_canonical(), scion: Some(path) }
    }

    /// The identity that survives refresh. For SCION: of the way between the ASes, whichever hosts are at its ends.
    pub fn id(&self) -> PathId {
        self.id
    }

    /// The local address that packets leave from.
    pub fn local(&self) -> IpAddr {
        self.local
    }

    /// The host at the other end.
    pub fn remote(&self) -> IpAddr {
        self.remote
    }

    /// What is known of the way through SCION; `None` over plain IP.
    pub fn as_scion(&self) -> Option<&Arc<ScionPath>> {
        self.scion.as_ref()
    }

    /// Whether it stays on our own network, as far as its ends tell: within our AS, or, over plain IP, between addresses of which only the
    /// last part differs: 24 bits of IPv4 are the same, 64 of IPv6.
    pub fn is_near(&self) -> bool {
        match (&self.scion, self.local, self.remote) {
            (Some(path), ..) => path.interfaces.is_empty(),
            (None, IpAddr::V4(local), IpAddr::V4(remote)) => {
                (local.to_bits() ^ remote.to_bits()) >> (u32::BITS - NETWORK_BITS_V4) == 0
            }
            (None, IpAddr::V6(local), IpAddr::V6(remote)) => {
                (local.to_bits() ^ remote.to_bits()) >> (u128::BITS - NETWORK_BITS_V6) == 0
            }
            (None, ..) => false,
        }
    }

    /// What this path and `other` have in common. Of plain IP only the ends are known.
    pub fn overlap(&self, other: &Self) -> Overlap {
        match (&self.scion, &other.scion) {
            (Some(ours), Some(theirs)) => ours.overlap(theirs),
            (None, None) => Overlap::of_ip((self.local, self.remote), (other.local, other.remote)),
            _ => Overlap::default(),
        }
    }
}

impl PartialEq for Path {
    fn eq(&self, other: &Self) -> bool {
        (self.id, self.local, self.remote) == (other.id, other.local, other.remote)
    }
}

impl Eq for Path {}

impl Hash for Path {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.id, self.local, self.remote).hash(state);
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.scion {
            Some(path) => path.fmt(f),
            None => write!(f, "{} > {}", self.local, self.remote),
        }
    }
}

/// A path-level peer: somebody, and one way to reach them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathPeer {
    /// Who: the address-level peer.
    pub endpoint: Endpoint,
    /// By which way.
    pub path: Path,
}

impl PathPeer {
    /// `endpoint`, reached over `path`.
    pub fn new(endpoint: Endpoint, path: Path) -> Self {
        Self { endpoint, path }
    }
}

impl fmt::Display for PathPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {}", self.endpoint, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn ip_identity_is_stable_and_tells_paths_apart() {
        let path = |local: &str, remote: &str| Path::ip(address(local), address(remote));
        let first = path("10.0.0.1", "10.0.0.2");
        assert_eq!(first.id(), path("::ffff:10.0.0.1", "10.0.0.2").id());
        assert_ne!(first.id(), path("10.0.0.2", "10.0.0.1").id());
        // A changed value here would orphan every scoreboard and log that names paths.
        assert_eq!(first.id().to_string(), "1dec194377b5");
    }

    #[test]
    fn who_shares_our_network_is_near() {
        let is_near = |local: &str, remote: &str| Path::ip(address(local), address(remote)).is_near();
        assert!(is_near("192.168.1.5", "192.168.1.77") && is_near("::ffff:10.0.0.1", "10.0.0.2"));
        assert!(!is_near("192.168.1.5", "192.168.2.5") && !is_near("10.0.0.1", "203.0.113.1"));
        assert!(is_near("2001:db8:0:7::1", "2001:db8:0:7:ff::2") && !is_near("2001:db8:0:7::1", "2001:db8:0:8::1"));
        assert!(!is_near("10.0.0.1", "2001:db8::1") && is_near("::1", "::1"));
        let scion =
            |path: &str| Path::scion(address("10.0.0.1"), address("10.0.0.2"), Arc::new(testing::path(path))).is_near();
        // The same private addresses may be in use in every AS.
        assert!(!scion("1-ff00:0:110 1>2 1-ff00:0:111"));
        let within = ScionPath::inside("1-ff00:0:110".parse().unwrap(), 1472, std::time::SystemTime::UNIX_EPOCH);
        assert!(Path::scion(address("10.0.0.1"), address("10.9.0.2"), Arc::new(within)).is_near());
    }

    #[test]
    fn a_refreshed_path_is_the_same_path() {
        let path = |scion: ScionPath, remote: &str| Path::scion(address("10.0.0.1"), address(remote), Arc::new(scion));
        let before = testing::path("1-ff00:0:110 1>2 1-ff00:0:111");
        let mut after = before.clone();
        after.expiry += std::time::Duration::from_secs(3600);
        after.dataplane = vec![7; 36];
        assert_eq!(path(before.clone(), "10.0.0.2"), path(after.clone(), "10.0.0.2"));
        // Another host of the same AS is another path-level peer over the same way.
        assert_ne!(path(before.clone(), "10.0.0.2"), path(after.clone(), "10.0.0.3"));
        assert_eq!(path(before, "10.0.0.2").id(), path(after, "10.0.0.3").id());
    }

    #[test]
    fn paths_over_different_networks_share_nothing() {
        let ip = Path::ip(address("10.0.0.1"), address("10.0.0.2"));
        let scion = testing::path("1-ff00:0:110 1>2 1-ff00:0:111");
        let scion = Path::scion(address("10.0.0.1"), address("10.0.0.2"), Arc::new(scion));
        assert_eq!(ip.overlap(&scion), Overlap::default());
        assert_eq!(ip.overlap(&ip), Overlap { interfaces: 2, links: 1 });
        assert_eq!(scion.overlap(&scion), Overlap { interfaces: 2, links: 1 });
        assert_eq!(ip.to_string(), "10.0.0.1 > 10.0.0.2");
        assert_eq!(scion.to_string(), "1-ff00:0:110 1>2 1-ff00:0:111");
    }
}
