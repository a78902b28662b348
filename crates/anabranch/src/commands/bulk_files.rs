//! Files as `send` reads and `receive` writes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anabranch_swarm::bulk::{Destinations, Source};

use crate::exit::Failure;
use crate::output::Chatter;
use crate::patterns::Selection;

/// Looks through what is to be sent.
pub(crate) fn scan(
    _paths: &[PathBuf],
    _selection: &Selection,
    _canceled: &AtomicBool,
    _chatter: Chatter,
) -> Result<Arc<dyn Source>, Failure> {
    Err(Failure::usage("not yet"))
}

/// Where what comes in goes.
pub(crate) fn destinations(_dir: &Path, _force: bool) -> Result<Arc<dyn Destinations>, Failure> {
    Err(Failure::usage("not yet"))
}
