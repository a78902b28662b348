//! A manifest as it lies below a folder: a tree of names, made safe as those of torrents are, and where each byte of content goes.
//!
//! A name that comes twice, or is a file and a folder at once, is a broken manifest and refused. Names that differ, and that
//! this file system or our rules make one, get numbers. Memory is some 60 bytes a name beside its own.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::path::{Path, PathBuf};

use anabranch_content::metainfo::NameRules;
use anabranch_content::storage::{is_own_record, naming};
use anabranch_hercules::wire::WireError;
use anabranch_hercules::wire::manifest::{ENTRIES_MAX, Entry, EntryKind, Layout};

use super::convert::path;
use super::scan::stays_inside;

/// Names, with the folders that no entry is about: a sender of our kind has none of these.
const NODES_MAX: usize = ENTRIES_MAX as usize;
/// Renamed files that are told one by one.
pub(super) const RENAMED_TOLD_MAX: usize = 100;
/// Names tried for those that clash, all together: a manifest made for it could keep us trying for hours.
const TRIES_MAX: usize = NODES_MAX;
/// What has no folder above it.
const TOP: u32 = u32::MAX;

/// Why a manifest is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PlanError {
    #[error("what is offered names {0} twice")]
    Twice(String),
    #[error("what is offered has {0} as a folder, and as something else")]
    FileAndFolder(String),
    #[error("the link {0} in what is offered leads out of it")]
    LinkLeaves(String),
    #[error("what is offered has the name {0}, which is kept for this program's own files")]
    OwnName(String),
    #[error("what is offered has too many folders")]
    TooManyFolders,
    #[error("what is offered has too many names that are one here")]
    TooManyClashes,
    #[error("what is offered is broken: {0}")]
    Broken(#[from] WireError),
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A folder that no entry is about.
    Implied,
    Folder,
    Link,
    File {
        len: u64,
        /// No holes.
        dense: bool,
    },
}

impl Kind {
    pub(super) fn is_folder(self) -> bool {
        matches!(self, Self::Implied | Self::Folder)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    parent: u32,
    name_at: u32,
    name_len: u16,
    pub mode: u16,
    pub modified: (i64, u32),
    pub kind: Kind,
}

/// All of a manifest.
#[derive(Debug)]
pub(super) struct Plan {
    /// Folders before what is in them.
    pub nodes: Vec<Node>,
    names: Vec<u8>,
    /// Which node each entry of the manifest is.
    pub of_entry: Vec<u32>,
    /// Texts of links, by their nodes.
    pub targets: HashMap<u32, Vec<u8>>,
    pub layout: Layout,
    /// Names as written, and as they are here: the first [`RENAMED_TOLD_MAX`], and how many in all.
    pub renamed: (Vec<(PathBuf, PathBuf)>, usize),
}

impl Plan {
    /// Of a manifest whose files go to `folder`, which is there.
    pub(super) fn new(entries: Vec<Entry>, folder: &Path) -> Result<Self, PlanError> {
        let mut builder = Builder::default();
        for entry in entries {
            builder.push(entry)?;
        }
        builder.finish(folder)
    }

    /// Where a node is, below the folder.
    pub(super) fn path(&self, node: u32) -> PathBuf {
        path_of(&self.nodes, &self.names, node)
    }

    /// The names at the top.
    pub(super) fn tops(&self) -> Vec<PathBuf> {
        let tops = (0u32..).zip(&self.nodes).filter(|(_, node)| node.parent == TOP);
        tops.map(|(node, _)| self.path(node)).collect()
    }

    /// The folder that a node is in; `None` at the top.
    pub(super) fn parent(&self, node: u32) -> Option<u32> {
        Some(self.nodes[node as usize].parent).filter(|parent| *parent != TOP)
    }

    /// The node of an entry.
    pub(super) fn node_of(&self, entry: u32) -> u32 {
        self.of_entry[entry as usize]
    }
}

fn name_of<'a>(names: &'a [u8], node: &Node) -> &'a [u8] {
    &names[node.name_at as usize..][..usize::from(node.name_len)]
}

fn path_of(nodes: &[Node], names: &[u8], mut node: u32) -> PathBuf {
    let mut components = Vec::new();
    while node != TOP {
        components.push(name_of(names, &nodes[node as usize]));
        node = nodes[node as usize].parent;
    }
    components.iter().rev().map(|name| path(name)).collect()
}

#[derive(Default)]
struct Builder {
    nodes: Vec<Node>,
    names: Vec<u8>,
    of_entry: Vec<u32>,
    targets: HashMap<u32, Vec<u8>>,
    layout: Layout,
    /// Nodes by the hash of folder and name: keyed, so that no manifest has two alike but by an accident of one in 2^20.
    known: HashMap<u64, u32>,
    key: RandomState,
    /// The folder of the entry before, and its node: most entries have the same.
    last: (Vec<u8>, u32),
}

impl Builder {
    fn push(&mut self, entry: Entry) -> Result<(), PlanError> {
        let told = || String::from_utf8_lossy(&entry.name).into_owned();
        self.layout.push(&entry)?;
        let (above, name) = match entry.name.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&entry.name[..slash], &entry.name[slash + 1..]),
            None => (&[][..], &entry.name[..]),
        };
        let parent = self.folder(above)?;
        let kind = match &entry.kind {
            EntryKind::Folder => Kind::Folder,
            EntryKind::Link(_) => Kind::Link,
            EntryKind::File { len, .. } => Kind::File { len: *len, dense: entry.data_len() == *len },
        };
        let node = match self.find(parent, name) {
            Some(found) if kind == Kind::Folder && self.nodes[found as usize].kind == Kind::Implied => found,
            Some(found) if self.nodes[found as usize].kind.is_folder() != kind.is_folder() => {
                return Err(PlanError::FileAndFolder(told()));
            }
            Some(_) => return Err(PlanError::Twice(told())),
            None => self.add(parent, name)?,
        };
        let known = &mut self.nodes[node as usize];
        (known.kind, known.mode, known.modified) = (kind, entry.mode & 0o777, entry.modified);
        if let EntryKind::Link(target) = entry.kind {
            let depth = entry.name.iter().filter(|byte| **byte == b'/').count().saturating_sub(1);
            if !stays_inside(&target, depth) {
                return Err(PlanError::LinkLeaves(String::from_utf8_lossy(&entry.name).into_owned()));
            }
            self.targets.insert(node, target);
        }
        self.of_entry.push(node);
        Ok(())
    }

    /// The node of a folder by its whole name.
    fn folder(&mut self, name: &[u8]) -> Result<u32, PlanError> {
        if name.is_empty() {
            return Ok(TOP);
        }
        if self.last.0 == name {
            return Ok(self.last.1);
        }
        let mut folder = TOP;
        for component in name.split(|byte| *byte == b'/') {
            folder = match self.find(folder, component) {
                Some(found) if self.nodes[found as usize].kind.is_folder() => found,
                Some(_) => return Err(PlanError::FileAndFolder(String::from_utf8_lossy(name).into_owned())),
                None => self.add(folder, component)?,
            };
        }
        self.last = (name.to_vec(), folder);
        Ok(folder)
    }

    fn find(&self, parent: u32, name: &[u8]) -> Option<u32> {
        self.known.get(&self.key.hash_one((parent, name))).copied()
    }

    fn add(&mut self, parent: u32, name: &[u8]) -> Result<u32, PlanError> {
        if self.nodes.len() >= NODES_MAX {
            return Err(PlanError::TooManyFolders);
        }
        let node = self.nodes.len() as u32;
        self.known.insert(self.key.hash_one((parent, name)), node);
        // Names are at most 255 bytes, and all of them less than a manifest.
        let (name_at, name_len) = (self.names.len() as u32, name.len() as u16);
        self.names.extend(name);
        self.nodes.push(Node { parent, name_at, name_len, mode: 0o755, modified: (0, 0), kind: Kind::Implied });
        Ok(node)
    }

    fn finish(mut self, folder: &Path) -> Result<Plan, PlanError> {
        if let Some(own) = self.nodes.iter().find(|node| is_own_record(path(name_of(&self.names, node)))) {
            return Err(PlanError::OwnName(String::from_utf8_lossy(name_of(&self.names, own)).into_owned()));
        }
        let rules = self.rules(folder);
        let (written, raw) = (self.nodes.clone(), std::mem::take(&mut self.names));
        let renamed = rename(&mut self.nodes, &raw, &mut self.names, &rules, &self.key)?;
        let mut plan_renamed = (Vec::new(), renamed.len());
        for node in renamed.into_iter().take(RENAMED_TOLD_MAX) {
            let names = (path_of(&written, &raw, node), path_of(&self.nodes, &self.names, node));
            plan_renamed.0.push(names);
        }
        if plan_renamed.1 > 0 {
            self.translate_links(&rules);
        }
        let Self { nodes, names, of_entry, targets, layout, .. } = self;
        Ok(Plan { nodes, names, of_entry, targets, layout, renamed: plan_renamed })
    }

    fn rules(&self, folder: &Path) -> NameRules {
        let mut seen = HashMap::with_capacity(self.nodes.len());
        let folded = |node: &Node| {
            let identity = NameRules::PORTABLE.component_identity(name_of(&self.names, node)).into_owned();
            self.key.hash_one((node.parent, identity))
        };
        let twins = self.nodes.iter().any(|node| seen.insert(folded(node), ()).is_some());
        naming::rules_for(folder, self.nodes.iter().map(|node| name_of(&self.names, node)), twins)
    }

    /// Links lead to what is called otherwise now: by the names that it has here.
    fn translate_links(&mut self, rules: &NameRules) {
        let mut targets = std::mem::take(&mut self.targets);
        for (link, target) in &mut targets {
            let mut at = Some(self.nodes[*link as usize].parent);
            let mut names: Vec<Vec<u8>> = Vec::new();
            for name in target.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
                if name == b".." {
                    at = at.filter(|at| *at != TOP).map(|at| self.nodes[at as usize].parent);
                    names.push(name.to_vec());
                } else {
                    at = at.and_then(|at| self.find(at, name));
                    names.push(match at {
                        Some(node) => name_of(&self.names, &self.nodes[node as usize]).to_vec(),
                        None => rules.component(name),
                    });
                }
            }
            *target = if names.is_empty() { b".".to_vec() } else { names.join(&b'/') };
        }
        self.targets = targets;
    }
}

/// Gives all nodes names that may be on disk, put into `names`; answers those that are called otherwise than before. Folders
/// first: they keep their names where a file would have the same.
fn rename(
    nodes: &mut [Node],
    raw: &[u8],
    names: &mut Vec<u8>,
    rules: &NameRules,
    key: &RandomState,
) -> Result<Vec<u32>, PlanError> {
    let mut taken: HashMap<u64, usize> = HashMap::with_capacity(nodes.len());
    let (mut renamed, mut tries) = (Vec::new(), 0);
    for folders in [true, false] {
        for (number, node) in (0u32..).zip(nodes.iter_mut()).filter(|(_, node)| node.kind.is_folder() == folders) {
            let written = name_of(raw, node);
            let safe = rules.component(written);
            let place = |name: &[u8]| hash(key, node.parent, &rules.component_identity(name));
            let mut name = safe.clone();
            // One count a name: as many clashes as there are cost no more than their number.
            let first = place(&safe);
            while let Some(count) = taken.get(&place(&name)).copied() {
                tries += 1;
                if tries > TRIES_MAX {
                    return Err(PlanError::TooManyClashes);
                }
                let next = taken.get(&first).copied().unwrap_or(count) + 1;
                taken.insert(first, next);
                name = rules.numbered_component(&safe, next);
            }
            taken.insert(place(&name), 0);
            if name != written {
                renamed.push(number);
            }
            (node.name_at, node.name_len) = (names.len() as u32, name.len() as u16);
            names.extend(name);
        }
    }
    Ok(renamed)
}

fn hash(key: &RandomState, parent: u32, name: &[u8]) -> u64 {
    let mut hasher = key.build_hasher();
    (parent, name).hash(&mut hasher);
    std::hash::Hasher::finish(&hasher)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8], kind: EntryKind) -> Entry {
        Entry { name: name.to_vec(), mode: 0o4755, modified: (1, 2), kind }
    }

    fn file(name: &[u8]) -> Entry {
        entry(name, EntryKind::File { len: 1, extents: vec![0..1] })
    }

    fn link(name: &str, target: &str) -> Entry {
        entry(name.as_bytes(), EntryKind::Link(target.into()))
    }

    fn plan(entries: Vec<Entry>) -> Result<Plan, PlanError> {
        Plan::new(entries, tempfile::tempdir().unwrap().path())
    }

    fn paths(plan: &Plan) -> Vec<PathBuf> {
        plan.of_entry.iter().map(|node| plan.path(*node)).collect()
    }

    #[test]
    fn broken_manifests_are_refused() {
        let folder = |name: &str| entry(name.as_bytes(), EntryKind::Folder);
        for (entries, error) in [
            (vec![file(b"a"), file(b"a")], PlanError::Twice("a".into())),
            (vec![folder("a"), folder("a")], PlanError::Twice("a".into())),
            (vec![file(b"a"), file(b"a/b")], PlanError::FileAndFolder("a".into())),
            (vec![file(b"a/b"), file(b"a")], PlanError::FileAndFolder("a".into())),
            (vec![link("a", "b"), file(b"a/b")], PlanError::FileAndFolder("a".into())),
            (vec![link("a", "..")], PlanError::LinkLeaves("a".into())),
            (vec![link("t/a", "../x")], PlanError::LinkLeaves("t/a".into())),
            (vec![link("t/a/b", "c/../../../x")], PlanError::LinkLeaves("t/a/b".into())),
            (vec![link("a", "/etc")], PlanError::LinkLeaves("a".into())),
            (vec![file(b".x.anabranch-receive")], PlanError::OwnName(".x.anabranch-receive".into())),
        ] {
            assert_eq!(plan(entries).map(|_| ()), Err(error));
        }
        assert!(plan(vec![file(b"a/b"), folder("a"), link("a/c/d", "../b")]).is_ok());
    }

    #[test]
    fn names_that_become_one_are_numbered_and_links_follow() {
        let over = "x\u{202e}".as_bytes();
        let plan = plan(vec![file(b"t/x"), file(&[b"t/", over].concat()), file(b"t/x.1"), link("t/l", "x\u{202e}")]);
        let plan = plan.unwrap();
        let names: Vec<_> = paths(&plan).into_iter().map(|path| path.display().to_string()).collect();
        assert_eq!(names, ["t/x", "t/x.1", "t/x.1.1", "t/l"].map(str::to_owned));
        assert_eq!(plan.renamed.1, 2);
        assert_eq!(plan.targets[&plan.node_of(3)], b"x.1");
        assert!(plan.nodes.iter().all(|node| node.mode <= 0o777), "neither setuid nor sticky");
    }

    #[test]
    fn a_crowd_of_clashing_names_takes_no_longer_than_its_number() {
        let marks = ["\u{202a}", "\u{202b}", "\u{202d}", "\u{202e}", "\u{2066}", "\u{2067}", "\u{2068}", "\u{2069}"];
        let name = |number: usize| (0..5).map(|digit| marks[number >> (3 * digit) & 7]).collect::<String>();
        let plan = plan((0..20_000).map(|number| file(format!("a{}", name(number)).as_bytes())).collect()).unwrap();
        let mut paths = paths(&plan);
        paths.sort();
        paths.dedup();
        assert_eq!((paths.len(), plan.renamed.1, plan.renamed.0.len()), (20_000, 20_000, RENAMED_TOLD_MAX));
    }
}
