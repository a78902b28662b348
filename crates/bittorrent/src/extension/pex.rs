//! Peer exchange (BEP 11, "ut_pex"): addresses of peers, told to peers.
//!
//! Peers of SCION are told under keys of our own, `added.scion`, `added.scion.f` and `dropped.scion`, which others leave
//! unread.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anabranch_content::bencode::{self, DictBuilder, Limits, Value};
use anabranch_paths::{Endpoint, ScionAddr};

use super::ExtensionError;
use crate::compact::{pack, pack_scion, unpack_scion, unpack_v4, unpack_v6};

/// Peers in one message, for those that came and those that went each, both families together (BEP 11).
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
}

impl PexMessage {
    /// The extended message's payload.
    pub fn encode(&self) -> Vec<u8> {
        let (mut added, mut dropped) = (Lists::default(), Lists::default());
        self.added.iter().for_each(|(address, flags)| added.push(*address, flags.0));
        self.dropped.iter().for_each(|address| dropped.push(*address, 0));
        let mut dict = DictBuilder::new();
        dict.bytes("added", added.v4).bytes("added.f", added.v4_flags).bytes("dropped", dropped.v4);
        if !added.v6.is_empty() {
            dict.bytes("added6", added.v6).bytes("added6.f", added.v6_flags);
        }
        if !dropped.v6.is_empty() {
            dict.bytes("dropped6", dropped.v6);
        }
        if !added.scion.is_empty() {
            dict.bytes("added.scion", added.scion).bytes("added.scion.f", added.scion_flags);
        }
        if !dropped.scion.is_empty() {
            dict.bytes("dropped.scion", dropped.scion);
        }
        dict.encode()
    }

    /// Reads a payload: IPv4 peers first, at most [`PEX_RECEIVED_MAX`] of each list, without those of port 0. Lists of
    /// the wrong type count as left out.
    ///
    /// # Errors
    /// Where the payload is no bencoded dictionary.
    pub fn parse(payload: &[u8]) -> Result<Self, ExtensionError> {
        let (tree, _) = bencode::parse_prefix(payload, &Limits::MESSAGE)
            .map_err(|source| ExtensionError::Bencode { message: MESSAGE, source })?;
        let dict = tree.root();
        if !dict.is_dict() {
            return Err(ExtensionError::Field { message: MESSAGE, field: "dictionary" });
        }
        let [added, flags, added6, flags6, dropped, dropped6] =
            ["added", "added.f", "added6", "added6.f", "dropped", "dropped6"].map(|key| list(dict, key));
        let [added_scion, flags_scion, dropped_scion] =
            ["added.scion", "added.scion.f", "dropped.scion"].map(|key| list(dict, key));
        let ip = |address: SocketAddr| Some(Endpoint::from(address));
        let scion = |address: Option<ScionAddr>| address.map(Endpoint::Scion);
        let added = with_flags(unpack_v4(added).map(ip), flags)
            .chain(with_flags(unpack_v6(added6).map(ip), flags6))
            .chain(with_flags(unpack_scion(added_scion).map(scion), flags_scion));
        let dropped =
            unpack_v4(dropped).map(ip).chain(unpack_v6(dropped6).map(ip)).chain(unpack_scion(dropped_scion).map(scion));
        let has_port = |address: &Endpoint| address.socket_addr().port() != 0;
        Ok(Self {
            added: added.filter(|(address, _)| has_port(address)).take(PEX_RECEIVED_MAX).collect(),
            dropped: dropped.flatten().filter(has_port).take(PEX_RECEIVED_MAX).collect(),
        })
    }
}

/// Peer exchange with one connection: what was told, and when.
#[derive(Clone, Debug, Default)]
pub struct PexState {
    told: BTreeSet<Endpoint>,
    sent: Option<Instant>,
    received: Option<Instant>,
}

impl PexState {
    /// The message to send now, if one is due and there is news. `current` is who is connected now, without the
    /// receiver itself; peers are told by the address they listen on.
    pub fn next(&mut self, current: &[(Endpoint, PexFlags)], now: Instant) -> Option<PexMessage> {
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
        if added.is_empty() && dropped.is_empty() {
            return None;
        }
        self.sent = Some(now);
        Some(PexMessage { added, dropped })
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

/// Peers with their flags; none where the list of flags is shorter. An address that is none keeps its place until then.
fn with_flags<'a>(
    peers: impl Iterator<Item = Option<Endpoint>> + 'a,
    flags: &'a [u8],
) -> impl Iterator<Item = (Endpoint, PexFlags)> + 'a {
    let flagged = peers.zip(flags.iter().copied().chain(std::iter::repeat(0)));
    flagged.filter_map(|(address, flags)| Some((address?, PexFlags(flags))))
}

/// Addresses by their kind, as they stand in a message.
#[derive(Default)]
struct Lists {
    v4: Vec<u8>,
    v4_flags: Vec<u8>,
    v6: Vec<u8>,
    v6_flags: Vec<u8>,
    scion: Vec<u8>,
    scion_flags: Vec<u8>,
}

impl Lists {
    fn push(&mut self, address: Endpoint, flags: u8) {
        match address {
            Endpoint::Ip(address) if address.is_ipv4() => {
                pack(address, &mut self.v4);
                self.v4_flags.push(flags);
            }
            Endpoint::Ip(address) => {
                pack(address, &mut self.v6);
                self.v6_flags.push(flags);
            }
            Endpoint::Scion(address) => {
                pack_scion(address, &mut self.scion);
                self.scion_flags.push(flags);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_paths::IsdAs;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn peers(ports: std::ops::Range<u16>) -> Vec<(Endpoint, PexFlags)> {
        let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into();
        ports.map(|port| (address(port), PexFlags::default())).collect()
    }

    #[test]
    fn only_news_is_told_once_a_minute() {
        let (mut state, now) = (PexState::default(), Instant::now());
        assert_eq!(state.next(&[], now), None);
        let first = state.next(&peers(1..4), now).unwrap();
        assert_eq!((first.added, first.dropped), (peers(1..4), vec![]));
        let almost = now + PEX_INTERVAL - Duration::from_millis(1);
        assert_eq!(state.next(&peers(2..5), almost), None);
        let second = state.next(&peers(2..5), now + PEX_INTERVAL).unwrap();
        assert_eq!((second.added, second.dropped), (peers(4..5), vec![peers(1..2)[0].0]));
        assert_eq!(state.next(&peers(2..5), now + 2 * PEX_INTERVAL), None);
    }

    #[test]
    fn fifty_at_a_time_and_no_more_than_the_limit_in_all() {
        let (mut state, mut now, mut told) = (PexState::default(), Instant::now(), 0);
        let crowd = peers(1..1000);
        while let Some(message) = state.next(&crowd, now) {
            assert_eq!(message.added.len(), PEX_PEERS_MAX);
            told += message.added.len();
            now += PEX_INTERVAL;
        }
        assert_eq!(told, PEX_TOLD_MAX);
        let message = state.next(&[], now).unwrap();
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
            let message = PexMessage { added: peers(1..count as u16 + 1), dropped: vec![] };
            assert_eq!(PexMessage::parse(&message.encode()).unwrap().added.len(), taken);
        }
    }

    proptest! {
        #[test]
        fn messages_round_trip(
            v4: Vec<(Ipv4Addr, u16, u8)>, v6: Vec<(Ipv6Addr, u16, u8)>, scion: Vec<(u16, Ipv4Addr, u16, u8)>,
            gone: Vec<(Ipv4Addr, u16)>,
        ) {
            let ip = |ip: std::net::IpAddr, port: u16| SocketAddr::new(ip, port.max(1));
            let of_as = |isd: u16, host: Ipv4Addr, port: u16| {
                Endpoint::Scion(ScionAddr::new(IsdAs::new(isd.max(1), 0x110).unwrap(), ip(host.into(), port)))
            };
            let v4 = v4.into_iter().map(|(host, port, flags)| (ip(host.into(), port).into(), PexFlags(flags)));
            // None that is IPv4, mapped: it would come back as such.
            let host6 = |host: Ipv6Addr| Ipv6Addr::from_bits(host.to_bits() | 1 << 127).into();
            let v6 = v6.into_iter().map(|(host, port, flags)| (ip(host6(host), port).into(), PexFlags(flags)));
            let scion = scion.into_iter().map(|(isd, host, port, flags)| (of_as(isd, host, port), PexFlags(flags)));
            let dropped = gone.iter().map(|(host, port)| ip((*host).into(), *port).into());
            let dropped = dropped.chain(gone.iter().map(|(host, port)| of_as(*port, *host, *port))).collect();
            let message = PexMessage { added: v4.chain(v6).chain(scion).collect(), dropped };
            prop_assert_eq!(PexMessage::parse(&message.encode()), Ok(message));
        }
    }
}
