//! Flags of `keys`.

use std::path::PathBuf;

use anabranch_paths::Endpoint;
use clap::{Args, Subcommand, ValueHint};

/// Flags of `keys`.
#[derive(Debug, Args)]
pub(crate) struct KeysFlags {
    /// What to do with them.
    #[command(subcommand)]
    pub command: KeysCommand,
}

/// What to do with known keys.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Print them, the one that was met first in front
    List(KeysListFlags),
    /// Forget the key of a peer, so that its next one is taken
    Forget(KeysForgetFlags),
    /// Print the key by which others know this node in `send` and `receive`, as --allow takes it
    Own(KeysOwnFlags),
}

/// Flags of `keys own`.
#[derive(Debug, Args)]
pub(crate) struct KeysOwnFlags {
    /// File with the key, made if it is not there [default: one in $XDG_STATE_HOME/anabranch/keys]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub key: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Flags of `keys list`.
#[derive(Debug, Args)]
pub(crate) struct KeysListFlags {
    #[command(flatten)]
    pub file: KnownKeysFlags,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Flags of `keys forget`.
#[derive(Debug, Args)]
pub(crate) struct KeysForgetFlags {
    /// Its address, as --peer or --to was given it; several may be given
    #[arg(required = true, value_name = "ADDR")]
    pub address: Vec<Endpoint>,
    #[command(flatten)]
    pub file: KnownKeysFlags,
}

/// Which file known keys are in.
#[derive(Debug, Args)]
pub(crate) struct KnownKeysFlags {
    /// Their file [default: $XDG_STATE_HOME/anabranch/known-keys]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub known_keys: Option<PathBuf>,
}
