//! The record of what is being received, as it lies beside that: which spans were written, which of them are on the disk, and when
//! files were written to.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anabranch_content::storage::Below;
use anabranch_content::storage::span_journal::{Identity, JOURNAL_LEN_MAX, Journal, Record, Writer, hash_records};
use anabranch_hercules::ChunkSet;

/// How far ahead a lease reaches. It is renewed when half of it is gone.
const LEASE_NS: i64 = 10_000_000_000;
/// File systems stamp files by a clock that lags behind ours.
const CLOCK_LAG_NS: i64 = 1_000_000_000;
/// Bytes of the first name in the journal's: the rest must fit into 255, too.
const JOURNAL_NAME_LEN: usize = 180;

/// The journal as it is on disk.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    writer: Writer,
    len: u64,
    /// Records of kept spans in it.
    kept: u64,
    lease_until: i64,
    /// A sync failed: nothing more is recorded in this run, as it may be about what was lost by that.
    is_void: bool,
}

impl Log {
    /// How many records of kept spans there are.
    pub(super) fn kept(&self) -> u64 {
        self.kept
    }

    pub(super) fn append(&mut self, records: &[Record]) -> io::Result<()> {
        if self.is_void {
            return Err(io::Error::other("the disk did not take what was written before; begin again"));
        }
        let mut writer = self.writer;
        let bytes: Vec<u8> = records.iter().flat_map(|record| writer.record(record)).collect();
        // One that was written by half is written over by the next.
        self.file.write_all_at(&bytes, self.len)?;
        (self.writer, self.len) = (writer, self.len + bytes.len() as u64);
        self.kept += records.iter().filter(|record| matches!(record, Record::Kept(_))).count() as u64;
        Ok(())
    }

    /// The first `kept` records of kept spans are on the disk.
    pub(super) fn note_synced(&mut self, kept: u64) -> io::Result<()> {
        self.append(&[Record::Synced(kept)])?;
        self.file.sync_data()
    }

    /// Before a write: it will fall into the lease.
    pub(super) fn renew_lease(&mut self) -> io::Result<()> {
        let now = now_ns();
        let (from, until) = (now - CLOCK_LAG_NS, now + LEASE_NS);
        if self.lease_until - now < LEASE_NS / 2 {
            self.append(&[Record::Lease(from, until)])?;
            self.lease_until = until;
        }
        Ok(())
    }

    /// A sync failed: what was kept since the last one that did not does not count any more, now or for whoever begins again. What takes
    /// the journal's place is no longer than it was, so that it fits where there is no room; of one that is torn by a crash meanwhile less
    /// counts, never more.
    pub(super) fn void(&mut self) -> io::Result<()> {
        self.is_void = true;
        let mut bytes = vec![0; usize::try_from(self.len).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut bytes, 0)?;
        let journal = Journal::parse(&bytes).ok_or(io::ErrorKind::InvalidData)?;
        let (writer, bytes, kept) = journal.without_unsynced();
        self.file.write_all_at(&bytes, 0)?;
        self.file.set_len(bytes.len() as u64)?;
        (self.writer, self.len, self.kept) = (writer, bytes.len() as u64, kept);
        Ok(())
    }
}

/// `.<first name>-<first 8 hex digits of the manifest's hash>.anabranch-receive`: hidden, and never sent itself.
pub(super) fn journal_name(tops: &[PathBuf], identity: &Identity) -> PathBuf {
    let first = tops.first().map(|top| top.to_string_lossy().into_owned()).unwrap_or_default();
    let [a, b, c, d, ..] = identity.manifest;
    let first = &first[..first.floor_char_boundary(JOURNAL_NAME_LEN)];
    format!(".{first}-{a:02x}{b:02x}{c:02x}{d:02x}.anabranch-receive").into()
}

/// The journal of this transfer, if there is one.
pub(super) fn read_journal(below: &Below, name: &Path, identity: &Identity) -> Option<Journal> {
    let file = below.read(name).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(JOURNAL_LEN_MAX).read_to_end(&mut bytes).ok()?;
    let journal = Journal::parse(&bytes)?;
    let is_ours = (journal.identity.manifest, journal.identity.key) == (identity.manifest, identity.key);
    is_ours.then_some(journal)
}

/// Begins a journal anew, with what is believed of the one before, of which `on_disk` is on the disk.
pub(super) fn begin_journal(
    below: &Below,
    name: &Path,
    identity: &Identity,
    (believed, hashes): (&ChunkSet, &HashMap<u64, [u8; 32]>),
    on_disk: &ChunkSet,
    leases: &[(i64, i64)],
) -> io::Result<Log> {
    let fresh = name.with_extension("anabranch-receive-new");
    let (mut writer, mut bytes) = Writer::begin(identity);
    let (mut synced, mut unsynced) = (believed.clone(), believed.clone());
    on_disk.gaps(0..on_disk.limit()).for_each(|gap| _ = synced.remove_range(gap));
    synced.runs(0..synced.limit()).for_each(|run| _ = unsynced.remove_range(run));
    let mut kept = write_kept(&mut writer, &mut bytes, &synced, hashes);
    if kept > 0 {
        bytes.extend(writer.record(&Record::Synced(kept)));
    }
    kept += write_kept(&mut writer, &mut bytes, &unsynced, hashes);
    match below.unlink(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = below.create(&fresh, 0o600)?;
    let until = now_ns() + LEASE_NS;
    let leases = leases.iter().copied().chain([(now_ns() - CLOCK_LAG_NS, until)]);
    leases.for_each(|(from, until)| bytes.extend(writer.record(&Record::Lease(from, until))));
    let written = file.write_all(&bytes).and_then(|()| file.sync_data()).and_then(|()| below.replace(&fresh, name));
    written.inspect_err(|_| {
        // What is half written is of no use, and takes room where there is none.
        let _ = below.unlink(&fresh);
    })?;
    Ok(Log { file, writer, len: bytes.len() as u64, kept, lease_until: until, is_void: false })
}

/// Records of kept spans, with the hashes that are known. How many.
fn write_kept(writer: &mut Writer, bytes: &mut Vec<u8>, spans: &ChunkSet, hashes: &HashMap<u64, [u8; 32]>) -> u64 {
    let mut kept = 0;
    for run in spans.runs(0..spans.limit()) {
        // Hashes stand behind the record, one for each of its spans.
        let mut at = run.start;
        while at < run.end {
            let is_known = hashes.contains_key(&at);
            let end = (at..run.end).find(|span| hashes.contains_key(span) != is_known).unwrap_or(run.end);
            bytes.extend(writer.record(&Record::Kept(at..end)));
            kept += 1;
            for hash in (at..end).filter_map(|span| hashes.get(&span)) {
                hash_records(hash).iter().for_each(|record| bytes.extend(writer.record(record)));
            }
            at = end;
        }
    }
    kept
}

/// Journals of other transfers to the first of these places, or of this one's earlier states.
pub(super) fn other_journals(below: &Below, ours: &Path, tops: &[PathBuf]) -> Vec<PathBuf> {
    let Some(top) = tops.first() else { return Vec::new() };
    let (before, after) = (format!(".{}-", top.display()), ".anabranch-receive");
    // `-`, eight digits.
    let is_one = |name: &str| name.len() == before.len() + 8 + after.len();
    let found = std::fs::read_dir(below.path()).into_iter().flatten().flatten();
    let names = found.filter_map(|item| item.file_name().into_string().ok());
    let others = names.filter(|name| name.starts_with(&before) && name.ends_with(after) && is_one(name));
    others.map(PathBuf::from).filter(|name| name != ours).collect()
}

fn now_ns() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity { manifest: [1; 32], key: [2; 32], boot: [3; 16] };

    fn spans(members: impl IntoIterator<Item = u64>) -> ChunkSet {
        let mut set = ChunkSet::new(100);
        members.into_iter().for_each(|span| _ = set.insert(span));
        set
    }

    /// What whoever begins again finds: spans that count in this run of the machine, and in another.
    fn found(below: &Below, name: &Path) -> [Vec<u64>; 2] {
        let journal = read_journal(below, name, &IDENTITY).unwrap();
        [IDENTITY.boot, [0; 16]].map(|boot| journal.kept(boot).into_iter().flatten().collect())
    }

    #[test]
    fn what_was_on_the_disk_before_is_there_when_a_sync_fails_and_the_rest_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (below, name) = (Below::open(dir.path()).unwrap(), Path::new(".t-01010101.anabranch-receive"));
        let (believed, hashes) = (spans([0, 1, 2, 7]), HashMap::from([(1, [4; 32]), (7, [5; 32])]));
        // Of what was synced, some is not believed any more.
        let on_disk = spans([1, 7, 9]);
        let mut log = begin_journal(&below, name, &IDENTITY, (&believed, &hashes), &on_disk, &[(1, 2)]).unwrap();
        log.append(&[Record::Kept(8..9)]).unwrap();
        assert_eq!(found(&below, name), [vec![1, 7, 0, 2, 8], vec![1, 7]]);
        let synced = log.kept();
        log.append(&[Record::Kept(10..11)]).unwrap();
        log.note_synced(synced).unwrap();
        assert_eq!(found(&below, name), [vec![1, 7, 0, 2, 8, 10], vec![1, 7, 0, 2, 8]]);
        for _ in 0..2 {
            log.void().unwrap();
            assert_eq!(found(&below, name), [vec![1, 7, 0, 2, 8], vec![1, 7, 0, 2, 8]]);
        }
        let left = read_journal(&below, name, &IDENTITY).unwrap();
        assert!(left.leases().contains(&(1, 2)) && left.leases().len() == 2);
        assert_eq!(left.hashes(), hashes);
        // Nothing that is verified from here on is vouched for.
        assert!(log.append(&[Record::Kept(11..12)]).is_err() && log.note_synced(0).is_err());
    }
}
