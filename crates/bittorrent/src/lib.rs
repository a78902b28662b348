//! The BitTorrent protocol core: bytes and time in; bytes, events and the next deadline out.
//!
//! No socket, clock, randomness of its own or async is in here, so every behaviour can be replayed from a seed. Each layer
//! stands alone and is put together with the others by [`torrent`], one content's whole behaviour:
//!
//! | module | what it decides |
//! | --- | --- |
//! | [`handshake`], [`wire`] | what the bytes of a connection mean, and what may be sent (BEP 3, 6, 52) |
//! | [`mse`] | how a connection is made to look like noise, where one end wants that |
//! | [`extension`] | extended messages: metadata, peer exchange, upload-only (BEP 9, 10, 11, 21); which paths to use |
//! | [`picker`] | which block to ask for next, of whom |
//! | [`pipeline`] | how much to ask of a connection at once |
//! | [`choker`] | who may download from us |
//! | [`super_seed`] | which pieces a first seeder lets whom know of (BEP 16) |
//! | [`blame`] | who sent the wrong block of a bad piece |
//! | [`peerbook`] | which address to dial, and when again |
//! | [`priority`] | which of many addresses goes first (BEP 40) |
//! | [`tracker`] | when to ask which tracker for what; being one (BEP 3, 7, 12, 15, 23) |
//! | [`ip_filter`] | whom a user wants nothing to do with |
//! | [`reach`] | who may name which address to us |
//! | [`local_discovery`] | what is called out in a local network, and when (BEP 14) |
//! | [`web_seed`] | what of HTTP servers is asked for, and what their answers are worth (BEP 19) |
//! | [`rate`] | how fast something has been lately |
//!
//! Left to the driver: sockets, files, hashing, name look-ups, memory for payload. It feeds bytes and the time in, and
//! carries out what comes back:
//!
//! ```
//! use std::time::Instant;
//! use anabranch_bittorrent::peerbook::{PeerBook, Source};
//! use anabranch_paths::Endpoint;
//!
//! let (mut book, now) = (PeerBook::new(), Instant::now());
//! let address: Endpoint = "192.0.2.7:6881".parse()?;
//! book.add(address, Source::User);
//! assert_eq!(book.next(now, false), Some(address)); // the driver dials it
//! book.lost(address, false, now); // in vain
//! assert_eq!(book.next(now, false), None);
//! let again = book.next_deadline(now, false).expect("a user's peer is never given up");
//! assert_eq!(book.next(again, false), Some(address));
//! # Ok::<(), anabranch_paths::EndpointError>(())
//! ```

#![forbid(unsafe_code)]

pub mod blame;
pub mod choker;
pub mod extension;
pub mod handshake;
pub mod ip_filter;
pub mod local_discovery;
pub mod mse;
pub mod peerbook;
pub mod picker;
pub mod pipeline;
pub mod priority;
mod pulse;
pub mod rate;
pub mod reach;
mod requests;
pub mod suggest;
pub mod super_seed;
mod text;
pub mod torrent;
pub mod tracker;
pub mod web_seed;
pub mod wire;

use anabranch_paths::compact;

/// A 20-byte info-hash as handshakes and trackers know it: SHA-1 for v1, SHA-256 cut short for v2 (BEP 52).
pub type InfoHash = [u8; 20];
/// Twenty bytes by which a peer names itself; the first eight tell its program by custom (BEP 20).
pub type PeerId = [u8; 20];

pub use anabranch_paths::{ConnId, PeerKey};
