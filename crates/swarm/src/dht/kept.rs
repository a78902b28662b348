//! The tables, from run to run: one file, which one program at a time keeps. Others that run meanwhile read it, and take other names.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anabranch_dht::Family;
use anabranch_dht::snapshot::{self, SNAPSHOT_LEN_MAX, Saved};

use crate::store::kept;

/// What is kept.
pub(super) struct SavedTables {
    file: Option<PathBuf>,
    /// Held as long as the file is ours to write.
    lock: Option<File>,
    saved: Vec<(Family, Saved)>,
}

impl SavedTables {
    pub(super) fn new(file: Option<PathBuf>) -> Self {
        Self { file, lock: None, saved: Vec::new() }
    }

    /// Reads what an earlier run kept. Without it, somebody else has to be asked, and that is all.
    pub(super) fn read(&mut self) {
        let Some(path) = &self.file else { return };
        self.lock = lock(path).ok();
        let Some(bytes) = kept::read(path, SNAPSHOT_LEN_MAX as u64) else { return };
        self.saved = snapshot::decode(&bytes).unwrap_or_default();
        if self.lock.is_none() {
            // Another program has these names now.
            self.saved.iter_mut().for_each(|(_, saved)| saved.id = None);
        }
    }

    /// What is kept of a network, once for each place that there was.
    pub(super) fn take(&mut self, family: Family) -> Option<Saved> {
        if let Some(at) = self.saved.iter().position(|(of, _)| *of == family) {
            let taken = self.saved.remove(at).1;
            // A further uplink begins from the same nodes, by another name.
            if !self.saved.iter().any(|(of, _)| *of == family) {
                self.saved.push((family, Saved { id: None, contacts: taken.contacts.clone() }));
            }
            return Some(taken);
        }
        None
    }

    /// A place is gone.
    pub(super) fn put_back(&mut self, family: Family, saved: Option<Saved>) {
        self.saved.retain(|(of, _)| *of != family);
        self.saved.extend(saved.map(|saved| (family, saved)));
    }

    /// Writes what there is now, if anything.
    pub(super) fn write(&mut self, places: &[(Family, Saved)]) {
        let (Some(path), Some(_)) = (&self.file, &self.lock) else { return };
        if places.iter().any(|(_, saved)| !saved.contacts.is_empty()) {
            // Without it the next run has to ask somebody else.
            let _ = kept::write(path, &snapshot::encode(places));
        }
    }
}

/// The right to write `path`, which ends with the file that is answered.
fn lock(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let lock = File::options().create(true).append(true).open(path.with_extension("lock"))?;
    lock.try_lock()?;
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_dht::{Contact, NodeId};

    fn saved(id: u8) -> Saved {
        let contact = Contact { id: NodeId([9; 20]), address: "192.0.2.1:6881".parse().unwrap() };
        Saved { id: Some(NodeId([id; 20])), contacts: vec![contact] }
    }

    #[test]
    fn one_program_keeps_it_and_others_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("below/dht-nodes");
        let mut first = SavedTables::new(Some(path.clone()));
        first.read();
        assert_eq!(first.take(Family::V4), None);
        first.write(&[(Family::V4, saved(1))]);
        let mut second = SavedTables::new(Some(path.clone()));
        second.read();
        assert_eq!(second.take(Family::V4), Some(Saved { id: None, ..saved(1) }));
        second.write(&[(Family::V4, saved(2))]);
        drop(first);
        let mut third = SavedTables::new(Some(path.clone()));
        third.read();
        assert_eq!(third.take(Family::V4), Some(saved(1)));
        assert_eq!(third.take(Family::V4), Some(Saved { id: None, ..saved(1) }), "for a further uplink");
        assert_eq!(third.take(Family::V6), None);
        third.put_back(Family::V4, Some(saved(3)));
        assert_eq!(third.take(Family::V4), Some(saved(3)));
        // Empty tables do not take the place of full ones, and rubbish is no table.
        third.write(&[(Family::V4, Saved::default())]);
        assert!(!snapshot::decode(&fs::read(&path).unwrap()).unwrap()[0].1.contacts.is_empty());
        drop(third);
        fs::write(&path, "rubbish").unwrap();
        let mut fourth = SavedTables::new(Some(path));
        fourth.read();
        assert_eq!(fourth.take(Family::V4), None);
    }

    #[test]
    fn nothing_is_kept_where_nobody_says_where() {
        let mut kept = SavedTables::new(None);
        kept.read();
        kept.write(&[(Family::V4, saved(1))]);
        assert_eq!(kept.take(Family::V4), None);
    }
}
