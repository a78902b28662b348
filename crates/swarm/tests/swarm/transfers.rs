//! Contents of many shapes arrive whole.

use std::time::{Duration, Instant};

use anabranch_content::hex;

use crate::support::*;

/// One seed, one leecher with so many bytes of buffers.
fn transfer(content: &Content, buffer_bytes: u64) {
    run(async {
        let seed = Node::seed(1, content);
        let (_out, out) = temp();
        let mut node = Node::start(SessionConfig { buffer_bytes, ..config(2) });
        let id = node.get(content, &out, &[seed.address()]);
        node.finished().await;
        content.assert_in(&out, |_| true);
        let stats = node.progress(id).stats;
        // Short memory may cost a block now and then, never much.
        assert!(stats.downloaded_bytes <= content.len() + content.len() / 8 + buffer_bytes, "{stats:?}");
        assert!(!node.saw(|kind| matches!(kind, EventKind::PieceFailed { .. } | EventKind::PeerBanned { .. })));
        node.session.shutdown().await;
    });
}

const BUFFERS: u64 = 16 * MIB as u64;

#[test]
fn smallest_pieces() {
    transfer(&Content::new(&[("data", 3 * MIB + 5)], Version::V1, Some(16 * KIB as u32)), BUFFERS);
}

#[test]
fn common_pieces_of_every_version() {
    for version in [Version::V1, Version::V2, Version::Hybrid] {
        let files = [("a", 5 * MIB + 1), ("b/c", 3 * MIB), ("b/d", 17)];
        transfer(&Content::new(&files, version, Some(MIB as u32)), BUFFERS);
    }
}

#[test]
fn long_pieces() {
    transfer(&Content::new(&[("data", 40 * MIB + 7)], Version::Hybrid, Some(16 * MIB as u32)), 48 * MIB as u64);
}

#[test]
fn pieces_longer_than_all_buffers() {
    for version in [Version::V1, Version::V2] {
        transfer(
            &Content::new(&[("data", 80 * MIB + 7), ("small", 10)], version, Some(64 * MIB as u32)),
            4 * MIB as u64,
        );
    }
}

#[test]
fn odd_piece_lengths() {
    transfer(&Content::odd(2_345_678, 100_000), BUFFERS);
    transfer(&Content::odd(3_000_001, 300_001), BUFFERS);
    transfer(&Content::odd(300_001, 20_000), MIB as u64);
}

#[test]
fn tiny_and_empty_files() {
    transfer(&Content::new(&[("data", 1)], Version::Hybrid, None), BUFFERS);
    let names: Vec<String> = (0..100).map(|at| format!("{}/{at}", at % 7)).collect();
    let files: Vec<(&str, usize)> = names.iter().enumerate().map(|(at, name)| (&**name, at % 5 * 10_000)).collect();
    for version in [Version::V1, Version::V2, Version::Hybrid] {
        transfer(&Content::new(&files, version, Some(32 * KIB as u32)), BUFFERS);
    }
}

#[test]
fn hardly_any_memory() {
    transfer(&Content::new(&[("data", 20 * MIB)], Version::V1, Some(MIB as u32)), MIB as u64);
    transfer(&Content::new(&[("data", 20 * MIB)], Version::Hybrid, Some(4 * MIB as u32)), MIB as u64);
}

#[test]
fn several_contents_both_ways() {
    run(async {
        let contents: Vec<Content> =
            (1..=4).map(|at| Content::new(&[("data", at * MIB + at)], Version::Hybrid, None)).collect();
        let (_outs, outs): (Vec<_>, Vec<_>) = (0..4).map(|_| temp()).unzip();
        let (mut one, mut two) = (Node::start(config(1)), Node::start(config(2)));
        let (mut ones, mut twos) = (Vec::new(), Vec::new());
        for (at, content) in contents.iter().enumerate() {
            let (from, to, ids) = if at % 2 == 0 { (&one, &two, &mut twos) } else { (&two, &one, &mut ones) };
            from.share(content);
            ids.push(to.get(content, &outs[at], &[from.address()]));
        }
        tokio::join!(one.all_finished(&ones), two.all_finished(&twos));
        contents.iter().zip(&outs).for_each(|(content, out)| content.assert_in(out, |_| true));
    });
}

#[test]
fn ipv6() {
    run(async {
        let content = Content::new(&[("data", MIB)], Version::Hybrid, None);
        let listen = vec!["[::1]:0".parse().unwrap()];
        let Ok((session, events)) = Session::start(SessionConfig { listen, ..config(1) }) else {
            assert!(std::env::var_os("CI").is_none(), "IPv6 is needed");
            return;
        };
        let seed = Node { session, events, seen: Vec::new() };
        seed.share(&content);
        let (_out, out) = temp();
        let mut node = Node::start(config(2));
        node.get(&content, &out, &[seed.address()]);
        node.finished().await;
        content.assert_in(&out, |_| true);
    });
}

#[test]
fn many_seeds_share_the_work() {
    run(async {
        let content = Content::new(&[("data", 48 * MIB)], Version::V1, Some(MIB as u32));
        let seeds: Vec<Node> = (1..=5).map(|at| Node::seed(at, &content)).collect();
        let peers: Vec<_> = seeds.iter().map(Node::address).collect();
        let (_out, out) = temp();
        // One seed's part takes seconds: it cannot be done with all before the others' turn.
        let mut node = Node::start(SessionConfig { peer_limit_down: Some(8 * MIB as u64), ..config(9) });
        let options = AddOptions {
            aim: Aim::ChosenFiles,
            dir: out.clone(),
            peers: peers.iter().map(|peer| (*peer).into()).collect(),
            ..AddOptions::default()
        };
        let id = node.session.add(content.source(), options).unwrap();
        for _ in &seeds {
            node.until(|kind| matches!(kind, EventKind::PeerConnected { .. })).await;
        }
        // All are there before anything is asked for.
        assert_eq!(node.progress(id).stats.downloaded_bytes, 0);
        node.session.choose(id, None);
        node.finished().await;
        content.assert_in(&out, |_| true);
        let served = seeds.iter().filter(|seed| seed.progress(ContentId(0)).stats.uploaded_bytes > 0).count();
        assert!(served >= 3, "{served} of {} seeds served", seeds.len());
        let stats = node.progress(id).stats;
        assert!(stats.downloaded_bytes < content.len() * 11 / 10, "{stats:?}");
    });
}

/// Read while it is sent, to two who ask for other pieces at the same time, and over the edges of files and chunks.
#[test]
fn what_is_on_the_disk_and_not_in_memory() {
    for piece_length in [64 * KIB as u32, MIB as u32] {
        let files = [("a", 9 * MIB + 3), ("b", 5), ("c", 0), ("d", 7 * MIB + 77)];
        let content = Content::new(&files, Version::V1, Some(piece_length));
        run(async {
            let seed = Node::seed(1, &content);
            content.drop_from_memory();
            let outs = [temp(), temp()];
            let mut nodes = [Node::start(config(2)), Node::start(config(3))];
            for (node, (_, out)) in nodes.iter_mut().zip(&outs) {
                node.get(&content, out, &[seed.address()]);
            }
            for (node, (_, out)) in nodes.iter_mut().zip(&outs) {
                node.finished().await;
                content.assert_in(out, |_| true);
            }
        });
    }
}

#[test]
fn in_order() {
    run(async {
        // Longer pieces are written past the page cache, two at a time: one may overtake another there by as much as the device
        // is slow.
        let content = Content::new(&[("data", 16 * MIB)], Version::V1, Some(128 * KIB as u32));
        let seed = Node::seed(1, &content);
        let (_out, out) = temp();
        let mut node = Node::start(config(2));
        let options = AddOptions {
            dir: out.clone(),
            peers: vec![seed.address().into()],
            sequential: true,
            ..AddOptions::default()
        };
        node.session.add(content.source(), options).unwrap();
        node.finished().await;
        content.assert_in(&out, |_| true);
        let order: Vec<u32> = node
            .seen
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::Piece { index } => Some(index),
                _ => None,
            })
            .collect();
        assert!(order.windows(2).all(|pair| pair[1] + 16 > pair[0]), "{order:?}");
    });
}

#[test]
fn only_the_files_wanted() {
    run(async {
        let files = [("a", MIB + 3), ("b", 2 * MIB + 5), ("c", MIB)];
        let content = Content::new(&files, Version::V1, Some(256 * KIB as u32));
        let seed = Node::seed(1, &content);
        let (_out, out) = temp();
        let mut node = Node::start(config(2));
        let options = AddOptions {
            dir: out.clone(),
            peers: vec![seed.address().into()],
            files: Some(Box::new(|_, file| file.path.ends_with("b"))),
            ..AddOptions::default()
        };
        let id = node.session.add(content.source(), options).unwrap();
        node.finished().await;
        content.assert_in(&out, |name| name == "b");
        assert!(!out.join("content/a").exists() && !out.join("content/c").exists());
        assert!(node.progress(id).stats.downloaded_bytes < content.len() - MIB as u64);
        assert_eq!(node.progress(id).bytes_done, node.progress(id).bytes_total.unwrap());
    });
}

#[test]
fn rate_limits_hold() {
    // Time only bounds from below: a slow machine makes the transfer slower, never faster than its limit.
    const RATE: u64 = 2 * MIB as u64;
    let slowest = |down, up| {
        run(async move {
            let content = Content::new(&[("data", 4 * MIB)], Version::V1, Some(256 * KIB as u32));
            let seed = Node::start(SessionConfig { limit_up: up, ..config(1) });
            seed.share(&content);
            let (_out, out) = temp();
            let mut node = Node::start(SessionConfig { limit_down: down, ..config(2) });
            let began = Instant::now();
            node.get(&content, &out, &[seed.address()]);
            node.finished().await;
            content.assert_in(&out, |_| true);
            began.elapsed()
        })
    };
    for (down, up) in [(Some(RATE), None), (None, Some(RATE))] {
        let took = slowest(down, up);
        // One burst is free at the start.
        assert!(took >= Duration::from_millis(2000 * 85 / 100 - 200), "{took:?} for two seconds' worth");
    }
}

#[test]
fn a_magnet_link_is_enough() {
    for version in [Version::V1, Version::V2, Version::Hybrid] {
        run(async {
            let content = Content::new(&[("a", 2 * MIB + 3), ("b", 100)], version, Some(64 * KIB as u32));
            let seed = Node::seed(1, &content);
            let hashes = content.metainfo.info.hashes;
            let mut link = String::from("magnet:?");
            if let Some(v1) = hashes.v1 {
                link += &format!("xt=urn:btih:{}&", hex::encode(&v1));
            }
            if let Some(v2) = hashes.v2 {
                link += &format!("xt=urn:btmh:1220{}&", hex::encode(&v2));
            }
            link += &format!("x.pe={}", seed.address());
            let (_out, out) = temp();
            let mut node = Node::start(config(2));
            let options = AddOptions { dir: out.clone(), ..AddOptions::default() };
            node.session.add(Source::Magnet(Box::new(link.parse().unwrap())), options).unwrap();
            node.finished().await;
            content.assert_in(&out, |_| true);
        });
    }
}
