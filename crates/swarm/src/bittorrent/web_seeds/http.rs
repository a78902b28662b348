//! HTTP to a web seed, of version 2 where it offers that over TLS, else of 1.1: where its files are, connections over the uplinks in turn, and ranges of files over them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anabranch_bittorrent::reach::{may_fetch, may_redirect};
use anabranch_bittorrent::tracker::{Scheme, TrackerUrl};
use anabranch_bittorrent::web_seed::{Head, is_usable, judge, judge_part, url_of_file, url_of_part};
use anabranch_bittorrent::wire::BlockRange;
use anabranch_content::info::Info;
use anabranch_content::metainfo::written_paths;
use anabranch_paths::Path;
use anabranch_transport::{ConnectError, TcpStream, Via};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::error::Failure;
use crate::resources::Resources;
use crate::tracker::{BEHIND_PROXY, NamedBy, through};

/// Redirects followed for one range.
const REDIRECTS_MAX: u32 = 5;
/// What is read of a connection ahead of who takes it, and so the longest head of an answer.
const BUFFER_BYTES: usize = 64 << 10;
/// What a server of HTTP/2 may send ahead of who takes it: at a round trip of 100 ms that is 10 MB/s over each connection.
const WINDOW_BYTES: u32 = 1 << 20;
/// What we speak over TLS, what we like best first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// No head, or no further byte of a body, for so long: the server, or the way there, is gone.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Ways to one name that are tried for a connection.
const WAYS_TRIED_MAX: usize = 3;
/// Bytes of a busy server's body: a number of seconds (BEP 17).
const SECONDS_LEN_MAX: usize = 16;
/// Files whose redirect is remembered.
const MOVED_MAX: usize = 1024;
const USER_AGENT: &str = concat!("anabranch/", env!("CARGO_PKG_VERSION"));

/// How a web seed is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// For ranges of files (BEP 19, "url-list").
    Files,
    /// For parts of pieces (BEP 17, "httpseeds"), of the content of this hash.
    Pieces([u8; 20]),
}

/// A web seed, and the content that it has.
pub(super) struct Site {
    resources: Rc<Resources>,
    url: TrackerUrl,
    by: NamedBy,
    pub info: Arc<Info>,
    pub kind: Kind,
    /// Each file's path as the torrent writes it; empty for pads.
    names: Vec<String>,
    /// Where files were redirected to, and the address of who said so.
    moved: RefCell<BTreeMap<usize, (TrackerUrl, IpAddr)>>,
}

impl Site {
    pub(super) fn new(resources: Rc<Resources>, (url, kind): (TrackerUrl, Kind), by: NamedBy, info: Arc<Info>) -> Self {
        let mut written = written_paths(&info).into_iter();
        let is_pad = |kind: &anabranch_content::info::FileKind| *kind == anabranch_content::info::FileKind::Pad;
        let name = |file: &anabranch_content::info::FileEntry| match is_pad(&file.kind) {
            true => String::new(),
            false => written.next().unwrap_or_default(),
        };
        let names = info.files.iter().map(name).collect();
        Self { resources, url, by, info, kind, names, moved: RefCell::default() }
    }

    /// What the torrent calls a file.
    pub(super) fn name(&self, file: usize) -> &str {
        self.names.get(file).map_or("", String::as_str)
    }

    fn file_len(&self, file: usize) -> u64 {
        self.info.files.get(file).map_or(0, |file| file.length)
    }

    /// Where a file is asked for, and the address of who redirected there, if anybody did.
    fn place(&self, file: usize) -> (TrackerUrl, Option<IpAddr>) {
        if let Some((url, from)) = self.moved.borrow().get(&file) {
            return (url.clone(), Some(*from));
        }
        (url_of_file(&self.url, self.info.multi_file, self.name(file)), None)
    }

    /// Opens a connection to the host of `url`, to which the server at `from` redirected, if it is no the web seed's own. Each `lane` leaves by
    /// another uplink, where there are several.
    ///
    /// # Errors
    /// Where there is no way there, or it is none that may be taken.
    pub(super) async fn connect(&self, url: &TrackerUrl, from: Option<IpAddr>, lane: usize) -> Result<Http, Failure> {
        let access = self.resources.trackers.access();
        let (stream, local, remote) = match &access.proxy {
            Some(proxy) => {
                if self.by == NamedBy::Torrent || from.is_some() {
                    access.judge_unseen(url).map_err(|_| Failure::TooNear(url.authority()))?;
                }
                let connecting = tokio::time::timeout(SILENCE_MAX, through(proxy, url));
                let stream = connecting.await.map_err(|_| Failure::Net(format!("the proxy {}", silence())))??;
                (stream, BEHIND_PROXY.ip(), BEHIND_PROXY)
            }
            None => {
                let mut addrs = access.free(access.resolve(url).await?)?;
                match (from, self.by) {
                    (Some(from), _) if !addrs.iter().all(|addr| may_redirect(from, *addr)) => {
                        return Err(Failure::RedirectUnfit);
                    }
                    (None, NamedBy::Torrent) => {
                        let first = addrs[0];
                        addrs.retain(|addr| may_fetch(*addr));
                        if addrs.is_empty() {
                            return Err(Failure::TooNear(first.to_string()));
                        }
                    }
                    _ => {}
                }
                let stream = self.leave(&addrs, lane).await?.into_inner();
                let (local, remote) = (stream.local_addr()?, stream.peer_addr()?);
                (stream, local.ip(), remote)
            }
        };
        let origin = url.origin();
        match url.scheme() {
            Scheme::Https => {
                let name = ServerName::try_from(url.host().to_owned()).map_err(|_| Failure::RedirectUnfit)?;
                let mut tls = (*self.resources.trackers.tls()?).clone();
                tls.alpn_protocols = ALPN.map(<[u8]>::to_vec).to_vec();
                let connecting = TlsConnector::from(Arc::new(tls)).connect(name, stream);
                let stream = tokio::time::timeout(SILENCE_MAX, connecting).await.map_err(|_| silent())?;
                let stream = stream.map_err(crate::tracker::Cause::Tls)?;
                match stream.get_ref().1.alpn_protocol() == Some(ALPN[0]) {
                    true => Http::begin_2(stream, origin, local, remote).await,
                    false => Http::begin(stream, origin, local, remote).await,
                }
            }
            _ => Http::begin(stream, origin, local, remote).await,
        }
    }

    /// Connects to one of `addrs`, by one uplink after the other, beginning with that of the lane.
    async fn leave(&self, addrs: &[SocketAddr], lane: usize) -> Result<TcpStream, Failure> {
        let mut ways: Vec<(SocketAddr, Option<Via>)> = addrs.iter().map(|addr| (*addr, None)).collect();
        if let Some(uplinks) = &self.resources.uplinks {
            let via = |(remote, path): (SocketAddr, Path)| Some((remote, Some(uplinks.via(remote, &path)?)));
            let found = uplinks.candidates(addrs).into_iter().map(|candidate| (candidate.remote, candidate.path));
            let leading: Vec<_> = found.filter_map(via).collect();
            match leading.is_empty() {
                true if uplinks.interfaces().is_restricted() => return Err(Failure::NoInterface),
                true => {}
                false => ways = leading,
            }
        }
        let count = ways.len();
        ways.rotate_left(lane % count.max(1));
        let mut last = Failure::Cause(crate::tracker::Cause::NoAddress);
        for (addr, via) in ways.into_iter().take(WAYS_TRIED_MAX) {
            match TcpStream::connect(addr.into(), via.as_ref()).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = unreachable(error),
            }
        }
        Err(last)
    }

    /// Asks for `range` of `file`, over the connection that `kept` has, if it leads to the right place, and leaves there the one that the answer
    /// comes over.
    ///
    /// # Errors
    /// Where the answer is not these bytes of the file.
    pub(super) async fn get(
        &self,
        file: usize,
        range: &Range<u64>,
        lane: usize,
        kept: &mut Option<Http>,
    ) -> Result<Body, Failure> {
        let (mut url, mut from) = self.place(file);
        let mut is_remembered = from.is_some();
        for _ in 0..=REDIRECTS_MAX {
            let (response, at) = self.ask(&url, from, Some(range), lane, kept).await?;
            let header =
                |name| response.headers().get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
            let status = response.status().as_u16();
            let location = header(header::LOCATION).filter(|_| matches!(status, 301 | 302 | 303 | 307 | 308));
            let Some(location) = location else {
                let head = Head {
                    status,
                    content_range: header(header::CONTENT_RANGE),
                    content_length: header(header::CONTENT_LENGTH).and_then(|len| len.parse().ok()),
                    content_encoding: header(header::CONTENT_ENCODING),
                    retry_after: header(header::RETRY_AFTER),
                };
                if let Err(refusal) = judge(&head, range, self.file_len(file)) {
                    // Its body is not for us, and so is what comes behind it.
                    *kept = None;
                    // Where a file was yesterday it need not be today.
                    if std::mem::take(&mut is_remembered) {
                        self.moved.borrow_mut().remove(&file);
                        (url, from) = self.place(file);
                        continue;
                    }
                    return Err(refusal.into());
                }
                return Ok(Body { incoming: response.into_body(), left: range.end - range.start });
            };
            let next = url.join(location).map_err(|_| Failure::RedirectUnfit)?;
            if !is_usable(&next) || url.scheme() == Scheme::Https && next.scheme() == Scheme::Http {
                return Err(Failure::RedirectUnfit);
            }
            *kept = None;
            let mut moved = self.moved.borrow_mut();
            if moved.len() < MOVED_MAX {
                moved.insert(file, (next.clone(), at));
            }
            (url, from) = (next, Some(at));
        }
        Err(Failure::Redirects(REDIRECTS_MAX))
    }

    /// Asks for `part` of a piece (BEP 17), as [`Site::get`] does for a range of a file. It is asked for where the torrent says alone: redirects
    /// are not followed.
    ///
    /// # Errors
    /// Where the answer is not these bytes.
    pub(super) async fn get_part(
        &self,
        hash: &[u8; 20],
        part: BlockRange,
        lane: usize,
        kept: &mut Option<Http>,
    ) -> Result<Body, Failure> {
        let url = url_of_part(&self.url, hash, part.piece, &(part.begin..part.begin + part.len));
        let (response, _) = self.ask(&url, None, None, lane, kept).await?;
        let (head, mut incoming) = response.into_parts();
        let header = |name| head.headers.get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
        let status = head.status.as_u16();
        let seconds = if status == 503 { seconds(&mut incoming).await } else { None };
        let judged = judge_part(
            &Head {
                status,
                content_length: header(header::CONTENT_LENGTH).and_then(|len| len.parse().ok()),
                content_encoding: header(header::CONTENT_ENCODING),
                retry_after: seconds.as_deref().or(header(header::RETRY_AFTER)),
                ..Head::default()
            },
            part.len.into(),
        );
        if let Err(refusal) = judged {
            *kept = None;
            return Err(refusal.into());
        }
        Ok(Body { incoming, left: part.len.into() })
    }

    /// One request; the head of its answer, and the address of who answered. A connection that was kept may have been closed by the server
    /// meanwhile: then a new one is opened, once.
    async fn ask(
        &self,
        url: &TrackerUrl,
        from: Option<IpAddr>,
        range: Option<&Range<u64>>,
        lane: usize,
        kept: &mut Option<Http>,
    ) -> Result<(Response<Incoming>, IpAddr), Failure> {
        let usable = kept.take().filter(|http| http.origin == url.origin());
        if let Some(mut http) = usable
            && let Ok(response) = http.request(url, range).await
        {
            let at = http.remote.ip();
            *kept = Some(http);
            return Ok((response, at));
        }
        let mut http = self.connect(url, from, lane).await?;
        let response = http.request(url, range).await?;
        let at = http.remote.ip();
        *kept = Some(http);
        Ok((response, at))
    }
}

/// Who requests are given to.
enum Sender {
    Http1(http1::SendRequest<Empty<Bytes>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
}

/// Runs what a connection of HTTP/2 needs beside it on this thread.
#[derive(Clone, Copy)]
struct OnThisThread;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for OnThisThread {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}

/// A connection.
pub(super) struct Http {
    sender: Sender,
    /// Scheme, host and port that it leads to.
    origin: String,
    pub local: IpAddr,
    pub remote: SocketAddr,
    /// Moves its bytes; ends with it.
    _driver: JoinSet<()>,
}

impl Http {
    async fn begin<S>(stream: S, origin: String, local: IpAddr, remote: SocketAddr) -> Result<Self, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(BUFFER_BYTES);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let driver = drive(connection);
        Ok(Self { sender: Sender::Http1(sender), origin, local, remote, _driver: driver })
    }

    async fn begin_2<S>(stream: S, origin: String, local: IpAddr, remote: SocketAddr) -> Result<Self, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let mut builder = http2::Builder::new(OnThisThread);
        builder.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
        builder.max_header_list_size(BUFFER_BYTES as u32).max_frame_size(BUFFER_BYTES as u32);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let driver = drive(connection);
        Ok(Self { sender: Sender::Http2(sender), origin, local, remote, _driver: driver })
    }

    /// Asks for a range, and waits for the head of the answer.
    async fn request(&mut self, url: &TrackerUrl, range: Option<&Range<u64>>) -> Result<Response<Incoming>, Failure> {
        let request = match &self.sender {
            Sender::Http1(_) => Request::get(url.target()).header(header::HOST, url.authority()),
            Sender::Http2(_) => Request::get(format!("{}{}", url.origin(), url.target())),
        };
        let request = request.header(header::USER_AGENT, USER_AGENT).header(header::ACCEPT_ENCODING, "identity");
        let request = match range {
            Some(range) => request.header(header::RANGE, format!("bytes={}-{}", range.start, range.end - 1)),
            None => request,
        };
        let request = request.body(Empty::new()).map_err(|error| Failure::Net(error.to_string()))?;
        let asking = async {
            match &mut self.sender {
                Sender::Http1(sender) => {
                    sender.ready().await?;
                    sender.send_request(request).await
                }
                Sender::Http2(sender) => {
                    sender.ready().await?;
                    sender.send_request(request).await
                }
            }
        };
        tokio::time::timeout(SILENCE_MAX, asking).await.map_err(|_| silent())?.map_err(broken)
    }
}

/// Moves the bytes of a connection until that is dropped.
fn drive(connection: impl Future<Output = hyper::Result<()>> + 'static) -> JoinSet<()> {
    let mut driver = JoinSet::new();
    driver.spawn_local(async move {
        // What it came to is told by the answers.
        let _ = connection.await;
    });
    driver
}

/// A body of known length.
pub(super) struct Body {
    incoming: Incoming,
    left: u64,
}

impl Body {
    /// The next bytes; `None` once all came, and nothing but those.
    ///
    /// # Errors
    /// Where less comes, or more, or nothing for long.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let frame = tokio::time::timeout(SILENCE_MAX, self.incoming.frame()).await.map_err(|_| silent())?;
            let Some(frame) = frame.transpose().map_err(broken)? else {
                return if self.left == 0 { Ok(None) } else { Err(Failure::Body("ends early")) };
            };
            let Ok(data) = frame.into_data() else { continue };
            self.left =
                self.left.checked_sub(data.len() as u64).ok_or(Failure::Body("is longer than its head says"))?;
            if !data.is_empty() {
                return Ok(Some(data));
            }
        }
    }
}

/// What a busy server's body says.
async fn seconds(body: &mut Incoming) -> Option<String> {
    let first = tokio::time::timeout(SILENCE_MAX, body.frame()).await.ok()??.ok()?.into_data().ok()?;
    let text = String::from_utf8(first.get(..first.len().min(SECONDS_LEN_MAX))?.to_vec()).ok()?;
    text.trim().bytes().all(|byte| byte.is_ascii_digit()).then_some(text).filter(|text| !text.trim().is_empty())
}

fn silent() -> Failure {
    Failure::Net(format!("it {}", silence()))
}

fn silence() -> String {
    format!("said nothing for {} s", SILENCE_MAX.as_secs())
}

fn broken(error: hyper::Error) -> Failure {
    Failure::Cause(error.into())
}

fn unreachable(error: ConnectError) -> Failure {
    match error {
        ConnectError::Over { source, .. } => unreachable(*source),
        ConnectError::Io { source, .. } => Failure::Cause(crate::tracker::Cause::from_connect(source)),
        other => Failure::Net(other.to_string()),
    }
}
