//! Any bytes as a resume file, and any body and journal under checksums that are right.
//!
//! Input: a byte that chooses. Then the file; or the body's length (two bytes), the body, and journal records without
//! their checksums.
#![no_main]

use anabranch_content::storage::Resume;
use libfuzzer_sys::fuzz_target;

/// What a file starts with: magic and version.
const HEAD: &[u8; 12] = b"anabresm\x01\0\0\0";
/// A journal record that is longer than the others, and the lengths of both, without checksum.
const LEASE: u8 = 3;
const LEASE_LEN: usize = 21;
const RECORD_LEN: usize = 5;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, rest)) = data.split_first() else { return };
    let file = if choice % 2 == 0 { rest.to_vec() } else { forge(rest).unwrap_or_default() };
    let Ok(resume) = Resume::decode(&file) else { return };
    let pieces = resume.have.len();
    assert!((0..pieces).all(|piece| !(resume.have.get(piece) && resume.recheck.get(piece))));
    assert!((0..pieces).all(|piece| resume.have.get(piece) || !resume.durable.get(piece)));
    assert_eq!(resume.files.len(), resume.priorities.len() + 1);
    assert_eq!(Resume::decode(&resume.encode()), Ok(resume));
});

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
