//! Symbolic links, proven to stay inside the torrent (BEP 47, "Symlinks").
//!
//! BEP 47 gives targets from the torrent's root; some makers give them from the link's folder, so both are tried, in
//! this order. A target that leads through other links is replaced by where it ends: no link that is written depends
//! on another. A target that is not in the torrent stays a dangling link, as BEP 47 has it, inside the root.

use std::path::PathBuf;

use super::collisions::{Node, PathTree, folders_of};
use super::draft::{Draft, DraftKind};
use super::error::MetainfoError;
use super::limits::{SYMLINK_HOPS_MAX, SYMLINKS_MAX};

/// Link texts for the links of a file list, by index. Call [`index`](Links::index) before names are changed.
pub(super) struct Links {
    tree: PathTree<usize>,
    found: Vec<(usize, Target)>,
}

#[derive(Clone, Debug)]
enum Target {
    Folder(u32),
    File(usize),
    /// Not in the torrent: a path inside the root.
    Dangling(String),
}

impl Links {
    /// Finds out where all links of `files` end; `root` is the torrent's folder.
    pub(super) fn index(files: &[Draft], root: &str) -> Result<Self, MetainfoError> {
        let links: Vec<usize> = (0..files.len()).filter(|&at| target_of(&files[at]).is_some()).collect();
        if links.len() > SYMLINKS_MAX {
            return Err(MetainfoError::TooMany { what: "symbolic links", max: SYMLINKS_MAX as u64 });
        }
        let mut tree = PathTree::default();
        if links.is_empty() {
            return Ok(Self { tree, found: Vec::new() });
        }
        let parents: Vec<u32> = files.iter().map(|file| add_folders(&mut tree, file)).collect();
        for (index, file) in files.iter().enumerate().filter(|(_, file)| !file.is_pad()) {
            let name = file.path.rsplit('/').next().unwrap_or_default();
            tree.file(parents[index], name, index);
        }
        let mut resolver = Resolver { files, tree: &tree, root, states: vec![State::Unknown; files.len()] };
        let found =
            links.iter().map(|&link| Ok((link, resolver.link(link, 0)?))).collect::<Result<_, MetainfoError>>()?;
        Ok(Self { tree, found })
    }

    /// The text of every link, relative to its own folder, now that `files` have their final names.
    pub(super) fn texts<'a>(&'a self, files: &'a [Draft]) -> impl Iterator<Item = (usize, PathBuf)> + 'a {
        self.found.iter().map(|(link, target)| {
            let to = match target {
                Target::Folder(folder) => self.tree.folder_path(*folder),
                Target::File(file) => files[*file].path.clone(),
                Target::Dangling(path) => path.clone(),
            };
            (*link, relative(&files[*link].path, &to))
        })
    }
}

struct Resolver<'a> {
    files: &'a [Draft],
    tree: &'a PathTree<usize>,
    root: &'a str,
    states: Vec<State>,
}

#[derive(Clone, Debug)]
enum State {
    Unknown,
    Underway,
    Known(Target),
}

impl Resolver<'_> {
    /// Where link `index` ends. Recurses over links that lead through links, at most [`SYMLINK_HOPS_MAX`] deep.
    fn link(&mut self, index: usize, hops: usize) -> Result<Target, MetainfoError> {
        match &self.states[index] {
            State::Known(target) => return Ok(target.clone()),
            State::Unknown if hops <= SYMLINK_HOPS_MAX => {}
            _ => return Err(MetainfoError::SymlinkLoop { path: self.files[index].path.clone() }),
        }
        self.states[index] = State::Underway;
        let target = self.resolve(index, hops)?;
        self.states[index] = State::Known(target.clone());
        Ok(target)
    }

    fn resolve(&mut self, index: usize, hops: usize) -> Result<Target, MetainfoError> {
        let path = &self.files[index].path;
        let text = target_of(&self.files[index]).unwrap_or_default();
        let beside = self.lexical(folders_of(path).chain(text.split('/')));
        // From the root `..` leads out of it at once, so it can only be meant from the link's folder.
        if text.split('/').any(|name| name == "..") {
            let beside = beside.ok_or_else(|| MetainfoError::SymlinkLeaves { path: path.clone() })?;
            return Ok(self.walk(&beside, hops)?.unwrap_or(Target::Dangling(beside)));
        }
        let from_root = if self.root.is_empty() { text.to_owned() } else { format!("{}/{text}", self.root) };
        if let Some(target) = self.walk(&from_root, hops)? {
            return Ok(target);
        }
        let found = beside.map(|beside| self.walk(&beside, hops)).transpose()?.flatten();
        Ok(found.unwrap_or(Target::Dangling(from_root)))
    }

    /// The path without `..`; `None` where that leaves the root.
    fn lexical<'p>(&self, names: impl Iterator<Item = &'p str>) -> Option<String> {
        let floor = usize::from(!self.root.is_empty());
        let mut path: Vec<&str> = Vec::new();
        for name in names {
            if name != ".." {
                path.push(name);
            } else if path.len() > floor {
                path.pop();
            } else {
                return None;
            }
        }
        Some(path.join("/"))
    }

    /// What `path` is, links on the way followed; `None` where it is not in the torrent.
    fn walk(&mut self, path: &str, hops: usize) -> Result<Option<Target>, MetainfoError> {
        let mut folder = 0;
        let mut names = path.split('/').filter(|name| !name.is_empty()).peekable();
        while let Some(name) = names.next() {
            let target = match self.tree.get(folder, name) {
                None => return Ok(None),
                Some(Node::Folder(inner)) => Target::Folder(inner),
                Some(Node::File(file)) if target_of(&self.files[file]).is_some() => self.link(file, hops + 1)?,
                Some(Node::File(file)) => Target::File(file),
            };
            match target {
                Target::Folder(inner) => folder = inner,
                Target::File(_) if names.peek().is_none() => return Ok(Some(target)),
                Target::File(_) | Target::Dangling(_) => return Ok(None),
            }
        }
        Ok(Some(Target::Folder(folder)))
    }
}

fn target_of(file: &Draft) -> Option<&str> {
    match &file.kind {
        DraftKind::Symlink(target) => Some(target),
        _ => None,
    }
}

/// Adds the folders above `file`; the innermost.
fn add_folders(tree: &mut PathTree<usize>, file: &Draft) -> u32 {
    // Only folders are in the tree so far, so no name is taken by a file.
    folders_of(&file.path).fold(0, |parent, name| tree.folder(parent, name).unwrap_or(parent))
}

/// The way from the folder of `link` to `to`.
fn relative(link: &str, to: &str) -> PathBuf {
    let from: Vec<&str> = folders_of(link).collect();
    let to: Vec<&str> = to.split('/').filter(|name| !name.is_empty()).collect();
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = std::iter::repeat_n("..", from.len() - shared);
    let text: PathBuf = up.chain(to[shared..].iter().copied()).collect();
    if text.as_os_str().is_empty() { PathBuf::from(".") } else { text }
}
