//! Text of strangers, made fit for a terminal or a page.

/// The first `chars_max` visible characters of `raw`: no control characters, none that change the direction of what
/// follows or take no room. What is no UTF-8 becomes U+FFFD.
pub(crate) fn displayable(raw: &[u8], chars_max: usize) -> String {
    // A character has four bytes at most, so few of what is kept can lie past this; the rest need not be looked at.
    let raw = &raw[..raw.len().min(4 * chars_max)];
    String::from_utf8_lossy(raw).chars().filter(|c| !is_invisible(*c)).take(chars_max).collect()
}

pub(crate) fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_is_dropped() {
        assert_eq!(displayable("a\x1b[31m\u{202e}b\u{200b}\n".as_bytes(), 9), "a[31mb");
        assert_eq!(displayable(b"\xff", 9), "\u{fffd}");
    }

    #[test]
    fn the_end_is_cut_between_characters() {
        assert_eq!(displayable("\u{1f30a}".repeat(9).as_bytes(), 3), "\u{1f30a}".repeat(3));
        assert_eq!(displayable(&[b'x'; 9000], 48).len(), 48);
    }
}
