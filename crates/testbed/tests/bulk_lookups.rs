//! Bulk transfers over SCION of which nobody says what paths there are, or whose only path is cut as they begin: they say what they wait
//! for, end as soon as they are asked to, and go on.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anabranch_asnet::network::{Network, Options};
use anabranch_asnet::topology::Topology;
use anabranch_hercules::wire::ticket::Ticket;
use anabranch_paths::{Endpoint, IsdAs};
use anabranch_testbed::hostile_daemon::{DaemonTrick, HostileDaemon};
use anabranch_testbed::peers::{anabranch, checkout};
use anabranch_testbed::process::Process;
use anabranch_testbed::{Result, data};

const LIMIT: Duration = Duration::from_secs(120);
const CORE: &str = "1-ff00:0:110";
const FROM: &str = "1-ff00:0:111";
const TO: &str = "1-ff00:0:112";
/// At the limit of [`RATE`] it takes a minute, or a third of it.
const LEN: u64 = 60 << 20;
const SHORT_LEN: u64 = 20 << 20;
const RATE: &str = "1M";
const EXIT_INTERRUPTED: i32 = 130;

fn must<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// Two hosts whose ASes one path joins, and a receiver that listens at one of them.
struct Site {
    network: Network,
    folder: tempfile::TempDir,
    receiving: Process,
    ticket: String,
}

impl Site {
    /// In a network of these addresses, so that tests run beside each other; there are so many bytes to send.
    fn new(first: &str, len: u64) -> Self {
        Self::listening(first, len, &[])
    }

    /// The same; the receiver listens at these addresses too.
    fn listening(first: &str, len: u64, others: &[&str]) -> Self {
        let text = std::fs::read_to_string(checkout().join("topologies/line.toml")).unwrap();
        let topology = Topology::from_toml("line.toml", &format!("network = '{first}'\n{text}")).unwrap();
        let network = Network::start(topology, Options::default()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        must(data::make_file(&folder.path().join("content"), len, 11));
        let mut receive = command(&network, folder.path(), "receive", TO, daemon(&network, TO));
        receive.arg("-o").arg(folder.path().join("out"));
        others.iter().for_each(|address| _ = receive.args(["--listen", address]));
        let mut receiving = must(Process::spawn("receive", &mut receive));
        let (event, _) = must(receiving.wait_event("ticket", LIMIT));
        let ticket = event["ticket"].as_str().unwrap().to_owned();
        Self { network, folder, receiving, ticket }
    }

    /// A sender that has paths from this daemon.
    fn send(&self, daemon: SocketAddr) -> Process {
        let mut send = command(&self.network, self.folder.path(), "send", FROM, daemon);
        send.args(["--limit-up", RATE, "--to", &self.ticket]).arg(self.folder.path().join("content"));
        must(Process::spawn("send", &mut send))
    }

    fn set_path_up(&self, is_up: bool) {
        let link = self.network.find_link(CORE, Some(TO)).unwrap();
        self.network.set_link_up(link, is_up).unwrap();
    }

    /// The sender goes on, and both ends end with the content.
    fn arrives(mut self, mut sending: Process) {
        must(sending.wait_event("resumed", LIMIT));
        must(sending.wait_event("finished", LIMIT));
        let ended = self.receiving.wait_success(LIMIT).and_then(|_| sending.wait_success(LIMIT));
        ended.unwrap_or_else(|error| panic!("{error}\n{}\n{}", sending.log(), self.receiving.log()));
        let read = |name: &str| std::fs::read(self.folder.path().join(name)).unwrap();
        assert!(read("content") == read("out/content"));
    }
}

fn daemon(network: &Network, isd_as: &str) -> SocketAddr {
    network.topology().get(isd_as.parse().unwrap()).unwrap().daemon
}

/// The program at the first host of an AS, where it reaches others over SCION alone.
fn command(network: &Network, folder: &Path, verb: &str, isd_as: &str, daemon: SocketAddr) -> Command {
    let host = network.topology().get(isd_as.parse().unwrap()).unwrap().hosts[0].address;
    let mut command = must(anabranch::command(None));
    command.args([verb, "--json", "--listen", &format!("[{isd_as},{host}]:0"), "--sciond", &daemon.to_string()]);
    command.arg("--key").arg(folder.join(format!("key of {isd_as}")));
    command
}

/// What it says that it waits for.
fn waits(sending: &mut Process) -> String {
    let (event, _) = must(sending.wait_event("waiting", LIMIT));
    event["reason"].as_str().unwrap().to_owned()
}

/// Ctrl-C ends it, as what was interrupted.
fn is_interrupted(mut sending: Process) {
    sending.signal(libc::SIGINT);
    let usage = must(sending.wait(LIMIT));
    assert_eq!(usage.status.code(), Some(EXIT_INTERRUPTED), "{}", sending.log());
}

#[test]
fn a_daemon_that_names_no_paths_is_waited_for() {
    let site = Site::new("127.152.0.0", SHORT_LEN);
    let late: IsdAs = TO.parse().unwrap();
    let liar = must(HostileDaemon::start(&[DaemonTrick::Late(late)], false, daemon(&site.network, FROM)));
    let mut sending = site.send(liar.address);
    let reason = waits(&mut sending);
    assert!(reason.contains("daemon") && liar.is_waited_for(), "{reason}");
    is_interrupted(sending);
    let mut sending = site.send(liar.address);
    waits(&mut sending);
    liar.relent();
    site.arrives(sending);
}

#[test]
fn a_daemon_that_never_answers_at_all_holds_up_no_end() {
    let site = Site::new("127.153.0.0", SHORT_LEN);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sending = site.send(listener.local_addr().unwrap());
    let _asked = listener.accept().unwrap();
    is_interrupted(sending);
}

#[test]
fn a_daemon_that_names_no_paths_holds_up_no_other_address() {
    let mut site = Site::listening("127.157.0.0", 1 << 20, &["127.0.0.1:0"]);
    let late: IsdAs = TO.parse().unwrap();
    let liar = must(HostileDaemon::start(&[DaemonTrick::Late(late)], false, daemon(&site.network, FROM)));
    // Of its own, a ticket that has an address in a SCION network has none of a loopback.
    let mut ticket: Ticket = site.ticket.parse().unwrap();
    let log = site.receiving.log();
    let listening = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let own = listening.filter_map(|event| event["address"].as_str()?.parse::<Endpoint>().ok());
    ticket.addresses.extend(own.filter(|own| own.as_ip().is_some()));
    assert_eq!(ticket.addresses.len(), 2, "{log}");
    let mut send = must(anabranch::command(None));
    send.args(["send", "--json", "--sciond", &liar.address.to_string(), "--to", &ticket.to_string()]);
    send.arg(site.folder.path().join("content")).arg("--key").arg(site.folder.path().join("key"));
    let mut sending = must(Process::spawn("send", &mut send));
    must(sending.wait_event("connected", LIMIT));
    assert!(liar.is_waited_for() && liar.asked() == 1, "{}", sending.log());
    must(sending.wait_success(LIMIT));
    must(site.receiving.wait_success(LIMIT));
}

/// All the time that a lookup takes, who called tells how far the transfer is: that is more often than around the lookup's ends.
fn goes_on(mut calling: Process, liar: &HostileDaemon) {
    const STEPS: usize = 5;
    must(calling.wait_event("started", LIMIT));
    let (mut lookup, mut steps) = (0, BTreeSet::new());
    while steps.len() < STEPS {
        let (event, _) = must(calling.wait_event("progress", LIMIT));
        if liar.asked() != lookup || !liar.is_waited_for() {
            lookup = liar.asked();
            steps.clear();
            continue;
        }
        steps.insert(event["bytes_done"].as_u64().unwrap());
    }
    is_interrupted(calling);
}

/// Most of the time no path is known to be good.
fn slow(network: &Network, isd_as: &str) -> HostileDaemon {
    let slow = DaemonTrick::Slow { answer: Duration::from_secs(8), life: Duration::from_secs(2) };
    must(HostileDaemon::start(&[slow], false, daemon(network, isd_as)))
}

#[test]
fn a_sender_goes_on_while_paths_are_looked_up() {
    let site = Site::new("127.154.0.0", LEN);
    let liar = slow(&site.network, FROM);
    goes_on(site.send(liar.address), &liar);
}

#[test]
fn a_receiver_that_calls_goes_on_while_paths_are_looked_up() {
    let site = Site::new("127.158.0.0", LEN);
    let folder = site.folder.path();
    let mut send = command(&site.network, folder, "send", FROM, daemon(&site.network, FROM));
    let mut sending = must(Process::spawn("send", send.args(["--limit-up", RATE]).arg(folder.join("content"))));
    let (event, _) = must(sending.wait_event("ticket", LIMIT));
    let liar = slow(&site.network, TO);
    let mut receive = must(anabranch::command(None));
    receive.args(["receive", "--json", event["ticket"].as_str().unwrap(), "--sciond", &liar.address.to_string()]);
    receive.arg("-o").arg(folder.join("other")).arg("--key").arg(folder.join("key"));
    goes_on(must(Process::spawn("receive", &mut receive)), &liar);
}

#[test]
fn the_only_path_may_be_cut_before_it_begins() {
    let site = Site::new("127.155.0.0", SHORT_LEN);
    site.set_path_up(false);
    let mut sending = site.send(daemon(&site.network, FROM));
    waits(&mut sending);
    is_interrupted(sending);
    let mut sending = site.send(daemon(&site.network, FROM));
    waits(&mut sending);
    site.set_path_up(true);
    site.arrives(sending);
}

#[test]
fn the_only_path_may_be_cut_as_it_begins() {
    let site = Site::new("127.156.0.0", SHORT_LEN);
    for is_ended in [true, false] {
        let mut sending = site.send(daemon(&site.network, FROM));
        must(sending.wait_event("connected", LIMIT));
        site.set_path_up(false);
        waits(&mut sending);
        if is_ended {
            is_interrupted(sending);
            site.set_path_up(true);
        } else {
            site.set_path_up(true);
            return site.arrives(sending);
        }
    }
}
