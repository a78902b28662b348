//! The v1 file list: `length` or `files` (BEP 3, BEP 47).

use super::draft::{Attributes, DraftList, append};
use super::error::MetainfoError;
use super::limits::PATH_DEPTH_MAX;
use super::names::NameRules;
use crate::bencode::Value;

/// Folder of pads without a path.
const PATHLESS_PAD: &str = ".pad";

/// BitComet marks its pad files by name only.
pub(crate) const BITCOMET_PAD: &str = "_____padding_file_";

/// The one file of a torrent without `files`; `name` is its raw name.
pub(super) fn single_file(info: Value<'_>, name: &[u8], rules: &NameRules) -> Result<DraftList, MetainfoError> {
    let path = rules.sanitize(name).ok_or(MetainfoError::Invalid("name", "usable as a file name"))?;
    let attributes = Attributes::of(info, &path, rules)?;
    let length = attributes.length(info, &path)?;
    let mut list = DraftList::default();
    list.push(attributes.into_draft(path, length, None))?;
    Ok(list)
}

/// The entries of `files`, below the folder `root`.
pub(super) fn file_list(files: Value<'_>, root: &str, rules: &NameRules) -> Result<DraftList, MetainfoError> {
    let mut list = DraftList::default();
    let files = files.as_list().ok_or(MetainfoError::Invalid("files", "a list"))?;
    for (index, file) in files.enumerate() {
        if !file.is_dict() {
            return Err(MetainfoError::File { index, key: "files", problem: "not a dictionary" });
        }
        let path = file_path(file, root, index, rules)?;
        let mut attributes = Attributes::of(file, path.as_deref().unwrap_or(PATHLESS_PAD), rules)?;
        let path = match path {
            Some(path) => path,
            // Pads need no path; libtorrent names them so.
            None if attributes.pad => format!("{PATHLESS_PAD}/{}", attributes.length(file, PATHLESS_PAD)?),
            None => return Err(MetainfoError::File { index, key: "path", problem: "missing" }),
        };
        attributes.pad |= path.contains(BITCOMET_PAD);
        let length = attributes.length(file, &path)?;
        list.push(attributes.into_draft(path, length, None))?;
    }
    Ok(list)
}

fn file_path(file: Value<'_>, root: &str, index: usize, rules: &NameRules) -> Result<Option<String>, MetainfoError> {
    // `path.utf-8` is there where `path` is in some older encoding.
    let list = file.get("path.utf-8").filter(|path| path.is_list()).or_else(|| file.get("path"));
    let Some(components) = list.and_then(|path| path.as_list()) else { return Ok(None) };
    let mut path = root.to_owned();
    let mut depth = 0;
    for component in components {
        let error = |problem| MetainfoError::File { index, key: "path", problem };
        let raw = component.as_bytes().ok_or(error("not a list of strings"))?;
        depth += 1;
        if depth > PATH_DEPTH_MAX {
            return Err(error("too deep"));
        }
        append(&mut path, &rules.sanitize_or_underscore(raw));
    }
    Ok((depth > 0).then_some(path))
}
