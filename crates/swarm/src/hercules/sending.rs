//! One session of a sender: the offer, hashes as they are made, and what the receiver says.

use std::rc::Rc;
use std::sync::Arc;

use anabranch_content::hash::sha256;
use anabranch_hercules::tree;
use anabranch_hercules::wire::manifest::{self, Entry};
use anabranch_hercules::wire::message::{BODY_LEN_MAX, HASHES_MAX, Message, Offer};
use anabranch_hercules::wire::receipt::Receipt;
use anabranch_hercules::wire::seal::Secret;
use anabranch_hercules::{ChunkSet, Misbehaviour};
use tokio::sync::mpsc;

use super::content::Source;
use super::engine::{Command, Id, News};
use super::events::{Event, TransferError};
use super::flow::{Flow, ended, last_words};
use super::messages::MessageWriter;
use super::network::{CandidatePath, chunk_len, shorter_chunk_len};
use super::paths::Paths;
use super::reader::{Hashes, Hashing};
use super::session::{Context, ControlConnection, End, PRELIMINARIES_MAX, is_cancelled};

/// Names that an offer is shown by.
pub(super) const NAMES_SHOWN: usize = 8;

pub(super) async fn session(
    context: &Rc<Context>,
    control: ControlConnection,
    source: Arc<dyn Source>,
    hashing: Hashing,
) -> Result<Event, End> {
    let writer = control.writer.clone();
    let transfer = fastrand::u32(..);
    let done = Session::run(context, control, source, &hashing.hashes, transfer).await;
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
    ) -> Result<Event, End> {
        let manifest = source.manifest();
        let offer = Offer {
            transfer,
            chunk_len: chunk_len_for(context, &control),
            content_len: source.content_len(),
            manifest_len: manifest.len() as u64,
            manifest_hash: sha256(&manifest),
        };
        offer.check().map_err(|error| TransferError::Misbehaviour(Misbehaviour::Wire(error)))?;
        let gone = || End::Lost("the connection was lost".to_owned());
        if !control.writer.send(Message::Offer(offer)).await {
            return Err(gone());
        }
        let names = offer_entries(&control, &manifest).await?;
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
        if let Some((first, _)) = &control.candidates {
            flow.paths.begin(first);
        }
        let pump = tokio::task::spawn_local(pump(control.writer.clone(), Arc::clone(hashes)));
        let _pumps_while_here = AbortOnDrop(pump);
        let mut known = hashes.known();
        // It may have failed for another receiver before.
        known.mark_changed();
        let mut cancelled = context.cancelled.clone();
        let mut look_at = tokio::time::Instant::now() + flow.look_after();
        loop {
            tokio::select! {
                message = control.reader.next() => match message? {
                    Message::Path(index) if !is_caller => {
                        let group = context.is_fair.then_some(0);
                        context.engine.tell(Command::AddPath { id, index, route: None, group });
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
                () = tokio::time::sleep_until(look_at), if is_caller => {
                    flow.paths.look(&context.network, &control.addresses).await;
                    look_at = tokio::time::Instant::now() + flow.look_after();
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

/// The longest chunk that all paths take.
fn chunk_len_for(context: &Context, control: &ControlConnection) -> u16 {
    let own = match &control.candidates {
        Some((first, _)) => first.iter().map(CandidatePath::chunk_len).min(),
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
    let path = control.candidates.as_ref().and_then(|(first, _)| first.first()).map(|way| &way.route.path);
    match path.or(control.path.as_ref()).and_then(|path| shorter_chunk_len(path, chunk_len)) {
        Some(shorter) => {
            context.shorten(control.key, shorter);
            End::Lost(format!("packets with {chunk_len} bytes of content do not come through, shorter ones are tried"))
        }
        None => TransferError::Unreachable("no path carries packets of any length".to_owned()).into(),
    }
}

/// Says all entries, as many to a message as fit. The first names.
async fn offer_entries(control: &ControlConnection, manifest: &[u8]) -> Result<Vec<String>, End> {
    let own_fault = |error| End::Failed(TransferError::Misbehaviour(Misbehaviour::Wire(error)));
    let (mut names, mut rest, mut start) = (Vec::new(), manifest, 0);
    let mut at = 0;
    while !rest.is_empty() {
        let (entry, len) = manifest::parse_entry(rest).map_err(own_fault)?;
        if at + len - start > BODY_LEN_MAX {
            control.writer.send(Message::Entries(manifest[start..at].to_vec())).await;
            start = at;
        }
        show_name(&mut names, &entry);
        (at, rest) = (at + len, &rest[len..]);
    }
    if start < manifest.len() {
        control.writer.send(Message::Entries(manifest[start..].to_vec())).await;
    }
    Ok(names)
}

/// The first names of the top.
pub(super) fn show_name(names: &mut Vec<String>, entry: &Entry) {
    if names.len() < NAMES_SHOWN && !entry.name.contains(&b'/') {
        names.push(String::from_utf8_lossy(&entry.name).into_owned());
    }
}

/// Hears what the receiver has, until it is ready; in bytes.
async fn read_kept(context: &Context, control: &mut ControlConnection, id: Id, offer: &Offer) -> Result<u64, End> {
    let spans = tree::span_count(offer.content_len);
    let mut kept = ChunkSet::new(spans);
    let mut cancelled = context.cancelled.clone();
    loop {
        let message = tokio::select! {
            message = control.reader.next() => message?,
            () = control.replaced.wait() => return Err(End::Replaced),
            () = is_cancelled(&mut cancelled) => return Err(TransferError::Cancelled.into()),
        };
        match &message {
            Message::Kept(ranges) => ranges.iter().for_each(|range| _ = kept.insert_range(range.clone())),
            Message::Ready => {
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
pub(super) fn preliminaries_max(bytes: u64) -> std::time::Duration {
    PRELIMINARIES_MAX + std::time::Duration::from_secs(bytes / 10_000)
}
