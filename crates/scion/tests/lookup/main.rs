//! Path lookup and host names against servers that come and go.

mod asnet;
mod names;
mod network;
mod server;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use anabranch_paths::{Geo, LinkKind, Remarks, ScionPath};
use anabranch_scion::lookup::topology::Topology;
use anabranch_scion::lookup::{ControlService, Daemon, LookupError, PathLookup, Source};
use anabranch_scion_wire::proto;
use anabranch_scion_wire::proto::control_plane::{self, SEGMENTS_METHOD, SegmentType, SegmentsRequest};
use anabranch_scion_wire::proto::daemon::{self, AS_METHOD, INTERFACES_METHOD, PATHS_METHOD, PORT_RANGE_METHOD};
use anabranch_scion_wire::proto::grpc::{self, Status};
use anabranch_scion_wire::segment::Segment;
use prost::Message;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use network::{isd_as, paths, segments, told};
use server::{Server, Speaks};

const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

type Answered = Result<Vec<u8>, Status>;

/// A daemon in 1-2; what it says about paths is `paths`.
fn daemon_of(paths: impl Fn(daemon::PathsRequest) -> Answered + Send + Sync) -> impl Fn(&str, &[u8]) -> Answered {
    move |method, message| match method {
        AS_METHOD => Ok(daemon::AsResponse { isd_as: isd_as(2).to_u64(), core: false, mtu: 1472 }.encode_to_vec()),
        PORT_RANGE_METHOD => {
            Ok(daemon::PortRangeResponse { dispatched_port_start: 31_000, dispatched_port_end: 32_000 }.encode_to_vec())
        }
        INTERFACES_METHOD => {
            let interface =
                |address: &str| daemon::Interface { address: Some(daemon::Underlay { address: address.to_owned() }) };
            let interfaces = [(1, "127.0.0.2:30042"), (2, "nonsense"), (70_000, "127.0.0.2:30042")];
            let interfaces = interfaces.into_iter().map(|(id, address)| (id, interface(address))).collect();
            Ok(daemon::InterfacesResponse { interfaces }.encode_to_vec())
        }
        PATHS_METHOD => paths(daemon::PathsRequest::decode(message).unwrap()),
        _ => Err(Status::new(Status::UNIMPLEMENTED, method)),
    }
}

/// The answer with `paths` that live for `life`.
fn answer(paths: &[ScionPath], life: Duration) -> Answered {
    Ok(daemon::PathsResponse { paths: paths.iter().map(|path| told(path, life)).collect() }.encode_to_vec())
}

async fn lookup_at(address: SocketAddr) -> Result<PathLookup, LookupError> {
    PathLookup::start(Source::Daemon(Daemon::new(address.to_string()))).await
}

#[tokio::test]
async fn a_daemon_tells_of_its_as_and_of_paths() {
    let server = Server::start(ANYWHERE, Speaks::Grpc, daemon_of(|_| answer(&paths(), HOUR))).await;
    let lookup = lookup_at(server.address).await.unwrap();
    let local = lookup.local_as();
    assert_eq!((local.isd_as, local.mtu, local.ports.clone()), (isd_as(2), 1472, 31_000..=32_000));
    assert_eq!(local.interfaces.iter().collect::<Vec<_>>(), [(&1, &"127.0.0.2:30042".parse().unwrap())]);

    let found = lookup.paths(isd_as(3)).await.unwrap();
    let ids = |paths: &mut dyn Iterator<Item = ScionPath>| {
        let mut ids: Vec<_> = paths.map(|path| path.id()).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids(&mut found.iter().map(|path| (**path).clone())), ids(&mut paths().into_iter()));
    let path = &found[0];
    assert_eq!(path.next_hop, Some("127.0.0.2:30042".parse().unwrap()));
    assert_eq!(path.latency, [Some(Duration::from_millis(5)), None, Some(Duration::from_secs(1))]);
    assert_eq!(path.bandwidth_kbps, [Some(1000), None, None]);
    assert_eq!(path.link_kinds, [LinkKind::Direct, LinkKind::Unset]);
    // The daemon says an hour, the hop fields five minutes.
    assert!(path.expiry < SystemTime::now() + Duration::from_secs(338));
    // Within the AS there is one path, and nobody is asked.
    drop(server);
    assert_eq!(lookup.paths(isd_as(2)).await.unwrap()[0].mtu, 1472);
}

#[tokio::test]
async fn what_ases_say_to_people_is_kept_as_far_as_it_fits() {
    let says = |request: &daemon::PathsRequest| {
        let place =
            |address: &str, latitude| proto::GeoCoordinates { latitude, longitude: 8.5, address: address.into() };
        let mut path = told(&paths()[0], HOUR);
        // A cache knows less than the network.
        if request.refresh {
            path.geo = vec![place("Zurich", 47.4), proto::GeoCoordinates::default()];
            path.internal_hops = vec![3, 4, 5];
            path.notes = vec![String::new(), "x".repeat(1000)];
        }
        path
    };
    let serve = daemon_of(move |request| Ok(daemon::PathsResponse { paths: vec![says(&request)] }.encode_to_vec()));
    let server = Server::start(ANYWHERE, Speaks::Grpc, serve).await;
    let lookup = lookup_at(server.address).await.unwrap();
    assert_eq!(lookup.paths(isd_as(3)).await.unwrap()[0].remarks, Remarks::default());
    let remarks = lookup.paths_afresh(isd_as(3)).await.unwrap()[0].remarks.clone();
    let zurich = Geo { coordinates: Some("47.4,8.5".into()), address: "Zurich".into() };
    assert_eq!(remarks.geo, [zurich, Geo::default()]);
    // One AS lies between two links; words have an end.
    assert_eq!((remarks.internal_hops, remarks.notes[1].len()), (vec![3], 500));
    // Within the AS nobody is asked, and wildcards are nowhere.
    assert!(lookup.paths_afresh(isd_as(2)).await.unwrap()[0].interfaces.is_empty());
    assert!(matches!(lookup.paths_afresh("1-0".parse().unwrap()).await, Err(LookupError::Wildcard(_))));
}

#[tokio::test]
async fn bad_paths_of_an_answer_are_left_out() {
    let wrong: [fn(&mut daemon::Path); 6] = [
        |path| path.mtu = 0,
        |path| path.expiration = None,
        |path| path.interface = None,
        |path| path.interfaces[1].id += 1,
        |path| path.raw.truncate(50),
        |path| path.interfaces.swap(0, 3),
    ];
    let server = Server::start(
        ANYWHERE,
        Speaks::Grpc,
        daemon_of(move |request| {
            let good = told(&paths()[0], HOUR);
            let mut all: Vec<_> = wrong
                .iter()
                .map(|change| {
                    let mut path = good.clone();
                    change(&mut path);
                    path
                })
                .collect();
            if !request.refresh {
                // The same way twice, of which the second lives longer.
                all.extend([told(&paths()[0], Duration::from_secs(60)), told(&paths()[0], Duration::from_secs(70))]);
            }
            Ok(daemon::PathsResponse { paths: all }.encode_to_vec())
        }),
    )
    .await;
    let daemon = Daemon::new(server.address.to_string());
    let found = daemon.paths(isd_as(2), isd_as(3), false).await.unwrap();
    assert_eq!(found.len(), 1);
    assert!(found[0].expiry > SystemTime::now() + Duration::from_secs(65));
    let error = daemon.paths(isd_as(2), isd_as(3), true).await.unwrap_err().to_string();
    assert!(error.contains("no use: its MTU is zero"), "{error}");
}

#[tokio::test]
async fn errors_name_the_address_and_the_remedy() {
    let unused = TcpListener::bind(ANYWHERE).await.unwrap().local_addr().unwrap();
    let error = lookup_at(unused).await.err().unwrap().to_string();
    assert!(error.contains(&unused.to_string()) && error.contains("SCION_DAEMON_ADDRESS"), "{error}");

    let refusing = daemon_of(|_| Err(Status::new(Status::NOT_FOUND, "no such AS: 100 %")));
    let server = Server::start(ANYWHERE, Speaks::Grpc, refusing).await;
    let error = lookup_at(server.address).await.unwrap().paths(isd_as(3)).await.unwrap_err().to_string();
    assert!(error.contains("refuses: gRPC status 5: no such AS: 100 %"), "{error}");

    let empty = Server::start(ANYWHERE, Speaks::Grpc, daemon_of(|_| answer(&[], HOUR))).await;
    let error = lookup_at(empty.address).await.unwrap().paths(isd_as(3)).await.unwrap_err();
    assert_eq!(error, LookupError::NoPath { source_isd_as: isd_as(2), destination: isd_as(3) });

    let other = Server::start(ANYWHERE, Speaks::Connect, |_: &str, _: &[u8]| Ok(b"<html>".to_vec())).await;
    let error = lookup_at(other.address).await.err().unwrap().to_string();
    assert!(error.contains(&other.address.to_string()), "{error}");
}

#[tokio::test]
async fn answers_are_limited_in_size() {
    let answer_of = |len: usize| {
        daemon_of(move |_| {
            let note = "x".repeat(len);
            Ok(daemon::PathsResponse { paths: vec![daemon::Path { notes: vec![note], ..told(&paths()[0], HOUR) }] }
                .encode_to_vec())
        })
    };
    let inside = Server::start(ANYWHERE, Speaks::Grpc, answer_of(grpc::MESSAGE_BYTES_MAX - 1000)).await;
    assert_eq!(lookup_at(inside.address).await.unwrap().paths(isd_as(3)).await.unwrap().len(), 1);
    let outside = Server::start(ANYWHERE, Speaks::Grpc, answer_of(grpc::MESSAGE_BYTES_MAX)).await;
    let error = lookup_at(outside.address).await.unwrap().paths(isd_as(3)).await.unwrap_err();
    assert!(error.to_string().contains("more than 4194309 bytes"), "{error}");
}

/// Paths of three seconds, a daemon that is killed half-way and comes back at the same address: somebody who watches never
/// has no path, and the paths keep their names.
#[tokio::test]
async fn a_daemon_that_restarts_costs_nothing() {
    const LIFE: Duration = Duration::from_secs(3);
    let start = |at| Server::start(at, Speaks::Grpc, daemon_of(|_| answer(&paths(), LIFE)));
    let server = start(ANYWHERE).await;
    let lookup = lookup_at(server.address).await.unwrap();
    let mut watch = lookup.watch(isd_as(3)).await.unwrap();
    let first = watch.changed().await.unwrap();
    assert_eq!((first.added.len(), first.removed.len()), (4, 0));
    let mut refreshed = 0;
    let mut server = Some(server);
    for _ in 0..2 {
        let down = server.take().unwrap().stop().await;
        let outage = Duration::from_millis(500);
        while let Ok(change) = timeout(outage, watch.changed()).await {
            // A failure alone is no change; what the last answer before the end brought may still come.
            assert_eq!((change.unwrap().added.len(), watch.snapshot().paths.len()), (0, 4));
        }
        server = Some(start(down).await);
        let change = timeout(PATIENCE, watch.changed()).await.expect("refreshed after the restart").unwrap();
        assert_eq!((change.added.len(), change.removed.len()), (0, 0));
        assert_eq!(watch.snapshot().paths.len(), 4);
        refreshed += change.refreshed.len();
    }
    assert_eq!(refreshed, 8);
    // Killed for good: the paths end when they expire, and the reason is told.
    let address = server.take().unwrap().stop().await;
    let mut gone = 0;
    while gone < 4 {
        gone += timeout(PATIENCE, watch.changed()).await.unwrap().unwrap().removed.len();
    }
    let error = timeout(PATIENCE, lookup.paths(isd_as(3))).await.unwrap().unwrap_err();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[tokio::test]
async fn one_lookup_serves_all_who_ask_at_once() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let answers = daemon_of(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        answer(&paths(), HOUR)
    });
    let server = Server::start(ANYWHERE, Speaks::Grpc, answers).await;
    let lookup = lookup_at(server.address).await.unwrap();
    let asking: Vec<_> = (0..100)
        .map(|_| {
            let lookup = lookup.clone();
            tokio::spawn(async move { lookup.paths(isd_as(3)).await.unwrap().len() })
        })
        .collect();
    for asked in asking {
        assert_eq!(asked.await.unwrap(), 4);
    }
    assert_eq!(count.load(Ordering::Relaxed), 1);
    // An interface that is down has all who watch look again.
    let mut watch = lookup.watch(isd_as(3)).await.unwrap();
    watch.changed().await.unwrap();
    lookup.interface_down(paths()[0].interfaces[0]).await;
    let looked_again = async {
        while count.load(Ordering::Relaxed) < 2 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, looked_again).await.unwrap();
}

/// A server that takes the connection and says nothing. Virtual time: it passes when nothing else can happen.
#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_given_up() {
    let listener = TcpListener::bind(ANYWHERE).await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = tokio::spawn(async move { listener.accept().await.unwrap() });
    let daemon = Daemon::new(address.to_string());
    let error = daemon.local_as().await.unwrap_err();
    assert!(matches!(error, LookupError::Deadline { .. }), "{error}");
    drop(accepting.await.unwrap());
}

#[tokio::test]
async fn a_call_that_nobody_waits_for_any_more_leaves_no_dead_connection() {
    let listener = TcpListener::bind(ANYWHERE).await.unwrap();
    let daemon = Daemon::new(listener.local_addr().unwrap().to_string());
    let mut connections = Vec::new();
    for _ in 0..2 {
        // That something has come says that the connection is there for other calls.
        let accepting = async {
            let (stream, _) = listener.accept().await.unwrap();
            stream.readable().await.unwrap();
            stream
        };
        tokio::select! {
            answer = daemon.local_as() => panic!("{answer:?}"),
            stream = timeout(PATIENCE, accepting) => connections.push(stream.expect("another connection")),
        }
    }
}

/// A control service of 1-2 in the way of one that knows its core and 1-3.
fn control_service(method: &str, message: &[u8]) -> Answered {
    if method != SEGMENTS_METHOD {
        return Err(Status::new(Status::UNIMPLEMENTED, method));
    }
    let request = SegmentsRequest::decode(message).unwrap();
    let core = 1 << 48;
    let made = SystemTime::now();
    let (kind, segments) = match (request.src_isd_as, request.dst_isd_as) {
        (src, dst) if (src, dst) == (isd_as(2).to_u64(), core) => (SegmentType::Up, segments(2, made)),
        (src, dst) if (src, dst) == (core, isd_as(3).to_u64()) => (SegmentType::Down, segments(3, made)),
        (src, dst) if (src, dst) == (core, core) => (SegmentType::Core, Vec::new()),
        _ => return Err(Status::new(Status::NOT_FOUND, "no such segments")),
    };
    let mut messages: Vec<_> = segments.iter().map(|segment| segment.to_proto(Segment::unsigned)).collect();
    // One that is none, and one that has expired.
    messages.push(control_plane::PathSegment { segment_info: vec![255], as_entries: Vec::new() });
    messages.push(network::segments(3, made - HOUR)[0].to_proto(Segment::unsigned));
    let segments = [(kind.into(), control_plane::Segments { segments: messages })].into();
    Ok(control_plane::SegmentsResponse { segments }.encode_to_vec())
}

fn topology(control_service: &[SocketAddr]) -> Topology {
    let services: Vec<_> =
        control_service.iter().enumerate().map(|(n, address)| format!(r#""cs{n}": {{"addr": "{address}"}}"#)).collect();
    let json = format!(
        r#"{{"isd_as": "1-2", "mtu": 1472,
            "border_routers": {{"br": {{"internal_addr": "127.0.0.2:30042", "interfaces": {{"1": {{}}, "2": {{}}}}}}}},
            "control_service": {{{}}}}}"#,
        services.join(", ")
    );
    Topology::parse(json.as_bytes()).unwrap()
}

#[tokio::test]
async fn without_a_daemon_segments_are_combined_here() {
    for speaks in [Speaks::Grpc, Speaks::Connect] {
        let server = Server::start(ANYWHERE, speaks, control_service).await;
        let unused = TcpListener::bind(ANYWHERE).await.unwrap().local_addr().unwrap();
        // The first of two services is down.
        let service = ControlService::new(&topology(&[unused, server.address]));
        let lookup = PathLookup::start(Source::ControlService(service)).await.unwrap();
        for _ in 0..2 {
            let found = lookup.paths(isd_as(3)).await.unwrap();
            assert_eq!(found.len(), 4);
            assert_eq!(found[0].next_hop, Some("127.0.0.2:30042".parse().unwrap()));
        }
        let nowhere = lookup.paths(isd_as(9)).await.unwrap_err();
        assert_eq!(nowhere, LookupError::NoPath { source_isd_as: isd_as(2), destination: isd_as(9) });
    }
}

#[tokio::test]
async fn a_late_answer_holds_up_no_path_that_needs_it_not() {
    let core_to_core = |message: &[u8]| {
        let request = SegmentsRequest::decode(message).unwrap();
        request.src_isd_as == request.dst_isd_as
    };
    let server = Server::start(ANYWHERE, Speaks::Grpc, move |method, message| match core_to_core(message) {
        true => Err(server::never()),
        false => control_service(method, message),
    });
    let server = server.await;
    let service = ControlService::new(&topology(&[server.address]));
    // The call that is never answered is given up after ten seconds.
    let found = tokio::time::timeout(Duration::from_secs(9), service.paths(isd_as(3), SystemTime::now())).await;
    assert_eq!(found.expect("nobody waits for it").unwrap().len(), 4);
}

#[tokio::test]
async fn a_control_service_that_is_down_is_named() {
    let unused = TcpListener::bind(ANYWHERE).await.unwrap().local_addr().unwrap();
    let service = ControlService::new(&topology(&[unused]));
    let lookup = PathLookup::start(Source::ControlService(service)).await.unwrap();
    let error = lookup.paths(isd_as(3)).await.unwrap_err().to_string();
    assert!(error.contains(&unused.to_string()) && error.contains("topology.json"), "{error}");
}
