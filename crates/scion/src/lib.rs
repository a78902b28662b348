//! A SCION end host: where paths come from, and sockets that send over them.

pub mod lookup;
pub mod socket;
