//! Links: everything that a peer needs to know of a swarm before it meets another (RFC 7574 §8.4, the metadata record).
//!
//! ```text
//! ppspp:SWARM-ID?cp=1&hf=2&ca=2&cs=1024&cl=123456&pe=192.0.2.7:6778&tr=udp://...&dn=name
//! ```
//!
//! The identifier is in hexadecimal digits. The keys are libswift's: `cp` the protection of the content, `hf` the hash function,
//! `ca` the chunk addressing, all by their numbers in the handshake; `cs` the length of a chunk, `cl` that of the content. Ours
//! are `pe`, a peer, and `tr`, a tracker, each as often as there are any; `dn`, a name; `ml`, the length of the [manifest](crate::manifest)
//! that a folder's content begins with; `sk`, the key of who shares it, whose peers are
//! reached inside QUIC alone, and `pr=1`, that not everybody is let in. What is not said is RFC 7574's default.
//! libswift's own links (`tswift://PEER/SWARM-ID?...`, and `tswift:/SWARM-ID$CHUNK-LENGTH` as it prints them) are read with its
//! defaults: its draft, and SHA-1. Unknown keys are left out, as other programs may have more.

use std::fmt::{self, Write};
use std::str::FromStr;

use thiserror::Error;

use crate::hash::HashFunction;
use crate::manifest::{MANIFEST_LEN_MAX, chunk_count};
use crate::wire::{Addressing, Dialect, Integrity, Mismatch, SwarmParams};

/// Longest link: a key of 8192 bits in hexadecimal digits, with room for peers and trackers.
pub const LINK_LEN_MAX: usize = 16_384;
/// Peers and trackers of one link, each: who lists more than these gains nothing by the rest.
pub const ADDRESSES_MAX: usize = 64;

/// A swarm as a link tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The swarm.
    pub params: SwarmParams,
    /// What its peers speak.
    pub dialect: Dialect,
    /// Length of the content in bytes; without it, the size has to be proven first, and the content of a live stream has none.
    pub content_len: Option<u64>,
    /// Length of the list of files that it begins with, in bytes, where it is of a folder; at most [`MANIFEST_LEN_MAX`].
    pub manifest_len: Option<u32>,
    /// Peers, as they are written; nobody looked at them yet.
    pub peers: Vec<String>,
    /// Trackers, likewise.
    pub trackers: Vec<String>,
    /// What to call it. A stranger's text: not a path.
    pub name: Option<String>,
    /// Its peers are reached inside QUIC, where they prove keys.
    pub secure: Option<SecureLink>,
}

/// What a link says of its peers' keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecureLink {
    /// The key that the peers named by the link prove, in base32 as it is printed.
    pub key: String,
    /// Only those are let in whom the content's owner allows.
    pub is_private: bool,
}

/// Characters of a key: 32 bytes in base32 (RFC 4648 §6), unpadded.
const KEY_LEN: usize = 52;

/// Why a text is no link: the user's or its author's fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LinkError {
    /// It starts with something else.
    #[error("a PPSPP link starts with ppspp: or tswift://")]
    Scheme,
    /// It is too long.
    #[error("the link is longer than {LINK_LEN_MAX} characters")]
    Length,
    /// The identifier is not in hexadecimal digits.
    #[error("the link's swarm identifier is not made of pairs of hexadecimal digits")]
    SwarmId,
    /// A value is not what its key asks for, or cannot be decoded.
    #[error("the link's value of {0} makes no sense")]
    Value(String),
    /// A key that can be there once is there again.
    #[error("the link says {0} twice")]
    Repeated(String),
    /// Such a swarm cannot be.
    #[error("the link describes a swarm that cannot be: {0}")]
    Swarm(#[from] Mismatch),
}

impl FromStr for Link {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        if text.len() > LINK_LEN_MAX {
            return Err(LinkError::Length);
        }
        let mut peers = Vec::new();
        let (dialect, rest) = if let Some(rest) = text.strip_prefix("tswift:") {
            // What libswift prints for itself names no peer, and has one slash.
            let (peer, rest) = rest.strip_prefix("//").unwrap_or(rest).split_once('/').ok_or(LinkError::SwarmId)?;
            if !peer.is_empty() {
                peers.push(decode("tswift", peer)?);
            }
            (Dialect::Draft10, rest)
        } else {
            (Dialect::Rfc7574, text.strip_prefix("ppspp:").ok_or(LinkError::Scheme)?)
        };
        let (mut id, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut fields = Fields::default();
        if dialect == Dialect::Draft10 {
            // A file of several has its name behind the swarm's, and libswift prints other chunks than 1 KiB as `$8192`.
            id = id.split_once('/').map_or(id, |(id, _)| id);
            if let Some((before, len)) = id.split_once('$') {
                fields.read("cs", len)?;
                id = before;
            }
        }
        let id = unhex(id).ok_or(LinkError::SwarmId)?;
        let mut name = None;
        let mut trackers = Vec::new();
        let (mut key, mut is_private) = (None, None);
        for (field, value) in
            query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        {
            match field {
                "pe" | "tr" if value.is_empty() => {}
                "pe" if peers.len() < ADDRESSES_MAX => peers.push(decode(field, value)?),
                "tr" if trackers.len() < ADDRESSES_MAX => trackers.push(decode(field, value)?),
                "dn" if name.is_some() => return Err(LinkError::Repeated(field.into())),
                "dn" => name = Some(decode(field, value)?),
                "sk" if key.is_some() => return Err(LinkError::Repeated(field.into())),
                "sk" => key = Some(parse_key(value).ok_or_else(|| LinkError::Value(field.into()))?),
                "pr" if is_private.is_some() => return Err(LinkError::Repeated(field.into())),
                "pr" if matches!(value, "0" | "1") => is_private = Some(value == "1"),
                "pr" => return Err(LinkError::Value(field.into())),
                _ => fields.read(field, value)?,
            }
        }
        let is_private = is_private.unwrap_or(false);
        // Nobody is let in or kept out by a key that is not asked for; and libswift proves none.
        if (is_private && key.is_none()) || (key.is_some() && dialect != Dialect::Rfc7574) {
            return Err(LinkError::Value(if is_private { "pr" } else { "sk" }.into()));
        }
        let secure = key.map(|key| SecureLink { key, is_private });
        let manifest_len = fields.ml.map(|len| u32::try_from(len).unwrap_or(0));
        if manifest_len.is_some_and(|len| !(1..=MANIFEST_LEN_MAX).contains(&len)) {
            return Err(LinkError::Value("ml".into()));
        }
        let number = |key: &str, value: Option<u64>| {
            value.map(|value| u8::try_from(value).map_err(|_| LinkError::Value(key.into()))).transpose()
        };
        let bad = |key: &str| LinkError::Value(key.into());
        let integrity = number("cp", fields.cp)?.map_or(Some(Integrity::MerkleTree), Integrity::from_u8);
        // RFC 7574 §7.6 says SHA-256 where nothing is said; draft 10 knows SHA-1 as the default.
        let hash_default = if dialect == Dialect::Draft10 { HashFunction::Sha1 } else { HashFunction::Sha256 };
        let hash = number("hf", fields.hf)?.map_or(Some(hash_default), HashFunction::from_u8);
        let addressing = number("ca", fields.ca)?.map_or(Some(Addressing::Chunks32), Addressing::from_u8);
        let chunk_len = u32::try_from(fields.cs.unwrap_or(1024)).map_err(|_| bad("cs"))?;
        let params = SwarmParams::new(
            &id,
            integrity.ok_or_else(|| bad("cp"))?,
            hash.ok_or_else(|| bad("hf"))?,
            addressing.ok_or_else(|| bad("ca"))?,
            // As in the handshake: chunks differ (RFC 7574 §7.11).
            Some(chunk_len).filter(|len| *len != u32::MAX),
        )?;
        // Files follow, and what follows begins with a chunk.
        let is_folder = manifest_len.is_some();
        if is_folder && (params.integrity() != Integrity::MerkleTree || params.chunk_len().is_none()) {
            return Err(bad("ml"));
        }
        Ok(Self { params, dialect, content_len: fields.cl, manifest_len, peers, trackers, name, secure })
    }
}

impl Link {
    /// Chunks in front of the first file's: those of a folder's manifest.
    pub fn manifest_chunks(&self) -> u64 {
        self.manifest_len.zip(self.params.chunk_len()).map_or(0, |(len, chunk_len)| chunk_count(len, chunk_len))
    }

    /// Bytes of the file, or of all files of the folder, once the content's length is known; `None` too where the manifest would be longer.
    pub fn files_len(&self) -> Option<u64> {
        let before = self.manifest_chunks() * self.params.chunk_len().map_or(0, u64::from);
        self.content_len?.checked_sub(before)
    }
}

/// The keys with a number.
#[derive(Default)]
struct Fields {
    cp: Option<u64>,
    hf: Option<u64>,
    ca: Option<u64>,
    cs: Option<u64>,
    cl: Option<u64>,
    ml: Option<u64>,
}

impl Fields {
    fn read(&mut self, key: &str, value: &str) -> Result<(), LinkError> {
        let field = match key {
            "cp" => &mut self.cp,
            "hf" => &mut self.hf,
            "ca" => &mut self.ca,
            "cs" => &mut self.cs,
            "cl" => &mut self.cl,
            "ml" => &mut self.ml,
            _ => return Ok(()),
        };
        if field.is_some() {
            return Err(LinkError::Repeated(key.into()));
        }
        // No sign and no space, which `parse` would let through or not: digits.
        let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        *field = Some(value.parse().ok().filter(|_| digits).ok_or_else(|| LinkError::Value(key.into()))?);
        Ok(())
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let codec = self.params.codec(self.dialect);
        let mut peers = self.peers.iter();
        match self.dialect {
            Dialect::Rfc7574 => f.write_str("ppspp:")?,
            _ => write!(f, "tswift://{}/", encode(peers.next().map_or("", String::as_str)))?,
        }
        self.params.swarm_id().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        let (cp, hf, ca) = (self.params.integrity().to_u8(), codec.hash.to_u8(), codec.addressing.to_u8());
        write!(f, "?cp={cp}&hf={hf}&ca={ca}&cs={}", codec.chunk_len.unwrap_or(u32::MAX))?;
        self.content_len.iter().try_for_each(|len| write!(f, "&cl={len}"))?;
        self.manifest_len.iter().try_for_each(|len| write!(f, "&ml={len}"))?;
        if let Some(secure) = &self.secure {
            write!(f, "&sk={}{}", secure.key, if secure.is_private { "&pr=1" } else { "" })?;
        }
        peers.try_for_each(|peer| write!(f, "&pe={}", encode(peer)))?;
        self.trackers.iter().try_for_each(|tracker| write!(f, "&tr={}", encode(tracker)))?;
        self.name.iter().try_for_each(|name| write!(f, "&dn={}", encode(name)))
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, odd) = text.as_bytes().as_chunks::<2>();
    let id: Option<Vec<u8>> = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    id.filter(|id| odd.is_empty() && !id.is_empty())
}

/// A key's letters and digits; whether anybody can prove it is another question.
fn parse_key(text: &str) -> Option<String> {
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || (b'2'..=b'7').contains(&byte);
    (text.len() == KEY_LEN && text.bytes().all(is_letter)).then(|| text.to_ascii_lowercase())
}

/// RFC 3986 §2.1.
fn decode(key: &str, text: &str) -> Result<String, LinkError> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((byte, more)) = rest.split_first() {
        rest = more;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let (pair, more) = rest.split_at_checked(2).ok_or_else(|| LinkError::Value(key.into()))?;
        let byte = std::str::from_utf8(pair).ok().and_then(unhex).ok_or_else(|| LinkError::Value(key.into()))?;
        bytes.extend(byte);
        rest = more;
    }
    String::from_utf8(bytes).map_err(|_| LinkError::Value(key.into()))
}

fn encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' | b'[' | b']' | b',' => {
                out.push(char::from(byte));
            }
            // Writing to a string does not fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_kinds_of_links() {
        let id = "ab".repeat(32);
        let text = format!(
            "ppspp:{id}?cp=1&hf=2&ca=4&cs=8192&cl=99&pe=[1-ff00:0:110,10.0.0.1]:80&pe=192.0.2.7:6778&tr=udp:%2F%2Ft:1&dn=a%20film"
        );
        let link: Link = text.parse().expect("a link");
        assert_eq!(link.to_string(), text);
        assert_eq!((link.dialect, link.content_len, link.params.chunk_len()), (Dialect::Rfc7574, Some(99), Some(8192)));
        assert_eq!(
            (&link.peers[1][..], &link.trackers[0][..], link.name.as_deref()),
            ("192.0.2.7:6778", "udp://t:1", Some("a film"))
        );
        // The defaults: SHA-256, ranges of chunks, chunks of 1 KiB.
        let short: Link = format!("ppspp:{id}?unknown=1").parse().expect("a link");
        assert_eq!((short.params.hash(), short.params.chunk_len()), (HashFunction::Sha256, Some(1024)));
        let swift = format!("tswift://192.0.2.7:6778/{}", "cd".repeat(20));
        let link: Link = swift.parse().expect("libswift's");
        assert_eq!(
            (link.dialect, link.params.hash(), &link.peers[0][..]),
            (Dialect::Draft10, HashFunction::Sha1, "192.0.2.7:6778")
        );
        assert_eq!(link.to_string(), format!("{swift}?cp=1&hf=0&ca=2&cs=1024"));
        let printed: Link = format!("tswift:/{}$8192", "cd".repeat(20)).parse().expect("as libswift prints it");
        assert_eq!((printed.params.chunk_len(), printed.peers.len()), (Some(8192), 0));
        let file: Link = format!("{swift}$2048/a.film?cl=9").parse().expect("a file of several");
        assert_eq!((file.params.chunk_len(), file.content_len, &file.peers), (Some(2048), Some(9), &link.peers));
        assert_eq!(format!("{swift}$+5").parse::<Link>(), Err(LinkError::Value("cs".into())));
        assert_eq!(format!("{swift}$1024?cs=1024").parse::<Link>(), Err(LinkError::Repeated("cs".into())));
    }

    #[test]
    fn secure_links_name_a_key() {
        let (id, key) = ("ab".repeat(32), "b".repeat(51) + "a");
        for pr in ["", "&pr=1"] {
            let text = format!("ppspp:{id}?cp=1&hf=2&ca=2&cs=1024&sk={key}{pr}&pe=192.0.2.7:1");
            let link: Link = text.parse().expect("a link");
            let secure = link.secure.as_ref().expect("it is secure");
            assert_eq!((&secure.key, secure.is_private, link.to_string()), (&key, !pr.is_empty(), text));
        }
        let error = |query: &str| format!("ppspp:{id}?{query}").parse::<Link>().expect_err("no link");
        let value = |key: &str| LinkError::Value(key.into());
        assert_eq!(
            (error("sk="), error("sk=abc"), error("pr=1"), error("pr=2")),
            (value("sk"), value("sk"), value("pr"), value("pr"))
        );
        assert_eq!(error(&format!("sk={}1", &key[1..])), value("sk"));
        assert_eq!(error(&format!("sk={key}&sk={key}")), LinkError::Repeated("sk".into()));
        assert_eq!(error(&format!("sk={key}&pr=1&pr=1")), LinkError::Repeated("pr".into()));
        assert_eq!(format!("tswift://h:1/{}?sk={key}", "cd".repeat(20)).parse::<Link>(), Err(value("sk")));
        let upper: Link = format!("ppspp:{id}?sk={}&pr=0", key.to_uppercase()).parse().expect("a link");
        assert_eq!(upper.secure, Some(SecureLink { key, is_private: false }));
    }

    #[test]
    fn folders_begin_with_a_manifest() {
        let id = "ab".repeat(32);
        let text = format!("ppspp:{id}?cp=1&hf=2&ca=2&cs=1024&cl=5000&ml=1025");
        let link: Link = text.parse().expect("a link");
        assert_eq!((link.manifest_len, link.manifest_chunks(), link.files_len()), (Some(1025), 2, Some(2952)));
        assert_eq!(link.to_string(), text);
        let short: Link = format!("ppspp:{id}?cl=2047&ml=1025").parse().expect("a link");
        assert_eq!(short.files_len(), None, "shorter than its manifest");
        let file: Link = format!("ppspp:{id}?cl=5000").parse().expect("a link");
        assert_eq!((file.manifest_chunks(), file.files_len()), (0, Some(5000)));
        let last = format!("ppspp:{id}?ml={MANIFEST_LEN_MAX}").parse::<Link>();
        assert!(last.is_ok_and(|link| link.files_len().is_none()));
        for bad in ["0", "", "-1", "x", "16777217", "4294967297", "1&cs=4294967295", "1&cp=0"] {
            let error = format!("ppspp:{id}?ml={bad}").parse::<Link>();
            assert_eq!(error, Err(LinkError::Value("ml".into())), "{bad}");
        }
        assert_eq!(format!("ppspp:{id}?ml=1&ml=1").parse::<Link>(), Err(LinkError::Repeated("ml".into())));
    }

    #[test]
    fn errors_name_the_key() {
        let id = "ab".repeat(32);
        let error = |query: &str| format!("ppspp:{id}?{query}").parse::<Link>().expect_err("no link");
        let value = |key: &str| LinkError::Value(key.into());
        assert_eq!((error("cs=x"), error("cs=+5"), error("cs=4294967296")), (value("cs"), value("cs"), value("cs")));
        assert_eq!((error("hf=5"), error("ca=256"), error("cl=")), (value("hf"), value("ca"), value("cl")));
        assert_eq!((error("dn=%zz"), error("pe=%f"), error("dn=%ff")), (value("dn"), value("pe"), value("dn")));
        assert_eq!(
            (error("cs=1&cs=1"), error("dn=&dn=")),
            (LinkError::Repeated("cs".into()), LinkError::Repeated("dn".into()))
        );
        assert_eq!(
            (error("hf=0"), error("cs=0")),
            (LinkError::Swarm(Mismatch::IdLength), LinkError::Swarm(Mismatch::ChunkLen))
        );
        assert_eq!("magnet:?".parse::<Link>(), Err(LinkError::Scheme));
        for bad in ["ppspp:", "ppspp:abc", "ppspp:zz", "tswift://abc", "tswift://h:1/"] {
            assert_eq!(bad.parse::<Link>(), Err(LinkError::SwarmId));
        }
        let long = |len: usize| format!("ppspp:{id}?{}", "x".repeat(len - 71)).parse::<Link>().map(|_| ());
        assert_eq!((long(LINK_LEN_MAX), long(LINK_LEN_MAX + 1)), (Ok(()), Err(LinkError::Length)));
        let empty: Link = format!("tswift:///{id}?hf=2&pe=&tr=&pe=b").parse().expect("a link");
        assert_eq!((empty.peers.as_slice(), empty.trackers.len()), (&["b".to_owned()][..], 0));
        let many: Link = format!("ppspp:{id}?{}", "pe=a&".repeat(ADDRESSES_MAX + 9)).parse().expect("a link");
        assert_eq!(many.peers.len(), ADDRESSES_MAX);
    }

    proptest! {
        #[test]
        fn links_survive_being_written(text in "(ppspp:|tswift://[a-z:0-9%]{0,8}/)(ab|0F){18,34}\\?([a-z]{2}=[0-9a-z%]{0,5}&|dn=\\PC{0,9}&|pe=[a-z]{0,5}&|cs=[0-9]{1,5}&|sk=[a-z2-7]{52}&|pr=[01]&){0,6}") {
            if let Ok(link) = text.parse::<Link>() {
                prop_assert_eq!(link.to_string().parse::<Link>(), Ok(link));
            }
        }
    }
}
