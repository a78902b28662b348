//! Any bytes as bencode: every value can be looked at, and what is canonical encodes to the same bytes again.
#![no_main]

use anabranch_content::bencode::{self, DictBuilder, Limits, ListBuilder, Value};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for limits in [Limits::default(), Limits::MESSAGE, Limits { bytes: 64, depth: 3, tokens: 5 }] {
        let Ok((tree, end)) = bencode::parse_prefix(data, &limits) else { continue };
        let root = tree.root();
        assert_eq!(root.span(), 0..end);
        let encoded = encode(root);
        if root.findings().next().is_none() {
            assert_eq!(encoded, data[..end], "canonical bytes changed");
        } else {
            // Not canonical: what the encoder makes of it is.
            let again = bencode::parse(&encoded, &Limits::default()).expect("our own encoding");
            assert_eq!(again.root().findings().next(), None);
        }
    }
});

/// Depth is bounded by the parser's limits.
fn encode(value: Value<'_>) -> Vec<u8> {
    if let Some(entries) = value.as_dict() {
        let mut dict = DictBuilder::new();
        for (key, value) in entries {
            dict.raw(key, &encode(value));
        }
        return dict.encode();
    }
    let mut list = ListBuilder::new();
    if let Some(items) = value.as_list() {
        for item in items {
            list.raw(&encode(item));
        }
        return list.encode();
    }
    match (value.as_int(), value.as_bytes()) {
        (Some(int), None) => list.int(int),
        (None, Some(bytes)) => list.bytes(bytes),
        kinds => panic!("a value of no kind or of two: {kinds:?}"),
    };
    let encoded = list.encode();
    encoded[1..encoded.len() - 1].to_vec()
}
