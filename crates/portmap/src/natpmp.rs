//! The NAT Port Mapping Protocol (RFC 6886): what came before PCP, and is still in many homes.

use std::net::Ipv4Addr;

use crate::{Port, Protocol};

const VERSION: u8 = 0;
const ADDRESS: u8 = 0;
const MAP_UDP: u8 = 1;
const MAP_TCP: u8 = 2;
/// What is added to the number of what is answered (RFC 6886 §3.2).
const IS_ANSWER: u8 = 0x80;

/// Which address has the router outside?
pub(crate) fn ask_address() -> Vec<u8> {
    vec![VERSION, ADDRESS]
}

/// Asks for a mapping, for `lifetime` seconds; 0 gives back, for which `external` is 0 too (RFC 6886 §3.4).
pub(crate) fn ask_map(port: Port, external: u16, lifetime: u32) -> Vec<u8> {
    let opcode = if port.protocol == Protocol::Tcp { MAP_TCP } else { MAP_UDP };
    let mut bytes = vec![VERSION, opcode, 0, 0];
    bytes.extend(port.number.to_be_bytes());
    bytes.extend(external.to_be_bytes());
    bytes.extend(lifetime.to_be_bytes());
    bytes
}

/// What the router says. Each with its result, 0 where it does as asked, and the seconds since its mappings began.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Address { result: u16, epoch: u32, ip: Ipv4Addr },
    Map { result: u16, epoch: u32, port: Port, external: u16, lifetime: u32 },
}

/// `None` where it is no answer. Refusals may be cut short behind their head (RFC 6886 §3.5), and then name no port: they are none of
/// a mapping's.
pub(crate) fn parse(datagram: &[u8]) -> Option<Answer> {
    let (&[version, opcode, result @ .., e0, e1, e2, e3], rest) = datagram.split_first_chunk::<8>()?;
    let (result, epoch) = (u16::from_be_bytes(result), u32::from_be_bytes([e0, e1, e2, e3]));
    if version != VERSION {
        return None;
    }
    let protocol = match opcode.checked_sub(IS_ANSWER)? {
        ADDRESS if result != 0 => return Some(Answer::Address { result, epoch, ip: Ipv4Addr::UNSPECIFIED }),
        ADDRESS => {
            let ip = rest.first_chunk::<4>()?;
            return Some(Answer::Address { result, epoch, ip: Ipv4Addr::from(*ip) });
        }
        MAP_TCP => Protocol::Tcp,
        MAP_UDP => Protocol::Udp,
        _ => return None,
    };
    let &[i0, i1, x0, x1, lifetime @ ..] = rest.first_chunk::<8>()?;
    Some(Answer::Map {
        result,
        epoch,
        port: Port { protocol, number: u16::from_be_bytes([i0, i1]) },
        external: u16::from_be_bytes([x0, x1]),
        lifetime: u32::from_be_bytes(lifetime),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn questions_and_answers_have_the_form_of_the_specification() {
        let port = Port { protocol: Protocol::Tcp, number: 6881 };
        assert_eq!(ask_map(port, 7000, 3600), *b"\0\x02\0\0\x1a\xe1\x1b\x58\0\0\x0e\x10");
        // What miniupnpd says.
        let address = Answer::Address { result: 0, epoch: 14196, ip: Ipv4Addr::new(9, 9, 9, 1) };
        assert_eq!(parse(b"\0\x80\0\0\0\0\x37\x74\x09\x09\x09\x01"), Some(address));
        let map = parse(b"\0\x82\0\0\0\0\x37\x74\x1a\xe1\x1a\xe2\0\0\x02\x58");
        assert_eq!(map, Some(Answer::Map { result: 0, epoch: 14196, port, external: 6882, lifetime: 600 }));
        let refusal = Answer::Address { result: 3, epoch: 1, ip: Ipv4Addr::UNSPECIFIED };
        assert_eq!(parse(b"\0\x80\0\x03\0\0\0\x01"), Some(refusal));
        for cut in [
            &b"\0\x82\0\0\0\0\x37\x74\x1a\xe1\x1a\xe2\0\0\x02"[..],
            b"\0\x80\0\0\0\0\x37\x74\x09\x09\x09",
            b"\0\x80\0",
            b"",
        ] {
            assert_eq!(parse(cut), None);
        }
        assert_eq!(parse(b"\0\x02\0\0\0\0\x37\x74\x1a\xe1\x1a\xe2\0\0\x02\x58"), None, "a question");
    }

    proptest! {
        #[test]
        fn any_datagram_is_read_or_left(datagram: Vec<u8>) {
            let _ = parse(&datagram);
        }
    }
}
