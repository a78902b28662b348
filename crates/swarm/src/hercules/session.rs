//! Calling, being called, and what is said before content moves. One thread with a runtime of its own, a task for each peer.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anabranch_hercules::wire::message::Message;
use anabranch_hercules::wire::ticket;
use anabranch_paths::{Endpoint, Host};
use anabranch_transport::control::ControlStream;
use anabranch_transport::{CallerPlace, Callers, ConnectError, NodeId};
use tokio::sync::{mpsc, watch};

use super::connection::{ControlConnection, End, PRELIMINARIES_MAX, Replaced};
use super::context::{Context, HAND_OVER_MAX, Speaking, Work, is_cancelled};
use super::engine::Command;
use super::events::{Event, PeerId, Rejection, TransferError, Waiting};
use super::io::Bypass;
use super::messages::{LAST_WORDS_MAX, WriteTask, code};
use super::network::{CandidatePath, CandidatePaths};
use super::options::{Admission, Dial, PeerKey, Peers};
use super::{receiving, sending};
use crate::net::race::{Due, race};

/// Transfers with those who called and may be here, at once.
const TRANSFERS_MAX: usize = 64;
/// One try to connect over one path.
const CONNECT_MAX: Duration = Duration::from_secs(4);
/// Pause before the next try to connect: doubled up to the longest.
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How long paths to a peer may be looked up before somebody is told: longer than that takes as a rule.
const LOOKUP_TOLD_AFTER: Duration = Duration::from_millis(700);

/// The thread's life.
pub(super) async fn run(context: Rc<Context>, peers: Peers, bypasses: Vec<Bypass>) {
    context.tell(Event::Listening { addresses: context.network.addresses() }).await;
    for bypass in bypasses {
        context.tell(Event::Bypass(bypass)).await;
    }
    let mut cancelled = context.cancelled.clone();
    let (mut limits, engine) = (context.limits.clone(), context.engine.clone());
    tokio::task::spawn_local(async move {
        while limits.changed().await.is_ok() {
            let (_, limit_up) = *limits.borrow_and_update();
            engine.tell(Command::LimitAll(limit_up));
        }
    });
    let work = async {
        match peers {
            Peers::Dial(dials) => {
                let tasks: Vec<_> = (0..)
                    .zip(dials)
                    .map(|(peer, to)| tokio::task::spawn_local(dial(Rc::clone(&context), PeerId(peer), to)))
                    .collect();
                for task in tasks {
                    let _ = task.await;
                }
            }
            Peers::Listen(admission) => listen(&context, admission).await,
        }
    };
    tokio::select! {
        () = work => {}
        () = is_cancelled(&mut cancelled) => {
            context.tell(Event::Failed { peer: None, error: TransferError::Cancelled }).await;
            // Sessions say so to the other ends. What is on its way when a connection is closed is not sent again where it is lost.
            let mut speaking = context.speaking.subscribe();
            let _ = tokio::time::timeout(LAST_WORDS_MAX, speaking.wait_for(|count| *count == 0)).await;
        }
    }
    for endpoint in &context.network.endpoints {
        endpoint.close().await;
    }
    context.engine.tell(Command::Stop);
}

/// Calls one peer until the transfer is done or hopeless.
async fn dial(context: Rc<Context>, peer: PeerId, to: Dial) {
    let mut pause = RETRY_MIN;
    let (mut reporter, mut is_busy) = (WaitReporter { context: &context, peer, latest: None }, false);
    loop {
        let end = match connect(&context, peer, &to, &mut reporter).await {
            Ok((control, writing)) => {
                let _speaking = Speaking::begin(&context);
                // That one who was busy answers is no news: its offer, or that it is ready for one, is.
                if !is_busy {
                    pause = RETRY_MIN;
                    reporter.goes_on().await;
                    let (key, address) = (control.key, control.address);
                    context.tell(Event::PeerConnected { peer, key, address }).await;
                }
                let end = session(&context, control).await;
                writing.finish().await;
                is_busy = matches!(end, Err(End::Busy(_)));
                if !is_busy {
                    reporter.latest = None;
                }
                end
            }
            Err(end) => Err(end),
        };
        match end {
            Ok(finished) => return context.tell(finished).await,
            // Who cancelled is told once for all.
            Err(End::Failed(TransferError::Cancelled)) => return,
            Err(End::Failed(error)) => return context.tell(Event::Failed { peer: Some(peer), error }).await,
            Err(End::Replaced) => {}
            Err(End::Lost(why) | End::Busy(why)) => {
                reporter.waits(Waiting::Peer(why)).await;
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY_MAX);
            }
        }
    }
}

/// Tells what a call waits for, each thing once.
struct WaitReporter<'a> {
    context: &'a Context,
    peer: PeerId,
    latest: Option<Waiting>,
}

impl WaitReporter<'_> {
    /// Tells that, unless it is what was told before, perhaps in other words.
    async fn waits(&mut self, what: Waiting) {
        let kind = std::mem::discriminant(&what);
        if self.latest.as_ref().is_none_or(|latest| std::mem::discriminant(latest) != kind) {
            self.latest = Some(what.clone());
            self.context.tell(Event::Waiting { peer: self.peer, what }).await;
        }
    }

    /// Tells that nothing is waited for any more, if something was.
    async fn goes_on(&mut self) {
        if self.latest.take().is_some() {
            self.context.tell(Event::GoesOn { peer: self.peer }).await;
        }
    }
}

/// To its end, which is told by whoever asked for it.
async fn session(context: &Rc<Context>, control: ControlConnection) -> Result<Event, End> {
    match &context.work {
        Work::Send { source, hashing } => sending::session(context, control, Arc::clone(source), hashing.clone()).await,
        Work::Receive(destinations) => receiving::session(context, control, Arc::clone(destinations)).await,
    }
}

/// Connects over the best path that leads there, and says what this end wants.
async fn connect(
    context: &Context,
    peer: PeerId,
    to: &Dial,
    reporter: &mut WaitReporter<'_>,
) -> Result<(ControlConnection, WriteTask), End> {
    let CandidatePaths { mut selected, mut others } =
        look_up(context, &to.addresses, reporter).await.map_err(End::Lost)?;
    let (answered, stream) = call(context, selected.iter().chain(&others), to.key).await?;
    // Content begins where somebody is.
    match answered.checked_sub(selected.len()) {
        None => selected.swap(0, answered),
        Some(answered) => {
            selected.insert(0, others.remove(answered));
            others.splice(0..0, selected.drain(context.network.wished().min(selected.len())..));
        }
    }
    let ((mut control, exported), writing) = ControlConnection::open(peer, stream).map_err(End::Lost)?;
    let proof = to.secret.as_ref().map(|secret| ticket::proof(secret, &exported));
    let sends = context.work.sends();
    let chunk_len_max = selected.iter().map(CandidatePath::chunk_len).min().unwrap_or(0);
    control.writer.send(Message::Open { sends, chunk_len_max, proof }).await;
    (control.candidates, control.addresses) = (Some(CandidatePaths { selected, others }), to.addresses.clone());
    Ok((control, writing))
}

/// The paths to a peer, or why there are none. Where the answer is long in coming, that is told.
async fn look_up(
    context: &Context,
    addresses: &[Endpoint],
    reporter: &mut WaitReporter<'_>,
) -> Result<CandidatePaths, String> {
    let mut lookup = std::pin::pin!(context.network.to(addresses));
    match tokio::time::timeout(LOOKUP_TOLD_AFTER, &mut lookup).await {
        Ok(found) => found,
        Err(_) => {
            reporter.waits(Waiting::Lookup).await;
            lookup.await
        }
    }
}

/// Calls over one path after the other, so that an address that leads nowhere holds up nobody. Whoever answers first with the right key is
/// taken; another key may be a stranger's with the same private address, and is told only where nobody else answers. With the place of
/// the path.
async fn call(
    context: &Context,
    paths: impl Iterator<Item = &CandidatePath>,
    key: Option<PeerKey>,
) -> Result<(usize, ControlStream), End> {
    let mut paths = paths.enumerate().filter_map(|(place, candidate)| {
        let endpoint = context.network.endpoints.get(candidate.route.port)?;
        Some((place, Arc::clone(endpoint), candidate.route.path.clone()))
    });
    let failure = RefCell::new(End::Lost("it does not answer".to_owned()));
    let called = race(|_: Due<'_, ()>| {
        let (place, endpoint, path) = paths.next()?;
        let failure = &failure;
        Some(async move {
            let called = tokio::time::timeout(CONNECT_MAX, endpoint.connect(&path, None)).await;
            let found = match called.unwrap_or_else(|_| Err(ConnectError::TimedOut(path.remote()))) {
                Ok(stream) => match key.filter(|expected| !expected.is(&stream.key())) {
                    None => return Ok((place, stream)),
                    Some(expected) => TransferError::WrongKey { expected, found: stream.key() }.into(),
                },
                Err(wrong @ ConnectError::WrongProtocol { .. }) => TransferError::Unreachable(wrong.to_string()).into(),
                Err(other) => End::Lost(other.to_string()),
            };
            // What another try would not mend is told, whatever else failed.
            let mut failure = failure.borrow_mut();
            if matches!(*failure, End::Lost(_)) || !matches!(found, End::Lost(_)) {
                *failure = found;
            }
            Err(())
        })
    });
    match called.await {
        Some(Ok(reached)) => Ok(reached),
        _ => Err(failure.into_inner()),
    }
}

/// Who came with a ticket, and who is done.
struct TicketUses {
    admission: Admission,
    invited: HashSet<NodeId>,
    done: HashSet<NodeId>,
    /// A guest who comes again is the same. Who is always allowed may do several things at once.
    numbers: HashMap<NodeId, PeerId>,
    /// The session of each guest, to be ended when the guest comes again.
    sessions: HashMap<NodeId, watch::Sender<bool>>,
    callers: u32,
    /// Transfers under way.
    active: usize,
}

/// A transfer under way, for as long as it is kept.
struct Active<'a>(&'a RefCell<TicketUses>);

impl<'a> Active<'a> {
    fn begin(ticket_uses: &'a RefCell<TicketUses>) -> Self {
        ticket_uses.borrow_mut().active += 1;
        Self(ticket_uses)
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().active -= 1;
    }
}

impl TicketUses {
    /// Whether all that the ticket is for is done, to its last word, and nobody else may come.
    fn is_over(&self) -> bool {
        self.admission.keys.is_empty()
            && self.active == 0
            && (self.done.len() >= usize::from(self.admission.times.max(1)) || self.is_expired())
    }

    fn is_expired(&self) -> bool {
        self.admission.expires.is_some_and(|expires| SystemTime::now() >= expires)
    }

    /// Whether somebody may come in.
    fn admit(&mut self, key: NodeId, exported: &[u8; 32], proof: Option<&[u8; 32]>) -> Result<(), Rejection> {
        if self.admission.keys.contains(&key) {
            return Ok(());
        }
        let (secret, proof) = self.admission.secret.as_ref().zip(proof).ok_or(Rejection::NotAllowed)?;
        if !ticket::is_proof(secret, exported, proof) {
            return Err(Rejection::WrongTicket);
        }
        let is_known = self.invited.contains(&key);
        if self.done.contains(&key) || !is_known && self.invited.len() >= usize::from(self.admission.times.max(1)) {
            return Err(Rejection::Used);
        }
        // Who came in time may come again after the connection was lost.
        if self.is_expired() && !is_known {
            return Err(Rejection::Expired);
        }
        self.invited.insert(key);
        Ok(())
    }

    /// Whether there is room for somebody who may come in.
    fn take_in(&self) -> Result<(), Rejection> {
        if self.active < TRANSFERS_MAX { Ok(()) } else { Err(Rejection::Busy) }
    }
}

async fn listen(context: &Rc<Context>, admission: Admission) {
    let ticket_uses = Rc::new(RefCell::new(TicketUses {
        admission,
        invited: HashSet::new(),
        done: HashSet::new(),
        numbers: HashMap::new(),
        sessions: HashMap::new(),
        callers: 0,
        active: 0,
    }));
    let (calls, mut called) = mpsc::channel(1);
    for endpoint in &context.network.endpoints {
        let (endpoint, calls) = (Arc::clone(endpoint), calls.clone());
        tokio::task::spawn_local(async move {
            while let Some(stream) = endpoint.accept().await {
                if calls.send(stream).await.is_err() {
                    return;
                }
            }
        });
    }
    let (callers, changed) = (Callers::default(), Rc::new(tokio::sync::Notify::new()));
    loop {
        if ticket_uses.borrow().is_over() {
            if ticket_uses.borrow().done.is_empty() {
                let error =
                    TransferError::Unreachable("the ticket expired before anybody came: make a new one".to_owned());
                context.tell(Event::Failed { peer: None, error }).await;
            }
            return;
        }
        let expiry = {
            let expires = ticket_uses.borrow().admission.expires;
            let left = expires.and_then(|expires| expires.duration_since(SystemTime::now()).ok());
            left.unwrap_or(Duration::from_secs(3600)).max(Duration::from_millis(100))
        };
        tokio::select! {
            stream = called.recv() => {
                let Some(stream) = stream else { return };
                let (context, ticket_uses, changed) = (Rc::clone(context), Rc::clone(&ticket_uses), Rc::clone(&changed));
                let place = callers.enter(Host::of(&stream.remote()));
                tokio::task::spawn_local(async move {
                    serve(&context, stream, &ticket_uses, place).await;
                    changed.notify_one();
                });
            }
            () = changed.notified() => {}
            () = tokio::time::sleep(expiry) => {}
        }
    }
}

/// Hears what a caller wants, and does it if it may. Until then it has but a caller's place: a message that has come by half is 64 KiB
/// at most, so all of theirs is some 16 MiB.
async fn serve(context: &Rc<Context>, stream: ControlStream, ticket_uses: &RefCell<TicketUses>, place: CallerPlace) {
    let (key, address) = (stream.key(), stream.remote());
    let Some(Some((mut control, writing, active, _speaking))) = place.hear(admit(context, stream, ticket_uses)).await
    else {
        return;
    };
    let peer = {
        let mut ticket_uses = ticket_uses.borrow_mut();
        let next = PeerId(ticket_uses.callers);
        let known =
            if ticket_uses.invited.contains(&key) { *ticket_uses.numbers.entry(key).or_insert(next) } else { next };
        ticket_uses.callers += u32::from(known == next);
        known
    };
    control.peer = peer;
    control.replaced = take_over(ticket_uses, key).await;
    context.tell(Event::PeerConnected { peer, key, address }).await;
    let end = session(context, control).await;
    if end.is_ok() {
        // First, so that who hears of it finds the ticket used.
        let mut ticket_uses = ticket_uses.borrow_mut();
        if ticket_uses.invited.contains(&key) {
            ticket_uses.done.insert(key);
        }
    }
    // And have the last words arrived: who hears how it ended may end this process at once. One that was lost hears none, and may be here
    // again by then, as the same peer.
    let unheard = if matches!(end, Err(End::Lost(_) | End::Busy(_))) {
        Some(writing)
    } else {
        writing.finish().await;
        None
    };
    match end {
        Ok(finished) => context.tell(finished).await,
        Err(End::Failed(TransferError::Cancelled)) => {}
        // A guest is the same peer as before, and goes on.
        Err(End::Replaced) if ticket_uses.borrow().invited.contains(&key) => {}
        Err(End::Replaced) => context.tell(Event::Replaced { peer }).await,
        Err(End::Failed(error)) => context.tell(Event::Failed { peer: Some(peer), error }).await,
        // It may come again.
        Err(End::Lost(why) | End::Busy(why)) => context.tell(Event::Waiting { peer, what: Waiting::Peer(why) }).await,
    }
    if let Some(writing) = unheard {
        writing.finish().await;
    }
    drop(active);
}

/// Hears what a caller wants; `None` where it says nothing that makes sense, or may not.
async fn admit<'a>(
    context: &'a Rc<Context>,
    stream: ControlStream,
    ticket_uses: &'a RefCell<TicketUses>,
) -> Option<(ControlConnection, WriteTask, Active<'a>, Speaking<'a>)> {
    let (key, address) = (stream.key(), stream.remote());
    let ((mut control, exported), writing) = ControlConnection::open(PeerId(0), stream).ok()?;
    let opened = control.reader.next_within(PRELIMINARIES_MAX).await.ok()?;
    let Message::Open { sends, chunk_len_max, proof } = opened else { return None };
    let admitted = {
        let mut ticket_uses = ticket_uses.borrow_mut();
        if sends == context.work.sends() {
            Err(Rejection::SameRole)
        } else {
            ticket_uses.admit(key, &exported, proof.as_ref()).and_then(|()| ticket_uses.take_in())
        }
    };
    if let Err(reason) = admitted {
        let code = if reason == Rejection::Busy { code::BUSY } else { code::REJECTED };
        control.writer.send(Message::End { code, reason: rejection_text(reason).to_owned() }).await;
        drop(control);
        writing.finish().await;
        context.tell(Event::Rejected { address, key, reason }).await;
        return None;
    }
    control.chunk_len_max = chunk_len_max;
    Some((control, writing, Active::begin(ticket_uses), Speaking::begin(context)))
}

/// A guest does one thing, over one connection: the one before is of a process that is gone, and might be missed only when it has
/// been silent for long.
async fn take_over(ticket_uses: &RefCell<TicketUses>, key: NodeId) -> Replaced {
    let (stop, stopped) = watch::channel(false);
    let before = {
        let mut ticket_uses = ticket_uses.borrow_mut();
        if ticket_uses.invited.contains(&key) { ticket_uses.sessions.insert(key, stop) } else { None }
    };
    if let Some(before) = before {
        before.send_replace(true);
        let _ = tokio::time::timeout(HAND_OVER_MAX, before.closed()).await;
    }
    Replaced(stopped)
}

/// What a caller is told who is turned away.
fn rejection_text(reason: Rejection) -> &'static str {
    match reason {
        Rejection::NotAllowed => "your key is not among those allowed here, and you showed no ticket: ask for one",
        Rejection::WrongTicket => "this is not the ticket for here: ask for a new one",
        Rejection::Expired => "the ticket expired: ask for a new one",
        Rejection::Used => "the ticket was used already: ask for a new one",
        Rejection::SameRole => "you want to do what this end does: one sends and one receives",
        Rejection::Busy => "too many transfers at once: try again later",
    }
}
