//! A folder of mixed files goes by `send` and `receive` over three paths of the demo's network, while links go down and come back and
//! both ends are killed (`kill -9`) and started again with the same commands: it arrives the same in everything, and signed for.
//!
//! The seed is printed; the same seed makes the same folder and the same pauses. The long run, of 20 GiB:
//!
//! ```sh
//! make bulk
//! ```
//!
//! `ANABRANCH_CHAOS_SEED=N` repeats a run. Of the long one, `ANABRANCH_CHAOS_GIB=N` sets how large the folder is, and
//! `ANABRANCH_CHAOS_FASTER=N` how many times as fast as the demo's the links are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anabranch_asnet::network::{Network, Options};
use anabranch_asnet::topology::Topology;
use anabranch_testbed::mirror;
use anabranch_testbed::peers::anabranch;
use anabranch_testbed::process::Process;
use serde_json::Value;

const ALICE: &str = "2-ff00:0:211";
const BOB: &str = "1-ff00:0:111";
/// Where the receiver listens, in the range that routers deliver to.
const PORT: u16 = 31_777;
const PATHS: usize = 3;
/// Longest that a link stays down.
const DOWN_MAX: Duration = Duration::from_secs(4);
/// Longest that an end stays away.
const AWAY_MS_MAX: u64 = 2500;
/// Bytes of a packet before its chunk (docs/bulk.md).
const HEAD_LEN: u64 = 34;
/// How long an end may take to do what it does at once.
const SOON: Duration = Duration::from_secs(60);

/// How much, how often, how fast.
struct Plan {
    bytes: u64,
    kills: u32,
    faster: u64,
    limit: Duration,
}

#[test]
fn a_folder_survives_kills_and_cut_links() {
    storm(&Plan { bytes: 36 << 20, kills: 3, faster: 1, limit: Duration::from_secs(300) });
}

#[test]
#[ignore = "20 GiB and half an hour: `make bulk`"]
fn twenty_gib_survive_ten_kills_and_cut_links() {
    let number = |name: &str, usual: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let (gib, faster) = (number("ANABRANCH_CHAOS_GIB", 20), number("ANABRANCH_CHAOS_FASTER", 1));
    storm(&Plan { bytes: gib << 30, kills: 10, faster, limit: Duration::from_secs(4 * 3600) });
}

fn storm(plan: &Plan) {
    let seed = std::env::var("ANABRANCH_CHAOS_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    println!("ANABRANCH_CHAOS_SEED={seed}");
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    mirror::make(&tree, plan.bytes, seed).unwrap();
    let network = network(plan.faster);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut links = Links::new(&network, random.fork());
    let mut ends = Ends::start(&network, folder.path());
    let (began, mut kills, mut killed_at) = (Instant::now(), 0, Instant::now());
    let mut due = random.f64() / f64::from(plan.kills + 1);
    loop {
        links.turn();
        ends.take_events();
        if ends.sender.has_ended() {
            break;
        }
        let now = Instant::now();
        let is_stuck = now >= killed_at + plan.limit / (2 * (plan.kills + 1));
        if kills < plan.kills && (ends.sent.part() >= due || is_stuck) {
            kills += 1;
            ends.kill(&mut random);
            killed_at = Instant::now();
            due = (f64::from(kills) + random.f64()) / f64::from(plan.kills + 1);
        }
        assert!(now < began + plan.limit, "it hangs after {kills} kills:\n{}", ends.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    let usage = ends.sender.wait_success(SOON).unwrap_or_else(|error| panic!("after {kills} kills: {error}"));
    ends.take_events();
    let took = began.elapsed();
    assert!(ends.sent.paths.len() >= PATHS, "only these paths carried: {:?}", ends.sent.paths);
    ends.receiver.signal(libc::SIGINT);
    let received = ends.receiver.wait_success(SOON).unwrap();
    assert_eq!(kills, plan.kills, "it ended before it was killed often enough");
    if let Some(what) = mirror::difference(&tree, &ends.out.join("tree")).unwrap() {
        panic!("{what}");
    }
    ends.check_receipt(&tree);
    let (sent, needed) = (ends.sent.total(), ends.sent.content);
    println!(
        "{} MiB of data in {:.0} s, {} times down links, {kills} kills of each end, {} connections: {:.2} % sent twice ({} MiB); \
         at most {} MiB of memory at the sender, {} at the receiver",
        needed >> 20,
        took.as_secs_f64(),
        links.cuts,
        ends.sent.sessions,
        sent.saturating_sub(needed) as f64 * 100.0 / needed as f64,
        sent.saturating_sub(needed) >> 20,
        usage.rss_bytes_max >> 20,
        received.rss_bytes_max >> 20,
    );
}

/// The demo's, with addresses of its own and links so many times as fast.
fn network(faster: u64) -> Network {
    let text = std::fs::read_to_string(anabranch_testbed::peers::checkout().join("topologies/demo.toml")).unwrap();
    let mut faster_text = String::new();
    for line in text.lines() {
        let rate = line.strip_prefix("rate = \"").and_then(|rest| rest.strip_suffix(" Mbit/s\""));
        match (rate.and_then(|rate| rate.parse::<u64>().ok()), line) {
            (Some(rate), _) => faster_text += &format!("rate = \"{} Mbit/s\"\n", rate * faster),
            (None, "queue = \"256 KiB\"") => faster_text += &format!("queue = \"{} KiB\"\n", 256 * faster),
            (None, "network = \"127.77.0.0\"") => faster_text += "network = \"127.151.0.0\"\n",
            (None, line) => faster_text += &format!("{line}\n"),
        }
    }
    Network::start(Topology::from_toml("demo.toml", &faster_text).unwrap(), Options::default()).unwrap()
}

/// Takes links down and up, one at a time.
struct Links<'a> {
    network: &'a Network,
    random: fastrand::Rng,
    next: Instant,
    down: Vec<Option<Instant>>,
    cuts: u32,
}

impl<'a> Links<'a> {
    fn new(network: &'a Network, random: fastrand::Rng) -> Self {
        let down = vec![None; network.topology().links().len()];
        Self { network, random, next: Instant::now() + Duration::from_millis(300), down, cuts: 0 }
    }

    fn turn(&mut self) {
        let now = Instant::now();
        for link in 0..self.down.len() {
            if self.down[link].is_some_and(|until| now >= until) {
                self.down[link] = None;
                self.network.set_link_up(link, true).unwrap();
            }
        }
        if now < self.next {
            return;
        }
        self.next = now + Duration::from_millis(self.random.u64(200..1500));
        let link = self.random.usize(0..self.down.len());
        if self.down[link].is_none() {
            self.cuts += 1;
            self.down[link] = Some(now + DOWN_MAX.mul_f64(self.random.f64()));
            self.network.set_link_up(link, false).unwrap();
        }
    }
}

/// What the sender said that it sent, over all its lives.
#[derive(Default)]
struct Sent {
    /// Bytes of chunks in connections that are over, and in this one.
    before: u64,
    now: u64,
    sessions: u32,
    content: u64,
    done: u64,
    /// Paths that carried something.
    paths: BTreeSet<String>,
}

impl Sent {
    fn on_event(&mut self, event: &Value) {
        match event["event"].as_str() {
            Some("started") => {
                self.end();
                self.sessions += 1;
                self.content = event["bytes_total"].as_u64().unwrap();
            }
            Some("progress") => {
                self.done = event["bytes_done"].as_u64().unwrap();
                let of = |path: &Value| {
                    let field = |name: &str| path[name].as_u64().unwrap_or(0);
                    (path["way"].as_str().unwrap().to_owned(), field("bytes"), field("packets"))
                };
                let paths: Vec<_> = event["paths"].as_array().unwrap().iter().map(of).collect();
                self.now = paths.iter().map(|(_, bytes, packets)| bytes.saturating_sub(packets * HEAD_LEN)).sum();
                self.paths.extend(paths.into_iter().filter(|(_, bytes, _)| *bytes > 0).map(|(way, ..)| way));
            }
            _ => {}
        }
    }

    /// A connection is over.
    fn end(&mut self) {
        self.before += std::mem::take(&mut self.now);
    }

    fn total(&self) -> u64 {
        self.before + self.now
    }

    fn part(&self) -> f64 {
        self.done as f64 / self.content.max(1) as f64
    }
}

/// Both programs, and what they are started with.
struct Ends {
    alice: End,
    bob: End,
    to: String,
    home: PathBuf,
    out: PathBuf,
    sender: Process,
    receiver: Process,
    sent: Sent,
    /// Errors that a program ended with, by what they say.
    told: BTreeMap<String, u32>,
}

/// A host, and the key of who is there.
struct End {
    listen: String,
    daemon: String,
    key_file: PathBuf,
    key: String,
}

impl End {
    fn new(network: &Network, isd_as: &str, port: u16, home: &Path) -> Self {
        let place = network.topology().get(isd_as.parse().unwrap()).unwrap();
        let key_file = home.join(format!("key of {isd_as}"));
        let mut command = anabranch::command(None).unwrap();
        let (lines, _) = Process::run("keys own", command.args(["keys", "own", "--key"]).arg(&key_file), SOON).unwrap();
        let listen = format!("[{isd_as},{}]:{port}", place.hosts[0].address);
        Self { listen, daemon: place.daemon.to_string(), key_file, key: lines[0].text.trim().to_owned() }
    }

    fn command(&self, home: &Path, words: &[&str]) -> Command {
        let mut command = anabranch::command(None).unwrap();
        command.current_dir(home).args(words).args(["--json", "--listen", &self.listen, "--sciond", &self.daemon]);
        command.arg("--key").arg(&self.key_file);
        command
    }
}

impl Ends {
    fn start(network: &Network, home: &Path) -> Self {
        let (alice, bob) = (End::new(network, ALICE, 0, home), End::new(network, BOB, PORT, home));
        let to = format!("{}@{}", bob.key, bob.listen);
        let receiver = receive(&bob, home, &alice.key);
        let sender = send(&alice, home, &to);
        let out = home.join("in");
        let home = home.to_owned();
        Self { alice, bob, to, home, out, sender, receiver, sent: Sent::default(), told: BTreeMap::new() }
    }

    fn take_events(&mut self) {
        for line in self.sender.rest() {
            self.sent.on_event(&line.json());
        }
        for line in self.receiver.rest() {
            let event = line.json();
            if event["event"] == "error" {
                *self.told.entry(event["message"].to_string()).or_default() += 1;
            }
        }
        assert!(!self.receiver.has_ended(), "the receiver ended:\n{}", self.receiver.log());
    }

    /// `kill -9` for both, in any order and with any pause; then the same commands again, in any order.
    fn kill(&mut self, random: &mut fastrand::Rng) {
        let is_sender_first = random.bool();
        let [first, second] = if is_sender_first {
            [&mut self.sender, &mut self.receiver]
        } else {
            [&mut self.receiver, &mut self.sender]
        };
        first.kill().unwrap();
        std::thread::sleep(Duration::from_millis(random.u64(0..=AWAY_MS_MAX)));
        second.kill().unwrap();
        std::thread::sleep(Duration::from_millis(random.u64(0..=AWAY_MS_MAX / 10)));
        for line in self.sender.rest() {
            self.sent.on_event(&line.json());
        }
        self.sent.end();
        if random.bool() {
            self.receiver = receive(&self.bob, &self.home, &self.alice.key);
            std::thread::sleep(Duration::from_millis(random.u64(0..=AWAY_MS_MAX)));
            self.sender = send(&self.alice, &self.home, &self.to);
        } else {
            self.sender = send(&self.alice, &self.home, &self.to);
            std::thread::sleep(Duration::from_millis(random.u64(0..=AWAY_MS_MAX)));
            self.receiver = receive(&self.bob, &self.home, &self.alice.key);
        }
    }

    fn check_receipt(&self, tree: &Path) {
        for path in [tree, &self.out] {
            let mut command = anabranch::command(None).unwrap();
            command.args(["receipt", "--json", "--sender", &self.alice.key, "--receiver", &self.bob.key]);
            command.arg(self.home.join("receipt")).arg(path);
            let (lines, _) = Process::run("receipt", &mut command, Duration::from_secs(1800)).unwrap();
            let receipt = lines[0].json();
            assert_eq!(receipt["valid"], true, "{receipt}");
        }
    }

    fn log(&self) -> String {
        format!("sender:\n{}\nreceiver:\n{}", self.sender.log(), self.receiver.log())
    }
}

fn send(alice: &End, home: &Path, to: &str) -> Process {
    let mut command = alice.command(home, &["send", "tree", "--paths", "3", "--give-up", "10m", "--to", to]);
    command.arg("--receipt").arg(home.join("receipt"));
    Process::spawn("send", &mut command).unwrap()
}

/// Up and listening: its address may be taken for a moment after it was killed.
fn receive(bob: &End, home: &Path, allowed: &str) -> Process {
    let began = Instant::now();
    loop {
        let mut receiver =
            Process::spawn("receive", &mut bob.command(home, &["receive", "-o", "in", "--allow", allowed])).unwrap();
        match receiver.wait_event("listening", SOON) {
            Ok(_) => return receiver,
            Err(error) => assert!(began.elapsed() < SOON, "{error}"),
        }
    }
}
