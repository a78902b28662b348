//! Asking the way: echo and traceroute.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anabranch_paths::Interface;
use anabranch_scion_wire::scmp::{END_HOST_PORT, EchoId, Message};
use anabranch_scion_wire::{Address, PacketError, PathRef, StandardPathMut};
use tokio::sync::oneshot;

use super::core::{Core, host_of, lock, request_hop};
use super::counters::Dropped;
use super::routes::{Route, RouteId};
use super::scmp::ScmpKind;

/// Probes of one socket that wait for their answers: every hop of sixteen long paths at once.
pub const PROBES_MAX: usize = 1024;
/// Bytes at the start of an echo's data that nobody off the path can guess.
pub const ECHO_TOKEN_LEN: usize = 8;

/// What became of an echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo {
    /// From the request's sending to the answer's receipt.
    pub rtt: Duration,
    /// Counts the socket's probes.
    pub sequence: u16,
    /// Bytes of the SCION packet that was sent, and came back.
    pub packet_len: usize,
}

/// What a router on the way answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceHop {
    /// The number of the interface that was asked.
    pub asked: u16,
    /// Its router's answer, or why there is none.
    pub answer: Result<TraceAnswer, ProbeError>,
}

/// The answer of an interface's router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceAnswer {
    /// The interface, as its router tells.
    pub interface: Interface,
    /// The router's own address.
    pub router: Address,
    /// From the request's sending to the answer's receipt.
    pub rtt: Duration,
}

/// Why a probe brought no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// Nothing came back in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// Somebody on the way says why.
    #[error("{0}")]
    Scmp(ScmpKind),
    /// The route is not there.
    #[error("the route is gone: register it again")]
    Gone,
    /// The request is longer than the path's MTU.
    #[error("{0} bytes do not fit into one packet on this path: ask for fewer")]
    TooLong(usize),
    /// Too many probes at once.
    #[error("{PROBES_MAX} probes wait for answers already: wait for some")]
    TooMany,
    /// The kernel did not take it.
    #[error("the request could not be sent: {0}")]
    Send(String),
}

/// Probes that wait.
#[derive(Debug, Default)]
pub(super) struct Probes {
    state: Mutex<State>,
    /// Makes the tokens.
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct State {
    next_sequence: u16,
    pending: HashMap<u16, Pending>,
}

#[derive(Debug)]
struct Pending {
    route: RouteId,
    /// Who has to answer.
    from: Asked,
    sent: Instant,
    answer: oneshot::Sender<Answer>,
}

#[derive(Debug)]
enum Asked {
    Host(Address),
    Interface(u16),
}

#[derive(Debug)]
pub(super) enum Answer {
    Echo(Duration),
    Trace(TraceAnswer),
    Trouble(ScmpKind),
}

/// A request that is ready to be sent. Its place among the waiting is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Request<'a> {
    probes: &'a Probes,
    pub(super) sequence: u16,
    pub(super) to: SocketAddr,
    pub(super) packet: Vec<u8>,
    pub(super) answer: oneshot::Receiver<Answer>,
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        lock(&self.probes.state).pending.remove(&self.sequence);
    }
}

impl Probes {
    /// The route that a waiting probe was sent over.
    pub(super) fn route_of(&self, sequence: u16) -> Option<RouteId> {
        lock(&self.state).pending.get(&sequence).map(|pending| pending.route)
    }

    pub(super) fn echo(&self, sequence: u16, from: Address, data: &[u8], now: Instant) -> Result<(), Dropped> {
        let token_is_ours = data.first_chunk() == Some(&self.token(sequence));
        self.settle(sequence, |pending| {
            let is_answer = token_is_ours && matches!(pending.from, Asked::Host(host) if host == from);
            is_answer.then(|| Answer::Echo(now.saturating_duration_since(pending.sent)))
        })
    }

    pub(super) fn trace(
        &self,
        sequence: u16,
        interface: Interface,
        router: Address,
        now: Instant,
    ) -> Result<(), Dropped> {
        self.settle(sequence, |pending| {
            let is_answer = matches!(pending.from, Asked::Interface(id) if id == interface.id);
            let rtt = now.saturating_duration_since(pending.sent);
            is_answer.then_some(Answer::Trace(TraceAnswer { interface, router, rtt }))
        })
    }

    pub(super) fn fail(&self, sequence: u16, kind: ScmpKind) {
        // The quote was compared with the route: it is this probe's, or it was settled in between.
        let _ = self.settle(sequence, |_| Some(Answer::Trouble(kind)));
    }

    /// Ends a waiting probe if `answer` finds that it is answered.
    fn settle(&self, sequence: u16, answer: impl FnOnce(&Pending) -> Option<Answer>) -> Result<(), Dropped> {
        let mut state = lock(&self.state);
        let found = state.pending.get(&sequence).and_then(answer).ok_or(Dropped::UnaskedAnswer)?;
        if let Some(pending) = state.pending.remove(&sequence) {
            // Who asked may have given up just now.
            let _ = pending.answer.send(found);
        }
        Ok(())
    }

    /// Whether a packet that somebody quotes, from its SCMP header on, is the waiting request of this sequence number: who
    /// quotes an echo's token has seen it.
    pub(super) fn is_ours(&self, sequence: u16, quoted: &[u8]) -> bool {
        match lock(&self.state).pending.get(&sequence).map(|pending| &pending.from) {
            Some(Asked::Host(_)) => quoted.get(SCMP_LEN..).and_then(<[u8]>::first_chunk) == Some(&self.token(sequence)),
            Some(Asked::Interface(_)) => true,
            None => false,
        }
    }

    fn token(&self, sequence: u16) -> [u8; ECHO_TOKEN_LEN] {
        self.hasher.hash_one(sequence).to_be_bytes()
    }

    fn add(&self, route: RouteId, from: Asked, now: Instant) -> Result<(u16, oneshot::Receiver<Answer>), ProbeError> {
        let mut state = lock(&self.state);
        if state.pending.len() >= PROBES_MAX {
            return Err(ProbeError::TooMany);
        }
        // Fewer wait than there are numbers, so one is free.
        while state.pending.contains_key(&state.next_sequence) {
            state.next_sequence = state.next_sequence.wrapping_add(1);
        }
        let sequence = state.next_sequence;
        state.next_sequence = sequence.wrapping_add(1);
        let (sender, answer) = oneshot::channel();
        state.pending.insert(sequence, Pending { route, from, sent: now, answer: sender });
        Ok((sequence, answer))
    }
}

impl Core {
    fn route_for_probe(&self, id: RouteId) -> Result<std::sync::Arc<Route>, ProbeError> {
        self.routes().get(id).cloned().ok_or(ProbeError::Gone)
    }

    /// An echo request over `route` with `data_len` bytes of data, at least [`ECHO_TOKEN_LEN`].
    pub(super) fn echo_request(&self, id: RouteId, data_len: usize, now: Instant) -> Result<Request<'_>, ProbeError> {
        let route = self.route_for_probe(id)?;
        let data_len = data_len.max(ECHO_TOKEN_LEN);
        if data_len > route.payload_len_max {
            return Err(ProbeError::TooLong(data_len));
        }
        let host = host_of(route.remote);
        let path = PathRef::from_dataplane(&route.path).map_err(|_| ProbeError::Gone)?;
        let (sequence, answer) = self.probes.add(id, Asked::Host(host), now)?;
        let to = request_hop(route.next_hop, END_HOST_PORT);
        let mut request = Request { probes: &self.probes, sequence, to, packet: Vec::new(), answer };
        let mut data = vec![0; data_len];
        data[..ECHO_TOKEN_LEN].copy_from_slice(&self.probes.token(sequence));
        let message = Message::EchoRequest { id: self.echo_id(sequence), data: &data };
        request.packet = self.write(&message, host, path, data_len)?;
        Ok(request)
    }

    /// Traceroute requests to the interfaces on the way from the `first` on, in order, each with the interface's number.
    pub(super) fn trace_requests(
        &self,
        id: RouteId,
        first: usize,
        now: Instant,
    ) -> Result<Vec<(u16, Request<'_>)>, ProbeError> {
        let route = self.route_for_probe(id)?;
        let places = places(&route.path).into_iter().zip(&route.interfaces).skip(first);
        places.map(|(place, interface)| Ok((*interface, self.trace(id, &route, place, *interface, now)?))).collect()
    }

    /// A traceroute request to the last interface of `route`, which is `id` with hop fields of its own.
    pub(super) fn trace_last(&self, id: RouteId, route: &Route, now: Instant) -> Result<Request<'_>, ProbeError> {
        let last = places(&route.path).into_iter().zip(&route.interfaces).next_back();
        let (place, interface) = last.ok_or(ProbeError::Gone)?;
        self.trace(id, route, place, *interface, now)
    }

    fn trace(
        &self,
        id: RouteId,
        route: &Route,
        (hop, at_egress): (usize, bool),
        interface: u16,
        now: Instant,
    ) -> Result<Request<'_>, ProbeError> {
        let mut path = route.path.clone();
        let alerted = StandardPathMut::parse(&mut path).is_ok_and(|mut path| path.set_alert(hop, at_egress));
        let path = PathRef::from_dataplane(&path).ok().filter(|_| alerted).ok_or(ProbeError::Gone)?;
        let (sequence, answer) = self.probes.add(id, Asked::Interface(interface), now)?;
        let mut request = Request { probes: &self.probes, sequence, to: route.next_hop, packet: Vec::new(), answer };
        let message = Message::TracerouteRequest { id: self.echo_id(sequence) };
        request.packet = self.write(&message, host_of(route.remote), path, TRACE_LEN)?;
        Ok(request)
    }

    fn echo_id(&self, sequence: u16) -> EchoId {
        // Answers are delivered by the identifier, as to a port.
        EchoId { identifier: self.local_port(), sequence }
    }

    fn write(
        &self,
        message: &Message<'_>,
        to: Address,
        path: PathRef<'_>,
        data_len: usize,
    ) -> Result<Vec<u8>, ProbeError> {
        let fields = self.fields(to, path);
        let mut packet = vec![0; fields.header_len() + SCMP_LEN + data_len];
        let too_long = |_: PacketError| ProbeError::TooLong(data_len);
        let len = message.write(&fields, &mut packet).map_err(too_long)?;
        packet.truncate(len);
        Ok(packet)
    }
}

/// Bytes of an echo's header.
const SCMP_LEN: usize = 8;
/// Bytes behind it in a traceroute request.
const TRACE_LEN: usize = 16;

/// The hop fields, and their side, that the interfaces of a path belong to, in order.
fn places(path: &[u8]) -> Vec<(usize, bool)> {
    let Ok(PathRef::Standard(path)) = PathRef::from_dataplane(path) else { return Vec::new() };
    // Where segments meet in one AS, its two hop fields make one hop; over a peering link they are two.
    let joined = !path.has_peering();
    let mut places = Vec::new();
    let (mut hop, last) = (0, path.hop_count() - 1);
    for segment_len in path.meta().segment_len() {
        for place in 1..=segment_len {
            let (first, ends) = (place == 1, place == segment_len);
            if hop > 0 && !(first && joined) {
                places.push((hop, false));
            }
            if hop < last && !(ends && joined) {
                places.push((hop, true));
            }
            hop += 1;
        }
    }
    places
}
