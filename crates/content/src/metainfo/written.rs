//! Names as a torrent has them, before they are made safe: to be shown beside what became of them.

use super::limits::METAINFO_BYTES_MAX;
use crate::bencode::{self, Limits, Value};
use crate::info::{FileKind, Info};

/// The path of every entry of `info` but pads, in their order, as the torrent's bytes have it. `/` stands between components, and a
/// replacement character for what is not UTF-8; nothing is made safe.
pub fn written_paths(info: &Info) -> Vec<String> {
    let limits = Limits { bytes: METAINFO_BYTES_MAX, ..Limits::default() };
    let Ok(tree) = bencode::parse(&info.source, &limits) else { return Vec::new() };
    let root = tree.root();
    let name = root.get("name.utf-8").and_then(|name| name.as_bytes()).or_else(|| root.get("name")?.as_bytes());
    let name = String::from_utf8_lossy(name.unwrap_or_default()).into_owned();
    let mut paths = Vec::new();
    if info.version.is_v2() {
        let mut at = if info.multi_file { vec![name] } else { Vec::new() };
        root.get("file tree").into_iter().for_each(|tree| walk(tree, &mut at, &mut paths));
        return paths;
    }
    let Some(files) = root.get("files").and_then(|files| files.as_list()) else { return vec![name] };
    for (file, _) in files.zip(&info.files).filter(|(_, entry)| entry.kind != FileKind::Pad) {
        let list = file.get("path.utf-8").filter(|path| path.is_list()).or_else(|| file.get("path"));
        let components = list.and_then(|path| path.as_list()).into_iter().flatten();
        let mut path = name.clone();
        for component in components {
            path.push('/');
            path.push_str(&String::from_utf8_lossy(component.as_bytes().unwrap_or_default()));
        }
        paths.push(path);
    }
    paths
}

/// Recurses as deep as the tree is, which was bounded when the torrent was read.
fn walk(folder: Value<'_>, at: &mut Vec<String>, paths: &mut Vec<String>) {
    for (name, entry) in folder.as_dict().into_iter().flatten() {
        at.push(String::from_utf8_lossy(name).into_owned());
        let is_file = entry.as_dict().is_some_and(|mut keys| keys.next().is_some_and(|(key, _)| key.is_empty()));
        if is_file {
            paths.push(at.join("/"))
        } else {
            walk(entry, at, paths)
        }
        at.pop();
    }
}
