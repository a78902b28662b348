//! Receipts in a file: what each receiver signed, and the manifest that all of them signed, so that the file alone says which
//! names, and with the content at hand whether that is still what was received.
//!
//! The file has a line `anabranch-receipts-v2`, a line `receipt HEX` for each receiver, a line `manifest LEN`, and the manifest's
//! bytes (`docs/bulk.md`).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anabranch_content::hash::sha256;
use anabranch_hercules::tree::Hasher;
use anabranch_hercules::wire::manifest::{Entry, EntryKind, MANIFEST_LEN_MAX, parse_entries};
use anabranch_hercules::wire::receipt::{RECEIPT_LEN, Receipt};

use crate::exit::{Code, Failure};

/// The first line.
const HEADING: &str = "anabranch-receipts-v2";
/// Receivers of one transfer: far more than any sender serves at once.
const RECEIPTS_MAX: usize = 65_536;
/// Bytes read at once.
const BUFFER_LEN: usize = 1 << 20;
/// Differences that are told one by one.
const DIFFERENCES_TOLD_MAX: usize = 10;

/// What a file of receipts holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receipts {
    /// What was signed, by whom.
    pub receipts: Vec<Receipt>,
    /// What was sent: names, modes, times, runs of data.
    pub manifest: Vec<u8>,
}

/// What a content is, beside what was signed.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// The root over the content as it is now; `None` where something is missing or has another length.
    pub root: Option<[u8; 32]>,
    /// What is not there, or otherwise than it was sent, so that there is no such content.
    pub missing: Vec<String>,
    /// Modes and times that are not as they were sent.
    pub changed: Vec<String>,
    /// More of either.
    pub more: usize,
}

impl Receipts {
    /// What the file has in it.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = format!("{HEADING}\n");
        for receipt in &self.receipts {
            let mut bytes = Vec::with_capacity(RECEIPT_LEN);
            receipt.write(&mut bytes);
            text.push_str(&format!("receipt {}\n", anabranch_content::hex::encode(&bytes)));
        }
        text.push_str(&format!("manifest {}\n", self.manifest.len()));
        [text.as_bytes(), &self.manifest].concat()
    }

    /// Reads a file.
    pub(crate) fn load(path: &Path) -> Result<Self, Failure> {
        let mut bytes = Vec::new();
        // A receipt's line is twice as long as the receipt, and some letters.
        let len_max = MANIFEST_LEN_MAX + ((2 * RECEIPT_LEN + 16) * RECEIPTS_MAX) as u64 + 64;
        File::open(path).and_then(|file| file.take(len_max + 1).read_to_end(&mut bytes)).map_err(|error| {
            Failure::input(format!(
                "cannot read {}: {error}; give the file that `send --receipt` wrote",
                path.display()
            ))
        })?;
        Self::parse(&bytes).ok_or_else(|| {
            Failure::input(format!(
                "{} is no receipt, or was cut short: give the file that `send --receipt` wrote",
                path.display()
            ))
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (first, mut rest) = split_line(bytes)?;
        if first != HEADING.as_bytes() {
            return None;
        }
        let mut receipts = Vec::new();
        loop {
            let (line, after) = split_line(rest)?;
            rest = after;
            let (word, value) = std::str::from_utf8(line).ok()?.split_once(' ')?;
            match word {
                "receipt" if receipts.len() < RECEIPTS_MAX => {
                    receipts.push(Receipt::parse(&anabranch_content::hex::decode::<RECEIPT_LEN>(value)?).ok()?);
                }
                "manifest" if value.parse() == Ok(rest.len()) && !receipts.is_empty() => break,
                _ => return None,
            }
        }
        Some(Self { receipts, manifest: rest.to_vec() })
    }

    /// Whether the manifest is the one that was signed.
    pub(crate) fn has_manifest_of(&self, receipt: &Receipt) -> bool {
        sha256(&self.manifest) == receipt.manifest_hash
    }

    /// What was sent.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>, Failure> {
        parse_entries(&self.manifest).map_err(|error| {
            Failure::input(format!(
                "the receipt is forged or damaged: what it says of the files makes no sense ({error})"
            ))
        })
    }
}

/// Writes the file of some receipts, whole or not at all.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|error| {
        // What is left of it is of no use.
        let _ = fs::remove_file(&beside);
        unwritable(path, &error)
    })
}

/// Whether receipts may be written to `path`: a file of receipts is replaced, and nothing else.
pub(crate) fn check_place(path: &Path) -> Result<(), Failure> {
    let mut head = Vec::new();
    match File::open(path).and_then(|file| file.take(HEADING.len() as u64).read_to_end(&mut head)) {
        Ok(_) if head.is_empty() || head == HEADING.as_bytes() => Ok(()),
        Ok(_) => Err(Failure::usage(format!(
            "`--receipt {}` exists and is no receipt: it is left as it is; give another name",
            path.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            match folder.is_dir() {
                true => Ok(()),
                false => Err(unwritable(path, &error)),
            }
        }
        Err(error) => Err(unwritable(path, &error)),
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    let message = format!("cannot write the receipt {}: {error}; give another file with --receipt", path.display());
    Failure::new(Code::Storage, message)
}

fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

/// The first component of a name.
pub(crate) fn top(entry: &Entry) -> &[u8] {
    entry.name.split(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Compares what is at `path` with what was sent: the content itself, whatever it is called now, or the folder that it is in. A folder may
/// have something of its own name, so that it looks like either. `roots`: what was signed.
pub(crate) fn compare(
    entries: &[Entry],
    content_len: u64,
    roots: &[[u8; 32]],
    path: &Path,
) -> Result<Comparison, Failure> {
    fs::symlink_metadata(path)
        .map_err(|error| Failure::input(format!("cannot read {}: {error}; give the content", path.display())))?;
    let first = entries.first().map(top).unwrap_or_default();
    let holder = |entry: &Entry| path.join(OsStr::from_bytes(&entry.name));
    // Without the first component, which may have been renamed.
    let itself = |entry: &Entry| match entry.name[first.len()..].strip_prefix(b"/") {
        Some(rest) => path.join(OsStr::from_bytes(rest)),
        None => path.to_owned(),
    };
    if entries.iter().any(|entry| top(entry) != first) {
        return Ok(compare_at(entries, content_len, holder));
    }
    if fs::symlink_metadata(path.join(OsStr::from_bytes(first))).is_err() {
        return Ok(compare_at(entries, content_len, itself));
    }
    let in_holder = compare_at(entries, content_len, holder);
    let is_signed = |found: &Comparison| found.root.is_some_and(|root| roots.contains(&root));
    if is_signed(&in_holder) {
        return Ok(in_holder);
    }
    let as_itself = compare_at(entries, content_len, itself);
    let is_nearer = is_signed(&as_itself) || as_itself.lacks() < in_holder.lacks();
    Ok(if is_nearer { as_itself } else { in_holder })
}

/// Compares what is at each entry's place with what was sent.
fn compare_at(entries: &[Entry], content_len: u64, place: impl Fn(&Entry) -> PathBuf) -> Comparison {
    let mut found = Comparison::default();
    let mut hasher = Hasher::new(content_len);
    let mut buffer = vec![0; BUFFER_LEN];
    for entry in entries {
        let place = place(entry);
        let shown = place.display();
        match look(entry, &place, &mut hasher, &mut buffer) {
            Ok(None) => found.metadata(entry, &place),
            Ok(Some(what)) => found.miss(format!("{shown} {what}")),
            Err(error) => found.miss(format!("{shown} cannot be read: {error}")),
        }
    }
    found.root = hasher.root().filter(|_| found.missing.is_empty());
    found
}

impl Comparison {
    /// How much is not there, as far as that was counted.
    fn lacks(&self) -> usize {
        self.missing.len() + self.more
    }

    fn miss(&mut self, what: String) {
        match self.missing.len() < DIFFERENCES_TOLD_MAX {
            true => self.missing.push(what),
            false => self.more += 1,
        }
    }

    fn metadata(&mut self, entry: &Entry, place: &Path) {
        let Ok(metadata) = fs::symlink_metadata(place) else { return };
        let is_link = matches!(entry.kind, EntryKind::Link(_));
        let time = (metadata.mtime(), metadata.mtime_nsec() as u32);
        let mode = (metadata.mode() & 0o7777) as u16;
        let what = if mode != entry.mode && !is_link {
            format!("{} has the mode {mode:o}, and was sent with {:o}", place.display(), entry.mode)
        } else if time != entry.modified && !is_link {
            format!("{} was changed at another time than when it was sent", place.display())
        } else {
            return;
        };
        match self.changed.len() < DIFFERENCES_TOLD_MAX {
            true => self.changed.push(what),
            false => self.more += 1,
        }
    }
}

/// What is wrong with an entry's place; its data goes to the hasher.
fn look(entry: &Entry, place: &Path, hasher: &mut Hasher, buffer: &mut [u8]) -> io::Result<Option<String>> {
    let metadata = match fs::symlink_metadata(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some("is not there".to_owned())),
        found => found?,
    };
    let (len, extents) = match &entry.kind {
        EntryKind::Folder if metadata.is_dir() => return Ok(None),
        EntryKind::Folder => return Ok(Some("is no folder".to_owned())),
        EntryKind::Link(target) if metadata.is_symlink() => {
            let is_same = fs::read_link(place)?.as_os_str().as_bytes() == target;
            return Ok((!is_same).then(|| "leads elsewhere".to_owned()));
        }
        EntryKind::Link(_) => return Ok(Some("is no link".to_owned())),
        EntryKind::File { len, extents } => (*len, extents),
    };
    if !metadata.is_file() {
        return Ok(Some("is no file".to_owned()));
    }
    if metadata.len() != len {
        return Ok(Some(format!("has {} bytes, and {len} were sent", metadata.len())));
    }
    let file = File::open(place)?;
    let mut at = 0;
    for extent in extents.iter().cloned().chain([len..len]) {
        let mut is_hole = true;
        each(&file, at..extent.start, buffer, |bytes| is_hole &= bytes.iter().all(|byte| *byte == 0))?;
        if !is_hole {
            return Ok(Some("has data where there was none".to_owned()));
        }
        each(&file, extent.clone(), buffer, |bytes| hasher.update(bytes))?;
        at = extent.end;
    }
    Ok(None)
}

fn each(file: &File, range: std::ops::Range<u64>, buffer: &mut [u8], mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(buffer.len() as u64) as usize;
        file.read_exact_at(&mut buffer[..len], at)?;
        take(&buffer[..len]);
        at += len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn receipts() -> Receipts {
        let receipt = |transfer| Receipt {
            transfer,
            root: [2; 32],
            content_len: 3,
            manifest_hash: sha256(b"\nmanifest 0\n"),
            entries: 1,
            finished: 6,
            sender: [7; 32],
            receiver: [8; 32],
            signature: [9; 64],
        };
        Receipts { receipts: vec![receipt(1), receipt(2)], manifest: b"\nmanifest 0\n".to_vec() }
    }

    #[test]
    fn receipts_are_written_and_read_back_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        check_place(&path).unwrap();
        write(&path, &receipts().encode()).unwrap();
        check_place(&path).unwrap();
        assert_eq!(Receipts::load(&path).unwrap(), receipts());
        assert!(receipts().has_manifest_of(&receipts().receipts[0]));
        let bytes = fs::read(&path).unwrap();
        for end in 0..bytes.len() {
            assert_eq!(Receipts::parse(&bytes[..end]), None, "cut at {end}");
        }
        assert_eq!(Receipts::parse(&[&bytes[..], b"x"].concat()), None);
        fs::write(&path, "a letter").unwrap();
        assert!(check_place(&path).unwrap_err().to_string().contains("is no receipt"));
        assert!(Receipts::load(&path).unwrap_err().to_string().contains("is no receipt"));
        assert!(check_place(&dir.path().join("no/r")).unwrap_err().to_string().contains("cannot write"));
    }

    #[test]
    fn content_is_compared_by_its_root_with_holes_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("t");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a"), b"..data....").unwrap();
        fs::write(folder.join("a"), [&[0; 100][..], b"data", &[0; 50]].concat()).unwrap();
        std::os::unix::fs::symlink("a", folder.join("l")).unwrap();
        let entry = |name: &str, kind| {
            let metadata = fs::symlink_metadata(dir.path().join(name)).unwrap();
            let modified = (metadata.mtime(), metadata.mtime_nsec() as u32);
            Entry { name: name.into(), mode: (metadata.mode() & 0o7777) as u16, modified, kind }
        };
        let entries = [
            entry("t", EntryKind::Folder),
            entry("t/a", EntryKind::File { len: 154, extents: vec![100..104] }),
            entry("t/l", EntryKind::Link(b"a".to_vec())),
        ];
        let mut hasher = Hasher::new(4);
        hasher.update(b"data");
        let root = hasher.root();
        // The folder itself, what it is in, and under another name.
        let compare = |path: &Path| compare(&entries, 4, root.as_slice(), path);
        for path in [folder.clone(), dir.path().to_owned()] {
            let found = compare(&path).unwrap();
            assert!(found.root == root && root.is_some() && found.changed.is_empty(), "{path:?} {found:?}");
        }
        let renamed = dir.path().join("renamed");
        fs::rename(&folder, &renamed).unwrap();
        assert_eq!(compare(&renamed).unwrap().root, root);
        // Something in a hole, another length, another target, another byte.
        let told = |needle: &str| {
            let found = compare(&renamed).unwrap();
            assert!(found.root != root && format!("{found:?}").contains(needle), "{needle}: {found:?}");
        };
        fs::write(renamed.join("a"), [&[0; 99][..], b"xdata", &[0; 50]].concat()).unwrap();
        told("data where there was none");
        fs::write(renamed.join("a"), [&[0; 100][..], b"datA", &[0; 50]].concat()).unwrap();
        told("another time");
        fs::write(renamed.join("a"), b"data").unwrap();
        told("has 4 bytes, and 154 were sent");
        fs::remove_file(renamed.join("l")).unwrap();
        told("is not there");
        assert!(compare(&dir.path().join("nowhere")).is_err());
    }

    /// As a source tree with a package of its name: `numpy/numpy/core.py`.
    #[test]
    fn a_folder_with_something_of_its_own_name_is_compared_as_either() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("n/n/n");
        fs::create_dir_all(inner.parent().unwrap()).unwrap();
        fs::write(&inner, "data").unwrap();
        let entry = |name: &str, kind| Entry { name: name.into(), mode: 0o755, modified: (0, 0), kind };
        let file = || EntryKind::File { len: 4, extents: std::iter::once(0..4).collect() };
        let entries = [entry("n", EntryKind::Folder), entry("n/n", EntryKind::Folder), entry("n/n/n", file())];
        let mut hasher = Hasher::new(4);
        hasher.update(b"data");
        let root = hasher.root();
        let compare = |path: &Path| compare(&entries, 4, root.as_slice(), path).unwrap();
        assert_eq!((compare(&dir.path().join("n")).root, compare(dir.path()).root), (root, root));
        // Where neither is right, it is told what the nearer one lacks.
        fs::write(&inner, "date").unwrap();
        assert!([dir.path().join("n"), dir.path().to_owned()].iter().all(|path| compare(path).root != root));
        fs::remove_file(&inner).unwrap();
        let found = compare(&dir.path().join("n"));
        assert_eq!((found.missing.len(), found.root), (1, None));
        assert!(found.missing[0].contains("n/n/n is not there"), "{found:?}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in "anabranch-receipts-v2\n((receipt [0-9a-f]{424}|manifest [0-9]|\\PC{0,9})\n){0,3}\\PC{0,9}") {
            if let Some(read) = Receipts::parse(bytes.as_bytes()) {
                prop_assert!(!read.receipts.is_empty());
            }
        }
    }
}
