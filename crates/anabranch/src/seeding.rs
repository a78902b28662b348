//! When sharing ends by itself: `--stop-ratio` and `--stop-after`.
//!
//! Each content is looked at by itself. What counts is what this run uploaded, against the bytes that are wanted of the content, and
//! the time since there was all of that to share. Whoever is being served at that moment is let have what is on its way: a content
//! stops once it was idle between two looks, or [`GRACE`] later.

use std::time::{Duration, Instant};

use anabranch_swarm::{ContentId, Data, Progress, Session};
use serde_json::json;

use crate::cli::StopFlags;
use crate::exit::Failure;
use crate::units;
use crate::watch::Watch;

/// Longest that a content goes on which peers do not leave alone.
const GRACE: Duration = Duration::from_secs(10);

/// A ratio of bytes uploaded to bytes of content.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio(pub f64);

/// Largest ratio that anybody means.
const RATIO_MAX: f64 = 1e6;

/// `1`, `0.5`, `2.25`.
pub(crate) fn parse_ratio(text: &str) -> Result<Ratio, String> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match text.parse::<f64>() {
        Ok(ratio) if is_plain && ratio > 0.0 && ratio <= RATIO_MAX => Ok(Ratio(ratio)),
        _ => Err(format!(
            "write how often the content is to be uploaded, such as 1 or 2.5: above 0, at most {RATIO_MAX}"
        )),
    }
}

/// Why a content is not shared any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Enough was uploaded.
    Ratio,
    /// It was shared for long enough.
    Time,
}

impl Reason {
    /// As events have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ratio => "ratio",
            Self::Time => "time",
        }
    }
}

/// How one content is shared.
#[derive(Clone, Debug)]
pub(crate) struct Seeding {
    since: Instant,
    /// When and why it was enough.
    enough: Option<(Instant, Reason)>,
    uploaded_before: u64,
}

impl Seeding {
    /// All that is wanted is there.
    pub(crate) fn new(now: Instant) -> Self {
        Self { since: now, enough: None, uploaded_before: 0 }
    }

    /// How long that has been so.
    pub(crate) fn time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Looks whether sharing ends now, and why.
    pub(crate) fn look(&mut self, flags: &StopFlags, progress: &Progress, now: Instant) -> Option<Reason> {
        let uploaded = progress.stats.uploaded_bytes;
        let is_idle = std::mem::replace(&mut self.uploaded_before, uploaded) == uploaded;
        let by_ratio = flags.stop_ratio.filter(|least| ratio(progress) >= least.0).map(|_| Reason::Ratio);
        let by_time = || flags.stop_after.filter(|longest| self.time(now) >= *longest).map(|_| Reason::Time);
        let (since, reason) = match self.enough {
            Some(enough) => enough,
            None => *self.enough.insert((now, by_ratio.or_else(by_time)?)),
        };
        let is_over = is_idle || now.saturating_duration_since(since) >= GRACE;
        is_over.then_some(reason)
    }
}

/// What was uploaded, in contents. Of nothing, there was enough from the start.
fn ratio(progress: &Progress) -> f64 {
    match progress.bytes_total.unwrap_or(0) {
        0 => f64::INFINITY,
        total => progress.stats.uploaded_bytes as f64 / total as f64,
    }
}

/// Stops contents that were shared enough.
pub(crate) fn stop(watch: &mut Watch, session: &Session, flags: &StopFlags) -> Result<(), Failure> {
    if flags.stop_ratio.is_none() && flags.stop_after.is_none() {
        return Ok(());
    }
    let now = Instant::now();
    let ids: Vec<ContentId> = watch.contents.keys().copied().collect();
    for id in ids {
        let Some(content) = watch.contents.get_mut(&id).filter(|content| !content.stopped) else { continue };
        let (Some(seeding), Some(progress)) = (&mut content.seeding, session.progress(id)) else { continue };
        let Some(reason) = seeding.look(flags, &progress, now) else { continue };
        let shared_for = seeding.time(now);
        content.stopped = true;
        // It goes whoever waits for that.
        drop(session.remove(id, Data::Keep));
        let fields = json!({
            "reason": reason.name(),
            "ratio": ratio(&progress),
            "uploaded": progress.stats.uploaded_bytes,
            "seconds": shared_for.as_secs_f64(),
        });
        watch.report(id, "stopped", fields, &note(reason, &progress, shared_for))?;
    }
    Ok(())
}

/// What is said to people.
fn note(reason: Reason, progress: &Progress, shared_for: Duration) -> String {
    let sent = units::bytes(progress.stats.uploaded_bytes);
    let of = units::bytes(progress.bytes_total.unwrap_or(0));
    let time = units::duration(shared_for);
    match reason {
        Reason::Ratio => format!("no longer shared: {sent} of {of} were uploaded, enough for --stop-ratio"),
        Reason::Time => format!("no longer shared: --stop-after is over after {time}, {sent} were uploaded"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(uploaded: u64, total: u64) -> Progress {
        let mut progress = Progress {
            name: None,
            bytes_done: total,
            bytes_total: Some(total),
            pieces_have: 1,
            pieces_total: 1,
            stats: Default::default(),
            finished: true,
            paused: false,
        };
        progress.stats.uploaded_bytes = uploaded;
        progress
    }

    #[test]
    fn ratios_are_plain_numbers() {
        assert_eq!(parse_ratio("2.5"), Ok(Ratio(2.5)));
        for text in ["", "0", "0.0", "-1", "1e3", "inf", "NaN", "1,5", "1.2.3", "9999999", " 1", "."] {
            assert!(parse_ratio(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_content_ends_at_its_ratio_when_nobody_is_being_served() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let flags = StopFlags { stop_ratio: Some(Ratio(2.0)), stop_after: None };
        let mut seeding = Seeding::new(start);
        assert_eq!(seeding.look(&flags, &progress(199, 100), at(1)), None);
        assert_eq!(seeding.look(&flags, &progress(199, 100), at(1000)), None, "idle, and not enough");
        assert_eq!(seeding.look(&flags, &progress(200, 100), at(1001)), None, "on its way");
        assert_eq!(seeding.look(&flags, &progress(200, 100), at(1002)), Some(Reason::Ratio));
        // Somebody goes on taking.
        let mut busy = Seeding::new(start);
        let ended = (1..60).find(|second| busy.look(&flags, &progress(200 + second, 100), at(*second)).is_some());
        assert_eq!(ended, Some(1 + GRACE.as_secs()));
    }

    #[test]
    fn a_content_ends_after_its_time_whatever_it_uploaded() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let flags = StopFlags { stop_ratio: Some(Ratio(2.0)), stop_after: Some(Duration::from_secs(60)) };
        let mut seeding = Seeding::new(start);
        assert_eq!(seeding.look(&flags, &progress(0, 100), at(59)), None);
        assert_eq!(seeding.look(&flags, &progress(0, 100), at(60)), Some(Reason::Time));
        // Nothing is shared as often as anybody likes.
        assert_eq!(Seeding::new(start).look(&flags, &progress(0, 0), at(0)), Some(Reason::Ratio));
    }
}
