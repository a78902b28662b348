//! Everything that runs, behind one door: a library of contents that survives whatever ends the program, an HTTP API, and a page.
//!
//! A [`Daemon`] has a thread of its own and asks a session by its [`Handle`]; it speaks no protocol. What it keeps is in one folder; what
//! it was told to keep is on the disk before it says so. Programs of the same user come by a socket, and browsers by an address and
//! with a token.
//!
//! | module | what it does |
//! | --- | --- |
//! | `store` | keeps values by key, whole or not at all |
//! | `library` | what is kept: contents, settings; whose turn it is. Pure |
//! | `engine` | puts the library to work in the session |
//! | `feed` | what happened, for watchers |
//! | `folders` | where contents may go |
//! | `door` | who gets in |
//! | `api` | requests and answers, the page among them |
//! | `qbittorrent` | the same for programs that speak qBittorrent's WebAPI |
//! | [`client`] | the other end, for the command line |
//!
//! What is not here: how contents move (the session), and how a session is set up (the command line).

#![forbid(unsafe_code)]

mod api;
pub mod client;
mod door;
mod engine;
mod feed;
mod folders;
#[doc(hidden)]
pub mod fuzzing;
mod library;
mod qbittorrent;
mod store;

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use anabranch_paths::{Endpoint, ScionAddr};
use anabranch_swarm::{Handle, NodeId};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::LocalSet;
use tokio_rustls::TlsAcceptor;

pub use api::{Query, decode};
pub use door::{KeyError, TlsError};
pub use engine::{Completed, Whole};
pub use library::LocalTime;
pub use store::StoreError;

use api::{About, Api};
use door::{Keys, Passwords};
use engine::{Common, Engine};
use feed::Feed;
use folders::Folders;
use store::Store;

/// Threads that read from disk and hash.
const BLOCKING_THREADS_MAX: usize = 6;

/// What a daemon is told at its start.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The folder that it keeps its library and tokens in.
    pub state_dir: PathBuf,
    /// The folder of contents that are added without one, until another is set. It is made where it is missing.
    pub dir: PathBuf,
    /// Further folders that contents may be in.
    pub allow: Vec<PathBuf>,
    /// The socket of the same user's programs.
    pub socket: Option<PathBuf>,
    /// Names by which they may call this host, beside addresses.
    pub names: Vec<String>,
    /// Where peers reach the session, for people.
    pub listening: Vec<String>,
    /// Peers to dial for every content.
    pub peers: Vec<Endpoint>,
    /// Keys that hosts of SCION have to prove.
    pub keys: Vec<(ScionAddr, NodeId)>,
    /// Trackers of every content, beside its own.
    pub trackers: Vec<String>,
    /// Bytes per second that the session may receive and send, where no limits were set by the API.
    pub limits: (Option<u64>, Option<u64>),
    /// How the session finds peers, for those who ask.
    pub discovery: Discovery,
    /// Hosts of the local network that torrent files may be fetched from.
    pub fetch_hosts: Vec<String>,
    /// What the clock on the wall shows, for limits that go by it; `None`: there are none.
    pub clock: Option<fn() -> LocalTime>,
    /// A certificate and its key, for TLS at the address; `None`: there is none.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Told of each content that is complete, in its place, and of each bulk transfer that brought something. One that nobody takes is forgotten.
    pub completed: Option<mpsc::Sender<Completed>>,
}

/// How peers are found beside trackers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Discovery {
    /// In the distributed hash table.
    pub dht: bool,
    /// By asking peers.
    pub pex: bool,
    /// In the local network.
    pub local: bool,
}

/// Why a daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its folder cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its tokens cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// There can be no TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A folder that contents are to go to is not there.
    #[error("cannot use {path} for contents: {source}; make it, or name another", path = path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The socket cannot be opened.
    #[error("cannot listen at {path}: {source}; another daemon may be at work there: end it, or name another with --socket", path = path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The address cannot be listened at.
    #[error("cannot serve the page at {address}: {source}; give another address with --api, port 0 for any")]
    Address {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// There can be no thread.
    #[error("cannot start: {0}")]
    Thread(io::Error),
}

/// An error where another daemon keeps its library in `state_dir`. To be asked first: its addresses are in use, too, and that says less.
pub fn check_free(state_dir: &Path) -> Result<(), StartError> {
    Ok(store::check_free(state_dir)?)
}

/// Listens where others with a token, and browsers, are to come in. To be asked first: nothing is left behind where that fails.
pub fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    door::bind_address(address).map_err(|source| StartError::Address { address, source })
}

/// A daemon at work. It ends when this is dropped.
pub struct Daemon {
    address: Option<SocketAddr>,
    token: String,
    strange: Vec<String>,
    asked: Arc<Notify>,
    is_secure: bool,
    reload: mpsc::UnboundedSender<Reload>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts one over a session, which serves programs of the same user and whoever comes to `listener`. Contents are opened in the
    /// background.
    pub fn start(handle: Handle, listener: Option<TcpListener>, config: Config) -> Result<Self, StartError> {
        let Config { state_dir, dir, allow, socket, names, listening, peers, keys, trackers, limits, .. } = config;
        let (discovery, fetch_hosts, clock) = (config.discovery, config.fetch_hosts, config.clock);
        let completed = config.completed;
        let (reload, mut reloads) = mpsc::unbounded_channel::<Reload>();
        let tls = acceptor_of(config.tls.as_ref())?;
        let is_secure = tls.is_some();
        let (dir, folders) = folders(&dir, &allow)?;
        let opened = Store::open(&state_dir)?;
        let tokens = Keys::open(&state_dir)?;
        let passwords = Passwords::open(&state_dir)?;
        let token = tokens.full().to_owned();
        let asked = Arc::new(Notify::new());
        let run = door::secret()?.chars().take(8).collect();
        let address = listener.as_ref().map(TcpListener::local_addr).transpose().map_err(StartError::Thread)?;
        let unix = socket.map(|path| match door::bind_socket(&path) {
            Ok(listener) => Ok((listener, path)),
            Err(source) => Err(StartError::Socket { path, source }),
        });
        let unix = unix.transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .build()
            .map_err(StartError::Thread)?;
        let (end, ended) = oneshot::channel::<()>();
        let (told, hear) = std::sync::mpsc::channel();
        let about = About { listening, names: names.into(), discovery, is_secure, end: Arc::clone(&asked) };
        let work = move || {
            let events = handle.subscribe();
            let common = Common { peers, keys, trackers, limits, fetch_hosts, clock };
            let (engine, strange) = Engine::new(handle, opened, Feed::new(run), folders, dir, common, completed);
            // Whoever starts it waits for this.
            let _ = told.send(strange);
            let api = Rc::new(Api::new(Rc::clone(&engine), tokens, passwords, about));
            let tls = Rc::new(RefCell::new(tls));
            LocalSet::new().block_on(&runtime, async {
                let tasks = [
                    tokio::task::spawn_local(Rc::clone(&engine).listen(events)),
                    tokio::task::spawn_local(Rc::clone(&engine).drive()),
                    tokio::task::spawn_local(Rc::clone(&engine).keep_time()),
                    tokio::task::spawn_local(Rc::clone(&engine).keep_learned()),
                ];
                if let Some(listener) = listener {
                    let (api, tls) = (Rc::clone(&api), Rc::clone(&tls));
                    tokio::task::spawn_local(async move { door::serve_address(listener, api, tls).await });
                }
                if let Some((listener, path)) = &unix {
                    let (Ok(listener), api, path) = (listener.try_clone(), Rc::clone(&api), path.clone()) else {
                        return;
                    };
                    tokio::task::spawn_local(async move { door::serve_socket(listener, &path, api).await });
                }
                let reloading = async {
                    while let Some(new) = reloads.recv().await {
                        engine.reload(new.folders, new.common).await;
                        api.rename(new.names);
                        *tls.borrow_mut() = new.tls;
                    }
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    // Nothing is ever sent: it ends with the daemon.
                    _ = ended => {}
                    () = reloading => {}
                }
                tasks.iter().for_each(tokio::task::JoinHandle::abort);
                engine.keep_totals().await;
            });
            // Whoever waits for the end of this thread may start another daemon over the same folder.
            runtime.block_on(engine.close_library());
            if let Some((_, path)) = &unix {
                // One that stays is replaced at the next start.
                let _ = std::fs::remove_file(path);
            }
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("daemon".to_owned()).spawn(work).map_err(StartError::Thread)?;
        let strange = hear.recv().unwrap_or_default();
        Ok(Self { address, token, strange, asked, is_secure, reload, end: Some(end), thread: Some(thread) })
    }

    /// Where browsers and others come in.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The address of the page.
    pub fn url(&self) -> Option<String> {
        let scheme = if self.is_secure { "https" } else { "http" };
        Some(format!("{scheme}://{}/", self.address?))
    }

    /// The address of the page, with the token behind the `#`, which browsers do not send.
    pub fn link(&self) -> Option<String> {
        Some(format!("{}#token={}", self.url()?, self.token))
    }

    /// What is kept and makes no sense to this version. It stays as it is.
    pub fn strange(&self) -> &[String] {
        &self.strange
    }

    /// Takes in what can be told a daemon at work, of a configuration that was read again: folders, names, hosts, trackers, peers, limits.
    /// What was set by the API goes before it, as ever.
    pub fn reload(&self, config: Config) -> Result<(), StartError> {
        let (_, folders) = folders(&config.dir, &config.allow)?;
        let tls = acceptor_of(config.tls.as_ref())?;
        let Config { peers, keys, trackers, limits, fetch_hosts, clock, names, .. } = config;
        let common = Common { peers, keys, trackers, limits, fetch_hosts, clock };
        // One that is ending needs no news.
        let _ = self.reload.send(Reload { folders, common, names, tls });
        Ok(())
    }

    /// Told once somebody who may asks it to end.
    pub fn asked_to_end(&self) -> Arc<Notify> {
        Arc::clone(&self.asked)
    }

    /// Ends it: what moved is kept when this returns, and its folder is free for another. Blocks, for a moment.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // Should it have failed, there is nothing more to be kept.
            let _ = thread.join();
        }
    }
}

/// What a daemon at work takes in.
struct Reload {
    folders: Folders,
    common: Common,
    names: Vec<String>,
    tls: Option<TlsAcceptor>,
}

fn acceptor_of(files: Option<&(PathBuf, PathBuf)>) -> Result<Option<TlsAcceptor>, TlsError> {
    files.map(|(certificate, key)| door::acceptor(certificate, key)).transpose()
}

/// The folder of contents, which is made where it is missing, and all that may be named.
fn folders(dir: &Path, allow: &[PathBuf]) -> Result<(PathBuf, Folders), StartError> {
    let folder = |path: &Path, source| StartError::Folder { path: path.to_owned(), source };
    std::fs::create_dir_all(dir).map_err(|error| folder(dir, error))?;
    let dir = dir.canonicalize().map_err(|error| folder(dir, error))?;
    let mut roots = vec![dir.clone()];
    for path in allow {
        roots.push(path.canonicalize().map_err(|error| folder(path, error))?);
    }
    let folders = Folders::new(roots.iter().map(PathBuf::as_path)).map_err(|error| folder(&dir, error))?;
    Ok((dir, folders))
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}
