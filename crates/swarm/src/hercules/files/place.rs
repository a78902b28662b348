//! What is in a manifest's places before anything is written there.
//!
//! A file of the length and time that the manifest has may be what comes, from a transfer that ended without the sender hearing of
//! it, or a copy: whatever journal there is, its bytes are compared. Any other is somebody's without a journal of this very
//! transfer: refused, unless the user says that it may be overwritten. With one, a file is ours if it looks as we left it: finished,
//! or with a time at which we wrote. One that was changed since is made anew if anything of it had been verified, and otherwise is
//! somebody's again.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use anabranch_content::storage::{Below, data_runs};
use anabranch_hercules::wire::manifest::EXTENTS_MAX;

use super::plan::{Kind, Plan};

/// Nothing is there.
pub(super) const ABSENT: u8 = 0;
/// It is there, and ours.
pub(super) const MADE: u8 = 1;
/// It was ours and was changed since, or may be overwritten: it goes before the first write.
pub(super) const STALE: u8 = 2;
/// It is there with all that it is to be.
pub(super) const DONE: u8 = 3;
/// It is there, with the length and time that it is to have: whether with the bytes too is to be seen.
pub(super) const ALIKE: u8 = 4;

/// Names that a refusal tells.
const TOLD_MAX: usize = 3;
/// What file systems give out at once.
const BLOCK_LEN: u64 = 4096;
const STAT_BLOCK_LEN: u64 = 512;
/// Bytes of a hole's place that are read at once.
const READ_LEN: u64 = 1 << 20;

/// What is known from before.
pub(super) struct Before<'a> {
    /// There is a journal of this transfer: when it says that files were written.
    pub leases: Option<&'a [(i64, i64)]>,
    /// Whether anything of an entry's node was verified.
    pub has_kept: &'a dyn Fn(u32) -> bool,
    /// The user wants files to be overwritten.
    pub overwrite: bool,
}

impl Before<'_> {
    /// Whether we wrote at this time.
    fn is_leased(&self, seconds: i64, ns: i64) -> bool {
        let ns = seconds.saturating_mul(1_000_000_000).saturating_add(ns);
        self.leases.is_some_and(|leases| leases.iter().any(|(from, until)| (*from..=*until).contains(&ns)))
    }
}

/// What was found.
pub(super) struct Found {
    /// One a node.
    pub states: Vec<u8>,
    /// Bytes that are on the disk already, in blocks.
    pub taken_bytes: u64,
    /// Nodes to be made.
    pub absent: u64,
}

/// Looks at the places of all nodes. Where a folder is not there, nothing below it is looked at.
pub(super) fn look(plan: &Plan, below: &Below, before: &Before<'_>) -> Result<Found, String> {
    let mut found = Found { states: vec![ABSENT; plan.nodes.len()], taken_bytes: 0, absent: 0 };
    let (mut different, mut in_the_way) = (Vec::new(), Vec::new());
    let data = OnceCell::new();
    for number in 0..plan.nodes.len() as u32 {
        let node = &plan.nodes[number as usize];
        let above = plan.parent(number).is_none_or(|parent| found.states[parent as usize] != ABSENT);
        let meta = if above { Some(below.look(&plan.path(number))) } else { None };
        let meta = match meta {
            None => {
                found.absent += 1;
                continue;
            }
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                found.absent += 1;
                continue;
            }
            Some(Err(error)) => return Err(format!("{} cannot be looked at: {error}", plan.path(number).display())),
            Some(Ok(meta)) => meta,
        };
        let state = match node.kind {
            Kind::Implied | Kind::Folder if meta.is_dir() => MADE,
            Kind::Link if meta.is_symlink() && leads_there(plan, below, number) => DONE,
            Kind::File { len, .. } if meta.is_file() => {
                let modified = (meta.mtime(), u32::try_from(meta.mtime_nsec()).unwrap_or(0));
                let in_lease = before.is_leased(meta.mtime(), meta.mtime_nsec());
                let is_finished = modified == node.modified && meta.len() == len;
                // Whoever else put it there did so at another time, whatever time it claims for itself.
                let was_finished =
                    is_finished && ((before.has_kept)(number) || before.is_leased(meta.ctime(), meta.ctime_nsec()));
                let is_ours = before.leases.is_some() && meta.len() == len && (in_lease || was_finished);
                let is_empty = len == 0 && meta.len() == 0;
                if is_ours || is_empty {
                    found.taken_bytes += meta.blocks() * STAT_BLOCK_LEN;
                    MADE
                } else if is_finished && has_holes(plan, below, number, &data) {
                    found.taken_bytes += meta.blocks() * STAT_BLOCK_LEN;
                    ALIKE
                } else if before.overwrite || before.leases.is_some() && ((before.has_kept)(number) || in_lease) {
                    found.taken_bytes += meta.blocks() * STAT_BLOCK_LEN;
                    STALE
                } else {
                    different.push(number);
                    continue;
                }
            }
            _ => {
                in_the_way.push(number);
                continue;
            }
        };
        found.states[number as usize] = state;
    }
    refuse(plan, &in_the_way, "something else is in the place of", "move that away or choose another folder (-o)")?;
    let remedy = "move it away, choose another folder (-o), or overwrite it (--force)";
    refuse(plan, &different, "another file is in the place of", remedy)?;
    Ok(found)
}

/// Whether a file has zeros wherever it is to have a hole: nobody sends hashes of those. `data`: where files with holes have data.
fn has_holes(plan: &Plan, below: &Below, number: u32, data: &OnceCell<HashMap<u32, Vec<Range<u64>>>>) -> bool {
    let Kind::File { len, dense: false } = plan.nodes[number as usize].kind else { return true };
    let data = data.get_or_init(|| {
        let mut data = HashMap::<u32, Vec<Range<u64>>>::new();
        for piece in plan.layout.pieces(0..plan.layout.content_len()) {
            let node = plan.node_of(piece.entry);
            if matches!(plan.nodes[node as usize].kind, Kind::File { dense: false, .. }) {
                data.entry(node).or_default().push(piece.file_offset..piece.file_offset + piece.len);
            }
        }
        data
    });
    let wanted = data.get(&number).map_or(&[][..], Vec::as_slice);
    let look = || -> io::Result<bool> {
        let file = below.read(&plan.path(number))?;
        let mut scratch = Vec::new();
        for run in data_runs(&file, len, EXTENTS_MAX)? {
            let mut at = run.start;
            while at < run.end {
                let next = wanted.get(wanted.partition_point(|data| data.end <= at));
                if let Some(data) = next.filter(|data| data.start <= at) {
                    at = data.end;
                    continue;
                }
                let end = next.map_or(run.end, |data| data.start.min(run.end)).min(at + READ_LEN);
                scratch.resize((end - at) as usize, 0);
                file.read_exact_at(&mut scratch, at)?;
                if scratch.iter().any(|byte| *byte != 0) {
                    return Ok(false);
                }
                at = end;
            }
        }
        Ok(true)
    };
    look().unwrap_or(false)
}

/// An error where the file system has not enough room for what is still to come.
pub(super) fn check_room(plan: &Plan, below: &Below, found: &Found) -> Result<(), String> {
    let Ok((free, inodes)) = below.free() else { return Ok(()) };
    let mut needed = 0u64;
    for node in &plan.nodes {
        if let Kind::File { len, dense: true } = node.kind {
            needed = needed.saturating_add(len.next_multiple_of(BLOCK_LEN));
        }
    }
    // Files with holes take at least their data.
    needed = needed.max(plan.layout.content_len()).saturating_sub(found.taken_bytes);
    if needed > free {
        return Err(format!(
            "the disk is full: {needed} bytes are needed and {free} are free; free some space or choose another folder (-o)"
        ));
    }
    match inodes.filter(|inodes| *inodes < found.absent) {
        Some(free) => Err(format!(
            "the disk is full: {} files and folders are to be made, and the file system has room for {free}; delete some files or \
             choose another folder (-o)",
            found.absent
        )),
        None => Ok(()),
    }
}

fn leads_there(plan: &Plan, below: &Below, link: u32) -> bool {
    let found = below.read_link(&plan.path(link));
    let wanted = plan.targets.get(&link);
    found.is_ok_and(|found| wanted.is_some_and(|wanted| found.as_os_str().as_bytes() == wanted))
}

fn refuse(plan: &Plan, nodes: &[u32], what: &str, remedy: &str) -> Result<(), String> {
    if nodes.is_empty() {
        return Ok(());
    }
    let told: Vec<PathBuf> = nodes.iter().take(TOLD_MAX).map(|node| plan.path(*node)).collect();
    let told: Vec<String> = told.iter().map(|path| path.display().to_string()).collect();
    let more = nodes.len().saturating_sub(TOLD_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Err(format!("{what} {}{more}; {remedy}", told.join(", ")))
}
