//! Our own format.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anabranch_paths::IsdAs;

use super::LinkType;
use super::build::{Draft, DraftAs, DraftEnd, DraftLink};
use super::document::{self, Fields, Located, Node, Value};
use super::error::TopologyErrorKind;
use super::limits::*;
use super::props::{PROPS, parse_duration, parse_mtu, set_property};
use crate::control::limits::{SEGMENT_LIFETIME_MAX, SEGMENT_LIFETIME_MIN};
use crate::link::{LinkShape, MTU_DEFAULT};

const ISD_AS: &str = "an ISD-AS number, as in \"1-ff00:0:110\"";
const END: &str = "an end of a link: an ISD-AS number, then a router and an interface where you want to choose them, as in \"1-ff00:0:110-A#7\"";
const FLAG: &str = "true or false";
const MTU: &str = "bytes from 1280 to 9216";
const ADDRESS: &str = "an IP address and a port, as in \"127.0.0.1:30255\"";
const HOST: &str = "an IP address, as in \"127.16.0.100\"";
const NAME: &str = "a name of up to 64 letters, digits, dots and dashes";
const LINK: &str = "the ends of the link: `parent` and `child`, or `core`, or `peering`";

pub(super) fn read(text: &str) -> Located<Draft> {
    let document = document::from_toml(text)?;
    let mut fields = Fields::new(&document, "the topology")?;
    let name = fields.get("name").map(|node| node.read("name", NAME, read_name)).transpose()?;
    let network = fields.get("network").map(read_network).transpose()?;
    let segment_lifetime = fields.get("segment_lifetime").map(read_lifetime).transpose()?;
    let ases = match fields.get("as") {
        Some(node) => node.table("as", "tables of ASes, as in [as.\"1-ff00:0:110\"]")?,
        None => &[],
    };
    let ases = ases.iter().map(|(number, node)| read_as(number, node)).collect::<Located<Vec<_>>>()?;
    let mut defaults = [LinkShape::default(); 2];
    if let Some(node) = fields.get("defaults") {
        let mut fields = Fields::new(node, "the links' defaults")?;
        read_directions(&mut fields, &mut defaults)?;
        fields.finish()?;
    }
    let mut links = Vec::new();
    if let Some(node) = fields.get("link") {
        for node in node.list("link", "tables of links, as in [[link]]")? {
            read_link(node, defaults, &mut links)?;
        }
    }
    fields.finish()?;
    Ok(Draft {
        name: name.unwrap_or_default(),
        segment_lifetime,
        network: network.unwrap_or(NETWORK_DEFAULT),
        ases,
        links,
    })
}

fn read_network(node: &Node) -> Located<Ipv4Addr> {
    node.read("network", "the first of the networks that ASes take, as in \"127.16.0.0\"", |text| {
        text.parse::<Ipv4Addr>().ok().filter(|first| first.octets()[3] == 0)
    })
}

fn read_lifetime(node: &Node) -> Located<Duration> {
    node.read("segment_lifetime", "a time from 20 s to 24 h, as in \"6 h\"", |text| {
        parse_duration(text).filter(|time| (SEGMENT_LIFETIME_MIN..=SEGMENT_LIFETIME_MAX).contains(time))
    })
}

fn read_as(number: &str, node: &Node) -> Located<DraftAs> {
    let isd_as = number.parse::<IsdAs>().map_err(|_| node.bad_key("as", number, ISD_AS))?;
    let mut fields = Fields::new(node, "an AS")?;
    let core = fields.get("core").map(|node| node.read("core", FLAG, read_flag)).transpose()?;
    let mtu = fields.get("mtu").map(|node| node.read("mtu", MTU, parse_mtu)).transpose()?;
    let mut address = |key| fields.get(key).map(|node| node.read(key, ADDRESS, parse::<SocketAddr>)).transpose();
    let (control, daemon) = (address("control")?, address("daemon")?);
    let mut routers = Vec::new();
    if let Some(node) = fields.get("routers") {
        for (name, node) in node.table("routers", "a table of routers, as in { A = \"10.0.0.1:30042\" }")? {
            let name = read_name(name).ok_or_else(|| node.bad_key("routers", name, NAME))?;
            routers.push((name, node.read("routers", ADDRESS, parse::<SocketAddr>)?));
        }
        if routers.len() > ROUTERS_PER_AS_MAX {
            return Err((
                node.line,
                TopologyErrorKind::TooMany { what: "border routers in one AS", max: ROUTERS_PER_AS_MAX },
            ));
        }
    }
    let hosts = fields.get("hosts").map(read_hosts).transpose()?;
    let hosts = hosts.unwrap_or_else(|| vec![(node.line, HOST_NAME_DEFAULT.to_owned(), None)]);
    fields.finish()?;
    let (core, mtu) = (core.unwrap_or(false), mtu.unwrap_or(MTU_DEFAULT));
    Ok(DraftAs { line: node.line, isd_as, core, mtu, control, daemon, routers, hosts })
}

fn read_hosts(node: &Node) -> Located<Vec<(usize, String, Option<IpAddr>)>> {
    let name = |line, text: &str| read_name(text).ok_or_else(|| (line, bad_value("hosts", text, NAME)));
    match &node.value {
        Value::Table(entries) => entries
            .iter()
            .map(|(key, node)| Ok((node.line, name(node.line, key)?, Some(node.read("hosts", HOST, parse::<IpAddr>)?))))
            .collect(),
        _ => node
            .list("hosts", "names, as in [\"alice\"], or names and addresses, as in { alice = \"127.16.0.100\" }")?
            .iter()
            .map(|node| Ok((node.line, name(node.line, node.scalar("hosts", NAME)?)?, None)))
            .collect(),
    }
}

fn read_link(node: &Node, defaults: [LinkShape; 2], links: &mut Vec<DraftLink>) -> Located<()> {
    let mut fields = Fields::new(node, "a link")?;
    let pairs = [fields.get("core"), fields.get("peering")];
    let family = [fields.get("parent"), fields.get("child")];
    let (kind, ends) = match (pairs, family) {
        ([Some(node), None], [None, None]) => (LinkType::Core, read_pair("core", node)?),
        ([None, Some(node)], [None, None]) => (LinkType::Peering, read_pair("peering", node)?),
        ([None, None], [Some(parent), Some(child)]) => {
            (LinkType::ParentChild, [read_end("parent", parent)?, read_end("child", child)?])
        }
        ([None, None], [None, None]) => {
            return Err((
                node.line,
                missing("core", "core = [\"A\", \"B\"], peering = [\"A\", \"B\"], or parent = \"A\" and child = \"B\""),
            ));
        }
        ([None, None], [Some(_), None]) => return Err((node.line, missing("child", "child = \"1-ff00:0:111\""))),
        ([None, None], [None, Some(_)]) => return Err((node.line, missing("parent", "parent = \"1-ff00:0:110\""))),
        _ => return Err((node.line, bad_value("link", "several kinds of ends", LINK))),
    };
    let mut shapes = defaults;
    read_directions(&mut fields, &mut shapes)?;
    for shape in shapes {
        shape.checked().map_err(|error| (node.line, TopologyErrorKind::Shape(error.to_string())))?;
    }
    let underlay = fields.get("underlay").map(read_underlay).transpose()?.map_or([None; 2], |pair| pair.map(Some));
    let count = fields.get("count").map(|node| {
        node.read("count", "a number of parallel links from 1 to 64", |text| {
            parse::<usize>(text).filter(|count| (1..=COUNT_MAX).contains(count))
        })
    });
    let count = count.transpose()?.unwrap_or(1);
    if let Some(id) = ends.iter().find_map(|end| end.id).filter(|_| count > 1) {
        return Err((node.line, TopologyErrorKind::CountWithInterface(id)));
    }
    fields.finish()?;
    for _ in 0..count {
        links.push(DraftLink { line: node.line, kind, ends: ends.clone(), shapes, underlay, own_routers: false });
        if links.len() > LINKS_MAX {
            return Err((node.line, TopologyErrorKind::TooMany { what: "links", max: LINKS_MAX }));
        }
    }
    Ok(())
}

fn missing(key: &'static str, example: &'static str) -> TopologyErrorKind {
    TopologyErrorKind::Missing { key, place: "a link", example }
}

fn bad_value(key: &str, value: &str, expected: &'static str) -> TopologyErrorKind {
    TopologyErrorKind::BadValue { key: key.into(), value: value.into(), expected }
}

impl Node {
    fn bad_key(&self, table: &str, key: &str, expected: &'static str) -> (usize, TopologyErrorKind) {
        (self.line, bad_value(table, key, expected))
    }
}

/// Properties of both directions, then those of one: `there` is from the first end (the parent), `back` to it.
fn read_directions(fields: &mut Fields<'_>, shapes: &mut [LinkShape; 2]) -> Located<()> {
    for (key, expected) in PROPS {
        let Some(node) = fields.get(key) else { continue };
        let value = node.scalar(key, expected)?;
        for shape in &mut *shapes {
            set_property(shape, key, value).map_err(|_| node.bad(key, expected))?;
        }
    }
    for (direction, shape) in ["there", "back"].into_iter().zip(shapes) {
        let Some(node) = fields.get(direction) else { continue };
        let mut fields = Fields::new(node, "one direction of a link")?;
        for (key, expected) in PROPS {
            let Some(node) = fields.get(key) else { continue };
            set_property(shape, key, node.scalar(key, expected)?).map_err(|_| node.bad(key, expected))?;
        }
        fields.finish()?;
    }
    Ok(())
}

fn read_pair(key: &str, node: &Node) -> Located<[DraftEnd; 2]> {
    const PAIR: &str = "two ends, as in [\"1-ff00:0:110\", \"1-ff00:0:120\"]";
    match node.list(key, PAIR)? {
        [a, b] => Ok([read_end(key, a)?, read_end(key, b)?]),
        _ => Err(node.bad(key, PAIR)),
    }
}

fn read_underlay(node: &Node) -> Located<[SocketAddr; 2]> {
    const PAIR: &str = "two addresses, as in [\"10.0.0.1:50000\", \"10.0.0.2:50000\"]";
    match node.list("underlay", PAIR)? {
        [a, b] => Ok([a.read("underlay", ADDRESS, parse)?, b.read("underlay", ADDRESS, parse)?]),
        _ => Err(node.bad("underlay", PAIR)),
    }
}

/// `1-ff00:0:110`, `1-ff00:0:110#7`, `1-ff00:0:110-A`, `1-ff00:0:110-A#7`: what both formats write.
pub(super) fn read_end(key: &str, node: &Node) -> Located<DraftEnd> {
    node.read(key, END, |text| {
        let (place, id) = match text.split_once('#') {
            Some((place, id)) => (place, Some(parse::<u16>(id).filter(|id| *id != 0)?)),
            None => (text, None),
        };
        let (isd_as, router) = match place.match_indices('-').nth(1) {
            Some((at, _)) => (&place[..at], Some(read_name(&place[at + 1..])?)),
            None => (place, None),
        };
        Some(DraftEnd { isd_as: isd_as.parse().ok()?, router, id })
    })
}

pub(super) fn read_flag(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "yes" => Some(true),
        "false" | "False" | "no" => Some(false),
        _ => None,
    }
}

fn read_name(text: &str) -> Option<String> {
    let fits = !text.is_empty()
        && text.len() <= NAME_LEN_MAX
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'));
    fits.then(|| text.to_owned())
}

fn parse<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}
