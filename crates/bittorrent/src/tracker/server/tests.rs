//! The tracker through its two doors, in virtual time.

use anabranch_paths::ScionAddr;
use proptest::prelude::*;

use super::*;
use crate::extension::{IN_USE_COUNTS_FOR, InterfaceSequence};
use crate::tracker::udp::{self, CONNECTION_ID_ACCEPTED};
use crate::tracker::{AnnounceReply, ReplyError, http as client};

const HASH: InfoHash = [7; 20];
const NOBODY: [u16; 0] = [];

fn tracker(now: Instant) -> Tracker {
    Tracker::new(TrackerConfig::new(1, [9; 16]), now)
}

fn request(port: u16, left_bytes: u64, event: Event) -> AnnounceRequest {
    AnnounceRequest { left_bytes, ..AnnounceRequest::new(HASH, [port as u8; 20], port, event) }
}

fn http(tracker: &mut Tracker, ip: &str, request: &AnnounceRequest, more: &str, now: Instant) -> AnnounceReply {
    let target = client::announce_target(&"http://t/announce".parse().unwrap(), request) + more;
    let answer = tracker.on_http(&target, ip.parse().unwrap(), now);
    assert_eq!(answer.status, 200);
    client::parse_announce_reply(&answer.body).unwrap()
}

fn ports(reply: &AnnounceReply) -> Vec<u16> {
    let mut ports: Vec<u16> = reply.peers.iter().map(|peer| peer.socket_addr().port()).collect();
    ports.sort();
    ports
}

#[test]
fn peers_learn_of_each_other_and_leave() {
    let now = Instant::now();
    let mut t = tracker(now);
    assert_eq!(ports(&http(&mut t, "10.0.0.1", &request(1, 0, Event::Started), "", now)), NOBODY);
    let reply = http(&mut t, "10.0.0.2", &request(2, 5, Event::Started), "", now);
    assert_eq!(reply.peers, ["10.0.0.1:1".parse().unwrap()]);
    assert_eq!((reply.complete, reply.incomplete), (Some(1), Some(1)));
    assert_eq!(reply.interval, Some(INTERVAL_DEFAULT));
    assert_eq!(reply.external_ip, Some("10.0.0.2".parse().unwrap()));
    http(&mut t, "10.0.0.1", &request(1, 0, Event::Stopped), "", now);
    assert_eq!(ports(&http(&mut t, "10.0.0.2", &request(2, 5, Event::None), "", now)), NOBODY);
    assert_eq!(t.stats().peers, 1);
}

#[test]
fn seeds_are_not_told_of_seeds() {
    let now = Instant::now();
    let mut t = tracker(now);
    http(&mut t, "10.0.0.1", &request(1, 0, Event::Started), "", now);
    http(&mut t, "10.0.0.1", &request(2, 5, Event::Started), "", now);
    assert_eq!(ports(&http(&mut t, "10.0.0.1", &request(3, 0, Event::None), "", now)), [2]);
    assert_eq!(ports(&http(&mut t, "10.0.0.1", &request(4, 5, Event::Started), "", now)), [1, 2, 3]);
}

#[test]
fn who_starts_and_says_that_nothing_is_left_is_told_of_seeds_behind_the_others() {
    let now = Instant::now();
    let mut t = tracker(now);
    http(&mut t, "10.0.0.1", &request(1, 0, Event::None), "", now);
    http(&mut t, "10.0.0.2", &request(2, 5, Event::None), "", now);
    let mut told = |event, numwant| {
        let asks = AnnounceRequest { numwant: Some(numwant), ..request(3, 0, event) };
        ports(&http(&mut t, "10.0.0.3", &asks, "", now))
    };
    assert_eq!(told(Event::Started, 50), [1, 2]);
    assert_eq!(told(Event::Started, 1), [2]);
    assert_eq!(told(Event::None, 50), [2]);
    assert_eq!(told(Event::Completed, 50), [2]);
}

#[test]
fn the_long_form_says_the_same() {
    let now = Instant::now();
    let mut t = tracker(now);
    http(&mut t, "10.0.0.1", &request(1, 0, Event::Started), "", now);
    http(&mut t, "2001:db8::1", &request(2, 0, Event::Started), "", now);
    for more in ["", "&compact=0", "&compact=0&no_peer_id=1"] {
        let reply = http(&mut t, "10.0.0.3", &request(3, 1, Event::None), more, now);
        assert_eq!(reply.peers, ["10.0.0.1:1".parse().unwrap(), "[2001:db8::1]:2".parse().unwrap()], "{more}");
    }
}

#[test]
fn completions_are_counted_once() {
    let now = Instant::now();
    let mut t = tracker(now);
    http(&mut t, "10.0.0.1", &request(1, 5, Event::Started), "", now);
    for _ in 0..3 {
        http(&mut t, "10.0.0.1", &request(1, 0, Event::Completed), "", now);
    }
    http(&mut t, "10.0.0.9", &request(9, 0, Event::Completed), "", now);
    let answer = t.on_http(
        &client::scrape_target(&"http://t/scrape".parse().unwrap(), &[HASH, [0; 20]]),
        "10.0.0.1".parse().unwrap(),
        now,
    );
    let known = ScrapeEntry { complete: 2, downloaded: 1, incomplete: 0 };
    let expected = [([0; 20], ScrapeEntry::default()), (HASH, known)];
    assert_eq!(client::parse_scrape_reply(&answer.body).unwrap(), expected);
}

#[test]
fn silent_peers_expire_after_two_intervals() {
    let start = Instant::now();
    let mut t = tracker(start);
    http(&mut t, "10.0.0.1", &request(1, 5, Event::Started), "", start);
    let edge = start + INTERVAL_DEFAULT * 2;
    assert_eq!(ports(&http(&mut t, "10.0.0.2", &request(2, 5, Event::Started), "", edge)), [1]);
    let past = edge + Duration::from_nanos(1);
    assert_eq!(ports(&http(&mut t, "10.0.0.2", &request(2, 5, Event::None), "", past)), NOBODY);
    // A content that nobody announces goes as a whole once anything else is announced.
    let other = AnnounceRequest { info_hash: [8; 20], ..request(3, 5, Event::Started) };
    http(&mut t, "10.0.0.3", &other, "", past + INTERVAL_DEFAULT * 2 + Duration::from_nanos(1));
    assert_eq!((t.stats().contents, t.stats().peers), (1, 1));
}

#[test]
fn a_claimed_address_counts_only_where_it_is_believed() {
    let now = Instant::now();
    let seen = |is_believed: bool, source: &str| {
        let config = TrackerConfig { is_claimed_ip_believed: is_believed, ..TrackerConfig::new(1, [9; 16]) };
        let mut t = Tracker::new(config, now);
        http(&mut t, source, &request(1, 0, Event::Started), "&ip=10.9.9.9", now);
        http(&mut t, "10.0.0.2", &request(2, 1, Event::Started), "", now).peers[0].ip().to_string()
    };
    assert_eq!(seen(false, "10.0.0.1"), "10.0.0.1");
    assert_eq!(seen(true, "10.0.0.1"), "10.9.9.9");
    assert_eq!(seen(false, "127.0.0.1"), "10.9.9.9");
}

#[test]
fn mapped_addresses_are_ipv4() {
    let now = Instant::now();
    let mut t = tracker(now);
    http(&mut t, "::ffff:10.0.0.1", &request(1, 0, Event::Started), "", now);
    let reply = http(&mut t, "10.0.0.2", &request(2, 1, Event::Started), "", now);
    assert_eq!(reply.peers, ["10.0.0.1:1".parse().unwrap()]);
}

#[test]
fn peers_that_cannot_be_dialled_are_not_named() {
    let now = Instant::now();
    let mut t = tracker(now);
    http(&mut t, "10.0.0.1", &request(0, 5, Event::Started), "", now);
    let reply = http(&mut t, "10.0.0.2", &request(2, 5, Event::Started), "", now);
    assert_eq!((reply.peers.len(), reply.incomplete), (0, Some(1)));
}

#[test]
fn limits_evict_the_oldest() {
    let now = Instant::now();
    let mut config = TrackerConfig::new(1, [9; 16]);
    (config.contents_max, config.peers_per_content_max, config.peers_max) = (2, 3, 4);
    let mut t = Tracker::new(config, now);
    let mut put = |content: u8, port: u16| {
        let request = AnnounceRequest { info_hash: [content; 20], ..request(port, 5, Event::Started) };
        let reply = http(&mut t, "10.0.0.1", &request, "", now);
        (ports(&reply), t.stats().contents, t.stats().peers)
    };
    put(1, 1);
    put(1, 2);
    assert_eq!(put(1, 3), (vec![1, 2], 1, 3));
    // One peer too many for the content: the first goes.
    assert_eq!(put(1, 4), (vec![2, 3], 1, 3));
    assert_eq!(put(2, 1), (vec![], 2, 4));
    // One peer too many in all: content 1, announced longest ago, goes.
    assert_eq!(put(2, 2), (vec![1], 1, 2));
    put(3, 1);
    // One content too many: content 2 goes.
    assert_eq!(put(4, 1), (vec![], 2, 2));
    assert_eq!(t.stats().evicted, 3);
}

#[test]
fn one_network_has_its_share_of_a_content_and_crowds_nobody_out() {
    let now = Instant::now();
    let config = TrackerConfig { peers_per_network_max: 3, ..TrackerConfig::new(1, [9; 16]) };
    let mut t = Tracker::new(config, now);
    http(&mut t, "192.0.2.1", &request(1, 5, Event::Started), "", now);
    http(&mut t, "2001:db8::1", &request(2, 5, Event::Started), "", now);
    // The same host by many ports, and by many addresses of its network.
    for n in 10..100 {
        http(&mut t, "198.51.100.1", &request(n, 5, Event::Started), "", now);
        http(&mut t, &format!("2001:db8:0:1::{n}"), &request(n, 5, Event::Started), "", now);
    }
    assert_eq!(
        ports(&http(&mut t, "10.0.0.1", &request(3, 5, Event::Started), "", now)),
        [1, 2, 97, 97, 98, 98, 99, 99]
    );
    // The operator's own network may have as many as it likes.
    for n in 10..20 {
        http(&mut t, "10.0.0.1", &request(n, 5, Event::Started), "", now);
    }
    assert_eq!(t.stats().peers, 8 + 1 + 10);
}

#[test]
fn who_brings_most_contents_loses_them_first() {
    let now = Instant::now();
    let mut t = Tracker::new(TrackerConfig { contents_max: 10, ..TrackerConfig::new(1, [9; 16]) }, now);
    let content = |n: u8| AnnounceRequest { info_hash: [n; 20], ..request(6881, 5, Event::Started) };
    (1..=3).for_each(|n| drop(http(&mut t, "192.0.2.1", &content(n), "", now)));
    (100..200).for_each(|n| drop(http(&mut t, "198.51.100.1", &content(n), "", now)));
    assert_eq!(t.stats().contents, 10);
    for n in 1..=3 {
        assert_eq!(http(&mut t, "192.0.2.9", &content(n), "", now).peers, ["192.0.2.1:6881".parse().unwrap()], "{n}");
    }
    // Who announces what another one brought does not take it over.
    (1..=3).for_each(|n| drop(http(&mut t, "198.51.100.1", &content(n), "", now)));
    (4..=20).for_each(|n| drop(http(&mut t, "203.0.113.1", &content(n), "", now)));
    assert_eq!(http(&mut t, "192.0.2.8", &content(1), "", now).peers.len(), 3);
    assert_eq!(t.stats().contents, 10);
}

#[test]
fn a_closed_tracker_tracks_what_is_listed_for_who_has_the_key() {
    let now = Instant::now();
    let config = TrackerConfig {
        allowed: Some(HashSet::from([HASH])),
        passkey: Some("s3cret".into()),
        ..TrackerConfig::new(1, [9; 16])
    };
    let mut t = Tracker::new(config, now);
    let source: SocketAddr = "192.0.2.1:999".parse().unwrap();
    let other = AnnounceRequest { info_hash: [8; 20], ..request(6881, 5, Event::Started) };
    let mut refused = |url: &str, request: &AnnounceRequest| {
        let target = client::announce_target(&url.parse().unwrap(), request);
        let over_http = client::parse_announce_reply(&t.on_http(&target, source.ip(), now).body);
        let id = connect(&mut t, source, now);
        let path = url.strip_prefix("http://t").unwrap();
        let over_udp = t.on_datagram(&udp::announce_request(id, 2, request, path), source, now).unwrap();
        let over_udp = udp::parse_announce_reply(&over_udp, 2, false);
        assert_eq!(over_http.is_ok(), over_udp.is_ok(), "{url}");
        [over_http.err(), over_udp.err()].map(|error| error.map(|error| error.to_string()).unwrap_or_default())
    };
    let ours = request(6881, 5, Event::Started);
    assert_eq!(refused("http://t/s3cret/announce", &ours), ["", ""]);
    assert_eq!(refused("http://t/s3cret/announce?more=1", &ours), ["", ""]);
    for url in ["http://t/announce", "http://t/announce?s3cret", "http://t/x/announce", "http://t/s3cret/x/announce"] {
        assert!(refused(url, &ours).iter().all(|reason| reason.contains("has a key")), "{url}");
    }
    assert!(
        refused("http://t/s3cret/announce", &other).iter().all(|reason| reason.contains("does not track this content"))
    );
    assert_eq!(t.stats().contents, 1);
    let scrape = t.on_http("/scrape?info_hash=aaaaaaaaaaaaaaaaaaaa", source.ip(), now).body;
    assert!(String::from_utf8_lossy(&scrape).contains("has a key"));
}

#[test]
fn one_content_alone_stays_within_the_limit_of_all_peers() {
    let now = Instant::now();
    let mut t = Tracker::new(TrackerConfig { peers_max: 2, ..TrackerConfig::new(1, [9; 16]) }, now);
    for port in 1..=3 {
        http(&mut t, "10.0.0.1", &request(port, 5, Event::Started), "", now);
    }
    assert_eq!(t.stats().peers, 2);
    assert_eq!(ports(&http(&mut t, "10.0.0.1", &request(3, 5, Event::None), "", now)), [2]);
}

#[test]
fn the_number_of_peers_told_is_bounded() {
    let now = Instant::now();
    let mut t = tracker(now);
    for port in 1..=NUMWANT_CAP as u16 + 50 {
        http(&mut t, "10.0.0.1", &request(port, 5, Event::Started), "", now);
    }
    let mut count = |numwant| {
        http(&mut t, "10.0.0.1", &AnnounceRequest { numwant, ..request(1, 5, Event::None) }, "", now).peers.len()
    };
    assert_eq!((count(None), count(Some(0)), count(Some(7))), (NUMWANT_DEFAULT, 0, 7));
    assert_eq!(count(Some(u32::MAX)), NUMWANT_CAP);
}

#[test]
fn bad_requests_are_told_why() {
    let now = Instant::now();
    let mut t = tracker(now);
    let mut reason = |target: &str| {
        let answer = t.on_http(target, "10.0.0.1".parse().unwrap(), now);
        match client::parse_announce_reply(&answer.body) {
            Err(ReplyError::Refused(refusal)) => refusal.reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(reason("/announce"), "the request lacks `info_hash`");
    assert_eq!(reason("/announce?info_hash=abc"), "the request's `info_hash` cannot be read");
    assert_eq!(reason("/announce?port=70000"), "the request's `port` cannot be read");
    assert_eq!(reason("/scrape"), "name the contents to scrape with info_hash");
    assert!(reason(&format!("/announce?{}", "x".repeat(8 << 10))).contains("more than 8192 bytes"));
    assert_eq!(t.stats().refused, 5);
    assert_eq!(t.on_http("/", "10.0.0.1".parse().unwrap(), now).status, 404);
    let stats = t.on_http("/stats", "10.0.0.1".parse().unwrap(), now).body;
    assert!(String::from_utf8(stats).unwrap().contains("\"refused\":5"));
}

fn connect(t: &mut Tracker, source: SocketAddr, now: Instant) -> u64 {
    udp::parse_connect_reply(&t.on_datagram(&udp::connect_request(1), source, now).unwrap(), 1).unwrap()
}

#[test]
fn udp_peers_learn_of_their_own_family() {
    let now = Instant::now();
    let mut t = tracker(now);
    http(&mut t, "10.0.0.1", &request(1, 0, Event::Started), "", now);
    http(&mut t, "2001:db8::1", &request(2, 0, Event::Started), "", now);
    for (source, expected) in [("10.0.0.3:999", "10.0.0.1:1"), ("[2001:db8::3]:999", "[2001:db8::1]:2")] {
        let source: SocketAddr = source.parse().unwrap();
        let id = connect(&mut t, source, now);
        let bytes = udp::announce_request(id, 2, &request(3, 5, Event::Started), "/announce");
        let answer = t.on_datagram(&bytes, source, now).unwrap();
        let reply = udp::parse_announce_reply(&answer, 2, source.is_ipv6()).unwrap();
        assert_eq!(reply.peers, [expected.parse().unwrap()]);
        let answer = t.on_datagram(&udp::scrape_request(id, 3, &[HASH]), source, now).unwrap();
        assert_eq!(udp::parse_scrape_reply(&answer, 3).unwrap()[0].complete, 2);
    }
}

#[test]
fn udp_answers_fit_a_packet() {
    let now = Instant::now();
    let mut t = tracker(now);
    for port in 1..=300 {
        http(&mut t, "fd00::1", &request(port, 5, Event::Started), "", now);
        http(&mut t, "10.0.0.1", &request(port, 5, Event::Started), "", now);
    }
    for (source, count) in [("[2001:db8::3]:999", 76), ("10.0.0.3:999", NUMWANT_CAP)] {
        let source: SocketAddr = source.parse().unwrap();
        let id = connect(&mut t, source, now);
        let wish = AnnounceRequest { numwant: Some(1000), ..request(3, 5, Event::Started) };
        let answer = t.on_datagram(&udp::announce_request(id, 2, &wish, ""), source, now).unwrap();
        assert_eq!(udp::parse_announce_reply(&answer, 2, source.is_ipv6()).unwrap().peers.len(), count);
        assert!(answer.len() <= 1400);
    }
}

fn scion(text: &str) -> Vec<ScionAddr> {
    text.split_whitespace().map(|address| address.parse().unwrap()).collect()
}

fn speaks_scion(port: u16, event: Event, addresses: &str) -> AnnounceRequest {
    AnnounceRequest { scion: Some(scion(addresses)), ..request(port, 5, event) }
}

fn scion_of(reply: &AnnounceReply) -> Vec<ScionAddr> {
    let mut peers: Vec<ScionAddr> = reply.peers.iter().filter_map(Endpoint::as_scion).collect();
    peers.sort();
    peers
}

#[test]
fn scion_peers_are_told_to_those_who_ask() {
    let now = Instant::now();
    let mut t = tracker(now);
    let (one, two) = ("[1-ff00:0:110,10.0.0.1]:6881", "[1-ff00:0:111,::1]:6881");
    http(&mut t, "10.0.0.1", &speaks_scion(1, Event::Started, one), "", now);
    let reply = http(&mut t, "10.0.0.2", &speaks_scion(2, Event::Started, two), "", now);
    assert_eq!((scion_of(&reply), ports(&reply)), (scion(one), vec![1, 6881]));
    assert_eq!((reply.complete, reply.incomplete, t.stats().peers), (Some(0), Some(2), 4));
    for more in ["", "&compact=0", "&compact=0&no_peer_id=1"] {
        // Who listens nowhere over SCION asks all the same; who does not ask sees nothing of it.
        let asked = http(&mut t, "10.0.0.3", &speaks_scion(3, Event::Started, ""), more, now);
        assert_eq!(
            (scion_of(&asked), ports(&asked)),
            (scion(&format!("{one} {two}")), vec![1, 2, 6881, 6881]),
            "{more}"
        );
        let target = client::announce_target(&"http://t/announce".parse().unwrap(), &request(0, 5, Event::None)) + more;
        let body = t.on_http(&target, "10.0.0.4".parse().unwrap(), now).body;
        assert!(!body.windows(8).any(|window| window == b"ab_scion"), "{more}");
        assert_eq!(ports(&client::parse_announce_reply(&body).unwrap()), [1, 2, 3]);
    }
    http(&mut t, "10.0.0.1", &speaks_scion(1, Event::Stopped, one), "", now);
    assert_eq!(scion_of(&http(&mut t, "10.0.0.3", &speaks_scion(3, Event::None, ""), "", now)), scion(two));
}

#[test]
fn udp_scion_peers_are_told_to_those_who_ask() {
    let now = Instant::now();
    let mut t = tracker(now);
    let (one, two) = ("[1-ff00:0:110,10.0.0.1]:6881", "[1-ff00:0:111,::1]:6881");
    http(&mut t, "10.0.0.1", &speaks_scion(1, Event::Started, one), "", now);
    http(&mut t, "2001:db8::1", &speaks_scion(2, Event::Started, two), "", now);
    for (source, ip_port) in [("10.0.0.3:999", 1), ("[2001:db8::3]:999", 2)] {
        let source: SocketAddr = source.parse().unwrap();
        let id = connect(&mut t, source, now);
        let mut ask = |request: &AnnounceRequest| {
            let answer = t.on_datagram(&udp::announce_request(id, 2, request, "/announce"), source, now).unwrap();
            (answer[..4].to_vec(), udp::parse_announce_reply(&answer, 2, source.is_ipv6()).unwrap())
        };
        let (action, reply) = ask(&request(3, 5, Event::Started));
        assert_eq!((action, ports(&reply)), (vec![0, 0, 0, 1], vec![ip_port]));
        let (action, reply) = ask(&speaks_scion(3, Event::None, ""));
        assert_eq!(action, [b'a', b'b', 0, 1]);
        assert_eq!((scion_of(&reply), ports(&reply)), (scion(&format!("{one} {two}")), vec![ip_port, 6881, 6881]));
        // The plain form is enough where there is nobody to tell of.
        let (action, _) = ask(&AnnounceRequest { info_hash: [8; 20], ..speaks_scion(3, Event::Stopped, "") });
        assert_eq!(action, [0, 0, 0, 1]);
    }
}

#[test]
fn udp_answers_with_scion_fit_a_packet_and_leave_room_for_ip() {
    let now = Instant::now();
    let mut t = tracker(now);
    for port in 1..=200 {
        let address = format!("[1-ff00:0:110,2001:db8::1]:{port}");
        for ip in ["fd00::1", "10.0.0.1"] {
            http(&mut t, ip, &speaks_scion(port, Event::Started, &address), "", now);
        }
    }
    for (source, over_ip) in [("[2001:db8::3]:999", 39), ("10.0.0.3:999", 117)] {
        let source: SocketAddr = source.parse().unwrap();
        let id = connect(&mut t, source, now);
        let wish = AnnounceRequest { numwant: Some(1000), ..speaks_scion(3, Event::Started, "") };
        let answer = t.on_datagram(&udp::announce_request(id, 2, &wish, ""), source, now).unwrap();
        let reply = udp::parse_announce_reply(&answer, 2, source.is_ipv6()).unwrap();
        assert_eq!((scion_of(&reply).len(), reply.peers.len()), (25, 25 + over_ip));
        assert!(answer.len() <= 1400);
    }
}

#[test]
fn half_of_the_answer_is_scion_and_more_where_ip_has_few() {
    let now = Instant::now();
    let mut t = tracker(now);
    for port in 1..=20 {
        http(&mut t, "10.0.0.1", &speaks_scion(port, Event::Started, &format!("[1-1,10.0.0.1]:{port}")), "", now);
    }
    let mut told = |numwant| {
        let wish = AnnounceRequest { numwant: Some(numwant), ..speaks_scion(0, Event::None, "") };
        let reply = http(&mut t, "10.0.0.9", &wish, "", now);
        (scion_of(&reply).len(), reply.peers.len())
    };
    assert_eq!([told(0), told(1), told(11), told(30), told(50)], [(0, 0), (1, 1), (6, 11), (15, 30), (20, 40)]);
}

#[test]
fn nobody_changes_what_another_said_of_a_scion_address() {
    let now = Instant::now();
    let mut t = tracker(now);
    let address = "[1-ff00:0:110,10.0.0.1]:6881";
    http(&mut t, "10.0.0.1", &speaks_scion(1, Event::Started, address), "", now);
    let thief = AnnounceRequest { left_bytes: 0, ..speaks_scion(2, Event::Started, address) };
    http(&mut t, "10.0.0.2", &thief, "", now);
    http(&mut t, "10.0.0.2", &AnnounceRequest { event: Event::Stopped, ..thief.clone() }, "", now);
    let seed = AnnounceRequest { left_bytes: 0, ..speaks_scion(3, Event::None, "") };
    assert_eq!(scion_of(&http(&mut t, "10.0.0.3", &seed, "", now)), scion(address));
    // Once it is silent for two intervals, the address is free again.
    let later = now + INTERVAL_DEFAULT * 2 + Duration::from_nanos(1);
    http(&mut t, "10.0.0.2", &thief, "", later);
    assert_eq!(scion_of(&http(&mut t, "10.0.0.3", &seed, "", later)), []);
    assert_eq!(scion_of(&http(&mut t, "10.0.0.4", &speaks_scion(4, Event::None, ""), "", later)), scion(address));
}

fn path(id: u16) -> InterfaceSequence {
    InterfaceSequence::of_link(id)
}

#[test]
fn paths_in_use_are_told_to_others_while_they_are_news() {
    let now = Instant::now();
    let mut t = tracker(now);
    let one = "[1-ff00:0:110,10.0.0.1]:6881";
    let uses = |ids: &[u16]| AnnounceRequest {
        in_use: ids.iter().copied().map(path).collect(),
        ..speaks_scion(1, Event::None, one)
    };
    let told = |t: &mut Tracker, wish: &AnnounceRequest, at| {
        let in_use = http(t, "10.0.0.2", wish, "", at).in_use;
        in_use.map(|in_use| in_use.hosts().flat_map(|(_, paths)| paths.to_vec()).collect::<Vec<_>>())
    };
    let asks = speaks_scion(2, Event::None, "");
    assert_eq!(http(&mut t, "10.0.0.1", &uses(&[1, 2]), "", now).in_use, Some(PathsInUse::default()));
    assert_eq!(told(&mut t, &asks, now), Some(vec![path(1), path(2)]));
    assert_eq!(told(&mut t, &request(2, 5, Event::None), now), None);
    assert_eq!(told(&mut t, &AnnounceRequest { info_hash: [8; 20], ..asks.clone() }, now), Some(vec![]));
    // Nobody else says what it uses, it changes its mind, it falls silent.
    http(&mut t, "10.0.0.9", &uses(&[9]), "", now);
    assert_eq!(told(&mut t, &asks, now), Some(vec![path(1), path(2)]));
    let later = now + IN_USE_COUNTS_FOR / 2;
    http(&mut t, "10.0.0.1", &uses(&[3]), "", later);
    assert_eq!(told(&mut t, &asks, now + IN_USE_COUNTS_FOR), Some(vec![path(3)]));
    assert_eq!(told(&mut t, &asks, later + IN_USE_COUNTS_FOR), Some(vec![]));
    http(&mut t, "10.0.0.1", &uses(&[4]), "", later);
    http(&mut t, "10.0.0.1", &AnnounceRequest { event: Event::Stopped, ..uses(&[]) }, "", later);
    assert_eq!(told(&mut t, &asks, later), Some(vec![]));
}

#[test]
fn paths_in_use_reach_the_tracker_by_udp_too() {
    let now = Instant::now();
    let mut t = tracker(now);
    let source: SocketAddr = "10.0.0.1:5".parse().unwrap();
    let id = t.on_datagram(&udp::connect_request(7), source, now).unwrap();
    let id = udp::parse_connect_reply(&id, 7).unwrap();
    let uses = AnnounceRequest { in_use: vec![path(1)], ..speaks_scion(1, Event::None, "[1-1,10.0.0.1]:1") };
    t.on_datagram(&udp::announce_request(id, 8, &uses, "/announce"), source, now).unwrap();
    let told = http(&mut t, "10.0.0.2", &speaks_scion(2, Event::None, ""), "", now).in_use.unwrap();
    assert_eq!(told.hosts().count(), 1);
}

#[test]
fn a_broken_scion_address_is_refused_over_http() {
    let now = Instant::now();
    let mut t = tracker(now);
    let target = client::announce_target(&"http://t/announce".parse().unwrap(), &request(1, 5, Event::Started));
    let answer = t.on_http(&(target + "&ab_scion=nonsense"), "10.0.0.1".parse().unwrap(), now);
    let refusal = client::parse_announce_reply(&answer.body).unwrap_err().to_string();
    assert!(refusal.contains("`ab_scion` cannot be read"), "{refusal}");
}

#[test]
fn connection_ids_are_good_for_two_minutes_and_one_address() {
    let start = Instant::now();
    let mut t = tracker(start);
    let source: SocketAddr = "10.0.0.1:999".parse().unwrap();
    let given = start + Duration::from_secs(29);
    let id = connect(&mut t, source, given);
    let mut is_answered =
        |source: SocketAddr, id: u64, now| t.on_datagram(&udp::scrape_request(id, 1, &[HASH]), source, now).is_some();
    assert!(is_answered(source, id, given));
    assert!(is_answered("10.0.0.1:1000".parse().unwrap(), id, given), "another port");
    assert!(is_answered(source, id, given + CONNECTION_ID_ACCEPTED));
    assert!(!is_answered(source, id, given + CONNECTION_ID_ACCEPTED + Duration::from_secs(30)));
    assert!(!is_answered("10.0.0.2:999".parse().unwrap(), id, given), "another address");
    assert!(!is_answered(source, id ^ 1, given));
    assert_eq!(t.stats().dropped, 3);
}

proptest! {
    /// The count of all peers is the sum of the swarms', and the limits hold, whatever is announced and however time goes.
    #[test]
    fn counts_and_limits_hold(
        steps in proptest::collection::vec((0u8..6, 1u16..12, 0u64..2, 0usize..4, 0u64..1500), 0..150),
    ) {
        let mut now = Instant::now();
        let mut config = TrackerConfig::new(1, [9; 16]);
        (config.contents_max, config.peers_per_content_max, config.peers_max) = (4, 5, 12);
        let mut t = Tracker::new(config, now);
        for (content, port, left, event, wait_s) in steps {
            now += Duration::from_secs(wait_s);
            let event = [Event::None, Event::Started, Event::Completed, Event::Stopped][event];
            let own = ["[1-1,10.0.0.1]:1", "[1-1,10.0.0.1]:2 [1-2,::1]:2"][usize::from(port) % 2];
            let scion = (port > 6).then(|| scion(own));
            let request = AnnounceRequest { info_hash: [content; 20], scion, ..request(port, left, event) };
            let ip = if port % 2 == 0 { "10.0.0.1" } else { "2001:db8::1" };
            http(&mut t, ip, &request, "", now);
            let sum: usize = t.swarms.values().map(Swarm::len).sum();
            prop_assert_eq!(t.stats().peers, sum);
            prop_assert!(sum <= 12 && t.swarms.len() <= 4 && t.by_age.len() == t.swarms.len());
            prop_assert!(t.swarms.values().all(|swarm| swarm.len() <= 5));
        }
    }
}
