//! The paths of one transfer, at the end that called: which ways they go, what takes the place of one that is down, and what of them
//! share a bottleneck. The other end answers where it hears from.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anabranch_hercules::wire::PATHS_MAX;
use anabranch_hercules::wire::message::Message;
use anabranch_paths::select::Candidate;
use anabranch_transport::control::ControlRouter;
use anabranch_transport::datagram;

use super::engine::{Command, Id, Measured, Route, Teller};
use super::events::{PathProgress, PathWay};
use super::network::{CandidatePath, CandidatePaths, shown};

pub(super) struct Paths {
    id: Id,
    engine: Teller,
    /// The caller's, by index.
    used: BTreeMap<u8, Used>,
    chunk_len: u16,
    is_fair: bool,
    wished: usize,
    router: ControlRouter,
    quic: Quic,
    /// What each path had moved at the last look, by index.
    moved: BTreeMap<u8, Moved>,
}

/// Where QUIC's packets go.
#[derive(Default)]
struct Quic {
    /// They follow this path for as long as it is up,
    index: u8,
    /// whose route is this now.
    path: Option<datagram::Path>,
    /// The socket that the connection is bound to.
    port: Option<usize>,
}

/// What a path has moved, of which some may have gone another way before.
struct Moved {
    name: Arc<str>,
    /// All.
    total: Amounts,
    /// What had gone other ways.
    elsewhere: Amounts,
}

#[derive(Clone, Copy, Default)]
struct Amounts {
    bytes: u64,
    packets: Option<(u64, u64)>,
}

impl Moved {
    /// What went this way of all that was moved until now.
    fn here(&self) -> Amounts {
        let (total, other) = (&self.total, &self.elsewhere);
        let (sent_before, lost_before) = other.packets.unwrap_or_default();
        let packets = |(sent, lost): (u64, u64)| (sent.saturating_sub(sent_before), lost.saturating_sub(lost_before));
        Amounts { bytes: total.bytes.saturating_sub(other.bytes), packets: total.packets.map(packets) }
    }
}

/// A path that the caller took into use.
pub(super) struct NewPath {
    index: u8,
    /// The paths before it that may share a bottleneck with it.
    shares: Vec<u8>,
}

impl NewPath {
    /// What a receiver says of it. Named twice, so that it shares with those alone that are named behind it; a sender that does not know
    /// what that means passes over an index that it knows.
    pub(super) fn messages(&self) -> Vec<Message> {
        [self.index; 2].iter().chain(&self.shares).map(|index| Message::Path(*index)).collect()
    }
}

/// The paths of a calling receiver, as it names them.
#[derive(Debug, Default)]
pub(super) struct Named {
    /// A bit each.
    known: u32,
    latest: Option<u8>,
    count: usize,
}

/// What a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// There is a path that was not there.
    New,
    /// The latest path shares a bottleneck with none, as far as was said.
    Alone,
    /// The latest path shares one with this.
    With(u8),
}

/// Names of one receiver: each of its paths twice, and with every other.
const NAMES_MAX: usize = PATHS_MAX * (PATHS_MAX + 3) / 2;

impl Named {
    /// A path is named; `None` where there were more names than anybody needs. Its index is below [`PATHS_MAX`].
    pub(super) fn on_name(&mut self, index: u8) -> Option<(u8, Naming)> {
        self.count += 1;
        if self.count > NAMES_MAX {
            return None;
        }
        let is_known = self.known >> index & 1 == 1;
        self.known |= 1 << index;
        match self.latest {
            Some(latest) if is_known && latest == index => Some((latest, Naming::Alone)),
            Some(latest) if is_known => Some((latest, Naming::With(index))),
            _ => {
                self.latest = Some(index);
                Some((index, Naming::New))
            }
        }
    }
}

struct Used {
    candidate: CandidatePath,
    is_up: bool,
}

impl Paths {
    pub(super) fn new(
        id: Id,
        engine: &Teller,
        chunk_len: u16,
        is_fair: bool,
        wished: usize,
        router: ControlRouter,
    ) -> Self {
        Self {
            id,
            engine: engine.clone(),
            used: BTreeMap::new(),
            chunk_len,
            is_fair,
            wished,
            router,
            quic: Quic::default(),
            moved: BTreeMap::new(),
        }
    }

    /// Takes paths into use; answers those that were taken.
    pub(super) fn begin(&mut self, candidates: &[CandidatePath]) -> Vec<NewPath> {
        let begun = candidates.iter().filter_map(|candidate| self.add(candidate.clone())).collect();
        if let Some(Route { port, path }) = candidates.first().map(|candidate| candidate.route.clone()) {
            self.quic = Quic { index: 0, path: Some(path), port: Some(port) };
        }
        begun
    }

    fn add(&mut self, candidate: CandidatePath) -> Option<NewPath> {
        let index = self.used.len() as u8;
        if usize::from(index) >= PATHS_MAX || candidate.chunk_len() < self.chunk_len {
            return None;
        }
        let group = self.is_fair.then_some(index.into());
        self.engine.tell(Command::AddPath { id: self.id, index, route: Some(candidate.route.clone()), group });
        let shares = self.shares(&candidate);
        if self.is_fair {
            shares.iter().for_each(|other| {
                self.engine.tell(Command::Couple { id: self.id, one: index, other: *other });
            });
        }
        self.used.insert(index, Used { candidate, is_up: false });
        Some(NewPath { index, shares })
    }

    /// The paths that another may share a bottleneck with: a link between ASes, an uplink, the other end's address.
    fn shares(&self, candidate: &CandidatePath) -> Vec<u8> {
        let resources = Candidate::new(0, &candidate.path).resources;
        let shares = |used: &Used| {
            Candidate::new(0, &used.candidate.path).resources.iter().any(|resource| resources.contains(resource))
        };
        self.used.iter().filter(|(_, used)| shares(used)).map(|(other, _)| *other).collect()
    }

    /// Takes what was looked up: fresher, better or more paths. Answers the paths that are new.
    pub(super) fn take(&mut self, CandidatePaths { selected, others }: CandidatePaths) -> Vec<NewPath> {
        let all: Vec<&CandidatePath> =
            selected.iter().chain(&others).filter(|path| path.chunk_len() >= self.chunk_len).collect();
        let indices: Vec<u8> = self.used.keys().copied().collect();
        for index in indices {
            let Some(used) = self.used.get(&index) else { continue };
            let same = all.iter().find(|path| path.is_same(&used.candidate));
            let expiry = |path: &CandidatePath| path.path.as_scion().map(|path| path.expiry);
            let replacement = match same {
                // Fresh hop fields.
                Some(same) if expiry(same) != expiry(&used.candidate) => Some((*same).clone()),
                Some(_) if used.is_up => None,
                _ if used.is_up && same.is_none() && used.candidate.path.as_scion().is_some() => None,
                _ => all
                    .iter()
                    .find(|path| !self.used.values().any(|used| used.candidate.is_same(path)))
                    .map(|path| (*path).clone()),
            };
            if let Some(path) = replacement {
                self.engine.tell(Command::Reroute { id: self.id, index, route: path.route.clone() });
                if let Some(used) = self.used.get_mut(&index) {
                    used.candidate = path;
                }
            }
        }
        let mut added = Vec::new();
        for path in selected {
            if self.used.len() < self.wished && !self.used.values().any(|used| used.candidate.is_same(&path)) {
                added.extend(self.add(path));
            }
        }
        added
    }

    pub(super) fn set_up(&mut self, index: u8, is_up: bool) {
        if let Some(used) = self.used.get_mut(&index) {
            used.is_up = is_up;
        }
    }

    /// Whether some path does not carry anything.
    pub(super) fn is_any_down(&self) -> bool {
        self.used.values().any(|used| !used.is_up)
    }

    /// Which way a path goes.
    pub(super) fn way(&self, index: u8, route: Option<&Route>) -> Option<PathWay> {
        self.used.get(&index).map(|used| used.candidate.shown()).or_else(|| route.map(shown))
    }

    /// QUIC's packets go where some get through. Over IP who was called answers where it hears from.
    fn lead_quic(&mut self, measured: &Measured) {
        let is_callers = !self.used.is_empty();
        let leads = |route: &Route| {
            self.quic.port.is_none_or(|port| port == route.port)
                && (is_callers || route.path.remote().as_scion().is_some())
        };
        let up = measured.paths.iter().filter(|known| known.is_up);
        let up = up.filter_map(|known| Some((known.path, known.route.as_ref().filter(|route| leads(route))?)));
        let Some((index, route)) = up.min_by_key(|(index, _)| *index != self.quic.index) else { return };
        if !self.quic.path.as_ref().is_some_and(|path| path.is_identical(&route.path)) {
            self.router.set_path(&route.path);
        }
        self.quic = Quic { index, path: Some(route.path.clone()), port: Some(route.port) };
    }

    /// What is measured of the paths, in `elapsed`.
    pub(super) fn measured(&mut self, measured: &Measured, elapsed: Duration) -> Vec<PathProgress> {
        self.lead_quic(measured);
        let mut shown = Vec::new();
        for known in &measured.paths {
            let Some(way) = self.way(known.path, known.route.as_ref()) else { continue };
            let now = Amounts { bytes: known.bytes, packets: known.packets };
            let begun =
                || Moved { name: Arc::clone(&way.name), total: Amounts::default(), elsewhere: Amounts::default() };
            let moved = self.moved.entry(known.path).or_insert_with(begun);
            if moved.name != way.name {
                (moved.name, moved.elsewhere) = (Arc::clone(&way.name), moved.total);
            }
            let before = std::mem::replace(&mut moved.total, now);
            let here = moved.here();
            let rate = known.bytes.saturating_sub(before.bytes) as f64 / elapsed.as_secs_f64().max(1e-3);
            shown.push(PathProgress {
                path: known.path,
                way,
                is_up: known.is_up,
                rate_bytes: rate as u64,
                bytes: here.bytes,
                packets: here.packets,
                rtt: known.rtt,
            });
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_shares_with_those_that_are_named_behind_it() {
        let mut named = Named::default();
        let paths = [(0, vec![]), (3, vec![0]), (1, vec![0, 3])];
        let messages = paths.into_iter().flat_map(|(index, shares)| NewPath { index, shares }.messages());
        let heard = messages.map(|message| match message {
            Message::Path(index) => named.on_name(index).unwrap(),
            other => panic!("{other:?}"),
        });
        let expected = [
            (0, Naming::New),
            (0, Naming::Alone),
            (3, Naming::New),
            (3, Naming::Alone),
            (3, Naming::With(0)),
            (1, Naming::New),
            (1, Naming::Alone),
            (1, Naming::With(0)),
            (1, Naming::With(3)),
        ];
        assert_eq!(heard.collect::<Vec<_>>(), expected);
        // Who names each once says nothing of what they share.
        let mut named = Named::default();
        assert!((0..32).all(|index| named.on_name(index) == Some((index, Naming::New))));
    }

    #[test]
    fn all_paths_can_be_named_with_all_others_and_no_more_often() {
        let mut named = Named::default();
        for index in 0..PATHS_MAX as u8 {
            let shares = (0..index).collect();
            for message in (NewPath { index, shares }).messages() {
                assert!(matches!(message, Message::Path(index) if named.on_name(index).is_some()));
            }
        }
        assert_eq!(named.on_name(0), None);
    }

    #[test]
    fn what_went_another_way_is_not_counted_twice() {
        let amounts = |bytes, packets| Amounts { bytes, packets };
        let mut moved = Moved { name: "a".into(), total: amounts(900, Some((9, 1))), elsewhere: Amounts::default() };
        assert_eq!((moved.here().bytes, moved.here().packets), (900, Some((9, 1))));
        (moved.elsewhere, moved.total) = (moved.total, amounts(1500, Some((15, 3))));
        assert_eq!((moved.here().bytes, moved.here().packets), (600, Some((6, 2))));
        // A receiver counts no packets, and a path that begins anew counts from zero.
        moved.total = amounts(100, None);
        assert_eq!((moved.here().bytes, moved.here().packets), (0, None));
    }
}
