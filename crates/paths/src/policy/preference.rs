//! Preferences: which of several paths comes first.

use std::borrow::Borrow;
use std::cmp::{Ordering, Reverse};
use std::fmt;
use std::str::FromStr;

use super::text::{Cursor, PolicyError, PolicyErrorKind};
use crate::ScionPath;

const WHAT: &str = "the preference";

/// Something that paths are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Criterion {
    /// The lowest claimed latency first; each unclaimed part counts as ten seconds.
    Latency,
    /// The highest claimed bandwidth first; an unclaimed part counts as none.
    Bandwidth,
    /// The fewest hops first.
    Hops,
    /// The most hops first.
    HopsDescending,
    /// The largest MTU first.
    Mtu,
}

/// What paths are ordered by, the first criterion first: `latency,hops`. Where all are equal, the order stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Preference(Vec<Criterion>);

impl Criterion {
    /// As in the `--preference` flag of SCION applications.
    const OF_FLAG: [(&'static str, Self); 4] =
        [("latency", Self::Latency), ("bandwidth", Self::Bandwidth), ("hops", Self::Hops), ("mtu", Self::Mtu)];
    /// As in the `ordering` of JPAN's policy files.
    const OF_FILE: [(&'static str, Self); 4] = [
        ("hops_asc", Self::Hops),
        ("hops_desc", Self::HopsDescending),
        ("meta_bandwidth_desc", Self::Bandwidth),
        ("meta_latency_asc", Self::Latency),
    ];

    fn compare(self, a: &ScionPath, b: &ScionPath) -> Ordering {
        match self {
            Self::Latency => a.latency().cmp(&b.latency()),
            Self::Bandwidth => b.bandwidth_kbps_assured().cmp(&a.bandwidth_kbps_assured()),
            Self::Hops => a.hop_count().cmp(&b.hop_count()),
            Self::HopsDescending => Reverse(a.hop_count()).cmp(&Reverse(b.hop_count())),
            Self::Mtu => b.mtu.cmp(&a.mtu),
        }
    }
}

impl Preference {
    /// Orders `paths`, the preferred ones first.
    pub fn sort<P: Borrow<ScionPath>>(&self, paths: &mut [P]) {
        paths.sort_by(|a, b| {
            let by = self.0.iter().map(|criterion| criterion.compare(a.borrow(), b.borrow()));
            by.fold(Ordering::Equal, Ordering::then)
        });
    }

    /// From the `ordering` of a policy file.
    pub(super) fn from_ordering(text: &str) -> Result<Self, PolicyError> {
        Self::parse(text, &Criterion::OF_FILE, "hops_asc, hops_desc, meta_bandwidth_desc, meta_latency_asc")
    }

    fn parse(text: &str, names: &[(&str, Criterion)], choice: &'static str) -> Result<Self, PolicyError> {
        let mut cursor = Cursor::new(WHAT, text)?;
        let mut criteria = Vec::new();
        loop {
            cursor.skip_space();
            let start = cursor.at();
            let word = cursor.take_while(|c| c != ',').trim_end();
            let known = names.iter().find(|(name, _)| *name == word);
            let (_, criterion) =
                known.ok_or_else(|| cursor.word_error(start, |word| PolicyErrorKind::Criterion(word, choice), word))?;
            // A second mention changes nothing: where it would be asked, paths are equal in it.
            if !criteria.contains(criterion) {
                criteria.push(*criterion);
            }
            if !cursor.eat(',') {
                return Ok(Self(criteria));
            }
        }
    }
}

impl FromStr for Preference {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        Self::parse(text, &Criterion::OF_FLAG, "latency, bandwidth, hops, mtu")
    }
}

impl fmt::Display for Criterion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::OF_FLAG.iter().chain(&Self::OF_FILE).find(|(_, criterion)| criterion == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl fmt::Display for Preference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .enumerate()
            .try_for_each(|(place, criterion)| write!(f, "{}{criterion}", if place == 0 { "" } else { "," }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::path;

    fn paths() -> [ScionPath; 4] {
        let ms = |ms| Some(Duration::from_millis(ms));
        let (fast, long) = ("1-1 1>1 1-9", "1-1 1>2 1-2 3>4 1-9");
        [
            ScionPath { latency: vec![ms(30)], bandwidth_kbps: vec![Some(10)], mtu: 1400, ..path(fast) },
            ScionPath { latency: vec![None], bandwidth_kbps: vec![None], mtu: 9000, ..path("1-1 2>2 1-9") },
            ScionPath { latency: vec![ms(5); 3], bandwidth_kbps: vec![Some(90); 3], mtu: 1400, ..path(long) },
            ScionPath { latency: vec![ms(5); 3], bandwidth_kbps: vec![Some(90), None, None], mtu: 1300, ..path(long) },
        ]
    }

    fn order(preference: &Preference) -> Vec<usize> {
        let all = paths();
        let mut sorted = all.to_vec();
        preference.sort(&mut sorted);
        sorted.iter().map(|path| all.iter().position(|other| other == path).unwrap()).collect()
    }

    #[test]
    fn criteria_order_paths_and_later_ones_break_ties() {
        let by = |text: &str| order(&text.parse().unwrap());
        assert_eq!(by("latency"), [2, 3, 0, 1]);
        assert_eq!(by("bandwidth"), [2, 0, 1, 3]);
        assert_eq!(by("hops"), [0, 1, 2, 3]);
        assert_eq!(by("mtu"), [1, 0, 2, 3]);
        assert_eq!(by("mtu,latency"), [1, 2, 0, 3]);
        assert_eq!(by("hops, bandwidth"), [0, 1, 2, 3]);
        assert_eq!(order(&Preference::from_ordering("hops_desc,meta_bandwidth_desc").unwrap()), [2, 3, 0, 1]);
    }

    #[test]
    fn errors_name_the_place_and_the_choice() {
        let message = |text: &str| text.parse::<Preference>().unwrap_err().to_string();
        assert!(message("latency,speed").contains("column 9: `speed`"), "{}", message("latency,speed"));
        assert!(message("latency,speed").contains("latency, bandwidth, hops, mtu"));
        assert!(message("").contains("column 1"));
        assert!(message("latency,").contains("column 9"));
        assert!(Preference::from_ordering("latency").unwrap_err().to_string().contains("hops_asc"));
    }
}
