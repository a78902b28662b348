//! This node's key, and how a transfer goes, as the flags say.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use anabranch_paths::Endpoint;
use anabranch_swarm::bulk::{Options, StartError};
use anabranch_swarm::{PathsConfig, ScionConfig};
use anabranch_transport::{Identity, IdentityError};

use crate::cli::BulkFlags;
use crate::exit::{Code, Failure};
use crate::output::Chatter;
use crate::settings;

/// Beside the keys of addresses.
const KEY_NAME: &str = "own";

/// The key that others know this node by in bulk transfers and secure PPSPP: the one in `file`, or the one that is kept; `None` where nothing can be
/// kept.
pub(crate) fn own_identity(file: Option<&Path>) -> Result<Option<Identity>, Failure> {
    let storage = |error: IdentityError| Failure::new(Code::Storage, error);
    if let Some(file) = file {
        return Identity::open(file).map(Some).map_err(storage);
    }
    let Some(folder) = settings::state_folder().map(|folder| folder.join("keys")) else { return Ok(None) };
    let path = folder.join(KEY_NAME);
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    let opened =
        made.map_err(|source| IdentityError::Io { path: path.clone(), source }).and_then(|()| Identity::open(&path));
    opened.map(Some).map_err(storage)
}

/// The same, or a key for this run.
pub(crate) fn identity(file: Option<&Path>, chatter: Chatter) -> Result<Identity, Failure> {
    let why = match own_identity(file) {
        Ok(Some(identity)) => return Ok(identity),
        Ok(None) => "no folder is known to keep one in".to_owned(),
        Err(failure) if file.is_none() && failure.code == Code::Storage => failure.to_string(),
        Err(failure) => return Err(failure),
    };
    if chatter.verbose {
        chatter.note(format_args!("a new key for this run: {why}"));
    }
    Identity::ephemeral().map_err(|error| Failure::new(Code::Failed, error))
}

/// How the transfer goes, in what both ends have in common.
pub(crate) fn options(
    flags: &BulkFlags,
    listen: &[Endpoint],
    identity: Identity,
    scion: Option<ScionConfig>,
) -> Options {
    let first = Options::new(identity);
    Options {
        // Who names a SCION address alone is reached by no other.
        listen: (!listen.is_empty()).then(|| listen.iter().filter_map(Endpoint::as_ip).collect()),
        scion,
        paths: PathsConfig {
            wished: flags.paths.paths_per_peer as usize,
            granted: flags.paths.paths_per_peer as usize,
            selector: flags.paths.selector,
            interfaces: flags.paths.interface.clone(),
            ..first.paths
        },
        io: flags.paths.io.into(),
        memory_bytes: flags.memory.map_or(first.memory_bytes, |size| size.0),
        ..first
    }
}

/// Why nothing begins.
pub(crate) fn start_failure(error: &StartError) -> Failure {
    let code = match error {
        StartError::Interface(_) | StartError::Nobody | StartError::SeveralSenders(_) => Code::Usage,
        StartError::Socket(_) | StartError::Quic { .. } | StartError::Bypass(_) => Code::Network,
        StartError::Thread(_) => Code::Failed,
    };
    Failure::new(code, error)
}
