//! Where requests come in: a socket of the same user's programs, and an address for browsers and others with a token.
//!
//! | module | what it does |
//! | --- | --- |
//! | `guard` | which requests mean this host, and come from its own page |
//! | `keys` | tokens and cookies |
//! | `passwords` | a name and a password, instead of a token |
//! | `tls` | what makes the address secure |
//! | `line` | a connection that is given up when nothing of it is taken |

mod guard;
mod keys;
mod line;
mod passwords;
mod tls;

use std::cell::RefCell;
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

pub(crate) use guard::{Foreign, check};
pub use keys::KeyError;
pub(crate) use keys::{Access, Keys, TOKEN_FILE, secret};
use line::Line;
pub(crate) use passwords::{PasswordError, Passwords};
pub use tls::TlsError;
pub(crate) use tls::acceptor;

use crate::api::Api;

/// Connections at once by way of an address. A page has six, and one of them for events.
pub(crate) const CONNECTIONS_MAX: usize = 128;
/// Connections at once by way of the socket: others' do not crowd them out.
const SOCKET_CONNECTIONS_MAX: usize = 64;
/// Time for the head of a request to arrive; a connection that asks for nothing for so long is closed.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Pause after the system had no descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// By which way a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// By the socket, from the same user.
    Socket,
    /// By an address.
    Address,
}

/// Opens the socket, for the same user alone. One that nobody listens at any more is replaced.
pub(crate) fn bind_socket(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    match path.symlink_metadata() {
        Ok(there) if there.file_type().is_socket() => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(ErrorKind::AddrInUse.into());
            }
            std::fs::remove_file(path)?;
        }
        Ok(_) => return Err(io::Error::new(ErrorKind::AlreadyExists, "a file that is no socket is there")),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    // Between the two calls others may connect; each connection's user is looked at.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves programs of the same user. Must run in a `LocalSet`.
pub(crate) async fn serve_socket(
    listener: std::os::unix::net::UnixListener,
    path: &Path,
    api: Rc<Api>,
) -> io::Result<()> {
    let owner = path.metadata()?.uid();
    let listener = UnixListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(SOCKET_CONNECTIONS_MAX));
    loop {
        // It is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok((stream, _)) if is_of(&stream, owner) => {
                let api = Rc::clone(&api);
                tokio::task::spawn_local(async move {
                    let _place = place;
                    converse(Line::new(stream), Transport::Socket, api).await;
                });
            }
            Ok(_) => {}
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Whether a connection is of the user `owner`, or of the administrator, who may do all of that anyway.
fn is_of(stream: &UnixStream, owner: u32) -> bool {
    stream.peer_cred().is_ok_and(|credentials| credentials.uid() == owner || credentials.uid() == 0)
}

/// Listens at an address.
pub(crate) fn bind_address(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// What makes connections by the address secure; `None`: nothing. It may be changed while they come.
pub(crate) type Tls = Rc<RefCell<Option<TlsAcceptor>>>;

/// Serves whoever has a token. Must run in a `LocalSet`.
pub(crate) async fn serve_address(listener: std::net::TcpListener, api: Rc<Api>, tls: Tls) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // It is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (api, tls) = (Rc::clone(&api), tls.borrow().clone());
                tokio::task::spawn_local(async move {
                    let _place = place;
                    // Where it cannot be had, bytes come a little later.
                    let _ = stream.set_nodelay(true);
                    match tls {
                        None => converse(Line::new(stream), Transport::Address, api).await,
                        Some(tls) => {
                            // Whoever does not get as far asks for nothing.
                            if let Ok(Ok(stream)) = tokio::time::timeout(HEAD_TIMEOUT, tls.accept(stream)).await {
                                converse(Line::new(stream), Transport::Address, api).await;
                            }
                        }
                    }
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Answers the requests of one connection.
async fn converse<S>(line: Line<S>, way: Transport, api: Rc<Api>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static,
{
    let answer = service_fn(move |request| {
        let api = Rc::clone(&api);
        async move { Ok::<_, Infallible>(api.respond(way, request).await) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
    // What goes wrong on a connection is its client's affair.
    let _ = builder.serve_connection(TokioIo::new(line), answer).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_its_owners_and_replaces_none_that_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/daemon.sock");
        let listener = bind_socket(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(bind_socket(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(listener);
        bind_socket(&path).unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        assert_eq!(bind_socket(&file).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    }
}
