//! Flags of `live`.

use std::path::PathBuf;

use anabranch_swarm::ppspp::COPIES_MAX_DEFAULT;
use clap::{Args, ValueEnum, ValueHint};

use super::Given;
use super::session::SessionFlags;
use crate::units::Rate;

const KEY_HELP: &str = "File with the key that the stream is signed with, made if it is not there: a source that is started again with it \
                        is found under the same link, by the viewers that are there too [default: a new one each time]";

/// `live`
#[derive(Debug, Args)]
#[command(mut_arg("key", |key| key.help_heading(None::<&str>).help(KEY_HELP)))]
pub(crate) struct LiveFlags {
    #[command(flatten)]
    pub given: Given,
    /// What to broadcast: a file, at its rate, or - for standard input
    #[arg(long, short, value_name = "FILE", default_value = "-", value_hint = ValueHint::FilePath)]
    pub input: PathBuf,
    /// Bytes a second to broadcast, such as 500K or 1.5MiB [default: as the clock in an MPEG transport stream says; of anything
    /// else, as it comes]
    #[arg(long, value_name = "RATE")]
    pub rate: Option<Rate>,
    /// What viewers see it called; its ending tells players what it is [default: the file's name, or live.ts]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Copies of the stream that are sent from here at most, on average; viewers have the rest from each other. One for each viewer
    /// whom no other can reach
    #[arg(long, value_name = "N", default_value_t = COPIES_MAX_DEFAULT, value_parser = clap::value_parser!(u64).range(2..=256))]
    pub copies: u64,
    /// What each signature stands for: a group of chunks that a Merkle tree leads up to it, or one chunk, which costs both ends far more
    /// CPU and spares viewers the wait for the rest of its group. The link says which
    #[arg(long, value_name = "METHOD", value_enum, default_value_t)]
    pub integrity: LiveIntegrity,
    /// Broadcast inside QUIC, encrypted, to viewers that prove a key; with --allow, only to those of these keys
    #[arg(long)]
    pub secure: bool,
    /// Tracker where viewers find each other; may be given several times
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub tracker: Vec<String>,
    #[command(flatten)]
    pub session: SessionFlags,
}

/// How a live stream is protected (RFC 7574 §6.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LiveIntegrity {
    /// Unified Merkle Tree: 16 chunks for each signature
    #[default]
    Unified,
    /// Sign All: each chunk by itself
    SignAll,
}
