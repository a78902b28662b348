//! What is asked for, and what becomes of it.

use std::time::Duration;

use super::lone::Lone;
use super::sim::Content;
use crate::extension::Extension;
use crate::handshake::Reserved;
use crate::picker::Priority;
use crate::requests::LATE_MAX;
use crate::torrent::config::{REJECTED_MAX, REJECTED_PAUSE, UNSOLICITED_MAX};
use crate::torrent::{Event, PeerMisbehaved, REQUEST_BOUNDARY, REQUEST_LEN_MAX};
use crate::wire::{BlockRange, Message};

const BLOCK: u32 = 16 * 1024;
const SECOND: Duration = Duration::from_secs(1);

/// Lets the pipeline grow over a fast connection.
fn warm_up(lone: &mut Lone, id: crate::ConnId, blocks: usize) {
    for _ in 0..blocks {
        lone.now += Duration::from_millis(2);
        let Some(range) = lone.requests(id).first().copied() else { return };
        assert!(lone.deliver(id, range));
    }
}

#[test]
fn requests_grow_only_where_both_agreed_and_never_cross_the_boundary() {
    let content = Content::v1(512 * 1024, 8 << 20);
    for agreed in [false, true] {
        let mut lone = Lone::leecher(&content);
        let id = lone.join_seed();
        lone.receive_handshake(id, |hello| {
            hello.block_len_max = agreed.then_some(1 << 20);
            hello.request_queue_len = Some(1000);
        });
        let mut longest = 0;
        for _ in 0..200 {
            warm_up(&mut lone, id, 1);
            for range in lone.requests(id) {
                longest = longest.max(range.len);
                let last = range.begin + range.len - 1;
                assert_eq!(range.begin / REQUEST_BOUNDARY, last / REQUEST_BOUNDARY, "{range:?}");
            }
        }
        assert_eq!(longest, if agreed { REQUEST_LEN_MAX } else { BLOCK });
    }
}

#[test]
fn the_queue_of_the_peer_is_respected() {
    let content = Content::v1(1 << 20, 16 << 20);
    for reqq in [1, 3, 7] {
        let mut lone = Lone::leecher(&content);
        let id = lone.join_seed();
        lone.receive_handshake(id, |hello| {
            hello.request_queue_len = Some(reqq);
            hello.block_len_max = Some(64 * 1024);
        });
        // What was asked before the greeting may exceed what the greeting says.
        warm_up(&mut lone, id, 8);
        for _ in 0..100 {
            warm_up(&mut lone, id, 1);
            assert!(lone.requests(id).len() <= reqq as usize, "{} of {reqq}", lone.requests(id).len());
        }
    }
}

#[test]
fn a_choke_without_the_fast_extension_takes_all_requests_back() {
    let content = Content::v1(64 * 1024, 1 << 20);
    let mut lone = Lone::leecher(&content);
    let slow = lone.join_as(Reserved([0; 8]));
    let full = anabranch_content::bitfield::Bitfield::full(content.pieces());
    lone.say(slow, Message::Bitfield(full.as_bytes()));
    lone.say(slow, Message::Unchoke);
    let asked = lone.requests(slow);
    assert!(!asked.is_empty());
    lone.say(slow, Message::Choke);
    assert_eq!((lone.requests(slow).len(), lone.torrent.requested_bytes()), (0, 0));
    // A block that crossed the choke is still welcome, though nobody holds its piece now.
    assert!(lone.deliver(slow, asked[0]));
    // And nobody asks for it again.
    let other = lone.join_seed();
    assert!(lone.requests(other).iter().all(|range| *range != asked[0]));
}

#[test]
fn a_choke_with_the_fast_extension_rejects_by_name() {
    let content = Content::v1(64 * 1024, 1 << 20);
    let mut lone = Lone::leecher(&content);
    let id = lone.join_seed();
    let asked = lone.requests(id);
    lone.say(id, Message::Choke);
    assert_eq!(lone.requests(id), asked);
    asked.iter().for_each(|range| lone.say(id, Message::Reject(*range)));
    assert_eq!((lone.requests(id).len(), lone.torrent.requested_bytes()), (0, 0));
}

#[test]
fn a_peer_that_rejects_everything_is_left_alone_for_a_while() {
    let content = Content::v1(64 * 1024, 1 << 20);
    let mut lone = Lone::leecher(&content);
    let id = lone.join_seed();
    let mut rejected = 0;
    while let Some(range) = lone.requests(id).first().copied() {
        lone.say(id, Message::Reject(range));
        rejected += 1;
        assert!(rejected < 10 * REJECTED_MAX);
    }
    assert!(rejected >= REJECTED_MAX);
    lone.pass(REJECTED_PAUSE - Duration::from_millis(1));
    assert_eq!(lone.requests(id).len(), 0);
    lone.pass(SECOND);
    assert!(!lone.requests(id).is_empty());
}

#[test]
fn what_a_mute_peer_was_asked_goes_to_another_and_late_answers_count() {
    let content = Content::v1(64 * 1024, 64 * 1024);
    let mut lone = Lone::leecher(&content);
    let mute = lone.join_seed();
    let asked = lone.requests(mute);
    assert_eq!(asked.len(), 4);
    for _ in 0..100 {
        lone.pass(SECOND / 4);
    }
    assert_eq!(lone.requests(mute).len(), 1, "one request shows whether it is back");
    let other = lone.join_seed();
    assert!(!lone.requests(other).is_empty());
    // The mute one wakes up: every block counts once.
    let kept = asked.iter().filter(|range| lone.deliver(mute, **range)).count();
    assert_eq!(kept, 4);
    assert!(lone.events().contains(&Event::PieceComplete { piece: 0 }));
    let cancels = lone.sent(other);
    assert!(cancels.iter().any(|text| text.starts_with("Cancel")), "{cancels:?}");
}

#[test]
fn endgame_copies_are_cancelled_and_what_comes_anyway_is_no_crime() {
    let content = Content::v1(64 * 1024, 64 * 1024);
    let mut lone = Lone::leecher(&content);
    let (first, second) = (lone.join_seed(), lone.join_seed());
    let (asked, copies) = (lone.requests(first), lone.requests(second));
    assert_eq!(asked.len(), copies.len(), "the endgame: all is asked of both");
    asked.iter().for_each(|range| assert!(lone.deliver(first, *range)));
    assert_eq!(lone.requests(second), []);
    assert_eq!(lone.torrent.requested_bytes(), 0);
    copies.iter().for_each(|range| assert!(!lone.deliver(second, *range)));
    lone.good(0);
    assert!(lone.events().contains(&Event::Finished));
    assert!(lone.closed().is_empty());
}

#[test]
fn blocks_nobody_asked_for_end_the_connection_at_the_limit() {
    let content = Content::v1(64 * 1024, 1 << 20);
    let mut lone = Lone::leecher(&content);
    let id = lone.join();
    let range = BlockRange { piece: 3, begin: 0, len: BLOCK };
    for _ in 0..UNSOLICITED_MAX {
        assert!(!lone.deliver(id, range));
    }
    let fault = lone.torrent.block_started(id, range, lone.now).unwrap_err();
    assert_eq!(fault, PeerMisbehaved::Unsolicited);
    lone.torrent.misbehaved(id, &fault);
    assert!(lone.events().iter().all(|event| !matches!(event, Event::Banned { .. })), "no reason for a ban");
}

#[test]
fn given_up_requests_are_remembered_to_a_limit() {
    let content = Content::v1(64 * 1024, 1 << 20);
    let mut lone = Lone::leecher(&content);
    let id = lone.join_as(Reserved([0; 8]));
    let full = anabranch_content::bitfield::Bitfield::full(content.pieces());
    lone.say(id, Message::Bitfield(full.as_bytes()));
    for _ in 0..LATE_MAX {
        lone.now += SECOND / 4;
        lone.say(id, Message::Unchoke);
        lone.say(id, Message::Choke);
    }
    assert_eq!(lone.torrent.conns[&id].requests.late_count(), LATE_MAX);
}

#[test]
fn a_disconnect_in_the_middle_gives_everything_back() {
    let content = Content::v1(64 * 1024, 64 * 1024);
    let mut lone = Lone::leecher(&content);
    let first = lone.join_seed();
    let asked = lone.requests(first);
    assert!(lone.deliver(first, asked[0]));
    let _arriving = lone.torrent.block_started(first, asked[1], lone.now).unwrap();
    lone.torrent.disconnected(first, lone.now);
    assert_eq!(lone.torrent.requested_bytes(), 0);
    let second = lone.join_seed();
    assert_eq!(lone.requests(second).len(), 3, "what the first delivered stays");
}

#[test]
fn a_peer_that_owes_answers_for_a_minute_snubs_us() {
    let content = Content::v1(64 * 1024, 1 << 20);
    let mut lone = Lone::leecher(&content);
    let id = lone.join_seed();
    for _ in 0..59 {
        lone.pass(SECOND);
    }
    assert!(!lone.torrent.conns[&id].is_snubbing(lone.now));
    lone.pass(SECOND);
    assert!(lone.torrent.conns[&id].is_snubbing(lone.now));
    let range = lone.requests(id)[0];
    lone.deliver(id, range);
    assert!(!lone.torrent.conns[&id].is_snubbing(lone.now));
}

#[test]
fn priorities_change_what_is_wanted_and_the_totals_follow() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    assert_eq!(lone.torrent.wanted_bytes(), Some((0, 200_000)));
    let skip: Vec<_> = (0..3).map(|piece| (piece, Priority::SKIP)).collect();
    lone.torrent.set_priorities(&skip, lone.now);
    assert_eq!(lone.torrent.wanted_bytes(), Some((0, 200_000 - 3 * 65_536)));
    let id = lone.join_seed();
    let asked = lone.requests(id);
    assert!(asked.iter().all(|range| range.piece == 3));
    asked.iter().for_each(|range| assert!(lone.deliver(id, *range)));
    lone.receive_handshake(id, |_| {});
    lone.sent(id);
    lone.good(3);
    assert!(lone.torrent.is_finished() && !lone.torrent.is_complete());
    let told = lone.sent(id);
    assert!(told.contains(&"NotInterested".to_owned()), "{told:?}");
    // Wanting more again is said, too.
    lone.torrent.set_priorities(&[(0, Priority::NORMAL)], lone.now);
    assert!(!lone.torrent.is_finished());
    assert_eq!(lone.torrent.wanted_bytes(), Some((200_000 - 3 * 65_536, 200_000 - 2 * 65_536)));
    let told = lone.sent_extended(id, Extension::UploadOnly.our_id());
    assert_eq!(told, [vec![0]]);
    assert!(lone.requests(id).iter().all(|range| range.piece == 0));
}

#[test]
fn a_piece_with_a_deadline_comes_first_until_that_is_taken_back() {
    let content = Content::v1(16 * 1024, 1 << 20);
    for wanted in [true, false] {
        let mut lone = Lone::leecher(&content);
        let soon = lone.now + SECOND;
        lone.torrent.set_deadlines(&[(37, Some(soon))], lone.now);
        lone.torrent.set_deadlines(&[(11, Some(soon + SECOND))], lone.now);
        if !wanted {
            lone.torrent.set_deadlines(&[(37, None)], lone.now);
        }
        let id = lone.join_seed();
        let first: Vec<u32> = lone.requests(id).iter().map(|range| range.piece).take(2).collect();
        assert_eq!(first[0], if wanted { 37 } else { 11 });
        assert!(first.contains(&11));
    }
}

#[test]
fn what_is_needed_at_once_does_not_wait_for_what_was_asked_for() {
    let content = Content::v1(64 * 1024, 4 << 20);
    for is_late in [true, false] {
        let mut lone = Lone::leecher(&content);
        let id = lone.join_seed();
        let asked = lone.requests(id);
        lone.sent(id);
        let piece = (0..64).find(|piece| asked.iter().all(|range| range.piece != *piece)).expect("not all of it");
        let due = if is_late { lone.now } else { lone.now + SECOND };
        lone.torrent.set_deadlines(&[(piece, Some(due))], lone.now);
        let told = lone.sent(id);
        let count = |what: &str| told.iter().filter(|told| told.starts_with(what)).count();
        assert_eq!(count("Cancel"), if is_late { asked.len() } else { 0 }, "{told:?}");
        if is_late {
            let first = told.iter().find(|told| told.starts_with("Request")).expect("it asks");
            assert!(first.contains(&format!("piece: {piece}")), "{first}");
            // Nothing changed: nothing is taken back again.
            lone.torrent.set_deadlines(&[(piece, Some(due))], lone.now);
            assert!(lone.sent(id).iter().all(|told| !told.starts_with("Cancel")));
        }
        // What comes all the same is welcome.
        asked.iter().for_each(|range| assert!(lone.deliver(id, *range)));
    }
}

/// Every choke made all connections look for blocks, and every unchoke gave a pipeline of requests: among 300 that may be
/// asked while they choke, ten bytes cost thousands of looks.
#[test]
fn a_peer_that_chokes_and_unchokes_without_end_costs_others_nothing() {
    let content = Content::v1(16 * 1024, 4 << 20);
    let mut lone = Lone::leecher(&content);
    let flips = lone.join_as(crate::handshake::Reserved([0; 8]));
    lone.say(flips, Message::Bitfield(anabranch_content::bitfield::Bitfield::full(content.pieces()).as_bytes()));
    let friend = lone.join();
    lone.say(friend, Message::HaveAll);
    lone.say(friend, Message::AllowedFast(3));
    lone.sent(flips);
    let (mut asked, mut looks, mut looked_at) = (0, 0, None);
    for step in 0..1000 {
        lone.now += std::time::Duration::from_millis(1);
        lone.say(flips, Message::Unchoke);
        lone.say(flips, Message::Choke);
        looks += u32::from(std::mem::replace(&mut looked_at, lone.torrent.filled_all_at) != looked_at);
        if step % 250 == 249 {
            lone.pass(std::time::Duration::ZERO);
        }
        asked += lone.sent(flips).iter().filter(|text| text.starts_with("Request")).count();
    }
    assert!(looks <= 5 && asked <= 5 * 4, "{looks} looks, {asked} requests");
    // Honest chokes are rare, and answered at once.
    lone.now += std::time::Duration::from_secs(1);
    lone.say(flips, Message::Unchoke);
    assert!(!lone.requests(flips).is_empty());
}
