//! The session is brought in line with what is kept: who has its turn is in it and goes on, who has not waits.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anabranch_swarm::{ContentId, Data};

use super::live::{Job, Phase};
use super::{Engine, State};
use crate::library::{Candidate, Going, Turn, turns};

/// Contents that are on their way into the session at once. It opens a few at a time, and hashes apart from that: so many are enough for
/// it never to wait for us.
const LOADING_MAX: usize = 1024;
/// Contents of which torrents are made at once.
const MAKING_MAX: usize = 8;
/// Changes within this time are looked at together.
const TOGETHER: Duration = Duration::from_millis(20);

/// What is to be done with a content.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Load,
    Hold(ContentId),
    Release(ContentId),
    /// Its removal was begun in an earlier run.
    Remove(Going),
    /// A move was begun in an earlier run.
    Moved,
    /// It is complete, and not where it stays.
    Place(PathBuf),
    /// It holds from its beginning on what was changed.
    Reopen(ContentId),
}

impl Engine {
    /// Brings the session in line whenever something changed. Never ends.
    pub(crate) async fn drive(self: Rc<Self>) {
        let settings = self.settings();
        let (down, up) = settings.limits();
        if down.is_some() || up.is_some() {
            // A session that ended needs no limits.
            let _ = self.handle.set_session_limits(down, up).await;
        }
        self.prefer_ports().await;
        loop {
            for (id, step) in self.steps() {
                self.perform(id, step).await;
            }
            self.changed.notified().await;
            tokio::time::sleep(TOGETHER).await;
        }
    }

    async fn perform(self: &Rc<Self>, id: u64, step: Step) {
        match step {
            Step::Load => {
                let engine = Rc::clone(self);
                self.with(id, |content| content.live.phase = Phase::Loading);
                tokio::task::spawn_local(async move {
                    let session = engine.load(id).await;
                    engine.changed.notify_one();
                    if let Some(session) = session {
                        engine.read_input(id, session).await;
                    }
                });
            }
            Step::Hold(session) => {
                // One that failed, or leaves, needs no pause.
                let _ = self.handle.pause(session).await;
                self.with(id, |content| content.live.is_held = true);
                self.announce(id);
            }
            Step::Release(session) => {
                let _ = self.handle.resume(session).await;
                self.with(id, |content| content.live.is_held = false);
                self.announce(id);
            }
            Step::Remove(going) => {
                self.with(id, |content| content.live.job = Some(Job::Remove));
                let engine = Rc::clone(self);
                tokio::task::spawn_local(async move {
                    // What stays of it is told in the log of the one who asked, who is gone.
                    let _ = engine.finish_removal(id, going).await;
                });
            }
            Step::Moved => self.settle_move(id).await,
            Step::Place(dir) => self.place(id, dir).await,
            Step::Reopen(session) => {
                self.with(id, |content| (content.live.reopen, content.live.job) = (false, Some(Job::Reopen)));
                let engine = Rc::clone(self);
                tokio::task::spawn_local(async move {
                    // It is let go whatever becomes of it: what is known of its pieces is recorded.
                    let _ = engine.handle.remove(session, Data::Keep).await;
                    engine.with(id, |content| {
                        if content.live.session == Some(session) {
                            content.leave();
                        }
                        // It may ask others from now on.
                        content.live.trackers.clear();
                    });
                    engine.end(id, Ok(()));
                });
            }
        }
    }

    /// What is to be done, by the turns of all.
    fn steps(&self) -> Vec<(u64, Step)> {
        let (steps, changed) = plan(&mut self.state.borrow_mut());
        changed.into_iter().for_each(|id| self.announce(id));
        steps
    }
}

/// What is to be done, and whose turn changed.
fn plan(state: &mut State) -> (Vec<(u64, Step)>, Vec<u64>) {
    let candidate = |content: &super::Content| Candidate {
        id: content.entry.id,
        rank: content.entry.rank,
        is_wanted: !content.entry.paused && content.entry.going.is_none(),
        is_forced: content.entry.forced,
        is_complete: content.entry.is_complete(),
        has_failed: content.live.failed.is_some(),
        lacks_space: content.live.lacks_space,
        is_busy: content.live.job.is_some(),
    };
    let candidates: Vec<Candidate> = state.contents.values().map(candidate).collect();
    let turns = turns(&candidates, state.settings.places());
    let (mut steps, mut changed) = (Vec::new(), Vec::new());
    let is_loading = |phase: Phase| matches!(phase, Phase::Loading | Phase::Opening);
    let mut loading = state.contents.values().filter(|content| is_loading(content.live.phase)).count();
    let mut hashing = state.contents.values().filter(|content| content.live.phase == Phase::Hashing).count();
    let mut waiting: Vec<(bool, i64, u64)> = Vec::new();
    for (content, turn) in state.contents.values_mut().zip(turns) {
        let (id, live) = (content.entry.id, &mut content.live);
        if live.turn.replace(turn) != Some(turn) {
            changed.push(id);
        }
        if let Some(going) = content.entry.going {
            if live.job.is_none() {
                steps.push((id, Step::Remove(going)));
            }
            continue;
        }
        if content.entry.moving_to.is_some() && live.job.is_none() && live.phase == Phase::Out {
            steps.push((id, Step::Moved));
            continue;
        }
        let is_open = live.phase == Phase::Open && live.job.is_none() && !live.unplaced;
        if let Some(dir) = content.entry.final_dir.as_ref().filter(|_| is_open && content.entry.completed.is_some()) {
            steps.push((id, Step::Place(dir.clone())));
            continue;
        }
        match live.session {
            Some(session) if live.reopen && live.job.is_none() => steps.push((id, Step::Reopen(session))),
            Some(session) if turn == Turn::Run && live.is_held => steps.push((id, Step::Release(session))),
            Some(session) if turn != Turn::Run && !live.is_held && live.failed.is_none() => {
                steps.push((id, Step::Hold(session)));
            }
            None if turn == Turn::Run && live.phase == Phase::Out && live.failed.is_none() && live.job.is_none() => {
                waiting.push((content.entry.is_complete(), content.entry.rank, id));
            }
            _ => {}
        }
    }
    // Who still lacks something first, then in the order of the queue.
    waiting.sort_unstable();
    let mut left = waiting.len();
    for (_, _, id) in waiting {
        let Some(content) = state.contents.get(&id) else { continue };
        let makes_torrent = content.entry.is_only_shared() && content.entry.hashes.is_empty();
        let (places, most) = if makes_torrent { (&mut hashing, MAKING_MAX) } else { (&mut loading, LOADING_MAX) };
        if *places < most {
            *places += 1;
            left -= 1;
            steps.push((id, Step::Load));
        }
    }
    let is_added = |content: &super::Content| content.live.phase != Phase::Loading;
    let is_any_left = left > 0 || steps.iter().any(|(_, step)| *step == Step::Load);
    state.is_ready = state.is_ready || !is_any_left && state.contents.values().all(is_added);
    (steps, changed)
}
