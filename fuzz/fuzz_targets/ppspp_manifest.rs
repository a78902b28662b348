//! Any bytes as the list of files that a folder's content begins with. Whatever is accepted stays below the folder, and has the bytes that
//! there are.
//!
//! Input: the length of the files in eight bytes, then the list.
#![no_main]

use std::path::Component;

use anabranch_ppspp::manifest::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((len, list)) = data.split_first_chunk() else { return };
    let len = u64::from_be_bytes(*len);
    let Ok(info) = parse(list, "folder", len) else { return };
    assert_eq!(info.files.iter().map(|file| file.length).sum::<u64>(), len);
    for file in &info.files {
        assert!(file.path.starts_with("folder"), "{:?}", file.path);
        assert!(file.path.components().all(|part| matches!(part, Component::Normal(_))), "{:?}", file.path);
    }
});
