//! One session of a sender: the offer, hashes as they are made, and what the receiver says.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anabranch_content::hash::sha256;
use anabranch_hercules::tree;
use anabranch_hercules::wire::manifest::{self, Entry};
use anabranch_hercules::wire::message::{BODY_LEN_MAX, HASHES_MAX, Message, Offer};
use anabranch_hercules::wire::receipt::Receipt;
use anabranch_hercules::wire::seal::Secret;
use anabranch_hercules::{ChunkSet, Misbehaviour};
use tokio::sync::mpsc;

use super::connection::{ControlConnection, End, PRELIMINARIES_MAX};
use super::content::Source;
use super::context::{Context, is_cancelled};
use super::engine::{Command, Id, News};
use super::events::{Event, TransferError, Waiting};
use super::flow::{Flow, ended, last_words};
use super::messages::MessageWriter;
use super::network::{CandidatePath, CandidatePaths, chunk_len, shorter_chunk_len};
use super::paths::{Named, Naming, Paths};
use super::reader::{Hashes, Hashing, Known};
use super::search::Search;

/// Names that an offer is shown by.
pub(super) const NAMES_SHOWN: usize = 8;
/// Chunks may be shorter by this part than a path takes, where others get them as short: what is read for one is in memory for all.
const SHORTER_PART: u16 = 8;
/// How long a receiver may take to say that it is ready, behind the manifest, before somebody is told: its disk may be slow, or the network
/// may be cut, which this end knows for certain once QUIC has waited four times as long.
const READY_TOLD_AFTER: Duration = Duration::from_secs(5);
/// Hashes that are made in so long are said in one message.
const GATHER: Duration = Duration::from_millis(20);
/// The group of a calling receiver's paths of which it does not say what they share: they take together what one would.
const UNTOLD_GROUP: u32 = anabranch_hercules::wire::PATHS_MAX as u32;

pub(super) async fn session(
    context: &Rc<Context>,
    control: ControlConnection,
    source: Arc<dyn Source>,
    hashing: Hashing,
) -> Result<Event, End> {
    let writer = control.writer.clone();
    let transfer = fastrand::u32(..);
    let chunk_len = ChunkLen::take(context, chunk_len_for(context, &control));
    let done = Session::run(context, control, source, &hashing.hashes, transfer, chunk_len.len).await;
    context.engine.tell(Command::Remove { id: Id { sends: true, transfer } });
    if let Err(end) = &done
        && let Some(words) = last_words(end)
    {
        writer.send(words).await;
    }
    done
}

struct Session;

impl Session {
    async fn run(
        context: &Rc<Context>,
        mut control: ControlConnection,
        source: Arc<dyn Source>,
        hashes: &Arc<Hashes>,
        transfer: u32,
        chunk_len: u16,
    ) -> Result<Event, End> {
        let manifest = source.manifest();
        let offer = Offer {
            transfer,
            chunk_len,
            content_len: source.content_len(),
            manifest_len: manifest.len() as u64,
            manifest_hash: sha256(&manifest),
        };
        offer.check().map_err(|error| TransferError::Misbehaviour(Misbehaviour::Wire(error)))?;
        let gone = || End::Lost("the connection was lost".to_owned());
        if !control.writer.send(Message::Offer(offer)).await {
            return Err(gone());
        }
        let mut cancelled = context.cancelled.clone();
        let names = tokio::select! {
            names = offer_entries(&control.writer, &manifest) => names?,
            () = control.replaced.wait() => return Err(End::Replaced),
            () = is_cancelled(&mut cancelled) => return Err(TransferError::Cancelled.into()),
        };
        drop(manifest);
        // What it has already, and that it is ready; it may look through its disk first.
        let (news_in, mut news) = mpsc::unbounded_channel();
        let id = Id { sends: true, transfer };
        let secret = Secret::new(transfer, &control.secret);
        context.engine.tell(Command::Send { offer, secret, news: news_in });
        let kept_bytes = read_kept(context, &mut control, id, &offer).await?;
        let (content_len, entries) = (offer.content_len, source.entries());
        context.tell(Event::Offered { peer: control.peer, names, entries, content_len, kept_bytes }).await;
        let wished = context.network.wished();
        let paths = Paths::new(id, &context.engine, offer.chunk_len, context.is_fair, wished, control.router.clone());
        let mut flow = Flow::new(context, control.peer, paths, content_len);
        flow.starts_at(kept_bytes);
        let is_caller = control.candidates.is_some();
        if let Some(CandidatePaths { selected, .. }) = &control.candidates {
            flow.paths.begin(selected);
        }
        let pump = tokio::task::spawn_local(pump(control.writer.clone(), Arc::clone(hashes)));
        let _pumps_while_here = AbortOnDrop(pump);
        let mut known = hashes.known();
        // It may have failed for another receiver before.
        known.mark_changed();
        let mut search = Search::new(flow.paths.is_any_down(), || context.network.to(&control.addresses));
        let mut named = Named::default();
        loop {
            tokio::select! {
                message = control.reader.next() => match message? {
                    Message::Path(index) if !is_caller => {
                        let too_many = TransferError::Misbehaviour(Misbehaviour::OutOfTurn("its paths, time and again"));
                        let (path, naming) = named.on_name(index).ok_or(too_many)?;
                        on_named(context, id, path, naming);
                    }
                    Message::Limit(rate_bytes) => context.engine.tell(Command::Limit { transfer, rate_bytes }),
                    Message::End { code, reason } => return Err(ended(code, reason)),
                    // The last word: the connection may be closed right behind it.
                    Message::Receipt(receipt) => {
                        let root = hashes.known().borrow().root;
                        check_receipt(context, &control, &offer, entries, root, &receipt)?;
                        let sent = flow.measured.sent_packets * u64::from(offer.chunk_len);
                        let repeated_bytes = sent.saturating_sub(content_len - kept_bytes);
                        return Ok(Event::Finished { peer: control.peer, receipt, repeated_bytes, placed: None });
                    }
                    message => context.engine.tell(Command::Message { id, message }),
                },
                told = news.recv() => {
                    let Some(told) = told else { return Err(gone()) };
                    if let Some(News::Narrow) = flow.on_news(told).await? {
                        return Err(try_shorter(context, &control, offer.chunk_len));
                    }
                }
                () = tokio::time::sleep_until(flow.first_path_by()), if flow.awaits_first_path() => {
                    flow.tell_no_path().await;
                }
                found = search.found(), if is_caller => {
                    found.into_iter().for_each(|paths| _ = flow.paths.take(paths));
                    search.again(flow.paths.is_any_down());
                }
                Ok(()) = known.changed() => {
                    let failed = known.borrow_and_update().failed.clone();
                    if let Some(error) = failed {
                        return Err(TransferError::Source(error.for_another()).into());
                    }
                }
                () = control.replaced.wait() => return Err(End::Replaced),
                () = is_cancelled(&mut cancelled) => return Err(TransferError::Cancelled.into()),
            }
        }
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A calling receiver named a path.
fn on_named(context: &Context, id: Id, path: u8, naming: Naming) {
    match naming {
        Naming::New => {
            let group = context.is_fair.then_some(UNTOLD_GROUP);
            context.engine.tell(Command::AddPath { id, index: path, route: None, group });
        }
        Naming::Alone if context.is_fair => context.engine.tell(Command::Separate { id, index: path }),
        Naming::With(other) if context.is_fair => context.engine.tell(Command::Couple { id, one: path, other }),
        Naming::Alone | Naming::With(_) => {}
    }
}

/// The length of a session's chunks, for as long as it lasts.
struct ChunkLen<'a> {
    context: &'a Context,
    len: u16,
}

impl<'a> ChunkLen<'a> {
    /// At most `longest`.
    fn take(context: &'a Context, longest: u16) -> Self {
        let mut lens = context.chunk_lens.borrow_mut();
        let len = alike(longest, lens.keys().copied());
        *lens.entry(len).or_default() += 1;
        Self { context, len }
    }
}

impl Drop for ChunkLen<'_> {
    fn drop(&mut self) {
        let mut lens = self.context.chunk_lens.borrow_mut();
        if let Some(sessions) = lens.get_mut(&self.len) {
            *sessions -= 1;
        }
        lens.retain(|_, sessions| *sessions > 0);
    }
}

/// Of the lengths that others get, the longest that is not much shorter than `longest`; or that, where there is none.
fn alike(longest: u16, others: impl Iterator<Item = u16>) -> u16 {
    let shortest = longest - longest / SHORTER_PART;
    others.filter(|len| (shortest..=longest).contains(len)).max().unwrap_or(longest)
}

/// The longest chunk that all paths take.
fn chunk_len_for(context: &Context, control: &ControlConnection) -> u16 {
    let own = match &control.candidates {
        Some(CandidatePaths { selected, .. }) => selected.iter().map(CandidatePath::chunk_len).min(),
        None => control.path.as_ref().map(|path| chunk_len(path, context.network.packet_len(path))),
    };
    let own = own.unwrap_or(anabranch_hercules::wire::CHUNK_LEN_MIN);
    let own = own.min(context.narrow.borrow().get(&control.key).copied().unwrap_or(u16::MAX));
    match control.chunk_len_max {
        0 => own,
        max => own.min(max.max(anabranch_hercules::wire::CHUNK_LEN_MIN)),
    }
}

/// Chunks as long as these do not come through by any path: the next connection has shorter ones.
fn try_shorter(context: &Context, control: &ControlConnection, chunk_len: u16) -> End {
    let path = control.candidates.as_ref().and_then(|paths| paths.selected.first()).map(|first| &first.route.path);
    match path.or(control.path.as_ref()).and_then(|path| shorter_chunk_len(path, chunk_len)) {
        Some(shorter) => {
            context.shorten(control.key, shorter);
            End::Lost(format!("packets with {chunk_len} bytes of content do not come through, shorter ones are tried"))
        }
        None => TransferError::Unreachable("no path carries packets of any length".to_owned()).into(),
    }
}

/// Says all entries, as many to a message as fit. The first names.
async fn offer_entries(writer: &MessageWriter, manifest: &[u8]) -> Result<Vec<String>, End> {
    let own_fault = |error| End::Failed(TransferError::Misbehaviour(Misbehaviour::Wire(error)));
    let (mut names, mut rest, mut start) = (Vec::new(), manifest, 0);
    let mut at = 0;
    while !rest.is_empty() {
        let (entry, len) = manifest::parse_entry(rest).map_err(own_fault)?;
        if at + len - start > BODY_LEN_MAX {
            writer.send(Message::Entries(manifest[start..at].to_vec())).await;
            start = at;
        }
        show_name(&mut names, &entry);
        (at, rest) = (at + len, &rest[len..]);
    }
    if start < manifest.len() {
        writer.send(Message::Entries(manifest[start..].to_vec())).await;
    }
    Ok(names)
}

/// The first names of the top.
pub(super) fn show_name(names: &mut Vec<String>, entry: &Entry) {
    if names.len() < NAMES_SHOWN && !entry.name.contains(&b'/') {
        names.push(String::from_utf8_lossy(&entry.name).into_owned());
    }
}

/// Hears what the receiver has, until it is ready; in bytes. It may look through its disk first, so that nothing ends by how long it takes,
/// but it is told that this end waits.
async fn read_kept(context: &Context, control: &mut ControlConnection, id: Id, offer: &Offer) -> Result<u64, End> {
    let spans = tree::span_count(offer.content_len);
    let (mut kept, mut kept_to) = (ChunkSet::new(spans), 0);
    let mut cancelled = context.cancelled.clone();
    let peer = control.peer;
    let manifest_max = preliminaries_max(offer.manifest_len) - PRELIMINARIES_MAX;
    let (told_at, mut is_told) = (tokio::time::Instant::now() + READY_TOLD_AFTER + manifest_max, false);
    loop {
        let message = tokio::select! {
            message = control.reader.next() => message?,
            () = tokio::time::sleep_until(told_at), if !is_told => {
                is_told = true;
                context.tell(Event::Waiting { peer, what: Waiting::Ready }).await;
                continue;
            }
            () = control.replaced.wait() => return Err(End::Replaced),
            () = is_cancelled(&mut cancelled) => return Err(TransferError::Cancelled.into()),
        };
        match &message {
            Message::Kept(ranges) => {
                kept_to = follow(kept_to, ranges).map_err(TransferError::Misbehaviour)?;
                ranges.iter().for_each(|range| _ = kept.insert_range(range.clone()));
            }
            Message::Ready => {
                if is_told {
                    context.tell(Event::GoesOn { peer }).await;
                }
                context.engine.tell(Command::Message { id, message });
                return Ok(tree::bytes_of(offer.content_len, &kept));
            }
            Message::End { code, reason } => return Err(ended(*code, reason.clone())),
            _ => {
                return Err(
                    TransferError::Misbehaviour(Misbehaviour::OutOfTurn("a message before it was ready")).into()
                );
            }
        }
        context.engine.tell(Command::Message { id, message });
    }
}

/// What a receiver kept it says once, in order: so there is an end to it. Up to where that is now.
fn follow(kept_to: u64, ranges: &[Range<u64>]) -> Result<u64, Misbehaviour> {
    let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
        return Err(Misbehaviour::OutOfTurn("that it kept nothing"));
    };
    if first.start < kept_to { Err(Misbehaviour::OutOfTurn("what it kept, once more")) } else { Ok(last.end) }
}

/// Says hashes as they are made, and the root.
async fn pump(writer: MessageWriter, hashes: Arc<Hashes>) {
    let mut known = hashes.known();
    let mut said = 0;
    loop {
        let now = known.borrow_and_update().clone();
        while said < now.spans {
            let next = hashes.spans(said, HASHES_MAX);
            let (first, count) = (said as u64, next.len());
            if count == 0 || !writer.send(Message::Hashes { first, hashes: next }).await {
                return;
            }
            said += count;
        }
        if let Some(root) = now.root {
            writer.send(Message::Root(root)).await;
            return;
        }
        if known.changed().await.is_err() {
            return;
        }
        let is_last = |known: &Known| known.root.is_some() || known.failed.is_some();
        // Those that are made meanwhile go with it.
        if let Ok(Err(_)) = tokio::time::timeout(GATHER, known.wait_for(is_last)).await {
            return;
        }
    }
}

fn check_receipt(
    context: &Context,
    control: &ControlConnection,
    offer: &Offer,
    entries: u32,
    root: Option<[u8; 32]>,
    receipt: &Receipt,
) -> Result<(), TransferError> {
    let is_of_this = receipt.transfer == offer.transfer
        && receipt.content_len == offer.content_len
        && receipt.manifest_hash == offer.manifest_hash
        && receipt.entries == entries
        && Some(receipt.root) == root
        && receipt.sender == *context.identity.node_id().as_bytes()
        && receipt.receiver == *control.key.as_bytes();
    if is_of_this && receipt.verify() { Ok(()) } else { Err(TransferError::Receipt) }
}

/// How long what is said before content moves may take, of so many bytes: 10 kB/s is as slow as a path may be.
pub(super) fn preliminaries_max(bytes: u64) -> Duration {
    PRELIMINARIES_MAX + Duration::from_secs(bytes / 10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_as_short_as_others_get_them_where_that_is_not_much_shorter() {
        let of = |longest, others: &[u16]| alike(longest, others.iter().copied());
        assert_eq!(of(1400, &[]), 1400);
        assert_eq!((of(1400, &[1225]), of(1400, &[1224])), (1225, 1400));
        assert_eq!((of(1400, &[1300, 1350, 8900]), of(1400, &[1401])), (1350, 1400));
        assert_eq!(of(256, &[256]), 256);
    }

    #[test]
    fn what_was_kept_is_said_once_and_in_order() {
        let said = |kept_to, start: u64, end: u64| follow(kept_to, &[start..start + 1, end - 1..end]);
        assert_eq!((said(0, 0, 9), said(9, 9, 20)), (Ok(9), Ok(20)));
        assert!(said(9, 8, 20).is_err() && follow(9, &[]).is_err());
    }
}
