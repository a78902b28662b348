//! Writes past the page cache: whatever the sizes and offsets, what is read back is what was written. On the file system of the
//! checkout, which knows direct writes where it is a common one, and on one in memory, which does not.

use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::*;
use crate::page_cache::cached_bytes;
use crate::storage::direct::{Alignment, DIRECT_LEN_MIN, Mode, Target};
use crate::storage::files::Access;

const LARGE_PIECE: u32 = 1 << 20;

/// A folder on the disk that the checkout is on.
pub(super) fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

fn storage_in(root: &Path, entries: &[(u64, u8)]) -> Storage {
    Storage::open(Arc::new(info(LARGE_PIECE, entries)), root, StorageOptions::default()).unwrap()
}

fn is_ext4(file: &fs::File) -> bool {
    crate::page_cache::file_system(file) == Some(libc::EXT4_SUPER_MAGIC)
}

/// Bytes of piece space, zeros where pads are; with runs of zeros.
fn random_content(storage: &Storage, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = vec![0; storage.layout().total() as usize];
    random.fill(&mut bytes);
    for entry in storage.info().files.iter().filter(|entry| entry.kind == FileKind::Pad) {
        bytes[entry.offset as usize..(entry.offset + entry.length) as usize].fill(0);
    }
    for _ in 0..random.usize(0..3) {
        let from = random.usize(..bytes.len().max(1));
        let to = bytes.len().min(from + random.usize(..200_000));
        bytes[from..to].fill(0);
    }
    bytes
}

/// Pieces in chunks of a pool, as the driver has them; or, now and then, at any address.
fn write_pieces(storage: &Storage, content: &[u8], pieces: &[u32], random: &mut fastrand::Rng) {
    const CHUNK: usize = 256 * 1024;
    let pool = BufferPool::new(CHUNK + BUFFER_ALIGN, 16 << 20);
    for piece in pieces {
        let start = *piece as usize * LARGE_PIECE as usize;
        let bytes = &content[start..content.len().min(start + LARGE_PIECE as usize)];
        let skew = if random.u8(..4) == 0 { random.usize(..BUFFER_ALIGN) } else { 0 };
        let buffers: Vec<Buffer> = (bytes.chunks(CHUNK))
            .map(|chunk| {
                let mut buffer = pool.try_get().unwrap();
                buffer[skew..skew + chunk.len()].copy_from_slice(chunk);
                buffer
            })
            .collect();
        let slices: Vec<IoSlice> = buffers
            .iter()
            .zip(bytes.chunks(CHUNK))
            .map(|(buffer, chunk)| IoSlice::new(&buffer[skew..][..chunk.len()]))
            .collect();
        match random.u8(..5) {
            0 => storage.write_at(start as u64, &slices).unwrap(),
            _ => storage.write_uncached_at(start as u64, &slices).unwrap(),
        }
    }
}

fn assert_same(storage: &Storage, content: &[u8]) {
    assert!(read_all(storage).unwrap() == content);
    for entry in storage.info().files.iter().filter(|entry| entry.kind == FileKind::Regular && entry.length > 0) {
        let range = entry.offset as usize..(entry.offset + entry.length) as usize;
        assert!(fs::read(storage.root().join(&entry.path)).unwrap() == content[range], "{}", entry.path.display());
    }
}

proptest! {
    #[test]
    fn splits_are_whole_and_their_middle_is_aligned(offset in 0u64..1 << 40, len in 0u64..1 << 24, block in 9u32..17) {
        let alignment = Alignment::new(1 << block, 512).unwrap();
        let [head, blocks, tail] = alignment.split(offset, len);
        prop_assert_eq!(head + blocks + tail, len);
        prop_assert!(blocks == 0 || (offset + head) % alignment.block == 0 && blocks % alignment.block == 0);
        // Nothing that could be a block is left out.
        prop_assert!(len < 2 * alignment.block || blocks > 0 && head < alignment.block && tail < alignment.block);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Several threads write neighbouring pieces, in any order and both ways, while another reads what is there and what is not.
    #[test]
    fn what_is_written_past_the_cache_is_read_through_it(
        entries in proptest::collection::vec((0u64..2_500_000, 0u8..4), 1..5), seed in any::<u64>(), in_memory in any::<bool>(),
    ) {
        let root = if in_memory { tempfile::tempdir_in("/dev/shm").unwrap() } else { on_disk() };
        let mut random = fastrand::Rng::with_seed(seed);
        let storage = storage_in(root.path(), &entries);
        let content = random_content(&storage, &mut random);
        let mut pieces: Vec<u32> = (0..storage.info().geometry.piece_count()).collect();
        random.shuffle(&mut pieces);
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = pieces.chunks(pieces.len().div_ceil(3).max(1)).map(|some| {
                let (storage, content, mut random) = (&storage, &content, random.fork());
                scope.spawn(move || write_pieces(storage, content, some, &mut random))
            }).collect();
            scope.spawn(|| while !ended.load(Ordering::Relaxed) {
                // Brings pages into the cache that are being written, and the kernel's readahead those beside them.
                for (file, entry) in storage.info().regular_files() {
                    if let (Ok(open), true) = (fs::File::open(storage.file_path(file)), entry.length > 0) {
                        let _ = open.read_at(&mut [0; 20_000], random.u64(..entry.length));
                    }
                }
            });
            for writer in writers {
                writer.join().unwrap();
            }
            ended.store(true, Ordering::Relaxed);
        });
        storage.flush_all().unwrap();
        assert_same(&storage, &content);
    }
}

#[test]
fn where_direct_writes_are_known_whole_pieces_leave_the_cache_alone() {
    let root = on_disk();
    let storage = storage_in(root.path(), &[(4 << 20, 0)]);
    let mut random = fastrand::Rng::with_seed(7);
    let content: Vec<u8> = (0..4 << 20).map(|_| random.u8(1..)).collect();
    assert!(storage.waits_for_device(0, 1 << 20) && !storage.waits_for_device(0, DIRECT_LEN_MIN - 1));
    let pool = BufferPool::new(4 << 20, 4 << 20);
    let mut buffer = pool.try_get().unwrap();
    buffer.copy_from_slice(&content);
    storage.write_uncached_at(0, &[IoSlice::new(&buffer)]).unwrap();
    let file = fs::File::open(storage.file_path(0)).unwrap();
    match Alignment::of(&file) {
        None => assert!(!storage.waits_for_device(0, 1 << 20), "it is known by now"),
        // Others may accept such a write and cache it all the same.
        Some(_) if is_ext4(&file) => assert!(cached_bytes(&file, 0, 4 << 20).is_none_or(|cached| cached == 0)),
        Some(_) => {}
    }
    assert_same(&storage, &content);
}

#[test]
fn in_memory_nothing_waits_for_a_device() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let storage = storage_in(root.path(), &[(2 << 20, 0)]);
    let content = vec![3; 2 << 20];
    storage.write_uncached_at(0, &[IoSlice::new(&content)]).unwrap();
    assert!(!storage.waits_for_device(1 << 20, 1 << 20));
    assert_same(&storage, &content);
}

#[test]
fn zeros_stay_holes_past_the_cache_too() {
    let root = on_disk();
    let storage = storage_in(root.path(), &[(8 << 20, 0)]);
    let mut content = vec![0; 8 << 20];
    content[2 << 20..3 << 20].fill(9);
    storage.write_uncached_at(0, &[IoSlice::new(&content)]).unwrap();
    storage.flush_all().unwrap();
    assert!(fs::metadata(storage.file_path(0)).unwrap().blocks() * 512 < 2 << 20);
    assert_same(&storage, &content);
}

/// A file that takes fewer direct writes than was said: bytes at odd addresses, which no device takes.
#[test]
fn what_is_refused_in_the_middle_goes_on_through_the_cache() {
    let root = on_disk();
    let path = root.path().join("file");
    let open = || fs::File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    let cached = open();
    cached.set_len(8 << 20).unwrap();
    let direct = match Alignment::of(&cached) {
        Some(_) => fs::File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap(),
        None => open(), // takes all of it
    };
    let mut random = fastrand::Rng::with_seed(3);
    let pool = BufferPool::new((8 << 20) + 1, 20 << 20);
    let (mut even, mut odd) = (pool.try_get().unwrap(), pool.try_get().unwrap());
    random.fill(&mut even);
    odd.copy_from_slice(&even);
    odd.copy_within(..8 << 20, 1);
    let mode = Mode::default();
    let too_lax = Alignment { block: 4096, memory: 1 };
    let target = Target::new(&cached, Some((Arc::new(direct), too_lax)), &mode, 0);
    let write = |bytes: &[u8], offset: u64| {
        let slices = [IoSlice::new(bytes)];
        target.write(&mut vectored::Cursor::new(&slices), offset, bytes.len() as u64).unwrap();
    };
    write(&even[..2 << 20], 0);
    write(&odd[1 + (2 << 20)..1 + (5 << 20)], 2 << 20);
    write(&even[5 << 20..8 << 20], 5 << 20);
    assert!(fs::read(&path).unwrap() == even[..8 << 20]);
    cached.sync_all().unwrap();
}

#[test]
fn a_file_that_was_replaced_is_not_written_behind_its_back() {
    let root = on_disk();
    let storage = storage_in(root.path(), &[(4 << 20, 0)]);
    let (ones, twos) = (vec![1; 1 << 20], vec![2; 1 << 20]);
    storage.write_uncached_at(0, &[IoSlice::new(&ones)]).unwrap();
    let (path, copy) = (storage.file_path(0), root.path().join("copy"));
    fs::copy(&path, &copy).unwrap();
    fs::rename(&copy, &path).unwrap();
    // The descriptor of the deleted one is found out; the next try opens the path anew, both ways.
    assert_eq!(storage.write_uncached_at(1 << 20, &[IoSlice::new(&twos)]).unwrap_err().kind, ErrorKind::Vanished);
    storage.write_uncached_at(1 << 20, &[IoSlice::new(&twos)]).unwrap();
    let there = fs::read(&path).unwrap();
    assert!(there[..1 << 20] == ones && there[1 << 20..2 << 20] == twos);
    // One way only: the other descriptor was closed and opened anew.
    fs::copy(&path, &copy).unwrap();
    let away = root.path().join("away");
    fs::rename(&path, &away).unwrap();
    fs::rename(&copy, &path).unwrap();
    storage.handles().remove((storage.id, 0, Access::Cached));
    storage.write_uncached_at(2 << 20, &[IoSlice::new(&twos)]).unwrap();
    assert!(fs::read(&path).unwrap()[2 << 20..3 << 20] == twos);
    assert!(fs::read(&away).unwrap()[2 << 20..3 << 20] == vec![0; 1 << 20]);
}
