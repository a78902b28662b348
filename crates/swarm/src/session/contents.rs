//! The contents of a session: which there are, and how they fare.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Instant;

use anabranch_bittorrent::mse::content_key;
use anabranch_bittorrent::torrent::PeerStats;
use anabranch_content::bitfield::Bitfield;
use anabranch_content::info::{Info, InfoHashes};
use anabranch_content::metainfo::Metainfo;
use anabranch_content::verify;
use anabranch_paths::{Endpoint, Host, ScionAddr};
use anabranch_transport::{Identity, NodeId};
use tokio::task::JoinSet;

use crate::bittorrent::dial::Offers;
use crate::bittorrent::registry::Registry;
use crate::bittorrent::scratch::Scratch;
use crate::bittorrent::torrent::TorrentHandle;
use crate::config::{Aim, FileFilter};
use crate::events::{ContentId, EventKind};
use crate::net::admission::{Place, gives_way};
use crate::net::conn_handle::ConnHandle;
use crate::net::own_addresses;
use crate::net::ports::OpenPort;
use crate::ppspp;
use crate::resources::Resources;
use crate::store::open::blocking;
use crate::store::readers::{Look, Readable};
use crate::transfer::PathProgress;
use crate::transfer::Sources;
use crate::transfer::{Progress, Transfer};

/// The contents of a session, and what is done to them. A [`Session`](crate::Session) is these and the tasks that serve them.
pub struct Contents {
    me: Weak<Self>,
    /// What they share.
    pub(crate) resources: Rc<Resources>,
    /// Receive memory of BitTorrent connections.
    pub(super) scratch: Rc<RefCell<Scratch>>,
    all: RefCell<BTreeMap<ContentId, Rc<dyn Transfer>>>,
    /// Those of BitTorrent, for the peers that ask for them.
    torrents: RefCell<BTreeMap<ContentId, TorrentHandle>>,
    by_hash: RefCell<HashMap<[u8; 20], ContentId>>,
    /// The same hashes, by what callers who encrypt name them.
    by_key: RefCell<HashMap<[u8; 20], [u8; 20]>>,
    /// The same, by the content that has them.
    hashes: RefCell<HashMap<ContentId, Vec<[u8; 20]>>>,
    /// The sockets of PPSPP, and which content is meant by what comes.
    pub(super) hub: Rc<ppspp::Hub>,
    /// What serves those sockets. It ends with the session.
    pub(super) serving: RefCell<JoinSet<()>>,
    next_id: Cell<u64>,
    /// Contents on their way out. Each is ended with the session, if it is not done by then.
    pub(super) leaving: RefCell<JoinSet<()>>,
    /// Files that are being deleted, of contents that may be gone already. They end with the session, too.
    pub(super) deleting: RefCell<JoinSet<()>>,
}

impl Contents {
    pub(super) fn new(resources: Resources) -> Rc<Self> {
        Rc::new_cyclic(|me| Self {
            me: me.clone(),
            resources: Rc::new(resources),
            scratch: Rc::new(RefCell::new(Scratch::new())),
            all: RefCell::default(),
            torrents: RefCell::default(),
            by_hash: RefCell::default(),
            by_key: RefCell::default(),
            hashes: RefCell::default(),
            hub: Rc::default(),
            serving: RefCell::default(),
            next_id: Cell::new(0),
            leaving: RefCell::default(),
            deleting: RefCell::default(),
        })
    }

    /// Where it listens, with the ports that the system chose.
    pub fn listening(&self) -> &[SocketAddr] {
        &self.resources.listening
    }

    /// The key that peers over SCION know it by.
    pub fn node_id(&self) -> Option<NodeId> {
        self.resources.config.scion.as_ref().map(|scion| scion.identity.node_id())
    }

    /// The key that peers of secure contents of PPSPP know it by.
    pub fn secure_node_id(&self) -> Option<NodeId> {
        self.resources.config.secure_identity.as_ref().map(Identity::node_id)
    }

    /// Where it is in the SCION network, with the port that was chosen.
    pub fn scion_address(&self) -> Option<ScionAddr> {
        self.resources.scion.as_ref()?.endpoint.local().as_scion()
    }

    /// Where peers reach us over plain IP: the addresses of all interfaces that may be used, where it listens at all of them.
    pub fn reachable(&self) -> Vec<SocketAddr> {
        let uplinks = self.resources.uplinks.as_ref();
        uplinks.map_or(Vec::new(), |uplinks| uplinks.reachable_at(&self.resources.listening))
    }

    /// The ports that routers opened for it, beside those that it listens at.
    pub fn open_ports(&self) -> Vec<OpenPort> {
        self.resources.ports.list().to_vec()
    }

    /// Routers opened something, or did not: contents tell of it, and tell others where we are reached now.
    pub(super) fn ports_changed(&self, kind: &EventKind) {
        for torrent in self.torrents() {
            let mut state = torrent.borrow_mut();
            state.tell(kind.clone());
            state.core.set_listen_ports(self.resources.listen_port(), self.resources.dht_port());
            state.announce.notify_one();
        }
    }

    /// The proxy relays no datagrams: told where it was not told before.
    pub(super) fn relay_failed(&self, error: &io::Error) {
        let reason = error.to_string();
        if self.resources.relay_failure.replace(Some(reason.clone())).as_ref() == Some(&reason) {
            return;
        }
        for torrent in self.torrents() {
            torrent.borrow().tell(EventKind::RelayFailed { reason: reason.clone() });
        }
    }

    /// The contents there are, in the order in which they came; those that are being removed are among them.
    pub fn list(&self) -> Vec<ContentId> {
        self.all.borrow().keys().copied().collect()
    }

    /// Where others reach us: over every uplink, the one that leads furthest first.
    pub fn addresses(&self) -> Vec<Endpoint> {
        let ip = own_addresses::told(self.reachable(), self.listening());
        ip.into_iter().map(Endpoint::from).chain(self.scion_address().map(Endpoint::Scion)).collect()
    }

    /// Where others reach our PPSPP, once there is a content of it.
    pub fn ppspp_addresses(&self) -> Vec<Endpoint> {
        let ip = own_addresses::told(self.ppspp_reachable(), &self.ppspp_listening());
        ip.into_iter().map(Endpoint::from).chain(self.ppspp_scion_address().map(Endpoint::Scion)).collect()
    }

    /// The ports that PPSPP's sockets have, once there is a content of it.
    pub fn ppspp_ports(&self) -> ppspp::Ports {
        self.hub.ports()
    }

    /// PPSPP's sockets are opened at these ports, those that are free. Means nothing once there is a content of it.
    pub fn prefer_ppspp_ports(&self, ports: ppspp::Ports) {
        self.hub.prefer(ports);
    }

    /// Where peers reach us by PPSPP over plain IP, once there is a content of it.
    pub fn ppspp_reachable(&self) -> Vec<SocketAddr> {
        let uplinks = self.resources.uplinks.as_ref();
        uplinks.map_or(Vec::new(), |uplinks| uplinks.reachable_at(&self.hub.listening()))
    }

    /// Where PPSPP's sockets are, once there is a content of it.
    pub fn ppspp_listening(&self) -> Vec<SocketAddr> {
        self.hub.listening()
    }

    /// Where PPSPP's socket is in the SCION network, likewise.
    pub fn ppspp_scion_address(&self) -> Option<ScionAddr> {
        self.hub.listening_scion()
    }

    /// How a content fares; `None` when there is none of this number.
    pub fn progress(&self, id: ContentId) -> Option<Progress> {
        Some(self.get(id)?.progress(Instant::now()))
    }

    /// How several contents fare, those that are there.
    pub fn progress_of(&self, ids: &[ContentId]) -> Vec<(ContentId, Progress)> {
        let now = Instant::now();
        ids.iter().filter_map(|id| Some((*id, self.get(*id)?.progress(now)))).collect()
    }

    /// Which pieces of a content are verified and written; `None` until it is known what it is.
    pub fn have(&self, id: ContentId) -> Option<Bitfield> {
        let content = self.readable(id)?;
        let content = content.borrow();
        let info = content.known()?;
        let (geometry, mut at) = (&info.geometry, 0);
        let mut have = Bitfield::new(geometry.piece_count());
        while at < geometry.piece_count() {
            let range = geometry.piece_offset(at)..geometry.total();
            let Look::There { end, .. } = content.look(range) else {
                at += 1;
                continue;
            };
            let behind = geometry.piece_at(end - 1) + 1;
            (at..behind).for_each(|piece| {
                have.set(piece);
            });
            at = behind;
        }
        Some(have)
    }

    /// Its connections.
    pub fn peers(&self, id: ContentId) -> Vec<PeerStats> {
        self.get(id).map_or(Vec::new(), |content| content.peers(Instant::now()))
    }

    /// Its connections, each with its path.
    pub fn paths(&self, id: ContentId) -> Vec<PathProgress> {
        self.get(id).map_or(Vec::new(), |content| content.paths(Instant::now()))
    }

    /// Who may still bring what is missing of a content.
    pub fn sources(&self, id: ContentId) -> Option<Sources> {
        Some(self.get(id)?.sources(Instant::now()))
    }

    /// Says which files are wanted of a content with [`Aim::ChosenFiles`], all where `None`, and lets it go on.
    pub fn choose(&self, id: ContentId, files: Option<FileFilter>) {
        let Some(torrent) = self.torrent(id) else { return };
        let mut state = torrent.borrow_mut();
        state.options.files = files;
        state.options.aim = Aim::Files;
        state.chosen.notify_one();
    }

    /// What a content is, once known.
    pub fn info(&self, id: ContentId) -> Option<Arc<Info>> {
        self.get(id)?.info()
    }

    /// A content's torrent, once all of it is known: of v2 and hybrids that came by a magnet link, the Merkle layers come last.
    pub fn metainfo(&self, id: ContentId) -> Option<Metainfo> {
        let torrent = self.torrent(id)?;
        let torrent = torrent.borrow();
        let info = Arc::clone(torrent.core.info()?);
        let known = !info.version.is_v2() || torrent.core.knows_all_layers();
        known.then(|| Metainfo { piece_layers: torrent.layers(), ..Metainfo::new(info) })
    }

    /// The same of a content whose files are complete: Merkle layers that no peer sent are made of them. `None` where files are
    /// missing, too.
    pub async fn metainfo_from_files(&self, id: ContentId) -> Option<Metainfo> {
        if let Some(known) = self.metainfo(id) {
            return Some(known);
        }
        let (info, layers, storage, cancel) = {
            let torrent = self.torrent(id)?;
            let torrent = torrent.borrow();
            let storage = Arc::clone(torrent.storage.as_ref()?);
            (Arc::clone(torrent.core.info()?), torrent.layers(), storage, Arc::clone(&torrent.cancel))
        };
        let content = Arc::clone(&info);
        let made = blocking(move || verify::layers_on_disk(&content, layers, storage.root(), &cancel)).await;
        Some(Metainfo { piece_layers: made?, ..Metainfo::new(info) })
    }

    /// When a piece is needed, for playing a content while it arrives; `None` takes that back.
    pub fn set_deadline(&self, id: ContentId, piece: u32, deadline: Option<Instant>) {
        if let Some(content) = self.get(id) {
            content.set_deadline(piece, deadline, Instant::now());
        }
    }

    // ---- who is there ----

    pub(super) fn downgrade(&self) -> Weak<Self> {
        self.me.clone()
    }

    pub(super) fn next_id(&self) -> ContentId {
        ContentId(self.next_id.replace(self.next_id.get() + 1))
    }

    /// A content comes.
    pub(super) fn insert(&self, id: ContentId, content: Rc<dyn Transfer>) {
        self.all.borrow_mut().insert(id, content);
    }

    /// A content of BitTorrent comes.
    pub(super) fn insert_torrent(&self, id: ContentId, hashes: &InfoHashes, torrent: TorrentHandle) {
        self.insert(id, Rc::new(torrent.clone()));
        for port in self.open_ports() {
            torrent.borrow().tell(EventKind::PortOpened(port));
        }
        self.torrents.borrow_mut().insert(id, torrent);
        self.enter_hashes(id, hashes);
    }

    /// Whether there is a content of this number.
    pub(super) fn has(&self, id: ContentId) -> bool {
        self.all.borrow().contains_key(&id)
    }

    /// A content is gone.
    pub(super) fn forget(&self, id: ContentId) {
        self.all.borrow_mut().remove(&id);
        self.hub.directory().remove(id);
        self.torrents.borrow_mut().remove(&id);
        for hash in self.hashes.borrow_mut().remove(&id).into_iter().flatten() {
            self.by_hash.borrow_mut().remove(&hash);
            self.by_key.borrow_mut().remove(&content_key(&hash));
        }
    }

    fn enter_hashes(&self, id: ContentId, hashes: &InfoHashes) {
        self.hashes.borrow_mut().entry(id).or_default().extend(hashes.wire_hashes());
        self.by_hash.borrow_mut().extend(hashes.wire_hashes().map(|hash| (hash, id)));
        self.by_key.borrow_mut().extend(hashes.wire_hashes().map(|hash| (content_key(&hash), hash)));
    }

    /// The content of this number, also while it leaves.
    pub(super) fn get(&self, id: ContentId) -> Option<Rc<dyn Transfer>> {
        self.all.borrow().get(&id).cloned()
    }

    /// The same, for those who read it.
    pub(super) fn readable(&self, id: ContentId) -> Option<Rc<RefCell<dyn Readable>>> {
        Some(self.get(id)?.readable())
    }

    /// The torrent of this number, also while it leaves.
    pub(super) fn torrent(&self, id: ContentId) -> Option<TorrentHandle> {
        self.torrents.borrow().get(&id).cloned()
    }

    /// All torrents.
    pub(super) fn torrents(&self) -> Vec<TorrentHandle> {
        self.torrents.borrow().values().cloned().collect()
    }

    /// The content of this hash, also while it leaves.
    pub(super) fn of_hash(&self, hash: &[u8; 20]) -> Option<TorrentHandle> {
        let id = *self.by_hash.borrow().get(hash)?;
        self.torrent(id)
    }
}

impl Offers for Contents {
    fn resources(&self) -> &Rc<Resources> {
        &self.resources
    }

    fn asked_for(&self, hash: &[u8; 20]) -> Option<TorrentHandle> {
        self.of_hash(hash).filter(|torrent| !torrent.borrow().stopping && !torrent.borrow().is_held())
    }

    fn meant_by(&self, content_key: &[u8; 20]) -> Option<[u8; 20]> {
        let hash = *self.by_key.borrow().get(content_key)?;
        self.asked_for(&hash).map(|_| hash)
    }
}

impl Registry for Contents {
    fn take_hashes(&self, id: ContentId, hashes: &InfoHashes) -> bool {
        let is_others = |hash: &[u8; 20]| self.by_hash.borrow().get(hash).is_some_and(|other| *other != id);
        if hashes.wire_hashes().any(|hash| is_others(&hash)) {
            return false;
        }
        self.enter_hashes(id, hashes);
        true
    }

    fn make_room(&self, host: Host) -> bool {
        if self.resources.has_room() {
            return true;
        }
        let torrents = self.torrents();
        let states: Vec<_> = torrents.iter().map(TorrentHandle::borrow).collect();
        let (places, handles): (Vec<Place>, Vec<&Rc<ConnHandle>>) =
            states.iter().flat_map(|state| state.places()).unzip();
        let goes = gives_way(&places, host, Instant::now()).map(|at| handles[at]);
        goes.inspect(|handle| handle.close("it made room for another peer".to_owned())).is_some()
    }
}
