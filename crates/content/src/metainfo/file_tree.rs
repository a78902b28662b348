//! The v2 file tree (BEP 52, "file tree"), flattened into piece space.

use super::draft::{Attributes, Draft, DraftList, append};
use super::error::MetainfoError;
use super::limits::PATH_DEPTH_MAX;
use super::names::NameRules;
use crate::bencode::Value;
use crate::info::Sha256Digest;

/// The files below the folder `root`, each followed by the padding that aligns the next one; and whether `root` is
/// there at all. A tree of one file has none (BEP 52, "Interpreting paths"), unless `rooted` says so.
pub(super) fn file_tree(
    tree: Value<'_>,
    root: &str,
    rooted: bool,
    piece_length: u64,
    rules: &NameRules,
) -> Result<(DraftList, bool), MetainfoError> {
    let entries: Vec<_> = tree.as_dict().ok_or(MetainfoError::Invalid("file tree", "a dictionary"))?.take(2).collect();
    let rooted = rooted || !matches!(entries[..], [(_, value)] if leaf(value).is_some());
    let path = if rooted { root.to_owned() } else { String::new() };
    let mut walk = Walk { list: DraftList::default(), path, pad_root: root, piece_length, rules };
    walk.folder(tree, 1)?;
    Ok((walk.list, rooted))
}

struct Walk<'r> {
    list: DraftList,
    /// Where the walk is. Only files get a copy, so that folders without files cost no more than their names.
    path: String,
    pad_root: &'r str,
    piece_length: u64,
    rules: &'r NameRules,
}

impl Walk<'_> {
    /// Recurses at most [`PATH_DEPTH_MAX`] deep.
    fn folder(&mut self, folder: Value<'_>, depth: usize) -> Result<(), MetainfoError> {
        if depth > PATH_DEPTH_MAX {
            return Err(self.problem("too deep"));
        }
        let entries = folder.as_dict().ok_or_else(|| self.problem("that is neither a file nor a folder"))?;
        for (name, entry) in entries {
            // A file's properties stand under an empty name, alone (BEP 52, "length").
            if name.is_empty() {
                return Err(self.problem("with an empty name"));
            }
            let parent = self.path.len();
            append(&mut self.path, &self.rules.sanitize_or_underscore(name));
            match leaf(entry) {
                Some(file) => self.file(file, self.path.clone())?,
                None => self.folder(entry, depth + 1)?,
            }
            self.path.truncate(parent);
        }
        Ok(())
    }

    fn problem(&self, problem: &'static str) -> MetainfoError {
        MetainfoError::FileTree { path: self.path.clone(), problem }
    }

    fn file(&mut self, file: Value<'_>, path: String) -> Result<(), MetainfoError> {
        if !file.is_dict() {
            return Err(MetainfoError::FileTree { path, problem: "whose properties are not a dictionary" });
        }
        let attributes = Attributes::of(file, &path, self.rules)?;
        if attributes.pad {
            // Files are aligned as they are, so a pad here would be content that nobody has.
            return Err(MetainfoError::FileTree { path, problem: "that is a pad file" });
        }
        let length = attributes.length(file, &path)?;
        let root = if length > 0 { Some(pieces_root(file, &path)?) } else { None };
        self.list.push(attributes.into_draft(path, length, root))?;
        // BEP 52: "each non-empty file is aligned to a piece boundary". libtorrent, too, pads after the last file.
        match self.list.total % self.piece_length {
            0 => Ok(()),
            over => {
                let length = self.piece_length - over;
                self.list.push(Draft::pad(format!("{}/.pad/{length}", self.pad_root), length))
            }
        }
    }
}

/// The properties, where `entry` is a file: a dictionary with one, empty key.
fn leaf<'t>(entry: Value<'t>) -> Option<Value<'t>> {
    let mut entries = entry.as_dict()?;
    let (name, properties) = entries.next()?;
    (name.is_empty() && entries.next().is_none()).then_some(properties)
}

fn pieces_root(file: Value<'_>, path: &str) -> Result<Sha256Digest, MetainfoError> {
    let root = file.get("pieces root").and_then(|root| root.as_bytes()).and_then(|root| root.try_into().ok());
    root.filter(|root| *root != [0; 32])
        .ok_or_else(|| MetainfoError::FileTree { path: path.to_owned(), problem: "without a `pieces root`" })
}
