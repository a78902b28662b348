//! Any bytes as what trackers answer and as what clients ask of ours, over HTTP and UDP.
//!
//! Input: a byte that chooses, then the message or messages.
#![no_main]

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anabranch_bittorrent::tracker::server::{Tracker, TrackerConfig};
use anabranch_bittorrent::tracker::{
    AnnounceReply, REPLY_PEERS_MAX, SCRAPE_HASHES_MAX, TrackerUrl, UrlError, http, udp,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, message)) = data.split_first() else { return };
    match choice % 6 {
        0 => drop(http::parse_announce_reply(message).map(check)),
        1 => drop(http::parse_scrape_reply(message)),
        2 => datagram(message),
        3 => url(message),
        4 => server(message),
        _ => {
            let Some((request, target)) = message.split_first() else { return };
            let mut tracker = Tracker::new(TrackerConfig::new(1, [2; 16]), Instant::now());
            let source = if request % 2 == 0 { [10, 0, 0, 1].into() } else { IpAddr::from([127, 0, 0, 1]) };
            let answer = tracker.on_http(&String::from_utf8_lossy(target), source, Instant::now());
            let _ = http::parse_announce_reply(&answer.body).map(check);
        }
    }
});

fn check(reply: AnnounceReply) {
    assert!(reply.peers.len() <= REPLY_PEERS_MAX);
    assert!(reply.peers.iter().all(|peer| peer.socket_addr().port() != 0 && !peer.ip().is_unspecified()));
}

fn datagram(bytes: &[u8]) {
    let Some(transaction) = udp::reply_transaction(bytes) else { return };
    let _ = udp::parse_connect_reply(bytes, transaction);
    for is_ipv6 in [false, true] {
        let _ = udp::parse_announce_reply(bytes, transaction, is_ipv6).map(check);
    }
    if let Ok(entries) = udp::parse_scrape_reply(bytes, transaction) {
        assert!(entries.len() <= SCRAPE_HASHES_MAX);
    }
}

fn url(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    let (base, location) = text.split_once(' ').unwrap_or((&text, ""));
    let Ok(url) = base.parse::<TrackerUrl>() else { return };
    check_url(&url);
    let _ = (url.scrape(), url.target(), url.authority());
    if let Ok(joined) = url.join(location) {
        check_url(&joined);
    }
}

fn check_url(url: &TrackerUrl) {
    let again = url.to_string().parse();
    // Escapes may make a URL longer than it came.
    assert!(matches!(again, Err(UrlError::Long(_))) || again.as_ref() == Ok(url), "{url} is {again:?}");
}

/// Datagrams with their length before them and a second between them, from a client whose connection id is put in.
fn server(mut datagrams: &[u8]) {
    let mut now = Instant::now();
    let mut tracker = Tracker::new(TrackerConfig { peers_max: 3, ..TrackerConfig::new(1, [2; 16]) }, now);
    let source = SocketAddr::from(([10, 0, 0, 1], 6881));
    let reply = tracker.on_datagram(&udp::connect_request(7), source, now).expect("a connection id");
    let id = udp::parse_connect_reply(&reply, 7).expect("a connect reply").to_be_bytes();
    while let Some((&len, rest)) = datagrams.split_first() {
        let (datagram, rest) = rest.split_at(rest.len().min(len.into()));
        datagrams = rest;
        now += Duration::from_secs(1);
        tracker.on_datagram(datagram, source, now);
        if let Some(reply) = tracker.on_datagram(&[&id, datagram].concat(), source, now) {
            self::datagram(&reply);
        }
    }
    assert!(tracker.stats().peers <= 3);
}
