//! The upload side: requests good, bad and many, chokes, and what is granted to the choked.

use super::lone::Lone;
use super::sim::Content;
use crate::ConnId;
use crate::choker;
use crate::handshake::Reserved;
use crate::torrent::config::{UPLOAD_OVERFLOW_LEAK, UPLOAD_OVERFLOW_MAX};
use crate::torrent::{PeerMisbehaved, REQUEST_LEN_MAX, UPLOAD_QUEUE_MAX};
use crate::wire::{ALLOWED_FAST_MAX, BlockRange, Message};
use anabranch_content::bitfield::Bitfield;

const BLOCK: u32 = 16 * 1024;

fn served(lone: &mut Lone) -> ConnId {
    let id = lone.join();
    lone.say(id, Message::HaveNone);
    lone.say(id, Message::Interested);
    assert!(lone.sent(id).contains(&"Unchoke".to_owned()));
    id
}

fn range(piece: u32, begin: u32, len: u32) -> BlockRange {
    BlockRange { piece, begin, len }
}

#[test]
fn requests_inside_a_piece_are_served_and_others_refused_without_harm() {
    let content = Content::v1(256 * 1024, 1_000_000);
    let mut lone = Lone::seed(&content);
    let id = served(&mut lone);
    let last_len = 1_000_000 - 3 * 256 * 1024;
    for good in [range(0, 0, BLOCK), range(1, 7, 1), range(0, 0, REQUEST_LEN_MAX), range(3, last_len - 5, 5)] {
        lone.say(id, Message::Request(good));
        assert_eq!(lone.torrent.next_upload(id), Some(good));
    }
    let bad = [
        range(0, 0, 0),
        range(0, 0, REQUEST_LEN_MAX + 1),
        range(3, last_len - 5, 6),
        range(4, 0, BLOCK),
        range(0, u32::MAX, BLOCK),
        range(u32::MAX, 0, BLOCK),
    ];
    for bad in bad {
        lone.say(id, Message::Request(bad));
        assert_eq!(lone.torrent.next_upload(id), None);
        assert_eq!(lone.sent(id), [format!("Reject({bad:?})")]);
    }
    let mut lacking = Lone::with(&content, Bitfield::new(4));
    let id = served(&mut lacking);
    lacking.say(id, Message::Request(range(0, 0, BLOCK)));
    assert_eq!(lacking.torrent.next_upload(id), None);
}

#[test]
fn a_flood_of_requests_fills_the_queue_and_then_ends_the_connection() {
    let content = Content::v1(256 * 1024, 1_000_000);
    let mut lone = Lone::seed(&content);
    let id = served(&mut lone);
    for _ in 0..UPLOAD_QUEUE_MAX as u32 + UPLOAD_OVERFLOW_MAX {
        lone.say(id, Message::Request(range(0, 0, BLOCK)));
    }
    assert_eq!(lone.torrent.conns[&id].uploads.len(), UPLOAD_QUEUE_MAX);
    // Time forgives a little.
    lone.pass(std::time::Duration::from_millis(250));
    (0..UPLOAD_OVERFLOW_LEAK).for_each(|_| lone.say(id, Message::Request(range(0, 0, BLOCK))));
    let fault = lone.receive(id, Message::Request(range(0, 0, BLOCK))).unwrap_err();
    assert_eq!(fault, PeerMisbehaved::RequestFlood);
    assert!(fault.deserves_ban());
}

#[test]
fn a_cancel_takes_one_request_out_and_answers() {
    let content = Content::v1(256 * 1024, 1_000_000);
    let mut lone = Lone::seed(&content);
    let id = served(&mut lone);
    lone.say(id, Message::Request(range(0, 0, BLOCK)));
    lone.say(id, Message::Request(range(1, 0, BLOCK)));
    lone.say(id, Message::Cancel(range(0, 0, BLOCK)));
    lone.say(id, Message::Cancel(range(2, 0, BLOCK)));
    assert_eq!(lone.sent(id), [format!("Reject({:?})", range(0, 0, BLOCK))]);
    assert_eq!(lone.torrent.next_upload(id), Some(range(1, 0, BLOCK)));
    assert_eq!(lone.torrent.next_upload(id), None);
}

#[test]
fn a_choke_drops_the_queue_and_names_it_to_fast_peers() {
    let content = Content::v1(256 * 1024, 1_000_000);
    let mut lone = Lone::seed(&content);
    let fast = served(&mut lone);
    let plain = lone.join_as(Reserved([0; 8]));
    lone.say(plain, Message::Interested);
    lone.sent(plain);
    for (id, expected) in [(fast, 3), (plain, 1)] {
        lone.say(id, Message::Request(range(0, 0, BLOCK)));
        lone.say(id, Message::Request(range(1, 0, BLOCK)));
        lone.say(id, Message::NotInterested);
        assert_eq!(lone.torrent.next_upload(id), None);
        let told = lone.sent(id);
        assert_eq!((told.len(), told[0].as_str()), (expected, "Choke"), "{told:?}");
    }
}

/// A leecher with half of the pieces whose one slot is taken.
fn choking(content: &std::sync::Arc<Content>) -> (Lone, ConnId) {
    let mut have = Bitfield::new(content.pieces());
    (0..content.pieces() - 1).for_each(|piece| {
        have.set(piece);
    });
    let mut lone = Lone::with(content, have);
    lone.torrent.choker.set_config(choker::Config { slots: choker::Slots::Fixed(1), ..choker::Config::default() });
    let id = lone.join();
    lone.say(id, Message::HaveNone);
    (lone, id)
}

#[test]
fn a_choked_newcomer_gets_its_allowed_pieces_once() {
    let content = Content::v1(BLOCK, 100 * BLOCK as usize);
    let (mut lone, id) = choking(&content);
    let granted = lone.torrent.conns[&id].granted_fast.clone();
    assert_eq!(granted.len(), ALLOWED_FAST_MAX);
    let told = lone.sent(id);
    assert!(granted.iter().all(|piece| told.contains(&format!("AllowedFast({piece})"))), "{told:?}");
    let other = (0..100).find(|piece| !granted.contains(piece)).unwrap();
    lone.say(id, Message::Request(range(other, 0, BLOCK)));
    assert_eq!(lone.torrent.next_upload(id), None);
    let piece = *granted.iter().find(|piece| **piece < 99).unwrap();
    (0..ALLOWED_FAST_MAX).for_each(|_| lone.say(id, Message::Request(range(piece, 0, BLOCK))));
    (0..ALLOWED_FAST_MAX).for_each(|_| assert!(lone.torrent.next_upload(id).is_some()));
    // As many bytes as the set has were granted: it is used up.
    lone.say(id, Message::Request(range(piece, 0, BLOCK)));
    assert_eq!(lone.torrent.next_upload(id), None);
}

#[test]
fn nothing_is_granted_to_the_advanced_by_seeds_or_over_ipv6() {
    let content = Content::v1(BLOCK, 100 * BLOCK as usize);
    let (mut lone, id) = choking(&content);
    let piece = *lone.torrent.conns[&id].granted_fast.iter().find(|piece| **piece < 99).unwrap();
    (0..ALLOWED_FAST_MAX as u32).for_each(|piece| lone.say(id, Message::Have(piece)));
    lone.say(id, Message::Request(range(piece, 0, BLOCK)));
    assert_eq!(lone.torrent.next_upload(id), None);
    let v6 = lone.try_join("[2001:db8::1]:6881", 90, Reserved::OURS).unwrap();
    assert_eq!(lone.torrent.conns[&v6].granted_fast.len(), 0);
    let mut seed = Lone::seed(&content);
    let id = seed.join();
    assert_eq!(seed.torrent.conns[&id].granted_fast.len(), 0);
}

#[test]
fn what_others_allow_is_asked_for_while_choked() {
    let content = Content::v1(BLOCK, 100 * BLOCK as usize);
    let mut lone = Lone::leecher(&content);
    let id = lone.join();
    lone.say(id, Message::HaveAll);
    assert_eq!(lone.requests(id), []);
    lone.say(id, Message::AllowedFast(42));
    assert_eq!(lone.requests(id), [range(42, 0, BLOCK)]);
    // Rejected after all: not asked again.
    lone.say(id, Message::Reject(range(42, 0, BLOCK)));
    lone.pass(std::time::Duration::from_secs(1));
    assert_eq!(lone.requests(id), []);
    (0..200).for_each(|piece| drop(lone.receive(id, Message::AllowedFast(piece % 100))));
    assert!(lone.torrent.conns[&id].allowed_fast.len() <= crate::torrent::config::ALLOWED_FAST_MAX);
    assert!(lone.receive(id, Message::AllowedFast(100)).is_err());
}

#[test]
fn who_comes_while_files_are_checked_is_served_when_they_are() {
    let content = Content::v1(16 * 1024, 1 << 20);
    let mut lone = Lone::magnet(&content);
    let id = lone.join_as(crate::handshake::Reserved::OURS);
    lone.say(id, Message::Interested);
    assert!(!lone.sent(id).iter().any(|text| text == "Unchoke"));
    let have = anabranch_content::bitfield::Bitfield::full(content.pieces());
    lone.torrent.set_content(content.info.clone(), Default::default(), have, Vec::new(), lone.now);
    let sent = lone.sent(id);
    let at = |what: &str| sent.iter().position(|text| text.starts_with(what));
    assert!(at("HaveAll") < at("Unchoke") && at("HaveAll").is_some(), "{sent:?}");
}

#[test]
fn a_slot_that_is_not_used_goes_to_those_who_wait() {
    let content = Content::v1(BLOCK, 100 * BLOCK as usize);
    let mut lone = Lone::seed(&content);
    let slots = 8;
    lone.torrent.choker.set_config(choker::Config { slots: choker::Slots::Fixed(slots), ..choker::Config::default() });
    let idle: Vec<ConnId> = (0..slots).map(|_| served(&mut lone)).collect();
    let late = lone.join();
    lone.say(late, Message::HaveNone);
    lone.say(late, Message::Interested);
    assert!(!lone.sent(late).contains(&"Unchoke".to_owned()));
    for _ in 0..4 * 7 {
        lone.pass(std::time::Duration::from_millis(250));
    }
    assert!(lone.sent(late).contains(&"Unchoke".to_owned()), "eight that ask for nothing hold all slots");
    // Whoever asks keeps its slot, however long the others wait.
    for _ in 0..4 * 60 {
        lone.say(late, Message::Request(range(0, 0, BLOCK)));
        lone.torrent.next_upload(late);
        lone.torrent.payload_sent(late, u64::from(BLOCK), lone.now);
        lone.pass(std::time::Duration::from_millis(250));
        assert!(!lone.torrent.conns[&late].choking);
    }
    assert!(idle.iter().any(|id| !lone.torrent.conns[id].choking), "a slot that nobody else wants is anybody's");
}
