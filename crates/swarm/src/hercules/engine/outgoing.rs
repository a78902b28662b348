//! One transfer that this end sends.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_hercules::wire::PATHS_MAX;
use anabranch_hercules::wire::message::{Message, Offer};
use anabranch_hercules::wire::seal::{DATA_HEAD_LEN, Sealer, Secret};
use anabranch_hercules::{
    BATCH_PACKETS_MAX, Batch, CONTROL_PACKET_MAX, Event, Misbehaviour, Refused, Sender, congestion,
};
use anabranch_transport::datagram::{Pacer, Packet, SendErrorKind};
use tokio::sync::mpsc::UnboundedSender;

use super::interface::{Measured, MeasuredPath, News, Route};
use super::port::{From, Port};
use super::routing::Routing;
use crate::hercules::content::SourceError;
use crate::hercules::events::TransferError;
use crate::hercules::reader::Store;

/// How long it is not looked whether there is something to send when there was nothing: who reads it wakes this thread anyway.
const STARVED: Duration = Duration::from_micros(500);

pub(super) struct Outgoing {
    core: Sender,
    /// Which of the stores its chunks are from.
    pub(super) store: u16,
    chunk_len: usize,
    content_len: u64,
    paths: [Slot; PATHS_MAX],
    batch: Batch,
    /// The batch's packets, each in a place for a head and the longest chunk.
    packets: Vec<u8>,
    lens: Vec<usize>,
    /// Of the batch, how many have left; those that have not wait for room in the socket.
    sent: usize,
    news: UnboundedSender<News>,
    /// What the receiver asked for.
    limit: Option<Pacer>,
    all_came: bool,
    /// What it took of the uplink is others' now.
    is_released: bool,
    /// It is told that it failed, and does nothing more.
    over: bool,
}

#[derive(Default)]
struct Slot {
    sealer: Option<Sealer>,
    routing: Routing,
    bytes: u64,
    narrow: bool,
}

impl Outgoing {
    pub(super) fn new(
        offer: Offer,
        secret: &Secret,
        congestion: congestion::Kind,
        news: UnboundedSender<News>,
        now: Instant,
    ) -> Result<Self, TransferError> {
        // Which packet numbers are left out, the receiver must not foresee: the keys of a hasher are the system's random bytes.
        let seed = RandomState::new().build_hasher().finish();
        let core = Sender::new(offer, secret.clone(), congestion, seed, now);
        let core = core.map_err(|error| TransferError::Misbehaviour(Misbehaviour::Wire(error)))?;
        let chunk_len = usize::from(offer.chunk_len);
        Ok(Self {
            core,
            store: offer.chunk_len,
            chunk_len,
            content_len: offer.content_len,
            paths: std::array::from_fn(|_| Slot::default()),
            batch: Batch::default(),
            packets: vec![0; BATCH_PACKETS_MAX * (DATA_HEAD_LEN + chunk_len)],
            lens: Vec::new(),
            sent: 0,
            news,
            limit: None,
            all_came: false,
            is_released: false,
            over: false,
        })
    }

    pub(super) fn add_path(
        &mut self,
        index: u8,
        route: Option<Route>,
        group: Option<u32>,
        ports: &[Port],
        now: Instant,
    ) {
        let Some(sealer) = self.core.add_path(index, group, now) else { return };
        let Some(slot) = self.paths.get_mut(usize::from(index)) else { return };
        slot.sealer = Some(sealer);
        if let Some(route) = route {
            self.set_route(index, route, true, ports);
        }
    }

    pub(super) fn couple(&mut self, one: u8, other: u8) {
        self.core.couple(one, other);
    }

    pub(super) fn separate(&mut self, index: u8) {
        self.core.set_group(index, Some(index.into()));
    }

    /// A path goes this way, which this end chose, or where packets showed that it leads.
    pub(super) fn set_route(&mut self, index: u8, route: Route, is_own: bool, ports: &[Port]) {
        let Some(slot) = self.paths.get_mut(usize::from(index)) else { return };
        slot.routing.set(route, is_own, ports);
        slot.narrow = false;
        self.core.on_reroute(index, Instant::now());
    }

    pub(super) fn on_message(&mut self, message: Message) {
        let done = self.core.on_message(message);
        self.check(done);
    }

    pub(super) fn on_control(&mut self, packet: &mut [u8], from: &From<'_>, now: Instant) {
        match self.core.on_datagram(packet, now) {
            Ok(path) => {
                self.paths[usize::from(path)].routing.heard(from);
            }
            Err(Refused::Dropped(_)) => {}
            Err(Refused::Misbehaviour(misbehaviour)) => self.check(Err(misbehaviour)),
        }
    }

    /// Paths go where packets showed that they lead now.
    pub(super) fn settle_routes(&mut self, ports: &[Port]) {
        for index in 0..PATHS_MAX {
            if let Some(route) = self.paths[index].routing.take_learned() {
                self.set_route(index as u8, route, false, ports);
            }
        }
    }

    fn check(&mut self, done: Result<(), Misbehaviour>) {
        if let Err(misbehaviour) = done {
            self.fail(misbehaviour.into());
        }
    }

    fn fail(&mut self, error: TransferError) {
        if !std::mem::replace(&mut self.over, true) {
            let _ = self.news.send(News::Failed(error));
        }
    }

    pub(super) fn fail_source(&mut self, error: &Arc<SourceError>) {
        self.fail(error.for_another().into());
    }

    /// Says and sends what is due, of chunks at most `room` bytes and one batch. How many bytes of data left.
    pub(super) fn drive(&mut self, now: Instant, store: &mut Store, room: u64) -> u64 {
        if self.over {
            return 0;
        }
        self.send_control(now);
        self.tell_events();
        let mut sent = self.send_rest();
        let room = self.limit.as_mut().map_or(room, |limit| limit.allowance(now).min(room));
        if self.sent >= self.lens.len()
            && room >= self.chunk_len as u64
            && self.core.poll_batch(now, store, &mut self.batch)
        {
            self.seal(store);
            sent += self.send_rest();
        }
        if let Some(limit) = &mut self.limit {
            limit.spend(sent, now);
        }
        sent
    }

    /// The receiver takes so many bytes a second from now on.
    pub(super) fn limit(&mut self, rate_bytes: u64, now: Instant) {
        self.limit = Some(Pacer::new(rate_bytes, now));
    }

    fn seal(&mut self, store: &Store) {
        self.sent = 0;
        self.lens.clear();
        let Some(slot) = self.paths.get_mut(usize::from(self.batch.path)) else { return };
        let Some(sealer) = &mut slot.sealer else { return };
        let places = self.packets.chunks_exact_mut(DATA_HEAD_LEN + self.chunk_len);
        for ((number, chunk), place) in (self.batch.first..).zip(&self.batch.chunks).zip(places) {
            // The shelf said that it is at hand.
            let Some(bytes) = store.chunk(*chunk) else { break };
            let Some((head, body)) = place.split_first_chunk_mut() else { break };
            let body = &mut body[..bytes.len()];
            sealer.seal_chunk_into(number, *chunk, bytes, head, body);
            self.lens.push(DATA_HEAD_LEN + bytes.len());
        }
    }

    /// Sends what is left of the batch.
    fn send_rest(&mut self) -> u64 {
        if self.sent >= self.lens.len() {
            return 0;
        }
        let slot = &mut self.paths[usize::from(self.batch.path)];
        let Some(sender) = &mut slot.routing.sender else {
            self.sent = self.lens.len();
            return 0;
        };
        // One part a packet: the system pays for each.
        let places = self.packets.chunks_exact(DATA_HEAD_LEN + self.chunk_len).zip(&self.lens).skip(self.sent);
        let packets: Vec<_> = places.map(|(place, len)| Packet { head: &[], body: &place[..*len] }).collect();
        match sender.try_send(&packets) {
            Ok(count) => {
                let bytes: usize = packets[..count].iter().map(|packet| packet.body.len()).sum();
                self.sent += count;
                slot.bytes += bytes as u64;
                bytes as u64
            }
            Err(error) if error.kind == SendErrorKind::WouldBlock => 0,
            // They count as lost: the receiver does not see them.
            Err(error) => {
                self.sent = self.lens.len();
                if matches!(error.kind, SendErrorKind::TooLong { .. }) {
                    self.note_narrow(self.batch.path, error.to_string());
                }
                0
            }
        }
    }

    pub(super) fn is_blocked_at(&self, port: usize) -> bool {
        self.sent < self.lens.len()
            && self.paths[usize::from(self.batch.path)].routing.route().is_some_and(|route| route.port == port)
    }

    fn send_control(&mut self, now: Instant) {
        let mut packet = [0; CONTROL_PACKET_MAX];
        while let Some((path, len)) = self.core.poll_control(now, &mut packet) {
            self.paths[usize::from(path)].routing.send_control(&packet[..len]);
        }
    }

    fn tell_events(&mut self) {
        while let Some(event) = self.core.poll_event() {
            let news = match event {
                Event::PathUp { path, rtt } => {
                    News::PathUp { path, rtt, route: self.paths[usize::from(path)].routing.route().cloned() }
                }
                Event::PathDown { path } => News::PathDown { path, reason: "its marks are not answered".to_owned() },
                Event::PathNarrow { path } => {
                    self.note_narrow(path, "packets as long as these do not come through".to_owned());
                    self.tell_if_narrow();
                    continue;
                }
                Event::AllPathsDown => {
                    self.tell_if_narrow();
                    News::AllPathsDown
                }
                Event::AllCame => {
                    self.all_came = true;
                    continue;
                }
                // Whoever speaks with the receiver reads its receipt.
                Event::Round(_) | Event::Finished(_) => continue,
                Event::Ended { code, reason } => News::Failed(TransferError::Ended { code, reason }),
            };
            let _ = self.news.send(news);
        }
    }

    fn note_narrow(&mut self, path: u8, reason: String) {
        let slot = &mut self.paths[usize::from(path)];
        if !std::mem::replace(&mut slot.narrow, true) {
            let _ = self.news.send(News::PathDown { path, reason });
        }
    }

    /// Shorter packets would go on by a path, and these by none.
    fn tell_if_narrow(&self) {
        let is_any_up = self.core.paths().any(|path| path.is_up);
        if !is_any_up && self.paths.iter().any(|slot| slot.narrow) {
            let _ = self.news.send(News::Narrow);
        }
    }

    /// Whether everything came, since this was asked last.
    pub(super) fn take_all_came(&mut self) -> bool {
        std::mem::take(&mut self.all_came)
    }

    /// What it took of the uplink, in bytes a second, once it takes nothing more.
    pub(super) fn release(&mut self) -> Option<f64> {
        let is_first = !std::mem::replace(&mut self.is_released, true);
        Some(self.core.rate_bytes()).filter(|_| is_first)
    }

    /// Whether it sends nothing more, as far as is known, and has not said so.
    pub(super) fn is_to_be_released(&self) -> bool {
        !self.is_released && (self.over || self.core.has_all())
    }

    /// Unless it is over.
    pub(super) fn going(&mut self) -> Option<&mut Sender> {
        (!self.over).then_some(&mut self.core)
    }

    /// When there is something to do; asked after everything that could be done was.
    pub(super) fn due(&mut self, now: Instant) -> Option<Instant> {
        if self.over || self.sent < self.lens.len() {
            return None;
        }
        let due = self.core.deadline()?;
        if due > now {
            return Some(due);
        }
        // It waits for what is being read, which wakes it; or it has to keep to a limit.
        let limited = self.limit.as_mut().and_then(|limit| limit.next_send(self.chunk_len as u64, now));
        Some(limited.unwrap_or(now).max(now + STARVED))
    }

    pub(super) fn tell_progress(&mut self) {
        let progress = self.core.progress();
        let paths = self.core.paths().map(|state| {
            let slot = &self.paths[usize::from(state.path)];
            MeasuredPath {
                path: state.path,
                route: slot.routing.route().cloned(),
                is_up: state.is_up,
                bytes: slot.bytes,
                packets: Some(state.packets),
                rtt: state.is_up.then_some(state.rtt),
            }
        });
        let measured = Measured {
            done_bytes: (progress.came * self.chunk_len as u64).min(self.content_len),
            verified_bytes: None,
            round: Some(progress.round),
            sent_packets: progress.sent_packets,
            paths: paths.collect(),
        };
        let _ = self.news.send(News::Progress(measured));
    }
}
