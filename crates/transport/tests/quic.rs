//! QUIC over loopback: what is sent arrives, and who calls wrongly is told so.

use std::collections::HashSet;
use std::future::poll_fn;
use std::io::{self, IoSlice, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anabranch_paths::Endpoint;
use anabranch_transport::{Congestion, ConnectError, Identity, QuicEndpoint, QuicOptions, QuicStream};

fn anywhere() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn endpoint_with(identity: &Identity, options: &QuicOptions) -> QuicEndpoint {
    QuicEndpoint::bind(anywhere(), identity, options).unwrap()
}

fn endpoint() -> QuicEndpoint {
    endpoint_with(&Identity::ephemeral().unwrap(), &QuicOptions::default())
}

fn address(endpoint: &QuicEndpoint) -> Endpoint {
    endpoint.local()
}

async fn send_all(stream: &QuicStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        poll_fn(|cx| stream.poll_send_ready(cx)).await?;
        match stream.try_send(&[IoSlice::new(bytes)], false) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    poll_fn(|cx| stream.poll_send_ready(cx)).await
}

/// Receives into two pieces, so that they are scattered to.
async fn receive(stream: &QuicStream, len: usize) -> io::Result<Vec<u8>> {
    let mut received = vec![0; len];
    let mut at = 0;
    while at < len {
        poll_fn(|cx| stream.poll_recv_ready(cx)).await?;
        let (one, other) = received[at..].split_at_mut((len - at).min(1000));
        let mut iovecs =
            [one, other].map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        // SAFETY: the entries describe `received`, which outlives the call and is ours alone.
        match unsafe { stream.try_recv(&mut iovecs) } {
            Ok(0) => break,
            Ok(len) => at += len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    received.truncate(at);
    Ok(received)
}

/// Two connected streams; the caller's first byte made the listener's.
async fn pair(caller: &QuicEndpoint, listener: &QuicEndpoint) -> (QuicStream, QuicStream) {
    let near = caller.connect(address(listener), None).await.unwrap();
    send_all(&near, b"!").await.unwrap();
    let far = listener.accept().await.unwrap();
    assert_eq!(receive(&far, 1).await.unwrap(), b"!");
    (near, far)
}

/// Relays a caller's packets, and of the answers those alone that send it back for a proof of its address (RFC 9000 §17.2.5): it calls
/// from where it says, and never goes on.
async fn relay_of_silence(to: SocketAddr) -> SocketAddr {
    let bound = || tokio::net::UdpSocket::bind(anywhere());
    let (near, far) = (bound().await.unwrap(), bound().await.unwrap());
    let at = near.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut call, mut answer, mut caller) = ([0; 2048], [0; 2048], None);
        loop {
            tokio::select! {
                received = near.recv_from(&mut call) => {
                    let (len, from) = received.unwrap();
                    caller = Some(from);
                    far.send_to(&call[..len], to).await.unwrap();
                }
                received = far.recv_from(&mut answer) => {
                    let (len, _) = received.unwrap();
                    if let Some(caller) = caller.filter(|_| answer[0] & 0xf0 == 0xf0) {
                        near.send_to(&answer[..len], caller).await.unwrap();
                    }
                }
            }
        }
    });
    at
}

#[tokio::test]
async fn callers_that_never_go_on_keep_nobody_out() {
    // More than there are places.
    const CROWD: usize = 300;
    let (crowd, caller, listener) = (Arc::new(endpoint()), endpoint(), endpoint());
    let silent = relay_of_silence(address(&listener).as_ip().unwrap()).await;
    for _ in 0..CROWD {
        let crowd = Arc::clone(&crowd);
        tokio::spawn(async move { crowd.connect(silent.into(), None).await.map(drop) });
    }
    // Long enough for each to call and to come back with its proof, and less than a place is kept without a word.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for _ in 0..3 {
        pair(&caller, &listener).await;
    }
}

#[tokio::test]
async fn both_ends_know_each_other_and_hear_each_other() {
    let (alice, bob) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let caller = endpoint_with(&alice, &QuicOptions::default());
    let listener = endpoint_with(&bob, &QuicOptions::default());
    let (near, far) = pair(&caller, &listener).await;
    assert_eq!((near.node_id(), far.node_id()), (bob.node_id(), alice.node_id()));
    assert_eq!(near.peer().endpoint, address(&listener));
    assert_eq!(near.peer().path.local(), far.peer().path.remote());
    send_all(&near, b"ping").await.unwrap();
    assert_eq!(receive(&far, 4).await.unwrap(), b"ping");
    send_all(&far, b"pong").await.unwrap();
    assert_eq!(receive(&near, 4).await.unwrap(), b"pong");
}

#[tokio::test]
async fn bulk_arrives_whole_with_either_congestion_control_and_packets_grow() {
    for congestion in [Congestion::Cubic, Congestion::Bbr] {
        let options = QuicOptions { congestion, ..QuicOptions::default() };
        let identity = Identity::ephemeral().unwrap();
        let (caller, listener) = (endpoint_with(&identity, &options), endpoint_with(&identity, &options));
        let (near, far) = pair(&caller, &listener).await;
        let content: Vec<u8> = (0..20_000_000u32).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
        let (sent, received) = tokio::join!(send_all(&near, &content), receive(&far, content.len()));
        sent.unwrap();
        assert!(received.unwrap() == content, "{congestion:?}");
        let stats = near.stats().unwrap();
        assert!(stats.mtu_bytes > 1200, "{stats:?}");
        assert!(stats.sent_bytes > content.len() as u64, "{stats:?}");
        assert!(stats.rtt > Duration::ZERO && stats.cwnd_bytes > 0 && stats.delivery_rate_bytes > 0, "{stats:?}");
        assert!(far.stats().unwrap().received_bytes > content.len() as u64);
    }
}

#[tokio::test]
async fn files_follow_their_headers() {
    let (caller, listener) = (endpoint(), endpoint());
    let (near, far) = pair(&caller, &listener).await;
    let mut file = tempfile::tempfile().unwrap();
    let content: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
    file.write_all(&content).unwrap();
    let sending = async {
        near.set_cork(true).unwrap();
        assert_eq!(near.try_send(&[IoSlice::new(b"head"), IoSlice::new(b"er")], true).unwrap(), 6);
        let mut at = 0;
        while at < content.len() {
            poll_fn(|cx| near.poll_send_ready(cx)).await.unwrap();
            at += match near.try_send_file(&file, at as u64, content.len() - at) {
                Ok(sent) => sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => panic!("{error}"),
            };
        }
        assert_eq!(near.try_send_file(&file, at as u64, 1).unwrap(), 0, "the end of the file");
        near.set_cork(false).unwrap();
        poll_fn(|cx| near.poll_send_ready(cx)).await.unwrap();
        assert!(near.flush().unwrap());
    };
    let ((), received) = tokio::join!(sending, receive(&far, content.len() + 6));
    let received = received.unwrap();
    assert_eq!(&received[..6], b"header");
    assert!(received[6..] == content);
}

#[tokio::test]
async fn what_was_written_arrives_though_the_writer_left() {
    let (caller, listener) = (endpoint(), endpoint());
    let (near, far) = pair(&caller, &listener).await;
    assert!(near.try_send(&[IoSlice::new(&[7; 100_000])], true).unwrap() == 100_000);
    drop(near);
    assert_eq!(receive(&far, 200_000).await.unwrap(), [7; 100_000]);
}

#[tokio::test]
async fn a_pinned_key_is_insisted_on() {
    let (alice, bob, carol) =
        (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let caller = endpoint_with(&alice, &QuicOptions::default());
    let listener = endpoint_with(&bob, &QuicOptions::default());
    assert!(caller.connect(address(&listener), Some(bob.node_id())).await.is_ok());
    let error = caller.connect(address(&listener), Some(carol.node_id())).await.unwrap_err();
    assert!(matches!(error, ConnectError::WrongKey { expected, found, .. }
        if expected == carol.node_id() && found == bob.node_id()));
    for word in [bob.node_id().to_string(), carol.node_id().to_string(), "leave the key out".to_owned()] {
        assert!(error.to_string().contains(&word), "{error}");
    }
}

#[tokio::test]
async fn a_caller_that_is_not_admitted_is_told_why() {
    let (alice, bob) = (Identity::ephemeral().unwrap(), Identity::ephemeral().unwrap());
    let options = QuicOptions { allowed: Some(HashSet::from([alice.node_id()])), ..QuicOptions::default() };
    let listener = endpoint_with(&Identity::ephemeral().unwrap(), &options);
    let welcome = endpoint_with(&alice, &QuicOptions::default());
    pair(&welcome, &listener).await;
    let stranger = endpoint_with(&bob, &QuicOptions::default());
    let error = match stranger.connect(address(&listener), None).await {
        Ok(stream) => receive(&stream, 1).await.unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    assert!(error.contains(&bob.node_id().to_string()) && error.contains("not admitted"), "{error}");
}

#[tokio::test]
async fn a_caller_with_another_protocol_is_told_so() {
    let listener = endpoint();
    let options = QuicOptions { protocol: b"h3".to_vec(), ..QuicOptions::default() };
    let caller = endpoint_with(&Identity::ephemeral().unwrap(), &options);
    let error = caller.connect(address(&listener), None).await.unwrap_err();
    assert!(matches!(error, ConnectError::WrongProtocol { .. }), "{error:?}");
    assert!(error.to_string().contains("does not speak h3"), "{error}");
}

#[tokio::test]
async fn who_closes_says_so() {
    let (caller, listener) = (endpoint(), endpoint());
    let (near, far) = pair(&caller, &listener).await;
    drop(near);
    assert_eq!(receive(&far, 1).await.unwrap(), b"", "closing in order is the end of the stream");
    let (near, far) = pair(&caller, &listener).await;
    listener.close().await;
    let error = receive(&near, 1).await.unwrap_err();
    assert!(error.to_string().contains("the node stops"), "{error}");
    assert!(receive(&far, 1).await.is_err());
    assert!(listener.accept().await.is_none());
}

/// Passes datagrams on in both directions until it is told to be silent.
fn relay(to: SocketAddr, silent: Arc<AtomicBool>) -> SocketAddr {
    let near = std::net::UdpSocket::bind(anywhere()).unwrap();
    let far = std::net::UdpSocket::bind(anywhere()).unwrap();
    let address = near.local_addr().unwrap();
    let caller = Arc::new(Mutex::new(None));
    let (near_back, far_back, silent_back, called_back) =
        (near.try_clone().unwrap(), far.try_clone().unwrap(), Arc::clone(&silent), Arc::clone(&caller));
    for socket in [&near, &far] {
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    }
    std::thread::spawn(move || {
        let mut bytes = [0; 65_536];
        while !silent.load(Ordering::Relaxed) {
            let Ok((len, from)) = near.recv_from(&mut bytes) else { continue };
            *caller.lock().unwrap() = Some(from);
            far.send_to(&bytes[..len], to).unwrap();
        }
    });
    std::thread::spawn(move || {
        let mut bytes = [0; 65_536];
        while !silent_back.load(Ordering::Relaxed) {
            let Ok((len, _)) = far_back.recv_from(&mut bytes) else { continue };
            let caller = *called_back.lock().unwrap();
            near_back.send_to(&bytes[..len], caller.unwrap()).unwrap();
        }
    });
    address
}

#[tokio::test]
async fn who_vanishes_is_missed_at_both_ends() {
    let (caller, listener) = (endpoint(), endpoint());
    let silent = Arc::new(AtomicBool::new(false));
    let between = relay(listener.local().socket_addr(), Arc::clone(&silent));
    let near = caller.connect(between.into(), None).await.unwrap();
    send_all(&near, b"!").await.unwrap();
    let far = listener.accept().await.unwrap();
    assert_eq!(receive(&far, 1).await.unwrap(), b"!");
    silent.store(true, Ordering::Relaxed);
    let (near, far) = tokio::join!(receive(&near, 1), receive(&far, 1));
    assert_eq!(near.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(far.unwrap_err().kind(), io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn nobody_there_is_an_error_that_names_whom() {
    // A socket that never answers: bound, so that nobody else is there.
    let silent = std::net::UdpSocket::bind(anywhere()).unwrap();
    let nowhere = Endpoint::from(silent.local_addr().unwrap());
    tokio::time::pause();
    let caller = endpoint();
    let error = caller.connect(nowhere, None).await.unwrap_err();
    assert!(error.to_string().contains(&nowhere.to_string()), "{error}");
}
