//! What a transfer tells, as lines for people and as JSON, and when it is over.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::path::Path as FilePath;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use anabranch_hercules::wire::receipt::Receipt;
use anabranch_paths::Endpoint;
use anabranch_swarm::bulk::{
    Bypass, Event, Events, Handle, Invitation, PathWay, PeerId, Progress, Rejection, TransferError, Waiting,
};
use anabranch_transport::NodeId;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::invitation::unix_seconds;
use super::known::Known;
use super::peer::{self, End, Peer};
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter};
use crate::path_log::{PATH_LOG_EVERY, PathLog};
use crate::status::StatusLines;
use crate::units;

/// How often progress is told in JSON.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// How often progress is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(250);
/// How long the other ends have to hear that it is over.
const ENDING_MAX: Duration = Duration::from_secs(3);
/// Callers whose rejection is told; whoever knocks from more addresses wants the log to grow.
const REJECTED_TOLD_MAX: usize = 1000;
/// Transfers of a standing receiver that are remembered once they are over.
const OVER_MAX: usize = 1000;

/// What is expected of a transfer.
pub(crate) struct Expected {
    /// Whether this end sends.
    pub is_sender: bool,
    /// Whom this end calls, in order; empty where it listens.
    pub dialled: Vec<Dialled>,
    /// The ticket, where one is to be printed.
    pub invitation: Option<Invitation>,
    /// Standard output is the content's.
    pub is_output_taken: bool,
    /// This end's key.
    pub key: NodeId,
    /// How long to wait for ends that are gone, where the user says so.
    pub give_up: Option<Duration>,
    /// Print JSON.
    pub json: bool,
    /// Tell of paths.
    pub explain: bool,
}

/// Somebody who is called.
pub(crate) struct Dialled {
    /// As the user wrote it.
    pub label: String,
    /// The user named it by its address alone: it is remembered, or was.
    pub is_remembered: bool,
    /// Where it is.
    pub addresses: Vec<Endpoint>,
}

/// Turns events into lines.
pub(crate) struct Watch {
    expected: Expected,
    known: Known,
    chatter: Chatter,
    lines: Option<StatusLines>,
    path_log: Option<PathLog>,
    peers: BTreeMap<PeerId, Peer>,
    /// What was signed.
    pub receipts: Vec<Receipt>,
    /// How many transfers are complete.
    finished: usize,
    /// This end's own trouble.
    broken: Option<(Code, String)>,
    rejected: HashSet<(IpAddr, String)>,
    told: Option<Instant>,
}

impl Watch {
    /// Nothing was heard yet.
    pub(crate) fn new(
        expected: Expected,
        known: Known,
        path_log: Option<&FilePath>,
        chatter: Chatter,
    ) -> Result<Self, Failure> {
        let now = Instant::now();
        let named = expected.dialled.iter().map(|dialled| Peer::new(dialled.label.clone(), now));
        Ok(Self {
            peers: (0..).map(PeerId).zip(named).collect(),
            lines: (chatter.draws() && !expected.json).then(StatusLines::default),
            path_log: path_log.map(PathLog::create).transpose()?,
            expected,
            known,
            chatter,
            receipts: Vec::new(),
            finished: 0,
            broken: None,
            rejected: HashSet::new(),
            told: None,
        })
    }

    /// Until it is over, one way or another.
    pub(crate) async fn follow(
        &mut self,
        handle: &Handle,
        events: &mut Events,
        interrupted: Rc<Notify>,
    ) -> Result<Code, Failure> {
        let mut ticks = tokio::time::interval(if self.path_log.is_some() { PATH_LOG_EVERY } else { DRAW_EVERY });
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let ended = loop {
            tokio::select! {
                biased;
                () = interrupted.notified() => break Ok(false),
                event = events.recv() => match event {
                    Some(event) => self.on_event(event)?,
                    None => break Ok(true),
                },
                _ = ticks.tick() => self.tick()?,
            }
            if self.is_over() {
                break Ok(true);
            }
        };
        handle.cancel();
        // What is still told is the echo of that, and what was under way when it was over.
        let rest = async {
            while let Some(event) = events.recv().await {
                self.on_event(event)?;
            }
            Ok(())
        };
        let rest: Result<(), Failure> = tokio::time::timeout(ENDING_MAX, rest).await.unwrap_or(Ok(()));
        self.lines.iter_mut().for_each(StatusLines::clear);
        self.lines = None;
        rest?;
        match ended? {
            true => self.verdict(),
            false => self.interruption(),
        }
    }

    /// Whether there is nothing more to wait for.
    fn is_over(&self) -> bool {
        if self.broken.is_some() {
            return true;
        }
        if !self.expected.dialled.is_empty() {
            return self.peers.values().all(|peer| peer.end.is_some());
        }
        let is_busy = self.peers.values().any(|peer| peer.end.is_none());
        match &self.expected.invitation {
            Some(invitation) if !is_busy => {
                self.finished >= usize::from(invitation.times) || SystemTime::now() > invitation.expires
            }
            _ => false,
        }
    }

    /// How it ended.
    fn verdict(&self) -> Result<Code, Failure> {
        if let Some((code, reason)) = &self.broken {
            return Err(Failure::new(*code, reason));
        }
        if self.expected.dialled.is_empty() {
            return match self.expected.invitation {
                Some(_) if self.finished == 0 => Err(Failure::new(
                    Code::Network,
                    "the ticket expired before anybody used it: begin again, maybe with a longer --expires",
                )),
                _ => Ok(Code::Success),
            };
        }
        let failed = || {
            self.peers.values().filter_map(|peer| match &peer.end {
                Some(End::Finished) => None,
                Some(End::Failed(code, reason)) => Some((*code, format!("{}: {reason}", peer.label))),
                None => Some((Code::Failed, format!("{}: the transfer ended without a word", peer.label))),
            })
        };
        let Some((code, reason)) = failed().next() else { return Ok(Code::Success) };
        let mut failure = match self.peers.len() {
            1 => return Err(Failure::new(code, reason)),
            count => Failure::new(code, format!("{} of {count} destinations do not have it", failed().count())),
        };
        failure.details = failed().map(|(_, reason)| reason).collect();
        Err(failure)
    }

    /// What being interrupted means: a standing receiver that receives nothing ends so. Who called and offered nothing, as a
    /// sender that was killed just then, is nothing to receive.
    fn interruption(&mut self) -> Result<Code, Failure> {
        let is_busy = self
            .peers
            .values()
            .any(|peer| peer.offered.is_some() && matches!(peer.end, None | Some(End::Failed(Code::Interrupted, _))));
        if self.expected.dialled.is_empty() && self.expected.invitation.is_none() && !is_busy {
            return Ok(Code::Success);
        }
        if self.broken.is_none() && is_busy {
            let next = if self.expected.invitation.is_some() { "the next one" } else { "the same command" };
            self.note(format_args!("interrupted; {next} goes on where this one ended"));
        }
        Ok(Code::Interrupted)
    }

    /// Says something to people.
    fn note(&mut self, text: impl std::fmt::Display) {
        if self.expected.json {
            return;
        }
        if let Some(lines) = &mut self.lines {
            lines.clear();
        }
        self.chatter.note(text);
    }

    /// An event about a peer.
    fn tell(&self, id: PeerId, event: &str, fields: Value) -> Result<(), Failure> {
        if !self.expected.json {
            return Ok(());
        }
        let mut all = Map::new();
        all.insert("transfer".to_owned(), id.0.into());
        if let Some(peer) = self.peers.get(&id) {
            all.insert("peer".to_owned(), peer.label.as_str().into());
        }
        if let Value::Object(fields) = fields {
            all.extend(fields);
        }
        output::json_event(event, Value::Object(all))
    }

    /// An event about a peer for programs, or a line about it for people.
    fn report(&mut self, id: PeerId, event: &str, fields: Value, text: &str) -> Result<(), Failure> {
        self.tell(id, event, fields)?;
        let label = self.peers.get(&id).map_or(String::new(), |peer| peer.label.clone());
        self.note(format_args!("{label}: {text}"));
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> Result<(), Failure> {
        let now = Instant::now();
        match event {
            Event::Listening { addresses } => self.on_listening(&addresses),
            Event::Bypass(bypass) => self.on_bypass(&bypass),
            Event::PeerConnected { peer, key, address } => self.on_connected(peer, key, address, now),
            Event::Offered { peer, names, entries, content_len, kept_bytes } => {
                self.on_offered(peer, names, entries, content_len, kept_bytes, now)
            }
            Event::PathUp { peer, path, way, rtt } => self.on_path_up(peer, path, &way, rtt),
            Event::PathDown { peer, path, reason } => {
                self.tell(peer, "path", json!({ "path": path, "state": "down", "reason": reason }))?;
                self.explain(peer, format!("path {path} is down: {reason}"));
                Ok(())
            }
            Event::Progress(progress) => self.on_progress(progress),
            Event::Waiting { peer, what } => self.on_waiting(peer, &what, now),
            Event::Replaced { peer } => {
                self.peers.remove(&peer);
                Ok(())
            }
            Event::GoesOn { peer } => match self.peers.get_mut(&peer).is_some_and(Peer::moves) {
                true => self.report(peer, "resumed", json!({}), "goes on"),
                false => Ok(()),
            },
            Event::Rejected { address, key, reason } => self.on_rejected(address, key, reason),
            Event::Finished { peer, receipt, repeated_bytes, .. } => {
                self.on_finished(peer, receipt, repeated_bytes, now)
            }
            Event::Failed { peer: Some(peer), error } => self.on_failed(peer, &error),
            Event::Failed { peer: None, error: TransferError::Cancelled } => Ok(()),
            Event::Failed { peer: None, error } => {
                if self.expected.json {
                    output::json_event("error", json!({ "kind": peer::kind(&error), "message": error.to_string() }))?;
                }
                self.broken.get_or_insert((peer::code(&error), error.to_string()));
                Ok(())
            }
        }
    }

    /// How an interface's packets go.
    fn on_bypass(&mut self, bypass: &Bypass) -> Result<(), Failure> {
        let interface = &bypass.interface;
        if self.expected.json {
            let fields = match &bypass.outcome {
                Ok(port) => {
                    json!({ "interface": interface, "io": "xdp", "mode": port.mode.to_string(), "queues": port.queues })
                }
                Err(reason) => json!({ "interface": interface, "io": "udp", "reason": reason }),
            };
            return output::json_event("io", fields);
        }
        if self.expected.explain {
            match &bypass.outcome {
                Ok(port) => self.note(format_args!("{interface}: AF_XDP, {}, {} queues", port.mode, port.queues)),
                Err(reason) => self.note(format_args!("{interface}: the system's sockets: {reason}")),
            }
        }
        Ok(())
    }

    fn on_listening(&mut self, addresses: &[Endpoint]) -> Result<(), Failure> {
        let is_listening = self.expected.dialled.is_empty();
        let key = self.expected.key.to_string();
        if self.expected.json && is_listening {
            for address in addresses {
                let port = address.socket_addr().port();
                let fields = json!({ "address": address.to_string(), "port": port, "key": key });
                output::json_event("listening", fields)?;
            }
        }
        let Some(invitation) = self.expected.invitation.clone() else {
            if is_listening && !self.expected.json && !self.chatter.quiet {
                let shown: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                output::line(format_args!("listening on {}", shown.join(" ")))?;
                self.note(format_args!("this node's key is {key}: senders may insist on it with --to KEY@ADDR"));
            }
            return Ok(());
        };
        let Some(ticket) = invitation.ticket(addresses) else {
            let message = "this host has no address that a ticket could name: give one with --listen";
            self.broken.get_or_insert((Code::Network, message.to_owned()));
            return Ok(());
        };
        let expires = unix_seconds(invitation.expires);
        let life = units::duration(invitation.expires.duration_since(SystemTime::now()).unwrap_or_default());
        let times = match invitation.times {
            1 => "once".to_owned(),
            times => format!("{times} times"),
        };
        let command = if self.expected.is_sender { "receive TICKET" } else { "send PATH --to TICKET" };
        if self.expected.json {
            let fields = json!({ "ticket": ticket.to_string(), "expires": expires, "times": invitation.times });
            return output::json_event("ticket", fields);
        }
        if self.expected.is_output_taken {
            // Standard output is the content's alone.
            eprintln!("{ticket}");
        } else {
            output::line(&ticket)?;
        }
        self.note(format_args!("waits for `anabranch {command}`; the ticket is good {times}, for {life}"));
        Ok(())
    }

    fn on_connected(&mut self, id: PeerId, key: NodeId, address: Endpoint, now: Instant) -> Result<(), Failure> {
        self.forget_old();
        // Who comes again begins anew: with something else, after a failure, or because the connection was lost.
        if self.expected.dialled.is_empty() {
            let is_old = |other: &PeerId, peer: &Peer| *other == id && peer.end.is_some();
            let is_lost = |other: &PeerId, peer: &Peer| *other != id && peer.key == Some(key) && peer.is_waiting();
            self.peers.retain(|other, peer| !is_old(other, peer) && !is_lost(other, peer));
        }
        let peer = self.peers.entry(id).or_insert_with(|| Peer::new(address.to_string(), now));
        let is_new = peer.key.replace(key) != Some(key);
        peer.address = Some(address);
        let was_waited_for = peer.moves();
        if was_waited_for {
            self.report(id, "resumed", json!({}), "goes on")?;
        }
        self.tell(id, "connected", json!({ "address": address.to_string(), "key": key.to_string() }))?;
        if !is_new {
            return Ok(());
        }
        let is_remembered = self.expected.dialled.get(id.0 as usize).is_some_and(|dialled| dialled.is_remembered);
        let met = if is_remembered { self.known.meet(address, key) } else { Ok(None) };
        let label = self.peers.get(&id).map_or(String::new(), |peer| peer.label.clone());
        match met {
            Ok(Some(news)) => self.note(format_args!("{label}: its key is {key}; {news}")),
            Ok(None) if self.chatter.verbose => self.note(format_args!("{label}: connected, its key is {key}")),
            Ok(None) => {}
            // The file cannot be written, as one that does not fit was refused before anything was sent.
            Err(error) => self.note(format_args!("{label}: its key is {key}, which is not remembered: {error}")),
        }
        Ok(())
    }

    /// A standing receiver does not remember everybody who ever sent.
    fn forget_old(&mut self) {
        if self.expected.dialled.is_empty() && self.peers.len() >= OVER_MAX {
            self.peers.retain(|_, peer| peer.end.is_none());
        }
    }

    fn on_offered(
        &mut self,
        id: PeerId,
        names: Vec<String>,
        entries: u32,
        content_len: u64,
        kept_bytes: u64,
        now: Instant,
    ) -> Result<(), Failure> {
        let Some(peer) = self.peers.get_mut(&id) else { return Ok(()) };
        // One that had too many to do is not told to have answered.
        if peer.moves() {
            self.report(id, "resumed", json!({}), "goes on")?;
        }
        let Some(peer) = self.peers.get_mut(&id) else { return Ok(()) };
        let is_first = peer.offered.replace((content_len, kept_bytes)).is_none();
        peer.started.get_or_insert(now);
        peer.names.clone_from(&names);
        let (content, label) = (peer.content(), peer.label.clone());
        let fields =
            json!({ "names": names, "entries": entries, "bytes_total": content_len, "bytes_kept": kept_bytes });
        self.tell(id, "started", fields)?;
        if is_first {
            let kept = match kept_bytes {
                0 => String::new(),
                bytes => format!(", of which {} are there already", units::bytes(bytes)),
            };
            let way = if self.expected.is_sender { "sending" } else { "receiving" };
            let toward = if self.expected.is_sender { "to" } else { "from" };
            self.note(format_args!("{way} {content}, {}{kept}, {toward} {label}", units::bytes(content_len)));
        }
        Ok(())
    }

    fn on_path_up(&mut self, id: PeerId, path: u8, way: &PathWay, rtt: Duration) -> Result<(), Failure> {
        let rtt_ms = rtt.as_secs_f64() * 1e3;
        let fields = json!({
            "path": path, "state": "active", "way": &*way.name, "remote": way.remote.to_string(), "rtt_ms": rtt_ms,
        });
        self.tell(id, "path", fields)?;
        self.explain(id, format!("path {path} is up: {} to {}, round trip {rtt_ms:.1} ms", way.name, way.remote));
        Ok(())
    }

    fn explain(&mut self, id: PeerId, text: String) {
        if self.expected.explain {
            let label = self.peers.get(&id).map_or(String::new(), |peer| peer.label.clone());
            self.note(format_args!("{label}: {text}"));
        }
    }

    fn on_progress(&mut self, progress: Progress) -> Result<(), Failure> {
        if let Some(peer) = self.peers.get_mut(&progress.peer) {
            peer.progress = Some(progress);
        }
        Ok(())
    }

    fn on_waiting(&mut self, id: PeerId, what: &Waiting, now: Instant) -> Result<(), Failure> {
        let (reason, lacks_room) = (what.to_string(), matches!(what, Waiting::Room(_)));
        match self.peers.get_mut(&id).is_some_and(|peer| peer.end.is_none() && peer.waits(&reason, lacks_room, now)) {
            true => self.report(id, "waiting", json!({ "reason": reason }), &reason),
            false => Ok(()),
        }
    }

    fn on_rejected(&mut self, address: Endpoint, key: NodeId, reason: Rejection) -> Result<(), Failure> {
        let reason = reason.to_string();
        let is_news = self.rejected.len() < REJECTED_TOLD_MAX && self.rejected.insert((address.ip(), reason.clone()));
        if !is_news {
            return Ok(());
        }
        if self.expected.json {
            let fields = json!({ "address": address.to_string(), "key": key.to_string(), "reason": reason });
            return output::json_event("rejected", fields);
        }
        self.note(format_args!("turned {address} with the key {key} away: {reason}"));
        Ok(())
    }

    fn on_finished(
        &mut self,
        id: PeerId,
        receipt: Box<Receipt>,
        repeated_bytes: u64,
        now: Instant,
    ) -> Result<(), Failure> {
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.end.is_none()) else { return Ok(()) };
        let took = peer.started.map_or(Duration::ZERO, |started| now.saturating_duration_since(started)).as_secs_f64();
        let moved = receipt.content_len.saturating_sub(peer.offered.map_or(0, |(_, kept)| kept));
        let rate = moved as f64 / took.max(0.001);
        let fields = json!({
            "bytes_total": receipt.content_len,
            "bytes_moved": moved,
            "bytes_repeated": repeated_bytes,
            "seconds": took,
            "root": anabranch_content::hex::encode(&receipt.root),
            "receiver": NodeId::from_bytes(receipt.receiver).to_string(),
            "exit_code": Code::Success as u8,
        });
        let repeated = match repeated_bytes {
            0 => String::new(),
            bytes => format!("; {} went twice", units::bytes(bytes)),
        };
        let text = format!(
            "complete and verified, {} in {took:.1} s, {}{repeated}",
            units::bytes(moved),
            units::rate(rate as u64)
        );
        peer.end = Some(End::Finished);
        self.receipts.push(*receipt);
        self.finished += 1;
        if let Some(progress) = self.peers.get(&id).and_then(|peer| peer.progress.as_ref()) {
            self.tell(id, "progress", peer::progress_json(progress))?;
        }
        self.report(id, "finished", fields, &text)
    }

    fn on_failed(&mut self, id: PeerId, error: &TransferError) -> Result<(), Failure> {
        let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.end.is_none()) else { return Ok(()) };
        let dialled = self.expected.dialled.get(id.0 as usize).filter(|dialled| dialled.is_remembered);
        let reason = match (error, dialled) {
            // The file of known keys has the line, and what to do.
            (TransferError::WrongKey { found, .. }, Some(dialled)) => self.known.changed(&dialled.addresses, *found),
            _ => None,
        };
        let reason = reason.unwrap_or_else(|| error.to_string());
        let code = peer::code(error);
        peer.end = Some(End::Failed(code, reason.clone()));
        self.on_end(id, code, peer::kind(error), &reason, is_own(error))
    }

    /// A transfer failed; `is_final`: the same would become of the next one.
    fn on_end(&mut self, id: PeerId, code: Code, kind: &str, reason: &str, is_final: bool) -> Result<(), Failure> {
        let fields = json!({ "kind": kind, "message": reason, "exit_code": code as u8 });
        self.tell(id, "error", fields)?;
        if code == Code::Interrupted {
            return Ok(());
        }
        let label = self.peers.get(&id).map_or(String::new(), |peer| peer.label.clone());
        let is_one = self.expected.dialled.len() == 1;
        if self.expected.invitation.is_some() && is_final {
            self.broken.get_or_insert((code, reason.to_owned()));
        } else if self.expected.invitation.is_some() {
            self.note(format_args!("{label}: {reason}; the ticket is still good"));
        } else if !is_one {
            self.note(format_args!("{label}: error: {reason}"));
        }
        Ok(())
    }

    /// Tells how things are, and gives up whom nobody expects any more.
    fn tick(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        self.log_paths(now)?;
        let every = if self.lines.is_some() { DRAW_EVERY } else { PROGRESS_EVERY };
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < every - PATH_LOG_EVERY / 2) {
            return Ok(());
        }
        self.told = Some(now);
        // Nothing waits in silence: some networks never say that nobody is there.
        let silent = |(id, peer): (&PeerId, &Peer)| peer.is_silent(now).then_some(*id);
        for id in self.peers.iter().filter_map(silent).collect::<Vec<_>>() {
            self.on_waiting(id, &Waiting::Peer("it does not answer".to_owned()), now)?;
        }
        let patience = self.expected.give_up;
        let given_up = |(id, peer): (&PeerId, &Peer)| Some((*id, peer.gives_up(patience, now)?));
        for (id, reason) in self.peers.iter().filter_map(given_up).collect::<Vec<_>>() {
            if let Some(peer) = self.peers.get_mut(&id) {
                peer.end = Some(End::Failed(Code::Network, reason.clone()));
            }
            self.on_end(id, Code::Network, "unreachable", &reason, false)?;
        }
        let live = self.peers.iter().filter(|(_, peer)| peer.end.is_none());
        if self.expected.json {
            for (id, progress) in live.filter_map(|(id, peer)| Some((id, peer.progress.as_ref()?))) {
                self.tell(*id, "progress", peer::progress_json(progress))?;
            }
            return Ok(());
        }
        let is_sender = self.expected.is_sender;
        let of_peer = |peer: &Peer| std::iter::once(peer.line(is_sender)).chain(peer.path_lines()).collect::<Vec<_>>();
        let shown: Vec<String> = live.flat_map(|(_, peer)| of_peer(peer)).collect();
        if let Some(lines) = &mut self.lines {
            lines.draw(&shown);
        }
        Ok(())
    }

    fn log_paths(&mut self, now: Instant) -> Result<(), Failure> {
        let Some(log) = self.path_log.as_mut().filter(|log| log.is_due(now)) else { return Ok(()) };
        let is_sender = self.expected.is_sender;
        let live = self.peers.values().filter(|peer| peer.end.is_none());
        let rows = live.filter_map(|peer| Some((peer.label.as_str(), peer.progress.as_ref()?.per_path(is_sender))));
        log.write(&rows.collect::<Vec<_>>(), now)
    }
}

/// Trouble of this end, which the next transfer would have too.
fn is_own(error: &TransferError) -> bool {
    matches!(error, TransferError::Source(_) | TransferError::Destination(_) | TransferError::Refused(_))
}
