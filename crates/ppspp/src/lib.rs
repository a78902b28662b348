//! The core of PPSPP, the Peer-to-Peer Streaming Peer Protocol (RFC 7574): content on demand or live, in small chunks, each
//! of which is verified by itself.
//!
//! No socket, clock, file or thread is in here, so every behaviour can be replayed from a seed.
//!
//! | module | what it decides |
//! | --- | --- |
//! | [`bin`], [`binmap`] | what a number names of a content, and which chunks somebody has (RFC 7574 §4.2) |
//! | [`link`] | what a user is given to find a swarm |
//! | [`manifest`] | what a folder's content begins with: the list of its files |
//! | [`wire`] | what the bytes of a datagram mean, and what a swarm agrees on (RFC 7574 §7, §8) |
//! | [`swarm`] | one content's whole behaviour: all of the others together |
//! | [`merkle`] | whether a chunk is the content's, and what proves it (RFC 7574 §5, §6) |
//! | [`avail`], [`picker`] | how rare each chunk is; which to ask a peer for |
//! | [`pull`] | how much to ask a peer for |
//! | [`pace`] | how fast a live stream's input goes out |
//! | [`state`] | when to send to a peer, when to keep it alive, when to close |
//! | [`ledbat`] | how many packets may be on their way (RFC 6817) |
//! | [`hash`], [`sign`], [`pem`] | the hash functions of trees, the signatures of live sources, their keys in files |
//!
//! Ranges of chunks are bins, the nodes of a binary tree that lies over the content; a set of chunks is a binmap:
//!
//! ```
//! use anabranch_ppspp::bin::Bin;
//! use anabranch_ppspp::binmap::Binmap;
//!
//! let mut have = Binmap::new();
//! for chunk in 4..8 {
//!     have.insert(Bin::chunk(chunk).expect("a chunk's number"));
//! }
//! // What is announced after chunk 5 arrived: the biggest complete interval around it (RFC 7574 §4.3.1).
//! assert_eq!(have.largest_full(5), Bin::new(2, 1));
//! ```
#![forbid(unsafe_code)]

pub mod avail;
pub mod bin;
pub mod binmap;
pub mod hash;
pub use anabranch_ledbat as ledbat;
pub mod link;
pub mod manifest;
pub mod merkle;
pub mod pace;
pub mod pem;
pub mod picker;
pub mod pull;
pub mod sign;
pub mod state;
pub mod swarm;
pub mod wire;
