//! One transfer that this end receives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_hercules::wire::message::{Message, Offer};
use anabranch_hercules::wire::seal::{DATA_HEAD_LEN, Head, Secret};
use anabranch_hercules::wire::{CHUNK_LEN_MAX, PATHS_MAX};
use anabranch_hercules::{Arrived, CONTROL_PACKET_MAX, ChunkSet, Misbehaviour, Receiver, ReceiverEvent, Refused, tree};
use tokio::sync::mpsc::UnboundedSender;

use super::interface::{Measured, MeasuredPath, News, Route};
use super::port::{From, Port};
use super::routing::Routing;
use crate::hercules::content::Destination;
use crate::hercules::disk::{Disk, Done};
use crate::hercules::events::TransferError;
use crate::hercules::poll::Waker;

/// A path of the caller's is knocked by until it is up, and any path again where nothing comes: first after so long, then twice as long
/// each time, up to the longest.
const KNOCK_WAIT_MIN: Duration = Duration::from_millis(20);
const KNOCK_WAIT_MAX: Duration = Duration::from_secs(1);
/// So long packets wait in the sockets for memory, as a disk may stall for a moment; then those of the transfer that has none are dropped,
/// since QUIC shares the sockets ...
const FULL_MAX: Duration = Duration::from_secs(1);
/// ... and so do other transfers, if there are any: their paths do not count as silent by then.
const FULL_AMONG_OTHERS_MAX: Duration = Duration::from_millis(200);
/// A path by which nothing came for so long is down, as far as a receiver can tell: the sender marks one each second.
const SILENCE: Duration = Duration::from_secs(4);

pub(super) struct Incoming {
    core: Receiver,
    disk: Disk,
    /// Where a packet is opened that has no place yet.
    beside: Vec<u8>,
    chunk_len: usize,
    content_len: u64,
    paths: [Slot; PATHS_MAX],
    news: UnboundedSender<News>,
    /// Everything is verified; told once it is recorded too.
    complete: Option<[u8; 32]>,
    /// There has been no memory for packets since then, and whether they are dropped.
    full_since: Option<Instant>,
    is_dropping: bool,
    over: bool,
}

#[derive(Default)]
struct Slot {
    routing: Routing,
    /// When to knock next; none where the other end begins, for as long as something comes.
    knock: Option<(Instant, Duration)>,
    heard: Option<Instant>,
    is_up: bool,
    rtt: Option<Duration>,
    bytes: u64,
}

impl Incoming {
    #[expect(clippy::too_many_arguments, reason = "it is made in one place")]
    pub(super) fn new(
        offer: Offer,
        secret: &Secret,
        claimed: ChunkSet,
        destination: &Arc<dyn Destination>,
        memory_bytes: u64,
        waker: &Waker,
        news: UnboundedSender<News>,
        now: Instant,
    ) -> Result<Self, TransferError> {
        let core = Receiver::with_claims(offer, ChunkSet::new(0), claimed, now);
        let mut core = core.map_err(|error| TransferError::Misbehaviour(Misbehaviour::Wire(error)))?;
        for index in 0..PATHS_MAX as u8 {
            core.add_path(index, secret, now);
        }
        let disk = Disk::start(destination, offer.content_len, memory_bytes, waker);
        let disk = disk.map_err(|error| TransferError::Unreachable(format!("cannot start a thread: {error}")))?;
        Ok(Self {
            core,
            disk,
            beside: vec![0; CHUNK_LEN_MAX.into()],
            chunk_len: offer.chunk_len.into(),
            content_len: offer.content_len,
            paths: std::array::from_fn(|_| Slot::default()),
            news,
            complete: None,
            full_since: None,
            is_dropping: false,
            over: false,
        })
    }

    /// A path goes this way, which this end chose and by which it begins, or where packets showed that it leads.
    pub(super) fn set_route(&mut self, index: u8, route: Route, is_own: bool, ports: &[Port]) {
        let Some(slot) = self.paths.get_mut(usize::from(index)) else { return };
        slot.routing.set(route, is_own, ports);
        if is_own {
            slot.knock = Some((Instant::now(), KNOCK_WAIT_MIN));
        }
    }

    pub(super) fn settle_routes(&mut self, ports: &[Port]) {
        for index in 0..PATHS_MAX {
            if let Some(route) = self.paths[index].routing.take_learned() {
                self.set_route(index as u8, route, false, ports);
            }
        }
    }

    pub(super) fn on_message(&mut self, message: Message) {
        let done = self.core.on_message(message);
        if let Err(misbehaviour) = done {
            self.fail(misbehaviour.into());
        }
    }

    /// From now on in at most so many bytes of memory.
    pub(super) fn set_memory(&mut self, memory_bytes: u64) {
        self.disk.set_memory(memory_bytes);
    }

    /// Whether a call's worth of packets may be taken from the sockets: there is memory for them, or has not been any for so long that they
    /// are dropped. `is_alone`: there are no other transfers.
    pub(super) fn may_receive(&mut self, now: Instant, is_alone: bool) -> bool {
        let is_full = !self.over && !self.disk.has_room();
        let max = if is_alone { FULL_MAX } else { FULL_AMONG_OTHERS_MAX };
        self.full_since = is_full.then(|| self.full_since.unwrap_or(now));
        self.is_dropping = self.full_since.is_some_and(|since| now >= since + max);
        !is_full || self.is_dropping
    }

    /// A packet of data lies in the sockets' memory, `fields` being what its head says. It is opened into its place, where that is in memory
    /// already and has nothing yet; else beside it.
    pub(super) fn on_data(&mut self, fields: &Head, head: &[u8; DATA_HEAD_LEN], sealed: &[u8], now: Instant) {
        if self.over || self.is_dropping {
            return;
        }
        let start = fields.chunk.saturating_mul(self.chunk_len as u64);
        // What makes no sense is for the core to judge.
        if start < self.content_len && !self.disk.has_place(start) {
            return;
        }
        let place =
            if self.core.lacks(fields.chunk, sealed.len()) { self.disk.place(start, sealed.len()) } else { None };
        let is_in_place = place.is_some();
        let Some(place) = place.or_else(|| self.beside.get_mut(..sealed.len())) else { return };
        match self.core.on_data_into(head, sealed, place, now) {
            Ok(Arrived::Chunk { path, write, .. }) => {
                let slot = &mut self.paths[usize::from(path)];
                slot.bytes += (head.len() + sealed.len()) as u64;
                slot.heard = Some(now);
                if write.is_empty() {
                    self.disk.repeated += sealed.len() as u64;
                    return;
                }
                if is_in_place {
                    self.disk.filled(start, sealed.len());
                } else {
                    let (from, to) = ((write.start - start) as usize, (write.end - start) as usize);
                    self.disk.put(write.start, &self.beside[from..to]);
                }
                self.tell_events();
            }
            Ok(Arrived::Control { .. }) | Err(Refused::Dropped(_)) => {}
            Err(Refused::Misbehaviour(misbehaviour)) => self.fail(misbehaviour.into()),
        }
    }

    pub(super) fn on_control(&mut self, packet: &mut [u8], from: &From<'_>, now: Instant) {
        // An answer to a mark would say that all data is lost and nothing else, as of a path that swallows long packets.
        if self.is_dropping {
            return;
        }
        match self.core.on_datagram(packet, now) {
            Ok(Arrived::Control { path } | Arrived::Chunk { path, .. }) => {
                let slot = &mut self.paths[usize::from(path)];
                slot.heard = Some(now);
                slot.routing.heard(from);
                if self.core.is_up(path) && !std::mem::replace(&mut slot.is_up, true) && slot.rtt.is_some() {
                    // It was up before.
                    let (rtt, route) = (slot.rtt.unwrap_or_default(), slot.routing.route().cloned());
                    let _ = self.news.send(News::PathUp { path, rtt, route });
                }
            }
            Err(Refused::Dropped(_)) => {}
            Err(Refused::Misbehaviour(misbehaviour)) => self.fail(misbehaviour.into()),
        }
    }

    fn fail(&mut self, error: TransferError) {
        if !std::mem::replace(&mut self.over, true) {
            let _ = self.news.send(News::Failed(error));
        }
    }

    pub(super) fn drive(&mut self, now: Instant) {
        if self.over {
            return;
        }
        while let Some(done) = self.disk.poll() {
            match done {
                Done::Hashed { span, hash } => self.core.on_span_hash(span, hash),
                Done::Room(what) => _ = self.news.send(News::Room(what)),
                Done::Failed(error) => return self.fail(error.into()),
                Done::Written { .. } | Done::Recorded => {}
            }
            self.tell_events();
        }
        self.tell_events();
        if self.disk.is_idle()
            && let Some(root) = self.complete.take()
        {
            let _ = self.news.send(News::Complete { root, repeated_bytes: self.disk.repeated });
        }
        for index in 0..PATHS_MAX {
            let slot = &mut self.paths[index];
            if self.is_dropping {
                // Who does not listen has not been told anything.
                slot.heard = slot.heard.map(|_| now);
            }
            if slot.is_up && slot.heard.is_some_and(|heard| now >= heard + SILENCE) {
                slot.is_up = false;
                // Either end may have another address since.
                slot.knock.get_or_insert((now, KNOCK_WAIT_MIN));
                let reason = "nothing comes by it".to_owned();
                let _ = self.news.send(News::PathDown { path: index as u8, reason });
                if !self.paths.iter().any(|slot| slot.is_up) {
                    let _ = self.news.send(News::AllPathsDown);
                }
            }
            let slot = &mut self.paths[index];
            if let Some((_, wait)) = slot.knock.filter(|(due, _)| now >= *due && !slot.is_up) {
                slot.knock = Some((now + wait, (wait * 2).min(KNOCK_WAIT_MAX)));
                self.core.knock(index as u8);
            }
        }
        let mut packet = [0; CONTROL_PACKET_MAX];
        while let Some((path, len)) = self.core.poll_control(now, &mut packet) {
            self.paths[usize::from(path)].routing.send_control(&packet[..len]);
        }
        while let Some(message) = self.core.poll_message() {
            let _ = self.news.send(News::Say(message));
        }
    }

    fn tell_events(&mut self) {
        while let Some(event) = self.core.poll_event() {
            match event {
                ReceiverEvent::PathUp { path, rtt } => {
                    let slot = &mut self.paths[usize::from(path)];
                    (slot.is_up, slot.rtt) = (true, Some(rtt));
                    let route = slot.routing.next_route().cloned();
                    let _ = self.news.send(News::PathUp { path, rtt, route });
                }
                ReceiverEvent::SpanCame(span) => self.disk.span_came(span),
                ReceiverEvent::SpanKept(span) => self.disk.record(span),
                ReceiverEvent::Complete { root } => self.complete = Some(root),
                ReceiverEvent::Ended { code, reason } => self.fail(TransferError::Ended { code, reason }),
            }
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let knocks = self.paths.iter().filter_map(|slot| slot.knock.filter(|_| !slot.is_up).map(|(due, _)| due));
        self.core.deadline().into_iter().chain(knocks).min()
    }

    pub(super) fn tell_progress(&mut self) {
        let (came, _) = self.core.progress();
        let kept = self.core.kept();
        let paths = (0..).zip(&self.paths).filter(|(_, slot)| slot.routing.route().is_some());
        let paths = paths.map(|(path, slot)| MeasuredPath {
            path,
            route: slot.routing.route().cloned(),
            is_up: slot.is_up,
            bytes: slot.bytes,
            packets: None,
            rtt: slot.rtt,
        });
        let measured = Measured {
            done_bytes: (came * self.chunk_len as u64).min(self.content_len),
            verified_bytes: Some((kept.len() * tree::span_len(self.content_len)).min(self.content_len)),
            round: None,
            sent_packets: 0,
            paths: paths.collect(),
        };
        let _ = self.news.send(News::Progress(measured));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use anabranch_hercules::wire::receipt::Receipt;
    use anabranch_hercules::wire::seal::{Kind, SECRET_LEN, Sealer};
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;
    use crate::hercules::content::DestinationError;
    use crate::hercules::poll;

    const CHUNK_LEN: u16 = 16_384;
    const CONTENT_LEN: u64 = 16 << 20;

    /// A disk that takes nothing while the test holds this.
    #[derive(Default)]
    struct Stuck(Mutex<()>);

    impl Destination for Stuck {
        fn kept(&self) -> ChunkSet {
            ChunkSet::new(0)
        }

        fn write(&self, _: u64, _: &[u8]) -> Result<(), DestinationError> {
            drop(self.0.lock().unwrap());
            Ok(())
        }

        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), DestinationError> {
            Ok(())
        }

        fn span_kept(&self, _: u64, _: &[u8; 32]) -> Result<(), DestinationError> {
            Ok(())
        }

        fn finish(&self, _: &Receipt) -> Result<(), DestinationError> {
            Ok(())
        }
    }

    struct Bench {
        incoming: Incoming,
        news: UnboundedReceiver<News>,
        sealer: Sealer,
        number: u64,
        now: Instant,
    }

    impl Bench {
        /// With memory for four pages.
        fn to(disk: &Arc<Stuck>) -> Self {
            let offer = Offer {
                transfer: 1,
                chunk_len: CHUNK_LEN,
                content_len: CONTENT_LEN,
                manifest_len: 0,
                manifest_hash: [0; 32],
            };
            let (secret, now) = (Secret::new(1, &[1; SECRET_LEN]), Instant::now());
            let destination: Arc<dyn Destination> = Arc::clone(disk) as _;
            let (told, news) = unbounded_channel();
            let (waker, _) = poll::waker().unwrap();
            let claimed = ChunkSet::new(0);
            let incoming = Incoming::new(offer, &secret, claimed, &destination, 4 << 20, &waker, told, now).unwrap();
            Self { incoming, news, sealer: Sealer::new(&secret, Kind::Data, 0), number: 0, now }
        }

        /// A chunk comes; whether it is taken.
        fn chunk(&mut self, chunk: u64) -> bool {
            let (mut head, mut body) = ([0; DATA_HEAD_LEN], vec![7; CHUNK_LEN.into()]);
            self.sealer.seal_chunk(self.number, chunk, &mut body, &mut head);
            self.number += 1;
            let before = self.incoming.core.progress().0;
            let fields = Head::peek(&head).unwrap();
            self.incoming.on_data(&fields, &head, &body, self.now);
            self.incoming.core.progress().0 > before
        }

        /// Chunks come in order until there is no memory for more; how many.
        fn fill(&mut self) -> u64 {
            let mut chunk = 0;
            while self.incoming.may_receive(self.now, true) {
                assert!(self.chunk(chunk) && chunk < CONTENT_LEN / u64::from(CHUNK_LEN));
                chunk += 1;
            }
            chunk
        }
    }

    #[test]
    fn where_there_is_no_memory_packets_wait_for_a_moment_and_then_are_dropped() {
        let disk = Arc::<Stuck>::default();
        let held = disk.0.lock().unwrap();
        let mut bench = Bench::to(&disk);
        let next = bench.fill();
        assert!(next * u64::from(CHUNK_LEN) > 2 << 20, "{next} chunks came");
        for (is_alone, max) in [(false, FULL_AMONG_OTHERS_MAX), (true, FULL_MAX)] {
            let began = bench.incoming.full_since.unwrap();
            assert!(!bench.incoming.may_receive(began + max - Duration::from_millis(1), is_alone));
            assert!(bench.incoming.may_receive(began + max, is_alone) && !bench.chunk(next));
        }
        // The disk takes something again.
        drop(held);
        let began = Instant::now();
        while bench.incoming.is_dropping && began.elapsed() < Duration::from_secs(20) {
            bench.incoming.drive(bench.now);
            assert!(bench.incoming.may_receive(bench.now + FULL_MAX, true));
            std::thread::yield_now();
        }
        assert!(bench.chunk(next), "the same comes again, and is taken");
    }

    #[test]
    fn what_is_forged_touches_no_byte_that_came() {
        let mut bench = Bench::to(&Arc::default());
        let len = usize::from(CHUNK_LEN);
        assert!(bench.chunk(1) && bench.chunk(3) && bench.chunk(4));
        let came =
            |bench: &mut Bench| [1, 3, 4].map(|at| bench.incoming.disk.place(at * len as u64, len).unwrap().to_vec());
        let before = came(&mut bench);
        assert!(before.iter().all(|bytes| bytes.iter().all(|byte| *byte == 7)));
        let Bench { sealer, .. } = &mut bench;
        let (mut head, mut body) = ([0; DATA_HEAD_LEN], vec![9; len]);
        sealer.seal_chunk(1000, 2, &mut body, &mut head);
        for forged_len in [0, 1, len - 1, len, len + 1, 3 * len] {
            for chunk in [0, 1, 2, 3] {
                let fields = Head { chunk, ..Head::peek(&head).unwrap() };
                let mut head = head;
                head[12..18].copy_from_slice(&chunk.to_be_bytes()[2..]);
                bench.incoming.on_data(&fields, &head, &vec![0xee; forged_len], bench.now);
                assert!(came(&mut bench) == before, "{forged_len} bytes for chunk {chunk}");
            }
        }
        assert!(bench.chunk(2) && bench.chunk(0), "what was forged may still come");
        assert_eq!(bench.incoming.disk.place(2 * len as u64, len).unwrap(), vec![7; len]);
    }

    #[test]
    fn a_path_whose_packets_are_dropped_is_not_taken_for_silent() {
        let disk = Arc::<Stuck>::default();
        for is_full in [true, false] {
            let held = is_full.then(|| disk.0.lock().unwrap());
            let mut bench = Bench::to(&disk);
            let slot = &mut bench.incoming.paths[0];
            (slot.is_up, slot.heard) = (true, Some(bench.now));
            if is_full {
                bench.fill();
            }
            for _ in 0..10 {
                bench.now += SILENCE / 2;
                assert!(bench.incoming.may_receive(bench.now, true));
                bench.incoming.drive(bench.now);
            }
            let mut news = std::iter::from_fn(|| bench.news.try_recv().ok());
            let is_down = news.any(|news| matches!(news, News::PathDown { .. } | News::AllPathsDown));
            assert_eq!(is_down, !is_full);
            drop(held);
        }
    }
}
