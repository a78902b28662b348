//! `send --dry-run`: what would go, and over which paths.

use std::time::SystemTime;

use anabranch_hercules::wire::manifest::{Entry, EntryKind, parse_entries};
use anabranch_paths::{Endpoint, ScionAddr};
use anabranch_swarm::ScionConfig;
use anabranch_swarm::bulk::{Dial, Source};
use anabranch_transport::Interfaces;
use serde_json::{Value, json};

use crate::awaited::Teller;
use crate::cli::SendFlags;
use crate::exit::{Code, Failure};
use crate::path_list::PathList;
use crate::{output, units};

/// Runs the command.
pub(crate) async fn run(
    flags: &SendFlags,
    source: &dyn Source,
    dials: &[Dial],
    scion: Option<&ScionConfig>,
    teller: Teller,
) -> Result<Code, Failure> {
    let entries = parse_entries(&source.manifest()).map_err(|error| Failure::new(Code::Failed, error))?;
    let listen = &flags.invitation.listen;
    let is_scion_alone = !listen.is_empty() && listen.iter().all(|own| own.as_scion().is_some());
    let mut destinations = Vec::new();
    for (target, dial) in flags.to.iter().zip(dials) {
        let mut ways = Vec::new();
        for address in &dial.addresses {
            match (address, scion) {
                (Endpoint::Scion(address), Some(scion)) => ways.push(of_scion(address, scion, teller).await?),
                (Endpoint::Scion(_), None) => {}
                (Endpoint::Ip(_), _) if is_scion_alone => {}
                (Endpoint::Ip(_), _) => ways.push(of_ip(flags, address)?),
            }
        }
        if !ways.iter().any(|way| way.count > 0) {
            let message = format!("no path leads to {target}: see `anabranch paths`, or the flags that choose paths");
            return Err(Failure::new(Code::Network, message));
        }
        destinations.push((target.to_string(), ways));
    }
    if flags.bulk.json {
        let destination = |(target, found): &(String, Vec<FoundPaths>)| json!({ "to": target, "paths": found.iter().flat_map(|paths| paths.json.clone()).collect::<Vec<_>>() });
        output::line(json!({
            "bytes_total": source.content_len(),
            "entries": entries.iter().map(entry_json).collect::<Vec<_>>(),
            "destinations": destinations.iter().map(destination).collect::<Vec<_>>(),
        }))?;
        return Ok(Code::Success);
    }
    for entry in &entries {
        output::line(output::one_line(&entry_line(entry)))?;
    }
    let count = units::count(entries.len(), "entry").replace("entrys", "entries");
    output::line(format_args!("{count}, {} of data", units::bytes(source.content_len())))?;
    for (target, found) in destinations {
        output::line(format_args!("to {target}:"))?;
        for paths in found {
            output::raw(paths.text.as_bytes())?;
        }
    }
    Ok(Code::Success)
}

/// The paths to one address.
struct FoundPaths {
    count: usize,
    text: String,
    json: Vec<Value>,
}

async fn of_scion(address: &ScionAddr, scion: &ScionConfig, teller: Teller) -> Result<FoundPaths, Failure> {
    let mut paths = teller.paths(&scion.lookup, address.isd_as, false).await?.to_vec();
    anabranch_paths::sort(&mut paths);
    match &scion.policy {
        Some(policy) => policy.filter(address.isd_as, Some(address.host)).apply(&mut paths, SystemTime::now()),
        None => scion.filter.apply(&mut paths, SystemTime::now()),
    }
    if !scion.only.is_empty() {
        paths.retain(|path| scion.only.iter().any(|only| path.is_named(only)));
    }
    let count = paths.len();
    let list = PathList::new(scion.lookup.local_as().isd_as, address.isd_as, paths, None);
    let json = list.json()["paths"].as_array().cloned().unwrap_or_default();
    Ok(FoundPaths { count, text: list.text(SystemTime::now(), false), json })
}

fn of_ip(flags: &SendFlags, address: &Endpoint) -> Result<FoundPaths, Failure> {
    let interfaces = Interfaces::new(&flags.bulk.paths.interface).map_err(Failure::usage)?;
    let candidates = interfaces.candidates(&[address.socket_addr()]);
    let names: Vec<String> = candidates.iter().map(|candidate| candidate.path.to_string()).collect();
    Ok(FoundPaths {
        count: names.len(),
        text: names.iter().map(|name| format!("   {name}\n")).collect(),
        json: names.iter().map(|name| json!({ "path": name })).collect(),
    })
}

fn entry_line(entry: &Entry) -> String {
    let name = String::from_utf8_lossy(&entry.name);
    match &entry.kind {
        EntryKind::Folder => format!("{name}/"),
        EntryKind::Link(target) => format!("{name} -> {}", String::from_utf8_lossy(target)),
        EntryKind::File { len, .. } if *len == entry.data_len() => format!("{name}  {}", units::bytes(*len)),
        EntryKind::File { len, .. } => {
            format!("{name}  {}, of which {} are data", units::bytes(*len), units::bytes(entry.data_len()))
        }
    }
}

fn entry_json(entry: &Entry) -> Value {
    let (kind, len, target) = match &entry.kind {
        EntryKind::Folder => ("folder", 0, None),
        EntryKind::Link(target) => ("link", 0, Some(String::from_utf8_lossy(target).into_owned())),
        EntryKind::File { len, .. } => ("file", *len, None),
    };
    json!({
        "name": String::from_utf8_lossy(&entry.name),
        "kind": kind,
        "length": len,
        "data": entry.data_len(),
        "mode": entry.mode,
        "target": target,
    })
}
