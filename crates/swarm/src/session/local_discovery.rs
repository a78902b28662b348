//! Peers in the same network find each other (BEP 14): contents are called out at every uplink, and who calls out one of ours is dialled,
//! and answered.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::InfoHash;
use anabranch_bittorrent::local_discovery::{CALL_LEN_MAX, Call, Caller, GROUP_V4, GROUP_V6, PORT};
use anabranch_bittorrent::peerbook::Source;
use anabranch_bittorrent::reach::may_name_peer;
use anabranch_paths::Endpoint;
use anabranch_transport::Interfaces;

use super::Contents;
use crate::bittorrent::torrent::TorrentDriver;
use crate::config::Aim;
use crate::events::{Discovery, EventKind};
use crate::net::leave::bound;
use crate::net::multicast::{Group, HOPS_MAX};

/// How often it is looked whether something is to be called out, and which uplinks there are.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The first time, when a command that fetches or shares has its content.
const FIRST_LOOK: Duration = Duration::from_millis(250);
/// Pause after a socket error, so that one that persists does not spin.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// Calls and listens until the session ends. Without uplinks that are known, or a listener that others reach, it does neither.
pub(super) async fn discover(contents: Rc<Contents>) {
    let resources = &contents.resources;
    let Some(uplinks) = &resources.uplinks else { return };
    let port = resources.listening.iter().find(|address| !address.ip().is_loopback()).map(SocketAddr::port);
    let Some(port) = port else { return };
    let groups: [IpAddr; 2] = [GROUP_V4.into(), GROUP_V6.into()];
    let [mut v4, mut v6] = groups.map(|group| Group::open(SocketAddr::new(group, PORT)).ok());
    let cookie = format!("{:016x}", fastrand::Rng::new().u64(..));
    let mut caller = Caller::new(Instant::now());
    let mut look_at = tokio::time::Instant::now() + FIRST_LOOK;
    let (mut of_v4, mut of_v6) = ([0; CALL_LEN_MAX + 1], [0; CALL_LEN_MAX + 1]);
    loop {
        let heard = tokio::select! {
            heard = receive(v4.as_ref(), &mut of_v4) => heard.map(|(len, from)| (of_v4[..len].to_vec(), from)),
            heard = receive(v6.as_ref(), &mut of_v6) => heard.map(|(len, from)| (of_v6[..len].to_vec(), from)),
            () = tokio::time::sleep_until(look_at) => None,
        };
        let now = Instant::now();
        if let Some((datagram, from)) = heard
            && caller.heeds(now)
            && let Some(call) = Call::parse(&datagram).filter(|call| call.cookie != cookie)
        {
            let hashes = on_call(&contents, &call, from);
            if !hashes.is_empty() && caller.answers(SocketAddr::new(from.ip(), call.port), now) {
                let answer = Call { port, hashes, cookie: String::new() }.encode(from.is_ipv6());
                // Who calls in another's name has no more sent to it than it sends itself.
                if answer.len() <= datagram.len() {
                    send_to(&uplinks.interfaces(), from, &answer);
                }
            }
        }
        if tokio::time::Instant::now() < look_at {
            continue;
        }
        look_at = tokio::time::Instant::now() + LOOK_EVERY;
        uplinks.refresh(now);
        let interfaces = uplinks.interfaces();
        let hashes = if caller.is_due(now) { caller.due(&to_call_out(&contents), now) } else { Vec::new() };
        let call = Call { port, hashes, cookie: cookie.clone() };
        for (group, is_ipv6) in [(&mut v4, false), (&mut v6, true)] {
            let Some(group) = group else { continue };
            group.settle(&interfaces);
            if !call.hashes.is_empty() {
                group.send(&interfaces, &call.encode(is_ipv6));
            }
        }
    }
}

async fn receive(group: Option<&Group>, datagram: &mut [u8]) -> Option<(usize, SocketAddr)> {
    let Some(group) = group else { return std::future::pending().await };
    match group.receive(datagram).await {
        Ok(received) => Some(received),
        Err(_) => {
            tokio::time::sleep(ERROR_PAUSE).await;
            None
        }
    }
}

/// Sends to one of our network. What an interface does not take is lost.
fn send_to(interfaces: &Interfaces, to: SocketAddr, datagram: &[u8]) {
    let ways = interfaces.candidates(&[to]);
    let sent = ways.first().and_then(|way| bound(&way.via).ok()).map(|socket| {
        let hops = if to.is_ipv6() { socket.set_unicast_hops_v6(HOPS_MAX) } else { socket.set_ttl_v4(HOPS_MAX) };
        hops.and_then(|()| socket.send_to(datagram, &to.into()))
    });
    drop(sent);
}

/// BEP 27: whether its peers may be met here; not where it is private, or waits.
fn is_met_here(state: &TorrentDriver) -> bool {
    let is_private = state.core.known_info().is_some_and(|info| info.private);
    !is_private && !state.stopping && !state.is_held()
}

/// BEP 14: nor what is only looked up.
fn is_called_out(state: &TorrentDriver) -> bool {
    is_met_here(state) && state.options.aim != Aim::Metadata
}

fn to_call_out(contents: &Contents) -> Vec<InfoHash> {
    let mut hashes = Vec::new();
    for torrent in contents.torrents() {
        let state = torrent.borrow();
        if is_called_out(&state) {
            hashes.extend(state.hashes.wire_hashes());
        }
    }
    hashes
}

/// A peer called out what it has. One that is in no network of ours only claims to be near, and is passed over. What of it may be called
/// out to it, too.
fn on_call(contents: &Contents, call: &Call, from: SocketAddr) -> Vec<InfoHash> {
    let resources = &contents.resources;
    let peer = Endpoint::from(SocketAddr::new(from.ip(), call.port));
    let is_near = resources.uplinks.as_ref().is_some_and(|uplinks| {
        let interfaces = uplinks.interfaces();
        let usable = interfaces.list().iter().filter(|interface| interface.usable && !interface.loopback);
        usable.flat_map(|interface| &interface.addresses).any(|own| own.has_in_network(peer.ip()))
    });
    if !is_near || !may_name_peer(&Endpoint::from(from), &peer) || resources.config.filter.blocks(&peer) {
        return Vec::new();
    }
    let mut hashes = Vec::new();
    for (hash, torrent) in call.hashes.iter().filter_map(|hash| Some((hash, contents.of_hash(hash)?))) {
        let mut state = torrent.borrow_mut();
        if !is_met_here(&state) {
            continue;
        }
        let is_known = state.book.contains(&peer);
        if state.book.add(peer, Source::Local) && !is_known {
            state.tell(EventKind::Discovered { by: Discovery::Local, peers: 1 });
            state.dial.notify_one();
        }
        if is_called_out(&state) {
            hashes.push(*hash);
        }
    }
    hashes
}
