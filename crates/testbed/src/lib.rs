//! What tests and benches of the whole program share: real peers, real networks, and a floor to measure against.
//!
//! - [`process`]: a child process with a deadline on everything, its CPU time and its peak memory.
//! - [`peers`]: libtorrent, aria2, transmission, rqbit and ours behind the same few verbs; SCION end hosts of others.
//! - [`browser`]: Chromium, driven as its users drive it, and what axe-core says of a page.
//! - [`data`]: file trees that look random and are the same on every run, and digests to compare them by.
//! - [`fixture`]: a content, its torrent and a tracker, ready for a transfer.
//! - [`tracker`]: a tracker that answers what a test tells it to.
//! - [`acceptor`]: the listening thread that the tracker, the meter and hostile peers have in common.
//! - [`drain`]: hundreds of leechers in one process, as load.
//! - [`hostile`]: peers that lie, stay mute, flood or send absurd lengths.
//! - [`hostile_scion`]: hosts of SCION that write packets which nobody should.
//! - [`hostile_trackers`]: trackers that drip, flood, lie, and send their clients astray.
//! - [`tricks`]: what hostile peers say without end.
//! - [`matrix`]: every client with ours, both with the settings that they come with, and how soon and how fast.
//! - [`meter`]: a relay that counts what crosses to a peer that gets killed.
//! - [`mirror`]: a folder of what people send, and whether another is the same in everything.
//! - [`web`]: a web server with ranges, which may be wrong in many ways.
//! - [`zoo`]: folders as strangers have them, out of a seed.
//! - [`net`] and [`wire`]: networks in namespaces, and a wire between two of them with rate, delay, loss and a queue.
//! - [`router`]: homes behind routers that translate addresses, and an Internet between them.
//! - [`page_cache`]: files in and out of it.
//! - [`pulses`]: a peer that answers all it was asked every so often, and is silent in between.
//! - [`raw`]: what bare TCP reaches, and the naive floor: receive, hash, write in one thread.
//!
//! Nothing here is part of the product, and the product knows nothing of it: it is driven through its command line.
//! Everything stays on loopback or in namespaces made here, every wait has a deadline, and a dropped handle kills
//! its process by pid.

pub mod acceptor;
pub mod browser;
pub mod data;
pub mod dht_nodes;
pub mod drain;
pub mod error;
pub mod fixture;
pub mod hostile;
pub mod hostile_daemon;
pub mod hostile_scion;
pub mod hostile_trackers;
pub mod matrix;
pub mod meter;
pub mod mirror;
pub mod net;
pub mod page_cache;
pub mod peers;
pub mod process;
pub mod pulses;
pub mod quic;
pub mod raw;
pub mod router;
pub mod tracker;
pub mod tricks;
pub mod udp;
pub mod udp_file;
pub mod web;
pub mod wire;
pub mod zoo;

pub use error::{Error, Result};
