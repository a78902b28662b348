//! File names, made safe.
//!
//! The rules are libtorrent's for Unix, so that both write the same names; see `docs/metainfo.md`.

use unicode_normalization::UnicodeNormalization;

use super::limits::NAME_BYTES_MAX;

/// Bytes kept of the front of a name that is too long, before its extension. libtorrent cuts there too.
const STEM_BYTES: usize = 240;
/// Bytes of an extension worth keeping, the dot included.
const EXTENSION_BYTES_MAX: usize = NAME_BYTES_MAX - STEM_BYTES;

/// A path component out of any bytes; `None` where nothing usable is left (empty, `.`, `..`, only slashes).
pub fn sanitize(raw: &[u8]) -> Option<String> {
    let mut name = String::with_capacity(raw.len());
    for chunk in raw.utf8_chunks() {
        name.extend(chunk.valid().chars().filter(|c| !is_dropped(*c)).map(|c| if is_replaced(c) { '_' } else { c }));
        if !chunk.invalid().is_empty() {
            name.push('_');
        }
    }
    if matches!(name.as_str(), "" | "." | "..") {
        return None;
    }
    Some(shorten(name))
}

/// A path component out of any bytes, `_` where nothing usable is left.
pub fn sanitize_or_underscore(raw: &[u8]) -> String {
    sanitize(raw).unwrap_or_else(|| "_".to_owned())
}

/// `name` with a number before its extension, no longer than a name may be: `a.txt` becomes `a.1.txt`.
pub fn numbered(name: &str, number: usize) -> String {
    let (stem, extension) = split_extension(name);
    let tail = format!(".{number}{extension}");
    format!("{}{tail}", cut(stem, NAME_BYTES_MAX.saturating_sub(tail.len())))
}

/// What two names share when some file system takes them for one: letter case, composed and decomposed letters, and
/// dots and spaces at the end, which Windows drops.
pub fn fold(name: &str) -> String {
    let trimmed = name.trim_end_matches(['.', ' ']);
    if trimmed.is_ascii() {
        return trimmed.to_ascii_lowercase();
    }
    // Through both cases and back: letters may share only one of them, as the two small sigmas do.
    let lower = trimmed.nfd().flat_map(char::to_lowercase);
    lower.flat_map(char::to_uppercase).flat_map(char::to_lowercase).nfd().collect()
}

/// Separators, and characters that cannot be seen but change what is seen: `exe.gpj` must not show as `jpg.exe`.
fn is_dropped(c: char) -> bool {
    matches!(c, '/' | '\\'
        | '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Control characters (NUL and line ends among them), which terminals and scripts act upon.
fn is_replaced(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

fn shorten(name: String) -> String {
    if name.len() <= NAME_BYTES_MAX {
        return name;
    }
    let (stem, extension) = split_extension(&name);
    format!("{}{extension}", cut(stem, STEM_BYTES))
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

    fn safe(raw: impl AsRef<[u8]>) -> String {
        sanitize_or_underscore(raw.as_ref())
    }

    #[test]
    fn traversal_leaves_nothing() {
        for raw in ["", ".", "..", "/", "\\", "//", "../", "/..", "./", "\u{202e}..", "\u{200b}"] {
            assert_eq!(sanitize(raw.as_bytes()), None, "{raw:?}");
            assert_eq!(safe(raw), "_");
        }
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
        assert_eq!(safe("\u{feff}a\u{2066}b\u{200d}c"), "abc");
        assert_eq!(safe("שלום.txt"), "שלום.txt");
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
            for name in [safe(&raw), numbered(&safe(&raw), number)] {
                prop_assert!((1..=NAME_BYTES_MAX).contains(&name.len()));
                prop_assert!(!name.contains(['/', '\\', '\0']) && name != "." && name != "..");
                prop_assert_eq!(&safe(&name), &name);
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
