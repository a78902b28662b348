//! When a choice is made, and what of it is news: the same over SCION and over plain IP.

use std::time::{Duration, Instant};

use anabranch_paths::PathId;
use anabranch_paths::select::Choice;

use super::PathVerdict;

/// How often a choice that depends on measurements is made anew, where nothing else asks for it.
pub const REMEASURED_EVERY: Duration = Duration::from_secs(5);
/// The same for races, which are run anew with every slot of the scoreboard but one.
pub const RACED_EVERY: Duration = Duration::from_secs(1);

/// What the next choice waits for.
#[derive(Default)]
pub struct Occasion {
    /// What changed since the last choice, for its explanation.
    why: Option<String>,
    chosen_at: Option<Instant>,
    /// What the last choice was made of.
    chosen_of: u64,
}

impl Occasion {
    /// The choice is to be made anew, and why.
    pub fn reconsider(&mut self, why: impl Into<String>) {
        self.why.get_or_insert_with(|| why.into());
        self.chosen_at = None;
    }

    /// Whether to choose now, which counts as done: it was asked for, what it is made of is other than before, or the last
    /// one is older than `every`.
    pub fn is_due(&mut self, of: u64, every: Option<Duration>, now: Instant) -> bool {
        let is_old = |at: Instant| every.is_some_and(|every| now.saturating_duration_since(at) >= every);
        let is_due = of != self.chosen_of || self.chosen_at.is_none_or(is_old);
        if is_due {
            (self.chosen_of, self.chosen_at) = (of, Some(now));
        }
        is_due
    }

    /// What made the choice necessary.
    pub fn take_why(&mut self) -> String {
        self.why.take().unwrap_or_else(|| "measured anew".to_owned())
    }
}

/// What was decided about the paths to one peer.
#[derive(Default)]
pub struct Decision {
    /// Best first.
    pub chosen: Vec<PathId>,
    /// What was told last.
    choices: Vec<(PathId, Choice)>,
}

impl Decision {
    /// Takes the first `most` of those chosen; answers whether any choice is other than before.
    pub fn take(&mut self, verdicts: &[PathVerdict], most: usize) -> bool {
        let chosen = verdicts.iter().filter(|verdict| verdict.choice == Choice::Chosen);
        self.chosen = chosen.map(|verdict| verdict.path.id()).take(most).collect();
        let choices: Vec<_> = verdicts.iter().map(|verdict| (verdict.path.id(), verdict.choice)).collect();
        let is_news = self.choices != choices;
        self.choices = choices;
        is_news
    }
}
