//! `show`: what a torrent or a link holds.

use std::fmt::Write;

use anabranch_content::info::{FileKind, Version};
use anabranch_content::magnet::Magnet;
use anabranch_content::metainfo::Metainfo;
use anabranch_ppspp::link::Link;
use anabranch_ppspp::wire::Integrity;
use serde_json::{Value, json};

use super::check_trackers;
use super::create::save;
use super::learn::{Question, learn};
use crate::choice::numbered;
use crate::cli::ShowFlags;
use crate::exit::{Code, Failure};
use crate::guard;
use crate::output::{self, Chatter, one_line};
use crate::sandbox::Plan;
use crate::source::{self, Source};
use crate::units;

/// Runs the command.
pub(crate) fn run(mut flags: Box<ShowFlags>, chatter: Chatter) -> Result<Code, Failure> {
    check_trackers(&flags.find.tracker)?;
    guard::check_proxy(&flags.session)?;
    // One object is printed, and no events.
    let json = std::mem::take(&mut flags.session.json);
    let sandbox = Plan::show(&flags).enter(chatter)?;
    let source = source::load(&flags.source)?;
    if let Source::Magnet(magnet) = &source
        && flags.offline
    {
        if flags.find.save_torrent.is_some() {
            return Err(Failure::usage(
                "a magnet link has no torrent to save: leave --offline out, and peers are asked",
            ));
        }
        let text = if json { magnet_json(magnet).to_string() } else { magnet_text(magnet) };
        output::line(text.trim_end())?;
        return Ok(Code::Success);
    }
    if let Source::Ppspp(link) = &source
        && flags.find.save_torrent.is_none()
    {
        let text = if json { link_json(link).to_string() } else { link_text(link) };
        output::line(text.trim_end())?;
        return Ok(Code::Success);
    }
    let question =
        Question { session: &flags.session, find: &flags.find, with_hashes: flags.find.save_torrent.is_some() };
    let Some(learnt) = learn(vec![source], &question, chatter)? else { return Ok(Code::Interrupted) };
    for metainfo in &learnt {
        if let Some(path) = &flags.find.save_torrent {
            sandbox.save(save, path, &metainfo.encode())?;
        }
        let text = if json { torrent_json(metainfo).to_string() } else { torrent_text(metainfo, chatter.verbose) };
        output::line(text.trim_end())?;
    }
    Ok(Code::Success)
}

/// `1`, `2` or `hybrid`, as `create --version` takes it.
pub(crate) fn version_name(version: Version) -> &'static str {
    match version {
        Version::V1 => "1",
        Version::V2 => "2",
        Version::Hybrid => "hybrid",
    }
}

/// What is printed of a torrent for programs.
pub(crate) fn torrent_json(metainfo: &Metainfo) -> Value {
    let info = &metainfo.info;
    let mut numbers = vec![None; info.files.len()];
    numbered(info).for_each(|(number, index, _)| numbers[index] = Some(number));
    let files: Vec<Value> = info
        .files
        .iter()
        .enumerate()
        .map(|(index, file)| {
            let mut entry = json!({
                "index": index,
                "number": numbers[index],
                "path": file.path.to_string_lossy(),
                "length": file.length,
                "offset": file.offset,
                "kind": match file.kind { FileKind::Regular => "file", FileKind::Pad => "pad", FileKind::Symlink { .. } => "symlink" },
                "executable": file.executable,
                "hidden": file.hidden,
            });
            if let FileKind::Symlink { target } = &file.kind {
                entry["target"] = target.to_string_lossy().into();
            }
            if let Some(root) = &file.root {
                entry["pieces_root"] = anabranch_content::hex::encode(root).into();
            }
            entry
        })
        .collect();
    json!({
        "kind": "torrent",
        "name": info.name,
        "version": version_name(info.version),
        "info_hash_v1": info.hashes.v1.map(|hash| anabranch_content::hex::encode(&hash)),
        "info_hash_v2": info.hashes.v2.map(|hash| anabranch_content::hex::encode(&hash)),
        "magnet": metainfo.magnet().to_string(),
        "magnet_v1": metainfo.magnet().v1_only().map(|magnet| magnet.to_string()),
        "magnet_v2": metainfo.magnet().v2_only().map(|magnet| magnet.to_string()),
        "size": info.content_size(),
        "piece_length": info.geometry.piece_length(),
        "piece_count": info.geometry.piece_count(),
        "private": info.private,
        "source": info.source_tag(),
        "files": files,
        "trackers": metainfo.trackers,
        "web_seeds": metainfo.web_seeds,
        "http_seeds": metainfo.http_seeds,
        "nodes": metainfo.nodes,
        "comment": metainfo.comment,
        "created_by": metainfo.created_by,
        "creation_date": metainfo.creation_date.map(|date| output::unix_seconds(date) as u64),
    })
}

/// One `name  value` line.
fn field(text: &mut String, name: &str, value: impl std::fmt::Display) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{name:<14}{}", one_line(&value.to_string()));
}

fn torrent_text(metainfo: &Metainfo, pads: bool) -> String {
    let info = &metainfo.info;
    let mut text = String::new();
    field(&mut text, "name", &info.name);
    field(&mut text, "size", format_args!("{} ({} bytes)", units::bytes(info.content_size()), info.content_size()));
    let pieces = (info.geometry.piece_count(), units::bytes(info.geometry.piece_length().into()));
    field(&mut text, "pieces", format_args!("{} of {}", pieces.0, pieces.1));
    field(&mut text, "version", version_name(info.version));
    hashes_text(&mut text, &info.hashes);
    if info.private {
        field(&mut text, "private", "yes: peers from its trackers only");
    }
    info.source_tag().iter().for_each(|tag| field(&mut text, "source", tag));
    for (tier, urls) in metainfo.trackers.iter().enumerate() {
        urls.iter().for_each(|url| field(&mut text, &format!("tracker {}", tier + 1), url));
    }
    metainfo.web_seeds.iter().chain(&metainfo.http_seeds).for_each(|url| field(&mut text, "web seed", url));
    for (name, value) in [("comment", &metainfo.comment), ("created by", &metainfo.created_by)] {
        value.iter().for_each(|value| field(&mut text, name, value));
    }
    if let Some(date) = metainfo.creation_date {
        field(&mut text, "created", date_text(output::unix_seconds(date) as u64));
    }
    field(&mut text, "magnet", metainfo.magnet());
    metainfo.magnet().v1_only().iter().for_each(|magnet| field(&mut text, "magnet v1", magnet));
    metainfo.magnet().v2_only().iter().for_each(|magnet| field(&mut text, "magnet v2", magnet));
    field(&mut text, "files", numbered(info).count());
    for file in info.files.iter().filter(|file| pads || file.kind != FileKind::Pad) {
        let mut path = file.path.display().to_string();
        match &file.kind {
            FileKind::Symlink { target } => path.push_str(&format!(" -> {}", target.display())),
            FileKind::Pad => path.push_str(" (padding)"),
            FileKind::Regular => {}
        }
        field(&mut text, &format!("{:>12}", units::bytes(file.length)), path);
    }
    text
}

fn hashes_text(text: &mut String, hashes: &anabranch_content::info::InfoHashes) {
    hashes.v1.iter().for_each(|hash| field(text, "info-hash v1", anabranch_content::hex::encode(hash)));
    hashes.v2.iter().for_each(|hash| field(text, "info-hash v2", anabranch_content::hex::encode(hash)));
}

/// UTC, of seconds since 1970.
fn date_text(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = anabranch_lab::date(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", time / 3600, time / 60 % 60, time % 60)
}

fn magnet_json(magnet: &Magnet) -> Value {
    json!({
        "kind": "magnet",
        "name": magnet.name,
        "info_hash_v1": magnet.hashes.v1.map(|hash| anabranch_content::hex::encode(&hash)),
        "info_hash_v2": magnet.hashes.v2.map(|hash| anabranch_content::hex::encode(&hash)),
        "magnet": magnet.to_string(),
        "magnet_v1": magnet.v1_only().map(|magnet| magnet.to_string()),
        "magnet_v2": magnet.v2_only().map(|magnet| magnet.to_string()),
        "trackers": magnet.trackers.iter().map(|url| vec![url]).collect::<Vec<_>>(),
        "web_seeds": magnet.web_seeds,
        "peers": magnet.peers,
        "select_only": magnet.select_only.iter().map(|range| [*range.start(), *range.end()]).collect::<Vec<_>>(),
    })
}

fn magnet_text(magnet: &Magnet) -> String {
    let mut text = String::new();
    magnet.name.iter().for_each(|name| field(&mut text, "name", name));
    hashes_text(&mut text, &magnet.hashes);
    magnet.trackers.iter().for_each(|url| field(&mut text, "tracker", url));
    magnet.web_seeds.iter().for_each(|url| field(&mut text, "web seed", url));
    magnet.peers.iter().for_each(|peer| field(&mut text, "peer", peer));
    for range in &magnet.select_only {
        field(&mut text, "only files", format_args!("{} to {}", range.start(), range.end()));
    }
    field(&mut text, "magnet", magnet);
    magnet.v1_only().iter().for_each(|magnet| field(&mut text, "magnet v1", magnet));
    magnet.v2_only().iter().for_each(|magnet| field(&mut text, "magnet v2", magnet));
    text
}

/// What protects the content of a link's swarm.
fn protection(link: &Link) -> &'static str {
    match link.params.integrity() {
        Integrity::None => "nothing",
        Integrity::MerkleTree => "a Merkle tree",
        Integrity::SignAll => "signatures of chunks",
        Integrity::UnifiedMerkleTree => "signatures of subtrees",
    }
}

fn link_json(link: &Link) -> Value {
    json!({
        "kind": "ppspp",
        "name": link.name,
        "swarm_id": anabranch_content::hex::encode(link.params.swarm_id()),
        "size": link.content_len,
        "manifest_length": link.manifest_len,
        "chunk_length": link.params.chunk_len(),
        "protection": protection(link),
        "link": link.to_string(),
        "secure": link.secure.as_ref().map(|secure| json!({ "key": secure.key, "private": secure.is_private })),
        "trackers": link.trackers,
        "peers": link.peers,
    })
}

fn link_text(link: &Link) -> String {
    let mut text = String::new();
    link.name.iter().for_each(|name| field(&mut text, "name", name));
    match link.content_len {
        Some(len) => field(&mut text, "size", format_args!("{} ({len} bytes)", units::bytes(len))),
        None => field(&mut text, "size", "not known: a live stream, or its peers tell"),
    }
    if let Some(len) = link.manifest_len {
        field(&mut text, "folder", format_args!("its list of files comes first, {len} bytes"));
    }
    link.params.chunk_len().iter().for_each(|len| field(&mut text, "chunks", format_args!("of {len} bytes")));
    field(&mut text, "protected by", protection(link));
    field(&mut text, "swarm", anabranch_content::hex::encode(link.params.swarm_id()));
    if let Some(secure) = &link.secure {
        let who = if secure.is_private { "those whom its owner allows" } else { "who proves a key" };
        field(&mut text, "secure", format_args!("for {who}, from the key {}", secure.key));
    }
    link.trackers.iter().for_each(|url| field(&mut text, "tracker", url));
    link.peers.iter().for_each(|peer| field(&mut text, "peer", peer));
    field(&mut text, "link", link);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(date_text(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date_text(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(date_text(1_735_689_599), "2024-12-31 23:59:59 UTC");
    }
}
