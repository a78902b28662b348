//! Paths as `paths` and `ping --interactive` show them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::Arc;
use std::time::SystemTime;

use anabranch_paths::{Interface, IsdAs, PathIdError, PathIdPrefix, ScionPath};
use serde_json::{Value, json};

use crate::{output, units};

/// Paths that a path shares links with, listed by number for people; programs get all of them.
const SHARING_SHOWN_MAX: usize = 8;

/// Paths to one destination, in the order in which they are shown.
#[derive(Debug)]
pub struct PathList {
    source: IsdAs,
    destination: IsdAs,
    paths: Vec<Arc<ScionPath>>,
    /// For each path, the others that pass links of it, and how many.
    sharing: Vec<BTreeMap<usize, usize>>,
}

impl PathList {
    /// Of `paths` as they are.
    pub fn new(source: IsdAs, destination: IsdAs, paths: Vec<Arc<ScionPath>>) -> Self {
        let mut passing: HashMap<(Interface, Interface), BTreeSet<usize>> = HashMap::new();
        for (index, path) in paths.iter().enumerate() {
            for (a, b) in path.links() {
                passing.entry((a.min(b), a.max(b))).or_default().insert(index);
            }
        }
        let mut sharing = vec![BTreeMap::new(); paths.len()];
        for indexes in passing.values() {
            for index in indexes {
                for other in indexes.iter().filter(|other| *other != index) {
                    *sharing[*index].entry(*other).or_insert(0) += 1;
                }
            }
        }
        Self { source, destination, paths, sharing }
    }

    /// The paths.
    pub fn paths(&self) -> &[Arc<ScionPath>] {
        &self.paths
    }

    /// The path that a user chose, by its number in the list or the beginning of its id.
    pub fn choose(&self, answer: &str) -> Result<&Arc<ScionPath>, PathIdError> {
        let answer = answer.trim();
        let numbered = answer.parse::<usize>().ok().and_then(|number| self.paths.get(number));
        match numbered {
            Some(path) => Ok(path),
            None => answer.parse::<PathIdPrefix>()?.find(&self.paths),
        }
    }

    /// For people.
    pub fn text(&self, now: SystemTime) -> String {
        let (source, destination) = (self.source, self.destination);
        let mut text = match self.paths.len() {
            1 => format!("1 path from {source} to {destination}\n"),
            count => format!("{count} paths from {source} to {destination}\n"),
        };
        let width = self.paths.len().saturating_sub(1).to_string().len();
        for (index, path) in self.paths.iter().enumerate() {
            let indent = " ".repeat(width + 2);
            // Writing to a string does not fail.
            let _ = writeln!(text, "{index:width$}  {}  {path}", path.id());
            let _ = writeln!(text, "{indent}{}", describe(path, now));
            let _ = writeln!(text, "{indent}{}", self.sharing_text(index));
        }
        text
    }

    fn sharing_text(&self, index: usize) -> String {
        let others = &self.sharing[index];
        if others.is_empty() {
            return "shares no link".to_owned();
        }
        let count = |(other, links): (&usize, &usize)| match links {
            1 => other.to_string(),
            links => format!("{other} ({links})"),
        };
        let mut shown: Vec<String> = others.iter().take(SHARING_SHOWN_MAX).map(count).collect();
        if others.len() > SHARING_SHOWN_MAX {
            shown.push(format!("{} more", others.len() - SHARING_SHOWN_MAX));
        }
        format!("shares links with {}", shown.join(", "))
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let paths = self.paths.iter().enumerate().map(|(index, path)| {
            let mut entry = path_json(path);
            let shared = self.sharing[index].iter();
            entry["shares_links_with"] = shared
                .map(|(other, links)| json!({ "path": format!("{:#}", self.paths[*other].id()), "links": links }))
                .collect();
            entry
        });
        json!({
            "source": self.source.to_string(),
            "destination": self.destination.to_string(),
            "paths": paths.collect::<Vec<_>>(),
        })
    }
}

/// What is known of a path, on one line.
fn describe(path: &ScionPath, now: SystemTime) -> String {
    let mut parts = vec![match path.hop_count() {
        1 => "1 hop".to_owned(),
        hops => format!("{hops} hops"),
    }];
    parts.push(format!("MTU {}", path.mtu));
    parts.push(format!("latency {}", path.latency()));
    if let Some(kbps) = path.bandwidth_kbps_min() {
        parts.push(format!("bandwidth {}", units::bit_rate(kbps)));
    }
    parts.push(match path.expiry.duration_since(now) {
        // Inside one AS nothing expires.
        _ if path.interfaces.is_empty() => "never expires".to_owned(),
        Ok(left) => format!("expires in {}", units::duration(left)),
        Err(since) => format!("expired {} ago", units::duration(since.duration())),
    });
    if let Some(next_hop) = path.next_hop {
        parts.push(format!("next hop {next_hop}"));
    }
    parts.join(", ")
}

/// A path, for programs. `latency_ms` is null where not all of it is claimed.
pub fn path_json(path: &ScionPath) -> Value {
    let latency = path.latency();
    let claimed_ms = latency.claimed.as_secs_f64() * 1e3;
    let hops = path
        .hops()
        .map(|hop| json!({ "isd_as": hop.isd_as.to_string(), "ingress": hop.ingress, "egress": hop.egress }));
    json!({
        "id": format!("{:#}", path.id()),
        "path": path.to_string(),
        "hops": hops.collect::<Vec<_>>(),
        "mtu": path.mtu,
        "latency_ms": (latency.unclaimed == 0).then_some(claimed_ms),
        "latency_claimed_ms": claimed_ms,
        "bandwidth_kbps": path.bandwidth_kbps_min(),
        "expiry": (!path.interfaces.is_empty()).then(|| output::unix_seconds(path.expiry)),
        "next_hop": path.next_hop.map(|next_hop| next_hop.to_string()),
    })
}

#[cfg(test)]
pub mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use anabranch_paths::testing;

    use super::*;

    /// The path that prints as `text`, with an end and a first router.
    pub fn path(text: &str) -> ScionPath {
        let (expiry, next_hop) = (UNIX_EPOCH + Duration::from_secs(3725), "127.0.0.1:31002".parse().ok());
        ScionPath { expiry, next_hop, ..testing::path(text) }
    }

    fn list(texts: &[&str]) -> PathList {
        let paths: Vec<_> = texts.iter().map(|text| Arc::new(path(text))).collect();
        PathList::new(paths[0].source, paths[0].destination, paths)
    }

    const WAYS: [&str; 4] =
        ["1-1 1>2 1-2 3>4 1-9", "1-1 1>2 1-2 5>6 1-9", "1-1 7>8 1-9", "1-1 1>2 1-2 3>4 1-3 5>5 1-9"];

    #[test]
    fn people_see_what_each_path_is_and_shares() {
        let list = list(&WAYS);
        let text = list.text(UNIX_EPOCH);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "4 paths from 1-1 to 1-9");
        assert_eq!(lines[1], format!("0  {}  1-1 1>2 1-2 3>4 1-9", list.paths()[0].id()));
        assert_eq!(lines[2], "   3 hops, MTU 1472, latency unknown, expires in 1h02m, next hop 127.0.0.1:31002");
        assert_eq!(lines[3], "   shares links with 1, 3");
        assert_eq!(lines[9], "   shares no link");
        assert_eq!(lines.len(), 1 + 3 * WAYS.len());
        let mut known = path(WAYS[2]);
        known.latency = vec![Some(Duration::from_micros(12_500))];
        known.bandwidth_kbps = vec![Some(100_000)];
        let late = describe(&known, UNIX_EPOCH + Duration::from_secs(3728));
        assert_eq!(
            late,
            "2 hops, MTU 1472, latency 12.5 ms, bandwidth 100.0 Mbit/s, expired 3s ago, next hop 127.0.0.1:31002"
        );
        assert!(describe(&path("1-1"), UNIX_EPOCH).contains("1 hop, MTU 1472, latency 0.0 ms, never expires"));
    }

    #[test]
    fn many_that_share_are_counted() {
        let ways: Vec<String> = (0..12).map(|id| format!("1-1 1>2 1-2 {}>{} 1-9", 10 + id, 10 + id)).collect();
        let ways: Vec<&str> = ways.iter().map(String::as_str).collect();
        assert_eq!(list(&ways).sharing_text(0), "shares links with 1, 2, 3, 4, 5, 6, 7, 8, 3 more");
    }

    #[test]
    fn programs_see_the_same() {
        let list = list(&WAYS);
        let json = list.json();
        assert_eq!(json["destination"], "1-9");
        let first = &json["paths"][0];
        assert_eq!(first["id"].as_str().unwrap().len(), 32);
        assert_eq!(first["hops"][1], json!({ "isd_as": "1-2", "ingress": 2, "egress": 3 }));
        assert_eq!(first["latency_ms"], Value::Null);
        assert_eq!(first["expiry"], 3725.0);
        let with_last = &first["shares_links_with"][1];
        assert_eq!(*with_last, json!({ "path": json["paths"][3]["id"], "links": 1 }));
        assert_eq!(json["paths"][2]["shares_links_with"], json!([]));
    }

    #[test]
    fn paths_are_chosen_by_number_or_id() {
        let list = list(&WAYS);
        assert_eq!(list.choose(" 2\n").unwrap(), &list.paths()[2]);
        for path in list.paths() {
            assert_eq!(list.choose(&path.id().to_string()).unwrap(), path);
        }
        assert!(list.choose("4ffffff").is_err());
        assert!(list.choose("").is_err());
    }
}
