//! What is done to a torrent's files while it is in a session: they are hashed anew, moved, chosen among, recorded.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anabranch_bittorrent::picker::Priority;
use anabranch_content::storage::{ResumeStore, Storage};
use anabranch_content::verify;

use super::torrent::{TorrentDriver, TorrentHandle, open, recheck};
use crate::events::EventKind;
use crate::store::open::blocking;
use crate::transfer::files::FILES_POLL;
use crate::transfer::{ControlError, FilePriorities};

type Outcome = Result<(), ControlError>;

/// Waits until no connection and no disk thread has the content's files, which are held: they are the caller's until it lets go.
async fn take_files(torrent: &TorrentHandle) -> Option<(Option<Arc<ResumeStore>>, Arc<Storage>)> {
    loop {
        {
            let mut state = torrent.borrow_mut();
            let storage = state.storage.clone()?;
            let resume = state.resume.clone();
            let is_free = match resume {
                // Of those that are only shared nothing is written.
                None => true,
                Some(resume) => {
                    // Ours and the content's, and those of what waits to be written; the record has the files to itself once.
                    let (counted, stored) = (Arc::strong_count(&resume), Arc::strong_count(&storage));
                    counted == 2 + state.stalled_jobs() && stored == 3
                }
            };
            if is_free && !state.is_busy() {
                state.put_finish_off();
                return Some((state.resume.clone(), storage));
            }
            if state.stopping {
                return None;
            }
            state.pump(Instant::now());
        }
        tokio::time::sleep(FILES_POLL).await;
    }
}

pub(super) async fn check_all(torrent: TorrentHandle) -> Outcome {
    let id = torrent.borrow().id;
    let Some((resume, storage)) = take_files(&torrent).await else { return Err(ControlError::Leaving(id)) };
    let (layers, cancel) = (torrent.borrow().layers(), Arc::clone(&torrent.borrow().cancel));
    let pieces: Vec<u32> = (0..storage.info().geometry.piece_count())
        .filter(|piece| verify::is_checkable(storage.info(), &layers, *piece))
        .collect();
    let (checked, known) = (pieces.clone(), Arc::clone(&storage));
    let good = open::checking(&torrent, move |progress| {
        if let Some(resume) = &resume {
            resume.take_as_found()?;
        } else {
            // Before they are hashed: a change after that is noticed.
            known.seal_all();
        }
        let good = verify::verify_pieces(&known, &layers, &checked, &cancel, progress);
        let Ok(good) = good else { return Ok(None) };
        if let Some(resume) = resume {
            let record = |piece: &u32| if good.get(*piece) { resume.verified(*piece) } else { resume.failed(*piece) };
            checked.iter().try_for_each(record)?;
        }
        Ok::<_, ControlError>(Some(good))
    });
    let good = good.await?.ok_or(ControlError::Leaving(id))?;
    let mut state = torrent.borrow_mut();
    let lost: Vec<u32> = pieces.iter().copied().filter(|piece| !good.get(*piece)).collect();
    state.found(&lost, good.iter_ones());
    let (pieces_have, pieces_total) = (state.core.have().map_or(0, |have| have.count()), good.len());
    state.tell(EventKind::Checked { pieces_have, pieces_total });
    Ok(())
}

pub(super) async fn move_files(torrent: TorrentHandle, dir: PathBuf) -> Outcome {
    let id = torrent.borrow().id;
    let dir = std::path::absolute(&dir).unwrap_or(dir);
    let Some((Some(resume), storage)) = take_files(&torrent).await else { return Err(ControlError::Leaving(id)) };
    if storage.root() == dir {
        return Ok(());
    }
    drop(storage);
    let (cancel, state_dir) = {
        let state = torrent.borrow();
        (Arc::clone(&state.cancel), state.resources().config.state_dir.clone())
    };
    let to = dir.clone();
    let moved = blocking(move || resume.move_to(&to, state_dir.as_deref(), &cancel)).await?;
    let mut state = torrent.borrow_mut();
    let resume = Arc::new(moved);
    state.set_files(&resume);
    state.options.dir.clone_from(&dir);
    // What lies in files that were not ours to move did not come along.
    let is_lost = |piece: &u32| resume.with(|record| !record.have.get(*piece));
    let lost: Vec<u32> = state.core.have().map_or(Vec::new(), |have| have.iter_ones().filter(is_lost).collect());
    state.lose(&lost);
    state.tell(EventKind::Moved { dir });
    Ok(())
}

pub(super) async fn select(torrent: TorrentHandle, files: FilePriorities) -> Outcome {
    let (resume, storage) = {
        let state = torrent.borrow();
        let (Some(resume), Some(storage)) = (state.resume.clone(), state.storage.clone()) else {
            return Err(ControlError::NotOpen(state.id));
        };
        (resume, storage)
    };
    let info = Arc::clone(storage.info());
    let priorities: Vec<Priority> = info.files.iter().enumerate().map(|(index, entry)| files(index, entry)).collect();
    let wanted: Vec<bool> = priorities.iter().map(|priority| *priority != Priority::SKIP).collect();
    let levels = priorities.clone();
    blocking(move || {
        storage.select(&wanted)?;
        levels.iter().enumerate().for_each(|(file, priority)| resume.set_priority(file, priority.level()));
        Ok::<_, ControlError>(())
    })
    .await?;
    let mut pieces = vec![Priority::SKIP; info.geometry.piece_count() as usize];
    for (file, _) in info.regular_files() {
        for piece in info.pieces_of_file(file) {
            // The file that wants it most decides.
            let slot = &mut pieces[piece as usize];
            if slot.level() < priorities[file].level() {
                *slot = priorities[file];
            }
        }
    }
    let pieces: Vec<(u32, Priority)> = (0..).zip(pieces).collect();
    let (mut state, now) = (torrent.borrow_mut(), Instant::now());
    state.core.set_priorities(&pieces, now);
    state.pump(now);
    Ok(())
}

/// The record of a content, where it is due to be made durable.
pub(super) fn due(torrent: &mut TorrentDriver, now: Instant) -> Option<Arc<ResumeStore>> {
    let resume = torrent.resume.clone().filter(|_| !torrent.stopping)?;
    let stats = torrent.core.stats(now);
    resume.set_totals(stats.downloaded_bytes, stats.uploaded_bytes);
    resume.checkpoint_due(now).then_some(resume)
}

/// Makes durable what was received; what the disk did not take is hashed again.
pub(super) async fn checkpoint(torrent: TorrentHandle, resume: Arc<ResumeStore>) {
    let syncing = Arc::clone(&resume);
    // A disk that does not work shows again at the next write, which reports it.
    let _ = blocking(move || syncing.checkpoint()).await;
    recheck::recheck(&torrent, resume.distrusted(), true).await;
}
