//! Any text as a magnet link: what is accepted is the same after being written.
#![no_main]

use anabranch_content::magnet::{Magnet, MagnetError};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(magnet) = String::from_utf8_lossy(data).parse::<Magnet>() else { return };
    assert!(magnet.hashes.wire_hashes().next().is_some());
    match magnet.to_string().parse::<Magnet>() {
        Ok(again) => assert_eq!(again, magnet),
        // Escapes may make a link longer than it came.
        Err(MagnetError::TooLong(_)) => {}
        Err(error) => panic!("our own link: {error}"),
    }
});
