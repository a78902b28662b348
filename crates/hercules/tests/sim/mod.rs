//! Transfers over links in virtual time: every packet is sealed, queued, perhaps lost, and opened. Nothing here waits.
#![allow(dead_code, reason = "each test uses some of it")]

pub(crate) mod cubic;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

use anabranch_hercules::wire::control::Control;
use anabranch_hercules::wire::message::{Message, Offer};
use anabranch_hercules::wire::seal::{CONTROL_HEAD_LEN, DATA_HEAD_LEN, Kind, Opener, Sealer, Secret};
use anabranch_hercules::{
    Arrived, Batch, CONTROL_PACKET_MAX, ChunkSet, Convoy, Event, Everything, Misbehaviour, Receiver, ReceiverEvent,
    Refused, Sender, SharedShelf, congestion, hand_on, tree,
};
use cubic::Cubic;

/// IPv6 and UDP.
const UNDERLAY_LEN: usize = 48;
/// Reading a range of a shared shelf takes so long.
const READ_TIME: Duration = Duration::from_millis(1);

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn mbit(mbit: f64) -> f64 {
    mbit * 1e6 / 8.0
}

/// A queue of so many bytes before a line.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub rate_bytes: f64,
    pub delay: Duration,
    pub queue_bytes: f64,
    pub loss: f64,
    /// This part of the packets takes up to so much longer, and so is overtaken.
    pub jitter: (f64, Duration),
    pub duplicate: f64,
    /// Longer packets do not pass.
    pub longest: usize,
    /// Nothing passes meanwhile.
    pub down: Vec<(Duration, Duration)>,
    free_at: Duration,
    pub carried_bytes: u64,
    pub dropped: u64,
}

impl Link {
    pub(crate) fn new(rate_bytes: f64, delay: Duration, queue_bytes: f64) -> Self {
        Self {
            rate_bytes,
            delay,
            queue_bytes,
            loss: 0.0,
            jitter: (0.0, Duration::ZERO),
            duplicate: 0.0,
            longest: usize::MAX,
            down: Vec::new(),
            free_at: Duration::ZERO,
            carried_bytes: 0,
            dropped: 0,
        }
    }

    /// A way that is never full.
    pub(crate) fn wide(delay: Duration) -> Self {
        Self::new(1e12, delay, 1e12)
    }

    pub(crate) fn lossy(mut self, loss: f64) -> Self {
        self.loss = loss;
        self
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// A datagram of a flow.
    Bytes {
        flow: usize,
        to_receiver: bool,
        bytes: Vec<u8>,
    },
    /// A packet of the CUBIC flow, or what it has come to.
    Segment {
        flow: usize,
        number: u64,
    },
    SegmentAck {
        flow: usize,
        numbers: Vec<u64>,
    },
    /// Of nobody.
    Cross,
}

#[derive(Debug)]
enum Happening {
    Packet { route: Vec<usize>, hop: usize, len: usize, payload: Payload },
    Wake(usize),
    WakeCubic(usize),
    Message { flow: usize, to_sender: bool, message: Message },
    Read(usize),
    CrossTraffic(usize),
    DelayedAck(usize, u64),
}

/// Datagrams at a steady rate.
#[derive(Clone, Debug)]
pub(crate) struct CrossTraffic {
    pub route: Vec<usize>,
    pub rate_bytes: f64,
    pub from: Duration,
    pub to: Duration,
}

/// What a receiver makes of each control packet before it seals it.
pub(crate) type Lie = Box<dyn FnMut(&mut Control)>;

/// A host that does not run at times: what comes for it waits, and is dealt with at once afterwards.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// From the end of one stop to the next, on average, and how long one is.
    every: Duration,
    stop: (Duration, Duration),
    stops: (Duration, Duration),
    /// What waits meanwhile, and how much of it may.
    waiting_bytes: usize,
    buffer_bytes: usize,
}

impl Host {
    pub(crate) fn busy(every: Duration, stop: (Duration, Duration), buffer_bytes: usize) -> Self {
        Self { every, stop, stops: (Duration::ZERO, Duration::ZERO), waiting_bytes: 0, buffer_bytes }
    }

    /// When it runs again, if it does not now.
    fn stopped(&mut self, now: Duration, rng: &mut fastrand::Rng) -> Option<Duration> {
        while now >= self.stops.1 {
            let from = self.stops.1 + self.every.mul_f64(-(1.0 - rng.f64()).ln());
            self.waiting_bytes = 0;
            self.stops = (from, from + self.stop.0 + (self.stop.1 - self.stop.0).mul_f64(rng.f64()));
        }
        (now >= self.stops.0).then_some(self.stops.1)
    }
}

pub(crate) struct Flow {
    /// The sender's, and the receiver's.
    pub hosts: [Option<Host>; 2],
    pub sender: Sender,
    secret: Secret,
    pub lie: Option<Lie>,
    /// What the sender found out, and when. It sends no more.
    pub misbehaved: Option<(Duration, Misbehaviour)>,
    pub receiver: Receiver,
    pub routes: Vec<(Vec<usize>, Vec<usize>)>,
    sealers: Vec<Sealer>,
    shelf: Option<usize>,
    content: Option<Vec<u8>>,
    pub written: Vec<u8>,
    offer: Offer,
    hashed: bool,
    awake_at: Option<Duration>,
    /// Packets that arrived, in tenths of a second, over each path.
    pub arrived_bytes: Vec<Vec<f64>>,
    pub fresh_chunks: u64,
    pub data_bytes: u64,
    pub report_bytes: u64,
    pub events: Vec<(Duration, Event)>,
    pub receiver_events: Vec<ReceiverEvent>,
    pub complete_at: Option<Duration>,
    delay: Duration,
}

pub(crate) struct Net {
    pub base: Instant,
    pub now: Duration,
    heap: BinaryHeap<Reverse<(Duration, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    next: u64,
    pub links: Vec<Link>,
    pub flows: Vec<Flow>,
    pub cubics: Vec<Cubic>,
    pub shelves: Vec<(SharedShelf, Convoy)>,
    pub cross: Vec<CrossTraffic>,
    /// All flows are one end's: what one takes that is done is handed on to the others.
    pub hands_on: bool,
    freed: f64,
    rng: fastrand::Rng,
}

/// What a flow carries.
pub(crate) enum Content {
    /// So many bytes that nobody looks at.
    Blank(u64),
    Real(Vec<u8>),
}

impl Net {
    pub(crate) fn new(seed: u64, links: Vec<Link>) -> Self {
        println!("seed {seed}");
        Self {
            base: Instant::now(),
            now: Duration::ZERO,
            heap: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            next: 0,
            links,
            flows: Vec::new(),
            cubics: Vec::new(),
            shelves: Vec::new(),
            cross: Vec::new(),
            hands_on: false,
            freed: 0.0,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    /// A transfer over the routes `(forward, back, group)`, with what the receiver has kept.
    pub(crate) fn add_flow(
        &mut self,
        content: Content,
        chunk_len: u16,
        kind: congestion::Kind,
        routes: &[(&[usize], &[usize], Option<u32>)],
        kept: &[u64],
        shelf: Option<usize>,
    ) -> usize {
        let flow = self.flows.len();
        let (len, content) = match content {
            Content::Blank(len) => (len, None),
            Content::Real(bytes) => (bytes.len() as u64, Some(bytes)),
        };
        let transfer = flow as u32;
        let offer = Offer { transfer, chunk_len, content_len: len, manifest_len: 0, manifest_hash: [0; 32] };
        let secret = Secret::new(transfer, &[flow as u8; 32]);
        let now = self.base + self.now;
        let mut spans = ChunkSet::new(tree::span_count(len));
        kept.iter().for_each(|span| _ = spans.insert(*span));
        let mut written = vec![0; if content.is_some() { len as usize } else { 0 }];
        if let Some(content) = &content {
            for span in kept {
                let bytes = tree::span_bytes(len, *span);
                let bytes = bytes.start as usize..bytes.end as usize;
                written[bytes.clone()].copy_from_slice(&content[bytes]);
            }
        }
        let mut sender = Sender::new(offer, secret.clone(), kind, self.rng.u64(..), now).unwrap();
        let mut receiver = Receiver::new(offer, spans, now).unwrap();
        let mut sealers = Vec::new();
        for (index, (.., group)) in (0..).zip(routes) {
            sealers.push(sender.add_path(index, *group, now).unwrap());
            assert!(receiver.add_path(index, &secret, now));
        }
        let delay = routes[0].0.iter().map(|link| self.links[*link].delay).sum();
        self.flows.push(Flow {
            hosts: [None, None],
            sender,
            secret,
            lie: None,
            misbehaved: None,
            receiver,
            routes: routes.iter().map(|(forward, back, _)| (forward.to_vec(), back.to_vec())).collect(),
            sealers,
            shelf,
            content,
            written,
            offer,
            hashed: false,
            awake_at: None,
            arrived_bytes: vec![Vec::new(); routes.len()],
            fresh_chunks: 0,
            data_bytes: 0,
            report_bytes: 0,
            events: Vec::new(),
            receiver_events: Vec::new(),
            complete_at: None,
            delay,
        });
        self.schedule(self.now, Happening::Wake(flow));
        flow
    }

    pub(crate) fn add_cubic(&mut self, forward: &[usize], back: &[usize]) -> usize {
        self.cubics.push(Cubic::new(forward.to_vec(), back.to_vec()));
        let flow = self.cubics.len() - 1;
        self.schedule(self.now, Happening::WakeCubic(flow));
        flow
    }

    pub(crate) fn add_cross(&mut self, cross: CrossTraffic) {
        self.schedule(cross.from, Happening::CrossTraffic(self.cross.len()));
        self.cross.push(cross);
    }

    fn schedule(&mut self, at: Duration, happening: Happening) {
        self.heap.push(Reverse((at, self.next)));
        self.happenings.insert(self.next, happening);
        self.next += 1;
    }

    /// Until `end`, or until `done`.
    pub(crate) fn run(&mut self, end: Duration, done: impl Fn(&Self) -> bool) {
        while let Some(Reverse((at, number))) = self.heap.peek().copied() {
            if at > end || done(self) {
                break;
            }
            self.heap.pop();
            self.now = at;
            let happening = self.happenings.remove(&number).expect("each happens once");
            self.happen(happening);
        }
        if !done(self) {
            self.now = end;
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Packet { route, hop, len, payload } if hop == route.len() => {
                let stopped = match &payload {
                    Payload::Bytes { flow, to_receiver, .. } => {
                        let (flow, host) = (*flow, usize::from(*to_receiver));
                        let until = self.stopped(flow, host);
                        if let Some(host) = self.flows[flow].hosts[host].as_mut().filter(|_| until.is_some()) {
                            host.waiting_bytes += len;
                            if host.waiting_bytes > host.buffer_bytes {
                                return;
                            }
                        }
                        until
                    }
                    _ => None,
                };
                match stopped {
                    Some(until) => self.schedule(until, Happening::Packet { route, hop, len, payload }),
                    None => self.arrive(len, payload),
                }
            }
            Happening::Packet { route, hop, len, payload } => self.enter(route, hop, len, payload),
            Happening::Wake(flow) => {
                if self.flows[flow].awake_at.is_some_and(|at| at <= self.now) {
                    self.flows[flow].awake_at = None;
                }
                self.pump(flow);
            }
            Happening::WakeCubic(flow) => self.pump_cubic(flow),
            Happening::DelayedAck(flow, number) => {
                if let Some(numbers) = self.cubics[flow].take_held(number) {
                    self.acknowledge(flow, numbers);
                }
            }
            Happening::Message { flow, to_sender, message } => {
                if to_sender {
                    self.flows[flow].sender.on_message(message).unwrap();
                } else {
                    self.flows[flow].receiver.on_message(message).unwrap();
                }
                self.pump(flow);
            }
            Happening::Read(shelf) => {
                self.shelves[shelf].0.on_read();
                self.pump_shelf(shelf);
                for flow in 0..self.flows.len() {
                    self.pump(flow);
                }
            }
            Happening::CrossTraffic(at) => {
                let cross = self.cross[at].clone();
                let payload = Payload::Cross;
                self.enter(cross.route.clone(), 0, 1500, payload);
                let next = self.now + Duration::from_secs_f64(1500.0 / cross.rate_bytes);
                if next < cross.to {
                    self.schedule(next, Happening::CrossTraffic(at));
                }
            }
        }
    }

    fn stopped(&mut self, flow: usize, host: usize) -> Option<Duration> {
        self.flows[flow].hosts[host].as_mut()?.stopped(self.now, &mut self.rng)
    }

    /// A packet comes to a link.
    fn enter(&mut self, route: Vec<usize>, hop: usize, len: usize, payload: Payload) {
        let now = self.now;
        let link = &mut self.links[route[hop]];
        let start = link.free_at.max(now);
        let queued = (start - now).as_secs_f64() * link.rate_bytes;
        let down = link.down.iter().any(|(from, to)| (*from..*to).contains(&now));
        if down
            || len > link.longest
            || queued + len as f64 > link.queue_bytes.max(len as f64)
            || self.rng.f64() < link.loss
        {
            link.dropped += 1;
            return;
        }
        link.free_at = start + Duration::from_secs_f64(len as f64 / link.rate_bytes);
        link.carried_bytes += len as u64;
        let mut at = link.free_at + link.delay;
        if self.rng.f64() < link.jitter.0 {
            at += link.jitter.1.mul_f64(self.rng.f64());
        }
        if self.rng.f64() < link.duplicate {
            let (route, payload) = (route.clone(), payload.clone());
            self.schedule(at + Duration::from_micros(10), Happening::Packet { route, hop: hop + 1, len, payload });
        }
        self.schedule(at, Happening::Packet { route, hop: hop + 1, len, payload });
    }

    fn arrive(&mut self, len: usize, payload: Payload) {
        let (now, slot) = (self.base + self.now, (self.now.as_millis() / 100) as usize);
        match payload {
            Payload::Cross => {}
            Payload::Segment { flow, number } => {
                if let Some(numbers) = self.cubics[flow].on_arrived(number, len, slot) {
                    self.acknowledge(flow, numbers);
                } else {
                    self.schedule(self.now + cubic::DELAYED_ACK, Happening::DelayedAck(flow, number));
                }
            }
            Payload::SegmentAck { flow, numbers } => {
                numbers.into_iter().for_each(|number| self.cubics[flow].on_ack(number, self.now));
                self.pump_cubic(flow);
            }
            Payload::Bytes { flow, to_receiver: false, mut bytes } => {
                if let Err(Refused::Misbehaviour(found)) = self.flows[flow].sender.on_datagram(&mut bytes, now) {
                    assert!(self.flows[flow].lie.is_some(), "an honest receiver is accused: {found}");
                    self.flows[flow].misbehaved.get_or_insert((self.now, found));
                }
                self.pump(flow);
            }
            Payload::Bytes { flow, to_receiver: true, mut bytes } => {
                let state = &mut self.flows[flow];
                let before = state.receiver.progress().0;
                if let Ok(Arrived::Chunk { path, chunk, write }) = state.receiver.on_datagram(&mut bytes, now) {
                    let arrived = &mut state.arrived_bytes[usize::from(path)];
                    arrived.resize(arrived.len().max(slot + 1), 0.0);
                    arrived[slot] += len as f64;
                    if state.content.is_some() && !write.is_empty() {
                        let start = chunk as usize * usize::from(state.offer.chunk_len);
                        let from = write.start as usize - start + DATA_HEAD_LEN;
                        let part = &bytes[from..from + (write.end - write.start) as usize];
                        state.written[write.start as usize..write.end as usize].copy_from_slice(part);
                    }
                }
                state.fresh_chunks += state.receiver.progress().0 - before;
                self.pump(flow);
            }
        }
    }

    fn send(&mut self, flow: usize, path: u8, to_receiver: bool, bytes: Vec<u8>) {
        let (forward, back) = &self.flows[flow].routes[usize::from(path)];
        let route = if to_receiver { forward.clone() } else { back.clone() };
        let len = bytes.len() + UNDERLAY_LEN;
        self.enter(route, 0, len, Payload::Bytes { flow, to_receiver, bytes });
    }

    /// Does all that a driver does.
    fn pump(&mut self, flow: usize) {
        if self.flows[flow].misbehaved.is_some() {
            return;
        }
        let now = self.base + self.now;
        let (mut packet, mut batch) = ([0; CONTROL_PACKET_MAX], Batch::default());
        let stopped = [self.stopped(flow, 0), self.stopped(flow, 1)];
        while stopped[0].is_none() {
            let shelf = self.flows[flow].shelf;
            let state = &mut self.flows[flow];
            let more = match shelf {
                Some(shelf) => state.sender.poll_batch(now, &mut self.shelves[shelf].0, &mut batch),
                None => state.sender.poll_batch(now, &mut Everything, &mut batch),
            };
            if !more {
                break;
            }
            for (number, chunk) in (batch.first..).zip(&batch.chunks) {
                let state = &mut self.flows[flow];
                let start = chunk * u64::from(state.offer.chunk_len);
                let end = (start + u64::from(state.offer.chunk_len)).min(state.offer.content_len);
                let mut bytes = vec![0; DATA_HEAD_LEN + (end - start) as usize];
                if let Some(content) = &state.content {
                    bytes[DATA_HEAD_LEN..].copy_from_slice(&content[start as usize..end as usize]);
                }
                let (head, body) = bytes.split_first_chunk_mut().unwrap();
                state.sealers[usize::from(batch.path)].seal_chunk(number, *chunk, body, head);
                state.data_bytes += bytes.len() as u64;
                self.send(flow, batch.path, true, bytes);
            }
        }
        while stopped[0].is_none()
            && let Some((path, len)) = self.flows[flow].sender.poll_control(now, &mut packet)
        {
            self.send(flow, path, true, packet[..len].to_vec());
        }
        while stopped[1].is_none()
            && let Some((path, len)) = self.flows[flow].receiver.poll_control(now, &mut packet)
        {
            let state = &mut self.flows[flow];
            state.report_bytes += len as u64;
            let bytes = match &mut state.lie {
                Some(lie) => lied(&state.secret, path, &packet[..len], lie),
                None => packet[..len].to_vec(),
            };
            self.send(flow, path, false, bytes);
        }
        self.pump_messages(flow);
        if let Some(shelf) = self.flows[flow].shelf {
            self.pump_shelf(shelf);
        }
        let state = &mut self.flows[flow];
        let before = state.events.len();
        while let Some(event) = state.sender.poll_event() {
            state.events.push((self.now, event));
        }
        if self.hands_on && state.events[before..].iter().any(|(_, event)| *event == Event::AllCame) {
            self.freed += state.sender.rate_bytes();
            self.freed = hand_on(self.freed, self.flows.iter_mut().map(|flow| &mut flow.sender), now);
            (0..self.flows.len())
                .filter(|other| *other != flow)
                .for_each(|other| self.schedule(self.now, Happening::Wake(other)));
        }
        let state = &mut self.flows[flow];
        let after = |deadline: Option<Instant>, stopped: Option<Duration>| {
            deadline.map(|at| stopped.map_or(at, |until| at.max(self.base + until)))
        };
        let deadlines = [after(state.sender.deadline(), stopped[0]), after(state.receiver.deadline(), stopped[1])];
        let Some(at) = deadlines.into_iter().flatten().min() else { return };
        // Timers are not more exact.
        let at = at.saturating_duration_since(self.base).max(self.now + Duration::from_micros(20));
        if state.awake_at.is_none_or(|awake| at < awake) {
            state.awake_at = Some(at);
            self.schedule(at, Happening::Wake(flow));
        }
    }

    fn pump_messages(&mut self, flow: usize) {
        let at = self.now + self.flows[flow].delay;
        while let Some(message) = self.flows[flow].receiver.poll_message() {
            self.schedule(at, Happening::Message { flow, to_sender: true, message });
        }
        let state = &mut self.flows[flow];
        let mut messages = Vec::new();
        if let Some(content) = state.content.as_ref().filter(|_| !std::mem::replace(&mut state.hashed, true)) {
            let mut hasher = tree::Hasher::new(content.len() as u64);
            hasher.update(content);
            messages.push(Message::Hashes { first: 0, hashes: hasher.spans().to_vec() });
            messages.push(Message::Root(hasher.root().unwrap()));
        }
        while let Some(event) = state.receiver.poll_event() {
            if let (ReceiverEvent::SpanCame(span), Some(_)) = (&event, &state.content) {
                let bytes = tree::span_bytes(state.offer.content_len, *span);
                let written = &state.written[bytes.start as usize..bytes.end as usize];
                let hash = tree::span_hash(state.offer.content_len, *span, written);
                state.receiver.on_span_hash(*span, hash);
            }
            if let ReceiverEvent::Complete { .. } = event {
                state.complete_at = Some(self.now);
            }
            state.receiver_events.push(event);
        }
        for message in messages {
            self.schedule(at, Happening::Message { flow, to_sender: false, message });
        }
    }

    fn pump_shelf(&mut self, shelf: usize) {
        let (ours, convoy) = &mut self.shelves[shelf];
        let flows = self.flows.iter_mut().filter(|flow| flow.shelf == Some(shelf));
        let mut senders: Vec<_> = flows.map(|flow| &mut flow.sender).collect();
        if convoy.poll_read(self.base + self.now, ours, &mut senders).is_some() {
            self.schedule(self.now + READ_TIME, Happening::Read(shelf));
        }
    }

    fn acknowledge(&mut self, flow: usize, numbers: Vec<u64>) {
        let route = self.cubics[flow].back.clone();
        self.enter(route, 0, 60, Payload::SegmentAck { flow, numbers });
    }

    fn pump_cubic(&mut self, flow: usize) {
        let (numbers, wake) = self.cubics[flow].poll(self.now);
        for number in numbers {
            let route = self.cubics[flow].forward.clone();
            self.enter(route, 0, cubic::SEGMENT_LEN, Payload::Segment { flow, number });
        }
        if let Some(at) = wake {
            self.schedule(at, Happening::WakeCubic(flow));
        }
    }

    /// Bytes on the wire that arrived at a flow's receiver between two times, a second.
    pub(crate) fn arrival_rate(&self, flow: usize, from: Duration, to: Duration) -> f64 {
        self.flows[flow].arrived_bytes.iter().map(|path| rate(path, from, to)).sum()
    }
}

/// A receiver's control packet as it would be if what it says were not true.
fn lied(secret: &Secret, path: u8, packet: &[u8], lie: &mut Lie) -> Vec<u8> {
    let (head, body) = packet.split_first_chunk::<CONTROL_HEAD_LEN>().unwrap();
    let mut body = body.to_vec();
    let number = Opener::new(secret, Kind::FromReceiver, path).open(head, &mut body).unwrap().number;
    let mut control = Control::parse(&body).unwrap();
    lie(&mut control);
    let (mut head, mut body) = ([0; CONTROL_HEAD_LEN], Vec::new());
    control.write(&mut body);
    Sealer::new(secret, Kind::FromReceiver, path).seal_control(number, &mut body, &mut head);
    [&head[..], &body].concat()
}

/// Of bytes in tenths of a second.
pub(crate) fn rate(slots: &[f64], from: Duration, to: Duration) -> f64 {
    let (first, last) = ((from.as_millis() / 100) as usize, (to.as_millis() / 100) as usize);
    slots.iter().take(last).skip(first).sum::<f64>() / ((last - first) as f64 / 10.0)
}

/// What a link carries with nothing in the way.
pub(crate) fn content(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| rng.u8(..)).collect()
}
