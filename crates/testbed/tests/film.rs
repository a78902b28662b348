//! What is streamed, as people watch it: a film in Chromium, and what an encoder broadcasts in VLC. Both arrive over two SCION paths,
//! each of which could carry them alone, and one of which is cut in the middle.
//!
//! ```sh
//! make film
//! ```

#[allow(dead_code)]
#[path = "../../anabranch/tests/common/embedded.rs"]
mod embedded;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anabranch_asnet::network::Network;
use anabranch_testbed::browser::Browser;
use anabranch_testbed::peers::{anabranch, free_address, installed};
use anabranch_testbed::process::Process;
use anabranch_testbed::{Result, data};
use embedded::DIAMOND;
use serde_json::Value;

/// Nothing takes longer, with both cores busy elsewhere.
const LIMIT: Duration = Duration::from_secs(120);
/// How often is looked meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Each link's, beside its rate.
const DEFAULTS: &str = "delay = '10 ms'\nqueue = '64 KiB'";
const FROM: &str = "1-ff00:0:111";
const TO: &str = "1-ff00:0:112";
/// The link that is cut.
const CUT: [&str; 2] = ["1-ff00:0:120", FROM];

/// What is watched: so many pictures a second, with noise, so that there is something to send, and a tone.
const FRAME_RATE: u64 = 25;
const PICTURES: &str = "testsrc2=size=480x270:rate=25,noise=alls=20:allf=t";
const TONE: &str = "sine=frequency=440:sample_rate=48000";
const FILM_SECONDS: u64 = 36;
/// Of the film, what is there when it is begun.
const AHEAD_SECONDS: u64 = 2;
const FILM_BIT_RATE: &str = "3M";
const LIVE_SECONDS: u64 = 30;
const LIVE_BIT_RATE: &str = "1M";
/// Of the stream, pictures that VLC shows before the link is cut, and after that at least.
const SHOWN_BEFORE: u64 = 6 * FRAME_RATE;
const SHOWN_AFTER: u64 = 10 * FRAME_RATE;
/// Who runs VLC where tests run as root, as whom it does not run: `nobody`.
const NOBODY: u32 = 65534;

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// A program that the test cannot do without.
fn program(name: &str) -> Command {
    Command::new(installed(name).unwrap_or_else(|_| panic!("{name} is missing: `make film` installs it")))
}

/// The pictures and the tone.
fn ffmpeg(seconds: u64, input: &[&str]) -> Command {
    let mut command = program("ffmpeg");
    command.args(["-nostdin", "-loglevel", "error"]);
    command.args(input).args(["-f", "lavfi", "-i", PICTURES]).args(input).args(["-f", "lavfi", "-i", TONE]);
    command.args(["-t", &seconds.to_string()]);
    command
}

/// Links of this rate, with addresses that no other test has.
fn network(net: u8, rate_bits: u64) -> Network {
    embedded::start(net, &format!("[defaults]\nrate = '{rate_bits}'\n{DEFAULTS}\n{DIAMOND}"))
}

/// A command of ours at the only host of an AS.
fn command(dir: &Path, network: &Network, isd_as: &str, arguments: &[&str]) -> Command {
    let (listen, daemon) = embedded::host(network, isd_as);
    let mut command = must(anabranch::command(None));
    command.current_dir(dir).args(arguments).args(["--json", "--listen", &listen, "--sciond", &daemon]);
    command
}

/// `play`, and what it told so far.
struct Playing {
    process: Process,
    url: String,
    index: String,
    /// Bytes that each path brought.
    brought: BTreeMap<String, u64>,
    /// Paths that were found down.
    down: Vec<String>,
    /// The last event of each name.
    last: BTreeMap<String, Value>,
}

impl Playing {
    fn start(dir: &Path, network: &Network, link: &Value, place: &[&str]) -> Self {
        let mut play = command(dir, network, TO, &["play", link.as_str().unwrap(), "--paths", "2"]);
        play.args(place);
        let mut process = must(Process::spawn("anabranch play", &mut play));
        let (serving, _) = must(process.wait_event("serving", LIMIT));
        let text = |name: &str| serving[name].as_str().unwrap_or_default().to_owned();
        let (url, index) = (text("url"), text("index"));
        Self { process, url, index, brought: BTreeMap::new(), down: Vec::new(), last: BTreeMap::new() }
    }

    /// Takes in what the player said meanwhile.
    fn take_events(&mut self) {
        for event in self.process.rest().iter().map(|line| line.json()) {
            let name = event["event"].as_str().unwrap_or_default().to_owned();
            let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            if name == "path" && event["state"] == "down" {
                self.down.push(text("path"));
            }
            for path in event["paths"].as_array().into_iter().flatten() {
                let brought = path["downloaded"].as_u64().unwrap_or_default();
                let known = self.brought.entry(path["path"].as_str().unwrap_or_default().to_owned()).or_default();
                *known = brought.max(*known);
            }
            self.last.insert(name, event);
        }
    }

    fn both_brought(&mut self, bytes: u64) -> bool {
        self.take_events();
        self.brought.values().filter(|brought| **brought >= bytes).count() == 2
    }

    fn wait_for_bytes(&mut self, bytes: u64) {
        let began = Instant::now();
        while self.last.get("progress").and_then(|event| event["bytes_done"].as_u64()).unwrap_or(0) < bytes {
            assert!(!self.process.has_ended() && began.elapsed() < LIMIT, "too little comes: {}", self.process.log());
            std::thread::sleep(LOOK_EVERY);
            self.take_events();
        }
    }

    fn last(&self, event: &str, field: &str) -> u64 {
        self.last.get(event).and_then(|event| event[field].as_u64()).unwrap_or_else(|| panic!("{:?}", self.last))
    }
}

fn cut(network: &Network) {
    let link = network.find_link(CUT[0], Some(CUT[1])).unwrap();
    network.set_link_up(link, false).unwrap();
}

/// The body of a whole answer.
fn get(url: &str) -> Vec<u8> {
    let (host, target) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET /{target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    answer.split_off(end)
}

fn make_film(to: &Path) {
    let mut make = ffmpeg(FILM_SECONDS, &[]);
    make.args(["-c:v", "libvpx", "-deadline", "realtime", "-cpu-used", "8", "-threads", "2", "-g", "50"]);
    make.args(["-b:v", FILM_BIT_RATE, "-minrate", FILM_BIT_RATE, "-maxrate", FILM_BIT_RATE, "-bufsize", "1M"]);
    must(Process::run("ffmpeg", make.args(["-c:a", "libvorbis"]).arg(to), LIMIT));
}

#[test]
#[ignore = "takes ffmpeg, Chromium and minutes: make film"]
fn a_film_does_not_stand_still_in_a_browser_when_one_of_its_two_paths_is_cut() {
    ["chromium", "chromedriver"].iter().for_each(|name| drop(program(name)));
    let dir = tempfile::tempdir().unwrap();
    let film = dir.path().join("film.webm");
    make_film(&film);
    let film_bytes = fs::metadata(&film).unwrap().len();
    let film_rate = film_bytes / FILM_SECONDS;
    // Each path would carry one and a half of it, but who shares it sends little faster than it is played: little is there ahead.
    let network = network(156, film_rate * 8 * 3 / 2);
    let limit = (film_rate * 5 / 4).to_string();
    let mut share = command(dir.path(), &network, FROM, &["share", "--ppspp", "film.webm", "--limit-up", &limit]);
    let mut sharing = must(Process::spawn("anabranch share", &mut share));
    let (started, _) = must(sharing.wait_event("started", LIMIT));
    let browser = must(Browser::start());
    let mut playing = Playing::start(dir.path(), &network, &started["link"], &["-o", "out"]);

    must(browser.go(&playing.index));
    let listen = "window.film = document.querySelector('video'); window.told = []; \
                  for (const name of ['playing', 'waiting', 'stalled', 'pause', 'ended', 'error']) \
                    film.addEventListener(name, () => { \
                      const [at, there] = [film.currentTime, film.buffered]; \
                      const end = there.length ? there.end(there.length - 1) : 0; \
                      told.push(`${name} at ${at.toFixed(2)}, ${(end - at).toFixed(2)} s there`); \
                    });";
    must(browser.run(listen));
    // A moment passes until somebody presses it.
    playing.wait_for_bytes(film_rate * AHEAD_SECONDS);
    must(browser.click("video"));
    must(browser.wait("told.some((what) => what.startsWith('playing'))"));
    must(browser.wait(&format!("film.currentTime > {}", FILM_SECONDS / 2)));
    assert!(playing.both_brought(film_bytes / 8), "{:?}", playing.brought);
    let (before, done) = (playing.brought.clone(), playing.last("progress", "bytes_done"));
    assert!(done < film_bytes, "all of it was there before the link was cut");
    cut(&network);
    must(browser.wait("film.ended || film.error"));

    let seen = must(browser.run(
        "const { totalVideoFrames: frames, droppedVideoFrames: dropped, corruptedVideoFrames: wrong } = film.getVideoPlaybackQuality(); \
         return { frames, dropped, wrong, told, error: film.error?.message ?? null };",
    ));
    playing.take_events();
    println!(
        "a film of {film_bytes} bytes, {} bits a second; there at the cut: {done}, by path {before:?}",
        film_rate * 8
    );
    println!("at the end by path {:?}, down: {:?}; the browser: {seen}", playing.brought, playing.down);
    assert!(seen["error"].is_null(), "{seen}");
    let told: Vec<&str> = seen["told"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut plays = told.iter().skip_while(|what| !what.starts_with("playing"));
    assert!(plays.all(|what| !what.starts_with("waiting") && !what.starts_with("stalled")), "{told:?}");
    assert!(told.iter().any(|what| what.starts_with("ended")), "{told:?}");
    let frames = FILM_SECONDS * FRAME_RATE;
    assert!((frames - FRAME_RATE..=frames).contains(&seen["frames"].as_u64().unwrap()), "{seen}");
    assert_eq!(seen["wrong"], 0);
    assert!(!playing.down.is_empty(), "nobody was told that a path is down");

    assert!(get(&playing.url) == fs::read(&film).unwrap(), "what is served is not the film");
    assert!(must(data::same_file(&film, &dir.path().join("out/film.webm"))), "what is kept is not the film");
    assert!(must(playing.process.stop()).status.success(), "{}", playing.process.log());
    playing.take_events();
    println!("play: {}", playing.last["played"]);
}

/// Makes a stream, as long as it is one, and feeds it to who broadcasts it: all that was made.
fn encode(mut to: ChildStdin) -> JoinHandle<Vec<u8>> {
    let mut encode = ffmpeg(LIVE_SECONDS, &["-re"]);
    encode.args(["-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-g", "25"]);
    encode.args(["-b:v", LIVE_BIT_RATE, "-maxrate", LIVE_BIT_RATE, "-bufsize", LIVE_BIT_RATE, "-pix_fmt", "yuv420p"]);
    encode.args(["-c:a", "mp2", "-f", "mpegts", "-"]);
    let mut encoder = encode.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut from = encoder.stdout.take().unwrap();
    std::thread::spawn(move || {
        let (mut made, mut part) = (Vec::new(), [0; 16 << 10]);
        loop {
            let count = from.read(&mut part).unwrap();
            if count == 0 {
                break;
            }
            to.write_all(&part[..count]).expect("who broadcasts takes all of it");
            made.extend_from_slice(&part[..count]);
        }
        assert!(encoder.wait().unwrap().success(), "ffmpeg failed");
        made
    })
}

/// VLC without a window, with a folder of its own.
fn vlc(home: &Path, arguments: &[&str]) -> Process {
    let mut command = program("vlc");
    command.current_dir(home).env("HOME", home).env_remove("DISPLAY").args(arguments);
    command.args(["--vout", "dummy", "--aout", "dummy", "--play-and-exit"]);
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    must(Process::spawn("vlc", &mut command))
}

/// What VLC counts, each by its name: asked over its remote control.
struct Counts {
    control: BufReader<TcpStream>,
    last: BTreeMap<String, u64>,
}

impl Counts {
    fn of(vlc: &mut Process, control: SocketAddr) -> Self {
        let began = Instant::now();
        loop {
            if let Ok(stream) = TcpStream::connect(control) {
                stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
                return Self { control: BufReader::new(stream), last: BTreeMap::new() };
            }
            assert!(!vlc.has_ended() && began.elapsed() < LIMIT, "VLC is not up: {}", vlc.log());
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Asks once more: how many pictures it showed. What VLC says of nothing, before and after it plays, is left out.
    fn shown(&mut self) -> u64 {
        let _ = self.control.get_mut().write_all(b"stats\n");
        let mut line = String::new();
        while self.control.read_line(&mut line).is_ok_and(|length| length > 0) && !line.contains("end of statistical") {
            if let Some((name, count)) = line.trim_start_matches('|').split_once(':')
                && let Ok(count) = count.trim().parse()
            {
                self.last.insert(name.trim().to_owned(), count);
            }
            line.clear();
        }
        self.count("frames displayed")
    }

    fn count(&self, name: &str) -> u64 {
        self.last.get(name).copied().unwrap_or(0)
    }
}

#[test]
#[ignore = "takes ffmpeg, VLC and minutes: make film"]
fn a_live_stream_is_shown_by_vlc_to_its_end_when_one_of_its_two_paths_is_cut() {
    drop(program("vlc"));
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("vlc");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&home, Permissions::from_mode(0o777)).unwrap();
    let network = network(157, 4_000_000);
    let mut live = command(dir.path(), &network, FROM, &["live", "--input", "-", "--name", "match.ts"]);
    let (mut source, input) = must(Process::spawn_fed("anabranch live", &mut live));
    let (started, _) = must(source.wait_event("started", LIMIT));
    let encoder = encode(input);
    let mut playing = Playing::start(dir.path(), &network, &started["link"], &[]);

    // One that shows the stream, and one that keeps what it read.
    let control = SocketAddr::from(must(free_address()));
    let mut shows = vlc(&home, &["-I", "rc", "--rc-host", &control.to_string(), &playing.url]);
    let mut keeps = vlc(&home, &["-I", "dummy", "--demux", "dump", "--demuxdump-file", "kept.ts", &playing.url]);
    let mut counts = Counts::of(&mut shows, control);
    let began = Instant::now();
    while counts.shown() < SHOWN_BEFORE || !playing.both_brought(200_000) {
        assert!(!shows.has_ended() && began.elapsed() < LIMIT, "{:?}; {}", counts.last, shows.log());
        std::thread::sleep(LOOK_EVERY);
    }
    let (before, shown_before) = (playing.brought.clone(), counts.count("frames displayed"));
    cut(&network);
    while !shows.has_ended() {
        counts.shown();
        assert!(began.elapsed() < LIMIT, "VLC does not end: {:?}; {}", counts.last, shows.log());
        std::thread::sleep(LOOK_EVERY);
    }

    must(shows.wait_success(LIMIT));
    must(keeps.wait_success(LIMIT));
    let made = encoder.join().unwrap();
    must(playing.process.wait_success(LIMIT));
    must(source.wait_success(LIMIT));
    playing.take_events();
    println!("{} bytes were broadcast; by path at the cut {before:?}, at the end {:?}", made.len(), playing.brought);
    println!("VLC, which had shown {shown_before} pictures at the cut: {:?}", counts.last);
    println!("play: {}; down: {:?}", playing.last["played"], playing.down);
    let shown = counts.count("frames displayed");
    assert!(shown - shown_before >= SHOWN_AFTER, "{:?}", counts.last);
    assert_eq!((counts.count("demux corrupted"), counts.count("discontinuities")), (0, 0), "{:?}", counts.last);
    assert_eq!(playing.last("played", "skipped_chunks"), 0);
    assert!(!playing.down.is_empty(), "nobody was told that a path is down");
    let kept = fs::read(home.join("kept.ts")).unwrap();
    assert!(kept.len() > made.len() / 2 && made.ends_with(&kept), "{} bytes are not the stream's rest", kept.len());
}
