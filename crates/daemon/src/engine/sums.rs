//! The numbers of all contents together, and of those of each protocol: kept up with each change of one, so that whoever asks for them
//! does not count.

use super::Content;
use super::tick::totals;
use crate::library::Kind;

/// Numbers of one content, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Bytes a second, now.
    pub(crate) down_rate: u64,
    /// Bytes a second, now.
    pub(crate) up_rate: u64,
    /// Bytes received, all runs together.
    pub(crate) downloaded: u64,
    /// Bytes sent, all runs together.
    pub(crate) uploaded: u64,
    /// Bytes received since the content came into the session.
    pub(crate) run_downloaded: u64,
    /// Bytes sent since then.
    pub(crate) run_uploaded: u64,
    /// Bytes that were received in vain since then.
    pub(crate) wasted: u64,
    /// Peers that are connected.
    pub(crate) peers: u64,
}

impl Sums {
    fn of(content: &Content) -> Self {
        let totals = totals(content);
        let Some(stats) = content.live.progress.as_ref().map(|progress| &progress.stats) else {
            return Self { downloaded: totals.downloaded, uploaded: totals.uploaded, ..Self::default() };
        };
        Self {
            down_rate: stats.download_rate_bytes,
            up_rate: stats.upload_rate_bytes,
            downloaded: totals.downloaded,
            uploaded: totals.uploaded,
            run_downloaded: stats.downloaded_bytes,
            run_uploaded: stats.uploaded_bytes,
            wasted: stats.wasted_bytes,
            peers: stats.peers.into(),
        }
    }

    fn fields(&mut self) -> [&mut u64; 8] {
        let Self { down_rate, up_rate, downloaded, uploaded, run_downloaded, run_uploaded, wasted, peers } = self;
        [down_rate, up_rate, downloaded, uploaded, run_downloaded, run_uploaded, wasted, peers]
    }

    fn change(&mut self, mut by: Self, how: fn(u64, u64) -> u64) {
        self.fields().into_iter().zip(by.fields()).for_each(|(sum, by)| *sum = how(*sum, *by));
    }
}

/// The numbers of the contents of each protocol, which none changes.
#[derive(Debug, Default)]
pub(super) struct SumsByKind([Sums; Kind::ALL.len()]);

impl SumsByKind {
    /// A content is new, or may have other numbers than before.
    pub(super) fn count(&mut self, content: &mut Content) {
        let now = Sums::of(content);
        let before = std::mem::replace(&mut content.counted, now);
        if now != before {
            let sums = &mut self.0[content.entry.kind() as usize];
            // What was counted is taken away again exactly, whatever the amounts.
            sums.change(before, u64::wrapping_sub);
            sums.change(now, u64::wrapping_add);
        }
    }

    /// A content goes.
    pub(super) fn forget(&mut self, content: &Content) {
        self.0[content.entry.kind() as usize].change(content.counted, u64::wrapping_sub);
    }

    /// Those of one protocol.
    pub(super) fn of(&self, kind: Kind) -> Sums {
        self.0[kind as usize]
    }

    /// All together.
    pub(super) fn all(&self) -> Sums {
        self.0.iter().fold(Sums::default(), |mut all, sums| {
            all.change(*sums, u64::wrapping_add);
            all
        })
    }
}
