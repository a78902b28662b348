//! Wishes, grants and paths in use between torrents.

use std::time::Duration;

use anabranch_paths::{IsdAs, ScionAddr};

use super::lone::Lone;
use super::sim::Content;
use crate::ConnId;
use crate::extension::{
    Extension, IN_USE_COUNTS_FOR, InterfaceSequence, PATHS_INTERVAL, PEX_INTERVAL, PathsInUse, PathsMessage,
    PexMessage, Wish,
};
use crate::handshake::Reserved;
use crate::torrent::config::PATH_EVENTS_MAX;
use crate::torrent::pieces::{HAVES_GATHERED_FOR, HAVES_LATE_MAX};
use crate::torrent::{PathEvent, PathState, TICK};
use crate::wire::Message;

const WISH: Wish = Wish { paths: 2, dial: false, selector: None };

fn sequence(id: u16) -> InterfaceSequence {
    InterfaceSequence::of_link(id)
}

/// The connections that have something to send since the last time.
fn wants(lone: &mut Lone) -> Vec<ConnId> {
    let mut dirty = Vec::new();
    lone.torrent.take_dirty(&mut dirty);
    dirty
}

/// Takes what was said of paths over a connection since the last time.
fn said(lone: &mut Lone, id: ConnId) -> Vec<PathsMessage> {
    let payloads = lone.sent_extended(id, Extension::Paths.our_id());
    payloads.iter().map(|payload| PathsMessage::parse(payload).unwrap()).collect()
}

fn receive_paths(lone: &mut Lone, id: ConnId, message: &PathsMessage) {
    lone.extended(id, Extension::Paths, &message.encode()).unwrap();
}

fn third_party_paths(lone: &Lone) -> Vec<(InterfaceSequence, u32)> {
    lone.torrent.third_party_paths(lone.now).into_iter().collect()
}

fn using(paths: &[u16]) -> PathsMessage {
    PathsMessage { used: Some(paths.iter().copied().map(sequence).collect()), ..PathsMessage::default() }
}

fn host(number: u8) -> ScionAddr {
    ScionAddr::new(IsdAs::new(1, 110).unwrap(), ([10, 0, 0, number], 6881).into())
}

fn joined_over(lone: &mut Lone, peer: u8, path: u16) -> ConnId {
    let id = lone.join_over(peer, &format!("192.0.2.{peer}"), path, None).unwrap();
    lone.receive_handshake(id, |_| {});
    id
}

#[test]
fn a_downloader_wishes_once_a_peer_and_is_granted() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let ids = [joined_over(&mut lone, 1, 1), joined_over(&mut lone, 1, 2)];
    let stranger = lone.join();
    lone.torrent.wish_paths(Some(WISH), lone.now);
    assert_eq!(said(&mut lone, ids[0])[0].wish, Some(Some(WISH)));
    assert!(said(&mut lone, ids[1]).is_empty() && said(&mut lone, stranger).is_empty());
    // Granted over whichever path, cut to the wish.
    let grants = Some((1..=3).map(sequence).collect());
    receive_paths(&mut lone, ids[1], &PathsMessage { grants, ..PathsMessage::default() });
    let peer = lone.torrent.conns[&ids[0]].peer;
    assert_eq!(lone.torrent.poll_path_event(), Some(PathEvent::Granted { peer }));
    assert_eq!(lone.torrent.granted_paths(peer), [sequence(1), sequence(2)]);
    // The path that was talked over fails: the next one hears it all again.
    lone.torrent.set_path_state(ids[0], PathState::Down, lone.now);
    lone.pass(PATHS_INTERVAL);
    assert_eq!(said(&mut lone, ids[1])[0].wish, Some(Some(WISH)));
}

#[test]
fn an_uploader_hears_wishes_and_grants_no_more() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::seed(&content);
    let id = joined_over(&mut lone, 1, 1);
    let peer = lone.torrent.conns[&id].peer;
    assert_eq!(lone.torrent.grant_paths(peer, vec![sequence(1)], lone.now), 0);
    receive_paths(
        &mut lone,
        id,
        &PathsMessage { wish: Some(Some(WISH)), used: Some(vec![sequence(9)]), ..Default::default() },
    );
    assert_eq!(lone.torrent.poll_path_event(), Some(PathEvent::Wished { peer, wish: Some(WISH) }));
    assert_eq!(lone.torrent.poll_path_event(), Some(PathEvent::InUse { peer }));
    assert_eq!(third_party_paths(&lone), [(sequence(9), 1)]);
    assert_eq!(lone.torrent.grant_paths(peer, (1..=3).map(sequence).collect(), lone.now), 2);
    assert_eq!(said(&mut lone, id)[0].grants, Some(vec![sequence(1), sequence(2)]));
    lone.torrent.set_paths_in_use(vec![sequence(1)], lone.now);
    lone.pass(PATHS_INTERVAL);
    assert_eq!(said(&mut lone, id)[0].used, Some(vec![sequence(1)]));
    // A seed wishes for nothing, whatever it is told.
    lone.torrent.wish_paths(Some(WISH), lone.now);
    lone.pass(PATHS_INTERVAL);
    assert!(said(&mut lone, id).is_empty());
    lone.torrent.disconnected(id, lone.now);
    assert_eq!(lone.torrent.poll_path_event(), Some(PathEvent::Wished { peer, wish: None }));
    assert!(third_party_paths(&lone).is_empty());
}

/// A peer over SCION.
fn joined_over_scion(lone: &mut Lone, number: u8) -> ConnId {
    let id = lone.try_join(&host(number).to_string(), number, Reserved::OURS).unwrap();
    lone.receive_handshake(id, |hello| hello.scion_port = Some(0));
    id
}

#[test]
fn what_peers_use_is_told_to_others_and_no_further() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let ids: Vec<ConnId> = (1..=3).map(|number| joined_over_scion(&mut lone, number)).collect();
    let plain = joined_over(&mut lone, 9, 1);
    // The third one only knows of it.
    let mut elsewhere = PathsInUse::default();
    elsewhere.add(host(7), &[sequence(7)]);
    let news = PexMessage { in_use: Some(elsewhere), ..PexMessage::default() };
    lone.extended(ids[2], Extension::Pex, &news.encode()).unwrap();
    receive_paths(&mut lone, ids[0], &using(&[1, 2]));
    lone.pass(Duration::from_millis(1));
    let told = |lone: &mut Lone, id| {
        let message = lone.sent_extended(id, Extension::Pex.our_id()).pop();
        message.and_then(|message| PexMessage::parse(&message).unwrap().in_use)
    };
    let mut expected = PathsInUse::default();
    expected.add(host(1), &[sequence(1), sequence(2)]);
    assert_eq!(told(&mut lone, ids[1]), Some(expected.clone()));
    assert_eq!((told(&mut lone, ids[0]), told(&mut lone, plain)), (None, None));
    // It is repeated as long as there is any, and then taken back.
    lone.pass(PEX_INTERVAL);
    assert_eq!(told(&mut lone, ids[1]), Some(expected));
    receive_paths(&mut lone, ids[0], &using(&[]));
    lone.pass(PEX_INTERVAL);
    assert_eq!(told(&mut lone, ids[1]), Some(PathsInUse::default()));
    lone.pass(PEX_INTERVAL);
    assert_eq!(told(&mut lone, ids[1]), None);
}

#[test]
fn a_transfer_that_both_its_ends_tell_of_counts_once() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let ids: Vec<ConnId> = (1..=2).map(|number| joined_over_scion(&mut lone, number)).collect();
    receive_paths(&mut lone, ids[0], &using(&[1, 2]));
    let there = PathsMessage { used: Some(vec![sequence(1).reversed()]), ..PathsMessage::default() };
    receive_paths(&mut lone, ids[1], &there);
    assert_eq!(third_party_paths(&lone), [(sequence(1), 1), (sequence(2), 1)]);
    // By peer exchange and by a tracker: two more users, one of them told of twice, and a peer that speaks for itself.
    let mut told = PathsInUse::default();
    (1..=3).for_each(|number| told.add(host(number), &[sequence(2)]));
    lone.extended(ids[1], Extension::Pex, &PexMessage { in_use: Some(told), ..PexMessage::default() }.encode())
        .unwrap();
    let mut told = PathsInUse::default();
    (3..=4).for_each(|number| told.add(host(number), &[sequence(2)]));
    lone.torrent.told_in_use(told, lone.now);
    assert_eq!(third_party_paths(&lone), [(sequence(1), 1), (sequence(2), 3)]);
    lone.now += IN_USE_COUNTS_FOR;
    assert_eq!(third_party_paths(&lone), [(sequence(1), 1), (sequence(2), 1)]);
}

#[test]
fn events_that_nobody_asks_for_are_bounded() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::seed(&content);
    for round in 0..=PATH_EVENTS_MAX {
        let host = format!("10.{}.{}.1", round / 250, round % 250);
        let id = lone.join_over(1, &host, 1, None).unwrap();
        receive_paths(&mut lone, id, &PathsMessage { wish: Some(Some(WISH)), ..Default::default() });
        lone.torrent.disconnected(id, lone.now);
    }
    assert_eq!(lone.torrent.wishes.events.len(), PATH_EVENTS_MAX);
}

#[test]
fn who_speaks_of_paths_hears_of_a_piece_over_its_quickest_path_and_over_the_others_later() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let far = joined_over(&mut lone, 1, 1);
    let near = joined_over(&mut lone, 1, 2);
    let stranger = lone.join();
    for (id, millis) in [(far, 80), (near, 10)] {
        lone.torrent.set_path_rtt(id, Duration::from_millis(millis));
    }
    for id in [far, near, stranger] {
        lone.sent(id);
    }
    wants(&mut lone);
    lone.good(3);
    let told = wants(&mut lone);
    assert!(told.contains(&near) && told.contains(&stranger) && !told.contains(&far), "{told:?}");
    assert_eq!(lone.sent(near), ["Have(3)"]);
    // Not even with something else to say: over each path, every piece would be a packet more, and an acknowledgement.
    lone.torrent.set_path_state(far, PathState::Down, lone.now);
    lone.good(4);
    assert_eq!(lone.sent(far), Vec::<String>::new());
    lone.torrent.set_path_state(far, PathState::Active, lone.now);
    lone.pass(HAVES_LATE_MAX + TICK * 2);
    assert!(wants(&mut lone).contains(&far));
    assert_eq!(lone.sent(far), ["Have(3)", "Have(4)"]);
    // Its quickest path fails: what it was not told is told over the next.
    lone.good(5);
    lone.torrent.set_path_state(near, PathState::Down, lone.now);
    lone.good(6);
    assert!(wants(&mut lone).contains(&far));
    assert_eq!(lone.sent(far), ["Have(5)", "Have(6)"]);
}

#[test]
fn who_speaks_of_paths_and_waits_for_its_turn_hears_of_pieces_once_a_second() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let ours = joined_over(&mut lone, 1, 1);
    let stranger = lone.join();
    for id in [ours, stranger] {
        lone.say(id, Message::Interested);
        lone.torrent.conns.get_mut(&id).unwrap().choking = true;
        lone.sent(id);
    }
    wants(&mut lone);
    lone.good(3);
    assert_eq!(wants(&mut lone), [stranger]);
    lone.good(4);
    lone.pass(HAVES_GATHERED_FOR + TICK * 2);
    assert!(wants(&mut lone).contains(&ours));
    let haves = lone.sent(ours).into_iter().filter(|said| said.starts_with("Have(")).collect::<Vec<_>>();
    assert_eq!(haves, ["Have(3)", "Have(4)"]);
    // It may ask now.
    lone.torrent.conns.get_mut(&ours).unwrap().choking = false;
    wants(&mut lone);
    lone.good(5);
    assert!(wants(&mut lone).contains(&ours));
    // What is sent to it anyway says so too.
    lone.torrent.conns.get_mut(&ours).unwrap().choking = true;
    lone.good(6);
    assert_eq!(lone.sent(ours), ["Have(5)", "Have(6)"]);
}
