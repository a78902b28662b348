//! Files' names: what type a file has by its name, and how names stand in URLs, header fields and pages. Names come from strangers. Pure.

use std::fmt::Write;

/// What is sent of a file whose type nobody knows, or that a browser should not run.
const UNKNOWN: &str = "application/octet-stream";

/// Types of what players show, by the end of the name.
const MEDIA: [(&str, &str); 33] = [
    ("mp4", "video/mp4"),
    ("m4v", "video/mp4"),
    ("mkv", "video/x-matroska"),
    ("webm", "video/webm"),
    ("ts", "video/mp2t"),
    ("m2ts", "video/mp2t"),
    ("mts", "video/mp2t"),
    ("mpg", "video/mpeg"),
    ("mpeg", "video/mpeg"),
    ("vob", "video/mpeg"),
    ("avi", "video/x-msvideo"),
    ("mov", "video/quicktime"),
    ("wmv", "video/x-ms-wmv"),
    ("asf", "video/x-ms-asf"),
    ("flv", "video/x-flv"),
    ("ogv", "video/ogg"),
    ("ogm", "video/ogg"),
    ("3gp", "video/3gpp"),
    ("rmvb", "application/vnd.rn-realmedia-vbr"),
    ("divx", "video/x-msvideo"),
    ("mp3", "audio/mpeg"),
    ("m4a", "audio/mp4"),
    ("m4b", "audio/mp4"),
    ("aac", "audio/aac"),
    ("flac", "audio/flac"),
    ("ogg", "audio/ogg"),
    ("oga", "audio/ogg"),
    ("opus", "audio/ogg"),
    ("wav", "audio/wav"),
    ("wma", "audio/x-ms-wma"),
    ("ac3", "audio/ac3"),
    ("dts", "audio/vnd.dts"),
    ("ape", "audio/x-ape"),
];

/// Types of what goes with it. What a browser would run as a page (HTML, SVG, XML) is not among them.
const BESIDE: [(&str, &str); 13] = [
    ("srt", "application/x-subrip"),
    ("vtt", "text/vtt"),
    ("ass", "text/plain; charset=utf-8"),
    ("ssa", "text/plain; charset=utf-8"),
    ("txt", "text/plain; charset=utf-8"),
    ("nfo", "text/plain; charset=utf-8"),
    ("md", "text/plain; charset=utf-8"),
    ("cue", "text/plain; charset=utf-8"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("png", "image/png"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
];

fn by_name(table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    let (_, ending) = name.rsplit_once('.')?;
    table.iter().find(|(known, _)| ending.eq_ignore_ascii_case(known)).map(|(_, kind)| *kind)
}

/// Whether a file of this name is one that is played.
pub fn is_media(name: &str) -> bool {
    by_name(&MEDIA, name).is_some()
}

/// The `Content-Type` of a file of this name.
pub(super) fn content_type(name: &str) -> &'static str {
    by_name(&MEDIA, name).or_else(|| by_name(&BESIDE, name)).unwrap_or(UNKNOWN)
}

/// Whether a browser may show it: what is not known is saved instead.
pub(super) fn is_shown(name: &str) -> bool {
    content_type(name) != UNKNOWN
}

/// The name as it stands in a URL's path (RFC 3986, "unreserved").
pub fn url_encoded(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // A text takes all that is written.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// `Content-Disposition`, with the name twice: as far as ASCII goes, and as it is (RFC 6266, RFC 8187).
pub(super) fn disposition(name: &str) -> String {
    let fits = |c: char| (' '..='~').contains(&c) && !"\"\\%".contains(c);
    let plain: String = name.chars().map(|c| if fits(c) { c } else { '_' }).collect();
    let how = if is_shown(name) { "inline" } else { "attachment" };
    format!("{how}; filename=\"{plain}\"; filename*=UTF-8''{}", url_encoded(name))
}

/// The text as it stands in a page.
pub(super) fn html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// The text on one line.
pub(super) fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    const ODD: [&str; 8] = [
        "a b.mkv",
        "\u{e4}\u{f6}.mp4",
        "100%.mp3",
        "q\"uote\\.mkv",
        "a\nb\r\n.mp4",
        "<script>.html",
        "?#&;=.avi",
        "\u{202e}4pm.exe",
    ];

    #[test]
    fn names_stand_in_fields_and_urls_whatever_they_are() {
        for name in ODD {
            let field = disposition(name);
            assert!(HeaderValue::from_str(&field).is_ok(), "{field:?}");
            let url = url_encoded(name);
            assert!(url.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte)), "{url}");
            assert!(!html(name).contains(['<', '"', '\n']) && !line(name).contains(['\n', '\r']));
        }
        assert_eq!(disposition("a.mkv"), "inline; filename=\"a.mkv\"; filename*=UTF-8''a.mkv");
        assert_eq!(url_encoded("\u{e4} %"), "%C3%A4%20%25");
    }

    #[test]
    fn pages_and_programs_are_saved_and_not_run() {
        for name in ["x.html", "x.svg", "x.js", "x.xhtml", "x.pdf", "x", "x.", ".mkv/x", "4pm.exe"] {
            assert_eq!(content_type(name), UNKNOWN, "{name}");
            assert!(disposition(name).starts_with("attachment"), "{name}");
        }
        assert_eq!(content_type("A.MKV"), "video/x-matroska");
        assert!(is_media("x.Mp3") && !is_media("x.srt") && !is_media("mp3"));
    }
}
