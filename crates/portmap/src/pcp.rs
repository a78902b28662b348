//! The Port Control Protocol (RFC 6887): questions and answers about mappings.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::Port;

/// Where routers listen (RFC 6887 §19.1), and for NAT-PMP too.
pub(crate) const PORT: u16 = 5351;
const VERSION: u8 = 2;
const MAP: u8 = 1;
/// The bit that tells answers from questions (RFC 6887 §7).
const IS_ANSWER: u8 = 0x80;
/// Header and body of a MAP (RFC 6887 §11.1).
const MAP_LEN: usize = 60;

/// What is asked of a mapping.
pub(crate) struct Question {
    /// Our address, as we know it: the router compares it with what it sees.
    pub client: Ipv4Addr,
    pub nonce: [u8; 12],
    pub port: Port,
    /// Which number would be welcome outside.
    pub external: u16,
    /// Seconds; 0 gives back.
    pub lifetime: u32,
}

impl Question {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, MAP, 0, 0];
        bytes.extend(self.lifetime.to_be_bytes());
        bytes.extend(self.client.to_ipv6_mapped().octets());
        bytes.extend(self.nonce);
        bytes.extend([self.port.protocol.number(), 0, 0, 0]);
        bytes.extend(self.port.number.to_be_bytes());
        bytes.extend(self.external.to_be_bytes());
        // RFC 6887 §11.1: "::ffff:0:0" where any IPv4 address will do.
        bytes.extend(Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().octets());
        bytes
    }
}

/// What the router says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It speaks another version, as NAT-PMP's routers do (RFC 6886 §3.5, RFC 6887 §9).
    OtherVersion,
    /// It answers one of our questions.
    Map(Map),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Map {
    /// 0: done.
    pub result: u8,
    /// Seconds; of a refusal, how long not to ask again.
    pub lifetime: u32,
    /// Seconds since the router's mappings began.
    pub epoch: u32,
    pub nonce: [u8; 12],
    /// As IP numbers it.
    pub protocol: u8,
    pub internal: u16,
    pub external_port: u16,
    /// `None`: an address of IPv6.
    pub external_ip: Option<Ipv4Addr>,
}

/// `None` where it is no answer.
pub(crate) fn parse(datagram: &[u8]) -> Option<Answer> {
    let (&[version, opcode, ..], _) = datagram.split_first_chunk::<4>()?;
    if opcode & IS_ANSWER == 0 {
        return None;
    }
    if version != VERSION {
        return Some(Answer::OtherVersion);
    }
    let body = datagram.first_chunk::<MAP_LEN>().filter(|_| opcode == IS_ANSWER | MAP)?;
    let word = |at: usize| u32::from_be_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
    let short = |at: usize| u16::from_be_bytes([body[at], body[at + 1]]);
    let (mut nonce, mut ip) = ([0; 12], [0; 16]);
    nonce.copy_from_slice(&body[24..36]);
    ip.copy_from_slice(&body[44..60]);
    Some(Answer::Map(Map {
        result: body[3],
        lifetime: word(4),
        epoch: word(8),
        nonce,
        protocol: body[36],
        internal: short(40),
        external_port: short(42),
        external_ip: Ipv6Addr::from(ip).to_ipv4_mapped(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Protocol;
    use proptest::prelude::*;

    #[test]
    fn a_question_has_the_form_of_the_specification() {
        let question = Question {
            client: Ipv4Addr::new(192, 168, 1, 2),
            nonce: *b"twelve bytes",
            port: Port { protocol: Protocol::Udp, number: 6881 },
            external: 7000,
            lifetime: 3600,
        };
        let bytes = question.encode();
        assert_eq!(bytes.len(), MAP_LEN);
        assert_eq!(bytes[..24], *b"\x02\x01\0\0\0\0\x0e\x10\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\xa8\x01\x02");
        assert_eq!(bytes[24..], *b"twelve bytes\x11\0\0\0\x1a\xe1\x1b\x58\0\0\0\0\0\0\0\0\0\0\xff\xff\0\0\0\0");
    }

    #[test]
    fn miniupnpds_answer_is_read() {
        let answer =
            b"\x02\x81\0\0\0\0\x02\x58\0\0\x37\x74\0\0\0\0\0\0\0\0\0\0\0\0twelve bytes\x06\0\0\0\x1a\xe1\x1a\xe2\
                       \0\0\0\0\0\0\0\0\0\0\xff\xff\x09\x09\x09\x01";
        let Some(Answer::Map(map)) = parse(answer) else { panic!("an answer") };
        let expected = Map {
            result: 0,
            lifetime: 600,
            epoch: 14196,
            nonce: *b"twelve bytes",
            protocol: 6,
            internal: 6881,
            external_port: 6882,
            external_ip: Some(Ipv4Addr::new(9, 9, 9, 1)),
        };
        assert_eq!(map, expected);
        assert_eq!(parse(&answer[..59]), None);
        // RFC 6886 §3.5: what a router says that knows NAT-PMP alone.
        assert_eq!(parse(b"\0\x81\0\x01\0\0\0\x05"), Some(Answer::OtherVersion));
        assert_eq!(parse(b"\x02\x01\0\0"), None, "a question");
    }

    proptest! {
        #[test]
        fn any_datagram_is_read_or_left(datagram: Vec<u8>) {
            let _ = parse(&datagram);
        }
    }
}
