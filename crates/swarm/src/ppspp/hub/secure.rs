//! Secure contents: their datagrams travel inside QUIC, between ends that prove keys ([`SecureDatagrams`]).
//!
//! The same sockets serve both: a channel's number that we choose lacks the bit that each of QUIC's packets has. A connection of QUIC is
//! of one way, as a channel is, and ends with the last channel over it. Plain datagrams to a secure content are nobody's, and so are those
//! of a key that it does not admit.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anabranch_paths::Host;
use anabranch_ppspp::swarm::{BESIDE_LONG_CHUNK, PeerAddress};
use anabranch_transport::datagram::Packet;
use anabranch_transport::secure::{SECURE_OVERHEAD, SecureClose, SecureConn, SecureDatagrams, SecureEvent};
use anabranch_transport::{Identity, NodeId};
use bytes::Bytes;
use tokio::sync::Notify;

use super::directory::{Directory, Recipient};
use crate::events::ContentId;
use crate::ppspp::path_table::{PathAddress, TooLong};

/// What both ends have to speak (ALPN): RFC 7574's datagrams, one in each of RFC 9221's.
const PROTOCOL: &[u8] = b"anabranch-ppspp/1";
/// A connection over which no channel is opened is closed after so long.
const UNUSED_MAX: Duration = Duration::from_secs(10);
/// How soon a full socket is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(1);
/// What a chunk's datagram has beside the chunk and digests: channel, type, range and time.
const CHUNK_HEAD_LEN: usize = 64;

/// All connections.
#[derive(Default)]
pub(super) struct Secure {
    state: RefCell<Option<State>>,
    /// Wakes the task that keeps their time; and when it wakes by itself.
    wake: Notify,
    due: Cell<Option<Instant>>,
    /// Longest chunk of secure contents.
    chunk_len: Cell<usize>,
}

struct State {
    datagrams: SecureDatagrams,
    /// Channels over each way.
    channels: HashMap<u32, usize>,
    /// Ways that somebody waits for.
    calling: HashSet<u32>,
    /// Ways with a connection and no channel, since when.
    unused: HashMap<u32, Instant>,
}

impl Secure {
    /// Looks after the connections' time until the session ends.
    pub(super) async fn keep_time(&self, directory: &Directory) {
        loop {
            let due = self.due.get();
            let pause = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = pause => {}
                () = self.wake.notified() => {}
            }
            self.poll(directory, Instant::now());
        }
    }

    /// Secure contents come, whose peers know us as `identity`. Answers whether they are the first.
    pub(super) fn open(&self, identity: &Identity, chunk_len: Option<u32>) -> io::Result<bool> {
        let chunk_len = chunk_len.map_or(0, |len| len as usize);
        self.chunk_len.set(self.chunk_len.get().max(chunk_len));
        let mut state = self.state.borrow_mut();
        if state.is_some() {
            return Ok(false);
        }
        let datagrams = SecureDatagrams::new(identity, PROTOCOL)?;
        let (channels, calling, unused) = Default::default();
        *state = Some(State { datagrams, channels, calling, unused });
        Ok(true)
    }

    /// Whether any packet may be QUIC's.
    pub(super) fn is_open(&self) -> bool {
        self.state.borrow().is_some()
    }

    /// Calls whoever is at the end of the way. The content is told what becomes of it; `false`: there is no place for it.
    pub(super) fn call(&self, directory: &Directory, way: &PathAddress, now: Instant) -> bool {
        let called = self.with(|state| {
            let is_under_way = state.calling.contains(&way.number());
            let called = is_under_way || state.datagrams.call(now, way.number(), self.packet_lens(way));
            if called {
                state.calling.insert(way.number());
            }
            called
        });
        self.flush(directory, now);
        called.unwrap_or(false)
    }

    /// The key that was proven over the way, and admitted.
    pub(super) fn key_of(&self, way: &PathAddress) -> Option<NodeId> {
        self.with(|state| state.datagrams.key_of(way.number())).flatten()
    }

    /// Whoever is there is not who was called.
    pub(super) fn hang_up(&self, directory: &Directory, way: &PathAddress, why: SecureClose, now: Instant) {
        self.with(|state| {
            if !state.channels.contains_key(&way.number()) {
                state.datagrams.close_way(now, way.number(), why);
            }
        });
        self.flush(directory, now);
    }

    /// A channel is over this way.
    pub(super) fn hold(&self, way: &PathAddress) {
        self.with(|state| {
            *state.channels.entry(way.number()).or_default() += 1;
            state.unused.remove(&way.number());
        });
    }

    /// A channel that was over this way is gone, and with the last one its connection.
    pub(super) fn let_go(&self, directory: &Directory, way: &PathAddress) {
        let now = Instant::now();
        self.with(|state| {
            let Some(count) = state.channels.get_mut(&way.number()) else { return };
            *count -= 1;
            if *count == 0 {
                state.channels.remove(&way.number());
                if !state.calling.contains(&way.number()) {
                    state.datagrams.close_way(now, way.number(), SecureClose::Done);
                }
            }
        });
        self.flush(directory, now);
    }

    /// Sends datagrams inside QUIC; see [`PathTable::send`].
    pub(super) fn send(
        &self,
        directory: &Directory,
        way: &PathAddress,
        packets: &[Packet<'_>],
    ) -> Result<usize, TooLong> {
        let now = Instant::now();
        // What waits for the socket goes first.
        if !self.flush(directory, now) {
            return Ok(0);
        }
        let parts = packets.iter().map(|packet| [packet.head, packet.body]);
        let sent = self.with(|state| state.datagrams.send(now, way.number(), parts)).unwrap_or(Ok(()));
        self.flush(directory, now);
        match sent {
            Ok(()) => Ok(packets.len()),
            Err((0, _)) => Err(TooLong),
            Err((sent, _)) => Ok(sent),
        }
    }

    /// A packet of QUIC's came by the way, as it seems.
    pub(super) fn received(&self, way: &PathAddress, packet: &[u8], now: Instant) {
        let lens = self.packet_lens(&way.secured());
        self.with(|state| state.datagrams.handle(now, way.number(), Host::of(&way.remote), lens, packet));
    }

    /// Hands on what came of it.
    pub(super) fn pump(&self, directory: &Directory, now: Instant) {
        loop {
            let events: Option<Vec<SecureEvent>> =
                self.with(|state| std::iter::from_fn(|| state.datagrams.event()).collect());
            let Some(events) = events.filter(|events| !events.is_empty()) else { break };
            let mut of_content: Option<OfContent> = None;
            for event in events {
                if let SecureEvent::Datagram { way, key, datagram } = event {
                    let way = directory.paths().way(way).map(|way| way.secured());
                    let (Some(way), Some(id)) = (way, directory.whose(&datagram, Some(&key))) else { continue };
                    match &mut of_content {
                        Some((of, datagrams)) if *of == id => datagrams.push((way, datagram)),
                        other => {
                            let before = other.replace((id, vec![(way, datagram)]));
                            Self::deliver(directory, before, now);
                        }
                    }
                    continue;
                }
                Self::deliver(directory, of_content.take(), now);
                match event {
                    SecureEvent::Opened { conn, way, key } => self.opened(directory, conn, way, key, now),
                    SecureEvent::Closed { way, reason, is_final } => {
                        self.closed(directory, way, (&reason, is_final), now)
                    }
                    SecureEvent::Datagram { .. } => {}
                }
            }
            Self::deliver(directory, of_content, now);
        }
        self.flush(directory, now);
    }

    fn deliver(directory: &Directory, datagrams: Option<OfContent>, now: Instant) {
        let Some((id, datagrams)) = datagrams else { return };
        let datagrams: Vec<(PathAddress, &[u8])> =
            datagrams.iter().map(|(way, datagram)| (*way, datagram.as_ref())).collect();
        if let Some(content) = directory.content(id) {
            content.borrow_mut().received(&datagrams, now);
        }
    }

    /// Somebody proved a key: whom we called, or who calls.
    fn opened(&self, directory: &Directory, conn: SecureConn, number: u32, key: NodeId, now: Instant) {
        let way = directory.paths().way(number).map(|way| way.secured());
        let wanting: Vec<Rc<RefCell<dyn Recipient>>> = way.map_or(Vec::new(), |way| {
            directory.contents().into_iter().filter(|content| content.borrow().is_calling(&way)).collect()
        });
        let is_admitted = !wanting.is_empty() || directory.admits(&key);
        self.with(|state| {
            if !is_admitted {
                return state.datagrams.close(now, conn, SecureClose::KeyNotAllowed);
            }
            state.calling.remove(&number);
            state.datagrams.admit(now, conn);
            if !state.channels.contains_key(&number) {
                state.unused.insert(number, now);
            }
        });
        if let Some(way) = &way {
            wanting.iter().for_each(|content| content.borrow_mut().secured(way, key, now));
        }
    }

    /// A connection ended, or did not come about.
    fn closed(&self, directory: &Directory, number: u32, (reason, is_final): (&str, bool), now: Instant) {
        let is_open = self.with(|state| {
            state.calling.remove(&number);
            state.datagrams.key_of(number).is_some()
        });
        let way = directory.paths().way(number).map(|way| way.secured());
        if let (Some(false), Some(way)) = (is_open, way) {
            directory.contents().iter().for_each(|content| content.borrow_mut().unsecured(&way, reason, is_final, now));
        }
    }

    fn poll(&self, directory: &Directory, now: Instant) {
        self.with(|state| {
            state.datagrams.poll(now);
            let is_late = |since: &Instant| now.saturating_duration_since(*since) >= UNUSED_MAX;
            let late: Vec<u32> = state.unused.iter().filter(|(_, since)| is_late(since)).map(|(way, _)| *way).collect();
            for way in late {
                state.unused.remove(&way);
                state.datagrams.close_way(now, way, SecureClose::Done);
            }
        });
        self.pump(directory, now);
    }

    /// How long the packets over a way are, and the longest datagram.
    fn packet_lens(&self, way: &PathAddress) -> (u16, u16) {
        let len = way.datagram_len();
        // Digests go beside a chunk as far as a frame takes them; a chunk that is longer by itself has some beside it all the same.
        let longest = match self.chunk_len.get() + CHUNK_HEAD_LEN {
            chunk if chunk <= len => len,
            chunk => chunk + BESIDE_LONG_CHUNK,
        };
        let short = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        (short(len + SECURE_OVERHEAD), short(longest))
    }

    fn with<T>(&self, with: impl FnOnce(&mut State) -> T) -> Option<T> {
        self.state.borrow_mut().as_mut().map(with)
    }

    /// Sends what QUIC wants to be sent; answers whether all of it left.
    fn flush(&self, directory: &Directory, now: Instant) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(state) = state.as_mut() else { return true };
        let (taken, left): (Vec<_>, Vec<_>) = state.datagrams.take_held().into_iter().partition(|(_, held)| *held);
        let mut paths = directory.paths_mut();
        taken.iter().for_each(|(way, _)| paths.hold_number(*way));
        let mut is_full = false;
        while let Some(packets) = state.datagrams.packets() {
            let each = packets.bytes.chunks(packets.packet_len);
            let each: Vec<Packet<'_>> = each.map(|head| Packet { head, body: &[] }).collect();
            match paths.send_by_number(packets.way, &each) {
                Ok(0) => {
                    is_full = true;
                    break;
                }
                Ok(sent) => state.datagrams.sent(sent),
                Err(TooLong) => state.datagrams.sent(1),
            }
        }
        for (way, _) in left {
            state.unused.remove(&way);
            paths.let_go_number(way);
        }
        let unused = state.unused.values().min().map(|since| *since + UNUSED_MAX);
        let full = is_full.then(|| now + FULL_PAUSE);
        let due = [state.datagrams.deadline(), unused, full].into_iter().flatten().min();
        let before = self.due.replace(due);
        if due.is_some_and(|due| before.is_none_or(|before| due < before)) {
            self.wake.notify_one();
        }
        !is_full
    }
}

/// Datagrams of one content, each with where it came from.
type OfContent = (ContentId, Vec<(PathAddress, Bytes)>);
