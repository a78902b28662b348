//! Merkle layers, fetched and served (BEP 52).
//!
//! A v2 piece can be verified once its hash is known: for files of one piece that is the file's root, for longer ones it
//! comes from the piece layer, which a .torrent file carries and a magnet link does not. What is missing is asked of
//! peers in runs, each proven up to the root before anything rests on it.
//!
//! What is asked of us costs little by itself: trees are kept once they are made. Hashes below the piece layer are not kept: to
//! have them, a piece is read and hashed. Who asks for them had a piece fail, which is rare; so such readings are few
//! ([`LeafBudget`]), whoever asks, and the last ones are remembered.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use anabranch_content::info::{FileKind, Info, Sha256Digest};
use anabranch_content::merkle::{self, HashRequest, PieceTree, Shape};

use super::answers::{ANSWERS_MAX, Answer};
use super::{ConnId, Event, PeerMisbehaved, Torrent};
use crate::PeerKey;
use crate::wire::{Hashes, Message, TreeRequest};

/// Hash requests under way at one peer.
const REQUESTS_PER_PEER_MAX: u32 = 4;
/// How long a peer has for an answer, and is left alone after a refusal.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests of peers that wait for leaves to be hashed from disk.
const LEAF_WAITERS_MAX: usize = 64;
/// Trees that are kept, in bytes of hashes: a terabyte in pieces of 4 MiB. One is kept whatever its size.
const TREES_BYTES_MAX: usize = 16 << 20;
/// Leaves that are kept, in bytes of hashes: of 16 pieces of 16 MiB.
const LEAVES_BYTES_MAX: usize = 512 << 10;
/// Bytes a second that are read for leaves: a fraction of what a slow disk gives.
const LEAF_READ_BYTES_PER_SEC: u64 = 8 << 20;
/// Bytes that may be read for leaves at once after a rest, or one piece.
const LEAF_READ_BYTES_MAX: u64 = 64 << 20;
/// Of these, what is left to peers that we serve, who had their piece of us.
const LEAF_READ_BYTES_RESERVED: u64 = 16 << 20;
/// A peer that we do not serve has one reading in this time.
const LEAF_READ_EVERY: Duration = Duration::from_secs(10);
/// Peers whose last reading is remembered; should there be more, they wait for each other.
const LEAF_READERS_MAX: usize = 1024;

/// The hash trees of a content's files.
pub(super) struct HashStore {
    /// Sorted by their first piece.
    files: Vec<FileHashes>,
    by_root: HashMap<Sha256Digest, usize>,
    under_way: Vec<UnderWay>,
    refused: HashMap<ConnId, Instant>,
    waiters: Vec<(ConnId, TreeRequest, u32)>,
    /// Files whose layer is not known yet.
    incomplete: usize,
    pub kept: Box<ServedTrees>,
}

/// What is kept for those who ask.
#[derive(Default)]
pub(super) struct ServedTrees {
    /// The trees that were asked about, the last one at the end: each costs a hash a piece to make.
    trees: VecDeque<(usize, PieceTree)>,
    /// Leaves of pieces that were asked about, the last ones at the end.
    leaves: VecDeque<(u32, Box<[Sha256Digest]>)>,
    budget: LeafBudget,
    /// How often a tree was made, for tests.
    #[cfg(test)]
    pub trees_made: u32,
}

/// What may be read from disk for hashes that are not kept.
#[derive(Default)]
struct LeafBudget {
    left_bytes: u64,
    filled: Option<Instant>,
    /// Who caused a reading, and when.
    readers: HashMap<PeerKey, Instant>,
}

impl LeafBudget {
    /// Whether a piece of `piece_len` bytes may be read for a peer, and notes that it is.
    fn spend(&mut self, piece_len: u64, peer: PeerKey, served: bool, now: Instant) -> bool {
        let full = LEAF_READ_BYTES_MAX.max(piece_len);
        self.left_bytes = match self.filled {
            Some(filled) => {
                let time = now.saturating_duration_since(filled).as_secs_f64();
                (self.left_bytes + (time * LEAF_READ_BYTES_PER_SEC as f64) as u64).min(full)
            }
            None => full,
        };
        self.filled = Some(now);
        let again = |at: &Instant| now.saturating_duration_since(*at) < LEAF_READ_EVERY;
        if !served {
            if self.readers.len() >= LEAF_READERS_MAX {
                self.readers.retain(|_, at| again(at));
            }
            let waits = self.readers.get(&peer).is_some_and(again) || self.readers.len() >= LEAF_READERS_MAX;
            // A piece longer than the reserve is read when there is nothing else to read.
            let reserved = LEAF_READ_BYTES_RESERVED.min(full - piece_len);
            if waits || self.left_bytes < piece_len + reserved {
                return false;
            }
            self.readers.insert(peer, now);
        }
        let spent = self.left_bytes.checked_sub(piece_len);
        self.left_bytes = spent.unwrap_or(self.left_bytes);
        spent.is_some()
    }
}

struct FileHashes {
    first_piece: u32,
    root: Sha256Digest,
    shape: Shape,
    /// The piece layer, once whole. For a file of one piece: its root.
    layer: Option<Box<[Sha256Digest]>>,
    /// What is known of it until then.
    partial: Vec<Option<Sha256Digest>>,
    /// Its pieces are not asked for before those on disk were looked at.
    look_first: bool,
}

impl FileHashes {
    fn pieces(&self) -> Range<u32> {
        self.first_piece..self.first_piece + self.shape.piece_count() as u32
    }
}

struct UnderWay {
    file: usize,
    request: HashRequest,
    conn: ConnId,
    since: Instant,
}

impl HashStore {
    pub(super) fn new(info: &Info, layers: HashMap<Sha256Digest, Box<[Sha256Digest]>>) -> Self {
        let mut files = Vec::new();
        for file in &info.files {
            let (FileKind::Regular, Some(root)) = (&file.kind, file.root) else { continue };
            if file.length == 0 {
                continue;
            }
            let shape = Shape::new(file.length, info.geometry.piece_length());
            let layer = match shape.piece_count() {
                1 => Some(Box::from([root])),
                // Two files with the same bytes have the same root, and so the same layer.
                _ => layers.get(&root).cloned(),
            };
            let missing = if layer.is_none() { shape.piece_count() as usize } else { 0 };
            files.push(FileHashes {
                first_piece: info.geometry.piece_at(file.offset),
                root,
                shape,
                layer,
                partial: vec![None; missing],
                look_first: false,
            });
        }
        let by_root = files.iter().enumerate().map(|(index, file)| (file.root, index)).collect();
        let incomplete = files.iter().filter(|file| file.layer.is_none()).count();
        Self {
            files,
            by_root,
            under_way: Vec::new(),
            refused: HashMap::new(),
            waiters: Vec::new(),
            incomplete,
            kept: Box::default(),
        }
    }

    /// Pieces that cannot be verified yet, or are to be looked at before they are asked for.
    pub(super) fn unfetchable_pieces(&self, info: &Info) -> Vec<u32> {
        // A hybrid's pieces have their SHA-1 in any case.
        if !info.piece_hashes.is_empty() {
            return Vec::new();
        }
        self.files.iter().filter(|file| file.layer.is_none() || file.look_first).flat_map(FileHashes::pieces).collect()
    }

    /// Hash of a piece and height of the tree below it.
    pub(super) fn expected(&self, piece: u32) -> Option<(Sha256Digest, u32)> {
        let at = self.files.partition_point(|file| file.first_piece <= piece).checked_sub(1)?;
        let file = &self.files[at];
        let hash = *file.layer.as_ref()?.get((piece - file.first_piece) as usize)?;
        Some((hash, file.shape.piece_height()))
    }

    /// Layers that are whole, of files of more than one piece.
    pub(super) fn layers(&self) -> impl Iterator<Item = (&Sha256Digest, &[Sha256Digest])> {
        let long = self.files.iter().filter(|file| file.shape.piece_count() > 1);
        long.filter_map(|file| file.layer.as_deref().map(|layer| (&file.root, layer)))
    }

    pub(super) fn connection_lost(&mut self, conn: ConnId) {
        self.under_way.retain(|request| request.conn != conn);
        self.refused.remove(&conn);
        self.waiters.retain(|(waiter, ..)| *waiter != conn);
    }

    /// Nobody is here: what was made for peers can be made again.
    pub(super) fn rest(&mut self) {
        self.kept.trees = VecDeque::new();
        self.kept.leaves = VecDeque::new();
    }

    pub(super) fn is_complete(&self) -> bool {
        self.incomplete == 0
    }

    /// The next run of hashes to ask `conn` for, noted as asked.
    fn next_request(&mut self, conn: ConnId, now: Instant) -> Option<TreeRequest> {
        let expired = |request: &UnderWay| now.saturating_duration_since(request.since) >= REQUEST_TIMEOUT;
        // Who did not answer lets others go first.
        let mute = self.under_way.iter().filter(|request| expired(request)).map(|request| (request.conn, now));
        self.refused.extend(mute);
        self.under_way.retain(|request| !expired(request));
        let own = self.under_way.iter().filter(|request| request.conn == conn).count() as u32;
        let refused = self.refused.get(&conn).is_some_and(|at| now.saturating_duration_since(*at) < REQUEST_TIMEOUT);
        if own >= REQUESTS_PER_PEER_MAX || refused {
            return None;
        }
        let (file, request) =
            self.files.iter().enumerate().filter(|(_, file)| file.layer.is_none()).find_map(|(index, file)| {
                let open = |request: &HashRequest| {
                    file.partial.get(request.index as usize).is_some_and(Option::is_none)
                        && self.under_way.iter().all(|other| other.file != index || other.request != *request)
                };
                file.shape.piece_layer_requests().find(open).map(|request| (index, request))
            })?;
        self.under_way.push(UnderWay { file, request, conn, since: now });
        Some(TreeRequest { root: self.files[file].root, part: request })
    }

    /// Takes in an answer. `Ok(Some(file))` when that made the layer of a file whole.
    fn received(&mut self, conn: ConnId, hashes: &Hashes<'_>) -> Result<Option<&FileHashes>, PeerMisbehaved> {
        let asked = hashes.request();
        let same = |request: &UnderWay, files: &[FileHashes]| {
            request.conn == conn && files[request.file].root == asked.root && request.request == asked.part
        };
        let Some(at) = self.under_way.iter().position(|request| same(request, &self.files)) else {
            return Ok(None);
        };
        let UnderWay { file, request, .. } = self.under_way.swap_remove(at);
        let file = &mut self.files[file];
        let all: Vec<Sha256Digest> = hashes.base().iter().chain(hashes.uncles()).copied().collect();
        if !merkle::check_hashes(&file.shape, &request, &all, &file.root) {
            return Err(PeerMisbehaved::BadHashes);
        }
        for (at, hash) in (request.index as usize..).zip(hashes.base()) {
            if let Some(slot) = file.partial.get_mut(at) {
                *slot = Some(*hash);
            }
        }
        if file.layer.is_some() || file.partial.iter().any(Option::is_none) {
            return Ok(None);
        }
        file.layer = Some(std::mem::take(&mut file.partial).into_iter().flatten().collect());
        self.incomplete -= 1;
        Ok(Some(file))
    }

    /// Whether a request can be answered: at once, or once the leaves of a piece are there. `None` where it is to be rejected.
    #[allow(clippy::option_option, reason = "refused, at once, with a piece's leaves")]
    fn need(&mut self, request: &TreeRequest) -> Option<Option<u32>> {
        let at = *self.by_root.get(&request.root)?;
        let file = &self.files[at];
        file.layer.as_ref()?;
        let piece = needed_piece(file, &request.part)?;
        Some(piece.filter(|piece| self.kept.leaves.iter().all(|(of, _)| of != piece)))
    }

    /// The answer to a peer's request, or the piece whose leaves it needs; `None` where it is to be rejected.
    fn answer(&mut self, request: &TreeRequest) -> Option<Result<Vec<Sha256Digest>, u32>> {
        let at = *self.by_root.get(&request.root)?;
        let part = request.part;
        self.keep_tree(at)?;
        let (_, tree) = self.kept.trees.back()?;
        let file = &self.files[at];
        match needed_piece(file, &part)? {
            None => tree.answer(&part, &[]).ok().map(Ok),
            Some(piece) => match self.kept.leaves.iter().find(|(of, _)| *of == piece) {
                Some((_, leaves)) => tree.answer(&part, leaves).ok().map(Ok),
                None => Some(Err(piece)),
            },
        }
    }

    /// Puts the tree of a file at the end of those that are kept.
    fn keep_tree(&mut self, at: usize) -> Option<()> {
        if let Some(kept) = self.kept.trees.iter().position(|(of, _)| *of == at) {
            let tree = self.kept.trees.remove(kept)?;
            self.kept.trees.push_back(tree);
            return Some(());
        }
        let file = &self.files[at];
        let tree = PieceTree::new(file.shape, file.layer.as_deref()?)?;
        self.kept.trees.push_back((at, tree));
        #[cfg(test)]
        {
            self.kept.trees_made += 1;
        }
        // A binary tree has as many nodes above a layer as in it.
        let bytes =
            |(of, _): &(usize, PieceTree)| self.files[*of].shape.piece_count() as usize * 2 * size_of::<Sha256Digest>();
        let mut total: usize = self.kept.trees.iter().map(bytes).sum();
        while total > TREES_BYTES_MAX && self.kept.trees.len() > 1 {
            total -= self.kept.trees.front().map_or(0, bytes);
            self.kept.trees.pop_front();
        }
        Some(())
    }

    fn keep_leaves(&mut self, piece: u32, leaves: &[Sha256Digest]) {
        self.kept.leaves.retain(|(of, _)| *of != piece);
        self.kept.leaves.push_back((piece, leaves.into()));
        let mut total: usize = self.kept.leaves.iter().map(|(_, leaves)| size_of_val(&**leaves)).sum();
        while total > LEAVES_BYTES_MAX && self.kept.leaves.len() > 1 {
            total -= self.kept.leaves.front().map_or(0, |(_, leaves)| size_of_val(&**leaves));
            self.kept.leaves.pop_front();
        }
    }
}

/// The piece whose leaves an answer needs, if it needs any. `None` for a request that makes no sense, or asks for leaves of
/// more than one piece, which no failed piece could make anyone need.
#[allow(clippy::option_option, reason = "refused, nothing needed, a piece needed")]
fn needed_piece(file: &FileHashes, part: &HashRequest) -> Option<Option<u32>> {
    let needed = file.shape.leaves_needed(part).ok()?;
    if needed.is_empty() {
        return Some(None);
    }
    let blocks_per_piece = 1u64 << file.shape.piece_height();
    let within = needed.start / blocks_per_piece;
    (needed.end <= (within + 1) * blocks_per_piece).then_some(Some(file.first_piece + within as u32))
}

impl Torrent {
    pub(super) fn fetch_hashes(&mut self, now: Instant) {
        if self.content.as_ref().is_some_and(|content| !content.hashes.is_complete()) {
            let ids: Vec<ConnId> = self.conns.iter().filter(|(_, conn)| conn.v2).map(|(id, _)| *id).collect();
            ids.into_iter().for_each(|id| self.ask_for_hashes(id, now));
        }
    }

    pub(super) fn ask_for_hashes(&mut self, id: ConnId, now: Instant) {
        let (Some(conn), Some(content)) = (self.conns.get_mut(&id), &mut self.content) else { return };
        // A peer without pieces may well lack the hashes too.
        if !conn.v2 || content.hashes.is_complete() || conn.bits().is_none_or(|bits| bits.count() == 0) {
            return;
        }
        let before = conn.out.len();
        while let Some(request) = content.hashes.next_request(id, now) {
            Message::HashRequest(request).encode(&mut conn.out);
        }
        if conn.out.len() > before {
            self.touch(id);
        }
    }

    pub(super) fn on_hashes(&mut self, id: ConnId, hashes: &Hashes<'_>, now: Instant) -> Result<(), PeerMisbehaved> {
        let Some(content) = &mut self.content else { return Ok(()) };
        if let Some(file) = content.hashes.received(id, hashes)? {
            let (root, look_at) = (file.root, file.look_first.then(|| file.pieces()));
            if look_at.is_none()
                && let Some(picker) = &mut content.picker
            {
                file.pieces().for_each(|piece| picker.set_fetchable(piece, true));
            }
            self.events.push_back(Event::PieceLayer { root, look_at });
            self.fill_all_requests(now);
        }
        self.ask_for_hashes(id, now);
        Ok(())
    }

    /// `pieces`, in ascending order, may lie on disk, and nothing tells yet whether they are good. Once it can be told, the files
    /// that they are of are to be looked at before anything of them is asked for: see [`Event::PieceLayer`].
    pub fn look_first(&mut self, pieces: &[u32]) {
        let Some(content) = &mut self.content else { return };
        for file in content.hashes.files.iter_mut().filter(|file| file.layer.is_none()) {
            let first = pieces.partition_point(|piece| *piece < file.first_piece);
            file.look_first = pieces.get(first).is_some_and(|piece| file.pieces().contains(piece));
        }
    }

    /// `pieces`, all those of a file, were looked at: those that are not good may be asked for.
    pub fn looked_at(&mut self, pieces: &Range<u32>, now: Instant) {
        let Some(content) = &mut self.content else { return };
        content
            .hashes
            .files
            .iter_mut()
            .filter(|file| file.pieces() == *pieces)
            .for_each(|file| file.look_first = false);
        if let Some(picker) = &mut content.picker {
            pieces.clone().for_each(|piece| picker.set_fetchable(piece, true));
        }
        self.fill_all_requests(now);
    }

    pub(super) fn on_hash_reject(&mut self, id: ConnId, request: &TreeRequest, now: Instant) {
        let Some(content) = &mut self.content else { return };
        let HashStore { under_way, files, refused, .. } = &mut content.hashes;
        let before = under_way.len();
        under_way.retain(|asked| {
            asked.conn != id || asked.request != request.part || files[asked.file].root != request.root
        });
        if under_way.len() < before {
            refused.insert(id, now);
            self.fetch_hashes(now);
        }
    }

    pub(super) fn on_hash_request(&mut self, id: ConnId, request: TreeRequest, now: Instant) {
        let wanted = self.conns.get(&id).filter(|conn| conn.answers.len() < ANSWERS_MAX).zip(self.content.as_mut());
        let Some((conn, content)) = wanted else { return self.reject_hashes(id, request) };
        let (peer, served) = (conn.peer, !conn.choking);
        let answered = match content.hashes.need(&request) {
            Some(None) => self.owe(id, Answer::Hashes(request)),
            Some(Some(piece)) if content.have.get(piece) => {
                let HashStore { waiters, kept, .. } = &mut content.hashes;
                // One reading of a piece is enough for all who wait for it.
                let under_way = waiters.iter().any(|(.., wanted)| *wanted == piece);
                let piece_len = u64::from(content.info.geometry.piece_len(piece));
                let room = waiters.len() < LEAF_WAITERS_MAX;
                let waits = room && (under_way || kept.budget.spend(piece_len, peer, served, now));
                if waits {
                    waiters.push((id, request, piece));
                    if !under_way {
                        self.events.push_back(Event::LeavesWanted { piece });
                    }
                }
                waits
            }
            Some(Some(_)) | None => false,
        };
        if !answered {
            self.reject_hashes(id, request);
        }
    }

    /// The leaves of a piece that [`Event::LeavesWanted`] asked for; empty where they could not be had.
    pub fn leaves_ready(&mut self, piece: u32, leaves: &[Sha256Digest]) {
        let Some(content) = &mut self.content else { return };
        let waiting = std::mem::take(&mut content.hashes.waiters);
        let (ready, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(_, _, wanted)| *wanted == piece);
        content.hashes.waiters = rest;
        if !leaves.is_empty() {
            content.hashes.keep_leaves(piece, leaves);
        }
        for (id, request, _) in ready {
            if leaves.is_empty() || !self.owe(id, Answer::Hashes(request)) {
                self.reject_hashes(id, request);
            }
        }
    }

    /// BEP 52: "hashes", or "hash reject" where they are not there any more.
    pub(super) fn write_hashes(&mut self, request: TreeRequest, into: &mut Vec<u8>) {
        let hashes = self.content.as_mut().and_then(|content| content.hashes.answer(&request)?.ok());
        match hashes.as_deref().and_then(|hashes| Hashes::new(request, hashes).ok()) {
            Some(answer) => Message::Hashes(answer).encode(into),
            None => Message::HashReject(request).encode(into),
        }
    }

    fn reject_hashes(&mut self, id: ConnId, request: TreeRequest) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        Message::HashReject(request).encode(&mut conn.out);
        self.touch(id);
    }
}
