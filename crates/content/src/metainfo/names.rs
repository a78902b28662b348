//! File names, made safe.
//!
//! What is safe depends on where the files go, which [`NameRules`] say; see `docs/metainfo.md`. Nothing that could be a path of
//! its own passes by any of them: no `/`, no NUL, no `.` and `..`, nothing empty.

use unicode_normalization::UnicodeNormalization;

use super::limits::NAME_BYTES_MAX;

/// Bytes at the end of a name that is too long: room for an extension worth keeping, the dot included. libtorrent keeps as many.
const EXTENSION_BYTES_MAX: usize = 15;
/// The shortest limit for names that is believed: 8 and 3 letters with a dot between them, and room for a number.
const NAME_BYTES_LEAST: usize = 32;

/// Which names a file system holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRules {
    /// Which characters may be in a name.
    pub characters: Characters,
    /// Whether names are different files that differ in letter case alone, in composed or decomposed letters, or in dots and
    /// spaces at their end.
    pub tells_twins: bool,
    /// Bytes in a name; see [`NameRules::with_bytes_max`].
    name_bytes_max: usize,
}

/// Which characters a file system has in names, beside those that every one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Characters {
    /// All but `/` and NUL, as on the file systems of Unix. Only overrides of the writing direction are dropped, though they could
    /// be held: a name must not show as another, `exe.gpj` as `jpg.exe`.
    Unix,
    /// As libtorrent has it on Unix: without backslashes, and with `_` for control characters; marks of the writing direction
    /// are dropped too.
    Common,
    /// As FAT, exFAT, NTFS and servers of Windows have it: `_` also for `"`, `*`, `:`, `<`, `>`, `?`, `\` and `|`.
    Windows,
}

impl NameRules {
    /// Names that nearly every file system holds, all of them different for the pickiest.
    pub const PORTABLE: Self =
        Self { characters: Characters::Common, tells_twins: false, name_bytes_max: NAME_BYTES_MAX };
    /// Names as they are, for the file systems of Unix.
    pub const EXACT: Self = Self { characters: Characters::Unix, tells_twins: true, name_bytes_max: NAME_BYTES_MAX };

    /// The same for names of at most so many bytes, within reason.
    pub fn with_bytes_max(self, bytes: usize) -> Self {
        Self { name_bytes_max: bytes.clamp(NAME_BYTES_LEAST, NAME_BYTES_MAX), ..self }
    }

    /// A path component out of any bytes; `None` where nothing usable is left (empty, `.`, `..`, only slashes).
    pub(super) fn sanitize(&self, raw: &[u8]) -> Option<String> {
        let mut name = String::with_capacity(raw.len());
        for chunk in raw.utf8_chunks() {
            name.extend(chunk.valid().chars().filter_map(|c| self.character(c)));
            if !chunk.invalid().is_empty() {
                name.push('_');
            }
        }
        if matches!(name.as_str(), "" | "." | "..") {
            return None;
        }
        Some(self.shorten(name))
    }

    /// A path component out of any bytes, `_` where nothing usable is left.
    pub(super) fn sanitize_or_underscore(&self, raw: &[u8]) -> String {
        self.sanitize(raw).unwrap_or_else(|| "_".to_owned())
    }

    /// `name` with a number before its extension, no longer than a name may be: `a.txt` becomes `a.1.txt`.
    pub(super) fn numbered(&self, name: &str, number: usize) -> String {
        let (stem, extension) = split_extension(name);
        let tail = format!(".{number}{extension}");
        format!("{}{tail}", cut(stem, self.name_bytes_max.saturating_sub(tail.len())))
    }

    /// What two names share when the file system takes them for one.
    pub(super) fn identity(&self, name: &str) -> String {
        if self.tells_twins { name.to_owned() } else { fold(name) }
    }

    /// What becomes of a character; `None` where it is dropped.
    fn character(&self, c: char) -> Option<char> {
        let common = self.characters == Characters::Common;
        match c {
            // A backslash separates folders where these torrents mostly come from, and libtorrent drops it.
            '\\' if common => None,
            '/' => None,
            c if is_override(c) || common && is_mark(c) => None,
            '\0' => Some('_'),
            // Terminals and scripts act upon these.
            c if self.characters != Characters::Unix && is_control(c) => Some('_'),
            '"' | '*' | ':' | '<' | '>' | '?' | '\\' | '|' if self.characters == Characters::Windows => Some('_'),
            c => Some(c),
        }
    }

    /// A path component out of any bytes, for names that were never text: where names are as on Unix, bytes that are no UTF-8 stay
    /// what they are. `_` where nothing usable is left.
    pub fn component(&self, raw: &[u8]) -> Vec<u8> {
        if self.characters != Characters::Unix || std::str::from_utf8(raw).is_ok() || raw.len() > self.name_bytes_max {
            return self.sanitize_or_underscore(raw).into_bytes();
        }
        let mut name = raw.to_vec();
        // What is dropped may bring together what is to be dropped.
        while let Some(cleaned) = self.cleaned(&name) {
            name = cleaned;
        }
        if matches!(&name[..], b"" | b"." | b"..") { b"_".to_vec() } else { name }
    }

    /// Without characters that may not be; `None` where there are none.
    fn cleaned(&self, raw: &[u8]) -> Option<Vec<u8>> {
        let mut name = Vec::with_capacity(raw.len());
        for chunk in raw.utf8_chunks() {
            name.extend(chunk.valid().chars().filter_map(|c| self.character(c)).collect::<String>().bytes());
            name.extend(chunk.invalid());
        }
        (name != raw).then_some(name)
    }

    /// A component with a number before its extension, no longer than a name may be.
    pub fn numbered_component(&self, name: &[u8], number: usize) -> Vec<u8> {
        if let Ok(name) = std::str::from_utf8(name) {
            return self.numbered(name, number).into_bytes();
        }
        let tail = format!(".{number}");
        [&name[..name.len().min(self.name_bytes_max - tail.len())], tail.as_bytes()].concat()
    }

    /// What two components share when the file system takes them for one.
    pub fn component_identity<'a>(&self, name: &'a [u8]) -> std::borrow::Cow<'a, [u8]> {
        match std::str::from_utf8(name) {
            Ok(text) if !self.tells_twins => fold(text).into_bytes().into(),
            _ => name.into(),
        }
    }

    fn shorten(&self, name: String) -> String {
        if name.len() <= self.name_bytes_max {
            return name;
        }
        let (stem, extension) = split_extension(&name);
        format!("{}{extension}", cut(stem, self.name_bytes_max - EXTENSION_BYTES_MAX))
    }
}

/// What two names share when some file system takes them for one: letter case, composed and decomposed letters, and
/// dots and spaces at the end, which Windows drops.
pub(super) fn fold(name: &str) -> String {
    let trimmed = name.trim_end_matches(['.', ' ']);
    if trimmed.is_ascii() {
        return trimmed.to_ascii_lowercase();
    }
    // Through both cases and back: letters may share only one of them, as the two small sigmas do.
    let lower = trimmed.nfd().flat_map(char::to_lowercase);
    lower.flat_map(char::to_uppercase).flat_map(char::to_lowercase).nfd().collect()
}

/// Characters that cannot be seen but change the order of those around them: `exe.gpj` must not show as `jpg.exe`.
pub(crate) fn is_override(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Marks of the writing direction; names in Hebrew and Arabic have them.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}')
}

fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Splits before the last dot; an extension that is too long is none.
fn split_extension(name: &str) -> (&str, &str) {
    match name.rfind('.') {
        Some(at @ 1..) if name.len() - at <= EXTENSION_BYTES_MAX => name.split_at(at),
        _ => (name, ""),
    }
}

/// At most `bytes` bytes of the front, whole characters.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [NameRules; 3] =
        [NameRules::PORTABLE, NameRules::EXACT, NameRules { characters: Characters::Windows, ..NameRules::PORTABLE }];

    fn safe(raw: impl AsRef<[u8]>) -> String {
        NameRules::PORTABLE.sanitize_or_underscore(raw.as_ref())
    }

    fn exact(raw: impl AsRef<[u8]>) -> String {
        NameRules::EXACT.sanitize_or_underscore(raw.as_ref())
    }

    fn numbered(name: &str, number: usize) -> String {
        NameRules::PORTABLE.numbered(name, number)
    }

    #[test]
    fn traversal_leaves_nothing() {
        for raw in ["", ".", "..", "/", "//", "../", "/..", "./", "\u{202e}..", "\u{2066}"] {
            for rules in ALL {
                assert_eq!(rules.sanitize(raw.as_bytes()), None, "{raw:?}");
                assert_eq!(rules.sanitize_or_underscore(raw.as_bytes()), "_");
            }
        }
        assert_eq!(NameRules::PORTABLE.sanitize(b"\\"), None);
        assert_eq!(safe("..."), "...");
        assert_eq!(safe("foo/../../../bar"), "foo......bar");
        assert_eq!(safe("/etc/passwd"), "etcpasswd");
        assert_eq!(safe("C:\\x"), "C:x");
    }

    #[test]
    fn control_characters_become_underscores() {
        assert_eq!(safe("a\0b\nc\x7fd\u{85}e\u{2028}f"), "a_b_c_d_e_f");
        assert_eq!(safe("\x1b[2J"), "_[2J");
    }

    #[test]
    fn direction_overrides_are_dropped() {
        assert_eq!(safe("photo\u{202e}gpj.exe"), "photogpj.exe");
        assert_eq!(safe("a\u{2066}b\u{200f}c"), "abc");
        assert_eq!(exact("photo\u{202e}gpj.exe"), "photogpj.exe");
        assert_eq!(safe("שלום.txt"), "שלום.txt");
    }

    #[test]
    fn what_unix_holds_is_kept() {
        // Persian and joined emoji need characters that cannot be seen; the rest is what people and programs leave behind.
        for name in [
            "نامه\u{200c}ها",
            "👩\u{200d}🚀.png",
            "a\tb",
            "Icon\r",
            "two\nlines",
            "x2d\\x2d.slice",
            "a:b?",
            "…\u{200f}",
            "dot. ",
        ] {
            assert_eq!(exact(name), name);
        }
        for name in ["نامه\u{200c}ها", "👩\u{200d}🚀.png", "a:b?"] {
            assert_eq!(safe(name), name);
        }
        assert_eq!(exact("a\0b"), "a_b");
    }

    #[test]
    fn what_windows_does_not_hold_is_replaced() {
        let windows = NameRules { characters: Characters::Windows, ..NameRules::PORTABLE };
        assert_eq!(windows.sanitize_or_underscore(b"a:b?\"<c>|*\\\t.txt"), "a_b___c_____.txt");
        assert_eq!(windows.sanitize_or_underscore("👩\u{200d}🚀".as_bytes()), "👩\u{200d}🚀");
    }

    #[test]
    fn some_file_systems_have_shorter_names() {
        let short = NameRules::EXACT.with_bytes_max(143);
        assert_eq!(short.sanitize_or_underscore(&[b'a'; 143]).len(), 143);
        assert_eq!(short.sanitize_or_underscore(&[b'a'; 144]).len(), 128);
        assert_eq!(NameRules::EXACT.with_bytes_max(0).numbered("abc.txt", 1), "abc.1.txt");
    }

    #[test]
    fn bytes_that_are_no_text_stay_where_they_can() {
        assert_eq!(NameRules::EXACT.component(b"caf\xe9"), b"caf\xe9");
        assert_eq!(NameRules::PORTABLE.component(b"caf\xe9"), b"caf_");
        // An override that appears when another is dropped goes, too.
        assert_eq!(NameRules::EXACT.component(b"a\xff\xe2\x80\xe2\x80\xae\xaeb"), b"a\xffb");
        assert_eq!(NameRules::EXACT.numbered_component(b"caf\xe9", 1), b"caf\xe9.1");
    }

    #[test]
    fn invalid_utf8_becomes_underscores() {
        assert_eq!(safe(b"a\xffb\xc0\xafc\xe2\x82"), "a_b__c_");
    }

    #[test]
    fn long_names_keep_their_extension() {
        assert_eq!(safe("a".repeat(255)).len(), 255);
        assert_eq!(safe("a".repeat(256)), "a".repeat(240));
        assert_eq!(safe("a".repeat(300) + ".tar"), "a".repeat(240) + ".tar");
        // An extension of 15 bytes fits, one of 16 is none.
        assert_eq!(safe("a".repeat(300) + ".01234567890123").len(), 255);
        assert_eq!(safe("a".repeat(300) + ".012345678901234"), "a".repeat(240));
        // 'é' is two bytes; the cut leaves whole characters.
        assert_eq!(safe("aé".repeat(100)), "aé".repeat(80));
    }

    #[test]
    fn numbers_stand_before_the_extension() {
        assert_eq!(numbered("a.txt", 1), "a.1.txt");
        assert_eq!(numbered("_", 2), "_.2");
        assert_eq!(numbered(".hidden", 1), ".hidden.1");
        assert_eq!(numbered(&("a".repeat(251) + ".txt"), 12), "a".repeat(248) + ".12.txt");
    }

    #[test]
    fn folding_joins_what_file_systems_join() {
        for (left, right) in [("A.TXT", "a.txt"), ("é", "E\u{301}"), ("ς", "Σ"), ("a. .", "A"), ("ẞ", "ss")] {
            assert_eq!(fold(left), fold(right), "{left} {right}");
        }
        assert_ne!(fold("a"), fold("b"));
    }

    proptest! {
        #[test]
        fn any_bytes_become_a_safe_name(raw in prop::collection::vec(any::<u8>(), 0..400), number in 1usize..1000) {
            for rules in ALL {
                let safe = rules.sanitize_or_underscore(&raw);
                for name in [rules.numbered(&safe, number), safe] {
                    prop_assert!((1..=NAME_BYTES_MAX).contains(&name.len()));
                    prop_assert!(!name.contains(['/', '\0']) && name != "." && name != "..");
                    prop_assert!(rules == NameRules::EXACT || !name.contains('\\'));
                    prop_assert_eq!(&rules.sanitize_or_underscore(name.as_bytes()), &name);
                }
            }
        }

        #[test]
        fn any_bytes_become_a_safe_component(raw in prop::collection::vec(any::<u8>(), 0..300), number in 1usize..1000) {
            for rules in ALL {
                let safe = rules.component(&raw);
                for name in [rules.numbered_component(&safe, number), safe] {
                    prop_assert!((1..=NAME_BYTES_MAX).contains(&name.len()));
                    prop_assert!(!name.iter().any(|byte| [b'/', 0].contains(byte)) && name != b"." && name != b"..");
                    prop_assert_eq!(&rules.component(&name), &name);
                }
            }
        }

        #[test]
        fn any_text_becomes_a_safe_name(raw in "\\PC{0,200}") {
            let name = safe(&raw);
            prop_assert_eq!(safe(&name), name.clone());
            prop_assert_eq!(fold(&fold(&name)), fold(&name));
        }
    }
}
