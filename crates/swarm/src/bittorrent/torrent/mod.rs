//! One content at work: the core, its buffers, its files and its connections' handles.
//!
//! | file | idea |
//! | --- | --- |
//! | `mod.rs` | what there is of a content, who is connected, whom to dial |
//! | `actions.rs` | the core's wishes are carried out |
//! | `lifecycle.rs` | what happens between its coming and its going: metadata, the finish, the core's time |
//! | `open.rs` | its files are opened and checked |
//! | `pieces.rs` | pieces on their way to the disk |
//! | `storage.rs` | storage is out of order |
//! | `recheck.rs` | pieces that are in doubt are hashed again |
//! | `reading.rs` | it is read while it arrives |

mod actions;
pub(crate) mod lifecycle;
pub(crate) mod open;
mod pieces;
mod reading;
pub(super) mod recheck;
mod storage;

use std::cell::{Ref, RefCell, RefMut};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anabranch_bittorrent::ConnId;
use anabranch_bittorrent::peerbook::PeerBook;
use anabranch_bittorrent::torrent::Torrent;
use anabranch_content::info::InfoHashes;
use anabranch_content::storage::{ResumeStore, Storage};
use anabranch_paths::{Endpoint, Host, ScionAddr};
use anabranch_transport::NodeId;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::bittorrent::named::Named;
use crate::bittorrent::paths::ContentPaths;
use crate::bittorrent::registry::Registry;
use crate::bittorrent::scratch::Scratch;
use crate::config::{AddOptions, Aim};
use crate::events::{ContentId, Event, EventKind};
use crate::limits::{Line, Share};
use crate::net::admission::{PLACES_OF_HOST_MAX, Place, gives_way};
use crate::net::conn_handle::ConnHandle;
use crate::resources::Resources;
use crate::store::buffers::PieceBuffers;
use crate::store::disk::{SpillJob, VerifyJob};
use crate::store::readers::{Readable, Readers};
use crate::transfer::{WebSeed, Work};

/// Pieces that could not be read and are tried again: a disk that fails fails for all.
const UNREADABLE_MAX: usize = 16;
/// Memory counts as short below this part of it.
const MEMORY_SHORT_DIVISOR: u64 = 8;

/// A content that its tasks share. All tasks run on one thread, and none holds a borrow across an await.
#[derive(Clone)]
pub(crate) struct TorrentHandle(Rc<RefCell<TorrentDriver>>);

impl TorrentHandle {
    /// Wraps the state.
    pub(crate) fn new(mut state: TorrentDriver) -> Self {
        Self(Rc::new_cyclic(|me| {
            state.me = me.clone();
            RefCell::new(state)
        }))
    }

    /// For whoever asks whether it is still there.
    #[cfg(test)]
    pub(crate) fn downgrade(&self) -> Weak<RefCell<TorrentDriver>> {
        Rc::downgrade(&self.0)
    }

    /// For those who read it.
    pub(crate) fn readable(&self) -> Rc<RefCell<dyn Readable>> {
        Rc::clone(&self.0) as _
    }

    /// Looks in.
    pub(crate) fn borrow(&self) -> Ref<'_, TorrentDriver> {
        self.0.borrow()
    }

    /// Changes it.
    pub(crate) fn borrow_mut(&self) -> RefMut<'_, TorrentDriver> {
        self.0.borrow_mut()
    }
}

/// Everything about one content.
pub(crate) struct TorrentDriver {
    /// Its number.
    pub id: ContentId,
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
    /// Whom to call over uTP as they call us (BEP 55).
    pub to_meet: VecDeque<SocketAddr>,
    /// The keys that hosts have to prove, as many as the user and the link name.
    pub keys: HashMap<ScionAddr, NodeId>,
    /// Whom the user or the magnet link named.
    pub named: Named,
    /// Web seeds that are used.
    pub web_seeds: Vec<WebSeed>,
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
    /// Wakes those who wait for a piece to read it.
    pub arrived: Rc<Notify>,
    /// Who reads it.
    readers: Readers,
    /// Set when the content ends: nothing new begins.
    pub stopping: bool,
    /// It is being removed from the session.
    pub is_leaving: bool,
    /// The owner has it wait.
    pub is_paused_by_owner: bool,
    /// What goes on with its files: meanwhile nothing moves.
    pub work: Option<Work>,
    /// How far it is with being finished, once everything wanted is there.
    finish: Finish,
    /// Trackers are to be asked as soon as they allow.
    pub is_announce_due: bool,
    /// The task that talks to trackers has not said farewell yet.
    pub is_announcing: bool,
    /// Set when checks are not waited for any more.
    pub cancel: Arc<AtomicBool>,
    /// The files are being opened, or are open: this must begin once only.
    pub metadata_known: bool,
    /// It is being looked for on the disk: nobody may say yet that nobody has it.
    pub is_remembering: bool,
    conns: HashMap<ConnId, Rc<ConnHandle>>,
    /// Complete pieces that wait for a spill to end.
    waiting: Vec<u32>,
    /// What storage refused, to be handed in again when it works. Bounded by the buffers that it is made of.
    stalled: Vec<Stalled>,
    /// Verified pieces of a download that cannot be read: bounded by what one look at the disk is worth.
    unreadable: Vec<u32>,
    /// What was out of order with storage last.
    trouble: Option<Trouble>,
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
    /// All that is at work for this content. Each task holds the content, so they are ended for it to go: see [`TorrentDriver::end`].
    tasks: RefCell<JoinSet<()>>,
    dirty: Vec<ConnId>,
    /// What of the session's requested bytes is ours.
    requested_counted: u64,
}

impl Drop for TorrentDriver {
    /// What it took of the session's is the others' again.
    fn drop(&mut self) {
        let Resources { requested_bytes, down, up, .. } = &*self.resources;
        requested_bytes.set(requested_bytes.get() - self.requested_counted);
        down.remove_content(self.id.0);
        up.remove_content(self.id.0);
    }
}

/// A job that storage refused.
enum Stalled {
    Piece(Box<VerifyJob>),
    Spill(Box<SpillJob>),
}

/// Storage is out of order.
struct Trouble {
    /// How, and what helps.
    reason: String,
    /// That was told, and since then nothing else for which the content waits.
    is_told: bool,
}

/// The finish of a content that is complete, where storage may have it wait.
#[derive(Default)]
struct Finish {
    /// Which one goes on: those begun before end by themselves.
    turn: u64,
    /// One is under way.
    is_pending: bool,
    /// It waits for storage, as was told.
    is_told: bool,
    /// It begins again when nobody works on the files.
    is_put_off: bool,
}

/// What [`TorrentDriver::new`] needs.
pub(crate) struct NewTorrent {
    /// Its number.
    pub id: ContentId,
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

impl TorrentDriver {
    /// A content whose files are not open yet.
    pub(crate) fn new(resources: Rc<Resources>, contents: Weak<dyn Registry>, new: NewTorrent) -> Self {
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
            to_meet: VecDeque::new(),
            keys: new.keys,
            named: Named::default(),
            web_seeds: Vec::new(),
            trackers_left: 0,
            paths: ContentPaths::new(&resources),
            dial: Rc::default(),
            clock: Rc::default(),
            announce: Rc::default(),
            chosen: Rc::default(),
            arrived: Rc::default(),
            readers: Readers::default(),
            stopping: false,
            is_leaving: false,
            is_paused_by_owner: false,
            work: None,
            finish: Finish::default(),
            is_announce_due: false,
            is_announcing: false,
            cancel: Arc::default(),
            metadata_known: false,
            is_remembering: false,
            conns: HashMap::new(),
            waiting: Vec::new(),
            stalled: Vec::new(),
            unreadable: Vec::new(),
            trouble: None,
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
    pub(crate) fn resources(&self) -> Rc<Resources> {
        Rc::clone(&self.resources)
    }

    /// Receive memory, which all contents share.
    pub(crate) fn scratch(&self) -> Rc<RefCell<Scratch>> {
        Rc::clone(&self.scratch)
    }

    /// The session's contents, while there is a session.
    pub(crate) fn contents(&self) -> Option<Rc<dyn Registry>> {
        self.contents.upgrade()
    }

    /// This content, for a task of it.
    pub(crate) fn this(&self) -> Option<TorrentHandle> {
        self.me.upgrade().map(TorrentHandle)
    }

    /// Runs a task of this content: it ends with the content.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.reap();
        self.tasks.borrow_mut().spawn_local(task);
    }

    /// Gives back the memory of tasks that have ended.
    pub(crate) fn reap(&self) {
        let mut tasks = self.tasks.borrow_mut();
        while tasks.try_join_next().is_some() {}
    }

    /// Ends whatever is still at work for this content. After [`TorrentDriver::stop`], which lets it end by itself.
    pub(crate) fn end(&mut self) {
        self.tasks.get_mut().abort_all();
    }

    /// A new connection's part of what may be received and sent.
    pub(crate) fn limits(&self, handle: &Rc<ConnHandle>) -> (Share, Share) {
        let now = Instant::now();
        let Resources { config, down, up, .. } = &*self.resources;
        let share = |line: &Rc<Line>, own| line.share(self.id.0, own, handle, now);
        (share(down, config.peer_limit_down), share(up, config.peer_limit_up))
    }

    /// Tells the owner.
    pub(crate) fn tell(&self, kind: EventKind) {
        self.resources.tell(Event { content: self.id, kind });
    }

    /// Whether the resume file has nothing left to say.
    pub(crate) fn is_done_with(&self) -> bool {
        let kept = self.resources.config.metadata_dir.is_some() && self.core.knows_all_layers();
        let can_be_verified = self.layers_at_hand || kept || self.core.info().is_some_and(|info| info.version.is_v1());
        self.options.remove_resume_when_complete && can_be_verified && self.core.is_complete()
    }

    // ---- connections ----

    /// Number of open connections.
    pub(crate) fn conn_count(&self) -> usize {
        self.conns.len()
    }

    /// A connection's task begins.
    pub(crate) fn attach(&mut self, id: ConnId, host: Host) -> Rc<ConnHandle> {
        let handle = Rc::new(ConnHandle::new(host, Instant::now()));

        self.conns.insert(id, Rc::clone(&handle));
        // A torrent without connections sleeps; now time matters again.
        self.clock.notify_one();
        handle
    }

    /// A connection's task ended.
    pub(crate) fn detach(&mut self, id: ConnId, now: Instant) {
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
    pub(crate) fn stop(&mut self, reason: &str) {
        self.stopping = true;
        self.cancel.store(true, Ordering::Relaxed);
        self.close_all(reason);
        self.announce.notify_one();
        self.dial.notify_one();
        self.clock.notify_one();
        self.chosen.notify_one();
        self.paths.wake.notify_one();
        self.arrived.notify_waiters();
    }

    /// Ends all connections.
    pub(crate) fn close_all(&mut self, reason: &str) {
        self.conns.values().for_each(|handle| handle.close(reason.to_owned()));
    }

    /// The places that are taken, and who has them.
    pub(crate) fn places(&self) -> impl Iterator<Item = (Place, &Rc<ConnHandle>)> {
        let open = self.conns.values().filter(|handle| !handle.is_closing());
        open.map(|handle| (handle.place(), handle))
    }

    /// Whether `host` has as many places as one host gets.
    pub(crate) fn is_host_full(&self, host: Host) -> bool {
        !host.is_loopback() && self.places().filter(|(place, _)| place.host == host).count() >= PLACES_OF_HOST_MAX
    }

    /// Whether there is a place for one from `host`; somebody may have to give way.
    pub(crate) fn make_room(&self, host: Host, now: Instant) -> bool {
        let (places, handles): (Vec<Place>, Vec<&Rc<ConnHandle>>) = self.places().unzip();
        if places.len() < self.resources.config.torrent_connections_max {
            return true;
        }
        let goes = gives_way(&places, host, now).map(|at| handles[at]);
        goes.inspect(|handle| handle.close("it made room for another peer".to_owned())).is_some()
    }

    /// What a connection is to send next was read from disk.
    pub(crate) fn readahead_done(&self, id: ConnId) {
        if let Some(handle) = self.conns.get(&id) {
            handle.readahead_done();
        }
    }

    // ---- waiting ----

    /// Whether it is known what the content is, and not yet what of it is here.
    pub(crate) fn is_opening_files(&self) -> bool {
        let has_files = self.options.aim != Aim::Metadata;
        self.metadata_known && has_files && self.storage.is_none() && !self.stopping
    }

    /// Whether nobody is connected, and nothing moves, by the owner's wish.
    pub(crate) fn is_held(&self) -> bool {
        self.is_paused_by_owner || self.is_worked_on()
    }

    /// Whether somebody has the files to itself, or waits for them.
    pub(crate) fn is_worked_on(&self) -> bool {
        matches!(self.work, Some(Work::Recheck | Work::Move))
    }

    /// Connections end, and nothing moves until [`TorrentDriver::let_go`].
    pub(crate) fn hold(&mut self, reason: &str) {
        self.core.set_paused(true, Instant::now());
        self.trouble.iter_mut().for_each(|trouble| trouble.is_told = false);
        self.close_all(reason);
    }

    /// Goes on where nothing holds it any more. Answers whether it does; where it waits for storage, that is told.
    pub(crate) fn let_go(&mut self) -> bool {
        self.finish_what_was_put_off();
        if self.is_held() || self.stopping {
            return false;
        }
        // Nothing but layers is asked for: see `open`.
        let is_about_files = self.options.aim != Aim::Metadata;
        let storage_works = self.stalled.is_empty() && self.unreadable.is_empty();
        if is_about_files && storage_works {
            self.core.set_paused(false, Instant::now());
        }
        match storage_works {
            true => self.trouble = None,
            false => self.tell_trouble(),
        }
        for task in [&self.dial, &self.clock, &self.announce, &self.paths.wake] {
            task.notify_one();
        }
        storage_works
    }

    /// The files are open anew, in another place: what waits to be written goes there.
    pub(crate) fn set_files(&mut self, resume: &Arc<ResumeStore>) {
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
            self.trouble = None;
            self.tell(EventKind::Resumed);
        }
    }

    /// How much waits for storage to work again.
    pub(crate) fn stalled_jobs(&self) -> usize {
        self.stalled.len()
    }

    /// All pieces were hashed anew, and what came of it is recorded: `lost` are bad.
    pub(crate) fn found(&mut self, lost: &[u32], good: impl Iterator<Item = u32>) {
        self.forget_unreadable();
        if self.resume.is_some() {
            self.forget_pieces(lost);
        } else {
            self.lose_shared(lost, None);
        }
        self.regain(good);
    }

    /// What waits for storage to work again is given up, and so are blocks of pieces that are not whole.
    pub(crate) fn give_up_files(&mut self) -> (Option<Arc<ResumeStore>>, Option<Arc<Storage>>) {
        self.stalled.clear();
        self.waiting.clear();
        self.buffers = None;
        let (resume, storage) = self.opening.take().unzip();
        (self.resume.take().or(resume.flatten()), self.storage.take().or(storage))
    }

    // ---- peers to dial ----

    /// The next peer to dial. Who has everything dials too: of two peers it may be the one that cannot be reached.
    pub(crate) fn next_to_dial(&mut self, now: Instant) -> Option<Endpoint> {
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
    pub(crate) fn lost(&mut self, address: Endpoint, useful: bool, now: Instant) {
        self.book.lost(address, useful, now);
        if !self.book.contains(&address) {
            self.paths.manager.forget_address(address);
        }
    }

    /// When [`TorrentDriver::next_to_dial`] has one, if places are not lacking.
    pub(crate) fn dial_deadline(&self, now: Instant) -> Option<Instant> {
        self.book.next_deadline(now, self.core.is_finished()).filter(|_| self.is_of_use() && !self.is_held())
    }

    /// Something is to be had or to be given.
    fn is_of_use(&self) -> bool {
        !self.core.is_finished() || self.core.have().is_some_and(|have| have.count() > 0)
    }

    /// A connection that was opened by us or by the other side is about to leave the core.
    pub(crate) fn note_end(&mut self, id: ConnId, outgoing: bool, useful: bool, now: Instant) {
        let Some(address) = self.core.listen_address(id) else { return };
        self.book.set_complete(address, self.core.needs_nothing(id));
        if self.core.prefers_encryption(id) {
            self.book.set_prefers_encryption(address, true);
        }
        if !outgoing {
            self.book.lost(address, useful, now);
        }
    }
}
