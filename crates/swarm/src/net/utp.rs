//! uTP (BEP 29): the sockets beside the listeners, and when it is tried.
//!
//! Behind a SOCKS5 proxy that relays datagrams there is one socket more, and we call from that one alone.
//!
//! Who calls is answered always: where uTP is not let in, by a reset, so that callers turn to TCP at once. We call over TCP, and over
//! uTP beside it where that takes long, as behind many NATs; whichever opens first stays.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anabranch_transport::{ConnectError, Listener, Proxy, Stream, UtpEndpoint, UtpStream, Via};
use tokio::task::JoinSet;

use crate::net::race::BEGUN_APART;
use crate::net::uplinks::Uplinks;

/// How long uTP is tried where TCP is refused: two calls. Somebody is there, who mostly speaks both or neither.
const AFTER_REFUSAL: Duration = Duration::from_secs(2);

/// Whether uTP (BEP 29) is spoken, over plain IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Utp {
    /// Who calls is let in, and peers are called so where TCP does not open at once.
    #[default]
    On,
    /// Who calls is let in; we call over TCP alone.
    In,
    /// There are no other connections.
    Only,
    /// Not at all: who calls is sent on to TCP.
    Off,
}

/// The sockets of a session that speak uTP.
pub(crate) struct UtpNet {
    mode: Utp,
    /// Beside the listeners.
    listening: Vec<Rc<UtpEndpoint>>,
    /// Where none of those reaches everybody: who dials alone.
    dialling: Vec<Rc<UtpEndpoint>>,
    /// The one that is behind a proxy, where there is one.
    relayed: Option<Rc<UtpEndpoint>>,
}

/// Hears those alone who come to an address of these uplinks, or from this machine, and answers by the uplink.
pub(crate) fn keep_to(endpoint: &UtpEndpoint, uplinks: &Rc<Uplinks>) {
    let at = endpoint.local_addr().ip();
    // A datagram that names a source of IPv6 leaves as routes go, whichever interface it names: at one address, the whole socket is kept to it.
    if at.is_ipv6()
        && !at.is_unspecified()
        && !at.is_loopback()
        && let Some(index) = uplinks.index_of(at)
    {
        // Where the system does not let us, it stays as with many addresses: what is named there is asked for.
        let _ = endpoint.keep_to_interface(index);
    }
    let uplinks = Rc::clone(uplinks);
    endpoint.set_admits(move |local| if local.is_loopback() { Some(0) } else { uplinks.index_of(local) });
}

impl UtpNet {
    /// Opens the sockets beside `listening`, as far as their ports are free: another program that has one is who callers over UDP mean to
    /// reach, then. Where connections go through a `proxy`, ours go over uTP as far as it relays datagrams.
    pub(crate) fn open(mode: Utp, listening: &[SocketAddr], proxy: Option<&Arc<Proxy>>) -> Self {
        let accepts = mode != Utp::Off;
        let relayed = proxy.filter(|proxy| proxy.may_relay_udp());
        let relayed = relayed.and_then(|proxy| UtpEndpoint::through(proxy, accepts).ok());
        let listening: Vec<_> = listening.iter().filter_map(|at| UtpEndpoint::bind(*at, accepts).ok()).collect();
        let mut dialling = Vec::new();
        let dials = matches!(mode, Utp::On | Utp::Only) && (proxy.is_none() || relayed.is_some());
        let is_anywhere = |endpoint: &Rc<UtpEndpoint>| endpoint.local_addr().ip().is_unspecified();
        if let Some(relayed) = relayed.as_ref().filter(|_| dials) {
            dialling.push(Rc::clone(relayed));
        } else if dials && !listening.iter().any(is_anywhere) {
            let any = [(Ipv6Addr::UNSPECIFIED, 0).into(), (Ipv4Addr::UNSPECIFIED, 0).into()];
            dialling.extend(any.into_iter().find_map(|at: SocketAddr| UtpEndpoint::bind(at, false).ok()));
        } else if dials {
            dialling.extend(listening.iter().filter(|endpoint| is_anywhere(endpoint)).cloned());
        }
        Self { mode, listening, dialling, relayed }
    }

    /// Hears those alone who come to an address of these uplinks, or from this machine, and answers by the uplink.
    pub(crate) fn keep_to(&self, uplinks: &Rc<Uplinks>) {
        // What is behind a proxy has one way.
        for endpoint in self.listening.iter().chain(&self.dialling).filter(|endpoint| !endpoint.is_relayed()) {
            keep_to(endpoint, uplinks);
        }
    }

    /// The socket beside the listener at `address`.
    pub(crate) fn beside(&self, address: SocketAddr) -> Option<Rc<UtpEndpoint>> {
        self.listening.iter().find(|endpoint| endpoint.local_addr() == address).cloned()
    }

    /// The socket behind the proxy.
    pub(crate) fn relayed(&self) -> Option<&Rc<UtpEndpoint>> {
        self.relayed.as_ref()
    }

    /// Whether whoever knows where the proxy has our datagrams can call us there.
    pub(crate) fn is_reached_by_relay(&self) -> bool {
        self.relayed.is_some() && self.mode != Utp::Off
    }

    /// Where peers come in.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = Listener> {
        let accepts = self.mode != Utp::Off;
        self.listening
            .iter()
            .chain(&self.relayed)
            .filter(move |_| accepts)
            .map(|endpoint| Listener::Utp(Rc::clone(endpoint)))
    }

    /// Lets packets move, in tasks that end with `tasks`.
    pub(crate) fn serve(&self, tasks: &mut JoinSet<()>) {
        let own = self.dialling.iter().chain(&self.relayed);
        let mut all: Vec<&Rc<UtpEndpoint>> = Vec::new();
        for endpoint in self.listening.iter().chain(own) {
            if !all.iter().any(|other| Rc::ptr_eq(endpoint, other)) {
                all.push(endpoint);
            }
        }
        for endpoint in all {
            tasks.spawn_local(Rc::clone(endpoint).run());
        }
    }

    /// Lets what was written last arrive.
    pub(crate) async fn close(&self) {
        for endpoint in self.listening.iter().chain(&self.dialling).chain(&self.relayed) {
            endpoint.close().await;
        }
    }

    /// Connects to `remote` over `tcp` or uTP.
    ///
    /// # Errors
    /// What TCP says, where it was tried.
    pub(crate) async fn connect(
        &self,
        remote: SocketAddr,
        via: Option<&Via>,
        tcp: impl Future<Output = Result<Stream, ConnectError>>,
    ) -> Result<Stream, ConnectError> {
        let Some(endpoint) = self.endpoint_for(remote) else {
            return match self.mode {
                Utp::Only => Err(ConnectError::Io {
                    endpoint: remote.into(),
                    source: io::Error::other("no socket for uTP could be opened: allow others with --utp on"),
                }),
                _ => tcp.await,
            };
        };
        let utp = endpoint.connect(remote.into(), via);
        match self.mode {
            Utp::Only => utp.await.map(Stream::from),
            _ => race(tcp, utp).await,
        }
    }

    /// Connects to `remote` over uTP, where a connection over TCP was opened and came to nothing. `None` where uTP is not for that, or
    /// nobody answers soon.
    pub(crate) async fn connect_beside(&self, remote: SocketAddr, via: Option<&Via>) -> Option<Stream> {
        let endpoint = self.endpoint_for(remote).filter(|_| self.mode == Utp::On)?;
        let opened = tokio::time::timeout(AFTER_REFUSAL, endpoint.connect(remote.into(), via)).await;
        opened.ok()?.ok().map(Stream::from)
    }

    /// Whether peers behind NATs may be met (BEP 55): where we call over uTP at all, and not by a proxy's address.
    pub(crate) fn may_meet(&self) -> bool {
        !self.dialling.is_empty() && self.relayed.is_none()
    }

    /// Connects over uTP to a peer that calls us at the same time: from the port beside the listener, which it was told of and which our NAT
    /// knows.
    ///
    /// # Errors
    /// Where nobody answers.
    pub(crate) async fn meet(&self, remote: SocketAddr, via: Option<&Via>) -> Result<Stream, ConnectError> {
        let is_v4 = remote.ip().to_canonical().is_ipv4();
        let fits = |endpoint: &&Rc<UtpEndpoint>| {
            let at = endpoint.local_addr().ip();
            if at.is_unspecified() { at.is_ipv6() || is_v4 } else { via.is_some_and(|via| via.source == at) }
        };
        let endpoint = self.listening.iter().find(fits).or_else(|| self.endpoint_for(remote));
        let none = || io::Error::other("no socket for uTP could be opened");
        let endpoint = endpoint.ok_or_else(|| ConnectError::Io { endpoint: remote.into(), source: none() })?;
        endpoint.connect(remote.into(), via).await.map(Stream::from)
    }

    /// The socket to dial `remote` from.
    fn endpoint_for(&self, remote: SocketAddr) -> Option<&Rc<UtpEndpoint>> {
        let is_v4 = remote.ip().to_canonical().is_ipv4();
        self.dialling.iter().find(|endpoint| endpoint.local_addr().is_ipv6() || is_v4)
    }
}

/// TCP first, uTP beside it when that takes long, or at once where TCP is refused; who opens first wins, and the other one is dropped.
async fn race(
    tcp: impl Future<Output = Result<Stream, ConnectError>>,
    utp: impl Future<Output = Result<UtpStream, ConnectError>>,
) -> Result<Stream, ConnectError> {
    let (mut tcp, mut utp) = (pin!(tcp), pin!(utp));
    let refused = match tokio::time::timeout(BEGUN_APART, &mut tcp).await {
        Ok(Ok(stream)) => return Ok(stream),
        Ok(Err(error)) => error,
        Err(_) => {
            tokio::select! {
                opened = &mut utp => return match opened {
                    Ok(stream) => Ok(stream.into()),
                    Err(_) => tcp.await,
                },
                opened = &mut tcp => match opened {
                    Ok(stream) => return Ok(stream),
                    Err(error) => error,
                },
            }
        }
    };
    match tokio::time::timeout(AFTER_REFUSAL, utp).await {
        Ok(Ok(stream)) => Ok(stream.into()),
        _ => Err(refused),
    }
}
