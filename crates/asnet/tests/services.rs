//! The daemon and the control service as their clients see them, over real connections.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anabranch_asnet::control::services::{Role, Services, serve, topology_json};
use anabranch_asnet::control::{ControlPlane, Keys, Options, SECRET_LEN, limits};
use anabranch_asnet::link::RATE_BPS_MAX;
use anabranch_asnet::topology::Topology;
use anabranch_paths::IsdAs;
use anabranch_scion_wire::proto::control_plane::{SEGMENTS_METHOD, SegmentsRequest, SegmentsResponse};
use anabranch_scion_wire::proto::daemon::*;
use anabranch_scion_wire::proto::grpc::{CONNECT_CONTENT_TYPE, CONTENT_TYPE, Status, frame, unframe};
use anabranch_scion_wire::segment::Segment;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const TOPOLOGY: &str = r#"
[as."1-ff00:0:110"]
core = true
[as."1-ff00:0:111"]
mtu = 1400
[as."1-ff00:0:112"]
[[link]]
parent = "1-ff00:0:110"
child = "1-ff00:0:111#41"
delay = "10 ms"
rate = "8 Mbit/s"
[[link]]
parent = "1-ff00:0:110"
child = "1-ff00:0:112"
[[link]]
peering = ["1-ff00:0:111", "1-ff00:0:112"]
"#;

fn number(text: &str) -> IsdAs {
    text.parse().unwrap()
}

/// A running service of 1-ff00:0:111; it stops when this is dropped.
struct Running {
    address: std::net::SocketAddr,
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

async fn start(role: Role) -> Running {
    let topology = Arc::new(Topology::from_toml("net", TOPOLOGY).unwrap());
    let keys = Arc::new(Keys::new(&topology, &[1; SECRET_LEN]));
    let plane = Arc::new(ControlPlane::new(topology, keys, Options::default()));
    let services = Arc::new(Services::new(plane, number("1-ff00:0:111")).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    Running { address, stop, task: tokio::spawn(serve(services, role, listener, stopped)) }
}

impl Running {
    async fn grpc<M: Message, R: Message + Default>(&self, method: &str, request: M) -> Result<R, Status> {
        self.grpc_raw(method, frame(&request)).await.map(|body| unframe(&body).unwrap())
    }

    async fn grpc_raw(&self, method: &str, body: Vec<u8>) -> Result<Bytes, Status> {
        let stream = TokioIo::new(TcpStream::connect(self.address).await.unwrap());
        let (mut send, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        let request = Request::post(format!("http://{}{method}", self.address))
            .header("content-type", CONTENT_TYPE)
            .header("te", "trailers")
            .body(Full::<Bytes>::from(body))
            .unwrap();
        let response = send.send_request(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], CONTENT_TYPE);
        let headers = response.headers().clone();
        let body = response.into_body().collect().await.unwrap();
        let ending = body.trailers().cloned().unwrap_or(headers);
        let message = ending.get("grpc-message").map(|message| message.as_bytes());
        let status = Status::from_headers(ending["grpc-status"].as_bytes(), message);
        if status.code == Status::OK { Ok(body.to_bytes()) } else { Err(status) }
    }

    async fn http(&self, request: Request<Full<Bytes>>) -> (StatusCode, Bytes) {
        let stream = TokioIo::new(TcpStream::connect(self.address).await.unwrap());
        let (mut send, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let response = send.send_request(request).await.unwrap();
        (response.status(), response.into_body().collect().await.unwrap().to_bytes())
    }
}

#[tokio::test]
async fn the_daemon_answers_what_applications_ask() {
    let daemon = start(Role::Daemon).await;
    let home: AsResponse = daemon.grpc(AS_METHOD, AsRequest { isd_as: 0 }).await.unwrap();
    assert_eq!((home.isd_as, home.core, home.mtu), (number("1-ff00:0:111").to_u64(), false, 1400));
    let ports: PortRangeResponse = daemon.grpc(PORT_RANGE_METHOD, ()).await.unwrap();
    assert_eq!((ports.dispatched_port_start, ports.dispatched_port_end), (31_000, 32_767));
    let interfaces: InterfacesResponse = daemon.grpc(INTERFACES_METHOD, InterfacesRequest {}).await.unwrap();
    assert_eq!(interfaces.interfaces.keys().copied().collect::<Vec<_>>(), [1, 41]);
    let router = interfaces.interfaces[&41].address.as_ref().unwrap().address.clone();
    assert_eq!(router, "127.16.1.2:30042");
    let services: ServicesResponse = daemon.grpc(SERVICES_METHOD, ServicesRequest {}).await.unwrap();
    assert_eq!(services.services["control"].services[0].uri, "127.16.1.1:30252");

    let destination_isd_as = number("1-ff00:0:112").to_u64();
    let request = PathsRequest { source_isd_as: 0, destination_isd_as, refresh: false, hidden: false };
    let found: PathsResponse = daemon.grpc(PATHS_METHOD, request).await.unwrap();
    assert_eq!(found.paths.len(), 2);
    let over_core = &found.paths[1];
    assert_eq!((over_core.interfaces.len(), over_core.mtu), (4, 1400));
    assert_eq!(over_core.latency[0].nanos, 10_000_000);
    // The first link has a rate; the core AS holds nothing up; the last link claims nothing.
    assert_eq!(over_core.bandwidth, [8000, RATE_BPS_MAX / 1000, 0]);
    let next_hop = over_core.interface.as_ref().unwrap().address.as_ref().unwrap().address.clone();
    assert_eq!(next_hop, router);
    let expiry = SystemTime::UNIX_EPOCH + Duration::from_secs(over_core.expiration.unwrap().seconds as u64);
    assert!(expiry > SystemTime::now() + limits::SEGMENT_LIFETIME_DEFAULT / 2);

    // An application met a dead link: this daemon leaves it out.
    let down = NotifyInterfaceDownRequest { isd_as: number("1-ff00:0:110").to_u64(), id: 1 };
    let _: NotifyInterfaceDownResponse = daemon.grpc(NOTIFY_INTERFACE_DOWN_METHOD, down).await.unwrap();
    let found: PathsResponse = daemon.grpc(PATHS_METHOD, request).await.unwrap();
    assert_eq!(found.paths.len(), 1);
}

#[tokio::test]
async fn the_daemon_says_what_is_wrong() {
    let daemon = start(Role::Daemon).await;
    let status = daemon.grpc::<_, ()>("/proto.daemon.v1.DaemonService/Nonsense", ()).await.unwrap_err();
    assert_eq!(status.code, Status::UNIMPLEMENTED);
    let request = PathsRequest { source_isd_as: 5, destination_isd_as: 6, ..PathsRequest::default() };
    let status = daemon.grpc::<_, PathsResponse>(PATHS_METHOD, request).await.unwrap_err();
    assert_eq!(status.code, Status::INVALID_ARGUMENT);
    assert!(status.message.contains("ask the daemon there"), "{status}");
    let status = daemon.grpc::<_, AsResponse>(AS_METHOD, AsRequest { isd_as: 77 }).await.unwrap_err();
    assert_eq!(status.code, Status::NOT_FOUND);
    let status = daemon.grpc_raw(AS_METHOD, vec![0; 3]).await.unwrap_err();
    assert_eq!(status.code, Status::INVALID_ARGUMENT);
    let fits = daemon.grpc_raw(AS_METHOD, vec![0; limits::REQUEST_BYTES_MAX]).await.unwrap_err();
    assert!(fits.message.contains("no single gRPC message"), "{fits}");
    let long = daemon.grpc_raw(AS_METHOD, vec![0; limits::REQUEST_BYTES_MAX + 1]).await.unwrap_err();
    assert!(long.message.contains("longer than"), "{long}");
    // The control service's method is not the daemon's.
    let status = daemon.grpc::<_, ()>(SEGMENTS_METHOD, ()).await.unwrap_err();
    assert_eq!(status.code, Status::UNIMPLEMENTED);
}

#[tokio::test]
async fn segments_are_answered_by_grpc_and_by_connect() {
    let control = start(Role::Control).await;
    let src_isd_as = number("1-ff00:0:111").to_u64();
    let request = SegmentsRequest { src_isd_as, dst_isd_as: number("1-0").to_u64() };
    let by_grpc: SegmentsResponse = control.grpc(SEGMENTS_METHOD, request).await.unwrap();
    let segment = Segment::from_proto(&by_grpc.segments[&1].segments[0]).unwrap();
    assert_eq!(segment.last(), number("1-ff00:0:111"));

    let post = |content_type: &str, body: Vec<u8>| {
        Request::post(SEGMENTS_METHOD)
            .header("host", "127.0.0.1")
            .header("content-type", content_type)
            .body(body.into())
            .unwrap()
    };
    let (status, body) = control.http(post(CONNECT_CONTENT_TYPE, request.encode_to_vec())).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(SegmentsResponse::decode(body).unwrap().segments.len(), 1);

    let confused = SegmentsRequest { src_isd_as: request.dst_isd_as, dst_isd_as: src_isd_as };
    let refused = control.grpc::<_, SegmentsResponse>(SEGMENTS_METHOD, confused).await.unwrap_err();
    assert!(refused.message.contains("invalid request"), "{refused}");
    let (status, body) = control.http(post(CONNECT_CONTENT_TYPE, confused.encode_to_vec())).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(body.starts_with(b"{\"code\":\"unknown\""), "{body:?}");
    let (status, _) = control.http(post("text/html", Vec::new())).await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

#[tokio::test]
async fn the_control_service_hands_out_its_topology() {
    let control = start(Role::Control).await;
    let get = |path: &str| Request::get(path).header("host", "127.0.0.1").body(Full::default()).unwrap();
    let (status, body) = control.http(get("/topology")).await;
    assert_eq!(status, StatusCode::OK);
    let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(value["isd_as"], "1-ff00:0:111");
    assert_eq!(value["dispatched_ports"], "31000-32767");
    assert_eq!(value["control_service"]["cs1-ff00_0_111-1"]["addr"], "127.16.1.1:30252");
    let interfaces = &value["border_routers"]["br1-ff00_0_111-1"]["interfaces"];
    assert_eq!(interfaces["41"]["link_to"], "parent");
    assert_eq!(interfaces["41"]["underlay"]["remote"], "127.16.0.2:20000");
    assert_eq!(interfaces["1"]["remote_interface_id"], 2);
    assert_eq!(control.http(get("/nonsense")).await.0, StatusCode::NOT_FOUND);
    let topology = Topology::from_toml("net", TOPOLOGY).unwrap();
    let core = topology_json(&topology, topology.get(number("1-ff00:0:110")).unwrap());
    assert_eq!(serde_json::from_str::<serde_json::Value>(&core).unwrap()["attributes"][0], "core");
}

#[tokio::test]
async fn a_service_stops_with_its_connections() {
    let daemon = start(Role::Daemon).await;
    let mut idle = TcpStream::connect(daemon.address).await.unwrap();
    let _: AsResponse = daemon.grpc(AS_METHOD, AsRequest { isd_as: 0 }).await.unwrap();
    daemon.stop.send(true).unwrap();
    daemon.task.await.unwrap();
    let mut byte = [0];
    assert!(matches!(tokio::io::AsyncReadExt::read(&mut idle, &mut byte).await, Ok(0) | Err(_)));
    assert!(TcpStream::connect(daemon.address).await.is_err());
}

#[tokio::test]
async fn more_connections_than_the_limit_wait_their_turn() {
    let daemon = start(Role::Daemon).await;
    let mut open = Vec::new();
    for _ in 0..limits::CONNECTIONS_MAX {
        open.push(TcpStream::connect(daemon.address).await.unwrap());
    }
    let call = daemon.grpc::<_, AsResponse>(AS_METHOD, AsRequest { isd_as: 0 });
    tokio::pin!(call);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut call).await.is_err());
    open.pop();
    assert!(call.await.is_ok());
}
