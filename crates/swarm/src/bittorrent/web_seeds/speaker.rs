//! Speaks as a peer for a web seed: it has all pieces, serves whoever asks, and fetches what it is asked for.
//!
//! Requests that lie side by side become one range. A few connections fetch ranges at once; a block is answered when all of it
//! came. What a full stream does not take is not read from the network either, so that limits on what we receive hold.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use anabranch_bittorrent::extension::{Extension, ExtensionHandshake, ExtensionIds, HANDSHAKE_ID, encode_dont_have};
use anabranch_bittorrent::torrent::UPLOAD_QUEUE_MAX;
use anabranch_bittorrent::web_seed::{Part, Refusal, parts};
use anabranch_bittorrent::wire::{BlockRange, Event, Limits, Message, Receiver, piece_header};
use anabranch_transport::Stream;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;

use super::error::Failure;
use super::http::{Http, Kind, Site};
use crate::bittorrent::greeting::{receive_portion, send_all};

/// Connections to one web seed.
const LANES_MAX: usize = 4;
/// Longest range that is asked for at once: what is on its way cannot be taken back.
const RUN_BYTES_MAX: u64 = 4 << 20;
/// Shortest range that one more connection is used for while others are at work, unless no more can be asked for along with it: a request costs a
/// round trip.
const RUN_BYTES_MIN: u64 = 256 << 10;
/// Silence after which a sign of life is given to our own end.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(100);
/// Files that a web seed may lack before it is of no use.
const LACKING_MAX: usize = 1024;
const ZEROS: [u8; 16 * 1024] = [0; 16 * 1024];

/// What the lanes share.
struct FetchState {
    site: Rc<Site>,
    stream: Stream,
    /// One message at a time.
    writing: Mutex<()>,
    queue: RefCell<VecDeque<BlockRange>>,
    /// There is something in the queue, or a lane came free.
    changed: Notify,
    /// Lanes that fetch.
    busy: Cell<usize>,
    /// Files that the server does not have.
    lacking: RefCell<BTreeSet<usize>>,
    /// Those of them that were not told of yet.
    untold: RefCell<Vec<usize>>,
}

/// Speaks until something fails. `first` is a connection that is open already; of each file that the server lacks `missing` is told.
pub(super) async fn speak(stream: Stream, site: &Rc<Site>, first: Http, missing: &dyn Fn(usize)) -> Failure {
    let desk = Rc::new(FetchState {
        site: Rc::clone(site),
        stream,
        writing: Mutex::default(),
        queue: RefCell::default(),
        changed: Notify::new(),
        busy: Cell::new(0),
        lacking: RefCell::default(),
        untold: RefCell::default(),
    });
    match desk.work(first, missing).await {
        Ok(never) => match never {},
        Err(failure) => failure,
    }
}

impl FetchState {
    async fn work(self: &Rc<Self>, first: Http, missing: &dyn Fn(usize)) -> Result<std::convert::Infallible, Failure> {
        let hello = ExtensionHandshake {
            ids: ExtensionIds::default(),
            client: Some("web seed".to_owned()),
            request_queue_len: Some(UPLOAD_QUEUE_MAX as u32),
            upload_only: Some(true),
            ..ExtensionHandshake::default()
        };
        let mut greeting = Vec::new();
        Message::Extended { id: HANDSHAKE_ID, payload: &hello.encode() }.encode(&mut greeting);
        Message::HaveAll.encode(&mut greeting);
        Message::Unchoke.encode(&mut greeting);
        self.say(&greeting).await?;
        let mut lanes = JoinSet::new();
        let mut first = Some(first);
        for lane in 0..LANES_MAX {
            lanes.spawn_local(Rc::clone(self).serve(lane, first.take()));
        }
        let listening = self.listen();
        let mut listening = std::pin::pin!(listening);
        loop {
            tokio::select! {
                failure = &mut listening => return Err(failure?),
                () = self.changed.notified() => self.untold.take().into_iter().for_each(missing),
                Some(ended) = lanes.join_next() => {
                    let failure = ended.map_err(|error| Failure::Net(error.to_string()))?;
                    // A server may take fewer connections of one host than we would have.
                    let is_too_many = matches!(failure, Failure::Refusal(Refusal::Busy { .. }) | Failure::Cause(_));
                    if lanes.is_empty() || !is_too_many {
                        return Err(failure);
                    }
                    self.changed.notify_waiters();
                }
            }
        }
    }

    /// Hears what is asked for. Ends with the stream.
    async fn listen(&self) -> Result<Failure, Failure> {
        let (mut receiver, limits) = (Receiver::default(), Limits::default());
        loop {
            let portion = match tokio::time::timeout(KEEP_ALIVE_EVERY, receive_portion(&self.stream)).await {
                Ok(portion) => portion.map_err(|error| Failure::Net(error.to_string()))?,
                Err(_) => {
                    let mut sign = Vec::new();
                    Message::KeepAlive.encode(&mut sign);
                    self.say(&sign).await?;
                    continue;
                }
            };
            let mut input = &portion[..];
            let mut answers = Vec::new();
            loop {
                match receiver.next(&mut input, &limits) {
                    Ok(None) => break,
                    Ok(Some(Event::Message(Message::Request(range)))) => self.queue.borrow_mut().push_back(range),
                    Ok(Some(Event::Message(Message::Cancel(range)))) => {
                        let mut queue = self.queue.borrow_mut();
                        if let Some(at) = queue.iter().position(|other| *other == range) {
                            queue.remove(at);
                            // BEP 6: each request has its answer.
                            Message::Reject(range).encode(&mut answers);
                        }
                    }
                    Ok(Some(_)) => {}
                    Err(error) => return Err(Failure::Net(error.to_string())),
                }
            }
            self.say(&answers).await?;
            self.changed.notify_waiters();
        }
    }

    async fn say(&self, message: &[u8]) -> Result<(), Failure> {
        let _one = self.writing.lock().await;
        send_all(&self.stream, message).await.map_err(|error| Failure::Net(error.to_string()))
    }

    /// One connection's work: one range after the other, until something fails.
    async fn serve(self: Rc<Self>, lane: usize, mut kept: Option<Http>) -> Failure {
        loop {
            let mut run = self.next_run().await;
            let asked = run.len();
            self.busy.set(self.busy.get() + 1);
            let fetched = self.fetch(lane, &mut run, &mut kept).await;
            self.busy.set(self.busy.get() - 1);
            let is_progress = run.len() < asked;
            // What it did not bring is the next one's, another lane's while there is one.
            run.into_iter().rev().for_each(|range| self.queue.borrow_mut().push_front(range));
            match fetched {
                // Servers and the network end connections; those that bring something are worth another one.
                Err(Failure::Cause(_)) if is_progress => kept = None,
                Err(failure) => return failure,
                Ok(()) => {}
            }
            self.changed.notify_waiters();
        }
    }

    /// The next requests that lie side by side, once it is worth while to fetch them.
    async fn next_run(&self) -> VecDeque<BlockRange> {
        loop {
            let changed = self.changed.notified();
            if let Some(run) = self.take_run() {
                return run;
            }
            changed.await;
        }
    }

    fn take_run(&self) -> Option<VecDeque<BlockRange>> {
        let mut queue = self.queue.borrow_mut();
        let first = *queue.front()?;
        let (mut count, mut end) = (1, self.offset(&first) + u64::from(first.len));
        let begin = self.offset(&first);
        // So that at the end no lane has much before it while others have nothing.
        let queued: u64 = queue.iter().map(|range| u64::from(range.len)).sum();
        let longest = (queued / LANES_MAX as u64).clamp(RUN_BYTES_MIN, RUN_BYTES_MAX);
        let is_of_pieces = matches!(self.site.kind, Kind::Pieces(_));
        while let Some(next) = queue.get(count)
            && self.offset(next) == end
            && (!is_of_pieces || next.piece == first.piece)
            && end - begin < longest
        {
            end += u64::from(next.len);
            count += 1;
        }
        let may_grow = count == queue.len() && end - begin < RUN_BYTES_MIN && !is_of_pieces;
        if may_grow && self.busy.get() > 0 {
            return None;
        }
        Some(queue.drain(..count).collect())
    }

    fn offset(&self, range: &BlockRange) -> u64 {
        self.site.info.geometry.piece_offset(range.piece) + u64::from(range.begin)
    }

    /// Fetches the blocks of a run, answers each, and takes it from the run.
    async fn fetch(&self, lane: usize, run: &mut VecDeque<BlockRange>, kept: &mut Option<Http>) -> Result<(), Failure> {
        let (Some(first), Some(last)) = (run.front(), run.back()) else { return Ok(()) };
        let whole = self.offset(first)..self.offset(last) + u64::from(last.len);
        let mut block = Vec::new();
        if let Kind::Pieces(hash) = &self.site.kind {
            let part = BlockRange { len: (whole.end - whole.start) as u32, ..*first };
            let mut body = self.site.get_part(hash, part, lane, kept).await?;
            while let Some(bytes) = body.next().await? {
                self.take_in(&bytes, &mut block, run).await?;
            }
            return Ok(());
        }
        for part in parts(&self.site.info, whole) {
            match part {
                Part::Pad(mut left) => {
                    while left > 0 {
                        let zeros = &ZEROS[..left.min(ZEROS.len() as u64) as usize];
                        left -= zeros.len() as u64;
                        self.take_in(zeros, &mut block, run).await?;
                    }
                }
                Part::File { index, range } => {
                    if self.lacking.borrow().contains(&index) {
                        return self.reject(run).await;
                    }
                    let mut body = match self.site.get(index, &range, lane, kept).await {
                        Err(Failure::Refusal(refusal @ Refusal::Missing(_))) => {
                            return self.lack(index, refusal, run).await;
                        }
                        body => body?,
                    };
                    while let Some(bytes) = body.next().await? {
                        self.take_in(&bytes, &mut block, run).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Bytes of the run came: whole blocks are answered.
    async fn take_in(
        &self,
        mut bytes: &[u8],
        block: &mut Vec<u8>,
        run: &mut VecDeque<BlockRange>,
    ) -> Result<(), Failure> {
        while let (false, Some(range)) = (bytes.is_empty(), run.front().copied()) {
            if block.is_empty() {
                block.extend_from_slice(&piece_header(range.piece, range.begin, range.len));
            }
            let whole = piece_header(range.piece, range.begin, range.len).len() + range.len as usize;
            let (part, rest) = bytes.split_at(bytes.len().min(whole - block.len()));
            block.extend_from_slice(part);
            bytes = rest;
            if block.len() == whole {
                self.say(block).await?;
                block.clear();
                run.pop_front();
            }
        }
        Ok(())
    }

    /// The server does not have a file: nothing of it is asked for again.
    async fn lack(&self, file: usize, refusal: Refusal, run: &mut VecDeque<BlockRange>) -> Result<(), Failure> {
        let is_new = self.lacking.borrow_mut().insert(file);
        let has_others = {
            let lacking = self.lacking.borrow();
            let mut files = self.site.info.regular_files().filter(|(_, file)| file.length > 0);
            lacking.len() <= LACKING_MAX && files.any(|(other, _)| !lacking.contains(&other))
        };
        if !has_others {
            return Err(refusal.into());
        }
        if is_new {
            self.untold.borrow_mut().push(file);
            let mut words = Vec::new();
            for piece in self.site.info.pieces_of_file(file) {
                let (id, payload) = (Extension::DontHave.our_id(), encode_dont_have(piece));
                Message::Extended { id, payload: &payload }.encode(&mut words);
            }
            self.say(&words).await?;
        }
        self.reject(run).await
    }

    /// What is left of a run is not answered.
    async fn reject(&self, run: &mut VecDeque<BlockRange>) -> Result<(), Failure> {
        let mut words = Vec::new();
        run.drain(..).for_each(|range| Message::Reject(range).encode(&mut words));
        self.say(&words).await
    }
}
