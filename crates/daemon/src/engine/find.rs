//! Which content a user means.

use std::collections::BTreeSet;

use super::{Content, Engine, Refusal};

/// Digits of a hash that stand for it, at least.
const PREFIX_MIN: usize = 4;

impl Engine {
    /// The content that a program names, by its number or its hash.
    pub(crate) fn find(&self, name: &str) -> Result<u64, Refusal> {
        let state = self.state();
        let by_hash = || state.by_hash.get(&name.to_ascii_lowercase()).copied();
        let by_number = name.parse().ok().filter(|id| state.contents.contains_key(id));
        by_number.or_else(by_hash).ok_or_else(|| Refusal::Unknown(name.chars().take(80).collect()))
    }

    /// The contents that somebody may mean who writes a number, a hash, a name, or the beginning of a hash; the first of these by which
    /// there is any counts.
    pub(crate) fn meant(&self, text: &str) -> BTreeSet<u64> {
        if let Ok(id) = self.find(text) {
            return [id].into();
        }
        let state = self.state();
        let those = |is_meant: &dyn Fn(&Content) -> bool| -> BTreeSet<u64> {
            state.staying().filter(|content| is_meant(content)).map(|content| content.entry.id).collect()
        };
        let called = those(&|content| content.entry.shown_name() == text);
        if !called.is_empty() || !is_prefix(text) {
            return called;
        }
        let digits = text.to_ascii_lowercase();
        those(&|content| content.entry.hashes.iter().any(|hash| hash.starts_with(&digits)))
    }
}

/// Whether a text may be the beginning of a hash. What has no letters is a number: one that is wrong, or of a content that is gone, must
/// not be taken for another's hash.
fn is_prefix(text: &str) -> bool {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.len() >= PREFIX_MIN && is_hex && !text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_short_texts_are_no_beginnings_of_hashes() {
        for (text, is_one) in [
            ("abcd", true),
            ("12AF", true),
            ("0123456789abcdef", true),
            ("abc", false),
            ("1234", false),
            ("album", false),
        ] {
            assert_eq!(is_prefix(text), is_one, "{text}");
        }
    }
}
