//! What requests to the daemon carry: addresses, forms, JSON with options, ranges of bytes; and what a journal may hold.
#![no_main]

use anabranch_daemon::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 5 {
        0 => fuzzing::query(data),
        1 => fuzzing::new_content(data),
        2 => fuzzing::kept(data),
        3 => fuzzing::form(data),
        _ => fuzzing::changes(data),
    }
});
