//! A session: many contents, one set of listeners, buffers, disk threads and limits.
//!
//! Everything but the disk threads runs on the thread that calls [`Session::start`], inside a tokio `LocalSet`: one thread
//! moves gigabytes per second, and nothing needs a lock.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anabranch_bittorrent::choker;
use anabranch_bittorrent::handshake::peer_id;
use anabranch_bittorrent::ip_filter::IpFilter;
use anabranch_bittorrent::picker::{Order, RequestStrategy};
use anabranch_bittorrent::reach::may_link_to_peer;
use anabranch_bittorrent::torrent::{PeerStats, Torrent, TorrentConfig, TorrentStats};
use anabranch_bittorrent::tracker::TrackerUrl;
use anabranch_content::bitfield::Bitfield;
use anabranch_content::info::{FileEntry, Info, InfoHashes};
use anabranch_content::magnet::Magnet;
use anabranch_content::metainfo::{Metainfo, NameRules, PieceLayers};
use anabranch_content::storage::Preallocate;
use anabranch_content::verify;
use anabranch_paths::manager::LinkHealth;
use anabranch_paths::{Endpoint, Host, ScionAddr, Scoreboard};
use anabranch_scion::socket::BindError;
use anabranch_transport::{Identity, InterfaceError, Listener, NodeId, Proxy, TcpListener};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, Semaphore};
use tokio::task::AbortHandle;

use crate::bittorrent::announce;
use crate::bittorrent::conn::Scratch;
use crate::bittorrent::dial;
use crate::bittorrent::kept_metadata;
use crate::bittorrent::open;
use crate::bittorrent::recheck;
use crate::bittorrent::sources::Sources;
use crate::bittorrent::torrent::{ConnHandle, NewState, State, TorrentRef};
use crate::events::{Event, EventKind, FailureKind, TorrentId};
use crate::limits::{Line, keep_pace};
use crate::net::admission::{Pace, Place, Strangers, gives_way};
use crate::net::scion::{ScionConfig, ScionNet};
use crate::net::uplinks::Uplinks;
use crate::net::utp;
use crate::paths_driver::{self, PathProgress, PathsConfig};
use crate::store::buffers::Pools;
use crate::store::disk::{Disk, Reply};
use crate::store::open::blocking;
use crate::tracker::{Client, ClientConfig, Ground};

/// How long leaving may take: trackers are told, files are synced.
const SHUTDOWN_MAX: Duration = Duration::from_secs(3);
/// How often leaving looks whether the disk threads are done.
const SHUTDOWN_POLL: Duration = Duration::from_millis(5);
/// Contents that are opened and checked at once: a check keeps a disk busy by itself, and each takes a thread.
const OPENING_MAX: usize = 4;
/// How often storage that is out of order is tried again.
const STORAGE_RETRY: Duration = Duration::from_secs(2);
/// What the secret is for that peers know us by.
const IDENTITY_PURPOSE: &str = "bittorrent peer identity";
/// How often running downloads look whether their state should be synced.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(5);

/// Choices that hold for all contents of a session.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Where to listen; port 0 lets the system choose. Empty: peers cannot reach us.
    pub listen: Vec<SocketAddr>,
    /// How peers are reached over SCION; `None`: not at all.
    pub scion: Option<ScionConfig>,
    /// How paths are chosen.
    pub paths: PathsConfig,
    /// Connections of all contents together.
    pub connections_max: usize,
    /// Connections of one content.
    pub torrent_connections_max: usize,
    /// Bytes per second, all contents together.
    pub limit_down: Option<u64>,
    /// Bytes per second, all contents together.
    pub limit_up: Option<u64>,
    /// Bytes per second, each connection.
    pub peer_limit_down: Option<u64>,
    /// Bytes per second, each connection.
    pub peer_limit_up: Option<u64>,
    /// Memory for pieces under way.
    pub buffer_bytes: u64,
    /// Threads that hash and write.
    pub disk_threads: usize,
    /// How requests are spread over connections.
    pub strategy: RequestStrategy,
    /// Upload slots.
    pub choker: choker::Config,
    /// Whether peers may be exchanged with peers (BEP 11).
    pub pex: bool,
    /// How files get their space.
    pub preallocate: Preallocate,
    /// Whom we have nothing to do with.
    pub filter: Arc<IpFilter>,
    /// What all connections go through that we open over IP; what cannot is left.
    pub proxy: Option<Arc<Proxy>>,
    /// Folder for resume files; `None` keeps each beside its content.
    pub state_dir: Option<PathBuf>,
    /// Folder for the metadata of magnet links, so that peers are asked for it once; `None` keeps none.
    pub metadata_dir: Option<PathBuf>,
    /// Decides every random choice.
    pub seed: u64,
}

/// Memory for pieces under way: two windows of 1 Gbit/s at 100 ms, and as much again being hashed.
pub const BUFFER_BYTES_DEFAULT: u64 = 48 * 1024 * 1024;

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            scion: None,
            paths: PathsConfig::default(),
            connections_max: 1000,
            torrent_connections_max: 400,
            limit_down: None,
            limit_up: None,
            peer_limit_down: None,
            peer_limit_up: None,
            buffer_bytes: BUFFER_BYTES_DEFAULT,
            disk_threads: std::thread::available_parallelism()
                .map_or(1, |cores| cores.get().saturating_sub(1).clamp(1, 4)),
            strategy: RequestStrategy::default(),
            choker: choker::Config::default(),
            pex: true,
            preallocate: Preallocate::default(),
            filter: Arc::default(),
            proxy: None,
            state_dir: None,
            metadata_dir: None,
            seed: fastrand::u64(..),
        }
    }
}

/// What to add.
#[derive(Clone, Debug)]
pub enum Source {
    /// A torrent file.
    Metainfo(Box<Metainfo>),
    /// A magnet link; the metadata comes from peers.
    Magnet(Box<Magnet>),
}

/// Which files of a content are wanted, by their index in the file list (BEP 53) or what they are.
pub type FileFilter = Box<dyn Fn(usize, &FileEntry) -> bool>;

/// What is wanted of a content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aim {
    /// Its files.
    #[default]
    Files,
    /// The files that [`Session::choose`] names once the metadata is known. Until then none is looked at or made.
    ChosenFiles,
    /// What it is: its metadata, and its Merkle layers (BEP 52). No file is looked at or made.
    Metadata,
}

/// How to treat one content.
#[derive(Default)]
pub struct AddOptions {
    /// What is wanted of it.
    pub aim: Aim,
    /// The folder below which its files are.
    pub dir: PathBuf,
    /// Peers to dial.
    pub peers: Vec<Endpoint>,
    /// The keys that hosts of SCION have to prove.
    pub keys: Vec<(ScionAddr, NodeId)>,
    /// Trackers that the user names: beside the content's own, or among them.
    pub trackers: Vec<String>,
    /// Which files to fetch; all where `None`.
    pub files: Option<FileFilter>,
    /// Fetch pieces in order.
    pub sequential: bool,
    /// Bytes per second.
    pub limit_down: Option<u64>,
    /// Bytes per second.
    pub limit_up: Option<u64>,
    /// Files are only read: for sharing what is there.
    pub read_only: bool,
    /// Files that are others than the content's and stand in their place are overwritten.
    pub overwrite: bool,
    /// All pieces are known to be good, from having just been hashed: no check.
    pub trusted: bool,
    /// Verify everything on disk, whatever the resume file says.
    pub recheck: bool,
    /// Leave nothing but the content behind: the resume file goes at shutdown where every piece is there. Who takes the
    /// content up again has it verified once; where a magnet link does not suffice for that (v2), the file stays.
    pub tidy: bool,
}

/// Why a content cannot be added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// It is there already.
    #[error("{0} is in this session already")]
    Duplicate(String),
}

/// Why a session cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// There is no place for us in the SCION network.
    #[error("cannot listen on {address}: {source}")]
    Scion {
        /// Where.
        address: Endpoint,
        /// Why.
        source: BindError,
    },
    /// There are no network interfaces as the configuration names them.
    #[error(transparent)]
    Interfaces(InterfaceError),
    /// The disk threads cannot be started.
    #[error("cannot start the disk threads: {0}")]
    Threads(io::Error),
}

/// A content's state, for progress.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Name, once known.
    pub name: Option<String>,
    /// Bytes of wanted pieces that are verified.
    pub bytes_done: u64,
    /// Bytes of wanted pieces; `None` until the metadata is known.
    pub bytes_total: Option<u64>,
    /// Verified pieces.
    pub pieces_have: u32,
    /// All pieces.
    pub pieces_total: u32,
    /// Traffic.
    pub stats: TorrentStats,
    /// Everything wanted is there.
    pub finished: bool,
    /// Waiting for storage to work again.
    pub paused: bool,
}

/// What all tasks of a session share.
pub struct Shared {
    /// The choices.
    pub config: SessionConfig,
    /// Where we listen.
    pub listening: Vec<SocketAddr>,
    /// Our place in the SCION network.
    pub scion: Option<Rc<ScionNet>>,
    /// The ways out of this machine; `None` where the system does not tell.
    pub uplinks: Option<Uplinks>,
    /// What was measured of paths.
    pub board: RefCell<Scoreboard>,
    /// Which links of the SCION network are down.
    pub links: Rc<RefCell<LinkHealth>>,
    /// What our names among peers are made of.
    identity_secret: Option<[u8; 32]>,
    /// Our name.
    pub peer_id: [u8; 20],
    /// Receive memory.
    pub scratch: RefCell<Scratch>,
    /// Piece memory.
    pub pools: Rc<Pools>,
    /// Bytes asked for by all contents and not here yet.
    pub requested_bytes: Cell<u64>,
    /// The disk threads.
    pub disk: Disk,
    /// Their answers.
    pub replies: UnboundedSender<Reply>,
    /// Limit over all downloads.
    pub down: Rc<Line>,
    /// Limit over all uploads.
    pub up: Rc<Line>,
    /// Open connections, all contents.
    pub connections: Cell<usize>,
    /// Who has not said yet what it wants.
    pub strangers: Strangers,
    /// How fast connections are opened.
    pub pace: Pace,
    /// Speaks to trackers.
    pub trackers: Client,
    /// The owner's choices per content, until its files are open.
    pub options: RefCell<BTreeMap<TorrentId, AddOptions>>,
    torrents: RefCell<BTreeMap<TorrentId, TorrentRef>>,
    by_hash: RefCell<HashMap<[u8; 20], TorrentId>>,
    next_id: Cell<u64>,
    events: UnboundedSender<Event>,
    /// Places for contents that are opened and checked.
    pub opening: Semaphore,
    /// Set when checks are not waited for any more.
    pub cancel: Arc<AtomicBool>,
    stopping: Cell<bool>,
    announced: Rc<Notify>,
    announcing: Cell<usize>,
}

/// A running session. Dropping it abandons transfers: connections are closed and listeners gone as soon as their tasks run
/// again, and what the disk threads have is still written. [`Session::shutdown`] leaves politely.
pub struct Session {
    shared: Rc<Shared>,
    /// Tasks that no content ends.
    tasks: Vec<AbortHandle>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.stop("we are leaving");
        // Others may have the places at once, whatever still holds on to the contents.
        for torrent in self.shared.torrents.borrow().values() {
            torrent.borrow().storage.iter().for_each(|storage| storage.release());
        }
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Session {
    /// Starts listening and the disk threads. Must run inside a tokio `LocalSet`.
    ///
    /// Events queue without limit: each is small, and their number is bounded by what really happened; read them.
    pub fn start(config: SessionConfig) -> Result<(Self, UnboundedReceiver<Event>), SessionError> {
        let now = Instant::now();
        let mut listeners = Vec::new();
        let mut listening = Vec::new();
        for address in &config.listen {
            let failed = |source| SessionError::Listen { address: *address, source };
            let listener = TcpListener::bind(*address).map_err(failed)?;
            listening.push(listener.local_addr().map_err(failed)?);
            listeners.push(Listener::Tcp(listener));
        }
        let links = Rc::<RefCell<LinkHealth>>::default();
        let scion = config.scion.as_ref().map(|scion| {
            let failed = |source| SessionError::Scion { address: Endpoint::Scion(scion.local), source };
            ScionNet::open(scion, Rc::clone(&links)).map(Rc::new).map_err(failed)
        });
        let scion = scion.transpose()?;
        let uplinks = match Uplinks::open(&config.paths.interfaces, now) {
            // There is one way, whichever interface leads to it.
            _ if config.proxy.is_some() => None,
            // Where nobody names any, connections go as the system's routes go.
            Err(InterfaceError::Io(_)) if config.paths.interfaces.is_empty() => None,
            opened => Some(opened.map_err(SessionError::Interfaces)?),
        };
        listeners.extend(scion.iter().map(|net| Listener::Quic(Rc::clone(&net.endpoint))));
        let (replies, replied) = unbounded_channel();
        let (events, events_out) = unbounded_channel();
        let identity = config.scion.as_ref().map(|scion| scion.identity.clone());
        // Without randomness, connections of ours over several addresses are not known as one peer's.
        let identity = identity.or_else(|| Identity::ephemeral().ok());
        let shared = Rc::new(Shared {
            listening,
            scion: scion.clone(),
            uplinks,
            links,
            board: RefCell::default(),
            identity_secret: identity.map(|identity| identity.secret(IDENTITY_PURPOSE)),
            peer_id: peer_id(config.seed),
            scratch: RefCell::new(Scratch::new()),
            pools: Pools::new(config.buffer_bytes),
            requested_bytes: Cell::new(0),
            disk: Disk::new(config.disk_threads).map_err(SessionError::Threads)?,
            replies,
            down: Line::new(config.limit_down, now),
            up: Line::new(config.limit_up, now),
            connections: Cell::new(0),
            strangers: Strangers::default(),
            pace: Pace::new(now),
            trackers: Client::new(ClientConfig {
                ground: Ground { filter: Arc::clone(&config.filter), proxy: config.proxy.clone() },
                ..ClientConfig::default()
            }),
            options: RefCell::default(),
            torrents: RefCell::default(),
            by_hash: RefCell::default(),
            next_id: Cell::new(0),
            events,
            opening: Semaphore::new(OPENING_MAX),
            cancel: Arc::default(),
            stopping: Cell::new(false),
            announced: Rc::default(),
            announcing: Cell::new(0),
            config,
        });
        // Behind the SCION socket, whose port it must not take.
        let calls: Vec<_> = shared.listening.iter().filter_map(|address| utp::open(*address).ok()).collect();
        let accepting = listeners.into_iter().map(|listener| dial::accept(Rc::clone(&shared), listener));
        let mut tasks: Vec<_> = accepting.map(|task| tokio::task::spawn_local(task).abort_handle()).collect();
        tasks.extend(calls.into_iter().map(|socket| tokio::task::spawn_local(utp::turn_away(socket)).abort_handle()));
        tasks.extend(scion.map(|net| tokio::task::spawn_local(net.listen()).abort_handle()));
        tasks.push(tokio::task::spawn_local(serve_disk(Rc::clone(&shared), replied)).abort_handle());
        for line in [&shared.down, &shared.up] {
            tasks.push(tokio::task::spawn_local(keep_pace(Rc::clone(line))).abort_handle());
        }
        tasks.push(tokio::task::spawn_local(housekeeping(Rc::clone(&shared))).abort_handle());
        Ok((Self { shared, tasks }, events_out))
    }

    /// Where it listens, with the ports that the system chose.
    pub fn listening(&self) -> &[SocketAddr] {
        &self.shared.listening
    }

    /// The key that peers over SCION know it by.
    pub fn node_id(&self) -> Option<NodeId> {
        self.shared.config.scion.as_ref().map(|scion| scion.identity.node_id())
    }

    /// Where it is in the SCION network, with the port that was chosen.
    pub fn scion_address(&self) -> Option<ScionAddr> {
        self.shared.scion.as_ref()?.endpoint.local().as_scion()
    }

    /// Adds a content and begins with it.
    pub fn add(&self, source: Source, options: AddOptions) -> Result<TorrentId, AddError> {
        let now = Instant::now();
        let shared = &self.shared;
        let (hashes, mut tiers, (mut peers, unfit)) = match &source {
            Source::Metainfo(metainfo) => (metainfo.info.hashes, metainfo.trackers.clone(), Default::default()),
            Source::Magnet(magnet) => (magnet.hashes, magnet_tiers(magnet), magnet_peers(magnet, &shared.listening)),
        };
        // What the user says of a host goes before what a link says, which holds for the link's content alone.
        let keys = magnet_keys(&source).into_iter().chain(options.keys.clone()).collect();
        let known = |hash: &[u8; 20]| shared.by_hash.borrow().contains_key(hash);
        if hashes.wire_hashes().any(|hash| known(&hash)) {
            return Err(AddError::Duplicate(source.name()));
        }
        let id = TorrentId(shared.next_id.get());
        shared.next_id.set(id.0 + 1);
        let added = options.trackers.iter().filter(|url| !tiers.iter().flatten().any(|known| known == *url));
        let added: Vec<String> = added.cloned().collect();
        if !added.is_empty() {
            tiers.push(added);
        }
        let named = options.trackers.iter().filter_map(|url| url.parse().ok()).collect();
        for address in unfit.into_iter().filter(|address| !options.peers.contains(address)) {
            shared.tell(Event { torrent: id, kind: EventKind::PeerUnfit { address } });
        }
        peers.extend(&options.peers);
        let mut core = Torrent::new(hashes, shared.torrent_config(&options, id), now);
        if let Some(secret) = shared.identity_secret {
            core.set_identity_secret(secret);
        }
        if let Some(scion) = &shared.config.scion {
            core.set_node_key(*scion.identity.node_id().as_bytes());
        }
        let state = State::new(
            Rc::clone(shared),
            NewState {
                id,
                hashes,
                core,
                dir: options.dir.clone(),
                keys,
                tidy: options.tidy,
                layers_at_hand: matches!(source, Source::Metainfo(_)),
            },
        );
        shared.down.add_content(id.0, options.limit_down, now);
        shared.up.add_content(id.0, options.limit_up, now);
        let torrent = TorrentRef::new(state);
        shared.torrents.borrow_mut().insert(id, torrent.clone());
        for hash in hashes.wire_hashes() {
            shared.by_hash.borrow_mut().insert(hash, id);
        }
        peers.into_iter().for_each(|peer| torrent.borrow_mut().name_peer(peer));
        shared.options.borrow_mut().insert(id, options);
        tokio::task::spawn_local(keep_time(torrent.clone()));
        tokio::task::spawn_local(dial::dial(torrent.clone()));
        tokio::task::spawn_local(paths_driver::drive(torrent.clone()));
        if let (Source::Magnet(_), Some(folder)) = (&source, shared.config.metadata_dir.clone()) {
            let remembering = Rc::clone(shared).remember(torrent.clone(), folder);
            tokio::task::spawn_local(open::guarded(torrent.clone(), remembering));
        }
        if let Source::Metainfo(metainfo) = source {
            torrent.borrow_mut().metadata_known = true;
            let layers = metainfo.piece_layers.clone();
            torrent.borrow_mut().core.expect_content(Arc::clone(&metainfo.info));
            let opening = open::open(torrent.clone(), metainfo.info.clone(), layers);
            tokio::task::spawn_local(open::guarded(torrent.clone(), opening));
        }
        let urls = parse_trackers(&torrent, &tiers);
        torrent.borrow_mut().trackers_left = urls.iter().map(Vec::len).sum();
        if urls.iter().any(|tier| !tier.is_empty()) {
            shared.announcing.set(shared.announcing.get() + 1);
            tokio::task::spawn_local(announce::announce(torrent, urls, named));
        }
        Ok(id)
    }

    /// How a content fares; `None` when there is none of this number.
    pub fn progress(&self, id: TorrentId) -> Option<Progress> {
        let torrent = self.shared.torrent(id)?;
        let mut torrent = torrent.borrow_mut();
        Some(torrent.progress(Instant::now()))
    }

    /// Its connections.
    pub fn peers(&self, id: TorrentId) -> Vec<PeerStats> {
        let torrent = self.shared.torrent(id);
        torrent.map_or(Vec::new(), |torrent| torrent.borrow_mut().core.peer_stats(Instant::now()))
    }

    /// Its connections, each with its path.
    pub fn paths(&self, id: TorrentId) -> Vec<PathProgress> {
        let torrent = self.shared.torrent(id);
        torrent.map_or(Vec::new(), |torrent| torrent.borrow_mut().path_progress(Instant::now()))
    }

    /// Who may still bring what is missing of a content.
    pub fn sources(&self, id: TorrentId) -> Option<Sources> {
        Some(self.shared.torrent(id)?.borrow().sources(Instant::now()))
    }

    /// Lets a content go: connections end, trackers are told. What was received stays on disk and recorded.
    pub fn stop(&self, id: TorrentId) {
        let Some(torrent) = self.shared.torrent(id) else { return };
        self.shared.by_hash.borrow_mut().retain(|_, of| *of != id);
        torrent.borrow_mut().stop("this content is not shared any more");
    }

    /// Says which files are wanted of a content with [`Aim::ChosenFiles`], all where `None`, and lets it go on.
    pub fn choose(&self, id: TorrentId, files: Option<FileFilter>) {
        let Some(torrent) = self.shared.torrent(id) else { return };
        if let Some(options) = self.shared.options.borrow_mut().get_mut(&id) {
            options.files = files;
            options.aim = Aim::Files;
        }
        torrent.borrow().chosen.notify_one();
    }

    /// Where peers reach us over plain IP: the addresses of all interfaces that may be used, where it listens at all of them.
    pub fn reachable(&self) -> Vec<SocketAddr> {
        let uplinks = self.shared.uplinks.as_ref();
        uplinks.map_or(Vec::new(), |uplinks| uplinks.reachable_at(&self.shared.listening))
    }

    /// What a content is, once known.
    pub fn info(&self, id: TorrentId) -> Option<Arc<Info>> {
        self.shared.torrent(id)?.borrow().core.known_info().cloned()
    }

    /// A content's torrent, once all of it is known: of v2 and hybrids that came by a magnet link, the Merkle layers come last.
    pub fn metainfo(&self, id: TorrentId) -> Option<Metainfo> {
        let torrent = self.shared.torrent(id)?;
        let torrent = torrent.borrow();
        let info = Arc::clone(torrent.core.info()?);
        let known = !info.version.is_v2() || torrent.core.knows_all_layers();
        known.then(|| Metainfo { piece_layers: torrent.layers(), ..Metainfo::new(info) })
    }

    /// The same of a content whose files are complete: Merkle layers that no peer sent are made of them. `None` where files are
    /// missing, too.
    pub async fn metainfo_from_files(&self, id: TorrentId) -> Option<Metainfo> {
        if let Some(known) = self.metainfo(id) {
            return Some(known);
        }
        let (info, layers, storage) = {
            let torrent = self.shared.torrent(id)?;
            let torrent = torrent.borrow();
            (Arc::clone(torrent.core.info()?), torrent.layers(), Arc::clone(torrent.storage.as_ref()?))
        };
        let (cancel, content) = (Arc::clone(&self.shared.cancel), Arc::clone(&info));
        let made = blocking(move || verify::layers_on_disk(&content, layers, storage.root(), &cancel)).await;
        Some(Metainfo { piece_layers: made?, ..Metainfo::new(info) })
    }

    /// When a piece is needed, for playing a content while it arrives; `None` takes that back.
    pub fn set_deadline(&self, id: TorrentId, piece: u32, deadline: Option<Instant>) {
        if let Some(torrent) = self.shared.torrent(id) {
            let (mut torrent, now) = (torrent.borrow_mut(), Instant::now());
            torrent.core.set_deadline(piece, deadline, now);
            torrent.pump(now);
        }
    }

    /// Dials a peer for a content.
    pub fn add_peer(&self, id: TorrentId, address: Endpoint) {
        if let Some(torrent) = self.shared.torrent(id) {
            torrent.borrow_mut().name_peer(address);
            torrent.borrow().dial.notify_one();
        }
    }

    /// Leaves: connections are closed, trackers told, and what was received is on disk and recorded when this returns.
    ///
    /// Takes a few seconds at most, whatever trackers and disks do.
    pub async fn shutdown(self) {
        let shared = &self.shared;
        shared.stop("we are leaving");
        let told = async {
            while shared.announcing.get() > 0 {
                shared.announced.notified().await;
            }
        };
        let torrents: Vec<TorrentRef> = shared.torrents.borrow().values().cloned().collect();
        let written = async {
            for torrent in &torrents {
                while torrent.borrow().is_writing() {
                    tokio::time::sleep(SHUTDOWN_POLL).await;
                }
            }
            for torrent in &torrents {
                let (resume, stats) = {
                    let mut torrent = torrent.borrow_mut();
                    (torrent.resume.clone(), torrent.core.stats(Instant::now()))
                };
                if let Some(resume) = resume {
                    resume.set_totals(stats.downloaded_bytes, stats.uploaded_bytes);
                    let done_with = torrent.borrow().is_done_with();
                    // What could not be recorded is checked at the next start.
                    let close = blocking(move || {
                        let closed = if done_with { resume.delete() } else { resume.close(false) };
                        resume.storage().release();
                        closed
                    });
                    open::guarded(torrent.clone(), async { drop(close.await) }).await;
                }
            }
        };
        let _ = tokio::join!(
            tokio::time::timeout(SHUTDOWN_MAX, told), // a tracker that does not answer is not waited for
            tokio::time::timeout(SHUTDOWN_MAX, written),
        );
        if let Some(net) = &shared.scion {
            net.endpoint.close().await;
        }
    }
}

impl Shared {
    /// Everything comes to its end.
    fn stop(&self, reason: &str) {
        self.stopping.set(true);
        self.cancel.store(true, Ordering::Relaxed);
        for torrent in self.torrents.borrow().values() {
            let mut torrent = torrent.borrow_mut();
            torrent.stop(reason);
        }
    }

    /// Whether there is a place for one more connection, from `host`; somebody of another content may have to give way.
    pub fn make_room(&self, host: Host) -> bool {
        if self.connections.get() < self.config.connections_max {
            return true;
        }
        let torrents: Vec<TorrentRef> = self.torrents.borrow().values().cloned().collect();
        let states: Vec<_> = torrents.iter().map(TorrentRef::borrow).collect();
        let (places, handles): (Vec<Place>, Vec<&Rc<ConnHandle>>) =
            states.iter().flat_map(|state| state.places()).unzip();
        let goes = gives_way(&places, host, Instant::now()).map(|at| handles[at]);
        goes.inspect(|handle| handle.close("it made room for another peer".to_owned())).is_some()
    }

    /// Tells the owner.
    pub fn tell(&self, event: Event) {
        // An owner that stopped listening does not want to know.
        let _ = self.events.send(event);
    }

    /// The content of this number.
    pub fn torrent(&self, id: TorrentId) -> Option<TorrentRef> {
        self.torrents.borrow().get(&id).cloned()
    }

    /// The content that a peer asks for.
    pub fn by_hash(&self, hash: &[u8; 20]) -> Option<TorrentRef> {
        let id = *self.by_hash.borrow().get(hash)?;
        self.torrent(id)
    }

    /// Whether the session is being left.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// A task that talked to trackers is done.
    pub fn announce_done(&self) {
        self.announcing.set(self.announcing.get().saturating_sub(1));
        self.announced.notify_one();
    }

    /// Peers sent the metadata of a magnet link. Answers what the content is, where it is usable.
    pub fn metadata_arrived(self: &Rc<Self>, id: TorrentId, bytes: Vec<u8>) -> Option<Arc<Info>> {
        let torrent = self.torrent(id)?;
        let info = match Info::parse_for(&bytes, &NameRules::EXACT) {
            Ok(info) => Arc::new(info),
            Err(error) => {
                let reason = format!("the metadata that peers sent is right by its hash but unusable: {error}");
                self.tell(Event { torrent: id, kind: EventKind::Failed { kind: FailureKind::Metadata, reason } });
                return None;
            }
        };
        let (folder, metainfo) = (self.config.metadata_dir.clone(), Metainfo::new(Arc::clone(&info)));
        let layers = async move {
            match folder {
                // Peers may be faster than `remember`.
                Some(folder) => blocking(move || kept_metadata::layers_or_keep(&folder, &metainfo)).await,
                None => PieceLayers::new(),
            }
        };
        self.begin(&torrent, id, &info, layers).then_some(info)
    }

    /// What a magnet link names is known. `false` where it is a content of this session already.
    fn begin(
        self: &Rc<Self>,
        torrent: &TorrentRef,
        id: TorrentId,
        info: &Arc<Info>,
        layers: impl Future<Output = PieceLayers> + 'static,
    ) -> bool {
        let others = |hash: &[u8; 20]| self.by_hash.borrow().get(hash).is_some_and(|other| *other != id);
        if info.hashes.wire_hashes().any(|hash| others(&hash)) {
            let reason = format!("{}; name each content once", AddError::Duplicate(info.name.clone()));
            let torrent = torrent.clone();
            tokio::task::spawn_local(async move {
                torrent.borrow_mut().fail(FailureKind::Metadata, reason, Instant::now());
            });
            return false;
        }
        // The link may have named one of two hashes: peers may ask for the other.
        for hash in info.hashes.wire_hashes() {
            self.by_hash.borrow_mut().insert(hash, id);
        }
        let (opening, info) = (torrent.clone(), Arc::clone(info));
        let opening = async move { open::open(opening, info, layers.await).await };
        tokio::task::spawn_local(open::guarded(torrent.clone(), opening));
        true
    }

    /// Metadata that an earlier run was sent does as well as what peers would send.
    async fn remember(self: Rc<Self>, torrent: TorrentRef, folder: PathBuf) {
        let (id, hashes) = (torrent.borrow().id, torrent.borrow().hashes);
        let Some(kept) = blocking(move || kept_metadata::load(&folder, &hashes)).await else { return };
        {
            let mut state = torrent.borrow_mut();
            if state.stopping || std::mem::replace(&mut state.metadata_known, true) {
                return;
            }
            state.core.expect_content(Arc::clone(&kept.info));
        }
        self.begin(&torrent, id, &kept.info, std::future::ready(kept.piece_layers));
    }

    /// Everything wanted is there: looked at once more, forced to the disk and recorded first, told then.
    pub fn finished(self: &Rc<Self>, id: TorrentId) {
        let Some(torrent) = self.torrent(id) else { return };
        tokio::task::spawn_local(open::guarded(torrent.clone(), async move {
            let resume = torrent.borrow().resume.clone();
            let mut told = false;
            while let Some(resume) = resume.clone() {
                // What is fetched again now finishes again.
                if recheck::recheck(&torrent, resume.distrusted(), true).await > 0 || torrent.borrow().stopping {
                    return;
                }
                let finishing = Arc::clone(&resume);
                let finished = blocking(move || finishing.finish()).await;
                let lost = match finished {
                    Ok(changed) if changed.is_empty() => break,
                    Ok(changed) => recheck::recheck(&torrent, changed, false).await,
                    Err(error) => {
                        if !open::wait_out(&torrent, &error, &mut told).await {
                            return;
                        }
                        continue;
                    }
                };
                if lost > 0 || torrent.borrow().stopping {
                    return;
                }
            }
            if told {
                torrent.borrow().tell(EventKind::Resumed);
            }
            torrent.borrow().tell(EventKind::Finished);
        }));
    }

    fn torrent_config(&self, options: &AddOptions, id: TorrentId) -> TorrentConfig {
        TorrentConfig {
            peer_id: self.peer_id,
            listen_port: self.listening.first().map(SocketAddr::port),
            scion_port: self.scion.as_ref().map(|net| net.endpoint.local().socket_addr().port()),
            client: format!("Anabranch {}", env!("CARGO_PKG_VERSION")),
            order: if options.sequential { Order::Sequential } else { Order::RarestFirst },
            strategy: self.config.strategy,
            open_bytes_max: self.config.buffer_bytes,
            choker: self.config.choker,
            pex: self.config.pex,
            seed: self.config.seed ^ id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }
}

impl Source {
    fn name(&self) -> String {
        match self {
            Self::Metainfo(metainfo) => metainfo.info.name.clone(),
            Self::Magnet(magnet) => magnet.name.clone().unwrap_or_else(|| "this content".to_owned()),
        }
    }

    /// Its identity.
    pub fn hashes(&self) -> InfoHashes {
        match self {
            Self::Metainfo(metainfo) => metainfo.info.hashes,
            Self::Magnet(magnet) => magnet.hashes,
        }
    }
}

fn magnet_tiers(magnet: &Magnet) -> Vec<Vec<String>> {
    magnet.trackers.iter().map(|url| vec![url.clone()]).collect()
}

/// The peers that a link names: those that it may name to us, who listen at `listening`, and the others.
fn magnet_peers(magnet: &Magnet, listening: &[SocketAddr]) -> (Vec<Endpoint>, Vec<Endpoint>) {
    let at_home = !listening.is_empty() && listening.iter().all(|address| address.ip().is_loopback());
    // Host names in x.pe would make a link that one opens look names up; addresses only.
    let named = magnet.peers.iter().filter_map(|peer| parse_peer(peer)).map(|(address, _)| address);
    named.partition(|peer| may_link_to_peer(peer, magnet.hashes.wire_hashes(), at_home))
}

/// The keys that a link's peers have to prove.
fn magnet_keys(source: &Source) -> Vec<(ScionAddr, NodeId)> {
    let Source::Magnet(magnet) = source else { return Vec::new() };
    let named = magnet.peers.iter().filter_map(|peer| parse_peer(peer));
    named.filter_map(|(address, key)| address.as_scion().zip(key)).collect()
}

/// A peer as links name it: an address, that of a host of SCION maybe with the key that it proves in front, `KEY@[ISD-AS,host]:port`.
pub fn parse_peer(text: &str) -> Option<(Endpoint, Option<NodeId>)> {
    match text.split_once('@') {
        None => Some((text.parse().ok()?, None)),
        Some((key, address)) => Some((Endpoint::Scion(address.parse().ok()?), Some(key.parse().ok()?))),
    }
}

/// Tracker URLs that can be used; the others are told of.
fn parse_trackers(torrent: &TorrentRef, tiers: &[Vec<String>]) -> Vec<Vec<TrackerUrl>> {
    let parse = |url: &String| match url.parse() {
        Ok(parsed) => Some(parsed),
        Err(error) => {
            let error: anabranch_bittorrent::tracker::UrlError = error;
            torrent.borrow().tell(EventKind::TrackerFailed { url: url.clone(), reason: error.to_string() });
            None
        }
    };
    tiers.iter().map(|tier| tier.iter().filter_map(parse).collect()).collect()
}

/// Passes the disk threads' answers on.
async fn serve_disk(shared: Rc<Shared>, mut replies: UnboundedReceiver<Reply>) {
    while let Some(reply) = replies.recv().await {
        let now = Instant::now();
        let id = match &reply {
            Reply::Verified(verified) => verified.torrent,
            Reply::Spilled(spilled) => spilled.torrent,
            Reply::Warmed { torrent, .. }
            | Reply::Leaves { torrent, .. }
            | Reply::Looked { torrent, .. }
            | Reply::Kept { torrent }
            | Reply::Panicked { torrent } => *torrent,
        };
        let Some(torrent) = shared.torrent(id) else { continue };
        let mut torrent = torrent.borrow_mut();
        match reply {
            Reply::Verified(verified) => torrent.verified(verified, now),
            Reply::Spilled(spilled) => torrent.spilled(spilled, now),
            Reply::Warmed { conn, .. } => torrent.warmed(conn),
            Reply::Leaves { piece, hashes, .. } => {
                torrent.core.leaves_ready(piece, &hashes);
                torrent.pump(now);
            }
            Reply::Looked { piece, readable, .. } => torrent.looked(piece, readable, now),
            Reply::Kept { .. } => {}
            Reply::Panicked { .. } => torrent.panicked(now),
        }
    }
}

/// Keeps the core's time. A content without connections sleeps until it has one.
async fn keep_time(torrent: TorrentRef) {
    let clock = Rc::clone(&torrent.borrow().clock);
    loop {
        let deadline = {
            let mut torrent = torrent.borrow_mut();
            if torrent.stopping {
                return;
            }
            let now = Instant::now();
            torrent.update_room();
            torrent.core.on_time(now);
            torrent.pump(now);
            torrent.core.next_deadline()
        };
        match deadline {
            Some(deadline) => {
                tokio::select! {
                    () = tokio::time::sleep_until(deadline.into()) => {}
                    () = clock.notified() => {}
                }
            }
            None => clock.notified().await,
        }
    }
}

/// What is done now and then: storage that was out of order is tried again, progress is made durable.
async fn housekeeping(shared: Rc<Shared>) {
    let mut checkpoint_at = Instant::now() + CHECKPOINT_EVERY;
    let checkpointing = Rc::new(Cell::new(false));
    let mut looked_at = (TorrentId(0), 0);
    loop {
        tokio::time::sleep(STORAGE_RETRY).await;
        let torrents: Vec<TorrentRef> = shared.torrents.borrow().values().cloned().collect();
        let now = Instant::now();
        for torrent in &torrents {
            torrent.borrow_mut().retry_storage();
        }
        recheck::look_around(&torrents, &mut looked_at);
        if now < checkpoint_at || checkpointing.get() {
            continue;
        }
        checkpoint_at = now + CHECKPOINT_EVERY;
        // Syncing may take minutes on a slow disk: nothing else waits for it.
        checkpointing.set(true);
        let checkpointing = Rc::clone(&checkpointing);
        tokio::task::spawn_local(async move {
            for torrent in torrents {
                open::guarded(torrent.clone(), checkpoint(torrent, now)).await;
            }
            checkpointing.set(false);
        });
    }
}

async fn checkpoint(torrent: TorrentRef, now: Instant) {
    let (resume, stats) = {
        let mut torrent = torrent.borrow_mut();
        let Some(resume) = torrent.resume.clone().filter(|_| !torrent.stopping) else { return };
        (resume, torrent.core.stats(now))
    };
    resume.set_totals(stats.downloaded_bytes, stats.uploaded_bytes);
    if resume.checkpoint_due(now) {
        let syncing = Arc::clone(&resume);
        // A disk that does not work shows again at the next write, which reports it.
        let _ = blocking(move || syncing.checkpoint()).await;
        recheck::recheck(&torrent, resume.distrusted(), true).await;
    }
}

impl State {
    /// How it fares.
    pub fn progress(&mut self, now: Instant) -> Progress {
        let stats = self.core.stats(now);
        let finished = self.core.is_finished();
        let paused = self.core.is_paused();
        let (done, total) = self.core.wanted_bytes().unzip();
        let info = self.core.info();
        Progress {
            name: info.map(|info| info.name.clone()),
            bytes_done: done.unwrap_or(0),
            bytes_total: total,
            pieces_have: self.core.have().map_or(0, Bitfield::count),
            pieces_total: info.map_or(0, |info| info.geometry.piece_count()),
            stats,
            finished,
            paused,
        }
    }
}

#[cfg(test)]
mod tests;
