//! One GET to a tracker: connect, TLS, redirects, a body of bounded size (BEP 3 over RFC 9112).

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use anabranch_bittorrent::reach::may_redirect;
use anabranch_bittorrent::tracker::{Scheme, TrackerUrl};
use anabranch_transport::{Proxy, Target};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{self, pki_types::ServerName};

use super::access::TrackerAccess;
use super::error::Cause;
use crate::net::leave::Leave;
use crate::net::race::race;

/// Redirects followed in one announce. Honest trackers use one, for a move.
pub const REDIRECTS_MAX: u32 = 5;
/// Longest head of an answer.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// One address gets this long to accept a connection, so that a dead one leaves time for the next.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Addresses of one name that are tried.
const ADDRESSES_TRIED_MAX: usize = 3;
/// Where redirects may lead that are for torrent files.
const MAGNET: &str = "magnet:";
const USER_AGENT: &str = concat!("anabranch/", env!("CARGO_PKG_VERSION"));

/// What came back, whatever the status.
pub(super) struct HttpReply {
    pub status: StatusCode,
    pub body: Vec<u8>,
}

/// GETs `target` from `url`'s host at one of `addrs`, which are of one family, with at most `bytes_max` in its body; redirects stay in
/// that family, and lead no nearer to us. Also answers where the reply came from.
pub(super) async fn get(
    url: &TrackerUrl,
    target: &str,
    addrs: &[SocketAddr],
    bytes_max: usize,
    access: &TrackerAccess,
    tls: impl Fn() -> Result<Arc<rustls::ClientConfig>, Cause>,
) -> Result<(HttpReply, SocketAddr), Cause> {
    let (mut url, mut target, mut addrs) = (url.clone(), target.to_owned(), addrs.to_vec());
    for _ in 0..=REDIRECTS_MAX {
        let (stream, addr) = match &access.proxy {
            Some(proxy) => (through(proxy, &url).await?, BEHIND_PROXY),
            None => connect(&addrs, &access.leave).await?,
        };
        let (reply, location) = match url.scheme() {
            Scheme::Https => {
                let name = ServerName::try_from(url.host().to_owned()).map_err(|_| Cause::RedirectUnfit)?;
                let stream = TlsConnector::from(tls()?).connect(name, stream).await.map_err(Cause::Tls)?;
                exchange(stream, &url, &target, bytes_max).await?
            }
            Scheme::Http => exchange(stream, &url, &target, bytes_max).await?,
            Scheme::Udp => return Err(Cause::RedirectUnfit),
        };
        let Some(location) = location else { return Ok((reply, addr)) };
        if location.get(..MAGNET.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(MAGNET)) {
            return Err(Cause::Magnet(location));
        }
        let next = url.join(&location).map_err(|_| Cause::RedirectUnfit)?;
        // A passkey that was sent encrypted is not to be sent in the clear.
        if next.scheme() == Scheme::Udp || (url.scheme() == Scheme::Https && next.scheme() == Scheme::Http) {
            return Err(Cause::RedirectUnfit);
        }
        if access.proxy.is_some() {
            access.judge_unseen(&next).map_err(|_| Cause::RedirectUnfit)?;
            (target, url) = (next.target(), next);
            continue;
        }
        let mut next_addrs = access.free(access.resolve(&next).await?)?;
        next_addrs.retain(|next| next.is_ipv6() == addr.is_ipv6());
        if !next_addrs.iter().all(|next| may_redirect(addr.ip(), *next)) {
            return Err(Cause::RedirectUnfit);
        }
        (target, url, addrs) = (next.target(), next, next_addrs);
    }
    Err(Cause::Redirects(REDIRECTS_MAX))
}

/// Where the tracker behind a proxy is: nobody here knows, so as far away as can be (RFC 5737).
pub(crate) const BEHIND_PROXY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 1);

/// Connects through a proxy, which looks the name up.
pub(crate) async fn through(proxy: &Proxy, url: &TrackerUrl) -> Result<TcpStream, Cause> {
    let target = match url.host().parse() {
        Ok(ip) => Target::Address(SocketAddr::new(ip, url.port())),
        Err(_) => Target::Name(url.host(), url.port()),
    };
    proxy.connect(target).await.map_err(Cause::Connect)
}

/// Connects to one of the addresses, beside those that do not answer.
async fn connect(addrs: &[SocketAddr], leave: &Leave) -> Result<(TcpStream, SocketAddr), Cause> {
    let mut left = addrs.iter().copied().take(ADDRESSES_TRIED_MAX);
    let call = |addr| async move {
        match tokio::time::timeout(CONNECT_TIMEOUT, leave.connect(addr)).await {
            Ok(Ok(stream)) => Ok((stream, addr)),
            Ok(Err(error)) => Err(Cause::from_connect(error)),
            Err(_) => Err(Cause::Timeout(CONNECT_TIMEOUT)),
        }
    };
    race(|_| left.next().map(call)).await.unwrap_or(Err(Cause::NoAddress))
}

/// One request over a fresh connection; the reply, and where it redirects to, if it does.
async fn exchange<S>(
    stream: S,
    url: &TrackerUrl,
    target: &str,
    bytes_max: usize,
) -> Result<(HttpReply, Option<String>), Cause>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut builder = hyper::client::conn::http1::Builder::new();
    builder.max_buf_size(HEAD_BYTES_MAX);
    let is_over = Arc::<AtomicBool>::default();
    // A head, and a body of the largest size twice over, as chunks have heads of their own. What comes before the answer (RFC 9110 §15.2,
    // "Informational 1xx") or between its bytes has no end otherwise.
    let left = HEAD_BYTES_MAX + 2 * bytes_max;
    let stream = Bounded { stream, left, is_over: Arc::clone(&is_over) };
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let request = Request::get(target)
        .header(header::HOST, url.authority())
        .header(header::USER_AGENT, USER_AGENT)
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| Cause::Connect(io::Error::other(error)))?;
    let mut connection = std::pin::pin!(connection);
    let answer = async {
        let response = sender.send_request(request).await?;
        let location = redirect_location(&response);
        let status = response.status();
        // A redirect's body is not for us.
        let body = if location.is_some() { Vec::new() } else { read_body(response, bytes_max).await? };
        Ok((HttpReply { status, body }, location))
    };
    let mut answer = std::pin::pin!(async {
        let answer = answer.await;
        if is_over.load(Ordering::Relaxed) { Err(Cause::TooLarge(bytes_max)) } else { answer }
    });
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        // Finished or broken: what it read before that is still to be taken.
        _ = &mut connection => {}
    }
    answer.await
}

/// A connection that ends with an error once too much has come.
struct Bounded<S> {
    stream: S,
    left: usize,
    is_over: Arc<AtomicBool>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        match self.left.checked_sub(buf.filled().len() - before) {
            Some(left) => self.left = left,
            None => {
                self.is_over.store(true, Ordering::Relaxed);
                return Poll::Ready(Err(io::ErrorKind::FileTooLarge.into()));
            }
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

async fn read_body(response: Response<hyper::body::Incoming>, bytes_max: usize) -> Result<Vec<u8>, Cause> {
    let mut body = response.into_body();
    let mut out = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame?.data_ref() {
            if out.len() + data.len() > bytes_max {
                return Err(Cause::TooLarge(bytes_max));
            }
            out.extend_from_slice(data);
        }
    }
    Ok(out)
}

fn redirect_location(response: &Response<hyper::body::Incoming>) -> Option<String> {
    let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = response.headers().get(header::LOCATION).filter(|_| is_redirect)?;
    Some(location.to_str().ok()?.to_owned())
}
