//! How much the control plane keeps and answers.

use std::time::Duration;

/// The shortest life of a segment: a hop field must outlive a few renewals and lookups.
pub const SEGMENT_LIFETIME_MIN: Duration = Duration::from_secs(20);
/// The longest life that a hop field can express (SCION data plane, "ExpTime").
pub const SEGMENT_LIFETIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// The life of a segment where nobody says otherwise, as scionproto has it.
pub const SEGMENT_LIFETIME_DEFAULT: Duration = Duration::from_secs(6 * 3600);
