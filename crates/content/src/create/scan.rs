//! Reads a whole content and hashes it, on every core, with every lane full.
//!
//! A thread takes a group of pieces and reads them in stripes: a little of each, then a little more of each. So all lanes
//! are busy whatever the piece length, a group's stripes stay in the core's own cache, and memory is [`GROUP_BYTES`] a
//! thread. The next stripes are announced to the kernel, which on a disk reads them while these are hashed. Pieces that are holes of
//! a file are not read, and hashed once.
//!
//! What is not in the page cache does not come into it, where the file system knows direct reads. There a group is read piece after
//! piece, as a disk is fastest, and hashed when all of it is in memory, by a thread more than there are cores, as one waits for the
//! disk while the others hash. Which way a group of pieces is read is decided by its first one.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crate::geometry::BLOCK_LEN;
use crate::hash::{Sha1, sha1_update_many, sha256_many};
use crate::info::{Sha1Digest, Sha256Digest};
use crate::merkle::{self, Shape};
use crate::page_cache::cached_bytes;
use crate::storage::direct::{Alignment, is_refusal};
use crate::storage::holes::is_hole;
use crate::storage::{BUFFER_ALIGN, Buffer, BufferPool};

/// Buffer of one thread: half of a common second-level cache, so that hashing reads what reading just wrote from there.
const GROUP_BYTES: usize = 1024 * 1024;
/// Bytes of each piece in a round: four blocks, and few enough for a group of 16 lanes.
const STRIPE_BYTES: usize = 64 * 1024;
/// Buffer of one thread for direct reads: the pieces that are read one after the other and then hashed side by side. Of longer pieces
/// two are, half of this each in a round.
const DIRECT_GROUP_BYTES: usize = 8 * 1024 * 1024;
/// Bytes of a direct read: a disk takes as long for shorter ones, and with longer ones there is nothing under way between two.
const DIRECT_READ_BYTES: usize = 512 * 1024;
/// Shorter pieces are left to the kernel, which reads several at once.
const DIRECT_PIECE_MIN: usize = 256 * 1024;
/// What lanes begin at a multiple of: one that does not fetches each line twice, as its neighbours drive it from the first-level cache
/// meanwhile. They do so less where lanes are not a power of two apart, so this is between them, too.
const CACHE_LINE: usize = 64;
/// Before and after what is wanted of a direct read: the rest of the blocks that it begins and ends in.
const DIRECT_SLACK: usize = 2 * BUFFER_ALIGN;
/// Pieces looked at to find that out.
const SAMPLES: usize = 8;
/// Files that a thread keeps open: those of the pieces in its group, mostly one.
const OPEN_FILES_MAX: usize = 8;
/// Threads: past this, storage is the limit everywhere.
const THREADS_MAX: usize = 64;
/// Kinds of pieces of zeros that a thread knows the hashes of.
const BLANK_MAX: usize = 8;
/// Reports on their way to the caller; a thread waits when they are not taken.
const REPORTS_MAX: usize = 256;
/// Bytes between two reports by one thread: each wakes the caller, for which a core that hashes has to stop.
const REPORT_BYTES: u64 = 8 * 1024 * 1024;
/// A report comes no later than this after the one before it, where storage is slow.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// A run of piece space that is one file.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    pub offset: u64,
    pub length: u64,
    pub path: PathBuf,
}

/// What is to be read and which hashes are to be made of it.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Not empty, in order. What lies between is zeros, and not read.
    pub extents: Vec<Extent>,
    pub piece_length: u32,
    /// Bytes of piece space, trailing padding included.
    pub total: u64,
    /// The pieces to hash, in order.
    pub pieces: Vec<u32>,
    /// SHA-1 over each piece (BEP 3).
    pub sha1: bool,
    /// The node of each piece in its file's Merkle tree (BEP 52): every extent starts at a piece.
    pub sha256: bool,
}

/// The hashes of one piece, as far as the plan wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceHashes {
    pub sha1: Option<Sha1Digest>,
    pub sha256: Option<Sha256Digest>,
}

/// A file could not be read: `UnexpectedEof` where it ends before its extent does.
#[derive(Debug)]
pub(crate) struct Fault {
    pub extent: usize,
    pub error: io::Error,
}

/// What a scan tells its caller, in no particular order.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// So many more bytes of piece space are done.
    pub bytes: u64,
    /// Pieces that ended: their hashes, or why there are none.
    pub pieces: Vec<(u32, Result<PieceHashes, Fault>)>,
}

/// Runs `plan`, with a thread a core, until done, until `on` breaks or `cancel` is set.
pub(crate) fn scan(plan: &Plan, cancel: &AtomicBool, mut on: impl FnMut(Progress) -> ControlFlow<()>) {
    let stripe = match plan.sha1 {
        true => STRIPE_BYTES.min(plan.piece_length as usize),
        // Leaves do not wait for each other: long stripes of few pieces read more sequentially.
        false => GROUP_BYTES.min(plan.piece_length as usize),
    };
    // The same, past the page cache: whole pieces, if the buffer has room for so many.
    let direct_bytes = if plan.sha1 { DIRECT_GROUP_BYTES } else { GROUP_BYTES };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cold = is_any_cold(plan);
    let threads = if cold { cores + 1 } else { cores }.min(THREADS_MAX);
    let group = match plan.sha1 && cold {
        true => (DIRECT_GROUP_BYTES / plan.piece_length as usize).max(2),
        false => GROUP_BYTES / stripe,
    };
    let group = group.min(plan.pieces.len().div_ceil(threads)).max(1);
    let direct_stripe = (1 << (direct_bytes / group).ilog2()).min(plan.piece_length as usize);
    let groups: Vec<&[u32]> = plan.pieces.chunks(group).collect();
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (sender, reports) = sync_channel(REPORTS_MAX);
        for _ in 0..threads.min(groups.len()) {
            let (sender, next, stop, groups) = (sender.clone(), &next, &stop, &groups);
            let halt = move || stop.load(Ordering::Relaxed) || cancel.load(Ordering::Relaxed);
            scope.spawn(move || {
                let buffer = vec![0; group * (stripe + CACHE_LINE) + CACHE_LINE];
                let mut worker = Worker {
                    plan,
                    stripe,
                    direct_stripe,
                    group,
                    buffer,
                    direct_buffer: None,
                    open: OpenFiles::default(),
                    blank: Vec::new(),
                    reports: Reports { sender, next: Progress::default(), last: Instant::now() },
                };
                // The caller's end stays until all threads are gone, so sending cannot fail; if it did, this would end.
                while let Some(pieces) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if halt() || worker.group(pieces, &halt).is_none() {
                        break;
                    }
                }
                worker.reports.send()
            });
        }
        drop(sender);
        for report in reports {
            if !stop.load(Ordering::Relaxed) && on(report).is_break() {
                stop.store(true, Ordering::Relaxed);
            }
        }
    });
}

struct Worker<'a> {
    plan: &'a Plan,
    /// Bytes of each piece in a round.
    stripe: usize,
    /// The same where they are read past the page cache.
    direct_stripe: usize,
    /// Pieces in a group at most.
    group: usize,
    buffer: Vec<u8>,
    /// For direct reads, with [`DIRECT_SLACK`] a piece; made when first needed.
    direct_buffer: Option<Buffer>,
    open: OpenFiles,
    /// Of pieces of zeros, by what tells them apart: their hashes.
    blank: Vec<(Zeros, PieceHashes)>,
    reports: Reports,
}

/// What a thread has to say, and when it last said something.
struct Reports {
    sender: SyncSender<Progress>,
    next: Progress,
    last: Instant,
}

impl Reports {
    /// Sends what there is, where that is enough.
    fn send_if_due(&mut self) -> Option<()> {
        let due = self.next.bytes >= REPORT_BYTES || self.last.elapsed() >= REPORT_INTERVAL;
        if due { self.send() } else { Some(()) }
    }

    /// `None` where nobody listens any more.
    fn send(&mut self) -> Option<()> {
        self.last = Instant::now();
        self.sender.send(std::mem::take(&mut self.next)).ok()
    }
}

/// Bytes of a piece, those of its file, and the height of its node.
type Zeros = (usize, usize, u32);

/// A piece on its way.
struct PieceInFlight {
    start: u64,
    /// Bytes that are hashed into `leaves`: those of the one file in it, without padding.
    file_len: usize,
    /// Bytes that are read.
    len: usize,
    /// Where in the lane's room its current stripe begins.
    skip: usize,
    node_height: u32,
    leaves: Vec<Sha256Digest>,
    fault: Option<Fault>,
}

impl Worker<'_> {
    /// Hashes a group of pieces; `None` where it was halted.
    fn group(&mut self, pieces: &[u32], halt: &impl Fn() -> bool) -> Option<()> {
        let mut filled = Vec::new();
        for piece in pieces {
            match self.blank(*piece) {
                Some((len, hashes)) => {
                    self.reports.next.bytes += len as u64;
                    self.reports.next.pieces.push((*piece, Ok(hashes)));
                }
                None => filled.push(*piece),
            }
        }
        if !filled.is_empty() {
            self.filled(&filled, halt)?;
        }
        self.reports.send_if_due()
    }

    /// The length of a piece that is a hole of its file, and what it hashes to; `None` for all others.
    fn blank(&mut self, piece: u32) -> Option<(usize, PieceHashes)> {
        let lane = self.lane(piece);
        if !self.open.is_hole(self.plan, lane.start, lane.len) {
            return None;
        }
        let zeros: Zeros = (lane.len, lane.file_len, lane.node_height);
        let known = self.blank.iter().find(|(of, _)| *of == zeros).map(|(_, hashes)| *hashes);
        let hashes = known.unwrap_or_else(|| {
            let hashes = self.hash_zeros(zeros);
            // The last piece of each file is another one.
            self.blank.truncate(BLANK_MAX - 1);
            self.blank.insert(0, (zeros, hashes));
            hashes
        });
        Some((lane.len, hashes))
    }

    fn hash_zeros(&self, (len, file_len, node_height): Zeros) -> PieceHashes {
        let block = [0; BLOCK_LEN as usize];
        let parts = |len: usize| (0..len).step_by(block.len()).map(move |at| (len - at).min(block.len()));
        let sha1 = self.plan.sha1.then(|| {
            let mut state = [Sha1::new()];
            parts(len).for_each(|part| sha1_update_many(&mut state, &[&block[..part]]));
            let [state] = state;
            state.finish()
        });
        let sha256 = self.plan.sha256.then(|| {
            let whole = merkle::leaves(&block);
            let leaf = |part: usize| if part == block.len() { whole.clone() } else { merkle::leaves(&block[..part]) };
            let leaves: Vec<Sha256Digest> = parts(file_len).flat_map(leaf).collect();
            merkle::subtree_root(&leaves, 0, node_height)
        });
        PieceHashes { sha1, sha256 }
    }

    /// The same of pieces that are to be read.
    fn filled(&mut self, pieces: &[u32], halt: &impl Fn() -> bool) -> Option<()> {
        let mut lanes: Vec<PieceInFlight> = pieces.iter().map(|piece| self.lane(*piece)).collect();
        let mut states = vec![Sha1::new(); if self.plan.sha1 { lanes.len() } else { 0 }];
        let first = pieces.first().filter(|_| self.plan.piece_length as usize >= DIRECT_PIECE_MIN);
        let direct = first.is_some_and(|piece| self.open.is_cold(self.plan, *piece)) && self.make_direct_buffer();
        let (stripe, room) = match direct {
            true => (self.direct_stripe, self.direct_stripe + DIRECT_SLACK),
            false => (self.stripe, self.stripe + CACHE_LINE),
        };
        let buffer = match &mut self.direct_buffer {
            Some(buffer) if direct => &mut buffer[..],
            _ => {
                let start = self.buffer.as_ptr().align_offset(CACHE_LINE).min(CACHE_LINE);
                &mut self.buffer[start..]
            }
        };
        for from in (0..self.plan.piece_length as usize).step_by(stripe) {
            for (lane, room) in lanes.iter_mut().zip(buffer.chunks_mut(room)) {
                if halt() {
                    return None;
                }
                let len = lane.len.saturating_sub(from).min(stripe);
                if lane.fault.is_none() && len > 0 {
                    let at = lane.start + from as u64;
                    let ahead = lane.len - from - len;
                    let read = match direct {
                        true => self.open.read_direct(self.plan, at, room, len),
                        false => self.open.read(self.plan, at, &mut room[..len], ahead).map(|()| 0),
                    };
                    match read {
                        Ok(skip) => lane.skip = skip,
                        Err(fault) => lane.fault = Some(fault),
                    }
                }
                self.reports.next.bytes += len as u64;
                self.reports.send_if_due()?;
            }
            let parts: Vec<&[u8]> = (lanes.iter().zip(buffer.chunks(room)))
                .map(|(lane, room)| match lane.fault {
                    Some(_) => &[],
                    None => &room[lane.skip..][..lane.len.saturating_sub(from).min(stripe)],
                })
                .collect();
            if self.plan.sha1 {
                sha1_update_many(&mut states, &parts);
            }
            if self.plan.sha256 {
                hash_leaves(&mut lanes, &parts, from);
            }
        }
        let mut states = states.into_iter();
        let finish = |(piece, lane): (&u32, PieceInFlight)| {
            let sha1 = states.next().map(Sha1::finish);
            let node = || merkle::subtree_root(&lane.leaves, 0, lane.node_height);
            let sha256 = (self.plan.sha256 && lane.fault.is_none()).then(node);
            (*piece, lane.fault.map_or(Ok(PieceHashes { sha1, sha256 }), Err))
        };
        self.reports.next.pieces.extend(pieces.iter().zip(lanes).map(finish));
        Some(())
    }

    fn lane(&self, piece: u32) -> PieceInFlight {
        let length = u64::from(self.plan.piece_length);
        let start = u64::from(piece) * length;
        let len = length.min(self.plan.total.saturating_sub(start));
        let (mut file_len, mut node_height) = (len, 0);
        if self.plan.sha256 {
            let file = self.plan.extents.get(extent_at(&self.plan.extents, start));
            file_len = file.map_or(0, |file| (file.offset + file.length).saturating_sub(start).min(len));
            node_height = file.map_or(0, |file| Shape::new(file.length, self.plan.piece_length).piece_height());
        }
        let len = if self.plan.sha1 { len } else { file_len };
        let (file_len, len) = (file_len as usize, len as usize);
        PieceInFlight { start, file_len, len, skip: 0, node_height, leaves: Vec::new(), fault: None }
    }

    fn make_direct_buffer(&mut self) -> bool {
        let len = self.group * (self.direct_stripe + DIRECT_SLACK);
        self.direct_buffer = self.direct_buffer.take().or_else(|| BufferPool::on_huge_pages(len, len).try_get());
        self.direct_buffer.is_some()
    }
}

impl PieceInFlight {
    /// What of `part`, which starts `from` bytes into the piece, belongs to the file.
    fn file_part<'a>(&self, part: &'a [u8], from: usize) -> &'a [u8] {
        &part[..part.len().min(self.file_len.saturating_sub(from))]
    }
}

/// Leaves of all lanes at once; `parts` are the bytes of each from `from` on.
fn hash_leaves(lanes: &mut [PieceInFlight], parts: &[&[u8]], from: usize) {
    let parts: Vec<&[u8]> = lanes.iter().zip(parts).map(|(lane, part)| lane.file_part(part, from)).collect();
    let blocks: Vec<&[u8]> = parts.iter().flat_map(|part| part.chunks(BLOCK_LEN as usize)).collect();
    let mut leaves = sha256_many(&blocks).into_iter();
    for (lane, part) in lanes.iter_mut().zip(parts) {
        lane.leaves.extend(leaves.by_ref().take(part.len().div_ceil(BLOCK_LEN as usize)));
    }
}

/// The first extent that does not end before `offset` of piece space.
fn extent_at(extents: &[Extent], offset: u64) -> usize {
    extents.partition_point(|extent| extent.offset + extent.length <= offset)
}

/// Whether any of some pieces, from all over the plan, is to be read directly.
fn is_any_cold(plan: &Plan) -> bool {
    let long_enough = plan.piece_length as usize >= DIRECT_PIECE_MIN;
    let samples = plan.pieces.iter().step_by(plan.pieces.len().div_ceil(SAMPLES).max(1));
    long_enough && samples.copied().any(|piece| OpenFiles::default().is_cold(plan, piece))
}

/// The files used last, newest first.
#[derive(Default)]
struct OpenFiles(Vec<OpenFile>);

struct OpenFile {
    extent: usize,
    file: File,
    /// Once it was asked for; `None` where the file cannot be read directly.
    direct: Option<Option<(File, Alignment)>>,
}

impl OpenFile {
    fn direct(&mut self, extent: &Extent) -> Option<&(File, Alignment)> {
        let open = || {
            let alignment = Alignment::of(&self.file).filter(|alignment| alignment.block as usize <= BUFFER_ALIGN)?;
            let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(&extent.path).ok()?;
            Some((file, alignment))
        };
        self.direct.get_or_insert_with(open).as_ref()
    }
}

impl OpenFiles {
    /// Whether most of the file that `piece` begins in is not in the page cache there, and can be read directly. A part is looked
    /// at, not the piece: counting pages takes the longer the more are there, which is where nothing is to be gained.
    fn is_cold(&mut self, plan: &Plan, piece: u32) -> bool {
        let at = u64::from(piece) * u64::from(plan.piece_length);
        let index = extent_at(&plan.extents, at);
        let Some(extent) = plan.extents.get(index).filter(|extent| extent.offset <= at) else { return false };
        let inside = at - extent.offset;
        let len = (DIRECT_PIECE_MIN as u64).min(extent.length - inside);
        // Where it cannot be opened, reading says why.
        let Ok(open) = self.open(index, extent) else { return false };
        cached_bytes(&open.file, inside, len).is_some_and(|cached| cached < len / 2) && open.direct(extent).is_some()
    }

    /// Whether `len` bytes of piece space from `at` on are a hole of one file, perhaps with padding behind it. A file that is not as
    /// long is not one, nor one that cannot be opened: reading says so.
    fn is_hole(&mut self, plan: &Plan, at: u64, len: usize) -> bool {
        let index = extent_at(&plan.extents, at);
        let Some(extent) = plan.extents.get(index).filter(|extent| extent.offset <= at && len > 0) else {
            return false;
        };
        let end = at + len as u64;
        if plan.extents.get(index + 1).is_some_and(|next| next.offset < end) {
            return false;
        }
        let inside = at - extent.offset..(end - extent.offset).min(extent.length);
        self.open(index, extent).is_ok_and(|open| is_hole(&open.file, inside))
    }

    /// Reads `len` bytes of piece space from `at` on past the page cache, and answers where in `room` they begin; `room` is
    /// [`DIRECT_SLACK`] longer. What cannot be read so is read through the cache.
    fn read_direct(&mut self, plan: &Plan, at: u64, room: &mut [u8], len: usize) -> Result<usize, Fault> {
        let index = extent_at(&plan.extents, at);
        let extent = plan.extents.get(index).filter(|extent| extent.offset <= at);
        let whole = extent.filter(|extent| at + len as u64 <= extent.offset + extent.length);
        if let Some(extent) = whole {
            let fault = |error| Fault { extent: index, error };
            let open = self.open(index, extent).map_err(fault)?;
            if let Some((file, alignment)) = open.direct(extent) {
                let inside = at - extent.offset;
                let skip = (inside % alignment.block) as usize;
                let padded = (skip + len).next_multiple_of(alignment.block as usize);
                match read_blocks(file, &mut room[..padded], inside - skip as u64, skip + len) {
                    Err(error) if is_refusal(&error) => open.direct = Some(None),
                    read => return read.map(|()| skip).map_err(fault),
                }
            }
        }
        self.read(plan, at, &mut room[..len], 0).map(|()| 0)
    }

    /// Reads piece space from `at` on into `into`; `ahead` bytes more will be wanted later.
    fn read(&mut self, plan: &Plan, mut at: u64, mut into: &mut [u8], ahead: usize) -> Result<(), Fault> {
        let mut index = extent_at(&plan.extents, at);
        while !into.is_empty() {
            let Some(extent) = plan.extents.get(index).filter(|extent| extent.offset < at + into.len() as u64) else {
                into.fill(0);
                break;
            };
            let (gap, rest) = into.split_at_mut(extent.offset.saturating_sub(at) as usize);
            gap.fill(0);
            at += gap.len() as u64;
            let inside = at - extent.offset;
            let (data, rest) = rest.split_at_mut((extent.length - inside).min(rest.len() as u64) as usize);
            let result = self.open(index, extent).and_then(|open| {
                open.file.read_exact_at(data, inside)?;
                if rest.is_empty() {
                    will_need(&open.file, inside + data.len() as u64, ahead.min(data.len()));
                }
                Ok(())
            });
            result.map_err(|error| Fault { extent: index, error })?;
            at += data.len() as u64;
            into = rest;
            index += 1;
        }
        Ok(())
    }

    fn open(&mut self, index: usize, extent: &Extent) -> io::Result<&mut OpenFile> {
        if let Some(place) = self.0.iter().position(|open| open.extent == index) {
            self.0[..=place].rotate_right(1);
        } else {
            let file = File::open(&extent.path)?;
            self.0.truncate(OPEN_FILES_MAX - 1);
            self.0.insert(0, OpenFile { extent: index, file, direct: None });
        }
        Ok(&mut self.0[0])
    }
}

/// Reads whole blocks, of which the file has the first `wanted` bytes at least: `UnexpectedEof` where it ends earlier.
fn read_blocks(file: &File, room: &mut [u8], offset: u64, wanted: usize) -> io::Result<()> {
    let mut got = 0;
    while got < wanted {
        let end = room.len().min(got + DIRECT_READ_BYTES);
        match file.read_at(&mut room[got..end], offset + got as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Asks the kernel to read ahead where the next stripe of a piece is. It does not matter whether it does.
fn will_need(file: &File, offset: u64, len: usize) {
    if let (Ok(offset), true) = (libc::off_t::try_from(offset), len > 0) {
        // SAFETY: takes integers only; the descriptor is open as long as `file`.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, len as libc::off_t, libc::POSIX_FADV_WILLNEED) };
    }
}
