//! A SCION end host: where paths come from, and sockets that send over them.

#![deny(unsafe_code)]

pub mod lookup;
pub mod socket;
