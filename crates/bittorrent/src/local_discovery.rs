//! Peers in the same network call out which contents they have (BEP 14): what such a call says, and when there is one.
//!
//! A call is a datagram in the form of HTTP to a multicast address, and whoever hears it dials the caller. So it names no address: the
//! one that it came from is the caller's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use anabranch_content::hex;

use crate::InfoHash;

/// Where calls go over IPv4 (BEP 14).
pub const GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 192, 152, 143);
/// Where calls go over IPv6 (BEP 14).
pub const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0xefc0, 0x988f);
/// The port of both.
pub const PORT: u16 = 6771;
/// Bytes of a call (BEP 14: "must not exceed 1400 bytes").
pub const CALL_LEN_MAX: usize = 1400;
/// Contents in one call: as many as fit.
pub const HASHES_MAX: usize = 20;
/// Bytes of a cookie that is kept to be compared.
const COOKIE_LEN_MAX: usize = 64;
/// Between two calls (BEP 14: "at most once per minute").
const CALLS_EVERY: Duration = Duration::from_secs(60);
/// Between two calls of one content (BEP 14: "a default interval of 5 minutes").
const SAME_EVERY: Duration = Duration::from_secs(5 * 60);
/// The first calls come together: what is added at once is called out at once.
const GATHERED_FOR: Duration = Duration::from_millis(200);
/// Whom we answered, at most: more are no office.
const ANSWERED_MAX: usize = 1024;
/// Calls that are heeded a second: a network of hundreds has fewer.
const HEEDED_PER_SECOND_MAX: u32 = 50;

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The port that the caller listens at.
    pub port: u16,
    /// What it has, or wants.
    pub hashes: Vec<InfoHash>,
    /// Tells callers their own calls; empty: left out.
    pub cookie: String,
}

impl Call {
    /// The datagram. Of longer lists the first [`HASHES_MAX`] are called out.
    pub fn encode(&self, is_ipv6: bool) -> Vec<u8> {
        let host = if is_ipv6 { format!("[{GROUP_V6}]") } else { GROUP_V4.to_string() };
        let mut text = format!("BT-SEARCH * HTTP/1.1\r\nHost: {host}:{PORT}\r\nPort: {}\r\n", self.port);
        for hash in self.hashes.iter().take(HASHES_MAX) {
            // Writing to a String does not fail.
            let _ = write!(text, "Infohash: {}\r\n", hex::encode(hash));
        }
        if !self.cookie.is_empty() {
            let _ = write!(text, "cookie: {}\r\n", self.cookie);
        }
        text.push_str("\r\n\r\n");
        text.into_bytes()
    }

    /// Reads a datagram; `None` where it is no call, or one without use.
    pub fn parse(datagram: &[u8]) -> Option<Self> {
        let text = str::from_utf8(datagram).ok().filter(|text| text.len() <= CALL_LEN_MAX)?;
        let mut lines = text.split("\r\n");
        if !lines.next()?.eq_ignore_ascii_case("BT-SEARCH * HTTP/1.1") {
            return None;
        }
        let (mut port, mut hashes, mut cookie) = (None, Vec::new(), String::new());
        for (key, value) in lines.filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            match key.trim().to_ascii_lowercase().as_str() {
                "port" => port = value.parse().ok().filter(|port| *port != 0),
                "infohash" if hashes.len() < HASHES_MAX => hashes.extend(hash(value)),
                "cookie" => cookie = value.chars().take(COOKIE_LEN_MAX).collect(),
                _ => {}
            }
        }
        Some(Self { port: port?, hashes, cookie }).filter(|call| !call.hashes.is_empty())
    }
}

/// 40 digits of base 16.
fn hash(text: &str) -> Option<InfoHash> {
    let mut hash = InfoHash::default();
    if text.len() != 2 * hash.len() || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(hash)
}

/// When which contents are called out.
#[derive(Debug)]
pub struct Caller {
    called_at: BTreeMap<InfoHash, Instant>,
    next_at: Instant,
    heeded: (Instant, u32),
    /// When whoever listens there was answered last.
    answered: BTreeMap<SocketAddr, Instant>,
}

impl Caller {
    /// Nothing was called out yet.
    pub fn new(now: Instant) -> Self {
        Self { called_at: BTreeMap::new(), next_at: now + GATHERED_FOR, heeded: (now, 0), answered: BTreeMap::new() }
    }

    /// Whether anything may be called out now: most of the time nobody has to look what there is.
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.next_at
    }

    /// What to call out now of `contents`, nothing most of the time. Contents that are gone are forgotten.
    pub fn due(&mut self, contents: &[InfoHash], now: Instant) -> Vec<InfoHash> {
        if !self.is_due(now) {
            return Vec::new();
        }
        let there: BTreeSet<&InfoHash> = contents.iter().collect();
        self.called_at.retain(|hash, _| there.contains(hash));
        let last = |hash: &InfoHash| self.called_at.get(hash).copied();
        let is_due = |hash: &&InfoHash| last(hash).is_none_or(|at| now >= at + SAME_EVERY);
        let mut due: Vec<InfoHash> = contents.iter().filter(is_due).copied().collect();
        // What was never called out goes first, and what was longest ago.
        due.sort_by_key(|hash| last(hash));
        due.truncate(HASHES_MAX);
        if !due.is_empty() {
            self.next_at = now + CALLS_EVERY;
            self.called_at.extend(due.iter().map(|hash| (*hash, now)));
        }
        due
    }

    /// Whether one more call of others is heeded now.
    pub fn heeds(&mut self, now: Instant) -> bool {
        if now >= self.heeded.0 + Duration::from_secs(1) {
            self.heeded = (now, 0);
        }
        self.heeded.1 += 1;
        self.heeded.1 <= HEEDED_PER_SECOND_MAX
    }

    /// Whether a call of who listens at `peer` is answered by one of ours, to it alone: so it can dial us, too, where it takes no calls
    /// itself, or none of a content of which it has only a link so far. Two that answer each other's answers stop at once.
    pub fn answers(&mut self, peer: SocketAddr, now: Instant) -> bool {
        self.answered.retain(|_, at| now < *at + CALLS_EVERY);
        let is_due = self.answered.len() < ANSWERED_MAX && !self.answered.contains_key(&peer);
        if is_due {
            self.answered.insert(peer, now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn calls_are_those_of_the_specification() {
        let call = Call { port: 6881, hashes: vec![[0xab; 20], [1; 20]], cookie: "name".to_owned() };
        let text = String::from_utf8(call.encode(false)).unwrap();
        assert_eq!(
            text,
            format!(
                "BT-SEARCH * HTTP/1.1\r\nHost: 239.192.152.143:6771\r\nPort: 6881\r\nInfohash: {}\r\nInfohash: {}\r\ncookie: name\r\n\r\n\r\n",
                "ab".repeat(20),
                "01".repeat(20)
            )
        );
        assert!(String::from_utf8(call.encode(true)).unwrap().contains("Host: [ff15::efc0:988f]:6771\r\n"));
        assert_eq!(Call::parse(text.as_bytes()), Some(call));
    }

    #[test]
    fn what_is_no_call_is_left() {
        let hash = "AB".repeat(20);
        let good = format!("bt-search * http/1.1\r\nPORT:1\r\nInfohash: {hash}\r\n\r\n");
        assert_eq!(Call::parse(good.as_bytes()).unwrap().hashes, [[0xab; 20]]);
        for bad in [
            String::new(),
            "M-SEARCH * HTTP/1.1\r\n\r\n".to_owned(),
            format!("BT-SEARCH * HTTP/1.1\r\nInfohash: {hash}\r\n\r\n"),
            format!("BT-SEARCH * HTTP/1.1\r\nPort: 0\r\nInfohash: {hash}\r\n\r\n"),
            format!("BT-SEARCH * HTTP/1.1\r\nPort: 70000\r\nInfohash: {hash}\r\n\r\n"),
            "BT-SEARCH * HTTP/1.1\r\nPort: 1\r\n\r\n".to_owned(),
            format!("BT-SEARCH * HTTP/1.1\r\nPort: 1\r\nInfohash: {}\r\n\r\n", "zz".repeat(20)),
            format!("BT-SEARCH * HTTP/1.1\r\nPort: 1\r\nInfohash: {hash}\r\n{}\r\n\r\n", "x".repeat(CALL_LEN_MAX)),
        ] {
            assert_eq!(Call::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn long_lists_are_cut_and_fit() {
        let call = Call { port: 65535, hashes: vec![[7; 20]; HASHES_MAX + 5], cookie: "c".repeat(32) };
        for is_ipv6 in [false, true] {
            let datagram = call.encode(is_ipv6);
            assert!(datagram.len() <= CALL_LEN_MAX);
            assert_eq!(Call::parse(&datagram).unwrap().hashes.len(), HASHES_MAX);
        }
    }

    #[test]
    fn calls_come_once_a_minute_and_the_same_every_five() {
        let start = Instant::now();
        let (mut caller, second) = (Caller::new(start), Duration::from_secs(1));
        let all: Vec<InfoHash> = (0..30).map(|at| [at; 20]).collect();
        assert!(caller.due(&all, start).is_empty());
        let begun = start + second;
        assert_eq!(caller.due(&all, begun), all[..HASHES_MAX]);
        assert!(caller.due(&all, begun + CALLS_EVERY - second).is_empty());
        assert_eq!(caller.due(&all, begun + CALLS_EVERY), all[HASHES_MAX..]);
        assert!(caller.due(&all, begun + SAME_EVERY - second).is_empty());
        assert_eq!(caller.due(&all, begun + SAME_EVERY), all[..HASHES_MAX]);
        // Gone, and there again.
        let later = begun + SAME_EVERY + CALLS_EVERY;
        assert!(caller.due(&[], later).is_empty());
        assert_eq!(caller.due(&all[..1], later), all[..1]);
    }

    #[test]
    fn floods_are_heeded_so_far() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut caller = Caller::new(now);
        let mut heeded = |now| (0..1000).filter(|_| caller.heeds(now)).count();
        assert_eq!((heeded(now), heeded(now + second / 2)), (50, 0));
        assert_eq!(heeded(now + second), 50);
    }

    #[test]
    fn who_calls_is_answered_once_a_minute_and_not_everybody() {
        let now = Instant::now();
        let mut caller = Caller::new(now);
        let peer = |at: u16| SocketAddr::from(([10, 0, 0, 1], at));
        assert!(caller.answers(peer(1), now) && caller.answers(peer(2), now));
        let soon = now + CALLS_EVERY - Duration::from_secs(1);
        assert!(!caller.answers(peer(1), soon));
        assert!(caller.answers(peer(1), now + CALLS_EVERY));
        let many = (0..2 * ANSWERED_MAX as u16).filter(|at| caller.answers(peer(1000 + at), now + CALLS_EVERY));
        assert_eq!(many.count(), ANSWERED_MAX - 1);
    }

    proptest! {
        #[test]
        fn anything_may_be_heard(bytes: Vec<u8>, text: String) {
            let _ = Call::parse(&bytes);
            let _ = Call::parse(format!("BT-SEARCH * HTTP/1.1\r\n{text}").as_bytes());
        }

        #[test]
        fn calls_read_back(port in 1..=u16::MAX, hashes in proptest::collection::vec(any::<InfoHash>(), 1..20), cookie in "[a-z0-9]{0,32}") {
            let call = Call { port, hashes, cookie };
            prop_assert_eq!(Call::parse(&call.encode(false)), Some(call));
        }
    }
}
