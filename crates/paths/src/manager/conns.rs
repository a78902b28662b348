//! What becomes of each connection: what was measured of it, whether its path is down, and whether that is really so.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::choose::Role;
use super::hosts::{Host, TOO_MANY_WITHIN};
use super::reason::{ChangeReason, CloseReason, DownCause, EndCause, PathCondition, PathNews, Trigger};
use super::{Action, Inputs, Measured, Opened, PATHS_PER_PEER_MAX, PathManager, PeerView};
use crate::select::{Candidate, Resource};
use crate::{ConnId, Endpoint, Path, PathId, PathState, PeerKey, Sample, ScionPath};

/// Silence after news that a path is down, after which its connection is given up: others over the same link may get through,
/// and links come back.
pub(super) const CONFIRMED_AFTER: Duration = Duration::from_secs(1);
/// A connection over IP that owes us something and brings nothing for so long is given up, ...
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// ... if another one of its host brought something this lately.
const ALIVE_WITHIN: Duration = Duration::from_secs(1);
/// A connection through SCION that owes us something, an acknowledgement at least, and over which nothing comes at all for so long, ...
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// ... or so many round trips, has nobody at its end any more. What we send is sent again meanwhile, several times, and whoever is
/// there acknowledges it, whatever he does about the rest (RFC 9002 §6.2).
const ANSWERS_WITHIN_ROUND_TRIPS: u32 = 8;
/// What leaves so soon after something came may be no more than its acknowledgement (RFC 9000 §13.2.1), which nobody answers. The
/// same holds for what leaves within a round trip.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_millis(250);
/// How often connections are measured: with every look that nothing but time asks for, and not with all that happens in between.
const MEASURED_EVERY: Duration = Duration::from_millis(200);
const _: () = assert!(MEASURED_EVERY.as_millis() < super::LOOK_EVERY.as_millis());
/// A path over which payload moved this lately is in use.
const IN_USE: Duration = Duration::from_secs(2);
/// Bytes of a packet where the transport has not measured any.
const PACKET_BYTES: u64 = 1200;
/// Connections to one peer beyond which those that stand by are closed: there has to be room for others to be tried.
const CONNECTIONS_KEPT: usize = PATHS_PER_PEER_MAX - 2;
/// What measurements say of an IP path's uplinks: nothing. Two connections over one uplink may not slow each other where something
/// else limits both, and still bring nothing together; and the queues of two uplinks that fill at the same time look like one at the
/// host that both lead to. So sharing an end counts the same at all times.
pub(super) const IP_MEASURED: [Resource; 0] = [];

/// A connection, its path, and what was seen of it.
#[derive(Debug)]
pub(super) struct Connection {
    pub address: Endpoint,
    pub path: Path,
    /// We opened it.
    pub is_dialled: bool,
    seen: Seen,
    /// When payload moved last.
    moved: Option<Instant>,
    heard: Option<Heard>,
    /// Since when its path does not work, and what had been received by then.
    pub down: Option<(Instant, u64)>,
    pub told: Option<PathCondition>,
    /// Whether content is asked for over it, as was said last.
    pub state: PathState,
    /// Over plain IP: there are other ways to its host.
    pub has_alternatives: bool,
    /// It was found out whose it is.
    pub has_host: bool,
}

/// When something came over a connection last, and what has been due since then.
#[derive(Clone, Copy, Debug)]
struct Heard {
    at: Instant,
    received_bytes: u64,
    /// What had been sent once whatever came was acknowledged.
    sent_bytes: Option<u64>,
    /// Since when the protocol owes something.
    owed_since: Option<Instant>,
    /// Since when the transport waits for acknowledgements.
    asked_since: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    payload_bytes: u64,
    sent_packets: u64,
    lost_packets: u64,
    rtt_min: Option<Duration>,
}

impl Connection {
    /// Whether there may be more than one path of its kind.
    pub(super) fn is_one_of_many(&self) -> bool {
        self.has_alternatives || self.path.as_scion().is_some_and(|path| !path.interfaces.is_empty())
    }

    /// Whether it leaves this machine, over plain IP.
    pub(super) fn leaves_by_ip(&self) -> bool {
        self.path.as_scion().is_none() && !self.path.remote().is_loopback()
    }

    /// Whether it works, and over `path`.
    pub(super) fn carries(&self, path: PathId) -> bool {
        self.down.is_none() && self.path.id() == path
    }

    /// Whether nobody answers at its end: something is due, and nothing comes.
    fn is_unanswered(&mut self, measured: &Measured, now: Instant) -> bool {
        let rtt = measured.transport.map_or(Duration::ZERO, |transport| transport.rtt);
        let new = Heard {
            at: now,
            received_bytes: measured.received_bytes,
            sent_bytes: None,
            owed_since: None,
            asked_since: None,
        };
        let heard = self.heard.get_or_insert(new);
        if heard.received_bytes != measured.received_bytes {
            *heard = new;
        }
        heard.owed_since = measured.owes.then(|| heard.owed_since.unwrap_or(now));
        if now.saturating_duration_since(heard.at) > ACKNOWLEDGED_WITHIN.max(rtt)
            && measured.sent_bytes > *heard.sent_bytes.get_or_insert(measured.sent_bytes)
        {
            heard.asked_since.get_or_insert(now);
        }
        let patience = ANSWERS_WITHIN.max(rtt.saturating_mul(ANSWERS_WITHIN_ROUND_TRIPS));
        let is_late = |since: Instant| now.saturating_duration_since(since) >= patience;
        heard.owed_since.is_some_and(is_late) || heard.asked_since.is_some_and(is_late)
    }

    fn sample(&mut self, measured: &Measured, now: Instant) -> Option<Sample> {
        if measured.payload_bytes > self.seen.payload_bytes {
            self.moved = Some(now);
        }
        let stats = measured.transport?;
        let sent_packets = stats.sent_bytes / if stats.mtu_bytes > 0 { stats.mtu_bytes } else { PACKET_BYTES };
        let rtt_min = self.seen.rtt_min.map_or(stats.rtt, |least| least.min(stats.rtt));
        let seen = Seen {
            payload_bytes: measured.payload_bytes,
            sent_packets,
            lost_packets: stats.lost_packets,
            rtt_min: Some(rtt_min),
        };
        let before = std::mem::replace(&mut self.seen, seen);
        Some(Sample {
            bytes: measured.payload_bytes.saturating_sub(before.payload_bytes),
            rtt: stats.rtt,
            rtt_min,
            sent: sent_packets.saturating_sub(before.sent_packets),
            lost: stats.lost_packets.saturating_sub(before.lost_packets),
        })
    }
}

impl PathManager {
    /// A connection opened.
    pub fn joined(&mut self, conn: ConnId, opened: Opened, now: Instant) {
        let Opened { address, path, handshake } = opened;
        if let Some(handshake) = handshake {
            if self.handshakes.len() >= super::HANDSHAKES_MAX {
                // Races are run anew, and no more.
                self.handshakes.clear();
            }
            self.handshakes.insert(path.id(), handshake);
        }
        let connection = Connection {
            address,
            path,
            is_dialled: handshake.is_some(),
            seen: Seen::default(),
            moved: None,
            heard: None,
            down: None,
            told: None,
            state: PathState::Active,
            has_alternatives: false,
            has_host: false,
        };
        if connection.leaves_by_ip() {
            self.ip_joined_at = Some(now);
        }
        if connection.leaves_by_ip() || connection.is_one_of_many() {
            self.trigger.reconsider(Trigger::PeerConnected);
        }
        self.conns.insert(conn, connection);
    }

    /// A connection of `peer` ended.
    pub fn left(&mut self, conn: ConnId, peer: Option<PeerKey>, cause: EndCause, now: Instant) {
        let Some(connection) = self.conns.remove(&conn) else { return };
        let Connection { address, ref path, .. } = connection;
        let (id, is_down) = (path.id(), connection.down.is_some());
        // Of two over one path, which both sides opened at once, one goes, and the path stays.
        if self.conns.values().any(|other| other.address == address && other.carries(id)) {
            return;
        }
        let is_reached = self.reaches(address);
        if let Some(host) = peer.and_then(|peer| self.host_of(peer)) {
            let is_crowd = path.as_scion().is_none() && !is_down;
            if is_crowd && host.opened_at.is_some_and(|at| now.saturating_duration_since(at) < TOO_MANY_WITHIN) {
                host.opened_at = None;
                host.refused(now);
            }
            let was_of_use =
                host.is_granted(&id) || host.uploads.chosen.contains(&id) || host.fetches.chosen.contains(&id);
            // What was down is not among the chosen any more, and either side may have given it up: it failed all the same.
            if (was_of_use && cause != EndCause::ClosedByPeer || is_down) && is_reached && connection.is_one_of_many() {
                host.lost.insert(id);
            }
        }
        if connection.is_one_of_many() {
            let reason = ChangeReason::Ended(cause.clone());
            self.tell_change(address, path.clone(), PathCondition::Gone, reason);
        }
        self.trigger.reconsider(Trigger::ConnectionEnded(path.clone(), cause));
    }

    /// Names the paths of connections that came about before anybody could say which ASes they pass.
    pub(super) fn name_paths(&mut self) {
        let named = |(id, conn): (&ConnId, &Connection)| {
            let path = self.named(&conn.path);
            (path != conn.path).then_some((*id, path))
        };
        for (conn, path) in self.conns.iter().filter_map(named).collect::<Vec<_>>() {
            let Some(connection) = self.conns.get_mut(&conn) else { continue };
            let before = std::mem::replace(&mut connection.path, path.clone());
            if let Some(condition) = connection.told {
                let news = PathNews::Changed {
                    peer: connection.address,
                    path: path.clone(),
                    condition,
                    reason: ChangeReason::Named,
                };
                self.actions.push_back(Action::Tell(news));
            }
            for host in self.hosts.values_mut().filter(|host| host.conns.contains(&conn)) {
                if host.implied.remove(&before.id()) {
                    host.implied.insert(path.id());
                }
            }
            self.trigger.reconsider(Trigger::PathNamed(path.clone()));
            self.actions.push_back(Action::Name { conn, path });
        }
    }

    /// The network says, and confirmed, that something on the way of these connections is down. `interface` concerns all that pass it;
    /// `conns` are those over the route that the news is about. `received_bytes` tells what came over each so far.
    pub fn on_scmp(
        &mut self,
        cause: &DownCause,
        conns: &[ConnId],
        received_bytes: &dyn Fn(ConnId) -> u64,
        now: Instant,
    ) {
        let passes = |id: &ConnId, conn: &Connection| {
            conns.contains(id) || conn.path.as_scion().is_some_and(|path| cause.is_on(path))
        };
        let hit = self.conns.iter().filter(|(id, conn)| conn.down.is_none() && passes(id, conn));
        for id in hit.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.goes_down(id, cause.clone(), received_bytes(id), now);
        }
    }

    /// A path stopped working: it is left at once, and its connection given up if nothing comes after all.
    pub(super) fn goes_down(&mut self, conn: ConnId, cause: DownCause, received_bytes: u64, now: Instant) {
        let Some(connection) = self.conns.get_mut(&conn) else { return };
        connection.down = connection.down.or(Some((now, received_bytes)));
        let path = connection.path.clone();
        self.actions.push_back(Action::SetState { conn, state: PathState::Down });
        self.set_condition(conn, PathCondition::Down, ChangeReason::Fails(path.clone(), cause.clone()));
        self.trigger.reconsider(Trigger::PathFails(path, cause));
    }

    /// Whether what is said to be down really is: the message itself proves nothing, and silence is not forever.
    pub(super) fn confirm_down(&mut self, inputs: &mut Inputs<'_>, now: Instant) {
        let in_doubt = |(id, conn): (&ConnId, &Connection)| {
            let (since, received_bytes) = conn.down?;
            let is_time = now.saturating_duration_since(since) >= CONFIRMED_AFTER;
            is_time.then(|| (*id, (inputs.measure)(*id).received_bytes > received_bytes))
        };
        for (conn, is_alive) in self.conns.iter().filter_map(in_doubt).collect::<Vec<_>>() {
            if !is_alive {
                self.actions.push_back(Action::Close { conn, reason: CloseReason::PathDown });
                continue;
            }
            let Some(connection) = self.conns.get_mut(&conn) else { continue };
            connection.down = None;
            let path = connection.path.clone();
            if let Some(scion) = path.as_scion() {
                inputs.links.works(scion);
            }
            self.set_condition(conn, PathCondition::Active, ChangeReason::WorksAfterAll(path.clone()));
            self.trigger.reconsider(Trigger::PathWorksAfterAll(path));
        }
    }

    /// Takes samples of all paths, for the scoreboard, if that is due. Answers over which connections nobody answers, and what had come
    /// over each.
    pub(super) fn measure(&mut self, inputs: &mut Inputs<'_>, now: Instant) -> Vec<(ConnId, u64)> {
        let mut unanswered = Vec::new();
        if self.measured_at.is_some_and(|at| now.saturating_duration_since(at) < MEASURED_EVERY) {
            return unanswered;
        }
        self.measured_at = Some(now);
        for (id, conn) in &mut self.conns {
            let is_through_scion = conn.path.as_scion().is_some();
            if !is_through_scion && !conn.is_one_of_many() {
                continue;
            }
            let measured = (inputs.measure)(*id);
            if is_through_scion && conn.down.is_none() && conn.is_unanswered(&measured, now) {
                unanswered.push((*id, measured.received_bytes));
            }
            if !conn.is_one_of_many() {
                continue;
            }
            let Some(sample) = conn.sample(&measured, now) else { continue };
            let resources = match is_through_scion {
                true => Candidate::new(0, &conn.path).resources,
                false => IP_MEASURED.to_vec(),
            };
            inputs.board.add(conn.path.id(), &resources);
            inputs.board.record(conn.path.id(), &sample);
        }
        inputs.board.turn(now);
        unanswered
    }

    /// The paths through SCION over which content moves: others want to keep out of its way.
    pub fn in_use(&self, now: Instant) -> impl Iterator<Item = &std::sync::Arc<ScionPath>> {
        let is_used = move |conn: &&Connection| conn.moved.is_some_and(|at| now.saturating_duration_since(at) < IN_USE);
        self.conns.values().filter(is_used).filter_map(|conn| conn.path.as_scion())
    }

    /// A path with a connection that works is no failed one, whichever side opened it, and whatever became of the attempts to
    /// open it from the other: where both try at once, one of two connections is closed again.
    pub(super) fn notice_what_is_open(&mut self) {
        for host in self.hosts.values_mut() {
            let open = host.conns.iter().filter_map(|id| self.conns.get(id)).filter(|conn| conn.down.is_none());
            for path in open.map(|conn| &conn.path) {
                if let Some(dial) = host.dials.get_mut(&path.id()) {
                    dial.opened();
                }
                if host.lost.remove(&path.id()) {
                    self.trigger.reconsider(Trigger::PathWorksAgain(path.clone()));
                }
            }
        }
    }

    /// Gives up connections over IP (or all, as [`super::ManagerConfig::leaves_silent`] says) that bring nothing while others of the
    /// same host work. The protocol asks for their blocks
    /// elsewhere by itself; but TCP, once a way is cut, waits ever longer before it tries again, and a new connection tries at once.
    pub(super) fn leave_silent(
        &mut self,
        clients: &[super::choose::Client],
        measure: &dyn Fn(ConnId) -> Measured,
        now: Instant,
    ) {
        let quiet_for = |conn: &Connection| Some(now.saturating_duration_since(conn.moved?));
        let mut silent = Vec::new();
        let is_looked_at = |client: &&super::choose::Client| client.over_ip || self.config.leaves_silent;
        for host in clients.iter().filter(is_looked_at).filter_map(|client| self.hosts.get(&client.host)) {
            if !self.conns_of(host).any(|(_, conn)| quiet_for(conn).is_some_and(|quiet| quiet < ALIVE_WITHIN)) {
                continue;
            }
            let is_silent = |(id, conn): &(ConnId, &Connection)| {
                (conn.leaves_by_ip() || self.config.leaves_silent)
                    && conn.down.is_none()
                    && quiet_for(conn).is_some_and(|quiet| quiet > SILENCE_MAX)
                    && measure(*id).owes
            };
            silent.extend(self.conns_of(host).filter(is_silent).map(|(id, _)| id));
        }
        for id in silent {
            self.goes_down(id, DownCause::Silent, measure(id).received_bytes, now);
        }
    }

    /// Gives up connections through SCION at whose end nobody answers: a program that was killed says nothing, and one that was started
    /// again in its place knows nothing of them. Its transport would wait for longer than anybody likes to.
    pub(super) fn leave_unanswered(&mut self, unanswered: Vec<(ConnId, u64)>, now: Instant) {
        if self.config.leaves_silent {
            return;
        }
        for (id, received_bytes) in unanswered {
            if self.conns.get(&id).is_some_and(|conn| conn.down.is_none()) {
                self.goes_down(id, DownCause::NoAnswer, received_bytes, now);
            }
        }
    }

    /// Says over which connections content is asked for, and what became of each.
    pub(super) fn set_states(&mut self, peers: &[PeerView]) {
        let mut states = Vec::new();
        let mut closed = Vec::new();
        for host in self.hosts.values() {
            let views = || host.views(peers);
            let we_choose = self.config.chooses_alone || !views().any(|view| view.speaks_paths);
            let uploads = views().any(|view| matches!(self.role(view, true), Some(Role::Uploader(_))))
                && !host.uploads.chosen.is_empty();
            let is_over_ip = |conn: &Connection| conn.path.as_scion().is_none();
            let ip_open = || self.conns_of(host).filter(|(_, conn)| is_over_ip(conn)).map(|(_, conn)| conn.path.id());
            let ip_chosen: BTreeSet<PathId> = host.ip_chosen().collect();
            // Where we do not choose among addresses, what is open over IP is used, and beside paths through SCION.
            let ip_chosen = if ip_chosen.is_empty() { ip_open().collect() } else { ip_chosen };
            let is_preferred = |path: &PathId| {
                ip_chosen.contains(path)
                    || if we_choose {
                        host.is_chosen(path)
                    } else {
                        host.is_granted(path) || host.implied.contains(path)
                    }
            };
            let any = self.conns_of(host).any(|(_, conn)| conn.down.is_none() && is_preferred(&conn.path.id()));
            for (id, conn) in self.conns_of(host) {
                let path = conn.path.id();
                let state = match (conn.down.is_some(), any && !is_preferred(&path)) {
                    (true, _) => PathState::Down,
                    (false, true) => PathState::Standby,
                    (false, false) => PathState::Active,
                };
                let is_left = match uploads && !is_over_ip(conn) {
                    true => !host.uploads.chosen.contains(&path),
                    false => state == PathState::Standby,
                };
                let told = match state {
                    PathState::Down => (PathCondition::Down, ChangeReason::NothingComes),
                    _ if is_left => (PathCondition::Standby, ChangeReason::NotChosen),
                    _ if any || uploads => (PathCondition::Active, ChangeReason::Chosen),
                    _ if conn.is_dialled => (PathCondition::Active, ChangeReason::First),
                    _ => (PathCondition::Active, ChangeReason::OpenedByPeer),
                };
                states.push((id, state, told));
            }
            if host.conns.len() > CONNECTIONS_KEPT {
                closed.extend(self.standby_to_close(host));
            }
        }
        for (conn, state, (condition, reason)) in states {
            if let Some(connection) = self.conns.get_mut(&conn) {
                connection.state = state;
            }
            self.actions.push_back(Action::SetState { conn, state });
            self.set_condition(conn, condition, reason);
        }
        for conn in closed {
            self.actions.push_back(Action::Close { conn, reason: CloseReason::BetterPaths });
        }
    }

    /// A connection that makes room for a path that may be chosen next.
    fn standby_to_close(&self, host: &Host) -> Option<ConnId> {
        let is_idle = |(_, conn): &(ConnId, &Connection)| {
            let path = conn.path.id();
            let is_used = host.is_chosen(&path) || host.is_granted(&path);
            conn.is_dialled && !is_used && conn.told == Some(PathCondition::Standby)
        };
        self.conns_of(host).find(is_idle).map(|(id, _)| id)
    }

    /// What became of a connection's path, as told last, and whether there may be others to its peer.
    pub fn condition(&self, conn: ConnId) -> Option<(PathCondition, bool)> {
        let conn = self.conns.get(&conn)?;
        Some((conn.told.unwrap_or(PathCondition::Active), conn.is_one_of_many()))
    }

    /// Tells what became of a path, where that is new.
    fn set_condition(&mut self, conn: ConnId, condition: PathCondition, reason: ChangeReason) {
        let Some(conn) = self.conns.get_mut(&conn) else { return };
        if !conn.is_one_of_many() || conn.told.replace(condition) == Some(condition) {
            return;
        }
        let (peer, path) = (conn.address, conn.path.clone());
        self.tell_change(peer, path, condition, reason);
    }

    pub(super) fn tell_change(&mut self, peer: Endpoint, path: Path, condition: PathCondition, reason: ChangeReason) {
        self.actions.push_back(Action::Tell(PathNews::Changed { peer, path, condition, reason }));
    }
}
