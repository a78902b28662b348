//! Reads content out of many files.
//!
//! A file that one read takes whole is opened, read, looked at and closed: four calls. Longer ones stay open while they are read. After
//! every read the file is looked at: if it is not any more what it was when it was scanned (size, times, inode), the read is an
//! error, so no hash is made of half the old and half the new.
//!
//! What was not in the page cache before leaves it again after it was read.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anabranch_content::storage::{Below, Reading};
use anabranch_hercules::wire::manifest::{Layout, Piece, parse_entries};

use super::super::content::{Source, SourceError};
use super::convert::path;
use super::scan::{Scan, ScanError, Stamp};

/// Files that stay open: those that several threads and destinations read at once.
const OPEN_FILES_MAX: usize = 16;

/// Files as they were scanned.
#[derive(Debug)]
pub struct FileSource {
    manifest: Arc<[u8]>,
    starts: Vec<u32>,
    stamps: Vec<Stamp>,
    layout: Layout,
    /// First entry of each path that was named; what it is below; bytes of the name that stand for the base itself.
    bases: Vec<Base>,
    open: Mutex<VecDeque<(u32, Arc<Reading>)>>,
}

#[derive(Debug)]
struct Base {
    first: u32,
    path: PathBuf,
    at: At,
}

#[derive(Debug)]
enum At {
    Folder(Below),
    /// The path is a file itself.
    Path,
    /// It has no path.
    Open(File),
}

impl FileSource {
    /// Of what was found.
    ///
    /// # Errors
    /// A folder is gone, or cannot be opened.
    pub fn new(scan: Scan) -> Result<Self, SourceError> {
        let at = |path: &Path| if path.is_dir() { Below::open(path).map(At::Folder) } else { Ok(At::Path) };
        let bases = scan.bases.iter().map(|(first, path)| {
            let failed = |source| SourceError::Io { name: path.display().to_string(), source };
            Ok(Base { first: *first, at: at(path).map_err(failed)?, path: path.clone() })
        });
        let bases = bases.collect::<Result<_, SourceError>>()?;
        Ok(Self::with(scan, bases))
    }

    /// Of one open file, which arrives under this name.
    ///
    /// # Errors
    /// It is no regular file, or cannot be read; or its name is none.
    pub fn of_file(file: File, name: &OsStr) -> Result<Self, ScanError> {
        let scan = Scan::of_file(name, &file)?;
        let base = Base { first: 0, path: name.into(), at: At::Open(file) };
        Ok(Self::with(scan, vec![base]))
    }

    fn with(scan: Scan, bases: Vec<Base>) -> Self {
        let Scan { manifest, starts, stamps, layout, .. } = scan;
        Self { manifest: manifest.into(), starts, stamps, layout, bases, open: Mutex::default() }
    }

    fn read_piece(&self, piece: &Piece, into: &mut [u8]) -> Result<(), SourceError> {
        let stamp = self.stamps[piece.entry as usize];
        let is_whole = piece.file_offset == 0 && piece.len == stamp.len;
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound => SourceError::Changed(self.name(piece.entry)),
            _ => SourceError::Io { name: self.name(piece.entry), source },
        };
        let unchanged = |file: &File| match Stamp::of(&file.metadata().map_err(failed)?) == stamp {
            true => Ok(()),
            false => Err(SourceError::Changed(self.name(piece.entry))),
        };
        if is_whole {
            let file = self.open_file(piece.entry).map_err(failed)?;
            file.read_exact_at(into, 0).map_err(failed)?;
            return unchanged(&file);
        }
        let reading = match self.take(piece.entry) {
            Some(reading) => reading,
            None => Arc::new(Reading::new(self.open_file(piece.entry).map_err(failed)?)),
        };
        reading.read_exact_at(into, piece.file_offset).map_err(failed)?;
        unchanged(reading.file())?;
        if piece.file_offset + piece.len < stamp.len {
            self.keep(piece.entry, reading);
        }
        Ok(())
    }

    fn take(&self, entry: u32) -> Option<Arc<Reading>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().find(|(other, _)| *other == entry).map(|(_, reading)| Arc::clone(reading))
    }

    fn keep(&self, entry: u32, reading: Arc<Reading>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.iter().any(|(other, _)| *other == entry) {
            return;
        }
        open.push_back((entry, reading));
        let oldest = if open.len() > OPEN_FILES_MAX { open.pop_front() } else { None };
        drop(open);
        drop(oldest); // close(2) may take its time: outside the lock
    }

    fn base(&self, entry: u32) -> &Base {
        let at = self.bases.partition_point(|base| base.first <= entry);
        // The first begins at entry 0.
        &self.bases[at.saturating_sub(1)]
    }

    fn open_file(&self, entry: u32) -> io::Result<File> {
        let base = self.base(entry);
        match &base.at {
            At::Open(file) => file.try_clone(),
            At::Path => File::open(&base.path),
            At::Folder(below) => {
                let name = self.entry_name(entry);
                let slash = name.iter().position(|byte| *byte == b'/').map_or(name.len(), |slash| slash + 1);
                below.read(path(&name[slash..]))
            }
        }
    }

    /// Bytes of the manifest that we wrote: kind, mode, time, then the name with its length.
    fn entry_name(&self, entry: u32) -> Vec<u8> {
        let start = self.starts[entry as usize] as usize;
        let end = self.starts.get(entry as usize + 1).map_or(self.manifest.len(), |end| *end as usize);
        let entries = parse_entries(&self.manifest[start..end]).unwrap_or_default();
        entries.into_iter().next().map(|entry| entry.name).unwrap_or_default()
    }

    fn name(&self, entry: u32) -> String {
        String::from_utf8_lossy(&self.entry_name(entry)).into_owned()
    }
}

impl Source for FileSource {
    fn content_len(&self) -> u64 {
        self.layout.content_len()
    }

    fn entries(&self) -> u32 {
        self.layout.entry_count()
    }

    fn manifest(&self) -> Arc<[u8]> {
        Arc::clone(&self.manifest)
    }

    fn read(&self, offset: u64, mut into: &mut [u8]) -> Result<(), SourceError> {
        for piece in self.layout.pieces(offset..offset + into.len() as u64) {
            let (now, rest) = into.split_at_mut(piece.len as usize);
            self.read_piece(&piece, now)?;
            into = rest;
        }
        Ok(())
    }
}
