//! Peer exchange (BEP 11, "ut_pex"): addresses of peers, told to peers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anabranch_content::bencode::{self, DictBuilder, Limits, Value};

use super::ExtensionError;
use crate::compact::{pack, unpack_v4, unpack_v6};

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
    pub added: Vec<(SocketAddr, PexFlags)>,
    /// Peers that it is connected to no longer.
    pub dropped: Vec<SocketAddr>,
}

impl PexMessage {
    /// The extended message's payload.
    pub fn encode(&self) -> Vec<u8> {
        let (mut added, mut added6, mut flags, mut flags6) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (address, peer_flags) in &self.added {
            pack(*address, if address.is_ipv6() { &mut added6 } else { &mut added });
            if address.is_ipv4() { flags.push(peer_flags.0) } else { flags6.push(peer_flags.0) }
        }
        let (mut dropped, mut dropped6) = (Vec::new(), Vec::new());
        for address in &self.dropped {
            pack(*address, if address.is_ipv6() { &mut dropped6 } else { &mut dropped });
        }
        let mut dict = DictBuilder::new();
        dict.bytes("added", added).bytes("added.f", flags).bytes("dropped", dropped);
        if !flags6.is_empty() {
            dict.bytes("added6", added6).bytes("added6.f", flags6);
        }
        if !dropped6.is_empty() {
            dict.bytes("dropped6", dropped6);
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
        let added = with_flags(unpack_v4(added), flags).chain(with_flags(unpack_v6(added6), flags6));
        let dropped = unpack_v4(dropped).chain(unpack_v6(dropped6));
        Ok(Self {
            added: added.filter(|(address, _)| address.port() != 0).take(PEX_RECEIVED_MAX).collect(),
            dropped: dropped.filter(|address| address.port() != 0).take(PEX_RECEIVED_MAX).collect(),
        })
    }
}

/// Peer exchange with one connection: what was told, and when.
#[derive(Clone, Debug, Default)]
pub struct PexState {
    told: BTreeSet<SocketAddr>,
    sent: Option<Instant>,
    received: Option<Instant>,
}

impl PexState {
    /// The message to send now, if one is due and there is news. `current` is who is connected now, without the
    /// receiver itself; peers are told by the address they listen on.
    pub fn next(&mut self, current: &[(SocketAddr, PexFlags)], now: Instant) -> Option<PexMessage> {
        if self.deadline().is_some_and(|due| now < due) {
            return None;
        }
        let present: BTreeSet<SocketAddr> = current.iter().map(|(address, _)| *address).collect();
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

/// Peers with their flags; none where the list of flags is shorter.
fn with_flags<'a>(
    peers: impl Iterator<Item = SocketAddr> + 'a,
    flags: &'a [u8],
) -> impl Iterator<Item = (SocketAddr, PexFlags)> + 'a {
    peers.zip(flags.iter().copied().chain(std::iter::repeat(0))).map(|(address, flags)| (address, PexFlags(flags)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn peers(ports: std::ops::Range<u16>) -> Vec<(SocketAddr, PexFlags)> {
        ports.map(|port| ((Ipv4Addr::LOCALHOST, port).into(), PexFlags::default())).collect()
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
            v4: Vec<(Ipv4Addr, u16, u8)>, v6: Vec<(Ipv6Addr, u16, u8)>, gone: Vec<(Ipv4Addr, u16)>,
        ) {
            let v4 = v4.into_iter().map(|(ip, port, flags)| (SocketAddr::from((ip, port.max(1))), PexFlags(flags)));
            let v6 = v6.into_iter().map(|(ip, port, flags)| (SocketAddr::from((ip, port.max(1))), PexFlags(flags)));
            let dropped = gone.into_iter().map(|(ip, port)| SocketAddr::from((ip, port.max(1)))).collect();
            let message = PexMessage { added: v4.chain(v6).collect(), dropped };
            prop_assert_eq!(PexMessage::parse(&message.encode()), Ok(message));
        }
    }
}
