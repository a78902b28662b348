//! Where every file lies in piece space, and the dictionaries that say so.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use super::scan::{Extent, Plan};
use super::walk::{Entry, EntryKind};
use super::{CreateError, CreateOptions, PIECES_MAX};
use crate::bencode::{DictBuilder, ListBuilder};
use crate::geometry::BLOCK_LEN;
use crate::info::{Sha1Digest, Sha256Digest, Version};
use crate::merkle;

/// Where every file lies in piece space.
pub(super) struct Layout {
    pub entries: Vec<Entry>,
    pub multi_file: bool,
    /// Zeros after the file of the same position (BEP 47).
    pub pads: Vec<u64>,
    pub plan: Plan,
    /// The entry of each extent of the plan.
    pub extent_entries: Vec<usize>,
}

/// Everything that was hashed.
pub(super) struct Hashes {
    pub pieces: Vec<Sha1Digest>,
    /// Of every entry: its piece layer; empty for links and empty files.
    pub layers: Vec<Vec<Sha256Digest>>,
}

/// A folder of BEP 52's file tree, or a file: then `file` is what stands under its empty key.
#[derive(Default)]
struct Node<'a> {
    below: BTreeMap<&'a str, Node<'a>>,
    file: Option<DictBuilder>,
}

impl Layout {
    pub(super) fn new(
        entries: Vec<Entry>,
        multi_file: bool,
        version: Version,
        piece_length: u32,
    ) -> Result<Self, CreateError> {
        let align = version != Version::V1 && entries.len() > 1;
        let (mut pads, mut extents, mut extent_entries) = (Vec::new(), Vec::new(), Vec::new());
        let mut offset = 0;
        for (index, entry) in entries.iter().enumerate() {
            let length = entry.length();
            if length > 0 {
                extents.push(Extent { offset, length, path: entry.path.clone() });
                extent_entries.push(index);
            }
            offset += length;
            // The last file is padded too, as BEP 52's reference creator and libtorrent do, unless it is the only one.
            let pad = offset.next_multiple_of(piece_length.into()) - offset;
            pads.push(if align { pad } else { 0 });
            offset += pads[index];
            // Asked after every file, so that the sum cannot overflow however long sparse files claim to be (one at most 2^44 bytes).
            if offset.div_ceil(piece_length.into()) > PIECES_MAX {
                return Err(CreateError::TooManyPieces { piece_length });
            }
        }
        let plan = Plan {
            extents,
            piece_length,
            total: offset,
            pieces: (0..offset.div_ceil(piece_length.into()) as u32).collect(),
            sha1: version.is_v1(),
            sha256: version.is_v2(),
        };
        Ok(Self { entries, multi_file, pads, plan, extent_entries })
    }

    /// The info dictionary.
    pub(super) fn info(&self, name: &str, hashes: &Hashes, options: &CreateOptions) -> Vec<u8> {
        let mut info = DictBuilder::new();
        info.bytes("name", name).int("piece length", self.plan.piece_length);
        if options.private {
            info.int("private", 1);
        }
        if let Some(source) = &options.source {
            info.bytes("source", source);
        }
        if self.plan.sha256 {
            info.int("meta version", 2).dict("file tree", &self.file_tree(hashes, options.times));
        }
        if self.plan.sha1 {
            info.bytes("pieces", hashes.pieces.as_flattened());
            if self.multi_file {
                info.list("files", &self.file_list(options.times));
            } else {
                put_length(&mut info, self.entries[0].length());
                put_attributes(&mut info, &self.entries[0], options.times);
            }
        }
        info.encode()
    }

    /// BEP 3 "files", with BEP 47 padding.
    fn file_list(&self, times: bool) -> ListBuilder {
        let mut files = ListBuilder::new();
        for (entry, pad) in self.entries.iter().zip(&self.pads) {
            let mut file = DictBuilder::new();
            file.list("path", &texts(&entry.components));
            put_length(&mut file, entry.length());
            put_attributes(&mut file, entry, times);
            files.dict(&file);
            if *pad > 0 {
                // BEP 47: "The recommended path is [".pad", "N"]".
                let path = texts(&[".pad".to_owned(), pad.to_string()]);
                let mut file = DictBuilder::new();
                put_length(file.bytes("attr", "p").list("path", &path), *pad);
                files.dict(&file);
            }
        }
        files
    }

    /// BEP 52 "file tree".
    fn file_tree(&self, hashes: &Hashes, times: bool) -> DictBuilder {
        let mut tree = Node::default();
        for (entry, layer) in self.entries.iter().zip(&hashes.layers) {
            let mut file = DictBuilder::new();
            put_attributes(&mut file, entry, times);
            if let EntryKind::File { .. } = entry.kind {
                put_length(&mut file, entry.length());
            }
            if !layer.is_empty() {
                file.bytes("pieces root", self.root(layer));
            }
            let mut node = &mut tree;
            for component in &entry.components {
                node = node.below.entry(component).or_default();
            }
            node.file = Some(file);
        }
        tree.dict()
    }

    pub(super) fn root(&self, layer: &[Sha256Digest]) -> Sha256Digest {
        match layer {
            [root] => *root,
            _ => merkle::root_from_layer(layer, self.plan.piece_length / BLOCK_LEN),
        }
    }

    /// The whole file around the encoded info dictionary.
    pub(super) fn metainfo(&self, info: &[u8], hashes: &Hashes, options: &CreateOptions) -> Vec<u8> {
        let mut dict = DictBuilder::new();
        dict.raw("info", info);
        let tiers: Vec<&Vec<String>> = options.trackers.iter().filter(|tier| !tier.is_empty()).collect();
        if let Some(first) = tiers.first() {
            dict.bytes("announce", &first[0]);
        }
        if tiers.iter().map(|tier| tier.len()).sum::<usize>() > 1 {
            // BEP 12
            let mut list = ListBuilder::new();
            tiers.iter().for_each(|tier| _ = list.list(&texts(tier)));
            dict.list("announce-list", &list);
        }
        if !options.web_seeds.is_empty() {
            // BEP 19
            dict.list("url-list", &texts(&options.web_seeds));
        }
        if let Some(comment) = &options.comment {
            dict.bytes("comment", comment);
        }
        if let Some(created_by) = &options.created_by {
            dict.bytes("created by", created_by);
        }
        let since = options.creation_date.and_then(|date| date.duration_since(UNIX_EPOCH).ok());
        if let Some(seconds) = since.and_then(|since| i64::try_from(since.as_secs()).ok()) {
            dict.int("creation date", seconds);
        }
        if self.plan.sha256 {
            // BEP 52: one string "for each file in the file tree that is larger than the piece size".
            let mut layers = DictBuilder::new();
            for layer in hashes.layers.iter().filter(|layer| layer.len() > 1) {
                layers.bytes(self.root(layer), layer.as_flattened());
            }
            dict.dict("piece layers", &layers);
        }
        dict.encode()
    }
}

impl Node<'_> {
    /// Recurses as deep as the folders are, which [`walk`](super::walk) limits.
    fn dict(&self) -> DictBuilder {
        let mut dict = DictBuilder::new();
        if let Some(file) = &self.file {
            dict.dict("", file);
        }
        for (name, node) in &self.below {
            dict.dict(name, &node.dict());
        }
        dict
    }
}

fn texts(texts: &[String]) -> ListBuilder {
    let mut list = ListBuilder::new();
    texts.iter().for_each(|text| _ = list.bytes(text));
    list
}

/// BEP 3 "length".
fn put_length(dict: &mut DictBuilder, length: u64) {
    // Cannot wrap: `Layout::new` let no more pass than `PIECES_MAX` pieces, which is 2^47 bytes at the most.
    dict.int("length", length as i64);
}

/// BEP 47 "attr" and "symlink path"; and libtorrent's "mtime", in seconds since 1970.
fn put_attributes(dict: &mut DictBuilder, entry: &Entry, times: bool) {
    match &entry.kind {
        EntryKind::File { stamp, executable } => {
            if *executable {
                dict.bytes("attr", "x");
            }
            if times && stamp.modified_seconds() > 0 {
                dict.int("mtime", stamp.modified_seconds());
            }
        }
        EntryKind::Symlink { target } => _ = dict.bytes("attr", "l").list("symlink path", &texts(target)),
    }
}
