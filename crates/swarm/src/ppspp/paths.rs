//! The paths of a content: a channel belongs to one, for life. Which there are is decided by the same state machine and the same
//! selectors as for BitTorrent's connections ([`PathManager`]).

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Instant;

use anabranch_bittorrent::PeerKey;
use anabranch_paths::manager::{self, Dial, DownCause, ManagerConfig, PathManager};
use anabranch_paths::{ConnId, Endpoint, Path};
use tokio::sync::Notify;

use super::path_table::PathAddress;
use crate::resources::Resources;

/// A content's paths.
pub(super) struct ContentPaths {
    /// Wakes the task.
    pub wake: Rc<Notify>,
    pub manager: PathManager,
    pub conns: BTreeMap<ConnId, PathConn>,
    pub of_way: HashMap<PathAddress, ConnId>,
    pub peers: HashMap<Endpoint, PeerKey>,
    next: u32,
    /// What the manager has us open, and until when each may take.
    pub dials: HashMap<PathAddress, (Dial, Instant)>,
    pub refreshed_at: Instant,
}

/// A channel and its path.
pub(super) struct PathConn {
    pub way: PathAddress,
    pub path: Path,
    /// What somebody said of its path, and what had come by then.
    pub complaint: Option<(DownCause, u64)>,
}

impl ContentPaths {
    /// Of a content that knows nobody yet.
    pub(super) fn new(resources: &Resources, now: Instant) -> Self {
        Self {
            wake: Rc::default(),
            manager: PathManager::new(ManagerConfig { leaves_silent: true, ..resources.manager_config() }),
            conns: BTreeMap::new(),
            of_way: HashMap::new(),
            peers: HashMap::new(),
            next: 0,
            dials: HashMap::new(),
            refreshed_at: now,
        }
    }

    /// A channel's path, and what is known of it.
    pub(super) fn of(&self, way: &PathAddress) -> Option<(&Path, manager::PathCondition, bool)> {
        let id = self.of_way.get(way)?;
        let (condition, is_one_of_many) = self.manager.condition(*id)?;
        Some((&self.conns.get(id)?.path, condition, is_one_of_many))
    }

    /// The number of a channel.
    pub(super) fn conn_of(&self, way: &PathAddress) -> Option<ConnId> {
        self.of_way.get(way).copied()
    }

    /// Whether there is a channel to `address`.
    pub(super) fn reaches(&self, address: Endpoint) -> bool {
        self.manager.reaches(address)
    }

    /// The ways by which `address` is reached.
    pub(super) fn ways_to(&self, address: Endpoint) -> impl Iterator<Item = PathAddress> {
        self.conns.values().map(|conn| conn.way).filter(move |way| way.remote == address)
    }

    /// Whether the manager had the way dialled.
    pub(super) fn is_dialled(&self, way: &PathAddress) -> bool {
        self.dials.contains_key(way)
    }

    /// A number that none has yet.
    pub(super) fn number(&mut self) -> u32 {
        self.next = self.next.wrapping_add(1);
        self.next
    }
}
