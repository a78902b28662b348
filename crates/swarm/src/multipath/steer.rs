//! The task: it hears news of the network, looks paths up, measures, has them chosen and opens them.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use anabranch_bittorrent::ConnId;
use anabranch_bittorrent::torrent::PathEvent;
use anabranch_paths::select::Candidate;
use anabranch_paths::{Sample, ScionAddr};
use anabranch_scion::socket::{ScmpEvent, ScmpKind};
use tokio::sync::broadcast::error::RecvError;

use super::choose::Dial;
use super::ip::{self, IP_MEASURED, IpDial};
use super::{Found, Seen, Way};
use crate::dial;
use crate::scion::{DOUBT, Usable, is_down};
use crate::torrent::{State, TorrentRef};

/// How often connections are looked at, while there are paths to choose among.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often paths are looked up anew; the lookup itself keeps them fresh and answers from memory.
const FOUND_FOR: Duration = Duration::from_secs(2);
/// How long one lookup may take before the choice is made without it.
const LOOKUP_MAX: Duration = Duration::from_secs(2);
/// A path over which payload moved this lately is in use.
const IN_USE: Duration = Duration::from_secs(2);
/// Bytes of a packet where the transport has not measured any.
const PACKET_BYTES: u64 = 1200;

/// Looks after a content's paths until it leaves the session.
pub async fn steer(torrent: TorrentRef) {
    let (wake, session) = {
        let torrent = torrent.borrow();
        (Rc::clone(&torrent.desk.wake), torrent.session())
    };
    let mut news = session.scion.as_ref().map(|net| net.news());
    loop {
        let pause = torrent.borrow().desk.pause(Instant::now());
        let pause = async {
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        let next = async {
            match &mut news {
                Some(news) => news.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = wake.notified() => {}
            () = pause => {}
            event = next => match event {
                Ok(event) => torrent.borrow_mut().hear(&event, Instant::now()),
                // What was missed shows in silence.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
        if torrent.borrow().stopping {
            return;
        }
        look_up(&torrent).await;
        let (dials, ip_dials) = torrent.borrow_mut().look_after_paths(Instant::now());
        for dial in dials {
            tokio::task::spawn_local(open(torrent.clone(), dial));
        }
        for dial in ip_dials {
            tokio::task::spawn_local(ip::open(torrent.clone(), dial));
        }
    }
}

/// Opens a path and serves its connection to the end.
async fn open(torrent: TorrentRef, dial: Dial) {
    let (peer, path) = (dial.peer, dial.path.id());
    let reached = dial::over_path(&torrent, dial.address, &dial.path, dial.patience).await;
    let Ok(reached) = reached else {
        return torrent.borrow_mut().dialled(peer, path, false, Instant::now());
    };
    torrent.borrow_mut().opened(peer, path);
    dial::serve(&torrent, reached).await;
    torrent.borrow_mut().dialled(peer, path, true, Instant::now());
}

/// Looks up paths to whom they matter for, where what is known is old.
async fn look_up(torrent: &TorrentRef) {
    let (net, due) = {
        let torrent = torrent.borrow();
        let Some(net) = torrent.session().scion.clone() else { return };
        let views = torrent.core.peer_views();
        let due: Vec<ScionAddr> = torrent
            .addresses_of_interest(&views)
            .into_iter()
            .filter(|address| torrent.is_lookup_due(*address))
            .collect();
        (net, due)
    };
    for address in due {
        let found = tokio::time::timeout(LOOKUP_MAX, net.paths(address)).await;
        let Usable { mut paths, narrow } = found.ok().and_then(Result::ok).unwrap_or_default();
        let mut torrent = torrent.borrow_mut();
        // A path that is down is left out by those who look paths up for us. It comes back, and is used until its end.
        let known: BTreeSet<_> = paths.iter().map(|path| path.id()).collect();
        let before = torrent.desk.found.remove(&address).map_or(Vec::new(), |found| found.paths);
        let alive = |path: &&std::sync::Arc<_>| {
            let path: &anabranch_paths::ScionPath = path;
            !known.contains(&path.id()) && path.expiry > SystemTime::now()
        };
        paths.extend(before.iter().filter(alive).cloned());
        torrent.desk.found.insert(address, Found { paths, narrow, at: Instant::now() });
        torrent.name_paths();
    }
}

impl State {
    fn is_lookup_due(&self, address: ScionAddr) -> bool {
        self.desk.found.get(&address).is_none_or(|found| found.at.elapsed() >= FOUND_FOR)
    }

    /// The network complains.
    fn hear(&mut self, event: &ScmpEvent, now: Instant) {
        if !is_down(&event.kind) {
            return;
        }
        let passes = |way: &Way| match event.kind {
            _ if way.down.is_some() => false,
            ScmpKind::ExternalInterfaceDown(interface) => {
                way.is_route(event.route)
                    || way.path.as_scion().is_some_and(|path| path.interfaces.contains(&interface))
            }
            _ => way.is_route(event.route),
        };
        let hit: Vec<ConnId> = self.desk.ways.iter().filter(|(_, way)| passes(way)).map(|(id, _)| *id).collect();
        for id in hit {
            self.set_path_down(id, Some(&event.kind.to_string()), now);
        }
        self.pump(now);
    }

    /// One look at all connections; answers which further ones to open.
    fn look_after_paths(&mut self, now: Instant) -> (Vec<Dial>, Vec<IpDial>) {
        while let Some(event) = self.core.poll_path_event() {
            if let PathEvent::Wished { wish, .. } = event {
                self.desk.reconsider(if wish.is_some() { "a peer wishes for paths" } else { "a peer has enough" });
            }
        }
        self.doubt(now);
        self.measure(now);
        let views = self.core.peer_views();
        let ip_dials = self.choose_ip(&views, now);
        let dials = self.choose(&views, now);
        self.tell_what_is_in_use(now);
        self.pump(now);
        (dials, ip_dials)
    }

    /// Whether what is said to be down really is: the message itself proves nothing.
    fn doubt(&mut self, now: Instant) {
        let doubted = |(id, way): (&ConnId, &Way)| {
            let (since, received) = way.down?;
            (now.saturating_duration_since(since) >= DOUBT).then(|| (*id, way.received_bytes() > received))
        };
        let doubted: Vec<(ConnId, bool)> = self.desk.ways.iter().filter_map(doubted).collect();
        for (id, is_alive) in doubted {
            if is_alive {
                if let (Some(net), Some(path)) = (self.session().scion.clone(), self.desk.ways[&id].path.as_scion()) {
                    net.works(path);
                }
                self.set_path_down(id, None, now);
            } else {
                self.desk.ways[&id].handle.close("its path is down".to_owned());
            }
        }
    }

    /// Takes samples of all paths, for the scoreboard.
    fn measure(&mut self, now: Instant) {
        let session = self.session();
        let mut board = session.board.borrow_mut();
        for (id, way) in self.desk.ways.iter_mut().filter(|(_, way)| way.is_one_of_many()) {
            let payload_bytes = self.core.conn_bytes(*id);
            if payload_bytes > way.seen.payload_bytes {
                way.moved = Some(now);
            }
            let Some(stats) = way.handle.stats() else { continue };
            let sent_packets = stats.sent_bytes / if stats.mtu_bytes > 0 { stats.mtu_bytes } else { PACKET_BYTES };
            let rtt_min = way.seen.rtt_min.map_or(stats.rtt, |least| least.min(stats.rtt));
            let seen = Seen { payload_bytes, sent_packets, lost_packets: stats.lost_packets, rtt_min: Some(rtt_min) };
            let before = std::mem::replace(&mut way.seen, seen);
            let resources = match way.path.as_scion() {
                Some(_) => Candidate::new(0, &way.path).resources,
                None => IP_MEASURED.to_vec(),
            };
            board.add(way.path.id(), &resources);
            let sample = Sample {
                bytes: payload_bytes.saturating_sub(before.payload_bytes),
                rtt: stats.rtt,
                rtt_min,
                sent: sent_packets.saturating_sub(before.sent_packets),
                lost: stats.lost_packets.saturating_sub(before.lost_packets),
            };
            board.record(way.path.id(), &sample);
        }
        board.turn(now);
    }

    /// Tells peers over which paths content moves, so that they can keep out of its way.
    fn tell_what_is_in_use(&mut self, now: Instant) {
        let is_used = |way: &&Way| way.moved.is_some_and(|at| now.saturating_duration_since(at) < IN_USE);
        let sequence = |way: &Way| {
            let path = way.path.as_scion()?;
            anabranch_bittorrent::extension::InterfaceSequence::new(path.interfaces.clone())
        };
        let mut used: Vec<_> = self.desk.ways.values().filter(is_used).filter_map(sequence).collect();
        used.sort();
        used.dedup();
        if self.core.paths_in_use() != used {
            // Trackers are told too.
            self.announce.notify_one();
        }
        self.core.set_paths_in_use(used, now);
    }
}
