//! Which paths announcers said that they use.

use std::collections::BTreeMap;
use std::time::Instant;

use anabranch_paths::{IsdAs, ScionAddr};

use crate::extension::{IN_USE_COUNTS_FOR, InterfaceSequence, PathsInUse};
use crate::tracker::InfoHash;

/// Interfaces remembered over all contents: 20 MB where a host names the shortest path there is.
const INTERFACES_MAX: usize = 200_000;

/// What hosts use, by content. What is old, or too much, is forgotten, the oldest first.
#[derive(Debug, Default)]
pub(super) struct UsedPaths {
    hosts: BTreeMap<(InfoHash, ScionAddr), Report>,
    /// By stamp, so by when it was said.
    by_age: BTreeMap<u64, (InfoHash, ScionAddr)>,
    interfaces: usize,
}

#[derive(Debug)]
struct Report {
    at: Instant,
    stamp: u64,
    paths: Vec<InterfaceSequence>,
}

impl UsedPaths {
    /// `host` uses these paths for a content, and no others.
    pub(super) fn put(&mut self, content: InfoHash, host: ScionAddr, paths: &[InterfaceSequence], now: Instant) {
        self.remove(content, host);
        if !paths.is_empty() {
            let stamp = self.by_age.last_key_value().map_or(0, |(latest, _)| latest + 1);
            self.interfaces += count(paths);
            self.hosts.insert((content, host), Report { at: now, stamp, paths: paths.to_vec() });
            self.by_age.insert(stamp, (content, host));
        }
        self.forget(now);
    }

    /// What is used of a content by others than these hosts, as far as one answer holds it.
    pub(super) fn by_others(&mut self, content: InfoHash, own: &[ScionAddr], now: Instant) -> PathsInUse {
        self.forget(now);
        let mut in_use = PathsInUse::default();
        let first = ScionAddr::new(IsdAs::default(), ([0, 0, 0, 0], 0).into());
        let of_content = self.hosts.range((content, first)..).take_while(|((of, _), _)| *of == content);
        for ((_, host), report) in of_content.filter(|((_, host), _)| !own.contains(host)) {
            in_use.add(*host, &report.paths);
        }
        in_use
    }

    fn remove(&mut self, content: InfoHash, host: ScionAddr) {
        if let Some(report) = self.hosts.remove(&(content, host)) {
            self.by_age.remove(&report.stamp);
            self.interfaces -= count(&report.paths);
        }
    }

    fn forget(&mut self, now: Instant) {
        let is_old = |report: &Report| now.saturating_duration_since(report.at) >= IN_USE_COUNTS_FOR;
        while let Some((_, &(content, host))) = self.by_age.first_key_value() {
            if self.interfaces <= INTERFACES_MAX && !self.hosts.get(&(content, host)).is_some_and(is_old) {
                break;
            }
            self.remove(content, host);
        }
    }
}

fn count(paths: &[InterfaceSequence]) -> usize {
    paths.iter().map(|path| path.interfaces().len()).sum()
}
