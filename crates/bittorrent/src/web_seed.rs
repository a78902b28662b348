//! Web seeds (BEP 19, and BEP 17's): which URL holds a file or a part of a piece, which bytes of which files a request needs, what an answer is
//! worth, and when to ask again. Left to the driver: connections, names, bodies.

use std::ops::Range;
use std::time::Duration;

use anabranch_content::info::{FileKind, Info};
use thiserror::Error;

use crate::InfoHash;
use crate::tracker::{Scheme, TrackerUrl};

/// Wait after the first failure; doubles with every further one in a row.
const RETRY_FIRST: Duration = Duration::from_secs(5);
/// Longest wait of our own making.
const RETRY_MAX: Duration = Duration::from_secs(10 * 60);
/// Longest wait that a server may ask for.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);

/// A part of piece space, as one file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Bytes of a file.
    File {
        /// Its index in the file list.
        index: usize,
        /// Which bytes of it.
        range: Range<u64>,
    },
    /// So many zeros, that no server has.
    Pad(u64),
}

/// The parts of `range` of piece space, in order.
pub fn parts(info: &Info, range: Range<u64>) -> Vec<Part> {
    let files = info.files_in(range.clone());
    let part = |(index, file): (usize, &anabranch_content::info::FileEntry)| {
        let (begin, end) = (range.start.max(file.offset), range.end.min(file.range().end));
        match file.kind {
            FileKind::Pad => Part::Pad(end - begin),
            _ => Part::File { index, range: begin - file.offset..end - file.offset },
        }
    };
    files.map(part).collect()
}

/// Where a web seed has a file whose path in the torrent, the torrent's name included, is `written`. A folder's files are below the
/// URL; one file alone is at the URL, unless that ends with a slash.
pub fn url_of_file(base: &TrackerUrl, multi_file: bool, written: &str) -> TrackerUrl {
    let ends_with_slash = base.path().ends_with('/');
    if !multi_file && !ends_with_slash {
        return base.clone();
    }
    let mut path = String::with_capacity(written.len() + 1);
    if !ends_with_slash {
        path.push('/');
    }
    for byte in written.bytes() {
        match byte {
            // RFC 3986 §2.3, and what stands between components.
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => path.push(char::from(byte)),
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
    base.below(&path)
}

/// Where a web seed of BEP 17 has a part of a piece.
pub fn url_of_part(base: &TrackerUrl, info_hash: &InfoHash, piece: u32, part: &Range<u32>) -> TrackerUrl {
    let hash: String = info_hash.iter().map(|byte| format!("%{byte:02x}")).collect();
    base.with_query(&format!("info_hash={hash}&piece={piece}&ranges={}-{}", part.start, part.end.saturating_sub(1)))
}

/// Whether a URL is one that a web seed can have.
pub fn is_usable(url: &TrackerUrl) -> bool {
    url.scheme() != Scheme::Udp
}

/// The head of an answer, as far as it matters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head<'a> {
    /// The status.
    pub status: u16,
    /// "Content-Range".
    pub content_range: Option<&'a str>,
    /// "Content-Length".
    pub content_length: Option<u64>,
    /// "Content-Encoding".
    pub content_encoding: Option<&'a str>,
    /// "Retry-After".
    pub retry_after: Option<&'a str>,
}

/// Why an answer is of no use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The server does not have the file.
    #[error("it does not have the file (HTTP status {0})")]
    Missing(u16),
    /// The server sends whole files alone.
    #[error("it sends whole files only, not the ranges that are asked for (HTTP status 200)")]
    NoRanges,
    /// The server has a file of another length.
    #[error("its file has {theirs} bytes, the torrent's has {ours}")]
    OtherLength {
        /// What the server says.
        theirs: u64,
        /// What the torrent says.
        ours: u64,
    },
    /// The server sends another part than was asked for.
    #[error("it sends another part of the file than it was asked for")]
    OtherRange,
    /// The server sends something that would have to be unpacked.
    #[error("it sends the file encoded, which nobody asked for")]
    Encoded,
    /// The server is busy.
    #[error("it is busy (HTTP status {status})")]
    Busy {
        /// The status.
        status: u16,
        /// When it wants to be asked again.
        after: Option<Duration>,
    },
    /// The server says something else.
    #[error("it answers with HTTP status {0}")]
    Status(u16),
}

impl Refusal {
    /// Whether asking again is in vain.
    pub fn is_final(&self) -> bool {
        match self {
            Self::NoRanges | Self::OtherLength { .. } | Self::Encoded => true,
            Self::Status(status) => (400..500).contains(status),
            Self::Missing(_) | Self::OtherRange | Self::Busy { .. } => false,
        }
    }
}

/// Whether the body behind `head` is the bytes `asked` of a file of `file_len` bytes, and nothing else.
///
/// # Errors
/// Where it is not, with the reason.
pub fn judge(head: &Head<'_>, asked: &Range<u64>, file_len: u64) -> Result<(), Refusal> {
    let other_length = |theirs: u64| Refusal::OtherLength { theirs, ours: file_len };
    match head.status {
        200 | 206 if head.content_encoding.is_some_and(|how| !how.eq_ignore_ascii_case("identity")) => {
            Err(Refusal::Encoded)
        }
        206 => {
            let (sent, total) = head.content_range.and_then(parse_content_range).ok_or(Refusal::OtherRange)?;
            if let Some(total) = total.filter(|total| *total != file_len) {
                return Err(other_length(total));
            }
            let is_all = head.content_length.is_none_or(|len| len == asked.end - asked.start);
            if sent == *asked && is_all { Ok(()) } else { Err(Refusal::OtherRange) }
        }
        200 => match head.content_length {
            Some(len) if len != file_len => Err(other_length(len)),
            _ if *asked == (0..file_len) => Ok(()),
            _ => Err(Refusal::NoRanges),
        },
        status @ (404 | 410) => Err(Refusal::Missing(status)),
        // RFC 9110 §15.5.17: the server has fewer bytes, and may say how many ("bytes */LENGTH").
        416 => {
            let total = head.content_range.and_then(|text| text.trim().strip_prefix("bytes */")?.parse().ok());
            Err(total.filter(|total| *total != file_len).map_or(Refusal::OtherRange, other_length))
        }
        status @ (408 | 425 | 429 | 503) => {
            // A date would need the server's clock: our own pace does for that.
            let after = head.retry_after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
            Err(Refusal::Busy { status, after: after.map(|after| after.min(RETRY_AFTER_MAX)) })
        }
        status => Err(Refusal::Status(status)),
    }
}

/// Whether the body behind `head` is so many bytes of a piece (BEP 17), and nothing else. A busy server says in the body how many seconds to
/// wait; the driver reads it, and gives it as "Retry-After".
///
/// # Errors
/// Where it is not, with the reason.
pub fn judge_part(head: &Head<'_>, asked_len: u64) -> Result<(), Refusal> {
    match head.status {
        200 | 206 => match (head.content_encoding, head.content_length) {
            (Some(how), _) if !how.eq_ignore_ascii_case("identity") => Err(Refusal::Encoded),
            // The body is counted.
            (_, None) => Ok(()),
            (_, Some(len)) if len == asked_len => Ok(()),
            (_, Some(_)) => Err(Refusal::OtherRange),
        },
        status @ (404 | 410) => Err(Refusal::Status(status)),
        // All other answers mean what they mean elsewhere.
        _ => judge(head, &(0..asked_len), asked_len),
    }
}

/// RFC 9110 §14.4: `bytes FIRST-LAST/LENGTH`, where the length may be unknown.
fn parse_content_range(text: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (number(first)?, number(last)?);
    let total = match total.trim() {
        "*" => None,
        total => Some(number(total)?),
    };
    (first <= last).then_some((first..last.checked_add(1)?, total))
}

/// Digits and nothing else.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// When to try a web seed again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// It brought something: the next failure is the first one.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// It failed, and may have said when it wants to be asked again. Answers how long to wait.
    pub fn failed(&mut self, asked: Option<Duration>) -> Duration {
        let wait = RETRY_FIRST.saturating_mul(1 << self.failures.min(16)).min(RETRY_MAX);
        self.failures = self.failures.saturating_add(1);
        wait.max(asked.unwrap_or_default().min(RETRY_AFTER_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn files_are_below_the_url_and_one_alone_is_at_it() {
        for (base, multi_file, written, expected) in [
            ("http://w.example/files/", true, "name/a b.txt", "http://w.example/files/name/a%20b.txt"),
            ("http://w.example/files", true, "name/b", "http://w.example/files/name/b"),
            ("http://w.example", true, "name/b", "http://w.example/name/b"),
            ("http://w.example/files/", false, "ü?#%.bin", "http://w.example/files/%C3%BC%3F%23%25.bin"),
            ("http://w.example/one.bin", false, "name", "http://w.example/one.bin"),
            ("http://w.example/get?id=7", false, "name", "http://w.example/get?id=7"),
            ("https://w.example:8443/x/?key=7", true, "n/a", "https://w.example:8443/x/n/a?key=7"),
        ] {
            let url = url_of_file(&base.parse().unwrap(), multi_file, written);
            assert_eq!(url.to_string(), expected, "{base} {written}");
        }
    }

    #[test]
    fn an_answer_counts_for_what_was_asked_and_nothing_else() {
        let range = |text| Head { status: 206, content_range: Some(text), ..Head::default() };
        let whole = |content_length| Head { status: 200, content_length, ..Head::default() };
        let busy = |after| Head { status: 503, retry_after: Some(after), ..Head::default() };
        let status = |status| Head { status, ..Head::default() };
        let (part, all) = (10..20, 0..100);
        let other = |theirs| Err(Refusal::OtherLength { theirs, ours: 100 });
        let later = |seconds| Err(Refusal::Busy { status: 503, after: seconds }.clone()).map_err(|busy: Refusal| busy);
        for (head, asked, expected) in [
            (range("bytes 10-19/100"), &part, Ok(())),
            (range("bytes 10-19/*"), &part, Ok(())),
            (Head { content_length: Some(10), ..range("bytes 10-19/100") }, &part, Ok(())),
            (Head { content_length: Some(11), ..range("bytes 10-19/100") }, &part, Err(Refusal::OtherRange)),
            (range("bytes 10-20/100"), &part, Err(Refusal::OtherRange)),
            (range("bytes 19-10/100"), &part, Err(Refusal::OtherRange)),
            (range("bytes 10-18446744073709551615/100"), &part, Err(Refusal::OtherRange)),
            (range("10-19/100"), &part, Err(Refusal::OtherRange)),
            (range("bytes 10-19/101"), &part, other(101)),
            (Head { content_range: None, ..range("") }, &part, Err(Refusal::OtherRange)),
            (Head { content_encoding: Some("gzip"), ..range("bytes 10-19/100") }, &part, Err(Refusal::Encoded)),
            (Head { content_encoding: Some("identity"), ..range("bytes 10-19/100") }, &part, Ok(())),
            (whole(Some(100)), &all, Ok(())),
            (whole(None), &all, Ok(())),
            (whole(Some(100)), &part, Err(Refusal::NoRanges)),
            (whole(Some(7)), &part, other(7)),
            (status(404), &part, Err(Refusal::Missing(404))),
            (Head { status: 416, content_range: Some("bytes */15"), ..Head::default() }, &part, other(15)),
            (status(416), &part, Err(Refusal::OtherRange)),
            (busy("7"), &part, later(Some(Duration::from_secs(7)))),
            (busy("99999999"), &part, later(Some(RETRY_AFTER_MAX))),
            (busy("Wed, 21 Oct 2026 07:28:00 GMT"), &part, later(None)),
            (status(500), &part, Err(Refusal::Status(500))),
            (status(403), &part, Err(Refusal::Status(403))),
        ] {
            assert_eq!(judge(&head, asked, 100), expected, "{head:?}");
        }
        let final_ones = [Refusal::NoRanges, Refusal::Encoded, Refusal::Status(403)];
        assert!(final_ones.iter().all(Refusal::is_final) && !Refusal::Status(500).is_final());
    }

    #[test]
    fn parts_of_pieces_are_asked_for_by_query_and_counted() {
        let hash = std::array::from_fn(|at| at as u8 * 13);
        for (base, expected) in [
            ("http://w.example/seed.php", "http://w.example/seed.php?info_hash="),
            ("http://w.example/seed.php?key=7", "http://w.example/seed.php?key=7&info_hash="),
            ("http://w.example", "http://w.example?info_hash="),
        ] {
            let url = url_of_part(&base.parse().unwrap(), &hash, 12, &(16_384..49_152)).to_string();
            assert!(url.starts_with(expected) && url.ends_with("%f7&piece=12&ranges=16384-49151"), "{url}");
            assert!(url.contains("info_hash=%00%0d%1a"), "{url}");
        }
        let head = |status, content_length| Head { status, content_length, ..Head::default() };
        for (head, expected) in [
            (head(200, Some(100)), Ok(())),
            (head(206, None), Ok(())),
            (head(200, Some(101)), Err(Refusal::OtherRange)),
            (Head { content_encoding: Some("gzip"), ..head(200, Some(100)) }, Err(Refusal::Encoded)),
            (head(404, None), Err(Refusal::Status(404))),
            (head(416, None), Err(Refusal::OtherRange)),
            (
                Head { retry_after: Some("30"), ..head(503, None) },
                Err(Refusal::Busy { status: 503, after: Some(Duration::from_secs(30)) }),
            ),
        ] {
            assert_eq!(judge_part(&head, 100), expected, "{head:?}");
        }
    }

    #[test]
    fn who_fails_is_asked_ever_more_seldom_until_it_brings_something() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.failed(None), RETRY_FIRST);
        assert_eq!(backoff.failed(None), 2 * RETRY_FIRST);
        assert_eq!(backoff.failed(Some(Duration::from_secs(90))), Duration::from_secs(90));
        assert_eq!(backoff.failed(Some(Duration::from_secs(1))), 8 * RETRY_FIRST);
        (0..100).for_each(|_| _ = backoff.failed(None));
        assert_eq!(backoff.failed(None), RETRY_MAX);
        assert_eq!(backoff.failed(Some(Duration::MAX)), RETRY_AFTER_MAX);
        backoff.succeeded();
        assert_eq!(backoff.failed(None), RETRY_FIRST);
    }

    proptest! {
        #[test]
        fn no_head_is_taken_for_another_range(status in 190u16..520, text in "(bytes )?[0-9*]{0,4}[-/ ][0-9]{0,4}/?[0-9*]{0,4}", len: Option<u64>) {
            let head = Head { status, content_range: Some(&text), content_length: len, ..Head::default() };
            if judge(&head, &(10..20), 100).is_ok() {
                prop_assert_eq!(status, 206);
                prop_assert!(text.starts_with("bytes 10-19/"), "{}", text);
            }
        }

        #[test]
        fn any_name_makes_an_url_that_can_be_asked_for(written: String) {
            let base: TrackerUrl = "http://w.example/f/".parse().unwrap();
            let url = url_of_file(&base, true, &written);
            prop_assert!(url.target().bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert!(url.target().starts_with("/f/") && url.query().is_empty());
        }
    }
}
