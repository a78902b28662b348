//! The ways out of this machine over plain IP: its network interfaces, for all contents.

use std::cell::{Cell, Ref, RefCell};
use std::net::SocketAddr;
use std::time::Instant;

use anabranch_paths::Path;
use anabranch_paths::manager::UPLINKS_EVERY;
use anabranch_transport::{InterfaceError, Interfaces, IpCandidate, Via};

/// The network interfaces that connections may leave by.
pub(crate) struct Uplinks {
    interfaces: RefCell<Interfaces>,
    looked_at: Cell<Instant>,
    /// Counts the changes.
    version: Cell<u64>,
}

impl Uplinks {
    /// The interfaces of these names; all where there are none.
    pub(crate) fn open(names: &[String], now: Instant) -> Result<Self, InterfaceError> {
        let interfaces = RefCell::new(Interfaces::new(names)?);
        Ok(Self { interfaces, looked_at: Cell::new(now), version: Cell::new(0) })
    }

    /// Where peers reach us, who listen at these addresses.
    pub(crate) fn reachable_at(&self, listening: &[SocketAddr]) -> Vec<SocketAddr> {
        self.interfaces.borrow().reachable_at(listening)
    }

    /// Looks whether interfaces came or went, where that is due; answers the number of changes so far.
    pub(crate) fn refresh(&self, now: Instant) -> u64 {
        if now.saturating_duration_since(self.looked_at.get()) >= UPLINKS_EVERY {
            self.looked_at.set(now);
            // What the system does not tell stays as it was, and is asked for again.
            if self.interfaces.borrow_mut().refresh().unwrap_or(false) {
                self.version.set(self.version.get() + 1);
            }
        }
        self.version.get()
    }

    /// As they are now.
    pub(crate) fn interfaces(&self) -> Ref<'_, Interfaces> {
        self.interfaces.borrow()
    }

    /// How to leave for `remote` over `path`; `None` where that is possible no more.
    pub(crate) fn via(&self, remote: SocketAddr, path: &Path) -> Option<Via> {
        let candidates = self.interfaces.borrow().candidates(&[remote]);
        candidates.into_iter().find(|candidate| candidate.path == *path).map(|candidate| candidate.via)
    }

    /// How to reach `remote` at the first attempt, or after so many that failed: as the system's routes go, unless the user
    /// named interfaces, then by one after the other.
    pub(crate) fn first_via(&self, remote: SocketAddr, failures: usize) -> Result<Option<IpCandidate>, String> {
        let interfaces = self.interfaces.borrow();
        let is_free = !interfaces.is_restricted();
        if is_free && failures == 0 {
            return Ok(None);
        }
        let mut all = interfaces.candidates(&[remote]);
        let turns = all.len() + usize::from(is_free);
        let Some(turn) = failures.checked_rem(turns) else {
            return Err("none of the interfaces that may be used leads there: see --interface".to_owned());
        };
        Ok(match is_free {
            true if turn == 0 => None,
            true => Some(all.swap_remove(turn - 1)),
            false => Some(all.swap_remove(turn)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_attempt_is_the_systems_and_later_ones_go_round() {
        let (remote, now) = ("127.0.0.1:80".parse().unwrap(), Instant::now());
        let free = Uplinks::open(&[], now).unwrap();
        let named: Vec<bool> = (0..4).map(|failures| free.first_via(remote, failures).unwrap().is_some()).collect();
        assert_eq!(named, [false, true, false, true]);
        let lo = Interfaces::new(&[]).unwrap().list().iter().find(|interface| interface.loopback).unwrap().name.clone();
        let only = Uplinks::open(std::slice::from_ref(&lo), now).unwrap();
        let first = only.first_via(remote, 0).unwrap().unwrap();
        assert_eq!(first.via.interface, lo);
        assert_eq!(only.via(remote, &first.path).unwrap().interface, lo);
        let nowhere = only.first_via("192.0.2.1:80".parse().unwrap(), 0).unwrap_err();
        assert!(nowhere.contains("--interface"), "{nowhere}");
        assert!(Uplinks::open(&["nope7".to_owned()], now).is_err());
    }
}
