//! Keep-alives, silence, and a clock that neither runs idle nor stops.

use std::time::Duration;

use super::lone::Lone;
use super::sim::Content;
use crate::torrent::{KEEP_ALIVE_EVERY, SILENCE_MAX};
use crate::wire::Message;

#[test]
fn a_quiet_connection_is_kept_alive_and_a_silent_one_closed() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::leecher(&content);
    let id = lone.join();
    lone.sent(id);
    lone.pass(KEEP_ALIVE_EVERY);
    assert_eq!(lone.sent(id).len(), 0);
    lone.pass(Duration::from_secs(1));
    assert_eq!(lone.sent(id), ["KeepAlive"]);
    lone.pass(SILENCE_MAX - KEEP_ALIVE_EVERY - Duration::from_secs(1));
    assert_eq!(lone.closed(), []);
    lone.say(id, Message::KeepAlive);
    lone.pass(SILENCE_MAX);
    assert_eq!(lone.closed(), []);
    lone.pass(Duration::from_secs(1));
    assert_eq!(lone.closed(), [id]);
    lone.pass(Duration::from_secs(1));
    assert_eq!(lone.closed(), [], "once is enough");
}

#[test]
fn the_deadline_is_ahead_once_it_was_met_and_absent_without_connections() {
    let content = Content::v1(64 * 1024, 200_000);
    let mut lone = Lone::seed(&content);
    assert_eq!(lone.torrent.next_deadline(), None);
    let id = lone.join();
    lone.say(id, Message::Interested);
    for _ in 0..200 {
        lone.now = lone.now.max(lone.torrent.next_deadline().unwrap());
        lone.torrent.on_time(lone.now);
        let next = lone.torrent.next_deadline().unwrap();
        assert!(next > lone.now);
        // A second call at the same time changes nothing.
        lone.sent(id);
        lone.torrent.on_time(lone.now);
        assert_eq!((lone.torrent.next_deadline(), lone.sent(id).len()), (Some(next), 0));
    }
    lone.torrent.disconnected(id, lone.now);
    assert_eq!(lone.torrent.next_deadline(), None);
}
