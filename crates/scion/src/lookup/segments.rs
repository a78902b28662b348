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
use tokio::time::{Instant, timeout, timeout_at};

use super::rpc::{CALL_TIMEOUT, Channel};
use super::topology::Topology;
use super::{LocalAs, LookupError, Server};

/// How long a lookup takes at most, of however many servers: as long as a daemon has for the same, so that whoever looks paths up need
/// not know who is asked.
const LOOKUP_MAX: Duration = CALL_TIMEOUT;
/// How long a lookup waits for one more answer, once those that came make paths: as long as who chooses paths waits for it.
const LATE: Duration = Duration::from_secs(2);
/// A server that has not answered for so long is not waited for alone: it may ask another AS, as above.
const SILENT: Duration = Duration::from_secs(2);

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
        self.gather(calls, destination, wall).await
    }

    /// The paths that the answers make.
    async fn gather(
        &self,
        mut calls: JoinSet<Result<SegmentsResponse, LookupError>>,
        destination: IsdAs,
        wall: SystemTime,
    ) -> Result<Vec<ScionPath>, LookupError> {
        let deadline = Instant::now() + LOOKUP_MAX;
        let (mut found, mut failure) = (Found::default(), None);
        loop {
            // An answer may need another AS, which may never give one: where there are paths without it, they are told.
            let late = (Instant::now() + LATE).min(deadline);
            let joined = match timeout_at(late, calls.join_next()).await {
                Err(_) if !self.combined(&found, destination).is_empty() => break,
                Err(_) => timeout_at(deadline, calls.join_next()).await,
                joined => joined,
            };
            let joined = match joined {
                Ok(Some(joined)) => joined,
                Ok(None) => break,
                Err(_) => {
                    failure = Some(self.late());
                    break;
                }
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

    fn late(&self) -> LookupError {
        let addresses: Vec<&str> = self.servers.iter().map(|server| server.channel.address()).collect();
        let (server, address) = (Server::ControlService, addresses.join(" or "));
        LookupError::Deadline { server, address, seconds: LOOKUP_MAX.as_secs() }
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
    let calls = servers.iter().map(|server| {
        let (server, request) = (Arc::clone(server), *request);
        async move { server.ask(&request).await }
    });
    first_answer(calls.collect()).await
}

/// The first answer that one of the calls brings. They are begun in turn: each where all before have failed, or have been silent for so long
/// that all are begun early enough within a lookup.
async fn first_answer<T: Send + 'static>(
    calls: Vec<impl Future<Output = Result<T, LookupError>> + Send + 'static>,
) -> Result<T, LookupError> {
    let silent = SILENT.min(LOOKUP_MAX / (calls.len() as u32 + 1));
    let (mut calls, mut begun, mut failure) = (calls.into_iter(), JoinSet::new(), LookupError::Ended);
    loop {
        let call = calls.next();
        let is_last = call.is_none();
        call.map(|call| begun.spawn(call));
        let joined = match is_last {
            true => begun.join_next().await,
            false => match timeout(silent, begun.join_next()).await {
                Ok(joined) => joined,
                Err(_) => continue,
            },
        };
        match joined {
            None => return Err(failure),
            Some(joined) => match joined.unwrap_or(Err(LookupError::Ended)) {
                Err(error) => failure = error,
                answer => return answer,
            },
        }
    }
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

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::pin::Pin;

    use super::super::topology::CONTROL_SERVICES_MAX;
    use super::*;

    const FAILED: LookupError = LookupError::TooManyDestinations(0);

    type Call = Pin<Box<dyn Future<Output = Result<usize, LookupError>> + Send>>;

    fn silent() -> Call {
        Box::pin(pending())
    }

    fn failing() -> Call {
        Box::pin(ready(Err(FAILED)))
    }

    fn answering(number: usize, after: Duration) -> Call {
        Box::pin(async move {
            tokio::time::sleep(after).await;
            Ok(number)
        })
    }

    /// What comes of the calls, and after how long.
    async fn outcome(calls: Vec<Call>) -> (Result<usize, LookupError>, Duration) {
        let start = Instant::now();
        (first_answer(calls).await, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_fails_has_the_next_asked_at_once_and_a_silent_one_soon() {
        let quick = || answering(7, Duration::ZERO);
        assert_eq!(outcome(vec![quick(), failing()]).await, (Ok(7), Duration::ZERO));
        assert_eq!(outcome(vec![failing(), failing(), quick()]).await, (Ok(7), Duration::ZERO));
        let (answer, after) = outcome(vec![silent(), quick()]).await;
        assert!(answer == Ok(7) && (SILENT..SILENT * 2).contains(&after), "{after:?}");
        // Who is slow is still heard.
        let slow = answering(1, SILENT + SILENT / 2);
        let (answer, after) = outcome(vec![slow, silent(), silent()]).await;
        assert!(answer == Ok(1) && after < SILENT * 2, "{after:?}");
        assert_eq!(outcome(vec![failing(), failing()]).await, (Err(FAILED), Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_of_as_many_servers_as_there_may_be_is_asked_within_a_lookup() {
        let mut calls: Vec<Call> = (1..CONTROL_SERVICES_MAX).map(|_| silent()).collect();
        calls.push(answering(3, Duration::ZERO));
        let (answer, after) = outcome(calls).await;
        assert!(answer == Ok(3) && after < LOOKUP_MAX, "{after:?}");
    }

    fn service(addresses: &[&str]) -> ControlService {
        let services: Vec<String> =
            addresses.iter().enumerate().map(|(n, address)| format!(r#""cs{n}": {{"addr": "{address}"}}"#)).collect();
        let json = format!(
            r#"{{"isd_as": "1-2", "mtu": 1472, "border_routers": {{}}, "control_service": {{{}}}}}"#,
            services.join(", ")
        );
        ControlService::new(&Topology::parse(json.as_bytes()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_several_servers_never_answer_ends_once() {
        let service = service(&["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]);
        // One request is answered just in time, and says nothing.
        let answered = [LOOKUP_MAX - Duration::from_millis(10), LOOKUP_MAX + Duration::from_millis(10)];
        for after in answered {
            let mut calls = JoinSet::new();
            calls.spawn(async move {
                tokio::time::sleep(after).await;
                Ok(SegmentsResponse::default())
            });
            calls.spawn(pending());
            let start = Instant::now();
            let error = service.gather(calls, "1-3".parse().unwrap(), SystemTime::now()).await.unwrap_err();
            let took = start.elapsed();
            assert!((LOOKUP_MAX..LOOKUP_MAX + Duration::from_millis(10)).contains(&took), "{took:?}");
            let seconds = LOOKUP_MAX.as_secs();
            let told = format!("127.0.0.1:1 or 127.0.0.1:2 or 127.0.0.1:3 did not answer within {seconds} s");
            assert!(error.to_string().contains(&told), "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_is_answered_in_time_is_no_late_one() {
        let mut calls = JoinSet::new();
        calls.spawn(async {
            tokio::time::sleep(LOOKUP_MAX - Duration::from_millis(10)).await;
            Ok(SegmentsResponse::default())
        });
        let found = service(&["127.0.0.1:1"]).gather(calls, "1-3".parse().unwrap(), SystemTime::now()).await;
        assert_eq!(found, Ok(Vec::new()));
    }
}
