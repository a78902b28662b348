//! Sets of chunks, up to hundreds of millions of them: which were received, sent, lost.
//!
//! A transfer has as many chunks as packets, and 2 % of ten million missing is a normal day. So the set is neither a list of
//! ranges, which random loss blows up, nor one long bitmap, which a transfer that is nearly done does not need: it is pages of
//! 2^15 chunks, each empty, full or a bitmap of 4 KiB. Filling in order touches one page at a time; the worst case is an eighth
//! of a byte a chunk.

use std::fmt;
use std::ops::Range;

/// Chunks of one page.
const PAGE_CHUNKS: u64 = 1 << 15;
const PAGE_WORDS: usize = (PAGE_CHUNKS / 64) as usize;

/// A set of chunk indices below a limit.
///
/// ```
/// use anabranch_hercules::ChunkSet;
///
/// let mut received = ChunkSet::new(1_000_000);
/// received.insert_range(0..500_000);
/// received.remove(7);
/// assert_eq!(received.gaps(0..1_000_000).collect::<Vec<_>>(), [7..8, 500_000..1_000_000]);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ChunkSet {
    limit: u64,
    count: u64,
    /// As far as the set was ever filled; what lies behind is empty.
    pages: Vec<Page>,
}

#[derive(Clone, PartialEq, Eq)]
enum Page {
    Empty,
    Full,
    Bits(Box<Bits>),
}

#[derive(Clone, PartialEq, Eq)]
struct Bits {
    words: [u64; PAGE_WORDS],
    count: u32,
}

impl ChunkSet {
    /// The empty set over chunks below `limit`. Allocates nothing.
    pub fn new(limit: u64) -> Self {
        Self { limit, count: 0, pages: Vec::new() }
    }

    /// All chunks below `limit`.
    pub fn full(limit: u64) -> Self {
        let pages = limit.div_ceil(PAGE_CHUNKS) as usize;
        Self { limit, count: limit, pages: vec![Page::Full; pages] }
    }

    /// One more than the highest chunk that can be a member.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How many chunks are members.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether no chunk is a member.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether every chunk below the limit is a member.
    pub fn is_full(&self) -> bool {
        self.count == self.limit
    }

    /// Whether `chunk` is a member.
    pub fn contains(&self, chunk: u64) -> bool {
        let (page, at) = split(chunk);
        match self.pages.get(page) {
            None | Some(Page::Empty) => false,
            Some(Page::Full) => chunk < self.limit,
            Some(Page::Bits(bits)) => bits.words[at / 64] >> (at % 64) & 1 == 1,
        }
    }

    /// Whether all of `range` are members; an empty range always is.
    pub fn contains_range(&self, range: Range<u64>) -> bool {
        range.is_empty()
            || (range.end <= self.limit && self.next_absent(range.start).is_none_or(|gap| gap >= range.end))
    }

    /// Makes `chunk` a member; whether it was none before. What lies past the limit never becomes one.
    pub fn insert(&mut self, chunk: u64) -> bool {
        if chunk >= self.limit {
            return false;
        }
        let ((page, at), capacity) = (split(chunk), self.capacity(split(chunk).0));
        // What each packet of a page but the first and the last meets.
        if let Some(Page::Bits(bits)) = self.pages.get_mut(page).filter(|page| page.count(capacity) + 1 < capacity) {
            let is_new = bits.words[at / 64] >> (at % 64) & 1 == 0;
            bits.words[at / 64] |= 1 << (at % 64);
            bits.count += u32::from(is_new);
            self.count += u64::from(is_new);
            return is_new;
        }
        self.insert_range(chunk..chunk + 1) == 1
    }

    /// Makes all of `range` below the limit members; how many were none before.
    pub fn insert_range(&mut self, range: Range<u64>) -> u64 {
        let range = range.start..range.end.min(self.limit);
        if range.is_empty() {
            return 0;
        }
        let pages = range.end.div_ceil(PAGE_CHUNKS) as usize;
        if self.pages.len() < pages {
            self.pages.resize(pages, Page::Empty);
        }
        let mut added = 0;
        for (page, part) in parts(range) {
            let capacity = self.capacity(page);
            added += match &mut self.pages[page] {
                Page::Full => 0,
                slot if part.len() as u64 == capacity => {
                    let had = slot.count(capacity);
                    *slot = Page::Full;
                    capacity - had
                }
                slot => {
                    let bits = slot.bits(capacity);
                    let before = bits.count;
                    each_word(part, |word, mask| {
                        bits.count += (mask & !bits.words[word]).count_ones();
                        bits.words[word] |= mask;
                    });
                    let added = u64::from(bits.count - before);
                    if u64::from(bits.count) == capacity {
                        *slot = Page::Full;
                    }
                    added
                }
            };
        }
        self.count += added;
        added
    }

    /// Takes `chunk` out; whether it was a member.
    pub fn remove(&mut self, chunk: u64) -> bool {
        chunk < self.limit && self.remove_range(chunk..chunk + 1) == 1
    }

    /// Takes all of `range` out; how many were members.
    pub fn remove_range(&mut self, range: Range<u64>) -> u64 {
        let range = range.start..range.end.min(self.limit).min(self.pages.len() as u64 * PAGE_CHUNKS);
        if range.is_empty() {
            return 0;
        }
        let mut removed = 0;
        for (page, part) in parts(range) {
            let capacity = self.capacity(page);
            removed += match &mut self.pages[page] {
                Page::Empty => 0,
                slot if part.len() as u64 == capacity => {
                    let had = slot.count(capacity);
                    *slot = Page::Empty;
                    had
                }
                slot => {
                    let bits = slot.bits(capacity);
                    let before = bits.count;
                    each_word(part, |word, mask| {
                        bits.count -= (mask & bits.words[word]).count_ones();
                        bits.words[word] &= !mask;
                    });
                    let removed = u64::from(before - bits.count);
                    if bits.count == 0 {
                        *slot = Page::Empty;
                    }
                    removed
                }
            };
        }
        self.count -= removed;
        removed
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.count = 0;
    }

    /// The first member from `from` on.
    pub fn next_member(&self, from: u64) -> Option<u64> {
        self.seek(from, self.limit, false)
    }

    /// The first member within `range`. Looks no further than its end.
    pub fn next_within(&self, range: Range<u64>) -> Option<u64> {
        self.seek(range.start, range.end.min(self.limit), false)
    }

    /// The first chunk from `from` on, below the limit, that is no member.
    pub fn next_absent(&self, from: u64) -> Option<u64> {
        self.seek(from, self.limit, true)
    }

    /// The first run of members within `range`, as far as that goes. Looks no further than its end.
    pub fn run_within(&self, range: Range<u64>) -> Option<Range<u64>> {
        let end = range.end.min(self.limit);
        let start = self.seek(range.start, end, false)?;
        Some(start..self.seek(start, end, true).unwrap_or(end))
    }

    /// The runs of members within `range`, in order.
    pub fn runs(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut from = range.start;
        std::iter::from_fn(move || {
            let run = self.run_within(from..range.end)?;
            from = run.end;
            Some(run)
        })
    }

    /// The runs of chunks within `range` and below the limit that are no members, in order.
    pub fn gaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut from = range.start;
        std::iter::from_fn(move || {
            let end = range.end.min(self.limit);
            let start = self.seek(from, end, true)?;
            from = self.seek(start, end, false).unwrap_or(end);
            Some(start..from)
        })
    }

    /// Chunks of page `page` that can be members.
    fn capacity(&self, page: usize) -> u64 {
        (self.limit - page as u64 * PAGE_CHUNKS).min(PAGE_CHUNKS)
    }

    /// The first chunk from `from` to `end`, at most the limit, that is a member, or with `absent` that is none.
    fn seek(&self, from: u64, end: u64, absent: bool) -> Option<u64> {
        if from >= end {
            return None;
        }
        let (mut page, mut at) = split(from);
        while let Some(slot) = self.pages.get(page).filter(|_| (page as u64) * PAGE_CHUNKS < end) {
            let found = match slot {
                Page::Empty => absent.then_some(at),
                Page::Full => (!absent).then_some(at),
                Page::Bits(bits) => bits.seek(at, absent),
            };
            if let Some(at) = found {
                let chunk = page as u64 * PAGE_CHUNKS + at as u64;
                return Some(chunk).filter(|chunk| *chunk < end);
            }
            (page, at) = (page + 1, 0);
        }
        Some(page as u64 * PAGE_CHUNKS + at as u64).filter(|chunk| absent && *chunk < end)
    }
}

impl fmt::Debug for ChunkSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkSet({} of {})", self.count, self.limit)
    }
}

impl Page {
    fn count(&self, capacity: u64) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Full => capacity,
            Self::Bits(bits) => bits.count.into(),
        }
    }

    /// The page as a bitmap.
    fn bits(&mut self, capacity: u64) -> &mut Bits {
        if let Self::Empty | Self::Full = self {
            let mut bits = Bits { words: [0; PAGE_WORDS], count: 0 };
            if let Self::Full = self {
                // A page's capacity is at most 2^15.
                bits.count = capacity as u32;
                each_word(0..capacity as usize, |word, mask| bits.words[word] = mask);
            }
            *self = Self::Bits(Box::new(bits));
        }
        match self {
            Self::Bits(bits) => bits,
            _ => unreachable!("made a bitmap above"),
        }
    }
}

impl Bits {
    fn seek(&self, from: usize, absent: bool) -> Option<usize> {
        let word_at = |word: usize| if absent { !self.words[word] } else { self.words[word] };
        let mut word = from / 64;
        let mut rest = word_at(word) & (u64::MAX << (from % 64));
        while rest == 0 {
            word += 1;
            if word == PAGE_WORDS {
                return None;
            }
            rest = word_at(word);
        }
        Some(word * 64 + rest.trailing_zeros() as usize)
    }
}

fn split(chunk: u64) -> (usize, usize) {
    ((chunk / PAGE_CHUNKS) as usize, (chunk % PAGE_CHUNKS) as usize)
}

/// The pages that `range` touches, and what it covers of each.
fn parts(range: Range<u64>) -> impl Iterator<Item = (usize, Range<usize>)> {
    (range.start / PAGE_CHUNKS..range.end.div_ceil(PAGE_CHUNKS)).map(move |page| {
        let base = page * PAGE_CHUNKS;
        let end = (range.end - base).min(PAGE_CHUNKS);
        (page as usize, range.start.saturating_sub(base) as usize..end as usize)
    })
}

/// The words that `range` touches, each with the bits that it covers.
fn each_word(range: Range<usize>, mut f: impl FnMut(usize, u64)) {
    for word in range.start / 64..range.end.div_ceil(64) {
        let base = word * 64;
        let low = range.start.saturating_sub(base);
        let high = (range.end - base).min(64);
        f(word, (u64::MAX >> (64 - (high - low))) << low);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Around the edges of pages and words.
    fn position() -> impl Strategy<Value = u64> {
        let near = |base: u64| (base.saturating_sub(3)..base + 3).boxed();
        prop_oneof![
            near(3),
            near(64),
            near(PAGE_CHUNKS),
            near(2 * PAGE_CHUNKS),
            near(2 * PAGE_CHUNKS + 70),
            0..70_000u64
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn is_a_set(
            limit in position(),
            steps in prop::collection::vec((any::<bool>(), position(), prop_oneof![0..3u64, 60..70u64, 0..70_000u64]), 0..12),
            probes in prop::collection::vec(position(), 8),
        ) {
            let (mut set, mut naive) = (ChunkSet::new(limit), BTreeSet::new());
            for (add, start, len) in steps {
                let range = start..start + len;
                let before = naive.len();
                if add {
                    naive.extend(range.clone().filter(|chunk| *chunk < limit));
                    prop_assert_eq!(set.insert_range(range.clone()), (naive.len() - before) as u64);
                    prop_assert!(set.contains_range(range.start..range.end.min(limit)));
                } else {
                    naive.retain(|chunk| !range.contains(chunk));
                    prop_assert_eq!(set.remove_range(range), (before - naive.len()) as u64);
                }
                prop_assert_eq!(set.len(), naive.len() as u64);
            }
            let members: Vec<u64> = set.runs(0..u64::MAX).flatten().collect();
            prop_assert_eq!(members, naive.iter().copied().collect::<Vec<_>>());
            let absent: u64 = set.gaps(0..u64::MAX).map(|gap| gap.end - gap.start).sum();
            prop_assert_eq!(absent + set.len(), limit);
            for probe in probes {
                prop_assert_eq!(set.contains(probe), naive.contains(&probe));
                prop_assert_eq!(set.next_member(probe), naive.range(probe..).next().copied());
                prop_assert_eq!(set.next_absent(probe), (probe..limit).find(|chunk| !naive.contains(chunk)));
            }
            let had = set.is_full();
            // One by one is the same as all at once.
            let mut single = set.clone();
            let last = limit.saturating_sub(1);
            for chunk in (0..limit).filter(|chunk| *chunk != last) {
                prop_assert_eq!(single.insert(chunk), !naive.contains(&chunk));
            }
            prop_assert_eq!(single.insert(last), limit > 0 && !naive.contains(&last));
            prop_assert!(!single.insert(last) && !single.insert(limit));
            prop_assert_eq!(&single, &ChunkSet::full(limit));
            prop_assert_eq!(set.insert_range(0..limit) == 0, had);
            prop_assert!(set.is_full() && set.next_absent(0).is_none());
            prop_assert_eq!(&set, &ChunkSet::full(limit));
        }
    }

    #[test]
    fn holds_what_a_huge_transfer_has_in_little_memory() {
        let mut set = ChunkSet::full(1 << 36);
        assert!(set.remove(5) && !set.remove(5) && set.insert(5) && !set.insert(1 << 36));
        assert!(set.is_full());
    }
}
