//! Attempts to open a path: what is opened, how long it has, and when it is tried again.

use std::time::{Duration, Instant, SystemTime};

use super::hosts::Host;
use super::reason::{ChangeReason, EndCause, PathCondition, Trigger};
use super::{Action, Dial, HostId, PATHS_PER_PEER_MAX, PathManager};
use crate::{Endpoint, Path, PathId};

/// Wait after an attempt that failed: through SCION asking costs one packet, and links come back at any time.
const RETRY_SCION: Duration = Duration::from_millis(500);
/// The same over IP.
const RETRY_IP: Duration = Duration::from_secs(1);
/// How long a path through SCION has for opening, when it is tried again, ...
const REOPENING_MAX: Duration = Duration::from_millis(1500);
/// ... and at first: lookups, keys and round trips around the world.
const OPENING_SCION_MAX: Duration = Duration::from_secs(5);
/// How long one over IP has: two lost SYNs, and then some.
const OPENING_IP_MAX: Duration = Duration::from_secs(4);

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialEnd {
    /// It brought a connection, which is over by now.
    Closed,
    /// There was no connection.
    Failed {
        /// Why.
        cause: EndCause,
        /// The transport opened, and the peer did not want it.
        by_peer: bool,
    },
}

impl PathManager {
    /// An attempt brought a connection: what failed before does not count.
    pub fn dial_opened(&mut self, dial: &Dial, now: Instant) {
        let Some(host) = self.hosts.get_mut(&dial.host) else { return };
        if dial.path.as_scion().is_none() {
            host.opened_at = Some(now);
        }
        if let Some(tried) = host.dials.get_mut(&dial.path.id()) {
            tried.opened();
        }
    }

    /// An attempt is over.
    pub fn dial_ended(&mut self, dial: &Dial, end: DialEnd, now: Instant) {
        let Some(host) = self.hosts.get_mut(&dial.host) else { return };
        let is_scion = dial.path.as_scion().is_some();
        let retry = if is_scion { RETRY_SCION } else { RETRY_IP };
        // What a peer only says of itself may be somebody else's address.
        let is_hearsay = dial.address.as_ip().is_some_and(|remote| !host.listens.contains(&remote));
        let tried = host.dials.entry(dial.path.id()).or_default();
        let (cause, by_peer) = match end {
            DialEnd::Closed => return tried.ended(retry, now),
            DialEnd::Failed { cause, by_peer } => (cause, by_peer),
        };
        let is_first = if is_hearsay { tried.hearsay_failed(retry, now) } else { tried.failed(retry, now) };
        if by_peer && !is_scion {
            host.refused(now);
        }
        if is_first {
            self.trigger.reconsider(Trigger::CouldNotOpen);
            if !is_scion {
                let reason = ChangeReason::CouldNotOpen(cause);
                self.tell_change(dial.address, dial.path.clone(), PathCondition::Down, reason);
            }
        }
    }

    /// Opens a path, unless it is open or was tried lately.
    pub(super) fn want(&mut self, id: HostId, address: Endpoint, path: &Path, now: Instant, wall: SystemTime) {
        let Some(host) = self.hosts.get(&id) else { return };
        let is_over = path.as_scion().is_some_and(|scion| scion.expiry <= wall);
        let has_room = host.conns.len() + host.dials_under_way() < PATHS_PER_PEER_MAX;
        if is_over || !has_room || self.is_open(host, path.id()) {
            return;
        }
        let patience = match path.as_scion() {
            None => OPENING_IP_MAX,
            Some(_) => self.handshakes.get(&path.id()).map_or(OPENING_SCION_MAX, |known| REOPENING_MAX.max(*known * 5)),
        };
        let Some(host) = self.hosts.get_mut(&id) else { return };
        if host.dials.entry(path.id()).or_default().begin(now) {
            self.actions.push_back(Action::Dial(Dial { host: id, address, path: path.clone(), patience }));
        }
    }

    /// Whether a connection over a path is open and works.
    pub(super) fn carries(&self, host: &Host, path: PathId) -> bool {
        self.conns_of(host).any(|(_, conn)| conn.carries(path))
    }

    pub(super) fn is_open(&self, host: &Host, path: PathId) -> bool {
        self.conns_of(host).any(|(_, conn)| conn.path.id() == path)
    }
}
