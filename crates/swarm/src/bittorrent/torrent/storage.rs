//! Storage that is out of order: what waits until it works again, and pieces that were good and are not.

use std::time::Instant;

use anabranch_bittorrent::picker::Priority;
use anabranch_bittorrent::torrent::PieceOutcome;
use anabranch_content::metainfo::PieceLayers;
use anabranch_content::storage::StorageError;

use super::{Stalled, TorrentDriver, Trouble, UNREADABLE_MAX, recheck};
use crate::events::{EventKind, FailureKind, PauseCause};
use crate::store::disk::Reply;
use crate::store::may_pass;
use crate::store::recheck::is_restored;
use crate::store::spill;
use crate::store::watch::changed_words;

impl TorrentDriver {
    /// Nothing more is asked for; what is here is kept.
    pub(super) fn stall(&mut self, job: Stalled, error: &StorageError, now: Instant) {
        self.probing = false;
        // A place that never took anything is a mistake; one that did changed, and may change back.
        if error.needs_a_choice() || !self.has_written && !may_pass(error) {
            self.fail(FailureKind::Storage, error.to_string(), now);
            return;
        }
        self.stalled.push(job);
        self.pause(error.to_string(), now);
    }

    /// Nothing moves until storage works again. Where the owner has the content wait, that is told when the owner lets it go.
    pub(super) fn pause(&mut self, reason: String, now: Instant) {
        let is_told = self.core.is_paused() && self.trouble.as_ref().is_some_and(|before| before.is_told);
        self.trouble = Some(Trouble { reason, is_told });
        if !self.core.is_paused() {
            self.core.set_paused(true, now);
            self.tell_trouble();
            self.clock.notify_one();
        }
    }

    /// Tells what is out of order with storage, if that was not told yet.
    pub(super) fn tell_trouble(&mut self) {
        let Some(trouble) = self.trouble.as_mut().filter(|trouble| !trouble.is_told) else { return };
        trouble.is_told = true;
        let reason = trouble.reason.clone();
        self.tell(EventKind::Paused { cause: PauseCause::Storage, reason });
    }

    /// Tries storage again with one thing that it refused.
    pub(crate) fn retry_storage(&mut self) {
        if !self.core.is_paused() || self.probing || self.stopping || self.is_held() {
            return;
        }
        if let Some(job) = self.stalled.pop() {
            self.probing = true;
            self.hand_in(job);
        } else if let (Some(piece), Some(storage)) = (self.unreadable.last().copied(), self.storage.clone()) {
            self.probing = true;
            let (torrent, layers, have) = (self.id, self.layers(), self.core.have().cloned());
            self.resources.disk.run(torrent, move || {
                let is_restored = || have.is_some_and(|have| is_restored(&storage, &layers, &have, piece));
                let readable = spill::read(&storage, piece, |_| {}).is_ok() && is_restored();
                Reply::Reread { content: torrent, piece, readable }
            });
        }
    }

    /// A piece that could not be sent was looked at again.
    pub(crate) fn reread(&mut self, piece: u32, readable: bool, now: Instant) {
        if readable {
            self.unreadable.retain(|other| *other != piece);
            self.storage_works(now);
            self.pump(now);
        } else {
            self.probing = false;
        }
    }

    /// Something reached the disk, or could be read. Where that was in doubt, everything else follows.
    pub(super) fn storage_works(&mut self, now: Instant) {
        if !std::mem::take(&mut self.probing) {
            return;
        }
        for job in std::mem::take(&mut self.stalled) {
            self.hand_in(job);
        }
        if self.unreadable.is_empty() && !self.is_held() {
            self.core.set_paused(false, now);
            self.trouble = None;
            self.tell(EventKind::Resumed);
        }
    }

    pub(super) fn hand_in(&mut self, job: Stalled) {
        match job {
            Stalled::Piece(job) => {
                self.verifying += 1;
                self.resources.disk.verify(*job);
            }
            Stalled::Spill(job) => {
                self.spilling += 1;
                self.resources.disk.spill(*job);
            }
        }
    }

    /// A job of ours panicked, on a disk thread or elsewhere, and is lost. Waiting for it would be for ever, and what it did is
    /// unknown: this content ends here. What was verified before is on disk and recorded.
    pub(crate) fn panicked(&mut self, now: Instant) {
        // Answers that still come are of jobs that nobody waits for any more.
        (self.verifying, self.spilling) = (0, 0);
        self.is_opening = false;
        if self.stopping {
            return;
        }
        let reason = "a fault in anabranch stopped it, standard error says where: please report that. What was verified is \
                      kept: the same command goes on from there";
        self.fail(FailureKind::Internal, reason.to_owned(), now);
    }

    /// This content ends here. What was verified before is on disk and recorded.
    pub(crate) fn fail(&mut self, kind: FailureKind, reason: String, now: Instant) {
        if self.stopping {
            return;
        }
        self.stalled.clear();
        self.unreadable.clear();
        self.waiting.clear();
        self.buffers = None;
        self.core.set_paused(true, now);
        self.tell(EventKind::Failed { kind, reason });
        self.stop("we had to stop");
        self.pump(now);
    }

    /// Whether there are connections, the disk threads have something of ours, or files are being opened.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_opening || !self.conns.is_empty() || self.verifying + self.spilling > 0
    }

    /// A piece of a download that was promised cannot be read. Nothing of it is given up: the cause may pass, as when a disk is
    /// plugged in again. Answers whether it is one of a download.
    pub(super) fn wait_until_readable(&mut self, piece: u32, reason: &str) -> bool {
        if self.resume.is_none() {
            return false;
        }
        if self.unreadable.len() < UNREADABLE_MAX && !self.unreadable.contains(&piece) {
            self.unreadable.push(piece);
        }
        let now = Instant::now();
        self.pause(reason.to_owned(), now);
        self.pump(now);
        true
    }

    /// A file is not any more what was verified, ended before its time, or is gone, as `piece` was to be sent. Where files are
    /// only shared, the pieces in it are not ours any more until they are checked.
    pub(crate) fn content_changed(&mut self, file: usize, piece: u32, reason: &str) {
        if self.wait_until_readable(piece, reason) {
            return;
        }
        self.shared_files_changed(&[file]);
    }

    /// The same of several files at once.
    pub(crate) fn files_changed(&mut self, files: &[usize]) {
        let (Some(storage), Some(first)) = (self.storage.clone(), files.first()) else { return };
        let (info, path) = (storage.info(), storage.file_path(*first));
        let reason = format!("{} was changed since it was verified; put it back", path.display());
        if !self.wait_until_readable(info.pieces_of_file(*first).start, &reason) {
            self.shared_files_changed(files);
        }
    }

    fn shared_files_changed(&mut self, files: &[usize]) {
        let Some(storage) = self.storage.clone() else { return };
        let info = storage.info();
        let pieces: Vec<u32> = files.iter().flat_map(|file| info.pieces_of_file(*file)).collect();
        let new: Vec<usize> = files.iter().copied().filter(|file| self.in_doubt.insert(*file)).collect();
        self.lose_shared(&pieces, (!new.is_empty()).then(|| changed_words(info, &new)));
        new.into_iter().for_each(|file| recheck::watch(self, file));
    }

    /// A piece that was to be sent cannot be read.
    pub(crate) fn content_unreadable(&mut self, piece: u32, reason: &str) {
        if self.wait_until_readable(piece, reason) {
            return;
        }
        self.lose_shared(&[piece], Some(format!("piece {piece} cannot be read from disk any more")));
    }

    /// Files that are only shared: nothing is fetched in place of what is lost. The user is told the reason, if there is a new one.
    pub(super) fn lose_shared(&mut self, pieces: &[u32], reason: Option<String>) {
        if self.lose(pieces)
            && let Some(reason) = reason
        {
            self.tell(EventKind::Failed { kind: FailureKind::Content, reason });
        }
        let skipped: Vec<_> = pieces.iter().map(|piece| (*piece, Priority::SKIP)).collect();
        let now = Instant::now();
        self.core.set_priorities(&skipped, now);
        self.pump(now);
    }

    /// `pieces` are not good any more. Answers whether any of them counted as good.
    pub(crate) fn lose(&mut self, pieces: &[u32]) -> bool {
        let any = self.forget_pieces(pieces);
        if let Some(resume) = self.resume.as_ref().filter(|_| any) {
            // Should this not reach the disk, the pieces are found bad at the next check.
            pieces.iter().for_each(|piece| drop(resume.failed(*piece)));
        }
        any
    }

    pub(super) fn forget_pieces(&mut self, pieces: &[u32]) -> bool {
        let now = Instant::now();
        let before = self.core.have().map_or(0, |have| have.count());
        if let Some(buffers) = &mut self.buffers {
            // Those that are being verified now stay closed: their verdict comes.
            let lost = pieces.iter().filter(|piece| self.core.have().is_some_and(|have| have.get(**piece)));
            lost.for_each(|piece| buffers.reopen(*piece));
        }
        self.core.pieces_lost(pieces, now);
        let any = self.core.have().map_or(0, |have| have.count()) < before;
        if any {
            self.dial.notify_one();
            self.read_on(now);
        }
        self.pump(now);
        any
    }

    /// `pieces` turned out to be good after all.
    pub(crate) fn regain(&mut self, pieces: impl Iterator<Item = u32>) {
        let now = Instant::now();
        for piece in pieces {
            if self.core.have().is_some_and(|have| !have.get(piece)) {
                self.core.piece_verified(piece, PieceOutcome::Good { digests: Vec::new() }, now);
            }
        }
        self.arrived.notify_waiters();
        self.pump(now);
    }

    /// The Merkle layers that are known.
    pub(crate) fn layers(&self) -> PieceLayers {
        self.core.piece_layers().map(|(root, layer)| (*root, layer.into())).collect()
    }
}
