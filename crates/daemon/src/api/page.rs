//! The page and its parts. They stand in the program, and need nothing else.

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH};

use anabranch_content::hash::sha256;
use anabranch_content::hex;

use super::reply;
use super::{Call, Problem, Reply};

/// What there is: name in the address, type, bytes.
const PARTS: [(&str, &str, &[u8]); 6] = [
    ("", "text/html; charset=utf-8", include_bytes!("../page/index.html")),
    ("page.css", "text/css; charset=utf-8", include_bytes!("../page/page.css")),
    ("page.js", "text/javascript; charset=utf-8", include_bytes!("../page/page.js")),
    ("detail.js", "text/javascript; charset=utf-8", include_bytes!("../page/detail.js")),
    ("map.js", "text/javascript; charset=utf-8", include_bytes!("../page/map.js")),
    ("icon.svg", "image/svg+xml", include_bytes!("../page/icon.svg")),
];

/// A part of the page: nothing in it is secret.
pub(super) fn page(call: &Call, name: &str) -> Result<Reply, Problem> {
    let (_, kind, bytes) = PARTS.iter().find(|(part, ..)| *part == name).ok_or_else(Problem::missing)?;
    if !call.is_look() {
        return Err(call.wrong_method("GET and HEAD"));
    }
    let tag = format!("\"{}\"", &hex::encode(&sha256(bytes))[..16]);
    let known = call.headers.get(IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
    let mut reply = match known == Some(tag.as_str()) {
        true => reply::typed(StatusCode::NOT_MODIFIED, kind, &b""[..]),
        false => reply::typed(StatusCode::OK, kind, *bytes),
    };
    reply = reply::with(reply, CACHE_CONTROL, "no-cache");
    Ok(reply::with(reply, ETAG, &tag))
}
