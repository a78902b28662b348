//! One run: a program that shares, one that fetches, and what both and the routers between them say.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anabranch_asnet::network::Network as RunningNetwork;
use anabranch_asnet::router::DropReason;
use anabranch_paths::IsdAs;

use super::child::{Next, Running};
use super::{CONTENT, DemoError, Notice, Options, Strategy, TORRENT, content};
use crate::network::Network;
use crate::processors::processors;
use crate::report::{LinkUse, Run};
use crate::run::{Change, Decision, Event, PathLog, PathLogReader};

/// The port that is shared at: the first of those that SCION's end hosts have.
const PORT: u16 = 31000;
/// How often the watcher is told, about.
const TICK: Duration = Duration::from_millis(100);
/// Rates that are told while it runs are means of this time.
const RATE_SECONDS: f64 = 1.0;
/// A run that receives nothing for so long is given up.
const STUCK_TIMEOUT: Duration = Duration::from_secs(30);
/// How often all that is known is told.
const SO_FAR_EVERY: Duration = Duration::from_secs(1);
/// Choices and changes that are kept of one run.
const DECISIONS_MAX: usize = 1000;
const CHANGES_MAX: usize = 10_000;

/// Where a run happens.
pub(super) struct RunSetup<'a> {
    pub options: &'a Options,
    /// The folder of everything.
    pub out: &'a Path,
    pub network: &'a Network,
    pub running: &'a RunningNetwork,
}

/// How a run is at the moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Live {
    /// Which run.
    pub strategy: Strategy,
    /// Seconds since it began.
    pub seconds: f64,
    /// Bytes received.
    pub bytes: u64,
    /// Bytes of the file.
    pub bytes_total: u64,
    /// Bits per second, all paths together.
    pub rate: f64,
    /// The paths that carried anything so far.
    pub paths: Vec<LivePath>,
}

/// How a path is at the moment.
#[derive(Clone, Debug, PartialEq)]
pub struct LivePath {
    /// Its id.
    pub path: String,
    /// The ASes on its way, the sender first.
    pub ases: Vec<IsdAs>,
    /// Bits per second.
    pub rate: f64,
    /// Round-trip time, where known.
    pub rtt_ms: Option<f64>,
    /// Bytes received over it.
    pub bytes: u64,
}

/// Fetches the file once.
pub(super) fn run(
    setup: &RunSetup<'_>,
    strategy: Strategy,
    cancel: &AtomicBool,
    watch: &mut dyn FnMut(Notice<'_>),
) -> Result<Run, DemoError> {
    let label = strategy.selector;
    let folder = format!("{label}.got");
    let log = format!("{label}.paths.csv");
    let (share, get) = arguments(setup, strategy, &folder, &log)?;
    let commands = [shown("share", &share), shown("get", &get)];
    watch(Notice::Begins { strategy, commands: &commands });
    let got = content::Scratch::new(&setup.out.join(&folder));
    // What an earlier demo left would be taken for this one's.
    drop(content::Scratch::new(&setup.out.join(&log)));

    let program = &setup.options.program;
    let mut sharing = Running::start(program, setup.out, label, "share", &share)?;
    await_start(&mut sharing, cancel)?;
    let (links_before, busy_before) = (links(setup), processors());
    let (began, started) = (SystemTime::now(), Instant::now());
    let getting = Running::start(program, setup.out, label, "get", &get)?;
    let began = began.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let measured = || {
        let links = links(setup).iter().zip(&links_before).map(|(after, before)| since(*after, *before)).collect();
        (links, processors().zip(busy_before).and_then(|(after, before)| after.share_since(before)))
    };
    let mut follower = Follower::new(setup, strategy, started, &setup.out.join(&log));
    let blank = Run {
        name: label.to_owned(),
        about: strategy.about.to_owned(),
        commands: commands.to_vec(),
        paths_max: strategy.paths,
        began,
        seconds: 0.0,
        wasted: 0,
        log: PathLog::default(),
        decisions: Vec::new(),
        changes: Vec::new(),
        links: Vec::new(),
        busy: None,
        is_going: true,
    };
    let mut so_far = |follower: &Follower<'_>, watch: &mut dyn FnMut(Notice<'_>)| {
        let (links, busy) = measured();
        let seconds = started.elapsed().as_secs_f64();
        let (log, changes) = (follower.log.log.clone(), follower.changes.clone());
        let decisions = in_order(follower.decisions.clone());
        watch(Notice::SoFar(&Run { seconds, log, decisions, changes, links, busy, ..blank.clone() }));
    };
    let (seconds, wasted) = follower.follow(getting, &mut sharing, cancel, watch, &mut so_far)?;
    let (links, busy) = measured();
    sharing.interrupt();

    let fetched = setup.out.join(&folder).join(CONTENT);
    if !content::is_same(&setup.out.join(CONTENT), &fetched)? {
        return Err(DemoError::Differs(fetched));
    }
    drop(got);
    let (paths, decisions, changes) = follower.finish()?;
    Ok(Run { seconds, wasted, log: paths, decisions, changes, links, busy, is_going: false, ..blank })
}

/// What `share` and `get` are started with.
fn arguments(
    setup: &RunSetup<'_>,
    strategy: Strategy,
    got: &str,
    log: &str,
) -> Result<(Vec<String>, Vec<String>), DemoError> {
    let place = |isd_as: IsdAs, name: &'static str| {
        let home = setup.running.topology().get(isd_as).ok_or(DemoError::NoHost(name))?;
        let host = home.hosts.first().ok_or(DemoError::NoHost(name))?;
        Ok::<_, DemoError>((format!("[{isd_as},{}]", host.address), home.daemon))
    };
    let (sender, sender_daemon) = place(setup.network.sender, "alice")?;
    let (receiver, receiver_daemon) = place(setup.network.receiver, "bob")?;
    let address = format!("{sender}:{PORT}");
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    // Who shares chooses as those wish who fetch.
    let share = words(&[TORRENT, "--listen", &address, "--sciond", &sender_daemon.to_string(), "--json"]);
    let receiver = format!("{receiver}:0");
    let (daemon, paths) = (receiver_daemon.to_string(), strategy.paths.to_string());
    let mut get = words(&[TORRENT, "-o", got, "--selector", strategy.selector, "--paths", &paths, "--peer", &address]);
    get.extend(words(&["--listen", &receiver, "--sciond", &daemon, "--path-log", log, "--json"]));
    Ok((share, get))
}

/// A command as it is typed.
fn shown(name: &str, arguments: &[String]) -> String {
    let mut line = format!("$ anabranch {name}");
    for word in arguments {
        let plain = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./:,".contains(&byte));
        line += &if plain { format!(" {word}") } else { format!(" '{word}'") };
    }
    line
}

/// Until it has verified and shares.
fn await_start(sharing: &mut Running, cancel: &AtomicBool) -> Result<(), DemoError> {
    let asked = Instant::now();
    loop {
        match sharing.next(TICK)? {
            Next::Event(Event::Started) => return Ok(()),
            Next::Ended => return Err(sharing.ended()),
            _ if asked.elapsed() > STUCK_TIMEOUT => return Err(sharing.stuck(STUCK_TIMEOUT)),
            _ if cancel.load(Ordering::Relaxed) => return Err(DemoError::Canceled),
            _ => {}
        }
    }
}

/// Tells all that is known of a run.
type SoFar<'a> = dyn FnMut(&Follower<'_>, &mut dyn FnMut(Notice<'_>)) + 'a;

/// Reads along with what a fetching program says.
struct Follower<'a> {
    setup: &'a RunSetup<'a>,
    strategy: Strategy,
    started: Instant,
    log: PathLogReader,
    decisions: Vec<Decision>,
    changes: Vec<Change>,
}

impl<'a> Follower<'a> {
    fn new(setup: &'a RunSetup<'a>, strategy: Strategy, started: Instant, log: &Path) -> Self {
        Self { setup, strategy, started, log: PathLogReader::new(log), decisions: Vec::new(), changes: Vec::new() }
    }

    /// Until the file is there and the program has ended: seconds until it was there, and bytes received for nothing.
    fn follow(
        &mut self,
        mut getting: Running,
        sharing: &mut Running,
        cancel: &AtomicBool,
        watch: &mut dyn FnMut(Notice<'_>),
        so_far: &mut SoFar<'_>,
    ) -> Result<(f64, u64), DemoError> {
        let mut finished = None;
        let (mut moved, mut bytes, mut told) = (Instant::now(), 0, Instant::now());
        let mut told_all = Instant::now();
        loop {
            match getting.next(TICK)? {
                Next::Ended => break,
                Next::Nothing => {}
                Next::Event(Event::Finished { wasted, .. }) => {
                    finished = Some((self.started.elapsed().as_secs_f64(), wasted));
                }
                Next::Event(event) => self.record([event]),
            }
            if cancel.load(Ordering::Relaxed) {
                getting.interrupt();
                return Err(DemoError::Canceled);
            }
            if told.elapsed() < TICK {
                continue;
            }
            told = Instant::now();
            self.record_uploader(sharing)?;
            self.log.poll()?;
            let live = self.live();
            if live.bytes > bytes {
                (moved, bytes) = (Instant::now(), live.bytes);
            } else if finished.is_none() && moved.elapsed() > STUCK_TIMEOUT {
                return Err(getting.stuck(STUCK_TIMEOUT));
            }
            if finished.is_none() {
                watch(Notice::Goes(&live));
                if self.setup.options.is_followed && told_all.elapsed() >= SO_FAR_EVERY {
                    told_all = Instant::now();
                    so_far(self, watch);
                }
            }
        }
        self.record_uploader(sharing)?;
        let ended_well = getting.wait().is_some_and(|status| status.success());
        finished.filter(|_| ended_well).ok_or_else(|| getting.ended())
    }

    /// Keeps what is about paths.
    fn record(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            match event {
                Event::Paths(decision) if self.decisions.len() < DECISIONS_MAX => self.decisions.push(decision),
                Event::Path(change) if self.changes.len() < CHANGES_MAX => self.changes.push(change),
                _ => {}
            }
        }
    }

    /// Keeps what the uploader chose; what becomes of paths, the downloader tells.
    fn record_uploader(&mut self, sharing: &mut Running) -> Result<(), DemoError> {
        self.record(sharing.told()?.into_iter().filter(|event| matches!(event, Event::Paths(_))));
        Ok(())
    }

    fn live(&self) -> Live {
        let seconds = self.started.elapsed().as_secs_f64();
        let known = |path: &str| {
            let candidates = self.decisions.iter().rev().flat_map(|decision| &decision.candidates);
            candidates.into_iter().find(|candidate| candidate.path == path)
        };
        let series = self.log.log.series.iter().filter(|series| series.bytes() > 0);
        let paths: Vec<LivePath> = series
            .map(|series| {
                let last = series.points.last();
                // To the last row and not to now, so that a log that comes late looks no slower.
                let until = last.map_or(0.0, |last| last.seconds);
                let received = series.bytes() as f64 - series.bytes_at(until - RATE_SECONDS);
                LivePath {
                    path: series.path.clone(),
                    ases: known(&series.path).map(|c| self.setup.network.ases(&c.interfaces)).unwrap_or_default(),
                    rate: received * 8.0 / RATE_SECONDS.min(until.max(f64::MIN_POSITIVE)),
                    rtt_ms: last.and_then(|last| last.rtt_ms),
                    bytes: series.bytes(),
                }
            })
            .collect();
        let bytes = paths.iter().map(|path| path.bytes).sum();
        let rate = paths.iter().map(|path| path.rate).sum();
        Live { strategy: self.strategy, seconds, bytes, bytes_total: self.setup.options.content_bytes, rate, paths }
    }

    fn finish(self) -> Result<(PathLog, Vec<Decision>, Vec<Change>), DemoError> {
        Ok((self.log.finish()?, in_order(self.decisions), self.changes))
    }
}

/// Both sides tell of choices, each in its own order.
fn in_order(mut decisions: Vec<Decision>) -> Vec<Decision> {
    decisions.sort_by(|a, b| a.time.total_cmp(&b.time));
    decisions
}

/// What the routers counted so far: what came out at the other end of each link, and what found no room.
fn links(setup: &RunSetup<'_>) -> Vec<[LinkUse; 2]> {
    let stats = |interface: anabranch_paths::Interface| {
        let router = setup.running.router(interface.isd_as)?;
        router.stats(interface.id).ok()
    };
    let of = |line: &crate::network::Line| {
        [0, 1].map(|end| LinkUse {
            bytes: stats(line.ends[1 - end]).map_or(0, |stats| stats.received_bytes),
            dropped: stats(line.ends[end]).map_or(0, |stats| stats.dropped_for(DropReason::QueueFull)),
        })
    };
    setup.network.lines.iter().map(of).collect()
}

fn since(after: [LinkUse; 2], before: [LinkUse; 2]) -> [LinkUse; 2] {
    [0, 1].map(|end| LinkUse {
        bytes: after[end].bytes.saturating_sub(before[end].bytes),
        dropped: after[end].dropped.saturating_sub(before[end].dropped),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_they_are_typed() {
        let words = ["noise.torrent", "--peer", "[1-ff00:0:110,127.0.0.1]:31000"].map(str::to_owned);
        assert_eq!(shown("get", &words), "$ anabranch get noise.torrent --peer '[1-ff00:0:110,127.0.0.1]:31000'");
    }
}
