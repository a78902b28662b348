//! `verify`: checks files against a torrent, or one file against a link of PPSPP.

use std::io::ErrorKind;
use std::sync::atomic::AtomicBool;

use anabranch_content::bitfield::Bitfield;
use anabranch_content::info::FileKind;
use anabranch_content::storage::naming;
use anabranch_content::verify::{FileState, Report, verify};
use anabranch_ppspp::link::Link;
use anabranch_swarm::ppspp;
use serde_json::json;

use crate::cli::VerifyFlags;
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter, one_line};
use crate::source;
use crate::status::Meter;
use crate::units;

/// Ranges of bad pieces in the text form; the JSON form has all.
const RANGES_SHOWN_MAX: usize = 20;

/// Runs the command.
pub(crate) fn run(flags: &VerifyFlags, chatter: Chatter) -> Result<Code, Failure> {
    if let Some(link) = source::link(flags.torrent.as_os_str())? {
        return run_link(&link, flags, chatter);
    }
    let mut metainfo = source::torrent(&flags.torrent)?;
    if !flags.dir.is_dir() {
        let message =
            format!("{} is not a folder; give the folder that holds {}", flags.dir.display(), metainfo.info.name);
        return Err(Failure::input(message));
    }
    metainfo.info = naming::for_reading(&metainfo.info, &flags.dir);
    let mut meter = Meter::new(chatter, "verifying");
    let report = verify(&metainfo.info, &metainfo.piece_layers, &flags.dir, &AtomicBool::new(false), |done, total| {
        meter.show(done, total);
    });
    meter.clear();
    let report = report.map_err(Failure::input)?;
    let bad = bad_ranges(&report.pieces);
    if flags.json {
        output::line(json(&metainfo.info, &report, &bad))?;
    } else if chatter.quiet && !report.is_complete() {
        let (good, total) = (report.pieces.count(), report.pieces.len());
        let message =
            format!("{}: {good} of {total} pieces are good; without --quiet, `verify` says which", metainfo.info.name);
        return Err(Failure::new(Code::Incomplete, message));
    } else if !chatter.quiet {
        output::line(text(&metainfo.info, &report, &bad, chatter).trim_end())?;
    }
    if report.is_complete() {
        return Ok(Code::Success);
    }
    if report
        .files
        .iter()
        .zip(&metainfo.info.files)
        .all(|(found, file)| !file.is_regular() || found.state == FileState::Missing)
    {
        chatter.note(format_args!(
            "nothing of {} is in {}: give the folder above it",
            metainfo.info.name,
            flags.dir.display()
        ));
    }
    Ok(Code::Incomplete)
}

/// A link has one hash of its file: it tells whether all of it is right, and no more.
fn run_link(link: &Link, flags: &VerifyFlags, chatter: Chatter) -> Result<Code, Failure> {
    let name = ppspp::file_name(link);
    let is_folder = link.manifest_len.is_some();
    let below = flags.dir.join(&name);
    let path = match flags.dir.is_dir() {
        true if !is_folder || below.is_dir() => below,
        _ => flags.dir.clone(),
    };
    let actual = match std::fs::metadata(&path) {
        Ok(meta) if meta.is_dir() != is_folder => Err(FileState::WrongKind),
        // What is in a folder is compared as a whole.
        Ok(_) if is_folder => Ok(link.content_len.unwrap_or(0)),
        Ok(meta) => Ok(meta.len()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(FileState::Missing),
        Err(error) => Err(FileState::Unreadable(error.kind())),
    };
    let state = match (actual, link.content_len) {
        (Err(state), _) => state,
        (Ok(actual), Some(len)) if actual < len => FileState::Short { actual },
        (Ok(actual), Some(len)) if actual > len => FileState::Long { actual },
        _ => {
            let mut meter = Meter::new(chatter, "verifying");
            let shown = |done, total| meter.show(done, total);
            let found = ppspp::is_named_by(link, &path, &AtomicBool::new(false), shown);
            meter.clear();
            match found.map_err(Failure::input)? {
                Some(true) => FileState::Complete,
                Some(false) => FileState::Damaged,
                None => {
                    let message = format!(
                        "{name} is a live stream, or nothing protects it: its link has no hash that a file could be checked against"
                    );
                    return Err(Failure::input(message));
                }
            }
        }
    };
    if is_folder && state == FileState::Damaged {
        chatter.note("a folder is compared as a whole: with a file more, or less, or otherwise, it is another");
    }
    let len = link.content_len.or(actual.ok()).unwrap_or(0);
    let is_complete = state == FileState::Complete;
    if flags.json {
        let (state, detail) = state_name(state);
        let file = json!({ "path": path.to_string_lossy(), "length": len, "state": state, "detail": detail });
        let id = anabranch_content::hex::encode(link.params.swarm_id());
        output::line(json!({ "name": name, "link": id, "complete": is_complete, "files": [file] }))?;
    } else if !chatter.quiet || !is_complete {
        let line = format!(
            "{:<10}  {}{}",
            state_name(state).0.replace('_', " "),
            one_line(&path.display().to_string()),
            detail_of(state, len)
        );
        if chatter.quiet {
            return Err(Failure::new(Code::Incomplete, line));
        }
        output::line(line)?;
    }
    Ok(if is_complete { Code::Success } else { Code::Incomplete })
}

/// First and last piece of each run of bad ones.
fn bad_ranges(good: &Bitfield) -> Vec<[u32; 2]> {
    let mut ranges: Vec<[u32; 2]> = Vec::new();
    for piece in good.iter_zeros() {
        match ranges.last_mut() {
            Some([_, last]) if *last + 1 == piece => *last = piece,
            _ => ranges.push([piece, piece]),
        }
    }
    ranges
}

/// A state's name in JSON and text, and what it says beside that.
fn state_name(state: FileState) -> (&'static str, Option<String>) {
    let has = |actual| Some(format!("has {actual} bytes"));
    match state {
        FileState::Complete => ("complete", None),
        FileState::Damaged => ("damaged", None),
        FileState::Missing => ("missing", None),
        FileState::Short { actual } => ("short", has(actual)),
        FileState::Long { actual } => ("long", has(actual)),
        FileState::WrongKind => ("wrong_kind", None),
        FileState::Unreadable(kind) => ("unreadable", Some(kind.to_string())),
    }
}

/// What the text form says of a file of so many bytes after its name.
fn detail_of(state: FileState, length: u64) -> String {
    let wanted = match state {
        FileState::Short { .. } | FileState::Long { .. } => format!(" of {length}"),
        _ => String::new(),
    };
    state_name(state).1.map_or(String::new(), |detail| format!(" ({detail}{wanted})"))
}

fn json(info: &anabranch_content::info::Info, report: &Report, bad: &[[u32; 2]]) -> serde_json::Value {
    let files = info.files.iter().zip(&report.files).filter(|(file, _)| file.kind != FileKind::Pad);
    let files: Vec<_> = files
        .map(|(file, found)| {
            let (state, detail) = state_name(found.state);
            json!({
                "path": file.path.to_string_lossy(),
                "length": file.length,
                "state": state,
                "detail": detail,
                "bytes_good": found.bytes_good,
            })
        })
        .collect();
    json!({
        "name": info.name,
        "torrent": source::hash_name(&info.hashes),
        "complete": report.is_complete(),
        "pieces_good": report.pieces.count(),
        "pieces_total": report.pieces.len(),
        "bad_pieces": bad,
        "files": files,
    })
}

fn text(info: &anabranch_content::info::Info, report: &Report, bad: &[[u32; 2]], chatter: Chatter) -> String {
    let mut lines = Vec::new();
    let files = info.files.iter().zip(&report.files);
    for (file, found) in files.filter(|(file, _)| chatter.verbose || file.kind != FileKind::Pad) {
        let (state, _) = state_name(found.state);
        let detail = detail_of(found.state, file.length);
        let percent = units::percent(found.bytes_good, file.length);
        let percent = if file.length == 0 && found.state != FileState::Complete { 0.0 } else { percent };
        lines.push(format!(
            "{:<10} {percent:>5.1} %  {}{detail}",
            state.replace('_', " "),
            one_line(&file.path.display().to_string())
        ));
    }
    if !bad.is_empty() {
        let shown = bad.iter().take(RANGES_SHOWN_MAX);
        let shown =
            shown.map(|[first, last]| if first == last { first.to_string() } else { format!("{first}-{last}") });
        let more = bad.len().saturating_sub(RANGES_SHOWN_MAX);
        let more = if more > 0 { format!(" and {more} ranges more") } else { String::new() };
        lines.push(format!("bad pieces: {}{more}", shown.collect::<Vec<_>>().join(" ")));
    }
    let (good, total) = (report.pieces.count(), report.pieces.len());
    let verdict = if report.is_complete() { "complete" } else { "not complete" };
    lines.push(format!("{}: {verdict}, {good} of {total} pieces are good", one_line(&info.name)));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_compared_and_errors_are_not() {
        assert_eq!(detail_of(FileState::Short { actual: 3 }, 10), " (has 3 bytes of 10)");
        assert_eq!(detail_of(FileState::Long { actual: 11 }, 10), " (has 11 bytes of 10)");
        let kind = std::io::ErrorKind::PermissionDenied;
        assert_eq!(detail_of(FileState::Unreadable(kind), 10), " (permission denied)");
        assert_eq!(detail_of(FileState::Complete, 10), "");
    }

    #[test]
    fn runs_of_bad_pieces_are_ranges() {
        let mut good = Bitfield::full(8);
        for piece in [0, 3, 4, 5, 7] {
            good.clear(piece);
        }
        assert_eq!(bad_ranges(&good), [[0, 0], [3, 5], [7, 7]]);
        assert!(bad_ranges(&Bitfield::full(3)).is_empty());
    }
}
