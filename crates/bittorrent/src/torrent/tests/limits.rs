//! Every limit of the state machine, reached.

use std::net::Ipv4Addr;

use super::lone::Lone;
use super::sim::Content;
use crate::extension::{Extension, MetadataMessage, PexFlags, PexMessage};
use crate::handshake::{Handshake, Reserved};
use crate::torrent::answers::ANSWERS_MAX;
use crate::torrent::bans::{BANS_MAX, BANS_PER_ADDRESS};
use crate::torrent::config::{CHATTER_LEAK, CHATTER_MAX, OUT_BYTES_MAX, TAKEN_BACK_SPARE};
use crate::torrent::exchange::{PEX_OF_HOST_MAX, PEX_TAKEN_MAX};
use crate::torrent::peers::PEERS_MAX;
use crate::torrent::{CONNECTIONS_MAX, Event, PeerMisbehaved, Refused};
use crate::wire::{BlockRange, Message};

fn hello(number: u32) -> Handshake {
    let mut peer_id = [7; 20];
    peer_id[..4].copy_from_slice(&number.to_be_bytes());
    Handshake { reserved: Reserved([0; 8]), info_hash: [0; 20], peer_id }
}

fn address(number: u32) -> anabranch_paths::Endpoint {
    anabranch_paths::Endpoint::Ip((Ipv4Addr::from_bits(0x0a00_0000 + number), 1).into())
}

#[test]
fn connections_and_peers_are_bounded_and_the_gone_are_forgotten_first() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let first = lone.torrent.connected(address(0), true, &hello(0), lone.now).unwrap();
    for number in 1..PEERS_MAX as u32 + 100 {
        let id = lone.torrent.connected(address(number), true, &hello(number), lone.now).unwrap();
        lone.torrent.disconnected(id, lone.now);
    }
    assert_eq!((lone.torrent.peers.len(), lone.torrent.origins.len()), (PEERS_MAX, PEERS_MAX));
    assert!(lone.torrent.origins.contains_key(&first), "who is here can be blamed");
    for number in 1..CONNECTIONS_MAX as u32 {
        lone.torrent.connected(address(number), true, &hello(number), lone.now).unwrap();
    }
    let one_more = lone.torrent.connected(address(77_777), true, &hello(77_777), lone.now);
    assert_eq!(one_more, Err(Refused::Full));
}

#[test]
fn bans_are_bounded_and_the_oldest_end_first() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    for number in 0..=BANS_MAX as u32 {
        let id = lone.torrent.connected(address(number), true, &hello(number), lone.now).unwrap();
        lone.torrent.misbehaved(id, &PeerMisbehaved::RequestFlood);
        lone.torrent.disconnected(id, lone.now);
        lone.events();
    }
    assert!(lone.torrent.connected(address(0), true, &hello(0), lone.now).is_ok());
    assert!(matches!(lone.torrent.connected(address(1), true, &hello(1), lone.now), Err(Refused::Banned(_))));
}

#[test]
fn ourselves_and_second_connections_are_refused() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    assert_eq!(lone.try_join("192.0.2.1:1", 0, Reserved::OURS), Err(Refused::Ourselves));
    let first = lone.try_join("192.0.2.1:1", 5, Reserved::OURS).unwrap();
    assert_eq!(lone.try_join("192.0.2.1:1", 5, Reserved::OURS), Err(Refused::Duplicate));
    // Both dialled: the greater id's connection stays, here theirs.
    let hello = Handshake { reserved: Reserved::OURS, info_hash: [0; 20], peer_id: [5; 20] };
    let theirs = lone.torrent.connected("192.0.2.1:9".parse().unwrap(), false, &hello, lone.now).unwrap();
    assert_eq!(lone.closed(), [first]);
    assert_eq!(lone.try_join("192.0.2.1:1", 5, Reserved::OURS), Err(Refused::Duplicate));
    lone.torrent.disconnected(first, lone.now);
    lone.torrent.disconnected(theirs, lone.now);
    assert!(lone.try_join("192.0.2.1:1", 5, Reserved::OURS).is_ok());
}

/// A v2 content of 600 pieces, and a request for 512 hashes of it.
fn hashes_of_many_pieces() -> (std::sync::Arc<Content>, crate::wire::TreeRequest) {
    let content = Content::new(anabranch_content::info::Version::V2, 16 * 1024, &[600 * 16 * 1024], false);
    let file = content.info.files.iter().find(|file| file.root.is_some()).unwrap();
    let shape = anabranch_content::merkle::Shape::new(file.length, 16 * 1024);
    let part = shape.piece_layer_requests().next().unwrap();
    let request = crate::wire::TreeRequest { root: file.root.unwrap(), part };
    (content, request)
}

#[test]
fn who_asks_without_reading_costs_little_is_refused_and_then_left() {
    let (content, request) = hashes_of_many_pieces();
    let mut lone = Lone::seed(&content);
    let id = lone.join();
    lone.sent(id);
    let metadata = MetadataMessage::Request { piece: 0 }.encode();
    lone.receive_handshake(id, |_| {});
    // 16 KiB of hashes for 53 bytes: they are made when they are read, and a list of what is asked is kept until then.
    for _ in 0..ANSWERS_MAX {
        lone.say(id, Message::HashRequest(request));
    }
    assert_eq!(lone.torrent.conns[&id].out.len(), 0);
    // Then 53 bytes of refusal each, and the same for metadata.
    lone.say(id, Message::HashRequest(request));
    lone.extended(id, Extension::Metadata, &metadata).unwrap();
    let sent = lone.sent(id);
    let count = |what: &str| sent.iter().filter(|text| text.starts_with(what)).count();
    assert_eq!((count("Hashes"), count("HashReject"), count("Extended")), (ANSWERS_MAX, 1, 1));
    for _ in 0..2 * OUT_BYTES_MAX / 50 {
        // Slowly enough to be no flood.
        lone.torrent.conns.get_mut(&id).unwrap().chatter = 0;
        lone.say(id, Message::HashRequest(request));
    }
    assert_eq!(lone.closed(), [id]);
    assert!(lone.torrent.conns[&id].out.len() < lone.torrent.output_len_max() + 100);
}

#[test]
fn who_allows_everything_is_a_flood_long_before_a_megabyte() {
    let content = Content::v1(16 * 1024, 10_000 * 16 * 1024);
    let mut lone = Lone::leecher(&content);
    let id = lone.join();
    lone.say(id, Message::HaveNone);
    let mut said = 0;
    let misbehaved = (0..10_000).find_map(|piece| {
        said += 1;
        lone.torrent.on_message(id, Message::AllowedFast(piece), lone.now).err()
    });
    assert!(matches!(misbehaved, Some(PeerMisbehaved::Chatter)), "{misbehaved:?}");
    // A whole set and many more are nothing to be ended for.
    assert!((1000..3000).contains(&said), "{said}");
}

#[test]
fn a_peer_that_does_not_read_is_told_of_pieces_when_it_does() {
    let content = Content::v1(16 * 1024, 100 * 16 * 1024);
    let mut lone = Lone::leecher(&content);
    let id = lone.join();
    lone.say(id, Message::HaveNone);
    lone.sent(id);
    (0..100).for_each(|piece| lone.good(piece));
    lone.torrent.pieces_lost(&[7], lone.now);
    assert!(lone.torrent.conns[&id].out.len() < 100, "{}", lone.torrent.conns[&id].out.len());
    lone.good(7);
    let sent = lone.sent(id);
    let mut told: Vec<&str> = sent.iter().filter(|text| text.starts_with("Have(")).map(String::as_str).collect();
    told.sort_unstable();
    told.dedup();
    assert_eq!(told.len(), 100, "{sent:?}");
    assert_eq!(lone.sent(id).len(), 0);
}

#[test]
fn an_idle_seed_weighs_little() {
    // 1,000 of these in 150 MiB: what is kept beside the info dictionary and the bitfield is a few hundred bytes.
    let content = Content::v1(16 * 1024, 1 << 20);
    let lone = Lone::seed(&content);
    let content = lone.torrent.content.as_ref().unwrap();
    assert!(content.picker.is_none());
    assert!(size_of::<crate::torrent::Torrent>() < 2304, "{}", size_of::<crate::torrent::Torrent>());
    assert!(size_of::<crate::torrent::conn::Conn>() < 2560, "{}", size_of::<crate::torrent::conn::Conn>());
}

/// Says `flood` until the peer is taken for hostile; answers after how many messages.
fn flood(fast: bool, flood: &[Message<'_>]) -> u32 {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let id = lone.join_as(if fast { Reserved::OURS } else { Reserved([0; 8]) });
    for (count, message) in (1..).zip(flood.iter().cycle()).take(4 * CHATTER_MAX as usize) {
        if let Err(fault) = lone.torrent.on_message(id, *message, lone.now) {
            assert!(fault.deserves_ban(), "{fault}");
            return count;
        }
        lone.torrent.take_output(id, &mut Vec::new(), lone.now);
    }
    panic!("{flood:?} without end");
}

#[test]
fn who_says_without_end_what_changes_nothing_is_hostile() {
    let range = BlockRange { piece: 0, begin: 0, len: 16 * 1024 };
    let lost = |number: &'static [u8]| Message::Extended { id: Extension::DontHave.our_id(), payload: number };
    let limit = CHATTER_MAX + 1;
    assert_eq!(flood(false, &[Message::Choke, Message::Unchoke]), limit);
    assert_eq!(flood(false, &[Message::Interested, Message::NotInterested]), limit);
    assert_eq!(flood(false, &[Message::KeepAlive]), limit);
    assert_eq!(flood(false, &[Message::Cancel(range)]), limit);
    assert_eq!(flood(true, &[Message::Reject(range)]), limit);
    assert_eq!(flood(false, &[Message::Have(0)]), limit + 1, "the first is news");
    assert_eq!(flood(true, &[Message::HaveAll]), limit);
    // What takes back and gives again ends sooner.
    let all = TAKEN_BACK_SPARE + 13;
    assert_eq!(flood(false, &[Message::Bitfield(&[0xff, 0xf8]), Message::Bitfield(&[0, 0])]), 2 * (all / 13 + 1));
    assert_eq!(flood(true, &[Message::HaveAll, lost(&[0, 0, 0, 0])]), 2 * (all + 1));
    assert_eq!(flood(true, &[Message::Have(0), lost(&[0, 0, 0, 0])]), 2 * (all + 1));
}

#[test]
fn what_honest_peers_say_at_their_busiest_goes_on() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let id = lone.join();
    for _ in 0..100 {
        for _ in 0..CHATTER_LEAK / 2 {
            lone.say(id, Message::Interested);
            lone.say(id, Message::NotInterested);
        }
        lone.pass(crate::torrent::TICK);
        lone.sent(id);
    }
}

#[test]
fn a_network_of_ipv6_is_one_host_of_many_addresses() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    for number in 1..=BANS_PER_ADDRESS {
        let address = format!("[2001:db8:1:2::{number}]:1").parse().unwrap();
        let id = lone.torrent.connected(address, false, &hello(number), lone.now).unwrap();
        lone.torrent.misbehaved(id, &PeerMisbehaved::RequestFlood);
        lone.torrent.disconnected(id, lone.now);
    }
    let mut join = |address: &str| lone.torrent.connected(address.parse().unwrap(), false, &hello(99), lone.now);
    assert!(matches!(join("[2001:db8:1:2:ffff::1]:1"), Err(Refused::Banned(_))));
    assert!(join("[2001:db8:1:3::1]:1").is_ok());
}

#[test]
fn of_one_exchange_few_addresses_are_taken_and_fewer_of_a_host() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let mut taken = |added: Vec<anabranch_paths::Endpoint>| {
        let id = lone.join();
        lone.events();
        let added = added.into_iter().map(|address| (address, PexFlags::default())).collect();
        let message = PexMessage { added, dropped: vec![], in_use: None };
        lone.extended(id, Extension::Pex, &message.encode()).unwrap();
        let peers = |event| if let Event::Peers(peers) = event { peers.len() } else { 0 };
        lone.events().into_iter().map(peers).sum::<usize>()
    };
    let ports = (6881..7000).map(|port| format!("192.0.2.1:{port}").parse().unwrap());
    assert_eq!(taken(ports.collect()), PEX_OF_HOST_MAX);
    let hosts = |count: u32| (0..count).map(|number| format!("10.9.{number}.1:6881").parse().unwrap()).collect();
    assert_eq!(taken(hosts(PEX_TAKEN_MAX as u32)), PEX_TAKEN_MAX);
    assert_eq!(taken(hosts(PEX_TAKEN_MAX as u32 + 50)), PEX_TAKEN_MAX);
}

#[test]
fn who_lets_time_run_out_is_asked_ever_more_seldom_until_it_brings_something() {
    let content = Content::v1(16 * 1024, 2_000_000);
    let mut lone = Lone::leecher(&content);
    let id = lone.join();
    lone.say(id, Message::HaveAll);
    lone.say(id, Message::Unchoke);
    let mut asked = 0;
    let mut count = |lone: &mut Lone, time: u32| {
        let before = asked;
        for _ in 0..time * 4 {
            lone.pass(crate::torrent::TICK);
            lone.say(id, Message::KeepAlive);
            asked += lone.sent(id).iter().filter(|text| text.starts_with("Request")).count();
        }
        asked - before
    };
    let (first, later) = (count(&mut lone, 300), count(&mut lone, 300));
    assert!(later < first && later <= 4, "{first}, then {later}");
    assert!(later > 0, "it is not given up");
    // Whatever it brings after all counts for it.
    lone.torrent.conns.get_mut(&id).unwrap().resting_until = None;
    lone.torrent.fill_requests(id, lone.now);
    let range = lone.requests(id)[0];
    assert!(lone.deliver(id, range));
    assert_eq!(lone.torrent.conns[&id].timeouts, 0);
}
