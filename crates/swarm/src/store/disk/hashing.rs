//! Pieces against what they have to hash to: many side by side where all of them is in memory.

use anabranch_content::geometry::BLOCK_LEN;
use anabranch_content::hash::{self, ExpectedHash, Sha1};
use anabranch_content::merkle;
use anabranch_content::storage::StorageError;

use super::VerifyJob;

/// Verifies the SHA-1 of all pieces side by side.
pub(super) fn check_sha1(jobs: &[VerifyJob], good: &mut [bool]) {
    let with_sha1: Vec<(usize, [u8; 20])> =
        jobs.iter().enumerate().filter_map(|(at, job)| Some((at, job.expected.sha1?))).collect();
    let slices: Vec<Vec<&[u8]>> = with_sha1.iter().map(|(at, _)| jobs[*at].memory().collect()).collect();
    let messages: Vec<&[&[u8]]> = slices.iter().map(Vec::as_slice).collect();
    for ((at, expected), digest) in with_sha1.iter().zip(hash::sha1_pieces(&messages)) {
        good[*at] &= digest == *expected;
    }
}

/// Verifies the Merkle roots of all pieces, all leaves side by side (BEP 52).
pub(super) fn check_merkle(jobs: &[VerifyJob], good: &mut [bool]) {
    let with_root = || jobs.iter().enumerate().filter_map(|(at, job)| Some((at, job, job.expected.merkle?)));
    let blocks: Vec<&[u8]> =
        with_root().flat_map(|(_, job, _)| job.memory().flat_map(|chunk| chunk.chunks(job.block_length()))).collect();
    if blocks.is_empty() {
        return;
    }
    let mut leaves = hash::sha256_many(&blocks).into_iter();
    for (at, job, (root, height)) in with_root() {
        let own: Vec<_> = leaves.by_ref().take(job.geometry.block_count(job.piece) as usize).collect();
        good[at] &= merkle::subtree_root(&own, 0, height) == root;
    }
}

/// Verifies a piece that does not fit the lanes, chunk by chunk, in little memory.
pub(super) fn check_alone(job: &VerifyJob) -> Result<bool, StorageError> {
    if job.expected == ExpectedHash::default() {
        return Ok(true);
    }
    let mut sha1 = Sha1::new();
    let mut leaves = Vec::new();
    let mut scratch = Vec::new();
    for chunk in 0..job.whole.chunks.len() {
        let bytes = job.chunk(chunk, &mut scratch)?;
        if job.expected.sha1.is_some() {
            sha1.update(bytes);
        }
        if job.expected.merkle.is_some() {
            leaves.extend(hash::sha256_many(&bytes.chunks(job.block_length()).collect::<Vec<_>>()));
        }
    }
    let mut padding = job.geometry.piece_len(job.piece) - job.geometry.data_len(job.piece);
    while padding > 0 && job.expected.sha1.is_some() {
        let zeros = [0; BLOCK_LEN as usize];
        let run = padding.min(BLOCK_LEN);
        sha1.update(&zeros[..run as usize]);
        padding -= run;
    }
    let sha1_good = job.expected.sha1.is_none_or(|expected| sha1.finish() == expected);
    let root_good = job.expected.merkle.is_none_or(|(root, height)| merkle::subtree_root(&leaves, 0, height) == root);
    Ok(sha1_good && root_good)
}
