//! One run: a fresh network, the peers in it, and what came of them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anabranch_asnet::topology::set_property;

use super::result::{PeerResult, RunResult};
use crate::bed::program::{Program, bare};
use crate::bed::{Bed, BedError, Host, Lease, Routing, Setup};
use crate::demo::content::Scratch;
use crate::plan::{Candidate, Cell, Change, Plan, Role};
use crate::processors::processors;
use crate::wire::WireUse;

/// How often peers are looked at, and the network.
const TICK: Duration = Duration::from_millis(50);
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long a seed may take to be ready.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Where peers listen.
const IP_PORT: u16 = 6881;
/// The first of the ports that SCION's end hosts have.
const SCION_PORT: u16 = 31000;

/// What all runs of a plan have in common.
pub(super) struct Ground<'a> {
    pub lease: &'a Lease,
    pub plan: &'a Plan,
    pub program: &'a Path,
    /// The torrent, and the folder of its content.
    pub torrent: &'a Path,
    pub content: &'a Path,
    /// Where peers put what they fetch, and where logs go.
    pub scratch: &'a Path,
    pub cancel: &'a AtomicBool,
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
    ground: &Ground<'_>,
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
    };
    let (began, building) = (SystemTime::now(), Instant::now());
    let mut bed = Bed::build(ground.lease, &setup, ground.cancel)?;
    let build_seconds = building.elapsed().as_secs_f64();
    std::fs::write(logs.join("routes.txt"), bed.routes()).map_err(|error| BedError::file(logs, error))?;
    let scratch = Scratch::new(&ground.scratch.join("got"));
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
        failed,
    })
}

fn since(after: WireUse, before: WireUse) -> WireUse {
    WireUse {
        bytes: after.bytes - before.bytes,
        dropped: after.dropped - before.dropped,
        lost: after.lost - before.lost,
        cross: after.cross - before.cross,
    }
}

fn unix(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The peers of a run.
struct Swarm<'a> {
    ground: &'a Ground<'a>,
    candidate: &'a Candidate,
    connections: Option<u32>,
    logs: PathBuf,
    peers: Vec<Member>,
    /// When the first leecher was let go.
    began: Option<Instant>,
    /// What happens to the network, and whether it has: its begin, its end.
    events: Vec<[bool; 2]>,
}

struct Member {
    role: Role,
    home: usize,
    local: bool,
    /// Bytes a second that it sends and receives at most.
    limits: [Option<String>; 2],
    /// When it comes.
    join: Duration,
    program: Option<Program>,
    /// When it was started, in seconds since 1970, and after the run began.
    started: f64,
    joined: f64,
    seconds: Option<f64>,
}

impl<'a> Swarm<'a> {
    fn new(ground: &'a Ground<'a>, cell: &Cell, logs: &Path, seed: u64) -> Self {
        let plan = ground.plan;
        let placement = &plan.placements[cell.placement];
        let is_seed_home = |home| placement.peers.iter().any(|peer| peer.role == Role::Seed && peer.home == home);
        // The same in all candidates of a repetition.
        let mut random = fastrand::Rng::with_seed(seed);
        let peers = placement.peers.iter().map(|peer| Member {
            role: peer.role,
            home: peer.home,
            local: is_seed_home(peer.home),
            limits: peer.limits.clone(),
            join: peer.join.mul_f64(random.f64()),
            program: None,
            started: 0.0,
            joined: 0.0,
            seconds: None,
        });
        let candidate = &plan.candidates[cell.candidate];
        let connections = cell.connections.or(candidate.connections);
        let (peers, events) = (peers.collect(), vec![[false; 2]; plan.events.len()]);
        Self { ground, candidate, connections, logs: logs.to_path_buf(), peers, began: None, events }
    }

    /// Starts who has everything, and waits until they share.
    fn seeds(&mut self, bed: &Bed) -> Result<(), BedError> {
        for number in 0..self.peers.len() {
            if self.peers[number].role == Role::Seed {
                self.start(bed, number)?;
            }
        }
        for peer in &mut self.peers {
            if let Some(program) = &mut peer.program {
                program.wait_event("started", START_TIMEOUT)?;
            }
        }
        Ok(())
    }

    /// Starts a peer, which calls all who came before it.
    fn start(&mut self, bed: &Bed, number: usize) -> Result<(), BedError> {
        let host = &bed.hosts()[number];
        let mut command = bare(self.ground.program);
        let role = self.peers[number].role;
        match role {
            Role::Seed => command.arg("share").arg(self.ground.torrent).arg("--data").arg(self.ground.content),
            Role::Leecher => {
                let into = self.ground.scratch.join("got").join(number.to_string());
                command.arg("get").arg(self.ground.torrent).arg("-o").arg(into).arg("--seed")
            }
        };
        command.args(["--json", "--listen", &self.address(host)]);
        if let Some(daemon) = &host.daemon {
            command.args(["--sciond", daemon]);
        }
        if role == Role::Leecher {
            for other in (0..self.peers.len()).filter(|other| self.peers[*other].program.is_some()) {
                command.args(["--peer", &self.address(&bed.hosts()[other])]);
            }
            if let Some(selector) = &self.candidate.selector {
                command.args(["--selector", selector]);
            }
        }
        // Who shares grants as many paths as are asked for.
        if let Some(paths) = self.candidate.paths.filter(|_| role == Role::Leecher) {
            command.args(["--paths", &paths.to_string()]);
        }
        if let Some(connections) = self.connections {
            command.args(["--max-connections", &connections.to_string()]);
        }
        for (flag, rate) in ["--limit-up", "--limit-down"].into_iter().zip(&self.peers[number].limits) {
            if let Some(rate) = rate {
                command.args([flag, rate]);
            }
        }
        command.args(&self.candidate.flags);
        let name = format!("peer-{number}");
        let peer = &mut self.peers[number];
        peer.started = unix(SystemTime::now());
        peer.joined = self.began.map_or(0.0, |began| began.elapsed().as_secs_f64());
        peer.program = Some(Program::start(&name, command, &host.namespace, &self.logs)?);
        Ok(())
    }

    fn address(&self, host: &Host) -> String {
        match self.candidate.routing {
            Routing::Scion => format!("[{},{}]:{SCION_PORT}", host.isd_as, host.address),
            _ => format!("{}:{IP_PORT}", host.address),
        }
    }

    /// Lets leechers come, and follows them until all are done.
    fn follow(&mut self, bed: &mut Bed, watch: &mut dyn FnMut(Live)) -> Result<(), BedError> {
        let began = Instant::now();
        self.began = Some(began);
        let mut checked = began;
        let mut order: Vec<usize> =
            (0..self.peers.len()).filter(|each| self.peers[*each].role == Role::Leecher).collect();
        order.sort_by_key(|each| self.peers[*each].join);
        loop {
            let elapsed = began.elapsed();
            for number in order.clone() {
                if self.peers[number].program.is_none() && self.peers[number].join <= elapsed {
                    self.start(bed, number)?;
                }
            }
            self.change(bed, elapsed)?;
            self.listen()?;
            let done = order.iter().filter(|each| self.peers[**each].seconds.is_some()).count();
            watch(Live { seconds: elapsed.as_secs_f64(), done, leechers: order.len() });
            if done == order.len() {
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
            }
            thread::sleep(TICK);
        }
    }

    /// Hears what peers tell: who has everything.
    fn listen(&mut self) -> Result<(), BedError> {
        for peer in &mut self.peers {
            let Some(program) = &mut peer.program else { continue };
            let told = program.events()?;
            if let Some(at) =
                told.iter().filter(|told| told["event"] == "finished").find_map(|told| told["time"].as_f64())
            {
                peer.seconds = peer.seconds.or(Some((at - peer.started).max(0.0)));
            }
            if program.has_ended() {
                let said = told.iter().rev().find_map(|told| told["message"].as_str().map(str::to_owned));
                return Err(program.failure(&said.map_or("ended early".into(), |said| format!("ended early ({said})"))));
            }
        }
        Ok(())
    }

    /// Does to the network what is due.
    fn change(&mut self, bed: &Bed, elapsed: Duration) -> Result<(), BedError> {
        for (event, happened) in self.ground.plan.events.iter().zip(&mut self.events) {
            let ways = (0..2).filter(|way| event.ways[*way]);
            match &event.change {
                Change::Set(properties) if !happened[0] && elapsed >= event.at => {
                    happened[0] = true;
                    for way in ways {
                        let mut shape = self.ground.plan.topology.links()[event.link].shapes[way];
                        // The plan was checked with them.
                        properties.iter().for_each(|(key, value)| drop(set_property(&mut shape, key, value)));
                        bed.set_shape(event.link, way, shape);
                    }
                }
                Change::Cross { rate_bps, length } => {
                    let due = [elapsed >= event.at, elapsed >= event.at + *length];
                    for (edge, rate) in [*rate_bps, 0].into_iter().enumerate() {
                        if due[edge] && !happened[edge] {
                            happened[edge] = true;
                            ways.clone().for_each(|way| bed.wires()[event.link].cross(way, rate));
                        }
                    }
                }
                Change::Set(_) => {}
            }
        }
        Ok(())
    }

    /// Ends all peers at once, as Ctrl-C would, and says what each did and cost.
    fn end(&mut self) -> Vec<PeerResult> {
        for program in self.peers.iter_mut().filter_map(|peer| peer.program.as_mut()) {
            program.interrupt();
        }
        let topology = &self.ground.plan.topology;
        let ended = self.peers.iter_mut().map(|peer| PeerResult {
            isd_as: topology.ases()[peer.home].isd_as.to_string(),
            role: peer.role,
            local: peer.local,
            joined: peer.joined,
            seconds: peer.seconds,
            cpu: peer.program.as_mut().map_or(0.0, |program| program.end().cpu),
        });
        ended.collect()
    }
}
