//! Which paths to use: one pure function, several ways to decide, and a reason for every candidate.
//!
//! All selectors share [`Selector::select`]: candidates, what was measured of them, and a budget in; for every candidate a
//! [`Verdict`] out. They are deterministic and do not care in which order the candidates come. What they decide is meant for
//! the side that uploads, which knows all its downloaders (paper "BitTorrent over SCION", section IV.B), but asks nothing of it:
//! a downloader selects among the paths to its uploaders in the same way.
//!
//! ```
//! use anabranch_paths::select::{Budget, Candidate, Selector};
//! use anabranch_paths::{Path, Scoreboard};
//!
//! let path = |local: &str| Path::ip(local.parse().unwrap(), "192.0.2.7".parse().unwrap());
//! let candidates = [Candidate::new(1, &path("10.0.0.5")), Candidate::new(1, &path("172.16.0.5"))];
//! let selection = Selector::Disjoint.select(&candidates, &Scoreboard::default(), Budget { connections: 2, per_peer: 2 });
//! assert_eq!(selection.chosen().count(), 2);
//! println!("{}", selection.verdicts[0].reason);
//! ```

#[cfg(test)]
mod capacity_tests;
mod disjoint;
mod numbered;
mod race;
mod rank;
mod simple;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use crate::resource::Resource;
use crate::{Path, PathId, Scoreboard};

/// Candidates that one selection considers: 200 peers with 50 paths each, and as many again. What is beyond is left, said so.
pub const CANDIDATES_MAX: usize = 20_000;
/// Racing keeps a path whose weight is at least this share of the best one's (thesis, section 3.3.2, `minWeightPercentage`).
pub const MIN_WEIGHT_PERCENTAGE: u8 = 50;

/// One path to one peer, as a selector sees it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The address-level peer: every number is one peer, whatever its paths.
    pub peer: u64,
    /// The path.
    pub path: PathId,
    /// What it passes, in order.
    pub resources: Vec<Resource>,
    /// What the ASes claim that each resource carries, in kbit/s.
    pub claims_kbps: Vec<Option<u64>>,
    /// ASes it passes on its way, one less than their number.
    pub hops: usize,
    /// One-way latency that the ASes claim.
    pub latency: Option<Duration>,
    /// How long its connection took to open, once it did.
    pub handshake: Option<Duration>,
    /// Its place in the list that the path lookup gave.
    pub place: usize,
    /// It was chosen last time.
    pub is_held: bool,
    /// Paths that its peer wants at most, the same for all to one peer; `None`: as many as there may be for each. What one peer does not
    /// want is others'.
    pub limit: Option<usize>,
}

impl Candidate {
    /// `path` to the peer with the number `peer`, nothing measured yet.
    pub fn new(peer: u64, path: &Path) -> Self {
        let (resources, claims_kbps, hops, latency) = match path.as_scion() {
            Some(scion) => {
                let resources: Vec<_> = scion.interfaces.iter().copied().map(Resource::Interface).collect();
                // Even entries are links; both of a link's interfaces get its claim.
                let of_link = |interface: usize| scion.bandwidth_kbps.get(interface / 2 * 2).copied().flatten();
                let claims = (0..resources.len()).map(of_link).collect();
                (resources, claims, scion.hop_count(), scion.latency.iter().copied().sum())
            }
            None => (vec![Resource::Local(path.local()), Resource::Remote(path.remote())], vec![None; 2], 0, None),
        };
        Self {
            peer,
            path: path.id(),
            resources,
            claims_kbps,
            hops,
            latency,
            handshake: None,
            place: 0,
            is_held: false,
            limit: None,
        }
    }
}

/// How many paths may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// For all peers together (the paper's `maxOutgoingConns`).
    pub connections: usize,
    /// For each address-level peer (the thesis' `maxConnectionsPerPeer`).
    pub per_peer: usize,
}

/// What becomes of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    /// It carries content.
    Chosen,
    /// Its connection is kept, cheaply, for when it is wanted (thesis, section 7.2: "a waiting state").
    Standby,
    /// It is not used.
    Left,
}

/// Why a candidate was chosen or not.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// The first path that the lookup named.
    FirstListed,
    /// Another path stands before it in the lookup's list.
    NotFirst,
    /// No path to this peer has fewer hops.
    Shortest,
    /// Another path to this peer is shorter.
    Longer {
        /// Hops more than the shortest one has.
        by_hops: usize,
    },
    /// Everything is used.
    All,
    /// Nothing that is already chosen shares anything with it.
    Disjoint,
    /// It is its peer's only, or first, path, whatever it shares.
    ServesPeer {
        /// Weighted overlap with what is chosen.
        overlap: f64,
    },
    /// It has the least overlap of those left.
    LeastOverlap {
        /// Weighted overlap with what is chosen.
        overlap: f64,
    },
    /// Its overlap is with interfaces that were measured not to slow it.
    HarmlessOverlap,
    /// What it shares has more room left for it, by the claims of the ASes, than the others have.
    MostRoom {
        /// The narrowest of what is left on its way.
        kbps: u64,
    },
    /// By the claims of the ASes, the paths chosen leave it less room than others had.
    LessRoom {
        /// The narrowest of what is left on its way.
        kbps: u64,
        /// Where that is.
        at: Resource,
    },
    /// It shares more than others do, and the budget is spent.
    MoreOverlap {
        /// Weighted overlap with what is chosen.
        overlap: f64,
        /// Where the overlap is worst.
        at: Resource,
    },
    /// A shared interface is congested: one more path through it brings nothing.
    Bottleneck {
        /// Where.
        at: Resource,
    },
    /// As fast as the best, nearly.
    RaceWon {
        /// Share of the best path's weight, in percent.
        percent: f64,
    },
    /// Too slow beside the best.
    RaceLost {
        /// Share of the best path's weight, in percent.
        percent: f64,
    },
    /// Not measured yet, so it takes part in the next race.
    Untried,
    /// It was slow in an earlier slot and gets another chance.
    SecondChance,
    /// Few conflicts with all candidates (paper, Algorithm 1).
    FewConflicts {
        /// Interfaces shared with other candidates, counted for each of them.
        conflicts: usize,
    },
    /// It comes too late in the order of Algorithm 1.
    ManyConflicts {
        /// Interfaces shared with other candidates, counted for each of them.
        conflicts: usize,
    },
    /// Its peer has its share of paths.
    PeerServed,
    /// No connection is left to give.
    BudgetSpent,
    /// It does not work at the moment.
    Down,
    /// Too many candidates to consider.
    TooMany,
}

/// What a selector says of one candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// What becomes of it.
    pub choice: Choice,
    /// Why.
    pub reason: Reason,
}

impl Verdict {
    fn chosen(reason: Reason) -> Self {
        Self { choice: Choice::Chosen, reason }
    }

    fn left(reason: Reason) -> Self {
        Self { choice: Choice::Left, reason }
    }

    fn standby(reason: Reason) -> Self {
        Self { choice: Choice::Standby, reason }
    }
}

/// A selector's answer: a verdict for every candidate, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// As many as there were candidates.
    pub verdicts: Vec<Verdict>,
}

impl Selection {
    /// The places of the chosen candidates.
    pub fn chosen(&self) -> impl Iterator<Item = usize> + '_ {
        self.verdicts.iter().enumerate().filter(|(_, verdict)| verdict.choice == Choice::Chosen).map(|(index, _)| index)
    }
}

/// The ways to decide. The names are those of the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Selector {
    /// `first`: the path that the lookup names first.
    First,
    /// `shortest`: fewest hops, then latency.
    Shortest,
    /// `all`: every path, as far as the budget goes.
    All,
    /// `handshake-race`: those that connect nearly as fast as the fastest (thesis, Algorithm 2).
    HandshakeRace,
    /// `bandwidth-race`: those that carried nearly as much as the best in the last time slot (thesis, Algorithm 3).
    BandwidthRace,
    /// `disjoint-paper`: least conflicts among all candidates (paper, Algorithm 1, to the letter).
    DisjointPaper,
    /// `disjoint`: least overlap with what is chosen, weighted by what is measured; nobody starves.
    #[default]
    Disjoint,
}

impl Selector {
    /// Every selector, in the order of the help text.
    pub const ALL: [Self; 7] = [
        Self::Disjoint,
        Self::DisjointPaper,
        Self::First,
        Self::Shortest,
        Self::All,
        Self::HandshakeRace,
        Self::BandwidthRace,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Shortest => "shortest",
            Self::All => "all",
            Self::HandshakeRace => "handshake-race",
            Self::BandwidthRace => "bandwidth-race",
            Self::DisjointPaper => "disjoint-paper",
            Self::Disjoint => "disjoint",
        }
    }

    /// Decides. Deterministic, and the order of `candidates` makes no difference to what is chosen.
    pub fn select(self, candidates: &[Candidate], board: &Scoreboard, budget: Budget) -> Selection {
        let mut verdicts = vec![None; candidates.len()];
        // A steady order, so that ties fall the same way however the candidates were gathered.
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_key(|&index| (candidates[index].peer, candidates[index].path));
        for &index in order.iter().skip(CANDIDATES_MAX) {
            verdicts[index] = Some(Verdict::left(Reason::TooMany));
        }
        order.truncate(CANDIDATES_MAX);
        order.retain(|&index| {
            let down = board.is_down(candidates[index].path);
            if down {
                verdicts[index] = Some(Verdict::standby(Reason::Down));
            }
            !down
        });
        let mut ballot = Ballot { candidates, order, verdicts, budget };
        match self {
            Self::First => simple::first(&mut ballot),
            Self::Shortest => simple::shortest(&mut ballot),
            Self::All => simple::all(&mut ballot),
            Self::HandshakeRace => race::handshake(&mut ballot, MIN_WEIGHT_PERCENTAGE),
            Self::BandwidthRace => race::bandwidth(&mut ballot, board, MIN_WEIGHT_PERCENTAGE),
            Self::DisjointPaper => disjoint::paper(&mut ballot),
            Self::Disjoint => disjoint::greedy(&mut ballot, board),
        }
        let verdicts = ballot.verdicts.into_iter();
        Selection { verdicts: verdicts.map(|verdict| verdict.unwrap_or(Verdict::left(Reason::BudgetSpent))).collect() }
    }
}

/// A selection on its way.
struct Ballot<'a> {
    candidates: &'a [Candidate],
    /// The candidates that may be chosen, by peer, then path.
    order: Vec<usize>,
    verdicts: Vec<Option<Verdict>>,
    budget: Budget,
}

impl Ballot<'_> {
    fn decide(&mut self, index: usize, verdict: Verdict) {
        self.verdicts[index] = Some(verdict);
    }

    /// Paths that may be chosen for the peer of a candidate.
    fn limit(&self, index: usize) -> usize {
        self.candidates[index].limit.map_or(self.budget.per_peer, |limit| limit.min(self.budget.per_peer))
    }

    /// The candidates of each peer, as ranges of `order`.
    fn peers(&self) -> Vec<Vec<usize>> {
        let by_peer = self.order.chunk_by(|a, b| self.candidates[*a].peer == self.candidates[*b].peer);
        by_peer.map(<[usize]>::to_vec).collect()
    }

    /// Deals connections out, one round after the other: every peer's first wish before anybody's second. What each
    /// peer wishes is in `wishes`, best first, with the reason; what does not fit gets `left`.
    fn deal(&mut self, wishes: Vec<Vec<(usize, Reason)>>) {
        let mut given = 0;
        for round in 0.. {
            let mut any = false;
            for wish in &wishes {
                let Some((index, reason)) = wish.get(round) else { continue };
                any = true;
                let verdict = if round >= self.limit(*index) {
                    Verdict::standby(Reason::PeerServed)
                } else if given >= self.budget.connections {
                    Verdict::left(Reason::BudgetSpent)
                } else {
                    given += 1;
                    Verdict::chosen(reason.clone())
                };
                self.decide(*index, verdict);
            }
            if !any {
                return;
            }
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no selector has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no selector: choose one of disjoint, disjoint-paper, first, shortest, all, handshake-race, bandwidth-race"
)]
pub struct UnknownSelector(String);

impl FromStr for Selector {
    type Err = UnknownSelector;

    fn from_str(text: &str) -> Result<Self, UnknownSelector> {
        let known = Self::ALL.into_iter().find(|selector| selector.name() == text);
        known.ok_or_else(|| UnknownSelector(text.to_owned()))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FirstListed => write!(f, "first in the lookup's list"),
            Self::NotFirst => write!(f, "not first in the lookup's list"),
            Self::Shortest => write!(f, "fewest hops"),
            Self::Longer { by_hops: 0 } => write!(f, "as short as the shortest, but slower by its claims"),
            Self::Longer { by_hops } => write!(f, "{by_hops} hops longer than the shortest"),
            Self::All => write!(f, "every path is used"),
            Self::Disjoint => write!(f, "shares nothing with the paths chosen before"),
            Self::ServesPeer { overlap } => write!(f, "the first path of its peer (overlap {overlap:.1})"),
            Self::LeastOverlap { overlap } => write!(f, "least overlap of those left ({overlap:.1})"),
            Self::HarmlessOverlap => write!(f, "shares only what was measured not to slow it"),
            Self::MostRoom { kbps } => {
                write!(f, "shares links, with the most room left by their claims ({kbps} kbit/s)")
            }
            Self::LessRoom { kbps, at } => {
                write!(f, "the paths chosen leave it less room ({kbps} kbit/s at {at}, by its claim)")
            }
            Self::MoreOverlap { overlap, at } => {
                write!(f, "overlaps more than those chosen ({overlap:.1}, most at {at})")
            }
            Self::Bottleneck { at } => write!(f, "{at} is congested already: one more path through it brings nothing"),
            Self::RaceWon { percent } => write!(f, "{percent:.0} % of the best"),
            Self::RaceLost { percent } => write!(f, "only {percent:.0} % of the best"),
            Self::Untried => write!(f, "not measured yet"),
            Self::SecondChance => write!(f, "was slow earlier, tried again"),
            Self::FewConflicts { conflicts } => write!(f, "{conflicts} conflicts with other candidates"),
            Self::ManyConflicts { conflicts } => write!(f, "too many conflicts with other candidates ({conflicts})"),
            Self::PeerServed => write!(f, "its peer has its share of paths"),
            Self::BudgetSpent => write!(f, "no connection is left"),
            Self::Down => write!(f, "down at the moment"),
            Self::TooMany => write!(f, "too many candidates to consider"),
        }
    }
}
