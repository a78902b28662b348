//! Folders as strangers have them, out of a seed: names of every script and such that trip programs up, twins, modes, links, sizes
//! around every edge and beyond 4 GiB, deep and wide. And what two of them differ in.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use fastrand::Rng;

use crate::{Error, Result};

/// Bytes compared at a time.
const CHUNK_LEN: usize = 1 << 20;
/// One folder in so many has a file beyond 4 GiB, sparse on this side.
const GIANT_EVERY: u64 = 50;
/// Bytes before which 32-bit offsets end.
const GIANT_LEN: u64 = (4 << 30) + 12_345;
/// One folder in so many has this many files, and one this many folders inside each other.
const CROWD_EVERY: u64 = 25;
const CROWD: usize = 800;
const DEPTH_MAX: usize = 90;
/// Bytes in a name, on every common file system.
const NAME_BYTES_MAX: usize = 255;

/// First and last letter of scripts, some left to right, some right to left, some outside of the basic plane.
const SCRIPTS: [(u32, u32); 14] = [
    (0x61, 0x7a),       // Latin
    (0xe0, 0xf6),       // Latin with accents
    (0x391, 0x3c9),     // Greek
    (0x410, 0x44f),     // Cyrillic
    (0x5d0, 0x5ea),     // Hebrew
    (0x627, 0x64a),     // Arabic
    (0x905, 0x939),     // Devanagari
    (0xe01, 0xe2e),     // Thai
    (0x10d0, 0x10f0),   // Georgian
    (0x3042, 0x3093),   // Hiragana
    (0x4e00, 0x9fa5),   // Han
    (0xac00, 0xd7a3),   // Hangul
    (0x10400, 0x1044f), // Deseret
    (0x1f600, 0x1f64f), // Emoji
];

/// Names that this file system holds and that programs stumble over. Of those in the first part nobody has to change one.
const ODD: [&str; 34] = [
    "with space",
    "two  spaces",
    "#hash",
    "100%",
    "a&b;c",
    "$HOME",
    "~",
    "it's",
    "(1) [2] {3}",
    ".hidden",
    "...",
    "-rf",
    "--help",
    "a.tar.gz",
    "no.extension.",
    "0",
    // From here on libtorrent or others change the name.
    "नमस्ते\u{200d}",
    "👩\u{200d}👩\u{200d}👧.jpg",
    "نامه\u{200c}ها",
    "a\ttab",
    "Icon\r",
    "two\nlines",
    "\x1b[31mred",
    "back\\slash",
    "what?",
    "a:b",
    "\"quoted\"",
    "*",
    "<|>",
    "שלום\u{200f}.txt",
    " ",
    "CON",
    "nul.txt",
    "trailing space ",
];
/// How many of [`ODD`] libtorrent writes as they are.
const ODD_COMMON: usize = 16;

/// Names that some file systems take for one.
const TWINS: [[&str; 2]; 5] = [
    ["Makefile", "makefile"],
    ["xt_DSCP.h", "xt_dscp.h"],
    ["\u{e9}t\u{e9}", "e\u{301}te\u{301}"],
    ["STRASSE", "stra\u{df}e"],
    ["dot", "dot."],
];

/// A folder that was made.
#[derive(Clone, Debug)]
pub struct Folder {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// Whether libtorrent writes all of it as it is: no links, no names that it changes.
    pub common: bool,
    /// The one file in it, where that is all.
    pub lone_file: Option<PathBuf>,
}

struct Maker {
    random: Rng,
    root: PathBuf,
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
    /// Without names that others change.
    common_only: bool,
    common: bool,
    bytes: u64,
}

/// Makes the folder of `seed` in `parent`. The same seed makes the same folder.
///
/// # Errors
/// When something cannot be written.
pub fn make(parent: &Path, seed: u64) -> Result<Folder> {
    let mut random = Rng::with_seed(seed);
    let common_only = random.bool();
    let mut maker = Maker {
        random,
        root: parent.to_path_buf(),
        folders: vec![],
        files: vec![],
        common_only,
        common: true,
        bytes: 0,
    };
    maker.root = parent.join(maker.name());
    let root = maker.root.clone();
    fs::create_dir_all(&root).map_err(Error::file(&root))?;
    maker.folders.push(root.clone());
    for _ in 0..maker.random.usize(0..8) {
        maker.folder()?;
    }
    if seed % CROWD_EVERY == 3 {
        maker.deep()?;
    }
    let crowd = seed % CROWD_EVERY == 4;
    let count = if crowd { CROWD } else { maker.random.usize(1..25) };
    for _ in 0..count {
        maker.file(crowd)?;
    }
    if maker.bytes == 0 {
        maker.write(&root.join("not empty"), 1)?;
    }
    if seed % GIANT_EVERY == 7 {
        maker.giant()?;
    }
    if !maker.common_only {
        maker.twins()?;
        maker.links()?;
    }
    let only = [maker.files.len(), fs::read_dir(&root).map_err(Error::file(&root))?.count()] == [1, 1];
    let lone_file = maker.files.first().filter(|file| only && file.parent() == Some(&root)).cloned();
    Ok(Folder { path: root, bytes: maker.bytes, common: maker.common, lone_file })
}

impl Maker {
    fn name(&mut self) -> String {
        let name = match self.random.u8(0..10) {
            0..=2 => {
                let odd = self.random.usize(..if self.common_only { ODD_COMMON } else { ODD.len() });
                self.common &= odd < ODD_COMMON;
                ODD[odd].to_owned()
            }
            // As long as names may be, in the bytes of some script; libtorrent cuts them.
            3 if !self.common_only => {
                self.common = false;
                self.letters(NAME_BYTES_MAX)
            }
            _ => {
                let length = self.random.usize(1..30);
                self.letters(length)
            }
        };
        // An extension for some.
        if self.random.u8(0..4) == 0 && name.len() < 200 { name + ".bin" } else { name }
    }

    /// At most so many bytes of one script.
    fn letters(&mut self, bytes: usize) -> String {
        let (first, last) = self.random.choice(SCRIPTS).unwrap_or(SCRIPTS[0]);
        let mut name = String::new();
        while let Some(letter) = char::from_u32(self.random.u32(first..=last)) {
            if name.len() + letter.len_utf8() > bytes.max(4) {
                break;
            }
            name.push(letter);
        }
        name
    }

    fn somewhere(&mut self) -> PathBuf {
        self.folders[self.random.usize(..self.folders.len())].clone()
    }

    /// A place for something new; `None` where it is taken, or would be for those who tell no case.
    fn place(&mut self) -> Option<PathBuf> {
        let (parent, name) = (self.somewhere(), self.name());
        let taken = |entry: fs::DirEntry| entry.file_name().to_string_lossy().to_lowercase() == name.to_lowercase();
        let free = !fs::read_dir(&parent).ok()?.flatten().any(taken);
        free.then(|| parent.join(name))
    }

    fn folder(&mut self) -> Result<()> {
        let Some(path) = self.place() else { return Ok(()) };
        fs::create_dir(&path).map_err(Error::file(&path))?;
        self.folders.push(path);
        Ok(())
    }

    /// Folders inside each other, as many as a torrent takes, with a file at the bottom.
    fn deep(&mut self) -> Result<()> {
        let mut path = self.root.join("deep");
        for level in 0..DEPTH_MAX - 2 {
            path.push(["d", "\u{434}", "\u{6df1}"][level % 3]);
        }
        fs::create_dir_all(&path).map_err(Error::file(&path))?;
        self.write(&path.join("bottom"), 20_000)
    }

    fn file(&mut self, small: bool) -> Result<()> {
        let edges = [0, 0, 1, 16_383, 16_384, 16_385, 32_768, 65_535, 65_536, 65_537, 262_144, 1_048_577];
        let length = match self.random.u8(0..3) {
            _ if small => self.random.u64(0..3000),
            0 => self.random.choice(edges).unwrap_or(0),
            1 => self.random.u64(0..2000),
            _ => self.random.u64(0..400_000),
        };
        let Some(path) = self.place() else { return Ok(()) };
        self.write(&path, length)
    }

    fn write(&mut self, path: &Path, length: u64) -> Result<()> {
        let mut bytes = vec![0; length as usize];
        // Some are all zeros, which programs take for holes.
        if self.random.u8(0..8) > 0 {
            self.random.fill(&mut bytes);
        }
        fs::write(path, bytes).map_err(Error::file(path))?;
        self.dress(path, length)
    }

    fn dress(&mut self, path: &Path, length: u64) -> Result<()> {
        let mode = self.random.choice([0o644, 0o644, 0o755, 0o600, 0o700, 0o444, 0o555]).unwrap_or(0o644);
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(Error::file(path))?;
        self.bytes += length;
        self.files.push(path.to_path_buf());
        Ok(())
    }

    /// Beyond 4 GiB, with bytes at either side of that edge and at both ends.
    fn giant(&mut self) -> Result<()> {
        let path = self.root.join("giant");
        let mut file = File::create(&path).map_err(Error::file(&path))?;
        file.set_len(GIANT_LEN).map_err(Error::file(&path))?;
        for at in [0, 1 << 31, (1 << 32) - 40, GIANT_LEN - 99] {
            let mut bytes = [0; 99];
            self.random.fill(&mut bytes);
            file.seek(SeekFrom::Start(at)).and_then(|_| file.write_all(&bytes)).map_err(Error::file(&path))?;
        }
        self.dress(&path, GIANT_LEN)
    }

    fn twins(&mut self) -> Result<()> {
        let (parent, [one, other]) = (self.somewhere(), self.random.choice(TWINS).unwrap_or(TWINS[0]));
        if [one, other].iter().any(|name| parent.join(name).symlink_metadata().is_ok()) {
            return Ok(());
        }
        self.common = false;
        self.write(&parent.join(one), 5000)?;
        self.write(&parent.join(other), 6000)
    }

    /// To a file, to a folder, to a link, to nothing.
    fn links(&mut self) -> Result<()> {
        for number in 0..self.random.usize(0..6) {
            let parent = self.somewhere();
            let link = parent.join(format!("link {number}"));
            let target = match self.random.u8(0..4) {
                0 => self.somewhere(),
                1 => self.root.join("not there"),
                2 if number > 0 => parent.join(format!("link {}", number - 1)),
                _ => self.files[self.random.usize(..self.files.len())].clone(),
            };
            // BEP 47 has no word for the content's folder itself.
            let loops = target.symlink_metadata().is_err() && target != self.root.join("not there");
            if target == self.root || loops || link.symlink_metadata().is_ok() {
                continue;
            }
            self.common = false;
            symlink(way(&parent, &target), &link).map_err(Error::file(&link))?;
        }
        Ok(())
    }
}

/// The relative way from a folder to a path.
fn way(from: &Path, to: &Path) -> PathBuf {
    let shared = from.components().zip(to.components()).take_while(|(one, other)| one == other).count();
    let up = std::iter::repeat_n("..", from.components().count() - shared).map(PathBuf::from);
    let way: PathBuf = up.chain(to.components().skip(shared).map(|part| PathBuf::from(part.as_os_str()))).collect();
    if way.as_os_str().is_empty() { PathBuf::from(".") } else { way }
}

/// What two trees are compared by beside their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Files and links, and whether files are executable.
    Everything,
    /// Files.
    Bytes,
}

/// Says how `got` differs from `wanted`; `None` where it does not. Empty folders, which no torrent carries, do not count.
///
/// # Errors
/// When something cannot be read.
pub fn difference(wanted: &Path, got: &Path, by: By) -> Result<Option<String>> {
    let (left, mut right) = (list(wanted)?, list(got)?);
    for (name, path) in &left {
        let Some(other) = right.remove(name) else { return Ok(Some(format!("{name:?} is missing"))) };
        if let Some(what) = entry_difference(wanted, path, got, &other, by)? {
            return Ok(Some(format!("{name:?} {what}")));
        }
    }
    Ok(right.into_keys().next().map(|name| format!("{name:?} is there and should not be")))
}

/// All but folders below `root` (or `root` itself), by relative path.
fn list(root: &Path) -> Result<BTreeMap<PathBuf, PathBuf>> {
    let (mut found, mut places) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(path) = places.pop() {
        match path.symlink_metadata() {
            Ok(meta) if meta.is_dir() => {
                for entry in fs::read_dir(&path).map_err(Error::file(&path))? {
                    places.push(entry.map_err(Error::file(&path))?.path());
                }
            }
            Ok(_) => _ = found.insert(path.strip_prefix(root).unwrap_or(&path).to_path_buf(), path),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Error::file(&path)(error)),
        }
    }
    Ok(found)
}

fn entry_difference(wanted: &Path, one: &Path, got: &Path, other: &Path, by: By) -> Result<Option<String>> {
    let meta = |path: &Path| path.symlink_metadata().map_err(Error::file(path));
    let (left, right) = (meta(one)?, meta(other)?);
    if left.is_symlink() || right.is_symlink() {
        // Where it leads counts, not by which way.
        let end = |root: &Path, path: &Path| {
            let real = path.canonicalize().ok()?;
            real.strip_prefix(root.canonicalize().ok()?).map(Path::to_path_buf).ok()
        };
        // What is in no torrent, nothing can lead to.
        let leads_to_nothing =
            || -> Result<bool> { Ok(one.is_dir() && list(&one.canonicalize().map_err(Error::file(one))?)?.is_empty()) };
        let alike =
            left.is_symlink() == right.is_symlink() && (end(wanted, one) == end(got, other) || leads_to_nothing()?);
        return Ok((!alike).then(|| format!("leads to {:?}, not to {:?}", end(got, other), end(wanted, one))));
    }
    let executable = |meta: &fs::Metadata| meta.permissions().mode() & 0o100 != 0;
    if by == By::Everything && executable(&left) != executable(&right) {
        return Ok(Some(format!("has the mode {:o}, not {:o}", right.permissions().mode(), left.permissions().mode())));
    }
    if left.len() != right.len() {
        return Ok(Some(format!("has {} bytes, not {}", right.len(), left.len())));
    }
    let open = |path: &Path| File::open(path).map_err(Error::file(path));
    let (mut left, mut right) = (open(one)?, open(other)?);
    let (mut a, mut b) = (vec![0; CHUNK_LEN], vec![0; CHUNK_LEN]);
    let mut at = 0;
    loop {
        let len = left.read(&mut a).map_err(Error::file(one))?;
        if len == 0 {
            return Ok(None);
        }
        right.read_exact(&mut b[..len]).map_err(Error::file(other))?;
        if a[..len] != b[..len] {
            return Ok(Some(format!("has other bytes after {at}")));
        }
        at += len;
    }
}

/// Puts into `out` what somebody may have there already of the content `wanted`: some files whole, some in part.
///
/// # Errors
/// When something cannot be copied.
pub fn begin(wanted: &Path, out: &Path, random: &mut Rng) -> Result<()> {
    for (name, path) in list(wanted)? {
        let meta = path.symlink_metadata().map_err(Error::file(&path))?;
        if meta.is_symlink() || meta.len() > u64::from(u32::MAX) || random.bool() {
            continue;
        }
        let to = if name.as_os_str().is_empty() { out.to_path_buf() } else { out.join(&name) };
        let bytes = fs::read(&path).map_err(Error::file(&path))?;
        let length = if random.bool() { bytes.len() } else { random.usize(0..=bytes.len()) };
        to.parent().map_or(Ok(()), fs::create_dir_all).map_err(Error::file(&to))?;
        fs::write(&to, &bytes[..length]).map_err(Error::file(&to))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_one_folder_and_differences_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        for seed in 0..30 {
            let one = make(&dir.path().join("one"), seed).unwrap();
            let other = make(&dir.path().join("other"), seed).unwrap();
            assert_eq!(one.path.file_name(), other.path.file_name());
            assert_eq!(difference(&one.path, &other.path, By::Everything).unwrap(), None, "seed {seed}");
            let victim = list(&other.path).unwrap().into_values().find(|path| {
                path.symlink_metadata().is_ok_and(|meta| meta.is_file() && (1..1 << 30).contains(&meta.len()))
            });
            let victim = victim.unwrap();
            let mode = fs::metadata(&victim).unwrap().permissions().mode();
            fs::set_permissions(&victim, Permissions::from_mode((mode ^ 0o100) | 0o200)).unwrap();
            assert!(difference(&one.path, &other.path, By::Everything).unwrap().is_some());
            assert_eq!(difference(&one.path, &other.path, By::Bytes).unwrap(), None);
            File::options().append(true).open(&victim).unwrap().write_all(b"x").unwrap();
            assert!(difference(&one.path, &other.path, By::Bytes).unwrap().is_some());
            fs::remove_dir_all(dir.path().join("one")).unwrap();
            fs::remove_dir_all(dir.path().join("other")).unwrap();
        }
    }
}
