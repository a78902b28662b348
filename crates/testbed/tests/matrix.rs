//! The quick part of the matrix of clients: with the settings that they come with, in a network of three hosts. `make matrix` runs all of it.

use std::time::Duration;

use anabranch_testbed::matrix::cells;
use anabranch_testbed::net;

const LIMIT: Duration = Duration::from_secs(150);

#[test]
fn clients_with_their_own_settings_meet_by_tracker_by_table_and_by_calling_out() {
    if !net::available() {
        eprintln!("left out: not root");
        return;
    }
    for cell in cells::quick() {
        let measured = cell.run(LIMIT).unwrap_or_else(|error| panic!("{cell:?}: {error}"));
        println!("{cell:?}: {measured:?}");
    }
}
