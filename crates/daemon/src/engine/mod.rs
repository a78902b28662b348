//! What the library holds is put to work in the session, and kept up to date.
//!
//! A content is in the session once it had its turn: opened in the background, a few at a time, so that a library of thousands is
//! there at once. Who waits (paused, queued, no room) and was not opened yet costs nothing but its entry. What is asked of a content is
//! first kept, then acknowledged, then done; one task, [`Engine::drive`], brings the session in line with what is kept.
//!
//! All of it is on one thread, which is not the session's, and asks that by its handle.
//!
//! | module | what it does |
//! | --- | --- |
//! | `add` | contents come |
//! | `bulk` | what is special with bulk transfers |
//! | `broadcast`, `input` | live streams whose source is here, and what they are made of |
//! | `change` | what users ask of them |
//! | `load` | they go into the session |
//! | `drive` | the session is brought in line |
//! | `events` | what the session tells |
//! | `tick` | what time brings: rates, limits, room on the disk |
//! | `keep` | what was learned of them goes to the disk, in the background |
//! | `changes`, `sums` | which of them changed lately; the numbers of all |
//! | `live` | what is known of one at work |
//! | `find` | which content a user means |
//! | `watch` | folders in which torrent files appear |
//! | `names` | categories and tags |
//! | `view`, `detail`, `seen` | how they look from outside |

mod add;
mod broadcast;
mod bulk;
mod change;
mod changes;
mod detail;
mod drive;
mod events;
mod find;
mod input;
mod keep;
mod live;
mod load;
mod names;
mod seen;
mod sums;
mod tick;
mod view;
mod watch;

use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anabranch_content::metainfo::MetainfoError;
use anabranch_paths::{Endpoint, ScionAddr};
use anabranch_swarm::bulk::Placed;
use anabranch_swarm::{ContentId, ControlError, DownloadError, Handle};
use serde_json::Value;
use tokio::sync::{Mutex, Notify, Semaphore, mpsc};

pub(crate) use add::{NewContent, NewSource, check};
pub(crate) use broadcast::NewBroadcast;
pub(crate) use bulk::NewBulk;
pub(crate) use seen::{Seen, is_at};
pub(crate) use sums::Sums;
pub(crate) use view::{Filter, STATES};

use crate::feed::Feed;
use crate::folders::{FolderError, Folders};
use crate::library::{
    Entry, LocalTime, NEXT_KEY, Refused, Restored, SETTINGS_KEY, Settings, Totals, next_json, restore,
};
use crate::store::{Change, Entries, Store, StoreError};
use changes::Changes;
use events::Early;
use live::Live;
use sums::SumsByKind;

/// Contents that a library takes.
pub(crate) const CONTENTS_MAX: usize = 100_000;
/// Letters of the hashes that all of BitTorrent knows.
pub(crate) const SHORT_HASH_LEN: usize = 40;
/// Contents of which a torrent is made at once: each keeps a disk busy.
const HASHING_MAX: usize = 1;
/// Torrent files that are fetched at once, each held in memory.
const FETCHES_MAX: usize = 4;

/// A content that is complete, or came whole by bulk transfer, for whoever does something about that.
#[derive(Clone, Debug)]
pub struct Completed {
    /// Its number in the session.
    pub session: ContentId,
    /// What it is.
    pub what: Whole,
    /// The folder below which its files are.
    pub dir: PathBuf,
}

/// What is complete.
#[derive(Clone, Debug)]
pub enum Whole {
    /// A content.
    Content(std::sync::Arc<anabranch_content::info::Info>),
    /// What a bulk transfer brought.
    Bulk {
        /// What it is called.
        name: String,
        /// Bytes of content.
        bytes: u64,
        /// Where it lies.
        placed: Placed,
    },
}

/// What holds for all contents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Common {
    /// Peers to dial.
    pub peers: Vec<Endpoint>,
    /// Keys that hosts of SCION have to prove.
    pub keys: Vec<(ScionAddr, anabranch_swarm::NodeId)>,
    /// Trackers beside their own.
    pub trackers: Vec<String>,
    /// What the session was told to receive and send at most.
    pub limits: (Option<u64>, Option<u64>),
    /// Hosts of the local network that torrent files may be fetched from.
    pub fetch_hosts: Vec<String>,
    /// What the clock on the wall shows.
    pub clock: Option<fn() -> LocalTime>,
}

/// Why something that was asked for is not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// There is none of this name.
    #[error("there is no content {0}: the list says which there are")]
    Unknown(String),
    /// It is there already.
    #[error("{0} is in the library already, as content {1}")]
    Duplicate(String, u64),
    /// It is at something else.
    #[error("content {0} is {1}: wait for that to end")]
    Busy(u64, &'static str),
    /// The state of things does not allow it.
    #[error("{0}")]
    Conflict(String),
    /// Something in the request is wrong.
    #[error("`{field}` must be {must}")]
    Invalid {
        /// Which field.
        field: &'static str,
        /// What it has to be.
        must: String,
    },
    /// What was sent to a live stream went no further.
    #[error("nothing came for {} seconds, so this connection is given up: connect again, and the stream goes on", input::STALL_MAX.as_secs())]
    Stalled,
    /// The source is nothing that can be added.
    #[error("{0}")]
    Source(String),
    /// The library is full.
    #[error("the library holds {CONTENTS_MAX} contents: remove some")]
    Full,
    /// A path leads where nothing may go.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// It cannot be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The session did not do it.
    #[error(transparent)]
    Session(#[from] ControlError),
    /// A torrent file cannot be fetched.
    #[error("cannot fetch the torrent file: {0}")]
    Fetch(#[from] DownloadError),
    /// A torrent that cannot be used.
    #[error("this is no torrent that can be used: {0}; get the file again from where it came")]
    Torrent(#[from] MetainfoError),
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        Self::Invalid { field: refused.field, must: refused.must.to_owned() }
    }
}

/// A content: what is kept of it, and what it is at.
pub(crate) struct Content {
    pub(crate) entry: Entry,
    /// What moved before it was put into the session the last time.
    totals: Totals,
    live: Live,
    /// When something of it last changed, by the clock of [`Changes`].
    touched: u64,
    /// Its part of the numbers of all.
    counted: Sums,
}

impl Content {
    fn new(entry: Entry, totals: Totals) -> Self {
        Self { entry, totals, live: Live::default(), touched: 0, counted: Sums::default() }
    }

    /// It is in the session no more: what moved there counts from now on as what moved before.
    fn leave(&mut self) {
        self.totals = tick::totals(self);
        self.live.leave();
    }
}

/// Everything that is known.
pub(crate) struct State {
    /// What holds.
    settings: Settings,
    /// What users set.
    kept: Settings,
    contents: BTreeMap<u64, Content>,
    by_session: HashMap<ContentId, u64>,
    by_hash: HashMap<String, u64>,
    next: u64,
    /// Hashes and paths of what is being added, which nobody else may add meanwhile.
    adding: HashSet<String>,
    early: Early,
    /// Everything that has its turn was put into the session once.
    is_ready: bool,
    changes: Changes,
    sums: SumsByKind,
    /// Goes on with every change of the settings.
    settings_version: u64,
    /// Contents that became complete, to be told of once that is kept.
    finished: Vec<u64>,
}

impl State {
    /// A content can be found by its hashes, and by the beginning of those that are longer than others know.
    fn index(&mut self, entry: &Entry) {
        for hash in &entry.hashes {
            self.by_hash.insert(hash.clone(), entry.id);
            if let Some(short) = hash.get(..SHORT_HASH_LEN).filter(|short| short.len() < hash.len()) {
                self.by_hash.entry(short.to_owned()).or_insert(entry.id);
            }
        }
    }

    /// Those that are not on their way out.
    fn staying(&self) -> impl Iterator<Item = &Content> {
        self.contents.values().filter(|content| content.entry.going.is_none())
    }

    /// A content comes.
    fn insert(&mut self, mut content: Content) {
        self.index(&content.entry);
        content.touched = self.changes.touch(content.entry.id, 0);
        self.sums.count(&mut content);
        self.contents.insert(content.entry.id, content);
    }

    /// Changes a content, if it is there.
    fn change<T>(&mut self, id: u64, change: impl FnOnce(&mut Content) -> T) -> Option<T> {
        let content = self.contents.get_mut(&id)?;
        let changed = change(content);
        content.touched = self.changes.touch(id, content.touched);
        self.sums.count(content);
        Some(changed)
    }

    /// A content goes.
    fn remove(&mut self, id: u64) {
        let Some(content) = self.contents.remove(&id) else { return };
        self.changes.remove(id, content.touched);
        self.sums.forget(&content);
        let is_its = |of: &u64| *of == id;
        for hash in &content.entry.hashes {
            for name in [Some(hash.as_str()), hash.get(..SHORT_HASH_LEN)].into_iter().flatten() {
                if self.by_hash.get(name).is_some_and(is_its) {
                    self.by_hash.remove(name);
                }
            }
        }
        if let Some(session) = content.live.session.filter(|session| self.by_session.get(session).is_some_and(is_its)) {
            self.by_session.remove(&session);
        }
    }
}

/// The library at work.
pub(crate) struct Engine {
    handle: Handle,
    store: Store,
    feed: Feed,
    folders: RefCell<Folders>,
    common: RefCell<Common>,
    state: RefCell<State>,
    /// Something is not as it should be.
    changed: Notify,
    /// Something was learned of contents that is not kept yet.
    learned: Notify,
    /// One change of the library after the other.
    writing: Mutex<()>,
    hashing: Semaphore,
    fetching: Semaphore,
    watched: Mutex<watch::Watched>,
    /// Told of each content that is complete, in its place.
    completed: Option<mpsc::Sender<Completed>>,
    /// When it was last looked how many bytes are free, and how many were.
    free: Cell<Option<(Instant, Option<u64>)>>,
    started: Instant,
}

impl Engine {
    /// What was kept, not at work yet.
    pub(crate) fn new(
        handle: Handle,
        (store, kept): (Store, Entries),
        feed: Feed,
        folders: Folders,
        dir: PathBuf,
        common: Common,
        completed: Option<mpsc::Sender<Completed>>,
    ) -> (Rc<Self>, Vec<String>) {
        let Restored { entries, settings, next, strange } = restore(&kept, dir);
        let mut state = State {
            settings: settings.over(common.limits),
            kept: settings,
            contents: BTreeMap::new(),
            by_session: HashMap::new(),
            by_hash: HashMap::new(),
            next,
            adding: HashSet::new(),
            early: Early::default(),
            is_ready: false,
            changes: Changes::default(),
            sums: SumsByKind::default(),
            settings_version: 0,
            finished: Vec::new(),
        };
        for (entry, totals) in entries {
            state.insert(Content::new(entry, totals));
        }
        let engine = Self {
            handle,
            store,
            feed,
            folders: RefCell::new(folders),
            common: RefCell::new(common),
            state: RefCell::new(state),
            changed: Notify::new(),
            learned: Notify::new(),
            writing: Mutex::new(()),
            hashing: Semaphore::new(HASHING_MAX),
            fetching: Semaphore::new(FETCHES_MAX),
            watched: Mutex::default(),
            completed,
            free: Cell::default(),
            started: Instant::now(),
        };
        (Rc::new(engine), strange)
    }

    /// Where happenings are told.
    pub(crate) fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Lets go of the folder of the library. Nothing can be changed any more.
    pub(crate) async fn close_library(&self) {
        self.store.end().await;
    }

    /// Everything that was to be put to work at the start is.
    pub(crate) fn is_ready(&self) -> bool {
        self.state.borrow().is_ready
    }

    /// The settings.
    pub(crate) fn settings(&self) -> Settings {
        self.state.borrow().settings.clone()
    }

    /// Since when it runs.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Changes the entries of contents, all or none, and has the session follow. They are kept when this is done.
    pub(crate) async fn update(
        &self,
        ids: &[u64],
        change: impl Fn(&mut Entry) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let _turn = self.writing.lock().await;
        let mut entries = Vec::new();
        for id in ids {
            let mut entry = self.entry(*id)?;
            change(&mut entry)?;
            entries.push(entry);
        }
        let batch = entries.iter().map(|entry| (Entry::key(entry.id), Some(entry.to_json()))).collect();
        self.store.write(Change { batch, ..Change::default() }).await?;
        for entry in entries {
            let id = entry.id;
            self.with(id, |content| content.take(entry));
            self.announce(id);
        }
        self.changed.notify_one();
        Ok(())
    }

    /// Changes the settings.
    pub(crate) async fn set(&self, changes: &serde_json::Map<String, Value>) -> Result<Value, Refusal> {
        let _turn = self.writing.lock().await;
        let mut new = self.state().kept.with(changes)?;
        if changes.contains_key("dir") {
            new.dir = self.folders().admit(&new.dir)?;
        }
        if changes.contains_key("incomplete_dir") {
            new.incomplete_dir = new.incomplete_dir.map(|dir| self.folders().admit(&dir)).transpose()?;
        }
        if changes.contains_key("watched") {
            let admit = |path: PathBuf| self.folders().admit(&path);
            let both = |(folder, dir): (PathBuf, Option<PathBuf>)| Ok((admit(folder)?, dir.map(admit).transpose()?));
            new.watched = new.watched.into_iter().map(both).collect::<Result<_, FolderError>>()?;
        }
        if changes.contains_key("categories") {
            for dir in new.categories.values_mut().flatten() {
                *dir = self.folders().admit(dir)?;
            }
        }
        let batch = vec![(SETTINGS_KEY.to_owned(), Some(new.to_json()))];
        self.store.write(Change { batch, ..Change::default() }).await?;
        self.take_settings(new).await
    }

    /// What is kept of a content.
    pub(crate) fn entry(&self, id: u64) -> Result<Entry, Refusal> {
        let state = self.state.borrow();
        let content = state.contents.get(&id).filter(|content| content.entry.going.is_none());
        content.map(|content| content.entry.clone()).ok_or_else(|| Refusal::Unknown(id.to_string()))
    }

    /// Looks at a content, if it is there, and may change it.
    fn with<T>(&self, id: u64, look: impl FnOnce(&mut Content) -> T) -> Option<T> {
        self.state.borrow_mut().change(id, look)
    }

    /// Where contents may go.
    fn folders(&self) -> Ref<'_, Folders> {
        self.folders.borrow()
    }

    /// Takes in a configuration that was read again.
    pub(crate) async fn reload(&self, folders: Folders, common: Common) {
        let _turn = self.writing.lock().await;
        *self.folders.borrow_mut() = folders;
        *self.common.borrow_mut() = common;
        let settings = self.state().kept.clone();
        // A session that ends needs no limits.
        let _ = self.take_settings(settings).await;
    }

    /// Has settings hold, with what the configuration says where they say nothing.
    async fn take_settings(&self, kept: Settings) -> Result<Value, Refusal> {
        let limits = self.common.borrow().limits;
        let settings = kept.over(limits);
        let (shown, (down, up)) = (settings.to_json(), settings.limits());
        {
            let mut state = self.state.borrow_mut();
            (state.kept, state.settings) = (kept, settings);
            state.settings_version += 1;
        }
        self.feed.tell("settings", &shown);
        self.changed.notify_one();
        self.handle.set_session_limits(down, up).await?;
        Ok(shown)
    }

    fn state(&self) -> Ref<'_, State> {
        self.state.borrow()
    }

    /// The number for a new content, and what keeps it from being given again.
    fn next_id(&self) -> (u64, (String, Option<Value>)) {
        let mut state = self.state.borrow_mut();
        let id = state.next;
        state.next += 1;
        (id, (NEXT_KEY.to_owned(), Some(next_json(state.next))))
    }
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
