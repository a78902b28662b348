//! Which paths to use: wishes, grants, and what is in use (see [`crate::extension::PathTalk`]).
//!
//! Every peer is talked with once, over the oldest of its connections that works and speaks the extension. Choosing is the
//! driver's: it knows the paths. It hears of wishes by [`PathEvent::Wished`], selects over all of
//! them, minding [`Torrent::third_party_paths`], and dials back or calls [`Torrent::grant_paths`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use anabranch_paths::ScionAddr;

use super::addresses::OwnAddresses;
use super::config::PATH_EVENTS_MAX;
use super::{ConnId, PathEvent, Torrent};
use crate::PeerKey;
use crate::extension::{
    Extension, ExtensionError, IN_USE_COUNTS_FOR, InterfaceSequence, PathTalk, PathsInUse, PathsMessage, Wish,
};
use crate::wire::Message;

/// What we say to every peer, and what the driver has not heard of yet. Most contents have none of it.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    /// What we want of uploaders.
    ours: Option<Wish>,
    in_use: Vec<InterfaceSequence>,
    /// What the tracker told of paths that others use.
    told: ThirdPartyPaths,
    pub(super) own_addresses: OwnAddresses,
    pub(super) events: VecDeque<PathEvent>,
}

/// What somebody told of paths that third parties use, and when.
#[derive(Debug, Default)]
pub(super) struct ThirdPartyPaths {
    in_use: PathsInUse,
    at: Option<Instant>,
}

impl ThirdPartyPaths {
    /// In place of what was told before.
    pub(super) fn replace(&mut self, in_use: PathsInUse, now: Instant) {
        *self = Self { in_use, at: Some(now) };
    }

    /// As long as it counts.
    fn hosts(&self, now: Instant) -> impl Iterator<Item = (ScionAddr, &[InterfaceSequence])> {
        let counts = self.at.is_some_and(|at| now.saturating_duration_since(at) < IN_USE_COUNTS_FOR);
        self.in_use.hosts().filter(move |_| counts)
    }
}

/// Who uses a path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum User {
    Peer(PeerKey),
    Host(ScionAddr),
}

impl Torrent {
    /// What we want of everybody we download from, while there is something to download. `None` takes it back.
    pub fn wish_paths(&mut self, wish: Option<Wish>, now: Instant) {
        self.wishes.ours = wish;
        self.conn_ids().into_iter().for_each(|id| self.talk_of_paths(id, now));
    }

    /// Lets `peer` dial these paths, best first, and no others; cut to what it wished for. Answers how many that are.
    pub fn grant_paths(&mut self, peer: PeerKey, paths: Vec<InterfaceSequence>, now: Instant) -> usize {
        let Some(entry) = self.peers.get_mut(&peer) else { return 0 };
        let granted = entry.talk.grant(paths);
        if let Some(id) = self.path_speaker(peer) {
            self.talk_of_paths(id, now);
        }
        granted
    }

    /// Tells everybody over which paths content moves here at present.
    pub fn set_paths_in_use(&mut self, paths: Vec<InterfaceSequence>, now: Instant) {
        self.wishes.in_use = paths;
        self.conn_ids().into_iter().for_each(|id| self.talk_of_paths(id, now));
    }

    /// What `peer` grants us, best first.
    pub fn granted_paths(&self, peer: PeerKey) -> &[InterfaceSequence] {
        self.peers.get(&peer).map_or(&[], |peer| peer.talk.granted())
    }

    /// Over which paths content moves here at present.
    pub fn paths_in_use(&self) -> &[InterfaceSequence] {
        &self.wishes.in_use
    }

    /// A tracker told what others use.
    pub fn told_in_use(&mut self, in_use: PathsInUse, now: Instant) {
        self.wishes.told.replace(in_use, now);
    }

    /// The paths that others use, with whomever, and how many do: as connected peers say of themselves, and as they and trackers
    /// tell of third parties. A path that both its ends tell of counts once, and is there as one of them sees it.
    pub fn third_party_paths(&self, now: Instant) -> BTreeMap<InterfaceSequence, u32> {
        let known: BTreeSet<ScionAddr> =
            self.conns.values().filter_map(|conn| conn.listen_address()?.as_scion()).collect();
        let themselves = self
            .peers
            .iter()
            .flat_map(|(key, peer)| peer.talk.their_used_lately(now).map(|path| (User::Peer(*key), path)));
        let told = self.peers.values().map(|peer| &peer.told).chain([&self.wishes.told]);
        let third = told.flat_map(|told| told.hosts(now)).filter(|(host, _)| !known.contains(host));
        let mut users: BTreeMap<InterfaceSequence, [BTreeSet<User>; 2]> = BTreeMap::new();
        let third = third.flat_map(|(host, paths)| paths.iter().map(move |path| (User::Host(host), path)));
        for (user, path) in themselves.chain(third) {
            let back = path.reversed();
            let (name, end) = if back < *path { (back, 1) } else { (path.clone(), 0) };
            users.entry(name).or_default()[end].insert(user);
        }
        let count = |[here, there]: [BTreeSet<User>; 2]| here.len().max(there.len()) as u32;
        users.into_iter().map(|(path, users)| (path, count(users))).collect()
    }

    /// What connected peers use, but for `to`: for telling it.
    pub(super) fn in_use_of_others(&self, to: PeerKey) -> PathsInUse {
        let mut in_use = PathsInUse::default();
        for (_, peer) in self.peers.iter().filter(|(key, _)| **key != to) {
            let listens = |id| self.conns.get(id).and_then(|conn| conn.listen_address()?.as_scion());
            if let Some(host) = peer.conns.iter().find_map(listens) {
                in_use.add(host, peer.talk.their_used());
            }
        }
        in_use
    }

    /// The next thing that a peer said of paths.
    pub fn poll_path_event(&mut self) -> Option<PathEvent> {
        self.wishes.events.pop_front()
    }

    /// Whether there is any that asks for something to be done: what peers use only matters when paths are chosen next.
    pub fn has_path_events(&self) -> bool {
        self.wishes.events.iter().any(|event| !matches!(event, PathEvent::InUse { .. }))
    }

    /// The connection that paths are talked of with `peer` over.
    pub(super) fn path_speaker(&self, peer: PeerKey) -> Option<ConnId> {
        let speaks = |id: &ConnId| {
            self.conns.get(id).is_some_and(|conn| conn.extensions.get(Extension::Paths).is_some() && conn.is_usable())
        };
        self.peers.get(&peer)?.conns.iter().copied().find(speaks)
    }

    /// Says what there is to say over `id`, if that is the connection for it.
    pub(super) fn talk_of_paths(&mut self, id: ConnId, now: Instant) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (peer, Some(number)) = (conn.peer, conn.extensions.get(Extension::Paths)) else { return };
        if self.path_speaker(peer) != Some(id) {
            return;
        }
        let wish = self.wishes.ours.filter(|_| !self.is_finished());
        let (Some(entry), Some(conn)) = (self.peers.get_mut(&peer), self.conns.get_mut(&id)) else { return };
        if entry.talked_over.replace(id).is_some_and(|before| before != id) {
            entry.talk.repeat();
        }
        entry.talk.wish(wish);
        entry.talk.using(&self.wishes.in_use);
        if let Some(message) = entry.talk.next(now) {
            Message::Extended { id: number, payload: &message.encode() }.encode(&mut conn.out);
            self.touch(id);
        }
    }

    pub(super) fn on_paths(&mut self, id: ConnId, payload: &[u8], now: Instant) -> Result<(), ExtensionError> {
        let message = PathsMessage::parse(payload)?;
        let Some(peer) = self.conns.get(&id).map(|conn| conn.peer) else { return Ok(()) };
        let Some(entry) = self.peers.get_mut(&peer) else { return Ok(()) };
        let news = entry.talk.on_message(message, now);
        let events = [
            (news.wish, PathEvent::Wished { peer, wish: entry.talk.their_wish() }),
            (news.granted, PathEvent::Granted { peer }),
            (news.used, PathEvent::InUse { peer }),
        ];
        for (_, event) in events.into_iter().filter(|(news, _)| *news) {
            self.push_path_event(event);
        }
        Ok(())
    }

    /// Only the latest of a kind and peer matters.
    pub(super) fn push_path_event(&mut self, event: PathEvent) {
        self.wishes.events.retain(|other| !other.replaced_by(&event));
        if self.wishes.events.len() >= PATH_EVENTS_MAX {
            self.wishes.events.pop_front();
        }
        self.wishes.events.push_back(event);
    }

    /// The last connection of `peer` is gone: what it wished for and used is over.
    pub(super) fn end_path_talk(&mut self, peer: PeerKey) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let wished = entry.talk.their_wish().is_some();
        entry.talk = PathTalk::default();
        entry.told = ThirdPartyPaths::default();
        entry.talked_over = None;
        self.wishes.events.retain(|event| event.peer() != peer);
        if wished {
            self.push_path_event(PathEvent::Wished { peer, wish: None });
        }
    }
}
