use proptest::prelude::*;

use super::*;

fn fails(bytes: &[u8]) -> (ErrorKind, usize) {
    let error = parse(bytes, &Limits::default()).expect_err("must be refused");
    (error.kind, error.at)
}

fn findings(bytes: &[u8]) -> Vec<(FindingKind, usize)> {
    let tree = parse(bytes, &Limits::default()).expect("must be read");
    tree.root().findings().map(|finding| (finding.kind, finding.at)).collect()
}

#[test]
fn values_keep_their_spans() {
    let bytes = b"d1:ai-7e1:bl3:xyzd1:ci0eeee";
    let tree = parse(bytes, &Limits::default()).unwrap();
    let root = tree.root();
    assert_eq!(root.source(), bytes);
    assert_eq!(root.get("a").and_then(|a| a.as_int()), Some(-7));
    assert_eq!(root.get("a").and_then(|a| a.as_uint()), None);
    let list: Vec<_> = root.get("b").unwrap().as_list().unwrap().collect();
    assert_eq!((list[0].as_str(), list[0].span()), (Some("xyz"), 12..17));
    assert_eq!(list[1].source(), b"d1:ci0ee");
    assert!(root.get("missing").is_none() && list[0].get("a").is_none() && list[0].as_list().is_none());
    assert!(root.findings().next().is_none());
}

#[test]
fn errors_say_what_and_where() {
    assert_eq!(fails(b""), (ErrorKind::UnexpectedEnd, 0));
    assert_eq!(fails(b"x"), (ErrorKind::ExpectedValue, 0));
    assert_eq!(fails(b"e"), (ErrorKind::ExpectedValue, 0));
    assert_eq!(fails(b"i3"), (ErrorKind::UnexpectedEnd, 2));
    assert_eq!(fails(b"ie"), (ErrorKind::ExpectedDigit, 1));
    assert_eq!(fails(b"i-e"), (ErrorKind::ExpectedDigit, 2));
    assert_eq!(fails(b"i3x"), (ErrorKind::ExpectedDigit, 2));
    assert_eq!(fails(b"i+3e"), (ErrorKind::ExpectedDigit, 1));
    assert_eq!(fails(b"3:ab"), (ErrorKind::UnexpectedEnd, 0));
    assert_eq!(fails(b"3ab"), (ErrorKind::ExpectedColon, 1));
    assert_eq!(fails(b"li1e"), (ErrorKind::UnexpectedEnd, 4));
    assert_eq!(fails(b"di1ei1ee"), (ErrorKind::ExpectedKey, 1));
    assert_eq!(fails(b"d1:ae"), (ErrorKind::MissingValue, 4));
    assert_eq!(fails(b"i1ei2e"), (ErrorKind::TrailingData, 3));
    assert_eq!(fails(b"99999999999:a"), (ErrorKind::Overflow, 9));
}

#[test]
fn integers_are_64_bits() {
    let int = |bytes: &[u8]| parse(bytes, &Limits::default()).map(|tree| tree.root().as_int());
    assert_eq!(int(b"i9223372036854775807e"), Ok(Some(i64::MAX)));
    assert_eq!(int(b"i-9223372036854775808e"), Ok(Some(i64::MIN)));
    assert_eq!(fails(b"i9223372036854775808e").0, ErrorKind::Overflow);
    assert_eq!(fails(b"i-9223372036854775809e").0, ErrorKind::Overflow);
}

#[test]
fn what_is_not_canonical_is_found() {
    assert_eq!(findings(b"i07e"), [(FindingKind::LeadingZero, 0)]);
    assert_eq!(findings(b"i-07e"), [(FindingKind::LeadingZero, 0)]);
    assert_eq!(findings(b"i-0e"), [(FindingKind::NegativeZero, 0)]);
    assert_eq!(findings(b"l02:abe"), [(FindingKind::LeadingZero, 1)]);
    assert_eq!(findings(b"i0e"), []);
    assert_eq!(findings(b"0:"), []);
    assert_eq!(findings(b"d1:bi1e1:ai1ee"), [(FindingKind::UnsortedKey, 7)]);
    assert_eq!(findings(b"d1:ai1e1:ai1ee"), [(FindingKind::DuplicateKey, 7)]);
    // Not neighbours: found all the same.
    assert_eq!(findings(b"d1:ai1e1:bi1e1:ai1ee"), [(FindingKind::UnsortedKey, 13), (FindingKind::DuplicateKey, 13)]);
    // Sorted as raw bytes: "B" before "a", a prefix before what it begins.
    assert_eq!(findings(b"d1:Bi1e1:ai1e2:aai1ee"), []);
}

#[test]
fn a_value_at_the_front_tells_its_end() {
    let message = b"d8:msg_typei1e5:piecei0eerest";
    let (tree, end) = parse_prefix(message, &Limits::MESSAGE).unwrap();
    assert_eq!((&message[end..], tree.root().source().len()), (b"rest".as_slice(), end));
}

#[test]
fn depth_is_limited_without_recursion() {
    let nested = |depth: usize| [vec![b'l'; depth], vec![b'e'; depth]].concat();
    assert!(parse(&nested(DEPTH_MAX), &Limits::default()).is_ok());
    assert_eq!(fails(&nested(DEPTH_MAX + 1)), (ErrorKind::TooDeep, DEPTH_MAX));
    assert_eq!(fails(&nested(1_000_000)), (ErrorKind::TooDeep, DEPTH_MAX));
    // Where a caller allows it, depth costs memory only.
    let limits = Limits { depth: 1_000_000, ..Limits::default() };
    assert!(parse(&nested(1_000_000), &limits).is_ok());
}

#[test]
fn values_are_limited() {
    let limits = Limits { tokens: 4, ..Limits::default() };
    assert!(parse(b"li1ei1ei1ee", &limits).is_ok());
    assert_eq!(parse(b"li1ei1ei1ei1ee", &limits).unwrap_err(), Error { kind: ErrorKind::TooManyValues, at: 10 });
}

#[test]
fn bytes_are_limited_to_those_that_are_read() {
    let limits = Limits { bytes: 6, ..Limits::default() };
    assert!(parse(b"4:spam", &limits).is_ok());
    assert_eq!(parse(b"5:spams", &limits).unwrap_err().kind, ErrorKind::TooLarge);
    assert_eq!(parse_prefix(b"i1e and much more", &limits).map(|(_, end)| end), Ok(3));
}

/// A model value, to compare with what comes back.
#[derive(Clone, Debug, PartialEq)]
enum Model {
    Int(i64),
    Bytes(Vec<u8>),
    List(Vec<Model>),
    Dict(std::collections::BTreeMap<Vec<u8>, Model>),
}

impl Model {
    fn encode(&self) -> Vec<u8> {
        // Through the builders, then unwrapped again.
        let mut list = ListBuilder::new();
        match self {
            Model::Int(value) => list.int(*value),
            Model::Bytes(value) => list.bytes(value),
            Model::List(items) => {
                let mut inner = ListBuilder::new();
                items.iter().for_each(|item| {
                    inner.raw(&item.encode());
                });
                list.list(&inner)
            }
            Model::Dict(entries) => {
                let mut inner = DictBuilder::new();
                entries.iter().rev().for_each(|(key, value)| {
                    inner.raw(key, &value.encode());
                });
                list.dict(&inner)
            }
        };
        let bytes = list.encode();
        bytes[1..bytes.len() - 1].to_vec()
    }

    fn of(value: Value<'_>) -> Self {
        if let Some(int) = value.as_int() {
            Model::Int(int)
        } else if let Some(bytes) = value.as_bytes() {
            Model::Bytes(bytes.to_vec())
        } else if let Some(items) = value.as_list() {
            Model::List(items.map(Model::of).collect())
        } else {
            Model::Dict(value.as_dict().unwrap().map(|(key, value)| (key.to_vec(), Model::of(value))).collect())
        }
    }
}

fn model() -> impl Strategy<Value = Model> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(Model::Int),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(Model::Bytes)
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Model::List),
            prop::collection::btree_map(prop::collection::vec(any::<u8>(), 0..6), inner, 0..6).prop_map(Model::Dict)
        ]
    })
}

proptest! {
    #[test]
    fn what_is_encoded_comes_back(model in model(), tail in prop::collection::vec(any::<u8>(), 0..9)) {
        let mut bytes = model.encode();
        let len = bytes.len();
        bytes.extend(tail);
        let (tree, end) = parse_prefix(&bytes, &Limits::default()).unwrap();
        prop_assert_eq!(end, len);
        prop_assert!(tree.root().findings().next().is_none());
        prop_assert_eq!(Model::of(tree.root()), model);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(prop::sample::select(b"deil0123456789:-ax".to_vec()), 0..60)) {
        match parse_prefix(&bytes, &Limits::default()) {
            Ok((tree, end)) => {
                prop_assert_eq!(tree.root().span(), 0..end);
                if tree.root().findings().next().is_none() {
                    prop_assert_eq!(Model::of(tree.root()).encode(), &bytes[..end]);
                }
            }
            Err(error) => prop_assert!(error.at <= bytes.len()),
        }
    }
}
