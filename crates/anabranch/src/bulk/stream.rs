//! Standard input as something to send, and standard output as where something goes.
//!
//! A transfer reads twice what gets lost, and its chunks come in any order: both pass a file without a name, in `$TMPDIR` or else
//! `/tmp`, which is gone with the process. So standard input is read to its end before anything is sent, and standard output gets
//! nothing that was not verified.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anabranch_hercules::ChunkSet;
use anabranch_hercules::tree::span_count;
use anabranch_hercules::wire::manifest::{Entry, EntryKind};
use anabranch_hercules::wire::receipt::Receipt;
use anabranch_swarm::bulk::{Destination, DestinationError, Destinations, Offered, Refusal, Source, SourceError};

use crate::exit::{Code, Failure};

/// What the received file's mode is where nobody says otherwise.
const MODE: u16 = 0o644;
/// Bytes copied at once.
const BUFFER_LEN: usize = 1 << 20;

/// A file that nobody else finds.
pub(crate) fn nameless() -> Result<File, Failure> {
    let folder = std::env::temp_dir();
    let open = |options: &mut OpenOptions, path: &PathBuf| options.read(true).write(true).mode(0o600).open(path);
    let made = open(OpenOptions::new().custom_flags(libc::O_TMPFILE), &folder).or_else(|_| {
        // Where the file system has none: one whose name goes at once.
        let path = folder.join(format!("anabranch-{}", std::process::id()));
        let file = open(OpenOptions::new().create_new(true), &path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    });
    made.map_err(|error: io::Error| {
        let message = format!(
            "cannot make a file in {}: {error}; name another folder with the variable TMPDIR",
            folder.display()
        );
        Failure::new(Code::Storage, message)
    })
}

/// What came from standard input.
pub(crate) struct Input {
    file: File,
    len: u64,
    manifest: Arc<[u8]>,
}

impl Input {
    /// Reads standard input to its end into `file`; `canceled` ends that earlier.
    pub(crate) fn read(file: File, name: &OsStr, canceled: &AtomicBool) -> Result<Self, Failure> {
        let (mut input, mut buffer, mut len) = (io::stdin().lock(), vec![0; BUFFER_LEN], 0);
        while !canceled.load(Ordering::Relaxed) {
            let count = match input.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Failure::input(format!("cannot read standard input: {error}"))),
            };
            file.write_all_at(&buffer[..count], len).map_err(|error| {
                let folder = std::env::temp_dir();
                let message = format!(
                    "cannot keep standard input in {}: {error}; name a folder with more room with the variable TMPDIR",
                    folder.display()
                );
                Failure::new(Code::Storage, message)
            })?;
            len += count as u64;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let kind =
            EntryKind::File { len, extents: if len > 0 { std::iter::once(0..len).collect() } else { Vec::new() } };
        let modified = (i64::try_from(since.as_secs()).unwrap_or(0), since.subsec_nanos());
        let entry = Entry { name: name.as_bytes().to_vec(), mode: MODE, modified, kind };
        let mut manifest = Vec::new();
        entry.write(&mut manifest).map_err(|_| {
            Failure::usage(format!(
                "`--name {}` is no name of a file: give one without `/`, of at most 255 bytes",
                name.display()
            ))
        })?;
        Ok(Self { file, len, manifest: manifest.into() })
    }
}

impl Source for Input {
    fn content_len(&self) -> u64 {
        self.len
    }

    fn entries(&self) -> u32 {
        1
    }

    fn manifest(&self) -> Arc<[u8]> {
        Arc::clone(&self.manifest)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let failed = |source| SourceError::Io { name: "what came from standard input".to_owned(), source };
        self.file.read_exact_at(into, offset).map_err(failed)
    }
}

/// Standard output, for one file.
pub(crate) struct Output {
    /// What it passes.
    passing: Mutex<Option<File>>,
    /// What was begun: a connection that is lost and made anew goes on with it.
    begun: Mutex<Option<Arc<Begun>>>,
    /// Nobody reads.
    closed: AtomicBool,
}

struct Begun {
    manifest_hash: [u8; 32],
    entry: Entry,
    content_len: u64,
    file: File,
    kept: Mutex<ChunkSet>,
    /// All of it was written: whoever comes again, as the receipt did not arrive, does not write it once more.
    written: Mutex<bool>,
}

impl Output {
    /// Content passes a file without a name, if any comes.
    pub(crate) fn new(passing: Option<File>) -> Self {
        Self { passing: Mutex::new(passing), begun: Mutex::default(), closed: AtomicBool::default() }
    }

    /// Whether standard output was closed by who read it.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

/// The place of one content, on its way to standard output.
struct Place {
    begun: Arc<Begun>,
    output: Arc<Output>,
}

/// [`Output`], shared with those who see what became of it.
pub(crate) struct ToOutput(pub Arc<Output>);

impl Destinations for ToOutput {
    fn open(&self, offered: Offered) -> Result<Arc<dyn Destination>, Refusal> {
        let mut begun = self.0.begun.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(begun) = begun.as_ref() {
            if begun.manifest_hash == offered.offer.manifest_hash {
                return Ok(Arc::new(Place { begun: Arc::clone(begun), output: Arc::clone(&self.0) }));
            }
            return Err(Refusal("standard output has something else already".to_owned()));
        }
        let count = offered.entries.len();
        let mut entries = offered.entries;
        let entry = entries.pop().filter(|entry| count == 1 && matches!(entry.kind, EntryKind::File { .. }));
        let Some(entry) = entry else {
            return Err(Refusal(
                "only one file can go to standard output, and more or another thing is sent: receive into a folder, with -o DIR"
                    .to_owned(),
            ));
        };
        let passing = self.0.passing.lock().unwrap_or_else(PoisonError::into_inner).take();
        let file = passing.ok_or_else(|| Refusal("standard output had something else already".to_owned()))?;
        let made = Arc::new(Begun {
            manifest_hash: offered.offer.manifest_hash,
            content_len: offered.offer.content_len,
            entry,
            file,
            kept: Mutex::new(ChunkSet::new(span_count(offered.offer.content_len))),
            written: Mutex::new(false),
        });
        *begun = Some(Arc::clone(&made));
        Ok(Arc::new(Place { begun: made, output: Arc::clone(&self.0) }))
    }
}

fn failed(name: &str, source: io::Error) -> DestinationError {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            DestinationError::Full(format!("{} is full", std::env::temp_dir().display()))
        }
        _ => DestinationError::Io { name: name.to_owned(), source },
    }
}

impl Destination for Place {
    fn kept(&self) -> ChunkSet {
        self.begun.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DestinationError> {
        let name = "the file before standard output";
        self.begun.file.write_all_at(bytes, offset).map_err(|error| failed(name, error))
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DestinationError> {
        let name = "the file before standard output";
        self.begun.file.read_exact_at(into, offset).map_err(|error| failed(name, error))
    }

    fn span_kept(&self, span: u64, _: &[u8; 32]) -> Result<(), DestinationError> {
        self.begun.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(span);
        Ok(())
    }

    fn finish(&self, _receipt: &Receipt) -> Result<(), DestinationError> {
        self.begun.write_once(&mut io::stdout().lock()).map_err(|source| {
            if source.kind() == ErrorKind::BrokenPipe {
                self.output.closed.store(true, Ordering::Relaxed);
            }
            DestinationError::Io { name: "standard output".to_owned(), source }
        })
    }
}

impl Begun {
    /// Writes the file, unless that was done.
    fn write_once(&self, out: &mut impl Write) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if !*written {
            self.write_out(out)?;
            *written = true;
        }
        Ok(())
    }

    /// Writes the file as it was sent, its holes as zeros.
    fn write_out(&self, out: &mut impl Write) -> io::Result<()> {
        let EntryKind::File { len, extents } = &self.entry.kind else { return Ok(()) };
        let (mut at, mut content) = (0, 0);
        let mut buffer = vec![0; BUFFER_LEN];
        for extent in extents.iter().cloned().chain(std::iter::once(*len..*len)) {
            buffer.fill(0);
            while at < extent.start {
                let count = (extent.start - at).min(BUFFER_LEN as u64);
                out.write_all(&buffer[..count as usize])?;
                at += count;
            }
            while at < extent.end {
                let count = (extent.end - at).min(BUFFER_LEN as u64).min(self.content_len - content);
                self.file.read_exact_at(&mut buffer[..count as usize], content)?;
                out.write_all(&buffer[..count as usize])?;
                (at, content) = (at + count, content + count);
            }
        }
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_zeros_on_standard_output_and_all_is_written_once() {
        let begun = Begun {
            manifest_hash: [0; 32],
            entry: Entry {
                name: b"a".to_vec(),
                mode: MODE,
                modified: (0, 0),
                kind: EntryKind::File { len: 3_000_010, extents: vec![5..8, 1_500_000..1_500_002] },
            },
            content_len: 5,
            file: nameless().unwrap(),
            kept: Mutex::new(ChunkSet::new(1)),
            written: Mutex::new(false),
        };
        begun.file.write_all_at(b"abcde", 0).unwrap();
        let mut out = Vec::new();
        begun.write_once(&mut out).unwrap();
        begun.write_once(&mut out).unwrap();
        let mut expected = vec![0; 3_000_010];
        expected[5..8].copy_from_slice(b"abc");
        expected[1_500_000..1_500_002].copy_from_slice(b"de");
        assert!(out == expected);
    }
}
