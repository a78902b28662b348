//! Any text as a file of known keys.
#![no_main]

use anabranch_transport::known_keys::{HOSTS_MAX, format, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match parse(text) {
        Ok(known) => {
            assert!(known.len() <= HOSTS_MAX);
            let again: String = known.iter().map(|known| format(known.address, known.key)).collect();
            let again = parse(&again).expect("what was read can be written");
            assert!(again.iter().zip(&known).all(|(one, other)| (one.address, one.key) == (other.address, other.key)));
        }
        Err(line) => assert!((1..=text.lines().count()).contains(&line)),
    }
});
