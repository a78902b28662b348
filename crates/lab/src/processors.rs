//! How busy the machine is.

use std::fs;

/// What the machine's processors did so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Processors {
    idle: u64,
    total: u64,
}

impl Processors {
    /// Share of the time between both that they were at work.
    pub(crate) fn share_since(self, before: Self) -> Option<f64> {
        let total = self.total.checked_sub(before.total).filter(|total| *total > 0)?;
        Some(1.0 - self.idle.saturating_sub(before.idle) as f64 / total as f64)
    }
}

/// From the system, where it tells.
pub(crate) fn processors() -> Option<Processors> {
    parse_processors(&fs::read_to_string("/proc/stat").ok()?)
}

/// proc(5), "/proc/stat": after `cpu`, the times of user, nice, system, idle, iowait and others.
fn parse_processors(text: &str) -> Option<Processors> {
    let times = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let times: Vec<u64> = times.map(|time| time.parse().ok()).collect::<Option<_>>()?;
    // The last two, guests, are in the first two as well.
    let total = times.iter().take(8).sum();
    Some(Processors { idle: times.get(3)? + times.get(4)?, total })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_processors_is_read() {
        let before = parse_processors("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1").unwrap();
        assert_eq!(before, Processors { idle: 850, total: 1000 });
        let after = parse_processors("cpu  150 0 100 850 100 0 0 0 7 0").unwrap();
        assert_eq!(after.share_since(before), Some(0.5));
        assert_eq!(before.share_since(before), None);
        for text in ["", "cpu 1 2 3", "cpu  a b c d e", "intr 7"] {
            assert_eq!(parse_processors(text), None, "{text}");
        }
    }
}
