//! What a session is told at its start, and why it may not start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anabranch_bittorrent::choker;
use anabranch_bittorrent::ip_filter::IpFilter;
use anabranch_bittorrent::picker::RequestStrategy;
use anabranch_content::storage::Preallocate;
use anabranch_paths::Endpoint;
use anabranch_scion::socket::BindError;
use anabranch_transport::{InterfaceError, Proxy};

use crate::net::scion::ScionConfig;
use crate::paths_driver::PathsConfig;

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
