//! What is known of a content that is, or was, at work in this run.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use anabranch_paths::manager::PathVerdict;
use anabranch_swarm::http::FileServer;
use anabranch_swarm::{ContentId, Progress};

use super::bulk::Reach;
use crate::library::Turn;

/// Peers whose last choice of paths is remembered.
const CHOICES_MAX: usize = 64;
/// Changes of paths that are remembered.
const CHANGES_MAX: usize = 64;
/// Trackers that are remembered.
const TRACKERS_MAX: usize = 256;
/// Lines of what happened that are remembered.
const LOG_MAX: usize = 100;

/// How far a content is with being opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is not in the session.
    #[default]
    Out,
    /// A torrent is made of it.
    Hashing,
    /// It is on its way into the session.
    Loading,
    /// It is in the session, and what it is is not known yet.
    Metadata,
    /// Its files are looked at.
    Opening,
    /// Its pieces are verified: so many bytes of so many.
    Checking(u64, u64),
    /// It is at work.
    Open,
}

/// Work on its files that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Everything is verified.
    Recheck,
    /// They go to another folder.
    Move,
    /// It is put into the session anew.
    Reopen,
    /// It goes.
    Remove,
}

impl Job {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Recheck => "being checked",
            Self::Move => "being moved",
            Self::Reopen => "being opened anew",
            Self::Remove => "being removed",
        }
    }
}

/// A tracker, as it answered last.
#[derive(Clone, Debug)]
pub(super) struct Tracker {
    /// Peers that it named, or why it failed.
    pub(super) outcome: Result<usize, String>,
    /// When, in seconds since 1970.
    pub(super) at: u64,
}

/// How the paths to a peer were chosen last.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) selector: Option<&'static str>,
    pub(super) why: String,
    pub(super) at: u64,
    pub(super) verdicts: Vec<PathVerdict>,
}

/// What became of a path last.
#[derive(Clone, Debug)]
pub(super) struct PathChange {
    pub(super) at: u64,
    pub(super) peer: String,
    pub(super) path: String,
    pub(super) state: String,
    pub(super) reason: String,
}

/// How far a torrent that is made is.
#[derive(Debug, Default)]
pub(super) struct Hashing {
    pub(super) done: AtomicU64,
    pub(super) total: AtomicU64,
    pub(super) cancel: AtomicBool,
}

/// What is known of a content at work.
#[derive(Default)]
pub(crate) struct Live {
    pub(super) phase: Phase,
    pub(super) session: Option<ContentId>,
    /// Whether the session was told to have it wait.
    pub(super) is_held: bool,
    pub(super) job: Option<Job>,
    pub(super) turn: Option<Turn>,
    pub(super) failed: Option<String>,
    /// Storage is out of order.
    pub(super) waits: Option<String>,
    pub(super) progress: Option<Progress>,
    pub(super) hashing: Option<Arc<Hashing>>,
    pub(super) trackers: BTreeMap<String, Tracker>,
    pub(super) choices: BTreeMap<String, Choice>,
    pub(super) changes: VecDeque<PathChange>,
    pub(super) log: VecDeque<(u64, String)>,
    /// How others come to it, where it is a bulk transfer or a live stream whose source is here.
    pub(super) reach: Option<Reach>,
    /// Somebody sends the live stream that it is.
    pub(super) is_fed: bool,
    pub(super) desk: Option<Rc<FileServer>>,
    /// What was told of it last, as a hash: whole, it would be most of what a content at rest takes.
    pub(super) told: Option<u64>,
    /// It is to be put into the session anew: what it was told there at its beginning is not so any more.
    pub(super) reopen: bool,
    /// It is complete and could not be moved to where it stays: not tried again in this run.
    pub(super) unplaced: bool,
    /// It became complete in this run, and nobody was told yet.
    pub(super) untold: bool,
    /// Its numbers changed in this run.
    pub(super) has_moved: bool,
    /// When some of it last went either way in this run, in seconds since 1970.
    pub(super) active: Option<u64>,
    /// Since when nobody took any of it.
    pub(super) idle_since: Option<Instant>,
    /// Totals that are not kept yet.
    pub(super) is_unkept: bool,
    /// The entry has something new that is not kept yet.
    pub(super) is_learned: bool,
    pub(super) lacks_space: bool,
}

impl Live {
    /// It is in the session no more.
    pub(super) fn leave(&mut self) {
        (self.phase, self.session, self.progress, self.desk) = (Phase::Out, None, None, None);
        (self.is_held, self.waits, self.reopen, self.idle_since) = (false, None, false, None);
        self.reach = None;
    }

    pub(super) fn note(&mut self, at: u64, text: String) {
        if self.log.len() >= LOG_MAX {
            self.log.pop_front();
        }
        self.log.push_back((at, text));
    }

    pub(super) fn tracker(&mut self, url: String, outcome: Result<usize, String>, at: u64) {
        if self.trackers.len() < TRACKERS_MAX || self.trackers.contains_key(&url) {
            self.trackers.insert(url, Tracker { outcome, at });
        }
    }

    pub(super) fn choice(&mut self, peer: String, choice: Choice) {
        if self.choices.len() >= CHOICES_MAX && !self.choices.contains_key(&peer) {
            let oldest = self.choices.iter().min_by_key(|(_, choice)| choice.at).map(|(peer, _)| peer.clone());
            oldest.and_then(|oldest| self.choices.remove(&oldest));
        }
        self.choices.insert(peer, choice);
    }

    pub(super) fn path_change(&mut self, change: PathChange) {
        if self.changes.len() >= CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut live = Live::default();
        for at in 0..1000_u64 {
            live.note(at, "x".into());
            live.tracker(format!("http://{at}"), Ok(1), at);
            live.choice(format!("peer {at}"), Choice { selector: None, why: String::new(), at, verdicts: Vec::new() });
            let text = String::new;
            live.path_change(PathChange { at, peer: text(), path: text(), state: text(), reason: text() });
        }
        assert_eq!((live.log.len(), live.trackers.len()), (LOG_MAX, TRACKERS_MAX));
        assert_eq!((live.choices.len(), live.changes.len()), (CHOICES_MAX, CHANGES_MAX));
        assert!(live.choices.contains_key("peer 999") && !live.choices.contains_key("peer 0"));
    }
}
