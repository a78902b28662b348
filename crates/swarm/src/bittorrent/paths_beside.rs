//! The first connection to a peer over SCION: path beside path, since a link that fails in silence is told by nobody.

use std::rc::Rc;
use std::sync::Arc;

use anabranch_paths::{ScionAddr, ScionPath};
use anabranch_transport::{NodeId, Stream};

use crate::bittorrent::error::ConnError;
use crate::bittorrent::torrent::TorrentHandle;
use crate::net::race::{Due, race};
use crate::net::scion::{ReachError, ScionNet};

/// Paths that are tried because nobody answers over the ones before: each costs a peer that is not there one more call.
const SILENT_PATHS_MAX: usize = 3;
/// Paths that are tried in all, as long as the network says of each that it is down.
const PATHS_MAX: usize = 8;

/// Connects over the best of `paths` that works: where nobody answers, over the next one beside it, and where the network says that one is
/// down, over the next at once.
pub(super) async fn connect(
    torrent: &TorrentHandle,
    net: &Rc<ScionNet>,
    remote: ScionAddr,
    expected: Option<NodeId>,
    paths: &[Arc<ScionPath>],
) -> Result<Stream, ConnError> {
    let (mut tried, mut silent, mut is_refused) = (Vec::new(), 0, false);
    let next = |due: Due<'_, ReachError>| {
        match due {
            Due::Silence => silent += 1,
            Due::Failed(ReachError::PathDown(_)) => {}
            // Who was asked, and said no, says so over every path.
            Due::Failed(ReachError::Failed(_) | ReachError::NoPath(_) | ReachError::Hopeless(_)) => is_refused = true,
        }
        if is_refused || silent > SILENT_PATHS_MAX || tried.len() >= PATHS_MAX {
            return None;
        }
        let state = torrent.borrow();
        let path = state.paths.first_path(&state.resources(), remote, paths, &tried)?;
        tried.push(Arc::clone(&path));
        let net = Rc::clone(net);
        Some(async move { net.connect(remote, expected, &path).await })
    };
    match race(next).await {
        Some(connected) => Ok(connected?),
        None => Err(ConnError::Hopeless(format!("no path to {remote}"))),
    }
}
