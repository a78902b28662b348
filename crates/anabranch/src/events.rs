//! Events as `--json` prints them, and as notes for people.

use anabranch_swarm::{EventKind, FailureKind, Progress};
use serde_json::{Value, json};

/// Name and fields of an event in JSON. `docs/cli.md` lists them: they are stable.
pub fn json(kind: &EventKind) -> (&'static str, Value) {
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
        EventKind::Finished => ("finished", json!({})),
        EventKind::PeerConnected { address, outgoing } => {
            ("peer_connected", json!({ "peer": address.to_string(), "outgoing": outgoing }))
        }
        EventKind::PeerDisconnected { address, reason } => {
            ("peer_disconnected", json!({ "peer": address.to_string(), "reason": reason }))
        }
        EventKind::PeerBanned { address, reason } => {
            ("banned", json!({ "peer": address.to_string(), "reason": reason }))
        }
        EventKind::Tracker { url, peers } => ("tracker", json!({ "url": url, "peers": peers })),
        EventKind::TrackerFailed { url, reason } => ("tracker_error", json!({ "url": url, "reason": reason })),
        EventKind::Paused { reason } => ("paused", json!({ "reason": reason })),
        EventKind::Resumed => ("resumed", json!({})),
        EventKind::Failed { kind, reason } => ("error", json!({ "kind": failure_kind(*kind), "message": reason })),
    }
}

/// The fields of a `progress` event.
pub fn progress(progress: &Progress) -> Value {
    json!({
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
        FailureKind::Internal => "internal",
    }
}

/// What an event says to people, and whether to everybody or only to those who want to know more.
pub fn note(kind: &EventKind) -> Option<(bool, String)> {
    let (always, text) = match kind {
        EventKind::Metadata { .. } | EventKind::Checking { .. } | EventKind::Piece { .. } | EventKind::Finished => {
            return None;
        }
        EventKind::Started { changed_files, .. } if changed_files.is_empty() => return None,
        EventKind::Started { changed_files, .. } => {
            (true, format!("changed since they were verified, and checked again: {}", changed_files.join(", ")))
        }
        EventKind::PieceFailed { index } => (false, format!("piece {index} failed its hash and is fetched again")),
        EventKind::PeerConnected { address, outgoing: true } => (false, format!("connected to {address}")),
        EventKind::PeerConnected { address, .. } => (false, format!("{address} connected")),
        EventKind::PeerDisconnected { address, reason } => (false, format!("{address} is gone: {reason}")),
        EventKind::PeerBanned { address, reason } => (true, format!("banned {address}: {reason}")),
        EventKind::Tracker { url, peers } => (false, format!("{url} named {peers} peers")),
        EventKind::TrackerFailed { url, reason } => {
            (true, format!("tracker {url} failed and is asked again later: {reason}"))
        }
        EventKind::Paused { reason } => (true, format!("paused: {reason}; goes on when that is mended")),
        EventKind::Resumed => (true, "goes on".to_owned()),
        EventKind::Failed { reason, .. } => (true, format!("error: {reason}")),
    };
    Some((always, text))
}
