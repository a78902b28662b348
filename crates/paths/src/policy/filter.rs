//! What a policy comes down to: requirements and an order.

use std::borrow::Borrow;
use std::time::{Duration, SystemTime};

use super::{Acl, Preference, Sequence};
use crate::ScionPath;

/// Which paths may be used, and which of them first. The default takes all of them as they come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathFilter {
    /// The interfaces that may be passed.
    pub acl: Option<Acl>,
    /// The hops in order.
    pub sequence: Option<Sequence>,
    /// Least MTU, in bytes.
    pub mtu_bytes_min: u16,
    /// Least bandwidth in bytes per second that every part of the path claims.
    pub bandwidth_bytes_min: u64,
    /// How long a path must still be valid.
    pub validity_min: Duration,
    /// What to order by.
    pub preference: Option<Preference>,
}

/// Bytes per second in a kbit/s, the unit of claims.
const BYTES_PER_KBIT: u64 = 125;

impl PathFilter {
    /// Whether `path` may be used at the time `now`.
    pub fn allows(&self, path: &ScionPath, now: SystemTime) -> bool {
        // Inside one AS nothing expires and no link is passed: there is nothing to require.
        let inside = path.interfaces.is_empty();
        let valid_until = now.checked_add(self.validity_min);
        path.mtu >= self.mtu_bytes_min
            && path.bandwidth_kbps_assured().saturating_mul(BYTES_PER_KBIT) >= self.bandwidth_bytes_min
            && (inside || self.validity_min.is_zero() || valid_until.is_some_and(|until| path.expiry >= until))
            && self.acl.as_ref().is_none_or(|acl| acl.allows(path))
            && self.sequence.as_ref().is_none_or(|sequence| sequence.allows(path))
    }

    /// Takes out of `paths` what may not be used, and orders the others where an order is asked for.
    pub fn apply<P: Borrow<ScionPath>>(&self, paths: &mut Vec<P>, now: SystemTime) {
        paths.retain(|path| self.allows(path.borrow(), now));
        if let Some(preference) = &self.preference {
            preference.sort(paths);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::path;

    #[test]
    fn requirements_hold_at_their_edge_and_not_beyond() {
        let now = SystemTime::UNIX_EPOCH;
        let mut path = path("1-1 1>2 1-2");
        path.mtu = 1400;
        path.bandwidth_kbps = vec![Some(8)];
        path.expiry = now + Duration::from_secs(60);
        let allows = |filter: &PathFilter| filter.allows(&path, now);
        let filter = PathFilter::default;
        assert!(allows(&filter()));
        assert!(allows(&PathFilter { mtu_bytes_min: 1400, ..filter() }));
        assert!(!allows(&PathFilter { mtu_bytes_min: 1401, ..filter() }));
        assert!(allows(&PathFilter { bandwidth_bytes_min: 1000, ..filter() }));
        assert!(!allows(&PathFilter { bandwidth_bytes_min: 1001, ..filter() }));
        assert!(allows(&PathFilter { validity_min: Duration::from_secs(60), ..filter() }));
        assert!(!allows(&PathFilter { validity_min: Duration::from_secs(61), ..filter() }));
        assert!(!allows(&PathFilter { validity_min: Duration::MAX, ..filter() }));
        assert!(!allows(&PathFilter { acl: Some("- 1-2 +".parse().unwrap()), ..filter() }));
        assert!(!allows(&PathFilter { sequence: Some("0 0 0".parse().unwrap()), ..filter() }));
    }

    #[test]
    fn what_is_left_comes_in_order() {
        let short = path("1-1 1>2 1-2");
        let long = path("1-1 3>4 1-3 5>6 1-2");
        let denied = path("1-1 1>2 1-4 5>6 1-2");
        let mut paths = vec![&long, &denied, &short];
        let filter = PathFilter {
            acl: Some("- 1-4 +".parse().unwrap()),
            preference: Some("hops".parse().unwrap()),
            ..PathFilter::default()
        };
        filter.apply(&mut paths, SystemTime::UNIX_EPOCH);
        assert_eq!(paths, [&short, &long]);
    }
}
