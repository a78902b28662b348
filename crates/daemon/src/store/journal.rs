//! How records stand in the store's files. Pure.
//!
//! A file begins with a line that says what it is. Then comes one line for each batch of changes: sixteen hex digits of the SHA-256 of the rest, a
//! blank, and a JSON array of pairs of key and value, where `null` takes a key away. A batch counts whole or not at all: a line that
//! is torn or damaged ends the file. A snapshot ends with `end`, so that half of one is never taken for a whole.

use std::collections::BTreeMap;

use anabranch_content::hash::sha256;
use anabranch_content::hex;
use serde_json::Value;

/// Changes that are made together: the new value of each key, or `None` where it goes.
pub(crate) type Batch = Vec<(String, Option<Value>)>;
/// Everything that is kept.
pub(crate) type Entries = BTreeMap<String, Value>;

/// Digits of a line's checksum.
const SUM_LEN: usize = 16;
/// First line of a snapshot, before its generation.
const SNAPSHOT: &str = "anabranch library 1 ";
/// Last line of a snapshot.
const END: &str = "end\n";

/// The line of a batch.
pub(super) fn line(batch: &[(String, Option<Value>)]) -> Vec<u8> {
    let pair = |(key, value): &(String, Option<Value>)| {
        Value::Array(vec![Value::from(key.as_str()), value.clone().unwrap_or(Value::Null)])
    };
    let text = Value::Array(batch.iter().map(pair).collect()).to_string();
    format!("{} {text}\n", sum(text.as_bytes())).into_bytes()
}

fn sum(text: &[u8]) -> String {
    let mut digits = hex::encode(&sha256(text));
    digits.truncate(SUM_LEN);
    digits
}

/// Makes the changes of a batch.
pub(super) fn apply(kept: &mut Entries, batch: Batch) {
    for (key, value) in batch {
        match value {
            Some(value) => kept.insert(key, value),
            None => kept.remove(&key),
        };
    }
}

/// Makes the changes of all whole lines, and says how many bytes those have.
pub(super) fn replay(bytes: &[u8], kept: &mut Entries) -> usize {
    let mut good = 0;
    while let Some(len) = bytes[good..].iter().position(|byte| *byte == b'\n') {
        let Some(batch) = parse(&bytes[good..good + len]) else { break };
        apply(kept, batch);
        good += len + 1;
    }
    good
}

/// A line without its end.
fn parse(line: &[u8]) -> Option<Batch> {
    let (digits, text) = (line.get(..SUM_LEN)?, line.get(SUM_LEN + 1..)?);
    if line[SUM_LEN] != b' ' || digits != sum(text).as_bytes() {
        return None;
    }
    let Ok(Value::Array(pairs)) = serde_json::from_slice(text) else { return None };
    let pair = |pair: Value| {
        let Value::Array(pair) = pair else { return None };
        let [Value::String(key), value] = <[Value; 2]>::try_from(pair).ok()? else { return None };
        Some((key, (!value.is_null()).then_some(value)))
    };
    pairs.into_iter().map(pair).collect()
}

/// A snapshot of everything.
pub(super) fn snapshot(generation: u64, kept: &Entries) -> Vec<u8> {
    let mut bytes = format!("{SNAPSHOT}{generation}\n").into_bytes();
    for (key, value) in kept {
        bytes.extend(line(&[(key.clone(), Some(value.clone()))]));
    }
    bytes.extend(END.as_bytes());
    bytes
}

/// Reads a snapshot; `None` where it is none, or not whole.
pub(super) fn read_snapshot(bytes: &[u8]) -> Option<(u64, Entries)> {
    let rest = bytes.strip_prefix(SNAPSHOT.as_bytes())?;
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let generation = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    let mut kept = Entries::new();
    let lines = &rest[end + 1..];
    let good = replay(lines, &mut kept);
    (&lines[good..] == END.as_bytes()).then_some((generation, kept))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn batches() -> impl Strategy<Value = Vec<Batch>> {
        let change = ("[a-d]", proptest::option::of("[ -~\\n\u{e4}]{0,12}".prop_map(Value::from)));
        proptest::collection::vec(proptest::collection::vec(change, 0..4), 0..8)
    }

    proptest! {
        #[test]
        fn whatever_is_left_of_a_journal_is_the_state_after_some_batch(batches in batches(), cut in any::<prop::sample::Index>()) {
            let (mut bytes, mut ends, mut states) = (Vec::new(), vec![0], vec![Entries::new()]);
            for batch in &batches {
                bytes.extend(line(batch));
                ends.push(bytes.len());
                let mut state = states.last().unwrap().clone();
                apply(&mut state, batch.clone());
                states.push(state);
            }
            let cut = cut.index(bytes.len() + 1);
            let mut kept = Entries::new();
            let good = replay(&bytes[..cut], &mut kept);
            let whole = ends.iter().rposition(|end| *end <= cut).unwrap();
            prop_assert_eq!((good, kept), (ends[whole], states[whole].clone()));
        }

        #[test]
        fn a_snapshot_is_read_back_whole_or_not_at_all(batches in batches(), cut in any::<prop::sample::Index>()) {
            let mut kept = Entries::new();
            batches.into_iter().for_each(|batch| apply(&mut kept, batch));
            let bytes = snapshot(7, &kept);
            prop_assert_eq!(read_snapshot(&bytes), Some((7, kept)));
            prop_assert_eq!(read_snapshot(&bytes[..cut.index(bytes.len())]), None);
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            replay(&bytes, &mut Entries::new());
            read_snapshot(&bytes);
        }
    }

    #[test]
    fn a_changed_byte_ends_it() {
        let mut bytes = line(&[("a".into(), Some(json!(1)))]);
        bytes.extend(line(&[("b".into(), Some(json!(2)))]));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            let mut kept = Entries::new();
            let good = replay(&damaged, &mut kept);
            assert!(good <= at && !kept.contains_key("b"), "{at}");
        }
    }
}
