//! Whether paths carry anything: the last router of each is asked, as scionproto's `showpaths` does.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anabranch_paths::{IsdAs, ScionAddr, ScionPath};
use anabranch_scion::lookup::PathLookup;
use anabranch_scion::socket::{END_HOST_PORT, ProbeError, Socket};
use tokio::task::JoinSet;

use crate::exit::{Code, Failure};
use crate::scion;

/// Paths that are probed at a time: a burst that the smallest router queues.
const AT_ONCE: usize = 128;

/// What a probe of a path came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Its last router answers, after so long; inside an AS there is none to ask.
    Alive(Option<Duration>),
    /// Nobody answered in time.
    Timeout,
    /// Somebody on the way says why it carries nothing.
    Scmp(String),
    /// It could not be tried.
    Unknown(String),
}

impl Health {
    /// Whether it carries something.
    pub(crate) fn is_alive(&self) -> bool {
        matches!(self, Self::Alive(_))
    }

    /// As programs read it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Alive(_) => "alive",
            Self::Timeout => "timeout",
            Self::Scmp(_) => "scmp",
            Self::Unknown(_) => "unknown",
        }
    }

    /// Why it carries nothing, where somebody said.
    pub(crate) fn reason(&self) -> Option<&str> {
        match self {
            Self::Scmp(reason) | Self::Unknown(reason) => Some(reason),
            Self::Alive(_) | Self::Timeout => None,
        }
    }

    /// The time that the answer took.
    pub(crate) fn rtt_ms(&self) -> Option<f64> {
        match self {
            Self::Alive(rtt) => rtt.map(|rtt| rtt.as_secs_f64() * 1e3),
            _ => None,
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.rtt_ms(), self.reason()) {
            (Some(ms), _) => write!(f, "{}, {ms:.1} ms", self.name()),
            (None, Some(reason)) => write!(f, "{}: {reason}", self.name()),
            (None, None) => f.write_str(self.name()),
        }
    }
}

/// Asks the last router of each of `paths`; one answer each, in their order.
pub(crate) async fn probe(
    lookup: &PathLookup,
    isd_as: IsdAs,
    host: Option<IpAddr>,
    paths: &[Arc<ScionPath>],
    timeout: Duration,
) -> Result<Vec<Health>, Failure> {
    let socket = socket(lookup)?;
    // Requests end at the router: which host they are for does not matter.
    let host = host.unwrap_or(Ipv4Addr::LOCALHOST.into());
    let remote = ScionAddr::new(isd_as, SocketAddr::new(host, END_HOST_PORT));
    let probing = async {
        let mut found = Vec::with_capacity(paths.len());
        for some in paths.chunks(AT_ONCE) {
            found.extend(probe_some(&socket, remote, some, timeout).await);
        }
        found
    };
    tokio::select! {
        found = probing => Ok(found),
        failed = socket.drive() => Err(not_received(failed)),
    }
}

async fn probe_some(socket: &Socket, remote: ScionAddr, paths: &[Arc<ScionPath>], timeout: Duration) -> Vec<Health> {
    let mut found = vec![Health::Timeout; paths.len()];
    let mut waiting = JoinSet::new();
    for (place, path) in paths.iter().enumerate() {
        match socket.register(remote, path) {
            Ok(route) => {
                let socket = socket.clone();
                waiting.spawn(async move {
                    let answer = socket.probe(route, timeout).await;
                    socket.remove(route);
                    (place, answer)
                });
            }
            Err(error) => found[place] = Health::Unknown(error.to_string()),
        }
    }
    // A probe that panicked is a fault of this program and has been reported by the runtime.
    while let Some(done) = waiting.join_next().await {
        let Ok((place, answer)) = done else { continue };
        found[place] = match answer {
            Ok(answer) => Health::Alive(answer.map(|answer| answer.rtt)),
            Err(ProbeError::Timeout(_)) => Health::Timeout,
            Err(ProbeError::Scmp(kind)) => Health::Scmp(kind.to_string()),
            Err(error) => Health::Unknown(error.to_string()),
        };
    }
    found
}

/// A socket of our AS, to ask with.
pub(crate) fn socket(lookup: &PathLookup) -> Result<Socket, Failure> {
    let here = lookup.local_as();
    let local = ScionAddr::new(here.isd_as, SocketAddr::new(scion::local_ip(lookup)?, 0));
    let socket = Socket::bind(local, here.ports.clone()).map_err(|error| Failure::new(Code::Network, error))?;
    // Nobody else hands over what comes from other ASes.
    socket.set_routers(here.interfaces.values().map(SocketAddr::ip));
    Ok(socket)
}

/// The socket ended.
pub(crate) fn not_received(ended: std::io::Result<()>) -> Failure {
    let why = ended.err().map_or_else(|| "the socket was closed".to_owned(), |error| error.to_string());
    Failure::new(Code::Network, format!("cannot receive: {why}"))
}
