//! What a torrent says of itself, kept so that lists need not read its file.

use std::path::Path;
use std::time::UNIX_EPOCH;

use anabranch_content::info::Info;
use anabranch_content::magnet::Magnet;
use anabranch_content::metainfo::Metainfo;
use serde_json::{Value, json};

/// What a torrent says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct About {
    /// Its trackers, in tiers.
    pub trackers: Vec<Vec<String>>,
    /// HTTP servers that have its files.
    pub web_seeds: Vec<String>,
    /// Free text.
    pub comment: String,
    /// The program that made it.
    pub created_by: String,
    /// When that was, in seconds since 1970.
    pub created: Option<u64>,
    /// Only its own trackers may be used to find peers (BEP 27).
    pub private: bool,
    /// Bytes of a piece.
    pub piece_len: u64,
    /// How many pieces there are.
    pub pieces: u32,
    /// Bytes of all files.
    pub size: u64,
    /// The file, or the folder above its files.
    pub root: String,
    /// Whether that is a folder.
    pub is_folder: bool,
}

impl About {
    /// What a torrent says.
    pub(crate) fn of(metainfo: &Metainfo) -> Self {
        let created = metainfo.creation_date.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Self {
            trackers: metainfo.trackers.clone(),
            web_seeds: metainfo.web_seeds.clone(),
            comment: metainfo.comment.clone().unwrap_or_default(),
            created_by: metainfo.created_by.clone().unwrap_or_default(),
            created: created.map(|since| since.as_secs()),
            ..Self::of_info(&metainfo.info)
        }
    }

    /// What is known of a content that has no torrent, or whose link says the rest.
    pub(crate) fn of_info(info: &Info) -> Self {
        let first = info.regular_files().next().map(|(_, file)| file.path.as_path());
        let mut parts = first.unwrap_or(Path::new(&info.name)).iter();
        let root = parts.next().map(|part| part.to_string_lossy().into_owned());
        Self {
            private: info.private,
            piece_len: u64::from(info.geometry.piece_length()),
            pieces: info.geometry.piece_count(),
            size: info.content_size(),
            root: root.unwrap_or_default(),
            is_folder: parts.next().is_some(),
            ..Self::default()
        }
    }

    /// With what a magnet link says beside.
    pub(crate) fn with_link(self, magnet: &Magnet) -> Self {
        let trackers = magnet.trackers.iter().map(|url| vec![url.clone()]).collect();
        Self { trackers, web_seeds: magnet.web_seeds.clone(), ..self }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "trackers": self.trackers,
            "web_seeds": self.web_seeds,
            "comment": self.comment,
            "created_by": self.created_by,
            "created": self.created,
            "private": self.private,
            "piece_len": self.piece_len,
            "pieces": self.pieces,
            "size": self.size,
            "root": self.root,
            "is_folder": self.is_folder,
        })
    }

    /// `None` where it was not written by us.
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let texts = |value: &Value| -> Option<Vec<String>> {
            value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
        };
        Some(Self {
            trackers: value["trackers"].as_array()?.iter().map(texts).collect::<Option<_>>()?,
            web_seeds: texts(&value["web_seeds"])?,
            comment: text("comment")?,
            created_by: text("created_by")?,
            created: value["created"].as_u64(),
            private: value["private"].as_bool()?,
            piece_len: value["piece_len"].as_u64()?,
            pieces: u32::try_from(value["pieces"].as_u64()?).ok()?,
            size: value["size"].as_u64()?,
            root: text("root")?,
            is_folder: value["is_folder"].as_bool()?,
        })
    }
}
