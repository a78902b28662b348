//! SCION's packets: headers, hop fields and their MACs, SCMP, segments and what they combine to. Pure.

pub mod combine;
pub mod proto;
pub mod segment;
