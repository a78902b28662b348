//! What encoders send to the source of a live stream, in any parts: no byte of it is lost, added or moved, whatever its clock says.
//!
//! Input: the length of the parts, then the stream.
#![no_main]

use std::time::{Duration, Instant};

use anabranch_ppspp::pace::Pace;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((len, stream)) = data.split_first() else { return };
    let now = Instant::now();
    for (rate, head) in [(None, stream), (Some(u64::from(*len) + 1000), stream), (None, &[0x47; 564][..])] {
        let mut pace = Pace::of(rate, head);
        let mut out = Vec::new();
        for (at, part) in (0..).zip(stream.chunks(usize::from(*len) + 1)) {
            if at % 7 == 6 {
                pace.go_on_from_now();
            }
            out.extend(pace.cut(part, now + Duration::from_millis(at)).into_iter().flat_map(|(_, bytes)| bytes));
        }
        out.extend(pace.rest());
        assert_eq!(out, stream);
    }
});
