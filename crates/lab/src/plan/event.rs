//! What happens in the midst of a run: to links, and to peers.

use std::time::Duration;

use anabranch_asnet::link::LinkShape;
use anabranch_asnet::topology::document::{Fields, Node};
use anabranch_asnet::topology::{Topology, set_property};

use anabranch_paths::{Interface, IsdAs};

use super::limits::{CROSS_FLOWS_MAX, PEERS_MAX};
use super::read::{Located, count, home, role, time, told};
use super::{Placement, Role};

const WHAT: &str = "an event has one of `set`, `down`, `cross`, `flows` (with `link`) and `leave`: write one of them";

/// Something that happens in the midst of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When.
    pub when: When,
    /// After so long it is undone: the link is as it was, cross traffic ends, peers come back. Never, where nothing is said.
    pub length: Option<Duration>,
    /// What happens.
    pub change: Change,
}

/// When something happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// So long after the first leecher was let go.
    At(Duration),
    /// When the leechers together have this share of what they fetch, 0 to 1.
    Progress(f64),
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// To a link.
    Link {
        /// The link, by its place in the topology.
        link: usize,
        /// Which directions: what leaves its first end, its second.
        ways: [bool; 2],
        /// What happens to it.
        to: LinkChange,
    },
    /// Peers go: who, is drawn from the seed of the run, among those that are there then.
    Leave {
        /// So many.
        count: usize,
        /// Of these.
        role: Role,
        /// Of these ASes; of all where there are none.
        homes: Vec<usize>,
    },
}

/// What happens to a link.
#[derive(Clone, Debug, PartialEq)]
pub enum LinkChange {
    /// Properties and their values, as topologies write them.
    Set(Vec<(String, String)>),
    /// Nothing passes, and both ends see that.
    Down,
    /// Cross traffic by UDP of so many bits a second, headers of IP included.
    Udp(u64),
    /// Cross traffic by so many TCP connections, which send as fast as they can.
    Tcp(u32),
}

impl Event {
    /// In a few words: `after 10 s for 5 s: 1-1 - 1-3 carries 8.0 Mbit/s of cross traffic`.
    pub fn about(&self, topology: &Topology) -> String {
        let when = match self.when {
            When::At(at) => format!("after {}", crate::text::time(at)),
            When::Progress(share) => format!("at {} %", crate::text::trimmed(share * 100.0)),
        };
        let length = self.length.map_or(String::new(), |length| format!(" for {}", crate::text::time(length)));
        let what = match &self.change {
            Change::Leave { count, role, homes } => {
                let role = if *role == Role::Seed { "seeds" } else { "leechers" };
                let homes: Vec<String> = homes.iter().map(|at| topology.ases()[*at].isd_as.to_string()).collect();
                let of = if homes.is_empty() { String::new() } else { format!(" of {}", homes.join(", ")) };
                format!("{count} {role}{of} leave")
            }
            Change::Link { link, ways, to } => {
                let ends = topology.links()[*link].ends.map(|end| end.isd_as.to_string());
                let link = match ways {
                    [true, true] => format!("{} - {}", ends[0], ends[1]),
                    [true, false] => format!("{} > {}", ends[0], ends[1]),
                    _ => format!("{} > {}", ends[1], ends[0]),
                };
                match to {
                    LinkChange::Set(set) => {
                        let set: Vec<String> = set.iter().map(|(key, value)| format!("{key} {value}")).collect();
                        format!("{link} has {}", set.join(", "))
                    }
                    LinkChange::Down => format!("{link} is down"),
                    LinkChange::Udp(rate) => {
                        format!("{link} carries {} of cross traffic", crate::text::rate(*rate as f64))
                    }
                    LinkChange::Tcp(flows) => format!("{link} carries {flows} TCP connections of others"),
                }
            }
        };
        format!("{when}{length}: {what}")
    }
}

pub(super) fn event(node: &Node, topology: &Topology) -> Located<Event> {
    let mut fields = told(Fields::new(node, "an event"))?;
    let at = fields.get("at").map(|node| time(node, "at")).transpose()?;
    let progress = fields.get("progress").map(share).transpose()?;
    let when = match (at, progress) {
        (Some(at), None) => When::At(at),
        (None, Some(progress)) => When::Progress(progress),
        _ => return Err((node.line, "an event has either `at` or `progress`: write at = \"10 s\"".into())),
    };
    let length = fields.get("length").map(|node| time(node, "length")).transpose()?;
    let change = if let Some(leave) = fields.get("leave") {
        let count = count(leave, "leave", PEERS_MAX as u32)? as usize;
        let role = fields.get("role").map(role).transpose()?.unwrap_or(Role::Leecher);
        let homes = fields.get("in").map(|ases| {
            let ases = told(ases.list("in", "a list of ISD-AS numbers"))?;
            ases.iter().map(|item| home(item, topology)).collect::<Located<Vec<usize>>>()
        });
        Change::Leave { count, role, homes: homes.transpose()?.unwrap_or_default() }
    } else {
        on_a_link(node, &mut fields, topology)?
    };
    told(fields.finish())?;
    Ok(Event { when, length, change })
}

/// What of an event is about a link.
fn on_a_link(node: &Node, fields: &mut Fields<'_>, topology: &Topology) -> Located<Change> {
    let set = fields.get("set");
    let down = fields.get("down");
    let cross = fields.get("cross");
    let flows = fields.get("flows");
    let ends = told(fields.need("link", "link = [\"1-ff00:0:110\", \"1-ff00:0:120\"]"))?;
    let (link, turned) = link(ends, topology)?;
    let direction = ways(fields)?;
    let mut ways = direction.unwrap_or([true, true]);
    if turned {
        ways.reverse();
    }
    let to = match (set, down, cross, flows) {
        (Some(set), None, None, None) => LinkChange::Set(properties(set, topology.links()[link].shapes)?),
        (None, Some(down), None, None) => {
            told(down.read("down", "true", |text| (text == "true").then_some(())))?;
            if direction.is_some() {
                let problem =
                    "a link that is down is down both ways: leave `direction` out, or set = { loss = \"100 %\" }";
                return Err((down.line, problem.into()));
            }
            LinkChange::Down
        }
        (None, None, Some(cross), None) => LinkChange::Udp(rate(cross)?),
        (None, None, None, Some(flows)) => LinkChange::Tcp(count(flows, "flows", CROSS_FLOWS_MAX)?),
        _ => return Err((node.line, WHAT.into())),
    };
    Ok(Change::Link { link, ways, to })
}

/// Which directions are meant, from the first AS named; `None` where nothing is said.
pub(super) fn ways(fields: &mut Fields<'_>) -> Located<Option<[bool; 2]>> {
    let read = |node: &Node| {
        told(node.read("direction", "both, there (from the first AS named) or back", |text| match text {
            "both" => Some([true, true]),
            "there" => Some([true, false]),
            "back" => Some([false, true]),
            _ => None,
        }))
    };
    fields.get("direction").map(read).transpose()
}

/// The link that two ASes name, or two interfaces where there are several, and whether they name its second end first.
pub(super) fn link(ends: &Node, topology: &Topology) -> Located<(usize, bool)> {
    let named = told(ends.list("link", "the two ASes that it joins"))?;
    let [a, b] = named else { return Err((ends.line, "`link` names two ASes: write the two that it joins".into())) };
    let (a, b) = (end(a, topology)?, end(b, topology)?);
    let is_end = |named: &End, end: Interface| {
        topology.index(end.isd_as) == Some(named.0) && named.1.is_none_or(|interface| interface == end.id)
    };
    let fits = |[first, second]: [&End; 2], link: usize| {
        let ends = topology.links()[link].ends;
        is_end(first, ends[0]) && is_end(second, ends[1])
    };
    let found: Vec<(usize, bool)> = (0..topology.links().len())
        .filter_map(|link| match (fits([&a, &b], link), fits([&b, &a], link)) {
            (true, _) => Some((link, false)),
            (false, true) => Some((link, true)),
            _ => None,
        })
        .collect();
    match found[..] {
        [only] => Ok(only),
        _ => Err((
            ends.line,
            format!(
                "there are {} links between the two: name two ASes that one link joins, or interfaces, as in 1-ff00:0:110#2",
                found.len()
            ),
        )),
    }
}

/// An AS, and maybe an interface of it.
type End = (usize, Option<u16>);

fn end(node: &Node, topology: &Topology) -> Located<End> {
    const EXPECTED: &str = "an ISD-AS number, maybe with an interface, as in \"1-ff00:0:110#2\"";
    let read = |text: &str| {
        let (isd_as, id) = text.split_once('#').map_or((text, None), |(isd_as, id)| (isd_as, Some(id)));
        let id = id.map(|id| id.parse::<u16>().ok()).map_or(Some(None), |id| id.map(Some))?;
        Some((isd_as.parse::<IsdAs>().ok()?, id))
    };
    let (isd_as, id) = told(node.read("link", EXPECTED, read))?;
    let at = topology.index(isd_as);
    at.map(|at| (at, id)).ok_or_else(|| (node.line, format!("AS {isd_as} is not in the topology: name one that is")))
}

/// Properties of a link that both of its directions can have.
pub(super) fn properties(node: &Node, shapes: [LinkShape; 2]) -> Located<Vec<(String, String)>> {
    let mut set = Vec::new();
    let mut shapes = shapes;
    for (key, node) in told(node.table("set", "properties of a link, as in { rate = \"1 Mbit/s\" }"))? {
        let value = told(node.scalar("set", "a value as in topology files"))?;
        for shape in &mut shapes {
            set_property(shape, key, value).map_err(|error| (node.line, error.to_string()))?;
        }
        set.push((key.clone(), value.to_owned()));
    }
    for shape in shapes {
        shape.checked().map_err(|error| (node.line, error.to_string()))?;
    }
    Ok(set)
}

fn rate(node: &Node) -> Located<u64> {
    let mut shape = LinkShape::default();
    let text = told(node.scalar("cross", "a rate, as in \"8 Mbit/s\""))?;
    set_property(&mut shape, "rate", text).map_err(|error| (node.line, error.to_string()))?;
    let rate = shape.checked().map_err(|error| (node.line, error.to_string()))?.rate_bps;
    rate.ok_or((node.line, "cross traffic needs a rate: write one, as in \"8 Mbit/s\"".to_owned()))
}

fn share(node: &Node) -> Located<f64> {
    told(node.read("progress", "a share of what is fetched, as in \"30 %\"", |text| {
        let percent = text.trim().strip_suffix('%')?.trim().parse::<f64>().ok()?;
        (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
    }))
}

/// Whether in every placement there are as many peers as leave, and somebody stays who fetches.
pub(super) fn check(events: &[(usize, Event)], placements: &[Placement]) -> Located<()> {
    for placement in placements {
        let mut staying = placement.peers.iter().filter(|peer| peer.role == Role::Leecher).count();
        for (line, event) in events {
            let Change::Leave { count, role, homes } = &event.change else { continue };
            let fits = |peer: &&super::Peer| peer.role == *role && (homes.is_empty() || homes.contains(&peer.home));
            let there = placement.peers.iter().filter(fits).count();
            if *count > there {
                let problem = format!("{count} leave, and `{}` has {there} of them: let fewer leave", placement.name);
                return Err((*line, problem));
            }
            if *role == Role::Leecher && event.length.is_none() {
                staying = staying.saturating_sub(*count);
            }
        }
        if staying == 0 {
            let line = events.iter().map(|(line, _)| *line).next().unwrap_or(1);
            let problem = format!("everybody in `{}` who fetches leaves for good: let fewer leave", placement.name);
            return Err((line, problem));
        }
    }
    Ok(())
}
