//! A SCION daemon that takes connections and says nothing, or nothing about paths, or a name server that says nothing: every command says what
//! it waits for, and ends as soon as it is asked to.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anabranch_asnet::network::{Network, Options};
use anabranch_asnet::topology::Topology;
use anabranch_testbed::hostile_daemon::{DaemonTrick, HostileDaemon};
use anabranch_testbed::net::{self, Namespace};
use anabranch_testbed::peers::{anabranch, checkout};
use anabranch_testbed::process::Process;
use anabranch_testbed::{Error, Result};

const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);
const FROM: &str = "1-ff00:0:111";
const TO: &str = "1-ff00:0:112";
/// A host of that AS, a peer there, and a content that it might have.
const HOST: &str = "1-ff00:0:112,127.0.0.1";
const PEER: &str = "[1-ff00:0:112,127.0.0.1]:6881";
const MAGNET: &str = "magnet:?xt=urn:btih:abababababababababababababababababababab";
const LIVE: [&str; 5] = ["live", "--input", "file", "--rate", "1K"];
/// Any key will do.
const KEY: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaq";
const EXIT_SUCCESS: i32 = 0;
const EXIT_INTERRUPTED: i32 = 130;

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Who is silent.
#[derive(Clone, Copy)]
enum Silent<'a> {
    Daemon(SocketAddr),
    /// The name server of this host.
    Dns(&'a Namespace),
}

/// The program in this folder, which is its home and has a `file`.
fn command(folder: &Path, arguments: &[&str], silent: Silent<'_>) -> Command {
    std::fs::write(folder.join("file"), "content").unwrap();
    let mut command: Command = match silent {
        Silent::Daemon(_) => must(anabranch::command(None)),
        Silent::Dns(host) => must(anabranch::command(Some(host))),
    };
    command.current_dir(folder).env("HOME", folder).env_remove("XDG_RUNTIME_DIR").args(arguments);
    if let Silent::Daemon(daemon) = silent {
        command.args(["--sciond", &daemon.to_string()]);
    }
    command
}

fn start(folder: &Path, arguments: &[&str], silent: Silent<'_>) -> Process {
    must(Process::spawn(arguments.join(" "), &mut command(folder, arguments, silent)))
}

/// Waits until it has said this, which it says once.
fn until_told(process: &mut Process, text: &str) {
    let end = Instant::now() + LIMIT;
    while !process.log().contains(text) {
        assert!(!process.has_ended() && Instant::now() < end, "{}", process.log());
        std::thread::sleep(POLL);
    }
    assert_eq!(process.log().matches(text).count(), 1, "{}", process.log());
}

/// Each of the commands says this, and ends with its code once it is interrupted.
fn all_end(commands: &[(&[&str], i32)], silent: Silent<'_>, told: &str) {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let folders: Vec<_> = commands.iter().map(|_| tempfile::tempdir().unwrap()).collect();
        let begin = |(folder, (arguments, code)): (&tempfile::TempDir, &(&[&str], i32))| {
            (start(folder.path(), arguments, silent), *code)
        };
        let begun: Vec<_> = folders.iter().zip(commands).map(begin).collect();
        for (mut process, code) in begun {
            until_told(&mut process, told);
            process.signal(signal);
            let usage = must(process.wait(LIMIT));
            assert_eq!(usage.status.code(), Some(code), "{}", process.log());
        }
    }
}

/// Its connections stay in the queue of those that nobody accepts.
fn silent() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[test]
fn no_command_waits_for_a_silent_daemon_without_a_word_or_longer_than_asked() {
    let (_listener, address) = silent();
    let commands: [(&[&str], i32); 12] = [
        (&["paths", TO], EXIT_INTERRUPTED),
        (&["ping", HOST], EXIT_INTERRUPTED),
        (&["traceroute", TO], EXIT_INTERRUPTED),
        (&["address", "--json"], EXIT_INTERRUPTED),
        (&["show", MAGNET], EXIT_INTERRUPTED),
        (&["get", MAGNET], EXIT_INTERRUPTED),
        (&["get", "--list", "--json", MAGNET], EXIT_INTERRUPTED),
        (&["play", MAGNET], EXIT_INTERRUPTED),
        (&["send", "file"], EXIT_INTERRUPTED),
        (&["receive"], EXIT_INTERRUPTED),
        // What goes on until it is interrupted has done all that it was asked for.
        (&["share", "file"], EXIT_SUCCESS),
        (&LIVE, EXIT_SUCCESS),
    ];
    let told = format!("the SCION daemon at {address} does not answer");
    all_end(&commands, Silent::Daemon(address), &told);
    let standing: [(&[&str], i32); 2] = [
        (&["daemon", "--state-dir", "state", "--api", "127.0.0.1:0"], EXIT_SUCCESS),
        (&["receive", "--listen", "127.0.0.1:0", "--allow", KEY], EXIT_SUCCESS),
    ];
    all_end(&standing, Silent::Daemon(address), &told);
}

#[test]
fn programs_are_told_by_an_event() {
    let (_listener, address) = silent();
    for arguments in [&["get", "--json", MAGNET][..], &["ping", "--json", HOST], &["send", "--json", "file"]] {
        let folder = tempfile::tempdir().unwrap();
        let mut process = start(folder.path(), arguments, Silent::Daemon(address));
        let (event, _) = must(process.wait_event("waiting", LIMIT));
        assert!(event["reason"].as_str().unwrap().contains("does not answer"), "{event}");
        process.signal(libc::SIGINT);
        let usage = must(process.wait(LIMIT));
        assert_eq!(usage.status.code(), Some(EXIT_INTERRUPTED), "{}", process.log());
    }
}

/// A network of these addresses, so that tests run beside each other, and the daemon where the program is.
fn network(first: &str) -> (Network, SocketAddr) {
    let text = std::fs::read_to_string(checkout().join("topologies/line.toml")).unwrap();
    let topology = Topology::from_toml("line.toml", &format!("network = '{first}'\n{text}")).unwrap();
    let network = Network::start(topology, Options::default()).unwrap();
    let daemon = network.topology().get(FROM.parse().unwrap()).unwrap().daemon;
    (network, daemon)
}

#[test]
fn no_command_waits_for_paths_without_a_word_or_longer_than_asked() {
    let (_network, behind) = network("127.159.0.0");
    let liar = must(HostileDaemon::start(&[DaemonTrick::Late(TO.parse().unwrap())], false, behind));
    let commands: [(&[&str], i32); 6] = [
        (&["paths", TO], EXIT_INTERRUPTED),
        (&["paths", "--refresh", TO], EXIT_INTERRUPTED),
        (&["ping", HOST], EXIT_INTERRUPTED),
        (&["traceroute", TO], EXIT_INTERRUPTED),
        (&["send", "--dry-run", "--json", "file", "--to", PEER], EXIT_INTERRUPTED),
        (&["get", "--interactive", MAGNET, "--peer", PEER], EXIT_INTERRUPTED),
    ];
    all_end(&commands, Silent::Daemon(liar.address), &format!("tells no paths to {TO}"));
}

/// `ip netns exec` lays it over the machine's own.
struct ResolvConf(PathBuf);

impl ResolvConf {
    fn of(host: &Namespace, text: &str) -> Self {
        let folder = PathBuf::from("/etc/netns").join(host.name());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("resolv.conf"), text).unwrap();
        Self(folder)
    }
}

impl Drop for ResolvConf {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn no_command_waits_for_a_silent_name_server_without_a_word_or_longer_than_asked() {
    if !net::available() {
        return eprintln!("left out: not root");
    }
    let host = must(Namespace::new());
    let bind = || UdpSocket::bind("127.0.0.1:53").map_err(Error::system("bind"));
    let _silent = must(host.enter(bind));
    let _resolv_conf = ResolvConf::of(&host, "nameserver 127.0.0.1\n");
    let commands: [(&[&str], i32); 8] = [
        (&["paths", "silent.example"], EXIT_INTERRUPTED),
        (&["ping", "silent.example"], EXIT_INTERRUPTED),
        (&["traceroute", "silent.example"], EXIT_INTERRUPTED),
        (&["show", MAGNET, "--peer", "silent.example:6881"], EXIT_INTERRUPTED),
        (&["get", MAGNET, "--peer", "silent.example:6881"], EXIT_INTERRUPTED),
        (&["play", MAGNET, "--peer", "silent.example:6881"], EXIT_INTERRUPTED),
        (&["send", "file", "--to", "silent.example:7000"], EXIT_INTERRUPTED),
        (&["share", "file", "--peer", "silent.example:6881"], EXIT_SUCCESS),
    ];
    all_end(&commands, Silent::Dns(&host), "the DNS does not say what `silent.example` stands for");
}

#[test]
fn who_is_asked_which_path_to_take_may_end_it_instead() {
    let (_network, daemon) = network("127.160.0.0");
    for arguments in [
        &["ping", "--interactive", HOST][..],
        &["traceroute", "--interactive", TO],
        &["get", "--interactive", MAGNET, "--peer", PEER],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = command(folder.path(), arguments, Silent::Daemon(daemon));
        let (mut process, _answers) = must(Process::spawn_fed(arguments.join(" "), &mut command));
        until_told(&mut process, &format!("from {FROM} to {TO}"));
        process.signal(libc::SIGINT);
        let usage = must(process.wait(LIMIT));
        assert_eq!(usage.status.code(), Some(EXIT_INTERRUPTED), "{}", process.log());
    }
}
