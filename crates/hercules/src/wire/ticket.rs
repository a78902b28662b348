//! What one user gives another to fetch with, or to send to: one short line.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anabranch_content::hash::sha256;
use anabranch_paths::{Endpoint, IsdAs, ScionAddr};

use super::receipt::KEY_LEN;
use super::{Input, WireError};

/// Every ticket starts with this.
const PREFIX: &str = "bulk1-";
/// Bytes of the secret: nobody guesses it.
pub const TICKET_SECRET_LEN: usize = 16;
/// Addresses in a ticket: a host with more ways has enough of them.
pub const ADDRESSES_MAX: usize = 8;
/// Bytes of SHA-256 at the end: a line that was cut or mistyped is told from a wrong one.
const CHECK_LEN: usize = 4;
/// Longest line.
pub const TICKET_TEXT_MAX: usize = 512;
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
    pub key: [u8; KEY_LEN],
    /// Proves that one holds the ticket.
    pub secret: [u8; TICKET_SECRET_LEN],
    /// Seconds since 1970 after which it is worth nothing.
    pub expires: u64,
    /// How many transfers it is good for; at least 1.
    pub times: u16,
}

/// Why a text is no ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    /// Something else.
    #[error("this is no ticket: copy the whole line that starts with `{PREFIX}`")]
    NotATicket,
    /// Some of it is missing or mistyped.
    #[error("the ticket is damaged: copy the whole line again, from `{PREFIX}` to its end")]
    Damaged,
    /// Of another version.
    #[error("the ticket was made by another version of the program: update the older one")]
    Version,
}

impl Ticket {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![super::VERSION, u8::from(self.holder_sends)];
        out.extend(self.key);
        out.extend(self.secret);
        out.extend(self.expires.to_be_bytes());
        out.extend(self.times.max(1).to_be_bytes());
        let addresses = &self.addresses[..self.addresses.len().min(ADDRESSES_MAX)];
        out.push(addresses.len() as u8);
        for address in addresses {
            let socket = address.socket_addr();
            out.push(u8::from(socket.is_ipv6()) | u8::from(address.as_scion().is_some()) << 1);
            if let Some(scion) = address.as_scion() {
                out.extend(scion.isd_as.to_u64().to_be_bytes());
            }
            match socket.ip() {
                IpAddr::V4(ip) => out.extend(ip.octets()),
                IpAddr::V6(ip) => out.extend(ip.octets()),
            }
            out.extend(socket.port().to_be_bytes());
        }
        out
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, TicketError> {
        if bytes.first() != Some(&super::VERSION) {
            return Err(TicketError::Version);
        }
        Self::read(Input(&bytes[1..])).map_err(|_| TicketError::Damaged)
    }

    fn read(mut input: Input<'_>) -> Result<Self, WireError> {
        let holder_sends = match input.u8()? {
            0 => false,
            1 => true,
            _ => return Err(WireError::Invalid("direction")),
        };
        let (key, secret) = (input.array()?, input.array()?);
        let (expires, times, count) = (input.u64()?, input.u16()?, usize::from(input.u8()?));
        if times == 0 || count == 0 || count > ADDRESSES_MAX {
            return Err(WireError::Invalid("count"));
        }
        let mut addresses = Vec::new();
        for _ in 0..count {
            let form = input.u8()?;
            if form > 3 {
                return Err(WireError::Invalid("address"));
            }
            let isd_as = if form & 2 != 0 { Some(IsdAs::from_u64(input.u64()?)) } else { None };
            let ip: IpAddr = if form & 1 != 0 { input.array::<16>()?.into() } else { input.array::<4>()?.into() };
            let socket = SocketAddr::new(ip, input.u16()?);
            addresses.push(match isd_as {
                Some(isd_as) => Endpoint::Scion(ScionAddr::new(isd_as, socket)),
                None => Endpoint::from(socket),
            });
        }
        input.finish()?;
        Ok(Self { holder_sends, addresses, key, secret, expires, times })
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.to_bytes();
        bytes.extend_from_slice(&sha256(&bytes)[..CHECK_LEN]);
        let mut text = PREFIX.to_owned();
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
        debug.field("expires", &self.expires).field("times", &self.times).finish_non_exhaustive()
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        let digits = text.trim().strip_prefix(PREFIX).ok_or(TicketError::NotATicket)?;
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
        Self::from_bytes(body)
    }
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
        (any::<bool>(), addresses, any::<([u8; KEY_LEN], [u8; TICKET_SECRET_LEN], u64)>(), 1..u16::MAX).prop_map(
            |(holder_sends, addresses, (key, secret, expires), times)| Ticket {
                holder_sends,
                addresses,
                key,
                secret,
                expires,
                times,
            },
        )
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
        fn any_text_is_read_or_refused(text in "\\PC{0,60}") {
            prop_assert!(text.parse::<Ticket>().is_err());
            prop_assert!((PREFIX.to_owned() + &text).parse::<Ticket>().is_err());
        }
    }
}
