//! Plans from TOML.

use std::path::Path;
use std::time::Duration;

use anabranch_asnet::topology::document::{self, Fields, Node};
use anabranch_asnet::topology::{Topology, parse_duration, parse_size};
use anabranch_paths::IsdAs;
use anabranch_paths::select::Selector;

use super::figure::figure;
use super::limits::*;
use super::variant::variant;
use super::{
    Axis, Candidate, Cell, Claim, Client, Form, NetworkSource, Peer, Placement, Plan, Reduction, Role, Scale, Speech,
};
use super::{event, form, generate, scale};
use crate::bed::Routing;

/// A problem and its line.
pub(super) type Located<T> = Result<T, (usize, String)>;

const NAME: &str = "up to 40 small letters, digits and dashes";
const PROSE: &str = "a text of up to 400 characters on one line";
const SIZE: &str = "a size from 16 KiB to 100 GB, as in \"100 MB\"";
const TIME: &str = "a time up to 24 h, as in \"10 s\"";
const COUNT: &str = "a whole number from 1";
const RATE: &str = "bytes a second as flags have them, from 1K to 12.5G, as in \"500K\", \"10M\" or \"1.5MiB\"";

/// What `document` says, with its message as text.
pub(super) fn told<T>(result: document::Located<T>) -> Located<T> {
    result.map_err(|(line, problem)| (line, problem.to_string()))
}

pub(super) fn read(
    path: &Path,
    text: &str,
    open: impl FnOnce(NetworkSource<'_>) -> Result<(Topology, String), String>,
) -> Located<Plan> {
    let document = told(document::from_toml(text))?;
    let mut fields = told(Fields::new(&document, "the plan"))?;
    let id = name(told(fields.need("id", "id = \"000-fig4\""))?, "id")?;
    let title = prose(told(fields.need("title", "title = \"what it is about\""))?, "title")?;
    let source = fields.get("source").map(|node| prose(node, "source")).transpose()?;
    let (topology, topology_text) = network(&mut fields, open)?;
    let (content_bytes, piece_bytes) =
        content(told(fields.need("content", "[content] and size = \"100 MB\" under it"))?)?;
    let candidates = entries(&mut fields, "candidate", VALUES_MAX, candidate)?;
    if candidates.is_empty() {
        return Err((1, "there is nothing to compare: write [[candidate]] with a name and a routing".into()));
    }
    let mut placements = Vec::new();
    for (line, add) in entries(&mut fields, "peers", ENTRIES_MAX, |node| Ok((node.line, peers(node, &topology)?)))? {
        place(&mut placements, line, add)?;
    }
    check_placements(&placements)?;
    let events = entries(&mut fields, "event", ENTRIES_MAX, |node| Ok((node.line, event::event(node, &topology)?)))?;
    event::check(&events, &placements)?;
    let events = events.into_iter().map(|(_, event)| event).collect();
    let variants = entries(&mut fields, "variant", VALUES_MAX, |node| variant(node, &topology))?;
    let connections = fields.get("sweep").map(sweep).transpose()?.unwrap_or_default();
    let sim = fields.get("sim").map(|node| prose(node, "sim")).transpose()?;
    let number = |node: Option<&Node>, key, max| node.map(|node| count(node, key, max)).transpose();
    let repetitions = number(fields.get("repetitions"), "repetitions", REPETITIONS_MAX)?.unwrap_or(1);
    let seed = number(fields.get("seed"), "seed", u32::MAX)?.unwrap_or(1);
    let limit = fields.get("limit").map(|node| time(node, "limit")).transpose()?.unwrap_or(LIMIT_DEFAULT);
    let jobs = number(fields.get("jobs"), "jobs", JOBS_MAX)?.unwrap_or(1);
    let slowed = fields.get("scale");
    let (quick, standard) = (fields.get("quick"), fields.get("standard"));
    let mut plan = Plan {
        file: path.to_path_buf(),
        text: text.to_owned(),
        topology_text,
        id,
        title,
        source,
        topology,
        scale: Scale::default(),
        content_bytes,
        piece_bytes,
        candidates,
        placements,
        connections,
        variants,
        events,
        sim,
        form: Form::Full,
        full_bytes: content_bytes,
        repetitions,
        jobs,
        seed: u64::from(seed),
        limit,
        quick: Reduction::default(),
        standard: None,
        figures: Vec::new(),
        claims: Vec::new(),
        claims_left_out: 0,
    };
    if let Some(node) = slowed {
        plan.scale = scale::read(node, &plan)?;
    }
    distinct(&plan)?;
    if let Some(node) = quick {
        plan.quick = form::reduction(node, &plan)?;
    }
    plan.standard = standard.map(|node| form::reduction(node, &plan)).transpose()?;
    let counts = Axis::ALL.map(|axis| plan.values(axis).len().max(1));
    let cells: usize = counts.iter().product();
    if cells > CELLS_MAX {
        return Err((1, format!("there are {cells} cells, and at most {CELLS_MAX} are run: sweep over less")));
    }
    understand(&plan)?;
    plan.figures = entries(&mut fields, "figure", ENTRIES_MAX, |node| figure(node, &plan))?;
    for (node, reduction) in [(quick, Some(&plan.quick)), (standard, plan.standard.as_ref())] {
        if let (Some(node), Some(reduction)) = (node, reduction) {
            form::keeps_references(&plan, reduction, node)?;
        }
    }
    plan.claims = entries(&mut fields, "must", ENTRIES_MAX, |node| claim(node, &plan))?;
    told(fields.finish())?;
    Ok(plan)
}

/// The network, from a file or drawn.
fn network(
    fields: &mut Fields<'_>,
    open: impl FnOnce(NetworkSource<'_>) -> Result<(Topology, String), String>,
) -> Located<(Topology, String)> {
    if let Some(node) = fields.get("network") {
        if let Some(named) = fields.get("topology") {
            return Err((named.line, "a plan has one network: leave out either `topology` or [network]".into()));
        }
        let recipe = generate::recipe(node)?;
        return open(NetworkSource::Drawn(&recipe)).map_err(|problem| (node.line, problem));
    }
    let node = told(
        fields.need("topology", "topology = \"../topologies/demo.toml\", or [network] and kind = \"tiers\" under it"),
    )?;
    let name = told(node.scalar("topology", "the name of a topology file"))?;
    open(NetworkSource::File(name)).map_err(|problem| (node.line, problem))
}

/// The tables of `[[key]]`.
fn entries<T>(
    fields: &mut Fields<'_>,
    key: &'static str,
    max: usize,
    read: impl FnMut(&Node) -> Located<T>,
) -> Located<Vec<T>> {
    let Some(node) = fields.get(key) else { return Ok(Vec::new()) };
    let items = told(node.list(key, "tables, each under a line with its name in double brackets"))?;
    if items.len() > max {
        return Err((node.line, format!("there are more than {max} of [[{key}]]: use fewer")));
    }
    items.iter().map(read).collect()
}

fn content(node: &Node) -> Located<(u64, u32)> {
    let mut fields = told(Fields::new(node, "the content"))?;
    let bytes = size(told(fields.need("size", "size = \"100 MB\""))?, "size")?;
    let piece = fields.get("piece_length").map(piece_length).transpose()?;
    told(fields.finish())?;
    Ok((bytes, piece.unwrap_or(256 << 10)))
}

pub(super) fn piece_length(node: &Node) -> Located<u32> {
    told(node.read("piece_length", "a power of two from 16 KiB to 128 MiB, as in \"256 KiB\"", |text| {
        let bytes = u32::try_from(parse_size(text)?).ok()?;
        (bytes.is_power_of_two() && (16 << 10..=128 << 20).contains(&bytes)).then_some(bytes)
    }))
}

fn candidate(node: &Node) -> Located<Candidate> {
    let mut fields = told(Fields::new(node, "a candidate"))?;
    let called = name(told(fields.need("name", "name = \"scion\""))?, "name")?;
    let node = told(fields.need("routing", "routing = \"scion\""))?;
    let routing = told(node.read("routing", "scion, bgp, bgp-multipath or plain", |text| {
        Routing::ALL.into_iter().find(|routing| routing.name() == text)
    }))?;
    let client = fields.get("client").map(client).transpose()?.unwrap_or(Client::Anabranch);
    if !client.goes_over(routing) {
        let problem = format!("{} does not know SCION: give its candidate another routing", client.name());
        return Err((node.line, problem));
    }
    let selector = fields.get("selector").map(|node| {
        let chosen = told(node.read(
            "selector",
            "first, shortest, all, handshake-race, bandwidth-race, disjoint-paper or disjoint",
            |text| Selector::ALL.into_iter().find(|selector| selector.name() == text),
        ))?;
        if routing != Routing::Scion || client == Client::Ppspp {
            let what = if routing == Routing::Scion { client.name() } else { routing.name() };
            return Err((node.line, format!("`selector` has no effect with {what}: leave it out")));
        }
        Ok(chosen.name().to_owned())
    });
    let selector = selector.transpose()?;
    let paths = fields.get("paths").map(|node| count(node, "paths", 16)).transpose()?;
    let connections = fields.get("connections").map(|node| match client.speech() {
        Speech::BitTorrent => count(node, "connections", 4096),
        _ => Err((node.line, format!("`connections` has no effect with {}: leave it out", client.name()))),
    });
    let connections = connections.transpose()?;
    let flags_of = |node: Option<&Node>| node.map(flags).transpose().map(Option::unwrap_or_default);
    let (all, leechers) = (fields.get("flags"), fields.get("leecher_flags"));
    if let Some(node) = leechers.filter(|_| client.has_settings()) {
        let problem = format!(
            "`leecher_flags` has no effect with {}, whose flags are settings of all its peers: use `flags`",
            client.name()
        );
        return Err((node.line, problem));
    }
    let (flags, leecher_flags) = (flags_of(all)?, flags_of(leechers)?);
    let alone = fields.get("alone").map(|node| told(node.read("alone", "true or false", |text| text.parse().ok())));
    let alone = alone.transpose()?.unwrap_or(false);
    told(fields.finish())?;
    Ok(Candidate { name: called, routing, client, selector, paths, connections, flags, leecher_flags, alone })
}

/// Flags that `get` and `share` are given besides; those that a run sets itself are refused.
pub(super) fn flags(node: &Node) -> Located<Vec<String>> {
    const OURS: [&str; 9] =
        ["--peer", "--listen", "--sciond", "--json", "--data", "--seed", "--selector", "--paths", "-o"];
    let items = told(node.list("flags", "a list of texts, as in [\"--congestion\", \"cubic\"]"))?;
    let read = |item: &Node| {
        let word = told(item.scalar("flags", "a list of texts, as in [\"--congestion\", \"cubic\"]"))?;
        match OURS.iter().find(|ours| word.split('=').next() == Some(ours)) {
            Some(ours) => Err((item.line, format!("`{ours}` is for the lab to set: leave it out of `flags`"))),
            None => Ok(word.to_owned()),
        }
    };
    items.iter().take(VALUES_MAX).map(read).collect()
}

/// The name of a placement and peers of it.
fn peers(node: &Node, topology: &Topology) -> Located<(String, Vec<Peer>)> {
    let mut fields = told(Fields::new(node, "peers"))?;
    let placement = fields.get("placement").map(|node| name(node, "placement")).transpose()?;
    let ases = told(fields.need("in", "in = [\"1-ff00:0:110\"]"))?;
    let homes = told(ases.list("in", "a list of ISD-AS numbers"))?.iter().map(|item| home(item, topology));
    let homes = homes.collect::<Located<Vec<usize>>>()?;
    let number = fields.get("count").map(|node| count(node, "count", PEERS_MAX as u32)).transpose()?.unwrap_or(1);
    let role = fields.get("role").map(role).transpose()?.unwrap_or(Role::Leecher);
    let client = fields.get("client").map(client).transpose()?;
    let join = fields.get("join").map(|node| time(node, "join")).transpose()?.unwrap_or_default();
    let mut limit = |key| fields.get(key).map(|node| rate_limit(node, key)).transpose();
    let limits = [limit("limit_up")?, limit("limit_down")?];
    told(fields.finish())?;
    if homes.len() * number as usize > PEERS_MAX {
        return Err((node.line, format!("there are more than {PEERS_MAX} peers: use fewer")));
    }
    let one = |home: &usize| Peer { home: *home, role, client, join, limits: limits.clone() };
    let all = homes.iter().flat_map(|home| std::iter::repeat_n(one(home), number as usize)).collect();
    Ok((placement.unwrap_or_else(|| "swarm".into()), all))
}

fn client(node: &Node) -> Located<Client> {
    told(node.read(
        "client",
        "anabranch, anabranch-bulk, anabranch-ppspp, libtorrent, aria2, transmission, iperf3 or gridftp",
        |text| Client::ALL.into_iter().find(|client| client.name() == text),
    ))
}

pub(super) fn role(node: &Node) -> Located<Role> {
    told(node.read("role", "seed or leecher", |text| match text {
        "seed" => Some(Role::Seed),
        "leecher" => Some(Role::Leecher),
        _ => None,
    }))
}

/// Adds peers to their placement.
fn place(placements: &mut Vec<Placement>, line: usize, (name, peers): (String, Vec<Peer>)) -> Located<()> {
    if !placements.iter().any(|each| each.name == name) {
        placements.push(Placement { name: name.clone(), peers: Vec::new() });
    }
    let Some(placement) = placements.iter_mut().find(|each| each.name == name) else { return Ok(()) };
    placement.peers.extend(peers);
    placement.peers.sort_by_key(|peer| peer.role == Role::Leecher);
    if placement.peers.len() > PEERS_MAX || placements.len() > VALUES_MAX {
        return Err((line, format!("there are more than {PEERS_MAX} peers or {VALUES_MAX} placements: use fewer")));
    }
    Ok(())
}

fn check_placements(placements: &[Placement]) -> Located<()> {
    if placements.is_empty() {
        return Err((1, "there is nobody: write [[peers]] with role = \"seed\", and others for who fetches".into()));
    }
    for placement in placements {
        let homes = |role| placement.peers.iter().filter(move |peer| peer.role == role).map(|peer| peer.home);
        let seeds: Vec<usize> = homes(Role::Seed).collect();
        if seeds.is_empty() {
            return Err((
                1,
                format!("nobody in `{}` has the content: give [[peers]] a role = \"seed\"", placement.name),
            ));
        }
        if homes(Role::Leecher).all(|home| seeds.contains(&home)) {
            let name = &placement.name;
            return Err((
                1,
                format!("everybody in `{name}` who fetches is in a seed's AS: put [[peers]] into another one"),
            ));
        }
    }
    Ok(())
}

fn sweep(node: &Node) -> Located<Vec<u32>> {
    let mut fields = told(Fields::new(node, "the sweep"))?;
    let node = told(fields.need("connections", "connections = [3, 5, 7, 10]"))?;
    let items = told(node.list("connections", "a list of numbers, as in [3, 5, 7, 10]"))?;
    let values = items.iter().map(|item| count(item, "connections", 4096)).collect::<Located<Vec<u32>>>()?;
    told(fields.finish())?;
    let mut seen = values.clone();
    seen.sort_unstable();
    seen.dedup();
    if values.is_empty() || values.len() > VALUES_MAX || seen.len() < values.len() {
        return Err((node.line, format!("`connections` has 1 to {VALUES_MAX} values, each once: correct the list")));
    }
    Ok(values)
}

fn claim(node: &Node, plan: &Plan) -> Located<Claim> {
    let mut fields = told(Fields::new(node, "what must hold"))?;
    let that = told(fields.need("that", "that = \"goodput(scion) >= 1.3 * goodput(bgp)\""))?;
    let text = told(that.scalar("that", PROSE))?;
    let why = fields.get("why").map(|node| prose(node, "why")).transpose()?;
    told(fields.finish())?;
    Claim::read(text, why, &|names| cell(plan, names)).map_err(|problem| (that.line, problem))
}

/// The one cell that names stand for.
fn cell(plan: &Plan, names: &[&str]) -> Result<Cell, String> {
    for name in names {
        let known = Axis::ALL.iter().any(|axis| plan.values(*axis).iter().any(|value| value == name));
        if !known {
            return Err(format!(
                "`{name}` is no candidate, placement, variant or number of connections of this plan: correct it"
            ));
        }
    }
    let is_meant = |cell: &Cell| {
        let full = plan.name(cell);
        let parts: Vec<&str> = full.split('/').collect();
        names.iter().all(|name| parts.contains(name))
    };
    let found: Vec<Cell> = plan.cells().into_iter().filter(is_meant).collect();
    match &found[..] {
        [cell] => Ok(cell.clone()),
        [] => Err(format!("no cell is ({}): name one candidate, and at most one placement", names.join(", "))),
        _ => {
            Err(format!("{} cells are ({}): name the placement and the connections too", found.len(), names.join(", ")))
        }
    }
}

/// Whether the peers of every cell speak one language, over a routing that they know.
fn understand(plan: &Plan) -> Located<()> {
    for (candidate, placement) in
        plan.candidates.iter().flat_map(|each| plan.placements.iter().map(move |other| (each, other)))
    {
        let clients: Vec<Client> = placement.peers.iter().map(|peer| peer.client.unwrap_or(candidate.client)).collect();
        let stranger = clients
            .iter()
            .find(|client| client.speech() != candidate.client.speech() || !client.goes_over(candidate.routing));
        if let Some(stranger) = stranger {
            return Err((
                1,
                format!(
                    "{} in `{}` cannot talk with the peers of `{}`: give them clients of one kind and a routing that all know",
                    stranger.name(),
                    placement.name,
                    candidate.name
                ),
            ));
        }
        let leechers = placement.peers.iter().filter(|peer| peer.role == Role::Leecher).count();
        let seeds = placement.peers.len() - leechers;
        let is_one_to_one = candidate.client == Client::Iperf3;
        if (is_one_to_one && leechers > 1) || (candidate.client.speech() != Speech::BitTorrent && seeds > 1) {
            let many = if is_one_to_one { "one seed and one leecher" } else { "one seed" };
            return Err((1, format!("{} has {many}: correct `{}`", candidate.client.name(), placement.name)));
        }
    }
    Ok(())
}

/// Whether every name means one thing.
fn distinct(plan: &Plan) -> Located<()> {
    let mut names: Vec<String> = Axis::ALL.into_iter().flat_map(|axis| plan.values(axis)).collect();
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            Err((1, format!("`{}` names two things: give each candidate and placement a name of its own", pair[0])))
        }
        None => Ok(()),
    }
}

pub(super) fn home(node: &Node, topology: &Topology) -> Located<usize> {
    let isd_as =
        told(node.read("ISD-AS", "an ISD-AS number, as in \"1-ff00:0:110\"", |text| text.parse::<IsdAs>().ok()))?;
    topology.index(isd_as).ok_or_else(|| (node.line, format!("AS {isd_as} is not in the topology: name one that is")))
}

pub(super) fn known(node: &Node, key: &str, all: &[String]) -> Located<String> {
    let text = told(node.scalar(key, NAME))?;
    match all.iter().find(|each| *each == text) {
        Some(found) => Ok(found.clone()),
        None => Err((node.line, format!("`{text}` is no value for `{key}`: use one of {}", all.join(", ")))),
    }
}

pub(super) fn name(node: &Node, key: &str) -> Located<String> {
    told(node.read(key, NAME, |text| {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_name =
            !text.is_empty() && text.len() <= NAME_CHARS_MAX && text.chars().all(fits) && !text.starts_with('-');
        is_name.then(|| text.to_owned())
    }))
}

pub(super) fn prose(node: &Node, key: &str) -> Located<String> {
    told(node.read(key, PROSE, |text| {
        let fits = !text.is_empty() && text.chars().count() <= PROSE_CHARS_MAX && !text.contains(char::is_control);
        fits.then(|| text.to_owned())
    }))
}

pub(super) fn count(node: &Node, key: &str, max: u32) -> Located<u32> {
    let value = told(node.read(key, COUNT, |text| text.parse::<u32>().ok().filter(|value| *value > 0)))?;
    if value > max { Err((node.line, format!("`{key}` is {value}: give at most {max}"))) } else { Ok(value) }
}

pub(super) fn size(node: &Node, key: &str) -> Located<u64> {
    told(node.read(key, SIZE, |text| {
        Some(parse_size(text)? as u64).filter(|bytes| (CONTENT_BYTES_MIN..=CONTENT_BYTES_MAX).contains(bytes))
    }))
}

pub(super) fn time(node: &Node, key: &str) -> Located<Duration> {
    told(node.read(key, TIME, |text| parse_duration(text).filter(|time| *time <= TIME_MAX)))
}

/// A rate as the program's own flags take it.
pub(super) fn rate_limit(node: &Node, key: &str) -> Located<String> {
    told(node.read(key, RATE, |text| {
        let bytes = rate_bytes(text)?;
        (LIMIT_BYTES_MIN..=LIMIT_BYTES_MAX).contains(&bytes).then(|| text.to_owned())
    }))
}

/// Such a rate in bytes a second.
pub(crate) fn rate_bytes(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let factor = match unit {
        "" => 1.0,
        "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        "GiB" => 1_073_741_824.0,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * factor;
    (bytes >= 0.0).then_some(bytes as u64)
}
