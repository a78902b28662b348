//! Numbers of peers and connections, and what becomes of a connection's path: what path choice and the protocols share.

/// A connection's number within one content. It belongs to one path for its whole life; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// An address-level peer's number within one content: credit and bans are its, however many connections it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerKey(pub u32);

/// What is said of a connection's path to whoever asks for content over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PathState {
    /// Content is asked for over it.
    #[default]
    Active,
    /// The connection is kept, and content is asked for over it at the very end alone (thesis, section 7.2: "a waiting state").
    Standby,
    /// Nothing gets through: what was asked for over it is asked for over others.
    Down,
}
