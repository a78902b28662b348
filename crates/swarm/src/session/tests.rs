use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anabranch_content::create::{CreateOptions, create};
use anabranch_content::info::Version;
use anabranch_content::metainfo::Metainfo;

use super::housekeeping::{LOOKS_PER_ROUND, look_around};
use super::*;
use crate::bittorrent::torrent::open;
use crate::config::AddOptions;
use crate::events::{ContentId, EventKind, FailureKind, PauseCause};
use crate::store::disk::Reply;
use crate::store::open::blocking;
use crate::transfer::ControlError;

/// A test that takes longer hangs.
const TEST_MAX: Duration = Duration::from_secs(60);

fn start(seed: u64, limit_up: Option<u64>) -> (Session, Events) {
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    Session::start(SessionConfig { seed, listen, limit_up, disk_threads: 1, ..SessionConfig::default() }).unwrap()
}

async fn until(events: &mut Events, wanted: impl Fn(&EventKind) -> bool) -> EventKind {
    loop {
        let kind = events.recv().await.unwrap().kind;
        if wanted(&kind) {
            return kind;
        }
    }
}

#[test]
fn magnet_links_name_peers_over_ip_and_scion_but_no_hosts_to_look_up() {
    let form = "magnet:?xt=urn:btih:c12fe1c06bba254a9dc9f519b335aa7c1367a88a&x.pe=10.0.0.1:6001&x.pe=%5B1-ff00%3A0%3A110%2C\
        10.0.0.1%5D%3A6002&x.pe=1-ff00:0:110,10.0.0.1:6003&x.pe=1-ff00:0:110,[::1]:6004&x.pe=host.example:6005&x.pe=10.0.0.1:22";
    let (peers, unfit) = add::magnet_peers(&form.parse().unwrap(), &[]);
    let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
    let of_as = ["[1-ff00:0:110,10.0.0.1]:6002", "[1-ff00:0:110,10.0.0.1]:6003", "[1-ff00:0:110,::1]:6004"];
    assert_eq!(peers, [&["10.0.0.1:6001"], &of_as[..]].concat());
    assert_eq!(unfit, ["10.0.0.1:22".parse().unwrap()]);
}

/// 8 MiB in `dir`, and the torrent of them.
fn content(dir: &Path) -> Metainfo {
    std::fs::write(dir.join("data"), vec![7; 8 << 20]).unwrap();
    let options = CreateOptions { piece_length: Some(256 * 1024), ..CreateOptions::default() };
    let made = create(&dir.join("data"), &options, &AtomicBool::new(false), |_, _| {}).unwrap();
    Metainfo::parse(&made.metainfo).unwrap()
}

#[test]
fn a_content_whose_disk_job_panicked_fails_and_lets_go_of_everything() {
    let dir = tempfile::tempdir().unwrap();
    let metainfo = content(dir.path());
    let source = || Source::Metainfo(Box::new(metainfo.clone()));
    let test = async {
        // Slow enough that the transfer is under way for as long as the test takes.
        let (seed, _seed_events) = start(1, Some(1 << 20));
        let share = AddOptions { dir: dir.path().to_owned(), read_only: true, trusted: true, ..AddOptions::default() };
        seed.add(source(), share).unwrap();
        let (node, mut events) = start(2, None);
        let get = AddOptions {
            dir: dir.path().join("out"),
            peers: vec![seed.listening()[0].into()],
            ..AddOptions::default()
        };
        let id = node.add(source(), get).unwrap();
        until(&mut events, |kind| matches!(kind, EventKind::Piece { .. })).await;
        // Two of its jobs are lost at once.
        for _ in 0..2 {
            node.resources.disk.run(id, move || Reply::Panicked { content: id });
        }
        let failed = until(&mut events, |kind| matches!(kind, EventKind::Failed { .. })).await;
        assert!(matches!(failed, EventKind::Failed { kind: FailureKind::Internal, .. }));
        let after = until(&mut events, |kind| {
            matches!(kind, EventKind::PeerDisconnected { .. } | EventKind::Failed { .. } | EventKind::Resumed)
        });
        assert!(matches!(after.await, EventKind::PeerDisconnected { .. }), "told once, and its peers are gone");
        while node.resources.pools.used_bytes() > 0 || node.resources.requested_bytes.get() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Others find nobody here any more, and nobody is dialled.
        let asked = node.add_peers(id, &[seed.listening()[0].into()]);
        assert!(matches!(asked, Err(ControlError::Failed(_))));
        let again = until(&mut events, |kind| matches!(kind, EventKind::PeerConnected { .. }));
        assert!(tokio::time::timeout(Duration::from_millis(300), again).await.is_err());
        node.shutdown().await;
    };
    run(test);
}

/// Runs `test` as a program would.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new()
        .block_on(&runtime, async { tokio::time::timeout(TEST_MAX, test).await.expect("the test hangs") });
    runtime.shutdown_background();
}

#[test]
fn a_content_that_panics_while_it_is_opened_fails() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("data"), vec![7; 1 << 20]).unwrap();
    let made = create(&dir.path().join("data"), &CreateOptions::default(), &AtomicBool::new(false), |_, _| {}).unwrap();
    let metainfo = Metainfo::parse(&made.metainfo).unwrap();
    run(async {
        let (node, mut events) = start(1, None);
        let options = AddOptions {
            dir: dir.path().to_owned(),
            files: Some(Box::new(|_, _| panic!("a fault, for a test"))),
            ..AddOptions::default()
        };
        node.add(Source::Metainfo(Box::new(metainfo)), options).unwrap();
        let failed = until(&mut events, |kind| matches!(kind, EventKind::Failed { .. })).await;
        assert!(matches!(failed, EventKind::Failed { kind: FailureKind::Internal, .. }));
        node.shutdown().await;
    });
}

#[test]
fn a_panic_on_another_thread_fails_the_content_that_waits_for_it() {
    run(async {
        let (node, mut events) = start(1, None);
        let link = "magnet:?xt=urn:btih:c12fe1c06bba254a9dc9f519b335aa7c1367a88a";
        let id = node.add(Source::Magnet(Box::new(link.parse().unwrap())), AddOptions::default()).unwrap();
        let torrent = node.torrent(id).unwrap();
        // What ends well, or is ended, is no fault.
        open::guarded(torrent.clone(), async { blocking(|| ()).await }).await;
        assert!(events.try_recv().is_none());
        open::guarded(torrent, async { blocking(|| panic!("a fault, for a test")).await }).await;
        let told = events.try_recv().map(|event| event.kind);
        assert!(matches!(told, Some(EventKind::Failed { kind: FailureKind::Internal, .. })), "{told:?}");
        node.shutdown().await;
    });
}

/// A session that has 8 MiB in `dir` as a download that is complete, and tells so.
async fn complete(dir: &Path) -> (Session, Events, ContentId) {
    let metainfo = content(dir);
    let (node, mut events) = start(1, None);
    let options = AddOptions { dir: dir.to_owned(), ..AddOptions::default() };
    let id = node.add(Source::Metainfo(Box::new(metainfo)), options).unwrap();
    until(&mut events, |kind| matches!(kind, EventKind::Finished)).await;
    (node, events, id)
}

#[test]
fn files_that_somebody_has_for_long_are_deleted_when_they_are_free() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let (node, mut events, id) = complete(dir.path()).await;
        let held = node.torrent(id).unwrap().borrow().storage.clone().unwrap();
        let path = held.file_path(0);
        assert!(matches!(node.remove(id, Data::Delete).await, Err(ControlError::Slow)));
        until(&mut events, |kind| matches!(kind, EventKind::Removed)).await;
        assert!(node.list().is_empty() && path.exists());
        drop(held);
        while path.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // And its place is others' then.
        while !node.deleting.borrow().is_empty() {
            while node.deleting.borrow_mut().try_join_next().is_some() {}
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let metainfo = content(dir.path());
        let options = AddOptions { dir: dir.path().to_owned(), ..AddOptions::default() };
        let id = node.add(Source::Metainfo(Box::new(metainfo)), options).unwrap();
        until(&mut events, |kind| matches!(kind, EventKind::Finished)).await;
        // What nobody has goes at once.
        node.remove(id, Data::Delete).await.unwrap();
        assert!(!path.exists());
        node.shutdown().await;
    });
}

#[test]
fn each_round_of_looks_at_files_goes_on_where_the_last_one_ended() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("many");
    std::fs::create_dir(&folder).unwrap();
    let name = |number: usize| folder.join(format!("{number:03}"));
    (0..=LOOKS_PER_ROUND).for_each(|number| std::fs::write(name(number), "content").unwrap());
    let options = CreateOptions { version: Version::V1, ..CreateOptions::default() };
    let made = create(&folder, &options, &AtomicBool::new(false), |_, _| {}).unwrap();
    let metainfo = Metainfo::parse(&made.metainfo).unwrap();
    let last = metainfo.info.regular_files().nth(LOOKS_PER_ROUND).map(|(file, _)| file).unwrap();
    run(async {
        let (node, mut events) = start(1, None);
        let path = dir.path().join(&metainfo.info.files[last].path);
        let share = AddOptions { dir: dir.path().to_owned(), read_only: true, trusted: true, ..AddOptions::default() };
        let id = node.add(Source::Metainfo(Box::new(metainfo)), share).unwrap();
        until(&mut events, |kind| matches!(kind, EventKind::Started { .. })).await;
        std::fs::write(path, "something else").unwrap();
        let contents = || Rc::clone(&node.contents);
        let next = look_around(contents(), (ContentId(0), 0)).await;
        assert_eq!((next.0, next.1 >= LOOKS_PER_ROUND), (id, true));
        assert_eq!(look_around(contents(), next).await, (ContentId(0), 0));
        let failed = until(&mut events, |kind| matches!(kind, EventKind::Failed { .. })).await;
        assert!(matches!(failed, EventKind::Failed { kind: FailureKind::Content, .. }), "{failed:?}");
        node.shutdown().await;
    });
}

#[test]
fn storage_that_fails_while_the_owner_has_a_content_wait_is_told_when_it_is_let_go() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let (node, mut events, id) = complete(dir.path()).await;
        let paused = |kind: &EventKind| matches!(kind, EventKind::Paused { .. } | EventKind::Resumed);
        node.pause(id).unwrap();
        let told = until(&mut events, paused).await;
        assert!(matches!(told, EventKind::Paused { cause: PauseCause::Owner, .. }), "{told:?}");
        node.torrent(id).unwrap().borrow_mut().content_unreadable(0, "the disk is gone");
        node.resume(id).unwrap();
        let told = until(&mut events, paused).await;
        let EventKind::Paused { cause: PauseCause::Storage, reason } = told else { panic!("{told:?}") };
        assert_eq!(reason, "the disk is gone");
        // Nothing is wrong with it: so much shows when it is tried again. Then a pause has one cause.
        assert!(matches!(until(&mut events, paused).await, EventKind::Resumed));
        node.pause(id).unwrap();
        node.resume(id).unwrap();
        let told = [until(&mut events, paused).await, until(&mut events, paused).await];
        assert!(matches!(told, [EventKind::Paused { cause: PauseCause::Owner, .. }, EventKind::Resumed]), "{told:?}");
        node.shutdown().await;
    });
}

#[test]
fn nothing_keeps_what_was_dropped_or_removed() {
    let dir = tempfile::tempdir().unwrap();
    let metainfo = content(dir.path());
    let source = || Source::Metainfo(Box::new(metainfo.clone()));
    run(async {
        let (seed, _seed_events) = start(1, Some(1 << 20));
        let share = AddOptions { dir: dir.path().to_owned(), read_only: true, trusted: true, ..AddOptions::default() };
        seed.add(source(), share).unwrap();
        let (node, mut events) = start(2, None);
        let get = |dir: &std::path::Path| AddOptions {
            dir: dir.join("out"),
            peers: vec![seed.listening()[0].into()],
            ..AddOptions::default()
        };
        // In the middle of a transfer.
        let id = node.add(source(), get(dir.path())).unwrap();
        until(&mut events, |kind| matches!(kind, EventKind::Piece { .. })).await;
        let content = node.torrent(id).unwrap().downgrade();
        node.remove(id, Data::Keep).await.unwrap();
        while content.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!((node.resources.pools.used_bytes(), node.resources.requested_bytes.get()), (0, 0));
        // The same of a whole session, with somebody at the door who says nothing.
        node.add(source(), get(dir.path())).unwrap();
        until(&mut events, |kind| matches!(kind, EventKind::Piece { .. })).await;
        let _mute = tokio::net::TcpStream::connect(node.listening()[0]).await.unwrap();
        let resources = Rc::downgrade(&node.resources);
        drop(node);
        while resources.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        while events.recv().await.is_some() {}
        seed.shutdown().await;
    });
}
