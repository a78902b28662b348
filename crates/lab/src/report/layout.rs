//! Where ASes stand on the map: the sender left, the receiver right, cores between, in as few crossings as is easy.
//!
//! Columns come from the distance to the nearer end host and to the core, rows from how flat the links lie. Everything follows from the network alone, so the same network always looks the same.

use std::collections::VecDeque;

use crate::network::{LinkType, Network};

/// Times that all columns are gone through; drawings change little after a few.
const ROUNDS_MAX: usize = 12;
/// Less than this is no improvement but rounding.
const SLOPE_MIN: f64 = 1e-9;
/// Rows are this much farther apart in columns without core ASes: links between end hosts' ASes and the core pass inside,
/// those around the core outside.
const OUTER_STRETCH: f64 = 1.9;

/// A place on the map, from 0 to 1 in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    /// From left to right.
    pub x: f64,
    /// From top to bottom.
    pub y: f64,
}

/// A place for every AS, in the order of the network.
pub(super) fn places(network: &Network) -> Vec<Place> {
    let columns = columns(network);
    let count = columns.iter().max().map_or(0, |last| last + 1);
    let mut rows: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (node, column) in columns.iter().enumerate() {
        rows[*column].push(node);
    }
    let neighbours = neighbours(network);
    let gaps: Vec<f64> = (0..count).map(|column| gap(column, &columns, network)).collect();
    for column in &mut rows {
        column.sort_by_key(|node| network.nodes[*node].isd_as);
    }
    straighten(&mut rows, &gaps, &neighbours);
    let y = heights(&rows, &gaps, columns.len());
    let reach = y.iter().fold(0.0f64, |reach, y| reach.max(y.abs())).max(0.5);
    let across = count.saturating_sub(1).max(1) as f64;
    let place = |(column, y): (&usize, &f64)| Place { x: *column as f64 / across, y: 0.5 + y / reach / 2.0 };
    columns.iter().zip(&y).map(place).collect()
}

/// Orders rows so that links rise and fall as little as possible: neighbours in a column change places, and all columns up
/// to one are turned over, as long as that helps.
fn straighten(rows: &mut [Vec<usize>], gaps: &[f64], neighbours: &[Vec<usize>]) {
    let slope = |rows: &[Vec<usize>]| {
        let y = heights(rows, gaps, neighbours.len());
        let rises = neighbours.iter().enumerate().flat_map(|(node, beside)| {
            let y = &y;
            beside.iter().map(move |other| (y[node] - y[*other]).abs())
        });
        rises.sum::<f64>()
    };
    let mut best = slope(rows);
    let mut attempt = |rows: &mut [Vec<usize>], change: &dyn Fn(&mut [Vec<usize>])| {
        change(rows);
        let now = slope(rows);
        let better = now < best - SLOPE_MIN;
        if better {
            best = now;
        } else {
            // Every change undoes itself.
            change(rows);
        }
        better
    };
    for _ in 0..ROUNDS_MAX {
        let mut changed = false;
        for column in 0..rows.len() {
            for row in 1..rows[column].len() {
                changed |= attempt(rows, &|rows| rows[column].swap(row - 1, row));
            }
            changed |= attempt(rows, &|rows| rows[..=column].iter_mut().for_each(|column| column.reverse()));
        }
        if !changed {
            return;
        }
    }
}

/// How high every AS stands; the middle of each column is at nothing.
fn heights(rows: &[Vec<usize>], gaps: &[f64], count: usize) -> Vec<f64> {
    let mut y = vec![0.0; count];
    for (column, gap) in rows.iter().zip(gaps) {
        let middle = (column.len() as f64 - 1.0) / 2.0;
        for (row, node) in column.iter().enumerate() {
            y[*node] = (row as f64 - middle) * gap;
        }
    }
    y
}

/// The column of every AS, numbered from the left without gaps.
fn columns(network: &Network) -> Vec<usize> {
    let neighbours = neighbours(network);
    let index = |isd_as| network.nodes.iter().position(|node| node.isd_as == isd_as);
    let from_sender = distances(&neighbours, index(network.sender));
    let from_receiver = distances(&neighbours, index(network.receiver));
    let depths = depths(network);
    let ends = [index(network.sender), index(network.receiver)];
    let keys: Vec<i64> = (0..network.nodes.len())
        .map(|node| {
            let depth = depths[node] as i64;
            // Twice the depth, so that the middle has room for those that belong to neither side.
            let outward = 2 * depth + 1;
            match from_sender[node].cmp(&from_receiver[node]) {
                // The end hosts' own ASes are outermost, however high they stand.
                _ if ends[0] == Some(node) => i64::MIN,
                _ if ends[1] == Some(node) => i64::MAX,
                std::cmp::Ordering::Less => -outward,
                std::cmp::Ordering::Greater => outward,
                std::cmp::Ordering::Equal => 0,
            }
        })
        .collect();
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    sorted.dedup();
    // Every key is in the list that was made of them.
    keys.iter().map(|key| sorted.binary_search(key).unwrap_or_default()).collect()
}

/// Neighbours of every AS; those over parallel links count once for each.
fn neighbours(network: &Network) -> Vec<Vec<usize>> {
    let mut neighbours = vec![Vec::new(); network.nodes.len()];
    for line in &network.lines {
        let [a, b] = line.ends.map(|end| network.nodes.iter().position(|node| node.isd_as == end.isd_as));
        if let (Some(a), Some(b)) = (a, b) {
            neighbours[a].push(b);
            neighbours[b].push(a);
        }
    }
    neighbours
}

fn distances(neighbours: &[Vec<usize>], from: Option<usize>) -> Vec<usize> {
    let mut distances = vec![usize::MAX; neighbours.len()];
    let mut queue = VecDeque::new();
    if let Some(from) = from {
        distances[from] = 0;
        queue.push_back(from);
    }
    while let Some(node) = queue.pop_front() {
        for &next in &neighbours[node] {
            if distances[next] == usize::MAX {
                distances[next] = distances[node] + 1;
                queue.push_back(next);
            }
        }
    }
    distances
}

/// Links down from the core to every AS, along parents.
fn depths(network: &Network) -> Vec<usize> {
    let mut depths: Vec<usize> =
        network.nodes.iter().map(|node| if node.core { 0 } else { network.nodes.len() }).collect();
    let index = |isd_as| network.nodes.iter().position(|node| node.isd_as == isd_as);
    let pairs: Vec<(usize, usize)> = network
        .lines
        .iter()
        .filter(|line| line.kind == LinkType::ParentChild)
        .filter_map(|line| Some((index(line.ends[0].isd_as)?, index(line.ends[1].isd_as)?)))
        .collect();
    // No chain of parents is longer than there are ASes.
    for _ in 0..network.nodes.len() {
        let mut changed = false;
        for &(parent, child) in &pairs {
            if depths[parent] + 1 < depths[child] {
                depths[child] = depths[parent] + 1;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    depths
}

/// How far apart the rows of a column are.
fn gap(column: usize, columns: &[usize], network: &Network) -> f64 {
    let core = network.nodes.iter().zip(columns).any(|(node, own)| *own == column && node.core);
    if core { 1.0 } else { OUTER_STRETCH }
}

#[cfg(test)]
mod tests {
    use anabranch_asnet::topology::Topology;

    use super::*;
    use crate::network::tests::diamond;

    #[test]
    fn the_sender_is_left_and_the_receiver_right() {
        let network = diamond();
        let places = places(&network);
        let of = |isd_as: &str| places[network.nodes.iter().position(|n| n.isd_as.to_string() == isd_as).unwrap()];
        assert_eq!((of("1-3"), of("1-4")), (Place { x: 0.0, y: 0.5 }, Place { x: 1.0, y: 0.5 }));
        assert_eq!((of("1-1"), of("1-2")), (Place { x: 0.5, y: 0.0 }, Place { x: 0.5, y: 1.0 }));
    }

    #[test]
    fn nobody_stands_on_anybody() {
        for file in ["demo.toml", "two-isds.toml", "line.toml", "diamond.topo"] {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies").join(file);
            let topology = Topology::load(&path).unwrap();
            let ases: Vec<_> = topology.ases().iter().map(|each| each.isd_as).collect();
            for (sender, receiver) in ases.iter().flat_map(|a| ases.iter().map(move |b| (*a, *b))) {
                let places = places(&Network::new(&topology, sender, receiver));
                for (at, place) in places.iter().enumerate() {
                    assert!((0.0..=1.0).contains(&place.x) && (0.0..=1.0).contains(&place.y), "{file}: {place:?}");
                    assert!(!places[..at].contains(place), "{file} from {sender} to {receiver}: {places:?}");
                }
            }
        }
    }
}
