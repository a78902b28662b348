//! Networks on one machine, transfers over them, and reports of what happened.
//!
//! | module | what |
//! | --- | --- |
//! | [`network`] | a network as reports see it: who is there, what each link carries, the max-flow bound |
//! | [`run`] | what a transfer leaves behind: the events and the path log of `anabranch get`, read back |
//! | [`report`] | pure: data in, one self-contained HTML page out, with charts and maps drawn here |
//! | [`plan`], [`trial`] | experiments as files, and their runs |
//! | [`sheet`], [`compare`] | pages of their results; two results side by side |
//! | [`bed`], [`wire`], [`netns`], [`tun`] | networks of namespaces that plans run over |
//! | [`routes`], [`fluid`], [`stats`] | pure: which ways BGP takes, what a network can carry, how sure means are |
//! | [`demo`] | the scenario of `anabranch demo`: one file, one network, three ways to choose paths |
//!
//! What a report says comes from the logs of the programs that ran and from the counters of the routers between them,
//! never from what the plan expected. Everything but [`demo`], [`trial`] and what these run over
//! is a function of its input.

pub mod bed;
pub mod compare;
pub mod demo;
pub mod fluid;
pub mod netns;
pub mod network;
pub mod plan;
mod processors;
pub mod report;
mod round_trips;
pub mod routes;
pub mod run;
pub mod sheet;
pub mod stats;
mod text;
pub mod trial;
pub mod tun;
pub mod wire;

pub use text::date;
