//! The BitTorrent protocol core: bytes and time in; bytes, events and the next deadline out.
//!
//! No socket, clock, randomness of its own or async is in here, so every behaviour can be replayed from a seed.

pub mod blame;
pub mod choker;
pub mod extension;
pub mod handshake;
pub mod peerbook;
pub mod picker;
pub mod pipeline;
pub mod rate;
pub mod torrent;
pub mod tracker;
pub mod wire;

/// A connection's number within one content. It belongs to one path for its whole life; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// An address-level peer's number within one content: credit and bans are its, however many connections it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerKey(pub u32);
