//! Further addresses: who is told, who is believed.

use anabranch_paths::Endpoint;

use super::lone::{Lone, call_itself};
use super::sim::Content;
use crate::ConnId;
use crate::extension::{ExtensionHandshake, HANDSHAKE_ID, PeerIdentity};
use crate::torrent::PathEvent;
use crate::torrent::addresses::{ADDRESSES_INTERVAL, ADDRESSES_RECEIVE_INTERVAL};

fn endpoints(texts: &[&str]) -> Vec<Endpoint> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// The lists told over a connection since the last time.
fn told(lone: &mut Lone, id: ConnId) -> Vec<Vec<Endpoint>> {
    let payloads = lone.sent_extended(id, HANDSHAKE_ID);
    payloads.iter().filter_map(|payload| ExtensionHandshake::parse(payload).unwrap().addresses).collect()
}

fn receive_identity(lone: &mut Lone, id: ConnId, name: u8) {
    lone.receive_handshake(id, |hello| hello.identity = Some(PeerIdentity([name; 32])));
}

fn receive_addresses(lone: &mut Lone, id: ConnId, addresses: &[&str]) {
    lone.receive_handshake(id, |hello| hello.addresses = Some(endpoints(addresses)));
}

fn lone() -> Lone {
    Lone::seed(&Content::v1(16 * 1024, 200_000))
}

#[test]
fn only_our_kind_is_told_and_only_what_concerns_it() {
    let mut lone = lone();
    let ours = ["10.1.0.1:6881", "192.0.2.1:6881", "[2001:db8::1]:6881", "[1-ff00:0:110,10.0.0.1]:6881"];
    lone.torrent.set_own_addresses(endpoints(&ours), Vec::new(), lone.now);
    let near = lone.join_over(1, "10.0.0.7", 1, None).unwrap();
    let far = lone.join_over(2, "198.51.100.7", 1, None).unwrap();
    let over_scion = lone.join_over(3, "198.51.100.8", 1, None).unwrap();
    let other_kind = lone.join_over(4, "10.0.0.8", 1, None).unwrap();
    receive_identity(&mut lone, near, 1);
    receive_identity(&mut lone, far, 2);
    lone.receive_handshake(over_scion, |hello| {
        (hello.identity, hello.scion_port) = (Some(PeerIdentity([3; 32])), Some(0));
    });
    lone.receive_handshake(other_kind, |_| {});
    assert_eq!(told(&mut lone, near), [endpoints(&ours[..3])]);
    assert_eq!(told(&mut lone, far), [endpoints(&ours[1..3])]);
    assert_eq!(told(&mut lone, over_scion), [endpoints(&ours[1..])]);
    assert!(told(&mut lone, other_kind).is_empty());
    // Nothing is said twice.
    lone.pass(ADDRESSES_INTERVAL);
    assert!([near, far, over_scion, other_kind].into_iter().all(|id| told(&mut lone, id).is_empty()));
}

#[test]
fn changes_are_told_at_intervals_and_only_where_they_show() {
    let mut lone = lone();
    let far = lone.join_over(1, "198.51.100.7", 1, None).unwrap();
    receive_identity(&mut lone, far, 1);
    lone.torrent.set_own_addresses(endpoints(&["192.0.2.1:1"]), Vec::new(), lone.now);
    assert_eq!(told(&mut lone, far), [endpoints(&["192.0.2.1:1"])]);
    lone.torrent.set_own_addresses(endpoints(&["192.0.2.1:1", "192.0.2.2:1"]), Vec::new(), lone.now);
    lone.torrent.set_own_addresses(endpoints(&["192.0.2.2:1"]), Vec::new(), lone.now);
    assert!(told(&mut lone, far).is_empty());
    lone.pass(ADDRESSES_INTERVAL);
    assert_eq!(told(&mut lone, far), [endpoints(&["192.0.2.2:1"])]);
    lone.pass(ADDRESSES_INTERVAL);
    lone.torrent.set_own_addresses(endpoints(&["192.0.2.2:1", "10.0.0.1:1"]), Vec::new(), lone.now);
    assert!(told(&mut lone, far).is_empty());
    lone.torrent.set_own_addresses(Vec::new(), Vec::new(), lone.now);
    assert_eq!(told(&mut lone, far), [Vec::new()]);
    // The most that is told, and one more.
    lone.pass(ADDRESSES_INTERVAL);
    let nine: Vec<Endpoint> = (1..=9).map(|port| Endpoint::Ip(([192, 0, 2, 1], port).into())).collect();
    lone.torrent.set_own_addresses(nine.clone(), Vec::new(), lone.now);
    assert_eq!(told(&mut lone, far), [nine[..8].to_vec()]);
}

#[test]
fn a_peer_is_believed_what_concerns_us_and_not_too_often() {
    let mut lone = lone();
    let id = lone.join_over(1, "198.51.100.7", 1, None).unwrap();
    // Who has no name cannot be met elsewhere.
    receive_addresses(&mut lone, id, &["192.0.2.1:1"]);
    assert_eq!(lone.torrent.poll_path_event(), None);
    receive_identity(&mut lone, id, 1);
    let peer = lone.torrent.conns[&id].peer;
    receive_addresses(&mut lone, id, &["192.0.2.1:1", "10.0.0.1:22", "127.0.0.1:22", "[1-ff00:0:110,10.0.0.1]:1"]);
    assert_eq!(lone.torrent.poll_path_event(), Some(PathEvent::Addresses { peer }));
    assert_eq!(lone.torrent.peer_addresses(peer), endpoints(&["192.0.2.1:1"]));
    receive_addresses(&mut lone, id, &["192.0.2.2:1"]);
    assert_eq!((lone.torrent.poll_path_event(), lone.torrent.peer_addresses(peer).len()), (None, 1));
    lone.pass(ADDRESSES_RECEIVE_INTERVAL);
    receive_addresses(&mut lone, id, &["192.0.2.1:1"]);
    assert_eq!(lone.torrent.poll_path_event(), None, "nothing new");
    lone.pass(ADDRESSES_RECEIVE_INTERVAL);
    receive_addresses(&mut lone, id, &[]);
    assert_eq!(lone.torrent.poll_path_event(), Some(PathEvent::Addresses { peer }));
    assert!(lone.torrent.peer_addresses(peer).is_empty());
}

#[test]
fn each_end_says_which_of_its_uplinks_a_connection_is_at() {
    let mut lone = lone();
    let uplinks = [("192.0.2.1", 7), ("2001:db8::1", 7), ("192.0.2.2", 8)].map(|(ip, at)| (ip.parse().unwrap(), at));
    let ids = [("192.0.2.1", 1), ("2001:db8::1", 2), ("203.0.113.9", 3)].map(|(local, path)| {
        let id = lone.join_over(1, "198.51.100.7", path, None).unwrap();
        lone.torrent.conns.get_mut(&id).unwrap().local = Some(local.parse().unwrap());
        id
    });
    let told = |lone: &mut Lone, id: ConnId| -> Vec<Option<u32>> {
        let payloads = lone.sent_extended(id, HANDSHAKE_ID);
        payloads.iter().map(|payload| ExtensionHandshake::parse(payload).unwrap().uplink).collect()
    };
    let others_kind = lone.join_over(4, "198.51.100.8", 1, None).unwrap();
    lone.receive_handshake(others_kind, |hello| hello.uplink = Some(1));
    ids.into_iter().for_each(|id| drop(told(&mut lone, id)));
    ids.into_iter().for_each(|id| receive_identity(&mut lone, id, 1));
    lone.torrent.set_own_addresses(Vec::new(), uplinks.to_vec(), lone.now);
    let all = ids.map(|id| told(&mut lone, id));
    assert_eq!(all, [vec![Some(7)], vec![Some(7)], vec![]], "the third is at no uplink of ours");
    // Only who can be met elsewhere is heard, and once: a connection stays where it is.
    assert_eq!(lone.torrent.peer_uplink(others_kind), None);
    lone.receive_handshake(ids[0], |hello| hello.uplink = Some(3));
    assert!(matches!(lone.torrent.poll_path_event(), Some(PathEvent::Addresses { .. })));
    lone.receive_handshake(ids[0], |hello| hello.uplink = Some(4));
    assert_eq!((lone.torrent.poll_path_event(), lone.torrent.peer_uplink(ids[0])), (None, Some(3)));
}

#[test]
fn a_peers_addresses_are_those_of_all_its_connections() {
    let mut lone = lone();
    let first = lone.join_over(1, "10.1.0.2", 1, None).unwrap();
    call_itself(&mut lone, first, 1);
    receive_addresses(&mut lone, first, &["10.1.0.2:1", "10.2.0.2:1"]);
    // Met at the other address, it is the same peer by its name.
    let second = lone.join_over(1, "10.2.0.2", 2, None).unwrap();
    call_itself(&mut lone, second, 1);
    receive_addresses(&mut lone, second, &["10.2.0.2:1", "10.3.0.2:1"]);
    let peer = lone.torrent.conns[&second].peer;
    assert_eq!(lone.torrent.conns[&first].peer, peer);
    assert_eq!(lone.torrent.peer_addresses(peer), endpoints(&["10.1.0.2:1", "10.2.0.2:1", "10.3.0.2:1"]));
    assert_eq!(lone.torrent.poll_path_event(), Some(PathEvent::Addresses { peer }));
    assert_eq!(lone.torrent.poll_path_event(), None, "one event is enough");
    lone.torrent.disconnected(first, lone.now);
    assert_eq!(lone.torrent.peer_addresses(peer), endpoints(&["10.2.0.2:1", "10.3.0.2:1"]));
    lone.torrent.disconnected(second, lone.now);
    assert!(lone.torrent.peer_addresses(peer).is_empty());
}
