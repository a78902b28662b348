//! How long datagrams may be: a search by padding, so that a probe which is lost costs nothing but itself.
//!
//! A sequence number keeps its bytes for ever, so a packet that is too long cannot be cut apart afterwards. A probe therefore is a packet
//! of the length that works already, and the rest of it is padding ([`Header::write`](crate::packet::Header::write)), which is left
//! off where the probe has to be sent again. Where a length that did work does so no more, later packets are shorter, and those that are
//! on their way already are sent again in fragments.

use std::time::{Duration, Instant};

/// The length that every path takes, as good as: IPv6's least MTU less its headers and UDP's.
const BASE: usize = 1280 - 48;
/// The shortest, where even that is lost: IPv4's least MTU less its headers and UDP's.
const LEAST: usize = 576 - 28;
/// The longest: what Ethernet carries, as with all other implementations. Some receive into buffers little larger than that, and
/// acknowledge longer packets of which they have the beginning (seen with libtorrent 2.1): what arrives is not what was sent then.
pub(crate) const DATAGRAM_LEN_MAX: usize = 1500 - 28;
/// The search ends where what is left to find is below this.
const GRANULARITY: usize = 16;
/// Probes of one length that are lost until the length is taken for too long.
const PROBES_LOST_MAX: u32 = 2;
/// How long until longer packets are tried again: paths change, and what was lost may have been lost by chance (RFC 8899 §5.1.1).
const RAISE_AFTER: Duration = Duration::from_secs(600);
/// Timeouts in a row that make the length suspect.
const TIMEOUTS_MAX: u32 = 2;

/// The state of the search.
#[derive(Clone, Debug)]
pub(crate) struct PathMtu {
    /// What works, as far as is known.
    current: usize,
    /// What cannot work: the interface's own, or what was lost.
    ceiling: usize,
    /// The interface's own.
    limit: usize,
    under_way: bool,
    lost: u32,
    search_again: Option<Instant>,
}

impl PathMtu {
    /// `limit`: what the first link takes, in bytes of UDP payload.
    pub(crate) fn new(limit: usize) -> Self {
        let limit = limit.clamp(LEAST, DATAGRAM_LEN_MAX);
        Self { current: BASE.min(limit), ceiling: limit, limit, under_way: false, lost: 0, search_again: None }
    }

    /// Bytes that a datagram may have.
    pub(crate) fn current(&self) -> usize {
        self.current
    }

    /// The length to try now, if any.
    pub(crate) fn probe(&mut self, now: Instant) -> Option<usize> {
        if self.search_again.is_some_and(|at| now >= at) {
            (self.search_again, self.ceiling, self.lost) = (None, self.limit, 0);
        }
        if self.under_way || self.ceiling < self.current + GRANULARITY || self.search_again.is_some() {
            return None;
        }
        // Most paths take what the first link takes.
        let longest = self.ceiling == self.limit;
        Some(if longest { self.ceiling } else { (self.current + self.ceiling).div_ceil(2) })
    }

    /// A probe has left.
    pub(crate) fn probe_sent(&mut self) {
        self.under_way = true;
    }

    /// A probe of this length arrived.
    pub(crate) fn probe_acked(&mut self, len: usize, now: Instant) {
        (self.under_way, self.lost) = (false, 0);
        self.current = self.current.max(len);
        self.ceiling = self.ceiling.max(self.current);
        self.rest(now);
    }

    /// A probe of this length was lost.
    pub(crate) fn probe_lost(&mut self, len: usize, now: Instant) {
        self.under_way = false;
        self.lost += 1;
        if self.lost >= PROBES_LOST_MAX {
            self.ceiling = (len - 1).max(self.current);
            self.lost = 0;
            self.rest(now);
        }
    }

    /// So many timeouts in a row: what worked may work no more.
    pub(crate) fn timed_out(&mut self, timeouts: u32, now: Instant) {
        if timeouts >= TIMEOUTS_MAX {
            self.shrink(now);
        }
    }

    /// The system took no datagram of `len` bytes.
    pub(crate) fn too_long(&mut self, len: usize, now: Instant) {
        self.ceiling = self.ceiling.min(len.saturating_sub(1)).max(LEAST);
        if self.current >= len {
            self.shrink(now);
        }
    }

    fn shrink(&mut self, now: Instant) {
        self.current = if self.current > BASE && self.ceiling >= BASE { BASE } else { LEAST };
        self.search_again = Some(now + RAISE_AFTER);
    }

    fn rest(&mut self, now: Instant) {
        if self.ceiling < self.current + GRANULARITY && self.current < self.limit {
            self.search_again = Some(now + RAISE_AFTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches on a path that takes `takes` bytes; answers what was found, and with how many probes.
    fn search(limit: usize, takes: usize) -> (usize, usize) {
        let (mut mtu, now, mut probes) = (PathMtu::new(limit), Instant::now(), 0);
        while let Some(len) = mtu.probe(now) {
            assert!(len > mtu.current() && len <= limit.max(BASE), "{len}");
            mtu.probe_sent();
            assert_eq!(mtu.probe(now), None, "one at a time");
            if len <= takes {
                mtu.probe_acked(len, now)
            } else {
                mtu.probe_lost(len, now)
            }
            probes += 1;
        }
        (mtu.current(), probes)
    }

    #[test]
    fn the_longest_that_passes_is_found() {
        assert_eq!(search(1472, 1472), (1472, 1), "the usual case takes one probe");
        assert_eq!(search(1232, 1232), (1232, 0));
        for takes in [BASE, 1300, 1400, 1450, 1464, 1472] {
            let (found, probes) = search(1472, takes);
            assert!(found <= takes && found + GRANULARITY > takes, "{takes}: {found}");
            assert!(probes <= 16, "{takes}: {probes} probes");
        }
        assert_eq!(search(8972, 8972).0, DATAGRAM_LEN_MAX, "longer ones are not tried where they would pass");
        assert_eq!(search(10, 10), (LEAST, 0));
    }

    #[test]
    fn a_length_that_works_no_more_is_left_and_tried_again_later() {
        let (mut mtu, now) = (PathMtu::new(1472), Instant::now());
        mtu.probe_sent();
        mtu.probe_acked(1472, now);
        mtu.timed_out(TIMEOUTS_MAX - 1, now);
        assert_eq!(mtu.current(), 1472);
        mtu.timed_out(TIMEOUTS_MAX, now);
        assert_eq!(mtu.current(), BASE);
        mtu.timed_out(TIMEOUTS_MAX + 1, now);
        assert_eq!(mtu.current(), LEAST);
        assert_eq!(mtu.probe(now + RAISE_AFTER - Duration::from_secs(1)), None);
        assert_eq!(mtu.probe(now + RAISE_AFTER), Some(1472));
    }

    #[test]
    fn what_the_system_refuses_is_tried_no_more() {
        let (mut mtu, now) = (PathMtu::new(1472), Instant::now());
        mtu.too_long(1472, now);
        assert_eq!((mtu.current(), mtu.probe(now)), (BASE, Some((BASE + 1471).div_ceil(2))));
        mtu.too_long(BASE, now);
        assert_eq!(mtu.current(), LEAST);
    }
}
