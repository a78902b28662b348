//! Any text as a link to a swarm of PPSPP. What is accepted is the same after being written.
#![no_main]

use anabranch_ppspp::link::Link;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    if let Ok(link) = text.parse::<Link>() {
        let written = link.to_string();
        // Escaping makes a text longer; what still fits is read again.
        if written.len() <= anabranch_ppspp::link::LINK_LEN_MAX {
            assert_eq!(written.parse::<Link>(), Ok(link));
        }
    }
});
