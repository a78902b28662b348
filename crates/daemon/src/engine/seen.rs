//! A content as those see it who show many at once: borrowed, and nothing worked out that is not asked for.

use super::tick::{ratio, totals};
use super::{Content, Engine, SHORT_HASH_LEN, Sums};
use crate::library::{Entry, Kind, Settings, Totals};

/// A content.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a>(&'a Content);

/// Traffic of a content in this run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) down_rate: u64,
    pub(crate) up_rate: u64,
    pub(crate) downloaded: u64,
    pub(crate) uploaded: u64,
    pub(crate) wasted: u64,
    pub(crate) peers: u32,
    pub(crate) seeds: u32,
}

impl<'a> Seen<'a> {
    /// What is kept of it.
    pub(crate) fn entry(self) -> &'a Entry {
        &self.0.entry
    }

    /// What it is at: one of [`super::STATES`].
    pub(crate) fn state(self) -> &'static str {
        super::view::state(self.0)
    }

    /// Its traffic in this run.
    pub(crate) fn traffic(self) -> Traffic {
        let Some(progress) = &self.0.live.progress else { return Traffic::default() };
        let stats = &progress.stats;
        Traffic {
            down_rate: stats.download_rate_bytes,
            up_rate: stats.upload_rate_bytes,
            downloaded: stats.downloaded_bytes,
            uploaded: stats.uploaded_bytes,
            wasted: stats.wasted_bytes,
            peers: stats.peers,
            seeds: stats.seeds,
        }
    }

    /// What moved, all runs together.
    pub(crate) fn totals(self) -> Totals {
        totals(self.0)
    }

    /// Bytes sent for each byte that is there.
    pub(crate) fn ratio(self) -> f64 {
        ratio(self.0)
    }

    /// Pieces that are there; `None` where that is not known at present.
    pub(crate) fn pieces_have(self) -> Option<u32> {
        self.0.live.progress.as_ref().map(|progress| progress.pieces_have)
    }

    /// The tracker that answered last: its scheme, host and port, for the rest may be secret.
    pub(crate) fn tracker(self) -> Option<&'a str> {
        let working = self.0.live.trackers.iter().filter(|(_, tracker)| tracker.outcome.is_ok());
        working.max_by_key(|(_, tracker)| tracker.at).map(|(url, _)| url.as_str())
    }

    /// When something of it last moved, in seconds since 1970.
    pub(crate) fn active(self) -> u64 {
        self.0.live.active.unwrap_or(self.0.entry.added)
    }

    /// The name of 40 letters that it goes by where others know none but those: the v1 hash, or the beginning of the v2 hash where there
    /// is one, as qBittorrent has it. One whose torrent is being made has a name of its number.
    pub(crate) fn short_hash(self) -> String {
        let hashes = &self.0.entry.hashes;
        let long = hashes.iter().find(|hash| hash.len() > SHORT_HASH_LEN);
        let hash = long.or_else(|| hashes.first()).and_then(|hash| hash.get(..SHORT_HASH_LEN.min(hash.len())));
        hash.map_or_else(|| format!("{:040x}", self.0.entry.id), str::to_owned)
    }
}

/// Whether a tracker that is told of by its scheme, host and port is this one.
pub(crate) fn is_at(url: &str, told: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // Ports that go without saying are left out.
    let usual = if scheme.eq_ignore_ascii_case("https") { ":443" } else { ":80" };
    let bare = host.strip_suffix(usual).unwrap_or(host);
    [host, bare].iter().any(|host| told.eq_ignore_ascii_case(&format!("{scheme}://{host}")))
}

impl Engine {
    /// Looks at all contents that are not on their way out, by their numbers; but for those that are apart.
    pub(crate) fn for_each(&self, mut look: impl FnMut(Seen<'_>)) {
        let state = self.state();
        state.staying().filter(|content| !content.entry.is_apart()).for_each(|content| look(Seen(content)));
    }

    /// Looks at one of those.
    pub(crate) fn seen<T>(&self, id: u64, look: impl FnOnce(Seen<'_>) -> T) -> Option<T> {
        let state = self.state();
        let content = state.contents.get(&id)?;
        (content.entry.going.is_none() && !content.entry.is_apart()).then(|| look(Seen(content)))
    }

    /// The settings, without copying them.
    pub(crate) fn with_settings<T>(&self, look: impl FnOnce(&Settings) -> T) -> T {
        look(&self.state().settings)
    }

    /// The time by the engine's clock: whatever changes from now on does so later.
    pub(crate) fn clock(&self) -> u64 {
        self.state().changes.clock()
    }

    /// Contents that came, changed or went after some time of that clock; `None` where that is too long ago.
    pub(crate) fn changed_since(&self, clock: u64) -> Option<Vec<u64>> {
        self.state().changes.since(clock)
    }

    /// Goes on with every change of the settings.
    pub(crate) fn settings_version(&self) -> u64 {
        self.state().settings_version
    }

    /// Values that were written to the library in this run, and how often the disk was waited for.
    pub(crate) fn written(&self) -> (u64, u64) {
        self.store.written()
    }

    /// The numbers of all contents together.
    pub(crate) fn sums(&self) -> Sums {
        self.state().sums.all()
    }

    /// Those of one protocol.
    pub(crate) fn sums_of(&self, kind: Kind) -> Sums {
        self.state().sums.of(kind)
    }

    /// The content of a short hash.
    pub(crate) fn by_short_hash(&self, hash: &str) -> Option<u64> {
        let state = self.state();
        let hash = hash.to_ascii_lowercase();
        let by_hash = state.by_hash.get(&hash).copied();
        let by_number = || u64::from_str_radix(&hash, 16).ok().filter(|_| hash.len() == SHORT_HASH_LEN);
        let id = by_hash.or_else(|| {
            by_number().filter(|id| state.contents.get(id).is_some_and(|content| content.entry.hashes.is_empty()))
        })?;
        let is_one = |content: &&Content| content.entry.going.is_none() && !content.entry.is_apart();
        state.contents.get(&id).filter(is_one).map(|_| id)
    }
}
