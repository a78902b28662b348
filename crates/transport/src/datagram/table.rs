//! The paths of one socket, and which of them a packet came by. Pure.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use anabranch_paths::{Endpoint, ScionAddr};
use anabranch_scion_wire::scmp::END_HOST_PORT;

use super::error::PathError;
use super::path::{Network, Path};

/// Paths of one socket: what a bulk transfer to dozens of hosts over every path takes, and a list that is searched in no time.
pub const PATHS_MAX: usize = 1024;

/// One path of one socket. Never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathKey(u64);

impl PathKey {
    /// Of no path: there are never so many.
    pub(super) const NONE: Self = Self(u64::MAX);
}

/// The paths that somebody has added. Packets add none.
#[derive(Debug, Default)]
pub struct Table {
    paths: HashMap<PathKey, Path>,
    by_remote: HashMap<Endpoint, Vec<PathKey>>,
    next: u64,
    /// Hosts that hand over what comes from other ASes; empty where nobody has told.
    routers: Vec<IpAddr>,
}

impl Table {
    /// Adds a path. One that goes the same way as another takes its place and has its key.
    ///
    /// # Errors
    /// There are [`PATHS_MAX`] already.
    pub fn add(&mut self, path: &Path) -> Result<PathKey, PathError> {
        let known = self.by_remote.get(&path.remote()).into_iter().flatten();
        let same = known.copied().find(|key| self.paths.get(key).is_some_and(|known| known.is_same_way(path)));
        if let Some(key) = same {
            self.paths.insert(key, path.clone());
            return Ok(key);
        }
        if self.paths.len() == PATHS_MAX {
            return Err(PathError::TooMany);
        }
        let key = PathKey(self.next);
        self.next += 1;
        self.paths.insert(key, path.clone());
        self.by_remote.entry(path.remote()).or_default().push(key);
        Ok(key)
    }

    /// Takes one out; false if it was gone.
    pub fn remove(&mut self, key: PathKey) -> bool {
        let Some(path) = self.paths.remove(&key) else { return false };
        if let Some(keys) = self.by_remote.get_mut(&path.remote()) {
            keys.retain(|other| *other != key);
            if keys.is_empty() {
                self.by_remote.remove(&path.remote());
            }
        }
        true
    }

    /// The path behind a key.
    pub fn get(&self, key: PathKey) -> Option<&Path> {
        self.paths.get(&key)
    }

    /// See [`super::Socket::set_routers`].
    pub fn set_routers(&mut self, routers: impl IntoIterator<Item = IpAddr>) {
        self.routers = routers.into_iter().map(|ip| ip.to_canonical()).collect();
    }

    /// Whether `from` may hand over packets of other ASes to `local`. A path's own next hop may, wherever routers were told. A
    /// dispatcher on this host, as older ASes need it, hands on what routers gave it.
    pub(super) fn is_router(&self, local: ScionAddr, from: SocketAddr) -> bool {
        let ip = from.ip().to_canonical();
        let is_dispatcher = ip == local.host.ip() && from.port() == END_HOST_PORT;
        self.routers.is_empty() || is_dispatcher || self.routers.contains(&ip) || self.is_next_hop(ip)
    }

    fn is_next_hop(&self, ip: IpAddr) -> bool {
        self.paths.values().any(|path| match path.network() {
            Network::Scion { next_hop, interfaces, .. } => !interfaces.is_empty() && next_hop.ip() == ip,
            Network::Ip { .. } => false,
        })
    }

    /// The path to `remote` over these interfaces.
    pub(super) fn find_scion(
        &self,
        remote: ScionAddr,
        interfaces: impl Iterator<Item = u16> + Clone,
    ) -> Option<PathKey> {
        self.find(remote.into(), |network| match network {
            Network::Scion { interfaces: known, .. } => known.iter().copied().eq(interfaces.clone()),
            Network::Ip { .. } => false,
        })
    }

    /// The path to `remote` from the address `local` of interface number `interface`, as far as these are known.
    pub(super) fn find_ip(&self, remote: SocketAddr, local: Option<IpAddr>, interface: u32) -> Option<PathKey> {
        self.find(remote.into(), |network| match *network {
            Network::Ip { from, interface: leaves_by, .. } => {
                let same_address = from.is_none() || local.is_none() || from == local;
                same_address && (leaves_by == 0 || interface == 0 || leaves_by == interface)
            }
            Network::Scion { .. } => false,
        })
    }

    fn find(&self, remote: Endpoint, mut is_it: impl FnMut(&Network) -> bool) -> Option<PathKey> {
        let mut keys = self.by_remote.get(&remote)?.iter().copied();
        keys.find(|key| self.paths.get(key).is_some_and(|path| is_it(path.network())))
    }
}
