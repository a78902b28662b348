//! The driver: joins the pure cores to sockets, disks and clocks.
//!
//! A [`Session`] shares and fetches many contents. Its sockets and protocol cores live on one thread, which moves bytes
//! between sockets and piece buffers and never waits; hashing and writing happen on [disk threads](store::disk).
//!
//! | module | what it does |
//! | --- | --- |
//! | `session` | the public face: contents come and go, progress, shutdown |
//! | `config`, `events` | what it is told, and what it tells |
//! | `resources` | what contents share: memory, disk threads, limits, the ways out |
//! | `bittorrent` | a content at work in BitTorrent: `torrent` acts on what its core wants, `conn` moves a connection's bytes, `dial` and `announce` find peers, `paths_driver` carries out what the path manager decides |
//! | [`hercules`] | bulk transfer, a world of its own: from one to many, as fast as the machine |
//! | [`ppspp`] | a content at work in PPSPP, over datagrams |
//! | `transfer` | what a session asks of a content at work, whichever protocol it speaks |
//! | `net` | who gets in; our interfaces, and the SCION network; which ports routers opened |
//! | `store` | where blocks gather; who verifies and writes them; what is on disk already; reading ahead of what is sent |
//! | [`tracker`] | asking trackers; being one |
//! | `dht` | the distributed hash table over real sockets |
//! | [`http`] | a content's files for players, while they arrive |
//! | `limits` | rate limits |
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use anabranch_swarm::{AddOptions, EventKind, Session, SessionConfig, Source};
//! use anabranch_content::metainfo::Metainfo;
//!
//! let metainfo = Metainfo::parse(&std::fs::read("content.torrent")?)?;
//! let (session, mut events) = Session::start(SessionConfig::default())?; // inside a tokio LocalSet
//! session.add(Source::Metainfo(Box::new(metainfo)), AddOptions { dir: "downloads".into(), ..AddOptions::default() })?;
//! while let Some(event) = events.recv().await {
//!     if let EventKind::Finished = event.kind { break }
//! }
//! session.shutdown().await;
//! # Ok(()) }
//! ```

#![deny(unsafe_code)]

mod bittorrent;
mod config;
mod dht;
mod events;
pub mod hercules;
pub mod http;
mod limits;
mod net;
pub mod ppspp;
mod resources;
mod session;
mod store;
pub mod tracker;
mod transfer;

pub use anabranch_bittorrent::picker::Priority;
pub use anabranch_bittorrent::torrent::{PeerStats, TorrentStats};
pub use anabranch_portmap::Protocol as PortProtocol;
pub use anabranch_transport::NodeId;
pub use config::{
    AddError, AddOptions, Aim, BUFFER_BYTES_DEFAULT, Encryption, FileFilter, PathsConfig, SessionConfig, SessionError,
};
pub use dht::DhtConfig;
pub use events::{ContentId, Discovery, EVENTS_MAX, Event, EventKind, Events, FailureKind, PauseCause};
pub use hercules as bulk;
pub use net::leave::Leave;
pub use net::own_addresses::reachable;
pub use net::ports::OpenPort;
pub use net::scion::{KnownHosts, ScionConfig};
pub use net::utp::Utp;
pub use session::{Contents, Data, Handle, LiveRead, LiveReader, ReadError, Reader, Session, Source, parse_peer};
pub use tracker::{Download, DownloadError};
pub use transfer::{
    ControlError, FilePriorities, LiveState, NamedPeer, PathProgress, Progress, Removed, Sources, Trouble, WebSeed,
    Work,
};
