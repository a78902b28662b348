//! What peers have, interest, and who is of no use.

use anabranch_content::bitfield::Bitfield;

use super::lone::Lone;
use super::sim::Content;
use crate::extension::{Extension, encode_dont_have, encode_upload_only};
use crate::handshake::Reserved;
use crate::torrent::config::PENDING_HAVES_MAX;
use crate::torrent::pieces::INTEREST_KEPT;
use crate::torrent::{PeerMisbehaved, TICK};
use crate::wire::Message;

#[test]
fn interest_follows_have_bitfield_and_what_comes() {
    let content = Content::v1(16 * 1024, 20 * 16 * 1024);
    let mut lone = Lone::leecher(&content);
    let id = lone.join();
    assert!(lone.sent(id).contains(&"HaveNone".to_owned()));
    lone.say(id, Message::Have(4));
    assert_eq!(lone.sent(id), ["Interested"]);
    lone.say(id, Message::Have(4));
    lone.say(id, Message::Unchoke);
    let asked = lone.requests(id);
    assert_eq!(asked.len(), 1);
    assert!(lone.deliver(id, asked[0]));
    lone.sent(id);
    lone.good(4);
    assert_eq!(lone.sent(id), ["Have(4)"]);
    // Interest does not end with every piece that the peer is ahead.
    lone.pass(INTEREST_KEPT / 2);
    lone.say(id, Message::Have(6));
    assert!(!lone.sent(id).iter().any(|said| said.ends_with("Interested")));
    let asked = lone.requests(id);
    assert!(lone.deliver(id, asked[0]));
    lone.good(6);
    lone.pass(INTEREST_KEPT - TICK * 2);
    assert!(!lone.sent(id).contains(&"NotInterested".to_owned()));
    lone.pass(TICK * 3);
    assert!(lone.sent(id).contains(&"NotInterested".to_owned()));
    // BEP 54: a promise taken back.
    lone.say(id, Message::Have(5));
    assert!(lone.sent(id).contains(&"Interested".to_owned()));
    lone.extended(id, Extension::DontHave, &encode_dont_have(5)).unwrap();
    lone.extended(id, Extension::DontHave, &encode_dont_have(5)).unwrap();
    lone.pass(INTEREST_KEPT + TICK * 2);
    assert!(lone.sent(id).contains(&"NotInterested".to_owned()));
}

#[test]
fn a_bitfield_is_taken_late_and_again() {
    let content = Content::v1(16 * 1024, 20 * 16 * 1024);
    let mut lone = Lone::leecher(&content);
    let id = lone.join();
    lone.say(id, Message::Have(1));
    lone.say(id, Message::Bitfield(Bitfield::full(20).as_bytes()));
    assert_eq!(lone.torrent.stats(lone.now).seeds, 1);
    // As aria2 does: the last word counts.
    lone.say(id, Message::Bitfield(Bitfield::new(20).as_bytes()));
    lone.pass(INTEREST_KEPT + TICK * 2);
    assert!(lone.sent(id).contains(&"NotInterested".to_owned()));
    lone.say(id, Message::HaveAll);
    assert_eq!(
        (lone.torrent.stats(lone.now).seeds, lone.torrent.content.as_ref().unwrap().wanted_count(&Bitfield::full(20))),
        (1, 20)
    );
    lone.torrent.disconnected(id, lone.now);
    assert_eq!(lone.torrent.stats(lone.now).seeds, 0);
}

#[test]
fn spare_bits_wrong_lengths_and_pieces_past_the_end_are_refused() {
    let content = Content::v1(16 * 1024, 20 * 16 * 1024);
    let mut lone = Lone::leecher(&content);
    for bytes in [&[0xff, 0xff, 0xff][..], &[0xff, 0xff], &[0; 4]] {
        let id = lone.join();
        let fault = lone.receive(id, Message::Bitfield(bytes)).unwrap_err();
        assert_eq!(fault, PeerMisbehaved::BadBitfield { pieces: 20 });
        assert!(!fault.deserves_ban());
    }
    let id = lone.join();
    lone.say(id, Message::Have(19));
    assert!(matches!(lone.receive(id, Message::Have(20)), Err(PeerMisbehaved::NoSuchPiece { piece: 20, pieces: 20 })));
    let plain = lone.join_as(Reserved([0; 8]));
    assert_eq!(lone.receive(plain, Message::HaveAll), Err(PeerMisbehaved::FastNotNegotiated));
}

#[test]
fn what_is_said_before_the_metadata_is_known_counts_afterwards() {
    let content = Content::v1(16 * 1024, 20 * 16 * 1024);
    let mut lone = Lone::magnet(&content);
    let (all, some, wrong, far) = (lone.join(), lone.join(), lone.join(), lone.join());
    lone.say(all, Message::HaveAll);
    lone.say(all, Message::Unchoke);
    lone.say(some, Message::HaveNone);
    (0..=PENDING_HAVES_MAX as u32).for_each(|piece| lone.say(some, Message::Have(piece % 20)));
    lone.say(wrong, Message::Bitfield(&[0xff; 9]));
    lone.say(far, Message::Have(20));
    let info = content.info.clone();
    lone.torrent.set_content(info, Default::default(), Bitfield::new(20), Vec::new(), lone.now);
    assert!(!lone.requests(all).is_empty());
    assert_eq!(lone.torrent.peer_stats(lone.now)[1].pieces, 20);
    assert_eq!(lone.torrent.stats(lone.now).seeds, 2);
    assert_eq!(lone.closed(), [wrong, far]);
}

#[test]
fn two_who_only_upload_part_unless_one_still_asks() {
    let content = Content::v1(16 * 1024, 20 * 16 * 1024);
    let mut lone = Lone::seed(&content);
    let seed = lone.join();
    lone.say(seed, Message::HaveAll);
    assert_eq!(lone.closed(), [seed]);
    // BEP 21: a partial seed has what it wants.
    let partial = lone.join();
    lone.say(partial, Message::HaveNone);
    lone.extended(partial, Extension::UploadOnly, &encode_upload_only(true)).unwrap();
    assert_eq!(lone.closed(), [partial]);
    // Whoever downloads stays until it is done.
    let asking = lone.join();
    lone.say(asking, Message::Interested);
    lone.receive_handshake(asking, |hello| hello.upload_only = Some(true));
    assert_eq!(lone.closed(), []);
    lone.say(asking, Message::NotInterested);
    assert_eq!(lone.closed(), [asking]);
    // We say so ourselves.
    let other = lone.join();
    let hello = crate::extension::ExtensionHandshake::parse(&lone.sent_extended(other, 0)[0]).unwrap();
    assert_eq!(hello.upload_only, Some(true));
}

#[test]
fn a_seed_that_gives_metadata_is_not_left() {
    let content = Content::v1(16 * 1024, 20 * 16 * 1024);
    let mut lone = Lone::magnet(&content);
    let seed = lone.join();
    lone.say(seed, Message::HaveAll);
    lone.receive_handshake(seed, |hello| {
        hello.upload_only = Some(true);
        hello.metadata_size = Some(content.info.source.len() as u64);
    });
    assert_eq!(lone.closed(), []);
}

#[test]
fn lost_pieces_are_taken_back_and_fetched_again() {
    let content = Content::v1(16 * 1024, 20 * 16 * 1024);
    let mut lone = Lone::seed(&content);
    let leecher = lone.join();
    lone.say(leecher, Message::HaveNone);
    lone.say(leecher, Message::Have(7));
    lone.say(leecher, Message::Interested);
    lone.say(leecher, Message::Unchoke);
    lone.receive_handshake(leecher, |_| {});
    let range = crate::wire::BlockRange { piece: 7, begin: 0, len: 16 * 1024 };
    lone.say(leecher, Message::Request(range));
    assert!(lone.torrent.content.as_ref().unwrap().picker.is_none(), "a seed needs no picker");
    lone.sent(leecher);
    lone.torrent.pieces_lost(&[7, 7, 99], lone.now);
    assert!(!lone.torrent.is_complete());
    assert_eq!(lone.torrent.next_upload(leecher), None);
    assert_eq!(lone.requests(leecher), [range]);
    assert_eq!(lone.torrent.wanted_bytes(), Some((19 * 16 * 1024, 20 * 16 * 1024)));
    assert!(lone.deliver(leecher, range));
    lone.good(7);
    assert!(lone.torrent.is_complete());
}
