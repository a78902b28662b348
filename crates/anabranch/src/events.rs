//! Events as `--json` prints them, and as notes for people.

use anabranch_bittorrent::mse::Method;
use anabranch_content::storage::naming::Renamed;
use anabranch_paths::Path;
use anabranch_paths::manager::PathVerdict;
use anabranch_paths::select::{Choice, Selector};
use anabranch_swarm::{Discovery, EventKind, FailureKind, PathProgress, PauseCause, PortProtocol, Progress};
use serde_json::{Value, json};

use crate::units;

/// Why a magnet link's peer is not dialled (`anabranch_bittorrent::reach`).
const UNFIT: &str = "a link may come from anybody, and may not lead to this machine, to ports below 1024, or with a made-up hash into \
                     the local network; give the peer with --peer if you know it";
/// Files that are told one by one whose names were changed.
const RENAMED_SHOWN_MAX: usize = 5;

/// Name and fields of an event in JSON. `docs/cli.md` lists them: they are stable.
pub(crate) fn json(kind: &EventKind) -> (&'static str, Value) {
    match kind {
        EventKind::Metadata { name, hashes } => {
            let (v1, v2) = (
                hashes.v1.map(|hash| anabranch_content::hex::encode(&hash)),
                hashes.v2.map(|hash| anabranch_content::hex::encode(&hash)),
            );
            ("metadata", json!({ "name": name, "info_hash_v1": v1, "info_hash_v2": v2 }))
        }
        EventKind::Checking { bytes_done, bytes_total } => {
            ("checking", json!({ "bytes_done": bytes_done, "bytes_total": bytes_total }))
        }
        EventKind::Started { pieces_have, pieces_total, bytes_done, bytes_total, changed_files } => {
            let fields = json!({
                "pieces_have": pieces_have,
                "pieces_total": pieces_total,
                "bytes_done": bytes_done,
                "bytes_total": bytes_total,
                "changed_files": changed_files,
            });
            ("started", fields)
        }
        EventKind::Piece { index } => ("piece", json!({ "piece": index })),
        EventKind::PieceFailed { index } => ("piece_failed", json!({ "piece": index })),
        EventKind::Renamed { files } => {
            let one = |file: &Renamed| json!({ "written": file.written, "path": file.path.to_string_lossy() });
            ("renamed", json!({ "files": files.iter().map(one).collect::<Vec<_>>() }))
        }
        EventKind::Finished => ("finished", json!({})),
        EventKind::SuperSeeded { uploaded_bytes } => ("super_seeded", json!({ "uploaded": uploaded_bytes })),
        EventKind::LiveJoined { chunk } => ("joined", json!({ "chunk": chunk })),
        EventKind::LiveRestarted => ("restarted", json!({})),
        EventKind::LiveTwin { address } => ("twin", json!({ "peer": address.to_string() })),
        EventKind::PeerConnected { address, outgoing, peer_id, transport, encryption } => {
            // BEP 20: program and version are the first eight letters, mostly.
            let client = String::from_utf8_lossy(&peer_id[..8]);
            let encryption = encryption.map(|method| match method {
                Method::Plaintext => "handshake",
                Method::Rc4 => "rc4",
            });
            let fields = json!({
                "peer": address.to_string(),
                "outgoing": outgoing,
                "client": client,
                "transport": transport,
                "encryption": encryption,
            });
            ("peer_connected", fields)
        }
        EventKind::PeerDisconnected { address, reason } => {
            ("peer_disconnected", json!({ "peer": address.to_string(), "reason": reason }))
        }
        EventKind::WebSeedFailed { url, reason, is_final } => {
            ("web_seed_error", json!({ "url": url, "reason": reason, "final": is_final }))
        }
        EventKind::PeerUnfit { address } => ("peer_unfit", json!({ "peer": address.to_string(), "reason": UNFIT })),
        EventKind::PeerFailed { address, reason, is_final } => {
            ("peer_error", json!({ "peer": address.to_string(), "reason": reason, "final": is_final }))
        }
        EventKind::PeerBanned { address, reason } => {
            ("banned", json!({ "peer": address.to_string(), "reason": reason }))
        }
        EventKind::PeerSuspended { address, reason } => {
            ("suspended", json!({ "peer": address.to_string(), "reason": reason }))
        }
        EventKind::PathsChosen { peer, selector, trigger, verdicts } => {
            let fields = json!({
                "peer": peer.to_string(),
                "selector": selector.map(Selector::name),
                "why": trigger.to_string(),
                "candidates": verdicts.iter().map(verdict).collect::<Vec<_>>(),
            });
            ("paths", fields)
        }
        EventKind::PathChanged { peer, path, condition, reason } => {
            let fields = json!({
                "peer": peer.to_string(),
                "path": path_name(path),
                "state": condition.to_string(),
                "reason": reason.to_string(),
            });
            ("path", fields)
        }
        EventKind::RelayFailed { reason } => ("relay_error", json!({ "reason": reason })),
        EventKind::Discovered { by, peers } => ("discovered", json!({ "source": by.name(), "peers": peers })),
        EventKind::PortOpened(port) => {
            let fields = json!({
                "protocol": protocol(port.protocol),
                "local": port.local.to_string(),
                "external": port.external.to_string(),
                "public": port.is_public(),
                "method": port.method.to_string(),
            });
            ("port_opened", fields)
        }
        EventKind::PortLost { local, protocol: lost } => {
            ("port_lost", json!({ "protocol": protocol(*lost), "local": local.to_string() }))
        }
        EventKind::PortsRefused { router, reason } => {
            ("port_error", json!({ "router": router.to_string(), "reason": reason }))
        }
        EventKind::Tracker { url, peers } => ("tracker", json!({ "url": url, "peers": peers })),
        EventKind::TrackerFailed { url, reason } => ("tracker_error", json!({ "url": url, "reason": reason })),
        EventKind::Paused { reason, .. } => ("paused", json!({ "reason": reason })),
        EventKind::Resumed => ("resumed", json!({})),
        EventKind::Checked { pieces_have, pieces_total } => {
            ("checked", json!({ "pieces_have": pieces_have, "pieces_total": pieces_total }))
        }
        EventKind::Moved { dir } => ("moved", json!({ "dir": dir.to_string_lossy() })),
        EventKind::Bulk(news) => ("bulk", json!({ "message": news.to_string() })),
        EventKind::Removed => ("removed", json!({})),
        EventKind::Missed { events } => ("missed", json!({ "events": events })),
        EventKind::Failed { kind, reason } => ("error", json!({ "kind": failure_kind(*kind), "message": reason })),
    }
}

fn protocol(protocol: PortProtocol) -> &'static str {
    match protocol {
        PortProtocol::Tcp => "tcp",
        PortProtocol::Udp => "udp",
    }
}

fn verdict(verdict: &PathVerdict) -> Value {
    let scion = verdict.path.as_scion();
    let interfaces = scion.map(|path| path.interfaces.iter().map(ToString::to_string).collect::<Vec<_>>());
    let latency = scion.map(|path| path.latency()).filter(|latency| latency.unclaimed == 0);
    json!({
        "path": path_name(&verdict.path),
        "interfaces": interfaces.unwrap_or_default(),
        "hops": scion.map(|path| path.hop_count()),
        "mtu": scion.map(|path| path.mtu).filter(|mtu| *mtu > 0),
        "latency_ms": latency.map(|latency| latency.claimed.as_secs_f64() * 1e3),
        "choice": choice(verdict.choice),
        "reason": verdict.reason.to_string(),
    })
}

/// As `paths` names it; over plain IP, by its two ends.
pub(crate) fn path_name(path: &Path) -> String {
    match path.as_scion() {
        Some(_) => format!("{:#}", path.id()),
        None => format!("{}-{}", path.local(), path.remote()),
    }
}

fn choice(choice: Choice) -> &'static str {
    match choice {
        Choice::Chosen => "chosen",
        Choice::Standby => "standby",
        Choice::Left => "left",
    }
}

/// The entry of one path in a `progress` event. `total` is what all paths of its content move, bytes a second.
fn path_progress(path: &PathProgress, total: u64) -> Value {
    let rate = path.download_rate_bytes + path.upload_rate_bytes;
    json!({
        "peer": path.peer.to_string(),
        "path": path_name(&path.path),
        "state": path.condition.to_string(),
        "down_rate": path.download_rate_bytes,
        "up_rate": path.upload_rate_bytes,
        "downloaded": path.downloaded_bytes,
        "uploaded": path.uploaded_bytes,
        "rtt_ms": path.rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
        "lost": path.lost_packets,
        "share": if total > 0 { rate as f64 / total as f64 } else { 0.0 },
    })
}

/// The fields of a `progress` event.
pub(crate) fn progress(progress: &Progress, paths: &[PathProgress]) -> Value {
    let total = paths.iter().map(|path| path.download_rate_bytes + path.upload_rate_bytes).sum();
    json!({
        "paths": paths.iter().map(|path| path_progress(path, total)).collect::<Vec<_>>(),
        "bytes_done": progress.bytes_done,
        "bytes_total": progress.bytes_total,
        "pieces_have": progress.pieces_have,
        "pieces_total": progress.pieces_total,
        "down_rate": progress.stats.download_rate_bytes,
        "up_rate": progress.stats.upload_rate_bytes,
        "downloaded": progress.stats.downloaded_bytes,
        "uploaded": progress.stats.uploaded_bytes,
        "wasted": progress.stats.wasted_bytes,
        "peers": progress.stats.peers,
        "seeds": progress.stats.seeds,
        "paused": progress.paused,
    })
}

fn failure_kind(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Metadata => "metadata",
        FailureKind::Content => "content",
        FailureKind::Storage => "storage",
        FailureKind::Sources => "sources",
        FailureKind::Internal => "internal",
    }
}

/// What an event says to people, and whether to everybody or only to those who want to know more.
pub(crate) fn note(kind: &EventKind) -> Option<(bool, String)> {
    let (always, text) = match kind {
        EventKind::Metadata { .. } | EventKind::Checking { .. } | EventKind::Piece { .. } | EventKind::Finished => {
            return None;
        }
        EventKind::Renamed { files } => {
            let shown = files.iter().take(RENAMED_SHOWN_MAX);
            let shown: Vec<String> = shown.map(|file| format!("{} is {}", file.written, file.path.display())).collect();
            let more = files.len() - shown.len();
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            (true, format!("names that cannot be had here were changed: {}{more}", shown.join(", ")))
        }
        EventKind::Started { changed_files, .. } if changed_files.is_empty() => return None,
        EventKind::Started { changed_files, .. } => {
            (true, format!("changed since they were verified, and checked again: {}", changed_files.join(", ")))
        }
        EventKind::PieceFailed { index } => (false, format!("piece {index} failed its hash and is fetched again")),
        EventKind::SuperSeeded { uploaded_bytes } => {
            let sent = units::bytes(*uploaded_bytes);
            (true, format!("the others have a whole copy among them, for {sent} sent: shared as usual from now on"))
        }
        EventKind::LiveJoined { .. } => (false, "joined the stream".to_owned()),
        EventKind::LiveRestarted => (true, "the source began anew: what follows is a new stream".to_owned()),
        EventKind::LiveTwin { address } => {
            let text = format!(
                "somebody else broadcasts with this stream's key, as {address} has it: viewers get one stream or the \
                                other; end one of them, and give each source a --key of its own"
            );
            (true, text)
        }
        EventKind::PeerConnected { address, outgoing: true, .. } => (false, format!("connected to {address}")),
        EventKind::PeerConnected { address, .. } => (false, format!("{address} connected")),
        EventKind::PeerDisconnected { address, reason } => (false, format!("{address} is gone: {reason}")),
        EventKind::PeerUnfit { address } => (true, format!("{address}, a peer in the link, is not dialled: {UNFIT}")),
        EventKind::PeerFailed { address, reason, is_final: true } => (true, format!("peer {address}: {reason}")),
        EventKind::PeerFailed { address, reason, .. } => (true, format!("peer {address}: {reason}; it is tried again")),
        EventKind::WebSeedFailed { url, reason, is_final: true } => (true, format!("web seed {url}: {reason}")),
        EventKind::WebSeedFailed { url, reason, .. } => (true, format!("web seed {url}: {reason}; it is tried again")),
        EventKind::PeerBanned { address, reason } => (true, format!("banned {address}: {reason}")),
        EventKind::PeerSuspended { address, reason } => {
            (true, format!("{address} is left alone for some seconds: {reason}; the next time it is banned"))
        }
        EventKind::PathsChosen { .. } | EventKind::PathChanged { .. } => return None,
        EventKind::RelayFailed { reason } => {
            (true, format!("{reason}: uTP and the DHT are off until it relays datagrams"))
        }
        EventKind::Discovered { by: Discovery::Dht, peers } => (false, format!("the DHT named {peers} peers")),
        EventKind::Discovered { by: Discovery::Local, .. } => (false, "a peer in this network called out".to_owned()),
        EventKind::PortOpened(port) if port.is_public() => {
            let (local, external) = (port.local.port(), port.external);
            (false, format!("the router opened {} port {local}: it is {external} ({})", port.protocol, port.method))
        }
        EventKind::PortOpened(port) => {
            let text = format!(
                "the router opened {} port {} at {}, which is behind another router: peers outside do not reach it ({})",
                port.protocol,
                port.local.port(),
                port.external,
                port.method
            );
            (false, text)
        }
        EventKind::PortLost { local, protocol } => {
            (false, format!("the router has {protocol} port {} open no more", local.port()))
        }
        EventKind::PortsRefused { router, reason } => {
            (false, format!("the router {router} opens no port ({reason}): peers outside may not reach this one"))
        }
        EventKind::Tracker { url, peers } => (false, format!("{url} named {peers} peers")),
        EventKind::TrackerFailed { url, reason } => {
            (true, format!("tracker {url} failed and is asked again later: {reason}"))
        }
        EventKind::Paused { cause: PauseCause::Storage, reason } => {
            (true, format!("paused: {reason}; goes on when that is mended"))
        }
        EventKind::Paused { cause: PauseCause::Owner, .. } => (true, "paused".to_owned()),
        EventKind::Checked { pieces_have, pieces_total } => {
            (true, format!("verified: {pieces_have} of {pieces_total} pieces are good"))
        }
        EventKind::Moved { dir } => (true, format!("moved to {}", dir.display())),
        EventKind::Missed { events } => (true, format!("{events} events were missed: nothing final is among them")),
        EventKind::Bulk(news) => (true, news.to_string()),
        EventKind::Removed => return None,
        EventKind::Resumed => (true, "goes on".to_owned()),
        EventKind::Failed { reason, .. } => (true, format!("error: {reason}")),
    };
    Some((always, text))
}

/// What `--explain` says of an event, a line each.
pub(crate) fn explanation(kind: &EventKind) -> Vec<String> {
    match kind {
        EventKind::PathsChosen { peer, selector, trigger, verdicts } => {
            let by = selector.map_or("the peer's choice", Selector::name);
            let chosen = verdicts.iter().filter(|verdict| verdict.choice == Choice::Chosen).count();
            let head = format!("{chosen} of {} paths to {peer} chosen by {by} ({trigger}):", verdicts.len());
            let line = |(place, verdict): (usize, &PathVerdict)| {
                let overlaps = verdicts
                    .iter()
                    .enumerate()
                    .filter(|(other, verdict)| *other != place && verdict.choice == Choice::Chosen);
                let links: usize = overlaps.map(|(_, other)| verdict.path.overlap(&other.path).links).sum();
                let shared = match links {
                    0 => "shares no link with those chosen".to_owned(),
                    1 => "shares 1 link with those chosen".to_owned(),
                    links => format!("shares {links} links with those chosen"),
                };
                let (choice, id) = (choice(verdict.choice), verdict.path.id());
                format!("  {choice:7}  {id}  {}  {shared}: {}", verdict.path, verdict.reason)
            };
            std::iter::once(head).chain(verdicts.iter().enumerate().map(line)).collect()
        }
        EventKind::PathChanged { peer, path, condition, reason } => {
            vec![format!("{peer} over {} {path}: {condition}, {reason}", path.id())]
        }
        _ => Vec::new(),
    }
}
