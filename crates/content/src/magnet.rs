//! Magnet links: a content by its info-hashes, and hints where to look (BEP 9, BEP 52, BEP 53).
//!
//! ```
//! use anabranch_content::magnet::Magnet;
//!
//! let link = "magnet:?xt=urn:btih:c12fe1c06bba254a9dc9f519b335aa7c1367a88a&dn=a%20name";
//! let magnet: Magnet = link.parse()?;
//! assert_eq!(magnet.name.as_deref(), Some("a name"));
//! assert_eq!(magnet.to_string(), link);
//! # Ok::<(), anabranch_content::magnet::MagnetError>(())
//! ```

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::hex;
use crate::info::{InfoHashes, Sha1Digest, Sha256Digest};
use crate::metainfo::limits::URLS_MAX;
use crate::metainfo::urls::{tracker_url, web_seed_url};

/// Bytes in a link; command lines and browsers end not far above.
pub const MAGNET_BYTES_MAX: usize = 64 * 1024;

/// Multihash prefix of a SHA-256 digest: function 0x12, 0x20 bytes (BEP 52, "magnet links").
const MULTIHASH_SHA256: &str = "1220";

/// A magnet link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Magnet {
    /// `xt`: at least one info-hash.
    pub hashes: InfoHashes,
    /// `dn`: a name to show until the metadata is there. Not made safe for use as a file name.
    pub name: Option<String>,
    /// `tr`: tracker URLs; unusable ones are left out.
    pub trackers: Vec<String>,
    /// `ws`: web seeds (BEP 19).
    pub web_seeds: Vec<String>,
    /// `x.pe`: peers to try, as written: `10.0.0.1:6881`, `[2001:db8::1]:6881`, a host name with a port, or for a host of a
    /// SCION network `[1-ff00:0:110,10.0.0.1]:6881`.
    pub peers: Vec<String>,
    /// `so`: indices of the files wanted (BEP 53); all where there are none.
    pub select_only: Vec<RangeInclusive<u32>>,
}

/// Why a link is refused; the link is to blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MagnetError {
    /// Something else.
    #[error("not a magnet link: it does not begin with `magnet:?`; copy the whole link")]
    NotMagnet,
    /// Longer than [`MAGNET_BYTES_MAX`].
    #[error("the magnet link has {0} bytes, at most {MAGNET_BYTES_MAX} are allowed; leave trackers out")]
    TooLong(usize),
    /// No `xt` that this program knows.
    #[error("the magnet link has no info-hash: `xt=urn:btih:...` or `xt=urn:btmh:...` is missing; copy the whole link")]
    NoHash,
    /// A parameter with a value that means nothing.
    #[error("the magnet link's `{parameter}` is {problem}: `{value}`; copy the link again from where it came")]
    Invalid {
        /// Which parameter.
        parameter: &'static str,
        /// What is wrong with it.
        problem: &'static str,
        /// The value, cut short.
        value: String,
    },
    /// More of something than is reasonable.
    #[error("the magnet link has more than {URLS_MAX} of `{0}`; leave some out")]
    TooMany(&'static str),
}

impl FromStr for Magnet {
    type Err = MagnetError;

    fn from_str(link: &str) -> Result<Self, MagnetError> {
        let link = link.trim();
        if link.len() > MAGNET_BYTES_MAX {
            return Err(MagnetError::TooLong(link.len()));
        }
        let head = link.get(.."magnet:?".len()).filter(|head| head.eq_ignore_ascii_case("magnet:?"));
        let query = &link[head.ok_or(MagnetError::NotMagnet)?.len()..];
        let mut magnet = Self::default();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            // `tr.1`, `tr.2` and so on are as good as `tr` many times.
            let numbered = key.rsplit_once('.').filter(|(_, number)| number.bytes().all(|c| c.is_ascii_digit()));
            magnet.set(&numbered.map_or(key, |(key, _)| key).to_ascii_lowercase(), value)?;
        }
        if magnet.hashes == InfoHashes::default() {
            return Err(MagnetError::NoHash);
        }
        Ok(magnet)
    }
}

impl Magnet {
    /// The link of the v1 half of a hybrid, for clients that take one info-hash alone; `None` where there is but one.
    pub fn v1_only(&self) -> Option<Self> {
        let hashes = self.hashes.v1.and(self.hashes.v2).map(|_| InfoHashes { v2: None, ..self.hashes })?;
        Some(Self { hashes, ..self.clone() })
    }

    /// The same of its v2 half.
    pub fn v2_only(&self) -> Option<Self> {
        let hashes = self.hashes.v1.and(self.hashes.v2).map(|_| InfoHashes { v1: None, ..self.hashes })?;
        Some(Self { hashes, ..self.clone() })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), MagnetError> {
        match key {
            "xt" => self.set_topic(value)?,
            // Some makers write a space as `+`, as forms do.
            "dn" => self.name = Some(text("dn", &value.replace('+', " "))?).filter(|name| !name.is_empty()),
            "tr" => push("tr", &mut self.trackers, tracker_url(&percent_decode("tr", value)?))?,
            "ws" => push("ws", &mut self.web_seeds, web_seed_url(&percent_decode("ws", value)?))?,
            "x.pe" => push("x.pe", &mut self.peers, Some(text("x.pe", value)?).filter(|peer| !peer.is_empty()))?,
            "so" => self.set_selection(&text("so", value)?)?,
            _ => {} // Other parameters are other programs' business.
        }
        Ok(())
    }

    fn set_topic(&mut self, value: &str) -> Result<(), MagnetError> {
        let topic = text("xt", value)?;
        let is = |prefix: &str| topic.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix));
        let bad = |problem| invalid("xt", problem, &topic);
        let conflict = || bad("a second, different info-hash");
        if is("urn:btih:") {
            let hash = btih(&topic["urn:btih:".len()..]).ok_or_else(|| bad("not 40 hex or 32 base32 digits"))?;
            if self.hashes.v1.replace(hash).is_some_and(|other| other != hash) {
                return Err(conflict());
            }
        } else if is("urn:btmh:") {
            let digits = &topic["urn:btmh:".len()..];
            let digest = digits.strip_prefix(MULTIHASH_SHA256).ok_or_else(|| bad("no SHA-256 multihash"))?;
            let hash: Sha256Digest = hex::decode(digest).ok_or_else(|| bad("not 64 hex digits after `1220`"))?;
            if self.hashes.v2.replace(hash).is_some_and(|other| other != hash) {
                return Err(conflict());
            }
        }
        Ok(())
    }

    /// BEP 53: `0,2,4,6-8`.
    fn set_selection(&mut self, value: &str) -> Result<(), MagnetError> {
        for range in value.split(',').filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => push("so", &mut self.select_only, Some(first..=last))?,
                _ => return Err(invalid("so", "not a list of file indices and ranges", value)),
            }
        }
        Ok(())
    }
}

impl fmt::Display for Magnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parameters = Vec::new();
        parameters.extend(self.hashes.v1.map(|hash| format!("xt=urn:btih:{}", hex::encode(&hash))));
        parameters.extend(self.hashes.v2.map(|hash| format!("xt=urn:btmh:{MULTIHASH_SHA256}{}", hex::encode(&hash))));
        parameters.extend(self.name.iter().map(|name| format!("dn={}", percent_encode(name))));
        parameters.extend(self.trackers.iter().map(|url| format!("tr={}", percent_encode(url))));
        parameters.extend(self.web_seeds.iter().map(|url| format!("ws={}", percent_encode(url))));
        parameters.extend(self.peers.iter().map(|peer| format!("x.pe={}", percent_encode_but(peer, PEER_MARKS))));
        if !self.select_only.is_empty() {
            let range = |range: &RangeInclusive<u32>| match (range.start(), range.end()) {
                (first, last) if first == last => first.to_string(),
                (first, last) => format!("{first}-{last}"),
            };
            parameters.push(format!("so={}", self.select_only.iter().map(range).collect::<Vec<_>>().join(",")));
        }
        write!(f, "magnet:?{}", parameters.join("&"))
    }
}

fn push<T>(parameter: &'static str, list: &mut Vec<T>, item: Option<T>) -> Result<(), MagnetError> {
    if list.len() >= URLS_MAX && item.is_some() {
        return Err(MagnetError::TooMany(parameter));
    }
    list.extend(item);
    Ok(())
}

fn invalid(parameter: &'static str, problem: &'static str, value: &str) -> MagnetError {
    MagnetError::Invalid { parameter, problem, value: value[..value.floor_char_boundary(100)].to_owned() }
}

/// Digits only: `parse` alone would take a sign.
fn number(digits: &str) -> Option<u32> {
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// BEP 9: hex, or base32 in old links.
fn btih(digits: &str) -> Option<Sha1Digest> {
    if digits.len() == 32 { base32_decode(digits) } else { hex::decode(digits) }
}

/// RFC 4648 §6: 32 digits of five bits are 20 bytes.
fn base32_decode(digits: &str) -> Option<Sha1Digest> {
    let mut out = [0; 20];
    for (digits, bytes) in digits.as_bytes().chunks(8).zip(out.chunks_mut(5)) {
        let mut bits = 0u64;
        for digit in digits {
            let value = match digit.to_ascii_uppercase() {
                letter @ b'A'..=b'Z' => letter - b'A',
                number @ b'2'..=b'7' => number - b'2' + 26,
                _ => return None,
            };
            bits = bits << 5 | u64::from(value);
        }
        bytes.copy_from_slice(&bits.to_be_bytes()[3..]);
    }
    Some(out)
}

fn text(parameter: &'static str, value: &str) -> Result<String, MagnetError> {
    String::from_utf8(percent_decode(parameter, value)?).map_err(|_| invalid(parameter, "not UTF-8", value))
}

fn percent_decode(parameter: &'static str, value: &str) -> Result<Vec<u8>, MagnetError> {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((plain, tail)) = rest.split_once('%') {
        out.extend_from_slice(plain.as_bytes());
        let digits = tail.get(..2).and_then(hex::decode::<1>);
        out.extend(digits.ok_or_else(|| invalid(parameter, "badly percent-encoded", value))?);
        rest = &tail[2..];
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

/// RFC 3986 §2.3: all but unreserved characters.
/// Marks of an address that a link shows as they are, as BEP 9 does: libtorrent takes what is escaped there for no address.
const PEER_MARKS: &[u8] = b":[],@";

fn percent_encode(text: &str) -> String {
    percent_encode_but(text, b"")
}

/// Escapes all but what RFC 3986 §2.3 calls unreserved, and `kept`.
fn percent_encode_but(text: &str, kept: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ if kept.contains(&byte) => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V1: &str = "c12fe1c06bba254a9dc9f519b335aa7c1367a88a";
    const V2: &str = "caf1e1c30e81cb361b9ee167c4aa64228a7fa4fa9f6105232b28ad099f3a302e";

    fn read(query: &str) -> Result<Magnet, MagnetError> {
        format!("magnet:?{query}").parse()
    }

    fn problem(query: &str) -> (&'static str, &'static str) {
        match read(query) {
            Err(MagnetError::Invalid { parameter, problem, .. }) => (parameter, problem),
            other => panic!("{query}: {other:?}"),
        }
    }

    #[test]
    fn both_hashes_are_read() {
        let magnet = read(&format!("xt=urn:btih:{V1}&xt=urn:btmh:1220{V2}")).unwrap();
        assert_eq!(magnet.hashes.v1, hex::decode(V1));
        assert_eq!(magnet.hashes.v2, hex::decode(V2));
        let numbered = read(&format!("XT.1=URN:BTIH:{}&xt.2=urn:btmh:1220{V2}", V1.to_uppercase())).unwrap();
        assert_eq!(numbered, magnet);
    }

    #[test]
    fn base32_is_read() {
        let magnet = read("xt=urn:btih:YEX6DQDLXISUVHOJ6UM3GNNKPQJWPKEK").unwrap();
        assert_eq!(magnet.hashes.v1, hex::decode(V1));
        assert_eq!(read("xt=urn:btih:yex6dqdlxisuvhoj6um3gnnkpqjwpkek").unwrap(), magnet);
        assert_eq!(problem("xt=urn:btih:YEX6DQDLXISUVHOJ6UM3GNNKPQJWPKE1").0, "xt");
    }

    #[test]
    fn bad_hashes_are_named() {
        assert_eq!(read("dn=x"), Err(MagnetError::NoHash));
        assert_eq!(read("xt=urn:sha1:YEX6DQDLXISUVHOJ6UM3GNNKPQJWPKEK"), Err(MagnetError::NoHash));
        assert_eq!("http://x".parse::<Magnet>(), Err(MagnetError::NotMagnet));
        assert_eq!("magnet".parse::<Magnet>(), Err(MagnetError::NotMagnet));
        assert_eq!(problem("xt=urn:btih:c12f"), ("xt", "not 40 hex or 32 base32 digits"));
        assert_eq!(problem(&format!("xt=urn:btmh:1114{V1}")), ("xt", "no SHA-256 multihash"));
        assert_eq!(problem(&format!("xt=urn:btmh:1220{V1}")), ("xt", "not 64 hex digits after `1220`"));
        let other = V1.replace('c', "d");
        let twice = format!("xt=urn:btih:{V1}&xt=urn:btih:{other}");
        assert_eq!(problem(&twice), ("xt", "a second, different info-hash"));
        assert!(read(&format!("xt=urn:btih:{V1}&xt=urn:btih:{V1}")).is_ok());
    }

    #[test]
    fn the_rest_is_read() {
        let magnet = read(&format!(
            "xt=urn:btih:{V1}&dn=two+words%2B&tr=udp%3A%2F%2Ft.example%3A80&tr.1=http://u.example/a&tr=javascript:x\
             &ws=https://w.example/a%20b&x.pe=10.0.0.1:6881&x.pe=[::1]:6881&so=0,2,4-6&future=x"
        ))
        .unwrap();
        assert_eq!(magnet.name.as_deref(), Some("two words+"));
        assert_eq!(magnet.trackers, ["udp://t.example:80", "http://u.example/a"]);
        assert_eq!(magnet.web_seeds, ["https://w.example/a%20b"]);
        assert_eq!(magnet.peers, ["10.0.0.1:6881", "[::1]:6881"]);
        assert_eq!(magnet.select_only, [0..=0, 2..=2, 4..=6]);
        assert_eq!(magnet.to_string().parse::<Magnet>(), Ok(magnet));
    }

    #[test]
    fn peers_are_read_plain_or_escaped_and_shown_plain() {
        let peer = "[1-ff00:0:110,10.0.0.1]:6881";
        let escaped = "%5B1-ff00%3A0%3A110%2C10.0.0.1%5D%3A6881";
        for form in [peer, escaped, "[1-ff00:0:110%2c10.0.0.1]:6881"] {
            let magnet = read(&format!("xt=urn:btih:{V1}&x.pe={form}&x.pe.1={form}")).unwrap();
            assert_eq!(magnet.peers, [peer, peer], "{form}");
            assert_eq!(magnet.to_string(), format!("magnet:?xt=urn:btih:{V1}&x.pe={peer}&x.pe={peer}"));
        }
        // Nothing that a peer is named ends the parameter.
        let magnet = Magnet {
            peers: vec!["[::1]:6881".into(), "a&b=c d#e%3A".into()],
            ..read(&format!("xt=urn:btih:{V1}")).unwrap()
        };
        assert_eq!(magnet.to_string(), format!("magnet:?xt=urn:btih:{V1}&x.pe=[::1]:6881&x.pe=a%26b%3Dc%20d%23e%253A"));
    }

    #[test]
    fn bad_parameters_are_named() {
        let with = |rest: &str| problem(&format!("xt=urn:btih:{V1}&{rest}"));
        for selection in ["so=x", "so=1-", "so=3-2", "so=-1", "so=+1", "so=4294967296"] {
            assert_eq!(with(selection), ("so", "not a list of file indices and ranges"));
        }
        assert_eq!(with("dn=%zz"), ("dn", "badly percent-encoded"));
        assert_eq!(with("dn=%2"), ("dn", "badly percent-encoded"));
        assert_eq!(with("dn=%+1"), ("dn", "badly percent-encoded"));
        assert_eq!(with("dn=%ff"), ("dn", "not UTF-8"));
    }

    #[test]
    fn lengths_and_counts_are_limited() {
        let fill = |bytes: usize| {
            let head = format!("magnet:?xt=urn:btih:{V1}&dn=");
            let tail = "a".repeat(bytes - head.len());
            (head + &tail).parse::<Magnet>()
        };
        assert!(fill(MAGNET_BYTES_MAX).is_ok());
        assert_eq!(fill(MAGNET_BYTES_MAX + 1), Err(MagnetError::TooLong(MAGNET_BYTES_MAX + 1)));
        let peers = |count| read(&format!("xt=urn:btih:{V1}{}", "&x.pe=a:1".repeat(count)));
        assert!(peers(URLS_MAX).is_ok());
        assert_eq!(peers(URLS_MAX + 1), Err(MagnetError::TooMany("x.pe")));
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(
            v1 in any::<Option<Sha1Digest>>(), v2 in any::<Sha256Digest>(), name in "\\PC{1,20}", peer in "\\PC{1,9}",
            ranges in prop::collection::vec((0u32..99, 0u32..99), 0..5),
        ) {
            let select_only = ranges.iter().map(|(first, more)| *first..=first + more).collect();
            let magnet = Magnet {
                hashes: InfoHashes { v1, v2: Some(v2) }, name: Some(name), trackers: vec!["udp://a:1/b c?".replace(' ', "%20")],
                web_seeds: vec!["http://w/%20".to_owned()], peers: vec![peer], select_only,
            };
            prop_assert_eq!(magnet.to_string().parse::<Magnet>(), Ok(magnet));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,80}", query in "(xt|dn|tr|so|x.pe)=[%a-z0-9:&=.+-]{0,80}") {
            let _ = text.parse::<Magnet>();
            let _ = read(&query);
        }
    }
}
