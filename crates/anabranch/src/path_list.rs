//! Paths as `paths` and `--interactive` show them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::SystemTime;

use anabranch_paths::{Geo, Interface, IsdAs, LinkKind, PathIdError, PathIdPrefix, Remarks, ScionPath};
use serde_json::{Value, json};

use crate::health::Health;
use crate::{output, units};

/// Paths that a path shares links with, listed by number for people; programs get all of them.
const SHARING_SHOWN_MAX: usize = 8;

/// Paths to one destination, in the order in which they are shown.
#[derive(Debug)]
pub(crate) struct PathList {
    source: IsdAs,
    destination: IsdAs,
    paths: Vec<Arc<ScionPath>>,
    /// For each path, the others that pass links of it, and how many.
    sharing: Vec<BTreeMap<usize, usize>>,
    /// What a probe of each came to, where they were probed.
    health: Option<Vec<Health>>,
}

/// Why an answer names no path of the list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChoiceError {
    /// A number that the list does not have.
    #[error("there is no path {number}: the list has 0 to {last}; an id is named by four digits or more")]
    Number {
        /// What was asked for.
        number: usize,
        /// The last one.
        last: usize,
    },
    /// No id, or none of these paths.
    #[error(transparent)]
    Id(#[from] PathIdError),
}

/// Digits of the largest number that is never the beginning of an id.
const NUMBER_DIGITS_MAX: usize = 3;
/// Digits of a fingerprint that are shown: as many as scionproto's tools show.
const FINGERPRINT_SHOWN: usize = 16;

impl PathList {
    /// Of `paths` as they are, and what probes of them came to.
    pub(crate) fn new(
        source: IsdAs,
        destination: IsdAs,
        paths: Vec<Arc<ScionPath>>,
        health: Option<Vec<Health>>,
    ) -> Self {
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
        Self { source, destination, paths, sharing, health }
    }

    /// How many are alive, where they were probed.
    pub(crate) fn alive(&self) -> Option<usize> {
        self.health.as_ref().map(|health| health.iter().filter(|health| health.is_alive()).count())
    }

    fn health(&self, index: usize) -> Option<&Health> {
        self.health.as_ref()?.get(index)
    }

    /// The paths.
    pub(crate) fn paths(&self) -> &[Arc<ScionPath>] {
        &self.paths
    }

    /// The path that a user chose, by its number in the list or the beginning of its id or fingerprint.
    pub(crate) fn choose(&self, answer: &str) -> Result<&Arc<ScionPath>, ChoiceError> {
        let answer = answer.trim();
        // An id may begin with zeros, and a number does not.
        let number = answer.parse::<usize>().ok().filter(|number| number.to_string() == answer);
        match (number.and_then(|number| self.paths.get(number)), number) {
            (Some(path), _) => Ok(path),
            (None, Some(number)) if answer.len() <= NUMBER_DIGITS_MAX => {
                Err(ChoiceError::Number { number, last: self.paths.len().saturating_sub(1) })
            }
            _ => Ok(answer.parse::<PathIdPrefix>()?.find(&self.paths)?),
        }
    }

    /// For people.
    pub(crate) fn text(&self, now: SystemTime, extended: bool) -> String {
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
            let health = self.health(index).map(ToString::to_string);
            let more = if extended { extended_text(path) } else { Vec::new() };
            for line in health.into_iter().chain(more) {
                let _ = writeln!(text, "{indent}{}", output::one_line(&line));
            }
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
    pub(crate) fn json(&self) -> Value {
        let paths = self.paths.iter().enumerate().map(|(index, path)| {
            let mut entry = path_json(path);
            let shared = self.sharing[index].iter();
            entry["shares_links_with"] = shared
                .map(|(other, links)| json!({ "path": format!("{:#}", self.paths[*other].id()), "links": links }))
                .collect();
            if let Some(health) = self.health(index) {
                entry["status"] = health.name().into();
                entry["status_reason"] = health.reason().into();
                entry["probe_rtt_ms"] = health.rtt_ms().into();
            }
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
    parts.push(match mtu_needed(path) {
        None => format!("MTU {}", path.mtu),
        Some(needed) => format!("MTU {} (too narrow for transfers: QUIC needs {needed} here)", path.mtu),
    });
    parts.push(format!("latency {}", path.latency()));
    if let Some(kbps) = path.bandwidth_kbps_min() {
        // Where parts are unclaimed, it may be less.
        let bound = if path.bandwidth_unclaimed() > 0 { "<" } else { "" };
        parts.push(format!("bandwidth {bound}{}", units::bit_rate(kbps)));
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

/// What `--extended` says beside that, a line each: as scionproto's `showpaths` does.
fn extended_text(path: &ScionPath) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(fingerprint) = path.fingerprint() {
        lines.push(format!("id {:#}, fingerprint {}", path.id(), &fingerprint[..FINGERPRINT_SHOWN]));
    }
    // Links and the ASes between them, in turn.
    let parts = path.interfaces.len().saturating_sub(1);
    let mut steps = |what: &str, claim: &dyn Fn(usize) -> Option<String>| {
        let claims: Vec<Option<String>> = (0..parts).map(claim).collect();
        if claims.iter().any(Option::is_some) {
            let shown: Vec<String> =
                claims.into_iter().map(|claim| claim.unwrap_or_else(|| "unknown".into())).collect();
            lines.push(format!("{what} {}", shown.join(", ")));
        }
    };
    steps("latency of each part:", &|part| {
        path.latency.get(part).copied().flatten().map(|latency| format!("{:.1} ms", latency.as_secs_f64() * 1e3))
    });
    steps("bandwidth of each part:", &|part| path.bandwidth_kbps.get(part).copied().flatten().map(units::bit_rate));
    if path.link_kinds.iter().any(|kind| *kind != LinkKind::Unset) {
        let kinds: Vec<&str> = path.link_kinds.iter().map(|kind| link_kind_name(*kind)).collect();
        lines.push(format!("links: {}", kinds.join(", ")));
    }
    let Remarks { geo, internal_hops, notes } = &path.remarks;
    if geo.iter().any(|place| *place != Geo::default()) {
        let places: Vec<String> = geo.iter().map(place_text).collect();
        lines.push(format!("places: {}", places.join(" > ")));
    }
    let ases: Vec<IsdAs> = path.hops().map(|hop| hop.isd_as).collect();
    let inside = internal_hops.iter().zip(ases.iter().skip(1)).filter(|(hops, _)| **hops > 0);
    let inside: Vec<String> = inside.map(|(hops, isd_as)| format!("{isd_as}: {hops}")).collect();
    if !inside.is_empty() {
        lines.push(format!("internal hops: {}", inside.join(", ")));
    }
    for (note, isd_as) in notes.iter().zip(&ases).filter(|(note, _)| !note.is_empty()) {
        lines.push(format!("note of {isd_as}: {note}"));
    }
    lines
}

fn place_text(place: &Geo) -> String {
    match (&place.coordinates, place.address.as_str()) {
        (None, "") => "unknown".to_owned(),
        (Some(coordinates), "") => coordinates.clone(),
        (None, address) => address.to_owned(),
        (Some(coordinates), address) => format!("{coordinates} ({address})"),
    }
}

fn link_kind_name(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::Unset => "unset",
        LinkKind::Direct => "direct",
        LinkKind::MultiHop => "multihop",
        LinkKind::OpenNet => "opennet",
    }
}

/// The MTU that a path would need for transfers, where it has less. Of its hosts it is known only that they speak IP as its
/// first router does.
fn mtu_needed(path: &ScionPath) -> Option<u16> {
    let ip = path.next_hop.map_or(Ipv4Addr::UNSPECIFIED.into(), |next_hop| next_hop.ip());
    path.mtu_lacking(ip, ip, anabranch_transport::MTU_MIN.into())
}

/// A path, for programs. `latency_ms` is null where not all of it is claimed.
pub(crate) fn path_json(path: &ScionPath) -> Value {
    let latency = path.latency();
    let claimed_ms = latency.claimed.as_secs_f64() * 1e3;
    let hops = path
        .hops()
        .map(|hop| json!({ "isd_as": hop.isd_as.to_string(), "ingress": hop.ingress, "egress": hop.egress }));
    json!({
        "id": format!("{:#}", path.id()),
        "fingerprint": path.fingerprint(),
        "path": path.to_string(),
        "hops": hops.collect::<Vec<_>>(),
        "mtu": path.mtu,
        "mtu_needed": mtu_needed(path),
        "latency_ms": (latency.unclaimed == 0).then_some(claimed_ms),
        "latency_claimed_ms": claimed_ms,
        "latency_parts_ms": path.latency.iter().map(|part| part.map(|part| part.as_secs_f64() * 1e3)).collect::<Vec<_>>(),
        "bandwidth_kbps": path.bandwidth_kbps_min(),
        "bandwidth_parts_kbps": path.bandwidth_kbps,
        "bandwidth_unclaimed": path.bandwidth_unclaimed(),
        "link_kinds": path.link_kinds.iter().map(|kind| link_kind_name(*kind)).collect::<Vec<_>>(),
        "geo": path.remarks.geo.iter().map(|place| json!({ "coordinates": place.coordinates, "address": place.address })).collect::<Vec<_>>(),
        "internal_hops": path.remarks.internal_hops,
        "notes": path.remarks.notes,
        "expiry": (!path.interfaces.is_empty()).then(|| output::unix_seconds(path.expiry)),
        "next_hop": path.next_hop.map(|next_hop| next_hop.to_string()),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use anabranch_paths::testing;

    use super::*;

    /// The path that prints as `text`, with an end and a first router.
    pub(crate) fn path(text: &str) -> ScionPath {
        let (expiry, next_hop) = (UNIX_EPOCH + Duration::from_secs(3725), "127.0.0.1:31002".parse().ok());
        ScionPath { expiry, next_hop, ..testing::path(text) }
    }

    fn list(texts: &[&str]) -> PathList {
        let paths: Vec<_> = texts.iter().map(|text| Arc::new(path(text))).collect();
        PathList::new(paths[0].source, paths[0].destination, paths, None)
    }

    const WAYS: [&str; 4] =
        ["1-1 1>2 1-2 3>4 1-9", "1-1 1>2 1-2 5>6 1-9", "1-1 7>8 1-9", "1-1 1>2 1-2 3>4 1-3 5>5 1-9"];

    #[test]
    fn people_see_what_each_path_is_and_shares() {
        let list = list(&WAYS);
        let text = list.text(UNIX_EPOCH, false);
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
        known = path(WAYS[0]);
        known.bandwidth_kbps = vec![Some(100_000), None, Some(200_000)];
        assert!(describe(&known, UNIX_EPOCH).contains("bandwidth <100.0 Mbit/s"), "parts are unclaimed");
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
    fn what_ases_say_is_shown_on_request_and_so_is_health() {
        let mut said = path("1-1 1>2 1-2 3>4 1-9");
        said.latency = vec![Some(Duration::from_millis(10)), None, None];
        said.link_kinds = vec![LinkKind::Direct, LinkKind::OpenNet];
        said.remarks = Remarks {
            geo: vec![Geo { coordinates: Some("47.4,8.5".into()), address: "Z\u{7}urich".into() }, Geo::default()],
            internal_hops: vec![3],
            notes: vec![String::new(), "maintained".into()],
        };
        let fingerprint = said.fingerprint().unwrap();
        let health = vec![Health::Alive(Some(Duration::from_micros(1500)))];
        let list = PathList::new(said.source, said.destination, vec![Arc::new(said)], Some(health));
        let text = list.text(UNIX_EPOCH, true);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines[4], "alive, 1.5 ms");
        assert!(lines[5].ends_with(&format!("fingerprint {}", &fingerprint[..16])), "{text}");
        let rest = [
            "latency of each part: 10.0 ms, unknown, unknown",
            "links: direct, opennet",
            "places: 47.4,8.5 (Z\u{fffd}urich) > unknown",
            "internal hops: 1-2: 3",
            "note of 1-2: maintained",
        ];
        assert_eq!(lines[6..], rest);
        let json = list.json();
        assert_eq!((&json["paths"][0]["status"], list.alive()), (&"alive".into(), Some(1)));
        assert_eq!(json["paths"][0]["fingerprint"], fingerprint);
        assert!(list.choose(&fingerprint[..8]).is_ok());
    }

    #[test]
    fn paths_are_chosen_by_number_or_id() {
        let list = list(&WAYS);
        assert_eq!(list.choose(" 2\n").unwrap(), &list.paths()[2]);
        for path in list.paths() {
            assert_eq!(list.choose(&path.id().to_string()).unwrap(), path);
        }
        assert!(list.choose("4ffffff").is_err());
        assert_eq!(list.choose("9"), Err(ChoiceError::Number { number: 9, last: 3 }));
        assert!(list.choose("").is_err());
    }
}
