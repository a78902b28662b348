//! The files of a bulk transfer: looked through and read at the sender, made and verified at the receiver.
//!
//! | module | what it does |
//! | --- | --- |
//! | `scan` | finds what there is to send: files, folders, links, holes; and what cannot be sent |
//! | `source` | reads content out of many files, and notices that one changed |
//! | `plan` | a manifest's names made safe, and where each lies |
//! | `place` | looks at what is there already: what is ours and can be gone on with, what is in the way |
//! | `folder` | a folder that content is received into: kept spans, modes, times, holes |
//! | `log` | the record beside it of what was kept |
//!
//! # What is promised
//!
//! - Nothing is written outside the folder: links are never followed below it, and a link that is received leads nowhere outside of
//!   what was received. Nothing that is there is overwritten, unless the user says so.
//! - `kill -9` loses the spans that were not verified yet; a power cut, those of the last half minute, too.
//! - What was verified and then changed by others is fetched again; so is what was written since the last sync, where a sync fails.

mod convert;
mod folder;
mod log;
mod place;
mod plan;
mod scan;
mod source;
#[cfg(test)]
mod tests;

pub use folder::{Folder, FolderOptions};
pub use scan::{PROBLEMS_TOLD_MAX, Problem, Scan, ScanError, Skipped};
pub use source::FileSource;
