//! What an owner may ask of a content while it is there.
//!
//! | what | connections | trackers | while files are not open | twice |
//! | --- | --- | --- | --- | --- |
//! | [`pause`](Contents::pause) | end; nobody is dialled, callers are sent away | are told that we left | opening and checking go on | the same |
//! | [`resume`](Contents::resume) | anew | are told that we came | the same | the same |
//! | [`recheck`](Contents::recheck), [`move_to`](Contents::move_to) | end, and come anew | hear nothing | an error | an error: busy |
//! | [`set_files`](Contents::set_files) | stay | hear with the next announce | an error | an error: busy |
//! | [`set_limits`](Contents::set_limits), [`add_peers`](Contents::add_peers), [`reannounce`](Contents::reannounce) | stay | | the same | the same |
//!
//! A pause is the session's alone: the next one begins as it is told. What works on files is a task of the content, and goes to its
//! end whoever waits for it, or ends with the content.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::picker::Priority;
use anabranch_content::info::FileEntry;
use anabranch_content::storage::{ResumeStore, Storage};
use anabranch_content::verify;
use anabranch_paths::Endpoint;
use tokio::sync::oneshot;

use crate::bittorrent::open;
use crate::bittorrent::torrent::{TorrentHandle, Work};
use crate::events::{EventKind, PauseCause, TorrentId};
use crate::ppspp;
use crate::session::{Contents, ControlError};
use crate::store::open::blocking;

/// How often it is looked whether whoever works on a content's files is done.
const ALONE_POLL: Duration = Duration::from_millis(5);

/// How much each file is wanted, by its index in the file list or what it is; [`Priority::SKIP`]: not at all.
pub type FilePriorities = Box<dyn Fn(usize, &FileEntry) -> Priority + Send>;

type Outcome = Result<(), ControlError>;

impl Contents {
    /// Has a content wait until [`Contents::resume`]. What is on its way from the disk threads is still written.
    pub fn pause(&self, id: TorrentId) -> Outcome {
        if let Some(content) = self.ppspp_at_work(id)? {
            content.borrow_mut().pause();
            return Ok(());
        }
        let torrent = self.at_work(id)?;
        let mut state = torrent.borrow_mut();
        if !std::mem::replace(&mut state.is_paused_by_owner, true) {
            state.hold("this content is paused");
            state.announce.notify_one();
            state.tell(EventKind::Paused { cause: PauseCause::Owner, reason: "its owner has it wait".to_owned() });
        }
        Ok(())
    }

    /// Ends [`Contents::pause`]. Where storage is out of order meanwhile, it is that which the content waits for then.
    pub fn resume(&self, id: TorrentId) -> Outcome {
        if let Some(content) = self.ppspp_at_work(id)? {
            content.borrow_mut().resume();
            return Ok(());
        }
        let torrent = self.at_work(id)?;
        let mut state = torrent.borrow_mut();
        if std::mem::take(&mut state.is_paused_by_owner) && state.let_go() {
            state.tell(EventKind::Resumed);
        }
        Ok(())
    }

    /// Limits a content's traffic, in bytes per second; `None`: no limit of its own. Holds at once, for open connections too.
    pub fn set_limits(&self, id: TorrentId, down: Option<u64>, up: Option<u64>) -> Outcome {
        if self.ppspp_at_work(id)?.is_none() {
            self.at_work(id)?;
        }
        let now = Instant::now();
        self.resources.down.set_content_limit(id.0, down, now);
        self.resources.up.set_content_limit(id.0, up, now);
        Ok(())
    }

    /// Asks a content's trackers as soon as they allow: also those that failed lately.
    pub fn reannounce(&self, id: TorrentId) -> Outcome {
        if let Some(content) = self.ppspp_at_work(id)? {
            let mut state = content.borrow_mut();
            state.is_announce_due = true;
            state.announce.notify_one();
            return Ok(());
        }
        let torrent = self.at_work(id)?;
        let mut state = torrent.borrow_mut();
        state.is_announce_due = true;
        state.announce.notify_one();
        Ok(())
    }

    /// Dials peers for a content. One at an address that cannot be dialled is told as [`EventKind::PeerFailed`].
    pub fn add_peers(&self, id: TorrentId, peers: &[Endpoint]) -> Outcome {
        if let Some(content) = self.ppspp_at_work(id)? {
            let (mut state, now) = (content.borrow_mut(), Instant::now());
            peers.iter().for_each(|peer| state.name_peer(*peer, now));
            return Ok(());
        }
        let torrent = self.at_work(id)?;
        let mut state = torrent.borrow_mut();
        peers.iter().for_each(|peer| state.name_peer(*peer));
        state.dial.notify_one();
        Ok(())
    }

    /// Hashes all pieces anew, whatever is recorded: [`EventKind::Checking`] says how far that got, [`EventKind::Checked`] what came
    /// of it. Bad pieces are fetched again; of files that are only shared they are not offered any more.
    pub fn recheck(&self, id: TorrentId) -> impl Future<Output = Outcome> + use<> {
        let begun = match self.ppspp_at_work(id) {
            Ok(Some(content)) => begin_check(id, &content),
            Ok(None) => self.begin(id, Work::Recheck, |torrent| Box::pin(check_all(torrent))),
            Err(error) => Err(error),
        };
        end_of(begun)
    }

    /// Moves a content's files below another folder, which is made where it is missing: by name on the same file system, else they
    /// are copied, forced to the disk, and deleted. All of them move or none: where something is in the way or fails, all stays
    /// where it was, and the content goes on there.
    pub fn move_to(&self, id: TorrentId, dir: PathBuf) -> impl Future<Output = Outcome> + use<> {
        let begun = self
            .refuse_shared(id)
            .and_then(|()| self.begin(id, Work::Move, |torrent| Box::pin(move_files(torrent, dir))));
        end_of(begun)
    }

    /// Says anew which files are wanted, and how much. What a file has that is not wanted any more stays.
    pub fn set_files(&self, id: TorrentId, files: FilePriorities) -> impl Future<Output = Outcome> + use<> {
        let begun = self
            .refuse_shared(id)
            .and_then(|()| self.begin(id, Work::Select, |torrent| Box::pin(select(torrent, files))));
        end_of(begun)
    }

    /// The content of PPSPP of this number, if it is one that something can be asked of; `None` where the number is not PPSPP's.
    fn ppspp_at_work(&self, id: TorrentId) -> Result<Option<ppspp::Handle>, ControlError> {
        let Some(content) = self.of_ppspp(id) else { return Ok(None) };
        let (is_leaving, has_failed) = (content.borrow().is_leaving, content.borrow().stopping);
        match (is_leaving, has_failed) {
            (true, _) => Err(ControlError::Leaving(id)),
            (false, true) => Err(ControlError::Failed(id)),
            (false, false) => Ok(Some(content)),
        }
    }

    /// The content of this number, if it is one that something can be asked of.
    fn at_work(&self, id: TorrentId) -> Result<TorrentHandle, ControlError> {
        let torrent = self.torrent(id).ok_or(ControlError::Unknown(id))?;
        let (is_leaving, has_failed) = (torrent.borrow().is_leaving, torrent.borrow().stopping);
        match (is_leaving, has_failed) {
            (true, _) => Err(ControlError::Leaving(id)),
            (false, true) => Err(ControlError::Failed(id)),
            (false, false) => Ok(torrent),
        }
    }

    fn refuse_shared(&self, id: TorrentId) -> Outcome {
        if self.ppspp_at_work(id)?.is_some() {
            return Err(ControlError::NotWithPpspp(id));
        }
        let is_shared = self.at_work(id)?.borrow().options.read_only;
        if is_shared { Err(ControlError::OnlyShared(id)) } else { Ok(()) }
    }

    /// Begins to work on a content's files, as a task of the content.
    fn begin(
        &self,
        id: TorrentId,
        work: Work,
        task: impl FnOnce(TorrentHandle) -> std::pin::Pin<Box<dyn Future<Output = Outcome>>>,
    ) -> Result<oneshot::Receiver<Outcome>, ControlError> {
        let torrent = self.at_work(id)?;
        let mut state = torrent.borrow_mut();
        if state.storage.is_none() {
            return Err(ControlError::NotOpen(id));
        }
        if let Some(busy) = state.work {
            return Err(ControlError::Busy(id, busy));
        }
        state.work = Some(work);
        if work != Work::Select {
            state.hold("its files are being worked on");
        }
        let (done, outcome) = oneshot::channel();
        let (task, working) = (task(torrent.clone()), torrent.clone());
        let working = async move {
            let outcome = task.await;
            let mut state = working.borrow_mut();
            state.work = None;
            state.let_go();
            // Nobody has to wait for it.
            let _ = done.send(outcome);
        };
        state.spawn(open::guarded(torrent.clone(), working));
        Ok(outcome)
    }
}

fn begin_check(id: TorrentId, content: &ppspp::Handle) -> Result<oneshot::Receiver<Outcome>, ControlError> {
    let mut state = content.borrow_mut();
    if state.storage.is_none() {
        return Err(ControlError::NotOpen(id));
    }
    if let Some(busy) = state.work {
        return Err(ControlError::Busy(id, busy));
    }
    state.work = Some(Work::Recheck);
    state.update_hold();
    let (done, outcome) = oneshot::channel();
    let working = content.clone();
    state.spawn(async move {
        let outcome = ppspp::check_all(working.clone()).await;
        let mut state = working.borrow_mut();
        state.work = None;
        state.update_hold();
        // Nobody has to wait for it.
        let _ = done.send(outcome);
    });
    Ok(outcome)
}

async fn end_of(begun: Result<oneshot::Receiver<Outcome>, ControlError>) -> Outcome {
    // A content that was removed meanwhile took the task with it.
    begun?.await.unwrap_or(Err(ControlError::Gone))
}

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
                return Some((state.resume.clone(), storage));
            }
            if state.stopping {
                return None;
            }
            state.pump(Instant::now());
        }
        tokio::time::sleep(ALONE_POLL).await;
    }
}

async fn check_all(torrent: TorrentHandle) -> Outcome {
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
        let good = verify::verify_pieces(known.info(), &layers, known.root(), &checked, &cancel, progress);
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

async fn move_files(torrent: TorrentHandle, dir: PathBuf) -> Outcome {
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

async fn select(torrent: TorrentHandle, files: FilePriorities) -> Outcome {
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
