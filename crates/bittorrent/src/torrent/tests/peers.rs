//! Many connections, one peer: who belongs together, and what counts once.

use std::time::Duration;

use anabranch_paths::Endpoint;

use super::lone::{Lone, OUR_KEY, call_itself, claim, name, path_id, prove, us};
use super::sim::Content;
use crate::choker;
use crate::extension::{Extension, ExtensionHandshake, PEX_INTERVAL, PexMessage, SeenAs};
use crate::handshake::{Handshake, Reserved};
use crate::torrent::{Event, Link, PATHS_PER_PEER_MAX, PeerMisbehaved, PieceOutcome, REPLACED_AFTER, Refused};
use crate::wire::{BlockRange, Message};
use crate::{ConnId, PeerKey};

const HOST: &str = "192.0.2.1";
const BLOCK: u32 = 16 * 1024;

fn peer_of(lone: &Lone, id: ConnId) -> PeerKey {
    lone.torrent.conns[&id].peer
}

#[test]
fn a_peer_has_one_connection_a_path_up_to_the_limit() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let first = lone.join_over(1, HOST, 1, None).unwrap();
    assert_eq!(lone.join_over(1, HOST, 1, None), Err(Refused::Duplicate));
    for path in 2..=PATHS_PER_PEER_MAX as u16 {
        let id = lone.join_over(1, HOST, path, None).unwrap();
        assert_eq!(peer_of(&lone, id), peer_of(&lone, first));
    }
    assert_eq!(lone.join_over(1, HOST, 99, None), Err(Refused::TooManyPaths));
    lone.torrent.disconnected(first, lone.now);
    lone.join_over(1, HOST, 99, None).unwrap();
    assert_eq!(lone.torrent.stats(lone.now).peers, 1);
    lone.join_over(2, HOST, 1, None).unwrap();
    assert_eq!(lone.torrent.stats(lone.now).peers, 2);
}

#[test]
fn a_key_or_a_name_joins_what_comes_from_several_hosts() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let (key, other_key) = (Some([1; 32]), Some([2; 32]));
    // A proven key, whatever the host and the peer id.
    let proven = lone.join_over(1, HOST, 1, key).unwrap();
    let moved = lone.join_over(3, "192.0.2.9", 2, key).unwrap();
    assert_eq!(peer_of(&lone, moved), peer_of(&lone, proven));
    // Another key is another peer, whatever it says.
    let other = lone.join_over(1, HOST, 3, other_key).unwrap();
    call_itself(&mut lone, proven, 7);
    call_itself(&mut lone, other, 7);
    assert_ne!(peer_of(&lone, other), peer_of(&lone, proven));
    // A name joins where the peer id is the same.
    let named = lone.join_over(1, "198.51.100.1", 4, None).unwrap();
    assert_ne!(peer_of(&lone, named), peer_of(&lone, proven));
    call_itself(&mut lone, named, 7);
    assert_eq!(peer_of(&lone, named), peer_of(&lone, proven));
    let thief = lone.join_over(5, "198.51.100.2", 5, None).unwrap();
    call_itself(&mut lone, thief, 7);
    assert_ne!(peer_of(&lone, thief), peer_of(&lone, proven));
    // Once given, a name stays.
    call_itself(&mut lone, thief, 8);
    assert_eq!(lone.torrent.peers[&peer_of(&lone, thief)].identity, name(7).identity());
    assert_eq!(lone.torrent.stats(lone.now).peers, 3);
}

/// A third party learns by what name an honest peer is known here (it calls that peer in our name), and says it.
#[test]
fn a_name_that_is_not_proven_joins_nothing() {
    let content = Content::v1(BLOCK, 8 * BLOCK as usize);
    let mut lone = Lone::leecher(&content);
    let honest = lone.join_over(1, HOST, 1, None).unwrap();
    call_itself(&mut lone, honest, 7);
    lone.say(honest, Message::Bitfield(&[0b1000_0000]));
    lone.torrent.payload_sent(honest, 1000, lone.now);
    let here = us(&lone, honest);
    let thief_host = "198.51.100.1";
    // A signature by a key of its own; the honest peer's, made for the thief who called it; a right one of another connection.
    let tries: [(u8, SeenAs); 3] =
        [(8, here), (7, SeenAs::Host(thief_host.parse().unwrap())), (7, SeenAs::Key(OUR_KEY))];
    for (by, seen) in tries {
        let thief = lone.join_over(1, thief_host, 2, None).unwrap();
        claim(&mut lone, thief, 7);
        prove(&mut lone, thief, by, seen);
        assert_ne!(peer_of(&lone, thief), peer_of(&lone, honest));
        // A second, right answer comes too late: there is one a connection.
        prove(&mut lone, thief, 7, here);
        assert_ne!(peer_of(&lone, thief), peer_of(&lone, honest));
        // What it says it has and has not is its own, ...
        lone.say(thief, Message::HaveAll);
        lone.extended(thief, Extension::DontHave, &crate::extension::encode_dont_have(0)).unwrap();
        assert_eq!(lone.torrent.conns[&honest].bits().unwrap().as_bytes(), [0b1000_0000]);
        // ... and so is its ban.
        lone.events();
        lone.torrent.misbehaved(thief, &PeerMisbehaved::BadHashes);
        assert_eq!(lone.closed(), [thief]);
        lone.torrent.disconnected(thief, lone.now);
        lone.torrent.bans.clear();
    }
    assert_eq!(lone.torrent.peers[&peer_of(&lone, honest)].uploaded_bytes, 1000);
    let again = lone.join_over(1, "192.0.2.77", 3, None).unwrap();
    call_itself(&mut lone, again, 7);
    assert_eq!(peer_of(&lone, again), peer_of(&lone, honest), "the honest peer's own second path joins");
}

#[test]
fn a_proven_key_is_never_one_with_a_connection_that_shows_none() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let proven = lone.join_over(1, HOST, 1, Some([1; 32])).unwrap();
    let copied = lone.join_over(1, HOST, 2, None).unwrap();
    assert_ne!(peer_of(&lone, copied), peer_of(&lone, proven));
    let after = lone.join_over(1, HOST, 3, Some([1; 32])).unwrap();
    assert_eq!(peer_of(&lone, after), peer_of(&lone, proven));
}

#[test]
fn we_prove_our_name_once_to_who_asks() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let asked = crate::extension::Challenge([3; 16]);
    let keyed = Some([4; 32]);
    for (path, key, seen) in [(1, None, SeenAs::Host(HOST.parse().unwrap())), (2, keyed, SeenAs::Key([4; 32]))] {
        let id = lone.join_over(1, HOST, path, key).unwrap();
        let hello = ExtensionHandshake::parse(&lone.sent_extended(id, 0)[0]).unwrap();
        assert!(hello.challenge.is_some());
        lone.receive_handshake(id, |hello| hello.challenge = Some(asked));
        lone.receive_handshake(id, |hello| hello.challenge = Some(crate::extension::Challenge([4; 16])));
        let answers = lone.sent_extended(id, 0);
        let [answer] = &answers[..] else { panic!("{} answers", answers.len()) };
        let proof = ExtensionHandshake::parse(answer).unwrap().proof.unwrap();
        assert!(hello.identity.unwrap().is_proven_by(&proof, asked, seen));
    }
}

#[test]
fn joining_keeps_the_limit_and_the_credit() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::seed(&content);
    for path in 1..=PATHS_PER_PEER_MAX as u16 {
        let id = lone.join_over(1, HOST, path, None).unwrap();
        call_itself(&mut lone, id, 7);
    }
    let late = lone.join_over(1, "198.51.100.1", 90, None).unwrap();
    lone.torrent.payload_sent(late, 1000, lone.now);
    lone.events();
    call_itself(&mut lone, late, 7);
    assert_eq!(lone.closed(), [late]);
    lone.torrent.disconnected(late, lone.now);
    let peers: Vec<u64> = lone.torrent.peers.values().map(|peer| peer.uploaded_bytes).collect();
    assert_eq!(peers, [1000]);
}

#[test]
fn a_peer_takes_one_slot_and_opens_all_its_paths() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::seed(&content);
    lone.torrent.choker.set_config(choker::Config { slots: choker::Slots::Fixed(1), ..choker::Config::default() });
    let paths: Vec<ConnId> = (1..4).map(|path| lone.join_over(1, HOST, path, None).unwrap()).collect();
    paths.iter().for_each(|id| lone.say(*id, Message::Interested));
    // From another host: until it says who it is, it is somebody else.
    let also = lone.join_over(1, "198.51.100.1", 9, None).unwrap();
    let rival = lone.join_over(2, "192.0.2.2", 1, None).unwrap();
    [also, rival].iter().for_each(|id| lone.say(*id, Message::Interested));
    let first = paths[0];
    call_itself(&mut lone, first, 7);
    call_itself(&mut lone, also, 7);
    // From the next round on there is one slot.
    (0..10).for_each(|_| lone.pass(Duration::from_secs(1)));
    for _ in 0..400 {
        lone.pass(Duration::from_secs(1));
        let open = |id: &ConnId| !lone.torrent.conns[id].choking;
        let ours: Vec<bool> = paths.iter().chain([&also]).map(open).collect();
        assert!(ours.iter().all(|open| *open == ours[0]), "{ours:?}");
        assert_ne!(ours[0], open(&rival), "one slot");
        let now = lone.now;
        for id in paths.iter().chain([&also, &rival]).copied().collect::<Vec<_>>() {
            lone.torrent.payload_sent(id, 1 << 20, now);
            lone.say(id, Message::KeepAlive);
        }
    }
}

#[test]
fn a_newcomer_is_granted_pieces_once_whatever_its_paths() {
    let content = Content::v1(BLOCK, 100 * BLOCK as usize);
    let mut have = anabranch_content::bitfield::Bitfield::new(content.pieces());
    have.set(0);
    let mut lone = Lone::with(&content, have);
    let ids = [1, 2].map(|path| lone.join_over(1, HOST, path, None).unwrap());
    let granted = ids.map(|id| lone.torrent.conns[&id].granted_fast.len());
    assert!(granted[0] > 0 && granted[1] == 0, "{granted:?}");
}

#[test]
fn a_peer_makes_no_piece_more_common_than_one() {
    let content = Content::v1(BLOCK, 8 * BLOCK as usize);
    let mut lone = Lone::leecher(&content);
    let availability = |lone: &Lone| {
        let picker = lone.torrent.content.as_ref().unwrap().picker.as_ref().unwrap();
        (0..8).map(|piece| picker.availability(piece)).collect::<Vec<_>>()
    };
    let ids: Vec<ConnId> = (1..4).map(|path| lone.join_over(1, HOST, path, None).unwrap()).collect();
    ids.iter().for_each(|id| lone.say(*id, Message::Bitfield(&[0b1100_0000])));
    assert_eq!(availability(&lone), [1, 1, 0, 0, 0, 0, 0, 0]);
    // What it gained is heard over one path, and holds for all.
    lone.say(ids[2], Message::Have(7));
    assert_eq!(availability(&lone), [1, 1, 0, 0, 0, 0, 0, 1]);
    assert!(ids.iter().all(|id| lone.torrent.conns[id].bits().unwrap().get(7)));
    lone.extended(ids[1], Extension::DontHave, &crate::extension::encode_dont_have(0)).unwrap();
    assert_eq!(availability(&lone), [0, 1, 0, 0, 0, 0, 0, 1]);
    // The others stand in for one that ends, and a peer that turns out to be another counts once.
    lone.torrent.disconnected(ids[0], lone.now);
    assert_eq!(availability(&lone), [0, 1, 0, 0, 0, 0, 0, 1]);
    let also = lone.join_over(1, "198.51.100.1", 9, None).unwrap();
    lone.say(also, Message::HaveAll);
    assert_eq!(availability(&lone), [1, 2, 1, 1, 1, 1, 1, 2]);
    assert_eq!(lone.torrent.stats(lone.now).seeds, 1);
    call_itself(&mut lone, ids[1], 7);
    call_itself(&mut lone, also, 7);
    assert_eq!(availability(&lone).iter().max(), Some(&1));
    for id in [ids[1], ids[2], also] {
        lone.torrent.disconnected(id, lone.now);
    }
    assert_eq!(availability(&lone), [0; 8]);
    assert_eq!(lone.torrent.stats(lone.now).seeds, 0);
}

#[test]
fn a_ban_closes_every_path_and_holds_for_every_host() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let key = Some([1; 32]);
    let ids = [lone.join_over(1, HOST, 1, key).unwrap(), lone.join_over(1, "192.0.2.9", 2, key).unwrap()];
    call_itself(&mut lone, ids[0], 7);
    lone.torrent.misbehaved(ids[1], &PeerMisbehaved::BadHashes);
    let events = lone.events();
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Banned { .. })).count(), 1);
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Close { .. })).count(), 2);
    ids.iter().for_each(|id| lone.torrent.disconnected(*id, lone.now));
    for host in [HOST, "192.0.2.9"] {
        assert!(matches!(lone.join_over(1, host, 3, None), Err(Refused::Banned(_))), "{host}");
    }
    assert!(matches!(lone.join_over(2, "203.0.113.1", 3, key), Err(Refused::Banned(_))));
    // Under another address and without the key: until it says its name.
    let again = lone.join_over(1, "203.0.113.1", 3, None).unwrap();
    call_itself(&mut lone, again, 7);
    assert_eq!(lone.closed(), [again]);
}

#[test]
fn a_piece_of_lies_over_two_paths_has_one_liar() {
    let content = Content::v1(2 * BLOCK, 2 * BLOCK as usize);
    let mut lone = Lone::leecher(&content);
    let ids = [1, 2].map(|path| lone.join_over(1, HOST, path, None).unwrap());
    for id in ids {
        lone.say(id, Message::HaveAll);
        lone.say(id, Message::Unchoke);
    }
    let block = |at| BlockRange { piece: 0, begin: at * BLOCK, len: BLOCK };
    let asked: Vec<Vec<BlockRange>> = ids.iter().map(|id| lone.requests(*id)).collect();
    assert_eq!(asked.concat().len(), 2, "each block once: {asked:?}");
    // Whichever was asked, one comes over each.
    lone.torrent.set_path_state(ids[0], crate::torrent::PathState::Down, lone.now);
    assert!(lone.deliver(ids[0], block(0)), "what comes after all is welcome");
    assert!(lone.deliver(ids[1], block(1)));
    lone.torrent.piece_verified(0, PieceOutcome::Bad { digests: vec![1, 2] }, lone.now);
    assert!(lone.events().iter().any(|event| matches!(event, Event::Banned { .. })));
}

#[test]
fn peers_are_exchanged_once_a_peer() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let ours = [1, 2].map(|path| lone.join_over(1, HOST, path, None).unwrap());
    let _theirs = [1, 2].map(|path| lone.join_over(2, "192.0.2.2", path, None).unwrap());
    for id in ours {
        lone.receive_handshake(id, |_| {});
        lone.sent(id);
    }
    lone.pass(Duration::from_millis(1));
    let told = ours.map(|id| lone.sent_extended(id, Extension::Pex.our_id()));
    let added = PexMessage::parse(&told[0][0]).unwrap().added;
    assert_eq!(added.iter().map(|(address, _)| address.to_string()).collect::<Vec<_>>(), ["192.0.2.2:6881"]);
    assert!(told[1].is_empty());
    // Two messages at once over two paths are one too many.
    let news = |port: u16| PexMessage {
        added: vec![(format!("192.0.2.3:{port}").parse().unwrap(), added[0].1)],
        dropped: vec![],
        in_use: None,
    };
    lone.events();
    ours.iter().for_each(|id| lone.extended(*id, Extension::Pex, &news(6001).encode()).unwrap());
    assert_eq!(lone.events().len(), 1);
    // The second path takes over when the first is gone.
    lone.torrent.disconnected(ours[0], lone.now);
    lone.pass(PEX_INTERVAL);
    assert_eq!(lone.sent_extended(ours[1], Extension::Pex.our_id()).len(), 1);
}

#[test]
fn our_own_name_is_another_for_every_peer_and_none_without_a_secret() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    lone.torrent.identity_secret = None;
    let name = |lone: &mut Lone, peer, path| {
        let id = lone.join_over(peer, HOST, path, None).unwrap();
        ExtensionHandshake::parse(&lone.sent_extended(id, 0)[0]).unwrap().identity
    };
    assert_eq!(name(&mut lone, 1, 1), None);
    lone.torrent.set_identity_secret([3; 32]);
    let names = [(1, 2), (1, 3), (2, 1)].map(|(peer, path)| name(&mut lone, peer, path).unwrap());
    assert!(names[0] == names[1] && names[1] != names[2]);
}

#[test]
fn a_peer_that_lost_its_connection_unnoticed_may_open_it_anew() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::seed(&content);
    let hello = Handshake { reserved: Reserved::OURS, info_hash: [0; 20], peer_id: [1; 20] };
    let link = |port: u16| {
        let address = Endpoint::Ip(([192, 0, 2, 1], port).into());
        Link {
            address,
            outgoing: false,
            path: Some(path_id(1)),
            key: None,
            local: None,
            over_utp: false,
            is_near: false,
        }
    };
    let first = lone.torrent.connected_over(link(1000), &hello, lone.now).unwrap();
    lone.now += REPLACED_AFTER;
    assert_eq!(lone.torrent.connected_over(link(1001), &hello, lone.now), Err(Refused::Duplicate));
    lone.now += Duration::from_millis(1);
    let second = lone.torrent.connected_over(link(1001), &hello, lone.now).unwrap();
    let closed = std::iter::from_fn(|| lone.torrent.poll_event());
    let closed: Vec<Event> = closed.filter(|event| matches!(event, Event::Close { .. })).collect();
    assert!(matches!(closed[..], [Event::Close { conn, .. }] if conn == first), "{closed:?}");
    // That one is alive.
    assert_eq!(lone.torrent.connected_over(link(1002), &hello, lone.now), Err(Refused::Duplicate));
    assert_eq!(lone.torrent.conns[&second].peer, lone.torrent.conns[&first].peer);
}
