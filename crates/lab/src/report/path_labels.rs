//! What the paths of a report are called, and which colour they have: the same in every run.

use std::collections::HashMap;

use anabranch_paths::Interface;

use super::Report;
use crate::network::Network;
use crate::run::Candidate;
use crate::text;

/// Colours of the page; paths beyond share them.
const COLORS: usize = 8;
/// Digits of a path's id that tell it apart on one page, as `anabranch paths` prints them.
const ID_SHOWN: usize = 12;

/// The paths that carried content in any run.
pub(super) struct Book {
    by_path: HashMap<String, usize>,
    /// Whether a link has a sibling between the same ASes.
    parallel: Vec<bool>,
}

impl Book {
    pub(super) fn new(report: &Report) -> Self {
        let mut by_path = HashMap::new();
        for run in &report.runs {
            let mut used: Vec<&str> = run.used().collect();
            // The shortest first, as every list of paths has them.
            let length = |path: &&str| {
                let candidate = run.candidate(path);
                let latency = candidate.and_then(|candidate| candidate.latency_ms).unwrap_or(f64::INFINITY);
                (candidate.and_then(|candidate| candidate.hops).unwrap_or(u64::MAX), latency)
            };
            used.sort_by(|a, b| {
                let ((a_hops, a_ms), (b_hops, b_ms)) = (length(a), length(b));
                a_hops.cmp(&b_hops).then(a_ms.total_cmp(&b_ms)).then(a.cmp(b))
            });
            for path in used {
                let next = by_path.len();
                by_path.entry(path.to_owned()).or_insert(next);
            }
        }
        let ends = |line: &crate::network::Line| {
            let mut ends = line.ends.map(|end| end.isd_as);
            ends.sort_unstable();
            ends
        };
        let lines = &report.network.lines;
        let parallel = lines.iter().map(|line| lines.iter().filter(|other| ends(other) == ends(line)).count() > 1);
        Self { by_path, parallel: parallel.collect() }
    }

    /// The place of a path among those used.
    pub(super) fn place(&self, path: &str) -> Option<usize> {
        self.by_path.get(path).copied()
    }

    /// The colour of the path at `place`.
    pub(super) fn color(place: usize) -> usize {
        place % COLORS
    }

    /// The way of a path, from the sender, as `211 › 210#2 › 110 › 111`: with the interface where links are parallel.
    pub(super) fn route(&self, network: &Network, interfaces: &[Interface]) -> String {
        let Some(hops) = network.hops(interfaces) else {
            let ases = network.ases(interfaces);
            return ases.into_iter().map(text::short_as).collect::<Vec<_>>().join(" \u{203a} ");
        };
        let mut route = String::new();
        for (line, end) in &hops {
            let from = network.lines[*line].ends[*end];
            route += &text::short_as(from.isd_as);
            if self.parallel[*line] {
                route += &format!("#{}", from.id);
            }
            route += " \u{203a} ";
        }
        route + &text::short_as(network.receiver)
    }

    /// What a path is called where there is room for its way.
    pub(super) fn describe(&self, network: &Network, path: &str, candidate: Option<&Candidate>) -> String {
        match candidate.filter(|candidate| !candidate.interfaces.is_empty()) {
            Some(candidate) => self.route(network, &candidate.interfaces),
            None => short_id(path),
        }
    }
}

/// The beginning of a path's id.
pub(super) fn short_id(path: &str) -> String {
    let is_id = path.len() > ID_SHOWN && path.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_id { path[..ID_SHOWN].to_owned() } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::tests::interfaces;
    use crate::report::tests::report;

    #[test]
    fn paths_keep_their_names_over_the_runs() {
        let book = Book::new(&report());
        assert_eq!([book.place("upper"), book.place("lower-1"), book.place("lower-2")], [Some(0), Some(1), Some(2)]);
        assert_eq!(book.place("unused"), None);
    }

    #[test]
    fn routes_name_interfaces_where_links_are_parallel() {
        let report = report();
        let book = Book::new(&report);
        let route = |text| book.route(&report.network, &interfaces(text));
        assert_eq!(route("1-3#1 1-1#1 1-1#2 1-4#1"), "3 \u{203a} 1 \u{203a} 4");
        assert_eq!(route("1-4#2 1-2#3 1-2#1 1-3#2"), "3#2 \u{203a} 2 \u{203a} 4");
        assert_eq!(route("1-3#7 1-9#1"), "3 \u{203a} 9");
        assert_eq!(book.describe(&report.network, "0123456789abcdef", None), "0123456789ab");
        assert_eq!(book.describe(&report.network, "10.0.0.1-10.0.0.2", None), "10.0.0.1-10.0.0.2");
    }
}
