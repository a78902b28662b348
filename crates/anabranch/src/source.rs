//! SOURCE as users write it: a .torrent file, a magnet link or a link of PPSPP.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anabranch_content::hex;
use anabranch_content::info::InfoHashes;
use anabranch_content::magnet::Magnet;
use anabranch_content::metainfo::{Metainfo, NameRules, is_web_seed, limits::METAINFO_BYTES_MAX};
use anabranch_ppspp::link::{Link, LinkError};

use crate::exit::Failure;

/// A content as a user named it.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A torrent file.
    Torrent(Box<Metainfo>),
    /// A magnet link.
    Magnet(Box<Magnet>),
    /// A link of PPSPP.
    Ppspp(Box<Link>),
}

impl Source {
    /// What it calls the content, or else its info-hash.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Torrent(metainfo) => metainfo.info.name.clone(),
            Self::Magnet(magnet) => magnet.name.clone().unwrap_or_else(|| hash_name(&magnet.hashes)),
            Self::Ppspp(link) => link.name.clone().unwrap_or_else(|| self.id()),
        }
    }

    /// What names the content in events: its info-hash, or its swarm's identifier.
    pub(crate) fn id(&self) -> String {
        match self {
            Self::Torrent(metainfo) => hash_name(&metainfo.info.hashes),
            Self::Magnet(magnet) => hash_name(&magnet.hashes),
            Self::Ppspp(link) => hex::encode(link.params.swarm_id()),
        }
    }

    /// The peers that it names.
    pub(crate) fn peers(&self) -> &[String] {
        match self {
            Self::Torrent(_) => &[],
            Self::Magnet(magnet) => &magnet.peers,
            Self::Ppspp(link) => &link.peers,
        }
    }

    /// The torrent that a session knows of the content, with what the source says beside: trackers and the like.
    pub(crate) fn complete(&self, found: Metainfo) -> Metainfo {
        match self {
            Self::Torrent(metainfo) => {
                let mut whole = (**metainfo).clone();
                whole.piece_layers = found.piece_layers;
                whole
            }
            Self::Magnet(magnet) => Metainfo {
                trackers: magnet.trackers.iter().map(|url| vec![url.clone()]).collect(),
                web_seeds: magnet.web_seeds.iter().filter(|url| is_web_seed(url)).cloned().collect(),
                ..found
            },
            // No torrent is of it.
            Self::Ppspp(_) => found,
        }
    }
}

impl From<Source> for anabranch_swarm::Source {
    fn from(source: Source) -> Self {
        match source {
            Source::Torrent(metainfo) => Self::Metainfo(metainfo),
            Source::Magnet(magnet) => Self::Magnet(magnet),
            Source::Ppspp(link) => Self::Ppspp(link),
        }
    }
}

/// Reads what a user named.
pub(crate) fn load(source: &OsStr) -> Result<Source, Failure> {
    if source.is_empty() {
        return Err(Failure::usage(
            "`` is no source: it is empty; give the path of a .torrent file, a magnet link or a link of PPSPP",
        ));
    }
    let text = source.to_str().unwrap_or_default();
    let begins = |prefix: &str| text.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix));
    if begins("magnet:") {
        let magnet = text.parse::<Magnet>().map_err(Failure::input)?;
        return Ok(Source::Magnet(Box::new(magnet)));
    }
    if let Some(link) = link(source)? {
        return Ok(Source::Ppspp(Box::new(link)));
    }
    if begins("http://") || begins("https://") {
        return Err(Failure::input(format!(
            "`{text}` is a web address: download the .torrent file first and give its path, or use a magnet link"
        )));
    }
    let path = Path::new(source);
    let metainfo = parse(path, &read(path, "a .torrent file or a magnet link")?)?;
    Ok(Source::Torrent(Box::new(metainfo)))
}

/// Reads a link of PPSPP, if it is one.
pub(crate) fn link(source: &OsStr) -> Result<Option<Link>, Failure> {
    let text = source.to_str().unwrap_or_default();
    let begins = |prefix: &str| text.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix));
    if !begins("ppspp:") && !begins("tswift:") {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error: LinkError| Failure::input(format!("{error}; copy it again, whole")))
}

/// Whether it is the link of a live stream.
pub(crate) fn is_live(link: &Link) -> bool {
    link.params.integrity().is_signed()
}

/// Reads a torrent file, where nothing else will do.
pub(crate) fn torrent(path: &Path) -> Result<Metainfo, Failure> {
    parse(path, &torrent_bytes(path)?)
}

/// The bytes of a torrent file, where nothing else will do.
pub(crate) fn torrent_bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    let text = path.to_str().unwrap_or_default();
    if text.get(..7).is_some_and(|head| head.eq_ignore_ascii_case("magnet:")) {
        return Err(Failure::input(
            "a magnet link has no hashes of pieces, by which content is checked: give the path of its .torrent file",
        ));
    }
    read(path, "a .torrent file")
}

/// Files have the names that the torrent gives them, as far as those are safe: see
/// [`naming`](anabranch_content::storage::naming).
fn parse(path: &Path, bytes: &[u8]) -> Result<Metainfo, Failure> {
    Metainfo::parse_for(bytes, &NameRules::EXACT).map_err(|error| {
        Failure::input(format!(
            "{} is not a torrent that can be used: {error}; get the file again from where it came",
            path.display()
        ))
    })
}

/// Reads the bytes of a torrent file; `wanted` is what else could have been given.
fn read(path: &Path, wanted: &str) -> Result<Vec<u8>, Failure> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| {
        let remedy = match error.kind() {
            std::io::ErrorKind::NotFound => format!("give the path of {wanted}"),
            std::io::ErrorKind::IsADirectory => format!("it is a folder; give {wanted}"),
            _ => "make it readable".to_owned(),
        };
        Failure::input(format!("cannot read {shown}: {error}; {remedy}"))
    };
    let mut bytes = Vec::new();
    let limit = METAINFO_BYTES_MAX as u64 + 1;
    File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.len() > METAINFO_BYTES_MAX {
        return Err(Failure::input(format!("{shown} is not a torrent: it has more than {METAINFO_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

/// The one hash that names a content in events: v1 where there is one.
pub(crate) fn hash_name(hashes: &InfoHashes) -> String {
    hashes.v1.map(|hash| hex::encode(&hash)).or(hashes.v2.map(|hash| hex::encode(&hash))).unwrap_or_default()
}
