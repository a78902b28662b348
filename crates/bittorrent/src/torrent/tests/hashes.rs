//! Merkle layers, fetched and served (BEP 52).

use std::time::Duration;

use anabranch_content::bitfield::Bitfield;
use anabranch_content::info::Version;
use anabranch_content::merkle::{self, HashRequest, PieceTree, Shape};

use super::lone::Lone;
use super::sim::{Content, Sim};
use crate::ConnId;
use crate::torrent::{Event, PeerMisbehaved, PieceOutcome};
use crate::wire::{Hashes, Message, TreeRequest};

const MS: Duration = Duration::from_millis(1);
const LENGTH: usize = 20 * 64 * 1024;

fn v2() -> std::sync::Arc<Content> {
    Content::new(Version::V2, 64 * 1024, &[LENGTH], false)
}

/// A leecher that knows the info dictionary and no layers.
fn layerless(content: &std::sync::Arc<Content>) -> Lone {
    let mut lone = Lone::magnet(content);
    let have = Bitfield::new(content.pieces());
    lone.torrent.set_content(content.info.clone(), Default::default(), have, Vec::new(), lone.now);
    lone
}

fn request(content: &Content) -> TreeRequest {
    let file = content.info.files.iter().find(|file| file.root.is_some()).unwrap();
    let shape = Shape::new(file.length, content.info.geometry.piece_length());
    TreeRequest { root: file.root.unwrap(), part: shape.piece_layer_requests().next().unwrap() }
}

fn asked(lone: &mut Lone, id: ConnId) -> usize {
    lone.sent(id).iter().filter(|text| text.starts_with("HashRequest")).count()
}

fn answer(content: &Content) -> Vec<[u8; 32]> {
    let request = request(content);
    let shape = Shape::new(LENGTH as u64, content.info.geometry.piece_length());
    PieceTree::new(shape, &content.layers[&request.root]).unwrap().answer(&request.part, &[]).unwrap()
}

#[test]
fn nothing_is_fetched_before_its_hash_is_known_and_all_after() {
    let content = v2();
    let mut lone = layerless(&content);
    let id = lone.join_seed();
    assert_eq!(asked(&mut lone, id), 1);
    assert_eq!(lone.requests(id), []);
    assert_eq!(lone.torrent.expected_hash(0), None);
    let hashes = answer(&content);
    let request = request(&content);
    lone.say(id, Message::Hashes(Hashes::new(request, &hashes).unwrap()));
    assert!(lone.events().contains(&Event::PieceLayer { root: request.root, look_at: None }));
    assert!(!lone.requests(id).is_empty());
    let layers: Vec<_> = lone.torrent.piece_layers().map(|(root, layer)| (*root, layer.to_vec())).collect();
    assert_eq!(layers, [(request.root, content.layers[&request.root].to_vec())]);
}

#[test]
fn what_lies_on_disk_is_looked_at_before_it_is_fetched() {
    let content = v2();
    let mut lone = layerless(&content);
    lone.torrent.look_first(&[3, 7]);
    let id = lone.join_seed();
    let hashes = answer(&content);
    let request = request(&content);
    lone.say(id, Message::Hashes(Hashes::new(request, &hashes).unwrap()));
    assert!(lone.events().contains(&Event::PieceLayer { root: request.root, look_at: Some(0..20) }));
    assert_eq!(lone.requests(id), []);
    for piece in 2..20 {
        lone.torrent.piece_verified(piece, PieceOutcome::Good { digests: Vec::new() }, lone.now);
    }
    assert_eq!(lone.requests(id), []);
    lone.torrent.looked_at(&(0..20), lone.now);
    let asked = lone.requests(id);
    assert!(!asked.is_empty() && asked.iter().all(|block| block.piece < 2), "{asked:?}");
}

#[test]
fn wrong_hashes_are_a_proven_lie() {
    let content = v2();
    let mut lone = layerless(&content);
    let id = lone.join_seed();
    let mut hashes = answer(&content);
    hashes[3][0] ^= 1;
    let wrong = Hashes::new(request(&content), &hashes).unwrap();
    let fault = lone.receive(id, Message::Hashes(wrong)).unwrap_err();
    assert_eq!(fault, PeerMisbehaved::BadHashes);
    lone.torrent.misbehaved(id, &fault);
    assert!(lone.events().iter().any(|event| matches!(event, Event::Banned { .. })));
    // Unasked ones are nothing.
    let other = lone.join();
    lone.say(other, Message::Hashes(wrong));
}

#[test]
fn who_refuses_or_does_not_answer_lets_others_go_first() {
    let content = v2();
    for mute in [true, false] {
        let mut lone = layerless(&content);
        let (first, second) = (lone.join_seed(), lone.join_seed());
        assert_eq!((asked(&mut lone, first), asked(&mut lone, second)), (1, 0));
        if mute {
            for _ in 0..41 {
                lone.pass(MS * 250);
            }
        } else {
            lone.say(first, Message::HashReject(request(&content)));
        }
        assert_eq!((asked(&mut lone, first), asked(&mut lone, second)), (0, 1), "mute: {mute}");
        // The first is asked again where the second leaves.
        lone.torrent.disconnected(second, lone.now);
        for _ in 0..45 {
            lone.pass(MS * 250);
        }
        assert_eq!(asked(&mut lone, first), 1);
    }
}

#[test]
fn layers_and_leaves_are_served_and_nonsense_rejected() {
    let content = v2();
    let mut lone = Lone::seed(&content);
    let id = lone.join();
    lone.sent(id);
    let layer = request(&content);
    lone.say(id, Message::HashRequest(layer));
    let expected = answer(&content);
    assert_eq!(lone.sent(id), [format!("{:?}", Message::Hashes(Hashes::new(layer, &expected).unwrap()))]);

    let leaves = TreeRequest { part: HashRequest { base: 0, index: 4, length: 4, proof_layers: 1 }, ..layer };
    lone.say(id, Message::HashRequest(leaves));
    lone.say(id, Message::HashRequest(leaves));
    assert_eq!(lone.events(), [Event::LeavesWanted { piece: 1 }], "one reading serves both");
    assert_eq!(lone.sent(id).len(), 0);
    let digests = merkle::leaves(&content.data[64 * 1024..2 * 64 * 1024]);
    lone.torrent.leaves_ready(1, &digests);
    let told = lone.sent(id);
    assert!(told.len() == 2 && told.iter().all(|text| text.starts_with("Hashes")), "{told:?}");
    // What could not be read is rejected.
    lone.now += Duration::from_secs(10);
    let leaves = TreeRequest { part: HashRequest { index: 8, ..leaves.part }, ..leaves };
    lone.say(id, Message::HashRequest(leaves));
    lone.torrent.leaves_ready(2, &[]);
    assert_eq!(lone.sent(id), [format!("{:?}", Message::HashReject(leaves))]);

    let strange = TreeRequest { root: [9; 32], ..layer };
    let odd = TreeRequest { part: HashRequest { length: 3, ..layer.part }, ..layer };
    for request in [strange, odd] {
        lone.say(id, Message::HashRequest(request));
        assert_eq!(lone.sent(id), [format!("{:?}", Message::HashReject(request))]);
    }
}

#[test]
fn a_hybrid_goes_by_its_sha1_while_layers_are_unknown() {
    let content = Content::new(Version::Hybrid, 64 * 1024, &[LENGTH, 5], false);
    let mut lone = layerless(&content);
    let id = lone.join_seed();
    assert!(!lone.requests(id).is_empty());
    let expected = lone.torrent.expected_hash(0).unwrap();
    assert!(expected.sha1.is_some() && expected.merkle.is_none());
}

#[test]
fn thousands_of_pieces_take_many_requests() {
    let content = Content::new(Version::V2, 16 * 1024, &[1100 * 16 * 1024, 3, 600 * 16 * 1024 - 7], false);
    let mut sim = Sim::new(&content, 3);
    sim.seed(20_000_000);
    sim.seed(20_000_000);
    sim.magnet(1_000_000);
    sim.connect(2, 0, MS * 10);
    sim.connect(2, 1, MS * 10);
    sim.run_to_completion(Duration::from_secs(60));
}

/// libtorrent sets the v2 bit for hybrids only: who dials under a v2 hash speaks v2 (BEP 52).
#[test]
fn asking_for_the_v2_hash_says_v2_without_the_bit() {
    let content = v2();
    let mut sim = Sim::new(&content, 1);
    sim.seed(10_000_000);
    sim.magnet(1_000_000);
    sim.connect_with(1, 0, MS, crate::handshake::Reserved::OURS);
    sim.run_to_completion(Duration::from_secs(60));
}

#[test]
fn hashes_below_the_pieces_are_read_for_few_and_seldom() {
    let content = v2();
    let mut lone = Lone::seed(&content);
    let id = lone.join();
    lone.sent(id);
    let leaves = |piece: u32| TreeRequest {
        part: HashRequest { base: 0, index: 4 * piece, length: 4, proof_layers: 1 },
        ..request(&content)
    };
    // A choked peer has one reading in ten seconds, whatever it asks for; a piece that was read is not read again.
    let readings = |lone: &mut Lone| {
        let events = lone.events();
        let wanted = events.iter().filter_map(|event| match event {
            Event::LeavesWanted { piece } => Some(*piece),
            _ => None,
        });
        wanted.collect::<Vec<u32>>()
    };
    let read = |lone: &mut Lone, piece: u32| {
        let start = piece as usize * 64 * 1024;
        lone.torrent.leaves_ready(piece, &merkle::leaves(&content.data[start..start + 64 * 1024]));
    };
    (0..4).for_each(|piece| lone.say(id, Message::HashRequest(leaves(piece))));
    assert_eq!(readings(&mut lone), [0]);
    read(&mut lone, 0);
    (0..3).for_each(|_| lone.say(id, Message::HashRequest(leaves(0))));
    assert_eq!(readings(&mut lone), [0; 0]);
    let told = lone.sent(id);
    let count = |what: &str| told.iter().filter(|text| text.starts_with(what)).count();
    assert_eq!((count("Hashes"), count("HashReject")), (4, 3), "{told:?}");
    lone.now += Duration::from_secs(10);
    lone.say(id, Message::HashRequest(leaves(2)));
    assert_eq!(readings(&mut lone), [2]);
}

#[test]
fn a_tree_is_made_once_however_many_are_asked_about_by_turns() {
    let content = Content::new(Version::V2, 16 * 1024, &[40 * 16 * 1024, 30 * 16 * 1024], false);
    let mut lone = Lone::seed(&content);
    let id = lone.join();
    lone.sent(id);
    for _ in 0..3 {
        for file in content.info.files.iter().filter(|file| file.root.is_some()) {
            let shape = merkle::Shape::new(file.length, 16 * 1024);
            let request = TreeRequest { root: file.root.unwrap(), part: shape.piece_layer_requests().next().unwrap() };
            lone.say(id, Message::HashRequest(request));
            assert!(lone.sent(id)[0].starts_with("Hashes"));
        }
    }
    assert_eq!(lone.torrent.content.as_ref().unwrap().hashes.kept.trees_made, 2);
    lone.torrent.disconnected(id, lone.now);
}
