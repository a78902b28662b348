//! A web server with ranges, for web seeds (BEP 19): honest, or wrong in one way; or with pieces (BEP 17).

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::acceptor::Acceptor;
use crate::{Error, Result};

/// Connections in a server's life.
const CONNECTIONS_MAX: usize = 10_000;
/// What one that never ends sends at most.
const ENDLESS_BYTES_MAX: u64 = 64 << 20;
/// Between two bytes of one that drips.
const DRIP_EVERY: Duration = Duration::from_millis(100);
const PORTION_LEN: usize = 64 * 1024;

/// What is wrong with a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebTrick {
    /// Nothing.
    Honest,
    /// Nothing, but it ends each connection after one answer.
    HangsUp,
    /// Nothing, but it serves one connection at a time, and is busy for the others.
    OneAtATime,
    /// It sends other bytes than the file's.
    WrongBytes,
    /// It sends whole files, whatever range is asked for.
    WholeFiles,
    /// Its files are a byte longer than they should be.
    OtherLength,
    /// It sends another range than it was asked for, and says so.
    OtherRange,
    /// It says that it sends the range, and sends bytes without end.
    Endless,
    /// It says that it sends the range, and ends in the middle of it.
    Short,
    /// It sends one byte now and then.
    Drips,
    /// It accepts connections and says nothing.
    Silent,
    /// It is busy: 503, and how many seconds to wait.
    Busy(u64),
    /// Its answer is not HTTP.
    Garbage,
    /// It redirects to the same path below this URL.
    Redirects(String),
    /// It has not this file.
    Lacks(String),
    /// Nothing, but it speaks BEP 17: it has the pieces of this file, so many bytes each. The first request meets it busy.
    Pieces(String, u64),
}

/// A running server; it stops when dropped.
pub struct WebServer {
    /// Where it listens.
    pub address: SocketAddr,
    counts: Arc<Counts>,
    _acceptor: Acceptor,
}

#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    bytes: AtomicU64,
    open: AtomicUsize,
    most: AtomicUsize,
}

impl WebServer {
    /// Serves what is in `root`.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start(root: &Path, trick: WebTrick) -> Result<Self> {
        Self::listen((Ipv4Addr::LOCALHOST, 0).into(), root, trick)
    }

    /// The same at `address`.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn start_at(address: &str, root: &Path, trick: WebTrick) -> Result<Self> {
        let wrong = |_| Error::Nonsense { name: "a web server".into(), what: address.to_owned() };
        Self::listen(address.parse().map_err(wrong)?, root, trick)
    }

    fn listen(address: SocketAddr, root: &Path, trick: WebTrick) -> Result<Self> {
        let counts = Arc::<Counts>::default();
        let acceptor = Acceptor::start_at(address, CONNECTIONS_MAX, {
            let (root, counts) = (root.to_owned(), Arc::clone(&counts));
            move |stream| {
                let (root, trick, counts) = (root.clone(), trick.clone(), Arc::clone(&counts));
                std::thread::spawn(move || {
                    let open = counts.open.fetch_add(1, Ordering::Relaxed) + 1;
                    counts.most.fetch_max(open, Ordering::Relaxed);
                    // Who is gone wants no more.
                    let _ = serve(&stream, &root, &trick, open, &counts);
                    counts.open.fetch_sub(1, Ordering::Relaxed);
                });
            }
        })?;
        Ok(Self { address: acceptor.address, counts, _acceptor: acceptor })
    }

    /// What is below it.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.counts.requests.load(Ordering::Relaxed)
    }

    /// Bytes of bodies so far.
    pub fn sent_bytes(&self) -> u64 {
        self.counts.bytes.load(Ordering::Relaxed)
    }

    /// Most connections that were open at once.
    pub fn most_connections(&self) -> usize {
        self.counts.most.load(Ordering::Relaxed)
    }
}

fn serve(stream: &TcpStream, root: &Path, trick: &WebTrick, open: usize, counts: &Counts) -> std::io::Result<()> {
    // Head and body leave apart.
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    while let Some((path, range)) = request(&mut reader)? {
        counts.requests.fetch_add(1, Ordering::Relaxed);
        let say = |head: String| (&mut &*stream).write_all(head.as_bytes());
        let name = path.trim_start_matches('/');
        match trick {
            WebTrick::Silent => {
                std::io::copy(&mut reader, &mut std::io::sink())?;
                return Ok(());
            }
            WebTrick::Garbage => return say("SSH-2.0-OpenSSH_9.2p1\r\n".repeat(100)),
            WebTrick::Busy(seconds) => {
                say(format!("HTTP/1.1 503 Busy\r\nRetry-After: {seconds}\r\nContent-Length: 0\r\n\r\n"))?;
                continue;
            }
            WebTrick::OneAtATime if open > 1 => {
                return say("HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned());
            }
            WebTrick::Redirects(to) => {
                let to = format!("{to}{}", encode(name));
                say(format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"))?;
                continue;
            }
            _ => {}
        }
        if let WebTrick::Pieces(file, piece_length) = trick {
            if counts.requests.load(Ordering::Relaxed) == 1 {
                say("HTTP/1.1 503 Busy\r\nContent-Length: 1\r\n\r\n1".to_owned())?;
                continue;
            }
            let Some((begin, end)) = part(name, *piece_length) else {
                say("HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n".to_owned())?;
                continue;
            };
            let mut body = vec![0; end.saturating_sub(begin) as usize];
            File::open(below(root, file))?.read_exact_at(&mut body, begin)?;
            say(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()))?;
            (&mut &*stream).write_all(&body)?;
            counts.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
            continue;
        }
        let lacks = matches!(trick, WebTrick::Lacks(file) if name.ends_with(file.as_str()));
        let Some(file) = File::open(below(root, name)).ok().filter(|_| !lacks) else {
            say("HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot found".to_owned())?;
            continue;
        };
        let len = file.metadata()?.len();
        let told = len + u64::from(*trick == WebTrick::OtherLength);
        let (first, last) = range.unwrap_or((0, len.saturating_sub(1)));
        let (first, last) = match trick {
            WebTrick::OtherRange => (first + 1, last + 1),
            _ => (first, last.min(len.saturating_sub(1))),
        };
        let (begin, end) = if *trick == WebTrick::WholeFiles { (0, len) } else { (first, last + 1) };
        let what = match trick {
            WebTrick::WholeFiles => "200 OK".to_owned(),
            _ => format!("206 Partial Content\r\nContent-Range: bytes {first}-{last}/{told}"),
        };
        let close = if *trick == WebTrick::HangsUp { "Connection: close\r\n" } else { "" };
        let length = match trick {
            WebTrick::Endless => "Transfer-Encoding: chunked".to_owned(),
            _ => format!("Content-Length: {}", end - begin),
        };
        say(format!("HTTP/1.1 {what}\r\n{length}\r\n{close}\r\n"))?;
        if *trick == WebTrick::Endless {
            while counts.bytes.load(Ordering::Relaxed) < ENDLESS_BYTES_MAX {
                say(format!("{:x}\r\n{}\r\n", PORTION_LEN, "e".repeat(PORTION_LEN)))?;
                counts.bytes.fetch_add(PORTION_LEN as u64, Ordering::Relaxed);
            }
            return Ok(());
        }
        let end = if *trick == WebTrick::Short { begin + (end - begin) / 2 } else { end };
        let mut at = begin;
        let mut portion = vec![0; PORTION_LEN];
        while at < end {
            let wanted = if *trick == WebTrick::Drips { 1 } else { (end - at).min(PORTION_LEN as u64) as usize };
            let read = match file.read_at(&mut portion[..wanted], at)? {
                0 => wanted,
                read => read,
            };
            if *trick == WebTrick::WrongBytes {
                portion[..read].iter_mut().for_each(|byte| *byte ^= 0x55);
            }
            (&mut &*stream).write_all(&portion[..read])?;
            counts.bytes.fetch_add(read as u64, Ordering::Relaxed);
            at += read as u64;
            if *trick == WebTrick::Drips {
                std::thread::sleep(DRIP_EVERY);
            }
        }
        if matches!(trick, WebTrick::Short | WebTrick::HangsUp) {
            return Ok(());
        }
    }
    Ok(())
}

/// The bytes of the content that a query of BEP 17 asks for: one range of a piece.
fn part(query: &str, piece_length: u64) -> Option<(u64, u64)> {
    let value = |name: &str| query.split('&').find_map(|parameter| parameter.strip_prefix(name));
    let (first, last) = value("ranges=")?.split_once('-')?;
    let begin = value("piece=")?.parse::<u64>().ok()?.checked_mul(piece_length)?;
    Some((begin + first.parse::<u64>().ok()?, begin + last.parse::<u64>().ok()? + 1))
}

/// The path, decoded, and the range of the next request.
#[allow(clippy::type_complexity, reason = "a path, and maybe a range")]
fn request(reader: &mut impl BufRead) -> std::io::Result<Option<(String, Option<(u64, u64)>)>> {
    let mut line = String::new();
    if reader.take(8192).read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).map(decode).ok_or(ErrorKind::InvalidData)?;
    let mut range = None;
    loop {
        let mut header = String::new();
        if reader.take(8192).read_line(&mut header)? == 0 {
            return Ok(None);
        }
        let header = header.trim();
        if header.is_empty() {
            return Ok(Some((path, range)));
        }
        if let Some(bytes) = header.to_ascii_lowercase().strip_prefix("range: bytes=") {
            let both = bytes.split_once('-').ok_or(ErrorKind::InvalidData)?;
            range = both.0.parse().ok().zip(both.1.parse().ok());
        }
    }
}

fn decode(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut left = path.as_bytes();
    while let Some((first, rest)) = left.split_first() {
        let coded = rest.get(..2).filter(|_| *first == b'%');
        let byte = coded.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        left = if byte.is_some() { &rest[2..] } else { rest };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn encode(path: &str) -> String {
    path.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).into() } else { format!("%{byte:02x}") })
        .collect()
}

/// A file below `root`, and nowhere else.
fn below(root: &Path, name: &str) -> PathBuf {
    name.split('/').filter(|part| !part.is_empty() && *part != "..").fold(root.to_owned(), |path, part| path.join(part))
}
