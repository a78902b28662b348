//! The network thread: it owns the sockets and the cores of all transfers, moves their packets, and never waits for anything else.
//!
//! Whoever speaks with the other end over QUIC tells it what to do ([`Command`]) and hears what happens ([`News`]). Packets that are
//! QUIC's, which share the sockets, are handed on; what authenticates as a transfer's is that transfer's; all else is as if it had not
//! come.

mod dispatch;
mod incoming;
mod interface;
mod outgoing;
mod port;
mod routing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, btree_map};
use std::os::fd::AsRawFd;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anabranch_hercules::wire::message::Offer;
use anabranch_hercules::wire::seal::Secret;
use anabranch_hercules::{congestion, hand_on};
use anabranch_transport::control::Inlet;
use anabranch_transport::datagram::{Pacer, Socket};
use tokio::sync::mpsc::UnboundedSender;

use self::incoming::Incoming;
pub(super) use self::interface::{Command, Id, Measured, News, Route};
use self::outgoing::Outgoing;
use self::port::Port;
use super::content::Source;
use super::events::TransferError;
use super::poll::{self, Waker, Woken};
use super::reader::{Hashing, Store};

/// Longest sleep.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Shorter than this is not slept: the system wakes no sooner.
const SLEEP_MIN: Duration = Duration::from_micros(20);
/// Batches sent before the sockets are looked at again.
const BATCHES_PER_TURN: usize = 8;
/// How often progress is told.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// What all transfers of the thread have in common.
pub(super) struct Common {
    pub source: Option<(Arc<dyn Source>, Hashing)>,
    pub congestion: congestion::Kind,
    pub memory_bytes: u64,
    pub limit_up: Option<u64>,
    /// Those that the user named; none: all.
    pub interfaces: Vec<String>,
}

/// Tells the network thread. Cheap to clone.
#[derive(Clone)]
pub(super) struct Teller {
    commands: mpsc::Sender<Command>,
    waker: Waker,
}

impl Teller {
    pub(super) fn tell(&self, command: Command) {
        // A thread that is gone needs telling nothing.
        if self.commands.send(command).is_ok() {
            self.waker.wake();
        }
    }
}

/// Starts the thread.
pub(super) fn start(sockets: Vec<(Socket, Inlet)>, common: Common) -> std::io::Result<Teller> {
    let (waker, woken) = poll::waker()?;
    let (commands, told) = mpsc::channel();
    let teller = Teller { commands, waker: waker.clone() };
    let ports = sockets.into_iter().map(|(socket, inlet)| Port::new(socket, inlet, &common.interfaces)).collect();
    let now = Instant::now();
    let engine = Engine {
        ports,
        pacer: common.limit_up.map(|limit| Pacer::new(limit.max(1), now)),
        common,
        told,
        woken,
        waker,
        senders: BTreeMap::new(),
        receivers: BTreeMap::new(),
        stores: BTreeMap::new(),
        turn: 0,
        progress_at: now,
        freed_rate_bytes: 0.0,
        rest_asked: false,
    };
    std::thread::Builder::new().name("bulk-net".to_owned()).spawn(move || engine.run())?;
    Ok(teller)
}

struct Engine {
    ports: Vec<Port>,
    common: Common,
    told: mpsc::Receiver<Command>,
    woken: Woken,
    waker: Waker,
    senders: BTreeMap<u32, Outgoing>,
    receivers: BTreeMap<u32, Incoming>,
    /// What is in memory of the source, by the length of chunks.
    stores: BTreeMap<u16, Store>,
    pacer: Option<Pacer>,
    /// Which sender is asked first.
    turn: usize,
    progress_at: Instant,
    /// Bytes a second that transfers took which are over.
    freed_rate_bytes: f64,
    /// The rest of the source is to be hashed, and the thread was too busy to hear it.
    rest_asked: bool,
}

impl Engine {
    fn run(mut self) {
        loop {
            self.woken.clear();
            loop {
                match self.told.try_recv() {
                    Ok(Command::Stop) | Err(mpsc::TryRecvError::Disconnected) => return,
                    Ok(command) => self.obey(command),
                    Err(mpsc::TryRecvError::Empty) => break,
                }
            }
            let received = self.receive();
            let next = self.drive();
            if received {
                continue;
            }
            let now = Instant::now();
            let timeout = next.saturating_duration_since(now).min(SLEEP_MAX);
            if timeout >= SLEEP_MIN {
                // Where packets go past the kernel, there is more to receive from than the socket; only it is ever full for long.
                let readable = self.ports.iter().map(|port| (port.receiver.as_raw_fd(), false));
                let full = self.ports.iter().enumerate().filter(|(at, _)| self.is_blocked(*at));
                let fds: Vec<_> = readable.chain(full.map(|(_, port)| (port.socket.as_raw_fd(), true))).collect();
                poll::wait(&self.woken, &fds, timeout);
            }
        }
    }

    fn is_blocked(&self, port: usize) -> bool {
        self.senders.values().any(|sender| sender.is_blocked_at(port))
    }

    fn obey(&mut self, command: Command) {
        let now = Instant::now();
        match command {
            Command::Send { offer, secret, news } => {
                if let Err(error) = self.begin_send(offer, &secret, &news, now) {
                    let _ = news.send(News::Failed(error));
                }
            }
            Command::Receive { offer, secret, claimed, destination, news } => {
                if self.receivers.contains_key(&offer.transfer) {
                    let reason = "this number of a transfer is taken here: begin again".to_owned();
                    let _ = news.send(News::Failed(TransferError::Refused(reason)));
                    return;
                }
                let memory_bytes = self.common.memory_bytes;
                let begun =
                    Incoming::new(offer, &secret, claimed, &destination, memory_bytes, &self.waker, news.clone(), now);
                match begun {
                    Ok(incoming) => {
                        self.receivers.insert(offer.transfer, incoming);
                        self.divide_memory();
                    }
                    Err(error) => {
                        let _ = news.send(News::Failed(error));
                    }
                }
            }
            Command::AddPath { id, index, route, group } if id.sends => {
                if let Some(sender) = self.senders.get_mut(&id.transfer) {
                    sender.add_path(index, route, group, &self.ports, now);
                }
            }
            Command::AddPath { id, index, route, .. } => {
                if let (Some(receiver), Some(route)) = (self.receivers.get_mut(&id.transfer), route) {
                    receiver.set_route(index, route, true, &self.ports);
                }
            }
            Command::Couple { id, one, other } => {
                if let Some(sender) = self.senders.get_mut(&id.transfer).filter(|_| id.sends) {
                    sender.couple(one, other);
                }
            }
            Command::Separate { id, index } => {
                if let Some(sender) = self.senders.get_mut(&id.transfer).filter(|_| id.sends) {
                    sender.separate(index);
                }
            }
            Command::Reroute { id, index, route } => {
                if let Some(sender) = self.senders.get_mut(&id.transfer).filter(|_| id.sends) {
                    sender.set_route(index, route, true, &self.ports);
                } else if let Some(receiver) = self.receivers.get_mut(&id.transfer).filter(|_| !id.sends) {
                    receiver.set_route(index, route, true, &self.ports);
                }
            }
            Command::Message { id, message } => {
                if let Some(sender) = self.senders.get_mut(&id.transfer).filter(|_| id.sends) {
                    sender.on_message(message);
                } else if let Some(receiver) = self.receivers.get_mut(&id.transfer).filter(|_| !id.sends) {
                    receiver.on_message(message);
                }
            }
            Command::Limit { transfer, rate_bytes } => {
                if let Some(sender) = self.senders.get_mut(&transfer) {
                    sender.limit(rate_bytes, now);
                }
            }
            Command::LimitAll(limit) => self.pacer = limit.map(|limit| Pacer::new(limit.max(1), now)),
            Command::Remove { id } => {
                if id.sends {
                    let removed = self.senders.remove(&id.transfer);
                    self.freed_rate_bytes += removed.and_then(|mut sender| sender.release()).unwrap_or(0.0);
                    self.stores.retain(|len, _| self.senders.values().any(|sender| sender.store == *len));
                } else {
                    self.receivers.remove(&id.transfer);
                }
                self.divide_memory();
            }
            Command::Stop => {}
        }
    }

    fn begin_send(
        &mut self,
        offer: Offer,
        secret: &Secret,
        news: &UnboundedSender<News>,
        now: Instant,
    ) -> Result<(), TransferError> {
        let Some((source, hashing)) = &self.common.source else { return Ok(()) };
        if let btree_map::Entry::Vacant(place) = self.stores.entry(offer.chunk_len) {
            let memory = self.common.memory_bytes;
            let (source, hashing) = (Arc::clone(source), hashing.clone());
            let store = Store::start(source, offer.chunk_len, memory, hashing, self.waker.clone());
            place.insert(store.map_err(|error| TransferError::Unreachable(error.to_string()))?);
            self.divide_memory();
        }
        let congestion = self.common.congestion;
        self.senders.insert(offer.transfer, Outgoing::new(offer, secret, congestion, news.clone(), now)?);
        Ok(())
    }

    /// All that is received has the memory of one, and so have all stores: each an even part.
    fn divide_memory(&mut self) {
        let memory = self.common.memory_bytes;
        let part = |count: usize| memory / count.max(1) as u64;
        let of_receiver = part(self.receivers.len());
        self.receivers.values_mut().for_each(|receiver| receiver.set_memory(of_receiver));
        let of_store = part(self.stores.len());
        self.stores.values_mut().for_each(|store| store.set_memory(of_store));
    }

    /// One look at every socket. Whether there may be more.
    fn receive(&mut self) -> bool {
        let mut more = false;
        let (senders, receivers) = (&mut self.senders, &mut self.receivers);
        for at in 0..self.ports.len() {
            let now = Instant::now();
            more |= dispatch::receive(&mut self.ports, at, now, senders, receivers);
        }
        more
    }

    /// Takes in what was read, and asks for more.
    fn read(&mut self, now: Instant) {
        for (len, store) in &mut self.stores {
            let senders = self.senders.values_mut().filter(|sender| sender.store == *len);
            let mut senders: Vec<_> = senders.filter_map(Outgoing::going).collect();
            if let Err(error) = store.turn(now, &mut senders) {
                let error = Arc::new(error);
                self.senders.values_mut().for_each(|sender| sender.fail_source(&error));
            }
        }
    }

    /// What one that is done took of the uplink, the others may take at once.
    fn hand_on_rates(&mut self, now: Instant) {
        for sender in self.senders.values_mut().filter(|sender| sender.is_to_be_released()) {
            self.freed_rate_bytes += sender.release().unwrap_or(0.0);
        }
        if self.freed_rate_bytes > 0.0 {
            let others = self.senders.values_mut().filter_map(Outgoing::going);
            self.freed_rate_bytes = hand_on(self.freed_rate_bytes, others, now);
        }
    }

    /// Everything that is due. When the next is.
    fn drive(&mut self) -> Instant {
        let now = Instant::now();
        let mut next = now + SLEEP_MAX;
        self.read(now);
        for receiver in self.receivers.values_mut() {
            receiver.drive(now);
            next = next.min(receiver.deadline().unwrap_or(next));
        }
        let mut asks_rest = self.rest_asked;
        // Where they have a limit in common, whoever is asked first gets most of it.
        self.turn = self.turn.wrapping_add(1);
        let mut senders: Vec<_> = self.senders.values_mut().collect();
        let first = self.turn % senders.len().max(1);
        senders.rotate_left(first);
        for sender in senders {
            let Some(store) = self.stores.get_mut(&sender.store) else { continue };
            for _ in 0..BATCHES_PER_TURN {
                let room = self.pacer.as_mut().map_or(u64::MAX, |pacer| pacer.allowance(now));
                match sender.drive(now, store, room) {
                    0 => break,
                    sent => {
                        if let Some(pacer) = &mut self.pacer {
                            pacer.spend(sent, now);
                        }
                        next = now;
                    }
                }
            }
            asks_rest |= sender.take_all_came();
            let mut due = sender.due(now).unwrap_or(next);
            if let (Some(pacer), true) = (&mut self.pacer, due <= now) {
                due = pacer.next_send(store.chunk_len, now).unwrap_or(due).max(due);
            }
            next = next.min(due);
        }
        self.hand_on_rates(now);
        // What is read now is asked for now.
        self.read(now);
        self.rest_asked = asks_rest && self.common.source.as_ref().is_some_and(|(_, hashing)| !hashing.rest());
        if now >= self.progress_at {
            self.progress_at = now + PROGRESS_EVERY;
            for sender in self.senders.values_mut() {
                sender.settle_routes(&self.ports);
                sender.tell_progress();
            }
            for receiver in self.receivers.values_mut() {
                receiver.settle_routes(&self.ports);
                receiver.tell_progress();
            }
        }
        next
    }
}
