//! A tracker on a port: HTTP over TCP and the UDP form side by side.
//!
//! Every answer is made at once from memory, so one lock is held for microseconds and one thread is enough. Connections that only
//! hold a place lose it as soon as it is wanted: of the network that has most of them, the oldest goes.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anabranch_bittorrent::reach::Reach;
use anabranch_bittorrent::tracker::server::{HttpAnswer, Network, Tracker, TrackerConfig};
use anabranch_content::bencode::DictBuilder;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::{AbortHandle, JoinSet};

/// TCP connections at once, one request each; for one more, one goes.
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

/// What reverse proxies say for whom they ask (RFC 7239 and before it); the first is read.
const FORWARDED_HEADERS: [&str; 3] = ["x-forwarded-for", "forwarded", "x-real-ip"];
/// The answer to a reverse proxy that is not expected, or does not say for whom it asks: all its clients would be one host to us, and could claim to
/// be any other one.
const FORWARDED: &str =
    "this tracker is behind a proxy that it does not know of: it takes --behind-proxy, and X-Forwarded-For from it";

/// How a tracker is run.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Intervals and the table's limits.
    pub tracker: TrackerConfig,
    /// See [`CONNECTIONS_MAX`].
    pub connections_max: usize,
    /// See [`CONNECTION_TIMEOUT`].
    pub connection_timeout: Duration,
    /// Connections from this machine and its network are a reverse proxy's, which says in `X-Forwarded-For` whose they are.
    pub is_behind_proxy: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        // std keys each RandomState from the operating system's randomness, so its hashes cannot be foretold.
        let random = || RandomState::new().build_hasher().finish().to_ne_bytes();
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&random());
        secret[8..].copy_from_slice(&random());
        let tracker = TrackerConfig::new(u64::from_ne_bytes(random()), secret);
        ServerOptions {
            tracker,
            connections_max: CONNECTIONS_MAX,
            connection_timeout: CONNECTION_TIMEOUT,
            is_behind_proxy: false,
        }
    }
}

/// A tracker that has its ports.
#[derive(Debug)]
pub struct TrackerServer {
    doors: Vec<(TcpListener, UdpSocket)>,
    options: ServerOptions,
}

impl TrackerServer {
    /// Takes the port of `listen` for both TCP and UDP; port 0 finds one that is free for both. `[::]` serves IPv4 too
    /// where the system's sockets do.
    ///
    /// # Errors
    /// When the address is not ours or the port is taken.
    pub async fn bind(listen: SocketAddr, options: ServerOptions) -> io::Result<TrackerServer> {
        let mut server = TrackerServer { doors: Vec::new(), options };
        server.listen(listen).await?;
        Ok(server)
    }

    /// Takes one more address, as [`TrackerServer::bind`] does.
    ///
    /// # Errors
    /// As there.
    pub async fn listen(&mut self, listen: SocketAddr) -> io::Result<()> {
        let mut tries = 0;
        loop {
            tries += 1;
            let tcp = TcpListener::bind(listen).await?;
            match UdpSocket::bind(tcp.local_addr()?).await {
                Ok(udp) => {
                    self.doors.push((tcp, udp));
                    return Ok(());
                }
                Err(error) if listen.port() != 0 || tries >= BIND_TRIES => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Where it listens, in the order in which the addresses were taken.
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.doors.iter().filter_map(|(tcp, _)| tcp.local_addr().ok()).collect()
    }

    /// Serves until `shutdown` completes, then drops what is under way.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let tracker = Arc::new(Mutex::new(Tracker::new(self.options.tracker.clone(), Instant::now())));
        // Dropped with us, and everything in it is aborted then.
        let mut doors = JoinSet::new();
        for (tcp, udp) in self.doors {
            doors.spawn(serve_http(tcp, self.options.clone(), tracker.clone()));
            doors.spawn(serve_udp(udp, tracker.clone()));
        }
        shutdown.await;
    }
}

async fn serve_udp(socket: UdpSocket, tracker: Arc<Mutex<Tracker>>) {
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, source)) => {
                let answer = lock(&tracker).on_datagram(&buffer[..length], source, Instant::now());
                if let Some(answer) = answer {
                    // A full send buffer or an ICMP error loses an answer, as the network might: the client asks again.
                    let _ = socket.try_send_to(&answer, source);
                }
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Connections that are open, in the order in which they came.
#[derive(Default)]
struct Places {
    open: BTreeMap<u64, (Network, AbortHandle)>,
    numbers: HashMap<tokio::task::Id, u64>,
    next: u64,
}

impl Places {
    fn take(&mut self, network: Network, task: AbortHandle) {
        self.numbers.insert(task.id(), self.next);
        self.open.insert(self.next, (network, task));
        self.next += 1;
    }

    fn leave(&mut self, task: tokio::task::Id) {
        if let Some(number) = self.numbers.remove(&task) {
            self.open.remove(&number);
        }
    }

    /// Ends the oldest connection of the network that has most.
    fn make_room(&mut self) {
        let mut counts: HashMap<Network, usize> = HashMap::new();
        self.open.values().for_each(|(network, _)| *counts.entry(*network).or_default() += 1);
        let Some(heaviest) = counts.into_iter().max_by_key(|(_, count)| *count).map(|(network, _)| network) else {
            return;
        };
        let oldest = self.open.iter().find(|(_, (network, _))| *network == heaviest);
        if let Some((number, (_, task))) = oldest.map(|(number, place)| (*number, place.clone())) {
            task.abort();
            self.open.remove(&number);
            self.numbers.remove(&task.id());
        }
    }
}

async fn serve_http(listener: TcpListener, options: ServerOptions, tracker: Arc<Mutex<Tracker>>) {
    // Dropped with us, and everything in it is aborted then.
    let mut connections = JoinSet::new();
    let mut places = Places::default();
    loop {
        tokio::select! {
            Some(ended) = connections.join_next_with_id() => {
                places.leave(ended.map_or_else(|error| error.id(), |(task, ())| task));
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, source)) => {
                    if places.open.len() >= options.connections_max {
                        places.make_room();
                    }
                    let serve = serve_connection(stream, source.ip(), options.is_behind_proxy, tracker.clone());
                    let timeout = options.connection_timeout;
                    let task = connections.spawn(async move {
                        // Too slow: the connection is closed, and its place is free.
                        let _ = tokio::time::timeout(timeout, serve).await;
                    });
                    places.take(source.ip().into(), task);
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
        }
    }
}

async fn serve_connection(stream: TcpStream, source: IpAddr, is_behind_proxy: bool, tracker: Arc<Mutex<Tracker>>) {
    let service = service_fn(|request: Request<Incoming>| {
        let answer = answer(&request, source, is_behind_proxy, &tracker);
        async move { Ok::<_, Infallible>(respond(answer)) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.keep_alive(false).max_buf_size(HEAD_BYTES_MAX);
    // A client that breaks the protocol or goes away is its own loss.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

fn answer(request: &Request<Incoming>, source: IpAddr, is_behind_proxy: bool, tracker: &Mutex<Tracker>) -> HttpAnswer {
    let plain = |status, body| HttpAnswer { status, content_type: "text/plain", body };
    if request.method() != Method::GET {
        return plain(405, b"Only GET works here\n".to_vec());
    }
    let is_near = Reach::of(source) < Reach::World;
    let source = match forwarded_for(request.headers()) {
        None => source,
        Some(Some(client)) if is_behind_proxy && is_near => client,
        Some(_) if is_near => return plain(200, DictBuilder::new().bytes("failure reason", FORWARDED).encode()),
        // Strangers may write what they like.
        Some(_) => source,
    };
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    lock(tracker).on_http(target, source, Instant::now())
}

/// Whom a reverse proxy works for: the last address in the list, which is the one that the proxy saw itself. `Some(None)`: it does not
/// say it in a way that can be read.
fn forwarded_for(headers: &HeaderMap) -> Option<Option<IpAddr>> {
    let is_proxied = FORWARDED_HEADERS.iter().any(|name| headers.contains_key(*name));
    let last = headers.get_all(FORWARDED_HEADERS[0]).iter().next_back();
    let last = last.and_then(|value| value.to_str().ok()?.rsplit(',').next()?.trim().parse().ok());
    is_proxied.then_some(last)
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
