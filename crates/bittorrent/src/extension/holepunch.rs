//! Hole punching (BEP 55, "ut_holepunch"): two peers behind NATs are told of each other at the same time by a third that both know, and
//! call each other at once, so that each NAT takes the other's call for an answer.

use std::net::{IpAddr, SocketAddr};

use super::ExtensionError;

/// The name in errors.
const MESSAGE: &str = "ut_holepunch";

/// What is asked, said or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolepunchKind {
    /// Tell that peer and me of each other.
    Rendezvous,
    /// Call that peer over uTP, now: it calls you.
    Connect,
    /// That cannot be.
    Error(HolepunchError),
}

/// Why it cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolepunchError {
    /// The address is nobody's that may be named.
    NoSuchPeer,
    /// The one who was asked is not connected to that peer.
    NotConnected,
    /// That peer does not take part.
    NoSupport,
    /// That peer is the one who was asked.
    NoSelf,
    /// Something else.
    Other(u32),
}

impl HolepunchError {
    const KNOWN: [(Self, u32); 4] =
        [(Self::NoSuchPeer, 1), (Self::NotConnected, 2), (Self::NoSupport, 3), (Self::NoSelf, 4)];

    fn code(self) -> u32 {
        match self {
            Self::Other(code) => code,
            known => Self::KNOWN.into_iter().find(|(error, _)| *error == known).map_or(0, |(_, code)| code),
        }
    }

    fn of(code: u32) -> Self {
        Self::KNOWN.into_iter().find(|(_, known)| *known == code).map_or(Self::Other(code), |(error, _)| error)
    }
}

/// A ut_holepunch message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolepunchMessage {
    /// What it is.
    pub kind: HolepunchKind,
    /// The peer that it is about.
    pub address: SocketAddr,
}

impl HolepunchMessage {
    /// The extended message's payload.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, code) = match self.kind {
            HolepunchKind::Rendezvous => (0, 0),
            HolepunchKind::Connect => (1, 0),
            HolepunchKind::Error(error) => (2, error.code()),
        };
        let mut bytes = vec![kind];
        match self.address.ip().to_canonical() {
            IpAddr::V4(ip) => {
                bytes.push(0);
                bytes.extend(ip.octets());
            }
            IpAddr::V6(ip) => {
                bytes.push(1);
                bytes.extend(ip.octets());
            }
        }
        bytes.extend(self.address.port().to_be_bytes());
        bytes.extend(code.to_be_bytes());
        bytes
    }

    /// Reads a payload; `None` for kinds and families that are not known here. The code may be left out where there is no error, as
    /// libtorrent does.
    ///
    /// # Errors
    /// Where it is cut short.
    pub fn parse(payload: &[u8]) -> Result<Option<Self>, ExtensionError> {
        let short = |expected| ExtensionError::Length { message: MESSAGE, found: payload.len(), expected };
        let (&[kind, family], rest) = payload.split_first_chunk().ok_or(short(12))?;
        let (ip, rest): (IpAddr, _) = match family {
            0 => rest.split_first_chunk::<4>().map(|(ip, rest)| ((*ip).into(), rest)).ok_or(short(12))?,
            1 => rest.split_first_chunk::<16>().map(|(ip, rest)| ((*ip).into(), rest)).ok_or(short(24))?,
            _ => return Ok(None),
        };
        let (port, rest) = rest.split_first_chunk().ok_or(short(12))?;
        let code = rest.first_chunk().map_or(0, |code| u32::from_be_bytes(*code));
        let kind = match kind {
            0 => HolepunchKind::Rendezvous,
            1 => HolepunchKind::Connect,
            2 => HolepunchKind::Error(HolepunchError::of(code)),
            _ => return Ok(None),
        };
        Ok(Some(Self { kind, address: SocketAddr::new(ip.to_canonical(), u16::from_be_bytes(*port)) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_have_the_form_of_the_specification() {
        let address = "9.9.1.2:7000".parse().unwrap();
        let message = |kind| HolepunchMessage { kind, address }.encode();
        assert_eq!(message(HolepunchKind::Rendezvous), *b"\0\0\x09\x09\x01\x02\x1b\x58\0\0\0\0");
        assert_eq!(message(HolepunchKind::Connect), *b"\x01\0\x09\x09\x01\x02\x1b\x58\0\0\0\0");
        let refusal = HolepunchKind::Error(HolepunchError::NoSupport);
        assert_eq!(message(refusal), *b"\x02\0\x09\x09\x01\x02\x1b\x58\0\0\0\x03");
        // As libtorrent writes it.
        let connect = HolepunchMessage { kind: HolepunchKind::Connect, address };
        assert_eq!(HolepunchMessage::parse(b"\x01\0\x09\x09\x01\x02\x1b\x58"), Ok(Some(connect)));
        for unknown in [&b"\x03\0\x09\x09\x01\x02\x1b\x58"[..], b"\0\x02\x09\x09\x01\x02\x1b\x58"] {
            assert_eq!(HolepunchMessage::parse(unknown), Ok(None));
        }
        for len in 0..8 {
            assert!(HolepunchMessage::parse(&connect.encode()[..len]).is_err());
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(kind in 0u8..3, code: u32, ip: [u8; 16], is_v4: bool, port: u16) {
            let kind = match kind {
                0 => HolepunchKind::Rendezvous,
                1 => HolepunchKind::Connect,
                _ => HolepunchKind::Error(HolepunchError::of(code)),
            };
            let ip = if is_v4 { IpAddr::from([ip[0], ip[1], ip[2], ip[3]]) } else { IpAddr::from(ip).to_canonical() };
            let message = HolepunchMessage { kind, address: SocketAddr::new(ip, port) };
            prop_assert_eq!(HolepunchMessage::parse(&message.encode()), Ok(Some(message)));
        }
    }
}
