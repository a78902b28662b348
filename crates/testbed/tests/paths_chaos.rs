//! Five transfers over a network whose links go down, come up, turn slow and lossy at random: all complete, byte for byte,
//! in bounded memory, and every change of a path is told with a reason.
//!
//! The seed is printed; the same seed makes the same impairments, though not at the same packets. The long run:
//!
//! ```sh
//! cargo build --release -p anabranch
//! cargo test -p anabranch-testbed --test paths_chaos -- --ignored --nocapture
//! ```
//!
//! `ANABRANCH_CHAOS_SEED=N` repeats a run, `ANABRANCH_CHAOS_SECONDS=N` sets how long the long one goes on.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anabranch_asnet::network::{Direction, Network, Options};
use anabranch_asnet::topology::Topology;
use anabranch_lab::run::{Event, EventReader, Side};
use anabranch_paths::IsdAs;
use anabranch_testbed::data;
use anabranch_testbed::peers::anabranch;
use anabranch_testbed::process::Process;

/// Links of 20 Mbit/s between two leaves and three cores; two ways to each core from the first leaf.
const NETWORK: &str = "
    network = '127.150.0.0'
    [as.'1-ff00:0:1']
    core = true
    [as.'1-ff00:0:2']
    core = true
    [as.'1-ff00:0:3']
    core = true
    [as.'1-ff00:0:11']
    hosts = ['a', 'b', 'c', 'd', 'e']
    [as.'1-ff00:0:12']
    hosts = ['a', 'b', 'c', 'd', 'e']
    [defaults]
    rate = '20 Mbit/s'
    delay = '5 ms'
    [[link]]
    parent = '1-ff00:0:1'
    child = '1-ff00:0:11'
    count = 2
    [[link]]
    parent = '1-ff00:0:2'
    child = '1-ff00:0:11'
    [[link]]
    parent = '1-ff00:0:3'
    child = '1-ff00:0:11'
    [[link]]
    parent = '1-ff00:0:1'
    child = '1-ff00:0:12'
    [[link]]
    parent = '1-ff00:0:2'
    child = '1-ff00:0:12'
    [[link]]
    parent = '1-ff00:0:3'
    child = '1-ff00:0:12'
    [[link]]
    core = ['1-ff00:0:1', '1-ff00:0:2']
    [[link]]
    core = ['1-ff00:0:2', '1-ff00:0:3']
";
const LEAVES: [&str; 2] = ["1-ff00:0:11", "1-ff00:0:12"];
const TRANSFERS: usize = 5;
/// Bytes of each file: odd, and for some seconds of such links.
const BYTES: u64 = 6_000_017;
/// Resident memory of a program at most: what `--memory` gives to pieces (48 MiB), the program itself, the buffers of some
/// dozen QUIC connections.
const RSS_BYTES_MAX: u64 = 256 << 20;
/// Longest that a link stays down.
const DOWN_MAX: Duration = Duration::from_secs(3);
/// How long what is under way may take to end once nothing is impaired any more, on a machine that does other things too.
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn transfers_survive_half_a_minute_of_bad_weather() {
    storm(Duration::from_secs(20));
}

#[test]
#[ignore = "ten minutes; the head of this file has the command"]
fn transfers_survive_ten_minutes_of_bad_weather() {
    let seconds = std::env::var("ANABRANCH_CHAOS_SECONDS").ok().and_then(|text| text.parse().ok());
    storm(Duration::from_secs(seconds.unwrap_or(600)));
}

fn storm(lasts: Duration) {
    let seed = std::env::var("ANABRANCH_CHAOS_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("ANABRANCH_CHAOS_SEED={seed}");
    let network = Network::start(Topology::from_toml("chaos.toml", NETWORK).unwrap(), Options::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut impairments = Impairments::new(&network, seed);
    let mut transfers: Vec<Transfer> =
        (0..TRANSFERS).map(|number| Transfer::new(&network, folder.path(), number)).collect();
    let until = Instant::now() + lasts;
    while Instant::now() < until {
        impairments.turn();
        for transfer in &mut transfers {
            if transfer.look() {
                transfer.begin();
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    impairments.clear();
    for transfer in &mut transfers {
        let deadline = Instant::now() + LIMIT;
        while !transfer.look() {
            assert!(Instant::now() < deadline, "transfer {} hangs:\n{}", transfer.number, transfer.getter.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let (done, changes): (usize, usize) =
        transfers.iter().map(|t| (t.done, t.changes)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    let rss = transfers.iter().map(|transfer| transfer.rss_bytes_max).max().unwrap() >> 20;
    println!(
        "{done} transfers, {} turns of the impairments, {changes} changes of paths, {rss} MiB at most",
        impairments.turns
    );
    assert!(impairments.turns > 0 && changes > 0, "no path changed: the impairments was too fair to show anything");
}

/// Changes links, one at a time.
struct Impairments<'a> {
    network: &'a Network,
    rng: fastrand::Rng,
    next: Instant,
    /// Since when each link is down.
    down: Vec<Option<Instant>>,
    turns: u32,
}

impl<'a> Impairments<'a> {
    fn new(network: &'a Network, seed: u64) -> Self {
        let down = vec![None; network.topology().links().len()];
        Self {
            network,
            rng: fastrand::Rng::with_seed(seed),
            next: Instant::now() + Duration::from_secs(2),
            down,
            turns: 0,
        }
    }

    fn turn(&mut self) {
        let now = Instant::now();
        for link in 0..self.down.len() {
            if self.down[link].is_some_and(|since| now >= since + DOWN_MAX) {
                self.set_up(link, true);
            }
        }
        if now < self.next {
            return;
        }
        self.next = now + Duration::from_millis(self.rng.u64(100..800));
        self.turns += 1;
        let link = self.rng.usize(0..self.down.len());
        match self.rng.u32(0..4) {
            0 => self.set_up(link, false),
            1 => self.set_up(link, true),
            _ => {
                let mut shape = self.network.topology().links()[link].shapes[0];
                shape.rate_bps = Some(self.rng.u64(1..=20) * 1_000_000);
                shape.delay = Duration::from_millis(self.rng.u64(0..60));
                shape.loss = if self.rng.bool() { self.rng.f64() * 0.05 } else { 0.0 };
                let direction = *self.rng.choice(&[Direction::Both, Direction::There, Direction::Back]).unwrap();
                self.network.set_link_shape(link, direction, shape).unwrap();
            }
        }
    }

    fn set_up(&mut self, link: usize, is_up: bool) {
        self.down[link] = if is_up { None } else { self.down[link].or(Some(Instant::now())) };
        self.network.set_link_up(link, is_up).unwrap();
    }

    /// Everything as at first.
    fn clear(&mut self) {
        for link in 0..self.down.len() {
            self.set_up(link, true);
            let shapes = self.network.topology().links()[link].shapes;
            self.network.set_link_shape(link, Direction::There, shapes[0]).unwrap();
            self.network.set_link_shape(link, Direction::Back, shapes[1]).unwrap();
        }
    }
}

/// One file that is fetched again and again: from the first leaf to the second, or the other way.
struct Transfer {
    number: usize,
    content: PathBuf,
    out: PathBuf,
    magnet: String,
    listen: String,
    daemon: String,
    sharer: Process,
    getter: Process,
    sharer_events: PathLog,
    getter_events: PathLog,
    done: usize,
    changes: usize,
    rss_bytes_max: u64,
}

impl Transfer {
    fn new(network: &Network, folder: &Path, number: usize) -> Self {
        let content = folder.join("have").join(format!("{number}.bin"));
        data::make_file(&content, BYTES, number as u64).unwrap();
        let (from, to) = (LEAVES[number % 2], LEAVES[(number + 1) % 2]);
        let place = |isd_as: &str| {
            let home = network.topology().get(isd_as.parse::<IsdAs>().unwrap()).unwrap();
            (format!("[{isd_as},{}]:0", home.hosts[number].address), home.daemon.to_string())
        };
        let (listen, daemon) = place(from);
        let mut sharing = command(&["share", &content.display().to_string()], &listen, &daemon);
        let mut sharer = Process::spawn(format!("share {number}"), &mut sharing).unwrap();
        let (event, _) = sharer.wait_event("started", Duration::from_secs(60)).unwrap();
        let (listen, daemon) = place(to);
        let magnet = event["magnet"].as_str().unwrap().to_owned();
        let out = folder.join("out").join(number.to_string());
        let getter = get(number, &magnet, &out, &listen, &daemon);
        Self {
            number,
            content,
            out,
            magnet,
            listen,
            daemon,
            sharer,
            getter,
            sharer_events: PathLog::new("share", Side::Uploader),
            getter_events: PathLog::new("get", Side::Downloader),
            done: 0,
            changes: 0,
            rss_bytes_max: 0,
        }
    }

    /// Fetches once more.
    fn begin(&mut self) {
        std::fs::remove_dir_all(&self.out).unwrap();
        self.getter = get(self.number, &self.magnet, &self.out, &self.listen, &self.daemon);
        self.getter_events = PathLog::new("get", Side::Downloader);
    }

    /// Whether the file is there; then it is the same, and everything was told.
    fn look(&mut self) -> bool {
        assert!(!self.sharer.has_ended(), "the sharer ended:\n{}", self.sharer.log());
        for line in self.sharer.rest() {
            self.sharer_events.check_line(&line.text);
        }
        let ended = self.getter.has_ended();
        if ended {
            let usage =
                self.getter.wait_success(LIMIT).unwrap_or_else(|error| panic!("transfer {}: {error}", self.number));
            self.check_memory("get", usage.rss_bytes_max);
        }
        for line in self.getter.rest() {
            self.getter_events.check_line(&line.text);
        }
        if !ended {
            return false;
        }
        let peak = self.sharer.status_bytes("VmHWM").unwrap_or(0);
        self.check_memory("share", peak);
        assert!(data::same_file(&self.content, &self.out.join(format!("{}.bin", self.number))).unwrap(), "they differ");
        self.getter_events.check_log(&self.out.join("paths.csv"));
        self.changes += self.getter_events.changes;
        self.done += 1;
        true
    }

    fn check_memory(&mut self, who: &str, bytes: u64) {
        self.rss_bytes_max = self.rss_bytes_max.max(bytes);
        assert!(bytes < RSS_BYTES_MAX, "{who} {} took {} MiB", self.number, bytes >> 20);
    }
}

fn command(words: &[&str], listen: &str, daemon: &str) -> Command {
    let mut command = anabranch::command(None).unwrap();
    command.args(words).args(["--json", "--listen", listen, "--sciond", daemon, "--paths", "4"]);
    command
}

fn get(number: usize, magnet: &str, out: &Path, listen: &str, daemon: &str) -> Process {
    std::fs::create_dir_all(out).unwrap();
    // Impaired like this, no path may lead anywhere for a while.
    let mut getting = command(&["get", magnet, "--give-up", "30m"], listen, daemon);
    getting.arg("-o").arg(out).arg("--path-log").arg(out.join("paths.csv"));
    Process::spawn(format!("get {number}"), &mut getting).unwrap()
}

/// What a program said of its paths.
struct PathLog {
    reader: EventReader,
    /// The states of each path that were told, in order.
    states: HashMap<(String, String), Vec<String>>,
    changes: usize,
}

impl PathLog {
    fn new(name: &str, by: Side) -> Self {
        Self { reader: EventReader::new(name, by), states: HashMap::new(), changes: 0 }
    }

    /// Every choice says what made it, and why each path was taken or not; every change says why.
    fn check_line(&mut self, line: &str) {
        match self.reader.read(line).unwrap() {
            Event::Paths(decision) => {
                assert!(!decision.why.is_empty(), "{line}");
                assert!(decision.candidates.iter().all(|candidate| !candidate.reason.is_empty()), "{line}");
            }
            Event::Path(change) => {
                assert!(!change.reason.is_empty(), "{line}");
                self.changes += 1;
                self.states.entry((change.peer, change.path)).or_default().push(change.state);
            }
            _ => {}
        }
    }

    /// Every change that the path log shows was told.
    fn check_log(&self, log: &Path) {
        let text = std::fs::read_to_string(log).unwrap();
        let mut shown: HashMap<(String, String), Vec<String>> = HashMap::new();
        for row in text.lines().skip(1) {
            // The addresses of SCION hosts have commas, and are quoted.
            let fields: Vec<&str> = row.split('"').collect();
            let [_, peer, rest] = fields[..] else { panic!("no quoted peer in {row}") };
            let rest: Vec<&str> = rest.split(',').collect();
            let states = shown.entry((peer.to_owned(), rest[1].to_owned())).or_default();
            if states.last().is_none_or(|last| last != rest[2]) {
                states.push(rest[2].to_owned());
            }
        }
        assert!(!shown.is_empty(), "the path log is empty");
        for (path, states) in shown {
            let mut told = self.states.get(&path).into_iter().flatten();
            // `active` is what every connection begins as, and may be shown before anybody chose.
            let first = usize::from(states[0] == "active");
            for state in &states[first..] {
                assert!(
                    told.any(|told| told == state),
                    "{path:?} became {state}, and nobody said why: {states:?}, told {:?}",
                    self.states.get(&path)
                );
            }
        }
    }
}
