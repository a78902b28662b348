//! What happens to one content between its coming and its going: metadata arrives, files are opened, everything is there.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anabranch_content::info::Info;
use anabranch_content::metainfo::{Metainfo, NameRules, PieceLayers};

use crate::bittorrent::torrent::{TorrentDriver, TorrentHandle};
use crate::bittorrent::{kept_metadata, open, recheck};
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
    pub(crate) fn finished(&self) {
        if let Some(torrent) = self.this() {
            self.spawn(open::guarded(torrent.clone(), finish(torrent)));
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
    state.core.expect_content(Arc::clone(&kept.info));
    state.begin(&kept.info, std::future::ready(kept.piece_layers));
}

async fn finish(torrent: TorrentHandle) {
    let resume = torrent.borrow().resume.clone();
    let mut told = false;
    while let Some(resume) = resume.clone() {
        // What is fetched again now finishes again.
        if recheck::recheck(&torrent, resume.distrusted(), true).await > 0 || torrent.borrow().stopping {
            return;
        }
        if resume.is_at_rest() {
            break;
        }
        let finishing = Arc::clone(&resume);
        let finished = blocking(move || finishing.finish()).await;
        let lost = match finished {
            Ok(changed) if changed.is_empty() => break,
            Ok(changed) => recheck::recheck(&torrent, changed, false).await,
            Err(error) => {
                if !open::wait_out(&torrent, &error, &mut told).await {
                    return;
                }
                continue;
            }
        };
        if lost > 0 || torrent.borrow().stopping {
            return;
        }
    }
    if told {
        torrent.borrow().tell(EventKind::Resumed);
    }
    torrent.borrow().tell(EventKind::Finished);
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
