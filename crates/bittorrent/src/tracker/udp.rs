//! The UDP form of the tracker protocol (BEP 15), both directions, with the URL data option (BEP 41).
//!
//! ```text
//! client: connect  |magic 8|action 0|transaction 4|                          server: |0|transaction|connection id 8|
//! client: announce |connection id 8|action 1|transaction 4|... 98 bytes|options|     |1|transaction|interval|...|peers|
//! client: scrape   |connection id 8|action 2|transaction 4|info-hash 20|...          |2|transaction|12 bytes each|
//!                                                                                    |3|transaction|text|
//! ```
//!
//! A client that speaks SCION says so in its URL data (`ab_scion`, docs/protocol.md). Only such a client is answered with an
//! action of our own, and only where there are SCION peers to tell:
//!
//! ```text
//! server: |action 0x61620001|transaction|interval|leechers|seeders|count of IP peers 2|IP peers|SCION peers, 15 or 27 bytes each|
//! ```
//!
//! Retransmission and the life of a connection id are the driver's; their times are named here.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anabranch_paths::ScionAddr;

use crate::compact;

use super::{
    AnnounceReply, AnnounceRequest, Event, InfoHash, REPLY_PEERS_MAX, Refusal, ReplyError, Retry, SCRAPE_HASHES_MAX,
    ScrapeEntry, clean_text, peers, scion,
};

/// First wait for an answer; the n-th is 2^n times as long (BEP 15, "Time outs").
pub const RETRANSMIT_FIRST: Duration = Duration::from_secs(15);
/// Largest n (BEP 15: "up to and including 3840 seconds").
pub const RETRANSMIT_EXPONENT_MAX: u32 = 8;
/// How long a client may use a connection id (BEP 15: "until one minute after it has received it").
pub const CONNECTION_ID_USED: Duration = Duration::from_secs(60);
/// How long a tracker accepts one (BEP 15: "until two minutes after it has been sent").
pub const CONNECTION_ID_ACCEPTED: Duration = Duration::from_secs(120);
/// Largest datagram read: [`REPLY_PEERS_MAX`] IPv4 peers fit; IP itself stops at 65,507 bytes.
pub const DATAGRAM_BYTES_MAX: usize = ANNOUNCE_REPLY_HEAD + REPLY_PEERS_MAX * compact::V4_LEN;
/// Bytes of URL data taken from one announce (BEP 41). As long as our longest URL.
pub const URL_DATA_BYTES_MAX: usize = super::URL_BYTES_MAX;

/// BEP 15, "protocol_id".
const MAGIC: u64 = 0x0417_2710_1980;
const ACTION_CONNECT: u32 = 0;
const ACTION_ANNOUNCE: u32 = 1;
const ACTION_SCRAPE: u32 = 2;
const ACTION_ERROR: u32 = 3;
/// Our own: an announce's answer with SCION peers. "ab", 1.
const ACTION_ANNOUNCE_SCION: u32 = 0x6162_0001;
/// Connection id, action, transaction.
const REQUEST_HEAD: usize = 16;
const ANNOUNCE_REQUEST_BYTES: usize = 98;
/// Bytes before the peers.
pub(super) const ANNOUNCE_REPLY_HEAD: usize = 20;
/// Bytes of the count before the IP peers, where SCION peers follow them.
pub(super) const IP_COUNT_BYTES: usize = 2;
const INFO_HASH_BYTES: usize = 20;
const SCRAPE_ENTRY_BYTES: usize = 12;
/// BEP 41, "option-types".
const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_URL_DATA: u8 = 2;

/// Asks for a connection id.
pub fn connect_request(transaction: u32) -> Vec<u8> {
    let mut out = MAGIC.to_be_bytes().to_vec();
    push_u32(&mut out, ACTION_CONNECT);
    push_u32(&mut out, transaction);
    out
}

/// An announce. `target` is the URL's path and query; it is sent as URL data unless it is empty or `/` (BEP 41). What the
/// request says of SCION is put behind its query, if that fits.
pub fn announce_request(connection: u64, transaction: u32, request: &AnnounceRequest, target: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(ANNOUNCE_REQUEST_BYTES + target.len() + 16);
    out.extend_from_slice(&connection.to_be_bytes());
    push_u32(&mut out, ACTION_ANNOUNCE);
    push_u32(&mut out, transaction);
    out.extend_from_slice(&request.info_hash);
    out.extend_from_slice(&request.peer_id);
    for count in [request.downloaded_bytes, request.left_bytes, request.uploaded_bytes] {
        out.extend_from_slice(&count.to_be_bytes());
    }
    push_u32(&mut out, event_code(request.event));
    push_u32(&mut out, 0); // IP address: the sender's
    push_u32(&mut out, request.key);
    // -1: the tracker's default.
    push_u32(&mut out, request.numwant.map_or(u32::MAX, |want| want.min(i32::MAX as u32)));
    out.extend_from_slice(&request.port.to_be_bytes());
    let mut with_scion = target.to_owned();
    scion::push_query(&mut with_scion, request, URL_DATA_BYTES_MAX);
    let target = if with_scion.len() <= URL_DATA_BYTES_MAX { &with_scion } else { target };
    if !target.is_empty() && target != "/" {
        for part in target.as_bytes()[..target.len().min(URL_DATA_BYTES_MAX)].chunks(usize::from(u8::MAX)) {
            out.extend_from_slice(&[OPTION_URL_DATA, part.len() as u8]);
            out.extend_from_slice(part);
        }
        out.push(OPTION_END);
    }
    out
}

/// A scrape of at most [`SCRAPE_HASHES_MAX`] contents; what is past that is left out.
pub fn scrape_request(connection: u64, transaction: u32, hashes: &[InfoHash]) -> Vec<u8> {
    let mut out = connection.to_be_bytes().to_vec();
    push_u32(&mut out, ACTION_SCRAPE);
    push_u32(&mut out, transaction);
    out.extend(hashes.iter().take(SCRAPE_HASHES_MAX).flatten());
    out
}

/// Which transaction a reply answers; `None` for a datagram too short to be one.
pub fn reply_transaction(bytes: &[u8]) -> Option<u32> {
    bytes.get(4..8).map(|_| u32_at(bytes, 4))
}

/// The connection id in a connect reply.
pub fn parse_connect_reply(bytes: &[u8], transaction: u32) -> Result<u64, ReplyError> {
    check_reply(bytes, transaction, ACTION_CONNECT, 16)?;
    Ok(u64_at(bytes, 8))
}

/// An announce reply that came over IPv6 or IPv4: the family decides the form of its IP peers.
pub fn parse_announce_reply(bytes: &[u8], transaction: u32, is_ipv6: bool) -> Result<AnnounceReply, ReplyError> {
    let has_scion = bytes.len() >= ANNOUNCE_REPLY_HEAD && u32_at(bytes, 0) == ACTION_ANNOUNCE_SCION;
    let action = if has_scion { ACTION_ANNOUNCE_SCION } else { ACTION_ANNOUNCE };
    check_reply(bytes, transaction, action, ANNOUNCE_REPLY_HEAD)?;
    let mut reply = AnnounceReply {
        interval: Some(Duration::from_secs(u64::from(u32_at(bytes, 8)))),
        incomplete: Some(u32_at(bytes, 12)),
        complete: Some(u32_at(bytes, 16)),
        ..AnnounceReply::default()
    };
    let list = &bytes[ANNOUNCE_REPLY_HEAD..];
    let (list, scion_list) = if has_scion { split_lists(list, is_ipv6)? } else { (list, &[][..]) };
    match is_ipv6 {
        true => peers::read_v6(list, "peers", &mut reply.peers)?,
        false => peers::read_v4(list, "peers", &mut reply.peers)?,
    }
    peers::read_scion(scion_list, scion::KEY, &mut reply.peers)?;
    Ok(reply)
}

/// The IP peers and the SCION peers behind their count.
fn split_lists(bytes: &[u8], is_ipv6: bool) -> Result<(&[u8], &[u8]), ReplyError> {
    let short = |needed| ReplyError::Short { length: ANNOUNCE_REPLY_HEAD + bytes.len(), needed };
    let (count, rest) = bytes.split_first_chunk().ok_or(short(ANNOUNCE_REPLY_HEAD + IP_COUNT_BYTES))?;
    let unit = if is_ipv6 { compact::V6_LEN } else { compact::V4_LEN };
    let len = usize::from(u16::from_be_bytes(*count)) * unit;
    rest.split_at_checked(len).ok_or(short(ANNOUNCE_REPLY_HEAD + IP_COUNT_BYTES + len))
}

/// The entries of a scrape reply, in the order in which they were asked for. A tracker may answer for fewer.
pub fn parse_scrape_reply(bytes: &[u8], transaction: u32) -> Result<Vec<ScrapeEntry>, ReplyError> {
    check_reply(bytes, transaction, ACTION_SCRAPE, 8)?;
    let entries = bytes[8..].chunks_exact(SCRAPE_ENTRY_BYTES).take(SCRAPE_HASHES_MAX);
    Ok(entries
        .map(|entry| ScrapeEntry {
            complete: u32_at(entry, 0),
            downloaded: u32_at(entry, 4),
            incomplete: u32_at(entry, 8),
        })
        .collect())
}

/// A datagram that a tracker received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Wants a connection id.
    Connect {
        /// To be sent back.
        transaction: u32,
    },
    /// Announces itself.
    Announce {
        /// The id it was given.
        connection: u64,
        /// To be sent back.
        transaction: u32,
        /// What it says of itself.
        request: Box<AnnounceRequest>,
        /// The address it claims, where it claims one.
        claimed_ip: Option<Ipv4Addr>,
        /// Path and query of the URL it used (BEP 41).
        url_data: Vec<u8>,
    },
    /// Wants numbers.
    Scrape {
        /// The id it was given.
        connection: u64,
        /// To be sent back.
        transaction: u32,
        /// Which contents; at most [`SCRAPE_HASHES_MAX`].
        hashes: Vec<InfoHash>,
    },
}

/// Why a datagram is no request. The sender is to blame; a tracker stays silent, so that it cannot be used to reflect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Shorter than its action needs.
    #[error("the datagram has {0} bytes, too few for its action")]
    Short(usize),
    /// A connect without the protocol's magic number.
    #[error("the datagram speaks another protocol")]
    Magic,
    /// An action or event number that BEP 15 does not have.
    #[error("the datagram has the unknown number {0} for its action or event")]
    Number(u32),
    /// BEP 41 options that run past the end or past [`URL_DATA_BYTES_MAX`].
    #[error("the datagram's options are broken")]
    Options,
}

/// Parses what a client sent.
pub fn parse_request(bytes: &[u8]) -> Result<Request, RequestError> {
    let needs = |count: usize| if bytes.len() < count { Err(RequestError::Short(bytes.len())) } else { Ok(()) };
    needs(REQUEST_HEAD)?;
    let (connection, action, transaction) = (u64_at(bytes, 0), u32_at(bytes, 8), u32_at(bytes, 12));
    match action {
        ACTION_CONNECT if connection == MAGIC => Ok(Request::Connect { transaction }),
        ACTION_CONNECT => Err(RequestError::Magic),
        ACTION_ANNOUNCE => {
            needs(ANNOUNCE_REQUEST_BYTES)?;
            let url_data = read_options(&bytes[ANNOUNCE_REQUEST_BYTES..])?;
            let numwant = u32_at(bytes, 92);
            let (scion, in_use) = scion::read_url_data(&url_data);
            let request = AnnounceRequest {
                info_hash: array_at(bytes, 16),
                peer_id: array_at(bytes, 36),
                downloaded_bytes: u64_at(bytes, 56),
                left_bytes: u64_at(bytes, 64),
                uploaded_bytes: u64_at(bytes, 72),
                event: event_of(u32_at(bytes, 80))?,
                key: u32_at(bytes, 88),
                numwant: (numwant <= i32::MAX as u32).then_some(numwant),
                port: u16::from_be_bytes(array_at(bytes, 96)),
                tracker_id: None,
                scion,
                in_use,
            };
            let claimed_ip = Some(Ipv4Addr::from(u32_at(bytes, 84))).filter(|ip| !ip.is_unspecified());
            Ok(Request::Announce { connection, transaction, request: Box::new(request), claimed_ip, url_data })
        }
        ACTION_SCRAPE => {
            let (hashes, _) = bytes[REQUEST_HEAD..].as_chunks::<INFO_HASH_BYTES>();
            let hashes = hashes[..hashes.len().min(SCRAPE_HASHES_MAX)].to_vec();
            Ok(Request::Scrape { connection, transaction, hashes })
        }
        other => Err(RequestError::Number(other)),
    }
}

/// Gives a connection id.
pub fn connect_reply(transaction: u32, connection: u64) -> Vec<u8> {
    let mut out = reply_head(ACTION_CONNECT, transaction);
    out.extend_from_slice(&connection.to_be_bytes());
    out
}

/// Answers an announce. All `peers` are of the family that the request came over. Who did not ask for SCION peers must get
/// none: a reply with them is one that only our own kind understands.
pub fn announce_reply(
    transaction: u32,
    interval: Duration,
    complete: u32,
    incomplete: u32,
    peers: &[SocketAddr],
    scion_peers: &[ScionAddr],
) -> Vec<u8> {
    let action = if scion_peers.is_empty() { ACTION_ANNOUNCE } else { ACTION_ANNOUNCE_SCION };
    let mut out = reply_head(action, transaction);
    push_u32(&mut out, u32::try_from(interval.as_secs()).unwrap_or(u32::MAX));
    push_u32(&mut out, incomplete);
    push_u32(&mut out, complete);
    if !scion_peers.is_empty() {
        // No datagram holds as many as 65,535.
        out.extend_from_slice(&(peers.len() as u16).to_be_bytes());
    }
    peers.iter().for_each(|peer| compact::pack(*peer, &mut out));
    scion_peers.iter().for_each(|peer| compact::pack_scion(peer, &mut out));
    out
}

/// Answers a scrape, entries in the order of the request.
pub fn scrape_reply(transaction: u32, entries: &[ScrapeEntry]) -> Vec<u8> {
    let mut out = reply_head(ACTION_SCRAPE, transaction);
    for entry in entries {
        [entry.complete, entry.downloaded, entry.incomplete].into_iter().for_each(|count| push_u32(&mut out, count));
    }
    out
}

/// Refuses, with words for the user.
pub fn error_reply(transaction: u32, message: &str) -> Vec<u8> {
    let mut out = reply_head(ACTION_ERROR, transaction);
    out.extend_from_slice(message.as_bytes());
    out
}

fn reply_head(action: u32, transaction: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    push_u32(&mut out, action);
    push_u32(&mut out, transaction);
    out
}

fn check_reply(bytes: &[u8], transaction: u32, action: u32, needed: usize) -> Result<(), ReplyError> {
    if bytes.len() < 8 {
        return Err(ReplyError::Short { length: bytes.len(), needed });
    }
    if u32_at(bytes, 4) != transaction {
        return Err(ReplyError::Transaction);
    }
    match u32_at(bytes, 0) {
        ACTION_ERROR => Err(ReplyError::Refused(Refusal { reason: clean_text(&bytes[8..]), retry: Retry::Unsaid })),
        found if found != action => Err(ReplyError::Action(found)),
        _ if bytes.len() < needed => Err(ReplyError::Short { length: bytes.len(), needed }),
        _ => Ok(()),
    }
}

/// The URL data among the options, put together (BEP 41).
fn read_options(mut bytes: &[u8]) -> Result<Vec<u8>, RequestError> {
    let mut url_data = Vec::new();
    // Each turn takes at least one byte of a bounded datagram.
    while let Some((kind, rest)) = bytes.split_first() {
        bytes = match *kind {
            OPTION_END => break,
            OPTION_NOP => rest,
            // Options other than these two have a length, so unknown ones can be stepped over.
            kind => {
                let (length, rest) = rest.split_first().ok_or(RequestError::Options)?;
                let (value, rest) = rest.split_at_checked(usize::from(*length)).ok_or(RequestError::Options)?;
                if kind == OPTION_URL_DATA {
                    url_data.extend_from_slice(value);
                }
                if url_data.len() > URL_DATA_BYTES_MAX {
                    return Err(RequestError::Options);
                }
                rest
            }
        };
    }
    Ok(url_data)
}

/// BEP 15, "event".
fn event_code(event: Event) -> u32 {
    match event {
        Event::None | Event::Paused => 0,
        Event::Completed => 1,
        Event::Started => 2,
        Event::Stopped => 3,
    }
}

fn event_of(code: u32) -> Result<Event, RequestError> {
    Ok(match code {
        0 => Event::None,
        1 => Event::Completed,
        2 => Event::Started,
        3 => Event::Stopped,
        other => return Err(RequestError::Number(other)),
    })
}

fn push_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// The `N` bytes at `at`; callers have checked the length.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array_at(bytes, at))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request() -> AnnounceRequest {
        AnnounceRequest {
            uploaded_bytes: 1,
            downloaded_bytes: 2,
            left_bytes: 1 << 40,
            key: 7,
            numwant: Some(50),
            ..AnnounceRequest::new([3; 20], [4; 20], 6881, Event::Completed)
        }
    }

    #[test]
    fn connect_has_the_documented_bytes() {
        let bytes = connect_request(0x0102_0304);
        assert_eq!(bytes, [0, 0, 4, 0x17, 0x27, 0x10, 0x19, 0x80, 0, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(parse_request(&bytes), Ok(Request::Connect { transaction: 0x0102_0304 }));
        assert_eq!(parse_connect_reply(&connect_reply(9, 77), 9), Ok(77));
    }

    #[test]
    fn an_announce_reads_back_with_its_url() {
        let target = format!("/announce?{}", "k".repeat(600));
        let bytes = announce_request(5, 6, &request(), &target);
        let expected = Request::Announce {
            connection: 5,
            transaction: 6,
            request: Box::new(request()),
            claimed_ip: None,
            url_data: target.into_bytes(),
        };
        assert_eq!(parse_request(&bytes), Ok(expected));
        assert_eq!(announce_request(5, 6, &request(), "/").len(), ANNOUNCE_REQUEST_BYTES);
    }

    #[test]
    fn replies_of_both_families_read_back() {
        for peer in ["10.0.0.1:1", "[2001:db8::1]:2"] {
            let peers: Vec<SocketAddr> = vec![peer.parse().unwrap(); 3];
            let bytes = announce_reply(8, Duration::from_secs(1800), 4, 5, &peers, &[]);
            let reply = parse_announce_reply(&bytes, 8, peers[0].is_ipv6()).unwrap();
            assert_eq!(
                (reply.complete, reply.incomplete, reply.peers),
                (Some(4), Some(5), vec![peer.parse().unwrap(); 3])
            );
            assert_eq!(reply.interval, Some(Duration::from_secs(1800)));
        }
    }

    #[test]
    fn what_is_said_of_scion_rides_in_the_url_data() {
        let scion = vec!["[1-ff00:0:110,10.0.0.1]:6881".parse().unwrap(), "[1-ff00:0:110,::1]:1".parse().unwrap()];
        for (target, scion) in [("", vec![]), ("/", scion.clone()), ("/announce?key=1", scion.clone())] {
            let request = AnnounceRequest { scion: Some(scion), ..request() };
            let Ok(Request::Announce { request: read, url_data, .. }) =
                parse_request(&announce_request(5, 6, &request, target))
            else {
                panic!("no announce")
            };
            assert_eq!(*read, request);
            assert!(url_data.starts_with(target.as_bytes()), "{target}");
        }
        // A URL that leaves no room for it is sent as it is.
        let mut parameters = String::new();
        scion::push_query(&mut parameters, &AnnounceRequest { scion: Some(scion.clone()), ..request() }, 0);
        for (len, said) in
            [(URL_DATA_BYTES_MAX - parameters.len(), true), (URL_DATA_BYTES_MAX - parameters.len() + 1, false)]
        {
            let request = AnnounceRequest { scion: Some(scion.clone()), ..request() };
            let bytes = announce_request(5, 6, &request, &"k".repeat(len));
            let Ok(Request::Announce { request: read, .. }) = parse_request(&bytes) else { panic!("no announce") };
            assert_eq!(read.scion.is_some(), said, "{len}");
        }
    }

    #[test]
    fn replies_with_scion_peers_have_the_documented_bytes() {
        let scion = ["[1-ff00:0:110,10.1.2.3]:6881".parse().unwrap()];
        for peer in ["10.0.0.1:1", "[2001:db8::1]:2"] {
            let peers: Vec<SocketAddr> = vec![peer.parse().unwrap(); 2];
            let bytes = announce_reply(8, Duration::from_secs(1800), 4, 5, &peers, &scion);
            assert_eq!((&bytes[..4], &bytes[20..22]), (&b"ab\x00\x01"[..], &[0, 2][..]));
            let is_ipv6 = peers[0].is_ipv6();
            let read: Vec<String> =
                parse_announce_reply(&bytes, 8, is_ipv6).unwrap().peers.iter().map(ToString::to_string).collect();
            assert_eq!(read, [peer, peer, "[1-ff00:0:110,10.1.2.3]:6881"]);
            let fault = |len: usize| parse_announce_reply(&bytes[..len], 8, is_ipv6).unwrap_err();
            assert!(matches!(fault(19), ReplyError::Action(_) | ReplyError::Short { .. }));
            assert!(matches!(fault(21), ReplyError::Short { length: 21, needed: 22 }));
            assert!(matches!(fault(23), ReplyError::Short { length: 23, .. }));
            assert_eq!(fault(bytes.len() - 1), ReplyError::Field("ab_scion"));
        }
    }

    #[test]
    fn scrape_reads_back_up_to_its_limit() {
        let hashes: Vec<InfoHash> = (0..=SCRAPE_HASHES_MAX).map(|n| [n as u8; 20]).collect();
        let Ok(Request::Scrape { hashes: read, .. }) = parse_request(&scrape_request(1, 2, &hashes)) else {
            panic!("no scrape")
        };
        assert_eq!(read, hashes[..SCRAPE_HASHES_MAX]);
        let entries = [ScrapeEntry { complete: 1, downloaded: 2, incomplete: 3 }, ScrapeEntry::default()];
        assert_eq!(parse_scrape_reply(&scrape_reply(2, &entries), 2).unwrap(), entries);
    }

    #[test]
    fn refusals_carry_the_reason() {
        let bytes = error_reply(3, "un\u{7}known content");
        let refusal = Refusal { reason: "unknown content".into(), retry: Retry::Unsaid };
        assert_eq!(parse_connect_reply(&bytes, 3), Err(ReplyError::Refused(refusal)));
    }

    #[test]
    fn replies_to_others_and_short_ones_are_told_apart() {
        assert_eq!(parse_connect_reply(&connect_reply(1, 1), 2), Err(ReplyError::Transaction));
        assert_eq!(parse_connect_reply(&scrape_reply(1, &[]), 1), Err(ReplyError::Action(2)));
        assert_eq!(
            parse_connect_reply(&connect_reply(1, 1)[..15], 1),
            Err(ReplyError::Short { length: 15, needed: 16 })
        );
        assert_eq!(parse_connect_reply(&[], 1), Err(ReplyError::Short { length: 0, needed: 16 }));
    }

    #[test]
    fn url_data_stops_at_its_limit() {
        let options = |count: usize| {
            let data = vec![b'x'; count];
            data.chunks(255).flat_map(|part| [&[OPTION_URL_DATA, part.len() as u8], part].concat()).collect::<Vec<u8>>()
        };
        assert_eq!(read_options(&options(URL_DATA_BYTES_MAX)).unwrap().len(), URL_DATA_BYTES_MAX);
        assert_eq!(read_options(&options(URL_DATA_BYTES_MAX + 1)), Err(RequestError::Options));
        assert_eq!(read_options(&[OPTION_NOP, 9, 1, 0, OPTION_URL_DATA, 1, b'a', OPTION_END, 9]).unwrap(), b"a");
        assert_eq!(read_options(&[OPTION_URL_DATA, 2, b'a']), Err(RequestError::Options));
    }

    proptest! {
        #[test]
        fn nothing_received_panics(
            head in proptest::collection::vec(any::<u8>(), 0..20),
            action in prop_oneof![0u32..5, Just(ACTION_ANNOUNCE_SCION)],
            tail in proptest::collection::vec(any::<u8>(), 0..150),
        ) {
            let bytes = [&head[..], &action.to_be_bytes(), &tail].concat();
            let _ = parse_request(&bytes);
            let _ = parse_connect_reply(&bytes, reply_transaction(&bytes).unwrap_or(0));
            let _ = parse_announce_reply(&bytes, reply_transaction(&bytes).unwrap_or(0), action == 1);
            let _ = parse_scrape_reply(&bytes, reply_transaction(&bytes).unwrap_or(0));
        }

        #[test]
        fn requests_that_parse_are_emitted_alike(bytes in proptest::collection::vec(any::<u8>(), 98..99), event in 0u8..4) {
            let mut bytes = bytes;
            bytes[8..12].copy_from_slice(&ACTION_ANNOUNCE.to_be_bytes());
            bytes[80..88].copy_from_slice(&[0, 0, 0, event, 0, 0, 0, 0]);
            if bytes[92] >= 0x80 { bytes[92..96].fill(0xff) }
            let Ok(Request::Announce { connection, transaction, request, .. }) = parse_request(&bytes) else {
                panic!("no announce")
            };
            prop_assert_eq!(announce_request(connection, transaction, &request, ""), bytes);
        }
    }
}
