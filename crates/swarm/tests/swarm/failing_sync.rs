//! A disk that takes writes and fails to sync them, under a download.
//!
//! The kernel itself lets every `fsync` and `fdatasync` of the process wait for a verdict of ours (seccomp's user notification), so
//! neither root nor a broken device is needed.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::*;

/// Said by the inner test where the system lets nobody watch system calls.
const NOT_PERMITTED: &str = "system calls cannot be watched here";

#[test]
fn a_checkpoint_that_fails_costs_nothing_and_the_download_goes_on_when_the_disk_works() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "failing_sync::under_a_download", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if text.contains(NOT_PERMITTED) {
        assert!(std::env::var_os("CI").is_none(), "{text}");
        return;
    }
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "run by a_checkpoint_that_fails_costs_nothing..., in a process of its own"]
fn under_a_download() {
    let Some(disk) = Syncs::watch() else {
        println!("{NOT_PERMITTED}");
        return;
    };
    let content = Content::new(&[("a", MIB), ("b", 3 * MIB), ("c", 2 * MIB)], Version::V1, Some(256 * KIB as u32));
    let ((_out, out), (_half, half_dir)) = (temp(), temp());
    run(async {
        // An earlier run had the first file; a peer has the second; who has the third comes later.
        fetch_file(&content, &out, "a").await;
        fetch_file(&content, &half_dir, "b").await;
        let half = Node::start(config(3));
        // Read only: so all syncs from here on are the download's.
        let options = AddOptions { dir: half_dir.clone(), read_only: true, ..AddOptions::default() };
        half.session.add(content.source(), options).unwrap();
        let mut node = Node::start(config(4));
        let id = node.get(&content, &out, &[half.address()]);
        node.until(|kind| matches!(kind, EventKind::Started { .. })).await;
        disk.fails.store(true, Ordering::SeqCst);
        for _ in 0..3 * MIB / (256 * KIB) {
            node.until(|kind| matches!(kind, EventKind::Piece { .. })).await;
        }
        // The checkpoint comes by itself, finds that nobody knows what is on the disk, and has it written again.
        disk.until_failed(1).await;
        assert!(!node.progress(id).finished);

        // What is complete is not said to be before it is on the disk.
        let seed = Node::seed(5, &content);
        node.session.add_peers(id, &[seed.address().into()]).unwrap();
        let paused = node.until(|kind| matches!(kind, EventKind::Paused { .. } | EventKind::Finished)).await;
        assert!(matches!(&paused, EventKind::Paused { reason, .. } if reason.contains("content/")), "{paused:?}");
        disk.until_failed(disk.failed.load(Ordering::SeqCst) + 2).await;
        disk.fails.store(false, Ordering::SeqCst);
        node.until(|kind| matches!(kind, EventKind::Resumed)).await;
        node.finished().await;
        content.assert_in(&out, |_| true);
        assert!(!node.saw(|kind| matches!(kind, EventKind::PieceFailed { .. })), "what was written again is good");
        node.session.shutdown().await;

        // And the record says so.
        let mut again = Node::start(config(6));
        again.get(&content, &out, &[]);
        let started = again.until(|kind| matches!(kind, EventKind::Started { .. })).await;
        let EventKind::Started { pieces_have, pieces_total, changed_files, .. } = started else { unreachable!() };
        assert!(pieces_have == pieces_total && changed_files.is_empty(), "{pieces_have} {changed_files:?}");
    });
}

/// All syncs of this process.
struct Syncs {
    /// Whether they fail.
    fails: Arc<AtomicBool>,
    /// How many did.
    failed: Arc<AtomicUsize>,
}

impl Syncs {
    /// Has those of this thread, and of all that it starts from here on, ask us first. `None` where that is not permitted.
    fn watch() -> Option<Self> {
        let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let answer = libc::BPF_RET | libc::BPF_K;
        let step = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
        let mut steps = [
            step(load, 0, 0), // the call's number comes first
            step(equals, 2, libc::SYS_fsync as u32),
            step(equals, 1, libc::SYS_fdatasync as u32),
            step(answer, 0, libc::SECCOMP_RET_ALLOW),
            step(answer, 0, libc::SECCOMP_RET_USER_NOTIF),
        ];
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: plain calls; `program` and its steps outlive them.
        let listener = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
        };
        let listener = i32::try_from(listener).ok().filter(|listener| *listener >= 0)?;
        let syncs = Self { fails: Arc::default(), failed: Arc::default() };
        let (fails, failed) = (Arc::clone(&syncs.fails), Arc::clone(&syncs.failed));
        std::thread::spawn(move || {
            loop {
                // SAFETY: all-zero is valid for both, and the kernel asks that they be zero.
                let (mut asked, mut verdict) =
                    unsafe { std::mem::zeroed::<(libc::seccomp_notif, libc::seccomp_notif_resp)>() };
                // SAFETY: the descriptor is open as long as the process, and the kernel fills what is ours.
                let heard = unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) };
                if heard < 0 {
                    continue; // whoever asked is gone
                }
                verdict.id = asked.id;
                if fails.load(Ordering::SeqCst) {
                    verdict.error = -libc::EIO;
                    failed.fetch_add(1, Ordering::SeqCst);
                } else {
                    verdict.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
                }
                // SAFETY: as above; the kernel only reads.
                unsafe { libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut verdict) };
            }
        });
        Some(syncs)
    }

    async fn until_failed(&self, times: usize) {
        while self.failed.load(Ordering::SeqCst) < times {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
