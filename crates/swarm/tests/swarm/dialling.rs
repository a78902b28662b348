//! Who dials whom, and as what.

use std::time::Duration;

use anabranch_bittorrent::extension::ExtensionHandshake;
use anabranch_bittorrent::handshake::{HANDSHAKE_LEN, Handshake, Reserved};
use anabranch_bittorrent::wire::{BlockRange, Message};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::*;

/// Longer than it takes to try an address again after a failure.
const AGAIN: Duration = Duration::from_secs(4);

fn content(version: Version) -> Content {
    Content::new(&[("data", MIB)], version, Some(256 * KIB as u32))
}

/// A session that has all of `content`, looked at, and everything told.
async fn finished_seed(content: &Content) -> Node {
    let mut seed = Node::seed(1, content);
    seed.finished().await;
    seed
}

/// Says where it listens.
async fn say_port(raw: &mut Raw, listener: &TcpListener) {
    let listen_port = Some(listener.local_addr().unwrap().port());
    let hello = ExtensionHandshake { listen_port, ..ExtensionHandshake::default() };
    raw.send(&[Message::Extended { id: 0, payload: &hello.encode() }]).await;
}

async fn is_dialled(listener: &TcpListener) -> bool {
    tokio::time::timeout(AGAIN, listener.accept()).await.is_ok()
}

#[test]
fn who_has_everything_dials_who_cannot_reach_it() {
    run(async {
        let content = content(Version::V1);
        let seed = finished_seed(&content).await;
        let (listener, address) = listener().await;
        seed.session.add_peers(ContentId(0), &[address.into()]).unwrap();
        let mut raw = Raw::accept(&listener, content.info_hash(), 200).await;
        raw.send(&[Message::Interested]).await;
        while raw.next().await != Got::Unchoke {}
        let range = BlockRange { piece: 1, begin: 0, len: 16 * KIB as u32 };
        raw.send(&[Message::Request(range)]).await;
        let block = loop {
            match raw.next().await {
                Got::Block(_, bytes) => break bytes,
                Got::Closed => panic!("closed"),
                _ => {}
            }
        };
        assert_eq!(block, content.block(range));
        // It vanishes, and is found again.
        drop(raw);
        Raw::accept(&listener, content.info_hash(), 200).await;
    });
}

#[test]
fn who_needs_nothing_is_not_dialled_again_by_who_has_everything() {
    run(async {
        let content = content(Version::V1);
        let seed = finished_seed(&content).await;
        let (listener, address) = listener().await;
        seed.session.add_peers(ContentId(0), &[address.into()]).unwrap();
        let mut raw = Raw::accept(&listener, content.info_hash(), 200).await;
        raw.send(&[Message::HaveAll]).await;
        raw.until_closed().await;
        assert!(!is_dialled(&listener).await);
    });
}

#[test]
fn who_dialled_us_is_dialled_once_it_is_gone() {
    run(async {
        let content = content(Version::V1);
        let seed = finished_seed(&content).await;
        let (listener, address) = listener().await;
        let mut raw = Raw::connect(seed.address(), content.info_hash(), 200).await;
        say_port(&mut raw, &listener).await;
        raw.send(&[Message::Interested]).await;
        while raw.next().await != Got::Unchoke {}
        // As a tracker would.
        seed.session.add_peers(ContentId(0), &[address.into()]).unwrap();
        assert!(!is_dialled(&listener).await);
        drop(raw);
        assert!(is_dialled(&listener).await);
    });
}

#[test]
fn both_connections_closed_at_once_are_no_end() {
    run(async {
        let content = content(Version::V1);
        let seed = finished_seed(&content).await;
        let (listener, address) = listener().await;
        seed.session.add_peers(ContentId(0), &[address.into()]).unwrap();
        // Both dial each other, and the other side follows rules of its own: it closes the one that we keep.
        let there = Raw::connect(seed.address(), content.info_hash(), 255).await;
        let back = Raw::accept(&listener, content.info_hash(), 255).await;
        drop((there, back));
        Raw::accept(&listener, content.info_hash(), 255).await;
    });
}

#[test]
fn a_hybrid_is_answered_for_as_v2_where_the_peer_can_do_that() {
    run(async {
        let content = content(Version::Hybrid);
        let seed = Node::seed(1, &content);
        let hashes = content.metainfo.info.hashes;
        let (v1, v2) = (hashes.v1.unwrap(), hashes.v2_truncated().unwrap());
        for (reserved, asked, answer) in
            [(Reserved::OURS, v1, v1), (Reserved::OURS.with_v2(), v1, v2), (Reserved::OURS, v2, v2)]
        {
            let mut stream = TcpStream::connect(seed.address()).await.unwrap();
            let hello = Handshake { reserved, info_hash: asked, peer_id: [9; 20] };
            stream.write_all(&hello.encode()).await.unwrap();
            let mut bytes = [0; HANDSHAKE_LEN];
            stream.read_exact(&mut bytes).await.unwrap();
            assert_eq!(Handshake::parse(&bytes).unwrap().unwrap().info_hash, answer);
        }
    });
}
