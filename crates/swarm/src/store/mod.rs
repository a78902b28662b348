//! What is received on its way to the disk, and back: blocks gather in buffers, threads verify and write them.

pub mod buffers;
pub mod disk;
pub mod open;
pub mod pools;
pub mod readahead;
pub mod recheck;
pub mod spill;
