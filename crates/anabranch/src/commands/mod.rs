//! One file a command.

pub(crate) mod address;
mod bulk_files;
pub(crate) mod create;
pub(crate) mod daemon;
pub(crate) mod demo;
mod dry_run;
pub(crate) mod edit;
pub(crate) mod generate;
pub(crate) mod get;
pub(crate) mod keys;
pub(crate) mod lab;
pub(crate) mod learn;
pub(crate) mod live;
pub(crate) mod net;
pub(crate) mod paths;
pub(crate) mod ping;
pub(crate) mod play;
pub(crate) mod receipt;
pub(crate) mod receive;
pub(crate) mod remote;
pub(crate) mod send;
pub(crate) mod share;
pub(crate) mod show;
pub(crate) mod traceroute;
pub(crate) mod tracker;
pub(crate) mod verify;

use std::io::Read;
use std::path::{Path, PathBuf};

use anabranch_content::create::{CreateError, CreateOptions, Filter};
use anabranch_content::info::Info;
use anabranch_content::metainfo::is_web_seed;
use anabranch_content::metainfo::limits::URLS_MAX;

use crate::cli::MakeFlags;
use crate::exit::{Code, Failure};
use crate::patterns::Selection;

/// How a torrent is made, as the flags say.
fn create_options(flags: &MakeFlags) -> Result<CreateOptions, Failure> {
    let piece_length = flags.piece_length.map(|size| {
        u32::try_from(size.0)
            .map_err(|_| Failure::usage("`--piece-length` must be a power of two from 16KiB to 128MiB"))
    });
    check_web_seeds(&flags.web_seed)?;
    Ok(CreateOptions {
        version: flags.version.0,
        piece_length: piece_length.transpose()?,
        trackers: tiers("tracker", &flags.tracker)?,
        private: flags.private,
        comment: flags.comment.clone(),
        source: flags.source.clone(),
        times: flags.times,
        web_seeds: flags.web_seed.clone(),
        filter: filter(&flags.selection),
        ..CreateOptions::default()
    })
}

/// What is left out of folders, as the flags say.
fn filter(selection: &Selection) -> Option<Filter> {
    let rules = Some(selection.clone()).filter(|rules| !rules.is_empty());
    rules.map(|rules| Filter::new(move |path, is_folder| rules.leaves_out(path, is_folder)))
}

/// Trackers by tier, as a flag has them: one tier each time it is given, its trackers with commas between them. They are tried in
/// the order given.
fn tiers(flag: &str, values: &[String]) -> Result<Vec<Vec<String>>, Failure> {
    let tiers: Vec<Vec<String>> = values.iter().map(|value| tier(value)).collect();
    if tiers.iter().map(Vec::len).sum::<usize>() > URLS_MAX {
        return Err(Failure::usage(format!("more than {URLS_MAX} of `--{flag}` are more than clients take")));
    }
    for url in tiers.iter().flatten() {
        check_tracker(flag, url)?;
    }
    Ok(tiers)
}

/// A comma may stand in a URL, too: only one that another URL follows is between two.
fn tier(value: &str) -> Vec<String> {
    let mut urls: Vec<String> = Vec::new();
    for part in value.split(',') {
        match urls.last_mut() {
            Some(url) if !part.contains("://") => *url = format!("{url},{part}"),
            _ => urls.push(part.to_owned()),
        }
    }
    urls
}

/// A mistyped tracker would only show when nobody finds the content.
fn check_tracker(flag: &str, url: &str) -> Result<(), Failure> {
    let parsed = url.parse::<anabranch_bittorrent::tracker::TrackerUrl>();
    parsed.map(drop).map_err(|error| Failure::usage(format!("`--{flag} {url}` cannot be used: {error}")))
}

fn check_trackers(urls: &[String]) -> Result<(), Failure> {
    urls.iter().try_for_each(|url| check_tracker("tracker", url))
}

fn check_web_seeds(urls: &[String]) -> Result<(), Failure> {
    if urls.len() > URLS_MAX {
        return Err(Failure::usage(format!("more than {URLS_MAX} of `--web-seed` are more than clients take")));
    }
    match urls.iter().find(|url| !is_web_seed(url)) {
        Some(url) => Err(Failure::usage(format!(
            "`--web-seed {url}` cannot be used: write http:// or https://, a host and a path"
        ))),
        None => Ok(()),
    }
}

fn create_failure(error: &CreateError) -> Failure {
    let code = match error {
        CreateError::BadPieceLength { .. } | CreateError::TooManyPieces { .. } | CreateError::BadName { .. } => {
            Code::Usage
        }
        CreateError::Canceled => Code::Interrupted,
        _ => Code::Input,
    };
    let details = match error {
        CreateError::Rejected(rejections) if rejections.list.len() > 1 => {
            let lines = rejections.list.iter().map(|(path, rejection)| format!("{} {rejection}", path.display()));
            let more = (rejections.more > 0).then(|| format!("and {} more", rejections.more));
            lines.chain(more).collect()
        }
        _ => Vec::new(),
    };
    let mut failure = Failure::new(code, error);
    failure.details = details;
    failure
}

/// The path that was named, without links; or why nothing can be made of it.
fn real_path(path: &Path, wanted: &str) -> Result<PathBuf, Failure> {
    path.canonicalize()
        .map_err(|error| Failure::input(format!("cannot read {}: {error}; give {wanted}", path.display())))
}

/// The first file that is not below `dir` with the length it should have.
fn first_misfit(info: &Info, dir: &Path) -> Option<String> {
    let fits =
        |path: &Path, length: u64| std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == length);
    info.regular_files()
        .find(|(_, file)| !fits(&dir.join(&file.path), file.length))
        .map(|(_, file)| file.path.display().to_string())
}

/// A torrent replaces torrents, and nothing else, whatever was forced: `create photo.jpg -o photo.jpg -f` would cost the photo.
fn spare_content(output: &Path, bytes: &[u8]) -> Result<(), Failure> {
    // Bencode: a dictionary, whose first key's length follows.
    let is_torrent = |bytes: &[u8]| matches!(bytes, [b'd', b'0'..=b'9', ..]);
    let mut head = Vec::new();
    let found = std::fs::metadata(output).is_ok_and(|found| found.is_file())
        && std::fs::File::open(output).and_then(|file| file.take(2).read_to_end(&mut head)).is_ok();
    if found && !head.is_empty() && is_torrent(bytes) && !is_torrent(&head) {
        let message = format!("{} exists and is no torrent: it is left as it is; give another name", output.display());
        return Err(Failure::usage(message));
    }
    Ok(())
}
