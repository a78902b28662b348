//! scionproto's `.topo` format: the part of it that says what the network looks like.
//!
//! Read: `ASes` with `core` and `mtu`; `links` with `a`, `b`, `linkAtoB` and `mtu`. What only scionproto's own generator
//! needs (certificate issuers, numbers of servers, underlay families, the unused `bw`) is accepted and has no effect.

use anabranch_paths::IsdAs;

use super::LinkType;
use super::build::{Draft, DraftAs, DraftLink};
use super::document::{self, Fields, Located, Node};
use super::error::TopologyErrorKind;
use super::from_toml::{read_end, read_flag};
use super::limits::*;
use super::props::parse_mtu;
use crate::link::{LinkShape, MTU_DEFAULT};

/// Keys of an AS without a meaning here.
const AS_KEYS_IGNORED: [&str; 11] = [
    "voting",
    "authoritative",
    "issuing",
    "cert_issuer",
    "underlay",
    "control_servers",
    "dispatched_ports",
    "test_dispatcher",
    "name",
    "note",
    "region",
];
/// Keys of a link without a meaning here.
const LINK_KEYS_IGNORED: [&str; 3] = ["bw", "underlay", "note"];

pub(super) fn read(text: &str) -> Located<Draft> {
    let document = document::from_yaml(text)?;
    let mut fields = Fields::new(&document, "the topology")?;
    let ases = fields.need("ASes", "ASes: with one AS a line under it")?.table("ASes", "a table of ASes")?;
    let ases = ases.iter().map(|(number, node)| read_as(number, node)).collect::<Located<Vec<_>>>()?;
    let mut links = Vec::new();
    if let Some(node) = fields.get("links") {
        for node in node.list("links", "a list of links")? {
            links.push(read_link(node)?);
        }
    }
    // Who certifies keys (CAs) is no part of the network.
    fields.get("CAs");
    fields.get("defaults");
    fields.finish()?;
    Ok(Draft { name: String::new(), segment_lifetime: None, network: NETWORK_DEFAULT, ases, links })
}

fn read_as(number: &str, node: &Node) -> Located<DraftAs> {
    let isd_as = number.parse::<IsdAs>().map_err(|_| {
        let expected = "ISD-AS numbers as keys, as in \"1-ff00:0:110\":";
        (node.line, TopologyErrorKind::BadValue { key: "ASes".into(), value: number.into(), expected })
    })?;
    let mut fields = Fields::new(node, "an AS")?;
    let core = fields.get("core").map(|node| node.read("core", "true or false", read_flag)).transpose()?;
    let mtu = fields.get("mtu").map(read_mtu).transpose()?;
    AS_KEYS_IGNORED.into_iter().for_each(|key| _ = fields.get(key));
    fields.finish()?;
    Ok(DraftAs {
        line: node.line,
        isd_as,
        core: core.unwrap_or(false),
        mtu: mtu.unwrap_or(MTU_DEFAULT),
        control: None,
        daemon: None,
        routers: Vec::new(),
        hosts: vec![(node.line, HOST_NAME_DEFAULT.to_owned(), None)],
    })
}

fn read_link(node: &Node) -> Located<DraftLink> {
    let mut fields = Fields::new(node, "a link")?;
    let mut end = |key| read_end(key, fields.need(key, "a: \"1-ff00:0:110#1\", b: \"1-ff00:0:111#41\"")?);
    let [a, b] = [end("a")?, end("b")?];
    let kind = fields.need("linkAtoB", "linkAtoB: CORE, CHILD, PARENT or PEER")?;
    let kind = kind.read("linkAtoB", "CORE, CHILD, PARENT or PEER", |text| match text.to_ascii_uppercase().as_str() {
        "CORE" => Some((LinkType::Core, false)),
        "CHILD" => Some((LinkType::ParentChild, false)),
        "PARENT" => Some((LinkType::ParentChild, true)),
        "PEER" => Some((LinkType::Peering, false)),
        _ => None,
    });
    let (kind, swap) = kind?;
    let mtu = fields.get("mtu").map(read_mtu).transpose()?;
    LINK_KEYS_IGNORED.into_iter().for_each(|key| _ = fields.get(key));
    fields.finish()?;
    let shape = LinkShape { mtu: mtu.unwrap_or(MTU_DEFAULT), ..LinkShape::default() };
    let ends = if swap { [b, a] } else { [a, b] };
    Ok(DraftLink { line: node.line, kind, ends, shapes: [shape; 2], underlay: [None; 2], own_routers: true })
}

fn read_mtu(node: &Node) -> Located<u16> {
    node.read("mtu", "bytes from 1280 to 9216", parse_mtu)
}
