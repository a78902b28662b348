//! Torrent files (BEP 3, BEP 12, BEP 47, BEP 52): read without trust, written back with the info dictionary as it was.
//!
//! [`Metainfo::parse`] reads a `.torrent` file, [`Info::parse`] an info dictionary alone, as peers send it. Both make
//! names safe (`names`), unique (`collisions`) and links harmless (`symlinks`), or refuse with an error that says
//! what and where. What is accepted, renamed and refused is in `docs/metainfo.md`; the limits are in [`limits`].
//!
//! ```
//! use anabranch_content::bencode::DictBuilder;
//! use anabranch_content::metainfo::Metainfo;
//!
//! let mut info = DictBuilder::new();
//! info.bytes("name", "../greeting").int("length", 5).int("piece length", 16384).bytes("pieces", [7; 20]);
//! let torrent = DictBuilder::new().bytes("announce", "udp://tracker.example:80").dict("info", &info).encode();
//! let metainfo = Metainfo::parse(&torrent)?;
//! assert_eq!(metainfo.info.files[0].path.to_str(), Some("..greeting"));
//! assert_eq!(metainfo.encode(), torrent);
//! # Ok::<(), anabranch_content::metainfo::MetainfoError>(())
//! ```

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::bencode::{self, DictBuilder, FindingKind, Limits, ListBuilder, Value};
use crate::info::Info;
use crate::magnet::{MAGNET_BYTES_MAX, Magnet};

mod collisions;
mod draft;
mod edit;
mod error;
mod file_tree;
mod files_v1;
mod info_dict;
mod layers;
pub mod limits;
mod names;
mod symlinks;
pub(crate) mod urls;
mod written;

pub use edit::Edits;
pub use error::MetainfoError;
pub(crate) use files_v1::BITCOMET_PAD;
pub use layers::PieceLayers;
pub use names::{Characters, NameRules};
pub use urls::is_web_seed;
pub use written::written_paths;

/// A `.torrent` file: a content, and where to look for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metainfo {
    /// What the content is.
    pub info: Arc<Info>,
    /// Tracker URLs in tiers (BEP 12); no tier is empty.
    pub trackers: Vec<Vec<String>>,
    /// HTTP servers that have the files (BEP 19, "url-list").
    pub web_seeds: Vec<String>,
    /// HTTP servers that speak BEP 17 ("httpseeds").
    pub http_seeds: Vec<String>,
    /// DHT nodes, host and port (BEP 5, "nodes").
    pub nodes: Vec<(String, u16)>,
    /// Free text.
    pub comment: Option<String>,
    /// The program that made the torrent.
    pub created_by: Option<String>,
    /// When it was made.
    pub creation_date: Option<SystemTime>,
    /// Hashes a piece of v2 files, proven against their roots (BEP 52). Files may be missing: peers have the rest.
    pub piece_layers: PieceLayers,
}

impl Metainfo {
    /// A torrent of `info` and nothing else.
    pub fn new(info: Arc<Info>) -> Self {
        Self {
            info,
            trackers: Vec::new(),
            web_seeds: Vec::new(),
            http_seeds: Vec::new(),
            nodes: Vec::new(),
            comment: None,
            created_by: None,
            creation_date: None,
            piece_layers: PieceLayers::new(),
        }
    }

    /// Reads a `.torrent` file. Bytes after it are ignored: some makers end the file with a line end. Names are made safe for
    /// every file system.
    pub fn parse(bytes: &[u8]) -> Result<Self, MetainfoError> {
        Self::parse_for(bytes, &NameRules::PORTABLE)
    }

    /// As [`Metainfo::parse`], with names for a file system of these rules.
    pub fn parse_for(bytes: &[u8], rules: &NameRules) -> Result<Self, MetainfoError> {
        let limits = Limits { bytes: limits::METAINFO_BYTES_MAX, ..Limits::default() };
        let (tree, _end) = bencode::parse_prefix(bytes, &limits)?;
        let root = tree.root();
        if !root.is_dict() {
            return Err(MetainfoError::Invalid("torrent", "a dictionary"));
        }
        if let Some(finding) = root.findings().find(|finding| finding.kind == FindingKind::DuplicateKey) {
            return Err(MetainfoError::NotCanonical(finding));
        }
        let info = info_dict::from_value(root.get("info").ok_or(MetainfoError::Missing("info"))?, rules)?;
        let piece_layers = match root.get("piece layers") {
            Some(layers) if info.version.is_v2() => layers::parse(layers, &info)?,
            _ => PieceLayers::new(),
        };
        let seconds = root.get("creation date").and_then(|date| date.as_uint());
        Ok(Self {
            info: Arc::new(info),
            trackers: urls::trackers(root),
            web_seeds: urls::web_seeds(root, "url-list"),
            http_seeds: urls::web_seeds(root, "httpseeds"),
            nodes: urls::nodes(root),
            comment: text(root, ["comment.utf-8", "comment"]),
            created_by: text(root, ["created by.utf-8", "created by"]),
            creation_date: seconds.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds))),
            piece_layers,
        })
    }

    /// The bytes of the `.torrent` file. The info dictionary goes out as it came in, so the info-hashes stay.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = DictBuilder::new();
        out.raw("info", &self.info.source);
        if let Some(first) = self.trackers.first().and_then(|tier| tier.first()) {
            out.bytes("announce", first);
        }
        if self.trackers.iter().map(Vec::len).sum::<usize>() > 1 {
            let mut tiers = ListBuilder::new();
            self.trackers.iter().for_each(|tier| {
                tiers.list(&strings(tier));
            });
            out.list("announce-list", &tiers);
        }
        for (key, urls) in [("url-list", &self.web_seeds), ("httpseeds", &self.http_seeds)] {
            if !urls.is_empty() {
                out.list(key, &strings(urls));
            }
        }
        if !self.nodes.is_empty() {
            let mut nodes = ListBuilder::new();
            self.nodes.iter().for_each(|(host, port)| {
                nodes.list(ListBuilder::new().bytes(host).int(*port));
            });
            out.list("nodes", &nodes);
        }
        for (key, value) in [("comment", &self.comment), ("created by", &self.created_by)] {
            if let Some(value) = value {
                out.bytes(key, value);
            }
        }
        let seconds = self.creation_date.and_then(|date| date.duration_since(UNIX_EPOCH).ok());
        if let Some(seconds) = seconds.and_then(|since| i64::try_from(since.as_secs()).ok()) {
            out.int("creation date", seconds);
        }
        if self.info.version.is_v2() {
            let mut layers = DictBuilder::new();
            for (root, layer) in &self.piece_layers {
                layers.bytes(root, layer.as_flattened());
            }
            out.dict("piece layers", &layers);
        }
        out.encode()
    }

    /// The magnet link: info-hashes, name, and as many trackers and web seeds as fit.
    pub fn magnet(&self) -> Magnet {
        // Percent-encoding can triple what it encodes.
        let mut room = MAGNET_BYTES_MAX / 4;
        let mut fits = |url: &&String| {
            let left = room.checked_sub(url.len());
            room = left.unwrap_or(room);
            left.is_some()
        };
        let trackers = self.trackers.iter().flatten().filter(&mut fits).cloned().collect();
        let web_seeds = self.web_seeds.iter().filter(&mut fits).cloned().collect();
        Magnet {
            hashes: self.info.hashes,
            name: Some(self.info.name.clone()),
            trackers,
            web_seeds,
            peers: Vec::new(),
            select_only: Vec::new(),
        }
    }
}

/// The first of `keys` that is a string with something in it.
fn text(root: Value<'_>, keys: [&str; 2]) -> Option<String> {
    let texts = keys.into_iter().filter_map(|key| root.get(key)?.as_bytes());
    texts.map(|raw| String::from_utf8_lossy(raw).into_owned()).find(|text| !text.is_empty())
}

fn strings(items: &[String]) -> ListBuilder {
    let mut list = ListBuilder::new();
    items.iter().for_each(|item| {
        list.bytes(item);
    });
    list
}
