//! One session of a receiver: what is offered, a place for it, and the receipt.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use anabranch_content::hash::sha256;
use anabranch_hercules::tree;
use anabranch_hercules::wire::WireError;
use anabranch_hercules::wire::manifest::{Entry, Layout, parse_entries};
use anabranch_hercules::wire::message::{Message, Offer};
use anabranch_hercules::wire::receipt::{Receipt, SIGNATURE_LEN};
use anabranch_hercules::wire::seal::Secret;
use anabranch_hercules::{ChunkSet, Misbehaviour};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::connection::{ControlConnection, End, PRELIMINARIES_MAX};
use super::content::{Destination, DestinationError, Destinations, Offered, Refusal};
use super::context::{Context, HAND_OVER_MAX, Receiving, Slot, is_cancelled};
use super::disk::ROOM_EVERY;
use super::engine::{Command, Id, News};
use super::events::{Event, Limits, TransferError};
use super::flow::{Flow, ended, last_words};
use super::messages::MessageReader;
use super::network::CandidatePaths;
use super::paths::{NewPath, Paths};
use super::search::Search;
use super::sending::{preliminaries_max, show_name};

/// What a sender is asked to keep to where it was asked for less before: as good as no limit.
const NO_LIMIT: u64 = 1 << 50;
/// How long it is waited for a sender's session of before to fall silent: longer than the network thread takes to say so.
const SILENT_MAX: Duration = Duration::from_secs(6);

pub(super) async fn session(
    context: &Rc<Context>,
    mut control: ControlConnection,
    destinations: Arc<dyn Destinations>,
) -> Result<Event, End> {
    let writer = control.writer.clone();
    let heard = tokio::select! {
        heard = read_offer(&mut control.reader) => heard,
        () = control.replaced.wait() => Err(End::Replaced),
    };
    let done = match heard {
        Ok((offer, entries)) => {
            let slot = (control.key, offer.manifest_hash);
            let mut place = Place { slot, turn: take_over(context, slot).await, destination: None };
            let done = receive(context, &mut control, offer, entries, destinations, &mut place).await;
            context.engine.tell(Command::Remove { id: Id { sends: false, transfer: offer.transfer } });
            // Where all is cancelled nobody comes for the place, and the other end is to be told at once, however slow the disk is.
            if !matches!(done, Err(End::Failed(TransferError::Cancelled))) {
                let_go(context, place.slot, place.destination).await;
            }
            drop(place.turn);
            let mut receiving = context.receiving.borrow_mut();
            // Unless another has taken its place, which has a sender of its own.
            if receiving.get(&slot).is_some_and(|own| own.stop.receiver_count() == 0) {
                receiving.remove(&slot);
            }
            done
        }
        Err(end) => Err(end),
    };
    if let Err(end) = &done
        && let Some(words) = last_words(end)
    {
        writer.send(words).await;
    }
    done
}

/// What a session has of its own.
struct Place {
    slot: Slot,
    turn: Turn,
    destination: Option<Weak<dyn Destination>>,
}

/// For as long as a session receives something: whether another has taken its place.
struct Turn {
    stopped: watch::Receiver<bool>,
    is_silent: Rc<Cell<bool>>,
}

/// Stops a session that receives the same, and waits until it has let go.
async fn take_over(context: &Context, slot: Slot) -> Turn {
    let (stop, stopped) = watch::channel(false);
    let turn = Turn { stopped, is_silent: Rc::default() };
    let own = Receiving { stop, is_silent: Rc::clone(&turn.is_silent) };
    let before = context.receiving.borrow_mut().insert(slot, own);
    if let Some(before) = before {
        end(&before.stop).await;
    }
    turn
}

async fn end(stop: &watch::Sender<bool>) {
    stop.send_replace(true);
    let _ = tokio::time::timeout(HAND_OVER_MAX, stop.closed()).await;
}

/// Whether the same sender is sending something else.
fn has_others(context: &Context, (key, manifest): Slot) -> bool {
    context.receiving.borrow().keys().any(|(other, what)| *other == key && *what != manifest)
}

/// Ends what the same sender sent and is silent about, as one does that was ended and begins again with a source that changed: it
/// would hold the place until its connection is missed. Whether there was any.
async fn outlive_silent(context: &Context, (key, manifest): Slot) -> bool {
    let until = tokio::time::Instant::now() + SILENT_MAX;
    loop {
        let silent = {
            let receiving = context.receiving.borrow();
            let others = receiving.iter().filter(|((other, what), _)| *other == key && *what != manifest);
            let silent = others.filter(|(_, own)| own.is_silent.get());
            silent.map(|(_, own)| own.stop.clone()).collect::<Vec<_>>()
        };
        for stop in &silent {
            end(stop).await;
        }
        if !silent.is_empty() || tokio::time::Instant::now() >= until {
            return !silent.is_empty();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until the disk threads have let go of a destination. One of which they do not is remembered.
async fn let_go(context: &Context, slot: Slot, place: Option<Weak<dyn Destination>>) {
    let Some(place) = place else { return };
    {
        let mut lingering = context.lingering.borrow_mut();
        lingering.retain(|_, place| place.strong_count() > 0);
        lingering.insert(slot, Weak::clone(&place));
    }
    let gone = async {
        while place.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let _ = tokio::time::timeout(HAND_OVER_MAX, gone).await;
}

/// Why something is not received now: a refusal, unless the disk is still busy with what came of it over another connection. Whoever comes
/// again at once would find the same, so that is waited for.
async fn refused(context: &Context, slot: Slot, refusal: Refusal) -> End {
    let is_held = || context.lingering.borrow().get(&slot).is_some_and(|place| place.strong_count() > 0);
    if !is_held() {
        return TransferError::Refused(refusal.0).into();
    }
    let gone = async {
        while is_held() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let _ = tokio::time::timeout(HAND_OVER_MAX, gone).await;
    End::Lost("the disk is busy with what came before".to_owned())
}

fn misbehaved(error: Misbehaviour) -> End {
    End::Failed(TransferError::Misbehaviour(error))
}

/// The offer and its manifest, whole and checked.
async fn read_offer(reader: &mut MessageReader) -> Result<(Offer, Vec<Entry>), End> {
    let offer = match reader.next_within(PRELIMINARIES_MAX).await? {
        Message::Offer(offer) => offer,
        Message::End { code, reason } => return Err(ended(code, reason)),
        _ => return Err(misbehaved(Misbehaviour::OutOfTurn("something before its offer"))),
    };
    let wire = |error: WireError| misbehaved(Misbehaviour::Wire(error));
    let rest = async {
        let (mut manifest, mut entries, mut layout) = (Vec::new(), Vec::new(), Layout::default());
        while (manifest.len() as u64) < offer.manifest_len {
            match reader.next().await? {
                Message::Entries(bytes) => {
                    if bytes.is_empty() || (manifest.len() + bytes.len()) as u64 > offer.manifest_len {
                        return Err(wire(WireError::Invalid("manifest length")));
                    }
                    for entry in parse_entries(&bytes).map_err(wire)? {
                        layout.push(&entry).map_err(wire)?;
                        entries.push(entry);
                    }
                    manifest.extend_from_slice(&bytes);
                }
                Message::End { code, reason } => return Err(ended(code, reason)),
                _ => return Err(misbehaved(Misbehaviour::OutOfTurn("something amid its manifest"))),
            }
        }
        if sha256(&manifest) != offer.manifest_hash {
            return Err(wire(WireError::Invalid("manifest hash")));
        }
        if layout.content_len() != offer.content_len {
            return Err(wire(WireError::Invalid("content length")));
        }
        Ok(entries)
    };
    let late = || End::Lost("the other end did not say in time what it sends".to_owned());
    let entries = tokio::time::timeout(preliminaries_max(offer.manifest_len), rest).await;
    Ok((offer, entries.unwrap_or_else(|_| Err(late()))?))
}

async fn receive(
    context: &Rc<Context>,
    control: &mut ControlConnection,
    offer: Offer,
    entries: Vec<Entry>,
    destinations: Arc<dyn Destinations>,
    place: &mut Place,
) -> Result<Event, End> {
    let (mut names, count) = (Vec::new(), entries.len() as u32);
    entries.iter().for_each(|entry| show_name(&mut names, entry));
    let offered = Offered { key: control.key, address: control.address, offer, entries };
    let again = has_others(context, place.slot).then(|| offered.clone());
    let mut opened = open(&destinations, offered).await?;
    if let (Err(_), Some(offered)) = (&opened, again)
        && outlive_silent(context, place.slot).await
    {
        opened = open(&destinations, offered).await?;
    }
    let (destination, claimed) = match opened {
        Ok(opened) => opened,
        Err(refusal) => return Err(refused(context, place.slot, refusal).await),
    };
    place.destination = Some(Arc::downgrade(&destination));
    let Turn { stopped, is_silent } = &mut place.turn;
    let kept_bytes = tree::bytes_of(offer.content_len, &claimed);
    let (peer, content_len) = (control.peer, offer.content_len);
    context.tell(Event::Offered { peer, names, entries: count, content_len, kept_bytes }).await;
    let (news_in, mut news) = mpsc::unbounded_channel();
    let news_of_end = news_in.downgrade();
    let id = Id { sends: false, transfer: offer.transfer };
    let secret = Secret::new(offer.transfer, &control.secret);
    let begin = Command::Receive { offer, secret, claimed, destination: Arc::clone(&destination), news: news_in };
    context.engine.tell(begin);
    let wished = context.network.wished();
    let paths = Paths::new(id, &context.engine, offer.chunk_len, context.is_fair, wished, control.router.clone());
    let mut flow = Flow::new(context, peer, paths, content_len);
    flow.starts_at(kept_bytes);
    let mut cancelled = context.cancelled.clone();
    let mut search = Search::new(flow.paths.is_any_down(), || context.network.to(&control.addresses));
    let is_caller = control.candidates.is_some();
    let mut asked = Asked::new(context);
    let mut ending: Option<Ending> = None;
    loop {
        tokio::select! {
            message = control.reader.next() => match message? {
                Message::End { code, reason } => return Err(ended(code, reason)),
                message => context.engine.tell(Command::Message { id, message }),
            },
            told = news.recv() => {
                let Some(told) = told else { return Err(End::Lost("the transfer stopped".to_owned())) };
                match &told {
                    News::AllPathsDown => is_silent.set(true),
                    News::PathUp { .. } => is_silent.set(false),
                    _ => {}
                }
                match flow.on_news(told).await? {
                    Some(News::Say(message)) => {
                        let is_about_to_begin = message == Message::Ready;
                        control.writer.send(message).await;
                        if is_about_to_begin {
                            asked.begin();
                            say(control, asked.news()).await;
                        }
                        if let (true, Some(CandidatePaths { selected, .. })) = (is_about_to_begin, &control.candidates) {
                            let begun = flow.paths.begin(selected);
                            say(control, begun.iter().flat_map(NewPath::messages)).await;
                        }
                    }
                    Some(News::Complete { root, repeated_bytes }) => {
                        let receipt = receipt(context, control, &offer, count, root);
                        ending = Some(Ending::begin(&destination, receipt, repeated_bytes, news_of_end.clone()));
                    }
                    _ => {}
                }
            }
            finished = Ending::done(&mut ending) => {
                let (receipt, repeated_bytes) = finished?;
                flow.goes_on().await;
                control.writer.send(Message::Receipt(receipt.clone())).await;
                return Ok(Event::Finished { peer, receipt, repeated_bytes, placed: destination.placed() });
            }
            () = tokio::time::sleep_until(flow.first_path_by()), if flow.awaits_first_path() => {
                flow.tell_no_path().await;
            }
            found = search.found(), if is_caller => {
                let added = found.map_or(Vec::new(), |paths| flow.paths.take(paths));
                say(control, added.iter().flat_map(NewPath::messages)).await;
                search.again(flow.paths.is_any_down());
            }
            () = asked.changed() => say(control, asked.news()).await,
            _ = stopped.wait_for(|stopped| *stopped) => return Err(End::Replaced),
            () = control.replaced.wait() => return Err(End::Replaced),
            () = is_cancelled(&mut cancelled) => return Err(TransferError::Cancelled.into()),
        }
    }
}

type Opened = Result<(Arc<dyn Destination>, ChunkSet), Refusal>;

/// A place for what is offered, and what seems to be there of it.
async fn open(destinations: &Arc<dyn Destinations>, offered: Offered) -> Result<Opened, End> {
    let destinations = Arc::clone(destinations);
    let opening = tokio::task::spawn_blocking(move || {
        let destination = destinations.open(offered)?;
        // Whether it is still what the sender has, its hashes will tell.
        let (mut claimed, kept) = (destination.claimed(), destination.kept());
        if claimed.limit() < kept.limit() {
            claimed = kept;
        } else {
            kept.runs(0..kept.limit()).for_each(|run| _ = claimed.insert_range(run));
        }
        Ok((destination, claimed))
    });
    opening.await.map_err(|error| End::Lost(error.to_string()))
}

async fn say(control: &ControlConnection, messages: impl IntoIterator<Item = Message>) {
    for message in messages {
        control.writer.send(message).await;
    }
}

/// What the sender was asked to keep to: of this end's limit, as much as of those that send to it each has.
struct Asked<'a> {
    context: &'a Context,
    limits: watch::Receiver<Limits>,
    ready: watch::Receiver<usize>,
    is_ready: bool,
    rate_bytes: u64,
}

impl<'a> Asked<'a> {
    fn new(context: &'a Context) -> Self {
        let (limits, ready) = (context.limits.clone(), context.receivers_ready.subscribe());
        Self { context, limits, ready, is_ready: false, rate_bytes: NO_LIMIT }
    }

    /// The sender may send.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.is_ready, true) {
            self.context.receivers_ready.send_modify(|ready| *ready += 1);
        }
    }

    /// Waits until it may be another limit.
    async fn changed(&mut self) {
        if !self.is_ready {
            return std::future::pending().await;
        }
        tokio::select! {
            Ok(()) = self.limits.changed() => {}
            Ok(()) = self.ready.changed() => {}
            // Nobody is left to change any.
            else => std::future::pending().await,
        }
    }

    /// What is to be said of it.
    fn news(&mut self) -> Option<Message> {
        let (limit, _) = *self.limits.borrow_and_update();
        let ready = (*self.ready.borrow_and_update()).max(1);
        let now = limit.map_or(NO_LIMIT, |limit| (limit / ready as u64).max(1));
        (std::mem::replace(&mut self.rate_bytes, now) != now).then_some(Message::Limit(now))
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if self.is_ready {
            self.context.receivers_ready.send_modify(|ready| *ready -= 1);
        }
    }
}

/// The end of a receive: names, modes, times, all of it forced to the disk. It may take long, and there may be no room for it.
struct Ending {
    finishing: JoinHandle<Result<(), DestinationError>>,
    receipt: Receipt,
    repeated_bytes: u64,
}

impl Ending {
    fn begin(
        destination: &Arc<dyn Destination>,
        receipt: Receipt,
        repeated_bytes: u64,
        news: mpsc::WeakUnboundedSender<News>,
    ) -> Self {
        let finishing = tokio::task::spawn_local(finish(Arc::clone(destination), receipt.clone(), news));
        Self { finishing, receipt, repeated_bytes }
    }

    /// Once it has come to that: what is to be signed for, and how much came twice.
    async fn done(ending: &mut Option<Self>) -> Result<(Box<Receipt>, u64), End> {
        let Some(Self { finishing, receipt, repeated_bytes }) = ending else { return std::future::pending().await };
        finishing.await.map_err(|error| End::Lost(error.to_string()))?.map_err(TransferError::Destination)?;
        Ok((Box::new(receipt.clone()), *repeated_bytes))
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.finishing.abort();
    }
}

/// Does it until there is room; `news` hears once that there is none.
async fn finish(
    destination: Arc<dyn Destination>,
    receipt: Receipt,
    news: mpsc::WeakUnboundedSender<News>,
) -> Result<(), DestinationError> {
    let mut is_told = false;
    loop {
        let (to, receipt) = (Arc::clone(&destination), receipt.clone());
        let finished = tokio::task::spawn_blocking(move || to.finish(&receipt)).await;
        let panicked = |error| DestinationError::Io { name: "the end of it".into(), source: io::Error::other(error) };
        match finished.unwrap_or_else(|error| Err(panicked(error))) {
            Err(error @ DestinationError::Full(_)) => {
                if let Some(news) = news.upgrade().filter(|_| !std::mem::replace(&mut is_told, true)) {
                    let _ = news.send(News::Room(Some(error.to_string())));
                }
                tokio::time::sleep(ROOM_EVERY).await;
            }
            finished => return finished,
        }
    }
}

fn receipt(context: &Context, control: &ControlConnection, offer: &Offer, entries: u32, root: [u8; 32]) -> Receipt {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let mut receipt = Receipt {
        transfer: offer.transfer,
        root,
        content_len: offer.content_len,
        manifest_hash: offer.manifest_hash,
        entries,
        finished: now,
        sender: *control.key.as_bytes(),
        receiver: *context.identity.node_id().as_bytes(),
        signature: [0; SIGNATURE_LEN],
    };
    receipt.signature = context.identity.sign(&receipt.signed_bytes());
    receipt
}
