//! Disks that fill, files that vanish, programs that are killed.

use std::process::Command;
use std::time::Duration;

use anabranch_content::hex;

use crate::support::*;

/// Runs the ignored test `name` where it may mount.
fn in_namespace(name: &str) {
    let test = std::env::current_exe().unwrap();
    let ran = Command::new("unshare")
        .args(["--map-root-user", "--mount"])
        .arg(test)
        .args(["--exact", name, "--ignored", "--nocapture"])
        .output();
    let permitted = Command::new("unshare").args(["--map-root-user", "--mount", "true"]).status();
    if !permitted.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("CI").is_none(), "mount namespaces are needed");
        return;
    }
    let output = ran.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_full_disk_pauses() {
    in_namespace("storage::full_disk");
}

#[test]
#[ignore = "run by a_full_disk_pauses, where it may mount"]
fn full_disk() {
    for (buffers, piece) in [(16 * MIB, 256 * KIB), (2 * MIB, 8 * MIB)] {
        full_disk_with(buffers as u64, piece as u32);
    }
}

fn full_disk_with(buffer_bytes: u64, piece_length: u32) {
    let (_out, out) = temp();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "none"]).arg(&out).status().unwrap();
    assert!(mounted.success());
    let content = Content::new(&[("data", 20 * MIB)], Version::V1, Some(piece_length));
    run(async {
        let ballast = out.join("ballast");
        std::fs::write(&ballast, vec![1; 14 * MIB]).unwrap();
        let seed = Node::seed(1, &content);
        let mut node = Node::start(SessionConfig { buffer_bytes, ..config(2) });
        let id = node.get(&content, &out, &[seed.address()]);
        let paused = node.until(|kind| matches!(kind, EventKind::Paused { .. })).await;
        let EventKind::Paused { reason, .. } = paused else { unreachable!() };
        assert!(reason.contains("content/data") && reason.contains("free some space"), "{reason}");
        assert!(node.progress(id).paused);
        // Not told again and again.
        let again = node.until(|kind| matches!(kind, EventKind::Paused { .. } | EventKind::Resumed));
        assert!(tokio::time::timeout(Duration::from_secs(5), again).await.is_err());
        std::fs::remove_file(&ballast).unwrap();
        node.until(|kind| matches!(kind, EventKind::Resumed)).await;
        node.finished().await;
        content.assert_in(&out, |_| true);
        let stats = node.progress(id).stats;
        assert!(stats.downloaded_bytes <= content.len() + buffer_bytes / 2, "{stats:?}");
    });
    assert!(Command::new("umount").arg("--lazy").arg(&out).status().unwrap().success());
}

#[test]
fn a_read_only_folder_ends_it_at_once() {
    in_namespace("storage::read_only_folder");
}

#[test]
#[ignore = "run by a_read_only_folder_ends_it_at_once, where it may mount"]
fn read_only_folder() {
    let (_out, out) = temp();
    let mount = |options: &str| Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(&out).status();
    assert!(mount("ro,size=4m").unwrap().success());
    let content = Content::new(&[("data", MIB)], Version::V1, None);
    run(async {
        let seed = Node::seed(1, &content);
        let mut node = Node::start(config(2));
        let id = node.get(&content, &out, &[seed.address()]);
        let failed = node.until(|kind| matches!(kind, EventKind::Failed { .. })).await;
        let EventKind::Failed { kind, reason } = failed else { unreachable!() };
        assert!(kind == FailureKind::Storage && reason.contains("read-only"), "{reason}");
        assert!(node.progress(id).stats.downloaded_bytes <= content.len());
    });
    assert!(Command::new("umount").arg("--lazy").arg(&out).status().unwrap().success());
}

#[test]
fn a_shared_file_that_is_cut_short() {
    run(async {
        let content = Content::new(&[("data", 8 * MIB)], Version::V1, Some(MIB as u32));
        let other = Content::new(&[("data", 2 * MIB)], Version::V1, Some(32 * KIB as u32));
        let mut seed = Node::seed(1, &content);
        seed.share(&other);
        seed.all_finished(&[ContentId(0), ContentId(1)]).await;
        let file = std::fs::File::options().write(true).open(content.dir.path().join("content/data")).unwrap();
        file.set_len(MIB as u64 / 2).unwrap();
        let (_out, out) = temp();
        let mut node = Node::start(config(2));
        let lost = node.get(&content, &out.join("one"), &[seed.address()]);
        let good = node.get(&other, &out.join("two"), &[seed.address()]);
        let failed = seed.until(|kind| matches!(kind, EventKind::Failed { .. })).await;
        assert!(
            matches!(failed, EventKind::Failed { kind: FailureKind::Content, reason } if reason.contains("content/data"))
        );
        node.all_finished(&[good]).await;
        other.assert_in(&out.join("two"), |_| true);
        assert!(!node.progress(lost).finished);
        // What is gone is not offered any more, and not fetched: the files are only shared.
        assert_eq!(seed.progress(ContentId(0)).pieces_have, 0);
    });
}

#[test]
fn a_file_that_vanishes_under_a_download_pauses_it() {
    run(async {
        let content = Content::new(&[("data", 8 * MIB)], Version::V1, Some(MIB as u32));
        let seed = Node::start(SessionConfig { limit_up: Some(2 * MIB as u64), ..config(1) });
        seed.share(&content);
        let (_out, out) = temp();
        let mut node = Node::start(config(2));
        node.get(&content, &out, &[seed.address()]);
        node.until(|kind| matches!(kind, EventKind::Piece { .. })).await;
        let (file, aside) = (out.join("content/data"), out.join("aside"));
        std::fs::rename(&file, &aside).unwrap();
        let end = node.until(|kind| matches!(kind, EventKind::Paused { .. } | EventKind::Finished)).await;
        if let EventKind::Paused { reason, .. } = end {
            assert!(reason.contains("content/data"), "{reason}");
            std::fs::rename(&aside, &file).unwrap();
            node.finished().await;
            content.assert_in(&out, |_| true);
        }
    });
}

#[test]
fn a_file_that_is_gone_when_a_peer_asks_for_it_pauses_a_download_and_loses_nothing() {
    run(async {
        let content = Content::new(&[("a", 2 * MIB), ("b", 6 * MIB)], Version::V1, Some(MIB as u32));
        let (_out, out) = temp();
        // Half of it is here.
        fetch_file(&content, &out, "a").await;
        let mut node = Node::start(config(2));
        let id = node.get(&content, &out, &[]);
        node.until(|kind| matches!(kind, EventKind::Started { .. })).await;
        let have = node.progress(id).pieces_have;
        assert_eq!(have, 2);
        let (file, aside) = (out.join("content/a"), out.join("aside"));
        std::fs::rename(&file, &aside).unwrap();
        let (_other, other) = temp();
        let mut peer = Node::start(config(3));
        peer.get(&content, &other, &[node.address()]);
        let told = node.until(|kind| matches!(kind, EventKind::Paused { .. } | EventKind::Failed { .. })).await;
        assert!(matches!(&told, EventKind::Paused { reason, .. } if reason.contains("content/a")), "{told:?}");
        assert_eq!(node.progress(id).pieces_have, have);
        // Told once, however often peers ask.
        let again =
            node.until(|kind| matches!(kind, EventKind::Paused { .. } | EventKind::Resumed | EventKind::Failed { .. }));
        assert!(tokio::time::timeout(Duration::from_secs(5), again).await.is_err());
        std::fs::rename(&aside, &file).unwrap();
        node.until(|kind| matches!(kind, EventKind::Resumed)).await;
        let seed = Node::seed(1, &content);
        node.session.add_peers(id, &[seed.address().into()]).unwrap();
        node.finished().await;
        content.assert_in(&out, |_| true);
        assert_eq!(node.progress(id).stats.downloaded_bytes, 6 * MIB as u64);
        peer.finished().await;
        content.assert_in(&other, |_| true);
    });
}

#[test]
fn what_was_received_before_a_crash_is_not_fetched_again() {
    for (seed, pieces) in [(1, 1), (2, 7), (3, 20), (4, 31)] {
        let content = Content::new(&[("a", 5 * MIB), ("b", 3 * MIB)], Version::Hybrid, Some(256 * KIB as u32));
        let (_out, out) = temp();
        let mut downloaded = 0;
        let limit = 8 * MIB as u64;
        run(async {
            let sharer = Node::start(SessionConfig { limit_up: Some(limit), ..config(seed) });
            sharer.share(&content);
            let mut node = Node::start(config(seed + 100));
            let id = node.get(&content, &out, &[sharer.address()]);
            for _ in 0..pieces {
                node.until(|kind| matches!(kind, EventKind::Piece { .. })).await;
            }
            downloaded += node.progress(id).stats.downloaded_bytes;
            // The runtime goes, and everything with it, as in a crash: no goodbye.
            drop(node);
        });
        run(async {
            let sharer = Node::seed(seed, &content);
            let mut node = Node::start(config(seed + 100));
            let id = node.get(&content, &out, &[sharer.address()]);
            let started = node.until(|kind| matches!(kind, EventKind::Started { .. })).await;
            let EventKind::Started { pieces_have, .. } = started else { unreachable!() };
            assert!(pieces_have >= pieces, "{pieces_have} of {pieces}");
            node.finished().await;
            content.assert_in(&out, |_| true);
            downloaded += node.progress(id).stats.downloaded_bytes;
            // Pieces that were under way or being written are lost; a second's worth at the most.
            assert!(downloaded <= content.len() + 4 * MIB as u64, "{downloaded} of {}", content.len());
        });
    }
}

#[test]
fn files_that_changed_between_runs_are_checked_again() {
    let content = Content::new(&[("a", 2 * MIB), ("b", 2 * MIB)], Version::V1, Some(256 * KIB as u32));
    let (_out, out) = temp();
    let get = async |expect_changed: bool| {
        let seed = Node::seed(1, &content);
        let mut node = Node::start(config(2));
        let id = node.get(&content, &out, &[seed.address()]);
        let started = node.until(|kind| matches!(kind, EventKind::Started { .. })).await;
        node.finished().await;
        content.assert_in(&out, |_| true);
        let downloaded = node.progress(id).stats.downloaded_bytes;
        node.session.shutdown().await;
        if let EventKind::Started { changed_files, .. } = started {
            assert_eq!(!changed_files.is_empty(), expect_changed, "{changed_files:?}");
        }
        downloaded
    };
    run(async {
        assert_eq!(get(false).await, content.len());
        assert_eq!(get(false).await, 0);
        // Within one tick of the file system's clock nobody can tell a change by its time.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let path = out.join("content/a");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[MIB..MIB + 100].fill(0);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(get(true).await, 256 * KIB as u64);
        assert_eq!(get(false).await, 0);
    });
}

#[test]
fn a_magnet_link_has_its_layers_after_a_restart() {
    run(async {
        let content = Content::new(&[("a", 2 * MIB), ("b", MIB)], Version::V2, Some(64 * KIB as u32));
        let (_out, out) = temp();
        let hash = content.metainfo.info.hashes.v2.unwrap();
        let get = async || {
            let seed = Node::seed(1, &content);
            let mut node = Node::start(config(2));
            let link = format!("magnet:?xt=urn:btmh:1220{}&x.pe={}", hex::encode(&hash), seed.address());
            let options = AddOptions { dir: out.clone(), ..AddOptions::default() };
            let id = node.session.add(Source::Magnet(Box::new(link.parse().unwrap())), options).unwrap();
            node.finished().await;
            content.assert_in(&out, |_| true);
            let downloaded = node.progress(id).stats.downloaded_bytes;
            node.session.shutdown().await;
            downloaded
        };
        assert_eq!(get().await, content.len());
        // Its time alone changes: it has to be hashed again, against something.
        let file = std::fs::File::options().write(true).open(out.join("content/a")).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(1000)).unwrap();
        drop(file);
        assert_eq!(get().await, 0);
    });
}
