//! Extensions: metadata both ways, peers, private torrents, and messages that make no sense.

use std::time::Duration;

use anabranch_content::info::Version;
use anabranch_paths::Endpoint;

use super::lone::Lone;
use super::sim::{Content, Sim};
use crate::extension::{
    Extension, ExtensionHandshake, METADATA_REQUEST_TIMEOUT, MetadataMessage, PEX_INTERVAL, PEX_RECEIVE_INTERVAL_MIN,
    PexFlags, PexMessage,
};
use crate::handshake::{Handshake, Reserved};
use crate::torrent::config::BAD_EXTENSIONS_MAX;
use crate::torrent::{Event, PeerMisbehaved};
use crate::wire::Message;

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_magnet_link_is_enough() {
    for version in [Version::V1, Version::V2, Version::Hybrid] {
        let content = Content::new(version, 16 * 1024, &[1_500_000, 40_000], false);
        let mut sim = Sim::new(&content, 1);
        sim.seed(1_000_000);
        // Of the two links, one knows only the other.
        sim.magnet(1_000_000);
        sim.magnet(1_000_000);
        sim.connect(1, 0, MS * 20);
        sim.connect(2, 1, MS * 20);
        sim.run_to_completion(Duration::from_secs(60));
        assert!(sim.nodes[1].metadata && sim.nodes[2].metadata);
    }
}

/// The pieces of metadata asked for since the last time.
fn asked(lone: &mut Lone, id: crate::ConnId) -> Vec<u32> {
    let payloads = lone.sent_extended(id, Extension::Metadata.our_id());
    let piece = |payload: &Vec<u8>| match MetadataMessage::parse(payload).unwrap() {
        Some(MetadataMessage::Request { piece }) => Some(piece),
        _ => None,
    };
    payloads.iter().filter_map(piece).collect()
}

#[test]
fn a_liar_about_metadata_is_banned_and_a_refusal_passed_on() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::magnet(&content);
    let size = content.info.source.len() as u64;
    let (liar, shy, good) = (lone.join(), lone.join(), lone.join());
    for id in [liar, shy, good] {
        lone.receive_handshake(id, |hello| hello.metadata_size = Some(size));
    }
    assert_eq!(asked(&mut lone, liar), [0]);
    assert_eq!(asked(&mut lone, shy), [0]);
    assert_eq!(asked(&mut lone, good), [0; 0], "two at once are enough");
    let data = vec![b'x'; size as usize];
    let lie = MetadataMessage::Data { piece: 0, total_size: Some(size), data: &data }.encode();
    lone.extended(liar, Extension::Metadata, &lie).unwrap();
    let events = lone.events();
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::Banned { address, .. } if address.ip().to_string() == "10.0.1.1"))
    );
    let reject = MetadataMessage::Reject { piece: 0 }.encode();
    lone.extended(shy, Extension::Metadata, &reject).unwrap();
    lone.pass(METADATA_REQUEST_TIMEOUT);
    assert_eq!(asked(&mut lone, good), [0]);
    let truth = MetadataMessage::Data { piece: 0, total_size: Some(size), data: &content.info.source }.encode();
    lone.extended(good, Extension::Metadata, &truth).unwrap();
    assert!(lone.events().contains(&Event::Metadata(content.info.source.to_vec())));
}

#[test]
fn metadata_of_absurd_size_is_not_asked_for_and_contradictions_end_the_connection() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::magnet(&content);
    let id = lone.join();
    lone.receive_handshake(id, |hello| hello.metadata_size = Some(i64::MAX as u64));
    assert_eq!(asked(&mut lone, id), [0; 0]);
    let id = lone.join();
    lone.receive_handshake(id, |hello| hello.metadata_size = Some(100));
    let lie = MetadataMessage::Data { piece: 0, total_size: Some(101), data: &[0; 101] }.encode();
    let fault = lone.extended(id, Extension::Metadata, &lie).unwrap_err();
    assert!(matches!(fault, PeerMisbehaved::BadMetadata(_)) && !fault.deserves_ban());
}

#[test]
fn metadata_is_served_piece_by_piece_and_nothing_past_the_end() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::seed(&content);
    let id = lone.join();
    lone.receive_handshake(id, |_| {});
    lone.sent(id);
    for (piece, served) in [(0, true), (1, false)] {
        let request = MetadataMessage::Request { piece }.encode();
        lone.extended(id, Extension::Metadata, &request).unwrap();
        let answer = lone.sent_extended(id, Extension::Metadata.our_id());
        let answer = MetadataMessage::parse(&answer[0]).unwrap().unwrap();
        assert_eq!(matches!(answer, MetadataMessage::Data { data, .. } if *data == *content.info.source), served);
        assert_eq!(answer == MetadataMessage::Reject { piece }, !served);
    }
}

#[test]
fn private_torrents_exchange_neither_peers_nor_metadata() {
    let content = Content::new(Version::V1, 16 * 1024, &[200_000], true);
    let mut lone = Lone::seed(&content);
    let (id, other) = (lone.join(), lone.join());
    let hello = ExtensionHandshake::parse(&lone.sent_extended(id, 0)[0]).unwrap();
    assert_eq!(
        (hello.metadata_size, hello.ids.get(Extension::Pex), hello.ids.get(Extension::Metadata)),
        (None, None, None)
    );
    lone.receive_handshake(id, |_| {});
    lone.receive_handshake(other, |_| {});
    let peers = PexMessage {
        added: vec![("192.0.2.1:1".parse().unwrap(), PexFlags::default())],
        dropped: vec![],
        in_use: None,
    };
    lone.extended(id, Extension::Pex, &peers.encode()).unwrap();
    lone.pass(PEX_INTERVAL);
    assert!(lone.events().is_empty());
    assert!(lone.sent_extended(id, Extension::Pex.our_id()).is_empty());
    let request = MetadataMessage::Request { piece: 0 }.encode();
    lone.extended(id, Extension::Metadata, &request).unwrap();
    let answer = lone.sent_extended(id, Extension::Metadata.our_id());
    assert_eq!(MetadataMessage::parse(&answer[0]), Ok(Some(MetadataMessage::Reject { piece: 0 })));
}

#[test]
fn a_link_that_turns_out_private_takes_its_offer_back() {
    let content = Content::new(Version::V1, 16 * 1024, &[200_000], true);
    let mut lone = Lone::magnet(&content);
    let id = lone.join();
    let before = ExtensionHandshake::parse(&lone.sent_extended(id, 0)[0]).unwrap();
    let have = anabranch_content::bitfield::Bitfield::new(content.pieces());
    lone.torrent.set_content(content.info.clone(), Default::default(), have, Vec::new(), lone.now);
    let after = ExtensionHandshake::parse(&lone.sent_extended(id, 0)[0]).unwrap();
    let mut ids = before.ids;
    assert!(ids.get(Extension::Pex).is_some());
    ids.update(&after.ids);
    assert_eq!((ids.get(Extension::Pex), ids.get(Extension::Metadata)), (None, None));
}

#[test]
fn peers_are_told_and_heard_no_more_often_than_agreed() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let (id, other) = (lone.join(), lone.join());
    lone.receive_handshake(id, |_| {});
    lone.sent(id);
    lone.pass(MS);
    let told = lone.sent_extended(id, Extension::Pex.our_id());
    let told = PexMessage::parse(&told[0]).unwrap();
    assert_eq!(told.added, [(lone.torrent.conns[&other].address, PexFlags::REACHABLE)]);
    // News is due a minute later, not before.
    lone.join();
    for _ in 0..59 {
        lone.pass(Duration::from_secs(1));
    }
    assert!(lone.sent_extended(id, Extension::Pex.our_id()).is_empty());
    lone.pass(Duration::from_secs(2));
    assert_eq!(lone.sent_extended(id, Extension::Pex.our_id()).len(), 1);

    let news = |port: u16| PexMessage {
        added: vec![(Endpoint::Ip(([192, 0, 2, 1], port).into()), PexFlags::default())],
        dropped: vec![],
        in_use: None,
    };
    lone.events();
    lone.extended(id, Extension::Pex, &news(6001).encode()).unwrap();
    lone.extended(id, Extension::Pex, &news(6002).encode()).unwrap();
    assert_eq!(lone.events(), [Event::Peers(vec![("192.0.2.1:6001".parse().unwrap(), PexFlags::default())])]);
    lone.now += PEX_RECEIVE_INTERVAL_MIN;
    lone.extended(id, Extension::Pex, &news(6003).encode()).unwrap();
    assert_eq!(lone.events().len(), 1);
}

#[test]
fn scion_peers_are_told_to_those_who_said_that_they_take_them() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let dialled = "[1-ff00:0:110,10.0.0.1]:6881";
    let (plain, ours) = (lone.join(), lone.join());
    lone.try_join(dialled, 60, Reserved::OURS).unwrap();
    lone.receive_handshake(plain, |_| {});
    lone.receive_handshake(ours, |hello| hello.scion_port = Some(0));
    lone.sent(plain);
    lone.sent(ours);
    lone.pass(MS);
    let told = |lone: &mut Lone, id| {
        let message = lone.sent_extended(id, Extension::Pex.our_id()).pop().unwrap();
        let added = PexMessage::parse(&message).unwrap().added;
        added.iter().map(|(address, _)| *address).filter(|address| address.as_scion().is_some()).collect::<Vec<_>>()
    };
    assert_eq!(told(&mut lone, plain), []);
    assert_eq!(told(&mut lone, ours), [dialled.parse().unwrap()]);
}

#[test]
fn a_scion_peer_that_dialled_us_is_told_by_the_port_it_names() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let ours = lone.join();
    lone.receive_handshake(ours, |hello| hello.scion_port = Some(9));
    for (host, named) in [(1, Some(7000)), (2, Some(0)), (3, None)] {
        let address: Endpoint = format!("[1-ff00:0:110,10.0.0.{host}]:40000").parse().unwrap();
        let hello = Handshake { reserved: Reserved::OURS, info_hash: [0; 20], peer_id: [60 + host; 20] };
        let id = lone.torrent.connected(address, false, &hello, lone.now).unwrap();
        lone.receive_handshake(id, |hello| (hello.scion_port, hello.listen_port) = (named, Some(1)));
    }
    lone.sent(ours);
    lone.pass(MS);
    let message = lone.sent_extended(ours, Extension::Pex.our_id()).pop().unwrap();
    let told = PexMessage::parse(&message).unwrap();
    assert_eq!(told.added, [("[1-ff00:0:110,10.0.0.1]:7000".parse().unwrap(), PexFlags::HOLEPUNCH)]);
}

#[test]
fn scion_peers_are_heard_by_those_who_speak_it() {
    let content = Content::v1(16 * 1024, 200_000);
    let (ip, scion) = ("192.0.2.1:6881".parse().unwrap(), "[1-ff00:0:110,10.0.0.1]:6881".parse().unwrap());
    let news = PexMessage {
        added: [ip, scion].map(|peer| (peer, PexFlags::default())).to_vec(),
        dropped: vec![],
        in_use: None,
    };
    for (speaks, heard) in [(None, vec![ip]), (Some(0), vec![ip, scion])] {
        let mut lone = Lone::leecher(&content);
        lone.torrent.config.scion_port = speaks;
        let id = lone.join();
        let hello = ExtensionHandshake::parse(&lone.sent_extended(id, 0)[0]).unwrap();
        assert_eq!(hello.scion_port, speaks);
        lone.receive_handshake(id, |_| {});
        lone.extended(id, Extension::Pex, &news.encode()).unwrap();
        assert_eq!(lone.events(), [Event::Peers(heard.into_iter().map(|peer| (peer, PexFlags::default())).collect())]);
    }
}

#[test]
fn bad_extension_messages_are_left_out_until_they_are_a_habit() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let id = lone.join();
    for _ in 0..BAD_EXTENSIONS_MAX {
        lone.extended(id, Extension::DontHave, b"xyz").unwrap();
    }
    // What nobody agreed on is no fault at all.
    lone.say(id, Message::Extended { id: 200, payload: b"?" });
    let fault = lone.say_badly(id);
    assert!(matches!(fault, PeerMisbehaved::BadExtension(_)) && !fault.deserves_ban());
}

impl Lone {
    fn say_badly(&mut self, id: crate::ConnId) -> PeerMisbehaved {
        self.receive(id, Message::Extended { id: 0, payload: b"no dictionary" }).unwrap_err()
    }
}

#[test]
fn metadata_is_served_while_the_content_is_being_looked_at() {
    for private in [false, true] {
        let content = Content::new(Version::V1, 16 * 1024, &[200_000], private);
        let mut lone = Lone::magnet(&content);
        let early = lone.join();
        let hello = ExtensionHandshake::parse(&lone.sent_extended(early, 0)[0]).unwrap();
        assert_eq!(hello.metadata_size, None);
        lone.torrent.expect_content(content.info.clone());
        let late = lone.join();
        for id in [early, late] {
            let hello = ExtensionHandshake::parse(&lone.sent_extended(id, 0)[0]).unwrap();
            assert_eq!(hello.metadata_size, (!private).then_some(content.info.source.len() as u64));
            lone.receive_handshake(id, |_| {});
            lone.extended(id, Extension::Metadata, &MetadataMessage::Request { piece: 0 }.encode()).unwrap();
            let answer = lone.sent_extended(id, Extension::Metadata.our_id());
            let answer = MetadataMessage::parse(&answer[0]).unwrap().unwrap();
            assert_eq!(matches!(answer, MetadataMessage::Data { data, .. } if *data == *content.info.source), !private);
        }
    }
}

#[test]
fn metadata_at_hand_is_not_asked_for() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::magnet(&content);
    lone.torrent.expect_content(content.info.clone());
    let id = lone.join();
    lone.receive_handshake(id, |hello| hello.metadata_size = Some(content.info.source.len() as u64));
    lone.pass(MS * 500);
    assert_eq!(asked(&mut lone, id), [0; 0]);
}

#[test]
fn nodes_of_the_table_are_told_and_heard_of_but_for_private_torrents() {
    for private in [false, true] {
        let content = Content::new(Version::V1, 16 * 1024, &[200_000], private);
        let mut lone = Lone::seed(&content);
        lone.torrent.config.dht_port = Some(6882);
        let (node, plain) = (lone.join_as(Reserved::OURS.with_dht()), lone.join());
        let told = |lone: &mut Lone, id| lone.sent(id).iter().any(|message| message.starts_with("Port(6882)"));
        assert_eq!((told(&mut lone, node), told(&mut lone, plain)), (!private, false));
        lone.events();
        lone.say(node, Message::Port(7000));
        lone.say(node, Message::Port(0));
        let events = lone.events();
        let named: Vec<_> = events.iter().filter(|event| matches!(event, Event::DhtNode(_))).collect();
        assert_eq!(named.len(), usize::from(!private), "{events:?}");
        if let Some(Event::DhtNode(address)) = named.first() {
            assert_eq!(address.socket_addr().port(), 7000);
        }
        // Who has no node of its own wants to hear of none.
        lone.torrent.config.dht_port = None;
        lone.say(node, Message::Port(7001));
        assert!(!lone.events().iter().any(|event| matches!(event, Event::DhtNode(_))));
    }
}
