//! What a session is told at its start and of each content, and why it may not start.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anabranch_bittorrent::choker;
use anabranch_bittorrent::ip_filter::IpFilter;
use anabranch_bittorrent::mse::Methods;
use anabranch_bittorrent::picker::RequestStrategy;
use anabranch_content::info::FileEntry;
use anabranch_content::storage::Preallocate;
use anabranch_paths::manager::PATHS_PER_PEER_MAX;
use anabranch_paths::select::Selector;
use anabranch_paths::{Endpoint, ScionAddr};
use anabranch_scion::socket::BindError;
use anabranch_transport::{Identity, InterfaceError, NodeId, Proxy};

use crate::dht::DhtConfig;
use crate::net::scion::ScionConfig;
use crate::net::utp::Utp;

/// Choices that hold for all contents of a session.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Where to listen; port 0 lets the system choose. Empty: peers cannot reach us.
    pub listen: Vec<SocketAddr>,
    /// The UDP ports beside the listeners are kept for PPSPP, of which contents will come, and nobody calls over uTP there. Otherwise they are
    /// uTP's, and PPSPP takes other ports.
    pub keeps_ports_for_ppspp: bool,
    /// The key that peers of secure contents of PPSPP know us by; `None`: such contents are refused.
    pub secure_identity: Option<Identity>,
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
    /// Whether web seeds are fetched from (BEP 19).
    pub web_seeds: bool,
    /// Whether connections over TCP are encrypted.
    pub encryption: Encryption,
    /// How peers are found in the distributed hash table (BEP 5); `None`: not at all.
    pub dht: Option<DhtConfig>,
    /// Whether peers in the same network find each other (BEP 14).
    pub local_discovery: bool,
    /// Whether uTP is spoken beside TCP.
    pub utp: Utp,
    /// Whether routers are asked to open the ports that we listen at.
    pub port_mapping: bool,
    /// How files get their space.
    pub preallocate: Preallocate,
    /// Whom we have nothing to do with.
    pub filter: Arc<IpFilter>,
    /// What all connections go through that we open over IP; what cannot is left.
    pub proxy: Option<Arc<Proxy>>,
    /// Folder for resume files; `None` keeps each beside its content.
    pub state_dir: Option<PathBuf>,
    /// Folder for the metadata of magnet links and the lists of folders, so that peers are asked for them once; `None` keeps none.
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
            keeps_ports_for_ppspp: false,
            secure_identity: None,
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
            web_seeds: true,
            encryption: Encryption::default(),
            dht: None,
            local_discovery: false,
            utp: Utp::default(),
            port_mapping: false,
            preallocate: Preallocate::default(),
            filter: Arc::default(),
            proxy: None,
            state_dir: None,
            metadata_dir: None,
            seed: fastrand::u64(..),
        }
    }
}

/// Whether connections are encrypted whose transport does not encrypt (message stream encryption). It hides from the network what they
/// are, and costs the copies that are spared otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    /// Where the peer wants it: who calls is answered as it calls, and who wants it is called so.
    #[default]
    Allow,
    /// Wherever the peer takes it.
    Prefer,
    /// Always: there are no other connections.
    Require,
    /// Never.
    Off,
}

impl Encryption {
    /// How streams may go on after a greeting that encrypts; `None` where there is no such greeting.
    pub(crate) fn methods(self) -> Option<Methods> {
        match self {
            Self::Allow => Some(Methods::BOTH),
            Self::Prefer => Some(Methods::RATHER_RC4),
            Self::Require => Some(Methods::RC4),
            Self::Off => None,
        }
    }
}

/// How paths are chosen.
#[derive(Clone, Debug)]
pub struct PathsConfig {
    /// Paths wished for to one peer, those it has among them; 1: one is enough.
    pub wished: usize,
    /// Paths granted to one peer at most.
    pub granted: usize,
    /// Connections that are chosen at most, over all paths to all peers of a content.
    pub connections: usize,
    /// How to choose; `None`: as the peers wish, or [`Selector::Disjoint`] where they differ.
    pub selector: Option<Selector>,
    /// Network interfaces that connections over plain IP may leave by; empty: all.
    pub interfaces: Vec<String>,
}

impl Default for PathsConfig {
    /// One path a peer, and as many as a downloader wishes.
    fn default() -> Self {
        Self { wished: 1, granted: PATHS_PER_PEER_MAX, connections: 64, selector: None, interfaces: Vec::new() }
    }
}

/// Which files of a content are wanted, by their index in the file list (BEP 53) or what they are.
pub type FileFilter = Box<dyn Fn(usize, &FileEntry) -> bool + Send>;

/// What is wanted of a content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aim {
    /// Its files.
    #[default]
    Files,
    /// The files that [`Contents::choose`](crate::Contents::choose) names once the metadata is known. Until then none is looked at or made.
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
    /// Whose keys a secure content of PPSPP deals with; `None`: everybody's, or as its link says.
    pub allowed: Option<HashSet<NodeId>>,
    /// Trackers that the user names: beside the content's own, or among them.
    pub trackers: Vec<String>,
    /// Web seeds that the user names, beside the content's own.
    pub web_seeds: Vec<String>,
    /// Which files to fetch; all where `None`.
    pub files: Option<FileFilter>,
    /// Fetch pieces in order.
    pub sequential: bool,
    /// Bytes per second.
    pub limit_down: Option<u64>,
    /// Bytes per second.
    pub limit_up: Option<u64>,
    /// Peers are told of pieces one by one until they have a whole copy among them, where everything is here from the start: super-seeding
    /// (BEP 16).
    pub super_seed: bool,
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
    pub remove_resume_when_complete: bool,
}

/// Why a content cannot be added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// It is there already.
    #[error("{0} is in this session already")]
    Duplicate(String),
    /// PPSPP's sockets cannot be opened.
    #[error("cannot open a socket for PPSPP: {0}; give an address of this machine with --listen")]
    Socket(io::Error),
    /// It is there still, and is being removed.
    #[error("{0} is being removed from this session: add it again when it is gone")]
    Leaving(String),
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
