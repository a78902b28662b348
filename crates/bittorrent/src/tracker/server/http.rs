//! The HTTP side: requests by their target, answers as bodies (BEP 3, 7, 23, 48).

use std::net::IpAddr;
use std::time::Instant;

use anabranch_content::bencode::{DictBuilder, ListBuilder};

use anabranch_paths::Endpoint;

use super::{Answer, Families, KnownPeer, Room, Stats, Tracker};
use crate::compact;
use crate::extension::IN_USE_KEY;
use crate::tracker::url::percent_decode;
use crate::tracker::{AnnounceRequest, Event, InfoHash, SCRAPE_HASHES_MAX, scion};

/// Longest request target read. A scrape of [`SCRAPE_HASHES_MAX`] contents takes 5.3 KB.
pub(super) const TARGET_BYTES_MAX: usize = 8 << 10;

/// What to send back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// HTTP status code.
    pub status: u16,
    /// Value of `Content-Type`.
    pub content_type: &'static str,
    /// Body.
    pub body: Vec<u8>,
}

/// Why a request is refused. The client is to blame; it is told in `failure reason`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum RequestError {
    #[error("the request lacks `{0}`")]
    Missing(&'static str),
    #[error("the request's `{0}` cannot be read")]
    Field(&'static str),
    #[error("name the contents to scrape with info_hash")]
    FullScrape,
    #[error("the request has more than {TARGET_BYTES_MAX} bytes")]
    Long,
    #[error("this tracker is closed: its announce URL has a key, which this one lacks")]
    Key,
    #[error("this tracker is closed: it does not track this content")]
    Unlisted,
}

impl Tracker {
    /// Answers a GET. `target` is what stands in the request line: path and query. A path's last component says what is
    /// wanted, so that announce URLs with a key in the path work.
    pub fn on_http(&mut self, target: &str, source: IpAddr, now: Instant) -> HttpAnswer {
        let source = source.to_canonical();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let result = match path.rsplit('/').next().unwrap_or_default() {
            _ if target.len() > TARGET_BYTES_MAX => Err(RequestError::Long),
            "announce" | "scrape" | "stats" if !self.is_admitted(path) => Err(RequestError::Key),
            "announce" => self.http_announce(query, source, now),
            "scrape" => self.http_scrape(query, now),
            "stats" => {
                return HttpAnswer { status: 200, content_type: "application/json", body: stats_json(&self.stats()) };
            }
            _ => {
                let body = b"This is a BitTorrent tracker: /announce, /scrape, /stats\n".to_vec();
                return HttpAnswer { status: 404, content_type: "text/plain", body };
            }
        };
        let body = result.unwrap_or_else(|error| {
            self.stats.refused += 1;
            DictBuilder::new().bytes("failure reason", error.to_string()).encode()
        });
        // BEP 3: "a text/plain document consisting of a bencoded dictionary".
        HttpAnswer { status: 200, content_type: "text/plain", body }
    }

    fn http_announce(&mut self, query: &str, source: IpAddr, now: Instant) -> Result<Vec<u8>, RequestError> {
        let Announce { request, claimed_ip, is_compact, has_peer_ids } = parse_announce(query)?;
        if !self.is_allowed(&request.info_hash) {
            return Err(RequestError::Unlisted);
        }
        let answer = self.announce(&request, source, claimed_ip, Families::Both, Room::ANY, now);
        let mut dict = DictBuilder::new();
        dict.int("complete", answer.complete)
            .int("incomplete", answer.incomplete)
            .int("downloaded", answer.downloaded)
            .int("interval", seconds(self.config.interval))
            .int("min interval", seconds(self.config.interval_min));
        let mut own_ip = Vec::new();
        match source {
            IpAddr::V4(ip) => own_ip.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => own_ip.extend_from_slice(&ip.octets()),
        }
        dict.bytes("external ip", own_ip); // BEP 24
        if is_compact {
            put_compact(&mut dict, &answer)
        } else {
            put_long(&mut dict, &answer, has_peer_ids)
        }
        // Empty says that we would know.
        if let Some(in_use) = &answer.in_use {
            dict.dict(IN_USE_KEY, &in_use.encode());
        }
        Ok(dict.encode())
    }

    fn http_scrape(&mut self, query: &str, now: Instant) -> Result<Vec<u8>, RequestError> {
        let hashes = pairs(query).filter(|(key, _)| *key == "info_hash").take(SCRAPE_HASHES_MAX);
        let mut files = DictBuilder::new();
        for (_, value) in hashes {
            let hash = twenty_bytes(value, "info_hash")?;
            let entry = self.scrape(&hash, now);
            let mut numbers = DictBuilder::new();
            numbers.int("complete", entry.complete).int("downloaded", entry.downloaded);
            files.dict(hash, numbers.int("incomplete", entry.incomplete));
        }
        if files.is_empty() {
            return Err(RequestError::FullScrape);
        }
        self.stats.scrapes += 1;
        Ok(DictBuilder::new().dict("files", &files).encode())
    }
}

#[derive(Debug)]
struct Announce {
    request: AnnounceRequest,
    claimed_ip: Option<IpAddr>,
    is_compact: bool,
    has_peer_ids: bool,
}

fn parse_announce(query: &str) -> Result<Announce, RequestError> {
    let (mut info_hash, mut peer_id, mut port): (Option<InfoHash>, _, Option<u16>) = (None, None, None);
    let mut rest = AnnounceRequest::new([0; 20], [0; 20], 0, Event::None);
    let mut left_bytes = None;
    let (mut claimed_ip, mut is_compact, mut has_peer_ids) = (None, true, true);
    for (key, value) in pairs(query) {
        match key {
            "info_hash" => info_hash = Some(twenty_bytes(value, "info_hash")?),
            "peer_id" => peer_id = Some(twenty_bytes(value, "peer_id")?),
            "port" => port = Some(number(value, "port")?),
            "uploaded" => rest.uploaded_bytes = number(value, "uploaded")?,
            "downloaded" => rest.downloaded_bytes = number(value, "downloaded")?,
            // A client that does not know the size yet may write -1; anything but 0 is a leecher to us.
            "left" => left_bytes = Some(number::<i128>(value, "left")?.try_into().unwrap_or(u64::MAX)),
            // BEP 15's -1 is seen here too: the default.
            "numwant" => rest.numwant = u32::try_from(number::<i64>(value, "numwant")?).ok(),
            "event" => {
                rest.event = match value {
                    "started" => Event::Started,
                    "completed" => Event::Completed,
                    "paused" => Event::Paused,
                    "stopped" => Event::Stopped,
                    // "empty" is the same as none (BEP 3).
                    _ => Event::None,
                }
            }
            "ip" => claimed_ip = percent_decode(value).and_then(|ip| String::from_utf8(ip).ok()?.parse().ok()),
            scion::KEY => scion::take_value(&mut rest.scion, value).ok_or(RequestError::Field(scion::KEY))?,
            IN_USE_KEY => scion::take_in_use(&mut rest.in_use, value),
            "compact" => is_compact = value != "0", // BEP 23
            "no_peer_id" => has_peer_ids = value == "0",
            _ => {}
        }
    }
    let request = AnnounceRequest {
        info_hash: info_hash.ok_or(RequestError::Missing("info_hash"))?,
        peer_id: peer_id.ok_or(RequestError::Missing("peer_id"))?,
        port: port.ok_or(RequestError::Missing("port"))?,
        left_bytes: left_bytes.unwrap_or(u64::MAX),
        ..rest
    };
    Ok(Announce { request, claimed_ip, is_compact, has_peer_ids })
}

fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

fn number<T: std::str::FromStr>(value: &str, key: &'static str) -> Result<T, RequestError> {
    value.parse().map_err(|_| RequestError::Field(key))
}

fn twenty_bytes(value: &str, key: &'static str) -> Result<[u8; 20], RequestError> {
    percent_decode(value).and_then(|bytes| bytes.try_into().ok()).ok_or(RequestError::Field(key))
}

/// BEP 23, BEP 7, and our own key for SCION.
fn put_compact(dict: &mut DictBuilder, answer: &Answer) {
    let (mut peers, mut peers6, mut scion_peers) = (Vec::new(), Vec::new(), Vec::new());
    for peer in &answer.peers {
        match peer.addr {
            Endpoint::Ip(addr) => compact::pack(addr, if addr.is_ipv6() { &mut peers6 } else { &mut peers }),
            Endpoint::Scion(addr) => compact::pack_scion(&addr, &mut scion_peers),
        }
    }
    dict.bytes("peers", peers);
    for (key, list) in [("peers6", peers6), (scion::KEY, scion_peers)] {
        if !list.is_empty() {
            dict.bytes(key, list);
        }
    }
}

/// BEP 3's dictionaries; both IP families fit in. SCION has its own list, with hosts as `ISD-AS,address`.
fn put_long(dict: &mut DictBuilder, answer: &Answer, has_peer_ids: bool) {
    let (mut peers, mut scion_peers) = (ListBuilder::new(), ListBuilder::new());
    for KnownPeer { addr, peer_id } in &answer.peers {
        let ip = match addr.as_scion() {
            Some(scion) => format!("{},{}", scion.isd_as, addr.ip()),
            None => addr.ip().to_string(),
        };
        let mut entry = DictBuilder::new();
        entry.bytes("ip", ip).int("port", addr.socket_addr().port());
        if has_peer_ids {
            entry.bytes("peer id", peer_id);
        }
        if addr.as_scion().is_some() {
            scion_peers.dict(&entry)
        } else {
            peers.dict(&entry)
        };
    }
    dict.list("peers", &peers);
    if !scion_peers.is_empty() {
        dict.list(scion::KEY, &scion_peers);
    }
}

fn seconds(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

fn stats_json(stats: &Stats) -> Vec<u8> {
    let Stats { contents, peers, announces, scrapes, refused, dropped, evicted } = stats;
    format!(
        "{{\"contents\":{contents},\"peers\":{peers},\"announces\":{announces},\"scrapes\":{scrapes},\
         \"refused\":{refused},\"dropped\":{dropped},\"evicted\":{evicted}}}\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tracker::http::announce_target;

    proptest! {
        #[test]
        fn no_target_panics(target in "/(announce|scrape|stats)\\?(info_hash|port|left|numwant|ip|ab_scion|ab_used|[%a-f0-9=&+]){0,30}|\\PC*") {
            let now = Instant::now();
            let mut tracker = Tracker::new(super::super::TrackerConfig::new(0, [0; 16]), now);
            tracker.on_http(&target, IpAddr::from([10, 0, 0, 1]), now);
        }

        #[test]
        fn what_our_client_asks_is_understood(
            info_hash in any::<[u8; 20]>(), peer_id in any::<[u8; 20]>(), port in any::<u16>(),
            counts in any::<[u64; 3]>(), numwant in any::<Option<u32>>(), event in 0usize..5,
        ) {
            let event = [Event::None, Event::Started, Event::Completed, Event::Paused, Event::Stopped][event];
            let request = AnnounceRequest {
                uploaded_bytes: counts[0], downloaded_bytes: counts[1], left_bytes: counts[2], numwant,
                ..AnnounceRequest::new(info_hash, peer_id, port, event)
            };
            let target = announce_target(&"http://t/announce?x=1".parse().unwrap(), &request);
            let parsed = parse_announce(target.split_once('?').unwrap().1).unwrap();
            prop_assert_eq!(parsed.request, request);
        }
    }

    #[test]
    fn the_longest_scrape_fits() {
        let target = crate::tracker::http::scrape_target(&"http://t/scrape".parse().unwrap(), &[[0xff; 20]; 80]);
        assert!(target.len() < TARGET_BYTES_MAX);
    }
}
