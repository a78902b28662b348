//! Bulk transfers between two ends of one process, over loopback: what a driver has to get right, whatever the content.

mod support;
mod transfers;
mod trouble;
