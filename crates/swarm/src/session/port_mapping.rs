//! Routers are asked to open our ports ([`anabranch_portmap`]): at each uplink whose address they translate, its own gateway and nobody
//! else.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anabranch_paths::manager::UPLINKS_EVERY;
use anabranch_portmap::{
    Action, BODY_LEN_MAX, Config, DATAGRAM_LEN_MAX, Event, HttpRequest, Mapper, PORTS_MAX, Port, Protocol,
};
use anabranch_transport::{Interfaces, TcpStream, Via, gateway_of};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::Builder;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use super::Contents;
use crate::events::EventKind;
use crate::net::leave::bound;
use crate::net::ports::{OpenPort, is_translated};
use crate::net::utp::Utp;
use crate::resources::Resources;

/// Uplinks whose routers are asked.
const UPLINKS_MAX: usize = 8;
/// One request over HTTP to a router, from the connection to the last byte.
const HTTP_WITHIN: Duration = Duration::from_secs(10);
/// What is read of a connection ahead, and so the longest head of an answer.
const HTTP_BUFFER_BYTES: usize = 16 << 10;
/// Pause after a socket error, so that one that persists does not spin.
const ERROR_PAUSE: Duration = Duration::from_millis(50);
/// Until a router is tried again for which no socket could be opened.
const OPENED_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Where routers answer PCP and NAT-PMP (RFC 6887 §19.1).
const PCP_PORT: u16 = 5351;

/// One router, and what it is to open.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Spot {
    via: Via,
    local: Ipv4Addr,
    gateway: Ipv4Addr,
    ports: Vec<Port>,
}

/// Has routers open our ports until the session ends. Without uplinks that are known, it does not.
pub(super) async fn keep_open(contents: Rc<Contents>) {
    let resources = &contents.resources;
    let Some(uplinks) = &resources.uplinks else { return };
    let (mut tasks, mut known) = (JoinSet::new(), HashMap::<Spot, AbortHandle>::new());
    let mut leaving = resources.ports.leaving();
    while !*leaving.borrow_and_update() {
        uplinks.refresh(Instant::now());
        let wanted = wanted(resources, &uplinks.interfaces());
        known.retain(|spot, task| {
            let is_wanted = wanted.contains(spot);
            if !is_wanted {
                task.abort();
                forget(&contents, spot);
            }
            is_wanted && !task.is_finished()
        });
        for spot in wanted {
            let begin = || tasks.spawn_local(keep_open_at(Rc::clone(&contents), spot.clone()));
            known.entry(spot.clone()).or_insert_with(begin);
        }
        // Ends early where the session leaves.
        let _ = tokio::time::timeout(UPLINKS_EVERY, leaving.changed()).await;
        while tasks.try_join_next().is_some() {}
    }
    // Each gives back what it has.
    while tasks.join_next().await.is_some() {}
}

/// The routers that there are to ask now.
fn wanted(resources: &Resources, interfaces: &Interfaces) -> Vec<Spot> {
    let usable = interfaces.list().iter().filter(|interface| interface.usable && !interface.loopback);
    let spot = |interface: &anabranch_transport::LocalInterface| {
        interface.addresses.iter().find_map(|address| {
            let IpAddr::V4(local) = address.ip else { return None };
            let ports = ports(resources, local);
            if !is_translated(address.ip) || ports.is_empty() {
                return None;
            }
            let via =
                Via { source: address.ip, interface: interface.name.clone(), index: interface.index, is_local: false };
            // The gateway of another network is not this uplink's.
            let gateway = gateway_of(&via).filter(|gateway| address.has_in_network(IpAddr::V4(*gateway)))?;
            Some(Spot { via, local, gateway, ports })
        })
    };
    usable.filter_map(spot).take(UPLINKS_MAX).collect()
}

/// The ports that we listen at, at this address of ours.
fn ports(resources: &Resources, local: Ipv4Addr) -> Vec<Port> {
    let is_here = |at: &&SocketAddr| at.ip().is_unspecified() || at.ip() == IpAddr::V4(local);
    let mut ports: Vec<Port> = Vec::new();
    for at in resources.listening.iter().filter(is_here) {
        let number = at.port();
        let tcp = (resources.config.utp != Utp::Only).then_some(Protocol::Tcp);
        let udp = resources.utp.beside(*at).map(|_| Protocol::Udp);
        ports.extend(tcp.into_iter().chain(udp).map(|protocol| Port { protocol, number }));
    }
    ports.truncate(PORTS_MAX);
    ports
}

/// An uplink is gone, and with it what its router opened.
fn forget(contents: &Contents, spot: &Spot) {
    for port in &spot.ports {
        lost(contents, spot, *port);
    }
}

fn lost(contents: &Contents, spot: &Spot, port: Port) {
    let local = SocketAddr::new(spot.via.source, port.number);
    if contents.resources.ports.closed(local, port.protocol) {
        contents.ports_changed(&EventKind::PortLost { local, protocol: port.protocol });
    }
}

/// Deals with one router until the session leaves.
async fn keep_open_at(contents: Rc<Contents>, spot: Spot) {
    let dealing = Dealing::begin(&contents.resources);
    let mut leaving = contents.resources.ports.leaving();
    match Router::open(&spot) {
        Ok(mut router) => router.talk(&contents, &spot, &mut leaving).await,
        // The address may be so new that the system does not give it away yet.
        Err(_) => {
            drop(dealing);
            tokio::time::sleep(OPENED_AGAIN_AFTER).await;
        }
    }
}

/// A router that is dealt with: whoever leaves waits until it is not.
struct Dealing(Rc<Resources>);

impl Dealing {
    fn begin(resources: &Rc<Resources>) -> Self {
        resources.ports.begin();
        Self(Rc::clone(resources))
    }
}

impl Drop for Dealing {
    fn drop(&mut self) {
        self.0.ports.end();
    }
}

/// What a router is spoken to by.
struct Router {
    mapper: Mapper,
    /// Connected to the router: the system lets nobody else in, and tells that nobody listens there.
    pcp: UdpSocket,
    /// Answers to searches come from any port of the router's.
    search: UdpSocket,
    http: JoinSet<(u64, Option<(u16, Bytes)>)>,
}

enum News {
    Datagram(Vec<u8>),
    Unreachable,
    Http(u64, Option<(u16, Bytes)>),
    Nothing,
}

impl Router {
    fn open(spot: &Spot) -> io::Result<Self> {
        let config = Config {
            gateway: spot.gateway,
            local: spot.local,
            ports: spot.ports.clone(),
            seed: fastrand::Rng::new().u64(..),
        };
        let pcp = bound(&spot.via)?;
        pcp.connect(&SocketAddr::new(spot.gateway.into(), PCP_PORT).into())?;
        let [pcp, search] = [pcp, bound(&spot.via)?].map(|socket| UdpSocket::from_std(socket.into()));
        Ok(Self { mapper: Mapper::new(config, Instant::now()), pcp: pcp?, search: search?, http: JoinSet::new() })
    }

    async fn talk(&mut self, contents: &Contents, spot: &Spot, leaving: &mut watch::Receiver<bool>) {
        let (mut of_pcp, mut of_search) = ([0; DATAGRAM_LEN_MAX + 1], [0; DATAGRAM_LEN_MAX + 1]);
        let mut is_leaving = *leaving.borrow_and_update();
        // What is sent before the runtime knows that there is room is lost.
        let _ = tokio::join!(self.pcp.writable(), self.search.writable());
        self.mapper.on_time(Instant::now());
        loop {
            self.perform(spot);
            self.tell(contents, spot);
            if self.mapper.is_closed() {
                return;
            }
            let deadline = self.mapper.deadline();
            let pause = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            let news = tokio::select! {
                received = self.pcp.recv(&mut of_pcp) => match received {
                    Ok(len) => News::Datagram(of_pcp[..len].to_vec()),
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => News::Unreachable,
                    Err(_) => {
                        tokio::time::sleep(ERROR_PAUSE).await;
                        News::Nothing
                    }
                },
                received = self.search.recv_from(&mut of_search) => match received {
                    Ok((len, from)) if from.ip() == IpAddr::V4(spot.gateway) => {
                        News::Datagram(of_search[..len].to_vec())
                    }
                    Ok(_) => News::Nothing,
                    Err(_) => {
                        tokio::time::sleep(ERROR_PAUSE).await;
                        News::Nothing
                    }
                },
                Some(Ok((id, answer))) = self.http.join_next() => News::Http(id, answer),
                () = pause => News::Nothing,
                _ = leaving.changed(), if !is_leaving => {
                    is_leaving = true;
                    self.mapper.close(Instant::now());
                    News::Nothing
                }
            };
            let now = Instant::now();
            match news {
                News::Datagram(datagram) => self.mapper.on_datagram(now, &datagram),
                News::Unreachable => self.mapper.on_unreachable(now),
                News::Http(id, answer) => {
                    let answer = answer.as_ref().map(|(status, body)| (*status, &body[..]));
                    self.mapper.on_http(now, id, answer);
                }
                News::Nothing => {}
            }
            self.mapper.on_time(now);
        }
    }

    fn perform(&mut self, spot: &Spot) {
        while let Some(action) = self.mapper.poll_action() {
            match action {
                // What is lost is sent again.
                Action::Datagram { port: PCP_PORT, bytes } => _ = self.pcp.try_send(&bytes),
                Action::Datagram { port, bytes } => {
                    _ = self.search.try_send_to(&bytes, SocketAddr::new(spot.gateway.into(), port));
                }
                Action::Http(request) => {
                    let (via, gateway) = (spot.via.clone(), spot.gateway);
                    self.http.spawn_local(async move {
                        let id = request.id;
                        let asked = tokio::time::timeout(HTTP_WITHIN, ask(&via, gateway, request)).await;
                        (id, asked.ok().flatten())
                    });
                }
            }
        }
    }

    fn tell(&mut self, contents: &Contents, spot: &Spot) {
        while let Some(event) = self.mapper.poll_event() {
            match event {
                Event::Mapped { port, external, method } => {
                    let local = SocketAddr::new(spot.via.source, port.number);
                    let open = OpenPort { local, protocol: port.protocol, external: external.into(), method };
                    contents.resources.ports.opened(open);
                    contents.ports_changed(&EventKind::PortOpened(open));
                }
                Event::Lost { port } => lost(contents, spot, port),
                Event::Failed(failure) => {
                    let router = IpAddr::V4(spot.gateway);
                    contents.ports_changed(&EventKind::PortsRefused { router, reason: failure.to_string() });
                }
            }
        }
    }
}

/// One request to the router; status and body of the answer, as far as there is one that may be read. Redirects are answers as others are.
async fn ask(via: &Via, gateway: Ipv4Addr, request: HttpRequest) -> Option<(u16, Bytes)> {
    let at = SocketAddr::new(gateway.into(), request.port);
    let stream = TcpStream::connect(at.into(), Some(via)).await.ok()?.into_inner();
    let mut builder = Builder::new();
    builder.max_buf_size(HTTP_BUFFER_BYTES).title_case_headers(true);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.ok()?;
    let mut driver = JoinSet::new();
    driver.spawn_local(async move {
        // What it came to is told by the answer.
        let _ = connection.await;
    });
    let head = Request::builder().uri(request.target).header(header::HOST, at.to_string());
    let head = head.header(header::USER_AGENT, concat!("anabranch/", env!("CARGO_PKG_VERSION")));
    let request = match request.soap {
        None => head.body(Full::new(Bytes::new())),
        Some((action, body)) => head
            .method("POST")
            .header(header::CONTENT_TYPE, "text/xml; charset=\"utf-8\"")
            .header("SOAPAction", action)
            .body(Full::new(Bytes::from(body))),
    };
    let response = sender.send_request(request.ok()?).await.ok()?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), BODY_LEN_MAX).collect().await.ok()?;
    Some((status, body.to_bytes()))
}
