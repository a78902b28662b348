//! `multipart/form-data` (RFC 7578, RFC 2046 §5.1): fields and files of one request. Pure.

use std::ops::Range;

/// Parts of one request.
const PARTS_MAX: usize = 500;
/// Bytes of the head of a part.
const HEAD_BYTES_MAX: usize = 4096;
/// RFC 2046 §5.1.1.
const BOUNDARY_BYTES_MAX: usize = 70;

/// A part of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The name of the field.
    pub(crate) name: String,
    /// What the file is called where it comes from; `None` for a field that is no file.
    pub(crate) file: Option<String>,
    /// Where its bytes are.
    pub(crate) bytes: Range<usize>,
}

/// The boundary that a `Content-Type` names.
pub(crate) fn boundary(content_type: &str) -> Option<&str> {
    let named = content_type.split(';').skip(1).find_map(|field| {
        let (name, value) = field.trim().split_once('=')?;
        name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
    });
    named.filter(|boundary| !boundary.is_empty() && boundary.len() <= BOUNDARY_BYTES_MAX)
}

/// Reads the parts of a body; `None` where it is malformed, or more than anybody means.
pub(crate) fn parts(body: &[u8], boundary: &str) -> Option<Vec<Part>> {
    let mut parts = Vec::new();
    // What stands before the first boundary is for nobody.
    let mut at = match body.starts_with(format!("--{boundary}").as_bytes()) {
        true => boundary.len() + 2,
        false => after_delimiter(body, 0, boundary)?.1,
    };
    loop {
        // RFC 2046 §5.1.1: the last one has two more hyphens; white space may follow each.
        if body[at..].starts_with(b"--") {
            return Some(parts);
        }
        at += body[at..].iter().position(|byte| !matches!(byte, b' ' | b'\t'))?;
        at += usize::from(body[at..].starts_with(b"\r\n")) * 2;
        let head = head(&body[at..])?;
        let start = at + head.len;
        let (end, next) = after_delimiter(body, start, boundary)?;
        let (name, file) = disposition(&body[at..start])?;
        parts.push(Part { name, file, bytes: start..end });
        if parts.len() > PARTS_MAX {
            return None;
        }
        at = next;
    }
}

/// Where the next delimiter is, and what stands behind it, from `from` on.
fn after_delimiter(body: &[u8], from: usize, boundary: &str) -> Option<(usize, usize)> {
    let delimiter = format!("\r\n--{boundary}");
    let mut at = from;
    // The body of a part may be empty: its head's last line end is the delimiter's too then.
    if from >= 2 && body[from - 2..].starts_with(delimiter.as_bytes()) {
        return Some((from, from - 2 + delimiter.len()));
    }
    loop {
        at += body.get(at..)?.iter().position(|byte| *byte == b'\r')?;
        if body[at..].starts_with(delimiter.as_bytes()) {
            return Some((at, at + delimiter.len()));
        }
        at += 1;
    }
}

struct Head {
    len: usize,
}

/// The head of a part, with the empty line that ends it.
fn head(bytes: &[u8]) -> Option<Head> {
    let within = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
    if within.starts_with(b"\r\n") {
        return Some(Head { len: 2 });
    }
    within.windows(4).position(|four| four == b"\r\n\r\n").map(|at| Head { len: at + 4 })
}

/// The name of the field, and that of the file (RFC 7578 §4.2).
fn disposition(head: &[u8]) -> Option<(String, Option<String>)> {
    let head = String::from_utf8_lossy(head);
    let line = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value.trim())
    })?;
    let mut rest = line.strip_prefix("form-data")?;
    let (mut name, mut file) = (None, None);
    while let Some(more) = rest.trim_start().strip_prefix(';') {
        let (key, value) = more.trim_start().split_once('=')?;
        let (value, left) = value_of(value)?;
        match key.trim().to_ascii_lowercase().as_str() {
            "name" => name = Some(value),
            "filename" => file = Some(value),
            // RFC 5987, which RFC 7578 §4.2 forbids here and some send all the same.
            "filename*" => file = Some(value.rsplit('\'').next().unwrap_or_default().to_owned()),
            _ => {}
        }
        rest = left;
    }
    rest.trim().is_empty().then_some(())?;
    Some((name?, file))
}

/// A value, quoted or not, and what follows.
fn value_of(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return Some((text[..end].trim().to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut letters = quoted.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(letters.next()?.1),
            letter => value.push(letter),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Option<Vec<(String, Option<String>, String)>> {
        let parts = parts(body.as_bytes(), "x")?;
        Some(parts.into_iter().map(|part| (part.name, part.file, body[part.bytes].to_owned())).collect())
    }

    fn field(name: &str, value: &str) -> String {
        format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    }

    #[test]
    fn fields_and_files_are_told_apart() {
        let file = "--x\r\ncontent-disposition: form-data; name=torrents; filename=\"a \\\"b\\\".torrent\"\r\nContent-Type: application/x-bittorrent\r\n\r\nd\r\n-e\r\n--y\r\n";
        let body = format!("{}{file}{}--x--\r\n", field("urls", "a\r\nb"), field("empty", ""));
        let text = str::to_owned;
        assert_eq!(
            read(&body),
            Some(vec![
                (text("urls"), None, text("a\r\nb")),
                (text("torrents"), Some(text("a \"b\".torrent")), text("d\r\n-e\r\n--y")),
                (text("empty"), None, text("")),
            ])
        );
        assert_eq!(read(&format!("preamble\r\n{}--x--", field("a", "b"))).map(|parts| parts.len()), Some(1));
        assert_eq!(read("--x--"), Some(vec![]));
    }

    #[test]
    fn what_is_malformed_or_too_much_is_refused() {
        for bad in [
            "",
            "--x",
            "--x\r\n",
            "--y\r\n\r\n--y--",
            "--x\r\n\r\nno name\r\n--x--",
            "--x\r\nContent-Disposition: attachment; name=\"a\"\r\n\r\nb\r\n--x--",
            "--x\r\nContent-Disposition: form-data; name=\"a\r\n\r\nb\r\n--x--",
            "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb",
            "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n--x",
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        let long = format!("--x\r\nContent-Disposition: form-data; name=\"{}\"\r\n\r\nb\r\n--x--", "a".repeat(5000));
        assert_eq!(read(&long), None);
        let fill = |count: usize| format!("{}--x--", field("a", "b").repeat(count));
        assert_eq!(read(&fill(PARTS_MAX)).map(|parts| parts.len()), Some(PARTS_MAX));
        assert_eq!(read(&fill(PARTS_MAX + 1)), None);
    }

    #[test]
    fn boundaries_are_found_in_content_types() {
        assert_eq!(boundary("multipart/form-data; boundary=abc"), Some("abc"));
        assert_eq!(boundary("multipart/form-data; charset=x; Boundary=\"a b\""), Some("a b"));
        for bad in ["multipart/form-data", "multipart/form-data; boundary=", &format!("m; boundary={}", "a".repeat(71))]
        {
            assert_eq!(boundary(bad), None, "{bad}");
        }
    }
}
