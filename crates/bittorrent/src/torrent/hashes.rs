//! Merkle layers, fetched and served (BEP 52).
//!
//! A v2 piece can be verified once its hash is known: for files of one piece that is the file's root, for longer ones it
//! comes from the piece layer, which a .torrent file carries and a magnet link does not. What is missing is asked of
//! peers in runs, each proven up to the root before anything rests on it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anabranch_content::info::{FileKind, Info, Sha256Digest};
use anabranch_content::merkle::{self, HashRequest, PieceTree, Shape};

use super::config::ANSWERS_BYTES_MAX;
use super::{ConnId, Event, PeerMisbehaved, Torrent};
use crate::wire::{Hashes, Message, TreeRequest};

/// Hash requests under way at one peer.
const REQUESTS_PER_PEER_MAX: u32 = 4;
/// How long a peer has for an answer, and is left alone after a refusal.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests of peers that wait for leaves to be hashed from disk.
const LEAF_WAITERS_MAX: usize = 64;

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
    /// The tree that was asked about last: it costs a hash a piece to make, and is asked about in runs.
    tree: Option<(usize, PieceTree)>,
}

struct FileHashes {
    first_piece: u32,
    root: Sha256Digest,
    shape: Shape,
    /// The piece layer, once whole. For a file of one piece: its root.
    layer: Option<Box<[Sha256Digest]>>,
    /// What is known of it until then.
    partial: Vec<Option<Sha256Digest>>,
}

struct UnderWay {
    file: usize,
    request: HashRequest,
    conn: ConnId,
    since: Instant,
}

impl HashStore {
    pub fn new(info: &Info, layers: HashMap<Sha256Digest, Box<[Sha256Digest]>>) -> Self {
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
            tree: None,
        }
    }

    /// Pieces that cannot be verified yet.
    pub fn unknown_pieces(&self, info: &Info) -> Vec<u32> {
        // A hybrid's pieces have their SHA-1 in any case.
        if !info.piece_hashes.is_empty() {
            return Vec::new();
        }
        let unknown = self.files.iter().filter(|file| file.layer.is_none());
        unknown.flat_map(|file| file.first_piece..file.first_piece + file.shape.piece_count() as u32).collect()
    }

    /// Hash of a piece and height of the tree below it.
    pub fn expected(&self, piece: u32) -> Option<(Sha256Digest, u32)> {
        let at = self.files.partition_point(|file| file.first_piece <= piece).checked_sub(1)?;
        let file = &self.files[at];
        let hash = *file.layer.as_ref()?.get((piece - file.first_piece) as usize)?;
        Some((hash, file.shape.piece_height()))
    }

    /// Layers that are whole, of files of more than one piece.
    pub fn layers(&self) -> impl Iterator<Item = (&Sha256Digest, &[Sha256Digest])> {
        let long = self.files.iter().filter(|file| file.shape.piece_count() > 1);
        long.filter_map(|file| file.layer.as_deref().map(|layer| (&file.root, layer)))
    }

    pub fn connection_lost(&mut self, conn: ConnId) {
        self.under_way.retain(|request| request.conn != conn);
        self.refused.remove(&conn);
        self.waiters.retain(|(waiter, ..)| *waiter != conn);
        self.tree = None;
    }

    pub fn is_complete(&self) -> bool {
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

    /// Takes in an answer. `Ok(Some(pieces))` when that made the layer of a file whole.
    fn received(&mut self, conn: ConnId, hashes: &Hashes<'_>) -> Result<Option<std::ops::Range<u32>>, PeerMisbehaved> {
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
        Ok(Some(file.first_piece..file.first_piece + file.shape.piece_count() as u32))
    }

    /// The answer to a peer's request, or the piece whose leaves it needs; `None` where it is to be rejected.
    fn answer(
        &mut self,
        request: &TreeRequest,
        leaves: Option<&[Sha256Digest]>,
    ) -> Option<Result<Vec<Sha256Digest>, u32>> {
        let at = *self.by_root.get(&request.root)?;
        let file = &self.files[at];
        if self.tree.as_ref().is_none_or(|(of, _)| *of != at) {
            self.tree = Some((at, PieceTree::new(file.shape, file.layer.as_deref()?)?));
        }
        let (_, tree) = self.tree.as_ref()?;
        let request = request.part;
        let needed = tree.leaves_needed(&request).ok()?;
        if needed.is_empty() {
            return tree.answer(&request, &[]).ok().map(Ok);
        }
        let blocks_per_piece = 1u64 << file.shape.piece_height();
        let within = (needed.start / blocks_per_piece) as u32;
        // Leaves of more than one piece are nothing that a failed piece could make anyone need.
        if needed.end > (u64::from(within) + 1) * blocks_per_piece {
            return None;
        }
        match leaves {
            Some(leaves) => tree.answer(&request, leaves).ok().map(Ok),
            None => Some(Err(file.first_piece + within)),
        }
    }
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
        if let Some(pieces) = content.hashes.received(id, hashes)? {
            let root = hashes.request().root;
            if let Some(picker) = &mut content.picker {
                pieces.for_each(|piece| picker.set_fetchable(piece, true));
            }
            self.events.push_back(Event::PieceLayer { root });
            self.fill_all_requests(now);
        }
        self.ask_for_hashes(id, now);
        Ok(())
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

    pub(super) fn on_hash_request(&mut self, id: ConnId, request: TreeRequest) {
        let busy = self.conns.get(&id).is_none_or(|conn| conn.out.len() >= ANSWERS_BYTES_MAX);
        let content = self.content.as_mut().filter(|_| !busy);
        let Some(content) = content else { return self.send_hashes(id, request, None) };
        match content.hashes.answer(&request, None) {
            Some(Ok(hashes)) => self.send_hashes(id, request, Some(&hashes)),
            Some(Err(piece)) => {
                let waiters = &mut content.hashes.waiters;
                if !content.have.get(piece) || waiters.len() >= LEAF_WAITERS_MAX {
                    return self.send_hashes(id, request, None);
                }
                // One reading of a piece is enough for all who wait for it.
                if waiters.iter().all(|(.., wanted)| *wanted != piece) {
                    self.events.push_back(Event::LeavesWanted { piece });
                }
                waiters.push((id, request, piece));
            }
            None => self.send_hashes(id, request, None),
        }
    }

    /// The leaves of a piece that [`Event::LeavesWanted`] asked for; empty where they could not be had.
    pub fn leaves_ready(&mut self, piece: u32, leaves: &[Sha256Digest]) {
        let Some(content) = &mut self.content else { return };
        let waiting = std::mem::take(&mut content.hashes.waiters);
        let (ready, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(_, _, wanted)| *wanted == piece);
        content.hashes.waiters = rest;
        let answers: Vec<_> = ready
            .into_iter()
            .map(|(id, request, _)| (id, request, content.hashes.answer(&request, Some(leaves))))
            .collect();
        for (id, request, answer) in answers {
            let hashes = answer.and_then(Result::ok);
            self.send_hashes(id, request, hashes.as_deref());
        }
    }

    /// BEP 52: "hashes", or "hash reject".
    fn send_hashes(&mut self, id: ConnId, request: TreeRequest, hashes: Option<&[Sha256Digest]>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        match hashes.and_then(|hashes| Hashes::new(request, hashes).ok()) {
            Some(answer) => Message::Hashes(answer).encode(&mut conn.out),
            None => Message::HashReject(request).encode(&mut conn.out),
        }
        self.touch(id);
    }
}
