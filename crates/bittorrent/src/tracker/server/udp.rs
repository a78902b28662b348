//! The UDP side: connection ids and datagrams (BEP 15).

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anabranch_paths::ScionAddr;
use siphasher::sip::SipHasher24;

use super::swarm::Family;
use super::{Families, Room, Tracker};
use crate::compact::{SCION_LEN_MAX, V4_LEN, V6_LEN};
use crate::tracker::ScrapeEntry;
use crate::tracker::udp::{self, ANNOUNCE_REPLY_HEAD, CONNECTION_ID_ACCEPTED, IP_COUNT_BYTES, Request};

/// A connection id's time is cut into steps of this length.
const STEP: Duration = Duration::from_secs(30);
/// An id is good during its own step and this many after it, so for at least [`CONNECTION_ID_ACCEPTED`].
const STEPS_ACCEPTED: u64 = CONNECTION_ID_ACCEPTED.as_secs() / STEP.as_secs();
/// Largest answer: within the IPv6 minimum MTU's usual 1500-byte neighbours, so that no reply is fragmented.
const ANSWER_BYTES_MAX: usize = 1400;
/// SCION peers told in one answer: they may take half of it.
const SCION_PEERS_MAX: usize = ANSWER_BYTES_MAX / 2 / SCION_LEN_MAX;

impl Tracker {
    /// Answers a datagram. `None`: nothing is to be sent, which is what everything deserves that cannot prove that it
    /// comes from where it claims to come from.
    pub fn on_datagram(&mut self, bytes: &[u8], source: SocketAddr, now: Instant) -> Option<Vec<u8>> {
        let ip = source.ip().to_canonical();
        let Ok(request) = udp::parse_request(bytes) else {
            self.stats.dropped += 1;
            return None;
        };
        match request {
            Request::Connect { transaction } => Some(udp::connect_reply(transaction, self.connection_id(ip, 0, now))),
            Request::Announce { connection, .. } | Request::Scrape { connection, .. }
                if !self.is_accepted(connection, ip, now) =>
            {
                self.stats.dropped += 1;
                None
            }
            Request::Announce { transaction, url_data, .. } if !self.is_admitted(path_of(&url_data)) => {
                self.stats.refused += 1;
                Some(udp::error_reply(
                    transaction,
                    "this tracker is closed: its announce URL has a key, which this one lacks",
                ))
            }
            Request::Announce { transaction, request, .. } if !self.is_allowed(&request.info_hash) => {
                self.stats.refused += 1;
                Some(udp::error_reply(transaction, "this tracker is closed: it does not track this content"))
            }
            Request::Announce { transaction, request, claimed_ip, .. } => {
                let (family, unit) = if ip.is_ipv6() { (Family::V6, V6_LEN) } else { (Family::V4, V4_LEN) };
                let scion_bytes = IP_COUNT_BYTES + SCION_PEERS_MAX * SCION_LEN_MAX;
                let ip_bytes =
                    ANSWER_BYTES_MAX - ANNOUNCE_REPLY_HEAD - request.scion.as_ref().map_or(0, |_| scion_bytes);
                let room = Room { ip: ip_bytes / unit, scion: SCION_PEERS_MAX, in_use: false };
                let families = Families::Only(family);
                let answer = self.announce(&request, ip, claimed_ip.map(IpAddr::V4), families, room, now);
                let peers: Vec<SocketAddr> = answer.peers.iter().filter_map(|peer| peer.addr.as_ip()).collect();
                let scion: Vec<ScionAddr> = answer.peers.iter().filter_map(|peer| peer.addr.as_scion()).collect();
                let (interval, complete, incomplete) = (self.config.interval, answer.complete, answer.incomplete);
                Some(udp::announce_reply(transaction, interval, complete, incomplete, &peers, &scion))
            }
            // A scrape has no URL to hold a key (BEP 41).
            Request::Scrape { transaction, .. } if self.config.passkey.is_some() => {
                self.stats.refused += 1;
                Some(udp::error_reply(transaction, "this tracker is closed, and answers scrapes over HTTP"))
            }
            Request::Scrape { transaction, hashes, .. } => {
                self.stats.scrapes += 1;
                let entries: Vec<ScrapeEntry> = hashes.iter().map(|hash| self.scrape(hash, now)).collect();
                Some(udp::scrape_reply(transaction, &entries))
            }
        }
    }

    /// The id of an address at a time: nobody can make one up without the secret, and nothing has to be remembered.
    /// Not bound to the port, since clients behind NAT may send from another one a moment later.
    fn connection_id(&self, ip: IpAddr, steps_ago: u64, now: Instant) -> u64 {
        let step = now.saturating_duration_since(self.started_at).as_secs() / STEP.as_secs();
        let mut hasher = SipHasher24::new_with_key(&self.config.secret);
        hasher.write_u64(step.wrapping_sub(steps_ago));
        match ip {
            IpAddr::V4(ip) => hasher.write(&ip.octets()),
            IpAddr::V6(ip) => hasher.write(&ip.octets()),
        }
        hasher.finish()
    }

    fn is_accepted(&self, connection: u64, ip: IpAddr, now: Instant) -> bool {
        (0..=STEPS_ACCEPTED).any(|steps_ago| self.connection_id(ip, steps_ago, now) == connection)
    }
}

/// The path in an announce's URL data (BEP 41); empty where it is none.
fn path_of(url_data: &[u8]) -> &str {
    let target = std::str::from_utf8(url_data).unwrap_or_default();
    target.split(['?', '&']).next().unwrap_or_default()
}
