//! What is moved: metainfo, pieces, Merkle trees, hashing and storage.
//!
//! Everything here is pure but [`storage`], which touches files. Nothing here knows of peers, sockets or clocks.

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
pub mod storage;
pub mod verify;
