//! Files as `send` reads and `receive` writes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anabranch_swarm::bulk::files::{FileSource, Folder, FolderOptions, Problem, Scan, ScanError};
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
    let scan = Scan::of(paths, super::filter(selection).as_ref(), canceled);
    let scan = scan.map_err(|error| named_failure(paths, &error).unwrap_or_else(|| scan_failure(&error)))?;
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
    selection.tell_idle(chatter);
    if scan.entries() == 0 {
        return Err(Failure::input("there is nothing to send"));
    }
    Ok(Arc::new(FileSource::new(scan).map_err(Failure::input)?))
}

/// Where what cannot be sent is but a path that was named and cannot be read: no pattern leaves that out.
fn named_failure(paths: &[PathBuf], error: &ScanError) -> Option<Failure> {
    let ScanError::Problems(list, 0) = error else { return None };
    let [(path, Problem::Unreadable(error))] = &list[..] else { return None };
    let message = || format!("cannot read {}: {error}; give a file or a folder", path.display());
    paths.contains(path).then(|| Failure::input(message()))
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
