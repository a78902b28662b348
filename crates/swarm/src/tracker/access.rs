//! Which servers may be asked, and which way leads there: the same for trackers, web seeds and what is fetched.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anabranch_bittorrent::ip_filter::IpFilter;
use anabranch_bittorrent::reach::Reach;
use anabranch_bittorrent::tracker::TrackerUrl;
use anabranch_transport::Proxy;

use super::error::Cause;
use crate::net::leave::Leave;

/// Addresses of one name that are kept, each family's in the resolver's order.
pub const ADDRESSES_MAX: usize = 16;

/// What holds for all connections.
#[derive(Clone, Debug, Default)]
pub struct TrackerAccess {
    /// Whom we have nothing to do with.
    pub filter: Arc<IpFilter>,
    /// What all connections go through, and UDP where it relays it.
    pub proxy: Option<Arc<Proxy>>,
    /// By which interfaces to leave, where there is no proxy.
    pub leave: Leave,
}

impl TrackerAccess {
    /// The addresses of a tracker's or web seed's host; at least one.
    pub(crate) async fn resolve(&self, url: &TrackerUrl) -> Result<Vec<SocketAddr>, Cause> {
        let mut addrs = self.leave.look_up(url.host(), url.port()).await.map_err(Cause::Dns)?;
        addrs.truncate(ADDRESSES_MAX);
        if addrs.is_empty() { Err(Cause::NoAddress) } else { Ok(addrs) }
    }

    /// The addresses that are not blocked; at least one.
    pub(crate) fn free(&self, mut addrs: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, Cause> {
        addrs.retain(|addr| !self.filter.blocks_ip(addr.ip()));
        if addrs.is_empty() { Err(Cause::Blocked) } else { Ok(addrs) }
    }

    /// Judges a tracker that somebody else than the user names, and whose addresses only the proxy sees.
    pub(crate) fn judge_unseen(&self, url: &TrackerUrl) -> Result<(), Cause> {
        match url.host().parse::<IpAddr>() {
            Ok(ip) if self.filter.blocks_ip(ip) => Err(Cause::Blocked),
            Ok(ip) if Reach::of(ip) < Reach::World => Err(Cause::TooNear(url.authority())),
            Err(_) if Proxy::is_local_name(url.host()) => Err(Cause::TooNear(url.authority())),
            _ => Ok(()),
        }
    }
}
