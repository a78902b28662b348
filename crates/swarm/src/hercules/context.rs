//! What all tasks have that call, are called and speak with other ends: one thread has all of them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anabranch_transport::{Identity, NodeId};
use tokio::sync::{mpsc, watch};

use super::content::{Destination, Destinations, Source};
use super::engine::Teller;
use super::events::{Event, Limits};
use super::network::Network;
use super::reader::Hashing;

/// Of so many peers it is remembered that long packets do not come through to them.
const NARROW_PEERS_MAX: usize = 1024;
/// How long a session whose other end came again may take to let go of what it has.
pub(super) const HAND_OVER_MAX: Duration = Duration::from_secs(5);

/// What this end does.
#[derive(Clone)]
pub(super) enum Work {
    Send { source: Arc<dyn Source>, hashing: Hashing },
    Receive(Arc<dyn Destinations>),
}

impl Work {
    pub(super) fn sends(&self) -> bool {
        matches!(self, Self::Send { .. })
    }
}

/// Who sends, and the hash of the manifest of what.
pub(super) type Slot = (NodeId, [u8; 32]);

/// A receive under way.
pub(super) struct Receiving {
    /// Ends it.
    pub(super) stop: watch::Sender<bool>,
    /// Whether nothing comes any more by any path.
    pub(super) is_silent: Rc<Cell<bool>>,
}

/// What all tasks of the thread have.
pub(super) struct Context {
    pub(super) network: Network,
    pub(super) engine: Teller,
    pub(super) work: Work,
    pub(super) identity: Identity,
    pub(super) is_fair: bool,
    pub(super) limits: watch::Receiver<Limits>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) cancelled: watch::Receiver<bool>,
    /// Receives under way: a second of the same content from the same key takes the place of the first.
    pub(super) receiving: RefCell<HashMap<Slot, Receiving>>,
    /// Places of receives that are over, which disk threads may hold still.
    pub(super) lingering: RefCell<HashMap<Slot, Weak<dyn Destination>>>,
    /// Receives that are ready: they share the limit.
    pub(super) receivers_ready: watch::Sender<usize>,
    /// Connections whose last words have not arrived.
    pub(super) speaking: watch::Sender<usize>,
    /// Lengths of chunks that are being sent, and by how many sessions.
    pub(super) chunk_lens: RefCell<BTreeMap<u16, usize>>,
    /// Longest chunks that come through to whom longer ones do not.
    pub(super) narrow: RefCell<HashMap<NodeId, u16>>,
}

impl Context {
    pub(super) async fn tell(&self, event: Event) {
        let _ = self.events.send(event).await;
    }

    /// Chunks longer than these do not come through to a peer.
    pub(super) fn shorten(&self, key: NodeId, chunk_len: u16) {
        let mut narrow = self.narrow.borrow_mut();
        if narrow.len() >= NARROW_PEERS_MAX {
            narrow.clear();
        }
        narrow.insert(key, chunk_len);
    }

    /// Progress, which nobody waits for.
    pub(super) fn tell_if_room(&self, event: Event) {
        let _ = self.events.try_send(event);
    }
}

/// A connection, until its last words have arrived.
pub(super) struct Speaking<'a>(&'a Context);

impl<'a> Speaking<'a> {
    pub(super) fn begin(context: &'a Context) -> Self {
        context.speaking.send_modify(|count| *count += 1);
        Self(context)
    }
}

impl Drop for Speaking<'_> {
    fn drop(&mut self) {
        self.0.speaking.send_modify(|count| *count -= 1);
    }
}

pub(super) async fn is_cancelled(cancelled: &mut watch::Receiver<bool>) {
    if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
        // All handles are gone: nobody will cancel.
        std::future::pending::<()>().await;
    }
}
