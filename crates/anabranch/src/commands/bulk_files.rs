//! Files as `send` reads and `receive` writes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anabranch_content::create::Filter;
use anabranch_swarm::bulk::files::{FileSource, Folder, FolderOptions, Scan, ScanError};
use anabranch_swarm::bulk::{Destinations, Source};

use crate::exit::{Code, Failure};
use crate::output::{Chatter, one_line};
use crate::patterns::Selection;

/// Things that are named one by one.
const NAMED_MAX: usize = 10;

/// Looks through what is to be sent.
pub(crate) fn scan(
    paths: &[PathBuf],
    selection: &Selection,
    canceled: &AtomicBool,
    chatter: Chatter,
) -> Result<Arc<dyn Source>, Failure> {
    let rules = Some(selection.clone()).filter(|rules| !rules.is_empty());
    let filter = rules.map(|rules| Filter::new(move |path, is_folder| rules.leaves_out(path, is_folder)));
    let scan = Scan::of(paths, filter.as_ref(), canceled).map_err(|error| scan_failure(&error))?;
    let (skipped, count) = scan.skipped();
    for (path, why) in skipped.iter().take(NAMED_MAX) {
        chatter.note(format_args!(
            "left out: {} {}",
            one_line(&path.display().to_string()),
            one_line(&why.to_string())
        ));
    }
    if count > NAMED_MAX {
        chatter.note(format_args!("left out: {} more, that are no files or lead out", count - NAMED_MAX));
    }
    if scan.excluded() > 0 {
        chatter.note(format_args!("left out as asked: {} files and folders", scan.excluded()));
    }
    if scan.entries() == 0 {
        return Err(Failure::input("there is nothing to send"));
    }
    Ok(Arc::new(FileSource::new(scan).map_err(Failure::input)?))
}

/// What cannot be sent, all of it.
pub(crate) fn scan_failure(error: &ScanError) -> Failure {
    match error {
        ScanError::Problems(list, more) if list.len() > 1 => {
            let lines = list.iter().take(NAMED_MAX).map(|(path, problem)| format!("{} {problem}", path.display()));
            let lines: Vec<String> = lines.collect();
            let more = list.len().saturating_sub(NAMED_MAX) + more;
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            Failure::input(format!("{}{more}: mend them or leave them out with --exclude", lines.join("; ")))
        }
        ScanError::Canceled => Failure::new(Code::Interrupted, error),
        error => Failure::input(error),
    }
}

/// Where what comes in goes.
pub(crate) fn destinations(dir: &Path, force: bool, chatter: Chatter) -> Arc<dyn Destinations> {
    let options = FolderOptions { overwrite: force, ..FolderOptions::default() };
    Arc::new(Folder::new(dir, options, move |renamed, count| {
        for (written, path) in renamed.iter().take(NAMED_MAX) {
            let (written, path) = (written.display().to_string(), path.display().to_string());
            chatter.note(format_args!("{} is called {} here", one_line(&written), one_line(&path)));
        }
        if count > NAMED_MAX {
            chatter.note(format_args!("{} more are called otherwise here", count - NAMED_MAX));
        }
    }))
}
