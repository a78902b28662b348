//! How large a plan may be. Each limit is far above what one machine runs in a day, and keeps a made-up file harmless.

use std::time::Duration;

/// Bytes of a plan, and of the topology that it names.
pub(super) const FILE_BYTES_MAX: u64 = 4 << 20;
/// Candidates, placements and values of a sweep.
pub(super) const VALUES_MAX: usize = 64;
/// Cells: candidates times placements times values of the sweeps.
pub(super) const CELLS_MAX: usize = 4096;
/// Peers of a placement: each is a process.
pub(super) const PEERS_MAX: usize = 500;
/// Events, figures, claims.
pub(super) const ENTRIES_MAX: usize = 256;
/// ASes and links of a network that is drawn: as many as one machine has.
pub(super) const GENERATED_ASES_MAX: usize = crate::bed::ASES_MAX;
pub(super) const GENERATED_LINKS_MAX: usize = crate::bed::LINKS_MAX;
/// What rates of links are divided by: links of 10 Mbit/s then have 100 kbit/s, the least that is measured.
pub(super) const SCALE_MAX: u32 = 100;
/// Runs at once.
pub(super) const JOBS_MAX: u32 = 64;
/// Repetitions of a cell.
pub(super) const REPETITIONS_MAX: u32 = 1000;
/// Bytes of the content.
pub(super) const CONTENT_BYTES_MIN: u64 = 16 << 10;
pub(super) const CONTENT_BYTES_MAX: u64 = 100_000_000_000;
/// Characters of a name.
pub(super) const NAME_CHARS_MAX: usize = 40;
/// Characters of a title or another line of prose.
pub(super) const PROSE_CHARS_MAX: usize = 400;
/// Times: joins, events, limits.
pub(super) const TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// Parts of a claim, and how deep its parentheses go.
pub(super) const CLAIM_PARTS_MAX: usize = 100;
pub(super) const CLAIM_DEPTH_MAX: usize = 16;
/// TCP connections of one event's cross traffic, each way: each is two threads.
pub(super) const CROSS_FLOWS_MAX: u32 = 64;
/// Bytes a second that a peer is limited to: the least that `--limit-up` takes, and the fastest line that links have (100 Gbit/s).
pub(super) const LIMIT_BYTES_MIN: u64 = 1000;
pub(super) const LIMIT_BYTES_MAX: u64 = 12_500_000_000;
/// How long a run may take where the plan does not say.
pub(super) const LIMIT_DEFAULT: Duration = Duration::from_secs(15 * 60);
