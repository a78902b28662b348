//! Values of named fields, and how they are written as JSON: straight into the answer, for lists have hundreds of thousands of them.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;

/// Numbers below this are whole numbers in every form.
const WHOLE_MAX: f64 = (1_u64 << 53) as f64;
/// Digits of a whole number at most, and its sign.
const DIGITS_MAX: usize = 20;

/// The value of a field.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Field<'a> {
    /// A text.
    Text(Cow<'a, str>),
    /// A whole number.
    Whole(i64),
    /// Any number.
    Real(f64),
    /// Yes or no.
    Flag(bool),
    /// Not known.
    Null,
}

/// A field and what it is called.
pub(super) type Named<'a> = (&'static str, Field<'a>);

impl Field<'_> {
    /// Writes it.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        // A vector takes all that is written.
        let _ = match self {
            Self::Text(text) => {
                write_text(text, out);
                Ok(())
            }
            Self::Whole(number) => {
                write_whole(*number, out);
                Ok(())
            }
            // Most are -1, 0 or 1, and are written as quickly; 0 below 0 has a sign.
            Self::Real(number)
                if number.to_bits() == 0 || number.fract() == 0.0 && (1.0..WHOLE_MAX).contains(&number.abs()) =>
            {
                write_whole(*number as i64, out);
                Ok(())
            }
            Self::Real(number) if number.is_finite() => write!(out, "{number}"),
            Self::Flag(true) => out.write_all(b"true"),
            Self::Flag(false) => out.write_all(b"false"),
            Self::Real(_) | Self::Null => out.write_all(b"null"),
        };
    }

    /// Which of two values of one field comes first.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            (Self::Whole(one), Self::Whole(other)) => one.cmp(other),
            (Self::Real(one), Self::Real(other)) => one.total_cmp(other),
            (Self::Flag(one), Self::Flag(other)) => one.cmp(other),
            // What is not known comes first.
            (Self::Null, other) => {
                if *other == Self::Null {
                    Ordering::Equal
                } else {
                    Ordering::Less
                }
            }
            (_, Self::Null) => Ordering::Greater,
            _ => Ordering::Equal,
        }
    }

    fn sum(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        match self {
            Self::Text(text) => text.hash(&mut hasher),
            Self::Whole(number) => number.hash(&mut hasher),
            Self::Real(number) => number.to_bits().hash(&mut hasher),
            Self::Flag(flag) => flag.hash(&mut hasher),
            Self::Null => u64::MAX.hash(&mut hasher),
        }
        hasher.finish()
    }
}

impl<'a> From<&'a str> for Field<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Field<'_> {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<u64> for Field<'_> {
    fn from(number: u64) -> Self {
        Self::Whole(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Field<'_> {
    fn from(number: u32) -> Self {
        Self::Whole(number.into())
    }
}

impl From<i64> for Field<'_> {
    fn from(number: i64) -> Self {
        Self::Whole(number)
    }
}

impl From<f64> for Field<'_> {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

impl From<bool> for Field<'_> {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

fn write_whole(number: i64, out: &mut Vec<u8>) {
    let mut digits = [0; DIGITS_MAX];
    let (mut left, mut at) = (number.unsigned_abs(), DIGITS_MAX);
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    out.extend_from_slice(&digits[at..]);
}

/// Writes a text.
pub(super) fn write_text(text: &str, out: &mut Vec<u8>) {
    // RFC 8259 §7: what has none of these stands as it is.
    if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
        out.reserve(text.len() + 2);
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        return out.push(b'"');
    }
    // A text has a form in JSON, and a vector takes all that is written.
    let _ = serde_json::to_writer(out, text);
}

/// Writes an object of those fields that `is_wanted` by their place; whether there were any.
pub(super) fn write_object(fields: &[Named<'_>], is_wanted: impl Fn(usize) -> bool, out: &mut Vec<u8>) -> bool {
    out.push(b'{');
    let mut any = false;
    for (_, (name, value)) in fields.iter().enumerate().filter(|(at, _)| is_wanted(*at)) {
        if any {
            out.push(b',');
        }
        any = true;
        out.push(b'"');
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        value.write(out);
    }
    out.push(b'}');
    any
}

/// Writes a list of texts.
pub(super) fn write_list<'a>(texts: impl IntoIterator<Item = &'a str>, out: &mut Vec<u8>) {
    out.push(b'[');
    for (at, text) in texts.into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_text(text, out);
    }
    out.push(b']');
}

/// When each of some fields last changed: of their values a hash is remembered alone.
#[derive(Debug, Default)]
pub(super) struct Marks {
    marks: Vec<(u64, u32)>,
    /// When any of them did.
    pub(super) latest: u32,
}

impl Marks {
    /// Takes in how the fields are now, which are always the same ones.
    pub(super) fn renew(&mut self, fields: &[Named<'_>], now: u32) {
        let is_new = self.marks.len() != fields.len();
        if is_new {
            self.marks = vec![(0, 0); fields.len()];
        }
        for ((sum, changed), (_, value)) in self.marks.iter_mut().zip(fields) {
            let new = value.sum();
            if std::mem::replace(sum, new) != new || is_new {
                (*changed, self.latest) = (now, now);
            }
        }
    }

    /// Whether a field, by its place, changed after `since`.
    pub(super) fn is_newer(&self, at: usize, since: u32) -> bool {
        self.marks.get(at).is_some_and(|(_, changed)| *changed > since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_others_write_them() {
        for number in [0, 1, -1, 9, 10, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            Field::Whole(number).write(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), number.to_string());
        }
        for number in [0.0, -0.0, 1.0, -1.0, 0.25, -2.5, 1e15, 1e16, 1e300, WHOLE_MAX] {
            let mut out = Vec::new();
            Field::Real(number).write(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), number.to_string());
        }
        for text in ["", "plain", "\u{e4}", "\"", "\\", "\n", "\u{7f}", "a\u{1}b"] {
            let mut out = Vec::new();
            write_text(text, &mut out);
            assert_eq!(serde_json::to_vec(text).unwrap(), out);
        }
    }

    #[test]
    fn what_is_written_is_json_and_only_what_changed_is_told() {
        let fields = |rate: u64| {
            [
                ("name", Field::from("\u{e4}\"\n")),
                ("rate", rate.into()),
                ("ratio", 0.5.into()),
                ("odd", f64::NAN.into()),
            ]
        };
        let mut marks = Marks::default();
        marks.renew(&fields(1), 1);
        marks.renew(&fields(1), 2);
        assert_eq!(marks.latest, 1);
        marks.renew(&fields(2), 3);
        assert_eq!(marks.latest, 3);
        let write = |since| {
            let mut out = Vec::new();
            let any = write_object(&fields(2), |at| marks.is_newer(at, since), &mut out);
            (any, serde_json::from_slice::<serde_json::Value>(&out).unwrap())
        };
        assert_eq!(write(0), (true, serde_json::json!({ "name": "\u{e4}\"\n", "rate": 2, "ratio": 0.5, "odd": null })));
        assert_eq!(write(1), (true, serde_json::json!({ "rate": 2 })));
        assert_eq!(write(3), (false, serde_json::json!({})));
    }
}
