//! `create`: makes a torrent of a file or folder.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use anabranch_content::create::{CreateOptions, Survey, create, survey};
use anabranch_content::magnet::Magnet;
use anabranch_content::metainfo::Metainfo;
use serde_json::{Value, json};

use super::show::version_name;
use super::{create_failure, create_options, real_path};
use crate::cli::CreateFlags;
use crate::exit::{Code, Failure};
use crate::output::{self, Chatter, one_line};
use crate::status::Meter;
use crate::units;

/// Bytes of a content's name in that of its torrent: file systems take 255 in all.
const NAME_BYTES_MAX: usize = 240;
/// Empty folders that are told by name.
const FOLDERS_SHOWN_MAX: usize = 5;

/// Runs the command.
pub(crate) fn run(flags: &CreateFlags, chatter: Chatter) -> Result<Code, Failure> {
    let mut options = create_options(&flags.make)?;
    options.name = flags.name.clone();
    if !flags.no_date {
        options.creation_date = Some(SystemTime::now());
        options.created_by = Some(format!("Anabranch {}", env!("CARGO_PKG_VERSION")));
    }
    let to_stdout = flags.output.as_deref().is_some_and(is_stdout);
    if to_stdout && flags.json {
        return Err(Failure::usage("`-o -` and `--json` both write to standard output: give one of them"));
    }
    real_path(&flags.path, "a file or a folder")?;
    if flags.dry_run {
        return dry_run(flags, &options, chatter);
    }
    if let Some(output) = flags.output.as_deref().filter(|_| !to_stdout) {
        refuse_overwriting(output, flags.force)?;
    }
    let mut meter = Meter::new(chatter, "hashing");
    let created = create(&flags.path, &options, &AtomicBool::new(false), |done, total| meter.show(done, total));
    meter.clear();
    let created = created.map_err(|error| create_failure(&error))?;
    let survey = &created.survey;
    tell_left_out(survey, chatter);
    flags.make.selection.tell_idle(chatter);
    if to_stdout {
        output::raw(&created.metainfo)?;
        return Ok(Code::Success);
    }
    let output = flags.output.clone().unwrap_or_else(|| default_output(&survey.name));
    refuse_overwriting(&output, flags.force)?;
    save(&output, &created.metainfo)?;
    if flags.json {
        output::line(survey_json(survey, &options, Some((&created.torrent, &output))))?;
        return Ok(Code::Success);
    }
    chatter.note(format_args!("{}: {}", output.display(), summary(survey)));
    let magnet = created.torrent.magnet();
    output::line(&magnet)?;
    tell_v1_link(&magnet, |note| chatter.note(note));
    Ok(Code::Success)
}

fn dry_run(flags: &CreateFlags, options: &CreateOptions, chatter: Chatter) -> Result<Code, Failure> {
    let survey = survey(&flags.path, options).map_err(|error| create_failure(&error))?;
    tell_left_out(&survey, chatter);
    flags.make.selection.tell_idle(chatter);
    if flags.json {
        output::line(survey_json(&survey, options, None))?;
        return Ok(Code::Success);
    }
    for entry in &survey.entries {
        let target = entry.target.iter().map(|target| format!(" -> {target}")).collect::<String>();
        output::line(format_args!(
            "{:>14}{}",
            format!("{}  ", units::bytes(entry.length)),
            one_line(&(entry.path.clone() + &target))
        ))?;
    }
    chatter.note(format_args!("{}: {}; nothing was written", survey.name, summary(&survey)));
    Ok(Code::Success)
}

fn summary(survey: &Survey) -> String {
    let files = match survey.entries.iter().any(|entry| entry.target.is_some()) {
        true => format!("{} files and links", survey.entries.len()),
        false => units::count(survey.entries.len(), "file"),
    };
    let (length, piece_length) = (units::bytes(survey.length), units::bytes(survey.piece_length.into()));
    format!("{length} in {files}, {} of {piece_length}", units::count(survey.piece_count as usize, "piece"))
}

/// What is made, or would be where there is no torrent yet.
fn survey_json(survey: &Survey, options: &CreateOptions, made: Option<(&Metainfo, &Path)>) -> Value {
    let files: Vec<Value> = survey
        .entries
        .iter()
        .map(|entry| {
            let kind = if entry.target.is_some() { "symlink" } else { "file" };
            let (path, length, executable) = (&entry.path, entry.length, entry.executable);
            json!({ "path": path, "length": length, "kind": kind, "executable": executable, "target": entry.target })
        })
        .collect();
    let mut object = json!({
        "dry_run": made.is_none(),
        "name": survey.name,
        "version": version_name(options.version),
        "size": survey.length,
        "piece_length": survey.piece_length,
        "piece_count": survey.piece_count,
        "private": options.private,
        "source": options.source,
        "trackers": options.trackers,
        "web_seeds": options.web_seeds,
        "files": files,
        "empty_folders": survey.empty_folders.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
        "excluded": survey.excluded,
    });
    if let Some((torrent, output)) = made {
        let (hashes, magnet) = (torrent.info.hashes, torrent.magnet());
        object["torrent_file"] = output.to_string_lossy().into();
        object["info_hash_v1"] = json!(hashes.v1.map(|hash| anabranch_content::hex::encode(&hash)));
        object["info_hash_v2"] = json!(hashes.v2.map(|hash| anabranch_content::hex::encode(&hash)));
        object["magnet"] = magnet.to_string().into();
        object["magnet_v1"] = json!(magnet.v1_only().map(|magnet| magnet.to_string()));
        object["magnet_v2"] = json!(magnet.v2_only().map(|magnet| magnet.to_string()));
    }
    object
}

/// Says what of a folder no torrent holds, for those who think that it does.
pub(crate) fn tell_left_out(survey: &Survey, chatter: Chatter) {
    let folders = &survey.empty_folders;
    if !folders.is_empty() {
        let shown: Vec<_> = folders.iter().take(FOLDERS_SHOWN_MAX).map(|folder| folder.display().to_string()).collect();
        let more = folders.len() - shown.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let what = if folders.len() == 1 { "empty folder is" } else { "empty folders are" };
        chatter.note(format_args!(
            "{} {what} left out, which no torrent can carry: {}{more}",
            folders.len(),
            shown.join(", ")
        ));
    }
    if survey.excluded > 0 {
        chatter.note(format_args!("left out as asked: {} files and folders", survey.excluded));
    }
    if survey.own_records > 0 {
        chatter.note(format_args!("left out: {} records of downloads by anabranch", survey.own_records));
    }
    if survey.lone_file {
        chatter.note(format_args!(
            "{} is its folder's only file, and goes without the folder: version 2 cannot tell the two apart",
            survey.name
        ));
    }
}

/// Says by which link clients find a hybrid that know one info-hash a link.
pub(crate) fn tell_v1_link(magnet: &Magnet, say: impl FnOnce(String)) {
    if let Some(v1) = magnet.v1_only() {
        say(format!("for clients that take one info-hash, such as rtorrent: {v1}"));
    }
}

/// Whether a torrent is to go to standard output.
pub(crate) fn is_stdout(output: &Path) -> bool {
    output.as_os_str() == "-"
}

fn default_output(name: &str) -> PathBuf {
    PathBuf::from(format!("{}.torrent", &name[..name.floor_char_boundary(NAME_BYTES_MAX)]))
}

/// An error where something is at `output` already, unless that is asked for.
pub(crate) fn refuse_overwriting(output: &Path, force: bool) -> Result<(), Failure> {
    if !force && output.symlink_metadata().is_ok() {
        return Err(Failure::usage(format!("{} exists; give --force to overwrite it", output.display())));
    }
    Ok(())
}

/// Writes the file whole or not at all.
pub(crate) fn save(output: &Path, bytes: &[u8]) -> Result<(), Failure> {
    super::spare_content(output, bytes)?;
    let failed = |error: std::io::Error| {
        let message =
            format!("cannot write {}: {error}; make room and the folder writable, or give another", output.display());
        Failure::new(Code::Storage, message)
    };
    // Devices and pipes are written to as they are.
    if fs::metadata(output).is_ok_and(|found| !found.is_file()) {
        return fs::write(output, bytes).map_err(failed);
    }
    // Short, whatever the length of the name that it gets.
    let partial = output.with_file_name(format!(".{}.anabranch-new", std::process::id()));
    let written = fs::File::create(&partial)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&partial, output));
    written.map_err(|error| {
        // What is half written is of no use.
        let _ = fs::remove_file(&partial);
        failed(error)
    })
}
