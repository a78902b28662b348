//! What is known of a managed transfer, and what the driver's events change.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anabranch_bittorrent::torrent::TorrentStats;
use anabranch_paths::Endpoint;
use anabranch_transport::NodeId;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::super::events::{Event, Handle, PathWay, PeerId, Progress, TransferError, Waiting};
use super::super::invitation::Invitation;
use super::super::messages::code;
use super::task::{Job, Partner, Task};
use crate::config::AddOptions;
use crate::events::{ContentId, Event as SessionEvent, EventKind, FailureKind, News, Placed};
use crate::resources::Resources;
use crate::store::readers::Readers;

/// Other ends that are known at once; more than the driver serves.
const PEERS_MAX: usize = 128;
/// Callers whose rejection is told; whoever knocks from more addresses wants the log to grow.
const REJECTED_TOLD_MAX: usize = 100;

/// How a run of the driver ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// There is nothing more to do, and why.
    Over(String),
    /// It cannot be gone on with.
    Failed(FailureKind, String),
    /// The other end ended it, and may be there again.
    Cut(String),
    /// Its owner asked for it.
    Asked,
}

/// One other end.
struct Peer {
    key: NodeId,
    address: Endpoint,
    name: String,
    /// Bytes of content, and of these, there from before.
    offered: Option<(u64, u64)>,
    progress: Option<Progress>,
    ways: BTreeMap<u8, PathWay>,
    waits: Option<String>,
}

impl Peer {
    /// Bytes that moved with it.
    fn moved(&self) -> u64 {
        let kept = self.offered.map_or(0, |(_, kept)| kept);
        self.progress.as_ref().map_or(0, |progress| progress.done_bytes.saturating_sub(kept))
    }

    /// Bytes that the receiver has, and all.
    fn amount(&self) -> Option<(u64, u64)> {
        let (total, kept) = self.offered?;
        Some((self.progress.as_ref().map_or(kept, |progress| progress.done_bytes), total))
    }
}

/// A managed transfer that its task and its session share. All is on one thread, and nothing holds a borrow across an await.
#[derive(Clone)]
pub(crate) struct ManagedTransfer(pub(super) Rc<RefCell<State>>);

/// What is known.
pub(super) struct State {
    pub id: ContentId,
    pub task: Task,
    pub options: AddOptions,
    pub resources: Rc<Resources>,
    pub tasks: JoinSet<()>,
    /// Its owner asked for something.
    pub changed: Rc<Notify>,
    pub driver: Option<Handle>,
    /// Ends the look through its files.
    pub cancel: Arc<AtomicBool>,
    /// Something of it is still at work.
    pub is_running: bool,
    pub is_held: bool,
    pub is_leaving: bool,
    pub has_failed: bool,
    pub is_over: bool,
    pub readers: Readers,
    pub arrived: Rc<Notify>,
    peers: BTreeMap<PeerId, Peer>,
    /// Bytes of what is sent.
    pub size: Option<u64>,
    /// How far the last one was that is gone.
    last: Option<(u64, u64)>,
    /// Bytes that moved with those that are gone.
    moved: u64,
    delivered: u16,
    waits: Option<String>,
    rejected: HashSet<(IpAddr, String)>,
}

impl State {
    pub(super) fn new(id: ContentId, task: Task, options: AddOptions, resources: Rc<Resources>) -> Self {
        Self {
            id,
            task,
            options,
            resources,
            tasks: JoinSet::new(),
            changed: Rc::default(),
            driver: None,
            cancel: Arc::default(),
            is_running: false,
            is_held: false,
            is_leaving: false,
            has_failed: false,
            is_over: false,
            readers: Readers::default(),
            arrived: Rc::default(),
            peers: BTreeMap::new(),
            size: None,
            last: None,
            moved: 0,
            delivered: 0,
            waits: None,
            rejected: HashSet::new(),
        }
    }

    /// Whether this end sends.
    pub(super) fn sends(&self) -> bool {
        matches!(self.task.job, Job::Send(_))
    }

    /// Whether this end is called.
    pub(super) fn listens(&self) -> bool {
        !matches!(self.task.partner, Partner::Ticket(_))
    }

    /// Whether what runs is to end.
    pub(super) fn is_asked_to_rest(&self) -> bool {
        self.is_held || self.is_leaving
    }

    pub(super) fn tell(&self, kind: EventKind) {
        self.resources.events.tell(SessionEvent { content: self.id, kind });
    }

    pub(super) fn news(&self, news: News) {
        self.tell(EventKind::Bulk(news));
    }

    /// What runs is asked to end.
    pub(super) fn rest(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
        self.driver.iter().for_each(Handle::cancel);
        self.changed.notify_one();
    }

    /// Nothing runs any more.
    pub(super) fn ended(&mut self) {
        (self.driver, self.is_running, self.waits) = (None, false, None);
        let peers: Vec<PeerId> = self.peers.keys().copied().collect();
        peers.into_iter().for_each(|peer| self.forget(peer));
    }

    /// The limits that hold: its own, and those of all contents together.
    pub(super) fn limits_now(&self) -> (Option<u64>, Option<u64>) {
        let least = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        let (down, up) = (self.resources.down.limit(), self.resources.up.limit());
        (least(self.options.limit_down, down), least(self.options.limit_up, up))
    }

    /// An event of the driver: what it ends, if it does. `key` is this end's.
    pub(super) fn heed(&mut self, event: Event, key: NodeId) -> Option<Ended> {
        match event {
            Event::Listening { addresses } => return self.on_listening(addresses, key),
            Event::PeerConnected { peer, key, address } => {
                self.forget(peer);
                self.make_room();
                let new = Peer {
                    key,
                    address,
                    name: String::new(),
                    offered: None,
                    progress: None,
                    ways: BTreeMap::new(),
                    waits: None,
                };
                self.peers.insert(peer, new);
            }
            Event::Offered { peer, names, content_len, kept_bytes, .. } => {
                let name = match names.as_slice() {
                    [] => "nothing".to_owned(),
                    [one] => one.clone(),
                    [first, rest @ ..] => format!("{first} and {} more", rest.len()),
                };
                if let Some(peer) = self.peers.get_mut(&peer) {
                    (peer.name, peer.offered, peer.waits) = (name.clone(), Some((content_len, kept_bytes)), None);
                    let peer = peer.address;
                    self.news(News::Offered { peer, name, bytes_total: content_len, bytes_kept: kept_bytes });
                }
            }
            Event::PathUp { peer, path, way, rtt } => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    let reason = format!("the other end answered over it, in {:.1} ms", rtt.as_secs_f64() * 1e3);
                    let news = News::Path { peer: way.remote, path: way.known_path(), is_up: true, reason };
                    (peer.waits, _) = (None, peer.ways.insert(path, way));
                    self.news(news);
                }
            }
            Event::PathDown { peer, path, reason } => {
                if let Some(way) = self.peers.get(&peer).and_then(|peer| peer.ways.get(&path)) {
                    let news = News::Path { peer: way.remote, path: way.known_path(), is_up: false, reason };
                    self.news(news);
                }
            }
            Event::Progress(progress) => {
                if let Some(peer) = self.peers.get_mut(&progress.peer) {
                    peer.progress = Some(progress);
                }
            }
            Event::Waiting { peer, what: Waiting::Peer(_) } if self.listens() => self.forget(peer),
            Event::Waiting { peer, what } => match self.peers.get_mut(&peer) {
                Some(peer) => peer.waits = Some(what.to_string()),
                // Nobody was reached yet.
                None => return self.waits_for(Some(what.to_string())),
            },
            Event::GoesOn { peer } => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.waits = None;
                }
            }
            Event::Replaced { peer } => self.forget(peer),
            Event::Rejected { address, key, reason } => {
                let told = (address.ip(), reason.to_string());
                if self.rejected.len() < REJECTED_TOLD_MAX && self.rejected.insert(told) {
                    self.news(News::Note(format!("turned {address} with the key {key} away: {reason}")));
                }
            }
            Event::Finished { peer, receipt, placed, .. } => {
                return self.on_finished(peer, receipt.content_len, placed);
            }
            Event::Failed { peer: _, error: TransferError::Cancelled } => {}
            Event::Failed { peer: Some(peer), error } => return self.on_failed(peer, error),
            Event::Failed { peer: None, error } => {
                return Some(Ended::Failed(FailureKind::Sources, error.to_string()));
            }
            Event::Bypass(_) => {}
        }
        let waits = self.what_it_waits_for();
        self.waits_for(waits)
    }

    fn on_listening(&mut self, addresses: Vec<Endpoint>, key: NodeId) -> Option<Ended> {
        if !self.listens() {
            return None;
        }
        let port = |is_scion: bool| {
            let of = addresses.iter().find(|address| address.as_scion().is_some() == is_scion);
            of.map_or(0, |address| address.socket_addr().port())
        };
        self.task.ports = (port(false), port(true));
        let ticket = match self.invitation(key).map(|invitation| invitation.ticket(&addresses)) {
            None => None,
            Some(Some(ticket)) => Some(ticket.to_string()),
            Some(None) => {
                let reason = "this host has no address that a ticket could name: have the session listen at one";
                return Some(Ended::Failed(FailureKind::Sources, reason.to_owned()));
            }
        };
        self.news(News::Reachable { ticket, addresses, key, ports: self.task.ports });
        let waits = self.what_it_waits_for();
        self.waits_for(waits)
    }

    /// The ticket that is made here, where one is.
    pub(super) fn invitation(&self, key: NodeId) -> Option<Invitation> {
        match &self.task.partner {
            Partner::Invited { secret, expires, times } => {
                Some(Invitation::new(!self.sends(), &key, *secret, *expires, *times))
            }
            _ => None,
        }
    }

    fn on_finished(&mut self, id: PeerId, content_len: u64, placed: Option<Placed>) -> Option<Ended> {
        let peer = self.peers.remove(&id)?;
        let is_alone = self.peers.is_empty();
        self.moved += content_len.saturating_sub(peer.offered.map_or(0, |(_, kept)| kept));
        self.last = Some((content_len, content_len));
        self.delivered = self.delivered.saturating_add(1);
        let (name, bytes_total) = (peer.name, content_len);
        self.news(News::Delivered { peer: peer.address, key: peer.key, name, bytes_total, placed });
        let is_done = match &mut self.task.partner {
            Partner::Ticket(_) => true,
            Partner::Invited { times, .. } => {
                *times = times.saturating_sub(1);
                *times == 0 && is_alone
            }
            Partner::Allowed(_) => false,
        };
        if is_done {
            return Some(Ended::Over(self.why_over().to_owned()));
        }
        let waits = self.what_it_waits_for();
        self.waits_for(waits)
    }

    /// What is said of one that is done.
    pub(super) fn why_over(&self) -> &'static str {
        match (self.sends(), self.listens()) {
            (true, false) => "it is sent, and was signed for",
            (true, true) => "it was sent as often as its ticket said",
            (false, false) => "it is received and verified",
            (false, true) => "something was received as often as its ticket said",
        }
    }

    fn on_failed(&mut self, id: PeerId, error: TransferError) -> Option<Ended> {
        let address = self.peers.get(&id).map(|peer| peer.address);
        self.forget(id);
        let reason = error.to_string();
        match error {
            // Whoever comes next would find the same.
            TransferError::Source(_) => return Some(Ended::Failed(FailureKind::Content, reason)),
            _ if self.listens() => {
                let who = address.map_or("somebody".to_owned(), |address| address.to_string());
                self.news(News::Note(format!("{who}: {reason}")));
            }
            TransferError::Ended { code: code::INTERRUPTED, .. } => return Some(Ended::Cut(reason)),
            TransferError::Destination(_) | TransferError::Refused(_) => {
                return Some(Ended::Failed(FailureKind::Storage, reason));
            }
            _ => return Some(Ended::Failed(FailureKind::Sources, reason)),
        }
        let waits = self.what_it_waits_for();
        self.waits_for(waits)
    }

    /// The run ended without a word about itself.
    pub(super) fn verdict(&self) -> Ended {
        if self.delivered > 0 {
            return Ended::Over(self.why_over().to_owned());
        }
        Ended::Failed(FailureKind::Sources, "the transfer ended without a word: have it go on".to_owned())
    }

    /// Why nothing moves, if it does not.
    pub(super) fn what_it_waits_for(&self) -> Option<String> {
        if self.peers.values().any(|peer| peer.waits.is_none()) {
            return None;
        }
        let of_peer = self.peers.values().find_map(|peer| peer.waits.clone());
        of_peer.or_else(|| {
            Some(match &self.task.partner {
                Partner::Ticket(_) => "calls the other end".to_owned(),
                Partner::Invited { .. } => "waits for somebody with its ticket".to_owned(),
                Partner::Allowed(_) => "waits for one of the keys that may send".to_owned(),
            })
        })
    }

    /// Tells why nothing moves, where that is news. Nothing ends by it.
    pub(super) fn waits_for(&mut self, waits: Option<String>) -> Option<Ended> {
        if self.waits != waits {
            self.waits.clone_from(&waits);
            self.news(News::Waits(waits));
        }
        None
    }

    /// Somebody is gone, and what moved stays.
    fn forget(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.remove(&id) {
            self.moved += peer.moved();
            self.last = peer.amount().or(self.last);
        }
    }

    fn make_room(&mut self) {
        if self.peers.len() >= PEERS_MAX
            && let Some(oldest) = self.peers.keys().next().copied()
        {
            self.forget(oldest);
        }
    }

    // ---- how it fares ----

    /// Bytes that the receivers have, and all; `None` until it is known what moves.
    pub(super) fn amount(&self) -> Option<(u64, u64)> {
        let now: Vec<(u64, u64)> = self.peers.values().filter_map(Peer::amount).collect();
        match now.is_empty() {
            true => self.last.or(self.size.map(|size| (0, size))),
            false => Some(now.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))),
        }
    }

    pub(super) fn stats(&self) -> TorrentStats {
        let rate = self.peers.values().filter(|peer| peer.waits.is_none());
        let rate: u64 = rate.filter_map(|peer| peer.progress.as_ref()).map(|progress| progress.rate_bytes).sum();
        let moved = self.moved + self.peers.values().map(Peer::moved).sum::<u64>();
        let peers = u32::try_from(self.peers.len()).unwrap_or(u32::MAX);
        match self.sends() {
            true => TorrentStats { uploaded_bytes: moved, upload_rate_bytes: rate, peers, ..TorrentStats::default() },
            false => TorrentStats {
                downloaded_bytes: moved,
                download_rate_bytes: rate,
                peers,
                seeds: peers,
                ..TorrentStats::default()
            },
        }
    }

    /// Each other end: its number, its address, its key, bytes a second, bytes.
    pub(super) fn each_peer(&self) -> impl Iterator<Item = (u32, Endpoint, NodeId, u64, u64)> {
        self.peers.iter().map(|(id, peer)| {
            let rate = peer.progress.as_ref().map_or(0, |progress| progress.rate_bytes);
            (id.0, peer.address, peer.key, rate, peer.moved())
        })
    }

    pub(super) fn paths(&self) -> Vec<crate::PathProgress> {
        let progress = self.peers.values().filter_map(|peer| peer.progress.as_ref());
        progress.flat_map(|progress| progress.per_path(self.sends())).collect()
    }
}
