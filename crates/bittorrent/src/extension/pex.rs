//! Peer exchange (BEP 11, "ut_pex"): addresses of peers, told to peers.
//!
//! SCION addresses have keys of our own beside BEP 11's: `ab_added`, `ab_added.f` and `ab_dropped`, which mean the same and
//! hold our compact form, and `ab_used`, which paths they use ([`PathsInUse`]). They are for peers that said `ab_scion` in their
//! extension handshake; others would leave the keys.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anabranch_content::bencode::{DictBuilder, Value};
use anabranch_paths::Endpoint;

use super::{ExtensionError, IN_USE_KEY, PathsInUse, parse_dict};
use crate::compact::{pack, pack_scion, unpack_scion, unpack_v4, unpack_v6};

/// Peers in one message, for those that came and those that went each, IPv4, IPv6 and SCION together (BEP 11).
pub const PEX_PEERS_MAX: usize = 50;

/// Peers taken from one message, each of came and went: BEP 11 lets the first message be longer, and old clients send
/// all they have.
pub const PEX_RECEIVED_MAX: usize = 200;

/// Peers that one other peer is told of before some of them have gone: enough to bootstrap it, and bounds what is
/// remembered for each connection.
pub const PEX_TOLD_MAX: usize = 200;

/// Between two messages that we send (BEP 11: no more than one a minute).
pub const PEX_INTERVAL: Duration = Duration::from_secs(60);

/// Between two messages that we heed; less than [`PEX_INTERVAL`], as the other's clock and queue are not ours.
pub const PEX_RECEIVE_INTERVAL_MIN: Duration = Duration::from_secs(45);

/// The name in errors.
const MESSAGE: &str = "ut_pex";

/// What is told of a peer beside its address (BEP 11, "added.f").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct PexFlags(pub u8);

impl PexFlags {
    /// Prefers encryption.
    pub const ENCRYPTION: Self = Self(0x01);
    /// Has all, or wants no more (BEP 21).
    pub const UPLOAD_ONLY: Self = Self(0x02);
    /// Speaks uTP (BEP 29).
    pub const UTP: Self = Self(0x04);
    /// Takes part in hole punching (BEP 55).
    pub const HOLEPUNCH: Self = Self(0x08);
    /// Known to take connections.
    pub const REACHABLE: Self = Self(0x10);

    /// Whether all of `flags` are set.
    pub fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Both together.
    pub fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }
}

/// A ut_pex message.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PexMessage {
    /// Peers that the sender connected to.
    pub added: Vec<(Endpoint, PexFlags)>,
    /// Peers that it is connected to no longer.
    pub dropped: Vec<Endpoint>,
    /// Paths that peers of its use, in place of what was told before; `None`: it says nothing of them.
    pub in_use: Option<PathsInUse>,
}

impl PexMessage {
    /// The extended message's payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut added: [Vec<u8>; FAMILIES] = Default::default();
        let (mut flags, mut dropped) = (added.clone(), added.clone());
        for (address, peer_flags) in &self.added {
            put(address, &mut added);
            flags[family(address)].push(peer_flags.0);
        }
        self.dropped.iter().for_each(|address| put(address, &mut dropped));
        let [[added, added6, ab_added], [flags, flags6, ab_flags], [dropped, dropped6, ab_dropped]] =
            [added, flags, dropped];
        let mut dict = DictBuilder::new();
        dict.bytes("added", added).bytes("added.f", flags).bytes("dropped", dropped);
        let others = [
            ("added6", added6),
            ("added6.f", flags6),
            ("dropped6", dropped6),
            ("ab_added", ab_added),
            ("ab_added.f", ab_flags),
            ("ab_dropped", ab_dropped),
        ];
        for (key, list) in others {
            if !list.is_empty() {
                dict.bytes(key, list);
            }
        }
        if let Some(in_use) = &self.in_use {
            dict.dict(IN_USE_KEY, &in_use.encode());
        }
        dict.encode()
    }

    /// Reads a payload: IPv4 peers first, then IPv6 and SCION, at most [`PEX_RECEIVED_MAX`] of those that came and those
    /// that went, without those of port 0. Lists of the wrong type count as left out; one of SCION addresses is read up to
    /// the first that is broken.
    ///
    /// # Errors
    /// Where the payload is no bencoded dictionary.
    pub fn parse(payload: &[u8]) -> Result<Self, ExtensionError> {
        let tree = parse_dict(payload, MESSAGE)?;
        let dict = tree.root();
        let lists = |keys: [&str; FAMILIES]| endpoints(keys.map(|key| list(dict, key)));
        let flags = ["added.f", "added6.f", "ab_added.f"].map(|key| list(dict, key));
        let added = with_flags(lists(["added", "added6", "ab_added"]), flags);
        let dropped = lists(["dropped", "dropped6", "ab_dropped"]);
        let has_port = |address: &Endpoint| address.socket_addr().port() != 0;
        let mut message = Self {
            added: added.filter(|(address, _)| has_port(address)).take(PEX_RECEIVED_MAX).collect(),
            dropped: dropped.filter(has_port).take(PEX_RECEIVED_MAX).collect(),
            in_use: dict.get(IN_USE_KEY).and_then(PathsInUse::parse),
        };
        // IPv4 that came mapped into IPv6 is IPv4.
        message.added.sort_by_key(|(address, _)| family(address));
        message.dropped.sort_by_key(family);
        Ok(message)
    }
}

/// Peer exchange with one connection: what was told, and when.
#[derive(Clone, Debug, Default)]
pub struct PexState {
    told: BTreeSet<Endpoint>,
    told_in_use: bool,
    sent: Option<Instant>,
    received: Option<Instant>,
}

impl PexState {
    /// The message to send now, if one is due and there is news. `current` is who is connected now, without the
    /// receiver itself; peers are told by the address they listen on. `in_use` is what they use; it is told as long as there is
    /// any, as what is not repeated is forgotten.
    pub fn next(&mut self, current: &[(Endpoint, PexFlags)], in_use: &PathsInUse, now: Instant) -> Option<PexMessage> {
        if self.deadline().is_some_and(|due| now < due) {
            return None;
        }
        let present: BTreeSet<Endpoint> = current.iter().map(|(address, _)| *address).collect();
        let dropped: Vec<_> = self.told.difference(&present).copied().take(PEX_PEERS_MAX).collect();
        for address in &dropped {
            self.told.remove(address);
        }
        let mut added = Vec::new();
        for &(address, flags) in current {
            if added.len() == PEX_PEERS_MAX || self.told.len() == PEX_TOLD_MAX {
                break;
            }
            if self.told.insert(address) {
                added.push((address, flags));
            }
        }
        let was_told = std::mem::replace(&mut self.told_in_use, !in_use.is_empty());
        let in_use = (was_told || self.told_in_use).then(|| in_use.clone());
        if added.is_empty() && dropped.is_empty() && in_use.is_none() {
            return None;
        }
        self.sent = Some(now);
        Some(PexMessage { added, dropped, in_use })
    }

    /// When [`next`](Self::next) may have something again; `None` before the first message.
    pub fn deadline(&self) -> Option<Instant> {
        self.sent.map(|sent| sent + PEX_INTERVAL)
    }

    /// Whether a message that comes `now` is to be heeded; others came too soon and are left out.
    pub fn may_receive(&mut self, now: Instant) -> bool {
        let due = self.received.is_none_or(|last| now >= last + PEX_RECEIVE_INTERVAL_MIN);
        if due {
            self.received = Some(now);
        }
        due
    }
}

fn list<'t>(dict: Value<'t>, key: &str) -> &'t [u8] {
    dict.get(key).and_then(|list| list.as_bytes()).unwrap_or_default()
}

/// IPv4, IPv6, SCION.
const FAMILIES: usize = 3;

fn family(address: &Endpoint) -> usize {
    match address {
        Endpoint::Ip(address) => usize::from(address.is_ipv6()),
        Endpoint::Scion(_) => 2,
    }
}

/// Appends `address` to the list of its family.
fn put(address: &Endpoint, lists: &mut [Vec<u8>; FAMILIES]) {
    let list = &mut lists[family(address)];
    match address {
        Endpoint::Ip(address) => pack(*address, list),
        Endpoint::Scion(address) => pack_scion(address, list),
    }
}

/// The addresses in one list of each family.
fn endpoints([v4, v6, scion]: [&[u8]; FAMILIES]) -> impl Iterator<Item = Endpoint> + '_ {
    let ip = unpack_v4(v4).chain(unpack_v6(v6)).map(Endpoint::from);
    ip.chain(unpack_scion(scion).map(Endpoint::Scion))
}

/// Peers with their flags by family; none where the list of flags is shorter.
fn with_flags<'a>(
    peers: impl Iterator<Item = Endpoint> + 'a,
    flags: [&'a [u8]; FAMILIES],
) -> impl Iterator<Item = (Endpoint, PexFlags)> + 'a {
    let mut flags = flags.map(|list| list.iter());
    peers.map(move |address| (address, PexFlags(flags[family(&address)].next().copied().unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_paths::{IsdAs, ScionAddr};
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    fn peers(ports: std::ops::Range<u16>) -> Vec<(Endpoint, PexFlags)> {
        ports.map(|port| (Endpoint::Ip((Ipv4Addr::LOCALHOST, port).into()), PexFlags::default())).collect()
    }

    #[test]
    fn only_news_is_told_once_a_minute() {
        let (mut state, now) = (PexState::default(), Instant::now());
        assert_eq!(state.next(&[], &PathsInUse::default(), now), None);
        let first = state.next(&peers(1..4), &PathsInUse::default(), now).unwrap();
        assert_eq!((first.added, first.dropped), (peers(1..4), vec![]));
        let almost = now + PEX_INTERVAL - Duration::from_millis(1);
        assert_eq!(state.next(&peers(2..5), &PathsInUse::default(), almost), None);
        let second = state.next(&peers(2..5), &PathsInUse::default(), now + PEX_INTERVAL).unwrap();
        assert_eq!((second.added, second.dropped), (peers(4..5), vec![peers(1..2)[0].0]));
        assert_eq!(state.next(&peers(2..5), &PathsInUse::default(), now + 2 * PEX_INTERVAL), None);
    }

    #[test]
    fn fifty_at_a_time_and_no_more_than_the_limit_in_all() {
        let (mut state, mut now, mut told) = (PexState::default(), Instant::now(), 0);
        let crowd = peers(1..1000);
        while let Some(message) = state.next(&crowd, &PathsInUse::default(), now) {
            assert_eq!(message.added.len(), PEX_PEERS_MAX);
            told += message.added.len();
            now += PEX_INTERVAL;
        }
        assert_eq!(told, PEX_TOLD_MAX);
        let message = state.next(&[], &PathsInUse::default(), now).unwrap();
        assert_eq!((message.added.len(), message.dropped.len()), (0, PEX_PEERS_MAX));
    }

    #[test]
    fn messages_that_come_too_soon_are_left_out() {
        let (mut state, now) = (PexState::default(), Instant::now());
        assert!(state.may_receive(now));
        assert!(!state.may_receive(now + PEX_RECEIVE_INTERVAL_MIN - Duration::from_millis(1)));
        assert!(state.may_receive(now + PEX_RECEIVE_INTERVAL_MIN));
    }

    #[test]
    fn ragged_lists_missing_flags_and_port_zero() {
        let payload = b"d5:added13:\x01\x02\x03\x04\x1a\xe1\x05\x06\x07\x08\0\0x7:added.f1:\x026:added6i3ee";
        let message = PexMessage::parse(payload).unwrap();
        assert_eq!(message.added, [("1.2.3.4:6881".parse().unwrap(), PexFlags::UPLOAD_ONLY)]);
        assert!(PexMessage::parse(b"le").is_err());
    }

    #[test]
    fn long_lists_are_cut() {
        for (count, taken) in [(PEX_RECEIVED_MAX, PEX_RECEIVED_MAX), (PEX_RECEIVED_MAX + 1, PEX_RECEIVED_MAX)] {
            let message = PexMessage { added: peers(1..count as u16 + 1), dropped: vec![], in_use: None };
            assert_eq!(PexMessage::parse(&message.encode()).unwrap().added.len(), taken);
        }
    }

    #[test]
    fn scion_peers_are_in_keys_of_our_own() {
        let peer: Endpoint = "[1-ff00:0:110,10.1.2.3]:6881".parse().unwrap();
        let message = PexMessage { added: vec![(peer, PexFlags::REACHABLE)], dropped: vec![peer], in_use: None };
        let compact = b"\x00\x01\xff\x00\x00\x00\x01\x10\x04\x0a\x01\x02\x03\x1a\xe1";
        let expected = [
            &b"d8:ab_added15:"[..],
            compact,
            b"10:ab_added.f1:\x1010:ab_dropped15:",
            compact,
            b"5:added0:7:added.f0:7:dropped0:e",
        ]
        .concat();
        assert_eq!(message.encode(), expected);
        assert_eq!(PexMessage::parse(&expected), Ok(message));
    }

    #[test]
    fn a_broken_scion_peer_ends_its_list_only() {
        let mut list = Vec::new();
        put_all(["[1-ff00:0:110,10.0.0.1]:1", "[1-ff00:0:110,10.0.0.2]:0", "[1-ff00:0:110,::1]:3"], &mut list);
        list.extend_from_slice(&[0, 1, 0xff, 0, 0, 0, 1, 0x10, 5, 1, 2, 3, 4, 5, 0, 9]);
        put_all(["[1-ff00:0:110,10.0.0.4]:4"], &mut list);
        let mut dict = DictBuilder::new();
        dict.bytes("added", [10, 0, 0, 9, 0, 9])
            .bytes("added.f", [1])
            .bytes("ab_added", list)
            .bytes("ab_added.f", [2, 4]);
        let read: Vec<String> = PexMessage::parse(&dict.encode())
            .unwrap()
            .added
            .iter()
            .map(|(address, flags)| format!("{address} {}", flags.0))
            .collect();
        assert_eq!(read, ["10.0.0.9:9 1", "[1-ff00:0:110,10.0.0.1]:1 2", "[1-ff00:0:110,::1]:3 0"]);
    }

    fn put_all<const N: usize>(texts: [&str; N], list: &mut Vec<u8>) {
        texts.iter().for_each(|text| pack_scion(&text.parse().unwrap(), list));
    }

    #[test]
    fn long_lists_of_scion_are_cut() {
        let scion = |port| Endpoint::Scion(ScionAddr::new(IsdAs::from_u64(1 << 48 | 7), ([10, 0, 0, 1], port).into()));
        let all = |count| (1..=count).map(|port| (scion(port), PexFlags::default())).collect();
        for count in [PEX_RECEIVED_MAX, PEX_RECEIVED_MAX + 1] {
            let message = PexMessage { added: all(count as u16), dropped: vec![], in_use: None };
            assert_eq!(PexMessage::parse(&message.encode()).unwrap().added.len(), PEX_RECEIVED_MAX);
        }
    }

    fn address() -> impl Strategy<Value = (IpAddr, u16)> {
        let mapped = any::<Ipv4Addr>().prop_map(|ip| IpAddr::V6(ip.to_ipv6_mapped()));
        (prop_oneof![any::<IpAddr>(), mapped], 1u16..)
    }

    fn endpoint() -> impl Strategy<Value = Endpoint> {
        let scion =
            |(isd_as, address)| Endpoint::Scion(ScionAddr::new(IsdAs::from_u64(isd_as), SocketAddr::from(address)));
        prop_oneof![
            address().prop_map(|address| Endpoint::from(SocketAddr::from(address))),
            (any::<u64>(), address()).prop_map(scion),
        ]
    }

    proptest! {
        #[test]
        fn messages_round_trip(
            added in prop::collection::vec((endpoint(), any::<u8>().prop_map(PexFlags)), 0..PEX_RECEIVED_MAX),
            dropped in prop::collection::vec(endpoint(), 0..PEX_RECEIVED_MAX),
        ) {
            let mut message = PexMessage { added, dropped, in_use: None };
            message.added.sort_by_key(|(address, _)| family(address));
            message.dropped.sort_by_key(family);
            prop_assert_eq!(PexMessage::parse(&message.encode()), Ok(message));
        }
    }
}
