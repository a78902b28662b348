//! What a torrent may ask for.

use crate::bencode;

/// Bytes of a `.torrent` file or an info dictionary: room for 3 million v1 pieces.
pub const METAINFO_BYTES_MAX: usize = bencode::BYTES_MAX;
/// Pieces: with a bit a piece and peer, bitfields stay at 512 KiB. A v2 torrent can claim any number in a few bytes.
pub const PIECES_MAX: u64 = 1 << 22;
/// Bytes in a piece: what libtorrent takes; a piece is hashed as a whole.
pub const PIECE_LENGTH_MAX: u64 = ((1 << 15) - 1) * 16 * 1024;
/// Bytes in one file: its Merkle tree keeps 32-bit node numbers, as in libtorrent.
pub const FILE_LENGTH_MAX: u64 = ((1 << 30) - 1) * 16 * 1024 - 1;
/// Bytes in all: offsets stay far from overflow, and from what file systems can address.
pub const TOTAL_LENGTH_MAX: u64 = (1 << 48) - 1;
/// Entries of the file list: each is an inode and some 200 bytes of memory.
pub const FILES_MAX: usize = 500_000;
/// Components in a path, the torrent's name not counted.
pub const PATH_DEPTH_MAX: usize = 100;
/// Bytes in a whole path; `PATH_MAX` is 4096, the rest is for the download folder.
pub const PATH_BYTES_MAX: usize = 3072;
/// Bytes in all paths together: in a v2 file tree, a few bytes a file can name many long paths.
pub const PATHS_BYTES_MAX: usize = 128 << 20;
/// Symbolic links: resolved, each is a path of its own.
pub const SYMLINKS_MAX: usize = 32_768;
/// Bytes in one component, as in every common file system.
pub const NAME_BYTES_MAX: usize = 255;
/// Names tried in vain for files with equal names, over the whole torrent. Over 30 files of one name are no accident.
pub const RENAME_ATTEMPTS_MAX: usize = 500;
/// Symbolic links followed to resolve one, as in Linux.
pub const SYMLINK_HOPS_MAX: usize = 40;
/// Trackers kept, and web seeds, and DHT nodes: each costs the client traffic.
pub const URLS_MAX: usize = 500;
/// Bytes in an URL; servers refuse longer ones.
pub const URL_BYTES_MAX: usize = 2048;
