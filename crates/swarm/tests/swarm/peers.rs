//! Peers that are strange, slow, mute or hostile: the transfer completes, and who is to blame is named.

use std::collections::HashSet;

use anabranch_bittorrent::wire::{BlockRange, Message};
use anabranch_paths::Endpoint;
use tokio::time::{Duration, sleep};

use crate::support::*;

fn content() -> Content {
    Content::new(&[("data", 3 * MIB + 1000)], Version::V1, Some(256 * KIB as u32))
}

/// What a download came to.
struct Outcome {
    events: Vec<Event>,
    progress: Progress,
}

impl Outcome {
    fn saw(&self, wanted: impl Fn(&EventKind) -> bool) -> bool {
        self.events.iter().any(|event| wanted(&event.kind))
    }
}

/// Downloads `content` from a peer that says it has everything, then follows `script`, and, where `helper`, from an honest
/// session that is dialled once `script` is done.
fn get_from(content: &Content, helper: bool, script: impl AsyncFnOnce(Raw)) -> Outcome {
    run(async {
        let (listener, address) = listener().await;
        let seed = Node::seed(1, content);
        let (_out, out) = temp();
        let mut node = Node::start(SessionConfig { buffer_bytes: 8 * MIB as u64, ..config(2) });
        let id = node.get(content, &out, &[address]);
        let mut raw = Raw::accept(&listener, content.info_hash(), 200).await;
        let scripted = async {
            raw.offer_all().await;
            script(raw).await;
            if helper {
                node.session.add_peers(id, &[seed.address().into()]).unwrap();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = scripted => {}
            () = wait_finished(&node.session, id) => {}
        }
        node.finished().await;
        content.assert_in(&out, |_| true);
        Outcome { progress: node.progress(id), events: std::mem::take(&mut node.seen) }
    })
}

/// A session that shares `content`, and a peer that it unchoked.
async fn unchoked_by(content: &Content) -> (Node, Raw) {
    let seed = Node::seed(1, content);
    let mut raw = Raw::connect(seed.address(), content.info_hash(), 200).await;
    raw.send(&[Message::Interested]).await;
    while raw.next().await != Got::Unchoke {}
    (seed, raw)
}

async fn wait_finished(session: &Session, id: ContentId) {
    while !session.progress(id).unwrap().finished {
        sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn answers_out_of_order() {
    let content = content();
    let told = get_from(&content, false, async |mut raw| {
        let mut held: Vec<BlockRange> = Vec::new();
        let mut rng = fastrand::Rng::with_seed(3);
        loop {
            let next = tokio::time::timeout(Duration::from_millis(20), raw.until_request()).await;
            match next {
                Ok(Some(range)) => held.push(range),
                Ok(None) => break,
                Err(_) => {}
            }
            if held.len() > 6 || (next.is_err() && !held.is_empty()) {
                let range = held.swap_remove(rng.usize(..held.len()));
                raw.send_block(range, content.block(range)).await;
            }
        }
    });
    assert!(!told.saw(|kind| matches!(kind, EventKind::PeerBanned { .. })));
}

#[test]
fn messages_arrive_byte_by_byte_and_in_odd_cuts() {
    let content = Content::new(&[("data", 300 * KIB)], Version::V1, Some(64 * KIB as u32));
    for cut in [1, 2, 5, 12, 13, 14, 17, 4096, 16 * KIB + 12] {
        get_from(&content, false, async |mut raw| {
            let mut first = true;
            while let Some(range) = raw.until_request().await {
                let message = block_message(range, content.block(range));
                // All of the stream in pieces of `cut`; byte by byte only at the edges, for the sake of time.
                let cut = if first || cut > 16 { cut } else { cut.max(1024) + cut };
                first = false;
                for part in message.chunks(cut) {
                    raw.write(part).await;
                    tokio::task::yield_now().await;
                }
            }
        });
    }
}

#[test]
fn other_messages_between_blocks() {
    let content = content();
    get_from(&content, false, async |mut raw| {
        let mut count = 0;
        while let Some(range) = raw.until_request().await {
            count += 1;
            for _ in 0..count % 4 {
                raw.send(&[Message::Have(range.piece), Message::KeepAlive]).await;
            }
            raw.send_block(range, content.block(range)).await;
            if count % 3 == 0 {
                // A message of a number that nobody knows.
                raw.write(&[0, 0, 0, 3, 99, 1, 2]).await;
            }
        }
    });
}

#[test]
fn every_block_twice() {
    let content = content();
    let told = get_from(&content, true, async |mut raw| {
        while let Some(range) = raw.until_request().await {
            raw.send_block(range, content.block(range)).await;
            raw.send_block(range, content.block(range)).await;
        }
    });
    // Blocks nobody asked for are wasted, and too many of them end the connection.
    assert!(told.progress.stats.wasted_bytes > 0);
}

#[test]
fn unsolicited_blocks_are_not_kept() {
    let content = content();
    let told = get_from(&content, true, async |mut raw| {
        raw.until_request().await.unwrap();
        // Of a length that nobody asks for.
        let wrong = vec![0; 8 * KIB];
        for at in 0..200u32 {
            let range = BlockRange { piece: at % 12, begin: 0, len: 8 * KIB as u32 };
            raw.send_block(range, &wrong).await;
        }
        raw.until_closed().await;
    });
    assert!(
        told.saw(|kind| matches!(kind, EventKind::PeerDisconnected { reason, .. } if reason.contains("not asked for")))
    );
    assert!(!told.saw(|kind| matches!(kind, EventKind::PieceFailed { .. })));
}

#[test]
fn a_length_of_four_gigabytes() {
    let content = content();
    for number in [7u8, 5, 20, 99] {
        let told = get_from(&content, true, async |mut raw| {
            raw.write(&[0xff, 0xff, 0xff, 0xff, number, 0, 0, 0, 0, 0, 0, 0, 0]).await;
            raw.until_closed().await;
        });
        assert!(told.saw(|kind| matches!(kind, EventKind::PeerBanned { .. })));
    }
}

#[test]
fn closes_in_the_middle_of_a_block() {
    let content = content();
    get_from(&content, true, async |mut raw| {
        for _ in 0..5 {
            let range = raw.until_request().await.unwrap();
            raw.send_block(range, content.block(range)).await;
        }
        let range = raw.until_request().await.unwrap();
        let message = block_message(range, content.block(range));
        raw.write(&message[..message.len() / 2]).await;
    });
}

#[test]
fn mute_after_unchoking() {
    let content = content();
    get_from(&content, true, async |mut raw| {
        raw.until_request().await.unwrap();
        // It keeps its requests and never answers, while the other peer serves.
        tokio::task::spawn_local(async move { raw.until_closed().await });
    });
}

#[test]
fn a_drip_does_not_hold_up_the_fast_one() {
    let content = content();
    get_from(&content, true, async |mut raw| {
        let range = raw.until_request().await.unwrap();
        let message = block_message(range, content.block(range));
        tokio::task::spawn_local(async move {
            for byte in message {
                raw.write(&[byte]).await;
                sleep(Duration::from_millis(5)).await;
            }
        });
    });
}

#[test]
fn a_liar_is_banned_and_the_honest_are_not() {
    let content = content();
    let told = get_from(&content, true, async |mut raw| {
        let wrong = vec![0x55; 16 * KIB];
        for _ in 0..16 {
            let Some(range) = raw.until_request().await else { break };
            raw.send_block(range, &wrong[..range.len as usize]).await;
        }
        tokio::task::spawn_local(async move {
            while let Some(range) = raw.until_request().await {
                raw.send_block(range, &wrong[..range.len as usize]).await;
            }
        });
    });
    let banned: HashSet<Endpoint> = told
        .events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::PeerBanned { address, .. } => Some(*address),
            _ => None,
        })
        .collect();
    assert_eq!(banned.len(), 1, "{:?}", told.events);
    assert!(told.saw(|kind| matches!(kind, EventKind::PieceFailed { .. })));
}

#[test]
fn a_flood_of_requests_that_nobody_reads_ends() {
    let content = content();
    run(async {
        let (mut seed, mut raw) = unchoked_by(&content).await;
        let range = BlockRange { piece: 0, begin: 0, len: 16 * KIB as u32 };
        let mut flood = Vec::new();
        (0..1000).for_each(|_| Message::Request(range).encode(&mut flood));
        tokio::task::spawn_local(async move {
            // Never reads. Bounded, in case nobody stops it.
            for _ in 0..1000 {
                raw.write(&flood).await;
            }
            sleep(Duration::from_secs(60)).await;
        });
        let banned = seed.until(|kind| matches!(kind, EventKind::PeerBanned { .. })).await;
        assert!(matches!(banned, EventKind::PeerBanned { reason, .. } if reason.contains("flooded")));
    });
}

#[test]
fn rejects_that_nobody_reads_do_not_gather_for_ever() {
    let content = content();
    run(async {
        let (mut seed, mut raw) = unchoked_by(&content).await;
        // Fills our socket first, so that answers stay behind.
        let block = BlockRange { piece: 0, begin: 0, len: 16 * KIB as u32 };
        let mut fill = Vec::new();
        (0..1500).for_each(|_| Message::Request(block).encode(&mut fill));
        raw.write(&fill).await;
        // Every request that is taken back is answered with a reject.
        let range = BlockRange { piece: 1, begin: 0, len: 16 * KIB as u32 };
        let mut flood = Vec::new();
        (0..10_000).for_each(|_| {
            Message::Request(range).encode(&mut flood);
            Message::Cancel(range).encode(&mut flood);
        });
        tokio::task::spawn_local(async move {
            for _ in 0..500 {
                raw.write(&flood).await;
            }
            sleep(Duration::from_secs(60)).await;
        });
        let gone = seed.until(|kind| matches!(kind, EventKind::PeerDisconnected { .. })).await;
        assert!(matches!(gone, EventKind::PeerDisconnected { reason, .. } if reason.contains("flooded us")));
    });
}
