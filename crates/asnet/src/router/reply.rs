//! What a border router says itself: SCMP errors about packets that it drops, and replies to echo and traceroute.
//!
//! A reply turns the path of the packet round *as it came over the link*: whatever stood in SegID there is what the same
//! link carries in the other direction, whether or not this router had begun to update it.

use std::net::IpAddr;

use anabranch_scion_wire::scmp::{END_HOST_PORT, EchoId, Message, ProblemCode, Quote, UnreachableCode};
use anabranch_scion_wire::{Address, Header, HeaderFields, PATH_LEN_MAX, Packet, PathRef, Protocol, StandardPathMut};

use super::counters::DropReason;
use super::forward::{Alert, Forwarder, Ingress, Rejection, Verdict};

/// Types of SCMP with this bit are informational, the others errors (SCMP, "Message Format").
const INFORMATIONAL: u8 = 0x80;
/// The largest reply in bytes: an echo of the largest datagram.
const REPLY_LEN_MAX: usize = 1 << 16;
// Replies to requests without a port go where the specification's own helper sends them.
const _: () = assert!(END_HOST_PORT == super::config::HOST_PORT_DEFAULT);

/// Where a reply is written to; made once, used for every packet.
pub struct Reply {
    bytes: Box<[u8]>,
    len: usize,
    is_mute: bool,
}

impl Default for Reply {
    fn default() -> Self {
        Self { bytes: vec![0; REPLY_LEN_MAX].into(), len: 0, is_mute: false }
    }
}

impl Reply {
    /// The packet; empty unless the last verdict was [`Verdict::Reply`].
    pub fn packet(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// While mute, nothing is written, and what would be answered is dropped.
    pub fn mute(&mut self, is_mute: bool) {
        self.is_mute = is_mute;
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }
}

/// What to say about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The header is wrong, here.
    Rejection { code: ProblemCode, pointer: u16 },
    /// Nobody to deliver to.
    Unreachable(UnreachableCode),
    /// The link is too narrow.
    TooBig { mtu: u16 },
    /// The link is down.
    ExternalInterfaceDown { interface: u16 },
    /// The router is there.
    Echo,
    /// The packet has passed this interface.
    Traceroute { id: EchoId, alert: Alert },
}

impl Answer {
    pub(super) const INVALID_PACKET_SIZE: Self = Self::at(ProblemCode::PACKET_SIZE, 0);
    // Behind the common header stand the destination's, then the source's ISD-AS (SCION header, "Address Header").
    pub(super) const INVALID_DESTINATION: Self = Self::at(ProblemCode::DESTINATION_ADDRESS, 12);
    pub(super) const INVALID_SOURCE: Self = Self::at(ProblemCode::SOURCE_ADDRESS, 20);
    pub(super) const PATH_EXPIRED: Self = Self::at(ProblemCode::PATH_EXPIRED, 0);
    pub(super) const INVALID_MAC: Self = Self::at(ProblemCode::HOP_MAC, 0);
    pub(super) const INVALID_PATH: Self = Self::at(ProblemCode::PATH, 0);
    pub(super) const INVALID_SEGMENT_CHANGE: Self = Self::at(ProblemCode::SEGMENT_CHANGE, 0);
    pub(super) const NO_ROUTE: Self = Self::Unreachable(UnreachableCode::NO_ROUTE);
    pub(super) const ADDRESS_UNREACHABLE: Self = Self::Unreachable(UnreachableCode::ADDRESS);

    const fn at(code: ProblemCode, pointer: u16) -> Self {
        Self::Rejection { code, pointer }
    }

    /// The interface that packets come in by is not the one in the hop field; which field that is, the direction says.
    pub(super) fn unknown_ingress(cons_dir: bool) -> Self {
        let fields = [ProblemCode::UNKNOWN_CONS_EGRESS, ProblemCode::UNKNOWN_CONS_INGRESS];
        Self::at(fields[usize::from(cons_dir)], 0)
    }

    /// The interface that packets leave by does not exist.
    pub(super) fn unknown_egress(cons_dir: bool) -> Self {
        Self::unknown_ingress(!cons_dir)
    }

    /// The same, with the place in the packet where the fault is.
    pub(super) fn pointing_at(self, place: usize) -> Self {
        match self {
            // Headers end before 1020.
            Self::Rejection { code, .. } => Self::Rejection { code, pointer: place as u16 },
            other => other,
        }
    }

    /// The answer to an echo request, if `view` is one.
    pub(super) fn to_echo(view: &Packet<'_>) -> Option<Self> {
        matches!(Message::parse(view).ok()?, Message::EchoRequest { .. }).then_some(Self::Echo)
    }

    /// The answer to a traceroute request that has met its alert, if `view` is one.
    pub(super) fn to_traceroute(view: &Packet<'_>, alert: Alert) -> Option<Self> {
        match Message::parse(view).ok()? {
            Message::TracerouteRequest { id } => Some(Self::Traceroute { id, alert }),
            _ => None,
        }
    }

    fn is_error(self) -> bool {
        !matches!(self, Self::Echo | Self::Traceroute { .. })
    }
}

/// Writes what `rejection` calls for about `packet`, which is as it came, into `reply`.
pub(super) fn answer(
    rules: &Forwarder,
    packet: &[u8],
    ingress: Ingress,
    rejection: Rejection,
    reply: &mut Reply,
) -> Verdict {
    let answered = rejection.answer.filter(|_| !reply.is_mute);
    let written = answered.and_then(|answer| write(rules, packet, ingress, answer, &mut reply.bytes));
    match written {
        Some(len) => {
            reply.len = len;
            Verdict::Reply(rejection.answer.is_some_and(Answer::is_error).then_some(rejection.reason))
        }
        None => Verdict::Drop(rejection.reason),
    }
}

fn write(rules: &Forwarder, packet: &[u8], ingress: Ingress, answer: Answer, out: &mut [u8]) -> Option<usize> {
    let header = Header::parse(packet).ok()?;
    if answer.is_error() && !may_be_complained_about(packet, header.source()?) {
        return None;
    }
    let mut path = [0; PATH_LEN_MAX];
    let path_len = match header.path() {
        PathRef::Standard(standard) => {
            let len = standard.copy_reversed(&mut path).ok()?;
            let mut back = StandardPathMut::parse(&mut path[..len]).ok()?;
            if let Answer::Traceroute { alert, .. } = answer {
                // An alert that was met is gone: the path of the answer is the asker's own again, turned round, and by
                // that the reference's tools know it. From the other end the hops count the other way, and its sides change.
                back.clear_alert(standard.hop_count() - 1 - alert.hop, !alert.at_egress);
            }
            if ingress != Ingress::Internal {
                // The reply leaves where the packet came in: the next router is the neighbour's.
                back.advance().ok()?;
            }
            len
        }
        PathRef::Empty if ingress == Ingress::Internal => 0,
        _ => return None,
    };
    let fields = HeaderFields {
        source: Address { isd_as: rules.isd_as, host: rules.host() },
        destination: header.source()?,
        path: PathRef::from_dataplane(&path[..path_len]).ok()?,
        flow_id: header.flow_id(),
        traffic_class: header.traffic_class(),
    };
    let isd_as = rules.isd_as;
    let quote = packet;
    let message = match answer {
        Answer::Rejection { code, pointer } => Message::ParameterProblem { code, pointer, quote },
        Answer::Unreachable(code) => Message::DestinationUnreachable { code, quote },
        Answer::TooBig { mtu } => Message::PacketTooBig { mtu, quote },
        Answer::ExternalInterfaceDown { interface } => Message::ExternalInterfaceDown { isd_as, interface, quote },
        Answer::Traceroute { id, alert } => Message::TracerouteReply { id, isd_as, interface: alert.interface },
        Answer::Echo => match Message::parse(&Packet::parse(packet).ok()?).ok()? {
            Message::EchoRequest { id, data } => Message::EchoReply { id, data },
            _ => return None,
        },
    };
    message.write(&fields, out).ok()
}

/// An SCMP error is never answered with another, nor is what no single host has sent (SCMP, "Processing Rules", 5); what
/// cannot be told apart counts as such.
fn may_be_complained_about(packet: &[u8], source: Address) -> bool {
    let is_one_host = source.host.ip().is_some_and(|ip| {
        let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
        !ip.is_multicast() && !ip.is_unspecified() && !is_broadcast
    });
    let upper = Quote::parse(packet).ok().and_then(|quote| quote.upper());
    let is_error = |kind: &u8| kind & INFORMATIONAL == 0;
    let is_no_error =
        upper.is_some_and(|upper| upper.protocol != Protocol::SCMP || !upper.bytes.first().is_none_or(is_error));
    is_one_host && is_no_error
}

/// The packet exceeds the egress link's MTU.
pub(super) fn too_big(mtu: u16) -> Rejection {
    Rejection { reason: DropReason::TooBig, answer: Some(Answer::TooBig { mtu }) }
}
