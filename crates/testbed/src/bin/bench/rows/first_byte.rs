//! How soon content comes from another client, and to it, beside the same client with itself: all with the settings that they are installed
//! with, found by a tracker alone, in a network of three hosts.

use std::time::Duration;

use anabranch_testbed::Result;
use anabranch_testbed::matrix::clients::Client::{
    self, Aria2, Deluge, Libtorrent, Ours, QBittorrent, Rtorrent, Transmission, WebTorrent,
};
use anabranch_testbed::matrix::{Cell, Found};

use super::{Contender, contender};
use crate::report::Sample;

/// The row is about the beginning; this much shows the rate.
const LEN: u64 = 100_000_000;
const LIMIT: Duration = Duration::from_secs(180);

fn pair(from: Client, to: Client) -> Result<Sample> {
    let cell = Cell { from, to, found: Found::Tracker, version: "1", by_magnet: false, len: LEN };
    let measured = cell.run(LIMIT)?;
    let extra = Some(measured.rate_bytes() / 1e6);
    Ok(Sample { figure: measured.first_byte.as_secs_f64(), extra, ..Sample::default() })
}

/// Of each client: with itself, to ours, from ours.
macro_rules! pairs {
    ($($client:ident $name:literal),*) => {
        vec![
            $(
                contender(concat!($name, " to itself"), |_| pair($client, $client)),
                contender(concat!($name, " to ours"), |_| pair($client, Ours)),
                contender(concat!("ours to ", $name), |_| pair(Ours, $client)),
            )*
            contender("ours", |_| pair(Ours, Ours)),
        ]
    };
}

pub(super) fn contenders() -> Vec<Contender> {
    pairs!(
        QBittorrent "qBittorrent",
        Deluge "Deluge",
        Libtorrent "libtorrent",
        Transmission "Transmission",
        WebTorrent "WebTorrent",
        Rtorrent "rtorrent",
        Aria2 "aria2"
    )
}
