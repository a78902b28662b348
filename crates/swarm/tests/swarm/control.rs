//! What an owner asks of contents, in every state that they may be in.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anabranch_bittorrent::picker::Priority;
use anabranch_content::storage::ErrorKind;
use anabranch_swarm::{FilePriorities, Handle, PauseCause, Work};

use crate::support::*;

fn all_files() -> FilePriorities {
    Box::new(|_, _| Priority::NORMAL)
}

fn only(name: &'static str) -> FilePriorities {
    Box::new(move |_, file| if file.path.ends_with(name) { Priority::NORMAL } else { Priority::SKIP })
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).map(|entries| entries.flatten().collect()).unwrap_or_else(|_| Vec::new());
    let mut names: Vec<_> = entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Slow enough that a transfer is under way for as long as a test has something to do meanwhile.
fn slow(seed: u64) -> SessionConfig {
    SessionConfig { limit_up: Some(4 * MIB as u64), ..config(seed) }
}

async fn until_piece(node: &mut Node) {
    node.until(|kind| matches!(kind, EventKind::Piece { .. })).await;
}

async fn until_started(node: &mut Node) {
    node.until(|kind| matches!(kind, EventKind::Started { .. })).await;
}

#[test]
fn whoever_asks_too_early_too_late_or_of_nobody_is_told() {
    run(async {
        let content = Content::new(&[("data", MIB)], Version::V1, None);
        let (_out, out) = temp();
        let mut node = Node::start(config(1));
        let session = &node.session;
        let id = ContentId(77);
        let unknown = |asked: Result<(), ControlError>| assert!(matches!(asked, Err(ControlError::Unknown(_))));
        unknown(session.pause(id));
        unknown(session.resume(id));
        unknown(session.set_limits(id, None, None));
        unknown(session.reannounce(id));
        unknown(session.add_peers(id, &[]));
        unknown(session.recheck(id).await);
        unknown(session.move_to(id, out.clone()).await);
        unknown(session.set_files(id, all_files()).await);
        unknown(session.remove(id, Data::Keep).await.map(drop));
        // A link whose metadata nobody has.
        let magnet = Source::Magnet(Box::new(content.metainfo.magnet()));
        let id = session.add(magnet, AddOptions { dir: out.clone(), ..AddOptions::default() }).unwrap();
        let not_open = |asked: Result<(), ControlError>| assert!(matches!(asked, Err(ControlError::NotOpen(_))));
        not_open(session.recheck(id).await);
        not_open(session.move_to(id, out.join("elsewhere")).await);
        not_open(session.set_files(id, all_files()).await);
        session.pause(id).unwrap();
        session.pause(id).unwrap();
        session.resume(id).unwrap();
        session.resume(id).unwrap();
        session.set_limits(id, Some(1), Some(1)).unwrap();
        session.reannounce(id).unwrap();
        assert_eq!(session.remove(id, Data::Delete).await.unwrap().left, Vec::<std::path::PathBuf>::new());
        // What is only shared is the user's.
        let id = node.share(&content);
        until_started(&mut node).await;
        let session = &node.session;
        let shared = |asked: Result<(), ControlError>| assert!(matches!(asked, Err(ControlError::OnlyShared(_))));
        shared(session.move_to(id, out.clone()).await);
        shared(session.set_files(id, all_files()).await);
        shared(session.remove(id, Data::Delete).await.map(drop));
        session.recheck(id).await.unwrap();
        // While it goes, and when it is gone.
        let (removal, again) = (session.remove(id, Data::Keep), session.remove(id, Data::Keep));
        assert!(matches!(session.pause(id), Err(ControlError::Leaving(_))));
        assert!(matches!(
            session.add(content.source(), AddOptions::default()),
            Err(anabranch_swarm::AddError::Leaving(_))
        ));
        assert!(matches!(again.await, Err(ControlError::Leaving(_))));
        removal.await.unwrap();
        unknown(session.pause(id));
        assert!(session.list().is_empty());
        node.until(|kind| matches!(kind, EventKind::Removed)).await;
        content.assert_in(content.dir.path(), |_| true);
        assert_eq!(names(&out), Vec::<String>::new());
    });
}

#[test]
fn a_pause_ends_connections_and_resuming_goes_on() {
    run(async {
        let content = Content::new(&[("data", 4 * MIB)], Version::Hybrid, Some(64 * KIB as u32));
        let seed = Node::start(slow(1));
        seed.share(&content);
        let (_out, out) = temp();
        let mut node = Node::start(config(2));
        let id = node.get(&content, &out, &[seed.address()]);
        until_piece(&mut node).await;
        node.session.pause(id).unwrap();
        let told = node.until(|kind| matches!(kind, EventKind::Paused { .. })).await;
        assert!(matches!(told, EventKind::Paused { cause: PauseCause::Owner, .. }), "{told:?}");
        node.until(|kind| matches!(kind, EventKind::PeerDisconnected { .. })).await;
        assert!(node.progress(id).paused && node.session.peers(id).is_empty());
        // Neither does it dial, nor let anybody in.
        node.session.add_peers(id, &[seed.address().into()]).unwrap();
        let mut caller = tokio::net::TcpStream::connect(node.address()).await.unwrap();
        let hello = anabranch_bittorrent::handshake::Handshake {
            reserved: anabranch_bittorrent::handshake::Reserved::OURS,
            info_hash: content.info_hash(),
            peer_id: [9; 20],
        };
        tokio::io::AsyncWriteExt::write_all(&mut caller, &hello.encode()).await.unwrap();
        let answer = tokio::io::AsyncReadExt::read(&mut caller, &mut [0; 1]).await;
        assert!(matches!(answer, Ok(0) | Err(_)));
        assert!(node.session.peers(id).is_empty());
        node.session.resume(id).unwrap();
        node.finished().await;
        content.assert_in(&out, |_| true);
    });
}

#[test]
fn a_recheck_finds_what_is_bad_and_what_is_good_again() {
    run(async {
        let content = Content::new(&[("a", MIB), ("b", MIB)], Version::Hybrid, Some(64 * KIB as u32));
        let seed = Node::seed(1, &content);
        let (_out, out) = temp();
        let mut node = Node::start(config(2));
        let id = node.get(&content, &out, &[seed.address()]);
        node.finished().await;
        let path = out.join("content/a");
        let mut bytes = fs::read(&path).unwrap();
        bytes[100_000] ^= 1;
        fs::write(&path, &bytes).unwrap();
        fs::remove_file(out.join("content/b")).unwrap();
        let (recheck, again) = (node.session.recheck(id), node.session.recheck(id));
        assert!(matches!(again.await, Err(ControlError::Busy(_, Work::Recheck))));
        recheck.await.unwrap();
        let checked = node.until(|kind| matches!(kind, EventKind::Checked { .. })).await;
        let EventKind::Checked { pieces_have, pieces_total } = checked else { unreachable!() };
        assert_eq!((pieces_have, pieces_total), (15, 32));
        node.session.add_peers(id, &[seed.address().into()]).unwrap();
        node.finished().await;
        content.assert_in(&out, |_| true);
        // What is only shared is offered again when it is good again.
        let shared = ContentId(0);
        let path = content.dir.path().join("content/a");
        let good = fs::read(&path).unwrap();
        fs::write(&path, &bytes).unwrap();
        seed.session.recheck(shared).await.unwrap();
        assert_eq!(seed.progress(shared).pieces_have, 31);
        fs::write(&path, &good).unwrap();
        seed.session.recheck(shared).await.unwrap();
        assert_eq!(seed.progress(shared).pieces_have, 32);
    });
}

#[test]
fn a_content_moves_while_it_is_fetched_and_goes_on_there() {
    run(async {
        let content = Content::new(&[("a", 2 * MIB), ("sub/b", 2 * MIB)], Version::V1, Some(64 * KIB as u32));
        let seed = Node::start(slow(1));
        seed.share(&content);
        let (_out, out) = temp();
        let (old, new) = (out.join("old"), out.join("new/place"));
        let mut node = Node::start(config(2));
        let id = node.get(&content, &old, &[seed.address()]);
        until_piece(&mut node).await;
        let have = node.progress(id).pieces_have;
        node.session.move_to(id, new.clone()).await.unwrap();
        assert!(node.progress(id).pieces_have >= have);
        assert_eq!(names(&old), Vec::<String>::new());
        node.session.add_peers(id, &[seed.address().into()]).unwrap();
        node.finished().await;
        content.assert_in(&new, |_| true);
        // It serves from there, and is believed there.
        let mut third = Node::start(config(3));
        let (_third_out, third_out) = temp();
        third.get(&content, &third_out, &[node.address()]);
        third.finished().await;
        let moved = node.session.remove(id, Data::Keep).await.unwrap();
        assert_eq!(moved.left.len(), 0);
        let id = node.get(&content, &new, &[]);
        node.finished().await;
        assert_eq!(node.progress(id).stats.downloaded_bytes, 0);
        assert_eq!(node.seen.iter().filter(|event| matches!(event.kind, EventKind::Checking { .. })).count(), 0);
    });
}

#[test]
fn a_move_that_cannot_be_leaves_all_where_it_was() {
    run(async {
        let content = Content::new(&[("a", MIB), ("b", MIB)], Version::V1, Some(64 * KIB as u32));
        let seed = Node::seed(1, &content);
        let (_out, out) = temp();
        let (old, taken, below_file) = (out.join("old"), out.join("taken"), out.join("file/below"));
        fs::create_dir_all(taken.join("content")).unwrap();
        fs::write(taken.join("content/b"), "mine").unwrap();
        fs::write(out.join("file"), "mine").unwrap();
        let mut node = Node::start(config(2));
        let id = node.get(&content, &old, &[seed.address()]);
        node.finished().await;
        let failed = node.session.move_to(id, taken.clone()).await.unwrap_err();
        let ControlError::Storage(error) = &failed else { panic!("{failed:?}") };
        assert_eq!((error.kind, &error.path), (ErrorKind::InTheWay, &taken.join("content/b")));
        assert!(failed.to_string().contains("choose another folder"), "{failed}");
        assert!(matches!(node.session.move_to(id, below_file).await, Err(ControlError::Storage(_))));
        // To where it is already.
        node.session.move_to(id, old.clone()).await.unwrap();
        content.assert_in(&old, |_| true);
        assert_eq!((names(&taken), names(&taken.join("content"))), (vec!["content".into()], vec!["b".to_owned()]));
        // Nothing came of it: it serves as before.
        let mut third = Node::start(config(3));
        let (_third_out, third_out) = temp();
        third.get(&content, &third_out, &[node.address()]);
        third.finished().await;
    });
}

#[test]
fn files_are_chosen_anew() {
    run(async {
        let content = Content::new(&[("a", MIB), ("b", MIB + 17), ("c", MIB)], Version::V1, Some(64 * KIB as u32));
        let seed = Node::seed(1, &content);
        let (_out, out) = temp();
        let mut node = Node::start(config(2));
        let options = AddOptions {
            dir: out.clone(),
            peers: vec![seed.address().into()],
            files: Some(Box::new(|_, file| file.path.ends_with("a"))),
            ..AddOptions::default()
        };
        let id = node.session.add(content.source(), options).unwrap();
        node.finished().await;
        assert_eq!(names(&out.join("content")), ["a"]);
        fs::write(out.join("content/c"), "mine").unwrap();
        let failed = node.session.set_files(id, all_files()).await.unwrap_err();
        assert!(matches!(&failed, ControlError::Storage(error) if error.kind == ErrorKind::Different), "{failed:?}");
        assert!(node.progress(id).finished);
        node.session.set_files(id, only("b")).await.unwrap();
        node.session.add_peers(id, &[seed.address().into()]).unwrap();
        node.finished().await;
        // What is not wanted any more stays.
        content.assert_in(&out, |name| name != "c");
        assert_eq!(fs::read(out.join("content/c")).unwrap(), b"mine");
        fs::remove_file(out.join("content/c")).unwrap();
        node.session.set_files(id, all_files()).await.unwrap();
        node.session.add_peers(id, &[seed.address().into()]).unwrap();
        node.finished().await;
        content.assert_in(&out, |_| true);
    });
}

/// A content of two files that share a piece, and a node that has the first of them alone, complete.
async fn with_a_piece_aside(out: &Path) -> (Content, Node, ContentId) {
    let content = Content::new(&[("a", MIB + 17), ("b", MIB)], Version::V1, Some(64 * KIB as u32));
    let seed = Node::seed(1, &content);
    let mut node = Node::start(config(2));
    let options = AddOptions {
        dir: out.to_owned(),
        peers: vec![seed.address().into()],
        files: Some(Box::new(|_, file| file.path.ends_with("a"))),
        ..AddOptions::default()
    };
    let id = node.session.add(content.source(), options).unwrap();
    node.finished().await;
    assert_eq!(node.progress(id).pieces_have, 17);
    (content, node, id)
}

#[test]
fn what_came_with_a_chosen_file_is_good_when_all_is_checked_again() {
    run(async {
        let (_out, out) = temp();
        let (content, mut node, id) = with_a_piece_aside(&out).await;
        // Nobody is there who could bring anything again.
        node.session.recheck(id).await.unwrap();
        let checked = node.until(|kind| matches!(kind, EventKind::Checked { .. })).await;
        assert!(matches!(checked, EventKind::Checked { pieces_have: 17, .. }), "{checked:?}");
        assert!(node.progress(id).finished);
        node.session.shutdown().await;
        // At the next start, with everything hashed.
        let mut node = Node::start(config(3));
        let options = AddOptions {
            dir: out.clone(),
            recheck: true,
            files: Some(Box::new(|_, file| file.path.ends_with("a"))),
            ..AddOptions::default()
        };
        node.session.add(content.source(), options).unwrap();
        node.finished().await;
        content.assert_in(&out, |name| name == "a");
    });
}

#[test]
fn a_chosen_file_whose_time_alone_changes_is_the_content_still() {
    run(async {
        let (_out, out) = temp();
        let (_content, mut node, id) = with_a_piece_aside(&out).await;
        let file = fs::File::options().write(true).open(out.join("content/a")).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(1000)).unwrap();
        let told = node.until(|kind| matches!(kind, EventKind::Paused { .. })).await;
        assert!(matches!(&told, EventKind::Paused { reason, .. } if reason.contains("content/a")), "{told:?}");
        node.until(|kind| matches!(kind, EventKind::Resumed)).await;
        assert_eq!(node.progress(id).pieces_have, 17);
    });
}

#[test]
fn a_check_begins_while_what_is_complete_cannot_be_finished() {
    run(async {
        let content = Content::new(&[("a", MIB), ("b", MIB)], Version::V1, Some(64 * KIB as u32));
        let (_out, out) = temp();
        fetch_file(&content, &out, "a").await;
        let mut node = Node::start(config(2));
        let id = node.get(&content, &out, &[]);
        until_started(&mut node).await;
        fs::remove_file(out.join("content/a")).unwrap();
        let seed = Node::seed(1, &content);
        node.session.add_peers(id, &[seed.address().into()]).unwrap();
        let told = node.until(|kind| matches!(kind, EventKind::Paused { .. } | EventKind::Finished)).await;
        assert!(matches!(&told, EventKind::Paused { reason, .. } if reason.contains("content/a")), "{told:?}");
        node.session.recheck(id).await.unwrap();
        let checked = node.until(|kind| matches!(kind, EventKind::Checked { .. })).await;
        assert!(matches!(checked, EventKind::Checked { pieces_have: 16, pieces_total: 32 }), "{checked:?}");
        assert!(node.saw(|kind| matches!(kind, EventKind::Resumed)), "what it waited for is looked at anew");
        node.session.add_peers(id, &[seed.address().into()]).unwrap();
        node.finished().await;
        content.assert_in(&out, |_| true);
    });
}

#[test]
fn what_is_complete_and_was_checked_meanwhile_finishes_after_that() {
    run(async {
        let content = Content::new(&[("a", MIB), ("b", MIB)], Version::V1, Some(64 * KIB as u32));
        let (_out, out) = temp();
        fetch_file(&content, &out, "a").await;
        let mut node = Node::start(config(2));
        let id = node.get(&content, &out, &[]);
        until_started(&mut node).await;
        let (file, aside) = (out.join("content/a"), out.join("aside"));
        fs::rename(&file, &aside).unwrap();
        let seed = Node::seed(1, &content);
        node.session.add_peers(id, &[seed.address().into()]).unwrap();
        node.until(|kind| matches!(kind, EventKind::Paused { .. })).await;
        fs::rename(&aside, &file).unwrap();
        node.session.recheck(id).await.unwrap();
        let checked = node.until(|kind| matches!(kind, EventKind::Checked { .. } | EventKind::Finished)).await;
        if matches!(checked, EventKind::Checked { .. }) {
            node.finished().await;
        }
        content.assert_in(&out, |_| true);
    });
}

#[test]
fn data_is_deleted_and_nothing_of_others() {
    run(async {
        let content = Content::new(&[("a", 2 * MIB), ("sub/b", 2 * MIB)], Version::V1, Some(64 * KIB as u32));
        let seed = Node::start(slow(1));
        seed.share(&content);
        let (_out, out) = temp();
        let mut node = Node::start(config(2));
        // In the middle, with a peer.
        let id = node.get(&content, &out, &[seed.address()]);
        until_piece(&mut node).await;
        fs::write(out.join("content/sub/mine"), "mine").unwrap_or_else(|_| {
            fs::create_dir_all(out.join("content/sub")).unwrap();
            fs::write(out.join("content/sub/mine"), "mine").unwrap();
        });
        let removed = node.session.remove(id, Data::Delete).await.unwrap();
        assert!(removed.left.is_empty(), "{removed:?}");
        assert_eq!((names(&out), names(&out.join("content/sub"))), (vec!["content".into()], vec!["mine".to_owned()]));
        assert_eq!(names(&out.join("content")), ["sub"]);
        // At once again, and to the end.
        seed.session.set_limits(ContentId(0), None, None).unwrap();
        let id = node.get(&content, &out, &[seed.address()]);
        node.finished().await;
        content.assert_in(&out, |_| true);
        // Another content has its bytes in the same files.
        let sharing = AddOptions { dir: out.clone(), read_only: true, ..AddOptions::default() };
        let other = Content::new(&[("a", 2 * MIB), ("sub/b", 2 * MIB)], Version::V1, Some(128 * KIB as u32));
        let other = node.session.add(other.source(), sharing).unwrap();
        let removed = node.session.remove(id, Data::Delete).await.unwrap();
        assert_eq!(removed.left, [out.join("content/a"), out.join("content/sub/b")]);
        content.assert_in(&out, |_| true);
        node.session.remove(other, Data::Keep).await.unwrap();
    });
}

#[test]
fn what_was_there_before_is_not_deleted_however_early_or_late_one_removes() {
    run(async {
        let content = Content::new(&[("a", MIB), ("b", MIB)], Version::V1, Some(64 * KIB as u32));
        let (_out, out) = temp();
        fs::create_dir(out.join("content")).unwrap();
        fs::write(out.join("content/a"), vec![9; MIB]).unwrap();
        let mut node = Node::start(config(1));
        for events_read in 0..3 {
            let id = node.get(&content, &out, &[]);
            // Metadata, then what was in the way.
            for _ in 0..events_read {
                node.until(|kind| matches!(kind, EventKind::Metadata { .. } | EventKind::Failed { .. })).await;
            }
            node.session.remove(id, Data::Delete).await.unwrap();
            assert_eq!(names(&out.join("content")), ["a"]);
            node.until(|kind| matches!(kind, EventKind::Removed)).await;
        }
        assert_eq!(fs::read(out.join("content/a")).unwrap(), vec![9; MIB]);
        // At once again, in the middle of being opened, and with nothing in the way: nothing is left.
        fs::remove_file(out.join("content/a")).unwrap();
        let id = node.get(&content, &out, &[]);
        node.until(|kind| matches!(kind, EventKind::Metadata { .. })).await;
        node.session.remove(id, Data::Delete).await.unwrap();
        let id = node.get(&content, &out, &[]);
        until_started(&mut node).await;
        node.session.remove(id, Data::Delete).await.unwrap();
        assert!(names(&out.join("content")).is_empty());
    });
}

#[test]
fn limits_hold_for_open_connections() {
    run(async {
        let content = Content::new(&[("data", 32 * MIB)], Version::V1, Some(64 * KIB as u32));
        let seed = Node::start(config(1));
        let shared = seed.share(&content);
        let (_out, out) = temp();
        let mut node = Node::start(config(2));
        // A limit that nothing passes under in a test's time, set before and lifted while connected.
        let options = AddOptions {
            dir: out.clone(),
            peers: vec![seed.address().into()],
            limit_down: Some(1),
            ..AddOptions::default()
        };
        let id = node.session.add(content.source(), options).unwrap();
        node.until(|kind| matches!(kind, EventKind::PeerConnected { .. })).await;
        node.session.set_limits(id, None, None).unwrap();
        until_piece(&mut node).await;
        seed.session.set_limits(shared, None, Some(1)).unwrap();
        // What is under way comes, and what the new limit lets through at first; then no more.
        let mut have = node.progress(id).pieces_have;
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let now = node.progress(id).pieces_have;
            if now == have {
                break;
            }
            have = now;
        }
        assert!(have < 512, "all of it came under a limit of a byte a second");
        seed.session.set_limits(shared, None, None).unwrap();
        node.finished().await;
    });
}

/// Asks all there is to ask, of a content that may come and go meanwhile; answers how the session's end was told.
async fn ask_about(handle: Handle) -> ControlError {
    let mut id = ContentId(0);
    loop {
        let asked = async {
            id = handle.list().await?.first().copied().unwrap_or(id);
            handle.progress(id).await?;
            handle.peers(id).await?;
            handle.paths(id).await?;
            handle.info(id).await?;
            handle.set_limits(id, None, None).await?;
            handle.pause(id).await?;
            handle.resume(id).await?;
            handle.reannounce(id).await?;
            handle.recheck(id).await
        };
        if let Err(error @ ControlError::Gone) = asked.await {
            return error;
        }
    }
}

#[test]
fn other_threads_ask_until_the_session_is_gone() {
    let content = Content::new(&[("data", MIB)], Version::V1, Some(64 * KIB as u32));
    let (told, handles) = std::sync::mpsc::channel::<Handle>();
    let (_out, out) = temp();
    let source = content.source();
    let other = std::thread::spawn(move || {
        let handle = handles.recv().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut events = handle.subscribe();
            let id =
                handle.add(source.clone(), AddOptions { dir: out.clone(), ..AddOptions::default() }).await.unwrap();
            let started = async {
                loop {
                    let event = events.recv().await.unwrap();
                    if matches!(event.kind, EventKind::Started { .. }) {
                        break event.content;
                    }
                }
            };
            assert_eq!(started.await, id);
            handle.move_to(id, out.join("moved")).await.unwrap();
            handle.set_files(id, all_files()).await.unwrap();
            handle.add_peers(id, Vec::new()).await.unwrap();
            assert!(matches!(handle.add(source, AddOptions::default()).await, Err(ControlError::Add(_))));
            assert!(matches!(handle.progress(ContentId(99)).await, Err(ControlError::Unknown(_))));
            // Somebody asks on and on, and the session goes.
            let ends = tokio::join!(ask_about(handle.clone()), ask_about(handle.clone()), async {
                while events.recv().await.is_some() {}
            });
            assert!(matches!(ends, (ControlError::Gone, ControlError::Gone, ())));
            assert!(matches!(handle.remove(id, Data::Delete).await, Err(ControlError::Gone)));
            assert!(handle.subscribe().recv().await.is_none());
        });
    });
    run(async {
        let mut node = Node::start(config(1));
        told.send(node.session.handle()).unwrap();
        // The other thread got as far as asking on and on.
        for _ in 0..3 {
            node.until(|kind| matches!(kind, EventKind::Checked { .. })).await;
        }
        drop(node);
        while !other.is_finished() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        other.join().unwrap();
    });
}
