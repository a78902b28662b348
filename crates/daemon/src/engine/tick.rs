//! What time brings: how contents fare, limits of sharing, room on the disk.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anabranch_content::storage::Below;
use anabranch_swarm::{ContentId, Progress};
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;

use super::live::Phase;
use super::{Content, Engine, State};
use crate::library::{Enough, Going, Totals, Turn};

/// How often it is looked how contents fare.
const EVERY: Duration = Duration::from_secs(1);
/// How often it is looked how much room there is, in ticks.
const SPACE_TICKS: u64 = 5;
/// How often totals are kept, in ticks: so much is lost of them with the program.
const KEEP_TICKS: u64 = 60;
/// Contents at rest that are looked at in a tick.
const RESTING_MAX: usize = 200;
/// Changed numbers are told for so many ticks: whoever misses some gets others.
const TOLD_TICKS: usize = 5;
/// Downloads that waited for room go on with so much more than the least.
const SPACE_SPARE_BYTES: u64 = 64 << 20;

/// Which contents are looked at. What rests is not gone through every second.
#[derive(Default)]
struct Looks {
    /// Those that move, or may soon.
    moving: BTreeSet<u64>,
    /// When it was looked last which these are, by the clock of changes.
    clock: u64,
    /// The last one that was looked at of those at rest.
    resting: u64,
    /// The clock of changes at the last ticks, the latest last.
    ticks: VecDeque<u64>,
}

impl Engine {
    /// Looks after contents every second. Never ends.
    pub(crate) async fn keep_time(self: Rc<Self>) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut looks, mut last) = (Looks::default(), Instant::now());
        let mut slow = None;
        for tick in 0_u64.. {
            ticks.tick().await;
            let now = Instant::now();
            self.look(&mut looks).await;
            let passed = now.saturating_duration_since(std::mem::replace(&mut last, now));
            self.end_sharing(now, passed).await;
            if tick % SPACE_TICKS == 0 {
                self.look_for_space().await;
                self.look_at_watched().await;
                self.look_at_clock(&mut slow).await;
            }
            if tick % KEEP_TICKS == KEEP_TICKS - 1 {
                self.keep_totals().await;
            }
            if self.feed.is_watched() {
                self.feed.pass("progress", &self.told(&looks));
            }
            if looks.ticks.len() >= TOLD_TICKS {
                looks.ticks.pop_front();
            }
            looks.ticks.push_back(self.clock());
        }
    }

    /// How those that move fare, and some of the others in turn.
    async fn look(&self, looks: &mut Looks) {
        let ids: Vec<ContentId> = {
            let state = self.state();
            let changed = state.changes.since(looks.clock);
            looks.moving.extend(changed.unwrap_or_else(|| state.contents.keys().copied().collect()));
            looks.clock = state.changes.clock();
            looks.moving.retain(|id| state.contents.get(id).is_some_and(moves));
            let behind = state.contents.range(looks.resting + 1..).map(|(_, content)| content);
            let others: Vec<&Content> = behind.filter(|content| !moves(content)).take(RESTING_MAX).collect();
            looks.resting =
                if others.len() < RESTING_MAX { 0 } else { others.last().map_or(0, |content| content.entry.id) };
            let moving = looks.moving.iter().filter_map(|id| state.contents.get(id));
            moving.chain(others).filter_map(|content| content.live.session).collect()
        };
        let Ok(all) = self.handle.progress_of(ids).await else { return };
        let now = Instant::now();
        let mut state = self.state.borrow_mut();
        let State { contents, by_session, changes, sums, .. } = &mut *state;
        for (session, progress) in all {
            let Some(content) = by_session.get(&session).and_then(|id| contents.get_mut(id)) else { continue };
            if take_in(content, progress, now) {
                content.touched = changes.touch(content.entry.id, content.touched);
            }
            sums.count(content);
        }
    }

    /// How one fares at this moment.
    pub(super) async fn look_at(&self, id: u64) {
        let Some(session) = self.with(id, |content| content.live.session).flatten() else { return };
        if let Ok(progress) = self.handle.progress(session).await {
            self.with(id, |content| take_in(content, progress, Instant::now()));
        }
    }

    /// The numbers that changed lately, and those of all together.
    fn told(&self, looks: &Looks) -> Value {
        let state = self.state();
        let changed = state.changes.since(looks.ticks.front().copied().unwrap_or(0));
        let changed = changed.unwrap_or_else(|| state.contents.keys().copied().collect());
        let contents = changed.iter().filter_map(|id| state.contents.get(id)).filter(|content| content.live.has_moved);
        let contents: Vec<Value> = contents.map(super::view::numbers).collect();
        let sums = state.sums.all();
        json!({ "down_rate": sums.down_rate, "up_rate": sums.up_rate, "contents": contents })
    }

    /// Seconds at work are counted, and those that were shared enough are paused, or go.
    async fn end_sharing(self: &Rc<Self>, now: Instant, passed: Duration) {
        let seconds = passed.as_secs_f64().round() as u64;
        let (enough, what): (Vec<(u64, &'static str)>, Enough) = {
            let mut state = self.state.borrow_mut();
            let State { contents, settings, .. } = &mut *state;
            let why = |content: &Content| {
                let entry = &content.entry;
                let idle = || content.live.idle_since.map_or(0, |since| now.saturating_duration_since(since).as_secs());
                if entry.ratio_max.or(settings.ratio_max).is_some_and(|most| ratio(content) >= most) {
                    return Some("shared as often as it was to be");
                }
                if entry
                    .seed_seconds_max
                    .or(settings.seed_seconds_max)
                    .is_some_and(|most| content.totals.seed_seconds >= most)
                {
                    return Some("shared as long as it was to be");
                }
                let is_left = entry.idle_seconds_max.or(settings.idle_seconds_max).is_some_and(|most| idle() >= most);
                is_left.then_some("shared with nobody for as long as it was to be")
            };
            let mut enough = Vec::new();
            for content in contents.values_mut().filter(|content| is_active(content)) {
                content.totals.active_seconds += seconds;
                content.live.is_unkept = true;
                if content.entry.is_complete() {
                    content.totals.seed_seconds += seconds;
                    enough.extend(why(content).map(|why| (content.entry.id, why)));
                }
            }
            (enough, settings.enough)
        };
        for (id, why) in enough {
            let going = match what {
                Enough::Pause => None,
                Enough::Remove => Some(Going::Keep),
                // The user's own files stay.
                Enough::Delete if self.with(id, |content| content.entry.keeps_files()) == Some(true) => {
                    Some(Going::Keep)
                }
                Enough::Delete => Some(Going::Delete),
            };
            if let Some(going) = going {
                let engine = Rc::clone(self);
                // What is at something else goes the next time.
                tokio::task::spawn_local(async move { engine.remove(id, going).await });
                continue;
            }
            // What cannot be kept now is tried again.
            let kept = self
                .update(&[id], |entry| {
                    (entry.paused, entry.paused_because) = (true, Some(why.to_owned()));
                    Ok(())
                })
                .await;
            if kept.is_ok() {
                self.note(id, why.to_owned());
            }
        }
    }

    /// Who lacks room on the disk waits.
    async fn look_for_space(&self) {
        let (mut folders, least) = {
            let state = self.state();
            let wanted = |content: &&Content| needs_space(content) && !content.entry.paused;
            let dirs = state.contents.values().filter(wanted).map(|content| (content.entry.dir.clone(), None));
            (dirs.collect::<BTreeMap<PathBuf, Option<u64>>>(), state.settings.free_bytes_min)
        };
        if folders.is_empty() {
            return;
        }
        let looked = tokio::task::spawn_blocking(move || {
            folders.iter_mut().for_each(|(dir, free)| *free = free_bytes(dir));
            folders
        });
        let Ok(folders) = looked.await else { return };
        let mut changed = Vec::new();
        for content in self.state.borrow_mut().contents.values_mut() {
            let Some(Some(free)) = folders.get(&content.entry.dir) else { continue };
            let needed = if content.live.lacks_space { least.saturating_add(SPACE_SPARE_BYTES) } else { least };
            let lacks = *free < needed && needs_space(content);
            if std::mem::replace(&mut content.live.lacks_space, lacks) != lacks {
                changed.push(content.entry.id);
            }
        }
        if !changed.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Bytes free in the folder of contents that are added without one, as looked at a moment ago.
    pub(crate) async fn free_bytes(&self) -> Option<u64> {
        let now = Instant::now();
        if let Some((at, free)) = self.free.get()
            && now.saturating_duration_since(at) < EVERY
        {
            return free;
        }
        let dir = self.settings().dir;
        let free = tokio::task::spawn_blocking(move || free_bytes(&dir)).await.ok().flatten();
        self.free.set(Some((now, free)));
        free
    }

    /// Has the slow limits hold, or not, where their schedule begins or ends. In between, users may have it otherwise.
    async fn look_at_clock(&self, before: &mut Option<bool>) {
        let clock = self.common.borrow().clock;
        let (Some(schedule), Some(clock)) = (self.with_settings(|settings| settings.slow_schedule.clone()), clock)
        else {
            *before = None;
            return;
        };
        let holds = schedule.holds(clock());
        if before.replace(holds) != Some(holds) && self.with_settings(|settings| settings.slow) != holds {
            let change = serde_json::Map::from_iter([("slow".to_owned(), holds.into())]);
            // What cannot be kept now is tried again.
            if self.set(&change).await.is_err() {
                *before = None;
            }
        }
    }
}

/// Whether a content has to be looked at every second: something of it moves, or may.
fn moves(content: &Content) -> bool {
    let Content { entry, live, .. } = content;
    let is_moving = live
        .progress
        .as_ref()
        .is_none_or(|now| now.stats.peers > 0 || now.stats.download_rate_bytes + now.stats.upload_rate_bytes > 0);
    live.session.is_some() && (is_moving || live.turn == Some(Turn::Run) && !entry.is_complete())
}

/// How a content fares now; whether that is any different.
fn take_in(content: &mut Content, progress: Progress, now: Instant) -> bool {
    let (entry, live) = (&mut content.entry, &mut content.live);
    let there = (progress.bytes_total, progress.bytes_done);
    if live.phase == Phase::Open && there.0.is_some() && (entry.size, entry.done) != there {
        (entry.size, entry.done) = there;
        live.is_learned = true;
    }
    let rates = |progress: &Progress| (progress.stats.download_rate_bytes, progress.stats.upload_rate_bytes);
    let moved = |progress: &Progress| (progress.stats.downloaded_bytes, progress.stats.uploaded_bytes);
    let was = live.progress.as_ref();
    if was.is_none_or(|was| moved(was) != moved(&progress)) && moved(&progress) != (0, 0) {
        live.is_unkept = true;
        live.active = Some(super::unix_now());
    }
    let was_idle = was.is_some_and(|was| was.stats.uploaded_bytes == progress.stats.uploaded_bytes);
    if !was_idle || live.idle_since.is_none() || !entry.is_complete() {
        live.idle_since = Some(now);
    }
    let shown = |progress: &Progress| (rates(progress), moved(progress), progress.bytes_done, progress.stats.peers);
    let is_news = was.is_none_or(|was| shown(was) != shown(&progress)) || matches!(live.phase, Phase::Checking(..));
    live.has_moved |= is_news;
    live.progress = Some(progress);
    is_news
}

/// What moved for a content, this run included.
pub(super) fn totals(content: &Content) -> Totals {
    let stats = content.live.progress.as_ref().map(|progress| &progress.stats);
    Totals {
        downloaded: content.totals.downloaded + stats.map_or(0, |stats| stats.downloaded_bytes),
        uploaded: content.totals.uploaded + stats.map_or(0, |stats| stats.uploaded_bytes),
        ..content.totals
    }
}

/// How often a content was uploaded: of what was received, or where it was there already of all of it.
pub(super) fn ratio(content: &Content) -> f64 {
    let totals = totals(content);
    let size = totals.downloaded.max(content.entry.size.unwrap_or(0)).max(1);
    totals.uploaded as f64 / size as f64
}

/// More of it is to be written.
fn needs_space(content: &Content) -> bool {
    !content.entry.is_complete() && !content.entry.is_only_shared() && !content.entry.is_live()
}

fn is_active(content: &Content) -> bool {
    content.live.turn == Some(Turn::Run)
        && matches!(content.live.phase, Phase::Open | Phase::Metadata)
        && !content.live.is_held
}

/// Bytes free where a folder is, or will be. Blocks.
fn free_bytes(dir: &Path) -> Option<u64> {
    let there = dir.ancestors().find(|folder| folder.is_dir())?;
    Some(Below::open(there).ok()?.free().ok()?.0)
}
