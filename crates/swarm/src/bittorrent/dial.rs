//! Connections come about: dialling, accepting, and the handshake of both.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::handshake::{Handshake, Reserved};
use anabranch_bittorrent::mse::Method;
use anabranch_bittorrent::torrent::{Link, Refused};
use anabranch_paths::manager::EndCause;
use anabranch_paths::{Endpoint, Host, Path, ScionAddr, ScionPath};
use anabranch_transport::{CallerPlace, ConnectError, Listener, Stream, TcpStream, Via};
use tokio::task::JoinSet;

use crate::bittorrent::conn::Conn;
use crate::bittorrent::error::ConnError;
use crate::bittorrent::greeting::{self, Greeted, Opening};
use crate::bittorrent::paths::PathConn;
use crate::bittorrent::paths_beside;
use crate::bittorrent::torrent::{TorrentDriver, TorrentHandle};
use crate::events::EventKind;
use crate::net::scion::Payload;
use crate::resources::Resources;

/// How long a peer has for its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections of one content being dialled at once.
const DIALLING_MAX: usize = 16;
/// A connection that carried this much payload was worth having: its address is tried again soon.
const USEFUL_BYTES: u64 = 16 * 1024;
/// Wait after `accept` failed for want of descriptors or memory.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);
/// How often a lack of connections is looked at again.
const PLACES_RETRY: Duration = Duration::from_millis(500);
/// A peer that has not answered after so long may be behind a NAT: longer than it takes to reach one anywhere.
const ASKED_TO_MEET_AFTER: Duration = Duration::from_secs(1);
/// So long a peer may be in trouble before it counts that no path leads there: links that fail together come back, mostly soon.
const NO_PATH_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether a peer is still connected over other paths.
const OTHERS_EVERY: Duration = Duration::from_secs(1);

/// The contents of a session, as those see them who call.
pub(crate) trait Offers {
    /// What all contents share.
    fn resources(&self) -> &Rc<Resources>;

    /// The content that a peer asks for by this hash, if it may have it.
    fn asked_for(&self, hash: &[u8; 20]) -> Option<TorrentHandle>;

    /// The hash that a caller's word stands for, if peers may have that content (see `mse::content_key`).
    fn meant_by(&self, content_key: &[u8; 20]) -> Option<[u8; 20]>;
}

/// A connection whose handshakes were exchanged.
pub(crate) struct Handshaken {
    stream: Stream,
    theirs: Handshake,
    /// What came behind the handshake.
    early: Vec<u8>,
    /// What a greeting that encrypts agreed on, if there was one.
    method: Option<Method>,
    /// The path, seen from here.
    path: Path,
    /// How long it took to open; `None` where we did not.
    took: Option<Duration>,
}

/// Dials peers of a content until it leaves the resources.
pub(crate) async fn dial(torrent: TorrentHandle) {
    let (wake, resources) = {
        let torrent = torrent.borrow();
        (Rc::clone(&torrent.dial), torrent.resources())
    };
    let dialling = Rc::new(std::cell::Cell::new(0));
    loop {
        let next = {
            let mut torrent = torrent.borrow_mut();
            if torrent.stopping {
                return;
            }
            let now = Instant::now();
            let room = torrent.conn_count() + dialling.get() < resources.config.torrent_connections_max
                && resources.has_room()
                && dialling.get() < DIALLING_MAX
                && resources.pace.allows(now);
            let meeting = if room && !torrent.is_held() { torrent.to_meet.pop_front() } else { None };
            match meeting {
                Some(address) => Some((address.into(), Some(address))),
                None if room => torrent.next_to_dial(now).map(|address| (address, None)),
                None => None,
            }
        };
        if let Some((address, meeting)) = next {
            dialling.set(dialling.get() + 1);
            resources.pace.spend();
            let (torrent, dialling, wake) = (torrent.clone(), Rc::clone(&dialling), Rc::clone(&wake));
            let dialled = torrent.clone();
            dialled.borrow().spawn(async move {
                let handshaken = match meeting {
                    Some(address) => meet(&torrent, address).await,
                    None => reach_or_ask(&torrent, address).await,
                };
                dialling.set(dialling.get().saturating_sub(1));
                torrent.borrow_mut().paths.manager.tried(address, handshaken.is_ok());
                wake.notify_one();
                if meeting.is_some() && handshaken.is_err() {
                    // It may have reached us, and is dialled as before in any case.
                    return;
                }
                let useful = outgoing(&torrent, address, handshaken).await;
                // Over whichever path it is connected still: it need not be dialled.
                while torrent.borrow().paths.manager.reaches(address) && !torrent.borrow().stopping {
                    tokio::time::sleep(OTHERS_EVERY).await;
                }
                torrent.borrow_mut().lost(address, useful, Instant::now());
                wake.notify_one();
                // Nobody else is being dialled, perhaps.
                torrent.borrow().announce.notify_one();
            });
            continue;
        }
        // Where somebody could be dialled but places are lacking, another content's connection may leave one, untold.
        let wait = {
            let now = Instant::now();
            let deadline = torrent.borrow().dial_deadline(now);
            deadline.map(|at| at.saturating_duration_since(now).max(PLACES_RETRY))
        };
        match wait {
            Some(wait) => drop(tokio::time::timeout(wait, wake.notified()).await),
            None => wake.notified().await,
        }
    }
}

/// Runs a connection that was dialled; answers whether it was worth having.
async fn outgoing(torrent: &TorrentHandle, address: Endpoint, handshaken: Result<Handshaken, ConnError>) -> bool {
    match handshaken {
        Ok(handshaken) => {
            torrent.borrow_mut().book.connected(address);
            let ended = run(torrent, handshaken).await;
            if let Some((reason, is_final)) = &ended.trouble {
                torrent.borrow_mut().peer_failed(address, reason, *is_final);
            }
            ended.useful
        }
        Err(error) => {
            let reason = error.to_string();
            let mut torrent = torrent.borrow_mut();
            torrent.tell(EventKind::PeerDisconnected { address, reason: reason.clone() });
            let is_final = match &error {
                ConnError::NoPath(_) => torrent.is_in_trouble_for(address, NO_PATH_MAX, Instant::now()),
                error => error.is_final(),
            };
            torrent.peer_failed(address, &reason, is_final);
            false
        }
    }
}

/// Connects and exchanges handshakes. Where that takes long or leads nowhere, who named the peer is asked to have it call us (BEP 55).
async fn reach_or_ask(torrent: &TorrentHandle, address: Endpoint) -> Result<Handshaken, ConnError> {
    let ask = || {
        let (mut state, now) = (torrent.borrow_mut(), Instant::now());
        if state.core.ask_to_meet(&address, now) {
            state.pump(now);
        }
    };
    let mut reaching = pin!(reach(torrent, address));
    match tokio::time::timeout(ASKED_TO_MEET_AFTER, &mut reaching).await {
        Ok(Ok(reached)) => Ok(reached),
        Ok(Err(error)) => {
            ask();
            Err(error)
        }
        Err(_) => {
            ask();
            reaching.await
        }
    }
}

/// Calls a peer over uTP that calls us at the same time (BEP 55), and exchanges handshakes.
async fn meet(torrent: &TorrentHandle, remote: SocketAddr) -> Result<Handshaken, ConnError> {
    let (began, resources) = (Instant::now(), torrent.borrow().resources());
    admit(&resources, remote.into())?;
    let via = torrent.borrow().paths.first_via(&resources, remote)?;
    let stream = resources.utp.meet(remote, via.as_ref()).await.map_err(|error| ConnError::Ended(cause(&error)))?;
    let (opening, _) = torrent.borrow().openings(remote);
    begin_handshake(torrent, stream, began, opening).await
}

/// Connects over any path and exchanges handshakes.
async fn reach(torrent: &TorrentHandle, address: Endpoint) -> Result<Handshaken, ConnError> {
    let resources = torrent.borrow().resources();
    let net = resources.scion.clone();
    admit(&resources, address)?;
    let began = Instant::now();
    let stream = match (address, net) {
        (Endpoint::Scion(remote), Some(net)) => {
            let expected = torrent.borrow().keys.get(&remote).copied();
            let found = net.paths_awaited(remote, Payload::Quic).await?;
            paths_beside::connect(torrent, &net, remote, expected, &found.paths).await?
        }
        (Endpoint::Scion(_), None) => {
            return Err(ConnError::Hopeless("no SCION network is known here: name a daemon with --sciond".to_owned()));
        }
        (Endpoint::Ip(remote), _) => {
            let via = torrent.borrow().paths.first_via(&resources, remote)?;
            return call_ip(torrent, remote, via.as_ref()).await;
        }
    };
    begin_handshake(torrent, stream, began, Opening::Plain).await
}

/// Connects over plain IP, and greets as the user and the peer want it. Where the peer does not, the other way at once, and over uTP.
async fn call_ip(torrent: &TorrentHandle, remote: SocketAddr, via: Option<&Via>) -> Result<Handshaken, ConnError> {
    let resources = torrent.borrow().resources();
    let call = async |opening| {
        let began = Instant::now();
        // Told at once, though uTP may lead there yet.
        let told = |error: &ConnectError| torrent.borrow_mut().peer_failed(remote.into(), &cause(error), false);
        let connected = connect(&resources, remote, via, told).await;
        let stream = connected.map_err(|error| ConnError::Ended(cause(&error)))?;
        begin_handshake(torrent, stream, began, opening).await
    };
    let (first, other) = torrent.borrow().openings(remote);
    let error = match call(first).await {
        Err(error) if greeting::is_refusal(first, &error) => error,
        result => return result,
    };
    if let Some(other) = other {
        resources.pace.spend();
        if let Ok(handshaken) = call(other).await {
            torrent.borrow_mut().book.set_prefers_encryption(remote.into(), handshaken.method.is_some());
            return Ok(handshaken);
        }
    }
    let error = if other.is_none() { greeting::explain(error, resources.config.encryption) } else { error };
    // Who speaks uTP alone may take TCP's connections to end them (libtorrent does, and so qBittorrent).
    let began = Instant::now();
    torrent.borrow_mut().peer_failed(remote.into(), &error.to_string(), error.is_final());
    if let Some(stream) = resources.utp.connect_beside(remote, via).await {
        resources.pace.spend();
        if let Ok(handshaken) = begin_handshake(torrent, stream, began, first).await {
            return Ok(handshaken);
        }
    }
    Err(error)
}

/// Whether the user lets us deal with whoever is at `address`.
fn admit(resources: &Resources, address: Endpoint) -> Result<(), ConnError> {
    if resources.config.filter.blocks(&address) {
        return Err(ConnError::Ended("it is blocked: see --ip-filter, --block and --bans".to_owned()));
    }
    if address.as_ip().is_some() && resources.scion.as_ref().is_some_and(|net| net.is_closed()) {
        return Err(ConnError::Ended("over IP it proves no key, and --allow admits keys alone".to_owned()));
    }
    Ok(())
}

/// Connects; `told` hears of TCP's failure before uTP has been waited for.
async fn connect(
    resources: &Resources,
    remote: SocketAddr,
    via: Option<&Via>,
    told: impl Fn(&ConnectError),
) -> Result<Stream, ConnectError> {
    let tcp = async {
        let stream = match &resources.config.proxy {
            Some(proxy) => TcpStream::connect_through(proxy, remote.into()).await,
            None => TcpStream::connect(remote.into(), via).await,
        };
        stream.map(Stream::from).inspect_err(|error| told(error))
    };
    match (&resources.config.proxy, resources.utp.relayed()) {
        (Some(_), None) => tcp.await,
        _ => resources.utp.connect(remote, via, tcp).await,
    }
}

/// Why a peer was not reached: one cause, whichever of our interfaces it was tried by.
fn cause(error: &ConnectError) -> String {
    match error {
        ConnectError::Over { source, .. } => cause(source),
        ConnectError::Io { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
            "it refuses connections: nothing listens on that port".to_owned()
        }
        other => other.of_peer(),
    }
}

/// Connects to a peer that is connected already, by one more way out of this machine, within `patience`, and exchanges
/// handshakes.
pub(crate) async fn over_ip(
    torrent: &TorrentHandle,
    remote: SocketAddr,
    via: Option<&Via>,
    patience: Duration,
) -> Result<Handshaken, ConnError> {
    let began = Instant::now();
    let resources = torrent.borrow().resources();
    admit(&resources, remote.into())?;
    let reaching = async {
        let stream =
            connect(&resources, remote, via, |_| {}).await.map_err(|error| ConnError::Ended(error.to_string()))?;
        let (opening, _) = torrent.borrow().openings(remote);
        begin_handshake(torrent, stream, began, opening).await
    };
    let timely = tokio::time::timeout(patience, reaching).await;
    timely.map_err(|_| ConnError::Ended(format!("it did not open within {patience:?}")))?
}

/// Connects to a peer that is connected already, over one more path, within `patience`, and exchanges handshakes.
pub(crate) async fn over_path(
    torrent: &TorrentHandle,
    address: ScionAddr,
    path: &Arc<ScionPath>,
    patience: Duration,
) -> Result<Handshaken, ConnError> {
    let began = Instant::now();
    let resources = torrent.borrow().resources();
    let Some(net) = resources.scion.clone() else { return Err(ConnError::Closed) };
    admit(&resources, address.into())?;
    let reaching = async {
        let expected = torrent.borrow().keys.get(&address).copied();
        let stream = net.connect(address, expected, path).await?;
        begin_handshake(torrent, stream, began, Opening::Plain).await
    };
    let timely = tokio::time::timeout(patience, reaching).await;
    timely.map_err(|_| ConnError::Ended(format!("it did not open within {patience:?}")))?
}

/// Exchanges handshakes over a connection of ours.
async fn begin_handshake(
    torrent: &TorrentHandle,
    stream: Stream,
    began: Instant,
    opening: Opening,
) -> Result<Handshaken, ConnError> {
    let hello = async {
        let ours = {
            let torrent = torrent.borrow();
            // A hybrid is asked for by its v1 hash, which every client knows (BEP 52, "upgrade path").
            let info_hash = torrent.hashes.wire_hashes().next().unwrap_or_default();
            handshake(&torrent.resources(), &torrent, info_hash)
        };
        let greeted = greeting::call(stream, &ours, opening).await.map_err(refused)?;
        let asked_for = torrent.borrow().hashes.wire_hashes().any(|hash| hash == greeted.theirs.info_hash);
        if !asked_for {
            return Err(ConnError::Stranger("it answered for another content".to_owned()));
        }
        Ok(greeted)
    };
    let Greeted { stream, theirs, early, method } = tokio::time::timeout(HANDSHAKE_TIMEOUT, hello)
        .await
        .map_err(|_| ConnError::Stranger(format!("it sent no handshake within {HANDSHAKE_TIMEOUT:?}")))??;
    let path = stream.peer().path.clone();
    Ok(Handshaken { stream, theirs, early, method, path, took: Some(began.elapsed()) })
}

/// Who is asked for a content that it does not have closes the connection, and says nothing (BEP 3).
fn refused(error: ConnError) -> ConnError {
    let is_closed = match &error {
        ConnError::Closed => true,
        ConnError::Io(error) => matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe),
        _ => false,
    };
    if is_closed { ConnError::NotGreeted } else { error }
}

/// Serves a connection to its end.
pub(crate) async fn serve(torrent: &TorrentHandle, handshaken: Handshaken) {
    run(torrent, handshaken).await;
}

/// Accepts peers until the session ends.
pub(crate) async fn accept(contents: Rc<dyn Offers>, listener: Listener) {
    let resources = Rc::clone(contents.resources());
    let mut handshakes = JoinSet::new();
    loop {
        while handshakes.try_join_next().is_some() {}
        match listener.accept().await {
            Ok(stream) => {
                if admit(&resources, stream.peer().endpoint).is_err() {
                    continue;
                }
                if let Some(net) = &resources.scion {
                    net.accepted(&stream);
                }
                let place = resources.callers.enter(Host::of(&stream.peer().endpoint));
                handshakes.spawn_local(receive(Rc::clone(&contents), stream, place));
            }
            // The connection died in the queue, or we are out of descriptors: neither ends the listening.
            Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
        }
    }
}

/// Hears what a stranger wants: if that is here, the content serves it. Until then it may be turned away for another stranger's sake.
async fn receive(contents: Rc<dyn Offers>, stream: Stream, place: CallerPlace) {
    let hello = tokio::time::timeout(HANDSHAKE_TIMEOUT, answer_handshake(&*contents, stream));
    let Some(Ok(Ok((torrent, greeted)))) = place.hear(hello).await else { return };
    let Greeted { stream, theirs, early, method } = greeted;
    let serving = torrent.clone();
    torrent.borrow().spawn(async move {
        let net = serving.borrow().resources().scion.clone();
        let path = match net {
            Some(net) => net.named(&stream.peer().path).await,
            None => stream.peer().path.clone(),
        };
        run(&serving, Handshaken { stream, theirs, early, method, path, took: None }).await;
    });
}

/// Reads a stranger's handshake and answers it. Who asks for a content that is not here is not answered.
async fn answer_handshake(contents: &dyn Offers, stream: Stream) -> Result<(TorrentHandle, Greeted), ConnError> {
    let resources = contents.resources();
    let greeted = greeting::accept(stream, resources.config.encryption, |key| contents.meant_by(key)).await?;
    let Greeted { stream, theirs, .. } = &greeted;
    let torrent = contents
        .asked_for(&theirs.info_hash)
        .ok_or_else(|| ConnError::Stranger("it asked for a content that is not here".to_owned()))?;
    if let (Some(net), Some(address), Some(key)) =
        (&resources.scion, stream.peer().endpoint.as_scion(), stream.node_id())
    {
        net.meet(address, key).await?;
    }
    let ours = {
        let torrent = torrent.borrow();
        let expected = stream.peer().endpoint.as_scion().and_then(|address| torrent.keys.get(&address).copied());
        if expected.is_some_and(|expected| stream.node_id() != Some(expected)) {
            return Err(ConnError::Stranger("it has another key than its address should have".to_owned()));
        }
        handshake(resources, &torrent, theirs.answer_hash(&torrent.hashes))
    };
    greeting::send_all(stream, &ours.encode()).await?;
    Ok((torrent, greeted))
}

fn handshake(resources: &Resources, torrent: &TorrentDriver, info_hash: [u8; 20]) -> Handshake {
    let mut reserved = if torrent.hashes.v2.is_some() { Reserved::OURS.with_v2() } else { Reserved::OURS };
    // BEP 27: what is private has nothing to do with it.
    if resources.dht.is_some() && torrent.core.known_info().is_none_or(|info| !info.private) {
        reserved = reserved.with_dht();
    }
    Handshake { reserved, info_hash, peer_id: resources.peer_id }
}

impl TorrentDriver {
    /// How to call a peer, and how else where that is not what it wants.
    fn openings(&self, remote: SocketAddr) -> (Opening, Option<Opening>) {
        greeting::openings(self.resources().config.encryption, self.book.prefers_encryption(&remote.into()))
    }
}

/// How a connection ended.
struct Ended {
    /// It was worth having.
    useful: bool,
    /// What keeps us from having its peer now, and whether dialling again cannot help.
    trouble: Option<(String, bool)>,
}

impl Ended {
    fn refused(reason: impl ToString, is_final: bool) -> Self {
        Self { useful: false, trouble: Some((reason.to_string(), is_final)) }
    }
}

/// Runs a connection to its end.
async fn run(torrent: &TorrentHandle, handshaken: Handshaken) -> Ended {
    let Handshaken { stream, theirs, early, method, path, took } = handshaken;
    let (address, outgoing) = (stream.peer().endpoint, took.is_some());
    let path = torrent.borrow().paths.manager.named(&path);
    let host = Host::of(&address);
    let key = stream.node_id().map(|key| *key.as_bytes());
    let over_utp = stream.transport() == "utp";
    let (local, is_near) = (Some(path.local()), path.is_near());
    let link = Link { address, outgoing, path: Some(path.id()), key, local, over_utp, is_near };
    let resources = torrent.borrow().resources();
    let joined = {
        let mut state = torrent.borrow_mut();
        if state.stopping || state.is_held() || state.is_host_full(host) {
            return Ended::refused("there is no place for another connection", false);
        }
        match state.core.connected_over(link, &theirs, Instant::now()) {
            // Only for who is admitted somebody else may have to go.
            Ok(id) if !state.make_room(host, Instant::now()) => {
                state.core.disconnected(id, Instant::now());
                state.pump(Instant::now());
                return Ended::refused("there is no place for another connection", false);
            }
            Ok(id) => {
                let handle = state.attach(id, host);
                state.peer_reached(address);
                if method.is_some() {
                    // It called so, or was called so as it wants it.
                    state.core.set_prefers_encryption(id);
                }
                let peer_id = theirs.peer_id;
                let transport = stream.transport();
                state.tell(EventKind::PeerConnected { address, outgoing, peer_id, transport, encryption: method });
                let route = match &stream {
                    Stream::Quic(stream) => stream.route(),
                    Stream::Tcp(_) | Stream::Utp(_) | Stream::Encrypted(_) | Stream::Memory(_) => None,
                };
                let conn = PathConn { address, path, route, handle: Rc::clone(&handle) };
                state.paths.joined(&resources, (id, conn), took, Instant::now());
                Ok((id, handle))
            }
            Err(refused) => Err(refused),
        }
    };
    let (id, handle) = match joined {
        Ok(joined) => joined,
        Err(refused) => {
            let mut state = torrent.borrow_mut();
            let is_us = refused == Refused::Ourselves;
            if outgoing && is_us {
                state.book.forget(address);
            }
            state.pump(Instant::now());
            return match refused {
                Refused::Duplicate | Refused::TooManyPaths => Ended { useful: false, trouble: None },
                _ => Ended::refused(&refused, is_us || matches!(refused, Refused::Banned(_))),
            };
        }
    };
    let contents = torrent.borrow().contents();
    if !contents.is_some_and(|contents| contents.make_room(host)) {
        handle.close("all places are taken".to_owned());
    }
    let counted = resources.take_connection();
    let error = Conn::new(torrent.clone(), id, stream, handle).run(early).await;
    drop(counted);
    let mut state = torrent.borrow_mut();
    let moved = state.core.conn_bytes(id);
    let reason = error.to_string();
    if let ConnError::Misbehaved(fault) = &error {
        state.core.misbehaved(id, fault);
    }
    let (now, useful) = (Instant::now(), moved >= USEFUL_BYTES);
    let peer = state.core.peer_of(id);
    state.paths.left((id, peer), EndCause::from(&error), now);
    state.note_end(id, outgoing, useful, now);
    state.detach(id, now);
    state.tell(EventKind::PeerDisconnected { address, reason: reason.clone() });
    // Who has all may be left.
    let is_missed = !state.stopping && !state.core.is_finished();
    Ended { useful, trouble: is_missed.then_some((reason, false)) }
}
