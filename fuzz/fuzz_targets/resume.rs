//! Any bytes as a resume file, and any body and journal under checksums that are right; the same of a bulk transfer's journal.
//!
//! Input: a byte that chooses. Then the file; or the body's length (two bytes), the body, and journal records without
//! their checksums; or a bulk transfer's journal; or its records without their checksums.
#![no_main]

use anabranch_content::storage::Resume;
use anabranch_content::storage::span_journal::{Identity, Journal, Record, Writer};
use libfuzzer_sys::fuzz_target;

/// What a file starts with: magic and version.
const HEAD: &[u8; 12] = b"anabresm\x01\0\0\0";
/// A journal record that is longer than the others, and the lengths of both, without checksum.
const LEASE: u8 = 3;
const LEASE_LEN: usize = 21;
const RECORD_LEN: usize = 5;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, rest)) = data.split_first() else { return };
    match choice % 4 {
        2 => return journal(rest),
        3 => return journal(&forge_journal(rest)),
        _ => {}
    }
    let file = if choice % 2 == 0 { rest.to_vec() } else { forge(rest).unwrap_or_default() };
    let Ok(resume) = Resume::decode(&file) else { return };
    let pieces = resume.have.len();
    assert!((0..pieces).all(|piece| !(resume.have.get(piece) && resume.recheck.get(piece))));
    assert!((0..pieces).all(|piece| resume.have.get(piece) || !resume.durable.get(piece)));
    assert_eq!(resume.files.len(), resume.priorities.len() + 1);
    assert_eq!(Resume::decode(&resume.encode()), Ok(resume));
});

/// What is read of a journal is what a writer writes.
fn journal(bytes: &[u8]) {
    let Some(journal) = Journal::parse(bytes) else { return };
    let (mut writer, mut again) = Writer::begin(&journal.identity);
    journal.records.iter().for_each(|record| again.extend(writer.record(record)));
    // A record of what was synced has eight bytes that say nothing.
    assert_eq!(Journal::parse(&again), Some(journal.clone()));
    assert!(again.len() <= bytes.len());
    assert!(journal.kept([1; 16]).len() <= journal.records.len());
    assert!(journal.leases().len() <= journal.records.len());
}

/// A journal of records that are kinds and two numbers each.
fn forge_journal(data: &[u8]) -> Vec<u8> {
    let (mut writer, mut file) = Writer::begin(&Identity { manifest: [1; 32], key: [2; 32], boot: [3; 16] });
    for chunk in data.chunks_exact(17) {
        let number = |at: usize| chunk[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let (one, other) = (number(1), number(9));
        file.extend(writer.record(&match chunk[0] % 3 {
            0 => Record::Kept(one..one.saturating_add(other)),
            1 => Record::Synced(one),
            _ => Record::Lease(one.cast_signed(), other.cast_signed()),
        }));
    }
    file
}

/// A file of this body and these journal records.
fn forge(data: &[u8]) -> Option<Vec<u8>> {
    let (len, data) = data.split_first_chunk()?;
    let (body, mut records) = data.split_at_checked(u16::from_le_bytes(*len).into())?;
    let mut file = [&HEAD[..], &(body.len() as u32).to_le_bytes(), body].concat();
    let snapshot_crc = crc32c(0, &file);
    file.extend(snapshot_crc.to_le_bytes());
    while let Some(&kind) = records.first() {
        let len = if kind == LEASE { LEASE_LEN } else { RECORD_LEN };
        let (record, rest) = records.split_at(len.min(records.len()));
        file.extend(record);
        file.extend(crc32c(snapshot_crc, record).to_le_bytes());
        records = rest;
    }
    Some(file)
}

/// CRC-32C, going on from `seed`.
fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !bytes
        .iter()
        .fold(!seed, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1))))
}
