//! Sessions over real loopback sockets: whole transfers, peers that misbehave, disks that fill, ways to leave.

mod control;
mod dialling;
mod failing_sync;
mod lifecycle;
mod peers;
mod sharing;
mod storage;
mod support;
mod transfers;
