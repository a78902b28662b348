//! Which paths third parties use: told by whoever knows them, to who may want to keep out of their way.
//!
//! Peers say themselves what they use, to all they are connected to (`used` of `ab_paths`). Further out it goes by peer exchange and
//! by trackers (docs/protocol.md), each one step: nobody passes on what was passed on to him, so nothing goes in circles. It
//! is advice: who lies has others choose worse paths, no more.

use std::collections::BTreeMap;
use std::time::Duration;

use anabranch_content::bencode::{DictBuilder, ListBuilder, Value};
use anabranch_paths::{Endpoint, ScionAddr};

use super::InterfaceSequence;
use crate::compact::{is_dialable, pack_scion, take_scion};

/// Paths told of one host.
pub const IN_USE_OF_HOST_MAX: usize = 8;
/// Paths told of all hosts together: some 10 KB where a path passes eight ASes.
pub const IN_USE_MAX: usize = 64;
/// What a third party is said to use counts for this long: the news of a minute ago, and one message lost.
pub const IN_USE_COUNTS_FOR: Duration = Duration::from_secs(150);

/// The key in peer exchange, of the parameter of announces, and in their answers.
pub(crate) const KEY: &str = "ab_used";

/// Hosts, each with the paths over which it moves content, seen from itself. At most [`IN_USE_MAX`] paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathsInUse {
    hosts: BTreeMap<ScionAddr, Vec<InterfaceSequence>>,
    paths: usize,
}

impl PathsInUse {
    /// Adds what `host` uses, cut to [`IN_USE_OF_HOST_MAX`] and to what there is room for. A host is told of once; one that uses
    /// nothing is not told of.
    pub fn add(&mut self, host: ScionAddr, paths: &[InterfaceSequence]) {
        let room = IN_USE_OF_HOST_MAX.min(IN_USE_MAX - self.paths);
        let paths = &paths[..paths.len().min(room)];
        if !paths.is_empty() && is_dialable(&Endpoint::Scion(host)) && !self.hosts.contains_key(&host) {
            self.paths += paths.len();
            self.hosts.insert(host, paths.to_vec());
        }
    }

    /// Hosts with what they use.
    pub fn hosts(&self) -> impl Iterator<Item = (ScionAddr, &[InterfaceSequence])> {
        self.hosts.iter().map(|(host, paths)| (*host, &paths[..]))
    }

    /// Whether nobody uses anything.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// A dictionary: lists of paths by hosts in the compact form.
    pub(crate) fn encode(&self) -> DictBuilder {
        let mut dict = DictBuilder::new();
        for (host, paths) in &self.hosts {
            let (mut key, mut list) = (Vec::new(), ListBuilder::new());
            pack_scion(host, &mut key);
            for path in paths {
                list.bytes(path.encode());
            }
            dict.list(key, &list);
        }
        dict
    }

    /// Reads a dictionary, as far as there is room; what is no host or no path is left out. `None` where it is no dictionary.
    pub(crate) fn parse(value: Value<'_>) -> Option<Self> {
        let mut in_use = Self::default();
        for (mut key, paths) in value.as_dict()? {
            let host = take_scion(&mut key).filter(|_| key.is_empty());
            let (Some(host), Some(paths)) = (host, paths.as_list()) else { continue };
            let paths = paths.filter_map(|path| InterfaceSequence::parse(path.as_bytes()?)).take(IN_USE_OF_HOST_MAX);
            in_use.add(host, &paths.collect::<Vec<_>>());
        }
        Some(in_use)
    }
}

#[cfg(test)]
mod tests {
    use anabranch_content::bencode::{self, Limits};
    use anabranch_paths::IsdAs;
    use proptest::prelude::*;

    use super::*;

    fn host(port: u16) -> ScionAddr {
        ScionAddr::new(IsdAs::new(1, 110).unwrap(), ([10, 0, 0, 1], port).into())
    }

    fn read(bytes: &[u8]) -> Option<PathsInUse> {
        let (tree, _) = bencode::parse_prefix(bytes, &Limits::MESSAGE).ok()?;
        PathsInUse::parse(tree.root())
    }

    #[test]
    fn hosts_have_the_documented_bytes() {
        let mut in_use = PathsInUse::default();
        in_use.add(host(6881), &[InterfaceSequence::of_link(3)]);
        let bytes = in_use.encode().encode();
        let interface = |asn| [0, 1, 0, 0, 0, 0, 0, asn, 0, 3];
        let expected = [
            &b"d15:\x00\x01\x00\x00\x00\x00\x00\x6e\x04\x0a\x00\x00\x01\x1a\xe1l20:"[..],
            &interface(110),
            &interface(111),
            b"ee",
        ];
        assert_eq!(bytes, expected.concat());
        assert_eq!(read(&bytes), Some(in_use));
    }

    #[test]
    fn no_more_are_told_than_there_is_room_for() {
        let mut in_use = PathsInUse::default();
        let many: Vec<_> = (1..=9).map(InterfaceSequence::of_link).collect();
        in_use.add(host(1), &many);
        in_use.add(host(1), &many[..1]);
        in_use.add(host(0), &many);
        in_use.add(host(2), &[]);
        assert_eq!(in_use.hosts().map(|(at, paths)| (at, paths.len())).collect::<Vec<_>>(), [(host(1), 8)]);
        (2..20).for_each(|port| in_use.add(host(port), &many[..7]));
        assert_eq!(in_use.hosts().map(|(_, paths)| paths.len()).sum::<usize>(), IN_USE_MAX);
        assert_eq!(in_use.hosts().count(), 9);
    }

    #[test]
    fn what_is_no_host_or_no_path_is_left_out() {
        assert_eq!(read(b"le"), None);
        assert_eq!(read(b"d3:abcl20:aaaaaaaaaaaaaaaaaaaaee"), Some(PathsInUse::default()));
        let broken = b"d15:\x00\x01\x00\x00\x00\x00\x00\x6e\x04\x0a\x00\x00\x01\x1a\xe1li3e3:abcee";
        assert_eq!(read(broken), Some(PathsInUse::default()));
    }

    proptest! {
        #[test]
        fn what_is_told_is_read(hosts in prop::collection::vec((1u16.., prop::collection::vec(1u16.., 0..10)), 0..20)) {
            let mut in_use = PathsInUse::default();
            for (port, paths) in hosts {
                in_use.add(host(port), &paths.into_iter().map(InterfaceSequence::of_link).collect::<Vec<_>>());
            }
            prop_assert_eq!(read(&in_use.encode().encode()), Some(in_use));
        }
    }
}
