//! Our end host, as the tests drive it.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anabranch_paths::{IsdAs, ScionAddr, ScionPath};
use anabranch_scion::lookup::{Daemon, PathLookup, Source};
use anabranch_scion::socket::{DEFAULT_PORTS, Socket};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// Longer than the longest way there and back.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// Where hosts take SCMP requests.
const SCMP_PORT: u16 = 30041;
const PAYLOAD_LEN: usize = 903;

/// A host that asks.
pub(crate) struct OurHost {
    runtime: Runtime,
    lookup: PathLookup,
}

impl OurHost {
    /// In the AS of this daemon.
    pub(crate) fn new(daemon: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let source = Source::Daemon(Daemon::new(daemon.to_string()));
        let lookup = runtime.block_on(PathLookup::start(source))?;
        Ok(Self { runtime, lookup })
    }

    /// All paths.
    pub(crate) fn paths(&self, destination: IsdAs) -> Result<Vec<Arc<ScionPath>>, Box<dyn Error>> {
        Ok(self.runtime.block_on(self.lookup.paths(destination))?.to_vec())
    }

    /// Sends a datagram over every path, which has to come back the same way.
    pub(crate) fn send(
        &self,
        from: IpAddr,
        destination: IsdAs,
        to: SocketAddr,
    ) -> Result<BTreeSet<String>, Box<dyn Error>> {
        let mut answered = BTreeSet::new();
        for path in self.paths(destination)? {
            let payload: Vec<u8> = hops(&path).bytes().cycle().take(PAYLOAD_LEN).collect();
            self.runtime.block_on(async {
                let socket = self.bind(from)?;
                let route = socket.register(ScionAddr::new(destination, to), &path)?;
                socket.send_to(route, &payload).await?;
                let mut buffer = vec![0; 2000];
                let received = tokio::time::timeout(REPLY_TIMEOUT, socket.recv_from(&mut buffer)).await;
                let (len, way) = received.map_err(|_| format!("no answer over {path}: {:?}", socket.counters()))??;
                if way != route || buffer[..len] != payload {
                    return Err(format!("{len} bytes came over {path}, by {way:?} instead of {route:?}").into());
                }
                Ok::<_, Box<dyn Error>>(())
            })?;
            answered.insert(hops(&path));
        }
        Ok(answered)
    }

    /// Sends an SCMP echo over every path.
    pub(crate) fn ping(
        &self,
        from: IpAddr,
        destination: IsdAs,
        ip: IpAddr,
    ) -> Result<BTreeSet<String>, Box<dyn Error>> {
        let mut answered = BTreeSet::new();
        for path in self.paths(destination)? {
            self.runtime.block_on(async {
                let socket = self.bind(from)?;
                let route = socket.register(ScionAddr::new(destination, SocketAddr::new(ip, SCMP_PORT)), &path)?;
                tokio::select! {
                    pong = socket.ping(route, PAYLOAD_LEN, REPLY_TIMEOUT) => {
                        pong.map_err(|error| format!("{path}: {error}; {:?}", socket.counters()))?;
                    }
                    failed = socket.drive() => failed?,
                }
                Ok::<_, Box<dyn Error>>(())
            })?;
            answered.insert(hops(&path));
        }
        Ok(answered)
    }

    fn bind(&self, ip: IpAddr) -> Result<Socket, Box<dyn Error>> {
        let local = self.lookup.local_as();
        Ok(Socket::bind(ScionAddr::new(local.isd_as, SocketAddr::new(ip, 0)), local.ports.clone())?)
    }
}

/// A host that answers datagrams at one port, and SCMP echo requests, until it is dropped.
pub(crate) struct OurServer {
    _stop: oneshot::Sender<()>,
}

impl OurServer {
    /// Listens.
    pub(crate) fn start(isd_as: IsdAs, at: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (echo, data) = {
            let _inside = runtime.enter();
            let bind = |port| Socket::bind(ScionAddr::new(isd_as, SocketAddr::new(at.ip(), port)), DEFAULT_PORTS);
            (bind(SCMP_PORT)?, bind(at.port())?)
        };
        std::thread::spawn(move || {
            runtime.block_on(async {
                let give_back = async {
                    let mut buffer = vec![0; 2000];
                    while let Ok((len, route)) = data.recv_from(&mut buffer).await {
                        // What cannot be answered is noticed by who waits for it.
                        let _ = data.send_to(route, &buffer[..len]).await;
                    }
                };
                tokio::select! {
                    () = give_back => {}
                    _ = echo.drive() => {}
                    _ = stopped => {}
                }
            });
        });
        Ok(Self { _stop: stop })
    }
}

/// The interfaces of a path, as in 1-ff00:0:110#1,1-ff00:0:111#41; a dash inside one AS.
pub(crate) fn hops(path: &ScionPath) -> String {
    let interfaces: Vec<String> = path.interfaces.iter().map(ToString::to_string).collect();
    if interfaces.is_empty() { "-".into() } else { interfaces.join(",") }
}
