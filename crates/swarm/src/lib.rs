//! The driver: joins the pure cores to sockets, disks and clocks.
//!
//! A [`Session`] shares and fetches many contents. Its sockets and protocol cores live on one thread, which moves bytes
//! between sockets and piece buffers and never waits; hashing and writing happen on [disk threads](disk).
//!
//! | module | what it does |
//! | --- | --- |
//! | `session` | the public face: contents come and go, progress, shutdown |
//! | `torrent` | one content at work; acts on what its core wants |
//! | `conn`, `dial` | one connection's bytes; how connections come about |
//! | `paths_driver`, `uplinks`, `scion` | several paths to one peer: over our interfaces, and through SCION |
//! | `warm` | what is sent is read from disk before it is needed |
//! | `buffers`, `disk`, `spill` | where blocks gather; who verifies and writes them; what happens when memory is short |
//! | `open` | files are opened, what is there is verified |
//! | `announce`, [`tracker`] | asking trackers; being one |
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

mod announce;
mod buffers;
mod conn;
mod dial;
mod disk;
mod door;
mod events;
mod kept;
mod limits;
mod open;
mod paths_driver;
mod recheck;
mod scion;
mod session;
mod sources;
mod spill;
mod torrent;
pub mod tracker;
mod uplinks;
mod utp;
mod warm;

pub use events::{Event, EventKind, FailureKind, TorrentId};
pub use paths_driver::{PathProgress, PathsConfig};
pub use scion::{KnownHosts, ScionConfig};
pub use session::{
    AddError, AddOptions, Aim, BUFFER_BYTES_DEFAULT, FileFilter, Progress, Session, SessionConfig, SessionError,
    Source, parse_peer,
};
pub use sources::{NamedPeer, Sources, Trouble};
