//! Answers one request.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anabranch_bittorrent::picker::Priority;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Response, StatusCode, Uri};
use tokio::sync::{Mutex, watch};

use super::body::{Answer, Part};
use super::range::{self, Wanted};
use super::show::{Show, ShownFile};
use super::views::Book;
use super::{names, pages};
use crate::session::{Handle, ReadError};
use crate::transfer::ControlError;

/// How often it is looked whether files that are not open yet can be chosen.
const OPEN_POLL: Duration = Duration::from_millis(100);

const MISDIRECTED: &str =
    "name this host by its address: a web page that had its name changed to lead here is not served\n";
/// What a browser may do with our pages: show them and the media on them, and nothing else. Others' pages may not embed what is here.
const POLICY: [(HeaderName, &str); 3] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; media-src 'self'; img-src 'self'; style-src 'unsafe-inline'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

type Reply = Response<Answer>;

/// What the connections of a server share.
pub(super) struct ServerState {
    pub handle: Handle,
    pub show: watch::Receiver<Option<Arc<Show>>>,
    pub wanted: Mutex<BTreeSet<usize>>,
    pub book: Book,
}

pub(super) async fn respond(server: &Arc<ServerState>, request: &Request<Incoming>) -> Reply {
    let mut reply = answer(server, request).await;
    let headers = reply.headers_mut();
    headers.extend(POLICY.map(|(name, value)| (name, HeaderValue::from_static(value))));
    reply
}

async fn answer(server: &Arc<ServerState>, request: &Request<Incoming>) -> Reply {
    if !is_meant_for_an_address(request.uri(), request.headers()) {
        return text(StatusCode::MISDIRECTED_REQUEST, MISDIRECTED);
    }
    let is_head = request.method() == Method::HEAD;
    if !is_head && request.method() != Method::GET {
        let mut reply = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD work here\n");
        reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return reply;
    }
    let mut shown = server.show.clone();
    let known = shown.wait_for(Option::is_some).await;
    let Some(show) = known.ok().and_then(|show| show.clone()) else { return over() };
    let path = request.uri().path();
    match path {
        "/" => typed("text/html; charset=utf-8", pages::index(&show)),
        "/playlist.m3u" => {
            let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
            let host = host.or_else(|| Some(request.uri().authority()?.as_str()));
            let Some(host) = host else {
                return text(StatusCode::BAD_REQUEST, "say in Host which address you came by\n");
            };
            typed("audio/x-mpegurl; charset=utf-8", pages::playlist(&show, host))
        }
        _ => {
            let number = path.strip_prefix('/').and_then(|rest| rest.split('/').next()?.parse::<u32>().ok());
            let file = number.and_then(|number| show.files.iter().find(|file| file.number == number));
            let Some(file) = file else {
                return text(StatusCode::NOT_FOUND, "there is no such file: / lists those there are\n");
            };
            self::file(server, &show, file, request.headers(), is_head).await
        }
    }
}

/// Answers for one file, with what a browser may do with it.
pub(super) async fn file(
    server: &Arc<ServerState>,
    show: &Show,
    file: &ShownFile,
    headers: &HeaderMap,
    is_head: bool,
) -> Reply {
    let mut reply = match show.is_live {
        true => live(server, show, file, is_head),
        false => of_file(server, show, file, headers, is_head).await,
    };
    reply.headers_mut().extend(POLICY.map(|(name, value)| (name, HeaderValue::from_static(value))));
    reply
}

async fn of_file(
    server: &Arc<ServerState>,
    show: &Show,
    file: &ShownFile,
    headers: &HeaderMap,
    is_head: bool,
) -> Reply {
    // The same bytes for ever: the content's hash vouches for them. So it is a strong validator (RFC 9110, section 8.8.1).
    let tag = format!("\"{}-{}\"", show.hash, file.index);
    let mut reply = Response::builder()
        .header(header::ETAG, &tag)
        .header(header::ACCEPT_RANGES, "bytes")
        .header(header::CACHE_CONTROL, "no-cache");
    match judge(headers, &tag) {
        Verdict::Go => {}
        Verdict::Failed => return built(reply.status(StatusCode::PRECONDITION_FAILED), Answer::whole(Bytes::new())),
        Verdict::Known => return built(reply.status(StatusCode::NOT_MODIFIED), Answer::whole(Bytes::new())),
    }
    let kind = names::content_type(&file.name);
    reply = reply.header(header::CONTENT_DISPOSITION, names::disposition(&file.name));
    // RFC 9110, section 14.2: other methods than GET have no ranges.
    let wanted = if is_head { Wanted::Whole } else { wanted(headers, &tag, file.length) };
    let parts = match wanted {
        Wanted::Unsatisfiable => {
            let reply = reply.header(header::CONTENT_RANGE, format!("bytes */{}", file.length));
            return built(reply.status(StatusCode::RANGE_NOT_SATISFIABLE), Answer::whole(Bytes::new()));
        }
        Wanted::Whole => {
            reply = reply.header(header::CONTENT_TYPE, kind);
            vec![Part::File(0..file.length)]
        }
        Wanted::Parts(parts) => {
            reply = reply.status(StatusCode::PARTIAL_CONTENT);
            match <[Range<u64>; 1]>::try_from(parts) {
                Ok([part]) => {
                    reply = reply.header(header::CONTENT_TYPE, kind);
                    reply = reply.header(header::CONTENT_RANGE, content_range(&part, file.length));
                    vec![Part::File(part)]
                }
                Err(parts) => {
                    let boundary = boundary();
                    let multipart = format!("multipart/byteranges; boundary={boundary}");
                    reply = reply.header(header::CONTENT_TYPE, multipart);
                    multipart_of(parts, kind, file.length, &boundary)
                }
            }
        }
    };
    let length: u64 = parts.iter().map(Part::len).sum();
    reply = reply.header(header::CONTENT_LENGTH, length);
    if is_head || length == 0 {
        return built(reply, Answer::whole(Bytes::new()));
    }
    if !want(server, show, file.index).await {
        return over();
    }
    let reader = match server.handle.reader(show.id, file.index).await {
        Ok(reader) => reader,
        Err(error @ ReadError::TooMany) => return text(StatusCode::SERVICE_UNAVAILABLE, &format!("{error}\n")),
        Err(_) => return over(),
    };
    let first = parts.iter().find_map(|part| match part {
        Part::File(range) => Some(range.start),
        Part::Text(_) => None,
    });
    let viewing = server.book.open(file.index, first.unwrap_or(0), Instant::now());
    built(reply, Answer::parts(parts, reader, viewing))
}

/// A live stream: no length, no ranges, and nothing to keep.
fn live(server: &Arc<ServerState>, show: &Show, file: &ShownFile, is_head: bool) -> Reply {
    let reply = Response::builder()
        .header(header::ACCEPT_RANGES, "none")
        .header(header::CACHE_CONTROL, "no-store")
        .header(header::CONTENT_TYPE, names::content_type(&file.name))
        .header(header::CONTENT_DISPOSITION, names::disposition(&file.name));
    if is_head {
        return built(reply, Answer::whole(Bytes::new()));
    }
    let viewing = server.book.open(file.index, 0, Instant::now());
    built(reply, Answer::live(server.handle.live_player(show.id), viewing))
}

/// Has a file fetched that was not wanted so far. Answers whether it is.
async fn want(server: &Arc<ServerState>, show: &Show, index: usize) -> bool {
    let mut wanted = server.wanted.lock().await;
    wanted.extend(&show.wanted);
    if wanted.contains(&index) {
        return true;
    }
    let mut all = wanted.clone();
    all.insert(index);
    loop {
        let these = all.clone();
        let choose = move |index: usize, _: &_| if these.contains(&index) { Priority::NORMAL } else { Priority::SKIP };
        match server.handle.set_files(show.id, Box::new(choose)).await {
            // What is only shared is all there, and of PPSPP everything is fetched.
            Ok(()) | Err(ControlError::OnlyShared(_) | ControlError::NotWithPpspp(_)) => break,
            Err(ControlError::NotOpen(_) | ControlError::Busy(..)) => tokio::time::sleep(OPEN_POLL).await,
            Err(_) => return false,
        }
    }
    *wanted = all;
    true
}

/// Whether a request names the host that it is for by an address, or not at all. A web page whose own name was made to lead here
/// (DNS rebinding) goes by that name; programs that mean this host have its address.
fn is_meant_for_an_address(uri: &Uri, headers: &HeaderMap) -> bool {
    let header = headers.get(header::HOST).map(|host| host.to_str().unwrap_or("?"));
    let Some(host) = uri.authority().map(Authority::as_str).or(header) else { return true };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

enum Verdict {
    Go,
    Failed,
    Known,
}

/// What conditions say, in their order (RFC 9110, section 13.2.2). There are no dates of files, so those about dates say nothing.
fn judge(headers: &HeaderMap, tag: &str) -> Verdict {
    if headers.contains_key(header::IF_MATCH) && !any_matches(headers, header::IF_MATCH, tag, false) {
        return Verdict::Failed;
    }
    match any_matches(headers, header::IF_NONE_MATCH, tag, true) {
        true => Verdict::Known,
        false => Verdict::Go,
    }
}

/// Whether a list of tags has ours; `weak`: also as a weak one (section 8.8.3.2).
fn any_matches(headers: &HeaderMap, name: HeaderName, tag: &str, weak: bool) -> bool {
    let lists = headers.get_all(name).into_iter().filter_map(|list| list.to_str().ok());
    let mut tags = lists.flat_map(|list| list.split(',')).map(str::trim);
    tags.any(|named| named == "*" || named == tag || weak && named.strip_prefix("W/") == Some(tag))
}

/// Which bytes a GET wants. `If-Range` with another tag, or with a date, asks for the whole (section 13.1.5).
fn wanted(headers: &HeaderMap, tag: &str, length: u64) -> Wanted {
    let mut fields = headers.get_all(header::RANGE).into_iter();
    let (Some(field), None) = (fields.next(), fields.next()) else { return Wanted::Whole };
    let is_same = headers.get(header::IF_RANGE).is_none_or(|named| named.as_bytes() == tag.as_bytes());
    if is_same { range::parse(field.as_bytes(), length) } else { Wanted::Whole }
}

fn content_range(part: &Range<u64>, length: u64) -> String {
    format!("bytes {}-{}/{length}", part.start, part.end - 1)
}

/// RFC 9110, section 14.6.
fn multipart_of(parts: Vec<Range<u64>>, kind: &str, length: u64, boundary: &str) -> Vec<Part> {
    let head = |part: &Range<u64>| {
        let range = content_range(part, length);
        format!("\r\n--{boundary}\r\nContent-Type: {kind}\r\nContent-Range: {range}\r\n\r\n")
    };
    let end = Part::Text(format!("\r\n--{boundary}--\r\n").into());
    parts.into_iter().flat_map(|part| [Part::Text(head(&part).into()), Part::File(part)]).chain([end]).collect()
}

/// What stands in no file but by a chance of 2^-128. std keys each RandomState from the system's randomness.
fn boundary() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("anabranch-{:016x}{:016x}", random(), random())
}

fn over() -> Reply {
    text(StatusCode::SERVICE_UNAVAILABLE, "nothing more comes of this content: anabranch says why\n")
}

fn text(status: StatusCode, message: &str) -> Reply {
    let mut reply = typed("text/plain; charset=utf-8", message.to_owned());
    *reply.status_mut() = status;
    reply
}

fn typed(kind: &'static str, page: String) -> Reply {
    let mut reply = Response::new(Answer::whole(page));
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

fn built(reply: hyper::http::response::Builder, body: Answer) -> Reply {
    // Its fields are made of digits, hex and encoded names, so that it can be built.
    reply.body(body).unwrap_or_else(|_| text(StatusCode::INTERNAL_SERVER_ERROR, "this name cannot be told\n"))
}
