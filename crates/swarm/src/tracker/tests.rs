//! Our client against our server, and against trackers that misbehave, all on loopback.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anabranch_bittorrent::tracker::{Event, Retry};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;

const HASH: InfoHash = [0x1f; 20];

fn request(port: u16, left_bytes: u64) -> AnnounceRequest {
    AnnounceRequest { left_bytes, ..AnnounceRequest::new(HASH, [port as u8; 20], port, Event::Started) }
}

/// Short times, so that what is to time out does so soon; nothing that is to work depends on them.
fn client() -> Client {
    Client::new(ClientConfig {
        http_timeout: Duration::from_millis(600),
        udp_timeout: Duration::from_secs(5),
        udp_retransmit_first: Duration::from_millis(100),
        ..ClientConfig::default()
    })
}

/// A client that never gives up within a test.
fn patient() -> Client {
    Client::new(ClientConfig::default())
}

fn has_ipv6() -> bool {
    std::net::UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

fn url(text: &str) -> TrackerUrl {
    text.parse().unwrap()
}

struct Running {
    port: u16,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Running {
    async fn start(ip: IpAddr, options: ServerOptions) -> Running {
        let server = TrackerServer::bind((ip, 0).into(), options).await.unwrap();
        let port = server.local_addrs()[0].port();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.run(async { drop(stopped.await) }));
        Running { port, stop: Some(stop), task }
    }

    async fn stop(mut self) {
        drop(self.stop.take());
        self.task.await.unwrap();
    }
}

/// Answers every TCP connection on 127.0.0.1 with `answer` once it has read something, then closes.
async fn canned(answer: Vec<u8>) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(&answer).await;
        }
    });
    port
}

async fn cause_of(answer: impl AsRef<[u8]>) -> Cause {
    let port = canned(answer.as_ref().to_vec()).await;
    patient().announce(&url(&format!("http://127.0.0.1:{port}/announce")), &request(1, 1)).await.unwrap_err().cause
}

#[tokio::test]
async fn peers_find_each_other_over_both_forms_and_families() {
    let mut ips = vec![IpAddr::from(Ipv4Addr::LOCALHOST)];
    if has_ipv6() {
        ips.push(Ipv6Addr::LOCALHOST.into());
    }
    for ip in ips {
        let server = Running::start(ip, ServerOptions::default()).await;
        let addr = SocketAddr::new(ip, server.port);
        let client = patient();
        let (http, udp) = (url(&format!("http://{addr}/announce")), url(&format!("udp://{addr}/announce")));
        let first = client.announce(&http, &request(6001, 0)).await.unwrap();
        assert_eq!((first.peers.len(), first.complete, first.external_ip), (0, Some(1), Some(ip)));
        let second = client.announce(&udp, &request(6002, 5)).await.unwrap();
        assert_eq!(second.peers, [SocketAddr::new(ip, 6001).into()]);
        let third = client.announce(&http, &request(6003, 5)).await.unwrap();
        assert_eq!(third.peers.len(), 2);
        for url in [&http, &udp] {
            let scraped = client.scrape(url, &[HASH]).await.unwrap();
            assert_eq!(scraped, [(HASH, ScrapeEntry { complete: 1, downloaded: 0, incomplete: 2 })]);
        }
        let stopped = AnnounceRequest { event: Event::Stopped, ..request(6001, 0) };
        assert_eq!(client.announce(&udp, &stopped).await.unwrap().complete, Some(0));
        server.stop().await;
    }
}

#[tokio::test]
async fn peers_over_scion_find_each_other_over_both_forms_and_others_see_none() {
    let server = Running::start(Ipv4Addr::LOCALHOST.into(), ServerOptions::default()).await;
    let client = patient();
    let scion = ["[1-ff00:0:110,10.0.0.1]:6881", "[1-ff00:0:111,::1]:6881"].map(|text| text.parse().unwrap());
    for (number, form) in ["http", "udp"].into_iter().enumerate() {
        let url = url(&format!("{form}://127.0.0.1:{}/announce?key=1", server.port));
        let port = 6001 + number as u16;
        let ours = AnnounceRequest { scion: Some(vec![scion[number]]), ..request(port, 5) };
        client.announce(&url, &ours).await.unwrap();
        let asks = AnnounceRequest { scion: Some(Vec::new()), ..request(6003, 5) };
        let told = client.announce(&url, &asks).await.unwrap().peers;
        let mut told: Vec<_> = told.iter().filter_map(|peer| peer.as_scion()).collect();
        told.sort();
        assert_eq!(told, scion[..=number], "{form}");
        let told = client.announce(&url, &request(6004, 5)).await.unwrap().peers;
        assert!(told.iter().all(|peer| peer.as_ip().is_some()), "{form}: {told:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_tracker_with_addresses_of_both_families_hears_from_us_over_both() {
    if !has_ipv6() {
        eprintln!("skipped: no IPv6 here");
        return;
    }
    let server = Running::start(Ipv6Addr::UNSPECIFIED.into(), ServerOptions::default()).await;
    let client = patient();
    let addrs: Vec<SocketAddr> =
        vec![(Ipv6Addr::LOCALHOST, server.port).into(), (Ipv4Addr::LOCALHOST, server.port).into()];
    for scheme in ["http", "udp"] {
        let url = url(&format!("{scheme}://tracker.example:{}/announce", server.port));
        client.0.announce_over(&url, &request(6001, 0), addrs.clone()).await.unwrap();
        let mut peers = client.0.announce_over(&url, &request(6002, 5), addrs.clone()).await.unwrap().peers;
        peers.retain(|peer| peer.socket_addr().port() == 6001); // HTTP names our other half too.
        peers.sort();
        assert_eq!(peers, ["127.0.0.1:6001".parse().unwrap(), "[::1]:6001".parse().unwrap()], "{scheme}");
    }
    // One family's failure is not the tracker's.
    let addrs = vec![(Ipv6Addr::LOCALHOST, 1).into(), addrs[1]];
    client.0.announce_over(&url("udp://tracker.example:1"), &request(6003, 5), addrs).await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn many_announces_share_one_socket_and_one_connection_id() {
    let server = Running::start(Ipv4Addr::LOCALHOST.into(), ServerOptions::default()).await;
    let url = url(&format!("udp://127.0.0.1:{}", server.port));
    // A burst may overrun the kernel's buffer: what is lost is sent again, soon.
    let udp_retransmit_first = Duration::from_millis(200);
    let client = Client::new(ClientConfig { udp_retransmit_first, ..ClientConfig::default() });
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..1000u16 {
        let (client, url) = (client.clone(), url.clone());
        let mut info_hash = HASH;
        info_hash[..2].copy_from_slice(&n.to_be_bytes());
        tasks.spawn(async move { client.announce(&url, &AnnounceRequest { info_hash, ..request(9, 1) }).await });
    }
    let results = tasks.join_all().await;
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(client.0.sessions.len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn http_announces_at_once_are_bounded() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = url(&format!("http://{}/announce", listener.local_addr().unwrap()));
    let client = patient();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..HTTP_ANNOUNCES_MAX + 10 {
        let (client, url) = (client.clone(), url.clone());
        tasks.spawn(async move { client.announce(&url, &request(9, 1)).await });
    }
    let mut held = Vec::new();
    while held.len() < HTTP_ANNOUNCES_MAX {
        held.push(listener.accept().await.unwrap().0);
    }
    // The rest come only when places are free.
    assert!(tokio::time::timeout(Duration::from_millis(100), listener.accept()).await.is_err());
    held.clear();
    for _ in 0..10 {
        drop(listener.accept().await.unwrap());
    }
    assert!(tasks.join_all().await.iter().all(Result::is_err));
}

#[tokio::test]
async fn udp_sockets_are_bounded() {
    let sessions = udp::Sessions::default();
    for port in 1..=udp::SESSIONS_MAX as u16 + 10 {
        sessions
            .get(&UdpTarget::Address((Ipv4Addr::LOCALHOST, port).into()), &TrackerAccess::default())
            .await
            .map(drop)
            .unwrap();
    }
    assert_eq!(sessions.len(), udp::SESSIONS_MAX);
}

#[tokio::test]
async fn nothing_listening_is_told_at_once() {
    let port = {
        let tcp = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        tcp.local_addr().unwrap().port()
    };
    for scheme in ["http", "udp"] {
        let url = url(&format!("{scheme}://127.0.0.1:{port}/secret-key/announce"));
        let error = patient().announce(&url, &request(1, 1)).await.unwrap_err();
        assert!(matches!(error.cause, Cause::Refused), "{scheme}: {error}");
        let text = error.to_string();
        assert!(text.contains(&format!("{scheme}://127.0.0.1:{port}")) && !text.contains("secret"), "{text}");
    }
}

#[tokio::test]
async fn names_that_do_not_exist_are_told() {
    let error = patient().announce(&url("http://tracker.invalid/announce"), &request(1, 1)).await.unwrap_err();
    assert!(matches!(error.cause, Cause::Dns(_)), "{error}");
}

#[tokio::test]
async fn garbage_and_refusals_are_told_apart() {
    let ok = "HTTP/1.1 200 OK\r\n\r\n";
    assert!(matches!(cause_of("SSH-2.0-OpenSSH\r\n").await, Cause::Http(_)));
    assert!(matches!(cause_of("").await, Cause::Http(_)));
    assert!(matches!(cause_of(format!("{ok}<html>")).await, Cause::Reply(ReplyError::NotBencoded(_))));
    assert!(matches!(cause_of("HTTP/1.1 503 Busy\r\n\r\nbusy").await, Cause::Status(503)));
    let refusal = "HTTP/1.1 403 No\r\n\r\nd14:failure reason7:unknown8:retry in5:nevere";
    let port = canned(refusal.into()).await;
    let error = patient().announce(&url(&format!("http://127.0.0.1:{port}/a")), &request(1, 1)).await.unwrap_err();
    assert_eq!(error.retry(), Retry::Never);
    assert!(error.to_string().ends_with("the tracker refused: unknown"), "{error}");
    // Cut off in the middle.
    assert!(matches!(cause_of("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nd8:").await, Cause::Http(_)));
    assert!(matches!(
        cause_of(format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\nde", "x".repeat(64 << 10))).await,
        Cause::Http(_)
    ));
}

#[tokio::test]
async fn bodies_are_read_up_to_the_limit() {
    let body = |length: usize| {
        let mut body = b"HTTP/1.0 200 OK\r\n\r\nd8:intervali60e5:peers0:e".to_vec();
        body.resize(b"HTTP/1.0 200 OK\r\n\r\n".len() + length, b' ');
        body
    };
    let port = canned(body(http_form::BODY_BYTES_MAX)).await;
    let reply = patient().announce(&url(&format!("http://127.0.0.1:{port}/a")), &request(1, 1)).await.unwrap();
    assert_eq!(reply.interval, Some(Duration::from_secs(60)));
    assert!(matches!(cause_of(body(http_form::BODY_BYTES_MAX + 1)).await, Cause::TooLarge(_)));
    // Nor is there more to read of what belongs to no body.
    assert!(matches!(cause_of("HTTP/1.1 100 Continue\r\n\r\n".repeat(100_000)).await, Cause::TooLarge(_)));
    let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned() + &"1\r\nd\r\n".repeat(400_000);
    assert!(matches!(cause_of(chunks).await, Cause::TooLarge(_)));
}

#[tokio::test]
async fn redirects_are_followed_and_bounded() {
    let server = Running::start(Ipv4Addr::LOCALHOST.into(), ServerOptions::default()).await;
    let redirect =
        |to: String| canned(format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n").into());
    let target = http_form::announce_target(&url("http://t/announce"), &request(7, 1));
    let port = redirect(format!("http://127.0.0.1:{}{target}", server.port)).await;
    patient().announce(&url(&format!("http://127.0.0.1:{port}/a")), &request(7, 1)).await.unwrap();
    server.stop().await;

    assert!(matches!(
        cause_of("HTTP/1.1 301 Moved\r\nLocation: /again\r\n\r\n").await,
        Cause::Redirects(REDIRECTS_MAX)
    ));
    assert!(matches!(cause_of("HTTP/1.1 301 Moved\r\nLocation: udp://t:1/\r\n\r\n").await, Cause::RedirectUnfit));
    assert!(matches!(cause_of("HTTP/1.1 301 Moved\r\nLocation: ftp://t/\r\n\r\n").await, Cause::RedirectUnfit));
}

#[tokio::test]
async fn a_tracker_that_never_ends_its_answer_is_left() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let drip = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        while stream.write_all(b"d").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let error = client().announce(&url(&format!("http://127.0.0.1:{port}/a")), &request(1, 1)).await.unwrap_err();
    assert!(matches!(error.cause, Cause::Timeout(_)), "{error}");
    drip.await.unwrap(); // Our end was closed, or this would never return.
}

#[tokio::test]
async fn lost_datagrams_are_sent_again_and_strange_ones_ignored() {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = socket.local_addr().unwrap().port();
    let tracker = tokio::spawn(async move {
        let mut buffer = [0; 4096];
        let (mut connects, mut announces) = (0, 0);
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            socket.send_to(b"?", from).await.unwrap();
            socket.send_to(&[0xff; 100], from).await.unwrap();
            match udp_form::parse_request(&buffer[..length]).unwrap() {
                udp_form::Request::Connect { transaction } => {
                    connects += 1;
                    if connects > 1 {
                        socket.send_to(&udp_form::connect_reply(transaction, connects), from).await.unwrap();
                    }
                }
                udp_form::Request::Announce { transaction, connection, url_data, .. } => {
                    announces += 1;
                    assert_eq!(url_data, b"/announce?key=1");
                    if announces > 1 {
                        let bytes = udp_form::announce_reply(transaction, Duration::from_secs(60), 1, 2, &[], &[]);
                        socket.send_to(&bytes, from).await.unwrap();
                        return (connects, announces, connection);
                    }
                }
                udp_form::Request::Scrape { .. } => panic!("nobody scrapes here"),
            }
        }
    });
    let url = url(&format!("udp://127.0.0.1:{port}/announce?key=1"));
    let reply = client().announce(&url, &request(1, 1)).await.unwrap();
    assert_eq!((reply.complete, reply.incomplete), (Some(1), Some(2)));
    // The unanswered announce cost its connection id, so a third connect came before the second announce.
    assert_eq!(tracker.await.unwrap(), (3, 2, 3));
}

#[tokio::test]
async fn what_a_udp_tracker_sends_unasked_keeps_no_answer_away() {
    /// More than the kernel keeps of a socket's datagrams.
    const FLOOD: usize = 2000;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = socket.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            let answer = match udp_form::parse_request(&buffer[..length]).unwrap() {
                udp_form::Request::Connect { transaction } => udp_form::connect_reply(transaction, 7),
                udp_form::Request::Announce { transaction, .. } => {
                    udp_form::announce_reply(transaction, Duration::from_secs(60), 1, 2, &[], &[])
                }
                udp_form::Request::Scrape { .. } => panic!("nobody scrapes here"),
            };
            socket.send_to(&answer, from).await.unwrap();
            for _ in 0..FLOOD {
                let _ = socket.try_send_to(&[0xff; 1400], from);
            }
        }
    });
    let (client, url) = (client(), url(&format!("udp://127.0.0.1:{port}")));
    for _ in 0..3 {
        client.announce(&url, &request(1, 1)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_udp_tracker_gets_the_documented_sendings() {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let url = url(&format!("udp://{}", socket.local_addr().unwrap()));
    let error = patient().announce(&url, &request(1, 1)).await.unwrap_err();
    assert!(matches!(error.cause, Cause::Timeout(UDP_TIMEOUT)), "{error}");
    // At 0, 15 and 45 s; the next would be at 105 s.
    let received = std::iter::from_fn(|| socket.recv(&mut [0; 64]).ok()).count();
    assert_eq!(received, 3);
}

#[tokio::test]
async fn a_restarted_tracker_is_found_again() {
    let first = Running::start(Ipv4Addr::LOCALHOST.into(), ServerOptions::default()).await;
    let addr = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), first.port);
    let url = url(&format!("udp://{addr}"));
    let client = client();
    client.announce(&url, &request(1, 1)).await.unwrap();
    first.stop().await;
    let error = client.announce(&url, &request(1, 1)).await.unwrap_err();
    assert!(matches!(error.cause, Cause::Refused), "{error}");
    // Another secret: the id that the client holds is worth nothing now.
    let server = TrackerServer::bind(addr, ServerOptions::default()).await.unwrap();
    let (_stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(server.run(async { drop(stopped.await) }));
    client.announce(&url, &request(1, 1)).await.unwrap();
}

#[tokio::test]
async fn slow_clients_lose_their_place() {
    let options = ServerOptions {
        connections_max: 2,
        connection_timeout: Duration::from_millis(200),
        ..ServerOptions::default()
    };
    let server = Running::start(Ipv4Addr::LOCALHOST.into(), options).await;
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port)).await.unwrap();
        stream.write_all(b"GET /announce HTTP/1.1\r\nX: ").await.unwrap();
        slow.push(stream);
    }
    // All places are taken until the slow ones are thrown out.
    let url = url(&format!("http://127.0.0.1:{}/announce", server.port));
    patient().announce(&url, &request(1, 1)).await.unwrap();
    for mut stream in slow {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await; // Ends, or the test would hang.
    }
    server.stop().await;
}

#[tokio::test]
async fn idle_connections_keep_nobody_out() {
    let options =
        ServerOptions { connections_max: 4, connection_timeout: Duration::from_secs(600), ..ServerOptions::default() };
    let server = Running::start(Ipv4Addr::LOCALHOST.into(), options).await;
    let connect = async |host: u8| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, host], 0).into()).unwrap();
        socket.connect((Ipv4Addr::LOCALHOST, server.port).into()).await.unwrap()
    };
    let ask = async |stream: &mut TcpStream| {
        stream.write_all(b"GET /stats HTTP/1.1\r\nHost: t\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 200")
    };
    // One host fills all places again and again; another's connection is older than all of those, and stays.
    let mut honest = connect(2).await;
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(connect(3).await);
    }
    let mut late = connect(4).await;
    assert!(ask(&mut late).await && ask(&mut honest).await);
    server.stop().await;
}

#[tokio::test]
async fn behind_a_proxy_nobody_claims_anothers_address() {
    let announce = async |is_behind_proxy: bool, header: &str, more: &str| {
        let options = ServerOptions { is_behind_proxy, ..ServerOptions::default() };
        let server = Running::start(Ipv4Addr::LOCALHOST.into(), options).await;
        let target = http_form::announce_target(&url("http://t/announce"), &request(7, 1));
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port)).await.unwrap();
        let head = format!("GET {target}{more} HTTP/1.1\r\nHost: t\r\n{header}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        server.stop().await;
        let body = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        http_form::parse_announce_reply(&answer[body..]).map(|reply| reply.external_ip.unwrap().to_string())
    };
    let forwarded = "X-Forwarded-For: 10.9.9.9, 192.0.2.7\r\n";
    assert_eq!(announce(true, forwarded, "&ip=203.0.113.1").await.unwrap(), "192.0.2.7");
    for header in [forwarded, "X-Real-IP: 192.0.2.7\r\n", "Forwarded: for=192.0.2.7\r\n"] {
        let error = announce(false, header, "&ip=203.0.113.1").await.unwrap_err();
        assert!(error.to_string().contains("--behind-proxy"), "{error}");
    }
    assert!(announce(true, "X-Forwarded-For: unknown\r\n", "").await.is_err());
    assert_eq!(announce(true, "", "").await.unwrap(), "127.0.0.1");
}

#[tokio::test]
async fn the_server_answers_strange_requests() {
    let server = Running::start(Ipv4Addr::LOCALHOST.into(), ServerOptions::default()).await;
    let ask = async |request: &[u8]| {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port)).await.unwrap();
        let _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    assert!(ask(b"GET /stats HTTP/1.1\r\nHost: t\r\n\r\n").await.contains("\"contents\":0"));
    assert!(ask(b"POST /announce HTTP/1.1\r\nHost: t\r\n\r\n").await.starts_with("HTTP/1.1 405"));
    assert!(ask(b"GET /other HTTP/1.0\r\n\r\n").await.starts_with("HTTP/1.0 404"));
    assert!(ask(b"\0\0\0\0garbage\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    let huge = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(64 << 10));
    assert!(!ask(huge.as_bytes()).await.starts_with("HTTP/1.1 200"));
    // And still serves.
    assert!(ask(b"GET /stats HTTP/1.1\r\nHost: t\r\n\r\n").await.contains("\"contents\":0"));
    server.stop().await;
}

#[tokio::test]
async fn https_checks_the_certificate() {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = rustls::pki_types::PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nd8:intervali60e5:peers0:e").await;
                let _ = stream.shutdown().await;
            }
        }
    });
    let with_roots = |certs: &[rustls::pki_types::CertificateDer<'static>]| {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(certs.iter().cloned());
        let builder = rustls::ClientConfig::builder_with_provider(provider.clone());
        let tls = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        Client::new(ClientConfig { tls: Some(Arc::new(tls.with_no_client_auth())), ..ClientConfig::default() })
    };
    let url = url(&format!("https://localhost:{port}/announce"));
    let reply = with_roots(&[cert.der().clone()]).announce(&url, &request(1, 1)).await.unwrap();
    assert_eq!(reply.interval, Some(Duration::from_secs(60)));
    let error = with_roots(&[]).announce(&url, &request(1, 1)).await.unwrap_err();
    assert!(matches!(error.cause, Cause::Tls(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_family_that_leads_nowhere_withholds_nothing() {
    let works = async { Ok::<_, ()>(1) };
    let (one, two) = both(works, std::future::pending()).await;
    assert_eq!((one, two), (Some(Ok(1)), None));
    // A failure leaves the other all the time it needs.
    let slow = async {
        tokio::time::sleep(OTHER_FAMILY_GRACE * 2).await;
        Ok(2)
    };
    assert_eq!(both(async { Err(()) }, slow).await, (Some(Err(())), Some(Ok(2))));
}

/// Relays one caller's datagrams until told to end (RFC 1928).
async fn relay_once(listener: &TcpListener, end: oneshot::Receiver<()>) {
    tokio::select! {
        () = relay(listener) => {}
        _ = end => {}
    }
}

async fn relay(listener: &TcpListener) {
    let (mut control, _) = listener.accept().await.unwrap();
    control.read_exact(&mut [0; 3]).await.unwrap();
    control.write_all(&[5, 0]).await.unwrap();
    control.read_exact(&mut [0; 10]).await.unwrap();
    let (near, far) = (UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let port = near.local_addr().unwrap().port().to_be_bytes();
    control.write_all(&[&[5, 0, 0, 1, 0, 0, 0, 0][..], &port].concat()).await.unwrap();
    let (mut there, mut back) = ([0; 2048], [0; 2048]);
    let mut caller = None;
    loop {
        tokio::select! {
            Ok((length, from)) = near.recv_from(&mut there) => {
                // `localhost` by its name, and a port.
                assert_eq!(&there[..14], b"\0\0\0\x03\x09localhost");
                let port = u16::from_be_bytes([there[14], there[15]]);
                far.send_to(&there[16..length], (Ipv4Addr::LOCALHOST, port)).await.unwrap();
                caller = Some((from, port));
            }
            Ok((length, _)) = far.recv_from(&mut back) => {
                let Some((caller, port)) = caller else { continue };
                let head = [&[0, 0, 0, 1, 127, 0, 0, 1][..], &port.to_be_bytes()].concat();
                near.send_to(&[&head[..], &back[..length]].concat(), caller).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_relay_that_the_proxy_ended_is_asked_for_anew() {
    let tracker = Running::start(Ipv4Addr::LOCALHOST.into(), ServerOptions::default()).await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let through = |scheme: &str| {
        let proxy = format!("{scheme}://{}", listener.local_addr().unwrap()).parse().unwrap();
        let access = TrackerAccess { proxy: Some(Arc::new(proxy)), ..TrackerAccess::default() };
        Client::new(ClientConfig { access, ..ClientConfig::default() })
    };
    let url = url(&format!("udp://localhost:{}/announce", tracker.port));
    let client = through("socks5");
    for _ in 0..2 {
        let (end, ended) = oneshot::channel();
        let asking = async {
            let reply = client.announce(&url, &request(6881, 1)).await;
            drop(end);
            reply
        };
        let (reply, ()) = tokio::join!(asking, relay_once(&listener, ended));
        reply.unwrap();
    }
    let error = through("http").announce(&url, &request(6881, 1)).await.unwrap_err();
    assert!(matches!(error.cause, Cause::NoRelay), "{error}");
    tracker.stop().await;
}
