//! Wishes, grants and paths in use between torrents.

use anabranch_paths::{Interface, IsdAs};

use super::lone::Lone;
use super::sim::Content;
use crate::ConnId;
use crate::extension::{Extension, InterfaceSequence, PATHS_INTERVAL, PathsMessage, Wish};
use crate::torrent::config::PATH_EVENTS_MAX;
use crate::torrent::{PathEvent, PathState};

const WISH: Wish = Wish { paths: 2, dial: false, selector: None };

fn sequence(id: u16) -> InterfaceSequence {
    let interface = |asn| Interface { isd_as: IsdAs::new(1, asn).unwrap(), id };
    InterfaceSequence::new(vec![interface(110), interface(111)]).unwrap()
}

/// Takes what was said of paths over a connection since the last time.
fn said(lone: &mut Lone, id: ConnId) -> Vec<PathsMessage> {
    let payloads = lone.sent_extended(id, Extension::Paths.our_id());
    payloads.iter().map(|payload| PathsMessage::parse(payload).unwrap()).collect()
}

fn hear(lone: &mut Lone, id: ConnId, message: &PathsMessage) {
    lone.extended(id, Extension::Paths, &message.encode()).unwrap();
}

fn greeted(lone: &mut Lone, peer: u8, path: u16) -> ConnId {
    let id = lone.join_over(peer, &format!("192.0.2.{peer}"), path, None).unwrap();
    lone.greet(id, |_| {});
    id
}

#[test]
fn a_downloader_wishes_once_a_peer_and_is_granted() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let ids = [greeted(&mut lone, 1, 1), greeted(&mut lone, 1, 2)];
    let stranger = lone.join();
    lone.torrent.wish_paths(Some(WISH), lone.now);
    assert_eq!(said(&mut lone, ids[0])[0].wish, Some(Some(WISH)));
    assert!(said(&mut lone, ids[1]).is_empty() && said(&mut lone, stranger).is_empty());
    // Granted over whichever path, cut to the wish.
    let grants = Some((1..=3).map(sequence).collect());
    hear(&mut lone, ids[1], &PathsMessage { grants, ..PathsMessage::default() });
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
    let id = greeted(&mut lone, 1, 1);
    let peer = lone.torrent.conns[&id].peer;
    assert_eq!(lone.torrent.grant_paths(peer, vec![sequence(1)], lone.now), 0);
    hear(&mut lone, id, &PathsMessage { wish: Some(Some(WISH)), used: Some(vec![sequence(9)]), ..Default::default() });
    assert_eq!(lone.torrent.poll_path_event(), Some(PathEvent::Wished { peer, wish: Some(WISH) }));
    assert_eq!(lone.torrent.poll_path_event(), Some(PathEvent::InUse { peer }));
    assert_eq!(lone.torrent.path_wishes().collect::<Vec<_>>(), [(peer, WISH)]);
    assert_eq!(lone.torrent.foreign_paths().collect::<Vec<_>>(), [(peer, &[sequence(9)][..])]);
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
    assert_eq!((lone.torrent.path_wishes().count(), lone.torrent.foreign_paths().count()), (0, 0));
}

#[test]
fn events_that_nobody_asks_for_are_bounded() {
    let content = Content::v1(16 * 1024, 200_000);
    let mut lone = Lone::seed(&content);
    for round in 0..=PATH_EVENTS_MAX {
        let host = format!("10.{}.{}.1", round / 250, round % 250);
        let id = lone.join_over(1, &host, 1, None).unwrap();
        hear(&mut lone, id, &PathsMessage { wish: Some(Some(WISH)), ..Default::default() });
        lone.torrent.disconnected(id, lone.now);
    }
    assert_eq!(lone.torrent.wishes.events.len(), PATH_EVENTS_MAX);
}
