//! Answers: segments for whoever combines them, and whole paths.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anabranch_paths::{IsdAs, ScionPath};
use anabranch_scion_wire::combine::combine;
use anabranch_scion_wire::proto::control_plane::SegmentType;
use anabranch_scion_wire::segment::Segment;

use super::beaconing::{Courses, Scope};
use super::keys::Keys;
use super::limits::{
    CORE_SEGMENTS_PER_LOOKUP_MAX, SEGMENT_LIFETIME_DEFAULT, SEGMENT_LIFETIME_MAX, SEGMENT_LIFETIME_MIN,
    SEGMENTS_PER_ANSWER_MAX, SEGMENTS_PER_PAIR_MAX,
};
use super::sealing::{Validity, seal};
use crate::topology::{As, Topology};

/// Why a lookup makes no sense. To blame is whoever asks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// The AS whose services answer is not in the topology.
    #[error("AS {0} is not part of this network")]
    NotHere(IsdAs),
    /// Only the own AS's paths are known.
    #[error("paths from {asked} are not known in {local}: ask the daemon there")]
    OtherSource {
        /// Who answers.
        local: IsdAs,
        /// What was asked for.
        asked: IsdAs,
    },
    /// A wildcard is no destination.
    #[error("`{0}` is no destination: name one AS")]
    Wildcard(IsdAs),
    /// scionproto's control service refuses these too.
    #[error("invalid request for segments from {src} to {dst}: {reason}")]
    Segments {
        /// Start of the segments.
        src: IsdAs,
        /// End of the segments.
        dst: IsdAs,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// How the control plane of a network behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long segments live, within [`SEGMENT_LIFETIME_MIN`] and [`SEGMENT_LIFETIME_MAX`]; made to fit.
    pub segment_lifetime: Duration,
    /// How long after a link went down answers still hold it: what a real network needs to notice. Hosts hear of it
    /// from routers (SCMP) at once. `None`: answers hold it for good.
    pub notice_down_after: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_lifetime: SEGMENT_LIFETIME_DEFAULT, notice_down_after: Some(NOTICE_DOWN_AFTER) }
    }
}

/// Long enough that an application meets a dead path before its daemon knows of it, as in real networks.
const NOTICE_DOWN_AFTER: Duration = Duration::from_secs(1);

/// The control plane of a whole network: what all control services together would have found.
pub struct ControlPlane {
    topology: Arc<Topology>,
    keys: Arc<Keys>,
    options: Options,
    state: Mutex<State>,
}

struct State {
    /// Links that are down, and since when.
    down: Vec<(usize, SystemTime)>,
    courses: Arc<Courses>,
}

impl ControlPlane {
    /// Over a network whose links are all up.
    pub fn new(topology: Arc<Topology>, keys: Arc<Keys>, options: Options) -> Self {
        let courses = Arc::new(Courses::new(&topology, HashSet::new()));
        let segment_lifetime = options.segment_lifetime.clamp(SEGMENT_LIFETIME_MIN, SEGMENT_LIFETIME_MAX);
        let options = Options { segment_lifetime, ..options };
        Self { topology, keys, options, state: Mutex::new(State { down: Vec::new(), courses }) }
    }

    /// The network.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The link at this index of [`Topology::links`] went down or came up.
    pub fn set_link_up(&self, link: usize, up: bool, now: SystemTime) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let known = state.down.iter().position(|(down, _)| *down == link);
        match (known, up) {
            (Some(at), true) => _ = state.down.swap_remove(at),
            (None, false) if link < self.topology.links().len() => state.down.push((link, now)),
            _ => {}
        }
    }

    /// The segments of one step of the way, as an end host in `local` asks its control service for them. Number 0 of an
    /// ISD stands for its core.
    pub fn segments(
        &self,
        local: IsdAs,
        src: IsdAs,
        dst: IsdAs,
        now: SystemTime,
    ) -> Result<(SegmentType, Vec<Segment>), LookupError> {
        let home = self.topology.get(local).ok_or(LookupError::NotHere(local))?;
        let kind = self.classify(home, src, dst)?;
        let view = self.view(now);
        let (scope, pairs) = match kind {
            SegmentType::Up => (Scope::Down, view.pairs(&self.cores(dst), &[local])),
            SegmentType::Down => (Scope::Down, view.pairs(&self.cores(src), &[dst])),
            _ => {
                // Core segments begin at the far end.
                let near = match (src.asn(), home.core) {
                    (0, true) => vec![local],
                    (0, false) => view.providers(home, &self.cores(src)),
                    _ => vec![src],
                };
                (Scope::Core, view.pairs(&self.cores(dst), &near))
            }
        };
        Ok((kind, view.segments(scope, &pairs, SEGMENTS_PER_ANSWER_MAX)))
    }

    /// All paths from `local` to `dst`, the fewest links first. Inside one AS it is one path without a header.
    pub fn paths(&self, local: IsdAs, dst: IsdAs, now: SystemTime) -> Result<Vec<ScionPath>, LookupError> {
        let home = self.topology.get(local).ok_or(LookupError::NotHere(local))?;
        if dst.isd() == 0 || dst.asn() == 0 {
            return Err(LookupError::Wildcard(dst));
        }
        if local == dst {
            return Ok(vec![ScionPath::inside(home.isd_as, home.mtu, now + SEGMENT_LIFETIME_MAX)]);
        }
        let Some(there) = self.topology.get(dst) else { return Ok(Vec::new()) };
        let view = self.view(now);
        let below = |each: &As| {
            let cores = self.cores(wildcard(each.isd_as));
            let pairs = if each.core { Vec::new() } else { view.pairs(&cores, &[each.isd_as]) };
            view.segments(Scope::Down, &pairs, SEGMENTS_PER_ANSWER_MAX)
        };
        let (up, down) = (below(home), below(there));
        let cores = |each: &As, segments: &[Segment]| -> Vec<IsdAs> {
            let mut found: Vec<IsdAs> = segments.iter().map(Segment::first).collect();
            found.extend(each.core.then_some(each.isd_as));
            found.sort();
            found.dedup();
            found
        };
        let pairs = view.pairs(&cores(there, &down), &cores(home, &up));
        let core = view.segments(Scope::Core, &pairs, CORE_SEGMENTS_PER_LOOKUP_MAX);
        let mut paths = combine(local, dst, &up, &core, &down);
        for path in &mut paths {
            let first = path.interfaces.first().and_then(|first| home.interface(first.id));
            path.next_hop = first.map(|interface| home.routers[interface.router].internal);
        }
        Ok(paths)
    }

    /// What kind of segments a request means; the same are refused as by scionproto's control service.
    fn classify(&self, home: &As, src: IsdAs, dst: IsdAs) -> Result<SegmentType, LookupError> {
        let local = home.isd_as;
        let refuse = |reason| Err(LookupError::Segments { src, dst, reason });
        let is_core = |isd_as: IsdAs| isd_as.asn() == 0 || self.topology.get(isd_as).is_some_and(|each| each.core);
        match (is_core(src), is_core(dst)) {
            _ if src.isd() == 0 || dst.isd() == 0 => refuse("the ISD is zero"),
            _ if dst == local => refuse("the destination is the asking AS: exchange source and destination"),
            (true, true) if src.isd() != local.isd() => refuse("core segments start in the asking AS's ISD"),
            (true, true) => Ok(SegmentType::Core),
            (true, false) if src.isd() != dst.isd() => refuse("down segments stay inside one ISD"),
            (true, false) => Ok(SegmentType::Down),
            (false, true) if src != local => refuse("up segments start in the asking AS"),
            (false, true) if dst.isd() != local.isd() => refuse("up segments stay inside one ISD"),
            (false, true) => Ok(SegmentType::Up),
            (false, false) => refuse("neither end is a core AS"),
        }
    }

    /// The core ASes that a number means.
    fn cores(&self, isd_as: IsdAs) -> Vec<IsdAs> {
        let meant = |each: &&As| each.core && each.isd_as.isd() == isd_as.isd();
        let named = |each: &&As| isd_as.asn() == 0 || each.isd_as == isd_as;
        self.topology.ases().iter().filter(meant).filter(named).map(|each| each.isd_as).collect()
    }

    /// The network as answers see it at `now`.
    fn view(&self, now: SystemTime) -> View<'_> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let noticed = |since: &SystemTime| {
            let delay = self.options.notice_down_after;
            delay.is_some_and(|delay| now.duration_since(*since).is_ok_and(|passed| passed >= delay))
        };
        let down: HashSet<usize> =
            state.down.iter().filter(|(_, since)| noticed(since)).map(|(link, _)| *link).collect();
        if down != *state.courses.down() {
            state.courses = Arc::new(Courses::new(&self.topology, down));
        }
        let validity = Validity::at(now, self.options.segment_lifetime);
        View { topology: &self.topology, keys: &self.keys, courses: state.courses.clone(), validity }
    }
}

fn wildcard(isd_as: IsdAs) -> IsdAs {
    IsdAs::from_u64(u64::from(isd_as.isd()) << 48)
}

struct View<'a> {
    topology: &'a Topology,
    keys: &'a Keys,
    courses: Arc<Courses>,
    validity: Validity,
}

impl View<'_> {
    /// All pairs of different ASes, as indices.
    fn pairs(&self, origins: &[IsdAs], ends: &[IsdAs]) -> Vec<(usize, usize)> {
        let indices =
            |of: &[IsdAs]| -> Vec<usize> { of.iter().filter_map(|each| self.topology.index(*each)).collect() };
        let ends = indices(ends);
        let pairs = indices(origins).into_iter().flat_map(|origin| ends.iter().map(move |end| (origin, *end)));
        pairs.filter(|(origin, end)| origin != end).collect()
    }

    /// Those of `cores` that have segments to `home`.
    fn providers(&self, home: &As, cores: &[IsdAs]) -> Vec<IsdAs> {
        let reaches = |core: &&IsdAs| {
            let pairs = self.pairs(&[**core], &[home.isd_as]);
            pairs.into_iter().any(|(origin, end)| !self.courses.between(Scope::Down, origin, end).is_empty())
        };
        cores.iter().filter(reaches).copied().collect()
    }

    /// Segments of all pairs, each pair having its share of `max`, the best ones first.
    fn segments(&self, scope: Scope, pairs: &[(usize, usize)], max: usize) -> Vec<Segment> {
        let share = (max / pairs.len().max(1)).clamp(1, SEGMENTS_PER_PAIR_MAX);
        let courses =
            pairs.iter().flat_map(|(origin, end)| self.courses.between(scope, *origin, *end).iter().take(share));
        let is_down = |link| self.courses.down().contains(&link);
        courses.filter_map(|course| seal(self.topology, self.keys, course, self.validity, is_down)).take(max).collect()
    }
}
