//! Who is reached through the sockets: contents, their channels, and the ways to their peers; and whose a datagram is.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::Instant;

use anabranch_ppspp::wire::{ChannelId, Opening, SwarmParams, split_channel};
use anabranch_transport::NodeId;

use crate::events::ContentId;
use crate::ppspp::audience::Audience;
use crate::ppspp::path_table::{PathAddress, PathTable};

/// Longest chunk of others' live sources that is received.
const CHUNK_LEN_MAX: usize = 8192;

/// A content, as the sockets know it.
pub(crate) trait Recipient {
    /// Datagrams came, each by its way.
    fn received(&mut self, datagrams: &[(PathAddress, &[u8])], now: Instant);

    /// Whether it waits for whoever is at the end of the way to prove a key.
    fn is_calling(&self, way: &PathAddress) -> bool;

    /// Whoever is at the end of the way proved its key.
    fn secured(&mut self, way: &PathAddress, key: NodeId, now: Instant);

    /// The connection over the way ended, or did not come about.
    fn unsecured(&mut self, way: &PathAddress, reason: &str, is_final: bool, now: Instant);
}

/// Contents, and the ways to their peers.
#[derive(Default)]
pub(crate) struct Directory {
    paths: RefCell<PathTable>,
    by_channel: RefCell<HashMap<ChannelId, ContentId>>,
    by_swarm: RefCell<HashMap<Box<[u8]>, ContentId>>,
    contents: RefCell<HashMap<ContentId, Entry>>,
    /// Longest chunk of all contents that there were.
    chunk_len: Cell<usize>,
}

/// A content, and with whom it deals where it is secure.
struct Entry {
    content: Weak<RefCell<dyn Recipient>>,
    audience: Option<Rc<Audience>>,
}

impl Directory {
    /// The ways from here.
    pub(super) fn paths(&self) -> Ref<'_, PathTable> {
        self.paths.borrow()
    }

    /// The same, to change them.
    pub(super) fn paths_mut(&self) -> RefMut<'_, PathTable> {
        self.paths.borrow_mut()
    }

    /// A content comes, of the swarm that `params` are of; where it is secure, with whom it deals. `false` where its swarm is there already.
    pub(crate) fn insert(
        &self,
        id: ContentId,
        params: &SwarmParams,
        audience: Option<Rc<Audience>>,
        content: Weak<RefCell<dyn Recipient>>,
    ) -> bool {
        let swarm_id: Box<[u8]> = params.swarm_id().into();
        if self.by_swarm.borrow().contains_key(&swarm_id) {
            return false;
        }
        let chunk_len = params.chunk_len().map_or(CHUNK_LEN_MAX, |len| len as usize);
        self.chunk_len.set(self.chunk_len.get().max(chunk_len));
        self.by_swarm.borrow_mut().insert(swarm_id, id);
        self.contents.borrow_mut().insert(id, Entry { content, audience });
        true
    }

    /// The content of a swarm.
    pub(crate) fn of_swarm(&self, swarm_id: &[u8]) -> Option<ContentId> {
        self.by_swarm.borrow().get(swarm_id).copied()
    }

    /// A content is gone, and its channels with it.
    pub(crate) fn remove(&self, id: ContentId) {
        self.by_swarm.borrow_mut().retain(|_, of| *of != id);
        self.by_channel.borrow_mut().retain(|_, of| *of != id);
        self.contents.borrow_mut().remove(&id);
    }

    /// A content has a channel of this number. `false` where another has one.
    pub(crate) fn take_channel(&self, channel: ChannelId, id: ContentId) -> bool {
        *self.by_channel.borrow_mut().entry(channel).or_insert(id) == id
    }

    /// A content has this channel no more.
    pub(crate) fn leave_channel(&self, channel: ChannelId, id: ContentId) {
        let mut channels = self.by_channel.borrow_mut();
        if channels.get(&channel) == Some(&id) {
            channels.remove(&channel);
        }
    }

    /// Longest chunk of all contents that there were.
    pub(super) fn chunk_len(&self) -> usize {
        self.chunk_len.get()
    }

    /// The content of this number, if it is still there.
    pub(super) fn content(&self, id: ContentId) -> Option<Rc<RefCell<dyn Recipient>>> {
        self.contents.borrow().get(&id)?.content.upgrade()
    }

    /// All contents that are secure.
    pub(super) fn contents(&self) -> Vec<Rc<RefCell<dyn Recipient>>> {
        let contents = self.contents.borrow();
        let secure = contents.values().filter(|entry| entry.audience.is_some());
        secure.filter_map(|entry| entry.content.upgrade()).collect()
    }

    /// Whether any content deals with whoever has this key.
    pub(super) fn admits(&self, key: &NodeId) -> bool {
        let contents = self.contents.borrow();
        contents.values().filter_map(|entry| entry.audience.as_ref()).any(|audience| audience.admits(key))
    }

    /// Whose datagram this is, which is from whoever has the `key` if it was inside QUIC.
    pub(super) fn whose(&self, datagram: &[u8], key: Option<&NodeId>) -> Option<ContentId> {
        let (channel, messages) = split_channel(datagram)?;
        let id = match channel {
            0 => {
                let opening = Opening::parse(messages).ok()?;
                self.of_swarm(opening.handshake.swarm_id.as_deref()?)?
            }
            channel => self.by_channel.borrow().get(&channel).copied()?,
        };
        let contents = self.contents.borrow();
        let is_its_own = match (&contents.get(&id)?.audience, key) {
            (None, None) => true,
            (Some(audience), Some(key)) => audience.admits(key),
            (None, Some(_)) | (Some(_), None) => false,
        };
        is_its_own.then_some(id)
    }
}
