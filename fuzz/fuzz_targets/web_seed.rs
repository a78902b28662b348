//! Any head of a web server's answer, and any name of a file: only the range that was asked for counts, and every name makes a request line.
//!
//! Input: two bytes of a status, then lines: range, length, encoding, when to ask again; the rest is a name.
#![no_main]

use anabranch_bittorrent::tracker::TrackerUrl;
use anabranch_bittorrent::web_seed::{Backoff, Head, RETRY_AFTER_MAX, Refusal, judge, url_of_file};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&[high, low], rest)) = input.split_first_chunk() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let mut lines = text.splitn(5, '\n');
    let mut line = || lines.next().filter(|line| !line.is_empty());
    let head = Head {
        status: u16::from_be_bytes([high, low]),
        content_range: line(),
        content_length: line().and_then(|len| len.parse().ok()),
        content_encoding: line(),
        retry_after: line(),
    };
    let name = line().unwrap_or_default();
    match judge(&head, &(10..20), 100) {
        Ok(()) => {
            let range = head.content_range.expect("a part is a part").split_whitespace().collect::<String>();
            let part =
                range.get(5..).and_then(|range| range.split_once('/')).and_then(|(part, _)| part.split_once('-'));
            let (first, last) = part.expect("first and last byte");
            // "010" is ten.
            let numbers = (first.parse::<u64>(), last.parse::<u64>());
            assert!(head.status == 206 && numbers == (Ok(10), Ok(19)), "{head:?}");
        }
        Err(Refusal::Busy { after, .. }) => {
            assert!(after.is_none_or(|after| after <= RETRY_AFTER_MAX));
            assert!(Backoff::default().failed(after) <= RETRY_AFTER_MAX);
        }
        Err(refusal) => assert!(!refusal.to_string().is_empty()),
    }
    let base: TrackerUrl = "https://w.example/f?key=7".parse().expect("an URL");
    let target = url_of_file(&base, true, name).target();
    assert!(
        target.bytes().all(|byte| byte.is_ascii_graphic()) && target.starts_with("/f/") && target.ends_with("?key=7")
    );
});
