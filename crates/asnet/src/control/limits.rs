//! How much the control plane keeps and answers.

use std::time::Duration;

/// The shortest life of a segment: a hop field must outlive a few renewals and lookups.
pub const SEGMENT_LIFETIME_MIN: Duration = Duration::from_secs(20);
/// The longest life that a hop field can express (SCION data plane, "ExpTime").
pub const SEGMENT_LIFETIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// The life of a segment where nobody says otherwise, as scionproto has it.
pub const SEGMENT_LIFETIME_DEFAULT: Duration = Duration::from_secs(6 * 3600);
/// Segments are renewed so many times in their life: an answer always has three quarters of it left.
pub const RENEWALS_PER_LIFETIME: u32 = 4;
/// Long-lived segments are renewed as often as this, so that an answer never depends on the day's beginning.
pub const RENEWAL_MAX: Duration = Duration::from_secs(300);

/// Segments from one AS to another that are kept.
pub const SEGMENTS_PER_PAIR_MAX: usize = 32;
/// Beacons of one length that an AS passes on, for each origin.
pub const BEACONS_PER_LENGTH_MAX: usize = 32;
/// Beacons of all lengths after which an AS takes no longer ones of the same origin: three times what it keeps.
pub const BEACONS_PER_ORIGIN_MAX: usize = 3 * SEGMENTS_PER_PAIR_MAX;
/// Beacons of one length that an AS chooses from; in wide networks every neighbour gets its share.
pub const CANDIDATES_MAX: usize = 512;
/// Segments in one answer: with their claims they stay well below gRPC's 4 MiB.
pub const SEGMENTS_PER_ANSWER_MAX: usize = 512;
/// Core segments that a daemon combines to paths.
pub const CORE_SEGMENTS_PER_LOOKUP_MAX: usize = 256;
/// Interfaces of an AS about whose distance it makes claims in every entry; larger ASes claim only what lies on the segment.
pub const CLAIMED_INTERFACES_MAX: usize = 64;

/// How long a daemon leaves out paths over an interface that an application has found down, as scionproto has it.
pub const NOTIFIED_DOWN: Duration = Duration::from_secs(10);
/// Interfaces that one daemon keeps in mind as found down; a further one displaces the oldest.
pub const NOTIFIED_MAX: usize = 1024;

/// Connections to one service; further ones wait to be accepted.
pub const CONNECTIONS_MAX: usize = 256;
/// Calls at once on one HTTP/2 connection.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 64;
/// Bytes of a request; the largest real one is under a hundred.
pub const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Time to send a request's head and body: both are one packet.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
