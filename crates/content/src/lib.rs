//! What is moved: metainfo, pieces, Merkle trees, hashing and storage.
//!
//! Everything here is pure but [`storage`], [`create`] and [`verify`], which touch files. Nothing here knows of peers,
//! sockets or clocks: when something happens is decided above, what is right is decided here.
//!
//! | module | what it knows |
//! | --- | --- |
//! | [`metainfo`], [`magnet`] | what a torrent file or a link says; names made safe, hostility refused |
//! | [`info`], [`geometry`] | the outcome: files, pieces and blocks, and where each lies |
//! | [`bencode`], [`hex`], [`bitfield`] | the encodings they come in |
//! | [`hash`], [`merkle`] | SHA-1 and SHA-256 over many blocks at once; BEP 52's trees |
//! | [`storage`] | pieces on disk: placement, buffers, crash-safe resume |
//! | [`create`], [`verify`] | whole contents on disk: a torrent of them, or which of it is good |
//!
//! The info-hash is the hash of the original bytes of the info dictionary, and a piece counts when its hash agrees:
//!
//! ```
//! use anabranch_content::bencode::DictBuilder;
//! use anabranch_content::hash::sha1;
//! use anabranch_content::metainfo::Metainfo;
//!
//! let mut info = DictBuilder::new();
//! info.bytes("name", "greeting").int("length", 5).int("piece length", 16384).bytes("pieces", sha1(b"hello"));
//! let torrent = Metainfo::parse(&DictBuilder::new().dict("info", &info).encode())?;
//! assert_eq!(torrent.info.hashes.v1, Some(sha1(&info.encode())));
//! assert_eq!(torrent.info.geometry.piece_count(), 1);
//! assert_eq!(torrent.info.piece_hashes[0], sha1(b"hello"));
//! # Ok::<(), anabranch_content::metainfo::MetainfoError>(())
//! ```

#![deny(unsafe_code)]

pub mod bencode;
pub mod bitfield;
pub mod create;
pub mod geometry;
pub mod hash;
pub mod hex;
pub mod info;
pub mod magnet;
pub mod merkle;
pub mod metainfo;
mod page_cache;
pub mod storage;
pub mod verify;
