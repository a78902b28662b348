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
    /// What was told last, and whether it was for being down: who reads that must hear of the end of it.
    choices: Vec<(PathId, Choice, bool)>,
}

impl Decision {
    /// Takes the first `most` of those chosen; answers whether any choice is other than before, or a path is not down any more.
    pub fn take(&mut self, verdicts: &[PathVerdict], most: usize) -> bool {
        let chosen = verdicts.iter().filter(|verdict| verdict.choice == Choice::Chosen);
        self.chosen = chosen.map(|verdict| verdict.path.id()).take(most).collect();
        let choices: Vec<_> =
            verdicts.iter().map(|verdict| (verdict.path.id(), verdict.choice, verdict.is_down)).collect();
        let is_news = self.choices != choices;
        self.choices = choices;
        is_news
    }
}

#[cfg(test)]
mod tests {
    use anabranch_paths::Path;

    use super::*;

    #[test]
    fn a_choice_is_due_when_asked_for_when_others_are_there_and_when_it_is_old() {
        let (mut occasion, now) = (Occasion::default(), Instant::now());
        assert!(occasion.is_due(1, None, now) && !occasion.is_due(1, None, now));
        assert!(occasion.is_due(2, None, now) && !occasion.is_due(2, None, now + REMEASURED_EVERY));
        assert!(!occasion.is_due(2, Some(REMEASURED_EVERY), now + REMEASURED_EVERY / 2));
        assert!(occasion.is_due(2, Some(REMEASURED_EVERY), now + REMEASURED_EVERY));
        assert_eq!(occasion.take_why(), "measured anew");
        occasion.reconsider("a peer left");
        occasion.reconsider("a peer connected");
        assert!(occasion.is_due(2, None, now));
        assert_eq!((occasion.take_why(), occasion.take_why()), ("a peer left".to_owned(), "measured anew".to_owned()));
    }

    #[test]
    fn a_choice_is_news_where_it_is_another_one() {
        let path = |host: u8| Path::ip([127, 0, 0, 1].into(), [127, 0, 0, host].into());
        let verdict = |host, choice, reason: &str| PathVerdict {
            path: path(host),
            choice,
            is_down: reason == "down",
            reason: reason.to_owned(),
        };
        let mut decision = Decision::default();
        let first =
            [verdict(1, Choice::Chosen, "a"), verdict(2, Choice::Standby, "b"), verdict(3, Choice::Chosen, "c")];
        assert!(decision.take(&first, 2));
        assert_eq!(decision.chosen, [path(1).id(), path(3).id()]);
        let same = [verdict(1, Choice::Chosen, "d"), first[1].clone(), first[2].clone()];
        assert!(!decision.take(&same, 1));
        assert_eq!(decision.chosen, [path(1).id()]);
        // It stands by as before, but not because it is down.
        let down = [first[0].clone(), verdict(2, Choice::Standby, "down"), first[2].clone()];
        assert!(decision.take(&down, 2) && !decision.take(&down, 2) && decision.take(&first, 2));
        assert!(decision.take(&[first[1].clone(), verdict(1, Choice::Left, "a")], 2));
        assert_eq!(decision.chosen, []);
    }
}
