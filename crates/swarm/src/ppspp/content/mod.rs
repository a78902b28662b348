//! One content at work in PPSPP: its core, its files, and what moves between them and the sockets.

mod channels;
mod check;
mod choking;
mod conn;
mod deadlines;
mod disk;
pub(super) mod finish;
mod folder;
mod handle;
mod lifecycle;
mod live;
mod lose;
pub(super) mod open;
mod paths;
mod reading;
mod receive;
mod secure;
mod send;
#[cfg(test)]
mod tests;
mod time;

pub(crate) use check::good_pieces;
pub(crate) use handle::{Handle, guarded};
pub(crate) use paths::drive_paths;
pub(crate) use time::keep_time;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anabranch_content::bitfield::Bitfield;
use anabranch_content::info::{Info, InfoHashes};
use anabranch_content::storage::{ResumeStore, Storage};
use anabranch_ppspp::link::Link;
use anabranch_ppspp::swarm::{Swarm, Transmit};
use anabranch_transport::NodeId;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::audience::SecureContent;
use super::describe;
use super::head::Head;
use super::hub::{Hub, Recipient};
use super::live::Live;
use super::nodes::Nodes;
use super::path_table::PathAddress;
use super::paths::ContentPaths;
use super::peers::Peers;
use super::rates::Rates;
use crate::config::AddOptions;
use crate::events::{ContentId, Event, EventKind};
use crate::resources::Resources;
use crate::store::buffers::PieceBuffers;
use crate::store::disk::{SpillJob, VerifyJob};
use crate::store::readers::Readers;
use crate::transfer::Work;
use choking::Choking;
use conn::Conn;

/// Everything about one content.
pub(crate) struct Content {
    /// Its number.
    pub id: ContentId,
    /// What it is, as its link tells; the length is filled in when it is proven.
    pub link: Link,
    /// The protocol.
    pub core: Swarm<PathAddress, Nodes>,
    /// The owner's choices.
    pub options: AddOptions,
    /// Whom it knows.
    pub peers: Peers,
    /// What takes the files' place in a live stream.
    pub live: Option<Live>,
    /// Its datagrams are inside QUIC.
    pub(super) secure: Option<SecureContent>,
    /// What stands in front of a folder's files.
    head: Option<Head>,
    /// Its description to the store, once the length is known, and of a folder the list of its files.
    pub info: Option<Arc<Info>>,
    /// Its files, once open.
    pub storage: Option<Arc<Storage>>,
    /// The record of verified pieces, once open; none where files are only read.
    pub resume: Option<Arc<ResumeStore>>,
    /// Pieces under way.
    pub buffers: Option<PieceBuffers>,
    /// The chunk that proved the content's size, until there is a file for it.
    pub early: Option<(u64, Box<[u8]>)>,
    /// Pieces that are written.
    pub have: Bitfield,
    /// Files that changed since they were verified, until they are the content again.
    in_doubt: BTreeSet<usize>,
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
    /// Until when that task sleeps.
    sleeps_until: Instant,
    /// Wakes those who wait for a piece to read it.
    pub arrived: Rc<Notify>,
    /// Who reads it.
    readers: Readers,
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
    store: Stored,
    hub: Rc<Hub>,
    /// Over which paths its channels go.
    pub(super) paths: ContentPaths,
    resources: Rc<Resources>,
    conns: HashMap<PathAddress, Conn>,
    choking: Choking,
    /// Chunks that leave when the disk has them, or the socket has room.
    held_back: VecDeque<Transmit<PathAddress>>,
    is_reading_ahead: bool,
    /// Where what a disk thread read last begins.
    readahead_offset: Option<u64>,
    is_socket_full: bool,
    scratch: Vec<u8>,
    deadlines: BTreeMap<u32, Instant>,
    /// The piece that who moved last was at.
    played_front: u32,
    me: Weak<RefCell<Self>>,
    tasks: RefCell<JoinSet<()>>,
}

/// What is on its way to the disk.
#[derive(Default)]
struct Stored {
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
enum Stalled {
    Piece(Box<VerifyJob>),
    Spill(Box<SpillJob>),
}

impl Drop for Content {
    fn drop(&mut self) {
        self.hub.directory().remove(self.id);
        self.resources.down.remove_content(self.id.0);
        self.resources.up.remove_content(self.id.0);
    }
}

impl Content {
    /// A content whose files are not open yet.
    pub(crate) fn new(
        id: ContentId,
        link: Link,
        core: Swarm<PathAddress, Nodes>,
        options: AddOptions,
        (resources, hub): (Rc<Resources>, Rc<Hub>),
    ) -> Self {
        let now = Instant::now();
        resources.down.add_content(id.0, options.limit_down, now);
        resources.up.add_content(id.0, options.limit_up, now);
        let choking = Choking::new(resources.config.choker, resources.config.seed ^ id.0);
        Self {
            id,
            link,
            core,
            options,
            peers: Peers::default(),
            live: None,
            secure: None,
            head: None,
            info: None,
            storage: None,
            resume: None,
            buffers: None,
            early: None,
            have: Bitfield::new(0),
            in_doubt: BTreeSet::new(),
            work: None,
            trackers_left: 0,
            is_announce_due: false,
            is_announcing: false,
            wake: Rc::default(),
            sleeps_until: now,
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
            paths: ContentPaths::new(&resources, now),
            resources,
            conns: HashMap::new(),
            choking,
            held_back: VecDeque::new(),
            is_reading_ahead: false,
            readahead_offset: None,
            is_socket_full: false,
            scratch: Vec::new(),
            deadlines: BTreeMap::new(),
            played_front: 0,
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
        self.resources.tell(Event { content: self.id, kind });
    }

    /// As trackers and records name it.
    pub(crate) fn hashes(&self) -> InfoHashes {
        describe::hashes(&self.link)
    }

    /// Chunks in front of the first file's.
    pub(super) fn front(&self) -> u64 {
        self.link.manifest_chunks()
    }

    /// Open channels.
    pub(crate) fn conn_count(&self) -> usize {
        self.conns.len()
    }

    /// Whether disk threads have something of it.
    pub(crate) fn is_busy(&self) -> bool {
        self.store.verifying > 0 || self.store.spilling > 0
    }
}

impl Recipient for Content {
    fn received(&mut self, datagrams: &[(PathAddress, &[u8])], now: Instant) {
        Self::received(self, datagrams, now);
    }

    fn is_calling(&self, way: &PathAddress) -> bool {
        Self::is_calling(self, way)
    }

    fn secured(&mut self, way: &PathAddress, key: NodeId, now: Instant) {
        Self::secured(self, way, key, now);
    }

    fn unsecured(&mut self, way: &PathAddress, reason: &str, is_final: bool, now: Instant) {
        Self::unsecured(self, way, reason, is_final, now);
    }
}
