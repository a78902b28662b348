//! A SCION daemon that lies: it stands before an honest one, passes on what is asked, and changes what is answered about paths.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use anabranch_paths::IsdAs;
use anabranch_scion_wire::StandardPath;
use anabranch_scion_wire::proto::Timestamp;
use anabranch_scion_wire::proto::daemon::{
    Interface, PATHS_METHOD, Path, PathInterface, PathsRequest, PathsResponse, Underlay,
};
use anabranch_scion_wire::proto::grpc::{CONTENT_TYPE, frame, unframe};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

use crate::{Error, Result};

/// Made-up paths in one answer: as many as fit a message of gRPC, nearly.
const THOUSANDS: usize = 9000;
/// Bytes of one frame of an answer that does not end.
const FRAME_LEN: usize = 16 << 10;
/// A path's meta header, info and hop fields, in bytes (SCION header, "Path Type: SCION").
const META_LEN: usize = 4;
const INFO_LEN: usize = 8;
const HOP_LEN: usize = 12;
/// Where the time lies in an info field, and numbers and MAC in a hop field.
const INFO_TIME: std::ops::Range<usize> = 4..8;
const HOP_INTERFACES: [std::ops::Range<usize>; 2] = [2..4, 4..6];
const HOP_MAC: std::ops::Range<usize> = 6..12;

/// What is wrong with the daemon's answers about paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaemonTrick {
    /// They lead to another AS.
    Elsewhere,
    /// Their interfaces are not those of their hop fields.
    Interfaces,
    /// Their hop fields have no right MAC.
    Macs,
    /// They ended in 1970.
    Expired,
    /// They are good for longer than there is a calendar.
    ForEver,
    /// Packets of no bytes.
    NoMtu,
    /// Packets of 64 KiB.
    HugeMtu,
    /// Thousands of them, over interfaces that do not exist.
    Thousands,
    /// One of them a thousand times.
    Duplicates,
    /// Packets are to be handed to this address.
    NextHop(SocketAddr),
    /// The path header is cut off.
    Short,
    /// No protobuf.
    Garbage,
    /// The answer goes on and on.
    Endless,
    /// It comes byte by byte, ever so slowly.
    Drips,
    /// The answer does not come, for paths to this AS: not before [`HostileDaemon::relent`].
    Late(IsdAs),
    /// Answers come so late, with paths that end so soon after that.
    Slow {
        /// How long an answer takes.
        answer: Duration,
        /// How long its paths are told to live.
        life: Duration,
    },
}

/// A running daemon; it stops when dropped.
pub struct HostileDaemon {
    /// Where it listens.
    pub address: SocketAddr,
    asked: Arc<AtomicU64>,
    answering: Arc<AtomicU64>,
    relents: watch::Sender<bool>,
    _stop: oneshot::Sender<()>,
}

impl HostileDaemon {
    /// Answers as the daemon at `behind` does, but for paths: of these, it makes what `tricks` say. With `and_truth`, the true ones
    /// stand behind the others.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start(tricks: &[DaemonTrick], and_truth: bool, behind: SocketAddr) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Error::system("a runtime"))?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.map_err(Error::system("listening"))?;
        let address = listener.local_addr().map_err(Error::system("local address"))?;
        let (asked, answering) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (relents, relented) = watch::channel(false);
        let (tricks, counts) = (tricks.to_vec(), (asked.clone(), answering.clone()));
        let liar = Arc::new(Liar { tricks, and_truth, behind, asked: counts.0, answering: counts.1, relented });
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    () = listen(listener, liar) => {}
                    _ = stopped => {}
                }
            });
        });
        Ok(Self { address, asked, answering, relents, _stop: stop })
    }

    /// How often it was asked for paths.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Whether somebody waits for paths.
    pub fn is_waited_for(&self) -> bool {
        self.answering.load(Ordering::Relaxed) > 0
    }

    /// Gives the answers that did not come, and all from now on.
    pub fn relent(&self) {
        self.relents.send_replace(true);
    }
}

struct Liar {
    tricks: Vec<DaemonTrick>,
    and_truth: bool,
    behind: SocketAddr,
    asked: Arc<AtomicU64>,
    /// Answers about paths that are under way.
    answering: Arc<AtomicU64>,
    relented: watch::Receiver<bool>,
}

/// An answer that is under way: until it is given, or nobody waits for it.
struct Answering(Arc<AtomicU64>);

impl Answering {
    fn begin(count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn listen(listener: TcpListener, liar: Arc<Liar>) {
    while let Ok((stream, _)) = listener.accept().await {
        let liar = liar.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(liar.clone(), request));
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // What goes wrong on a connection is its client's affair.
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(liar: Arc<Liar>, request: Request<Incoming>) -> std::result::Result<Response<Said>, Infallible> {
    let method = request.uri().path().to_owned();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    // An honest daemon that does not answer is none.
    let honest = ask(liar.behind, &method, body.clone()).await.unwrap_or_default();
    let said = match method.as_str() {
        PATHS_METHOD => liar.lie(&body, honest).await,
        _ => Said::whole(honest),
    };
    let mut response = Response::new(said);
    response.headers_mut().insert("content-type", HeaderValue::from_static(CONTENT_TYPE));
    Ok(response)
}

/// What the honest daemon says.
async fn ask(daemon: SocketAddr, method: &str, body: Bytes) -> Option<Bytes> {
    let stream = TcpStream::connect(daemon).await.ok()?;
    let (mut sender, driver) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.ok()?;
    tokio::spawn(driver);
    let request = Request::post(format!("http://{daemon}{method}")).header("content-type", CONTENT_TYPE);
    let response = sender.send_request(request.header("te", "trailers").body(Full::new(body)).ok()?).await.ok()?;
    Some(response.into_body().collect().await.ok()?.to_bytes())
}

impl Liar {
    async fn lie(&self, request: &[u8], honest: Bytes) -> Said {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let _answering = Answering::begin(&self.answering);
        let asked: PathsRequest = unframe(request).unwrap_or_default();
        let truth: PathsResponse = unframe(&honest).unwrap_or_default();
        let mut told = PathsResponse::default();
        for trick in &self.tricks {
            match trick {
                DaemonTrick::Late(isd_as) if isd_as.to_u64() == asked.destination_isd_as => {
                    // It ends with the daemon.
                    let _ = self.relented.clone().wait_for(|relented| *relented).await;
                }
                DaemonTrick::Late(_) => {}
                DaemonTrick::Slow { answer, life } => {
                    tokio::time::sleep(*answer).await;
                    let ends = SystemTime::now() + *life;
                    let ends = ends.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                    let ends = Timestamp { seconds: ends.as_secs() as i64, nanos: ends.subsec_nanos() as i32 };
                    told.paths.extend(truth.paths.iter().map(|path| Path { expiration: Some(ends), ..path.clone() }));
                }
                DaemonTrick::Garbage => return Said::whole([&[0, 0, 0, 0, 200][..], &[0x7f; 200]].concat().into()),
                DaemonTrick::Endless => return Said::Endless,
                DaemonTrick::Drips => return Said::Drips(Instant::now(), honest),
                _ => truth.paths.iter().for_each(|path| told.paths.extend(spoilt(*trick, path))),
            }
        }
        if self.and_truth || self.tricks.iter().all(|trick| matches!(trick, DaemonTrick::Late(_))) {
            told.paths.extend(truth.paths);
        }
        Said::whole(frame(&told).into())
    }
}

/// What a trick makes of a true path.
fn spoilt(trick: DaemonTrick, path: &Path) -> Vec<Path> {
    let mut lie = path.clone();
    let end_of_time = |seconds| Some(Timestamp { seconds, nanos: 0 });
    match trick {
        DaemonTrick::Elsewhere => lie.interfaces.iter_mut().for_each(|interface| interface.isd_as ^= 0x99),
        DaemonTrick::Interfaces => lie.interfaces.iter_mut().for_each(|interface| interface.id += 1),
        DaemonTrick::Macs => hops(&mut lie.raw).for_each(|hop| hop[HOP_MAC].fill(0x5a)),
        DaemonTrick::Expired => {
            set_times(&mut lie.raw, 1000);
            lie.expiration = end_of_time(1000);
        }
        DaemonTrick::ForEver => {
            set_times(&mut lie.raw, u32::MAX);
            lie.expiration = end_of_time(i64::MAX);
        }
        DaemonTrick::NoMtu => lie.mtu = 0,
        DaemonTrick::HugeMtu => lie.mtu = 65_535,
        DaemonTrick::Thousands => return (0..THOUSANDS).map(|number| made_up(path, number as u16)).collect(),
        DaemonTrick::Duplicates => return vec![lie; 1000],
        DaemonTrick::NextHop(address) => {
            lie.interface = Some(Interface { address: Some(Underlay { address: address.to_string() }) });
        }
        DaemonTrick::Short => lie.raw.truncate(lie.raw.len() / 2),
        DaemonTrick::Garbage
        | DaemonTrick::Endless
        | DaemonTrick::Drips
        | DaemonTrick::Late(_)
        | DaemonTrick::Slow { .. } => {}
    }
    vec![lie]
}

fn infos(raw: &[u8]) -> usize {
    let meta = raw.first_chunk().map_or(0, |meta| u32::from_be_bytes(*meta));
    [12, 6, 0].into_iter().filter(|shift| meta >> shift & 0x3f != 0).count()
}

fn hops(raw: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    let first = META_LEN + infos(raw) * INFO_LEN;
    raw.get_mut(first..).unwrap_or_default().chunks_exact_mut(HOP_LEN)
}

fn set_times(raw: &mut [u8], unix_s: u32) {
    let infos = infos(raw);
    let fields = raw.get_mut(META_LEN..).unwrap_or_default().chunks_exact_mut(INFO_LEN).take(infos);
    fields.for_each(|info| info[INFO_TIME].copy_from_slice(&unix_s.to_be_bytes()));
}

/// The same ASes, by other interfaces.
fn made_up(path: &Path, number: u16) -> Path {
    let mut lie = path.clone();
    for hop in hops(&mut lie.raw) {
        for id in HOP_INTERFACES {
            if hop[id.clone()] != [0, 0] {
                hop[id].copy_from_slice(&(10_000 + number).to_be_bytes());
            }
        }
    }
    let ids: Vec<u16> = StandardPath::parse(&lie.raw).map(|path| path.interfaces().collect()).unwrap_or_default();
    let told = ids.iter().zip(&path.interfaces);
    lie.interfaces = told.map(|(id, of)| PathInterface { id: u64::from(*id), ..*of }).collect();
    lie
}

/// The body of an answer.
enum Said {
    Whole(Option<Bytes>, Option<HeaderMap>),
    Endless,
    Drips(Instant, Bytes),
}

impl Said {
    fn whole(bytes: Bytes) -> Self {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        Self::Whole(Some(bytes), Some(trailers))
    }
}

impl Body for Said {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(match &mut *self {
            Self::Whole(bytes, trailers) => {
                bytes.take().map(Frame::data).or_else(|| trailers.take().map(Frame::trailers)).map(Ok)
            }
            // The frame of gRPC says that four GiB come.
            Self::Endless => Some(Ok(Frame::data(vec![0; FRAME_LEN].into()))),
            Self::Drips(last, bytes) => {
                if last.elapsed() < Duration::from_millis(200) {
                    let waker = context.waker().clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_millis(200)).await;
                        waker.wake();
                    });
                    return Poll::Pending;
                }
                *last = Instant::now();
                (!bytes.is_empty()).then(|| Ok(Frame::data(bytes.split_to(1))))
            }
        })
    }
}
