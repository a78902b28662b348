//! QUIC over SCION within one AS: the path is empty, everything else is as everywhere.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anabranch_paths::{Endpoint, ScionAddr, ScionPath};
use anabranch_transport::{ConnectError, Identity, QuicEndpoint, QuicOptions, QuicStream};

const AS: &str = "1-ff00:0:110";
/// How long anything may take on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(20);

fn endpoint() -> QuicEndpoint {
    let address = ScionAddr::new(AS.parse().unwrap(), "127.0.0.1:0".parse().unwrap());
    QuicEndpoint::bind_scion(address, 31000..=32767, &Identity::ephemeral().unwrap(), &QuicOptions::default()).unwrap()
}

fn inside(mtu: u16) -> Arc<ScionPath> {
    Arc::new(ScionPath::inside(AS.parse().unwrap(), mtu, SystemTime::now()))
}

#[tokio::test]
async fn streams_run_over_scion_and_stay_within_the_paths_mtu() {
    let (caller, listener) = (endpoint(), endpoint());
    let Endpoint::Scion(remote) = listener.local() else { panic!("no address of SCION") };
    let near = caller.connect_over(remote, &inside(1472), None).await.unwrap();
    assert!(near.try_send(&[IoSlice::new(b"hello")], false).unwrap() == 5);
    let far = listener.accept().await.unwrap();
    assert_eq!(far.peer().endpoint, caller.local());
    let content = vec![7; 5_000_000];
    let sending = async {
        let mut left = &content[..];
        while !left.is_empty() {
            poll_fn(|cx| near.poll_send_ready(cx)).await.unwrap();
            left = &left[near.try_send(&[IoSlice::new(left)], false).unwrap()..];
        }
        while !near.flush().unwrap() {
            poll_fn(|cx| near.poll_send_ready(cx)).await.unwrap();
        }
    };
    let receiving = async {
        let mut received = 0;
        let mut buffer = vec![0; 1 << 16];
        while received < content.len() + 5 {
            poll_fn(|cx| far.poll_recv_ready(cx)).await.unwrap();
            let mut iovec = [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() }];
            // SAFETY: the entry describes `buffer`, which outlives the call and is ours alone.
            match unsafe { far.try_recv(&mut iovec) } {
                Ok(0) => panic!("the stream ended early"),
                Ok(len) => received += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::join!(sending, receiving);
    let mtu_bytes = near.stats().unwrap().mtu_bytes;
    // 36 bytes of SCION and 8 of UDP headers leave 1428.
    assert!((1200..=1428).contains(&mtu_bytes), "{mtu_bytes}");
    near.route().unwrap().refresh(&inside(1472)).unwrap();
    assert!(!far.route().unwrap().is_ours());
}

#[tokio::test]
async fn a_path_too_narrow_for_quic_is_named() {
    let (caller, listener) = (endpoint(), endpoint());
    let Endpoint::Scion(remote) = listener.local() else { panic!("no address of SCION") };
    let error = caller.connect_over(remote, &inside(1200), None).await.unwrap_err();
    assert!(matches!(error, ConnectError::PathTooNarrow { needed: 1244, .. }), "{error:?}");
}

/// Sends `bytes` one way and waits for them at the other end.
async fn pass(from: &QuicStream, to: &QuicStream, bytes: &[u8]) {
    assert_eq!(from.try_send(&[IoSlice::new(bytes)], false).unwrap(), bytes.len());
    let mut received = Vec::new();
    while received.len() < bytes.len() {
        poll_fn(|cx| to.poll_recv_ready(cx)).await.unwrap();
        let mut buffer = [0; 64];
        let mut iovec = [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() }];
        // SAFETY: the entry describes `buffer`, which outlives the call and is ours alone.
        match unsafe { to.try_recv(&mut iovec) } {
            Ok(0) => panic!("the stream ended early"),
            Ok(len) => received.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(received, bytes);
}

// Both ends dial at once, over one path; the upper layer keeps one connection of the two.
#[tokio::test]
async fn a_connection_that_came_in_outlives_the_one_that_was_dialled_over_the_same_path() {
    let (one, other) = (endpoint(), endpoint());
    let (Endpoint::Scion(here), Endpoint::Scion(there)) = (one.local(), other.local()) else { panic!("no addresses") };
    let dialled = one.connect_over(there, &inside(1472), None).await.unwrap();
    pass(&dialled, &other.accept().await.unwrap(), b"first").await;
    let far = other.connect_over(here, &inside(1472), None).await.unwrap();
    let came_in = one.accept().await.unwrap();
    pass(&far, &came_in, b"second").await;
    assert_eq!(came_in.route().unwrap().id(), dialled.route().unwrap().id());
    let (gone, kept) = (dialled.route().unwrap(), came_in.route().unwrap());
    drop(dialled);
    gone.closed().await;
    drop(gone);
    // What it held is given back a moment after it is closed.
    tokio::time::timeout(PATIENCE, async {
        while !kept.info().unwrap().learned {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    tokio::time::timeout(PATIENCE, async {
        pass(&came_in, &far, b"answer").await;
        pass(&far, &came_in, b"and back").await;
    })
    .await
    .expect("it carries as before");
}

#[tokio::test]
async fn networks_do_not_mix() {
    let identity = Identity::ephemeral().unwrap();
    let ip = QuicEndpoint::bind("127.0.0.1:0".parse().unwrap(), &identity, &QuicOptions::default()).unwrap();
    let scion = endpoint();
    let Endpoint::Scion(remote) = scion.local() else { panic!("no address of SCION") };
    assert!(matches!(ip.connect_over(remote, &inside(1472), None).await, Err(ConnectError::WrongNetwork { .. })));
    assert!(matches!(scion.connect(ip.local(), None).await, Err(ConnectError::WrongNetwork { .. })));
}
