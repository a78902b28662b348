//! What changed, and after what: whoever follows many contents looks at those alone that are not as they were. Pure.

use std::collections::{BTreeSet, VecDeque};

/// Contents that went and are remembered: whoever was away for longer looks at all.
const GONE_MAX: usize = 10_000;

/// The order in which contents last changed. Its clock goes on with every change.
#[derive(Debug, Default)]
pub(super) struct Changes {
    clock: u64,
    /// One entry a content.
    order: BTreeSet<(u64, u64)>,
    /// What went, the latest last.
    gone: VecDeque<(u64, u64)>,
    /// What went until then is not known any more.
    forgotten: u64,
}

impl Changes {
    /// The time of the last change: whatever changes from now on does so later.
    pub(super) fn clock(&self) -> u64 {
        self.clock
    }

    /// A content changes that last did so at `before`, 0 where it is new. Answers the time.
    pub(super) fn touch(&mut self, id: u64, before: u64) -> u64 {
        self.clock += 1;
        self.order.remove(&(before, id));
        self.order.insert((self.clock, id));
        self.clock
    }

    /// A content goes that last changed at `before`.
    pub(super) fn remove(&mut self, id: u64, before: u64) {
        self.clock += 1;
        self.order.remove(&(before, id));
        if self.gone.len() >= GONE_MAX
            && let Some((at, _)) = self.gone.pop_front()
        {
            self.forgotten = at;
        }
        self.gone.push_back((self.clock, id));
    }

    /// What came, changed or went after `clock`, once each; `None` where that is not known any more.
    pub(super) fn since(&self, clock: u64) -> Option<Vec<u64>> {
        if clock < self.forgotten {
            return None;
        }
        let gone = self.gone.iter().rev().take_while(|(at, _)| *at > clock);
        let changed = self.order.range((clock.saturating_add(1), 0)..);
        Some(changed.chain(gone).map(|(_, id)| *id).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_told_once_and_nothing_else() {
        let mut changes = Changes::default();
        let mut touched = [0; 4];
        for id in [1, 2, 3, 2] {
            touched[id] = changes.touch(id as u64, touched[id]);
        }
        assert_eq!(changes.since(0), Some(vec![1, 3, 2]));
        let then = changes.clock();
        assert_eq!(changes.since(then), Some(vec![]));
        touched[1] = changes.touch(1, touched[1]);
        changes.remove(3, touched[3]);
        assert_eq!(changes.since(then), Some(vec![1, 3]));
        assert_eq!(changes.since(0), Some(vec![2, 1, 3]));
        assert_eq!(changes.since(u64::MAX), Some(vec![]));
    }

    #[test]
    fn what_went_is_remembered_for_so_long() {
        let mut changes = Changes::default();
        let ids = GONE_MAX as u64 + 1;
        let touched: Vec<u64> = (0..ids).map(|id| changes.touch(id, 0)).collect();
        let then = changes.clock();
        (0..ids - 1).for_each(|id| changes.remove(id, touched[id as usize]));
        assert_eq!(changes.since(then).map(|gone| gone.len()), Some(GONE_MAX));
        changes.remove(ids - 1, touched[ids as usize - 1]);
        assert_eq!(changes.since(then), None);
        assert_eq!(changes.since(then + 1).map(|gone| gone.len()), Some(GONE_MAX));
    }
}
