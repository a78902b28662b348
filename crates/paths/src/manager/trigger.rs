//! When a choice is made, and what of it is news.

use std::time::{Duration, Instant};

use super::reason::{PathVerdict, Trigger};
use crate::PathId;
use crate::select::Choice;

/// How often a choice that depends on measurements is made anew, where nothing else asks for it.
pub(super) const REMEASURED_EVERY: Duration = Duration::from_secs(5);
/// The same for races, which are run anew with every slot of the scoreboard but one.
pub(super) const RACED_EVERY: Duration = Duration::from_secs(1);

/// What the next choice waits for.
#[derive(Debug, Default)]
pub(super) struct SelectionTrigger {
    /// What changed since the last choice, for its explanation.
    why: Option<Trigger>,
    chosen_at: Option<Instant>,
    /// What the last choice was made of.
    chosen_of: u64,
}

impl SelectionTrigger {
    /// The choice is to be made anew, and why.
    pub(super) fn reconsider(&mut self, why: Trigger) {
        self.why.get_or_insert(why);
        self.chosen_at = None;
    }

    /// Whether to choose now, which counts as done: it was asked for, what it is made of is other than before, or the last
    /// one is older than `every`.
    pub(super) fn is_due(&mut self, of: u64, every: Option<Duration>, now: Instant) -> bool {
        let is_old = |at: Instant| every.is_some_and(|every| now.saturating_duration_since(at) >= every);
        let is_due = of != self.chosen_of || self.chosen_at.is_none_or(is_old);
        if is_due {
            (self.chosen_of, self.chosen_at) = (of, Some(now));
        }
        is_due
    }

    /// What made the choice necessary.
    pub(super) fn take_why(&mut self) -> Trigger {
        self.why.take().unwrap_or(Trigger::Measured)
    }
}

/// What was decided about the paths to one peer.
#[derive(Debug, Default)]
pub(super) struct Decision {
    /// The paths, in the order of the candidates.
    pub chosen: Vec<PathId>,
    /// What was told last, and whether it was for being down: who reads that must hear of the end of it.
    choices: Vec<(PathId, Choice, bool)>,
}

impl Decision {
    /// Takes what was chosen; answers whether any choice is other than before, or a path is not down any more.
    pub(super) fn take(&mut self, verdicts: &[PathVerdict]) -> bool {
        let chosen = verdicts.iter().filter(|verdict| verdict.choice == Choice::Chosen);
        self.chosen = chosen.map(|verdict| verdict.path.id()).collect();
        let choices: Vec<_> =
            verdicts.iter().map(|verdict| (verdict.path.id(), verdict.choice, verdict.is_down())).collect();
        let is_news = self.choices != choices;
        self.choices = choices;
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Path;
    use crate::manager::reason::VerdictReason;
    use crate::select;

    #[test]
    fn a_choice_is_due_when_asked_for_when_others_are_there_and_when_it_is_old() {
        let (mut trigger, now) = (SelectionTrigger::default(), Instant::now());
        assert!(trigger.is_due(1, None, now) && !trigger.is_due(1, None, now));
        assert!(trigger.is_due(2, None, now) && !trigger.is_due(2, None, now + REMEASURED_EVERY));
        assert!(!trigger.is_due(2, Some(REMEASURED_EVERY), now + REMEASURED_EVERY / 2));
        assert!(trigger.is_due(2, Some(REMEASURED_EVERY), now + REMEASURED_EVERY));
        assert_eq!(trigger.take_why(), Trigger::Measured);
        trigger.reconsider(Trigger::PeerLeft);
        trigger.reconsider(Trigger::PeerConnected);
        assert!(trigger.is_due(2, None, now));
        assert_eq!((trigger.take_why(), trigger.take_why()), (Trigger::PeerLeft, Trigger::Measured));
    }

    #[test]
    fn a_choice_is_news_where_it_is_another_one() {
        let path = |host: u8| Path::ip([127, 0, 0, 1].into(), [127, 0, 0, host].into());
        let reason = |reason| VerdictReason::Selected { reason, interface: None };
        let verdict = |host, choice, why| PathVerdict { path: path(host), choice, reason: reason(why) };
        let (all, spent) = (select::Reason::All, select::Reason::BudgetSpent);
        let mut decision = Decision::default();
        let first = [verdict(1, Choice::Chosen, all.clone()), verdict(2, Choice::Standby, spent.clone())];
        assert!(decision.take(&first));
        assert_eq!(decision.chosen, [path(1).id()]);
        assert!(!decision.take(&[verdict(1, Choice::Chosen, spent), first[1].clone()]));
        // It stands by as before, but not because it is down.
        let down = [first[0].clone(), verdict(2, Choice::Standby, select::Reason::Down)];
        assert!(decision.take(&down) && !decision.take(&down) && decision.take(&first));
        assert!(decision.take(&[first[1].clone(), verdict(1, Choice::Left, all)]));
        assert_eq!(decision.chosen, []);
    }
}
