//! What is known of a path through SCION networks.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use crate::{Interface, IsdAs};

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
    /// The border router (or, inside one AS, `None`: the host itself) that packets are handed to.
    pub next_hop: Option<SocketAddr>,
    /// The path header as it stands in a packet of ours (type SCION); empty inside one AS.
    pub dataplane: Vec<u8>,
}
