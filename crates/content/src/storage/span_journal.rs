//! Which spans of a transfer are there: a file of records beside what is received, of which any number may be cut off.
//!
//! ```text
//! header   magic (8)  manifest's SHA-256 (32)  sender's key (32)  boot id (16)  CRC-32C (4)      (integers are little-endian)
//! kept     1  first span u64  spans u64  CRC-32C u32
//! synced   2  records of kept that are on the disk u64  0 u64  CRC-32C u32
//! lease    3  from i64  until i64, nanoseconds since 1970  CRC-32C u32
//! hash     4  half of a SHA-256 (16)  CRC-32C u32
//! ```
//!
//! Two hash records follow a record of kept spans for each of its spans, in order: what the span's hash was. A sender whose source
//! changed without a trace says another one.
//!
//! Each checksum goes on from the one before, so a torn or foreign record ends the journal, and nothing before it is lost. Bytes handed to the
//! kernel outlive the process, but not the machine: with another boot id only what was synced counts. The lease says when we may have
//! written to files that are not whole yet: one that was changed at another time is somebody else's work.

use std::collections::HashMap;
use std::ops::Range;

use super::crc::crc32c;

const MAGIC: &[u8; 8] = b"anabulk1";
const HEADER_LEN: usize = 8 + 32 + 32 + 16 + 4;
const RECORD_LEN: usize = 1 + 8 + 8 + 4;
const KEPT: u8 = 1;
const SYNCED: u8 = 2;
const LEASE: u8 = 3;
const HASH: u8 = 4;
/// Longest journal that is read: three records a span, twice over, and leases of a year.
pub const JOURNAL_LEN_MAX: u64 = 160 << 20;

/// Whose journal it is, and of which run of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// SHA-256 of the manifest.
    pub manifest: [u8; 32],
    /// The sender's key.
    pub key: [u8; 32],
    /// The machine's boot id; zeros where it has none.
    pub boot: [u8; 16],
}

/// Anything that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Spans were written and verified.
    Kept(Range<u64>),
    /// The first so many records of kept spans are on the disk.
    Synced(u64),
    /// Files are written to within this time.
    Lease(i64, i64),
    /// Half of the hash of a span that was kept: see [`hash_records`].
    Hash([u8; 16]),
}

/// What follows [`Record::Kept`] for each of its spans.
pub fn hash_records(hash: &[u8; 32]) -> [Record; 2] {
    let (mut first, mut second) = ([0; 16], [0; 16]);
    first.copy_from_slice(&hash[..16]);
    second.copy_from_slice(&hash[16..]);
    [Record::Hash(first), Record::Hash(second)]
}

/// Writes a journal, record by record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    crc: u32,
}

impl Writer {
    /// The header, and who writes on.
    pub fn begin(identity: &Identity) -> (Self, Vec<u8>) {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(identity.manifest);
        bytes.extend(identity.key);
        bytes.extend(identity.boot);
        let crc = crc32c(0, &bytes);
        bytes.extend(crc.to_le_bytes());
        (Self { crc }, bytes)
    }

    /// The bytes of a record. Of those only that reach the file the next one may follow.
    pub fn record(&mut self, record: &Record) -> [u8; RECORD_LEN] {
        let (kind, one, other): (u8, [u8; 8], [u8; 8]) = match record {
            Record::Hash(half) => {
                let ([one, other], _) = half.as_chunks::<8>() else { unreachable!("16 bytes are twice 8") };
                (HASH, *one, *other)
            }
            Record::Kept(spans) => (KEPT, spans.start.to_le_bytes(), (spans.end - spans.start).to_le_bytes()),
            Record::Synced(records) => (SYNCED, records.to_le_bytes(), [0; 8]),
            Record::Lease(from, until) => (LEASE, from.to_le_bytes(), until.to_le_bytes()),
        };
        let mut bytes = [0; RECORD_LEN];
        bytes[0] = kind;
        bytes[1..9].copy_from_slice(&one);
        bytes[9..17].copy_from_slice(&other);
        self.crc = crc32c(self.crc, &bytes[..17]);
        bytes[17..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }
}

/// What a journal says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    /// Whose it is.
    pub identity: Identity,
    /// In order.
    pub records: Vec<Record>,
}

impl Journal {
    /// `None` where it is no journal of ours. What follows a torn record is left.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (header, mut rest) = bytes.split_at_checked(HEADER_LEN)?;
        let (head, crc) = header.split_last_chunk::<4>()?;
        let mut seed = crc32c(0, head);
        if !head.starts_with(MAGIC) || seed != u32::from_le_bytes(*crc) {
            return None;
        }
        let identity = Identity {
            manifest: head[8..40].try_into().ok()?,
            key: head[40..72].try_into().ok()?,
            boot: head[72..88].try_into().ok()?,
        };
        let mut records = Vec::new();
        while let Some((record, more)) = rest.split_first_chunk::<RECORD_LEN>() {
            let (Some((body, crc)), [kind, numbers @ ..]) = (record.split_last_chunk::<4>(), record) else { break };
            seed = crc32c(seed, body);
            if seed != u32::from_le_bytes(*crc) {
                break;
            }
            let ([one, other], _) = numbers.as_chunks::<8>() else { break };
            let (first, second) = (u64::from_le_bytes(*one), u64::from_le_bytes(*other));
            match *kind {
                KEPT => match first.checked_add(second) {
                    Some(end) => records.push(Record::Kept(first..end)),
                    None => break,
                },
                SYNCED => records.push(Record::Synced(first)),
                LEASE => records.push(Record::Lease(first.cast_signed(), second.cast_signed())),
                HASH => {
                    let mut half = [0; 16];
                    half.copy_from_slice(&body[1..]);
                    records.push(Record::Hash(half));
                }
                _ => break,
            }
            rest = more;
        }
        Some(Self { identity, records })
    }

    /// The spans that count in a machine's run of this id.
    pub fn kept(&self, boot: [u8; 16]) -> Vec<Range<u64>> {
        let same_run = self.identity.boot == boot && boot != [0; 16];
        let count = if same_run { usize::MAX } else { self.synced() as usize };
        let kept = self.records.iter().filter_map(|record| match record {
            Record::Kept(spans) => Some(spans.clone()),
            _ => None,
        });
        kept.take(count).collect()
    }

    /// Spans that were kept since the last sync: what is on the disk of them is not known, whatever was there before.
    pub fn unsynced(&self) -> Vec<Range<u64>> {
        let kept = self.records.iter().filter_map(|record| match record {
            Record::Kept(spans) => Some(spans.clone()),
            _ => None,
        });
        kept.skip(self.synced() as usize).collect()
    }

    /// The same without the spans that are not known to be on the disk, and no longer: whoever writes on, the bytes, and how many records
    /// of kept spans are in them.
    pub fn without_unsynced(&self) -> (Writer, Vec<u8>, u64) {
        let synced = self.synced();
        let (mut writer, mut bytes) = Writer::begin(&self.identity);
        let (mut seen, mut leases) = (0, Vec::new());
        for record in &self.records {
            match record {
                Record::Lease(..) => leases.push(record),
                Record::Synced(_) => {}
                Record::Kept(_) | Record::Hash(_) => {
                    seen += u64::from(matches!(record, Record::Kept(_)));
                    if seen <= synced {
                        bytes.extend(writer.record(record));
                    }
                }
            }
        }
        let kept = seen.min(synced);
        if kept > 0 {
            bytes.extend(writer.record(&Record::Synced(kept)));
        }
        leases.into_iter().for_each(|lease| bytes.extend(writer.record(lease)));
        (writer, bytes, kept)
    }

    /// How many records of kept spans are on the disk, the first of them.
    fn synced(&self) -> u64 {
        let synced = self.records.iter().filter_map(|record| match record {
            Record::Synced(records) => Some(*records),
            _ => None,
        });
        synced.max().unwrap_or(0)
    }

    /// The hashes that spans had when they were kept, as far as they were recorded.
    pub fn hashes(&self) -> HashMap<u64, [u8; 32]> {
        let mut hashes = HashMap::new();
        let (mut spans, mut half) = (0..0, None);
        for record in &self.records {
            match record {
                Record::Kept(kept) => {
                    (spans, half) = (kept.clone(), None);
                    // What it was before says nothing any more.
                    if kept.end - kept.start <= hashes.len() as u64 {
                        kept.clone().for_each(|span| _ = hashes.remove(&span));
                    } else {
                        hashes.retain(|span, _| !kept.contains(span));
                    }
                }
                Record::Hash(bytes) => match half.take() {
                    None => half = Some(*bytes),
                    Some(first) => {
                        if let Some(span) = spans.next() {
                            let mut hash = [0; 32];
                            hash[..16].copy_from_slice(&first);
                            hash[16..].copy_from_slice(bytes);
                            hashes.insert(span, hash);
                        }
                    }
                },
                Record::Synced(_) | Record::Lease(..) => {}
            }
        }
        hashes
    }

    /// When files were written to: from, until; apart from each other.
    pub fn leases(&self) -> Vec<(i64, i64)> {
        let mut leases: Vec<(i64, i64)> = Vec::new();
        for record in &self.records {
            let Record::Lease(from, until) = *record else { continue };
            match leases.last_mut() {
                Some(last) if (last.0..=last.1).contains(&from) => last.1 = last.1.max(until),
                _ => leases.push((from, until)),
            }
        }
        leases
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record() -> impl Strategy<Value = Record> {
        prop_oneof![
            (0..1u64 << 40, 0..1u64 << 40).prop_map(|(start, len)| Record::Kept(start..start + len)),
            any::<u64>().prop_map(Record::Synced),
            (any::<i64>(), any::<i64>()).prop_map(|(from, until)| Record::Lease(from, until)),
            any::<[u8; 16]>().prop_map(Record::Hash),
        ]
    }

    proptest! {
        /// Cut anywhere, with any byte of the rest turned: the records before that are there, and no others.
        #[test]
        fn torn_and_decayed_journals_keep_what_is_before(
            records in prop::collection::vec(record(), 0..12), cut in any::<prop::sample::Index>(), turned in any::<prop::sample::Index>(),
        ) {
            let identity = Identity { manifest: [1; 32], key: [2; 32], boot: [3; 16] };
            let (mut writer, mut bytes) = Writer::begin(&identity);
            records.iter().for_each(|record| bytes.extend(writer.record(record)));
            prop_assert_eq!(Journal::parse(&bytes), Some(Journal { identity, records: records.clone() }));
            let whole = |len: usize| len.checked_sub(HEADER_LEN).map(|len| len / RECORD_LEN);
            let at = cut.index(bytes.len() + 1);
            let read = Journal::parse(&bytes[..at]).map(|journal| journal.records);
            prop_assert_eq!(read, whole(at).map(|count| records[..count].to_vec()));
            let at = turned.index(bytes.len());
            bytes[at] ^= 0x10;
            let read = Journal::parse(&bytes).map(|journal| journal.records);
            prop_assert_eq!(read, whole(at).map(|count| records[..count].to_vec()));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Journal::parse(&bytes);
        }
    }

    #[test]
    fn after_a_reboot_only_what_was_synced_counts() {
        let identity = Identity { manifest: [1; 32], key: [2; 32], boot: [3; 16] };
        let records = vec![Record::Kept(0..2), Record::Kept(5..6), Record::Synced(1), Record::Kept(7..8)];
        let journal = Journal { identity, records };
        assert_eq!(journal.kept([3; 16]), [0..2, 5..6, 7..8]);
        assert_eq!(journal.kept([4; 16]), [0..2]);
    }

    #[test]
    fn the_last_hash_of_a_span_counts_and_one_that_was_kept_without_has_none() {
        let identity = Identity { manifest: [1; 32], key: [2; 32], boot: [3; 16] };
        let hash = |byte: u8| std::array::from_fn(|at| byte + (at / 16) as u8);
        let mut records = vec![Record::Kept(4..6)];
        records.extend([10, 20].iter().flat_map(|byte| hash_records(&hash(*byte))));
        records.extend([Record::Lease(1, 2), Record::Kept(8..9), Record::Kept(5..6)]);
        records.extend(hash_records(&hash(30)));
        records.push(Record::Kept(4..5));
        // Torn.
        records.push(Record::Hash([7; 16]));
        let hashes = Journal { identity, records }.hashes();
        assert_eq!(hashes, HashMap::from([(5, hash(30))]));
    }

    #[test]
    fn what_was_not_synced_is_left_out_and_leases_stay() {
        let identity = Identity { manifest: [1; 32], key: [2; 32], boot: [3; 16] };
        let hash = |byte| hash_records(&[byte; 32]);
        let mut records = vec![Record::Kept(0..1)];
        records.extend(hash(1));
        records.extend([Record::Lease(1, 2), Record::Kept(5..6)]);
        records.extend(hash(2));
        // The second was kept while the first was being synced.
        records.extend([Record::Synced(1), Record::Lease(7, 9), Record::Kept(7..8)]);
        records.extend(hash(3));
        let journal = Journal { identity, records };
        assert_eq!(journal.unsynced(), [5..6, 7..8]);
        let (mut writer, mut bytes, kept) = journal.without_unsynced();
        let left = Journal::parse(&bytes).unwrap();
        assert_eq!((kept, left.kept([3; 16]), left.kept([4; 16])), (1, vec![0..1], vec![0..1]));
        assert_eq!((left.hashes(), left.leases()), (HashMap::from([(0, [1; 32])]), vec![(1, 2), (7, 9)]));
        // It is written on.
        bytes.extend(writer.record(&Record::Kept(9..10)));
        assert_eq!(Journal::parse(&bytes).unwrap().kept([3; 16]), [0..1, 9..10]);
        let nothing = Journal { identity, records: vec![Record::Kept(0..4), Record::Lease(1, 2)] }.without_unsynced();
        let left = Journal::parse(&nothing.1).unwrap();
        assert!(nothing.2 == 0 && left.kept([3; 16]).is_empty() && left.leases() == [(1, 2)]);
    }

    #[test]
    fn leases_that_follow_each_other_are_one() {
        let identity = Identity { manifest: [1; 32], key: [2; 32], boot: [3; 16] };
        let records = [(5, 15), (10, 20), (100, 110), (105, 115)].map(|(from, until)| Record::Lease(from, until));
        assert_eq!(Journal { identity, records: records.to_vec() }.leases(), [(5, 20), (100, 115)]);
    }
}
