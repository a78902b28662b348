//! Who may still bring what is missing of a content.
//!
//! Somebody who waits wants to know for what. Sources are, first those that are sure: peers that are connected; trackers, even one
//! that fails for now; addresses that trackers and peers named and that were not tried in vain yet; and the peers that the user or a
//! magnet link named, each with its trouble, if it has any ([`NamedPeer`]). Who dials us comes unannounced; whether anybody
//! knows where, only the program's user can say.
//!
//! Here it is noted; what follows from it (to wait, to say so, to give up) is decided by who owns the session.

use std::time::Instant;

use anabranch_paths::Endpoint;

/// What is known of a content's sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Something is missing, and only a source is lacking: files are not being opened or checked, storage works.
    pub is_waiting: bool,
    /// Open connections.
    pub connections: usize,
    /// One of them has something that is missing.
    pub is_any_wanted: bool,
    /// One of those serves us.
    pub is_any_serving: bool,
    /// Trackers that are, or will be, asked again.
    pub trackers: usize,
    /// The distributed hash table is searched, and nodes of it are known or being asked.
    pub dht: bool,
    /// Addresses that trackers and peers named, and that are tried.
    pub heard_of: usize,
    /// The peers that the user or the magnet link named.
    pub named: Vec<NamedPeer>,
    /// The web seeds, once it is known which files they have to have.
    pub web_seeds: Vec<WebSeed>,
}

/// An HTTP server that has the content (BEP 19).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSeed {
    /// Scheme, host and port: the rest of the URL may be secret.
    pub url: String,
    /// Why nothing can be had from it at the moment; `None` while it was not tried yet, or serves.
    pub trouble: Option<Trouble>,
}

/// A peer that the user or the magnet link named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPeer {
    /// Where.
    pub address: Endpoint,
    /// Why nothing can be had from it at the moment; `None` while it was not tried yet, or is connected.
    pub trouble: Option<Trouble>,
}

/// Why a peer cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// For people.
    pub reason: String,
    /// Since when there is trouble, whatever its reason was.
    pub since: Instant,
    /// Waiting does not help: what the user asked for cannot be.
    pub is_final: bool,
}
