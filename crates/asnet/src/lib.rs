//! A SCION AS in a box: border router, control service and the links between them.

pub mod control;
pub mod link;
pub mod network;
pub mod router;
pub mod topology;
