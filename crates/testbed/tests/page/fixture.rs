//! Who is on the fixture: a SCION network in this process, one who shares on it, a daemon that fetches, and a browser.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anabranch_asnet::network::{Network, Options};
use anabranch_asnet::topology::Topology;
use anabranch_paths::IsdAs;
use anabranch_testbed::browser::Browser;
use anabranch_testbed::peers::anabranch;
use anabranch_testbed::process::Process;
use anabranch_testbed::{Result, data};
use serde_json::Value;

/// Nothing takes longer, with both cores busy elsewhere.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// The network of the demo: four ways from end to end that share nothing.
const TOPOLOGY: &str = include_str!("../../../../topologies/demo.toml");
const SHARER: &str = "2-ff00:0:211";
const FETCHER: &str = "1-ff00:0:111";
/// As long as a file of this size arrives, there is something to be seen: half a minute at what the daemon lets through in a second, however
/// long the browser takes until the transfer is slowed.
const NOISE_BYTES: u64 = 48 << 20;
const RATE: &str = "1500K";
/// Samples a second of the tone, and seconds of it.
const SAMPLES: u32 = 8000;
const TONE_SECONDS: u32 = 20;

/// All of them. They end in this order.
pub(crate) struct Fixture {
    pub(crate) browser: Browser,
    _daemon: Process,
    _sharing: Option<Process>,
    pub(crate) network: Option<Network>,
    /// A file that is shared across the network, by its link, ...
    pub(crate) magnet: String,
    /// ... and one that can be heard, by its torrent.
    pub(crate) tone: PathBuf,
    /// The address of the page, with the token in it.
    pub(crate) link: String,
    pub(crate) dir: tempfile::TempDir,
}

pub(crate) fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

impl Fixture {
    /// A daemon on a network of its own, which no other test has: `third` is the third number of its addresses.
    pub(crate) fn on_a_network(third: u8) -> Self {
        let text = TOPOLOGY.replace("127.77.0.0", &format!("127.153.{third}.0"));
        let network = Network::start(Topology::from_toml("demo.toml", &text).unwrap(), Options::default()).unwrap();
        let place = |isd_as: &str| {
            let home = network.topology().get(isd_as.parse::<IsdAs>().unwrap()).unwrap();
            (format!("[{isd_as},{}]", home.hosts[0].address), home.daemon.to_string())
        };
        let dir = tempfile::tempdir().unwrap();
        let have = dir.path().join("have");
        must(data::make_file(&have.join("noise.bin"), NOISE_BYTES, 1));
        std::fs::write(have.join("tone.wav"), tone()).unwrap();
        for name in ["noise.bin", "tone.wav"] {
            let mut create = must(anabranch::command(None));
            create.current_dir(&have).args(["create", name, "-o", &format!("{name}.torrent"), "--quiet"]);
            must(Process::run("create", &mut create, LIMIT));
        }
        let (host, daemon) = place(SHARER);
        let sharer = format!("{host}:31000");
        let mut share = must(anabranch::command(None));
        share.current_dir(&have).args(["share", "noise.bin.torrent", "tone.wav.torrent", "--json"]);
        share.args(["--listen", &sharer, "--sciond", &daemon]);
        let mut sharing = must(Process::spawn("share", &mut share));
        let mut magnet = String::new();
        for _ in 0..2 {
            let (started, _) = must(sharing.wait_event("started", LIMIT));
            let link = started["magnet"].as_str().unwrap_or_default();
            if link.contains("noise") {
                link.clone_into(&mut magnet);
            }
        }
        let (host, daemon) = place(FETCHER);
        let listen = format!("{host}:0");
        let more = ["--listen", &listen, "--sciond", &daemon, "--peer", &sharer, "--paths", "4", "--limit-down", RATE];
        let (daemon, link) = daemon_in(dir.path(), &more);
        let tone = have.join("tone.wav.torrent");
        let browser = must(Browser::start());
        Self { browser, _daemon: daemon, _sharing: Some(sharing), network: Some(network), magnet, tone, link, dir }
    }

    /// A daemon that knows nobody.
    pub(crate) fn alone() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (daemon, link) = daemon_in(dir.path(), &["--listen", "127.0.0.1:0"]);
        let (magnet, tone) = (String::new(), PathBuf::new());
        Self {
            browser: must(Browser::start()),
            _daemon: daemon,
            _sharing: None,
            network: None,
            magnet,
            tone,
            link,
            dir,
        }
    }

    /// Opens the page by its link, as the daemon prints it.
    pub(crate) fn open(&self) {
        // What is behind the `#` alone makes no new page of one that is there.
        must(self.browser.go("about:blank"));
        must(self.browser.go(&self.link));
        must(self.browser.wait("!document.getElementById('main').hidden"));
    }

    /// Asks the daemon, as the page does.
    pub(crate) fn ask(&self, target: &str) -> Value {
        must(self.browser.run_async(&format!("return (await fetch('/api/v1/{target}')).json();")))
    }

    /// Waits until what the daemon answers is as it is to be.
    pub(crate) fn wait_for(&self, target: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let told = self.ask(target);
            if is_so(&told) {
                return told;
            }
            assert!(began.elapsed() < LIMIT, "{target}: {told}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What axe-core finds wrong on the page as it is, in light and dark.
    pub(crate) fn assert_accessible(&self, what: &str) {
        for dark in [false, true] {
            must(self.browser.set_dark(dark));
            let found = must(self.browser.accessibility());
            assert!(found.is_empty(), "{what}, {}:\n{}", if dark { "dark" } else { "light" }, found.join("\n"));
        }
        must(self.browser.set_dark(false));
    }
}

/// A daemon with its folders in `dir`, and the address of its page.
fn daemon_in(dir: &Path, more: &[&str]) -> (Process, String) {
    let mut command = must(anabranch::command(None));
    command.current_dir(dir).args(["daemon", "--json", "--api", "127.0.0.1:0", "--dir", "files", "--state-dir", "lib"]);
    command.args(more);
    let mut daemon = must(Process::spawn("anabranch daemon", &mut command));
    let (serving, _) = must(daemon.wait_event("serving", LIMIT));
    let url = serving["url"].as_str().unwrap_or_default();
    let token = std::fs::read_to_string(dir.join("lib/token")).unwrap();
    (daemon, format!("{url}#token={}", token.trim()))
}

/// A tone that browsers play: WAVE, one channel of 8 bits.
fn tone() -> Vec<u8> {
    let length = SAMPLES * TONE_SECONDS;
    let mut bytes = Vec::new();
    let mut put = |part: &[u8]| bytes.extend_from_slice(part);
    put(b"RIFF");
    put(&(36 + length).to_le_bytes());
    put(b"WAVEfmt ");
    put(&16_u32.to_le_bytes());
    put(&[1, 0, 1, 0]);
    put(&SAMPLES.to_le_bytes());
    put(&SAMPLES.to_le_bytes());
    put(&[1, 0, 8, 0]);
    put(b"data");
    put(&length.to_le_bytes());
    // No two pieces of it are the same.
    (0..length).for_each(|at| put(&[if (at / (8 + at / SAMPLES)).is_multiple_of(2) { 96 } else { 160 }]));
    bytes
}
