//! Trackers, limits on connections, and ways to leave.

use std::time::{Duration, Instant};

use anabranch_swarm::tracker::{ServerOptions, TrackerServer};

use crate::support::*;

#[test]
fn a_tracker_brings_everybody_together() {
    run(async {
        let content = Content::new(&[("data", 4 * MIB)], Version::Hybrid, Some(256 * KIB as u32));
        let server = TrackerServer::bind("127.0.0.1:0".parse().unwrap(), ServerOptions::default()).await.unwrap();
        let url = format!("http://{}/announce", server.local_addrs()[0]);
        tokio::task::spawn_local(server.run(std::future::pending()));
        let add = |node: &Node, dir: &std::path::Path, share: bool| {
            let options = AddOptions {
                dir: dir.to_owned(),
                trackers: vec![url.clone()],
                read_only: share,
                trusted: share,
                ..AddOptions::default()
            };
            node.session.add(content.source(), options).unwrap()
        };
        let mut seed = Node::start(config(1));
        add(&seed, content.dir.path(), true);
        seed.until(|kind| matches!(kind, EventKind::Tracker { .. })).await;
        let (_outs, outs): (Vec<_>, Vec<_>) = (0..2).map(|_| temp()).unzip();
        let (mut one, mut two) = (Node::start(config(2)), Node::start(config(3)));
        add(&one, &outs[0], false);
        add(&two, &outs[1], false);
        tokio::join!(one.finished(), two.finished());
        outs.iter().for_each(|out| content.assert_in(out, |_| true));
        // "completed" is announced, then "stopped": nobody waits long for either.
        let began = Instant::now();
        one.session.shutdown().await;
        two.session.shutdown().await;
        seed.session.shutdown().await;
        assert!(began.elapsed() < Duration::from_secs(30));
        // Who left is not named any more.
        let mut late = Node::start(config(4));
        let (_out, out) = temp();
        add(&late, &out, false);
        let told = late.until(|kind| matches!(kind, EventKind::Tracker { .. })).await;
        assert!(matches!(told, EventKind::Tracker { peers: 0, .. }), "{told:?}");
    });
}

#[test]
fn a_tracker_that_is_mute_does_not_hold_up_leaving() {
    run(async {
        let content = Content::new(&[("data", MIB)], Version::V1, None);
        let (mute, address) = listener().await;
        let node = Node::start(config(1));
        let (_out, out) = temp();
        let options =
            AddOptions { dir: out, trackers: vec![format!("http://{address}/announce")], ..AddOptions::default() };
        node.session.add(content.source(), options).unwrap();
        // Taken, never answered.
        let _held = mute.accept().await.unwrap();
        // The test's own limit is what fails it: leaving must not take as long as the tracker.
        tokio::time::timeout(Duration::from_secs(20), node.session.shutdown()).await.unwrap();
    });
}

#[test]
fn leaving_in_the_middle_loses_only_what_is_under_way() {
    let content = Content::new(&[("data", 16 * MIB)], Version::V1, Some(256 * KIB as u32));
    let (_out, out) = temp();
    run(async {
        let seed = Node::start(SessionConfig { limit_up: Some(16 * MIB as u64), ..config(1) });
        seed.share(&content);
        let mut node = Node::start(config(2));
        let id = node.get(&content, &out, &[seed.address()]);
        for _ in 0..10 {
            node.until(|kind| matches!(kind, EventKind::Piece { .. })).await;
        }
        let have = node.progress(id).pieces_have;
        node.session.shutdown().await;
        // The listeners are gone: the same address can be listened on again.
        let mut again = Node::start(config(2));
        again.get(&content, &out, &[]);
        let started = again.until(|kind| matches!(kind, EventKind::Started { .. })).await;
        let EventKind::Started { pieces_have, changed_files, .. } = started else { unreachable!() };
        assert!(pieces_have >= have && changed_files.is_empty(), "{pieces_have} of {have}: {changed_files:?}");
        assert!(!again.saw(|kind| matches!(kind, EventKind::Checking { .. })));
    });
}

#[test]
fn listeners_end_with_their_session() {
    run(async {
        let node = Node::start(config(1));
        let address = node.address();
        node.session.shutdown().await;
        tokio::task::yield_now().await;
        assert!(tokio::net::TcpStream::connect(address).await.is_err());
        let node = Node::start(SessionConfig { listen: vec![address], ..config(2) });
        let address = node.address();
        drop(node);
        tokio::task::yield_now().await;
        assert!(tokio::net::TcpStream::connect(address).await.is_err());
    });
}

#[test]
fn no_more_connections_than_allowed() {
    run(async {
        let content = Content::new(&[("data", MIB)], Version::V1, None);
        let seed = Node::start(SessionConfig { connections_max: 2, ..config(1) });
        let id = seed.share(&content);
        let _one = Raw::connect(seed.address(), content.info_hash(), 101).await;
        let _two = Raw::connect(seed.address(), content.info_hash(), 102).await;
        while seed.session.peers(id).len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // Neither was idle for long: both keep their place.
        let mut three = tokio::net::TcpStream::connect(seed.address()).await.unwrap();
        let closed = tokio::io::AsyncReadExt::read(&mut three, &mut [0; 1]).await;
        assert!(matches!(closed, Ok(0) | Err(_)));
        assert_eq!(seed.session.peers(id).len(), 2);
    });
}

#[test]
fn nothing_is_made_of_a_content_whose_files_nobody_chose() {
    run(async {
        let content = Content::new(&[("a", MIB), ("b", MIB)], Version::V2, None);
        let seed = Node::seed(1, &content);
        let (_out, out) = temp();
        let mut node = Node::start(config(2));
        let magnet = Source::Magnet(Box::new(content.metainfo.magnet()));
        let add = |aim| AddOptions {
            aim,
            dir: out.join("made"),
            peers: vec![seed.address().into()],
            ..AddOptions::default()
        };
        let id = node.session.add(magnet.clone(), add(Aim::ChosenFiles)).unwrap();
        node.until(|kind| matches!(kind, EventKind::Metadata { .. })).await;
        assert_eq!(node.session.info(id).unwrap().files, content.metainfo.info.files);
        let removed = node.session.remove(id, Data::Keep);
        // What is said too late is said to nobody.
        node.session.choose(id, None);
        removed.await.unwrap();
        // Without files, what the content is comes whole.
        let id = node.session.add(magnet, add(Aim::Metadata)).unwrap();
        while node.session.metainfo(id).is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(node.session.metainfo(id).unwrap().piece_layers, content.metainfo.piece_layers);
        assert_eq!(node.progress(id).stats.downloaded_bytes, 0);
        assert!(!node.saw(|kind| matches!(kind, EventKind::Started { .. })));
        node.session.shutdown().await;
        assert!(!out.join("made").exists());
    });
}
