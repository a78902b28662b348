//! What one user gives another to fetch with, or to send to: one short line.
//!
//! It is read out, copied by hand and pasted into chats that break lines, so every byte has to earn its place. Of the maker's key
//! it has 16 bytes of the SHA-256: who wants to be met in the maker's stead needs a key with the same ones, 2^128 tries away. Of the
//! secret it has 12, which can only be tried over the network against the maker, who proved the key before: never offline. How often
//! it may be used is the maker's to count and not in it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anabranch_content::hash::sha256;
use anabranch_paths::{Endpoint, IsdAs, ScionAddr};
use ring::hmac;

use super::receipt::KEY_LEN;
use super::{Input, WireError};

/// The label of the secret that a ticket's holder makes a proof of.
pub const PROOF_LABEL: &[u8] = b"EXPORTER-anabranch-bulk-ticket";
/// Every ticket starts with this.
pub const TICKET_PREFIX: &str = "bulk1-";
/// Bytes of the secret: nobody guesses it in as many tries as a network carries in the life of a ticket.
pub const TICKET_SECRET_LEN: usize = 12;
/// Bytes that tell a key from all others.
pub const KEY_PRINT_LEN: usize = 16;
/// Addresses in a ticket: a host with more ways has enough of them.
pub const ADDRESSES_MAX: usize = 8;
/// Bytes of SHA-256 at the end: a line that was cut or mistyped is told from a wrong one.
const CHECK_LEN: usize = 3;
/// Longest line: eight SCION hosts with IPv6 addresses take 342.
pub const TICKET_TEXT_MAX: usize = 384;
/// In the first byte: the holder sends. The lowest three bits are how many addresses there are, less one; the others are 0.
const HOLDER_SENDS: u8 = 0x80;
/// In an address's first byte.
const IPV6: u8 = 1;
/// An ISD-AS comes first.
const SCION: u8 = 2;
/// The port is that of the address before, and left out.
const SAME_PORT: u8 = 4;
/// RFC 4648 §5: none of these needs quoting.
const BASE64URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Where to go, whom to meet there, and what to say.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// Whether its holder sends (to who made it), or receives.
    pub holder_sends: bool,
    /// Ways to who made it, the best first; 1 to [`ADDRESSES_MAX`].
    pub addresses: Vec<Endpoint>,
    /// The key of who made it.
    pub key: KeyPrint,
    /// Proves that one holds the ticket.
    pub secret: [u8; TICKET_SECRET_LEN],
    /// Seconds since 1970 after which it is worth nothing.
    pub expires: u32,
}

/// What is told of a key where there is little room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPrint(pub [u8; KEY_PRINT_LEN]);

impl KeyPrint {
    /// The first bytes of the key's SHA-256.
    pub fn of(key: &[u8; KEY_LEN]) -> Self {
        let mut print = [0; KEY_PRINT_LEN];
        print.copy_from_slice(&sha256(key)[..KEY_PRINT_LEN]);
        Self(print)
    }

    /// Whether `key` is the one.
    pub fn is_of(&self, key: &[u8; KEY_LEN]) -> bool {
        *self == Self::of(key)
    }
}

/// Why a text is no ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    /// Something else.
    #[error("this is no ticket: copy the whole line that starts with `{TICKET_PREFIX}`")]
    NotATicket,
    /// Some of it is missing or mistyped.
    #[error(
        "the ticket is mistyped or cut short, as its checksum says: copy the whole line again, from `{TICKET_PREFIX}` to its end"
    )]
    Damaged,
    /// Of another version.
    #[error("the ticket was made by another version of the program: update the older one")]
    Version,
}

/// What shows that one holds a ticket with this secret: HMAC-SHA-256 of what the connection exports (label
/// [`PROOF_LABEL`], no context), so that it is worth nothing in any other.
pub fn proof(secret: &[u8; TICKET_SECRET_LEN], exported: &[u8; 32]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), exported);
    let mut proof = [0; 32];
    proof.copy_from_slice(tag.as_ref());
    proof
}

/// Whether a proof is one of this secret; says so in the same time whichever byte is wrong.
pub fn is_proof(secret: &[u8; TICKET_SECRET_LEN], exported: &[u8; 32], proof: &[u8; 32]) -> bool {
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret), exported, proof).is_ok()
}

impl Ticket {
    fn to_bytes(&self) -> Vec<u8> {
        let addresses = &self.addresses[..self.addresses.len().min(ADDRESSES_MAX)];
        let mut out = vec![if self.holder_sends { HOLDER_SENDS } else { 0 } | (addresses.len().max(1) - 1) as u8];
        out.extend(self.key.0);
        out.extend(self.secret);
        out.extend(self.expires.to_be_bytes());
        let mut port = None;
        for address in addresses {
            let socket = address.socket_addr();
            let form = |bit: u8, is_set: bool| if is_set { bit } else { 0 };
            let is_same_port = port.replace(socket.port()) == Some(socket.port());
            let is_scion = address.as_scion().is_some();
            out.push(form(IPV6, socket.is_ipv6()) | form(SCION, is_scion) | form(SAME_PORT, is_same_port));
            if let Some(scion) = address.as_scion() {
                out.extend(scion.isd_as.to_u64().to_be_bytes());
            }
            match socket.ip() {
                IpAddr::V4(ip) => out.extend(ip.octets()),
                IpAddr::V6(ip) => out.extend(ip.octets()),
            }
            if !is_same_port {
                out.extend(socket.port().to_be_bytes());
            }
        }
        out
    }

    fn read(mut input: Input<'_>) -> Result<Self, WireError> {
        let head = input.u8()?;
        if head & !(HOLDER_SENDS | (ADDRESSES_MAX - 1) as u8) != 0 {
            return Err(WireError::Invalid("head"));
        }
        let (key, secret, expires) = (KeyPrint(input.array()?), input.array()?, input.u32()?);
        let (mut addresses, mut port) = (Vec::new(), None);
        for _ in 0..=usize::from(head) % ADDRESSES_MAX {
            let form = input.u8()?;
            if form > IPV6 | SCION | SAME_PORT {
                return Err(WireError::Invalid("address"));
            }
            let isd_as = if form & SCION != 0 { Some(IsdAs::from_u64(input.u64()?)) } else { None };
            let ip: IpAddr = if form & IPV6 != 0 { input.array::<16>()?.into() } else { input.array::<4>()?.into() };
            let before = port;
            let read = if form & SAME_PORT == 0 { input.u16()? } else { before.ok_or(WireError::Invalid("port"))? };
            // One text for one ticket: a port that could have been left out is.
            if form & SAME_PORT == 0 && before == Some(read) {
                return Err(WireError::Invalid("port"));
            }
            port = Some(read);
            let socket = SocketAddr::new(ip, read);
            addresses.push(match isd_as {
                Some(isd_as) => Endpoint::Scion(ScionAddr::new(isd_as, socket)),
                None => Endpoint::from(socket),
            });
        }
        input.finish()?;
        Ok(Self { holder_sends: head & HOLDER_SENDS != 0, addresses, key, secret, expires })
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.to_bytes();
        bytes.extend_from_slice(&sha256(&bytes)[..CHECK_LEN]);
        let mut text = TICKET_PREFIX.to_owned();
        let (mut bits, mut count) = (0u32, 0);
        for byte in bytes {
            bits = bits << 8 | u32::from(byte);
            count += 8;
            while count >= 6 {
                count -= 6;
                text.push(char::from(BASE64URL[(bits >> count & 63) as usize]));
            }
        }
        if count > 0 {
            text.push(char::from(BASE64URL[(bits << (6 - count) & 63) as usize]));
        }
        f.write_str(&text)
    }
}

impl fmt::Debug for Ticket {
    /// Without the secret: logs are read by others.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Ticket");
        debug.field("holder_sends", &self.holder_sends).field("addresses", &self.addresses);
        debug.field("expires", &self.expires).finish_non_exhaustive()
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        let text = text.trim();
        let digits = match text.split_at_checked(TICKET_PREFIX.len()) {
            Some((TICKET_PREFIX, digits)) => digits,
            Some((prefix, _)) if is_other_version(prefix) => return Err(TicketError::Version),
            _ => return Err(TicketError::NotATicket),
        };
        if text.len() > TICKET_TEXT_MAX {
            return Err(TicketError::Damaged);
        }
        let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
        for digit in digits.bytes() {
            let value = BASE64URL.iter().position(|known| *known == digit).ok_or(TicketError::Damaged)?;
            bits = bits << 6 | value as u32;
            count += 6;
            if count >= 8 {
                count -= 8;
                bytes.push((bits >> count) as u8);
            }
        }
        // One text for one ticket: the bits behind the last byte are zero.
        if bits & ((1 << count) - 1) != 0 || count >= 6 {
            return Err(TicketError::Damaged);
        }
        let (body, check) = bytes.split_last_chunk::<CHECK_LEN>().ok_or(TicketError::Damaged)?;
        if sha256(body)[..CHECK_LEN] != check[..] {
            return Err(TicketError::Damaged);
        }
        Self::read(Input(body)).map_err(|_| TicketError::Damaged)
    }
}

/// `bulk2-` and its like.
fn is_other_version(prefix: &str) -> bool {
    matches!(prefix.as_bytes(), [b'b', b'u', b'l', b'k', b'0'..=b'9', b'-'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ticket() -> impl Strategy<Value = Ticket> {
        let address = (any::<(u64, IpAddr, u16)>(), any::<bool>()).prop_map(|((isd_as, ip, port), scion)| {
            let socket = SocketAddr::new(ip, port);
            if scion {
                Endpoint::Scion(ScionAddr::new(IsdAs::from_u64(isd_as), socket))
            } else {
                Endpoint::from(socket)
            }
        });
        let addresses = prop::collection::vec(address, 1..=ADDRESSES_MAX);
        let rest = any::<([u8; KEY_PRINT_LEN], [u8; TICKET_SECRET_LEN], u32)>();
        (any::<bool>(), addresses, rest).prop_map(|(holder_sends, addresses, (key, secret, expires))| Ticket {
            holder_sends,
            addresses,
            key: KeyPrint(key),
            secret,
            expires,
        })
    }

    proptest! {
        #[test]
        fn a_ticket_is_one_short_line(ticket in ticket(), cut in any::<prop::sample::Index>()) {
            let text = ticket.to_string();
            prop_assert!(text.len() <= TICKET_TEXT_MAX && !text.contains(char::is_whitespace));
            prop_assert_eq!(text.parse::<Ticket>(), Ok(ticket.clone()));
            prop_assert_eq!(format!(" {text}\n").parse::<Ticket>(), Ok(ticket));
            // Cut anywhere, or with one letter changed, it is none.
            let at = cut.index(text.len());
            prop_assert!(text[..at].parse::<Ticket>().is_err());
            let mut letters = text.into_bytes();
            letters[at] = if letters[at] == b'x' { b'y' } else { b'x' };
            prop_assert!(String::from_utf8(letters).unwrap().parse::<Ticket>().is_err());
        }

        #[test]
        fn a_proof_is_of_one_secret_and_one_connection(secret: [u8; TICKET_SECRET_LEN], exported: [u8; 32], bit in 0..256usize) {
            let mut shown = proof(&secret, &exported);
            prop_assert!(is_proof(&secret, &exported, &shown));
            shown[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!is_proof(&secret, &exported, &shown));
            let mut other = exported;
            other[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!is_proof(&secret, &other, &proof(&secret, &exported)));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,60}") {
            prop_assert!(text.parse::<Ticket>().is_err());
            prop_assert!((TICKET_PREFIX.to_owned() + &text).parse::<Ticket>().is_err());
        }
    }

    #[test]
    fn one_address_takes_one_line_of_a_chat() {
        let mut ticket = Ticket {
            holder_sends: false,
            addresses: vec!["192.0.2.7:40000".parse().unwrap()],
            key: KeyPrint::of(&[1; KEY_LEN]),
            secret: [2; TICKET_SECRET_LEN],
            expires: 1_800_000_000,
        };
        assert_eq!(ticket.to_string().len(), 64);
        // The same port is told once.
        ticket.addresses.push("198.51.100.9:40000".parse().unwrap());
        assert_eq!(ticket.to_string().len(), 70);
        let most = "[65535-ffff:ffff:ffff,2001:db8::1]";
        ticket.addresses = (1..=ADDRESSES_MAX).map(|port| format!("{most}:{port}").parse().unwrap()).collect();
        assert_eq!(ticket.to_string().len(), 342);
        assert_eq!(ticket.to_string().parse(), Ok(ticket));
    }

    #[test]
    fn what_is_wrong_with_a_line_is_told() {
        let error = |text: &str| text.parse::<Ticket>().unwrap_err();
        assert_eq!(error("bulk1-AAAA"), TicketError::Damaged);
        assert_eq!(error("bulk2-AAAA"), TicketError::Version);
        assert_eq!(error("magnet:?xt=urn:btih:"), TicketError::NotATicket);
        assert_eq!(error("bulk"), TicketError::NotATicket);
        assert_eq!(error("b\u{fc}lk1-AAAA"), TicketError::NotATicket);
    }

    #[test]
    fn a_key_is_known_by_its_print() {
        assert!(KeyPrint::of(&[1; KEY_LEN]).is_of(&[1; KEY_LEN]) && !KeyPrint::of(&[1; KEY_LEN]).is_of(&[2; KEY_LEN]));
    }
}
