//! What is served: a content and its files, as players see them.

use std::collections::BTreeSet;

use super::names::url_encoded;
use crate::events::ContentId;

/// A content that is served.
#[derive(Clone, Debug)]
pub struct Show {
    /// Which it is in the session.
    pub id: ContentId,
    /// Its name, for people.
    pub name: String,
    /// What it is, in hex: files are told apart from those of other contents by that.
    pub hash: String,
    /// Its files.
    pub files: Vec<ShownFile>,
    /// Those that are fetched already, by their index in the file list. Others are as soon as somebody asks for them.
    pub wanted: BTreeSet<usize>,
    /// It is a live stream: its one file has no length, and is served from the newest on.
    pub is_live: bool,
}

/// A file that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownFile {
    /// Its index in the file list.
    pub index: usize,
    /// Its number in URLs.
    pub number: u32,
    /// Its path in the content, for people.
    pub path: String,
    /// Its name.
    pub name: String,
    /// Bytes.
    pub length: u64,
}

impl ShownFile {
    /// Where it is, below the server's root.
    pub fn target(&self) -> String {
        format!("/{}/{}", self.number, url_encoded(&self.name))
    }
}
