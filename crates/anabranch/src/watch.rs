//! Contents of a session, watched: their events and progress become lines, and what failed becomes how the command ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anabranch_content::info::Version;
use anabranch_paths::manager::PathCondition;
use anabranch_swarm::{ContentId, Data, Event, EventKind, FailureKind, PathProgress, Progress, Session};
use serde_json::{Map, Value, json};

use crate::cli::SessionFlags;
use crate::exit::Failure;
use crate::guard::Bans;
use crate::output::{self, Chatter};
use crate::path_log::{PATH_LOG_EVERY, PathLog};
use crate::patience::{Patience, Rules, Verdict};
use crate::seeding::Seeding;
use crate::status::StatusLines;
use crate::{clients, events, units};

/// How often progress is told in JSON.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// How often progress is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(250);
/// Contents with a line of their own; the others share one.
const LINES_MAX: usize = 8;
/// Paths of a content with a line of their own.
const PATH_LINES_MAX: usize = 16;

/// One content that is watched.
#[derive(Debug)]
pub(crate) struct Content {
    /// As users know it.
    pub name: String,
    /// As events name it.
    pub hash: String,
    /// Fields that its `started` event has beside the usual ones.
    pub extra: Map<String, Value>,
    /// When its transfer began.
    pub started: Option<Instant>,
    /// Everything wanted is there.
    pub finished: bool,
    /// It cannot be gone on with, and why.
    pub failed: Option<(FailureKind, String)>,
    /// How it is shared, since there is all of it that is wanted.
    pub seeding: Option<Seeding>,
    /// It is not shared any longer, as the user wished.
    pub stopped: bool,
    /// What the command says of it below its progress line.
    pub remark: Option<String>,
    is_live: bool,
    checking: Option<(u64, u64)>,
    told: Option<Value>,
    patience: Patience,
}

impl Content {
    /// A content that was just added.
    pub(crate) fn new(name: String, hash: String, extra: Map<String, Value>) -> Self {
        let patience = Patience::default();
        Self {
            name,
            hash,
            extra,
            started: None,
            finished: false,
            failed: None,
            seeding: None,
            stopped: false,
            remark: None,
            is_live: false,
            checking: None,
            told: None,
            patience,
        }
    }

    /// A live stream that was just added.
    pub(crate) fn live(name: String, hash: String, extra: Map<String, Value>) -> Self {
        Self { is_live: true, ..Self::new(name, hash, extra) }
    }

    /// Nothing more is to be done for it.
    pub(crate) fn is_over(&self) -> bool {
        self.finished || self.failed.is_some()
    }
}

/// Turns events and progress into lines.
pub(crate) struct Watch {
    /// What is watched.
    pub contents: BTreeMap<ContentId, Content>,
    chatter: Chatter,
    json: bool,
    lines: Option<StatusLines>,
    /// Trackers that failed: told once, until they answer.
    failing: BTreeSet<(ContentId, String)>,
    /// Programs that were told of as reading no hybrid torrents.
    hinted: BTreeSet<(ContentId, String)>,
    explain: bool,
    path_log: Option<PathLog>,
    bans: Option<Bans>,
    /// When progress was last drawn or told.
    told: Option<Instant>,
    /// The command goes on with what is left of a content that it shares.
    shares_on: bool,
}

impl Watch {
    /// Watches nothing yet.
    pub(crate) fn new(flags: &SessionFlags, chatter: Chatter) -> Result<Self, Failure> {
        let json = flags.json;
        let lines = (chatter.draws() && !json).then(StatusLines::default);
        Ok(Self {
            contents: BTreeMap::new(),
            chatter,
            json,
            lines,
            failing: BTreeSet::new(),
            hinted: BTreeSet::new(),
            explain: flags.multipath.explain,
            path_log: flags.multipath.path_log.as_deref().map(PathLog::create).transpose()?,
            bans: Bans::open(flags)?,
            told: None,
            shares_on: false,
        })
    }

    /// Watches for a command that goes on with what is left of a content that it shares.
    pub(crate) fn sharing(flags: &SessionFlags, chatter: Chatter) -> Result<Self, Failure> {
        Ok(Self { shares_on: true, ..Self::new(flags, chatter)? })
    }

    /// When to call [`Watch::tick`].
    pub(crate) fn ticks(&self) -> tokio::time::Interval {
        let every = if self.path_log.is_some() { PATH_LOG_EVERY } else { self.told_every() };
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks
    }

    /// Between two progress events, or two drawings.
    fn told_every(&self) -> Duration {
        if self.lines.is_some() { DRAW_EVERY } else { PROGRESS_EVERY }
    }

    /// Says something to people.
    pub(crate) fn note(&mut self, text: impl std::fmt::Display) {
        if let Some(lines) = &mut self.lines {
            lines.clear();
        }
        self.chatter.note(text);
    }

    /// Tells programs of a content by an event, or people in words.
    pub(crate) fn report(&mut self, id: ContentId, event: &str, fields: Value, text: &str) -> Result<(), Failure> {
        self.tell(id, event, fields)?;
        if !self.json {
            let name = self.contents.get(&id).map_or(String::new(), |content| content.name.clone());
            self.note(format_args!("{name}: {text}"));
        }
        Ok(())
    }

    /// Prints an event of a content.
    pub(crate) fn tell(&self, id: ContentId, event: &str, fields: Value) -> Result<(), Failure> {
        if !self.json {
            return Ok(());
        }
        let mut all = Map::new();
        if let Some(content) = self.contents.get(&id) {
            all.insert("torrent".into(), content.hash.as_str().into());
            all.insert("name".into(), content.name.as_str().into());
        }
        if let Value::Object(fields) = fields {
            all.extend(fields);
        }
        output::json_event(event, Value::Object(all))
    }

    /// Something happened.
    pub(crate) fn on_event(&mut self, session: &Session, event: &Event) -> Result<(), Failure> {
        let id = event.content;
        let now = Instant::now();
        // What had it removed says why.
        if matches!(event.kind, EventKind::Removed) {
            return Ok(());
        }
        let Some(content) = self.contents.get_mut(&id) else { return Ok(()) };
        let (name, mut fields) = events::json(&event.kind);
        match &event.kind {
            EventKind::Metadata { name, .. } => content.name.clone_from(name),
            EventKind::Checking { bytes_done, bytes_total } => content.checking = Some((*bytes_done, *bytes_total)),
            EventKind::Started { .. } => {
                content.started = Some(now);
                content.checking = None;
                // It may be called otherwise where it goes.
                session.info(id).iter().for_each(|info| content.name.clone_from(&info.name));
                if let Value::Object(fields) = &mut fields {
                    fields.extend(content.extra.clone());
                }
            }
            EventKind::Paused { reason, .. } => content.patience.paused(Some(reason.clone())),
            EventKind::Resumed => content.patience.paused(None),
            EventKind::Failed { kind, reason } => content.failed = Some((*kind, reason.clone())),
            EventKind::Tracker { url, .. } => {
                self.failing.remove(&(id, url.clone()));
            }
            EventKind::PeerBanned { address, reason } => {
                if let Some(bans) = &mut self.bans {
                    bans.add(address, reason)?;
                }
            }
            EventKind::Finished => return self.on_finished(session, id, now),
            _ => {}
        }
        let known = match &event.kind {
            // What the proxy does not do concerns all trackers, and is said once.
            EventKind::TrackerFailed { url, reason } => {
                let cause = if reason.starts_with("the proxy ") { reason } else { url };
                !self.failing.insert((id, cause.clone()))
            }
            _ => false,
        };
        self.tell(id, name, fields)?;
        if let EventKind::PeerConnected { address, peer_id, .. } = &event.kind {
            self.hint(session, id, &address.to_string(), peer_id)?;
        }
        if self.explain {
            for line in events::explanation(&event.kind) {
                self.note(line);
            }
        }
        let said = |always: bool| !self.json && (always && !known || self.chatter.verbose);
        let is_last = matches!(event.kind, EventKind::Failed { kind, .. } if self.ends_by(id, kind));
        if let Some((_, text)) = events::note(&event.kind).filter(|(always, _)| said(*always) && !is_last) {
            let label = self.contents.get(&id).map_or(String::new(), |content| content.name.clone());
            self.note(format_args!("{label}: {text}"));
        }
        Ok(())
    }

    /// Whether the command ends by this failure of a content, so that its last word says it: there is nothing else.
    fn ends_by(&self, id: ContentId, kind: FailureKind) -> bool {
        let goes_on = || self.contents.get(&id).is_some_and(|content| content.seeding.is_some());
        self.contents.len() == 1 && !(self.shares_on && kind != FailureKind::Internal && goes_on())
    }

    /// Whether people are told of what fails when it does, so that the command's last word need not repeat it: other contents go on,
    /// or, by the caller's word, this one.
    pub(crate) fn tells_at_once(&self, goes_on: bool) -> bool {
        (goes_on || self.contents.len() > 1) && !self.json && !self.chatter.quiet
    }

    /// The last word about the contents that failed, if any did.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let failed = self.contents.values().filter_map(|content| Some((&content.name, content.failed.as_ref()?)));
        let failed: Vec<_> = failed.collect();
        let (first, (kind, reason)) = failed.first()?;
        let several = format!("{} of {} contents failed", failed.len(), self.contents.len());
        let is_told = self.tells_at_once(false);
        let message = match failed.len() {
            1 if is_told => format!("{first} failed: see above"),
            1 => format!("{first}: {reason}"),
            _ if is_told => format!("{several}: see above"),
            _ => several,
        };
        let mut failure = Failure::new((*kind).into(), message);
        if failed.len() > 1 && !is_told {
            failure.details = failed.iter().map(|(name, (_, reason))| format!("{name}: {reason}")).collect();
        }
        Some(failure)
    }

    /// Says once why a peer that cannot read hybrid torrents gets nothing of one.
    fn hint(&mut self, session: &Session, id: ContentId, peer: &str, peer_id: &[u8; 20]) -> Result<(), Failure> {
        let is_hybrid = || session.info(id).is_some_and(|info| info.version == Version::Hybrid);
        let Some(client) = clients::without_hybrid(peer_id).filter(|_| is_hybrid()) else { return Ok(()) };
        if !self.hinted.insert((id, client.clone())) {
            return Ok(());
        }
        let message =
            format!("{peer} runs {client}, which reads no hybrid torrents: share with --version 1 for such clients");
        self.report(id, "hint", json!({ "message": message, "peer": peer }), &message)
    }

    fn on_finished(&mut self, session: &Session, id: ContentId, now: Instant) -> Result<(), Failure> {
        let Some(content) = self.contents.get_mut(&id) else { return Ok(()) };
        if std::mem::replace(&mut content.finished, true) {
            return Ok(());
        }
        content.seeding = Some(Seeding::new(now));
        let took = content.started.map_or(Duration::ZERO, |started| now.saturating_duration_since(started));
        let Some(progress) = session.progress(id) else { return Ok(()) };
        let stats = &progress.stats;
        let text = if stats.downloaded_bytes == 0 {
            format!("{}: complete, {}", content.name, units::bytes(progress.bytes_done))
        } else {
            let rate = stats.downloaded_bytes as f64 / took.as_secs_f64().max(0.001);
            format!(
                "{}: complete, {} received in {:.1} s, {}; {} sent",
                content.name,
                units::bytes(stats.downloaded_bytes),
                took.as_secs_f64(),
                units::rate(rate as u64),
                units::bytes(stats.uploaded_bytes),
            )
        };
        self.tell(id, "progress", events::progress(&progress, &session.paths(id)))?;
        let fields = json!({
            "bytes_total": progress.bytes_total,
            "downloaded": stats.downloaded_bytes,
            "uploaded": stats.uploaded_bytes,
            "wasted": stats.wasted_bytes,
            "seconds": took.as_secs_f64(),
        });
        self.tell(id, "finished", fields)?;
        if !self.json {
            self.note(text);
        }
        Ok(())
    }

    /// Looks whether contents that are not complete have sources: says what is waited for, and gives up those for which
    /// nothing more will come.
    pub(crate) fn look_for_sources(&mut self, session: &Session, rules: &Rules) -> Result<(), Failure> {
        let now = Instant::now();
        let ids: Vec<ContentId> = self.contents.keys().copied().collect();
        for id in ids {
            let Some(content) = self.contents.get_mut(&id).filter(|content| !content.is_over()) else { continue };
            let (Some(sources), Some(progress)) = (session.sources(id), session.progress(id)) else { continue };
            match content.patience.look(&sources, &progress, rules, now) {
                Verdict::Wait => {}
                Verdict::Tell(reason) => self.report(id, "waiting", json!({ "reason": reason }), &reason)?,
                Verdict::GiveUp(kind, reason) => {
                    content.failed = Some((kind, reason.clone()));
                    let text = format!("error: {reason}");
                    let (_, fields) = events::json(&EventKind::Failed { kind, reason });
                    match self.tells_at_once(false) {
                        true => self.report(id, "error", fields, &text)?,
                        false => self.tell(id, "error", fields)?,
                    }
                    // It goes whoever waits for that.
                    drop(session.remove(id, Data::Keep));
                }
            }
        }
        Ok(())
    }

    /// Tells how things are.
    pub(crate) fn tick(&mut self, session: &Session) -> Result<(), Failure> {
        let now = Instant::now();
        self.log_paths(session, now)?;
        // Timers are as exact as they are: half an interval early is on time.
        if self.told.is_some_and(|told| now.saturating_duration_since(told) < self.told_every() - PATH_LOG_EVERY / 2) {
            return Ok(());
        }
        self.told = Some(now);
        if self.json {
            return self.tell_progress(session);
        }
        let Some(lines) = &mut self.lines else { return Ok(()) };
        let mut shown = Vec::new();
        let (mut others, mut down, mut up, mut peers) = (0, 0, 0, 0);
        for (id, content) in self.contents.iter().filter(|(_, content)| !content.stopped) {
            let Some(progress) = session.progress(*id) else { continue };
            if shown.len() < LINES_MAX && (!content.finished || self.contents.len() <= LINES_MAX) {
                let paths = session.paths(*id);
                shown.push(status(content, &progress, &paths));
                shown.extend(content.remark.clone());
                shown.extend(path_lines(&paths));
            } else {
                others += 1;
                down += progress.stats.download_rate_bytes;
                up += progress.stats.upload_rate_bytes;
                peers += progress.stats.peers;
            }
        }
        if others > 0 {
            shown.push(format!("{others} more  down {}  up {}  {peers} peers", units::rate(down), units::rate(up)));
        }
        lines.draw(&shown);
        Ok(())
    }

    /// A `progress` event for each content; contents at rest are told of once.
    fn tell_progress(&mut self, session: &Session) -> Result<(), Failure> {
        let ids: Vec<ContentId> = self.contents.keys().copied().collect();
        for id in ids {
            let Some(progress) = session.progress(id) else { continue };
            let fields = events::progress(&progress, &session.paths(id));
            let at_rest = self
                .contents
                .get(&id)
                .is_some_and(|content| content.finished && content.told.as_ref() == Some(&fields));
            if at_rest {
                continue;
            }
            self.tell(id, "progress", fields.clone())?;
            if let Some(content) = self.contents.get_mut(&id) {
                content.told = Some(fields);
            }
        }
        Ok(())
    }

    fn log_paths(&mut self, session: &Session, now: Instant) -> Result<(), Failure> {
        let Some(log) = self.path_log.as_mut().filter(|log| log.is_due(now)) else { return Ok(()) };
        let contents: Vec<(&str, Vec<PathProgress>)> =
            self.contents.iter().map(|(id, content)| (content.hash.as_str(), session.paths(*id))).collect();
        log.write(&contents, now)
    }

    /// Takes the progress lines away, until they are drawn again.
    pub(crate) fn clear(&mut self) {
        self.lines.iter_mut().for_each(StatusLines::clear);
    }

    /// Takes the progress lines away for good.
    pub(crate) fn close(&mut self) {
        self.clear();
        self.lines = None;
    }
}

/// A line for each path, where there is a choice of them.
fn path_lines(paths: &[PathProgress]) -> Vec<String> {
    let shown = || paths.iter().filter(|path| path.is_one_of_many).filter(|path| path.condition != PathCondition::Gone);
    if shown().count() < 2 {
        return Vec::new();
    }
    let total: u64 = paths.iter().map(|path| path.download_rate_bytes + path.upload_rate_bytes).sum();
    let line = |path: &PathProgress| {
        let share = units::percent(path.download_rate_bytes + path.upload_rate_bytes, total.max(1));
        let rtt = path.rtt.map_or("-".to_owned(), |rtt| format!("{:.1} ms", rtt.as_secs_f64() * 1e3));
        format!(
            "  {}  {:7}  down {:>11}  up {:>11}  {share:5.1} %  RTT {rtt:>9}  lost {:<6}  {}",
            path.path.id(),
            path.condition.to_string(),
            units::rate(path.download_rate_bytes),
            units::rate(path.upload_rate_bytes),
            path.lost_packets,
            path.path,
        )
    };
    shown().take(PATH_LINES_MAX).map(line).collect()
}

/// The progress line of one content.
fn status(content: &Content, progress: &Progress, paths: &[PathProgress]) -> String {
    let stats = &progress.stats;
    let open = paths.iter().filter(|path| path.condition != PathCondition::Gone).count();
    let traffic = format!(
        "down {:>10}  up {:>10}  {}, {}",
        units::rate(stats.download_rate_bytes),
        units::rate(stats.upload_rate_bytes),
        units::count(stats.peers as usize, "peer"),
        units::count(open, "path"),
    );
    let (name, paused) = (&content.name, if progress.paused { "  paused" } else { "" });
    if let Some((done, total)) = content.checking {
        return format!("verifying {:5.1} %  {name}", units::percent(done, total));
    }
    match progress.bytes_total {
        None if content.is_live => format!("live  {}  {traffic}  {name}", units::bytes(progress.bytes_done)),
        None => format!("metadata  {traffic}  {name}"),
        Some(total) => {
            let percent = units::percent(progress.bytes_done, total);
            let left = total.saturating_sub(progress.bytes_done);
            let eta = match stats.download_rate_bytes {
                _ if left == 0 => String::new(),
                0 => "  ETA -".to_owned(),
                rate => format!("  ETA {}", units::duration(Duration::from_secs(left / rate))),
            };
            let amount = format!("{} of {}", units::bytes(progress.bytes_done), units::bytes(total));
            format!("{percent:5.1} %  {amount}  {traffic}{eta}{paused}  {name}")
        }
    }
}
