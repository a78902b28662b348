//! A SCION AS in a box: border router, control service and the links between them.

pub mod link;
pub mod router;
