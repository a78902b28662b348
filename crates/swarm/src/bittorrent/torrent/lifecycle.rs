//! What happens to one content between its coming and its going: metadata arrives, files are opened, everything is there.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anabranch_content::info::Info;
use anabranch_content::metainfo::{Metainfo, NameRules, PieceLayers};
use anabranch_content::storage::StorageError;

use super::{TorrentDriver, TorrentHandle, open, recheck};
use crate::bittorrent::kept_metadata;
use crate::config::AddError;
use crate::events::{EventKind, FailureKind};
use crate::store::open::blocking;

impl TorrentDriver {
    /// Peers sent the metadata of a magnet link. Answers what the content is, where it is usable.
    pub(crate) fn metadata_arrived(&mut self, bytes: &[u8]) -> Option<Arc<Info>> {
        let info = match Info::parse_for(bytes, &NameRules::EXACT) {
            Ok(info) => Arc::new(info),
            Err(error) => {
                let reason = format!("the metadata that peers sent is right by its hash but unusable: {error}");
                self.tell(EventKind::Failed { kind: FailureKind::Metadata, reason });
                return None;
            }
        };
        let (folder, metainfo) = (self.resources().config.metadata_dir.clone(), Metainfo::new(Arc::clone(&info)));
        let layers = async move {
            match folder {
                // Peers may be faster than `remember`.
                Some(folder) => blocking(move || kept_metadata::layers_or_keep(&folder, &metainfo)).await,
                None => PieceLayers::new(),
            }
        };
        self.begin(&info, layers).then_some(info)
    }

    /// What a magnet link names is known. `false` where it is a content of this session already.
    fn begin(&mut self, info: &Arc<Info>, layers: impl Future<Output = PieceLayers> + 'static) -> bool {
        let (Some(contents), Some(torrent)) = (self.contents(), self.this()) else { return false };
        // The link may have named one of two hashes: peers may ask for the other.
        if !contents.take_hashes(self.id, &info.hashes) {
            let reason = format!("{}; name each content once", AddError::Duplicate(info.name.clone()));
            self.spawn(async move {
                torrent.borrow_mut().fail(FailureKind::Metadata, reason, Instant::now());
            });
            return false;
        }
        let (opening, info) = (torrent.clone(), Arc::clone(info));
        let opening = async move { open::open(opening, info, layers.await).await };
        self.spawn(open::guarded(torrent, opening));
        true
    }

    /// Everything wanted is there: looked at once more, forced to the disk and recorded first, told then.
    pub(crate) fn finished(&mut self) {
        let Some(torrent) = self.this() else { return };
        self.finish.turn += 1;
        self.finish.is_pending = true;
        self.spawn(open::guarded(torrent.clone(), finish(torrent, self.finish.turn)));
    }

    /// Somebody has the files to itself, and may find that not everything is there: a finish that waits for storage ends, and begins
    /// again after that if everything is.
    pub(crate) fn put_finish_off(&mut self) {
        if self.finish.is_pending {
            self.finish.turn += 1;
            self.finish.is_put_off = true;
            self.end_finish();
        }
    }

    /// Nobody has the files to itself any more.
    pub(crate) fn finish_what_was_put_off(&mut self) {
        if self.is_worked_on() || self.stopping {
            return;
        }
        if std::mem::take(&mut self.finish.is_put_off) && self.core.is_finished() {
            self.finished();
        }
    }

    /// Whether everything wanted is there, and not yet told to be: until it is on the disk, some of it may be lost.
    pub(crate) fn is_being_finished(&self) -> bool {
        self.finish.is_pending || self.finish.is_put_off
    }

    /// Whether the finish of this turn goes on.
    fn is_to_finish(&mut self, turn: u64) -> bool {
        if self.finish.turn != turn {
            return false;
        }
        if self.is_worked_on() {
            self.put_finish_off();
            return false;
        }
        // What was lost meanwhile is fetched again, and finishes again then.
        if !self.core.is_finished() {
            self.end_finish();
        }
        self.finish.is_pending
    }

    /// Nothing is finished at present, and nothing waits for storage for that.
    fn end_finish(&mut self) {
        self.finish.is_pending = false;
        if std::mem::take(&mut self.finish.is_told) && !self.stopping {
            self.tell(EventKind::Resumed);
        }
    }
}

/// Metadata that an earlier run was sent does as well as what peers would send.
pub(crate) async fn remember(torrent: TorrentHandle, folder: PathBuf) {
    let hashes = torrent.borrow().hashes;
    let kept = blocking(move || kept_metadata::load(&folder, &hashes)).await;
    let mut state = torrent.borrow_mut();
    state.is_remembering = false;
    let Some(kept) = kept else { return };
    if state.stopping || std::mem::replace(&mut state.metadata_known, true) {
        return;
    }
    if kept.info.private {
        state.leave_strangers();
    }
    state.core.expect_content(Arc::clone(&kept.info));
    state.begin(&kept.info, std::future::ready(kept.piece_layers));
}

async fn finish(torrent: TorrentHandle, turn: u64) {
    while torrent.borrow_mut().is_to_finish(turn) {
        let error = match bring_to_disk(&torrent).await {
            Ok(is_complete) => return finish_ended(&mut torrent.borrow_mut(), turn, is_complete),
            Err(error) => error,
        };
        if torrent.borrow().finish.turn != turn {
            return;
        }
        // Neither the record nor the files are held meanwhile: whoever checks or moves them waits to have them alone.
        let mut told = std::mem::replace(&mut torrent.borrow_mut().finish.is_told, true);
        if !open::wait_out(&torrent, &error, &mut told).await {
            return;
        }
    }
}

fn finish_ended(torrent: &mut TorrentDriver, turn: u64, is_complete: bool) {
    if torrent.finish.turn == turn {
        torrent.end_finish();
        if is_complete {
            torrent.tell(EventKind::Finished);
        }
    }
}

/// Looks at everything that is wanted once more, forces it to the disk and records it. `false` where some of it is fetched again, which
/// finishes again then, or where the content ends.
async fn bring_to_disk(torrent: &TorrentHandle) -> Result<bool, StorageError> {
    loop {
        // Of files that are only shared there is no record.
        let Some(resume) = torrent.borrow().resume.clone() else { return Ok(true) };
        if recheck::recheck(torrent, resume.distrusted(), true).await > 0 || torrent.borrow().stopping {
            return Ok(false);
        }
        if resume.is_at_rest() {
            return Ok(true);
        }
        // The record is held until what changed is hashed: whoever checks or moves the files begins after that.
        let finishing = Arc::clone(&resume);
        let changed = blocking(move || finishing.finish()).await?;
        if changed.is_empty() {
            return Ok(true);
        }
        if recheck::recheck(torrent, changed, false).await > 0 || torrent.borrow().stopping {
            return Ok(false);
        }
    }
}

/// Keeps the core's time. A content without connections sleeps until it has one.
pub(crate) async fn keep_time(torrent: TorrentHandle) {
    let clock = Rc::clone(&torrent.borrow().clock);
    loop {
        let deadline = {
            let mut torrent = torrent.borrow_mut();
            if torrent.stopping {
                return;
            }
            let now = Instant::now();
            torrent.update_room();
            torrent.core.on_time(now);
            torrent.pump(now);
            torrent.reap();
            torrent.core.next_deadline()
        };
        match deadline {
            Some(deadline) => {
                tokio::select! {
                    () = tokio::time::sleep_until(deadline.into()) => {}
                    () = clock.notified() => {}
                }
            }
            None => clock.notified().await,
        }
    }
}
