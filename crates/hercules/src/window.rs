//! Which of the last packets of one path came: against replays, and to report from.

use std::ops::Range;

/// Packets that a window remembers: four round trips of 200 ms at a million packets a second. What is older is a replay.
pub const WINDOW_PACKETS: u64 = 1 << 20;
const WORDS: usize = (WINDOW_PACKETS / 64) as usize;

/// A sliding bitmap over packet numbers.
#[derive(Clone)]
pub struct PacketWindow {
    words: Box<[u64]>,
    /// One more than the highest number that came.
    next: u64,
}

impl Default for PacketWindow {
    fn default() -> Self {
        Self { words: vec![0; WORDS].into(), next: 0 }
    }
}

impl std::fmt::Debug for PacketWindow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PacketWindow(up to {})", self.next)
    }
}

impl PacketWindow {
    /// One more than the highest number that came.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The lowest number that the window still knows of.
    pub fn floor(&self) -> u64 {
        // Whole words: the newest one took the place of the oldest.
        (self.next.div_ceil(64) * 64).saturating_sub(WINDOW_PACKETS)
    }

    /// Whether a packet of this number is new.
    pub fn is_new(&self, number: u64) -> bool {
        number >= self.next || (number >= self.floor() && !self.has(number))
    }

    /// A packet came; whether it is new. Numbers are below 2^48.
    pub fn insert(&mut self, number: u64) -> bool {
        if !self.is_new(number) {
            return false;
        }
        if number >= self.next {
            // What falls out of the window makes room: whole words, at most all of them.
            let (first, last) = (self.next.div_ceil(64), number / 64);
            for word in first..=last.min(first + WORDS as u64 - 1) {
                self.words[word as usize % WORDS] = 0;
            }
            self.next = number + 1;
        }
        self.words[(number / 64) as usize % WORDS] |= 1 << (number % 64);
        true
    }

    /// The end of the run of packets from `from` on that all came, or with `came` false, that all did not; at most `end`.
    pub fn run_end(&self, from: u64, end: u64, came: bool) -> u64 {
        // What is past the newest did not come; its bits are those of older packets.
        let known = end.min(self.next);
        let mut at = from;
        while at < known {
            let word = self.words[(at / 64) as usize % WORDS];
            let differs = (if came { !word } else { word }) & (u64::MAX << (at % 64));
            if differs != 0 {
                return (at / 64 * 64 + u64::from(differs.trailing_zeros())).min(if came { known } else { end });
            }
            at = (at / 64 + 1) * 64;
        }
        if came { known.max(from) } else { end }
    }

    /// How many of `range` came. All of it lies in the window.
    pub fn count(&self, range: Range<u64>) -> u64 {
        let (mut at, mut count) = (range.start, 0);
        while at < range.end {
            let end = self.run_end(at, range.end, true);
            count += end - at;
            at = self.run_end(end, range.end, false);
        }
        count
    }

    fn has(&self, number: u64) -> bool {
        self.words[(number / 64) as usize % WORDS] >> (number % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn knows_what_came(steps in prop::collection::vec(prop_oneof![0..200u64, 0..WINDOW_PACKETS * 2], 1..40)) {
            let (mut window, mut naive, mut top) = (PacketWindow::default(), BTreeSet::new(), 0u64);
            for step in steps {
                // Some come after the newest, some before.
                let number = if step % 3 == 0 { top.saturating_sub(step) } else { top + step };
                let old = number < window.floor();
                prop_assert_eq!(window.insert(number), !old && naive.insert(number));
                top = top.max(number + 1);
                prop_assert_eq!(window.next(), top);
                let from = number.max(window.floor());
                let end = window.run_end(from, top, true);
                prop_assert_eq!(end, (from..top).find(|at| !naive.contains(at)).unwrap_or(top));
                let low = top.saturating_sub(1000).max(window.floor());
                prop_assert_eq!(window.count(low..top), naive.range(low..).count() as u64);
            }
        }
    }

    #[test]
    fn takes_each_number_once_and_none_behind_the_window() {
        let mut window = PacketWindow::default();
        assert!(window.insert(WINDOW_PACKETS + 9) && !window.insert(WINDOW_PACKETS + 9));
        assert!(window.insert(64) && !window.insert(64));
        assert!(!window.insert(63));
    }
}
