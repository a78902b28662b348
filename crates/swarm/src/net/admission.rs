//! Who gets in, and who leaves for it: places are few, and peer ids, ports and the rest of an IPv6 /64 are anybody's to invent.
//!
//! What counts is the [`Host`]. Strangers, who have not said yet what they want, have a few places of their own: a new one takes
//! that of the oldest of the host that has most, so silence never closes the door. Who said what it wants, and is
//! admitted, gets a peer's place; where all are taken, somebody [gives way](gives_way). And we dial no more than
//! [so many](DIALS_PER_SECOND) in a second, whoever names how many addresses.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anabranch_paths::Host;

/// Connections of one content to one host: two peers with every path they may have, or a network of thirty behind one address. Of
/// this machine there may be any number.
pub(crate) const PLACES_OF_HOST_MAX: usize = 32;
/// A connection that moved no payload for this long makes room for a new one when all places are taken.
const IDLE_MIN: Duration = Duration::from_secs(60);
/// Connections that we open in a second, in the long run: as many as other clients do. One message may name hundreds of addresses, and
/// a crowd of peers thousands, all of them some victim's.
const DIALS_PER_SECOND: u32 = 30;
/// Connections opened at once after a rest: what a tracker names at first.
const DIALS_BURST: u32 = 100;

/// A place that is taken: by whom, and since when nothing moved there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Who.
    pub host: Host,
    /// When payload moved last, or when it was taken.
    pub moved: Instant,
}

/// Which of the taken `places` is given to a newcomer from `host`: that over which nothing moved for longest, if that is long. Else,
/// of the host with most places, if it has two more than the newcomer's: nobody keeps others out by being many.
pub(crate) fn gives_way(places: &[Place], host: Host, now: Instant) -> Option<usize> {
    let idlest = |which: &dyn Fn(&Place) -> bool| {
        let found = places.iter().enumerate().filter(|(_, place)| which(place));
        found.min_by_key(|(_, place)| place.moved)
    };
    let (at, longest) = idlest(&|_| true)?;
    if now.saturating_duration_since(longest.moved) >= IDLE_MIN {
        return Some(at);
    }
    let mut counts: BTreeMap<Host, usize> = BTreeMap::new();
    places.iter().for_each(|place| *counts.entry(place.host).or_default() += 1);
    let (most, count) = counts.iter().filter(|(host, _)| !host.is_loopback()).max_by_key(|(_, count)| **count)?;
    let own = counts.get(&host).copied().unwrap_or(0);
    (*count >= own + 2).then(|| idlest(&|place| place.host == *most).map(|(at, _)| at)).flatten()
}

/// The pace at which connections are opened.
pub(crate) struct Pace {
    left: Cell<f64>,
    at: Cell<Instant>,
}

impl Pace {
    /// After a rest.
    pub(crate) fn new(now: Instant) -> Self {
        Self { left: Cell::new(DIALS_BURST.into()), at: Cell::new(now) }
    }

    /// Whether one more may be opened now; [`Pace::spend`] says that it was.
    pub(crate) fn allows(&self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at.replace(now)).as_secs_f64();
        let left = self.left.get() + passed * f64::from(DIALS_PER_SECOND);
        self.left.set(left.min(DIALS_BURST.into()));
        self.left.get() >= 1.0
    }

    /// One was opened.
    pub(crate) fn spend(&self) {
        self.left.set(self.left.get() - 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u32) -> Host {
        Host::of(&std::net::SocketAddr::from((std::net::Ipv4Addr::from_bits(0x0a00_0000 + number), 1)).into())
    }

    #[test]
    fn who_is_idle_gives_way_and_then_who_has_most() {
        let start = Instant::now();
        let now = start + IDLE_MIN * 2;
        let place = |number, idle: Duration| Place { host: host(number), moved: now - idle };
        let second = Duration::from_secs(1);
        let places = [place(1, second * 3), place(2, IDLE_MIN), place(1, second)];
        assert_eq!(gives_way(&places, host(3), now), Some(1));
        let busy = [place(1, second * 3), place(2, IDLE_MIN - second), place(1, second)];
        assert_eq!(gives_way(&busy, host(3), now), Some(0), "the host with two");
        assert_eq!(gives_way(&busy, host(2), now), None, "not for one that has nearly as many");
        assert_eq!(gives_way(&busy, host(1), now), None);
        assert_eq!(gives_way(&[], host(1), now), None);
        let each_one: Vec<Place> = (0..9).map(|number| place(number, second)).collect();
        assert_eq!(gives_way(&each_one, host(77), now), None);
    }

    #[test]
    fn dials_come_in_a_burst_and_then_at_their_pace() {
        let start = Instant::now();
        let pace = Pace::new(start);
        let dials = |at: Instant| {
            let mut count = 0;
            while pace.allows(at) {
                pace.spend();
                count += 1;
            }
            count
        };
        assert_eq!(dials(start), DIALS_BURST);
        assert_eq!(dials(start), 0);
        assert_eq!(dials(start + Duration::from_secs(2)), 2 * DIALS_PER_SECOND);
        assert_eq!(dials(start + Duration::from_secs(3600)), DIALS_BURST);
    }
}
