//! A transfer about to happen: content, a torrent of it, a tracker, and folders for those who fetch.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::peers::{anabranch, libtorrent};
use crate::tracker::Tracker;
use crate::{Error, Result, data};

/// Bytes of the single file: some pieces and an odd rest.
const SINGLE_LEN: u64 = 5_000_003;
/// Small, so that small contents have many pieces.
pub const PIECE_LENGTH: u32 = 64 * 1024;
/// How long a transfer of such a content may take, on a machine that does other things too.
pub const TRANSFER_LIMIT: Duration = Duration::from_secs(90);

/// What is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// One file.
    Single,
    /// Many: odd sizes, empty, nested ([`data::make_odd_tree`]).
    Tree,
    /// One file of this many bytes.
    Bytes(u64),
}

/// Who makes the torrent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// `anabranch create`.
    Ours,
    /// libtorrent.
    Libtorrent,
}

/// Content, torrent and tracker.
pub struct Fixture {
    /// Hands out what the test tells it to; the torrent names it.
    pub tracker: Tracker,
    /// The folder that holds the content.
    pub data: PathBuf,
    /// The content itself.
    pub content: PathBuf,
    /// The torrent.
    pub torrent: PathBuf,
    /// Its magnet link.
    pub magnet: String,
    /// Its v1 info-hash in hexadecimal, where it has one.
    pub hash_v1: Option<String>,
    /// Number of pieces.
    pub pieces: u32,
    folder: TempDir,
}

impl Fixture {
    /// Makes it all. `version` is `1`, `2` or `hybrid`; `tracker` overrides the announce URL.
    ///
    /// # Errors
    /// When a program is missing or a file cannot be written.
    pub fn new(content: Content, version: &str, maker: Maker, announce: Option<&str>) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(Error::system("making a folder"))?;
        let data = folder.path().join("have");
        let path = data.join("content äöü");
        match content {
            Content::Single => data::make_file(&path, SINGLE_LEN, 42)?,
            Content::Bytes(len) => data::make_file(&path, len, 43)?,
            Content::Tree => data::make_odd_tree(&path, 44)?,
        }
        let tracker = Tracker::start()?;
        let torrent = folder.path().join("content.torrent");
        let urls = [announce.map_or_else(|| tracker.url(), str::to_owned)];
        match maker {
            Maker::Ours => anabranch::create(&path, &torrent, version, PIECE_LENGTH, &urls).map(|_| ())?,
            Maker::Libtorrent => libtorrent::create(&path, &torrent, version, PIECE_LENGTH, &urls).map(|_| ())?,
        }
        let info = libtorrent::info(&torrent)?;
        let text = |field: &str| info[field].as_str().map(str::to_owned);
        let pieces = info["pieces"].as_u64().unwrap_or(0) as u32;
        let magnet = text("magnet").unwrap_or_default();
        Ok(Self { tracker, data, content: path, torrent, magnet, hash_v1: text("v1"), pieces, folder })
    }

    /// A new folder beside the content.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(&path).map_err(Error::file(&path))?;
        Ok(path)
    }

    /// The torrent as an argument.
    pub fn source(&self) -> String {
        self.torrent.display().to_string()
    }

    /// The v1 info-hash as bytes.
    ///
    /// # Errors
    /// When the torrent has none.
    pub fn info_hash(&self) -> Result<[u8; 20]> {
        digest_from_hex(self.hash_v1.as_deref().unwrap_or_default())
    }

    /// What handshakes, trackers and nodes name it by: the v1 info-hash, or the beginning of the other one (BEP 52).
    ///
    /// # Errors
    /// When its link has neither.
    pub fn wire_hash(&self) -> Result<[u8; 20]> {
        let v2 = self.magnet.split_once("urn:btmh:1220").and_then(|(_, rest)| rest.get(..40));
        digest_from_hex(self.hash_v1.as_deref().or(v2).unwrap_or_default())
    }

    /// Compares what arrived in `out` with the content, byte for byte.
    ///
    /// # Errors
    /// When it differs, with the first file that does.
    pub fn check(&self, out: &Path) -> Result<()> {
        self.compare(out, data::digests(&self.content)?)
    }

    /// As [`Self::check`], for transmission: version 3.00 makes no empty files.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_but_empty(&self, out: &Path) -> Result<()> {
        let mut wanted = data::digests(&self.content)?;
        if self.content.is_dir() {
            wanted.retain(|path, _| std::fs::metadata(self.content.join(path)).is_ok_and(|meta| meta.len() > 0));
        }
        self.compare(out, wanted)
    }

    fn compare(&self, out: &Path, wanted: data::Digests) -> Result<()> {
        let name = self.content.file_name().unwrap_or_default();
        match data::difference(&wanted, &data::digests(&out.join(name))?) {
            None => Ok(()),
            Some(what) => Err(Error::Nonsense { name: "the transfer".into(), what }),
        }
    }
}

/// A SHA-1 digest from its forty digits.
///
/// # Errors
/// When they are not forty hexadecimal digits.
pub fn digest_from_hex(hex: &str) -> Result<[u8; 20]> {
    let mut bytes = [0; 20];
    for (at, byte) in bytes.iter_mut().enumerate() {
        let digits = hex.get(2 * at..2 * at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        *byte = digits.ok_or_else(|| Error::Nonsense { name: "a digest".into(), what: format!("{hex:?}") })?;
    }
    Ok(bytes)
}
