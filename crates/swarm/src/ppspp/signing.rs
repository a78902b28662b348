//! What a live source was given and has not signed yet: it is cut into chunks when there is a whole group of them, or when it is time. A
//! group is what one signature stands for: some chunks, or one.

use std::time::{Duration, Instant};

use anabranch_ppspp::wire::Integrity;

/// Bytes of a chunk of our sources: five packets of an MPEG transport stream, so that these begin where chunks do.
pub const LIVE_CHUNK_LEN: usize = 5 * 188;
/// Chunks that one signature stands for, where it does not stand for one alone.
const CHUNKS_PER_SIGNATURE: u64 = 16;
/// Bytes that wait for their group's signature wait no longer than this: a slow stream is cut into shorter chunks.
pub const SIGN_AFTER: Duration = Duration::from_millis(200);

/// Chunks that one signature of a stream stands for that is protected so.
pub(super) const fn chunks_per_signature(integrity: Integrity) -> u64 {
    match integrity {
        Integrity::SignAll => 1,
        _ => CHUNKS_PER_SIGNATURE,
    }
}

/// Bytes that wait for the rest of their group: fewer than a group has.
#[derive(Debug)]
pub(super) struct Unsigned {
    /// Chunks of a group.
    group_chunks: usize,
    bytes: Vec<u8>,
    /// Since when there are any.
    since: Option<Instant>,
}

impl Unsigned {
    /// Nothing, of a stream with groups of so many chunks.
    pub(super) fn new(group_chunks: u64) -> Self {
        Self { group_chunks: group_chunks as usize, bytes: Vec::new(), since: None }
    }

    /// Takes in the stream's next bytes; gives those of groups that are full, which may be several or none.
    pub(super) fn push(&mut self, bytes: &[u8], now: Instant) -> Vec<u8> {
        if bytes.is_empty() {
            return Vec::new();
        }
        self.bytes.extend_from_slice(bytes);
        self.since.get_or_insert(now);
        let full_len = self.bytes.len() - self.bytes.len() % (self.group_chunks * LIVE_CHUNK_LEN);
        if full_len == 0 {
            return Vec::new();
        }
        // What is left came just now: without it there was no full group.
        let rest = self.bytes.split_off(full_len);
        self.since = (!rest.is_empty()).then_some(now);
        std::mem::replace(&mut self.bytes, rest)
    }

    /// When the bytes that wait are signed without the rest of their group. `None` where there are none, or too few: a chunk without
    /// bytes is the stream's end, so each of the group needs one.
    pub(super) fn due(&self) -> Option<Instant> {
        let since = self.since.filter(|_| self.bytes.len() >= self.group_chunks)?;
        Some(since + SIGN_AFTER)
    }

    /// Takes out what is due: a group of chunks.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Vec<Vec<u8>>> {
        self.due().filter(|due| now >= *due)?;
        let group = self.take_all();
        Some(cut(&group, self.group_chunks).map(<[u8]>::to_vec).collect())
    }

    /// Takes out all that waits.
    pub(super) fn take_all(&mut self) -> Vec<u8> {
        self.since = None;
        std::mem::take(&mut self.bytes)
    }
}

/// Cuts what waited too long for the rest of its group into as many chunks as a group has: whole ones first, as far as there is a byte for
/// each of the others, and the rest in equal parts.
fn cut(group: &[u8], chunks: usize) -> impl Iterator<Item = &[u8]> {
    let mut rest = group;
    (1..=chunks).rev().map(move |left| {
        let is_whole = rest.len() >= LIVE_CHUNK_LEN + left - 1;
        let (chunk, more) = rest.split_at(if is_whole { LIVE_CHUNK_LEN } else { rest.len() / left });
        rest = more;
        chunk
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const GROUP_CHUNKS: usize = CHUNKS_PER_SIGNATURE as usize;
    const GROUP_LEN: usize = GROUP_CHUNKS * LIVE_CHUNK_LEN;

    #[test]
    fn a_pause_withholds_nothing() {
        let now = Instant::now();
        // What fills no group waits for the rest of it no longer than that takes.
        for len in [GROUP_CHUNKS, LIVE_CHUNK_LEN, 15 * LIVE_CHUNK_LEN, GROUP_LEN - 1] {
            let mut unsigned = Unsigned::new(CHUNKS_PER_SIGNATURE);
            assert!(unsigned.push(&vec![7; len], now).is_empty());
            assert_eq!(unsigned.due(), Some(now + SIGN_AFTER));
            assert_eq!(unsigned.take_due(now + SIGN_AFTER - MS), None);
            assert_eq!(unsigned.take_due(now + SIGN_AFTER).map(|chunks| chunks.concat().len()), Some(len));
            assert_eq!((unsigned.due(), unsigned.take_all().len()), (None, 0));
        }
        // What is behind a full group waits by itself.
        let mut unsigned = Unsigned::new(CHUNKS_PER_SIGNATURE);
        assert!(unsigned.push(&vec![7; GROUP_LEN - 1], now).is_empty());
        assert_eq!(unsigned.push(&[8; 21], now + MS).len(), GROUP_LEN);
        assert_eq!(unsigned.due(), Some(now + MS + SIGN_AFTER));
        assert_eq!(unsigned.push(&vec![9; 2 * GROUP_LEN - 20], now + 2 * MS).len(), 2 * GROUP_LEN);
        assert_eq!(unsigned.due(), None);
        // Of fewer bytes than chunks no group can be made. They are due as soon as others come.
        assert!(unsigned.push(&[1; GROUP_CHUNKS - 1], now).is_empty());
        assert_eq!((unsigned.due(), unsigned.take_due(now + 10 * SIGN_AFTER)), (None, None));
        assert!(unsigned.push(&[], now + 10 * SIGN_AFTER).is_empty());
        assert!(unsigned.push(&[2], now + 10 * SIGN_AFTER).is_empty());
        assert_eq!(unsigned.take_due(now + 10 * SIGN_AFTER).map(|chunks| chunks.concat().len()), Some(GROUP_CHUNKS));
    }

    /// Where each chunk is signed none waits for another, and a byte alone no longer than the rest of a chunk would.
    #[test]
    fn a_chunk_that_is_signed_alone_waits_for_no_other() {
        let now = Instant::now();
        let mut unsigned = Unsigned::new(chunks_per_signature(Integrity::SignAll));
        assert_eq!(unsigned.push(&[7; 2 * LIVE_CHUNK_LEN + 1], now).len(), 2 * LIVE_CHUNK_LEN);
        assert_eq!(unsigned.due(), Some(now + SIGN_AFTER));
        assert_eq!(unsigned.take_due(now + SIGN_AFTER - MS), None);
        assert_eq!(unsigned.take_due(now + SIGN_AFTER), Some(vec![vec![7]]));
        assert_eq!(unsigned.due(), None);
    }

    #[test]
    fn whatever_waits_is_cut_into_a_group_of_chunks_with_bytes() {
        for len in GROUP_CHUNKS..GROUP_LEN {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let chunks: Vec<&[u8]> = cut(&bytes, GROUP_CHUNKS).collect();
            assert_eq!((chunks.len(), chunks.concat()), (GROUP_CHUNKS, bytes.clone()));
            assert!(chunks.iter().all(|chunk| (1..=LIVE_CHUNK_LEN).contains(&chunk.len())), "{len} bytes");
        }
        let lens = |len: usize| cut(&vec![0; len], GROUP_CHUNKS).map(<[u8]>::len).collect::<Vec<_>>();
        assert_eq!(lens(15 * LIVE_CHUNK_LEN), [[LIVE_CHUNK_LEN; 14].as_slice(), &[LIVE_CHUNK_LEN / 2; 2]].concat());
        assert_eq!(lens(15 * LIVE_CHUNK_LEN + 1), [[LIVE_CHUNK_LEN; 15].as_slice(), &[1]].concat());
        assert_eq!(lens(GROUP_CHUNKS + 1), [[1; GROUP_CHUNKS - 1].as_slice(), &[2]].concat());
    }
}
