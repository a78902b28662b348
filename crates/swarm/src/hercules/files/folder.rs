//! A folder that content is received into.
//!
//! A file that one write brings whole is made, written, given its time and closed: four calls, and it is never looked at again.
//! Longer ones, and such with holes, are brought to their length first, and get mode and time at the end; so do folders, the
//! deepest first. Links come last: while bytes are written none of them is there.
//!
//! Until then files can be written to by their owner alone beyond what their mode says. Set-user-ID, set-group-ID and sticky bits are
//! never taken from a stranger.

use std::collections::HashMap;
use std::fs::{File, FileTimes, Permissions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anabranch_content::storage::span_journal::{Identity, Journal, Record, hash_records};
use anabranch_content::storage::{Below, CHECKPOINT_INTERVAL, Places, Preallocate, Runs, boot_id, data_runs, reserve};
use anabranch_hercules::wire::manifest::{EXTENTS_MAX, Piece};
use anabranch_hercules::wire::receipt::Receipt;
use anabranch_hercules::{ChunkSet, tree};

use super::super::content::{Destination, DestinationError, Destinations, Offered, Refusal};
use super::convert::system_time;
use super::log::{Log, begin_journal, journal_name, other_journals, read_journal};
use super::place::{self, ABSENT, ALIKE, Before, DONE, MADE, STALE};
use super::plan::{Kind, Plan};
use crate::events::Placed;

/// Files that are synced one by one; with more of them the whole file system is, in one call.
const SYNCED_ALONE_MAX: usize = 64;
/// No run of the machine: what counts for it is what is on the disk.
const NO_BOOT: [u8; 16] = [0; 16];
/// Bytes copied at once.
const COPY_LEN: usize = 1 << 20;
/// What errors call the journal.
const RECORD: &str = "the record of what was received";
/// A file's mode while it is being made.
const OWNER_WRITES: u32 = 0o200;

/// How a folder takes content.
#[derive(Clone, Debug, Default)]
pub struct FolderOptions {
    /// Files that are there are overwritten.
    pub overwrite: bool,
    /// How files get their space.
    pub preallocate: Preallocate,
}

/// Told of names that are others here: as written, and as they are, and of how many these are the first.
type OnRenamed = Box<dyn Fn(&[(PathBuf, PathBuf)], usize) + Send + Sync>;

/// Receives everything that is offered into one folder.
pub struct Folder {
    path: PathBuf,
    options: FolderOptions,
    told: OnRenamed,
}

impl Folder {
    /// Into `path`, which is made where it is missing. `renamed` is told of names that are others here.
    pub fn new(
        path: impl Into<PathBuf>,
        options: FolderOptions,
        renamed: impl Fn(&[(PathBuf, PathBuf)], usize) + Send + Sync + 'static,
    ) -> Self {
        Self { path: path.into(), options, told: Box::new(renamed) }
    }
}

impl Destinations for Folder {
    fn open(&self, offered: Offered) -> Result<Arc<dyn Destination>, Refusal> {
        let received = Received::open(&self.path, &self.options, offered).map_err(Refusal)?;
        let (renamed, count) = &received.plan.renamed;
        if *count > 0 {
            (self.told)(renamed, *count);
        }
        Ok(Arc::new(received))
    }
}

/// What is being received.
#[derive(Debug)]
pub(super) struct Received {
    below: Below,
    plan: Plan,
    options: FolderOptions,
    kept: ChunkSet,
    claimed: ChunkSet,
    /// What the spans of `kept` had for hashes; each is asked for once.
    hashes: Mutex<HashMap<u64, [u8; 32]>>,
    /// One a node.
    states: Vec<AtomicU8>,
    runs: Runs,
    /// Held while a file that several writes fill is being made.
    making: Mutex<()>,
    /// What was written to since the last sync.
    dirty: Mutex<Dirty>,
    journal: Mutex<Log>,
    journal_name: PathBuf,
    /// Held while syncing.
    syncing: Mutex<Instant>,
    _places: Places,
}

#[derive(Debug, Default)]
struct Dirty {
    nodes: Vec<u32>,
    /// More than are counted.
    many: bool,
}

impl Dirty {
    fn note(&mut self, node: u32) {
        if self.many || self.nodes.last() == Some(&node) || self.nodes.contains(&node) {
            return;
        }
        self.nodes.push(node);
        if self.nodes.len() > SYNCED_ALONE_MAX {
            *self = Self { nodes: Vec::new(), many: true };
        }
    }
}

impl Received {
    pub(super) fn open(folder: &Path, options: &FolderOptions, offered: Offered) -> Result<Self, String> {
        let at_folder = |error: io::Error| {
            let what = match error.raw_os_error() {
                Some(libc::EROFS) => "the file system is read-only; make it writable or choose another folder (-o)",
                Some(libc::EACCES | libc::EPERM) => "allow writing there or choose another folder (-o)",
                Some(libc::ENOSPC | libc::EDQUOT) => "the disk is full; free some space",
                _ => "choose another folder (-o)",
            };
            format!("nothing can be received into the folder: {error}; {what}")
        };
        std::fs::create_dir_all(folder).map_err(at_folder)?;
        let below = Below::open(folder).map_err(at_folder)?;
        let plan = Plan::new(offered.entries, below.path()).map_err(|error| error.to_string())?;
        let content_len = plan.layout.content_len();
        if content_len != offered.offer.content_len {
            return Err("what is offered has another length than its files".to_owned());
        }
        let tops = plan.tops();
        let names: Vec<&Path> = tops.iter().map(PathBuf::as_path).collect();
        let places = Places::claim(below.path(), &names).map_err(|error| match error.needs_a_choice() {
            true => {
                "something else is being received to the same place; wait for its end, or choose another folder (-o)"
                    .to_owned()
            }
            false => at_folder(error.source),
        })?;
        let identity =
            Identity { manifest: offered.offer.manifest_hash, key: *offered.key.as_bytes(), boot: boot_id() };
        let journal_name = journal_name(&tops, &identity);
        let before = read_journal(&below, &journal_name, &identity);
        let spans = tree::span_count(content_len);
        let (kept, on_disk) = kept_before(before.as_ref(), &identity, spans);
        let pieces = |span| plan.layout.pieces(tree::span_bytes(content_len, span));
        let mut has_kept = vec![false; plan.nodes.len()];
        for run in kept.runs(0..spans).collect::<Vec<_>>() {
            for piece in run.flat_map(pieces) {
                has_kept[plan.node_of(piece.entry) as usize] = true;
            }
        }
        let leases = before.as_ref().map(Journal::leases);
        let known = Before {
            leases: leases.as_deref(),
            has_kept: &|node| has_kept[node as usize],
            overwrite: options.overwrite,
        };
        let others = other_journals(&below, &journal_name, &tops);
        let found = place::look(&plan, &below, &known).map_err(|error| match others.is_empty() {
            true => error,
            false => {
                format!("{error}; an unfinished transfer of something else, or of an earlier state of it, is there")
            }
        })?;
        place::check_room(&plan, &below, &found)?;
        // What was changed since, or is gone, comes again.
        let is_in = |piece: Piece, states: &[u8]| states.contains(&found.states[plan.node_of(piece.entry) as usize]);
        let runs: Vec<_> = kept.runs(0..spans).collect();
        let (mut believed, mut claimed) = (ChunkSet::new(spans), ChunkSet::new(spans));
        for span in runs.into_iter().flatten().filter(|span| pieces(*span).all(|piece| is_in(piece, &[MADE]))) {
            believed.insert(span);
        }
        if found.states.contains(&ALIKE) {
            for span in (0..spans).filter(|span| !believed.contains(*span)) {
                if pieces(span).all(|piece| is_in(piece, &[ALIKE])) {
                    claimed.insert(span);
                }
            }
        }
        let leases = leases.unwrap_or_default();
        let mut hashes = before.as_ref().map(Journal::hashes).unwrap_or_default();
        drop(before);
        hashes.retain(|span, _| believed.contains(*span));
        let log = begin_journal(&below, &journal_name, &identity, (&believed, &hashes), &on_disk, &leases);
        let log = log.map_err(at_folder)?;
        for other in others.iter().filter(|_| options.overwrite) {
            // What it was about is overwritten now. Left behind, it is in nobody's way.
            let _ = below.unlink(other);
        }
        let dirty = Dirty { nodes: Vec::new(), many: !believed.is_empty() };
        Ok(Self {
            below,
            options: options.clone(),
            kept: believed,
            claimed,
            hashes: Mutex::new(hashes),
            states: found.states.into_iter().map(AtomicU8::new).collect(),
            runs: Runs::default(),
            making: Mutex::new(()),
            dirty: Mutex::new(dirty),
            journal: Mutex::new(log),
            journal_name,
            syncing: Mutex::new(Instant::now()),
            plan,
            _places: places,
        })
    }

    fn write_piece(&self, piece: &Piece, bytes: &[u8]) -> io::Result<()> {
        let number = self.plan.node_of(piece.entry);
        let node = &self.plan.nodes[number as usize];
        let path = self.plan.path(number);
        if self.states[number as usize].load(Ordering::Acquire) == ALIKE && !self.replaces(number, piece, bytes)? {
            return Ok(());
        }
        let is_whole = matches!(node.kind, Kind::File { len, .. } if piece.file_offset == 0 && piece.len == len);
        if is_whole {
            let file = self.make_whole(number, &path)?;
            // From here on it is ours, even where the disk is too full for it.
            self.states[number as usize].store(STALE, Ordering::Release);
            self.runs.write(&self.below, (&path, number as usize), &file, 0, bytes)?;
            self.attribute(&file, number, true)?;
            self.states[number as usize].store(DONE, Ordering::Release);
        } else {
            let file = self.open_to_fill(number, &path)?;
            self.runs.write(&self.below, (&path, number as usize), &file, piece.file_offset, bytes)?;
            if self.states[number as usize].load(Ordering::Acquire) == DONE {
                // It has its mode and time already, and comes again.
                self.states[number as usize].store(MADE, Ordering::Release);
            }
        }
        lock(&self.dirty).note(number);
        Ok(())
    }

    /// Whether bytes are to be written to a file that is there and looks right: not those that it has.
    fn replaces(&self, number: u32, piece: &Piece, bytes: &[u8]) -> io::Result<bool> {
        use std::os::unix::fs::FileExt;
        let mut there = vec![0; bytes.len()];
        let file = self.below.read(&self.plan.path(number))?;
        let is_same = file.read_exact_at(&mut there, piece.file_offset).is_ok() && there == bytes;
        if !is_same && !self.options.overwrite {
            return Err(io::Error::other(
                "another file is in its place, of the same length and time; move it away, choose another folder (-o), or overwrite \
                 it (--force)",
            ));
        }
        if !is_same {
            let _alone = lock(&self.making);
            let state = &self.states[number as usize];
            if state.load(Ordering::Acquire) == ALIKE {
                self.unshare(&self.plan.path(number), &file)?;
                // From here on it is gone on with.
                state.store(MADE, Ordering::Release);
            }
        }
        Ok(!is_same)
    }

    /// A file with other names gets a copy of its own, so that those keep what they have. It is whole before it takes the place.
    fn unshare(&self, path: &Path, file: &File) -> io::Result<()> {
        use std::os::unix::fs::{FileExt, MetadataExt};
        let meta = file.metadata()?;
        if meta.nlink() <= 1 {
            return Ok(());
        }
        let beside = path.with_file_name(&self.journal_name).with_extension("anabranch-receive-copy");
        match self.below.unlink(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let copy = self.below.create(&beside, meta.mode() & 0o777 | OWNER_WRITES)?;
        let copied = || -> io::Result<()> {
            copy.set_len(meta.len())?;
            let mut scratch = Vec::new();
            for run in data_runs(file, meta.len(), EXTENTS_MAX)? {
                for at in run.clone().step_by(COPY_LEN) {
                    scratch.resize((run.end - at).min(COPY_LEN as u64) as usize, 0);
                    file.read_exact_at(&mut scratch, at)?;
                    copy.write_all_at(&scratch, at)?;
                }
            }
            self.below.replace(&beside, path)
        };
        copied().inspect_err(|_| _ = self.below.unlink(&beside))
    }

    /// Makes a file, in place of what was ours there.
    fn make_whole(&self, number: u32, path: &Path) -> io::Result<File> {
        let mode = u32::from(self.plan.nodes[number as usize].mode) | OWNER_WRITES;
        match self.below.create(path, mode) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.may_replace(number) => {
                self.below.unlink(path)?;
                self.below.create(path, mode)
            }
            made => made,
        }
    }

    fn may_replace(&self, number: u32) -> bool {
        self.states[number as usize].load(Ordering::Acquire) != ABSENT
    }

    /// A file that several writes fill, as long as it is to be.
    fn open_to_fill(&self, number: u32, path: &Path) -> io::Result<File> {
        let state = &self.states[number as usize];
        if matches!(state.load(Ordering::Acquire), MADE | DONE) {
            return self.open_made(path);
        }
        let _alone = lock(&self.making);
        if matches!(state.load(Ordering::Acquire), MADE | DONE) {
            return self.open_made(path);
        }
        let Kind::File { len, dense } = self.plan.nodes[number as usize].kind else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let file = self.make_whole(number, path)?;
        // From here on it is ours, even where the disk is too full for its length.
        state.store(STALE, Ordering::Release);
        if self.options.preallocate == Preallocate::Full && dense && len > 0 {
            reserve(&file, len)?;
        }
        file.set_len(len)?;
        state.store(MADE, Ordering::Release);
        Ok(file)
    }

    fn open_made(&self, path: &Path) -> io::Result<File> {
        match self.below.write(path) {
            // It got its mode before the process was killed.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let file = self.below.read(path)?;
                let mode = file.metadata()?.permissions().mode();
                file.set_permissions(Permissions::from_mode(mode & 0o777 | OWNER_WRITES))?;
                self.below.write(path)
            }
            opened => opened,
        }
    }

    /// Mode and time. A mode that the file got when it was made is not set again.
    fn attribute(&self, file: &File, number: u32, is_new: bool) -> io::Result<()> {
        let node = &self.plan.nodes[number as usize];
        let wanted = u32::from(node.mode);
        let modified = FileTimes::new().set_modified(system_time(node.modified));
        tolerate(file.set_times(modified))?;
        if is_new && wanted & OWNER_WRITES != 0 && wanted & umask() == 0 {
            return Ok(());
        }
        tolerate(file.set_permissions(Permissions::from_mode(wanted)))
    }

    /// What takes no bytes, and what several writes filled. What it does to files falls into the lease, too.
    fn finish_node(&self, number: u32) -> io::Result<()> {
        lock(&self.journal).renew_lease()?;
        let node = &self.plan.nodes[number as usize];
        let state = &self.states[number as usize];
        let path = self.plan.path(number);
        match node.kind {
            // Made first, finished last.
            Kind::Implied | Kind::Folder => {
                return self.below.create_folder(&path, u32::from(node.mode) | 0o700);
            }
            Kind::Link => {
                let target = self.plan.targets.get(&number).map_or(&[][..], Vec::as_slice);
                self.below.symlink(&path, target, node.modified)?;
            }
            Kind::File { len: 0, .. } if state.load(Ordering::Acquire) != MADE => {
                let file = self.make_whole(number, &path)?;
                self.attribute(&file, number, true)?;
            }
            Kind::File { len, .. } if state.load(Ordering::Acquire) == ALIKE => {
                let mut file = self.below.read(&path)?;
                let meta = file.metadata()?;
                if meta.len() != len {
                    return Err(io::Error::other("it was changed while it was received; receive it again"));
                }
                if meta.permissions().mode() & 0o777 != u32::from(node.mode) {
                    self.unshare(&path, &file)?;
                    file = self.below.read(&path)?;
                }
                self.attribute(&file, number, false)?;
                lock(&self.dirty).note(number);
            }
            Kind::File { .. } => {
                // One that is all hole was never written to.
                let file = self.open_to_fill(number, &path)?;
                if let Kind::File { len, .. } = node.kind
                    && file.metadata()?.len() != len
                {
                    return Err(io::Error::other("it was changed while it was received; receive it again"));
                }
                self.attribute(&file, number, false)?;
                lock(&self.dirty).note(number);
            }
        }
        state.store(DONE, Ordering::Release);
        Ok(())
    }

    fn finish_all(&self) -> Result<(), DestinationError> {
        let failed = |number, error| self.failed(number, error);
        let numbers = 0..self.plan.nodes.len() as u32;
        let is_link = |number: &u32| self.plan.nodes[*number as usize].kind == Kind::Link;
        let is_done = |number: &u32| self.states[*number as usize].load(Ordering::Acquire) == DONE;
        for links in [false, true] {
            for number in numbers.clone().filter(|number| is_link(number) == links && !is_done(number)) {
                self.finish_node(number).map_err(|error| failed(number, error))?;
            }
        }
        for number in numbers.rev().filter(|number| self.plan.nodes[*number as usize].kind == Kind::Folder) {
            let opened = self.below.read(&self.plan.path(number));
            let attributed = opened.and_then(|folder| self.attribute(&folder, number, false));
            attributed.map_err(|error| failed(number, error))?;
        }
        self.sync()?;
        match self.below.unlink(&self.journal_name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed_at(RECORD, error));
            }
            _ => {}
        }
        let folder = self.below.read(Path::new("."));
        folder.and_then(|folder| sync_folder(&folder)).map_err(|error| failed_at("the folder", error))
    }

    /// Forces to the disk what was written, then notes that it is there.
    pub(super) fn sync(&self) -> Result<(), DestinationError> {
        // In this order: what is kept by now was noted as written before.
        let kept = lock(&self.journal).kept();
        let dirty = std::mem::take(&mut *lock(&self.dirty));
        if let Err(error) = self.sync_written(&dirty) {
            return Err(self.distrust(&error));
        }
        lock(&self.journal).note_synced(kept).map_err(|error| failed_at(RECORD, error))
    }

    /// A sync failed: nobody knows what is on the disk of what was written since the last one that did not, and what failed once is not
    /// made good by a sync that does not fail: the kernel may have given up what it could not write. So none of that counts, it is not
    /// gone on with here, and whoever begins again has it come and be written again.
    fn distrust(&self, error: &io::Error) -> DestinationError {
        *lock(&self.dirty) = Dirty { nodes: Vec::new(), many: true };
        let voided = lock(&self.journal).void();
        let told = match voided {
            Ok(()) => format!("the disk did not take it: {error}; begin again, and what may be lost of it comes again"),
            Err(other) => {
                format!("the disk did not take it: {error}; nor its record: {other}; delete both, and begin again")
            }
        };
        DestinationError::Io { name: "what was received".to_owned(), source: io::Error::new(error.kind(), told) }
    }

    fn sync_written(&self, dirty: &Dirty) -> io::Result<()> {
        if dirty.many {
            return self.below.sync_file_system();
        }
        let mut folders = Vec::new();
        for &number in &dirty.nodes {
            self.below.read(&self.plan.path(number))?.sync_all()?;
            let mut above = self.plan.parent(number);
            while let Some(folder) = above.filter(|folder| !folders.contains(folder)) {
                folders.push(folder);
                above = self.plan.parent(folder);
            }
        }
        for folder in folders {
            sync_folder(&self.below.read(&self.plan.path(folder))?)?;
        }
        sync_folder(&self.below.read(Path::new("."))?)
    }

    fn failed(&self, number: u32, error: io::Error) -> DestinationError {
        failed_at(&self.plan.path(number).display().to_string(), error)
    }
}

impl Destination for Received {
    fn placed(&self) -> Option<Placed> {
        let top = <[PathBuf; 1]>::try_from(self.plan.tops()).ok().map(|[top]| top);
        let files = self.plan.nodes.iter().filter(|node| matches!(node.kind, Kind::File { .. })).count() as u64;
        Some(Placed { top, files })
    }

    fn kept(&self) -> ChunkSet {
        self.kept.clone()
    }

    fn claimed(&self) -> ChunkSet {
        self.claimed.clone()
    }

    fn write(&self, offset: u64, mut bytes: &[u8]) -> Result<(), DestinationError> {
        lock(&self.journal).renew_lease().map_err(|error| failed_at(RECORD, error))?;
        for piece in self.plan.layout.pieces(offset..offset + bytes.len() as u64) {
            let (now, rest) = bytes.split_at(piece.len as usize);
            let written = self.write_piece(&piece, now);
            written.map_err(|error| self.failed(self.plan.node_of(piece.entry), error))?;
            bytes = rest;
        }
        Ok(())
    }

    fn read(&self, offset: u64, mut into: &mut [u8]) -> Result<(), DestinationError> {
        use std::os::unix::fs::FileExt;
        for piece in self.plan.layout.pieces(offset..offset + into.len() as u64) {
            let (now, rest) = into.split_at_mut(piece.len as usize);
            let number = self.plan.node_of(piece.entry);
            let file = self.below.read(&self.plan.path(number));
            let read = file.and_then(|file| file.read_exact_at(now, piece.file_offset));
            read.map_err(|error| self.failed(number, error))?;
            into = rest;
        }
        Ok(())
    }

    fn recorded_hash(&self, span: u64) -> Option<[u8; 32]> {
        lock(&self.hashes).remove(&span)
    }

    fn span_kept(&self, span: u64, hash: &[u8; 32]) -> Result<(), DestinationError> {
        // What was there before is not ours because some of it is right. It is found and compared again.
        let is_alike =
            |piece: Piece| self.states[self.plan.node_of(piece.entry) as usize].load(Ordering::Acquire) == ALIKE;
        if self.plan.layout.pieces(tree::span_bytes(self.plan.layout.content_len(), span)).any(is_alike) {
            return Ok(());
        }
        let [first, second] = hash_records(hash);
        let records = [Record::Kept(span..span + 1), first, second];
        lock(&self.journal).append(&records).map_err(|error| failed_at(RECORD, error))?;
        // Whoever comes while another syncs has nothing to wait for.
        if let Ok(mut last) = self.syncing.try_lock()
            && last.elapsed() >= CHECKPOINT_INTERVAL
        {
            self.sync()?;
            *last = Instant::now();
        }
        Ok(())
    }

    fn finish(&self, _receipt: &Receipt) -> Result<(), DestinationError> {
        self.finish_all()
    }
}

/// Of `spans`, those that were kept before and count now; and of these, those that are on the disk for certain.
fn kept_before(before: Option<&Journal>, identity: &Identity, spans: u64) -> (ChunkSet, ChunkSet) {
    let (mut kept, mut on_disk) = (ChunkSet::new(spans), ChunkSet::new(spans));
    let Some(before) = before else { return (kept, on_disk) };
    let within = |run: Range<u64>| run.start.min(spans)..run.end.min(spans);
    before.kept(NO_BOOT).into_iter().for_each(|run| _ = on_disk.insert_range(within(run)));
    // One that came once more since then is half the old one, half the new one, after a power cut.
    before.unsynced().into_iter().for_each(|run| _ = on_disk.remove_range(within(run)));
    let is_same_run = before.identity.boot == identity.boot && identity.boot != NO_BOOT;
    if !is_same_run {
        return (on_disk.clone(), on_disk);
    }
    before.kept(identity.boot).into_iter().for_each(|run| _ = kept.insert_range(within(run)));
    (kept, on_disk)
}

pub(super) fn failed_at(name: &str, error: io::Error) -> DestinationError {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => DestinationError::Full(format!("no room for {name}: the disk is full")),
        _ => DestinationError::Io { name: name.to_owned(), source: error },
    }
}

/// Bits that the process's umask takes from the modes of new files.
fn umask() -> u32 {
    static UMASK: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *UMASK.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        // Unknown: every mode is set by a call of its own.
        line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o777)
    })
}

/// File systems without such attributes, and files of another owner, keep what they have: the bytes are what counts.
fn tolerate(set: io::Result<()>) -> io::Result<()> {
    match set {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::EOPNOTSUPP)) => Ok(()),
        set => set,
    }
}

/// Some file systems cannot sync a folder; those keep its names with the files' data.
fn sync_folder(folder: &File) -> io::Result<()> {
    match folder.sync_all() {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        synced => synced,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is under these locks is whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
