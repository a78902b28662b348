//! A secure content's peers: whoever is dialled has to prove a key first, and the one that is expected there.

use std::rc::Rc;
use std::time::Instant;

use anabranch_paths::manager::EndCause;
use anabranch_transport::NodeId;
use anabranch_transport::secure::SecureClose;

use super::Content;
use crate::events::EventKind;
use crate::ppspp::audience::Audience;
use crate::ppspp::path_table::PathAddress;

impl Content {
    /// With whom it deals, where it is secure.
    pub(in super::super) fn audience(&self) -> Option<Rc<Audience>> {
        self.secure.as_ref().map(|secure| Rc::clone(&secure.audience))
    }

    /// The way as its channels go: inside QUIC, where it is secure.
    pub(super) fn way_of(&self, way: PathAddress) -> PathAddress {
        if self.is_secure() { way.secured() } else { way }
    }

    /// Whether its datagrams are inside QUIC.
    pub(super) fn is_secure(&self) -> bool {
        self.secure.is_some()
    }

    /// Whether it waits for whoever is at the end of the way.
    pub(super) fn is_calling(&self, way: &PathAddress) -> bool {
        self.secure.as_ref().is_some_and(|secure| secure.calling.contains(way))
    }

    /// Opens a channel over the way; where the content is secure, once a key was proven. `false` where there is one, or one is about to
    /// be, or none can be.
    pub(super) fn open_channel(&mut self, way: &PathAddress, now: Instant) -> bool {
        if self.secure.is_none() {
            return self.core.connect(now, way);
        }
        if let Some(key) = self.hub.key_of(way) {
            let Some(reason) = self.unfit(way, &key) else { return self.core.connect(now, way) };
            self.not_reached(way, &reason, true, now);
            return true;
        }
        let is_new = self.secure.as_mut().is_some_and(|secure| secure.calling.insert(*way));
        if is_new && !self.hub.call(way, now) {
            self.secure.iter_mut().for_each(|secure| _ = secure.calling.remove(way));
            return false;
        }
        is_new
    }

    /// Whoever is at the end of the way proved its key.
    pub(super) fn secured(&mut self, way: &PathAddress, key: NodeId, now: Instant) {
        if !self.secure.as_mut().is_some_and(|secure| secure.calling.remove(way)) {
            return;
        }
        match self.unfit(way, &key) {
            Some(reason) => {
                self.hub.hang_up(way, SecureClose::KeyNotExpected, now);
                self.not_reached(way, &reason, true, now);
            }
            None => _ = self.core.connect(now, way),
        }
        self.pump(now);
    }

    /// The connection ended, or did not come about.
    pub(super) fn unsecured(&mut self, way: &PathAddress, reason: &str, is_final: bool, now: Instant) {
        let Some(secure) = &mut self.secure else { return };
        if secure.calling.remove(way) {
            self.not_reached(way, reason, is_final, now);
        } else if self.core.has_channel(way) {
            secure.reasons.insert(*way, (reason.to_owned(), is_final));
            self.core.disconnect(way);
        }
        self.pump(now);
    }

    /// Waits no longer for the way: what comes of it is nobody's concern.
    pub(super) fn give_up_way(&mut self, way: &PathAddress, reason: &str, now: Instant) {
        if self.secure.as_mut().is_some_and(|secure| secure.calling.remove(way)) {
            self.not_reached(way, reason, false, now);
        } else {
            self.core.disconnect(way);
        }
    }

    /// The same for all.
    pub(super) fn give_up_all(&mut self, now: Instant) {
        let calling: Vec<PathAddress> = self.secure.iter().flat_map(|secure| secure.calling.iter().copied()).collect();
        calling.iter().for_each(|way| self.give_up_way(way, "we are leaving", now));
    }

    /// Why the channel over the way ends, where that is known, and whether that is final.
    pub(super) fn take_reason(&mut self, way: &PathAddress) -> Option<(String, bool)> {
        self.secure.as_mut()?.reasons.remove(way)
    }

    /// What is wrong with the key of whoever is at the end of the way.
    fn unfit(&self, way: &PathAddress, key: &NodeId) -> Option<String> {
        let secure = self.secure.as_ref()?;
        let audience = &secure.audience;
        if secure.pinned.contains(&way.remote) && *key != audience.key {
            return Some(format!(
                "it has the key {key}, not {}, which the link names: ask who shares it for a new link",
                audience.key
            ));
        }
        (!audience.admits(key)).then(|| format!("it has the key {key}, which --allow does not admit"))
    }

    fn not_reached(&mut self, way: &PathAddress, reason: &str, is_final: bool, now: Instant) {
        let address = way.remote;
        let is_path = self.paths.is_dialled(way);
        let cause = if is_final { EndCause::Refused } else { EndCause::Network };
        self.path_left(way, cause(reason.to_owned()), now);
        if !is_path {
            self.tell(EventKind::PeerDisconnected { address, reason: reason.to_owned() });
        }
        if !self.paths.reaches(address) {
            self.tell_failure(address, reason, (false, is_final), now);
            self.announce.notify_one();
        }
        self.wake.notify_one();
    }
}
