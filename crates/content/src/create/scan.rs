//! Reads a whole content and hashes it, on every core, with every lane full.
//!
//! A thread takes a group of pieces and reads them in stripes: a little of each, then a little more of each. So all lanes
//! are busy whatever the piece length, a group's stripes stay in the core's own cache, and memory is [`GROUP_BYTES`] a
//! thread. The next stripes are announced to the kernel, which on a disk reads them while these are hashed.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use crate::geometry::BLOCK_LEN;
use crate::hash::{Sha1, sha1_update_many, sha256_many};
use crate::info::{Sha1Digest, Sha256Digest};
use crate::merkle::{self, Shape};

/// Buffer of one thread: half of a common second-level cache, so that hashing reads what reading just wrote from there.
const GROUP_BYTES: usize = 1024 * 1024;
/// Bytes of each piece in a round: four blocks, and few enough for a group of 16 lanes.
const STRIPE_BYTES: usize = 64 * 1024;
/// Files that a thread keeps open: those of the pieces in its group, mostly one.
const OPEN_FILES_MAX: usize = 8;
/// Threads: past this, storage is the limit everywhere.
const THREADS_MAX: usize = 64;
/// Reports on their way to the caller; a thread waits when they are not taken.
const REPORTS_MAX: usize = 256;
/// Bytes between two reports of progress by one thread.
const PROGRESS_BYTES: u64 = 8 * 1024 * 1024;

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
#[derive(Debug)]
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
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let group = (GROUP_BYTES / stripe).min(plan.pieces.len().div_ceil(threads)).max(1);
    let groups: Vec<&[u32]> = plan.pieces.chunks(group).collect();
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (sender, reports) = sync_channel(REPORTS_MAX);
        for _ in 0..threads.min(groups.len()) {
            let (sender, next, stop, groups) = (sender.clone(), &next, &stop, &groups);
            let halt = move || stop.load(Ordering::Relaxed) || cancel.load(Ordering::Relaxed);
            scope.spawn(move || {
                let mut worker = Worker { plan, stripe, buffer: vec![0; group * stripe], open: OpenFiles::default() };
                // The caller's end stays until all threads are gone, so sending cannot fail; if it did, this would end.
                while let Some(pieces) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if halt() || worker.group(pieces, &halt, &sender).is_none() {
                        break;
                    }
                }
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
    stripe: usize,
    buffer: Vec<u8>,
    open: OpenFiles,
}

/// A piece on its way.
struct Lane {
    start: u64,
    /// Bytes that are hashed into `leaves`: those of the one file in it, without padding.
    file_len: usize,
    /// Bytes that are read.
    len: usize,
    node_height: u32,
    leaves: Vec<Sha256Digest>,
    fault: Option<Fault>,
}

impl Worker<'_> {
    /// Hashes a group of pieces; `None` where it was halted.
    fn group(&mut self, pieces: &[u32], halt: &impl Fn() -> bool, sender: &SyncSender<Progress>) -> Option<()> {
        let mut lanes: Vec<Lane> = pieces.iter().map(|piece| self.lane(*piece)).collect();
        let mut states = vec![Sha1::new(); if self.plan.sha1 { lanes.len() } else { 0 }];
        let mut unreported = 0;
        for from in (0..self.plan.piece_length as usize).step_by(self.stripe) {
            if halt() {
                return None;
            }
            for (lane, room) in lanes.iter_mut().zip(self.buffer.chunks_mut(self.stripe)) {
                let len = lane.len.saturating_sub(from).min(self.stripe);
                if lane.fault.is_none() && len > 0 {
                    let ahead = lane.len - from - len;
                    lane.fault = self.open.read(self.plan, lane.start + from as u64, &mut room[..len], ahead).err();
                }
                unreported += len as u64;
            }
            let parts: Vec<&[u8]> =
                lanes
                    .iter()
                    .zip(self.buffer.chunks(self.stripe))
                    .map(|(lane, room)| {
                        if lane.fault.is_some() { &[] } else { &room[..lane.len.saturating_sub(from).min(self.stripe)] }
                    })
                    .collect();
            if self.plan.sha1 {
                sha1_update_many(&mut states, &parts);
            }
            if self.plan.sha256 {
                hash_leaves(&mut lanes, &parts, from);
            }
            if unreported >= PROGRESS_BYTES {
                sender.send(Progress { bytes: std::mem::take(&mut unreported), pieces: Vec::new() }).ok()?;
            }
        }
        let mut states = states.into_iter();
        let finish = |(piece, lane): (&u32, Lane)| {
            let sha1 = states.next().map(Sha1::finish);
            let node = || merkle::subtree_root(&lane.leaves, 0, lane.node_height);
            let sha256 = (self.plan.sha256 && lane.fault.is_none()).then(node);
            (*piece, lane.fault.map_or(Ok(PieceHashes { sha1, sha256 }), Err))
        };
        let pieces = pieces.iter().zip(lanes).map(finish).collect();
        sender.send(Progress { bytes: unreported, pieces }).ok()
    }

    fn lane(&self, piece: u32) -> Lane {
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
        Lane { start, file_len: file_len as usize, len: len as usize, node_height, leaves: Vec::new(), fault: None }
    }
}

impl Lane {
    /// What of `part`, which starts `from` bytes into the piece, belongs to the file.
    fn file_part<'a>(&self, part: &'a [u8], from: usize) -> &'a [u8] {
        &part[..part.len().min(self.file_len.saturating_sub(from))]
    }
}

/// Leaves of all lanes at once; `parts` are the bytes of each from `from` on.
fn hash_leaves(lanes: &mut [Lane], parts: &[&[u8]], from: usize) {
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

/// The files used last, newest first.
#[derive(Default)]
struct OpenFiles(Vec<(usize, File)>);

impl OpenFiles {
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
            let result = self.open(index, extent).and_then(|file| {
                file.read_exact_at(data, inside)?;
                if rest.is_empty() {
                    will_need(file, inside + data.len() as u64, ahead.min(data.len()));
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

    fn open(&mut self, index: usize, extent: &Extent) -> io::Result<&File> {
        if let Some(place) = self.0.iter().position(|(open, _)| *open == index) {
            self.0[..=place].rotate_right(1);
        } else {
            let file = File::open(&extent.path)?;
            self.0.truncate(OPEN_FILES_MAX - 1);
            self.0.insert(0, (index, file));
        }
        Ok(&self.0[0].1)
    }
}

/// Asks the kernel to read ahead where the next stripe of a piece is. It does not matter whether it does.
fn will_need(file: &File, offset: u64, len: usize) {
    if let (Ok(offset), true) = (libc::off_t::try_from(offset), len > 0) {
        // SAFETY: takes integers only; the descriptor is open as long as `file`.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, len as libc::off_t, libc::POSIX_FADV_WILLNEED) };
    }
}
