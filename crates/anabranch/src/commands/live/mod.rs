//! Live streams: `live` broadcasts one; `get` and `play` of its link record and show it.
//!
//! | module | what it does |
//! | --- | --- |
//! | `source` | `live`: reads the input, and gives it to those who watch |
//! | `key` | what it is signed with, kept in a file |
//! | `record`, `watch` | `get` and `play` of a link |

mod key;
mod record;
mod source;
mod watch;

use anabranch_swarm::AddOptions;

pub(crate) use key::document as key_document;
pub(crate) use record::run as record;
pub(crate) use source::run;
pub(crate) use watch::run as watch;

use crate::cli::{FindFlags, SessionFlags};
use crate::exit::Failure;
use crate::guard;

/// How a viewer adds it to its session.
fn options(
    session: &SessionFlags,
    find: &FindFlags,
    peers: &[anabranch_paths::Endpoint],
) -> Result<AddOptions, Failure> {
    Ok(AddOptions {
        peers: peers.to_vec(),
        allowed: guard::allowed(session)?,
        trackers: find.tracker.clone(),
        limit_down: session.torrent_limit_down.map(|rate| rate.0),
        limit_up: session.torrent_limit_up.map(|rate| rate.0),
        ..AddOptions::default()
    })
}
