//! The control plane: beaconing, segments, and the services that answer for them.

pub mod limits;
