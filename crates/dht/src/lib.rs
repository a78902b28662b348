//! The core of the distributed hash table: datagrams and time in; datagrams, events and the next deadline out.
//!
//! No socket, clock, file or randomness of its own is in here, so every behaviour can be replayed from a seed. A [`Dht`] is one node; it
//! may be in several networks at once, over IPv4, IPv6 and SCION, and at several addresses in each: every such [place](HomeConfig) has
//! a name and a table of its own, and all have what they keep for others in common.
//!
//! | module | what it decides |
//! | --- | --- |
//! | [`wire`] | what a datagram says (BEP 5, 32, 33, 42, 43, 44, 51) |
//! | `id`, `family` | how far names are apart, and who may have which; the networks and their packed addresses |
//! | `table` | which nodes are remembered |
//! | `lookup` | whom to ask next for what is near a target |
//! | `limit`, `token` | who is answered how much; proof that an asker is where it says |
//! | `peers`, `items`, `bloom` | what is kept for others, and how many have a content |
//! | [`snapshot`] | what is kept from run to run |
//! | `node` | all of the above together |
//!
//! Whoever may name which address to us, and with whom we have nothing to do, is the driver's [`Policy`].
//!
//! ```
//! use std::time::Instant;
//! use anabranch_dht::{Config, Dht, Family, Goal, HomeConfig, NodeId, Policy};
//! use anabranch_paths::Endpoint;
//!
//! struct Anybody;
//! impl Policy for Anybody {
//!     fn fits(&self, _: &Endpoint, _: &Endpoint) -> bool { true }
//!     fn blocks(&self, _: &Endpoint) -> bool { false }
//! }
//!
//! let now = Instant::now();
//! let config = Config { secret: [7; 16], seed: 7, read_only: false, version: *b"AB01", policy: Box::new(Anybody) };
//! let mut dht = Dht::new(config, now);
//! let home = dht.add_home(HomeConfig { family: Family::V4, address: None, saved: None }, now).expect("the first");
//! dht.add_node("192.0.2.7:6881".parse()?, now);
//! let ping = dht.poll_transmit().expect("whoever may be a node is asked");
//! assert!(ping.home == home && ping.bytes.starts_with(b"d1:ad2:id20:"));
//! // What comes to the socket goes to `receive`, and at `deadline` there is something to do. A search ends even where nobody is:
//! dht.search(Goal::Peers { info_hash: NodeId([1; 20]), announce: None, scrape: false }, now);
//! assert!(dht.poll_event().is_some());
//! # Ok::<(), anabranch_paths::EndpointError>(())
//! ```
#![forbid(unsafe_code)]

mod bloom;
mod family;
mod id;
mod items;
mod limit;
mod lookup;
mod node;
mod peers;
pub mod snapshot;
mod table;
mod token;
pub mod wire;

pub use bloom::{BLOOM_LEN, Bloom};
pub use family::{Contact, Family};
pub use id::{Distance, ID_BITS, ID_LEN, NodeId};
pub use items::{ITEM_LEN_MAX, ITEMS_MAX, Item, Owner, SALT_LEN_MAX, mutable_target};
pub use lookup::{ALPHA, QUERIES_MAX};
pub use node::{
    Announce, Config, Dht, Event, Goal, HOMES_MAX, HomeConfig, HomeId, Outcome, Policy, Port, SEARCHES_MAX, SearchId,
    Stats, Transmit,
};
pub use peers::{PEERS_MAX, PEERS_OF_SWARM_MAX, SWARMS_MAX};
pub use table::BUCKET_LEN;
