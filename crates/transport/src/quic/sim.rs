//! Connections over one bottleneck in virtual time: both ends as noq has them, with the congestion control that we give
//! them, and a line of `anabranch_asnet::link` between. No sockets, no clock. (Not quite replayable: BBR draws its probe
//! times from the system.)

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_asnet::link::{LinkShape, Shaper};
use bytes::BytesMut;
use noq_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, FourTuple, PathId,
    PathStats, ServerConfig, StreamId, VarInt,
};

use super::config::{Congestion, MTU_MAX, QuicOptions, RECEIVE_WINDOW_MAX, SEND_WINDOW_MAX, transport};
use super::lanes::LANES;
use super::tls;
use super::window::{RECEIVE_WINDOW_FIRST, ReceiveWindow};
use crate::Identity;

/// Bytes of SCION and UDP headers of a path over three ASes; the line counts them.
const HEADERS_LEN: usize = 132;
/// UDP payload that fits the path.
pub(super) const MTU: u16 = 1472 - HEADERS_LEN as u16;
/// Packets that leave in one go, as noq asks its sockets for.
const BURST_PACKETS: NonZeroUsize = NonZeroUsize::new(10).unwrap();
/// How often a sender that has a rate of its own writes.
const PACE_EVERY: Duration = Duration::from_millis(20);
/// A request, and the bytes that it asks for.
const REQUEST: [u8; 17] = [0; 17];
const REQUESTED_LEN: u64 = 16 * 1024;
/// Written to one stream at once.
const CHUNK: [u8; 16 * 1024] = [0x5a; 16 * 1024];

/// The path: both directions take `round_trip / 2`, the one with the data has a rate, a queue and losses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bottleneck {
    pub rate_bps: Option<u64>,
    pub queue_bytes: usize,
    pub round_trip: Duration,
    pub loss: f64,
    /// The largest UDP payload that both ends believe fits the path; really it is [`MTU`].
    pub mtu_claimed: u16,
}

/// What came of a connection in some span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Span {
    /// Payload that arrived.
    pub received_bytes: u64,
    /// Packets that the line does not take.
    pub too_big: u64,
}

/// What a connection reached in the time that counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    /// Payload that arrived, in bits a second.
    pub goodput_bps: f64,
    /// The sender's smoothed round-trip time, its mean.
    pub round_trip: Duration,
    /// Of the packets sent, those taken for lost.
    pub lost: f64,
    /// Packets of the receiver's for each of the sender's: acknowledgements, all but a few.
    pub acknowledged: f64,
}

/// One end of a connection.
struct End {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
}

impl End {
    fn new(server: Option<ServerConfig>, seed: u8) -> Self {
        let mut config = EndpointConfig::default();
        config.rng_seed(Some([seed; 32])).max_udp_payload_size(MTU_MAX).unwrap();
        Self { endpoint: Endpoint::new(Arc::new(config), server.map(Arc::new), true), connection: None }
    }

    fn receive(&mut self, now: Instant, from: FourTuple, packet: &[u8]) {
        let mut answer = Vec::new();
        match self.endpoint.handle(now, from, None, BytesMut::from(packet), &mut answer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, connection)) = &mut self.connection {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.connection = self.endpoint.accept(incoming, now, &mut answer, None).ok();
            }
            _ => {}
        }
    }

    /// Does what is due; gives each packet to `send`.
    fn drive(&mut self, now: Instant, mut send: impl FnMut(&[u8])) {
        let Some((handle, connection)) = &mut self.connection else { return };
        if connection.poll_timeout().is_some_and(|due| due <= now) {
            connection.handle_timeout(now);
        }
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        while connection.poll().is_some() {}
        let mut packets = Vec::new();
        while let Some(transmit) = connection.poll_transmit(now, BURST_PACKETS, &mut packets) {
            packets[..transmit.size].chunks(transmit.segment_size.unwrap_or(transmit.size)).for_each(&mut send);
            packets.clear();
        }
    }

    fn due(&self) -> Option<Instant> {
        self.connection.as_ref().and_then(|(_, connection)| connection.poll_timeout())
    }
}

/// A connection that sends as much as it may, from `start` on.
struct Flow {
    sender: End,
    receiver: End,
    client: Option<ClientConfig>,
    start: Instant,
    streams: Vec<StreamId>,
    receiving: Vec<StreamId>,
    /// What it may write by now, if that is not as much as it can.
    allowed_bytes: Option<u64>,
    written: u64,
    received: u64,
    /// Bytes that the receiver asked for, if it does.
    asked: Option<u64>,
    window: ReceiveWindow,
    before: Before,
    /// The sum of what [`Flow::look`] saw.
    round_trips: Duration,
    looks: u32,
}

/// What had happened when it began to count.
#[derive(Default)]
struct Before {
    received: u64,
    sent: u64,
    answers: u64,
    lost: u64,
}

/// Runs one connection for each of `flows` (its congestion control, and when it starts) over the same bottleneck; what
/// happens after `warm_up` counts, until `end`.
pub(super) fn run(
    bottleneck: Bottleneck,
    flows: &[(Congestion, Duration)],
    warm_up: Duration,
    end: Duration,
) -> Vec<Measured> {
    Sim::new(bottleneck, flows).run(warm_up, end)
}

/// Runs one connection whose receiver asks for what it gets, and so sends a little of its own, other than [`run`]'s.
pub(super) fn asked_for(bottleneck: Bottleneck, congestion: Congestion, warm_up: Duration, end: Duration) -> Measured {
    let mut sim = Sim::new(bottleneck, &[(congestion, Duration::ZERO)]);
    sim.flows[0].asked = Some(0);
    sim.run(warm_up, end)[0]
}

/// Runs one connection whose sender has `rate_bytes` a second to say, and tells what came of each `span` up to `end`.
pub(super) fn steadily(
    bottleneck: Bottleneck,
    congestion: Congestion,
    rate_bytes: u64,
    span: Duration,
    end: Duration,
) -> Vec<Span> {
    Sim::new(bottleneck, &[(congestion, Duration::ZERO)]).steadily(rate_bytes, span, end)
}

struct Sim {
    start: Instant,
    there: Shaper,
    back: Shaper,
    flows: Vec<Flow>,
}

impl Sim {
    fn new(bottleneck: Bottleneck, flows: &[(Congestion, Duration)]) -> Self {
        let start = Instant::now();
        let delay = bottleneck.round_trip / 2;
        let back = LinkShape { delay, queue_bytes: 64 << 20, ..LinkShape::default() };
        let (rate_bps, queue_bytes, loss) = (bottleneck.rate_bps, bottleneck.queue_bytes, bottleneck.loss);
        let there = LinkShape { rate_bps, queue_bytes, loss, ..back };
        let flow = |(number, (congestion, after)): (usize, &(Congestion, Duration))| {
            let options = QuicOptions { congestion: *congestion, ..QuicOptions::default() };
            let identity = Identity::ephemeral().unwrap();
            let config = transport(&options, bottleneck.mtu_claimed);
            let mut server = ServerConfig::with_crypto(Arc::new(tls::server(&identity, &options.protocol).unwrap()));
            server.transport = config.clone();
            let mut client = ClientConfig::new(Arc::new(tls::client(&identity, &options.protocol).unwrap()));
            client.transport_config(config);
            Flow {
                sender: End::new(None, 2 * number as u8),
                receiver: End::new(Some(server), 2 * number as u8 + 1),
                client: Some(client),
                start: start + *after,
                streams: Vec::new(),
                receiving: Vec::new(),
                allowed_bytes: None,
                written: 0,
                received: 0,
                asked: None,
                window: ReceiveWindow::new(RECEIVE_WINDOW_MAX, start),
                before: Before::default(),
                round_trips: Duration::ZERO,
                looks: 0,
            }
        };
        let flows = flows.iter().enumerate().map(flow).collect();
        Self { start, there: Shaper::new(there, 7, start), back: Shaper::new(back, 8, start), flows }
    }

    fn run(mut self, warm_up: Duration, end: Duration) -> Vec<Measured> {
        let (warm, end) = (self.start + warm_up, self.start + end);
        let mut now = self.start;
        let mut counts_from = None;
        while now < end {
            let counts = now >= warm;
            if counts && counts_from.is_none() {
                counts_from = Some(now);
                self.flows.iter_mut().for_each(Flow::begin_to_count);
            }
            self.deliver(now);
            for number in 0..self.flows.len() {
                self.step(number, now, counts);
            }
            now = self.next(now).min(end);
        }
        let counted = end - counts_from.unwrap_or(end);
        self.flows.iter_mut().map(|flow| flow.measured(counted)).collect()
    }

    fn steadily(mut self, rate_bytes: u64, span: Duration, end: Duration) -> Vec<Span> {
        let (end, mut now) = (self.start + end, self.start);
        let (mut spans, mut before) = (Vec::new(), Span::default());
        let (mut next_write, mut next_span) = (now, now + span);
        while now < end {
            if now >= next_write {
                let millis = (now - self.start).as_millis() as u64;
                self.flows[0].allowed_bytes = Some(rate_bytes * millis / 1000);
                next_write += PACE_EVERY;
            }
            if now >= next_span {
                let sum = Span { received_bytes: self.flows[0].received, too_big: self.there.stats().too_big_packets };
                spans.push(Span {
                    received_bytes: sum.received_bytes - before.received_bytes,
                    too_big: sum.too_big - before.too_big,
                });
                (before, next_span) = (sum, next_span + span);
            }
            self.deliver(now);
            self.step(0, now, false);
            now = self.next(now).min(next_write).min(next_span);
        }
        spans
    }

    fn step(&mut self, number: usize, now: Instant, counts: bool) {
        let flow = &mut self.flows[number];
        if flow.client.is_some() && flow.start <= now {
            let client = flow.client.take().unwrap();
            let connected = flow.sender.endpoint.connect(now, client, "192.0.2.2:1".parse().unwrap(), tls::SERVER_NAME);
            flow.sender.connection = Some(connected.unwrap());
        }
        flow.write();
        flow.read(now);
        if counts {
            flow.look();
        }
        let tagged = |packet: &[u8]| {
            let mut bytes = vec![number as u8; HEADERS_LEN];
            bytes.extend_from_slice(packet);
            bytes
        };
        // What finds the queue full is gone: that is what queues are about.
        flow.sender.drive(now, |packet| _ = self.there.enqueue(now, &tagged(packet)));
        flow.receiver.drive(now, |packet| _ = self.back.enqueue(now, &tagged(packet)));
    }

    /// Hands over what has arrived.
    fn deliver(&mut self, now: Instant) {
        for (line, forward, from) in [(&mut self.there, true, "192.0.2.1:1"), (&mut self.back, false, "192.0.2.2:1")] {
            let from = FourTuple::new(from.parse().unwrap(), None);
            while let Some(burst) = line.due(now) {
                for packet in burst.bytes.chunks(burst.segment_len) {
                    let (tag, packet) = packet.split_at(HEADERS_LEN);
                    let flow = &mut self.flows[usize::from(tag[0])];
                    let end = if forward { &mut flow.receiver } else { &mut flow.sender };
                    end.receive(now, from, packet);
                }
                let packets = burst.packets;
                line.consume(packets);
            }
        }
    }

    /// When something happens next. Time always goes on, by a microsecond at least: nothing here is finer.
    fn next(&self, now: Instant) -> Instant {
        let ends = self.flows.iter().flat_map(|flow| [flow.sender.due(), flow.receiver.due()]);
        let starts = self.flows.iter().map(|flow| flow.client.as_ref().map(|_| flow.start));
        let lines = [self.there.deadline(), self.back.deadline()];
        let next = ends.chain(starts).chain(lines).flatten().min();
        next.unwrap_or(now).max(now + Duration::from_micros(1))
    }
}

impl Flow {
    /// Fills the streams, as the lanes of a connection are filled.
    fn write(&mut self) {
        let Some((_, connection)) = &mut self.sender.connection else { return };
        connection.set_send_window(SEND_WINDOW_MAX);
        while self.streams.len() < LANES as usize {
            let Some(stream) = connection.streams().open(Dir::Bi) else { break };
            self.streams.push(stream);
        }
        if let Some(allowed_bytes) = &self.allowed_bytes {
            let due = usize::try_from(*allowed_bytes - self.written).unwrap_or(usize::MAX).min(CHUNK.len());
            if let Some(stream) = self.streams.first().filter(|_| due > 0) {
                self.written += connection.send_stream(*stream).write(&CHUNK[..due]).unwrap_or(0) as u64;
            }
            return;
        }
        for stream in &self.streams {
            while connection.send_stream(*stream).write(&CHUNK).is_ok_and(|written| written > 0) {}
        }
    }

    fn read(&mut self, now: Instant) {
        let Some((_, connection)) = &mut self.receiver.connection else { return };
        let before = self.received;
        while let Some(stream) = connection.streams().accept(Dir::Bi) {
            self.receiving.push(stream);
        }
        for stream in &self.receiving {
            let mut stream = connection.recv_stream(*stream);
            let Ok(mut chunks) = stream.read(true) else { continue };
            while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
                self.received += chunk.bytes.len() as u64;
            }
            let _ = chunks.finalize();
        }
        while let (Some(asked), Some(stream)) =
            (self.asked.filter(|asked| *asked < self.received), self.receiving.first())
        {
            let _ = connection.send_stream(*stream).write(&REQUEST);
            self.asked = Some(asked + REQUESTED_LEN);
        }
        let is_first = before == 0 && self.window.set(RECEIVE_WINDOW_FIRST, u64::MAX);
        if self.window.read(self.received - before) {
            let round_trip = connection.rtt(PathId::ZERO).unwrap_or_default();
            let wish = self.window.review(now, round_trip);
            self.window.set(wish, u64::MAX);
        } else if !is_first {
            return;
        }
        connection.set_receive_window(VarInt::from_u64(self.window.target()).unwrap());
    }

    fn stats(&mut self) -> Option<PathStats> {
        self.sender.connection.as_mut()?.1.path_stats(PathId::ZERO)
    }

    fn begin_to_count(&mut self) {
        if let Some(stats) = self.stats() {
            let (sent, answers) = (stats.udp_tx.datagrams, stats.udp_rx.datagrams);
            self.before = Before { received: self.received, sent, answers, lost: stats.lost_packets };
        }
    }

    /// Notes the round-trip time.
    fn look(&mut self) {
        if let Some(stats) = self.stats() {
            self.round_trips += stats.rtt;
            self.looks += 1;
        }
    }

    fn measured(&mut self, counted: Duration) -> Measured {
        let Some(stats) = self.stats() else { return Measured::default() };
        let sent = (stats.udp_tx.datagrams - self.before.sent).max(1);
        Measured {
            goodput_bps: (self.received - self.before.received) as f64 * 8.0 / counted.as_secs_f64(),
            round_trip: self.round_trips / self.looks.max(1),
            lost: (stats.lost_packets - self.before.lost) as f64 / sent as f64,
            acknowledged: (stats.udp_rx.datagrams - self.before.answers) as f64 / sent as f64,
        }
    }
}
