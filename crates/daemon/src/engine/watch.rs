//! Folders that are watched: torrent files and links that appear there are added.
//!
//! A file is taken when it has not grown between two looks, and then called `NAME.added`, or `NAME.refused` where it is nothing that can be
//! added, so that it is taken once, whatever ends the program.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::add::FETCH_BYTES_MAX;
use super::{Engine, NewContent, NewSource, Refusal};

/// Files of a folder that are taken in one look; the others in the next.
const TAKEN_MAX: usize = 50;
/// Files of a folder that are looked at.
const LOOKED_MAX: usize = 10_000;

/// What was seen of the files that are not taken yet: bytes and time of change.
type Growing = BTreeMap<PathBuf, (u64, Option<std::time::SystemTime>)>;

/// What is remembered from look to look.
#[derive(Default)]
pub(super) struct Watched {
    growing: Growing,
    /// Files that cannot be called otherwise: they were taken all the same.
    stuck: std::collections::BTreeSet<PathBuf>,
}

impl Engine {
    /// Takes what appeared in the watched folders.
    pub(super) async fn look_at_watched(&self) {
        let folders = self.with_settings(|settings| settings.watched.clone());
        if folders.is_empty() {
            return;
        }
        let mut watched = self.watched.lock().await;
        for (folder, dir) in folders {
            let before = std::mem::take(&mut watched.growing);
            let looked = tokio::task::spawn_blocking(move || look(&folder, before)).await;
            let Ok((growing, ready)) = looked else { continue };
            watched.growing.extend(growing);
            for path in ready {
                if watched.stuck.contains(&path) {
                    continue;
                }
                let (taken, path) = match tokio::task::spawn_blocking(move || (read(&path), path)).await {
                    Ok((Some(source), path)) => {
                        let new = NewContent { dir: dir.clone(), ..NewContent::new(source) };
                        (self.add(new).await.map(drop), path)
                    }
                    Ok((None, path)) => (Err(Refusal::Source("it cannot be read".into())), path),
                    Err(_) => continue,
                };
                let suffix = match taken {
                    Ok(()) | Err(Refusal::Duplicate(..)) => "added",
                    // What the disk or the library has no room for is tried again.
                    Err(Refusal::Store(_) | Refusal::Full | Refusal::Session(_)) => continue,
                    Err(_) => "refused",
                };
                let mut name = path.clone().into_os_string();
                name.push(format!(".{suffix}"));
                if std::fs::rename(&path, name).is_err() && watched.stuck.len() < LOOKED_MAX {
                    watched.stuck.insert(path);
                }
            }
        }
    }
}

/// Files that did not grow since the last look, and those that are to be looked at again. Blocks.
fn look(folder: &Path, before: Growing) -> (Growing, Vec<PathBuf>) {
    let (mut growing, mut ready) = (before, Vec::new());
    let Ok(entries) = std::fs::read_dir(folder) else { return (growing, ready) };
    let mut there = Growing::new();
    for entry in entries.take(LOOKED_MAX).flatten() {
        let path = entry.path();
        let is_meant = matches!(path.extension().and_then(OsStr::to_str), Some("torrent" | "magnet"));
        // No link is followed out of the folder.
        let Some(file) = entry.metadata().ok().filter(|file| is_meant && file.is_file()) else { continue };
        let seen = (file.len(), file.modified().ok());
        if growing.get(&path) == Some(&seen) && ready.len() < TAKEN_MAX {
            ready.push(path);
        } else {
            there.insert(path, seen);
        }
    }
    growing.retain(|path, _| path.parent() != Some(folder));
    growing.extend(there);
    (growing, ready)
}

/// Reads a torrent file, or the link in a file. Blocks.
fn read(path: &Path) -> Option<NewSource> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(FETCH_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).ok()?;
    if bytes.len() > FETCH_BYTES_MAX {
        return None;
    }
    match path.extension().and_then(OsStr::to_str) {
        Some("magnet") => Some(NewSource::Link(String::from_utf8(bytes).ok()?.trim().to_owned())),
        _ => Some(NewSource::Torrent(bytes)),
    }
}
