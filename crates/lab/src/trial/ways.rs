//! Which ways a run took, read back: the kernel's routes followed from AS to AS, or the paths that peers chose of those there are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anabranch_asnet::topology::Topology;
use anabranch_paths::Interface;
use serde_json::Value;

use super::{Results, TrialError, chosen, lock, logs_of};
use crate::bed::{Routing, network_of};
use crate::fluid;
use crate::plan::{Cell, Plan};
use crate::report::markup::put;
use crate::sheet::table;

/// Where the kernel's routes of a run are kept, as `ip -json route` tells them, AS by AS.
pub(super) const FILE: &str = "routes.json";
/// Ways between two ASes that are listed.
const WAYS_MAX: usize = 64;
/// Bytes of a peer's output that are looked through.
const LOG_BYTES_MAX: u64 = 256 << 20;

/// The ways of one run (its folder, `RESULTS/runs/CELL/N`), or of the first run of each cell of results.
///
/// # Errors
/// When the folder is neither.
pub fn routes(folder: &Path, only: &[String]) -> Result<String, TrialError> {
    let none = |reason: &str| TrialError::NoResults { folder: folder.to_path_buf(), reason: reason.into() };
    let home = folder.ancestors().find(|each| each.join(lock::FILE).exists());
    let home = home.ok_or_else(|| none("neither it nor a folder above has a lock.json"))?;
    let results = Results::load(home)?;
    let plan = &results.plan;
    let runs: Vec<(Cell, u32, PathBuf)> = if home == folder {
        let cells = chosen(plan, only)?;
        let first = |cell: Cell| {
            let name = plan.name(&cell);
            let run = results.runs.iter().find(|run| run.cell == name && run.failed.is_none())?;
            Some((cell, run.repetition, logs_of(home, &name, run.repetition)))
        };
        cells.into_iter().filter_map(first).collect()
    } else {
        let name = |path: Option<&Path>| path?.file_name()?.to_str().map(str::to_owned);
        let repetition = name(Some(folder)).and_then(|text| text.parse().ok());
        let cell = name(folder.parent())
            .and_then(|name| plan.cells().into_iter().find(|cell| plan.name(cell).replace('/', "-") == name));
        let (cell, repetition) = cell.zip(repetition).ok_or_else(|| none("name a folder like runs/CELL/0"))?;
        vec![(cell, repetition, folder.to_path_buf())]
    };
    if runs.is_empty() {
        return Err(none("no run of these cells has come to its end"));
    }
    let mut text = String::new();
    for (cell, repetition, logs) in runs {
        let routing = plan.candidates[cell.candidate].routing;
        put!(text, "{}, run {}: {}\n", plan.name(&cell), repetition + 1, routing.name());
        let rows = match routing {
            Routing::Scion => paths(plan, &cell, &logs),
            _ => followed(plan, &cell, &logs).ok_or_else(|| none("its routes.json is missing or no list of routes"))?,
        };
        put!(text, "{}\n", table(&rows));
    }
    Ok(text)
}

/// The ASes where a cell has peers, in pairs.
fn pairs(plan: &Plan, cell: &Cell) -> Vec<(usize, usize)> {
    let homes: BTreeSet<usize> = plan.placements[cell.placement].peers.iter().map(|peer| peer.home).collect();
    homes.iter().flat_map(|from| homes.iter().filter(move |to| *to != from).map(move |to| (*from, *to))).collect()
}

fn name(topology: &Topology, at: usize) -> String {
    topology.ases().get(at).map_or(String::new(), |each| each.isd_as.to_string())
}

/// The kernel's routes, followed.
fn followed(plan: &Plan, cell: &Cell, logs: &Path) -> Option<Vec<[String; 5]>> {
    let topology = &plan.topology;
    let told: Value = serde_json::from_str(&fs::read_to_string(logs.join(FILE)).ok()?).ok()?;
    let next = next_links(&told)?;
    let mut rows = vec![["from", "to", "ways", "links", "way"].map(str::to_owned)];
    for (from, to) in pairs(plan, cell) {
        let ways = walk(topology, &next, from, to);
        let count = ways.len();
        for (number, way) in ways.iter().enumerate() {
            let shown = way.iter().map(|at| name(topology, *at)).collect::<Vec<_>>().join(" > ");
            let head = if number == 0 {
                [name(topology, from), name(topology, to), count.to_string()]
            } else {
                Default::default()
            };
            let [from, to, count] = head;
            rows.push([from, to, count, (way.len() - 1).to_string(), shown]);
        }
        if ways.is_empty() {
            rows.push([name(topology, from), name(topology, to), "0".into(), String::new(), "no route".into()]);
        }
    }
    Some(rows)
}

/// By AS and network: the numbers of the links that lead there.
fn next_links(told: &Value) -> Option<Vec<BTreeMap<String, Vec<usize>>>> {
    let link = |value: &Value| value["dev"].as_str()?.strip_prefix("link")?.parse().ok();
    let of_as = |routes: &Value| {
        let routes = routes.as_array()?.iter().filter_map(|route| {
            let several = route["nexthops"].as_array();
            let links = several
                .map_or_else(|| link(route).into_iter().collect(), |each| each.iter().filter_map(link).collect());
            Some((route["dst"].as_str()?.to_owned(), links))
        });
        Some(routes.collect())
    };
    told.as_array()?.iter().map(of_as).collect()
}

fn walk(topology: &Topology, next: &[BTreeMap<String, Vec<usize>>], from: usize, to: usize) -> Vec<Vec<usize>> {
    let network = network_of(to);
    let mut ways = Vec::new();
    let mut open = vec![vec![from]];
    while let Some(way) = open.pop() {
        let at = way[way.len() - 1];
        if at == to {
            ways.push(way);
            if ways.len() == WAYS_MAX {
                break;
            }
            continue;
        }
        for number in next.get(at).and_then(|routes| routes.get(&network)).into_iter().flatten().rev() {
            let Some(link) = topology.links().get(*number) else { continue };
            let far = link.ends.map(|end| topology.index(end.isd_as)).into_iter().flatten().find(|end| *end != at);
            // What goes round in circles never arrives.
            if let Some(far) = far.filter(|far| !way.contains(far)) {
                open.push(way.iter().copied().chain([far]).collect());
            }
        }
    }
    ways
}

/// The paths that there are, and those that peers chose.
fn paths(plan: &Plan, cell: &Cell, logs: &Path) -> Vec<[String; 5]> {
    let topology = &plan.topology;
    let chosen = chosen_paths(logs);
    let mut rows = vec![["from", "to", "paths", "times", "chosen"].map(str::to_owned)];
    for (from, to) in pairs(plan, cell) {
        let there = fluid::paths(topology, from, to).len().to_string();
        let ends = [from, to].map(|at| topology.ases()[at].isd_as);
        let ours = chosen.iter().filter(|(path, _)| [path[0].isd_as, path[path.len() - 1].isd_as] == ends);
        let mut head = [name(topology, from), name(topology, to), there];
        for (path, times) in ours {
            let mut ases: Vec<String> = path.iter().map(|interface| interface.isd_as.to_string()).collect();
            ases.dedup();
            let [from, to, there] = std::mem::take(&mut head);
            rows.push([from, to, there, times.to_string(), ases.join(" > ")]);
        }
        if !head[0].is_empty() {
            let [from, to, there] = head;
            rows.push([from, to, there, "0".into(), String::new()]);
        }
    }
    rows
}

/// What uploaders say of the paths that they chose: from their AS on, and how often.
fn chosen_paths(logs: &Path) -> BTreeMap<Vec<Interface>, usize> {
    use std::io::{BufRead, BufReader, Read};
    let mut found = BTreeMap::new();
    let files = fs::read_dir(logs).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_peer = |path: &PathBuf| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("peer-") && name.ends_with(".out"))
    };
    for path in files.filter(is_peer) {
        let Ok(file) = fs::File::open(path) else { continue };
        for line in BufReader::new(file.take(LOG_BYTES_MAX)).lines().map_while(Result::ok) {
            // Most lines are about something else.
            if !line.contains("\"paths\"") {
                continue;
            }
            let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
            // Where the peer chose, the selector is its own.
            if event["event"] != "paths" || event["selector"].is_null() {
                continue;
            }
            let candidates = event["candidates"].as_array().into_iter().flatten();
            for candidate in candidates.filter(|candidate| candidate["choice"] == "chosen") {
                let read = |value: &Value| {
                    let (isd_as, id) = value.as_str()?.split_once('#')?;
                    Some(Interface { isd_as: isd_as.parse().ok()?, id: id.parse().ok()? })
                };
                let path: Option<Vec<Interface>> =
                    candidate["interfaces"].as_array().and_then(|all| all.iter().map(read).collect());
                if let Some(path) = path.filter(|path| !path.is_empty()) {
                    *found.entry(path).or_insert(0) += 1;
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_followed_by_all_their_next_hops() {
        let topology = Topology::from_toml("ring.toml", include_str!("../../../../topologies/ring.toml")).unwrap();
        // 1-3 over both of its providers to 1-4; 1-2 sends it round in a circle.
        let told = serde_json::json!([
            [{ "dst": "10.1.3.0/24", "dev": "link3" }, { "dst": "10.1.2.0/24", "gateway": "10.128.0.6", "dev": "link1" }],
            [{ "dst": "10.1.3.0/24", "dev": "link0" }, { "dst": "default", "dev": "eth0" }],
            [{ "dst": "10.1.3.0/24", "nexthops": [{ "dev": "link1" }, { "dev": "link2" }] }],
            [],
        ]);
        let next = next_links(&told).unwrap();
        assert_eq!(walk(&topology, &next, 2, 3), [vec![2, 0, 3], vec![2, 1, 0, 3]]);
        assert!(walk(&topology, &next, 3, 2).is_empty());
        assert_eq!(next_links(&serde_json::json!({})), None);
    }

    #[test]
    fn chosen_paths_are_found_in_what_peers_said() {
        let dir = tempfile::tempdir().unwrap();
        let lines = "{\"event\":\"paths\",\"selector\":\"all\",\"candidates\":[{\"choice\":\"chosen\",\"interfaces\":[\"1-3#1\",\"1-1#2\"]},\
                     {\"choice\":\"left\",\"interfaces\":[\"1-3#2\",\"1-2#2\"]}]}\n\
                     {\"event\":\"paths\",\"selector\":null,\"candidates\":[{\"choice\":\"chosen\",\"interfaces\":[\"1-3#9\",\"1-1#9\"]}]}\nrubbish \"paths\"\n";
        fs::write(dir.path().join("peer-0.out"), lines).unwrap();
        fs::write(dir.path().join("router-0.out"), lines).unwrap();
        let found = chosen_paths(dir.path());
        assert_eq!(found.values().copied().collect::<Vec<_>>(), [1]);
        assert_eq!(found.keys().next().unwrap()[1].id, 2);
    }
}
