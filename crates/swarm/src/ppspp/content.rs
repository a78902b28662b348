//! One content at work in PPSPP: its core, its files, and what moves between them and the sockets.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anabranch_bittorrent::PeerKey;
use anabranch_content::bitfield::Bitfield;
use anabranch_content::geometry::BlockRange;
use anabranch_content::info::{Info, InfoHashes};
use anabranch_content::storage::{ResumeStore, Storage};
use anabranch_paths::{Endpoint, Host};
use anabranch_ppspp::link::Link;
use anabranch_ppspp::picker::Picker;
use anabranch_ppspp::swarm::{Allowance, Event as CoreEvent, Swarm, Transmit};
use anabranch_transport::datagram::Packet;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::hub::{Hub, TooLong, Way};
use super::nodes::Nodes;
use super::peers::Peers;
use super::rates::Rates;
use super::{finish, open};
use crate::bittorrent::torrent::Work;
use crate::config::AddOptions;
use crate::events::{Event, EventKind, FailureKind, PauseCause, TorrentId};
use crate::limits::Share;
use crate::net::conn_handle::ConnHandle;
use crate::resources::Resources;
use crate::store::buffers::{NoPlace, PieceBuffers};
use crate::store::disk::{Reply, SpillJob, VerifyJob};
use crate::store::readahead;
use crate::store::readers::{Readable, Readers};

/// Packets that leave with one call: two full bursts.
const SEND_MAX: usize = 128;
/// Bytes of chunks read for one call.
const SEND_BYTES_MAX: usize = 128 * 1024;
/// How soon a full socket is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(1);
/// What peers are told to be called by: they say nothing of themselves in this protocol.
const CLIENT: &[u8; 20] = b"PPSPP               ";

/// A content that its tasks share. All tasks run on one thread, and none holds a borrow across an await.
#[derive(Clone)]
pub(crate) struct Handle(Rc<RefCell<Content>>);

impl Handle {
    /// Wraps the state.
    pub(crate) fn new(mut state: Content) -> Self {
        Self(Rc::new_cyclic(|me| {
            state.me = me.clone();
            RefCell::new(state)
        }))
    }

    /// The content, where it is still there.
    pub(crate) fn upgrade(weak: &Weak<RefCell<Content>>) -> Option<Self> {
        weak.upgrade().map(Self)
    }

    /// For those who read it.
    pub(crate) fn readable(&self) -> Rc<RefCell<dyn Readable>> {
        Rc::clone(&self.0) as _
    }

    /// For whoever does not keep it.
    pub(crate) fn downgrade(&self) -> Weak<RefCell<Content>> {
        Rc::downgrade(&self.0)
    }

    /// Looks in.
    pub(crate) fn borrow(&self) -> Ref<'_, Content> {
        self.0.borrow()
    }

    /// Changes it.
    pub(crate) fn borrow_mut(&self) -> RefMut<'_, Content> {
        self.0.borrow_mut()
    }
}

/// Everything about one content.
pub(crate) struct Content {
    /// Its number.
    pub id: TorrentId,
    /// What it is, as its link tells; the length is filled in when it is proven.
    pub link: Link,
    /// The protocol.
    pub core: Swarm<Way, Nodes>,
    /// The owner's choices.
    pub options: AddOptions,
    /// Whom it knows.
    pub peers: Peers,
    /// Its description to the store, once the length is known.
    pub info: Option<Arc<Info>>,
    /// Its files, once open.
    pub storage: Option<Arc<Storage>>,
    /// The record of verified pieces, once open; none where files are only read.
    pub resume: Option<Arc<ResumeStore>>,
    /// Pieces under way.
    pub buffers: Option<PieceBuffers>,
    /// Pieces that are written.
    pub have: Bitfield,
    /// What goes on with its files.
    pub work: Option<Work>,
    /// Trackers that are asked, or will be again.
    pub trackers_left: usize,
    /// Trackers are to be asked as soon as they allow.
    pub is_announce_due: bool,
    /// The task that talks to trackers has not said farewell yet.
    pub is_announcing: bool,
    /// Wakes the task that keeps the core's time.
    pub wake: Rc<Notify>,
    /// Wakes those who wait for a piece to read it.
    pub arrived: Rc<Notify>,
    /// Who reads it.
    pub(super) readers: Readers,
    /// Wakes the task that talks to trackers.
    pub announce: Rc<Notify>,
    /// Set when the content ends: nothing new begins.
    pub stopping: bool,
    /// It is being removed from the session.
    pub is_leaving: bool,
    /// The owner has it wait.
    pub is_paused_by_owner: bool,
    /// Everything is there, and told.
    pub is_finished: bool,
    /// Set when checks are not waited for any more.
    pub cancel: Arc<AtomicBool>,
    /// Traffic.
    pub rates: Rates,
    pub(super) store: Stored,
    hub: Rc<Hub>,
    resources: Rc<Resources>,
    conns: HashMap<Way, Conn>,
    /// Chunks that leave when the disk has them, or the socket has room.
    held_back: VecDeque<Transmit<Way>>,
    is_warming: bool,
    is_socket_full: bool,
    scratch: Vec<u8>,
    deadlines: BTreeMap<u32, Instant>,
    conn_next: u32,
    me: Weak<RefCell<Self>>,
    tasks: RefCell<JoinSet<()>>,
}

/// What is on its way to the disk.
#[derive(Default)]
pub(super) struct Stored {
    /// Chunks that a piece under way still lacks.
    pub left: HashMap<u32, u32>,
    /// Complete pieces that wait for a spill to end.
    pub waiting: Vec<u32>,
    /// What storage refused, to be handed in again when it works.
    pub stalled: Vec<Stalled>,
    /// Pieces and spills at the disk threads.
    pub verifying: u32,
    pub spilling: u32,
    /// One of them is a probe: whether storage works again.
    pub is_probing: bool,
    /// Storage took something of ours.
    pub has_written: bool,
    /// Storage is out of order.
    pub is_paused: bool,
}

/// A job that storage refused.
pub(super) enum Stalled {
    Piece(Box<VerifyJob>),
    Spill(Box<SpillJob>),
}

/// A peer's channel, as limits see it.
struct Conn {
    down: Share,
    up: Share,
    key: PeerKey,
    /// Bytes that were counted already.
    asked_bytes: u64,
    sent_bytes: u64,
    handle: Rc<ConnHandle>,
    /// How fast it moves, and what was counted for that.
    rates: Rates,
    /// The owner knows that chunks do not fit its way.
    is_told: bool,
}

impl Drop for Conn {
    /// The task that waits for its turn ends.
    fn drop(&mut self) {
        self.handle.close(String::new());
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        self.hub.remove(self.id);
        self.resources.down.remove_content(self.id.0);
        self.resources.up.remove_content(self.id.0);
    }
}

impl Content {
    /// A content whose files are not open yet.
    pub(crate) fn new(
        id: TorrentId,
        link: Link,
        core: Swarm<Way, Nodes>,
        options: AddOptions,
        (resources, hub): (Rc<Resources>, Rc<Hub>),
    ) -> Self {
        let now = Instant::now();
        resources.down.add_content(id.0, options.limit_down, now);
        resources.up.add_content(id.0, options.limit_up, now);
        Self {
            id,
            link,
            core,
            options,
            peers: Peers::default(),
            info: None,
            storage: None,
            resume: None,
            buffers: None,
            have: Bitfield::new(0),
            work: None,
            trackers_left: 0,
            is_announce_due: false,
            is_announcing: false,
            wake: Rc::default(),
            arrived: Rc::default(),
            readers: Readers::default(),
            announce: Rc::default(),
            stopping: false,
            is_leaving: false,
            is_paused_by_owner: false,
            is_finished: false,
            cancel: Arc::default(),
            rates: Rates::new(),
            store: Stored::default(),
            hub,
            resources,
            conns: HashMap::new(),
            held_back: VecDeque::new(),
            is_warming: false,
            is_socket_full: false,
            scratch: Vec::new(),
            deadlines: BTreeMap::new(),
            conn_next: 0,
            me: Weak::new(),
            tasks: RefCell::default(),
        }
    }

    /// What it shares with the session's other contents.
    pub(crate) fn resources(&self) -> Rc<Resources> {
        Rc::clone(&self.resources)
    }

    /// The sockets.
    pub(crate) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// This content, for a task of it.
    pub(crate) fn this(&self) -> Option<Handle> {
        Handle::upgrade(&self.me)
    }

    /// Runs a task of this content: it ends with the content.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_local(task);
    }

    /// Ends whatever is still at work for this content.
    pub(crate) fn end(&mut self) {
        self.tasks.get_mut().abort_all();
    }

    /// Tells the owner.
    pub(crate) fn tell(&self, kind: EventKind) {
        self.resources.tell(Event { torrent: self.id, kind });
    }

    /// As trackers and records name it.
    pub(crate) fn hashes(&self) -> InfoHashes {
        open::hashes(&self.link)
    }

    /// Open channels.
    pub(crate) fn conn_count(&self) -> usize {
        self.conns.len()
    }

    /// Whether disk threads have something of it.
    pub(crate) fn is_busy(&self) -> bool {
        self.store.verifying > 0 || self.store.spilling > 0
    }

    /// Whether nothing moves, by the owner's wish or the disk's.
    pub(crate) fn is_held(&self) -> bool {
        self.is_paused_by_owner || self.store.is_paused || self.work.is_some()
    }

    /// What is chosen anew after a pause, or what ended one.
    pub(crate) fn update_hold(&mut self) {
        let is_held = self.is_held() || self.stopping;
        self.core.set_paused(is_held);
        self.wake.notify_one();
    }

    /// Its owner has it wait: channels end, nobody is dialled, trackers are told that we left.
    pub(crate) fn pause(&mut self) {
        if !std::mem::replace(&mut self.is_paused_by_owner, true) {
            self.update_hold();
            self.close_all(Instant::now());
            self.announce.notify_one();
            self.tell(EventKind::Paused { cause: PauseCause::Owner, reason: "its owner has it wait".to_owned() });
        }
    }

    /// The owner lets it go on.
    pub(crate) fn resume(&mut self) {
        if std::mem::take(&mut self.is_paused_by_owner) {
            self.update_hold();
            self.announce.notify_one();
            if !self.is_held() {
                self.tell(EventKind::Resumed);
            }
        }
    }

    /// Leaves: channels are closed, trackers are told, and all tasks of this content come to their end.
    pub(crate) fn stop(&mut self) {
        self.stopping = true;
        self.cancel.store(true, Ordering::Relaxed);
        self.close_all(Instant::now());
        self.announce.notify_one();
        self.arrived.notify_waiters();
        self.wake.notify_one();
    }

    /// Closes all channels, and says so.
    pub(crate) fn close_all(&mut self, now: Instant) {
        let ways: Vec<Way> = self.core.peers().copied().collect();
        ways.iter().for_each(|way| self.core.disconnect(way));
        self.pump(now);
    }

    /// This content ends here. What was verified before is on disk and recorded.
    pub(crate) fn fail(&mut self, kind: FailureKind, reason: String) {
        if self.stopping {
            return;
        }
        self.store.stalled.clear();
        self.store.waiting.clear();
        self.buffers = None;
        self.tell(EventKind::Failed { kind, reason });
        self.stop();
    }

    /// A job or task of ours panicked: a fault of this program.
    pub(crate) fn panicked(&mut self) {
        (self.store.verifying, self.store.spilling) = (0, 0);
        let reason = "a fault in anabranch stopped it, standard error says where: please report that. What was verified is \
                      kept: the same command goes on from there";
        self.fail(FailureKind::Internal, reason.to_owned());
    }

    /// Gives up its files: whoever has them closes them.
    pub(crate) fn give_up_files(&mut self) -> (Option<Arc<ResumeStore>>, Option<Arc<Storage>>) {
        self.store.stalled.clear();
        self.store.waiting.clear();
        self.buffers = None;
        // What it proves was brought there before it was recorded; the rest is to be had again.
        let _ = self.core.tree().nodes().flush();
        (self.resume.take(), self.storage.take())
    }

    // ---- what comes ----

    /// Datagrams came.
    pub(crate) fn received(&mut self, datagrams: &[(Way, &[u8])], now: Instant) {
        if self.stopping {
            return;
        }
        let mut chunks = Vec::new();
        self.core.datagrams(now, datagrams, &mut chunks);
        for (chunk, payload) in chunks {
            self.rates.received(payload.len() as u64, now);
            self.keep(chunk, payload, now);
        }
        self.pump(now);
    }

    /// A verified chunk goes to its piece.
    fn keep(&mut self, chunk: u64, payload: &[u8], now: Instant) {
        let (Some(buffers), Some(info)) = (&mut self.buffers, &self.info) else { return self.core.store_failed(chunk) };
        let geometry = &info.geometry;
        let offset = chunk * u64::from(geometry.block_length());
        let piece = geometry.piece_at(offset);
        let begin = (offset - geometry.piece_offset(piece)) as u32;
        match buffers.insert(BlockRange { piece, begin, len: payload.len() as u32 }, payload, now) {
            Ok(()) => {}
            // It is there, or on its way to the disk: what it counts for is settled there.
            Err(NoPlace::Here | NoPlace::Arriving) => return,
            Err(NoPlace::NoMemory | NoPlace::Outside) => {
                self.core.store_failed(chunk);
                return self.relieve_memory();
            }
        }
        let left = self.store.left.entry(piece).or_insert_with(|| geometry.block_count(piece));
        *left -= 1;
        if *left == 0 {
            self.store.left.remove(&piece);
            self.verify(piece);
        }
    }

    // ---- what leaves ----

    /// Carries out what the core wants, as far as anything does.
    pub(crate) fn pump(&mut self, now: Instant) {
        self.update_room();
        self.channels();
        while let Some(event) = self.core.event() {
            self.on_event(event, now);
        }
        self.transmit();
    }

    fn channels(&mut self) {
        for (channel, is_open) in self.core.take_channel_changes() {
            if !is_open {
                self.hub.leave_channel(channel, self.id);
            } else if !self.hub.take_channel(channel, self.id) {
                // One in four thousand million: the peer tries again, or we do.
                self.core.drop_channel(channel);
            }
        }
    }

    fn on_event(&mut self, event: CoreEvent<Way>, now: Instant) {
        match event {
            CoreEvent::Opened(way) => {
                let address = Endpoint::from(way.remote);
                let outgoing = self.peers.reached(way.remote, now);
                self.attach(way, now);
                self.tell(EventKind::PeerConnected { address, outgoing, peer_id: *CLIENT });
            }
            CoreEvent::Closed(way) => {
                let address = Endpoint::from(way.remote);
                let was_open = self.conns.remove(&way).is_some();
                let reason = if was_open { "the channel was closed" } else { "it does not answer" };
                self.tell(EventKind::PeerDisconnected { address, reason: reason.to_owned() });
                if let Some(is_final) = self.peers.failed(way.remote, reason, was_open, now) {
                    self.tell(EventKind::PeerFailed { address, reason: reason.to_owned(), is_final });
                }
                self.held_back.retain(|transmit| transmit.peer != way);
                self.announce.notify_one();
            }
            CoreEvent::Liar(way) => {
                let reason = "it sent a chunk that is not the content's".to_owned();
                self.peers.ban(way.remote);
                self.tell(EventKind::PeerBanned { address: way.remote.into(), reason });
            }
            CoreEvent::Found(address) => {
                let config = &self.resources.config;
                if config.pex && !config.filter.blocks(&address.into()) {
                    self.peers.heard(address, now);
                }
            }
            CoreEvent::Size(chunks) => {
                let (len, last) = (self.link.params.chunk_len(), self.core.last_chunk_len());
                if let (Some(len), Some(last), None) = (len, last, self.link.content_len) {
                    self.link.content_len = Some((chunks - 1) * u64::from(len) + last as u64);
                    open::begin(self, None);
                }
            }
            CoreEvent::Complete => finish::finished(self),
        }
    }

    fn attach(&mut self, way: Way, now: Instant) {
        let handle = Rc::new(ConnHandle::new(Host::of(&way.remote.into()), now));
        let config = &self.resources.config;
        let down = self.resources.down.share(self.id.0, config.peer_limit_down, &handle, now);
        let up = self.resources.up.share(self.id.0, config.peer_limit_up, &handle, now);
        self.conn_next += 1;
        let key = PeerKey(self.conn_next);
        let (woken, wake) = (Rc::clone(&handle), Rc::clone(&self.wake));
        self.spawn(async move {
            while !woken.is_closing() {
                woken.notified().await;
                wake.notify_one();
            }
        });
        let rates = Rates::new();
        self.conns.insert(way, Conn { down, up, key, asked_bytes: 0, sent_bytes: 0, handle, rates, is_told: false });
    }

    /// What limits let through.
    fn allow(&mut self, now: Instant) {
        if self.conns.values().all(|conn| !conn.down.is_limited() && !conn.up.is_limited()) {
            return;
        }
        let mut allowed = Vec::new();
        for stats in self.core.peer_stats() {
            let Some(conn) = self.conns.get_mut(stats.peer) else { continue };
            conn.down.spend(stats.asked_bytes - std::mem::replace(&mut conn.asked_bytes, stats.asked_bytes));
            conn.up.spend(stats.uploaded_bytes - std::mem::replace(&mut conn.sent_bytes, stats.uploaded_bytes));
            let key = conn.key;
            let down_bytes = match stats.is_wanted && !stats.chokes_us {
                true => conn.down.available(|| (key, true), now),
                false => {
                    conn.down.rest();
                    0
                }
            };
            let up_bytes = match stats.wants {
                true => conn.up.available(|| (key, true), now),
                false => {
                    conn.up.rest();
                    0
                }
            };
            allowed.push((*stats.peer, Allowance { up_bytes, down_bytes }));
        }
        for (way, allowance) in allowed {
            self.core.set_allowance(&way, allowance, now);
        }
    }

    fn transmit(&mut self) {
        loop {
            let mut left: VecDeque<Transmit<Way>> = VecDeque::new();
            while left.len() < SEND_MAX
                && let Some(transmit) = self.core.transmit()
            {
                left.push_back(transmit);
            }
            let is_last = left.is_empty();
            if !self.is_warming {
                // What was held back goes first.
                let late = std::mem::take(&mut self.held_back);
                left = late.into_iter().chain(left).collect();
            }
            while let Some(first) = left.front() {
                let way = first.peer;
                let count = left.iter().take(SEND_MAX).take_while(|transmit| transmit.peer == way).count();
                let rest = left.split_off(count);
                let unsent = self.send(way, left);
                self.held_back.extend(unsent);
                left = rest;
            }
            if is_last {
                return;
            }
        }
    }

    /// Sends datagrams to one peer; gives back what has to wait.
    fn send(&mut self, way: Way, mut transmits: VecDeque<Transmit<Way>>) -> VecDeque<Transmit<Way>> {
        if self.is_socket_full {
            return transmits;
        }
        let mut later = VecDeque::new();
        let mut bodies: Vec<std::ops::Range<usize>> = Vec::with_capacity(transmits.len());
        self.scratch.clear();
        let mut at = 0;
        while at < transmits.len() {
            let Some(chunk) = transmits[at].chunk else {
                bodies.push(0..0);
                at += 1;
                continue;
            };
            // Chunks that follow each other are read together.
            let next = |(ahead, transmit): (usize, &Transmit<Way>)| transmit.chunk == Some(chunk + ahead as u64);
            let run = transmits.iter().skip(at).enumerate().take_while(|found| next(*found)).count();
            match self.read(chunk, run) {
                Some(start) => {
                    let len = self.link.params.chunk_len().unwrap_or(0) as usize;
                    let end = self.scratch.len();
                    bodies.extend((0..run).map(|ahead| start + ahead * len..(start + (ahead + 1) * len).min(end)));
                    at += run;
                }
                None if self.is_warming => {
                    later.extend(transmits.drain(at..at + run));
                }
                // What cannot be read is not there.
                None => drop(transmits.drain(at..at + run)),
            }
        }
        let packets: Vec<Packet<'_>> = transmits
            .iter()
            .zip(&bodies)
            .map(|(transmit, body)| Packet { head: &transmit.datagram, body: &self.scratch[body.clone()] })
            .collect();
        let (mut sent, mut is_too_long) = (0, false);
        while sent < packets.len() {
            match self.hub.send(&way, &packets[sent..]) {
                Ok(0) => break,
                Ok(count) => sent += count,
                Err(TooLong) => {
                    is_too_long |= transmits[sent].chunk.is_some();
                    sent += 1;
                }
            }
        }
        let payload: usize = bodies[..sent].iter().map(std::ops::Range::len).sum();
        self.rates.sent(payload as u64, Instant::now());
        if is_too_long && self.conns.get_mut(&way).is_some_and(|conn| !std::mem::replace(&mut conn.is_told, true)) {
            let reason = "its way does not take datagrams as long as this content's chunks: share it anew with a shorter \
                          --chunk-length";
            self.tell(EventKind::PeerFailed { address: way.remote.into(), reason: reason.to_owned(), is_final: true });
        }
        if sent < transmits.len() {
            self.is_socket_full = true;
            later.extend(transmits.split_off(sent));
        }
        later
    }

    /// Reads a run of chunks behind what is in the scratch already; answers where they begin there. `None` where they are not
    /// to be had now, or not at all.
    fn read(&mut self, chunk: u64, run: usize) -> Option<usize> {
        let (storage, info) = (self.storage.clone()?, self.info.as_ref()?);
        let block = u64::from(info.geometry.block_length());
        let (offset, total) = (chunk * block, info.geometry.total());
        let len = (run as u64 * block).min(total.checked_sub(offset)?);
        let start = self.scratch.len();
        if start + len as usize > SEND_BYTES_MAX.max(block as usize) * 2 {
            // Never more than two bursts' worth of the longest chunks.
            self.scratch.reserve_exact(len as usize);
        }
        if !readahead::is_cached(&storage, offset, len) {
            self.warm(storage, offset, len, total);
            return None;
        }
        self.scratch.resize(start + len as usize, 0);
        match storage.read_at(offset, &mut self.scratch[start..]) {
            Ok(()) => Some(start),
            Err(error) => {
                self.scratch.truncate(start);
                self.lost(chunk, &error.to_string());
                None
            }
        }
    }

    /// Has a disk thread read what is to be sent.
    fn warm(&mut self, storage: Arc<Storage>, offset: u64, len: u64, end: u64) {
        if std::mem::replace(&mut self.is_warming, true) {
            return;
        }
        let content = self.id;
        let conn = anabranch_paths::ConnId(0);
        self.resources.disk.run(content, move || {
            readahead::read(&storage, offset, len, end);
            Reply::Warmed { content, conn }
        });
    }

    /// What was to be sent was read.
    pub(crate) fn warmed(&mut self) {
        self.is_warming = false;
        self.pump(Instant::now());
    }

    /// A chunk cannot be read: its piece is lost.
    fn lost(&mut self, chunk: u64, reason: &str) {
        let Some(info) = &self.info else { return };
        let piece = info.geometry.piece_at(chunk * u64::from(info.geometry.block_length()));
        if self.have.get(piece) {
            self.tell(EventKind::PieceFailed { index: piece });
            self.lose(&[piece]);
            if self.have.count() == 0 {
                let reason = format!("{reason}; share the file again when it is back");
                self.fail(FailureKind::Content, reason);
            }
        }
    }

    /// Pieces are not there any more.
    pub(crate) fn lose(&mut self, pieces: &[u32]) {
        let all = self.have.len();
        pieces.iter().filter(|piece| **piece < all).for_each(|piece| _ = self.have.clear(*piece));
        if let Some(buffers) = &mut self.buffers {
            pieces.iter().for_each(|piece| buffers.reopen(*piece));
        }
        self.is_finished = false;
        self.tell_core_what_is_here();
    }

    /// The core learns which pieces are there.
    pub(crate) fn tell_core_what_is_here(&mut self) {
        let Some(info) = &self.info else { return };
        let mut have = anabranch_ppspp::binmap::Binmap::new();
        for piece in self.have.iter_ones() {
            have.insert_range(super::chunks_of(info, piece));
        }
        self.core.set_have(have);
        self.wake.notify_one();
    }

    /// How fast a peer's channel moves, down and up; it moved so much so far.
    pub(super) fn rates_of(&mut self, way: &Way, moved: (u64, u64), now: Instant) -> (u64, u64) {
        let Some(Conn { rates, .. }) = self.conns.get_mut(way) else { return (0, 0) };
        rates.received(moved.0.saturating_sub(rates.downloaded_bytes), now);
        rates.sent(moved.1.saturating_sub(rates.uploaded_bytes), now);
        rates.bytes_per_sec(now)
    }

    // ---- deadlines ----

    /// When a piece is needed; `None` takes that back. What is needed first is asked for in order.
    pub(crate) fn set_deadline(&mut self, piece: u32, deadline: Option<Instant>) {
        match deadline {
            Some(deadline) => _ = self.deadlines.insert(piece, deadline),
            None => _ = self.deadlines.remove(&piece),
        }
        self.aim();
    }

    /// Whether anything has a deadline.
    pub(super) fn has_deadlines(&self) -> bool {
        !self.deadlines.is_empty()
    }

    /// Asks for what is needed first.
    pub(crate) fn aim(&mut self) {
        let Some(info) = &self.info else { return };
        let have = &self.have;
        self.deadlines.retain(|piece, _| *piece < have.len() && !have.get(*piece));
        let first =
            self.deadlines.iter().min_by_key(|(piece, deadline)| (**deadline, **piece)).map(|(piece, _)| *piece);
        let picker = match first {
            Some(first) => {
                // As far as pieces with deadlines follow each other.
                let last = (first..have.len()).take_while(|at| have.get(*at) || self.deadlines.contains_key(at)).last();
                let (position, end) =
                    (super::chunks_of(info, first).start, super::chunks_of(info, last.unwrap_or(first)).end);
                Picker::OnDemand { position, high: end - position, middle: end - position }
            }
            None if self.options.sequential => Picker::Sequential(0),
            None => super::default_picker(&self.link, self.resources.config.seed),
        };
        self.core.set_picker(picker);
    }
}

/// Keeps the core's time, dials, and has limits obeyed, until the content ends.
pub(crate) async fn keep_time(content: Handle) {
    let wake = Rc::clone(&content.borrow().wake);
    loop {
        let deadline = {
            let mut state = content.borrow_mut();
            if state.stopping {
                return;
            }
            let now = Instant::now();
            state.is_socket_full = false;
            state.dial(now);
            state.allow(now);
            state.core.poll(now);
            state.pump(now);
            let full = state.is_socket_full.then(|| now + FULL_PAUSE);
            let due = state.core.deadline();
            full.map_or(due, |full| due.min(full))
        };
        if deadline <= Instant::now() {
            tokio::task::yield_now().await;
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep_until(deadline.into()) => {}
            () = wake.notified() => {}
        }
    }
}

impl Content {
    /// Opens channels to whoever is due.
    fn dial(&mut self, now: Instant) {
        if self.is_held() {
            return;
        }
        let wants_more = !self.core.is_complete();
        while let Some(address) = self.peers.next_to_dial(wants_more, now) {
            if !self.core.connect(now, &Way { remote: address }) {
                self.peers.is_there(address);
            }
        }
    }
}
