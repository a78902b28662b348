//! A tracker on a port: HTTP over TCP and the UDP form side by side.
//!
//! Every answer is made at once from memory, so one lock is held for microseconds and one thread is enough.

use std::convert::Infallible;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anabranch_bittorrent::tracker::server::{HttpAnswer, Tracker, TrackerConfig};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// TCP connections at once, one request each; more wait in the kernel's queue.
pub const CONNECTIONS_MAX: usize = 512;
/// A connection has this long for all it does: whoever sends a byte a second does not hold a place for long.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest request head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Largest request datagram read; an announce with the longest URL takes 2.2 KB.
const DATAGRAM_BYTES_MAX: usize = 4 << 10;
/// Ports tried until one is free for both TCP and UDP, where the caller leaves the choice to us.
const BIND_TRIES: usize = 16;
/// Pause after a failed accept (no descriptors left), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How a tracker is run.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Intervals and the table's limits.
    pub tracker: TrackerConfig,
    /// See [`CONNECTIONS_MAX`].
    pub connections_max: usize,
    /// See [`CONNECTION_TIMEOUT`].
    pub connection_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        // std keys each RandomState from the operating system's randomness, so its hashes cannot be foretold.
        let random = || RandomState::new().build_hasher().finish().to_ne_bytes();
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&random());
        secret[8..].copy_from_slice(&random());
        let tracker = TrackerConfig::new(u64::from_ne_bytes(random()), secret);
        ServerOptions { tracker, connections_max: CONNECTIONS_MAX, connection_timeout: CONNECTION_TIMEOUT }
    }
}

/// A tracker that has its port.
#[derive(Debug)]
pub struct TrackerServer {
    tcp: TcpListener,
    udp: UdpSocket,
    options: ServerOptions,
}

impl TrackerServer {
    /// Takes the port of `listen` for both TCP and UDP; port 0 finds one that is free for both. `[::]` serves IPv4 too
    /// where the system's sockets do.
    ///
    /// # Errors
    /// When the address is not ours or the port is taken.
    pub async fn bind(listen: SocketAddr, options: ServerOptions) -> io::Result<TrackerServer> {
        let mut tries = 0;
        loop {
            tries += 1;
            let tcp = TcpListener::bind(listen).await?;
            match UdpSocket::bind(tcp.local_addr()?).await {
                Ok(udp) => return Ok(TrackerServer { tcp, udp, options }),
                Err(error) if listen.port() != 0 || tries >= BIND_TRIES => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The operating system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Serves until `shutdown` completes, then drops what is under way.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let tracker = Arc::new(Mutex::new(Tracker::new(self.options.tracker.clone(), Instant::now())));
        tokio::select! {
            () = shutdown => {}
            () = serve_http(self.tcp, &self.options, tracker.clone()) => {}
            () = serve_udp(self.udp, &tracker) => {}
        }
    }
}

async fn serve_udp(socket: UdpSocket, tracker: &Mutex<Tracker>) {
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, source)) => {
                let answer = lock(tracker).on_datagram(&buffer[..length], source, Instant::now());
                if let Some(answer) = answer {
                    // A full send buffer or an ICMP error loses an answer, as the network might: the client asks again.
                    let _ = socket.try_send_to(&answer, source);
                }
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn serve_http(listener: TcpListener, options: &ServerOptions, tracker: Arc<Mutex<Tracker>>) {
    let places = Arc::new(Semaphore::new(options.connections_max));
    // Dropped with us, and everything in it is aborted then.
    let mut connections = JoinSet::new();
    loop {
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, source)) => {
                let serve = serve_connection(stream, source, tracker.clone());
                let timeout = options.connection_timeout;
                connections.spawn(async move {
                    let _place = place;
                    // Too slow: the connection is closed, and its place is free.
                    let _ = tokio::time::timeout(timeout, serve).await;
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_connection(stream: TcpStream, source: SocketAddr, tracker: Arc<Mutex<Tracker>>) {
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(&request, source, &tracker);
        async move { Ok::<_, Infallible>(respond(answer)) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.keep_alive(false).max_buf_size(HEAD_BYTES_MAX);
    // A client that breaks the protocol or goes away is its own loss.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

fn answer(request: &Request<Incoming>, source: SocketAddr, tracker: &Mutex<Tracker>) -> HttpAnswer {
    if request.method() != Method::GET {
        return HttpAnswer { status: 405, content_type: "text/plain", body: b"Only GET works here\n".to_vec() };
    }
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    lock(tracker).on_http(target, source.ip(), Instant::now())
}

fn respond(answer: HttpAnswer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(answer.body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(answer.content_type));
    response
}

/// A panic in another task leaves the table usable: every step of it keeps its parts in agreement or is not begun.
fn lock(tracker: &Mutex<Tracker>) -> std::sync::MutexGuard<'_, Tracker> {
    tracker.lock().unwrap_or_else(PoisonError::into_inner)
}
