//! Which links of the SCION network are down, as far as is known: the same for all contents.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::{Interface, ScionPath};

/// How long a link counts as down that nobody complains of any more.
const DOWN_HOLDS: Duration = Duration::from_secs(10);
/// Links that are remembered as down; with more, the network is in no state to be remembered.
const DOWN_MAX: usize = 1024;

/// Interfaces whose links are down, as the network says, and since when.
#[derive(Clone, Debug, Default)]
pub struct LinkHealth {
    down: HashMap<Interface, Instant>,
}

impl LinkHealth {
    /// The network says that the link at `interface` is down.
    pub fn goes_down(&mut self, interface: Interface, now: Instant) {
        self.down.retain(|_, since| holds(*since, now));
        if self.down.len() < DOWN_MAX {
            self.down.insert(interface, now);
        }
    }

    /// Something came over `path`: all its links work. Answers whether one was thought to be down.
    pub fn works(&mut self, path: &ScionPath) -> bool {
        path.interfaces.iter().filter(|interface| self.down.remove(interface).is_some()).count() > 0
    }

    /// The interface on `path` whose link is down.
    pub fn down_interface(&self, path: &ScionPath, now: Instant) -> Option<Interface> {
        let is_down = |interface: &&Interface| self.down.get(interface).is_some_and(|since| holds(*since, now));
        path.interfaces.iter().find(is_down).copied()
    }

    /// Whether a link on `path` is down.
    pub fn is_down(&self, path: &ScionPath, now: Instant) -> bool {
        self.down_interface(path, now).is_some()
    }
}

fn holds(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) < DOWN_HOLDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;

    #[test]
    fn a_link_is_down_until_something_comes_over_it_or_nobody_complains_any_more() {
        let (mut links, now) = (LinkHealth::default(), Instant::now());
        let path = path("1-ff00:0:1 1>1 1-ff00:0:2 2>1 1-ff00:0:3");
        let interface = path.interfaces[1];
        links.goes_down(interface, now);
        assert_eq!(links.down_interface(&path, now + DOWN_HOLDS / 2), Some(interface));
        assert!(!links.is_down(&path, now + DOWN_HOLDS));
        assert!(links.works(&path) && !links.works(&path) && !links.is_down(&path, now));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut links, now) = (LinkHealth::default(), Instant::now());
        let path = path("1-ff00:0:1 1>1 1-ff00:0:2");
        for id in 0..=u16::MAX {
            links.goes_down(Interface { id, ..path.interfaces[0] }, now);
        }
        assert_eq!(links.down.len(), DOWN_MAX);
        links.goes_down(path.interfaces[0], now + DOWN_HOLDS);
        assert_eq!(links.down.len(), 1);
    }
}
