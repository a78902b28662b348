//! One run: a fresh network, the peers in it, and what came of them.

use std::collections::BTreeSet;
use std::net::{SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::clients::{self, PeerSetup};
use super::member::{self, Member, Stay};
use super::result::{Happened, PeerResult, RunResult};
use super::script::Script;
use super::ways;
use crate::bed::program::{Program, bare};
use crate::bed::{Bed, BedError, Flows, Host, Lease, Setup};
use crate::demo::content::Scratch;
use crate::plan::{Candidate, Cell, Change, Client, Event, LinkChange, Plan, Role};
use crate::processors::processors;
use crate::wire::WireUse;

/// How often peers are looked at, and the network.
const TICK: Duration = Duration::from_millis(50);
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long a seed may take to be ready.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// What all runs of a plan have in common.
pub(super) struct RunContext<'a> {
    pub lease: &'a Lease,
    pub plan: &'a Plan,
    pub program: &'a Path,
    /// The torrent, and the folder of its content.
    pub torrent: &'a Path,
    pub content: &'a Path,
    /// Where peers put what they fetch, and where logs go.
    pub scratch: &'a Path,
    pub cancel: &'a AtomicBool,
    /// Tells runs that go on at once from each other.
    pub slot: usize,
}

impl RunContext<'_> {
    /// Where peers of this run put what they fetch.
    fn got(&self) -> PathBuf {
        self.scratch.join(format!("got-{}", self.slot))
    }
}

/// How a run is at the moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Live {
    /// Seconds since the first leecher came.
    pub seconds: f64,
    /// Leechers that are done.
    pub done: usize,
    /// Leechers in all.
    pub leechers: usize,
}

/// Runs a cell once; what is said goes to `logs`.
pub(super) fn run(
    ground: &RunContext<'_>,
    cell: &Cell,
    repetition: u32,
    logs: &Path,
    watch: &mut dyn FnMut(Live),
) -> Result<RunResult, BedError> {
    let plan = ground.plan;
    let (candidate, placement) = (&plan.candidates[cell.candidate], &plan.placements[cell.placement]);
    let hosts: Vec<usize> = placement.peers.iter().map(|peer| peer.home).collect();
    let seed = plan.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(repetition));
    let setup = Setup {
        topology: &plan.topology,
        routing: candidate.routing,
        hosts: &hosts,
        program: ground.program,
        logs,
        seed,
        slot: ground.slot,
    };
    let (began, building) = (SystemTime::now(), Instant::now());
    let mut bed = Bed::build(ground.lease, &setup, ground.cancel)?;
    let build_seconds = building.elapsed().as_secs_f64();
    for (name, text) in [("routes.txt", bed.routes()), (ways::FILE, bed.routes_json())] {
        std::fs::write(logs.join(name), text).map_err(|error| BedError::file(logs, error))?;
    }
    let got = ground.got();
    let scratch = Scratch::new(&got);
    std::fs::create_dir_all(&got).map_err(|error| BedError::file(&got, error))?;
    let before = bed.used();
    let mut swarm = Swarm::new(ground, cell, logs, seed);
    swarm.seeds(&bed)?;
    let busy = processors();
    let outcome = swarm.follow(&mut bed, watch);
    let seconds = swarm.began.map_or(0.0, |began| began.elapsed().as_secs_f64());
    let busy = processors().zip(busy).and_then(|(after, before)| after.share_since(before));
    let links = bed
        .used()
        .iter()
        .zip(&before)
        .map(|(after, before)| [0, 1].map(|way| since(after[way], before[way])))
        .collect();
    let happened = std::mem::take(&mut swarm.happened);
    let crossed = std::mem::take(&mut swarm.crossed);
    let peers = swarm.end();
    let (network, wires) = bed.end();
    drop(scratch);
    let failed = match outcome {
        Ok(()) => None,
        Err(BedError::Canceled) => return Err(BedError::Canceled),
        Err(error) => Some(error.to_string()),
    };
    Ok(RunResult {
        cell: plan.name(cell),
        repetition,
        began: unix(began),
        build_seconds,
        seconds,
        content_bytes: plan.content_bytes,
        cpu: [peers.iter().map(|peer| peer.cpu).sum(), network, wires],
        peers,
        busy,
        links,
        crossed,
        happened,
        failed,
    })
}

fn since(after: WireUse, before: WireUse) -> WireUse {
    WireUse {
        bytes: after.bytes - before.bytes,
        dropped: after.dropped - before.dropped,
        lost: after.lost - before.lost,
        cross_bytes: after.cross_bytes - before.cross_bytes,
        noted: after.noted.since(before.noted),
    }
}

fn unix(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The directions of links in which events send cross traffic, each once.
fn crossed_ways(events: &[Event]) -> BTreeSet<(usize, usize)> {
    let of = |event: &Event| match &event.change {
        Change::Link { link, ways, to: LinkChange::Udp(_) | LinkChange::Tcp(_) } => {
            (0..2).filter(|way| ways[*way]).map(|way| (*link, way)).collect()
        }
        _ => Vec::new(),
    };
    events.iter().flat_map(of).collect()
}

/// The peers of a run.
struct Swarm<'a> {
    ground: &'a RunContext<'a>,
    candidate: &'a Candidate,
    connections: Option<u32>,
    logs: PathBuf,
    peers: Vec<Member>,
    /// When the first leecher was let go.
    began: Option<Instant>,
    began_unix: f64,
    /// Where the run's tracker is, if it has one, and the program.
    tracker: Option<String>,
    tracking: Option<Program>,
    /// What the first seed told, for those that have to know it.
    invitation: Option<String>,
    /// What happens meanwhile, what of it has, and what runs of it: cross traffic by TCP, and peers that are away.
    script: Script<'a>,
    happened: Vec<Happened>,
    /// What cross traffic there was: seconds since the run began, and bytes.
    crossed: Vec<(f64, u64)>,
    flows: Vec<(usize, Flows)>,
    away: Vec<(usize, Vec<usize>)>,
    /// Draws who leaves.
    random: fastrand::Rng,
}

impl<'a> Swarm<'a> {
    fn new(ground: &'a RunContext<'a>, cell: &Cell, logs: &Path, seed: u64) -> Self {
        let plan = ground.plan;
        let placement = &plan.placements[cell.placement];
        let is_seed_home = |home| placement.peers.iter().any(|peer| peer.role == Role::Seed && peer.home == home);
        // The same in all candidates of a repetition.
        let mut random = fastrand::Rng::with_seed(seed);
        let candidate = &plan.candidates[cell.candidate];
        let peers = placement.peers.iter().map(|peer| {
            let place = (peer.home, is_seed_home(peer.home));
            let client = peer.client.unwrap_or(candidate.client);
            Member::new(peer.role, place, client, peer.limits.clone(), peer.join.mul_f64(random.f64()))
        });
        let peers = peers.collect();
        Self {
            ground,
            candidate,
            connections: cell.connections.or(candidate.connections),
            logs: logs.to_path_buf(),
            peers,
            began: None,
            began_unix: 0.0,
            tracker: plan.tracker(cell),
            tracking: None,
            invitation: None,
            script: Script::new(&plan.events),
            happened: Vec::new(),
            crossed: Vec::new(),
            flows: Vec::new(),
            away: Vec::new(),
            random,
        }
    }

    /// Starts who has everything, and waits until they share.
    fn seeds(&mut self, bed: &Bed) -> Result<(), BedError> {
        if self.tracker.is_some() {
            let Some(host) = bed.hosts().first() else { return Ok(()) };
            let mut command = bare(self.ground.program);
            command.args(["tracker", "--json", "--listen", &format!("{}:{}", host.address, clients::TRACKER_PORT)]);
            let mut tracker = Program::start("tracker", command, &host.namespace, &self.logs)?;
            tracker.wait_event("listening", START_TIMEOUT)?;
            self.tracking = Some(tracker);
        }
        for number in 0..self.peers.len() {
            if self.peers[number].role == Role::Seed {
                self.start(bed, number)?;
            }
        }
        for (peer, host) in self.peers.iter_mut().zip(bed.hosts()) {
            let Some(program) = &mut peer.program else { continue };
            match peer.client {
                Client::Anabranch | Client::Libtorrent => {
                    program.wait_event("started", START_TIMEOUT)?;
                }
                Client::Ppspp => {
                    let told = program.wait_event("started", START_TIMEOUT)?;
                    self.invitation = told["link"].as_str().map(str::to_owned);
                }
                Client::Bulk => {
                    let told = program.wait_event("ticket", START_TIMEOUT)?;
                    self.invitation = told["ticket"].as_str().map(str::to_owned);
                }
                Client::Iperf3 => program.wait_text("Server listening", START_TIMEOUT)?,
                Client::GridFtp => {
                    let address = SocketAddrV4::new(host.address, clients::GRIDFTP_PORT);
                    let takes_calls = || host.namespace.enter(|| Ok(TcpStream::connect(address).is_ok()));
                    program.wait_listening(START_TIMEOUT, takes_calls)?;
                }
                // They tell nothing; who fetches finds them once the tracker knows them.
                Client::Aria2 | Client::Transmission => {}
            }
        }
        Ok(())
    }

    /// Starts a peer, which calls all who came before it.
    fn start(&mut self, bed: &Bed, number: usize) -> Result<(), BedError> {
        let host = &bed.hosts()[number];
        let there = (0..self.peers.len()).filter(|other| self.peers[*other].program.is_some());
        let others: Vec<&Host> = there.map(|other| &bed.hosts()[other]).collect();
        let into = self.ground.got().join(number.to_string());
        let peer = &self.peers[number];
        let order = PeerSetup {
            program: self.ground.program,
            candidate: self.candidate,
            client: peer.client,
            role: peer.role,
            host,
            others: &others,
            hosts: bed.hosts(),
            torrent: self.ground.torrent,
            content: self.ground.content,
            into: &into,
            logs: &self.logs,
            number,
            content_bytes: self.ground.plan.content_bytes,
            connections: self.connections,
            limits: &peer.limits,
            tracker: self.tracker.as_deref(),
            invitation: self.invitation.as_deref(),
            leechers: self.peers.iter().filter(|peer| peer.role == Role::Leecher).count(),
        };
        let command = order.command()?;
        let peer = &mut self.peers[number];
        peer.starts += 1;
        let name = match peer.starts {
            1 => format!("peer-{number}"),
            again => format!("peer-{number}-again-{}", again - 1),
        };
        if peer.starts == 1 {
            peer.started = unix(SystemTime::now());
            peer.joined = self.began.map_or(0.0, |began| began.elapsed().as_secs_f64());
            let tells_by_file = peer.client.is_old() && peer.role == Role::Leecher;
            peer.done_file = tells_by_file.then(|| clients::done_file(&self.logs, number));
            let shows_by_file = peer.client == Client::GridFtp && peer.role == Role::Leecher;
            peer.fetched = shows_by_file.then(|| into.join(clients::CONTENT));
        }
        peer.program = Some(Program::start(&name, command, &host.namespace, &self.logs)?);
        Ok(())
    }

    /// Lets leechers come, and follows them until all are done.
    fn follow(&mut self, bed: &mut Bed, watch: &mut dyn FnMut(Live)) -> Result<(), BedError> {
        let began = Instant::now();
        self.began = Some(began);
        self.began_unix = unix(SystemTime::now());
        let mut checked = began;
        let mut order: Vec<usize> =
            (0..self.peers.len()).filter(|each| self.peers[*each].role == Role::Leecher).collect();
        order.sort_by_key(|each| self.peers[*each].join);
        // Seeds that left may come back.
        let all: Vec<usize> =
            (0..self.peers.len()).filter(|each| self.peers[*each].role == Role::Seed).chain(order.clone()).collect();
        loop {
            let elapsed = began.elapsed();
            for number in all.clone() {
                let peer = &mut self.peers[number];
                peer.reap();
                if peer.is_due(elapsed) {
                    self.start(bed, number)?;
                }
            }
            self.listen()?;
            self.happen(bed, elapsed)?;
            let done = order.iter().filter(|each| self.peers[**each].is_done()).count();
            watch(Live { seconds: elapsed.as_secs_f64(), done, leechers: order.len() });
            if done == order.len() {
                self.note_crossed(bed, elapsed);
                return Ok(());
            }
            if self.ground.cancel.load(Ordering::Relaxed) {
                return Err(BedError::Canceled);
            }
            if elapsed > self.ground.plan.limit {
                let (seconds, of) = (elapsed.as_secs(), order.len());
                return Err(BedError::Slow { seconds, missing: of - done, of });
            }
            if checked.elapsed() > CHECK_EVERY {
                checked = Instant::now();
                bed.check()?;
                self.note_crossed(bed, elapsed);
                self.peers.iter_mut().zip(bed.hosts()).for_each(|(peer, host)| peer.note_round_trips(&host.namespace));
            }
            thread::sleep(TICK);
        }
    }

    /// Hears what peers tell: who has everything.
    fn listen(&mut self) -> Result<(), BedError> {
        let (began, bytes) = (self.began_unix, self.ground.plan.content_bytes);
        self.peers.iter_mut().try_for_each(|peer| peer.listen(began, bytes))
    }

    /// Notes how much cross traffic there was so far, where events send it.
    fn note_crossed(&mut self, bed: &Bed, elapsed: Duration) {
        let ways = crossed_ways(&self.ground.plan.events);
        if ways.is_empty() {
            return;
        }
        let used = bed.used();
        let bytes = ways.iter().map(|(link, way)| used[*link][*way].cross_bytes).sum();
        member::push(&mut self.crossed, (elapsed.as_secs_f64(), bytes));
    }

    /// What share of everything that leechers fetch is there, 0 to 1.
    fn progress(&self) -> f64 {
        let content = self.ground.plan.content_bytes;
        let leechers = self.peers.iter().filter(|peer| peer.role == Role::Leecher && peer.stay != Stay::Gone);
        let (there, count) = leechers.fold((0, 0), |(there, count), peer| {
            (there + if peer.seconds.is_some() { content } else { peer.bytes().min(content) }, count + 1)
        });
        there as f64 / (content * count).max(1) as f64
    }

    /// Does what is due to the network and to peers.
    fn happen(&mut self, bed: &Bed, elapsed: Duration) -> Result<(), BedError> {
        let due = self.script.due(elapsed, self.progress());
        for (number, begins) in due {
            let plan = self.ground.plan;
            let names = match &plan.events[number].change {
                Change::Link { link, ways, to } => {
                    self.change(bed, number, (*link, *ways), to, begins)?;
                    Vec::new()
                }
                Change::Leave { count, role, homes } => match begins {
                    true => self.leave(number, *count, *role, homes),
                    false => self.come_back(number),
                },
            };
            self.happened.push(Happened { at: elapsed.as_secs_f64(), event: number, begins, peers: names });
        }
        Ok(())
    }

    fn change(
        &mut self,
        bed: &Bed,
        number: usize,
        (link, ways): (usize, [bool; 2]),
        to: &LinkChange,
        begins: bool,
    ) -> Result<(), BedError> {
        match to {
            LinkChange::Tcp(_) if !begins => self.flows.retain(|(event, _)| *event != number),
            LinkChange::Tcp(count) => {
                for way in (0..2).filter(|way| ways[*way]) {
                    self.flows.push((number, bed.flows(link, way, number, *count)?));
                }
            }
            LinkChange::Set(_) | LinkChange::Udp(_) => {
                for way in (0..2).filter(|way| ways[*way]) {
                    let usual = self.ground.plan.topology.links()[link].shapes[way];
                    let now = self.script.condition(link, way, usual);
                    bed.set_shape(link, way, now.shape);
                    bed.wires()[link].cross(way, now.udp_bps);
                }
            }
            LinkChange::Down => {
                // Another event may have it down still.
                let usual = self.ground.plan.topology.links()[link].shapes[0];
                bed.set_up(link, self.script.condition(link, 0, usual).up)?;
            }
        }
        Ok(())
    }

    /// Lets some of those go that are there; says who.
    fn leave(&mut self, event: usize, count: usize, role: Role, homes: &[usize]) -> Vec<usize> {
        let is_there = |peer: &Member| {
            let is_meant = peer.role == role && (homes.is_empty() || homes.contains(&peer.home));
            is_meant && peer.stay == Stay::Here && peer.program.is_some() && !peer.client.ends_when_done()
        };
        let mut there: Vec<usize> = (0..self.peers.len()).filter(|each| is_there(&self.peers[*each])).collect();
        self.random.shuffle(&mut there);
        there.truncate(count);
        let stay = if self.ground.plan.events[event].length.is_some() { Stay::Away } else { Stay::Gone };
        there.iter().for_each(|each| self.peers[*each].leave(stay));
        self.away.push((event, there.clone()));
        there
    }

    fn come_back(&mut self, event: usize) -> Vec<usize> {
        let back: Vec<usize> =
            self.away.iter().filter(|(which, _)| *which == event).flat_map(|(_, who)| who.clone()).collect();
        self.away.retain(|(which, _)| *which != event);
        back.iter().for_each(|each| self.peers[*each].stay = Stay::Here);
        back
    }

    /// Ends all peers at once, as Ctrl-C would, and says what each did and cost.
    fn end(&mut self) -> Vec<PeerResult> {
        self.flows.clear();
        self.peers.iter_mut().for_each(|peer| peer.leave(peer.stay));
        let topology = &self.ground.plan.topology;
        let ended = self.peers.iter_mut().map(|peer| PeerResult {
            isd_as: topology.ases()[peer.home].isd_as.to_string(),
            role: peer.role,
            local: peer.local,
            joined: peer.joined,
            seconds: peer.seconds,
            samples: std::mem::take(&mut peer.samples),
            round_trips_ms: peer.round_trips_ms(),
            cpu: peer.end(),
        });
        ended.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::When;

    #[test]
    fn cross_traffic_counts_where_events_send_it() {
        let event = |link, ways, to| Event {
            when: When::At(Duration::ZERO),
            length: None,
            change: Change::Link { link, ways, to },
        };
        let events = [
            event(3, [true, false], LinkChange::Tcp(2)),
            event(1, [true, true], LinkChange::Udp(8)),
            event(1, [false, true], LinkChange::Udp(9)),
            event(2, [true, true], LinkChange::Down),
        ];
        assert_eq!(crossed_ways(&events).into_iter().collect::<Vec<_>>(), [(1, 0), (1, 1), (3, 0)]);
        assert!(crossed_ways(&events[3..]).is_empty());
    }
}
