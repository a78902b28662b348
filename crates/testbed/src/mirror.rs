//! A folder of what people send, out of a seed, and whether another folder is the same to the last bit that a file system tells:
//! bytes, holes, modes, times, links, empty folders.

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fastrand::Rng;

use crate::{Error, Result, data};

/// Bytes compared at a time.
const CHUNK_LEN: usize = 1 << 20;
/// Above so many bytes, half of them are further names of the same files (hard links), to spare the disk.
const LINKED_FROM: u64 = 1 << 30;
/// What one file may take more than another with the same data: file systems hand out blocks as they like.
const SLACK_BYTES: u64 = 128 << 10;
const STAT_BLOCK_LEN: u64 = 512;

/// Makes `root`: about `bytes` of data in files of many sizes, and beside them what is not just a file of some bytes.
///
/// # Errors
/// When something cannot be written.
pub fn make(root: &Path, bytes: u64, seed: u64) -> Result<()> {
    let mut random = Rng::with_seed(seed);
    fs::create_dir_all(root).map_err(Error::file(root))?;
    let mut left = if bytes > LINKED_FROM { bytes / 2 } else { bytes };
    let mut files = Vec::new();
    // One that is most of it, then ever smaller ones.
    while left > 0 {
        let len = if left < 20_000 { left } else { left * random.u64(20..45) / 100 };
        files.push(add(root, &mut random, files.len(), len)?);
        left -= len;
    }
    for _ in 0..(bytes >> 17).clamp(100, 20_000) {
        let len = if random.u8(0..8) == 0 { 0 } else { random.u64(1..9000) };
        files.push(add(root, &mut random, files.len(), len)?);
    }
    if bytes > LINKED_FROM {
        for (number, file) in files.iter().take(30).enumerate() {
            let name = root.join(format!("another name {number}"));
            fs::hard_link(file, &name).map_err(Error::file(&name))?;
        }
    }
    strange(root, &mut random, bytes)?;
    dress(root, &mut random)
}

/// One file somewhere in three levels of folders.
fn add(root: &Path, random: &mut Rng, number: usize, len: u64) -> Result<PathBuf> {
    let mut path = root.to_path_buf();
    for _ in 0..random.u8(0..4) {
        path.push(format!("folder {}", random.u8(0..4)));
    }
    path.push(format!("{number:05} {len}"));
    data::make_file(&path, len, random.u64(..))?;
    Ok(path)
}

/// Names, links, holes, empty ones.
fn strange(root: &Path, random: &mut Rng, bytes: u64) -> Result<()> {
    let names =
        [b"caf\xe9 \xff".as_slice(), "größe 多".as_bytes(), b"Makefile", b"makefile", b"-rf", b"...", &[b'x'; 255]];
    for name in names {
        data::make_file(&root.join("names").join(OsStr::from_bytes(name)), random.u64(0..70_000), random.u64(..))?;
    }
    let nowhere = root.join("nowhere/at all/empty");
    fs::create_dir_all(&nowhere).map_err(Error::file(&nowhere))?;
    let links =
        [("to a file", "names/makefile"), ("to a folder", "names"), ("to a link", "to a file"), ("to nothing", "x/y")];
    for (name, target) in links {
        let link = root.join(name);
        symlink(target, &link).map_err(Error::file(&link))?;
    }
    let sparse = root.join("names/sparse");
    let len = bytes.clamp(64 << 20, 8 << 30);
    let file = File::create(&sparse).map_err(Error::file(&sparse))?;
    file.set_len(len).map_err(Error::file(&sparse))?;
    for run in 0..20 {
        let mut there = vec![0; random.usize(1..200_000)];
        random.fill(&mut there);
        file.write_all_at(&there, len / 20 * run + random.u64(0..1 << 20)).map_err(Error::file(&sparse))?;
    }
    let hole = root.join("names/all hole");
    File::create(&hole).and_then(|file| file.set_len(len)).map_err(Error::file(&hole))
}

/// Gives everything a mode and a time, what is in a folder before the folder.
fn dress(path: &Path, random: &mut Rng) -> Result<()> {
    let meta = path.symlink_metadata().map_err(Error::file(path))?;
    if meta.is_symlink() {
        return Ok(());
    }
    if meta.is_dir() {
        let mut inside: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(path).map_err(Error::file(path))? {
            inside.push(entry.map_err(Error::file(path))?.path());
        }
        inside.sort();
        inside.iter().try_for_each(|path| dress(path, random))?;
    }
    let modes: &[u32] = if meta.is_dir() { &[0o755, 0o700, 0o555] } else { &[0o644, 0o755, 0o600, 0o444, 0o640] };
    let time = SystemTime::UNIX_EPOCH + Duration::new(random.u64(0..2_000_000_000), random.u32(0..1_000_000_000));
    let open = File::open(path).map_err(Error::file(path))?;
    open.set_times(FileTimes::new().set_modified(time)).map_err(Error::file(path))?;
    let mode = random.choice(modes).copied().unwrap_or(0o644);
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(Error::file(path))
}

/// Says how `got` differs from `wanted`; `None` where it does not.
///
/// # Errors
/// When something cannot be read.
pub fn difference(wanted: &Path, got: &Path) -> Result<Option<String>> {
    let Ok(other) = got.symlink_metadata() else { return Ok(Some(format!("{} is missing", got.display()))) };
    let meta = wanted.symlink_metadata().map_err(Error::file(wanted))?;
    let differs = |what: &str| Ok(Some(format!("{} {what}", got.display())));
    if meta.file_type() != other.file_type() {
        return differs("is of another kind");
    }
    if meta.is_symlink() {
        let target = |path: &Path| fs::read_link(path).map_err(Error::file(path));
        return if target(wanted)? == target(got)? { Ok(None) } else { differs("leads elsewhere") };
    }
    if meta.is_dir() {
        let names = |path: &Path| -> Result<Vec<_>> {
            let list = fs::read_dir(path).map_err(Error::file(path))?;
            let mut names: Vec<_> = list.flatten().map(|entry| entry.file_name()).collect();
            names.sort();
            Ok(names)
        };
        let names = (names(wanted)?, names(got)?);
        if names.0 != names.1 {
            return differs("has other names in it");
        }
        for name in names.0 {
            if let Some(what) = difference(&wanted.join(&name), &got.join(&name))? {
                return Ok(Some(what));
            }
        }
    }
    if (meta.mode(), meta.mtime(), meta.mtime_nsec()) != (other.mode(), other.mtime(), other.mtime_nsec()) {
        return differs(&format!(
            "has mode {:o} and time {}.{}, not {:o} and {}.{}",
            other.mode(),
            other.mtime(),
            other.mtime_nsec(),
            meta.mode(),
            meta.mtime(),
            meta.mtime_nsec()
        ));
    }
    if meta.is_dir() {
        return Ok(None);
    }
    if other.blocks() * STAT_BLOCK_LEN > meta.blocks() * STAT_BLOCK_LEN + SLACK_BYTES + meta.len() / 64 {
        return differs(&format!("takes {} blocks, not {}: holes are gone", other.blocks(), meta.blocks()));
    }
    if meta.len() != other.len() || !same_bytes(wanted, got)? {
        return differs("has other bytes");
    }
    Ok(None)
}

fn same_bytes(one: &Path, other: &Path) -> Result<bool> {
    let open = |path: &Path| File::open(path).map_err(Error::file(path));
    let (mut left, mut right) = (open(one)?, open(other)?);
    let (mut a, mut b) = (vec![0; CHUNK_LEN], vec![0; CHUNK_LEN]);
    loop {
        let len = left.read(&mut a).map_err(Error::file(one))?;
        if len == 0 {
            return Ok(true);
        }
        if right.read_exact(&mut b[..len]).is_err() || a[..len] != b[..len] {
            return Ok(false);
        }
    }
}
