//! The v2 file tree (BEP 52, "file tree"), flattened into piece space.

use super::draft::{Attributes, Draft, DraftList, append};
use super::error::MetainfoError;
use super::limits::PATH_DEPTH_MAX;
use super::names::sanitize_or_underscore;
use crate::bencode::Value;
use crate::info::Sha256Digest;

/// The files below the folder `root`, each followed by the padding that aligns the next one; and whether `root` is
/// there at all. A tree of one file has none (BEP 52, "Interpreting paths"), unless `rooted` says so.
pub fn file_tree(
    tree: Value<'_>,
    root: &str,
    rooted: bool,
    piece_length: u64,
) -> Result<(DraftList, bool), MetainfoError> {
    let entries: Vec<_> = tree.as_dict().ok_or(MetainfoError::Invalid("file tree", "a dictionary"))?.take(2).collect();
    let rooted = rooted || !matches!(entries[..], [(_, value)] if leaf(value).is_some());
    let mut walk = Walk { list: DraftList::default(), pad_root: root.to_owned(), piece_length };
    walk.folder(tree, if rooted { root } else { "" }, 1)?;
    Ok((walk.list, rooted))
}

struct Walk {
    list: DraftList,
    pad_root: String,
    piece_length: u64,
}

impl Walk {
    /// Recurses at most [`PATH_DEPTH_MAX`] deep.
    fn folder(&mut self, folder: Value<'_>, parent: &str, depth: usize) -> Result<(), MetainfoError> {
        let problem = |problem| Err(MetainfoError::FileTree { path: parent.to_owned(), problem });
        if depth > PATH_DEPTH_MAX {
            return problem("too deep");
        }
        let Some(entries) = folder.as_dict() else { return problem("that is neither a file nor a folder") };
        for (name, entry) in entries {
            // A file's properties stand under an empty name, alone (BEP 52, "length").
            if name.is_empty() {
                return problem("with an empty name");
            }
            let mut path = parent.to_owned();
            append(&mut path, &sanitize_or_underscore(name));
            match leaf(entry) {
                Some(file) => self.file(file, path)?,
                None => self.folder(entry, &path, depth + 1)?,
            }
        }
        Ok(())
    }

    fn file(&mut self, file: Value<'_>, path: String) -> Result<(), MetainfoError> {
        if !file.is_dict() {
            return Err(MetainfoError::FileTree { path, problem: "whose properties are not a dictionary" });
        }
        let attributes = Attributes::of(file, &path)?;
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
