//! One file a command.

pub mod address;
pub mod create;
pub mod demo;
pub mod generate;
pub mod get;
pub mod net;
pub mod paths;
pub mod ping;
pub mod share;
pub mod show;
pub mod traceroute;
pub mod tracker;
pub mod verify;

use std::io::Read;
use std::path::Path;

use anabranch_content::create::{CreateError, CreateOptions};
use anabranch_content::info::Info;
use anabranch_content::metainfo::limits::URLS_MAX;

use crate::cli::MakeFlags;
use crate::exit::{Code, Failure};

/// How a torrent is made, as the flags say. Each tracker is a tier of its own: they are tried in the order given.
fn create_options(flags: &MakeFlags) -> Result<CreateOptions, Failure> {
    let piece_length = flags.piece_length.map(|size| {
        u32::try_from(size.0)
            .map_err(|_| Failure::usage("`--piece-length` must be a power of two from 16KiB to 128MiB"))
    });
    if flags.tracker.len() > URLS_MAX {
        return Err(Failure::usage(format!("more than {URLS_MAX} of `--tracker` are more than clients take")));
    }
    check_trackers(&flags.tracker)?;
    Ok(CreateOptions {
        version: flags.version.0,
        piece_length: piece_length.transpose()?,
        trackers: flags.tracker.iter().map(|url| vec![url.clone()]).collect(),
        private: flags.private,
        comment: flags.comment.clone(),
        ..CreateOptions::default()
    })
}

/// A mistyped tracker would only show when nobody finds the content.
fn check_trackers(urls: &[String]) -> Result<(), Failure> {
    urls.iter().try_for_each(|url| {
        let parsed = url.parse::<anabranch_bittorrent::tracker::TrackerUrl>();
        parsed.map(drop).map_err(|error| Failure::usage(format!("`--tracker {url}` cannot be used: {error}")))
    })
}

fn create_failure(error: &CreateError) -> Failure {
    let code = match error {
        CreateError::BadPieceLength { .. } | CreateError::TooManyPieces { .. } | CreateError::BadName { .. } => {
            Code::Usage
        }
        CreateError::Canceled => Code::Interrupted,
        _ => Code::Input,
    };
    Failure::new(code, error)
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
