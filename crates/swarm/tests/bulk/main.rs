//! Bulk transfers between two ends of one process, over loopback: what a driver has to get right, whatever the content.

mod liars;
mod networks;
mod support;
mod transfers;
mod trouble;
