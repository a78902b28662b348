//! (to be written)

pub mod tracker;
