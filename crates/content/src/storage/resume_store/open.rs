//! How a record begins: read and compared with the disk, taken over from an earlier run, or moved with the files.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use super::save::{Journal, temporary};
use super::{Loaded, ResumeStore, State, adopt, restamp_all};
use crate::bitfield::Bitfield;
use crate::info::FileKind;
use crate::storage::resume::{HEADER_LEN, snapshot_crc, snapshot_len};
use crate::storage::{FileRecord, Op, Resume, ResumeError, Storage, StorageError, hidden_name};

/// The largest resume file that is read: the state of 2^27 pieces, or of some 1.6 million files.
const RESUME_LEN_MAX: u64 = 64 * 1024 * 1024;

impl ResumeStore {
    /// Reads `storage`'s resume file, in `state_dir` or else beside the content, and compares it with the disk.
    /// What the file says besides is at [`ResumeStore::with`].
    pub fn open(storage: Arc<Storage>, state_dir: Option<&Path>) -> Result<(Self, Loaded), StorageError> {
        let folder = state_dir.unwrap_or(storage.root());
        if state_dir.is_some() && !folder.is_dir() {
            std::fs::create_dir_all(folder).map_err(|source| StorageError::new(Op::Create, folder, source))?;
        }
        let path = folder.join(hidden_name(storage.info(), "resume"));
        // Nothing is known of any file that is there.
        let unknown = |loaded| {
            let mut resume = Resume::empty(&storage);
            let strangers = resume.strangers(&storage);
            restamp_all(&mut resume, &storage);
            (loaded, resume, strangers)
        };
        let mut unsettled = Vec::new();
        let boot = boot_id();
        let mut unchanged = None;
        if !storage.is_read_only() {
            // Left by one who died while it was written.
            let _ = std::fs::remove_file(temporary(&path));
        }
        let read = read_bounded(&path).map_err(|source| StorageError::new(Op::Read, &path, source))?;
        let found = read.map(|bytes| match Resume::decode_with_end(&bytes) {
            Ok((found, _)) if !found.fits(&storage) => Err(ResumeError::Foreign),
            decoded => decoded,
        });
        let (loaded, mut resume, strangers) = match found {
            Some(Ok((mut found, end))) => {
                let reconciled = found.reconcile(&storage, boot);
                let strangers = found.strangers(&storage);
                unsettled = found.unsettled(&storage);
                let at_rest = found.files.iter().all(|record| record.lease.is_none());
                unchanged = Some(end).filter(|_| at_rest && found.boot == boot && found.have == reconciled.have);
                adopt(&mut found, &reconciled, &storage);
                if found.have == found.durable && reconciled.recheck.is_empty() {
                    storage.assume_synced();
                }
                (Loaded::Resumed(reconciled), found, strangers)
            }
            Some(Err(error)) => unknown(Loaded::Damaged(error)),
            None => unknown(Loaded::Fresh),
        };
        resume.boot = boot;
        // Until it is known better: see `note_foreign`.
        strangers.iter().for_each(|file| resume.files[*file].foreign = true);
        let store = Self { strangers, unsettled, ..Self::new(storage, path, resume) };
        match (&loaded, unchanged) {
            (Loaded::Resumed(_), _) if store.storage.is_read_only() => {}
            (Loaded::Resumed(_), Some(end)) => store.reopen(end)?,
            // New stamps must be in the file before the first lease, or a crash would make the lease vouch for what changed.
            (Loaded::Resumed(_), None) => store.save_snapshot(None, false)?,
            (Loaded::Fresh | Loaded::Damaged(_), _) => {}
        }
        Ok((store, loaded))
    }

    /// [`ResumeStore::open`] where an earlier run [finished](ResumeStore::finish) all of the content, nobody touched it since, and nobody
    /// writes to its places now: nothing is claimed, and nothing is left to be done. `None` where any of that is not so.
    pub fn open_finished(storage: &Arc<Storage>, state_dir: Option<&Path>) -> Option<Self> {
        let info = storage.info();
        if storage.is_read_only() || info.files.iter().any(|entry| matches!(entry.kind, FileKind::Symlink { .. })) {
            return None;
        }
        let path = state_dir.unwrap_or(storage.root()).join(hidden_name(info, "resume"));
        let bytes = read_bounded(&path).ok()??;
        let (mut resume, end) = Resume::decode_with_end(&bytes).ok()?;
        let is_snapshot = bytes.first_chunk().is_some_and(|header| snapshot_len(header) == end as u64);
        let is_all_there = resume.fits(storage) && resume.durable.is_full() && resume.have.is_full();
        let is_finished = |record: &FileRecord| record.lease.is_none() && !record.foreign;
        if !is_snapshot || !is_all_there || resume.recheck.count() > 0 || !resume.files.iter().all(is_finished) {
            return None;
        }
        let (parts, files) = resume.files.split_last()?;
        // Sealed first: what changes after that is noticed.
        storage.seal_all();
        let is_as_left = |(file, record): (usize, &FileRecord)| storage.sealed(file) == record.stamp;
        let is_untouched = files.iter().enumerate().all(is_as_left) && storage.parts_stamp() == parts.stamp;
        if !is_untouched || !storage.rest_at_once() {
            return None;
        }
        // Left by one who died while it was written.
        let _ = std::fs::remove_file(temporary(&path));
        storage.assume_synced();
        resume.boot = boot_id();
        Some(Self::new(Arc::clone(storage), path, resume))
    }

    /// A record with nothing to be said beside it.
    fn new(storage: Arc<Storage>, path: PathBuf, resume: Resume) -> Self {
        let none = Bitfield::new(resume.have.len());
        let state = State {
            resume,
            journal: None,
            since_save: None,
            unproven: none.clone(),
            doubted: none,
            dirty: false,
            saved_at: None,
            is_deleted: false,
        };
        Self {
            storage,
            path,
            strangers: Vec::new(),
            unsettled: Vec::new(),
            state: Mutex::new(state),
            saving: Mutex::default(),
            syncing: Mutex::default(),
        }
    }

    /// The record of the same content after its files came to `storage`, but for those `left` behind.
    pub(in crate::storage) fn moved(
        &self,
        storage: Arc<Storage>,
        state_dir: Option<&Path>,
        left: &[usize],
    ) -> Result<Self, StorageError> {
        let path = state_dir.unwrap_or(storage.root()).join(hidden_name(storage.info(), "resume"));
        let state = {
            let before = self.lock();
            let mut resume = before.resume.clone();
            for piece in left.iter().flat_map(|file| storage.info().pieces_of_file(*file)) {
                resume.note_failed(piece);
            }
            restamp_all(&mut resume, &storage);
            resume.files.iter_mut().for_each(|record| record.foreign = false);
            State {
                resume,
                journal: None,
                since_save: None,
                unproven: before.unproven.clone(),
                doubted: before.doubted.clone(),
                dirty: false,
                saved_at: None,
                is_deleted: false,
            }
        };
        let (strangers, unsettled, state) = (Vec::new(), Vec::new(), Mutex::new(state));
        let store =
            Self { storage, path, strangers, unsettled, state, saving: Mutex::default(), syncing: Mutex::default() };
        store.save_snapshot(None, true)?;
        let layers = self.kept_layers();
        if !layers.is_empty() && store.path != self.path {
            store.keep_layers(layers)?;
        }
        Ok(store)
    }

    /// Goes on with the journal of the file that was just read, whose good part ends at `end`.
    fn reopen(&self, end: usize) -> Result<(), StorageError> {
        let open = || -> io::Result<Journal> {
            let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(&self.path)?;
            let mut header = [0; HEADER_LEN];
            file.read_exact_at(&mut header, 0)?;
            let start = snapshot_len(&header);
            let mut crc = [0; 4];
            file.read_exact_at(&mut crc, start - 4)?;
            Ok(Journal { file, end: end as u64, start, crc: snapshot_crc(&crc) })
        };
        let journal = open().map_err(|source| StorageError::new(Op::Open, &self.path, source))?;
        self.lock().journal = Some(journal);
        Ok(())
    }
}

/// The file's bytes; `None` where there is no file.
pub(super) fn read_bounded(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let len = file.metadata()?.len();
    if len > RESUME_LEN_MAX {
        return Ok(Some(Vec::new())); // no resume file of ours: refused as such
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}

/// Identifies this run of the machine; zeros where it does not say.
pub(in crate::storage) fn boot_id() -> [u8; 16] {
    static BOOT_ID: OnceLock<[u8; 16]> = OnceLock::new();
    *BOOT_ID.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        u128::from_str_radix(&digits, 16).map_or([0; 16], u128::to_be_bytes)
    })
}
