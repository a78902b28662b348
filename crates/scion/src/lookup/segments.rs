//! Where no daemon runs: segments from the AS's control service, combined here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anabranch_paths::{IsdAs, ScionPath};
use anabranch_scion_wire::combine::{SEGMENTS_MAX, combine};
use anabranch_scion_wire::proto::control_plane::{SEGMENTS_METHOD, SegmentType, SegmentsRequest, SegmentsResponse};
use anabranch_scion_wire::proto::grpc::Status;
use anabranch_scion_wire::segment::Segment;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::rpc::Channel;
use super::topology::Topology;
use super::{LocalAs, LookupError, Server};

/// How long a lookup waits for one more answer, once those that came make paths: as long as who chooses paths waits for it.
const LATE: Duration = Duration::from_secs(2);

/// The control services of the host's AS.
pub struct ControlService {
    local: LocalAs,
    servers: Vec<Arc<Asked>>,
}

/// One of them, and how it likes to be asked.
struct Asked {
    channel: Channel,
    /// It answers Connect over HTTP/1.1 and no gRPC.
    by_connect: AtomicBool,
}

/// Segments by what they are for.
#[derive(Default)]
struct Found {
    up: Vec<Segment>,
    core: Vec<Segment>,
    down: Vec<Segment>,
}

impl ControlService {
    /// Those of `topology`. Nothing is sent yet.
    pub fn new(topology: &Topology) -> Self {
        let asked = |address: &std::net::SocketAddr| {
            let channel = Channel::new(Server::ControlService, address.to_string());
            Arc::new(Asked { channel, by_connect: AtomicBool::new(false) })
        };
        Self { local: topology.local.clone(), servers: topology.control_services.iter().map(asked).collect() }
    }

    /// The host's AS.
    pub fn local_as(&self) -> &LocalAs {
        &self.local
    }

    /// The paths from the host's AS to `destination`, of segments that have not expired at `wall`.
    pub async fn paths(&self, destination: IsdAs, wall: SystemTime) -> Result<Vec<ScionPath>, LookupError> {
        let mut calls = JoinSet::new();
        for request in requests(self.local.isd_as, self.local.is_core, destination) {
            let servers = self.servers.clone();
            calls.spawn(async move { ask(&servers, &request).await });
        }
        let (mut found, mut failure) = (Found::default(), None);
        loop {
            // An answer may need another AS, which may never give one: where there are paths without it, they are told.
            let joined = match timeout(LATE, calls.join_next()).await {
                Ok(Some(joined)) => joined,
                Err(_) if !self.combined(&found, destination).is_empty() => break,
                Err(_) => match calls.join_next().await {
                    Some(joined) => joined,
                    None => break,
                },
                Ok(None) => break,
            };
            match joined.unwrap_or(Err(LookupError::Ended)) {
                Ok(answer) => found.add(&answer, wall),
                Err(error) => failure = Some(error),
            }
        }
        let paths = self.combined(&found, destination);
        match failure {
            // Some of the requests make no sense for some destinations, and are refused: the others tell.
            Some(failure) if paths.is_empty() && !matches!(failure, LookupError::Refused { .. }) => Err(failure),
            _ => Ok(paths),
        }
    }

    /// The paths that the segments found so far make.
    fn combined(&self, found: &Found, destination: IsdAs) -> Vec<ScionPath> {
        let mut paths = combine(self.local.isd_as, destination, &found.up, &found.core, &found.down);
        paths.retain_mut(|path| {
            let first = path.interfaces.first();
            path.next_hop = first.and_then(|interface| self.local.interfaces.get(&interface.id)).copied();
            path.next_hop.is_some()
        });
        paths
    }
}

/// What to ask for without knowing whether the destination is a core AS. A wildcard stands for any core of its ISD.
fn requests(source: IsdAs, is_core: bool, destination: IsdAs) -> Vec<SegmentsRequest> {
    let any_core = |isd_as: IsdAs| u64::from(isd_as.isd()) << 48;
    let [from, to, from_core, to_core] =
        [source.to_u64(), destination.to_u64(), any_core(source), any_core(destination)];
    let pairs = if is_core {
        vec![(from, to), (from, to_core), (to_core, to)]
    } else {
        vec![(from, from_core), (from_core, to_core), (from_core, to), (to_core, to)]
    };
    pairs.into_iter().map(|(src_isd_as, dst_isd_as)| SegmentsRequest { src_isd_as, dst_isd_as }).collect()
}

/// The answer of the first server that gives one.
async fn ask(servers: &[Arc<Asked>], request: &SegmentsRequest) -> Result<SegmentsResponse, LookupError> {
    let mut failure = LookupError::Ended;
    for server in servers {
        match server.ask(request).await {
            Err(error) => failure = error,
            answer => return answer,
        }
    }
    Err(failure)
}

impl Asked {
    async fn ask(&self, request: &SegmentsRequest) -> Result<SegmentsResponse, LookupError> {
        if !self.by_connect.load(Ordering::Relaxed) {
            match self.channel.call(SEGMENTS_METHOD, request).await {
                Err(LookupError::Refused { status, .. }) if status.code == Status::UNIMPLEMENTED => {}
                Err(LookupError::Garbled { .. } | LookupError::Unreachable { .. }) => {}
                answer => return answer,
            }
        }
        let answer = self.channel.connect_call(SEGMENTS_METHOD, request).await;
        // A server that comes back as another is asked both ways again.
        self.by_connect.store(answer.is_ok(), Ordering::Relaxed);
        answer
    }
}

impl Found {
    /// Broken and expired segments are left out: the others may do.
    fn add(&mut self, answer: &SegmentsResponse, wall: SystemTime) {
        for (&kind, segments) in &answer.segments {
            let into = match SegmentType::try_from(kind) {
                Ok(SegmentType::Up) => &mut self.up,
                Ok(SegmentType::Core) => &mut self.core,
                Ok(SegmentType::Down) => &mut self.down,
                Ok(SegmentType::Unspecified) | Err(_) => continue,
            };
            let room = SEGMENTS_MAX.saturating_sub(into.len());
            let checked = segments.segments.iter().filter_map(|message| Segment::from_proto(message).ok());
            into.extend(checked.filter(|segment| segment.expiry() > wall).take(room));
        }
    }
}
