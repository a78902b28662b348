//! What is remembered of a content between two runs: the format of the resume file, and what to believe of it.
//!
//! The file is a snapshot with a checksum, followed by a journal of short records, each with a checksum that continues the
//! snapshot's. A torn or foreign record ends the journal; nothing before it is lost.
//!
//! ```text
//! snapshot   magic (8)  version u32  body length u32  body  CRC-32C u32          (integers are little-endian)
//! verified   1  piece u32  CRC-32C u32
//! failed     2  piece u32  CRC-32C u32
//! lease      3  file u32  from i64  until i64  CRC-32C u32
//! ```
//!
//! # Noticing changes behind our back
//!
//! The snapshot holds each file's size, modification time and inode. Our own writes move the modification time on, and after
//! `kill -9` there is nobody to record the last one. So before writing to a file we take a *lease* on it: a record that we may write
//! to it from now until shortly after. A file is believed when it looks as in the snapshot, or when its modification time falls
//! into its lease. Otherwise its pieces are hashed again: cheap, and nothing is lost. What escapes is a change by somebody else
//! within seconds after our last write, by somebody who keeps the inode and the size.
//!
//! # Power cuts
//!
//! Bytes handed to the kernel outlive the process, but not the machine. The snapshot holds the machine's boot id. After a
//! reboot only pieces in `durable` (synced before the snapshot was written) are believed; the others are hashed again. A disk
//! that is pulled out without unmounting while the machine runs on is not noticed by this.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use crate::bitfield::Bitfield;
use crate::info::InfoHashes;
use crate::storage::Storage;
use crate::storage::crc::crc32c;

/// First bytes of a resume file.
const MAGIC: &[u8; 8] = b"anabresm";
/// Changes whenever the meaning of the bytes does; other versions are not read, and the content is checked instead.
const FORMAT_VERSION: u32 = 1;
pub(super) const HEADER_LEN: usize = 16;
const CRC_LEN: usize = 4;
/// The kernel stamps files by a clock of its ticks, which lags behind the one we read; 4 to 10 ms as a rule.
const CLOCK_LAG_NS: i64 = 1_000_000_000;

/// More files than any content has; bounds the memory that a forged file list takes (100 MB).
const FILES_LIMIT: usize = 1 << 21;

const RECORD_VERIFIED: u8 = 1;
const RECORD_FAILED: u8 = 2;
const RECORD_LEASE: u8 = 3;

const HAS_STAMP: u8 = 1;
const HAS_LEASE: u8 = 2;
const IS_FOREIGN: u8 = 4;

/// How a file looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Number of the file in its file system.
    pub inode: u64,
}

impl Stamp {
    pub(super) fn of(meta: &Metadata) -> Self {
        let mtime_ns = meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec());
        Self { size: meta.len(), mtime_ns, inode: meta.ino() }
    }
}

/// When we may have written to a file, nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Not before.
    pub from_ns: i64,
    /// Not after.
    pub until_ns: i64,
}

/// What is known of one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileRecord {
    /// How it looked when the snapshot was written; `None` where it was not there.
    pub stamp: Option<Stamp>,
    /// When we may have written to it since.
    pub lease: Option<Lease>,
    /// It stood there before us, and nothing of it is known to be the content's.
    pub foreign: bool,
}

/// The state of a content that survives the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Whose state it is.
    pub hashes: InfoHashes,
    /// The machine's boot id when it was written; zeros where it has none.
    pub boot: [u8; 16],
    /// Pieces written and verified.
    pub have: Bitfield,
    /// Those of `have` whose bytes were forced to the disk first.
    pub durable: Bitfield,
    /// Pieces that were good once and have to be hashed again; none of them is in `have`.
    pub recheck: Bitfield,
    /// Per file of the list, and a last one for the file of unwanted bytes.
    pub files: Vec<FileRecord>,
    /// Per file of the list; 0 is unwanted.
    pub priorities: Vec<u8>,
    /// Bytes of payload received in all.
    pub downloaded: u64,
    /// Bytes of payload sent in all.
    pub uploaded: u64,
}

/// Why a resume file cannot be used. The remedy is always the same: check the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    /// Not a resume file.
    #[error("this is not a resume file; the content has to be checked")]
    NotResume,
    /// Written by another version.
    #[error(
        "the resume file has format version {0}, this program reads {FORMAT_VERSION}; the content has to be checked"
    )]
    Version(u32),
    /// Cut short or decayed.
    #[error("the resume file is damaged; the content has to be checked")]
    Damaged,
    /// Of another content, or of the same with other pieces or files.
    #[error("the resume file belongs to another content; this one has to be checked")]
    Foreign,
}

/// What differs about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is gone.
    Missing,
    /// It was not there before, or it has another size, time or inode.
    Touched,
}

/// What can be believed of a resume file, see [`Resume::reconcile`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reconciled {
    /// Pieces that need no check.
    pub have: Bitfield,
    /// Pieces to hash again, in order.
    pub recheck: Vec<u32>,
    /// Files that changed behind our back and hold pieces we had; index in the file list.
    pub changed: Vec<(usize, Change)>,
}

impl Resume {
    /// Nothing is known yet.
    pub fn empty(storage: &Storage) -> Self {
        let info = storage.info();
        let pieces = info.geometry.piece_count();
        Self {
            hashes: info.hashes,
            boot: [0; 16],
            have: Bitfield::new(pieces),
            durable: Bitfield::new(pieces),
            recheck: Bitfield::new(pieces),
            files: vec![FileRecord::default(); info.files.len() + 1],
            priorities: vec![1; info.files.len()],
            downloaded: 0,
            uploaded: 0,
        }
    }

    /// The bytes of a snapshot without journal.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256 + self.files.len() * 41 + self.have.as_bytes().len() * 3);
        out.extend(MAGIC);
        out.extend(FORMAT_VERSION.to_le_bytes());
        out.extend([0; 4]);
        out.push(u8::from(self.hashes.v1.is_some()) | u8::from(self.hashes.v2.is_some()) << 1);
        out.extend(self.hashes.v1.iter().flatten());
        out.extend(self.hashes.v2.iter().flatten());
        out.extend(self.boot);
        out.extend(self.downloaded.to_le_bytes());
        out.extend(self.uploaded.to_le_bytes());
        out.extend(self.have.len().to_le_bytes());
        for field in [&self.have, &self.durable, &self.recheck] {
            out.extend(field.as_bytes());
        }
        out.extend((self.priorities.len() as u32).to_le_bytes());
        out.extend(&self.priorities);
        for file in &self.files {
            let (stamp, lease) = (file.stamp.map_or(0, |_| HAS_STAMP), file.lease.map_or(0, |_| HAS_LEASE));
            out.push(stamp | lease | if file.foreign { IS_FOREIGN } else { 0 });
            if let Some(stamp) = file.stamp {
                out.extend(stamp.size.to_le_bytes());
                out.extend(stamp.mtime_ns.to_le_bytes());
                out.extend(stamp.inode.to_le_bytes());
            }
            if let Some(lease) = file.lease {
                out.extend(lease.from_ns.to_le_bytes());
                out.extend(lease.until_ns.to_le_bytes());
            }
        }
        let body_len = (out.len() - HEADER_LEN) as u32;
        out[12..16].copy_from_slice(&body_len.to_le_bytes());
        out.extend(crc32c(0, &out).to_le_bytes());
        out
    }

    /// Reads a snapshot and its journal. Takes memory in proportion to `bytes`, whatever they say.
    pub fn decode(bytes: &[u8]) -> Result<Self, ResumeError> {
        Self::decode_with_end(bytes).map(|(resume, _)| resume)
    }

    /// Also answers where the good part of the journal ends.
    pub(super) fn decode_with_end(bytes: &[u8]) -> Result<(Self, usize), ResumeError> {
        if bytes.get(..8) != Some(MAGIC) {
            return Err(ResumeError::NotResume);
        }
        let mut header = Reader(bytes.get(8..HEADER_LEN).ok_or(ResumeError::Damaged)?);
        let version = header.u32()?;
        if version != FORMAT_VERSION {
            return Err(ResumeError::Version(version));
        }
        let body_end = HEADER_LEN.checked_add(header.u32()? as usize).ok_or(ResumeError::Damaged)?;
        let body = bytes.get(HEADER_LEN..body_end).ok_or(ResumeError::Damaged)?;
        let crc = Reader(&bytes[body_end..]).u32()?;
        if crc32c(0, &bytes[..body_end]) != crc {
            return Err(ResumeError::Damaged);
        }
        let mut resume = Self::decode_body(body)?;
        let journal_start = body_end + CRC_LEN;
        let good = resume.replay(&bytes[journal_start..], crc);
        Ok((resume, journal_start + good))
    }

    /// Compares with the disk: what needs no check, what does, and which files changed.
    ///
    /// `boot` is the machine's boot id now. The caller saw to it that the state belongs to `storage` ([`Resume::fits`]).
    pub fn reconcile(&self, storage: &Storage, boot: [u8; 16]) -> Reconciled {
        let same_boot = self.boot == boot && boot != [0; 16];
        let mut have = if same_boot { self.have.clone() } else { self.durable.clone() };
        let mut recheck = self.recheck.clone();
        for piece in self.have.iter_ones().filter(|piece| !have.get(*piece)) {
            recheck.set(piece);
        }
        let geometry = &storage.info().geometry;
        let parts_stamp = storage.parts_stamp();
        let parts_as_left = matches!((parts_stamp, self.files.last()),
            (Some(stamp), Some(record)) if record.explains(stamp, None));
        let mut changed = Vec::new();
        for (file, entry) in storage.info().files.iter().enumerate() {
            if entry.length == 0 || entry.kind != crate::info::FileKind::Regular {
                continue;
            }
            let change = match storage.stamp(file) {
                Some(stamp) if self.files[file].explains(stamp, Some(entry.length)) => continue,
                Some(_) => Change::Touched,
                None if parts_as_left && self.files[file] == FileRecord::default() => continue,
                None => Change::Missing,
            };
            let pieces = geometry.piece_at(entry.offset)..=geometry.piece_at(entry.offset + entry.length - 1);
            let mut held_any = false;
            for piece in pieces {
                held_any |= recheck.get(piece);
                if have.clear(piece) {
                    recheck.set(piece);
                    held_any = true;
                }
            }
            if held_any {
                changed.push((file, change));
            }
        }
        Reconciled { have, recheck: recheck.iter_ones().collect(), changed }
    }

    /// Files on disk that are not known to be ours: they were not there when the state was written, or are others by now.
    pub fn strangers(&self, storage: &Storage) -> Vec<usize> {
        let is_stranger = |file: &usize| {
            let (record, now) = (&self.files[*file], storage.stamp(*file));
            let length = storage.info().files[*file].length;
            now.is_some_and(|now| {
                let ours =
                    record.stamp.is_some_and(|before| before.inode == now.inode) || record.explains(now, Some(length));
                length > 0 && now.size > 0 && (record.foreign || !ours)
            })
        };
        storage.info().regular_files().map(|(file, _)| file).filter(is_stranger).collect()
    }

    /// Files that somebody may have written to since the state was written: they look otherwise, or a lease was never ended.
    pub(super) fn unsettled(&self, storage: &Storage) -> Vec<usize> {
        let is_unsettled = |file: &usize| {
            let (record, length) = (&self.files[*file], storage.info().files[*file].length);
            storage.stamp(*file).is_some_and(|now| record.lease.is_some() || !record.explains(now, Some(length)))
        };
        storage.info().regular_files().map(|(file, _)| file).filter(is_unsettled).collect()
    }

    /// Whether this is the state of `storage`'s content.
    pub fn fits(&self, storage: &Storage) -> bool {
        let info = storage.info();
        self.hashes == info.hashes
            && self.have.len() == info.geometry.piece_count()
            && self.priorities.len() == info.files.len()
    }

    fn decode_body(body: &[u8]) -> Result<Self, ResumeError> {
        let mut body = Reader(body);
        let which = body.u8()?;
        let v1 = (which & 1 != 0).then(|| body.array()).transpose()?;
        let v2 = (which & 2 != 0).then(|| body.array()).transpose()?;
        let boot = body.array()?;
        let (downloaded, uploaded) = (body.u64()?, body.u64()?);
        let pieces = body.u32()?;
        let mut field = || {
            let bytes = body.take(pieces.div_ceil(8) as usize)?;
            Bitfield::from_bytes(bytes, pieces).ok_or(ResumeError::Damaged)
        };
        let (have, durable, recheck) = (field()?, field()?, field()?);
        let apart = |(have, (durable, recheck)): (&u8, (&u8, &u8))| durable & !have == 0 && have & recheck == 0;
        if !(have.as_bytes().iter().zip(durable.as_bytes().iter().zip(recheck.as_bytes()))).all(apart) {
            return Err(ResumeError::Damaged);
        }
        let file_count = body.u32()? as usize;
        if file_count > FILES_LIMIT {
            return Err(ResumeError::Damaged);
        }
        let priorities = body.take(file_count)?.to_vec();
        let mut files = Vec::new();
        for _ in 0..=file_count {
            files.push(body.file_record()?);
        }
        if !body.0.is_empty() || which > 3 {
            return Err(ResumeError::Damaged);
        }
        let hashes = InfoHashes { v1, v2 };
        Ok(Self { hashes, boot, have, durable, recheck, files, priorities, downloaded, uploaded })
    }

    /// Applies the records of a journal up to the first that is not whole; answers the bytes of those applied.
    fn replay(&mut self, journal: &[u8], crc: u32) -> usize {
        let mut reader = Reader(journal);
        let mut good = 0;
        while let Ok(record) = reader.record(crc) {
            match record {
                Record::Verified(piece) => self.note_verified(piece),
                Record::Failed(piece) => self.note_failed(piece),
                Record::Lease(file, lease) => self.note_lease(file, lease),
            }
            good = journal.len() - reader.0.len();
        }
        good
    }

    pub(super) fn note_verified(&mut self, piece: u32) {
        self.recheck.clear(piece);
        self.have.set(piece);
    }

    pub(super) fn note_failed(&mut self, piece: u32) {
        self.recheck.clear(piece);
        self.durable.clear(piece);
        self.have.clear(piece);
    }

    pub(super) fn note_lease(&mut self, file: u32, lease: Lease) {
        let Some(record) = self.files.get_mut(file as usize) else { return };
        let from_ns = record.lease.map_or(lease.from_ns, |earlier| earlier.from_ns.min(lease.from_ns));
        record.lease = Some(Lease { from_ns, until_ns: lease.until_ns });
    }
}

impl FileRecord {
    /// Whether a file that looks like `stamp` is the one we left. `length`: what it has once we wrote to it, where that is fixed.
    pub(super) fn explains(&self, stamp: Stamp, length: Option<u64>) -> bool {
        if self.stamp == Some(stamp) {
            return true;
        }
        let same_inode = self.stamp.is_none_or(|before| before.inode == stamp.inode);
        let whole = length.is_none_or(|length| length == stamp.size);
        same_inode && whole && self.lease.is_some_and(|lease| lease.covers(stamp.mtime_ns))
    }
}

impl Lease {
    fn covers(&self, mtime_ns: i64) -> bool {
        (self.from_ns.saturating_sub(CLOCK_LAG_NS)..=self.until_ns).contains(&mtime_ns)
    }
}

/// One entry of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The piece was written and its hash is right.
    Verified(u32),
    /// The piece turned out bad.
    Failed(u32),
    /// We may write to the file.
    Lease(u32, Lease),
}

impl Record {
    /// Appends the record's bytes; `crc` is the checksum of the snapshot that it belongs to.
    pub(super) fn encode(self, crc: u32, out: &mut Vec<u8>) {
        let start = out.len();
        let (kind, index) = match self {
            Self::Verified(piece) => (RECORD_VERIFIED, piece),
            Self::Failed(piece) => (RECORD_FAILED, piece),
            Self::Lease(file, _) => (RECORD_LEASE, file),
        };
        out.push(kind);
        out.extend(index.to_le_bytes());
        if let Self::Lease(_, lease) = self {
            out.extend(lease.from_ns.to_le_bytes());
            out.extend(lease.until_ns.to_le_bytes());
        }
        out.extend(crc32c(crc, &out[start..]).to_le_bytes());
    }
}

/// The snapshot's own checksum: its last bytes.
pub(super) fn snapshot_crc(snapshot: &[u8]) -> u32 {
    snapshot.last_chunk().map_or(0, |crc| u32::from_le_bytes(*crc))
}

/// Bytes of the snapshot, its checksum included, going by its header.
pub(super) fn snapshot_len(header: &[u8; HEADER_LEN]) -> u64 {
    let body_len = header.last_chunk().map_or(0, |len| u32::from_le_bytes(*len));
    (HEADER_LEN + CRC_LEN) as u64 + u64::from(body_len)
}

/// Takes values off the front of a slice.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], ResumeError> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(ResumeError::Damaged)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ResumeError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(ResumeError::Damaged)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, ResumeError> {
        self.array().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, ResumeError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, ResumeError> {
        self.array().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64, ResumeError> {
        self.array().map(i64::from_le_bytes)
    }

    fn lease(&mut self) -> Result<Lease, ResumeError> {
        Ok(Lease { from_ns: self.i64()?, until_ns: self.i64()? })
    }

    fn file_record(&mut self) -> Result<FileRecord, ResumeError> {
        let flags = self.u8()?;
        if flags & !(HAS_STAMP | HAS_LEASE | IS_FOREIGN) != 0 {
            return Err(ResumeError::Damaged);
        }
        let mut record = FileRecord { foreign: flags & IS_FOREIGN != 0, ..FileRecord::default() };
        if flags & HAS_STAMP != 0 {
            record.stamp = Some(Stamp { size: self.u64()?, mtime_ns: self.i64()?, inode: self.u64()? });
        }
        if flags & HAS_LEASE != 0 {
            record.lease = Some(self.lease()?);
        }
        Ok(record)
    }

    fn record(&mut self, seed: u32) -> Result<Record, ResumeError> {
        let start = self.0;
        let kind = self.u8()?;
        let index = self.u32()?;
        let record = match kind {
            RECORD_VERIFIED => Record::Verified(index),
            RECORD_FAILED => Record::Failed(index),
            RECORD_LEASE => Record::Lease(index, self.lease()?),
            _ => return Err(ResumeError::Damaged),
        };
        let checked = crc32c(seed, &start[..start.len() - self.0.len()]);
        if self.u32()? == checked { Ok(record) } else { Err(ResumeError::Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(len: u32) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(0u8..4, len as usize)
    }

    prop_compose! {
        fn any_resume()(pieces in 0u32..40, files in 0usize..6)(
            states in field(pieces), boot in any::<[u8; 16]>(), downloaded in any::<u64>(), uploaded in any::<u64>(),
            v1 in any::<Option<[u8; 20]>>(), v2 in any::<Option<[u8; 32]>>(),
            priorities in proptest::collection::vec(any::<u8>(), files),
            records in proptest::collection::vec(any::<(Option<(u64, i64, u64)>, Option<(i64, i64)>, bool)>(), files + 1),
        ) -> Resume {
            let pieces = states.len() as u32;
            let fill = |keep: &[u8]| {
                let mut field = Bitfield::new(pieces);
                (0..pieces).filter(|piece| keep.contains(&states[*piece as usize])).for_each(|piece| { field.set(piece); });
                field
            };
            let files = records.into_iter().map(|(stamp, lease, foreign)| FileRecord {
                foreign,
                stamp: stamp.map(|(size, mtime_ns, inode)| Stamp { size, mtime_ns, inode }),
                lease: lease.map(|(from_ns, until_ns)| Lease { from_ns, until_ns }),
            }).collect();
            Resume {
                hashes: InfoHashes { v1, v2 }, boot, have: fill(&[1, 2]), durable: fill(&[2]), recheck: fill(&[3]), files,
                priorities, downloaded, uploaded,
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(resume in any_resume()) {
            prop_assert_eq!(Resume::decode(&resume.encode()), Ok(resume));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Resume::decode(&bytes);
            let body: Vec<u8> = bytes;
            let mut framed = MAGIC.to_vec();
            framed.extend(FORMAT_VERSION.to_le_bytes());
            framed.extend((body.len() as u32).to_le_bytes());
            framed.extend(body);
            framed.extend(crc32c(0, &framed).to_le_bytes());
            let _ = Resume::decode(&framed);
        }

        #[test]
        fn a_flipped_bit_never_passes(resume in any_resume(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let mut bytes = resume.encode();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(Resume::decode(&bytes).is_err());
        }

        /// Death at every byte of the journal: all records before it count, none after.
        #[test]
        fn a_torn_journal_loses_only_its_tail(resume in any_resume(), pieces in proptest::collection::vec(0u32..40, 1..8)) {
            let snapshot = resume.encode();
            let crc = snapshot_crc(&snapshot);
            let mut bytes = snapshot.clone();
            let mut ends = vec![bytes.len()];
            for piece in &pieces {
                Record::Verified(*piece).encode(crc, &mut bytes);
                ends.push(bytes.len());
            }
            for len in snapshot.len()..=bytes.len() {
                let whole = ends.iter().filter(|end| **end <= len).count() - 1;
                let mut expected = resume.clone();
                pieces[..whole].iter().for_each(|piece| expected.note_verified(*piece));
                prop_assert_eq!(Resume::decode_with_end(&bytes[..len]), Ok((expected, ends[whole])));
            }
            for len in 0..snapshot.len() {
                prop_assert!(Resume::decode(&bytes[..len]).is_err());
            }
        }
    }

    #[test]
    fn records_of_another_snapshot_do_not_count() {
        let resume = Resume {
            hashes: InfoHashes { v1: None, v2: None },
            boot: [1; 16],
            have: Bitfield::new(9),
            durable: Bitfield::new(9),
            recheck: Bitfield::new(9),
            files: vec![FileRecord::default()],
            priorities: Vec::new(),
            downloaded: 0,
            uploaded: 0,
        };
        let mut bytes = resume.encode();
        let crc = snapshot_crc(&bytes);
        Record::Verified(3).encode(crc ^ 1, &mut bytes);
        assert_eq!(Resume::decode(&bytes), Ok(resume.clone()));
        assert_eq!(Resume::decode(b"d8:announce"), Err(ResumeError::NotResume));
        let mut newer = resume.encode();
        newer[8] = 2;
        assert_eq!(Resume::decode(&newer), Err(ResumeError::Version(2)));
    }

    #[test]
    fn the_file_list_has_a_limit() {
        let with_files = |count: usize| Resume {
            hashes: InfoHashes { v1: None, v2: None },
            boot: [0; 16],
            have: Bitfield::new(0),
            durable: Bitfield::new(0),
            recheck: Bitfield::new(0),
            files: vec![FileRecord::default(); count + 1],
            priorities: vec![1; count],
            downloaded: 0,
            uploaded: 0,
        };
        assert!(Resume::decode(&with_files(FILES_LIMIT).encode()).is_ok());
        assert_eq!(Resume::decode(&with_files(FILES_LIMIT + 1).encode()), Err(ResumeError::Damaged));
    }

    #[test]
    fn a_lease_explains_our_writes_and_no_others() {
        let second = 1_000_000_000;
        let stamp = Stamp { size: 10, mtime_ns: 100 * second, inode: 5 };
        let record = FileRecord {
            stamp: Some(stamp),
            lease: Some(Lease { from_ns: 200 * second, until_ns: 210 * second }),
            foreign: false,
        };
        let at = |mtime_ns| Stamp { mtime_ns, ..stamp };
        assert!(record.explains(stamp, Some(10)));
        assert!(
            record.explains(at(200 * second - CLOCK_LAG_NS), Some(10)) && record.explains(at(210 * second), Some(10))
        );
        assert!(!record.explains(at(200 * second - CLOCK_LAG_NS - 1), Some(10)));
        assert!(!record.explains(at(210 * second + 1), Some(10)));
        assert!(!record.explains(Stamp { inode: 6, ..at(205 * second) }, Some(10)));
        assert!(!record.explains(Stamp { size: 9, ..at(205 * second) }, Some(10)));
    }
}
