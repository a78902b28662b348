//! What a content's files are called where they go: as in the torrent, if the file system holds that.
//!
//! Most torrents have names that every file system holds, and nothing is asked. For the others a scratch folder is made where the
//! content goes, and files in it with the characters and the twins that the torrent has. What cannot be held is made
//! safe ([`NameRules`]), and whoever asked is told.

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::info::{FileKind, Info};
use crate::metainfo::{Characters, NameRules, written_paths};

/// Distinct characters that are tried: more than scripts and people put into names beside letters.
const CHARACTERS_TRIED_MAX: usize = 64;
/// Two names each that some file systems take for one: by case, by composition, by what stands at the end.
const TWINS: [[&str; 2]; 3] = [["aA", "Aa"], ["\u{e9}", "e\u{301}"], ["b", "b."]];

/// A content with the names that its files have in their folder.
#[derive(Clone, Debug)]
pub struct Named {
    /// The content.
    pub info: Arc<Info>,
    /// Files and links that are called otherwise than in the torrent.
    pub changed: Vec<Renamed>,
}

/// A file that is called otherwise than in the torrent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// Its path in the torrent.
    pub written: String,
    /// Its path below the download folder.
    pub path: PathBuf,
}

/// What the files of `info` are to be called below `root`, which is made where it is missing. Where nothing can be tried, names are such
/// that every file system holds them.
pub fn for_writing(info: &Arc<Info>, root: &Path) -> Named {
    let written = written_paths(info);
    let Ok(portable) = Info::parse(&info.source) else { return named(Arc::clone(info), &written) };
    let Some(unusual) = unusual(info, &portable, root) else { return named(Arc::clone(info), &written) };
    let within = info.files.iter().find_map(|file| file.path.iter().next()).map(|first| root.join(first));
    let folder = within.filter(|folder| info.multi_file && folder.is_dir()).unwrap_or_else(|| root.into());
    // Where one was killed before the content's own folder was made.
    Scratch::clear_away(root);
    let probed = fs::create_dir_all(&folder).and_then(|()| probe(&folder, &unusual));
    let chosen = probed.ok().and_then(|rules| Info::parse_for(&info.source, &rules).ok());
    // Who fetched it before with another program has the names of that.
    named(Arc::new(most_present(root, chosen.into_iter().chain([portable]).collect())), &written)
}

/// What the files of `info` are called that lie below `root`, by whatever program put them there. Nothing is written.
pub fn for_reading(info: &Arc<Info>, root: &Path) -> Arc<Info> {
    let Ok(portable) = Info::parse(&info.source) else { return Arc::clone(info) };
    if unusual(info, &portable, root).is_none() {
        return Arc::clone(info);
    }
    let (mut unix, mut windows) = (NameRules::PORTABLE, NameRules::PORTABLE);
    unix.characters = Characters::Unix;
    windows.characters = Characters::Windows;
    let parse = |rules| Info::parse_for(&info.source, &rules).ok();
    let candidates = [NameRules::EXACT, unix, NameRules::PORTABLE, windows].into_iter().filter_map(parse).collect();
    Arc::new(most_present(root, candidates))
}

/// What components such as `names` are to be called in `folder`: as they are, if its file system holds that. `twins`: some of them
/// may be one to a file system. Where nothing can be tried, such that every file system holds them.
pub fn rules_for<'a>(folder: &Path, names: impl Iterator<Item = &'a [u8]>, twins: bool) -> NameRules {
    let mut unusual = Unusual { characters: BTreeSet::new(), twins, longest: 0, is_text: true };
    for name in names {
        unusual.longest = unusual.longest.max(name.len());
        for chunk in name.utf8_chunks() {
            if !chunk.valid().bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._ ".contains(&byte)) {
                unusual.characters.extend(chunk.valid().chars().filter(|c| !is_plain(*c)));
            }
            unusual.is_text &= chunk.invalid().is_empty();
        }
    }
    let too_long = name_bytes_max(folder).is_some_and(|max| unusual.longest > max);
    let common = unusual.characters.iter().all(|c| !c.is_ascii());
    if common && !too_long && !twins && unusual.is_text {
        return NameRules::EXACT;
    }
    probe(folder, &unusual).unwrap_or(NameRules::PORTABLE)
}

fn named(info: Arc<Info>, written: &[String]) -> Named {
    let files = info.files.iter().filter(|file| file.kind != FileKind::Pad);
    let changed = files.zip(written).filter(|(file, written)| file.path != Path::new(written));
    let changed =
        changed.map(|(file, written)| Renamed { written: written.clone(), path: file.path.clone() }).collect();
    Named { info, changed }
}

/// The one of `candidates` of whose files most are there; the first of equals. There is at least one.
fn most_present(root: &Path, mut candidates: Vec<Info>) -> Info {
    let there = |info: &Info| {
        let files = info.files.iter().filter(|file| file.kind != FileKind::Pad);
        files.filter(|file| root.join(&file.path).symlink_metadata().is_ok()).count()
    };
    let counts: Vec<usize> = candidates.iter().map(there).collect();
    let most = counts.iter().max().and_then(|most| counts.iter().position(|count| count == most)).unwrap_or(0);
    candidates.swap_remove(most)
}

/// What of the names has to be tried.
struct Unusual {
    characters: BTreeSet<char>,
    twins: bool,
    longest: usize,
    is_text: bool,
}

fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || " !#$%&'()+,-.;=@[]^_`{}~".contains(c)
}

/// `None` where every file system has names such as those of `info`.
fn unusual(info: &Info, portable: &Info, root: &Path) -> Option<Unusual> {
    let exact = Info::parse_for(&info.source, &NameRules::EXACT).ok()?;
    let names = || exact.files.iter().flat_map(|file| file.path.iter()).filter_map(|name| name.to_str());
    let characters: BTreeSet<char> = names().flat_map(str::chars).filter(|c| !is_plain(*c)).collect();
    let longest = names().map(str::len).max().unwrap_or(0);
    let differ = portable.files.iter().zip(&exact.files).any(|(one, other)| one.path != other.path);
    let too_long = name_bytes_max(root).is_some_and(|max| longest > max);
    let common = characters.iter().all(|c| !c.is_ascii());
    (differ || !common || too_long).then_some(Unusual { characters, twins: differ, longest, is_text: true })
}

/// Tries in `folder` what is unusual.
fn probe(folder: &Path, unusual: &Unusual) -> io::Result<NameRules> {
    let scratch = Scratch::within(folder)?;
    let mut rules = NameRules::EXACT;
    if let Some(max) = name_bytes_max(folder).filter(|max| unusual.longest > *max) {
        rules = rules.with_bytes_max(max);
    }
    for c in unusual.characters.iter().take(CHARACTERS_TRIED_MAX).filter(|c| **c != '/' && **c != '\0') {
        let name = format!("a{c}a");
        match File::create_new(scratch.path.join(&name)) {
            Ok(_) if scratch.lists(&name) => {}
            // It says so, or it put the file elsewhere.
            Ok(_) => rules.characters = Characters::Windows,
            Err(error) if is_about_the_name(&error) => rules.characters = Characters::Windows,
            Err(error) => return Err(error),
        }
    }
    if !unusual.is_text && File::create_new(scratch.path.join(OsStr::from_bytes(b"a\xffa"))).is_err() {
        rules.characters = Characters::Windows;
    }
    for [one, other] in TWINS.into_iter().filter(|_| unusual.twins) {
        File::create_new(scratch.path.join(one))?;
        rules.tells_twins &= scratch.path.join(other).symlink_metadata().is_err();
    }
    Ok(rules)
}

/// Whether another name would have done.
fn is_about_the_name(error: &io::Error) -> bool {
    let full = [libc::ENOSPC, libc::EDQUOT, libc::EROFS, libc::EACCES, libc::EPERM, libc::EMFILE, libc::ENFILE];
    error.raw_os_error().is_none_or(|code| !full.contains(&code))
}

/// A folder that goes away, with all in it. It is locked as long as its process lives, so that the next one finds what was left of one that
/// was killed, and clears that away.
struct Scratch {
    path: PathBuf,
    _lock: File,
}

/// Others who clear away may take it for a dead one's, before it is locked, so often.
const SCRATCH_TRIES: u32 = 10;

impl Scratch {
    /// Named like this program's other files, so that nobody shares it.
    fn within(folder: &Path) -> io::Result<Self> {
        Self::clear_away(folder);
        for _ in 0..SCRATCH_TRIES {
            let path = folder.join(format!(".{:016x}.{}names", fastrand::u64(..), super::HIDDEN_SUFFIX));
            fs::create_dir(&path)?;
            let Ok(lock) = File::open(&path) else { continue };
            let is_taken = matches!(lock.try_lock(), Err(TryLockError::WouldBlock));
            if !is_taken && path.is_dir() {
                return Ok(Self { path, _lock: lock });
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Removes what processes that are gone left in `folder`. Where locks are unknown, it stays: empty files in a hidden folder.
    fn clear_away(folder: &Path) {
        let ending = format!(".{}names", super::HIDDEN_SUFFIX);
        let is_one = |name: &str| {
            let number = name.strip_prefix('.').and_then(|name| name.strip_suffix(&ending));
            number.is_some_and(|number| number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit()))
        };
        let items = fs::read_dir(folder).into_iter().flatten().flatten();
        for item in items.filter(|item| item.file_name().to_str().is_some_and(is_one)) {
            let is_folder = item.file_type().is_ok_and(|kind| kind.is_dir());
            if let Some(lock) = is_folder.then(|| File::open(item.path()).ok()).flatten()
                && lock.try_lock().is_ok()
            {
                // Should it stay, the next one tries again.
                let _ = fs::remove_dir_all(item.path());
            }
        }
    }

    fn lists(&self, name: &str) -> bool {
        fs::read_dir(&self.path).is_ok_and(|items| items.flatten().any(|item| item.file_name() == name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Left behind, it is empty but for a few empty files.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Bytes that a name may have in `folder`, or in the folder above it that is there.
fn name_bytes_max(folder: &Path) -> Option<usize> {
    let there = folder.ancestors().find(|folder| folder.is_dir())?;
    let path = CString::new(there.as_os_str().as_bytes()).ok()?;
    // SAFETY: all-zero is a valid statvfs, and the call fills it.
    let mut stats: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the string is NUL-terminated and lives through the call, the structure is ours.
    let done = unsafe { libc::statvfs(path.as_ptr(), &raw mut stats) } == 0;
    done.then_some(stats.f_namemax as usize).filter(|max| *max > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bencode::{DictBuilder, ListBuilder};

    fn info(names: &[&str]) -> Arc<Info> {
        let mut files = ListBuilder::new();
        for name in names {
            let mut path = ListBuilder::new();
            name.split('/').for_each(|name| _ = path.bytes(name));
            files.dict(DictBuilder::new().int("length", 1).list("path", &path));
        }
        let mut info = DictBuilder::new();
        info.bytes("name", "t").int("piece length", 16384).bytes("pieces", [7; 20]).list("files", &files);
        Arc::new(Info::parse(&info.encode()).expect("a torrent"))
    }

    fn paths(info: &Info) -> Vec<&str> {
        info.files.iter().filter_map(|file| file.path.to_str()).collect()
    }

    #[test]
    fn what_was_left_of_one_who_was_killed_while_trying_names_goes() {
        let folder = tempfile::tempdir().expect("a folder");
        let (root, inner) = (folder.path(), folder.path().join("t"));
        let left = |folder: &Path, name: &str| {
            fs::create_dir_all(folder.join(name)).expect("a folder");
            fs::write(folder.join(name).join("q?"), "").expect("a file");
        };
        left(root, ".0123456789abcdef.anabranch-names");
        left(&inner, ".fedcba9876543210.anabranch-names");
        // Not ours, or of somebody who lives.
        left(root, ".0123456789abcdeg.anabranch-names");
        std::os::unix::fs::symlink(&inner, root.join(".1123456789abcdef.anabranch-names")).expect("a link");
        let alive = Scratch::within(root).expect("a folder");
        for_writing(&info(&["q?:*"]), root);
        let names = |folder: &Path| {
            let items = fs::read_dir(folder).expect("a folder").flatten();
            items.map(|item| item.file_name().into_string().expect("a text")).collect::<BTreeSet<String>>()
        };
        let alive_name = alive.path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        let kept = [".0123456789abcdeg.anabranch-names", ".1123456789abcdef.anabranch-names", &alive_name, "t"];
        assert_eq!(names(root), kept.map(str::to_owned).into());
        assert_eq!(names(&inner), BTreeSet::new());
        drop(alive);
        assert!(!names(root).contains(&alive_name));
    }

    #[test]
    fn what_the_folder_holds_keeps_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = ["Case", "case", "\u{e9}", "e\u{301}", "a\tb", "x\\y", "q?:*", "n\nl", "h\u{200c}h", "dot."];
        let found = for_writing(&info(&names), folder.path());
        let expected: Vec<String> = names.iter().map(|name| format!("t/{name}")).collect();
        assert_eq!(paths(&found.info), expected);
        assert!(found.changed.is_empty());
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 0, "nothing is left behind");
    }

    #[test]
    fn what_no_folder_may_hold_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let found = for_writing(&info(&["gpj\u{202e}exe", "../up", "a", "a"]), folder.path());
        assert_eq!(paths(&found.info), ["t/gpjexe", "t/_/up", "t/a", "t/a.1"]);
        let written: Vec<&str> = found.changed.iter().map(|renamed| renamed.written.as_str()).collect();
        assert_eq!(written, ["t/gpj\u{202e}exe", "t/../up", "t/a"]);
    }

    #[test]
    fn names_that_another_program_gave_are_found_again() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("t")).expect("a folder");
        fs::write(folder.path().join("t/xy"), "1").expect("a file");
        let info = info(&["x\\y", "z\tz"]);
        assert_eq!(paths(&for_writing(&info, folder.path()).info), ["t/xy", "t/z_z"]);
        assert_eq!(paths(&for_reading(&info, folder.path())), ["t/xy", "t/z_z"]);
        fs::write(folder.path().join("t/x\\y"), "1").expect("a file");
        assert_eq!(paths(&for_writing(&info, folder.path()).info), ["t/x\\y", "t/z\tz"]);
        assert_eq!(paths(&for_reading(&info, folder.path())), ["t/x\\y", "t/z\tz"]);
    }

    #[test]
    fn where_nothing_can_be_tried_names_are_such_that_all_hold_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let no_folder = folder.path().join("file");
        fs::write(&no_folder, "").expect("a file");
        let found = for_writing(&info(&["Case", "case", "a\tb"]), &no_folder);
        assert_eq!(paths(&found.info), ["t/Case", "t/case.1", "t/a_b"]);
        assert_eq!(found.changed.len(), 2);
    }
}
