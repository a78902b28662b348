//! A content's files over HTTP, for players: RFC 9110 and 9112, with ranges, while the content arrives.
//!
//! [`Server`] has a thread of its own, so that what players read takes nothing of the network thread's time; it asks the session through
//! its [`Handle`], whichever protocol the content comes by. An answer's head is sent at once, and its bytes as they are verified: where
//! one is missing, the answer waits, and what it waits for is fetched first ([`Reader`](crate::Reader)). Where a byte will not come,
//! the connection is cut short of what was promised. No byte is made up.
//!
//! Whoever can reach the port can read. So it is a loopback address unless the user says otherwise, and a web page that had its name
//! changed to lead here is sent away (`is_meant_for_an_address`). What strangers wrote (names, files) is never run by a browser: pages
//! of theirs are saved, not shown.
//!
//! | module | what it does |
//! | --- | --- |
//! | `respond` | answers a request: which file, which bytes, under which conditions |
//! | `body` | brings the bytes of an answer |
//! | `range`, `names`, `pages` | pure: what requests want; files' types and names; the index and the playlist |
//! | `show` | what is served |
//! | `views` | how watching goes |

mod body;
pub mod names;
mod pages;
pub mod range;
mod respond;
mod show;
mod views;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::service::service_fn;
use hyper::{HeaderMap, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore, oneshot, watch};
use tokio::task::JoinSet;

pub use body::Answer;
pub use show::{Show, ShownFile};
pub use views::{STALL_MIN, View, Views};

use crate::session::Handle;
use respond::ServerState;
use views::Book;

/// Connections at once. A player has one or two, a browser six; each holds three chunks of a file, 384 KiB.
pub const CONNECTIONS_MAX: usize = 64;
/// Time for the head of a request to arrive; a connection that asks for nothing for so long is closed.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Pause after the system had no descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Threads that read from disk.
const READ_THREADS_MAX: usize = 4;

/// A server that has its port. It ends, and its connections with it, when this is dropped.
pub struct Server {
    address: SocketAddr,
    show: watch::Sender<Option<Arc<Show>>>,
    book: Book,
    _running: oneshot::Sender<()>,
}

impl Server {
    /// Listens at `address`. Requests wait until there is something to [`show`](Server::show).
    ///
    /// # Errors
    /// Where the address cannot be listened on, or there can be no thread.
    pub fn start(handle: Handle, address: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(READ_THREADS_MAX)
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let (show, shown) = watch::channel(None);
        let (running, ended) = oneshot::channel::<()>();
        let book = Book::default();
        let server = ServerState { handle, show: shown, wanted: Mutex::default(), book: book.clone() };
        std::thread::Builder::new().name("http".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(Arc::new(server), listener) => {}
                    // Nothing is ever sent: it ends with the server.
                    _ = ended => {}
                }
            });
            // A disk may hang: what reads is not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Self { address, show, book, _running: running })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves a content, and those who asked before.
    pub fn show(&self, show: Show) {
        self.show.send_replace(Some(Arc::new(show)));
    }

    /// How watching goes.
    pub fn views(&self) -> Views {
        self.book.views(Instant::now())
    }
}

/// Answers for one content's files in a server that is somebody else's, who says who may ask.
pub struct FileServer {
    server: Arc<ServerState>,
    show: Arc<Show>,
}

impl FileServer {
    /// Serves a content.
    pub fn new(handle: Handle, show: Show) -> Self {
        let show = Arc::new(show);
        let (_, shown) = watch::channel(Some(Arc::clone(&show)));
        let server = ServerState { handle, show: shown, wanted: Mutex::default(), book: Book::default() };
        Self { server: Arc::new(server), show }
    }

    /// Answers a GET or, with `is_head`, a HEAD for the file of this number; `None` where there is none. Must be called inside a tokio
    /// runtime.
    pub async fn answer(&self, number: u32, headers: &HeaderMap, is_head: bool) -> Option<Response<Answer>> {
        let file = self.show.files.iter().find(|file| file.number == number)?;
        Some(respond::file(&self.server, &self.show, file, headers, is_head).await)
    }
}

async fn serve(server: Arc<ServerState>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async { (places.clone().acquire_owned().await, listener.accept().await) };
        tokio::select! {
            Some(_) = connections.join_next() => {}
            (place, accepted) = accepted => match accepted {
                Ok((stream, _)) => {
                    let server = Arc::clone(&server);
                    connections.spawn(async move {
                        let _place = place;
                        // Where it cannot be had, bytes come a little later.
                        let _ = stream.set_nodelay(true);
                        let answer = service_fn(move |request| {
                            let server = Arc::clone(&server);
                            async move { Ok::<_, Infallible>(respond::respond(&server, &request).await) }
                        });
                        let mut builder = hyper::server::conn::http1::Builder::new();
                        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
                        // What goes wrong on a connection is its client's affair.
                        let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
        }
    }
}
