//! `share --memory` across SCION: what peers send faster than it is read stays within it.

mod common;

use std::fs;
use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anabranch_paths::{Endpoint, ScionPath};
use anabranch_transport::{Identity, QuicBudget, QuicEndpoint, QuicOptions, QuicStream};
use common::embedded::example;
use common::{Running, anabranch, noise};

const MIB: u64 = 1024 * 1024;
/// As many as one host may have with a content, and as one key may.
const CALLERS: usize = 2;
const CONNECTIONS: usize = 14;
/// For a machine with other work.
const PATIENCE: Duration = Duration::from_secs(240);

fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Greets, and sends keep-alives (BEP 3) for as long as they are taken.
async fn talk(stream: QuicStream, info_hash: [u8; 20], sent: Arc<AtomicU64>) {
    let hello = [&b"\x13BitTorrent protocol\0\0\0\0\0\0\0\0"[..], &info_hash, &[b'x'; 20]].concat();
    let silence = vec![0; 64 * 1024];
    let mut has_greeted = false;
    while poll_fn(|cx| stream.poll_send_ready(cx)).await.is_ok() {
        let bytes = if has_greeted { &silence } else { &hello };
        match stream.try_send(&[IoSlice::new(bytes)], false) {
            Ok(len) => _ = sent.fetch_add(len as u64, Ordering::Relaxed),
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(_) => return,
        }
        has_greeted = true;
    }
}

#[test]
fn peers_who_send_faster_than_they_are_read_stay_within_the_memory() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("one.bin"), noise(300_000, 1)).unwrap();
    let network = example(125, "line.toml", "");
    let home = network.topology().get("1-ff00:0:111".parse().unwrap()).unwrap();
    let address = format!("[1-ff00:0:111,{}]:0", home.hosts[0].address);
    let mut command = anabranch(dir.path());
    command.args(["share", "one.bin", "--json", "--version", "1", "--memory", "8MiB", "--limit-down", "10K"]);
    command.args(["--listen", &address, "--sciond", &home.daemon.to_string()]);
    let mut sharer = Running::start_for(&mut command, PATIENCE);
    let remote = sharer.event("listening")["address"].as_str().unwrap().parse::<Endpoint>().unwrap();
    let remote = remote.as_scion().unwrap();
    let magnet = sharer.event("started")["magnet"].as_str().unwrap().to_owned();
    let hex = magnet.split_once("urn:btih:").unwrap().1;
    let info_hash = std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap());
    let before = resident_bytes(sharer.child.id());

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (held, sent) = tokio::task::LocalSet::new().block_on(&runtime, async {
        let sent = Arc::new(AtomicU64::new(0));
        let here = address.parse::<Endpoint>().unwrap().as_scion().unwrap();
        let inside = Arc::new(ScionPath::inside(here.isd_as, 1472, SystemTime::UNIX_EPOCH));
        let mut callers = Vec::new();
        for _ in 0..CALLERS {
            let options = QuicOptions { budget: QuicBudget::new(1024 * MIB), ..QuicOptions::default() };
            let identity = Identity::ephemeral().unwrap();
            let caller = QuicEndpoint::bind_scion(here, 31000..=32767, &identity, &options).unwrap();
            for _ in 0..CONNECTIONS {
                let stream = caller.connect_over(remote, &inside, None).await.unwrap();
                tokio::task::spawn_local(talk(stream, info_hash, Arc::clone(&sent)));
            }
            callers.push(caller);
        }
        // Until nobody takes more of them.
        let settled = async {
            loop {
                let before = sent.load(Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(3)).await;
                if sent.load(Ordering::Relaxed) - before < 2 * MIB {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE / 2, settled).await.expect("they come to a stop");
        (resident_bytes(sharer.child.id()).saturating_sub(before), sent.load(Ordering::Relaxed))
    });
    let all = (CALLERS * CONNECTIONS) as u64;
    // Half of the memory is for QUIC; of each connection's own, see docs/architecture.md; the rest is what programs take
    // as they go, and what the callers have not sent yet.
    assert!(sent >= all * 64 * 1024, "{sent} bytes sent");
    assert!(sent < 4 * MIB + all * MIB, "{sent} bytes taken of {all} connections");
    assert!(held < 8 * MIB + all * MIB / 2 + 24 * MIB, "{held} bytes for {all} connections that sent {sent}");
    assert_eq!(sharer.interrupt().0, 0);
}
