//! Entries that would be one file on disk get names of their own.
//!
//! Folders keep their names and may be shared; a file never takes the name of a folder or of another file, compared as
//! the [`NameRules`] do. Pads are never on disk and may share names.

use std::collections::HashMap;

use super::draft::Draft;
use super::error::MetainfoError;
use super::limits::RENAME_ATTEMPTS_MAX;
use super::names::NameRules;

/// Folders and files by (folder, name); work and memory are linear in the bytes of the paths.
#[derive(Default)]
pub(super) struct PathTree<T> {
    nodes: HashMap<(u32, Box<str>), Node<T>>,
    /// Parent and name of every folder; folder 0 is the download folder.
    folders: Vec<(u32, Box<str>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node<T> {
    Folder(u32),
    File(T),
}

impl<T: Copy> PathTree<T> {
    /// The folder of `name` in `parent`, made if need be; `None` where a file has that name.
    pub(super) fn folder(&mut self, parent: u32, name: &str) -> Option<u32> {
        if let Some(node) = self.get(parent, name) {
            return if let Node::Folder(folder) = node { Some(folder) } else { None };
        }
        self.folders.push((parent, name.into()));
        let folder = self.folders.len() as u32;
        self.nodes.insert((parent, name.into()), Node::Folder(folder));
        Some(folder)
    }

    /// Adds a file; `false` where the name is taken.
    pub(super) fn file(&mut self, parent: u32, name: &str, file: T) -> bool {
        let free = self.get(parent, name).is_none();
        if free {
            self.nodes.insert((parent, name.into()), Node::File(file));
        }
        free
    }

    pub(super) fn get(&self, parent: u32, name: &str) -> Option<Node<T>> {
        self.nodes.get(&(parent, name.into())).copied()
    }

    /// The path of a folder, with `/` between its components.
    pub(super) fn folder_path(&self, mut folder: u32) -> String {
        let mut names = Vec::new();
        while folder > 0 {
            let (parent, name) = &self.folders[folder as usize - 1];
            names.push(&**name);
            folder = *parent;
        }
        names.reverse();
        names.join("/")
    }
}

/// Makes the paths of all entries but pads unique.
pub(super) fn resolve(files: &mut [Draft], rules: &NameRules) -> Result<(), MetainfoError> {
    let mut tree = PathTree::default();
    // All folders first, so that no file takes the name of one that comes later.
    let mut parents = Vec::with_capacity(files.len());
    for file in files.iter().filter(|file| !file.is_pad()) {
        let mut parent = 0;
        for name in folders_of(&file.path) {
            // Only folders are in the tree so far.
            parent = tree.folder(parent, &rules.identity(name)).unwrap_or(parent);
        }
        parents.push(parent);
    }
    let mut attempts = 0;
    for (file, parent) in files.iter_mut().filter(|file| !file.is_pad()).zip(parents) {
        let name_at = file.path.rfind('/').map_or(0, |slash| slash + 1);
        let mut name = file.path[name_at..].to_owned();
        let mut number = 0;
        while !tree.file(parent, &rules.identity(&name), ()) {
            attempts += usize::from(number > 0);
            if attempts > RENAME_ATTEMPTS_MAX {
                return Err(MetainfoError::TooMany { what: "files with equal names", max: RENAME_ATTEMPTS_MAX as u64 });
            }
            number += 1;
            name = rules.numbered(&file.path[name_at..], number);
        }
        if number > 0 {
            file.path.replace_range(name_at.., &name);
        }
    }
    Ok(())
}

/// The components of `path` above its last.
pub(super) fn folders_of(path: &str) -> impl Iterator<Item = &str> {
    let folders = path.rfind('/').map_or("", |slash| &path[..slash]);
    folders.split('/').filter(|name| !name.is_empty())
}
