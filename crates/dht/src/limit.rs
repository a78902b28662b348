//! How much is answered, to whom: per address, in all, and to those who may not be where they say.
//!
//! A query of a hundred bytes has an answer of several hundred, and who sends it may give another's address for its own. So an address
//! that has proven nothing gets answers that are longer than its queries out of a small budget only: one of its own and one
//! of all such. Beyond them it gets no more bytes than it sent. An address is proven once it answered a query of ours, or showed
//! a token of ours.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anabranch_paths::{Endpoint, Host};

/// Queries of one host that are answered a second in the long run, and at once.
const HOST_QUERIES: Rate = Rate { each_second: 10.0, burst: 60.0 };
/// Queries that are answered a second, of all hosts together.
const ALL_QUERIES: Rate = Rate { each_second: 400.0, burst: 1200.0 };
/// Bytes that one unproven host gets beyond what it sent: two or three answers, and then one every few seconds.
const HOST_EXCESS: Rate = Rate { each_second: 100.0, burst: 1500.0 };
/// The same of all unproven hosts together: what our address can be made to send to others is no attack.
const ALL_EXCESS: Rate = Rate { each_second: 8_000.0, burst: 64_000.0 };
/// Hosts that are remembered; the one longest silent goes.
const HOSTS_MAX: usize = 4096;
/// An address that proved itself is believed for so long.
const PROVEN_FOR: Duration = Duration::from_secs(15 * 60);

#[derive(Clone, Copy, Debug)]
struct Rate {
    each_second: f64,
    burst: f64,
}

/// What is left of a rate.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        Self { left: rate.burst, at: now }
    }

    fn left(&mut self, rate: Rate, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.left = (self.left + passed * rate.each_second).min(rate.burst);
        self.left
    }
}

/// Whoever is limited as one: a host, but on the loopback each program.
type Who = (Host, u16);

#[derive(Debug)]
pub(crate) struct Limits {
    hosts: HashMap<Who, Known>,
    queries: Bucket,
    excess: Bucket,
}

#[derive(Debug)]
struct Known {
    queries: Bucket,
    excess: Bucket,
    proven_at: Option<Instant>,
    seen_at: Instant,
}

impl Limits {
    pub(crate) fn new(now: Instant) -> Self {
        Self { hosts: HashMap::new(), queries: Bucket::full(ALL_QUERIES, now), excess: Bucket::full(ALL_EXCESS, now) }
    }

    /// Whether a query from `address` is answered.
    pub(crate) fn takes_query(&mut self, address: &Endpoint, now: Instant) -> bool {
        if self.known(address, now).queries.left(HOST_QUERIES, now) < 1.0 || self.queries.left(ALL_QUERIES, now) < 1.0 {
            return false;
        }
        self.known(address, now).queries.left -= 1.0;
        self.queries.left -= 1.0;
        true
    }

    /// Bytes that an answer to a query of `query_len` bytes may have.
    pub(crate) fn answer_len_max(&mut self, address: &Endpoint, query_len: usize, now: Instant) -> usize {
        if self.is_proven(address, now) {
            return usize::MAX;
        }
        let of_host = self.known(address, now).excess.left(HOST_EXCESS, now);
        query_len + of_host.min(self.excess.left(ALL_EXCESS, now)).max(0.0) as usize
    }

    /// An answer went out.
    pub(crate) fn answered(&mut self, address: &Endpoint, query_len: usize, answer_len: usize, now: Instant) {
        if !self.is_proven(address, now) {
            let excess = answer_len.saturating_sub(query_len) as f64;
            self.known(address, now).excess.left -= excess;
            self.excess.left -= excess;
        }
    }

    /// Whoever says to be at `address` is.
    pub(crate) fn proven(&mut self, address: &Endpoint, now: Instant) {
        self.known(address, now).proven_at = Some(now);
    }

    fn is_proven(&self, address: &Endpoint, now: Instant) -> bool {
        let known = self.hosts.get(&who(address));
        known.and_then(|known| known.proven_at).is_some_and(|at| now < at + PROVEN_FOR)
    }

    fn known(&mut self, address: &Endpoint, now: Instant) -> &mut Known {
        let who = who(address);
        if !self.hosts.contains_key(&who) && self.hosts.len() >= HOSTS_MAX {
            self.forget(now);
        }
        let known = self.hosts.entry(who).or_insert_with(|| Known {
            queries: Bucket::full(HOST_QUERIES, now),
            excess: Bucket::full(HOST_EXCESS, now),
            proven_at: None,
            seen_at: now,
        });
        known.seen_at = now;
        known
    }

    /// An eighth of them at once, so that a flood of addresses does not have all of them looked over each time. Those that are proven
    /// go last: an address that is made up is not.
    fn forget(&mut self, now: Instant) {
        let is_proven = |known: &Known| known.proven_at.is_some_and(|at| now < at + PROVEN_FOR);
        let mut all: Vec<(bool, Instant, Who)> =
            self.hosts.iter().map(|(who, known)| (is_proven(known), known.seen_at, *who)).collect();
        all.sort_unstable();
        for (_, _, who) in &all[..all.len() / 8] {
            self.hosts.remove(who);
        }
    }
}

fn who(address: &Endpoint) -> Who {
    let host = Host::of(address);
    (host, if host.is_loopback() { address.socket_addr().port() } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr};

    fn at(number: u32) -> Endpoint {
        SocketAddr::from((Ipv4Addr::from_bits(0x0100_0000 + number), 6881)).into()
    }

    #[test]
    fn one_host_and_all_together_are_answered_so_often() {
        let now = Instant::now();
        let mut limits = Limits::new(now);
        let taken = (0..1000).filter(|_| limits.takes_query(&at(1), now)).count();
        assert_eq!(taken, HOST_QUERIES.burst as usize);
        let later = now + Duration::from_secs(2);
        assert_eq!((0..1000).filter(|_| limits.takes_query(&at(1), later)).count(), 20);
        let mut limits = Limits::new(now);
        let taken = (0..10_000).filter(|number| limits.takes_query(&at(*number), now)).count();
        assert_eq!(taken, ALL_QUERIES.burst as usize);
    }

    #[test]
    fn the_unproven_get_little_more_than_they_send_one_and_all() {
        let now = Instant::now();
        let mut limits = Limits::new(now);
        let mut flood = |hosts: std::ops::Range<u32>, count: usize, now: Instant| {
            let mut beyond = 0;
            for number in (0..count).map(|at| hosts.start + at as u32 % (hosts.end - hosts.start)) {
                let len = limits.answer_len_max(&at(number), 100, now).min(400);
                assert!(len >= 100);
                limits.answered(&at(number), 100, len, now);
                beyond += len - 100;
            }
            beyond as f64
        };
        assert_eq!(flood(1..2, 1000, now), HOST_EXCESS.burst);
        assert!(flood(2..2000, 100_000, now) <= ALL_EXCESS.burst);
        assert!(flood(2..2000, 100_000, now + Duration::from_secs(1)) <= ALL_EXCESS.each_second);
    }

    #[test]
    fn whoever_proved_itself_gets_whole_answers_for_a_while() {
        let now = Instant::now();
        let mut limits = Limits::new(now);
        limits.answered(&at(1), 100, 100 + HOST_EXCESS.burst as usize, now);
        assert_eq!(limits.answer_len_max(&at(1), 100, now), 100);
        limits.proven(&at(1), now);
        assert_eq!(limits.answer_len_max(&at(1), 100, now), usize::MAX);
        assert_eq!(limits.answer_len_max(&at(1), 100, now + PROVEN_FOR - Duration::from_secs(1)), usize::MAX);
        assert!(limits.answer_len_max(&at(1), 100, now + PROVEN_FOR) < usize::MAX);
    }

    #[test]
    fn a_flood_of_addresses_is_forgotten_and_those_proven_are_not() {
        let now = Instant::now();
        let mut limits = Limits::new(now);
        limits.proven(&at(0), now);
        for number in 1..10 * HOSTS_MAX as u32 {
            limits.takes_query(&at(number), now);
        }
        assert!(limits.hosts.len() <= HOSTS_MAX);
        assert!(limits.is_proven(&at(0), now));
    }
}
