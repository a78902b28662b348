//! Bulk transfer at work: joins the core in [`anabranch_hercules`] to sockets, clocks and disks.
//!
//! [`send`] and [`receive`] start a transfer and give a [`Handle`] and its [`Events`]. Everything happens on threads of their own;
//! the caller reads events, in whatever runtime or none.
//!
//! | module | what it does |
//! | --- | --- |
//! | `options`, `events` | what a transfer is told, and what it tells |
//! | `content` | what a source and a destination have to do: [`Source`], [`Destinations`], [`Destination`] |
//!
//! What is sent is a [`Source`]'s, where it goes is up to [`Destinations`]: files, or whatever somebody else makes of it.
//!
//! ```no_run
//! # fn example(source: std::sync::Arc<dyn anabranch_swarm::bulk::Source>) -> Result<(), Box<dyn std::error::Error>> {
//! use anabranch_swarm::bulk::{self, Dial, Event, Options, Peers};
//!
//! let to = Dial { addresses: vec!["192.0.2.7:6900".parse()?], key: None, secret: None };
//! let (_handle, mut events) = bulk::send(Options::new(anabranch_transport::Identity::ephemeral()?), Peers::Dial(vec![to]), source)?;
//! while let Some(event) = events.blocking_recv() {
//!     if let Event::Finished { receipt, .. } = event {
//!         println!("{} bytes are there, verified", receipt.content_len);
//!     }
//! }
//! # Ok(()) }
//! ```

mod content;
mod events;
mod options;

use std::sync::Arc;

pub use content::{Destination, DestinationError, Destinations, Offered, Refusal, Source, SourceError};
pub use events::{
    EVENTS_MAX, Event, Events, Handle, PathProgress, PathWay, PeerId, Progress, Rejection, TransferError, Waiting,
};
pub use options::{Admission, Dial, MEMORY_BYTES_DEFAULT, Options, PeerKey, Peers, StartError};

/// Sends `source` to everybody in `peers`, each at its own rate; or, listening, to whoever is admitted. Ends when all who are
/// dialled have it or failed; listening, when the invitation's times are used up, or never.
///
/// # Errors
/// A socket could not be opened, or a thread not be started.
pub fn send(_options: Options, _peers: Peers, _source: Arc<dyn Source>) -> Result<(Handle, Events), StartError> {
    Err(StartError::Thread(std::io::ErrorKind::Unsupported.into()))
}

/// Receives from the one in `peers`, or, listening, from whoever is admitted, several at once. `destinations` says for each
/// offer where it goes. Ends like [`send`].
///
/// # Errors
/// A socket could not be opened, or a thread not be started.
pub fn receive(
    _options: Options,
    _peers: Peers,
    _destinations: Arc<dyn Destinations>,
) -> Result<(Handle, Events), StartError> {
    Err(StartError::Thread(std::io::ErrorKind::Unsupported.into()))
}
