//! SCMP: what routers and hosts say about packets, echo and traceroute.
//!
//! [`Message::parse`] reads a received message, its checksum included; [`Message::write`] makes a whole packet of one.
//! An error message quotes the packet that it is about: [`Quote`] finds out whose that was. Nothing proves an error
//! message, so whoever acts on one compares the quote with what was really sent.

use std::fmt;

use anabranch_paths::IsdAs;

use crate::checksum;
use crate::packet::{Header, HeaderFields, Packet, PacketError, Protocol, Upper, skip_extensions};
use crate::udp;

mod codes;

pub use codes::{ProblemCode, UnreachableCode};

/// The largest error message, SCION header included, in bytes (SCMP, "Processing Rules", 3).
pub const ERROR_PACKET_LEN_MAX: usize = 1232;
/// Where hosts wait for packets that name no port: echo and traceroute requests.
pub const END_HOST_PORT: u16 = 30041;

// Message types (SCMP, "Types").
const DESTINATION_UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const PARAMETER_PROBLEM: u8 = 4;
const EXTERNAL_INTERFACE_DOWN: u8 = 5;
const INTERNAL_CONNECTIVITY_DOWN: u8 = 6;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
const TRACEROUTE_REQUEST: u8 = 130;
const TRACEROUTE_REPLY: u8 = 131;
/// Types with this bit are informational, the others errors.
const INFORMATIONAL: u8 = 0x80;

/// Type, code, checksum.
const GENERAL_LEN: usize = 4;
const CHECKSUM: usize = 2;
/// The longest message before its quote or data: an internal connectivity failure.
const FIXED_LEN_MAX: usize = GENERAL_LEN + 3 * 8;

/// Why a packet is no SCMP message. The sender's fault, or the way's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ScmpError {
    /// Another protocol.
    #[error("the packet carries no SCMP")]
    NotScmp,
    /// The extension headers in front of it are malformed.
    #[error("the extension headers are malformed")]
    Extension,
    /// Shorter than its type needs.
    #[error("the SCMP message is cut short")]
    Truncated,
    /// What arrived is not what was sent.
    #[error("the SCMP checksum is wrong")]
    Checksum,
    /// An interface number that no AS can have.
    #[error("the SCMP message names an impossible interface")]
    Interface,
}

impl ScmpError {
    /// How many kinds there are: the length of an array of counters.
    pub const COUNT: usize = Self::Interface as usize + 1;

    /// This kind's place in an array of counters.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Which request a reply answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EchoId {
    /// The asker's port: replies are delivered by it.
    pub identifier: u16,
    /// Counts the asker's requests.
    pub sequence: u16,
}

/// One message. Quotes are as much of the packet in question as fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The destination AS cannot deliver.
    DestinationUnreachable {
        /// Why.
        code: UnreachableCode,
        /// The packet.
        quote: &'a [u8],
    },
    /// A link is too narrow.
    PacketTooBig {
        /// What fits, in bytes of the SCION packet.
        mtu: u16,
        /// The packet.
        quote: &'a [u8],
    },
    /// A router found a fault in the header.
    ParameterProblem {
        /// Which.
        code: ProblemCode,
        /// Where, in bytes from the start of the packet; may lie beyond the quote.
        pointer: u16,
        /// The packet.
        quote: &'a [u8],
    },
    /// The link to another AS is down.
    ExternalInterfaceDown {
        /// The AS that says so.
        isd_as: IsdAs,
        /// Its interface.
        interface: u16,
        /// The packet.
        quote: &'a [u8],
    },
    /// Two routers of one AS cannot reach each other.
    InternalConnectivityDown {
        /// The AS that says so.
        isd_as: IsdAs,
        /// Where the packet came in.
        ingress: u16,
        /// Where it would have gone out.
        egress: u16,
        /// The packet.
        quote: &'a [u8],
    },
    /// Are you there?
    EchoRequest {
        /// Which request this is.
        id: EchoId,
        /// Comes back as it is.
        data: &'a [u8],
    },
    /// Yes.
    EchoReply {
        /// Which request this answers.
        id: EchoId,
        /// What the request carried.
        data: &'a [u8],
    },
    /// Asks the router whose hop field carries the alert.
    TracerouteRequest {
        /// Which request this is.
        id: EchoId,
    },
    /// The router's answer.
    TracerouteReply {
        /// Which request this answers.
        id: EchoId,
        /// The router's AS.
        isd_as: IsdAs,
        /// The interface that the request passed.
        interface: u16,
    },
    /// A type without meaning here. Unknown errors are the upper layer's, all else is dropped ("Processing Rules").
    Unassigned(Unassigned<'a>),
}

/// A message of a type without meaning here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unassigned<'a> {
    kind: u8,
    code: u8,
    rest: &'a [u8],
}

impl<'a> Message<'a> {
    /// The message in `packet`, its checksum verified.
    pub fn parse(packet: &Packet<'a>) -> Result<Self, ScmpError> {
        let upper = packet.upper().map_err(|_| ScmpError::Extension)?;
        if upper.protocol != Protocol::SCMP {
            return Err(ScmpError::NotScmp);
        }
        let sum = packet.header().pseudo_sum(Protocol::SCMP, upper.bytes.len()) + checksum::sum(upper.bytes);
        if !sum.is_intact() {
            return Err(ScmpError::Checksum);
        }
        Self::parse_unverified(upper.bytes)
    }

    /// The message without a look at the checksum: for routers, who deliver by port and leave the rest to the host.
    pub fn parse_unverified(bytes: &'a [u8]) -> Result<Self, ScmpError> {
        let mut rest = Reader(bytes);
        let [kind, code, _, _] = rest.take()?;
        Ok(match kind {
            DESTINATION_UNREACHABLE => {
                rest.take::<4>()?;
                Self::DestinationUnreachable { code: UnreachableCode(code), quote: rest.0 }
            }
            PACKET_TOO_BIG => Self::PacketTooBig { mtu: rest.low_half()?, quote: rest.0 },
            PARAMETER_PROBLEM => {
                Self::ParameterProblem { code: ProblemCode(code), pointer: rest.low_half()?, quote: rest.0 }
            }
            EXTERNAL_INTERFACE_DOWN => {
                Self::ExternalInterfaceDown { isd_as: rest.isd_as()?, interface: rest.interface()?, quote: rest.0 }
            }
            INTERNAL_CONNECTIVITY_DOWN => Self::InternalConnectivityDown {
                isd_as: rest.isd_as()?,
                ingress: rest.interface()?,
                egress: rest.interface()?,
                quote: rest.0,
            },
            ECHO_REQUEST => Self::EchoRequest { id: rest.id()?, data: rest.0 },
            ECHO_REPLY => Self::EchoReply { id: rest.id()?, data: rest.0 },
            TRACEROUTE_REQUEST => {
                let id = rest.id()?;
                rest.take::<16>()?;
                Self::TracerouteRequest { id }
            }
            TRACEROUTE_REPLY => {
                Self::TracerouteReply { id: rest.id()?, isd_as: rest.isd_as()?, interface: rest.interface()? }
            }
            kind => Self::Unassigned(Unassigned { kind, code, rest: rest.0 }),
        })
    }

    /// As [`Message::parse`], but a checksum of zero says that the sender computed none, which is against the specification
    /// and what JPAN does all the same.
    pub fn parse_tolerant(packet: &Packet<'a>) -> Result<Self, ScmpError> {
        let upper = packet.upper().map_err(|_| ScmpError::Extension)?;
        let is_unchecked = upper.protocol == Protocol::SCMP && upper.bytes.get(CHECKSUM..GENERAL_LEN) == Some(&[0, 0]);
        if is_unchecked { Self::parse_unverified(upper.bytes) } else { Self::parse(packet) }
    }

    /// Errors are never answered with errors ("Processing Rules", 5).
    pub fn is_error(&self) -> bool {
        self.kind() & INFORMATIONAL == 0
    }

    /// The packet that an error message is about.
    pub fn quote(&self) -> Option<&'a [u8]> {
        match *self {
            Self::DestinationUnreachable { quote, .. }
            | Self::PacketTooBig { quote, .. }
            | Self::ParameterProblem { quote, .. }
            | Self::ExternalInterfaceDown { quote, .. }
            | Self::InternalConnectivityDown { quote, .. } => Some(quote),
            _ => None,
        }
    }

    /// Writes a packet with this message into `out` and returns its length. Quotes are cut so that the packet of an
    /// error message stays within [`ERROR_PACKET_LEN_MAX`].
    pub fn write(&self, fields: &HeaderFields<'_>, out: &mut [u8]) -> Result<usize, PacketError> {
        let (fixed, fixed_len) = self.fixed();
        let mut tail = self.tail();
        if self.is_error() {
            let room = ERROR_PACKET_LEN_MAX.saturating_sub(fields.header_len() + fixed_len);
            tail = &tail[..tail.len().min(room)];
        }
        let upper_len = fixed_len + tail.len();
        let header_len = fields.write(Protocol::SCMP, upper_len, out)?;
        let upper = out.get_mut(header_len..header_len + upper_len).ok_or(PacketError::TooLong)?;
        upper[..fixed_len].copy_from_slice(&fixed[..fixed_len]);
        let sum = checksum::sum(&fixed[..fixed_len]) + checksum::copy_sum(&mut upper[fixed_len..], tail);
        let checksum = (fields.pseudo_sum(Protocol::SCMP, upper_len) + sum).checksum();
        upper[CHECKSUM..GENERAL_LEN].copy_from_slice(&checksum.to_be_bytes());
        Ok(header_len + upper_len)
    }

    fn kind(&self) -> u8 {
        match self {
            Self::DestinationUnreachable { .. } => DESTINATION_UNREACHABLE,
            Self::PacketTooBig { .. } => PACKET_TOO_BIG,
            Self::ParameterProblem { .. } => PARAMETER_PROBLEM,
            Self::ExternalInterfaceDown { .. } => EXTERNAL_INTERFACE_DOWN,
            Self::InternalConnectivityDown { .. } => INTERNAL_CONNECTIVITY_DOWN,
            Self::EchoRequest { .. } => ECHO_REQUEST,
            Self::EchoReply { .. } => ECHO_REPLY,
            Self::TracerouteRequest { .. } => TRACEROUTE_REQUEST,
            Self::TracerouteReply { .. } => TRACEROUTE_REPLY,
            Self::Unassigned(message) => message.kind,
        }
    }

    fn code(&self) -> u8 {
        match self {
            Self::DestinationUnreachable { code, .. } => code.0,
            Self::ParameterProblem { code, .. } => code.0,
            Self::Unassigned(message) => message.code,
            _ => 0,
        }
    }

    /// What stands before the quote or the data, with a checksum of zero, and its length.
    fn fixed(&self) -> ([u8; FIXED_LEN_MAX], usize) {
        let mut writer = Writer { bytes: [0; FIXED_LEN_MAX], len: 0 };
        writer.put([self.kind(), self.code(), 0, 0]);
        match *self {
            Self::DestinationUnreachable { .. } => writer.put([0; 4]),
            Self::PacketTooBig { mtu: number, .. } | Self::ParameterProblem { pointer: number, .. } => {
                writer.put(u32::from(number).to_be_bytes());
            }
            Self::ExternalInterfaceDown { isd_as, interface, .. } => {
                writer.put(isd_as.to_u64().to_be_bytes());
                writer.put(u64::from(interface).to_be_bytes());
            }
            Self::InternalConnectivityDown { isd_as, ingress, egress, .. } => {
                writer.put(isd_as.to_u64().to_be_bytes());
                writer.put(u64::from(ingress).to_be_bytes());
                writer.put(u64::from(egress).to_be_bytes());
            }
            Self::EchoRequest { id, .. } | Self::EchoReply { id, .. } => writer.put_id(id),
            Self::TracerouteRequest { id } => {
                writer.put_id(id);
                writer.put([0; 16]);
            }
            Self::TracerouteReply { id, isd_as, interface } => {
                writer.put_id(id);
                writer.put(isd_as.to_u64().to_be_bytes());
                writer.put(u64::from(interface).to_be_bytes());
            }
            Self::Unassigned(_) => {}
        }
        (writer.bytes, writer.len)
    }

    fn tail(&self) -> &'a [u8] {
        match *self {
            Self::EchoRequest { data, .. } | Self::EchoReply { data, .. } => data,
            Self::Unassigned(message) => message.rest,
            _ => self.quote().unwrap_or_default(),
        }
    }
}

impl fmt::Display for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DestinationUnreachable { code, .. } => write!(f, "destination unreachable: {code}"),
            Self::PacketTooBig { mtu, .. } => write!(f, "packet too big: {mtu} bytes fit"),
            Self::ParameterProblem { code, pointer, .. } => write!(f, "parameter problem: {code} (byte {pointer})"),
            Self::ExternalInterfaceDown { isd_as, interface, .. } => {
                write!(f, "external interface down: {isd_as}#{interface}")
            }
            Self::InternalConnectivityDown { isd_as, ingress, egress, .. } => {
                write!(f, "internal connectivity down: {isd_as}#{ingress} to {isd_as}#{egress}")
            }
            Self::EchoRequest { id, .. } => write!(f, "echo request {}", id.sequence),
            Self::EchoReply { id, .. } => write!(f, "echo reply {}", id.sequence),
            Self::TracerouteRequest { id } => write!(f, "traceroute request {}", id.sequence),
            Self::TracerouteReply { id, isd_as, interface } => {
                write!(f, "traceroute reply {} from {isd_as}#{interface}", id.sequence)
            }
            Self::Unassigned(message) => write!(f, "SCMP type {} code {}", message.kind, message.code),
        }
    }
}

/// The packet that an error message is about, as far as it was quoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quote<'a> {
    header: Header<'a>,
    /// Behind the extension headers; `None` if the quote ends among them.
    upper: Option<Upper<'a>>,
}

impl<'a> Quote<'a> {
    /// Checks that the quote has a whole header; the payload may be cut anywhere.
    pub fn parse(quote: &'a [u8]) -> Result<Self, PacketError> {
        let header = Header::parse(quote)?;
        let payload = &quote[header.as_bytes().len()..];
        Ok(Self { header, upper: skip_extensions(header.next_header(), payload).ok() })
    }

    /// The header as the complaining router had it: the pointers and SegIDs have moved since it was sent, the
    /// interfaces have not.
    pub fn header(&self) -> &Header<'a> {
        &self.header
    }

    /// The upper layer, cut anywhere.
    pub fn upper(&self) -> Option<Upper<'a>> {
        self.upper
    }

    /// The port that the packet was sent from: UDP's, or the identifier of an echo or traceroute request. Never zero.
    pub fn source_port(&self) -> Option<u16> {
        let upper = self.upper?;
        let port = match upper.protocol {
            Protocol::UDP => *upper.bytes.first_chunk()?,
            Protocol::SCMP => match *upper.bytes.first_chunk()? {
                [ECHO_REQUEST | TRACEROUTE_REQUEST, _, _, _, i0, i1] => [i0, i1],
                _ => return None,
            },
            _ => return None,
        };
        Some(u16::from_be_bytes(port)).filter(|port| *port != 0)
    }
}

/// The UDP port on the underlay where the receiver of a packet waits, by what the packet carries: UDP's own port, the
/// asker's for replies, the sender's for errors about its packets, [`END_HOST_PORT`] for requests. `None` if it cannot
/// be told; such packets are dropped ("Processing Rules", 4).
pub fn receiver_port(packet: &Packet<'_>) -> Option<u16> {
    let upper = packet.upper().ok()?;
    match upper.protocol {
        Protocol::UDP => udp::Datagram::parse_unverified(&upper).ok().map(|datagram| datagram.destination_port()),
        Protocol::SCMP => match Message::parse_unverified(upper.bytes).ok()? {
            Message::EchoRequest { .. } | Message::TracerouteRequest { .. } => Some(END_HOST_PORT),
            Message::EchoReply { id, .. } | Message::TracerouteReply { id, .. } => Some(id.identifier),
            message => Quote::parse(message.quote()?).ok()?.source_port(),
        },
        _ => None,
    }
}

/// Takes fields from the front.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], ScmpError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(ScmpError::Truncated)?;
        self.0 = rest;
        Ok(*field)
    }

    /// Two reserved bytes and a number.
    fn low_half(&mut self) -> Result<u16, ScmpError> {
        let [_, _, n0, n1] = self.take()?;
        Ok(u16::from_be_bytes([n0, n1]))
    }

    fn id(&mut self) -> Result<EchoId, ScmpError> {
        let [i0, i1, s0, s1] = self.take()?;
        Ok(EchoId { identifier: u16::from_be_bytes([i0, i1]), sequence: u16::from_be_bytes([s0, s1]) })
    }

    fn isd_as(&mut self) -> Result<IsdAs, ScmpError> {
        self.take().map(u64::from_be_bytes).map(IsdAs::from_u64)
    }

    /// 64 bits here, 16 in hop fields.
    fn interface(&mut self) -> Result<u16, ScmpError> {
        u64::from_be_bytes(self.take()?).try_into().map_err(|_| ScmpError::Interface)
    }
}

/// Puts fields at the end.
struct Writer {
    bytes: [u8; FIXED_LEN_MAX],
    len: usize,
}

impl Writer {
    fn put<const N: usize>(&mut self, field: [u8; N]) {
        self.bytes[self.len..self.len + N].copy_from_slice(&field);
        self.len += N;
    }

    fn put_id(&mut self, id: EchoId) {
        self.put(id.identifier.to_be_bytes());
        self.put(id.sequence.to_be_bytes());
    }
}

#[cfg(test)]
mod tests;
