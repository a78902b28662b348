//! Callers that have not shown yet who they are or what they want. Each costs its caller a few packets, so places are given by host:
//! nobody keeps others out by being many, or silent.

use std::collections::VecDeque;

use crate::Host;

/// Callers at once.
pub const PENDING_MAX: usize = 256;
/// Of these, one host's: as many as call at once where a whole network has one address.
pub const PENDING_OF_HOST_MAX: usize = 32;
/// Above so many, a caller whose address may be anybody's first has to show that it is its own ...
pub const PENDING_TRUSTED: usize = 64;
/// ... and above so many of its host.
pub const PENDING_OF_HOST_TRUSTED: usize = 8;

/// All callers at one door. `K` names one, `T` is what it takes to turn it away.
#[derive(Clone, Debug)]
pub struct PendingCallers<K, T> {
    /// The oldest first.
    all: VecDeque<(K, Host, T)>,
}

impl<K, T> Default for PendingCallers<K, T> {
    fn default() -> Self {
        Self { all: VecDeque::new() }
    }
}

impl<K: PartialEq, T> PendingCallers<K, T> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether a caller whose address may be anybody's has to show that it is there before it enters from `host`. This machine is one
    /// host of many programs, each with a right of its own.
    pub fn must_prove(&self, host: Host) -> bool {
        let of_host = self.all.iter().filter(|(_, other, _)| *other == host).count();
        self.all.len() >= PENDING_TRUSTED || of_host >= PENDING_OF_HOST_TRUSTED && !host.is_loopback()
    }

    /// A caller from `host` enters. Answers who has to go for it: of a host with too many, its oldest; where all are too many, the
    /// oldest of the host that has most.
    pub fn enter(&mut self, key: K, host: Host, caller: T) -> Option<(K, T)> {
        self.all.push_back((key, host, caller));
        let hosts: Vec<Host> = self.all.iter().map(|(_, host, _)| *host).collect();
        let (key, _, caller) = self.all.remove(goes(&hosts, host)?)?;
        Some((key, caller))
    }

    /// A caller has shown what it wants, or is gone.
    pub fn leave(&mut self, key: &K) {
        self.all.retain(|(other, ..)| other != key);
    }
}

/// Which of those from `hosts`, the oldest first, goes now that one from `newcomer` is among them.
fn goes(hosts: &[Host], newcomer: Host) -> Option<usize> {
    let of = |host: Host| hosts.iter().filter(|other| **other == host).count();
    let from = if of(newcomer) > PENDING_OF_HOST_MAX && !newcomer.is_loopback() {
        newcomer
    } else if hosts.len() > PENDING_MAX {
        // Of hosts with as many, the first: that of the oldest.
        *hosts.iter().rev().max_by_key(|host| of(**host))?
    } else {
        return None;
    };
    hosts.iter().position(|host| *host == from)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;

    fn host(number: u32) -> Host {
        Host::of(&SocketAddr::from((Ipv4Addr::from_bits(0x0a00_0000 + number), 1)).into())
    }

    fn own() -> Host {
        Host::of(&"127.0.0.1:1".parse().unwrap())
    }

    /// Who goes as each of `hosts` enters, by its place among them.
    fn gone(hosts: &[Host]) -> Vec<usize> {
        let mut pending = PendingCallers::default();
        let enter = |(at, host): (usize, &Host)| pending.enter(at, *host, ()).map(|(at, ())| at);
        let gone = hosts.iter().enumerate().filter_map(enter).collect();
        assert!(pending.len() <= PENDING_MAX);
        gone
    }

    #[test]
    fn a_host_that_is_silent_many_times_loses_its_own_oldest() {
        let mut hosts = vec![host(7)];
        hosts.extend([host(1); PENDING_OF_HOST_MAX]);
        assert!(gone(&hosts).is_empty());
        hosts.extend([host(1); 2]);
        assert_eq!(gone(&hosts), [1, 2]);
        assert!(gone(&[own(); PENDING_MAX]).is_empty(), "this machine's limit is that of all");
        assert_eq!(gone(&[own(); PENDING_MAX + 1]), [0]);
    }

    #[test]
    fn where_all_are_too_many_the_oldest_of_those_goes_that_have_most() {
        let eight_each = |count: usize| (0..count as u32).map(|number| host(number / 8)).collect::<Vec<_>>();
        let mut hosts = eight_each(PENDING_MAX);
        assert!(gone(&hosts).is_empty());
        hosts.push(host(20));
        assert_eq!(gone(&hosts), [160], "its own: it has nine");
        *hosts.last_mut().unwrap() = host(999);
        assert_eq!(gone(&hosts), [0], "of hosts with as many, that of the oldest");
        // Nine of one host in between are most, whoever comes.
        let mut crowd = eight_each(PENDING_MAX - 9);
        crowd.splice(100..100, [host(500); 9]);
        crowd.push(host(999));
        assert_eq!(gone(&crowd), [100]);
        let one_each: Vec<Host> = (0..=PENDING_MAX as u32).map(host).collect();
        assert_eq!(gone(&one_each), [0]);
    }

    #[test]
    fn who_leaves_makes_room_and_is_not_turned_away() {
        let mut pending = PendingCallers::default();
        for at in 0..PENDING_MAX {
            assert_eq!(pending.enter(at, own(), ()), None);
        }
        pending.leave(&0);
        pending.leave(&0);
        assert_eq!((pending.enter(1000, own(), ()), pending.len()), (None, PENDING_MAX));
        assert_eq!(pending.enter(1001, own(), ()), Some((1, ())));
    }

    #[test]
    fn addresses_have_to_be_shown_once_some_are_waiting() {
        let mut pending = PendingCallers::default();
        for at in 0..PENDING_TRUSTED as u32 {
            assert_eq!(pending.must_prove(host(0)), at >= PENDING_OF_HOST_TRUSTED as u32);
            assert!(!pending.must_prove(host(1)) && !pending.must_prove(own()));
            let from = if at < PENDING_OF_HOST_TRUSTED as u32 { host(0) } else { host(at + 1) };
            pending.enter(at, from, ());
        }
        assert!(pending.must_prove(host(1)) && pending.must_prove(own()));
    }
}
