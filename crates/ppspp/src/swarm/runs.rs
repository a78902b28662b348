//! Chunks with what is known of each, kept in runs: what was asked for at once, or left at once, takes one place however much it is.

use std::collections::BTreeMap;
use std::ops::Range;

/// What is known of the first chunk of a run, from which that of the others follows.
pub(super) trait Along: Copy + PartialEq {
    /// The same, of the chunk so many further on.
    fn along(self, chunks: u64) -> Self;
}

/// Runs of chunks that do not overlap.
#[derive(Clone, Debug)]
pub(super) struct RunMap<T> {
    /// By the chunk after its last: a run that is taken away from its front, as what arrives in order is, stays where it is.
    by_end: BTreeMap<u64, (u64, T)>,
    chunks: u64,
}

impl<T: Along> RunMap<T> {
    pub(super) fn new() -> Self {
        Self { by_end: BTreeMap::new(), chunks: 0 }
    }

    /// How many chunks.
    pub(super) fn len(&self) -> u64 {
        self.chunks
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks == 0
    }

    /// What is known of a chunk.
    pub(super) fn get(&self, chunk: u64) -> Option<T> {
        let (_, (start, value)) = self.by_end.range(chunk.checked_add(1)?..).next()?;
        (*start <= chunk).then(|| value.along(chunk - start))
    }

    /// The first run that ends after `from`, cut to what lies from there on.
    pub(super) fn next_run(&self, from: u64) -> Option<Range<u64>> {
        let (end, (start, _)) = self.by_end.range(from.checked_add(1)?..).next()?;
        Some(from.max(*start)..*end)
    }

    /// Adds chunks; what was known of them is replaced.
    pub(super) fn insert(&mut self, range: Range<u64>, value: T) {
        if range.is_empty() {
            return;
        }
        self.remove(&range, |_, _| ());
        self.chunks += range.end - range.start;
        let mut joined = (range.start, value);
        if let Some((start, before)) = self.by_end.get(&range.start).copied()
            && before.along(range.start - start) == value
        {
            self.by_end.remove(&range.start);
            joined = (start, before);
        }
        self.by_end.insert(range.end, joined);
    }

    /// Takes chunks out; `each` hears of every run of those that were there, in order.
    pub(super) fn remove(&mut self, range: &Range<u64>, mut each: impl FnMut(Range<u64>, T)) {
        while let Some(from) = range.start.checked_add(1)
            && let Some((end, (start, value))) = self.by_end.range_mut(from..).next()
            && *start < range.end
        {
            let (end, run) = (*end, *start..*end);
            let (gone, known) = (run.start.max(range.start)..end.min(range.end), *value);
            if gone.end < end {
                (*start, *value) = (gone.end, known.along(gone.end - run.start));
            } else {
                self.by_end.remove(&end);
            }
            if run.start < gone.start {
                self.by_end.insert(gone.start, (run.start, known));
            }
            self.chunks -= gone.end - gone.start;
            let is_last = end >= range.end;
            each(gone.clone(), known.along(gone.start - run.start));
            if is_last {
                return;
            }
        }
    }

    /// Takes all of them out.
    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }

    /// Every run, in order.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (Range<u64>, T)> + '_ {
        self.by_end.iter().map(|(end, (start, value))| (*start..*end, *value))
    }

    /// The runs, in order.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.iter().map(|(range, _)| range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Number(u64);

    impl Along for Number {
        fn along(self, chunks: u64) -> Self {
            Self(self.0 + chunks)
        }
    }

    /// Against a map with an entry for each chunk.
    #[test]
    fn what_is_known_of_each_chunk_is_as_if_it_were_kept_by_itself() {
        for seed in 0..40 {
            println!("seed {seed}");
            let mut rng = fastrand::Rng::with_seed(seed);
            let (mut runs, mut plain) = (RunMap::new(), BTreeMap::new());
            for _ in 0..300 {
                let start = rng.u64(..60);
                let range = start..start + rng.u64(..12);
                if rng.bool() {
                    let value = Number(if rng.bool() { range.start } else { rng.u64(..1000) });
                    runs.insert(range.clone(), value);
                    plain.extend(range.clone().map(|chunk| (chunk, value.along(chunk - range.start))));
                } else {
                    let mut gone = Vec::new();
                    runs.remove(&range, |run, value| {
                        gone.extend(run.clone().map(|chunk| (chunk, value.along(chunk - run.start))));
                    });
                    let expected: Vec<_> = range.filter_map(|chunk| Some((chunk, plain.remove(&chunk)?))).collect();
                    assert_eq!(gone, expected);
                }
                assert_eq!((runs.len(), runs.is_empty()), (plain.len() as u64, plain.is_empty()));
                assert!((0..80).all(|chunk| runs.get(chunk) == plain.get(&chunk).copied()));
                assert!(runs.ranges().flatten().eq(plain.keys().copied()));
                let next = runs.next_run(start);
                assert_eq!(next.as_ref().map(|run| run.start), plain.range(start..).next().map(|(chunk, _)| *chunk));
                assert!(next.into_iter().flatten().all(|chunk| plain.contains_key(&chunk)));
            }
        }
        let mut runs = RunMap::new();
        runs.insert(u64::MAX - 2..u64::MAX, Number(0));
        assert_eq!((runs.get(u64::MAX - 1), runs.get(u64::MAX)), (Some(Number(1)), None));
        runs.insert(0..8, Number(0));
        runs.insert(8..16, Number(8));
        assert_eq!(runs.iter().count(), 2, "what follows itself is one run");
    }
}
