//! One content at work: the core, its buffers, its files and its connections' handles.

use std::cell::{Ref, RefCell, RefMut};
use std::collections::{BTreeSet, HashMap};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anabranch_bittorrent::ConnId;
use anabranch_bittorrent::peerbook::{PeerBook, Source};
use anabranch_bittorrent::picker::Priority;
use anabranch_bittorrent::torrent::{Event as CoreEvent, PieceOutcome, Torrent};
use anabranch_content::info::InfoHashes;
use anabranch_content::metainfo::{Metainfo, PieceLayers};
use anabranch_content::storage::{ErrorKind, Op, ResumeStore, Storage, StorageError};
use anabranch_paths::{Endpoint, Host, ScionAddr};
use anabranch_transport::NodeId;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::bittorrent::conn::Scratch;
use crate::bittorrent::kept_metadata;
use crate::bittorrent::paths_driver::ContentPaths;
use crate::bittorrent::recheck;
use crate::bittorrent::registry::Registry;
use crate::bittorrent::sources::Named;
use crate::config::{AddOptions, Aim};
use crate::events::{Event, EventKind, FailureKind, PauseCause, TorrentId};
use crate::limits::{Line, Share};
use crate::net::admission::{PLACES_OF_HOST_MAX, Place, gives_way};
use crate::net::conn_handle::ConnHandle;
use crate::resources::Resources;
use crate::store::buffers::PieceBuffers;
use crate::store::disk::{Outcome, Reply, SpillJob, Spilled, Verified, VerifyJob};
use crate::store::recheck::is_restored;
use crate::store::spill;

/// Pieces that could not be read and are tried again: a disk that fails fails for all.
const UNREADABLE_MAX: usize = 16;
/// Memory counts as short below this part of it.
const MEMORY_SHORT_DIVISOR: u64 = 8;

/// A content that its tasks share. All tasks run on one thread, and none holds a borrow across an await.
#[derive(Clone)]
pub struct TorrentRef(Rc<RefCell<State>>);

impl TorrentRef {
    /// Wraps the state.
    pub fn new(mut state: State) -> Self {
        Self(Rc::new_cyclic(|me| {
            state.me = me.clone();
            RefCell::new(state)
        }))
    }

    /// For whoever asks whether it is still there.
    #[cfg(test)]
    pub fn downgrade(&self) -> Weak<RefCell<State>> {
        Rc::downgrade(&self.0)
    }

    /// Looks in.
    pub fn borrow(&self) -> Ref<'_, State> {
        self.0.borrow()
    }

    /// Changes it.
    pub fn borrow_mut(&self) -> RefMut<'_, State> {
        self.0.borrow_mut()
    }
}

/// What goes on with a content's files and lets nothing else be done to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// All pieces are hashed.
    Recheck,
    /// They go to another folder.
    Move,
    /// Other files are chosen.
    Select,
}

impl std::fmt::Display for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Recheck => "checked",
            Self::Move => "moved",
            Self::Select => "changed in its choice of files",
        })
    }
}

/// Everything about one content.
pub struct State {
    /// Its number.
    pub id: TorrentId,
    /// Its identity.
    pub hashes: InfoHashes,
    /// The protocol.
    pub core: Torrent,
    /// Pieces under way, once the content is known.
    pub buffers: Option<PieceBuffers>,
    /// Its files, once open.
    pub storage: Option<Arc<Storage>>,
    /// The same, with the record, while they are being opened.
    pub opening: Option<(Option<Arc<ResumeStore>>, Arc<Storage>)>,
    /// The task that opens them is at work.
    pub is_opening: bool,
    /// The record of verified pieces, once open; none where files are only read.
    pub resume: Option<Arc<ResumeStore>>,
    /// The owner's choices.
    pub options: AddOptions,
    /// The content came with its Merkle layers, as a torrent file does and a magnet link does not.
    pub layers_at_hand: bool,
    /// Who may be dialled.
    pub book: PeerBook,
    /// The keys that hosts have to prove, as many as the user and the link name.
    pub keys: HashMap<ScionAddr, NodeId>,
    /// Whom the user or the magnet link named.
    pub named: Named,
    /// Trackers that are asked, or will be again.
    pub trackers_left: usize,
    /// Which paths its connections take, and which are chosen.
    pub paths: ContentPaths,
    /// Wakes the task that dials.
    pub dial: Rc<Notify>,
    /// Wakes the task that keeps the core's time.
    pub clock: Rc<Notify>,
    /// Wakes the task that talks to trackers.
    pub announce: Rc<Notify>,
    /// Wakes the task that waits for the files to be chosen.
    pub chosen: Rc<Notify>,
    /// Set when the content ends: nothing new begins.
    pub stopping: bool,
    /// It is being removed from the session.
    pub is_leaving: bool,
    /// The owner has it wait.
    pub is_paused_by_owner: bool,
    /// What goes on with its files: meanwhile nothing moves.
    pub work: Option<Work>,
    /// Trackers are to be asked as soon as they allow.
    pub is_announce_due: bool,
    /// The task that talks to trackers has not said farewell yet.
    pub is_announcing: bool,
    /// Set when checks are not waited for any more.
    pub cancel: Arc<AtomicBool>,
    /// The files are being opened, or are open: this must begin once only.
    pub metadata_known: bool,
    conns: HashMap<ConnId, Rc<ConnHandle>>,
    /// Complete pieces that wait for a spill to end.
    waiting: Vec<u32>,
    /// What storage refused, to be handed in again when it works. Bounded by the buffers that it is made of.
    stalled: Vec<Stalled>,
    /// Verified pieces of a download that cannot be read: bounded by what one look at the disk is worth.
    unreadable: Vec<u32>,
    /// Files that are only shared and changed: they are looked at until they are the content again.
    pub in_doubt: BTreeSet<usize>,
    /// Pieces and spills at the disk threads.
    verifying: u32,
    spilling: u32,
    /// One of them is a probe: whether storage works again.
    probing: bool,
    /// Storage took something of ours: where it refuses now, something changed, and may change back.
    has_written: bool,
    resources: Rc<Resources>,
    contents: Weak<dyn Registry>,
    scratch: Rc<RefCell<Scratch>>,
    me: Weak<RefCell<Self>>,
    /// All that is at work for this content. Each task holds the content, so they are ended for it to go: see [`State::end`].
    tasks: RefCell<JoinSet<()>>,
    dirty: Vec<ConnId>,
    /// What of the session's requested bytes is ours.
    requested_counted: u64,
}

impl Drop for State {
    /// What it took of the session's is the others' again.
    fn drop(&mut self) {
        let Resources { requested_bytes, down, up, .. } = &*self.resources;
        requested_bytes.set(requested_bytes.get() - self.requested_counted);
        down.remove_content(self.id.0);
        up.remove_content(self.id.0);
    }
}

/// Whether the cause of a failure goes away while one waits for it.
pub fn may_pass(error: &StorageError) -> bool {
    match error.kind {
        ErrorKind::DiskFull | ErrorKind::TooManyOpenFiles => true,
        // Where something cannot be made, nothing vanished: there is no such place (/proc).
        ErrorKind::Vanished => error.op != Op::Create,
        _ => false,
    }
}

/// A job that storage refused.
enum Stalled {
    Piece(Box<VerifyJob>),
    Spill(Box<SpillJob>),
}

/// What [`State::new`] needs.
pub struct NewState {
    /// Its number.
    pub id: TorrentId,
    /// Its identity.
    pub hashes: InfoHashes,
    /// The protocol.
    pub core: Torrent,
    /// The keys that hosts have to prove.
    pub keys: HashMap<ScionAddr, NodeId>,
    /// The owner's choices.
    pub options: AddOptions,
    /// The content came with its Merkle layers, as a torrent file does and a magnet link does not.
    pub layers_at_hand: bool,
    /// Receive memory of all contents.
    pub scratch: Rc<RefCell<Scratch>>,
}

impl State {
    /// A content whose files are not open yet.
    pub fn new(resources: Rc<Resources>, contents: Weak<dyn Registry>, new: NewState) -> Self {
        let now = Instant::now();
        resources.down.add_content(new.id.0, new.options.limit_down, now);
        resources.up.add_content(new.id.0, new.options.limit_up, now);
        Self {
            id: new.id,
            hashes: new.hashes,
            core: new.core,
            buffers: None,
            storage: None,
            opening: None,
            is_opening: false,
            resume: None,
            options: new.options,
            layers_at_hand: new.layers_at_hand,
            book: PeerBook::new(),
            keys: new.keys,
            named: Named::default(),
            trackers_left: 0,
            paths: ContentPaths::new(&resources),
            dial: Rc::default(),
            clock: Rc::default(),
            announce: Rc::default(),
            chosen: Rc::default(),
            stopping: false,
            is_leaving: false,
            is_paused_by_owner: false,
            work: None,
            is_announce_due: false,
            is_announcing: false,
            cancel: Arc::default(),
            metadata_known: false,
            conns: HashMap::new(),
            waiting: Vec::new(),
            stalled: Vec::new(),
            unreadable: Vec::new(),
            in_doubt: BTreeSet::new(),
            verifying: 0,
            spilling: 0,
            probing: false,
            has_written: false,
            resources,
            contents,
            scratch: new.scratch,
            me: Weak::new(),
            tasks: RefCell::default(),
            dirty: Vec::new(),
            requested_counted: 0,
        }
    }

    /// What it shares with the session's other contents.
    pub fn resources(&self) -> Rc<Resources> {
        Rc::clone(&self.resources)
    }

    /// Receive memory, which all contents share.
    pub fn scratch(&self) -> Rc<RefCell<Scratch>> {
        Rc::clone(&self.scratch)
    }

    /// The session's contents, while there is a session.
    pub fn contents(&self) -> Option<Rc<dyn Registry>> {
        self.contents.upgrade()
    }

    /// This content, for a task of it.
    pub fn this(&self) -> Option<TorrentRef> {
        self.me.upgrade().map(TorrentRef)
    }

    /// Runs a task of this content: it ends with the content.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_local(task);
    }

    /// Ends whatever is still at work for this content. After [`State::stop`], which lets it end by itself.
    pub fn end(&mut self) {
        self.tasks.get_mut().abort_all();
    }

    /// A new connection's part of what may be received and sent.
    pub fn limits(&self, handle: &Rc<ConnHandle>) -> (Share, Share) {
        let now = Instant::now();
        let Resources { config, down, up, .. } = &*self.resources;
        let share = |line: &Rc<Line>, own| line.share(self.id.0, own, handle, now);
        (share(down, config.peer_limit_down), share(up, config.peer_limit_up))
    }

    /// Tells the owner.
    pub fn tell(&self, kind: EventKind) {
        self.resources.tell(Event { torrent: self.id, kind });
    }

    /// Whether the resume file has nothing left to say.
    pub fn is_done_with(&self) -> bool {
        let kept = self.resources.config.metadata_dir.is_some() && self.core.knows_all_layers();
        let can_be_verified = self.layers_at_hand || kept || self.core.info().is_some_and(|info| info.version.is_v1());
        self.options.tidy && can_be_verified && self.core.is_complete()
    }

    // ---- connections ----

    /// Number of open connections.
    pub fn conn_count(&self) -> usize {
        self.conns.len()
    }

    /// A connection's task begins.
    pub fn attach(&mut self, id: ConnId, host: Host) -> Rc<ConnHandle> {
        let handle = Rc::new(ConnHandle::new(host, Instant::now()));

        self.conns.insert(id, Rc::clone(&handle));
        // A torrent without connections sleeps; now time matters again.
        self.clock.notify_one();
        handle
    }

    /// A connection's task ended.
    pub fn detach(&mut self, id: ConnId, now: Instant) {
        self.conns.remove(&id);
        if let Some(buffers) = &mut self.buffers {
            buffers.disconnected(id);
        }
        self.core.disconnected(id, now);
        if self.conns.is_empty() && !self.stopping && !self.core.is_paused() {
            // Nobody knows when somebody comes again: meanwhile the memory is others'.
            while self.spill() {}
        }
        if self.stopping {
            // The clock, which does this otherwise, stands still.
            self.update_room();
        }
        self.pump(now);
        self.dial.notify_one();
        if self.conns.is_empty() {
            // Whoever knows of others may be asked.
            self.announce.notify_one();
        }
    }

    /// Leaves: connections end, trackers are told, and all tasks of this content come to their end.
    pub fn stop(&mut self, reason: &str) {
        self.stopping = true;
        self.cancel.store(true, Ordering::Relaxed);
        self.close_all(reason);
        self.announce.notify_one();
        self.dial.notify_one();
        self.clock.notify_one();
        self.chosen.notify_one();
        self.paths.wake.notify_one();
    }

    /// Ends all connections.
    pub fn close_all(&mut self, reason: &str) {
        self.conns.values().for_each(|handle| handle.close(reason.to_owned()));
    }

    /// The places that are taken, and who has them.
    pub fn places(&self) -> impl Iterator<Item = (Place, &Rc<ConnHandle>)> {
        let open = self.conns.values().filter(|handle| !handle.is_closing());
        open.map(|handle| (handle.place(), handle))
    }

    /// Whether `host` has as many places as one host gets.
    pub fn is_host_full(&self, host: Host) -> bool {
        !host.is_loopback() && self.places().filter(|(place, _)| place.host == host).count() >= PLACES_OF_HOST_MAX
    }

    /// Whether there is a place for one from `host`; somebody may have to give way.
    pub fn make_room(&self, host: Host, now: Instant) -> bool {
        let (places, handles): (Vec<Place>, Vec<&Rc<ConnHandle>>) = self.places().unzip();
        if places.len() < self.resources.config.torrent_connections_max {
            return true;
        }
        let goes = gives_way(&places, host, now).map(|at| handles[at]);
        goes.inspect(|handle| handle.close("it made room for another peer".to_owned())).is_some()
    }

    /// A connection's task may go on sending.
    pub fn warmed(&self, id: ConnId) {
        if let Some(handle) = self.conns.get(&id) {
            handle.warm();
        }
    }

    // ---- waiting ----

    /// Whether nobody is connected, and nothing moves, by the owner's wish.
    pub fn is_held(&self) -> bool {
        self.is_paused_by_owner || matches!(self.work, Some(Work::Recheck | Work::Move))
    }

    /// Connections end, and nothing moves until [`State::let_go`].
    pub fn hold(&mut self, reason: &str) {
        self.core.set_paused(true, Instant::now());
        self.close_all(reason);
    }

    /// Goes on where nothing holds it any more. Answers whether it does.
    pub fn let_go(&mut self) -> bool {
        if self.is_held() || self.stopping {
            return false;
        }
        // Nothing but layers is asked for: see `open`.
        let is_about_files = self.options.aim != Aim::Metadata;
        let storage_works = self.stalled.is_empty() && self.unreadable.is_empty();
        if is_about_files && storage_works {
            self.core.set_paused(false, Instant::now());
        }
        for task in [&self.dial, &self.clock, &self.announce, &self.paths.wake] {
            task.notify_one();
        }
        storage_works
    }

    /// The files are open anew, in another place: what waits to be written goes there.
    pub fn set_files(&mut self, resume: &Arc<ResumeStore>) {
        for job in &mut self.stalled {
            match job {
                Stalled::Piece(job) => job.resume = Arc::clone(resume),
                Stalled::Spill(job) => job.resume = Arc::clone(resume),
            }
        }
        self.storage = Some(Arc::clone(resume.storage()));
        self.resume = Some(Arc::clone(resume));
        self.forget_unreadable();
    }

    /// The files are known anew: nothing of them is waited for to be as it was.
    fn forget_unreadable(&mut self) {
        let any = !self.unreadable.is_empty();
        self.unreadable.clear();
        if any && self.stalled.is_empty() {
            self.tell(EventKind::Resumed);
        }
    }

    /// How much waits for storage to work again.
    pub fn stalled_jobs(&self) -> usize {
        self.stalled.len()
    }

    /// All pieces were hashed anew, and what came of it is recorded: `lost` are bad.
    pub fn found(&mut self, lost: &[u32], good: impl Iterator<Item = u32>) {
        self.forget_unreadable();
        if self.resume.is_some() {
            self.forget_pieces(lost);
        } else {
            self.lose_shared(lost, None);
        }
        self.regain(good);
    }

    /// What waits for storage to work again is given up, and so are blocks of pieces that are not whole.
    pub fn give_up_files(&mut self) -> (Option<Arc<ResumeStore>>, Option<Arc<Storage>>) {
        self.stalled.clear();
        self.waiting.clear();
        self.buffers = None;
        let (resume, storage) = self.opening.take().unzip();
        (self.resume.take().or(resume.flatten()), self.storage.take().or(storage))
    }

    // ---- peers to dial ----

    /// The next peer to dial. Who has everything dials too: of two peers it may be the one that cannot be reached.
    pub fn next_to_dial(&mut self, now: Instant) -> Option<Endpoint> {
        if !self.is_of_use() || self.is_held() {
            return None;
        }
        let seeding = self.core.is_finished();
        loop {
            let address = self.book.next(now, seeding)?;
            if !self.core.is_connected_to(&address) {
                return Some(address);
            }
            // It dialled us.
            self.book.connected(address);
        }
    }

    /// The attempt to reach `address` failed, or its connection ended.
    pub fn lost(&mut self, address: Endpoint, useful: bool, now: Instant) {
        self.book.lost(address, useful, now);
        if !self.book.contains(&address) {
            self.paths.manager.forget_address(address);
        }
    }

    /// When [`State::next_to_dial`] has one, if places are not lacking.
    pub fn dial_deadline(&self, now: Instant) -> Option<Instant> {
        self.book.next_deadline(now, self.core.is_finished()).filter(|_| self.is_of_use() && !self.is_held())
    }

    /// Something is to be had or to be given.
    fn is_of_use(&self) -> bool {
        !self.core.is_finished() || self.core.have().is_some_and(|have| have.count() > 0)
    }

    /// A connection that was opened by us or by the other side is about to leave the core.
    pub fn note_end(&mut self, id: ConnId, outgoing: bool, useful: bool, now: Instant) {
        let Some(address) = self.core.listen_address(id) else { return };
        self.book.set_complete(address, self.core.needs_nothing(id));
        if !outgoing {
            self.book.lost(address, useful, now);
        }
    }

    // ---- memory ----

    /// Tells the core how much more may be asked for.
    pub fn update_room(&mut self) {
        let own = self.core.requested_bytes();
        let total = &self.resources.requested_bytes;
        total.set(total.get() - self.requested_counted + own);
        self.requested_counted = own;
        let free = self.resources.pools.free_bytes();
        self.core.set_room(free.saturating_sub(total.get()));
        if free < self.resources.config.buffer_bytes / MEMORY_SHORT_DIVISOR && self.verifying == 0 {
            self.relieve_memory();
        }
    }

    /// Memory is short: chunks that wait for the rest of their piece move to disk. Not while earlier ones are on their way,
    /// which will relieve it too, and not while the disk takes nothing.
    pub fn relieve_memory(&mut self) {
        if self.spilling == 0 && !self.core.is_paused() {
            self.spill();
        }
    }

    /// Moves the chunks of one piece to disk; answers whether there were any.
    fn spill(&mut self) -> bool {
        let (Some(buffers), Some(resume)) = (&mut self.buffers, &self.resume) else { return false };
        let spills = buffers.spill();
        let any = !spills.is_empty();
        for spill in spills {
            self.spilling += 1;
            self.resources.disk.spill(SpillJob { content: self.id, spill, resume: Arc::clone(resume) });
        }
        any
    }

    /// A spill is done; a piece may have waited for it.
    pub fn spilled(&mut self, spilled: Spilled, now: Instant) {
        self.spilling = self.spilling.saturating_sub(1);
        match spilled.failed {
            Some((error, job)) => self.stall(Stalled::Spill(job), &error, now),
            None => {
                if let Some(buffers) = &mut self.buffers {
                    buffers.spilled(spilled.piece);
                }
                if let Some(at) = self.waiting.iter().position(|waiting| *waiting == spilled.piece) {
                    self.waiting.swap_remove(at);
                    self.verify(spilled.piece);
                }
                self.storage_works(now);
            }
        }
        self.update_room();
        self.core.fill_starved(now);
        self.pump(now);
    }

    // ---- pieces ----

    /// Hands a complete piece to the disk threads.
    fn verify(&mut self, piece: u32) {
        let (Some(buffers), Some(resume)) = (&mut self.buffers, &self.resume) else { return };
        let Some(expected) = self.core.expected_hash(piece) else { return };
        let Some(whole) = buffers.take(piece) else {
            self.waiting.push(piece);
            return;
        };
        self.verifying += 1;
        self.resources.disk.verify(VerifyJob {
            content: self.id,
            piece,
            whole,
            expected,
            digests: self.core.wants_digests(piece),
            read_soon: self.core.is_anyone_interested(),
            resume: Arc::clone(resume),
            geometry: resume.storage().info().geometry.clone(),
        });
    }

    /// The disk threads answered.
    pub fn verified(&mut self, verified: Verified, now: Instant) {
        self.verifying = self.verifying.saturating_sub(1);
        self.update_room();
        match verified.outcome {
            Outcome::Good { digests } => {
                self.has_written = true;
                self.tell(EventKind::Piece { index: verified.piece });
                self.core.piece_verified(verified.piece, PieceOutcome::Good { digests }, now);
                self.storage_works(now);
            }
            Outcome::Bad { digests } => {
                self.tell(EventKind::PieceFailed { index: verified.piece });
                if let Some(buffers) = &mut self.buffers {
                    buffers.reopen(verified.piece);
                }
                self.core.piece_verified(verified.piece, PieceOutcome::Bad { digests }, now);
                self.storage_works(now);
            }
            Outcome::Failed { error, job } => self.stall(Stalled::Piece(job), &error, now),
        }
        self.pump(now);
    }

    // ---- storage that is out of order ----

    /// Nothing more is asked for; what is here is kept.
    fn stall(&mut self, job: Stalled, error: &StorageError, now: Instant) {
        self.probing = false;
        // A place that never took anything is a mistake; one that did changed, and may change back.
        if error.needs_a_choice() || !self.has_written && !may_pass(error) {
            self.fail(FailureKind::Storage, error.to_string(), now);
            return;
        }
        self.stalled.push(job);
        self.pause(error.to_string(), now);
    }

    fn pause(&mut self, reason: String, now: Instant) {
        if !self.core.is_paused() {
            self.core.set_paused(true, now);
            self.tell(EventKind::Paused { cause: PauseCause::Storage, reason });
            self.clock.notify_one();
        }
    }

    /// Tries storage again with one thing that it refused.
    pub fn retry_storage(&mut self) {
        if !self.core.is_paused() || self.probing || self.stopping || self.is_held() {
            return;
        }
        if let Some(job) = self.stalled.pop() {
            self.probing = true;
            self.hand_in(job);
        } else if let (Some(piece), Some(storage)) = (self.unreadable.last().copied(), self.storage.clone()) {
            self.probing = true;
            let (torrent, layers) = (self.id, self.layers());
            self.resources.disk.run(torrent, move || {
                let readable = spill::read(&storage, piece, |_| {}).is_ok() && is_restored(&storage, &layers, piece);
                Reply::Looked { content: torrent, piece, readable }
            });
        }
    }

    /// A piece that could not be sent was looked at again.
    pub fn looked(&mut self, piece: u32, readable: bool, now: Instant) {
        if readable {
            self.unreadable.retain(|other| *other != piece);
            self.storage_works(now);
            self.pump(now);
        } else {
            self.probing = false;
        }
    }

    /// Something reached the disk, or could be read. Where that was in doubt, everything else follows.
    fn storage_works(&mut self, now: Instant) {
        if !std::mem::take(&mut self.probing) {
            return;
        }
        for job in std::mem::take(&mut self.stalled) {
            self.hand_in(job);
        }
        if self.unreadable.is_empty() && !self.is_held() {
            self.core.set_paused(false, now);
            self.tell(EventKind::Resumed);
        }
    }

    fn hand_in(&mut self, job: Stalled) {
        match job {
            Stalled::Piece(job) => {
                self.verifying += 1;
                self.resources.disk.verify(*job);
            }
            Stalled::Spill(job) => {
                self.spilling += 1;
                self.resources.disk.spill(*job);
            }
        }
    }

    /// A job of ours panicked, on a disk thread or elsewhere, and is lost. Waiting for it would be for ever, and what it did is
    /// unknown: this content ends here. What was verified before is on disk and recorded.
    pub fn panicked(&mut self, now: Instant) {
        // Answers that still come are of jobs that nobody waits for any more.
        (self.verifying, self.spilling) = (0, 0);
        self.is_opening = false;
        if self.stopping {
            return;
        }
        let reason = "a fault in anabranch stopped it, standard error says where: please report that. What was verified is \
                      kept: the same command goes on from there";
        self.fail(FailureKind::Internal, reason.to_owned(), now);
    }

    /// This content ends here. What was verified before is on disk and recorded.
    pub fn fail(&mut self, kind: FailureKind, reason: String, now: Instant) {
        if self.stopping {
            return;
        }
        self.stalled.clear();
        self.unreadable.clear();
        self.waiting.clear();
        self.buffers = None;
        self.core.set_paused(true, now);
        self.tell(EventKind::Failed { kind, reason });
        self.stop("we had to stop");
        self.pump(now);
    }

    /// Whether there are connections, the disk threads have something of ours, or files are being opened.
    pub fn is_busy(&self) -> bool {
        self.is_opening || !self.conns.is_empty() || self.verifying + self.spilling > 0
    }

    /// A piece of a download that was promised cannot be read. Nothing of it is given up: the cause may pass, as when a disk is
    /// plugged in again. Answers whether it is one of a download.
    fn wait_until_readable(&mut self, piece: u32, reason: &str) -> bool {
        if self.resume.is_none() {
            return false;
        }
        if self.unreadable.len() < UNREADABLE_MAX && !self.unreadable.contains(&piece) {
            self.unreadable.push(piece);
        }
        let now = Instant::now();
        self.pause(reason.to_owned(), now);
        self.pump(now);
        true
    }

    /// A file is not any more what was verified, ended before its time, or is gone, as `piece` was to be sent. Where files are
    /// only shared, the pieces in it are not ours any more until they are checked.
    pub fn content_changed(&mut self, file: usize, piece: u32, reason: &str) {
        if self.wait_until_readable(piece, reason) {
            return;
        }
        let Some(storage) = &self.storage else { return };
        let entry = &storage.info().files[file];
        let pieces: Vec<u32> = storage.info().pieces_of_file(file).collect();
        let path = entry.path.display();
        let reason = format!("{path} changed while it was shared: what is not the content any more is not offered");
        let is_watched = !self.in_doubt.insert(file);
        self.lose_shared(&pieces, (!is_watched).then_some(reason));
        if !is_watched {
            recheck::watch(self, file);
        }
    }

    /// A piece that was to be sent cannot be read.
    pub fn content_unreadable(&mut self, piece: u32, reason: &str) {
        if self.wait_until_readable(piece, reason) {
            return;
        }
        self.lose_shared(&[piece], Some(format!("piece {piece} cannot be read from disk any more")));
    }

    /// Files that are only shared: nothing is fetched in place of what is lost. The user is told the reason, if there is a new one.
    fn lose_shared(&mut self, pieces: &[u32], reason: Option<String>) {
        if self.lose(pieces)
            && let Some(reason) = reason
        {
            self.tell(EventKind::Failed { kind: FailureKind::Content, reason });
        }
        let skipped: Vec<_> = pieces.iter().map(|piece| (*piece, Priority::SKIP)).collect();
        let now = Instant::now();
        self.core.set_priorities(&skipped, now);
        self.pump(now);
    }

    /// `pieces` are not good any more. Answers whether any of them counted as good.
    pub fn lose(&mut self, pieces: &[u32]) -> bool {
        let any = self.forget_pieces(pieces);
        if let Some(resume) = self.resume.as_ref().filter(|_| any) {
            // Should this not reach the disk, the pieces are found bad at the next check.
            pieces.iter().for_each(|piece| drop(resume.failed(*piece)));
        }
        any
    }

    fn forget_pieces(&mut self, pieces: &[u32]) -> bool {
        let now = Instant::now();
        let before = self.core.have().map_or(0, |have| have.count());
        if let Some(buffers) = &mut self.buffers {
            // Those that are being verified now stay closed: their verdict comes.
            let lost = pieces.iter().filter(|piece| self.core.have().is_some_and(|have| have.get(**piece)));
            lost.for_each(|piece| buffers.reopen(*piece));
        }
        self.core.pieces_lost(pieces, now);
        let any = self.core.have().map_or(0, |have| have.count()) < before;
        if any {
            self.dial.notify_one();
        }
        self.pump(now);
        any
    }

    /// `pieces` turned out to be good after all.
    pub fn regain(&mut self, pieces: impl Iterator<Item = u32>) {
        let now = Instant::now();
        for piece in pieces {
            if self.core.have().is_some_and(|have| !have.get(piece)) {
                self.core.piece_verified(piece, PieceOutcome::Good { digests: Vec::new() }, now);
            }
        }
        self.pump(now);
    }

    /// The Merkle layers that are known.
    pub fn layers(&self) -> PieceLayers {
        self.core.piece_layers().map(|(root, layer)| (*root, layer.into())).collect()
    }

    // ---- the core's wishes ----

    /// Acts on what the core wants, and wakes the connections that have something to send.
    pub fn pump(&mut self, now: Instant) {
        while let Some(event) = self.core.poll_event() {
            self.act(event, now);
        }
        if self.core.has_path_events() {
            self.paths.wake.notify_one();
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        self.core.take_dirty(&mut dirty);
        for id in dirty.drain(..) {
            if let Some(handle) = self.conns.get(&id) {
                handle.wake();
            }
        }
        self.dirty = dirty;
    }

    fn act(&mut self, event: CoreEvent, now: Instant) {
        match event {
            // Peers that come while files are being checked offer what we know.
            CoreEvent::Metadata(bytes) => {
                if !std::mem::replace(&mut self.metadata_known, true)
                    && let Some(info) = self.metadata_arrived(&bytes)
                {
                    self.core.expect_content(info);
                }
            }
            CoreEvent::PieceComplete { piece } => self.verify(piece),
            CoreEvent::Close { conn, reason } => match self.conns.get(&conn) {
                Some(handle) => handle.close(reason),
                None => self.core.disconnected(conn, now),
            },
            CoreEvent::Banned { address, reason, .. } => {
                self.book.forget(address);
                self.paths.manager.forget_address(address);
                self.tell(EventKind::PeerBanned { address, reason });
            }
            CoreEvent::Suspended { address, reason, .. } => self.tell(EventKind::PeerSuspended { address, reason }),
            CoreEvent::Peers(addresses) => {
                let filter = Arc::clone(&self.resources.config.filter);
                for address in addresses.into_iter().filter(|address| !filter.blocks(address)) {
                    self.book.add(address, Source::Exchange);
                }
                self.dial.notify_one();
            }
            CoreEvent::LeavesWanted { piece } => self.hash_leaves(piece),
            CoreEvent::PieceLayer { look_at, .. } => {
                if self.core.knows_all_layers() {
                    self.keep_layers();
                }
                if let Some(pieces) = look_at {
                    recheck::look_at(self, pieces);
                }
            }
            CoreEvent::Finished => {
                self.resources.pools.trim();
                self.finished();
                self.announce.notify_one();
            }
        }
    }

    /// All Merkle layers are here, from peers: they are kept for the next start.
    fn keep_layers(&self) {
        let Some(info) = self.core.info().cloned() else { return };
        let (layers, torrent, resume) = (self.layers(), self.id, self.resume.clone());
        let folder = self.resources.config.metadata_dir.clone().filter(|_| !self.layers_at_hand);
        self.resources.disk.run(torrent, move || {
            // Without them the next start may have more to fetch, and that is all.
            if let Some(folder) = folder {
                let _ = kept_metadata::keep(&folder, &Metainfo { piece_layers: layers.clone(), ..Metainfo::new(info) });
            }
            if let Some(resume) = resume {
                let _ = resume.keep_layers(layers);
            }
            Reply::Kept { content: torrent }
        });
    }

    /// Block hashes of a piece that a peer wants to see (BEP 52).
    fn hash_leaves(&mut self, piece: u32) {
        let Some(storage) = &self.storage else { return };
        let storage = Arc::clone(storage);
        let torrent = self.id;
        self.resources.disk.run(torrent, move || {
            let hashes = spill::leaves(&storage, piece).unwrap_or_default();
            Reply::Leaves { content: torrent, piece, hashes }
        });
    }
}
