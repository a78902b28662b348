//! A SCION AS in a box: everything that a SCION network consists of, small enough to embed.
//!
//! | module | what |
//! | --- | --- |
//! | [`topology`] | networks as files: who is there, what joins them; checked, with every address filled in |
//! | [`control`] | the control plane: segments with real seals, daemons and control services that answer for them |
//! | [`router`] | the data plane: border routers that judge and forward packets in bursts |
//! | [`link`] | what a line does to packets: rate, delay, jitter, loss, queue, MTU |
//! | [`network`] | all of it at work in one process, or some ASes of it; links changed at run time |
//!
//! Data plane and control plane meet in two things only: the topology, and each AS's key. End hosts are not here: they use
//! the daemons as on any SCION network. There is no control-plane PKI, no bootstrapping by DNS and no dispatcher.
//!
//! ```
//! use anabranch_asnet::network::{Network, Options};
//! use anabranch_asnet::topology::Topology;
//!
//! let topology = Topology::from_toml("lone.toml", r#"
//!     network = "127.97.0.0"
//!     [as."1-ff00:0:110"]
//!     core = true
//! "#)?;
//! let network = Network::start(topology, Options::default())?;
//! let daemons: Vec<String> = network.ases().map(|each| each.daemon.to_string()).collect();
//! assert_eq!(daemons, ["127.97.0.1:30255"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod control;
pub mod link;
pub mod network;
pub mod router;
pub mod topology;
