//! SCMP at an end host: echo answered, answers handed to who asked, errors turned into events.
//!
//! Nothing proves an SCMP message. So an error counts only if it quotes a packet that we could have sent: our address and
//! port, a remote that we have a route to, and that route's very interfaces; and if the AS that complains speaks of itself.
//! All that can be guessed. What cannot is the token in an echo of ours: who wants to be sure of an error asks for an echo
//! over the route ([`super::Socket::ping`]) and hears whether it meets the same.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anabranch_paths::{Interface, IsdAs, ScionAddr};
use anabranch_scion_wire::scmp::{EchoId, Message, ProblemCode, Quote, ScmpError, UnreachableCode};
use anabranch_scion_wire::{Address, HeaderFields, HeaderTemplate, Packet, PathRef, Protocol};
use tokio::sync::Notify;

use super::core::{Core, host_of, lock};
use super::counters::{Dropped, add};
use super::inbound::Inbox;
use super::routes::{Interfaces, RouteId};

/// Events that wait to be taken: one for each kind of trouble of a few hundred routes. Equal ones wait once.
pub const EVENTS_MAX: usize = 256;
/// Echo requests answered in one second: enough for everybody's monitoring, nothing for a flood.
pub const ECHO_RATE_MAX: u32 = 1000;
/// Bytes of answers that wait for the end of one receive.
const REPLY_BYTES_MAX: usize = 1 << 17;
/// Answers likewise.
const REPLIES_MAX: usize = 64;

/// Trouble on the way of a route, as somebody on it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScmpEvent {
    /// The route whose packet met it.
    pub route: RouteId,
    /// Who tells.
    pub from: Address,
    /// What.
    pub kind: ScmpKind,
}

/// The kinds of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScmpKind {
    /// The link behind this interface is down: every path over it fails.
    ExternalInterfaceDown(Interface),
    /// Two routers of one AS cannot reach each other: every path that enters and leaves so fails.
    InternalConnectivityDown {
        /// The AS.
        isd_as: IsdAs,
        /// Where the packet came in.
        ingress: u16,
        /// Where it would have gone out.
        egress: u16,
    },
    /// The remote's AS cannot deliver.
    DestinationUnreachable(UnreachableCode),
    /// The route's packets are too big somewhere.
    PacketTooBig {
        /// What fits, in bytes of the SCION packet.
        mtu: u16,
    },
    /// A router refused the header: the path has expired, most often.
    ParameterProblem {
        /// Why.
        code: ProblemCode,
        /// The byte of the packet that is at fault.
        pointer: u16,
    },
}

impl fmt::Display for ScmpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExternalInterfaceDown(interface) => write!(f, "the link at {interface} is down"),
            Self::InternalConnectivityDown { isd_as, ingress, egress } => {
                write!(f, "{isd_as} cannot forward from interface {ingress} to {egress}")
            }
            Self::DestinationUnreachable(code) => write!(f, "destination unreachable: {code}"),
            Self::PacketTooBig { mtu } => write!(f, "packet too big: {mtu} bytes fit"),
            Self::ParameterProblem { code, pointer } => write!(f, "{code} (byte {pointer})"),
        }
    }
}

impl ScmpKind {
    /// The kind of an error message; `None` for messages that are none.
    pub fn of(message: &Message<'_>) -> Option<Self> {
        Some(match *message {
            Message::DestinationUnreachable { code, .. } => Self::DestinationUnreachable(code),
            Message::PacketTooBig { mtu, .. } => Self::PacketTooBig { mtu },
            Message::ParameterProblem { code, pointer, .. } => Self::ParameterProblem { code, pointer },
            Message::ExternalInterfaceDown { isd_as, interface, .. } => {
                Self::ExternalInterfaceDown(Interface { isd_as, id: interface })
            }
            Message::InternalConnectivityDown { isd_as, ingress, egress, .. } => {
                Self::InternalConnectivityDown { isd_as, ingress, egress }
            }
            _ => return None,
        })
    }

    /// The AS and interfaces that it speaks of; `None` where it speaks of no interface.
    pub fn subject(&self) -> Option<(IsdAs, [u16; 2])> {
        match *self {
            Self::ExternalInterfaceDown(interface) => Some((interface.isd_as, [interface.id; 2])),
            Self::InternalConnectivityDown { isd_as, ingress, egress } => Some((isd_as, [ingress, egress])),
            _ => None,
        }
    }
}

/// Events that wait to be taken.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: Mutex<VecDeque<ScmpEvent>>,
    arrived: Notify,
}

impl Events {
    /// Adds one, unless the same waits already: a burst over a dead link brings as many errors as it has packets.
    fn push(&self, event: ScmpEvent) -> Result<(), Dropped> {
        let mut queue = lock(&self.queue);
        if queue.contains(&event) {
            return Ok(());
        }
        if queue.len() == EVENTS_MAX {
            return Err(Dropped::EventsPending);
        }
        queue.push_back(event);
        self.arrived.notify_one();
        Ok(())
    }

    pub(super) fn take(&self) -> Option<ScmpEvent> {
        lock(&self.queue).pop_front()
    }

    pub(super) async fn next(&self) -> ScmpEvent {
        loop {
            if let Some(event) = self.take() {
                return event;
            }
            self.arrived.notified().await;
        }
    }
}

/// How many echo requests may still be answered: a bucket of one second's.
#[derive(Debug)]
pub(super) struct EchoBudget {
    left: u32,
    filled: Instant,
}

impl EchoBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: ECHO_RATE_MAX, filled: now }
    }

    pub(super) fn take(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.filled).min(Duration::from_secs(1));
        let earned = elapsed.as_micros() as u64 * u64::from(ECHO_RATE_MAX) / 1_000_000;
        if earned > 0 {
            // At most ECHO_RATE_MAX in one second.
            self.left = (self.left + earned as u32).min(ECHO_RATE_MAX);
            self.filled = now;
        }
        self.left.checked_sub(1).map(|left| self.left = left).is_some()
    }
}

/// Answers that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct Replies {
    bytes: Vec<u8>,
    packets: Vec<(SocketAddr, Range<usize>)>,
}

impl Replies {
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SocketAddr, &[u8])> {
        self.packets.iter().map(|(to, range)| (*to, &self.bytes[range.clone()]))
    }

    fn push(
        &mut self,
        to: SocketAddr,
        fields: &HeaderFields<'_>,
        reply: &Message<'_>,
        len: usize,
    ) -> Result<(), Dropped> {
        let start = self.bytes.len();
        if self.packets.len() == REPLIES_MAX || start + len > REPLY_BYTES_MAX {
            return Err(Dropped::EchoRate);
        }
        self.bytes.resize(start + len, 0);
        let Ok(written) = reply.write(fields, &mut self.bytes[start..]) else {
            self.bytes.truncate(start);
            return Err(Dropped::Malformed);
        };
        self.bytes.truncate(start + written);
        self.packets.push((to, start..start + written));
        Ok(())
    }
}

impl Core {
    /// The next event, if one waits.
    pub fn take_event(&self) -> Option<ScmpEvent> {
        self.events.take()
    }

    /// A packet with SCMP for us.
    pub(super) fn scmp(
        &self,
        inbox: &mut Inbox,
        packet: &Packet<'_>,
        source: Address,
        from: SocketAddr,
        now: Instant,
    ) -> Result<(), Dropped> {
        match parse(packet)? {
            Message::EchoRequest { id, data } => {
                if !lock(&self.echo_budget).take(now) {
                    return Err(Dropped::EchoRate);
                }
                self.with_way_back(packet.header(), source, from, |path, to| {
                    let fields = self.fields(source, *path);
                    let reply = Message::EchoReply { id, data };
                    // The answer is as long as the question.
                    inbox.replies.push(to, &fields, &reply, fields.header_len() + packet.payload().len())
                })?;
                add(&self.counting.echoes_answered, 1);
                Ok(())
            }
            Message::EchoReply { id, data } => {
                self.check_identifier(id)?;
                self.probes.echo(id.sequence, source, data, now)
            }
            Message::TracerouteReply { id, isd_as, interface } => {
                self.check_identifier(id)?;
                self.probes.trace(id.sequence, Interface { isd_as, id: interface }, source, now)
            }
            message => {
                let kind = ScmpKind::of(&message).ok_or(Dropped::UnknownProtocol)?;
                self.error(kind, source, message.quote().unwrap_or_default())
            }
        }
    }

    /// A packet of ours to `destination`, without data of one packet's own.
    pub(super) fn fields<'a>(&self, destination: Address, path: PathRef<'a>) -> HeaderFields<'a> {
        HeaderFields { source: self.local_address(), destination, path, flow_id: 1, traffic_class: 0 }
    }

    fn check_identifier(&self, id: EchoId) -> Result<(), Dropped> {
        if id.identifier == self.local_port() { Ok(()) } else { Err(Dropped::WrongDestination) }
    }

    fn error(&self, kind: ScmpKind, from: Address, quote: &[u8]) -> Result<(), Dropped> {
        let quote = Quote::parse(quote).map_err(|_| Dropped::Malformed)?;
        let (route, probe) = self.quoted_route(&quote).ok_or(Dropped::ForeignQuote)?;
        if let Some((isd_as, interfaces)) = kind.subject() {
            let passed = Interfaces::of(&quote.header().path());
            let on_the_way = interfaces.iter().all(|id| *id == 0 || passed.as_slice().contains(id));
            if isd_as != from.isd_as || !on_the_way {
                return Err(Dropped::ForeignQuote);
            }
        }
        if let Some(sequence) = probe {
            // Whoever asked hears of it, and nobody else has to.
            self.probes.fail(sequence, kind);
            return Ok(());
        }
        self.events.push(ScmpEvent { route, from, kind })
    }

    /// The route that a quoted packet was sent over, and its sequence number if it was a probe.
    fn quoted_route(&self, quote: &Quote<'_>) -> Option<(RouteId, Option<u16>)> {
        let (header, upper) = (quote.header(), quote.upper()?);
        if header.source() != Some(self.local_address()) || quote.source_port() != Some(self.local_port()) {
            return None;
        }
        let destination = header.destination()?;
        let interfaces = Interfaces::of(&header.path());
        if upper.protocol == Protocol::UDP {
            let [_, _, port_high, port_low] = *upper.bytes.first_chunk()?;
            let port = u16::from_be_bytes([port_high, port_low]);
            let remote = ScionAddr::new(destination.isd_as, SocketAddr::new(destination.host.ip()?, port));
            return Some((self.routes().find(remote, interfaces.as_slice())?, None));
        }
        // `source_port` took nothing else but requests with an identifier.
        let [_, _, _, _, _, _, sequence_high, sequence_low] = *upper.bytes.first_chunk()?;
        let sequence = u16::from_be_bytes([sequence_high, sequence_low]);
        let id = self.probes.route_of(sequence)?;
        let route = self.routes().get(id)?.clone();
        let is_its = host_of(route.remote) == destination
            && *route.interfaces == *interfaces.as_slice()
            && self.probes.is_ours(sequence, upper.bytes);
        is_its.then_some((id, Some(sequence)))
    }
}

/// The message, its checksum verified.
fn parse<'a>(packet: &Packet<'a>) -> Result<Message<'a>, Dropped> {
    Message::parse_tolerant(packet).map_err(|error| match error {
        ScmpError::Checksum => Dropped::BadChecksum,
        _ => Dropped::Malformed,
    })
}

const _: () = assert!(HeaderTemplate::LEN_MAX + u16::MAX as usize <= REPLY_BYTES_MAX, "one answer always fits");
