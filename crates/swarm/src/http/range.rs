//! Which bytes of a file a request wants (RFC 9110, section 14). Pure.

use std::ops::Range;

/// Parts of one answer: players ask for one, a reader of an archive's directory for a few. Whoever wants more gets the whole file, as
/// section 14.2 allows.
pub const PARTS_MAX: usize = 16;

/// What a request wants of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All of it: nothing else was said, or nothing that has to be heeded.
    Whole,
    /// These parts, none of them empty, none overlapping another, in the order in which they were named.
    Parts(Vec<Range<u64>>),
    /// Nothing that it has: status 416.
    Unsatisfiable,
}

/// Reads a `Range` field of a request for a file of `length` bytes. What is not well-formed counts as not there (section 14.2), and
/// so does a unit other than bytes.
pub fn parse(field: &[u8], length: u64) -> Wanted {
    let specs = std::str::from_utf8(field).ok().and_then(specs);
    let Some(specs) = specs.filter(|specs| (1..=PARTS_MAX).contains(&specs.len())) else { return Wanted::Whole };
    let mut parts: Vec<Range<u64>> = Vec::new();
    for spec in specs {
        let part = match spec {
            // RFC 9110, section 14.1.2: a suffix longer than the file is all of it.
            Spec::Suffix(count) => length.saturating_sub(count)..length,
            Spec::From(first) => first..length,
            Spec::Between(first, last) => first..last.saturating_add(1).min(length),
        };
        if !part.is_empty() {
            add(&mut parts, part);
        }
    }
    if parts.is_empty() { Wanted::Unsatisfiable } else { Wanted::Parts(parts) }
}

/// What overlaps or touches is sent once (section 15.3.7.2).
fn add(parts: &mut Vec<Range<u64>>, mut part: Range<u64>) {
    let joins = |known: &Range<u64>, part: &Range<u64>| known.start <= part.end && part.start <= known.end;
    let place = parts.iter().position(|known| joins(known, &part)).unwrap_or(parts.len());
    while let Some(at) = parts.iter().position(|known| joins(known, &part)) {
        let known = parts.remove(at);
        part = known.start.min(part.start)..known.end.max(part.end);
    }
    parts.insert(place.min(parts.len()), part);
}

#[derive(Debug)]
enum Spec {
    /// `5-`
    From(u64),
    /// `5-9`, both of them inside.
    Between(u64, u64),
    /// `-5`: so many from the end.
    Suffix(u64),
}

fn specs(field: &str) -> Option<Vec<Spec>> {
    let (unit, set) = field.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    // Section 5.6.1: empty elements of a list are passed over.
    let named = set.split(',').map(|spec| spec.trim_matches([' ', '\t'])).filter(|spec| !spec.is_empty());
    named.take(PARTS_MAX + 1).map(spec).collect()
}

fn spec(text: &str) -> Option<Spec> {
    match text.split_once('-')? {
        ("", count) => Some(Spec::Suffix(number(count)?)),
        (first, "") => Some(Spec::From(number(first)?)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(Spec::Between(first, last))
        }
    }
}

/// Digits alone; what is beyond all files is as good as the largest number.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(field: &str, length: u64) -> Vec<Range<u64>> {
        match parse(field.as_bytes(), length) {
            Wanted::Parts(parts) => parts,
            other => panic!("{field}: {other:?}"),
        }
    }

    #[test]
    fn ranges_are_read_as_the_specification_says() {
        for (field, expected) in [
            ("bytes=0-499", 0..500),
            ("bytes=500-999", 500..1000),
            ("bytes=-500", 9500..10_000),
            ("bytes=9500-", 9500..10_000),
            ("bytes=0-0", 0..1),
            ("bytes=-1", 9999..10_000),
            ("bytes=-20000", 0..10_000),
            ("bytes=9999-20000", 9999..10_000),
            ("Bytes= 5-5 ,", 5..6),
            ("bytes=0-99999999999999999999999", 0..10_000),
            ("bytes=-99999999999999999999999", 0..10_000),
        ] {
            assert_eq!(parts(field, 10_000), [expected], "{field}");
        }
        assert_eq!(parts("bytes=0-0,-1", 10_000), [0..1, 9999..10_000]);
        assert_eq!(parts("bytes=500-600,601-999", 10_000), [500..1000]);
        assert_eq!(parts("bytes=9-9,0-1,5-9,20000-", 10_000), [5..10, 0..2]);
        assert_eq!(parts("bytes=0-1,8-9,1-8", 10_000), [0..10]);
    }

    #[test]
    fn what_cannot_be_read_is_not_there_and_what_cannot_be_had_is_refused() {
        for field in [
            "",
            "bytes",
            "bytes=",
            "bytes=,",
            "bytes=a-b",
            "bytes=5-4",
            "bytes=1-2,5-4",
            "bytes=--5",
            "bytes=+1-2",
            "bytes=0x1-2",
            "items=0-5",
            "bytes 0-5",
            "bytes=1 - 2",
            "bytes=5",
            "\u{e4}=0-1",
        ] {
            assert_eq!(parse(field.as_bytes(), 10), Wanted::Whole, "{field}");
        }
        for (field, length) in
            [("bytes=10-", 10), ("bytes=10-12,-0", 10), ("bytes=0-", 0), ("bytes=-5", 0), ("bytes=-0", 10)]
        {
            assert_eq!(parse(field.as_bytes(), length), Wanted::Unsatisfiable, "{field}");
        }
        assert_eq!(parse(&[0xff; 9], 10), Wanted::Whole);
    }

    #[test]
    fn only_so_many_parts_are_sent() {
        let many = |count: u64| {
            let specs: Vec<String> = (0..count).map(|at| format!("{}-{}", at * 10, at * 10)).collect();
            parse(format!("bytes={}", specs.join(",")).as_bytes(), 10_000)
        };
        assert!(matches!(many(PARTS_MAX as u64), Wanted::Parts(parts) if parts.len() == PARTS_MAX));
        assert_eq!(many(PARTS_MAX as u64 + 1), Wanted::Whole);
    }

    /// Against a list of every byte.
    #[test]
    fn any_ranges_name_the_bytes_that_they_say_once_each() {
        let mut rng = fastrand::Rng::with_seed(9110);
        for _ in 0..3000 {
            let length = rng.u64(0..30);
            let mut bytes = vec![false; length as usize];
            let mut specs = Vec::new();
            for _ in 0..rng.usize(1..6) {
                let (a, b) = (rng.u64(0..35), rng.u64(0..35));
                let (text, said) = match rng.u8(0..3) {
                    0 => (format!("-{a}"), length.saturating_sub(a)..length),
                    1 => (format!("{a}-"), a..length),
                    _ => (format!("{}-{}", a.min(b), a.max(b)), a.min(b)..(a.max(b) + 1).min(length)),
                };
                specs.push(text);
                said.for_each(|at| bytes[at as usize] = true);
            }
            let field = format!("bytes={}", specs.join(", "));
            match parse(field.as_bytes(), length) {
                Wanted::Whole => panic!("{field}"),
                Wanted::Unsatisfiable => assert!(!bytes.contains(&true), "{field} of {length}"),
                Wanted::Parts(parts) => {
                    for at in parts.iter().cloned().flatten() {
                        assert!(std::mem::replace(&mut bytes[at as usize], false), "{field} of {length}: {at}");
                    }
                    assert!(!bytes.contains(&true), "{field} of {length}");
                }
            }
        }
    }

    #[test]
    fn no_bytes_make_it_panic_or_lie() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let letters = b"bytes=0123456789-, \t\xff=";
            let mut field: Vec<u8> = b"bytes="[..rng.usize(0..7)].to_vec();
            field.extend((0..rng.usize(0..20)).map(|_| letters[rng.usize(0..letters.len())]));
            let length = rng.u64(..) >> rng.u32(0..64);
            if let Wanted::Parts(parts) = parse(&field, length) {
                assert!(!parts.is_empty() && parts.iter().all(|part| !part.is_empty() && part.end <= length));
            }
        }
    }
}
