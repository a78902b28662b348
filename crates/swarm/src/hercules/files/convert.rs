//! What stands in a manifest, as the system has it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A path of a manifest.
pub(super) fn path(name: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(name))
}

/// The nearest time that the system can say.
pub(super) fn system_time((seconds, ns): (i64, u32)) -> SystemTime {
    let magnitude = Duration::from_secs(seconds.unsigned_abs());
    let whole = match seconds {
        0.. => SystemTime::UNIX_EPOCH.checked_add(magnitude),
        _ => SystemTime::UNIX_EPOCH.checked_sub(magnitude),
    };
    whole.and_then(|whole| whole.checked_add(Duration::from_nanos(ns.into()))).unwrap_or(SystemTime::UNIX_EPOCH)
}
