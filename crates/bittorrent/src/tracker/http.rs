//! The HTTP form of the tracker protocol, the client's side: what to ask for and how to read the answer
//! (BEP 3, 7, 23, 24, 31, 48).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anabranch_content::bencode::{self, Limits, Value};
use anabranch_paths::ScionAddr;

use super::url::push_escaped;
use super::{
    AnnounceReply, AnnounceRequest, Event, InfoHash, Refusal, ReplyError, Retry, SCRAPE_HASHES_MAX, ScrapeEntry,
    TRACKER_ID_BYTES_MAX, TrackerUrl, clean_text, peers, scion,
};
use crate::extension::{IN_USE_KEY, PathsInUse};

/// Largest body read. [`super::REPLY_PEERS_MAX`] peers in the long form of BEP 3 take about 180 KB.
pub const BODY_BYTES_MAX: usize = 512 << 10;

/// Longest path and query that paths in use are put into: half of what common servers read.
const TARGET_BYTES_MAX: usize = 4 << 10;

/// Path and query of an announce. The URL's own query stays in front.
pub fn announce_target(url: &TrackerUrl, request: &AnnounceRequest) -> String {
    let mut out = url.target();
    out.push(if url.query().is_empty() { '?' } else { '&' });
    push_bytes(&mut out, "info_hash=", &request.info_hash);
    push_bytes(&mut out, "&peer_id=", &request.peer_id);
    out += &format!(
        "&port={}&uploaded={}&downloaded={}&left={}&compact=1&key={:08X}",
        request.port, request.uploaded_bytes, request.downloaded_bytes, request.left_bytes, request.key,
    );
    if let Some(numwant) = request.numwant {
        out += &format!("&numwant={numwant}");
    }
    match request.event {
        Event::None => {}
        Event::Started => out += "&event=started",
        Event::Completed => out += "&event=completed",
        Event::Paused => out += "&event=paused",
        Event::Stopped => out += "&event=stopped",
    }
    if let Some(id) = &request.tracker_id {
        push_bytes(&mut out, "&trackerid=", id);
    }
    scion::push_query(&mut out, request, TARGET_BYTES_MAX);
    out
}

/// Path and query of a scrape; `url` is what [`TrackerUrl::scrape`] gave. At most [`SCRAPE_HASHES_MAX`] contents.
pub fn scrape_target(url: &TrackerUrl, hashes: &[InfoHash]) -> String {
    let mut out = url.target();
    let mut mark = if url.query().is_empty() { '?' } else { '&' };
    for hash in hashes.iter().take(SCRAPE_HASHES_MAX) {
        out.push(mark);
        push_bytes(&mut out, "info_hash=", hash);
        mark = '&';
    }
    out
}

/// Reads an announce's answer.
pub fn parse_announce_reply(body: &[u8]) -> Result<AnnounceReply, ReplyError> {
    read_dict(body, |root| {
        let seconds = |key: &str| root.get(key).and_then(|value| value.as_uint()).map(Duration::from_secs);
        let count = |key: &str| root.get(key).and_then(|value| value.as_uint()).map(saturate);
        let mut reply = AnnounceReply {
            interval: seconds("interval"),
            interval_min: seconds("min interval"),
            complete: count("complete"),
            incomplete: count("incomplete"),
            downloaded: count("downloaded"),
            warning: root.get("warning message").and_then(|text| text.as_bytes()).map(clean_text),
            tracker_id: root.get("tracker id").and_then(|id| id.as_bytes()).map(<[u8]>::to_vec),
            external_ip: root.get("external ip").and_then(|ip| ip.as_bytes()).and_then(read_ip),
            in_use: root.get(IN_USE_KEY).and_then(PathsInUse::parse),
            peers: Vec::new(),
        };
        reply.tracker_id.take_if(|id| id.len() > TRACKER_ID_BYTES_MAX);
        match root.get("peers") {
            Some(peers) => match (peers.as_bytes(), peers.as_list()) {
                (Some(bytes), _) => peers::read_v4(bytes, "peers", &mut reply.peers)?, // BEP 23
                (None, Some(list)) => list.for_each(|peer| read_long_peer(peer, &mut reply)), // BEP 3
                (None, None) => return Err(ReplyError::Field("peers")),
            },
            // A tracker with nobody to name may leave both lists out, but then it has to say when to return.
            None if reply.interval.is_none() && root.get("peers6").is_none() => {
                return Err(ReplyError::Field("peers"));
            }
            None => {}
        }
        if let Some(peers6) = root.get("peers6") {
            let bytes = peers6.as_bytes().ok_or(ReplyError::Field("peers6"))?;
            peers::read_v6(bytes, "peers6", &mut reply.peers)?; // BEP 7
        }
        if let Some(peers) = root.get(scion::KEY) {
            match (peers.as_bytes(), peers.as_list()) {
                (Some(bytes), _) => peers::read_scion(bytes, scion::KEY, &mut reply.peers)?,
                (None, Some(list)) => list.for_each(|peer| read_long_scion_peer(peer, &mut reply)),
                (None, None) => return Err(ReplyError::Field(scion::KEY)),
            }
        }
        Ok(reply)
    })
}

/// Reads a scrape's answer: the contents it names, at most [`SCRAPE_HASHES_MAX`].
pub fn parse_scrape_reply(body: &[u8]) -> Result<Vec<(InfoHash, ScrapeEntry)>, ReplyError> {
    read_dict(body, |root| {
        let files = root.get("files").and_then(|files| files.as_dict()).ok_or(ReplyError::Field("files"))?;
        let entries = files.filter_map(|(hash, entry)| {
            let count = |key: &str| entry.get(key).and_then(|value| value.as_uint()).map_or(0, saturate);
            let numbers = ScrapeEntry {
                complete: count("complete"),
                downloaded: count("downloaded"),
                incomplete: count("incomplete"),
            };
            Some((hash.try_into().ok()?, numbers))
        });
        Ok(entries.take(SCRAPE_HASHES_MAX).collect())
    })
}

/// Parses `body` and looks for a refusal before anything else. Bytes after the dictionary are let pass: some trackers
/// end their answer with a line feed.
fn read_dict<T>(body: &[u8], read: impl FnOnce(Value<'_>) -> Result<T, ReplyError>) -> Result<T, ReplyError> {
    let (tree, _) = bencode::parse_prefix(body, &Limits::MESSAGE).map_err(|error| {
        ReplyError::NotBencoded(format!("{error}; it begins with {:?}", clean_text(&body[..body.len().min(40)])))
    })?;
    let root = tree.root();
    if !root.is_dict() {
        return Err(ReplyError::NotBencoded("a dictionary is expected".to_owned()));
    }
    let Some(reason) = root.get("failure reason") else { return read(root) };
    let reason = reason.as_bytes().ok_or(ReplyError::Field("failure reason"))?;
    let retry = root.get("retry in").map_or(Retry::Unsaid, read_retry);
    Err(ReplyError::Refused(Refusal { reason: clean_text(reason), retry }))
}

/// BEP 31: minutes, or `never`.
fn read_retry(value: Value<'_>) -> Retry {
    match (value.as_bytes(), value.as_uint()) {
        (Some(b"never"), _) => Retry::Never,
        (_, Some(minutes)) => Retry::After(Duration::from_secs(minutes.saturating_mul(60))),
        _ => Retry::Unsaid,
    }
}

/// A peer as a dictionary. One whose `ip` is a name is left out: a reply should not make us look up thousands.
fn read_long_peer(peer: Value<'_>, reply: &mut AnnounceReply) {
    let ip = peer.get("ip").and_then(|ip| ip.as_str()?.parse().ok());
    let port = peer.get("port").and_then(|port| u16::try_from(port.as_uint()?).ok());
    if let (Some(ip), Some(port)) = (ip, port) {
        peers::add(&mut reply.peers, SocketAddr::new(ip, port).into());
    }
}

/// A SCION peer as a dictionary: its host as `ISD-AS,address`.
fn read_long_scion_peer(peer: Value<'_>, reply: &mut AnnounceReply) {
    let host = peer.get("ip").and_then(|ip| ip.as_str());
    let port = peer.get("port").and_then(|port| u16::try_from(port.as_uint()?).ok());
    if let (Some(host), Some(port)) = (host, port)
        && let Ok(address) = format!("[{host}]:{port}").parse::<ScionAddr>()
    {
        peers::add(&mut reply.peers, address.into());
    }
}

/// BEP 24: 4 or 16 bytes.
fn read_ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(bytes).map(IpAddr::from);
    v4().or_else(|_| v6()).ok()
}

fn saturate(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Appends `name` and the bytes, percent-encoded.
fn push_bytes(out: &mut String, name: &str, bytes: &[u8]) {
    out.push_str(name);
    push_escaped(out, bytes);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{REPLY_PEERS_MAX, TEXT_CHARS_MAX};
    use super::*;

    #[test]
    fn an_announce_has_all_parameters_after_the_urls_own() {
        let url: TrackerUrl = "http://t.example/announce?passkey=x".parse().unwrap();
        let mut info_hash = [b'a'; 20];
        info_hash[..3].copy_from_slice(&[0, b' ', 0xff]);
        let request = AnnounceRequest {
            uploaded_bytes: 1,
            downloaded_bytes: 2,
            left_bytes: 3,
            numwant: Some(4),
            key: 0xbeef,
            tracker_id: Some(b"i&d".to_vec()),
            scion: Some(vec!["[1-ff00:0:110,::1]:6881".parse().unwrap()]),
            ..AnnounceRequest::new(info_hash, *b"-AN0100-0123456789ab", 6881, Event::Completed)
        };
        assert_eq!(
            announce_target(&url, &request),
            "/announce?passkey=x&info_hash=%00%20%FFaaaaaaaaaaaaaaaaa&peer_id=-AN0100-0123456789ab&port=6881\
             &uploaded=1&downloaded=2&left=3&compact=1&key=0000BEEF&numwant=4&event=completed&trackerid=i%26d\
             &ab_scion=%5B1-ff00%3A0%3A110%2C%3A%3A1%5D%3A6881"
        );
    }

    #[test]
    fn compact_replies_of_both_families_are_read() {
        let body = [
            &b"d8:completei1e11:external ip4:\x01\x02\x03\x0410:incompletei2e8:intervali60e12:min intervali30e"[..],
            b"5:peers6:\x0a\x00\x00\x01\x1a\xe16:peers618:\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50",
            b"10:tracker id2:id15:warning message3:old7:unknownlee\n",
        ]
        .concat();
        let reply = parse_announce_reply(&body).unwrap();
        let expected = AnnounceReply {
            interval: Some(Duration::from_secs(60)),
            interval_min: Some(Duration::from_secs(30)),
            peers: vec!["10.0.0.1:6881".parse().unwrap(), "[2001:db8::1]:80".parse().unwrap()],
            complete: Some(1),
            incomplete: Some(2),
            downloaded: None,
            warning: Some("old".to_owned()),
            tracker_id: Some(b"id".to_vec()),
            external_ip: Some("1.2.3.4".parse().unwrap()),
            in_use: None,
        };
        assert_eq!(reply, expected);
    }

    #[test]
    fn the_long_form_is_read_and_names_are_left_out() {
        let body = b"d8:intervali60e5:peersld2:ip8:10.0.0.14:porti1eed2:ip3:::14:porti2eed2:ip4:host4:porti3ee\
            d2:ip8:10.0.0.14:porti65536eeee";
        let peers = parse_announce_reply(body).unwrap().peers;
        assert_eq!(peers, ["10.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap()]);
    }

    #[test]
    fn scion_peers_are_read_in_both_forms() {
        let peer = "[1-ff00:0:110,10.1.2.3]:6881".parse().unwrap();
        let compact = b"d8:ab_scion15:\x00\x01\xff\x00\x00\x00\x01\x10\x04\x0a\x01\x02\x03\x1a\xe18:intervali60ee";
        assert_eq!(parse_announce_reply(compact).unwrap().peers, [peer]);
        let long = b"d8:ab_sciond2:ip23:1-ff00:0:110,10.1.2.3";
        assert!(parse_announce_reply(long).is_err());
        let long =
            b"d8:ab_scionld2:ip21:1-ff00:0:110,10.1.2.34:porti6881eed2:ip8:10.1.2.34:porti1eed2:ip1:x4:porti1eee\
            8:intervali60ee";
        assert_eq!(parse_announce_reply(long).unwrap().peers, [peer]);
        let cut = parse_announce_reply(b"d8:ab_scion3:abc8:intervali60ee");
        assert_eq!(cut, Err(ReplyError::Field("ab_scion")));
        assert_eq!(parse_announce_reply(b"d8:ab_scioni1e8:intervali60ee"), Err(ReplyError::Field("ab_scion")));
    }

    #[test]
    fn refusals_say_when_to_return() {
        let refused = |body: &[u8]| match parse_announce_reply(body) {
            Err(ReplyError::Refused(refusal)) => refusal,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(b"d14:failure reason2:no8:retry in5:nevere").retry, Retry::Never);
        assert_eq!(refused(b"d14:failure reason2:no8:retry ini5ee").retry, Retry::After(Duration::from_secs(300)));
        assert_eq!(refused(b"d14:failure reason2:noe"), Refusal { reason: "no".into(), retry: Retry::Unsaid });
        let long = format!("d14:failure reason{}:{}e", TEXT_CHARS_MAX + 1, "x".repeat(TEXT_CHARS_MAX + 1));
        assert_eq!(refused(long.as_bytes()).reason.len(), TEXT_CHARS_MAX);
    }

    #[test]
    fn garbage_is_named() {
        let fault = |body: &[u8]| parse_announce_reply(body).unwrap_err();
        assert!(matches!(fault(b"<html>busy</html>"), ReplyError::NotBencoded(text) if text.contains("<html>")));
        assert!(matches!(fault(b""), ReplyError::NotBencoded(_)));
        assert!(matches!(fault(b"le"), ReplyError::NotBencoded(_)));
        assert_eq!(fault(b"de"), ReplyError::Field("peers"));
        assert_eq!(fault(b"d5:peersi1ee"), ReplyError::Field("peers"));
        assert!(matches!(fault(b"d5:peers5:aaaaae"), ReplyError::CompactLength { .. }));
    }

    #[test]
    fn long_lists_are_cut() {
        let one = b"d2:ip8:10.0.0.14:porti1ee";
        let body = [&b"d5:peersl"[..], &one.repeat(REPLY_PEERS_MAX + 1), b"ee"].concat();
        assert_eq!(parse_announce_reply(&body).unwrap().peers.len(), REPLY_PEERS_MAX);
    }

    #[test]
    fn a_tracker_id_too_long_is_not_kept() {
        let body = |length: usize| format!("d8:intervali1e10:tracker id{length}:{}e", "x".repeat(length));
        let kept = |length| parse_announce_reply(body(length).as_bytes()).unwrap().tracker_id.is_some();
        assert!(kept(TRACKER_ID_BYTES_MAX) && !kept(TRACKER_ID_BYTES_MAX + 1));
    }

    #[test]
    fn scrapes_ask_and_read() {
        let url: TrackerUrl = "http://t.example/scrape".parse().unwrap();
        let hash = [b'h'; 20];
        assert_eq!(
            scrape_target(&url, &[hash, hash]),
            "/scrape?info_hash=hhhhhhhhhhhhhhhhhhhh&info_hash=hhhhhhhhhhhhhhhhhhhh"
        );
        let body = b"d5:filesd20:hhhhhhhhhhhhhhhhhhhhd8:completei1e10:downloadedi2e10:incompletei3eeee";
        let entry = ScrapeEntry { complete: 1, downloaded: 2, incomplete: 3 };
        assert_eq!(parse_scrape_reply(body).unwrap(), [(hash, entry)]);
        assert_eq!(parse_scrape_reply(b"de"), Err(ReplyError::Field("files")));
    }

    proptest! {
        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (parse_announce_reply(&body), parse_scrape_reply(&body));
        }

        #[test]
        fn no_bencoded_body_panics(values in proptest::collection::vec((0usize..12, "[ilde0-9:]{0,12}"), 0..8)) {
            const KEYS: [&str; 12] = [
                "peers", "peers6", "interval", "failure reason", "retry in", "files", "external ip", "complete",
                "tracker id", "min interval", "ab_scion", "ab_used",
            ];
            let entries = values.iter().map(|(key, value)| format!("{}:{}{value}", KEYS[*key].len(), KEYS[*key]));
            let body = format!("d{}e", entries.collect::<String>());
            let _ = (parse_announce_reply(body.as_bytes()), parse_scrape_reply(body.as_bytes()));
        }
    }
}
