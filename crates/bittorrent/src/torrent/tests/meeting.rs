//! Hole punching (BEP 55): who asks, who is asked for, and who brings both together.

use std::net::SocketAddr;
use std::time::Duration;

use anabranch_content::info::Version;

use super::lone::Lone;
use super::sim::Content;
use crate::ConnId;
use crate::extension::{Extension, HolepunchError, HolepunchKind, HolepunchMessage, PexFlags, PexMessage};
use crate::handshake::{Handshake, Reserved};
use crate::torrent::meeting::{MEETABLE_MAX, MEETINGS_BURST, MEETINGS_PER_MINUTE};
use crate::torrent::{Event, Link};

fn lone() -> Lone {
    Lone::leecher(&Content::v1(16 * 1024, 200_000))
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A peer that called us from `address`, over uTP or TCP, and says that it listens at port 7000.
fn caller(lone: &mut Lone, text: &str, over_utp: bool, peer: u8) -> ConnId {
    let hello = Handshake { reserved: Reserved::OURS, info_hash: [0; 20], peer_id: [peer; 20] };
    let link = Link {
        address: text.parse().unwrap(),
        outgoing: false,
        path: None,
        key: None,
        local: None,
        over_utp,
        is_near: false,
    };
    let id = lone.torrent.connected_over(link, &hello, lone.now).unwrap();
    lone.receive_handshake(id, |hello| hello.listen_port = Some(7000));
    id
}

fn say(lone: &mut Lone, id: ConnId, kind: HolepunchKind, about: &str) {
    let message = HolepunchMessage { kind, address: address(about) };
    lone.extended(id, Extension::Holepunch, &message.encode()).unwrap();
}

fn told(lone: &mut Lone, id: ConnId) -> Vec<(HolepunchKind, SocketAddr)> {
    let payloads = lone.sent_extended(id, Extension::Holepunch.our_id());
    let read = |payload: &Vec<u8>| HolepunchMessage::parse(payload).unwrap().unwrap();
    payloads.iter().map(read).map(|message| (message.kind, message.address)).collect()
}

fn met(lone: &mut Lone) -> Vec<SocketAddr> {
    let address = |event| if let Event::Meet { address } = event { Some(address) } else { None };
    lone.events().into_iter().filter_map(address).collect()
}

#[test]
fn two_peers_are_brought_together_by_the_addresses_that_their_nats_know() {
    let mut lone = lone();
    let over_utp = caller(&mut lone, "9.9.1.2:41000", true, 1);
    let over_tcp = caller(&mut lone, "9.9.2.2:52000", false, 2);
    // By where it listens, and by where it is met.
    for about in ["9.9.1.2:7000", "9.9.1.2:41000"] {
        say(&mut lone, over_tcp, HolepunchKind::Rendezvous, about);
        assert_eq!(told(&mut lone, over_tcp), [(HolepunchKind::Connect, address("9.9.1.2:41000"))]);
        assert_eq!(told(&mut lone, over_utp), [(HolepunchKind::Connect, address("9.9.2.2:7000"))]);
    }
    assert_eq!(met(&mut lone), []);
}

#[test]
fn who_cannot_be_met_is_told_why() {
    let mut lone = lone();
    let asking = caller(&mut lone, "9.9.1.2:41000", true, 1);
    let mute = caller(&mut lone, "9.9.2.2:7000", true, 2);
    lone.receive_handshake(mute, |hello| hello.ids = hello.ids.switched_off(Extension::Holepunch));
    // Of its own network nobody outside is told.
    let near = caller(&mut lone, "192.168.1.9:7000", true, 3);
    for (about, error) in [
        ("9.9.3.2:7000", HolepunchError::NotConnected),
        ("9.9.2.2:7000", HolepunchError::NoSupport),
        ("192.168.1.9:7000", HolepunchError::NoSuchPeer),
        ("9.9.1.2:41000", HolepunchError::NotConnected),
    ] {
        say(&mut lone, asking, HolepunchKind::Rendezvous, about);
        assert_eq!(told(&mut lone, asking), [(HolepunchKind::Error(error), address(about))]);
    }
    assert!(told(&mut lone, mute).is_empty() && told(&mut lone, near).is_empty());
}

#[test]
fn strangers_have_nobody_called_who_is_nearer_than_they_are() {
    let mut lone = lone();
    let stranger = caller(&mut lone, "9.9.1.2:41000", true, 1);
    let near = caller(&mut lone, "192.168.1.9:7000", true, 2);
    for about in
        ["127.0.0.1:8080", "192.168.1.1:5351", "169.254.169.254:7000", "9.9.3.2:53", "9.9.3.2:0", "9.9.3.2:7000"]
    {
        say(&mut lone, stranger, HolepunchKind::Connect, about);
    }
    assert_eq!(met(&mut lone), [address("9.9.3.2:7000")]);
    say(&mut lone, near, HolepunchKind::Connect, "192.168.1.8:7000");
    assert_eq!(met(&mut lone), [address("192.168.1.8:7000")]);
    // Who is here already is not called again.
    say(&mut lone, near, HolepunchKind::Connect, "9.9.1.2:7000");
    assert_eq!(met(&mut lone), []);
}

#[test]
fn nobody_has_us_call_without_end() {
    let mut lone = lone();
    let stranger = caller(&mut lone, "9.9.1.2:41000", true, 1);
    let flood = |lone: &mut Lone| {
        (1..=250u8).for_each(|host| say(lone, stranger, HolepunchKind::Connect, &format!("9.9.9.{host}:7000")));
        met(lone).len() as u32
    };
    assert_eq!(flood(&mut lone), MEETINGS_BURST);
    assert_eq!(flood(&mut lone), 0);
    lone.now += Duration::from_secs(20);
    assert_eq!(flood(&mut lone), MEETINGS_PER_MINUTE / 3);
    lone.now += Duration::from_secs(3600);
    assert_eq!(flood(&mut lone), MEETINGS_BURST);
    assert!(lone.torrent.conns.contains_key(&stranger), "it costs nothing");
}

#[test]
fn who_named_a_peer_is_asked_for_it_now_and_then() {
    let mut lone = lone();
    let by = caller(&mut lone, "9.9.1.2:41000", true, 1);
    let (takes_part, does_not): (SocketAddr, SocketAddr) = (address("9.9.2.2:7000"), address("9.9.3.2:7000"));
    let added = vec![(takes_part.into(), PexFlags::HOLEPUNCH), (does_not.into(), PexFlags::UTP)];
    let news = PexMessage { added, dropped: Vec::new(), in_use: None };
    lone.extended(by, Extension::Pex, &news.encode()).unwrap();
    let now = lone.now;
    assert!(!lone.torrent.ask_to_meet(&does_not.into(), now));
    assert!(lone.torrent.ask_to_meet(&takes_part.into(), now) && !lone.torrent.ask_to_meet(&takes_part.into(), now));
    assert_eq!(told(&mut lone, by), [(HolepunchKind::Rendezvous, takes_part)]);
    assert!(lone.torrent.ask_to_meet(&takes_part.into(), now + Duration::from_secs(60)));
    lone.torrent.disconnected(by, now);
    assert!(!lone.torrent.ask_to_meet(&takes_part.into(), now + Duration::from_secs(3600)));
}

#[test]
fn so_many_can_be_asked_for() {
    let mut lone = lone();
    let by = caller(&mut lone, "9.9.1.2:41000", true, 1);
    for number in 0..MEETABLE_MAX as u32 + 9 {
        let [_, _, high, low] = number.to_be_bytes();
        lone.torrent.may_meet(by, &SocketAddr::from(([11, 1, high, low], 7000)).into());
    }
    let now = lone.now;
    let last = SocketAddr::from(([11, 1, (MEETABLE_MAX >> 8) as u8, 8], 7000));
    assert!(!lone.torrent.ask_to_meet(&last.into(), now));
    assert!(lone.torrent.ask_to_meet(&SocketAddr::from(([11, 1, 0, 0], 7000)).into(), now));
}

#[test]
fn private_contents_and_those_who_do_not_call_over_utp_hold_no_meetings() {
    for private in [true, false] {
        let mut lone = Lone::leecher(&Content::new(Version::V1, 16 * 1024, &[200_000], private));
        lone.torrent.config.holepunch = private;
        let by = caller(&mut lone, "9.9.1.2:41000", true, 1);
        let other = caller(&mut lone, "9.9.2.2:41000", true, 2);
        say(&mut lone, by, HolepunchKind::Connect, "9.9.3.2:7000");
        say(&mut lone, by, HolepunchKind::Rendezvous, "9.9.2.2:41000");
        assert_eq!(met(&mut lone), []);
        assert!(told(&mut lone, by).is_empty() && told(&mut lone, other).is_empty());
    }
}
