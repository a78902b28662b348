//! A content at work in PPSPP (RFC 7574): chunks over datagrams, each verified by itself before it counts.
//!
//! | module | what it does |
//! | --- | --- |
//! | `begin` | a content that is added begins |
//! | `transfer`, `progress`, `watch` | its session asks something of it; how it fares; its files change |
//! | `announce`, `checkpoint` | its trackers; what is received is recorded |
//! | `content` | one content: what moves between its core, its files and the sockets |
//! | `hub` | the sockets: many swarms and channels over each; datagrams inside QUIC, between peers that prove keys |
//! | `audience` | with whom a secure content deals |
//! | [`live`](LiveShare), `signing` | a live stream: chunks in memory instead of files; when its source signs them |
//! | `path_table`, `paths` | over which addresses and paths peers are reached; which of these are used |
//! | `peers`, `rates` | whom a content knows; how fast it moves |
//! | [`hashed`](hash_path), `parts`, `nodes`, `error` | a tree is made of what is shared, and kept on the disk; why it cannot be |
//! | `describe`, `head` | how a link is seen by the store; the list of files that a folder's content begins with |
//!
//! Each uses those below it alone. The files of `content` are the parts of one state machine, and call each other.
//!
//! The core (`anabranch_ppspp::swarm`) decides what to ask whom for, what to send, and when. A batch of datagrams goes through it at
//! once: its chunks are hashed side by side, judged one by one, copied to their pieces, and acknowledged in runs. A piece whose chunks
//! are all there is written by the disk threads without being hashed again, and only then announced and served. What proves it is
//! brought to the tree's file before it is recorded; so what was recorded once is never fetched again.

mod announce;
mod audience;
mod begin;
mod checkpoint;
mod content;
mod describe;
mod error;
mod hashed;
mod head;
mod hub;
mod live;
mod nodes;
mod parts;
mod path_table;
mod paths;
mod peers;
mod progress;
mod rates;
mod signing;
#[cfg(test)]
mod tests;
mod transfer;
mod watch;

pub use describe::file_name;
pub use error::HashError;
pub use hashed::{CHUNK_LEN_DEFAULT, Folder, HashOptions, Hashed, hash_path, is_named_by};
pub use hub::Ports;
pub use live::{COPIES_MAX_DEFAULT, LiveShare};
pub use signing::{LIVE_CHUNK_LEN, SIGN_AFTER};

pub(crate) use begin::begin;
pub(crate) use describe::hashes;
pub(crate) use hub::{Hub, keep_secure_time, serve};
