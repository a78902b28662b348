//! The demo's page, served while the demo runs: at a loopback address, one request after the other.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anabranch_lab::network::{Bound, Network};
use anabranch_lab::report::{Report, Run};

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long a request may take to come, and its answer to be taken.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// A page that is open asks every second: whoever asked within this time is told how it ended ...
const WATCHING: Duration = Duration::from_secs(3);
/// ... and waited for, so long.
const LAST_LOOK_MAX: Duration = Duration::from_secs(3);
const LOOK_POLL: Duration = Duration::from_millis(20);
/// What the page may do: run what is in it, and ask for itself.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What is served, and who looked.
struct Shown {
    page: Mutex<Arc<str>>,
    looked: Mutex<Option<Instant>>,
    is_last: AtomicBool,
    last_seen: AtomicBool,
    ended: AtomicBool,
}

/// A page that follows the demo.
pub(super) struct Web {
    shown: Arc<Shown>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
    report: Option<Report>,
}

impl Web {
    /// Serves at this address, port 0 for any.
    pub(super) fn start(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shown = Arc::new(Shown {
            page: Mutex::new(waiting().into()),
            looked: Mutex::new(None),
            is_last: AtomicBool::new(false),
            last_seen: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shown);
        let thread =
            std::thread::Builder::new().name("demo-page".to_owned()).spawn(move || serving.serve(&listener))?;
        Ok(Self { shown, address, thread: Some(thread), report: None })
    }

    /// Where.
    pub(super) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// The network runs.
    pub(super) fn begin(&mut self, network: &Network, bound: Option<&Bound>, content_bytes: u64) {
        let (network, bound) = (network.clone(), bound.cloned());
        self.report = Some(Report { network, bound, content_bytes, runs: Vec::new(), facts: Vec::new() });
    }

    /// What is known of a run now.
    pub(super) fn show(&mut self, run: &Run) {
        let Some(report) = &mut self.report else { return };
        match report.runs.last_mut().filter(|last| last.name == run.name) {
            Some(last) => last.clone_from(run),
            None => report.runs.push(run.clone()),
        }
        self.shown.put(report.followed_html());
    }

    /// How it came out; ends once those who look have seen it.
    pub(super) fn finish(self, report: &Report) {
        self.shown.put(report.html());
        self.shown.is_last.store(true, Ordering::Relaxed);
        let looked = *self.shown.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let since = Instant::now();
        while looked.is_some_and(|looked| since.saturating_duration_since(looked) < WATCHING)
            && !self.shown.last_seen.load(Ordering::Relaxed)
            && since.elapsed() < LAST_LOOK_MAX
        {
            std::thread::sleep(LOOK_POLL);
        }
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.shown.ended.store(true, Ordering::Relaxed);
        // It waits for the next request: here it is. Where that does not come through, the thread ends with the program.
        if TcpStream::connect_timeout(&self.address, REQUEST_TIMEOUT).is_ok() {
            self.thread.take().map(JoinHandle::join);
        }
    }
}

impl Shown {
    fn put(&self, page: String) {
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = page.into();
    }

    fn serve(&self, listener: &TcpListener) {
        while !self.ended.load(Ordering::Relaxed) {
            let Ok((stream, _)) = listener.accept() else { continue };
            // Whoever breaks off is not answered.
            let _ = self.answer(&stream);
        }
    }

    fn answer(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
        let Some(first) = request(stream)? else { return Ok(()) };
        let is_last = self.is_last.load(Ordering::Relaxed);
        let page = Arc::clone(&self.page.lock().unwrap_or_else(PoisonError::into_inner));
        let mut words = first.split(' ');
        let (status, kind, body) = match (words.next(), words.next()) {
            (Some("GET" | "HEAD"), Some("/")) => ("200 OK", "text/html; charset=utf-8", &*page),
            (Some("GET" | "HEAD"), _) => ("404 Not Found", "text/plain", "the page is at /\n"),
            _ => ("405 Method Not Allowed", "text/plain", "GET and HEAD work here\n"),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nContent-Security-Policy: {POLICY}\r\n\
             X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let mut stream = stream;
        stream.write_all(head.as_bytes())?;
        if !first.starts_with("HEAD") {
            stream.write_all(body.as_bytes())?;
        }
        if status.starts_with("200") {
            *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            self.last_seen.fetch_or(is_last, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// The first line of a request, once its head is there; `None` where that is too long, or takes too long.
fn request(mut stream: &TcpStream) -> io::Result<Option<String>> {
    let (began, mut head, mut chunk) = (Instant::now(), Vec::new(), [0; 1024]);
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let count = stream.read(&mut chunk)?;
        head.extend_from_slice(&chunk[..count]);
        if count == 0 || head.len() > HEAD_BYTES_MAX || began.elapsed() > REQUEST_TIMEOUT {
            return Ok(None);
        }
    }
    let first = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    Ok(Some(String::from_utf8_lossy(first).into_owned()))
}

/// What is shown before there is anything: it asks again by itself.
fn waiting() -> &'static str {
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta http-equiv=\"refresh\" content=\"1\">\n\
     <title>Anabranch: the demo begins</title>\n</head>\n<body>\n<p>The demo begins.</p>\n</body>\n</html>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(url: &str, request: &str) -> String {
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn the_page_is_served_and_nothing_else() {
        let web = Web::start(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let url = web.url();
        assert!(ask(&url, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").contains("The demo begins"));
        assert!(!ask(&url, "HEAD / HTTP/1.1\r\nHost: x\r\n\r\n").contains("The demo begins"));
        assert!(ask(&url, "GET /etc/passwd HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(&url, "POST / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        // A head without end is answered by nothing but the end of the connection.
        let endless = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(2 * HEAD_BYTES_MAX));
        let mut stream = TcpStream::connect(url.trim_start_matches("http://").trim_end_matches('/')).unwrap();
        let _ = stream.write_all(endless.as_bytes());
        drop(stream);
        drop(web);
        assert!(TcpStream::connect(url.trim_start_matches("http://").trim_end_matches('/')).is_err());
    }
}
