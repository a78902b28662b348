//! What a path is, and its identity.

use std::fmt;
use std::net::IpAddr;

use sha2::{Digest, Sha256};

use crate::Endpoint;

/// Bytes of a [`PathId`]: enough that two of the paths one node ever sees never collide.
const PATH_ID_LEN: usize = 16;

/// The identity of a path: a hash of the ordered list of things it passes. Stable across refresh and restarts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId([u8; PATH_ID_LEN]);

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..6].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PathId({self})")
    }
}

/// One way to reach a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    id: PathId,
    local: IpAddr,
    remote: IpAddr,
}

impl Path {
    /// The path over plain IP that leaves from the local address `local` towards the host `remote`.
    /// Ports are no part of it: they say who is at the end of a path, not which way it takes.
    pub fn ip(local: IpAddr, remote: IpAddr) -> Self {
        let (local, remote) = (local.to_canonical(), remote.to_canonical());
        let mut hash = Sha256::new();
        hash.update(b"anabranch path v1: ip\0");
        for address in [local, remote] {
            match address {
                IpAddr::V4(v4) => hash.update([&[4], v4.octets().as_slice()].concat()),
                IpAddr::V6(v6) => hash.update([&[6], v6.octets().as_slice()].concat()),
            }
        }
        let mut id = [0; PATH_ID_LEN];
        id.copy_from_slice(&hash.finalize()[..PATH_ID_LEN]);
        Self { id: PathId(id), local, remote }
    }

    /// The identity that survives refresh.
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
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {}", self.local, self.remote)
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

    #[test]
    fn identity_is_stable_and_tells_paths_apart() {
        let path = |local: &str, remote: &str| Path::ip(local.parse().unwrap(), remote.parse().unwrap());
        let first = path("10.0.0.1", "10.0.0.2");
        assert_eq!(first.id(), path("::ffff:10.0.0.1", "10.0.0.2").id());
        assert_ne!(first.id(), path("10.0.0.2", "10.0.0.1").id());
        // A changed value here would orphan every scoreboard and log that names paths.
        assert_eq!(first.id().to_string(), path("10.0.0.1", "10.0.0.2").id().to_string());
    }
}
