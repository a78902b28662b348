//! QUIC over loopback, with peers that make us hold as much as they can: all of them together stay within the budget.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anabranch_transport::{Identity, QuicBudget, QuicEndpoint, QuicOptions, QuicStream};
use tokio::task::{LocalSet, yield_now};

const MIB: u64 = 1024 * 1024;
/// Of each connection, beside the budget: the window that every stranger has.
const FLOOR: u64 = 64 * 1024;
const PEERS: usize = 24;
/// For whatever has to come about on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn endpoint(budget: &QuicBudget) -> QuicEndpoint {
    let options = QuicOptions { budget: budget.clone(), ..QuicOptions::default() };
    QuicEndpoint::bind((Ipv4Addr::LOCALHOST, 0).into(), &Identity::ephemeral().unwrap(), &options).unwrap()
}

/// Sends for as long as there is somebody to take it, and counts.
async fn send_without_end(stream: Rc<QuicStream>, sent: Arc<AtomicU64>) {
    let block = vec![0x5a; 64 * 1024];
    loop {
        if poll_fn(|cx| stream.poll_send_ready(cx)).await.is_err() {
            return;
        }
        match stream.try_send(&[IoSlice::new(&block)], false) {
            Ok(len) => _ = sent.fetch_add(len as u64, Ordering::Relaxed),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// Reads `len` bytes and leaves the rest.
async fn read(stream: &QuicStream, len: u64) -> io::Result<()> {
    let mut block = vec![0; 64 * 1024];
    let mut left = len;
    while left > 0 {
        poll_fn(|cx| stream.poll_recv_ready(cx)).await?;
        let wanted = block.len().min(left as usize);
        let mut iovecs = [libc::iovec { iov_base: block.as_mut_ptr().cast(), iov_len: wanted }];
        // SAFETY: the entry describes `block`, which outlives the call and is ours alone.
        match unsafe { stream.try_recv(&mut iovecs) } {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => left -= len as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        yield_now().await;
    }
    Ok(())
}

/// Waits until `figure` stays the same for a while; answers it.
async fn settled(figure: impl Fn() -> u64) -> u64 {
    let waiting = async {
        loop {
            let before = figure();
            tokio::time::sleep(Duration::from_millis(1500)).await;
            if figure() == before {
                return before;
            }
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("peers come to a stop")
}

async fn connect(caller: &QuicEndpoint, listener: &QuicEndpoint, to: SocketAddr) -> (Rc<QuicStream>, QuicStream) {
    let near = Rc::new(caller.connect(to.into(), None).await.unwrap());
    (near, listener.accept().await.unwrap())
}

#[tokio::test]
async fn peers_that_send_to_a_reader_who_stops_fill_no_more_than_the_budget() {
    let budget = QuicBudget::new(6 * MIB);
    let (listener, caller) = (endpoint(&budget), endpoint(&QuicBudget::new(1024 * MIB)));
    LocalSet::new()
        .run_until(async {
            let mut streams = Vec::new();
            let sent = Arc::new(AtomicU64::new(0));
            for _ in 0..PEERS {
                let (near, far) = connect(&caller, &listener, listener.local().socket_addr()).await;
                tokio::task::spawn_local(send_without_end(near, Arc::clone(&sent)));
                // The windows that a fast reader earns.
                read(&far, 4 * MIB).await.unwrap();
                assert!(budget.used_bytes() <= 6 * MIB, "{budget:?}");
                streams.push(far);
            }
            // What they sent and nobody read is held here, or at their side for want of a window.
            settled(|| sent.load(Ordering::Relaxed)).await;
            let came: u64 = streams.iter().map(|far| far.stats().unwrap().received_bytes).sum();
            let held = came - PEERS as u64 * 4 * MIB;
            let most = 6 * MIB + PEERS as u64 * FLOOR;
            // Headers and what was sent twice come to a few percent of all that came.
            assert!(held <= most + came / 8, "{held} bytes of {came} for a budget of {most}");
            assert!(budget.used_bytes() <= 6 * MIB && budget.used_bytes() >= 3 * MIB, "{budget:?}");
            // It goes on where somebody reads.
            for far in &streams {
                tokio::time::timeout(PATIENCE, read(far, 2 * MIB)).await.unwrap().unwrap();
                assert!(budget.used_bytes() <= 6 * MIB, "{budget:?}");
            }
        })
        .await;
    drop((listener, caller));
    assert_eq!(budget.used_bytes(), 0);
}

#[tokio::test]
async fn short_messages_go_on_whatever_memory_there_is() {
    for budget in [0, 64 * MIB] {
        let (listener, caller) = (endpoint(&QuicBudget::new(budget)), endpoint(&QuicBudget::new(budget)));
        let (near, far) = connect(&caller, &listener, listener.local().socket_addr()).await;
        // Far more than may be under way without a sign that it arrived.
        const MESSAGES: u64 = 40_000;
        let sending = async {
            for message in 0..MESSAGES {
                poll_fn(|cx| near.poll_send_ready(cx)).await.unwrap();
                assert_eq!(near.try_send(&[IoSlice::new(&[7; 17])], false).unwrap(), 17);
                if message % 64 == 0 {
                    yield_now().await;
                }
            }
            poll_fn(|cx| near.poll_send_ready(cx)).await.unwrap();
        };
        let reading = read(&far, MESSAGES * 17);
        let ((), all_read) = tokio::time::timeout(PATIENCE, async { tokio::join!(sending, reading) }).await.unwrap();
        all_read.unwrap();
    }
}

/// Passes datagrams on, those of the callers only until it is told not to.
fn relay(to: SocketAddr, mute: Arc<AtomicBool>) -> SocketAddr {
    let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = near.local_addr().unwrap();
    let (near_back, far_back) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    let (told, tell) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 65_536];
        let mut caller = None;
        while let Ok((len, from)) = near.recv_from(&mut bytes) {
            if caller.replace(from).is_none() {
                let _ = told.send(from);
            }
            if !mute.load(Ordering::Relaxed) && far.send_to(&bytes[..len], to).is_err() {
                return;
            }
        }
    });
    std::thread::spawn(move || {
        let Ok(caller) = tell.recv() else { return };
        let mut bytes = [0; 65_536];
        while let Ok((len, _)) = far_back.recv_from(&mut bytes) {
            if near_back.send_to(&bytes[..len], caller).is_err() {
                return;
            }
        }
    });
    address
}

#[tokio::test]
async fn what_peers_do_not_acknowledge_stays_within_the_budget_and_others_are_served() {
    let budget = QuicBudget::new(2 * MIB);
    let (listener, caller) = (endpoint(&budget), endpoint(&QuicBudget::new(1024 * MIB)));
    LocalSet::new()
        .run_until(async {
            let mute = Arc::new(AtomicBool::new(false));
            let mut callers = Vec::new();
            for _ in 0..PEERS / 2 {
                let to = relay(listener.local().socket_addr(), Arc::clone(&mute));
                let (near, far) = connect(&caller, &listener, to).await;
                tokio::task::spawn_local(send_without_end(Rc::new(far), Arc::default()));
                read(&near, MIB).await.unwrap();
                callers.push(near);
            }
            mute.store(true, Ordering::Relaxed);
            for near in &callers {
                let near = Rc::clone(near);
                tokio::task::spawn_local(async move { _ = read(&near, u64::MAX).await });
            }
            // Whoever acknowledges gets all that it asks for, beside those who never will.
            let (near, far) = connect(&caller, &listener, listener.local().socket_addr()).await;
            tokio::task::spawn_local(send_without_end(Rc::new(far), Arc::default()));
            for _ in 0..8 {
                tokio::time::timeout(PATIENCE, read(&near, MIB)).await.unwrap().unwrap();
                assert!(budget.used_bytes() <= 2 * MIB, "{budget:?}");
            }
        })
        .await;
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// `cargo test --release -p anabranch-transport --test quic_budget -- --ignored --nocapture`
#[tokio::test]
#[ignore = "a figure to look at"]
async fn what_a_connection_costs() {
    let budget = QuicBudget::new(0);
    let (listener, caller) = (endpoint(&budget), endpoint(&budget));
    let mut streams = Vec::new();
    LocalSet::new()
        .run_until(async {
            for (name, sends) in [("idle", false), ("whose callers send and nobody reads", true)] {
                let before = resident_bytes();
                for _ in 0..500 {
                    let (near, far) = connect(&caller, &listener, listener.local().socket_addr()).await;
                    if sends {
                        tokio::task::spawn_local(send_without_end(Rc::clone(&near), Arc::default()));
                    }
                    streams.push((near, far));
                }
                tokio::time::sleep(Duration::from_secs(3)).await;
                let each = resident_bytes().saturating_sub(before) / 500;
                println!("500 connections {name}: {} KiB each, both ends together", each / 1024);
            }
        })
        .await;
}
