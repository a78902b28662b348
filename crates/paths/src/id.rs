//! The identity of a path, and how users name one.

use std::borrow::Borrow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::{Interface, IsdAs, ScionPath};

/// Bytes of a [`PathId`]: enough that two of the paths one node ever sees never collide.
const PATH_ID_LEN: usize = 16;
/// Digits that name a path at least: fewer are the number of a path in some list, more likely.
const PREFIX_DIGITS_MIN: usize = 4;
/// Digits of a fingerprint, the longest name.
const FINGERPRINT_DIGITS: usize = 64;
/// Bytes of it that are shown: enough to tell apart what one user ever looks at.
const SHOWN_LEN: usize = 6;

/// The identity of a path: a hash of the ordered list of things it passes. Stable across refresh and restarts.
///
/// Prints its first twelve hexadecimal digits, which is how users name a path; with `{:#}`, all of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId([u8; PATH_ID_LEN]);

impl PathId {
    /// Over plain IP: what is known of the way is where it starts and ends.
    pub(crate) fn of_ip(local: IpAddr, remote: IpAddr) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"anabranch path v1: ip\0");
        for address in [local, remote] {
            match address {
                IpAddr::V4(v4) => hash.update([&[4], v4.octets().as_slice()].concat()),
                IpAddr::V6(v6) => hash.update([&[6], v6.octets().as_slice()].concat()),
            }
        }
        Self::truncated(hash)
    }

    /// Through SCION: the interfaces in order. Hop-field MACs and expiry change at every refresh and are no part of it.
    pub fn of_scion(source: IsdAs, destination: IsdAs, interfaces: &[Interface]) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"anabranch path v1: scion\0");
        // Inside one AS there are no interfaces. Each entry has ten bytes, so nothing runs into its neighbour.
        let ends = [Interface { isd_as: source, id: 0 }, Interface { isd_as: destination, id: 0 }];
        for interface in if interfaces.is_empty() { &ends } else { interfaces } {
            hash.update(interface.isd_as.to_u64().to_be_bytes());
            hash.update(interface.id.to_be_bytes());
        }
        Self::truncated(hash)
    }

    fn truncated(hash: Sha256) -> Self {
        let mut id = [0; PATH_ID_LEN];
        id.copy_from_slice(&hash.finalize()[..PATH_ID_LEN]);
        Self(id)
    }
}

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = if f.alternate() { PATH_ID_LEN } else { SHOWN_LEN };
        self.0[..shown].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PathId({self})")
    }
}

/// SHA-256 of what a path passes, as scionproto's tools name paths (`snet.Fingerprint`): the AS and the number of each interface,
/// eight bytes each.
pub(crate) fn fingerprint(interfaces: &[Interface]) -> Option<String> {
    let mut hash = Sha256::new();
    for interface in interfaces {
        hash.update(interface.isd_as.to_u64().to_be_bytes());
        hash.update(u64::from(interface.id).to_be_bytes());
    }
    let digits = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    (!interfaces.is_empty()).then_some(digits)
}

/// The beginning of a [`PathId`] in hexadecimal digits: how users name a path. It may be that of a fingerprint too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathIdPrefix(String);

/// Why a text names no path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathIdError {
    /// Not hexadecimal, empty or too long.
    #[error(
        "`{0}` is no path id: give at least {PREFIX_DIGITS_MIN} of its first hexadecimal digits, as `anabranch paths` prints them"
    )]
    NotAnId(String),
    /// No path has such an id.
    #[error("no path has an id that starts with `{0}`: the paths at hand are listed by `anabranch paths`")]
    Unknown(String),
    /// More than one has.
    #[error("{count} paths have an id that starts with `{prefix}`: give more digits")]
    Ambiguous {
        /// What was asked for.
        prefix: String,
        /// How many it fits.
        count: usize,
    },
}

impl PathIdPrefix {
    /// Whether `id` starts so.
    pub fn matches(&self, id: PathId) -> bool {
        format!("{id:#}").starts_with(&self.0)
    }

    /// Whether `digits` start so.
    pub(crate) fn begins(&self, digits: &str) -> bool {
        digits.starts_with(&self.0)
    }

    /// The one of `paths` that it names.
    pub fn find<'a, P: Borrow<ScionPath>>(&self, paths: &'a [P]) -> Result<&'a P, PathIdError> {
        let mut found = paths.iter().filter(|path| (*path).borrow().is_named(self));
        match (found.next(), found.count()) {
            (Some(path), 0) => Ok(path),
            (Some(_), more) => Err(PathIdError::Ambiguous { prefix: self.0.clone(), count: more + 1 }),
            (None, _) => Err(PathIdError::Unknown(self.0.clone())),
        }
    }
}

impl From<PathId> for PathIdPrefix {
    /// All of it.
    fn from(id: PathId) -> Self {
        Self(format!("{id:#}"))
    }
}

impl FromStr for PathIdPrefix {
    type Err = PathIdError;

    fn from_str(text: &str) -> Result<Self, PathIdError> {
        let fits = (PREFIX_DIGITS_MIN..=FINGERPRINT_DIGITS).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !fits {
            return Err(PathIdError::NotAnId(text.chars().take(4 * PATH_ID_LEN).collect()));
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

impl fmt::Display for PathIdPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn scion_identity_is_stable_and_tells_ways_apart() {
        let id = |text: &str| testing::path(text).id();
        // A changed value here would orphan every scoreboard and log that names paths.
        assert_eq!(format!("{:#}", id("1-ff00:0:110 1>2 1-ff00:0:111")), "3de4b8c046fc958188d65ed415f7cef9");
        assert_ne!(id("1-ff00:0:110 1>2 1-ff00:0:111"), id("1-ff00:0:110 1>3 1-ff00:0:111"));
        assert_ne!(id("1-ff00:0:110 1>2 1-ff00:0:111"), id("1-ff00:0:111 2>1 1-ff00:0:110"));
        assert_ne!(id("1-ff00:0:110"), id("1-ff00:0:111"));
    }

    #[test]
    fn a_prefix_names_one_path_or_says_why_not() {
        let paths: Vec<ScionPath> = (1..2000).map(|id| testing::path(&format!("1-1 {id}>1 1-2"))).collect();
        let find = |text: &str| text.parse::<PathIdPrefix>()?.find(&paths).map(ScionPath::id);
        for path in &paths[..5] {
            assert_eq!(find(&path.id().to_string()), Ok(path.id()));
            assert_eq!(find(&format!("{:#}", path.id()).to_uppercase()), Ok(path.id()));
            assert_eq!(find(&path.fingerprint().unwrap()), Ok(path.id()));
        }
        // Some of so many share their first digits.
        let mut first: Vec<String> =
            paths.iter().map(|path| path.id().to_string()[..PREFIX_DIGITS_MIN].to_owned()).collect();
        first.sort();
        let shared = first.windows(2).find(|two| two[0] == two[1]).unwrap();
        assert!(matches!(find(&shared[0]), Err(PathIdError::Ambiguous { count: 2.., .. })));
        assert_eq!(find(&"0".repeat(2 * PATH_ID_LEN)), Err(PathIdError::Unknown("0".repeat(2 * PATH_ID_LEN))));
        for text in ["", "xyz", "9", "abc", "1-ff00:0:110", &"0".repeat(FINGERPRINT_DIGITS + 1)] {
            assert!(matches!(find(text), Err(PathIdError::NotAnId(_))), "{text}");
        }
    }
}
