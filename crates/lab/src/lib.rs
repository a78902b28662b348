//! Networks on one machine, transfers over them, and reports of what happened.
//!
//! | module | what |
//! | --- | --- |
//! | [`network`] | a network as reports see it: who is there, what each link carries, the max-flow bound |
//! | [`run`] | what a transfer leaves behind: the events and the path log of `anabranch get`, read back |
//! | [`report`] | pure: data in, one self-contained HTML page out, with charts and maps drawn here |
//! | [`netns`], [`tun`] | namespaces, and devices that carry packets between them |
//! | [`demo`] | the scenario of `anabranch demo`: one file, one network, three ways to choose paths |
//!
//! What a report says comes from the logs of the programs that ran and from the counters of the routers between them,
//! never from what the plan expected. Everything but [`demo`] and what it runs over
//! is a function of its input.

pub mod demo;
pub mod netns;
pub mod network;
pub mod report;
pub mod run;
mod text;
pub mod tun;

pub use text::date;
